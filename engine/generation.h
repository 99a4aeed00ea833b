/* generation.h - one generate request while it lives in the engine thread: its choices' text
 * streams and, for a request that does not stream, what has been gathered of each.
 *
 * Turns core events into engine events. Engine thread only. */
#ifndef NVLLM_ENGINE_GENERATION_H
#define NVLLM_ENGINE_GENERATION_H

#include "engine/event_queue.h"
#include "engine/text/text_stream.h"

struct generation;

/* arrival_us: when the request came, encoding included. -EINVAL, -ENOMEM. */
int generation_new(struct generation **out, const struct engine_request *r,
                   const struct tokenizer *tokenizer, uint64_t arrival_us);
void generation_free(struct generation *g);
/* What one takes for r, its last event included, before any token. False: more than fits. */
bool generation_bytes(size_t *out, const struct engine_request *r);
uint64_t generation_id(const struct generation *g);

/* Hands over the request's last event, made beforehand so that want of memory can never lose it. */
void generation_arm(struct generation *g, struct engine_event *terminal);

enum {
    GENERATION_OK,
    GENERATION_STOP, /* a stop string ended the choice: the core is to be told */
    GENERATION_LOST, /* out of memory: to be cancelled; its terminal event will be an error */
};

int generation_token(struct generation *g, const struct core_event *ev, struct event_list *out);
void generation_choice_done(struct generation *g, const struct core_event *ev,
                            struct event_list *out);

/* CORE_FINISHED: pushes the terminal event; the generation has nothing more to say. */
void generation_finish(struct generation *g, const struct core_usage *usage,
                       struct event_list *out);

/* Pushes the terminal event as an error: the engine itself is at its end. */
void generation_fail(struct generation *g, const char *text, struct event_list *out);

#endif
