/* daemon_rig.h - an nvllmd with the instant backend, for benchmarks: started, looked at, ended.
 *
 * What goes wrong ends the program with a line on stderr: a benchmark has nothing to save. */
#ifndef NVLLM_TESTS_BENCH_DAEMON_RIG_H
#define NVLLM_TESTS_BENCH_DAEMON_RIG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "client/lib/nvllm_client.h"
#include "tests/bench/instant.h"

struct daemon_rig {
    pid_t pid;
    clockid_t cpu_clock;
    struct instant *shared;
    char folder[64];
    char socket[96];
    char log[96];
};

/* options: "section.key=value", NULL at the end. Returns when the daemon is ready. */
void daemon_rig_start(struct daemon_rig *d, const char *nvllmd, const char *module,
                      const char *model, const char *const *options);

/* SIGTERM; anything but exit status 0 is an error. Removes the folder. */
void daemon_rig_stop(struct daemon_rig *d);

struct nvllm_client *daemon_rig_connect(const struct daemon_rig *d);

/* As many descriptors as n connections need, or the end of the program. */
void raise_own_descriptors(int n);
struct nvllm_client **connect_many(const struct daemon_rig *d, int n);
void close_many(struct nvllm_client **all, int n); /* frees the array, too */

double daemon_rig_cpu_s(const struct daemon_rig *d); /* used by all its threads so far */
size_t daemon_rig_kib(const struct daemon_rig *d, const char *what); /* "VmRSS", "RssAnon" */
double own_cpu_s(void);

__attribute__((format(printf, 1, 2), noreturn)) void die(const char *fmt, ...);

/* NVLLM_OK, or the end of the program. */
void want_ok(enum nvllm_code code, const struct nvllm_error *err, const char *what);

/* The p-th quantile, 0 .. 1, of values, which are sorted in place. */
double quantile(double *values, size_t n, double p);

#endif
