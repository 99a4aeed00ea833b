/* cpu_machine.c - see cpu_machine.h. */
#include "engine/cpu/cpu_machine.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/cpu/cpu_pool.h"

enum { FILL_BYTES = 8 << 20 }; /* of a region_fill() */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The text after "key:" in a file of such lines; with key NULL the first line. */
static bool read_text(const char *path, const char *key, char *value, size_t size)
{
    const size_t n = key ? strlen(key) : 0;
    FILE *f = fopen(path, "re");
    char line[512];
    bool found = false;

    if (!f)
        return false;
    while (!found && fgets(line, sizeof(line), f)) {
        const char *text = line;

        if (key) {
            if (strncmp(line, key, n) != 0)
                continue;
            text += n + strspn(line + n, " \t");
            if (*text != ':')
                continue;
            text += 1 + strspn(text + 1, " \t");
        }
        line[strcspn(line, "\n")] = '\0';
        snprintf(value, size, "%s", text);
        found = true;
    }
    fclose(f);
    return found;
}

/* Calls visit with the folder of this process's control group and of each above it. */
static void each_cgroup(void (*visit)(const char *folder, void *ctx), void *ctx)
{
    char path[PATH_MAX], own[PATH_MAX - 32];

    /* version 2 is the line "0::/path" */
    if (!read_text("/proc/self/cgroup", "0", own, sizeof(own)) || strncmp(own, ":/", 2) != 0)
        return;
    for (;;) {
        char *slash;

        snprintf(path, sizeof(path), "/sys/fs/cgroup%s", own + 1);
        visit(path, ctx);
        slash = strrchr(own, '/');
        if (slash <= own + 1)
            break;
        *slash = '\0';
    }
    visit("/sys/fs/cgroup", ctx);
}

static void lower_to_quota(const char *folder, void *ctx)
{
    char path[PATH_MAX + 16], line[64];
    int *cores = ctx;
    long long quota, period;

    snprintf(path, sizeof(path), "%s/cpu.max", folder);
    if (!read_text(path, NULL, line, sizeof(line)) ||
        sscanf(line, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return;
    if ((quota + period - 1) / period < *cores)
        *cores = (int)((quota + period - 1) / period);
}

int machine_cores(void)
{
    cpu_set_t set;
    int cores = 0;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cores = CPU_COUNT(&set);
    if (cores < 1) /* there are more than a cpu_set_t holds */
        cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    each_cgroup(lower_to_quota, &cores);
    if (cores < 1)
        return 1;
    return cores < CPU_POOL_MAX_THREADS ? cores : CPU_POOL_MAX_THREADS;
}

void machine_cpu_name(char *out, size_t size)
{
    if (!read_text("/proc/cpuinfo", "model name", out, size))
        snprintf(out, size, "CPU");
}

static void lower_to_max(const char *folder, void *ctx)
{
    char path[PATH_MAX + 16], line[64];
    uint64_t *bytes = ctx, max, used;

    snprintf(path, sizeof(path), "%s/memory.max", folder);
    if (!read_text(path, NULL, line, sizeof(line)) || sscanf(line, "%" SCNu64, &max) != 1)
        return; /* "max", or no such controller */
    snprintf(path, sizeof(path), "%s/memory.current", folder);
    if (!read_text(path, NULL, line, sizeof(line)) || sscanf(line, "%" SCNu64, &used) != 1)
        used = 0;
    max = max > used ? max - used : 0;
    if (max < *bytes)
        *bytes = max;
}

uint64_t machine_memory(void)
{
    uint64_t bytes = UINT64_MAX, kib;
    char value[64];

    if (read_text("/proc/meminfo", "MemAvailable", value, sizeof(value)) &&
        sscanf(value, "%" SCNu64, &kib) == 1)
        bytes = kib * 1024;
    else if (sysconf(_SC_AVPHYS_PAGES) > 0)
        bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    each_cgroup(lower_to_max, &bytes);
    return bytes;
}

uint64_t machine_memory_total(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

void region_deinit(struct region *r)
{
    if (r->base)
        munmap(r->base, r->bytes);
    *r = (struct region){0};
}

int region_init(struct region *r, const char *what, size_t bytes, struct err *e)
{
    const uint64_t there = machine_memory();
    void *base;

    *r = (struct region){0};
    if (bytes > there)
        return err_set(e, -ENOMEM, "%s: %.1f MiB of memory needed, %.1f MiB available", what,
                       (double)bytes / 0x1p20, (double)there / 0x1p20);
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return err_set(e, -ENOMEM, "%s: the system refuses %.1f MiB of memory (%.1f MiB available)",
                       what, (double)bytes / 0x1p20, (double)there / 0x1p20);
    (void)madvise(base, bytes, MADV_HUGEPAGE); /* a system without huge pages works as well */
    *r = (struct region){.base = base, .bytes = bytes};
    return 0;
}

/* Populating does not change existing pages, to which other threads may be writing. Linux
 * before 5.14 lacks it and allocates pages when they are touched. */
bool region_fill(struct region *r)
{
    const size_t left = r->bytes - r->filled, n = left < FILL_BYTES ? left : FILL_BYTES;

    if (n == 0)
        return false;
    r->filled +=
        madvise(r->base + r->filled, n, MADV_POPULATE_WRITE) < 0 && errno != EINTR ? left : n;
    return true;
}
