/* json.h - reads requests from JSON, and prints JSON. */
#ifndef NVLLM_CLIENT_CTL_JSON_H
#define NVLLM_CLIENT_CTL_JSON_H

#include <jansson.h>

#include "client/ctl/ctl.h"
#include "client/ctl/request.h"

/* Parses one JSON value of any type; NULL with *err. */
json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err);

/* Text that may not be UTF-8 as a JSON string: invalid bytes become U+FFFD, one for each truncated
 * character or stray byte, like Python's errors="replace". */
json_t *ctl_json_text(const char *data, size_t n);

/* A number, or null for infinities and NaN, which JSON does not have. */
json_t *ctl_json_number(double value);

json_t *ctl_json_ids(const int32_t *ids, size_t n);

/* Reads an array of token ids into memory of the request. */
bool ctl_json_read_ids(struct ctl_request *q, const char *name, const json_t *value,
                       const int32_t **ids, size_t *n, struct nvllm_error *err);

/* Reads {messages, tools, add_generation_prompt, enable_thinking} into q->chat, which points into
 * value: keep it. Any other member is an error. */
bool ctl_json_read_chat(struct ctl_request *q, const json_t *value, struct nvllm_error *err);

/* Reads a line of a batch, input and fields, over those that options have set. Keeps value. */
bool ctl_json_read_request(struct ctl_request *q, json_t *value, struct nvllm_error *err);

/* Prints the value on one line, and consumes it. False: it could not be written, or is NULL. */
bool ctl_json_print(int fd, json_t *value);

/* {code, message}, with field, limit and limit_value where the error has them. */
json_t *ctl_json_error(const struct nvllm_error *err);

#endif
