/* generation.h - the answer to one generate request as it grows: its choices' text streams and, for
 * a request that does not stream, each choice's tokens and text.
 *
 * Turns core events into engine events. Engine thread only. */
#ifndef NVLLM_ENGINE_GENERATION_H
#define NVLLM_ENGINE_GENERATION_H

#include "engine/event_list.h"
#include "engine/text/text_stream.h"

struct generation;

/* The request must outlive it. -EINVAL, -ENOMEM. */
int generation_new(struct generation **out, const struct engine_request *r,
                   const struct tokenizer *tokenizer);
void generation_free(struct generation *g); /* takes NULL */
/* Memory of one before its first token. False: overflow. */
bool generation_bytes(size_t *out, const struct engine_request *r);

enum {
    GENERATION_OK,
    GENERATION_STOP, /* a stop string ended the choice: call core_stop */
    GENERATION_LOST, /* cancel the request: see generation_error */
};

int generation_token(struct generation *g, const struct core_event *ev, struct event_list *out);
void generation_choice_done(struct generation *g, const struct core_event *ev,
                            struct event_list *out);

/* 0, -ENOMEM, or -EDQUOT where charge refused memory: why the answer is lost. */
int generation_error(const struct generation *g);

#endif
