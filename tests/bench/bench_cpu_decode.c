/* bench_cpu_decode.c - tokens a second of the CPU backend on a model folder, and what share of this
 * machine's memory bandwidth its decode reads at.
 *
 *   bench_cpu_decode MODEL [threads [prompt-tokens [decode-tokens [ranks]]]]
 *
 * The bandwidth is measured in the same run by as many threads: reads of 1 GiB in turn with the
 * decode, so that both see the same neighbours; medians of all rounds are printed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_backend.h"
#include "engine/util/machine.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/model/model.h"
#include "tests/tools/backend_driver.h"

enum {
    READ_BYTES = 1 << 30,
    TASK_BYTES = 4 << 20,
    ROUNDS = 7,
};

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

struct reading {
    const char *base;
    _Atomic uint64_t sum; /* of all words, so that nothing is left out */
};

static void read_task(void *ctx, int task, int thread)
{
    typedef uint64_t words __attribute__((vector_size(64)));
    struct reading *r = ctx;
    const words *at = (const words *)(const void *)(r->base + (size_t)task * TASK_BYTES);
    words sum[4] = {{0}};

    (void)thread;
    for (size_t i = 0; i < TASK_BYTES / sizeof(words); i += 4) {
        __builtin_prefetch((const char *)(at + i) + 4096);
        for (int j = 0; j < 4; j++)
            sum[j] += at[i + (size_t)j];
    }
    for (int j = 0; j < 8; j++)
        atomic_fetch_add(&r->sum, sum[0][j] + sum[1][j] + sum[2][j] + sum[3][j]);
}

static double read_seconds(struct cpu_pool *pool, struct reading *r)
{
    const double start = now_seconds();

    cpu_pool_run(pool, READ_BYTES / TASK_BYTES, read_task, r);
    return now_seconds() - start;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof(*x), by_value);
    return x[ROUNDS / 2];
}

/* Seconds for a prompt and n tokens behind it. */
static double drive_seconds(struct driver *d, const int32_t *prompt, int n_prompt, int n)
{
    struct drive_times times;
    struct drive_seq s;
    struct err e;

    drive_seq_init(&s, prompt, n_prompt, n, -1);
    if (drive(d, &s, 1, &times, &e) < 0)
        fail(e.text);
    drive_seq_deinit(&s);
    return times.seconds;
}

static void bench(struct driver *d, const struct model_config *c, struct cpu_pool *pool,
                  uint64_t step_bytes, int n_prompt, int n_decode)
{
    struct region memory;
    struct reading r = {0};
    struct err e;
    int32_t *prompt = calloc((size_t)n_prompt, sizeof(*prompt));
    double decode[ROUNDS], read[ROUNDS], share[ROUNDS], prefill;

    if (!prompt || region_init(&memory, "the read test", READ_BYTES, &e) < 0)
        fail("out of memory");
    memset(memory.base, 0x5a, READ_BYTES);
    r.base = memory.base;
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)c->vocab_size);
    prefill = drive_seconds(d, prompt, n_prompt, 1);
    for (int i = 0; i < ROUNDS; i++) {
        const double first = drive_seconds(d, prompt, 16, 1);

        decode[i] = (drive_seconds(d, prompt, 16, n_decode + 1) - first) / n_decode;
        read[i] = read_seconds(pool, &r);
        share[i] = (double)step_bytes / decode[i] / (READ_BYTES / read[i]);
    }
    printf("prefill_tokens=%d prefill_tok_s=%.0f\n", n_prompt, n_prompt / prefill);
    printf("decode_tok_s=%.1f step_bytes=%llu step_gb_s=%.2f read_gb_s=%.2f share=%.3f\n",
           1 / median(decode), (unsigned long long)step_bytes,
           (double)step_bytes / median(decode) / 1e9, READ_BYTES / median(read) / 1e9,
           median(share));
    free(prompt);
    region_deinit(&memory);
}

/* What a token reads of the weights: an embedding of its own is looked up, not read, while a tied
 * one is the head; and of experts, the token's. */
static uint64_t step_bytes(const struct model_config *c, uint64_t weight_bytes)
{
    const uint64_t hidden = (uint64_t)c->hidden_dim * sizeof(uint16_t);
    const uint64_t left_out =
        (uint64_t)c->n_layers * (uint64_t)(c->n_experts - c->n_experts_per_tok);

    return weight_bytes - (c->tied ? 0 : (uint64_t)c->vocab_size * hidden) -
           left_out * 3 * (uint64_t)c->ffn_dim * hidden;
}

int main(int argc, char **argv)
{
    const int n_threads = argc > 2 ? atoi(argv[2]) : machine_cores();
    const int n_prompt = argc > 3 ? atoi(argv[3]) : 1024, n_decode = argc > 4 ? atoi(argv[4]) : 64;
    struct backend_options options = {.block_len = 16,
                                      .max_batch_tokens = 2048,
                                      .max_seqs = 256,
                                      .tier_bytes = {(uint64_t)512 << 20},
                                      .n_threads = n_threads,
                                      .tp_size = argc > 5 ? atoi(argv[5]) : 1};
    struct driver d = {.ops = &cpu_backend, .options = &options};
    struct backend_info info;
    struct cpu_pool *pool;
    struct model *model;
    struct err e;
    double start = now_seconds();

    if (argc < 2 || n_threads < 1 || n_prompt < 16 || n_decode < 1 || options.tp_size < 1)
        fail("usage: bench_cpu_decode MODEL [threads [prompt-tokens [decode-tokens [ranks]]]]");
    if (model_open(&model, argv[1], &e) < 0)
        fail(e.text);
    options.max_seq_len = model_config(model)->max_seq_len;
    if (cpu_backend.open(&d.backend, model, &options, &e) < 0)
        fail(e.text);
    printf("open_s=%.3f\n", now_seconds() - start);
    cpu_backend.info(d.backend, &info);
    printf("device=\"%s\" model=%s\n", info.devices[0].name, basename(argv[1]));
    if (cpu_pool_new(&pool, n_threads) < 0)
        fail("out of memory");
    bench(&d, model_config(model), pool, step_bytes(model_config(model), info.weight_bytes),
          n_prompt, n_decode);
    cpu_pool_free(pool);
    cpu_backend.close(d.backend);
    model_close(model);
    return 0;
}
