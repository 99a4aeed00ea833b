/* quantized_writer.h - writes a folder whose projections are quantized in a published format, by
 * the format's own definition, one element at a time: nothing is shared with the code that reads
 * it. Every element, scale and zero is a hash of its weight's name and its place.
 *
 * Ends the program if a file cannot be written. One thread. */
#ifndef NVLLM_TESTS_TOOLS_QUANTIZED_WRITER_H
#define NVLLM_TESTS_TOOLS_QUANTIZED_WRITER_H

#include <stdbool.h>

#include "engine/model/model.h"

enum quantized_kind {
    QUANTIZED_FP8_BLOCKS, /* weight and a scale a block */
    QUANTIZED_FP8_ROWS,   /* and a scale a row, */
    QUANTIZED_FP8_TENSOR, /* or one */
    QUANTIZED_PACKED,
    QUANTIZED_AWQ,
    QUANTIZED_GPTQ,
};

/* A folder's format. */
struct quantized_form {
    const char *config; /* quantization_config, JSON with ' for " */
    enum quantized_kind kind;
    const char *scale_suffix; /* of FP8 */
    const char *scale_type;   /* "BF16" */
    int group;                /* columns; of FP8 0: whole rows */
    bool symmetric;           /* INT4: zeros are 8 */
    int stored_less;          /* than a zero means, of GPTQ 1 or 0 */
    const char *extra;        /* suffix of an input's scale, or NULL */
    const char *plain;        /* weights whose names have this part are not quantized, or NULL */
    bool powers;              /* scales are powers of two, so that bf16 holds every weight */
};

/* Writes config.json, the weights and a tokenizer; config.vocab_size is at least that of
 * nvllm-tiny. dequantized: the same weights as F32 instead. */
void quantized_write(const char *folder, const struct model_config *c,
                     const struct quantized_form *form, bool dequantized);

/* A weight as the format defines it. */
double quantized_value(const struct quantized_form *form, const char *name, int64_t row,
                       int64_t col);

/* Whether a weight of this name is quantized. */
bool quantized_has(const struct quantized_form *form, const char *name);

#endif
