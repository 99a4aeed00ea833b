/* bench_resident.c - time of a decode step of few rows by the resident kernel, and by the chain of
 * kernels, on shapes of real models with random weights: each beside the bytes that it must read at
 * the speed that memory was measured to give, and with the clocks that its phases take.
 *
 *   bench_resident [alone]      alone: not the chain */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/resident_rig.h"

cudaError_t resident_profile_init(void);
cudaError_t resident_profile_run(const struct launch *l, const struct resident *r);

enum { WARM = 10, RUNS = 40 };

static const double memory_tb_per_s = 4.54; /* of an H200 */

static const struct model_config small = {.n_layers = 28,
                                          .n_heads = 16,
                                          .n_kv_heads = 8,
                                          .head_dim = 128,
                                          .hidden_dim = 1024,
                                          .ffn_dim = 3072,
                                          .vocab_size = 151936,
                                          .max_seq_len = 40960,
                                          .rms_norm_eps = 1e-6f,
                                          .rope_theta = 1e6,
                                          .tied = true};

static const struct model_config large = {.n_layers = 36,
                                          .n_heads = 32,
                                          .n_kv_heads = 8,
                                          .head_dim = 128,
                                          .hidden_dim = 4096,
                                          .ffn_dim = 12288,
                                          .vocab_size = 151936,
                                          .max_seq_len = 40960,
                                          .rms_norm_eps = 1e-6f,
                                          .rope_theta = 1e6,
                                          .tied = false};

/* Qwen3-30B-A3B, a quarter of its layers. */
static const struct model_config mixture = {.n_layers = 12,
                                            .n_heads = 32,
                                            .n_kv_heads = 4,
                                            .head_dim = 128,
                                            .hidden_dim = 2048,
                                            .ffn_dim = 768,
                                            .vocab_size = 151936,
                                            .max_seq_len = 40960,
                                            .rms_norm_eps = 1e-6f,
                                            .rope_theta = 1e6,
                                            .n_experts = 128,
                                            .n_experts_per_tok = 8,
                                            .norm_topk = true};

static const char *name_of(const struct quantization *q)
{
    return !q ? "bf16" : q->dtype == DTYPE_INT4 ? "int4" : "fp8";
}

/* Of a weight of the projections, with its scale. */
static double bytes_of_weight(const struct quantization *q)
{
    return !q ? 2.0 : q->dtype == DTYPE_INT4 ? 0.5 + 2.0 / 128.0 : 1.0 + 4.0 / 128.0 / 128.0;
}

/* Of experts for one row alone. */
static double bytes_of(const struct model_config *c, const int *kv_len, int n)
{
    const double dim = c->hidden_dim, heads = c->n_heads, kv = c->n_kv_heads;
    const double ffn = c->ffn_dim * (c->n_experts ? c->n_experts_per_tok : 1.0);
    const double layer = dim * (heads + 2 * kv) * c->head_dim + dim * heads * c->head_dim +
                         dim * c->n_experts + 3.0 * dim * ffn;
    const double weights = layer * bytes_of_weight(c->quant);
    double keys = 0.0;

    for (int i = 0; i < n; i++)
        keys += kv_len[i];
    return c->n_layers * (weights + 4.0 * keys * kv * c->head_dim) + 2.0 * dim * c->vocab_size;
}

/* Median and shortest time of a step, in microseconds: copy of counts, kernels, sampler. */
static void time_step(struct rig *r, const struct step_view *v, int n, bool resident)
{
    const double floor_us = bytes_of(&r->config, r->kv_len, n) / memory_tb_per_s * 1e-6;
    double each[RUNS], median;
    cudaGraphExec_t exec;

    capture_begin();
    rig_run(r, v, n, n, resident);
    exec = capture_end();
    for (int i = -WARM; i < RUNS; i++) {
        double seconds;

        rig_renew(r);
        timer_begin();
        cuda_must(cudaGraphLaunch(exec, device.launch.stream));
        seconds = timer_end(); /* the next tags must not overtake */
        if (i >= 0)
            each[i] = seconds * 1e6;
    }
    sort_numbers(each, RUNS);
    median = each[RUNS / 2];
    printf("bench=step way=%s layers=%d hidden=%d weights=%s rows=%d kv_len=%d step_us=%.1f "
           "shortest=%.1f floor_us=%.1f share=%.2f tok_per_s=%.0f\n",
           resident ? "resident" : "chain", r->config.n_layers, r->config.hidden_dim,
           name_of(r->config.quant), n, r->kv_len[0], median, each[0], floor_us, floor_us / median,
           n * 1e6 / median);
    fflush(stdout);
    cuda_must(cudaGraphExecDestroy(exec));
}

/* What comes between two marks of a layer, in the kernel's order. */
static const char *const spans[] = {"qkv_wait",  "qkv_product",  "qkv_post",     "attn_wait",
                                    "attn_keys", "attn_join",    "o_wait",       "o_product",
                                    "o_post",    "gate_wait",    "gate_product", "gate_post",
                                    "down_wait", "down_product", "down_post",    "next"};
enum { N_SPANS = sizeof(spans) / sizeof(*spans) };

/* Clocks of each span, the mean over layers and over the blocks that have a KV head, some of which
 * may have no keys. */
static void profile_step(struct rig *r, const struct step_view *v, int n)
{
    struct resident run = r->forward.resident;
    const int n_kv = r->config.n_kv_heads, used = run.n_blocks / n_kv * n_kv;
    const int end = 1 + r->config.n_layers * N_SPANS; /* of the layers' marks */
    const struct device_array marks =
        array_new((size_t)run.n_blocks * RESIDENT_MARKS * sizeof(long long));
    double sums[N_SPANS] = {0}, whole = 0.0, begin = 0.0, head = 0.0;

    run.step = *v;
    run.max_rows = n;
    run.marks = marks.device;
    cuda_must(resident_profile_init());
    for (int i = 0; i < 3; i++) {
        rig_renew(r);
        cuda_must(resident_profile_run(&device.launch, &run));
        cuda_must(cudaStreamSynchronize(device.launch.stream));
    }
    array_to_host(&marks);
    for (int b = 0; b < used; b++) {
        const long long *at = (long long *)marks.host + (size_t)b * RESIDENT_MARKS;

        begin += (double)(at[1] - at[0]);
        for (int i = 1; i < end; i++)
            sums[(i - 1) % N_SPANS] += (double)(at[i + 1] - at[i]);
        whole += (double)(at[end + 3] - at[0]);
        head += (double)(at[end + 3] - at[end]);
    }
    printf("bench=clocks hidden=%d weights=%s rows=%d kv_len=%d whole=%.0f begin=%.0f head=%.0f",
           r->config.hidden_dim, name_of(r->config.quant), n, r->kv_len[0], whole / used,
           begin / used, head / used);
    for (int i = 0; i < N_SPANS; i++)
        printf(" %s=%.0f", spans[i], sums[i] / used / r->config.n_layers);
    printf("\n");
    fflush(stdout);
}

static void bench(const struct model_config *c, const struct quantization *quant, int kv_len,
                  int most_rows, bool chain)
{
    struct model_config quantized = *c;
    int lengths[RIG_ROWS] = {0};
    struct rig r;

    quantized.quant = quant;
    for (int i = 0; i < most_rows; i++)
        lengths[i] = kv_len;
    rig_init(&r, &quantized, false, false, 16, lengths);
    for (int n = 1; n <= most_rows; n *= 2) {
        const struct step_view v = rig_step(&r, lengths, n, false);

        if (n <= r.forward.resident_rows)
            time_step(&r, &v, n, true);
        if (chain)
            time_step(&r, &v, n, false);
        if (n <= r.forward.resident_rows && n != 2 && c->n_experts == 0)
            profile_step(&r, &v, n);
    }
    rig_deinit(&r);
}

int main(int argc, char **argv)
{
    const struct quantization fp8 = rig_quantization(DTYPE_E4M3, 128, 128, false);
    const struct quantization groups = rig_quantization(DTYPE_INT4, 1, 128, false);
    const struct quantization *const all[] = {NULL, &fp8, &groups};
    const bool chain = argc < 2 || strcmp(argv[1], "alone") != 0;

    device_set_up();
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        bench(&small, all[i], 520, all[i] ? 8 : 16, chain);
        bench(&large, all[i], 520, 4, chain);
    }
    bench(&small, NULL, 40959, 1, chain);
    bench(&mixture, NULL, 520, 1, chain);
    device_tear_down();
    return 0;
}
