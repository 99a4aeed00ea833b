/* unit_check.h - “nvllmd check-config” as a unit of systemd would start the daemon. */
#ifndef NVLLM_DAEMON_UNIT_CHECK_H
#define NVLLM_DAEMON_UNIT_CHECK_H

#include <stdbool.h>

#include "engine/util/err.h"
#include "proto/program.h"

#define UNIT_OF_SERVICE "nvllmd.service"

/* The unit whose start a check-config with these options asks about: the one that they name, or the
 * installed service where they are none of the daemon's. NULL: none. */
const char *unit_check_asked(const struct usage_line *line);

/* Replaces this process by a check in a transient unit that has the user, the sandbox and the
 * command line of the given one, with the caller's options behind. Returns only to say why that
 * cannot be done; -EINVAL: no such unit, or not one that starts nvllmd; -EPERM: only root can. */
int unit_check_run(const char *unit, const struct usage_line *line, struct err *e);

#endif
