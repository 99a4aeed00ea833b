/* json_rewrite.c - keywords that say the same as others: what must not be, as what may be instead;
 * exactly one of several, as one and none of the others; conditions, as choices. */
#include <errno.h>
#include <string.h>

#include "engine/grammar/json_impl.h"
#include "engine/util/checked.h"

/* ---- schemas of which no value is an instance of both */

/* The types that a schema can allow, by its own keywords and those of what it refers to. */
static unsigned wide_types(struct compiler *c, const json_t *s, int depth)
{
    const json_t *ref = json_object_get(s, "$ref"), *values = json_object_get(s, "enum");
    const json_t *constant = json_object_get(s, "const"), *all = json_object_get(s, "allOf"), *one;
    unsigned bits = JSON_BITS, some = 0;
    size_t i;

    if (!json_is_object(s) || depth > 8 || !json_step(c, 2 + json_array_size(values) / 4))
        return json_is_false(s) ? 0 : JSON_BITS;
    if (json_is_string(ref))
        bits &= wide_types(c, json_resolve(c, json_string_value(ref)), depth + 1);
    if (!json_counts(c, s))
        return bits;
    bits &= json_types(c, s);
    if (constant)
        bits &= json_type_of(constant);
    json_array_foreach(values, i, one)
    {
        some |= json_type_of(one);
    }
    json_array_foreach(all, i, one)
    {
        bits &= wide_types(c, one, depth + 1);
    }
    return values ? bits & some : bits;
}

/* A schema behind its references. */
static const json_t *behind(struct compiler *c, const json_t *s)
{
    for (int i = 0; i < 8 && json_is_string(json_object_get(s, "$ref")); i++)
        s = json_resolve(c, json_string_value(json_object_get(s, "$ref")));
    return json_counts(c, s) ? s : json_true(); /* whatever it is */
}

/* What says something of an instance beside its references, or behind them. */
static const json_t *that_counts(struct compiler *c, const json_t *s)
{
    return json_counts(c, s) ? s : behind(c, s);
}

/* No value is among both: by const and enum. */
static bool values_differ(struct compiler *c, const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "const"), *y = json_object_get(b, "const"), *one;
    const json_t *xs = json_object_get(a, "enum"), *ys = json_object_get(b, "enum");
    size_t i;

    if ((!x && !xs) || (!y && !ys))
        return false;
    if (x && y)
        return !json_same(c, x, y);
    if (x || y)
        return !json_is_among(c, x ? ys : xs, x ? x : y);
    json_array_foreach(xs, i, one)
    {
        if (json_is_among(c, ys, one))
            return false;
    }
    return true;
}

static bool is_required(struct compiler *c, const json_t *s, const char *name)
{
    const json_t *one;
    size_t i;

    json_array_foreach(json_object_get(s, "required"), i, one)
    {
        if (!json_step(c, 1))
            return false;
        if (json_is_string(one) && strcmp(json_string_value(one), name) == 0)
            return true;
    }
    return false;
}

/* An object with this property is none of the schema. */
static bool rules_out(struct compiler *c, const json_t *s, const char *name)
{
    const json_t *own = json_member(c, json_object_get(s, "properties"), name);

    if (own)
        return json_is_false(own);
    return json_is_false(json_object_get(s, "additionalProperties")) &&
           !json_object_get(s, "patternProperties");
}

/* For certain, no value is an instance of both. */
static bool are_disjoint(struct compiler *c, const json_t *a, const json_t *b)
{
    const json_t *one, *two;
    const char *name;
    size_t i;

    if (values_differ(c, behind(c, a), behind(c, b)) ||
        !(wide_types(c, a, 0) & wide_types(c, b, 0)))
        return true;
    a = behind(c, a);
    b = behind(c, b);
    if (wide_types(c, a, 0) == JSON_BIT_STRING && wide_types(c, b, 0) == JSON_BIT_STRING) {
        struct regex_pool *p = &c->g->lexer.regex;

        return !regex_is_alive(p, regex_and2(p, json_strings(c, a), json_strings(c, b)));
    }
    if ((wide_types(c, a, 0) & wide_types(c, b, 0)) != JSON_BIT_OBJECT)
        return false;
    json_object_foreach(json_object_get(a, "properties"), name, one)
    {
        two = json_member(c, json_object_get(b, "properties"), name);
        if (two && is_required(c, a, name) && is_required(c, b, name) &&
            (values_differ(c, that_counts(c, one), that_counts(c, two)) ||
             !(wide_types(c, one, 0) & wide_types(c, two, 0))))
            return true;
    }
    for (int k = 0; k < 2; k++) {
        const json_t *x = k ? b : a, *y = k ? a : b;

        json_array_foreach(json_object_get(x, "required"), i, one)
        {
            if (json_is_string(one) && rules_out(c, y, json_string_value(one)))
                return true;
        }
    }
    return false;
}

/* ---- schemas that are kept */

const json_t *json_kept(struct compiler *c, const void *from, enum json_rewriting kind)
{
    (void)json_step(c, c->n_rewritten / 64);
    for (size_t i = 0; i < c->n_rewritten; i++)
        if (c->rewritten[i].from == from && c->rewritten[i].kind == kind)
            return c->rewritten[i].to;
    return NULL;
}

const json_t *json_keep(struct compiler *c, const void *from, enum json_rewriting kind, json_t *to)
{
    if (!to || !array_reserve(&c->rewritten, &c->rewritten_cap, c->n_rewritten + 1,
                              sizeof(*c->rewritten))) {
        json_refuse(c, -ENOMEM, "", "out of memory");
        json_decref(to);
        return json_true();
    }
    c->rewritten[c->n_rewritten++] = (struct rewritten){from, kind, to};
    return to;
}

size_t json_enter_alternative(struct compiler *c, const json_t *schema, size_t i)
{
    (void)json_step(c, c->n_rewritten / 64);
    for (size_t k = 0; k < c->n_rewritten; k++) {
        if (c->rewritten[k].to != schema)
            continue;
        if (c->rewritten[k].kind == JSON_ONE_OF)
            return json_enter(c, ".oneOf[%zu]", i);
        if (c->rewritten[k].kind == JSON_IF)
            return json_enter(c, ".if");
        return strlen(c->path); /* what "not" rules out says so itself */
    }
    return json_enter(c, ".anyOf[%zu]", i);
}

/* A part of a schema, as part of another one. */
static json_t *share(const json_t *part)
{
    return json_incref((json_t *)(uintptr_t)part);
}

static json_t *wrap(const char *keyword, json_t *part)
{
    return json_pack("{so}", keyword, part);
}

/* {"not": schema}. Written once, as what it stands for is found by it. */
static json_t *no(struct compiler *c, const json_t *schema)
{
    (void)json_step(c, 5);
    return wrap("not", share(schema));
}

/* ---- not */

struct ways { /* in which a schema is not fulfilled */
    json_t *list;
    bool failed;
};

static void add_way(struct ways *w, json_t *schema)
{
    if (!schema || json_array_append_new(w->list, schema) < 0)
        w->failed = true;
}

static const char *const type_names[] = {"null",   "boolean", "integer", JSON_REAL_TYPE,
                                         "string", "array",   "object"};

static json_t *names_of(unsigned bits)
{
    json_t *names = json_array();

    for (size_t i = 0; i < 7; i++)
        if (bits >> i & 1)
            json_array_append_new(names, json_string(type_names[i]));
    return names;
}

/* Those of the keywords that a schema has, as a schema; NULL: none. */
static json_t *some_of(const json_t *s, const char *const *keywords, size_t n)
{
    json_t *some = NULL;

    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(s, keywords[i]);

        if (v && !some)
            some = json_object();
        if (v)
            json_object_set_new(some, keywords[i], share(v));
    }
    return some;
}

static void not_these(struct ways *w, const char *type, json_t *keywords)
{
    if (keywords)
        add_way(w, json_pack("{ss,so}", "type", type, JSON_NONE_OF, keywords));
}

static void not_these_values(struct ways *w, json_t *values)
{
    unsigned types = 0;
    bool yes = true, no_too = true;
    const json_t *v;
    size_t i;

    json_array_foreach(values, i, v)
    {
        types |= json_type_of(v);
        yes = yes && !json_is_true(v);
        no_too = no_too && !json_is_false(v);
    }
    not_these(w, "string", wrap("enum", share(values)));
    not_these(w, "number", wrap("enum", share(values)));
    if (yes || no_too)
        add_way(w, wrap("enum", yes && no_too ? json_pack("[b,b]", 0, 1) : json_pack("[b]", yes)));
    if (!(types & JSON_BIT_NULL))
        add_way(w, json_pack("{ss}", "type", "null"));
    for (unsigned bit = JSON_BIT_ARRAY; bit <= JSON_BIT_OBJECT; bit *= 2) {
        const char *type = bit == JSON_BIT_ARRAY ? "array" : "object";

        add_way(w, types & bit ? json_pack("{ss,ss}", "type", type, JSON_UNKNOWN, "enum")
                               : json_pack("{ss}", "type", type));
    }
}

/* A count below a minimum or above a maximum. */
static void not_counted(struct compiler *c, struct ways *w, const json_t *s, const char *type,
                        const char *min, const char *max)
{
    const int32_t least = json_count(c, s, min, 0), most = json_count(c, s, max, REGEX_INFINITE);

    if (least > 0)
        add_way(w, json_pack("{ss,si}", "type", type, max, (int)least - 1));
    if (most < REGEX_MAX_REPEAT)
        add_way(w, json_pack("{ss,si}", "type", type, min, (int)most + 1));
}

/* A keyword of arrays or objects of which it cannot be said what does not fulfil it. */
static void unknown(struct ways *w, const json_t *s, const char *type, const char *keyword)
{
    const json_t *v = json_object_get(s, keyword);

    if (v && !json_is_true(v) && !(json_is_object(v) && json_object_size(v) == 0))
        add_way(w, json_pack("{ss,ss}", "type", type, JSON_UNKNOWN, keyword));
}

/* An object without a property. */
static void not_there(struct compiler *c, struct ways *w, const char *name)
{
    if (json_step(c, 5))
        add_way(w, json_pack("{ss,s{sb}}", "type", "object", "properties", name, 0));
}

static void not_object(struct compiler *c, struct ways *w, const json_t *s)
{
    static const char *const others[] = {"additionalProperties", "patternProperties",
                                         "propertyNames",        "unevaluatedProperties",
                                         "dependencies",         "dependentSchemas",
                                         "dependentRequired"};
    const char *name;
    json_t *v;
    size_t i;

    json_array_foreach(json_object_get(s, "required"), i, v)
    {
        not_there(c, w, json_string_value(v));
    }
    json_object_foreach(json_object_get(s, "properties"), name, v)
    {
        if (json_is_demanded(c, name, v))
            not_there(c, w, name);
        if (!json_is_true(v) && !(json_is_object(v) && json_object_size(v) == 0))
            add_way(w, json_pack("{ss,s[s],s{so}}", "type", "object", "required", name,
                                 "properties", name, no(c, v)));
    }
    not_counted(c, w, s, "object", "minProperties", "maxProperties");
    for (i = 0; i < sizeof(others) / sizeof(*others); i++)
        unknown(w, s, "object", others[i]);
}

/* An array with an element i that is none of a schema. */
static void not_element(struct compiler *c, struct ways *w, size_t i, const json_t *schema)
{
    json_t *prefix = json_array();

    for (size_t k = 0; k < i; k++)
        json_array_append_new(prefix, json_true());
    json_array_append_new(prefix, no(c, schema));
    add_way(w, json_pack("{ss,si,so}", "type", "array", "minItems", (int)i + 1, "prefixItems",
                         prefix));
}

static void not_array(struct compiler *c, struct ways *w, const json_t *s)
{
    static const char *const others[] = {"minContains", "maxContains", "unevaluatedItems"};
    const json_t *contains = json_object_get(s, "contains"), *items = json_object_get(s, "items");
    const json_t *prefix = json_is_array(items) ? items : json_object_get(s, "prefixItems"), *v;
    const char *rest = json_is_array(items) ? "additionalItems" : "items";
    size_t i;

    not_counted(c, w, s, "array", "minItems", "maxItems");
    if (contains)
        add_way(w, json_pack("{ss,so}", "type", "array", "items", no(c, contains)));
    json_array_foreach(prefix, i, v)
    {
        if (json_step(c, i + 1))
            not_element(c, w, i, v);
    }
    if (json_array_size(prefix) > 0)
        unknown(w, s, "array", rest);
    else if (items && !json_is_array(items))
        add_way(w, json_pack("{ss,so}", "type", "array", "contains", no(c, items)));
    for (i = 0; i < sizeof(others) / sizeof(*others); i++)
        unknown(w, s, "array", others[i]);
    if (json_is_true(json_object_get(s, "uniqueItems")))
        unknown(w, s, "array", "uniqueItems");
}

/* {"allOf": [{"not": a}, {"not": b}, ...]} */
static json_t *none_of(struct compiler *c, const json_t *schemas)
{
    json_t *list = json_array();
    const json_t *one;
    size_t i;

    json_array_foreach(schemas, i, one)
    {
        json_array_append_new(list, no(c, one));
    }
    return wrap("allOf", list);
}

/* By the keywords that hold other schemas of the same instance. */
static void not_parts(struct compiler *c, struct ways *w, const json_t *s)
{
    const json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf");
    const json_t *one = json_object_get(s, "oneOf"), *none = json_object_get(s, "not");
    const json_t *part;
    size_t i;

    json_array_foreach(all, i, part)
    {
        add_way(w, no(c, part));
    }
    if (any)
        add_way(w, none_of(c, any));
    if (one)
        add_way(w, none_of(c, one));
    for (i = 0; i < json_array_size(one); i++) /* or two of them at once */
        for (size_t k = i + 1; k < json_array_size(one) && json_step(c, 2); k++) {
            const json_t *a = json_array_get(one, i), *b = json_array_get(one, k);

            if (!are_disjoint(c, a, b))
                add_way(w, json_pack("{s[oo]}", "allOf", share(a), share(b)));
        }
    if (none)
        add_way(w, share(none));
    if (json_object_get(s, "if"))
        add_way(w, json_pack("{ss}", JSON_UNKNOWN, "if"));
}

static void not_object_schema(struct compiler *c, struct ways *w, const json_t *s)
{
    static const char *const of_strings[] = {"pattern", "minLength", "maxLength", "format"};
    static const char *const of_numbers[] = {"minimum", "exclusiveMinimum", "maximum",
                                             "exclusiveMaximum", "multipleOf"};
    const json_t *constant = json_object_get(s, "const"), *ref = json_object_get(s, "$ref");
    unsigned others;

    if (json_is_string(ref)) {
        const json_t *target = json_resolve(c, json_string_value(ref));

        add_way(w, target ? no(c, target) : NULL);
    }
    if (!json_counts(c, s))
        return;
    json_check_keywords(c, s);
    others = JSON_BITS & ~json_types(c, s);
    if (others)
        add_way(w, wrap("type", names_of(others)));
    if (constant) {
        json_t *values = json_pack("[O]", constant);

        not_these_values(w, values);
        json_decref(values);
    }
    if (json_object_get(s, "enum"))
        not_these_values(w, json_object_get(s, "enum"));
    not_these(w, "string", some_of(s, of_strings, 4));
    not_these(w, "number", some_of(s, of_numbers, 5));
    not_object(c, w, s);
    not_array(c, w, s);
    not_parts(c, w, s);
}

const json_t *json_not(struct compiler *c, const json_t *schema)
{
    const json_t *had = json_kept(c, schema, JSON_NOT);
    struct ways w = {.list = json_array()};

    if (had || c->code < 0) {
        json_decref(w.list);
        return had ? had : json_true();
    }
    if (json_is_boolean(schema)) {
        json_decref(w.list);
        return json_is_true(schema) ? json_false() : json_true();
    }
    if (!json_is_object(schema))
        json_refuse(c, -EINVAL, "not", "must be a schema");
    else
        not_object_schema(c, &w, schema);
    if (w.failed || json_array_size(w.list) == 0) {
        json_decref(w.list);
        return json_keep(c, schema, JSON_NOT, w.failed ? NULL : json_false());
    }
    return json_keep(c, schema, JSON_NOT, wrap("anyOf", w.list));
}

/* ---- oneOf, if, dependencies */

/* One alternative and none of the others, of each; others of which no value is an instance, too, go
 * without saying. */
const json_t *json_one_of(struct compiler *c, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "oneOf");
    const json_t *had = json_kept(c, schema, JSON_ONE_OF);
    const size_t n = json_array_size(list);
    json_t *any;

    if (had)
        return had;
    if (n == 0) {
        json_refuse(c, -EINVAL, "oneOf", "must be an array of schemas");
        return json_true();
    }
    any = json_array();
    for (size_t i = 0; i < n && json_step(c, 5); i++)
        json_array_append_new(any, json_pack("{s[O]}", "allOf", json_array_get(list, i)));
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, i);
        json_t *all = json_object_get(json_array_get(any, i), "allOf");

        for (size_t k = i + 1; k < n && json_step(c, 2); k++) {
            const json_t *two = json_array_get(list, k);

            if (are_disjoint(c, one, two) || !json_step(c, 10))
                continue;
            json_array_append_new(all, no(c, two));
            json_array_append_new(json_object_get(json_array_get(any, k), "allOf"), no(c, one));
        }
        if (json_array_size(all) == 1)
            json_array_set_new(any, i, share(one));
    }
    return json_keep(c, schema, JSON_ONE_OF, wrap("anyOf", any));
}

const json_t *json_if(struct compiler *c, const json_t *schema)
{
    const json_t *had = json_kept(c, schema, JSON_IF), *on = json_object_get(schema, "if");
    const json_t *then = json_object_get(schema, "then"), *other = json_object_get(schema, "else");

    if (had)
        return had;
    return json_keep(c, schema, JSON_IF,
                     json_pack("{s[{s[oo]}{s[oo]}]}", "anyOf", "allOf", share(on),
                               share(then ? then : json_true()), "allOf", no(c, on),
                               share(other ? other : json_true())));
}

/* A property is not there, or what depends on it holds. */
static json_t *depend(const char *name, const json_t *on)
{
    json_t *then = json_is_string(on)  ? json_pack("{s[O]}", "required", on)
                   : json_is_array(on) ? wrap("required", share(on))
                                       : share(on);

    return json_pack("{s[{s{sb}}{s[s]so}]}", "anyOf", "properties", name, 0, "required", name,
                     "allOf", json_pack("[o]", then));
}

static const char *const dependencies[] = {"dependencies", "dependentRequired", "dependentSchemas"};

bool json_has_dependencies(const json_t *schema)
{
    for (size_t i = 0; i < 3; i++)
        if (json_object_get(schema, dependencies[i]))
            return true;
    return false;
}

const json_t *json_dependencies(struct compiler *c, const json_t *schema)
{
    const json_t *had = json_kept(c, schema, JSON_DEPENDENCIES);
    const char *name;
    json_t *all, *v;

    if (had)
        return had;
    all = json_array();
    for (size_t i = 0; i < 3; i++) {
        json_object_foreach(json_object_get(schema, dependencies[i]), name, v)
        {
            if (json_step(c, 10))
                json_array_append_new(all, depend(name, v));
        }
    }
    return json_keep(c, schema, JSON_DEPENDENCIES, wrap("allOf", all));
}
