/* chat_tojson.c - the tojson of templates: Python's json.dumps(value, ensure_ascii=False).
 *
 * Keys keep their order; floats have the fewest digits that read back as the same value. */
#include <errno.h>
#include <fenv.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat_impl.h"
#include "engine/util/json_util.h"

enum {
    DIGITS_MAX = 17, /* tell any two floats apart */
    REAL_BYTES = 40,
};

static void put(struct chat_writer *w, const char *s)
{
    chat_write_text(w, (struct text){s, strlen(s)});
}

static void write_string(struct chat_writer *w, const char *s, size_t len)
{
    static const char *const named[0x20] = {
        ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r"};
    size_t done = 0;

    put(w, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        char escape[8];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (c >= 0x20)
            snprintf(escape, sizeof(escape), "\\%c", c);
        else if (named[c])
            snprintf(escape, sizeof(escape), "%s", named[c]);
        else
            snprintf(escape, sizeof(escape), "\\u%04x", c);
        chat_write_text(w, (struct text){s + done, i - done});
        put(w, escape);
        done = i + 1;
    }
    chat_write_text(w, (struct text){s + done, len - done});
    put(w, "\"");
}

/* Writes value, which is positive, as d.ddde+XX with the fewest digits that read back as value, and
 * returns their number. The nearest number of n digits usually does; just above a power of two,
 * where floats are denser below than above, it may be the next larger one. */
static int shortest(char out[REAL_BYTES], double value)
{
    for (int n = 1; n < DIGITS_MAX; n++) {
        snprintf(out, REAL_BYTES, "%.*e", n - 1, value);
        if (strtod(out, NULL) == value)
            return n;
        fesetround(FE_UPWARD);
        snprintf(out, REAL_BYTES, "%.*e", n - 1, value);
        fesetround(FE_TONEAREST);
        if (strtod(out, NULL) == value)
            return n;
    }
    snprintf(out, REAL_BYTES, "%.*e", DIGITS_MAX - 1, value);
    return DIGITS_MAX;
}

/* Python's repr: an exponent below 1e-4 and from 1e16 on, else a point and a digit at least. */
static void write_real(struct chat_writer *w, double value)
{
    char out[REAL_BYTES];
    int n_digits, exponent, n_decimals;

    if (signbit(value))
        put(w, "-");
    value = fabs(value);
    n_digits = shortest(out, value);
    exponent = atoi(strchr(out, 'e') + 1);
    n_decimals = n_digits - 1 - exponent;
    if (exponent >= -4 && exponent < 16)
        snprintf(out, sizeof(out), "%.*f", n_decimals > 1 ? n_decimals : 1, value);
    put(w, out);
}

static void write_value(struct chat_writer *w, const json_t *value);

static void write_object(struct chat_writer *w, const json_t *object)
{
    const char *key, *separator = "";
    json_t *value;

    put(w, "{");
    json_object_foreach((json_t *)object, key, value)
    {
        put(w, separator);
        write_string(w, key, strlen(key));
        put(w, ": ");
        write_value(w, value);
        separator = ", ";
    }
    put(w, "}");
}

static void write_array(struct chat_writer *w, const json_t *array)
{
    size_t i;
    json_t *value;

    put(w, "[");
    json_array_foreach(array, i, value)
    {
        if (i)
            put(w, ", ");
        write_value(w, value);
    }
    put(w, "]");
}

/* The parser bounds the depth of recursion. */
static void write_value(struct chat_writer *w, const json_t *value)
{
    char scalar[32];
    size_t len;

    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(w, value);
        break;
    case JSON_ARRAY:
        write_array(w, value);
        break;
    case JSON_STRING:
        write_string(w, json_string_value(value), json_string_length(value));
        break;
    case JSON_REAL:
        write_real(w, json_real_value(value));
        break;
    default: /* jansson writes the others alike; 0 bytes: no memory */
        len = json_dumpb(value, scalar, sizeof(scalar), JSON_ENCODE_ANY);
        w->error = len ? w->error : -ENOMEM;
        chat_write_text(w, (struct text){scalar, len});
        break;
    }
}

void chat_write_json(struct chat_writer *w, struct text json, bool bare_strings)
{
    json_t *value;

    if (json_parse(&value, "", json.data, json.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)) {
        w->error = -ENOMEM;
        return;
    }
    if (bare_strings && json_is_string(value))
        chat_write_text(w, (struct text){json_string_value(value), json_string_length(value)});
    else
        write_value(w, value);
    json_decref(value);
}
