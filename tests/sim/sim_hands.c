/* sim_hands.c - what people do to a core by hand while it works: looking, pinning, clearing. */
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"
#include "tests/sim/sim_world_impl.h"

struct text sim_salt(int32_t salt)
{
    static const char *const salts[N_SALTS] = {"", "a", "b"};

    return (struct text){salts[salt], strlen(salts[salt])};
}

uint64_t sim_namespace_key(const struct world *w, uint64_t client, int32_t salt)
{
    uint64_t owner = w->options.share_all ? 0 : client;

    return (w->n_cleared[owner] * 8 + owner) * 8 + (uint64_t)salt;
}

static struct inspect_query query(const struct world *w, enum inspect_kind kind, uint64_t client,
                                  int32_t salt)
{
    return (struct inspect_query){
        .kind = kind,
        .viewer = client,
        .all = w->options.share_all,
        .limit = 1 + (int32_t)(w->n_committed % 40),
        .map = true,
        .client = client,
        .cache_salt = sim_salt(salt),
    };
}

/* How many of the prompt's tokens some cached prompt begins with. */
static int32_t cached(const struct world *w, uint64_t client, int32_t salt, const int32_t *prompt,
                      int32_t n)
{
    struct inspect_query q = query(w, INSPECT_EXPLAIN_PROMPT, client, salt);
    struct inspect_report *r;
    int32_t same;

    must(core_inspect(&r, w->core, &q, prompt, n, w->now_us) == CORE_INSPECT_OK);
    must(r->cached_tokens <= r->same_tokens && r->same_tokens <= n);
    same = r->same_tokens;
    inspect_report_free(r);
    return same;
}

/* What is pinned is there; but broken numbers are forgotten, whoever pinned them. */
static const char *check_pins(const struct world *w)
{
    int32_t len = w->options.block_len;

    for (int32_t i = 0; i < w->n_pins && !w->backend_options.numerics_one_in; i++) {
        const struct pinned *p = &w->pins[i];

        if (cached(w, p->client, p->salt, p->prompt, p->n) < p->n / len * len)
            return "a pinned prompt is not in the cache";
    }
    return NULL;
}

static void forget_pin(struct world *w, int32_t i)
{
    w->pins[i] = w->pins[--w->n_pins];
}

static bool is_pin(const struct world *w, const struct pinned *a, const struct pinned *b)
{
    int32_t len = w->options.block_len;

    return (a->client == b->client || w->options.share_all) && a->salt == b->salt &&
           a->n / len == b->n / len &&
           memcmp(a->prompt, b->prompt, (size_t)(a->n / len * len) * sizeof(int32_t)) == 0;
}

static const char *unpin(struct world *w)
{
    struct pinned *p = &w->pins[rng_range(&w->rng, 0, w->n_pins - 1)];
    struct inspect_query q = query(w, INSPECT_CACHE_PIN, p->client, p->salt);
    struct inspect_report *r;
    int32_t blocks = p->n / w->options.block_len, unpinned;

    q.unpin = true;
    must(core_inspect(&r, w->core, &q, p->prompt, p->n, w->now_us) == CORE_INSPECT_OK);
    unpinned = r->changed_blocks;
    inspect_report_free(r);
    if (unpinned != blocks && !w->backend_options.numerics_one_in)
        return "a pin is not there to be taken out";
    forget_pin(w, (int32_t)(p - w->pins));
    return NULL;
}

static const char *pin(struct world *w)
{
    struct rng *g = &w->rng;
    struct pinned *p = &w->pins[w->n_pins];
    int32_t k = rng_range(g, 0, N_BASES - 1), len = w->options.block_len;
    struct inspect_query q;
    struct inspect_report *r;
    bool known = false;

    p->client = (uint64_t)rng_range(g, 1, w->n_clients);
    p->salt = rng_range(g, 0, w->n_salts - 1);
    p->n = rng_one_in(g, 2) ? w->n_base[k] : rng_range(g, 0, w->n_base[k]);
    memcpy(p->prompt, w->bases[k], (size_t)p->n * sizeof(int32_t));
    q = query(w, INSPECT_CACHE_PIN, p->client, p->salt);
    for (int32_t i = 0; i < w->n_pins; i++)
        known |= is_pin(w, &w->pins[i], p);
    switch (core_inspect(&r, w->core, &q, p->prompt, p->n, w->now_us)) {
    case CORE_INSPECT_OK:
        if (r->changed_blocks != p->n / len || r->changed_tokens != p->n / len * len)
            return "a prompt is not pinned whole";
        inspect_report_free(r);
        w->n_pins += !known;
        w->counts->pins++;
        return cached(w, p->client, p->salt, p->prompt, p->n) < p->n / len * len
                   ? "what was just pinned is not there"
                   : NULL;
    case CORE_INSPECT_NO_CACHE:
        return w->options.prefix_cache ? "there is a cache" : NULL;
    case CORE_INSPECT_SHORT:
        return p->n >= len ? "a prompt of a block is refused as too short to pin" : NULL;
    case CORE_INSPECT_PIN_LIMIT:
    case CORE_INSPECT_PIN_BUSY:
        return NULL;
    case CORE_INSPECT_ABSENT:
        return known && !w->backend_options.numerics_one_in ? "a pinned prompt is not there" : NULL;
    default:
        return "a pin gives a code that it does not have";
    }
}

/* Requests under way go on; what they compute from now on may be found again. */
static const char *clear(struct world *w)
{
    uint64_t client = (uint64_t)rng_range(&w->rng, 1, w->n_clients);
    struct inspect_query q = query(w, INSPECT_CACHE_CLEAR, client, 0);
    bool all = w->options.share_all || rng_one_in(&w->rng, 4);
    struct inspect_report *r;

    while (w->restoring) /* what is not known yet could not be cleared */
        sim_disk_restore(w);
    q.clear_all = q.all = all;
    must(core_inspect(&r, w->core, &q, NULL, 0, w->now_us) == CORE_INSPECT_OK);
    inspect_report_free(r);
    w->counts->clears++;
    for (uint64_t i = 0; i < 5; i++)
        w->n_cleared[i] += all || i == client;
    sim_disk_cleared(w);
    for (int32_t i = w->n_pins - 1; i >= 0; i--)
        if (all || w->pins[i].client == client)
            forget_pin(w, i);
    for (int32_t i = 0; i < w->n_alive; i++)
        if (all || w->alive[i]->client == client)
            oracle_cleared(w->prefixes, w->alive[i],
                           sim_namespace_key(w, w->alive[i]->client, w->alive[i]->salt));
    for (int32_t k = 0; k < N_BASES; k++)
        for (int32_t salt = 0; salt < w->n_salts; salt++)
            if (w->n_base[k] && cached(w, client, salt, w->bases[k], w->n_base[k]))
                return "what was cleared is found";
    return NULL;
}

/* Requests and blocks as they are told add up to what there is. */
static const char *check_report(const struct world *w, const struct inspect_report *r, bool all)
{
    int32_t used = r->pinned_blocks, n_waiting = 0;

    if (all && r->kind == INSPECT_REQUESTS && r->total != w->n_alive)
        return "requests are told that are not there, or some are not";
    for (int32_t i = 0; i < r->n_requests; i++) {
        const struct inspect_request *q = &r->requests[i];

        if (all && q->place > 0 && q->place != ++n_waiting)
            return "places in the queue are not told in order";
        if (q->shared > q->blocks || q->computed_tokens > q->prompt_tokens)
            return "a request is told to hold or to have computed more than there is";
    }
    for (int32_t i = 0; i < r->n_clients; i++)
        used += r->clients[i].used;
    if (all && r->kind == INSPECT_BLOCKS && !w->options.share_all &&
        list_empty(&w->core->draining) && w->core->n_copies == 0 && used != r->stats.blocks_used)
        return "blocks by client and pinned ones are not all that are used";
    if (r->n_requests > r->total || r->n_prefixes > r->total)
        return "more is told than there is";
    for (int32_t i = 0; i + 1 < r->n_prefixes; i++)
        if (r->prefixes[i].used_us < r->prefixes[i + 1].used_us)
            return "prefixes are not told in the order of their use";
    return NULL;
}

static const char *look_around(struct world *w)
{
    static const enum inspect_kind kinds[] = {INSPECT_REQUESTS, INSPECT_BLOCKS, INSPECT_CACHE};
    enum inspect_kind kind = kinds[rng_range(&w->rng, 0, 2)];
    bool all = w->options.share_all || rng_one_in(&w->rng, 2);
    struct inspect_query q = query(w, kind, (uint64_t)rng_range(&w->rng, 1, w->n_clients), 0);
    struct inspect_report *r;
    const char *wrong;

    q.all = all;
    q.limit = all ? INSPECT_MAX_ENTRIES : q.limit;
    must(core_inspect(&r, w->core, &q, NULL, 0, w->now_us) == CORE_INSPECT_OK);
    wrong = check_report(w, r, all);
    inspect_report_free(r);
    return wrong;
}

static const char *ask_why(struct world *w)
{
    struct oracle_request *a = w->alive[rng_range(&w->rng, 0, w->n_alive - 1)];
    struct inspect_query q = query(w, INSPECT_EXPLAIN_REQUEST, a->client, 0);
    struct inspect_report *r;
    bool found;

    q.request = a->id;
    must(core_inspect(&r, w->core, &q, NULL, 0, w->now_us) == CORE_INSPECT_OK);
    found = r->found && r->n_requests == 1 && r->requests[0].id == a->id;
    inspect_report_free(r);
    return found ? NULL : "a request is not there to be explained";
}

const char *sim_hands(struct world *w)
{
    const char *wrong = check_pins(w);

    if (wrong)
        return wrong;
    switch (rng_range(&w->rng, 0, 5)) {
    case 0:
    case 1:
        return w->n_pins < MAX_PINS ? pin(w) : unpin(w);
    case 2:
        return w->n_pins > 0 ? unpin(w) : NULL;
    case 3:
        return rng_one_in(&w->rng, 3) ? clear(w) : NULL;
    case 4:
        return w->n_alive > 0 ? ask_why(w) : NULL;
    default:
        return look_around(w);
    }
}

const char *sim_hands_off(struct world *w)
{
    struct inspect_query q = {.kind = INSPECT_CACHE_CLEAR, .all = true, .clear_all = true};
    struct inspect_report *r;
    const char *wrong = check_pins(w);
    bool left;

    while (w->restoring)
        sim_disk_restore(w);
    must(core_inspect(&r, w->core, &q, NULL, 0, w->now_us) == CORE_INSPECT_OK);
    left = r->stats.blocks_free != r->stats.blocks_total;
    for (int t = TIER_HOST; t < N_TIERS; t++)
        left |= w->core->tiers[t] && w->core->tiers[t]->n_free != w->options.tier_blocks[t];
    inspect_report_free(r);
    if (!wrong)
        wrong = core_verify(w->core);
    return wrong || !left ? wrong : "something is left when all is cleared";
}
