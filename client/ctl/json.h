/* json.h - parses and prints JSON. The program ends with a message where jansson finds no memory:
 * see main(). */
#ifndef NVLLM_CLIENT_CTL_JSON_H
#define NVLLM_CLIENT_CTL_JSON_H

#include <jansson.h>

#include "client/ctl/ctl.h"

/* Parses one JSON value of any type; NULL with *err. */
json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err);

/* Text that may be invalid UTF-8 as a JSON string: each invalid sequence becomes U+FFFD, as with
 * Python's errors="replace". */
json_t *ctl_json_text(struct nvllm_text text);

/* A number; null for infinities and NaN. */
json_t *ctl_json_number(double value);

json_t *ctl_json_ids(const int32_t *ids, size_t n);

/* Prints the value on one line, or ends the program. Consumes it. */
void ctl_json_print(int fd, json_t *value);

/* The same to stdout; gives EXIT_OK. */
int ctl_json_answer(json_t *value);

/* {code, message}, with field if one is wrong, and limit and limit_value if one was hit. */
json_t *ctl_json_error(const struct nvllm_error *err);

#endif
