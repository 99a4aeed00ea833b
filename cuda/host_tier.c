/* host_tier.c - see host_tier.h. */
#include "cuda/host_tier.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/must.h"

enum {
    GROUPS = 64,         /* of copies under way in one direction */
    NEED_DRIVER = 12080, /* for cudaMemcpyBatchAsync() */
    CALL_COPIES = 256,   /* that the driver is given at a time */
};

/* Copies that began together; they end together, behind one event. */
struct group {
    cudaEvent_t ended;
    uint64_t end; /* the first copy behind it */
};

/* One direction. Copies and groups are counted from the first; number i is at i % max. */
struct lane {
    cudaStream_t stream;
    uint64_t n_copies, n_started, n_ended;
    uint64_t n_taken;          /* of the ended ones, on the process's first rank */
    struct batch_copy *copies; /* [max_copies] */
    uint64_t n_groups, n_groups_ended;
    struct group groups[GROUPS];
};

struct host_tier {
    const struct host_memory *memory;
    char *host_base, *device_base;
    size_t block_bytes, host_stride;
    int32_t max_copies; /* under way: each has a device block of its own, and a host block */
    struct lane lanes[2];
    cudaEvent_t step;            /* of the last one submitted */
    struct copy_result *results; /* [2, max_copies] */
};

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
    return tier == TIER_HOST ? h->host_base + (size_t)id * h->host_stride
                             : h->device_base + (size_t)id * h->block_bytes;
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

    while (end < l->n_copies && host_memory_may_copy(h->memory, host_block(copy_at(h, l, end))))
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

int host_tier_poll(struct host_tier *h, struct err *e)
{
    int r = 0;

    for (int i = 0; i < 2 && r == 0; i++) {
        struct lane *l = &h->lanes[i];
        cudaError_t code = cudaSuccess;

        while (l->n_groups_ended < l->n_groups && code == cudaSuccess) {
            const struct group *group = &l->groups[l->n_groups_ended % GROUPS];

            code = cudaEventQuery(group->ended);
            l->n_ended = code == cudaSuccess ? group->end : l->n_ended;
            l->n_groups_ended += code == cudaSuccess;
        }
        if (code != cudaSuccess && code != cudaErrorNotReady)
            return cuda_check(code, "copying blocks", e);
        if (l->n_started < l->n_copies)
            r = start_copies(h, l, e);
    }
    return r;
}

void host_tier_least_ended(const struct host_tier *h, int64_t ended[2])
{
    for (int i = 0; i < 2; i++)
        if ((int64_t)h->lanes[i].n_ended < ended[i])
            ended[i] = (int64_t)h->lanes[i].n_ended;
}

void host_tier_take_ended(struct host_tier *h, const int64_t ended[2], struct step_result *out)
{
    out->copies = h->results;
    for (int i = 0; i < 2; i++)
        for (struct lane *l = &h->lanes[i]; (int64_t)l->n_taken < ended[i]; l->n_taken++)
            h->results[out->n_copies++] = (struct copy_result){copy_at(h, l, l->n_taken)->id, true};
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

int host_tier_new(struct host_tier **out, const struct host_memory *m, size_t offset,
                  size_t block_bytes, size_t stride, char *device_base, int32_t n_device_blocks,
                  struct err *e)
{
    struct host_tier *h = calloc(1, sizeof(*h));
    const int32_t n = host_memory_blocks(m);
    int r = 0, driver = 0;

    *out = h;
    if (!h)
        return err_set(e, -ENOMEM, "out of memory");
    (void)cudaDriverGetVersion(&driver);
    if (driver < NEED_DRIVER)
        return err_set(e, -ENOTSUP,
                       "cache.host_memory needs a driver of CUDA 12.8 or newer; this one has %d.%d",
                       driver / 1000, driver % 1000 / 10);
    h->memory = m;
    h->host_base = host_memory_base(m) + offset;
    h->host_stride = stride;
    h->device_base = device_base;
    h->block_bytes = block_bytes;
    h->max_copies = n < n_device_blocks ? n : n_device_blocks;
    h->results = calloc((size_t)h->max_copies * 2, sizeof(*h->results));
    if (!h->results)
        return err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < 2 && r == 0; i++)
        r = open_lane(h, &h->lanes[i], e);
    return r;
}

void host_tier_free(struct host_tier *h)
{
    if (!h)
        return;
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
    free(h->results);
    free(h);
}
