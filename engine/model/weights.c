/* weights.c - see weights.h. */
#include "engine/model/weights.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/model/quantization.h"
#include "engine/model/quantized.h"
#include "engine/util/bf16.h"
#include "engine/util/checked.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

_Static_assert(offsetof(struct weights, norm) == WEIGHT_NORM * sizeof(struct matrix) &&
                   offsetof(struct layer_weights, down) ==
                       (WEIGHT_DOWN - N_MODEL_WEIGHTS) * sizeof(struct matrix),
               "weights are in the order of their roles");

enum { PIECE_ALIGN = 64 }; /* of what is in a piece's buffer */

static uint64_t rounded_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static bool has_zeros(const struct weights *w)
{
    return w->quant && w->quant->zeros;
}

/* Divides memory among elements, scales and zeros of a matrix, each aligned, and returns how much
 * they take. base NULL: only that. */
static uint64_t place_matrix(struct matrix *m, bool zeros, void *base, uint32_t align)
{
    const uint64_t n_scales = (uint64_t)matrix_scales(m);
    const uint64_t data = rounded_up(matrix_bytes(m), align);
    const uint64_t scales = rounded_up(dtype_bytes(m->scale_dtype, n_scales), align);

    if (base) {
        m->data = base;
        m->scales = n_scales ? (char *)base + data : NULL;
        m->zeros = n_scales && zeros ? (uint8_t *)base + data + scales : NULL;
    }
    return data + scales + (zeros ? rounded_up(n_scales, align) : 0);
}

/* Whether all parts of a weight begin at blocks of scales, in their tensors and in the matrix.
 * Where they do not, each row has scales of its own. */
static bool has_whole_blocks(const struct weight_part *part, int n_parts, int32_t n_experts,
                             int32_t scale_rows)
{
    for (int i = 0; i < n_parts && part[i].tensor->role == part->tensor->role; i++)
        if (part[i].row % scale_rows != 0 || part[i].to_row % scale_rows != 0)
            return false;
    return n_experts == 1 || part->to_rows % scale_rows == 0;
}

/* The shape of the matrix that begins with a part, the first of n_parts; ld is set later. */
static struct matrix matrix_of_part(const struct weights *w, const struct weight_part *part,
                                    int n_parts, int32_t n_experts, int32_t layer)
{
    const struct quantization *q = w->quant;
    struct matrix m = {.dtype = part->n_cols == 1 ? w->layout.vectors : DTYPE_BF16,
                       .n = (int32_t)part->to_rows * n_experts,
                       .k = (int32_t)part->n_cols};

    if (!quantization_has(q, part->tensor->role, layer))
        return m;
    m.dtype = q->dtype;
    m.scale_dtype = q->scale_dtype;
    m.scale_cols = q->scale_cols ? q->scale_cols : m.k;
    m.scale_rows = has_whole_blocks(part, n_parts, n_experts, q->scale_rows) ? q->scale_rows : 1;
    return m;
}

/* Shapes the matrix of a part, the first of n_parts that follow, and cuts the part of one expert
 * into pieces. False: no memory. */
static bool add_part(struct weights *w, const struct weight_part *part, int n_parts,
                     int32_t n_experts, int32_t layer, int32_t expert)
{
    const struct weights_layout *l = &w->layout;
    const enum weight_role role = part->tensor->role;
    struct matrix *m =
        role < N_MODEL_WEIGHTS ? &w->of[role] : &w->layers[layer].of[role - N_MODEL_WEIGHTS];
    uint64_t bytes;
    int64_t most;

    if (part->to_row == 0 && expert == 0) {
        *m = matrix_of_part(w, part, n_parts, n_experts, layer);
        m->ld = m->k == 1 ? 1 : (int64_t)rounded_up((uint64_t)m->k, (uint64_t)l->k_align);
        w->bytes += place_matrix(m, has_zeros(w), NULL, l->align);
    }
    most = l->piece_elements / part->n_cols;
    if (m->scale_rows > 1)
        most = most / m->scale_rows * m->scale_rows;
    if (most == 0)
        most = m->scale_rows > 1 ? m->scale_rows : 1;
    for (int64_t at = 0, n; at < part->n_rows; at += n) {
        struct matrix rows;
        struct weight_piece *p;

        if (!array_reserve(&w->pieces, &w->pieces_cap, (size_t)w->n_pieces + 1, sizeof(*p)))
            return false;
        n = most < part->n_rows - at ? most : part->n_rows - at;
        p = &w->pieces[w->n_pieces++];
        *p = (struct weight_piece){.part = *part, .number = layer * n_experts + expert, .to = m};
        p->part.row += at;
        p->part.to_row += expert * part->to_rows + at;
        p->part.n_rows = n;
        rows = *m;
        rows.n = (int32_t)n;
        bytes = place_matrix(&rows, has_zeros(w), NULL, PIECE_ALIGN);
        w->piece_bytes = bytes > w->piece_bytes ? bytes : w->piece_bytes;
    }
    return true;
}

/* A part of a layer, of all its experts, the first of n_parts that follow; that of the whole model
 * is with layer 0. */
static bool add_tensors(struct weights *w, const struct weight_part *part, int n_parts,
                        const struct model_config *c, int32_t layer)
{
    const int32_t n = tensor_spec_experts(part->tensor, c);

    if (layer > 0 && part->tensor->role < N_MODEL_WEIGHTS)
        return true;
    for (int32_t expert = 0; expert < n; expert++)
        if (!add_part(w, part, n_parts, n, layer, expert))
            return false;
    return true;
}

int weights_init(struct weights *w, const struct model_config *c, struct shard s,
                 const struct weights_layout *layout, struct err *e)
{
    struct weight_part parts[N_TENSOR_SPECS];
    const int n_parts = weight_parts(parts, c, s, e);

    *w = (struct weights){.layout = *layout, .tied = c->tied, .quant = c->quant};
    if (n_parts < 0)
        return n_parts;
    w->layers = calloc((size_t)c->n_layers, sizeof(*w->layers));
    if (!w->layers)
        goto no_memory;
    for (int32_t layer = 0; layer < c->n_layers; layer++)
        for (int i = 0; i < n_parts; i++)
            if (!add_tensors(w, &parts[i], n_parts - i, c, layer))
                goto no_memory;
    return 0;
no_memory:
    weights_deinit(w);
    return err_set(e, -ENOMEM, "out of memory for a list of weights");
}

int weights_measure(uint64_t *out, const struct model_config *c, struct shard s,
                    const struct weights_layout *layout, struct err *e)
{
    struct weights w;
    const int r = weights_init(&w, c, s, layout, e);

    if (r < 0)
        return r;
    *out = w.bytes;
    weights_deinit(&w);
    return 0;
}

void weights_place(struct weights *w, void *base)
{
    char *at = base;

    for (int32_t i = 0; i < w->n_pieces; i++) {
        struct weight_piece *p = &w->pieces[i];

        if (p->to->data)
            continue;
        at += place_matrix(p->to, has_zeros(w), at, w->layout.align);
    }
    must(at == (char *)base + w->bytes);
    if (w->tied)
        w->lm_head = w->embed;
}

void weights_deinit(struct weights *w)
{
    free(w->layers);
    free(w->pieces);
    *w = (struct weights){0};
}

/* Through bf16 whatever the file holds: every backend computes with the same numbers. They are read
 * into the upper half of dst and widened from the first on, each before it is overwritten. */
static int read_floats(const struct model *m, const struct tensor *t, uint64_t first, float *dst,
                       size_t n, struct err *e)
{
    uint16_t *narrow = (uint16_t *)dst + n;
    int r = model_read_bf16(m, t, first, narrow, n, e);

    for (size_t i = 0; i < n && r == 0; i++)
        dst[i] = f32_from_bf16(narrow[i]);
    return r;
}

struct matrix weight_piece_rows(const struct weight_piece *p)
{
    return matrix_rows(p->to, (int32_t)p->part.to_row, (int32_t)p->part.n_rows);
}

struct matrix weight_piece_buffer(const struct weight_piece *p, void *buffer)
{
    struct matrix rows = weight_piece_rows(p);

    (void)place_matrix(&rows, rows.zeros, buffer, PIECE_ALIGN);
    return rows;
}

int weight_piece_read(const struct model *m, const struct weight_piece *p, const struct matrix *to,
                      struct err *e)
{
    const struct weight_part *part = &p->part;
    char name[TENSOR_NAME_BYTES];
    const struct tensor *t;
    uint64_t width, first;
    uint16_t *row = to->data;
    int r = 0;

    if (to->scale_rows)
        return quantized_piece_read(m, p, to, e);
    tensor_spec_name(name, part->tensor, model_config(m), p->number);
    t = model_tensor(m, name);
    must(t);
    width = t->rank == 2 ? (uint64_t)t->shape[1] : 1;
    first = (uint64_t)part->row * width + (uint64_t)part->col;
    if (to->dtype == DTYPE_F32)
        return read_floats(m, t, first, to->data, (size_t)part->n_rows, e);
    if (part->n_cols == (int64_t)width && part->n_cols == to->ld)
        return model_read_bf16(m, t, first, row, (size_t)(part->n_rows * part->n_cols), e);
    for (int64_t i = 0; i < part->n_rows && r == 0; i++) {
        r = model_read_bf16(m, t, first, row, (size_t)part->n_cols, e);
        first += width;
        row += to->ld;
    }
    return r;
}

struct loader {
    const struct weights *w;
    weight_piece_fn *load;
    void *ctx;
    void (*progress)(void *ctx, double done);
    void *progress_ctx;
    pthread_mutex_t lock; /* of what follows */
    int n_threads;
    int32_t n_begun, n_done; /* pieces */
    int error;               /* the first */
    struct err err;
};

static void *load_pieces(void *arg)
{
    struct loader *l = arg;
    int thread;

    pthread_mutex_lock(&l->lock);
    thread = l->n_threads++;
    while (l->error == 0 && l->n_begun < l->w->n_pieces) {
        const struct weight_piece *p = &l->w->pieces[l->n_begun++];
        struct err err;
        int r;

        pthread_mutex_unlock(&l->lock);
        r = l->load(l->ctx, thread, p, &err);
        pthread_mutex_lock(&l->lock);
        l->n_done++;
        if (r == 0 && l->progress) /* under the lock: progress never falls */
            l->progress(l->progress_ctx, (double)l->n_done / l->w->n_pieces);
        if (r < 0 && l->error == 0) {
            l->error = r;
            l->err = err;
        }
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

int weights_load(const struct weights *w, int max_threads, weight_piece_fn *load, void *ctx,
                 void (*progress)(void *ctx, double done), void *progress_ctx, struct err *e)
{
    struct loader l = {.w = w,
                       .load = load,
                       .ctx = ctx,
                       .progress = progress,
                       .progress_ctx = progress_ctx,
                       .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[WEIGHTS_MAX_THREADS - 1];
    int n = 0;

    must(max_threads <= WEIGHTS_MAX_THREADS);
    while (n < max_threads - 1 && n < w->n_pieces - 1 &&
           thread_start(&threads[n], "weights", load_pieces, &l) == 0)
        n++;
    (void)load_pieces(&l);
    for (int i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&l.lock);
    return l.error < 0 ? err_set(e, l.error, "%s", l.err.text) : 0;
}
