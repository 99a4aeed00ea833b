/* config_check.h - checks whether nvllmd would start with a configuration. Reports each part that
 * is right or wrong, and the command that fixes it. Changes nothing and loads no weights. */
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
    const struct backend_ops *cpu; /* the backend without a device */
    int (*check_cpu)(const struct model *model, const struct backend_options *options,
                     struct err *e); /* checks its memory */
    bool json;                       /* one object instead of lines */
};

/* Prints the findings to stdout, with the rights of the calling user. Exit status: 0, or 1 where
 * something is wrong. */
int config_check_run(const struct config_check *check);

#endif
