/* tokens.h - the bytes of token ids, asked of nvllmd when they are first needed.
 *
 * For logprobs, which name tokens. What is known
 * is kept while the connection lasts. */
#ifndef NVLLM_CLIENT_OPENAI_TOKENS_H
#define NVLLM_CLIENT_OPENAI_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/lib/nvllm_client.h"
#include "client/openai/upstream.h"

struct tokens;

struct tokens *tokens_new(struct upstream *upstream); /* NULL: no memory */
void tokens_free(struct tokens *t);                   /* takes NULL */
void tokens_forget(struct tokens *t); /* nvllmd has gone: the next may have another model */

/* WAIT: it has been asked for. FAILED: nvllmd could not tell; asking again may help. */
enum tokens_found { TOKENS_FAILED, TOKENS_WAIT, TOKENS_KNOWN };
enum tokens_found tokens_find(struct tokens *t, int32_t id, struct nvllm_text *bytes);

/* Sends what has been asked for; true: something has become known, or failed, since the last call.
 */
bool tokens_run(struct tokens *t);

#endif
