/* event_list.h - lists of engine events, on their way to the daemon's loop. */
#ifndef NVLLM_ENGINE_EVENT_LIST_H
#define NVLLM_ENGINE_EVENT_LIST_H

#include "engine/engine.h"

/* A zeroed struct is empty. */
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
/* Appends a list that is not empty, and empties it. */
void event_list_move(struct event_list *l, struct event_list *from);

#endif
