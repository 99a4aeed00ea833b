/* json.h - JSON to requests and back. */
#ifndef NVLLM_CLIENT_CTL_JSON_H
#define NVLLM_CLIENT_CTL_JSON_H

#include <jansson.h>

#include "client/ctl/ctl.h"
#include "client/ctl/request.h"

/* One JSON value, any kind; NULL with *err. */
json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err);

/* Text that may not be UTF-8 as a JSON string: what is no character becomes U+FFFD, one for each
 * longest beginning of a character, as Python's errors="replace" does. */
json_t *ctl_json_text(const char *data, size_t n);

/* A number, or null for what JSON cannot say: infinities and NaN. */
json_t *ctl_json_number(double value);

json_t *ctl_json_ids(const int32_t *ids, size_t n);

/* An array of token ids; the memory is the request's. */
bool ctl_json_read_ids(struct ctl_request *q, const char *name, const json_t *value,
                       const int32_t **ids, size_t *n, struct nvllm_error *err);

/* {messages, tools, add_generation_prompt, enable_thinking}: fills q->chat, which points into
 * value: keep it. Any other member is refused by name. */
bool ctl_json_read_chat(struct ctl_request *q, const json_t *value, struct nvllm_error *err);

/* A line of a batch, its input and its fields; over those that q has from options. Keeps value. */
bool ctl_json_read_request(struct ctl_request *q, json_t *value, struct nvllm_error *err);

/* The value on one line. Consumes it. False when it could not be written, or is NULL. */
bool ctl_json_print(int fd, json_t *value);

/* {code, message}, field where one is to blame, limit and limit_value where one was run into. */
json_t *ctl_json_error(const struct nvllm_error *err);

#endif
