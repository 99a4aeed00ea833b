/* jinja_call.c - gives filters, tests, functions and methods their arguments; sorts for some of
 * them. See jinja_impl.h. */
#include <stdlib.h>

#include "engine/text/jinja_impl.h"

static int compare_name(const void *name, const void *builtin)
{
    const char *its = ((const struct builtin *)builtin)->name;
    const struct str other = {.data = its, .len = (uint32_t)strlen(its)};

    return str_compare(name, &other);
}

const struct builtin *builtin_find(const struct builtin *all, size_t n, const struct str *name)
{
    return bsearch(name, all, n, sizeof(*all), compare_name);
}

static bool has_parameter(const char *params, const struct str *name)
{
    for (size_t len; *params; params += len + strspn(params + len, "? ")) {
        len = strcspn(params, "? ");
        if (len == name->len && memcmp(params, name->data, len) == 0)
            return true;
    }
    return false;
}

/* Sorts the arguments into a[1] and on, in the order of the parameters. */
static void bind(struct jinja_run *r, const struct builtin *b, const struct args *args,
                 struct value a[JINJA_ARGS_MAX])
{
    uint32_t n = 0;

    for (const char *p = b->params; *p; n++) {
        const struct str name = {.data = p, .len = (uint32_t)strcspn(p, "? ")};
        const struct value *named = dict_get_str(r, &args->named, &name);

        if (n < args->list.n && named)
            jinja_fail(r, "TypeError: %s has the argument '%.*s' twice", b->name, (int)name.len, p);
        if (n < args->list.n)
            a[n + 1] = args->list.items[n];
        else if (named)
            a[n + 1] = *named;
        else if (p[name.len] != '?')
            jinja_fail(r, "TypeError: %s needs the argument '%.*s'", b->name, (int)name.len, p);
        p += name.len + strspn(p + name.len, "? ");
    }
    if (args->list.n > n)
        jinja_fail(r, "TypeError: %s takes %u arguments at most, and was given %u", b->name, n,
                   args->list.n);
    for (uint32_t i = 0; i < args->named.n; i++) {
        const struct str *name = args->named.entries[i].key.str;

        if (!has_parameter(b->params, name))
            jinja_fail(r, "TypeError: %s has no argument '%.*s'", b->name, (int)name->len,
                       name->data);
    }
}

struct value jinja_call_builtin(struct jinja_run *r, const struct builtin *b, struct value self,
                                const struct args *args)
{
    struct value a[JINJA_ARGS_MAX] = {self}, v;

    jinja_enter(r); /* map() calls filters, and these may be map() */
    if (*b->params != '*')
        bind(r, b, args, a);
    v = b->run(r, b, a, args);
    jinja_leave(r);
    return v;
}

static void merge(struct jinja_run *r, const struct value *keys, uint32_t *to, const uint32_t *from,
                  uint32_t begin, uint32_t middle, uint32_t end, bool reversed)
{
    uint32_t i = begin, k = middle;

    for (uint32_t at = begin; at < end; at++) {
        int order = 0;

        if (i < middle && k < end)
            order = value_compare(r, keys[from[k]], keys[from[i]], "<");
        if (k == end || (i < middle && (reversed ? order <= 0 : order >= 0)))
            to[at] = from[i++];
        else
            to[at] = from[k++];
    }
}

uint32_t *jinja_sorted(struct jinja_run *r, const struct value *keys, uint32_t n, bool reversed)
{
    uint32_t *from = jinja_take(r, n * sizeof(*from) + 1), *to = jinja_take(r, n * sizeof(*to) + 1);

    for (uint32_t i = 0; i < n; i++)
        from[i] = i;
    for (uint64_t width = 1; width < n; width *= 2) {
        uint32_t *other = from;

        for (uint64_t at = 0; at < n; at += 2 * width) {
            const uint64_t middle = at + width < n ? at + width : n;
            const uint64_t end = at + 2 * width < n ? at + 2 * width : n;

            merge(r, keys, to, from, (uint32_t)at, (uint32_t)middle, (uint32_t)end, reversed);
        }
        from = to;
        to = other;
    }
    return from;
}
