/* json_validate.c - whether a value is an instance of a schema: which of the values of an enum the
 * other keywords leave. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/grammar/json_impl.h"

enum { MAX_DEPTH = 64 };

unsigned json_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return JSON_BIT_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_BIT_BOOLEAN;
    case JSON_INTEGER:
        return JSON_BIT_INTEGER;
    case JSON_REAL:
        return nearbyint(json_real_value(v)) == json_real_value(v) ? JSON_BIT_INTEGER
                                                                   : JSON_BIT_REAL;
    case JSON_STRING:
        return JSON_BIT_STRING;
    case JSON_ARRAY:
        return JSON_BIT_ARRAY;
    default:
        return JSON_BIT_OBJECT;
    }
}

/* Whether it holds of a part of the schema, for which the path has been lengthened. */
static bool holds_at(struct compiler *c, size_t path, const json_t *schema, const json_t *value)
{
    const bool holds = json_holds(c, schema, value);

    json_leave(c, path);
    return holds;
}

const json_t *json_member(struct compiler *c, const json_t *object, const char *name)
{
    return json_step(c, strlen(name) / 64 + 1) ? json_object_get(object, name) : NULL;
}

static bool object_holds(struct compiler *c, const json_t *schema, const json_t *value)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *patterns = json_object_get(schema, "patternProperties");
    const json_t *others = json_object_get(schema, "additionalProperties"), *s;
    const json_t *required = json_object_get(schema, "required");
    const int32_t n = (int32_t)json_object_size(value);
    const int32_t names = n > 0 ? json_names(c, schema) : REGEX_ALL;
    const char *name, *pattern;
    json_t *member;
    size_t i;

    if (n < json_count(c, schema, "minProperties", 0) ||
        n > json_count(c, schema, "maxProperties", REGEX_INFINITE))
        return false;
    json_array_foreach(required, i, member)
    {
        if (!json_member(c, value, json_string_value(member)))
            return false;
    }
    json_object_foreach((json_t *)(uintptr_t)properties, name, member)
    {
        if (!json_step(c, 1) || (json_is_demanded(c, name, member) && !json_member(c, value, name)))
            return false;
    }
    json_object_foreach((json_t *)(uintptr_t)value, name, member)
    {
        bool named = (s = json_member(c, properties, name)) != NULL;
        json_t *one;

        if (names != REGEX_ALL && !json_matches(c, names, name, strlen(name)))
            return false;
        if (named && !holds_at(c, json_enter(c, ".properties.%.60s", name), s, member))
            return false;
        json_object_foreach((json_t *)(uintptr_t)patterns, pattern, one)
        {
            const int32_t term = json_pattern(c, "patternProperties", pattern, strlen(pattern));

            if (c->code < 0)
                return false;
            if (!json_matches(c, term, name, strlen(name)))
                continue;
            named = true;
            if (!holds_at(c, json_enter(c, ".patternProperties.%.60s", pattern), one, member))
                return false;
        }
        if (!named && others &&
            !holds_at(c, json_enter(c, ".additionalProperties"), others, member))
            return false;
    }
    return !json_object_get(schema, "dependencies") &&
                   !json_object_get(schema, "dependentSchemas") &&
                   !json_object_get(schema, "dependentRequired")
               ? true
               : json_holds(c, json_dependencies(c, schema), value);
}

static bool array_contains(struct compiler *c, const json_t *schema, const json_t *value)
{
    const json_t *contains = json_object_get(schema, "contains"), *member;
    int32_t n = 0;
    size_t i;

    json_array_foreach(value, i, member)
    {
        n += contains && holds_at(c, json_enter(c, ".contains"), contains, member);
    }
    return !contains || (n >= json_count(c, schema, "minContains", 1) &&
                         n <= json_count(c, schema, "maxContains", REGEX_INFINITE));
}

static bool is_unique(struct compiler *c, const json_t *value)
{
    const size_t n = json_array_size(value);
    bool unique = true;

    for (size_t i = 0; i < n && unique; i++)
        for (size_t k = 0; k < i && unique && c->code == 0; k++)
            unique = !json_same(c, json_array_get(value, i), json_array_get(value, k));
    return unique;
}

static bool array_holds(struct compiler *c, const json_t *schema, const json_t *value)
{
    const json_t *items = json_object_get(schema, "items");
    const json_t *prefix = json_object_get(schema, "prefixItems");
    const json_t *others = items;
    const char *listed = "prefixItems", *rest = "items";
    const int32_t n = (int32_t)json_array_size(value);
    json_t *member;
    size_t i;

    if (json_is_array(items)) {
        prefix = items;
        listed = "items";
        rest = "additionalItems";
        others = json_object_get(schema, rest);
    }
    if (n < json_count(c, schema, "minItems", 0) ||
        n > json_count(c, schema, "maxItems", REGEX_INFINITE))
        return false;
    json_array_foreach(value, i, member)
    {
        const bool is_listed = i < json_array_size(prefix);
        const json_t *s = is_listed ? json_array_get(prefix, i) : others;

        if (s &&
            !holds_at(c,
                      is_listed ? json_enter(c, ".%s[%zu]", listed, i) : json_enter(c, ".%s", rest),
                      s, member))
            return false;
    }
    return array_contains(c, schema, value) &&
           (!json_is_true(json_object_get(schema, "uniqueItems")) || is_unique(c, value));
}

static int count_holding(struct compiler *c, const json_t *schema, const char *keyword,
                         const json_t *value)
{
    const json_t *schemas = json_object_get(schema, keyword);
    int n = 0;
    size_t i;
    json_t *s;

    json_array_foreach(schemas, i, s)
    {
        n += holds_at(c, json_enter(c, ".%s[%zu]", keyword, i), s, value);
    }
    return n;
}

static bool same_elements(struct compiler *c, const json_t *a, const json_t *b)
{
    const size_t n = json_array_size(a);
    bool same = json_array_size(b) == n;

    for (size_t i = 0; i < n && same; i++)
        same = json_same(c, json_array_get(a, i), json_array_get(b, i));
    return same;
}

static bool same_members(struct compiler *c, const json_t *a, const json_t *b)
{
    bool same = json_object_size(a) == json_object_size(b);
    const json_t *one, *two;
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)a, name, one)
    {
        two = same ? json_member(c, b, name) : NULL;
        same = two && json_same(c, one, two);
        if (!same)
            break;
    }
    return same;
}

bool json_same(struct compiler *c, const json_t *a, const json_t *b)
{
    if (!json_step(c, 1))
        return false;
    if (json_is_number(a) && json_is_number(b))
        return json_number_order(a, b) == 0;
    if (json_is_string(a) && !json_step(c, json_string_length(a) / 64))
        return false;
    if (json_typeof(a) != json_typeof(b))
        return false;
    return json_is_array(a)    ? same_elements(c, a, b)
           : json_is_object(a) ? same_members(c, a, b)
                               : json_equal(a, b);
}

bool json_is_among(struct compiler *c, const json_t *values, const json_t *value)
{
    const json_t *v;
    size_t i;

    json_array_foreach(values, i, v)
    {
        if (c->code < 0 || json_same(c, v, value))
            return c->code == 0;
    }
    return false;
}

/* By the keywords that hold other schemas. */
static bool applies(struct compiler *c, const json_t *schema, const json_t *value)
{
    const json_t *all = json_object_get(schema, "allOf"), *any = json_object_get(schema, "anyOf");
    const json_t *one = json_object_get(schema, "oneOf"), *no = json_object_get(schema, "not");
    const json_t *ref = json_object_get(schema, "$ref");
    const json_t *on = json_object_get(schema, "if"), *then;
    const char *keyword;
    const json_t *target = json_is_string(ref) ? json_resolve(c, json_string_value(ref)) : NULL;

    if (target && !json_holds(c, target, value))
        return false;
    if (!json_counts(c, schema))
        return true;
    keyword = on && !holds_at(c, json_enter(c, ".if"), on, value) ? "else" : "then";
    then = on ? json_object_get(schema, keyword) : NULL;
    if (then && !holds_at(c, json_enter(c, ".%s", keyword), then, value))
        return false;
    return (!all || count_holding(c, schema, "allOf", value) == (int)json_array_size(all)) &&
           (!any || count_holding(c, schema, "anyOf", value) > 0) &&
           (!one || count_holding(c, schema, "oneOf", value) == 1) &&
           (!no || !holds_at(c, json_enter(c, ".not"), no, value));
}

bool json_holds_alone(struct compiler *c, const json_t *schema, const json_t *value,
                      const json_t *listed)
{
    const json_t *constant = json_object_get(schema, "const");
    const json_t *values = json_object_get(schema, "enum");
    const unsigned type = json_type_of(value);

    if (!json_step(c, 10) || !(json_types(c, schema) & type) ||
        (values && values != listed && !json_is_among(c, values, value)) ||
        (constant && !json_same(c, constant, value)))
        return false;
    json_refuse_unknown(c, schema, type);
    if (json_object_get(schema, JSON_NONE_OF) &&
        json_holds(c, json_object_get(schema, JSON_NONE_OF), value))
        return false;
    if (type & (JSON_BIT_INTEGER | JSON_BIT_REAL))
        return json_number_holds(c, schema, value);
    if (type == JSON_BIT_STRING)
        return json_matches(c, json_strings(c, schema), json_string_value(value),
                            json_string_length(value));
    if (type == JSON_BIT_ARRAY)
        return array_holds(c, schema, value);
    return type != JSON_BIT_OBJECT || object_holds(c, schema, value);
}

bool json_holds(struct compiler *c, const json_t *schema, const json_t *value)
{
    bool holds;

    if (!json_is_schema(c, schema) || json_is_boolean(schema) || c->code < 0)
        return json_is_true(schema);
    if (++c->depth > MAX_DEPTH) {
        json_refuse(c, -E2BIG, "", "nested too deeply");
        holds = false;
    } else {
        if (json_counts(c, schema))
            json_check_keywords(c, schema);
        holds = applies(c, schema, value) &&
                (!json_counts(c, schema) || json_holds_alone(c, schema, value, NULL));
    }
    c->depth--;
    return holds;
}
