/* engine_load.c - opens what the engine works with: model, tokenizer, chat template, backend, core.
 *
 * Engine thread, and one beside it for the tokenizer. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/thread.h"

struct side_load {
    struct engine *g;
    int r;
    struct err e;
};

void engine_publish_state(struct engine *g, enum engine_state state)
{
    struct event_list out = {0};
    struct engine_event *ev = engine_event_new(ENGINE_STATE, 0, NULL, NULL, 0, (struct text){0});

    atomic_store(&g->state, state);
    if (!ev) /* the event is a hint: the loop reads the state with any event */
        return;
    event_list_push(&out, ev);
    engine_publish(g, &out);
}

/* Called on any thread of the backend; each percent makes an event. */
static void on_progress(void *engine, double done)
{
    struct engine *g = engine;
    double before;

    pthread_mutex_lock(&g->lock);
    before = g->status.progress;
    g->status.progress = done;
    pthread_mutex_unlock(&g->lock);
    if ((int)(before * 100) != (int)(done * 100))
        engine_publish_state(g, ENGINE_LOADING);
}

/* Tokenizer and template load beside the weights. */
static void *load_text_side(void *arg)
{
    struct side_load *s = arg;
    struct engine *g = s->g;
    int r = tokenizer_load(&g->tokenizer, g->options.model_folder, &s->e);

    if (r == 0) {
        r = chat_template_load(&g->chat_template, g->options.model_folder, &g->chat_why);
        if (r == 0 && !g->chat_template)
            err_set(&g->chat_why, 0, "the model has no chat template: send a raw prompt");
        if (r == -ENOTSUP) /* raw prompts still work */
            r = 0;
        else if (r < 0)
            s->e = g->chat_why;
    }
    s->r = r;
    return NULL;
}

int engine_check_lengths(const struct backend_options *o, const struct model *model, struct err *e)
{
    const struct model_config *c = model_config(model);

    if (o->max_seq_len > c->max_seq_len)
        return err_set(e, -EINVAL, "scheduler.max_seq_len: %d is over the model's %d",
                       o->max_seq_len, c->max_seq_len);
    return 0;
}

void engine_read_memory(struct engine *g)
{
    struct backend_info info;

    g->options.backend->info(g->backend, &info);
    pthread_mutex_lock(&g->lock);
    g->status.backend = info;
    pthread_mutex_unlock(&g->lock);
}

static int open_core(struct engine *g, struct err *e)
{
    const struct backend_options *o = &g->options.backend_options;
    const struct backend_info *info = &g->status.backend;
    struct core_options options = {
        .n_blocks = info->tiers[TIER_DEVICE].n_blocks,
        .block_len = o->block_len,
        .max_batch_tokens = o->max_batch_tokens,
        .max_seqs = o->max_seqs,
        .max_seq_len = o->max_seq_len,
        .max_preemptions = g->options.max_preemptions,
        .prefix_cache = g->options.prefix_cache,
        .share_all = g->options.share_all,
        .replay = o->invariant,
        .cache_secret = g->options.cache_secret,
    };
    int r;

    for (int t = TIER_HOST; info->copies && t < N_TIERS; t++)
        options.tier_blocks[t] = info->tiers[t].n_blocks;
    r = core_new(&g->core, &options);
    if (r < 0)
        return err_set(e, r, "core: %s", strerror(-r));
    g->cost.max_step_us = g->options.max_step_ms * 1e3;
    core_set_cost(g->core, &g->cost);
    pthread_mutex_lock(&g->lock); /* READY shows all of it */
    g->status.progress = 1;
    g->status.block_len = o->block_len;
    g->status.max_seq_len = o->max_seq_len;
    core_stats(g->core, &g->status.core);
    pthread_mutex_unlock(&g->lock);
    return 0;
}

int engine_load(struct engine *g, struct err *e)
{
    struct side_load side = {.g = g};
    struct backend_options *o = &g->options.backend_options;
    pthread_t thread;
    int r = model_open(&g->model, g->options.model_folder, e);

    if (r == 0)
        r = engine_check_lengths(o, g->model, e);
    if (r < 0)
        return r;
    if (o->max_seq_len == 0)
        o->max_seq_len = model_config(g->model)->max_seq_len;
    g->ends = reallocarray(NULL, (size_t)o->max_seqs, sizeof(*g->ends));
    if (!g->ends)
        return err_set(e, -ENOMEM, "out of memory");
    r = thread_start(&thread, NULL, load_text_side, &side);
    if (r < 0)
        return err_set(e, r, "cannot start a thread: %s", strerror(-r));
    o->progress = on_progress;
    o->progress_ctx = g;
    r = g->options.backend->open(&g->backend, g->model, o, e);
    pthread_join(thread, NULL);
    if (r < 0)
        return r;
    if (side.r < 0) {
        *e = side.e;
        return side.r;
    }
    r = tokenizer_check_vocab(g->tokenizer, model_config(g->model)->vocab_size, e);
    if (r < 0)
        return r;
    engine_read_memory(g);
    return open_core(g, e);
}
