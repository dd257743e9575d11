/* Fuzzes the codecs: built with sanitizers by test_native.py. Values of any bits are written and read,
   and so are rows of any bytes, in blocks of their own that are exactly as large as they must be.

       native SEED SECONDS */

#include "codec.c"
#include "draws.h"

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
    int codec = BFLOAT16 + (int)below(5);
    struct payload it = {.chunk_bytes = 12 + 4 * below(below(8) ? 40 : 1600)};
    it.per_chunk = elements_of(codec, it.chunk_bytes);
    it.elements = 1 + below((uint32_t)it.per_chunk * 3);
    int64_t before = (it.elements - 1) / it.per_chunk, rest = it.elements - before * it.per_chunk;
    size_t values_bytes = (size_t)it.elements * sizeof(float);
    size_t rows_bytes = (size_t)(before * it.chunk_bytes + bytes_of(codec, rest));
    it.values = block(values_bytes);
    if (below(2)) /* in a range where numbers are added and divided */
        for (int64_t i = 0; i < it.elements; i++)
            it.values[i] = ((float)below(1 << 20) - 0x1p19f) * (below(50) ? 1e-3f : 1e-42f);
    it.residual = below(2) ? block(values_bytes) : NULL;
    it.rows = block(rows_bytes);
    it.keys[0] = below(~0u);
    if (below(4))
        write_chunks(&it, codec);
    uint8_t *chosen = block((size_t)before + 1);
    it.chosen = below(2) ? chosen : NULL;
    read_chunks(&it, codec);
    free(it.values);
    free(it.residual);
    free(it.rows);
    free(chosen);
}

int main(int argc, char **argv)
{
    return fuzz(argc, argv, once);
}
