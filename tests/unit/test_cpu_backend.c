/* test_cpu_backend.c - the CPU backend's side of the contract: memory, progress, results and what
 * it aborts at. What it computes is in test_cpu_golden.c. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cpu/cpu_backend.h"
#include "engine/model/model.h"
#include "tests/unit/run_suite.h"

static struct model *model;
static struct err e;

static void setup(void)
{
    ck_assert_msg(model_open(&model, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
}

static void teardown(void)
{
    model_close(model);
}

static struct backend *open_usual(void)
{
    const struct backend_options o = {.block_len = 16,
                                      .max_batch_tokens = 4096,
                                      .max_seqs = 64,
                                      .max_seq_len = 4096,
                                      .kv_bytes = 128 << 20,
                                      .n_threads = 2};
    struct backend *b;

    ck_assert_msg(cpu_backend.open(&b, model, &o, &e) == 0, "%s", e.text);
    return b;
}

/* Blocks are what kv_memory pays for, to the byte; info says so. */
START_TEST(blocks_follow_kv_bytes)
{
    struct backend *b;
    struct backend_info info;
    struct backend_options o = {.block_len = 64,
                                .max_batch_tokens = 64,
                                .max_seqs = 4,
                                .max_seq_len = 4096,
                                .kv_bytes = (10 << 20) - 1,
                                .n_threads = 1};

    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), 0);
    cpu_backend.info(b, &info);
    ck_assert_uint_eq(info.block_bytes, 4 * 2 * 4 * 64 * 128 * sizeof(float));
    ck_assert_int_eq(info.n_blocks, 9); /* of 1 MiB */
    ck_assert_int_eq(info.kv_dtype, KV_DTYPE_F32);
    ck_assert_uint_ge(info.weight_bytes, 12 << 20 >> 1);
    ck_assert_ptr_nonnull(strstr(info.device, "1 thread,"));
    cpu_backend.close(b);
}
END_TEST

/* The ledger counts what was taken: all blocks, and workspaces that grow by what a
 * sequence's row and sampler state need; a CPU has no graphs, and its memory is not the backend's
 * to count. */
START_TEST(ledger_counts_what_was_taken)
{
    struct backend *b;
    struct backend_info small, large;
    struct backend_options o = {.block_len = 16,
                                .max_batch_tokens = 64,
                                .max_seqs = 4,
                                .max_seq_len = 4096,
                                .kv_bytes = 10 << 20,
                                .n_threads = 1};
    const struct model_config *c = model_config(model);
    const uint64_t a_seq =
        (uint64_t)c->hidden_dim * sizeof(float) + (uint64_t)c->vocab_size * sizeof(uint16_t);

    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), 0);
    cpu_backend.info(b, &small);
    cpu_backend.close(b);
    o.max_seqs = 4 + 256;
    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), 0);
    cpu_backend.info(b, &large);
    cpu_backend.close(b);
    ck_assert_uint_eq(small.kv_bytes, (uint64_t)small.n_blocks * small.block_bytes);
    ck_assert_uint_eq(large.kv_bytes, small.kv_bytes);
    ck_assert_uint_eq(large.weight_bytes, small.weight_bytes);
    ck_assert_uint_ge(large.workspace_bytes, small.workspace_bytes + 256 * a_seq);
    ck_assert_uint_eq(large.graph_bytes + large.other_bytes, 0);
    ck_assert_uint_eq(large.total_bytes + large.free_bytes, 0);
    ck_assert_str_eq(large.driver, "");
}
END_TEST

/* Where the options say nothing the CPU takes what the weights take, but a useful least; the
 * machine's own memory bounds it. */
START_TEST(kv_memory_of_its_own_choice)
{
    struct backend *b;
    struct backend_info info;
    struct backend_options o = {.block_len = 16,
                                .max_batch_tokens = 64,
                                .max_seqs = 4,
                                .max_seq_len = 4096,
                                .n_threads = 1};

    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), 0);
    cpu_backend.info(b, &info);
    ck_assert_uint_le((uint64_t)info.n_blocks * info.block_bytes, 512 << 20);
    ck_assert_uint_ge((uint64_t)info.n_blocks * info.block_bytes, 64 << 20);
    cpu_backend.close(b);
}
END_TEST

/* Too little memory for one block, and more than the machine has: refused with both figures. */
START_TEST(memory_errors_say_how_much)
{
    struct backend *b = NULL;
    struct backend_options o = {.block_len = 4096,
                                .max_batch_tokens = 64,
                                .max_seqs = 4,
                                .max_seq_len = 4096,
                                .kv_bytes = 63 << 20,
                                .n_threads = 2};

    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), -ENOMEM);
    ck_assert_msg(strstr(e.text, "64.0 MiB") && strstr(e.text, "63.0 MiB"), "%s", e.text);
    o.block_len = 16;
    o.kv_bytes = (uint64_t)64 << 40; /* the slots of blocks of 16 tokens end at 32 TiB */
    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), -ENOMEM);
    ck_assert_msg(strstr(e.text, "cache.kv_memory") && strstr(e.text, "available"), "%s", e.text);
    ck_assert_ptr_null(b);
}
END_TEST

/* A check refuses what no machine like this could open, and takes nothing; what others use of the
 * memory now does not count. */
START_TEST(check_says_what_open_would)
{
    struct backend_options o = {.block_len = 4096,
                                .max_batch_tokens = 64,
                                .max_seqs = 4,
                                .max_seq_len = 4096,
                                .kv_bytes = 63 << 20};

    ck_assert_int_eq(cpu_backend_check(model, &o, &e), -ENOMEM);
    ck_assert_msg(strstr(e.text, "64.0 MiB") && strstr(e.text, "63.0 MiB"), "%s", e.text);
    o.kv_dtype = KV_DTYPE_BF16; /* half of it */
    ck_assert_msg(cpu_backend_check(model, &o, &e) == 0, "%s", e.text);
    o.kv_bytes = 0;
    ck_assert_msg(cpu_backend_check(model, &o, &e) == 0, "%s", e.text);
    o.kv_fraction = 1e-9;
    ck_assert_int_eq(cpu_backend_check(model, &o, &e), -ENOMEM);
    o = (struct backend_options){.block_len = 16, .kv_bytes = (uint64_t)64 << 40};
    ck_assert_int_eq(cpu_backend_check(model, &o, &e), -ENOMEM);
    ck_assert_msg(strstr(e.text, "cache.kv_memory") && strstr(e.text, "in all"), "%s", e.text);
}
END_TEST

static double last_progress;

static void note_progress(void *ctx, double done)
{
    ck_assert(ctx == &last_progress && done >= last_progress && done <= 1.0);
    last_progress = done;
}

/* Loading is reported from both threads, rising to 1. */
START_TEST(progress_rises)
{
    struct backend *b;
    struct backend_options o = {.block_len = 16,
                                .max_batch_tokens = 64,
                                .max_seqs = 4,
                                .max_seq_len = 4096,
                                .kv_bytes = 16 << 20,
                                .n_threads = 2,
                                .progress = note_progress,
                                .progress_ctx = &last_progress};

    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), 0);
    ck_assert(last_progress == 1.0);
    cpu_backend.close(b);
    cpu_backend.close(NULL);
}
END_TEST

/* One step of four prompt rows written out by hand; table is the only block. */
struct hand {
    int32_t tokens[4], positions[4], slots[4], q_start[2], kv_len[1], table[1];
    struct batch_row row;
    struct batch_load load;
    struct sampling sampling;
    struct batch batch;
};

static void hand_init(struct hand *h, uint64_t step)
{
    *h = (struct hand){
        .tokens = {1, 2, 3, 4},
        .positions = {0, 1, 2, 3},
        .slots = {16, 17, 18, 19},
        .q_start = {0, 4},
        .kv_len = {4},
        .table = {1},
        .row = {.row = 3},
        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = 0},
    };
    h->load = (struct batch_load){.sampling = &h->sampling};
    h->batch = (struct batch){.step = step,
                              .n_tokens = 4,
                              .n_seqs = 1,
                              .n_rows = 1,
                              .n_loads = 1,
                              .max_blocks = 1,
                              .tokens = h->tokens,
                              .positions = h->positions,
                              .slots = h->slots,
                              .q_start = h->q_start,
                              .kv_len = h->kv_len,
                              .block_table = h->table,
                              .rows = &h->row,
                              .loads = &h->load};
}

/* A step whose rows want no logits gives an empty result; a result holds while two further steps
 * are under way; close waits for what nobody has waited for. */
START_TEST(results_hold_until_next_wait)
{
    struct hand h[4];
    struct step_result r;
    struct backend *b = open_usual();
    int32_t id;
    float logprob;

    for (int i = 0; i < 4; i++)
        hand_init(&h[i], (uint64_t)i + 1);
    h[0].batch.n_rows = 0;
    h[2].tokens[3] = 77;
    ck_assert_int_eq(cpu_backend.submit(b, &h[0].batch, &e), 0);
    ck_assert_int_eq(cpu_backend.submit(b, &h[1].batch, &e), 0);
    ck_assert_int_eq(cpu_backend.wait(b, &r, &e), 0);
    ck_assert(r.step == 1 && r.n_rows == 0);
    ck_assert_int_eq(cpu_backend.wait(b, &r, &e), 0);
    ck_assert(r.step == 2 && r.n_rows == 1);
    id = r.ids[0];
    logprob = r.logprobs[0];
    ck_assert_int_eq(cpu_backend.submit(b, &h[2].batch, &e), 0);
    ck_assert_int_eq(cpu_backend.submit(b, &h[3].batch, &e), 0);
    usleep(50000); /* long enough for both to be over */
    ck_assert(r.ids[0] == id && r.logprobs[0] == logprob);
    ck_assert_int_eq(cpu_backend.wait(b, &r, &e), 0);
    ck_assert(r.step == 3 && r.logprobs[0] != logprob);
    cpu_backend.close(b);
}
END_TEST

/* What only a bug of the core could ask for aborts before it is computed. */
START_TEST(broken_batch_aborts)
{
    struct hand h, third[2];
    struct backend *b = open_usual();
    struct backend_info info;

    cpu_backend.info(b, &info);
    hand_init(&h, 1);
    switch (_i) {
    case 0:
        h.slots[2] = 35;
        break;
    case 1:
        h.positions[1] = 2;
        break;
    case 2:
        h.table[0] = info.n_blocks;
        break;
    case 3:
        h.tokens[0] = 2048;
        break;
    case 4:
        h.tokens[0] = ~0; /* there is no step before */
        break;
    case 5:
        h.row.row = 4;
        break;
    case 6:
        h.batch.step = 2;
        break;
    case 7:
        h.kv_len[0] = 17;
        break;
    default:
        hand_init(&third[0], 1);
        hand_init(&third[1], 2);
        h.batch.step = 3;
        cpu_backend.submit(b, &third[0].batch, &e);
        cpu_backend.submit(b, &third[1].batch, &e);
        break;
    }
    cpu_backend.submit(b, &h.batch, &e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cpu_backend");
    TCase *t = tcase_create("contract");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, blocks_follow_kv_bytes);
    tcase_add_test(t, ledger_counts_what_was_taken);
    tcase_add_test(t, kv_memory_of_its_own_choice);
    tcase_add_test(t, memory_errors_say_how_much);
    tcase_add_test(t, check_says_what_open_would);
    tcase_add_test(t, progress_rises);
    tcase_add_test(t, results_hold_until_next_wait);
    tcase_add_loop_test_raise_signal(t, broken_batch_aborts, SIGABRT, 0, 9);
    suite_add_tcase(s, t);
    return run_suite(s);
}
