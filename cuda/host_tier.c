/* host_tier.c - see host_tier.h. */
#include "cuda/host_tier.h"

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
    GROUPS = 64,          /* of copies under way in one direction */
    NEED_DRIVER = 12080,  /* for cudaMemcpyBatchAsync() */
    CALL_COPIES = 256,    /* that the driver is given at a time */
};

/* What could not be pinned is copied as any memory is, only slower. */
enum piece_state { PIECE_MAPPED, PIECE_PINNED, PIECE_PLAIN };

/* Copies that began together; they end together, behind one event. */
struct group {
    cudaEvent_t ended;
    uint64_t end; /* the first copy behind it */
};

/* One direction. Copies and groups are counted from the first; number i is at i % max. */
struct lane {
    cudaStream_t stream;
    uint64_t n_copies, n_started, n_ended;
    struct batch_copy *copies; /* [max_copies] */
    uint64_t n_groups, n_groups_ended;
    struct group groups[GROUPS];
};

struct host_tier {
    int device; /* for the threads */
    struct region memory;
    char *device_base;
    size_t block_bytes;
    int32_t n_blocks;
    int32_t max_copies; /* under way: each has a device block of its own, and a host block */
    struct lane lanes[2];
    cudaEvent_t step;            /* of the last one submitted */
    struct copy_result *results; /* [2, max_copies] */

    int32_t piece_blocks, n_pieces;
    int32_t n_done;          /* of these: the first ones, which are no longer PIECE_MAPPED */
    _Atomic uint8_t *pieces; /* [n_pieces] enum piece_state */
    atomic_int next_piece;
    atomic_bool stop;
    pthread_t threads[PIN_THREADS];
    int n_threads;
};

/* ---- pinning */

static size_t piece_bytes(const struct host_tier *h, int32_t piece)
{
    const int32_t left = h->n_blocks - piece * h->piece_blocks;

    return (size_t)(left < h->piece_blocks ? left : h->piece_blocks) * h->block_bytes;
}

static void *piece_at(const struct host_tier *h, int32_t piece)
{
    return h->memory.base + (size_t)piece * (size_t)h->piece_blocks * h->block_bytes;
}

static void *pin_main(void *tier)
{
    struct host_tier *h = tier;
    const bool able = cudaSetDevice(h->device) == cudaSuccess;
    int i;

    (void)setpriority(PRIO_PROCESS, 0, 0); /* not the engine thread's */
    while (!h->stop && (i = h->next_piece++) < h->n_pieces) {
        const size_t bytes = piece_bytes(h, i);

        (void)memory_populate(piece_at(h, i), bytes);
        h->pieces[i] =
            able && cudaHostRegister(piece_at(h, i), bytes, cudaHostRegisterDefault) == cudaSuccess
                ? PIECE_PINNED
                : PIECE_PLAIN;
    }
    return NULL;
}

/* Where not a single thread can be started copies wait until one can. */
void host_tier_pin(struct host_tier *h)
{
    if (h->n_threads > 0)
        return;
    while (h->n_threads < PIN_THREADS &&
           thread_start(&h->threads[h->n_threads], "host-tier", pin_main, h) == 0)
        h->n_threads++;
}

bool host_tier_wait(struct host_tier *h)
{
    for (; h->n_threads > 0 && h->n_done < h->n_pieces; h->n_done++)
        if (h->pieces[h->n_done] == PIECE_MAPPED) {
            (void)usleep(1000);
            return true;
        }
    return false;
}

bool host_tier_is_pinned(const struct host_tier *h)
{
    for (int32_t i = 0; i < h->n_pieces; i++)
        if (h->pieces[i] != PIECE_PINNED)
            return false;
    return true;
}

int32_t host_tier_blocks(const struct host_tier *h)
{
    return h->n_blocks;
}

char *host_tier_memory(const struct host_tier *h)
{
    return h->memory.base;
}

uint64_t host_tier_pinned_bytes(const struct host_tier *h)
{
    uint64_t bytes = 0;

    for (int32_t i = 0; i < h->n_pieces; i++)
        if (h->pieces[i] == PIECE_PINNED)
            bytes += piece_bytes(h, i);
    return bytes;
}

void host_tier_move_device(struct host_tier *h, char *device_base)
{
    must(h->device_base == device_base || (h->lanes[0].n_copies == h->lanes[0].n_ended &&
                                           h->lanes[1].n_copies == h->lanes[1].n_ended));
    h->device_base = device_base;
}

/* ---- copies */

static struct batch_copy *copy_at(const struct host_tier *h, const struct lane *l, uint64_t i)
{
    return &l->copies[i % (uint64_t)h->max_copies];
}

static int32_t host_block(const struct batch_copy *c)
{
    return c->to_tier == TIER_HOST ? c->to : c->from;
}

static void *block_at(const struct host_tier *h, int tier, int32_t id)
{
    return (tier == TIER_HOST ? h->memory.base : h->device_base) + (size_t)id * h->block_bytes;
}

static bool can_start(const struct host_tier *h, const struct batch_copy *c)
{
    return h->pieces[host_block(c) / h->piece_blocks] != PIECE_MAPPED;
}

/* Blocks one by one would move at 51 GB/s and take 4 us of this thread each; so they move at 55 and
 * take 0.7 (measured on an H200). */
static cudaError_t copy_blocks(void **to, void **from, size_t *bytes, size_t n, cudaStream_t stream)
{
    struct cudaMemcpyAttributes how = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;

#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(to, (const void *const *)from, bytes, n, &how, &first, 1, stream);
#else
    return cudaMemcpyBatchAsync(to, from, bytes, n, &how, &first, 1, NULL, stream);
#endif
}

static int enqueue(const struct host_tier *h, struct lane *l, uint64_t end, struct err *e)
{
    void *from[CALL_COPIES], *to[CALL_COPIES];
    size_t bytes[CALL_COPIES];

    while (l->n_started < end) {
        size_t n = 0;
        int r;

        for (; n < CALL_COPIES && l->n_started < end; n++, l->n_started++) {
            const struct batch_copy *c = copy_at(h, l, l->n_started);

            from[n] = block_at(h, c->from_tier, c->from);
            to[n] = block_at(h, c->to_tier, c->to);
            bytes[n] = h->block_bytes;
        }
        r = cuda_check(copy_blocks(to, from, bytes, n, l->stream), "copying blocks", e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Starts copies in their order: all that can start, as one group. */
static int start_copies(struct host_tier *h, struct lane *l, struct err *e)
{
    struct group *group = &l->groups[l->n_groups % GROUPS];
    uint64_t end = l->n_started;
    int r;

    while (end < l->n_copies && can_start(h, copy_at(h, l, end)))
        end++;
    if (end == l->n_started || l->n_groups - l->n_groups_ended == GROUPS)
        return 0;
    if ((r = cuda_check(cudaStreamWaitEvent(l->stream, h->step, 0), "copying blocks", e)) < 0 ||
        (r = enqueue(h, l, end, e)) < 0)
        return r;
    group->end = end;
    l->n_groups++;
    return cuda_check(cudaEventRecord(group->ended, l->stream), "copying blocks", e);
}

int host_tier_submit(struct host_tier *h, const struct batch *b, cudaEvent_t step, struct err *e)
{
    int r = 0;

    h->step = step;
    host_tier_pin(h);
    for (int32_t i = 0; i < b->n_copies; i++) {
        const struct batch_copy *c = &batch_copies(b)[i];
        struct lane *l = &h->lanes[c->to_tier == TIER_HOST];

        if (copy_is_of_disk(c))
            continue;
        must(c->when == COPY_AFTER && c->from_tier + c->to_tier == TIER_HOST);
        must(l->n_copies - l->n_ended < (uint64_t)h->max_copies);
        *copy_at(h, l, l->n_copies++) = *c;
    }
    for (int i = 0; i < 2 && r == 0; i++)
        r = start_copies(h, &h->lanes[i], e);
    return r;
}

int host_tier_poll(struct host_tier *h, struct step_result *out, struct err *e)
{
    int r = 0;

    out->copies = h->results;
    for (int i = 0; i < 2 && r == 0; i++) {
        struct lane *l = &h->lanes[i];
        cudaError_t code = cudaSuccess;

        while (l->n_groups_ended < l->n_groups && code == cudaSuccess) {
            const struct group *group = &l->groups[l->n_groups_ended % GROUPS];

            code = cudaEventQuery(group->ended);
            for (; code == cudaSuccess && l->n_ended < group->end; l->n_ended++)
                h->results[out->n_copies++] =
                    (struct copy_result){copy_at(h, l, l->n_ended)->id, true};
            l->n_groups_ended += code == cudaSuccess;
        }
        if (code != cudaSuccess && code != cudaErrorNotReady)
            return cuda_check(code, "copying blocks", e);
        if (l->n_started < l->n_copies)
            r = start_copies(h, l, e);
    }
    return r;
}

/* ---- from open to close */

static int open_lane(struct host_tier *h, struct lane *l, struct err *e)
{
    int r = cuda_check(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking),
                       "creating a stream", e);

    for (int i = 0; i < GROUPS && r == 0; i++)
        r = cuda_check(cudaEventCreateWithFlags(&l->groups[i].ended, cudaEventDisableTiming),
                       "creating an event", e);
    l->copies = calloc((size_t)h->max_copies, sizeof(*l->copies));
    return r < 0 || l->copies ? r : err_set(e, -ENOMEM, "out of memory");
}

int host_tier_new(struct host_tier **out, const struct device *d, uint64_t bytes,
                  uint64_t block_bytes, char *device_base, int32_t n_device_blocks, struct err *e)
{
    const uint64_t n = bytes / block_bytes;
    struct host_tier *h = calloc(1, sizeof(*h));
    int r, driver = 0;

    *out = h;
    if (!h)
        return err_set(e, -ENOMEM, "out of memory");
    (void)cudaDriverGetVersion(&driver);
    if (driver < NEED_DRIVER)
        return err_set(e, -ENOTSUP,
                       "cache.host_memory needs a driver of CUDA 12.8 or newer; this one has %d.%d",
                       driver / 1000, driver % 1000 / 10);
    if (n == 0 || n > INT32_MAX)
        return err_set(e, -EINVAL,
                       "cache.host_memory: %.1f MiB, but one KV block takes %.1f MiB; raise it, "
                       "or lower cache.block_len",
                       (double)bytes / 0x1p20, (double)block_bytes / 0x1p20);
    h->device = d->id;
    h->device_base = device_base;
    h->block_bytes = block_bytes;
    h->n_blocks = (int32_t)n;
    h->max_copies = h->n_blocks < n_device_blocks ? h->n_blocks : n_device_blocks;
    h->piece_blocks = block_bytes < PIN_BYTES ? (int32_t)(PIN_BYTES / block_bytes) : 1;
    h->n_pieces = (h->n_blocks + h->piece_blocks - 1) / h->piece_blocks;
    h->pieces = calloc((size_t)h->n_pieces, sizeof(*h->pieces));
    h->results = calloc((size_t)h->max_copies * 2, sizeof(*h->results));
    if (!h->pieces || !h->results)
        return err_set(e, -ENOMEM, "out of memory");
    r = region_init(&h->memory, "cache.host_memory", n * block_bytes, e);
    for (int i = 0; i < 2 && r == 0; i++)
        r = open_lane(h, &h->lanes[i], e);
    return r;
}

void host_tier_free(struct host_tier *h)
{
    if (!h)
        return;
    h->stop = true;
    for (int i = 0; i < h->n_threads; i++)
        pthread_join(h->threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        struct lane *l = &h->lanes[i];

        if (l->stream) {
            (void)cudaStreamSynchronize(l->stream);
            (void)cudaStreamDestroy(l->stream);
        }
        for (int j = 0; j < GROUPS; j++)
            if (l->groups[j].ended)
                (void)cudaEventDestroy(l->groups[j].ended);
        free(l->copies);
    }
    for (int32_t i = 0; h->pieces && i < h->n_pieces; i++)
        if (h->pieces[i] == PIECE_PINNED)
            (void)cudaHostUnregister(piece_at(h, i));
    region_deinit(&h->memory);
    free(h->results);
    free(h->pieces);
    free(h);
}
