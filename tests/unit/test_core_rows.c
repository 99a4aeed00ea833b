/* test_core_rows.c - how many rows of a step prompts take, and how those fill tiles. */
#include "engine/step_cost.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

/* Prompts may take so many rows beside decodes; alone twice as many, or 128. */
static void set_rows(int32_t rows)
{
    const struct step_cost cost = {.max_step_us = rows, .row_us = 1};

    core_set_cost(rig.core, &cost);
}

/* Beside decodes prompts take no more rows than they may there; alone they take more. */
TEST(prompts_are_cut_beside_decodes)
{
    uint64_t a, b;
    const struct batch *batch;

    rig.options.max_batch_tokens = 512;
    rig.options.n_blocks = 256;
    rig_restart();
    set_rows(20);
    a = rig_ask_for(1, 130, 40);
    batch = rig_next();
    ck_assert_int_eq(batch->n_tokens, 128);
    rig_commit();
    batch = rig_next();
    ck_assert_int_eq(batch->n_tokens, 2);
    rig_commit();
    b = rig_ask_for(2, 86, 3);
    for (int i = 0; i < 5; i++) {
        batch = rig_next();
        ck_assert_int_eq(batch->n_decodes, 1);
        ck_assert_int_eq(batch->n_tokens, i < 4 ? 21 : 7);
        rig_commit();
    }
    set_rows(0);
    rig_run();
    ck_assert_int_eq(rig_count(a, CORE_TOKEN), 40);
    ck_assert_int_eq(rig_count(b, CORE_TOKEN), 3);
}

/* With rows for many tiles, what prompts may take fills whole ones together with the decodes. */
TEST(cut_prompts_fill_tiles)
{
    const struct batch *batch;

    rig.options.max_batch_tokens = 512;
    rig.options.max_seq_len = 512;
    rig.options.n_blocks = 512;
    rig_restart();
    set_rows(300);
    rig_ask_for(1, 10, 40);
    rig_step();
    rig_ask_for(2, 450, 3);
    batch = rig_next();
    ck_assert_int_eq(batch->n_decodes, 1);
    ck_assert_int_eq(batch->n_tokens, 256);
    rig_commit();
    batch = rig_next();
    ck_assert_int_eq(batch->n_tokens, 1 + 450 - 255);
    rig_commit();
    rig_run();
}

/* Filling whole tiles leaves prompts at least half of what they may take; where that is more than a
 * large tile they take that, and small ones where it is too little. */
TEST(tiles_leave_prompts_half)
{
    static const struct {
        int32_t n_decodes, n_prompts, may, take;
    } cases[] = {
        {127, 1, 16, 16},   {127, 1, 17, 17},   {127, 1, 128, 128}, {127, 1, 129, 129},
        {127, 1, 256, 129}, {127, 1, 300, 257}, {1, 8, 1000, 895},  {1, 8, 1024, 1023},
        {1, 8, 1413, 1023}, {1, 8, 2046, 1023}, {1, 8, 2047, 2047}, {1, 8, 3900, 3071},
    };

    rig.options.max_batch_tokens = 4096;
    rig.options.max_seq_len = 512;
    rig.options.max_seqs = 136;
    rig.options.n_blocks = 2048;
    for (int i = 0; i < N(cases); i++) {
        const struct batch *batch;

        rig_restart();
        for (int32_t k = 0; k < cases[i].n_decodes; k++)
            rig_ask_for(100 + k, 2, 40);
        rig_step();
        set_rows(cases[i].may);
        for (int32_t k = 0; k < cases[i].n_prompts; k++)
            rig_ask_for(2 + k, 500, 3);
        batch = rig_next();
        ck_assert_int_eq(batch->n_decodes, cases[i].n_decodes);
        ck_assert_int_eq(batch->n_tokens - batch->n_decodes, cases[i].take);
        rig_commit();
    }
}

RUN_TESTS("core_rows", rig_set_up, rig_end)
