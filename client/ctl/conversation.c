/* conversation.c - see conversation.h. */
#include "client/ctl/conversation.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/json.h"

static void no_memory(void)
{
    ctl_message("out of memory");
    exit(EXIT_ERROR);
}

static struct nvllm_text copied(struct nvllm_text text)
{
    char *data = malloc(text.len + 1);

    if (!data)
        no_memory();
    if (text.len)
        memcpy(data, text.data, text.len);
    data[text.len] = '\0';
    return (struct nvllm_text){data, text.len};
}

void conversation_add(struct conversation *c, const char *role, struct nvllm_text text)
{
    if (c->n_messages == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 16;
        struct nvllm_message *more = reallocarray(c->messages, cap, sizeof(*more));

        if (!more)
            no_memory();
        c->messages = more;
        c->cap = cap;
    }
    c->messages[c->n_messages++] = (struct nvllm_message){.role = role, .content = copied(text)};
}

void conversation_drop_last(struct conversation *c)
{
    c->n_messages--;
    free((char *)c->messages[c->n_messages].content.data);
}

static bool has_system(const struct conversation *c)
{
    return c->n_messages > 0 && strcmp(c->messages[0].role, "system") == 0;
}

void conversation_set_system(struct conversation *c, struct nvllm_text text)
{
    if (has_system(c)) {
        free((char *)c->messages[0].content.data);
        c->n_messages--;
        memmove(c->messages, c->messages + 1, c->n_messages * sizeof(*c->messages));
    }
    if (text.len == 0)
        return;
    conversation_add(c, "system", text);
    for (size_t i = c->n_messages - 1; i > 0; i--) {
        struct nvllm_message before = c->messages[i - 1];

        c->messages[i - 1] = c->messages[i];
        c->messages[i] = before;
    }
}

void conversation_reset(struct conversation *c)
{
    while (c->n_messages > (has_system(c) ? 1 : 0))
        conversation_drop_last(c);
}

void conversation_deinit(struct conversation *c)
{
    while (c->n_messages > 0)
        conversation_drop_last(c);
    free(c->messages);
    c->messages = NULL;
}

bool conversation_save(const struct conversation *c, const char *path)
{
    json_t *messages = json_array();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok;

    for (size_t i = 0; i < c->n_messages; i++) {
        const struct nvllm_message *m = &c->messages[i];

        json_array_append_new(messages, json_pack("{ssso}", "role", m->role, "content",
                                                  ctl_json_text(m->content.data, m->content.len)));
    }
    ok = fd >= 0 && ctl_json_print(fd, json_pack("{sO}", "messages", messages));
    json_decref(messages);
    return fd >= 0 && close(fd) == 0 && ok;
}
