/* drive.h - what programs that drive a backend on a device share. */
#ifndef NVLLM_TESTS_GPU_DRIVE_H
#define NVLLM_TESTS_GPU_DRIVE_H

#include "engine/model/model.h"
#include "tests/gpu/common.h"
#include "tests/tools/backend_driver.h"

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
