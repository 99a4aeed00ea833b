/* test_fair_queue.c - who is next. */
#include <check.h>
#include <stdlib.h>

#include "engine/core/fair_queue.h"
#include "engine/util/heap.h"
#include "tests/sim/rng.h"
#include "tests/unit/run_suite.h"

static struct fair_queue *queue;

static void set_up(void)
{
    ck_assert_int_eq(fair_queue_new(&queue), 0);
}

static void tear_down(void)
{
    fair_queue_free(queue);
}

static struct fair_client *join(uint64_t id)
{
    struct fair_client *c;

    ck_assert_int_eq(fair_queue_join(queue, &c, id), 0);
    return c;
}

static struct fair_item item(struct fair_client *c, uint64_t order, int32_t klass)
{
    return (struct fair_item){.client = c, .order = order, .klass = klass};
}

static uint64_t next_order(void)
{
    struct fair_item *i = fair_queue_top(queue);

    ck_assert_ptr_nonnull(i);
    fair_queue_remove(queue, i);
    return i->order;
}

/* A higher class goes first whatever came earlier; within one, arrival. */
START_TEST(class_then_arrival)
{
    struct fair_client *a = join(1);
    struct fair_item low = item(a, 1, 0), normal = item(a, 2, 1), late = item(a, 4, 2),
                     high = item(a, 3, 2);

    fair_queue_push(queue, &low);
    fair_queue_push(queue, &normal);
    fair_queue_push(queue, &late);
    fair_queue_push(queue, &high);
    ck_assert_uint_eq(next_order(), 3);
    ck_assert_uint_eq(next_order(), 4);
    ck_assert_uint_eq(next_order(), 2);
    ck_assert_uint_eq(next_order(), 1);
    ck_assert_ptr_null(fair_queue_top(queue));
    fair_queue_leave(queue, a);
}
END_TEST

/* Of two clients the one served less goes first, though all of the other's came before. */
START_TEST(served_least_goes_first)
{
    struct fair_client *a = join(1), *b = join(2);
    struct fair_item a1 = item(a, 1, 1), a2 = item(a, 2, 1), b3 = item(b, 3, 1);

    fair_queue_push(queue, &a1);
    fair_queue_push(queue, &a2);
    fair_queue_push(queue, &b3);
    ck_assert_uint_eq(next_order(), 1); /* equal: arrival */
    fair_queue_charge(queue, a, 10);
    ck_assert_uint_eq(next_order(), 3);
    fair_queue_charge(queue, b, 11);
    ck_assert_uint_eq(next_order(), 2);
    fair_queue_leave(queue, a);
    fair_queue_leave(queue, b);
}
END_TEST

/* A newcomer starts just before the least of the active ones: it goes first, but does not get all
 * that others had. */
START_TEST(idleness_is_no_credit)
{
    struct fair_client *a = join(1), *b;
    struct fair_item a1 = item(a, 1, 1), b2, b3;

    fair_queue_charge(queue, a, 1000);
    fair_queue_push(queue, &a1);
    b = join(2);
    b2 = item(b, 2, 1);
    b3 = item(b, 3, 1);
    fair_queue_push(queue, &b2);
    fair_queue_push(queue, &b3);
    ck_assert_uint_eq(next_order(), 2);
    fair_queue_charge(queue, b, 1);
    ck_assert_uint_eq(next_order(), 1);
    fair_queue_charge(queue, a, 2);
    ck_assert_uint_eq(next_order(), 3);
    fair_queue_leave(queue, a);
    fair_queue_leave(queue, b);
}
END_TEST

/* Leaving for a moment does not forgive what a client was served. */
START_TEST(a_short_leave_forgives_nothing)
{
    struct fair_client *a = join(1), *b = join(2);
    struct fair_item a1, b2 = item(b, 2, 1);

    fair_queue_charge(queue, a, 100);
    fair_queue_leave(queue, a);
    a = join(1);
    a1 = item(a, 1, 1);
    fair_queue_push(queue, &a1);
    fair_queue_push(queue, &b2);
    ck_assert_uint_eq(next_order(), 2);
    ck_assert_uint_eq(next_order(), 1);
    fair_queue_leave(queue, a);
    fair_queue_leave(queue, b);
}
END_TEST

/* One put to the front goes before all of its client, not before other clients' turn. */
START_TEST(front_is_of_its_own_client)
{
    struct fair_client *a = join(1), *b = join(2);
    struct fair_item a1 = item(a, 1, 1), a9 = item(a, 9, 1), b5 = item(b, 5, 1);

    a9.front = true;
    fair_queue_charge(queue, a, 5);
    fair_queue_push(queue, &a1);
    fair_queue_push(queue, &a9);
    fair_queue_push(queue, &b5);
    ck_assert_uint_eq(next_order(), 5);
    ck_assert_uint_eq(next_order(), 9);
    ck_assert_uint_eq(next_order(), 1);
    fair_queue_leave(queue, a);
    fair_queue_leave(queue, b);
}
END_TEST

struct number {
    struct heap_node node;
    uint64_t value;
    bool in;
};

static bool number_less(const struct heap_node *a, const struct heap_node *b)
{
    return ((const struct number *)a)->value < ((const struct number *)b)->value;
}

/* The heap gives the least of what is in it, whatever is inserted and removed in between. */
START_TEST(heap_agrees_with_a_plain_array)
{
    enum { N = 64 };
    struct number numbers[N] = {0};
    struct rng rng = {7};
    struct heap h;

    heap_init(&h, number_less);
    for (int step = 0; step < 100000; step++) {
        struct number *x = &numbers[rng_range(&rng, 0, N - 1)], *least = NULL;

        if (x->in) {
            heap_remove(&h, &x->node);
        } else {
            x->value = (uint64_t)step ^ (rng_next(&rng) << 32);
            heap_insert(&h, &x->node);
        }
        x->in = !x->in;
        for (int i = 0; i < N; i++)
            if (numbers[i].in && (!least || numbers[i].value < least->value))
                least = &numbers[i];
        ck_assert_ptr_eq(heap_top(&h), least);
    }
}
END_TEST

/* Who has three times the share is served three times the tokens; a change holds at once. */
START_TEST(shares_are_kept)
{
    struct fair_client *c[2] = {join(1), join(2)};
    struct fair_item items[2] = {item(c[0], 1, 1), item(c[1], 2, 1)};
    struct fair_share *shares = calloc(2, sizeof(*shares));
    int served[2] = {0, 0};

    shares[0] = (struct fair_share){.client = 2, .share = 300};
    shares[1] = (struct fair_share){.client = 77, .share = 1}; /* nobody who is here */
    fair_queue_set_shares(queue, shares, 2);
    for (int i = 0; i < 2; i++)
        fair_queue_push(queue, &items[i]);
    for (int i = 0; i < 4000; i++) {
        struct fair_item *top = fair_queue_top(queue);

        served[top == &items[1]]++;
        fair_queue_charge(queue, top->client, 1);
    }
    ck_assert_int_ge(served[1], 2970);
    ck_assert_int_le(served[1], 3030);
    ck_assert_uint_eq(fair_client_cost(c[0], 90), 90);
    ck_assert_uint_eq(fair_client_cost(c[1], 90), 30);
    fair_queue_set_shares(queue, NULL, 0);
    ck_assert_uint_eq(fair_client_cost(c[1], 90), 90);
    for (int i = 0; i < 2; i++) {
        fair_queue_remove(queue, &items[i]);
        fair_queue_leave(queue, c[i]);
    }
}
END_TEST

/* The largest share still ages with each token, and the smallest does not overflow. */
START_TEST(shares_at_both_ends)
{
    struct fair_client *c[2] = {join(1), join(2)};
    struct fair_share *shares = calloc(2, sizeof(*shares));

    shares[0] = (struct fair_share){.client = 1, .share = FAIR_MAX_SHARE};
    shares[1] = (struct fair_share){.client = 2, .share = 1};
    fair_queue_set_shares(queue, shares, 2);
    for (int i = 0; i < 100; i++)
        fair_queue_charge(queue, c[0], 1);
    ck_assert_uint_eq(fair_client_time(c[0]), 1);
    fair_queue_charge(queue, c[1], UINT64_C(1) << 40);
    ck_assert_uint_eq(fair_client_time(c[1]), (UINT64_C(1) << 40) * 100);
    for (int i = 0; i < 2; i++)
        fair_queue_leave(queue, c[i]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fair_queue");
    TCase *t = tcase_create("fair_queue");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, class_then_arrival);
    tcase_add_test(t, served_least_goes_first);
    tcase_add_test(t, idleness_is_no_credit);
    tcase_add_test(t, a_short_leave_forgives_nothing);
    tcase_add_test(t, front_is_of_its_own_client);
    tcase_add_test(t, shares_are_kept);
    tcase_add_test(t, shares_at_both_ends);
    tcase_add_test(t, heap_agrees_with_a_plain_array);
    suite_add_tcase(s, t);
    return run_suite(s);
}
