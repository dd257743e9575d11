/* Draws of a seed, and what both fuzzers make of them: blocks of noise, and time that passes. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state;

static uint32_t below(uint32_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return bound ? (uint32_t)((state >> 11) % bound) : 0;
}

static void *block(size_t bytes)
{
    uint8_t *it = malloc(bytes ? bytes : 1);
    for (size_t i = 0; i < bytes; i++)
        it[i] = (uint8_t)below(256);
    return it;
}

/* Draws until so many seconds have passed, and prints how often; the exit status. */
static int fuzz(int argc, char **argv, void (*once)(void))
{
    if (argc != 3)
        return 2;
    state = strtoull(argv[1], NULL, 10) * 0x9E3779B97F4A7C15u | 1;
    long count = 0;
    for (time_t until = time(NULL) + atol(argv[2]); time(NULL) < until; count++)
        once();
    printf("%ld\n", count);
    return 0;
}
