/* What `batches.c`, `sealing.c` and `routine.c` share. */

#ifndef BATCHES_H
#define BATCHES_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define API __attribute__((visibility("default")))
#define HEADER_BYTES 16
#define SEND_INDEX_BITS 15
#define SEND_INDEX_MASK 0x7fff
#define ACK_REQUESTED 0x8000
#define CHUNK_BITS 26
#define CHUNK_MASK ((1u << CHUNK_BITS) - 1)
#define FAR (1 << (SEND_INDEX_BITS - 1))
#define NUMBER_MASK ((1 << (32 - CHUNK_BITS + SEND_INDEX_BITS)) - 1)
#define TAG_BYTES 16

/* One transfer's side; hot_path.py, beside this file, has the same structures. Without `rows` the
   datagrams are headers alone, HEADER_BYTES apart. Each structure says for how much its pointers
   have room, and who writes there looks first: no count of a caller is trusted. */
struct composing {
    uint8_t *frames;
    const uint8_t *rows;
    uint64_t frames_room, rows_room; /* bytes */
    uint32_t session, transfer, chunk_count, chunk_bytes, last_length;
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

uint32_t number_of(const uint8_t *frame);
int64_t transfer_of(const uint8_t *frames, int64_t count, int64_t stride);
int compose(const struct composing *it, const int64_t *chunks, int64_t count, int64_t first,
            int ask);
int64_t place(struct placing *it, const uint8_t *frames, int64_t count, int64_t stride,
              int writing);

/* The keys of one connection, as hash states that have taken them; `net/sealing.py` has the
   same structure. */
struct sealing {
    uint64_t ours[8], theirs[8];
    uint8_t *rows; /* sealed datagrams */
    int64_t rows_room; /* bytes */
    int64_t frame_bytes; /* of a datagram without its tag */
};

int seal_rows(const struct sealing *it, const uint8_t *frames, int64_t count);
int64_t open_rows(const struct sealing *it, const uint8_t *rows, int64_t count, uint8_t *good);

#ifdef __linux__

#define RECEIVED_AT_ONCE 32 /* messages; `net/udp_socket.py` has the same */
#define RECEIVE_CALLS 8 /* of a batch, where messages are single datagrams */
#define SENT_AT_ONCE 128
#define ADDRESS_BYTES 32 /* a sockaddr_in6 has 28; zeros follow */

/* `rows` has room for RECEIVED_AT_ONCE messages of `per_message` datagrams. `drained`: the last call
   left nothing in the socket. `foreign` and `wrong_size` count the datagrams of others than the
   peer and of other sizes, all that were dropped so far. */
struct receiving {
    uint8_t *rows;
    uint8_t peer[ADDRESS_BYTES];
    uint32_t per_message, datagram_bytes, drained;
    uint64_t rows_room; /* bytes */
    uint64_t foreign, wrong_size;
};

/* With several datagrams in a message the kernel cuts it. */
struct sending {
    uint8_t peer[ADDRESS_BYTES];
    uint32_t peer_bytes; /* 0 where the socket is connected */
    uint32_t per_message, datagram_bytes;
};

int64_t receive(struct receiving *it, int descriptor);
int64_t send_rows(struct sending *it, int descriptor, uint8_t *rows, int64_t count);

#endif

#endif
