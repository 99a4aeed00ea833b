/* engine_sleep.c - gives the backend's memory back while nothing runs, and takes it again for the
 * first request; see inspect.h for what is kept.
 *
 * The engine thread does it between two steps. Requests that come while it wakes wait in the inbox,
 * as during any step. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/clock.h"

static void publish_level(struct engine *g, enum sleep_level level)
{
    engine_read_memory(g);
    g->asleep = level;
    engine_publish_state(g, ENGINE_READY);
}

static uint64_t taken_bytes(const struct engine *g)
{
    struct backend_info i;

    g->options.backend->info(g->backend, &i);
    return i.weight_bytes + i.tiers[TIER_DEVICE].bytes + i.graph_bytes + i.workspace_bytes +
           (g->drafter ? drafter_bytes(g->drafter) : 0);
}

/* Forgets the device's blocks, and says of how many a tier below has copies. */
static void forget_device(struct engine *g, struct inspect_report *out)
{
    const int32_t block_len = g->options.backend_options.block_len;
    struct core_stats stats;
    int32_t n_lost;

    core_stats(g->core, &stats);
    n_lost = core_empty_device(g->core);
    out->lost_tokens = n_lost * block_len;
    out->kept_tokens = (stats.blocks_cached - n_lost) * block_len;
}

/* With no request in the core. Blocks that no tier below has room for are lost only if they may be.
 * 1; 0: a request has come, or the end, and it does not sleep. */
static int go_to_sleep(struct engine *g, enum sleep_level level, bool may_lose,
                       struct inspect_report *out, struct err *e)
{
    const uint64_t begin_us = clock_us(), before = taken_bytes(g);
    struct core_stats stats;
    int r = engine_finish_steps(g, e);

    core_stats(g->core, &stats);
    if (stats.blocks_pinned > 0)
        level = SLEEP_WEIGHTS;
    if (r == 0 && level == SLEEP_ALL && g->asleep != SLEEP_ALL) {
        r = engine_store_down(g, true, UINT64_MAX, e);
        core_store_end(g->core);
        if (r == 0)
            return 0;
        if (!may_lose && core_n_unstored(g->core) > 0)
            level = SLEEP_WEIGHTS;
        else if (r > 0)
            forget_device(g, out);
    }
    if (r >= 0 && g->asleep == SLEEP_NONE && g->drafter)
        r = drafter_sleep(g->drafter, e);
    if (r >= 0 && g->asleep < level) {
        r = g->options.backend->sleep(g->backend, level != SLEEP_ALL, e);
        if (r == 0)
            publish_level(g, level);
    }
    if (r < 0)
        return r;
    out->level = g->asleep;
    out->freed_bytes = before - taken_bytes(g);
    out->took_us = clock_us() - begin_us;
    return 1;
}

/* -ENOMEM: both sleep on. The draft model comes first: the other may have copies under way, with
 * which it cannot be put to sleep again. */
static int wake_both(struct engine *g, struct err *e)
{
    int r = g->drafter ? drafter_wake(g->drafter, e) : 0, slept;
    struct err why;

    if (r < 0)
        return r;
    r = g->options.backend->wake(g->backend, e);
    if (r != -ENOMEM || !g->drafter)
        return r;
    slept = drafter_sleep(g->drafter, &why);
    if (slept < 0) {
        *e = why;
        r = slept;
    }
    return r;
}

/* -ENOMEM: it sleeps on. */
static int wake(struct engine *g, struct err *e)
{
    int r;

    if (!g->asleep)
        return 0;
    r = wake_both(g, e);
    if (r == 0 && (model_has_changed(g->model) || (g->drafter && drafter_has_changed(g->drafter))))
        r = err_set(e, -ESTALE, "the model's files have changed since they were opened");
    if (r < 0)
        return r;
    g->committed_us = clock_us(); /* it is idle from now on */
    publish_level(g, SLEEP_NONE);
    engine_count_time(g, ENGINE_PART_OTHER); /* not part of the step that it woke for */
    return 0;
}

int engine_wake_for(struct engine *g, struct job *j, struct err *e)
{
    int r = wake(g, e);

    if (r != -ENOMEM)
        return r < 0 ? r : 1;
    job_fail(j, &g->out, ENGINE_E_UNAVAILABLE, NULL, "the model sleeps and cannot wake: %s",
             e->text);
    return 0;
}

static int sleep_for(struct engine *g, struct job *j, struct inspect_report *out, struct err *e)
{
    struct core_stats stats;
    int r;

    core_stats(g->core, &stats);
    if (!g->options.backend->sleep) {
        job_fail(j, &g->out, ENGINE_E_UNSUPPORTED, NULL, "the %s backend cannot sleep",
                 g->options.backend->name);
        return 0;
    }
    r = stats.requests_running + stats.requests_waiting > 0
            ? 0
            : go_to_sleep(g, j->request.query.level, true, out, e);
    if (r == 0)
        job_fail(j, &g->out, ENGINE_E_UNAVAILABLE, NULL,
                 "requests are in progress, or have just come; a model sleeps only while there are "
                 "none");
    return r;
}

int engine_answer_sleep(struct engine *g, struct job *j, struct err *e)
{
    struct inspect_report *report = calloc(1, sizeof(*report));
    const uint64_t begin_us = clock_us();
    int r;

    if (!report) {
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
        return 0;
    }
    report->kind = j->request.query.kind;
    if (report->kind == INSPECT_SLEEP) {
        r = sleep_for(g, j, report, e);
    } else {
        r = engine_wake_for(g, j, e);
        report->took_us = clock_us() - begin_us;
    }
    if (r <= 0) {
        inspect_report_free(report);
        return r;
    }
    j->terminal.report = report;
    j->terminal.bytes += sizeof(*report);
    job_end(j, ENGINE_REPORT, &g->out);
    return 1;
}

uint64_t engine_sleep_time(struct engine *g)
{
    uint64_t after_us;

    pthread_mutex_lock(&g->lock);
    after_us = g->idle_sleep_us;
    pthread_mutex_unlock(&g->lock);
    return after_us && !g->asleep && g->options.backend->sleep ? g->committed_us + after_us : 0;
}

int engine_sleep_by_itself(struct engine *g, struct err *e)
{
    struct inspect_report ignored = {0};
    const int r = go_to_sleep(g, SLEEP_ALL, false, &ignored, e);

    return r < 0 ? r : 0;
}
