/* test_engine_storm.c - requests, queries and cancels at any moment of each other: every answer is
 * what it is alone, or a named error, every request ends once, and the engine goes on.
 *
 * The backend has no model (tests/sim/sim_backend.h): it checks each batch and each block that is
 * read, and its copies end some steps later, as a device's do. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/util/clock.h"
#include "tests/sim/rng.h"
#include "tests/sim/sim_backend.h"
#include "tests/unit/engine_rig.h"
#include "tests/unit/run_suite.h"

enum {
#ifdef TEST_LIGHT
    N_ROUNDS = 800,
#else
    N_ROUNDS = 3000,
#endif
    N_PROMPTS = 12,
    MAX_PROMPT = 260,
    MAX_CHOICES = 3,
    MAX_TOKENS = 24,
    BLOCK_BYTES = 4096,
    NAP_US = 150, /* of the backend, so that what others do comes at any moment */
};

static const struct {
    int32_t n_device, n_host; /* blocks */
    int32_t max_seqs, max_batch_tokens;
    int32_t copy_steps, copy_fail_one_in;
    int32_t wake_fails_one_in;
    bool speculate, draft_model;
} cases[] = {
    {.n_device = 40, .max_seqs = 4, .max_batch_tokens = 64},
    {.n_device = 32, .n_host = 64, .max_seqs = 8, .max_batch_tokens = 256, .speculate = true},
    {.n_device = 32, .n_host = 64, .max_seqs = 8, .max_batch_tokens = 20, .copy_steps = 20},
    {.n_device = 40,
     .n_host = 8,
     .max_seqs = 2,
     .max_batch_tokens = 256,
     .copy_steps = 4,
     .copy_fail_one_in = 5,
     .speculate = true},
    {.n_device = 24,
     .n_host = 80,
     .max_seqs = 8,
     .max_batch_tokens = 64,
     .copy_steps = 4,
     .wake_fails_one_in = 3},
    {.n_device = 200,
     .n_host = 200,
     .max_seqs = 3,
     .max_batch_tokens = 2048,
     .copy_steps = 20,
     .wake_fails_one_in = 3,
     .speculate = true,
     .draft_model = true},
};

/* ---- the backend */

struct backend {
    struct sim_backend *sim;
    struct backend_info info;
    struct rng rng;
    int32_t wake_fails_one_in;
    int32_t n_in_flight;
    bool asleep, keeps_blocks;
};

static int the_case; /* of the engine that runs */

static void nap(struct backend *b)
{
    if (rng_one_in(&b->rng, 3))
        usleep((useconds_t)rng_range(&b->rng, 0, NAP_US));
}

static int verdict(const char *wrong, struct err *e)
{
    return wrong ? err_set(e, -EIO, "%s", wrong) : 0;
}

/* Of the model, or of the draft model. */
static int sim_open(struct backend **out, const struct model *model,
                    const struct backend_options *o, struct err *e)
{
    const bool drafts = o->kv_dtype == KV_DTYPE_BF16;
    struct backend *b = calloc(1, sizeof(*b));
    const struct sim_backend_options sim = {
        .n_blocks = {cases[the_case].n_device, drafts ? 0 : cases[the_case].n_host},
        .offload = true,
        .block_len = o->block_len,
        .max_batch_tokens = o->max_batch_tokens,
        .max_seqs = o->max_seqs,
        .n_ids = 94, /* which are printable */
        .never_stop = true,
        .copy_steps = cases[the_case].copy_steps,
        .copy_fail_one_in = cases[the_case].copy_fail_one_in,
    };

    (void)model, (void)e;
    b->rng.state = (uint64_t)the_case;
    b->wake_fails_one_in = cases[the_case].wake_fails_one_in;
    b->info = (struct backend_info){.n_devices = 1,
                                    .tp_size = 1,
                                    .block_bytes = BLOCK_BYTES,
                                    .masks = true,
                                    .copies = true,
                                    .offloads = sim.n_blocks[TIER_HOST] > 0,
                                    .may_offload = sim.n_blocks[TIER_HOST] > 0};
    for (int t = TIER_DEVICE; t <= TIER_HOST; t++) {
        b->info.tiers[t].n_blocks = sim.n_blocks[t];
        b->info.tiers[t].bytes = (uint64_t)sim.n_blocks[t] * BLOCK_BYTES;
    }
    ck_assert_int_eq(sim_backend_new(&b->sim, &sim), 0);
    *out = b;
    return 0;
}

static void sim_info(const struct backend *b, struct backend_info *out)
{
    *out = b->info;
}

/* What the backend is not to be asked while it sleeps. */
static const char *check_awake(const struct backend *b, const struct batch *batch)
{
    if (b->asleep && batch->n_seqs > 0)
        return "a step has rows while the backend sleeps";
    for (int32_t i = 0; b->asleep && !b->keeps_blocks && i < batch->n_copies; i++)
        if (batch_copies(batch)[i].from_tier == TIER_DEVICE ||
            batch_copies(batch)[i].to_tier == TIER_DEVICE)
            return "a block is copied while the device has none";
    return NULL;
}

static int sim_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    const char *wrong = check_awake(b, batch);

    nap(b);
    b->n_in_flight++;
    return verdict(wrong ? wrong : sim_backend_submit(b->sim, batch), e);
}

static int sim_mask(struct backend *b, const uint32_t *const *masks, struct err *e)
{
    return verdict(sim_backend_mask(b->sim, masks), e);
}

static int sim_wait(struct backend *b, struct step_result *out, struct err *e)
{
    nap(b);
    b->n_in_flight--;
    return verdict(sim_backend_wait(b->sim, out), e);
}

static int sim_sleep(struct backend *b, bool keep_blocks, struct err *e)
{
    nap(b);
    if (b->n_in_flight > 0)
        return verdict("it is to sleep with a step in flight", e);
    if (!keep_blocks)
        sim_backend_empty_device(b->sim);
    b->asleep = true;
    b->keeps_blocks = keep_blocks;
    return 0;
}

static int sim_wake(struct backend *b, struct err *e)
{
    nap(b);
    if (b->wake_fails_one_in && rng_one_in(&b->rng, b->wake_fails_one_in))
        return err_set(e, -ENOMEM, "planted");
    b->asleep = false;
    return 0;
}

static void sim_close(struct backend *b)
{
    if (b)
        sim_backend_free(b->sim);
    free(b);
}

/* ---- requests, each with one right answer */

enum kind { PLAIN, SAMPLED, PENALIZED, STOPPED, MASKED, N_KINDS };

struct choice {
    int32_t ids[MAX_TOKENS];
    size_t n;
    enum core_reason reason;
};

struct asked {
    bool is_query, ended;
    int prompt;
    enum kind kind;
    int32_t n;
    struct choice choices[MAX_CHOICES];
};

static int32_t prompts[N_PROMPTS][MAX_PROMPT];
static const size_t lengths[N_PROMPTS] = {5,  15,  16,  17,         33,  48,
                                          70, 130, 200, MAX_PROMPT, 230, 240};
static struct asked right[N_PROMPTS][N_KINDS];

static struct asked *asked; /* by id */
static uint64_t n_asked;
static int n_open; /* of these */

/* The last ones begin alike. */
static void make_prompts(void)
{
    struct rng rng = {1};

    for (int i = 0; i < N_PROMPTS; i++)
        for (size_t k = 0; k < lengths[i]; k++)
            prompts[i][k] =
                i >= N_PROMPTS - 2 && k < 150 ? prompts[i - 1][k] : rng_range(&rng, 0, 1900);
}

static struct engine_request request_of(int prompt, enum kind kind)
{
    struct engine_request r = request(0, "");

    r.input = ENGINE_PROMPT_IDS;
    r.prompt_ids = prompts[prompt];
    r.n_prompt_ids = lengths[prompt];
    r.max_tokens = MAX_TOKENS;
    r.ignore_eos = kind != MASKED;
    if (kind == SAMPLED) {
        r.sampling.temperature = 1;
        r.sampling.n_logprobs = 2;
        r.n = MAX_CHOICES;
    } else if (kind == PENALIZED) {
        r.sampling.repetition_penalty = 1.2f;
    } else if (kind == STOPPED) {
        r.stops[r.n_stops++] = (struct text){"a", 1};
    } else if (kind == MASKED) {
        static const char regex[] = "(ab|cd|xyz[0-9]){3,9}";

        r.format = (struct format_source){.kind = FORMAT_REGEX, .text = {regex, strlen(regex)}};
    }
    return r;
}

static uint64_t begin(struct engine *g, struct engine_request *r, int prompt, enum kind kind)
{
    r->id = ++n_asked;
    asked[r->id] = (struct asked){.is_query = r->kind == ENGINE_INSPECT,
                                  .prompt = prompt,
                                  .kind = kind,
                                  .n = r->n};
    n_open++;
    generate(g, r);
    return r->id;
}

static void add_tokens(struct asked *a, const struct engine_event *ev)
{
    struct choice *c = &a->choices[ev->choice];

    ck_assert_uint_le(c->n + ev->n_ids, MAX_TOKENS);
    memcpy(c->ids + c->n, ev->ids, ev->n_ids * sizeof(*ev->ids));
    c->n += ev->n_ids;
    if (ev->reason != CORE_REASON_NONE)
        c->reason = ev->reason;
}

/* As alone, or a beginning of that. */
static void check_answer(const struct asked *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        const struct choice *c = &a->choices[i], *whole = &right[a->prompt][a->kind].choices[i];
        const bool cut = c->reason == CORE_REASON_CANCELLED || c->reason == CORE_REASON_DEADLINE;

        ck_assert_int_ne(c->reason, CORE_REASON_NONE);
        if (whole->n == 0) /* this is it */
            continue;
        ck_assert(cut ? c->n <= whole->n : c->n == whole->n && c->reason == whole->reason);
        ck_assert_mem_eq(c->ids, whole->ids, c->n * sizeof(*c->ids));
    }
}

static void check_error(const struct asked *a, const struct engine_event *ev)
{
    const bool of_queries = ev->error == ENGINE_E_CANCELLED || ev->error == ENGINE_E_INVALID;

    ck_assert_msg(ev->error == ENGINE_E_UNAVAILABLE || (a->is_query && of_queries) ||
                      (ev->error == ENGINE_E_TOO_LONG && strstr(ev->message->text, "KV cache")),
                  "%s", ev->message->text);
}

static void handle(struct engine_event *list)
{
    for (const struct engine_event *ev = list; ev; ev = ev->next) {
        struct asked *a = &asked[ev->request];

        ck_assert(!a->ended);
        if (ev->type == ENGINE_DELTA)
            add_tokens(a, ev);
        if (ev->type == ENGINE_DELTA || ev->type == ENGINE_TRACE)
            continue;
        if (ev->type == ENGINE_ERROR)
            check_error(a, ev);
        else if (!a->is_query)
            check_answer(a);
        a->ended = true;
        n_open--;
    }
    engine_events_free(list);
}

static void ask_alone(struct engine *g)
{
    for (int i = 0; i < N_PROMPTS; i++)
        for (enum kind k = PLAIN; k < N_KINDS; k++) {
            struct engine_request r = request_of(i, k);
            const uint64_t id = begin(g, &r, i, k);

            while (n_open > 0)
                handle(take(g));
            right[i][k] = asked[id];
        }
}

/* ---- the storm */

static void ask_answer(struct engine *g, struct rng *rng)
{
    const int prompt = rng_range(rng, 0, N_PROMPTS - 1);
    const enum kind kind = (enum kind)rng_range(rng, 0, N_KINDS - 1);
    struct engine_request r = request_of(prompt, kind);

    r.client += rng_below(rng, 3);
    r.stream = !rng_one_in(rng, 5);
    if (rng_one_in(rng, 8))
        r.deadline_us = clock_us() + (uint64_t)rng_range(rng, 0, 5000);
    if (rng_one_in(rng, 8))
        r.priority = rng_one_in(rng, 2) ? CORE_LOW : CORE_HIGH;
    if (rng_one_in(rng, 8))
        r.cache_salt = (struct text){"salt", 4};
    begin(g, &r, prompt, kind);
}

static void ask_query(struct engine *g, struct rng *rng)
{
    static const enum inspect_kind kinds[] = {INSPECT_SLEEP,          INSPECT_SLEEP,
                                              INSPECT_SLEEP,          INSPECT_WAKE,
                                              INSPECT_CACHE_PIN,      INSPECT_CACHE_PIN,
                                              INSPECT_CACHE_CLEAR,    INSPECT_TRACE,
                                              INSPECT_REQUESTS,       INSPECT_BLOCKS,
                                              INSPECT_CACHE,          INSPECT_EXPLAIN_PROMPT,
                                              INSPECT_EXPLAIN_REQUEST};
    const int prompt = rng_range(rng, 0, N_PROMPTS - 1);
    struct engine_request r = request_of(prompt, PLAIN);

    r.kind = ENGINE_INSPECT;
    r.query = (struct inspect_query){.kind = kinds[rng_below(rng, N(kinds))],
                                     .viewer = r.client,
                                     .client = r.client + rng_below(rng, 2),
                                     .all = true,
                                     .limit = 50,
                                     .map = true,
                                     .request = n_asked - rng_below(rng, 6),
                                     .unpin = rng_one_in(rng, 2),
                                     .clear_all = rng_one_in(rng, 2),
                                     .level = rng_one_in(rng, 2) ? SLEEP_ALL : SLEEP_WEIGHTS,
                                     .duration_ms = (uint32_t)rng_range(rng, 1, 20)};
    begin(g, &r, prompt, PLAIN);
}

/* Times of many requests and of few, between which the engine is idle, alternate. */
static void storm(struct engine *g, struct rng *rng)
{
    for (int i = 0; i < N_ROUNDS; i++) {
        const bool calm = i / 200 % 2;
        const int what = rng_range(rng, 0, 9);

        while (n_open > (calm ? 2 : 24))
            handle(take(g));
        if (calm || rng_one_in(rng, 4))
            handle(engine_take(g));
        if (calm && rng_one_in(rng, 4))
            usleep((useconds_t)rng_range(rng, 0, 2000));
        if (what < 4)
            ask_answer(g, rng);
        else if (what < 6)
            engine_cancel(g, n_asked - rng_below(rng, 12));
        else
            ask_query(g, rng);
    }
}

static void set_up(void)
{
    set_up_engine();
    make_prompts();
    ops = (struct backend_ops){.abi = BACKEND_ABI,
                               .name = "sim",
                               .open = sim_open,
                               .info = sim_info,
                               .submit = sim_submit,
                               .mask = sim_mask,
                               .wait = sim_wait,
                               .sleep = sim_sleep,
                               .wake = sim_wake,
                               .close = sim_close};
    asked = calloc(N_PROMPTS * N_KINDS + N_ROUNDS + 1, sizeof(*asked));
    ck_assert_ptr_nonnull(asked);
}

static void tear_down(void)
{
    end_engine();
    free(asked);
}

/* Of every second engine nothing is left when it is freed; the others are freed in the midst. */
TEST(all_answers_are_right, .n = N(cases))
{
    struct rng rng = {(uint64_t)_i};
    struct engine *g;

    the_case = _i;
    options.backend_options.max_seqs = cases[_i].max_seqs;
    options.backend_options.max_batch_tokens = cases[_i].max_batch_tokens;
    options.backend_options.max_seq_len = 1024;
    options.speculate = cases[_i].speculate;
    options.draft_folder = cases[_i].draft_model ? TEST_MODEL_DIR : NULL;
    options.event_bytes = _i % 3 == 1 ? 4000 : 0;
    g = start();
    ask_alone(g);
    storm(g, &rng);
    while (_i % 2 == 0 && n_open > 0)
        handle(take(g));
}

RUN_TESTS("engine_storm", set_up, tear_down)
