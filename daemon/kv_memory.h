/* kv_memory.h - how much memory the KV blocks get: what cache.kv_memory says, in the backend's
 * words. */
#ifndef NVLLMD_KV_MEMORY_H
#define NVLLMD_KV_MEMORY_H

#include <stdbool.h>

#include "daemon/options.h"
#include "engine/backend.h"

/* auto on a device is KV_MEMORY_DEVICE_PERCENT of what is free once the weights are loaded; on the
 * CPU, where others need memory too, a quarter of what is available now, at most KV_MEMORY_CPU_MAX.
 */
enum {
    KV_MEMORY_DEVICE_PERCENT = 90,
    KV_MEMORY_CPU_SHARE = 4,
    KV_MEMORY_CPU_MIN = 16 << 20,
};
#define KV_MEMORY_CPU_MAX (UINT64_C(2) << 30)

void kv_memory_choose(struct backend_options *out, const struct option_memory *wanted, bool device);

#endif
