/* fields.h - a request of nvllmd out of the JSON that a client has sent: what both endpoints that
 * generate text have in common.
 *
 * Fields that nobody knows are ignored, as clients send many. Those that are known and cannot be
 * done are refused by name, unless their value has no effect. */
#ifndef NVLLM_CLIENT_OPENAI_FIELDS_H
#define NVLLM_CLIENT_OPENAI_FIELDS_H

#include <jansson.h>

#include "client/openai/gateway.h"

struct intake {
    json_t *root;
    struct nvllm_request r; /* points into root and pieces */
    struct nvllm_chat chat;
    const char *model; /* NULL: whichever there is */
    bool stream, include_usage;
    struct api_error e; /* of what returned false */
    void **pieces;      /* [n_pieces] memory of the request */
    size_t n_pieces;
};

/* For json_set_alloc_funcs(): bounds the memory that one body may take. */
void *fields_alloc_json(size_t n);

/* Parses the body and reads the common fields. False: in->e says why. Deinit it in either case. */
bool intake_init(struct intake *in, const struct caller *caller, struct nvllm_text body);
void intake_deinit(struct intake *in);

/* Zeroed memory of the request; NULL, with in->e, if there is none. */
void *intake_take(struct intake *in, size_t n, size_t size);

/* ---- values; each false with in->e, where the value is none of its kind */

/* Refuses a flag that has this value, which would lose its meaning. */
bool fields_refuse_flag(struct intake *in, const char *name, bool value);

/* param: "messages[3].content". */
bool fields_wrong(struct intake *in, const char *param, const char *wanted);

/* Reads a value that is there and not null. */
typedef bool read_value(struct intake *in, const char *param, void *out, const json_t *value);
read_value read_text;   /* struct nvllm_text */
read_value read_flag;   /* bool */
read_value read_count;  /* int64_t, from 0 */
read_value read_object; /* struct nvllm_text: the JSON text of an object */

/* The elements of an array, each of size bytes, in memory of the request. */
bool read_array(struct intake *in, const char *param, void **out, size_t *n, size_t size,
                read_value *read, const json_t *value);

/* An id of a token: int32_t. */
read_value read_id;

/* A member of an object that is not null; NULL: there is none. */
const json_t *fields_get(const json_t *object, const char *name);

#endif
