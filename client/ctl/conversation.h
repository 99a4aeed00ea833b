/* conversation.h - the messages of a chat, each with memory of its own. */
#ifndef NVLLM_CLIENT_CTL_CONVERSATION_H
#define NVLLM_CLIENT_CTL_CONVERSATION_H

#include "client/lib/nvllm_client.h"

struct conversation {
    struct nvllm_message *messages; /* [n_messages]; a system message, if there is one, first */
    size_t n_messages, cap;
};

void conversation_deinit(struct conversation *c);

/* Copies the text, and ends the program when there is no memory. role is a literal. */
void conversation_add(struct conversation *c, const char *role, struct nvllm_text text);
void conversation_drop_last(struct conversation *c);

/* Sets, or with an empty text takes away, the system message. */
void conversation_set_system(struct conversation *c, struct nvllm_text text);

/* Forgets all but the system message. */
void conversation_reset(struct conversation *c);

/* {"messages": […]} on one line, as render and batch read it. False, errno, when the file cannot be
 * written. */
bool conversation_save(const struct conversation *c, const char *path);

#endif
