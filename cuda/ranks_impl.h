/* ranks_impl.h - what the files of ranks.h share; private to them. */
#ifndef NVLLM_CUDA_RANKS_IMPL_H
#define NVLLM_CUDA_RANKS_IMPL_H

#include "cuda/ranks.h"

/* A step under way: what its job on each rank's thread is told. */
struct posted_step {
    const struct batch *batch;
    int slot;
    uint32_t number; /* of rank_threads_post(); unused without threads */
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
    bool *loaded;             /* [by gemm_rows()] products of so many rows, on all ranks */
    struct backend_info infos[MAX_RANKS];
    struct posted_step steps[SAMPLER_SLOTS]; /* by slot */

    /* with threads */
    double busy;      /* seconds with steps under way since the memory was taken */
    double busy_from; /* since when steps are under way now */
    int n_under_way;
};

/* Runs a function on all ranks at a time and waits for it, for so many seconds. Returns the first
 * error. */
int ranks_each_within(struct ranks *r, double seconds, rank_fn *run, const void *arg,
                      struct err *e);

/* A leader tells its followers; without other processes it does nothing. */
int ranks_order(struct ranks *r, const struct order *o, struct err *e);

#endif
