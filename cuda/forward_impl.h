/* forward_impl.h - what the files of the forward pass share; private to forward*.c. */
#ifndef NVLLM_CUDA_FORWARD_IMPL_H
#define NVLLM_CUDA_FORWARD_IMPL_H

#include "cuda/forward.h"

/* A step on its way through the layers. */
struct pass {
    const struct forward *f;
    const struct step_view *v;
    const struct forward_shape *s;
    struct err *e;
};

/* Rows first .. first + n - 1 of the activations. */
struct rows {
    int first, n;
};

/* Which of the parts that each rank has for its sums. */
enum { PARTS_OF_ATTENTION, PARTS_OF_FFN, NO_PARTS };

/* Products of few rows leave floats. */
_Static_assert((int)FORWARD_FEW_ROWS <= (int)NORM_PUSHED_ROWS, "parts of few rows are floats");

/* Whether parts of so many rows are bf16. */
static inline bool pass_parts_are_bf16(const struct forward *f, int n)
{
    return f->peers.n > 1 && n > NORM_PUSHED_ROWS && !f->invariant;
}

/* ---- forward_products.c */

/* A product of many rows; first converts its weights or input, where it must. */
int pass_gemm(const struct pass *p, enum forward_product kind, int layer, struct rows rows);

/* Whether the first FFN product applies the gate as well, so that it writes f->act. */
bool pass_gates(const struct forward *f, int layer, int n_rows);

/* How many parts a product that adds to the residual leaves for the next norm to add; 1: none, it
 * adds by itself. */
int pass_parts_of(const struct forward *f, int n_rows, const struct matrix *w);

/* The same of what is added before the norm that a product reads: PRODUCT_QKV or PRODUCT_GATE_UP of
 * a layer, or PRODUCT_LM_HEAD with the number of layers for one. */
int pass_parts_before(const struct forward *f, enum forward_product kind, int layer, int n_rows);

/* Where the norm before a product leaves its rows as E4M3; x is NULL where it leaves them as bf16,
 * in f->normed. */
struct e4m3_rows pass_normed_e4m3(const struct forward *f, enum forward_product kind, int layer,
                                  int n_rows);

/* Whether the only rank of an invariant pass sums each half of k on its own, as two ranks would. */
bool pass_in_halves(const struct forward *f, const struct matrix *w);

/* ---- forward_attention.c */

/* Attention of all rows of a layer, from f->qkv to f->attn. */
int pass_attention(const struct pass *p, const struct layer_weights *w, int layer);

/* What one of n_turns products prefetches of a layer's keys and values; of the layer behind the
 * last one nothing. */
struct kv_prefetch pass_kv_prefetch(const struct pass *p, int layer, int turn, int n_turns);

/* Before the first layer of a step with a chunk of an offloaded sequence: begins to fetch. */
int pass_begin_offloaded(const struct pass *p);

#endif
