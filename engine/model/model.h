/* model.h - a model folder as downloaded from a hub: config.json, generation_config.json and the
 * tensors of one or many safetensors files, all checked before any weight is read.
 *
 * Immutable after open; any thread. Weights are read with pread and never mapped: a file that
 * changes under the process can give wrong numbers, but not a fault. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_H
#define NVLLM_ENGINE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <xxhash.h>

#include "engine/model/embedder.h"
#include "engine/util/err.h"

enum {
    MODEL_MAX_EOS = 16,
    MODEL_MAX_RANK = 4,
    MODEL_MAX_HEAD_DIM = 1024,
};

/* E4M3 is a byte of sign, four bits of exponent and three of mantissa, without infinities: what
 * PyTorch calls float8_e4m3fn. INT4 is 0 .. 15. */
enum dtype { DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_E4M3, DTYPE_INT4, N_DTYPES };

struct dtype_info {
    const char *name;        /* in reports: "bf16" */
    const char *safetensors; /* "BF16"; NULL: files have no such type, but pack it into another */
    const char *torch;       /* in config.json: "bfloat16"; NULL: likewise */
    uint32_t bits;
};

extern const struct dtype_info dtype_info[N_DTYPES];

static inline uint64_t dtype_bytes(enum dtype dtype, uint64_t n_elements)
{
    return n_elements * dtype_info[dtype].bits / 8;
}

/* A weight in memory: y [n] = w [n, k] * x [k]. A vector (a norm, a bias) has k = 1.
 *
 * Element (r, c) of a quantized one, E4M3 or INT4, counts as (element - zero) * scale, both of the
 * group (r / scale_rows, c / scale_cols). Of INT4, eight consecutive elements of a row are one
 * little-endian word of 32 bits, and those of even place come first: from the lowest bits on 0, 2,
 * 4, 6, 1, 3, 5, 7. So bits 4 i and 4 i + 16 have neighbours. */
struct matrix {
    void *data; /* NULL: the model has no such weight */
    enum dtype dtype;
    int32_t n;    /* outputs */
    int32_t k;    /* inputs */
    int64_t ld;   /* elements from one row to the next; those beyond k are zeros */
    void *scales; /* [n / scale_rows, k / scale_cols] both rounded up; NULL: it is not quantized */
    enum dtype scale_dtype; /* of E4M3 f32; of INT4 f16 or bf16 */
    uint8_t *zeros;     /* of INT4, as scales: 0 .. 16; NULL: all are 8; of E4M3 there are none */
    int32_t scale_rows; /* 128, of E4M3 alone, or 1; 0: it is not quantized */
    int32_t scale_cols; /* 32, 64, 128, or k: one for the whole row; 0 likewise */
};

enum { INT4_ZERO = 8, INT4_IN_WORD = 8 };

static inline void *matrix_row(const struct matrix *m, int64_t row)
{
    return (char *)m->data + dtype_bytes(m->dtype, (uint64_t)(row * m->ld));
}

/* Of the elements alone. */
static inline uint64_t matrix_bytes(const struct matrix *m)
{
    return dtype_bytes(m->dtype, (uint64_t)m->n * (uint64_t)m->ld);
}

/* Scales of a row. */
static inline int64_t matrix_groups(const struct matrix *m)
{
    return m->scale_cols ? (m->k + (int64_t)m->scale_cols - 1) / m->scale_cols : 0;
}

/* All scales, which are as many as the zeros, if there are any. */
static inline int64_t matrix_scales(const struct matrix *m)
{
    return m->scale_rows ? (m->n + (int64_t)m->scale_rows - 1) / m->scale_rows * matrix_groups(m)
                         : 0;
}

/* Rows first .. first + n - 1; first is a multiple of scale_rows. */
static inline struct matrix matrix_rows(const struct matrix *m, int32_t first, int32_t n)
{
    struct matrix rows = *m;
    const int64_t at = m->scale_rows ? first / m->scale_rows * matrix_groups(m) : 0;

    rows.n = n;
    rows.data = matrix_row(m, first);
    if (m->scales)
        rows.scales = (char *)m->scales + dtype_bytes(m->scale_dtype, (uint64_t)at);
    if (m->zeros)
        rows.zeros = m->zeros + at;
    return rows;
}

/* How rotary frequencies are changed for contexts beyond the original one; see rope.h. */
enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope_scaling {
    enum rope_kind kind;
    double factor;
    double original_len;                      /* tokens; LLAMA3, YARN */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    double beta_fast, beta_slow;              /* YARN */
    double attention_factor;                  /* YARN: of cosine and sine */
};

struct quantization; /* see quantization.h */

/* The network's shape and features, from config.json. */
struct model_config {
    const char *arch; /* as config.json calls it; for messages alone: features decide */
    int32_t n_layers;
    int32_t n_heads; /* query heads; a multiple of n_kv_heads */
    int32_t n_kv_heads;
    int32_t head_dim; /* even */
    int32_t hidden_dim;
    int32_t ffn_dim;     /* of an expert, where there are experts */
    int32_t vocab_size;  /* rows of the embedding, padding included */
    int32_t max_seq_len; /* the longest context that full attention computes correctly */
    float rms_norm_eps;
    double rope_theta;
    bool tied;                 /* the LM head is the embedding */
    bool headless;             /* there is no LM head, and tied is set: the model only embeds */
    bool qkv_bias;             /* q, k and v have biases */
    bool qk_norm;              /* RMSNorm on each head of q and k */
    int32_t n_experts;         /* FFNs of a layer, of which a router chooses; 0: it has one */
    int32_t n_experts_per_tok; /* for each token */
    bool norm_topk;            /* the chosen experts' weights are divided by their sum */
    bool block_sparse_moe;     /* the files name experts as Mixtral's do */
    struct rope_scaling rope;
    const struct quantization *quant; /* of the projections; NULL: none. The model owns it */
};

/* Sampling parameters that a request leaves out, from generation_config.json; neutral where that
 * file leaves them out. */
struct model_defaults {
    float temperature; /* 1 and do_sample false become 0 */
    int32_t top_k;     /* 0: off */
    float top_p;
    float min_p;
    float repetition_penalty;
    int32_t n_eos;
    int32_t eos[MODEL_MAX_EOS]; /* ids that end a text; from config.json where absent there */
};

/* A tensor in its file. */
struct tensor {
    const char *name;
    const char *type; /* as the file calls it: "BF16" */
    enum dtype dtype; /* N_DTYPES: a type that weights do not have */
    int32_t rank;
    int64_t shape[MODEL_MAX_RANK]; /* outermost first; the first dimensions of a larger rank */
    uint64_t bytes;
    uint64_t offset; /* of the data in the file */
    int32_t file;    /* private to engine/model */
};

struct model;

/* Opens and checks a folder. The text names file and field: -ENOENT (no such folder or file),
 * -EINVAL (contents), -ENOTSUP (an unknown architecture or feature), -ENOMEM. */
int model_open(struct model **out, const char *folder, struct err *e);
void model_close(struct model *m);

/* Has the projections of a plain model quantized to DTYPE_E4M3 or DTYPE_INT4 while they are read,
 * once, before anything else is done with it; DTYPE_BF16 changes nothing. -ENOTSUP: they are
 * quantized already, or their sizes do not allow it. */
int model_quantize(struct model *m, enum dtype dtype, struct err *e);

/* Reports every problem of a folder, for people, where model_open stops at the first, and says
 * which parts are right and what the model is; the tokenizer is not covered. There are no problems
 * where model_open would succeed; -ENOENT if only the weights are missing. *vocab_size is 0 if
 * config.json has a problem. */
void model_check(int32_t *vocab_size, const char *folder, struct problems *p);

const struct model_config *model_config(const struct model *m);
const struct model_defaults *model_defaults(const struct model *m);
const struct embedder *model_embedder(const struct model *m);

/* A tensor that the configuration needs by its full name, in the files with or without "model."
 * before it; NULL for any other name. Each is there and has the right shape. */
const struct tensor *model_tensor(const struct model *m, const char *name);
/* A hash of the configuration and the beginning of each tensor: other weights have another one.
 * What else counts, each with those before: */
enum model_sameness {
    MODEL_OF_FILES,  /* nothing: a copy has the same */
    MODEL_AS_LOADED, /* what model_quantize() makes of the weights */
    MODEL_AS_OPENED, /* the times at which the files were written */
};
int model_fingerprint(const struct model *m, enum model_sameness what, XXH128_hash_t *out,
                      struct err *e);
/* Somebody has written to the files since they were opened. */
bool model_has_changed(const struct model *m);
uint64_t model_weight_bytes(const struct model *m); /* of all these tensors, as stored */
uint64_t model_n_parameters(const struct model *m);
const char *model_dtype_name(const struct model *m); /* as stored: "bf16", or "mixed types" */
/* What backends keep the projections as: "bf16" whatever plain type is stored, "fp8", "int4". */
const char *model_kept_as(const struct model_config *c);

/* Reads bytes of a tensor from offset on, as stored. -EIO: the file has become shorter. */
int model_read(const struct model *m, const struct tensor *t, uint64_t offset, void *dst,
               size_t bytes, struct err *e);

/* Reads n elements from element `first` on as bf16, rounded to nearest even. */
int model_read_bf16(const struct model *m, const struct tensor *t, uint64_t first, uint16_t *dst,
                    size_t n, struct err *e);

#endif
