/* test_cpu_backend.c - the CPU backend's side of the contract: memory, progress, results and what
 * it aborts at. What it computes is in test_cpu_golden.c. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cpu/cpu_backend.h"
#include "engine/model/model.h"
#include "tests/tools/make_batch.h"
#include "tests/unit/run_suite.h"

static struct model *model;
static struct backend *b;        /* the last one of a test */
static struct backend_info info; /* of it */
static struct err e;

static void setup(void)
{
    ck_assert_msg(model_open(&model, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
}

static void teardown(void)
{
    cpu_backend.close(b);
    model_close(model);
}

static struct backend_options small_options(int32_t block_len, uint64_t kv_bytes, int32_t n_threads)
{
    return (struct backend_options){.block_len = block_len,
                                    .max_batch_tokens = 64,
                                    .max_seqs = 4,
                                    .max_seq_len = 4096,
                                    .tier_bytes = {kv_bytes},
                                    .n_threads = n_threads};
}

static void open_with(const struct backend_options *o)
{
    cpu_backend.close(b);
    ck_assert_msg(cpu_backend.open(&b, model, o, &e) == 0, "%s", e.text);
    cpu_backend.info(b, &info);
}

static void open_usual(void)
{
    struct backend_options o = small_options(16, 128 << 20, 2);

    o.max_batch_tokens = 4096;
    o.max_seqs = 64;
    open_with(&o);
}

/* Blocks are what kv_memory pays for, to the byte; info says so. */
TEST(blocks_follow_kv_bytes)
{
    struct backend_options o = small_options(64, (10 << 20) - 1, 1);

    open_with(&o);
    ck_assert_uint_eq(info.block_bytes, 4 * 2 * 4 * 64 * 128 * sizeof(float));
    ck_assert_int_eq(info.tiers[TIER_DEVICE].n_blocks, 9); /* of 1 MiB */
    ck_assert_int_eq(info.kv_dtype, KV_DTYPE_F32);
    ck_assert_uint_ge(info.weight_bytes, 12 << 20 >> 1);
    ck_assert_ptr_nonnull(strstr(info.devices[0].name, "1 thread,"));
    o.kv_dtype = KV_DTYPE_FP8;
    open_with(&o);
    ck_assert_uint_eq(info.block_bytes, 4 * 2 * 4 * 64 * (128 + 1)); /* a byte each, and scales */
    ck_assert_int_eq(info.tiers[TIER_DEVICE].n_blocks, 39);
    ck_assert_int_eq(info.kv_dtype, KV_DTYPE_FP8);
}

/* The ledger counts what was taken: all blocks, and workspaces that grow by what a
 * sequence's row and sampler state need; a CPU has no graphs, and its memory is not the backend's
 * to count. */
TEST(ledger_counts_what_was_taken)
{
    struct backend_info small, large;
    struct backend_options o = small_options(16, 10 << 20, 1);
    const struct model_config *c = model_config(model);
    const uint64_t a_seq =
        (uint64_t)c->hidden_dim * sizeof(float) + (uint64_t)c->vocab_size * sizeof(uint16_t);

    open_with(&o);
    small = info;
    o.max_seqs = 4 + 256;
    open_with(&o);
    large = info;
    ck_assert_uint_eq(small.tiers[TIER_DEVICE].bytes,
                      (uint64_t)small.tiers[TIER_DEVICE].n_blocks * small.block_bytes);
    ck_assert_uint_eq(large.tiers[TIER_DEVICE].bytes, small.tiers[TIER_DEVICE].bytes);
    ck_assert_uint_eq(large.weight_bytes, small.weight_bytes);
    ck_assert_uint_ge(large.workspace_bytes, small.workspace_bytes + 256 * a_seq);
    ck_assert_uint_eq(large.graph_bytes + large.other_bytes, 0);
    ck_assert_uint_eq(large.total_bytes + large.free_bytes, 0);
    ck_assert_str_eq(large.driver, "");
}

/* Where the options say nothing the CPU takes what the weights take, but a useful least; the
 * machine's own memory bounds it. */
TEST(kv_memory_of_its_own_choice)
{
    struct backend_options o = small_options(16, 0, 1);

    open_with(&o);
    ck_assert_uint_le((uint64_t)info.tiers[TIER_DEVICE].n_blocks * info.block_bytes, 512 << 20);
    ck_assert_uint_ge((uint64_t)info.tiers[TIER_DEVICE].n_blocks * info.block_bytes, 64 << 20);
}

/* Less than one block, and more than the machine has: refused with both figures. */
TEST(memory_errors_say_how_much)
{
    struct backend_options o = small_options(4096, 63 << 20, 2);

    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), -EINVAL);
    ck_assert_msg(strstr(e.text, "64.0 MiB") && strstr(e.text, "63.0 MiB"), "%s", e.text);
    o.block_len = 16;
    o.tier_bytes[TIER_DEVICE] = (uint64_t)64
                                << 40; /* the slots of blocks of 16 tokens end at 32 TiB */
    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), -ENOMEM);
    ck_assert_msg(strstr(e.text, "cache.kv_memory") && strstr(e.text, "available"), "%s", e.text);
    ck_assert_ptr_null(b);
}

/* A check refuses what no machine like this could open, and takes nothing; what others use of the
 * memory now does not count. */
TEST(check_says_what_open_would)
{
    struct backend_options o = small_options(4096, 63 << 20, 0);

    ck_assert_int_eq(cpu_backend.check(model, &o, &e), -EINVAL);
    ck_assert_msg(strstr(e.text, "64.0 MiB") && strstr(e.text, "63.0 MiB"), "%s", e.text);
    o.kv_dtype = KV_DTYPE_BF16; /* half of it */
    ck_assert_msg(cpu_backend.check(model, &o, &e) == 0, "%s", e.text);
    o.tier_bytes[TIER_DEVICE] = 0;
    ck_assert_msg(cpu_backend.check(model, &o, &e) == 0, "%s", e.text);
    o.kv_fraction = 1e-9;
    ck_assert_int_eq(cpu_backend.check(model, &o, &e), -ENOMEM);
    o = (struct backend_options){.block_len = 16, .tier_bytes = {(uint64_t)64 << 40}};
    ck_assert_int_eq(cpu_backend.check(model, &o, &e), -ENOMEM);
    ck_assert_msg(strstr(e.text, "cache.kv_memory") && strstr(e.text, "this machine has"), "%s",
                  e.text);
    o.tier_bytes[TIER_DEVICE] = 64 << 20;
    o.tier_bytes[TIER_HOST] = (uint64_t)64 << 40;
    ck_assert_int_eq(cpu_backend.check(model, &o, &e), -ENOMEM);
    ck_assert_msg(strstr(e.text, "cache.host_memory"), "%s", e.text);
}

/* What the machine must hold is what all ranks hold: some of the network is on each. */
TEST(ranks_hold_shares)
{
    static const int kv_heads[] = {4, 4, 4, 8}; /* of all ranks: on 8 each of the 4 is twice */
    struct backend_options o = small_options(64, 16 << 20, 3);
    uint64_t whole = 0;

    for (int i = 0; i < 4; i++) {
        o.tp_size = 1 << i;
        open_with(&o);
        ck_assert_int_eq(info.tp_size, o.tp_size);
        ck_assert_int_eq(info.n_devices, 1);
        ck_assert_uint_eq(info.block_bytes,
                          (uint64_t)kv_heads[i] * 4 * 2 * 64 * 128 * sizeof(float));
        whole = whole ? whole : info.weight_bytes;
        ck_assert_uint_ge(info.weight_bytes, whole);
        ck_assert_uint_le(info.weight_bytes, whole + whole / 4);
    }
    ck_assert_msg(strstr(info.devices[0].name, "8 threads in 8 ranks,"), "%s",
                  info.devices[0].name);
    o.tp_size = 2;
    open_with(&o);
    ck_assert_msg(strstr(info.devices[0].name, "3 threads in 2 ranks,"), "%s",
                  info.devices[0].name);
}

/* What cannot be divided is refused, by a check and by a start alike. */
TEST(indivisible_is_refused)
{
    struct backend_options o = small_options(16, 16 << 20, 1);

    o.tp_size = 3;
    ck_assert_int_eq(cpu_backend.check(model, &o, &e), -ENOTSUP);
    ck_assert_msg(strstr(e.text, "cannot be divided among 3 ranks"), "%s", e.text);
    ck_assert_int_eq(cpu_backend.open(&b, model, &o, &e), -ENOTSUP);
    ck_assert_msg(strstr(e.text, "cannot be divided among 3 ranks"), "%s", e.text);
}

static double last_progress;

static void note_progress(void *ctx, double done)
{
    ck_assert(ctx == &last_progress && done >= last_progress && done <= 1.0);
    last_progress = done;
}

/* Loading is reported from both threads and for all ranks, rising to 1. */
TEST(progress_rises, .n = 2)
{
    struct backend_options o = small_options(16, 16 << 20, 2);

    o.tp_size = 1 + _i;
    o.progress = note_progress;
    o.progress_ctx = &last_progress;
    open_with(&o);
    ck_assert(last_progress == 1.0);
    cpu_backend.close(NULL);
}

/* One step of one sequence written out by hand: rows of positions from `first` on, block by block
 * in the order of table. */
enum { HAND_ROWS = 40, HAND_BLOCKS = 3 };

struct hand {
    int32_t tokens[HAND_ROWS], positions[HAND_ROWS], slots[HAND_ROWS];
    int32_t q_start[2], kv_len[1], table[HAND_BLOCKS];
    struct batch_row rows[HAND_ROWS];
    struct batch_part_update update;
    struct sampling sampling;
    struct batch_copy copy;
    struct batch_parts parts;
    struct batch *batch;
};

/* n rows from position first on, the last n_wanted of which are sampled from; token i is 1 + i. */
static void hand_init(struct hand *h, uint64_t step, int32_t first, int32_t n, int32_t n_wanted)
{
    *h = (struct hand){
        .q_start = {0, n},
        .kv_len = {first + n},
        .table = {1, 2, 0},
        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = 0},
    };
    for (int32_t i = 0; i < n; i++) {
        h->tokens[i] = 1 + first + i;
        h->positions[i] = first + i;
        h->slots[i] = h->table[(first + i) / 16] * 16 + (first + i) % 16;
    }
    for (int32_t i = 0; i < n_wanted; i++)
        h->rows[i] =
            (struct batch_row){.row = n - n_wanted + i, .counter = (uint32_t)i, .mask = -1};
    h->update.sampling = &h->sampling;
    h->parts = (struct batch_parts){.step = step,
                                    .n_tokens = n,
                                    .n_seqs = 1,
                                    .n_rows = n_wanted,
                                    .n_updates = 1,
                                    .max_blocks = HAND_BLOCKS,
                                    .tokens = h->tokens,
                                    .positions = h->positions,
                                    .slots = h->slots,
                                    .q_start = h->q_start,
                                    .kv_len = h->kv_len,
                                    .block_table = h->table,
                                    .rows = h->rows,
                                    .updates = &h->update,
                                    .copies = &h->copy};
}

static void hand_submit(struct hand *h)
{
    h->batch = make_batch(&h->parts);
    ck_assert_int_eq(cpu_backend.submit(b, h->batch, &e), 0);
}

static struct step_result hand_wait(struct hand *h)
{
    struct step_result r;

    ck_assert_int_eq(cpu_backend.wait(b, &r, &e), 0);
    ck_assert_uint_eq(r.step, h->parts.step);
    free(h->batch);
    return r;
}

static struct step_result hand_run(struct hand *h)
{
    hand_submit(h);
    return hand_wait(h);
}

/* A step whose rows want no logits gives an empty result; a result holds while two further steps
 * are under way; close waits for what nobody has waited for. */
TEST(results_hold_until_next_wait)
{
    struct hand h[4];
    struct step_result r;
    int32_t id;
    float logprob;

    open_usual();
    for (int i = 0; i < 4; i++)
        hand_init(&h[i], (uint64_t)i + 1, 0, 4, i > 0);
    h[2].tokens[3] = 77;
    hand_submit(&h[0]);
    hand_submit(&h[1]);
    ck_assert_int_eq(hand_wait(&h[0]).n_rows, 0);
    r = hand_wait(&h[1]);
    ck_assert_int_eq(r.n_rows, 1);
    id = r.ids[0];
    logprob = r.logprobs[0];
    hand_submit(&h[2]);
    hand_submit(&h[3]);
    usleep(50000); /* long enough for both to be over */
    ck_assert(r.ids[0] == id && r.logprobs[0] == logprob);
    ck_assert(hand_wait(&h[2]).logprobs[0] != logprob);
    cpu_backend.close(b);
    b = NULL;
    free(h[3].batch);
}

/* The last row of 18, of which the first 16 were computed in an earlier step. */
static void run_last(uint64_t step, int32_t *id, float *logprob)
{
    struct hand h;
    struct step_result r;

    hand_init(&h, step, 16, 2, 1);
    r = hand_run(&h);
    *id = r.ids[0];
    *logprob = r.logprobs[0];
}

/* Weights that were given back are there again, each in its place on each rank, and so are the
 * blocks that were kept. */
TEST(ranks_sleep_and_wake, .n = 3)
{
    struct backend_options o = small_options(16, 16 << 20, 2);
    int32_t id, again;
    float logprob, again_logprob;
    uint64_t weights;
    struct hand h;

    o.tp_size = 1 << _i;
    open_with(&o);
    weights = info.weight_bytes;
    hand_init(&h, 1, 0, 16, 0);
    hand_run(&h);
    run_last(2, &id, &logprob);
    ck_assert_int_eq(cpu_backend.sleep(b, true, &e), 0);
    cpu_backend.info(b, &info);
    ck_assert_uint_eq(info.weight_bytes, 0);
    ck_assert_int_eq(cpu_backend.wake(b, &e), 0);
    cpu_backend.info(b, &info);
    ck_assert_uint_eq(info.weight_bytes, weights);
    run_last(3, &again, &again_logprob);
    ck_assert(again == id && again_logprob == logprob);
    ck_assert_int_eq(cpu_backend.sleep(b, false, &e), 0);
    ck_assert_int_eq(cpu_backend.wake(b, &e), 0);
    hand_init(&h, 4, 0, 16, 0);
    hand_run(&h);
    run_last(5, &again, &again_logprob);
    ck_assert(again == id && again_logprob == logprob);
}

/* The beat of a step is 2 a layer, however many ranks compute it. */
TEST(ranks_beat_together, .n = 4)
{
    struct backend_options o = small_options(16, 16 << 20, 1);
    _Atomic uint64_t beat = 0;
    struct hand h;

    o.tp_size = 1 << _i;
    o.beat = &beat;
    open_with(&o);
    hand_init(&h, 1, 0, 16, 1);
    hand_run(&h);
    ck_assert_uint_eq(beat, 2 * (uint64_t)model_config(model)->n_layers);
    cpu_backend.close(b);
    b = NULL;
}

/* All ranks have the same residual stream to the bit: two that hold the same KV head write the same
 * keys and values, in every layer. */
TEST(ranks_agree_to_the_bit)
{
    struct backend_options o = small_options(16, 16 << 20, 1);
    const char *block;
    struct hand h;
    size_t part;

    o.tp_size = 8;
    open_with(&o);
    hand_init(&h, 1, 0, 16, 1); /* fills block 1 */
    hand_run(&h);
    part = info.block_bytes / 8;
    block = (const char *)cpu_backend_kv(b) + info.block_bytes;
    for (size_t i = 0; i < 8; i += 2) {
        ck_assert_mem_eq(block + i * part, block + (i + 1) * part, part);
        ck_assert_mem_ne(block + i * part, block + (i + 2) % 8 * part, part);
    }
}

/* Each wanted row of a sequence is sampled as it is when it stands alone, to the bit: so drafts
 * change no token. */
TEST(several_wanted_rows)
{
    enum { N = 5, FIRST = 14 };
    struct hand h;
    struct step_result r;
    int32_t ids[N];
    float logprobs[N];

    open_usual();
    hand_init(&h, 1, 0, FIRST, 0);
    hand_run(&h);
    for (int i = 0; i < N; i++) {
        hand_init(&h, (uint64_t)i + 2, FIRST + i, 1, 1);
        h.parts.n_decodes = 1;
        h.rows[0].counter = (uint32_t)i;
        h.sampling.temperature = 1.0f;
        r = hand_run(&h);
        ids[i] = r.ids[0];
        logprobs[i] = r.logprobs[0];
    }
    hand_init(&h, N + 2, FIRST, N, N);
    h.parts.n_drafted = 1;
    h.sampling.temperature = 1.0f;
    r = hand_run(&h);
    ck_assert_int_eq(r.n_rows, N);
    for (int i = 0; i < N; i++)
        ck_assert(r.ids[i] == ids[i] && r.logprobs[i] == logprobs[i]);
}

/* A sum is that of its rows' hidden states, one after another, on however many ranks; and a step's
 * sums do not keep it from sampling. */
TEST(sums_of_rows, .n = 3)
{
    static const struct batch_sum each[] = {{4, 1}, {5, 1}, {6, 1}}, all[] = {{4, 3}};
    struct backend_options o = small_options(16, 16 << 20, 2);
    float by_hand[256];
    struct step_result r;
    struct hand h;

    o.tp_size = 1 << _i;
    open_with(&o);
    ck_assert_int_eq(info.sum_dim, N(by_hand));
    hand_init(&h, 1, 0, 7, 1);
    h.parts.n_sums = N(each);
    h.parts.sums = each;
    r = hand_run(&h);
    ck_assert(r.n_sums == N(each) && r.sum_dim == N(by_hand) && r.n_rows == 1 && r.ids[0] >= 0);
    for (int i = 0; i < N(by_hand); i++) {
        by_hand[i] = r.sums[i] + r.sums[N(by_hand) + i];
        by_hand[i] += r.sums[2 * N(by_hand) + i];
    }
    hand_init(&h, 2, 0, 7, 0);
    h.parts.n_sums = 1;
    h.parts.sums = all;
    r = hand_run(&h);
    ck_assert(r.n_sums == 1 && r.n_rows == 0);
    ck_assert_mem_eq(r.sums, by_hand, sizeof(by_hand));
}

/* A mask holds for its own row; one that min_tokens leaves nothing of is broken numbers. */
TEST(masks_by_row)
{
    const size_t words = ((size_t)model_config(model)->vocab_size + 31) / 32;
    uint32_t *masks = calloc(2 * words, sizeof(*masks));
    const uint32_t *given[] = {masks, masks + words};
    int32_t stop = 70;
    struct hand h;
    struct step_result r;
    int32_t free_choice;

    open_usual();
    ck_assert_ptr_nonnull(masks);
    hand_init(&h, 1, 0, 9, 3);
    r = hand_run(&h);
    free_choice = r.ids[1];
    for (int ban = 0; ban < 2; ban++) {
        masks[500 / 32] = 1u << 500 % 32;
        masks[words + 70 / 32] = 1u << 70 % 32;
        hand_init(&h, 2 + (uint64_t)ban, 0, 9, 3);
        h.parts.n_masks = 2;
        h.rows[0].mask = 1;
        h.rows[2].mask = 0;
        h.rows[0].ban_stops = (uint32_t)ban;
        h.sampling.n_stop_ids = 1;
        h.sampling.stop_ids = &stop;
        hand_submit(&h);
        ck_assert_int_eq(cpu_backend.mask(b, given, &e), 0);
        memset(masks, 0, 2 * words * sizeof(*masks)); /* the backend has its own copy */
        r = hand_wait(&h);
        ck_assert_int_eq(r.ids[0], ban ? BATCH_NUMERICS : 70);
        ck_assert_int_eq(r.ids[1], free_choice);
        ck_assert_int_eq(r.ids[2], 500);
    }
    free(masks);
}

/* A step waits for its masks before it samples, a step behind it for that step; one whose masks
 * never come does not keep the backend from closing. */
TEST(steps_wait_for_masks)
{
    const size_t words = ((size_t)model_config(model)->vocab_size + 31) / 32;
    uint32_t *mask = calloc(words, sizeof(*mask));
    const uint32_t *const given[] = {mask}, *const all[] = {NULL};
    struct hand h[3];
    int32_t free_choice;

    open_usual();
    ck_assert_ptr_nonnull(mask);
    mask[70 / 32] = 1u << 70 % 32;
    for (int i = 0; i < 3; i++) {
        hand_init(&h[i], (uint64_t)i + 1, 0, 9, 1);
        h[i].parts.n_masks = 1;
        h[i].rows[0].mask = 0;
    }
    hand_submit(&h[0]);
    ck_assert_int_eq(cpu_backend.mask(b, all, &e), 0);
    hand_submit(&h[1]);
    free_choice = hand_wait(&h[0]).ids[0];
    ck_assert_int_ne(free_choice, 70);
    usleep(20000); /* long enough for the step to want them */
    ck_assert_int_eq(cpu_backend.mask(b, given, &e), 0);
    hand_submit(&h[2]);
    ck_assert_int_eq(hand_wait(&h[1]).ids[0], 70);
    cpu_backend.close(b);
    b = NULL;
    free(h[2].batch);
    free(mask);
}

/* A block goes to the host after the step that wrote it, and comes back elsewhere before the step
 * that reads it; a step may be nothing but copies. */
TEST(copies_keep_their_order, .n = 2)
{
    struct backend_options o = small_options(16, 16 << 20, 1);
    struct hand h;
    struct step_result r;
    float logprob;
    int32_t id;

    o.tp_size = 1 + _i;
    o.tier_bytes[1] = o.tier_bytes[2] = 4 << 20;
    open_with(&o);
    ck_assert(info.copies && info.tiers[TIER_DISK].n_blocks == 0);
    ck_assert_uint_eq(info.tiers[TIER_HOST].bytes,
                      (uint64_t)info.tiers[TIER_HOST].n_blocks * info.block_bytes);
    ck_assert_uint_le(info.tiers[TIER_HOST].bytes, 4 << 20);
    hand_init(&h, 1, 0, 16, 0); /* writes block 1 */
    h.parts.n_copies = 1;
    h.copy = (struct batch_copy){7, TIER_DEVICE, TIER_HOST, COPY_AFTER, 0, 1, 2};
    r = hand_run(&h);
    ck_assert(r.n_copies == 1 && r.copies[0].id == 7 && r.copies[0].ok);
    hand_init(&h, 2, 16, 2, 1);
    r = hand_run(&h);
    id = r.ids[0];
    logprob = r.logprobs[0];
    memset((char *)cpu_backend_kv(b) + info.block_bytes, 0xff, info.block_bytes);
    memset((char *)cpu_backend_kv(b) + 3 * info.block_bytes, 0xff, info.block_bytes);
    hand_init(&h, 3, 16, 2, 1);
    h.table[0] = 3;
    h.parts.n_copies = 1;
    h.copy = (struct batch_copy){8, TIER_HOST, TIER_DEVICE, COPY_BEFORE, 0, 2, 3};
    r = hand_run(&h);
    ck_assert(r.n_copies == 1 && r.copies[0].id == 8);
    ck_assert(r.ids[0] == id && r.logprobs[0] == logprob);
    h.parts = (struct batch_parts){.step = 4, .n_copies = 1, .copies = &h.copy};
    h.copy = (struct batch_copy){9, TIER_DEVICE, TIER_HOST, COPY_BEFORE, 0, 3, 0};
    r = hand_run(&h);
    ck_assert(r.n_rows == 0 && r.n_copies == 1 && r.copies[0].id == 9);
}

/* What only a bug of the core could ask for aborts before it is computed. */
TEST(broken_batch_aborts, .n = 13, .signal = SIGABRT)
{
    struct hand h, third[2];

    open_usual();
    hand_init(&h, 1, 0, 4, 1);
    switch (_i) {
    case 0:
        h.slots[2] = 35;
        break;
    case 1:
        h.positions[1] = 2;
        break;
    case 2:
        h.table[0] = info.tiers[TIER_DEVICE].n_blocks;
        break;
    case 3:
        h.tokens[0] = 2048;
        break;
    case 4:
        h.tokens[0] = ~0; /* there is no step before */
        break;
    case 5:
        h.rows[0].row = 4;
        break;
    case 6:
        h.parts.step = 2;
        break;
    case 7:
        h.kv_len[0] = 17;
        break;
    case 8:
        h.rows[0].mask = 0; /* there is none */
        break;
    case 9:
        h.parts.n_copies = 1; /* there is no host tier */
        h.copy = (struct batch_copy){1, TIER_DEVICE, TIER_HOST, COPY_AFTER, 0, 0, 0};
        break;
    case 10: /* a step behind one that lacks masks */
    case 11: /* or a wait for it */
        hand_init(&third[0], 1, 0, 4, 1);
        third[0].parts.n_masks = 1;
        third[0].rows[0].mask = 0;
        hand_submit(&third[0]);
        if (_i == 11)
            hand_wait(&third[0]);
        h.parts.step = 2;
        break;
    default:
        hand_init(&third[0], 1, 0, 4, 1);
        hand_init(&third[1], 2, 0, 4, 1);
        h.parts.step = 3;
        hand_submit(&third[0]);
        hand_submit(&third[1]);
        break;
    }
    hand_submit(&h);
}

RUN_TESTS("cpu_backend", setup, teardown)
