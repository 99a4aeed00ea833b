/* test_weights.c - how a model's tensors are divided among ranks and become matrices. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/quantization.h"
#include "engine/model/weights.h"
#include "tests/tools/model_writer.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

enum { MAX_RANKS = 8 };

/* arch, layers, heads, KV heads, head_dim, hidden_dim, ffn_dim, vocabulary: small enough to count
 * every element; the vocabulary divides by no number of ranks. */
static const struct model_config shapes[] = {
    {"", 3, 8, 8, 4, 12, 16, 37, .qk_norm = true},
    {"", 2, 16, 2, 2, 9, 24, 3, .qkv_bias = true},
    {"", 1, 8, 1, 6, 5, 8, 9, .tied = true, .qk_norm = true},
    {"", 3, 8, 8, 4, 12, 16, 37, .qk_norm = true, .n_experts = 5, .n_experts_per_tok = 2},
    {"", 2, 8, 4, 2, 9, 24, 3, .n_experts = 3, .n_experts_per_tok = 1, .block_sparse_moe = true},
};

enum { N_SHAPES = N(shapes) };

/* How many ranks must have each element of a tensor. */
static int wanted_copies(const struct tensor_spec *t, const struct model_config *c, int tp_size)
{
    if (t->axis == SHARD_NONE)
        return tp_size;
    if (t->rows == DIM_KV && c->n_kv_heads < tp_size)
        return tp_size / c->n_kv_heads;
    return 1;
}

/* Each element of each tensor lands on as many ranks as it should, on each rank once. */
TEST(every_element_lands_once, .n = 4 * N_SHAPES)
{
    const struct model_config *c = &shapes[_i / 4];
    const int tp_size = 1 << _i % 4;
    struct weight_part parts[MAX_RANKS][N_TENSOR_SPECS];
    int n_parts = 0, n_needed = 0;
    struct err e;

    for (int rank = 0; rank < tp_size; rank++) {
        n_parts = weight_parts(parts[rank], c, (struct shard){rank, tp_size}, &e);
        ck_assert_msg(n_parts > 0, "%s", e.text);
    }
    for (int i = 0; i < N_TENSOR_SPECS; i++)
        n_needed += tensor_spec_count(&tensor_specs[i], c) > 0;
    ck_assert_int_eq(n_parts, n_needed);
    for (int i = 0; i < n_parts; i++) {
        const struct tensor_spec *t = parts[0][i].tensor;
        const int64_t rows = tensor_dim_size(c, t->rows), cols = tensor_dim_size(c, t->cols);
        uint8_t *copies = calloc((size_t)(rows * cols), 1);

        for (int rank = 0; rank < tp_size; rank++) {
            const struct weight_part *p = &parts[rank][i];

            ck_assert_ptr_eq(p->tensor, t);
            ck_assert(p->row >= 0 && p->n_rows >= 0 && p->row + p->n_rows <= rows);
            ck_assert(p->col >= 0 && p->n_cols > 0 && p->col + p->n_cols <= cols);
            for (int64_t y = 0; y < p->n_rows; y++)
                for (int64_t x = 0; x < p->n_cols; x++)
                    copies[(p->row + y) * cols + p->col + x]++;
        }
        for (int64_t k = 0; k < rows * cols; k++)
            ck_assert_msg(copies[k] == wanted_copies(t, c, tp_size), "%s: element %lld: %d copies",
                          t->name, (long long)k, copies[k]);
        free(copies);
    }
}

/* Parts of one matrix follow one another without a gap and agree on its shape. */
TEST(parts_fill_their_matrix, .n = 4 * N_SHAPES)
{
    const struct model_config *c = &shapes[_i / 4];
    const int tp_size = 1 << _i % 4;
    struct weight_part parts[N_TENSOR_SPECS];
    struct err e;

    for (int rank = 0; rank < tp_size; rank++) {
        const int n = weight_parts(parts, c, (struct shard){rank, tp_size}, &e);
        int64_t at = 0;

        for (int i = 0; i < n; i++) {
            const struct weight_part *p = &parts[i];
            const bool last = i == n - 1 || p[1].tensor->role != p->tensor->role;

            ck_assert_int_eq(p->to_row, at);
            at += p->n_rows;
            ck_assert_int_ge(p->to_rows, at);
            ck_assert(last || (p[1].to_rows == p->to_rows && p[1].n_cols == p->n_cols));
            if (last) {
                ck_assert_int_eq(p->to_rows, at);
                at = 0;
            }
        }
    }
}

/* A rank has the KV head that each of its query heads reads. */
TEST(query_heads_find_their_kv_heads, .n = 4 * N_SHAPES)
{
    const struct model_config *c = &shapes[_i / 4];
    const int tp_size = 1 << _i % 4, group = c->n_heads / c->n_kv_heads;
    struct weight_part parts[N_TENSOR_SPECS];
    struct err e;

    for (int rank = 0; rank < tp_size; rank++) {
        const struct weight_part *q = parts, *k;
        int64_t n_q, n_kv;

        ck_assert_int_gt(weight_parts(parts, c, (struct shard){rank, tp_size}, &e), 0);
        while (q->tensor->role != WEIGHT_QKV)
            q++;
        k = q + 1;
        n_q = q->n_rows / c->head_dim;
        n_kv = k->n_rows / c->head_dim;
        for (int64_t h = 0; h < n_q; h++)
            ck_assert_int_eq((q->row / c->head_dim + h) / group,
                             k->row / c->head_dim + h / (n_q / n_kv));
    }
}

/* What cannot be divided is refused with its number. */
TEST(uneven_shapes_are_refused, .n = 4)
{
    static const struct {
        int32_t n_heads, n_kv_heads, ffn_dim, tp_size, n_experts;
        const char *text;
    } bad[] = {
        {14, 2, 64, 4, 0, "14 query heads"},
        {12, 6, 64, 4, 0, "6 KV heads"},
        {8, 8, 100, 8, 0, "FFN of 100"},
        {8, 8, 100, 8, 4, "FFN of 100"},
    };
    struct weight_part parts[N_TENSOR_SPECS];
    struct model_config c = shapes[0];
    struct err e;

    c.n_heads = bad[_i].n_heads;
    c.n_kv_heads = bad[_i].n_kv_heads;
    c.ffn_dim = bad[_i].ffn_dim;
    c.n_experts = bad[_i].n_experts;
    ck_assert_int_eq(weight_parts(parts, &c, (struct shard){0, bad[_i].tp_size}, &e), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, bad[_i].text));
}

/* A rank's own configuration has the shapes of its matrices, also where shares differ. */
TEST(rank_configurations_agree_with_weights, .n = 8)
{
    static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                                 .k_align = 1,
                                                 .align = 64,
                                                 .piece_elements = 1 << 20};
    static const struct model_config uneven = {"", 1, 8, 4, 2, 4, 250, 300, .qk_norm = true};
    const struct model_config *c = _i < 4 ? &shapes[0] : &uneven;
    const int tp_size = 1 << _i % 4;
    int32_t ffn = 0, vocab = 0;

    for (int rank = 0; rank < tp_size; rank++) {
        const struct shard s = {rank, tp_size};
        const struct model_config mine = shard_config(c, s);
        struct weights w;
        struct err e;

        ck_assert_int_eq(weights_init(&w, c, s, &layout, &e), 0);
        ck_assert_int_eq(w.layers[0].qkv.n, (mine.n_heads + 2 * mine.n_kv_heads) * mine.head_dim);
        ck_assert_int_eq(w.layers[0].o.k, mine.n_heads * mine.head_dim);
        ck_assert_int_eq(w.layers[0].gate_up.n, 2 * mine.ffn_dim);
        ck_assert_int_eq(w.layers[0].down.k, mine.ffn_dim);
        ck_assert(w.embed.n % 64 == 0 || vocab + w.embed.n == c->vocab_size);
        ffn += mine.ffn_dim;
        vocab += w.embed.n;
        weights_deinit(&w);
    }
    ck_assert_int_eq(ffn, c->ffn_dim);
    ck_assert_int_eq(vocab, c->vocab_size);
}

/* o and down of the first layer, and all projections of the second. */
static uint16_t some_layers[] = {1 << (WEIGHT_O - N_MODEL_WEIGHTS) |
                                     1 << (WEIGHT_DOWN - N_MODEL_WEIGHTS),
                                 1 << (WEIGHT_QKV - N_MODEL_WEIGHTS) |
                                     1 << (WEIGHT_O - N_MODEL_WEIGHTS) |
                                     1 << (WEIGHT_GATE_UP - N_MODEL_WEIGHTS) |
                                     1 << (WEIGHT_DOWN - N_MODEL_WEIGHTS)};

static const struct quantization channels = {.dtype = DTYPE_E4M3,
                                             .scale_dtype = DTYPE_F32,
                                             .scale_rows = 1,
                                             .layers = some_layers};
static const struct quantization blocks = {.dtype = DTYPE_E4M3,
                                           .scale_dtype = DTYPE_F32,
                                           .scale_rows = QUANT_BLOCK,
                                           .scale_cols = QUANT_BLOCK,
                                           .layers = some_layers};
static const struct quantization groups = {.dtype = DTYPE_INT4,
                                           .scale_dtype = DTYPE_F16,
                                           .zeros = true,
                                           .scale_rows = 1,
                                           .scale_cols = 32,
                                           .layers = some_layers};

/* Wide enough for groups on eight ranks. In blocks of 128 rows q, k and v begin on one rank and on
 * two, gate and up on one and on four. */
static const struct model_config quantized[] = {
    {"", 2, 16, 8, 32, 64, 768, 37, .quant = &channels},
    {"", 2, 16, 16, 64, 192, 1024, 37, .quant = &blocks},
    {"", 2, 8, 8, 128, 256, 1000, 37, .quant = &blocks, .n_experts = 3, .n_experts_per_tok = 1},
    {"", 2, 16, 8, 32, 64, 768, 37, .quant = &groups},
    {"", 2, 8, 8, 32, 64, 256, 37, .quant = &groups, .n_experts = 3, .n_experts_per_tok = 1},
};

enum { N_QUANTIZED = N(quantized) };

static void cover(uint8_t *covered, const void *base, const void *from, uint64_t bytes)
{
    const size_t at = (size_t)((const uint8_t *)from - (const uint8_t *)base);

    for (uint64_t k = 0; from && k < bytes; k++)
        if (covered[at + k]++)
            ck_abort_msg("byte %llu is of two pieces", (unsigned long long)(at + k));
}

/* Matrices lie aligned, one behind another, with scales and zeros; pieces are small and cover each
 * row once. */
TEST(pieces_cover_the_memory, .n = 4 * (N_SHAPES + N_QUANTIZED))
{
    enum { ELEMENTS = 20 };
    const struct weights_layout layout = {.vectors = DTYPE_F32,
                                          .k_align = 8,
                                          .align = 64,
                                          .piece_elements = ELEMENTS};
    const struct model_config *c =
        _i < 4 * N_SHAPES ? &shapes[_i / 4] : &quantized[_i / 4 - N_SHAPES];
    const int tp_size = 1 << _i % 4;

    for (int rank = 0; rank < tp_size; rank++) {
        struct weights w;
        struct err e;
        uint8_t *base, *covered;

        ck_assert_int_eq(weights_init(&w, c, (struct shard){rank, tp_size}, &layout, &e), 0);
        base = aligned_alloc(64, w.bytes);
        covered = calloc(1, w.bytes);
        weights_place(&w, base);
        for (int32_t i = 0; i < w.n_pieces; i++) {
            const struct weight_piece *p = &w.pieces[i];
            const struct matrix rows = weight_piece_rows(p);
            const uint64_t n_scales = (uint64_t)matrix_scales(&rows);

            ck_assert((uintptr_t)p->to->data % 64 == 0 && p->to->ld >= p->to->k);
            ck_assert((uintptr_t)p->to->scales % 64 == 0 && (uintptr_t)p->to->zeros % 64 == 0);
            ck_assert(p->part.n_rows <= 1 || p->part.n_rows <= rows.scale_rows ||
                      p->part.n_rows * p->part.n_cols <= ELEMENTS);
            ck_assert_int_eq(p->part.n_cols, p->to->k);
            ck_assert_int_eq(!rows.scales, n_scales == 0);
            cover(covered, base, rows.data, matrix_bytes(&rows));
            cover(covered, base, rows.scales, dtype_bytes(rows.scale_dtype, n_scales));
            cover(covered, base, rows.zeros, n_scales);
        }
        for (size_t k = 0, gap = 0; k < w.bytes; k++) {
            gap = covered[k] ? 0 : gap + 1;
            if (gap == 64)
                ck_abort_msg("byte %zu is of no piece", k);
        }
        ck_assert_int_eq(w.lm_head.data == w.embed.data, c->tied || w.embed.n == 0);
        ck_assert(!w.layers[0].qkv_bias.data == !c->qkv_bias &&
                  !w.layers[0].k_norm.data == !c->qk_norm);
        weights_deinit(&w);
        free(base);
        free(covered);
    }
}

/* Two layers of experts, and the names of their tensors. */
static const struct {
    struct model_config config;
    const char *router, *gate, *up, *down;
} moe[] = {
    {{WRITER_QWEN3_MOE(5, 2), 2, 8, 8, 4, 24, 64, 2048, 64, 1e-6f, 1e6, true},
     "model.layers.%d.mlp.gate.weight",
     "model.layers.%d.mlp.experts.%d.gate_proj.weight",
     "model.layers.%d.mlp.experts.%d.up_proj.weight",
     "model.layers.%d.mlp.experts.%d.down_proj.weight"},
    {{WRITER_MIXTRAL(3, 1), 2, 8, 2, 4, 20, 40, 2048, 64, 1e-6f, 1e6, true},
     "model.layers.%d.block_sparse_moe.gate.weight",
     "model.layers.%d.block_sparse_moe.experts.%d.w1.weight",
     "model.layers.%d.block_sparse_moe.experts.%d.w3.weight",
     "model.layers.%d.block_sparse_moe.experts.%d.w2.weight"},
};

/* Every value is a hash of its tensor's name and its place. */
static uint16_t value(const char *name, uint64_t i)
{
    return (uint16_t)XXH3_64bits_withSeed(name, strlen(name), i);
}

static void write_moe(const struct model_config *c)
{
    struct writer w = {.folder = dir,
                       .tokenizer = TEST_MODEL_DIR,
                       .config = *c,
                       .dtype = DTYPE_BF16,
                       .n_shards = 2};
    struct err e;

    ck_assert_msg(writer_open(&w, &e) == 0, "%s", e.text);
    for (size_t i = 0; i < w.tensors.n; i++) {
        const struct tensor *t = &w.tensors.all[i];
        uint16_t *data = malloc(t->bytes);

        for (uint64_t k = 0; k < tensor_elements(t); k++)
            data[k] = value(t->name, k);
        ck_assert_int_eq(pwrite(w.shards[t->file].fd, data, t->bytes, (off_t)t->offset),
                         (ssize_t)t->bytes);
        free(data);
    }
    ck_assert_int_eq(writer_close(&w, &e), 0);
}

/* Rows of a rank's matrix from `to` on are the tensor's rows from row on, and of each the columns
 * from col on. */
static void check_rows(const struct matrix *m, int64_t to, int64_t n_rows, const char *name,
                       int64_t row, int64_t col, int64_t width)
{
    for (int64_t y = 0; y < n_rows; y++) {
        const uint16_t *got = matrix_row(m, to + y);

        for (int64_t x = 0; x < m->k; x++)
            ck_assert_msg(got[x] == value(name, (uint64_t)((row + y) * width + col + x)),
                          "%s [%d, %d]", name, (int)(row + y), (int)(col + x));
    }
}

static const char *named(const char *format, int layer, int expert)
{
    static char name[TENSOR_NAME_BYTES];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof(name), format, layer, expert);
#pragma GCC diagnostic pop
    return name;
}

static int read_piece(void *model, int thread, const struct weight_piece *p, struct err *e)
{
    const struct matrix to = weight_piece_rows(p);

    (void)thread;
    return weight_piece_read(model, p, &to, e);
}

/* Every byte of every expert is in its place on every rank: gate above up, expert after expert, of
 * each expert the rank's FFN columns. */
TEST(experts_are_in_their_places, .n = 4 * N(moe))
{
    static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                                 .k_align = 16,
                                                 .align = 64,
                                                 .piece_elements = 100};
    const struct model_config *c = &moe[_i / 4].config;
    const int tp_size = 1 << _i % 4;
    struct model *model;
    struct err e;

    make_dir();
    write_moe(c);
    ck_assert_msg(model_open(&model, dir, &e) == 0, "%s", e.text);
    for (int rank = 0; rank < tp_size; rank++) {
        int64_t first, n;
        struct weights w;
        void *base;

        shard_range(&first, &n, c, DIM_FFN, (struct shard){rank, tp_size});
        ck_assert_int_eq(weights_init(&w, c, (struct shard){rank, tp_size}, &layout, &e), 0);
        base = aligned_alloc(64, w.bytes);
        memset(base, 0, w.bytes);
        weights_place(&w, base);
        ck_assert_int_eq(weights_load(&w, 2, read_piece, model, NULL, NULL, &e), 0);
        for (int layer = 0; layer < c->n_layers; layer++) {
            const struct layer_weights *y = &w.layers[layer];

            ck_assert_int_eq(y->gate_up.n, c->n_experts * 2 * n);
            ck_assert_int_eq(y->down.n, c->n_experts * c->hidden_dim);
            ck_assert_int_eq(y->down.k, n);
            check_rows(&y->router, 0, c->n_experts, named(moe[_i / 4].router, layer, 0), 0, 0,
                       c->hidden_dim);
            for (int x = 0; x < c->n_experts; x++) {
                check_rows(&y->gate_up, x * 2 * n, n, named(moe[_i / 4].gate, layer, x), first, 0,
                           c->hidden_dim);
                check_rows(&y->gate_up, x * 2 * n + n, n, named(moe[_i / 4].up, layer, x), first, 0,
                           c->hidden_dim);
                check_rows(&y->down, (int64_t)x * c->hidden_dim, c->hidden_dim,
                           named(moe[_i / 4].down, layer, x), 0, first, c->ffn_dim);
            }
        }
        weights_deinit(&w);
        free(base);
    }
    model_close(model);
    remove_dir();
}

RUN_TESTS("weights", NULL, NULL)
