/* bench.c - speed of the CUDA backend through its contract, on a model folder: one stream, many
 * streams, one long prompt, and the throughput benchmark that nano-vLLM publishes (its lengths read
 * from a file; see random_lengths.py). Prints one line of key=value a measurement.
 *
 *   bench MODEL_FOLDER [LENGTHS_FILE | short [CACHE_FOLDER | eager]]
 *   bench MODEL_FOLDER decode SEQS CONTEXT
 *   bench MODEL_FOLDER mixed LENGTHS_FILE
 *   bench MODEL_FOLDER prefill TOKENS
 *   bench attention
 *   bench sampler
 *
 * Where a bar is missed the exit status is 1. With a last word `invariant` the backend promises
 * that nothing depends on what else runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/inspect.h"
#include "engine/model/model.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/drive.h"

extern const struct backend_ops nvllm_backend;

enum { MAX_SEQS = 256 };

static const struct model_config *config;
static struct backend_options options;
static struct backend *backend;

static void must_(int r, const struct err *e)
{
    if (r == 0)
        return;
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static struct drive_seq make_seq(int n_prompt, int max_tokens, float temperature, uint64_t seed)
{
    struct drive_seq s = {.n_prompt = n_prompt,
                          .max_tokens = max_tokens,
                          .end_id = -1,
                          .sampling = {.temperature = temperature,
                                       .top_p = 1.0f,
                                       .repetition_penalty = 1.0f,
                                       .seed = seed,
                                       .n_logprobs = -1}};
    int32_t *prompt = malloc((size_t)n_prompt * sizeof(*prompt));

    for (int i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((seed * 7919u + (uint64_t)i * 104729u) % 10000u) % config->vocab_size;
    s.prompt = prompt;
    s.out = calloc((size_t)max_tokens, sizeof(*s.out));
    return s;
}

static void free_seqs(struct drive_seq *seqs, int n)
{
    for (int i = 0; i < n; i++) {
        free((void *)(uintptr_t)seqs[i].prompt);
        free(seqs[i].out);
    }
}

static struct drive_times run(struct drive_seq *seqs, int n)
{
    struct drive_times t;
    struct err e;

    must_(drive(&nvllm_backend, backend, &options, seqs, n, &t, &e), &e);
    return t;
}

/* n sequences of a length, so many tokens each; the time of the decode steps alone. */
static void bench_decode(const char *name, int n, int n_prompt, int n_tokens, float temperature,
                         int top_k)
{
    struct drive_seq seqs[MAX_SEQS];
    struct drive_times first, t;

    for (int i = 0; i < n; i++) {
        seqs[i] = make_seq(n_prompt, n_tokens, temperature, (uint64_t)i + 1);
        seqs[i].sampling.top_k = top_k;
        seqs[i].sampling.top_p = top_k ? 0.95f : 1.0f;
        seqs[i].max_tokens = 24 + n * n_prompt / options.max_batch_tokens; /* all decode at once */
        if (seqs[i].max_tokens > n_tokens)
            seqs[i].max_tokens = n_tokens;
    }
    first = run(seqs, n); /* shapes come for the first time */
    for (int i = 0; i < n; i++)
        seqs[i].max_tokens = n_tokens;
    t = run(seqs, n);
    printf("bench=%s seqs=%d context=%d tokens=%d step_us=%.1f tok_per_s=%.0f gap_ms=%.1f "
           "first_gap_ms=%.1f\n",
           name, n, n_prompt, n_tokens,
           (t.seconds - t.begun_seconds) / (double)(t.steps - t.begun_steps) * 1e6,
           (double)(t.output_tokens - t.begun_tokens) / (t.seconds - t.begun_seconds),
           t.longest_gap * 1e3, first.longest_gap * 1e3);
    fflush(stdout);
    free_seqs(seqs, n);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The time to the first token of one prompt: the median of a few runs. */
static void bench_prefill(int n_prompt)
{
    enum { RUNS = 9 };
    struct drive_seq s = make_seq(n_prompt, 1, 0.0f, 3);
    double seconds[RUNS];

    (void)run(&s, 1); /* loads kernels */
    for (int i = 0; i < RUNS; i++)
        seconds[i] = run(&s, 1).seconds;
    qsort(seconds, RUNS, sizeof(*seconds), by_value);
    printf("bench=prefill context=%d seconds=%.6f tok_per_s=%.0f\n", n_prompt, seconds[RUNS / 2],
           n_prompt / seconds[RUNS / 2]);
    fflush(stdout);
    free_seqs(&s, 1);
}

/* Lengths of prompts and outputs, one pair a line. */
static void bench_mixed(const char *file)
{
    struct drive_seq seqs[MAX_SEQS];
    struct drive_times t;
    FILE *f = fopen(file, "re");
    int n = 0, n_prompt, n_tokens;

    if (!f) {
        perror(file);
        exit(1);
    }
    while (n < MAX_SEQS && fscanf(f, "%d %d", &n_prompt, &n_tokens) == 2) {
        seqs[n] = make_seq(n_prompt, n_tokens, 0.6f, (uint64_t)n + 1);
        n++;
    }
    fclose(f);
    for (int i = 0; i < 2; i++) {
        t = run(seqs, n);
        printf("bench=mixed seqs=%d prompt_tokens=%lu output_tokens=%lu steps=%lu seconds=%.3f "
               "first_s=%.3f gap_ms=%.1f tok_per_s=%.0f\n",
               n, (unsigned long)t.prompt_tokens, (unsigned long)t.output_tokens,
               (unsigned long)t.steps, t.seconds, t.first_seconds, t.longest_gap * 1e3,
               (double)t.output_tokens / t.seconds);
        fflush(stdout);
    }
    free_seqs(seqs, n);
}

/* Which products had a measured choice, and what capturing graphs held steps up for. */
static bool print_first_use(void)
{
    static const double bar = 0.05;
    const struct cuda_first_use u = cuda_backend_first_use(backend);
    const bool reached = u.longest_capture <= bar;

    printf("bench=first_use products_known=%d products_heuristic=%d captures=%d capture_ms=%.2f "
           "bar=%.0f verdict=%s\n",
           u.n_known, u.n_heuristic, u.n_captures, u.longest_capture * 1e3, bar * 1e3,
           reached ? "ok" : "MISSED");
    fflush(stdout);
    return reached;
}

/* What measuring before the first step found of whole steps. */
static void print_paths(double seconds)
{
    static const char *const names[] = {"resident", "skinny", "gemm"};
    const struct algo_records *known = cuda_backend_known(backend);

    printf("bench=tune records=%d open_s=%.2f\n", known->n, seconds);
    for (int i = 0; i < known->n; i++)
        if (known->all[i].out == ALGO_STEP)
            printf("bench=path rows=%d path=%s step_us=%.1f\n", known->all[i].m,
                   names[known->all[i].n - 1], (double)known->all[i].us);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const bool invariant = argc > 2 && strcmp(argv[argc - 1], "invariant") == 0 && argc--;
    struct backend_info info;
    struct model *model;
    struct err e;
    double begin = now_seconds();
    const bool eager = argc > 3 && strcmp(argv[3], "eager") == 0;
    const bool decode = argc > 4 && strcmp(argv[2], "decode") == 0; /* for a profiler */
    const bool mixed = argc > 3 && strcmp(argv[2], "mixed") == 0;
    const bool prefill = argc > 3 && strcmp(argv[2], "prefill") == 0;
    const bool tune = argc > 2 && strcmp(argv[2], "tune") == 0;
    const bool named = decode || mixed || prefill;
    bool reached;

    if (argc < 2) {
        fprintf(stderr,
                "usage: %s MODEL_FOLDER [LENGTHS_FILE | short [CACHE_FOLDER | eager]]\n"
                "       %s MODEL_FOLDER decode SEQS CONTEXT [CACHE_FOLDER]\n"
                "       %s MODEL_FOLDER mixed LENGTHS_FILE\n"
                "       %s MODEL_FOLDER prefill TOKENS\n"
                "       %s MODEL_FOLDER tune [CACHE_FOLDER]\n"
                "       %s attention\n"
                "       %s sampler\n",
                argv[0], argv[0], argv[0], argv[0], argv[0], argv[0], argv[0]);
        return 2;
    }
    if (strcmp(argv[1], "attention") == 0) {
        return bench_attention() ? 0 : 1;
    }
    if (strcmp(argv[1], "sampler") == 0) {
        bench_sampler();
        return 0;
    }
    must_(model_open(&model, argv[1], &e), &e);
    config = model_config(model);
    options = (struct backend_options){.eager = eager,
                                       .invariant = invariant,
                                       .cache_folder = decode && argc > 5             ? argv[5]
                                                       : argc > 3 && !eager && !named ? argv[3]
                                                                                      : NULL,
                                       .tune = tune,
                                       .block_len = 16,
                                       .max_batch_tokens = 8192,
                                       .max_seqs = MAX_SEQS,
                                       .max_seq_len = config->max_seq_len,
                                       .kv_fraction = 0.9};
    must_(nvllm_backend.open(&backend, model, &options, &e), &e);
    nvllm_backend.info(backend, &info);
    printf("bench=open model=%s device=\"%s\" seconds=%.3f weights_mb=%.0f blocks=%d\n",
           model_name(model), info.devices[0], now_seconds() - begin,
           (double)info.weight_bytes / 1e6, info.tiers[TIER_DEVICE].n_blocks);
    fflush(stdout);
    if (tune) {
        print_paths(now_seconds() - begin);
        nvllm_backend.close(backend);
        model_close(model);
        return 0;
    }
    if (decode) {
        const int n = atoi(argv[3]);

        bench_decode("decode", n < 1 || n > MAX_SEQS ? 1 : n, atoi(argv[4]), 144, 0.6f, 0);
        return 0;
    }
    if (prefill) {
        const int n = atoi(argv[3]);

        bench_prefill(n < 1 || n >= config->max_seq_len ? 128 : n);
        return 0;
    }
    if (mixed) {
        bench_mixed(argv[3]);
        return print_first_use() ? 0 : 1;
    }
    bench_decode("decode_greedy", 1, 512, 272, 0.0f, 0);
    if (argc > 2 && strcmp(argv[2], "short") == 0) /* for a profiler */
        return 0;
    bench_decode("decode_sampled", 1, 512, 272, 0.6f, 0);
    bench_decode("decode_top_k", 1, 512, 272, 0.6f, 20);
    bench_decode("decode", 8, 512, 144, 0.6f, 0);
    bench_decode("decode", 64, 512, 144, 0.6f, 0);
    bench_decode("decode", 256, 800, 80, 0.6f, 0);
    bench_decode("decode_top_k", 256, 800, 80, 0.6f, 20);
    bench_decode("decode_long", 1, 30000, 144, 0.0f, 0);
    for (int n = 128; n <= 8192; n *= 4)
        bench_prefill(n);
    if (config->max_seq_len >= 40960)
        bench_prefill(40959);
    if (argc > 2)
        bench_mixed(argv[2]);
    reached = print_first_use();
    nvllm_backend.close(backend);
    model_close(model);
    return reached ? 0 : 1;
}
