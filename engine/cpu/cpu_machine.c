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

#include "engine/util/checked.h"

enum { HUGE_PAGE = 2 << 20 };

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

/* The first line of a file of this process's own control group, version 2: the line "0::/path". */
static bool read_cgroup(const char *file, char *value, size_t size)
{
    char own[PATH_MAX], path[PATH_MAX + 64];

    if (!read_text("/proc/self/cgroup", "0", own, sizeof(own)) || strncmp(own, ":/", 2) != 0)
        return false;
    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", own + 1, file);
    return read_text(path, NULL, value, size);
}

int machine_cores(void)
{
    long long quota, period;
    cpu_set_t set;
    char line[64];
    int cores = 0;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cores = CPU_COUNT(&set);
    if (cores < 1) /* there are more than a cpu_set_t holds */
        cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (read_cgroup("cpu.max", line, sizeof(line)) &&
        sscanf(line, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0 &&
        (quota + period - 1) / period < cores)
        cores = (int)((quota + period - 1) / period);
    return cores < 1 ? 1 : cores;
}

void machine_cpu_name(char *out, size_t size)
{
    if (!read_text("/proc/cpuinfo", "model name", out, size))
        snprintf(out, size, "CPU");
}

uint64_t machine_memory(void)
{
    uint64_t bytes = UINT64_MAX, kib, max, used;
    char value[64];

    if (read_text("/proc/meminfo", "MemAvailable", value, sizeof(value)) &&
        sscanf(value, "%" SCNu64, &kib) == 1)
        bytes = kib * 1024;
    else if (sysconf(_SC_AVPHYS_PAGES) > 0)
        bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (!read_cgroup("memory.max", value, sizeof(value)) || sscanf(value, "%" SCNu64, &max) != 1)
        return bytes; /* "max", or no such controller */
    if (read_cgroup("memory.current", value, sizeof(value)) &&
        sscanf(value, "%" SCNu64, &used) == 1)
        max = max > used ? max - used : 0;
    return max < bytes ? max : bytes;
}

uint64_t machine_memory_total(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

void region_deinit(struct region *r)
{
    if (r->mapping)
        munmap(r->mapping, r->mapping_bytes);
    *r = (struct region){0};
}

int region_init(struct region *r, const char *what, size_t bytes, struct err *e)
{
    const uint64_t there = machine_memory();
    const size_t huge = HUGE_PAGE;
    void *p = MAP_FAILED;

    *r = (struct region){.bytes = bytes};
    if (bytes > there)
        return err_set(e, -ENOMEM, "%s: %.1f MiB of memory needed, %.1f MiB available", what,
                       (double)bytes / 0x1p20, (double)there / 0x1p20);
    if (size_add(&r->mapping_bytes, bytes, 2 * huge)) {
        r->mapping_bytes &= ~(huge - 1);
        p = mmap(NULL, r->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                 0);
    }
    if (p == MAP_FAILED)
        return err_set(e, -ENOMEM, "%s: the system refuses %.1f MiB of memory (%.1f MiB available)",
                       what, (double)bytes / 0x1p20, (double)there / 0x1p20);
    r->mapping = p;
    r->base = (char *)(((uintptr_t)p + huge - 1) & ~(uintptr_t)(huge - 1));
    if (bytes >= huge) /* a system without huge pages works as well */
        (void)madvise(p, r->mapping_bytes, MADV_HUGEPAGE);
    return 0;
}
