/* json.h - reads requests from JSON, and prints JSON. */
#ifndef NVLLM_CLIENT_CTL_JSON_H
#define NVLLM_CLIENT_CTL_JSON_H

#include <jansson.h>

#include "client/ctl/ctl.h"
#include "client/ctl/request.h"

/* Parses one JSON value of any type; NULL with *err. */
json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err);

/* Text that may be invalid UTF-8 as a JSON string: each invalid sequence becomes U+FFFD, as with
 * Python's errors="replace". */
json_t *ctl_json_text(const char *data, size_t n);

/* A number; null for infinities and NaN. */
json_t *ctl_json_number(double value);

json_t *ctl_json_ids(const int32_t *ids, size_t n);

/* An array of token ids; the request owns the memory. */
bool ctl_json_read_ids(struct ctl_request *q, const char *name, const json_t *value,
                       const int32_t **ids, size_t *n, struct nvllm_error *err);

/* {messages, tools, add_generation_prompt, enable_thinking}: fills q->chat, which points into
 * value. Any other member is an error that names it. */
bool ctl_json_read_chat(struct ctl_request *q, const json_t *value, struct nvllm_error *err);

/* A line of a batch: its input, and fields that override those from options. Keeps value. */
bool ctl_json_read_request(struct ctl_request *q, json_t *value, struct nvllm_error *err);

/* Prints the value on one line. Consumes it. False if that fails or value is NULL. */
bool ctl_json_print(int fd, json_t *value);

/* The same to stdout; the exit code. */
int ctl_json_answer(json_t *value);

/* {code, message}, with field if one is wrong, and limit and limit_value if one was hit. */
json_t *ctl_json_error(const struct nvllm_error *err);

#endif
