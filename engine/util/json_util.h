/* json_util.h - reads and writes JSON with jansson, and checks what was read.
 *
 * No state; any thread. */
#ifndef NVLLM_ENGINE_UTIL_JSON_UTIL_H
#define NVLLM_ENGINE_UTIL_JSON_UTIL_H

#include <jansson.h>
#include <stddef.h>

#include "engine/util/err.h"

/* json_loadb, with the reason of a failure: -EINVAL "what: not JSON: line …", or -ENOMEM. The first
 * call of this or json_text sets jansson's allocator. */
int json_parse(json_t **out, const char *what, const char *text, size_t bytes, size_t flags,
               struct err *e);

/* The same; where an integer is too large for 64 bits, all are reals. */
int json_parse_large(json_t **out, const char *what, const char *text, size_t bytes, size_t flags,
                     struct err *e);

/* json_dumps, but NULL whenever memory runs out; to be freed. */
char *json_text(const json_t *value, size_t flags);

/* Parses one object without duplicate keys. file is for the message. */
int json_object_parse(json_t **out, const char *file, const char *text, size_t bytes,
                      struct err *e);

/* The same for a file of at most max_bytes in the folder dir. */
int json_object_read(json_t **out, int dir, const char *file, size_t max_bytes, struct err *e);

/* Checks v against a pattern, JSON with ' for ". {…} is an object with these members and no others,
 * unless it has '...?': '*'; one whose key ends in ? may be absent or null. [x, '...'] is an array
 * of x, [x, y] an array of two; false itself; '*' any value; 'an object', 'an array', 'a string',
 * 'true or false' and texts with several of these any of the types; another text itself. A message,
 * returned with `code`, begins with the path of the value, which begins with `path`: a member's key
 * follows after a dot, unless the path is empty or ends with a space. */
int json_match(const json_t *v, const char *pattern, const char *path, int code, struct err *e);

/* What a value is, for messages: "a string"; "missing" for NULL. */
const char *json_type_name(const json_t *value);

#endif
