/* fake_module.c - a backend module that opens nothing: for the choice of backends. Built twice,
 * once with another interface number. */
#include "engine/backend.h"

extern const struct backend_ops nvllm_backend;

__attribute__((visibility("default"))) const struct backend_ops nvllm_backend = {
    .abi = FAKE_ABI,
    .name = "fake",
};
