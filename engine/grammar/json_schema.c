/* json_schema.c - see json_schema.h.
 *
 * What is compiled is a conjunction: the schemas that an instance must fulfil at once. References,
 * allOf, and what can be said otherwise add members to it; anyOf is the union of conjunctions with
 * one of the alternatives each. A conjunction without choices is compiled by the types that all its
 * members allow. Each is one rule, however often it comes up: so schemas may be recursive. */
#include "engine/grammar/json_schema.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_impl.h"
#include "engine/util/checked.h"

enum {
    MAX_DEPTH = 256,    /* schemas inside of schemas */
    MAX_CHOICES = 2000, /* alternatives in all */
};

struct memo {
    struct conjunction *key;
    size_t hash;
    int32_t rule;
};

static int32_t compile(struct compiler *c, const struct conjunction *all);

/* ---- errors and paths */

int json_refuse(struct compiler *c, int code, const char *keyword, const char *fmt, ...)
{
    char what[200];
    va_list ap;

    if (c->code < 0)
        return c->code;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return c->code = err_set(c->e, code, "%s%s%s: %s", c->path, *keyword ? "." : "", keyword, what);
}

bool json_step(struct compiler *c, size_t n)
{
    const struct regex_pool *p = &c->g->lexer.regex;

    if (!regex_spend(&c->g->lexer.regex, n))
        json_refuse(c, p->failed, "", p->failed == -ENOMEM ? "out of memory" : "too complex");
    return c->code == 0;
}

size_t json_enter(struct compiler *c, const char *fmt, ...)
{
    const size_t n = strlen(c->path);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->path + n, sizeof(c->path) - n, fmt, ap);
    va_end(ap);
    return n;
}

void json_leave(struct compiler *c, size_t n)
{
    c->path[n] = '\0';
}

int32_t json_count(struct compiler *c, const json_t *schema, const char *keyword, int32_t fallback)
{
    const json_t *v = json_object_get(schema, keyword);
    const double x = json_number_value(v);

    if (!v)
        return fallback;
    if (!json_is_number(v) || x < 0 || (x <= REGEX_MAX_REPEAT && x != (double)(int32_t)x)) {
        json_refuse(c, -EINVAL, keyword, "must be a whole number from 0");
        return fallback;
    }
    if (x > REGEX_MAX_REPEAT) {
        if (fallback == REGEX_INFINITE) /* no answer is as long */
            return fallback;
        json_refuse(c, -ENOTSUP, keyword, "above %d is not supported", REGEX_MAX_REPEAT);
        return fallback;
    }
    return (int32_t)x;
}

/* ---- types */

static unsigned type_bits(struct compiler *c, const json_t *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", JSON_BIT_NULL},        {"boolean", JSON_BIT_BOOLEAN},
                 {"integer", JSON_BIT_INTEGER},  {"number", JSON_BIT_INTEGER | JSON_BIT_REAL},
                 {"string", JSON_BIT_STRING},    {"array", JSON_BIT_ARRAY},
                 {"object", JSON_BIT_OBJECT},    {"any", JSON_BITS},
                 {JSON_REAL_TYPE, JSON_BIT_REAL}};
    const char *s = json_string_value(name);

    for (size_t i = 0; s && i < sizeof(types) / sizeof(*types); i++)
        if (strcmp(s, types[i].name) == 0)
            return types[i].bits;
    json_refuse(c, -EINVAL, "type", s ? "“%.50s” is no type" : "must be the name of a type", s);
    return 0;
}

unsigned json_types(struct compiler *c, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    unsigned bits = 0;
    size_t i;

    if (!type)
        return JSON_BITS;
    if (!json_is_array(type))
        return type_bits(c, type);
    (void)json_step(c, json_array_size(type) / 2);
    json_array_foreach(type, i, one)
    {
        bits |= type_bits(c, one);
    }
    return bits;
}

void json_refuse_unknown(struct compiler *c, const json_t *schema, unsigned types)
{
    const char *keyword = json_string_value(json_object_get(schema, JSON_UNKNOWN));

    if (keyword && json_types(c, schema) & types)
        json_refuse(c, -ENOTSUP, "not", "of %s is not supported", keyword);
}

/* ---- conjunctions */

bool json_is_schema(struct compiler *c, const json_t *schema)
{
    const bool is_one = json_is_object(schema) || json_is_boolean(schema);

    if (!is_one)
        json_refuse(c, -EINVAL, "", "a schema must be an object, true or false");
    return is_one;
}

/* Adds a schema, true and false among them. */
static void add_member(struct compiler *c, struct conjunction *all, const json_t *schema)
{
    if (json_is_false(schema))
        all->fails = true;
    if (!json_is_schema(c, schema) || json_is_boolean(schema))
        return;
    for (size_t i = 0; i < all->n; i++)
        if (all->members[i].schema == schema)
            return;
    if (all->n == MAX_MEMBERS)
        json_refuse(c, -E2BIG, "", "too many schemas at once");
    else
        all->members[all->n++] = (struct member){.schema = schema};
}

bool json_counts(const struct compiler *c, const json_t *schema)
{
    return !(c->refs_alone && json_is_string(json_object_get(schema, "$ref")));
}

/* What values keywords have, and elements of these; json_types() looks at that of type. */
enum {
    ARRAY = 1,
    BOOLEAN = 2,
    NUMBER = 4,
    OBJECT = 8,
    STRING = 16,
    SCHEMA = BOOLEAN | OBJECT,
};

static const struct keyword {
    const char *name;
    unsigned values;   /* 0: it is not supported */
    unsigned elements; /* 0: any, or there are none */
} keywords[] = {
    /* in order */
    {"$dynamicRef", 0, 0},
    {"$id", STRING, 0},
    {"$recursiveRef", 0, 0},
    {"$ref", STRING, 0},
    {"additionalItems", SCHEMA, 0},
    {"additionalProperties", SCHEMA, 0},
    {"allOf", ARRAY, SCHEMA},
    {"anyOf", ARRAY, SCHEMA},
    {"contains", SCHEMA, 0},
    {"dependencies", OBJECT, SCHEMA | ARRAY | STRING},
    {"dependentRequired", OBJECT, ARRAY},
    {"dependentSchemas", OBJECT, SCHEMA},
    {"disallow", 0, 0},
    {"divisibleBy", 0, 0},
    {"else", SCHEMA, 0},
    {"enum", ARRAY, 0},
    {"exclusiveMaximum", NUMBER | BOOLEAN, 0},
    {"exclusiveMinimum", NUMBER | BOOLEAN, 0},
    {"extends", 0, 0},
    {"format", STRING, 0},
    {"if", SCHEMA, 0},
    {"items", SCHEMA | ARRAY, SCHEMA},
    {"maxContains", NUMBER, 0},
    {"maxItems", NUMBER, 0},
    {"maxLength", NUMBER, 0},
    {"maxProperties", NUMBER, 0},
    {"maximum", NUMBER, 0},
    {"minContains", NUMBER, 0},
    {"minItems", NUMBER, 0},
    {"minLength", NUMBER, 0},
    {"minProperties", NUMBER, 0},
    {"minimum", NUMBER, 0},
    {"multipleOf", NUMBER, 0},
    {"not", SCHEMA, 0},
    {"oneOf", ARRAY, SCHEMA},
    {"pattern", STRING, 0},
    {"patternProperties", OBJECT, SCHEMA},
    {"prefixItems", ARRAY, SCHEMA},
    {"properties", OBJECT, SCHEMA},
    {"propertyNames", SCHEMA, 0},
    {"required", ARRAY | BOOLEAN, STRING}, /* a Boolean in draft 3 */
    {"then", SCHEMA, 0},
    {"unevaluatedItems", 0, 0},
    {"unevaluatedProperties", 0, 0},
    {"uniqueItems", BOOLEAN, 0},
};

static int by_name(const void *name, const void *keyword)
{
    return strcmp(name, ((const struct keyword *)keyword)->name);
}

static unsigned kind_of(const json_t *v)
{
    return json_is_array(v)     ? ARRAY
           : json_is_boolean(v) ? BOOLEAN
           : json_is_number(v)  ? NUMBER
           : json_is_object(v)  ? OBJECT
           : json_is_string(v)  ? STRING
                                : 0;
}

static void check_keyword(struct compiler *c, const struct keyword *k, const json_t *value)
{
    static const char *const must_be[] = {
        [ARRAY] = "an array",
        [NUMBER] = "a number",
        [OBJECT] = "an object",
        [STRING] = "a string",
        [BOOLEAN] = "true or false",
        [SCHEMA] = "a schema",
        [SCHEMA | ARRAY] = "a schema or an array of schemas",
        [ARRAY | BOOLEAN] = "an array of names",
        [NUMBER | BOOLEAN] = "a number",
        [SCHEMA | ARRAY | STRING] = "a schema or an array of names",
    };
    const char *name;
    json_t *one;
    size_t i;

    if (k->values == 0)
        json_refuse(c, -ENOTSUP, k->name, "is not supported");
    else if (!(k->values & kind_of(value)))
        json_refuse(c, -EINVAL, k->name, "must be %s", must_be[k->values]);
    if (k->elements == 0 || !json_step(c, (json_array_size(value) + json_object_size(value)) / 8))
        return;
    json_array_foreach(value, i, one)
    {
        if (!(k->elements & kind_of(one)))
            json_refuse(c, -EINVAL, k->name, "element %zu must be %s", i, must_be[k->elements]);
    }
    if (json_is_object(value) && k->values & BOOLEAN) /* it is a schema itself */
        return;
    json_object_foreach((json_t *)(uintptr_t)value, name, one)
    {
        if (!(k->elements & kind_of(one)))
            json_refuse(c, -EINVAL, k->name, "“%.60s” must be %s", name, must_be[k->elements]);
    }
}

void json_check_keywords(struct compiler *c, const json_t *schema)
{
    const struct keyword *k;
    const char *name;
    json_t *value;

    (void)json_step(c, json_object_size(schema) / 4);
    json_object_foreach((json_t *)(uintptr_t)schema, name, value)
    {
        k = bsearch(name, keywords, sizeof(keywords) / sizeof(*keywords), sizeof(*keywords),
                    by_name);
        if (k)
            check_keyword(c, k, value);
    }
    json_check_id(c, schema);
}

/* Adds what a schema refers to, and what else says something of the same instance. */
static void close_member(struct compiler *c, struct conjunction *all, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "allOf"), *one;
    const json_t *no = json_object_get(schema, "not");
    size_t i;

    json_check_keywords(c, schema);
    json_array_foreach(list, i, one)
    {
        add_member(c, all, one);
    }
    if (no)
        add_member(c, all, json_not(c, no));
    if (json_object_get(schema, "oneOf"))
        add_member(c, all, json_one_of(c, schema));
    if (json_object_get(schema, "if"))
        add_member(c, all, json_if(c, schema));
    if (json_has_dependencies(schema))
        add_member(c, all, json_dependencies(c, schema));
}

/* Members may be added meanwhile. */
static void close_members(struct compiler *c, struct conjunction *all)
{
    for (size_t i = 0; i < all->n && c->code == 0; i++) {
        const struct member m = all->members[i];
        const json_t *ref = json_object_get(m.schema, "$ref");

        all->members[i].closed = true;
        if (m.closed)
            continue;
        if (json_is_string(ref))
            add_member(c, all, json_resolve(c, json_string_value(ref)));
        if (json_counts(c, m.schema))
            close_member(c, all, m.schema);
    }
}

int32_t json_compile_all(struct compiler *c, const json_t *const *schemas, size_t n)
{
    struct conjunction *all = calloc(1, sizeof(*all));
    int32_t rule = c->none;

    if (!all) {
        json_refuse(c, -ENOMEM, "", "out of memory");
        return rule;
    }
    for (size_t i = 0; i < n; i++)
        add_member(c, all, schemas[i]);
    rule = compile(c, all);
    free(all);
    return rule;
}

/* ---- conjunctions without choices */

/* The types that all members allow. */
static unsigned types_of(struct compiler *c, const struct conjunction *all)
{
    unsigned types = JSON_BITS;

    for (size_t k = 0; k < all->n; k++)
        if (json_counts(c, all->members[k].schema))
            types &= json_types(c, all->members[k].schema);
    return types;
}

static int32_t by_values(struct compiler *c, const struct conjunction *all, const json_t *values)
{
    json_t *strings = json_array();
    int32_t node = GRAMMAR_DEAD, term;
    const json_t *v;
    size_t i;

    json_array_foreach(values, i, v)
    {
        bool holds = true;

        /* What holds other schemas has added them to the members. */
        for (size_t k = 0; k < all->n && holds; k++)
            holds = !json_counts(c, all->members[k].schema) ||
                    json_holds_alone(c, all->members[k].schema, v, values);
        if (holds && json_is_string(v))
            json_array_append(strings, (json_t *)(uintptr_t)v);
        else if (holds)
            node = grammar_fork(c->g, node_literal(c, v, GRAMMAR_END), node);
    }
    term = json_string_values(c, strings);
    json_decref(strings);
    return term == REGEX_NONE ? node : grammar_fork(c->g, node_string(c, term, GRAMMAR_END), node);
}

static int32_t by_types(struct compiler *c, const struct conjunction *all)
{
    struct regex_pool *p = &c->g->lexer.regex;
    const json_t *schemas[MAX_MEMBERS];
    int32_t node = GRAMMAR_DEAD, strings = REGEX_ALL;
    const unsigned types = types_of(c, all);
    size_t n = 0;

    for (size_t k = 0; k < all->n; k++)
        if (json_counts(c, all->members[k].schema)) {
            schemas[n++] = all->members[k].schema;
            json_refuse_unknown(c, all->members[k].schema, types);
        }
    if (types & JSON_BIT_NULL)
        node = grammar_fork(c->g, node_word(c, "null", GRAMMAR_END), node);
    if (types & JSON_BIT_BOOLEAN)
        node = grammar_fork(c->g, node_word(c, "true", GRAMMAR_END),
                            grammar_fork(c->g, node_word(c, "false", GRAMMAR_END), node));
    if (types & (JSON_BIT_INTEGER | JSON_BIT_REAL))
        node = grammar_fork(c->g, node_plain(c, json_numbers(c, schemas, n, types), GRAMMAR_END),
                            node);
    if (types & JSON_BIT_STRING) {
        for (size_t i = 0; i < n; i++)
            strings = regex_and2(p, strings, json_strings(c, schemas[i]));
        node = grammar_fork(c->g, node_string(c, strings, GRAMMAR_END), node);
    }
    if (types & JSON_BIT_ARRAY)
        node = grammar_fork(c->g, json_array_node(c, all), node);
    if (types & JSON_BIT_OBJECT)
        node = grammar_fork(c->g, json_object_node(c, all), node);
    return node;
}

static int32_t without_choices(struct compiler *c, const struct conjunction *all)
{
    const json_t *constant = NULL, *values = NULL;
    json_t *one;
    int32_t node;

    if (all->n == 0)
        return node_call(c, node_any(c), GRAMMAR_END);
    for (size_t k = 0; k < all->n; k++) {
        const json_t *s = all->members[k].schema;

        if (!json_counts(c, all->members[k].schema))
            continue;
        constant = json_object_get(s, "const") ? json_object_get(s, "const") : constant;
        values = json_object_get(s, "enum") ? json_object_get(s, "enum") : values;
    }
    if (constant) {
        one = json_pack("[O]", constant);
        if (!one)
            json_refuse(c, -ENOMEM, "", "out of memory");
        node = by_values(c, all, one);
        json_decref(one);
        return node;
    }
    return values ? by_values(c, all, values) : by_types(c, all);
}

/* ---- choices */

/* The conjunction with one of the anyOf of member k. */
static int32_t alternatives(struct compiler *c, const struct conjunction *all, size_t k)
{
    const json_t *list = json_object_get(all->members[k].schema, "anyOf"), *one;
    struct conjunction *with = malloc(sizeof(*with));
    int32_t node = GRAMMAR_DEAD, rule;
    size_t i;

    if (!with)
        json_refuse(c, -ENOMEM, "", "out of memory");
    else if (json_array_size(list) == 0)
        json_refuse(c, -EINVAL, "anyOf", "must be an array of schemas");
    else if ((c->n_choices += json_array_size(list)) > MAX_CHOICES)
        json_refuse(c, -E2BIG, "anyOf", "too many alternatives");
    json_array_foreach(list, i, one)
    {
        const size_t path = json_enter_alternative(c, all->members[k].schema, i);

        if (c->code == 0) {
            *with = *all;
            with->members[k].chosen = true;
            add_member(c, with, one);
            rule = compile(c, with);
            node =
                grammar_fork(c->g, rule == c->none ? GRAMMAR_DEAD : node_call(c, rule, GRAMMAR_END),
                             node);
        }
        json_leave(c, path);
    }
    free(with);
    return node;
}

static int32_t conjunction_node(struct compiler *c, const struct conjunction *all)
{
    for (size_t k = 0; k < all->n; k++) {
        const struct member *m = &all->members[k];

        if (!m->chosen && json_counts(c, m->schema) && json_object_get(m->schema, "anyOf"))
            return alternatives(c, all, k);
    }
    return without_choices(c, all);
}

/* ---- rules */

static bool is_same(const struct conjunction *a, const struct conjunction *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->members[i].schema != b->members[i].schema ||
            a->members[i].chosen != b->members[i].chosen)
            return false;
    return true;
}

static size_t hash_of(const struct conjunction *all)
{
    size_t h = all->n;

    for (size_t i = 0; i < all->n; i++)
        h = (h ^ (uintptr_t)all->members[i].schema ^ all->members[i].chosen) * 0x9e3779b97f4a7c15u;
    return h;
}

/* The rule of a conjunction; one that is under way has a rule, too. */
static int32_t compile(struct compiler *c, const struct conjunction *given)
{
    struct conjunction *all;
    int32_t rule = c->none, node;
    size_t at, hash;

    if (c->code < 0 || grammar_failed(c->g))
        return rule;
    all = malloc(sizeof(*all));
    if (!all || !array_reserve(&c->memos, &c->memos_cap, c->n_memos + 1, sizeof(*c->memos)) ||
        ++c->depth > MAX_DEPTH) {
        json_refuse(c, all ? -E2BIG : -ENOMEM, "", all ? "nested too deeply" : "out of memory");
        free(all);
        return rule;
    }
    *all = *given;
    close_members(c, all);
    all->fails = all->fails || !types_of(c, all);
    hash = hash_of(all);
    for (size_t i = 0; i < c->n_memos; i++)
        if (!all->fails && c->memos[i].hash == hash && is_same(c->memos[i].key, all)) {
            c->depth--;
            free(all);
            return c->memos[i].rule;
        }
    if (all->fails) {
        c->depth--;
        free(all);
        return c->none;
    }
    (void)json_step(c, 10 * all->n + c->n_memos / 64);
    at = c->n_memos++;
    rule = grammar_rule(c->g);
    c->memos[at] = (struct memo){all, hash, rule};
    node = conjunction_node(c, all);
    grammar_define(c->g, rule, node);
    if (node == GRAMMAR_DEAD)
        rule = c->memos[at].rule = c->none;
    c->depth--;
    return rule;
}

static int finish(struct compiler *c)
{
    for (size_t i = 0; i < c->n_memos; i++)
        free(c->memos[i].key);
    for (size_t i = 0; i < c->n_rewritten; i++)
        json_decref(c->rewritten[i].to);
    free(c->memos);
    free(c->rewritten);
    return c->code;
}

/* The draft that a schema names: 3 to 7, 8: a later one, 0: none. */
static int draft_of(const json_t *schema)
{
    const char *name = json_string_value(json_object_get(schema, "$schema"));
    const char *old = name ? strstr(name, "draft-0") : NULL;

    if (old && old[7] >= '3' && old[7] <= '7')
        return old[7] - '0';
    return name && strstr(name, "/draft/20") ? 8 : 0;
}

int json_schema_compile(struct grammar *g, const json_t *schema, int32_t *rule, struct err *e)
{
    const int draft = draft_of(schema);
    struct compiler c = {.g = g,
                         .root = schema,
                         .refs_alone = draft >= 3 && draft <= 7,
                         .has_id = draft < 6,
                         .path = "$",
                         .e = e,
                         .any = -1};

    node_marks(&c);
    *rule = json_compile_all(&c, &schema, 1);
    return finish(&c);
}
