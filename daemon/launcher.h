/* launcher.h - which process of a cluster this is: from the configuration or, where that does not
 * say, from the variables that Slurm, mpirun and launchers like torchrun set. */
#ifndef NVLLM_DAEMON_LAUNCHER_H
#define NVLLM_DAEMON_LAUNCHER_H

#include "daemon/options.h"

/* Sets cluster.world_size, cluster.rank and cluster.rendezvous where they are left open, the first
 * to 1 where nobody says otherwise. -EINVAL, -ENOTSUP: they make no cluster, or it cannot be with
 * other options; -ENOMEM. */
int launcher_apply(struct options *o, struct err *e);

#endif
