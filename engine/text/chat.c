/* chat.c - see chat.h: finds the family, checks and renders a chat. */
#include "engine/text/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/text/chat_impl.h"
#include "engine/util/checked.h"
#include "engine/util/file.h"
#include "engine/util/json_util.h"

enum {
    TEMPLATE_FILE_MAX = 64 << 20,
    MARKUP_BYTES = 64, /* that a template writes around a message or a call, about */
};

int chat_template_parse(const struct chat_template **out, struct text text, struct err *e)
{
    XXH128_hash_t hash;

    while (text.len && text.data[text.len - 1] == '\n')
        text.len--;
    hash = XXH3_128bits(text.data, text.len);
    for (const struct chat_template *t = chat_templates; t < chat_templates + N_CHAT_TEMPLATES;
         t++) {
        if (t->high != hash.high64 || t->low != hash.low64)
            continue;
        *out = t;
        return 0;
    }
    return err_set(e, -ENOTSUP,
                   "chat template: its text (%zu bytes, XXH3-128 %016llx%016llx) is not one of the "
                   "known templates: nvllm-tiny, Qwen3, Qwen2.5; send raw prompts",
                   text.len, (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

/* The template in tokenizer_config.json: a string, or the "default" of a list of named ones. */
static const json_t *find_template(const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template");
    const json_t *entry;
    size_t i;

    if (!json_is_array(v))
        return v;
    json_array_foreach(v, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));

        if (name && !strcmp(name, "default"))
            return json_object_get(entry, "template");
    }
    return NULL;
}

static int load_from_config(const struct chat_template **out, int dir, struct err *e)
{
    static const char file[] = "tokenizer_config.json";
    const json_t *template;
    json_t *config;
    int r = json_object_read(&config, dir, file, TEMPLATE_FILE_MAX, e);

    if (r == -ENOENT) {
        *out = NULL;
        return 0;
    }
    if (r)
        return r;
    template = find_template(config);
    if (!template || json_is_null(template))
        *out = NULL;
    else if (!json_is_string(template))
        r = err_set(e, -EINVAL, "%s: chat_template: is %s, not a string", file,
                    json_type_name(template));
    else
        r = chat_template_parse(
            out, (struct text){json_string_value(template), json_string_length(template)}, e);
    json_decref(config);
    return r;
}

/* A template in a file of its own takes precedence, as it does in transformers. */
int chat_template_load(const struct chat_template **out, const char *folder, struct err *e)
{
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size_t len;
    char *text;
    int r;

    if (dir < 0)
        return err_set(e, -errno, "%s: %s", folder, strerror(errno));
    r = file_read_all(&text, &len, dir, "chat_template.jinja", TEMPLATE_FILE_MAX, e);
    if (r == -ENOENT) {
        r = load_from_config(out, dir, e);
    } else if (!r) {
        r = chat_template_parse(out, (struct text){text, len}, e);
        free(text);
    }
    close(dir);
    return r;
}

/* There is always room for one byte more, the NUL. */
void chat_write_text(struct chat_writer *w, struct text text)
{
    struct chat_text *t = &w->text;

    if (!w->error && text.len > TOKENIZER_MAX_BYTES - t->len)
        w->error = -E2BIG;
    if (!w->error && !array_reserve(&t->data, &w->cap, t->len + text.len + 1, 1))
        w->error = -ENOMEM;
    if (w->error || !text.len)
        return;
    memcpy(t->data + t->len, text.data, text.len);
    t->len += text.len;
}

void chat_write(struct chat_writer *w, const char *literal)
{
    struct chat_text *t = &w->text;
    size_t start = t->len;

    chat_write_text(w, (struct text){literal, strlen(literal)});
    if (w->error)
        return;
    if (t->n_ranges && t->ranges[t->n_ranges - 1].end == start)
        t->ranges[t->n_ranges - 1].end = t->len;
    else if (array_reserve(&t->ranges, &w->ranges_cap, t->n_ranges + 1, sizeof(*t->ranges)))
        t->ranges[t->n_ranges++] = (struct text_range){start, t->len};
    else
        w->error = -ENOMEM;
}

static int check_json(struct text text, const char *path, bool object, struct err *e)
{
    json_t *value;
    int r = json_parse(&value, path, text.data, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, e);

    if (r)
        return r;
    if (object && !json_is_object(value))
        r = err_set(e, -EINVAL, "%s: is %s, not an object", path, json_type_name(value));
    json_decref(value);
    return r;
}

/* Tools and arguments are JSON. */
static int check_values(const struct chat *chat, struct err *e)
{
    char path[80];
    int r = 0;

    for (size_t i = 0; i < chat->n_tools && !r; i++) {
        snprintf(path, sizeof(path), "tools[%zu]", i);
        r = check_json(chat->tools[i], path, true, e);
    }
    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct chat_message *m = &chat->messages[i];

        for (size_t k = 0; k < m->n_tool_calls && !r; k++) {
            snprintf(path, sizeof(path), "messages[%zu].tool_calls[%zu].arguments", i, k);
            r = check_json(m->tool_calls[k].arguments_json, path, false, e);
        }
    }
    return r;
}

const char *chat_role(struct text role)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};

    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
        if (text_is(role, roles[i]))
            return roles[i];
    return NULL;
}

static int check_roles(const struct chat *chat, struct err *e)
{
    if (!chat->n_messages)
        return err_set(e, -EINVAL, "messages: is empty");
    for (size_t i = 0; i < chat->n_messages; i++) {
        struct text role = chat->messages[i].role;

        if (!chat_role(role))
            return err_set(e, -EINVAL,
                           "messages[%zu].role: \"%.*s\" is not one of system, user, assistant "
                           "and tool",
                           i, role.len < 64 ? (int)role.len : 64, role.data ? role.data : "");
    }
    return 0;
}

size_t chat_bytes(const struct chat *chat)
{
    size_t n = 0;

    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct chat_message *m = &chat->messages[i];

        n += MARKUP_BYTES + m->content.len + m->reasoning.len;
        for (size_t k = 0; k < m->n_tool_calls; k++)
            n += MARKUP_BYTES + m->tool_calls[k].name.len + m->tool_calls[k].arguments_json.len;
    }
    for (size_t i = 0; i < chat->n_tools; i++)
        n += chat->tools[i].len;
    return n;
}

int chat_render(const struct chat_template *t, const struct chat *chat, struct chat_text *out,
                struct err *e)
{
    struct chat_writer w = {0};
    int r = check_roles(chat, e);

    if (!r)
        r = check_values(chat, e);
    if (!r) {
        chat_write_text(&w, (struct text){0}); /* room for the NUL of an empty prompt */
        t->render(&w, chat);
        r = w.error;
        if (r)
            err_set(e, r,
                    r == -E2BIG ? "messages: the prompt is too long"
                                : "messages: not enough memory");
    }
    if (r) {
        chat_text_deinit(&w.text);
        return r;
    }
    w.text.data[w.text.len] = '\0';
    *out = w.text;
    return 0;
}

void chat_text_deinit(struct chat_text *t)
{
    free(t->data);
    free(t->ranges);
    *t = (struct chat_text){0};
}
