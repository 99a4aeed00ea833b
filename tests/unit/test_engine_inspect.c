/* test_engine_inspect.c - inspecting an engine and changing its cache, over the CPU backend and the
 * bundled model. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/engine_rig.h"
#include "tests/unit/run_suite.h"

static const char CHAT_SUM[] = "<|im_start|>user\nHow much is 16 + 15?<|im_end|>\n"
                               "<|im_start|>assistant\n<think>\n\n</think>\n\n";

static struct engine_request input; /* of the query that query() or pin_of() made last */

static void ask(struct engine *g, uint64_t id, const struct inspect_query *q)
{
    struct engine_request r = input;

    r.id = id;
    r.kind = ENGINE_INSPECT;
    r.query = *q;
    atomic_fetch_add(&n_owned, r.release != NULL);
    ck_assert_int_eq(engine_start(g, &r), 0);
}

static struct inspect_query query(enum inspect_kind kind)
{
    input = (struct engine_request){.release = release};
    return (struct inspect_query){
        .kind = kind, .viewer = 1000, .client = 1000, .limit = 100, .map = true};
}

static struct inspect_query pin_of(const char *prompt)
{
    struct inspect_query q = query(INSPECT_CACHE_PIN);

    input.prompt = (struct text){prompt, strlen(prompt)};
    return q;
}

static struct inspect_report *inspect(struct engine *g, uint64_t id, enum inspect_kind kind)
{
    struct inspect_query q = query(kind);

    ask(g, id, &q);
    return report_of(g, id);
}

static struct engine *start_short(void)
{
    options.backend_options.max_seq_len = 512;
    return start();
}

/* Starts a request that runs for long. */
static struct engine *start_running(uint64_t id)
{
    struct engine *g = start();
    struct engine_request r = request(id, "Once upon a time");

    r.max_tokens = 2000;
    r.ignore_eos = true;
    generate(g, &r);
    engine_events_free(take(g)); /* it runs */
    return g;
}

/* An idle engine reports its blocks, and later the prefix that one request left in the cache. */
TEST(idle_engine_is_inspected)
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
}

/* A prompt to pin is computed first and then kept; unpinned it is cached, cleared it is gone. */
TEST(pin_computes_missing_blocks)
{
    struct engine *g = start_short();
    struct inspect_query q = pin_of(CHAT_SUM);
    static const enum inspect_kind kinds[] = {INSPECT_CACHE_PIN,      INSPECT_CACHE_PIN,
                                              INSPECT_EXPLAIN_PROMPT, INSPECT_CACHE_PIN,
                                              INSPECT_CACHE_CLEAR,    INSPECT_EXPLAIN_PROMPT};
    static const int32_t changed[] = {1, 1, 0, 1, 1, 0}, cached[] = {0, 16, 16, 16, 0, 0};
    static const int32_t pinned[] = {1, 1, 1, 0, 0, 0};

    for (uint64_t i = 0; i < 6; i++) {
        struct inspect_report *report;

        q.kind = kinds[i];
        q.unpin = i == 3;
        ask(g, 100 + i, &q);
        report = report_of(g, 100 + i);
        ck_assert_int_eq(report->changed_blocks, changed[i]);
        ck_assert_int_eq(report->changed_tokens, 16 * changed[i]);
        ck_assert_int_eq(report->cached_tokens, cached[i]);
        ck_assert_int_eq(report->stats.blocks_pinned, pinned[i]);
        if (i != 4)
            ck_assert_int_eq(report->prompt_tokens, 23);
        inspect_report_free(report);
    }
}

/* Bad inspect requests end with their reason, cancelled ones as cancelled; each ends once, also
 * when the engine is freed first. */
TEST(failures_name_their_reason)
{
    static char prompt[1200];
    static const struct chat no_messages;
    static const struct {
        enum engine_input input;
        size_t len; /* of the prompt */
        uint64_t viewer;
        enum engine_error error;
        const char *says;
    } cases[] = {
        {ENGINE_PROMPT, 5, 1000, ENGINE_E_INVALID, "block of 16"},
        {ENGINE_PROMPT, 5, 1001, ENGINE_E_DENIED, "belongs to other users"},
        {ENGINE_PROMPT, 0, 1000, ENGINE_E_INVALID, "prompt: empty"},
        {ENGINE_PROMPT, sizeof(prompt), 1000, ENGINE_E_TOO_LONG, "512"},
        {ENGINE_CHAT, 0, 1000, ENGINE_E_INVALID, "messages"},
        {ENGINE_PROMPT, 600, 1000, ENGINE_E_CANCELLED, "cancelled"}, /* or computed before */
    };
    struct engine *g = start_short();
    struct inspect_query q = query(INSPECT_CACHE_PIN);
    struct answer a[N(cases)];

    for (size_t i = 0; i < sizeof(prompt); i++)
        prompt[i] = (char)('a' + i * i % 26);
    for (uint64_t i = 0; i < N(cases); i++) {
        input.input = cases[i].input;
        input.prompt = (struct text){prompt, cases[i].len};
        input.chat = &no_messages;
        q.viewer = cases[i].viewer;
        ask(g, 1 + i, &q);
    }
    engine_cancel(g, N(cases));
    gather(g, a, N(cases));
    for (int i = 0; i < N(cases); i++) {
        if (i == N(cases) - 1 && a[i].terminal == ENGINE_REPORT)
            continue;
        ck_assert_int_eq(a[i].terminal, ENGINE_ERROR);
        ck_assert_int_eq(a[i].error, cases[i].error);
        ck_assert_ptr_nonnull(strstr(a[i].message.text, cases[i].says));
    }
    q = pin_of(CHAT_SUM);
    for (uint64_t i = 10; i < 30; i++)
        ask(g, i, &q);
}

/* A request in the tokenizer pool is explained to its own client only. */
TEST(explains_requests_being_encoded)
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
    ask(g, 100, &q);
    report = report_of(g, 100);
    ck_assert(report->found);
    ck_assert_int_eq(report->why, INSPECT_WHY_ENCODING);
    ck_assert_uint_eq(report->requests[0].id, 8);
    inspect_report_free(report);
    q.viewer = 1;
    ask(g, 101, &q);
    report = report_of(g, 101);
    ck_assert(!report->found);
    inspect_report_free(report);
}

/* Running requests and those being encoded are listed, each once, while steps go on. A report that
 * is never taken does not leak. */
TEST(requests_are_listed_in_every_phase)
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
    ask(g, 101, &q);
}

/* Steps run between two reports, however many inspect requests wait; cancelled ones get none. */
TEST(reports_do_not_hold_up_steps)
{
    enum { N = 60, N_ANSWERED = 40, RUNNING = 1, FIRST = 100 };
    struct inspect_query q = query(INSPECT_BLOCKS);
    struct engine *g = start_running(RUNNING);
    int n_reports = 0, n_cancelled = 0, n_deltas = 0;

    for (uint64_t i = 0; i < N; i++)
        ask(g, FIRST + i, &q);
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
}

static atomic_int n_idle;
static atomic_bool may_answer;

/* The first call waits until all inspect requests are there. */
static int idle_look(struct backend *b, struct err *e)
{
    (void)b, (void)e;
    while (!atomic_load(&may_answer))
        usleep(1000);
    atomic_fetch_add(&n_idle, 1);
    return 0;
}

/* A backend that wants it is called in time, however many inspect requests wait. */
TEST(reports_do_not_hold_up_idle_work)
{
    enum { N = 60, FIRST = 100 };
    struct inspect_query q = query(INSPECT_BLOCKS);
    struct engine *g;

    ops.info = info_with_idle;
    ops.idle = idle_look;
    g = start();
    for (uint64_t i = 0; i < N; i++)
        ask(g, FIRST + i, &q);
    atomic_store(&may_answer, true);
    for (int n = 0; n < N;) {
        struct engine_event *list = take(g);

        for (const struct engine_event *ev = list; ev; ev = ev->next)
            n += ev->type == ENGINE_REPORT;
        engine_events_free(list);
    }
    ck_assert_int_ge(atomic_load(&n_idle), N / 2);
}

/* A client with few inspect requests does not wait behind another's many. */
TEST(reports_alternate_between_clients)
{
    enum { N = 200, RUNNING = 1, FIRST = 100, OTHER = 1000, LATE = N - 50 };
    struct inspect_query q = query(INSPECT_BLOCKS);
    struct engine *g = start_running(RUNNING);
    int n = 0, n_others = 0;

    for (uint64_t i = 0; i < N; i++)
        ask(g, FIRST + i, &q);
    q.viewer = 1001;
    for (uint64_t i = 0; i < 2; i++)
        ask(g, OTHER + i, &q);
    while (n < N + 2) {
        struct engine_event *list = take(g);

        for (const struct engine_event *ev = list; ev; ev = ev->next) {
            n += ev->type == ENGINE_REPORT;
            n_others += ev->type == ENGINE_REPORT && ev->request >= OTHER;
            ck_assert(n < LATE || n_others == 2);
        }
        engine_events_free(list);
    }
}

/* An idle engine sends all reports before it sleeps. */
TEST(idle_engine_sends_all_reports)
{
    enum { N = 30 };
    struct inspect_query q = query(INSPECT_BLOCKS);
    struct engine *g = start();
    struct answer a[N];

    for (uint64_t i = 1; i <= N; i++)
        ask(g, i, &q);
    gather(g, a, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(a[i].terminal, ENGINE_REPORT);
}

static struct engine *engine;
static _Atomic bool asks_to_sleep;

/* Submits; once a step has copies alone, a request to sleep has come by the next look. */
static int submit_and_ask(struct backend *b, const struct batch *batch, struct err *e)
{
    static struct inspect_query q;
    const int r = cpu_backend.submit(b, batch, e);

    if (batch->n_tokens > 0 || !atomic_exchange(&asks_to_sleep, false))
        return r;
    q = query(INSPECT_SLEEP);
    q.level = SLEEP_ALL;
    ask(engine, 100, &q);
    usleep(50000);
    return r;
}

/* A request to sleep comes while a copy is in flight, and nothing else is. */
TEST(sleep_finishes_copies)
{
    struct engine_request r = request(1, CHAT_SUM);
    struct inspect_report *report;

    ops.submit = submit_and_ask;
    options.backend_options.tier_bytes[TIER_HOST] = 16u << 20;
    atomic_store(&asks_to_sleep, true);
    engine = start();
    generate(engine, &r);
    report = report_of(engine, 100);
    ck_assert_int_eq(report->level, SLEEP_ALL);
    ck_assert_int_eq(report->kept_tokens, 16);
    inspect_report_free(report);
    generate(engine, &r); /* and it wakes */
    while (engine_asleep(engine))
        engine_events_free(take(engine));
}

static struct backend *model_backend; /* that was opened last: the draft model's is the first */
static _Atomic bool copies_are_late, has_too_little;

static int note_open(struct backend **out, const struct model *m, const struct backend_options *o,
                     struct err *e)
{
    const int r = cpu_backend.open(out, m, o, e);

    model_backend = *out;
    return r;
}

/* Submits; once a step has copies alone while the model sleeps, a request has come by the next
 * look. */
static int submit_and_generate(struct backend *b, const struct batch *batch, struct err *e)
{
    static struct engine_request r;
    const int ret = cpu_backend.submit(b, batch, e);

    if (batch->n_tokens > 0 || !engine_asleep(engine) || !atomic_exchange(&has_too_little, false))
        return ret;
    r = request(1, CHAT_SUM);
    generate(engine, &r);
    usleep(50000);
    return ret;
}

/* Copies do not end while they are late. */
static int wait_late(struct backend *b, struct step_result *out, struct err *e)
{
    static struct copy_result held[64], given[64];
    static int32_t n_held;
    const int r = cpu_backend.wait(b, out, e);

    if (b != model_backend)
        return r;
    ck_assert_int_le(n_held + out->n_copies, N(held));
    for (int32_t i = 0; i < out->n_copies; i++)
        held[n_held++] = out->copies[i];
    memcpy(given, held, sizeof(given));
    out->copies = given;
    out->n_copies = copies_are_late ? 0 : n_held;
    n_held -= out->n_copies;
    return r;
}

static _Atomic int n_refused;

static int refuse_to_wake(struct backend *b, struct err *e)
{
    if (b == model_backend || atomic_fetch_add(&n_refused, 1) > 0)
        return cpu_backend.wake(b, e);
    return err_set(e, -ENOMEM, "planted");
}

/* There is memory to wake the model, but not the draft model, while the former copies a block. */
TEST(too_little_memory_for_the_draft_model)
{
    struct engine_request r = request(1, CHAT_SUM);
    struct inspect_query q = query(INSPECT_SLEEP);
    struct answer a;

    ops.open = note_open;
    ops.submit = submit_and_generate;
    ops.wait = wait_late;
    ops.wake = refuse_to_wake;
    options.backend_options.tier_bytes[TIER_HOST] = 16u << 20;
    options.speculate = true;
    options.draft_folder = TEST_MODEL_DIR;
    engine = start();
    copies_are_late = true;
    generate(engine, &r);
    gather(engine, &a, 1);
    has_too_little = true;
    q.level = SLEEP_WEIGHTS;
    ask(engine, 100, &q);
    inspect_report_free(report_of(engine, 100));
    gather(engine, &a, 1);
    ck_assert_int_eq(a.error, ENGINE_E_UNAVAILABLE);
    ck_assert_int_eq(engine_asleep(engine), SLEEP_WEIGHTS);
    copies_are_late = false;
    generate(engine, &r);
    gather(engine, &a, 1);
    ck_assert_int_eq(a.terminal, ENGINE_DONE);
}

RUN_TESTS("engine_inspect", set_up_engine, end_engine)
