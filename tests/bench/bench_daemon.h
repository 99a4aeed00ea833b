/* bench_daemon.h - the parts of bench_daemon: each starts a daemon of its own, prints what it
 * measured, and returns whether its bars were met. */
#ifndef NVLLM_TESTS_BENCH_BENCH_DAEMON_H
#define NVLLM_TESTS_BENCH_BENCH_DAEMON_H

#include <stdbool.h>

struct bench_setup {
    const char *nvllmd, *module, *model;
    bool lax; /* other programs run, or sanitizers do: figures are printed, only wrongs count */
};

bool bench_throughput(const struct bench_setup *s, int n_connections, int n_streams, int n_tokens);
bool bench_latency(const struct bench_setup *s, int n_tokens, int step_us, int n_idle);

#endif
