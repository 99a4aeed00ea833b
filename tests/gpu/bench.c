/* bench.c - speed of the CUDA backend through its contract, on a model folder: one stream, many
 * streams, one long prompt, and the throughput benchmark that nano-vLLM publishes (its lengths read
 * from a file; see random_lengths.py). Prints one line of key=value a measurement; without
 * arguments, how it is called.
 *
 * With -r N the model is divided among N ranks; with -q TYPE, "fp8" or "int4", its weights are
 * quantized as they are loaded; with -k fp8 keys and values are that, too. With a last word
 * `invariant` the backend promises that nothing depends on what else runs. Where a bar is missed
 * the exit status is 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/rank.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/drive.h"
#include "tests/gpu/gpu_rig.h"

extern const struct backend_ops nvllm_backend;

enum { MAX_SEQS = 256 };

static const struct model_config *config;
static struct backend_options options;
static struct backend *backend;

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
    int32_t *prompt = host_new((size_t)n_prompt, sizeof(*prompt));

    for (int i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((seed * 7919u + (uint64_t)i * 104729u) % 10000u) % config->vocab_size;
    s.prompt = prompt;
    s.out = host_new((size_t)max_tokens, sizeof(*s.out));
    return s;
}

static struct drive_times run(struct drive_seq *seqs, int n)
{
    struct drive_times t;
    struct err e;

    err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = backend, .options = &options},
                   seqs, n, &t, &e),
             &e);
    return t;
}

/* n sequences of a length, or of up to `spread` tokens more, so many tokens each; the time of the
 * decode steps alone. */
static void bench_decode(const char *name, int n, int n_prompt, int spread, int n_tokens,
                         float temperature, int top_k)
{
    struct drive_seq seqs[MAX_SEQS];
    struct drive_times first, t;

    for (int i = 0; i < n; i++) {
        const int longer = (int)((int64_t)spread * (i * 37 % 64) / 63); /* in mixed order */

        seqs[i] = make_seq(n_prompt + longer, n_tokens, temperature, (uint64_t)i + 1);
        seqs[i].sampling.top_k = top_k;
        seqs[i].sampling.top_p = top_k ? 0.95f : 1.0f;
        /* all decode at once */
        seqs[i].max_tokens = 24 + n * (n_prompt + spread) / options.max_batch_tokens;
        if (seqs[i].max_tokens > n_tokens)
            seqs[i].max_tokens = n_tokens;
    }
    first = run(seqs, n); /* shapes come for the first time */
    for (int i = 0; i < n; i++)
        seqs[i].max_tokens = n_tokens;
    t = run(seqs, n);
    printf("bench=%s seqs=%d context=%d", name, n, n_prompt);
    if (spread > 0)
        printf("-%d", n_prompt + spread);
    printf(" tokens=%d step_us=%.1f tok_per_s=%.0f gap_ms=%.1f first_gap_ms=%.1f\n", n_tokens,
           (t.seconds - t.begun_seconds) / (double)(t.steps - t.begun_steps) * 1e6,
           (double)(t.output_tokens - t.begun_tokens) / (t.seconds - t.begun_seconds),
           t.longest_gap * 1e3, first.longest_gap * 1e3);
    fflush(stdout);
}

/* What decodes lose while blocks move, and how fast these do. */
static void bench_copies(int n, int n_prompt)
{
    static const int under_way[][2] = {{0, 0}, {512, 0}, {0, 512}, {512, 512}};
    struct backend_info info;
    double alone = 0.0;

    nvllm_backend.info(backend, &info);
    for (int k = 0; k < 4; k++) {
        struct driver d = {.ops = &nvllm_backend,
                           .backend = backend,
                           .options = &options,
                           .n_copies = {under_way[k][0], under_way[k][1]}};
        struct drive_seq seqs[MAX_SEQS];
        struct drive_times t;
        struct err e;
        double step;

        for (int i = 0; i < n; i++)
            seqs[i] = make_seq(n_prompt, 272, 0.0f, (uint64_t)i + 1);
        err_must(drive(&d, seqs, n, &t, &e), &e);
        step = (t.seconds - t.begun_seconds) / (double)(t.steps - t.begun_steps);
        alone = k ? alone : step;
        printf(
            "bench=copies seqs=%d context=%d up=%d down=%d step_us=%.1f share=%.3f gb_per_s=%.1f\n",
            n, n_prompt, under_way[k][0], under_way[k][1], step * 1e6, alone / step,
            (double)d.n_copied * (double)info.block_bytes / t.seconds / 1e9);
        fflush(stdout);
    }
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
    sort_numbers(seconds, RUNS);
    printf("bench=prefill context=%d seconds=%.6f tok_per_s=%.0f\n", n_prompt, seconds[RUNS / 2],
           n_prompt / seconds[RUNS / 2]);
    fflush(stdout);
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
}

/* Which products had a measured choice, and how long capturing graphs delayed steps. */
static bool print_first_use(void)
{
    static const double bar = 0.05;
    const struct rank *rank = cuda_backend_rank(backend);
    const bool reached = rank->graphs.longest <= bar;
    int n_known, n_heuristic;

    gemm_counts(rank->gemm, &n_known, &n_heuristic);
    printf("bench=first_use products_known=%d products_heuristic=%d captures=%d capture_ms=%.2f "
           "bar=%.0f verdict=%s\n",
           n_known, n_heuristic, rank->graphs.n_captures, rank->graphs.longest * 1e3, bar * 1e3,
           reached ? "ok" : "MISSED");
    fflush(stdout);
    return reached;
}

/* What measuring before the first step found of whole steps. */
static void print_paths(double seconds)
{
    static const char *const names[] = {"resident", "skinny", "gemm"};
    const struct algo_records *known = &cuda_backend_rank(backend)->known;

    printf("bench=tune records=%d open_s=%.2f\n", known->n, seconds);
    for (int i = 0; i < known->n; i++)
        if (known->all[i].shape.out == ALGO_STEP)
            printf("bench=path rows=%d path=%s step_us=%.1f\n", known->all[i].shape.m,
                   names[known->all[i].shape.n - 1], (double)known->all[i].us);
    fflush(stdout);
}

/* All but what has a name of its own. */
static void bench_all(const char *lengths)
{
    bench_decode("decode_sampled", 1, 512, 0, 272, 0.6f, 0);
    bench_decode("decode_top_k", 1, 512, 0, 272, 0.6f, 20);
    bench_decode("decode", 8, 512, 0, 144, 0.6f, 0);
    bench_decode("decode", 64, 512, 0, 144, 0.6f, 0);
    bench_decode("decode", 256, 800, 0, 80, 0.6f, 0);
    bench_decode("decode_top_k", 256, 800, 0, 80, 0.6f, 20);
    bench_decode("decode_long", 1, 30000, 0, 144, 0.0f, 0);
    for (int n = 128; n <= 8192; n *= 4)
        bench_prefill(n);
    if (config->max_seq_len >= 40960)
        bench_prefill(40959);
    if (lengths)
        bench_mixed(lengths);
}

static bool is(const char *word, const char *name)
{
    return word && strcmp(word, name) == 0;
}

/* The next of the numbers between commas; 0: there is none, or one below 1 or above `most`. */
static int next_number(char **at, int most)
{
    char *end;
    const long n = strtol(*at, &end, 10);

    if (end == *at || n < 1 || n > most)
        return 0;
    *at = end + strspn(end, ",");
    return (int)n;
}

static bool is_end(const char *at, int most)
{
    if (*at)
        fprintf(stderr, "not a number from 1 to %d: %s\n", most, at);
    return !*at;
}

int main(int argc, char **argv)
{
    const bool invariant = argc > 2 && is(argv[argc - 1], "invariant");
    const double begin = now_seconds();
    char *words[4] = {0}; /* after the folder */
    const char *type = NULL, *kv = NULL;
    int n_ranks = 1;
    bool copies, decode, mixed, prefill, tune, reached = true;
    struct backend_info info;
    struct model *model;
    struct err e;

    while (argc > 2 && argv[1][0] == '-') {
        if (is(argv[1], "-r"))
            n_ranks = atoi(argv[2]);
        else if (is(argv[1], "-q"))
            type = argv[2];
        else if (is(argv[1], "-k"))
            kv = argv[2];
        else
            break;
        argv[2] = argv[0];
        argc -= 2;
        argv += 2;
    }
    for (int i = 2; i < argc - invariant && i < 6; i++)
        words[i - 2] = argv[i];
    copies = is(words[0], "copies") && words[2];
    decode = is(words[0], "decode") && words[2];
    mixed = is(words[0], "mixed") && words[1];
    prefill = is(words[0], "prefill") && words[1];
    tune = is(words[0], "tune");
    if (argc < 2) {
        fprintf(stderr,
                "usage: %1$s [-r N] [-q TYPE] [-k KV] MODEL_FOLDER [LENGTHS_FILE | short\n"
                "           [CACHE_FOLDER | eager]]\n"
                "       %1$s MODEL_FOLDER decode SEQS[,SEQS]... CONTEXT[-CONTEXT] [CACHE_FOLDER]\n"
                "       %1$s MODEL_FOLDER copies SEQS CONTEXT\n"
                "       %1$s MODEL_FOLDER mixed LENGTHS_FILE\n"
                "       %1$s MODEL_FOLDER prefill TOKENS[,TOKENS]... [CACHE_FOLDER]\n"
                "       %1$s MODEL_FOLDER tune [CACHE_FOLDER]\n"
                "       %1$s attention\n"
                "       %1$s experts\n"
                "       %1$s sampler\n"
                "       %1$s ranks\n",
                argv[0]);
        return 2;
    }
    if (is(argv[1], "attention"))
        return bench_attention() ? 0 : 1;
    if (is(argv[1], "experts")) {
        bench_experts();
        return 0;
    }
    if (is(argv[1], "sampler")) {
        bench_sampler();
        return 0;
    }
    if (is(argv[1], "ranks")) {
        bench_ranks();
        return 0;
    }
    err_must(model_open(&model, argv[1], &e), &e);
    quantize_to(model, type);
    config = model_config(model);
    options = (struct backend_options){.eager = is(words[1], "eager"),
                                       .invariant = invariant,
                                       .tp_size = n_ranks,
                                       .tune = tune,
                                       .block_len = 16,
                                       .max_batch_tokens = 8192,
                                       .max_seqs = MAX_SEQS,
                                       .max_seq_len = config->max_seq_len,
                                       .kv_dtype = kv_dtype_of(kv),
                                       .kv_fraction = 0.9};
    options.tier_bytes[TIER_HOST] = copies ? 8ull << 30 : 0;
    if (!options.eager && !mixed && !copies)
        options.cache_folder = words[decode ? 3 : prefill ? 2 : 1];
    err_must(nvllm_backend.open(&backend, model, &options, &e), &e);
    nvllm_backend.info(backend, &info);
    printf("bench=open model=%s weights=%s keys=%s device=\"%s\" seconds=%.3f weights_mb=%.0f "
           "blocks=%d\n",
           basename(argv[1]), type ? type : model_dtype_name(model), kv ? kv : "bf16",
           info.devices[0].name, now_seconds() - begin, (double)info.weight_bytes / 1e6,
           info.tiers[TIER_DEVICE].n_blocks);
    fflush(stdout);
    if (tune) {
        print_paths(now_seconds() - begin);
    } else if (decode) { /* for a profiler, as prefill and short are */
        const char *const to = strchr(words[2], '-');
        const int shortest = atoi(words[2]), longest = to ? atoi(to + 1) : shortest;

        for (int n; (n = next_number(&words[1], MAX_SEQS)) > 0;)
            bench_decode("decode", n, shortest, longest - shortest, 144, 0.6f, 0);
        reached = is_end(words[1], MAX_SEQS);
    } else if (copies) {
        while (nvllm_backend.idle(backend, &e) == 1) /* until memory is pinned */
            ;
        bench_copies(atoi(words[1]), atoi(words[2]));
    } else if (prefill) {
        for (int n; (n = next_number(&words[1], config->max_seq_len - 1)) > 0;)
            bench_prefill(n);
        reached = is_end(words[1], config->max_seq_len - 1);
    } else if (mixed) {
        bench_mixed(words[1]);
        reached = print_first_use();
    } else {
        bench_decode("decode_greedy", 1, 512, 0, 272, 0.0f, 0);
        if (!is(words[0], "short")) {
            bench_all(words[0]);
            reached = print_first_use();
        }
    }
    nvllm_backend.close(backend);
    model_close(model);
    memory_free();
    return reached ? 0 : 1;
}
