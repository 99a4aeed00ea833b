/* daemon_rig.c - see daemon_rig.h. */
#include "tests/bench/daemon_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 64 };

/* So that a benchmark that dies leaves neither a process nor a folder. */
static struct daemon_rig *running;

static void remove_folder(const struct daemon_rig *d)
{
    DIR *dir = opendir(d->folder);
    const struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(d->folder);
}

static void show_log(const struct daemon_rig *d)
{
    FILE *f = fopen(d->log, "r");
    char line[1024];

    while (f && fgets(line, sizeof(line), f))
        fputs(line, stderr);
    if (f)
        fclose(f);
}

void die(const char *fmt, ...)
{
    struct daemon_rig *d = running;
    va_list args;

    va_start(args, fmt);
    fputs("bench_daemon: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    if (d && getpid() != d->pid) {
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
        show_log(d);
        remove_folder(d);
    }
    exit(2);
}

void want_ok(enum nvllm_code code, const struct nvllm_error *err, const char *what)
{
    if (code != NVLLM_OK)
        die("%s: %s: %s", what, nvllm_code_name(code), err->message);
}

static void make_shared(struct daemon_rig *d)
{
    char path[128];
    void *p;
    int fd;

    snprintf(path, sizeof(path), "%s/" INSTANT_FILE, d->folder);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(*d->shared)) < 0)
        die("%s: %s", path, strerror(errno));
    p = mmap(NULL, sizeof(*d->shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        die("%s: %s", path, strerror(errno));
    close(fd);
    d->shared = p;
}

static void exec_daemon(const struct daemon_rig *d, const char *const *args)
{
    int fd = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    if (fd >= 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
    }
    execv(args[0], (char *const *)(uintptr_t)args);
    _exit(127);
}

void daemon_rig_start(struct daemon_rig *d, const char *nvllmd, const char *module,
                      const char *model, const char *const *options)
{
    char module_option[4200], folder_option[128];
    const char *args[MAX_ARGS] = {
        nvllmd,  "--model",     model,   "--socket",   d->socket, "--set", "daemon.backend=cuda",
        "--set", module_option, "--set", folder_option};
    struct nvllm_options o;
    struct nvllm_client *c;
    struct nvllm_error err;
    int n = 11;

    *d = (struct daemon_rig){.folder = "/tmp/nvllm-bench-XXXXXX"};
    if (!mkdtemp(d->folder))
        die("%s: %s", d->folder, strerror(errno));
    snprintf(d->socket, sizeof(d->socket), "%s/socket", d->folder);
    snprintf(d->log, sizeof(d->log), "%s/log", d->folder);
    snprintf(module_option, sizeof(module_option), "backend.module=%s", module);
    snprintf(folder_option, sizeof(folder_option), "cuda.cache_folder=%s", d->folder);
    for (; *options && n < MAX_ARGS - 3; options++) {
        args[n++] = "--set";
        args[n++] = *options;
    }
    make_shared(d);
    d->pid = fork();
    if (d->pid < 0)
        die("fork: %s", strerror(errno));
    if (d->pid == 0)
        exec_daemon(d, args);
    running = d;
    nvllm_options_init(&o);
    o.socket_path = d->socket;
    o.wait_start = o.wait_ready = true;
    o.timeout_ms = 60000;
    want_ok(nvllm_connect(&c, &o, &err), &err, "start of nvllmd");
    nvllm_close(c);
    if (clock_getcpuclockid(d->pid, &d->cpu_clock) != 0)
        die("nvllmd's CPU time cannot be read");
}

void daemon_rig_stop(struct daemon_rig *d)
{
    int status;

    kill(d->pid, SIGTERM);
    if (waitpid(d->pid, &status, 0) != d->pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("nvllmd did not end well (status %d), see %s", status, d->log);
    running = NULL;
    munmap(d->shared, sizeof(*d->shared));
    remove_folder(d);
}

struct nvllm_client *daemon_rig_connect(const struct daemon_rig *d)
{
    struct nvllm_options o;
    struct nvllm_client *c;
    struct nvllm_error err;

    nvllm_options_init(&o);
    o.socket_path = d->socket;
    o.timeout_ms = 60000;
    want_ok(nvllm_connect(&c, &o, &err), &err, "connect");
    return c;
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t) != 0)
        die("nvllmd has ended");
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void raise_own_descriptors(int n)
{
    struct rlimit l;

    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_max < (rlim_t)n + 300)
        die("%d connections need more descriptors than ulimit -Hn allows, %llu", n,
            (unsigned long long)l.rlim_max);
}

struct nvllm_client **connect_many(const struct daemon_rig *d, int n)
{
    struct nvllm_client **all = calloc((size_t)n, sizeof(struct nvllm_client *));

    if (!all)
        die("out of memory");
    for (int i = 0; i < n; i++)
        all[i] = daemon_rig_connect(d);
    return all;
}

void close_many(struct nvllm_client **all, int n)
{
    for (int i = 0; i < n; i++)
        nvllm_close(all[i]);
    free(all);
}

double daemon_rig_cpu_s(const struct daemon_rig *d)
{
    return seconds_of(d->cpu_clock);
}

double own_cpu_s(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

size_t daemon_rig_kib(const struct daemon_rig *d, const char *what)
{
    char path[64], line[256];
    size_t kib = 0, len = strlen(what);
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)d->pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, what, len) == 0 && line[len] == ':')
            kib = strtoul(line + len + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double quantile(double *values, size_t n, double p)
{
    if (n == 0)
        die("nothing was measured");
    qsort(values, n, sizeof(*values), by_value);
    return values[(size_t)(p * (double)(n - 1) + 0.5)];
}
