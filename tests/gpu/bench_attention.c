/* bench_attention.c - see bench_attention.h. The plan is the backend's own: step_pack() with as
 * many work items as fill the machine. */
#include "tests/gpu/bench_attention.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/device.h"
#include "cuda/step.h"
#include "engine/util/must.h"
#include "tests/tools/make_batch.h"
#include "tests/gpu/device_array.h"

enum {
    BLOCK_LEN = 16,
    BLOCK_SHIFT = 4,
    HEAD_DIM = 128,
    MAX_SEQS = 256,
    MAX_BLOCKS = 40960 / BLOCK_LEN,
    MAX_ROWS = 16384,
    BLOCKS_PER_SM = 3, /* as the backend plans */
    REPEATS = 50,
    PREFILL_REPEATS = 10,
    RUNS = 3,              /* of which the median counts */
    FILL_BYTES = 16 << 20, /* random; the pool is copies of it */
};

static const double H200_BYTES_PER_SECOND = 4.54e12; /* what plain reads reach there */
static const double H200_FLOPS = 850e12;             /* what large products reach there */

struct scene {
    const char *name;
    int n_seqs, n_heads, n_kv;
    int32_t kv_len[MAX_SEQS];
    int chunk; /* rows of prefill at the end of each; 0: decodes */
    int bar;   /* GB/s, of prefill TFLOP/s; 0: none */
};

/* What one launch reads and writes. */
struct arrays {
    uint16_t *q;
    struct device_array out, step, partial, counters, norm, circle;
    struct kv_pool kv;
    struct attn_maps maps;
};

/* What one launch takes. */
struct plan {
    struct attn attn;
    struct step_view v;
    int n_items, n_tiles; /* tiles: it is prefill */
    int max_kv_len;
};

static struct device device;
static bool all_reached;

/* So many random values on the device, which repeat. */
static uint16_t *random_values(size_t n)
{
    struct device_array values = array_new(FILL_BYTES);
    const size_t bytes = n * sizeof(uint16_t);
    void *p;

    fill_bf16(&values, 1.0f);
    cuda_must(cudaMalloc(&p, bytes));
    for (size_t at = 0; at < bytes; at += FILL_BYTES)
        cuda_must(cudaMemcpy((char *)p + at, values.device,
                             bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES,
                             cudaMemcpyDeviceToDevice));
    array_free(&values);
    return p;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Neighbours in a sequence are none in memory. */
static int scatter(int32_t *table, const struct scene *s)
{
    uint32_t stride = 7919, n = 0, at = 0;

    for (int i = 0; i < s->n_seqs; i++)
        n += (uint32_t)(s->kv_len[i] + BLOCK_LEN - 1) / BLOCK_LEN;
    while (common_divisor(n, stride) != 1)
        stride++;
    for (int i = 0; i < s->n_seqs; i++)
        for (int j = 0; j * BLOCK_LEN < s->kv_len[i]; j++, at++)
            table[i * MAX_BLOCKS + j] = (int32_t)((uint64_t)at * stride % n);
    return (int)n;
}

static void pack(struct plan *p, struct arrays *a, const struct scene *s, const int32_t *table)
{
    static const int32_t zeros[MAX_ROWS];
    static int32_t q_start[MAX_SEQS + 1];
    const int wanted = device.launch.n_sms * BLOCKS_PER_SM / s->n_kv;
    const int rows = s->chunk ? s->chunk : 1;
    const struct step_limits limits = {.max_tokens = MAX_ROWS,
                                       .max_seqs = MAX_SEQS,
                                       .max_blocks = MAX_BLOCKS,
                                       .block_len = BLOCK_LEN,
                                       .target_items =
                                           wanted < ATTN_MAX_SPLITS ? wanted : ATTN_MAX_SPLITS};
    const struct batch_parts parts = {.step = 1,
                                      .n_tokens = s->n_seqs * rows,
                                      .n_seqs = s->n_seqs,
                                      .n_decodes = s->chunk ? 0 : s->n_seqs,
                                      .max_blocks = MAX_BLOCKS,
                                      .tokens = zeros,
                                      .positions = zeros,
                                      .slots = zeros,
                                      .q_start = q_start,
                                      .kv_len = s->kv_len,
                                      .block_table = table};
    struct batch *batch;
    struct step_room room;
    const size_t group = (size_t)s->n_kv * ATTN_GROUP * (HEAD_DIM + 2) * sizeof(float);
    struct step_view *v = &p->v;

    must(parts.n_tokens <= MAX_ROWS);
    for (int i = 0; i < MAX_SEQS; i++)
        q_start[i + 1] = (i + 1) * rows;
    batch = make_batch(&parts);
    room = step_room_of(&limits, batch);
    a->step = array_new(step_max_bytes(&limits));
    a->partial = array_new(s->chunk ? attn_prefill_partial_bytes(HEAD_DIM)
                                    : (size_t)step_max_partials(&limits, MAX_SEQS) * group);
    a->counters = array_new((size_t)(MAX_SEQS * s->n_kv) * sizeof(int32_t));
    cuda_must(cudaMemset(a->counters.device, 0, a->counters.bytes));
    (void)step_pack(a->step.host, v, a->step.device, &limits, &room, batch, 0);
    free(batch);
    array_to_device(&a->step);
    p->n_items = room.n_items;
    p->n_tiles = room.n_tiles;
    for (int i = 0; i < s->n_seqs; i++)
        p->max_kv_len = s->kv_len[i] > p->max_kv_len ? s->kv_len[i] : p->max_kv_len;
}

static cudaError_t launch(const struct plan *p, const struct arrays *a)
{
    const struct launch *l = &device.launch;
    struct attn_prefill t = {.partial = a->partial.device,
                             .counters = a->counters.device,
                             .n_tiles = p->n_tiles,
                             .n_splits = 1,
                             .max_kv_len = p->max_kv_len};

    const struct rope rope = {.q_norm = a->norm.device,
                              .k_norm = a->norm.device,
                              .table = a->circle.device,
                              .eps = 1e-6f};

    if (p->n_tiles == 0)
        return attn_decode(l, &p->attn, &rope, &p->v, a->partial.device, a->counters.device,
                           p->n_items);
    if (a->maps.usable)
        t.n_splits = attn_prefill_sm90_splits(l, p->n_tiles * p->attn.n_heads, p->max_kv_len);
    return a->maps.usable ? attn_prefill_sm90(l, &p->attn, &a->maps, &p->v, &t)
                          : attn_prefill(l, &p->attn, &p->v, &t);
}

/* Seconds of one launch, of many behind one another. */
static double time_launches(const struct plan *p, const struct arrays *a, int repeats)
{
    cudaEvent_t begin, end;
    float ms;

    cuda_must(cudaEventCreate(&begin));
    cuda_must(cudaEventCreate(&end));
    for (int i = -3; i < repeats; i++) {
        if (i == 0)
            cuda_must(cudaEventRecord(begin, device.launch.stream));
        cuda_must(launch(p, a));
    }
    cuda_must(cudaEventRecord(end, device.launch.stream));
    cuda_must(cudaEventSynchronize(end));
    cuda_must(cudaEventElapsedTime(&ms, begin, end));
    cuda_must(cudaEventDestroy(begin));
    cuda_must(cudaEventDestroy(end));
    return (double)ms / 1e3 / repeats;
}

/* What a second does in each run, and whether that is what it shall be: the end of a line. */
static void print_rates(const struct scene *s, const char *unit, double work,
                        const double seconds[RUNS], double roofline)
{
    const double median = work / seconds[RUNS / 2];

    printf(" us=%.1f %s=%.0f (%.0f to %.0f, %d runs) share=%.3f", seconds[RUNS / 2] * 1e6, unit,
           median, work / seconds[RUNS - 1], work / seconds[0], RUNS, median / roofline);
    if (s->bar)
        printf(" bar=%d verdict=%s", s->bar, median >= s->bar ? "ok" : "MISSED");
    printf("\n");
    fflush(stdout);
    all_reached = all_reached && median >= s->bar;
}

static void print_decode(const struct scene *s, const double seconds[RUNS])
{
    double keys = 0.0, gb;

    for (int i = 0; i < s->n_seqs; i++)
        keys += s->kv_len[i];
    gb = keys * s->n_kv * HEAD_DIM * 2 * 2 / 1e9;
    printf("bench=paged_attention scene=%s seqs=%d heads=%d/%d keys=%.0f mb=%.0f", s->name,
           s->n_seqs, s->n_heads, s->n_kv, keys, gb * 1e3);
    print_rates(s, "gb_per_s", gb, seconds, H200_BYTES_PER_SECOND / 1e9);
}

static void print_prefill(const struct scene *s, const double seconds[RUNS])
{
    double pairs = 0.0;

    for (int i = 0; i < s->n_seqs; i++)
        pairs += s->chunk * (s->kv_len[i] - (s->chunk - 1) / 2.0);
    printf("bench=prefill_attention scene=%s seqs=%d heads=%d/%d chunk=%d keys=%d", s->name,
           s->n_seqs, s->n_heads, s->n_kv, s->chunk, s->kv_len[0]);
    print_rates(s, "tflop_per_s", 4.0 * HEAD_DIM * pairs * s->n_heads / 1e12, seconds,
                H200_FLOPS / 1e12);
}

static int shorter(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void bench_scene(const struct scene *s)
{
    const int n_rows = s->n_seqs * (s->chunk ? s->chunk : 1);
    const int64_t v_offset = (int64_t)s->n_kv * BLOCK_LEN * HEAD_DIM;
    const int q_stride = (s->n_heads + 2 * s->n_kv) * HEAD_DIM;
    int32_t *table = calloc((size_t)s->n_seqs * MAX_BLOCKS, sizeof(*table));
    struct arrays a = {.kv = {.block_stride = 2 * v_offset,
                              .layer_stride = 2 * v_offset,
                              .v_offset = v_offset,
                              .block_shift = BLOCK_SHIFT,
                              .n_kv_heads = s->n_kv,
                              .head_dim = HEAD_DIM}};
    struct plan p = {.n_items = 0};
    double seconds[RUNS];
    int n_blocks;

    must(table);
    n_blocks = scatter(table, s);
    a.kv.base = random_values((size_t)n_blocks * (size_t)a.kv.block_stride);
    a.q = random_values((size_t)n_rows * (size_t)q_stride);
    a.out = array_new((size_t)n_rows * (size_t)(s->n_heads * HEAD_DIM) * 2);
    if (device.compute == 90)
        cuda_must(attn_maps_init(&a.maps, &a.kv, n_blocks, a.q, q_stride, n_rows));
    a.norm = array_new(HEAD_DIM * 2);
    fill_bf16(&a.norm, 1.0f);
    a.circle = array_new((size_t)MAX_BLOCKS * BLOCK_LEN * HEAD_DIM * 4);
    cuda_must(rope_table(&device.launch, a.circle.device, MAX_BLOCKS * BLOCK_LEN, HEAD_DIM, 1e6));
    pack(&p, &a, s, table);
    p.attn = (struct attn){
        .out = a.out.device, .q = a.q, .q_stride = q_stride, .n_heads = s->n_heads, .kv = &a.kv};
    for (int i = 0; i < RUNS; i++)
        seconds[i] = time_launches(&p, &a, s->chunk ? PREFILL_REPEATS : REPEATS);
    qsort(seconds, RUNS, sizeof(*seconds), shorter);
    (s->chunk ? print_prefill : print_decode)(s, seconds);
    cuda_must(cudaFree(a.kv.base));
    cuda_must(cudaFree(a.q));
    array_free(&a.norm);
    array_free(&a.circle);
    array_free(&a.out);
    array_free(&a.step);
    array_free(&a.partial);
    array_free(&a.counters);
    free(table);
}

bool bench_attention(void)
{
    static const int heads[2][2] = {{16, 8}, {32, 8}};
    enum { K = 1024 };
    struct err e = {{0}};

    if (device_open(&device, 0, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    random_seed(5);
    all_reached = true;
    for (int i = 0; i < 2; i++) {
        struct scene even = {"even", 64, heads[i][0], heads[i][1], {0}, 0, 3700};
        struct scene mixed = {"mixed", MAX_SEQS, heads[i][0], heads[i][1], {0}, 0, 3700};
        struct scene short_ones = {"short", 64, heads[i][0], heads[i][1], {0}, 0, 0};

        for (int j = 0; j < even.n_seqs; j++)
            even.kv_len[j] = 4096;
        for (int j = 0; j < mixed.n_seqs; j++)
            mixed.kv_len[j] = 100 + (int32_t)(random_bits() % 1901);
        for (int j = 0; j < short_ones.n_seqs; j++)
            short_ones.kv_len[j] = 584;
        bench_scene(&short_ones);
        bench_scene(&even);
        bench_scene(&mixed);
        bench_scene(&(struct scene){"whole", 1, heads[i][0], heads[i][1], {16384}, 16384, 450});
        bench_scene(&(struct scene){"whole", 1, heads[i][0], heads[i][1], {4096}, 4096, 0});
        bench_scene(
            &(struct scene){"short", 8, heads[i][0], heads[i][1], {K, K, K, K, K, K, K, K}, K, 0});
        bench_scene(&(struct scene){"behind", 1, heads[i][0], heads[i][1], {33280}, 512, 0});
        bench_scene(&(struct scene){"behind", 1, heads[i][0], heads[i][1], {4224}, 128, 0});
        bench_scene(&(struct scene){"behind", 1, heads[i][0], heads[i][1], {34816}, 2048, 0});
        bench_scene(&(struct scene){"behind", 1, heads[i][0], heads[i][1], {40960}, 8192, 0});
    }
    device_close(&device);
    return all_reached;
}
