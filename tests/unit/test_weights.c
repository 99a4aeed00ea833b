/* test_weights.c - how a model's tensors become matrices. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/weights.h"
#include "tests/unit/run_suite.h"

/* arch, layers, heads, KV heads, head_dim, hidden_dim, ffn_dim, vocabulary: small enough to count
 * every element. */
static const struct model_config shapes[] = {
    {"", 3, 8, 8, 4, 12, 16, 37, .qk_norm = true},
    {"", 2, 16, 2, 2, 9, 24, 3, .qkv_bias = true},
    {"", 1, 8, 1, 6, 5, 8, 9, .tied = true, .qk_norm = true},
};

enum { N_SHAPES = N(shapes) };

static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                             .k_align = 8,
                                             .align = 64,
                                             .piece_elements = 20};

/* Each row of each tensor is read once; those of one matrix follow one another without a gap. */
TEST(every_row_lands_once, .n = N_SHAPES)
{
    const struct model_config *c = &shapes[_i];
    struct weights w;
    struct err e;
    int32_t i = 0;

    ck_assert_int_eq(weights_init(&w, c, &layout, &e), 0);
    for (int32_t layer = 0; layer < c->n_layers; layer++) {
        const struct matrix *to = NULL;
        int64_t below = 0;

        for (const struct tensor_spec *t = tensor_specs; t < tensor_specs + N_TENSOR_SPECS; t++) {
            if (layer >= tensor_spec_count(t, c))
                continue;
            for (int64_t row = 0; row < tensor_dim_size(c, t->rows); i++) {
                const struct weight_piece *p = &w.pieces[i];

                ck_assert_int_lt(i, w.n_pieces);
                ck_assert(p->tensor == t && p->layer == layer && p->row == row && p->n_rows > 0);
                if (p->to != to) {
                    ck_assert(!to || below == to->n);
                    below = 0;
                }
                to = p->to;
                ck_assert_int_eq(to->k, tensor_dim_size(c, t->cols));
                ck_assert_int_eq(p->to_row, below);
                row += p->n_rows;
                below += p->n_rows;
                ck_assert_int_le(row, tensor_dim_size(c, t->rows));
            }
        }
        ck_assert(to && below == to->n);
    }
    ck_assert_int_eq(i, w.n_pieces);
    weights_deinit(&w);
}

/* Matrices lie aligned, one behind another; pieces are small and cover each row once. */
TEST(pieces_cover_the_memory, .n = N_SHAPES)
{
    const struct model_config *c = &shapes[_i];
    struct weights w;
    struct err e;
    uint8_t *base, *covered;

    ck_assert_int_eq(weights_init(&w, c, &layout, &e), 0);
    base = aligned_alloc(64, w.bytes);
    covered = calloc(1, w.bytes);
    weights_place(&w, base);
    for (int32_t i = 0; i < w.n_pieces; i++) {
        const struct weight_piece *p = &w.pieces[i];
        const size_t row_bytes = (size_t)p->to->ld * dtype_info[p->to->dtype].bytes;
        const size_t at = (size_t)((uint8_t *)matrix_row(p->to, p->to_row) - base);

        ck_assert((uintptr_t)p->to->data % 64 == 0 && p->to->ld >= p->to->k);
        ck_assert(p->n_rows == 1 || p->n_rows * p->to->k <= 20);
        ck_assert_uint_le(at + (size_t)p->n_rows * row_bytes, w.bytes);
        for (size_t k = 0; k < (size_t)p->n_rows * row_bytes; k++)
            ck_assert_int_eq(covered[at + k]++, 0);
    }
    for (size_t k = 0, gap = 0; k < w.bytes; k++) {
        gap = covered[k] ? 0 : gap + 1;
        ck_assert_uint_lt(gap, 64);
    }
    ck_assert_int_eq(w.lm_head.data == w.embed.data, c->tied);
    ck_assert(!w.layers[0].qkv_bias.data == !c->qkv_bias &&
              !w.layers[0].k_norm.data == !c->qk_norm);
    weights_deinit(&w);
    free(base);
    free(covered);
}

int main(void)
{
    return run_tests("weights", NULL, NULL);
}
