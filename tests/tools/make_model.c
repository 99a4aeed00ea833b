/* make_model.c - writes a model folder of any family and shape with seeded random weights, for
 * tests and benchmarks.
 *
 * Weights are normal with deviation 0.02, norms 1 + 0.1 * normal: each is an entry of a table of
 * 65,536 normal quantiles, chosen by 16 bits of a counter-based generator. So a value depends on
 * the seed, the tensor's name and its place alone, not on threads, shards or dtype.
 *
 * With a cycle the LM head's row of each token is the embedding of the one before it, and layers
 * add next to nothing: they are computed as ever, but what follows is known. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "engine/util/bf16.h"
#include "engine/model/model.h"
#include "tests/tools/model_writer.h"

enum {
    TABLE = 65536,
    CHUNK = 1 << 18, /* elements generated and written at a time: half a core's second cache */
    MAX_THREADS = 256,
};

struct tables {
    float f32[TABLE];
    uint16_t u16[TABLE]; /* the same in bf16 or f16 */
};

struct job {
    const struct writer *w;
    struct tables *weights, *norms, *faint;
    uint64_t cycle;     /* tokens of it; 0: none */
    atomic_size_t next; /* tensor to be written */
    atomic_int failed;  /* errno of the first write that did */
};

static double normal_quantile(double p)
{
    double lo = -10.0, hi = 0.0; /* p is below a half */

    for (int i = 0; i < 44; i++) {
        double mid = (lo + hi) / 2;

        if (0.5 * erfc(-mid * M_SQRT1_2) < p)
            lo = mid;
        else
            hi = mid;
    }
    return (lo + hi) / 2;
}

/* Nearest f16, ties to even, of a finite number below 65504. */
static uint16_t f16_from_double(double x)
{
    double a = fabs(x);
    int exponent = a < 0x1p-14 ? -14 : ilogb(a);
    /* A carry of the mantissa into the exponent is right as it falls. */
    long mantissa = lrint(ldexp(a, 10 - exponent));
    long bits = a < 0x1p-14 ? mantissa : ((long)(exponent + 14) << 10) + mantissa;

    return (uint16_t)(bits | (x < 0 ? 0x8000 : 0));
}

static struct tables *tables_new(double mean, double deviation, enum dtype dtype)
{
    struct tables *t = malloc(sizeof(*t));

    if (!t)
        return NULL;
    for (int i = 0; i < TABLE / 2; i++) {
        double q = normal_quantile((i + 0.5) / TABLE); /* never zero */

        t->f32[i] = (float)(mean + deviation * q);
        t->f32[TABLE - 1 - i] = (float)(mean - deviation * q);
    }
    for (int i = 0; i < TABLE; i++)
        t->u16[i] = dtype == DTYPE_F16 ? f16_from_double(t->f32[i]) : bf16_from_f32(t->f32[i]);
    return t;
}

/* splitmix64's output function (Steele et al. 2014): four table places from one counter. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* first is a multiple of four, for chunks are. */
static void generate(void *dst, const struct tables *t, enum dtype dtype, uint64_t key,
                     uint64_t first, uint64_t n)
{
    uint16_t *u16 = dst;
    float *f32 = dst;

    for (uint64_t i = 0; i < n; i += 4) {
        uint64_t bits = mix(key + (first + i) / 4);
        uint64_t end = i + 4 < n ? i + 4 : n;

        for (uint64_t j = i; j < end; j++, bits >>= 16) {
            if (dtype == DTYPE_F32)
                f32[j] = t->f32[bits & 0xffff];
            else
                u16[j] = t->u16[bits & 0xffff];
        }
    }
}

static int write_all(int fd, const char *src, size_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t n = pwrite(fd, src, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        src += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static uint64_t key_of(const struct job *j, const char *name)
{
    return XXH3_64bits_withSeed(name, strlen(name), j->w->seed);
}

static bool adds_to_residual(const char *name)
{
    return strstr(name, "o_proj.weight") || strstr(name, "down_proj.weight");
}

/* Rows of the LM head: what comes after token i of the cycle is i + 1. */
static int write_cycle(const struct job *j, const struct tensor *t, void *buf)
{
    const uint64_t key = key_of(j, "model.embed_tokens.weight"), n = j->cycle;
    const uint64_t dim = (uint64_t)j->w->config.hidden_dim,
                   bytes = dim * dtype_info[t->dtype].bits / 8;
    int rc = 0;

    for (uint64_t i = 0; i < n && !rc; i++) {
        generate(buf, j->weights, t->dtype, key, i * dim, dim);
        rc = write_all(j->w->shards[t->file].fd, buf, bytes, t->offset + (i + 1) % n * bytes);
    }
    return rc;
}

static int write_tensor(const struct job *j, const struct tensor *t, void *buf)
{
    const struct tables *tables = strstr(t->name, "norm")                     ? j->norms
                                  : j->cycle > 0 && adds_to_residual(t->name) ? j->faint
                                                                              : j->weights;
    const uint64_t key = key_of(j, t->name);
    const uint64_t all = tensor_elements(t), size = dtype_info[t->dtype].bits / 8;
    int rc = 0;

    for (uint64_t at = 0, n; at < all && !rc; at += n) {
        n = all - at < CHUNK ? all - at : CHUNK;
        generate(buf, tables, t->dtype, key, at, n);
        rc = write_all(j->w->shards[t->file].fd, buf, n * size, t->offset + at * size);
    }
    if (!rc && j->cycle > 0 && strcmp(t->name, "lm_head.weight") == 0)
        rc = write_cycle(j, t, buf);
    return rc;
}

static void *work(void *arg)
{
    struct job *j = arg;
    char *buf = malloc((size_t)CHUNK * 4);
    int rc = buf ? 0 : ENOMEM;
    size_t i;

    while (!rc && !atomic_load(&j->failed) && (i = atomic_fetch_add(&j->next, 1)) < j->w->tensors.n)
        rc = write_tensor(j, &j->w->tensors.all[i], buf);
    if (rc)
        atomic_store(&j->failed, rc);
    free(buf);
    return NULL;
}

static int write_weights(const struct writer *w, int n_threads, uint64_t cycle)
{
    struct job j = {.w = w,
                    .cycle = cycle,
                    .faint = tables_new(0.0, 0.02 / 16384, w->dtype),
                    .weights = tables_new(0.0, 0.02, w->dtype),
                    .norms = tables_new(1.0, 0.1, w->dtype)};
    pthread_t threads[MAX_THREADS];
    int n = 0;

    if (j.weights && j.norms && j.faint) {
        while (n < n_threads - 1 && pthread_create(&threads[n], NULL, work, &j) == 0)
            n++;
        work(&j);
        for (int i = 0; i < n; i++)
            pthread_join(threads[i], NULL);
    } else {
        atomic_store(&j.failed, ENOMEM);
    }
    free(j.weights);
    free(j.norms);
    free(j.faint);
    return atomic_load(&j.failed);
}

static const struct {
    const char *name;
    struct model_config config;
} presets[] = {
#define QWEN3(h, l, q, kv, ffn, t)                                                                 \
    {                                                                                              \
        WRITER_QWEN3, l, q, kv, 128, h, ffn, 151936, 40960, 1e-6f, 1e6, t                          \
    }
    {"qwen3-0.6b", QWEN3(1024, 28, 16, 8, 3072, true)},
    {"qwen3-1.7b", QWEN3(2048, 28, 16, 8, 6144, true)},
    {"qwen3-4b", QWEN3(2560, 36, 32, 8, 9728, true)},
    {"qwen3-8b", QWEN3(4096, 36, 32, 8, 12288, false)},
    {"qwen3-14b", QWEN3(5120, 40, 40, 8, 17408, false)},
    {"qwen3-32b", QWEN3(5120, 64, 64, 8, 25600, false)},
#undef QWEN3
    {"qwen2.5-0.5b", {WRITER_QWEN2, 24, 14, 2, 64, 896, 4864, 151936, 32768, 1e-6f, 1e6, true}},
    {"qwen2.5-7b", {WRITER_QWEN2, 28, 28, 4, 128, 3584, 18944, 152064, 32768, 1e-6f, 1e6, false}},
    {"llama-3.1-8b",
     {WRITER_LLAMA, 32, 32, 8, 128, 4096, 14336, 128256, 131072, 1e-5f, 5e5, false,
      .rope = {.kind = ROPE_LLAMA3,
               .factor = 8,
               .original_len = 8192,
               .low_freq_factor = 1,
               .high_freq_factor = 4}}},
    {"mistral-nemo",
     {WRITER_MISTRAL, 40, 32, 8, 128, 5120, 14336, 131072, 131072, 1e-5f, 1e6, false}},
    {"qwen3-30b-a3b",
     {WRITER_QWEN3_MOE(128, 8), 48, 32, 4, 128, 2048, 768, 151936, 40960, 1e-6f, 1e6, false,
      .norm_topk = true}},
    {"mixtral-8x7b",
     {WRITER_MIXTRAL(8, 2), 32, 32, 8, 128, 4096, 14336, 32000, 32768, 1e-5f, 1e6, false}},
    {"test-llama3",
     {WRITER_LLAMA, 2, 4, 2, 16, 64, 160, 2048, 4096, 1e-6f, 5e5, true,
      .rope = {.kind = ROPE_LLAMA3,
               .factor = 8,
               .original_len = 512,
               .low_freq_factor = 1,
               .high_freq_factor = 4}}},
    {"test-mistral", {WRITER_MISTRAL, 2, 4, 2, 32, 64, 160, 2048, 4096, 1e-6f, 1e4, false}},
    {"test-yarn",
     {WRITER_QWEN2, 2, 4, 2, 16, 64, 160, 2048, 1024, 1e-6f, 1e6, true,
      .rope = {.kind = ROPE_YARN, .factor = 4, .original_len = 1024}}},
    {"test-linear",
     {WRITER_LLAMA, 2, 4, 4, 16, 64, 160, 2048, 4096, 1e-6f, 1e4, false,
      .rope = {.kind = ROPE_LINEAR, .factor = 4}}},
    {"test-qwen3", {WRITER_QWEN3, 2, 4, 2, 16, 64, 160, 2048, 4096, 1e-6f, 1e6, true}},
    {"test-qwen2", {WRITER_QWEN2, 2, 4, 2, 16, 64, 160, 2048, 4096, 1e-6f, 1e6, false}},
    {"test-qwen3-moe",
     {WRITER_QWEN3_MOE(16, 4), 2, 4, 2, 16, 64, 96, 2048, 4096, 1e-6f, 1e6, false,
      .norm_topk = true}},
    {"test-mixtral", {WRITER_MIXTRAL(8, 2), 2, 4, 2, 16, 64, 160, 2048, 4096, 1e-6f, 1e6, false}},
};

enum { N_PRESETS = sizeof(presets) / sizeof(presets[0]) };

static void usage(FILE *out)
{
    fprintf(out, "usage: make_model [options] FOLDER\n"
                 "  --preset NAME        the shape to begin with (test-qwen3):");
    for (int i = 0; i < N_PRESETS; i++)
        fprintf(out, "%s %s", i % 6 == 0 ? "\n                      " : "", presets[i].name);
    fprintf(
        out,
        "\n"
        "  --arch llama|mistral|mixtral|qwen2|qwen3|qwen3-moe, and each dimension that is\n"
        "  to be another:\n"
        "  --layers N --heads N --kv-heads N --head-dim N --hidden N --ffn N --vocab N\n"
        "  --max-seq-len N --tied --untied\n"
        "  --experts N --experts-per-tok N --norm-topk\n"
        "  --dtype bf16|f16|f32 how weights are stored (bf16)\n"
        "  --shards N           files, at most (1)\n"
        "  --seed N             (1)\n"
        "  --cycle N            greedy decoding goes from token i to i + 1, and from N - 1 to 0,\n"
        "                       whatever came before; --untied (0: none)\n"
        "  --threads N          (one a core)\n"
        "  --tokenizer DIR      whose tokenizer to copy (nvllm-tiny's)\n"
        "An existing folder's files are overwritten.\n");
}

/* A number from the command line; exits with 2 if it is none. */
static uint64_t number(const char *option, const char *text, uint64_t min, uint64_t max)
{
    char *end;
    unsigned long long x;

    errno = 0;
    x = strtoull(text, &end, 10);
    if (errno || end == text || *end || text[0] == '-' || x < min || x > max) {
        fprintf(stderr, "make_model: --%s: \"%s\" is not in %" PRIu64 " .. %" PRIu64 "\n", option,
                text, min, max);
        exit(2);
    }
    return x;
}

/* The index of text in a NULL-terminated list; exits with 2 if it is not there. */
static int choice(const char *option, const char *text, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(list[i], text) == 0)
            return i;
    fprintf(stderr, "make_model: --%s: \"%s\" is not known (see --help)\n", option, text);
    exit(2);
}

static const char *const family_names[] = {"llama", "mistral",   "mixtral", "qwen2",
                                           "qwen3", "qwen3-moe", NULL};

static void set_family(struct model_config *c, int family)
{
    static const struct model_config families[] = {
        {WRITER_LLAMA}, {WRITER_MISTRAL}, {WRITER_MIXTRAL(8, 2)},
        {WRITER_QWEN2}, {WRITER_QWEN3},   {WRITER_QWEN3_MOE(128, 8)}};
    const struct model_config *from = &families[family];

    c->arch = from->arch;
    c->qkv_bias = from->qkv_bias;
    c->qk_norm = from->qk_norm;
    c->n_experts = from->n_experts;
    c->n_experts_per_tok = from->n_experts_per_tok;
    c->norm_topk = from->norm_topk;
    c->block_sparse_moe = from->block_sparse_moe;
}

static void parse(struct writer *w, int *n_threads, uint64_t *cycle, int argc, char **argv)
{
    enum {
        PRESET,
        ARCH,
        DTYPE,
        SHARDS,
        SEED,
        THREADS,
        CYCLE,
        TOKENIZER,
        TIED,
        UNTIED,
        NORM_TOPK,
        HELP,
        DIMS
    };
    struct model_config *c = &w->config;
    int32_t *const dims[] = {&c->n_layers,   &c->n_heads,          &c->n_kv_heads, &c->head_dim,
                             &c->hidden_dim, &c->ffn_dim,          &c->vocab_size, &c->max_seq_len,
                             &c->n_experts,  &c->n_experts_per_tok};
    static const struct option options[] = {
        {"preset", 1, NULL, PRESET},
        {"arch", 1, NULL, ARCH},
        {"dtype", 1, NULL, DTYPE},
        {"shards", 1, NULL, SHARDS},
        {"seed", 1, NULL, SEED},
        {"threads", 1, NULL, THREADS},
        {"cycle", 1, NULL, CYCLE},
        {"tokenizer", 1, NULL, TOKENIZER},
        {"tied", 0, NULL, TIED},
        {"untied", 0, NULL, UNTIED},
        {"norm-topk", 0, NULL, NORM_TOPK},
        {"help", 0, NULL, HELP},
        {"layers", 1, NULL, DIMS},
        {"heads", 1, NULL, DIMS + 1},
        {"kv-heads", 1, NULL, DIMS + 2},
        {"head-dim", 1, NULL, DIMS + 3},
        {"hidden", 1, NULL, DIMS + 4},
        {"ffn", 1, NULL, DIMS + 5},
        {"vocab", 1, NULL, DIMS + 6},
        {"max-seq-len", 1, NULL, DIMS + 7},
        {"experts", 1, NULL, DIMS + 8},
        {"experts-per-tok", 1, NULL, DIMS + 9},
        {NULL, 0, NULL, 0},
    };
    const char *names[N_PRESETS + 1] = {NULL};
    int o, at;

    for (int i = 0; i < N_PRESETS; i++)
        names[i] = presets[i].name;
    *c = presets[choice("preset", "test-qwen3", names)].config;
    for (int pass = 0; pass < 2; pass++) { /* the preset first, wherever it stands */
        optind = 1;
        while ((o = getopt_long(argc, argv, "", options, &at)) >= 0) {
            if (o == PRESET && pass == 0)
                *c = presets[choice("preset", optarg, names)].config;
            if (pass == 0 && o != '?')
                continue;
            switch (o) {
            case PRESET:
                break;
            case ARCH:
                set_family(c, choice("arch", optarg, family_names));
                break;
            case DTYPE:
                w->dtype = (enum dtype)choice("dtype", optarg,
                                              (const char *const[]){"bf16", "f16", "f32", NULL});
                break;
            case SHARDS:
                w->n_shards = number("shards", optarg, 1, WRITER_MAX_SHARDS);
                break;
            case SEED:
                w->seed = number("seed", optarg, 0, UINT64_MAX);
                break;
            case THREADS:
                *n_threads = (int)number("threads", optarg, 1, MAX_THREADS);
                break;
            case CYCLE:
                *cycle = number("cycle", optarg, 0, 1 << 24);
                break;
            case TOKENIZER:
                w->tokenizer = optarg;
                break;
            case TIED:
            case UNTIED:
                c->tied = o == TIED;
                break;
            case NORM_TOPK:
                c->norm_topk = true;
                break;
            case HELP:
                usage(stdout);
                exit(0);
            case '?':
                usage(stderr);
                exit(2);
            default:
                *dims[o - DIMS] = (int32_t)number(options[at].name, optarg, 1, 1 << 24);
            }
        }
    }
    if (optind != argc - 1) {
        usage(stderr);
        exit(2);
    }
    if (*cycle > 0 && (c->tied || *cycle > (uint64_t)c->vocab_size)) {
        fprintf(stderr, "make_model: --cycle: it needs --untied, and a vocabulary that large\n");
        exit(2);
    }
    w->folder = argv[optind];
}

int main(int argc, char **argv)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n_threads = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores;
    struct writer w = {.n_shards = 1, .seed = 1, .tokenizer = NVLLM_TINY_DIR};
    struct model *made;
    uint64_t cycle = 0;
    struct err e;
    int rc;

    parse(&w, &n_threads, &cycle, argc, argv);
    if (writer_open(&w, &e) < 0) {
        fprintf(stderr, "make_model: %s\n", e.text);
        return 1;
    }
    rc = write_weights(&w, n_threads, cycle);
    if (rc)
        fprintf(stderr, "make_model: %s: writing weights: %s\n", w.folder, strerror(rc));
    else
        printf("%s: %zu tensors, %.1f million parameters, %" PRIu64 " bytes in %zu file%s\n",
               w.folder, w.tensors.n, (double)w.tensors.n_elements / 1e6, w.tensors.bytes,
               w.n_shards, w.n_shards == 1 ? "" : "s");
    if (writer_close(&w, &e) < 0) {
        fprintf(stderr, "make_model: %s\n", e.text);
        return 1;
    }
    if (rc)
        return 1;
    if (model_open(&made, w.folder, &e) < 0) { /* a shape that is not possible */
        fprintf(stderr, "make_model: what was written does not open: %s\n", e.text);
        return 1;
    }
    model_close(made);
    return 0;
}
