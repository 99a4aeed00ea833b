/* jinja_call.c - gives filters, tests, functions and methods their arguments; sorts for some of
 * them. See jinja_impl.h. */
#include "engine/text/jinja_impl.h"

static bool has_name(const char *params, const struct str *name, uint32_t *at)
{
    uint32_t i = 1;

    for (const char *p = params; *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");

        if (len == name->len && memcmp(p, name->data, len) == 0) {
            *at = i;
            return true;
        }
        i++;
        p += len;
    }
    return false;
}

struct value jinja_call_builtin(struct jinja_run *r, const struct builtin *b, struct value self,
                                const struct args *args)
{
    struct value a[JINJA_ARGS_MAX] = {self}, v;
    uint32_t at;

    jinja_enter(r); /* map() calls filters, and these may be map() */
    if (b->params[0] == '*') {
        v = b->run(r, a, args);
        jinja_leave(r);
        return v;
    }
    if (args->n > b->n)
        jinja_fail(r, "TypeError: %s takes %d arguments at most, and was given %u", b->name, b->n,
                   args->n);
    for (uint32_t i = 0; i < args->n; i++)
        a[i + 1] = args->v[i];
    for (uint32_t i = 0; i < args->n_named; i++) {
        const struct str *name = args->named[i].name;

        if (!has_name(b->params, name, &at) || a[at].type != V_MISSING)
            jinja_fail(r, "TypeError: %s has no argument '%.*s', or has it twice", b->name,
                       (int)name->len, name->data);
        a[at] = args->named[i].value;
    }
    for (uint32_t i = 1; i <= b->needed; i++)
        if (a[i].type == V_MISSING)
            jinja_fail(r, "TypeError: %s needs %d arguments", b->name, b->needed);
    v = b->run(r, a, args);
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
