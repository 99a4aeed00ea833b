/* quantization.h - which weights of a model are quantized, how they are in memory, and as which
 * tensors a folder stores them: what quantization_config of config.json says.
 *
 * Only the projections of layers are: q, k, v, o, gate, up and down. Pure functions; any thread. */
#ifndef NVLLM_ENGINE_MODEL_QUANTIZATION_H
#define NVLLM_ENGINE_MODEL_QUANTIZATION_H

#include <jansson.h>

#include "engine/model/tensor_table.h"
#include "engine/util/err.h"

enum {
    QUANT_BLOCK = 128,      /* rows and columns of a block of E4M3 with one scale */
    QUANT_MAX_ZERO = 16,    /* GPTQ's first version stores one less than it means */
    QUANT_TEXT_BYTES = 128, /* of quantization_text() */
};

enum quant_format {
    QUANT_NONE,
    QUANT_FP8,         /* as Qwen3's and DeepSeek's: blocks */
    QUANT_CT_BLOCKS,   /* compressed-tensors, E4M3 with a scale a block */
    QUANT_CT_CHANNELS, /* compressed-tensors, E4M3 with a scale a row */
    QUANT_CT_TENSORS,  /* compressed-tensors, E4M3 with a scale a tensor */
    QUANT_CT_PACKED,   /* compressed-tensors, INT4 */
    QUANT_AWQ,
    QUANT_GPTQ,
    QUANT_AT_LOAD, /* plain tensors that are quantized while they are read */
    N_QUANT_FORMATS,
};

/* All quantized weights of a model are alike; see struct matrix. */
struct quantization {
    enum quant_format format;
    enum dtype dtype;
    enum dtype scale_dtype; /* of INT4 as in the files, N_DTYPES before they have been looked at */
    bool zeros;             /* there are zeros beside the scales */
    int32_t scale_rows;     /* QUANT_BLOCK or 1 */
    int32_t scale_cols;     /* 32, 64 or 128; 0: a whole row has one scale */
    int32_t zero_bias;      /* is added to a stored zero */
    bool has_note;          /* the files have what STORED_NOTE is */
    uint16_t *layers;       /* [n_layers] bit role - N_MODEL_WEIGHTS: such a weight is quantized */
};

/* Reads quantization_config of config.json, which root may lack or be NULL; notes each problem.
 * `layers` is NULL. */
void quantization_parse(struct quantization *q, const json_t *root, struct problems *p);

/* How the projections of a plain model are quantized to E4M3 or INT4 while they are read: blocks,
 * or symmetric groups as long as all their columns allow. -ENOTSUP: these allow none. */
int quantization_at_load(struct quantization *q, const struct model_config *c, enum dtype dtype,
                         struct err *e);

/* Whether weights of a role can be quantized, and whether one of a layer is; q may be NULL. */
bool quantization_may_have(enum weight_role role);
bool quantization_has(const struct quantization *q, enum weight_role role, int32_t layer);

/* For people: "INT4 (AWQ) in groups of 128 with zeros". */
void quantization_text(char out[QUANT_TEXT_BYTES], const struct quantization *q);

/* The tensors that a quantized weight [n, k] is stored as. */
enum stored {
    STORED_ELEMENTS,
    STORED_SCALES,
    STORED_ZEROS,
    STORED_NOTE, /* GPTQ's g_idx, weight_shape, and input_scale, which is not used */
    N_STORED,
};

/* One of them, as it should be: name is what it has in place of "weight". *types, "BF16 or F16",
 * are those that it may have. False: the format has no such tensor. */
bool quantization_stored(struct tensor *wanted, const char **types, const struct quantization *q,
                         enum stored which, int64_t n, int64_t k);

#endif
