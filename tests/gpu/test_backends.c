/* test_backends.c - the CUDA backend against the CPU backend, both through the contract: the same
 * requests, with every kind of sampling, on the bundled model.
 *
 * The device computes in bf16 where the CPU has float, so a draw that is nearly even may fall the
 * other way, and what follows it differs. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_backend.h"
#include "tests/gpu/drive.h"
#include "tests/tools/make_batch.h"
#include "tests/unit/run_suite.h"

enum { N = 48, TOKENS = 40, MAX_PROMPT = 300 };

/* The program's arguments, where the tree and the build are no longer there; another model; what
 * the model's weights are quantized to, and keys and values are kept as. */
static const char *data_folder, *model_folder, *weights;
static const char *module_path = NVLLM_MODULE;
static struct backend_options usual = {.block_len = 16,
                                       .max_batch_tokens = 256,
                                       .max_seqs = N,
                                       .max_seq_len = 1024,
                                       .tier_bytes = {256 << 20}};
static const struct backend_ops *cuda_backend;
static struct model *model;
static int32_t prompts[N][MAX_PROMPT];
static int32_t ids[2][N][TOKENS];
static float logprobs[2][N][TOKENS];

static void set_up(void)
{
    void *module = dlopen(module_path, RTLD_NOW | RTLD_LOCAL);
    struct err e;

    ck_assert_msg(module, "%s", dlerror());
    cuda_backend = dlsym(module, BACKEND_SYMBOL);
    ck_assert_ptr_nonnull(cuda_backend);
    ck_assert_uint_eq(cuda_backend->abi, BACKEND_ABI);
    if (model_folder)
        err_must(model_open(&model, model_folder, &e), &e);
    else
        model = open_tiny_model(data_folder);
    quantize_to(model, weights);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < MAX_PROMPT; j++)
            prompts[i][j] = (i * 7919 + j * 104729 + j * j * 31) % 1990;
}

static void tear_down(void)
{
    model_close(model);
}

/* Every setting of every kind comes up, alone and with others. */
static struct drive_seq seq_of(int i, int backend)
{
    static const struct logit_bias bias[2] = {{300, 2.0f}, {17, -50.0f}};

    return (struct drive_seq){.prompt = prompts[i],
                              .n_prompt = 1 + i * 29 % MAX_PROMPT,
                              .max_tokens = TOKENS,
                              .end_id = -1,
                              .sampling = {.temperature = i % 4 == 0 ? 0.0f : 0.3f * (float)(i % 5),
                                           .top_k = i % 3 == 0 ? 20 : 0,
                                           .top_p = i % 5 == 1 ? 0.9f : 1.0f,
                                           .min_p = i % 7 == 2 ? 0.05f : 0.0f,
                                           .repetition_penalty = i % 6 == 3 ? 1.2f : 1.0f,
                                           .presence_penalty = i % 8 == 5 ? 0.5f : 0.0f,
                                           .frequency_penalty = i % 9 == 4 ? 0.3f : 0.0f,
                                           .seed = 1234567u * (uint64_t)i,
                                           .n_bias = i % 10 == 7 ? 2 : 0,
                                           .bias = bias},
                              .out = ids[backend][i],
                              .logprobs = logprobs[backend][i]};
}

/* Runs all sequences on an open backend, so many at a time; ids and log probabilities to their
 * place. */
static void drive_all(const struct backend_ops *ops, struct backend *b,
                      const struct backend_options *o, int to, int together)
{
    struct driver d = {.ops = ops, .backend = b, .options = o};
    struct drive_seq seqs[N];
    struct drive_times times;
    struct err e;

    for (int i = 0; i < N; i++)
        seqs[i] = seq_of(i, to);
    for (int i = 0; i < N; i += together)
        err_must(drive(&d, seqs + i, N - i < together ? N - i : together, &times, &e), &e);
}

static void run(const struct backend_ops *ops, int backend, int together, bool invariant)
{
    struct backend_options o = usual;
    struct backend *b;
    struct err e;

    o.invariant = invariant;
    err_must(ops->open(&b, model, &o, &e), &e);
    drive_all(ops, b, &o, backend, together);
    ops->close(b);
}

/* Where keys are E4M3, what bf16 moves a little may be rounded the other way, by an eighth; so
 * layer by layer backends come to differ by what E4M3 costs. */
static bool coarse_keys(void)
{
    return usual.kv_dtype == KV_DTYPE_FP8;
}

/* Ids are the same up to a nearly even draw, and log probabilities of the same ids are close. With
 * quantized weights that is so of an invariant backend: others may quantize activations, too. */
TEST(both_backends_say_the_same)
{
    int same = 0, compared = 0, whole = 0;
    double worst = 0.0;

    run(&cpu_backend, 0, N, false);
    run(cuda_backend, 1, N, weights != NULL);
    for (int i = 0; i < N; i++) {
        int j = 0;

        for (; j < TOKENS && ids[0][i][j] == ids[1][i][j]; j++)
            worst = fmax(worst, fabs((double)(logprobs[0][i][j] - logprobs[1][i][j])));
        same += j;
        compared += j < TOKENS ? j + 1 : j; /* what follows a difference is another text */
        whole += j == TOKENS;
    }
    printf("%d of %d tokens the same, %d of %d whole texts, log probabilities within %.3f\n", same,
           compared, whole, N, worst);
    ck_assert_double_lt(worst, coarse_keys() ? 1.0 : 0.5);
    ck_assert_int_ge(same * 100, compared * 97);
}
END_TEST

/* Sums of hidden states, of rows that are sampled from and of others, are the CPU's. */
TEST(sums_are_those_of_the_cpu)
{
    enum { ROWS = 200 };
    static const struct batch_sum sums[] = {{0, 1}, {1, 150}, {151, 49}, {199, 1}};
    static const struct sampling sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f};
    const struct batch_part_update update = {.sampling = &sampling};
    const struct batch_row row = {.row = ROWS - 1, .mask = -1};
    const int32_t q_start[] = {0, ROWS}, kv_len = ROWS;
    const int dim = model_config(model)->hidden_dim;
    const struct backend_ops *backends[] = {&cpu_backend, cuda_backend};
    struct backend_options o = usual;
    int32_t positions[ROWS], slots[ROWS], table[(ROWS + 15) / 16];
    float *got[2];

    o.invariant = weights != NULL; /* see above */
    for (int i = 0; i < ROWS; i++)
        positions[i] = slots[i] = i;
    for (int i = 0; i < (ROWS + 15) / 16; i++)
        table[i] = i;
    for (int i = 0; i < 2; i++) {
        struct step_result result;
        struct backend *b;
        struct batch *batch;
        struct err e;

        batch = make_batch(&(struct batch_parts){.step = 1,
                                                 .n_tokens = ROWS,
                                                 .n_seqs = 1,
                                                 .n_rows = 1,
                                                 .n_updates = 1,
                                                 .n_sums = (int32_t)(sizeof(sums) / sizeof(*sums)),
                                                 .max_blocks = (ROWS + 15) / 16,
                                                 .tokens = prompts[5],
                                                 .positions = positions,
                                                 .slots = slots,
                                                 .q_start = q_start,
                                                 .kv_len = &kv_len,
                                                 .block_table = table,
                                                 .rows = &row,
                                                 .updates = &update,
                                                 .sums = sums});
        err_must(backends[i]->open(&b, model, &o, &e), &e);
        err_must(backends[i]->submit(b, batch, &e), &e);
        err_must(backends[i]->wait(b, &result, &e), &e);
        ck_assert(result.n_rows == 1 && result.ids[0] >= 0);
        ck_assert(result.n_sums == batch->n_sums && result.sum_dim == dim);
        got[i] = malloc(sizeof(sums) / sizeof(*sums) * (size_t)dim * sizeof(float));
        ck_assert_ptr_nonnull(got[i]);
        memcpy(got[i], result.sums, sizeof(sums) / sizeof(*sums) * (size_t)dim * sizeof(float));
        backends[i]->close(b);
        free(batch);
    }
    for (size_t i = 0; i < sizeof(sums) / sizeof(*sums); i++) {
        double both = 0.0, squares[2] = {0};

        for (int j = 0; j < dim; j++) {
            const double x = (double)got[0][(int)i * dim + j], y = (double)got[1][(int)i * dim + j];

            both += x * y;
            squares[0] += x * x;
            squares[1] += y * y;
        }
        ck_assert_double_gt(both / sqrt(squares[0] * squares[1]), coarse_keys() ? 0.99 : 0.9999);
        ck_assert_double_eq_tol(sqrt(squares[1] / squares[0]), 1.0, 0.01);
    }
    free(got[0]);
    free(got[1]);
}
END_TEST

/* Where nothing may depend on what else runs, ids and log probabilities are the same to the bit
 * alone, among few and among many. */
TEST(invariant_answers_do_not_depend_on_others)
{
    static const int together[] = {1, 2, 7, 16, 29};

    run(cuda_backend, 0, N, true);
    for (size_t i = 0; i < sizeof(together) / sizeof(*together); i++) {
        memset(ids[1], 0xff, sizeof(ids[1]));
        run(cuda_backend, 1, together[i], true);
        for (int j = 0; j < N; j++) {
            ck_assert_msg(memcmp(ids[0][j], ids[1][j], sizeof(ids[0][j])) == 0,
                          "%d together: ids of %d", together[i], j);
            ck_assert_msg(memcmp(logprobs[0][j], logprobs[1][j], sizeof(logprobs[0][j])) == 0,
                          "%d together: log probabilities of %d", together[i], j);
        }
    }
}
END_TEST

/* Thousands of sequences at a time, too many for a grid to hold the most splits of each, give the
 * same tokens as among few. */
TEST(thousands_say_the_same)
{
    enum { MANY = 4160, EACH = 6 };
    static struct drive_seq seqs[MANY];
    static int32_t out[MANY][EACH], few[N][EACH];
    const struct backend_options o = {.invariant = true,
                                      .block_len = 16,
                                      .max_batch_tokens = 8 * MANY, /* all prompts in one step */
                                      .max_seqs = MANY,
                                      .max_seq_len = 64,
                                      .kv_dtype = usual.kv_dtype,
                                      .tier_bytes = {1 << 30}};
    struct drive_times times;
    struct backend *b;
    struct err e;

    err_must(cuda_backend->open(&b, model, &o, &e), &e);
    for (int n = N; n <= MANY; n += MANY - N) {
        memset(out, 0xff, sizeof(out));
        for (int i = 0; i < n; i++) {
            seqs[i] = seq_of(i % N, 0);
            seqs[i].n_prompt = 1 + i % N % 8;
            seqs[i].max_tokens = EACH;
            seqs[i].out = out[i];
            seqs[i].logprobs = NULL;
        }
        err_must(drive(&(struct driver){.ops = cuda_backend, .backend = b, .options = &o}, seqs, n,
                       &times, &e),
                 &e);
        if (n == N)
            memcpy(few, out, sizeof(few));
        for (int i = 0; i < n; i++) {
            ck_assert_int_eq(seqs[i].n_out, EACH);
            ck_assert_mem_eq(out[i], few[i % N], sizeof(out[i]));
        }
    }
    cuda_backend->close(b);
}
END_TEST

/* The ledger adds up to what the driver reports as used, before and after graphs were captured;
 * without graphs they take nothing. */
TEST(ledger_sums_to_what_the_driver_says)
{
    struct backend_options o = usual;
    struct backend_info i;
    struct backend *b;
    struct err e;

    for (int eager = 0; eager < 2; eager++) {
        o.eager = eager;
        err_must(cuda_backend->open(&b, model, &o, &e), &e);
        for (int ran = 0; ran < 2; ran++) {
            cuda_backend->info(b, &i);
            ck_assert_uint_eq(i.weight_bytes + i.tiers[TIER_DEVICE].bytes + i.graph_bytes +
                                  i.workspace_bytes + i.other_bytes,
                              i.total_bytes - i.free_bytes);
            ck_assert_uint_gt(i.free_bytes, 0);
            ck_assert_uint_eq(i.tiers[TIER_DEVICE].bytes,
                              (uint64_t)i.tiers[TIER_DEVICE].n_blocks * i.block_bytes);
            ck_assert_ptr_nonnull(strstr(i.driver, "CUDA"));
            if (eager)
                ck_assert_uint_eq(i.graph_bytes, 0);
            drive_all(cuda_backend, b, &o, 1, N);
        }
        printf(
            "graphs %s: %.1f MiB weights, %.1f kv, %.1f graphs, %.1f workspaces, %.1f other; %s\n",
            eager ? "off" : "on", (double)i.weight_bytes / 0x1p20,
            (double)i.tiers[TIER_DEVICE].bytes / 0x1p20, (double)i.graph_bytes / 0x1p20,
            (double)i.workspace_bytes / 0x1p20, (double)i.other_bytes / 0x1p20, i.driver);
        cuda_backend->close(b);
    }
}
END_TEST

static int idle(struct backend *b)
{
    struct err e;
    int r = cuda_backend->idle(b, &e);

    ck_assert_msg(r >= 0, "%s", e.text);
    return r;
}

/* What is measured between steps, in part and as a whole, changes no bit of any answer, of one rank
 * or two; the next start finds it and has nothing left to measure but loading kernels. */
TEST(measuring_changes_nothing, .n = 2)
{
    char folder[] = "/tmp/nvllm-tune-XXXXXX", command[64];
    struct backend_options o = usual;
    int n_pieces[2] = {0};
    struct backend *b;
    struct err e;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    o.cache_folder = folder;
    if (_i == 1)
        o.n_devices = o.tp_size = 2; /* both are device 0 */
    for (int start = 0; start < 2; start++) {
        err_must(cuda_backend->open(&b, model, &o, &e), &e);
        drive_all(cuda_backend, b, &o, 0, N);
        for (int part = 0; part < 3; part++) {
            for (int i = 0; part == 2 || i < 37; i++, n_pieces[start]++)
                if (idle(b) == 0)
                    break;
            drive_all(cuda_backend, b, &o, 1, N);
            ck_assert_mem_eq(ids[0], ids[1], sizeof(ids[0]));
            ck_assert_mem_eq(logprobs[0], logprobs[1], sizeof(logprobs[0]));
        }
        ck_assert_int_eq(idle(b), 0);
        cuda_backend->close(b);
    }
    ck_assert_int_ge(n_pieces[0] - n_pieces[1], 40); /* measured once; of 4 bits that is little */
    o.tune = true; /* all is known: this takes no longer than loading kernels */
    err_must(cuda_backend->open(&b, model, &o, &e), &e);
    drive_all(cuda_backend, b, &o, 1, N);
    ck_assert_mem_eq(ids[0], ids[1], sizeof(ids[0]));
    cuda_backend->close(b);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

enum { MAX_ROWS = 48, TEXT = 37, OTHER_TEXT = 41 };

/* A text's rows first .. first + n - 1, of which the last n_wanted are sampled. */
static void run_rows(struct backend *b, uint64_t step, int text, int first, int n, int n_wanted,
                     int32_t *out, float *out_logprobs)
{
    enum { BLOCK = 2 };
    static const int32_t table[] = {BLOCK, BLOCK + 1, BLOCK + 2};
    const struct sampling sampling = {.temperature = 0.9f,
                                      .top_p = 1.0f,
                                      .repetition_penalty = 1.0f,
                                      .n_logprobs = 0,
                                      .seed = 99};
    const struct batch_part_update update = {.state = 3, .sampling = &sampling};
    const int32_t q_start[] = {0, n}, kv_len = first + n;
    int32_t positions[MAX_ROWS], slots[MAX_ROWS], tokens[MAX_ROWS];
    struct batch_row rows[MAX_ROWS];
    struct step_result result;
    struct batch *batch;
    struct err e;

    for (int i = 0; i < n; i++) {
        positions[i] = first + i;
        slots[i] = BLOCK * 16 + positions[i];
        tokens[i] = positions[i] * text % 1990;
    }
    for (int i = 0; i < n_wanted; i++)
        rows[i] = (struct batch_row){.row = n - n_wanted + i,
                                     .state = 3,
                                     .counter = (uint32_t)(first + n - n_wanted + i),
                                     .mask = -1};
    batch = make_batch(&(struct batch_parts){.step = step,
                                             .n_tokens = n,
                                             .n_seqs = 1,
                                             .n_decodes = n_wanted == 1 && n == 1,
                                             .n_drafted = n_wanted > 1,
                                             .n_rows = n_wanted,
                                             .n_updates = 1,
                                             .max_blocks = 3,
                                             .tokens = tokens,
                                             .positions = positions,
                                             .slots = slots,
                                             .q_start = q_start,
                                             .kv_len = &kv_len,
                                             .block_table = table,
                                             .rows = rows,
                                             .updates = &update});
    err_must(cuda_backend->submit(b, batch, &e), &e);
    err_must(cuda_backend->wait(b, &result, &e), &e);
    ck_assert_int_eq(result.n_rows, n_wanted);
    memcpy(out, result.ids, (size_t)n_wanted * sizeof(*out));
    memcpy(out_logprobs, result.logprobs, (size_t)n_wanted * sizeof(*out_logprobs));
    free(batch);
}

/* Roundings of bf16 decide for a neighbour when keys become E4M3, and weigh more: on the CPU, keys
 * and values that differ by 2^-10 before move these log probabilities by 0.05, at most 0.28 of
 * 2,000; as bf16 by 0.01, at most 0.06. */
static void check_rounded(const int32_t *a, const float *a_logprobs, const int32_t *b,
                          const float *b_logprobs, int n)
{
    const float limit = coarse_keys() ? 0.4f : 0.1f;
    int n_same = 0;

    for (int i = 0; i < n; i++) {
        n_same += a[i] == b[i];
        ck_assert(a[i] != b[i] || fabsf(a_logprobs[i] - b_logprobs[i]) < limit);
    }
    ck_assert_int_ge(n_same, n - 1);
}

/* Rows of drafts give what decodes one after another give, also across a block's end and where the
 * splits of attention differ; kernel by kernel, and then as a graph. Where nothing may depend on
 * others that is to the bit, else up to rounding. */
TEST(drafts_are_computed_as_decodes, .n = 2)
{
    enum { MAX_DRAFTED = 20 };
    static const struct {
        int first, n;
    } cases[] = {{12, 2}, {12, 9}, {1, 3}, {20, MAX_DRAFTED}};
    const struct backend_options o = {.invariant = _i == 0,
                                      .block_len = 16,
                                      .max_batch_tokens = 256,
                                      .max_seqs = N,
                                      .max_seq_len = 64,
                                      .kv_dtype = usual.kv_dtype,
                                      .tier_bytes = {1 << 26}};
    int32_t alone[MAX_DRAFTED], together[MAX_DRAFTED];
    float alone_logprobs[MAX_DRAFTED], own_logprobs[MAX_DRAFTED];
    struct backend *b;
    struct backend_info info;
    struct err e;
    uint64_t step = 0;

    err_must(cuda_backend->open(&b, model, &o, &e), &e);
    cuda_backend->info(b, &info);
    ck_assert(info.masks && !info.copies);
    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        const int first = cases[k].first, n = cases[k].n;

        run_rows(b, ++step, TEXT, 0, first, 0, alone, alone_logprobs);
        for (int i = 0; i < n; i++)
            run_rows(b, ++step, TEXT, first + i, 1, 1, &alone[i], &alone_logprobs[i]);
        for (int times = 0; times < 2; times++) {
            run_rows(b, ++step, OTHER_TEXT, 0, MAX_ROWS, 0, together, own_logprobs);
            run_rows(b, ++step, TEXT, 0, first, 0, together, own_logprobs);
            run_rows(b, ++step, TEXT, first, n, n, together, own_logprobs);
            if (o.invariant) {
                ck_assert_mem_eq(alone, together, (size_t)n * sizeof(*alone));
                ck_assert_mem_eq(alone_logprobs, own_logprobs, (size_t)n * sizeof(*own_logprobs));
            }
            check_rounded(alone, alone_logprobs, together, own_logprobs, n);
        }
    }
    cuda_backend->close(b);
}
END_TEST

/* Step n of two sequences, the first with a mask if so asked: prompts, then decodes of what the
 * step before samples. */
static struct batch *masked_step(uint64_t n, bool masks)
{
    enum { PROMPT = 5 };
    static const struct sampling greedy = {.top_p = 1.0f,
                                           .repetition_penalty = 1.0f,
                                           .n_logprobs = -1};
    static const struct batch_part_update updates[] = {{.state = 0, .sampling = &greedy},
                                                       {.state = 1, .sampling = &greedy}};
    static const int32_t table[] = {1, 2};
    const int32_t each = n == 1 ? PROMPT : 1, first = n == 1 ? 0 : PROMPT + (int32_t)n - 2;
    const int32_t q_start[] = {0, each, 2 * each}, kv_len[] = {first + each, first + each};
    int32_t tokens[2 * PROMPT], positions[2 * PROMPT], slots[2 * PROMPT];
    struct batch_row rows[2];

    for (int32_t i = 0; i < 2 * each; i++) {
        const int32_t seq = i / each;

        tokens[i] = n == 1 ? prompts[seq][i % each] : ~seq;
        positions[i] = first + i % each;
        slots[i] = 16 * table[seq] + positions[i];
    }
    for (int32_t i = 0; i < 2; i++)
        rows[i] = (struct batch_row){.row = q_start[i + 1] - 1,
                                     .state = i,
                                     .counter = (uint32_t)n - 1,
                                     .mask = masks && i == 0 ? 0 : -1};
    return make_batch(&(struct batch_parts){.step = n,
                                            .n_tokens = 2 * each,
                                            .n_seqs = 2,
                                            .n_decodes = n == 1 ? 0 : 2,
                                            .n_rows = 2,
                                            .n_updates = n == 1 ? 2 : 0,
                                            .n_masks = masks,
                                            .max_blocks = 1,
                                            .tokens = tokens,
                                            .positions = positions,
                                            .slots = slots,
                                            .q_start = q_start,
                                            .kv_len = kv_len,
                                            .block_table = table,
                                            .rows = rows,
                                            .updates = updates});
}

/* Runs n steps, two in flight; the mask of step i, given when that is the oldest, leaves id 100 + i
 * alone. Every third step has none where only `some` have. */
static void run_masked(struct backend *b, uint64_t n, bool masks, bool some, int32_t (*got)[2])
{
    const int vocab = model_config(model)->vocab_size;
    uint32_t *mask = calloc((size_t)vocab / 32 + 1, sizeof(*mask));
    const uint32_t *const given[] = {mask};
    struct batch *batches[2] = {NULL};
    struct err e;

    ck_assert_ptr_nonnull(mask);
    for (uint64_t i = 1; i <= n + 1; i++) {
        const uint64_t oldest = i == 1 ? 1 : i - 1;
        struct step_result result;

        if (i <= n) {
            batches[i % 2] = masked_step(i, masks && !(some && i % 3 == 0));
            err_must(cuda_backend->submit(b, batches[i % 2], &e), &e);
        }
        if (i > 1) {
            err_must(cuda_backend->wait(b, &result, &e), &e);
            memcpy(got[oldest - 1], result.ids, sizeof(*got));
            free(batches[oldest % 2]);
        }
        if (i <= n && batches[i % 2]->n_masks > 0) {
            mask[(100 + i) / 32] = 1u << (100 + i) % 32;
            err_must(cuda_backend->mask(b, given, &e), &e);
            memset(mask, 0, ((size_t)vocab / 32 + 1) * sizeof(*mask)); /* it has its own copy */
        }
    }
    free(mask);
}

/* A step with masks samples with those that come when it has long been submitted, be it a graph or
 * launched kernel by kernel, on one device or two ranks; beside it and between such steps, rows
 * without a mask sample what they would without any. One that never gets its masks lets the backend
 * close. */
TEST(masks_come_after_submit, .n = 4)
{
    enum { STEPS = 11 };
    struct backend_options o = usual;
    int32_t plain[STEPS][2], masked[STEPS][2];
    struct batch *last;
    struct backend *b;
    struct err e;

    o.eager = _i % 2;
    if (_i >= 2)
        o.n_devices = o.tp_size = 2; /* both are device 0 */
    err_must(cuda_backend->open(&b, model, &o, &e), &e);
    run_masked(b, STEPS, false, false, plain);
    cuda_backend->close(b);
    for (int some = 0; some < 2; some++) {
        err_must(cuda_backend->open(&b, model, &o, &e), &e);
        run_masked(b, STEPS, true, some, masked);
        for (int i = 0; i < STEPS; i++) {
            if (!some || (i + 1) % 3)
                ck_assert_int_eq(masked[i][0], 101 + i);
            ck_assert_int_eq(masked[i][1], plain[i][1]);
        }
        last = masked_step(STEPS + 1, true);
        err_must(cuda_backend->submit(b, last, &e), &e);
        cuda_backend->close(b);
        free(last);
    }
}
END_TEST

int main(int argc, char **argv)
{
    data_folder = argc > 1 ? argv[1] : NULL;
    module_path = argc > 2 ? argv[2] : NVLLM_MODULE;
    model_folder = argc > 3 ? argv[3] : NULL;
    weights = argc > 4 && strcmp(argv[4], "bf16") != 0 ? argv[4] : NULL;
    usual.kv_dtype = kv_dtype_of(argc > 5 ? argv[5] : NULL);
    return run_tests_here("backends", set_up, tear_down);
}
