/* cpu_ops.h - the inner loops of the CPU backend, one table for each instruction set.
 *
 * One source, compiled for each. All give the same bits for the same input, and no result depends
 * on how many rows are computed together. Pure functions; any thread. */
#ifndef NVLLM_ENGINE_CPU_CPU_OPS_H
#define NVLLM_ENGINE_CPU_CPU_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model/model.h"

enum {
    CPU_K_ALIGN = 16,  /* rows of weights and activations are zero-padded to a multiple */
    CPU_KV_GROUP = 64, /* keys of an online-softmax step, from positions 64 * i on */
};

static inline size_t cpu_padded(int n)
{
    return (size_t)(n + CPU_K_ALIGN - 1) / CPU_K_ALIGN * CPU_K_ALIGN;
}

enum cpu_isa { CPU_ISA_PLAIN, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_N_ISAS };

/* y[row, out] (+)= sum over k of x[row, k] * w[first + out, k], of a quantized matrix group by
 * group: the sum over a group's columns, times its scale. */
struct matmul {
    float *y;               /* [n_rows, y_stride] */
    const float *x;         /* [n_rows, w->ld] zeros beyond w->k */
    const struct matrix *w; /* bf16, E4M3 or INT4; ld is a multiple of CPU_K_ALIGN */
    size_t y_stride, x_stride;
    int first;
    int n_rows, n_outs;
    bool add;
};

/* Causal attention of consecutive rows of one sequence over one KV head. */
struct attend {
    const float *q; /* row i, head g at q + i * q_stride + g * head_dim, g < n_group */
    float *out;     /* as q */
    size_t q_stride, out_stride;
    int n_rows;    /* n_rows * n_group: at most max_rows of the scratch */
    int n_group;   /* query heads that share the KV head */
    int first_pos; /* position of row 0; row i attends over 0 .. first_pos + i */
    int head_dim;
    float scale;
    const int32_t *block_table;
    int block_shift;    /* block_len = 1 << block_shift */
    const char *k, *v;  /* of this layer and head in block 0; of E4M3 a block's scales, 2^(x - 127)
                         * or 255: NaN, lie behind its [block_len, head_dim] elements, a byte each */
    size_t block_bytes; /* from block to block */
    enum dtype dtype;   /* f32, bf16 or E4M3 */
    float *scratch;     /* [cpu_attend_scratch()] of this thread */
};

struct cpu_ops {
    const char *name; /* "AVX-512" */
    void (*matmul)(const struct matmul *m);
    void (*attend)(const struct attend *a);
    /* y = x / sqrt(mean(x²) + eps) * w; y may be x */
    void (*rms_norm)(float *y, const float *x, const float *w, int n, float eps);
    /* Rotates the halves of x [2 * half] by the angles whose cos and sin are given. */
    void (*rope)(float *x, const float *cos, const float *sin, int half);
    void (*silu_mul)(float *y, const float *gate, const float *up, int n); /* silu(gate) * up */
    void (*add)(float *y, const float *x, int n);                          /* y += x */
    void (*add_scaled)(float *y, const float *x, float scale, int n);      /* y += x * scale */
    void (*from_bf16)(float *y, const uint16_t *x, int n);
    void (*to_bf16)(uint16_t *y, const float *x, int n); /* nearest even */
    /* Returns x, of the least scale 2^(x - 127) with which all are in range; 255, and leaves y,
     * where one is NaN or infinite: all are NaN then. */
    uint8_t (*to_e4m3)(uint8_t *y, const float *x, int n);
    /* The largest; false if one is NaN or Inf. */
    bool (*row_max)(float *max, const float *x, int n);
    /* Sum of exp((x - max) * scale). */
    double (*sum_exp)(const float *x, int n, float max, float scale);
    /* The first i >= from with x[i] >= floor, or n. */
    int (*find_ge)(const float *x, int from, int n, float floor);
};

/* Each is there where the build has the instruction set, and to be run where the machine has it. */
extern const struct cpu_ops cpu_ops_plain, cpu_ops_avx2, cpu_ops_avx512;

/* NULL: this build or this machine does not have it. */
const struct cpu_ops *cpu_ops_get(enum cpu_isa isa);
const struct cpu_ops *cpu_ops_best(void);

/* Query rows (times heads of a group) that suit one attend call, and floats of scratch for calls of
 * at most max_rows of them. */
enum { CPU_ATTEND_ROWS = 48 };
size_t cpu_attend_scratch(int max_rows, int head_dim);

#endif
