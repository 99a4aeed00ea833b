/* ticket.h - what the engine knows of each request from when it is taken until its terminal event:
 * where it is, and whether it was cancelled.
 *
 * So that a cancel needs no memory of its own: one of an unknown request, or a second one, is
 * nothing. Every function wants the engine's lock held. */
#ifndef NVLLM_ENGINE_TICKET_H
#define NVLLM_ENGINE_TICKET_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/util/id_map.h"
#include "engine/util/list.h"

struct job;

struct ticket {
    uint64_t id;
    struct job *job; /* until the engine thread takes it */
    bool in_pool;
    bool cancelled;
    struct list in_cancels; /* cancelled, and the engine thread is yet to hear of it */
};

struct tickets {
    struct id_map by_id;
    struct list cancels;
};

void tickets_init(struct tickets *t);
void tickets_deinit(struct tickets *t);

int tickets_open(struct tickets *t, uint64_t id, struct job *job, bool in_pool); /* -ENOMEM */
/* The pool is done with it; true where it was cancelled meanwhile. */
bool tickets_leave_pool(struct tickets *t, uint64_t id);
void tickets_take_job(struct tickets *t, uint64_t id); /* the engine thread has it */
bool tickets_is_cancelled(const struct tickets *t, uint64_t id);
/* True when the engine thread is to hear of it. */
bool tickets_cancel(struct tickets *t, uint64_t id);
/* Moves those that the engine thread has to cancel to the empty list out. */
void tickets_take_cancels(struct tickets *t, struct list *out);
void tickets_close(struct tickets *t, uint64_t id);

#endif
