/* request.h - one request with all that it points at, filled from options or from JSON. */
#ifndef NVLLM_CLIENT_CTL_REQUEST_H
#define NVLLM_CLIENT_CTL_REQUEST_H

#include <getopt.h>
#include <jansson.h>

#include "client/ctl/ctl.h"

struct ctl_request {
    struct nvllm_request r; /* prepared by ctl_request_init() */
    struct nvllm_chat chat;
    struct ctl_piece *pieces; /* memory that r and chat point into */
    json_t *source;           /* whose strings r and chat point into; NULL: none */
};

void ctl_request_init(struct ctl_request *q);
void ctl_request_deinit(struct ctl_request *q);

/* Memory with the request's life, zeroed; ends the program when there is none, as getopt's users
 * expect of a small tool. */
void *ctl_request_take(struct ctl_request *q, size_t n, size_t size);

/* Appends a copy of an element to an array of the request: *array has *n of size bytes. */
void ctl_request_append(struct ctl_request *q, const void **array, size_t *n, const void *element,
                        size_t size);

/* A field of the protocol that holds one number or flag. */
struct ctl_field {
    const char *name; /* "max_tokens" */
    enum { FIELD_FLOAT, FIELD_COUNT, FIELD_U32, FIELD_FLAG } type;
    size_t offset; /* in struct nvllm_request */
};
extern const struct ctl_field ctl_fields[];
extern const size_t ctl_n_fields;

/* False, with *err, if the value does not fit the type. */
bool ctl_field_set_number(struct nvllm_request *r, const struct ctl_field *f, double value,
                          bool is_whole, struct nvllm_error *err);

/* The long options of all fields, for a command's table. */
#define CTL_FIELD_OPTIONS                                                                          \
    {"temperature", required_argument, NULL, OPT_FIELD},                                           \
        {"top-k", required_argument, NULL, OPT_FIELD},                                             \
        {"top-p", required_argument, NULL, OPT_FIELD},                                             \
        {"min-p", required_argument, NULL, OPT_FIELD},                                             \
        {"repetition-penalty", required_argument, NULL, OPT_FIELD},                                \
        {"presence-penalty", required_argument, NULL, OPT_FIELD},                                  \
        {"frequency-penalty", required_argument, NULL, OPT_FIELD},                                 \
        {"min-tokens", required_argument, NULL, OPT_FIELD},                                        \
        {"max-tokens", required_argument, NULL, OPT_FIELD},                                        \
        {"logprobs", required_argument, NULL, OPT_FIELD},                                          \
        {"n", required_argument, NULL, OPT_FIELD},                                                 \
        {"deadline-ms", required_argument, NULL, OPT_FIELD},                                       \
        {"ignore-eos", no_argument, NULL, OPT_FIELD},                                              \
        {"keep-special", no_argument, NULL, OPT_FIELD},                                            \
        {"seed", required_argument, NULL, OPT_FIELD},                                              \
        {"stop", required_argument, NULL, OPT_FIELD},                                              \
        {"stop-token-id", required_argument, NULL, OPT_FIELD},                                     \
        {"logit-bias", required_argument, NULL, OPT_FIELD},                                        \
        {"priority", required_argument, NULL, OPT_FIELD},                                          \
    {                                                                                              \
        "cache-salt", required_argument, NULL, OPT_FIELD                                           \
    }

/* Sets what one of these options says; ends the program when it is wrong. */
void ctl_request_option(struct ctl_request *q, const struct ctl *ctl, const char *option,
                        const char *value);

/* Adds a message to the chat, which becomes the input. */
void ctl_request_add_message(struct ctl_request *q, const char *role, struct nvllm_text content);

#endif
