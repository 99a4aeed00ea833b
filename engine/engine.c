/* engine.c - see engine.h. Turns requests into jobs and hands events back; engine_jobs.c and
 * engine_loop.c do the work. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

uint64_t engine_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

int engine_new(struct engine **out, const struct engine_options *options, struct err *e)
{
    pthread_condattr_t attr;
    struct engine *g;
    int r = -ENOMEM;

    must(options->backend && options->n_tokenizer_threads >= 2);
    g = calloc(1, sizeof(*g));
    if (!g)
        return err_set(e, -ENOMEM, "engine: out of memory");
    g->options = *options;
    list_init(&g->inbox);
    list_init(&g->cancels);
    rr_queue_init(&g->inspects);
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->wake, &attr);
    pthread_condattr_destroy(&attr);
    atomic_init(&g->state, ENGINE_LOADING);
    g->events.fd = -1;
    r = event_queue_init(&g->events, options->event_bytes);
    if (r < 0)
        goto fail;
    r = -ENOMEM;
    g->model_folder = strdup(options->model_folder);
    if (!g->model_folder)
        goto fail;
    g->options.model_folder = g->model_folder;
    if (options->backend_options.cache_folder) {
        g->cache_folder = strdup(options->backend_options.cache_folder);
        if (!g->cache_folder)
            goto fail;
        g->options.backend_options.cache_folder = g->cache_folder;
    }
    r = work_pool_new(&g->pool, options->n_tokenizer_threads);
    if (r < 0)
        goto fail;
    r = thread_start(&g->thread, NULL, engine_main, g);
    if (r < 0)
        goto fail;
    g->thread_runs = true;
    *out = g;
    return 0;
fail:
    engine_free(g);
    return err_set(e, r, "engine: cannot start its threads: %s", strerror(-r));
}

void engine_free(struct engine *g)
{
    struct job *j;
    size_t at = 0;

    if (!g)
        return;
    if (g->events.fd >= 0)
        event_queue_close(&g->events);
    pthread_mutex_lock(&g->lock);
    g->quit = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
    if (g->thread_runs)
        pthread_join(g->thread, NULL);
    work_pool_free(g->pool);
    while ((j = id_map_next(&g->jobs, &at)))
        job_free(j);
    id_map_deinit(&g->jobs);
    engine_events_free(g->out.head);
    g->options.backend->close(g->backend); /* first: steps in flight read the core's batches */
    core_free(g->core);
    tokenizer_free(g->tokenizer);
    model_close(g->model);
    free(g->model_folder);
    free(g->cache_folder);
    free(g->shares);
    free(g->ends);
    if (g->events.fd >= 0)
        event_queue_deinit(&g->events);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
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

void engine_set_packer(struct engine *g, const struct engine_packer *packer)
{
    g->packer = *packer;
}

int engine_event_fd(const struct engine *g)
{
    return g->events.fd;
}

struct engine_event *engine_take(struct engine *g)
{
    return event_queue_take(&g->events);
}

enum engine_state engine_state(const struct engine *g)
{
    return atomic_load(&g->state);
}

void engine_status(const struct engine *g, struct engine_status *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&g->lock;

    *out = (struct engine_status){
        .state = engine_state(g),
        .progress = atomic_load(&g->progress),
    };
    pthread_mutex_lock(lock);
    out->failure = g->failure;
    out->core = g->stats;
    out->n_encoding = g->n_encoding;
    if (out->state == ENGINE_READY)
        out->backend = g->backend_info;
    pthread_mutex_unlock(lock);
    if (out->state != ENGINE_READY)
        return;
    out->block_len = g->options.backend_options.block_len;
    out->max_seq_len = g->max_seq_len;
}

const struct model *engine_model(const struct engine *g)
{
    return engine_state(g) == ENGINE_READY ? g->model : NULL;
}

const struct tokenizer *engine_tokenizer(const struct engine *g)
{
    return engine_state(g) == ENGINE_READY ? g->tokenizer : NULL;
}

const struct chat_template *engine_chat_template(const struct engine *g)
{
    return engine_state(g) == ENGINE_READY ? g->chat_template : NULL;
}

/* Bytes of input, which decide the pool's lane. */
static size_t input_bytes(const struct engine_request *r)
{
    switch (r->input) {
    case ENGINE_PROMPT:
        return r->prompt.len;
    case ENGINE_PROMPT_IDS:
        return r->n_prompt_ids;
    case ENGINE_CHAT:
        break;
    }
    return chat_bytes(r->chat);
}

/* Queues a job for the pool, or for the engine thread where there is nothing to encode. */
static int enter(struct engine *g, struct job *j, bool in_pool)
{
    int r;

    j->phase = in_pool ? JOB_IN_POOL : JOB_IN_INBOX;
    pthread_mutex_lock(&g->lock);
    r = id_map_put(&g->jobs, j->id, j);
    if (r == 0) {
        g->n_encoding += j->request.kind == ENGINE_GENERATE;
        if (!in_pool) {
            list_append(&g->inbox, &j->link);
            pthread_cond_signal(&g->wake);
        }
    }
    pthread_mutex_unlock(&g->lock);
    if (r == 0 && in_pool)
        work_pool_push(g->pool, &j->work, j->client, input_bytes(&j->request));
    return r;
}

static int start(struct engine *g, const struct engine_request *r, uint64_t client,
                 const struct inspect_query *query, bool in_pool)
{
    const bool failed = engine_state(g) == ENGINE_FAILED;
    struct job *j = calloc(1, sizeof(*j));
    struct event_list out = {0};

    if (!j)
        return -ENOMEM;
    j->terminal = engine_event_new(ENGINE_ERROR, r->id, 0, false, 0);
    if (!j->terminal)
        goto fail;
    j->work.run = job_run;
    list_init(&j->link);
    list_init(&j->cancel_link);
    j->engine = g;
    j->id = r->id;
    j->client = client;
    j->arrival_us = engine_now_us();
    j->request = *r;
    if (query)
        j->query = *query;
    if (engine_state(g) == ENGINE_READY) {
        if (enter(g, j, in_pool) < 0)
            goto fail;
        return 0;
    }
    job_fail(j, failed ? ENGINE_E_INTERNAL : ENGINE_E_UNAVAILABLE, NULL,
             failed ? "the engine has failed" : "the model is being loaded", &out);
    event_queue_push(&g->events, &out);
    return 0;
fail:
    free(j->terminal);
    free(j);
    return -ENOMEM;
}

int engine_start(struct engine *g, const struct engine_request *r)
{
    return start(g, r, r->client, NULL, true);
}

int engine_inspect(struct engine *g, const struct engine_request *r, const struct inspect_query *q)
{
    must(r->kind == ENGINE_INSPECT);
    return start(g, r, q->viewer, q,
                 q->kind == INSPECT_CACHE_PIN || q->kind == INSPECT_EXPLAIN_PROMPT);
}

size_t engine_request_bytes(const struct engine_request *r)
{
    size_t told, scheduled, bytes;

    if (!generation_bytes(&told, r) ||
        !core_request_bytes(&scheduled, r->n, r->sampling.n_bias,
                            r->sampling.n_stop_ids + MODEL_MAX_EOS) ||
        !size_add(&bytes, told, scheduled) ||
        !size_add(&bytes, bytes,
                  sizeof(struct job) + sizeof(struct engine_event) + sizeof(struct err)))
        return SIZE_MAX;
    return bytes;
}

/* The pool checks the flag of its jobs; the engine thread is sent all others. */
void engine_cancel(struct engine *g, uint64_t id)
{
    struct job *j;

    pthread_mutex_lock(&g->lock);
    j = id_map_get(&g->jobs, id);
    if (j && !j->cancelled) {
        j->cancelled = true;
        if (j->phase != JOB_IN_POOL) {
            list_append(&g->cancels, &j->cancel_link);
            pthread_cond_signal(&g->wake);
        }
    }
    pthread_mutex_unlock(&g->lock);
}
