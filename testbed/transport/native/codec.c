/* Codecs: float32 values as chunks of fewer bytes, and back; codec.py says the formats, and does the
   same in numpy, byte for byte. So each operation on floats is one of IEEE 754's, in the same order;
   -ffp-contract=off keeps the compiler from joining two. It is for little-endian processors. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* One copy for each kind of vectors, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define EACH_PROCESSOR
#endif

/* Of which source this is; setup.py sets it and `compiled.py` compares it. */
#ifndef SOURCE
#define SOURCE ""
#endif
API const char *source(void) { return SOURCE; }

enum codec { BFLOAT16 = 1, FLOAT16, INT8, INT4, ONE_BIT };

#define INFINITE 0x7f800000u
#define NOT_A_NUMBER 0x7fc00000u
#define BLOCK 4096 /* elements that are worked on at a time: they stay in a cache */
#define GROUP 384  /* elements of one-bit that share two values */
#define GROUP_BYTES 56
#define LANES 8

/* A payload, its chunks, and what draws the roundings. */
struct payload {
    float *values;
    float *residual; /* what rounding loses; NULL: nobody asks */
    uint8_t *rows;
    const uint8_t *chosen; /* of reading: a byte for each chunk, 0 for those left alone; or NULL */
    int64_t elements, chunk_bytes, per_chunk;
    uint32_t keys[2];
};

INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float float_at(const uint8_t *at)
{
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* The greatest absolute value's bits: of no finite number if one of the values is none. */
INLINE uint32_t largest(const float *values, int64_t count)
{
    int32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(bits_of(values[i]) & 0x7fffffff);
        most = bits > most ? bits : most;
    }
    return (uint32_t)most;
}

/* bfloat16 and float16: to the nearest, ties to even; what is too large becomes the largest. */

INLINE uint16_t to_bfloat16(float value)
{
    uint32_t bits = bits_of(value), size = bits & 0x7fffffff;
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    rounded = size < INFINITE && size > 0x7f7f7fff ? (bits >> 16 & 0x8000) | 0x7f7f : rounded;
    rounded = size == INFINITE ? bits >> 16 : rounded;
    return (uint16_t)(size > INFINITE ? 0x7fc0 : rounded);
}

INLINE uint16_t to_float16(float value)
{
    uint32_t bits = bits_of(value), size = bits & 0x7fffffff;
    uint32_t normal = (size + 0xc8000fff + (size >> 13 & 1)) >> 13;
    /* 0.5 has the steps of float16's least numbers. */
    uint32_t least = bits_of(float_of(size < 0x38800000 ? size : 0) + 0.5f) - 0x3f000000;
    uint32_t rounded = size < 0x38800000 ? least : normal;
    rounded = size > 0x477fefff ? 0x7bff : rounded;
    rounded = size == INFINITE ? 0x7c00 : rounded;
    return (uint16_t)(size > INFINITE ? 0x7e00 : (bits >> 16 & 0x8000) | rounded);
}

INLINE float from_bfloat16(uint16_t half) { return float_of((uint32_t)half << 16); }

INLINE float from_float16(uint16_t half)
{
    uint32_t size = half & 0x7fff;
    /* No operand is denormal: a thread may take these for 0. */
    uint32_t finite = size < 0x400 ? bits_of((float)size * 0x1p-24f) : (size << 13) + 0x38000000;
    uint32_t bits = size >= 0x7c00 ? size << 13 | INFINITE : finite;
    return float_of((uint32_t)(half & 0x8000) << 16 | bits);
}

#define HALF(codec)                                                                              \
    EACH_PROCESSOR static void write_##codec(const struct payload *it)                           \
    {                                                                                            \
        uint16_t *halves = (uint16_t *)it->rows;                                                 \
        const float *values = it->values;                                                        \
        for (int64_t i = 0; i < it->elements; i++)                                               \
            halves[i] = to_##codec(values[i]);                                                   \
    }                                                                                            \
    EACH_PROCESSOR static void lose_##codec(const struct payload *it)                            \
    {                                                                                            \
        const uint16_t *halves = (const uint16_t *)it->rows;                                     \
        const float *values = it->values;                                                        \
        float *residual = it->residual;                                                          \
        for (int64_t i = 0; i < it->elements; i++) {                                             \
            float lost = values[i] - from_##codec(halves[i]);                                    \
            residual[i] = (bits_of(values[i]) & 0x7fffffff) < INFINITE ? lost : 0.0f;            \
        }                                                                                        \
    }                                                                                            \
    EACH_PROCESSOR static void read_##codec(const uint8_t *row, float *values, int64_t count)    \
    {                                                                                            \
        const uint16_t *halves = (const uint16_t *)row;                                          \
        for (int64_t i = 0; i < count; i++)                                                      \
            values[i] = from_##codec(halves[i]);                                                 \
    }
HALF(bfloat16)
HALF(float16)

/* int8 and int4: a scale, and whole numbers rounded up or down by chance. */

/* The same 32 bits for the same element and keys: MurmurHash3's last steps, with a second key. */
INLINE uint32_t draw(uint32_t index, uint32_t one, uint32_t two)
{
    uint32_t hash = index ^ one;
    hash ^= hash >> 16;
    hash *= 0x85ebca6b;
    hash ^= hash >> 13;
    hash += two;
    hash *= 0xc2b2ae35;
    return hash ^ hash >> 16;
}

EACH_PROCESSOR static void round_block(const float *values, int64_t count, uint32_t index,
                                       const uint32_t keys[2], float inverse, int most, int8_t *out)
{
    uint32_t one = keys[0], two = keys[1];
    for (int64_t i = 0; i < count; i++) {
        int32_t chance = (int32_t)(draw(index + (uint32_t)i, one, two) >> 8);
        float scaled = values[i] * inverse;
        scaled += (float)chance * 0x1p-24f;
        int32_t whole = (int32_t)scaled;
        whole -= (float)whole > scaled;
        whole = whole > most ? most : whole;
        out[i] = (int8_t)(whole < -most ? -most : whole);
    }
}

EACH_PROCESSOR static void lose_block(const float *values, const int8_t *rounded, int64_t count,
                                      float scale, float *residual)
{
    for (int64_t i = 0; i < count; i++)
        residual[i] = values[i] - scale * (float)rounded[i];
}

EACH_PROCESSOR static void pack_block(const int8_t *rounded, int64_t bytes, uint8_t *out)
{
    for (int64_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)((rounded[2 * i] & 15) | (uint8_t)rounded[2 * i + 1] << 4);
}

EACH_PROCESSOR static void read_int8(const uint8_t *packed, float *values, int64_t count, float scale)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * (float)(int8_t)packed[i];
}

EACH_PROCESSOR static void read_int4(const uint8_t *packed, float *values, int64_t count, float scale)
{
    for (int64_t i = 0; i < count / 2; i++) {
        values[2 * i] = scale * (float)((int32_t)((uint32_t)packed[i] << 28) >> 28);
        values[2 * i + 1] = scale * (float)((int32_t)((uint32_t)packed[i] << 24) >> 28);
    }
    if (count & 1)
        values[count - 1] = scale * (float)((int32_t)((uint32_t)packed[count / 2] << 28) >> 28);
}

EACH_PROCESSOR static uint32_t largest_of(const float *values, int64_t count)
{
    return largest(values, count);
}

/* The scale of one chunk; with `inverse` 0 where all its numbers are 0. */
static float scale_of(const float *values, int64_t count, float most, float *inverse)
{
    uint32_t size = largest_of(values, count);
    *inverse = 0;
    if (size >= INFINITE)
        return float_of(NOT_A_NUMBER);
    float scale = float_of(size) / most;
    /* The largest float divided by 7 or 127 may be rounded up, and times that be infinite. */
    if (isinf(scale * most))
        scale = float_of(bits_of(scale) - 1);
    if (scale < 0x1p-126f) /* denormal: a thread may take it for 0 */
        return 0;
    *inverse = 1.0f / scale;
    return scale;
}

static void write_whole(const struct payload *it, int64_t first, int64_t count, uint8_t *row, int bits)
{
    const float *values = it->values + first;
    int most = bits == 4 ? 7 : 127;
    float inverse, scale = scale_of(values, count, (float)most, &inverse);
    memcpy(row, &scale, sizeof scale);
    row += sizeof scale;
    for (int64_t at = 0; at < count; at += BLOCK) {
        int8_t rounded[BLOCK + 1];
        int64_t size = count - at < BLOCK ? count - at : BLOCK;
        if (inverse)
            round_block(values + at, size, (uint32_t)(first + at), it->keys, inverse, most, rounded);
        else
            memset(rounded, 0, (size_t)size);
        rounded[size] = 0;
        if (bits == 4)
            pack_block(rounded, (size + 1) / 2, row + at / 2);
        else
            memcpy(row + at, rounded, (size_t)size);
        if (!it->residual)
            continue;
        if (isnan(scale))
            memset(it->residual + first + at, 0, (size_t)size * sizeof(float));
        else
            lose_block(values + at, rounded, size, scale, it->residual + first + at);
    }
}

/* one-bit: the mean of the elements above 0, that of the others, and a bit for each. */

typedef double lanes __attribute__((vector_size(8 * LANES)));
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t words __attribute__((vector_size(4 * LANES)));

INLINE double sum_of(lanes it)
{
    return ((it[0] + it[1]) + (it[2] + it[3])) + ((it[4] + it[5]) + (it[6] + it[7]));
}

/* Adds every eighth value to the same lane, in double precision. */
INLINE void mean_group(const float *values, int64_t count, int64_t positive, float means[2])
{
    lanes above = {0}, other = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        floats some = {0};
        memcpy(&some, values + i, (size_t)(count - i < LANES ? count - i : LANES) * sizeof(float));
        words chosen = some > 0.0f;
        above += __builtin_convertvector((floats)((words)some & chosen), lanes);
        other += __builtin_convertvector((floats)((words)some & ~chosen), lanes);
    }
    means[0] = (float)(sum_of(above) / (double)(positive ? positive : 1));
    means[1] = (float)(sum_of(other) / (double)(count > positive ? count - positive : 1));
}

EACH_PROCESSOR static void write_group(const float *values, int64_t count, uint8_t *at, float *residual)
{
    uint8_t above[GROUP] = {0};
    float means[2];
    int64_t positive = 0;
    for (int64_t i = 0; i < count; i++) {
        above[i] = values[i] > 0;
        positive += above[i];
    }
    mean_group(values, count, positive, means);
    int odd = largest(values, count) >= INFINITE;
    if (odd)
        means[0] = means[1] = float_of(NOT_A_NUMBER);
    memcpy(at, means, sizeof means);
    at += sizeof means;
    for (int64_t i = 0; i < count; i += 8) { /* the product has a bit of each byte in its highest */
        uint64_t bytes;
        memcpy(&bytes, above + i, sizeof bytes);
        at[i / 8] = (uint8_t)(bytes * 0x0102040810204080 >> 56);
    }
    for (int64_t i = 0; residual && i < count; i++)
        residual[i] = odd ? 0.0f : values[i] - (values[i] > 0 ? means[0] : means[1]);
}

EACH_PROCESSOR static void read_group(const uint8_t *at, float *values, int64_t count)
{
    uint32_t words[2];
    memcpy(words, at, sizeof words);
    at += sizeof words;
    for (int64_t i = 0; i < count; i++)
        values[i] = float_of(at[i / 8] >> (i & 7) & 1 ? words[0] : words[1]);
}

static void write_bits(const struct payload *it, int64_t first, int64_t count, uint8_t *row)
{
    for (int64_t at = 0; at < count; at += GROUP, row += GROUP_BYTES) {
        int64_t size = count - at < GROUP ? count - at : GROUP;
        float *residual = it->residual ? it->residual + first + at : NULL;
        write_group(it->values + first + at, size, row, residual);
    }
}

static void read_bits(const uint8_t *row, float *values, int64_t count)
{
    for (int64_t at = 0; at < count; at += GROUP, row += GROUP_BYTES)
        read_group(row, values + at, count - at < GROUP ? count - at : GROUP);
}

/* Writes all chunks of a payload. What is left of the last one's bytes is not written. */
API void write_chunks(const struct payload *it, int codec)
{
    if (codec == BFLOAT16 || codec == FLOAT16) { /* their chunks follow one another without a gap */
        codec == BFLOAT16 ? write_bfloat16(it) : write_float16(it);
        if (it->residual)
            codec == BFLOAT16 ? lose_bfloat16(it) : lose_float16(it);
        return;
    }
    uint8_t *row = it->rows;
    for (int64_t first = 0; first < it->elements; first += it->per_chunk, row += it->chunk_bytes) {
        int64_t left = it->elements - first, count = left < it->per_chunk ? left : it->per_chunk;
        if (codec == ONE_BIT)
            write_bits(it, first, count, row);
        else
            write_whole(it, first, count, row, codec == INT4 ? 4 : 8);
    }
}

/* Reads the chosen chunks of a payload. */
API void read_chunks(const struct payload *it, int codec)
{
    const uint8_t *row = it->rows, *chosen = it->chosen;
    for (int64_t first = 0; first < it->elements; first += it->per_chunk, row += it->chunk_bytes) {
        int64_t left = it->elements - first, count = left < it->per_chunk ? left : it->per_chunk;
        float *values = it->values + first;
        if (chosen && !*chosen++)
            continue;
        if (codec == BFLOAT16)
            read_bfloat16(row, values, count);
        else if (codec == FLOAT16)
            read_float16(row, values, count);
        else if (codec == INT8)
            read_int8(row + 4, values, count, float_at(row));
        else if (codec == INT4)
            read_int4(row + 4, values, count, float_at(row));
        else
            read_bits(row, values, count);
    }
}
