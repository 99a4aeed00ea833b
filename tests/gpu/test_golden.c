/* test_golden.c - the CUDA backend through its contract on the bundled model: the ids of a
 * reference implementation in float32, alone and batched, with graphs and without, with small and
 * large blocks. Where two candidates are closer than bf16 can tell, ids may differ. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/ranks.h"
#include "tests/gpu/drive.h"
#include "tests/tools/make_batch.h"
#include "tests/tools/golden_cases.h"
#include "tests/unit/run_suite.h"

extern const struct backend_ops nvllm_backend;

static const double clear_margin = 0.05; /* of logits; bf16 moves them by less */
/* Of one log probability. Rounding to bf16 moves the worst of thousands by 0.08 to 0.12, another
 * one after every change to a kernel's order of sums. */
static const double most_apart = 0.2;

enum { MAX_SEQS = 128 };

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

/* Runs the cases, so many at a time and again where that is more than there are; how many were the
 * same, and how many had to be. */
static void check_golden(const struct backend_options *o, int together, int *same, int *clear)
{
    const int n_runs = n_cases < together ? together : n_cases;
    struct backend *b;
    struct err e;

    err_must(nvllm_backend.open(&b, model, o, &e), &e);
    *same = *clear = 0;
    for (int at = 0; at < n_runs; at += together) {
        const int n = n_runs - at < together ? n_runs - at : together;
        struct drive_seq seqs[MAX_SEQS];
        struct drive_times times;

        for (int i = 0; i < n; i++)
            seqs[i] = seq_of(&cases[(at + i) % n_cases]);
        err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = o}, seqs, n,
                       &times, &e),
                 &e);
        for (int i = 0; i < n; i++) {
            const struct golden *c = &cases[(at + i) % n_cases];
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
    printf("block_len %d, %d together, %s%s, %d ranks: %d of %d the same, %d had to be\n",
           o->block_len, together, o->eager ? "eager" : "graphs", o->invariant ? ", invariant" : "",
           o->tp_size > 1 ? o->tp_size : 1, *same, n_runs, *clear);
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

/* The same where prompts come whole, so that steps have up to about 120 decodes and no prompt. */
TEST(ids_of_many_decodes_are_the_references, .n = 2)
{
    struct backend_options o = options(16);
    int same, clear;

    o.max_batch_tokens = 16384;
    if (_i > 0)
        divide_among_devices(&o, 2);
    check_golden(&o, MAX_SEQS, &same, &clear);
    ck_assert_int_gt(clear, 0);
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

/* Several ranks give the reference's ids: with fewer KV heads than ranks, with steps whose rows are
 * shared and steps whose are not, with graphs and without. */
TEST(ids_of_ranks_are_the_references, .n = 3)
{
    struct backend_options o = options(_i == 1 ? 256 : 16);
    int same, clear;

    divide_among_devices(&o, 2 << _i);
    check_golden(&o, MAX_SEQS, &same, &clear);
    ck_assert_int_gt(clear, 0);
    o.max_batch_tokens = 1000;
    o.eager = true;
    check_golden(&o, 17, &same, &clear);
    o.eager = false;
    check_golden(&o, 1, &same, &clear);
    o.invariant = true;
    check_golden(&o, 40, &same, &clear);
}
END_TEST

/* Two ranks go on as they were where the tags of what they exchange begin again. */
TEST(ranks_agree_where_tags_begin_again)
{
    enum { N = 8 };
    struct backend_options o = options(16);
    struct rank *ranks[2];
    struct drive_seq seqs[2][N];
    struct drive_times times;
    struct backend *b;
    struct err e;

    divide_among_devices(&o, 2);
    err_must(nvllm_backend.open(&b, model, &o, &e), &e);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (struct rank *)(uintptr_t)ranks_at(cuda_backend_ranks(b), i);
        ck_assert_int_eq(ranks[i]->forward.decode_path[N], PATH_RESIDENT);
    }
    for (int run = 0; run < 2; run++) {
        for (int i = 0; i < N; i++)
            seqs[run][i] = seq_of(&cases[i]);
        for (int i = 0; i < 2 && run == 1; i++)
            ranks[i]->last_tag = UINT32_MAX - 30;
        err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = &o},
                       seqs[run], N, &times, &e),
                 &e);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(seqs[0][i].n_out, seqs[1][i].n_out);
        ck_assert_int_eq(memcmp(seqs[0][i].out, seqs[1][i].out, (size_t)seqs[0][i].n_out * 4), 0);
        for (int run = 0; run < 2; run++) {
            free(seqs[run][i].out);
            free(seqs[run][i].logprobs);
        }
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_lt(ranks[i]->last_tag, UINT32_MAX / 2);
        ck_assert_uint_eq(ranks[i]->last_tag, ranks[0]->last_tag);
    }
    nvllm_backend.close(b);
}
END_TEST

/* What ranks have together is what one has, but for what each needs for itself; asleep they give it
 * back, and awake they compute as before. */
TEST(ranks_sleep_and_wake)
{
    struct backend_options o = options(16), whole = options(16);
    struct backend_info one, two, asleep;
    struct backend *b;
    struct drive_times times;
    struct drive_seq s[2];
    struct err e;

    err_must(nvllm_backend.open(&b, model, &whole, &e), &e);
    nvllm_backend.info(b, &one);
    nvllm_backend.close(b);
    divide_among_devices(&o, 2);
    err_must(nvllm_backend.open(&b, model, &o, &e), &e);
    nvllm_backend.info(b, &two);
    ck_assert_int_eq(two.n_devices, 2);
    ck_assert(*two.devices[0].name && *two.devices[1].name);
    ck_assert_uint_eq(two.block_bytes, one.block_bytes);
    ck_assert_int_eq(two.tiers[TIER_DEVICE].n_blocks, one.tiers[TIER_DEVICE].n_blocks);
    ck_assert_uint_ge(two.weight_bytes, one.weight_bytes);
    ck_assert_uint_lt(two.weight_bytes, one.weight_bytes * 11 / 10);
    for (int i = 0; i < 2; i++) {
        s[i] = seq_of(&cases[0]);
        err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = &o}, &s[i],
                       1, &times, &e),
                 &e);
        err_must(nvllm_backend.sleep(b, false, &e), &e);
        nvllm_backend.info(b, &asleep);
        ck_assert_uint_eq(asleep.weight_bytes, 0);
        err_must(nvllm_backend.wake(b, &e), &e);
    }
    ck_assert_int_eq(s[0].n_out, s[1].n_out);
    ck_assert_int_eq(memcmp(s[0].out, s[1].out, (size_t)s[0].n_out * 4), 0);
    nvllm_backend.close(b);
    for (int i = 0; i < 2; i++) {
        free(s[i].out);
        free(s[i].logprobs);
    }
}
END_TEST

/* A step that copies one block after the other and does nothing else, and those after it until all
 * copies have ended. */
static void copy_blocks(struct backend *b, uint64_t *step, const struct batch_copy *copies, int n)
{
    struct step_result result;
    struct err e;

    for (int ended = 0, begin = n; ended < n; ended += result.n_copies) {
        struct batch *batch = make_batch(&(struct batch_parts){
            .step = ++*step, .n_copies = begin, .copies = copies, .max_blocks = 1});

        err_must(nvllm_backend.submit(b, batch, &e), &e);
        err_must(nvllm_backend.wait(b, &result, &e), &e);
        begin = 0;
        for (int i = 0; i < result.n_copies; i++)
            ck_assert(result.copies[i].ok && result.copies[i].id < (uint32_t)n);
        free(batch);
    }
}

/* A block in host memory is the parts of all ranks side by side; it comes back to where it is sent
 * on each of them, and steps go on meanwhile. */
TEST(ranks_copy_their_parts_of_blocks, .n = 2)
{
    enum { BLOCKS = 40 };
    struct backend_options o = options(16);
    struct batch_copy down[BLOCKS], up[BLOCKS];
    struct backend_info info;
    struct drive_times times;
    struct drive_seq s = seq_of(&cases[0]);
    struct driver driver = {.ops = &nvllm_backend, .options = &o, .n_copies = {4, 4}};
    struct backend *b;
    uint8_t *seen;
    char *host;
    size_t part;
    struct err e;

    o.tier_bytes[TIER_DEVICE] = 64 << 20;
    o.tier_bytes[TIER_HOST] = 16 << 20;
    divide_among_devices(&o, _i ? 4 : 1);
    err_must(nvllm_backend.open(&b, model, &o, &e), &e);
    driver.backend = b;
    err_must(drive(&driver, &s, 1, &times, &e), &e);
    ck_assert_int_eq(s.n_out, cases[0].n_ids);
    ck_assert_int_eq(memcmp(s.out, cases[0].ids, (size_t)s.n_out * 4), 0);
    ck_assert_uint_gt(driver.n_copied, 0);
    nvllm_backend.info(b, &info);
    ck_assert_uint_eq(info.tiers[TIER_HOST].bytes,
                      (uint64_t)info.tiers[TIER_HOST].n_blocks * info.block_bytes);
    part = info.block_bytes / (size_t)o.tp_size;
    host = info.tiers[TIER_HOST].memory + 3 * info.block_bytes;
    seen = malloc(BLOCKS * part);
    for (int i = 0; i < BLOCKS; i++) {
        down[i] = (struct batch_copy){(uint32_t)i, TIER_DEVICE, TIER_HOST, COPY_AFTER, 0, i, 3 + i};
        up[i] =
            (struct batch_copy){(uint32_t)i, TIER_HOST, TIER_DEVICE, COPY_AFTER, 0, 3 + i, 100 + i};
    }
    copy_blocks(b, &driver.step, down, BLOCKS);
    for (int way = 0; way < 2; way++) {
        for (int r = 0; r < o.tp_size; r++) {
            const struct rank *rank = ranks_at(cuda_backend_ranks(b), r);
            const char *base = (const char *)rank->forward.kv.base;

            ck_assert_int_eq(cudaMemcpy(seen, base + (way ? 100 : 0) * part, BLOCKS * part,
                                        cudaMemcpyDeviceToHost),
                             cudaSuccess);
            for (int i = 0; i < BLOCKS; i++)
                ck_assert_msg(memcmp(seen + (size_t)i * part,
                                     host + (size_t)i * info.block_bytes + (size_t)r * part,
                                     part) == 0,
                              "%s, rank %d, block %d of %d", way ? "up" : "down", r, i, BLOCKS);
        }
        for (size_t i = 0; way == 0 && i < BLOCKS * info.block_bytes; i++)
            host[i] = (char)(i * 7 + i / 1000);
        if (way == 0)
            copy_blocks(b, &driver.step, up, BLOCKS);
    }
    nvllm_backend.close(b);
    free(seen);
    free(s.out);
    free(s.logprobs);
}
END_TEST

/* In invariant mode two ranks give the texts of one. */
TEST(invariant_texts_do_not_depend_on_ranks)
{
    enum { N = 40 };
    struct drive_seq seqs[2][N];
    struct drive_times times;
    struct err e;

    for (int r = 0; r < 2; r++) {
        struct backend_options o = options(16);
        struct backend *b;

        o.invariant = true;
        if (r > 0)
            divide_among_devices(&o, 2);
        err_must(nvllm_backend.open(&b, model, &o, &e), &e);
        for (int i = 0; i < N; i++) {
            seqs[r][i] = seq_of(&cases[i]);
            seqs[r][i].sampling.temperature = 0.9f;
            seqs[r][i].sampling.seed = (uint64_t)i * 77;
        }
        err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = &o},
                       seqs[r], N, &times, &e),
                 &e);
        nvllm_backend.close(b);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(seqs[0][i].n_out, seqs[1][i].n_out);
        ck_assert_msg(memcmp(seqs[0][i].out, seqs[1][i].out, (size_t)seqs[0][i].n_out * 4) == 0,
                      "ids of %s", cases[i].name);
        for (int r = 0; r < 2; r++) {
            free(seqs[r][i].out);
            free(seqs[r][i].logprobs);
        }
    }
}
END_TEST

/* In invariant mode neither a text nor the bits of a log probability depend on what runs beside it,
 * on how prompts are cut, or on having been computed again half way. */
TEST(invariant_texts_do_not_depend_on_the_batch, .n = 2)
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
    if (_i == 1)
        divide_among_devices(&o, 2);
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
    ranks_may_share_devices();
    return run_tests_here("golden", set_up, tear_down);
}
