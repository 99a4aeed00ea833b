/* forward.h - one pass of a rank's part of the model over a step's rows: from token ids to sampled
 * ids, as a list of ops on one stream. Nothing here waits for the device.
 *
 * One thread a rank. */
#ifndef NVLLM_CUDA_FORWARD_H
#define NVLLM_CUDA_FORWARD_H

#include "cuda/exchange.h"
#include "cuda/experts.h"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/resident/resident.h"
#include "engine/model/weights.h"

enum {
    FORWARD_SPARE_ROWS = 128, /* of an invariant pass: its prompts begin at any row, and are
                               * computed as a rounded number of rows */
    FORWARD_FEW_ROWS = 128,   /* the most that few_rows may be */
    FORWARD_PART_FLOATS = STREAM_PART_TILES * 64 * STREAM_SLICE_ROWS, /* all parts of a product */
};

/* How a step of few rows is computed; of more than the forward's few_rows always PATH_GEMM. */
enum forward_path { PATH_RESIDENT, PATH_SKINNY, PATH_GEMM, N_PATHS };

/* The products of PATH_GEMM. */
enum forward_product {
    PRODUCT_QKV,
    PRODUCT_O,
    PRODUCT_GATE_UP,
    PRODUCT_DOWN,
    PRODUCT_LM_HEAD,
    N_PRODUCTS
};

/* Keys and values of one layer in bf16, while chunks attend to them: where attention cannot read
 * them in the pool, because the sequence is offloaded or because they are kept as E4M3. A buffer
 * holds one layer. */
struct kv_staging {
    int max_blocks; /* of a buffer: those of the longest sequence; of E4M3 more where there is room,
                     * for several prompts at a time */
    int n_buffers;  /* 2: the next layer is fetched while one computes, needed to offload; 1: for
                     * the conversion of E4M3 alone; 0: unused */
    struct kv_pool kv[2];
    struct attn_maps maps[2];
    int32_t *table;                /* [max_blocks] 0, 1, 2, … */
    cudaStream_t stream;           /* fetches what earlier steps wrote of an offloaded sequence */
    cudaEvent_t begun;             /* the step: all that earlier steps wrote is there */
    cudaEvent_t full[2], empty[2]; /* of each buffer: it has been fetched, and read */
};

/* Tensor parallelism: what a rank knows of the others. Products over a rank's heads and FFN columns
 * leave sums over parts of k in `parts`; after a barrier the next norm adds those of all ranks, in
 * their order, so all have the same residual. There are two buffers, used by turns, so one barrier
 * is enough: between two writes of a buffer there is a barrier after the reads of the first.
 *
 * The resident kernels of two ranks have no parts: see resident.h.
 *
 * In steps of at most NORM_PUSHED_ROWS the norm itself exchanges the parts, without barriers. In
 * steps of more a rank norms only its share of the rows and writes the result to all ranks. That
 * takes a second barrier. But only its share of each other rank's part crosses NVLink, as bf16, and
 * as many bytes of normed rows.
 *
 * Ranks of several processes have an exchange instead, which leaves the sum of all parts in each
 * one's own. */
struct peers {
    int n, me; /* how many ranks there are, and which this is; 1, 0: there are no others */
    struct exchange exchange;
    struct peer_barrier barrier;
    char *parts[MAX_RANKS][2];  /* [rows, hidden_dim] after attention, and after the FFN: float, or
                                 * bf16 as pass_parts_are_bf16() says */
    float *inbox[MAX_RANKS][2]; /* as in struct norm */
    size_t inbox_bytes;
    uint16_t *normed[MAX_RANKS]; /* as in struct forward */
    struct embedding embedding;  /* set for one rank, too */
};

struct forward {
    const struct model_config *config; /* as this rank computes it: shard_config() */
    struct peers peers;
    const struct weights *weights;
    const struct launch *launch;
    struct gemm *gemm;
    struct kv_pool kv;
    struct attn_maps maps; /* of kv and qkv */
    struct kv_staging staging;
    bool invariant;   /* the same products whatever the number of rows */
    bool e4m3;        /* products of many rows may take activations of 8 bits */
    bool decode_sm90; /* attn_decode_sm90() is usable */
    bool streams;     /* stream_gemm() is usable */
    bool int4;        /* int4_gemm() is usable */
    int few_rows;     /* the most rows of a step that has a choice of paths */
    uint8_t decode_path[FORWARD_FEW_ROWS + 1]; /* enum forward_path by rows: of decodes alone */
    uint8_t chain_path[FORWARD_FEW_ROWS + 1];  /* of other steps: never the resident kernel */

    /* activations; rows are gemm_rows(max_batch_tokens), FORWARD_SPARE_ROWS more if invariant */
    float *rope;            /* [max_seq_len, head_dim / 2, 2] */
    float *residual;        /* [rows, hidden_dim] */
    uint16_t *normed;       /* [rows, hidden_dim] */
    float *rms;             /* [rows] of rows whose norm is in two parts */
    uint16_t *qkv;          /* [rows, (n_heads + 2 n_kv_heads) * head_dim] */
    uint16_t *attn;         /* [rows, n_heads * head_dim] */
    uint16_t *gate_up;      /* [rows, 2 * ffn_dim], or 2 * hidden_dim if larger */
    uint16_t *act;          /* [rows, ffn_dim] */
    struct experts experts; /* of a mixture; their out is gate_up then, and there is no act */
    uint8_t *x_e4m3;        /* [rows, k] input of a product of many rows, as E4M3 */
    float *x_scales;        /* scales of x_e4m3: [k / 128, rows] or [rows] */
    uint16_t *dequantized;  /* a matrix that is multiplied as bf16 */
    struct int4_work int4_work;
    float *parts;           /* [FORWARD_PART_FLOATS] of a product that the next norm adds */
    float *partial;         /* of split attention */
    int32_t *counters;      /* of splits that are done */
    float *prefill_partial; /* of split prefill attention */
    int32_t *prefill_counters;
    float *logits; /* [gemm_rows(max_seqs), logits_stride]; raw, what the sampler reads */
    struct sampler_memory sampler;
    struct resident resident; /* all but what each step sets */
    int resident_rows;        /* the most rows of a step that it computes; 0: none */
};

/* What the launches of a step depend on. Where they are captured, counts are upper bounds. */
struct forward_shape {
    int n_tokens, n_decodes, n_rows;
    bool drafts;     /* some of the decodes are drafts: they attend to keys of this step */
    int attn_blocks; /* of the decodes' attention, as attn_decode() takes them */
    int n_tiles;
    int max_kv_len;                /* of the sequences with tiles */
    const struct attn_tile *tiles; /* on the host */
    /* The chunk of an offloaded sequence, which is then the step's only one. */
    const int32_t *chunk_table; /* its block table */
    int chunk_old;              /* its first blocks, which no row of this step is in */
    int chunk_blocks;           /* all its blocks; 0: there is no such chunk */
    enum forward_path path;
    bool whole_rows;  /* with an exchange: as exchange_sample() says */
    bool logits_only; /* nothing is sampled: forward_sample() follows, unless steps are measured */
    int n_sums;       /* sums of hidden states that are wanted */
    float *sums;      /* [n_sums, hidden_dim] of rank 0: host memory that the device writes */
};

/* Sets resident_rows, and in f->resident what the kernel depends on besides memory:
 * resident_exchange_bytes() needs it. block_shift, fp8: as in kv_pool. */
void forward_plan_resident(struct forward *f, const struct model_config *c, int n_blocks,
                           int block_shift, bool fp8);
/* Sets the rest of f->resident, once all other members of f are set. */
void forward_ready_resident(struct forward *f);

/* How a matrix is quantized, for kernels. */
struct quant forward_quant(const struct matrix *w);

/* What a product of many rows with a matrix takes. bias: NULL, or without data, where there is
 * none. */
enum gemm_in forward_gemm_in(const struct forward *f, const struct matrix *w,
                             const struct matrix *bias);

/* Whether a product of so many rows takes weights of 4 bits as they are: int4_gemm(). */
bool forward_is_int4(const struct forward *f, const struct matrix *w, int n_rows);

/* The memory that products with quantized weights need. */
struct quantized_plan {
    size_t x_bytes, n_x_scales;    /* of a row */
    size_t n_dequantized;          /* elements of a matrix */
    size_t part_bytes, n_counters; /* of int4_gemm() */
};
struct quantized_plan forward_plan_quantized(const struct forward *f);

/* Sets the path of each number of rows, from measured steps if there are any. Before any step. */
void forward_choose_paths(struct forward *f, const struct algo_records *known);
enum forward_path forward_path_of(const struct forward *f, int n_tokens, bool prompts);

int forward_run(const struct forward *f, const struct step_view *v, const struct forward_shape *s,
                struct err *e);

/* The rest of a pass with logits_only: samples. Not with an exchange. */
int forward_sample(const struct forward *f, const struct step_view *v, int n_rows, struct err *e);

/* Captures what forward_run() would launch as a graph. The step has no sums. */
int forward_capture(cudaGraphExec_t *out, const struct forward *f, const struct step_view *v,
                    const struct forward_shape *s, struct err *e);

/* Whether PATH_GEMM takes a kernel of ours for a product of n_rows rows, not cuBLASLt. */
bool forward_is_ours(const struct forward *f, enum forward_product kind, int layer, int n_rows);

/* Whether there is such a product: a mixture has its experts' own for the FFN. */
bool forward_has_product(const struct forward *f, enum forward_product kind);

/* A product of n_rows rows as PATH_GEMM does it in a layer; of the LM head whatever the layer. */
struct gemm_product forward_product(const struct forward *f, enum forward_product kind, int layer,
                                    int n_rows);

/* Brings quantized weights, or the input of their product, to what the product takes. */
int forward_prepare_product(const struct forward *f, enum forward_product kind, int layer,
                            int n_rows, struct err *e);

#endif
