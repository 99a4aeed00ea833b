/* test_engine_inspect.c - looking into an engine and changing its cache, over the CPU backend and
 * the bundled model. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/engine_rig.h"
#include "tests/unit/run_suite.h"

static const char CHAT_SUM[] = "<|im_start|>user\nHow much is 16 + 15?<|im_end|>\n"
                               "<|im_start|>assistant\n<think>\n\n</think>\n\n";

static struct inspect_report *inspect(struct engine *g, uint64_t id, enum inspect_kind kind)
{
    struct inspect_query q = {
        .kind = kind, .viewer = 1000, .limit = 100, .map = true, .release = release};

    atomic_fetch_add(&n_owned, 1);
    ck_assert_int_eq(engine_inspect(g, id, &q), 0);
    return report_of(g, id);
}

/* An idle engine tells what it has; afterwards what one request left behind is in the cache. */
START_TEST(idle_engine_is_looked_into)
{
    struct engine *g = start();
    struct engine_request r = request(1, CHAT_SUM);
    struct inspect_report *report = inspect(g, 100, INSPECT_BLOCKS);
    struct answer a;

    ck_assert_int_eq(report->n_map, report->stats.blocks_total);
    ck_assert_int_eq(report->n_clients, 0);
    inspect_report_free(report);
    generate(g, &r);
    gather(g, &a, 1);
    report = inspect(g, 101, INSPECT_CACHE);
    ck_assert_int_eq(report->n_prefixes, 1);
    ck_assert_int_eq(report->prefixes[0].tokens, 16);
    ck_assert_int_eq(report->prefixes[0].n_head, 16);
    inspect_report_free(report);
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

/* A prompt that nobody asked for yet is computed to be pinned, then stays; unpinned it is cached;
 * cleared it is gone. */
START_TEST(pin_computes_what_is_not_there)
{
    struct engine *g = start_on(&cpu_backend, 512, 64u << 20);
    struct inspect_query q = {
        .kind = INSPECT_CACHE_PIN,
        .viewer = 1000,
        .client = 1000,
        .limit = 10,
        .input = INSPECT_PROMPT,
        .prompt = {CHAT_SUM, strlen(CHAT_SUM)},
        .release = release,
    };
    static const enum inspect_kind kinds[] = {INSPECT_CACHE_PIN,      INSPECT_CACHE_PIN,
                                              INSPECT_EXPLAIN_PROMPT, INSPECT_CACHE_PIN,
                                              INSPECT_CACHE_CLEAR,    INSPECT_EXPLAIN_PROMPT};
    static const int32_t changed[] = {1, 1, 0, 1, 1, 0}, cached[] = {0, 16, 16, 16, 0, 0};
    static const int32_t pinned[] = {1, 1, 1, 0, 0, 0};

    wait_loaded(g);
    for (uint64_t i = 0; i < 6; i++) {
        struct inspect_report *report;

        q.kind = kinds[i];
        q.unpin = i == 3;
        atomic_fetch_add(&n_owned, 1);
        ck_assert_int_eq(engine_inspect(g, 100 + i, &q), 0);
        report = report_of(g, 100 + i);
        ck_assert_int_eq(report->changed_blocks, changed[i]);
        ck_assert_int_eq(report->changed_tokens, 16 * changed[i]);
        ck_assert_int_eq(report->cached_tokens, cached[i]);
        ck_assert_int_eq(report->stats.blocks_pinned, pinned[i]);
        if (i != 4)
            ck_assert_int_eq(report->prompt_tokens, 23);
        inspect_report_free(report);
    }
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

/* Questions that make no sense end with their reason, those cancelled with that; each is answered
 * once, also where the engine ends before. */
START_TEST(questions_that_fail_say_why)
{
    static char long_prompt[1200];
    struct engine *g = start_on(&cpu_backend, 512, 64u << 20);
    struct inspect_query q = {
        .kind = INSPECT_CACHE_PIN,
        .viewer = 1000,
        .client = 1000,
        .limit = 10,
        .input = INSPECT_PROMPT,
        .prompt = {"short", 5},
        .release = release,
    };
    struct answer a[6];

    wait_loaded(g);
    for (size_t i = 0; i < sizeof(long_prompt); i++)
        long_prompt[i] = (char)('a' + i * i % 26);
    atomic_fetch_add(&n_owned, 6);
    ck_assert_int_eq(engine_inspect(g, 1, &q), 0);
    q.viewer = 1001;
    ck_assert_int_eq(engine_inspect(g, 2, &q), 0);
    q.viewer = 1000;
    q.prompt = (struct text){"", 0};
    ck_assert_int_eq(engine_inspect(g, 3, &q), 0);
    q.prompt = (struct text){long_prompt, sizeof(long_prompt)};
    ck_assert_int_eq(engine_inspect(g, 4, &q), 0);
    q.input = INSPECT_CHAT;
    q.chat = &(struct chat){.n_messages = 0};
    ck_assert_int_eq(engine_inspect(g, 5, &q), 0);
    q.input = INSPECT_PROMPT;
    q.prompt = (struct text){long_prompt, 600};
    ck_assert_int_eq(engine_inspect(g, 6, &q), 0);
    engine_cancel(g, 6);
    gather(g, a, 6);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(a[i].terminal, ENGINE_ERROR);
    ck_assert_int_eq(a[0].error, ENGINE_E_INVALID);
    ck_assert_ptr_nonnull(strstr(a[0].message.text, "block of 16"));
    ck_assert_int_eq(a[1].error, ENGINE_E_DENIED);
    ck_assert_int_eq(a[2].error, ENGINE_E_INVALID);
    ck_assert_int_eq(a[3].error, ENGINE_E_TOO_LONG);
    ck_assert_ptr_nonnull(strstr(a[3].message.text, "512"));
    ck_assert_int_eq(a[4].error, ENGINE_E_INVALID);
    if (a[5].terminal == ENGINE_ERROR)
        ck_assert_int_eq(a[5].error, ENGINE_E_CANCELLED);
    q.prompt = (struct text){CHAT_SUM, strlen(CHAT_SUM)};
    for (uint64_t i = 10; i < 30; i++) {
        atomic_fetch_add(&n_owned, 1);
        ck_assert_int_eq(engine_inspect(g, i, &q), 0);
    }
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

/* A request that waits for the tokenizer is explained to be there; another's is not. */
START_TEST(explains_what_is_encoded)
{
    static char text[600000];
    struct engine *g = start();
    struct inspect_query q = {.kind = INSPECT_EXPLAIN_REQUEST, .viewer = 1000, .request = 8};
    struct inspect_report *report;

    memset(text, 'x', sizeof(text) - 1);
    for (uint64_t i = 1; i <= 8; i++) {
        struct engine_request r = request(i, text);

        generate(g, &r);
    }
    ck_assert_int_eq(engine_inspect(g, 100, &q), 0);
    report = report_of(g, 100);
    ck_assert(report->found);
    ck_assert_int_eq(report->why, INSPECT_WHY_ENCODING);
    ck_assert_uint_eq(report->requests[0].id, 8);
    inspect_report_free(report);
    q.viewer = 1;
    ck_assert_int_eq(engine_inspect(g, 101, &q), 0);
    report = report_of(g, 101);
    ck_assert(!report->found);
    inspect_report_free(report);
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

/* What is running and what is still with the tokenizer is told, each once, while steps go on; and
 * a question that nobody takes the answer of is no leak. */
START_TEST(requests_are_told_wherever_they_are)
{
    enum { N = 12 };
    static char long_prompt[60000];
    struct engine *g = start();
    struct inspect_report *report;
    struct inspect_query q = {.kind = INSPECT_REQUESTS, .viewer = 1000, .limit = 1};
    bool seen[N + 1] = {false};

    memset(long_prompt, 'a', sizeof(long_prompt) - 1);
    for (uint64_t i = 1; i <= N; i++) {
        struct engine_request r = request(i, i > 8 ? long_prompt : "Once upon a time");

        r.max_tokens = i > 8 ? 1 : 2000;
        r.ignore_eos = true;
        generate(g, &r);
    }
    report = inspect(g, 100, INSPECT_REQUESTS);
    ck_assert_int_ge(report->n_requests, 8);
    for (int32_t i = 0; i < report->n_requests; i++) {
        ck_assert(!seen[report->requests[i].id]);
        seen[report->requests[i].id] = true;
        ck_assert_uint_eq(report->requests[i].client, 1000);
    }
    for (int i = 1; i <= 8; i++)
        ck_assert(seen[i]);
    inspect_report_free(report);
    ck_assert_int_eq(engine_inspect(g, 101, &q), 0);
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

/* However many questions wait, the steps of others go on between two answers; what was cancelled
 * is not answered. */
START_TEST(questions_do_not_hold_up_steps)
{
    enum { N = 60, N_ANSWERED = 40, RUNNING = 1, FIRST = 100 };
    struct inspect_query q = {
        .kind = INSPECT_BLOCKS, .viewer = 1000, .limit = 10, .map = true, .release = release};
    struct engine *g = start();
    struct engine_request r = request(RUNNING, "Once upon a time");
    int n_reports = 0, n_cancelled = 0, n_deltas = 0;

    r.max_tokens = 2000;
    r.ignore_eos = true;
    generate(g, &r);
    engine_events_free(take(g)); /* it runs */
    atomic_fetch_add(&n_owned, N);
    for (uint64_t i = 0; i < N; i++)
        ck_assert_int_eq(engine_inspect(g, FIRST + i, &q), 0);
    for (uint64_t i = N_ANSWERED; i < N; i++)
        engine_cancel(g, FIRST + i);
    while (n_reports + n_cancelled < N) {
        struct engine_event *list = take(g);

        for (const struct engine_event *ev = list; ev; ev = ev->next) {
            if (ev->type == ENGINE_DELTA)
                n_deltas += n_reports > 0;
            else if (ev->type == ENGINE_REPORT)
                n_reports++;
            else if (ev->type == ENGINE_ERROR && ev->error == ENGINE_E_CANCELLED)
                n_cancelled++;
            else
                ck_abort_msg("request %d ended", (int)ev->request);
        }
        engine_events_free(list);
    }
    ck_assert_int_ge(n_reports, N_ANSWERED);
    ck_assert_int_ge(n_cancelled, 1);
    ck_assert_int_ge(n_deltas, N_ANSWERED / 2);
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

/* Who asks one thing does not wait behind all that another asks, nor does who asks now and then. */
START_TEST(questions_go_by_turns_of_clients)
{
    enum { N = 200, RUNNING = 1, FIRST = 100, OTHER = 1000, LATE = N - 50 };
    struct inspect_query q = {
        .kind = INSPECT_BLOCKS, .viewer = 1000, .limit = 10, .map = true, .release = release};
    struct engine *g = start();
    struct engine_request r = request(RUNNING, "Once upon a time");
    int n = 0, n_others = 0;

    r.max_tokens = 2000;
    r.ignore_eos = true;
    generate(g, &r);
    engine_events_free(take(g)); /* it runs */
    atomic_fetch_add(&n_owned, N + 2);
    for (uint64_t i = 0; i < N; i++)
        ck_assert_int_eq(engine_inspect(g, FIRST + i, &q), 0);
    q.viewer = 1001;
    for (uint64_t i = 0; i < 2; i++)
        ck_assert_int_eq(engine_inspect(g, OTHER + i, &q), 0);
    while (n < N + 2) {
        struct engine_event *list = take(g);

        for (const struct engine_event *ev = list; ev; ev = ev->next) {
            n += ev->type == ENGINE_REPORT;
            n_others += ev->type == ENGINE_REPORT && ev->request >= OTHER;
            ck_assert(n < LATE || n_others == 2);
        }
        engine_events_free(list);
    }
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

/* With nothing else to do the engine answers all of them, before it rests. */
START_TEST(questions_at_rest_are_all_answered)
{
    enum { N = 30 };
    struct inspect_query q = {.kind = INSPECT_BLOCKS,
                              .viewer = 1000,
                              .limit = 10,
                              .release = release};
    struct engine *g = start();
    struct answer a[N];

    atomic_fetch_add(&n_owned, N);
    for (uint64_t i = 1; i <= N; i++)
        ck_assert_int_eq(engine_inspect(g, i, &q), 0);
    gather(g, a, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(a[i].terminal, ENGINE_REPORT);
    engine_free(g);
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine_inspect");
    TCase *tc = tcase_create("all");

    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, idle_engine_is_looked_into);
    tcase_add_test(tc, pin_computes_what_is_not_there);
    tcase_add_test(tc, questions_that_fail_say_why);
    tcase_add_test(tc, explains_what_is_encoded);
    tcase_add_test(tc, requests_are_told_wherever_they_are);
    tcase_add_test(tc, questions_do_not_hold_up_steps);
    tcase_add_test(tc, questions_go_by_turns_of_clients);
    tcase_add_test(tc, questions_at_rest_are_all_answered);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
