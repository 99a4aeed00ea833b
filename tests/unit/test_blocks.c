/* test_blocks.c - each block is free, cached or used. */
#include <stdlib.h>

#include "tests/sim/core_verify.h"
#include "tests/unit/run_suite.h"

/* Of the prefix cache; never looked into. */
#define NODE ((struct node *)&pool)

static struct blocks *pool;

static void set_up(void)
{
    ck_assert_int_eq(blocks_new(&pool, 3), 0);
}

static void tear_down(void)
{
    blocks_free(pool);
}

static int32_t take(void)
{
    int32_t id = -1;

    ck_assert(blocks_take(pool, &id));
    return id;
}

static void expect(int32_t n_free, int32_t n_cached, int32_t n_used)
{
    ck_assert_int_eq(pool->n_free, n_free);
    ck_assert_int_eq(pool->n_cached, n_cached);
    ck_assert_int_eq(blocks_n_used(pool), n_used);
}

/* Each block is taken once; then there is none left. */
TEST(takes_each_once)
{
    int32_t a = take(), b = take(), c = take(), d;

    ck_assert(a != b && b != c && a != c);
    ck_assert(!blocks_take(pool, &d));
    expect(0, 0, 3);
}

/* A block shared by two sequences is free only when both have released it. */
TEST(shared_block_outlives_first_owner)
{
    int32_t a = take();

    blocks_ref(pool, a);
    blocks_unref(pool, a);
    expect(2, 0, 1);
    blocks_unref(pool, a);
    expect(3, 0, 0);
}

/* A released listed block is cached, not free: it is not taken, and can be held again. */
TEST(listed_block_is_cached)
{
    int32_t a = take(), b;

    blocks_list(pool, a, NODE);
    blocks_unref(pool, a);
    expect(2, 1, 0);
    b = take();
    ck_assert_int_ne(b, a);
    ck_assert_int_ne(take(), a);
    ck_assert(!blocks_take(pool, &b));
    blocks_ref(pool, a);
    expect(0, 0, 3);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), -1);
}

/* The oldest cached block is the one released first, also after another was held again. */
TEST(oldest_is_first_let_go)
{
    int32_t a = take(), b = take(), c = take();

    blocks_list(pool, a, NODE);
    blocks_list(pool, b, NODE);
    blocks_list(pool, c, NODE);
    blocks_unref(pool, b);
    blocks_unref(pool, a);
    blocks_unref(pool, c);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), b);
    blocks_ref(pool, a);
    blocks_unref(pool, a);
    blocks_list(pool, b, NULL);
    expect(1, 2, 0);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), c);
    blocks_list(pool, c, NULL);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), a);
}

/* A block unlisted while held is free once released. */
TEST(unlisted_while_held)
{
    int32_t a = take();

    blocks_list(pool, a, NODE);
    blocks_list(pool, a, NULL);
    expect(2, 0, 1);
    blocks_unref(pool, a);
    expect(3, 0, 0);
}

/* A cached block that a copy reads is held meanwhile and then has its place by age again; one that
 * is unlisted meanwhile is free when the last copy is done. */
TEST(copied_block_keeps_its_place)
{
    int32_t a = take(), b = take();

    blocks_list(pool, a, NODE);
    blocks_list(pool, b, NODE);
    blocks_unref(pool, a);
    blocks_ref(pool, a);
    blocks_unref(pool, b);
    expect(1, 1, 1);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), b);
    ck_assert_int_eq(blocks_id(pool, pool->block[b].link.next), -1);
    blocks_ref(pool, a);
    blocks_put_back(pool, a, true);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), b);
    blocks_put_back(pool, a, true);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), a);
    ck_assert_int_eq(blocks_id(pool, pool->block[a].link.next), b);
    expect(1, 2, 0);
    blocks_ref(pool, a);
    blocks_list(pool, a, NULL);
    expect(1, 1, 1);
    ck_assert_ptr_null(blocks_verify(pool, (int32_t[]){a == 0, a == 1, a == 2}));
    blocks_put_back(pool, a, true);
    expect(2, 1, 0);
}

/* Released blocks are dirty. Those looked at are clean until the first one that is put back dirty;
 * what leaves or comes back among them counts no more, or again. */
TEST(clean_ones_come_first)
{
    int32_t a = take(), b = take(), c = take();

    blocks_list(pool, a, NODE);
    blocks_list(pool, b, NODE);
    blocks_list(pool, c, NODE);
    ck_assert_int_eq(blocks_id(pool, pool->dirty), -1);
    blocks_unref(pool, a);
    blocks_unref(pool, b);
    blocks_unref(pool, c);
    ck_assert(blocks_id(pool, pool->dirty) == a && pool->n_clean == 0);
    blocks_set_clean(pool);
    blocks_set_clean(pool);
    ck_assert(blocks_id(pool, pool->dirty) == c && pool->n_clean == 2);
    blocks_ref(pool, a);
    ck_assert(blocks_id(pool, pool->dirty) == c && pool->n_clean == 1);
    blocks_ref(pool, c);
    ck_assert(blocks_id(pool, pool->dirty) == -1 && pool->n_clean == 1);
    blocks_put_back(pool, c, true);
    ck_assert(blocks_id(pool, pool->dirty) == -1 && pool->n_clean == 2);
    blocks_put_back(pool, a, false);
    ck_assert(blocks_id(pool, pool->dirty) == a && pool->n_clean == 0);
    ck_assert_ptr_null(blocks_verify(pool, (int32_t[]){0, 0, 0}));
    blocks_set_clean(pool);
    blocks_ref(pool, a);
    blocks_unref(pool, a);
    ck_assert(blocks_id(pool, pool->dirty) == b && pool->n_clean == 0);
    ck_assert_int_eq(blocks_id(pool, pool->block[c].link.next), a);
    ck_assert_ptr_null(blocks_verify(pool, (int32_t[]){0, 0, 0}));
}

/* Releasing a block that nobody holds is a bug and aborts. */
TEST(unref_below_zero_aborts, .signal = SIGABRT)
{
    blocks_unref(pool, 0);
}

/* So is an id outside the pool. */
TEST(foreign_id_aborts, .signal = SIGABRT)
{
    blocks_ref(pool, 3);
}

/* blocks_verify() sees a count that is not the number of holders. */
TEST(verify_counts_holders)
{
    int32_t refs[3] = {0, 0, 0};

    ck_assert_ptr_null(blocks_verify(pool, refs));
    refs[take()] = 1;
    ck_assert_ptr_null(blocks_verify(pool, refs));
    refs[0] = 2;
    ck_assert_ptr_nonnull(blocks_verify(pool, refs));
}

/* A certain free block is taken, used before or not; then it is the oldest of the cached ones. */
TEST(takes_a_certain_one)
{
    int32_t a = take(), b;

    blocks_list(pool, a, NODE);
    blocks_unref(pool, a);
    blocks_take_oldest(pool, 2);
    expect(1, 1, 1);
    blocks_list(pool, 2, NODE);
    blocks_put_back(pool, 2, false);
    expect(1, 2, 0);
    ck_assert_int_eq(blocks_id(pool, pool->cached.next), 2);
    b = take();
    ck_assert(b != 2 && b != a);
    blocks_list(pool, 2, NULL);
    blocks_take_oldest(pool, 2);
    expect(0, 1, 2);
}

RUN_TESTS("blocks", set_up, tear_down)
