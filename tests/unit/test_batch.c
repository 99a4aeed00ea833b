/* test_batch.c - a batch is one block: it says the same wherever it lies, and a broken one is
 * found.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/make_batch.h"
#include "tests/unit/run_suite.h"

static const int32_t tokens[] = {5, ~0, 7}, q_start[] = {0, 1, 3}, table[] = {4, -1, 2, 3};
static const int32_t history[] = {1, 2, 3}, stop_ids[] = {9, 8};
static const struct logit_bias bias[] = {{6, 0.5f}};
static const struct batch_row rows[] = {{.row = 0, .mask = -1}, {.row = 2, .mask = 1}};
static const struct batch_copy copies[] = {{.id = 3, .to_tier = TIER_DISK, .from = 1, .to = 2}};
static const struct sampling plain = {.n_stop_ids = 1, .stop_ids = stop_ids};
static const struct sampling full = {
    .repetition_penalty = 2.0f, .n_bias = 1, .bias = bias, .n_stop_ids = 2, .stop_ids = stop_ids};
static const struct batch_part_update updates[] = {
    {.state = 1, .sampling = &plain},
    {.state = 2, .n_prompt = 2, .n_history = 3, .history = history, .sampling = &full}};

static struct batch *make(void)
{
    return make_batch(&(struct batch_parts){.step = 7,
                                            .n_tokens = 3,
                                            .n_seqs = 2,
                                            .n_decodes = 1,
                                            .n_rows = 2,
                                            .n_updates = 2,
                                            .n_masks = 2,
                                            .n_copies = 1,
                                            .max_blocks = 2,
                                            .tokens = tokens,
                                            .positions = tokens,
                                            .slots = tokens,
                                            .q_start = q_start,
                                            .kv_len = q_start,
                                            .block_table = table,
                                            .rows = rows,
                                            .updates = updates,
                                            .copies = copies});
}

static void check_contents(const struct batch *b)
{
    const struct sampler_update *u = batch_updates(b);
    struct sampling s = batch_sampling(b, &u[1]);

    ck_assert_int_eq(memcmp(batch_tokens(b), tokens, sizeof(tokens)), 0);
    ck_assert_int_eq(memcmp(batch_q_start(b), q_start, sizeof(q_start)), 0);
    ck_assert_int_eq(memcmp(batch_block_table(b), table, sizeof(table)), 0);
    ck_assert_int_eq(memcmp(batch_rows(b), rows, sizeof(rows)), 0);
    ck_assert_int_eq(memcmp(batch_copies(b), copies, sizeof(copies)), 0);
    ck_assert_int_eq(memcmp(batch_history(b, &u[1]), history, sizeof(history)), 0);
    ck_assert(s.n_bias == 1 && s.bias[0].id == 6 && s.bias[0].bias == 0.5f);
    ck_assert(s.n_stop_ids == 2 && s.stop_ids[0] == 9 && s.stop_ids[1] == 8);
    ck_assert_int_eq(batch_sampling(b, &u[0]).stop_ids[0], 9);
    ck_assert(!u[0].sampling.stop_ids && !u[1].sampling.bias);
}

/* A copy of the block elsewhere is the same batch. */
TEST(is_position_independent)
{
    struct batch *b = make(), *moved = malloc(b->bytes);

    ck_assert_ptr_nonnull(moved);
    memcpy(moved, b, b->bytes);
    ck_assert_ptr_null(batch_check(moved, moved->bytes));
    memset(b, 0xff, b->bytes);
    free(b);
    check_contents(moved);
    free(moved);
}

/* No head, count or offset takes a reader out of the block. */
TEST(broken_heads_are_found)
{
    struct batch *b = make();
    const size_t n = b->bytes;
    size_t n_wrong = 0, at;

    ck_assert_ptr_nonnull(batch_check(b, n - 1));
    ck_assert_ptr_nonnull(batch_check(b, sizeof(*b) - 1));
    for (at = offsetof(struct batch, n_tokens); at < sizeof(*b); at += sizeof(uint32_t)) {
        static const uint32_t values[] = {UINT32_MAX, INT32_MAX, 1u << 20, 1};

        for (size_t i = 0; i < N(values); i++) {
            uint32_t was;

            memcpy(&was, (char *)b + at, sizeof(was));
            memcpy((char *)b + at, &values[i], sizeof(was));
            if (batch_check(b, n))
                n_wrong++;
            else /* what it says lies within */
                ck_assert_uint_eq(values[i], 1);
            memcpy((char *)b + at, &was, sizeof(was));
        }
    }
    ck_assert_uint_ge(n_wrong, (at - offsetof(struct batch, n_tokens)) / sizeof(uint32_t) * 2);
    b->version++;
    ck_assert_ptr_nonnull(batch_check(b, n));
    b->version--;
    batch_updates_mut(b)[1].history_at = 1;
    ck_assert_ptr_nonnull(batch_check(b, n));
    free(b);
}

/* Debug builds find a changed byte. */
TEST(checksum_covers_the_arrays)
{
    struct batch *b = make();

    batch_slots_mut(b)[1] ^= 1;
#ifdef NVLLM_DEBUG
    ck_assert_ptr_nonnull(batch_check(b, b->bytes));
#else
    ck_assert_uint_eq(b->checksum, 0);
#endif
    free(b);
}

/* Counts that no block can hold are refused. */
TEST(layout_is_checked)
{
    struct batch head = {.n_seqs = INT32_MAX, .max_blocks = INT32_MAX};

    ck_assert_int_eq(batch_layout(&head), -EOVERFLOW);
    head = (struct batch){.n_rows = -1};
    ck_assert_int_eq(batch_layout(&head), -EINVAL);
    head = (struct batch){0};
    ck_assert_int_eq(batch_layout(&head), 0);
    ck_assert_uint_eq(head.bytes % BATCH_ALIGN, 0);
}

RUN_TESTS("batch", NULL, NULL)
