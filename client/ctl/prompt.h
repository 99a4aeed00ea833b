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
    enum nvllm_switch thinking; /* NVLLM_UNSET before the options are read */
    char *memory;               /* of what was read */
    struct nvllm_text text;
};

#define CTL_PROMPT_OPTIONS                                                                         \
    {"prompt", required_argument, NULL, OPT_PROMPT},                                               \
        {"prompt-file", required_argument, NULL, OPT_PROMPT_FILE},                                 \
        {"chat", no_argument, NULL, OPT_CHAT}, {"raw", no_argument, NULL, OPT_RAW},                \
        {"system", required_argument, NULL, OPT_SYSTEM}, {"think", no_argument, NULL, OPT_THINK},  \
    {                                                                                              \
        "no-think", no_argument, NULL, OPT_NO_THINK                                                \
    }

/* How the prompt's options are told, below a command's own. */
#define CTL_PROMPT_HELP                                                                            \
    "  --prompt TEXT             the prompt; “-” is stdin\n"                                   \
    "  --prompt-file FILE        a file with it; “-” is stdin. A JSON object with\n"           \
    "                            messages, prompt or prompt_ids is taken as “batch”\n"         \
    "                            does\n"                                                           \
    "  --chat                    a user's message (the default where the model chats)\n"           \
    "  --raw                     it is continued as it is\n"                                       \
    "  --system TEXT             begin the chat with a system message\n"                           \
    "  --think, --no-think       let the model reason first, or not\n"

void ctl_prompt_init(struct ctl_prompt *p);
void ctl_prompt_deinit(struct ctl_prompt *p);

/* Takes an option that is the prompt's; false: it is another. */
bool ctl_prompt_option(struct ctl_prompt *p, const struct ctl *ctl, int option);

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
