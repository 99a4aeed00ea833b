/* kernels.h - launchers of the CUDA kernels: one op each, enqueued on a stream.
 *
 * bf16 arrays are uint16_t here, so that C can call. Every launcher returns what the launch
 * returned; wrong shapes are the caller's bug. Kernels launched `chained` start while the preceding
 * kernel ends (programmatic dependent launch) and wait for it themselves. */
#ifndef NVLLM_CUDA_KERNELS_KERNELS_H
#define NVLLM_CUDA_KERNELS_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where and how a kernel is launched. */
struct launch {
    cudaStream_t stream;
    bool chained; /* the device can: compute capability 9.0 and up */
    int n_sms;
    int max_shared; /* bytes of shared memory of a block, at most */
};

/* Loads all kernels to the current device; else each is loaded by its first launch. Loading may
 * wait for all that runs on the device: where that waits for another rank, which may not be
 * launched meanwhile, neither would end. */
cudaError_t kernels_load(void);

/* The KV pool: offsets into [n_blocks][n_layers][2][n_kv_heads][block_len][head_dim], in units of
 * 16 bits; for the rows of fp8 see kv_rows.cuh. */
struct kv_pool {
    uint16_t *base;
    int64_t block_stride;
    int64_t layer_stride;
    int64_t v_offset; /* from a block's K to its V; n_kv_heads * block_len * head_dim, or of fp8
                       * n_kv_heads * block_len * (head_dim + 1) / 2 */
    int block_shift;  /* block_len = 1 << block_shift */
    int n_kv_heads;
    int head_dim;        /* 64 or 128 */
    int n_blocks;        /* of the device: ids from n_blocks on are blocks of the host tier */
    int64_t host_stride; /* from a block of the host tier to the next one */
    int64_t host_offset; /* such a block is at id * host_stride + host_offset */
    bool fp8;            /* E4M3, not bf16 */
};

/* A split-KV work item: one split of a decoding sequence's keys, or consecutive ones, which yield
 * the bits of an item each. */
struct attn_item {
    int32_t seq;             /* also its row, or the first of n_rows */
    int32_t begin, end;      /* multiples of ATTN_UNIT except at the sequence's end */
    uint8_t split, n_splits; /* the first split is number split of n_splits */
    uint16_t units;  /* of a split: so many times ATTN_UNIT keys, fewer in the sequence's last */
    int32_t partial; /* where the sequence's partial results begin, in items */
    int32_t table;   /* where its block table begins in tables */
    int32_t kv_len;  /* key kv_len - 1 is written by this step; of several rows the last one's */
    uint16_t n_rows; /* 1; with drafts up to attn_rows(), each with one key more than that before */
};

/* One tile of query rows of one prefill chunk. */
struct attn_tile {
    int32_t row0, n_rows; /* of the step; at most ATTN_TILE */
    int32_t position;     /* of row0 in its sequence */
    int32_t table;        /* where its block table begins in tables */
    int32_t kv_len;
};

enum {
    ATTN_TILE = 128,           /* query rows of a tile */
    ATTN_GROUP = 8,            /* query heads that one pass over the keys takes */
    ATTN_UNIT = 16,            /* keys that are not divided between blocks */
    ATTN_SPLIT_ALIGN = 64,     /* keys that one block takes at a time */
    ATTN_MAX_SPLITS = 128,     /* of one sequence */
    ATTN_BLOCKS_PER_SM = 3,    /* of attn_decode() that a multiprocessor has room for, */
    ATTN_BLOCKS_PER_SM90 = 2,  /* and of attn_decode_sm90() */
    ROPE_LANES = 4,            /* threads that rope_store() has for a head */
    SAMPLER_MAX_SPLITS = 64,   /* parts of one row */
    SAMPLER_SLOTS = 3,         /* of results: of two steps in flight and of the one before */
    SKINNY_MAX_ROWS = 16,      /* for which it may be the fastest product of bf16 weights */
    SKINNY_NORM_BYTES = 16384, /* 2 * m * k at most where the product norms its input */
};

enum { MAX_RANKS = 8 };

/* How long a device has waited for others and exchanged parts with them; in its memory. */
struct peer_clock {
    uint64_t begin, ns;
};

/* Where the ranks of a model wait for each other: a barrier in memory that all can write. */
enum peer_mark {
    PEER_MEET,     /* the clock counts the wait, */
    PEER_BEGIN,    /* or all from the beginning of this one */
    PEER_END,      /* to the end of this one; */
    PEER_STEP_END, /* or the wait, and the host is told what it has counted */
};
struct peer_barrier {
    int n_ranks, me;
    enum peer_mark mark;
    struct peer_clock *clock;
    uint64_t *host_ns;            /* mapped host memory */
    uint32_t *arrived[MAX_RANKS]; /* [MAX_RANKS] in each rank's memory: [i] is the last barrier that
                                   * rank i has come to */
    uint32_t *last;               /* own: the last barrier; all of these begin at 0 */
};

/* What ranks have written before it, all see after it. Where a rank does not come to it within
 * PEER_SECONDS the kernel traps, which fails its device. */
enum { PEER_SECONDS = 10 };
cudaError_t peer_barrier(const struct launch *l, const struct peer_barrier *b);

/* Counts of a step that kernels of a captured graph must read from memory. */
struct step_counts {
    int32_t n_tokens, n_seqs, n_decodes, n_rows, n_items, n_tiles;
    int32_t slot; /* of SAMPLER_SLOTS: where the host reads the results */
    int32_t n_updates;
    uint32_t tag; /* of the resident kernel's first layer */
};

struct sampler_row {
    int32_t row, state;
    uint32_t counter;
    int32_t flags; /* 2 * (mask + 1), mask -1: none; plus 1 where stop ids are banned */
};

/* A sampler state as it lies on the device; its bias has an array of its own. */
struct sampler_state {
    float temperature, top_p, min_p, repetition, presence, frequency;
    int32_t top_k, n_logprobs, n_bias, n_stop_ids, history;
    uint32_t seed_low, seed_high;
    int32_t stop_ids[SAMPLING_MAX_STOP_IDS];
};

struct sampler_set {
    int32_t state;
    int32_t bias_first; /* in the step's array of bias entries */
    struct sampler_state to;
};

/* A step's metadata on the device. */
struct step_view {
    const struct step_counts *counts;
    const int32_t *tokens, *positions, *slots;
    const int32_t *kv_len, *table_start; /* table_start[i]: of sequence i in tables */
    const int32_t *tables;
    const struct attn_item *items;
    const struct attn_tile *tiles;
    const struct sampler_row *rows;
    const struct batch_sum *sums;
    const struct sampler_set *sets;
    const struct logit_bias *bias;
};

/* Copies a multiple of 16 bytes from pinned host memory, without the device's copy engines. */
cudaError_t step_copy(const struct launch *l, void *to, const void *from, size_t bytes);

/* The embedding, by rows that its ranks have: row i is row i % rows_per_rank of one of them. */
struct embedding {
    const uint16_t *tables[MAX_RANKS]; /* [rows_per_rank, dim]; NULL: out of reach, taken as 0 */
    int rows_per_rank, vocab_size, dim;
};

/* residual[i] = embedding of tokens[i]; ~r names what row r sampled in the step before. */
cudaError_t embed(const struct launch *l, float *residual, const struct embedding *table,
                  const struct step_view *v, const int32_t *sampled, int n_tokens);

/* Activations as e4m3, divided by their scales, so that 448 is the largest of what has one. Scales
 * are of whole rows, [m], or of groups of 128 of a row, [k / 128, m], as cuBLASLt reads them. */
struct e4m3_rows {
    uint8_t *x; /* [m, k] */
    float *scales;
    int m;
    bool groups;
};

/* y[i] = x[i] / rms(x[i]) * w, of rows first_row .. first_row + n_rows - 1. */
enum { NORM_MAX_PARTS = MAX_RANKS, NORM_PUSHED_ROWS = 128 };
struct norm {
    uint16_t *y[MAX_RANKS]; /* [.., dim] written n_y times: one may be on each rank */
    int n_y;                /* 0 counts as 1 */
    struct e4m3_rows e4m3;  /* x not NULL: what quantize() makes of y, in its place */
    float *x;               /* [.., dim] */
    const uint16_t *w;
    int first_row, n_rows, dim;
    float eps;
    /* NULL, or: row i of y is of row rows[i].row of x, for i < counts->n_rows; where that is not
     * one of owned_rows rows from first_row on, it is skipped. n_rows: at least counts->n_rows */
    const struct step_view *gather;
    int owned_rows;
    /* x[i] += parts[0][i], then parts[1][i], …: of a product over parts of k, or of each rank */
    const void *parts[NORM_MAX_PARTS]; /* float, or */
    bool parts_bf16;
    int n_parts; /* 0, or 1, 2, 4 or 8 where dim is at most 16384 */
    /* NULL, or parts[me] alone is read: each rank writes its own to the inboxes of the others and
     * waits for theirs in its own, for PEER_SECONDS. All take the same rows, NORM_PUSHED_ROWS at
     * most. An inbox is [n_parts, NORM_PUSHED_ROWS, dim], begins as bytes of 0xff and is left so;
     * norms behind one another have two by turns. */
    float *inbox[MAX_RANKS];
    int me;
    struct peer_clock *clock; /* with inboxes; NULL: not counted */
};
cudaError_t rms_norm(const struct launch *l, const struct norm *n);

/* y[i] = sum of rows sums[i].row .. of x [.., dim], from the first on. y is on the device or
 * mapped.
 */
cudaError_t sum_rows(const struct launch *l, float *y, const uint16_t *x,
                     const struct batch_sum *sums, int n_sums, int dim);

/* y[i] = x[rows[i].row] of counts->n_rows rows, n_rows at most; y is not x. */
cudaError_t gather_rows(const struct launch *l, uint16_t *y, const uint16_t *x,
                        const struct step_view *v, int n_rows, int dim);

/* cos and sin of position * inv_freq[i], times a scale: [max_seq_len, n_pairs] pairs. inv_freq lies
 * in host memory. */
enum { ROPE_MAX_PAIRS = 64 };
cudaError_t rope_table(const struct launch *l, float *table, int max_seq_len, const float *inv_freq,
                       int n_pairs, float scale);

/* What is done to each head of q and k before attention. */
struct rope {
    const uint16_t *q_norm, *k_norm; /* [head_dim] of its RMSNorm, or both NULL */
    const float *table;              /* of rope_table() */
    float eps;
};

/* In qkv [.., (n_heads + 2 n_kv_heads) * head_dim], rows first .. first + n_tokens - 1: norms and
 * rotates q and k; q stays there, k and v go to the pool. with_q: else q is left as it is. */
cudaError_t rope_store(const struct launch *l, uint16_t *qkv, const struct rope *r,
                       const struct kv_pool *kv, int layer, const struct step_view *v, int first,
                       int n_tokens, int n_heads, bool with_q);

/* One layer of the blocks [n] of a table, wherever they are, to `to` one behind the other, as
 * [n][2][n_kv_heads][block_len][head_dim] in bf16; by so many thread blocks. From host memory four
 * are enough (an H200: 51 GB/s of PCIe's 55). */
cudaError_t fetch_blocks(const struct launch *l, uint16_t *to, const struct kv_pool *from,
                         int layer, const int32_t *table, int n, int n_thread_blocks);

/* y[i, j] = silu(x[i, j]) * x[i, dim + j]; x [n_tokens, 2 * dim]. */
cudaError_t silu_mul(const struct launch *l, uint16_t *y, const uint16_t *x, int n_tokens, int dim);

struct attn {
    uint16_t *out;     /* [n_tokens, n_heads * head_dim] */
    const uint16_t *q; /* row stride q_stride elements */
    int64_t q_stride;
    int n_heads, layer;
    const struct kv_pool *kv;
    bool drafts; /* the keys of this step are in the pool: nothing is stored, items may have rows */
};

/* Rows of drafts that one pass over the keys takes. */
static inline int attn_rows(int n_heads, int n_kv_heads)
{
    const int group = n_heads / n_kv_heads;

    return group < ATTN_GROUP ? ATTN_GROUP / group : 1;
}

/* Of decodes. Row i of a->q is q, k and v of sequence i as the product gave them; norm, rotation
 * and storing are done here. Keys before kv_len - 1 must be of earlier steps, with a copy or
 * another full wait in between. partial: [max partials, n_kv_heads, head groups, ATTN_GROUP,
 * head_dim + 2] floats; counters: zeroed once, [max seqs, n_kv_heads * head groups]. n_blocks: of
 * each KV head and head group; they take the items by turns, whatever their numbers. */
cudaError_t attn_decode(const struct launch *l, const struct attn *a, const struct rope *r,
                        const struct step_view *v, float *partial, int32_t *counters, int n_blocks);

/* The same over keys of bf16 on compute capability 9.0, by as many of the n_blocks as fit the
 * device; not usable where it was not compiled for it. */
cudaError_t attn_decode_sm90_init(bool *usable); /* once a device, before the first */
cudaError_t attn_decode_sm90(const struct launch *l, const struct attn *a, const struct rope *r,
                             const struct step_view *v, float *partial, int32_t *counters,
                             int n_blocks);

/* The most that n_tiles * n_heads * n_splits may be in a launch with n_splits > 1. */
enum { ATTN_SPLIT_BLOCKS = 512, ATTN_PREFILL_COUNTERS = ATTN_SPLIT_BLOCKS + 1 };
static inline size_t attn_prefill_partial_bytes(int head_dim)
{
    return (size_t)ATTN_SPLIT_BLOCKS * ATTN_TILE * ((size_t)head_dim + 2) * sizeof(float);
}
struct attn_prefill {
    float *partial;    /* attn_prefill_partial_bytes() */
    int32_t *counters; /* [ATTN_PREFILL_COUNTERS] zeroed once */
    int n_tiles, n_splits;
    int max_kv_len; /* of the sequences with tiles */
};
/* Its keys are bf16. */
cudaError_t attn_prefill(const struct launch *l, const struct attn *a, const struct step_view *v,
                         const struct attn_prefill *t);
cudaError_t attn_prefill_init(void); /* once a device: its shared memory is over the default */

/* The same on compute capability 9.0. It reads the pool and q through tensor maps, made once; not
 * usable where the kernel was not compiled for the device. n_blocks: of the pool; n_rows: of q. */
struct attn_maps {
    bool usable;
    uint64_t keys[16], queries[16]; /* CUtensorMap */
};
cudaError_t attn_maps_init(struct attn_maps *out, const struct kv_pool *kv, int64_t n_blocks,
                           const uint16_t *q, int64_t q_stride, int n_rows);
cudaError_t attn_prefill_sm90(const struct launch *l, const struct attn *a,
                              const struct attn_maps *maps, const struct step_view *v,
                              const struct attn_prefill *t); /* a->q is the maps' */
/* How many splits of the keys fill the machine, for tiles times heads. */
int attn_prefill_splits(const struct launch *l, int n_work, int max_kv_len);

/* How the elements of a matrix w [n, k] become weights; struct matrix says how they lie. */
enum element { ELEMENT_BF16 /* as they are */, ELEMENT_E4M3 /* e4m3 */, ELEMENT_INT4, N_ELEMENTS };
struct quant {
    enum element element;
    const void *scales; /* [n / scale_rows, k / scale_cols] both rounded up: float of ELEMENT_E4M3;
                         * of ELEMENT_INT4 bf16, or */
    bool scales_f16;
    const uint8_t *zeros; /* of ELEMENT_INT4, as scales, or NULL: 8 */
    int scale_rows, scale_cols;
};

/* Mixtures of experts. A pick is an expert that a row goes through: pick row * n_picks + i is the
 * i-th of the row, by ascending expert. Picks of the same expert are multiplied together. */
enum {
    EXPERTS_MAX = 1024, /* of a layer */
    EXPERT_FEW = 16,    /* picks of a group for expert_skinny(), at most */
    EXPERT_MANY = 128,  /* picks of a group for expert_gemm(), at most */
};
struct expert_group {
    int32_t expert, first, n; /* picks members[first] .. members[first + n - 1] */
};
struct expert_picks {
    int n_experts, n_picks;      /* of a layer, of a row */
    uint16_t *experts;           /* [rows * n_picks] 16-byte aligned, and that much longer */
    float *weights;              /* [rows * n_picks] of what the expert gives in the row's sum */
    int32_t *members;            /* [rows * n_picks] picks by expert, those of one in order */
    struct expert_group *groups; /* [expert_most_groups()] */
    int32_t *n_groups;
};

/* Groups of n picks, at most most_rows in one, that there are at most. */
static inline int expert_most_groups(int n_experts, int n, int most_rows)
{
    return n <= n_experts + n / most_rows ? n : n_experts + n / most_rows;
}

/* Chooses each row's experts by the router's scores [n_rows, n_experts]: the largest, of equal ones
 * the first. Weights are the softmax over all experts, or with norm_topk over the chosen ones; NaN
 * if a score is NaN or Inf. Then groups the picks, of at most most_rows each. Where a graph is
 * captured for more rows than a step has, those from counts->n_tokens on have no picks in groups;
 * first_row: of n_rows in the step. */
struct expert_route {
    const float *scores;
    int n_rows, first_row, most_rows;
    bool norm_topk;
    const struct step_counts *counts;
};
cudaError_t expert_route(const struct launch *l, const struct expert_picks *p,
                         const struct expert_route *r);

/* y[pick] = x[row of the pick] w^T as bf16, w of the pick's expert. expert_gemm() rounds quantized
 * weights to bf16 first, expert_skinny() does not. */
struct expert_product {
    uint16_t *y;       /* [picks, n] */
    const uint16_t *x; /* [.., ld]: a row for each pick, or */
    bool x_of_rows;    /* for each row */
    const void *w;     /* [n_experts, n, ld]; scales as those of all these rows */
    struct quant quant;
    bool gated;   /* w [n_experts, 2 * n, ld]: y = silu(x w[0:n]) * (x w[n:2n]) */
    int n_rows;   /* whose picks there are */
    int n, ld;    /* multiples of 32 */
    int first, k; /* columns of x and w: all, or either half where skinny_halves() is true */
};
/* Where the groups are of EXPERT_FEW: bound by reading the weights, each expert's once a group. */
cudaError_t expert_skinny(const struct launch *l, const struct expert_picks *p,
                          const struct expert_product *e);
/* Where they are of EXPERT_MANY. */
cudaError_t expert_gemm(const struct launch *l, const struct expert_picks *p,
                        const struct expert_product *e);
/* Once a device: its shared memory is over the default. */
cudaError_t expert_gemm_init(const struct launch *l);

/* The sum over each row's picks of weight * x[pick], in their order. x [n_rows * n_picks, dim]. */
enum expert_sum_out { EXPERT_SUM_ADD_F32 /* y += */, EXPERT_SUM_F32, EXPERT_SUM_BF16 };
cudaError_t expert_sum(const struct launch *l, void *y, enum expert_sum_out out, const uint16_t *x,
                       const struct expert_picks *p, int n_rows, int dim);

/* y [n, k] = w as bf16, rounded; k a multiple of 32. */
cudaError_t dequantize(const struct launch *l, uint16_t *y, const void *w, const struct quant *q,
                       int n, int k);

/* y [m, k] = x / scale as e4m3. gated: of silu_mul() of x [m, 2 * k]. */
cudaError_t quantize(const struct launch *l, const struct e4m3_rows *y, const uint16_t *x, int k,
                     bool gated);

/* Products of few rows: y[m, n] = sum over k of x[m, k] * w[n, k]. A row's result does not depend
 * on how many rows there are. */
enum skinny_out {
    SKINNY_BF16,
    SKINNY_F32,
    SKINNY_ADD_F32,  /* y += */
    SKINNY_SILU_MUL, /* w [2 * n, k]: y = silu(x w[0:n]) * (x w[n:2n]), bf16 */
};
/* How the sum over k is divided: two ranks that have a half each, and one that has both, add the
 * same numbers in the same order. */
enum skinny_sum {
    SKINNY_WHOLE,
    SKINNY_HALF,   /* as one of these two: */
    SKINNY_HALVES, /* SKINNY_ADD_F32: y += sum of the first half, y += sum of the second */
};
struct skinny {
    void *y; /* row stride y_stride */
    int64_t y_stride;
    /* [m, k] bf16, or e4m3 as struct e4m3_rows has it, with scales of groups; or */
    const uint16_t *x;
    const float *x_scales; /* NULL: bf16 */
    const float *x_f32;    /* [m, k], m <= SKINNY_MAX_ROWS, normed first: x / rms(x) * norm */
    const uint16_t *norm;
    float eps;
    const float *rms;     /* with x, [m] or NULL: x and this are of skinny_norm() */
    const void *w;        /* [n, k] */
    struct quant quant;   /* with x_f32 for SKINNY_BF16 and SKINNY_SILU_MUL alone */
    const uint16_t *bias; /* [n], added before anything is rounded, or NULL; SKINNY_BF16 alone */
    int m, n, k;          /* k a multiple of 32; of SKINNY_HALVES skinny_halves() must be true */
    enum skinny_out out;
    enum skinny_sum sum;
};
cudaError_t skinny_gemm(const struct launch *l, const struct skinny *s);

/* Whether k of such weights can be divided in halves. */
bool skinny_halves(const struct quant *q, int k);

/* y = x * norm, rms[i] = 1 / rms(x[i]), for more rows than a product can norm: the same bits. */
cudaError_t skinny_norm(const struct launch *l, uint16_t *y, float *rms, const float *x,
                        const uint16_t *norm, int m, int k, float eps);

/* Keys and values of a layer, of which the products before its attention prefetch a part into L2
 * while memory is idle: each of their thread blocks a piece. Zeroed: none. */
struct kv_prefetch {
    const char *layer;                /* in KV block 0 of the pool */
    int64_t block_stride;             /* bytes, from KV block to KV block */
    int n_blocks, block_shift;        /* as struct kv_pool has them */
    int piece_bytes;                  /* a multiple of 16 */
    int n_pieces;                     /* of a KV block's layer */
    int turn, n_turns;                /* the product is one of n_turns, with other pieces each */
    const struct step_counts *counts; /* this and what follows: as struct step_view has them */
    const int32_t *kv_len, *table_start, *tables;
};

/* Products as struct skinny has them, of x and the sum whole, by kernels for compute
 * capability 9.0. Each has an init, once a device; not usable where the kernels were not compiled
 * for it.
 *
 * Of STREAM_MAX_ROWS rows at most. Of bf16 weights, k a multiple of 8 and of SKINNY_SILU_MUL n as
 * well; y of bf16 at a multiple of 4 bytes, y_stride and n even. Or of weights and x of e4m3, those
 * with scales of blocks of 128 x 128, k a multiple of 256 and m of 4, up to STREAM_SLICE_ROWS; not
 * SKINNY_SILU_MUL. n_parts: 1, or of SKINNY_F32 stream_parts(): y [n_parts, m, n] are sums over
 * equal parts of k, not yet added. With the same n_parts a row's result does not depend on how many
 * rows there are. prefetch: NULL is none. gemm_rows() leaves both numbers of rows as they are. */
enum { STREAM_MAX_ROWS = 256, STREAM_SLICE_ROWS = 128, STREAM_PART_TILES = 128 };
cudaError_t stream_gemm(const struct launch *l, const struct skinny *s, int n_parts,
                        const struct kv_prefetch *prefetch);
cudaError_t stream_gemm_init(bool *usable);

/* Where tiles of all rows of w are too few for the machine, parts of k make them more: as many as
 * leave STREAM_PART_TILES tiles at most, each counted once for every STREAM_SLICE_ROWS rows of x,
 * and of many rows fewer. So y has STREAM_PART_TILES * 64 * STREAM_SLICE_ROWS floats at most where
 * there are parts. */
int stream_parts(int m, int n, int k, bool e4m3);

/* Of weights of 4 bits and many rows; n and y_stride even. Scales and zeros lie at multiples of 4
 * bytes. A row's result depends on how many rows there are. */
struct int4_work {
    float *parts;      /* of tiles that blocks share, and how many of these are done: */
    int32_t *counters; /* zeroed once */
};
void int4_work_size(const struct launch *l, size_t *part_bytes, size_t *n_counters);
cudaError_t int4_gemm(const struct launch *l, const struct skinny *s, const struct int4_work *work);
cudaError_t int4_gemm_init(bool *usable);

/* The sampler's memory and results. Each rank has the logits of its ids and looks through them;
 * rank 0 joins what they have found, and reads their logits where that is not enough. Rows of
 * logits have stride logits_stride, a multiple of 4. */
struct sampler_memory {
    int n_ranks, me;
    int ids_per_rank; /* a multiple of 4; the last rank may have fewer. One rank has them all */
    int vocab_size;   /* a multiple of 4 */
    const float *logits[MAX_RANKS]; /* [max rows, logits_stride] raw */
    float *adjusted[MAX_RANKS]; /* the same, of rows with penalties, bias, banned ids or a mask */
    int64_t logits_stride;
    int max_seqs;
    bool invariant;               /* log probabilities do not depend on the number of rows */
    struct sampler_state *states; /* [max_seqs] */
    struct logit_bias *bias;      /* [max_seqs, SAMPLING_MAX_BIAS] */
    uint16_t *seen[MAX_RANKS];    /* [max_seqs, logits_stride] 0x8000: prompt; else the count */
    const uint32_t *masks;        /* [max_seqs, mask_words] of the step, in host memory; a mask has
                                   * (vocab_size + 31) / 32 words */
    void *scans; /* rank 0's: [rows, parts of a row in this launch] what they have */
    int32_t *sampled[MAX_RANKS];      /* [max rows] for the next step */
    int32_t *host_ids[SAMPLER_SLOTS]; /* mapped host memory: by slot */
    float *host_logprobs[SAMPLER_SLOTS];
    int32_t *host_top_ids[SAMPLER_SLOTS]; /* [max_seqs, SAMPLING_MAX_LOGPROBS] */
    float *host_top_logprobs[SAMPLER_SLOTS];
};
/* Of scans, for launches of up to max_seqs rows; depends on that and invariant alone. */
size_t sampler_scan_bytes(const struct launch *l, const struct sampler_memory *m);
/* And of those, what a launch of n_rows rows writes on all ranks. */
size_t sampler_scan_bytes_of(const struct launch *l, const struct sampler_memory *m, int n_rows);
cudaError_t sampler_update(const struct launch *l, const struct sampler_memory *m,
                           const struct step_view *v, int n_updates);
cudaError_t sampler_history(const struct launch *l, const struct sampler_memory *m, int state,
                            const int32_t *tokens, int n_prompt, int n_tokens);
/* Both, in this order; with several ranks all have done the first when rank 0 does the second. */
cudaError_t sampler_scan(const struct launch *l, const struct sampler_memory *m,
                         const struct step_view *v, int n_rows);
cudaError_t sampler_finish(const struct launch *l, const struct sampler_memory *m,
                           const struct step_view *v, int n_rows);
/* Where ranks cannot reach each other's memory: what the second has left undone on others than rank
 * 0, once they have what was sampled. */
cudaError_t sampler_count(const struct launch *l, const struct sampler_memory *m,
                          const struct step_view *v, int n_rows);

#ifdef __cplusplus
}
#endif

#endif
