/* request.h - one request and the memory it points into, filled from options or from JSON.
 *
 * Each field of a request is described once, in request.c: an option is read as the JSON member of
 * its name. */
#ifndef NVLLM_CLIENT_CTL_REQUEST_H
#define NVLLM_CLIENT_CTL_REQUEST_H

#include <jansson.h>

#include "client/ctl/ctl.h"

struct ctl_request {
    struct nvllm_request r; /* prepared by ctl_request_init() */
    struct nvllm_chat chat;
    bool embeds; /* instead of r, embed is what is asked for */
    struct nvllm_embed_options embed;
    void **pieces; /* [n_pieces] memory that r and chat point into */
    size_t n_pieces;
    json_t *sources; /* an array: owns strings that r and chat point into */
};

void ctl_request_init(struct ctl_request *q);
void ctl_request_deinit(struct ctl_request *q);

/* Sets the fields that the command's options give; ends the program for a wrong value. */
void ctl_request_take_options(struct ctl_request *q, const struct ctl *ctl);

/* A line of a batch: its input, and fields that override those from options. Keeps value. */
bool ctl_request_read(struct ctl_request *q, json_t *value, struct nvllm_error *err);

/* An object with the members of struct nvllm_chat: the chat is the input, and points into value.
 * Any other member is an error that names it. */
bool ctl_request_read_chat(struct ctl_request *q, const json_t *value, struct nvllm_error *err);

/* An array of token ids, called “ids” in errors: the prompt's. */
bool ctl_request_read_ids(struct ctl_request *q, const json_t *value, struct nvllm_error *err);

/* ---- the prompt of generate, explain and cache pin: text, a file or stdin; taken as a user's
 * message, raw, or as a JSON object. The same options give the same tokens in each command, so that
 * one finds what another has cached. */

struct ctl_prompt {
    struct ctl_request request; /* whose input the prompt is */
    const char *given, *file;   /* --prompt, --prompt-file; at most one of them */
    enum { PROMPT_AUTO, PROMPT_CHAT, PROMPT_RAW, PROMPT_OBJECT } mode;
    const char *system;
    enum nvllm_switch thinking;
    char *memory; /* of what was read */
    struct nvllm_text text;
    struct nvllm_message messages[2]; /* of a chat: the system's, if any, and the user's */
};

/* Prepares the request, and takes the command's options of requests and prompts. */
void ctl_prompt_init(struct ctl_prompt *p, const struct ctl *ctl);
void ctl_prompt_deinit(struct ctl_prompt *p);

/* --think or --no-think, whichever comes last. */
enum nvllm_switch ctl_prompt_thinking(const struct ctl *ctl);

/* Whether an option gives a prompt, or says how to take it. */
bool ctl_prompt_is_given(const struct ctl_prompt *p);
bool ctl_prompt_is_shaped(const struct ctl_prompt *p);

/* Reads the prompt that the options give, or else `word` (NULL or "-": stdin), into the
 * request; ends the program with a message if that fails. */
void ctl_prompt_read(struct ctl_prompt *p, struct ctl *ctl, const char *word);

/* After the error for a model without chat template: takes the prompt raw, unless an option is
 * against it. */
bool ctl_prompt_fall_back(struct ctl_prompt *p, enum nvllm_code code);

#endif
