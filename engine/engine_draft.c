/* engine_draft.c - answers the core's draft requests, between two steps.
 *
 * Both models share a device, and kernels of either may need all of it at once. So the draft model
 * works while no step of the model is in flight. */
#include "engine/engine_private.h"

#include "engine/util/clock.h"

int engine_open_drafter(struct engine *g, struct err *e)
{
    const struct engine_options *o = &g->options;
    int r;

    if (!o->draft_folder)
        return 0;
    r = drafter_check_options(&o->backend_options, o->speculate, e);
    return r < 0 ? r
                 : drafter_new(&g->drafter, o->draft_folder, o->backend, &o->backend_options, e);
}

int engine_draft(struct engine *g, struct err *e)
{
    const uint64_t begin_us = clock_us();
    struct core_draft_request requests[DRAFTER_SEQS];
    struct draft drafts[DRAFTER_SEQS];
    const int32_t n = g->drafter ? core_draft_requests(g->core, requests) : 0;
    int r;

    if (n == 0 || g->in_flight > 0)
        return n > 0;
    r = drafter_ask(g->drafter, requests, n, model_config(g->model)->vocab_size, drafts, e);
    if (r < 0)
        return r;
    for (int32_t i = 0; i < n; i++)
        (void)core_set_model_drafts(g->core, requests[i].request, requests[i].choice,
                                    drafts[i].tokens, drafts[i].n, drafts[i].n_read);
    g->drafting_us = clock_us() - begin_us;
    if (r > 0) {
        step_cost_learn_model(&g->cost, (double)g->drafting_us / r);
        core_set_cost(g->core, &g->cost);
    }
    engine_count_time(g, ENGINE_PART_DRAFT);
    return 0;
}
