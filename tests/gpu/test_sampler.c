/* test_sampler.c - the sampler's kernels against a plain twin that sorts: the same ids for the same
 * seed, whatever filters, penalties and bias are asked for; log probabilities; broken rows. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/philox.h"
#include "tests/gpu/sampler_rig.h"
#include "tests/unit/run_suite.h"

enum { MAX_ROWS = 32, HISTORY = RIG_HISTORY, PROMPT = RIG_PROMPT };

static struct device device;

static void setup(void)
{
    struct err e;

    ck_assert_msg(device_open(&device, 0, &e) == 0, "%s", e.text);
    random_seed(13);
}

static void teardown(void)
{
    device_close(&device);
}

struct candidate {
    float z;
    int32_t id;
    double weight;
};

static int in_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->z > y->z ? -1 : x->z < y->z ? 1 : x->id < y->id ? -1 : 1;
}

/* engine/sampling.h, word for word. Returns the id and how far ahead of the second it was. */
static int32_t twin(const struct rig *g, int row, double *margin)
{
    const struct sampling *s = &g->sampling[row];
    const int vocab = g->m.vocab_size;
    const float *z = (float *)g->logits.host + row * g->m.logits_stride;
    struct candidate *c = malloc((size_t)vocab * sizeof(*c));
    uint16_t *prompt = calloc((size_t)vocab, 2), *output = calloc((size_t)vocab, 2);
    double total = 0.0, sum = 0.0, best = -INFINITY, second = -INFINITY;
    int n = vocab, kept = 0;
    int32_t id = -1;

    for (int i = 0; sampling_needs_history(s) && i < HISTORY; i++)
        (i < PROMPT ? prompt : output)[g->history[i]]++;
    for (int i = 0; i < vocab; i++) {
        c[i] = (struct candidate){.z = z[i], .id = i};
        if (prompt[i] || output[i])
            c[i].z = c[i].z > 0 ? c[i].z / s->repetition_penalty : c[i].z * s->repetition_penalty;
        if (output[i])
            c[i].z -= s->presence_penalty + s->frequency_penalty * (float)output[i];
    }
    for (int i = 0; i < s->n_bias; i++)
        c[s->bias[i].id].z += s->bias[i].bias;
    for (int i = 0; g->rows[row].ban_stops && i < s->n_stop_ids; i++)
        c[s->stop_ids[i]].z = -INFINITY;
    qsort(c, (size_t)n, sizeof(*c), in_order);
    *margin = (double)(c[0].z - c[1].z);
    if (s->temperature > 0.0f) {
        n = s->top_k > 0 && s->top_k < n ? s->top_k : n;
        for (int i = 0; i < n; i++) {
            c[i].weight = exp((double)((c[i].z - c[0].z) * (1.0f / s->temperature)));
            total += c[i].weight;
        }
        while (kept < n && (s->top_p >= 1.0f || sum < (double)s->top_p * total))
            sum += c[kept++].weight;
        for (int i = 0; i < kept; i++) {
            const struct philox4 words =
                philox_quad(s->seed, g->rows[row].counter, (uint32_t)c[i].id / 4);
            const double w = (double)philox_w(words.v[c[i].id % 4]);
            const double x = (double)((c[i].z - c[0].z) * (1.0f / s->temperature));
            const double score = x - log(-log1p(-w));

            if (c[i].weight < (double)s->min_p)
                continue;
            if (score > best) {
                second = best;
                best = score;
                id = c[i].id;
            } else {
                second = fmax(second, score);
            }
        }
        *margin = best - second;
    } else {
        id = c[0].id;
    }
    free(c);
    free(prompt);
    free(output);
    return id;
}

/* The ids of the first n rows are the twin's; where two scores are equal within float rounding it
 * may be either. */
static void check_rows(struct rig *g, int n)
{
    int compared = 0;

    rig_run(g, &device);
    for (int i = 0; i < n; i++) {
        double margin;
        const int32_t id = ((int32_t *)g->results.host)[i], expected = twin(g, i, &margin);

        if (margin < 1e-5 && g->sampling[i].temperature > 0.0f)
            continue;
        ck_assert_msg(id == expected, "row %d: %d for %d, margin %g", i, id, expected, margin);
        compared++;
    }
    ck_assert_int_ge(compared, n - 1);
}

static void check_rig(struct rig *g)
{
    check_rows(g, g->n_rows);
}

static const int vocabs[] = {4, 2048, 151936};

/* Temperature 0 takes the largest, the lowest id of equal ones. */
START_TEST(greedy_takes_the_first_of_the_largest)
{
    for (int i = 0; i < 3; i++) {
        struct rig g;
        float *z;

        rig_init(&g, vocabs[i], 5, 1.0f);
        z = g.logits.host;
        for (int j = 0; j < 5; j++)
            g.sampling[j].temperature = 0.0f;
        z[vocabs[i] - 1] = z[vocabs[i] - 2] = 50.0f;
        array_to_device(&g.logits);
        check_rig(&g);
        ck_assert_int_eq(((int32_t *)g.results.host)[0], vocabs[i] - 2);
        rig_free(&g);
    }
}
END_TEST

/* With nothing filtered a seed gives the twin's ids, at a temperature of 1e-5 the largest. */
START_TEST(draws_are_the_twins)
{
    for (int i = 0; i < 3; i++) {
        struct rig g;

        rig_init(&g, vocabs[i], MAX_ROWS, 3.0f);
        for (int j = 0; j < MAX_ROWS; j++)
            g.sampling[j].temperature = j == 0 ? 1e-5f : 0.2f * (float)j;
        check_rig(&g);
        rig_free(&g);
    }
}
END_TEST

/* top_k, top_p and min_p leave what sorting leaves, alone and together. */
START_TEST(filters_leave_what_sorting_leaves)
{
    for (int i = 0; i < 3; i++) {
        struct rig g;

        rig_init(&g, vocabs[i], MAX_ROWS, 3.0f);
        for (int j = 0; j < MAX_ROWS; j++) {
            struct sampling *s = &g.sampling[j];

            s->temperature = j % 5 == 4 ? 30.0f : 0.6f;
            s->top_k = j % 4 == 0 ? 0 : j % 4 == 1 ? 20 : j % 4 == 2 ? 1 : 1500;
            s->top_p = j % 3 == 0 ? 0.95f : j % 3 == 1 ? 1.0f : 0.5f;
            s->min_p = j % 7 == 3 ? 0.1f : 0.0f;
        }
        check_rig(&g);
        rig_free(&g);
    }
}
END_TEST

/* Rows are cut into many parts, into few and not at all: a small top_k leaves the same each time,
 * alone and before the other filters. */
START_TEST(a_small_top_k_leaves_what_sorting_leaves)
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
            rig_free(&g);
        }
    }
}
END_TEST

/* One part of a row has all that top_k leaves, and far more that it does not. */
START_TEST(one_part_may_have_all_the_best)
{
    struct rig g;
    float *z;

    rig_init(&g, 151936, 4, 1.0f);
    z = g.logits.host;
    for (int i = 0; i < 4; i++) {
        g.sampling[i].top_k = i < 2 ? 20 : 64;
        g.sampling[i].temperature = 5.0f;
        for (int j = 0; j < 300; j++)
            z[i * g.m.logits_stride + 70000 + j] = 10.0f + (float)(j * 7 % 300) * 0.01f;
    }
    array_to_device(&g.logits);
    check_rig(&g);
    rig_free(&g);
}
END_TEST

/* The id of a row is the same whatever other rows there are: into how many parts a row is cut does
 * not matter. */
START_TEST(cuts_do_not_matter)
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
        rig_run(&g, &device);
        if (i == 0)
            memcpy(first, g.results.host, sizeof(first));
        ck_assert_mem_eq(first, g.results.host, (size_t)n_rows[i] * sizeof(*first));
    }
    rig_free(&g);
}
END_TEST

/* Where all ids but one are banned that one is taken; where all are, the row says so. */
START_TEST(banned_ids_are_never_taken)
{
    const int32_t stops[] = {3, 1, 0, 2};
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
    rig_run(&g, &device);
    for (int j = 0; j < 8; j++)
        ck_assert_int_eq(((int32_t *)g.results.host)[j], j < 4 ? 2 : BATCH_NUMERICS);
    rig_free(&g);
}
END_TEST

/* A masked row samples as a row whose other logits are far below, with every kind of sampling; a
 * mask is that of its own row; one that leaves no id ends the row. */
START_TEST(masks_leave_allowed_ids)
{
    enum { VOCAB = 2004, ROWS = 24, WORDS = (VOCAB + 31) / 32 };
    static uint32_t masks[ROWS / 2][WORDS];
    const int32_t stops[] = {77};
    int32_t expected[ROWS];
    struct rig g;
    float *z;

    rig_init(&g, VOCAB, ROWS, 3.0f);
    z = g.logits.host;
    for (int i = 0; i < ROWS / 2; i++)
        for (int j = 0; j < WORDS; j++)
            masks[i][j] = random_bits() & random_bits();
    for (int j = 0; j < ROWS; j++) {
        struct sampling *s = &g.sampling[j];

        s->temperature = j % 5 == 0 ? 0.0f : 0.8f;
        s->top_k = j % 3 == 1 ? 12 : 0;
        s->top_p = j % 4 == 2 ? 0.8f : 1.0f;
        s->repetition_penalty = j % 7 == 3 ? 1.3f : 1.0f;
        s->n_logprobs = j % 6 == 4 ? 3 : -1;
    }
    for (int masked = 0; masked < 2; masked++) {
        for (int j = 0; j < ROWS; j += 2) /* every other row has a mask */
            g.rows[j].mask = masked ? ROWS / 2 - 1 - j / 2 : -1;
        for (int j = 0; j < ROWS; j += 2)
            for (int id = 0; id < VOCAB; id++)
                if (!(masks[ROWS / 2 - 1 - j / 2][id / 32] >> id % 32 & 1))
                    z[j * g.m.logits_stride + id] += masked ? 1e9f : -1e9f;
        g.masks = masked ? masks[0] : NULL;
        g.n_masks = masked ? ROWS / 2 : 0;
        array_to_device(&g.logits);
        rig_run(&g, &device);
        if (!masked)
            memcpy(expected, g.results.host, sizeof(expected));
    }
    ck_assert_mem_eq(expected, g.results.host, sizeof(expected));
    memset(masks, 0, sizeof(masks));
    for (int j = 0; j < ROWS; j += 2) {
        masks[ROWS / 2 - 1 - j / 2][2] = 1u << 13; /* 77, which is banned in some */
        g.sampling[j].n_stop_ids = 1;
        g.sampling[j].stop_ids = stops;
        g.rows[j].ban_stops = j % 4 == 0;
    }
    rig_run(&g, &device);
    for (int j = 0; j < ROWS; j++)
        ck_assert_int_eq(((int32_t *)g.results.host)[j], j % 2        ? expected[j]
                                                         : j % 4 == 0 ? BATCH_NUMERICS
                                                                      : 77);
    rig_free(&g);
}
END_TEST

/* Between equal logits the lower id wins. */
START_TEST(ties_go_to_lower_ids)
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
    check_rig(&g);
    rig_free(&g);
}
END_TEST

/* Penalties over prompt and output, bias (an id twice), banned ends: before all filters. */
START_TEST(penalties_and_bias_come_first)
{
    for (int i = 1; i < 3; i++) {
        const struct logit_bias bias[] = {{3, 5.0f}, {17, -100.0f}, {3, 4.0f}, {1000, 8.5f}};
        const int32_t stops[] = {1000, 7};
        struct rig g;

        rig_init(&g, vocabs[i], MAX_ROWS, 2.0f);
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
        rig_free(&g);
    }
}
END_TEST

/* NaN or an infinity anywhere in a row fails that row alone, however it is sampled. */
START_TEST(broken_rows_are_told)
{
    const struct sampling kinds[] = {
        {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1},
        {.temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1},
        {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = 3},
        {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.2f, .n_logprobs = -1},
        {.temperature = 1.0f,
         .top_p = 0.9f,
         .repetition_penalty = 1.0f,
         .top_k = 20,
         .n_logprobs = -1},
        {.temperature = 1.0f, .top_p = 0.9f, .repetition_penalty = 1.0f, .n_logprobs = -1},
    };

    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++)
        for (int i = 1; i < 3; i++) {
            const int vocab = vocabs[i];
            struct rig g;
            float *z;

            rig_init(&g, vocab, 7, 3.0f);
            z = g.logits.host;
            z[1 * vocab + vocab - 1] = NAN;
            z[2 * vocab] = INFINITY;
            z[3 * vocab + 5] = -INFINITY;
            z[4 * vocab + vocab / 2 + 2] = -NAN;
            z[5 * vocab + vocab - 2] = -INFINITY;
            array_to_device(&g.logits);
            for (int j = 0; j < 7; j++)
                g.sampling[j] = kinds[kind];
            rig_run(&g, &device);
            for (int j = 0; j < 7; j++)
                ck_assert_int_eq(((int32_t *)g.results.host)[j] == BATCH_NUMERICS,
                                 j >= 1 && j <= 5);
            rig_free(&g);
        }
}
END_TEST

/* Log probabilities are of the raw row; the best come first. */
START_TEST(logprobs_are_of_the_raw_row)
{
    for (int i = 0; i < 3; i++) {
        const struct logit_bias bias[] = {{1, 30.0f}};
        struct rig g;

        rig_init(&g, vocabs[i], 6, 3.0f);
        for (int j = 0; j < 6; j++) {
            g.sampling[j].n_logprobs = j * 4;
            g.sampling[j].n_bias = j % 2;
            g.sampling[j].bias = bias;
        }
        check_rig(&g);
        for (int j = 0; j < 6; j++) {
            const int32_t *ids = g.results.host;
            const float *z = (float *)g.logits.host + j * g.m.logits_stride;
            const int n = j * 4 < vocabs[i] ? j * 4 : vocabs[i];
            double sum = 0.0, last = INFINITY;

            for (int k = 0; k < vocabs[i]; k++)
                sum += exp((double)z[k]);
            ck_assert_double_eq_tol((double)((float *)ids)[6 + j], (double)z[ids[j]] - log(sum),
                                    1e-4);
            for (int k = 0; k < n; k++) {
                const int32_t id = ids[12 + j * SAMPLING_MAX_LOGPROBS + k];
                int before = 0; /* in order: equal ones by their ids */

                for (int q = 0; q < vocabs[i]; q++)
                    before += z[q] > z[id] || (z[q] == z[id] && q < id);
                ck_assert_int_eq(before, k);
                ck_assert((double)z[id] <= last);
                last = (double)z[id];
            }
        }
        rig_free(&g);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampler");
    TCase *t = tcase_create("sampler");

    tcase_add_unchecked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, greedy_takes_the_first_of_the_largest);
    tcase_add_test(t, draws_are_the_twins);
    tcase_add_test(t, filters_leave_what_sorting_leaves);
    tcase_add_test(t, a_small_top_k_leaves_what_sorting_leaves);
    tcase_add_test(t, one_part_may_have_all_the_best);
    tcase_add_test(t, cuts_do_not_matter);
    tcase_add_test(t, banned_ids_are_never_taken);
    tcase_add_test(t, masks_leave_allowed_ids);
    tcase_add_test(t, ties_go_to_lower_ids);
    tcase_add_test(t, penalties_and_bias_come_first);
    tcase_add_test(t, broken_rows_are_told);
    tcase_add_test(t, logprobs_are_of_the_raw_row);
    suite_add_tcase(suite, t);
    return run_suite_here(suite);
}
