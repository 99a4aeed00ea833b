/* test_core_contract.c - what the core asks of backends beyond rows: drafts, masks and copies
 * between tiers. */
#include <string.h>

#include "engine/core/core_impl.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

enum { N = 18 }; /* tokens of an answer */

static int32_t answer[N]; /* what request() is told */

static uint64_t request(bool masks)
{
    struct core_request r = rig_request(1, 10, N);

    r.masks = masks;
    return rig_ask(&r);
}

static void know_answer(void)
{
    uint64_t id = rig_ask_for(1, 10, N);

    rig_run();
    for (int i = 0; i < N; i++)
        answer[i] = rig_token(id, 0, i);
}

static void check_answer(uint64_t id)
{
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(rig_token(id, 0, i), answer[i]);
}

/* Right drafts are told in the step that carries them, with the token after the last. */
TEST(right_drafts_are_accepted)
{
    const struct batch *b;
    uint64_t id;

    know_answer();
    id = request(false);
    rig_step();
    ck_assert_int_eq(core_draft(rig.core, id, 0, answer + 1, 20), CORE_MAX_DRAFTS);
    b = rig_next();
    ck_assert(b->n_decodes == 0 && b->n_tokens == 8 && b->n_rows == 8); /* of max_seqs */
    ck_assert_ptr_null(rig_next()); /* its next input depends on what is accepted */
    rig_commit();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 1 + 8);
    b = rig_next(); /* without drafts it is a decode */
    ck_assert(b->n_decodes == 1 && batch_positions(b)[0] == 18);
    rig_commit();
    rig_run();
    check_answer(id);
}

/* What follows a wrong draft is not accepted, though it be right; the text is the same. */
TEST(wrong_drafts_change_nothing)
{
    int32_t drafts[5];
    uint64_t id;

    know_answer();
    id = request(false);
    rig_step();
    memcpy(drafts, answer + 1, sizeof(drafts));
    drafts[2]++;
    ck_assert_int_eq(core_draft(rig.core, id, 0, drafts, 5), 5);
    rig_step();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 1 + 3);
    ck_assert_int_eq(batch_positions(rig_next())[0], 13);
    rig_commit();
    rig_run();
    check_answer(id);
}

/* Drafts are refused where they could change a token, or be for another place in the text. */
TEST(drafts_are_refused)
{
    struct core_request r = rig_request(2, 10, N);
    uint64_t penalized, id;

    rig.sampling.presence_penalty = 1;
    penalized = rig_ask(&r);
    id = request(false);
    rig_next();
    ck_assert_int_eq(core_draft(rig.core, id, 0, answer, 1), 0);
    rig_commit();
    ck_assert_int_eq(core_draft(rig.core, penalized, 0, answer, 1), 0);
    ck_assert_int_eq(core_draft(rig.core, id, 1, answer, 1), 0);
    ck_assert_int_eq(core_draft(rig.core, 99, 0, answer, 1), 0);
    ck_assert_int_eq(core_draft(rig.core, id, 0, answer, 1), 1);
    rig_run();
}

/* Two steps are in flight until a draft is announced; then one is, until there is none any more. */
TEST(drafts_hold_back_the_second_step)
{
    uint64_t id;

    know_answer();
    id = request(false);
    rig_step();
    ck_assert_ptr_nonnull(rig_next());
    ck_assert_ptr_nonnull(rig_next());
    rig_commit();
    ck_assert_int_eq(core_draft(rig.core, id, 0, answer + 2, 1), 0);
    ck_assert_ptr_null(rig_next());
    rig_commit();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 3);
    ck_assert_int_eq(core_draft(rig.core, id, 0, answer + 3, 1), 1);
    ck_assert_int_eq(rig_next()->n_drafted, 1);
    rig_commit();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 5);
    ck_assert_int_eq(core_draft(rig.core, id, 0, NULL, 0), 0);
    ck_assert_ptr_nonnull(rig_next());
    ck_assert_ptr_nonnull(rig_next());
    rig_commit();
    rig_commit();
    rig_run();
    check_answer(id);
}

static void set_bit(uint32_t *mask, int32_t id)
{
    memset(mask, 0, 40 * sizeof(*mask));
    mask[id / 32] = 1u << id % 32;
}

static void start_with_masks(void)
{
    rig.options.mask_words = 40;
    rig_restart();
}

/* A request with masks has two rows in flight like any other; the mask of the second is set when
 * the token of the first has been told, once. */
TEST(masks_come_while_a_step_is_in_flight)
{
    uint32_t mask[40];
    const struct batch *b;
    uint64_t id;

    start_with_masks();
    id = request(true);
    b = rig_next();
    ck_assert(b->n_tokens == 10 && b->n_rows == 1 && b->n_masks == 1);
    for (int32_t i = 0; i < N; i++) {
        set_bit(mask, 200 + i);
        ck_assert(core_set_mask(rig.core, id, 0, mask, 1));
        ck_assert(!core_set_mask(rig.core, id, 0, mask, 1));
        b = rig_next();
        if (i < N - 1) {
            ck_assert(b->n_masks == 1 && batch_rows(b)[0].mask == 0 && batch_tokens(b)[0] == ~0);
            ck_assert_ptr_eq(core_masks(rig.core)[0], mask); /* of the oldest step */
        }
        rig_commit();
        ck_assert_int_eq(rig_token(id, 0, i), 200 + i);
    }
    ck_assert_ptr_nonnull(rig_finished(id));
    ck_assert_ptr_null(core_masks(rig.core));
}

/* The row in flight of a request that has ended allows everything, whatever its mask was; so does
 * one whose choice alone has ended. */
TEST(ended_rows_need_no_mask, .n = 2)
{
    uint32_t mask[40];
    uint64_t id;

    start_with_masks();
    id = request(true);
    rig_next();
    set_bit(mask, 200);
    ck_assert(_i == 1 || core_set_mask(rig.core, id, 0, mask, 1));
    if (_i == 0)
        core_cancel(rig.core, id, CORE_REASON_CANCELLED, 1);
    else
        core_stop(rig.core, id, 0, 1);
    rig_look();
    ck_assert_ptr_null(core_masks(rig.core)[0]);
    rig_commit();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 0);
}

/* Each draft's row has the mask of its own place. */
TEST(drafts_have_masks_of_their_own)
{
    uint32_t masks[3 * 40];
    int32_t drafts[] = {301, 999};
    uint64_t id;

    start_with_masks();
    id = request(true);
    for (int32_t i = 0; i < 3; i++)
        set_bit(masks + i * 40, 300 + i);
    ck_assert(core_set_mask(rig.core, id, 0, masks, 1));
    rig_step();
    for (int32_t i = 0; i < 3; i++)
        set_bit(masks + i * 40, 301 + i);
    ck_assert_int_eq(core_draft(rig.core, id, 0, drafts, 2), 2);
    ck_assert(core_set_mask(rig.core, id, 0, masks, 3));
    rig_step();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 3);
    for (int32_t i = 0; i < 3; i++)
        ck_assert_int_eq(rig_token(id, 0, i), 300 + i);
}

/* A pool of 8 blocks with a host tier, in which the blocks of text 1 are no longer on the device.
 */
static void start_with_host(int32_t copy_fail_one_in)
{
    rig.options.n_blocks = 8;
    rig.options.tier_blocks[TIER_HOST] = 32;
    rig.backend_options.n_blocks[TIER_HOST] = 32;
    rig.backend_options.copy_fail_one_in = copy_fail_one_in;
    rig_restart();
    for (int32_t text = 1; text <= 3; text++) {
        rig_ask_for(text, 25, 2);
        rig_run();
        while (rig_next()) /* idle: what may be evicted is copied down */
            rig_commit();
    }
}

/* On the host a chain is evicted from its tail, whether it went down last or came up. */
static void check_host_order(void)
{
    const struct prefix_cache *p = rig.core->cache;
    const struct blocks *host = rig.core->tiers[TIER_HOST];
    int n_pairs = 0;

    for (int32_t i = 0; i < p->n_nodes; i++) {
        const struct node *n = &p->nodes[i];

        if (!n->ns || n->depth == 0 || n->location[TIER_HOST] < 0 ||
            n->parent->location[TIER_HOST] < 0)
            continue;
        ck_assert_uint_lt(blocks_at(host, n->location[TIER_HOST])->released,
                          blocks_at(host, n->parent->location[TIER_HOST])->released);
        n_pairs++;
    }
    ck_assert_int_gt(n_pairs, 5);
}

/* A prefix found in a lower tier alone is a hit once it is copied up. */
TEST(prefix_comes_up_from_the_host)
{
    const struct batch *b;
    uint64_t id, other;

    start_with_host(0);
    ck_assert_uint_gt(rig.core->n_stored[TIER_HOST], 6);
    id = rig_ask_for(1, 25, 2);
    b = rig_next();
    ck_assert(b->n_seqs == 0 && b->n_copies == 6);
    for (int32_t i = 0; i < 6; i++)
        ck_assert_int_eq(batch_copies(b)[i].to_tier, TIER_DEVICE);
    other = rig_ask_for(9, 3, 2); /* is not held up */
    ck_assert_int_eq(rig_next()->n_seqs, 1);
    rig_commit();
    rig_commit();
    ck_assert_int_eq(rig_count(other, CORE_TOKEN), 1);
    rig_run();
    ck_assert_int_eq(rig_finished(id)->usage.cached_tokens, 24);
    check_host_order();
}

/* Where copies fail the prefix is computed; nothing is found that is not there. */
TEST(failed_copies_are_misses)
{
    uint64_t id;

    start_with_host(1);
    ck_assert_uint_eq(rig.core->n_stored[TIER_HOST], 0);
    id = rig_ask_for(1, 25, 2);
    rig_run();
    ck_assert_int_eq(rig_finished(id)->usage.cached_tokens, 0);
}

/* A request may end while its prefix is on the way; the copies end by themselves. */
TEST(cancel_while_loading)
{
    uint64_t id;

    start_with_host(0);
    rig.backend_options.copy_steps = 4;
    id = rig_ask_for(1, 25, 2);
    rig_next();
    core_cancel(rig.core, id, CORE_REASON_CANCELLED, rig.now_us);
    rig_look();
    ck_assert_ptr_nonnull(rig_finished(id));
    rig_commit();
    rig_run();
    ck_assert_int_eq(rig_stats().blocks_used, 0);
}

RUN_TESTS("core_contract", rig_set_up, rig_end)
