/* json_mutator.c - see fuzz.h. Bytes changed at random are mostly no JSON any more: then only its
 * parser is tried. Here one value of the tree is dropped, doubled, or becomes another. */
#include <jansson.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

static const double numbers[] = {0,          -1,         1,          2,   16,   255,  256, 65536,
                                 2147483647, 4294967296, 1000000007, 0.5, -0.0, 1e-9, 1e9, 1e308};
static const char *const words[] = {"",           "BF16",
                                    "F32",        "ByteLevel",
                                    "linear",     "default",
                                    "a",          "\xe2\x82\xac",
                                    "<|im_end|>", "Qwen2ForCausalLM"};

/* Where a value hangs. */
struct place {
    json_t *parent; /* an object or an array */
    const char *key;
    size_t index;
};

struct walk {
    unsigned int state;
    unsigned int n_seen;
    struct place chosen;
};

static unsigned int draw(struct walk *w, unsigned int below)
{
    w->state = w->state * 1664525u + 1013904223u;
    return (w->state >> 8) % below;
}

/* Each value of the tree is chosen with the same chance. */
static void choose(struct walk *w, json_t *parent)
{
    const char *key;
    json_t *value;
    size_t i;

    if (json_is_object(parent)) {
        json_object_foreach(parent, key, value)
        {
            if (draw(w, ++w->n_seen) == 0)
                w->chosen = (struct place){parent, key, 0};
            choose(w, value);
        }
    } else if (json_is_array(parent)) {
        json_array_foreach(parent, i, value)
        {
            if (draw(w, ++w->n_seen) == 0)
                w->chosen = (struct place){parent, NULL, i};
            choose(w, value);
        }
    }
}

static json_t *value_at(const struct place *p)
{
    return p->key ? json_object_get(p->parent, p->key) : json_array_get(p->parent, p->index);
}

static json_t *another(struct walk *w, json_t *root, const json_t *old)
{
    switch (draw(w, 8)) {
    case 0:
        return json_is_integer(old)
                   ? json_integer((json_int_t)((unsigned long long)json_integer_value(old) +
                                               (draw(w, 2) ? 1ull : -1ull)))
                   : json_null();
    case 1:
        return json_integer((json_int_t)numbers[draw(w, 11)]);
    case 2:
        return json_real(numbers[draw(w, sizeof(numbers) / sizeof(*numbers))]);
    case 3:
        return json_string(words[draw(w, sizeof(words) / sizeof(*words))]);
    case 4:
        return draw(w, 2) ? json_true() : json_false();
    case 5:
        return draw(w, 2) ? json_array() : json_object();
    case 6:
        return json_pack("[O]", old);
    default: {
        struct walk other = {.state = w->state};

        choose(&other, root);
        return json_deep_copy(value_at(&other.chosen));
    }
    }
}

static void change(struct walk *w, json_t *root)
{
    struct place p;
    json_t *value;

    choose(w, root);
    p = w->chosen;
    switch (p.parent ? draw(w, 6) : 6) {
    case 0: /* drop it */
        if (p.key)
            json_object_del(p.parent, p.key);
        else
            json_array_remove(p.parent, p.index);
        break;
    case 1: /* double it */
        value = json_deep_copy(value_at(&p));
        if (p.key)
            json_object_set_new(p.parent, words[draw(w, sizeof(words) / sizeof(*words))], value);
        else
            json_array_insert_new(p.parent, p.index, value);
        break;
    case 6: /* there is none */
        break;
    default:
        value = another(w, root, value_at(&p));
        if (p.key)
            json_object_set_new(p.parent, p.key, value);
        else
            json_array_set_new(p.parent, p.index, value);
    }
}

size_t json_mutate(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct walk w = {.state = seed};
    json_t *root = NULL;
    size_t n = 0;

    if (draw(&w, 4))
        root = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    if (root) {
        change(&w, root);
        n = json_dumpb(root, (char *)data, max_size, JSON_COMPACT | JSON_ENCODE_ANY);
        json_decref(root);
    }
    /* What did not fit was not written whole, and may have spoilt what was there: never mind. */
    return n && n <= max_size ? n : LLVMFuzzerMutate(data, size, max_size);
}
