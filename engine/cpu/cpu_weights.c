/* cpu_weights.c - see cpu_weights.h. */
#include "engine/cpu/cpu_weights.h"

#include <pthread.h>

#include "engine/cpu/cpu_ops.h"

struct loader {
    const struct model *model;
    const struct weights *weights;
    void (*progress)(void *ctx, double done);
    void *progress_ctx;
    pthread_mutex_t lock; /* of what follows */
    int32_t n_read;       /* pieces */
    int error;
    struct err err;
};

static void read_task(void *ctx, int task, int thread)
{
    struct loader *l = ctx;
    const struct weight_piece *p = &l->weights->pieces[task];
    struct err err;
    int r;

    (void)thread;
    pthread_mutex_lock(&l->lock);
    r = l->error;
    pthread_mutex_unlock(&l->lock);
    if (r < 0)
        return;
    r = weight_piece_read(l->model, p, matrix_row(p->to, p->part.to_row), &err);
    pthread_mutex_lock(&l->lock);
    if (r < 0 && l->error == 0) {
        l->error = r;
        l->err = err;
    }
    l->n_read++;
    if (r == 0 && l->progress) /* under the lock: progress never falls */
        l->progress(l->progress_ctx, (double)l->n_read / l->weights->n_pieces);
    pthread_mutex_unlock(&l->lock);
}

int cpu_weights_load(struct weights *w, struct region *memory, const struct model *model,
                     struct cpu_pool *pool, void (*progress)(void *ctx, double done),
                     void *progress_ctx, struct err *e)
{
    static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                                 .k_align = CPU_K_ALIGN,
                                                 .align = 64,
                                                 .piece_elements = 2 << 20};
    struct loader l = {.model = model,
                       .weights = w,
                       .progress = progress,
                       .progress_ctx = progress_ctx,
                       .lock = PTHREAD_MUTEX_INITIALIZER};
    int r =
        weights_init(w, model_config(model), (struct shard){.rank = 0, .tp_size = 1}, &layout, e);

    if (r == 0)
        r = region_init(memory, "the model's weights", w->bytes, e);
    if (r < 0)
        return r;
    weights_place(w, memory->base);
    cpu_pool_run(pool, w->n_pieces, read_task, &l);
    pthread_mutex_destroy(&l.lock);
    return l.error < 0 ? err_set(e, l.error, "%s", l.err.text) : 0;
}
