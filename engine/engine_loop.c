/* engine_loop.c - the engine thread: loads, then turns requests into steps and steps into events.
 *
 * A round is: wait while too much lies untaken, take what came in, submit the next step, publish
 * events, wait for the oldest step, commit it. What that has given is told at once where the
 * backend has another step, else behind the next: it does not rest for that. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "engine/util/must.h"
#include "engine/util/thread.h"

_Static_assert(SAMPLING_MAX_REQUEST_STOP_IDS + MODEL_MAX_EOS <= SAMPLING_MAX_STOP_IDS,
               "a request's stop ids and the model's end ids fit one list");

enum {
    ENGINE_NICE = -10, /* LimitNICE= of nvllmd.service */
};

/* ---- loading */

struct side_load {
    struct engine *g;
    int r;
    struct err e;
};

static void publish_state(struct engine *g, enum engine_state state)
{
    struct event_list out = {0};
    struct engine_event *ev = engine_event_new(ENGINE_STATE, 0, 0, false, 0);

    atomic_store(&g->state, state);
    if (!ev) /* the loop sees it with the next event; of this there is no more than a hint */
        return;
    event_list_push(&out, ev);
    event_queue_push(&g->events, &out);
}

/* From any thread of the backend; every hundredth makes an event. */
static void on_progress(void *engine, double done)
{
    struct engine *g = engine;
    double before = atomic_exchange(&g->progress, done);

    if ((int)(before * 100) != (int)(done * 100))
        publish_state(g, ENGINE_LOADING);
}

/* Tokenizer and template load beside the weights. */
static void *load_text_side(void *arg)
{
    struct side_load *s = arg;
    struct engine *g = s->g;
    int r = tokenizer_load(&g->tokenizer, g->model_folder, &s->e);

    if (r == 0) {
        r = chat_template_load(&g->chat_template, g->model_folder, &g->chat_why);
        if (r == 0 && !g->chat_template)
            err_set(&g->chat_why, 0, "the model has no chat template: send a raw prompt");
        if (r == -ENOTSUP) /* raw prompts work all the same */
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

static int take_lengths(struct engine *g, struct err *e)
{
    struct backend_options *o = &g->options.backend_options;
    int r = engine_check_lengths(o, g->model, e);

    if (r < 0)
        return r;
    if (o->max_seq_len == 0)
        o->max_seq_len = model_config(g->model)->max_seq_len;
    g->max_seq_len = o->max_seq_len;
    return 0;
}

static int open_core(struct engine *g, struct err *e)
{
    const struct backend_options *o = &g->options.backend_options;
    struct core_options options = {
        .n_blocks = g->backend_info.n_blocks,
        .block_len = o->block_len,
        .max_batch_tokens = o->max_batch_tokens,
        .max_seqs = o->max_seqs,
        .max_seq_len = o->max_seq_len,
        .max_preemptions = g->options.max_preemptions,
        .prefix_cache = g->options.prefix_cache,
        .share_all = g->options.share_all,
        .replay = o->invariant,
        .hash_seed = g->options.hash_seed,
    };
    int r = core_new(&g->core, &options);

    if (r < 0)
        return err_set(e, r, "core: %s", strerror(-r));
    g->cost.max_step_us = g->options.max_step_ms * 1e3;
    core_set_cost(g->core, &g->cost);
    return 0;
}

static int load(struct engine *g, struct err *e)
{
    struct side_load side = {.g = g};
    struct backend_options *o = &g->options.backend_options;
    pthread_t thread;
    int r = model_open(&g->model, g->model_folder, e);

    if (r < 0)
        return r;
    r = take_lengths(g, e);
    if (r < 0)
        return r;
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
    g->options.backend->info(g->backend, &g->backend_info);
    return open_core(g, e);
}

/* ---- requests in */

/* Slots that the request may come to hold. */
static int32_t pool_tokens(const struct engine *g, const struct core_request *r)
{
    int64_t slots = (int64_t)core_room(g->core, r) * g->options.backend_options.block_len;

    return slots > INT32_MAX ? INT32_MAX : (int32_t)slots;
}

/* How many tokens a request that does not say may get: up to what sequence and pool can hold. The
 * last token sampled needs no slot, so the pool holds one more than it has slots. */
static int32_t room_for(const struct engine *g, const struct core_request *r)
{
    int32_t by_len = g->max_seq_len - r->n_prompt;
    int32_t by_pool = pool_tokens(g, r) - r->n_prompt + 1;

    return by_len < by_pool ? by_len : by_pool;
}

/* The request's stop ids and, unless it ignores them, the model's. */
static int32_t join_stop_ids(int32_t *ids, const struct engine *g, const struct engine_request *r)
{
    const struct model_defaults *d = model_defaults(g->model);
    int32_t n = 0;

    for (int32_t i = 0; !r->ignore_eos && i < d->n_eos; i++)
        ids[n++] = d->eos[i];
    must(r->sampling.n_stop_ids <= SAMPLING_MAX_REQUEST_STOP_IDS);
    for (int32_t i = 0; i < r->sampling.n_stop_ids; i++)
        ids[n++] = r->sampling.stop_ids[i];
    return n;
}

static void refuse(struct engine *g, struct job *j, int r, const struct core_request *cr)
{
    struct err why;

    if (r == CORE_E_TOO_LONG)
        err_set(&why, 0, "prompt of %d tokens and max_tokens %d are over the longest sequence, %d",
                cr->n_prompt, cr->max_tokens, g->max_seq_len);
    else if (r == CORE_E_NEVER_FITS)
        err_set(&why, 0,
                "prompt of %d tokens and max_tokens %d do not fit the cache's %d slots; "
                "the admin can raise cache.kv_memory",
                cr->n_prompt, cr->max_tokens, pool_tokens(g, cr));
    else
        err_set(&why, 0, "out of memory");
    job_fail(j, r < 0 ? ENGINE_E_INTERNAL : ENGINE_E_TOO_LONG, r < 0 ? NULL : "max_tokens",
             why.text, &g->out);
}

void engine_close(struct engine *g, uint64_t id)
{
    pthread_mutex_lock(&g->lock);
    tickets_close(&g->tickets, id);
    pthread_mutex_unlock(&g->lock);
}

static void admit(struct engine *g, struct job *j)
{
    const struct engine_request *r = &j->request;
    int32_t stop_ids[SAMPLING_MAX_STOP_IDS];
    struct sampling sampling = r->sampling;
    struct core_request cr = {
        .id = r->id,
        .client = r->client,
        .priority = r->priority,
        .n_prompt = (int32_t)j->prompt.n,
        .max_tokens = r->max_tokens,
        .n = r->n,
        .prompt = j->prompt.ids,
        .sampling = &sampling,
        .cache_salt = r->cache_salt,
        .deadline_us = r->deadline_us,
    };
    struct generation *live = NULL;
    int ret;

    if (!r->max_tokens)
        cr.max_tokens = room_for(g, &cr);
    if (!r->max_tokens && r->most_tokens && cr.max_tokens > r->most_tokens)
        cr.max_tokens = r->most_tokens;
    if (cr.max_tokens < 1)
        cr.max_tokens = 1; /* the core says which limit it is over */
    sampling.n_stop_ids = join_stop_ids(stop_ids, g, r);
    sampling.stop_ids = stop_ids;
    ret = generation_new(&live, r, g->tokenizer, j->arrival_us);
    if (ret == 0)
        ret = id_map_put(&g->live, r->id, live);
    if (ret == 0) {
        ret = core_admit(g->core, &cr, engine_now_us());
        if (ret != CORE_OK)
            id_map_take(&g->live, r->id);
    }
    if (ret != CORE_OK) {
        generation_free(live);
        engine_close(g, j->id);
        refuse(g, j, ret, &cr);
        return;
    }
    generation_arm(live, j->terminal);
    j->terminal = NULL;
    job_free(j);
}

/* Who has not asked before, while others did, goes before the round that is under way. Without
 * memory to know by, a client's questions are as those of so many clients. */
static void ask_later(struct engine *g, struct job *j)
{
    const uint64_t last = (uintptr_t)id_map_take(&g->asked, j->client);
    struct job **at = &g->questions;

    j->round = last >= g->ask_round && last > 0 ? last + 1 : g->ask_round;
    (void)id_map_put(&g->asked, j->client, (void *)(uintptr_t)j->round);
    while (*at && ((*at)->round < j->round || (last > 0 && (*at)->round == j->round)))
        at = &(*at)->next;
    j->next = *at;
    *at = j;
}

static void take_in(struct engine *g)
{
    struct list cancels;
    struct job *jobs;

    list_init(&cancels);
    pthread_mutex_lock(&g->lock);
    if (g->new_shares) {
        core_set_shares(g->core, g->shares, g->n_shares);
        g->shares = NULL;
        g->new_shares = false;
    }
    jobs = g->inbox_head;
    g->inbox_head = g->inbox_tail = NULL;
    /* Both at once: so no cancel is heard before the request that it is of. */
    tickets_take_cancels(&g->tickets, &cancels);
    for (struct job *j = jobs; j; j = j->next) {
        tickets_take_job(&g->tickets, j->id);
        g->n_encoding -= j->kind == JOB_GENERATE;
    }
    pthread_mutex_unlock(&g->lock);
    while (jobs) {
        struct job *j = jobs;

        jobs = jobs->next;
        if (j->kind == JOB_INSPECT)
            ask_later(g, j);
        else
            admit(g, j);
    }
    while (!list_empty(&cancels)) {
        struct ticket *k = CONTAINER_OF(cancels.next, struct ticket, in_cancels);

        list_remove(&k->in_cancels);
        core_cancel(g->core, k->id, CORE_REASON_CANCELLED, engine_now_us());
    }
}

static bool is_cancelled(struct engine *g, const struct job *j)
{
    bool cancelled;

    pthread_mutex_lock(&g->lock);
    cancelled = tickets_is_cancelled(&g->tickets, j->id);
    pthread_mutex_unlock(&g->lock);
    return cancelled;
}

/* After a question, so many times as long for the steps alone: who asks without end has a tenth of
 * this thread's time. */
enum { QUESTION_REST = 9 };

static void answer(struct engine *g, struct job *j)
{
    uint64_t began_us = engine_now_us(), ended_us;

    engine_answer(g, j);
    ended_us = engine_now_us();
    g->ask_us = ended_us + (ended_us - began_us) * QUESTION_REST;
}

/* Takes out those that nobody waits for any more. */
static bool drop_cancelled(struct engine *g)
{
    struct job **at = &g->questions;
    bool any = false;

    while (*at) {
        struct job *j = *at;

        if (!is_cancelled(g, j)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        any = true;
        engine_close(g, j->id);
        job_fail(j, ENGINE_E_CANCELLED, NULL, "cancelled", &g->out);
    }
    return any;
}

/* While the device works: what it takes to look around delays no step unless it takes longer than
 * one. So it is one question a round of the engine's, however many wait, and after a long one some
 * rounds without. True when there was one: then there may be another. */
static bool answer_question(struct engine *g)
{
    bool any = drop_cancelled(g);
    struct job *j = g->questions;

    if (j && (g->in_flight == 0 || engine_now_us() >= g->ask_us)) {
        any = true;
        g->questions = j->next;
        g->ask_round = j->round;
        answer(g, j);
    }
    if (!g->questions) {
        id_map_deinit(&g->asked);
        g->ask_round = ENGINE_FIRST_ROUND;
    }
    return any;
}

/* ---- events out */

/* True when *end is to be ended. */
static bool tell(struct engine *g, const struct core_event *ev, struct engine_end *end)
{
    struct generation *live = id_map_get(&g->live, ev->request);
    int r = GENERATION_OK;

    if (!live) { /* of what is computed for a pin, only its end is of interest */
        if (ev->type == CORE_FINISHED)
            engine_pin_computed(g, id_map_take(&g->pins, ev->request), ev);
        return false;
    }
    switch (ev->type) {
    case CORE_TOKEN:
        r = generation_token(live, ev, &g->out);
        break;
    case CORE_CHOICE_DONE:
        generation_choice_done(live, ev, &g->out);
        break;
    case CORE_FINISHED:
        engine_close(g, ev->request);
        generation_finish(live, &ev->usage, &g->out);
        id_map_take(&g->live, ev->request);
        generation_free(live);
        break;
    }
    if (r != GENERATION_OK)
        *end = (struct engine_end){ev->request, ev->choice, r == GENERATION_LOST};
    return r != GENERATION_OK;
}

/* Tells what the core has to say. A stop string calls the core back, which makes new events: so the
 * core's array is used up before that. */
static void collect(struct engine *g)
{
    const struct core_event *ev;
    size_t n_ends;
    int32_t n;

    do {
        ev = core_events(g->core, &n);
        n_ends = 0;
        for (int32_t i = 0; i < n; i++)
            n_ends += tell(g, &ev[i], &g->ends[n_ends]);
        for (size_t i = 0; i < n_ends; i++) {
            const struct engine_end *end = &g->ends[i];

            if (end->lost)
                core_cancel(g->core, end->id, CORE_REASON_CANCELLED, engine_now_us());
            else
                core_stop(g->core, end->id, end->choice, engine_now_us());
        }
    } while (n_ends);
}

static void publish(struct engine *g)
{
    pthread_mutex_lock(&g->lock);
    core_stats(g->core, &g->stats);
    pthread_mutex_unlock(&g->lock);
    event_queue_push(&g->events, &g->out);
}

/* ---- steps */

/* What captured graphs and other processes have taken is looked at while nobody waits for it. */
static void refresh_memory(struct engine *g)
{
    struct backend_info info;

    g->options.backend->info(g->backend, &info);
    pthread_mutex_lock(&g->lock);
    g->backend_info = info;
    pthread_mutex_unlock(&g->lock);
}

/* Nothing under way: sleeps until something comes in, until a deadline, or until the end. */
static void rest(struct engine *g, uint64_t deadline_us)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_us / 1000000u),
                             .tv_nsec = (long)(deadline_us % 1000000u) * 1000};

    pthread_mutex_lock(&g->lock);
    while (!g->quit && !g->inbox_head && list_empty(&g->tickets.cancels)) {
        if (!deadline_us)
            pthread_cond_wait(&g->wake, &g->lock);
        else if (pthread_cond_timedwait(&g->wake, &g->lock, &until) == ETIMEDOUT)
            break;
    }
    pthread_mutex_unlock(&g->lock);
}

static bool quitting(struct engine *g)
{
    bool quit;

    pthread_mutex_lock(&g->lock);
    quit = g->quit;
    pthread_mutex_unlock(&g->lock);
    return quit;
}

static int submit(struct engine *g, const struct batch *batch, struct err *e)
{
    int r;

    g->steps[batch->step % BACKEND_IN_FLIGHT] =
        (struct engine_step){.submitted_us = engine_now_us(),
                             .n_decodes = batch->n_decodes,
                             .n_rows = batch->n_tokens - batch->n_decodes};
    r = g->options.backend->submit(g->backend, batch, e);
    if (r == 0)
        g->in_flight++;
    return r;
}

/* A step began when it was submitted, or when the one before it was over. */
static void learn_cost(struct engine *g, uint64_t number)
{
    const struct engine_step *s = &g->steps[number % BACKEND_IN_FLIGHT];
    uint64_t now = engine_now_us();
    uint64_t begin = s->submitted_us > g->committed_us ? s->submitted_us : g->committed_us;

    g->committed_us = now;
    if (s->rested)
        return;
    step_cost_learn(&g->cost, s->n_decodes, s->n_rows, (double)(now - begin));
    core_set_cost(g->core, &g->cost);
}

static int finish_oldest(struct engine *g, struct err *e)
{
    struct step_result result;
    int r = g->options.backend->wait(g->backend, &result, e);

    if (r < 0)
        return r;
    g->in_flight--;
    learn_cost(g, result.step);
    core_commit(g->core, &result, engine_now_us());
    collect(g);
    if (g->in_flight > 0)
        publish(g);
    return 0;
}

/* While too many events lie untaken, the engine makes no more. */
static void wait_for_room(struct engine *g)
{
    if (!event_queue_wait(&g->events) || g->in_flight == 0)
        return;
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        g->steps[i].rested = true; /* submit() makes those anew that are not in flight */
}

/* Until the end is asked for, or the backend dies. */
static int turn(struct engine *g, struct err *e)
{
    while (!quitting(g)) {
        const struct batch *batch;
        uint64_t deadline_us;
        int r = CORE_WAIT;
        bool asked;

        wait_for_room(g);
        take_in(g);
        deadline_us = core_expire(g->core, engine_now_us());
        collect(g);
        if (g->in_flight < BACKEND_IN_FLIGHT)
            r = core_next(g->core, &batch, engine_now_us());
        if (r == CORE_OK) {
            int ret = submit(g, batch, e);

            if (ret < 0)
                return ret;
        }
        asked = answer_question(g);
        publish(g);
        if (g->in_flight == BACKEND_IN_FLIGHT || (g->in_flight > 0 && r != CORE_OK)) {
            int ret = finish_oldest(g, e);

            if (ret < 0)
                return ret;
        } else if (r != CORE_OK && !asked) {
            must(r == CORE_IDLE); /* with nothing in flight, what fits runs */
            refresh_memory(g);
            rest(g, deadline_us);
        }
    }
    return 0;
}

/* ---- the end */

static void fail_all(struct engine *g, const struct err *why)
{
    struct generation *live;
    struct job *pin;
    size_t at = 0;

    while ((live = id_map_next(&g->live, &at))) {
        engine_close(g, generation_id(live));
        generation_fail(live, why->text, &g->out);
        generation_free(live);
    }
    id_map_deinit(&g->live);
    for (at = 0; (pin = id_map_next(&g->pins, &at));) {
        engine_close(g, pin->id);
        job_fail(pin, ENGINE_E_INTERNAL, NULL, why->text, &g->out);
    }
    id_map_deinit(&g->pins);
    for (struct job *j = g->questions, *next; j; j = next) {
        next = j->next;
        engine_close(g, j->id);
        job_fail(j, ENGINE_E_INTERNAL, NULL, why->text, &g->out);
    }
    g->questions = NULL;
    event_queue_push(&g->events, &g->out);
}

/* The backend is dead or never lived: whatever still comes out of the pool is told so. */
static void refuse_until_quit(struct engine *g, const struct err *why)
{
    pthread_mutex_lock(&g->lock);
    while (!g->quit) {
        struct job *jobs = g->inbox_head;

        g->inbox_head = g->inbox_tail = NULL;
        if (!jobs) {
            pthread_cond_wait(&g->wake, &g->lock);
            continue;
        }
        pthread_mutex_unlock(&g->lock);
        while (jobs) {
            struct job *j = jobs;

            jobs = jobs->next;
            engine_close(g, j->id);
            job_fail(j, ENGINE_E_INTERNAL, NULL, why->text, &g->out);
        }
        event_queue_push(&g->events, &g->out);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
}

/* This thread wakes clients or the daemon's loop and sleeps until the next step ends. With the same
 * priority who is woken often takes its place on the CPU in between; then the scheduler sees two
 * threads that run and wakes the next on another CPU, which has to wake first. The model is not
 * computed here, so little is taken from others. Threads inherit the priority: those of the backend
 * are there already. Where it is not allowed, tokens are a little later. */
static void run_first(void)
{
    (void)setpriority(PRIO_PROCESS, 0, ENGINE_NICE); /* 0: the calling thread, on Linux */
}

void *engine_main(void *engine)
{
    struct engine *g = engine;
    struct err e = {""};
    int r = load(g, &e);

    if (r == 0) {
        atomic_store(&g->progress, 1.0);
        publish(g); /* who sees READY sees the counts of blocks, too */
        run_first();
        publish_state(g, ENGINE_READY);
        r = turn(g, &e);
    }
    if (r == 0)
        return NULL;
    pthread_mutex_lock(&g->lock);
    g->failure = e;
    pthread_mutex_unlock(&g->lock);
    fail_all(g, &e);
    publish_state(g, ENGINE_FAILED);
    refuse_until_quit(g, &e);
    return NULL;
}
