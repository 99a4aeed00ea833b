/* gemm.h - products of many rows with a weight matrix, by cuBLASLt: y = x w^T, x [m, k] and
 * w [n, k] bf16, float32 sums. The first time a shape comes, a few algorithms are timed; the
 * fastest is kept.
 *
 * Engine thread only. */
#ifndef NVLLM_CUDA_GEMM_H
#define NVLLM_CUDA_GEMM_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "engine/err.h"

enum gemm_out {
    GEMM_BF16,
    GEMM_F32,
    GEMM_ADD_F32, /* y += */
};

struct gemm; /* a handle, descriptors, algorithms */

enum { GEMM_WORKSPACE = 64 << 20 };

/* workspace: GEMM_WORKSPACE bytes on the device that is current. */
int gemm_new(struct gemm **out, void *workspace, struct err *e);
void gemm_free(struct gemm *g);

/* Rows that m rows are computed as, so that few shapes occur; buffers must be so long. */
int gemm_rows(int m);

/* What may be used to time with, where a shape comes for the first time: m * n floats that may be
 * overwritten (for GEMM_ADD_F32), and where more weights of the shape lie, so that they come from
 * memory as they will, and not from a cache. */
struct gemm_trial {
    void *scratch;
    const uint16_t *w; /* n_w of them, w_stride elements apart */
    int64_t w_stride;
    int n_w;
};

/* While the stream is being captured nothing is timed. */
int gemm_run(struct gemm *g, cudaStream_t stream, void *y, int64_t y_stride, const uint16_t *x,
             const uint16_t *w, int m, int n, int k, enum gemm_out out,
             const struct gemm_trial *trial, struct err *e);

#endif
