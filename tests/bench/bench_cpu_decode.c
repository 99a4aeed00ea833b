/* bench_cpu_decode.c - tokens a second of the CPU backend on a model folder, and what share of this
 * machine's memory bandwidth its decode reads at.
 *
 *   bench_cpu_decode MODEL [threads [prompt-tokens [decode-tokens [ranks]]]]
 *
 * A plain model also runs quantized to FP8 and to INT4, and "speedup" is then over the plain one.
 * The bandwidth is measured by as many threads, by reads of 1 GiB. All take turns, so that they see
 * the same neighbours; medians of all rounds are printed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_backend.h"
#include "engine/util/machine.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/model/model.h"
#include "engine/model/quantization.h"
#include "tests/tools/backend_driver.h"

enum {
    READ_BYTES = 1 << 30,
    TASK_BYTES = 4 << 20,
    ROUNDS = 7,
    MAX_SUBJECTS = 3, /* bf16, FP8, INT4 */
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

/* A model, plain or quantized, that is measured. */
struct subject {
    struct driver driver;
    struct model *model;
    const char *weights;
    uint64_t step_bytes; /* that a token reads of them */
    double decode[ROUNDS], share[ROUNDS];
};

static void print(struct subject *s, double prefill, const struct subject *plain)
{
    const double decode = median(s->decode);

    printf("weights=%s prefill_tok_s=%.0f decode_tok_s=%.1f step_bytes=%llu step_gb_s=%.2f "
           "share=%.3f",
           s->weights, prefill, 1 / decode, (unsigned long long)s->step_bytes,
           (double)s->step_bytes / decode / 1e9, median(s->share));
    if (s != plain)
        printf(" speedup=%.2f", median((double *)plain->decode) / decode);
    printf("\n");
}

/* The first of n subjects is the plain one. */
static void bench(struct subject *subjects, int n, struct cpu_pool *pool, int n_prompt,
                  int n_decode)
{
    const int32_t vocab_size = model_config(subjects[0].model)->vocab_size;
    struct region memory;
    struct reading r = {0};
    struct err e;
    int32_t *prompt = calloc((size_t)n_prompt, sizeof(*prompt));
    double read[ROUNDS], prefill[MAX_SUBJECTS];

    if (!prompt || region_init(&memory, "the read test", READ_BYTES, &e) < 0)
        fail("out of memory");
    memset(memory.base, 0x5a, READ_BYTES);
    r.base = memory.base;
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)vocab_size);
    for (int k = 0; k < n; k++)
        prefill[k] = n_prompt / drive_seconds(&subjects[k].driver, prompt, n_prompt, 1);
    for (int i = 0; i < ROUNDS; i++) {
        read[i] = read_seconds(pool, &r);
        for (int k = 0; k < n; k++) {
            struct subject *s = &subjects[k];
            const double first = drive_seconds(&s->driver, prompt, 16, 1);

            s->decode[i] = (drive_seconds(&s->driver, prompt, 16, n_decode + 1) - first) / n_decode;
            s->share[i] = (double)s->step_bytes / s->decode[i] / (READ_BYTES / read[i]);
        }
    }
    printf("prefill_tokens=%d read_gb_s=%.2f\n", n_prompt, READ_BYTES / median(read) / 1e9);
    for (int k = 0; k < n; k++)
        print(&subjects[k], prefill[k], subjects);
    free(prompt);
    region_deinit(&memory);
}

/* What a token reads of the weights: an embedding of its own is looked up, not read, while a tied
 * one is the head; and of experts, the token's. */
static uint64_t step_bytes(const struct model_config *c, uint64_t weight_bytes)
{
    const enum dtype dtype = c->quant ? c->quant->dtype : DTYPE_BF16;
    const uint64_t hidden = (uint64_t)c->hidden_dim;
    const uint64_t left_out =
        (uint64_t)c->n_layers * (uint64_t)(c->n_experts - c->n_experts_per_tok);

    return weight_bytes - dtype_bytes(DTYPE_BF16, c->tied ? 0 : (uint64_t)c->vocab_size * hidden) -
           dtype_bytes(dtype, left_out * 3 * (uint64_t)c->ffn_dim * hidden);
}

/* dtype: what a plain model is quantized to; DTYPE_BF16: nothing. */
static void open_subject(struct subject *s, const char *folder, struct backend_options *options,
                         enum dtype dtype)
{
    const double start = now_seconds();
    struct backend_info info;
    struct err e;

    *s = (struct subject){.driver = {.ops = &cpu_backend, .options = options}};
    if (model_open(&s->model, folder, &e) < 0 || model_quantize(s->model, dtype, &e) < 0)
        fail(e.text);
    options->max_seq_len = model_config(s->model)->max_seq_len;
    if (cpu_backend.open(&s->driver.backend, s->model, options, &e) < 0)
        fail(e.text);
    cpu_backend.info(s->driver.backend, &info);
    s->weights = dtype == DTYPE_BF16 ? model_dtype_name(s->model) : dtype_info[dtype].name;
    s->step_bytes = step_bytes(model_config(s->model), info.weight_bytes);
    printf("device=\"%s\" model=%s weights=%s open_s=%.3f\n", info.devices[0].name,
           basename(folder), s->weights, now_seconds() - start);
}

int main(int argc, char **argv)
{
    static const enum dtype dtypes[MAX_SUBJECTS] = {DTYPE_BF16, DTYPE_E4M3, DTYPE_INT4};
    const int n_threads = argc > 2 ? atoi(argv[2]) : machine_cores();
    const int n_prompt = argc > 3 ? atoi(argv[3]) : 1024, n_decode = argc > 4 ? atoi(argv[4]) : 64;
    struct backend_options options = {.block_len = 16,
                                      .max_batch_tokens = 2048,
                                      .max_seqs = 256,
                                      .tier_bytes = {(uint64_t)512 << 20},
                                      .n_threads = n_threads,
                                      .tp_size = argc > 5 ? atoi(argv[5]) : 1};
    struct subject subjects[MAX_SUBJECTS];
    struct cpu_pool *pool;
    int n = 1;

    if (argc < 2 || n_threads < 1 || n_prompt < 16 || n_decode < 1 || options.tp_size < 1)
        fail("usage: bench_cpu_decode MODEL [threads [prompt-tokens [decode-tokens [ranks]]]]");
    if (cpu_pool_new(&pool, n_threads) < 0)
        fail("out of memory");
    open_subject(&subjects[0], argv[1], &options, DTYPE_BF16);
    for (; !model_config(subjects[0].model)->quant && n < MAX_SUBJECTS; n++)
        open_subject(&subjects[n], argv[1], &options, dtypes[n]);
    bench(subjects, n, pool, n_prompt, n_decode);
    for (int i = 0; i < n; i++) {
        cpu_backend.close(subjects[i].driver.backend);
        model_close(subjects[i].model);
    }
    cpu_pool_free(pool);
    return 0;
}
