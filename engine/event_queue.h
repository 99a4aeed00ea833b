/* event_queue.h - engine events on their way to the daemon's loop: whole lists, one eventfd.
 *
 * Any thread may push; one thread takes everything at once. The eventfd is written when the queue
 * becomes non-empty. A push is never refused: producers call event_queue_wait before they make
 * more, so the queue never exceeds its limit by more than one batch of each producer. */
#ifndef NVLLM_ENGINE_EVENT_QUEUE_H
#define NVLLM_ENGINE_EVENT_QUEUE_H

#include <pthread.h>

#include "engine/engine.h"

/* A list being built; a zeroed struct is empty. */
struct event_list {
    struct engine_event *head, *tail;
    size_t bytes;
};

/* A new event with copies of the arrays, in one allocation; logprobs may be NULL. NULL: no memory.
 */
struct engine_event *engine_event_new(enum engine_event_type type, uint64_t request,
                                      const int32_t *ids, const struct engine_logprobs *logprobs,
                                      size_t n_ids, struct text text);

void event_list_push(struct event_list *l, struct engine_event *ev);

struct event_queue {
    pthread_mutex_t lock;
    pthread_cond_t room;
    struct event_list list;
    size_t limit; /* 0: none */
    bool closed;
    int fd; /* eventfd, readable while the list is not empty */
};

int event_queue_init(struct event_queue *q, size_t limit); /* negative errno */
void event_queue_deinit(struct event_queue *q);
void event_queue_push(struct event_queue *q, struct event_list *l); /* l is empty afterwards */
struct engine_event *event_queue_take(struct event_queue *q);

/* Waits while the queue is over its limit and not closed. True if it waited. */
bool event_queue_wait(struct event_queue *q);
void event_queue_close(struct event_queue *q);

#endif
