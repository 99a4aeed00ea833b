/* jinja_json.c - values from JSON. See jinja_impl.h. */
#include "engine/text/jinja_impl.h"
#include "engine/util/json_util.h"

static struct value dict_from(struct jinja_run *r, const json_t *object)
{
    struct dict *d = dict_new(r, json_object_size(object));
    const char *key;
    json_t *member;

    json_object_foreach((json_t *)(uintptr_t)object, key, member)
    {
        struct value name = value_str(str_copy(r, key, strlen(key), false));

        dict_set(r, d, name, value_from_json(r, member));
    }
    return value_dict(d);
}

static struct value list_from(struct jinja_run *r, const json_t *array)
{
    struct list *l = list_new(r, json_array_size(array));
    json_t *element;
    size_t i;

    json_array_foreach(array, i, element) list_push(r, l, value_from_json(r, element));
    return value_list(l, V_LIST);
}

struct value value_from_json(struct jinja_run *r, const json_t *json)
{
    struct value v = value_none();

    jinja_enter(r);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        v = dict_from(r, json);
        break;
    case JSON_ARRAY:
        v = list_from(r, json);
        break;
    case JSON_STRING:
        v = value_str(str_copy(r, json_string_value(json), json_string_length(json), false));
        break;
    case JSON_INTEGER:
        v = value_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = value_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v = value_bool(json_is_true(json));
        break;
    case JSON_NULL:
        break;
    }
    v.foreign = true;
    jinja_leave(r);
    return v;
}

struct value value_parse_json(struct jinja_run *r, struct text text, const char *what)
{
    struct value v;
    struct err why;
    int code;

    jinja_charge(r, text.len);
    code = json_parse(&r->json, what, text.data, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (code) {
        r->json = NULL;
        jinja_fail_plain(r, code, &why);
    }
    v = value_from_json(r, r->json);
    json_decref(r->json);
    r->json = NULL;
    return v;
}
