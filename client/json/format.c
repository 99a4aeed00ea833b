/* format.c - see format.h. */
#include "client/json/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the text of a value */

enum {
    SURE_DIGITS = 15, /* a decimal number of so many survives a double */
    FULL_DIGITS = 17, /* a double survives these */
};

/* Writes the shortest text of the number in[0 .. n - 1] to out, which may be the same place;
 * returns its length, at most n. */
static size_t put_number(char *out, const char *in, size_t n)
{
    bool is_real = memchr(in, '.', n) || memchr(in, 'e', n);
    double value = is_real ? strtod(in, NULL) : 0;
    char text[40];

    for (int digits = SURE_DIGITS; is_real && digits < FULL_DIGITS; digits++) {
        size_t len = (size_t)snprintf(text, sizeof(text), "%.*g", digits, value);

        if (strtod(text, NULL) != value || len > n)
            continue;
        if (!strpbrk(text, ".e"))
            break; /* 1.0 remains a real number */
        memcpy(out, text, len);
        return len;
    }
    memmove(out, in, n);
    return n;
}

/* In place, in what jansson has written; returns the new length. */
static size_t shorten_reals(char *text, size_t n)
{
    const char *in = text, *end = text + n;
    bool in_string = false;
    char *out = text;

    while (in < end) {
        size_t k = in_string ? 0 : strspn(in, "+-.0123456789e");

        if (k > 0 && *in != 'e') { /* of true and false */
            out += put_number(out, in, k);
            in += k;
            continue;
        }
        if (*in == '"')
            in_string = !in_string;
        else if (in_string && *in == '\\')
            *out++ = *in++;
        *out++ = *in++;
    }
    *out = '\0';
    return (size_t)(out - text);
}

struct nvllm_text format_dump(const struct format_reading *in, const json_t *value)
{
    const size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(FULL_DIGITS);
    size_t n = json_dumpb(value, NULL, 0, flags);
    char *text = in->take(in->owner, n + 1, 1);

    if (!text)
        return (struct nvllm_text){0};
    json_dumpb(value, text, n, flags);
    return (struct nvllm_text){text, shorten_reals(text, n)};
}

/* ---- formats */

static const struct {
    const char *type, *member; /* member NULL: the type needs none */
} kinds[] = {
    [NVLLM_FORMAT_TEXT] = {"text", NULL},
    [NVLLM_FORMAT_JSON] = {"json_object", NULL},
    [NVLLM_FORMAT_JSON_SCHEMA] = {"json_schema", "json_schema"},
    [NVLLM_FORMAT_REGEX] = {"regex", "regex"},
    [NVLLM_FORMAT_GRAMMAR] = {"grammar", "grammar"},
    [NVLLM_FORMAT_CHOICE] = {"choice", "choices"},
};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* name NULL: the value itself is wrong, not a member of it. */
static bool wrong(struct format_reading *in, const char *where, const char *name,
                  const char *wanted)
{
    snprintf(in->where, sizeof(in->where), "%.60s%s%.40s", where, name ? "." : "",
             name ? name : "");
    in->wanted = wanted;
    return false;
}

static bool no_memory(struct format_reading *in)
{
    in->wanted = NULL;
    return false;
}

static struct nvllm_text string_of(const json_t *value)
{
    return (struct nvllm_text){json_string_value(value), json_string_length(value)};
}

static bool read_schema(struct format_reading *in, struct nvllm_text *out, const char *where,
                        const json_t *value)
{
    if (json_is_string(value)) {
        *out = string_of(value);
        return true;
    }
    if (!json_is_object(value) && !json_is_boolean(value))
        return wrong(in, where, NULL, "a JSON Schema: an object, true, false, or the text of one");
    *out = format_dump(in, value);
    return out->data || no_memory(in);
}

static bool read_choices(struct format_reading *in, struct nvllm_request *r, const char *where,
                         const json_t *value)
{
    size_t n = json_array_size(value);
    struct nvllm_text *texts;
    char entry[80];

    if (!json_is_array(value))
        return wrong(in, where, NULL, "an array of strings");
    texts = in->take(in->owner, n + 1, sizeof(*texts));
    if (!texts)
        return no_memory(in);
    for (size_t i = 0; i < n; i++) {
        texts[i] = string_of(json_array_get(value, i));
        snprintf(entry, sizeof(entry), "%.50s[%zu]", where, i);
        if (!texts[i].data)
            return wrong(in, entry, NULL, "a string");
    }
    r->format_choices = texts;
    r->n_format_choices = n;
    return true;
}

bool format_read_value(struct format_reading *in, struct nvllm_request *r, enum nvllm_format format,
                       const char *where, const json_t *value)
{
    bool ok = true;

    if (format == NVLLM_FORMAT_JSON_SCHEMA) {
        ok = read_schema(in, &r->format_text, where, value);
    } else if (format == NVLLM_FORMAT_CHOICE) {
        ok = read_choices(in, r, where, value);
    } else if (format != NVLLM_FORMAT_TEXT && format != NVLLM_FORMAT_JSON) {
        ok = json_is_string(value) || wrong(in, where, NULL, "a string");
        r->format_text = string_of(value);
    }
    if (ok)
        r->format = format;
    return ok;
}

/* names end with NULL. */
static bool has_only(struct format_reading *in, const char *where, const json_t *object,
                     const char *const *names)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)object, name, value)
    {
        size_t i = 0;

        while (names[i] && strcmp(names[i], name) != 0)
            i++;
        if (!names[i] && !json_is_null(value))
            return wrong(in, where, name, "absent");
    }
    return true;
}

/* A schema in what OpenAI has around it: name and description are for people, and strict is how a
 * schema is always followed. */
static bool read_wrapped_schema(struct format_reading *in, struct nvllm_request *r,
                                const char *where, const json_t *wrapper)
{
    static const char *const names[] = {"schema", "name", "description", "strict", NULL};
    char path[80];

    if (!json_is_object(wrapper))
        return wrong(in, where, NULL, "an object with the member “schema”");
    snprintf(path, sizeof(path), "%.60s.schema", where);
    return has_only(in, where, wrapper, names) &&
           format_read_value(in, r, NVLLM_FORMAT_JSON_SCHEMA, path,
                             json_object_get(wrapper, "schema"));
}

bool format_read(struct format_reading *in, struct nvllm_request *r, const char *where,
                 const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const char *names[] = {"type", NULL, NULL};
    const json_t *given;
    int kind = 0;
    char path[80];

    if (!json_is_object(value))
        return wrong(in, where, NULL, "an object with the member “type”");
    while (kind < N_KINDS && !(type && strcmp(type, kinds[kind].type) == 0))
        kind++;
    if (kind == N_KINDS)
        return wrong(in, where, "type",
                     "“text”, “json_object”, “json_schema”, “regex”, “grammar” or “choice”");
    names[1] = kinds[kind].member;
    if (!has_only(in, where, value, names))
        return false;
    given = names[1] ? json_object_get(value, names[1]) : NULL;
    snprintf(path, sizeof(path), "%.40s.%s", where, names[1] ? names[1] : "");
    if (kind == NVLLM_FORMAT_JSON_SCHEMA)
        return read_wrapped_schema(in, r, path, given);
    return format_read_value(in, r, (enum nvllm_format)kind, path, given);
}

/* ---- tools */

bool format_read_tool_choice(struct format_reading *in, struct nvllm_chat *chat, const char *where,
                             const json_t *value)
{
    static const char *const words[] = {
        [NVLLM_TOOLS_AUTO] = "auto",
        [NVLLM_TOOLS_NONE] = "none",
        [NVLLM_TOOLS_REQUIRED] = "required",
    };
    static const char *const wanted =
        "“auto”, “none”, “required” or {\"type\": \"function\", \"function\": {\"name\": …}}";
    const char *word = json_string_value(value);
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *name = json_object_get(json_object_get(value, "function"), "name");

    for (size_t i = 0; word && i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(word, words[i]) == 0) {
            chat->tool_choice = (enum nvllm_tool_choice)i;
            return true;
        }
    if (!type || strcmp(type, "function") != 0 || json_string_length(name) == 0)
        return wrong(in, where, NULL, wanted);
    chat->tool_choice = NVLLM_TOOLS_REQUIRED;
    chat->called_tool = string_of(name);
    return true;
}
