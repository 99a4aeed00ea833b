/* bench_attention.c - see bench.h. The plan is the backend's own: step_pack() with as many work
 * items as fill the machine. */
#include <stdio.h>

#include "tests/gpu/attention_rig.h"
#include "tests/gpu/bench.h"

enum {
    HEAD_DIM = 128,
    MAX_SEQS = 256,
    REPEATS = 50,
    PREFILL_REPEATS = 10,
    RUNS = 3, /* of which the median counts */
};

static const double H200_FLOPS = 850e12; /* what large products reach there */

/* chunk: rows of prefill at the end of each sequence; 0: decodes. bar: GB/s, of prefill TFLOP/s; 0:
 * none. */
static const struct {
    const char *name;
    int n_seqs, kv_len, chunk, bar; /* kv_len 0: 100 to 2,000 */
} scenes[] = {
    {"short", 16, 584, 0, 0},    {"short", 128, 584, 0, 0},       {"short", 64, 584, 0, 0},
    {"even", 64, 4096, 0, 3700}, {"mixed", MAX_SEQS, 0, 0, 3700}, {"whole", 1, 16384, 16384, 690},
    {"whole", 1, 4096, 4096, 0}, {"short", 8, 1024, 1024, 0},     {"behind", 1, 33280, 512, 690},
    {"behind", 1, 4224, 128, 0}, {"behind", 1, 34816, 2048, 0},   {"behind", 1, 40960, 8192, 0},
};
enum { N_SCENES = sizeof(scenes) / sizeof(*scenes) };

/* The seed is that of lengths, whose sum is in the name of a row. */
static const struct model {
    int n_heads, n_kv;
    uint64_t seed;
} models[] = {{16, 8, 5}, {32, 8, 11034}};

static bool has_hopper; /* the kernels for compute capability 9.0 can be launched */

/* Seconds of one launch, of many behind one another, in rising order. */
static void measure(double seconds[RUNS], const struct run *r, int repeats)
{
    for (int i = 0; i < RUNS; i++) {
        for (int j = -3; j < repeats; j++) {
            if (j == 0)
                timer_begin();
            run_launch(r, r->room.n_items);
        }
        seconds[i] = timer_end() / repeats;
    }
    sort_numbers(seconds, RUNS);
}

/* What a second does in each run, and whether that is what it shall be: the end of a line. */
static bool print_rates(const char *unit, double work, const double seconds[RUNS], double roofline,
                        int bar)
{
    const double median = work / seconds[RUNS / 2];

    printf(" us=%.1f %s=%.0f (%.0f to %.0f, %d runs) share=%.3f", seconds[RUNS / 2] * 1e6, unit,
           median, work / seconds[RUNS - 1], work / seconds[0], RUNS, median / roofline);
    if (bar)
        printf(" bar=%d verdict=%s", bar, median >= bar ? "ok" : "MISSED");
    printf("\n");
    fflush(stdout);
    return median >= bar;
}

/* Decodes also from keys of E4M3, of which some scales are NaN here: no time depends on that. */
static bool bench_scene(int number, const struct model *m, bool fp8)
{
    const int n_heads = m->n_heads, n_kv = m->n_kv;
    const int n = scenes[number].n_seqs, chunk = scenes[number].chunk, bar = scenes[number].bar;
    const int wanted = /* as the backend plans */
        device.launch.n_sms * (has_hopper && !fp8 ? ATTN_BLOCKS_PER_SM90 : ATTN_BLOCKS_PER_SM) /
        n_kv;
    int32_t q_len[MAX_SEQS], kv_len[MAX_SEQS];
    struct scene s = {.n_heads = n_heads,
                      .n_kv = n_kv,
                      .dim = HEAD_DIM,
                      .block_shift = 4,
                      .n_seqs = n,
                      .n_decodes = chunk ? 0 : n,
                      .q_len = q_len,
                      .kv_len = kv_len,
                      .fp8 = fp8,
                      .n_items = wanted < ATTN_MAX_SPLITS ? wanted : ATTN_MAX_SPLITS};
    double keys = 0.0, pairs = 0.0, gb, seconds[RUNS];
    struct paged p;
    struct run r;

    random_seed(m->seed);
    for (int i = 0; i < n; i++) {
        kv_len[i] = scenes[number].kv_len;
        if (kv_len[i] == 0)
            kv_len[i] = 100 + (int32_t)(random_bits() % 1901);
        q_len[i] = chunk ? chunk : 1;
        keys += kv_len[i];
        pairs += chunk * (kv_len[i] - (chunk - 1) / 2.0);
    }
    p = paged_new(&s, 1);
    p.kv.base = device_new(p.pool_bytes);
    fill_noise(p.kv.base, p.pool_bytes / sizeof(uint16_t), 0.0f, 1.0f);
    r = run_new(&s);
    run_pack(&r, &s, &p, has_hopper);
    if (r.maps.usable)
        r.prefill.n_splits =
            attn_prefill_splits(&device.launch, r.prefill.n_tiles * n_heads, r.prefill.max_kv_len);
    measure(seconds, &r, chunk ? PREFILL_REPEATS : REPEATS);
    memory_free();
    if (chunk) {
        printf("bench=prefill_attention scene=%s seqs=%d heads=%d/%d chunk=%d keys=%d",
               scenes[number].name, n, n_heads, n_kv, chunk, kv_len[0]);
        return print_rates("tflop_per_s", 4.0 * HEAD_DIM * pairs * n_heads / 1e12, seconds,
                           H200_FLOPS / 1e12, bar);
    }
    gb = keys * n_kv * (fp8 ? HEAD_DIM + 1 : HEAD_DIM * 2) * 2 / 1e9;
    printf("bench=paged_attention scene=%s seqs=%d heads=%d/%d keys=%.0f of=%s mb=%.0f",
           scenes[number].name, n, n_heads, n_kv, keys, fp8 ? "fp8" : "bf16", gb * 1e3);
    return print_rates("gb_per_s", gb, seconds, H200_BYTES_PER_SECOND / 1e9, fp8 ? 0 : bar);
}

bool bench_attention(void)
{
    bool reached = true;

    device_set_up();
    cuda_must(attn_prefill_init());
    cuda_must(attn_decode_sm90_init(&has_hopper));
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < N_SCENES; j++) {
            reached &= bench_scene(j, &models[i], false);
            if (!scenes[j].chunk)
                reached &= bench_scene(j, &models[i], true);
        }
    device_tear_down();
    return reached;
}
