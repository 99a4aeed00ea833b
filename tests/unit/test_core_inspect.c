/* test_core_inspect.c - what the core reports about requests, blocks and the cache, and to whom. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/core_inspect.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/cpu_time.h"
#include "tests/unit/run_suite.h"

static uint64_t ask(uint64_t client, int32_t text, int32_t n_prompt, int32_t max_tokens)
{
    struct core_request r = rig_request(text, n_prompt, max_tokens);

    r.client = client;
    return rig_ask(&r);
}

static void inspect(struct inspect_query *q, enum inspect_kind kind)
{
    q->kind = kind;
    ck_assert_int_eq(rig_inspect(q, NULL, 0), CORE_INSPECT_OK);
}

/* Steps, and the requests of all. */
static void list_after(int n_steps)
{
    for (int i = 0; i < n_steps; i++)
        rig_step();
    rig_look_into(INSPECT_REQUESTS);
}

static const struct inspect_request *listed(uint64_t id)
{
    for (int32_t i = 0; i < rig.report->n_requests; i++)
        if (rig.report->requests[i].id == id)
            return &rig.report->requests[i];
    ck_abort_msg("request %d is not listed", (int)id);
    return NULL;
}

/* Running requests come first, then waiting ones in the order in which they run later. */
TEST(requests_in_queue_order)
{
    uint64_t ids[6];

    rig.options.max_seqs = 1;
    rig_restart();
    for (int32_t i = 0; i < 6; i++) {
        struct core_request r = rig_request(i, 5 + i, 1);

        r.client = (uint64_t)i % 2;
        r.priority = i == 5 ? CORE_HIGH : CORE_NORMAL;
        ids[i] = rig_ask(&r);
        if (i == 0)
            rig_next();
    }
    rig_look_into(INSPECT_REQUESTS);
    ck_assert_int_eq(rig.report->n_requests, 6);
    ck_assert_int_eq(rig.report->total, 6);
    ck_assert_uint_eq(rig.report->requests[0].id, ids[0]);
    ck_assert_int_eq(rig.report->requests[0].place, 0);
    ck_assert_uint_eq(rig.report->requests[1].id, ids[5]);
    for (int32_t i = 1; i < 6; i++) {
        ck_assert_int_eq(rig.report->requests[i].place, i);
        ck_assert_int_eq(rig.report->requests[i].state, INSPECT_WAITING);
    }
    rig_commit();
    rig_run();
    for (int32_t i = 1; i < 6; i++)
        ck_assert(rig_finished(rig.report->requests[i - 1].id) <
                  rig_finished(rig.report->requests[i].id));
}

/* The entry of a request follows it: waiting, prefill with a part computed, decode with tokens, and
 * then it is gone. */
TEST(a_request_from_waiting_to_its_end)
{
    uint64_t id = ask(7, 1, 100, 4);
    const struct inspect_request *r;

    rig_look_into(INSPECT_REQUESTS);
    r = listed(id);
    ck_assert_int_eq(r->state, INSPECT_WAITING);
    ck_assert_uint_eq(r->client, 7);
    ck_assert_int_eq(r->place, 1);
    ck_assert_int_eq(r->prompt_tokens, 100);
    ck_assert_int_eq(r->max_tokens, 4);
    ck_assert_uint_eq(r->arrival_us, 1000);
    ck_assert_uint_eq(r->start_us, 0);
    ck_assert_int_eq(rig.report->stats.queued_tokens, 100);
    list_after(1);
    r = listed(id);
    ck_assert_int_eq(r->state, INSPECT_PREFILL);
    ck_assert_int_eq(r->computed_tokens, 32);
    ck_assert_int_eq(r->blocks, 8);
    ck_assert_int_eq(r->shared, 0);
    ck_assert_uint_eq(r->start_us, 2000);
    for (int i = 0; i < 4; i++)
        list_after(1);
    r = listed(id);
    ck_assert_int_eq(r->state, INSPECT_DECODE);
    ck_assert_int_eq(r->computed_tokens, 100);
    ck_assert_int_eq(r->generated_tokens, 2);
    ck_assert_int_eq(r->blocks, 26);
    ck_assert_uint_eq(r->first_us, 5000);
    rig_run();
    rig_look_into(INSPECT_REQUESTS);
    ck_assert_int_eq(rig.report->n_requests, 0);
    ck_assert_int_eq(rig.report->stats.queued_tokens, 0);
    ck_assert_int_eq(rig.report->stats.clients, 0);
}

/* A request that waits for a shared prefix is held, one that lost its blocks preempted. */
TEST(held_and_preempted_are_listed)
{
    uint64_t a, b;

    ask(1, 1, 20, 2);
    b = ask(1, 1, 21, 2);
    rig_next();
    rig_look_into(INSPECT_REQUESTS);
    ck_assert_int_eq(listed(b)->state, INSPECT_WAITING_PREFIX);
    ck_assert_int_eq(listed(b)->place, 0);
    rig_commit();
    rig_run();

    rig.options.n_blocks = 8;
    rig_restart();
    ask(1, 1, 8, 20);
    a = ask(1, 2, 8, 20);
    while (rig_stats().preemptions == 0)
        list_after(1);
    ck_assert_int_eq(listed(a)->state, INSPECT_PREEMPTED);
    ck_assert_int_eq(listed(a)->preemptions, 1);
    ck_assert_int_eq(listed(a)->blocks, 0);
    ck_assert_int_eq(listed(a)->place, 1);
    rig_run();
}

/* A block counts once for the choices of a request, and is shared only if another request has it.
 */
TEST(choices_count_a_block_once)
{
    struct core_request r = rig_request(1, 22, 8);
    uint64_t id, other;

    r.n = 3;
    id = rig_ask(&r);
    list_after(3);
    ck_assert_int_eq(listed(id)->n, 3);
    ck_assert_int_eq(listed(id)->blocks, 5 + 3);
    ck_assert_int_eq(listed(id)->shared, 0);
    other = ask(1, 1, 21, 8);
    list_after(1);
    ck_assert_int_eq(listed(id)->shared, 5);
    ck_assert_int_eq(listed(other)->shared, 5);
    rig_look_into(INSPECT_BLOCKS);
    ck_assert_int_eq(rig.report->n_clients, 1);
    ck_assert_int_eq(rig.report->clients[0].used, rig.report->stats.blocks_used);
    ck_assert_int_eq(rig.report->clients[0].requests, 2);
    rig_run();
}

/* Blocks by client and by request add up to what is used, and the map shows each block once. */
TEST(blocks_add_up)
{
    int32_t used = 0, n[256] = {0};

    ask(5, 9, 40, 1);
    rig_run(); /* leaves cached ones */
    ask(3, 1, 20, 9);
    ask(5, 2, 31, 9);
    ask(3, 1, 20, 9); /* held, then shares the blocks */
    rig_step();
    rig_step();
    rig_step();
    rig_look_into(INSPECT_BLOCKS);
    ck_assert_int_eq(rig.report->n_clients, 2);
    ck_assert_uint_eq(rig.report->clients[0].client, 3);
    ck_assert_int_eq(rig.report->clients[0].requests, 2);
    for (int i = 0; i < rig.report->n_clients; i++)
        used += rig.report->clients[i].used;
    ck_assert_int_eq(used, rig.report->stats.blocks_used);
    ck_assert_int_eq(rig.report->n_map, 64);
    for (int32_t i = 0; i < rig.report->n_map; i++)
        n[rig.report->map[i]]++;
    ck_assert_int_eq(n['f'], rig.report->stats.blocks_free);
    ck_assert_int_eq(n['c'], rig.report->stats.blocks_cached);
    ck_assert_int_gt(n['c'], 0);
    ck_assert_int_gt(n['s'], 0);
    ck_assert_int_eq(n['u'] + n['s'], rig.report->stats.blocks_used);
    rig_run();
}

/* A viewer sees its own entries, and how many these are, not how many there are. */
TEST(viewers_see_their_own)
{
    struct inspect_query q = {.viewer = 2, .limit = 100, .map = true};
    uint64_t mine;

    ask(1, 1, 20, 9);
    mine = ask(2, 2, 20, 9);
    rig_step();
    rig_step();
    inspect(&q, INSPECT_REQUESTS);
    ck_assert_int_eq(rig.report->n_requests, 1);
    ck_assert_int_eq(rig.report->total, 1);
    ck_assert_uint_eq(rig.report->requests[0].id, mine);
    inspect(&q, INSPECT_BLOCKS);
    ck_assert_int_eq(rig.report->n_requests, 1);
    ck_assert_int_eq(rig.report->n_clients, 1);
    ck_assert_uint_eq(rig.report->clients[0].client, 2);
    ck_assert_int_eq(rig.report->clients[0].used, 5);
    ck_assert_int_gt(rig.report->stats.blocks_used, 5);
    rig_run();
    inspect(&q, INSPECT_CACHE);
    ck_assert_int_eq(rig.report->n_prefixes, 1);
    ck_assert_int_eq(rig.report->total, 1);
    ck_assert_uint_eq(rig.report->prefixes[0].client, 2);
    ck_assert_int_eq(rig.report->prefixes[0].n_head, 28);
    ck_assert_int_eq(rig.report->prefixes[0].head[3], 2003);
    q.all = true; /* others' too, but not their tokens */
    inspect(&q, INSPECT_CACHE);
    ck_assert_int_eq(rig.report->n_prefixes, 2);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(rig.report->prefixes[i].n_head > 0, rig.report->prefixes[i].client == 2);
}

/* Counts the letters of the map that a viewer gets. */
static void count_letters(int32_t n[256], uint64_t viewer, bool all)
{
    struct inspect_query q = {
        .kind = INSPECT_BLOCKS, .viewer = viewer, .all = all, .limit = 100, .map = true};

    memset(n, 0, 256 * sizeof(*n));
    ck_assert_int_eq(rig_inspect(&q, NULL, 0), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->n_map, 64);
    for (int32_t i = 0; i < rig.report->n_map; i++)
        n[rig.report->map[i]]++;
}

/* The map shows a viewer its own blocks and the free ones; used, cached and pinned blocks of others
 * look alike. */
TEST(maps_hide_how_others_use_blocks)
{
    int32_t all[256], n[256], prompt[20];
    struct inspect_query pin = {.kind = INSPECT_CACHE_PIN, .viewer = 1, .client = 1, .limit = 100};

    ask(1, 1, 20, 1); /* cached, then pinned */
    ask(1, 2, 20, 1); /* cached */
    ask(2, 3, 20, 1); /* cached */
    rig_run();
    for (int32_t i = 0; i < 20; i++)
        prompt[i] = 1000 + i;
    ck_assert_int_eq(rig_inspect(&pin, prompt, 20), CORE_INSPECT_OK);
    ask(1, 4, 20, 9);
    ask(2, 5, 28, 9);
    ask(2, 5, 28, 9); /* held, then shares the blocks */
    for (int i = 0; i < 4; i++)
        rig_step();
    count_letters(all, 0, true);
    ck_assert(all['u'] && all['s'] && all['c'] && all['p'] && all['f']);
    ck_assert_int_eq(all['o'], 0);
    count_letters(n, 2, false);
    ck_assert_int_eq(n['s'], all['s']);
    ck_assert_int_eq(n['p'], 0);
    ck_assert_int_eq(n['f'], all['f']);
    ck_assert(n['u'] > 0 && n['u'] < all['u'] && n['c'] > 0 && n['c'] < all['c']);
    ck_assert_int_eq(n['u'] + n['c'] + n['o'], all['u'] + all['c'] + all['p']);
    count_letters(n, 1, false);
    ck_assert_int_eq(n['s'], 0);
    ck_assert_int_eq(n['p'], all['p']);
    ck_assert(n['u'] > 0 && n['c'] > 0);
    count_letters(n, 3, false);
    ck_assert_int_eq(n['f'] + n['o'], 64);
    ck_assert_int_eq(n['f'], all['f']);
    rig_run();
}

/* Where all clients share a cache, the map hides sharing and what is cached. */
TEST(maps_of_a_shared_cache_show_no_sharing)
{
    int32_t n[256];
    uint64_t mine;

    rig.options.share_all = true;
    rig_restart();
    ask(1, 1, 28, 9);
    rig_step();
    rig_step();
    mine = ask(2, 1, 28, 9);
    rig_step();
    rig_step();
    count_letters(n, 0, true);
    ck_assert_int_gt(n['s'], 0);
    ck_assert_int_gt(listed(mine)->shared, 0);
    count_letters(n, 2, false);
    ck_assert_int_eq(n['s'], 0);
    ck_assert_int_eq(listed(mine)->shared, 0);
    ck_assert(n['u'] > 0 && n['o'] > 0);
    rig_run();
    count_letters(n, 2, false);
    ck_assert_int_eq(n['c'], 0);
    ck_assert_int_gt(n['o'], 0);
}

/* A cache that all clients share is listed to admins only, and without tokens. */
TEST(shared_cache_belongs_to_nobody)
{
    struct inspect_query q = {.kind = INSPECT_CACHE, .viewer = 0, .limit = 100};

    rig.options.share_all = true;
    rig_restart();
    ask(0, 1, 20, 1);
    rig_run();
    ck_assert_int_eq(rig_inspect(&q, NULL, 0), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->n_prefixes, 0);
    q.all = true;
    inspect(&q, INSPECT_CACHE);
    ck_assert_int_eq(rig.report->n_prefixes, 1);
    ck_assert_int_eq(rig.report->prefixes[0].n_head, 0);
}

/* A limit keeps the entries that matter most; the total counts all. */
TEST(limits_cut_the_end)
{
    struct inspect_query q = {.viewer = 99, .all = true, .limit = 3};
    int32_t order[5] = {3, 0, 4, 1, 2};

    for (int32_t i = 0; i < 5; i++) {
        ask(1, order[i], 8, 1);
        rig_run();
    }
    inspect(&q, INSPECT_CACHE);
    ck_assert_int_eq(rig.report->total, 5);
    ck_assert_int_eq(rig.report->n_prefixes, 3);
    for (int32_t i = 0; i + 1 < 3; i++)
        ck_assert_uint_gt(rig.report->prefixes[i].used_us, rig.report->prefixes[i + 1].used_us);
    q.viewer = 1;
    inspect(&q, INSPECT_CACHE);
    for (int32_t i = 0; i < 3; i++) /* most recently used first */
        ck_assert_int_eq(rig.report->prefixes[i].head[0], order[4 - i] * 1000);
    for (int32_t i = 0; i < 5; i++)
        ask((uint64_t)i, i, 8, 4);
    inspect(&q, INSPECT_REQUESTS);
    ck_assert_int_eq(rig.report->n_requests, 3);
    ck_assert_int_eq(rig.report->total, 5);
    rig_step();
    inspect(&q, INSPECT_BLOCKS);
    ck_assert_int_eq(rig.report->n_requests, 3);
    ck_assert_int_eq(rig.report->n_clients, 3);
}

/* A prefix is listed from its first token to its last block: length, hits, times, holders. */
TEST(prefixes_are_whole_chains)
{
    const struct inspect_prefix *p;
    uint64_t written_us;

    ask(1, 1, 41, 1);
    rig_run();
    rig_look_into(INSPECT_CACHE);
    ck_assert_int_eq(rig.report->n_prefixes, 1);
    p = &rig.report->prefixes[0];
    ck_assert_int_eq(p->blocks, 10);
    ck_assert_int_eq(p->tokens, 40);
    ck_assert_uint_eq(p->hits, 0);
    ck_assert_int_eq(p->holders, 0);
    ck_assert(!p->pinned);
    ck_assert_uint_eq(p->used_us, p->written_us);
    written_us = p->written_us;
    rig.now_us += 50000;
    ask(1, 1, 41, 5);
    rig_step();
    rig_look_into(INSPECT_CACHE);
    p = &rig.report->prefixes[0];
    ck_assert_int_eq(rig.report->n_prefixes, 1);
    ck_assert_uint_eq(p->hits, 1);
    ck_assert_int_eq(p->holders, 1);
    ck_assert_uint_eq(p->written_us, written_us);
    ck_assert_uint_gt(p->used_us, written_us);
    rig_run();
}

static enum inspect_why why(uint64_t id)
{
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_REQUEST,
                              .viewer = 9,
                              .all = true,
                              .request = id};

    ck_assert_int_eq(rig_inspect(&q, NULL, 0), CORE_INSPECT_OK);
    ck_assert(rig.report->found);
    ck_assert_uint_eq(rig.report->requests[0].id, id);
    return rig.report->why;
}

/* Why a request waits: blocks, slots, a shared prefix, its client's share, or just the next step.
 */
TEST(explains_why_one_waits)
{
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_REQUEST, .viewer = 2};
    uint64_t a, b, c;

    rig.options.n_blocks = 10;
    rig.options.max_seqs = 2;
    rig_restart();
    a = ask(1, 1, 20, 10);
    ck_assert_int_eq(why(a), INSPECT_WHY_STEP);
    b = ask(1, 2, 20, 2);
    rig_step();
    ck_assert_int_eq(why(a), INSPECT_WHY_RUNS);
    ck_assert_int_eq(why(b), INSPECT_WHY_BLOCKS);
    ck_assert_int_eq(rig.report->blocks_needed, 6);
    ck_assert_int_eq(rig.report->blocks_available, 4); /* one is the next of what runs */
    q.request = a; /* not the viewer's: as if it were not there */
    ck_assert_int_eq(rig_inspect(&q, NULL, 0), CORE_INSPECT_OK);
    ck_assert(!rig.report->found);
    rig_run();
    rig.options.n_blocks = 64;
    rig_restart();
    ask(1, 1, 20, 10);
    b = ask(1, 1, 21, 2);
    rig_next();
    ck_assert_int_eq(why(b), INSPECT_WHY_PREFIX);
    rig_commit();
    rig_step();
    c = ask(1, 3, 20, 2);
    ck_assert_int_eq(why(c), INSPECT_WHY_SEQS);
    for (int32_t i = 0; i < 4; i++) /* more of others, who were served less */
        ask(2, 4 + i, 20, 30);
    rig_step();
    rig_step();
    rig_step();
    c = ask(1, 9, 20, 2);
    ck_assert_int_eq(why(c), INSPECT_WHY_SHARE);
    rig_run();
}

/* Cached blocks that nobody holds are needed like others; a request that fits does not wait behind
 * one that does not. */
TEST(explains_who_waits_for_blocks)
{
    uint64_t b, c;

    rig.options.n_blocks = 10;
    rig.options.max_seqs = 3;
    rig_restart();
    ask(1, 2, 20, 1);
    rig_run();
    ask(1, 1, 20, 10);
    rig_step();
    b = ask(1, 2, 20, 2); /* its beginning is cached in what is left of the pool */
    rig_step();
    c = ask(1, 5, 2, 1);
    ck_assert_int_eq(why(b), INSPECT_WHY_BLOCKS);
    ck_assert_int_eq(rig.report->requests[0].state, INSPECT_WAITING);
    ck_assert_int_eq(rig.report->blocks_needed, 6);
    ck_assert_int_lt(rig.report->blocks_available, 6);
    ck_assert_int_eq(why(c), INSPECT_WHY_STEP);
    ck_assert_int_le(rig.report->blocks_needed, rig.report->blocks_available);
    rig_run();
}

/* With a pool of an H200's size full of chains and ten thousand requests, a report takes
 * milliseconds (2.3, 2.9 and 0.7 ms on a core of an AMD EPYC, 2026-11-21). */
TEST(large_reports_are_quick)
{
    enum { N_BLOCKS = 80000, N_CHAINS = 4000 };
    static const enum inspect_kind kinds[] = {INSPECT_REQUESTS, INSPECT_BLOCKS, INSPECT_CACHE};
    struct inspect_query q = {.viewer = 1, .all = true, .limit = 1000, .map = true};
    double ms[3];

    rig.options.n_blocks = N_BLOCKS;
    rig.options.max_seqs = 256;
    rig.options.max_batch_tokens = 8192;
    rig.options.max_seq_len = 1024;
    rig_restart();
    for (int32_t i = 0; i < N_CHAINS; i++) {
        struct core_request r = rig_request(i, 80, 1);

        r.client = (uint64_t)i % 8;
        ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_OK);
    }
    while (core_busy(rig.core)) {
        const struct batch *batch;
        struct step_result result;
        int32_t n;

        ck_assert_int_eq(core_next(rig.core, &batch, 1), CORE_OK);
        ck_assert_ptr_null(sim_backend_submit(rig.backend, batch));
        ck_assert_ptr_null(sim_backend_wait(rig.backend, &result));
        core_commit(rig.core, &result, 1);
        core_events(rig.core, &n);
    }
    ck_assert_int_ge(rig_stats().blocks_cached, N_CHAINS * 19);
    for (int32_t i = 0; i < 10000; i++) {
        struct core_request r = rig_request(i, 40, 2);

        r.client = (uint64_t)i % 10;
        ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_OK);
    }
    for (int k = 0; k < 3; k++) {
        q.kind = kinds[k];
        ms[k] = -cpu_ms();
        inspect_report_free(rig.report);
        ck_assert_int_eq(core_inspect(&rig.report, rig.core, &q, NULL, 0, 1), 0);
        ms[k] += cpu_ms();
    }
    ck_assert_int_eq(rig.report->n_prefixes, 1000);
    printf(
        "of 80,000 blocks and 10,000 requests: requests %.1f ms, blocks %.1f ms, cache %.1f ms\n",
        ms[0], ms[1], ms[2]);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(ms[k] < 500, "a report took %.0f ms", ms[k]);
}

int main(void)
{
    return run_tests("core_inspect", rig_set_up, rig_end);
}
