/* host_memory.c - see host_memory.h. */
#include "cuda/host_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/util/machine.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

enum {
    PIN_BYTES = 64 << 20, /* a piece: the driver is held up for 2 ms */
    PIN_THREADS = 8,      /* 35 GB/s on an H200's host; one thread touches 4 */
};

/* What could not be pinned is copied as any memory is, only slower. */
enum piece_state { PIECE_MAPPED, PIECE_PINNED, PIECE_PLAIN };

struct host_memory {
    int device; /* for the threads */
    struct region memory;
    size_t block_bytes;
    int32_t n_blocks;
    int32_t piece_blocks, n_pieces;
    int32_t n_done;          /* of these: the first ones, which are no longer PIECE_MAPPED */
    _Atomic uint8_t *pieces; /* [n_pieces] enum piece_state */
    atomic_int next_piece;
    atomic_bool stop;
    pthread_t threads[PIN_THREADS];
    int n_threads;
};

static size_t piece_bytes(const struct host_memory *h, int32_t piece)
{
    const int32_t left = h->n_blocks - piece * h->piece_blocks;

    return (size_t)(left < h->piece_blocks ? left : h->piece_blocks) * h->block_bytes;
}

static void *piece_at(const struct host_memory *h, int32_t piece)
{
    return h->memory.base + (size_t)piece * (size_t)h->piece_blocks * h->block_bytes;
}

static void *pin_main(void *memory)
{
    struct host_memory *h = memory;
    const bool able = cudaSetDevice(h->device) == cudaSuccess;
    int i;

    (void)setpriority(PRIO_PROCESS, 0, 0); /* not the engine thread's */
    while (!h->stop && (i = h->next_piece++) < h->n_pieces) {
        const size_t bytes = piece_bytes(h, i);

        (void)memory_populate(piece_at(h, i), bytes);
        h->pieces[i] =
            able && cudaHostRegister(piece_at(h, i), bytes, cudaHostRegisterPortable) == cudaSuccess
                ? PIECE_PINNED
                : PIECE_PLAIN;
    }
    return NULL;
}

/* Where not a single thread can be started copies wait until one can. */
void host_memory_pin(struct host_memory *h)
{
    if (h->n_threads > 0)
        return;
    while (h->n_threads < PIN_THREADS &&
           thread_start(&h->threads[h->n_threads], "host-tier", pin_main, h) == 0)
        h->n_threads++;
}

bool host_memory_wait(struct host_memory *h)
{
    for (; h->n_threads > 0 && h->n_done < h->n_pieces; h->n_done++)
        if (h->pieces[h->n_done] == PIECE_MAPPED) {
            (void)usleep(1000);
            return true;
        }
    return false;
}

bool host_memory_is_pinned(const struct host_memory *h)
{
    for (int32_t i = 0; i < h->n_pieces; i++)
        if (h->pieces[i] != PIECE_PINNED)
            return false;
    return true;
}

int32_t host_memory_blocks(const struct host_memory *h)
{
    return h->n_blocks;
}

char *host_memory_base(const struct host_memory *h)
{
    return h->memory.base;
}

uint64_t host_memory_pinned_bytes(const struct host_memory *h)
{
    uint64_t bytes = 0;

    for (int32_t i = 0; i < h->n_pieces; i++)
        if (h->pieces[i] == PIECE_PINNED)
            bytes += piece_bytes(h, i);
    return bytes;
}

bool host_memory_may_copy(const struct host_memory *h, int32_t block)
{
    must(block >= 0 && block < h->n_blocks);
    return h->pieces[block / h->piece_blocks] != PIECE_MAPPED;
}

int host_memory_new(struct host_memory **out, int device, uint64_t bytes, uint64_t block_bytes,
                    struct err *e)
{
    const uint64_t n = bytes / block_bytes;
    struct host_memory *h;
    int r;

    if (n == 0 || n > INT32_MAX)
        return err_set(e, -EINVAL,
                       "cache.host_memory: %.1f MiB, but one KV block takes %.1f MiB; raise it, "
                       "or lower cache.block_len",
                       (double)bytes / 0x1p20, (double)block_bytes / 0x1p20);
    h = calloc(1, sizeof(*h));
    if (!h)
        return err_set(e, -ENOMEM, "out of memory");
    h->device = device;
    h->block_bytes = block_bytes;
    h->n_blocks = (int32_t)n;
    h->piece_blocks = block_bytes < PIN_BYTES ? (int32_t)(PIN_BYTES / block_bytes) : 1;
    h->n_pieces = (h->n_blocks + h->piece_blocks - 1) / h->piece_blocks;
    h->pieces = calloc((size_t)h->n_pieces, sizeof(*h->pieces));
    r = h->pieces ? region_init(&h->memory, "cache.host_memory", n * block_bytes, e)
                  : err_set(e, -ENOMEM, "out of memory");
    if (r < 0) {
        host_memory_free(h);
        return r;
    }
    *out = h;
    return 0;
}

void host_memory_free(struct host_memory *h)
{
    if (!h)
        return;
    h->stop = true;
    for (int i = 0; i < h->n_threads; i++)
        pthread_join(h->threads[i], NULL);
    for (int32_t i = 0; h->pieces && i < h->n_pieces; i++)
        if (h->pieces[i] == PIECE_PINNED)
            (void)cudaHostUnregister(piece_at(h, i));
    region_deinit(&h->memory);
    free(h->pieces);
    free(h);
}
