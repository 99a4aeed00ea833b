/* test_engine.c - the engine as the daemon sees it, over the CPU backend and the bundled model:
 * every request gets one terminal event and its memory back, whatever happens to it. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/core/core_impl.h"
#include "engine/engine_private.h"
#include "engine/util/clock.h"
#include "tests/unit/engine_rig.h"
#include "tests/unit/run_suite.h"

static const char COUNT[] = "<|im_start|>user\nCount from 15 to 54.<|im_end|>\n"
                            "<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char CHAT_SUM[] = "<|im_start|>user\nHow much is 16 + 15?<|im_end|>\n"
                               "<|im_start|>assistant\n<think>\n\n</think>\n\n";

/* ---- a CPU backend that fails on command */

static _Atomic int waits_before_death; /* -1: lives */

static int mortal_wait(struct backend *b, struct step_result *out, struct err *e)
{
    if (atomic_load(&waits_before_death) == 0)
        return err_set(e, -EIO, "planted failure");
    if (atomic_load(&waits_before_death) > 0)
        atomic_fetch_sub(&waits_before_death, 1);
    return cpu_backend.wait(b, out, e);
}

/* ---- a CPU backend that notes its cache folder and reports ever more memory */

static char told_folder[64];
static const char *told_at;
static _Atomic uint64_t n_looks;

static int noting_open(struct backend **out, const struct model *m, const struct backend_options *o,
                       struct err *e)
{
    told_at = o->cache_folder;
    snprintf(told_folder, sizeof(told_folder), "%s", o->cache_folder ? o->cache_folder : "none");
    return cpu_backend.open(out, m, o, e);
}

static void growing_info(const struct backend *b, struct backend_info *out)
{
    cpu_backend.info(b, out);
    out->graph_bytes = atomic_fetch_add(&n_looks, 1) + 1;
}

/* ---- tests */

static void answer(struct engine *g, const struct engine_request *r, struct answer *a)
{
    generate(g, r);
    gather(g, a, 1);
}

static void generate_many(struct engine *g, uint64_t n, int32_t max_tokens)
{
    for (uint64_t i = 1; i <= n; i++) {
        struct engine_request r = request(i, "Once upon a time");

        r.ignore_eos = true;
        r.max_tokens = max_tokens;
        generate(g, &r);
    }
}

static void check_text(const struct answer *a, const char *text)
{
    ck_assert_uint_eq(a->len, strlen(text));
    ck_assert_mem_eq(a->text, text, a->len);
}

/* A prompt's answer streams as text, ends with the model's end id, and has one terminal event. */
TEST(streams_an_answer)
{
    struct engine *g = start();
    struct engine_request r = request(1, CHAT_SUM);
    struct answer a;

    answer(g, &r, &a);
    ck_assert_int_eq(a.terminal, ENGINE_DONE);
    ck_assert_int_eq(a.reason, CORE_REASON_STOP);
    check_text(&a, "31");
    ck_assert_uint_eq(a.n_ids, 3);
    ck_assert_int_eq(a.ids[2], 1993);
    ck_assert_int_gt(a.n_deltas, 1);
    ck_assert_int_eq(a.usage.prompt_tokens, 23);
    ck_assert_int_eq(a.usage.completion_tokens, 3);
    ck_assert(a.usage.arrival_us <= a.usage.start_us && a.usage.start_us <= a.usage.first_us &&
              a.usage.first_us <= a.usage.end_us);
}

/* A request has arrived when engine_start() has returned, and waits in the core later. */
TEST(arrival_is_before_the_queue)
{
    struct engine *g = start();
    struct engine_request r = request(1, CHAT_SUM);
    const uint64_t before_us = clock_us();
    uint64_t after_us;
    struct answer a;

    generate(g, &r);
    after_us = clock_us();
    gather(g, &a, 1);
    ck_assert(before_us <= a.usage.arrival_us && a.usage.arrival_us <= after_us);
    ck_assert(a.usage.arrival_us < a.usage.queued_us && a.usage.queued_us <= a.usage.start_us);
}

/* The same request without streaming is one delta with the same text and ids. */
TEST(whole_answer_is_one_delta)
{
    struct engine *g = start();
    struct engine_request r[2] = {request(1, CHAT_SUM), request(2, CHAT_SUM)};
    struct answer a[2];

    r[1].stream = false;
    generate(g, &r[0]);
    generate(g, &r[1]);
    gather(g, a, 2);
    ck_assert_int_eq(a[1].n_deltas, 1);
    ck_assert_uint_eq(a[0].len, a[1].len);
    ck_assert_int_eq(memcmp(a[0].text, a[1].text, a[0].len), 0);
    ck_assert_uint_eq(a[0].n_ids, a[1].n_ids);
    ck_assert_int_eq(memcmp(a[0].ids, a[1].ids, a[0].n_ids * sizeof(int32_t)), 0);
}

/* A stop string ends the text before it, though it spans tokens, and the answer says stop. */
TEST(stop_string_ends_the_text)
{
    struct engine *g = start();
    struct engine_request r = request(1, COUNT);
    struct answer a;

    r.max_tokens = 100;
    r.stops[0] = (struct text){"18, 19", 6};
    r.n_stops = 1;
    for (int stream = 0; stream < 2; stream++) {
        r.stream = stream;
        answer(g, &r, &a);
        ck_assert_int_eq(a.terminal, ENGINE_DONE);
        ck_assert_int_eq(a.reason, CORE_REASON_STOP);
        check_text(&a, "15, 16, 17, ");
    }
}

/* A stop string within the first min_tokens tokens is ordinary text. */
TEST(min_tokens_hold_back_stop_strings)
{
    struct engine *g = start();
    struct engine_request r = request(1, COUNT);
    struct answer a;

    r.max_tokens = 100;
    r.stops[0] = (struct text){", ", 2};
    r.n_stops = 1;
    for (r.sampling.min_tokens = 0; r.sampling.min_tokens <= 20; r.sampling.min_tokens += 20) {
        answer(g, &r, &a);
        ck_assert_int_eq(a.reason, CORE_REASON_STOP);
        ck_assert_int_eq(a.n_ids > 20, r.sampling.min_tokens > 0);
        ck_assert_int_eq(memcmp(a.text, "15, 16", r.sampling.min_tokens ? 6 : 2), 0);
    }
}

/* While the model loads, requests are refused at once and may be tried again. */
TEST(refuses_while_loading)
{
    struct engine *g = start_loading();
    struct engine_request r = request(1, CHAT_SUM);
    struct answer a;

    if (engine_state(g) == ENGINE_LOADING) {
        answer(g, &r, &a);
        ck_assert_int_eq(a.terminal, ENGINE_ERROR);
        ck_assert_int_eq(a.error, ENGINE_E_UNAVAILABLE);
    }
}

/* A request that can never fit is refused with the figures; later requests run. */
TEST(refuses_what_never_fits)
{
    struct engine_request r[3] = {request(1, CHAT_SUM), request(2, ""), request(3, CHAT_SUM)};
    static const int32_t ids[1024];
    struct answer a[3];
    struct engine *g;

    options.backend_options.max_seq_len = 1024;
    g = start();
    r[0].max_tokens = 1024;
    r[2].input = ENGINE_PROMPT_IDS; /* no max_tokens would do */
    r[2].prompt_ids = ids;
    r[2].n_prompt_ids = 1024;
    for (int i = 0; i < 3; i++)
        generate(g, &r[i]);
    gather(g, a, 3);
    ck_assert_int_eq(a[0].terminal, ENGINE_ERROR);
    ck_assert_int_eq(a[0].error, ENGINE_E_TOO_LONG);
    ck_assert_str_eq(a[0].field, "max_tokens");
    ck_assert_ptr_nonnull(strstr(a[0].message.text, "1024"));
    ck_assert_int_eq(a[2].error, ENGINE_E_TOO_LONG);
    ck_assert_str_eq(a[2].field, "prompt_ids");
    ck_assert_int_eq(a[1].error, ENGINE_E_INVALID);
    r[0].max_tokens = 0; /* as many as fit */
    generate(g, &r[0]);
    gather(g, a, 1);
    ck_assert_int_eq(a[0].terminal, ENGINE_DONE);
}

/* Bytes of a list of events. */
static size_t bytes_of(const struct engine_event *list)
{
    size_t bytes = 0;

    for (; list; list = list->next)
        bytes += list->bytes;
    return bytes;
}

static struct engine *start_bounded(size_t event_bytes)
{
    options.event_bytes = event_bytes;
    return start();
}

/* Waits until the engine pauses; returns how many tokens it has sampled. */
static uint64_t tokens_when_still(struct engine *g)
{
    struct engine_status s;
    uint64_t before = 0;
    int still = 0;

    for (int i = 0; i < 3000 && still < 60; i++) {
        usleep(10000);
        engine_status(g, &s);
        still = s.core.output_tokens && s.core.output_tokens == before ? still + 1 : 0;
        before = s.core.output_tokens;
    }
    ck_assert_int_eq(still, 60);
    return before;
}

/* The engine pauses soon after its events exceed the limit; once they are taken it continues, and
 * nothing is lost. */
TEST(pauses_at_the_limit_of_events)
{
    enum { N = 8, TOKENS = 200, LIMIT = 16 << 10, A_STEP = N * 1024 };
    struct engine *g = start_bounded(LIMIT);
    struct engine_event *list;
    uint64_t first;
    size_t n_ids = 0;

    generate_many(g, N, TOKENS);
    first = tokens_when_still(g);
    ck_assert_uint_lt(first, N * TOKENS / 2);
    list = engine_take(g);
    ck_assert_uint_gt(bytes_of(list), LIMIT);
    ck_assert_uint_lt(bytes_of(list), LIMIT + A_STEP);
    ck_assert_uint_gt(tokens_when_still(g), first);
    for (uint64_t left = N; left;) {
        for (const struct engine_event *ev = list; ev; ev = ev->next) {
            n_ids += ev->n_ids;
            left -= ev->type == ENGINE_DONE;
        }
        engine_events_free(list);
        list = left ? take(g) : NULL;
    }
    ck_assert_uint_eq(n_ids, N * TOKENS);
}

static void tokenize(struct engine *g, uint64_t id, struct text text)
{
    const struct engine_request r = {
        .id = id, .client = 1, .kind = ENGINE_TOKENIZE, .prompt = text, .release = release};

    generate(g, &r);
}

/* The tokenizer pool pauses likewise, and an engine that pauses can be freed. */
TEST(pool_pauses_at_the_limit_of_events)
{
    enum { N = 100, TEXT = 1 << 16, LIMIT = 1 << 20 };
    struct engine *g = start_bounded(LIMIT);
    struct engine_event *list;
    static char text[TEXT];

    memset(text, '1', TEXT);
    for (uint64_t i = 1; i <= N; i++)
        tokenize(g, i, (struct text){text, TEXT});
    for (int before = 0, still = 0; still < 50; still++) {
        int now = atomic_load(&n_owned);

        still = now < N && now == before ? still : 0;
        before = now;
        usleep(10000);
    }
    ck_assert_int_gt(atomic_load(&n_owned), N / 2);
    list = engine_take(g);
    ck_assert_uint_gt(bytes_of(list), LIMIT);
    ck_assert_uint_lt(bytes_of(list), LIMIT + 3 * TEXT * sizeof(int32_t));
    engine_events_free(list);
    usleep(100000); /* the pool continues, and pauses again */
}

/* A request cancelled at any moment gets one terminal event, and an idle engine uses no block. */
TEST(cancel_is_told_once)
{
    enum { N = 40 };
    static struct answer a[N];
    struct engine *g = start();
    struct engine_status s;

    for (uint64_t i = 1; i <= N; i++) {
        struct engine_request r = request(i, "Once upon a time");

        r.max_tokens = 200;
        r.n = 1 + (int32_t)(i % 3);
        generate(g, &r);
        if (i % 2)
            engine_cancel(g, i);
        if (i > 8)
            engine_cancel(g, i - 8);
    }
    for (uint64_t i = N - 8; i <= N; i++)
        engine_cancel(g, i);
    engine_cancel(g, 12345);
    gather(g, a, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(a[i].terminal, ENGINE_DONE);
    do
        engine_status(g, &s);
    while (s.core.blocks_used); /* the steps in flight still hold some; a leak would hang here */
    ck_assert_int_eq(s.core.seqs_running + s.core.seqs_waiting, 0);
}

/* Repeated cancels of one request count once, and those of unknown requests are ignored. */
TEST(repeated_cancels_count_once)
{
    struct engine *g = start();
    struct engine_request r = request(1, "Once upon a time");
    struct answer a;

    r.max_tokens = 3000;
    r.ignore_eos = true;
    generate(g, &r);
    for (uint64_t i = 0; i < 100000; i++) {
        engine_cancel(g, 1);
        engine_cancel(g, 1000 + i);
    }
    gather(g, &a, 1);
    ck_assert_int_eq(a.terminal, ENGINE_DONE);
    ck_assert_int_eq(a.reason, CORE_REASON_CANCELLED);
}

/* Work that is cancelled while it waits for the pool is not done and ends as cancelled. */
TEST(cancelled_work_is_not_begun)
{
    enum { N = 64 };
    static char text[600000];
    static struct answer a[N];
    struct engine *g = start();
    int n_cancelled = 0;

    memset(text, 'x', sizeof(text));
    for (uint64_t i = 1; i <= N; i++)
        tokenize(g, i, (struct text){text, sizeof(text)});
    for (uint64_t i = 1; i <= N; i++)
        engine_cancel(g, i);
    gather(g, a, N);
    for (int i = 0; i < N; i++) {
        if (a[i].terminal == ENGINE_TOKENS)
            continue;
        ck_assert_int_eq(a[i].terminal, ENGINE_ERROR);
        ck_assert_int_eq(a[i].error, ENGINE_E_CANCELLED);
        n_cancelled++;
    }
    ck_assert_int_gt(n_cancelled, N / 2);
}

/* When the backend fails, every request ends with an error that says why. */
TEST(backend_death_is_told_to_all)
{
    enum { N = 12 };
    static struct answer a[N];
    struct engine *g;
    struct engine_status s;

    ops.wait = mortal_wait;
    atomic_store(&waits_before_death, -1);
    g = start();
    atomic_store(&waits_before_death, 5);
    generate_many(g, N, 500);
    gather(g, a, N);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(a[i].terminal, ENGINE_ERROR);
        ck_assert_int_eq(a[i].error, ENGINE_E_INTERNAL);
    }
    wait_while(g, ENGINE_READY);
    ck_assert_int_eq(engine_state(g), ENGINE_FAILED);
    engine_status(g, &s);
    ck_assert_str_eq(s.failure.text, "planted failure");
}

/* An engine freed while requests run releases each request's memory once. */
TEST(end_in_the_middle_gives_memory_back)
{
    struct engine *g = start();

    generate_many(g, 64, 1000);
}

/* Backends get the engine's own copy of the path, which outlives the caller's. */
TEST(cache_folder_is_copied)
{
    char folder[] = "/var/cache/somewhere";
    struct engine *g;

    ops.open = noting_open;
    options.backend_options.cache_folder = folder;
    g = start_loading();
    memset(folder, 'x', sizeof(folder) - 1);
    wait_while(g, ENGINE_LOADING);
    ck_assert_int_eq(engine_state(g), ENGINE_READY);
    ck_assert_ptr_ne(told_at, folder);
    ck_assert_str_eq(told_folder, "/var/cache/somewhere");
}

/* Memory that a backend takes after the start is reported once the engine is idle again. */
TEST(status_follows_the_ledger)
{
    struct engine_status before, after;
    struct engine_request r = request(1, "Once upon a time");
    struct engine *g;

    ops.info = growing_info;
    g = start();
    engine_status(g, &before);
    ck_assert_uint_gt(before.backend.graph_bytes, 0);
    r.max_tokens = 4;
    generate(g, &r);
    for (int i = 0; i < 3000; i++) {
        engine_status(g, &after);
        if (after.core.output_tokens == 4 && after.backend.graph_bytes > before.backend.graph_bytes)
            break;
        usleep(10000);
    }
    ck_assert_uint_eq(after.core.output_tokens, 4);
    ck_assert_uint_gt(after.backend.graph_bytes, before.backend.graph_bytes);
    ck_assert_uint_eq(after.backend.tiers[TIER_DEVICE].bytes,
                      before.backend.tiers[TIER_DEVICE].bytes);
}

static struct engine *counting;
static atomic_int n_uncounted;

static int counted_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    struct engine_status s;

    engine_status(counting, &s);
    if (s.core.requests_running + s.core.requests_waiting + (int32_t)s.n_encoding != 1)
        atomic_fetch_add(&n_uncounted, 1);
    return cpu_backend.submit(b, batch, e);
}

/* A request is counted at any time: as one that is encoded until it is one of the scheduler's. */
TEST(requests_are_counted_at_any_time)
{
    struct engine_request r = request(1, "Once upon a time");
    struct answer a;

    ops.submit = counted_submit;
    counting = start();
    r.max_tokens = 4;
    generate(counting, &r);
    gather(counting, &a, 1);
    ck_assert_int_eq(a.terminal, ENGINE_DONE);
    ck_assert_int_eq(atomic_load(&n_uncounted), 0);
}

static atomic_int n_idle, n_flying, n_idle_beside_steps, n_idle_too_soon;
static _Atomic uint64_t landed_us;

static int flying_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    atomic_fetch_add(&n_flying, 1);
    return cpu_backend.submit(b, batch, e);
}

static int landing_wait(struct backend *b, struct step_result *out, struct err *e)
{
    int r;

    atomic_fetch_sub(&n_flying, 1);
    r = cpu_backend.wait(b, out, e);
    atomic_store(&landed_us, clock_us());
    return r;
}

/* There are two pieces of idle work after steps have run; the third call finds none. */
static int idle_work(struct backend *b, struct err *e)
{
    (void)b, (void)e;
    atomic_fetch_add(&n_idle_beside_steps, atomic_load(&n_flying) != 0);
    atomic_fetch_add(&n_idle_too_soon, clock_us() < atomic_load(&landed_us) + ENGINE_QUIET_US);
    return atomic_fetch_add(&n_idle, 1) % 3 < 2;
}

static void wait_idle(int n)
{
    for (int i = 0; i < 3000 && atomic_load(&n_idle) < n; i++)
        usleep(10000);
    usleep(2 * ENGINE_QUIET_US);
    ck_assert_int_eq(atomic_load(&n_idle), n); /* and no more */
}

/* Idle work runs while no step is in flight, until none is left, and again after later steps, but
 * not right after one or the start. */
TEST(idle_work_runs_between_steps)
{
    struct engine_request r = request(1, "Once upon a time");
    struct answer a;
    struct engine *g;

    ops.submit = flying_submit;
    ops.wait = landing_wait;
    ops.idle = idle_work;
    atomic_store(&landed_us, clock_us());
    g = start();
    wait_idle(3);
    r.max_tokens = 4;
    answer(g, &r, &a);
    ck_assert_uint_eq(a.n_ids, 4);
    wait_idle(6);
    ck_assert_int_eq(atomic_load(&n_idle_beside_steps), 0);
    ck_assert_int_eq(atomic_load(&n_idle_too_soon), 0);
}

static struct backend *_Atomic idle_first, *_Atomic idle_last;

/* One more piece at the first call. */
static int idle_of_two(struct backend *b, struct err *e)
{
    (void)e;
    if (atomic_load(&n_idle) == 0)
        atomic_store(&idle_first, b);
    atomic_store(&idle_last, b);
    return atomic_fetch_add(&n_idle, 1) == 0;
}

/* The draft model's backend has its idle work, too, once the model's is done. */
TEST(a_draft_model_has_idle_work)
{
    ops.idle = idle_of_two;
    options.draft_folder = TEST_MODEL_DIR;
    options.speculate = true;
    options.backend_options.tp_size = 1;
    start();
    wait_idle(3);
    ck_assert_ptr_ne(atomic_load(&idle_first), atomic_load(&idle_last));
}

static int idle_look(struct backend *b, struct err *e)
{
    (void)b, (void)e;
    atomic_fetch_add(&n_idle, 1);
    return 0;
}

/* Waits for two more looks. */
static void wait_looks(void)
{
    const int n = atomic_load(&n_idle) + 2;

    for (int i = 0; i < 3000 && atomic_load(&n_idle) < n; i++)
        usleep(10000);
    ck_assert_int_ge(atomic_load(&n_idle), n);
}

/* A backend that wants it is called every second of an idle engine, asleep or not. */
TEST(idle_backend_is_called_again)
{
    struct engine *g;

    ops.info = info_with_idle;
    ops.idle = idle_look;
    g = start();
    wait_looks();
    engine_set_idle_sleep(g, 1);
    for (int i = 0; i < 3000 && !engine_asleep(g); i++)
        usleep(10000);
    ck_assert_int_eq(engine_asleep(g), SLEEP_ALL); /* no block is cached */
    wait_looks();
    ck_assert_int_eq(engine_asleep(g), SLEEP_ALL);
}

/* A folder that does not exist leads to FAILED, with its name. */
TEST(bad_folder_fails_with_its_name)
{
    struct engine_status s;
    struct engine *g;

    options.model_folder = "/nonexistent-folder";
    g = start_loading();
    wait_while(g, ENGINE_LOADING);
    engine_status(g, &s);
    ck_assert_int_eq(s.state, ENGINE_FAILED);
    ck_assert_ptr_nonnull(strstr(s.failure.text, "/nonexistent-folder"));
}

/* The core is told how long the masks of an answer take. */
TEST(mask_time_is_counted)
{
    static const char regex[] = ".{0,2000}x.{0,2000}";
    struct engine_request r = request(1, "x");
    static struct answer answer;
    struct engine *g = start();
    const struct fair_user *u;

    r.ignore_eos = false;
    r.format = (struct format_source){.kind = FORMAT_REGEX, .text = {regex, strlen(regex)}};
    generate(g, &r);
    gather(g, &answer, 1);
    ck_assert_int_eq(answer.terminal, ENGINE_DONE);
    u = id_map_get(&g->core->fair.users, r.client);
    ck_assert_ptr_nonnull(u);
    ck_assert_double_gt(u->mean_mask_us, 0);
}

/* The memory of a request follows from its choices, each with its stops, and its biases. */
TEST(bytes_of_a_request_follow_its_shape)
{
    struct engine_request r = request(1, "x");
    size_t one = engine_request_bytes(NULL, &r), stops, choices;

    r.n_stops = ENGINE_MAX_STOPS;
    stops = engine_request_bytes(NULL, &r) - one;
    ck_assert_uint_ge(stops, (size_t)ENGINE_MAX_STOPS * 256);
    r.n = 64;
    choices = engine_request_bytes(NULL, &r);
    ck_assert_uint_ge(choices, 64 * stops);
    ck_assert_uint_le(choices, 64 * (stops + one));
    r.sampling.n_bias = SAMPLING_MAX_BIAS;
    ck_assert_uint_eq(engine_request_bytes(NULL, &r) - choices,
                      SAMPLING_MAX_BIAS * sizeof(struct logit_bias));
}

RUN_TESTS("engine", set_up_engine, end_engine)
