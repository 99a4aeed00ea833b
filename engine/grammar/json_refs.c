/* json_refs.c - where the references of a schema lead. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_impl.h"
#include "engine/util/hex.h"

enum { MAX_DEPTH = 256 };

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

static const char *id_of(const json_t *schema)
{
    return json_string_value(
        json_object_get(schema, json_object_get(schema, "$id") ? "$id" : "id"));
}

/* The schema that calls itself so: "#name" of "$anchor", or of "id" in draft 4. */
static const json_t *find_anchor(struct compiler *c, const json_t *v, const char *name, int depth)
{
    const json_t *found = NULL, *one;
    const char *anchor = json_string_value(json_object_get(v, "$anchor"));
    const char *id = id_of(v), *key;
    size_t i;

    if ((anchor && strcmp(anchor, name) == 0) || (id && *id == '#' && strcmp(id + 1, name) == 0))
        return v;
    if (depth > MAX_DEPTH || !json_step(c, 1))
        return NULL;
    json_object_foreach((json_t *)(uintptr_t)v, key, one)
    {
        found = found ? found : find_anchor(c, one, name, depth + 1);
    }
    json_array_foreach(v, i, one)
    {
        found = found ? found : find_anchor(c, one, name, depth + 1);
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
    const char *id = id_of(c->root);
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
        at = *rest == '/' ? follow(c, at, rest + 1) : find_anchor(c, at, rest, 0);
    if (!at)
        json_refuse(c, -EINVAL, "$ref", "“%.100s” leads nowhere", ref);
    return at;
}

/* Whether a reference in a value means another place, if a schema around it is the root. */
static bool leads_into(struct compiler *c, const json_t *schema, const json_t *v, int depth)
{
    const char *ref = json_string_value(json_object_get(v, "$ref")), *key;
    bool leads =
        ref && ref[0] == '#' && (ref[1] == '\0' || (ref[1] == '/' && follow(c, schema, ref + 2)));
    const json_t *one;
    size_t i;

    if (depth > MAX_DEPTH || !json_step(c, 2))
        return leads;
    json_object_foreach((json_t *)(uintptr_t)v, key, one)
    {
        leads = leads || leads_into(c, schema, one, depth + 1);
    }
    json_array_foreach(v, i, one)
    {
        leads = leads || leads_into(c, schema, one, depth + 1);
    }
    return leads;
}

void json_check_id(struct compiler *c, const json_t *schema)
{
    const char *id = id_of(schema);

    if (id && *id != '#' && schema != c->root && leads_into(c, schema, schema, 0))
        json_refuse(c, -ENOTSUP, "$id",
                    "is supported at the root alone where references lead from there");
}
