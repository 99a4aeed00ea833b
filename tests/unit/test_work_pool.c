/* test_work_pool.c - the tokenizer pool's promises: a short text never waits behind a long one, nor
 * one client behind all that another has sent. */
#include <ctype.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/work_pool.h"
#include "tests/unit/run_suite.h"

enum { MOST = 100 };

/* One piece of work: its client is a letter, a capital where it is long. */
struct task {
    struct work work;
    sem_t *gate;       /* waited for before the end; NULL: none */
    struct task *next; /* pushed when this one begins */
    char name;
};

static struct rig {
    struct work_pool *pool;
    struct task blockers[2], tasks[MOST];
    sem_t begun, gates[2]; /* posted by each task that begins; of the blockers */
    _Atomic int n_ran;
    struct task *ran[MOST];
} rig;

static void push(struct task *t)
{
    work_pool_push(rig.pool, &t->work, (uint64_t)tolower(t->name),
                   isupper(t->name) ? WORK_SHORT_BYTES + 1 : WORK_SHORT_BYTES);
}

static void run_task(struct work *w)
{
    struct task *t = (struct task *)w;

    if (t->next)
        push(t->next);
    rig.ran[atomic_fetch_add(&rig.n_ran, 1)] = t;
    sem_post(&rig.begun);
    if (t->gate)
        sem_wait(t->gate);
}

static void push_new(struct task *t, char name, sem_t *gate)
{
    *t = (struct task){.work = {.run = run_task}, .name = name, .gate = gate};
    push(t);
}

static void wait_begun(int n)
{
    for (int i = 0; i < n; i++)
        sem_wait(&rig.begun);
}

static void set_up(void)
{
    memset(&rig, 0, sizeof(rig));
    sem_init(&rig.begun, 0, 0);
    for (int i = 0; i < 2; i++)
        sem_init(&rig.gates[i], 0, 0);
}

/* A pool of two threads that are both busy, so that what is pushed waits. */
static void start_busy(void)
{
    ck_assert_int_eq(work_pool_new(&rig.pool, 2), 0);
    for (int i = 0; i < 2; i++) { /* the long one first: the thread of short work takes the other */
        push_new(&rig.blockers[i], i ? 'z' : 'Z', &rig.gates[i]);
        wait_begun(1);
    }
}

/* Lets the thread that takes everything run what waits; it ran as `order` says, and each client's
 * own of one length in order of arrival. */
static void runs_as(const char *order)
{
    const int n = (int)strlen(order);
    char ran[MOST + 1] = "";

    sem_post(&rig.gates[0]);
    wait_begun(n);
    sem_post(&rig.gates[1]);
    work_pool_free(rig.pool);
    for (int i = 0; i < n; i++) {
        ran[i] = rig.ran[2 + i]->name;
        for (int k = 0; k < i; k++)
            ck_assert(ran[k] != ran[i] || rig.ran[2 + k] < rig.ran[2 + i]);
    }
    ck_assert_str_eq(ran, order);
}

static void push_all(const char *names)
{
    for (int i = 0; names[i]; i++)
        push_new(&rig.tasks[i], names[i], NULL);
}

/* A short text runs while long ones occupy every other thread and more of them wait. */
TEST(short_work_passes_long_work)
{
    ck_assert_int_eq(work_pool_new(&rig.pool, 3), 0);
    for (int i = 0; i < 6; i++)
        push_new(&rig.tasks[i], 'A', &rig.gates[0]);
    wait_begun(2);
    push_new(&rig.tasks[6], 'a', NULL);
    wait_begun(1); /* would wait for ever if long work could take every thread */
    ck_assert_ptr_eq(rig.ran[2], &rig.tasks[6]);
    for (int i = 0; i < 6; i++)
        sem_post(&rig.gates[0]);
    wait_begun(4);
    work_pool_free(rig.pool);
}

/* The one thread that takes everything takes a client's in order of arrival. */
TEST(first_come_first_served)
{
    start_busy();
    push_all("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    runs_as("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
}

/* Clients with few pieces wait for one piece of a busy client for each of their own, whenever they
 * came. */
TEST(clients_have_equal_parts)
{
    start_busy();
    push_all("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaabcbcbcbc");
    runs_as("abcabcabcabcaaaaaaaaaaaaaaaaaaaaaaaaaa");
}

/* A short piece waits for one piece of the other client in each lane, however many it has. */
TEST(little_goes_before_much)
{
    start_busy();
    push_all("aAaAaAaAaAaAaAaAb");
    runs_as("aAbAaAaAaAaAaAaAa");
}

/* A client that queues its next piece whenever one begins gets no more than one that queued all of
 * its work at once. */
TEST(coming_back_is_no_advantage)
{
    start_busy();
    push_all("aaaaaaaaaa");
    for (int i = 10; i < 40; i++)
        rig.tasks[i] = (struct task){.work = {.run = run_task},
                                     .name = 'b',
                                     .next = i < 39 ? &rig.tasks[i + 1] : NULL};
    push(&rig.tasks[10]);
    runs_as("ababababababababababbbbbbbbbbbbbbbbbbbbb");
}

static void *open_gates_late(void *arg)
{
    (void)arg;
    usleep(50000); /* the pool is ending by now */
    for (int i = 0; i < 2; i++)
        sem_post(&rig.gates[i]);
    return NULL;
}

/* A pool that is freed finishes what it has begun and drops the rest. */
TEST(undone_work_is_dropped)
{
    pthread_t late;

    start_busy();
    push_all("aAaAa");
    ck_assert_int_eq(pthread_create(&late, NULL, open_gates_late, NULL), 0);
    work_pool_free(rig.pool);
    pthread_join(late, NULL);
    ck_assert_int_eq(atomic_load(&rig.n_ran), 2);
}

/* ---- a queue by itself */

static struct work_queue queue;
static struct work items[12];

static void add(int item, uint64_t client)
{
    work_queue_add(&queue, &items[item], client);
}

static void next_is(int item)
{
    ck_assert_ptr_eq(work_queue_take(&queue), &items[item]);
    ck_assert(list_empty(&items[item].link));
}

/* However many a client has, the next one's comes after one of them. */
TEST(one_each_in_turn)
{
    work_queue_init(&queue);
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
    work_queue_init(&queue);
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

RUN_TESTS("work_pool", set_up, NULL)
