/* config_check.h - would nvllmd start with this configuration? Says what is right, what is wrong
 * and the command that mends it. Changes nothing, serves nothing, loads no weights. */
#ifndef NVLLM_DAEMON_CONFIG_CHECK_H
#define NVLLM_DAEMON_CONFIG_CHECK_H

#include <stdbool.h>

#include "daemon/options.h"
#include "engine/backend.h"
#include "engine/util/err.h"

struct config_check {
    const char *file;              /* of the options; NULL: there is none */
    const struct options *options; /* NULL: they are wrong */
    const struct err *why;         /* where options is NULL */
    const struct backend_ops *cpu; /* what computes without a device, … */
    int (*check_cpu)(const struct model *model, const struct backend_options *options,
                     struct err *e); /* … and would say so of this memory */
    bool json;                       /* one object instead of lines */
};

/* Prints what it finds to stdout, as a user of this process' rights would. Exit status: 0, or 1
 * when something is wrong. */
int config_check_run(const struct config_check *check);

#endif
