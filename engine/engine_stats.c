/* engine_stats.c - what the engine thread counts of its requests, steps and time, and what it
 * learns of the cost of steps.
 *
 * The counts are the thread's own; a copy is published with the core's figures. */
#include "engine/engine_private.h"

#include "engine/util/clock.h"

static void count(struct engine *g, enum engine_histogram which, uint64_t value)
{
    histogram_add(&g->counts.histograms[which], engine_histogram_bounds(which), value);
}

static void count_between(struct engine *g, enum engine_histogram which, uint64_t from_us,
                          uint64_t to_us)
{
    count(g, which, to_us > from_us ? to_us - from_us : 0);
}

void engine_count_time(struct engine *g, enum engine_part part)
{
    const uint64_t now_us = clock_us(), took_us = now_us - g->lap_us;

    if (part != N_ENGINE_PARTS) {
        g->counts.part_us[part] += took_us;
        if (g->trace && took_us > 0)
            trace_add(g->trace, &(struct trace_record){.kind = TRACE_PART,
                                                       .at_us = g->lap_us,
                                                       .took_us = took_us,
                                                       .part = part});
    }
    g->lap_us = now_us;
}

void engine_count_token(struct engine *g, struct job *j, const struct core_event *ev,
                        uint64_t now_us)
{
    if (ev->last_us)
        count_between(g, HISTOGRAM_BETWEEN_TOKENS, ev->last_us, now_us);
    else if (!j->has_token)
        count_between(g, HISTOGRAM_FIRST_TOKEN, j->arrival_us, now_us);
    j->has_token = true;
}

void engine_count_end(struct engine *g, const struct job *j)
{
    const struct core_usage *u = &j->terminal.usage;
    const uint64_t start_us = u->start_us ? u->start_us : u->end_us;

    count_between(g, HISTOGRAM_QUEUE, u->arrival_us, start_us);
    count_between(g, HISTOGRAM_REQUEST, u->arrival_us, u->end_us);
    if (u->prompt_tokens == 0) /* cancelled before it reached the core */
        return;
    count(g, HISTOGRAM_PROMPT_TOKENS, (uint64_t)u->prompt_tokens);
    if (j->request.kind == ENGINE_GENERATE)
        count(g, HISTOGRAM_OUTPUT_TOKENS, (uint64_t)u->completion_tokens);
}

static void count_step(struct engine *g, const struct batch *b, uint64_t begin_us, uint64_t now_us)
{
    if (b->n_tokens == 0) /* it has only copied blocks */
        return;
    count_between(g, HISTOGRAM_STEP, begin_us, now_us);
    count(g, HISTOGRAM_STEP_TOKENS, (uint64_t)b->n_tokens);
    if (g->trace)
        trace_add(g->trace, &(struct trace_record){.kind = TRACE_STEP,
                                                   .at_us = begin_us,
                                                   .took_us = now_us - begin_us,
                                                   .step = b->step,
                                                   .n_decodes = batch_decode_rows(b),
                                                   .n_prompt = b->n_tokens - batch_decode_rows(b),
                                                   .n_seqs = b->n_seqs});
}

/* A step in which masks took long may have waited for them: it shows what the device takes at most.
 */
static void learn(struct engine *g, int32_t n_decodes, int32_t n_rows, double us, double masks_us)
{
    const double estimate = step_cost_us(&g->cost, n_decodes, n_rows);

    if (masks_us <= us / 2 || us < estimate || estimate <= 0)
        step_cost_learn(&g->cost, n_decodes, n_rows, us);
    else
        step_cost_skip(&g->cost);
}

/* A step starts when it is submitted, or when the step before it ends. */
void engine_count_step(struct engine *g, uint64_t step)
{
    const struct batch *b = g->batches[step % BACKEND_IN_FLIGHT];
    const uint64_t submitted = g->submitted_us[step % BACKEND_IN_FLIGHT], now = clock_us();
    const uint64_t before = g->committed_us, begin = submitted > before ? submitted : before;
    const int32_t n_decodes = batch_decode_rows(b);
    const uint64_t drafting_us = g->drafting_us, masks_us = g->masks_us;

    g->committed_us = now;
    g->drafting_us = g->masks_us = 0;
    count_step(g, b, begin, now);
    if (submitted <= g->resumed_us || b->n_offloaded > 0) /* which wait for host memory */
        step_cost_skip(&g->cost);
    else if (b->n_drafted > 0 && n_decodes == b->n_tokens)
        step_cost_learn_drafts(&g->cost, n_decodes, (double)(now - before - drafting_us));
    else
        learn(g, n_decodes, b->n_tokens - n_decodes, (double)(now - begin), (double)masks_us);
    core_set_cost(g->core, &g->cost);
}
