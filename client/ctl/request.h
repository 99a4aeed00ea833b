/* request.h - one request and the memory it points into, filled from options or from JSON. */
#ifndef NVLLM_CLIENT_CTL_REQUEST_H
#define NVLLM_CLIENT_CTL_REQUEST_H

#include <jansson.h>

#include "client/ctl/ctl.h"

struct ctl_request {
    struct nvllm_request r; /* prepared by ctl_request_init() */
    struct nvllm_chat chat;
    void **pieces; /* [n_pieces] memory that r and chat point into */
    size_t n_pieces;
    json_t *source; /* owns strings that r and chat point into; NULL: none */
};

void ctl_request_init(struct ctl_request *q);
void ctl_request_deinit(struct ctl_request *q);

/* Memory that is freed with the request, zeroed; ends the program if there is none. */
void *ctl_request_take(struct ctl_request *q, size_t n, size_t size);

/* Appends a copy of an element to an array of the request: *array holds *n of size bytes. */
void ctl_request_append(struct ctl_request *q, const void **array, size_t *n, const void *element,
                        size_t size);

/* A field of the protocol that is one number or flag. */
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

/* False if no priority has the name. */
bool ctl_request_set_priority(struct ctl_request *q, const char *name);

/* Sets the fields that the command's options give; ends the program for a wrong value. */
void ctl_request_take_options(struct ctl_request *q, const struct ctl *ctl);

/* Adds a message to the chat, and makes the chat the input. */
void ctl_request_add_message(struct ctl_request *q, const char *role, struct nvllm_text content);

#endif
