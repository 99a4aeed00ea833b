/* engine.c - the engine's face to the daemon's loop: see engine.h. Takes requests, makes jobs of
 * them, hands lists of events back; the work is done in engine_jobs.c and engine_loop.c. */
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
    g->ask_round = ENGINE_FIRST_ROUND;
    tickets_init(&g->tickets);
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

static void free_jobs(struct job *list)
{
    while (list) {
        struct job *j = list;

        list = j->next;
        job_free(j);
    }
}

static void free_dropped(struct engine *g, struct work *undone)
{
    struct generation *live;
    struct job *pin;
    size_t at = 0;

    while (undone) {
        struct job *j = (struct job *)undone;

        undone = undone->next;
        job_free(j);
    }
    free_jobs(g->inbox_head);
    free_jobs(g->questions);
    id_map_deinit(&g->asked);
    while ((live = id_map_next(&g->live, &at)))
        generation_free(live);
    id_map_deinit(&g->live);
    for (at = 0; (pin = id_map_next(&g->pins, &at));)
        job_free(pin);
    id_map_deinit(&g->pins);
    tickets_deinit(&g->tickets);
    free(g->ends);
}

void engine_free(struct engine *g)
{
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
    free_dropped(g, work_pool_free(g->pool));
    engine_events_free(g->out.head);
    g->options.backend->close(g->backend); /* steps under way still read the core's batches */
    core_free(g->core);
    chat_template_free(g->chat_template);
    tokenizer_free(g->tokenizer);
    model_close(g->model);
    free(g->model_folder);
    free(g->cache_folder);
    free(g->shares);
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

/* Bytes that the pool will have to work on: which lane the job waits in. */
static size_t cost_of(const struct job *j)
{
    const struct chat *chat = j->kind == JOB_RENDER ? j->chat : NULL;
    bool prompt = j->kind == JOB_GENERATE || j->kind == JOB_INSPECT;
    size_t cost = 0;

    if (prompt && j->request.input == ENGINE_CHAT)
        chat = j->request.chat;
    if (prompt && j->request.input == ENGINE_PROMPT)
        cost = j->request.prompt.len;
    if (prompt && j->request.input == ENGINE_PROMPT_IDS)
        cost = j->request.n_prompt_ids;
    if (j->kind == JOB_TOKENIZE)
        cost = j->text.len;
    if (j->kind == JOB_DETOKENIZE)
        cost = j->n_ids;
    return chat ? chat_bytes(chat) : cost;
}

void engine_inbox_add(struct engine *g, struct job *j)
{
    j->next = NULL;
    if (g->inbox_tail)
        g->inbox_tail->next = j;
    else
        g->inbox_head = j;
    g->inbox_tail = j;
    pthread_cond_signal(&g->wake);
}

/* Takes the job over: into the pool, or to the engine thread where there is nothing to encode, or
 * an error event at once where there is no model. */
static int start(struct engine *g, const struct job *template, bool in_pool)
{
    struct event_list out = {0};
    struct job *j = malloc(sizeof(*j));
    int r = -ENOMEM;

    if (!j)
        return -ENOMEM;
    *j = *template;
    j->engine = g;
    j->arrival_us = engine_now_us();
    j->work = (struct work){.client = j->client, .cost = cost_of(j), .run = job_run};
    j->terminal = engine_event_new(ENGINE_ERROR, j->id, 0, false, 0);
    if (!j->terminal)
        goto fail;
    if (engine_state(g) != ENGINE_READY) {
        bool failed = engine_state(g) == ENGINE_FAILED;

        job_fail(j, failed ? ENGINE_E_INTERNAL : ENGINE_E_UNAVAILABLE, NULL,
                 failed ? "the engine has failed" : "the model is being loaded", &out);
        event_queue_push(&g->events, &out);
        return 0;
    }
    pthread_mutex_lock(&g->lock);
    r = tickets_open(&g->tickets, j->id, j, in_pool);
    if (r == 0 && !in_pool)
        engine_inbox_add(g, j);
    if (r == 0)
        g->n_encoding += j->kind == JOB_GENERATE;
    pthread_mutex_unlock(&g->lock);
    if (r < 0)
        goto fail;
    if (in_pool)
        work_pool_push(g->pool, &j->work);
    return 0;
fail:
    free(j->terminal);
    free(j);
    return r;
}

int engine_generate(struct engine *g, const struct engine_request *r)
{
    struct job j = {.kind = JOB_GENERATE,
                    .id = r->id,
                    .client = r->client,
                    .request = *r,
                    .owner = r->owner,
                    .release = r->release};

    return start(g, &j, true);
}

int engine_tokenize(struct engine *g, uint64_t id, uint64_t client, struct text text, bool special,
                    void *owner, void (*release)(void *))
{
    struct job j = {.kind = JOB_TOKENIZE,
                    .id = id,
                    .client = client,
                    .text = text,
                    .special = special,
                    .owner = owner,
                    .release = release};

    return start(g, &j, true);
}

int engine_detokenize(struct engine *g, uint64_t id, uint64_t client, const int32_t *ids, size_t n,
                      bool skip_special, void *owner, void (*release)(void *))
{
    struct job j = {.kind = JOB_DETOKENIZE,
                    .id = id,
                    .client = client,
                    .ids = ids,
                    .n_ids = n,
                    .special = skip_special,
                    .owner = owner,
                    .release = release};

    return start(g, &j, true);
}

int engine_render(struct engine *g, uint64_t id, uint64_t client, const struct chat *chat,
                  void *owner, void (*release)(void *))
{
    struct job j = {.kind = JOB_RENDER,
                    .id = id,
                    .client = client,
                    .chat = chat,
                    .owner = owner,
                    .release = release};

    return start(g, &j, true);
}

int engine_inspect(struct engine *g, uint64_t id, const struct inspect_query *q)
{
    static const enum engine_input inputs[] = {
        [INSPECT_PROMPT] = ENGINE_PROMPT,
        [INSPECT_PROMPT_IDS] = ENGINE_PROMPT_IDS,
        [INSPECT_CHAT] = ENGINE_CHAT,
    };
    bool prompt = q->kind == INSPECT_CACHE_PIN || q->kind == INSPECT_EXPLAIN_PROMPT;
    struct job j = {.kind = JOB_INSPECT,
                    .id = id,
                    .client = q->viewer,
                    .query = *q,
                    .owner = q->owner,
                    .release = q->release};

    if (prompt)
        j.request = (struct engine_request){.id = id,
                                            .client = q->client,
                                            .input = inputs[q->input],
                                            .prompt = q->prompt,
                                            .prompt_ids = q->prompt_ids,
                                            .n_prompt_ids = q->n_prompt_ids,
                                            .chat = q->chat};
    return start(g, &j, prompt);
}

size_t engine_request_bytes(const struct engine_request *r)
{
    size_t told, scheduled, bytes;

    if (!generation_bytes(&told, r) ||
        !core_request_bytes(&scheduled, r->n, r->sampling.n_bias,
                            r->sampling.n_stop_ids + MODEL_MAX_EOS) ||
        !size_add(&bytes, told, scheduled) || !size_add(&bytes, bytes, sizeof(struct ticket)))
        return SIZE_MAX;
    return bytes;
}

void engine_cancel(struct engine *g, uint64_t id)
{
    pthread_mutex_lock(&g->lock);
    if (tickets_cancel(&g->tickets, id))
        pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}
