/* cluster.h - the processes whose ranks share a model, each on its host: how they meet, and what
 * the first of them, the leader, tells the others, its followers. All of it goes through NCCL.
 *
 * Ranks have a communicator of all ranks, for steps (exchange.h); a second one, with one rank of
 * each process, carries orders. Orders use the stream of local rank 0, behind the steps that were
 * enqueued before. So all that NCCL does on a device is one sequence, the same in all processes,
 * and nothing waits for what comes behind it, even where CUDA waits for a whole device: to take
 * memory for a graph, to load a kernel.
 *
 * The price: a follower learns of a step only when the one before has ended, and its device is idle
 * until it has launched it; and while copies of blocks are under way, the leader has a step's
 * tokens only when the next one has ended. A follower waits for an order in a kernel of NCCL's,
 * which keeps one multiprocessor busy.
 *
 * The thread that runs the backend, but for cluster_join. Where a process has ended or cannot be
 * reached, calls return -EIO or, where it is silent for CLUSTER_SECONDS, -ETIMEDOUT; nothing that
 * waits for it ever ends then, and only cluster_free may follow, which frees nothing. */
#ifndef NVLLM_CUDA_CLUSTER_H
#define NVLLM_CUDA_CLUSTER_H

#include <cuda_runtime_api.h>

#include "cuda/device.h"
#include "cuda/exchange.h"
#include "engine/backend.h"

enum {
    CLUSTER_SECONDS = 12,        /* without an answer to an order, or an order; or of a step */
    CLUSTER_BEAT_SECONDS = 2,    /* between orders of an idle leader */
    CLUSTER_START_SECONDS = 300, /* until all processes have come */
    CLUSTER_LOAD_SECONDS = 900,  /* until all have read their weights */
};

struct cluster;

/* What followers do as the leader does it. */
enum order_kind {
    ORDER_STEP,   /* a batch */
    ORDER_COPIES, /* says which copies have ended */
    ORDER_SLEEP,
    ORDER_WAKE,
    ORDER_BEAT, /* answers */
    ORDER_CLOSE,
};

struct order {
    enum order_kind kind;
    bool keep_blocks;          /* of ORDER_SLEEP */
    const struct batch *batch; /* of ORDER_STEP */
};

/* The leader, before it opens its devices: removes a file that an earlier start may have left. */
void cluster_clear(const struct backend_options *o);

/* Loads NCCL and gets the id through which the ranks find each other: a follower waits for it. */
int cluster_new(struct cluster **out, const struct backend_options *o, struct err *e);
void cluster_free(struct cluster *c); /* takes NULL */
/* No others are waited for any more: the leader's file goes. */
void cluster_forget(struct cluster *c);

/* Each rank's thread, its device chosen: number `local` of this process joins as number `rank` of
 * all n. Returns once all have come, or never; the caller waits CLUSTER_START_SECONDS. */
int cluster_join(struct cluster *c, struct exchange *out, int local, int rank, int n,
                 cudaStream_t stream, struct err *e);
/* After all have: opens what orders go through, on the device and the stream of local rank 0. */
int cluster_open(struct cluster *c, int device, cudaStream_t stream, struct err *e);

bool cluster_leads(const struct cluster *c);

/* Between two looks at what other processes may keep waiting, by a caller that waits since `begin`
 * and has looked so many times before: it sleeps once these are many. Fails where a process is
 * known to have ended, and where the caller has waited for longer than `seconds`. Whoever looks is
 * alive: it counts the options' beat. */
int cluster_pause(struct cluster *c, int looks, double begin, double seconds, struct err *e);
/* Such a failure has been told. */
bool cluster_has_parted(const struct cluster *c);

/* All processes: each value becomes the least that one of them has. n at most CLUSTER_VALUES. */
enum { CLUSTER_VALUES = 32 };
int cluster_least(struct cluster *c, int64_t *values, int n, double seconds, struct err *e);

/* All processes: fails on all of them with what differs, options or model. */
int cluster_compare(struct cluster *c, const struct backend_options *o, const struct model *m,
                    const struct device *d, struct err *e);

/* The leader: tells the followers. The batch is copied; it may still be on its way. */
int cluster_order(struct cluster *c, const struct order *order, struct err *e);
/* Whether an idle leader's next one is due. */
bool cluster_beat_is_due(const struct cluster *c);

/* A follower: waits for the next order. Its batch stays until the next call but one, which comes
 * when its step has ended. */
int cluster_next(struct cluster *c, struct order *out, struct err *e);

#endif
