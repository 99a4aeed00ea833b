/* json_numbers.c - the spellings of numbers within bounds, as regular expressions: digit by digit.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_impl.h"

/* With these no number is beyond a double's range, which many readers of JSON do not take. */
enum { MAX_WHOLE = 200, MAX_POWER = 2 };

enum { MAX_DIGITS = 400 }; /* of bounds */

/* With it ten times what a division leaves is no overflow. */
static const uint64_t MAX_DIVISOR = 1000000000000000000;

/* A bound's magnitude, as decimal digits before and behind the point. */
struct decimal {
    char whole[MAX_DIGITS],
        part[MAX_DIGITS]; /* "0" or more, no zeros at its begin; none at its end */
    bool negative;
};

static int32_t digits(struct regex_pool *p, char lo, char hi)
{
    return regex_chars(p, &(struct regex_range){(uint32_t)lo, (uint32_t)hi}, 1);
}

static int32_t text(struct regex_pool *p, const char *s)
{
    return regex_text(p, (struct text){s, strlen(s)});
}

static int32_t any_digits(struct regex_pool *p, int32_t min, int32_t max)
{
    return regex_repeat(p, digits(p, '0', '9'), min, max);
}

/* 0, or digits that do not begin with it. */
static int32_t any_whole(struct regex_pool *p)
{
    return regex_or2(p, regex_char(p, '0'),
                     regex_concat(p, digits(p, '1', '9'), any_digits(p, 0, REGEX_INFINITE)));
}

/* A point and digits, or nothing. */
static int32_t any_part(struct regex_pool *p)
{
    return regex_repeat(p, regex_concat(p, regex_char(p, '.'), any_digits(p, 1, REGEX_INFINITE)), 0,
                        1);
}

/* Digits, as many as those of s, that as a number are above it (or below). */
static int32_t beyond(struct regex_pool *p, const char *s, bool above)
{
    const int32_t n = (int32_t)strlen(s);
    int32_t term = REGEX_NONE;

    for (int32_t i = n - 1; i >= 0; i--) { /* equal up to i, and there beyond */
        const char lo = above ? (char)(s[i] + 1) : '0', hi = above ? '9' : (char)(s[i] - 1);
        int32_t here = lo <= hi
                           ? regex_concat(p, digits(p, lo, hi), any_digits(p, n - 1 - i, n - 1 - i))
                           : REGEX_NONE;

        term = regex_or2(p, here, regex_concat(p, regex_char(p, (uint32_t)s[i]), term));
    }
    return term;
}

/* Digits behind a point that are above those of s: any number of them. */
static int32_t part_above(struct regex_pool *p, const char *s, bool equal)
{
    const int32_t rest = any_digits(p, 0, REGEX_INFINITE);
    int32_t term;

    if (!*s) /* equal so far: zeros alone are equal to it */
        return equal ? rest
                     : regex_concat(p, regex_repeat(p, regex_char(p, '0'), 0, REGEX_INFINITE),
                                    regex_concat(p, digits(p, '1', '9'), rest));
    term = regex_concat(p, regex_char(p, (uint32_t)*s), part_above(p, s + 1, equal));
    return *s < '9' ? regex_or2(p, term, regex_concat(p, digits(p, (char)(*s + 1), '9'), rest))
                    : term;
}

/* The same below them, which where they end before s they are, too. */
static int32_t part_below(struct regex_pool *p, const char *s, bool equal)
{
    const int32_t rest = any_digits(p, 0, REGEX_INFINITE);
    int32_t term;

    if (!*s)
        return equal ? regex_repeat(p, regex_char(p, '0'), 0, REGEX_INFINITE) : REGEX_NONE;
    term = regex_or2(p, REGEX_EMPTY,
                     regex_concat(p, regex_char(p, (uint32_t)*s), part_below(p, s + 1, equal)));
    return *s > '0' ? regex_or2(p, term, regex_concat(p, digits(p, '0', (char)(*s - 1)), rest))
                    : term;
}

/* Behind a whole part that is equal to the bound's: a point and such digits, or nothing. */
static int32_t part_beyond(struct regex_pool *p, const struct decimal *d, bool above, bool equal)
{
    const int32_t some = any_digits(p, 1, REGEX_INFINITE);
    const int32_t digits_there =
        above ? part_above(p, d->part, equal) : part_below(p, d->part, equal);
    const int32_t there = regex_concat(p, regex_char(p, '.'), regex_and2(p, digits_there, some));
    const bool none = above ? equal && !*d->part : equal || *d->part; /* no digits are zeros */

    return none ? regex_or2(p, REGEX_EMPTY, there) : there;
}

/* Magnitudes above a bound (or below), or equal to it. */
static int32_t magnitudes(struct regex_pool *p, const struct decimal *d, bool above, bool equal)
{
    const int32_t n = (int32_t)strlen(d->whole);
    const int32_t same_length =
        regex_concat(p, regex_and2(p, any_whole(p), beyond(p, d->whole, above)), any_part(p));
    const int32_t same = regex_concat(p, text(p, d->whole), part_beyond(p, d, above, equal));
    const int32_t others = above ? any_digits(p, n, REGEX_INFINITE) : any_digits(p, 0, n - 1);
    int32_t length = REGEX_NONE;

    if (above)
        length = regex_concat(p, digits(p, '1', '9'), others);
    else if (n > 1)
        length = regex_and2(p, any_whole(p), any_digits(p, 1, n - 1));
    return regex_or2(p, regex_concat(p, length, any_part(p)), regex_or2(p, same_length, same));
}

/* ---- bounds */

int json_real_text(char *out, size_t size, double x)
{
    int digits = 15; /* zeros at their end are not written */

    do
        snprintf(out, size, "%.*g", digits, x);
    while (strtod(out, NULL) != x && digits++ < 17);
    return digits;
}

/* The digits of a number, which count as work; false: too many. */
static bool read_decimal(struct compiler *c, struct decimal *d, const json_t *value)
{
    char all[2 * MAX_DIGITS], *point;
    size_t n;

    if (json_is_integer(value)) {
        snprintf(all, sizeof(all), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else {
        const double x = json_real_value(value);
        const int precision = json_real_text(all, sizeof(all), x);

        if (fabs(x) >= 1e300 || (x != 0 && fabs(x) < 1e-300))
            return false;
        if (strchr(all, 'e')) { /* the same digits without an exponent */
            const int exponent = atoi(strchr(all, 'e') + 1);
            const int places = precision - 1 - exponent;

            snprintf(all, sizeof(all), "%.*f", places > 0 ? places : 0, x);
        }
    }
    d->negative = all[0] == '-';
    memmove(all, all + d->negative, strlen(all + d->negative) + 1);
    point = strchr(all, '.');
    n = point ? (size_t)(point - all) : strlen(all);
    if (n >= MAX_DIGITS || (point && strlen(point) > MAX_DIGITS))
        return false;
    memcpy(d->whole, all, n);
    d->whole[n] = '\0';
    snprintf(d->part, sizeof(d->part), "%s", point ? point + 1 : "");
    for (n = strlen(d->part); n > 0 && d->part[n - 1] == '0'; n--)
        d->part[n - 1] = '\0';
    return json_step(c, 4 * (strlen(d->whole) + n));
}

static bool is_zero(const struct decimal *d)
{
    return strcmp(d->whole, "0") == 0 && !*d->part;
}

/* Numbers, signs and all, on one side of a bound. */
static int32_t side(struct regex_pool *p, const struct decimal *d, bool above, bool equal)
{
    const int32_t any = regex_concat(p, any_whole(p), any_part(p)), minus = regex_char(p, '-');
    const struct decimal zero = {.whole = "0"};
    const int32_t negative = regex_concat(p, minus, magnitudes(p, &zero, true, false));

    if (is_zero(d)) {
        if (above)
            return equal ? any : magnitudes(p, d, true, false);
        return equal ? regex_or2(p, negative, magnitudes(p, &zero, false, true)) : negative;
    }
    if (d->negative == above) { /* between it and infinity all of the other sign, too */
        const int32_t own = regex_and2(p, magnitudes(p, d, false, equal), any);

        return above
                   ? regex_or2(p, any,
                               regex_concat(p, minus,
                                            regex_and2(p, own, magnitudes(p, &zero, true, false))))
                   : regex_or2(p, negative, own);
    }
    return above ? magnitudes(p, d, true, equal)
                 : regex_concat(p, minus, magnitudes(p, d, true, equal));
}

static int32_t all_numbers(struct regex_pool *p, bool integer, bool exponent)
{
    const int32_t sign = regex_repeat(p, regex_char(p, '-'), 0, 1);
    const int32_t more = any_digits(p, 0, MAX_WHOLE - 1), nonzero = digits(p, '1', '9');
    const int32_t whole = regex_or2(p, regex_char(p, '0'), regex_concat(p, nonzero, more));
    const struct regex_range e[] = {{'E', 'E'}, {'e', 'e'}}, signs[] = {{'+', '+'}, {'-', '-'}};
    int32_t term = regex_concat(p, sign, whole), power;

    if (integer) /* -0 is none that anybody wants */
        return regex_and2(p, term, regex_not(p, text(p, "-0")));
    term = regex_concat(p, term, any_part(p));
    if (!exponent)
        return term;
    power = regex_concat(p, regex_chars(p, e, 2),
                         regex_concat(p, regex_repeat(p, regex_chars(p, signs, 2), 0, 1),
                                      any_digits(p, 1, MAX_POWER)));
    return regex_concat(p, term, regex_repeat(p, power, 0, 1));
}

/* With zeros for a fraction, too. */
static int32_t whole_numbers(struct regex_pool *p)
{
    const int32_t zeros = regex_repeat(p, regex_char(p, '0'), 1, REGEX_INFINITE);
    const int32_t part = regex_concat(p, regex_char(p, '.'), zeros);

    return regex_concat(p, regex_repeat(p, regex_char(p, '-'), 0, 1),
                        regex_concat(p, any_whole(p), regex_repeat(p, part, 0, 1)));
}

/* The multipleOf of a schema in units of its last digit, of which `places` are behind the point; 0:
 * it is none, or above `most`, which is noted. */
static uint64_t read_divisor(struct compiler *c, const json_t *value, uint64_t most, size_t *places)
{
    char all[2 * MAX_DIGITS + 1];
    struct decimal d;
    uint64_t units;

    if (!read_decimal(c, &d, value) || d.negative || is_zero(&d)) {
        json_refuse(c, -EINVAL, "multipleOf", "must be above 0");
        return 0;
    }
    snprintf(all, sizeof(all), "%s%s", d.whole, d.part);
    units = strtoull(all, NULL, 10); /* the largest number where it is too large */
    if (units > most) {
        json_refuse(c, -ENOTSUP, "multipleOf", "more than %" PRIu64 " units of its last digit",
                    most);
        return 0;
    }
    *places = strlen(d.part);
    return units;
}

/* Multiples, read digit by digit: what is left by a division by it. */
static int32_t multiples(struct compiler *c, const json_t *value)
{
    size_t places;
    const uint64_t units = read_divisor(c, value, REGEX_MAX_MULTIPLE, &places);

    return units ? regex_multiples(&c->g->lexer.regex, (int32_t)units, (int32_t)places)
                 : REGEX_NONE;
}

/* The same of one number. */
static bool is_multiple(struct compiler *c, const json_t *value, const json_t *divisor)
{
    size_t places;
    const uint64_t units = read_divisor(c, divisor, MAX_DIVISOR, &places);
    struct decimal d;
    uint64_t left = 0;

    if (units == 0)
        return false;
    if (!read_decimal(c, &d, value)) {
        json_refuse(c, -ENOTSUP, "enum", "a number has too many digits");
        return false;
    }
    for (const char *s = d.whole; *s; s++)
        left = (left * 10 + (uint64_t)(*s - '0')) % units;
    for (size_t i = 0, n = strlen(d.part); i < places; i++)
        left = (left * 10 + (i < n ? (uint64_t)(d.part[i] - '0') : 0)) % units;
    return left == 0 && strlen(d.part) <= places;
}

/* One bound of a schema, to which draft 4 says with a flag whether it is excluded. */
static int32_t bound(struct compiler *c, const json_t *schema, bool above, bool exclusive)
{
    static const char *const names[2][2] = {{"maximum", "exclusiveMaximum"},
                                            {"minimum", "exclusiveMinimum"}};
    const char *name = names[above][exclusive];
    const json_t *value = json_object_get(schema, name);
    const bool flag = json_is_true(json_object_get(schema, names[above][1]));
    struct decimal d;

    if (!value || (exclusive && json_is_boolean(value)))
        return REGEX_ALL;
    if (!read_decimal(c, &d, value)) {
        json_refuse(c, -ENOTSUP, name, "has too many digits");
        return REGEX_ALL;
    }
    return side(&c->g->lexer.regex, &d, above, !exclusive && !flag);
}

/* One number in all spellings without an exponent. */
static int32_t equal_to(struct compiler *c, const json_t *value)
{
    struct regex_pool *p = &c->g->lexer.regex;
    struct decimal d;
    int32_t zero;

    if (!read_decimal(c, &d, value)) {
        json_refuse(c, -ENOTSUP, "enum", "a number has too many digits");
        return REGEX_NONE;
    }
    (void)json_step(c, 20 + 4 * strlen(d.part)); /* for terms of each digit, twice */
    if (!is_zero(&d))
        return regex_and2(p, side(p, &d, true, true), side(p, &d, false, true));
    zero = regex_repeat(p, regex_char(p, '0'), 1, REGEX_INFINITE);
    return regex_concat(p, regex_repeat(p, regex_char(p, '-'), 0, 1),
                        regex_concat(p, regex_char(p, '0'),
                                     regex_repeat(p, regex_concat(p, regex_char(p, '.'), zero), 0,
                                                  1)));
}

/* What a schema of JSON_NONE_OF leaves. */
static int32_t others(struct compiler *c, const json_t *no)
{
    struct regex_pool *p = &c->g->lexer.regex;
    const json_t *values = json_object_get(no, "enum"), *v;
    int32_t term = REGEX_NONE;
    size_t i;

    if (!values)
        return regex_not(p, json_numbers(c, &no, 1, JSON_BIT_INTEGER | JSON_BIT_REAL));
    json_array_foreach(values, i, v)
    {
        if (json_is_number(v) && c->code == 0)
            term = regex_or2(p, term, equal_to(c, v));
    }
    return regex_not(p, term);
}

int32_t json_numbers(struct compiler *c, const json_t *const *schemas, size_t n, unsigned types)
{
    struct regex_pool *p = &c->g->lexer.regex;
    int32_t term = REGEX_ALL;

    for (size_t i = 0; i < n; i++) {
        const json_t *multiple = json_object_get(schemas[i], "multipleOf");
        const json_t *no = json_object_get(schemas[i], JSON_NONE_OF);

        for (int k = 0; k < 4; k++)
            term = regex_and2(p, term, bound(c, schemas[i], k & 1, k >> 1));
        if (no)
            term = regex_and2(p, term, others(c, no));
        if (multiple)
            term = regex_and2(p, term, multiples(c, multiple));
    }
    if (!(types & JSON_BIT_INTEGER))
        term = regex_and2(p, term, regex_not(p, whole_numbers(p)));
    return regex_and2(p, term, all_numbers(p, !(types & JSON_BIT_REAL), term == REGEX_ALL));
}

/* An integer beside a double. */
static int order_of(json_int_t i, double x)
{
    json_int_t whole;

    if (x >= 0x1p63 || x < -0x1p63)
        return x > 0 ? -1 : 1;
    whole = (json_int_t)x;
    if (i != whole)
        return i < whole ? -1 : 1;
    return ((double)whole > x) - ((double)whole < x);
}

int json_number_order(const json_t *a, const json_t *b)
{
    const json_int_t i = json_integer_value(a), k = json_integer_value(b);
    const double x = json_real_value(a), y = json_real_value(b);

    if (json_is_integer(a) && json_is_integer(b))
        return (i > k) - (i < k);
    if (json_is_integer(a))
        return order_of(i, y);
    return json_is_integer(b) ? -order_of(k, x) : (x > y) - (x < y);
}

bool json_number_holds(struct compiler *c, const json_t *schema, const json_t *value)
{
    const json_t *lo = json_object_get(schema, "minimum"), *hi = json_object_get(schema, "maximum");
    const json_t *above = json_object_get(schema, "exclusiveMinimum");
    const json_t *below = json_object_get(schema, "exclusiveMaximum");
    const json_t *multiple = json_object_get(schema, "multipleOf");

    return (!lo || json_number_order(value, lo) >= json_is_true(above)) &&
           (!hi || json_number_order(hi, value) >= json_is_true(below)) &&
           (!json_is_number(above) || json_number_order(value, above) > 0) &&
           (!json_is_number(below) || json_number_order(below, value) > 0) &&
           (!multiple || is_multiple(c, value, multiple));
}
