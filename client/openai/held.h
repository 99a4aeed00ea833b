/* held.h - deltas with logprobs, kept until the texts of their tokens are known. */
#ifndef NVLLM_CLIENT_OPENAI_HELD_H
#define NVLLM_CLIENT_OPENAI_HELD_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

#include "client/lib/nvllm_client.h"
#include "client/openai/tokens.h"

/* In one piece of memory, with all that the delta points to. */
struct held {
    STAILQ_ENTRY(held) next;
    struct nvllm_delta delta;
    alignas(max_align_t) char memory[];
};

STAILQ_HEAD(held_list, held);

/* Copies a delta to the end of the list, as one of this choice. False: no memory. */
bool held_add(struct held_list *list, const struct nvllm_delta *delta, uint32_t choice);
void held_drop_first(struct held_list *list);
void held_drop(struct held_list *list); /* all of them */

/* KNOWN if all tokens of a delta are. */
enum tokens_found held_tokens(struct tokens *tokens, const struct nvllm_delta *delta);

#endif
