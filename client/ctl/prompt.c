/* prompt.c - see request.h. */
#include "client/ctl/request.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/json.h"

enum nvllm_switch ctl_prompt_thinking(const struct ctl *ctl)
{
    enum nvllm_switch thinking = NVLLM_UNSET;

    for (size_t i = 0; i < ctl->line.n_given; i++) {
        if (strcmp(ctl->line.given[i].option->name, "think") == 0)
            thinking = NVLLM_ON;
        else if (strcmp(ctl->line.given[i].option->name, "no-think") == 0)
            thinking = NVLLM_OFF;
    }
    return thinking;
}

void ctl_prompt_init(struct ctl_prompt *p, const struct ctl *ctl)
{
    bool chat = ctl_option(ctl, "chat"), raw = ctl_option(ctl, "raw");

    *p = (struct ctl_prompt){
        .given = ctl_option(ctl, "prompt"),
        .file = ctl_option(ctl, "prompt-file"),
        .mode = chat  ? PROMPT_CHAT
                : raw ? PROMPT_RAW
                      : PROMPT_AUTO,
        .system = ctl_option(ctl, "system"),
        .thinking = ctl_prompt_thinking(ctl),
    };
    ctl_request_init(&p->request);
    if (chat && raw)
        ctl_usage(ctl, "--chat and --raw cannot be combined");
    if (raw && p->system)
        ctl_usage(ctl, "--system and --raw cannot be combined");
    if (p->given && p->file)
        ctl_usage(ctl, "--prompt and --prompt-file cannot be combined");
    ctl_request_take_options(&p->request, ctl);
}

void ctl_prompt_deinit(struct ctl_prompt *p)
{
    free(p->memory);
    ctl_request_deinit(&p->request);
}

bool ctl_prompt_is_given(const struct ctl_prompt *p)
{
    return p->given || p->file;
}

bool ctl_prompt_is_shaped(const struct ctl_prompt *p)
{
    return p->mode != PROMPT_AUTO || p->system || p->thinking != NVLLM_UNSET;
}

/* An object that is a request; other JSON is plain text. */
static json_t *parse_object(const struct ctl_prompt *p)
{
    struct nvllm_error err;
    json_t *value = ctl_json_parse(p->text.data, p->text.len, &err);

    if (json_object_get(value, "messages") || json_object_get(value, "prompt") ||
        json_object_get(value, "prompt_ids"))
        return value;
    json_decref(value);
    return NULL;
}

static void set_input(struct ctl_prompt *p)
{
    struct nvllm_text text = p->text;
    struct ctl_request *q = &p->request;

    q->r.chat = NULL;
    q->r.prompt.data = NULL;
    if (p->mode == PROMPT_RAW) {
        q->r.prompt = text;
        return;
    }
    /* The newline at the end of a pipe or file is not part of the message. */
    if (p->memory && text.len > 0 && text.data[text.len - 1] == '\n')
        text.len--;
    p->messages[0] = (struct nvllm_message){.role = "system", .content = nvllm_str(p->system)};
    p->messages[1] = (struct nvllm_message){.role = "user", .content = text};
    q->chat.messages = p->messages + (p->system ? 0 : 1);
    q->chat.n_messages = p->system ? 2 : 1;
    q->chat.enable_thinking = p->thinking;
    q->r.chat = &q->chat;
}

void ctl_prompt_read(struct ctl_prompt *p, struct ctl *ctl, const char *word)
{
    json_t *value;

    if (p->given)
        word = p->given;
    if (p->file || !word || strcmp(word, "-") == 0)
        p->text.data = p->memory = ctl_read_file(p->file ? p->file : "-", "prompt", &p->text.len);
    else
        p->text = nvllm_str(word);
    value = p->file ? parse_object(p) : NULL;
    if (!value) {
        set_input(p);
        return;
    }
    if (ctl_prompt_is_shaped(p))
        ctl_usage(ctl, "--chat, --raw, --system and --think are for text; %s is a JSON request",
                  p->file);
    p->mode = PROMPT_OBJECT;
    if (!ctl_request_read(&p->request, value, &ctl->err))
        ctl_exit(ctl_report(ctl, &ctl->err));
    json_decref(value);
}

bool ctl_prompt_fall_back(struct ctl_prompt *p, enum nvllm_code code)
{
    if (code != NVLLM_E_UNSUPPORTED || p->mode != PROMPT_AUTO || ctl_prompt_is_shaped(p) ||
        p->request.r.session)
        return false;
    p->mode = PROMPT_RAW;
    set_input(p);
    return true;
}
