/* machine.c - see machine.h. */
#include "engine/util/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/util/must.h"

enum { FILL_BYTES = 8 << 20 }; /* of a region_fill() */

/* Reads the n values of the format from the first line of a file that has them. */
__attribute__((format(scanf, 3, 4))) static bool scan(const char *path, int n, const char *format,
                                                      ...)
{
    FILE *f = fopen(path, "re");
    bool found = false;
    char line[512];

    while (f && !found && fgets(line, sizeof(line), f)) {
        va_list ap;

        va_start(ap, format);
        found = vsscanf(line, format, ap) == n;
        va_end(ap);
    }
    if (f)
        fclose(f);
    return found;
}

/* Calls visit with the folder of this process's control group and of each above it. */
static void each_cgroup(void (*visit)(const char *folder, void *ctx), void *ctx)
{
    char path[PATH_MAX] = "/sys/fs/cgroup";
    const size_t root = strlen(path);
    char *slash;

    /* version 2 is the line "0::/path" */
    if (!scan("/proc/self/cgroup", 1, "0::%511[^\n]", path + root) || path[root] != '/')
        return;
    while ((slash = strrchr(path + root, '/'))) {
        if (slash[1])
            visit(path, ctx);
        *slash = '\0';
    }
    visit(path, ctx);
}

static void lower_to_quota(const char *folder, void *ctx)
{
    char path[PATH_MAX + 16];
    int *cores = ctx;
    long long quota, period;

    snprintf(path, sizeof(path), "%s/cpu.max", folder);
    if (!scan(path, 2, "%lld %lld", &quota, &period) || quota <= 0 || period <= 0)
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
    return cores < 1 ? 1 : cores;
}

void machine_cpu_name(char out[64])
{
    if (!scan("/proc/cpuinfo", 1, "model name : %63[^\n]", out))
        strcpy(out, "CPU");
}

static void lower_to_max(const char *folder, void *ctx)
{
    char path[PATH_MAX + 16];
    uint64_t *bytes = ctx, max, used = 0;

    snprintf(path, sizeof(path), "%s/memory.max", folder);
    if (!scan(path, 1, "%" SCNu64, &max))
        return; /* "max", or no such controller */
    snprintf(path, sizeof(path), "%s/memory.current", folder);
    (void)scan(path, 1, "%" SCNu64, &used);
    max = max > used ? max - used : 0;
    if (max < *bytes)
        *bytes = max;
}

uint64_t machine_memory(void)
{
    uint64_t bytes = UINT64_MAX, kib;

    if (scan("/proc/meminfo", 1, "MemAvailable: %" SCNu64, &kib))
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
bool memory_populate(void *at, size_t bytes)
{
    return madvise(at, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINTR;
}

void region_empty(struct region *r)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = r->bytes / page * page;

    must(whole == 0 || madvise(r->base, whole, MADV_DONTNEED) == 0);
    r->filled = 0;
}

bool region_fill(struct region *r)
{
    const size_t left = r->bytes - r->filled, n = left < FILL_BYTES ? left : FILL_BYTES;

    if (n == 0)
        return false;
    r->filled += memory_populate(r->base + r->filled, n) ? n : left;
    return true;
}
