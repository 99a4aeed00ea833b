/* kv_memory.h - how much memory the KV blocks get: what cache.kv_memory says, in the backend's
 * words. */
#ifndef NVLLMD_KV_MEMORY_H
#define NVLLMD_KV_MEMORY_H

#include <stdbool.h>

#include "daemon/options.h"
#include "engine/backend.h"

/* auto on a device is KV_MEMORY_DEVICE_PERCENT of what is free once the weights are loaded. On the
 * CPU, where others need memory too and pages must be made before the start is over, it is as much
 * as the weights take, KV_MEMORY_CPU_BASE at least, but never over a quarter of what is available
 * now: a small model is ready in a tenth of a second, a larger one has room in proportion. */
enum {
    KV_MEMORY_DEVICE_PERCENT = 90,
    KV_MEMORY_CPU_SHARE = 4,
    KV_MEMORY_CPU_BASE = 512 << 20,
    KV_MEMORY_CPU_MIN = 16 << 20,
};

void kv_memory_choose(struct backend_options *out, const struct option_memory *wanted, bool device,
                      const char *model_folder);

#endif
