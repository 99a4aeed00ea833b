/* safetensors.h - the header of one safetensors file: eight bytes of length, little-endian, then a
 * JSON object of tensors, then their data without holes.
 *
 * Needs only the header's bytes and the file's size. After the checks every tensor lies inside the
 * file and no two share a byte. No state; any thread. */
#ifndef NVLLM_ENGINE_MODEL_SAFETENSORS_H
#define NVLLM_ENGINE_MODEL_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"
#include "engine/model/model.h"

#define MODEL_WEIGHTS_FILE "model.safetensors"
#define MODEL_INDEX_FILE   "model.safetensors.index.json" /* names the shards */

enum {
    SAFETENSORS_LENGTH_BYTES = 8,
    SAFETENSORS_MAX_HEADER = 100000000, /* the format's own limit */
};

struct safetensors {
    json_t *header; /* owns the names */
    size_t n;
    struct tensor *tensors; /* [n] by name, as strcmp orders; file is -1 */
};

/* How many bytes of JSON follow the first eight; file is for the message. */
int safetensors_header_bytes(size_t *out, const char *file, const void *first, uint64_t file_bytes,
                             struct err *e);

/* Checks a whole header; json is what follows the first eight bytes. -EINVAL, -ENOTSUP, -ENOMEM. */
int safetensors_parse(struct safetensors *out, const char *file, const char *json,
                      size_t json_bytes, uint64_t file_bytes, struct err *e);
void safetensors_deinit(struct safetensors *s);

/* The beginning of a file with these tensors, whose data follow in this order: *text, to be freed,
 * is the length and the header. Sets their bytes and offsets; name, type, rank and shape are given.
 * -ENOMEM. */
int safetensors_header(char **text, size_t *bytes, struct tensor *tensors, size_t n);

/* By name, or NULL. */
struct tensor *safetensors_find(const struct safetensors *s, const char *name);

#endif
