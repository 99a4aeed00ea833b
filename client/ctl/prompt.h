/* prompt.h - a prompt as generate, explain and cache pin take it: text, a file or stdin; a
 * user's message of a chat, raw, or whatever a JSON object says.
 *
 * The same words make the same tokens in each of these commands: what one has cached another finds.
 */
#ifndef NVLLM_CLIENT_CTL_PROMPT_H
#define NVLLM_CLIENT_CTL_PROMPT_H

#include "client/ctl/ctl.h"
#include "client/ctl/request.h"

struct ctl_prompt {
    const char *given, *file; /* --prompt, --prompt-file; at most one of them */
    enum { PROMPT_AUTO, PROMPT_CHAT, PROMPT_RAW, PROMPT_OBJECT } mode;
    const char *system;
    enum nvllm_switch thinking;
    char *memory; /* of what was read */
    struct nvllm_text text;
};

/* Takes the command's prompt options. */
void ctl_prompt_init(struct ctl_prompt *p, const struct ctl *ctl);
/* --think or --no-think, whichever comes last. */
enum nvllm_switch ctl_prompt_thinking(const struct ctl *ctl);

void ctl_prompt_deinit(struct ctl_prompt *p);

/* Whether any option named a prompt, or says how it is to be taken. */
bool ctl_prompt_is_given(const struct ctl_prompt *p);
bool ctl_prompt_is_shaped(const struct ctl_prompt *p);

/* Reads it: by the options, or where they name none by `word` (NULL or "-": stdin). The request
 * points into the prompt from then on. EXIT_OK, or the exit code after a message. */
int ctl_prompt_read(struct ctl_prompt *p, struct ctl_request *q, const struct ctl *ctl,
                    const char *word);

/* Where the daemon said that the model has no chat template: the same prompt raw, if it may be. */
bool ctl_prompt_fall_back(struct ctl_prompt *p, struct ctl_request *q, enum nvllm_code code);

#endif
