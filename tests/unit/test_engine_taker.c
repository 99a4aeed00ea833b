/* test_engine_taker.c - events that are taken where they are made: each is told once and in order,
 * whoever takes it, and none while the loop is awake. */
#include <check.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cpu_time.h"
#include "tests/unit/engine_rig.h"
#include "tests/unit/run_suite.h"

enum { TOKENS = 24, MOST = ENGINE_FEW_EVENTS + 4, LATE_US = 3000, DEAR_MS = 20 };

/* What requests 1 .. n were told, by whichever thread, under the taker's lock. */
static struct told {
    int32_t ids[TOKENS];
    size_t n;
    size_t by_engine; /* of those */
    int n_terminals;
} told[MOST];

static struct told want[4]; /* without a taker; request i is as i mod 4 */
static size_t most_at_a_time, longest;
static struct engine *g;

static void add(const struct engine_event *ev, bool by_engine)
{
    struct told *t = &told[ev->request - 1];

    ck_assert_int_eq(t->n_terminals, 0);
    ck_assert_uint_le(t->n + ev->n_ids, TOKENS);
    if (ev->n_ids)
        memcpy(t->ids + t->n, ev->ids, ev->n_ids * sizeof(*ev->ids));
    t->n += ev->n_ids;
    t->by_engine += by_engine ? ev->n_ids : 0;
    t->n_terminals += ev->type == ENGINE_DONE;
}

/* Takes at most so many, and none that is the last of its choice. */
static struct engine_event *take_some(void *ctx, struct engine_event *list)
{
    size_t n = 0, length = 0;

    (void)ctx;
    for (const struct engine_event *ev = list; ev; ev = ev->next)
        length++;
    longest = length > longest ? length : longest;
    for (; list && n < most_at_a_time && list->type == ENGINE_DELTA &&
           list->reason == CORE_REASON_NONE;
         list = list->next, n++)
        add(list, true);
    return list;
}

static const struct engine_taker taker = {.take = take_some};

static void start_wide(void)
{
    const struct engine_options o = {
        .model_folder = TEST_MODEL_DIR,
        .backend = &cpu_backend,
        .backend_options = {.block_len = 16,
                            .max_batch_tokens = 1024,
                            .max_seqs = MOST,
                            .kv_bytes = 64u << 20,
                            .n_threads = 2},
        .n_tokenizer_threads = 2,
    };
    struct err e;

    ck_assert_int_eq(engine_new(&g, &o, &e), 0);
    wait_loaded(g);
    ck_assert_int_eq(engine_state(g), ENGINE_READY);
}

enum { HOLD = -1 };

/* Takes and uses, under the lock, what lies in the queue; how many requests have ended. */
static int use_queue(void)
{
    struct engine_event *list = engine_take(g);
    int ended = 0;

    for (const struct engine_event *ev = list; ev; ev = ev->next) {
        if (ev->type == ENGINE_STATE)
            continue;
        add(ev, false);
        ended += ev->type == ENGINE_DONE;
    }
    engine_events_free(list);
    return ended;
}

/* Runs n requests that differ, as the daemon's loop does: events are taken and used with the lock
 * held. late_us: how long after they have come. HOLD: the lock is held all the time. */
static void run(int n, int late_us)
{
    static const char *const prompts[] = {"Once upon a time", "The", "16 + 15 =", "a b c"};

    engine_taker_lock(g);
    memset(told, 0, sizeof(told));
    longest = 0;
    if (late_us != HOLD)
        engine_taker_unlock(g);
    for (int i = 0; i < n; i++) {
        struct engine_request r = request((uint64_t)i + 1, prompts[i % 4]);

        r.max_tokens = TOKENS;
        r.ignore_eos = true;
        generate(g, &r);
    }
    for (int left = n; left;) {
        struct pollfd p = {.fd = engine_event_fd(g), .events = POLLIN};

        ck_assert_int_eq(poll(&p, 1, 30000), 1);
        if (late_us != HOLD) {
            usleep((useconds_t)late_us);
            engine_taker_lock(g);
        }
        left -= use_queue();
        if (late_us != HOLD)
            engine_taker_unlock(g);
    }
    if (late_us == HOLD)
        engine_taker_unlock(g);
}

static void set_taker(const struct engine_taker *t, size_t most)
{
    engine_taker_lock(g);
    engine_set_taker(g, t);
    most_at_a_time = most;
    engine_taker_unlock(g);
}

static void check_same(int n)
{
    for (int i = 0; i < n; i++) {
        ck_assert_uint_eq(told[i].n, TOKENS);
        ck_assert_mem_eq(told[i].ids, want[i % 4].ids, sizeof(want->ids));
    }
}

static void set_up(void)
{
    start_wide();
    run(4, 0);
    memcpy(want, told, sizeof(want));
}

static void tear_down(void)
{
    engine_free(g);
}

/* A stream's tokens but the last are all taken by the engine's thread; and none any more once that
 * is not wanted. */
START_TEST(takes_all_of_one_stream)
{
    ck_assert_uint_eq(told[0].by_engine, 0);
    set_taker(&taker, SIZE_MAX);
    run(1, 0);
    check_same(1);
    ck_assert_uint_eq(told[0].by_engine, TOKENS - 1);
    set_taker(NULL, 0);
    run(1, 0);
    check_same(1);
    ck_assert_uint_eq(told[0].by_engine, 0);
}
END_TEST

/* What it leaves comes behind what it took, each stream in its order, however late the loop comes
 * to it. */
START_TEST(what_is_left_keeps_its_order)
{
    for (size_t most = 0; most <= 3; most++) {
        size_t by_engine = 0;

        set_taker(&taker, most);
        run(4, LATE_US);
        check_same(4);
        for (int i = 0; i < 4; i++)
            by_engine += told[i].by_engine;
        ck_assert(most == 0 ? by_engine == 0 : by_engine > 0);
    }
}
END_TEST

/* The engine's thread does not wait for the lock: while it is held all is the loop's. */
START_TEST(takes_none_while_the_loop_is_awake)
{
    set_taker(&taker, SIZE_MAX);
    run(4, HOLD);
    check_same(4);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(told[i].by_engine, 0);
}
END_TEST

/* Many at a time are never handed over: the engine's next step does not wait for their writes. */
START_TEST(takes_none_of_many)
{
    set_taker(&taker, SIZE_MAX);
    run(MOST, 0);
    check_same(MOST);
    ck_assert_uint_le(longest, ENGINE_FEW_EVENTS);
    run(ENGINE_FEW_EVENTS, 0);
    check_same(ENGINE_FEW_EVENTS);
    ck_assert_uint_eq(longest, ENGINE_FEW_EVENTS);
}
END_TEST

static struct engine_event *take_dearly(void *ctx, struct engine_event *list)
{
    const double end = cpu_ms() + DEAR_MS;

    while (cpu_ms() < end)
        ;
    return take_some(ctx, list);
}

/* Where taking is dear the engine's thread leaves nearly all to the loop. */
START_TEST(takes_little_where_that_is_dear)
{
    const struct engine_taker dear = {.take = take_dearly};
    set_taker(&dear, SIZE_MAX);
    run(1, 0);
    check_same(1);
    ck_assert_uint_ge(told[0].by_engine, 1);
    ck_assert_uint_lt(told[0].by_engine, TOKENS / 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine_taker");
    TCase *tc = tcase_create("all");

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, takes_all_of_one_stream);
    tcase_add_test(tc, what_is_left_keeps_its_order);
    tcase_add_test(tc, takes_none_while_the_loop_is_awake);
    tcase_add_test(tc, takes_none_of_many);
    tcase_add_test(tc, takes_little_where_that_is_dear);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
