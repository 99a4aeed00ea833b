/* test_experts.c - the kernels of mixtures of experts: which experts rows go to, beside the CPU
 * backend; products and sums beside plain twins in double, at odd sizes, with poisoned outputs. */
#include <math.h>
#include <string.h>

#include "engine/cpu/cpu_experts.h"
#include "tests/gpu/quant_rig.h"
#include "tests/unit/run_suite.h"

/* One rounding to bf16 of random values is off by 2^-9 / sqrt(3) at most: 1.7e-3 and a margin. */
static const double bf16_error = 2.5e-3;

static void set_up(void)
{
    device_set_up();
    cuda_must(expert_gemm_init(&device.launch));
}

/* Rows of a layer and what the router made of them, here and there. */
struct routed {
    int n_rows, n_experts, n_picks;
    struct expert_picks picks; /* on the device */
    struct device_array experts, weights, members, groups, n_groups;
};

static struct routed routed_new(int n_rows, int n_experts, int n_picks)
{
    const size_t n = (size_t)(n_rows * n_picks);
    struct routed r = {.n_rows = n_rows,
                       .n_experts = n_experts,
                       .n_picks = n_picks,
                       .experts = array_new(n * 2 + 16),
                       .weights = array_new(n * 4),
                       .members = array_new(n * 4),
                       .groups = array_new(
                           (size_t)expert_most_groups(n_experts, n_rows * n_picks, EXPERT_FEW) *
                           sizeof(struct expert_group)),
                       .n_groups = array_new(4)};

    r.picks = (struct expert_picks){.n_experts = n_experts,
                                    .n_picks = n_picks,
                                    .experts = r.experts.device,
                                    .weights = r.weights.device,
                                    .members = r.members.device,
                                    .groups = r.groups.device,
                                    .n_groups = r.n_groups.device};
    return r;
}

/* counted: rows that the step has. */
static void route_all(struct routed *r, const struct device_array *scores, int most_rows,
                      bool norm_topk, int counted)
{
    const struct step_counts counts = {.n_tokens = 5 + counted};
    const struct expert_route how = {.scores = scores->device,
                                     .n_rows = r->n_rows,
                                     .first_row = 5,
                                     .most_rows = most_rows,
                                     .norm_topk = norm_topk,
                                     .counts = array_of(&counts, sizeof(counts)).device};

    cuda_must(expert_route(&device.launch, &r->picks, &how));
    array_to_host(&r->experts);
    array_to_host(&r->weights);
    array_to_host(&r->members);
    array_to_host(&r->groups);
    array_to_host(&r->n_groups);
}

/* Groups are of one expert each, in order, as few as can be, and hold every pick once. */
static void check_groups(const struct routed *r, int most_rows, int counted)
{
    const struct expert_group *groups = r->groups.host;
    const int n_groups = *(int32_t *)r->n_groups.host;
    const uint16_t *experts = r->experts.host;
    const int32_t *members = r->members.host;
    int at = 0;

    ck_assert_int_le(n_groups, expert_most_groups(r->n_experts, counted * r->n_picks, most_rows));
    for (int i = 0; i < n_groups; i++) {
        const struct expert_group *g = &groups[i];

        ck_assert(g->first == at && g->n > 0 && g->n <= most_rows);
        if (i > 0)
            ck_assert(g->expert > g[-1].expert ||
                      (g->expert == g[-1].expert && g[-1].n == most_rows));
        for (int j = 0; j < g->n; j++, at++) {
            ck_assert_int_eq(experts[members[at]], g->expert);
            ck_assert(j == 0 || members[at] > members[at - 1]);
        }
    }
    ck_assert_int_eq(at, counted * r->n_picks);
}

static const struct {
    int n_rows, n_experts, n_picks;
} routes[] = {{1, 128, 8},  {1, 8, 2},     {5, 8, 2},      {9, 3, 3},     {32, 128, 8},
              {64, 128, 8}, {65, 130, 7},  {300, 60, 4},   {33, 33, 1},   {2, 1024, 1024},
              {17, 1, 1},   {1000, 64, 6}, {70, 1000, 32}, {4099, 128, 8}};

/* Experts are the CPU backend's, of equal scores and of those that are not finite, too; and the
 * rows that a step does not have are in no group. */
TEST(router_follows_cpu, .n = N(routes) * 2)
{
    const bool norm_topk = _i % 2;
    const int n_rows = routes[_i / 2].n_rows, n_experts = routes[_i / 2].n_experts;
    const int n_picks = routes[_i / 2].n_picks, counted = n_rows - n_rows / 3;
    const struct device_array scores = array_f32((size_t)(n_rows * n_experts), 2.0f);
    struct routed r = routed_new(n_rows, n_experts, n_picks);
    struct pick *picks = host_new((size_t)n_picks, sizeof(*picks));
    float *s = scores.host;

    for (int i = 0; i < n_rows * n_experts; i++)
        if (i / n_experts % 2) /* many are equal */
            s[i] = roundf(s[i]) * (i / n_experts % 4 == 3 ? 1e30f : 1.0f);
    if (n_rows > 4) {
        s[2 * n_experts + n_experts / 2] = NAN;
        s[3 * n_experts] = INFINITY;
    }
    array_to_device(&scores);
    for (int most_rows = EXPERT_FEW; most_rows <= EXPERT_MANY;
         most_rows += EXPERT_MANY - EXPERT_FEW) {
        route_all(&r, &scores, most_rows, norm_topk, counted);
        for (int row = 0; row < counted; row++) {
            route(picks, n_picks, s + row * n_experts, n_experts, norm_topk, cpu_ops_best());
            for (int i = 0; i < n_picks; i++) {
                const int at = row * n_picks + i;
                const float weight = ((float *)r.weights.host)[at];

                ck_assert_int_eq(((uint16_t *)r.experts.host)[at], picks[i].expert);
                if (isnan(picks[i].weight))
                    ck_assert(isnan(weight));
                else
                    ck_assert_float_eq_tol(weight, picks[i].weight, 1e-6f);
            }
        }
        check_groups(&r, most_rows, counted);
    }
}
END_TEST

/* A product's two sides and what came of it. */
struct product {
    struct device_array x, y;
    double *w; /* [n_experts * n, k], of a gated one twice as many rows */
    struct expert_product p;
};

/* f NULL: of bf16 weights. */
static struct product product_new(const struct routed *r, const struct weight_format *f, int n,
                                  int k, bool gated)
{
    const size_t n_picks = (size_t)(r->n_rows * r->n_picks);
    const int n_weights = r->n_experts * n * (gated ? 2 : 1);
    struct product t = {.x = array_bf16((gated ? (size_t)r->n_rows : n_picks) * (size_t)k, 1.0f),
                        .y = array_new(n_picks * (size_t)n * 2)};

    t.p = (struct expert_product){.y = t.y.device,
                                  .x = t.x.device,
                                  .x_of_rows = gated,
                                  .gated = gated,
                                  .n_rows = r->n_rows,
                                  .n = n,
                                  .ld = k,
                                  .k = k};
    if (f) {
        const struct quant_weights w = quant_weights_new(f, n_weights, k);

        t.w = w.values;
        t.p.w = w.w.device;
        t.p.quant = w.quant;
    } else {
        const struct device_array w =
            array_bf16((size_t)n_weights * (size_t)k, 1.0f / sqrtf((float)k));

        t.w = values_bf16(w.host, w.bytes / 2);
        t.p.w = w.device;
    }
    return t;
}

static void multiply(const struct routed *r, const struct product *t, bool few)
{
    cuda_must(few ? expert_skinny(&device.launch, &r->picks, &t->p)
                  : expert_gemm(&device.launch, &r->picks, &t->p));
    array_to_host(&t->y);
}

static double product_twin(const struct routed *r, const struct product *t, const double *x,
                           int pick, int j)
{
    const struct expert_product *p = &t->p;
    const size_t ld = (size_t)p->ld, expert = ((uint16_t *)r->experts.host)[pick];
    const double *row = x + (size_t)(p->x_of_rows ? pick / r->n_picks : pick) * ld + p->first;
    const double *w =
        t->w + (expert * (size_t)p->n * (p->gated ? 2 : 1) + (size_t)j) * ld + p->first;
    const double y = dot_of_doubles(row, w, p->k);

    return p->gated ? y / (1.0 + exp(-y)) * dot_of_doubles(row, w + (size_t)p->n * ld, p->k) : y;
}

static const struct {
    int n_rows, n_experts, n_picks, n, k;
} products[] = {{1, 128, 8, 64, 256}, {3, 8, 2, 96, 64},    {8, 4, 1, 32, 32},
                {9, 4, 4, 160, 96},   {40, 5, 2, 224, 320}, {300, 3, 2, 64, 160},
                {64, 16, 4, 96, 512}, {150, 1, 1, 288, 96}, {1, 2, 1, 768, 2080}};

/* Of few rows and of many. Nothing is written where there is no pick. */
static void check_product(struct routed *r, const struct product *t,
                          const struct device_array *scores, int counted)
{
    const int n_values = counted * r->n_picks * t->p.n;
    const double *x = values_bf16(t->x.host, t->x.bytes / 2);
    double *expected = host_new((size_t)n_values, sizeof(*expected));

    for (int few = 0; few < 2; few++) {
        const bool rounds_weights = !few && t->p.quant.element != ELEMENT_BF16;
        const uint16_t *y = t->y.host;

        route_all(r, scores, few ? EXPERT_FEW : EXPERT_MANY, true, counted);
        for (int i = 0; few == 0 && i < n_values; i++)
            expected[i] = product_twin(r, t, x, i / t->p.n, i % t->p.n);
        device_fill(t->y.device, 0xff, t->y.bytes);
        multiply(r, t, few);
        ck_assert_double_lt(error_bf16(y, expected, (size_t)n_values),
                            (1 + t->p.gated + rounds_weights) * bf16_error);
        for (size_t i = (size_t)n_values; i < t->y.bytes / 2; i++)
            ck_assert_uint_eq(y[i], 0xffff);
    }
}

/* Gated and plain, whole and halves of k, of weights in every format, whatever the router chose. */
TEST(products_follow_twin, .n = N(products) * (1 + N_WEIGHT_FORMATS))
{
    const struct weight_format *f = _i < N(products) ? NULL : &weight_formats[_i / N(products) - 1];
    const int shape = _i % N(products), k = products[shape].k;
    const int n_rows = products[shape].n_rows;
    struct routed r = routed_new(n_rows, products[shape].n_experts, products[shape].n_picks);
    const struct device_array scores = array_f32((size_t)(n_rows * r.n_experts), 2.0f);

    for (int gated = 0; gated < 2; gated++) {
        struct product t = product_new(&r, f, products[shape].n, k, gated);

        check_product(&r, &t, &scores, n_rows - n_rows / 4);
        if (!skinny_halves(&t.p.quant, k))
            continue;
        for (t.p.k = k / 2; t.p.first < k; t.p.first += k / 2)
            check_product(&r, &t, &scores, n_rows - n_rows / 4);
    }
}
END_TEST

/* A row gives the same bits among few and among many, by either way to multiply. */
TEST(products_do_not_depend_on_other_rows, .n = 4 * (1 + N_WEIGHT_FORMATS))
{
    enum { ROWS = 290, EXPERTS = 3, PICKS = 2, N_OUT = 96, K = 416 };
    static const int counts[] = {ROWS, 131, 64, 17, 8, 1};
    const bool few = _i & 1, gated = _i & 2;
    struct routed r = routed_new(ROWS, EXPERTS, PICKS);
    const struct device_array scores = array_f32(ROWS * EXPERTS, 2.0f);
    struct product t =
        product_new(&r, _i < 4 ? NULL : &weight_formats[_i / 4 - 1], N_OUT, K, gated);
    char *all = host_new(t.y.bytes, 1);

    for (int i = 0; i < N(counts); i++) {
        r.n_rows = t.p.n_rows = counts[i];
        route_all(&r, &scores, few ? EXPERT_FEW : EXPERT_MANY, true, counts[i]);
        device_fill(t.y.device, 0xff, t.y.bytes);
        multiply(&r, &t, few);
        if (i == 0)
            memcpy(all, t.y.host, t.y.bytes);
        ck_assert_msg(memcmp(all, t.y.host, (size_t)(counts[i] * PICKS * N_OUT) * 2) == 0,
                      "%d rows", counts[i]);
    }
}
END_TEST

static const struct {
    int n_rows, n_picks, dim;
} sums[] = {{1, 8, 2048}, {3, 2, 4096}, {130, 7, 96}, {2, 1, 32}, {9, 16, 16384}};

/* Weighted sums, added to what is there or not, as float or bf16. */
TEST(sums_follow_twin, .n = N(sums))
{
    const int n_rows = sums[_i].n_rows, n_picks = sums[_i].n_picks, dim = sums[_i].dim;
    const size_t n = (size_t)(n_rows * dim), n_all = (size_t)(n_rows * n_picks);
    const struct device_array x = array_bf16(n * (size_t)n_picks, 2.0f);
    const struct device_array weights = array_f32(n_all, 1.0f);
    const struct expert_picks p = {.n_picks = n_picks, .weights = weights.device};
    const double *in = values_bf16(x.host, n * (size_t)n_picks);

    for (int out = EXPERT_SUM_ADD_F32; out <= EXPERT_SUM_BF16; out++) {
        const struct device_array y =
            out == EXPERT_SUM_ADD_F32 ? array_f32(n, 1.0f) : array_new(n * 4);
        double *expected =
            out == EXPERT_SUM_ADD_F32 ? values_f32(y.host, n) : host_new(n, sizeof(double));

        for (int i = 0; i < n_rows * n_picks; i++)
            for (int j = 0; j < dim; j++)
                expected[i / n_picks * dim + j] +=
                    (double)((float *)weights.host)[i] * in[i * dim + j];
        cuda_must(expert_sum(&device.launch, y.device, (enum expert_sum_out)out, x.device, &p,
                             n_rows, dim));
        array_to_host(&y);
        if (out == EXPERT_SUM_BF16)
            ck_assert_double_lt(error_bf16(y.host, expected, n), bf16_error);
        else
            ck_assert_double_lt(error_f32(y.host, expected, n), 1e-5);
    }
}
END_TEST

RUN_TESTS_HERE("experts", set_up, device_tear_down)
