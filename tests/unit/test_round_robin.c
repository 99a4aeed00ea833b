/* test_round_robin.c - clients alternate, and each is served in its own order. */

#include "engine/util/round_robin.h"
#include "tests/unit/run_suite.h"

enum { N = 12 };

static struct rr_queue queue;
static struct rr_item items[N];

static void add(int item, uint64_t client)
{
    rr_queue_add(&queue, &items[item], client);
}

static void next_is(int item)
{
    ck_assert_ptr_eq(rr_queue_take(&queue), &items[item]);
    ck_assert(!items[item].queued);
}

static void setup(void)
{
    rr_queue_init(&queue);
}

/* However many a client has, the next one's comes after one of them. */
TEST(one_each_in_turn)
{
    for (int i = 0; i < 4; i++)
        add(i, 7);
    add(4, 8);
    add(5, 8);
    add(6, 9);
    next_is(0);
    next_is(4);
    next_is(6);
    next_is(1);
    add(7, 9); /* it has none left: it comes after those that wait */
    next_is(5);
    next_is(2);
    next_is(7);
    next_is(3);
    ck_assert(rr_queue_empty(&queue));
    ck_assert_ptr_null(rr_queue_take(&queue));
}

/* Taking out an item changes no other's place. */
TEST(removal_keeps_the_order)
{
    for (int i = 0; i < 3; i++)
        add(i, 7);
    add(3, 8);
    add(4, 9);
    rr_queue_remove(&items[0]); /* a client's first */
    rr_queue_remove(&items[2]); /* one behind it */
    rr_queue_remove(&items[3]); /* a client's only one */
    ck_assert(!items[0].queued && !items[2].queued && !items[3].queued);
    next_is(1);
    next_is(4);
    add(0, 7);
    next_is(0);
    ck_assert(rr_queue_empty(&queue));
}

int main(void)
{
    return run_tests("round_robin", setup, NULL);
}
