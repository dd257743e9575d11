/* What every datagram passes, in C: composing, sending, receiving and placing a batch.

   The same as `core/hot_path.py` and `net/batched_io.py` do in numpy; tests compare them. It is
   called through ctypes, which releases the interpreter's lock. There is no global state; whatever
   a datagram says is checked here before it is used. Linux and 64 bits, as `batched_io`. */

#include "batches.h"

#define ASK_FIRST 1
#define ASK_LAST 2
#define UDP_LEVEL 17
#define COALESCED 104 /* UDP_GRO, which not every libc names */
#define AHEAD 4 /* rows that are fetched before their turn when chunks are scattered */

/* Of which source this is; setup.py sets it and `loading.py` compares it. */
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

uint16_t stamp_of(const uint8_t *frame) { return read16(frame + 14); }

/* The transfer that all of at least one datagram name; -1 where they differ. */
API int64_t transfer_of(const uint8_t *frames, int64_t count, int64_t stride)
{
    uint32_t transfer = read32(frames + 8);
    for (int64_t i = 1; i < count; i++)
        if (read32(frames + i * stride + 8) != transfer)
            return -1;
    return transfer;
}

/* Writes one datagram per chunk to the frames, which must have room for `count` of them.
   Returns 0, or -1 when there is no such chunk. */
API int compose(const struct composing *it, const int64_t *chunks, int64_t count, int64_t first,
                int ask)
{
    uint8_t *frame = it->frames;
    uint32_t copied = it->rows ? it->chunk_bytes : 0;
    for (int64_t i = 0; i < count; i++, frame += HEADER_BYTES + copied) {
        int64_t chunk = chunks[i];
        if (chunk < 0 || chunk >= it->chunk_count)
            return -1;
        if (copied && i + AHEAD < count) {
            int64_t soon = chunks[i + AHEAD];
            if (soon != chunk + AHEAD && soon >= 0 && soon < it->chunk_count)
                fetch(it->rows + soon * it->chunk_bytes, it->chunk_bytes, 0);
        }
        write32(frame, it->session);
        write32(frame + 4, (uint32_t)chunk);
        write32(frame + 8, it->transfer);
        write16(frame + 12, chunk + 1 == it->chunk_count ? it->last_length : it->chunk_bytes);
        int asks = (ask & ASK_FIRST && i == 0) || (ask & ASK_LAST && i + 1 == count);
        write16(frame + 14,
                ((uint32_t)(first + i) & SEND_INDEX_MASK) | (asks ? ACK_REQUESTED : 0));
        if (copied)
            memcpy(frame + HEADER_BYTES, it->rows + chunk * copied, copied);
    }
    return 0;
}

/* The header's first fault, in the order of the enumeration; FAULTS for none. */
static enum fault fault_of(const struct placing *it, const uint8_t *frame)
{
    uint32_t transfer = read32(frame + 8), chunk = read32(frame + 4);
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

/* Takes `count` datagrams that lie `stride` bytes apart; returns how many are valid. */
API int64_t place(struct placing *it, const uint8_t *frames, int64_t count, int64_t stride,
                  int writing)
{
    int64_t valid = 0, gained = 0;
    it->ignored = 0;
    memset(it->faults, 0, sizeof it->faults);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *frame = frames + i * stride;
        enum fault fault = fault_of(it, frame);
        if (fault != FAULTS) {
            it->faults[fault]++;
            it->ignored++;
            continue;
        }
        it->stamps[valid++] = stamp_of(frame);
        if (!writing)
            continue;
        uint32_t chunk = read32(frame + 4);
        if (it->rows && i + AHEAD < count) {
            uint32_t soon = read32(frame + AHEAD * stride + 4);
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

/* The datagrams of a message from the peer that holds nothing else; 0 for any other. */
static int64_t datagrams_of(const struct receiving *it, const struct mmsghdr *message)
{
    const struct msghdr *head = &message->msg_hdr;
    uint32_t size = coalesced_size(head);
    if (head->msg_flags & MSG_TRUNC || memcmp(head->msg_name, it->peer, it->address_bytes))
        return 0;
    if (!size)
        size = message->msg_len;
    if (size != it->datagram_bytes || message->msg_len % size)
        return 0;
    int64_t datagrams = message->msg_len / size;
    return datagrams > it->per_message ? 0 : datagrams;
}

/* Receives a batch into rows that follow one another; returns how many, or -errno.
   Message i writes to row i * per_message first. */
API int64_t receive(struct receiving *it, int descriptor)
{
    int64_t rows = 0;
    int several = 0;
    for (uint32_t i = 0; i < it->count; i++) {
        it->messages[i].msg_hdr.msg_namelen = it->address_bytes;
        it->messages[i].msg_hdr.msg_controllen = it->control_bytes;
    }
    it->received = it->unsorted = 0;
    int received = recvmmsg(descriptor, it->messages, it->count, MSG_DONTWAIT, NULL);
    if (received < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    it->received = (uint32_t)received;
    for (int i = 0; i < received; i++) {
        several |= coalesced_size(&it->messages[i].msg_hdr) > 0;
        if (!datagrams_of(it, &it->messages[i])) {
            it->unsorted = 1;
            return 0;
        }
    }
    /* Many messages that are not coalesced: the caller wants to arrange them in another way. */
    if (it->per_message > 1 && received > 1 && !several) {
        it->unsorted = 1;
        return 0;
    }
    for (int i = 0; i < received; i++) {
        int64_t first = (int64_t)i * it->per_message, count = datagrams_of(it, &it->messages[i]);
        if (first != rows)
            memmove(it->rows + rows * it->datagram_bytes, it->rows + first * it->datagram_bytes,
                    (size_t)count * it->datagram_bytes);
        rows += count;
    }
    return rows;
}

/* Sends rows that follow one another; returns how many the kernel took, or -errno when none. */
API int64_t send_rows(struct sending *it, int descriptor, uint8_t *rows, int64_t count)
{
    uint32_t messages = 0;
    int64_t placed = 0;
    for (; messages < it->count && placed < count; messages++) {
        int64_t each = count - placed < it->per_message ? count - placed : it->per_message;
        it->vectors[messages].iov_base = rows + placed * it->datagram_bytes;
        it->vectors[messages].iov_len = (size_t)each * it->datagram_bytes;
        placed += each;
    }
    int taken = sendmmsg(descriptor, it->messages, messages, MSG_DONTWAIT);
    if (taken < 0)
        return -errno;
    int64_t sent = (int64_t)taken * it->per_message;
    return sent < placed ? sent : placed;
}

#endif
