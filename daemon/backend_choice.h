/* backend_choice.h - which backend computes: the CPU's, linked in, or a module for a device.
 *
 * A device that does not work is an error with its reason: never a silent fall back to the CPU. */
#ifndef NVLLM_DAEMON_BACKEND_CHOICE_H
#define NVLLM_DAEMON_BACKEND_CHOICE_H

#include "daemon/options.h"
#include "engine/backend.h"
#include "engine/util/err.h"

struct backend_choice {
    const struct backend_ops *ops;
    struct err warning; /* for the log; empty: none */
};

/* cpu: the backend without a device. device_folder: /dev, where NVIDIA's nodes are. A module stays
 * loaded for the life of the process. -EINVAL, -ENOENT, -ENOEXEC, … with the reason and a remedy.
 */
int backend_choose(struct backend_choice *out, const struct options *o,
                   const struct backend_ops *cpu, const char *device_folder, struct err *e);

/* The options of a backend, with as many devices as there are ranks: call backend_choose() first,
 * which refuses others. */
struct backend_options backend_options_of(const struct options *o);

#endif
