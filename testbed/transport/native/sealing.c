/* Authenticating a batch of datagrams: keyed BLAKE2b (RFC 7693) of each, eight side by side.

   Datagrams are independent of one another, so the eight fill a processor's vectors, whatever it
   has of them. `net/sealing.py` has the same with hashlib; tests compare them. No branch and no
   address depends on a key or on a tag. */

#include "batches.h"

#define LANES 8
#define BLOCK_BYTES 128
#define ROUNDS 12

typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

/* One copy for each kind of vectors, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EACH_PROCESSOR
#endif

static const uint64_t FIRST[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const uint8_t ORDER[ROUNDS][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
};

/* Words are little-endian. */
static uint64_t word(uint64_t value)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(value);
#else
    return value;
#endif
}

static inline uint64_t word_at(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return word(value);
}

#define ROTATED(value, by) ((value) >> (by) | (value) << (64 - (by)))
#define HALF(a, b, c, d, x, far, near)                                                           \
    a += b + (x);                                                                                \
    d = ROTATED(d ^ a, far);                                                                     \
    c += d;                                                                                      \
    b = ROTATED(b ^ c, near)
#define MIX(a, b, c, d, i)                                                                       \
    HALF(v[a], v[b], v[c], v[d], m[ORDER[round][i]], 32, 24);                                    \
    HALF(v[a], v[b], v[c], v[d], m[ORDER[round][i + 1]], 16, 63)

/* Takes the next block of each; `bytes` is where it ends in its message. */
static inline __attribute__((always_inline)) void compress(lanes h[8],
                                                           const uint8_t *const at[LANES],
                                                           uint64_t bytes, int last)
{
    lanes m[16], v[16];
    for (int i = 0; i < 16; i++)
        m[i] = (lanes){word_at(at[0] + 8 * i), word_at(at[1] + 8 * i), word_at(at[2] + 8 * i),
                       word_at(at[3] + 8 * i), word_at(at[4] + 8 * i), word_at(at[5] + 8 * i),
                       word_at(at[6] + 8 * i), word_at(at[7] + 8 * i)};
    for (int i = 0; i < 8; i++) {
        v[i] = h[i];
        v[i + 8] = (lanes){0} + FIRST[i];
    }
    v[12] ^= bytes;
    v[14] ^= last ? ~(uint64_t)0 : 0;
#pragma GCC unroll 12
    for (int round = 0; round < ROUNDS; round++) {
        MIX(0, 4, 8, 12, 0);
        MIX(1, 5, 9, 13, 2);
        MIX(2, 6, 10, 14, 4);
        MIX(3, 7, 11, 15, 6);
        MIX(0, 5, 10, 15, 8);
        MIX(1, 6, 11, 12, 10);
        MIX(2, 7, 8, 13, 12);
        MIX(3, 4, 9, 14, 14);
    }
    for (int i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[i + 8];
}

/* The first 16 bytes of the digests of eight messages of `size` bytes, above 0, as two words each;
   `state` has taken the key. */
EACH_PROCESSOR void tags_of(const uint64_t state[8], const uint8_t *const messages[LANES],
                            uint64_t size, uint64_t tags[2][LANES])
{
    lanes h[8];
    const uint8_t *at[LANES];
    uint8_t rest[LANES][BLOCK_BYTES] = {{0}};
    uint64_t before = (size - 1) / BLOCK_BYTES * BLOCK_BYTES;
    for (int i = 0; i < 8; i++)
        h[i] = (lanes){0} + state[i];
    for (uint64_t from = 0; from < before; from += BLOCK_BYTES) {
        for (int i = 0; i < LANES; i++)
            at[i] = messages[i] + from;
        compress(h, at, from + 2 * BLOCK_BYTES, 0); /* with the key's block */
    }
    for (int i = 0; i < LANES; i++) {
        memcpy(rest[i], messages[i] + before, size - before);
        at[i] = rest[i];
    }
    compress(h, at, size + BLOCK_BYTES, 1);
    memcpy(tags, h, sizeof(uint64_t) * 2 * LANES);
}

/* The state after the key's block, for messages that are not empty. */
API void take_key(uint64_t state[8], const uint8_t *key, int64_t key_bytes, const uint8_t person[16])
{
    lanes h[8];
    uint8_t block[BLOCK_BYTES] = {0};
    const uint8_t *at[LANES];
    memcpy(block, key, key_bytes < 0 ? 0 : key_bytes > 64 ? 64 : (size_t)key_bytes);
    for (int i = 0; i < LANES; i++)
        at[i] = block;
    for (int i = 0; i < 8; i++)
        h[i] = (lanes){0} + FIRST[i];
    h[0] ^= (uint64_t)(TAG_BYTES | key_bytes << 8 | 1 << 16 | 1 << 24);
    h[6] ^= word_at(person);
    h[7] ^= word_at(person + 8);
    compress(h, at, BLOCK_BYTES, 0);
    for (int i = 0; i < 8; i++)
        state[i] = h[i][0];
}

/* Eight rows from `first` on; the last of all stands in for those that there are not. */
static void eight(const uint8_t *at[LANES], const uint8_t *rows, int64_t first, int64_t count,
                  int64_t stride)
{
    for (int64_t i = 0; i < LANES; i++)
        at[i] = rows + (first + i < count ? first + i : count - 1) * stride;
}

/* Copies datagrams that follow one another to `rows`, each with its tag behind it. Returns 0, or -1
   where there is no room for so many. */
API int seal_rows(const struct sealing *it, const uint8_t *frames, int64_t count)
{
    int64_t size = it->frame_bytes, whole = size + TAG_BYTES;
    const uint8_t *at[LANES];
    uint64_t tags[2][LANES];
    if (size <= 0 || count > it->rows_room / whole)
        return -1;
    for (int64_t first = 0; first < count; first += LANES) {
        eight(at, frames, first, count, size);
        tags_of(it->ours, at, (uint64_t)size, tags);
        for (int64_t i = 0; i < LANES && first + i < count; i++) {
            uint8_t *row = it->rows + (first + i) * whole;
            uint64_t tag[2] = {word(tags[0][i]), word(tags[1][i])};
            memcpy(row, at[i], (size_t)size);
            memcpy(row + size, tag, TAG_BYTES);
        }
    }
    return 0;
}

/* How many datagrams with tags are the other side's; `good` (NULL: nobody asks) says which. */
API int64_t open_rows(const struct sealing *it, const uint8_t *rows, int64_t count, uint8_t *good)
{
    int64_t size = it->frame_bytes, genuine = 0;
    const uint8_t *at[LANES];
    uint64_t tags[2][LANES];
    if (size <= 0)
        return 0;
    for (int64_t first = 0; first < count; first += LANES) {
        eight(at, rows, first, count, size + TAG_BYTES);
        tags_of(it->theirs, at, (uint64_t)size, tags);
        for (int64_t i = 0; i < LANES && first + i < count; i++) {
            uint64_t differs = (tags[0][i] ^ word_at(at[i] + size)) |
                               (tags[1][i] ^ word_at(at[i] + size + 8));
            int is_good = (int)(1 ^ ((differs | -differs) >> 63));
            genuine += is_good;
            if (good)
                good[first + i] = (uint8_t)is_good;
        }
    }
    return genuine;
}
