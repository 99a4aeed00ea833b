/* json_arrays.c - arrays of a conjunction of schemas. */
#include <errno.h>
#include <stdlib.h>

#include "engine/grammar/json_impl.h"

enum {
    MAX_CONTAINS = 3,  /* schemas of which elements must be there */
    MAX_UNIQUE = 16,   /* values of elements that are all different */
    MAX_STATES = 1024, /* sets of them that an array may have */
};

struct array {
    const struct conjunction *all;
    int32_t min, max;
    int32_t count;   /* up to which elements are counted, as far as the bounds ask for it */
    size_t n_prefix; /* elements that have schemas of their own */
    const json_t *contains[MAX_CONTAINS];
    size_t n_contains;
    bool is_unique;
    int32_t close;
};

/* What one member says. */
static void take_array(struct compiler *c, struct array *a, const json_t *s)
{
    const json_t *items = json_object_get(s, "items"), *contains = json_object_get(s, "contains");
    const json_t *prefix = json_is_array(items) ? items : json_object_get(s, "prefixItems");
    const int32_t min = json_count(c, s, "minItems", 0);
    const int32_t max = json_count(c, s, "maxItems", REGEX_INFINITE);
    const int32_t least = json_count(c, s, "minContains", 1);

    a->min = min > a->min ? min : a->min;
    a->max = max < a->max ? max : a->max;
    if (json_array_size(prefix) > a->n_prefix)
        a->n_prefix = json_array_size(prefix);
    a->is_unique = a->is_unique || json_is_true(json_object_get(s, "uniqueItems"));
    if (!contains)
        return;
    if (least > 1)
        json_refuse(c, -ENOTSUP, "minContains", "above 1 is not supported");
    if (json_object_get(s, "maxContains"))
        json_refuse(c, -ENOTSUP, "maxContains", "is not supported");
    if (least > 0 && a->n_contains == MAX_CONTAINS)
        json_refuse(c, -ENOTSUP, "contains", "more than %d at once are not supported",
                    MAX_CONTAINS);
    else if (least > 0)
        a->contains[a->n_contains++] = contains;
}

/* ---- elements */

/* The schema of element i of one member; NULL: any value. */
static const json_t *element(const json_t *s, size_t i)
{
    const json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");

    if (json_is_array(items))
        return i < json_array_size(items) ? json_array_get(items, i)
                                          : json_object_get(s, "additionalItems");
    return i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
}

/* All schemas of element i, of which there are n. */
static size_t element_schemas(struct compiler *c, const struct conjunction *all, size_t i,
                              const json_t **schemas)
{
    size_t n = 0;

    for (size_t k = 0; k < all->n; k++) {
        const json_t *s =
            json_counts(c, all->members[k].schema) ? element(all->members[k].schema, i) : NULL;

        if (s)
            schemas[n++] = s;
    }
    return n;
}

/* The rule of element i, which is an instance of those of the contains in a set, too. */
static int32_t element_rule(struct compiler *c, const struct array *a, size_t i, unsigned set)
{
    const json_t *schemas[MAX_MEMBERS + MAX_CONTAINS];
    const size_t path = json_enter(c, "[%zu]", i);
    size_t n = element_schemas(c, a->all, i, schemas);
    int32_t rule;

    for (size_t k = 0; k < a->n_contains; k++)
        if (set >> k & 1)
            schemas[n++] = a->contains[k];
    rule = json_compile_all(c, schemas, n);
    json_leave(c, path);
    return rule;
}

/* An element, which counts, then next. */
static int32_t counted(struct compiler *c, const struct array *a, int32_t rule, int32_t next)
{
    return node_call(c, rule, grammar_node(c->g, GRAMMAR_OP_RAISE, a->count, next));
}

/* A node that goes on only below a count of elements. */
static int32_t below(struct compiler *c, const struct array *a, int32_t count, int32_t node)
{
    return a->max == REGEX_INFINITE ? node : grammar_node(c->g, GRAMMAR_OP_BELOW, count, node);
}

/* Behind an element: the end, or a comma and one more, which comes back here. */
static int32_t more_or_close(struct compiler *c, const struct array *a)
{
    const int32_t node = grammar_node(c->g, GRAMMAR_OP_FORK, a->close, a->close);
    int32_t more;

    if (node == GRAMMAR_DEAD || (size_t)a->max <= a->n_prefix)
        return node;
    more = counted(c, a, element_rule(c, a, a->n_prefix, 0), node);
    more = below(c, a, a->max, node_plain(c, c->comma, more));
    if (more != GRAMMAR_DEAD)
        c->g->nodes[node].a = more;
    return more == GRAMMAR_DEAD ? more : node;
}

static int32_t with_empty(struct compiler *c, const struct array *a, int32_t node, bool empty)
{
    return grammar_fork(c->g, node,
                        empty && a->min == 0 ? node_empty(c, c->open_array, ']', GRAMMAR_END)
                                             : GRAMMAR_DEAD);
}

/* ---- contains */

/* Elements that are instances of all contains are looked for from the last to be found to the
 * first: behind[set] is where those of the set are still to come. An element need not be said to be
 * one of those that it is. */
static int32_t containing_node(struct compiler *c, const struct array *a)
{
    const unsigned every = (1u << a->n_contains) - 1;
    const int32_t any = element_rule(c, a, 0, 0);
    int32_t behind[1 << MAX_CONTAINS], rules[1 << MAX_CONTAINS], first = GRAMMAR_DEAD;

    if (a->n_prefix > 0)
        json_refuse(c, -ENOTSUP, "contains", "is not supported beside prefixItems");
    if (a->n_contains > 1 && a->max != REGEX_INFINITE)
        json_refuse(c, -ENOTSUP, "contains", "more than one is not supported beside maxItems");
    behind[0] = more_or_close(c, a);
    for (unsigned set = 1; set <= every && c->code == 0; set++) {
        int32_t node = GRAMMAR_DEAD, loop, other;

        rules[set] = element_rule(c, a, 0, set);
        for (unsigned found = set; found > 0; found = (found - 1) & set)
            if (rules[found] != c->none)
                node = grammar_fork(c->g, counted(c, a, rules[found], behind[set & ~found]), node);
        first = node;
        behind[set] = loop = node_plain(c, c->comma, node);
        if (loop == GRAMMAR_DEAD)
            continue;
        behind[set] = loop = grammar_node(c->g, GRAMMAR_OP_FORK, loop, loop);
        /* Any other, if there is room for one more behind it. */
        other = node_plain(c, c->comma, counted(c, a, any, loop));
        other = below(c, a, a->max - 1, other);
        if (other != GRAMMAR_DEAD)
            c->g->nodes[loop].a = other;
        if (a->max > 1)
            first = grammar_fork(c->g, first, counted(c, a, any, loop));
    }
    return first == GRAMMAR_DEAD ? first : node_plain(c, c->open_array, first);
}

/* ---- uniqueItems */

struct unique {
    const struct array *array;
    const json_t *values[MAX_UNIQUE];
    size_t n;
    int32_t *behind; /* [1 << n] where those of a set are there; 0: not yet made */
    int n_states;
};

/* The values that a schema lists; NULL: it does not. */
static json_t *listed(struct compiler *c, const json_t *s, int depth)
{
    const json_t *ref = json_object_get(s, "$ref"), *one = json_object_get(s, "const");
    const json_t *values = json_object_get(s, "enum");

    if (json_counts(c, s)) {
        if (json_is_array(values))
            return json_incref((json_t *)(uintptr_t)values);
        if (one)
            return json_pack("[O]", one);
        if (json_is_object(s) && json_types(c, s) == JSON_BIT_BOOLEAN)
            return json_pack("[b, b]", 0, 1);
    }
    return json_is_string(ref) && depth > 0
               ? listed(c, json_resolve(c, json_string_value(ref)), depth - 1)
               : NULL;
}

/* Takes those of the values that are instances of all schemas, each once. */
static void take_values(struct compiler *c, struct unique *u, const json_t *const *schemas,
                        size_t n, const json_t *values)
{
    const json_t *v;
    size_t i;

    json_array_foreach(values, i, v)
    {
        bool holds = true;

        for (size_t k = 0; k < u->n; k++)
            holds = holds && !json_same(c, u->values[k], v);
        for (size_t k = 0; k < n && holds; k++)
            holds = json_holds(c, schemas[k], v);
        if (holds && u->n == MAX_UNIQUE)
            json_refuse(c, -ENOTSUP, "uniqueItems", "of more than %d values is not supported",
                        MAX_UNIQUE);
        else if (holds)
            u->values[u->n++] = v;
    }
}

static int32_t behind(struct compiler *c, struct unique *u, unsigned set);

/* An element that is not in the set, and what follows. */
static int32_t another(struct compiler *c, struct unique *u, unsigned set)
{
    int32_t node = GRAMMAR_DEAD;

    for (size_t i = 0; i < u->n && c->code == 0; i++)
        if (!(set >> i & 1))
            node = grammar_fork(c->g, node_literal(c, u->values[i], behind(c, u, set | 1u << i)),
                                node);
    return node;
}

static int32_t behind(struct compiler *c, struct unique *u, unsigned set)
{
    const int32_t n = __builtin_popcount(set);
    const struct array *a = u->array;
    int32_t node = n >= a->min ? a->close : GRAMMAR_DEAD;

    if (u->behind[set] != 0)
        return u->behind[set];
    if (++u->n_states > MAX_STATES)
        json_refuse(c, -ENOTSUP, "uniqueItems", "of so many values is not supported");
    if (n < a->max)
        node = grammar_fork(c->g, node_plain(c, c->comma, another(c, u, set)), node);
    return u->behind[set] = node;
}

static int32_t unique_node(struct compiler *c, struct array *a)
{
    const json_t *schemas[MAX_MEMBERS];
    const size_t n = element_schemas(c, a->all, 0, schemas);
    struct unique u = {.array = a};
    json_t *values = NULL;
    int32_t node = GRAMMAR_DEAD;

    for (size_t k = 0; k < n && !values; k++)
        values = listed(c, schemas[k], MAX_CONTAINS);
    if (!values || a->n_prefix > 0 || a->n_contains > 0)
        json_refuse(c, -ENOTSUP, "uniqueItems",
                    "true is supported only where items list their values, beside neither "
                    "prefixItems nor contains");
    take_values(c, &u, schemas, n, values);
    u.behind = calloc((size_t)1 << u.n, sizeof(*u.behind));
    if (!u.behind)
        json_refuse(c, -ENOMEM, "", "out of memory");
    a->close = node_plain(c, c->close_array, GRAMMAR_END); /* elements are not counted */
    if (c->code == 0)
        node = with_empty(c, a, node_plain(c, c->open_array, another(c, &u, 0)), true);
    free(u.behind);
    json_decref(values);
    return node;
}

/* ---- all of them */

/* Elements with schemas of their own come first. */
static int32_t plain_node(struct compiler *c, const struct array *a)
{
    int32_t node = more_or_close(c, a);

    if (a->max == 0)
        return with_empty(c, a, GRAMMAR_DEAD, true);
    if (a->n_prefix > 0 && (size_t)a->min > a->n_prefix) /* one more must be there */
        node = node_plain(c, c->comma, counted(c, a, element_rule(c, a, a->n_prefix, 0), node));
    for (size_t i = a->n_prefix ? a->n_prefix : 1; i-- > 0;) {
        node = counted(c, a, element_rule(c, a, i, 0), node);
        if (i > 0)
            node = node_plain(c, c->comma, node);
        if (i > 0 && i >= (size_t)a->min) /* or the array ends before it */
            node = grammar_fork(c->g, node, a->close);
    }
    return with_empty(c, a, node_plain(c, c->open_array, node), true);
}

int32_t json_array_node(struct compiler *c, const struct conjunction *all)
{
    struct array a = {.all = all, .max = REGEX_INFINITE};

    for (size_t k = 0; k < all->n; k++)
        if (json_counts(c, all->members[k].schema))
            take_array(c, &a, all->members[k].schema);
    if (a.n_prefix > (size_t)a.max)
        a.n_prefix = (size_t)a.max;
    if (a.is_unique && a.max > 1)
        return unique_node(c, &a);
    a.count = a.max != REGEX_INFINITE ? a.max : a.min;
    for (size_t i = 0; i <= a.n_prefix && i < (size_t)a.max && c->code == 0; i++)
        if (element_rule(c, &a, i, 0) == c->none) /* no array is longer */
            a.max = (int32_t)i;
    if (a.n_prefix > (size_t)a.max)
        a.n_prefix = (size_t)a.max;
    if (c->code < 0 || a.min > a.max || (a.max == 0 && a.n_contains > 0))
        return GRAMMAR_DEAD;
    a.close = node_from(c, a.min, node_plain(c, c->close_array, GRAMMAR_END));
    return a.n_contains > 0 ? containing_node(c, &a) : plain_node(c, &a);
}
