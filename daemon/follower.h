/* follower.h - a process of a cluster that is not the first: it owns ranks and serves nobody. */
#ifndef NVLLM_DAEMON_FOLLOWER_H
#define NVLLM_DAEMON_FOLLOWER_H

#include "daemon/backend_choice.h"

/* Loads its ranks, tells systemd, and follows the first process until that ends, or until SIGTERM
 * or SIGINT: 0; else a negative errno. Whatever it returns, the process is to end by _exit():
 * threads may wait for what never comes. name: of the model, for the log. */
int follower_run(const struct options *o, const struct backend_choice *choice, const char *name,
                 struct err *e);

#endif
