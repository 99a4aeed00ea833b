/* test_sampler.c - the sampler's kernels against a plain twin that sorts: the same ids for the same
 * seed, whatever filters, penalties and bias are asked for; log probabilities; broken rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/philox.h"
#include "tests/gpu/sampler_rig.h"
#include "tests/unit/run_suite.h"

enum { MAX_ROWS = 32 };

/* The id of a row, and how far ahead of the second it was. */
static int32_t twin(const struct rig *g, int row, double *margin)
{
    double best = -INFINITY, second = -INFINITY;
    int n;
    struct candidate *c = rig_candidates(g, row, &n);
    int32_t id = c[0].id;

    for (int i = 0; i < n && g->sampling[row].temperature > 0.0f; i++) {
        const struct philox4 words =
            philox_quad(g->sampling[row].seed, g->rows[row].counter, (uint32_t)c[i].id / 4);
        const double w = (double)philox_w(words.v[c[i].id % 4]), score = c[i].x - log(-log1p(-w));

        if (c[i].weight == 0.0)
            continue;
        second = fmax(second, fmin(best, score));
        if (score > best) {
            best = score;
            id = c[i].id;
        }
    }
    *margin = best - second;
    free(c);
    return id;
}

/* Log probabilities of the row's id and of the best are those of the raw row; equal logits are in
 * the order of their ids. */
static void check_logprobs(const struct rig *g, int row)
{
    const int vocab = g->m.vocab_size, wanted = g->sampling[row].n_logprobs;
    const int n = wanted < vocab ? wanted : vocab;
    const int32_t *ids = g->results.host, *top = ids + 2 * g->n_rows + row * SAMPLING_MAX_LOGPROBS;
    const float *logprobs = (const float *)(ids + g->n_rows);
    const float *top_logprobs = (const float *)top + g->n_rows * SAMPLING_MAX_LOGPROBS;
    const float *z = rig_logits(g, row);
    double sum = 0.0;

    for (int id = 0; id < vocab; id++)
        sum += exp((double)z[id]);
    ck_assert_int_lt(ids[row], vocab);
    ck_assert_int_ge(ids[row], 0);
    ck_assert_double_eq_tol((double)logprobs[row], (double)z[ids[row]] - log(sum), 1e-4);
    for (int i = 0; i < n; i++) {
        const int32_t id = top[i];
        int before = 0;

        ck_assert(id >= 0 && id < vocab);
        for (int other = 0; other < vocab; other++)
            before += z[other] > z[id] || (z[other] == z[id] && other < id);
        ck_assert_int_eq(before, i);
        ck_assert_double_eq_tol((double)top_logprobs[i], (double)z[id] - log(sum), 1e-4);
    }
}

/* The ids of the first n rows are the twin's; where two scores are equal within float rounding it
 * may be either. Log probabilities are right, where a row wants them. */
static void check_ranks(struct rig *g, int n)
{
    const int32_t *ids = rig_run(g);
    int compared = 0;

    for (int i = 0; i < n; i++) {
        double margin;
        const int32_t expected = twin(g, i, &margin);

        if (g->sampling[i].n_logprobs >= 0)
            check_logprobs(g, i);
        if (margin < 1e-5 && g->sampling[i].temperature > 0.0f)
            continue;
        ck_assert_msg(ids[i] == expected, "row %d of %d ranks: %d for %d, margin %g", i,
                      g->m.n_ranks, ids[i], expected, margin);
        compared++;
    }
    ck_assert_int_ge(compared, n - 1);
}

/* Whatever the number of ranks that have the vocabulary. */
static void check_rows(struct rig *g, int n)
{
    for (int n_ranks = 8; n_ranks > 0; n_ranks /= 2) {
        rig_divide(g, n_ranks);
        check_ranks(g, n);
    }
}

static void check_rig(struct rig *g)
{
    check_rows(g, g->n_rows);
}

static const int vocabs[] = {4, 2048, 151936};

/* Temperature 0 takes the largest, the lowest id of equal ones. */
TEST(greedy_takes_the_first_of_the_largest, .n = N(vocabs))
{
    struct rig g;

    rig_init(&g, vocabs[_i], 5, 1.0f);
    for (int j = 0; j < 5; j++)
        g.sampling[j].temperature = 0.0f;
    rig_logits(&g, 0)[vocabs[_i] - 1] = rig_logits(&g, 0)[vocabs[_i] - 2] = 50.0f;
    array_to_device(&g.logits);
    check_rig(&g);
    ck_assert_int_eq(((int32_t *)g.results.host)[0], vocabs[_i] - 2);
}
END_TEST

/* With nothing filtered a seed gives the twin's ids, at a temperature of 1e-5 the largest. */
TEST(draws_are_the_twins, .n = N(vocabs))
{
    struct rig g;

    rig_init(&g, vocabs[_i], MAX_ROWS, 3.0f);
    for (int j = 0; j < MAX_ROWS; j++)
        g.sampling[j].temperature = j == 0 ? 1e-5f : 0.2f * (float)j;
    check_rig(&g);
}
END_TEST

/* top_k, top_p and min_p leave what sorting leaves, alone and together. */
TEST(filters_leave_what_sorting_leaves, .n = N(vocabs))
{
    enum { ROWS = 2 * MAX_ROWS };
    static const int top_k[] = {0, 20, 1, 1500, 0, 65, 1024, 1025};
    struct rig g;

    rig_init(&g, vocabs[_i], ROWS, 3.0f);
    for (int j = 0; j < ROWS; j++) {
        struct sampling *s = &g.sampling[j];

        s->temperature = j % 5 == 4 ? 30.0f : 0.6f;
        s->top_k = top_k[j % 8];
        s->top_p = j % 3 == 0 ? 0.95f : j % 3 == 1 ? 1.0f : 0.5f;
        s->min_p = j % 7 == 3 ? 0.1f : 0.0f;
        s->n_logprobs = j % 6 == 1 ? SAMPLING_MAX_LOGPROBS : -1;
    }
    check_rig(&g);
}
END_TEST

/* Of more ids than a list has room for, top_p takes none that top_k has left out, though it shares
 * all digits looked at with the last that is kept: here that id would be drawn. */
TEST(top_p_stays_within_top_k)
{
    enum { VOCAB = 151936, KEPT = 3000, LAST = 7 };
    struct rig g;
    float *z;
    double most = -INFINITY;
    int best = 0;

    rig_init(&g, VOCAB, 1, 0.0f);
    g.sampling[0].temperature = 1e6f;
    g.sampling[0].top_k = KEPT;
    g.sampling[0].top_p = 0.9999f;
    for (int id = LAST + 1; id < VOCAB; id++) {
        const struct philox4 words =
            philox_quad(g.sampling[0].seed, g.rows[0].counter, (uint32_t)id / 4);
        const double noise = -log(-log1p(-(double)philox_w(words.v[id % 4])));

        if (noise > most) {
            most = noise;
            best = id;
        }
    }
    z = rig_logits(&g, 0);
    for (int id = 0, n = 0; id < VOCAB; id++)
        z[id] = id == LAST || id == best ? 1.0f : n < KEPT - 1 ? 2.0f + (float)n++ / KEPT : 0.0f;
    array_to_device(&g.logits);
    check_rig(&g);
}
END_TEST

/* Rows are cut into many parts, into few and not at all: a small top_k leaves the same each time,
 * alone and before the other filters. */
TEST(a_small_top_k_leaves_what_sorting_leaves)
{
    const int n_rows[] = {1, 9, 300}, top_k[] = {20, 1, 2, 63, 64, 65, 5, 40, 33};

    for (int i = 0; i < 3; i++) {
        for (int first = 0; first < (i ? 1 : 9); first++) {
            struct rig g;

            rig_init(&g, i == 2 ? 20000 : 151936, n_rows[i], 2.0f);
            for (int j = 0; j < n_rows[i]; j++) {
                struct sampling *s = &g.sampling[j];

                s->temperature = j % 2 ? 3.0f : 0.6f;
                s->top_k = top_k[(first + j) % 9];
                s->top_p = (first + j) % 3 == 0 ? 0.95f : (first + j) % 3 == 1 ? 1.0f : 0.6f;
                s->min_p = (first + j) % 4 == 3 ? 0.1f : 0.0f;
            }
            check_rows(&g, n_rows[i] < 18 ? n_rows[i] : 18);
        }
    }
}
END_TEST

/* One part of a row has all that top_k leaves, and far more that it does not. */
TEST(one_part_may_have_all_the_best)
{
    struct rig g;

    rig_init(&g, 151936, 4, 1.0f);
    for (int i = 0; i < 4; i++) {
        g.sampling[i].top_k = i < 2 ? 20 : 64;
        g.sampling[i].temperature = 5.0f;
        for (int j = 0; j < 300; j++)
            rig_logits(&g, i)[70000 + j] = 10.0f + (float)(j * 7 % 300) * 0.01f;
    }
    array_to_device(&g.logits);
    check_rig(&g);
}
END_TEST

/* The id of a row is the same whatever other rows there are: into how many parts a row is cut does
 * not matter. */
TEST(cuts_do_not_matter)
{
    const int n_rows[] = {300, 40, 7, 1};
    int32_t first[300];
    struct rig g;

    rig_init(&g, 151936, 300, 1.0f);
    for (int j = 0; j < 300; j++) {
        g.sampling[j].temperature = j % 5 == 4 ? 1e-5f : 0.6f;
        g.sampling[j].top_k = j % 3 == 1 ? 20 : 0;
        g.sampling[j].top_p = j % 3 == 1 ? 0.95f : 1.0f;
    }
    for (int i = 0; i < 4; i++) {
        g.n_rows = n_rows[i];
        for (int j = 0; j < g.n_rows; j++)
            g.updates[j].state = g.rows[j].state = g.n_rows - 1 - j;
        rig_run(&g);
        if (i == 0)
            memcpy(first, g.results.host, sizeof(first));
        ck_assert_mem_eq(first, g.results.host, (size_t)n_rows[i] * sizeof(*first));
    }
}
END_TEST

/* Where all ids but one are banned that one is taken; where all are, the row says so. */
TEST(banned_ids_are_never_taken)
{
    const int32_t stops[] = {3, 1, 0, 2}, *ids;
    struct rig g;

    rig_init(&g, 4, 8, 2.0f);
    for (int j = 0; j < 8; j++) {
        struct sampling *s = &g.sampling[j];

        s->temperature = j % 4 == 0 ? 0.0f : 0.7f;
        s->top_k = j % 4 == 2 ? 2 : 0;
        s->top_p = j % 4 == 3 ? 0.5f : 1.0f;
        s->n_stop_ids = j < 4 ? 3 : 4;
        s->stop_ids = stops;
        g.rows[j].ban_stops = 1;
    }
    ids = rig_run(&g);
    for (int j = 0; j < 8; j++)
        ck_assert_int_eq(ids[j], j < 4 ? 2 : BATCH_NUMERICS);
}
END_TEST

/* A masked row samples as a row whose other logits are far below, with every kind of sampling; a
 * mask is that of its own row; one that leaves no id ends the row. Rows in many parts, and in few.
 */
TEST(masks_leave_allowed_ids, .n = 2)
{
    enum { ROWS = 64 };
    const int vocab = _i ? 151936 : 2004, words = (vocab + 31) / 32;
    static const int top_k[] = {0, 12, 0, 500, 12, 500, 3000, 12, 0};
    const int32_t stops[] = {77};
    int32_t expected[ROWS];
    uint32_t *masks;
    struct rig g;

    rig_init(&g, vocab, ROWS, 3.0f);
    masks = g.masks.host;
    for (int i = 0; i < ROWS / 2 * words; i++) /* every fourth mask allows only a few ids */
        masks[i] = i / words % 4 || i % words % 1000 == 17 ? random_bits() & random_bits() : 0;
    for (int j = 0; j < ROWS; j++) {
        struct sampling *s = &g.sampling[j];

        s->temperature = j % 5 == 0 ? 0.0f : 0.8f;
        s->top_k = top_k[j % 9];
        s->top_p = j % 4 == 2 ? 0.8f : 1.0f;
        s->repetition_penalty = j % 7 == 3 ? 1.3f : 1.0f;
        s->n_logprobs = j % 6 == 4 ? 3 : -1;
    }
    for (int masked = 0; masked < 2; masked++) {
        for (int j = 0; j < ROWS; j += 2) /* every other row has a mask */
            g.rows[j].mask = masked ? ROWS / 2 - 1 - j / 2 : -1;
        for (int j = 0; j < ROWS; j += 2)
            for (int id = 0; id < vocab; id++)
                if (!(masks[(ROWS / 2 - 1 - j / 2) * words + id / 32] >> id % 32 & 1))
                    rig_logits(&g, j)[id] += masked ? 1e9f : -1e9f;
        g.n_masks = masked ? ROWS / 2 : 0;
        array_to_device(&g.logits);
        rig_run(&g);
        if (!masked)
            memcpy(expected, g.results.host, sizeof(expected));
    }
    ck_assert_mem_eq(expected, g.results.host, sizeof(expected));
    memset(masks, 0, g.masks.bytes);
    for (int j = 0; j < ROWS; j += 2) {
        masks[(ROWS / 2 - 1 - j / 2) * words + 2] = 1u << 13; /* 77, which is banned in some */
        g.sampling[j].n_stop_ids = 1;
        g.sampling[j].stop_ids = stops;
        g.rows[j].ban_stops = j % 4 == 0;
    }
    rig_run(&g);
    for (int j = 0; j < ROWS; j++)
        ck_assert_int_eq(((int32_t *)g.results.host)[j], j % 2        ? expected[j]
                                                         : j % 4 == 0 ? BATCH_NUMERICS
                                                                      : 77);
}
END_TEST

/* Between equal logits the lower id wins, though there is no room to list them all. */
TEST(ties_go_to_lower_ids)
{
    struct rig g;
    float *z;

    rig_init(&g, 151936, 7, 3.0f);
    z = g.logits.host;
    for (size_t i = 0; i < g.logits.bytes / 4; i++)
        z[i] = (float)(i % 2);
    array_to_device(&g.logits);
    g.sampling[0].top_k = 1000;
    g.sampling[1].top_p = 0.3f;
    g.sampling[2].top_k = 3000;
    g.sampling[2].top_p = 0.9f;
    g.sampling[3].top_k = 100000;
    g.sampling[4].top_k = 20;
    g.sampling[5].top_k = 64;
    g.sampling[5].top_p = 0.4f;
    g.sampling[6].top_k = 1;
    g.sampling[0].n_logprobs = g.sampling[5].n_logprobs = SAMPLING_MAX_LOGPROBS;
    check_rig(&g);
}
END_TEST

/* Penalties over prompt and output, bias (an id twice), banned ends: before all filters. */
TEST(penalties_and_bias_come_first, .n = 2)
{
    const struct logit_bias bias[] = {{3, 5.0f}, {17, -100.0f}, {3, 4.0f}, {1000, 8.5f}};
    const int32_t stops[] = {1000, 7};
    struct rig g;

    rig_init(&g, vocabs[1 + _i], MAX_ROWS, 2.0f);
    for (int j = 0; j < MAX_ROWS; j++) {
        struct sampling *s = &g.sampling[j];

        s->temperature = j % 4 == 0 ? 0.0f : 0.8f;
        s->repetition_penalty = j % 2 ? 1.3f : 1.0f;
        s->presence_penalty = j % 3 ? 0.0f : 1.5f;
        s->frequency_penalty = j % 5 ? 0.0f : -0.7f;
        s->top_k = j % 7 ? 0 : 40;
        s->n_bias = j % 2 ? 0 : 4;
        s->bias = bias;
        s->n_stop_ids = 2;
        s->stop_ids = stops;
        g.rows[j].ban_stops = j % 3 == 1;
    }
    check_rig(&g);
}
END_TEST

static const struct {
    float temperature, top_p, repetition_penalty;
    int top_k, n_logprobs;
} kinds[] = {
    {1.0f, 1.0f, 1.0f, 0, -1}, {0.0f, 1.0f, 1.0f, 0, -1},  {1.0f, 1.0f, 1.0f, 0, 3},
    {1.0f, 1.0f, 1.2f, 0, -1}, {1.0f, 0.9f, 1.0f, 20, -1}, {1.0f, 0.9f, 1.0f, 0, -1},
};

/* NaN or an infinity anywhere in a row fails that row alone, however it is sampled. */
TEST(broken_rows_are_told, .n = N(kinds))
{
    for (int i = 1; i < 3; i++) {
        const int vocab = vocabs[i];
        const int32_t *ids;
        struct rig g;

        rig_init(&g, vocab, 7, 3.0f);
        rig_logits(&g, 1)[vocab - 1] = NAN;
        rig_logits(&g, 2)[0] = INFINITY;
        rig_logits(&g, 3)[5] = -INFINITY;
        rig_logits(&g, 4)[vocab / 2 + 2] = -NAN;
        rig_logits(&g, 5)[vocab - 2] = -INFINITY;
        array_to_device(&g.logits);
        for (int j = 0; j < 7; j++)
            g.sampling[j] = (struct sampling){.temperature = kinds[_i].temperature,
                                              .top_p = kinds[_i].top_p,
                                              .repetition_penalty = kinds[_i].repetition_penalty,
                                              .top_k = kinds[_i].top_k,
                                              .n_logprobs = kinds[_i].n_logprobs};
        ids = rig_run(&g);
        for (int j = 0; j < 7; j++)
            ck_assert_int_eq(ids[j] == BATCH_NUMERICS, j >= 1 && j <= 5);
    }
}
END_TEST

/* Log probabilities are of the raw row, whatever the id is drawn from. */
TEST(logprobs_are_of_the_raw_row, .n = N(vocabs))
{
    const struct logit_bias bias[] = {{1, 30.0f}};
    struct rig g;

    rig_init(&g, vocabs[_i], 6, 3.0f);
    for (int j = 0; j < 6; j++) {
        g.sampling[j].n_logprobs = j * 4;
        g.sampling[j].n_bias = j % 2;
        g.sampling[j].bias = bias;
    }
    check_rig(&g);
}
END_TEST

RUN_TESTS_HERE("sampler", device_set_up, device_tear_down)
