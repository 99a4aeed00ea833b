/* model_impl.h - a model folder as model.c and model_check.c know it. For these alone. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_IMPL_H
#define NVLLM_ENGINE_MODEL_MODEL_IMPL_H

#include <time.h>

#include "engine/model/quantization.h"
#include "engine/model/safetensors.h"

enum { MODEL_MAX_FILES = 512 };

struct model_file {
    const char *name; /* in the folder */
    int fd;           /* -1: could not be opened */
    uint64_t bytes;
    struct timespec written; /* when it was opened */
    struct safetensors tensors;
};

struct model {
    struct model_config config;
    struct quantization quant; /* config.quant, where there is one */
    struct embedder embedder;
    struct model_defaults defaults;
    struct model_file files[MODEL_MAX_FILES];
    size_t n_files;
    json_t *index; /* weight_map, or NULL for a single file */
    bool bare;     /* names of tensors lack MODEL_PREFIX, as of models saved without an LM head */
    /* of the tensors that the configuration needs */
    size_t n_tensors;
    uint64_t n_elements; /* the model's parameters */
    uint64_t bytes;      /* as stored */
    const char *dtype;   /* for the report */
};

/* The file that has a tensor, or should have it; NULL: the index names none. A file without a
 * header could not be read, which has been noted: it may or may not have the tensor. */
const struct model_file *model_file_of(const struct model *m, const char *stored_name);

/* A tensor's name in the files. */
const char *model_stored_name(const struct model *m, const char *name);
/* By that name; NULL: the files have no such tensor. */
struct tensor *model_find(const struct model *m, const char *stored_name);

/* Looks for each tensor that the configuration needs in the files, and notes those that are missing
 * or of another shape or type. */
void model_check_tensors(struct model *m, struct problems *p);

/* What the model is, for people. weights_right: there is no problem with the files. */
void model_report(const struct model *m, const struct problems *p, bool shape_known,
                  bool weights_right);

#endif
