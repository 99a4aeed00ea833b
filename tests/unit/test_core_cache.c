/* test_core_cache.c - what people do to the prefix cache by hand: pin, unpin, clear, and ask what
 * of a prompt is there. */
#include <check.h>
#include <string.h>

#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

static uint64_t ask(uint64_t client, int32_t text, int32_t n_prompt, int32_t max_tokens)
{
    struct core_request r = rig_request(text, n_prompt, max_tokens);

    r.client = client;
    return rig_ask(&r);
}

/* The result of a question about the prompt that rig_request(text, n, …) would have. */
static int about(struct inspect_query q, int32_t text, int32_t n)
{
    struct core_request r = rig_request(text, n, 1);

    rig.last_id--; /* nobody asks for that */
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

/* Cached tokens that a question about the prompt tells. */
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
        ask(9, 100 + i, 100, 1);
        rig_run();
    }
}

/* What is pinned outlives any flood, counts as used, and is found; once unpinned it goes. */
START_TEST(a_pinned_prompt_stays)
{
    ck_assert_int_eq(about(pin_of(1), 1, 42), CORE_INSPECT_ABSENT);
    ask(1, 1, 42, 1);
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
END_TEST

/* Pins that share a beginning hold it until the last is gone, and a second pin of a prompt is the
 * first one. */
START_TEST(pins_share_what_is_common)
{
    ask(1, 1, 40, 1);
    rig_run();
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
    ck_assert_int_eq(about(pin_of(1), 1, 40), CORE_INSPECT_OK);
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
    ck_assert_int_eq(rig_stats().blocks_pinned, 10);
    rig_look_into(INSPECT_CACHE);
    ck_assert_int_eq(rig.report->n_prefixes, 2); /* also the one that another goes on from */
    ck_assert_int_eq(about(unpin_of(1), 1, 40), CORE_INSPECT_OK);
    ck_assert_int_eq(rig_stats().blocks_pinned, 5);
    ck_assert_int_eq(about(unpin_of(1), 1, 24), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 0);
    ck_assert_int_eq(about(unpin_of(1), 1, 20), CORE_INSPECT_OK);
    ck_assert_int_eq(rig_stats().blocks_pinned, 0);
}
END_TEST

/* Half of the pool may be pinned. What runs then has the other half: more is refused, but not to
 * whom the pinned blocks are of use. */
START_TEST(pins_take_half_at_most)
{
    struct core_request r;
    uint64_t id;

    rig.options.n_blocks = 20;
    rig_restart();
    ask(1, 1, 44, 1);
    rig_run();
    ck_assert_int_eq(about(pin_of(1), 1, 44), CORE_INSPECT_PIN_LIMIT);
    ck_assert_int_eq(about(pin_of(1), 1, 40), CORE_INSPECT_OK);
    ck_assert_int_eq(about(pin_of(1), 2, 4), CORE_INSPECT_PIN_LIMIT);
    id = ask(2, 3, 30, 11);
    rig_run();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 11);
    r = rig_request(3, 30, 12);
    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_E_NEVER_FITS);
    id = ask(1, 1, 50, 31); /* all twenty */
    rig_run();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 31);
    r = rig_request(1, 50, 32);
    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_E_NEVER_FITS);
}
END_TEST

/* What a request was admitted with is not pinned away from it. */
START_TEST(pins_wait_for_what_was_admitted)
{
    uint64_t id;

    rig.options.n_blocks = 20;
    rig_restart();
    ask(1, 1, 24, 1);
    rig_run();
    id = ask(2, 3, 20, 40); /* 15 blocks in the end */
    ck_assert_int_eq(about(pin_of(1), 1, 24), CORE_INSPECT_PIN_BUSY);
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
    rig_run();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 40);
    ck_assert_int_eq(about(pin_of(1), 1, 20), CORE_INSPECT_OK);
}
END_TEST

/* What cannot be pinned is refused: less than a block, no cache, another's cache. */
START_TEST(pins_that_make_no_sense)
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
END_TEST

/* A clear forgets one client's prefixes, pinned and salted ones too, and no other's. */
START_TEST(clear_forgets_a_clients_own)
{
    struct core_request r;

    ask(1, 1, 20, 1);
    ask(2, 1, 20, 1);
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
END_TEST

/* Only who may touch everybody's clears everybody's, or what is shared by all. */
START_TEST(clear_is_for_ones_own)
{
    struct inspect_query q = clear_of(1);

    ask(1, 1, 20, 1);
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
END_TEST

/* Cleared in the middle of its work a request goes on and is told the right tokens; nothing of it
 * is found afterwards, and who waited for its prefix does not wait in vain. */
START_TEST(clear_under_a_running_request)
{
    uint64_t a, b;

    a = ask(1, 1, 20, 30);
    b = ask(1, 1, 21, 2);
    rig_next();
    ck_assert_int_eq(about(clear_of(1), 1, 1), CORE_INSPECT_OK);
    ck_assert_int_eq(rig.report->changed_blocks, 5);
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
END_TEST

/* A prompt's cached part is told, where it leaves what others went on with, and with what. */
START_TEST(explains_where_a_prompt_differs)
{
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_PROMPT, .viewer = 1, .client = 1};
    struct core_request r = rig_request(1, 20, 1);
    int32_t other[20];

    for (int32_t i = 0; i < 20; i++)
        other[i] = i < 14 ? r.prompt[i] : 7;
    ask(1, 1, 20, 1);
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
    ck_assert_int_eq(cached(2, 1, 20), 0); /* another's cache knows nothing of it */
    ck_assert_int_eq(rig.report->n_other, 0);
}
END_TEST

/* In a cache that all share nothing but the cached blocks of a prompt is told to who may not see
 * all: neither how far within a block it is another's, nor what comes there. */
START_TEST(explains_no_others_words)
{
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_PROMPT, .viewer = 2, .client = 2};
    struct core_request r = rig_request(1, 20, 1);
    int32_t guess[20];

    rig.options.share_all = true;
    rig_restart();
    ask(1, 1, 20, 1);
    rig_run();
    for (int32_t i = 0; i < 20; i++)
        guess[i] = i < 14 ? r.prompt[i] : 8;
    ck_assert_int_eq(rig_inspect(&q, guess, 17), CORE_INSPECT_OK);
    ck_assert(!rig.report->compared);
    ck_assert_int_eq(rig.report->cached_tokens, 12);
    ck_assert_int_eq(rig.report->same_tokens, 12);
    ck_assert_int_eq(rig.report->next_id, -1);
    ck_assert_int_eq(rig.report->n_other, 0);
    q.viewer = q.client = 1; /* nobody's own, its writer's neither */
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
END_TEST

int main(void)
{
    Suite *s = suite_create("core_cache");
    TCase *t = tcase_create("core_cache");

    tcase_add_checked_fixture(t, rig_set_up, rig_end);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_pinned_prompt_stays);
    tcase_add_test(t, pins_share_what_is_common);
    tcase_add_test(t, pins_take_half_at_most);
    tcase_add_test(t, pins_wait_for_what_was_admitted);
    tcase_add_test(t, pins_that_make_no_sense);
    tcase_add_test(t, clear_forgets_a_clients_own);
    tcase_add_test(t, clear_is_for_ones_own);
    tcase_add_test(t, clear_under_a_running_request);
    tcase_add_test(t, explains_where_a_prompt_differs);
    tcase_add_test(t, explains_no_others_words);
    suite_add_tcase(s, t);
    return run_suite(s);
}
