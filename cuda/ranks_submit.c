/* ranks_submit.c - steps on all ranks: posted, waited for, and what a follower does for its
 * leader's; see ranks.h. */
#include <unistd.h>

#include "cuda/ranks_impl.h"
#include "engine/util/must.h"

enum {
    WAIT_US = 50, /* between looks at a long step */
    COPY_POLL_US = 50,
    OFFLOADED_SECONDS = 60,
    STEP_LOOKS = 2000, /* polls of a step's events before the engine thread sleeps between them */
};

static const double COPY_WAIT = 1e-3; /* seconds: contract 2 of a step without rows */

static int submit_one(struct rank *rank, const void *posted, struct err *e)
{
    const struct posted_step *s = posted;

    return rank_submit(rank, s->batch, s->slot, e);
}

/* The products of a step: of layers, where an invariant pass takes decodes another way, and of the
 * LM head. */
static int load_products(struct ranks *r, const struct batch *batch, struct err *e)
{
    const int apart = r->ranks[0].options.invariant ? batch_decode_rows(batch) : 0;
    const int rc = ranks_load_products(r, batch->n_tokens - apart, e);

    return rc < 0 ? rc : ranks_load_products(r, batch->n_rows, e);
}

int ranks_submit(struct ranks *r, const struct batch *batch, int slot, struct err *e)
{
    struct posted_step *s = &r->steps[slot];
    int rc;

    for (int32_t i = 0; i < batch->n_copies; i++)
        r->n_copying += !copy_is_of_disk(&batch_copies(batch)[i]);
    if (r->host)
        host_memory_pin(r->host);
    s->batch = batch;
    s->slot = slot;
    if (!r->threads)
        return rank_submit(&r->ranks[0], batch, slot, e);
    rc = ranks_order(r, &(struct order){.kind = ORDER_STEP, .batch = batch}, e);
    if (rc == 0)
        rc = load_products(r, batch, e);
    if (rc < 0)
        return rc;
    if (r->n_under_way++ == 0)
        r->busy_from = monotonic_seconds();
    return rank_threads_post(r->threads, submit_one, s, &s->number, e);
}

static int sample_one(struct rank *rank, const void *posted, struct err *e)
{
    const struct posted_step *s = posted;

    return rank_sample(rank, s->slot, e);
}

/* The steps before have ended on all ranks: nobody reads their masks any more. */
int ranks_mask(struct ranks *r, const uint32_t *const *masks, int slot, struct err *e)
{
    struct posted_step *s = &r->steps[slot];

    must(!r->cluster);
    batch_join_masks(r->masks, masks, s->batch->n_masks, r->mask_words);
    if (!r->threads)
        return rank_sample(&r->ranks[0], slot, e);
    return rank_threads_post(r->threads, sample_one, s, &s->number, e);
}

static int poll_copies(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return host_tier_poll(rank->host, e);
}

/* How many copies have ended on all ranks of all processes. */
static int count_ended(struct ranks *r, int64_t ended[2], struct err *e)
{
    const int rc = ranks_each_within(r, STEP_SECONDS, poll_copies, NULL, e);

    ended[0] = ended[1] = INT64_MAX;
    for (int i = 0; i < r->n && rc == 0; i++)
        host_tier_least_ended(r->ranks[i].host, ended);
    return rc < 0 || !r->cluster ? rc : cluster_least(r->cluster, ended, 2, CLUSTER_SECONDS, e);
}

/* Which copies have ended; where there is nothing else to wait for, waits for one. */
static int take_copies(struct ranks *r, bool wait, struct step_result *out, struct err *e)
{
    const double begin = monotonic_seconds();
    int64_t ended[2];

    for (;;) {
        int rc = r->n_copying > 0 ? ranks_order(r, &(struct order){.kind = ORDER_COPIES}, e) : 0;

        if (rc == 0 && r->n_copying > 0)
            rc = count_ended(r, ended, e);
        if (rc < 0)
            return rc;
        if (r->n_copying > 0)
            host_tier_take_ended(r->ranks[0].host, ended, out);
        r->n_copying -= out->n_copies;
        if (!wait || out->n_copies > 0 || monotonic_seconds() - begin >= COPY_WAIT)
            return 0;
        (void)usleep(COPY_POLL_US);
    }
}

/* Of all ranks, of which one may report another that hangs: 1, or 0: not yet. */
static int poll_devices(const struct ranks *r, int slot, struct err *e)
{
    int n_ended = 0;

    for (int i = 0; i < r->n; i++) {
        const struct rank *rank = &r->ranks[i];
        struct err why;
        const int rc = rank_poll(rank, slot, &why);

        if (rc < 0)
            return err_set(e, rc, "rank %d: %s", rank->shard.rank, why.text);
        n_ended += rc;
    }
    return n_ended == r->n;
}

/* A step that waits for the bus may take seconds, and counts as alive for a minute. */
static int wait_for_devices(const struct ranks *r, int slot, struct err *e)
{
    const struct rank *first = &r->ranks[0];
    const double begin = monotonic_seconds();
    int rc;

    for (int looks = 0; (rc = poll_devices(r, slot, e)) == 0; looks++) {
        if (looks < STEP_LOOKS)
            continue;
        (void)usleep(WAIT_US);
        if (first->slots[slot].offloaded && first->options.beat &&
            monotonic_seconds() - begin < OFFLOADED_SECONDS)
            *first->options.beat += 2;
    }
    return rc < 0 ? rc : 0;
}

/* By all ranks of this process, which NCCL may keep waiting. */
static int wait_until_enqueued(const struct ranks *r, uint32_t number, struct err *e)
{
    const double begin = monotonic_seconds();
    int looks = 0, rc;

    while ((rc = rank_threads_poll(r->threads, number, e)) == 0)
        if ((rc = cluster_pause(r->cluster, looks++, begin, CLUSTER_SECONDS, e)) < 0)
            return rc;
    return rc < 0 ? rc : 0;
}

static int wait_in_cluster(const struct ranks *r, int slot, struct err *e)
{
    const double begin = monotonic_seconds();
    int looks = 0, rc = wait_until_enqueued(r, r->steps[slot].number, e);

    while (rc == 0 && (rc = poll_devices(r, slot, e)) == 0)
        rc = cluster_pause(r->cluster, looks++, begin, CLUSTER_SECONDS, e);
    return rc < 0 ? rc : 0;
}

static int wait_for_step(struct ranks *r, int slot, struct err *e)
{
    int rc;

    if (!r->threads)
        return rank_wait(&r->ranks[0], slot, e);
    rc = cuda_check(cudaSetDevice(r->ranks[0].device.id), "choosing the device", e);
    if (rc == 0 && r->cluster)
        return wait_in_cluster(r, slot, e);
    if (rc == 0)
        rc = rank_threads_wait(r->threads, r->steps[slot].number, e);
    return rc < 0 ? rc : wait_for_devices(r, slot, e);
}

/* The step has ended on all ranks then: their slots may be written again. */
int ranks_wait(struct ranks *r, int slot, struct step_result *out, struct err *e)
{
    const int rc = wait_for_step(r, slot, e);

    if (rc < 0)
        return rc;
    if (r->threads && --r->n_under_way == 0)
        r->busy += monotonic_seconds() - r->busy_from;
    rank_result(&r->ranks[0], slot, out);
    if (!r->host || ranks_follow(r))
        return 0;
    return take_copies(r, r->ranks[0].slots[slot].copies_only, out, e);
}

/* ---- a cluster's orders */

bool ranks_follow(const struct ranks *r)
{
    return r->cluster && !cluster_leads(r->cluster);
}

int ranks_order(struct ranks *r, const struct order *o, struct err *e)
{
    int rc;

    if (!r->cluster || !cluster_leads(r->cluster))
        return 0;
    rc = wait_until_enqueued(r, rank_threads_posted(r->threads), e);
    return rc < 0 ? rc : cluster_order(r->cluster, o, e);
}

int ranks_next_order(struct ranks *r, struct order *out, struct err *e)
{
    const int rc = wait_until_enqueued(r, rank_threads_posted(r->threads), e);

    return rc < 0 ? rc : cluster_next(r->cluster, out, e);
}

int ranks_answer(struct ranks *r, const struct order *o, struct err *e)
{
    int64_t ended[2] = {0};

    return o->kind == ORDER_COPIES ? count_ended(r, ended, e)
                                   : cluster_least(r->cluster, ended, 1, CLUSTER_SECONDS, e);
}

int ranks_beat(struct ranks *r, struct err *e)
{
    const struct order beat = {.kind = ORDER_BEAT};
    int rc;

    if (!r->cluster || !cluster_beat_is_due(r->cluster))
        return 0;
    rc = ranks_order(r, &beat, e);
    return rc < 0 ? rc : ranks_answer(r, &beat, e);
}
