/* tiers.c - moves cached blocks between tiers: down before they are evicted, up when they are hit;
 * always to the next tier that there is.
 *
 * Every copy starts when the step that carries it has computed and ends some steps later, so none
 * delays a step. The copy has a reference to the source and one to the target until a result names
 * it: neither can be freed or rewritten before. Only then does the node know of the new copy.
 *
 * Down: the cached blocks that go next from a tier, as many as the steps in flight and the longest
 * sequence that comes up can take, are copied to the tier below, but no more than half of that; at
 * the end of the process and before the device's memory is given back all that there are, those
 * used last first. A tier gives up only blocks that none above it has.
 * What cannot be copied is not tried again until it is used again.
 * Up: a sequence whose prefix goes on in a lower tier waits in SEQ_LOADING, without slot or blocks,
 * until the copies have ended; then it queues again and finds them, or begins the next ones. What
 * cannot be copied is forgotten there, and each time it is admitted a sequence begins only so many
 * copies, so that in the end it does without. Sequences load together only as far as the blocks of
 * all of them fit, or one would push out what another has loaded. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/core_impl.h"

/* Copies to disk under way, at most: more are not faster, and others have to wait for them. */
enum { MAX_STORES = 32 };

/* A copy never stays in a tier, so zeros are one that is not under way. */
static bool is_idle(const struct core_copy *k)
{
    return k->from_tier == k->to_tier;
}

/* The next tier that there is. */
static int tier_above(const struct core *c, int tier)
{
    do
        tier--;
    while (!c->tiers[tier]);
    return tier;
}

/* Blocks that the steps in flight can take, at most. */
static int32_t blocks_of_steps(const struct core *c)
{
    return BACKEND_IN_FLIGHT * (core_blocks_for(c, c->options.max_batch_tokens) + 1);
}

int core_tiers_init(struct core *c)
{
    int32_t *n = c->options.tier_blocks;
    bool lower = false;

    n[TIER_DEVICE] = c->options.n_blocks;
    for (int t = 0; t < N_TIERS; t++) {
        if (n[t] > 0 && blocks_new(&c->tiers[t], n[t]) < 0)
            return -ENOMEM;
        lower |= t != TIER_DEVICE && n[t] > 0;
    }
    c->blocks = c->tiers[TIER_DEVICE];
    list_init(&c->loading);
    c->restoring = c->options.restores;
    c->max_copies = lower && c->options.prefix_cache ? c->max_blocks + blocks_of_steps(c) : 0;
    c->copies = calloc((size_t)c->max_copies + 1, sizeof(*c->copies));
    return c->copies ? 0 : -ENOMEM;
}

void core_tiers_deinit(struct core *c)
{
    for (int t = 0; t < N_TIERS; t++)
        blocks_free(c->tiers[t]);
    free(c->copies);
    free(c->to_store);
}

/* False: too many are under way, or the tier has no block to give. */
static bool begin_copy(struct core *c, struct step *st, struct node *n, enum tier from_tier,
                       enum tier to_tier)
{
    const int32_t from = n->location[from_tier];
    const uint64_t node = prefix_cache_chain(c->cache, n); /* which making room may remove */
    int32_t to;
    bool taken;

    if (c->n_copies == c->max_copies)
        return false;
    blocks_ref(c->tiers[from_tier], from); /* making room must not take it */
    taken = prefix_cache_take(c->cache, to_tier, blocks_of_steps(c), &to);
    if (!taken || PLANT(PLANT_COPY_NO_HOLD))
        blocks_put_back(c->tiers[from_tier], from, false);
    if (!taken)
        return false;
    if (to_tier < from_tier && prefix_cache_node(c->cache, node))
        n->loading = true;
    c->n_storing += to_tier == TIER_DISK;
    c->n_arriving += to_tier == TIER_DEVICE;
    while (!is_idle(&c->copies[c->next_copy]))
        c->next_copy = (c->next_copy + 1) % c->max_copies;
    c->copies[c->next_copy] =
        (struct core_copy){node, (uint8_t)from_tier, (uint8_t)to_tier, from, to};
    c->n_copies++;
    st->copies[st->head.n_copies++] = (struct batch_copy){
        .id = (uint32_t)c->next_copy,
        .from_tier = (uint8_t)from_tier,
        .to_tier = (uint8_t)to_tier,
        .when = COPY_AFTER,
        .from = from,
        .to = to,
    };
    if (PLANT(PLANT_COPY_EARLY))
        prefix_cache_place(c->cache, node, to_tier, to);
    if (PLANT(PLANT_COPY_NO_REF))
        blocks_unref(c->tiers[to_tier], to);
    return true;
}

static void end_copy(struct core *c, struct core_copy *k, bool ok)
{
    const bool up = k->to_tier < k->from_tier;
    struct node *node = prefix_cache_node(c->cache, k->node);

    if (up && node)
        node->loading = false;
    if (ok || PLANT(PLANT_COPY_FAILURE))
        prefix_cache_place(c->cache, k->node, k->to_tier, k->to);
    if (up)
        c->n_loaded[k->from_tier] += ok;
    else
        c->n_stored[k->to_tier] += ok;
    c->n_storing -= k->to_tier == TIER_DISK;
    c->n_arriving -= k->to_tier == TIER_DEVICE;
    if (!up && !ok && c->n_to_store > 0 && c->to_store[c->n_to_store - 1].to_tier == k->to_tier)
        c->n_to_store = 0; /* a disk that is full stays full */
    if (up && !ok && (node = blocks_node(c->tiers[k->from_tier], k->from)))
        prefix_cache_drop(c->cache, node, k->from_tier);
    /* Used again; or core_store_end() puts it in its place. */
    if ((up || c->to_store) && !PLANT(PLANT_COPY_NO_HOLD))
        blocks_unref(c->tiers[k->from_tier], k->from);
    else if (!PLANT(PLANT_COPY_NO_HOLD))
        blocks_put_back(c->tiers[k->from_tier], k->from, true);
    if (!PLANT(PLANT_COPY_NO_REF))
        blocks_unref(c->tiers[k->to_tier], k->to);
    *k = (struct core_copy){0};
    c->n_copies--;
}

/* Beside what others load, whose blocks are not theirs yet, there is room for n blocks more. */
static bool has_room_to_load(const struct core *c, int32_t n)
{
    int64_t n_loading = 0;

    SEQUENCE_EACH (s, &c->loading)
        n_loading += s->n_loading;
    return n_loading == 0 ||
           n_loading + n <= c->blocks->n_free + c->blocks->n_cached + c->n_arriving;
}

bool core_load(struct core *c, struct step *st, struct sequence *s, int32_t n, int32_t max,
               uint64_t chain)
{
    const int32_t len = c->options.block_len, n_held = n;
    const enum tier home = s->request->home;
    uint64_t last = 0;
    bool waits = false, room = false, looked = false;

    for (; c->max_copies > 0 && n < max; n++) {
        struct node *node =
            prefix_cache_lookup(c->cache, chain, sequence_tokens(s, n * len, len, c->block_tokens));
        const enum tier t = node ? prefix_cache_from(node, home) : N_TIERS;

        chain = node ? prefix_cache_chain(c->cache, node) : 0; /* a copy may remove the node */
        if (t == N_TIERS)
            break;
        if (t == home)
            continue;
        if (!node->loading) { /* for another sequence */
            if (s->n_loads == N_TIERS * c->max_blocks)
                break;
            room = looked ? room : home != TIER_DEVICE || has_room_to_load(c, max - n);
            looked = true;
            if (!room || c->n_copies == c->max_copies) {
                waits = true;
                break;
            }
            if (!begin_copy(c, st, node, t, tier_above(c, t))) {
                waits |= PLANT(PLANT_LOAD_NO_ROOM);
                break;
            }
            s->n_loads++;
        }
        waits = true;
        last = chain;
    }
    if (!waits)
        return false;
    core_hold_back(s, SEQ_LOADING, &c->loading);
    s->waits_for = last;
    s->n_loading = last && home == TIER_DEVICE ? max - n_held : 0;
    c->n_loads++;
    return true;
}

static struct core_copy *copy_of(struct core *c, const struct copy_result *r)
{
    must(r->id < (uint32_t)c->max_copies);
    return &c->copies[r->id];
}

void core_commit_copies(struct core *c, const struct step_result *r)
{
    const int32_t n = PLANT(PLANT_COPY_IGNORED) ? 0 : r->n_copies, before = c->n_copies;
    bool wake = n > 0 && before == c->max_copies; /* for room */

    for (int32_t i = 0; i < n; i++) {
        struct core_copy *k = copy_of(c, &r->copies[i]);

        if (k->to_tier > k->from_tier)
            end_copy(c, k, r->copies[i].ok);
    }
    for (int32_t i = n; i-- > 0;) { /* up: a chain's tail is released first, and evicted first */
        struct core_copy *k = copy_of(c, &r->copies[i]);

        if (is_idle(k))
            continue;
        end_copy(c, k, r->copies[i].ok);
        wake = true;
    }
    must(before - c->n_copies == n); /* each was under way, and is named once */
    if (!wake || PLANT(PLANT_LOADING_FORGOTTEN))
        return;
    SEQUENCE_EACH (s, &c->loading) {
        const struct node *last = prefix_cache_node(c->cache, s->waits_for);

        if (last && last->loading)
            continue;
        core_unqueue(s);
        core_enqueue(s); /* if others of its copies are under way still, it waits again */
    }
}

static bool may_store(const struct core *c, int to)
{
    return to != TIER_DISK ||
           (c->n_storing < MAX_STORES && (!c->restoring || PLANT(PLANT_RESTORE_OPEN)));
}

/* What is left of core_store_all(). */
static void store(struct core *c, struct step *st)
{
    for (; c->n_to_store > 0; c->n_to_store--) {
        const struct core_store *k = &c->to_store[c->n_to_store - 1];
        struct node *n = prefix_cache_node(c->cache, k->node);

        if (!n || n->location[k->from_tier] < 0 || n->location[k->to_tier] >= 0)
            continue;
        if (c->n_copies == c->max_copies || !may_store(c, k->to_tier))
            return; /* later */
        (void)begin_copy(c, st, n, k->from_tier, k->to_tier);
    }
}

/* From the lowest tier up, so that what is copied to a tier does not push out what has no copy. */
void core_copy_down(struct core *c, struct step *st)
{
    struct node *n;

    if (c->max_copies == 0)
        return;
    if (c->to_store) {
        store(c, st);
        return;
    }
    for (int to = N_TIERS - 1; to > TIER_DEVICE; to--)
        while (c->tiers[to] && may_store(c, to) &&
               (n = prefix_cache_next_copy(
                    c->cache, tier_above(c, to), to,
                    min_i32(c->max_copies, (c->options.tier_blocks[to] + 1) / 2) - c->n_copies)) &&
               begin_copy(c, st, n, tier_above(c, to), to))
            ;
}

static void list_store(struct core *c, const struct node *n, int from, int to)
{
    if (n->location[to] < 0 && !n->ns->private)
        c->to_store[c->n_to_store++] =
            (struct core_store){prefix_cache_chain(c->cache, n), (uint8_t)from, (uint8_t)to};
}

/* Taken from the end: first what goes to the lowest tier, of that what is pinned, and then what was
 * used last. */
void core_store_all(struct core *c, bool device_only)
{
    size_t max = 1;

    for (int t = TIER_DEVICE; t < N_TIERS; t++)
        max += c->tiers[t] ? (size_t)c->tiers[t]->n_touched : 0;
    free(c->to_store);
    c->n_to_store = 0;
    c->n_stores = 0;
    c->to_store = calloc(max, sizeof(*c->to_store));
    for (int to = TIER_HOST; c->to_store && to < N_TIERS; to++) {
        const int from = tier_above(c, to);
        const struct blocks *b = c->tiers[from];

        if (!c->tiers[to] || (device_only && from != TIER_DEVICE))
            continue;
        for (const struct list *l = b->cached.next; l != &b->cached; l = l->next)
            list_store(c, blocks_node(b, blocks_id(b, l)), from, to);
        for (int32_t i = 0; from == TIER_DEVICE && i < b->n_touched; i++)
            if (blocks_node(b, i) && blocks_node(b, i)->n_pins > 0)
                list_store(c, blocks_node(b, i), from, to);
    }
    c->n_stores = c->n_to_store;
}

/* A copy becomes the one used last of its tier. */
static void touch(struct core *c, const struct node *n, int tier)
{
    const int32_t id = n->location[tier];

    if (id < 0 || blocks_refs(c->tiers[tier], id) > 0)
        return;
    blocks_ref(c->tiers[tier], id);
    blocks_unref(c->tiers[tier], id);
}

/* In both tiers the blocks are released again in the order in which they were used. */
void core_store_end(struct core *c)
{
    for (int32_t i = 0; i < c->n_stores; i++) {
        const struct core_store *k = &c->to_store[i];
        const struct node *n = prefix_cache_node(c->cache, k->node);

        if (n) {
            touch(c, n, k->from_tier);
            touch(c, n, k->to_tier);
        }
    }
    c->n_stores = 0;
    free(c->to_store);
    c->to_store = NULL;
    c->n_to_store = 0;
}

static bool is_unstored(const struct core *c, int32_t id)
{
    const struct node *n = blocks_node(c->blocks, id);

    return n && n->location[TIER_HOST] < 0 && n->location[TIER_DISK] < 0;
}

int32_t core_n_unstored(const struct core *c)
{
    int32_t n = 0;

    for (int32_t id = 0; id < c->blocks->n_touched; id++)
        n += is_unstored(c, id);
    return n;
}

int32_t core_empty_device(struct core *c)
{
    const int32_t n_before = c->blocks->n_cached;
    int32_t n_lost, id;

    must(c->n_requests == 0 && c->n_copies == 0 && c->cache->n_pinned == 0);
    for (id = 0; id < c->blocks->n_touched; id++)
        if (is_unstored(c, id)) /* with it go those behind it, wherever they are */
            (void)prefix_cache_remove(c->cache, blocks_node(c->blocks, id));
    n_lost = n_before - c->blocks->n_cached;
    while ((id = blocks_id(c->blocks, c->blocks->cached.next)) >= 0) {
        if (PLANT(PLANT_SLEEP_KEEPS_BLOCKS))
            break;
        prefix_cache_drop(c->cache, blocks_node(c->blocks, id), TIER_DEVICE);
    }
    return n_lost;
}

/* ---- what is on disk, for those who keep records of it */

bool core_record(const struct core *c, uint32_t copy, struct node_record *out)
{
    const struct node *n = prefix_cache_node(c->cache, c->copies[copy].node);

    return n && prefix_cache_record(c->cache, n, out);
}

bool core_keeps(const struct core *c, int32_t block)
{
    return blocks_node(c->tiers[TIER_DISK], block) || blocks_refs(c->tiers[TIER_DISK], block) > 0;
}

int32_t core_max_copies(const struct core *c)
{
    return c->max_copies;
}

bool core_restore(struct core *c, const struct node_record *r, int32_t block, uint64_t now_us)
{
    must(c->restoring);
    c->cache->now_us = now_us;
    return prefix_cache_restore(c->cache, r, block);
}

void core_restored(struct core *c)
{
    c->restoring = false;
}
