/* engine.c - see engine.h. Turns requests into jobs, hands events back and loads what the engine
 * works with; engine_jobs.c and engine_loop.c do the work. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/model/tensor_table.h"
#include "engine/util/clock.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

int engine_new(struct engine **out, const struct engine_options *options, struct err *e)
{
    const char *cache_folder = options->backend_options.cache_folder;
    const char *disk_folder = options->disk_folder;
    const char *chat_template = options->chat_template;
    const char *draft_folder = options->draft_folder;
    struct engine *g;
    int r;

    must(options->backend && options->n_tokenizer_threads >= 2);
    g = calloc(1, sizeof(*g));
    if (!g)
        return err_set(e, -ENOMEM, "engine: out of memory");
    g->options = *options;
    g->options.model_folder = strdup(options->model_folder);
    g->options.backend_options.cache_folder = cache_folder ? strdup(cache_folder) : NULL;
    g->options.disk_folder = disk_folder ? strdup(disk_folder) : NULL;
    g->options.chat_template = chat_template ? strdup(chat_template) : NULL;
    g->options.draft_folder = draft_folder ? strdup(draft_folder) : NULL;
    g->idle_sleep_us = (uint64_t)options->idle_sleep_s * 1000000u;
    list_init(&g->inbox);
    work_queue_init(&g->inspects);
    list_init(&g->formats);
    pthread_mutex_init(&g->vocabulary_lock, NULL);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->room, NULL);
    pthread_cond_init(&g->wake, NULL);
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = g->event_fd < 0 ? -errno : 0;
    if (!g->options.model_folder || (cache_folder && !g->options.backend_options.cache_folder) ||
        (disk_folder && !g->options.disk_folder) || (chat_template && !g->options.chat_template) ||
        (draft_folder && !g->options.draft_folder))
        r = -ENOMEM;
    if (r == 0)
        r = work_pool_new(&g->pool, options->n_tokenizer_threads);
    if (r == 0)
        r = thread_start(&g->thread, "engine", engine_main, g);
    if (r < 0) {
        engine_free(g);
        return err_set(e, r, "engine: cannot start its threads: %s", strerror(-r));
    }
    g->thread_runs = true;
    *out = g;
    return 0;
}

void engine_free(struct engine *g)
{
    struct job *j;
    size_t at = 0;

    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->quit = true;
    pthread_cond_signal(&g->wake);
    pthread_cond_broadcast(&g->room);
    pthread_mutex_unlock(&g->lock);
    if (g->thread_runs)
        pthread_join(g->thread, NULL);
    work_pool_free(g->pool);
    while ((j = id_map_next(&g->jobs, &at)))
        job_free(j);
    id_map_deinit(&g->jobs);
    engine_events_free(g->events.head);
    engine_events_free(g->out.head);
    engine_close_disk(g);                  /* which reads and writes the backend's memory */
    g->options.backend->close(g->backend); /* before the core: steps in flight read its batches */
    drafter_free(g->drafter);
    core_free(g->core);
    engine_free_formats(g);
    tokenizer_free(g->tokenizer);
    chat_template_free(g->chat_template);
    model_close(g->model);
    free((char *)(uintptr_t)g->options.model_folder);
    free((char *)(uintptr_t)g->options.chat_template);
    free((char *)(uintptr_t)g->options.draft_folder);
    free((char *)(uintptr_t)g->options.backend_options.cache_folder);
    free((char *)(uintptr_t)g->options.disk_folder);
    free(g->shares);
    free(g->ends);
    free(g->trace);
    if (g->event_fd >= 0)
        close(g->event_fd);
    pthread_cond_destroy(&g->room);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->vocabulary_lock);
    free(g);
}

int engine_set_shares(struct engine *g, const struct fair_share *shares, int32_t n)
{
    struct fair_share *copy = NULL;

    if (n) {
        copy = reallocarray(NULL, (size_t)n, sizeof(*copy));
        if (!copy)
            return -ENOMEM;
        memcpy(copy, shares, (size_t)n * sizeof(*copy));
    }
    pthread_mutex_lock(&g->lock);
    free(g->shares);
    g->shares = copy;
    g->n_shares = n;
    g->new_shares = true;
    pthread_mutex_unlock(&g->lock);
    return 0;
}

void engine_set_idle_sleep(struct engine *g, int32_t seconds)
{
    pthread_mutex_lock(&g->lock);
    g->idle_sleep_us = (uint64_t)seconds * 1000000u;
    g->new_idle_sleep = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

void engine_set_packer(struct engine *g, const struct engine_packer *packer)
{
    g->packer = *packer;
}

int engine_event_fd(const struct engine *g)
{
    return g->event_fd;
}

void event_list_push(struct event_list *l, struct engine_event *ev)
{
    ev->next = NULL;
    l->bytes += ev->bytes;
    if (l->tail)
        l->tail->next = ev;
    else
        l->head = ev;
    l->tail = ev;
}

void engine_events_free(struct engine_event *list)
{
    while (list) {
        struct engine_event *next = list->next;

        inspect_report_free(list->report);
        free(list->packed.data);
        free(list->embedding);
        free(list);
        list = next;
    }
}

/* Writes the eventfd where there was no event before. */
void engine_publish(struct engine *g, struct event_list *out)
{
    bool wake;

    if (!out->head)
        return;
    pthread_mutex_lock(&g->lock);
    wake = !g->events.head;
    if (wake)
        g->events.head = out->head;
    else
        g->events.tail->next = out->head;
    g->events.tail = out->tail;
    g->events.bytes += out->bytes;
    pthread_mutex_unlock(&g->lock);
    *out = (struct event_list){0};
    if (wake)
        must(eventfd_write(g->event_fd, 1) == 0);
}

struct engine_event *engine_take(struct engine *g)
{
    struct event_list events;
    eventfd_t count;

    /* The eventfd is read first: what is published after the swap makes it readable again. */
    must(eventfd_read(g->event_fd, &count) == 0 || errno == EAGAIN);
    pthread_mutex_lock(&g->lock);
    events = g->events;
    g->events = (struct event_list){0};
    pthread_cond_broadcast(&g->room);
    pthread_mutex_unlock(&g->lock);
    return events.head;
}

bool engine_wait_for_room(struct engine *g)
{
    const size_t limit = g->options.event_bytes;
    bool waited = false;

    pthread_mutex_lock(&g->lock);
    while (!g->quit && limit && g->events.bytes > limit) {
        waited = true;
        pthread_cond_wait(&g->room, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return waited;
}

enum engine_state engine_state(const struct engine *g)
{
    return atomic_load(&g->state);
}

enum sleep_level engine_asleep(const struct engine *g)
{
    return atomic_load(&g->asleep);
}

void engine_status(const struct engine *g, struct engine_status *out)
{
    static const char *const kv_dtypes[] = {
        [KV_DTYPE_F32] = "f32", [KV_DTYPE_BF16] = "bf16", [KV_DTYPE_FP8] = "fp8"};
    pthread_mutex_t *lock = (pthread_mutex_t *)&g->lock;

    pthread_mutex_lock(lock);
    *out = g->status;
    out->beat = g->beat % 2 || !list_empty(&g->inbox) ? g->beat : 0;
    pthread_mutex_unlock(lock);
    out->state = engine_state(g);
    out->asleep = engine_asleep(g);
    out->n_ranks = out->backend.n_devices > 1 ? out->backend.n_devices : 0;
    out->ranks = out->backend.devices;
    if (out->state != ENGINE_READY)
        return;
    out->weights = model_kept_as(model_config(g->model));
    out->kv_dtype = kv_dtypes[out->backend.kv_dtype];
}

void engine_metrics(const struct engine *g, struct engine_metrics *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&g->lock;

    pthread_mutex_lock(lock);
    *out = g->metrics;
    pthread_mutex_unlock(lock);
}

const struct model *engine_model(const struct engine *g)
{
    return engine_state(g) == ENGINE_READY ? g->model : NULL;
}

const struct chat_template *engine_chat_template(const struct engine *g)
{
    return engine_state(g) == ENGINE_READY ? g->chat_template : NULL;
}

/* Bytes of input, which decide the pool's lane. */
static size_t input_bytes(const struct engine_request *r)
{
    if (r->input == ENGINE_CHAT)
        return chat_bytes(r->chat);
    return r->input == ENGINE_PROMPT ? r->prompt.len : r->n_prompt_ids;
}

int engine_start(struct engine *g, const struct engine_request *r)
{
    const bool in_pool = r->kind != ENGINE_INSPECT || inspect_has_prompt(r->query.kind);
    const enum engine_state state = engine_state(g);
    struct event_list out = {0};
    struct job *j = calloc(1, sizeof(*j));
    int ret;

    if (!j)
        return -ENOMEM;
    j->terminal.request = r->id;
    j->terminal.message = &j->message;
    j->work.run = job_run;
    list_init(&j->work.link);
    list_init(&j->link);
    j->engine = g;
    j->arrival_us = clock_us();
    j->request = *r;
    if (r->kind == ENGINE_INSPECT)
        j->request.client = r->query.viewer;
    pthread_mutex_lock(&g->lock);
    ret = id_map_put(&g->jobs, r->id, j);
    if (ret == 0)
        g->status.n_encoding += engine_computes(r->kind);
    if (ret == 0 && state == ENGINE_READY && !in_pool) {
        j->phase = JOB_IN_INBOX;
        list_append(&g->inbox, &j->link);
        pthread_cond_signal(&g->wake);
    }
    pthread_mutex_unlock(&g->lock);
    if (ret < 0) {
        free(j);
        return ret;
    }
    if (state == ENGINE_READY && in_pool)
        work_pool_push(g->pool, &j->work, j->request.client, input_bytes(r));
    else if (state == ENGINE_LOADING)
        job_fail(j, &out, ENGINE_E_UNAVAILABLE, NULL, "the model is being loaded");
    else if (state == ENGINE_FAILED)
        job_fail(j, &out, ENGINE_E_INTERNAL, NULL, "the engine has failed");
    engine_publish(g, &out);
    return 0;
}

uint64_t engine_request_bytes(const struct engine *g, const struct engine_request *r)
{
    if (r->kind == ENGINE_EMBED)
        return sizeof(struct job) + embedding_bytes(model_config(g->model)->hidden_dim) +
               core_request_bytes(1, 0, 0);
    return sizeof(struct job) + generation_bytes(r) + guide_bytes(g, r) +
           core_request_bytes(r->n, r->sampling.n_bias, r->sampling.n_stop_ids + MODEL_MAX_EOS);
}

/* Jobs that have not reached the engine thread keep the flag; that thread is sent the others. */
void engine_cancel(struct engine *g, uint64_t id)
{
    struct job *j;

    pthread_mutex_lock(&g->lock);
    j = id_map_get(&g->jobs, id);
    if (j && !j->cancelled) {
        j->cancelled = true;
        if (j->phase == JOB_IN_ENGINE) {
            list_append(&g->inbox, &j->link);
            pthread_cond_signal(&g->wake);
        }
    }
    pthread_mutex_unlock(&g->lock);
}

/* ---- the load: engine thread, and one beside it for the tokenizer */

struct side_load {
    struct engine *g;
    int r;
    struct err e;
};

void engine_publish_state(struct engine *g, enum engine_state state)
{
    atomic_store(&g->state, state);
    must(eventfd_write(g->event_fd, 1) == 0);
}

/* Any backend thread. Wakes the loop at each whole percent. */
static void on_progress(void *engine, double done)
{
    struct engine *g = engine;
    double before;

    g->beat += 2;
    if (engine_state(g) != ENGINE_LOADING) /* it wakes */
        return;
    pthread_mutex_lock(&g->lock);
    before = g->status.progress;
    g->status.progress = done;
    pthread_mutex_unlock(&g->lock);
    if ((int)(before * 100) != (int)(done * 100))
        engine_publish_state(g, ENGINE_LOADING);
}

/* Whether the text begins with a name, of a folder with or without a file in it. */
static bool names(const struct err *e, const char *name)
{
    const size_t n = strlen(name);

    return strncmp(e->text, name, n) == 0 &&
           (e->text[n] == ':' || e->text[n] == '/' || (n > 0 && name[n - 1] == '/'));
}

/* Names the folder in an error in the model's files, unless that or the option of another file is
 * named already. */
static void say_where(const struct engine *g, struct err *e)
{
    const struct err why = *e;

    if (!names(e, "model.chat_template") && !names(e, g->options.model_folder))
        err_set(e, 0, "%s: %s", g->options.model_folder, why.text);
}

/* Tokenizer and template load beside the weights. */
static void *load_text_side(void *arg)
{
    struct side_load *s = arg;
    struct engine *g = s->g;
    int r = tokenizer_load(&g->tokenizer, g->options.model_folder, &s->e);

    if (r == 0) {
        r = chat_template_load(&g->chat_template, g->options.model_folder, g->options.chat_template,
                               &g->chat_why);
        if (r == 0 && !g->chat_template)
            err_set(&g->chat_why, 0, "the model has no chat template: send a raw prompt");
        if (r == -ENOTSUP) /* raw prompts still work */
            r = 0;
        else if (r < 0)
            s->e = g->chat_why;
    }
    if (r < 0)
        say_where(g, &s->e);
    if (r == 0 && g->options.draft_folder)
        r = drafter_check_vocabulary(g->options.draft_folder, g->tokenizer, &s->e);
    s->r = r;
    return NULL;
}

int engine_check_options(const struct backend_options *o, const struct model *model, struct err *e)
{
    const struct model_config *c = model_config(model);
    struct err why;
    int r;

    if (o->max_seq_len > c->max_seq_len)
        return err_set(e, -EINVAL, "scheduler.max_seq_len: %d exceeds the model's %d",
                       o->max_seq_len, c->max_seq_len);
    r = o->tp_size > 1 ? shard_check(c, o->tp_size, &why) : 0;
    return r < 0 ? err_set(e, r, "model.tensor_parallel: %s", why.text) : 0;
}

void engine_read_memory(struct engine *g)
{
    const uint64_t draft_bytes = g->drafter ? drafter_bytes(g->drafter) : 0;
    struct backend_info info;

    g->options.backend->info(g->backend, &info);
    info.other_bytes -= draft_bytes < info.other_bytes ? draft_bytes : info.other_bytes;
    pthread_mutex_lock(&g->lock);
    g->status.backend = info;
    g->status.draft_bytes = draft_bytes;
    pthread_mutex_unlock(&g->lock);
}

/* With the disk tier, if there is one. */
static int new_core(struct engine *g, struct err *e)
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
        .speculate = g->options.speculate,
        .cache_secret = g->options.cache_secret,
    };
    int r;

    if (g->drafter) {
        options.draft_seqs = DRAFTER_SEQS;
        options.draft_len = drafter_max_len(g->drafter);
    }
    g->has_masks = info->masks;
    options.offload = info->offloads;
    if (info->masks)
        options.mask_words = (model_config(g->model)->vocab_size + 31) / 32;
    if (info->copies)
        options.tier_blocks[TIER_HOST] = info->tiers[TIER_HOST].n_blocks;
    if (g->disk)
        options.tier_blocks[TIER_DISK] = disk_tier_blocks(g->disk);
    options.restores = g->disk != NULL;
    r = core_new(&g->core, &options);
    if (r < 0)
        return err_set(e, r, "core: %s", strerror(-r));
    return g->disk ? engine_start_disk(g, e) : 0;
}

static int open_core(struct engine *g, struct err *e)
{
    int r = new_core(g, e);

    if (r < 0 && g->disk) {
        g->options.warn("cache.disk: no memory or thread for it; lower it");
        engine_close_disk(g);
        core_free(g->core);
        g->core = NULL;
        r = new_core(g, e);
    }
    if (r < 0)
        return r;
    core_set_offload(g->core, g->status.backend.may_offload);
    g->cost.max_step_us = g->options.max_step_ms * 1e3;
    core_set_cost(g->core, &g->cost);
    pthread_mutex_lock(&g->lock); /* READY shows all of it */
    g->status.progress = 1;
    g->status.block_len = g->options.backend_options.block_len;
    if (model_embedder(g->model)->pooling != POOLING_NONE)
        g->status.embedding_dim = g->status.backend.sum_dim;
    g->status.max_seq_len = g->options.backend_options.max_seq_len;
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

    g->beat++; /* the engine thread works */
    if (r < 0)
        say_where(g, e);
    if (r == 0)
        r = model_quantize(g->model, g->options.quantize, e);
    if (r == 0)
        r = engine_check_options(o, g->model, e);
    if (r < 0)
        return r;
    if (o->max_seq_len == 0)
        o->max_seq_len = model_config(g->model)->max_seq_len;
    g->ends = reallocarray(NULL, (size_t)o->max_seqs, sizeof(*g->ends));
    if (!g->ends)
        return err_set(e, -ENOMEM, "out of memory");
    r = thread_start(&thread, "tokenizer-load", load_text_side, &side);
    if (r < 0)
        return err_set(e, r, "cannot start a thread: %s", strerror(-r));
    o->progress = on_progress;
    o->progress_ctx = g;
    o->beat = &g->beat;
    r = engine_open_drafter(g, e);
    if (r == 0)
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
    if (g->options.disk_bytes && g->options.prefix_cache && engine_open_disk(g, e) < 0)
        g->options.warn(e->text);
    return open_core(g, e);
}
