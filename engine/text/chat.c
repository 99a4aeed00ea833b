/* chat.c - see chat.h: finds a folder's template and renders chats by it. */
#include "engine/text/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/chat_impl.h"
#include "engine/util/file.h"
#include "engine/util/json_util.h"

enum {
    TEMPLATE_FILE_MAX = 64 << 20,
    MARKUP_BYTES = 64, /* that a template writes around a message or a call, about */
    JSON_MAX_BYTES = 64 << 20,
};

static const char config_file[] = "tokenizer_config.json";

static int no_memory(struct err *e)
{
    return err_set(e, -ENOMEM, "chat: not enough memory");
}

/* ---- loading */

/* A template that cannot be compiled is one that is not supported: raw prompts still work. */
static int compile(struct chat_template *t, struct jinja **out, struct text text, struct err *e)
{
    const struct answer_format answer = answer_format_of(text);
    struct err why;
    int r = jinja_compile(out, text, &why);

    t->answer.reasoning |= answer.reasoning;
    t->answer.tool_calls |= answer.tool_calls;
    if (r == -ENOMEM)
        return no_memory(e);
    return r ? err_set(e, -ENOTSUP, "chat template: %s", why.text) : 0;
}

int chat_template_parse(struct chat_template **out, struct text text, struct err *e)
{
    struct chat_template *t = calloc(1, sizeof(*t));
    int r = t ? compile(t, &t->usual, text, e) : no_memory(e);

    if (r)
        chat_template_free(t);
    else
        *out = t;
    return r;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    jinja_free(t->usual);
    jinja_free(t->tool_use);
    json_decref(t->tokens);
    free(t);
}

struct answer_format chat_template_answer(const struct chat_template *t)
{
    return t->answer;
}

/* The string, or of a list of {name, template} the one of that name; NULL: none. */
static const json_t *find_template(const json_t *config, const char *name)
{
    const json_t *v = json_object_get(config, "chat_template"), *entry;
    size_t i;

    if (!json_is_array(v))
        return strcmp(name, "default") == 0 ? v : NULL;
    json_array_foreach(v, i, entry)
    {
        const char *its = json_string_value(json_object_get(entry, "name"));

        if (its && !strcmp(its, name))
            return json_object_get(entry, "template");
    }
    return NULL;
}

static int compile_member(struct chat_template *t, struct jinja **out, const json_t *template,
                          struct err *e)
{
    if (!template || json_is_null(template))
        return 0;
    if (!json_is_string(template))
        return err_set(e, -EINVAL, "%s: chat_template: is %s, not a string", config_file,
                       json_type_name(template));
    return compile(t, out, (struct text){json_string_value(template), json_string_length(template)},
                   e);
}

/* Special tokens are strings, or objects with their content. */
static int read_tokens(struct chat_template *t, const json_t *config, struct err *e)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

    t->tokens = json_object();
    if (!t->tokens)
        return no_memory(e);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        json_t *v = json_object_get(config, names[i]);

        v = json_is_object(v) ? json_object_get(v, "content") : v;
        if (json_is_string(v) && json_object_set(t->tokens, names[i], v) < 0)
            return no_memory(e);
    }
    return 0;
}

/* The file of the template, if there is one: of the folder, or the option's. */
static int load_file(struct chat_template *t, int dir, const char *file, struct err *e)
{
    struct err why;
    char *text;
    size_t len;
    int r = file_read_all(&text, &len, dir, file, TEMPLATE_FILE_MAX, &why);

    if (r)
        return err_set(e, r, "%s%s", dir == AT_FDCWD ? "model.chat_template: " : "", why.text);
    r = compile(t, &t->usual, (struct text){text, len}, e);
    free(text);
    return r;
}

static int load_folder(struct chat_template *t, int dir, bool has_template, struct err *e)
{
    json_t *config;
    int r = json_object_read(&config, dir, config_file, TEMPLATE_FILE_MAX, e);

    if (r == -ENOENT)
        return 0;
    if (r)
        return r;
    r = read_tokens(t, config, e);
    if (!r && !has_template)
        r = compile_member(t, &t->usual, find_template(config, "default"), e);
    if (!r && !has_template)
        r = compile_member(t, &t->tool_use, find_template(config, "tool_use"), e);
    json_decref(config);
    return r;
}

/* A template in a file of its own takes precedence, as it does in transformers. */
int chat_template_load(struct chat_template **out, const char *folder, const char *file,
                       struct err *e)
{
    struct chat_template *t = calloc(1, sizeof(*t));
    int dir = -1, r = t ? 0 : no_memory(e);

    if (!r && folder && (dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        r = err_set(e, -errno, "%s: %s", folder, strerror(errno));
    if (!r)
        r = load_file(t, file ? AT_FDCWD : dir, file ? file : "chat_template.jinja", e);
    if (r == -ENOENT && !file && dir >= 0)
        r = 0;
    if (!r && folder)
        r = load_folder(t, dir, t->usual != NULL, e);
    if (dir >= 0)
        close(dir);
    if (r || !t->usual) {
        chat_template_free(t);
        t = NULL;
    }
    if (!r)
        *out = t;
    return r;
}

/* ---- rendering */

size_t chat_bytes(const struct chat *chat)
{
    size_t n = 0;

    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct chat_message *m = &chat->messages[i];

        n += MARKUP_BYTES + m->content.len + m->reasoning.len + m->name.len + m->tool_call_id.len;
        for (size_t k = 0; k < m->n_tool_calls; k++) {
            const struct chat_tool_call *call = &m->tool_calls[k];

            n += MARKUP_BYTES + call->name.len + call->arguments_json.len + call->id.len;
        }
    }
    for (size_t i = 0; i < chat->n_tools; i++)
        n += chat->tools[i].len;
    for (size_t i = 0; i < chat->n_documents; i++)
        n += chat->documents[i].len;
    return n + chat->kwargs.len;
}

/* A conversation of n bytes. Published templates take a tenth of these steps at most; what is
 * spent on a hostile one is a second for a large conversation. */
static struct jinja_limits limits_of(size_t n)
{
    const size_t output = ((size_t)16 << 20) + 8 * n;

    return (struct jinja_limits){
        .steps = 4000000 + 16 * (uint64_t)n,
        .memory_bytes = ((size_t)64 << 20) + 24 * n,
        .output_bytes = output < TOKENIZER_MAX_BYTES ? output : TOKENIZER_MAX_BYTES,
    };
}

static int render(const struct chat_source *source, bool with_tools, size_t n, const struct tm *now,
                  struct jinja_text *out, struct err *e)
{
    const struct chat_template *t = source->t;
    const struct jinja_input in = {chat_set_variables, (void *)(uintptr_t)source, now, limits_of(n),
                                   n};

    return jinja_render(with_tools && t->tool_use ? t->tool_use : t->usual, &in, out, e);
}

int chat_render(const struct chat_template *t, const struct chat *chat, struct jinja_text *out,
                struct err *e)
{
    const struct chat_source source = {.t = t, .chat = chat};
    int r = chat_check(chat, e);

    return r ? r : render(&source, chat->n_tools > 0, chat_bytes(chat), NULL, out, e);
}

int chat_render_json(const struct chat_template *t, const char *json, size_t len,
                     const struct tm *now, struct jinja_text *out, struct err *e)
{
    struct chat_source source = {.t = t};
    json_t *object;
    int r;

    if (len > JSON_MAX_BYTES)
        return err_set(e, -E2BIG, "chat: more than %d bytes", JSON_MAX_BYTES);
    r = json_parse(&object, "chat", json, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, e);
    if (r)
        return r;
    source.json = object;
    r = chat_check_json(object, e);
    if (!r)
        r = render(&source, json_array_size(json_object_get(object, "tools")) > 0, len, now, out,
                   e);
    json_decref(object);
    return r;
}
