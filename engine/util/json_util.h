/* json_util.h - reads JSON files and checked values from their objects. Each problem names file and
 * field, and reading continues, so that one pass reports all of them.
 *
 * Uses jansson; no state; any thread. */
#ifndef NVLLM_ENGINE_UTIL_JSON_UTIL_H
#define NVLLM_ENGINE_UTIL_JSON_UTIL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"

/* json_loadb, with the reason of a failure: -EINVAL "what: not JSON: line …", or -ENOMEM. The first
 * call of this or json_text sets jansson's allocator. */
int json_parse(json_t **out, const char *what, const char *text, size_t bytes, size_t flags,
               struct err *e);

/* json_dumps, but NULL whenever memory runs out; to be freed. */
char *json_text(const json_t *value, size_t flags);

/* Parses one object without duplicate keys. file is for the message. */
int json_object_parse(json_t **out, const char *file, const char *text, size_t bytes,
                      struct err *e);

/* The same for a file of at most max_bytes in the folder dir. */
int json_object_read(json_t **out, int dir, const char *file, size_t max_bytes, struct err *e);

/* Checks v against a pattern, JSON with ' for ". {…} is an object with these members and no others,
 * of which one whose key ends in ? may be absent or null; [x, '...'] an array of x; [x, y] an array
 * of two; false itself; '*' any value; 'an object', 'an array', 'a text' and 'true or false' any of
 * that type; another text itself. A message, returned with `code`, begins with the path of the
 * value, which begins with `path`: a member's key follows after a dot, unless the path is empty or
 * ends with a space. */
int json_match(const json_t *v, const char *pattern, const char *path, int code, struct err *e);

/* An object whose fields are read; prefix ends with a dot, or is "" at the root. */
struct fields {
    const char *file;
    const char *prefix;
    const json_t *object;
    struct problems *problems;
    bool required; /* absence is a problem */
};

enum field {
    FIELD_BAD = -1, /* a problem is noted */
    FIELD_OK = 0,
    FIELD_ABSENT = 1, /* missing or null */
};

/* What a value is, for messages: "a string"; "missing" for NULL. */
const char *json_type_name(const json_t *value);

/* Each reads a field, numbers within min .. max. *out is written on FIELD_OK only. */
enum field field_int(int32_t *out, const struct fields *f, const char *key, int32_t min,
                     int32_t max);
enum field field_real(double *out, const struct fields *f, const char *key, double min, double max);
enum field field_bool(bool *out, const struct fields *f, const char *key);
enum field field_text(const char **out, const struct fields *f, const char *key);
enum field field_object(const json_t **out, const struct fields *f, const char *key);

/* Notes a problem with a field; the text follows "file: prefix.key: ". */
__attribute__((format(printf, 4, 5))) void field_problem(const struct fields *f, const char *key,
                                                         int code, const char *fmt, ...);

#endif
