/* json_objects.c - objects of a conjunction of schemas. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_impl.h"
#include "engine/util/checked.h"

enum {
    MAX_PATTERNS = 5, /* of patternProperties that may apply to one name */
    MAX_NESTED = 64,  /* schemas in whose order properties come */
};

/* A name that properties of members have, in order. */
struct property {
    const char *name;
    bool required;
    int32_t rule; /* of its values */
};

struct object {
    struct property *properties; /* [n] */
    size_t n, cap;
    int32_t min, max; /* properties; max REGEX_INFINITE: any number */
    const char *patterns[MAX_PATTERNS];
    int32_t terms[MAX_PATTERNS]; /* of the patterns */
    size_t n_patterns;
    int32_t names;  /* what propertyNames allow */
    uint64_t taken; /* members whose properties have been */
};

static struct property *property_of(struct compiler *c, struct object *o, const char *name)
{
    if (!json_step(c, o->n / 8 + 1))
        return NULL;
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->properties[i].name, name) == 0)
            return &o->properties[i];
    if (!array_reserve(&o->properties, &o->cap, o->n + 1, sizeof(*o->properties))) {
        json_refuse(c, -ENOMEM, "", "out of memory");
        return NULL;
    }
    o->properties[o->n] = (struct property){.name = name};
    return &o->properties[o->n++];
}

static void take_pattern(struct compiler *c, struct object *o, const char *pattern)
{
    for (size_t i = 0; i < o->n_patterns; i++)
        if (strcmp(o->patterns[i], pattern) == 0)
            return;
    if (o->n_patterns == MAX_PATTERNS) {
        json_refuse(c, -ENOTSUP, "patternProperties", "more than %d at once are not supported",
                    MAX_PATTERNS);
        return;
    }
    o->terms[o->n_patterns] = json_pattern(c, "patternProperties", pattern, strlen(pattern));
    o->patterns[o->n_patterns++] = pattern;
}

/* False: it is none, or has been taken. */
static bool take_member(struct object *o, const struct conjunction *all, const json_t *s)
{
    for (size_t k = 0; k < all->n; k++)
        if (all->members[k].schema == s && !(o->taken >> k & 1)) {
            o->taken |= (uint64_t)1 << k;
            return true;
        }
    return false;
}

/* The properties of a member in the order in which it is written: those of an allOf that comes
 * first come first. */
static void take_properties(struct compiler *c, const struct conjunction *all, struct object *o,
                            const json_t *s, int depth)
{
    const char *keyword, *name;
    struct property *one;
    const json_t *ref;
    json_t *part, *v;
    size_t i;

    if (depth > MAX_NESTED || !take_member(o, all, s))
        return;
    ref = json_object_get(s, "$ref");
    if (json_is_string(ref))
        take_properties(c, all, o, json_resolve(c, json_string_value(ref)), depth + 1);
    if (ref && c->refs_alone)
        return;
    json_object_foreach((json_t *)(uintptr_t)s, keyword, part)
    {
        (void)json_step(c, json_array_size(part) / 4);
        json_array_foreach(part, i, v) /* allOf, anyOf, oneOf */
        {
            take_properties(c, all, o, v, depth + 1);
        }
        if (strcmp(keyword, "properties") != 0)
            continue;
        json_object_foreach(part, name, v)
        {
            one = property_of(c, o, name);
            if (one && json_is_demanded(c, name, v))
                one->required = true;
        }
    }
}

int32_t json_names(struct compiler *c, const json_t *schema)
{
    static const char *const others[] = {"$ref", "allOf", "anyOf", "const", "if", "not", "oneOf"};
    const json_t *names = json_object_get(schema, "propertyNames"), *values;
    int32_t term = REGEX_NONE;
    size_t path;

    if (!json_is_object(names))
        return json_is_false(names) ? REGEX_NONE : REGEX_ALL;
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (json_object_get(names, others[i]))
            json_refuse(c, -ENOTSUP, "propertyNames",
                        "only type, pattern, format, lengths and enum are supported");
    path = json_enter(c, ".propertyNames");
    json_check_keywords(c, names);
    if (json_types(c, names) & JSON_BIT_STRING)
        term = json_strings(c, names);
    values = json_object_get(names, "enum");
    if (values)
        term = regex_and2(&c->g->lexer.regex, term, json_string_values(c, values));
    json_leave(c, path);
    return term;
}

/* What else one member says of an object. */
static void take_object(struct compiler *c, struct object *o, const json_t *s)
{
    struct regex_pool *p = &c->g->lexer.regex;
    const int32_t lo = json_count(c, s, "minProperties", 0);
    const int32_t hi = json_count(c, s, "maxProperties", REGEX_INFINITE);
    struct property *one;
    const char *name;
    json_t *v;
    size_t i;

    o->min = lo > o->min ? lo : o->min;
    o->max = hi < o->max ? hi : o->max;
    json_object_foreach(json_object_get(s, "patternProperties"), name, v)
    {
        take_pattern(c, o, name);
    }
    json_array_foreach(json_object_get(s, "required"), i, v)
    {
        if ((one = property_of(c, o, json_string_value(v))))
            one->required = true;
    }
    o->names = regex_and2(p, o->names, json_names(c, s));
}

static int32_t text_term(struct compiler *c, const char *s)
{
    return regex_text(&c->g->lexer.regex, (struct text){s, strlen(s)});
}

/* The rule of a property's value: of a name, or NULL of names that match the patterns in `matching`
 * and are no property of any member. */
static int32_t value_rule(struct compiler *c, const struct conjunction *all, const struct object *o,
                          const char *name, unsigned matching)
{
    const json_t *schemas[MAX_MEMBERS * 2];
    size_t n = 0, path;
    int32_t rule;

    for (size_t k = 0; k < all->n; k++) {
        const json_t *s = all->members[k].schema, *v;
        const json_t *own = name ? json_member(c, json_object_get(s, "properties"), name) : NULL;
        bool named = own != NULL;

        if (!json_counts(c, all->members[k].schema))
            continue;
        if (own)
            schemas[n++] = own;
        for (size_t i = 0; i < o->n_patterns && n < MAX_MEMBERS; i++) {
            v = json_member(c, json_object_get(s, "patternProperties"), o->patterns[i]);
            if (!v || !(matching >> i & 1))
                continue;
            named = true;
            schemas[n++] = v;
        }
        v = json_object_get(s, "additionalProperties");
        if (!named && v)
            schemas[n++] = v;
        if (n >= MAX_MEMBERS) {
            json_refuse(c, -E2BIG, "", "too many schemas at once");
            break;
        }
    }
    path = name ? json_enter(c, ".properties.%.60s", name) : json_enter(c, ".additionalProperties");
    rule = json_compile_all(c, schemas, n);
    json_leave(c, path);
    return rule;
}

/* A name, a colon and a value, then next. */
static int32_t pair(struct compiler *c, int32_t names, int32_t rule, int32_t next)
{
    if (rule == c->none)
        return GRAMMAR_DEAD;
    return node_string(c, names, node_plain(c, c->colon, node_call(c, rule, next)));
}

/* Names of no property, divided by the patterns that they match: each with its values. */
static int32_t other_pairs(struct compiler *c, const struct conjunction *all,
                           const struct object *o, int32_t next)
{
    struct regex_pool *p = &c->g->lexer.regex;
    int32_t *named = calloc(o->n + 1, sizeof(*named));
    int32_t free_names = o->names, node = GRAMMAR_DEAD;

    if (!named) {
        json_refuse(c, -ENOMEM, "", "out of memory");
        return node;
    }
    for (size_t i = 0; i < o->n; i++)
        named[i] = text_term(c, o->properties[i].name);
    free_names = regex_and2(p, free_names, regex_not(p, regex_or(p, named, o->n)));
    free(named);
    for (unsigned matching = 0; matching < 1u << o->n_patterns && c->code == 0; matching++) {
        int32_t names = free_names;

        for (size_t i = 0; i < o->n_patterns; i++)
            names =
                regex_and2(p, names, matching >> i & 1 ? o->terms[i] : regex_not(p, o->terms[i]));
        if (regex_is_alive(p, names))
            node = grammar_fork(c->g, pair(c, names, value_rule(c, all, o, NULL, matching), next),
                                node);
    }
    return node;
}

/* Leaves the properties that there can be, with their rules. False: a required one cannot be. */
static bool choose_properties(struct compiler *c, const struct conjunction *all, struct object *o)
{
    size_t n = 0;

    for (size_t i = 0; i < o->n; i++) {
        struct property one = o->properties[i];
        unsigned matching = 0;

        for (size_t k = 0; k < o->n_patterns; k++)
            matching |= (unsigned)json_matches(c, o->terms[k], one.name, strlen(one.name)) << k;
        one.rule = c->none;
        if (json_matches(c, o->names, one.name, strlen(one.name)))
            one.rule = value_rule(c, all, o, one.name, matching);
        if (one.rule != c->none)
            o->properties[n++] = one;
        else if (one.required)
            return false;
    }
    o->n = n;
    return true;
}

/* A node that goes on only below a count of pairs. */
static int32_t below(struct compiler *c, const struct object *o, int32_t room, int32_t node)
{
    return o->max == REGEX_INFINITE ? node : grammar_node(c->g, GRAMMAR_OP_BELOW, room, node);
}

/* From the last property to the first: what may come there as the first pair, and as a later one.
 * A bound is looked at as soon as what is left could not keep it. */
static int32_t build_object(struct compiler *c, const struct conjunction *all, struct object *o)
{
    struct grammar *g = c->g;
    const int32_t close = node_from(c, o->min, node_plain(c, c->close_object, GRAMMAR_END));
    const int32_t most = o->max != REGEX_INFINITE ? o->max : o->min;
    int32_t later = grammar_node(g, GRAMMAR_OP_FORK, close, close), first, others;
    int32_t required = 0; /* of the properties behind */

    if (later == GRAMMAR_DEAD)
        return later;
    others = other_pairs(c, all, o, grammar_node(g, GRAMMAR_OP_RAISE, most, later));
    if (!choose_properties(c, all, o) || (others == GRAMMAR_DEAD && (size_t)o->min > o->n))
        return GRAMMAR_DEAD;
    if (others != GRAMMAR_DEAD && o->min > 1) /* as one of these may come twice */
        json_refuse(c, -ENOTSUP, "minProperties", "above 1 is not supported beside other names");
    if (others != GRAMMAR_DEAD)
        g->nodes[later].a = below(c, o, o->max, node_plain(c, c->comma, others));
    first = o->max > 0 ? others : GRAMMAR_DEAD;
    for (size_t i = o->n; i-- > 0;) {
        const struct property *one = &o->properties[i];
        const int32_t room = o->max == REGEX_INFINITE ? o->max : o->max - required;
        const int32_t least = others == GRAMMAR_DEAD ? o->min - (int32_t)(o->n - i - 1) : 0;
        const int32_t take = pair(c, text_term(c, one->name), one->rule,
                                  grammar_node(g, GRAMMAR_OP_RAISE, most, later));
        const int32_t second = node_plain(c, c->comma, take);

        required += one->required;
        if (one->required) {
            first = take;
            later = second;
        } else {
            first = grammar_fork(g, below(c, o, room, take),
                                 first == GRAMMAR_DEAD ? first : node_from(c, least, first));
            later = grammar_fork(g, below(c, o, room, second), node_from(c, least, later));
        }
    }
    if (required > o->max || o->max == 0)
        first = GRAMMAR_DEAD;
    first = first == GRAMMAR_DEAD ? first : node_plain(c, c->open_object, first);
    if (required > 0 || o->min > 0)
        return first;
    return grammar_fork(g, first, node_empty(c, c->open_object, '}', GRAMMAR_END));
}

int32_t json_object_node(struct compiler *c, const struct conjunction *all)
{
    struct object o = {.max = REGEX_INFINITE, .names = REGEX_ALL};
    int32_t node = GRAMMAR_DEAD;

    for (size_t k = 0; k < all->n; k++)
        take_properties(c, all, &o, all->members[k].schema, 0);
    for (size_t k = 0; k < all->n; k++)
        if (json_counts(c, all->members[k].schema))
            take_object(c, &o, all->members[k].schema);
    if (c->code == 0 && o.min <= o.max)
        node = build_object(c, all, &o);
    free(o.properties);
    return node;
}
