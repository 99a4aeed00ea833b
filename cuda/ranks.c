/* ranks.c - see ranks.h. */
#include "cuda/ranks.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/util/must.h"

enum {
    WAIT_US = 50, /* between looks at a long step */
    COPY_POLL_US = 50,
    OFFLOADED_SECONDS = 60,
    STEP_LOOKS = 2000, /* polls of a step's events before the engine thread sleeps between them */
};

static const double COPY_WAIT = 1e-3; /* seconds: contract 2 of a step without rows */

struct step {
    const struct batch *batch;
    int slot;
    uint32_t number; /* of rank_threads_post() */
};

struct ranks {
    int n;
    struct rank ranks[MAX_RANKS];
    struct rank_threads *threads; /* NULL: a single rank, which the caller's thread runs */
    struct cluster *cluster;      /* NULL: there are no other processes */
    bool open;
    uint32_t *masks; /* [max_seqs, mask_words] of one step; pinned, all devices read it */
    size_t mask_words;
    struct host_memory *host; /* NULL: there is none */
    int64_t n_copying;        /* copies of blocks that have not been told as ended */
    struct backend_info infos[MAX_RANKS];

    /* with threads */
    struct step steps[SAMPLER_SLOTS];
    double busy, busy_from; /* seconds with steps under way since the memory was taken */
    int n_under_way;
};

/* Runs a function on all ranks at a time and waits for it, for so many seconds. Returns the first
 * error. */
static int each_within(struct ranks *r, double seconds, rank_fn *run, const void *arg,
                       struct err *e)
{
    return r->threads ? rank_threads_run(r->threads, seconds, run, arg, e)
                      : run(&r->ranks[0], arg, e);
}

/* The same of what may take long: reading weights. */
static int each(struct ranks *r, rank_fn *run, const void *arg, struct err *e)
{
    return each_within(r, INFINITY, run, arg, e);
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
    const int local = (int)(rank - o->all->ranks);
    const struct shard s = {.rank = o->options->process * o->all->n + local,
                            .tp_size = o->options->tp_size};
    struct backend_options mine = *o->options;

    if (local > 0)
        mine.progress = NULL; /* all read as much: one tells how far they are */
    if (o->all->threads)
        device_keep_thread_near(mine.devices[local]);
    return rank_open(rank, o->model, s, local, &mine, e);
}

static int join_one(struct rank *rank, const void *cluster, struct err *e)
{
    return cluster_join((struct cluster *)(uintptr_t)cluster, &rank->forward.ranks.exchange,
                        rank->local, rank->shard.rank, rank->shard.tp_size,
                        rank->device.launch.stream, e);
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

/* Lets this rank's device access the others' memory, which a cluster does not need. */
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
        if (d->id == mine->id || r->cluster)
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

/* Steps of a number of rows take the same path on all: the first's records decide, as far as all
 * have it. */
static void share_choices(struct ranks *r)
{
    const struct algo_records *known = &r->ranks[0].known;
    int rows = RESIDENT_MAX_ROWS;

    for (int i = 0; i < r->n; i++)
        if (r->ranks[i].forward.resident_rows < rows)
            rows = r->ranks[i].forward.resident_rows;
    for (int i = 0; i < r->n; i++) {
        r->ranks[i].forward.resident_rows = rows;
        if (i > 0)
            memcpy(r->ranks[i].known.all, known->all, (size_t)known->n * sizeof(*known->all));
        r->ranks[i].known.n = known->n;
    }
}

/* Each rank's forward pass gets what it knows of the others. On one device ranks must not fill it
 * while they wait for each other: there no kernel starts before its turn. */
static void link_ranks(struct ranks *r)
{
    for (int me = 0; me < r->n; me++) {
        struct forward *f = &r->ranks[me].forward;

        if (r->cluster) { /* none reaches another's memory, not even beside it */
            f->ranks.embedding.tables[f->ranks.me] = r->ranks[me].weights.embed.data;
            continue;
        }
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
            if (i != me) /* of two */
                f->resident.twin_sums = of->forward.resident.sums;
            f->ranks.barrier.arrived[i] = theirs->barrier.arrived[i];
            f->sampler.logits[i] = m->logits[i];
            f->sampler.adjusted[i] = m->adjusted[i];
            f->sampler.seen[i] = m->seen[i];
            f->sampler.sampled[i] = m->sampled[i];
        }
        forward_ready_resident(f);
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
    const uint64_t bytes =
        first->options.tier_bytes[TIER_HOST] / (uint64_t)first->shard.tp_size * (uint64_t)r->n;
    int rc;

    if (r->host || bytes == 0)
        return 0;
    rc = host_memory_new(&r->host, first->device.id, bytes, (uint64_t)r->n * first->block_bytes, e);
    for (int i = 0; i < r->n && rc == 0; i++)
        r->ranks[i].host_memory = r->host;
    return rc;
}

/* What all processes have come to: an error of one is one of all, and otherwise the least value is
 * everybody's. */
static int agree(struct ranks *r, int rc, int64_t *value, struct err *e)
{
    int64_t least = rc < 0 ? rc : *value;
    struct err why;
    int agreed;

    if (!r->cluster)
        return rc;
    agreed = cluster_least(r->cluster, &least, 1, CLUSTER_LOAD_SECONDS, &why);
    if (rc < 0)
        return rc;
    if (agreed < 0) {
        *e = why;
        return agreed;
    }
    if (least < 0)
        return err_set(e, (int)least, "another process of the cluster: %s; its log says more",
                       strerror((int)-least));
    *value = least;
    return 0;
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

    for (int i = 0; i < r->n && rc == 0; i++)
        rc = rank_plan_ring(&r->ranks[i], e);
    return rc;
}

static int take_all(struct ranks *r, struct err *e)
{
    const bool planned = r->ranks[0].n_blocks > 0;
    int rc = each(r, take_memory, NULL, e);
    int64_t least;

    r->busy = 0.0;
    share_blocks(r);
    least = r->ranks[0].n_blocks;
    rc = agree(r, rc, &least, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < r->n; i++)
        r->ranks[i].n_blocks = (int32_t)least;
    if ((planned || (rc = plan_blocks(r, e)) == 0) && (rc = take_host_memory(r, e)) == 0 &&
        (rc = each(r, take_blocks, NULL, e)) == 0) {
        link_ranks(r);
        share_choices(r);
        rc = each(r, choose, NULL, e);
    }
    return agree(r, rc, &least, e);
}

/* All processes meet. */
static int join(struct ranks *r, const struct opening *o, struct err *e)
{
    int rc = each_within(r, CLUSTER_START_SECONDS, join_one, r->cluster, e);

    if (rc < 0 && rank_threads_are_lost(r->threads))
        return err_set(e, rc,
                       "cluster: not all processes have come within %d s; each needs the same "
                       "cluster.world_size, cluster.rendezvous and number of devices, and a "
                       "cluster.rank of its own",
                       CLUSTER_START_SECONDS);
    if (rc == 0)
        rc = cluster_open(r->cluster, r->ranks[0].device.id, e);
    return rc < 0 ? rc : cluster_compare(r->cluster, o->options, o->model, &r->ranks[0].device, e);
}

int ranks_new(struct ranks **out, const struct model *model, const struct backend_options *options,
              struct err *e)
{
    struct ranks *r = calloc(1, sizeof(*r));
    const struct opening opening = {r, model, options};
    int rc = 0;

    must(options->n_devices > 0 && options->n_devices <= MAX_RANKS);
    if (!r)
        return err_set(e, -ENOMEM, "out of memory");
    r->n = options->n_devices;
    if (r->n > 1 || options->n_processes > 1) /* where there is another to wait for */
        rc = rank_threads_new(&r->threads, r->ranks, r->n, e);
    if (options->n_processes > 1)
        cluster_clear(options);
    if (rc == 0)
        rc = each(r, open_one, &opening, e);
    if (rc == 0 && options->n_processes > 1)
        rc = cluster_new(&r->cluster, options, e);
    if (rc == 0 && r->n > 1)
        rc = each(r, reach_peers, r, e);
    if (rc == 0 && r->cluster)
        rc = join(r, &opening, e);
    if (rc == 0 && !r->cluster)
        rc = take_masks(r, e);
    if (rc == 0)
        rc = take_all(r, e);
    if (rc < 0) {
        if (r->cluster)
            cluster_forget(r->cluster);
        ranks_free(r);
        return rc;
    }
    r->open = true;
    *out = r;
    return 0;
}

/* Tells the followers of the end, and waits for their answer: until then it may be on its way. */
static void dismiss(struct ranks *r)
{
    int64_t ignored = 0;
    struct err e;

    if (cluster_leads(r->cluster) &&
        cluster_order(r->cluster, &(struct order){.kind = ORDER_CLOSE}, &e) == 0)
        (void)cluster_least(r->cluster, &ignored, 1, CLUSTER_SECONDS, &e);
}

/* Under a thread that has stopped, or waits for another process, nothing can be freed. */
void ranks_free(struct ranks *r)
{
    if (!r || (r->threads && rank_threads_are_lost(r->threads)))
        return;
    if (r->cluster && r->open)
        dismiss(r);
    if ((r->cluster && cluster_has_parted(r->cluster)) || !rank_threads_free(r->threads))
        return;
    for (int i = 0; i < r->n; i++) {
        (void)cudaSetDevice(r->ranks[i].device.id);
        if (r->ranks[i].device.launch.stream)
            (void)cudaStreamSynchronize(r->ranks[i].device.launch.stream);
    }
    for (int i = 0; i < r->n && r->cluster; i++)
        rank_drop_graphs(&r->ranks[i]); /* NCCL waits for those that hold its work */
    cluster_free(r->cluster);
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

int ranks_run(struct ranks *r, rank_fn *run, const void *arg, struct err *e)
{
    return each_within(r, STEP_SECONDS, run, arg, e);
}

int ranks_choose(struct ranks *r, struct err *e)
{
    share_choices(r);
    return each(r, choose, NULL, e);
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

/* The leader of several processes. */
static int order(struct ranks *r, const struct order *o, struct err *e)
{
    return r->cluster && cluster_leads(r->cluster) ? cluster_order(r->cluster, o, e) : 0;
}

int ranks_sleep(struct ranks *r, bool keep_blocks, struct err *e)
{
    const struct order sleep = {.kind = ORDER_SLEEP, .keep_blocks = keep_blocks};
    const int rc = order(r, &sleep, e);

    return rc < 0 ? rc : each(r, sleep_one, &keep_blocks, e);
}

static int check_wake(struct rank *rank, const void *arg, struct err *e)
{
    (void)arg;
    return rank_check_wake(rank, e);
}

int ranks_wake(struct ranks *r, struct err *e)
{
    const bool keep_blocks = r->ranks[0].device.memory[DEVICE_KV] != NULL;
    int rc = order(r, &(struct order){.kind = ORDER_WAKE}, e);
    int64_t ignored = 0;

    if (rc < 0 || (rc = agree(r, each(r, check_wake, NULL, e), &ignored, e)) < 0)
        return rc;
    rc = take_all(r, e);
    if (rc < 0 && r->cluster && cluster_has_parted(r->cluster))
        return rc; /* to free memory would wait for the others */
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
    rank_info(rank, &((struct backend_info *)(uintptr_t)infos)[rank->local]);
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
    if (r->cluster) {
        out->masks = false; /* they would have to be told to all */
        out->n_processes = r->ranks[0].options.n_processes;
        out->idle_s = CLUSTER_BEAT_SECONDS;
    }
    for (int i = 0; i < r->n && r->n > 1; i++) {
        out->devices[i] = infos[i].devices[0];
        out->devices[i].total_bytes = infos[i].total_bytes;
        out->devices[i].free_bytes = infos[i].free_bytes;
        out->devices[i].exchange_share =
            r->busy > 0.0 && !r->cluster
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
    if (!r->threads)
        return rank_submit(&r->ranks[0], batch, slot, e);
    rc = order(r, &(struct order){.kind = ORDER_STEP, .batch = batch}, e);
    if (rc < 0)
        return rc;
    if (r->n_under_way++ == 0)
        r->busy_from = monotonic_seconds();
    return rank_threads_post(r->threads, submit_one, s, &s->number, e);
}

static int sample_one(struct rank *rank, const void *posted, struct err *e)
{
    const struct step *s = posted;

    return rank_sample(rank, s->slot, e);
}

/* The steps before have ended on all ranks: nobody reads their masks any more. */
int ranks_mask(struct ranks *r, const uint32_t *const *masks, int slot, struct err *e)
{
    struct step *s = &r->steps[slot];

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
    const int rc = each_within(r, STEP_SECONDS, poll_copies, NULL, e);

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
        int rc = r->n_copying > 0 ? order(r, &(struct order){.kind = ORDER_COPIES}, e) : 0;

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

/* With other processes, which may keep a rank's thread waiting, too. */
static int wait_in_cluster(const struct ranks *r, int slot, struct err *e)
{
    const double begin = monotonic_seconds();

    for (int looks = 0;; looks++) {
        int rc = rank_threads_poll(r->threads, r->steps[slot].number, e);

        if (rc == 1)
            rc = poll_devices(r, slot, e);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        if (looks < STEP_LOOKS)
            continue;
        (void)usleep(WAIT_US);
        if ((rc = cluster_check(r->cluster, monotonic_seconds() - begin, e)) < 0 ||
            (rc = cluster_nudge(r->cluster, e)) < 0)
            return rc;
    }
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

/* ---- followers */

bool ranks_follow(const struct ranks *r)
{
    return r->cluster && !cluster_leads(r->cluster);
}

int ranks_next_order(struct ranks *r, struct order *out, struct err *e)
{
    return cluster_next(r->cluster, out, e);
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
    rc = cluster_order(r->cluster, &beat, e);
    return rc < 0 ? rc : ranks_answer(r, &beat, e);
}
