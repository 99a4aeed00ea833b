/* test_core_inspect.c - what the core reports about requests, blocks and the cache, and to whom. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/inspect.h"
#include "tests/sim/core_verify.h"
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
    rig_steps(n_steps);
    rig_look_into(INSPECT_REQUESTS);
}

/* The requests of the last report as a text: id, state, place in the queue, tokens computed and
 * generated, blocks, and blocks shared with other requests. */
static const char *listed(void)
{
    static const char *const states[] = {"",        "encoding", "waiting",  "waiting_prefix",
                                         "prefill", "decode",   "preempted"};
    static char text[1024];
    size_t len = 0;

    text[0] = '\0';
    for (int32_t i = 0; i < rig.report->n_requests; i++) {
        const struct inspect_request *r = &rig.report->requests[i];

        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%d %s #%d %d/%d+%d/%d b%d s%d",
                                i ? ", " : "", (int)r->id, states[r->state], r->place,
                                r->computed_tokens, r->prompt_tokens, r->generated_tokens,
                                r->max_tokens, r->blocks, r->shared);
    }
    return text;
}

/* How many blocks of each kind the map of a viewer has, as a text. */
static const char *map_of(uint64_t viewer, bool all)
{
    struct inspect_query q = {.viewer = viewer, .all = all, .limit = 100, .map = true};
    static char text[256];
    int32_t n[256] = {0};
    size_t len = 0;

    inspect(&q, INSPECT_BLOCKS);
    ck_assert_int_eq(rig.report->n_map, 64);
    for (int32_t i = 0; i < rig.report->n_map; i++)
        n[rig.report->map[i]]++;
    for (const char *c = "fcuspo"; *c; c++)
        if (n[(uint8_t)*c])
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%c%d", len ? " " : "", *c,
                                    n[(uint8_t)*c]);
    return text;
}

/* Running requests come first, then waiting ones in the order in which they run later. */
TEST(requests_in_queue_order)
{
    rig.options.max_seqs = 1;
    rig_restart();
    for (int32_t i = 0; i < 6; i++) {
        struct core_request r = rig_request(i, 5 + i, 1);

        r.client = (uint64_t)i % 2;
        r.priority = i == 5 ? CORE_HIGH : CORE_NORMAL;
        rig_ask(&r);
        if (i == 0)
            rig_next();
    }
    list_after(0);
    ck_assert_str_eq(listed(), "1 decode #0 0/5+0/1 b2 s0, 6 waiting #1 0/10+0/1 b0 s0, "
                               "3 waiting #2 0/7+0/1 b0 s0, 5 waiting #3 0/9+0/1 b0 s0, "
                               "2 waiting #4 0/6+0/1 b0 s0, 4 waiting #5 0/8+0/1 b0 s0");
    rig_commit();
    rig_run();
    for (int32_t i = 1; i < 6; i++)
        ck_assert(rig_finished(rig.report->requests[i - 1].id) <
                  rig_finished(rig.report->requests[i].id));
}

/* A request is listed as waiting, in prefill with a part computed and in decode with tokens, and no
 * more once it has ended. */
TEST(a_request_from_waiting_to_its_end)
{
    const struct inspect_request *r;

    ask(7, 1, 100, 4);
    list_after(0);
    r = rig.report->requests;
    ck_assert_str_eq(listed(), "1 waiting #1 0/100+0/4 b0 s0");
    ck_assert(r->client == 7 && r->arrival_us == 1000 && r->start_us == 0 && r->first_us == 0);
    ck_assert_int_eq(rig.report->stats.queued_tokens, 100);
    list_after(1);
    r = rig.report->requests;
    ck_assert_str_eq(listed(), "1 prefill #0 32/100+0/4 b8 s0");
    ck_assert(r->start_us == 2000 && r->first_us == 0);
    list_after(4);
    ck_assert_str_eq(listed(), "1 decode #0 100/100+2/4 b26 s0");
    ck_assert_uint_eq(rig.report->requests->first_us, 5000);
    rig_run();
    list_after(0);
    ck_assert_str_eq(listed(), "");
    ck_assert_int_eq(rig.report->stats.queued_tokens, 0);
    ck_assert_int_eq(rig.report->stats.clients, 0);
}

/* A request that waits for a shared prefix is told apart, and so is one that lost its blocks. */
TEST(waiting_for_a_prefix_and_preempted_are_listed)
{
    ask(1, 1, 20, 2);
    ask(1, 1, 21, 2);
    rig_next();
    list_after(0);
    ck_assert_str_eq(listed(), "1 decode #0 0/20+0/2 b5 s0, 2 waiting_prefix #0 0/21+0/2 b0 s0");
    rig_commit();
    rig_run();

    rig.options.n_blocks = 8;
    rig_restart();
    ask(1, 1, 8, 20);
    ask(1, 2, 8, 20);
    while (rig_stats().preemptions == 0)
        rig_step();
    list_after(0);
    ck_assert_str_eq(listed(), "3 decode #0 8/8+10/20 b5 s0, 4 preempted #1 8/8+9/20 b0 s0");
    ck_assert_int_eq(rig.report->requests[1].preemptions, 1);
    rig_run();
}

/* A block counts once for the choices of a request, and is shared only if another request has it.
 */
TEST(choices_count_a_block_once)
{
    struct core_request r = rig_request(1, 22, 8);

    r.n = 3;
    rig_ask(&r);
    list_after(3);
    ck_assert_str_eq(listed(), "1 decode #0 22/22+7/8 b8 s0");
    ask(1, 1, 21, 8);
    list_after(1);
    ck_assert_str_eq(listed(), "1 decode #0 22/22+10/8 b9 s5, 2 decode #0 21/21+1/8 b6 s5");
    rig_look_into(INSPECT_BLOCKS);
    ck_assert_int_eq(rig.report->n_clients, 1);
    ck_assert_int_eq(rig.report->clients[0].used, rig.report->stats.blocks_used);
    ck_assert_int_eq(rig.report->clients[0].requests, 2);
    rig_run();
}

/* Blocks by client and by request add up to what is used, and the map shows each block once. */
TEST(blocks_add_up)
{
    ask(5, 9, 40, 1);
    rig_run(); /* leaves cached ones */
    ask(3, 1, 20, 9);
    ask(5, 2, 31, 9);
    ask(3, 1, 20, 9); /* waits, then shares the blocks */
    list_after(3);
    ck_assert_str_eq(map_of(0, true), "f38 c10 u12 s4");
    ck_assert_int_eq(rig.report->n_clients, 2);
    ck_assert_uint_eq(rig.report->clients[0].client, 3);
    ck_assert_int_eq(rig.report->clients[0].requests, 2);
    ck_assert_int_eq(rig.report->clients[0].used + rig.report->clients[1].used,
                     rig.report->stats.blocks_used);
    ck_assert_int_eq(rig.report->stats.blocks_used, 12 + 4);
    ck_assert_int_eq(rig.report->stats.blocks_cached, 10);
    ck_assert_int_eq(rig.report->stats.blocks_free, 38);
    rig_run();
}

/* A viewer sees its own entries and their number, not those of others. */
TEST(viewers_see_their_own)
{
    struct inspect_query q = {.viewer = 2, .limit = 100, .map = true};
    uint64_t mine;

    ask(1, 1, 20, 9);
    mine = ask(2, 2, 20, 9);
    rig_steps(2);
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

/* The map shows a viewer its own blocks and the free ones; used, cached and pinned blocks of others
 * look alike. */
TEST(maps_hide_how_others_use_blocks)
{
    int32_t prompt[20];
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
    ask(2, 5, 28, 9); /* waits, then shares the blocks */
    rig_steps(4);
    ck_assert_str_eq(map_of(0, true), "f33 c10 u10 s6 p5");
    ck_assert_str_eq(map_of(1, false), "f33 c5 u6 p5 o15");
    ck_assert_str_eq(map_of(2, false), "f33 c5 u4 s6 o16");
    ck_assert_str_eq(map_of(3, false), "f33 o31");
    rig_run();
}

/* Where all clients share a cache, the map hides sharing and what is cached. */
TEST(maps_of_a_shared_cache_show_no_sharing)
{
    rig.options.share_all = true;
    rig_restart();
    ask(1, 1, 28, 9);
    list_after(2);
    ask(2, 1, 28, 9);
    list_after(2);
    ck_assert_str_eq(map_of(0, true), "f54 u4 s6");
    ck_assert_str_eq(listed(), "1 decode #0 28/28+4/9 b8 s6, 2 decode #0 28/28+2/9 b8 s6");
    ck_assert_str_eq(map_of(2, false), "f54 u8 o2");
    ck_assert_str_eq(listed(), "2 decode #0 28/28+2/9 b8 s0");
    rig_run();
    ck_assert_str_eq(map_of(2, false), "f55 o9");
}

/* A shared cache is listed for admins only, and without tokens. */
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

/* A limit keeps the first entries; the total counts all. */
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
    rig_steps(3);
    c = ask(1, 9, 20, 2);
    ck_assert_int_eq(why(c), INSPECT_WHY_SHARE);
    rig_run();
}

/* Requests that are too long for the device run in host memory, one at a time; a small one goes
 * beside them, and longer than both tiers is refused. */
TEST(explains_who_waits_for_an_offloaded_one)
{
    struct core_request r;
    uint64_t a, b, c;

    rig.options.n_blocks = 4;
    rig.options.tier_blocks[TIER_HOST] = 20;
    rig.options.offload = true;
    rig_restart();
    a = ask(1, 1, 40, 10);
    b = ask(2, 2, 41, 10);
    c = ask(1, 3, 4, 3);
    rig_steps(3);
    ck_assert_int_eq(why(a), INSPECT_WHY_RUNS);
    ck_assert_int_eq(why(b), INSPECT_WHY_OFFLOADED);
    ck_assert_int_eq(why(c), INSPECT_WHY_RUNS);
    ck_assert_int_eq(rig.core->n_offloaded, 1);
    rig_run();
    ck_assert_int_eq((int)rig.core->n_offloads, 2);
    r = (struct core_request){.n_prompt = 60, .max_tokens = 5, .n = 1};
    ck_assert_int_eq(core_fits(rig.core, &r), CORE_OK);
    r.max_tokens = 6;
    ck_assert_int_eq(core_fits(rig.core, &r), CORE_E_NEVER_FITS);
}

/* What an offloaded sequence lacked in its last step does not keep blocks from being copied down
 * when it is gone. */
TEST(blocks_are_stored_after_an_offloaded_one)
{
    rig.options.n_blocks = 8;
    rig.options.tier_blocks[TIER_HOST] = 32;
    rig.options.offload = true;
    rig_restart();
    ask(1, 1, 20, 4);
    rig_run();
    rig.core->host_short = true; /* as if one had been cancelled then */
    core_store_all(rig.core, true);
    while (rig_next())
        rig_commit();
    ck_assert_int_eq(core_n_unstored(rig.core), 0);
    ck_assert_int_gt(rig.core->blocks->n_cached, 0);
    core_store_end(rig.core);
}

/* Choices of a request that waits for an offloaded one keep nobody else from beginning. */
TEST(who_waits_for_an_offloaded_one_holds_up_nobody)
{
    enum { N = 75 }; /* more than may pass a sequence that does not fit */
    struct core_request r;
    uint64_t a, ids[N];

    rig.options.n_blocks = 4;
    rig.options.tier_blocks[TIER_HOST] = 64;
    rig.options.offload = true;
    rig_restart();
    a = ask(1, 1, 40, 190);
    rig_steps(2);
    r = rig_request(2, 41, 10);
    r.client = 2;
    r.n = 3;
    rig_ask(&r);
    for (int i = 0; i < N; i++) {
        ids[i] = ask(2, 100 + i, 3, 1);
        rig_steps(2);
    }
    ck_assert_ptr_null(rig_finished(a));
    for (int i = 0; i < N - 2; i++)
        ck_assert_msg(rig_finished(ids[i]) != NULL, "request %d of %d still waits", i, N);
    rig_run();
}

/* Cached blocks that no sequence holds count as needed; a request that fits does not wait behind
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

/* With a cache of an H200's size and ten thousand requests a report takes milliseconds
 * (2.3, 2.9 and 0.7 ms on a core of an AMD EPYC, 2026-11-21). */
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
    while (core_busy(rig.core))
        rig_step_unverified();
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

RUN_TESTS("core_inspect", rig_set_up, rig_end)
