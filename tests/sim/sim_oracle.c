/* sim_oracle.c - see sim_oracle.h. */
#include "tests/sim/sim_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"
#include "tests/sim/rng.h"

enum { MAX_PREFIXES = 1 << 17 };

/* An open hash table of (namespace, prefix), with how many requests have brought it. There is one,
 * and entries of an earlier life are empty: clearing it each time would take long. */
struct oracle_prefixes {
    int32_t block_len;
    int32_t n;
    uint32_t life;
    struct {
        uint64_t key;
        int32_t n_requests;
        uint32_t life;
    } at[MAX_PREFIXES];
};

struct oracle_prefixes *oracle_prefixes_new(int32_t block_len)
{
    static struct oracle_prefixes prefixes;

    prefixes.block_len = block_len;
    prefixes.n = 0;
    prefixes.life++;
    return &prefixes;
}

static int32_t *prefix_count(struct oracle_prefixes *p, uint64_t namespace_key, uint64_t hash)
{
    uint64_t key = rng_mix(hash + rng_mix(namespace_key));
    size_t i = (size_t)key & (MAX_PREFIXES - 1);

    while (p->at[i].life == p->life && p->at[i].key != key)
        i = (i + 1) & (MAX_PREFIXES - 1);
    if (p->at[i].life != p->life) {
        must(++p->n < MAX_PREFIXES / 2);
        p->at[i].key = key;
        p->at[i].n_requests = 0;
        p->at[i].life = p->life;
    }
    return &p->at[i].n_requests;
}

struct oracle_request *oracle_request_new(const struct core_request *r, uint64_t namespace_key)
{
    struct oracle_request *q = calloc(1, sizeof(*q));
    uint64_t hash = 0;

    must(q && r->sampling->n_stop_ids <= ORACLE_MAX_STOPS);
    q->id = r->id;
    q->client = r->client;
    q->namespace_key = namespace_key;
    q->deadline_us = r->deadline_us;
    q->n_prompt = r->n_prompt;
    q->max_tokens = r->max_tokens;
    q->n = r->n;
    q->masks = r->masks;
    q->pooling = r->pooling;
    q->sampling = *r->sampling;
    memcpy(q->stop_ids, r->sampling->stop_ids,
           (size_t)q->sampling.n_stop_ids * sizeof(*q->stop_ids));
    q->sampling.stop_ids = q->stop_ids;
    q->prompt = calloc((size_t)r->n_prompt, sizeof(*q->prompt));
    q->choices = calloc((size_t)r->n, sizeof(*q->choices));
    must(q->prompt && q->choices);
    memcpy(q->prompt, r->prompt, (size_t)r->n_prompt * sizeof(*q->prompt));
    for (int32_t p = 0; p < q->n_prompt; p++)
        hash = sim_hash(hash, q->prompt[p], p);
    for (int32_t i = 0; i < q->n; i++) {
        q->choices[i].hash = hash;
        q->choices[i].told = calloc((size_t)q->max_tokens, sizeof(int32_t));
        must(q->choices[i].told);
    }
    return q;
}

void oracle_request_free(struct oracle_request *q)
{
    if (!q)
        return;
    for (int32_t i = 0; i < q->n; i++)
        free(q->choices[i].told);
    free(q->choices);
    free(q->prompt);
    free(q);
}

void oracle_admitted(struct oracle_prefixes *p, const struct oracle_request *q)
{
    uint64_t hash = 0;

    for (int32_t i = 0; i < q->n_prompt; i++) {
        hash = sim_hash(hash, q->prompt[i], i);
        if ((i + 1) % p->block_len == 0)
            ++*prefix_count(p, q->namespace_key, hash);
    }
}

void oracle_cleared(struct oracle_prefixes *p, struct oracle_request *q, uint64_t namespace_key)
{
    q->namespace_key = namespace_key;
    q->cleared = true;
    oracle_admitted(p, q);
    for (int32_t i = 0; i < q->n; i++) {
        uint64_t hash = 0;

        for (int32_t k = 0; k < q->n_prompt + q->choices[i].n_told; k++) {
            hash =
                sim_hash(hash, k < q->n_prompt ? q->prompt[k] : q->choices[i].told[k - q->n_prompt],
                         k);
            if (k >= q->n_prompt && (k + 1) % p->block_len == 0)
                *prefix_count(p, namespace_key, hash) += 2;
        }
    }
}

static bool is_stop(const struct oracle_request *q, int32_t id)
{
    for (int32_t i = 0; i < q->sampling.n_stop_ids; i++)
        if (q->stop_ids[i] == id)
            return true;
    return false;
}

void oracle_mask(uint32_t mask[ORACLE_MASK_WORDS], uint64_t prefix,
                 const struct sim_backend_options *o)
{
    const int32_t id = o->first_id + (int32_t)(prefix % (uint64_t)o->n_ids);

    for (int i = 0; i < ORACLE_MASK_WORDS; i++)
        mask[i] = (uint32_t)rng_mix(prefix + (uint64_t)i);
    mask[id / 32] |= 1u << id % 32;
}

int32_t oracle_next(const struct oracle_request *q, int32_t choice, uint64_t prefix, int32_t place,
                    const struct sim_backend_options *o)
{
    uint32_t mask[ORACLE_MASK_WORDS];
    struct sampling s = q->sampling;

    s.seed += (uint64_t)choice;
    if (q->masks)
        oracle_mask(mask, prefix, o);
    return sim_sample(o, &s, prefix, (uint32_t)place, q->masks ? mask : NULL);
}

/* What the choice must be told next. */
static int32_t expected(const struct oracle_request *q, int32_t choice,
                        const struct sim_backend_options *o)
{
    return oracle_next(q, choice, q->choices[choice].hash, q->choices[choice].n_told, o);
}

static const char *check_logprobs(const struct oracle_request *q, const struct oracle_choice *c,
                                  const struct core_event *e)
{
    if (q->sampling.n_logprobs < 0)
        return NULL;
    if (e->logprobs.n_top != q->sampling.n_logprobs ||
        e->logprobs.logprob != sim_logprob(c->hash, e->token))
        return "a token's logprob is another row's";
    for (int32_t i = 0; i < e->logprobs.n_top; i++)
        if (e->logprobs.top_ids[i] != i || e->logprobs.top_logprobs[i] != sim_logprob(c->hash, i))
            return "a token's best alternatives are another row's";
    return NULL;
}

static const char *token_event(struct oracle_request *q, const struct core_event *e,
                               const struct sim_backend_options *o, struct oracle_prefixes *p)
{
    struct oracle_choice *c = &q->choices[e->choice];
    enum core_reason reason = CORE_REASON_NONE;
    const char *wrong;

    if (c->done || q->pooling != CORE_POOL_NONE)
        return "a choice that has ended, or samples nothing, is told a token";
    if (e->token != expected(q, e->choice, o))
        return "a token is not the one that its prefix gives";
    wrong = check_logprobs(q, c, e);
    if (wrong)
        return wrong;
    c->hash = sim_hash(c->hash, e->token, q->n_prompt + c->n_told);
    c->told[c->n_told++] = e->token;
    if ((q->n_prompt + c->n_told) % p->block_len == 0)
        *prefix_count(p, q->namespace_key, c->hash) += 2;
    if (is_stop(q, e->token))
        reason = CORE_REASON_STOP;
    else if (c->n_told == q->max_tokens)
        reason = CORE_REASON_LENGTH;
    if (e->reason != reason)
        return "a token's reason is not stop, length or none as it should be";
    c->done = reason != CORE_REASON_NONE;
    c->reason = reason;
    q->n_done += c->done;
    return NULL;
}

/* The hidden states of the prompt's tokens from `from` on, summed up while the second element,
 * which tells how many there are, is below `until`. Returns how many. */
static int32_t sum_of_prompt(float out[SIM_SUM_DIM], const struct oracle_request *q, int32_t from,
                             float until, const struct sim_backend_options *o)
{
    float hidden[SIM_SUM_DIM];
    uint64_t hash = 0;
    int32_t p = 0;

    memset(out, 0, SIM_SUM_DIM * sizeof(*out));
    for (; p < from; p++)
        hash = sim_hash(hash, q->prompt[p], p);
    for (; p < q->n_prompt && out[1] < until; p++) {
        hash = sim_hash(hash, q->prompt[p], p);
        sim_hidden(hidden, o, hash, p);
        for (int k = 0; k < SIM_SUM_DIM; k++)
            out[k] += hidden[k];
    }
    return p - from;
}

static const char *sum_event(struct oracle_request *q, const struct core_event *e,
                             const struct sim_backend_options *o)
{
    struct oracle_choice *c = &q->choices[0];
    float want[SIM_SUM_DIM];

    if (c->done || q->pooling == CORE_POOL_NONE || e->sum_dim != SIM_SUM_DIM)
        return "a sum is told that nobody wants";
    if (e->position == 0)
        q->n_summed = 0;
    if (e->position != (q->pooling == CORE_POOL_LAST ? q->n_prompt - 1 : q->n_summed))
        return "a sum begins at another position";
    q->n_summed = e->position + sum_of_prompt(want, q, e->position, e->sum[1], o);
    if (memcmp(want, e->sum, sizeof(want)) != 0)
        return "a sum is not that of its rows";
    if ((e->reason == CORE_REASON_LENGTH) != (q->n_summed == q->n_prompt))
        return "a sum is the last one, or is not, too early or late";
    if (e->reason == CORE_REASON_NONE)
        return NULL;
    c->done = true;
    c->reason = e->reason;
    q->n_done++;
    return NULL;
}

static bool has_broken_sum(const struct oracle_request *q, const struct sim_backend_options *o)
{
    float sum[SIM_SUM_DIM];

    sum_of_prompt(sum, q, q->pooling == CORE_POOL_LAST ? q->n_prompt - 1 : 0, INFINITY, o);
    return isnan(sum[0]);
}

static const char *done_event(struct oracle_request *q, const struct core_event *e,
                              const struct sim_backend_options *o)
{
    struct oracle_choice *c = &q->choices[e->choice];
    bool numerics = q->pooling != CORE_POOL_NONE && has_broken_sum(q, o);

    if (c->done)
        return "a choice ends twice";
    for (int32_t i = 0; i < q->n && q->pooling == CORE_POOL_NONE; i++)
        numerics |= expected(q, i, o) == BATCH_NUMERICS;
    switch (e->reason) {
    case CORE_REASON_STOP:
        if (c->asked != CORE_REASON_STOP)
            return "a choice is stopped that nobody stopped";
        break;
    case CORE_REASON_CANCELLED:
    case CORE_REASON_DEADLINE:
        if (q->asked != e->reason)
            return "a choice is cancelled that nobody cancelled";
        break;
    case CORE_REASON_NUMERICS:
        if (!numerics)
            return "a choice ends by numerics that were right";
        break;
    default:
        return "a choice ends without a token for no reason";
    }
    c->done = true;
    c->reason = e->reason;
    q->n_done++;
    return NULL;
}

static const char *finished_event(struct oracle_request *q, const struct core_event *e,
                                  struct oracle_prefixes *p, bool prefix_cache)
{
    const struct core_usage *u = &e->usage;
    int32_t n_told = 0;
    uint64_t hash = 0;

    if (q->n_done != q->n)
        return "a request is finished before all its choices are";
    if (e->reason != q->choices[0].reason)
        return "a request's reason is not that of choice 0";
    for (int32_t i = 0; i < q->n; i++)
        n_told += q->choices[i].n_told;
    if (u->prompt_tokens != q->n_prompt || u->completion_tokens != n_told)
        return "usage does not count the tokens told";
    if (u->cached_tokens % p->block_len != 0 || u->cached_tokens >= q->n_prompt)
        return "usage says that no token of the prompt was computed";
    if (u->cached_tokens > 0 && q->pooling == CORE_POOL_ALL)
        return "a sum of all tokens has some from the cache";
    if (u->cached_tokens > 0 && !prefix_cache)
        return "a prefix is found though there is no cache";
    for (int32_t i = 0; i < u->cached_tokens; i++)
        hash = sim_hash(hash, q->prompt[i], i);
    if (u->cached_tokens > 0 && !q->cleared && *prefix_count(p, q->namespace_key, hash) < 2)
        return "a prefix is found that nobody computed in this namespace";
    if ((u->first_us && u->first_us < u->start_us) || u->end_us < u->arrival_us)
        return "usage has times out of order";
    q->usage = *u;
    q->finished = true;
    return NULL;
}

const char *oracle_event(struct oracle_request *q, const struct core_event *e,
                         const struct sim_backend_options *o, struct oracle_prefixes *p,
                         bool prefix_cache)
{
    if (q->finished)
        return "an event after the terminal one";
    if (e->type == CORE_FINISHED)
        return finished_event(q, e, p, prefix_cache);
    if (e->choice < 0 || e->choice >= q->n)
        return "an event of a choice that there is not";
    if (e->type == CORE_SUM)
        return sum_event(q, e, o);
    return e->type == CORE_TOKEN ? token_event(q, e, o, p) : done_event(q, e, o);
}
