/* model_files.h - the safetensors files of a model folder: model.safetensors, or the shards that
 * model.safetensors.index.json names, each opened once and its header checked.
 *
 * Owned by struct model. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_FILES_H
#define NVLLM_ENGINE_MODEL_MODEL_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"
#include "engine/model/safetensors.h"

#define MODEL_WEIGHTS_FILE "model.safetensors"
#define MODEL_INDEX_FILE   "model.safetensors.index.json"

enum {
    MODEL_MAX_SHARDS = 512,
    MODEL_INDEX_MAX_BYTES = 64 << 20,
};

struct model_file {
    char *name; /* as in the folder */
    int fd;     /* -1: could not be opened */
    uint64_t bytes;
    struct safetensors tensors;
};

struct model_files {
    struct model_file *all; /* [n] */
    size_t n;
    json_t *index; /* weight_map, or NULL for a single file */
};

/* *f is zero before. Notes every problem and keeps what is right; -ENOENT: there are no weights. */
void model_files_open(struct model_files *f, int dir, struct problems *p);
void model_files_close(struct model_files *f);

/* The file that has a tensor, or should have it; NULL: the index names none. A file without a
 * header could not be read, which has been noted: it may or may not have the tensor. */
const struct model_file *model_files_of(const struct model_files *f, const char *name);

#endif
