/* test_core_cache.c - inspect requests about the prefix cache: pin, unpin, clear, and explain a
 * prompt. */
#include <string.h>

#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

/* The result of a query about the prompt of rig_request(text, n, …). */
static int about(struct inspect_query q, int32_t text, int32_t n)
{
    struct core_request r = rig_request(text, n, 1);

    rig.last_id--; /* the request is not admitted */
    q.limit = 100;
    return rig_inspect(&q, r.prompt, n);
}

static struct inspect_query pin_of(uint64_t client)
{
    return (struct inspect_query){.kind = INSPECT_CACHE_PIN, .viewer = client, .client = client};
}

static struct inspect_query unpin_of(uint64_t client)
{
    struct inspect_query q = pin_of(client);

    q.unpin = true;
    return q;
}

static struct inspect_query clear_of(uint64_t client)
{
    return (struct inspect_query){.kind = INSPECT_CACHE_CLEAR, .viewer = client, .client = client};
}

/* How many tokens of a prompt are cached, by a query. */
static int32_t cached(uint64_t client, int32_t text, int32_t n)
{
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_PROMPT, .viewer = client, .client = client};

    ck_assert_int_eq(about(q, text, n), CORE_INSPECT_OK);
    return rig.report->cached_tokens;
}

/* Fills the pool with other texts until nothing else can be cached. */
static void flood(void)
{
    for (int32_t i = 0; i < 8; i++) {
        rig_ask_of(9, 100 + i, 100, 1);
        rig_run();
    }
}

/* A pinned prompt outlives any flood, counts as used and is found; once unpinned it goes. */
TEST(a_pinned_prompt_stays)
{
    ck_assert_int_eq(about(pin_of(1), 1, 42), CORE_INSPECT_ABSENT);
    rig_ask_of(1, 1, 42, 1);
    rig_run();
    ck_assert_int_eq(about(pin_of(1), 1, 42), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 10);
    ck_assert_int_eq(rig.report->changed_tokens, 40);
    ck_assert_int_eq(rig.report->cached_tokens, 40);
    ck_assert_int_eq(rig_stats().blocks_used, 10);
    ck_assert_int_eq(rig_stats().blocks_pinned, 10);
    flood();
    ck_assert_int_eq(cached(1, 1, 42), 40);
    rig_look_into(INSPECT_CACHE);
    ck_assert(rig.report->prefixes[rig.report->n_prefixes - 1].pinned);
    ck_assert_int_eq(rig.report->prefixes[rig.report->n_prefixes - 1].holders, 0);
    ck_assert_int_eq(rig.report->pinned_blocks, 10);
    rig_look_into(INSPECT_BLOCKS);
    ck_assert_int_eq(rig.report->pinned_blocks, 10);
    ck_assert_int_eq(rig.report->n_clients, 0);
    ck_assert_ptr_nonnull(memchr(rig.report->map, 'p', (size_t)rig.report->n_map));
    ck_assert_int_eq(about(unpin_of(1), 1, 42), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 10);
    ck_assert_int_eq(rig_stats().blocks_used, 0);
    ck_assert_int_eq(about(unpin_of(1), 1, 42), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 0);
    flood();
    ck_assert_int_eq(cached(1, 1, 42), 0);
}

/* Pins that share a prefix hold it until the last one is gone; a prompt has one pin at most. */
TEST(pins_share_what_is_common)
{
    rig_ask_of(1, 1, 40, 1);
    rig_run();
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
    ck_assert_int_eq(about(pin_of(1), 1, 40), CORE_INSPECT_OK);
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
    ck_assert_int_eq(rig_stats().blocks_pinned, 10);
    rig_look_into(INSPECT_CACHE);
    ck_assert_int_eq(rig.report->n_prefixes, 2); /* a pin is listed though another continues it */
    ck_assert_int_eq(about(unpin_of(1), 1, 40), CORE_INSPECT_OK);
    ck_assert_int_eq(rig_stats().blocks_pinned, 5);
    ck_assert_int_eq(about(unpin_of(1), 1, 24), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 0);
    ck_assert_int_eq(about(unpin_of(1), 1, 20), CORE_INSPECT_OK);
    ck_assert_int_eq(rig_stats().blocks_pinned, 0);
}

/* Half of the pool may be pinned. A request that needs more than the other half is refused unless
 * it begins with pinned blocks. */
TEST(pins_take_half_at_most)
{
    struct core_request r;
    uint64_t id;

    rig.options.n_blocks = 20;
    rig_restart();
    rig_ask_of(1, 1, 44, 1);
    rig_run();
    ck_assert_int_eq(about(pin_of(1), 1, 44), CORE_INSPECT_PIN_LIMIT);
    ck_assert_int_eq(about(pin_of(1), 1, 40), CORE_INSPECT_OK);
    ck_assert_int_eq(about(pin_of(1), 2, 4), CORE_INSPECT_PIN_LIMIT);
    id = rig_ask_of(2, 3, 30, 11);
    rig_run();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 11);
    r = rig_request(3, 30, 12);
    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_E_NEVER_FITS);
    id = rig_ask_of(1, 1, 50, 31); /* all twenty blocks */
    rig_run();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 31);
    r = rig_request(1, 50, 32);
    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_E_NEVER_FITS);
}

/* A pin is refused while a request under way may need the blocks. */
TEST(pins_wait_for_what_was_admitted)
{
    uint64_t id;

    rig.options.n_blocks = 20;
    rig_restart();
    rig_ask_of(1, 1, 24, 1);
    rig_run();
    id = rig_ask_of(2, 3, 20, 40); /* 15 blocks in the end */
    ck_assert_int_eq(about(pin_of(1), 1, 24), CORE_INSPECT_PIN_BUSY);
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
    rig_run();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 40);
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
}

/* A pin is refused for less than a block, without a cache and in another client's cache. */
TEST(senseless_pins_are_refused)
{
    struct inspect_query q = pin_of(1);

    ck_assert_int_eq(about(q, 1, 3), CORE_INSPECT_SHORT);
    q.viewer = 2;
    ck_assert_int_eq(about(q, 1, 40), CORE_INSPECT_DENIED);
    rig.options.share_all = true;
    rig_restart();
    ck_assert_int_eq(about(pin_of(1), 1, 40), CORE_INSPECT_DENIED);
    q.all = true;
    ck_assert_int_eq(about(q, 1, 40), CORE_INSPECT_ABSENT);
    rig.options.share_all = false;
    rig.options.prefix_cache = false;
    rig_restart();
    ck_assert_int_eq(about(pin_of(1), 1, 40), CORE_INSPECT_NO_CACHE);
}

/* Clearing forgets a client's prefixes, pinned and salted ones too, and no others. */
TEST(clear_forgets_one_client)
{
    struct core_request r;

    rig_ask_of(1, 1, 20, 1);
    rig_ask_of(2, 1, 20, 1);
    r = rig_request(2, 20, 1);
    r.cache_salt = (struct text){"s", 1};
    rig_ask(&r);
    rig_run();
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
    ck_assert_int_eq(about(clear_of(1), 1, 1), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 10);
    ck_assert_int_eq(rig_stats().blocks_pinned, 0);
    ck_assert_int_eq(rig_stats().blocks_cached, 5);
    ck_assert_int_eq(cached(1, 1, 21), 0);
    ck_assert_int_eq(cached(2, 1, 21), 20);
}

/* Another's cache, all caches or a shared one are cleared by a viewer with that right alone. */
TEST(clearing_needs_the_right)
{
    struct inspect_query q = clear_of(1);

    rig_ask_of(1, 1, 20, 1);
    rig_run();
    q.viewer = 2;
    ck_assert_int_eq(about(q, 1, 1), CORE_INSPECT_DENIED);
    q.viewer = 1;
    q.clear_all = true;
    ck_assert_int_eq(about(q, 1, 1), CORE_INSPECT_DENIED);
    ck_assert_int_eq(cached(1, 1, 21), 20);
    q.all = true;
    ck_assert_int_eq(about(q, 1, 1), CORE_INSPECT_OK);
    ck_assert_int_eq(rig_stats().blocks_cached, 0);
    rig.options.share_all = true;
    rig_restart();
    ck_assert_int_eq(about(clear_of(1), 1, 1), CORE_INSPECT_DENIED);
}

/* A request goes on with the right tokens when the cache is cleared under it; nothing of it is
 * found afterwards, and a request that waits for its prefix is woken. */
TEST(clear_under_a_running_request)
{
    uint64_t a, b;

    a = rig_ask_of(1, 1, 20, 30);
    b = rig_ask_of(1, 1, 21, 2);
    rig_next();
    ck_assert_int_eq(about(clear_of(1), 1, 1), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 0); /* none is written yet */
    rig_commit();
    rig_run();
    ck_assert_int_eq(rig_count(a, CORE_TOKEN), 30);
    ck_assert_int_eq(rig_count(b, CORE_TOKEN), 2);
    ck_assert_int_eq(rig_finished(b)->usage.cached_tokens, 0);
    ck_assert_int_eq(cached(1, 1, 21), 20); /* of b, which came after */
    rig_look_into(INSPECT_CACHE);
    ck_assert_int_eq(rig.report->n_prefixes, 1);
    ck_assert_int_eq(rig.report->prefixes[0].tokens, 20);
}

/* A report shows how much of a prompt is cached, where it leaves others and how they go on. */
TEST(explains_where_a_prompt_differs)
{
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_PROMPT, .viewer = 1, .client = 1};
    struct core_request r = rig_request(1, 20, 1);
    int32_t other[20];

    for (int32_t i = 0; i < 20; i++)
        other[i] = i < 14 ? r.prompt[i] : 7;
    rig_ask_of(1, 1, 20, 1);
    r.prompt = other;
    rig_ask(&r);
    rig_run();
    ck_assert_int_eq(about(q, 2, 10), CORE_INSPECT_OK); /* all is new */
    ck_assert_int_eq(rig.report->cached_tokens, 0);
    ck_assert_int_eq(rig.report->same_tokens, 0);
    ck_assert_int_eq(rig.report->next_id, 2000);
    ck_assert_int_eq(rig.report->n_other, 1);
    ck_assert_int_eq(rig.report->other[0], 1000);
    other[14] = 8;
    ck_assert_int_eq(rig_inspect(&q, other, 17), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->prompt_tokens, 17);
    ck_assert_int_eq(rig.report->cached_tokens, 12);
    ck_assert_int_eq(rig.report->same_tokens, 14);
    ck_assert_int_eq(rig.report->next_id, 8);
    ck_assert_int_eq(rig.report->n_other, 2);
    ck_assert_int_eq(rig.report->other[0] + rig.report->other[1], 1014 + 7);
    ck_assert_int_eq(about(q, 1, 20), CORE_INSPECT_OK); /* whole, but one block is computed */
    ck_assert_int_eq(rig.report->cached_tokens, 16);
    ck_assert_int_eq(rig.report->same_tokens, 20);
    ck_assert_int_eq(rig.report->next_id, -1);
    q.viewer = 2;
    ck_assert_int_eq(about(q, 1, 20), CORE_INSPECT_DENIED);
    ck_assert_int_eq(cached(2, 1, 20), 0); /* another client's cache */
    ck_assert_int_eq(rig.report->n_other, 0);
}

/* In a shared cache a viewer without the right to see all learns only how many blocks are cached:
 * neither how far a block agrees, nor how it goes on. */
TEST(explains_nothing_of_others)
{
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_PROMPT, .viewer = 2, .client = 2};
    struct core_request r = rig_request(1, 20, 1);
    int32_t guess[20];

    rig.options.share_all = true;
    rig_restart();
    rig_ask_of(1, 1, 20, 1);
    rig_run();
    for (int32_t i = 0; i < 20; i++)
        guess[i] = i < 14 ? r.prompt[i] : 8;
    ck_assert_int_eq(rig_inspect(&q, guess, 17), CORE_INSPECT_OK);
    ck_assert(!rig.report->compared);
    ck_assert_int_eq(rig.report->cached_tokens, 12);
    ck_assert_int_eq(rig.report->same_tokens, 12);
    ck_assert_int_eq(rig.report->next_id, -1);
    ck_assert_int_eq(rig.report->n_other, 0);
    q.viewer = q.client = 1; /* it belongs to nobody, not even to its writer */
    ck_assert_int_eq(rig_inspect(&q, guess, 17), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->same_tokens, 12);
    ck_assert_int_eq(rig.report->next_id, -1);
    q.all = true;
    ck_assert_int_eq(rig_inspect(&q, guess, 17), CORE_INSPECT_OK);
    ck_assert(rig.report->compared);
    ck_assert_int_eq(rig.report->same_tokens, 14);
    ck_assert_int_eq(rig.report->next_id, 8);
    ck_assert_int_eq(rig.report->other[0], 1014);
}

RUN_TESTS("core_cache", rig_set_up, rig_end)
