/* test_accounts.c - what users hold is counted, for each and for all, and comes back to zero. */
#include "daemon/accounts.h"

#include <pthread.h>
#include <signal.h>

#include "tests/unit/run_suite.h"

static struct accounts all;

static void setup(void)
{
    memset(&all, 0, sizeof(all));
}

/* One user, root and the highest uid included, has one account; its last reference ends it. */
TEST(an_account_is_shared_by_a_user)
{
    struct account *a = account_get(&all, 0), *b = account_get(&all, UINT32_MAX);

    ck_assert_ptr_eq(account_get(&all, 0), a);
    ck_assert(a->uid == 0 && b->uid == UINT32_MAX);
    ck_assert_ptr_ne(a, b);
    ck_assert_uint_eq(all.by_uid.n, 2);
    account_unref(a);
    ck_assert_uint_eq(all.by_uid.n, 2);
    account_unref(a);
    ck_assert_uint_eq(all.by_uid.n, 1);
    account_unref(b);
    accounts_deinit(&all);
}

/* What is added to a user is added to all, item by item. */
TEST(sums_are_those_of_the_users)
{
    struct account *a = account_get(&all, 1), *b = account_get(&all, 2);

    for (int i = 0; i < N_ACCOUNT_ITEMS; i++) {
        account_add(a, (enum account_item)i, 10);
        account_add(b, (enum account_item)i, 5);
        ck_assert_uint_eq(all.total.amounts[i], 15);
        account_sub(a, (enum account_item)i, 4);
        ck_assert_uint_eq(a->amounts[i], 6);
        ck_assert_uint_eq(b->amounts[i], 5);
        ck_assert_uint_eq(all.total.amounts[i], 11);
        account_sub(a, (enum account_item)i, 6);
        account_sub(b, (enum account_item)i, 5);
    }
    account_unref(a);
    account_unref(b);
    accounts_deinit(&all);
}

/* More than was added cannot be taken: that is a bug of ours. */
TEST(below_zero_is_a_bug, .signal = SIGABRT)
{
    struct account *a = account_get(&all, 1);

    account_add(a, ACCOUNT_REQUESTS, 1);
    account_sub(a, ACCOUNT_REQUESTS, 2);
}

/* An account that nobody refers to must be empty. */
TEST(leaving_something_is_a_bug, .signal = SIGABRT)
{
    struct account *a = account_get(&all, 1);

    account_add(a, ACCOUNT_BUFFER_BYTES, 1);
    account_unref(a);
}

/* Somebody who still refers to an account at the end is a bug, too. */
TEST(a_forgotten_reference_is_a_bug, .signal = SIGABRT)
{
    account_get(&all, 1);
    accounts_deinit(&all);
}

static void *give_back(void *arg)
{
    for (int i = 0; i < 10000; i++)
        account_sub(arg, ACCOUNT_REQUEST_BYTES, 3);
    return NULL;
}

/* Bytes are taken and come back on any thread. */
TEST(bytes_come_back_from_other_threads)
{
    struct account *a = account_get(&all, 1);
    pthread_t threads[2];

    for (int i = 0; i < 20000; i++)
        account_add(a, ACCOUNT_REQUEST_BYTES, 3);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, give_back, a), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    account_unref(a);
    accounts_deinit(&all);
}

RUN_TESTS("accounts", setup, NULL)
