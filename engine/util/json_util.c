/* json_util.c - see json_util.h. */
#include "engine/util/json_util.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/file.h"

/* jansson does not report failed allocations: it calls some of them a syntax error, and after
 * others it drops bytes and succeeds. So its allocator notes them. */
static _Thread_local bool out_of_memory;

static void *noting_malloc(size_t bytes)
{
    void *p = malloc(bytes);

    out_of_memory |= !p;
    return p;
}

static void set_allocator(void)
{
    json_set_alloc_funcs(noting_malloc, free);
}

static void watch_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, set_allocator);
    out_of_memory = false;
}

char *json_text(const json_t *value, size_t flags)
{
    char *text;

    watch_memory();
    text = json_dumps(value, flags);
    if (!out_of_memory)
        return text;
    free(text);
    return NULL;
}

int json_parse(json_t **out, const char *what, const char *text, size_t bytes, size_t flags,
               struct err *e)
{
    json_error_t bad;
    json_t *root;

    watch_memory();
    root = json_loadb(text ? text : "", bytes, flags, &bad);
    if (out_of_memory) {
        json_decref(root);
        return err_set(e, -ENOMEM, "%s: out of memory", what);
    }
    if (!root)
        return err_set(e, -EINVAL, "%s: not JSON: line %d, column %d: %s", what, bad.line,
                       bad.column, bad.text);
    *out = root;
    return 0;
}

int json_parse_large(json_t **out, const char *what, const char *text, size_t bytes, size_t flags,
                     struct err *e)
{
    const int r = json_parse(out, what, text, bytes, flags, e);

    return r == -EINVAL && strstr(e->text, "too big integer")
               ? json_parse(out, what, text, bytes, flags | JSON_DECODE_INT_AS_REAL, e)
               : r;
}

int json_object_parse(json_t **out, const char *file, const char *text, size_t bytes, struct err *e)
{
    json_t *root;
    int r = json_parse(&root, file, text, bytes, JSON_REJECT_DUPLICATES, e);

    if (r < 0)
        return r;
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, -EINVAL, "%s: must be a JSON object", file);
    }
    *out = root;
    return 0;
}

int json_object_read(json_t **out, int dir, const char *file, size_t max_bytes, struct err *e)
{
    char *text;
    size_t bytes;
    int rc;

    rc = file_read_all(&text, &bytes, dir, file, max_bytes, e);
    if (rc < 0)
        return rc;
    rc = json_object_parse(out, file, text, bytes, e);
    free(text);
    return rc;
}

const char *json_type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",
        [JSON_ARRAY] = "an array",
        [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer",
        [JSON_REAL] = "a number with a fraction",
        [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",
        [JSON_NULL] = "null",
    };

    return value ? names[json_typeof(value)] : "missing";
}

/* ---- patterns */

struct match {
    char path[160]; /* of the value that is compared */
    int code;
    struct err *e;
};

/* The path of the whole may be "file: " already. */
#define MISMATCH(m, fmt, ...)                                                                      \
    err_set((m)->e, (m)->code, "%s%s" fmt, (m)->path, ends_with_space(m) ? "" : ": ", ##__VA_ARGS__)

static bool ends_with_space(const struct match *m)
{
    const size_t n = strlen(m->path);

    return n && m->path[n - 1] == ' ';
}

static int match_any(struct match *m, const json_t *want, const json_t *v);

static void enter_member(struct match *m, size_t at, const char *key)
{
    const char *dot = at && m->path[at - 1] != ' ' ? "." : "";

    snprintf(m->path + at, sizeof(m->path) - at, "%s%.64s", dot, key);
}

static int match_object(struct match *m, const json_t *want, const json_t *v)
{
    const size_t at = strlen(m->path);
    const char *key;
    json_t *member, *wanted;
    int rc;

    if (!json_is_object(v))
        return MISMATCH(m, "is %s, not an object", json_type_name(v));
    json_object_foreach((json_t *)v, key, member)
    {
        char optional[72];

        enter_member(m, at, key);
        snprintf(optional, sizeof(optional), "%.70s?", key);
        wanted = json_object_get(want, optional);
        if (wanted && json_is_null(member))
            continue;
        wanted = wanted ? wanted : json_object_get(want, key);
        if (!wanted || strchr(key, '?'))
            wanted = json_object_get(want, "...?");
        if (!wanted)
            return MISMATCH(m, "is not a known field");
        rc = match_any(m, wanted, member);
        if (rc)
            return rc;
    }
    json_object_foreach((json_t *)want, key, wanted)
    {
        enter_member(m, at, key);
        if (!strchr(key, '?') && !json_object_get(v, key))
            return MISMATCH(m, "is missing");
    }
    m->path[at] = '\0';
    return 0;
}

static int match_array(struct match *m, const json_t *want, const json_t *v)
{
    const size_t at = strlen(m->path), n = json_array_size(want);
    const char *last = json_string_value(json_array_get(want, n - 1));
    const bool any_length = last && !strcmp(last, "...");
    int rc = 0;

    if (!json_is_array(v))
        return MISMATCH(m, "is %s, not an array", json_type_name(v));
    if (!any_length && json_array_size(v) != n)
        return MISMATCH(m, "only an array of length %zu is supported", n);
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) {
        snprintf(m->path + at, sizeof(m->path) - at, "[%zu]", i);
        rc = match_any(m, json_array_get(want, any_length ? 0 : i), json_array_get(v, i));
        if (!rc)
            m->path[at] = '\0';
    }
    return rc;
}

/* The types that a text names, a bit 1 << json_type each; 0: it is the text of a value. */
static unsigned types_of(const char *text)
{
    static const struct {
        const char *name;
        unsigned types;
    } all[] = {
        {"an object", 1u << JSON_OBJECT},
        {"an array", 1u << JSON_ARRAY},
        {"a string", 1u << JSON_STRING},
        {"true or false", 1u << JSON_TRUE | 1u << JSON_FALSE},
    };
    unsigned types = 0;
    bool begins = false; /* with one of the names */

    if (strcmp(text, "*") == 0)
        return ~0u;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        const char *found = strstr(text, all[i].name);

        types |= found ? all[i].types : 0;
        begins |= found == text;
    }
    return begins ? types : 0;
}

static int match_any(struct match *m, const json_t *want, const json_t *v)
{
    const char *text = json_string_value(want), *got = json_string_value(v);
    unsigned types;

    if (json_is_object(want))
        return match_object(m, want, v);
    if (json_is_array(want))
        return match_array(m, want, v);
    if (!text)
        return json_is_false(v) ? 0 : MISMATCH(m, "only false is supported");
    types = types_of(text);
    if (!types && got)
        return !strcmp(got, text) && json_string_length(v) == strlen(text)
                   ? 0
                   : MISMATCH(m, "\"%.64s\" is not supported, only \"%.160s\"", got, text);
    return types >> json_typeof(v) & 1
               ? 0
               : MISMATCH(m, "is %s, not %s", json_type_name(v), types ? text : "a string");
}

int json_match(const json_t *v, const char *pattern, const char *path, int code, struct err *e)
{
    struct match m = {.code = code, .e = e};
    char *json = strdup(pattern);
    json_t *want = NULL;
    int rc;

    if (!json)
        return err_set(e, -ENOMEM, "%s: out of memory", path);
    snprintf(m.path, sizeof(m.path), "%s", path);
    for (char *c = json; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    rc = json_parse(&want, path, json, strlen(json), 0, e);
    free(json);
    if (!rc)
        rc = match_any(&m, want, v);
    json_decref(want);
    return rc;
}
