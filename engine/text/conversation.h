/* conversation.h - a chat that goes on: its messages, what its template is given beside them, and
 * its transcript, turn by turn.
 *
 * A turn is messages that were appended and the answer to them. Messages before the first turn,
 * such as a system prompt, are turn 0: it is always there. All texts are copies of its own.
 *
 * Pure; a conversation is used by one thread at a time, but while nobody changes it any number may
 * read it. */
#ifndef NVLLM_ENGINE_TEXT_CONVERSATION_H
#define NVLLM_ENGINE_TEXT_CONVERSATION_H

#include "engine/text/chat.h"
#include "engine/text/transcript.h"

/* Where a turn ends: so many messages, so many ids of the transcript. An id that a later turn's
 * rendering has cut is no turn's any more. */
struct conversation_turn {
    size_t n_messages, n_ids;
};

struct conversation {
    struct chat chat; /* its messages, tools, … are the conversation's own */
    struct transcript transcript;
    struct conversation_turn *turns; /* [n_turns + 1] the first is turn 0 */
    size_t n_turns;
    size_t turns_cap, messages_cap;
    size_t text_bytes; /* of all texts and messages */
};

/* A conversation of these messages, without a turn. -ENOMEM. */
int conversation_new(struct conversation **out, const struct chat *chat);
void conversation_free(struct conversation *c); /* takes NULL */

/* A copy of its first n_turns turns, which it has. -ENOMEM. */
int conversation_fork(struct conversation **out, const struct conversation *from, size_t n_turns);

/* Drops all but the first n_turns turns, which it has. */
void conversation_rewind(struct conversation *c, size_t n_turns);

/* Bytes of memory that it takes, about. */
size_t conversation_bytes(const struct conversation *c);

/* The same of a copy of its first n_turns turns, and a little more. */
size_t conversation_fork_bytes(const struct conversation *from, size_t n_turns);

/* The same of messages that are to be appended. */
size_t conversation_message_bytes(const struct chat_message *messages, size_t n);

/* Adds a turn: n messages and the answer to them, whose prompt is of the conversation's transcript.
 * -ENOMEM: nothing has changed. */
int conversation_add(struct conversation *c, const struct chat_message *messages, size_t n,
                     const struct chat_message *answer, const struct transcript_prompt *prompt,
                     const int32_t *ids, size_t n_ids);

#endif
