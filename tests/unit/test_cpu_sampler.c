/* test_cpu_sampler.c - each step of engine/sampling.h against a plain sampler that sorts everything
 * and evaluates every draw. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_sampler.h"
#include "engine/util/err.h"
#include "engine/philox.h"
#include "tests/tools/make_batch.h"
#include "tests/unit/run_suite.h"

enum { MAX_VOCAB = 151936 };

static struct sampler *sampler;
static struct err e;
static int vocab;
static float logits[MAX_VOCAB];

static void open_sampler(int n)
{
    vocab = n;
    ck_assert_msg(sampler_new(&sampler, cpu_ops_best(), n, 4, 1, &e) == 0, "%s", e.text);
}

static void close_sampler(void)
{
    sampler_free(sampler);
    sampler = NULL;
}

static struct sampling neutral(float temperature)
{
    return (struct sampling){.temperature = temperature,
                             .top_p = 1.0f,
                             .repetition_penalty = 1.0f,
                             .n_logprobs = -1};
}

static void load(int state, const struct sampling *p, const int32_t *tokens, int n_prompt, int n)
{
    const struct batch_part_update u = {
        .state = state, .n_prompt = n_prompt, .n_history = n, .history = tokens, .sampling = p};
    struct batch *b = make_batch(&(struct batch_parts){.step = 1, .n_updates = 1, .updates = &u});

    sampler_set(sampler, b, batch_updates(b));
    free(b);
}

static struct sample run_masked(int state, uint32_t counter, bool ban, const uint32_t *mask)
{
    static int32_t top_ids[SAMPLING_MAX_LOGPROBS];
    static float top_logprobs[SAMPLING_MAX_LOGPROBS];
    struct sample s = {.top_ids = top_ids, .top_logprobs = top_logprobs};

    sampler_run(sampler, 0, logits,
                &(struct batch_row){.state = state, .counter = counter, .ban_stops = ban}, mask,
                &s);
    return s;
}

static struct sample run(int state, uint32_t counter, bool ban)
{
    return run_masked(state, counter, ban, NULL);
}

/* Logits as a model's are: a wide bell with a few that stand out. */
static void make_logits(uint32_t seed, float width)
{
    srand(seed);
    for (int i = 0; i < vocab; i++) {
        double sum = 0;

        for (int j = 0; j < 6; j++)
            sum += (double)rand() / RAND_MAX - 0.5;
        logits[i] = (float)sum * width + (rand() % 500 == 0 ? width : 0.0f);
    }
}

static int by_logit(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;

    if (logits[i] != logits[j])
        return logits[i] < logits[j] ? 1 : -1;
    return i < j ? -1 : i > j;
}

/* What sampling.h says, word for word, without penalties and bias. *edge is set where rounding
 * decides which ids are in. */
static int32_t plain_choice(const struct sampling *p, uint32_t counter, bool *edge)
{
    int32_t *order = calloc((size_t)vocab, sizeof(*order)), best = -1;
    int n = vocab, kept;
    double total = 0.0, mass = 0.0, best_value = -INFINITY;

    for (int i = 0; i < vocab; i++)
        order[i] = i;
    qsort(order, (size_t)vocab, sizeof(*order), by_logit);
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    for (int i = 0; i < n; i++)
        total += exp((double)(logits[order[i]] - logits[order[0]]) / (double)p->temperature);
    *edge = false;
    for (kept = 0; kept < n && (kept == 0 || mass < (double)p->top_p * total); kept++) {
        mass += exp((double)(logits[order[kept]] - logits[order[0]]) / (double)p->temperature);
        *edge |= p->top_p < 1.0f && fabs(mass / total - (double)p->top_p) < 1e-6;
    }
    for (int i = 0; i < (p->top_p < 1.0f ? kept : n); i++) {
        const double x = (double)(logits[order[i]] - logits[order[0]]) / (double)p->temperature;
        const struct philox4 words = philox_quad(p->seed, counter, (uint32_t)order[i] / 4);
        const double w = (double)philox_w(words.v[order[i] % 4]), value = x - log(-log1p(-w));

        if (exp(x) < (double)p->min_p)
            continue;
        *edge |= fabs(value - best_value) < 1e-5;
        if (value > best_value) {
            best_value = value;
            best = order[i];
        }
    }
    free(order);
    return best;
}

/* The words of the paper's authors' test vectors. */
TEST(philox_known_answers)
{
    const struct philox4 zero = philox4x32_10((struct philox4){{0, 0, 0, 0}}, 0, 0);
    const struct philox4 ones = philox4x32_10((struct philox4){{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u);
    const struct philox4 pi =
        philox4x32_10((struct philox4){{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
                      0xa4093822, 0x299f31d0);

    ck_assert(zero.v[0] == 0x6627e8d5 && zero.v[1] == 0xe169c58d && zero.v[2] == 0xbc57ac4c &&
              zero.v[3] == 0x9b00dbd8);
    ck_assert(ones.v[0] == 0x408f276d && ones.v[1] == 0x41c83b0e && ones.v[2] == 0xa20bc7c6 &&
              ones.v[3] == 0x6d5451fd);
    ck_assert(pi.v[0] == 0xd16cfe09 && pi.v[1] == 0x94fdcceb && pi.v[2] == 0x5001e420 &&
              pi.v[3] == 0x24126ea1);
    ck_assert(philox_w(0) > 0.0f && philox_w(~0u) < 1.0f);
}

/* Every filter and their combinations choose what the plain sampler chooses. */
TEST(filters_agree_with_plain, .n = 2)
{
    static const struct {
        int top_k;
        float top_p, min_p, temperature, width;
    } kinds[] = {
        {0, 1, 0, 1, 3},        {20, 0.95f, 0, 0.6f, 3},   {1, 1, 0, 1, 3},
        {0, 0.9f, 0, 1, 3},     {0, 0.5f, 0, 2, 1},        {0, 1, 0.05f, 1, 3},
        {50, 1, 0.1f, 0.7f, 5}, {0, 0.99f, 0.01f, 1, 8},   {1000, 0.3f, 0, 1.5f, 0.1f},
        {3000, 1, 0, 1, 1},     {0, 0.001f, 0, 1, 1},      {0, 0.9999f, 0, 1, 0.01f},
        {0, 1, 1, 1, 3},        {1 << 30, 1, 0, 0.01f, 1}, {0, 1, 0, 5, 1},
        {0, 1, 0, 1e-30f, 1},   {5, 0.95f, 0, 1e-42f, 3},
    };
    int n = 0;

    open_sampler(_i == 0 ? 2048 : 1003);
    for (size_t kind = 0; kind < N(kinds); kind++)
        for (uint32_t i = 0; i < 100; i++) {
            struct sampling p = neutral(kinds[kind].temperature);
            int32_t want;
            bool edge;

            p.top_k = kinds[kind].top_k;
            p.top_p = kinds[kind].top_p;
            p.min_p = kinds[kind].min_p;
            p.seed = i * 0x123456789abcdefu;
            make_logits(i, kinds[kind].width);
            load(0, &p, NULL, 0, 0);
            want = plain_choice(&p, i, &edge);
            if (edge)
                continue;
            ck_assert_msg(run(0, i, false).id == want, "kind %d, round %d", (int)kind, (int)i);
            n++;
        }
    ck_assert_int_ge(n, 1600);
}

/* A vocabulary of Qwen's size, with filters and without. */
TEST(large_vocabulary)
{
    open_sampler(MAX_VOCAB);
    for (uint32_t i = 0; i < 8; i++) {
        struct sampling p = neutral(i % 2 ? 1.0f : 3.0f);
        int32_t want;
        bool edge;

        p.seed = i;
        p.top_p = i & 2 ? 0.98f : 1.0f;
        p.top_k = i & 4 ? 40000 : 0;
        make_logits(i, 3.0f);
        load(1, &p, NULL, 0, 0);
        want = plain_choice(&p, 5, &edge);
        ck_assert(edge || run(1, 5, false).id == want);
    }
}

/* 100,000 draws fall as softmax says (chi-square, 0.1 % bound), and so they do within a nucleus. */
TEST(draws_follow_softmax, .n = 2)
{
    enum { N = 100000, IDS = 40 };
    const float top_p = _i ? 0.8f : 1.0f;
    struct sampling p = neutral(0.8f);
    double weight[IDS], total = 0.0, mass = 0.0, chi = 0.0;
    int count[IDS] = {0}, kept;

    open_sampler(IDS);
    for (int i = 0; i < IDS; i++) /* falling, so that the nucleus is a prefix */
        logits[i] = -0.1f * (float)i;
    for (int i = 0; i < IDS; i++)
        total += weight[i] = exp((double)logits[i] / 0.8);
    for (kept = 0; kept < IDS && mass < (double)top_p * total; kept++)
        mass += weight[kept];
    p.top_p = top_p;
    p.seed = 42;
    load(0, &p, NULL, 0, 0);
    for (uint32_t i = 0; i < N; i++)
        count[run(0, i, false).id]++;
    for (int i = 0; i < IDS; i++) {
        const double expected = i < kept ? N * weight[i] / mass : 0.0;

        if (i >= kept)
            ck_assert_int_eq(count[i], 0);
        else
            chi += (count[i] - expected) * (count[i] - expected) / expected;
    }
    /* mean kept - 1, deviation sqrt(2 (kept - 1)); 3.5 of them */
    ck_assert_msg(chi < kept - 1 + 3.5 * sqrt(2.0 * (kept - 1)), "chi-square %g of %d", chi, kept);
    ck_assert_msg(chi > (kept - 1) * 0.3, "chi-square %g of %d: too even", chi, kept);
}

/* A seed gives its ids again, another seed or position others. */
TEST(seed_reproduces)
{
    struct sampling p = neutral(1.0f), other = p;
    int same_seed = 0, other_seed = 0, other_position = 0;

    open_sampler(2048);
    make_logits(1, 1.0f);
    p.seed = 7;
    other.seed = (uint64_t)7 << 32;
    load(0, &p, NULL, 0, 0);
    load(1, &other, NULL, 0, 0);
    load(2, &p, NULL, 0, 0);
    for (uint32_t i = 0; i < 200; i++) {
        const int32_t id = run(0, i, false).id;

        same_seed += run(2, i, false).id == id;
        other_seed += run(1, i, false).id == id;
        other_position += run(0, i + 1000, false).id == id;
    }
    ck_assert_int_eq(same_seed, 200);
    ck_assert_int_lt(other_seed, 10);
    ck_assert_int_lt(other_position, 10);
}

/* Greedy takes the largest, the lowest id on a tie; top_k keeps the lower ids of a tie; -0 is 0. */
TEST(ties_go_to_lower_ids)
{
    struct sampling greedy = neutral(0.0f), two = neutral(1.0f);
    int seen[100] = {0};

    open_sampler(100);
    for (int i = 0; i < 100; i++)
        logits[i] = i % 10 == 3 ? 0.0f : -1.0f;
    logits[13] = -0.0f;
    logits[3] = -0.0f;
    load(0, &greedy, NULL, 0, 0);
    ck_assert_int_eq(run(0, 0, false).id, 3);
    two.top_k = 2;
    load(1, &two, NULL, 0, 0);
    for (uint32_t i = 0; i < 100; i++)
        seen[run(1, i, false).id]++;
    ck_assert(seen[3] > 20 && seen[13] > 20 && seen[3] + seen[13] == 100);
    for (int i = 0; i < 100; i++) /* all alike: the nucleus is the lowest half */
        logits[i] = 1.5f;
    two = neutral(1.0f);
    two.top_p = 0.495f;
    load(1, &two, NULL, 0, 0);
    for (uint32_t i = 0; i < 500; i++)
        ck_assert_int_lt(run(1, i, false).id, 50);
}

/* Penalties: repetition over prompt and output, presence and frequency over the output only, the
 * output counted by the sampler itself. */
TEST(penalties)
{
    static const int32_t tokens[] = {5, 5, 6, 7, 7, 7};
    struct sampling p = neutral(0.0f);

    open_sampler(100);
    for (int i = 0; i < 100; i++)
        logits[i] = -50.0f;
    logits[5] = 10.0f; /* prompt; halved */
    logits[7] = 9.0f;  /* output, three times */
    logits[8] = 5.1f;
    p.repetition_penalty = 2.0f;
    load(0, &p, tokens, 3, 6);
    ck_assert_int_eq(run(0, 0, false).id, 8); /* 5.1 over 5 and 4.5; 8 is now seen: 2.55 */
    ck_assert_int_eq(run(0, 1, false).id, 5);
    logits[5] = logits[7] = logits[8] = -50.0f;
    logits[6] = -3.0f; /* prompt: doubled to -6 */
    logits[9] = -5.9f;
    ck_assert_int_eq(run(0, 2, false).id, 9);

    p = neutral(0.0f);
    p.presence_penalty = 1.0f;
    p.frequency_penalty = 0.5f;
    logits[5] = 7.4f;  /* prompt only: untouched */
    logits[7] = 10.0f; /* 10 - 1 - 3 * 0.5 = 7.5 */
    load(0, &p, tokens, 3, 6);
    ck_assert_int_eq(run(0, 0, false).id, 7); /* now four times: 7 */
    ck_assert_int_eq(run(0, 1, false).id, 5); /* 7.4 - 1.5 = 5.9 */
    ck_assert_int_eq(run(0, 2, false).id, 7); /* 6.5 */
    load(0, &p, tokens, 3, 6);                /* begins again after preemption */
    ck_assert_int_eq(run(0, 3, false).id, 7);
}

/* Bias is added, repeated entries too; a bias without bounds neither breaks nor escapes. */
TEST(bias)
{
    struct logit_bias entries[] = {{3, 2.0f}, {3, 2.0f}, {4, 3.5f}, {0, -INFINITY}};
    struct sampling p = neutral(0.0f);

    open_sampler(50);
    memset(logits, 0, sizeof(*logits) * 50);
    logits[0] = 3.0f;
    p.bias = entries;
    p.n_bias = 4;
    load(0, &p, NULL, 0, 0);
    ck_assert_int_eq(run(0, 0, false).id, 3);
    p.n_bias = 1;
    load(0, &p, NULL, 0, 0);
    ck_assert_int_eq(run(0, 0, false).id, 0);
    p.temperature = 1.0f;
    p.n_bias = 4;
    entries[2].bias = INFINITY;
    load(0, &p, NULL, 0, 0);
    for (uint32_t i = 0; i < 20; i++)
        ck_assert_int_eq(run(0, i, false).id, 4);
    entries[2].bias = NAN;
    load(0, &p, NULL, 0, 0);
    for (uint32_t i = 0; i < 200; i++) {
        const int32_t id = run(0, i, false).id;

        ck_assert(id > 0 && id < 50 && id != 4);
    }
}

/* Stop ids are banned exactly while the row says so, also when they are all there is to choose. */
TEST(min_tokens_bans_stops, .n = 2)
{
    static const int32_t stops[] = {9, 11, 5000, -3}; /* two lie outside the vocabulary */
    struct sampling p = neutral(_i ? 0.5f : 0.0f);

    open_sampler(64);
    memset(logits, 0, sizeof(*logits) * 64);
    logits[9] = logits[11] = 30.0f;
    logits[20] = 10.0f;
    p.stop_ids = stops;
    p.n_stop_ids = 4;
    load(0, &p, NULL, 0, 0);
    for (uint32_t i = 0; i < 50; i++) {
        const int32_t id = run(0, i, false).id;

        ck_assert_int_eq(run(0, i, true).id, 20);
        ck_assert(id == 9 || (_i && id == 11));
    }
}

/* Only ids of the mask are sampled, whatever the way; with all ids in it nothing changes. */
TEST(masks, .n = 5)
{
    enum { N = 1003 };
    uint32_t all[(N + 31) / 32], some[(N + 31) / 32] = {0};
    struct sampling p = neutral(1.0f);

    open_sampler(N);
    make_logits(5, 3.0f);
    memset(all, 0xff, sizeof(all));
    for (int id = 7; id < N; id += 166)
        some[id / 32] |= 1u << id % 32;
    p.temperature = _i == 0 ? 0.0f : 1.0f;
    p.top_k = _i == 2 ? 20 : 0;
    p.top_p = _i == 3 ? 0.9f : 1.0f;
    p.presence_penalty = _i == 4 ? 1.0f : 0.0f;
    load(0, &p, NULL, 0, 0);
    load(1, &p, NULL, 0, 0);
    load(2, &p, NULL, 0, 0);
    for (uint32_t i = 0; i < 100; i++) {
        ck_assert_int_eq(run_masked(0, i, false, some).id % 166, 7);
        ck_assert_int_eq(run_masked(1, i, false, all).id, run(2, i, false).id);
    }
}

/* Logprobs come from the raw row, whatever penalties, bias and temperature make of it. */
TEST(logprobs_are_raw)
{
    struct logit_bias entry = {77, 100.0f};
    struct sampling p = neutral(0.3f);
    struct sample s;
    double sum = 0.0;
    int32_t order[1003];

    open_sampler(1003);
    make_logits(3, 4.0f);
    logits[500] = logits[501] = 30.0f; /* a tie for the best */
    for (int i = 0; i < vocab; i++) {
        sum += exp((double)logits[i]);
        order[i] = i;
    }
    qsort(order, 1003, sizeof(*order), by_logit);
    p.bias = &entry;
    p.n_bias = 1;
    p.n_logprobs = SAMPLING_MAX_LOGPROBS;
    load(0, &p, NULL, 0, 0);
    s = run(0, 0, false);
    ck_assert_int_eq(s.id, 77);
    ck_assert_double_eq_tol((double)s.logprob, (double)logits[77] - log(sum), 1e-5);
    for (int k = 0; k < SAMPLING_MAX_LOGPROBS; k++) {
        ck_assert_int_eq(s.top_ids[k], order[k]);
        ck_assert_double_eq_tol((double)s.top_logprobs[k], (double)logits[order[k]] - log(sum),
                                1e-5);
    }
    p.n_logprobs = -1;
    load(0, &p, NULL, 0, 0);
    ck_assert(run(0, 0, false).logprob == 0.0f);
}

/* NaN or Inf anywhere in the row is told, and not counted; the next row is sampled again. */
TEST(numerics)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    struct sampling p = neutral(1.0f);

    open_sampler(1003);
    load(0, &p, NULL, 0, 0);
    for (int i = 0; i < 3; i++)
        for (int at = 0; at < 1003; at += 167) {
            make_logits(1, 1.0f);
            logits[at] = wrong[i];
            ck_assert_int_eq(run(0, 0, false).id, BATCH_NUMERICS);
            logits[at] = 3.0e38f;
            ck_assert_int_eq(run(0, 0, false).id, at);
        }
    logits[1002] = NAN; /* behind the last whole vector */
    ck_assert_int_eq(run(0, 0, false).id, BATCH_NUMERICS);
}

RUN_TESTS("cpu_sampler", NULL, close_sampler)
