/* cluster.h - the processes whose ranks share a model, each on its host: how they meet, and what
 * the first of them, the leader, tells the others, its followers. All of it goes through NCCL.
 *
 * Ranks have a communicator of all ranks, for steps (exchange.h); a second one, with one rank of
 * each process, carries orders. Orders use the stream of local rank 0, behind the steps that were
 * enqueued before. So NCCL's work on a device is one sequence, the same in all processes, and none
 * of it waits for what is enqueued later, not even where CUDA waits for the whole device, as it may
 * when it takes memory for a graph or loads a kernel.
 *
 * The price: a follower learns of a step only when the one before has ended, and its device is idle
 * until the follower has launched that step; and while copies of blocks are under way, the leader
 * has a step's tokens only when the next one has ended. A follower waits for an order in a kernel
 * of NCCL's, which keeps one multiprocessor busy.
 *
 * The thread that runs the backend calls these functions, all but cluster_join. They fail with
 * -EIO where a process has ended or cannot be reached, and with -ETIMEDOUT where it is silent for
 * CLUSTER_SECONDS. What waits for that process never ends then: only cluster_free may follow, and
 * frees nothing. */
#ifndef NVLLM_CUDA_CLUSTER_H
#define NVLLM_CUDA_CLUSTER_H

#include <cuda_runtime_api.h>

#include "cuda/device.h"
#include "cuda/exchange.h"
#include "engine/backend.h"

enum {
    CLUSTER_SECONDS = 12,        /* for an order, for its answer, or for a step to end */
    CLUSTER_BEAT_SECONDS = 2,    /* between orders of an idle leader */
    CLUSTER_START_SECONDS = 300, /* until all processes have come */
    CLUSTER_LOAD_SECONDS = 900,  /* until all have read their weights */
};

struct cluster;

/* What followers are told to do, as the leader does it. */
enum order_kind {
    ORDER_STEP,   /* to run a batch */
    ORDER_COPIES, /* to count the copies that have ended on all */
    ORDER_SLEEP,
    ORDER_WAKE,
    ORDER_BEAT, /* only to answer */
    ORDER_CLOSE,
};

struct order {
    enum order_kind kind;
    bool keep_blocks;          /* of ORDER_SLEEP */
    const struct batch *batch; /* of ORDER_STEP */
};

/* The leader, before it opens its devices: removes a rendezvous file that an earlier start may have
 * left. */
void cluster_clear(const struct backend_options *o);

/* Loads NCCL and gets the id through which the ranks find each other: a follower waits for it. */
int cluster_new(struct cluster **out, const struct backend_options *o, struct err *e);
void cluster_free(struct cluster *c); /* takes NULL */
/* The leader, when it waits for no others any more: removes its rendezvous file. */
void cluster_forget(struct cluster *c);

/* Each rank's thread, its device chosen: number `local` of this process joins as number `rank` of
 * all n. Returns once all have come, or never; the caller waits CLUSTER_START_SECONDS. */
int cluster_join(struct cluster *c, struct exchange *out, int local, int rank, int n,
                 cudaStream_t stream, struct err *e);
/* After all have: opens what orders go through, on the device and the stream of local rank 0. */
int cluster_open(struct cluster *c, int device, cudaStream_t stream, struct err *e);

bool cluster_leads(const struct cluster *c);

/* Called in a loop that waits for other processes since `begin`; `looks` counts the iterations. The
 * first many return at once; later ones sleep, advance the options' beat, and fail when a process
 * is known to have ended or after `seconds`, which are at least CLUSTER_SECONDS. */
int cluster_pause(struct cluster *c, int looks, double begin, double seconds, struct err *e);
/* Whether a call has failed because of another process. */
bool cluster_has_parted(const struct cluster *c);

/* Called by all processes: each value becomes the least of theirs. n at most CLUSTER_VALUES. */
enum { CLUSTER_VALUES = 32 };
int cluster_least(struct cluster *c, int64_t *values, int n, double seconds, struct err *e);

/* Called by all processes: fails in all of them where an option or the model differs, and says
 * which. */
int cluster_compare(struct cluster *c, const struct backend_options *o, const struct model *m,
                    const struct device *d, struct err *e);

/* The leader: tells the followers. The batch is copied, and may be on its way when this returns. */
int cluster_order(struct cluster *c, const struct order *order, struct err *e);
/* Whether an idle leader's next ORDER_BEAT is due. */
bool cluster_beat_is_due(const struct cluster *c);

/* A follower: waits for the next order. Its batch stays until the next call but one, which comes
 * when its step has ended. */
int cluster_next(struct cluster *c, struct order *out, struct err *e);

#endif
