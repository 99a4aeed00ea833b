/* jinja_value.c - lists and dictionaries, truth, order, elements and attributes. See
 * jinja_impl.h. */
#include <inttypes.h>
#include <xxhash.h>

#include "engine/text/jinja_impl.h"
#include "engine/text/utf8.h"

enum {
    INDEX_FROM = 16, /* entries of a dictionary that gets a hash table */
};

/* ---- lists and dictionaries */

struct list *list_new(struct jinja_run *r, size_t cap)
{
    struct list *l = jinja_take(r, sizeof(*l));

    jinja_charge(r, cap);
    *l = (struct list){.cap = (uint32_t)cap};
    l->items = jinja_take(r, cap * sizeof(*l->items) + 1);
    return l;
}

void list_push(struct jinja_run *r, struct list *l, struct value v)
{
    if (l->n == l->cap) {
        jinja_charge(r, l->n);
        l->cap = l->cap * 2 + 8;
        l->items = jinja_grow(r, l->items, l->n * sizeof(*l->items), l->cap * sizeof(*l->items));
    }
    l->items[l->n++] = v;
}

static uint64_t hash_of(struct jinja_run *r, struct value key)
{
    uint64_t hash = 3;

    jinja_charge(r, 0);
    switch (key.type) {
    case V_STR:
        return XXH3_64bits(key.str->data, key.str->len);
    case V_BOOL:
        return key.b * UINT64_C(0x9e3779b97f4a7c15);
    case V_INT:
        return (uint64_t)key.i * 0x9e3779b97f4a7c15u;
    case V_FLOAT:
        return key.f >= -9e18 && key.f <= 9e18 && key.f == (double)(int64_t)key.f
                   ? (uint64_t)(int64_t)key.f * 0x9e3779b97f4a7c15u
                   : 1;
    case V_TUPLE:
        jinja_enter(r);
        for (uint32_t i = 0; i < key.list->n; i++)
            hash = hash * 31 + hash_of(r, key.list->items[i]);
        jinja_leave(r);
        return hash;
    case V_LIST:
    case V_DICT:
        jinja_fail(r, "TypeError: unhashable type: '%s'", value_type_name(key.type));
    default:
        return 2;
    }
}

static void put_index(struct jinja_run *r, struct dict *d, uint32_t i)
{
    uint32_t at = (uint32_t)hash_of(r, d->entries[i].key) & (d->n_index - 1);

    for (; d->index[at]; at = (at + 1) & (d->n_index - 1))
        jinja_charge(r, 0);
    d->index[at] = i + 1;
}

static void make_index(struct jinja_run *r, struct dict *d)
{
    d->n_index = d->n_index ? d->n_index : 4 * INDEX_FROM;
    while (d->n_index < d->cap * 2)
        d->n_index *= 2;
    d->index = jinja_take(r, d->n_index * sizeof(*d->index));
    memset(d->index, 0, d->n_index * sizeof(*d->index));
    for (uint32_t i = 0; i < d->n; i++)
        put_index(r, d, i);
}

struct dict *dict_new(struct jinja_run *r, size_t cap)
{
    struct dict *d = jinja_take(r, sizeof(*d));

    *d = (struct dict){.cap = (uint32_t)cap};
    d->entries = jinja_take(r, cap * sizeof(*d->entries) + 1);
    if (cap > INDEX_FROM)
        make_index(r, d);
    return d;
}

/* Each probe counts: who writes the keys may make their hashes meet. */
const struct value *dict_get(struct jinja_run *r, const struct dict *d, struct value key)
{
    uint32_t at;

    if (key.type == V_STR)
        jinja_charge(r, key.str->len);
    if (key.type == V_STR && !d->index)
        return dict_get_str(r, d, key.str);
    at = (uint32_t)hash_of(r, key) & (d->n_index - 1); /* fails for what is no key */
    for (uint32_t i = 0; !d->index && i < d->n; i++)
        if (value_equal(r, d->entries[i].key, key))
            return &d->entries[i].value;
    for (; d->index && d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        const struct entry *e = &d->entries[d->index[at] - 1];

        if (value_equal(r, e->key, key))
            return &e->value;
    }
    return NULL;
}

void dict_set(struct jinja_run *r, struct dict *d, struct value key, struct value v)
{
    struct value *there = (struct value *)(uintptr_t)dict_get(r, d, key);

    if (there) {
        *there = v;
        return;
    }
    if (d->n == d->cap) {
        jinja_charge(r, d->n);
        d->cap = d->cap * 2 + 4;
        d->entries =
            jinja_grow(r, d->entries, d->n * sizeof(*d->entries), d->cap * sizeof(*d->entries));
        if (d->cap > INDEX_FROM)
            make_index(r, d);
    }
    d->entries[d->n++] = (struct entry){key, v};
    if (d->index)
        put_index(r, d, d->n - 1);
}

/* ---- truth, equality, order */

const char *value_type_name(enum value_type type)
{
    static const char *const names[] = {
        [V_MISSING] = "Undefined", [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",     [V_BOOL] = "bool",
        [V_INT] = "int",           [V_FLOAT] = "float",
        [V_STR] = "str",           [V_LIST] = "list",
        [V_TUPLE] = "tuple",       [V_ITER] = "generator",
        [V_DICT] = "dict",         [V_NAMESPACE] = "Namespace",
        [V_MACRO] = "Macro",       [V_LOOP] = "LoopContext",
        [V_FUNCTION] = "function",
    };

    return names[type];
}

void value_fail_undefined(struct jinja_run *r, struct value v)
{
    const char *type = value_type_name(v.owner);
    char owner[64];

    if (!v.owner && !v.str)
        jinja_fail(r, "UndefinedError: a value is undefined");
    if (!v.owner)
        jinja_fail(r, "UndefinedError: '%.*s' is undefined", (int)v.str->len, v.str->data);
    snprintf(owner, sizeof(owner), v.owner == V_NONE ? "None" : "%s object",
             v.owner == V_NAMESPACE ? "jinja2.utils.Namespace" : type);
    if (v.by_index)
        jinja_fail(r, "UndefinedError: %s has no element %" PRId64, owner, v.i);
    jinja_fail(r, "UndefinedError: '%s' has no attribute '%.*s'", owner,
               v.str->len < 200 ? (int)v.str->len : 200, v.str->data);
}

bool value_is_true(struct jinja_run *r, struct value v)
{
    switch (v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STR:
        return v.str->len > 0;
    default:
        return value_length(r, v) != 0;
    }
}

int64_t value_length(struct jinja_run *r, struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
        return 0;
    case V_STR:
        jinja_charge(r, v.str->len);
        return (int64_t)str_chars(v.str);
    case V_LIST:
    case V_TUPLE:
        return v.list->n;
    case V_ITER:
        return v.list->generator ? -1 : (int64_t)v.list->n;
    case V_DICT:
        return v.dict->n;
    default:
        return -1;
    }
}

static bool lists_equal(struct jinja_run *r, const struct list *a, const struct list *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (!value_equal(r, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool dicts_equal(struct jinja_run *r, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct value *other = dict_get(r, b, a->entries[i].key);

        if (!other || !value_equal(r, a->entries[i].value, *other))
            return false;
    }
    return true;
}

bool value_equal(struct jinja_run *r, struct value a, struct value b)
{
    bool same;

    jinja_charge(r, 0);
    if (value_is_number(a) && value_is_number(b))
        return a.type == V_FLOAT || b.type == V_FLOAT ? value_real(a) == value_real(b)
                                                      : value_whole(a) == value_whole(b);
    if (a.type != b.type)
        return false;
    if (a.type == V_STR) {
        jinja_charge(r, a.str->len == b.str->len ? a.str->len : 0);
        return str_equal(a.str, b.str);
    }
    if (a.type == V_NONE || a.type == V_UNDEFINED)
        return true;
    if (a.type == V_FUNCTION || a.type == V_MACRO || a.type == V_LOOP || a.type == V_NAMESPACE ||
        a.type == V_ITER)
        return a.list == b.list;
    jinja_enter(r);
    same = a.type == V_DICT ? dicts_equal(r, a.dict, b.dict) : lists_equal(r, a.list, b.list);
    jinja_leave(r);
    return same;
}

int value_compare(struct jinja_run *r, struct value a, struct value b, const char *op)
{
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED)
        value_fail_undefined(r, a.type == V_UNDEFINED ? a : b);
    jinja_charge(r, 0);
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type != V_FLOAT && b.type != V_FLOAT)
            return (value_whole(a) > value_whole(b)) - (value_whole(a) < value_whole(b));
        return (value_real(a) > value_real(b)) - (value_real(a) < value_real(b));
    }
    if (a.type == V_STR && b.type == V_STR) {
        jinja_charge(r, a.str->len);
        return str_compare(a.str, b.str);
    }
    if (a.type != b.type || !value_is_sequence(a))
        jinja_fail(r, "TypeError: '%s' not supported between instances of '%s' and '%s'", op,
                   value_type_name(a.type), value_type_name(b.type));
    for (uint32_t i = 0; i < a.list->n && i < b.list->n; i++) {
        if (value_equal(r, a.list->items[i], b.list->items[i]))
            continue;
        jinja_enter(r);
        int order = value_compare(r, a.list->items[i], b.list->items[i], op);
        jinja_leave(r);
        return order;
    }
    return (a.list->n > b.list->n) - (a.list->n < b.list->n);
}

bool value_contains(struct jinja_run *r, struct value all, struct value v)
{
    const struct list *l;

    switch (all.type) {
    case V_UNDEFINED:
        return false;
    case V_STR:
        if (v.type != V_STR)
            jinja_fail(r, "TypeError: 'in <string>' requires string as left operand, not %s",
                       value_type_name(v.type));
        jinja_charge(r, all.str->len);
        return !v.str->len || memmem(all.str->data, all.str->len, v.str->data, v.str->len);
    case V_DICT:
        return dict_get(r, all.dict, v) != NULL;
    case V_LIST:
    case V_TUPLE:
    case V_ITER:
        l = all.list;
        for (uint32_t i = 0; i < l->n; i++)
            if (value_equal(r, l->items[i], v))
                return true;
        return false;
    default:
        jinja_fail(r, "TypeError: argument of type '%s' is not iterable",
                   value_type_name(all.type));
    }
}

bool value_relates(struct jinja_run *r, uint16_t op, struct value a, struct value b)
{
    switch (op) {
    case OP('=', '='):
        return value_equal(r, a, b);
    case OP('!', '='):
        return !value_equal(r, a, b);
    case OP('<', '='):
        return value_compare(r, a, b, "<=") <= 0;
    case OP('>', '='):
        return value_compare(r, a, b, ">=") >= 0;
    case OP(0, '<'):
        return value_compare(r, a, b, "<") < 0;
    case OP(0, '>'):
        return value_compare(r, a, b, ">") > 0;
    default:
        return value_contains(r, b, a) == (op == OP_IN);
    }
}

int64_t value_index(struct jinja_run *r, struct value v)
{
    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (v.type != V_INT && v.type != V_BOOL)
        jinja_fail(r, "TypeError: '%s' object cannot be interpreted as an integer",
                   value_type_name(v.type));
    return value_whole(v);
}

/* ---- elements */

static struct list *chars_of(struct jinja_run *r, const struct str *s)
{
    struct list *l = list_new(r, str_chars(s));
    uint32_t cp;

    for (size_t at = 0, len; at < s->len; at += len) {
        struct str *one;

        len = utf8_read(s->data + at, s->len - at, &cp);
        one = str_part(r, s, at, len);
        one->markup = false;
        list_push(r, l, value_str(one));
    }
    return l;
}

struct list *value_elements(struct jinja_run *r, struct value v)
{
    static struct list none;
    struct list *l;

    switch (v.type) {
    case V_UNDEFINED:
        return &none;
    case V_STR:
        return chars_of(r, v.str);
    case V_LIST:
    case V_TUPLE:
        return v.list;
    case V_ITER:
        if (v.list->used_up)
            return &none;
        v.list->used_up = v.list->generator;
        return v.list;
    case V_DICT:
        l = list_new(r, v.dict->n);
        for (uint32_t i = 0; i < v.dict->n; i++)
            list_push(r, l, v.dict->entries[i].key);
        return l;
    default:
        jinja_fail(r, "TypeError: '%s' object is not iterable", value_type_name(v.type));
    }
}

/* ---- attributes and indices */

struct value value_lacks(struct value v, const struct str *name)
{
    return (struct value){.type = V_UNDEFINED, .owner = v.type, .str = name};
}

struct value value_function(struct jinja_run *r, const struct builtin *b, struct value self)
{
    struct function *f = jinja_take(r, sizeof(*f));

    *f = (struct function){b, self};
    return (struct value){.type = V_FUNCTION, .function = f};
}

struct value value_attr(struct jinja_run *r, struct value v, const struct str *name)
{
    const struct value *found;
    const struct builtin *b;

    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (v.type == V_LOOP)
        return jinja_loop_attr(r, v, name);
    b = jinja_method(v.type, name);
    if (b)
        return value_function(r, b, v);
    if (v.type == V_DICT || v.type == V_NAMESPACE) {
        found = dict_get_str(r, v.dict, name);
        if (found)
            return *found;
    }
    return value_lacks(v, name);
}

static struct value item_at(struct jinja_run *r, struct value v, struct value key)
{
    const int64_t n = value_length(r, v), asked = value_index(r, key);
    const int64_t i = asked < 0 ? asked + n : asked;
    size_t at;

    if (i < 0 || i >= n)
        return (struct value){.type = V_UNDEFINED, .owner = v.type, .by_index = true, .i = asked};
    if (v.type != V_STR)
        return v.list->items[i];
    at = str_offset(v.str, (size_t)i);
    uint32_t cp;
    return value_str(str_part(r, v.str, at, utf8_read(v.str->data + at, v.str->len - at, &cp)));
}

struct value value_item(struct jinja_run *r, struct value v, struct value key)
{
    const struct value *found;

    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (key.type == V_STR)
        jinja_charge(r, key.str->len);
    if (v.type == V_DICT) {
        found = key.type == V_LIST || key.type == V_DICT ? NULL : dict_get(r, v.dict, key);
        if (found)
            return *found;
    } else if ((value_is_sequence(v) || v.type == V_STR) &&
               (key.type == V_INT || key.type == V_BOOL)) {
        return item_at(r, v, key);
    }
    if (key.type == V_STR)
        return value_attr(r, v, key.str);
    if (key.type == V_INT)
        return (struct value){.type = V_UNDEFINED, .owner = v.type, .by_index = true, .i = key.i};
    return value_lacks(v, value_text(r, key));
}
