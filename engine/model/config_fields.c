/* config_fields.c - see config_fields.h. */
#include "engine/model/config_fields.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/util/json_util.h"

const json_t *field(const struct fields *f, const char *key, unsigned types, const char *wanted)
{
    const json_t *value = json_object_get(f->object, key);

    if (!value || json_is_null(value)) {
        if (f->required)
            PROBLEM(f, key, -EINVAL, "is missing");
        return NULL;
    }
    if (types >> json_typeof(value) & 1)
        return value;
    PROBLEM(f, key, -EINVAL, "must be %s, not %s", wanted, json_type_name(value));
    return NULL;
}

const json_t *field_flag(const struct fields *f, const char *key)
{
    return field(f, key, 1u << JSON_TRUE | 1u << JSON_FALSE, "true or false");
}

const json_t *field_object(const struct fields *f, const char *key)
{
    return field(f, key, 1u << JSON_OBJECT, "an object");
}

const char *field_text(const struct fields *f, const char *key)
{
    return json_string_value(field(f, key, 1u << JSON_STRING, "a string"));
}

bool field_int(int32_t *out, const struct fields *f, const char *key, int32_t min, int32_t max)
{
    const json_t *value = field(f, key, 1u << JSON_INTEGER, "an integer");
    const json_int_t i = json_integer_value(value);

    if (!value)
        return false;
    if (i < min || i > max) {
        PROBLEM(f, key, -EINVAL, "%" JSON_INTEGER_FORMAT " is not in %d .. %d", i, min, max);
        return false;
    }
    *out = (int32_t)i;
    return true;
}

bool field_real(double *out, const struct fields *f, const char *key, double min, double max)
{
    const json_t *value = field(f, key, 1u << JSON_INTEGER | 1u << JSON_REAL, "a number");
    const double x = json_number_value(value);

    if (!value)
        return false;
    if (!isfinite(x) || x < min || x > max) {
        PROBLEM(f, key, -EINVAL, "%g is not in %g .. %g", x, min, max);
        return false;
    }
    *out = x;
    return true;
}

void field_float(float *out, const struct fields *f, const char *key, double min, double max)
{
    double x;

    if (field_real(&x, f, key, min, max))
        *out = (float)x;
}

void field_need_text(const struct fields *f, const char *key, const char *only)
{
    const char *text = field_text(f, key);

    if (text && strcmp(text, only) != 0)
        PROBLEM(f, key, -ENOTSUP, "\"%.80s\" is not supported; only \"%s\" is", text, only);
}

void field_need_int(const struct fields *f, const char *key, int32_t only)
{
    const json_t *value = field(f, key, 1u << JSON_INTEGER, "an integer");
    const json_int_t i = json_integer_value(value);

    if (value && i != only)
        PROBLEM(f, key, -ENOTSUP, "%" JSON_INTEGER_FORMAT " is not supported; only %d is", i, only);
}

void field_need_flag(const struct fields *f, const char *key, bool only)
{
    const json_t *flag = field_flag(f, key);

    if (flag && json_is_true(flag) != only)
        PROBLEM(f, key, -ENOTSUP, "%s is not supported", only ? "false" : "true");
}
