/* kv_memory.c - see kv_memory.h. */
#include "daemon/kv_memory.h"

#include <dirent.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

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

/* Bytes of the folder's weight files, 0 where it cannot be read: the engine will say why. */
static uint64_t weight_bytes(const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *entry;
    uint64_t sum = 0;
    struct stat st;

    if (!d)
        return 0;
    while ((entry = readdir(d)))
        if (fnmatch("*.safetensors", entry->d_name, 0) == 0 &&
            fstatat(dirfd(d), entry->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_size;
    closedir(d);
    return sum;
}

void kv_memory_choose(struct backend_options *out, const struct option_memory *wanted, bool device,
                      const char *model_folder)
{
    uint64_t bytes, share, group;

    out->kv_bytes = wanted->bytes;
    out->kv_fraction = wanted->fraction;
    if (wanted->bytes || wanted->fraction > 0)
        return;
    if (device) {
        out->kv_fraction = KV_MEMORY_DEVICE_PERCENT / 100.0;
        return;
    }
    share = available_bytes();
    group = group_bytes();
    share = (group < share ? group : share) / KV_MEMORY_CPU_SHARE;
    bytes = weight_bytes(model_folder);
    if (bytes < KV_MEMORY_CPU_BASE)
        bytes = KV_MEMORY_CPU_BASE;
    if (bytes > share)
        bytes = share;
    out->kv_bytes = bytes < KV_MEMORY_CPU_MIN ? KV_MEMORY_CPU_MIN : bytes;
}
