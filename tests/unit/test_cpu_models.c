/* test_cpu_models.c - the CPU backend on small random models of all shapes, against a plain forward
 * pass in double precision. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/util/bf16.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/model/model.h"
#include "tests/tools/backend_driver.h"
#include "tests/tools/model_writer.h"
#include "tests/unit/reference_forward.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

enum { N_PROMPT = 150, N_OUT = 6, NAN_TOKEN = 7 };

static struct err e;
static struct model *model;

static double uniform(uint64_t *x) /* -1 .. 1 */
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(*x >> 32) / 0x1p31;
}

/* What is to be special about weights. */
enum flaw { SOUND, NAN_EMBEDDING, NAN_SCORE, EQUAL_SCORES };

/* NaN in the embedding of NAN_TOKEN, or in the weights that score the second expert; or scores that
 * are all zero, so that all rows go to the same experts. */
static void add_flaw(uint16_t *data, const struct tensor *t, enum flaw flaw)
{
    if (flaw == NAN_EMBEDDING && strstr(t->name, "embed"))
        data[NAN_TOKEN * t->shape[1]] = 0x7fc0;
    if (flaw == NAN_SCORE && strstr(t->name, ".gate.weight"))
        data[t->shape[1]] = 0x7fc0;
    if (flaw == EQUAL_SCORES && strstr(t->name, ".gate.weight"))
        memset(data, 0, (size_t)tensor_elements(t) * sizeof(*data));
}

/* Writes and opens a folder of random weights, large enough that rounding hides no error. */
static void make_model(const struct model_config *c, enum flaw flaw)
{
    struct writer w = {.folder = dir,
                       .tokenizer = TEST_MODEL_DIR,
                       .config = *c,
                       .dtype = DTYPE_BF16,
                       .n_shards = 2};
    uint64_t x = 12345;

    make_dir();
    ck_assert_msg(writer_open(&w, &e) == 0, "%s", e.text);
    for (size_t i = 0; i < w.tensors.n; i++) {
        const struct tensor *t = &w.tensors.all[i];
        const size_t n = (size_t)tensor_elements(t);
        const bool is_norm = strstr(t->name, "norm") != NULL, is_bias = strstr(t->name, ".bias");
        const double scale = is_norm || is_bias ? 0.5 : 1.5 / sqrt((double)t->shape[1]);
        uint16_t *data = calloc(n, sizeof(*data));

        for (size_t j = 0; j < n; j++)
            data[j] = bf16_from_f32((float)(scale * uniform(&x) + (is_norm ? 1.0 : 0.0)));
        add_flaw(data, t, flaw);
        ck_assert_int_eq(pwrite(w.shards[t->file].fd, data, n * 2, (off_t)t->offset), (int)(n * 2));
        free(data);
    }
    ck_assert_msg(writer_close(&w, &e) == 0, "%s", e.text);
    ck_assert_msg(model_open(&model, dir, &e) == 0, "%s", e.text);
}

static void drop_model(void)
{
    model_close(model);
    remove_dir();
}

static struct backend_options options;

static struct driver open_backend(int max_rows, enum cpu_isa isa, int tp_size)
{
    struct driver d = {.ops = &cpu_backend, .options = &options, .scatter = 3};

    options = (struct backend_options){.block_len = 16,
                                       .max_batch_tokens = max_rows,
                                       .max_seqs = 4,
                                       .max_seq_len = 8192,
                                       .tier_bytes = {64 << 20},
                                       .n_threads = 2,
                                       .tp_size = tp_size};
    ck_assert_msg(cpu_backend_open_with(&d.backend, model, &options, cpu_ops_get(isa), &e) == 0,
                  "%s", e.text);
    return d;
}

static void run_seqs(struct driver *d, struct drive_seq *seqs, int n)
{
    struct drive_times times;

    ck_assert_msg(drive(d, seqs, n, &times, &e) == 0, "%s", e.text);
}

static void run_long(struct drive_seq *s, const int32_t *prompt, int n_prompt, int max_rows,
                     enum cpu_isa isa, int tp_size)
{
    struct driver d = open_backend(max_rows, isa, tp_size);

    drive_seq_init(s, prompt, n_prompt, N_OUT, SAMPLING_MAX_LOGPROBS);
    run_seqs(&d, s, 1);
    cpu_backend.close(d.backend);
}

static void run(struct drive_seq *s, const int32_t *prompt, int max_rows, enum cpu_isa isa,
                int tp_size)
{
    run_long(s, prompt, N_PROMPT, max_rows, isa, tp_size);
}

static enum cpu_isa best_isa(void)
{
    return cpu_ops_get(CPU_ISA_AVX512) ? CPU_ISA_AVX512
           : cpu_ops_get(CPU_ISA_AVX2) ? CPU_ISA_AVX2
                                       : CPU_ISA_PLAIN;
}

static const struct model_config shapes[] = {
    /* arch, layers, heads, kv heads, head_dim, hidden, ffn, vocab, length, eps, theta, tied */
    {WRITER_QWEN2, 2, 6, 2, 10, 52, 77, 2048, 1024, 1e-6f, 1e4, false},
    {WRITER_QWEN2, 2, 14, 2, 64, 64, 130, 2048, 1024, 1e-6f, 1e6, true},
    {WRITER_QWEN2, 1, 64, 1, 2, 48, 64, 2048, 1024, 1e-5f, 1e6, true}, /* a group over one tile */
    {WRITER_QWEN3, 2, 4, 4, 6, 33, 50, 2053, 1024, 1e-6f, 1e6, true},
    {WRITER_QWEN3, 3, 8, 2, 32, 80, 96, 2048, 1024, 1e-6f, 5e5, false},
    {WRITER_LLAMA, 2, 6, 2, 16, 52, 77, 2048, 1024, 1e-6f, 5e5, true,
     .rope = {.kind = ROPE_LLAMA3,
              .factor = 8,
              .original_len = 64,
              .low_freq_factor = 1,
              .high_freq_factor = 4}},
    {WRITER_MISTRAL, 2, 6, 2, 32, 52, 77, 2048, 1024, 1e-6f, 1e4, false},
    {WRITER_QWEN3, 2, 4, 4, 16, 33, 50, 2053, 1024, 1e-6f, 1e6, true,
     .rope = {.kind = ROPE_YARN, .factor = 4, .original_len = 64}},
    {WRITER_QWEN3_MOE(16, 4), 2, 4, 2, 16, 33, 50, 2053, 1024, 1e-6f, 1e6, false},
    {WRITER_QWEN3_MOE(60, 8), 2, 4, 2, 16, 64, 48, 2048, 1024, 1e-6f, 1e6, true, .norm_topk = true},
    {WRITER_MIXTRAL(8, 2), 2, 6, 2, 32, 52, 77, 2048, 1024, 1e-6f, 1e6, false},
    {WRITER_MIXTRAL(3, 3), 1, 6, 2, 10, 48, 32, 2048, 1024, 1e-6f, 1e6, false}, /* all of them */
};

enum { N_SHAPES = N(shapes), MOE_SHAPE = 8 };

static void make_prompt(int32_t *prompt, int n)
{
    uint64_t x = 99;

    for (int i = 0; i < n; i++)
        prompt[i] = (int32_t)(fabs(uniform(&x)) * 2000) + 8;
}

/* A text of the backend agrees with the plain forward pass: its logprobs are within 1e-4, and
 * nothing better was overlooked. */
static void check_reference(const struct drive_seq *s)
{
    const int vocab = model_config(model)->vocab_size, n = s->n_prompt;
    int32_t *tokens = calloc((size_t)n + N_OUT, sizeof(*tokens));
    double *want, worst = 0.0;

    ck_assert_int_eq(s->n_out, N_OUT);
    memcpy(tokens, s->prompt, sizeof(*tokens) * (size_t)n);
    memcpy(tokens + n, s->out, sizeof(*tokens) * N_OUT);
    want = reference_forward(model, tokens, n + N_OUT);
    for (int i = 0; i < N_OUT; i++) {
        const double *row = want + (n - 1 + i) * vocab;

        for (int k = 0; k < SAMPLING_MAX_LOGPROBS; k++) {
            const int at = i * SAMPLING_MAX_LOGPROBS + k;

            worst = fmax(worst, fabs((double)s->top_logprobs[at] - row[s->top_ids[at]]));
        }
        for (int j = 0; j < vocab; j++)
            ck_assert(row[j] <= row[s->out[i]] + 2e-4);
    }
    ck_assert_msg(worst < 1e-4, "off by %g", worst);
    free(want), free(tokens);
}

/* Qwen2 with biases and Qwen3 with norms, groups of 1 to 64 heads, dimensions that fill no vector,
 * tied and untied models, mixtures of experts: all agree with the plain forward pass. */
TEST(agrees_with_reference, .n = N_SHAPES)
{
    int32_t prompt[N_PROMPT];
    struct drive_seq s;

    make_model(&shapes[_i], SOUND);
    make_prompt(prompt, N_PROMPT);
    run(&s, prompt, 512, best_isa(), 1);
    check_reference(&s);
    drive_seq_deinit(&s);
    drop_model();
}

/* Shapes, and among how many ranks they are divided: the last ranks have less of the FFN and of the
 * vocabulary; KV heads are on several ranks each. */
enum { EMPTY_SHARE = 2 }; /* of these: the last rank has no row of the vocabulary */
static const struct {
    struct model_config config;
    int tp_size;
} sharded[] = {
    {{WRITER_QWEN2, 2, 6, 2, 10, 52, 77, 2048, 1024, 1e-6f, 1e4, false}, 2},
    {{WRITER_QWEN2, 2, 12, 2, 10, 52, 110, 2053, 1024, 1e-6f, 1e4, false}, 4},
    {{WRITER_QWEN2, 2, 16, 2, 64, 64, 256, 2053, 1024, 1e-6f, 1e6, true}, 8},
    {{WRITER_QWEN3, 2, 4, 4, 6, 33, 50, 2053, 1024, 1e-6f, 1e6, true}, 2},
    {{WRITER_QWEN3, 3, 8, 2, 32, 80, 96, 2048, 1024, 1e-6f, 5e5, false}, 8},
    {{WRITER_QWEN3_MOE(16, 4), 2, 4, 2, 16, 33, 50, 2053, 1024, 1e-6f, 1e6, false}, 2},
    {{WRITER_QWEN3_MOE(12, 3), 2, 8, 2, 16, 64, 128, 2048, 1024, 1e-6f, 1e6, true}, 4},
    {{WRITER_MIXTRAL(8, 2), 2, 8, 2, 16, 52, 80, 2048, 1024, 1e-6f, 1e6, false}, 8},
};

/* The model that was made gives what the reference gives; in chunks, and by the plain instructions,
 * the same bits. Drops it. */
static void check_model(enum cpu_isa isa, int tp_size)
{
    int32_t prompt[N_PROMPT];
    struct drive_seq whole, cut;

    make_prompt(prompt, N_PROMPT);
    run(&whole, prompt, 512, isa, tp_size);
    check_reference(&whole);
    run(&cut, prompt, 17, CPU_ISA_PLAIN, tp_size);
    ck_assert_mem_eq(cut.out, whole.out, sizeof(*cut.out) * N_OUT);
    ck_assert_mem_eq(cut.logprobs, whole.logprobs, sizeof(*cut.logprobs) * N_OUT);
    drive_seq_deinit(&whole);
    drive_seq_deinit(&cut);
    drop_model();
}

/* Shards give what the whole gives, and chunks of them the same bits. */
TEST(ranks_agree_with_reference, .n = N(sharded))
{
    const int tp_size = sharded[_i].tp_size;

    if (_i == EMPTY_SHARE) {
        int64_t first, n;

        shard_range(&first, &n, &sharded[_i].config, DIM_VOCAB,
                    (struct shard){tp_size - 1, tp_size});
        ck_assert_int_eq(n, 0);
    }
    make_model(&sharded[_i].config, SOUND);
    check_model(CPU_ISA_PLAIN, tp_size);
}

/* Columns in groups of 128, 64 and 32; in FP8 also blocks that are cut at every side. */
static const struct {
    struct model_config config;
    enum dtype dtype;
    int tp_size;
} quantized[] = {
    {{WRITER_QWEN2, 2, 6, 2, 10, 52, 77, 2048, 1024, 1e-6f, 1e4, false}, DTYPE_E4M3, 1},
    {{WRITER_QWEN3, 2, 4, 2, 64, 200, 300, 2053, 1024, 1e-6f, 1e6, true}, DTYPE_E4M3, 2},
    {{WRITER_QWEN3_MOE(5, 2), 2, 4, 2, 16, 64, 160, 2048, 1024, 1e-6f, 1e6, true}, DTYPE_E4M3, 1},
    {{WRITER_LLAMA, 2, 8, 4, 32, 128, 384, 2048, 1024, 1e-6f, 1e6, true}, DTYPE_INT4, 2},
    {{WRITER_QWEN2, 2, 6, 2, 32, 64, 192, 2048, 1024, 1e-6f, 1e4, false}, DTYPE_INT4, 1},
    {{WRITER_MIXTRAL(3, 2), 1, 4, 2, 16, 96, 160, 2048, 1024, 1e-6f, 1e6, false}, DTYPE_INT4, 2},
};

/* Quantized at load, the model is the one that its elements and scales stand for, and gives the
 * same bits whatever the chunks and the instruction set. */
TEST(quantized_models_agree_with_reference, .n = N(quantized))
{
    const int tp_size = quantized[_i].tp_size;

    make_model(&quantized[_i].config, SOUND);
    ck_assert_msg(model_quantize(model, quantized[_i].dtype, &e) == 0, "%s", e.text);
    check_model(best_isa(), tp_size);
}

/* Neither twice, nor in groups that no width allows. */
TEST(what_cannot_be_quantized_is_refused)
{
    make_model(&shapes[0], SOUND);
    ck_assert_int_eq(model_quantize(model, DTYPE_INT4, &e), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, "INT4 needs groups of at least 32 columns"));
    ck_assert_int_eq(model_quantize(model, DTYPE_BF16, &e), 0);
    ck_assert_ptr_null(model_config(model)->quant);
    ck_assert_int_eq(model_quantize(model, DTYPE_E4M3, &e), 0);
    ck_assert_int_eq(model_quantize(model, DTYPE_E4M3, &e), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, "model.quantize: the folder's weights are"));
    drop_model();
}

/* Chunks of any size and each instruction set of this machine give the same bits. */
TEST(chunks_and_isas_change_nothing, .n = N_SHAPES)
{
    static const int chunks[] = {5, 64, 512};
    int32_t prompt[N_PROMPT];
    struct drive_seq first, s;
    int n = 0;

    make_model(&shapes[_i], SOUND);
    make_prompt(prompt, N_PROMPT);
    run(&first, prompt, 512, CPU_ISA_PLAIN, 1);
    for (int isa = 0; isa < CPU_N_ISAS; isa++)
        for (int c = 0; c < 3 && cpu_ops_get((enum cpu_isa)isa); c++, n++) {
            run(&s, prompt, chunks[c], (enum cpu_isa)isa, 1);
            ck_assert_mem_eq(s.out, first.out, sizeof(*s.out) * N_OUT);
            ck_assert_mem_eq(s.logprobs, first.logprobs, sizeof(*s.logprobs) * N_OUT);
            drive_seq_deinit(&s);
        }
    ck_assert_int_ge(n, 3);
    drive_seq_deinit(&first);
    drop_model();
}

/* Batches of 1 to 4,096 rows, which go to all experts or all to the same few, give the same bits on
 * one rank, and on two; they agree with the plain forward pass. */
TEST(batches_of_experts, .n = 4)
{
    static const struct model_config wide[] = {
        {WRITER_QWEN3_MOE(60, 5), 1, 2, 2, 8, 24, 20, 2048, 8192, 1e-6f, 1e6, true},
        {WRITER_MIXTRAL(8, 2), 1, 2, 2, 8, 24, 20, 2048, 8192, 1e-6f, 1e6, true},
    };
    static const int max_rows[] = {1, 2, 97, 513, 2500};
    enum { N_LONG = 4096 };
    struct drive_seq first[2], s;
    int32_t prompt[N_LONG];

    make_prompt(prompt, N_LONG);
    make_model(&wide[_i % 2], _i / 2 ? EQUAL_SCORES : SOUND);
    for (int r = 0; r < 2; r++) {
        run_long(&first[r], prompt, N_LONG, N_LONG, best_isa(), r + 1);
        check_reference(&first[r]);
    }
    for (int i = 0; i < N(max_rows); i++) {
        const struct drive_seq *want = &first[i % 2];

        run_long(&s, prompt, N_LONG, max_rows[i], best_isa(), i % 2 + 1);
        ck_assert_mem_eq(s.out, want->out, sizeof(*s.out) * N_OUT);
        ck_assert_mem_eq(s.logprobs, want->logprobs, sizeof(*s.logprobs) * N_OUT);
        drive_seq_deinit(&s);
    }
    drive_seq_deinit(&first[0]);
    drive_seq_deinit(&first[1]);
    drop_model();
}

/* NaN in one row's logits ends that sequence and leaves its neighbour unchanged, also where experts
 * are chosen. */
TEST(numerics_end_one_sequence, .n = 2)
{
    int32_t good[N_PROMPT], bad[N_PROMPT];
    struct drive_seq alone, both[2];
    struct driver d;

    make_model(&shapes[_i ? MOE_SHAPE : 4], NAN_EMBEDDING);
    make_prompt(good, N_PROMPT);
    make_prompt(bad, N_PROMPT);
    bad[N_PROMPT / 2] = NAN_TOKEN;
    d = open_backend(100, CPU_ISA_PLAIN, 1);
    drive_seq_init(&alone, good, N_PROMPT, N_OUT, 0);
    run_seqs(&d, &alone, 1);
    drive_seq_init(&both[0], bad, N_PROMPT, N_OUT, 0);
    drive_seq_init(&both[1], good, N_PROMPT, N_OUT, 0);
    run_seqs(&d, both, 2);
    ck_assert(both[0].n_out == 1 && both[0].out[0] == BATCH_NUMERICS);
    ck_assert(both[1].n_out == N_OUT);
    ck_assert_mem_eq(both[1].out, alone.out, sizeof(*alone.out) * N_OUT);
    ck_assert_mem_eq(both[1].logprobs, alone.logprobs, sizeof(*alone.logprobs) * N_OUT);
    for (int i = 0; i < 2; i++)
        drive_seq_deinit(&both[i]);
    drive_seq_deinit(&alone);
    cpu_backend.close(d.backend);
    drop_model();
}

/* A router whose scores are no numbers ends every sequence. */
TEST(scores_that_are_no_numbers)
{
    int32_t prompt[N_PROMPT];
    struct drive_seq s;

    make_model(&shapes[MOE_SHAPE], NAN_SCORE);
    make_prompt(prompt, N_PROMPT);
    run(&s, prompt, 100, CPU_ISA_PLAIN, 1);
    ck_assert(s.n_out == 1 && s.out[0] == BATCH_NUMERICS);
    drive_seq_deinit(&s);
    drop_model();
}

/* Changes a number of config.json in place. */
static void edit_config(const char *key, const char *from, const char *to)
{
    char path[512], text[8192], *at;
    FILE *file;
    size_t n;

    snprintf(path, sizeof(path), "%s/config.json", dir);
    file = fopen(path, "r+");
    ck_assert_ptr_nonnull(file);
    n = fread(text, 1, sizeof(text) - 1, file);
    text[n] = '\0';
    at = strstr(text, key);
    ck_assert_ptr_nonnull(at);
    at = strstr(at, from);
    ck_assert_ptr_nonnull(at);
    memcpy(at, to, strlen(to));
    rewind(file);
    ck_assert_uint_eq(fwrite(text, 1, n, file), n);
    fclose(file);
}

static XXH128_hash_t fingerprint(void)
{
    XXH128_hash_t hash;

    ck_assert_int_eq(model_fingerprint(model, MODEL_AS_OPENED, &hash, &e), 0);
    return hash;
}

/* KV blocks of other rotary frequencies are not taken for the model's own. */
TEST(fingerprint_has_the_frequencies)
{
    static const struct model_config yarn = {WRITER_QWEN3,
                                             1,
                                             4,
                                             4,
                                             16,
                                             33,
                                             50,
                                             2053,
                                             1024,
                                             1e-6f,
                                             1e6,
                                             true,
                                             .rope = {.kind = ROPE_YARN,
                                                      .factor = 4,
                                                      .original_len = 128}};
    XXH128_hash_t before, same;

    make_model(&yarn, SOUND);
    before = fingerprint();
    same = fingerprint();
    ck_assert(XXH128_isEqual(before, same));
    edit_config("original_max_position_embeddings", "128", "256");
    model_close(model);
    ck_assert_msg(model_open(&model, dir, &e) == 0, "%s", e.text);
    ck_assert(!XXH128_isEqual(before, fingerprint()));
    drop_model();
}

/* Nor those of another number of experts for each token, or of experts weighed otherwise. */
TEST(fingerprint_has_the_experts)
{
    XXH128_hash_t hashes[3];

    make_model(&shapes[MOE_SHAPE], SOUND);
    hashes[0] = fingerprint();
    edit_config("num_experts_per_tok", "4", "5");
    model_close(model);
    ck_assert_msg(model_open(&model, dir, &e) == 0, "%s", e.text);
    hashes[1] = fingerprint();
    edit_config("norm_topk_prob", "false", "true ");
    model_close(model);
    ck_assert_msg(model_open(&model, dir, &e) == 0, "%s", e.text);
    hashes[2] = fingerprint();
    for (int i = 0; i < 3; i++)
        ck_assert(!XXH128_isEqual(hashes[i], hashes[(i + 1) % 3]));
    drop_model();
}

RUN_TESTS("cpu_models", NULL, NULL)
