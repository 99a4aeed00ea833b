/* drive.h - what programs that drive a backend on a device share. */
#ifndef NVLLM_TESTS_GPU_DRIVE_H
#define NVLLM_TESTS_GPU_DRIVE_H

#include <cuda_runtime_api.h>

#include "engine/model/model.h"
#include "tests/gpu/common.h"
#include "tests/tools/backend_driver.h"

/* So many ranks, on as many devices as there are. */
static inline void divide_among_devices(struct backend_options *o, int tp_size)
{
    int n_devices = 1;

    ranks_may_share_devices();
    (void)cudaGetDeviceCount(&n_devices);
    o->tp_size = o->n_devices = tp_size;
    for (int i = 0; i < tp_size; i++)
        o->devices[i] = i % n_devices;
}

/* Has a plain model quantized as it is loaded: to "fp8" or "int4"; "bf16" or NULL: as it is. */
static inline void quantize_to(struct model *model, const char *type)
{
    int dtype = 0;
    struct err e;

    if (!type || strcmp(type, "bf16") == 0)
        return;
    while (dtype < N_DTYPES && strcmp(dtype_info[dtype].name, type) != 0)
        dtype++;
    if (dtype == N_DTYPES) {
        fprintf(stderr, "no type of weights is called %s\n", type);
        exit(2);
    }
    err_must(model_quantize(model, (enum dtype)dtype, &e), &e);
}

/* What keys and values are kept as: "bf16" or "fp8"; NULL: the backend's own choice. */
static inline enum kv_dtype kv_dtype_of(const char *type)
{
    if (!type)
        return KV_DTYPE_AUTO;
    if (strcmp(type, "bf16") != 0 && strcmp(type, "fp8") != 0) {
        fprintf(stderr, "no type of keys is called %s\n", type);
        exit(2);
    }
    return type[0] == 'f' ? KV_DTYPE_FP8 : KV_DTYPE_BF16;
}

/* The bundled model: below a folder of test data, or the tree's where that is NULL. */
static inline struct model *open_tiny_model(const char *data_folder)
{
    struct model *model;
    char path[4096];
    struct err e;

    snprintf(path, sizeof(path), "%s/nvllm-tiny", data_folder ? data_folder : TEST_MODEL_DIR "/..");
    err_must(model_open(&model, path, &e), &e);
    return model;
}

#endif
