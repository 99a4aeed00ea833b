/* chat_tojson.c - the tojson of templates: Python's json.dumps(value, ensure_ascii=False).
 *
 * Keys keep their order; floats have the fewest digits that read back as the same value. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat_impl.h"
#include "engine/util/must.h"

enum { DIGITS_MAX = 17 };

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

/* Writes value as digits d.ddd * 10^exponent and returns the exponent. The decimal point of the
 * locale makes no difference. */
static int split_digits(char digits[DIGITS_MAX + 1], double value, int n_digits)
{
    char spelled[64];
    int n = 0;
    const char *e;

    snprintf(spelled, sizeof(spelled), "%.*e", n_digits - 1, value);
    e = strchr(spelled, 'e');
    must(e != NULL);
    for (const char *c = spelled; c < e && n < n_digits; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    digits[n] = '\0';
    return atoi(e + 1);
}

/* The value of such digits. */
static double join_digits(const char *digits, int exponent)
{
    char spelled[64];

    snprintf(spelled, sizeof(spelled), "%se%d", digits, exponent - (int)strlen(digits) + 1);
    return strtod(spelled, NULL);
}

/* The next larger number with as many digits; false if there is none. */
static bool next_digits(char *digits)
{
    for (size_t i = strlen(digits); i-- > 0;) {
        if (digits[i] != '9') {
            digits[i]++;
            return true;
        }
        digits[i] = '0';
    }
    return false;
}

/* The fewest digits that read back as value, which is positive. The nearest number of n digits
 * usually does; just above a power of two, where floats are denser below than above, it may be the
 * next larger one. */
static int shortest_digits(char digits[DIGITS_MAX + 1], double value)
{
    int exponent = 0;

    for (int n = 1; n <= DIGITS_MAX; n++) {
        exponent = split_digits(digits, value, n);
        if (join_digits(digits, exponent) == value)
            break;
        if (next_digits(digits) && join_digits(digits, exponent) == value)
            break;
    }
    return exponent;
}

/* Python's repr: an exponent below 1e-4 and from 1e16 on, else a point and a digit. */
static void write_real(struct chat_writer *w, double value)
{
    char digits[DIGITS_MAX + 1], out[64];
    int exponent, n;

    if (signbit(value)) {
        put(w, "-");
        value = -value;
    }
    if (value == 0) {
        put(w, "0.0");
        return;
    }
    exponent = shortest_digits(digits, value);
    n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16)
        snprintf(out, sizeof(out), "%c%s%se%c%02d", digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(out, sizeof(out), "0.%.*s%s", -exponent - 1, "000", digits);
    else if (n <= exponent + 1)
        snprintf(out, sizeof(out), "%s%.*s.0", digits, exponent + 1 - n, "000000000000000");
    else
        snprintf(out, sizeof(out), "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    put(w, out);
}

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
        chat_write_json(w, value);
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
        chat_write_json(w, value);
    }
    put(w, "]");
}

/* The parser bounds the depth of recursion. */
void chat_write_json(struct chat_writer *w, const json_t *value)
{
    char number[32];

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
    case JSON_INTEGER:
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        put(w, number);
        break;
    case JSON_REAL:
        write_real(w, json_real_value(value));
        break;
    case JSON_TRUE:
        put(w, "true");
        break;
    case JSON_FALSE:
        put(w, "false");
        break;
    case JSON_NULL:
        put(w, "null");
        break;
    }
}
