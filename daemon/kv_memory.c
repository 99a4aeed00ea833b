/* kv_memory.c - see kv_memory.h. */
#include "daemon/kv_memory.h"

#include <inttypes.h>
#include <stdio.h>

/* MemAvailable, or 0 where the kernel does not say. */
static uint64_t available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    uint64_t kib = 0;
    char line[128];

    if (!f)
        return 0;
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    fclose(f);
    return kib * 1024;
}

/* The control group's limit, which systemd sets with MemoryMax, or UINT64_MAX. */
static uint64_t group_bytes(void)
{
    char path[512] = "", line[512];
    uint64_t limit = UINT64_MAX, own;
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (!f)
        return limit;
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "0::%400s", path) == 1)
            break;
    fclose(f);
    snprintf(line, sizeof(line), "/sys/fs/cgroup%s/memory.max", path);
    f = fopen(line, "re");
    if (!f)
        return limit;
    if (fscanf(f, "%" SCNu64, &own) == 1)
        limit = own;
    fclose(f);
    return limit;
}

void kv_memory_choose(struct backend_options *out, const struct option_memory *wanted, bool device)
{
    uint64_t available, group;

    out->kv_bytes = wanted->bytes;
    out->kv_fraction = wanted->fraction;
    if (wanted->bytes || wanted->fraction > 0)
        return;
    if (device) {
        out->kv_fraction = KV_MEMORY_DEVICE_PERCENT / 100.0;
        return;
    }
    available = available_bytes();
    group = group_bytes();
    if (group < available)
        available = group;
    out->kv_bytes = available / KV_MEMORY_CPU_SHARE;
    if (out->kv_bytes > KV_MEMORY_CPU_MAX)
        out->kv_bytes = KV_MEMORY_CPU_MAX;
    if (out->kv_bytes < KV_MEMORY_CPU_MIN)
        out->kv_bytes = KV_MEMORY_CPU_MIN;
}
