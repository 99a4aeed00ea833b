/* test_round_robin.c - clients alternate, and each is served in its own order. */

#include "engine/work_pool.h"
#include "tests/unit/run_suite.h"

enum { N = 12 };

static struct work_queue queue;
static struct work items[N];

static void add(int item, uint64_t client)
{
    work_queue_add(&queue, &items[item], client);
}

static void next_is(int item)
{
    ck_assert_ptr_eq(work_queue_take(&queue), &items[item]);
    ck_assert(list_empty(&items[item].link));
}

static void setup(void)
{
    work_queue_init(&queue);
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
    ck_assert(list_empty(&queue.works));
    ck_assert_ptr_null(work_queue_take(&queue));
}

/* Taking out an item changes no other's place. */
TEST(removal_keeps_the_order)
{
    for (int i = 0; i < 3; i++)
        add(i, 7);
    add(3, 8);
    add(4, 9);
    list_remove(&items[0].link); /* a client's first */
    list_remove(&items[2].link); /* one behind it */
    list_remove(&items[3].link); /* a client's only one */
    next_is(4);
    next_is(1);
    add(0, 7);
    next_is(0);
    ck_assert(list_empty(&queue.works));
}

int main(void)
{
    return run_tests("round_robin", setup, NULL);
}
