/* sim_time.c - see sim_world_impl.h: what steps cost, and whether a client with one request at a
 * time among others' many gets its share of the time. */
#include <math.h>
#include <string.h>

#include "tests/sim/sim_world_impl.h"

enum { LIGHT = 1 }; /* the client */

/* Any cost of a step by itself, and any of a row. */
void sim_time_choose(struct world *w)
{
    struct rng *r = &w->rng;
    const double base = rng_one_in(r, 2) ? 0 : rng_range(r, 0, 3000), row = rng_range(r, 1, 300);

    memset(&w->cost, 0, sizeof(w->cost));
    for (int k = 0; k < STEP_COST_POINTS; k++) {
        if (rng_one_in(r, 3))
            continue;
        w->cost.decodes[k].n = 1 << k;
        w->cost.decodes[k].us = base + row * (1 << k);
    }
    w->cost.row_us = rng_one_in(r, 8) ? 0 : row * rng_range(r, 1, 20) / 10;
}

void sim_time_choose_light(struct world *w)
{
    const int32_t n_seqs = rng_range(&w->rng, 2, 12);

    w->options.fair_time = true;
    w->options.max_seqs = w->backend_options.max_seqs = n_seqs;
    w->options.max_seq_len = 160;
    w->options.block_len = w->backend_options.block_len = 16;
    w->options.n_blocks = w->backend_options.n_blocks[TIER_DEVICE] = n_seqs * (160 / 16 + 1);
    w->options.max_batch_tokens = w->backend_options.max_batch_tokens = rng_range(&w->rng, 16, 96);
    w->backend_options.numerics_one_in = 0;
    w->n_clients = rng_range(&w->rng, 2, 4);
    w->max_n = 1;
    w->max_prompt = 40;
    w->max_tokens = 80;
    do
        sim_time_choose(w);
    while (step_cost_us(&w->cost, 1, 0) <= 0);
}

static const struct oracle_request *light_request(const struct world *w)
{
    for (int32_t i = 0; i < w->n_alive; i++)
        if (w->alive[i]->client == LIGHT)
            return w->alive[i];
    return NULL;
}

/* After the step with the first of its rows and up to that with the last, steps take at most as
 * many times what its rows take alone as there are clients, but for what may come at once. */
const char *sim_time_check(struct world *w, const struct batch *batch)
{
    const struct step *st = &w->core->steps[batch->step % BACKEND_IN_FLIGHT];
    const struct oracle_request *q = light_request(w);
    const double one_us = step_cost_us(&w->cost, 1, 0);
    int32_t decodes = 0, rows = 0;
    const struct core_time *t = &w->core->time;
    double own_us, at_once, us;

    for (int32_t i = 0; i < st->n_decodes; i++)
        decodes += st->decodes[i].sequence->request->client_id == LIGHT;
    for (int32_t i = 0; i < st->n_chunks; i++)
        rows += st->chunks[i].sequence->request->client_id == LIGHT ? st->chunks[i].n : 0;
    if (!q || q->id != w->light_id) {
        w->light_id = q ? q->id : 0;
        w->light_us = w->light_own_us = w->light_most_us = 0;
    }
    if (!q || (w->light_us <= 0 && decodes + rows == 0))
        return NULL;
    own_us = step_cost_us(&w->cost, decodes, rows);
    us = step_cost_us(&w->cost, batch->n_decodes, batch->n_tokens - batch->n_decodes);
    if (w->light_us <= 0)
        us = own_us;
    else if (t->newcomer && t->light == t->newcomer) /* another client's first step, a short one */
        us = fmax(us - 16 * one_us, own_us);
    w->light_us += us;
    w->light_own_us += own_us;
    w->light_most_us = fmax(w->light_most_us, fmax(own_us, w->cost.row_us));
    at_once = 12 * w->light_most_us + 4 * one_us;
    return decodes + rows > 0 && w->light_us > w->n_clients * w->light_own_us + at_once
               ? "a light client gets less than its share of the time"
               : NULL;
}
