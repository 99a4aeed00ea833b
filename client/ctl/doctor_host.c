/* doctor_host.c - devices, memory, the kernel's limits. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/ctl/doctor.h"

enum {
    FEW_DESCRIPTORS = 256,
    FEW_WAITING = 128, /* connections that wait to be accepted */
};

/* ---- devices */

static bool read_word(char *out, size_t n, const char *path)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(out, (int)n, f) != NULL;

    if (f)
        fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok;
}

/* NVIDIA display and 3D controllers on the PCI bus. */
static int count_gpus(void)
{
    DIR *folder = opendir("/sys/bus/pci/devices");
    struct dirent *entry;
    int n = 0;

    while (folder && (entry = readdir(folder)) != NULL) {
        char path[400], vendor[32], class[32];

        snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/vendor", entry->d_name);
        if (!read_word(vendor, sizeof(vendor), path) || strcmp(vendor, "0x10de") != 0)
            continue;
        snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/class", entry->d_name);
        n += read_word(class, sizeof(class), path) && strncmp(class, "0x03", 4) == 0;
    }
    if (folder)
        closedir(folder);
    return n;
}

static void check_devices(struct doctor *d)
{
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    char version[200];
    int n = count_gpus();
    bool ok = true;

    if (access(nodes[0], F_OK) != 0) {
        if (n == 0)
            doctor_say(d, DOCTOR_OK, "device", NULL,
                       "there is no NVIDIA GPU: nvllmd runs on the CPU");
        else
            doctor_say(d, DOCTOR_WRONG, "device",
                       doctor_as_root("sudo sh -c 'modprobe nvidia && nvidia-modprobe -u -c 0'"),
                       "%d NVIDIA GPU%s found, but no %s: the driver is not loaded", n,
                       n == 1 ? "" : "s", nodes[0]);
        return;
    }
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        if (access(nodes[i], F_OK) != 0) {
            doctor_say(d, DOCTOR_WRONG, "device", doctor_as_root("sudo nvidia-modprobe -u -c 0"),
                       "%s: %s", nodes[i], strerror(errno));
            ok = false;
        } else {
            ok = doctor_path(d, "device", &d->user, nodes[i], 6) && ok;
        }
    }
    if (!read_word(version, sizeof(version), "/proc/driver/nvidia/version"))
        snprintf(version, sizeof(version), "NVIDIA driver of unknown version");
    if (ok)
        doctor_say(d, DOCTOR_OK, "device", NULL, "%s", version);
}

/* ---- memory */

/* A field of /proc/meminfo, in bytes; 0 if it is missing. */
static uint64_t memory_info(const char *field)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[200];
    size_t n = strlen(field);
    uint64_t kib = 0;

    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, field, n) == 0 && line[n] == ':')
            kib = strtoull(line + n + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib << 10;
}

static uint64_t read_number(const char *path)
{
    char word[64];

    return read_word(word, sizeof(word), path) ? strtoull(word, NULL, 10) : 0;
}

/* Weights pass through the host's memory, and stay there on the CPU backend. */
static void check_memory(struct doctor *d)
{
    uint64_t free_bytes = memory_info("MemAvailable"), total = memory_info("MemTotal");
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max");
    bool on_cpu = access("/dev/nvidiactl", F_OK) != 0;

    if (limit > 0 && limit < total)
        total = limit;
    if (on_cpu && d->weight_bytes > total)
        doctor_say(d, DOCTOR_WRONG, "memory", doctor_edit(d),
                   "%.1f MiB of weights, but only %.1f MiB of memory",
                   (double)d->weight_bytes / (1 << 20), (double)total / (1 << 20));
    else if (on_cpu && !d->is_running && d->weight_bytes > free_bytes)
        doctor_say(d, DOCTOR_WRONG, "memory", "ps -eo pid,rss,comm --sort=-rss | head",
                   "%.1f MiB of weights, but only %.1f MiB of memory available",
                   (double)d->weight_bytes / (1 << 20), (double)free_bytes / (1 << 20));
    else
        doctor_say(d, DOCTOR_OK, "memory", NULL, "%.1f MiB of %.1f MiB available",
                   (double)free_bytes / (1 << 20), (double)total / (1 << 20));
    if (read_number("/proc/sys/vm/overcommit_memory") == 2)
        doctor_say(d, DOCTOR_NOTE, "memory", doctor_as_root("sudo sysctl vm.overcommit_memory=0"),
                   "overcommit is off: the whole KV cache counts as used at once");
}

/* ---- limits */

static void check_limits(struct doctor *d)
{
    uint64_t waiting = read_number("/proc/sys/net/core/somaxconn");
    struct rlimit files = {0};
    bool ok = true;

    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < FEW_DESCRIPTORS) {
        doctor_say(d, DOCTOR_WRONG, "limits",
                   doctor_as_root("sudo prlimit --pid $$ --nofile=65536:65536"),
                   "at most %llu open files: each client needs one",
                   (unsigned long long)files.rlim_max);
        ok = false;
    }
    if (waiting > 0 && waiting < FEW_WAITING) {
        doctor_say(d, DOCTOR_WRONG, "limits", doctor_as_root("sudo sysctl net.core.somaxconn=4096"),
                   "net.core.somaxconn is %" PRIu64 ": clients that connect at once are refused",
                   waiting);
        ok = false;
    }
    if (ok)
        doctor_say(d, DOCTOR_OK, "limits", NULL, "%llu open files, %" PRIu64 " waiting connections",
                   (unsigned long long)files.rlim_max, waiting);
}

void doctor_host(struct doctor *d)
{
    check_devices(d);
    check_memory(d);
    check_limits(d);
}
