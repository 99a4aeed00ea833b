/* weights.c - see weights.h. */
#include "engine/model/weights.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/checked.h"
#include "engine/util/bf16.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

_Static_assert(offsetof(struct weights, norm) == WEIGHT_NORM * sizeof(struct matrix) &&
                   offsetof(struct layer_weights, down) ==
                       (WEIGHT_DOWN - N_MODEL_WEIGHTS) * sizeof(struct matrix),
               "weights are in the order of their roles");

static uint64_t rounded_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Adds a tensor to its matrix, below those that are there, and cuts it into pieces. False: no
 * memory. */
static bool add_tensor(struct weights *w, const struct model_config *c, const struct tensor_spec *t,
                       int32_t layer)
{
    const struct weights_layout *l = &w->layout;
    const int64_t n_rows = tensor_dim_size(c, t->rows), n_cols = tensor_dim_size(c, t->cols);
    const bool vector = t->cols == DIM_1;
    struct matrix *m = t->role < N_MODEL_WEIGHTS ? &w->of[t->role]
                                                 : &w->layers[layer].of[t->role - N_MODEL_WEIGHTS];
    const int64_t first = m->n;

    m->dtype = vector ? l->vectors : DTYPE_BF16;
    m->k = (int32_t)n_cols;
    m->ld = vector ? 1 : (int64_t)rounded_up((uint64_t)n_cols, (uint64_t)l->k_align);
    w->bytes -= rounded_up(matrix_bytes(m), l->align);
    m->n += (int32_t)n_rows;
    w->bytes += rounded_up(matrix_bytes(m), l->align);
    for (int64_t at = 0, n; at < n_rows; at += n) {
        if (!array_reserve(&w->pieces, &w->pieces_cap, (size_t)w->n_pieces + 1, sizeof(*w->pieces)))
            return false;
        n = n_cols >= l->piece_elements ? 1 : l->piece_elements / n_cols;
        n = n < n_rows - at ? n : n_rows - at;
        w->pieces[w->n_pieces++] = (struct weight_piece){
            .tensor = t, .layer = layer, .row = at, .n_rows = n, .to_row = first + at, .to = m};
    }
    return true;
}

int weights_init(struct weights *w, const struct model_config *c,
                 const struct weights_layout *layout, struct err *e)
{
    *w = (struct weights){.layout = *layout, .tied = c->tied};
    w->layers = calloc((size_t)c->n_layers, sizeof(*w->layers));
    if (!w->layers)
        goto no_memory;
    for (int32_t layer = 0; layer < c->n_layers; layer++)
        for (const struct tensor_spec *t = tensor_specs; t < tensor_specs + N_TENSOR_SPECS; t++)
            if (layer < tensor_spec_count(t, c) && !add_tensor(w, c, t, layer))
                goto no_memory;
    return 0;
no_memory:
    weights_deinit(w);
    return err_set(e, -ENOMEM, "out of memory for a list of weights");
}

void weights_place(struct weights *w, void *base)
{
    char *at = base;

    for (int32_t i = 0; i < w->n_pieces; i++) {
        struct weight_piece *p = &w->pieces[i];

        if (p->to->data)
            continue;
        p->to->data = at;
        at += rounded_up(matrix_bytes(p->to), w->layout.align);
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

int weight_piece_read(const struct model *m, const struct weight_piece *p, void *dst, struct err *e)
{
    const uint64_t width = (uint64_t)p->to->k;
    char name[TENSOR_NAME_BYTES];
    const struct tensor *t;
    uint64_t first = (uint64_t)p->row * width;
    uint16_t *row = dst;
    int r = 0;

    tensor_spec_name(name, p->tensor, p->layer);
    t = model_tensor(m, name);
    must(t);
    if (p->to->dtype == DTYPE_F32)
        return read_floats(m, t, first, dst, (size_t)p->n_rows, e);
    if (p->to->k == p->to->ld)
        return model_read_bf16(m, t, first, dst, (size_t)p->n_rows * width, e);
    for (int64_t i = 0; i < p->n_rows && r == 0; i++) {
        r = model_read_bf16(m, t, first, row, width, e);
        first += width;
        row += p->to->ld;
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
           thread_start(&threads[n], NULL, load_pieces, &l) == 0)
        n++;
    (void)load_pieces(&l);
    for (int i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&l.lock);
    return l.error < 0 ? err_set(e, l.error, "%s", l.err.text) : 0;
}
