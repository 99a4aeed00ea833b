/* doctor_host.c - the model's files, and the host: devices, memory, limits. */
#include <errno.h>
#include <fnmatch.h>
#include <glob.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/show.h"

enum {
    LFS_POINTER_BYTES = 1024, /* no pointer is larger, and no weights are smaller */
    FEW_DESCRIPTORS = 256,
    FEW_WAITING = 128, /* connections that wait to be accepted */
};

/* ---- the model */

/* The folder that is given, that the daemon has, or that it is configured for. */
static bool find_folder(struct doctor *d)
{
    const char *given = d->given_model;
    char path[PATH_MAX];

    /* A given one is relative to the current folder, whatever the daemon has. */
    if (given && realpath(given, path))
        d->model = doctor_format(d, "%s", path);
    else if (given && given[0] != '/' && getcwd(path, sizeof(path)))
        d->model = doctor_format(d, "%s/%s", path, given);
    else if (given)
        d->model = given;
    if (!d->model && !d->has_config)
        doctor_say(d, NOTE, NULL, "%s does not exist, so the model is unknown: give --model DIR",
                   d->config);
    return d->model && d->model[0];
}

/* What is wrong with the folder, and whether there is room to download what is missing. */
static const char *check_command(struct doctor *d)
{
    const char *folder = doctor_quote(d, d->model);

    return doctor_format(d, "%s check --model %s; df -h %s   # then download it again",
                         d->nvllmd ? doctor_quote(d, d->nvllmd) : "nvllmd", folder, folder);
}

static bool check_model_file(struct doctor *d, const char *name)
{
    const char *path = doctor_format(d, "%s/%s", d->model, name);
    char start[64];
    struct stat st;

    if (strchr(name, '/'))
        return doctor_say(d, WRONG, check_command(d),
                          "the index names %s, which is no file beside it", name);
    if (stat(path, &st) < 0)
        return doctor_say(d, WRONG, check_command(d), "%s: %s", path, strerror(errno));
    if (!doctor_check_path(d, &d->user, path, R_OK))
        return false;
    if (st.st_size < LFS_POINTER_BYTES && doctor_read_start(start, sizeof(start), path) &&
        strncmp(start, "version https://git-lfs", 23) == 0)
        return doctor_say(d, WRONG,
                          doctor_format(d, "git -C %s lfs pull", doctor_quote(d, d->model)),
                          "%s is a pointer of Git LFS, not the file itself", path);
    if (strstr(name, ".safetensors") && !strstr(name, ".json"))
        d->weight_bytes += (uint64_t)st.st_size;
    return true;
}

/* Adds the files that the index names to the members of *files, each once. */
static bool read_index(struct doctor *d, json_t *files, const char *path)
{
    json_error_t where;
    json_t *index = json_load_file(path, 0, &where), *file;
    const char *tensor;

    if (!index)
        return doctor_say(d, WRONG, check_command(d), "%s: %s", path, where.text);
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file)
    {
        if (json_is_string(file))
            json_object_set_new(files, json_string_value(file), json_null());
    }
    json_decref(index);
    return true;
}

static bool check_files(struct doctor *d)
{
    static const char index[] = "model.safetensors.index.json";
    const char *path = doctor_format(d, "%s/%s", d->model, index), *name;
    json_t *files, *unused;
    bool ok = true;

    if (!doctor_check_path(d, &d->user, d->model, R_OK | X_OK))
        return false;
    files = json_pack("{snsn}", "config.json", "tokenizer.json");
    if (access(path, F_OK) < 0)
        json_object_set_new(files, "model.safetensors", json_null());
    else
        ok = check_model_file(d, index) && read_index(d, files, path);
    json_object_foreach(files, name, unused) ok = check_model_file(d, name) && ok;
    json_decref(files);
    return ok;
}

/* Whether the daemon may read all files is reported before what it finds in them. */
void doctor_check_model(struct doctor *d)
{
    if (!find_folder(d))
        doctor_say_model_findings(d);
    else if (d->model[0] != '/' && d->is_running)
        doctor_say(d, OK, NULL, "%s, relative to where nvllmd was started", d->model);
    else if (check_files(d) && doctor_say_model_findings(d) && access(d->model, R_OK | X_OK) == 0 &&
             d->weight_bytes > 0)
        doctor_say(d, OK, NULL, "%s: %.1f MiB of weights, readable by user %s", d->model,
                   show_mib(d->weight_bytes), d->user.name);
}

/* ---- devices */

/* NVIDIA display and 3D controllers on the PCI bus. */
static int count_gpus(void)
{
    glob_t devices = {0};
    char kind[128];
    int n = 0;

    glob("/sys/bus/pci/devices/*/modalias", 0, NULL, &devices);
    for (size_t i = 0; i < devices.gl_pathc; i++)
        n += doctor_read_start(kind, sizeof(kind), devices.gl_pathv[i]) &&
             fnmatch("pci:v000010DEd*bc03sc*", kind, 0) == 0;
    globfree(&devices);
    return n;
}

void doctor_check_devices(struct doctor *d)
{
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    char version[200];
    int n = count_gpus();
    bool ok = true;

    if (access(nodes[0], F_OK) != 0 && n == 0) {
        doctor_say(d, OK, NULL, "there is no NVIDIA GPU: nvllmd runs on the CPU");
        return;
    }
    if (access(nodes[0], F_OK) != 0) {
        doctor_say(d, WRONG, "sudo sh -c 'modprobe nvidia && nvidia-modprobe -u -c 0'",
                   "%d NVIDIA GPU%s found, but no %s: the driver is not loaded", n,
                   n == 1 ? "" : "s", nodes[0]);
        return;
    }
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        if (access(nodes[i], F_OK) != 0)
            ok = doctor_say(d, WRONG, "sudo nvidia-modprobe -u -c 0", "%s: %s", nodes[i],
                            strerror(errno));
        else
            ok = doctor_check_path(d, &d->user, nodes[i], 6) && ok;
    }
    if (!doctor_read_start(version, sizeof(version), "/proc/driver/nvidia/version"))
        snprintf(version, sizeof(version), "NVIDIA driver of unknown version");
    if (ok)
        doctor_say(d, OK, NULL, "%.*s", (int)strcspn(version, "\n"), version);
}

/* ---- memory */

/* The number behind a field of a file, or at its beginning if that is ""; 0 if it is missing. */
static uint64_t read_number(const char *path, const char *field)
{
    char text[4096];
    const char *at = doctor_read_start(text, sizeof(text), path) ? strstr(text, field) : NULL;

    return at ? strtoull(at + strlen(field), NULL, 10) : 0;
}

/* Weights pass through the host's memory, and stay there on the CPU backend. */
void doctor_check_memory(struct doctor *d)
{
    uint64_t free_bytes = read_number("/proc/meminfo", "MemAvailable:") << 10;
    uint64_t total = read_number("/proc/meminfo", "MemTotal:") << 10;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    bool on_cpu = access("/dev/nvidiactl", F_OK) != 0, never;

    if (limit > 0 && limit < total)
        total = limit;
    never = d->weight_bytes > total;
    if (on_cpu && (never || (!d->is_running && d->weight_bytes > free_bytes)))
        doctor_say(d, WRONG,
                   never ? doctor_edit_command(d) : "ps -eo pid,rss,comm --sort=-rss | head",
                   "%.1f MiB of weights, but only %.1f MiB of memory%s", show_mib(d->weight_bytes),
                   show_mib(never ? total : free_bytes), never ? "" : " available");
    else
        doctor_say(d, OK, NULL, "%.1f MiB of %.1f MiB available", show_mib(free_bytes),
                   show_mib(total));
    if (read_number("/proc/sys/vm/overcommit_memory", "") == 2)
        doctor_say(d, NOTE, "sudo sysctl vm.overcommit_memory=0",
                   "overcommit is off: the whole KV cache counts as used at once");
}

/* ---- limits */

void doctor_check_limits(struct doctor *d)
{
    uint64_t waiting = read_number("/proc/sys/net/core/somaxconn", "");
    struct rlimit files = {0};
    bool ok = true;

    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < FEW_DESCRIPTORS)
        ok = doctor_say(d, WRONG, "sudo prlimit --pid $$ --nofile=65536:65536",
                        "at most %" PRIu64 " open files: each client needs one", files.rlim_max);
    if (waiting > 0 && waiting < FEW_WAITING)
        ok = doctor_say(d, WRONG, "sudo sysctl net.core.somaxconn=4096",
                        "net.core.somaxconn is %" PRIu64
                        ": clients that connect at once are refused",
                        waiting);
    if (ok)
        doctor_say(d, OK, NULL, "%" PRIu64 " open files, %" PRIu64 " waiting connections",
                   files.rlim_max, waiting);
}
