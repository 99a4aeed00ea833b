/* config_fields.h - fields of the JSON objects in a model folder's configuration. Each problem
 * names file and field, and reading goes on, so that one pass finds all of them.
 *
 * No state; any thread. */
#ifndef NVLLM_ENGINE_MODEL_CONFIG_FIELDS_H
#define NVLLM_ENGINE_MODEL_CONFIG_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/util/err.h"

/* An object whose fields are read; prefix ends with a dot, or is "" at the root. */
struct fields {
    const char *file;
    const char *prefix;
    const json_t *object;
    struct problems *problems;
    bool required; /* absence is a problem */
};

/* Notes a problem with a field. */
#define PROBLEM(f, key, code, fmt, ...)                                                            \
    problems_add((f)->problems, code, "%s: %s%s: " fmt, (f)->file, (f)->prefix, key, ##__VA_ARGS__)

/* The value of a field, of one of the types, a bit 1 << json_type each. NULL: it is missing or
 * null, or of another type, which is noted. */
const json_t *field(const struct fields *f, const char *key, unsigned types, const char *wanted);
const json_t *field_flag(const struct fields *f, const char *key);
const json_t *field_object(const struct fields *f, const char *key);
const char *field_text(const struct fields *f, const char *key);

/* False: *out has not been written. */
bool field_int(int32_t *out, const struct fields *f, const char *key, int32_t min, int32_t max);
bool field_real(double *out, const struct fields *f, const char *key, double min, double max);
void field_float(float *out, const struct fields *f, const char *key, double min, double max);

/* Fields that may not have another value. */
void field_need_text(const struct fields *f, const char *key, const char *only);
void field_need_int(const struct fields *f, const char *key, int32_t only);
void field_need_flag(const struct fields *f, const char *key, bool only);

#endif
