/* sim_world.c - see sim_world.h. */
#include "tests/sim/sim_world.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"
#include "tests/sim/sim_world_impl.h"

enum { TOKEN_STARVATION = 64 };

/* Tiers below the device, drafts and masks. */
static void choose_contract(struct world *w)
{
    struct rng *r = &w->rng;

    for (int t = TIER_HOST; t < N_TIERS && rng_one_in(r, 2); t++) {
        w->options.tier_blocks[t] = rng_range(r, 1, 32);
        w->backend_options.n_blocks[t] = w->options.tier_blocks[t];
    }
    if (rng_one_in(r, 8)) /* a disk without a host tier */
        w->options.tier_blocks[TIER_HOST] = 0;
    if (w->options.tier_blocks[TIER_HOST] && rng_one_in(r, 2)) { /* some requests are larger */
        w->options.tier_blocks[TIER_HOST] += rng_range(r, 0, 2 * w->options.n_blocks);
        w->options.offload = w->backend_options.offload = true;
        w->backend_options.n_blocks[TIER_HOST] = w->options.tier_blocks[TIER_HOST];
    }
    w->backend_options.copy_steps = rng_range(r, 0, 8);
    w->backend_options.copy_fail_one_in = rng_one_in(r, 3) ? 10 : 0;
    w->backend_options.seed = rng_next(r);
    w->speaks = rng_one_in(r, 2);
    w->pools = rng_one_in(r, 3);
    w->options.speculate = rng_one_in(r, 2);
    if (w->speaks && rng_one_in(r, 2)) /* rows are left for drafts */
        w->max_alive = rng_range(r, 1, (w->options.max_seqs + 1) / 2);
    w->options.mask_words = w->speaks ? ORACLE_MASK_WORDS : 0;
}

static void choose_options(struct world *w)
{
    struct rng *r = &w->rng;
    static const int32_t lens[] = {1, 2, 4, 4, 16, 16, 32};

    for (size_t i = 0; i < sizeof(w->secret); i++)
        w->secret[i] = (uint8_t)((r->state >> i % 64) * 151);
    w->options = (struct core_options){
        .n_blocks = rng_range(r, 1, rng_one_in(r, 3) ? 64 : 16),
        .block_len = lens[rng_range(r, 0, 6)],
        .max_batch_tokens = rng_one_in(r, 3) ? rng_range(r, 1, 4) : rng_range(r, 1, 96),
        .max_seqs = rng_one_in(r, 8) ? 1 : rng_range(r, 1, 12),
        .max_preemptions = rng_range(r, 0, 3),
        .prefix_cache = !rng_one_in(r, 6),
        .share_all = rng_one_in(r, 5),
        .replay = rng_one_in(r, 3),
        .cache_secret = w->secret,
    };
    w->options.max_seq_len = rng_range(r, 2, 256);
    w->hand_one_in = rng_one_in(r, 3) ? 20 : 400;
    w->vocab = rng_one_in(r, 3) ? 3 : 64;
    w->backend_options = (struct sim_backend_options){
        .n_blocks = {w->options.n_blocks},
        .block_len = w->options.block_len,
        .max_batch_tokens = w->options.max_batch_tokens,
        .max_seqs = w->options.max_seqs,
        .first_id = rng_range(r, 0, 5),
        .n_ids = w->vocab,
        .numerics_one_in = rng_one_in(r, 4) ? 200 : 0,
        .replay = w->options.replay,
    };
    w->n_clients = rng_range(r, 1, 4);
    w->n_salts = rng_range(r, 1, N_SALTS);
    w->max_n = rng_one_in(r, 2) ? 1 : 4;
    w->max_alive = rng_range(r, 1, MAX_ALIVE);
    w->arrival_one_in = rng_range(r, 1, 30);
    w->cancel_one_in = rng_one_in(r, 2) ? 60 : 2000;
    w->stop_one_in = rng_one_in(r, 2) ? 80 : 2000;
    w->deadline_one_in = rng_one_in(r, 2) ? 8 : 1000;
    w->max_prompt = w->options.n_blocks * w->options.block_len;
    if (rng_one_in(r, 8)) /* more than the device has room for */
        w->max_prompt *= 3;
    if (w->max_prompt > w->options.max_seq_len)
        w->max_prompt = w->options.max_seq_len;
    w->max_tokens = rng_one_in(r, 3) ? 4 : rng_range(r, 1, w->max_prompt);
    w->fair = w->max_prompt >= 16 && rng_one_in(r, 5);
    if (w->fair) {
        w->n_clients = rng_range(r, 2, 4);
        w->max_n = 1;
        w->options.max_seqs = w->backend_options.max_seqs = rng_range(r, 1, 4);
        w->max_prompt = (w->max_prompt + 1) / 2;
        w->max_tokens = 1 + w->max_prompt / 4;
        w->backend_options.numerics_one_in = 0;
    }
    w->timed = !w->fair && rng_one_in(r, 6);
    if (w->timed)
        sim_fair_choose_light(w);
    else if (rng_one_in(r, 2))
        sim_fair_choose_cost(w);
    if (w->fair || w->timed)
        w->options.mask_words = ORACLE_MASK_WORDS;
    else
        choose_contract(w);
    w->max_mask_us =
        rng_one_in(r, 2) ? 0 : rng_range(r, 1, 40) * (int32_t)step_cost_us(&w->cost, 1, 0);
    for (int k = 0; k < N_BASES; k++) {
        w->n_base[k] = rng_range(r, 0, w->max_prompt);
        for (int32_t i = 0; i < w->n_base[k]; i++)
            w->bases[k][i] = rng_range(r, 0, w->vocab - 1);
        if (k > 0 && rng_one_in(r, 2)) /* begins as the one before */
            memcpy(w->bases[k], w->bases[k - 1],
                   (size_t)(w->n_base[k] / 2) * sizeof(w->bases[k][0]));
    }
}

/* Takes what the core has told; requests that are finished go. */
static const char *take_events(struct world *w)
{
    int32_t n;
    const struct core_event *e = core_events(w->core, &n);

    for (int32_t i = 0; i < n; i++) {
        struct oracle_request *q = NULL;
        const char *wrong;
        int32_t at = 0;

        while (at < w->n_alive && w->alive[at]->id != e[i].request)
            at++;
        if (at == w->n_alive)
            return "an event of a request that is over";
        q = w->alive[at];
        wrong = oracle_event(q, &e[i], &w->backend_options, w->prefixes, w->options.prefix_cache);
        if (wrong)
            return wrong;
        if (e[i].type == CORE_TOKEN || e[i].type == CORE_SUM) {
            w->counts->tokens += e[i].type == CORE_TOKEN;
            w->counts->sums += e[i].type == CORE_SUM;
            w->last_token_step = w->n_committed;
        }
        w->counts->numerics += e[i].reason == CORE_REASON_NUMERICS;
        w->counts->deadlines += e[i].reason == CORE_REASON_DEADLINE;
        if (!q->finished)
            continue;
        if (rng_one_in(&w->rng, 4)) { /* this conversation goes on */
            int32_t k = rng_range(&w->rng, 0, N_BASES - 1);
            int32_t told = q->choices[0].n_told;

            memcpy(w->bases[k], q->prompt, (size_t)q->n_prompt * sizeof(int32_t));
            memcpy(w->bases[k] + q->n_prompt, q->choices[0].told, (size_t)told * sizeof(int32_t));
            w->n_base[k] = q->n_prompt + told;
        }
        oracle_request_free(q);
        w->alive[at] = w->alive[--w->n_alive];
    }
    core_events(w->core, &n);
    return n ? "events are told twice" : NULL;
}

/* After each call of the core. */
static const char *look(struct world *w)
{
    const char *wrong = take_events(w);

    if (!wrong)
        wrong = core_verify(w->core);
    return wrong;
}

static void choose_sampling(struct world *w, struct sampling *s, int32_t *stop_ids)
{
    struct rng *r = &w->rng;

    *s = (struct sampling){
        .repetition_penalty = rng_one_in(r, 3) ? 1.1f : 1.0f,
        .presence_penalty = rng_one_in(r, 5) ? 0.5f : 0.0f,
        .seed = rng_next(r),
        .n_logprobs = rng_one_in(r, 4) ? rng_range(r, 0, 5) : -1,
        .min_tokens = rng_one_in(r, 4) ? rng_range(r, 0, 20) : 0,
        .n_stop_ids = rng_range(r, 0, w->vocab > ORACLE_MAX_STOPS ? ORACLE_MAX_STOPS : 1),
        .stop_ids = stop_ids,
    };
    for (int32_t i = 0; i < s->n_stop_ids; i++)
        stop_ids[i] =
            rng_range(r, w->backend_options.first_id, w->backend_options.first_id + w->vocab - 1);
}

static void choose_prompt(struct world *w, struct core_request *q)
{
    struct rng *r = &w->rng;
    int32_t k = rng_range(r, 0, N_BASES - 1);
    int32_t shared = rng_one_in(r, 2) ? w->n_base[k] : rng_range(r, 0, w->n_base[k]);
    int32_t n = shared + (rng_one_in(r, 2) ? 1 : rng_range(r, 0, w->max_prompt / 4 + 1));

    if (n > MAX_PROMPT)
        n = MAX_PROMPT;
    if (n < 1)
        n = 1;
    for (int32_t i = 0; i < n; i++)
        w->prompt[i] = i < shared ? w->bases[k][i] : rng_range(r, 0, w->vocab - 1);
    q->n_prompt = n;
    q->prompt = w->prompt;
}

static int32_t count_alive(const struct world *w, uint64_t client)
{
    int32_t n = 0;

    for (int32_t i = 0; i < w->n_alive; i++)
        n += w->alive[i]->client == client;
    return n;
}

static const char *arrive(struct world *w, int32_t client)
{
    struct rng *r = &w->rng;
    struct sampling sampling;
    int32_t stop_ids[ORACLE_MAX_STOPS];
    int32_t salt = rng_range(r, 0, w->n_salts - 1);
    struct core_request q = {
        .id = ++w->last_id * 16,
        .client = (uint64_t)client,
        .priority = w->fair || w->timed || rng_one_in(r, 2)
                        ? CORE_NORMAL
                        : (enum core_priority)rng_range(r, 0, 2),
        .max_tokens = rng_range(r, 1, w->max_tokens),
        .n = rng_range(r, 1, w->max_n),
        .sampling = &sampling,
        .cache_salt = sim_salt(salt),
        .masks = w->options.mask_words > 0 && rng_one_in(r, 3),
    };
    const bool drafts = w->speaks && rng_one_in(r, 2);
    const char *wrong = NULL;
    int64_t longest;
    double start;
    int rc, expect = CORE_OK;

    if (w->pools && !drafts && !q.masks && rng_one_in(r, 3)) {
        q.pooling = rng_one_in(r, 2) ? CORE_POOL_LAST : CORE_POOL_ALL;
        q.max_tokens = q.n = 1;
    }
    choose_sampling(w, &sampling, stop_ids);
    if (drafts && rng_one_in(r, 2)) { /* penalties allow none */
        sampling.repetition_penalty = 1.0f;
        sampling.presence_penalty = 0.0f;
    }
    if (q.masks) /* or a mask may leave nothing but stop ids */
        sampling.min_tokens = 0;
    choose_prompt(w, &q);
    if (w->fair) { /* each client asks for more at once than the one before */
        q.n_prompt = 1 + (q.n_prompt - 1) * client / w->n_clients;
        sampling.n_stop_ids = 0;
    } else if (w->timed)
        sampling.n_stop_ids = client == 1 ? 0 : sampling.n_stop_ids;
    else if (rng_one_in(r, w->deadline_one_in))
        q.deadline_us = w->now_us + (uint64_t)rng_range(r, 0, 2000);
    longest = (int64_t)q.n_prompt + q.max_tokens;
    if (longest - (q.pooling != CORE_POOL_NONE) > w->options.max_seq_len)
        expect = CORE_E_TOO_LONG;
    else if (longest - 1 > (int64_t)core_room(w->core, &q) * w->options.block_len)
        expect = CORE_E_NEVER_FITS;
    if (w->n_pins == 0 && !w->backend_options.numerics_one_in &&
        core_room(w->core, &q) != w->options.n_blocks &&
        (!w->options.offload ||
         core_room(w->core, &q) != w->options.tier_blocks[TIER_HOST] - w->options.n_blocks))
        return "nothing is pinned, and not all blocks are there";
    start = sim_fair_start(w, q.client);
    if (start >= 0) /* it left, and was charged */
        w->spent_mask_us[q.client] = 0;
    rc = core_admit(w->core, &q, w->now_us);
    if (rc != expect)
        return "what can fit is refused, or what cannot is admitted";
    /* all that the request pointed to is the caller's again */
    if (rc == CORE_OK) {
        wrong = sim_fair_joined(w, q.client, start);
        w->alive[w->n_alive] = oracle_request_new(&q, sim_namespace_key(w, q.client, salt));
        w->alive[w->n_alive]->salt = salt;
        w->alive[w->n_alive]->drafts = drafts;
        oracle_admitted(w->prefixes, w->alive[w->n_alive++]);
        w->counts->requests++;
        w->counts->choices += (uint64_t)q.n;
    } else {
        w->counts->refused++;
    }
    memset(w->prompt, 0xff, (size_t)q.n_prompt * sizeof(*w->prompt));
    memset(stop_ids, 0xff, sizeof(stop_ids));
    return wrong ? wrong : look(w);
}

static const char *cancel(struct world *w)
{
    struct oracle_request *q = w->alive[rng_range(&w->rng, 0, w->n_alive - 1)];
    uint64_t id = q->id;
    const char *wrong;

    q->asked = CORE_REASON_CANCELLED;
    w->counts->cancels++;
    core_cancel(w->core, id, CORE_REASON_CANCELLED, w->now_us);
    wrong = look(w);
    for (int32_t i = 0; !wrong && i < w->n_alive; i++)
        if (w->alive[i]->id == id)
            return "a cancelled request is not finished at once";
    core_cancel(w->core, id, CORE_REASON_CANCELLED, w->now_us); /* nothing, again */
    return wrong ? wrong : take_events(w);
}

static const char *stop(struct world *w)
{
    struct oracle_request *q = w->alive[rng_range(&w->rng, 0, w->n_alive - 1)];
    int32_t choice = rng_range(&w->rng, 0, q->n - 1);

    if (!q->choices[choice].done)
        q->choices[choice].asked = CORE_REASON_STOP;
    w->counts->stops++;
    core_stop(w->core, q->id, choice, w->now_us);
    return look(w);
}

static const char *expire(struct world *w)
{
    bool any = false;
    uint64_t next;
    const char *wrong;

    for (int32_t i = 0; i < w->n_alive; i++)
        if (w->alive[i]->deadline_us && w->alive[i]->deadline_us <= w->now_us) {
            w->alive[i]->asked = CORE_REASON_DEADLINE;
            any = true;
        }
    next = core_expire(w->core, w->now_us);
    wrong = any ? look(w) : take_events(w);
    for (int32_t i = 0; !wrong && i < w->n_alive; i++) {
        uint64_t deadline = w->alive[i]->deadline_us;

        if (deadline && (deadline <= w->now_us || deadline < next || next == 0))
            return "a deadline has passed, or is not the next";
    }
    return wrong;
}

static const char *commit(struct world *w)
{
    struct step_result result;
    const char *wrong = sim_host_masks(w);

    if (!wrong)
        wrong = sim_backend_wait(w->backend, &result);
    if (wrong)
        return wrong;
    sim_disk_waited(w, &result);
    core_commit(w->core, &result, w->now_us);
    sim_disk_committed(w, &result);
    w->in_flight--;
    w->n_committed++;
    w->counts->steps++;
    wrong = look(w);
    return wrong ? wrong : sim_host_committed(w, w->n_committed);
}

/* A step with nothing told at all may be one of a long prefill; so many in a row are none. */
static bool starves(const struct world *w)
{
    uint64_t slots = (uint64_t)(w->options.n_blocks + w->options.tier_blocks[TIER_HOST]) *
                     (uint64_t)w->options.block_len;

    return w->n_alive > 0 && w->n_committed - w->last_token_step > TOKEN_STARVATION * (slots + 1);
}

/* Whether the step just planned left somebody out for too long, though blocks were there. */
static const char *check_turns(struct world *w, const struct batch *batch, bool prompts,
                               bool blocks_short)
{
    /* One that is ahead of its share waits for others, longer where rows have just become cheap. */
    const bool shared = w->n_clients > 1;
    uint64_t longest = 4 * (uint64_t)w->options.max_seqs + (shared ? 2000 : 16);
    const struct step *st = &w->core->steps[batch->step % BACKEND_IN_FLIGHT];
    bool chunk = batch->n_decodes < batch->n_seqs;

    if (batch->n_seqs > 0) /* else it waits for copies, which hold the blocks */
        w->n_without_chunk = prompts && !chunk && !blocks_short ? w->n_without_chunk + 1 : 0;
    if (w->n_without_chunk > (shared ? 2000 : 8))
        return "decodes starve prompts";
    for (int32_t i = 0; i < st->head.n_seqs; i++)
        w->n_decodes[st->entries[i].sequence->request->client_id] += st->entries[i].decode;
    for (struct list *l = w->core->decoding.next; l != &w->core->decoding; l = l->next) {
        const struct sequence *s = CONTAINER_OF(l, struct sequence, link);
        struct oracle_choice *o = &sim_find(w, s->request->id)->choices[s->choice];
        const uint64_t n = w->n_decodes[s->request->client_id];

        if (s->last_step == batch->step)
            o->last_row = n;
        else if (s->n_generated + s->n_sampling < s->request->max_tokens &&
                 n - o->last_row > 4 * (uint64_t)w->options.max_seqs + 16)
            return "decodes of a client do not take turns";
        if (s->n_generated + s->n_sampling < s->request->max_tokens &&
            batch->step - s->last_step > longest &&
            !(w->core->n_copies > 0 && core_needs_block(w->core, s))) /* which a copy has */
            return "a decode is left out for too long";
    }
    return NULL;
}

/* The order of a sequence that waits for a slot that another user has beyond its part, though it
 * could begin; or 0. */
static uint64_t kept_waiting(const struct world *w)
{
    struct core *c = w->core;
    const struct sequence *s;

    FAIR_EACH (u, &c->fair)
        u->closed = false;
    s = fair_top(&c->fair);
    return s && !sequence_waits_for_first(s) && s->n_lacking == 0 && c->n_free_slots == 0 &&
                   list_empty(&c->draining) && s->request->user->rows[0] == 0 &&
                   core_slot_victim(c, s)
               ? s->order
               : 0;
}

/* Whether the one that was kept waiting before the step was planned still is. */
static const char *check_shares(struct world *w, uint64_t before, bool blocks_short)
{
    const bool waits = before && !blocks_short && kept_waiting(w) == before;

    w->n_kept_waiting = !waits ? 0 : before == w->kept_waiting ? w->n_kept_waiting + 1 : 1;
    w->kept_waiting = before;
    return w->n_kept_waiting > 3 ? "a client has more than its part while another waits" : NULL;
}

static const char *next(struct world *w)
{
    const struct batch *batch;
    const char *wrong = sim_host_masks(w);
    bool prompts = !list_empty(&w->core->prefilling), blocks_short;
    uint64_t n_preempted = w->core->stats.preemptions, waits = kept_waiting(w);

    if (wrong)
        return wrong;
    sim_fair_plan(w);
    switch (core_next(w->core, &batch, w->now_us)) {
    case CORE_OK:
        if (w->n_alive == 0 && batch->n_seqs > 0)
            return "a step for nobody";
        sim_host_planned(w, batch->step);
        n_preempted = w->core->stats.preemptions - n_preempted;
        blocks_short = n_preempted > 0 || w->core->n_short > 0 || w->core->host_short;
        wrong = check_turns(w, batch, prompts, blocks_short);
        if (!wrong)
            wrong = check_shares(w, waits, blocks_short);
        if (!wrong)
            wrong = sim_fair_check(w, batch, n_preempted);
        if (!wrong)
            wrong = sim_backend_submit(w->backend, batch);
        sim_disk_submitted(w, batch);
        w->in_flight++;
        break;
    case CORE_IDLE:
        if (w->n_alive > 0)
            return "idle, with requests";
        break;
    case CORE_WAIT:
        w->counts->waits++;
        if (w->in_flight == 0)
            return "something fits and nothing runs";
        break;
    default:
        return "core_next gives a code that it does not have";
    }
    return wrong ? wrong : look(w);
}

static const char *advance(struct world *w, bool arrivals)
{
    struct rng *r = &w->rng;
    const char *wrong = NULL;

    w->now_us += (uint64_t)rng_range(r, 0, 20);
    if (!w->timed && !w->fair && rng_one_in(r, 200)) {
        sim_fair_choose_cost(w);
        core_set_cost(w->core, &w->cost);
    }
    for (int32_t i = 1; arrivals && w->timed && !wrong && i <= w->n_clients; i++)
        if (count_alive(w, (uint64_t)i) < (i > 1 ? w->options.max_seqs + 2 : rng_one_in(r, 20)))
            wrong = arrive(w, i);
    for (int32_t i = 1; arrivals && w->fair && !wrong && i <= w->n_clients; i++)
        for (int tries = 0;
             tries < 8 && !wrong && count_alive(w, (uint64_t)i) < w->options.max_seqs + 2; tries++)
            wrong = arrive(w, i);
    if (arrivals && !w->fair && !w->timed && w->n_alive < w->max_alive &&
        rng_one_in(r, w->arrival_one_in))
        wrong = arrive(w, rng_range(r, 1, w->n_clients));
    if (!wrong && !w->fair && !w->timed && w->n_alive > 0 && rng_one_in(r, w->cancel_one_in))
        wrong = cancel(w);
    if (!wrong && !w->fair && !w->timed && w->n_alive > 0 && rng_one_in(r, w->stop_one_in))
        wrong = stop(w);
    if (!wrong && !w->fair && !w->timed && rng_one_in(r, w->hand_one_in)) {
        wrong = sim_hands(w);
        wrong = wrong ? wrong : look(w);
    }
    if (w->speaks && rng_one_in(r, 2))
        sim_host(w);
    if (w->restoring && rng_one_in(r, 4))
        sim_disk_restore(w);
    if (!wrong && rng_one_in(r, 4))
        wrong = expire(w);
    if (!wrong && rng_one_in(r, 2))
        wrong = sim_backend_run(w->backend);
    if (wrong)
        return wrong;
    if (w->in_flight > 0 && (w->in_flight == BACKEND_IN_FLIGHT || rng_one_in(r, 3)))
        return commit(w);
    wrong = next(w);
    if (!wrong && w->in_flight == 1 && rng_one_in(r, 8))
        wrong = commit(w);
    if (!wrong && starves(w))
        wrong = "no token for very long: requests starve";
    return wrong;
}

static const char *check_idle(struct world *w)
{
    struct core_stats stats;

    core_stats(w->core, &stats);
    if (core_busy(w->core) || stats.seqs_running || stats.seqs_waiting || stats.requests_running ||
        stats.requests_waiting)
        return "no request, but the core is busy";
    if (stats.blocks_used != stats.blocks_pinned)
        return "no request, but used blocks that are not pinned";
    if (stats.blocks_used + stats.blocks_cached + stats.blocks_free != stats.blocks_total)
        return "blocks are lost";
    if (!w->options.prefix_cache && stats.blocks_cached)
        return "no prefix cache, but cached blocks";
    if (stats.hit_tokens > stats.queried_tokens || stats.steps != w->n_committed)
        return "statistics do not add up";
    return NULL;
}

enum { MAX_DRAIN = 1 << 20 }; /* far more than all that is alive needs */

/* Lets all that is alive end, without anything new. */
static const char *drain(struct world *w)
{
    const char *wrong = NULL;
    int n = 0;

    w->fair = false; /* clients do not always wait any more */
    while (!wrong && core_busy(w->core)) {
        wrong = n++ < MAX_DRAIN ? advance(w, false) : "the core never becomes idle";
        if (!wrong && w->n_alive == 0 && w->in_flight > 0)
            wrong = commit(w);
    }
    return wrong ? wrong : check_idle(w);
}

/* The process ends, as far as those outside can tell. */
static const char *end(struct world *w)
{
    const int32_t hand_one_in = w->hand_one_in;
    const char *wrong = NULL;

    w->hand_one_in = INT32_MAX;
    while (!wrong && w->n_alive > 0)
        wrong = cancel(w);
    if (!wrong)
        wrong = drain(w);
    w->hand_one_in = hand_one_in;
    w->n_earlier += w->n_committed;
    w->n_committed = w->last_token_step = 0;
    return wrong;
}

/* Nothing runs, and the device's memory is given back for a while. */
static const char *sleep_idle(struct world *w)
{
    const int32_t hand_one_in = w->hand_one_in;
    int32_t n_cached, n_lost;
    const char *wrong;

    w->hand_one_in = INT32_MAX;
    core_store_all(w->core, true);
    do
        wrong = advance(w, false);
    while (!wrong && core_busy(w->core));
    w->hand_one_in = hand_one_in;
    core_store_end(w->core);
    if (wrong)
        return wrong;
    n_cached = w->core->blocks->n_cached;
    n_lost = core_empty_device(w->core);
    w->counts->slept_blocks += (uint64_t)n_cached;
    w->counts->lost_blocks += (uint64_t)n_lost;
    if (n_lost < 0 || n_lost > n_cached)
        return "more blocks are lost than the device had";
    sim_backend_empty_device(w->backend);
    return w->core->blocks->n_cached > 0 && !PLANT(PLANT_SLEEP_KEEPS_BLOCKS)
               ? "the device's blocks are found while it sleeps"
               : look(w);
}

static const char *live(struct world *w, uint64_t n_steps)
{
    const char *wrong = NULL;
    uint64_t n = 0;

    while (!wrong && w->n_earlier + w->n_committed < n_steps && n++ < n_steps * 64) {
        wrong = advance(w, true);
        if (!wrong && w->options.tier_blocks[TIER_DISK] && w->options.prefix_cache &&
            !w->restoring && !PLANT(PLANT_SHORT_HASH) && /* records are linked by digests alone */
            rng_one_in(&w->rng, 1000))
            wrong = sim_restart(w, end);
        if (wrong || w->fair || w->timed || !rng_one_in(&w->rng, 1000))
            continue;
        wrong = drain(w); /* an idle phase */
        if (!wrong && w->core->cache->n_pinned == 0)
            wrong = sleep_idle(w);
    }
    if (!wrong)
        wrong = drain(w);
    return wrong ? wrong : sim_hands_off(w);
}

const char *sim_world_run(uint64_t seed, uint64_t n_steps, struct sim_counts *counts)
{
    struct world *w = calloc(1, sizeof(*w));
    struct core_stats stats;
    const char *wrong;

    must(w);
    w->rng.state = seed;
    w->now_us = 1; /* 0 says never */
    w->counts = counts;
    choose_options(w);
    must(core_new(&w->core, &w->options) == 0);
    core_set_cost(w->core, &w->cost);
    must(sim_backend_new(&w->backend, &w->backend_options) == 0);
    sim_disk_open(w);
    w->prefixes = oracle_prefixes_new(w->options.block_len);
    wrong = live(w, n_steps);
    core_stats(w->core, &stats);
    counts->worlds++;
    counts->preemptions += stats.preemptions;
    counts->hit_tokens += stats.hit_tokens;
    counts->queried_tokens += stats.queried_tokens;
    counts->prefix_waits += w->core->n_prefix_waits;
    counts->copies_down += w->core->n_stored[TIER_HOST] + w->core->n_stored[TIER_DISK];
    counts->copies_up += w->core->n_loaded[TIER_HOST] + w->core->n_loaded[TIER_DISK];
    counts->loads += w->core->n_loads;
    counts->offloads += w->core->n_offloads;
    counts->drafts += w->core->stats.draft_tokens;
    counts->accepted += w->core->stats.accepted_tokens;
    counts->yields += w->core->n_yields;
    counts->evictions += w->core->cache->n_evicted;
    if (wrong) /* a broken core cannot be trusted to free itself */
        return wrong;
    for (int32_t i = 0; i < w->n_alive; i++)
        oracle_request_free(w->alive[i]);
    sim_disk_close(w);
    core_free(w->core);
    sim_backend_free(w->backend);
    free(w);
    return NULL;
}
