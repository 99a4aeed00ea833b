/* test_fair.c - who is next, what a step may take, and who may pass whom. */
#include <math.h>
#include <stdlib.h>

#include "engine/core/sequence.h"
#include "tests/sim/rng.h"
#include "tests/unit/run_suite.h"

static struct fair fair;
static struct step_cost cost;
static struct list requests;

static void set_up(void)
{
    cost = (struct step_cost){.row_us = 1};
    list_init(&requests);
    fair_init(&fair);
    fair_step_begin(&fair, &cost);
}

static void tear_down(void)
{
    FAIR_EACH (u, &fair)
        while (u->n_joined > 0)
            fair_leave(&fair, u);
    fair_deinit(&fair);
    LIST_EACH (struct request, q, in_core, &requests)
        free(q);
}

static struct fair_user *join(uint64_t id)
{
    struct fair_user *c;

    ck_assert_int_eq(fair_join(&fair, &c, id), 0);
    return c;
}

static struct sequence item(struct fair_user *c, uint64_t order, enum core_priority priority)
{
    struct request *q = calloc(1, sizeof(*q));

    ck_assert_ptr_nonnull(q);
    *q = (struct request){.user = c, .priority = priority};
    list_init(&q->in_core);
    list_append(&requests, &q->in_core);
    return (struct sequence){.request = q, .order = order, .n_lacking = 1};
}

static uint64_t next_order(void)
{
    struct sequence *i = fair_top(&fair);

    ck_assert_ptr_nonnull(i);
    fair_remove(i);
    return i->order;
}

/* A higher class goes first whatever came earlier; within one, arrival. */
TEST(class_then_arrival)
{
    struct fair_user *a = join(1);
    struct sequence low = item(a, 1, CORE_LOW), normal = item(a, 2, CORE_NORMAL),
                    late = item(a, 4, CORE_HIGH), high = item(a, 3, CORE_HIGH);

    fair_push(&low);
    fair_push(&normal);
    fair_push(&late);
    fair_push(&high);
    ck_assert_uint_eq(next_order(), 3);
    ck_assert_uint_eq(next_order(), 4);
    ck_assert_uint_eq(next_order(), 2);
    ck_assert_uint_eq(next_order(), 1);
    ck_assert_ptr_null(fair_top(&fair));
}

/* Of two clients the one served less goes first, though all of the other's came before. */
TEST(served_least_goes_first)
{
    struct fair_user *a = join(1), *b = join(2);
    struct sequence a1 = item(a, 1, CORE_NORMAL), a2 = item(a, 2, CORE_NORMAL),
                    b3 = item(b, 3, CORE_NORMAL);

    fair_push(&a1);
    fair_push(&a2);
    fair_push(&b3);
    ck_assert_uint_eq(next_order(), 1); /* equal: arrival */
    fair_charge(&fair, a, 0, 10);
    ck_assert_uint_eq(next_order(), 3);
    fair_charge(&fair, b, 0, 11);
    ck_assert_uint_eq(next_order(), 2);
}

/* A newcomer starts with the least of the active ones, and does not get all that others had. */
TEST(idleness_is_no_credit)
{
    struct fair_user *a = join(1), *b;
    struct sequence a1 = item(a, 1, CORE_NORMAL), b2, b3;

    fair_charge(&fair, a, 0, 1000);
    fair_push(&a1);
    b = join(2);
    b2 = item(b, 2, CORE_NORMAL);
    b3 = item(b, 3, CORE_NORMAL);
    fair_push(&b2);
    fair_push(&b3);
    ck_assert_uint_eq(next_order(), 1);
    fair_charge(&fair, a, 0, 2);
    ck_assert_uint_eq(next_order(), 2);
    fair_charge(&fair, b, 0, 1);
    ck_assert_uint_eq(next_order(), 3);
}

/* Leaving for a moment does not forgive what a client was served. */
TEST(a_short_leave_forgives_nothing)
{
    struct fair_user *a = join(1), *b = join(2);
    struct sequence a1, b2 = item(b, 2, CORE_NORMAL);

    fair_charge(&fair, a, 0, 100);
    fair_leave(&fair, a);
    a = join(1);
    a1 = item(a, 1, CORE_NORMAL);
    fair_push(&a1);
    fair_push(&b2);
    ck_assert_uint_eq(next_order(), 2);
    ck_assert_uint_eq(next_order(), 1);
}

/* One put to the front goes before all of its client, not before those of other clients. */
TEST(front_is_of_its_own_client)
{
    struct fair_user *a = join(1), *b = join(2);
    struct sequence a1 = item(a, 1, CORE_NORMAL), a9 = item(a, 9, CORE_NORMAL),
                    b5 = item(b, 5, CORE_NORMAL);

    a9.n_preempted = 1;
    fair_charge(&fair, a, 0, 5);
    fair_push(&a1);
    fair_push(&a9);
    fair_push(&b5);
    ck_assert_uint_eq(next_order(), 5);
    ck_assert_uint_eq(next_order(), 9);
    ck_assert_uint_eq(next_order(), 1);
}

struct number {
    struct list link;
    uint64_t value;
    bool in;
};

static bool number_less(const struct list *a, const struct list *b)
{
    return ((const struct number *)a)->value < ((const struct number *)b)->value;
}

/* A sorted list begins with its least member, whatever is inserted and removed in between. */
TEST(sorted_list_agrees_with_a_plain_array)
{
    enum { N = 64 };
    struct number numbers[N] = {0};
    struct rng rng = {7};
    struct list sorted;

    list_init(&sorted);
    for (int step = 0; step < 100000; step++) {
        struct number *x = &numbers[rng_range(&rng, 0, N - 1)], *least = NULL;

        if (x->in) {
            list_remove(&x->link);
        } else {
            x->value = (uint64_t)step ^ (rng_next(&rng) << 32);
            list_insert(&sorted, &x->link, number_less);
        }
        x->in = !x->in;
        for (int i = 0; i < N; i++)
            if (numbers[i].in && (!least || numbers[i].value < least->value))
                least = &numbers[i];
        ck_assert_ptr_eq(sorted.next, least ? &least->link : &sorted);
    }
}

/* Who has three times the share is served three times the tokens; a change holds at once. */
TEST(shares_are_kept)
{
    struct fair_user *c[2] = {join(1), join(2)};
    struct sequence items[2] = {item(c[0], 1, CORE_NORMAL), item(c[1], 2, CORE_NORMAL)};
    struct fair_share *shares = calloc(2, sizeof(*shares));
    int served[2] = {0, 0};

    shares[0] = (struct fair_share){.client = 2, .share = 300};
    shares[1] = (struct fair_share){.client = 77, .share = 1}; /* nobody who is here */
    fair_set_shares(&fair, shares, 2);
    for (int i = 0; i < 2; i++)
        fair_push(&items[i]);
    for (int i = 0; i < 4000; i++) {
        struct sequence *top = fair_top(&fair);

        served[top == &items[1]]++;
        fair_charge(&fair, top->request->user, 0, 1);
    }
    ck_assert_int_ge(served[1], 2970);
    ck_assert_int_le(served[1], 3030);
    ck_assert_double_eq(fair_vtime_of(c[0], 90), 90);
    ck_assert_double_eq(fair_vtime_of(c[1], 90), 30);
    fair_set_shares(&fair, NULL, 0);
    ck_assert_double_eq(fair_vtime_of(c[1], 90), 90);
    for (int i = 0; i < 2; i++) {
        fair_remove(&items[i]);
        fair_leave(&fair, c[i]);
    }
}

/* A user that gets all it wants keeps little credit for later, one that does not keeps all. */
TEST(what_is_not_wanted_is_no_credit)
{
    struct fair_user *a = join(1), *b = join(2);
    struct sequence a1 = item(a, 1, CORE_NORMAL), b2 = item(b, 2, CORE_NORMAL);

    fair_push(&a1);
    fair_push(&b2);
    fair_charge(&fair, a, 0, 1000);
    fair_step_end(&fair);
    ck_assert_double_eq(b->vtime, 0);
    fair_remove(&b2);
    fair_step_end(&fair);
    ck_assert_double_eq(b->vtime, 1000 - 16);
    fair_remove(&a1);
}

static void want(struct fair_user *u, int32_t decodes, int32_t rows, int32_t klass)
{
    u->decodes = decodes;
    u->rows[0] = rows;
    u->klass = klass;
}

static void set_cost(double base, double decode, double row)
{
    for (int k = 0; k < STEP_COST_POINTS; k++) {
        cost.decodes[k].n = 1 << k;
        cost.decodes[k].us = base + decode * (1 << k);
    }
    cost.row_us = row;
}

/* A step takes no longer than each user's rows take alone, by its share; of a lower class nobody is
 * asked. */
TEST(a_step_is_limited)
{
    static const struct {
        double base;
        int32_t decodes, rows, klass;
        double limit;
    } cases[] = {
        {0, 1, 0, 1, 200},  {0, 2, 0, 1, 400},    {0, 0, 7, 1, 200}, /* as one decode at least */
        {0, 0, 30, 1, 600}, {900, 1, 0, 1, 2000}, {0, 1, 0, 2, 200},
        {0, 1, 0, 0, 1600}, /* 16 one-decode steps */
        {0, 0, 0, 1, 1600}, /* an offloaded prompt alone */
    };

    for (int i = 0; i < N(cases); i++) {
        struct fair_user *a = join(1), *b = join(2);

        set_cost(cases[i].base, 100, 10);
        fair_step_begin(&fair, &cost);
        want(a, 100, 0, 1);
        want(b, cases[i].decodes, cases[i].rows, cases[i].klass);
        ck_assert_double_eq_tol(fair_step_limit(&fair, 256), cases[i].limit, 1e-3);
        ck_assert_double_eq_tol(a->quota_us, cases[i].limit / 2, 1e-3);
        fair_leave(&fair, a);
        fair_leave(&fair, b);
    }
}

/* A user that has always been alone has whole steps; so do all while nothing is known. */
TEST(nobody_else_no_limit)
{
    struct fair_user *a = join(1), *b;

    set_cost(0, 100, 10);
    fair_step_begin(&fair, &cost);
    want(a, 100, 0, 1);
    ck_assert(isinf(fair_step_limit(&fair, 256)));
    b = join(2);
    fair_leave(&fair, b);
    ck_assert_double_eq_tol(fair_step_limit(&fair, 256), 1600, 1e-3);
    fair_leave(&fair, a);
    a = join(1);
    b = join(2);
    cost = (struct step_cost){.row_us = 0};
    fair_step_begin(&fair, &cost);
    want(a, 100, 0, 1);
    want(b, 1, 0, 1);
    ck_assert(isinf(fair_step_limit(&fair, 256)));
}

/* What a step takes by itself moves the virtual times of all that are in it alike. */
TEST(the_base_is_split_by_share)
{
    struct fair_share *shares = calloc(1, sizeof(*shares));
    struct fair_user *a = join(1), *b = join(2), *c = join(3);

    shares[0] = (struct fair_share){.client = 2, .share = 300};
    fair_set_shares(&fair, shares, 1);
    set_cost(800, 100, 10);
    fair_step_begin(&fair, &cost);
    want(a, 1, 0, 1);
    want(b, 1, 0, 1);
    want(c, 1, 0, 1);
    fair_step_limit(&fair, 256);
    fair_charge(&fair, a, 1, 0);
    fair_charge(&fair, b, 1, 0);
    fair_step_end(&fair);
    ck_assert_double_eq_tol(a->vtime, 100 + 200, 1e-6);
    ck_assert_double_eq_tol(b->vtime, 100 / 3.0 + 200, 1e-6);
    ck_assert_double_eq(c->charged_us, 0);
}

/* One that does not fit is passed 64 times; by a user within its part of the blocks for ever, while
 * its own user has its part. */
TEST(passing_is_bounded)
{
    struct fair_user *a = join(1), *b = join(2);
    struct sequence large = item(a, 1, CORE_NORMAL), small = item(a, 2, CORE_NORMAL),
                    other = item(b, 3, CORE_NORMAL);

    a->n_blocks = 60;
    fair_push(&large);
    fair_skip(&fair, &large);
    for (int i = 0; i < 64; i++) {
        ck_assert(fair_may_pass(&fair, &small, 100));
        fair_pass(&fair, &small, 100);
        fair_pass(&fair, &other, 100); /* is not counted */
    }
    ck_assert(!fair_may_pass(&fair, &small, 100));
    other.n_lacking = 50;
    ck_assert(fair_may_pass(&fair, &other, 100));
    other.n_lacking = 51;
    ck_assert(!fair_may_pass(&fair, &other, 100));
    other.n_lacking = 1;
    a->n_blocks = 49;
    ck_assert(!fair_may_pass(&fair, &other, 100));
    a->n_blocks = 0;
    fair_unskip(&fair);
    ck_assert_uint_eq(next_order(), 1);
}

/* A user whose first does not fit comes after one that has not been looked at. */
TEST(skipped_users_come_last)
{
    struct fair_user *a = join(1), *b = join(2);
    struct sequence a1 = item(a, 1, CORE_NORMAL), a2 = item(a, 2, CORE_NORMAL),
                    b3 = item(b, 3, CORE_NORMAL);

    fair_charge(&fair, b, 0, 100);
    fair_push(&a1);
    fair_push(&a2);
    fair_push(&b3);
    fair_skip(&fair, &a1);
    ck_assert_uint_eq(next_order(), 3);
    ck_assert_uint_eq(next_order(), 2);
    fair_unskip(&fair);
    ck_assert_uint_eq(next_order(), 1);
}

/* Whatever was learned of steps, a decode is charged something, and what a step without masks hides
 * adds nothing. */
TEST(odd_costs)
{
    static const double costs[][3] = {{100, 100, 100}, {0, 100, 1000}, {0, 10, 10000}};

    for (int i = 0; i < N(costs); i++) {
        struct fair_user *a = join(1), *b = join(2);

        for (int k = 0; k < 3; k++) {
            cost.decodes[k].n = costs[i][k] > 0 ? 1 << k : 0;
            cost.decodes[k].us = costs[i][k];
        }
        fair_step_begin(&fair, &cost);
        want(a, 2, 0, 1);
        want(b, 2, 1, 1);
        fair_step_limit(&fair, 256);
        ck_assert_double_gt(fair.decode_us, 0);
        fair_charge(&fair, b, 0, 1); /* less than the line through decodes says of none */
        b->planned_us = fair.row_us;
        fair_step_end(&fair);
        ck_assert_double_ge(fair.last_step_us, 0);
        fair_step_begin(&fair, &cost);
        ck_assert(isfinite(a->vtime) && isfinite(b->vtime));
        fair_leave(&fair, a);
        fair_leave(&fair, b);
    }
}

/* Accounts of idle users do not grow without bound. */
TEST(idle_accounts_are_bounded)
{
    for (uint64_t i = 0; i < 3000; i++)
        fair_leave(&fair, join(i));
    ck_assert_uint_le(fair.users.n, 1024);
}

RUN_TESTS("fair", set_up, tear_down)
