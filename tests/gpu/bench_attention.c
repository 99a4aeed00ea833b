/* bench_attention.c - see bench_attention.h. The plan is the backend's own: step_pack() with as
 * many pieces as fill the machine. */
#include "tests/gpu/bench_attention.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/device.h"
#include "cuda/step.h"
#include "engine/must.h"
#include "tests/gpu/device_array.h"

enum {
    BLOCK_LEN = 16,
    BLOCK_SHIFT = 4,
    HEAD_DIM = 128,
    MAX_SEQS = 256,
    MAX_BLOCKS = 4096 / BLOCK_LEN,
    BLOCKS_PER_SM = 3, /* as the backend plans */
    REPEATS = 50,
    FILL_BYTES = 16 << 20, /* random; the pool is copies of it */
};

static const double H200_BYTES_PER_SECOND = 4.54e12; /* what plain reads reach there */

struct scene {
    const char *name;
    int n_seqs, n_heads, n_kv;
    int32_t kv_len[MAX_SEQS];
};

/* What one launch reads and writes. */
struct arrays {
    struct device_array q, out, step, partial, tickets;
    struct kv_pool kv;
};

static struct device device;

static void fill_pool(struct kv_pool *kv, int n_blocks)
{
    const size_t bytes = (size_t)n_blocks * (size_t)kv->block_stride * sizeof(*kv->base);
    struct device_array values = array_new(FILL_BYTES);

    fill_bf16(&values, 1.0f);
    cuda_must(cudaMalloc((void **)&kv->base, bytes));
    for (size_t at = 0; at < bytes; at += FILL_BYTES)
        cuda_must(cudaMemcpy((char *)kv->base + at, values.device,
                             bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES,
                             cudaMemcpyDeviceToDevice));
    array_free(&values);
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

static struct step_view pack(struct arrays *a, const struct scene *s, const int32_t *table,
                             int *n_items)
{
    static const int32_t zeros[MAX_SEQS];
    static int32_t q_start[MAX_SEQS + 1];
    const int wanted = device.launch.n_sms * BLOCKS_PER_SM / s->n_kv;
    const struct step_limits limits = {.max_tokens = MAX_SEQS,
                                       .max_seqs = MAX_SEQS,
                                       .max_blocks = MAX_BLOCKS,
                                       .block_len = BLOCK_LEN,
                                       .target_items =
                                           wanted < ATTN_MAX_SPLITS ? wanted : ATTN_MAX_SPLITS};
    const struct batch batch = {.step = 1,
                                .n_tokens = s->n_seqs,
                                .n_seqs = s->n_seqs,
                                .n_decodes = s->n_seqs,
                                .max_blocks = MAX_BLOCKS,
                                .tokens = zeros,
                                .positions = zeros,
                                .slots = zeros,
                                .q_start = q_start,
                                .kv_len = s->kv_len,
                                .block_table = table};
    const struct step_room room = step_room_of(&limits, &batch);
    const size_t group = (size_t)s->n_kv * ATTN_GROUP * (HEAD_DIM + 2) * sizeof(float);
    struct step_view v;

    for (int i = 0; i < MAX_SEQS; i++)
        q_start[i + 1] = i + 1;
    a->step = array_new(step_max_bytes(&limits));
    a->partial = array_new((size_t)step_max_items(&limits, MAX_SEQS) * group);
    a->tickets = array_new((size_t)(MAX_SEQS * s->n_kv) * sizeof(int32_t));
    cuda_must(cudaMemset(a->tickets.device, 0, a->tickets.bytes));
    (void)step_pack(a->step.host, &v, a->step.device, &limits, &room, &batch, 0);
    array_to_device(&a->step);
    *n_items = room.n_items;
    return v;
}

/* Seconds of one launch, of many behind one another. */
static double time_launches(const struct attn *attn, const struct step_view *v,
                            const struct arrays *a, int n_items)
{
    cudaEvent_t begin, end;
    float ms;

    cuda_must(cudaEventCreate(&begin));
    cuda_must(cudaEventCreate(&end));
    for (int i = -3; i < REPEATS; i++) {
        if (i == 0)
            cuda_must(cudaEventRecord(begin, device.launch.stream));
        cuda_must(
            attn_decode(&device.launch, attn, v, a->partial.device, a->tickets.device, n_items));
    }
    cuda_must(cudaEventRecord(end, device.launch.stream));
    cuda_must(cudaEventSynchronize(end));
    cuda_must(cudaEventElapsedTime(&ms, begin, end));
    cuda_must(cudaEventDestroy(begin));
    cuda_must(cudaEventDestroy(end));
    return (double)ms / 1e3 / REPEATS;
}

static void bench_scene(const struct scene *s)
{
    const int64_t v_offset = (int64_t)s->n_kv * BLOCK_LEN * HEAD_DIM;
    const int q_stride = (s->n_heads + 2 * s->n_kv) * HEAD_DIM;
    int32_t *table = calloc((size_t)s->n_seqs * MAX_BLOCKS, sizeof(*table));
    struct arrays a = {.kv = {.block_stride = 2 * v_offset,
                              .layer_stride = 2 * v_offset,
                              .v_offset = v_offset,
                              .block_shift = BLOCK_SHIFT,
                              .n_kv_heads = s->n_kv,
                              .head_dim = HEAD_DIM}};
    struct step_view v;
    struct attn attn;
    double keys = 0.0, bytes, seconds;
    int n_items;

    must(table);
    fill_pool(&a.kv, scatter(table, s));
    a.q = array_new((size_t)(s->n_seqs * q_stride) * 2);
    a.out = array_new((size_t)(s->n_seqs * s->n_heads * HEAD_DIM) * 2);
    fill_bf16(&a.q, 1.0f);
    v = pack(&a, s, table, &n_items);
    attn = (struct attn){.out = a.out.device,
                         .q = a.q.device,
                         .q_stride = q_stride,
                         .n_heads = s->n_heads,
                         .kv = &a.kv};
    seconds = time_launches(&attn, &v, &a, n_items);
    for (int i = 0; i < s->n_seqs; i++)
        keys += s->kv_len[i];
    bytes = keys * s->n_kv * HEAD_DIM * 2 * 2;
    printf("bench=paged_attention scene=%s seqs=%d heads=%d/%d keys=%.0f mb=%.0f us=%.1f "
           "gb_per_s=%.0f share=%.3f\n",
           s->name, s->n_seqs, s->n_heads, s->n_kv, keys, bytes / 1e6, seconds * 1e6,
           bytes / seconds / 1e9, bytes / seconds / H200_BYTES_PER_SECOND);
    fflush(stdout);
    cuda_must(cudaFree(a.kv.base));
    array_free(&a.q);
    array_free(&a.out);
    array_free(&a.step);
    array_free(&a.partial);
    array_free(&a.tickets);
    free(table);
}

void bench_attention(void)
{
    static const int heads[2][2] = {{16, 8}, {32, 8}};
    struct err e = {{0}};

    if (device_open(&device, 0, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    random_seed(5);
    for (int i = 0; i < 2; i++) {
        struct scene even = {"even", 64, heads[i][0], heads[i][1], {0}};
        struct scene mixed = {"mixed", MAX_SEQS, heads[i][0], heads[i][1], {0}};

        for (int j = 0; j < even.n_seqs; j++)
            even.kv_len[j] = 4096;
        for (int j = 0; j < mixed.n_seqs; j++)
            mixed.kv_len[j] = 100 + (int32_t)(random_bits() % 1901);
        bench_scene(&even);
        bench_scene(&mixed);
    }
    device_close(&device);
}
