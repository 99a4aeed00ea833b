/* ranks.c - see ranks.h. */
#include "cuda/ranks_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

int ranks_each_within(struct ranks *r, double seconds, rank_fn *run, const void *arg, struct err *e)
{
    return r->threads ? rank_threads_run(r->threads, seconds, run, arg, e)
                      : run(&r->ranks[0], arg, e);
}

/* The same of what may take long: reading weights. */
static int each(struct ranks *r, rank_fn *run, const void *arg, struct err *e)
{
    return ranks_each_within(r, INFINITY, run, arg, e);
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
    return cluster_join((struct cluster *)(uintptr_t)cluster, &rank->forward.peers.exchange,
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
            f->peers.embedding.tables[f->peers.me] = r->ranks[me].weights.embed.data;
            continue;
        }
        if (share_a_device(r))
            r->ranks[me].device.launch.chained = false;
        f->peers.barrier.n_ranks = r->n;
        f->peers.barrier.me = me;
        f->sampler.scans = r->ranks[0].forward.sampler.scans;
        f->sampler.masks = r->masks;
        for (int i = 0; i < r->n; i++) {
            const struct rank *of = &r->ranks[i];
            const struct peers *theirs = &of->forward.peers;
            const struct sampler_memory *m = &of->forward.sampler;

            f->peers.embedding.tables[i] = of->weights.embed.data;
            memcpy(f->peers.parts[i], theirs->parts[i], sizeof(f->peers.parts[i]));
            memcpy(f->peers.inbox[i], theirs->inbox[i], sizeof(f->peers.inbox[i]));
            f->peers.normed[i] = theirs->normed[i];
            if (i != me) /* of two */
                f->resident.twin_sums = of->forward.resident.sums;
            f->peers.barrier.arrived[i] = theirs->barrier.arrived[i];
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

/* What all processes have come to, for which each waits so long: an error of one is one of all, and
 * otherwise the least value is everybody's. */
static int agree(struct ranks *r, int rc, int64_t *value, double seconds, struct err *e)
{
    int64_t least = rc < 0 ? rc : *value;
    struct err why;
    int agreed;

    if (!r->cluster)
        return rc;
    agreed = cluster_least(r->cluster, &least, 1, seconds, &why);
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

/* All choose anew, which forgets what was loaded. */
static int choose_all(struct ranks *r, struct err *e)
{
    share_choices(r);
    memset(r->loaded, 0, (size_t)gemm_rows(r->ranks[0].limits.max_tokens) + 1);
    return each(r, choose, NULL, e);
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
        rc = rank_plan_staging(&r->ranks[i], e);
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
    rc = agree(r, rc, &least, CLUSTER_LOAD_SECONDS, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < r->n; i++)
        r->ranks[i].n_blocks = (int32_t)least;
    if ((planned || (rc = plan_blocks(r, e)) == 0) && (rc = take_host_memory(r, e)) == 0 &&
        (rc = each(r, take_blocks, NULL, e)) == 0) {
        link_ranks(r);
        rc = choose_all(r, e);
    }
    return agree(r, rc, &least, CLUSTER_LOAD_SECONDS, e);
}

/* All processes meet. */
static int join(struct ranks *r, const struct opening *o, struct err *e)
{
    int rc = ranks_each_within(r, CLUSTER_START_SECONDS, join_one, r->cluster, e);

    if (rc < 0 && rank_threads_are_lost(r->threads))
        return err_set(e, rc,
                       "cluster: not all processes have come within %d s; each needs the same "
                       "cluster.world_size, cluster.rendezvous and number of devices, and a "
                       "cluster.rank of its own",
                       CLUSTER_START_SECONDS);
    if (rc == 0)
        rc = cluster_open(r->cluster, r->ranks[0].device.id, r->ranks[0].device.launch.stream, e);
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
    if (rc == 0 && !(r->loaded = calloc((size_t)gemm_rows(r->ranks[0].limits.max_tokens) + 1,
                                        sizeof(*r->loaded))))
        rc = err_set(e, -ENOMEM, "out of memory");
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

    if (cluster_leads(r->cluster) && ranks_order(r, &(struct order){.kind = ORDER_CLOSE}, &e) == 0)
        (void)cluster_least(r->cluster, &ignored, 1, CLUSTER_SECONDS, &e);
}

/* Under a thread that has stopped, or waits for another process, nothing can be freed. */
void ranks_free(struct ranks *r)
{
    if (!r || (r->threads && rank_threads_are_lost(r->threads)))
        return;
    if (r->cluster && r->open && !cluster_has_parted(r->cluster))
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
    free(r->loaded);
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
    return ranks_each_within(r, STEP_SECONDS, run, arg, e);
}

int ranks_choose(struct ranks *r, struct err *e)
{
    return choose_all(r, e);
}

static int load_products(struct rank *rank, const void *n_rows, struct err *e)
{
    return rank_load_products(rank, *(const int *)n_rows, e);
}

/* Behind this all have loaded what a step launches; before it all have enqueued the steps under
 * way, so these end, however ranks wait for each other: see kernels_load(). */
int ranks_load_products(struct ranks *r, int n_rows, struct err *e)
{
    bool *loaded = &r->loaded[gemm_rows(n_rows)];
    const int rc = n_rows == 0 || *loaded ? 0 : ranks_run(r, load_products, &n_rows, e);

    *loaded = rc == 0;
    return rc;
}

static int sleep_one(struct rank *rank, const void *keep_blocks, struct err *e)
{
    return rank_sleep(rank, *(const bool *)keep_blocks, e);
}

int ranks_sleep(struct ranks *r, bool keep_blocks, struct err *e)
{
    const struct order sleep = {.kind = ORDER_SLEEP, .keep_blocks = keep_blocks};
    const int rc = ranks_order(r, &sleep, e);

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
    int rc = ranks_order(r, &(struct order){.kind = ORDER_WAKE}, e);
    int64_t ignored = 0;

    if (rc == 0)
        rc = agree(r, each(r, check_wake, NULL, e), &ignored, CLUSTER_SECONDS, e);
    if (rc < 0)
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

    (void)ranks_each_within(r, STEP_SECONDS, info_of, r->infos, &ignored);
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
                ? fmin((double)*r->ranks[i].forward.peers.barrier.host_ns * 1e-9 / r->busy, 1.0)
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
