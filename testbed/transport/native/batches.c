/* What every datagram passes, in C: composing, sending, receiving and placing a batch.

   `hot_path.py` does the same in numpy and `net/udp_socket.py` in plain calls; tests compare
   them. It is called through ctypes, which releases the interpreter's lock. There is no global
   state; whatever a datagram says is checked here before it is used. */

#include "batches.h"

#define ASK_FIRST 1
#define ASK_LAST 2
#define UDP_LEVEL 17
#define SEGMENTED 103 /* UDP_SEGMENT, which not every libc names */
#define COALESCED 104 /* UDP_GRO */
#define AHEAD 4 /* rows that are fetched before their turn when chunks are scattered */

/* Of which source this is; setup.py sets it and `hot_path.py` compares it. */
#ifndef SOURCE
#define SOURCE ""
#endif
API const char *source(void) { return SOURCE; }

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

uint32_t number_of(const uint8_t *frame)
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
    if (count < 0 || (uint64_t)count > it->frames_room / (HEADER_BYTES + copied) ||
        (uint64_t)it->chunk_count * copied > it->rows_room)
        return -1;
    for (int64_t i = 0; i < count; i++, frame += HEADER_BYTES + copied) {
        int64_t chunk = chunks[i];
        uint32_t number = (uint32_t)(first + i) & NUMBER_MASK;
        if (chunk < 0 || chunk >= it->chunk_count)
            return -1;
        if (copied && i + AHEAD < count) {
            int64_t soon = chunks[i + AHEAD];
            if (soon != chunk + AHEAD && soon >= 0 && soon < it->chunk_count)
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

/* From where on a number may be damaged: taken at once, it would move the window past what is to come. */
static int32_t far_of(const struct placing *it)
{
    return it->window / 2 < FAR ? (int32_t)(it->window / 2) : FAR;
}

/* How far a batch reaches in which a number is far ahead. Such a one may be damaged: it counts if it is
   near one before it. */
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
API int64_t place(struct placing *it, const uint8_t *frames, int64_t count, int64_t stride,
                  int writing)
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
        if (!writing)
            continue;
        uint32_t chunk = read32(frame + 4) & CHUNK_MASK;
        if (it->rows && i + AHEAD < count) {
            uint32_t soon = read32(frame + AHEAD * stride + 4) & CHUNK_MASK;
            if (soon != chunk + AHEAD && soon < it->chunk_count)
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

#ifdef __linux__

struct coalesced {
    struct cmsghdr head;
    int32_t size;
};

/* The size of each datagram in a message that the kernel coalesced; 0 for any other message,
   whatever else it says of itself. */
static uint32_t coalesced_size(const struct msghdr *head)
{
    struct coalesced each;
    if (head->msg_controllen < CMSG_LEN(sizeof each.size))
        return 0;
    memcpy(&each, head->msg_control, sizeof each);
    int is = each.head.cmsg_level == UDP_LEVEL && each.head.cmsg_type == COALESCED;
    return is ? (uint32_t)each.size : 0;
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

/* Receives a batch into rows that follow one another; returns how many, or -errno. What others
   sent, or has another size, is dropped here: a flood must not wake the caller for each. Single
   datagrams make small calls, so several of them make a batch. */
API int64_t receive(struct receiving *it, int descriptor)
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
        int64_t each = least(count - placed, it->per_message);
        vectors[number].iov_base = rows + placed * it->datagram_bytes;
        vectors[number].iov_len = (size_t)each * it->datagram_bytes;
        head->msg_name = it->peer_bytes ? it->peer : NULL;
        head->msg_namelen = it->peer_bytes;
        head->msg_iov = &vectors[number];
        head->msg_iovlen = 1;
        if (it->per_message > 1) {
            head->msg_control = &segment;
            head->msg_controllen = sizeof segment;
        }
        placed += each;
    }
    int taken = sendmmsg(descriptor, messages, number, MSG_DONTWAIT);
    if (taken < 0)
        return -errno;
    return least((int64_t)taken * it->per_message, placed);
}

#endif
