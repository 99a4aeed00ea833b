/* gemm.h - products of many rows with a weight matrix, by cuBLASLt: y = x w^T, x [m, k] and
 * w [n, k] bf16, float32 sums. When a shape comes in a third step a few algorithms are timed, the
 * fastest is kept and, with a folder, remembered for the next start: until then it goes on with
 * what cuBLASLt thinks best. What a step may spend on trials is bounded: a shape goes on with the
 * best so far, and the next steps try the rest.
 *
 * Engine thread only. */
#ifndef NVLLM_CUDA_GEMM_H
#define NVLLM_CUDA_GEMM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/device.h"
#include "engine/util/err.h"

enum gemm_out {
    GEMM_BF16,
    GEMM_F32,
    GEMM_ADD_F32,   /* y += */
    GEMM_BIAS_BF16, /* y + bias, added before anything is rounded */
    GEMM_PARTS_F32, /* y [gemm_parts(m, n, k), m, n]: sums over equal parts of k, for others to add
                     */
};

struct gemm; /* a handle, descriptors, algorithms */

enum { GEMM_WORKSPACE = 64 << 20 };

/* workspace: GEMM_WORKSPACE bytes on the device d, which is current. folder: where choices are
 * remembered, or NULL or empty; it stays valid. Not being able to is no error. fixed: nothing is
 * timed, and the algorithm does not depend on m, so what a row gives does not depend on the others.
 */
int gemm_new(struct gemm **out, const struct device *d, void *workspace, const char *folder,
             bool fixed, struct err *e);
void gemm_free(struct gemm *g); /* writes what is not yet remembered */

/* A step begins: its trials may take as long as any step's; now and then choices are written. */
void gemm_step(struct gemm *g);

/* Whether all products since gemm_step had algorithms that will stay. */
bool gemm_settled(const struct gemm *g);

struct gemm_counts {
    int n_remembered, n_timed; /* shapes whose algorithm is settled: from the file, by trials */
    const char *key;           /* under which they are remembered */
    double longest;            /* seconds that trials have held up a step, at most */
    double write;              /* seconds that writing the file took, at most */
};
struct gemm_counts gemm_counts(const struct gemm *g);

/* Rows that m rows are computed as, so that few shapes occur; buffers must be so long. */
int gemm_rows(int m);

/* A product of few rows and columns has few tiles, far fewer than there are multiprocessors, and
 * each sums over all of k: parts of k make as many times more tiles of them. Who adds the parts up
 * must read them, so there are no more than fill the machine; 1: it is not worth it. (4 parts of
 * 3,072 at 128 rows and 1,024 columns: 4.8 us for 7.5 on an H200; 2 at 256 rows: 5.8 for 7.4.) */
enum { GEMM_PART_TILES = 128, GEMM_PART_FLOATS = GEMM_PART_TILES * 64 * 64 /* all parts */ };
int gemm_parts(int m, int n, int k);

/* What may be used to time with, where no algorithm is settled yet: m * n floats that may be
 * overwritten (for GEMM_ADD_F32), and where more weights of the shape lie, so that they come from
 * memory as they will, and not from a cache. */
struct gemm_trial {
    void *scratch;
    const uint16_t *w; /* n_w of them, w_stride elements apart */
    int64_t w_stride;
    int n_w;
};

/* bias: [n], for GEMM_BIAS_BF16. While the stream is being captured nothing is timed. */
int gemm_run(struct gemm *g, cudaStream_t stream, void *y, int64_t y_stride, const uint16_t *x,
             const uint16_t *w, const uint16_t *bias, int m, int n, int k, enum gemm_out out,
             const struct gemm_trial *trial, struct err *e);

#endif
