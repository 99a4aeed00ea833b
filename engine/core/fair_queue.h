/* fair_queue.h - who waits, and who is next: class first, then the client that was served least for
 * its share, then arrival.
 *
 * Each client has a virtual time, the tokens it was served by its share: who has twice the usual
 * share ages half as fast. A client that comes back after idling starts just before the least of
 * the active ones, no lower: idleness is no credit; nor does a moment of idleness forgive what it
 * was served. Items are embedded by the caller; after a client was joined
 * nothing here can fail. Owned by the engine thread. */
#ifndef NVLLM_ENGINE_CORE_FAIR_QUEUE_H
#define NVLLM_ENGINE_CORE_FAIR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/util/heap.h"

enum { FAIR_QUEUE_CLASSES = 3 }; /* the highest goes first */

enum { FAIR_USUAL_SHARE = 100, FAIR_MAX_SHARE = 10000 };

/* A client whose share is not the usual. */
struct fair_share {
    uint64_t client;
    int32_t share; /* 1 .. FAIR_MAX_SHARE */
};

struct fair_queue;
struct fair_client; /* one client's account */

/* What the schedule counts for a client; the first three are zero when it leaves. */
struct fair_use {
    int32_t n_running;  /* sequences */
    int32_t n_waiting;  /* in the queue */
    int32_t n_blocks;   /* that its running sequences took, found ones not counted */
    uint64_t seen;      /* the schedule's own mark */
    double credit_us;   /* time that others may take from it */
    int32_t since_look; /* steps of it with others' rows, since one without */
    uint64_t began;     /* the plan with the first of its rows, after it had none that ran */

    uint64_t plan;             /* the plan that all below is of */
    struct fair_use *next;     /* among those of the plan that have something to run */
    int32_t decodes, rows;     /* of prompts, that its running sequences could have in this step */
    int32_t klass;             /* the highest of these */
    bool back;                 /* it stands back */
    int32_t n_decodes, n_rows; /* that they have */
    double share;              /* among the active clients, 0 .. 1 */
    uint64_t served;           /* fair_client_time() */
    double round_us;           /* a step of all that it could have, and nothing else */
    double work_us;            /* until all that runs has ended */
    double allowed_us;         /* for its rows in this step, if it has to stand back */
    double spent_us;           /* of that */
};

struct fair_item {
    struct heap_node node; /* private, while queued */
    struct fair_client *client;
    uint64_t order; /* arrival; never equal */
    int32_t klass;  /* 0 .. FAIR_QUEUE_CLASSES - 1 */
    bool front;     /* before all of its client and class that are not */
};

int fair_queue_new(struct fair_queue **out); /* -ENOMEM */
void fair_queue_free(struct fair_queue *q);  /* nothing may be joined any more */

/* These clients have these shares from now on, all others the usual. The array is taken over, to be
 * freed; NULL where n is 0. */
void fair_queue_set_shares(struct fair_queue *q, struct fair_share *shares, int32_t n);

/* The account of a client, active until as many leaves as joins. -ENOMEM. */
int fair_queue_join(struct fair_queue *q, struct fair_client **out, uint64_t client);
void fair_queue_leave(struct fair_queue *q, struct fair_client *client);

void fair_queue_push(struct fair_queue *q, struct fair_item *item);
void fair_queue_remove(struct fair_queue *q, struct fair_item *item);
struct fair_item *fair_queue_top(const struct fair_queue *q); /* NULL: empty */

/* Of so many of something: what falls to this client by its share among the active ones, at least
 * one. */
int32_t fair_client_part(const struct fair_queue *q, const struct fair_client *client, int32_t n);
double fair_client_share(const struct fair_queue *q, const struct fair_client *client); /* 0 .. 1 */
struct fair_use *fair_client_use(struct fair_client *client);
int32_t fair_queue_n_active(const struct fair_queue *q);
uint64_t fair_client_time(const struct fair_client *client); /* tokens it was served, or credited,
                                                              * as of a usual share */
uint64_t fair_client_cost(const struct fair_client *client, uint64_t n_tokens); /* likewise */

void fair_queue_charge(struct fair_queue *q, struct fair_client *client, uint64_t n_tokens);

#endif
