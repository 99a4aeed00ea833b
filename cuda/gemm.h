/* gemm.h - products of many rows with a weight matrix, by cuBLASLt: y = x w^T, x [m, k] and
 * w [n, k] bf16 or both e4m3 with scales, float32 sums.
 *
 * Which algorithm a shape gets does not change while the process lives: the one recorded at an
 * earlier start, else cuBLASLt's first choice. Measuring (tune.h) is apart from computing.
 *
 * One thread a rank. */
#ifndef NVLLM_CUDA_GEMM_H
#define NVLLM_CUDA_GEMM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/algo_file.h"
#include "cuda/device.h"
#include "engine/util/err.h"

enum gemm_out {
    GEMM_BF16,
    GEMM_F32,
    GEMM_ADD_F32,      /* y += */
    GEMM_ADD_HALF_F32, /* y +=, of rows of 2 k: x and w begin at their first half or their second */
    GEMM_BIAS_BF16,    /* y + bias, added before rounding */
    GEMM_PARTS_F32, /* y [gemm_parts(m, n, k), m, n]: sums over equal parts of k, not yet added */
    N_GEMM_OUT
};

struct gemm; /* a handle, descriptors, algorithms */

enum { GEMM_WORKSPACE = 64 << 20 };

/* workspace: GEMM_WORKSPACE bytes on the current device. fixed: the algorithm does not depend on m,
 * so a row's result does not depend on the other rows; nor on whether n_ranks is 1 or 2. */
int gemm_new(struct gemm **out, void *workspace, bool fixed, int n_ranks, struct err *e);
void gemm_free(struct gemm *g);

/* Rows that m rows are computed as, so that few shapes occur; buffers must be that long. */
int gemm_rows(int m);

/* A product of few rows and columns has fewer tiles than there are multiprocessors, and each sums
 * over all of k. Cutting k in parts makes more tiles; the reader must add the parts, so there are
 * no more than fill the machine. 1: not worth it. (4 parts of 3,072 at 128 rows and 1,024 columns:
 * 4.8 us, whole 7.5; 2 parts at 256 rows: 5.8 and 7.4; H200.) */
enum { GEMM_PART_TILES = 128, GEMM_PART_FLOATS = GEMM_PART_TILES * 64 * 64 /* all parts */ };
int gemm_parts(int m, int n, int k);

/* What x and w are, and which scales they have. The matrix units of compute capability 9.0 take
 * e4m3. */
enum {
    GEMM_BLOCK = 128,    /* rows and columns of w with one scale, and columns of x */
    GEMM_BLOCKS_K = 512, /* divides k of such w, so that a row of scales is whole 16-byte units */
};
enum gemm_in {
    GEMM_OF_BF16,
    GEMM_OF_E4M3,        /* x_scales [m], w_scales [n] */
    GEMM_OF_E4M3_BLOCKS, /* x_scales [k / 128, m], w_scales [n / 128 rounded up, k / 128] */
    N_GEMM_IN
};

struct gemm_product {
    void *y;
    int64_t y_stride;
    enum gemm_in in;
    const void *x, *w;
    const float *x_scales, *w_scales; /* not of GEMM_OF_BF16 */
    const uint16_t *bias;             /* [n], for GEMM_BIAS_BF16, which is of bf16 alone */
    int m, n, k;
    enum gemm_out out;
};
int gemm_run(struct gemm *g, cudaStream_t stream, const struct gemm_product *p, struct err *e);

/* Measuring: runs the product by candidate `index` of its shape. Returns 1, 0 where there is no
 * such candidate, or a negative errno. */
int gemm_try(struct gemm *g, cudaStream_t stream, const struct gemm_product *p, int index,
             struct err *e);

/* The record that says: this shape, by that candidate. Only after gemm_try() of the product. */
void gemm_record(const struct gemm *g, struct algo_record *out, const struct gemm_product *p,
                 int index, float us);

/* Whether the shape has a recorded choice that holds. */
bool gemm_is_known(struct gemm *g, const struct gemm_product *p);

/* Takes records, which stay valid, and forgets all choices: before the first step alone. */
void gemm_adopt(struct gemm *g, const struct algo_records *known);

/* Shapes in use whose choice was recorded, and whose was not. */
void gemm_counts(const struct gemm *g, int *n_known, int *n_heuristic);

#endif
