/* prompt.h - the prompt of generate, explain and cache pin: text, a file or stdin; taken as a
 * user's message, raw, or as a JSON object.
 *
 * The same options give the same tokens in each command, so that one finds what another has cached.
 */
#ifndef NVLLM_CLIENT_CTL_PROMPT_H
#define NVLLM_CLIENT_CTL_PROMPT_H

#include "client/ctl/ctl.h"
#include "client/ctl/request.h"

struct ctl_prompt {
    struct ctl_request request; /* whose input the prompt is */
    const char *given, *file;   /* --prompt, --prompt-file; at most one of them */
    enum { PROMPT_AUTO, PROMPT_CHAT, PROMPT_RAW, PROMPT_OBJECT } mode;
    const char *system;
    enum nvllm_switch thinking;
    char *memory; /* of what was read */
    struct nvllm_text text;
};

/* Prepares the request, and takes the command's prompt options. */
void ctl_prompt_init(struct ctl_prompt *p, const struct ctl *ctl);
/* --think or --no-think, whichever comes last. */
enum nvllm_switch ctl_prompt_thinking(const struct ctl *ctl);

void ctl_prompt_deinit(struct ctl_prompt *p);

/* Whether an option gives a prompt, or says how to take it. */
bool ctl_prompt_is_given(const struct ctl_prompt *p);
bool ctl_prompt_is_shaped(const struct ctl_prompt *p);

/* Reads the prompt that the options give, or else `word` (NULL or "-": stdin), into the
 * request; ends the program with a message if that fails. */
void ctl_prompt_read(struct ctl_prompt *p, struct ctl *ctl, const char *word);

/* After the daemon's error for a model without chat template: takes the prompt raw, if no option
 * forbids it. */
bool ctl_prompt_fall_back(struct ctl_prompt *p, enum nvllm_code code);

#endif
