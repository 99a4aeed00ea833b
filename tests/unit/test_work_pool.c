/* test_work_pool.c - the tokenizer pool's promises: a short text never waits behind a long one, nor
 * one client behind all that another has sent. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/work_pool.h"
#include "tests/unit/run_suite.h"

struct task {
    struct work work;
    sem_t *begun, *gate; /* posted on begin; waited for before the end; may be NULL */
    _Atomic int *order;
    int place; /* in order of running, from 1 */
};

static void run_task(struct work *w)
{
    struct task *t = (struct task *)w;

    t->place = atomic_fetch_add(t->order, 1) + 1;
    if (t->begun)
        sem_post(t->begun);
    if (t->gate)
        sem_wait(t->gate);
}

static void push_of(struct work_pool *p, struct task *t, uint64_t client, size_t cost,
                    _Atomic int *order)
{
    t->work = (struct work){.run = run_task};
    t->order = order;
    work_pool_push(p, &t->work, client, cost);
}

static void push(struct work_pool *p, struct task *t, size_t cost, _Atomic int *order)
{
    push_of(p, t, 1, cost, order);
}

/* With every other thread held by long texts and more of them waiting, a short one still runs. */
TEST(short_work_passes_long_work)
{
    enum { THREADS = 3, LONGS = 6 };
    struct task longs[LONGS] = {0}, quick = {0};
    struct work_pool *p;
    _Atomic int order = 0;
    sem_t begun, gate, done;

    sem_init(&begun, 0, 0);
    sem_init(&gate, 0, 0);
    sem_init(&done, 0, 0);
    ck_assert_int_eq(work_pool_new(&p, THREADS), 0);
    for (int i = 0; i < LONGS; i++) {
        longs[i].begun = &begun;
        longs[i].gate = &gate;
        push(p, &longs[i], WORK_SHORT_BYTES + 1, &order);
    }
    for (int i = 0; i < THREADS - 1; i++)
        sem_wait(&begun);
    quick.begun = &done;
    push(p, &quick, WORK_SHORT_BYTES, &order);
    sem_wait(&done); /* would wait for ever if long work could take every thread */
    ck_assert_int_eq(quick.place, THREADS);
    for (int i = 0; i < LONGS; i++)
        sem_post(&gate);
    for (int i = 0; i < LONGS - (THREADS - 1); i++)
        sem_wait(&begun);
    work_pool_free(p);
}

/* A pool of two threads with both of them held, so that what is pushed waits. */
struct held {
    struct work_pool *pool;
    struct task blockers[2];
    _Atomic int order;
    sem_t begun, gates[2]; /* of the thread that takes everything, of the other */
    sem_t done;            /* posted by each of the tasks that are pushed here */
};

static void hold(struct held *h)
{
    *h = (struct held){0};
    sem_init(&h->begun, 0, 0);
    sem_init(&h->done, 0, 0);
    ck_assert_int_eq(work_pool_new(&h->pool, 2), 0);
    for (int i = 0; i < 2; i++) {
        h->blockers[i].begun = &h->begun;
        h->blockers[i].gate = &h->gates[i];
        sem_init(&h->gates[i], 0, 0);
        push_of(h->pool, &h->blockers[i], 0, i ? 1 : WORK_SHORT_BYTES + 1, &h->order);
        sem_wait(&h->begun); /* the long one first: the thread of short work takes the other */
    }
}

static void push_held(struct held *h, struct task *t, uint64_t client, size_t cost)
{
    t->begun = &h->done;
    push_of(h->pool, t, client, cost, &h->order);
}

/* Lets one thread work, so that the order is the pool's, until n tasks have begun; then ends all.
 */
static void let_go(struct held *h, int n)
{
    sem_post(&h->gates[0]);
    for (int i = 0; i < n; i++)
        sem_wait(&h->done);
    sem_post(&h->gates[1]);
    work_pool_free(h->pool);
}

/* The one thread that takes everything takes a client's in order of arrival, long or short. */
TEST(first_come_first_served)
{
    enum { N = 40 };
    struct task tasks[N] = {0};
    struct held h;

    hold(&h);
    for (int i = 0; i < N; i++)
        push_held(&h, &tasks[i], 1, WORK_SHORT_BYTES + 1);
    let_go(&h, N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(tasks[i].place, i + 3);
}

/* Of three clients, one with much and two with little: these wait for as many pieces of the first
 * as they have themselves, whenever they came; and each client's own goes in order. */
TEST(clients_have_equal_parts)
{
    enum { MUCH = 60, LITTLE = 4 };
    struct task much[MUCH] = {0}, little[2][LITTLE] = {0};
    struct held h;

    hold(&h);
    for (int i = 0; i < MUCH; i++)
        push_held(&h, &much[i], 7, WORK_SHORT_BYTES);
    for (int i = 0; i < LITTLE; i++)
        for (int c = 0; c < 2; c++)
            push_held(&h, &little[c][i], UINT64_MAX - (uint64_t)c, WORK_SHORT_BYTES);
    let_go(&h, MUCH + 2 * LITTLE);
    for (int c = 0; c < 2; c++)
        ck_assert_int_le(little[c][LITTLE - 1].place, 2 + 3 * LITTLE);
    for (int i = 1; i < MUCH; i++)
        ck_assert_int_lt(much[i - 1].place, much[i].place);
    for (int i = 1; i < LITTLE; i++)
        ck_assert_int_lt(little[0][i - 1].place, little[0][i].place);
}

/* A small piece waits for one piece of the other client in each lane, however many that has. */
TEST(little_goes_before_much)
{
    enum { MUCH = 8 };
    struct task much[2][MUCH] = {0}, one = {0};
    struct held h;

    hold(&h);
    for (int i = 0; i < MUCH; i++)
        for (int l = 0; l < 2; l++)
            push_held(&h, &much[l][i], 7, l ? 1 << 20 : WORK_SHORT_BYTES);
    push_held(&h, &one, 8, 100);
    let_go(&h, 2 * MUCH + 1);
    ck_assert_int_le(one.place, 2 + 4); /* two long and one short one have come before it */
}

/* A piece that brings the next one of its client when it begins. */
struct relay {
    struct task task;
    struct work_pool *pool;
    struct relay *next;
};

static void run_relay(struct work *w)
{
    struct relay *r = (struct relay *)w;

    if (r->next)
        work_pool_push(r->pool, &r->next->task.work, 8, WORK_SHORT_BYTES);
    run_task(w);
}

/* Who always has one more piece waiting, never two, has no more than who has brought all at once.
 */
TEST(coming_back_is_no_advantage)
{
    enum { MUCH = 10, OFTEN = 60 };
    struct task much[MUCH] = {0};
    static struct relay often[OFTEN];
    struct held h;

    hold(&h);
    for (int i = 0; i < MUCH; i++)
        push_held(&h, &much[i], 7, WORK_SHORT_BYTES);
    for (int i = 0; i < OFTEN; i++)
        often[i] = (struct relay){.task = {.work = {.run = run_relay},
                                           .order = &h.order,
                                           .begun = &h.done},
                                  .pool = h.pool,
                                  .next = i + 1 < OFTEN ? &often[i + 1] : NULL};
    work_pool_push(h.pool, &often[0].task.work, 8, WORK_SHORT_BYTES);
    let_go(&h, MUCH + OFTEN);
    for (int i = 0; i < MUCH; i++)
        ck_assert_int_le(much[i].place, 2 + 2 * (i + 1) + 1);
}

static void *open_gates_late(void *arg)
{
    struct held *h = arg;

    usleep(50000); /* the pool is ending by now */
    for (int i = 0; i < 2; i++)
        sem_post(&h->gates[i]);
    return NULL;
}

/* A pool that ends runs no more than what it has begun. */
TEST(undone_work_is_dropped)
{
    enum { N = 5 };
    struct task waiting[N] = {0};
    pthread_t late;
    struct held h;

    hold(&h);
    for (int i = 0; i < N; i++)
        push_held(&h, &waiting[i], 1, i % 2 ? 1 : WORK_SHORT_BYTES + 1);
    ck_assert_int_eq(pthread_create(&late, NULL, open_gates_late, &h), 0);
    work_pool_free(h.pool);
    pthread_join(late, NULL);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(waiting[i].place, 0);
}

int main(void)
{
    return run_tests("work_pool", NULL, NULL);
}
