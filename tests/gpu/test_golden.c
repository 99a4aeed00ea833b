/* test_golden.c - the CUDA backend through its contract on the bundled model: the ids of a
 * reference implementation in float32, alone and batched, with graphs and without, with small and
 * large blocks. Where two candidates are closer than bf16 can tell, ids may differ. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/drive.h"
#include "tests/tools/golden_cases.h"
#include "tests/unit/run_suite.h"

extern const struct backend_ops nvllm_backend;

static const double clear_margin = 0.05; /* of logits; bf16 moves them by less */
/* Of one log probability. Rounding to bf16 moves the worst of thousands by 0.08 to 0.12, another
 * one after every change to a kernel's order of sums. */
static const double most_apart = 0.2;

enum { MAX_SEQS = 64 };

static const char *data_folder; /* the program's argument: where the tree is no longer there */
static struct golden *cases;
static int n_cases;
static struct model *model;

static void set_up(void)
{
    n_cases = golden_load(&cases, data_folder ? data_folder : TEST_DATA_DIR);
    model = open_tiny_model(data_folder);
}

static void tear_down(void)
{
    golden_free(cases, n_cases);
    model_close(model);
}

static struct drive_seq seq_of(const struct golden *c)
{
    struct drive_seq s = {.prompt = c->prompt,
                          .n_prompt = c->n_prompt,
                          .max_tokens = c->max_tokens,
                          .end_id = model_defaults(model)->eos[0],
                          .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f}};

    s.out = calloc((size_t)c->max_tokens, sizeof(*s.out));
    s.logprobs = calloc((size_t)c->max_tokens, sizeof(*s.logprobs));
    return s;
}

/* Runs the cases, so many at a time; how many were the same, and how many had to be. */
static void check_golden(const struct backend_options *o, int together, int *same, int *clear)
{
    struct backend *b;
    struct err e;

    err_must(nvllm_backend.open(&b, model, o, &e), &e);
    *same = *clear = 0;
    for (int at = 0; at < n_cases; at += together) {
        const int n = n_cases - at < together ? n_cases - at : together;
        struct drive_seq seqs[MAX_SEQS];
        struct drive_times times;

        for (int i = 0; i < n; i++)
            seqs[i] = seq_of(&cases[at + i]);
        err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = o}, seqs, n,
                       &times, &e),
                 &e);
        for (int i = 0; i < n; i++) {
            const struct golden *c = &cases[at + i];
            const bool equal =
                seqs[i].n_out == c->n_ids && memcmp(seqs[i].out, c->ids, (size_t)c->n_ids * 4) == 0;

            *same += equal;
            *clear += c->min_margin >= clear_margin;
            ck_assert_msg(equal || c->min_margin < clear_margin,
                          "%s differs (margin %g, %d of %d tokens, block_len %d, together %d)",
                          c->name, c->min_margin, seqs[i].n_out, c->n_ids, o->block_len, together);
            for (int j = 0; equal && j < c->n_ids; j++)
                ck_assert_double_lt(fabs((double)seqs[i].logprobs[j] - c->top_logprobs[j][0]),
                                    most_apart);
            free(seqs[i].out);
            free(seqs[i].logprobs);
        }
    }
    nvllm_backend.close(b);
    printf("block_len %d, %d together, %s%s: %d of %d the same, %d had to be\n", o->block_len,
           together, o->eager ? "eager" : "graphs", o->invariant ? ", invariant" : "", *same,
           n_cases, *clear);
}

static struct backend_options options(int block_len)
{
    return (struct backend_options){.block_len = block_len,
                                    .max_batch_tokens = 96, /* prompts come in chunks */
                                    .max_seqs = MAX_SEQS,
                                    .max_seq_len = 16384,
                                    .tier_bytes = {4ull << 30}};
}

/* Whatever the block length, alone or together, with graphs or without: the reference's ids. */
TEST(ids_are_the_references)
{
    static const int block_lens[] = {16, 256, 4096};
    int same, clear;

    for (int i = 0; i < 3; i++) {
        struct backend_options o = options(block_lens[i]);

        o.tier_bytes[TIER_DEVICE] = i == 2 ? 8ull << 30 : o.tier_bytes[TIER_DEVICE];
        check_golden(&o, MAX_SEQS, &same, &clear);
        ck_assert_int_gt(clear, 0);
        o.eager = true;
        check_golden(&o, 17, &same, &clear);
    }
}
END_TEST

TEST(ids_alone_are_the_references)
{
    struct backend_options o = options(16);
    int same, clear;

    check_golden(&o, 1, &same, &clear);
    o.eager = true;
    o.invariant = true;
    check_golden(&o, 40, &same, &clear);
}
END_TEST

/* In invariant mode neither a text nor the bits of a log probability depend on what runs beside it,
 * on how prompts are cut, or on having been computed again half way. */
TEST(invariant_texts_do_not_depend_on_the_batch)
{
    enum { N = 40 };
    static const int chunks[] = {96, 96, 43, 61}; /* rows of a step */
    struct backend_options o = options(16);
    struct drive_seq alone[N], together[N];
    struct drive_times times;
    struct backend *b;
    struct err e;
    int n_restarted = 0;

    o.invariant = true;
    err_must(nvllm_backend.open(&b, model, &o, &e), &e);
    for (int i = 0; i < N; i++) {
        alone[i] = seq_of(&cases[i]);
        alone[i].sampling.temperature = 0.9f;
        alone[i].sampling.top_k = i % 2 ? 20 : 0;
        alone[i].sampling.seed = (uint64_t)i * 77;
        err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = &o},
                       &alone[i], 1, &times, &e),
                 &e);
    }
    for (int run = 0; run < 4; run++) {
        o.max_batch_tokens = chunks[run];
        for (int i = 0; i < N; i++) {
            together[i] = seq_of(&cases[i]);
            together[i].sampling = alone[i].sampling;
            together[i].restart_at = run > 0 && i % 4 != run ? 1 + i % 9 : 0;
        }
        err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = &o},
                       together, N, &times, &e),
                 &e);
        for (int i = 0; i < N; i++) {
            const size_t bytes = (size_t)alone[i].n_out * 4;

            n_restarted += together[i].restarted;
            ck_assert_int_eq(alone[i].n_out, together[i].n_out);
            ck_assert_msg(memcmp(alone[i].out, together[i].out, bytes) == 0, "ids of %s, run %d",
                          cases[i].name, run);
            ck_assert_msg(memcmp(alone[i].logprobs, together[i].logprobs, bytes) == 0,
                          "log probabilities of %s, run %d", cases[i].name, run);
            free(together[i].out);
            free(together[i].logprobs);
        }
    }
    ck_assert_int_gt(n_restarted, N);
    for (int i = 0; i < N; i++) {
        free(alone[i].out);
        free(alone[i].logprobs);
    }
    nvllm_backend.close(b);
}
END_TEST

int main(int argc, char **argv)
{
    data_folder = argc > 1 ? argv[1] : NULL;
    return run_tests_here("golden", set_up, tear_down);
}
