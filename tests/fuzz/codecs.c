/* Fuzzes the codecs: built with sanitizers by test_native.py. Values of any bits are written and read,
   and so are rows of any bytes, in blocks of their own that are exactly as large as they must be.

       native SEED SECONDS */

#include "codec.c"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state;

static uint32_t draw_below(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (uint32_t)((state >> 11) % below) : 0;
}

static void *block(size_t bytes)
{
    uint8_t *it = malloc(bytes ? bytes : 1);
    for (size_t i = 0; i < bytes; i++)
        it[i] = (uint8_t)draw_below(256);
    return it;
}

/* Of a chunk, as codec.py has it. */
static int64_t elements_of(int codec, int64_t bytes)
{
    switch (codec) {
    case INT8:
        return bytes - 4;
    case INT4:
        return 2 * (bytes - 4);
    case ONE_BIT:
        return bytes / GROUP_BYTES * GROUP + (bytes % GROUP_BYTES > 8 ? (bytes % GROUP_BYTES - 8) * 8 : 0);
    default:
        return bytes / 2;
    }
}

static int64_t bytes_of(int codec, int64_t elements)
{
    int64_t groups = elements / GROUP, rest = elements % GROUP;
    switch (codec) {
    case INT8:
        return 4 + elements;
    case INT4:
        return 4 + (elements + 1) / 2;
    case ONE_BIT:
        return groups * GROUP_BYTES + (rest ? 8 + (rest + 7) / 8 : 0);
    default:
        return 2 * elements;
    }
}

static void once(void)
{
    int codec = BFLOAT16 + (int)draw_below(5);
    struct payload it = {.chunk_bytes = 12 + 4 * draw_below(draw_below(8) ? 40 : 1600)};
    it.per_chunk = elements_of(codec, it.chunk_bytes);
    it.elements = 1 + draw_below((uint32_t)it.per_chunk * 3);
    int64_t before = (it.elements - 1) / it.per_chunk, rest = it.elements - before * it.per_chunk;
    size_t values_bytes = (size_t)it.elements * sizeof(float);
    size_t rows_bytes = (size_t)(before * it.chunk_bytes + bytes_of(codec, rest));
    it.values = block(values_bytes);
    if (draw_below(2)) /* in a range where numbers are added and divided */
        for (int64_t i = 0; i < it.elements; i++)
            it.values[i] = ((float)draw_below(1 << 20) - 0x1p19f) * (draw_below(50) ? 1e-3f : 1e-42f);
    it.residual = draw_below(2) ? block(values_bytes) : NULL;
    it.rows = block(rows_bytes);
    it.keys[0] = draw_below(~0u);
    if (draw_below(4))
        write_chunks(&it, codec);
    uint8_t *chosen = block((size_t)before + 1);
    it.chosen = draw_below(2) ? chosen : NULL;
    read_chunks(&it, codec);
    free(it.values);
    free(it.residual);
    free(it.rows);
    free(chosen);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    state = 0x9e3779b97f4a7c15u * (uint64_t)(atoi(argv[1]) + 1);
    time_t until = time(NULL) + atoi(argv[2]);
    long count = 0;
    for (; time(NULL) < until; count++)
        once();
    printf("%ld\n", count);
    return 0;
}
