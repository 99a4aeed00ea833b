/* bench_experts.c - see bench.h. Each launch is of other rows, so that no cache holds what the one
 * before it read, and runs are behind one another in a graph, as steps are. */
#include <stdio.h>

#include "cuda/experts.h"
#include "cuda/gemm.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/gpu_rig.h"

static const struct {
    const char *name;
    enum element element;
    double bytes; /* of a weight */
} weights[] = {{"bf16", ELEMENT_BF16, 2.0},
               {"fp8", ELEMENT_E4M3, 1.0},
               {"int4", ELEMENT_INT4, 0.5}};

/* Of Qwen3-30B-A3B. */
enum { N_EXPERTS = 128, N_PICKS = 8, HIDDEN = 2048, FFN = 768, MAX_ROWS = 8192 };
enum { REPEATS = 16, ROUNDS = 4, DENSE_RUNS = 10 };

/* One launch of each kind, of repeat i. */
struct scene {
    struct expert_picks picks[REPEATS];
    struct expert_route route[REPEATS];
    struct skinny router;
    struct expert_product gate_up, down;
    float *residual;
    int n_rows;
};

enum kind { ROUTER, ROUTE, GATE_UP, DOWN, SUM, N_KINDS };

static void launch(const struct scene *s, enum kind kind, bool few, int i)
{
    const struct launch *l = &device.launch;
    const struct expert_product *p = kind == GATE_UP ? &s->gate_up : &s->down;

    if (kind == ROUTER)
        cuda_must(skinny_gemm(l, &s->router));
    else if (kind == ROUTE)
        cuda_must(expert_route(l, &s->picks[i], &s->route[i]));
    else if (kind == SUM)
        cuda_must(expert_sum(l, s->residual, EXPERT_SUM_ADD_F32, s->down.y, &s->picks[i], s->n_rows,
                             HIDDEN));
    else
        cuda_must(few ? expert_skinny(l, &s->picks[i], p) : expert_gemm(l, &s->picks[i], p));
}

/* The shortest of a few rounds, microseconds a launch. */
static double measure(const struct scene *s, enum kind kind, bool few)
{
    launch(s, kind, few, 0);
    capture_begin();
    for (int i = 0; i < REPEATS; i++)
        launch(s, kind, few, i);
    return shortest_run(capture_end(), ROUNDS) * 1e6 / REPEATS;
}

/* Experts that have rows, on average over the repeats. */
static double experts_in_use(const struct scene *s)
{
    double n = 0.0;

    for (int i = 0; i < REPEATS; i++) {
        bool used[N_EXPERTS] = {false};
        uint16_t *experts = host_new((size_t)(s->n_rows * N_PICKS), sizeof(*experts));

        cuda_must(cudaMemcpy(experts, s->picks[i].experts,
                             (size_t)(s->n_rows * N_PICKS) * sizeof(*experts),
                             cudaMemcpyDeviceToHost));
        for (int j = 0; j < s->n_rows * N_PICKS; j++) {
            n += !used[experts[j]];
            used[experts[j]] = true;
        }
    }
    return n / REPEATS;
}

static uint16_t *noise_new(size_t n, float scale)
{
    uint16_t *p = device_new(n * sizeof(*p));

    fill_noise(p, n, 0.0f, scale);
    return p;
}

/* As published folders have them: FP8 by blocks, INT4 by groups of 128. */
static void product_init(struct expert_product *p, enum element element)
{
    const size_t n_rows = (size_t)N_EXPERTS * (size_t)p->n * (p->gated ? 2 : 1), k = (size_t)p->k;
    uint16_t *noise = noise_new(n_rows * k, 0.02f);
    uint8_t *w = (uint8_t *)noise;
    float *scales = NULL;

    if (element == ELEMENT_E4M3) {
        scales = device_new(n_rows * (k / 128) * sizeof(*scales));
        w = device_new(n_rows * k);
        const struct e4m3_rows y = {w, scales, (int)n_rows, true};

        cuda_must(quantize(&device.launch, &y, noise, (int)k, false));
    }
    p->w = w;
    p->quant = (struct quant){.element = element};
    if (element != ELEMENT_BF16)
        p->quant = (struct quant){
            .element = element,
            .scales = scales ? (const void *)scales : noise_new(n_rows * (k / 128), 0.02f),
            .scale_rows = scales ? 128 : 1,
            .scale_cols = 128,
        };
}

static void scene_init(struct scene *s, enum element element)
{
    const size_t n = (size_t)MAX_ROWS * N_PICKS;
    const struct step_counts counts = {.n_tokens = MAX_ROWS};
    const struct step_counts *on_device = array_of(&counts, sizeof(counts)).device;
    uint16_t *x = noise_new((size_t)MAX_ROWS * HIDDEN, 1.0f), *act = noise_new(n * FFN, 1.0f);
    const struct model_config c = {.n_experts = N_EXPERTS,
                                   .n_experts_per_tok = N_PICKS,
                                   .hidden_dim = 32,
                                   .ffn_dim = 32};

    *s = (struct scene){.residual = device_new((size_t)MAX_ROWS * HIDDEN * sizeof(float))};
    for (int i = 0; i < REPEATS; i++) {
        struct arena count = {0}, real = {0};
        struct experts e = {0};

        experts_lay(&e, &count, &c, MAX_ROWS);
        real.base = device_new(count.used);
        experts_lay(&e, &real, &c, MAX_ROWS);
        s->picks[i] = e.picks;
        s->route[i] = (struct expert_route){
            .scores = array_f32((size_t)MAX_ROWS * N_EXPERTS, 1.0f).device,
            .norm_topk = true,
            .counts = on_device,
        };
    }
    s->router = (struct skinny){.y = device_new((size_t)MAX_ROWS * N_EXPERTS * sizeof(float)),
                                .y_stride = N_EXPERTS,
                                .x = x,
                                .w = noise_new((size_t)N_EXPERTS * HIDDEN, 0.02f),
                                .n = N_EXPERTS,
                                .k = HIDDEN,
                                .out = SKINNY_F32};
    s->gate_up = (struct expert_product){
        .y = act, .x = x, .x_of_rows = true, .gated = true, .n = FFN, .ld = HIDDEN, .k = HIDDEN};
    s->down = (struct expert_product){.y = noise_new(n * HIDDEN, 1.0f),
                                      .x = noise_new(n * FFN, 1.0f),
                                      .n = HIDDEN,
                                      .ld = FFN,
                                      .k = FFN};
    product_init(&s->gate_up, element);
    product_init(&s->down, element);
}

static void bench_rows(struct scene *s, int n_rows, const char *name, double bytes)
{
    static const char *const names[] = {"many", "few"};
    double used;

    s->n_rows = s->router.m = s->gate_up.n_rows = s->down.n_rows = n_rows;
    for (int few = 0; few < 2; few++) {
        double us[N_KINDS], flops = 2.0 * n_rows * N_PICKS * FFN * HIDDEN;

        if (few && n_rows > 1024)
            continue;
        for (int i = 0; i < REPEATS; i++) {
            s->route[i].n_rows = n_rows;
            s->route[i].most_rows = few ? EXPERT_FEW : EXPERT_MANY;
            launch(s, ROUTE, few, i);
        }
        for (int kind = 0; kind < N_KINDS; kind++)
            us[kind] = measure(s, (enum kind)kind, few);
        used = experts_in_use(s);
        printf("bench=experts weights=%s rows=%d products=%s experts=%.1f router_us=%.1f "
               "route_us=%.1f "
               "gate_up_us=%.1f down_us=%.1f sum_us=%.1f gate_up_gb_per_s=%.0f "
               "down_gb_per_s=%.0f gate_up_tflop_per_s=%.1f down_tflop_per_s=%.1f\n",
               name, n_rows, names[few], used, us[ROUTER], us[ROUTE], us[GATE_UP], us[DOWN],
               us[SUM], used * 2 * bytes * FFN * HIDDEN / us[GATE_UP] / 1e3,
               used * bytes * FFN * HIDDEN / us[DOWN] / 1e3, 2 * flops / us[GATE_UP] / 1e6,
               flops / us[DOWN] / 1e6);
        fflush(stdout);
    }
}

/* As many multiplications by one matrix, as cuBLASLt does them. */
static void bench_dense(const struct scene *s, const struct expert_product *e, int n)
{
    const struct gemm_product p = {.y = s->down.y,
                                   .y_stride = n,
                                   .x = s->down.x,
                                   .w = e->w,
                                   .m = MAX_ROWS,
                                   .n = n,
                                   .k = e->k,
                                   .out = GEMM_BF16};
    struct gemm *g;
    struct err err;
    double seconds;

    err_must(gemm_new(&g, device_new(GEMM_WORKSPACE), false, 1, &err), &err);
    for (int i = -2; i < DENSE_RUNS; i++) {
        if (i == 0)
            timer_begin();
        err_must(gemm_run(g, device.launch.stream, &p, &err), &err);
    }
    seconds = timer_end() / DENSE_RUNS;
    printf("bench=dense m=%d n=%d k=%d us=%.1f tflop_per_s=%.1f\n", p.m, p.n, p.k, seconds * 1e6,
           2.0 * p.m * p.n * p.k / seconds / 1e12);
    fflush(stdout);
    gemm_free(g);
}

void bench_experts(void)
{
    static const int rows[] = {1, 4, 16, 64, 128, 256, 512, 1024, 2048, MAX_ROWS};

    for (size_t type = 0; type < sizeof(weights) / sizeof(*weights); type++) {
        struct scene s;

        device_set_up();
        cuda_must(expert_gemm_init(&device.launch));
        scene_init(&s, weights[type].element);
        for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
            bench_rows(&s, rows[i], weights[type].name, weights[type].bytes);
        if (weights[type].element == ELEMENT_BF16) {
            bench_dense(&s, &s.gate_up, N_PICKS * 2 * FFN);
            bench_dense(&s, &s.down, N_PICKS * HIDDEN);
        }
        device_tear_down();
    }
}
