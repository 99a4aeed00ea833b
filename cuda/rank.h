/* rank.h - one device and its part of the model: weights, KV pool, activations, sampler, graphs and
 * stream, and the steps that run there.
 *
 * It runs the steps that it is given, by choices that are made once, when it opens. One thread at a
 * time; ranks.h says which. */
#ifndef NVLLM_CUDA_RANK_H
#define NVLLM_CUDA_RANK_H

#include "cuda/algo_file.h"
#include "cuda/device.h"
#include "cuda/forward.h"
#include "cuda/host_tier.h"
#include "cuda/step_metadata.h"
#include "engine/backend.h"

/* What belongs to one step under way. Its results lie in host memory that the device writes: see
 * struct sampler_memory. */
struct rank_slot {
    char *pinned;              /* metadata on its way to the device */
    cudaEvent_t done;          /* after its results */
    const struct batch *batch; /* valid until it has been waited for */
    struct step_view view;     /* of the device's copy */
    uint64_t step;
    int32_t n_rows, n_sums;
    float *sums;      /* [max_seqs, hidden_dim] host memory that the device writes; of rank 0 */
    bool copies_only; /* no sequence has rows in it */
    bool offloaded;   /* one of its sequences is */
};

/* Steps without prompts as captured graphs of a few sizes; a batch runs in the smallest that holds
 * its rows. Those of steps with masks end at the logits. */
struct graphs {
    cudaGraphExec_t (*by_size)[2][2]; /* [size][with drafts][with masks] NULL: not captured */
    int n_captures;
    double longest; /* seconds that a capture took */
    uint64_t bytes; /* that captures have taken */
};

struct rank {
    const struct model *model;
    struct shard shard;
    int local, n_local; /* among the ranks of this process */
    struct backend_options options;
    struct model_config config; /* of this rank: shard_config() */
    struct device device;
    struct weights weights;
    struct gemm *gemm;
    struct forward forward;
    struct graphs graphs;
    struct step_limits limits;
    struct rank_slot slots[SAMPLER_SLOTS];
    char *step_memory; /* the device's: a step's metadata is copied there */
    int32_t *history;  /* [max_seq_len] tokens of one sequence being loaded */
    int32_t n_blocks;
    uint64_t given_back; /* bytes that waking takes again, but for graphs; 0: awake */
    const struct host_memory *host_memory; /* of all ranks; NULL: there is none */
    struct host_tier *host;
    uint64_t block_bytes;
    char key[ALGO_KEY];        /* of measurements: device, software, shape of the model */
    struct algo_records known; /* measured at earlier starts; unchanged from the first step on */
    uint8_t *whole_rows; /* [max_seqs] sampler states that need all logits of a row in one place;
                          * NULL where they are */
    uint32_t last_tag;   /* of the resident kernel's exchanges */
};

/* Whether sequences may be in host memory: where that has more blocks than the device. */
static inline bool rank_offloads(const struct rank *rank)
{
    return rank->forward.staging.n_buffers == 2;
}

/* What the kernels ask of matrices: rows without gaps, 256-byte alignment. */
extern const struct weights_layout cuda_weights_layout;

/* Takes the device's memory for weights and fills it; weights_deinit() afterwards leaves that
 * memory to the device. */
int cuda_weights_load(struct weights *w, struct device *d, const struct model *m, struct shard s,
                      const struct backend_options *o, struct err *e);

/* Opens number `local` of the options' devices as one of all ranks. The rank is all zeros before;
 * the model outlives it. rank_deinit() waits for steps under way; it is due after a failure too. */
int rank_open(struct rank *rank, const struct model *model, struct shard shard, int local,
              const struct backend_options *options, struct err *e);
void rank_deinit(struct rank *rank);

/* The first of four calls that get it ready, after opening and when it wakes. Loads the weights and
 * takes what lies beside them; the first time it plans n_blocks by the memory that is left. */
int rank_take_memory(struct rank *rank, struct err *e);
/* The second, after opening alone: n_blocks is the same on all ranks now. Plans the staging of
 * layers that prefill cannot read in the pool: its memory comes out of the blocks', so n_blocks may
 * become less, on all ranks alike. */
int rank_plan_staging(struct rank *rank, struct err *e);
/* The third: takes the blocks. */
int rank_take_blocks(struct rank *rank, struct err *e);
/* The fourth, once the ranks are linked: chooses by what is known, and is ready. It may be called
 * once more before the first step. */
int rank_choose(struct rank *rank, struct err *e);
/* Gives back what was taken, or all but the blocks. */
void rank_give_back(struct rank *rank, bool keep_blocks);

/* Gives that back in order to sleep; no step is under way. */
int rank_sleep(struct rank *rank, bool keep_blocks, struct err *e);
/* -ENOMEM: less memory is free than what it gave back. */
int rank_check_wake(struct rank *rank, struct err *e);

/* Computes each product once with so many rows, which loads cuBLASLt's kernels for it: 0.1 s the
 * first time. Only between steps: it writes where they do. */
int rank_load_products(struct rank *rank, int n_rows, struct err *e);

/* Enqueues a step; results go to slot number `slot` and hold until that is used again: rank 0 has
 * them. One with masks samples only with rank_sample(), once these are in the sampler's memory: a
 * kernel that waited for them would keep the driver from all that waits for the device.
 * rank_wait() waits for the device's part alone, on any thread. */
int rank_submit(struct rank *rank, const struct batch *batch, int slot, struct err *e);
int rank_sample(struct rank *rank, int slot, struct err *e);
int rank_wait(const struct rank *rank, int slot, struct err *e);
int rank_poll(const struct rank *rank, int slot, struct err *e); /* at once: 1, or 0: not yet */
void rank_result(const struct rank *rank, int slot, struct step_result *out); /* without copies */

/* Tags for a run of the resident kernel; where tags start again, clears the memory of exchanges
 * first. All ranks call it for the same runs. */
int rank_take_tags(struct rank *rank, uint32_t *tag, struct err *e);

/* The ledger of the device's memory; what it has besides what was taken here is "other". */
void rank_info(const struct rank *rank, struct backend_info *out);

/* Rows of the graph in which n rows run. */
int rank_graph_size(int n);
/* Captures the graph of a size. */
int rank_prepare_graph(struct rank *rank, int size, bool drafts, bool masks, struct err *e);
void rank_drop_graphs(struct rank *rank); /* forgets all */

/* A look inside an open backend, for tests that are linked with it. */
const struct rank *cuda_backend_rank(const struct backend *b);

#endif
