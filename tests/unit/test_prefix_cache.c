/* test_prefix_cache.c - what is found, by whom, and when no more. */
#include <check.h>
#include <string.h>

#include "engine/core/prefix_cache.h"
#include "tests/unit/run_suite.h"

enum { N_BLOCKS = 8, LEN = 4 };

static struct blocks *blocks;
static struct prefix_cache *cache;
static struct cache_namespace *ns;
static const int32_t one[LEN] = {1, 2, 3, 4}, two[LEN] = {5, 6, 7, 8};

static struct text salt(const char *s)
{
    return (struct text){s, strlen(s)};
}

static void set_up(void)
{
    ck_assert_int_eq(blocks_new(&blocks, N_BLOCKS), 0);
    ck_assert_int_eq(prefix_cache_new(&cache, blocks, N_BLOCKS, LEN, 42), 0);
    ck_assert_int_eq(prefix_cache_open(cache, &ns, 1, salt("")), 0);
}

static void tear_down(void)
{
    prefix_cache_close(cache, ns);
    prefix_cache_free(cache);
    blocks_free(blocks);
}

/* Takes a block, lists it after *chain and gives its id. */
static int32_t add(struct cache_namespace *in, uint64_t *chain, const int32_t *tokens,
                   int32_t owner)
{
    int32_t id;

    ck_assert_int_eq(prefix_cache_take(cache, &id), BLOCKS_OK);
    prefix_cache_insert(cache, in, chain, id, tokens, owner);
    return id;
}

static int32_t hold(uint64_t *chain, const int32_t *tokens)
{
    int32_t id;

    return prefix_cache_hold(cache, chain, tokens, &id) ? id : -1;
}

/* A chain of two blocks is found block by block, and each is held once more. */
START_TEST(finds_a_chain)
{
    uint64_t chain = prefix_cache_root(ns), at = chain;
    int32_t a = add(ns, &chain, one, PREFIX_CACHE_READY);
    int32_t b = add(ns, &chain, two, PREFIX_CACHE_READY);

    ck_assert_int_eq(hold(&at, one), a);
    ck_assert_int_eq(hold(&at, two), b);
    ck_assert_uint_eq(at, chain);
    ck_assert_int_eq(blocks_refs(blocks, a), 2);
    ck_assert_int_eq(blocks_refs(blocks, b), 2);
    ck_assert_ptr_null(prefix_cache_verify(cache));
}
END_TEST

/* Equal tokens after another prefix are another block. */
START_TEST(parent_is_part_of_identity)
{
    uint64_t chain = prefix_cache_root(ns), root = chain;

    add(ns, &chain, one, PREFIX_CACHE_READY);
    add(ns, &chain, two, PREFIX_CACHE_READY);
    ck_assert_int_eq(hold(&root, two), -1);
    ck_assert_uint_eq(root, prefix_cache_root(ns));
    ck_assert_int_eq(hold(&chain, one), -1);
}
END_TEST

/* A pending block is not pinned but its owner is told; once ready it is found. */
START_TEST(pending_is_not_found)
{
    uint64_t chain = prefix_cache_root(ns), root = chain;
    int32_t a = add(ns, &chain, one, 7);

    ck_assert_int_eq(hold(&root, one), -1);
    ck_assert_int_eq(prefix_cache_pending(cache, root, one), 7);
    ck_assert_int_eq(prefix_cache_pending(cache, root, two), -1);
    prefix_cache_set_ready(cache, a);
    ck_assert_int_eq(prefix_cache_pending(cache, root, one), -1);
    ck_assert_int_eq(hold(&root, one), a);
}
END_TEST

/* Of two equal blocks the first stays listed; the second's chain goes on with the first's. */
START_TEST(equal_block_stays_unlisted)
{
    uint64_t first = prefix_cache_root(ns), second = first;
    int32_t a = add(ns, &first, one, PREFIX_CACHE_READY);
    int32_t b = add(ns, &second, one, PREFIX_CACHE_READY);

    ck_assert_int_ne(a, b);
    ck_assert_uint_eq(first, second);
    ck_assert(!prefix_cache_is_ready(cache, b));
    blocks_unref(blocks, b);
    ck_assert_int_eq(blocks_n_cached(blocks), 0);
    blocks_unref(blocks, a);
    ck_assert_int_eq(blocks_n_cached(blocks), 1);
}
END_TEST

/* Clients do not share, and a salt narrows: the same bytes by the same client, nothing else. */
START_TEST(namespaces_are_exact)
{
    struct cache_namespace *other, *salted, *same;
    uint64_t chain = prefix_cache_root(ns), at;
    int32_t a = add(ns, &chain, one, PREFIX_CACHE_READY);

    ck_assert_int_eq(prefix_cache_open(cache, &other, 2, salt("")), 0);
    ck_assert_int_eq(prefix_cache_open(cache, &salted, 1, (struct text){"\0", 1}), 0);
    ck_assert_int_eq(prefix_cache_open(cache, &same, 1, salt("")), 0);
    at = prefix_cache_root(other);
    ck_assert_int_eq(hold(&at, one), -1);
    at = prefix_cache_root(salted);
    ck_assert_int_eq(hold(&at, one), -1);
    at = prefix_cache_root(same);
    ck_assert_int_eq(hold(&at, one), a);
    prefix_cache_close(cache, other);
    prefix_cache_close(cache, salted);
    prefix_cache_close(cache, same);
}
END_TEST

/* A namespace lives on without holders while blocks are in it: the next request finds them. */
START_TEST(namespace_outlives_its_requests)
{
    struct cache_namespace *first, *again;
    uint64_t chain, root;
    int32_t a;

    ck_assert_int_eq(prefix_cache_open(cache, &first, 9, salt("x")), 0);
    root = chain = prefix_cache_root(first);
    a = add(first, &chain, one, PREFIX_CACHE_READY);
    blocks_unref(blocks, a);
    prefix_cache_close(cache, first);
    ck_assert_int_eq(prefix_cache_open(cache, &again, 9, salt("x")), 0);
    ck_assert_uint_eq(prefix_cache_root(again), root);
    ck_assert_int_eq(hold(&root, one), a);
    /* without block and holder it is forgotten: a new one is another */
    prefix_cache_remove(cache, a);
    prefix_cache_close(cache, again);
    ck_assert_int_eq(prefix_cache_open(cache, &again, 9, salt("x")), 0);
    ck_assert_uint_ne(prefix_cache_root(again), prefix_cache_root(ns));
    ck_assert_uint_gt(prefix_cache_root(again), chain);
    prefix_cache_close(cache, again);
}
END_TEST

/* A private namespace is found by nobody, and its cached blocks are free when it is closed. */
START_TEST(private_namespace_leaves_nothing)
{
    struct cache_namespace *private;
    uint64_t chain;
    int32_t a, b;

    ck_assert_int_eq(prefix_cache_open_private(cache, &private), 0);
    chain = prefix_cache_root(private);
    a = add(private, &chain, one, PREFIX_CACHE_READY);
    b = add(private, &chain, two, 3);
    blocks_unref(blocks, a);
    ck_assert_int_eq(blocks_n_cached(blocks), 1);
    prefix_cache_close(cache, private);
    ck_assert_int_eq(blocks_n_cached(blocks), 0);
    prefix_cache_set_ready(cache, b); /* the step that wrote it is over, nobody wants it */
    ck_assert(!prefix_cache_is_ready(cache, b));
    blocks_unref(blocks, b);
    ck_assert_int_eq(blocks_n_free(blocks), N_BLOCKS);
}
END_TEST

/* When no block is free the one let go first is reused, and is found no more; the rest still is. */
START_TEST(reuses_the_oldest)
{
    uint64_t chain = prefix_cache_root(ns), at;
    int32_t a = add(ns, &chain, one, PREFIX_CACHE_READY);
    int32_t b = add(ns, &chain, two, PREFIX_CACHE_READY);
    int32_t id;

    blocks_unref(blocks, b); /* the tail first, as sequences do */
    blocks_unref(blocks, a);
    for (int i = 2; i < N_BLOCKS; i++) {
        ck_assert_int_eq(prefix_cache_take(cache, &id), BLOCKS_OK);
        ck_assert(id != a && id != b);
    }
    ck_assert_int_eq(prefix_cache_take(cache, &id), BLOCKS_OK);
    ck_assert_int_eq(id, b);
    ck_assert_uint_eq(prefix_cache_evictions(cache), 1);
    at = prefix_cache_root(ns);
    ck_assert_int_eq(hold(&at, one), a);
    ck_assert_int_eq(hold(&at, two), -1);
    ck_assert_int_eq(prefix_cache_take(cache, &id), BLOCKS_E_EMPTY);
}
END_TEST

/* A block computed again after its parent was reused is new: the old tail is not found by it. */
START_TEST(tail_of_a_forgotten_parent_is_unreachable)
{
    uint64_t chain = prefix_cache_root(ns), again = chain, old_one;
    int32_t a = add(ns, &chain, one, PREFIX_CACHE_READY);

    old_one = chain;
    add(ns, &chain, two, PREFIX_CACHE_READY);
    prefix_cache_remove(cache, a);
    add(ns, &again, one, PREFIX_CACHE_READY);
    ck_assert_uint_ne(again, old_one);
    ck_assert_int_eq(hold(&again, two), -1);
}
END_TEST

/* Where a block is listed no more, what is behind it cannot be found and is listed no more: the
 * cached ones become free. */
START_TEST(nothing_hangs_in_the_air)
{
    uint64_t chain = prefix_cache_root(ns), middle, at = chain;
    int32_t a = add(ns, &chain, one, PREFIX_CACHE_READY), b, c;

    middle = chain;
    b = add(ns, &chain, two, PREFIX_CACHE_READY);
    c = add(ns, &chain, one, PREFIX_CACHE_READY);
    blocks_unref(blocks, c);
    blocks_unref(blocks, b);
    ck_assert_int_eq(blocks_n_cached(blocks), 2);
    prefix_cache_remove(cache, a);
    ck_assert_int_eq(blocks_n_cached(blocks), 0);
    ck_assert_int_eq(blocks_n_used(blocks), 1);
    ck_assert_int_eq(hold(&middle, two), -1);
    ck_assert_int_eq(hold(&at, one), -1);
    ck_assert_ptr_null(prefix_cache_verify(cache));
    b = add(ns, &middle, two, PREFIX_CACHE_READY); /* nor can anything be put behind it */
    ck_assert(!prefix_cache_is_ready(cache, b));
    ck_assert_ptr_null(prefix_cache_verify(cache));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prefix_cache");
    TCase *t = tcase_create("prefix_cache");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, finds_a_chain);
    tcase_add_test(t, nothing_hangs_in_the_air);
    tcase_add_test(t, parent_is_part_of_identity);
    tcase_add_test(t, pending_is_not_found);
    tcase_add_test(t, equal_block_stays_unlisted);
    tcase_add_test(t, namespaces_are_exact);
    tcase_add_test(t, namespace_outlives_its_requests);
    tcase_add_test(t, private_namespace_leaves_nothing);
    tcase_add_test(t, reuses_the_oldest);
    tcase_add_test(t, tail_of_a_forgotten_parent_is_unreachable);
    suite_add_tcase(s, t);
    return run_suite(s);
}
