/* ranks.c - see ranks.h.
 *
 * Work is posted in a ring that all ranks read: a function and its argument, the same for each.
 * The poster writes an entry and counts it; no lock is on the way of a step. A rank that has
 * nothing to do watches that count for a while, then sleeps on it. */
#include "cuda/ranks.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/util/must.h"
#include "engine/util/thread.h"

enum {
    N_JOBS = 4,      /* posted and not yet done, at most: steps in flight, the sampling of one of
                      * them and one more */
    WAIT_US = 50,    /* between looks at a long job */
    SPIN_US = 1000,  /* before a rank sleeps; steps longer than this hide what waking costs */
    SPIN_LOOKS = 64, /* between looks at the clock */
    COPY_POLL_US = 50,
    OFFLOADED_SECONDS = 60,
    STEP_LOOKS = 2000, /* polls of a step's events before the engine thread sleeps between them */
    STEP_SECONDS = PEER_SECONDS + 2, /* by then the device of a rank that waits has failed */
};

static const double COPY_WAIT = 1e-3; /* seconds: contract 2 of a step without rows */

typedef int rank_fn(struct rank *rank, const void *arg, struct err *e);

struct job {
    rank_fn *run; /* NULL: the thread ends */
    const void *arg;
    bool is_step;
};

struct step {
    const struct batch *batch;
    int slot;
    uint32_t posted; /* n_posted once it was */
};

struct worker {
    struct ranks *all;
    struct rank *rank;
    pthread_t thread;
    _Atomic uint32_t n_done; /* jobs */
    int result;              /* of the last job that is no step, for who waits for that */
    struct err err;
    _Atomic int failed; /* the first error of a step, behind its text: no step is run any more */
    struct err failure;
};

struct ranks {
    int n;
    struct rank ranks[MAX_RANKS];
    uint32_t *masks; /* [max_seqs, mask_words] of one step; pinned, all devices read it */
    size_t mask_words;
    struct host_memory *host; /* NULL: there is none */
    int64_t n_copying;        /* copies of blocks that have not been told as ended */
    struct backend_info infos[MAX_RANKS];

    /* where there are several */
    struct worker workers[MAX_RANKS];
    int n_workers; /* started */
    int lost; /* a rank whose thread has stopped, or -1: nothing can be asked of them any more */
    struct job jobs[N_JOBS];
    _Atomic uint32_t n_posted;
    _Atomic int n_asleep;
    struct step steps[SAMPLER_SLOTS];
    double busy, busy_from; /* seconds with steps under way since the memory was taken */
    int n_under_way;
};

/* ---- threads */

static void futex(_Atomic uint32_t *at, int op, uint32_t value)
{
    (void)syscall(SYS_futex, at, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Returns when n_posted is no longer n. */
static void wait_for_job(struct ranks *r, uint32_t n)
{
    const double begin = monotonic_seconds();

    while (monotonic_seconds() - begin < SPIN_US * 1e-6)
        for (int i = 0; i < SPIN_LOOKS; i++)
            if (r->n_posted != n)
                return;
    r->n_asleep++;
    while (r->n_posted == n)
        futex(&r->n_posted, FUTEX_WAIT, n);
    r->n_asleep--;
}

static void *rank_main(void *arg)
{
    struct worker *w = arg;

    for (uint32_t n = 0;; n++) {
        struct job job;

        wait_for_job(w->all, n);
        job = w->all->jobs[n % N_JOBS];
        if (!job.run) {
            w->n_done = n + 1;
            return NULL;
        }
        if (!job.is_step)
            w->result = job.run(w->rank, job.arg, &w->err);
        else if (w->failed == 0)
            w->failed = job.run(w->rank, job.arg, &w->failure);
        w->n_done = n + 1;
    }
}

/* Returns -1 when all ranks have done n jobs, or the rank that has not within so many seconds. */
static int wait_until_done(const struct ranks *r, uint32_t n, double seconds)
{
    const double begin = monotonic_seconds();

    for (int i = 0; i < r->n_workers; i++)
        for (int looks = 0; (int32_t)(r->workers[i].n_done - n) < 0; looks++) {
            if (looks > SPIN_LOOKS * 10)
                (void)usleep(WAIT_US);
            if (looks % SPIN_LOOKS == 0 && monotonic_seconds() - begin > seconds)
                return i;
        }
    return -1;
}

static int lost_error(const struct ranks *r, struct err *e)
{
    return err_set(e, -ETIMEDOUT, "rank %d has not answered for %d s", r->lost, STEP_SECONDS);
}

static int post(struct ranks *r, struct job job, struct err *e)
{
    if (r->lost < 0) /* wait until all have read the entry */
        r->lost = wait_until_done(r, r->n_posted - (N_JOBS - 1), STEP_SECONDS);
    if (r->lost >= 0)
        return lost_error(r, e);
    r->jobs[r->n_posted % N_JOBS] = job;
    r->n_posted++;
    if (r->n_asleep > 0)
        futex(&r->n_posted, FUTEX_WAKE, INT_MAX);
    return 0;
}

/* Runs a function on all ranks at a time and waits for it, for so many seconds. Returns the first
 * error. */
static int each_within(struct ranks *r, double seconds, rank_fn *run, const void *arg,
                       struct err *e)
{
    int rc;

    if (r->n == 1)
        return run(&r->ranks[0], arg, e);
    rc = post(r, (struct job){.run = run, .arg = arg}, e);
    if (rc < 0)
        return rc;
    r->lost = wait_until_done(r, r->n_posted, seconds);
    if (r->lost >= 0)
        return lost_error(r, e);
    for (int i = 0; i < r->n; i++)
        if (r->workers[i].result < 0)
            return err_set(e, r->workers[i].result, "rank %d: %s", i, r->workers[i].err.text);
    return 0;
}

/* The same of what may take long: reading weights. */
static int each(struct ranks *r, rank_fn *run, const void *arg, struct err *e)
{
    return each_within(r, INFINITY, run, arg, e);
}

static int start_workers(struct ranks *r, struct err *e)
{
    for (; r->n > 1 && r->n_workers < r->n; r->n_workers++) {
        struct worker *w = &r->workers[r->n_workers];
        int rc;

        w->all = r;
        w->rank = &r->ranks[r->n_workers];
        rc = thread_start(&w->thread, "cuda-rank", rank_main, w);
        if (rc < 0)
            return err_set(e, rc, "cannot start a thread for rank %d: %s", r->n_workers,
                           strerror(-rc));
    }
    return 0;
}

/* False: one is lost, and the others may still wait for it. */
static bool stop_workers(struct ranks *r)
{
    struct err ignored;

    if (r->n_workers == 0)
        return true;
    if (post(r, (struct job){.run = NULL}, &ignored) < 0)
        return false;
    r->lost = wait_until_done(r, r->n_posted, STEP_SECONDS);
    for (int i = 0; r->lost < 0 && i < r->n_workers; i++)
        pthread_join(r->workers[i].thread, NULL);
    r->n_workers = r->lost < 0 ? 0 : r->n_workers;
    return r->lost < 0;
}

/* ---- from open to close */

struct opening {
    struct ranks *all;
    const struct model *model;
    const struct backend_options *options;
};

static int open_one(struct rank *rank, const void *arg, struct err *e)
{
    const struct opening *o = arg;
    const struct shard s = {.rank = (int32_t)(rank - o->all->ranks), .tp_size = o->all->n};
    struct backend_options mine = *o->options;

    if (s.rank > 0)
        mine.progress = NULL; /* all read as much: one tells how far they are */
    if (s.tp_size > 1)        /* a single rank has no thread of its own */
        device_keep_thread_near(mine.devices[s.rank]);
    return rank_open(rank, o->model, s, &mine, e);
}

static int take_memory(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return rank_take_memory(rank, e);
}

static int take_blocks(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return rank_take_blocks(rank, e);
}

static int choose(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return rank_choose(rank, e);
}

static int give_back(struct rank *rank, const void *keep_blocks, struct err *e)
{
    (void)e;
    rank_give_back(rank, *(const bool *)keep_blocks);
    (void)cudaGetLastError(); /* it is told here and not again by the next call */
    return 0;
}

/* Lets this rank's device access the others' memory. */
static int reach_peers(struct rank *rank, const void *arg, struct err *e)
{
    const struct ranks *r = arg;
    const struct device *mine = &rank->device;

    for (int i = 0; i < r->n; i++) {
        const struct device *d = &r->ranks[i].device;
        cudaError_t code;
        int able = 0, rc;

        if (d->launch.n_sms != mine->launch.n_sms || d->compute != mine->compute)
            return err_set(e, -ENOTSUP,
                           "cuda.devices: %d is a %s and %d a %s; tensor parallelism needs devices "
                           "of one kind",
                           mine->id, mine->name, d->id, d->name);
        if (d->id == mine->id)
            continue;
        rc = cuda_check(cudaDeviceCanAccessPeer(&able, mine->id, d->id), "asking for peer access",
                        e);
        if (rc < 0)
            return rc;
        if (!able)
            return err_set(e, -ENOTSUP,
                           "cuda.devices: device %d has no peer access to device %d, which tensor "
                           "parallelism needs; see nvidia-smi topo -p2p r",
                           mine->id, d->id);
        code = cudaDeviceEnablePeerAccess(d->id, 0);
        if (code == cudaErrorPeerAccessAlreadyEnabled)
            code = cudaGetLastError() == code ? cudaSuccess : code;
        rc = cuda_check(code, "peer access", e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static bool share_a_device(const struct ranks *r)
{
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < i; k++)
            if (r->ranks[i].device.id == r->ranks[k].device.id)
                return true;
    return false;
}

/* Each rank's forward pass gets what it knows of the others. On one device ranks must not fill it
 * while they wait for each other: there no kernel starts before its turn. */
static void link_ranks(struct ranks *r)
{
    for (int me = 0; me < r->n; me++) {
        struct forward *f = &r->ranks[me].forward;

        if (share_a_device(r))
            r->ranks[me].device.launch.chained = false;
        f->ranks.barrier.n_ranks = r->n;
        f->ranks.barrier.me = me;
        f->sampler.scans = r->ranks[0].forward.sampler.scans;
        f->sampler.masks = r->masks;
        for (int i = 0; i < r->n; i++) {
            const struct rank *of = &r->ranks[i];
            const struct forward_ranks *theirs = &of->forward.ranks;
            const struct sampler_memory *m = &of->forward.sampler;

            f->ranks.embedding.tables[i] = of->weights.embed.data;
            memcpy(f->ranks.parts[i], theirs->parts[i], sizeof(f->ranks.parts[i]));
            memcpy(f->ranks.inbox[i], theirs->inbox[i], sizeof(f->ranks.inbox[i]));
            f->ranks.normed[i] = theirs->normed[i];
            f->ranks.barrier.arrived[i] = theirs->barrier.arrived[i];
            f->sampler.logits[i] = m->logits[i];
            f->sampler.adjusted[i] = m->adjusted[i];
            f->sampler.seen[i] = m->seen[i];
            f->sampler.sampled[i] = m->sampled[i];
        }
    }
}

/* A block is on all ranks or on none. */
static void share_blocks(struct ranks *r)
{
    int32_t least = INT32_MAX;

    for (int i = 0; i < r->n; i++)
        if (r->ranks[i].n_blocks < least)
            least = r->ranks[i].n_blocks;
    for (int i = 0; i < r->n; i++)
        r->ranks[i].n_blocks = least;
}

/* A block's parts of all ranks are side by side. Once: it stays while they sleep. */
static int take_host_memory(struct ranks *r, struct err *e)
{
    const struct rank *first = &r->ranks[0];
    const uint64_t bytes = first->options.tier_bytes[TIER_HOST];
    int rc;

    if (r->host || bytes == 0)
        return 0;
    rc = host_memory_new(&r->host, first->device.id, bytes, (uint64_t)r->n * first->block_bytes, e);
    for (int i = 0; i < r->n && rc == 0; i++)
        r->ranks[i].host_memory = r->host;
    return rc;
}

/* Once, too. Written by the host alone, read by kernels through the bus: once a step each word. */
static int take_masks(struct ranks *r, struct err *e)
{
    const struct rank *first = &r->ranks[0];
    const size_t n = (size_t)first->limits.max_seqs;

    r->mask_words = ((size_t)first->config.vocab_size + 31) / 32;
    return cuda_check(cudaHostAlloc((void **)&r->masks, n * r->mask_words * sizeof(*r->masks),
                                    cudaHostAllocPortable | cudaHostAllocMapped),
                      "pinning memory", e);
}

/* The rank with the least room decides for all. */
static int plan_blocks(struct ranks *r, struct err *e)
{
    int rc = 0;

    share_blocks(r);
    for (int i = 0; i < r->n && rc == 0; i++)
        rc = rank_plan_ring(&r->ranks[i], e);
    return rc;
}

static int take_all(struct ranks *r, struct err *e)
{
    const bool planned = r->ranks[0].n_blocks > 0;
    int rc = each(r, take_memory, NULL, e);

    r->busy = 0.0;
    if (rc < 0 || (!planned && (rc = plan_blocks(r, e)) < 0))
        return rc;
    if ((rc = take_host_memory(r, e)) < 0 || (rc = each(r, take_blocks, NULL, e)) < 0)
        return rc;
    link_ranks(r);
    return each(r, choose, NULL, e);
}

int ranks_new(struct ranks **out, const struct model *model, const struct backend_options *options,
              struct err *e)
{
    struct ranks *r = calloc(1, sizeof(*r));
    const struct opening opening = {r, model, options};
    int rc;

    must(options->n_devices > 0 && options->n_devices <= MAX_RANKS);
    if (!r)
        return err_set(e, -ENOMEM, "out of memory");
    r->n = options->n_devices;
    r->lost = -1;
    rc = start_workers(r, e);
    if (rc == 0)
        rc = each(r, open_one, &opening, e);
    if (rc == 0 && r->n > 1)
        rc = each(r, reach_peers, r, e);
    if (rc == 0)
        rc = take_masks(r, e);
    if (rc == 0)
        rc = take_all(r, e);
    if (rc < 0) {
        ranks_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* Under a thread that has stopped nothing can be freed. */
void ranks_free(struct ranks *r)
{
    if (!r || r->lost >= 0 || !stop_workers(r))
        return;
    for (int i = 0; i < r->n; i++) {
        (void)cudaSetDevice(r->ranks[i].device.id);
        if (r->ranks[i].device.launch.stream)
            (void)cudaStreamSynchronize(r->ranks[i].device.launch.stream);
    }
    for (int i = 0; i < r->n; i++)
        rank_deinit(&r->ranks[i]);
    if (r->masks)
        (void)cudaFreeHost(r->masks);
    host_memory_free(r->host);
    free(r);
}

struct rank *ranks_first(struct ranks *r)
{
    return &r->ranks[0];
}

const struct rank *ranks_at(const struct ranks *r, int i)
{
    return i < r->n ? &r->ranks[i] : NULL;
}

/* Rank 0 knows already what has been measured: it did. */
static int choose_anew(struct rank *rank, const void *arg, struct err *e)
{
    const int r = rank->shard.rank > 0 ? rank_read_known(rank, e) : 0;

    (void)arg;
    return r < 0 ? r : rank_choose(rank, e);
}

int ranks_choose(struct ranks *r, struct err *e)
{
    return each(r, choose_anew, NULL, e);
}

static int load_products(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return rank_load_products(rank, e);
}

int ranks_load_products(struct ranks *r, struct err *e)
{
    const int rc = each(r, load_products, NULL, e);

    return rc < 0 ? rc : 1;
}

static int sleep_one(struct rank *rank, const void *keep_blocks, struct err *e)
{
    return rank_sleep(rank, *(const bool *)keep_blocks, e);
}

int ranks_sleep(struct ranks *r, bool keep_blocks, struct err *e)
{
    return each(r, sleep_one, &keep_blocks, e);
}

static int check_wake(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return rank_check_wake(rank, e);
}

int ranks_wake(struct ranks *r, struct err *e)
{
    const bool keep_blocks = r->ranks[0].device.memory[DEVICE_KV] != NULL;
    int rc = each(r, check_wake, NULL, e);

    if (rc < 0)
        return rc;
    rc = take_all(r, e);
    if (rc < 0) {
        (void)each(r, give_back, &keep_blocks, NULL);
        return rc;
    }
    for (int i = 0; i < r->n; i++)
        r->ranks[i].given_back = 0;
    return 0;
}

static int info_of(struct rank *rank, const void *infos, struct err *e)
{
    (void)e;
    rank_info(rank, &((struct backend_info *)(uintptr_t)infos)[rank->shard.rank]);
    return 0;
}

bool ranks_pin(struct ranks *r)
{
    if (!r->host)
        return false;
    host_memory_pin(r->host);
    return host_memory_wait(r->host);
}

/* What one rank has, and the sums over all. */
void ranks_info(struct ranks *r, struct backend_info *out)
{
    const struct backend_info *infos = r->infos; /* the last ones, where a rank does not answer */
    struct err ignored;

    (void)each_within(r, STEP_SECONDS, info_of, r->infos, &ignored);
    *out = infos[0];
    out->n_devices = r->n;
    for (int i = 0; i < r->n && r->n > 1; i++) {
        out->devices[i] = infos[i].devices[0];
        out->devices[i].total_bytes = infos[i].total_bytes;
        out->devices[i].free_bytes = infos[i].free_bytes;
        out->devices[i].exchange_share =
            r->busy > 0.0
                ? fmin((double)*r->ranks[i].forward.ranks.barrier.host_ns * 1e-9 / r->busy, 1.0)
                : 0.0;
    }
    for (int i = 1; i < r->n; i++) {
        out->block_bytes += infos[i].block_bytes;
        out->tiers[TIER_DEVICE].bytes += infos[i].tiers[TIER_DEVICE].bytes;
        out->weight_bytes += infos[i].weight_bytes;
        out->graph_bytes += infos[i].graph_bytes;
        out->workspace_bytes += infos[i].workspace_bytes;
        out->other_bytes += infos[i].other_bytes;
        out->total_bytes += infos[i].total_bytes;
        out->free_bytes += infos[i].free_bytes;
    }
}

/* ---- steps */

static int submit_one(struct rank *rank, const void *posted, struct err *e)
{
    const struct step *s = posted;

    return rank_submit(rank, s->batch, s->slot, e);
}

int ranks_submit(struct ranks *r, const struct batch *batch, int slot, struct err *e)
{
    struct step *s = &r->steps[slot];
    int rc;

    for (int32_t i = 0; i < batch->n_copies; i++)
        r->n_copying += !copy_is_of_disk(&batch_copies(batch)[i]);
    if (r->host)
        host_memory_pin(r->host);
    s->batch = batch;
    s->slot = slot;
    if (r->n == 1)
        return rank_submit(&r->ranks[0], batch, slot, e);
    if (r->n_under_way++ == 0)
        r->busy_from = monotonic_seconds();
    rc = post(r, (struct job){.run = submit_one, .arg = s, .is_step = true}, e);
    s->posted = r->n_posted;
    return rc;
}

static int sample_one(struct rank *rank, const void *posted, struct err *e)
{
    const struct step *s = posted;

    return rank_sample(rank, s->slot, e);
}

/* The steps before have ended on all ranks: nobody reads their masks any more. */
int ranks_mask(struct ranks *r, const uint32_t *const *masks, int slot, struct err *e)
{
    const struct batch *batch = r->steps[slot].batch;
    struct step *s = &r->steps[slot];
    int rc;

    batch_join_masks(r->masks, masks, batch->n_masks, r->mask_words);
    if (r->n == 1)
        return rank_sample(&r->ranks[0], slot, e);
    rc = post(r, (struct job){.run = sample_one, .arg = s, .is_step = true}, e);
    s->posted = r->n_posted;
    return rc;
}

static int poll_copies(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return host_tier_poll(rank->host, e);
}

/* Which copies have ended; where there is nothing else to wait for, waits for one. */
static int take_copies(struct ranks *r, bool wait, struct step_result *out, struct err *e)
{
    const double begin = monotonic_seconds();
    struct host_tier *tiers[MAX_RANKS];

    for (int i = 0; i < r->n; i++)
        tiers[i] = r->ranks[i].host;
    for (;;) {
        const int rc = r->n_copying > 0 ? each_within(r, STEP_SECONDS, poll_copies, NULL, e) : 0;

        if (rc < 0)
            return rc;
        if (r->n_copying > 0)
            host_tier_take_ended(tiers, r->n, out);
        r->n_copying -= out->n_copies;
        if (!wait || out->n_copies > 0 || monotonic_seconds() - begin >= COPY_WAIT)
            return 0;
        (void)usleep(COPY_POLL_US);
    }
}

/* Of several ranks all are polled: where one hangs, another's device reports it. A step that waits
 * for the bus may take seconds, and counts as alive for a minute. */
static int wait_for_devices(const struct ranks *r, int slot, struct err *e)
{
    const struct rank *first = &r->ranks[0];
    const double begin = monotonic_seconds();

    if (r->n == 1)
        return rank_wait(first, slot, e);
    for (int looks = 0, n_ended = 0; n_ended < r->n; looks++) {
        n_ended = 0;
        for (int i = 0; i < r->n; i++) {
            struct err why;
            const int rc = rank_poll(&r->ranks[i], slot, &why);

            if (rc < 0)
                return err_set(e, rc, "rank %d: %s", i, why.text);
            n_ended += rc;
        }
        if (looks < STEP_LOOKS || n_ended == r->n)
            continue;
        (void)usleep(WAIT_US);
        if (first->slots[slot].offloaded && first->options.beat &&
            monotonic_seconds() - begin < OFFLOADED_SECONDS)
            *first->options.beat += 2;
    }
    return 0;
}

static int step_error(const struct ranks *r, struct err *e)
{
    for (int i = 0; i < r->n_workers; i++)
        if (r->workers[i].failed < 0)
            return err_set(e, r->workers[i].failed, "rank %d: %s", i, r->workers[i].failure.text);
    return 0;
}

/* The step has ended on all ranks then: their slots may be written again. */
int ranks_wait(struct ranks *r, int slot, struct step_result *out, struct err *e)
{
    int rc = 0;

    if (r->n > 1)
        rc = cuda_check(cudaSetDevice(r->ranks[0].device.id), "choosing the device", e);
    if (r->n > 1 && r->lost < 0)
        r->lost = wait_until_done(r, r->steps[slot].posted, STEP_SECONDS);
    if (rc == 0)
        rc = r->lost >= 0 ? lost_error(r, e) : step_error(r, e);
    if (rc == 0)
        rc = wait_for_devices(r, slot, e);
    if (rc < 0)
        return rc;
    if (r->n > 1 && --r->n_under_way == 0)
        r->busy += monotonic_seconds() - r->busy_from;
    rank_result(&r->ranks[0], slot, out);
    return r->host ? take_copies(r, r->ranks[0].slots[slot].copies_only, out, e) : 0;
}
