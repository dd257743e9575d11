/* The transport's fast path: what every datagram passes, in one file without global state.

     1  composing and placing batches       fast_path.py does the same in numpy
     2  sealing them                        net/tls.py     authenticates with hashlib
     3  sending and receiving batches       net/udp.py        does the same in plain calls
     4  plans, carried out during a wait    fast_path.py says what they may do

   Tests compare the pairs. It is called through ctypes, which releases the interpreter's lock.
   Whatever a datagram says is checked here before it is used. Each structure, which fast_path.py
   beside this file has too, says for how much its pointers have room, and the code that writes
   there looks first: no count of a caller is trusted. Times are seconds on the monotonic clock. */

#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define HEADER_BYTES 16
#define SEND_INDEX_BITS 15
#define SEND_INDEX_MASK 0x7fff
#define ACK_REQUESTED 0x8000
#define CHUNK_BITS 26
#define CHUNK_MASK ((1u << CHUNK_BITS) - 1)
#define FAR (1 << (SEND_INDEX_BITS - 1))
#define NUMBER_MASK ((1 << (32 - CHUNK_BITS + SEND_INDEX_BITS)) - 1)
#define ASK_FIRST 1
#define ASK_LAST 2
#define LEAST_FOR_TWO 4 /* datagrams of a batch for both; fast_path.py has the same */
#define AHEAD 4 /* rows that are fetched before their turn, scattered or not */

/* Of which source this is; setup.py sets it and `fast_path.py` compares it. */
#ifndef SOURCE
#define SOURCE ""
#endif
API const char *source(void) { return SOURCE; }

/* 1. Composing and placing. */

/* One transfer's side. Without `rows` the datagrams are headers alone. They lie `stride` bytes
   apart: a trailer may follow each. */
struct composing {
    uint8_t *frames;
    const uint8_t *rows;
    uint64_t frames_room, rows_room; /* bytes */
    uint32_t session, transfer, chunk_count, chunk_bytes, last_length, stride;
};

enum fault {
    WRONG_SESSION,
    STALE_TRANSFER,
    EARLY_TRANSFER,
    OUT_OF_RANGE,
    WRONG_LENGTH,
    REPLAYED,
    TOO_OLD,
    FAR_AHEAD,
    FAULTS
};

struct placing {
    uint8_t *rows;
    uint8_t *received; /* a byte per chunk, 0 or 1 */
    uint8_t *seen;     /* the same per number modulo `window`, a power of two */
    uint32_t *stamps;  /* results, `room` of each */
    int64_t *chunks;
    uint64_t rows_room; /* bytes */
    uint32_t session, transfer, chunk_count, chunk_bytes, last_length;
    uint32_t window, newest, farthest, room;
    uint32_t ignored; /* of this batch: those with a fault, and duplicates */
    uint32_t gained;
    uint32_t faults[FAULTS];
};

static inline int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

static uint16_t read16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static uint32_t read32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void write16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void write32(uint8_t *at, uint32_t value)
{
    write16(at, value >> 16);
    write16(at + 2, value);
}

static void fetch(const uint8_t *row, uint32_t bytes, int to_write)
{
    for (uint32_t at = 0; at < bytes; at += 64) {
        if (to_write)
            __builtin_prefetch(row + at, 1);
        else
            __builtin_prefetch(row + at, 0);
    }
}

static uint32_t number_of(const uint8_t *frame)
{
    return read32(frame + 4) >> CHUNK_BITS << SEND_INDEX_BITS |
           (read16(frame + 14) & SEND_INDEX_MASK);
}

/* The transfer that all of at least one datagram name; -1 where they differ. */
API int64_t transfer_of(const uint8_t *frames, int64_t count, int64_t stride)
{
    uint32_t transfer = read32(frames + 8);
    for (int64_t i = 1; i < count; i++)
        if (read32(frames + i * stride + 8) != transfer)
            return -1;
    return transfer;
}

/* Writes one datagram per chunk to the frames. Returns 0, or -1 when there is no such chunk or no
   room for so many. */
API int compose(const struct composing *it, const int64_t *chunks, int64_t count, int64_t first,
                int ask)
{
    uint8_t *frame = it->frames;
    uint32_t copied = it->rows ? it->chunk_bytes : 0;
    if (it->stride < HEADER_BYTES + copied || count < 0 ||
        (uint64_t)count > it->frames_room / it->stride ||
        (uint64_t)it->chunk_count * copied > it->rows_room)
        return -1;
    for (int64_t i = 0; i < count; i++, frame += it->stride) {
        int64_t chunk = chunks[i];
        uint32_t number = (uint32_t)(first + i) & NUMBER_MASK;
        if (chunk < 0 || chunk >= it->chunk_count)
            return -1;
        if (copied && i + AHEAD < count) {
            int64_t soon = chunks[i + AHEAD];
            if (soon >= 0 && soon < it->chunk_count)
                fetch(it->rows + soon * it->chunk_bytes, it->chunk_bytes, 0);
        }
        write32(frame, it->session);
        write32(frame + 4, (uint32_t)chunk | number >> SEND_INDEX_BITS << CHUNK_BITS);
        write32(frame + 8, it->transfer);
        write16(frame + 12, chunk + 1 == it->chunk_count ? it->last_length : it->chunk_bytes);
        int asks = (ask & ASK_FIRST && i == 0) || (ask & ASK_LAST && i + 1 == count);
        write16(frame + 14, (number & SEND_INDEX_MASK) | (asks ? ACK_REQUESTED : 0));
        if (copied)
            memcpy(frame + HEADER_BYTES, it->rows + chunk * copied, copied);
    }
    return 0;
}

/* The header's first fault, in the order of the enumeration; FAULTS for none. */
static enum fault fault_of(const struct placing *it, const uint8_t *frame)
{
    uint32_t transfer = read32(frame + 8), chunk = read32(frame + 4) & CHUNK_MASK;
    if (read32(frame) != it->session)
        return WRONG_SESSION;
    if (transfer != it->transfer)
        return transfer < it->transfer ? STALE_TRANSFER : EARLY_TRANSFER;
    if (chunk >= it->chunk_count)
        return OUT_OF_RANGE;
    if (read16(frame + 12) != (chunk + 1 == it->chunk_count ? it->last_length : it->chunk_bytes))
        return WRONG_LENGTH;
    return FAULTS;
}

/* How far a datagram's number is ahead of `newest`; negative for behind. */
static int32_t ahead_of(uint32_t newest, const uint8_t *frame)
{
    uint32_t half = (NUMBER_MASK >> 1) + 1;
    return (int32_t)((number_of(frame) - newest + half) & NUMBER_MASK) - (int32_t)half;
}

/* From where on a number may be damaged: taken at once, it would move the window past the others. */
static int32_t far_of(const struct placing *it)
{
    return it->window / 2 < FAR ? (int32_t)(it->window / 2) : FAR;
}

/* How far a batch reaches in which a number is far ahead. Such a one may be damaged: it counts if
   it is near one before it. */
static int32_t far_step(struct placing *it, const uint8_t *frames, int64_t count, int64_t stride)
{
    int32_t step = 0, far = far_of(it);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *frame = frames + i * stride;
        int32_t ahead = ahead_of(it->newest, frame), beyond = ahead_of(it->farthest, frame);
        if (fault_of(it, frame) != FAULTS)
            continue;
        if (ahead - step > far && (beyond < -far || beyond > far))
            it->farthest = number_of(frame);
        else if (ahead > step)
            step = ahead;
    }
    return step;
}

/* The window moves up to the newest of a batch; returns how far. */
static int32_t advance(struct placing *it, const uint8_t *frames, int64_t count, int64_t stride)
{
    int32_t step = 0, far = far_of(it);
    int reaches_far = 0;
    for (int64_t i = count - 1; i >= 0; i--) { /* the newest is usually the last */
        const uint8_t *frame = frames + i * stride;
        int32_t ahead = ahead_of(it->newest, frame);
        if (ahead <= step || fault_of(it, frame) != FAULTS)
            continue;
        if (ahead > far)
            reaches_far = 1;
        else
            step = ahead;
    }
    if (reaches_far)
        step = far_step(it, frames, count, stride);
    for (int32_t i = 1; i <= step && i <= (int32_t)it->window; i++)
        it->seen[(it->newest + (uint32_t)i) & (it->window - 1)] = 0;
    it->newest = (it->newest + (uint32_t)step) & NUMBER_MASK;
    return step;
}

/* Takes a number, once; FAULTS where it can. */
static enum fault first_time(struct placing *it, const uint8_t *frame, int32_t behind)
{
    if (behind < 0)
        return FAR_AHEAD;
    if (behind >= (int32_t)it->window)
        return TOO_OLD;
    uint8_t *seen = &it->seen[number_of(frame) & (it->window - 1)];
    if (*seen)
        return REPLAYED;
    *seen = 1;
    return FAULTS;
}

/* Takes `count` datagrams that lie `stride` bytes apart; returns how many are valid, or -1 where
   there is no room for the results of so many. */
API int64_t place(struct placing *it, const uint8_t *frames, int64_t count, int64_t stride)
{
    int64_t valid = 0, gained = 0, written = it->rows ? it->chunk_bytes : 0;
    it->ignored = it->gained = 0;
    memset(it->faults, 0, sizeof it->faults);
    if (count < 0 || count > it->room || stride < HEADER_BYTES + written || !it->window ||
        it->chunk_count * (uint64_t)written > it->rows_room)
        return -1;
    uint32_t before = it->newest;
    int32_t step = advance(it, frames, count, stride);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *frame = frames + i * stride;
        enum fault fault = fault_of(it, frame);
        if (fault == FAULTS)
            fault = first_time(it, frame, step - ahead_of(before, frame));
        if (fault != FAULTS) {
            it->faults[fault]++;
            it->ignored++;
            continue;
        }
        it->stamps[valid++] = read32(frame + 4) >> CHUNK_BITS << 16 | read16(frame + 14);
        uint32_t chunk = read32(frame + 4) & CHUNK_MASK;
        if (it->rows && i + AHEAD < count) {
            uint32_t soon = read32(frame + AHEAD * stride + 4) & CHUNK_MASK;
            if (soon < it->chunk_count)
                fetch(it->rows + (int64_t)soon * it->chunk_bytes, it->chunk_bytes, 1);
        }
        if (it->received[chunk]) {
            it->ignored++;
            continue;
        }
        it->received[chunk] = 1;
        it->chunks[gained++] = chunk;
        if (it->rows)
            memcpy(it->rows + (int64_t)chunk * it->chunk_bytes, frame + HEADER_BYTES,
                   it->chunk_bytes);
    }
    it->gained = (uint32_t)gained;
    return valid;
}

/* 2. Sealing. By keyed BLAKE2b (RFC 7693) of each datagram, eight side by side, or by AES-256-GCM.

   Datagrams are independent of one another, so the eight fill a processor's vectors, whatever it
   has of them. No branch and no address depends on a key or a tag, but on
   whether the whole tag is right. */

#define TAG_BYTES 16
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
EACH_PROCESSOR static void tags_of(const uint64_t state[8], const uint8_t *const messages[LANES],
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

/* AES-256-GCM by libcrypto, whose EVP functions net/tls.py looks up. The header is authenticated and
   the rest encrypted. A side numbers its datagrams: of the number, the lower half travels in place
   of the session, which the other side knows, and the rest follows from the newest. A key serves an
   epoch of numbers; the side and the number are the nonce, so none is used twice. */

#define KEY_BYTES 32
#define NONCE_BYTES 12
#define GET_TAG 0x10 /* EVP_CTRL_AEAD_GET_TAG */
#define SET_TAG 0x11

struct evp {
    const void *aes;
    void *(*new_context)(void);
    void (*free_context)(void *);
    int (*init)(void *, const void *cipher, void *engine, const uint8_t *key,
                const uint8_t *nonce, int encrypts);
    int (*update)(void *, uint8_t *to, int *written, const uint8_t *from, int bytes);
    int (*finish)(void *, uint8_t *to, int *written);
    int (*control)(void *, int type, int bytes, void *value);
};

/* What one side has sealed. */
struct side {
    uint64_t state[8]; /* a hash that has taken the key: it makes tags, or the epochs' keys */
    uint64_t number;   /* AES: of the next datagram, or the newest that was opened */
    uint64_t epochs[2]; /* of the contexts, counted from 1; an even and an odd one */
    void *contexts[2];
    uint32_t is_worker;
};

struct sealing {
    struct side ours, theirs;
    const struct evp *evp; /* NULL: BLAKE2b */
    uint32_t session, epoch_bits;
};

/* The state after the key's block, for messages that are not empty. */
API void take_key(uint64_t state[8], const uint8_t *key, int64_t key_bytes,
                  const uint8_t person[16], int64_t digest_bytes)
{
    lanes h[8];
    uint8_t block[BLOCK_BYTES] = {0};
    const uint8_t *at[LANES];
    memcpy(block, key, key_bytes < 0 ? 0 : key_bytes > 64 ? 64 : (size_t)key_bytes);
    for (int i = 0; i < LANES; i++)
        at[i] = block;
    for (int i = 0; i < 8; i++)
        h[i] = (lanes){0} + FIRST[i];
    h[0] ^= (uint64_t)(digest_bytes | key_bytes << 8 | 1 << 16 | 1 << 24);
    h[6] ^= word_at(person);
    h[7] ^= word_at(person + 8);
    compress(h, at, BLOCK_BYTES, 0);
    for (int i = 0; i < 8; i++)
        state[i] = h[i][0];
    explicit_bzero(block, sizeof block);
}

/* An epoch's key is the digest of its number. */
static void key_of(const struct side *side, uint64_t epoch, uint8_t key[KEY_BYTES])
{
    lanes h[8];
    uint8_t block[BLOCK_BYTES] = {0};
    const uint8_t *at[LANES];
    uint64_t value = word(epoch);
    memcpy(block, &value, sizeof value);
    for (int i = 0; i < LANES; i++)
        at[i] = block;
    for (int i = 0; i < 8; i++)
        h[i] = (lanes){0} + side->state[i];
    compress(h, at, BLOCK_BYTES + sizeof value, 1);
    for (int i = 0; i < KEY_BYTES / 8; i++) {
        value = word(h[i][0]);
        memcpy(key + 8 * i, &value, sizeof value);
    }
    explicit_bzero(h, sizeof h);
}

/* The context with the key of this number's epoch; NULL where libcrypto fails. */
static void *context_of(const struct sealing *it, struct side *side, uint64_t number, int encrypts)
{
    uint64_t epoch = number >> it->epoch_bits;
    void **context = &side->contexts[epoch & 1];
    if (side->epochs[epoch & 1] == epoch + 1)
        return *context;
    side->epochs[epoch & 1] = 0;
    if (!*context && !(*context = it->evp->new_context()))
        return NULL;
    uint8_t key[KEY_BYTES];
    key_of(side, epoch, key);
    int keyed = it->evp->init(*context, it->evp->aes, NULL, key, NULL, encrypts);
    explicit_bzero(key, sizeof key);
    if (keyed != 1)
        return NULL;
    side->epochs[epoch & 1] = epoch + 1;
    return *context;
}

/* Encrypts or decrypts one text in place, with its tag behind it; returns whether it could, and the
   tag is right. The context has the key. */
API int aes_gcm(const struct evp *evp, void *context, const uint8_t nonce[NONCE_BYTES],
                const uint8_t *head, int64_t head_bytes, uint8_t *text, int64_t bytes,
                int encrypts)
{
    int written, ok = evp->init(context, NULL, NULL, NULL, nonce, encrypts) == 1;
    ok = ok && evp->update(context, NULL, &written, head, (int)head_bytes) == 1;
    ok = ok && evp->update(context, text, &written, text, (int)bytes) == 1;
    if (!encrypts)
        ok = ok && evp->control(context, SET_TAG, TAG_BYTES, text + bytes) == 1;
    uint8_t nothing[TAG_BYTES];
    ok = ok && evp->finish(context, nothing, &written) == 1;
    if (encrypts)
        ok = ok && evp->control(context, GET_TAG, TAG_BYTES, text + bytes) == 1;
    return ok;
}

static int of_number(const struct sealing *it, struct side *side, uint64_t number, uint8_t *row,
                     int64_t size, int encrypts)
{
    uint8_t nonce[NONCE_BYTES];
    void *context = context_of(it, side, number, encrypts);
    write32(nonce, side->is_worker);
    write32(nonce + 4, (uint32_t)(number >> 32));
    write32(nonce + 8, (uint32_t)number);
    return context && aes_gcm(it->evp, context, nonce, row, HEADER_BYTES, row + HEADER_BYTES,
                              size - HEADER_BYTES, encrypts);
}

static int encrypt_row(struct sealing *it, uint8_t *row, int64_t size)
{
    uint64_t number = it->ours.number++;
    write32(row, it->session);
    int done = of_number(it, &it->ours, number, row, size, 1);
    write32(row, (uint32_t)number);
    return done;
}

static int decrypt_row(struct sealing *it, uint8_t *row, int64_t size)
{
    uint64_t newest = it->theirs.number;
    int32_t ahead = (int32_t)(read32(row) - (uint32_t)newest);
    uint64_t number = newest + (uint64_t)(int64_t)ahead;
    if (ahead < 0 && number > newest) /* before the first */
        return 0;
    write32(row, it->session);
    if (!of_number(it, &it->theirs, number, row, size, 0))
        return 0;
    if (ahead > 0)
        it->theirs.number = number;
    return 1;
}

/* Ends the use of a connection's keys. */
API void forget_keys(struct sealing *it)
{
    for (int i = 0; it->evp && i < 2; i++) {
        it->evp->free_context(it->ours.contexts[i]);
        it->evp->free_context(it->theirs.contexts[i]);
    }
    explicit_bzero(it, sizeof *it);
}

/* Eight rows from `first` on; the last of all stands in for those that there are not. */
static void eight(const uint8_t *at[LANES], const uint8_t *rows, int64_t first, int64_t count,
                  int64_t stride)
{
    for (int64_t i = 0; i < LANES; i++)
        at[i] = rows + (first + i < count ? first + i : count - 1) * stride;
}

/* Seals datagrams of `size` bytes, TAG_BYTES apart, and writes the tags there. Returns 0, or -1 for
   a wrong size, or where libcrypto fails. */
API int seal_rows(struct sealing *it, uint8_t *rows, int64_t count, int64_t size)
{
    const uint8_t *at[LANES];
    uint64_t tags[2][LANES];
    if (size <= 0 || (it->evp && size < HEADER_BYTES))
        return -1;
    for (int64_t i = 0; it->evp && i < count; i++)
        if (!encrypt_row(it, rows + i * (size + TAG_BYTES), size))
            return -1;
    if (it->evp)
        return 0;
    for (int64_t first = 0; first < count; first += LANES) {
        eight(at, rows, first, count, size + TAG_BYTES);
        tags_of(it->ours.state, at, (uint64_t)size, tags);
        for (int64_t i = 0; i < LANES && first + i < count; i++) {
            uint64_t tag[2] = {word(tags[0][i]), word(tags[1][i])};
            memcpy(rows + (first + i) * (size + TAG_BYTES) + size, tag, TAG_BYTES);
        }
    }
    return 0;
}

static int is_tag(const uint64_t tags[2][LANES], int64_t lane, const uint8_t *tag)
{
    return !((tags[0][lane] ^ word_at(tag)) | (tags[1][lane] ^ word_at(tag + 8)));
}

/* Opens datagrams of `size` bytes and a tag each, and moves the other side's before the forged ones;
   returns how many they are. */
API int64_t open_rows(struct sealing *it, uint8_t *rows, int64_t count, int64_t size)
{
    int64_t genuine = 0, whole = size + TAG_BYTES;
    const uint8_t *at[LANES];
    uint64_t tags[2][LANES];
    if (size <= 0 || (it->evp && size < HEADER_BYTES))
        return 0;
    for (int64_t i = 0; i < count; i++) {
        uint8_t *row = rows + i * whole;
        if (!it->evp && i % LANES == 0) {
            eight(at, rows, i, count, whole);
            tags_of(it->theirs.state, at, (uint64_t)size, tags);
        }
        if (!(it->evp ? decrypt_row(it, row, size) : is_tag(tags, i % LANES, row + size)))
            continue;
        if (genuine != i)
            memcpy(rows + genuine * whole, row, (size_t)whole);
        genuine++;
    }
    return genuine;
}

/* 3. Sending and receiving. */

#define UDP_LEVEL 17
#define SEGMENTED 103 /* UDP_SEGMENT, which not every libc names */
#define COALESCED 104 /* UDP_GRO */
#define RECEIVED_AT_ONCE 32 /* messages; net/udp.py has the same */
#define RECEIVE_CALLS 8 /* of a batch, where messages are single datagrams */
#define SENT_AT_ONCE 128
#define ADDRESS_BYTES 32 /* a sockaddr_in6 has 28; zeros follow */

/* `rows` has room for RECEIVED_AT_ONCE messages of `per_message` datagrams. `drained`: the last call
   left nothing in the socket. `foreign`, `wrong_size` and `forged` count the datagrams of others
   than the peer, of other sizes and without its tag, all that were dropped so far. */
struct receiving {
    uint8_t *rows;
    struct sealing *sealing; /* NULL for none, as below */
    uint8_t peer[ADDRESS_BYTES];
    uint32_t per_message, datagram_bytes, drained;
    uint64_t rows_room; /* bytes */
    uint64_t foreign, wrong_size, forged;
};

/* With several datagrams in a message the kernel cuts it. */
struct sending {
    uint8_t peer[ADDRESS_BYTES];
    uint32_t peer_bytes; /* 0 where the socket is connected */
    uint32_t per_message, datagram_bytes;
};

struct coalesced {
    struct cmsghdr head;
    int32_t size;
};

/* The size of each datagram in a message that the kernel coalesced; 0 for any other message,
   whatever else it says of itself. */
static uint32_t coalesced_size(const struct msghdr *head)
{
    struct coalesced control;
    if (head->msg_controllen < CMSG_LEN(sizeof control.size))
        return 0;
    memcpy(&control, head->msg_control, sizeof control);
    int is = control.head.cmsg_level == UDP_LEVEL && control.head.cmsg_type == COALESCED;
    return is ? (uint32_t)control.size : 0;
}

/* How many datagrams a message of anybody may be. */
static int64_t pieces_of(const struct mmsghdr *message)
{
    uint32_t size = coalesced_size(&message->msg_hdr), length = message->msg_len;
    return size && length > size ? (length + size - 1) / size : 1;
}

/* The datagrams of the right size at the beginning of a message: only its last may be shorter. */
static int64_t datagrams_of(const struct receiving *it, const struct mmsghdr *message)
{
    uint32_t size = coalesced_size(&message->msg_hdr);
    if (!size && message->msg_hdr.msg_flags & MSG_TRUNC)
        return 0;
    if (!size)
        size = message->msg_len;
    if (size != it->datagram_bytes)
        return 0;
    return least(message->msg_len / size, it->per_message);
}

/* Receives up to RECEIVED_AT_ONCE messages into the rows from `rows` on, which then follow one
   another; returns how many rows there are now, or -errno. */
static int64_t receive_more(struct receiving *it, int descriptor, int64_t rows)
{
    int64_t size = it->datagram_bytes, begin = rows;
    int64_t fit = RECEIVED_AT_ONCE - (begin + it->per_message - 1) / it->per_message;
    struct mmsghdr messages[RECEIVED_AT_ONCE] = {0};
    struct iovec vectors[RECEIVED_AT_ONCE];
    struct coalesced controls[RECEIVED_AT_ONCE];
    uint8_t sources[RECEIVED_AT_ONCE][ADDRESS_BYTES] = {{0}};
    for (int64_t i = 0; i < fit; i++) {
        vectors[i].iov_base = it->rows + (begin + i * it->per_message) * size;
        vectors[i].iov_len = (size_t)(it->per_message * size);
        messages[i].msg_hdr.msg_name = sources[i];
        messages[i].msg_hdr.msg_namelen = ADDRESS_BYTES;
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
        messages[i].msg_hdr.msg_control = &controls[i];
        messages[i].msg_hdr.msg_controllen = sizeof controls[i];
    }
    int received = recvmmsg(descriptor, messages, (unsigned)fit, MSG_DONTWAIT, NULL);
    if (received < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        return -errno;
    it->drained = received < fit;
    for (int64_t i = 0; i < received; i++) {
        if (memcmp(sources[i], it->peer, ADDRESS_BYTES)) {
            it->foreign += (uint64_t)pieces_of(&messages[i]);
            continue;
        }
        int64_t datagrams = datagrams_of(it, &messages[i]), first = begin + i * it->per_message;
        it->wrong_size += (uint64_t)(pieces_of(&messages[i]) - datagrams);
        if (first != rows)
            memmove(it->rows + rows * size, it->rows + first * size, (size_t)(datagrams * size));
        rows += datagrams;
    }
    return rows;
}

/* Single datagrams make small calls, so several of them make a batch. */
static int64_t receive_batch(struct receiving *it, int descriptor)
{
    int64_t rows = 0, size = it->datagram_bytes;
    if (!size || !it->per_message ||
        (uint64_t)RECEIVED_AT_ONCE * it->per_message > it->rows_room / (uint64_t)size)
        return -EINVAL;
    int64_t most = (RECEIVED_AT_ONCE - 1) * (int64_t)it->per_message; /* one more has room */
    it->drained = 0;
    for (int calls = 0; calls < RECEIVE_CALLS && !it->drained && rows <= most; calls++) {
        int64_t now = receive_more(it, descriptor, rows);
        if (now < 0) /* an error comes again where rows have come before it */
            return rows ? rows : now;
        rows = now;
    }
    return rows;
}

/* Receives and opens a batch into rows that follow one another; returns how many, or -errno. What
   others sent, has another size or is forged, is dropped here: a flood must not wake the caller for
   each. */
API int64_t receive(struct receiving *it, int descriptor)
{
    int64_t rows = receive_batch(it, descriptor), genuine = rows;
    if (rows > 0 && it->sealing)
        genuine = open_rows(it->sealing, it->rows, rows, (int64_t)it->datagram_bytes - TAG_BYTES);
    it->forged += (uint64_t)(rows - genuine);
    return genuine;
}

/* Sends rows that follow one another; returns how many the kernel took, or -errno when none. */
API int64_t send_rows(struct sending *it, int descriptor, uint8_t *rows, int64_t count)
{
    struct mmsghdr messages[SENT_AT_ONCE] = {0};
    struct iovec vectors[SENT_AT_ONCE];
    struct {
        struct cmsghdr head;
        uint16_t size;
    } segment = {.size = (uint16_t)it->datagram_bytes};
    segment.head.cmsg_len = CMSG_LEN(sizeof(uint16_t));
    segment.head.cmsg_level = UDP_LEVEL;
    segment.head.cmsg_type = SEGMENTED;
    uint32_t number = 0;
    int64_t placed = 0;
    for (; number < SENT_AT_ONCE && placed < count; number++) {
        struct msghdr *head = &messages[number].msg_hdr;
        int64_t rows_of_message = least(count - placed, it->per_message);
        vectors[number].iov_base = rows + placed * it->datagram_bytes;
        vectors[number].iov_len = (size_t)rows_of_message * it->datagram_bytes;
        head->msg_name = it->peer_bytes ? it->peer : NULL;
        head->msg_namelen = it->peer_bytes;
        head->msg_iov = &vectors[number];
        head->msg_iovlen = 1;
        if (it->per_message > 1) {
            head->msg_control = &segment;
            head->msg_controllen = sizeof segment;
        }
        placed += rows_of_message;
    }
    int taken = sendmmsg(descriptor, messages, number, MSG_DONTWAIT);
    if (taken < 0)
        return -errno;
    return least((int64_t)taken * it->per_message, placed);
}

/* 4. Plans: the next batches of a sender when the pacer lets them, and what has come for a
   receiver, until there is something to decide. */

#define LOGGED 64
#define RECEIVES 8 /* in a row, for one connection */
#define SLACK_BYTES 1 /* pacing.py says why */

static double clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* pacing.py has the same token bucket. */
struct planned_send {
    const struct composing *composing;
    struct sealing *sealing;
    struct sending *plain, *segmented; /* the latter NULL where the kernel does not cut */
    const int64_t *chunks;
    double due_s, tokens, refilled_s, bytes_per_s, most_tokens, wire_bytes;
    double steady_until_s; /* and the rest as in a SendPlan */
    int64_t count, beyond, first, window, question, ask_at, ask_gap;
    int64_t quantum, most, rests;
    int64_t descriptor, over;
    int64_t sent, batches;
    double at_s[LOGGED];
    int64_t sizes[LOGGED];
};

static void await_tokens(struct planned_send *it)
{
    int64_t batch = least(it->quantum, it->count - it->sent + it->beyond);
    double missing = (double)batch * it->wire_bytes - it->tokens;
    it->due_s = it->refilled_s + (missing > SLACK_BYTES ? missing / it->bytes_per_s : 0);
}

/* Which of the next datagrams ask for an ACK; they are the last of `end`. */
static int asking(const struct planned_send *it, int64_t size, int64_t end)
{
    if (!it->ask_gap)
        return 0;
    if (it->window <= end)
        return size < LEAST_FOR_TWO ? ASK_LAST : ASK_FIRST | ASK_LAST;
    return end >= it->ask_at ? ASK_FIRST : 0;
}

/* Sends the next batch if the pacer lets it go now. */
API void send_planned(struct planned_send *it, double now_s)
{
    double elapsed_s = now_s - it->refilled_s;
    if (it->batches && it->at_s[it->batches - 1] > it->steady_until_s) {
        it->over = 1; /* the pace since then may be another one */
        return;
    }
    it->tokens += it->bytes_per_s * (elapsed_s > 0 ? elapsed_s : 0);
    if (it->tokens > it->most_tokens)
        it->tokens = it->most_tokens;
    it->refilled_s = now_s;
    int64_t left = it->count - it->sent;
    if (left <= 0 || it->batches >= LOGGED) {
        it->over = 1;
        it->due_s = HUGE_VAL;
        return;
    }
    double slack = it->tokens + SLACK_BYTES;
    int64_t covered = (int64_t)(slack / it->wire_bytes);
    covered -= (double)covered * it->wire_bytes > slack;
    if (covered < least(it->quantum, left + it->beyond)) {
        await_tokens(it);
        return;
    }
    int64_t size = least(covered, it->most), taken = -1;
    int is_longer = size > left && it->beyond && it->window > it->count; /* than it is planned */
    if (is_longer || it->sent > it->question) {
        it->over = 1;
        return;
    }
    size = least(size, left);
    int ask = asking(it, size, it->sent + size);
    int64_t whole = HEADER_BYTES + it->composing->chunk_bytes;
    if (it->composing->stride == whole + (it->sealing ? TAG_BYTES : 0) &&
        it->composing->stride == it->plain->datagram_bytes &&
        !compose(it->composing, it->chunks + it->sent, size, it->first + it->sent, ask) &&
        !(it->sealing && seal_rows(it->sealing, it->composing->frames, size, whole)))
        taken = send_rows(it->segmented && size > 1 ? it->segmented : it->plain,
                          (int)it->descriptor, it->composing->frames, size);
    if (taken > 0) {
        it->at_s[it->batches] = now_s;
        it->sizes[it->batches++] = taken;
        it->sent += taken;
        it->tokens -= (double)taken * it->wire_bytes;
        if (ask)
            it->ask_at = it->sent + it->ask_gap;
    }
    await_tokens(it);
    if (it->sent == it->window && it->rests)
        it->due_s = HUGE_VAL;
    else /* why fewer went, the caller finds out when it offers the rest */
        it->over = taken < size || it->sent == it->count || it->batches == LOGGED;
}

/* A Coalescer of fast_path.py has the same rate and the same waits. */
struct planned_receive {
    struct receiving *receiving;
    struct placing *placing;
    double due_s, most_s, rate, since_s, last_s;
    double most_datagrams, least_s, window_s, pause_s, decay;
    double silence, lost_cost; /* as in a SilenceBudget */
    int64_t count, missing;
    int64_t newest; /* the latest one's number; below 0: they may come in any order */
    int64_t reached; /* numbers since the first `newest` */
    int64_t descriptor, over;
    int64_t at_once; /* each is taken as it comes, until they may gather */
    int64_t valid, gained;
    /* Of the last batch: as `receive` says; whether it was left; whether there are no more. */
    int64_t received, unplaced, drained;
    double at_s;
};

static void measure(struct planned_receive *it, int64_t datagrams, double now_s)
{
    if (now_s - it->last_s > it->pause_s) {
        it->since_s = now_s;
        it->count = 0;
    } else {
        it->count += datagrams;
        double elapsed_s = now_s - it->since_s, expected = it->decay * it->rate;
        if (elapsed_s >= it->window_s) {
            it->rate = (double)it->count / elapsed_s;
            if (it->rate < expected)
                it->rate = expected;
            it->since_s = now_s;
            it->count = 0;
        }
    }
    it->last_s = now_s;
}

/* Whether a batch was sent after all before it, in its order. Whatever lies between is lost. */
static int ascends(struct planned_receive *it, const uint8_t *frames, int64_t count, int64_t stride)
{
    int64_t newest = it->newest;
    for (int64_t i = 0; i < count; i++) {
        int64_t number = number_of(frames + i * stride);
        int64_t step = (number - newest) & NUMBER_MASK;
        it->reached += step;
        /* Half of the numbers are the past. */
        if (!step || it->reached > NUMBER_MASK / 2)
            return 0;
        newest = number;
    }
    it->newest = newest;
    return 1;
}

/* Whether the receiver has to answer what has come. */
static int owes_message(const struct planned_receive *it, const uint32_t *stamps, int64_t count)
{
    if (it->newest < 0)
        return (double)it->valid > it->silence;
    for (int64_t i = 0; i < count; i++)
        if (stamps[i] & ACK_REQUESTED)
            return 1;
    return (double)it->valid + (double)(it->reached - it->valid) * it->lost_cost > it->silence;
}

/* Whether a batch is what was expected, in the order that was; whatever else it may be is left to
   the caller. */
static int expected(struct planned_receive *it, int64_t rows)
{
    int64_t stride = it->receiving->datagram_bytes;
    if (it->valid + rows > it->placing->room)
        return 0;
    const uint8_t *at = it->receiving->rows;
    return transfer_of(at, rows, stride) == it->placing->transfer &&
           (it->newest < 0 || ascends(it, at, rows, stride));
}

/* Places one batch behind those before it; returns how many are valid. */
static int64_t place_batch(struct planned_receive *it, int64_t rows)
{
    struct placing part = *it->placing;
    part.stamps += it->valid;
    part.chunks += it->gained;
    part.room -= (uint32_t)it->valid; /* never less than has been gained */
    int64_t valid = place(&part, it->receiving->rows, rows, it->receiving->datagram_bytes);
    if (valid < 0)
        return 0; /* `expected` has checked it */
    it->valid += valid;
    it->gained += part.gained;
    it->placing->newest = part.newest;
    it->placing->farthest = part.farthest;
    it->placing->ignored = part.ignored;
    memcpy(it->placing->faults, part.faults, sizeof part.faults);
    return valid;
}

static uint64_t dropped_by(const struct receiving *it)
{
    return it->foreign + it->wrong_size + it->forged;
}

/* Receives and places one batch. */
static void take(struct planned_receive *it, double now_s)
{
    int64_t rows = it->received = receive(it->receiving, (int)it->descriptor);
    it->unplaced = rows < 0 || (rows && !expected(it, rows));
    it->drained = it->receiving->drained;
    it->over |= it->unplaced;
    if (it->over || !rows)
        return;
    const uint32_t *stamps = it->placing->stamps + it->valid;
    int64_t valid = place_batch(it, rows);
    it->at_s = now_s;
    it->over |= it->placing->ignored || owes_message(it, stamps, valid);
    measure(it, rows, now_s);
}

/* Takes what has come, and sets when to receive again. */
API void receive_planned(struct planned_receive *it, double now_s)
{
    int64_t valid_before = it->valid;
    uint64_t dropped = dropped_by(it->receiving);
    it->drained = 0;
    for (int call = 0; call < RECEIVES && !it->drained && !it->over; call++)
        take(it, now_s);
    if (it->at_once && it->drained && !it->over && it->valid == valid_before &&
        dropped_by(it->receiving) != dropped)
        return; /* what is dropped alone is nothing to decide about */
    double half = (double)(it->missing - it->gained) / 2;
    double wait_s = (half < it->most_datagrams ? half : it->most_datagrams) / it->rate;
    if (wait_s > it->most_s || !it->rate)
        wait_s = it->rate ? it->most_s : 0;
    int may_wait = wait_s >= it->least_s;
    it->over |= it->valid == valid_before || !it->drained || it->gained >= it->missing;
    it->over |= it->at_once ? may_wait : !may_wait;
    it->due_s = it->at_once ? HUGE_VAL : now_s + wait_s;
}

/* Receives for plans that do so at once; returns how many other descriptors are ready. */
static int64_t receive_at_once(struct planned_receive *const *receiving, int64_t receives,
                               struct pollfd *waiting, int64_t count, int64_t ready)
{
    double now_s = clock_s();
    for (int64_t i = 0; i < receives; i++)
        for (int64_t j = 0; receiving[i]->at_once && j < count; j++)
            if (waiting[j].fd == receiving[i]->descriptor && waiting[j].revents == POLLIN) {
                receive_planned(receiving[i], now_s);
                waiting[j].revents = 0;
                ready--;
            }
    return ready;
}

/* Waits for descriptors until `until_s` and carries out plans meanwhile. Once any of them is due,
   what would be due within `coalesced_s` is received too. Returns how many descriptors are ready,
   or -errno. */
API int64_t wait_with_plans(struct planned_send *const *sending, int64_t sends,
                            struct planned_receive *const *receiving, int64_t receives,
                            struct pollfd *waiting, int64_t count, double until_s,
                            double coalesced_s)
{
    for (;;) {
        double now_s = clock_s(), due_s = until_s, soon_s = now_s;
        int64_t over = 0;
        for (int64_t i = 0; i < sends; i++)
            if (sending[i]->due_s <= now_s)
                soon_s = now_s + coalesced_s;
        for (int64_t i = 0; i < receives; i++)
            if (receiving[i]->due_s <= now_s)
                soon_s = now_s + coalesced_s;
        for (int64_t i = 0; i < sends; i++) {
            if (sending[i]->due_s <= now_s)
                send_planned(sending[i], now_s);
            over |= sending[i]->over;
            due_s = sending[i]->due_s < due_s ? sending[i]->due_s : due_s;
        }
        for (int64_t i = 0; i < receives; i++) {
            if (receiving[i]->due_s <= soon_s)
                receive_planned(receiving[i], now_s);
            over |= receiving[i]->over;
            due_s = receiving[i]->due_s < due_s ? receiving[i]->due_s : due_s;
        }
        double left_s = over ? 0 : due_s - clock_s();
        struct timespec left = {0, 0};
        if (left_s > 0) {
            left.tv_sec = (time_t)left_s;
            left.tv_nsec = (long)((left_s - (double)left.tv_sec) * 1e9);
        }
        int64_t ready = ppoll(waiting, (nfds_t)count, &left, NULL);
        if (ready < 0)
            return errno == EINTR ? 0 : -errno;
        if (ready)
            ready = receive_at_once(receiving, receives, waiting, count, ready);
        for (int64_t i = 0; i < receives; i++)
            over |= receiving[i]->over;
        if (ready || over || now_s >= until_s)
            return ready;
    }
}
