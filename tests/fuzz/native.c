/* Fuzzes the compiled code: built with sanitizers by test_native.py. Every buffer is a block of its own,
   exactly as large as its structure says, so that a step beyond its end is found.

       native SEED SECONDS

   Headers are valid, nearly so, or noise; counts reach beyond the room; what arrives at the socket
   has any size and comes from the peer or from others. */

#include "batches.c"
#include "draws.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <unistd.h>

#define SESSION 7
#define TRANSFER 5

static const struct evp *evp;

static void put(uint8_t *at, uint32_t value)
{
    value = htonl(value);
    memcpy(at, &value, 4);
}

/* Half of the headers are right, and half of the others nearly. */
static void head(uint8_t *frame, uint32_t chunk_count, uint32_t chunk_bytes, uint32_t last_length,
                 uint32_t number)
{
    uint32_t chunk = below(chunk_count + (below(8) == 0));
    uint32_t length = chunk + 1 == chunk_count ? last_length : chunk_bytes;
    if (below(2)) {
        put(frame, SESSION);
        put(frame + 4, chunk | number >> SEND_INDEX_BITS << CHUNK_BITS);
        put(frame + 8, TRANSFER);
        put(frame + 12, length << 16 | (number & SEND_INDEX_MASK) | (below(40) ? 0 : ACK_REQUESTED));
    }
    if (!below(8))
        frame[below(HEADER_BYTES)] ^= (uint8_t)(1 << below(8));
}

static void compose_some(void)
{
    uint32_t room = below(9), chunk_count = 1 + below(9), chunk_bytes = 4 * (1 + below(30));
    uint32_t more = below(4) ? 0 : 1 + below(3), alone = !below(3), step = alone ? 0 : chunk_bytes;
    uint32_t stride = below(8) ? HEADER_BYTES + step + below(20) : below(HEADER_BYTES + step);
    struct composing it = {
        .frames = block(room * stride), .stride = stride,
        .rows = alone ? NULL : block(chunk_count * chunk_bytes),
        .frames_room = room * stride,
        .rows_room = alone ? 0 : chunk_count * chunk_bytes,
        .session = SESSION, .transfer = TRANSFER, .last_length = 4,
        .chunk_count = chunk_count + more, .chunk_bytes = chunk_bytes,
    };
    int64_t count = below(12), *chunks = block(8 * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        if (below(20))
            chunks[i] = below(chunk_count + 1);
    compose(&it, chunks, count, below(1 << 22), (int)below(4));
    free(it.frames);
    free((void *)it.rows);
    free(chunks);
}

static void place_some(void)
{
    uint32_t room = below(20), chunk_count = 1 + below(9), chunk_bytes = 4 * (1 + below(30));
    uint32_t window = 1u << below(6), alone = !below(3), stride = HEADER_BYTES + below(chunk_bytes + 20);
    struct placing it = {
        .rows = alone ? NULL : block(chunk_count * chunk_bytes),
        .rows_room = alone ? 0 : chunk_count * chunk_bytes,
        .received = calloc(chunk_count, 1), .seen = block(window),
        .stamps = block(4 * room), .chunks = block(8 * room), .room = room,
        .session = SESSION, .transfer = TRANSFER, .last_length = 4,
        .chunk_count = chunk_count, .chunk_bytes = chunk_bytes,
        .window = below(20) ? window : 0, .newest = below(NUMBER_MASK + 1),
        .farthest = below(NUMBER_MASK + 1),
    };
    for (int turn = 0; turn < 6; turn++) {
        uint32_t count = below(24);
        uint8_t *frames = block((size_t)count * stride);
        for (uint32_t i = 0; i < count; i++)
            head(frames + i * stride, chunk_count, chunk_bytes, 4,
                 (it.newest + below(below(4) ? 40 : NUMBER_MASK) - 8) & NUMBER_MASK);
        int64_t valid = place(&it, frames, count, stride);
        if (valid > it.room || it.gained > it.room || (count && stride >= 64 && below(2) &&
                                                       transfer_of(frames, count, stride) < -1))
            abort();
        free(frames);
    }
    free(it.rows);
    free(it.received);
    free(it.seen);
    free(it.stamps);
    free(it.chunks);
}

static void seal_some(void)
{
    uint32_t size = 1 + below(300), count = below(24), whole = size + TAG_BYTES, forged = 0;
    struct sealing it = {.evp = below(2) ? evp : NULL, .epoch_bits = below(9)};
    uint8_t *rows = block(count * whole), key[64] = {1}, person[16] = {2};
    take_key(it.ours.state, key, below(70), person, it.evp ? KEY_BYTES : TAG_BYTES);
    memcpy(it.theirs.state, it.ours.state, sizeof it.ours.state);
    it.ours.number = it.theirs.number = below(3) ? below(99) : ((uint64_t)1 << 32) - below(20);
    int sealed = !seal_rows(&it, rows, count, size);
    if (!sealed && !(it.evp && size < HEADER_BYTES))
        abort();
    for (uint32_t i = 0; i < count; i++)
        if (!below(4)) {
            rows[i * whole + below(whole)] ^= (uint8_t)(1 << below(8));
            forged++;
        }
    if (open_rows(&it, rows, count, size) != (sealed ? count - forged : 0))
        abort();
    forget_keys(&it);
    free(rows);
}

static int bound(struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    int it = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), on = 1;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (it < 0 || bind(it, (struct sockaddr *)address, size) ||
        getsockname(it, (struct sockaddr *)address, &size))
        exit(3);
    setsockopt(it, 17, 104, &on, sizeof on); /* UDP_GRO */
    return it;
}

static void receive_some(void)
{
    struct sockaddr_in here, peer, stranger;
    int receiver = bound(&here), senders[2] = {bound(&peer), bound(&stranger)};
    uint32_t size = 16 + below(200), per = below(2) ? 1 : 1 + below(5), most = RECEIVED_AT_ONCE * per;
    uint32_t rows_bytes = most * size - (below(10) == 0);
    struct sealing keys = {.evp = below(2) ? evp : NULL};
    struct receiving it = {.rows = block(rows_bytes), .per_message = per, .datagram_bytes = size,
                           .rows_room = rows_bytes, .sealing = below(2) ? &keys : NULL};
    memcpy(it.peer, &peer, sizeof peer);
    for (uint32_t i = below(20); i; i--) {
        uint8_t *data = block(1000);
        uint16_t segment = (uint16_t)(below(2) ? size : 1 + below(300));
        int sender = senders[below(3) == 0];
        setsockopt(sender, 17, 103, &(int){below(2) ? segment : 0}, sizeof(int)); /* UDP_SEGMENT */
        sendto(sender, data, below(3) ? size * (1 + below(3)) % 1000 : below(1000), 0,
               (struct sockaddr *)&here, sizeof here);
        free(data);
    }
    for (int turn = 0; turn < 5; turn++)
        if (receive(&it, receiver) > (int64_t)most)
            abort();
    close(receiver);
    close(senders[0]);
    close(senders[1]);
    free(it.rows);
    forget_keys(&keys);
}

/* Where there is no libcrypto, nothing is encrypted. */
static const struct evp *find_evp(void)
{
    static struct evp it;
    void *library = dlopen("libcrypto.so.3", RTLD_NOW);
    if (!library)
        return NULL;
    const void *(*get)(void *, const char *, const char *);
    *(void **)&get = dlsym(library, "EVP_CIPHER_fetch");
    it.aes = get(NULL, "AES-256-GCM", NULL);
    *(void **)&it.new_context = dlsym(library, "EVP_CIPHER_CTX_new");
    *(void **)&it.free_context = dlsym(library, "EVP_CIPHER_CTX_free");
    *(void **)&it.init = dlsym(library, "EVP_CipherInit_ex");
    *(void **)&it.update = dlsym(library, "EVP_CipherUpdate");
    *(void **)&it.finish = dlsym(library, "EVP_CipherFinal_ex");
    *(void **)&it.control = dlsym(library, "EVP_CIPHER_CTX_ctrl");
    return &it;
}

static void once(void)
{
    void (*const parts[])(void) = {compose_some, place_some, seal_some, receive_some};
    parts[below(4)]();
}

int main(int argc, char **argv)
{
    evp = find_evp();
    return fuzz(argc, argv, once);
}
