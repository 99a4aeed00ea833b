/* engine_loop.c - the engine thread: turns requests into steps and steps into events.
 *
 * An iteration waits while too many events are untaken, admits new requests, submits the next step,
 * publishes events, waits for the oldest step and commits it. From what it sampled follow the masks
 * of the step behind it, which it is given now, while the device computes. The events of the commit
 * are published at once where another step is in flight, else after the next submit: the device
 * never waits. */
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
    ENGINE_NICE = -10,   /* LimitNICE= of nvllmd.service */
    RESTORE_US = 2000,   /* in which records are restored between two steps */
    STORE_US = 10000000, /* that a stop may take to write to disk; its TimeoutStopSec= allows it */
};

/* ---- requests in */

/* Slots that the request may occupy. */
static int32_t pool_tokens(const struct engine *g, const struct core_request *r)
{
    int64_t slots = (int64_t)core_room(g->core, r) * g->options.backend_options.block_len;

    return slots > INT32_MAX ? INT32_MAX : (int32_t)slots;
}

/* The default of max_tokens: as many as the sequence and the pool can hold. The last sampled token
 * needs no slot, so the pool holds one more than it has slots. */
static int32_t room_for(const struct engine *g, const struct core_request *r)
{
    int32_t by_len = g->status.max_seq_len - r->n_prompt;
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
    const char *field = j->request.max_tokens ? "max_tokens" : job_input(j);
    char what[80];

    if (cr->pooling != CORE_POOL_NONE)
        snprintf(what, sizeof(what), "a text of %d tokens exceeds", cr->n_prompt);
    else if (j->request.max_tokens)
        snprintf(what, sizeof(what), "a prompt of %d tokens and max_tokens %d exceed", cr->n_prompt,
                 cr->max_tokens);
    else
        snprintf(what, sizeof(what), "a prompt of %d tokens and an answer exceed", cr->n_prompt);
    if (r == CORE_E_TOO_LONG)
        job_fail(j, &g->out, ENGINE_E_TOO_LONG, field, "%s the longest sequence, %d tokens", what,
                 g->status.max_seq_len);
    else if (r == CORE_E_NEVER_FITS)
        job_fail(j, &g->out, ENGINE_E_TOO_LONG, field,
                 "%s the KV cache, %d tokens (cache.kv_memory, or cache.host_memory beyond it)",
                 what, pool_tokens(g, cr));
    else
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
}

/* What the answer grows in. */
static int new_answer(struct engine *g, struct job *j)
{
    if (j->request.kind == ENGINE_GENERATE)
        return generation_new(&j->generation, &j->request, g->tokenizer, &j->answer);
    j->embedding = embedding_new(g->status.backend.sum_dim);
    return j->embedding ? 0 : -ENOMEM;
}

/* Sets the fields that an embed request has in place of sampling. */
static void embed(struct core_request *cr, struct sampling *s, const struct embedder *how)
{
    *s = (struct sampling){.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1};
    cr->max_tokens = cr->n = 1;
    cr->pooling = how->pooling == POOLING_MEAN ? CORE_POOL_ALL : CORE_POOL_LAST;
}

/* 1, also where the job has failed; 0: it has, for the model cannot wake; or a negative errno. */
static int admit(struct engine *g, struct job *j, struct err *e)
{
    const struct engine_request *r = &j->request;
    int32_t stop_ids[SAMPLING_MAX_STOP_IDS];
    struct sampling sampling = r->sampling;
    struct core_request cr = {
        .id = r->id,
        .client = r->client,
        .priority = r->priority,
        .n_prompt = (int32_t)j->prompt.n,
        .max_tokens = r->max_tokens ? r->max_tokens : 1,
        .n = r->n,
        .prompt = j->prompt.ids,
        .sampling = &sampling,
        .cache_salt = r->cache_salt,
        .deadline_us = r->deadline_us,
        .masks = j->guide != NULL,
    };
    int ret;

    if (r->kind == ENGINE_EMBED) {
        embed(&cr, &sampling, model_embedder(g->model));
    } else {
        if (!r->max_tokens)
            cr.max_tokens = room_for(g, &cr);
        if (!r->max_tokens && r->most_tokens && cr.max_tokens > r->most_tokens)
            cr.max_tokens = r->most_tokens;
        if (cr.max_tokens < 1)
            cr.max_tokens = 1; /* the core tells which limit is exceeded */
        sampling.n_stop_ids = join_stop_ids(stop_ids, g, r);
        sampling.stop_ids = stop_ids;
    }
    ret = core_fits(g->core, &cr);
    if (ret == CORE_E_NEVER_FITS && g->status.backend.offloads) {
        if (!g->status.backend.may_offload)
            engine_read_memory(g);
        core_set_offload(g->core, g->status.backend.may_offload);
        ret = core_fits(g->core, &cr);
        if (ret == CORE_E_NEVER_FITS && !g->status.backend.may_offload) {
            job_fail(j, &g->out, ENGINE_E_UNAVAILABLE, NULL,
                     "cache.host_memory is not ready yet, and the request is too long for the "
                     "device; try again in a few seconds");
            return 1;
        }
    }
    if (ret == CORE_OK) {
        const int woken = engine_wake_for(g, j, e);

        if (woken <= 0)
            return woken;
        ret = new_answer(g, j);
    }
    if (ret == CORE_OK)
        ret = core_admit(g->core, &cr, engine_now_us());
    if (ret != CORE_OK) {
        refuse(g, j, ret, &cr);
    } else {
        engine_trace_queued(g, j);
        job_release(j); /* the core has its own copy */
        if (j->guide)
            ret = guide_begin(g, j, sampling.stop_ids, sampling.n_stop_ids);
        if (ret < 0) {
            generation_fail(j->generation, 0, ret);
            core_cancel(g->core, r->id, CORE_REASON_CANCELLED, engine_now_us());
        }
    }
    return 1;
}

static void finish(struct engine *g, struct job *j, const struct core_usage *usage)
{
    const char *format = j->request.format.kind != FORMAT_NONE ? "response_format" : "chat.tools";
    const int error = generation_error(j->generation);

    j->terminal.usage = *usage;
    j->terminal.usage.arrival_us = j->arrival_us;
    j->terminal.usage.completion_tokens = generation_n_tokens(j->generation);
    engine_count_end(g, j);
    if (error == -EDQUOT)
        job_fail(j, &g->out, ENGINE_E_MEMORY_LIMIT, NULL,
                 "the answer takes more memory than the limits allow");
    else if (error == -ENOENT)
        job_fail(j, &g->out, ENGINE_E_UNSUPPORTED, format,
                 "no token of the vocabulary goes on with the text");
    else if (error == -E2BIG)
        job_fail(j, &g->out, ENGINE_E_INVALID, format, "too complex");
    else if (error < 0)
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    else
        job_end(j, ENGINE_DONE, &g->out);
}

/* An embed request is over: the core says why. */
static void finish_embedding(struct engine *g, struct job *j, const struct core_event *ev)
{
    const int32_t dim = g->status.backend.sum_dim;
    const int32_t n = j->request.dimensions ? j->request.dimensions : dim;

    j->terminal.usage = ev->usage;
    j->terminal.usage.arrival_us = j->arrival_us;
    engine_count_end(g, j);
    if (ev->reason == CORE_REASON_CANCELLED) {
        job_fail(j, &g->out, ENGINE_E_CANCELLED, NULL, "cancelled");
    } else if (ev->reason == CORE_REASON_DEADLINE) {
        job_fail(j, &g->out, ENGINE_E_DEADLINE, NULL, "deadline_ms is over");
    } else if (ev->reason == CORE_REASON_NUMERICS) {
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "the model gives NaN or Inf");
    } else {
        j->terminal.embedding =
            embedding_take(j->embedding, model_embedder(g->model), ev->usage.prompt_tokens, n);
        j->terminal.n_embedding = (size_t)n;
        j->terminal.bytes += (size_t)n * sizeof(float);
        if (j->terminal.embedding)
            job_end(j, ENGINE_EMBEDDING, &g->out);
        else
            job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    }
}

/* Ends a job that was cancelled before it reached the core; each choice gets its reason. */
static void finish_unadmitted(struct engine *g, struct job *j)
{
    struct core_event ev = {.type = CORE_CHOICE_DONE, .reason = CORE_REASON_CANCELLED};
    struct core_usage usage = {.end_us = engine_now_us()};

    if (j->request.kind != ENGINE_GENERATE) {
        job_fail(j, &g->out, ENGINE_E_CANCELLED, NULL, "cancelled");
    } else if (generation_new(&j->generation, &j->request, g->tokenizer, &j->answer) < 0) {
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    } else {
        for (; ev.choice < j->request.n; ev.choice++)
            generation_choice_done(j->generation, &ev, &g->out);
        finish(g, j, &usage);
    }
}

/* The next job of the inbox, which enters the engine unless it was cancelled there; or NULL. */
static struct job *next_job(struct engine *g, bool *is_new)
{
    struct job *j = NULL;

    pthread_mutex_lock(&g->lock);
    if (!list_empty(&g->inbox)) {
        j = CONTAINER_OF(g->inbox.next, struct job, link);
        list_remove(&j->link);
        *is_new = j->phase == JOB_IN_INBOX;
        g->status.n_encoding -= *is_new && engine_computes(j->request.kind);
        j->phase = JOB_IN_ENGINE;
    }
    pthread_mutex_unlock(&g->lock);
    return j;
}

static int take_in(struct engine *g, struct err *e)
{
    struct job *j;
    bool is_new;
    int r = 1;

    pthread_mutex_lock(&g->lock);
    if (g->new_shares) {
        core_set_shares(g->core, g->shares, g->n_shares);
        g->shares = NULL;
        g->new_shares = false;
    }
    pthread_mutex_unlock(&g->lock);
    while (r >= 0 && (j = next_job(g, &is_new))) {
        if (is_new && j->cancelled) {
            finish_unadmitted(g, j);
        } else if (is_new && j->request.kind == ENGINE_INSPECT) {
            work_queue_add(&g->inspects, &j->work, j->request.client);
        } else if (is_new) {
            r = admit(g, j, e);
        } else if (!list_empty(&j->work.link)) {
            list_remove(&j->work.link);
            job_fail(j, &g->out, ENGINE_E_CANCELLED, NULL, "cancelled");
        } else if (j == g->trace_job) {
            engine_end_trace(g);
        } else {
            core_cancel(g->core, j->request.id, CORE_REASON_CANCELLED, engine_now_us());
        }
    }
    return r < 0 ? r : 0;
}

static int answer(struct engine *g, struct job *j, struct err *e)
{
    const struct inspect_query *q = &j->request.query;
    int r = 1;

    if (q->kind == INSPECT_SLEEP || q->kind == INSPECT_WAKE)
        return engine_answer_sleep(g, j, e);
    if (q->kind == INSPECT_TRACE) {
        engine_begin_trace(g, j);
        return 1;
    }
    if (q->kind == INSPECT_CACHE_PIN && !q->unpin) /* it may be computed */
        r = engine_wake_for(g, j, e);
    if (r > 0)
        engine_answer(g, j, NULL);
    return r;
}

/* Answers one inspect request, while the device works if a step is in flight; then inspect requests
 * get a tenth of this thread's time. 1: one was answered, there may be more; 0; or a negative
 * errno. */
static int answer_next(struct engine *g, struct err *e)
{
    enum { REST = 9 };
    const bool busy = g->in_flight > 0;
    uint64_t began_us, ended_us;
    enum inspect_kind kind;
    struct job *j;
    int r;

    if (list_empty(&g->inspects.works))
        return 0;
    began_us = engine_now_us();
    if (busy && began_us < g->inspect_us)
        return 0;
    j = CONTAINER_OF(work_queue_take(&g->inspects), struct job, work);
    kind = j->request.query.kind;
    if (g->restoring && (kind == INSPECT_CACHE_CLEAR || kind == INSPECT_SLEEP)) {
        work_queue_add(&g->inspects, &j->work, j->request.client); /* not all is known yet */
        return 0;
    }
    r = answer(g, j, e);
    ended_us = engine_now_us();
    if (busy && kind != INSPECT_SLEEP && kind != INSPECT_WAKE && kind != INSPECT_CACHE_PIN)
        g->inspect_us = ended_us + (ended_us - began_us) * REST;
    return r < 0 ? r : 1;
}

/* ---- events out */

/* Turns a core event into engine events. more: the next one is of the same choice. True: *end names
 * a choice to end. */
static bool handle(struct engine *g, const struct core_event *ev, bool more, struct engine_end *end)
{
    int r = 0;
    struct job *j;

    g->broken_blocks |= g->disk && ev->reason == CORE_REASON_NUMERICS;
    pthread_mutex_lock(&g->lock);
    j = id_map_get(&g->jobs, ev->request);
    pthread_mutex_unlock(&g->lock);
    if (j->request.kind == ENGINE_INSPECT) { /* a pin being computed: only its end counts */
        if (ev->type == CORE_FINISHED)
            engine_answer(g, j, ev);
        return false;
    }
    if (j->request.kind == ENGINE_EMBED) {
        if (ev->type == CORE_SUM)
            embedding_add(j->embedding, ev);
        else if (ev->type == CORE_FINISHED)
            finish_embedding(g, j, ev);
        return false;
    }
    switch (ev->type) {
    case CORE_SUM: /* of embed requests alone */
        break;
    case CORE_TOKEN:
        if (generation_is_over(j->generation, ev->choice))
            break;
        engine_count_token(g, j, ev, g->committed_us);
        r = generation_token(j->generation, ev, j->guide && guide_step(j, ev), &g->out);
        if (r == 0 && j->guide && !more && ev->reason == CORE_REASON_NONE)
            r = guide_next(g, j, ev->choice);
        if (r < 0 && generation_error(j->generation) == 0)
            generation_fail(j->generation, ev->choice, r);
        break;
    case CORE_CHOICE_DONE:
        generation_choice_done(j->generation, ev, &g->out);
        break;
    case CORE_FINISHED:
        finish(g, j, &ev->usage);
        break;
    }
    if (r != 0)
        *end = (struct engine_end){ev->request, ev->choice, r < 0};
    return r != 0;
}

static bool is_of_choice(const struct core_event *a, const struct core_event *b)
{
    return a->type == CORE_TOKEN && a->request == b->request && a->choice == b->choice;
}

/* Handles the core's events. A stop string calls the core, which makes new events and invalidates
 * the array, so choices end after the whole array has been read. */
static void collect(struct engine *g)
{
    const struct core_event *ev;
    size_t n_ends;
    int32_t n;

    do {
        ev = core_events(g->core, &n);
        n_ends = 0;
        for (int32_t i = 0; i < n; i++)
            n_ends +=
                handle(g, &ev[i], i + 1 < n && is_of_choice(&ev[i + 1], &ev[i]), &g->ends[n_ends]);
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
    if (g->trace)
        engine_tend_trace(g, false);
    pthread_mutex_lock(&g->lock);
    core_stats(g->core, &g->status.core);
    g->metrics = g->counts;
    pthread_mutex_unlock(&g->lock);
    engine_publish(g, &g->out);
    engine_spend(g, ENGINE_PART_PUBLISH);
}

/* ---- steps */

/* Until a request, a cancel, a deadline, another idle_sleep_us or the end. */
static void wait_for_work(struct engine *g, uint64_t deadline_us)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_us / 1000000u),
                             .tv_nsec = (long)(deadline_us % 1000000u) * 1000};

    g->beat++;
    pthread_mutex_lock(&g->lock);
    while (!g->quit && list_empty(&g->inbox) && !g->new_idle_sleep) {
        if (!deadline_us)
            pthread_cond_wait(&g->wake, &g->lock);
        else if (pthread_cond_clockwait(&g->wake, &g->lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT)
            break;
    }
    g->new_idle_sleep = false;
    pthread_mutex_unlock(&g->lock);
    g->beat++;
}

/* To the step that has just become the oldest one: what its masks follow from has been told. */
static int give_masks(struct engine *g, struct err *e)
{
    const uint32_t *const *masks = core_masks(g->core);

    return masks ? g->options.backend->mask(g->backend, masks, e) : 0;
}

static int submit(struct engine *g, const struct batch *batch, struct err *e)
{
    const size_t i = batch->step % BACKEND_IN_FLIGHT;
    int r;

    if (g->disk)
        engine_begin_copies(g, batch);
    g->batches[i] = batch;
    g->submitted_us[i] = engine_now_us();
    r = g->options.backend->submit(g->backend, batch, e);
    if (r < 0)
        return r;
    g->in_flight++;
    return g->in_flight == 1 ? give_masks(g, e) : 0;
}

/* A step without rows waits for a copy, if the backend has not done so. */
static int copy_wait_ms(const struct engine *g, uint64_t step)
{
    const size_t i = step % BACKEND_IN_FLIGHT;

    return g->batches[i]->n_tokens == 0 && engine_now_us() - g->submitted_us[i] < 1000 ? 1 : 0;
}

static int finish_oldest(struct engine *g, struct err *e)
{
    struct step_result result;
    int r = g->options.backend->wait(g->backend, &result, e);

    engine_spend(g, ENGINE_PART_WAIT);
    if (r < 0)
        return r;
    g->in_flight--;
    engine_count_step(g, result.step);
    if (g->disk)
        engine_end_copies(g, &result, copy_wait_ms(g, result.step));
    core_commit(g->core, &result, g->committed_us);
    if (g->disk)
        engine_forget_ended(g, &result);
    collect(g);
    r = give_masks(g, e);
    if (g->broken_blocks) /* the core has dropped them */
        engine_forget_cleared(g);
    g->broken_blocks = false;
    engine_spend(g, ENGINE_PART_COMMIT);
    if (g->in_flight > 0)
        publish(g);
    return r;
}

int engine_finish_steps(struct engine *g, struct err *e)
{
    int r = 0;

    while (r == 0 && g->in_flight > 0)
        r = finish_oldest(g, e);
    return r;
}

/* What does not wait until blocks are copied down: all but looks at what there is. */
static bool is_called(struct engine *g)
{
    bool called;

    pthread_mutex_lock(&g->lock);
    called = g->quit;
    LIST_EACH (const struct job, j, link, &g->inbox)
        called |= engine_computes(j->request.kind) || j->phase == JOB_IN_ENGINE ||
                  j->request.query.kind == INSPECT_CACHE_PIN;
    pthread_mutex_unlock(&g->lock);
    return called;
}

int engine_store_down(struct engine *g, bool to_sleep, uint64_t until_us, struct err *e)
{
    const struct batch *batch;
    int r = 0, next = CORE_WAIT;

    core_store_all(g->core, to_sleep);
    while (r == 0 && next != CORE_IDLE && engine_now_us() < until_us &&
           !(to_sleep && is_called(g))) {
        g->beat += 2;
        next = CORE_WAIT;
        if (g->in_flight < BACKEND_IN_FLIGHT)
            next = core_next(g->core, &batch, engine_now_us());
        if (next == CORE_OK)
            r = submit(g, batch, e);
        else if (g->in_flight > 0)
            r = finish_oldest(g, e);
    }
    if (r == 0)
        r = engine_finish_steps(g, e);
    return r < 0 ? r : next == CORE_IDLE;
}

/* With nothing to do: until a request, a cancel, a deadline or the end, or the time to sleep. */
static int rest(struct engine *g, uint64_t deadline_us, struct err *e)
{
    const uint64_t sleep_us = engine_sleep_time(g), now_us = engine_now_us();
    const uint64_t idle_us = now_us + (uint64_t)g->status.backend.idle_s * 1000000u;

    if (g->trace && (!deadline_us || g->trace_end_us < deadline_us))
        deadline_us = g->trace_end_us;
    if (sleep_us && now_us >= sleep_us)
        return engine_sleep_by_itself(g, e);
    if (idle_us > now_us && (!deadline_us || idle_us < deadline_us))
        deadline_us = idle_us;
    if (!deadline_us || (sleep_us && sleep_us < deadline_us))
        deadline_us = sleep_us;
    wait_for_work(g, deadline_us);
    return 0;
}

static int iterate(struct engine *g, struct err *e)
{
    const struct backend_ops *ops = g->options.backend;
    const struct batch *batch;
    uint64_t deadline_us;
    int next = CORE_WAIT, answered, r;
    bool restored;

    g->beat++;
    if (engine_wait_for_room(g))
        g->resumed_us = engine_now_us();
    g->beat++;
    engine_spend(g, N_ENGINE_PARTS);
    r = take_in(g, e);
    if (r < 0)
        return r;
    deadline_us = core_expire(g->core, engine_now_us());
    collect(g);
    r = engine_draft(g, e);
    if (r < 0)
        return r;
    if (r == 0 && g->in_flight < BACKEND_IN_FLIGHT)
        next = core_next(g->core, &batch, engine_now_us());
    engine_spend(g, ENGINE_PART_SCHEDULE);
    r = 0;
    if (next == CORE_OK) {
        r = submit(g, batch, e);
        engine_spend(g, ENGINE_PART_SUBMIT);
    }
    if (r < 0)
        return r;
    restored = engine_restore(g, engine_now_us() + RESTORE_US);
    answered = answer_next(g, e);
    if (g->trace && next != CORE_OK && g->in_flight == 0)
        engine_tend_trace(g, true);
    engine_spend(g, ENGINE_PART_OTHER);
    publish(g);
    if (answered < 0)
        return answered;
    if (g->in_flight == BACKEND_IN_FLIGHT || (g->in_flight > 0 && next != CORE_OK))
        return finish_oldest(g, e);
    if (next == CORE_OK || restored || answered) /* the core may say something else by now */
        return 0;
    must(next == CORE_IDLE); /* with nothing in flight, what fits runs */
    if (ops->idle && (!g->asleep || g->status.backend.idle_s))
        r = ops->idle(g->backend, e);
    if (r == 0 && g->drafter && !g->asleep)
        r = drafter_idle(g->drafter, e);
    if (r == 0) {
        engine_read_memory(g);
        r = rest(g, deadline_us, e);
    }
    return r;
}

/* ---- the end */

/* Writes to disk what is cached, as far as time allows, unless requests are being dropped: by one
 * tier down, and then by the next. */
static void store_all(struct engine *g)
{
    const uint64_t until_us = engine_now_us() + STORE_US;
    struct core_stats stats;
    int r = 0;
    struct err e;

    core_stats(g->core, &stats);
    if (stats.requests_running + stats.requests_waiting > 0)
        return;
    (void)engine_restore(g, until_us);
    if (g->restoring)
        return;
    for (int t = TIER_HOST; t < N_TIERS && r >= 0; t++)
        r = engine_store_down(g, false, until_us, &e);
}

static void fail_inbox(struct engine *g)
{
    struct job *j;
    bool is_new;

    while ((j = next_job(g, &is_new)))
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "%s", g->status.failure.text);
    engine_publish(g, &g->out);
}

/* Fails all jobs, and until the end those that still come out of the pool. */
static void fail(struct engine *g, int code, const struct err *why)
{
    struct job *j;
    size_t at = 0;

    pthread_mutex_lock(&g->lock);
    g->status.failure = *why;
    g->status.failure_code = code;
    while ((j = id_map_next(&g->jobs, &at))) {
        if (j->phase == JOB_IN_ENGINE) {
            list_remove(&j->link);
            list_append(&g->inbox, &j->link);
        }
    }
    pthread_mutex_unlock(&g->lock);
    fail_inbox(g);
    engine_publish_state(g, ENGINE_FAILED);
    while (!g->quit) {
        fail_inbox(g);
        wait_for_work(g, 0);
    }
}

void *engine_main(void *engine)
{
    struct engine *g = engine;
    struct err e = {""};
    int r = engine_load(g, &e);

    if (r == 0) {
        /* This thread wakes the daemon's loop and sleeps until the next step ends; at equal
         * priority the loop often preempts it in between, and tokens come later. The backend's
         * threads exist already and do not inherit it. Without permission nothing changes. */
        (void)setpriority(PRIO_PROCESS, 0, ENGINE_NICE); /* 0: this thread, on Linux */
        engine_publish_state(g, ENGINE_READY);
        g->committed_us = engine_now_us();
        while (!g->quit && r >= 0)
            r = iterate(g, &e);
        if (r >= 0 && g->disk)
            store_all(g);
    }
    if (r < 0)
        fail(g, r, &e);
    return NULL;
}
