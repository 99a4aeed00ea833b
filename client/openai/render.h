/* render.h - choices and usage as JSON, in the shapes of OpenAI's two endpoints. */
#ifndef NVLLM_CLIENT_OPENAI_RENDER_H
#define NVLLM_CLIENT_OPENAI_RENDER_H

#include <stdbool.h>
#include <stdint.h>

#include "client/lib/nvllm_client.h"
#include "client/openai/buf.h"
#include "client/openai/tokens.h"

/* What has been written of a choice. */
struct render_choice {
    uint32_t index;
    bool begun;
    uint32_t n_calls;   /* tools that it has called */
    uint64_t n_letters; /* of its tokens, for text_offset */
};

struct render {
    bool is_chat;
    bool stream;           /* a delta of a choice, else the whole of it */
    struct tokens *tokens; /* NULL: no logprobs; else knows all tokens */
};

/* The object of a choice: a delta of it, or all of it. */
void render_choice(struct buf *out, const struct render *how, struct render_choice *c,
                   const struct nvllm_delta *delta);

/* Whether it says anything: a token may have no text of its own. */
bool render_is_empty(const struct render *how, const struct render_choice *c,
                     const struct nvllm_delta *delta);

/* The object of usage. */
void render_usage(struct buf *out, const struct nvllm_done *sum);

#endif
