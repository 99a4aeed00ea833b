/* json_refs.c - where the references of a schema lead. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_impl.h"
#include "engine/util/hex.h"

enum {
    MAX_DEPTH = 256,
    MAX_REFS = 64, /* one after another: more are refused where the schema is compiled */
};

/* One step of a JSON pointer, decoded, up to *at, which moves behind it. False: it is too long. */
static bool take_step(char *out, size_t size, const char **at)
{
    size_t n = 0;
    const char *s = *at;

    for (; *s && *s != '/'; s++) {
        char byte = *s;

        if (byte == '%' && hex_digit((unsigned char)s[1]) >= 0 &&
            hex_digit((unsigned char)s[2]) >= 0) {
            byte = (char)(hex_digit((unsigned char)s[1]) << 4 | hex_digit((unsigned char)s[2]));
            s += 2;
        } else if (byte == '~' && (s[1] == '0' || s[1] == '1')) {
            byte = s[1] == '0' ? '~' : '/';
            s++;
        }
        if (n + 1 == size)
            return false;
        out[n++] = byte;
    }
    out[n] = '\0';
    *at = *s ? s + 1 : s;
    return true;
}

/* The element that a step of a pointer names; NULL: none. */
static const json_t *element_of(const json_t *list, const char *step)
{
    const size_t n = strspn(step, "0123456789");

    return n > 0 && n < 10 && step[n] == '\0' ? json_array_get(list, strtoul(step, NULL, 10))
                                              : NULL;
}

/* The keyword of a schema's own identifier, which it may lack. */
static const char *id_keyword(const struct compiler *c, const json_t *schema)
{
    return c->has_id && !json_object_get(schema, "$id") ? "id" : "$id";
}

static const char *id_of(const struct compiler *c, const json_t *schema)
{
    return json_string_value(json_object_get(schema, id_keyword(c, schema)));
}

/* What a part of a schema is. */
enum part { SCHEMAS, BY_NAME /* an object of them */, VALUES };

static enum part part_of(enum part around, const char *key)
{
    static const char *const by_name[] = {
        "$defs",     "definitions", "dependencies", "dependentSchemas", "patternProperties",
        "properties"};
    static const char *const values[] = {"const", "default", "enum", "examples"};

    for (size_t i = 0; around == SCHEMAS && i < sizeof(by_name) / sizeof(*by_name); i++)
        if (strcmp(key, by_name[i]) == 0)
            return BY_NAME;
    for (size_t i = 0; around == SCHEMAS && i < sizeof(values) / sizeof(*values); i++)
        if (strcmp(key, values[i]) == 0)
            return VALUES;
    return SCHEMAS;
}

/* The schema that calls itself so: "#name" of "$anchor", or of "id" in draft 4. Names in schemas
 * that have identifiers of their own are theirs alone. */
static const json_t *find_anchor(struct compiler *c, const json_t *v, enum part part,
                                 const char *name, int depth)
{
    const json_t *found = NULL, *one;
    const char *anchor = json_string_value(json_object_get(v, "$anchor"));
    const char *id = id_of(c, v), *key;
    size_t i;

    if (part == VALUES || depth > MAX_DEPTH || !json_step(c, 1))
        return NULL;
    if (part == SCHEMAS && id && *id != '#' && depth > 0)
        return NULL;
    if (part == SCHEMAS &&
        ((anchor && strcmp(anchor, name) == 0) || (id && *id == '#' && strcmp(id + 1, name) == 0)))
        return v;
    json_object_foreach((json_t *)(uintptr_t)v, key, one)
    {
        found = found ? found : find_anchor(c, one, part_of(part, key), name, depth + 1);
    }
    json_array_foreach(v, i, one)
    {
        found = found ? found : find_anchor(c, one, SCHEMAS, name, depth + 1);
    }
    return found;
}

/* What a pointer, without its first slash, leads to from a value on; NULL: nothing. */
static const json_t *follow(struct compiler *c, const json_t *at, const char *rest)
{
    char step[512];
    bool last;

    do {
        last = !strchr(rest, '/');
        if (!json_step(c, 1) || !take_step(step, sizeof(step), &rest))
            return NULL;
        at = json_is_array(at) ? element_of(at, step) : json_object_get(at, step);
    } while (at && !last);
    return at;
}

const json_t *json_resolve(struct compiler *c, const char *ref)
{
    const char *id = id_of(c, c->root);
    const json_t *at = c->root;
    const char *rest = ref;

    if (id && strncmp(ref, id, strcspn(id, "#")) == 0 && *id)
        rest = ref + strcspn(id, "#");
    if (*rest && *rest != '#') {
        json_refuse(c, -ENOTSUP, "$ref", "“%.100s” does not lead into the schema", ref);
        return NULL;
    }
    rest += *rest == '#';
    if (*rest)
        at = *rest == '/' ? follow(c, at, rest + 1) : find_anchor(c, at, SCHEMAS, rest, 0);
    if (!at)
        json_refuse(c, -EINVAL, "$ref", "“%.100s” leads nowhere", ref);
    return at;
}

bool json_is_demanded(struct compiler *c, const char *name, const json_t *property)
{
    for (int i = 0; i < MAX_REFS && json_is_object(property); i++) {
        const char *ref = json_string_value(json_object_get(property, "$ref"));
        size_t path;

        if (json_is_true(json_object_get(property, "required")))
            return true;
        if (!ref)
            return false;
        path = json_enter(c, ".properties.%.60s", name);
        property = json_resolve(c, ref);
        json_leave(c, path);
    }
    return false;
}

/* Whether a reference in a part of a schema means another place, if the schema is the root. */
static bool leads_into(struct compiler *c, const json_t *schema, const json_t *v, enum part part,
                       int depth)
{
    const char *ref = json_string_value(json_object_get(v, "$ref")), *key;
    bool leads = false;
    const json_t *one;
    size_t i;

    if (part == VALUES || depth > MAX_DEPTH || !json_step(c, 2))
        return false;
    if (part == SCHEMAS && ref && *ref == '#')
        leads = ref[1] == '\0' || (ref[1] == '/' ? follow(c, schema, ref + 2)
                                                 : find_anchor(c, schema, SCHEMAS, ref + 1, 0));
    json_object_foreach((json_t *)(uintptr_t)v, key, one)
    {
        leads = leads || leads_into(c, schema, one, part_of(part, key), depth + 1);
    }
    json_array_foreach(v, i, one)
    {
        leads = leads || leads_into(c, schema, one, SCHEMAS, depth + 1);
    }
    return leads;
}

void json_check_id(struct compiler *c, const json_t *schema)
{
    const char *id = id_of(c, schema);

    if (!id || *id == '#' || schema == c->root || json_kept(c, schema, JSON_CHECKED_ID))
        return;
    (void)json_keep(c, schema, JSON_CHECKED_ID, json_true());
    if (leads_into(c, schema, schema, SCHEMAS, 0))
        json_refuse(c, -ENOTSUP, id_keyword(c, schema),
                    "is supported at the root alone where references lead from there");
}
