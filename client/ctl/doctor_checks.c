/* doctor_checks.c - what nvllmctl checks itself: the socket and whether a daemon answers there, the
 * model's files, and the host. What files contain is nvllmd's to check: see doctor.c. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/lib/clock.h"

enum {
    CONNECT_MS = 3000,
    FAIR_MS = 1000,           /* a daemon with less time to answer is not called hanging */
    LFS_POINTER_BYTES = 1024, /* no pointer is larger, and no weights are smaller */
    FEW_DESCRIPTORS = 256,
    FEW_WAITING = 128, /* connections that wait to be accepted */
};

/* The first bytes of a file, NUL-terminated and without a newline at their end; false if it cannot
 * be read or is empty. */
static bool read_start(char *text, size_t n, const char *path)
{
    FILE *file = fopen(path, "re");
    size_t k = file ? fread(text, 1, n - 1, file) : 0;

    if (file)
        fclose(file);
    text[k > 0 && text[k - 1] == '\n' ? k - 1 : k] = '\0';
    return k > 0;
}

/* ---- the socket */

/* The process has the groups of its login; the user may have joined others since. */
static bool process_in_group(gid_t group)
{
    struct doctor_user process = {.n_groups = getgroups(256, process.groups)};

    return doctor_in_group(&process, group) || getegid() == group;
}

static void explain_denied(struct doctor *d, const struct stat *st)
{
    const struct passwd *me = getpwuid(geteuid());
    const struct group *group = getgrgid(st->st_gid);
    const char *path = d->ctl->socket_path;
    struct doctor_user user = {0};
    const char *fix;

    if (!me || !group || !(st->st_mode & 020) || process_in_group(st->st_gid)) {
        fix = doctor_text(d, "%schmod o+w %s   # until the next start; see daemon.socket_mode",
                          doctor_sudo(st->st_uid), doctor_quote(d, path));
        doctor_say(d, DOCTOR_WRONG, "socket", fix, "%s: this user may not connect (mode %04o)",
                   path, (unsigned)st->st_mode & 07777);
        return;
    }
    if (doctor_find_user(&user, me->pw_name) && doctor_in_group(&user, st->st_gid))
        fix = doctor_text(d, "newgrp %s   # or log in again", group->gr_name);
    else
        fix = doctor_text(d, "sudo usermod -aG %s %s   # and log in again", group->gr_name,
                          me->pw_name);
    doctor_say(d, DOCTOR_WRONG, "socket", fix, "%s is for members of group %s", path,
               group->gr_name);
}

/* Nothing is there: the daemon was not started, or has no folder to create a socket in. */
static void say_none(struct doctor *d, const char *folder, int why)
{
    const struct passwd *me = getpwuid(geteuid());
    const char *fix = doctor_start(d);

    if (why == ENOENT && folder && access(folder, F_OK) < 0 && !doctor_has_service() && me)
        fix = doctor_text(d, "sudo install -d -o %s -m 0755 %s && %s", me->pw_name,
                          doctor_quote(d, folder), fix);
    d->not_running = why == ENOENT;
    doctor_say(d, DOCTOR_WRONG, "socket", fix, "%s: %s; nvllmd creates it when it starts",
               d->ctl->socket_path, strerror(why));
}

/* True if there is a socket that may be connected to. */
static bool check_file(struct doctor *d)
{
    const size_t max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    const char *path = d->ctl->socket_path, *slash = strrchr(path, '/'), *folder = NULL;
    struct doctor_user me = {.uid = geteuid()};
    const struct passwd *found = getpwuid(me.uid);
    struct stat st;

    if (strlen(path) > max)
        return doctor_say(d, DOCTOR_WRONG, "socket", "export NVLLM_SOCKET=" NVLLM_DEFAULT_SOCKET,
                          "%s: the path of a socket has at most %zu bytes", path, max);
    if (slash && slash > path)
        folder = doctor_text(d, "%.*s", (int)(slash - path), path);
    if (folder && folder[0] == '/' && access(folder, F_OK) == 0 && found &&
        doctor_find_user(&me, found->pw_name) && !doctor_path(d, "socket", &me, folder, X_OK))
        return false;
    if (lstat(path, &st) < 0) {
        say_none(d, folder, errno);
        return false;
    }
    if (!S_ISSOCK(st.st_mode))
        return doctor_say(d, DOCTOR_WRONG, "socket",
                          doctor_text(d, "%srm -d %s && %s", doctor_sudo(st.st_uid),
                                      doctor_quote(d, path), doctor_start(d)),
                          "%s is no socket", path);
    if (access(path, W_OK) < 0) {
        explain_denied(d, &st);
        return false;
    }
    doctor_say(d, DOCTOR_OK, "socket", NULL, "%s (mode %04o)", path, (unsigned)st.st_mode & 07777);
    return true;
}

static void say_state(struct doctor *d, const struct nvllm_status *s)
{
    if (s->state == NVLLM_STATE_DRAINING)
        doctor_say(d, DOCTOR_NOTE, "daemon", doctor_ask(d, "resume"),
                   "%s is draining: it takes no new requests", s->server);
    else if (s->state == NVLLM_STATE_FAILED)
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_log(d), "%s has failed", s->server);
    else
        doctor_say(d, DOCTOR_OK, "daemon", NULL, "%s is %s: %s on %s", s->server,
                   nvllm_state_name(s->state), s->model, s->device[0] ? s->device : s->backend);
    if (strcmp(s->server, "nvllmd/" NVLLM_VERSION) != 0)
        doctor_say(d, DOCTOR_NOTE, "daemon", doctor_restart(d),
                   "%s answers, but this is nvllmctl " NVLLM_VERSION, s->server);
}

/* systemd itself listens for the service until that is started. Where the process cannot be seen,
 * the socket's path decides. */
static bool is_other_process(const struct doctor *d, pid_t listener)
{
    char path[64], groups[4096];

    if (listener == 1)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)listener);
    if (!read_start(groups, sizeof(groups), path))
        return strcmp(d->ctl->socket_path, NVLLM_DEFAULT_SOCKET) != 0;
    return strstr(groups, "/nvllmd.service") == NULL;
}

/* The process that listens, also at a socket that does not answer; pid 0 if unknown. */
static struct ucred find_listener(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred who = {0};
    socklen_t n = sizeof(who);

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0)
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n);
    if (fd >= 0)
        close(fd);
    return who;
}

/* A daemon that hangs is not asked to stop, since it would not answer. Only a process that is known
 * to be nvllmd may be killed: anything may listen there. */
static void say_silent(struct doctor *d, const struct ucred *who, const char *text)
{
    char path[64], name[64];
    const char *fix;
    bool seen;

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)who->pid);
    seen = read_start(name, sizeof(name), path);
    if (doctor_is_service(d))
        fix = doctor_restart(d);
    else if (!seen || who->pid == 1) /* it may have exited, and left the socket to another */
        fix = doctor_text(d, "sudo ss -xlp | grep -F %s", doctor_quote(d, d->ctl->socket_path));
    else if (strcmp(name, "nvllmd") == 0)
        fix = doctor_text(d, "%skill -KILL %d && %s", doctor_sudo(who->uid), (int)who->pid,
                          doctor_start(d));
    else
        fix = doctor_text(d, "ps -fp %d", (int)who->pid);
    doctor_say(d, DOCTOR_WRONG, "daemon", fix, "%s", text);
}

static void say_failure(struct doctor *d, int64_t asked_ms, const struct nvllm_error *err)
{
    int64_t had_ms = clock_ms() - asked_ms;
    struct ucred who;

    if (err->code == NVLLM_E_NOT_RUNNING) {
        d->not_running = true;
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_start(d), "nobody listens at the socket");
        return;
    }
    d->is_running = true;
    if (err->code == NVLLM_E_TIMEOUT && had_ms < FAIR_MS) {
        doctor_say(d, DOCTOR_NOTE, "daemon", NULL,
                   "nvllmd had only %d ms to answer: give --timeout more", (int)had_ms);
        return;
    }
    who = find_listener(d->ctl->socket_path);
    d->not_service = is_other_process(d, who.pid);
    if (err->code == NVLLM_E_TIMEOUT)
        say_silent(d, &who, err->message);
    else
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_log(d), "%s", err->message);
}

/* The listening process is the model's user, unless it is systemd, which passes the socket on. */
static void take_listener(struct doctor *d)
{
    struct ucred who = find_listener(d->ctl->socket_path);
    const struct passwd *found = getpwuid(who.uid);

    d->not_service = is_other_process(d, who.pid);
    if (!d->user_given && who.pid > 1 && found)
        doctor_find_user(&d->user, found->pw_name);
}

void doctor_socket(struct doctor *d)
{
    int left_ms = d->ctl->deadline < 0 ? CONNECT_MS : ctl_left_ms(d->ctl);
    int64_t asked_ms = clock_ms(), deadline = clock_deadline(left_ms);
    const struct nvllm_status *status;
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;

    if (!check_file(d))
        return;
    nvllm_options_init(&options);
    options.socket_path = d->ctl->socket_path;
    options.name = "nvllmctl/" NVLLM_VERSION;
    options.timeout_ms = left_ms;
    if (nvllm_connect(&client, &options, &err) == NVLLM_OK &&
        nvllm_get_status(client, clock_left_ms(deadline), &status, &err) == NVLLM_OK) {
        d->is_running = true;
        d->model = doctor_text(d, "%s", status->model_folder);
        take_listener(d);
        say_state(d, status);
    } else {
        say_failure(d, asked_ms, &err);
    }
    nvllm_close(client);
}

/* ---- the model */

/* The folder that is given, that the daemon has, or that it is configured for. */
static bool find_folder(struct doctor *d)
{
    char *whole, *here;

    if (d->given_model) { /* relative to the current folder, whatever the daemon has */
        whole = realpath(d->given_model, NULL);
        here = whole || d->given_model[0] == '/' ? NULL : getcwd(NULL, 0);
        d->model = doctor_text(d, "%s%s%s", here ? here : "", here ? "/" : "",
                               whole ? whole : d->given_model);
        free(whole);
        free(here);
    }
    if (!d->model && !d->has_config)
        doctor_say(d, DOCTOR_NOTE, "model", NULL,
                   "%s does not exist, so the model is unknown: give --model DIR", d->config);
    return d->model && d->model[0];
}

/* The whole list of what is wrong with the folder, and whether there is room for what is missing:
 * the fix is to download the model again. */
static const char *look(struct doctor *d)
{
    const char *folder = doctor_quote(d, d->model);

    return doctor_text(d, "%s check --model %s; df -h %s   # then download it again",
                       d->nvllmd ? doctor_quote(d, d->nvllmd) : "nvllmd", folder, folder);
}

static bool check_model_file(struct doctor *d, const char *name)
{
    const char *path = doctor_text(d, "%s/%s", d->model, name);
    char start[64];
    struct stat st;

    if (strchr(name, '/'))
        return doctor_say(d, DOCTOR_WRONG, "model", look(d),
                          "the index names %s, which is no file beside it", name);
    if (stat(path, &st) < 0)
        return doctor_say(d, DOCTOR_WRONG, "model", look(d), "%s: %s", path, strerror(errno));
    if (!doctor_path(d, "model", &d->user, path, R_OK))
        return false;
    if (st.st_size < LFS_POINTER_BYTES && read_start(start, sizeof(start), path) &&
        strncmp(start, "version https://git-lfs", 23) == 0)
        return doctor_say(d, DOCTOR_WRONG, "model",
                          doctor_text(d, "git -C %s lfs pull", doctor_quote(d, d->model)),
                          "%s is a pointer of Git LFS, not the file itself", path);
    if (strstr(name, ".safetensors") && !strstr(name, ".json"))
        d->weight_bytes += (uint64_t)st.st_size;
    return true;
}

/* Each file that the index names, once. */
static bool check_shards(struct doctor *d, const char *index_path)
{
    json_error_t where;
    json_t *index = json_load_file(index_path, 0, &where), *seen = json_object();
    const json_t *member;
    const char *name;
    bool ok = index != NULL;

    if (!index)
        doctor_say(d, DOCTOR_WRONG, "model", look(d), "%s: %s", index_path, where.text);
    json_object_foreach(json_object_get(index, "weight_map"), name, member)
    {
        const char *file = json_string_value(member);

        if (!file || json_object_get(seen, file))
            continue;
        json_object_set_new(seen, file, json_true());
        ok = check_model_file(d, file) && ok;
    }
    json_decref(index);
    json_decref(seen);
    return ok;
}

static bool check_files(struct doctor *d)
{
    const char *index = doctor_text(d, "%s/model.safetensors.index.json", d->model);
    bool ok;

    if (!doctor_path(d, "model", &d->user, d->model, R_OK | X_OK))
        return false;
    ok = check_model_file(d, "config.json");
    ok = check_model_file(d, "tokenizer.json") && ok;
    if (access(index, F_OK) < 0)
        return check_model_file(d, "model.safetensors") && ok;
    return check_model_file(d, "model.safetensors.index.json") && check_shards(d, index) && ok;
}

/* Whether the daemon may read all files is reported before what it finds in them. */
void doctor_model(struct doctor *d)
{
    if (!find_folder(d))
        doctor_take_model(d);
    else if (d->model[0] != '/' && d->is_running)
        doctor_say(d, DOCTOR_OK, "model", NULL, "%s, relative to where nvllmd was started",
                   d->model);
    else if (check_files(d) && doctor_take_model(d) && access(d->model, R_OK | X_OK) == 0 &&
             d->weight_bytes > 0)
        doctor_say(d, DOCTOR_OK, "model", NULL, "%s: %.1f MiB of weights, readable by user %s",
                   d->model, (double)d->weight_bytes / (1 << 20), d->user.name);
}

/* ---- devices */

/* NVIDIA display and 3D controllers on the PCI bus. */
static int count_gpus(void)
{
    glob_t folders = {0};
    int n = 0;

    glob("/sys/bus/pci/devices/*", 0, NULL, &folders);
    for (size_t i = 0; i < folders.gl_pathc; i++) {
        char path[400], vendor[32], class[32];

        snprintf(path, sizeof(path), "%s/vendor", folders.gl_pathv[i]);
        if (!read_start(vendor, sizeof(vendor), path) || strcmp(vendor, "0x10de") != 0)
            continue;
        snprintf(path, sizeof(path), "%s/class", folders.gl_pathv[i]);
        n += read_start(class, sizeof(class), path) && strncmp(class, "0x03", 4) == 0;
    }
    globfree(&folders);
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
                       "sudo sh -c 'modprobe nvidia && nvidia-modprobe -u -c 0'",
                       "%d NVIDIA GPU%s found, but no %s: the driver is not loaded", n,
                       n == 1 ? "" : "s", nodes[0]);
        return;
    }
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        if (access(nodes[i], F_OK) != 0) {
            doctor_say(d, DOCTOR_WRONG, "device", "sudo nvidia-modprobe -u -c 0", "%s: %s",
                       nodes[i], strerror(errno));
            ok = false;
        } else {
            ok = doctor_path(d, "device", &d->user, nodes[i], 6) && ok;
        }
    }
    if (!read_start(version, sizeof(version), "/proc/driver/nvidia/version"))
        snprintf(version, sizeof(version), "NVIDIA driver of unknown version");
    version[strcspn(version, "\n")] = '\0';
    if (ok)
        doctor_say(d, DOCTOR_OK, "device", NULL, "%s", version);
}

/* ---- memory */

/* A field of /proc/meminfo, in bytes; 0 if it is missing. */
static uint64_t memory_info(const char *field)
{
    char text[4096];
    const char *at = read_start(text, sizeof(text), "/proc/meminfo") ? strstr(text, field) : NULL;

    return at ? strtoull(at + strlen(field), NULL, 10) << 10 : 0;
}

static uint64_t read_number(const char *path)
{
    char text[64];

    return read_start(text, sizeof(text), path) ? strtoull(text, NULL, 10) : 0;
}

/* Weights pass through the host's memory, and stay there on the CPU backend. */
static void check_memory(struct doctor *d)
{
    uint64_t free_bytes = memory_info("MemAvailable:"), total = memory_info("MemTotal:");
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
        doctor_say(d, DOCTOR_NOTE, "memory", "sudo sysctl vm.overcommit_memory=0",
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
        doctor_say(d, DOCTOR_WRONG, "limits", "sudo prlimit --pid $$ --nofile=65536:65536",
                   "at most %llu open files: each client needs one",
                   (unsigned long long)files.rlim_max);
        ok = false;
    }
    if (waiting > 0 && waiting < FEW_WAITING) {
        doctor_say(d, DOCTOR_WRONG, "limits", "sudo sysctl net.core.somaxconn=4096",
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
