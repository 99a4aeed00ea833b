/* generation.h - the answer to one generate request as it grows: its choices' text streams and, for
 * a request that does not stream, what each has gathered.
 *
 * Turns core events into engine events. Engine thread only. */
#ifndef NVLLM_ENGINE_GENERATION_H
#define NVLLM_ENGINE_GENERATION_H

#include "engine/event_queue.h"
#include "engine/text/text_stream.h"

struct generation;

/* The request must stay while its charge is asked. -EINVAL, -ENOMEM. */
int generation_new(struct generation **out, const struct engine_request *r,
                   const struct tokenizer *tokenizer);
void generation_free(struct generation *g); /* takes NULL */
/* What one takes for r before any token. False: more than fits. */
bool generation_bytes(size_t *out, const struct engine_request *r);

enum {
    GENERATION_OK,
    GENERATION_STOP, /* a stop string ended the choice: the core is to be told */
    GENERATION_LOST, /* the request is to be cancelled, see generation_error */
};

int generation_token(struct generation *g, const struct core_event *ev, struct event_list *out);
void generation_choice_done(struct generation *g, const struct core_event *ev,
                            struct event_list *out);

/* Why the answer cannot be told: -ENOMEM, or -EDQUOT where charge refused memory; else 0. */
int generation_error(const struct generation *g);

#endif
