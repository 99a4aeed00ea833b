/* matrix.h - a weight in memory: the one form in which backends hold what they multiply by. */
#ifndef NVLLM_ENGINE_MODEL_MATRIX_H
#define NVLLM_ENGINE_MODEL_MATRIX_H

#include <stdint.h>

enum dtype { DTYPE_BF16, DTYPE_F16, DTYPE_F32, N_DTYPES };

struct dtype_info {
    const char *name;        /* in reports: "bf16" */
    const char *safetensors; /* "BF16" */
    const char *torch;       /* in config.json: "bfloat16" */
    uint32_t bytes;
};

extern const struct dtype_info dtype_info[N_DTYPES];

/* y [n] = w [n, k] * x [k]. A vector (a norm, a bias) has k = 1. */
struct matrix {
    void *data; /* NULL: the model has no such weight */
    enum dtype dtype;
    void *scales; /* of a quantized dtype; NULL for those above */
    int32_t n;    /* outputs */
    int32_t k;    /* inputs */
    int64_t ld;   /* elements from one row to the next; those beyond k are zeros */
};

static inline void *matrix_row(const struct matrix *m, int64_t row)
{
    return (char *)m->data + row * m->ld * dtype_info[m->dtype].bytes;
}

static inline uint64_t matrix_bytes(const struct matrix *m)
{
    return (uint64_t)m->n * (uint64_t)m->ld * dtype_info[m->dtype].bytes;
}

#endif
