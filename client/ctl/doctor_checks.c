/* doctor_checks.c - what “nvllmd check-config” finds, run with the rights of the daemon's user; the
 * model's files; the host's devices, memory and limits. */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/json.h"
#include "client/ctl/show.h"
#include "client/lib/clock.h"

enum {
    CHECK_MS = 30000,
    MOST_FINDINGS_BYTES = 16 << 20,
    LFS_POINTER_BYTES = 1024, /* no pointer is larger, and no weights are smaller */
    FEW_DESCRIPTORS = 256,
    FEW_WAITING = 128, /* connections that wait to be accepted */
};

/* ---- what nvllmd finds */

/* In the child, which drops root's rights: they would say nothing about the daemon's. */
static void become_user(const struct user *user)
{
    if (geteuid() != 0 || user->uid == 0)
        return;
    if (setgroups((size_t)user->n_groups, user->groups) < 0 ||
        setgid(user->n_groups > 0 ? user->groups[0] : (gid_t)-1) < 0 || setuid(user->uid) < 0)
        _exit(EXIT_ERROR);
}

/* The JSON that nvllmd prints; NULL for anything else, or *late: it did not end in time. in_unit:
 * it takes the rights of the service, for which it needs root's. */
/* What a child writes until the end, at most `most` bytes. False: the time was over first; what
 * systemd has started for the child may outlive it. */
static bool read_in_time(int fd, struct text_buffer *out, int64_t end, size_t most)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char part[4096];

    while (out->len <= most) {
        const int left = clock_left_ms(end);
        ssize_t k;

        if (left == 0)
            return false;
        if (poll(&p, 1, left) <= 0)
            continue;
        k = read(fd, part, sizeof(part));
        if (k <= 0)
            return true;
        text_buffer_add(out, part, (size_t)k);
    }
    return true;
}

static json_t *run_nvllmd(const struct doctor *d, const char *const *argv, bool in_unit, bool *late)
{
    int ms = d->ctl->deadline == INT64_MAX ? CHECK_MS
                                           : ctl_left_ms(d->ctl) + 1; /* 0 would be no timer */
    const int64_t end = clock_deadline(ms);
    struct text_buffer text = {0};
    struct nvllm_error err;
    json_t *found = NULL;
    int ends[2], status;
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return NULL;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        if (!in_unit)
            become_user(&d->user);
        execv(d->nvllmd, (char *const *)argv);
        _exit(EXIT_ERROR);
    }
    close(ends[1]);
    if (child > 0) {
        *late = !read_in_time(ends[0], &text, end, MOST_FINDINGS_BYTES);
        if (*late)
            kill(child, SIGKILL);
        waitpid(child, &status, 0);
        found = ctl_json_parse(text.data ? text.data : "", text.len, &err);
        text_buffer_deinit(&text);
    }
    close(ends[0]);
    return found;
}

/* Neither root nor the daemon's user can tell what that user may do. */
static bool is_reliable(const struct doctor *d, const char *about)
{
    return geteuid() == 0 || geteuid() == d->user.uid || strcmp(about, "config") == 0 ||
           strcmp(about, "memory") == 0 || strcmp(about, "backend") == 0;
}

/* Adds one of nvllmd's findings; with its own path in the command, for a shell may not find it. */
static void say_finding(struct doctor *d, json_t *f)
{
    const char *name, *about, *text, *fix = NULL;
    enum level level;

    json_unpack(f, "{sssssss?s}", "level", &name, "about", &about, "text", &text, "fix", &fix);
    level = strcmp(name, "wrong") == 0 ? WRONG : strcmp(name, "note") == 0 ? NOTE : OK;
    if (fix && strncmp(fix, "nvllmd ", 7) == 0)
        fix = doctor_format(d, "%s %s", doctor_quote(d, d->nvllmd), fix + 7);
    d->about = about;
    doctor_say(d, level, fix, "%s", text);
}

static bool say_model_findings(struct doctor *d)
{
    int before = d->n_wrong;
    json_t *f;
    size_t i;

    json_array_foreach(d->of_model, i, f) say_finding(d, f);
    return d->n_wrong == before;
}

/* The missing folder, or other file, of the socket: reported already, with a command for both. */
static bool is_of_socket(const struct doctor *d, const char *text)
{
    size_t n = strlen(d->ctl->socket_path);

    return strncmp(text, d->ctl->socket_path, n) == 0 &&
           (strstr(text + n, "folder does not exist") || strstr(text + n, "is not a socket"));
}

/* All findings but those that are ok, which are checked here, too; except for the file itself. */
static void take_findings(struct doctor *d, json_t *findings)
{
    json_t *f;
    size_t i;

    json_array_foreach(findings, i, f)
    {
        const char *level, *about, *text;

        if (json_unpack(f, "{ssssss}", "level", &level, "about", &about, "text", &text) < 0 ||
            !is_reliable(d, about))
            continue;
        if (strcmp(level, "ok") == 0 && strcmp(about, "config") != 0)
            continue;
        if (strcmp(about, "model") == 0) {
            json_array_append(d->of_model, f);
            continue;
        }
        if (!d->has_config && strcmp(about, "memory") != 0)
            continue; /* of default options */
        if (!d->is_running && strcmp(about, "socket") == 0 && is_of_socket(d, text))
            continue;
        say_finding(d, f);
    }
}

static void compare_sockets(struct doctor *d, const char *configured)
{
    if (!configured || d->is_running || !d->has_config ||
        strcmp(configured, d->ctl->socket_path) == 0)
        return;
    d->about = "socket";
    doctor_say(d, NOTE, doctor_format(d, "export NVLLM_SOCKET=%s", doctor_quote(d, configured)),
               "nvllmd is configured for %s, but %s was tried", configured, d->ctl->socket_path);
}

/* Whether the daemon's user and the caller may read the file. nvllmd reports a missing one. */
static bool check_config_file(struct doctor *d)
{
    char *path = realpath(d->config, NULL);
    bool ok = true;

    if (!path && (errno != EACCES || d->config[0] != '/'))
        return true;
    ok = doctor_check_path(d, &d->user, path ? path : d->config, R_OK);
    if (ok && access(path, R_OK) < 0)
        ok = doctor_say(d, NOTE, doctor_again_command(d), "user %u may not read %s",
                        (unsigned)geteuid(), path);
    free(path);
    return ok;
}

void doctor_check_config(struct doctor *d)
{
    const char *argv[11] = {"nvllmd", "check-config", "--json"};
    const char *model;
    const bool in_unit = doctor_is_of_service(d);
    bool late = false;
    json_t *found;
    int n = 3;

    if (!d->nvllmd) {
        doctor_say(d, NOTE, NULL, "nvllmd is not installed here, so %s cannot be checked",
                   d->config);
        return;
    }
    if (!d->has_config && !d->given_model)
        return; /* the options are unknown */
    if (d->has_config && !check_config_file(d))
        return;
    argv[n++] = d->has_config ? "--config" : "--socket";
    argv[n++] = d->has_config ? d->config : d->ctl->socket_path;
    if (d->given_model) {
        argv[n++] = "--model";
        argv[n++] = d->given_model;
    }
    if (in_unit) {
        argv[n++] = "--unit";
        argv[n++] = "nvllmd.service";
    }
    found = run_nvllmd(d, argv, in_unit, &late);
    if (!json_is_object(found)) {
        doctor_say(d, NOTE, NULL, "%s did not check %s%s", d->nvllmd, d->config,
                   late ? " in time" : ": is it another version?");
    } else {
        take_findings(d, json_object_get(found, "findings"));
        compare_sockets(d, json_string_value(json_object_get(found, "socket")));
        model = json_string_value(json_object_get(found, "model"));
        if (model && !d->is_running && !d->given_model)
            d->model = doctor_format(d, "%s", model);
    }
    json_decref(found);
}

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
                          "the index names %s, which is not a file in the same folder", name);
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

/* Whether the daemon may read all files, before what it finds in them; what it has found in the
 * service's sandbox tells more. */
static bool check_content(struct doctor *d)
{
    if (doctor_is_of_service(d))
        return say_model_findings(d) && check_files(d);
    return check_files(d) && say_model_findings(d);
}

void doctor_check_model(struct doctor *d)
{
    if (!find_folder(d))
        say_model_findings(d);
    else if (d->model[0] != '/' && d->is_running)
        doctor_say(d, OK, NULL, "%s, relative to where nvllmd was started", d->model);
    else if (check_content(d) && access(d->model, R_OK | X_OK) == 0 && d->weight_bytes > 0)
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
                   "overcommit is off: the whole KV cache counts as used from the start");
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
