/* core_schedule.c - what the next step does: decodes, prefill chunks, admission, preemption.
 *
 * The step before may still be in flight. A running decode is assumed to go on: its input is then
 * named by the row that samples it. */
#include <string.h>

#include "engine/core/core_impl.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

enum {
    RESERVE_SHARE = 8,    /* 1/8 of a step's rows is kept from decodes while prompts wait */
    MAX_HELD_A_STEP = 32, /* waiting sequences that one step may find to be held back */
    STUCK_STEPS = 16,     /* who did not fit is looked at again after so many steps at the latest */
};

/* Rows of a step that make good products of matrices: so many are computed at a time, and of many
 * rows so many are an even share for each of a GPU's multiprocessors. (Products of 8B's layers on
 * an H200: 17.7 us a row at 1,024, 18.6 at 1,152, 19.0 at 1,408.) They also make few sizes occur.
 */
static const int32_t row_tiles[] = {1024, 128};

/* Blocks that a sequence needs to get through its known tokens and begin to decode. */
static int32_t blocks_to_begin(const struct core *c, const struct sequence *s)
{
    int32_t n = core_blocks_for(c, sequence_n_tokens(s)) + 1;
    int32_t total = core_blocks_for(c, s->request->n_prompt + s->request->max_tokens - 1);

    return n < total ? n : total;
}

static int32_t blocks_available(const struct core *c)
{
    return blocks_n_free(c->blocks) + blocks_n_cached(c->blocks);
}

/* After a preemption newcomers must leave each that runs room to grow, less with each sequence that
 * ends: otherwise the one preempted would be back at once and push out the next. (256 requests of
 * about 1,100 tokens on 2,000 to 10,000 blocks of 16: a third of the preemptions, as many steps.)
 */
static void preempt(struct core *c, struct sequence *s)
{
    s->n_preempted++;
    s->request->usage.preemptions++;
    c->stats.preemptions++;
    c->margin = core_n_running(c) + c->options.n_blocks / 32;
    core_halt(c, s, SEQ_PREEMPTED);
}

static bool take_block(struct core *c, struct sequence *s)
{
    must(s->n_table < c->max_blocks);
    if (prefix_cache_take(c->cache, TIER_DEVICE, &s->table[s->n_table]) != BLOCKS_OK)
        return false;
    s->n_table++;
    s->n_taken++;
    fair_client_use(s->request->client)->n_blocks++;
    return true;
}

/* As take_block, but makes room where there is none. False: none in this step, for the blocks made
 * free come back with a step in flight, or s was the one to go. */
static bool take_block_or_preempt(struct core *c, struct sequence *s)
{
    while (!take_block(c, s)) {
        struct sequence *victim;

        c->squeezed = true;
        s->last_try = c->n_plans;
        if (c->n_short < c->n_returning) {
            c->n_short++;
            return false;
        }
        victim = core_victim(c);
        if (!victim) {
            must(c->n_draining > 0);
            return false;
        }
        preempt(c, victim);
        if (!sequence_runs(s))
            return false;
    }
    return true;
}

/* Gives the full blocks within the first n_positions their place in the chain. */
static void chain_blocks(struct core *c, struct sequence *s, int32_t n_positions, int32_t owner)
{
    int32_t block_len = c->options.block_len;

    if (n_positions > core_n_chunked(c, s))
        n_positions = core_n_chunked(c, s);
    if (PLANT(PLANT_OFF_BY_ONE_FULL) && owner == PREFIX_CACHE_READY)
        n_positions++;
    for (; n_positions - s->n_chained * block_len >= block_len; s->n_chained++) {
        const int32_t *tokens =
            sequence_tokens(s, s->n_chained * block_len, block_len, c->block_tokens);

        prefix_cache_insert(c->cache, &s->chain, s->table[s->n_chained], tokens, owner);
    }
}

void core_chain_written(struct core *c, struct sequence *s)
{
    chain_blocks(c, s, s->n_written, PREFIX_CACHE_READY);
}

/* Charges what s has planned to its client's share; what is computed again after a preemption only
 * once, and what was found not at all. */
static void charge(struct core *c, struct sequence *s)
{
    if (s->n_planned <= s->n_charged)
        return;
    fair_queue_charge(c->queue, s->request->client, (uint64_t)(s->n_planned - s->n_charged));
    s->n_charged = s->n_planned;
}

static bool may_decode(const struct core *c, const struct step *st, const struct sequence *s)
{
    return s->state == SEQ_DECODE && s->last_step != st->number && s->last_try != c->n_plans &&
           s->n_generated + s->n_sampling < s->request->max_tokens;
}

static bool plan_decode(struct core *c, struct step *st, struct sequence *s)
{
    bool sampling = s->n_sampling > 0;                      /* its input is in flight */
    bool replays = s->n_planned < sequence_n_tokens(s) - 1; /* what comes after it is known */
    struct step_entry *e;

    must(!sampling || s->last_step == st->number - 1);
    must(replays ? c->options.replay : s->n_planned == sequence_n_tokens(s) - !sampling);
    if (core_blocks_for(c, s->n_planned + 1) > s->n_table && !take_block_or_preempt(c, s))
        return false;
    e = step_add_decode(st, s);
    e->n = 1;
    e->token = sampling || PLANT(PLANT_STALE_ROW)
                   ? ~s->last_row
                   : s->generated[s->n_planned - s->request->n_prompt];
    e->start = s->n_planned++;
    e->wanted = !replays;
    if (e->wanted)
        e->counter = (uint32_t)(s->n_generated + s->n_sampling++);
    if (!PLANT(PLANT_NO_TURNS)) {
        list_remove(&s->link);
        list_append(&c->decoding, &s->link);
    }
    core_rows_planned(c, s, 1, true);
    charge(c, s);
    return true;
}

static int32_t snapshot(struct core *c, const struct list *head)
{
    int32_t n = 0;

    for (struct list *l = head->next; l != head; l = l->next)
        c->scratch[n++] = CONTAINER_OF(l, struct sequence, link);
    return n;
}

/* Plans decodes, those that waited longest first; returns how many. Preemption changes the list,
 * so a copy is walked. Who stands back comes after the others, but before these have more than
 * half. The last of a step may have what was kept for prompts. */
static int32_t plan_decodes(struct core *c, struct step *st, int32_t budget, bool last)
{
    int32_t n_candidates = budget > 0 ? snapshot(c, &c->decoding) : 0;
    int32_t n = 0;

    for (int turn = core_time_divides(c) ? 0 : 2; turn < 3; turn++) {
        int32_t most = turn == 0 ? budget - budget / 2 : budget;

        for (int32_t i = 0; i < n_candidates && n < most; i++)
            if ((turn == 2 || core_time_stands_back(c, c->scratch[i]) == (turn == 1)) &&
                may_decode(c, st, c->scratch[i]) && core_rows_left(c, c->scratch[i], !last) > 0 &&
                plan_decode(c, st, c->scratch[i]))
                n++;
    }
    return n;
}

/* Plans the next known tokens of s; returns how many, 0 where no block is to be had. */
static int32_t plan_chunk(struct core *c, struct step *st, struct sequence *s, int32_t budget)
{
    int32_t n_left = core_n_chunked(c, s) - s->n_planned, rows = core_rows_left(c, s, false);
    int32_t most = rows < budget ? rows : budget;
    int32_t n = n_left < most ? n_left : most;
    int32_t n_blocks = core_blocks_for(c, s->n_planned + n);
    int32_t room;
    struct step_entry *e;

    if (core_blocks_for(c, s->n_planned + 1) > s->n_table && !take_block_or_preempt(c, s))
        return 0;
    while (s->n_table < n_blocks && take_block(c, s))
        ;
    room = s->n_table * c->options.block_len - s->n_planned;
    if (n > room)
        n = room;
    e = step_add_chunk(st, s);
    e->start = s->n_planned;
    e->n = n;
    s->n_planned += n;
    e->listed[0] = s->n_chained;
    chain_blocks(c, s, s->n_planned, s->slot);
    e->listed[1] = s->n_chained;
    if (n == n_left) {
        e->wanted = s->n_planned == sequence_n_tokens(s); /* else it goes on with what is known */
        e->counter = (uint32_t)s->n_generated;
        s->n_sampling += e->wanted;
        s->state = SEQ_DECODE;
        list_remove(&s->link);
        list_append(&c->decoding, &s->link);
        c->n_prefilling--;
        c->n_decoding++;
    }
    core_rows_planned(c, s, n, false);
    charge(c, s);
    return n;
}

/* True when a and b know the same tokens in block i. */
static bool equal_blocks(struct core *c, const struct sequence *a, const struct sequence *b,
                         int32_t i)
{
    int32_t len = c->options.block_len;
    const int32_t *x = sequence_tokens(a, i * len, len, c->block_tokens);
    const int32_t *y = sequence_tokens(b, i * len, len, c->block_tokens + len);

    return memcmp(x, y, (size_t)len * sizeof(*x)) == 0;
}

/* Who is computing, or about to compute, block i of s, where chain is the block before; or NULL. */
static struct sequence *find_holder(struct core *c, const struct sequence *s, int32_t i,
                                    uint64_t chain)
{
    int32_t len = c->options.block_len;
    int32_t owner =
        prefix_cache_pending(c->cache, chain, sequence_tokens(s, i * len, len, c->block_tokens));

    if (owner >= 0)
        return c->slots[owner];
    for (struct list *l = c->prefilling.next; l != &c->prefilling; l = l->next) {
        struct sequence *a = CONTAINER_OF(l, struct sequence, link);

        if (a->n_chained == i && a->chain == chain && core_n_chunked(c, a) / len > i &&
            a->request->priority >= s->request->priority && equal_blocks(c, a, s, i))
            return a;
    }
    return NULL;
}

/* Holds s back where the block after its first n found ones is on its way with another sequence,
 * until that has written all that both begin with. max is how many blocks s can use. */
static bool hold_back(struct core *c, struct sequence *s, int32_t n, int32_t max, uint64_t chain)
{
    struct sequence *a = n < max ? find_holder(c, s, n, chain) : NULL;
    int32_t end;

    if (!a)
        return false;
    /* What a will compute; only what is in flight, if it stops there or ranks lower than s. */
    end = core_n_chunked(c, a);
    if ((!sequence_runs(a) || a->request->priority < s->request->priority) && a->n_planned < end)
        end = a->n_planned;
    end /= c->options.block_len;
    if (end > max)
        end = max;
    for (s->held_blocks = n + 1; s->held_blocks < end; s->held_blocks++)
        if (!equal_blocks(c, a, s, s->held_blocks))
            break;
    must((int64_t)s->held_blocks * c->options.block_len > a->n_written);
    fair_queue_remove(c->queue, &s->item);
    c->n_waiting--;
    c->n_held++;
    c->n_held_ever++;
    s->state = SEQ_HELD;
    s->holder = a;
    list_append(&a->waiters, &s->link);
    return true;
}

static void begin(struct core *c, struct step *st, struct sequence *s, int32_t n_found,
                  uint64_t chain, uint64_t now_us)
{
    struct request *q = s->request;

    fair_queue_remove(c->queue, &s->item);
    c->n_waiting--;
    c->n_queued_tokens -= sequence_n_tokens(s);
    s->slot = c->free_slots[--c->n_free_slots];
    c->slots[s->slot] = s;
    s->table = c->tables + (size_t)s->slot * (size_t)c->max_blocks;
    s->n_table = s->n_chained = n_found;
    s->n_planned = s->n_written = n_found * c->options.block_len;
    if (s->n_charged < s->n_planned)
        s->n_charged = s->n_planned;
    s->chain = chain;
    must(s->n_sampling == 0);
    s->state = SEQ_PREFILL;
    list_append(&c->prefilling, &s->link);
    c->n_prefilling++;
    if (q->n_running++ == 0)
        c->n_requests_running++;
    if (fair_client_use(q->client)->n_running++ == 0)
        core_time_newcomer(c, s, now_us);
    step_add_update(st, s);
    if (n_found > 0)
        prefix_cache_count_hit(c->cache, s->table[n_found - 1]);
    if (s->ran)
        return;
    s->ran = true;
    c->stats.queried_tokens += (uint64_t)q->n_prompt;
    c->stats.hit_tokens += (uint64_t)s->n_written;
    if (s->choice == 0)
        q->usage.cached_tokens = s->n_written;
    if (!q->usage.start_us)
        q->usage.start_us = now_us;
}

enum admission { ADMITTED, HELD_BACK, NO_ROOM };

/* owed: blocks that those already in prefill have still to take. */
static enum admission admit(struct core *c, struct step *st, struct sequence *s, int32_t owed,
                            uint64_t now_us)
{
    int32_t len = c->options.block_len;
    int32_t max = (core_n_chunked(c, s) - 1) / len; /* one token at least is computed */
    int32_t *table = c->tables + (size_t)c->free_slots[c->n_free_slots - 1] * (size_t)c->max_blocks;
    uint64_t chain = prefix_cache_root(s->request->ns);
    bool alone = core_n_running(c) == 0 && c->n_draining == 0;
    enum admission result = HELD_BACK;
    int32_t n = 0;

    while (n < max &&
           prefix_cache_hold(c->cache, &chain, sequence_tokens(s, n * len, len, c->block_tokens),
                             &table[n]))
        n++;
    if (!hold_back(c, s, n, max, chain)) {
        int64_t need = (int64_t)blocks_to_begin(c, s) - n + owed;

        if (core_n_running(c) > 0)
            need += c->margin;
        if (alone || blocks_available(c) >= need) {
            begin(c, st, s, n, chain, now_us);
            return ADMITTED;
        }
        c->n_wanted = need;
        result = NO_ROOM;
    }
    while (n > 0)
        blocks_unref(c->blocks, table[--n]);
    return result;
}

static int32_t blocks_owed(const struct core *c)
{
    int32_t n = 0;

    for (struct list *l = c->prefilling.next; l != &c->prefilling; l = l->next) {
        const struct sequence *s = CONTAINER_OF(l, struct sequence, link);

        n += blocks_to_begin(c, s) - s->n_table;
    }
    return n;
}

void core_needs(struct core *c, const struct sequence *s, int32_t *needed, int32_t *available)
{
    int32_t len = c->options.block_len;
    int32_t max = (core_n_chunked(c, s) - 1) / len, n = 0, n_shared = 0, id;
    uint64_t chain = prefix_cache_root(s->request->ns);
    int64_t left = (int64_t)blocks_available(c) - blocks_owed(c);

    while (n < max && prefix_cache_peek(c->cache, &chain,
                                        sequence_tokens(s, n * len, len, c->block_tokens), &id)) {
        n_shared += blocks_refs(c->blocks, id) > 0; /* the other cached ones are available, too */
        n++;
    }
    *needed = blocks_to_begin(c, s) - n_shared;
    if (core_n_running(c) > 0)
        left -= c->margin;
    *available = left > 0 ? (int32_t)left : 0;
}

/* True while the first in the queue did not fit and nothing says that it would now. */
static bool is_stuck(const struct core *c, const struct step *st, const struct sequence *s)
{
    return s == c->stuck && blocks_available(c) <= c->stuck_blocks && st->number < c->stuck_until &&
           core_n_running(c) > 0;
}

/* The first in the queue, if it is of this class and can be tried now. */
static struct sequence *next_waiting(struct core *c, const struct step *st, int32_t klass,
                                     int32_t n_held)
{
    struct fair_item *item = fair_queue_top(c->queue);
    struct sequence *s;

    if (!item || item->klass != klass || c->squeezed || n_held >= MAX_HELD_A_STEP)
        return NULL;
    s = CONTAINER_OF(item, struct sequence, item);
    if (core_rows_left(c, s, false) <= 0)
        return NULL; /* nobody yields a slot to who could not begin */
    if (c->n_free_slots == 0)
        core_claim_slot(c, s);
    return c->n_free_slots > 0 && !is_stuck(c, st, s) && step_has_room_for_update(st, s) ? s : NULL;
}

/* Of two prompts: whose client does not stand back, then whose was served less. */
static bool goes_first(const struct core *c, const struct sequence *a, const struct sequence *b)
{
    if (core_time_divides(c) && core_time_stands_back(c, a) != core_time_stands_back(c, b))
        return core_time_stands_back(c, b);
    return fair_client_time(a->request->client) < fair_client_time(b->request->client);
}

/* Of the n prefilling ones in scratch that can go on, the one that goes first. */
static struct sequence *next_prefilling(const struct core *c, const struct step *st, int32_t n,
                                        int32_t klass)
{
    struct sequence *least = NULL;

    for (int32_t i = 0; i < n; i++) {
        struct sequence *s = c->scratch[i];

        if (s->state == SEQ_PREFILL && (int32_t)s->request->priority == klass &&
            s->last_try != c->n_plans && s->last_step != st->number &&
            core_rows_left(c, s, false) > 0 && (!least || goes_first(c, s, least)))
            least = s;
    }
    return least;
}

/* Prompts of one class: those begun go on and the first in the queue begin, whose client was served
 * least first; so a long prompt keeps another client's waiting for a step at most. Returns the rows
 * planned. */
static int32_t plan_prompts(struct core *c, struct step *st, int32_t klass, int32_t budget,
                            int32_t *n_held, uint64_t now_us)
{
    int32_t n_prefilling = budget > 0 ? snapshot(c, &c->prefilling) : 0;
    bool admits = true;
    int32_t n = 0;

    while (n < budget) {
        struct sequence *s = next_prefilling(c, st, n_prefilling, klass);
        struct sequence *w = admits ? next_waiting(c, st, klass, *n_held) : NULL;

        if (s && (!w || s->state != SEQ_PREFILL || !goes_first(c, w, s))) {
            if (s->state == SEQ_PREFILL) /* did not yield its slot just now */
                n += plan_chunk(c, st, s, budget - n);
            continue;
        }
        if (!w)
            break;
        switch (admit(c, st, w, blocks_owed(c), now_us)) {
        case ADMITTED:
            n += plan_chunk(c, st, w, budget - n);
            break;
        case HELD_BACK:
            ++*n_held;
            break;
        case NO_ROOM:
            c->stuck = w;
            c->stuck_blocks = blocks_available(c);
            c->stuck_until = st->number + STUCK_STEPS;
            core_claim_blocks(c, w, c->n_wanted - c->stuck_blocks - c->n_returning);
            admits = false;
            break;
        }
    }
    return n;
}

/* Rows that decodes may take before the prompts have had theirs. */
static int32_t decode_budget(const struct core *c)
{
    int32_t max = c->options.max_batch_tokens;
    bool prompts = c->n_prefilling > 0 || (c->n_waiting > 0 && c->n_free_slots > 0);

    if (!prompts || PLANT(PLANT_NO_RESERVE))
        return max;
    if (max == 1)
        return c->prompts_turn ? 0 : 1;
    return max - (max / RESERVE_SHARE > 1 ? max / RESERVE_SHARE : 1);
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Rows that prompts may take beside n_decodes, if any; where that is less than there are, all rows
 * together are whole tiles, the largest that do not take more than half of them away. */
static int32_t prompt_budget(const struct core *c, int32_t n_decodes, uint64_t now_us)
{
    int32_t left = c->options.max_batch_tokens - n_decodes, n;

    n = least(n_decodes == 0 ? c->alone_rows : c->prompt_rows,
              core_time_prompt_rows(c, n_decodes, now_us));
    if (n >= left)
        return left;
    for (size_t i = 0; i < sizeof(row_tiles) / sizeof(*row_tiles); i++) {
        int32_t whole = (n_decodes + n) / row_tiles[i] * row_tiles[i] - n_decodes;

        if (whole >= n - n / 2)
            return whole;
    }
    return n;
}

/* Plans what may have rows, beside n rows of prompts and the decodes that st has already. */
static int32_t plan_rows(struct core *c, struct step *st, int32_t n, uint64_t now_us)
{
    int32_t max = least(c->options.max_batch_tokens, core_time_decodes(c, now_us));
    int32_t n_held = 0, budget;

    plan_decodes(c, st, least(decode_budget(c) - n, max) - st->n_decodes, false);
    budget = prompt_budget(c, st->n_decodes, now_us);
    for (int32_t klass = CORE_N_PRIORITIES - 1; klass >= 0; klass--)
        n += plan_prompts(c, st, klass, budget - n, &n_held, now_us);
    plan_decodes(c, st, least(c->options.max_batch_tokens - n, max) - st->n_decodes, true);
    return n;
}

static void schedule(struct core *c, struct step *st, uint64_t now_us)
{
    int32_t n;

    c->n_plans++;
    c->n_short = 0;
    c->squeezed = false;
    core_time_begin(c, now_us);
    n = plan_rows(c, st, 0, now_us);
    if (core_time_lift(c))
        plan_rows(c, st, n, now_us);
    core_time_end(c, st);
    c->prompts_turn = st->n_decodes > 0;
}

int core_next(struct core *c, const struct batch **batch, uint64_t now_us)
{
    struct step *st = &c->steps[(c->planned + 1) % BACKEND_IN_FLIGHT];

    if (c->n_requests == 0)
        return CORE_IDLE;
    if (core_in_flight(c) == BACKEND_IN_FLIGHT)
        return CORE_WAIT;
    prefix_cache_set_time(c->cache, now_us);
    step_begin(st, c->planned + 1);
    schedule(c, st, now_us);
    if (st->n_decodes + st->n_chunks == 0) {
        must(core_in_flight(c) > 0); /* if something fits, something runs */
        return CORE_WAIT;
    }
    *batch = step_build(st, c->options.block_len);
    c->planned++;
    return CORE_OK;
}
