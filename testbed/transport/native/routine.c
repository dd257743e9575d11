/* The routine: what a connection does while nothing happens. It sends its next batches when the
   pacer lets it, and takes what has gathered. `wait_working` does that while it waits, and returns
   when there is something to decide. Times are seconds on the monotonic clock.

   `routine.py` says what belongs to it. Without this file each batch wakes the caller. */

#include "batches.h"

#ifdef __linux__

#include <math.h>
#include <poll.h>
#include <time.h>

#define LOGGED 64
#define RECEIVES 8 /* in a row, for one connection */

static double clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* `pacing.py` has the same token bucket. */
struct departing {
    const struct composing *composing;
    const struct sealing *sealing; /* NULL for none, as below */
    struct sending *plain, *segmented; /* the latter NULL where the kernel does not cut */
    const int64_t *chunks;
    double due_s, tokens, refilled_s, bytes_per_s, most_tokens, wire_bytes;
    int64_t count, beyond; /* how many chunks these are, and how many more wait behind them */
    int64_t first, quantum, most;
    int64_t descriptor, over;
    int64_t sent, batches;
    double at_s[LOGGED];
    int64_t sizes[LOGGED];
};

static void await_tokens(struct departing *it)
{
    int64_t batch = least(it->quantum, it->count - it->sent + it->beyond);
    it->due_s = it->refilled_s + ((double)batch * it->wire_bytes - it->tokens) / it->bytes_per_s;
}

/* Sends the next batch if the pacer lets it now. */
API void depart(struct departing *it, double now_s)
{
    double elapsed_s = now_s - it->refilled_s;
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
    double slack = it->tokens + 1; /* the pacer says why */
    int64_t covered = (int64_t)(slack / it->wire_bytes);
    covered -= (double)covered * it->wire_bytes > slack;
    if (covered < least(it->quantum, left + it->beyond)) {
        await_tokens(it);
        return;
    }
    int64_t size = least(least(covered, it->most), left), taken = -1;
    if (!compose(it->composing, it->chunks + it->sent, size, it->first + it->sent, 0)) {
        uint8_t *rows = it->composing->frames;
        int64_t whole = HEADER_BYTES + it->composing->chunk_bytes;
        int refused = it->sealing && (it->sealing->frame_bytes != whole ||
                                      seal_rows(it->sealing, rows, size));
        if (it->sealing) {
            rows = it->sealing->rows;
            whole += TAG_BYTES;
        }
        refused |= it->plain->datagram_bytes != whole;
        taken = refused ? -1 : send_rows(it->segmented && size > 1 ? it->segmented : it->plain,
                          (int)it->descriptor, rows, size);
    }
    if (taken > 0) {
        it->at_s[it->batches] = now_s;
        it->sizes[it->batches++] = taken;
        it->sent += taken;
        it->tokens -= (double)taken * it->wire_bytes;
    }
    /* Why fewer went, the caller finds out when it offers the rest. */
    it->over = taken < size || it->sent == it->count || it->batches == LOGGED;
    await_tokens(it);
}

/* `routine.py` has the same rate and the same waits. */
struct arriving {
    struct receiving *receiving;
    const struct sealing *sealing;
    struct placing *placing;
    double due_s, most_s, rate, since_s, last_s;
    double gathered, least_s, window_s, pause_s, decay;
    double quiet, lost_cost; /* until when nothing is said; `routine.py` says how it counts */
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

static void measure(struct arriving *it, int64_t datagrams, double now_s)
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
static int ascends(struct arriving *it, const uint8_t *frames, int64_t count, int64_t stride)
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

/* Whether the receiver has something to say of what has come. */
static int speaks(const struct arriving *it, const uint32_t *stamps, int64_t count)
{
    if (it->newest < 0)
        return (double)it->valid > it->quiet;
    for (int64_t i = 0; i < count; i++)
        if (stamps[i] & ACK_REQUESTED)
            return 1;
    return (double)it->valid + (double)(it->reached - it->valid) * it->lost_cost > it->quiet;
}

/* Whether a batch is what was expected, in the order that was; whatever else it may be is left to
   the caller. */
static int expected(struct arriving *it, int64_t rows)
{
    int64_t stride = it->receiving->datagram_bytes;
    if (it->valid + rows > it->placing->room)
        return 0;
    if (it->sealing && it->sealing->frame_bytes + TAG_BYTES != stride)
        return 0;
    const uint8_t *at = it->receiving->rows;
    if (it->sealing && open_rows(it->sealing, at, rows, NULL) != rows)
        return 0;
    return transfer_of(at, rows, stride) == it->placing->transfer &&
           (it->newest < 0 || ascends(it, at, rows, stride));
}

/* Places one batch behind those before it; returns how many are valid. */
static int64_t place_batch(struct arriving *it, int64_t rows)
{
    struct placing part = *it->placing;
    part.stamps += it->valid;
    part.chunks += it->gained;
    part.room -= (uint32_t)it->valid; /* never less than has been gained */
    int64_t valid = place(&part, it->receiving->rows, rows, it->receiving->datagram_bytes, 1);
    if (valid < 0)
        return 0; /* it had been looked at before */
    it->valid += valid;
    it->gained += part.gained;
    it->placing->newest = part.newest;
    it->placing->farthest = part.farthest;
    it->placing->ignored = part.ignored;
    memcpy(it->placing->faults, part.faults, sizeof part.faults);
    return valid;
}

/* Receives and places one batch. */
static void take(struct arriving *it, double now_s)
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
    it->over |= it->placing->ignored || speaks(it, stamps, valid);
    measure(it, rows, now_s);
}

/* Takes what has gathered, and says when to look again. */
API void arrive(struct arriving *it, double now_s)
{
    int64_t known = it->valid;
    uint64_t dropped = it->receiving->foreign + it->receiving->wrong_size;
    it->drained = 0;
    for (int turn = 0; turn < RECEIVES && !it->drained && !it->over; turn++)
        take(it, now_s);
    if (it->at_once && it->drained && !it->over && it->valid == known &&
        it->receiving->foreign + it->receiving->wrong_size != dropped)
        return; /* what is dropped alone is nothing to decide about */
    double half = (double)(it->missing - it->gained) / 2;
    double wait_s = (half < it->gathered ? half : it->gathered) / it->rate;
    if (wait_s > it->most_s || !it->rate)
        wait_s = it->rate ? it->most_s : 0;
    int rests = wait_s >= it->least_s;
    it->over |= it->valid == known || !it->drained || it->gained >= it->missing;
    it->over |= it->at_once ? rests : !rests;
    it->due_s = it->at_once ? HUGE_VAL : now_s + wait_s;
}

/* Takes what has come for those that take it at once; returns how many others are ready. */
static int64_t attend(struct arriving *const *coming, int64_t comings, struct pollfd *waiting,
                      int64_t count, int64_t ready)
{
    double now_s = clock_s();
    for (int64_t i = 0; i < comings; i++)
        for (int64_t j = 0; coming[i]->at_once && j < count; j++)
            if (waiting[j].fd == coming[i]->descriptor && waiting[j].revents == POLLIN) {
                arrive(coming[i], now_s);
                waiting[j].revents = 0;
                ready--;
            }
    return ready;
}

/* Waits for descriptors until `until_s` and does the routine meanwhile. Who works takes what would
   be due within `coalesced_s`. Returns how many descriptors are ready, or -errno. */
API int64_t wait_working(struct departing *const *going, int64_t goings,
                         struct arriving *const *coming, int64_t comings, struct pollfd *waiting,
                         int64_t count, double until_s, double coalesced_s)
{
    for (;;) {
        double now_s = clock_s(), due_s = until_s, soon_s = now_s;
        int64_t over = 0;
        for (int64_t i = 0; i < goings; i++)
            if (going[i]->due_s <= now_s)
                soon_s = now_s + coalesced_s;
        for (int64_t i = 0; i < comings; i++)
            if (coming[i]->due_s <= now_s)
                soon_s = now_s + coalesced_s;
        for (int64_t i = 0; i < goings; i++) {
            if (going[i]->due_s <= now_s)
                depart(going[i], now_s);
            over |= going[i]->over;
            due_s = going[i]->due_s < due_s ? going[i]->due_s : due_s;
        }
        for (int64_t i = 0; i < comings; i++) {
            if (coming[i]->due_s <= soon_s)
                arrive(coming[i], now_s);
            over |= coming[i]->over;
            due_s = coming[i]->due_s < due_s ? coming[i]->due_s : due_s;
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
            ready = attend(coming, comings, waiting, count, ready);
        for (int64_t i = 0; i < comings; i++)
            over |= coming[i]->over;
        if (ready || over || now_s >= until_s)
            return ready;
    }
}

#endif
