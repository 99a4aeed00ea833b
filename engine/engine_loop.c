/* engine_loop.c - the engine thread: turns requests into steps and steps into events.
 *
 * An iteration waits while too many events are untaken, admits new requests, submits the next step,
 * publishes events, waits for the oldest step and commits it. From what it sampled follow the masks
 * of the step behind it, which it is given now, while the device computes. The events of the commit
 * are published at once where another step is in flight, else after the next submit: the device
 * never waits. */
#include "engine/engine_private.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>

#include "engine/util/clock.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

enum {
    ENGINE_NICE = -10,   /* LimitNICE= of nvllmd.service */
    RESTORE_US = 2000,   /* in which records are restored between two steps */
    STORE_US = 10000000, /* that a stop may take to write to disk; its TimeoutStopSec= allows it */
};

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
            engine_finish_embedding(g, j, ev);
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
        engine_finish(g, j, &ev->usage);
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
                core_cancel(g->core, end->id, CORE_REASON_CANCELLED, clock_us());
            else
                core_stop(g->core, end->id, end->choice, clock_us());
        }
    } while (n_ends);
}

/* Under the lock: those are counted as the scheduler's now, or have ended. */
static void count_taken_in(struct engine *g)
{
    g->status.n_encoding -= g->n_taken_in;
    g->n_taken_in = 0;
}

static void publish(struct engine *g)
{
    if (g->trace)
        engine_flush_trace(g, false);
    pthread_mutex_lock(&g->lock);
    core_stats(g->core, &g->status.core);
    count_taken_in(g);
    g->metrics = g->counts;
    pthread_mutex_unlock(&g->lock);
    engine_publish(g, &g->out);
    engine_count_time(g, ENGINE_PART_PUBLISH);
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

/* To the step that has just become the oldest one: what its masks follow from has been committed.
 */
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
    g->submitted_us[i] = clock_us();
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

    return g->batches[i]->n_tokens == 0 && clock_us() - g->submitted_us[i] < 1000 ? 1 : 0;
}

static int finish_oldest(struct engine *g, struct err *e)
{
    struct step_result result;
    int r = g->options.backend->wait(g->backend, &result, e);

    engine_count_time(g, ENGINE_PART_WAIT);
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
    engine_count_time(g, ENGINE_PART_COMMIT);
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

/* Whether copying down must stop: the engine ends, or a request needs this thread. Of inspect
 * requests only a pin does. */
static bool must_stop_storing(struct engine *g)
{
    bool stop;

    pthread_mutex_lock(&g->lock);
    stop = g->quit;
    LIST_EACH (const struct job, j, link, &g->inbox)
        stop |= engine_computes(j->request.kind) || j->phase == JOB_IN_ENGINE ||
                j->request.query.kind == INSPECT_CACHE_PIN;
    pthread_mutex_unlock(&g->lock);
    return stop;
}

int engine_store_down(struct engine *g, bool to_sleep, uint64_t until_us, struct err *e)
{
    const struct batch *batch;
    int r = 0, next = CORE_WAIT;

    core_store_all(g->core, to_sleep);
    while (r == 0 && next != CORE_IDLE && clock_us() < until_us &&
           !(to_sleep && must_stop_storing(g))) {
        g->beat += 2;
        next = CORE_WAIT;
        if (g->in_flight < BACKEND_IN_FLIGHT)
            next = core_next(g->core, &batch, clock_us());
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
    const uint64_t sleep_us = engine_sleep_time(g), now_us = clock_us();
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
    uint64_t deadline_us, quiet_us;
    bool restored;
    int next = CORE_WAIT, answered, r;

    g->beat++;
    if (engine_wait_for_room(g))
        g->resumed_us = clock_us();
    g->beat++;
    engine_count_time(g, N_ENGINE_PARTS);
    r = engine_take_in(g, e);
    if (r < 0)
        return r;
    deadline_us = core_expire(g->core, clock_us());
    collect(g);
    r = engine_draft(g, e);
    if (r < 0)
        return r;
    if (r == 0 && g->in_flight < BACKEND_IN_FLIGHT)
        next = core_next(g->core, &batch, clock_us());
    engine_count_time(g, ENGINE_PART_SCHEDULE);
    r = 0;
    if (next == CORE_OK) {
        r = submit(g, batch, e);
        engine_count_time(g, ENGINE_PART_SUBMIT);
    }
    if (r < 0)
        return r;
    restored = engine_restore(g, clock_us() + RESTORE_US);
    answered = engine_answer_next(g, e);
    if (g->trace && next != CORE_OK && g->in_flight == 0)
        engine_flush_trace(g, true);
    engine_count_time(g, ENGINE_PART_OTHER);
    publish(g);
    if (answered < 0)
        return answered;
    if (g->in_flight == BACKEND_IN_FLIGHT || (g->in_flight > 0 && next != CORE_OK))
        return finish_oldest(g, e);
    if (next == CORE_OK || restored)
        return 0;
    if (answered) /* the core may say something else by now; beats do not wait for a pause */
        return g->status.backend.idle_s ? ops->idle(g->backend, e) : 0;
    must(next == CORE_IDLE); /* with nothing in flight, what fits runs */
    quiet_us = g->committed_us + ENGINE_QUIET_US;
    if (clock_us() < quiet_us)
        return rest(g, deadline_us && deadline_us < quiet_us ? deadline_us : quiet_us, e);
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
    const uint64_t until_us = clock_us() + STORE_US;
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

    while ((j = engine_next_job(g, &is_new)))
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "%s", g->status.failure.text);
    pthread_mutex_lock(&g->lock);
    count_taken_in(g);
    pthread_mutex_unlock(&g->lock);
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
        g->committed_us = clock_us();
        while (!g->quit && r >= 0)
            r = iterate(g, &e);
        if (r >= 0 && g->disk)
            store_all(g);
    }
    if (r < 0)
        fail(g, r, &e);
    return NULL;
}
