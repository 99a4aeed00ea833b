/* launcher.c - see launcher.h. */
#include "daemon/launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 29577 }; /* of a rendezvous at MASTER_ADDR; MASTER_PORT is the launcher's own */

/* In this order: a job of mpirun or torchrun may run inside one of Slurm's, whose variables are of
 * the whole then. */
static const struct launcher {
    const char *size, *rank;
    const char
        *address; /* NULL: it has none; else it must be set, too: the others are usual words */
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL},
    {"PMI_SIZE", "PMI_RANK", NULL},
    {"WORLD_SIZE", "RANK", "MASTER_ADDR"},
    {"SLURM_NTASKS", "SLURM_PROCID", NULL},
};

static int read_variable(int64_t *out, const char *name, int64_t min, int64_t max, struct err *e)
{
    const char *text = getenv(name);
    char *end = NULL;
    long n;

    errno = 0;
    n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || n < min || n > max)
        return err_set(e, -EINVAL,
                       "%s: \"%.40s\" is not a whole number from %d to %d; cluster.world_size = 1 "
                       "makes nvllmd run alone",
                       name, text, (int)min, (int)max);
    *out = n;
    return 0;
}

/* The first launcher whose variables are all there; NULL: there is none. */
static const struct launcher *find_launcher(void)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(*launchers); i++) {
        const struct launcher *l = &launchers[i];

        if (getenv(l->size) && getenv(l->rank) && (!l->address || getenv(l->address)))
            return l;
    }
    return NULL;
}

static int ask_launcher(struct options *o, struct err *e)
{
    const struct launcher *l = find_launcher();
    const char *address = l && l->address ? getenv(l->address) : NULL;
    int64_t size, rank;
    char place[512];
    int r;

    o->world_size = 1;
    if (!l)
        return 0;
    r = read_variable(&size, l->size, 1, INT32_MAX, e);
    if (r < 0 || size == 1)
        return r;
    if (size > CLUSTER_MAX)
        return err_set(e, -EINVAL,
                       "%s: %d processes exceed %d, the most of a cluster; cluster.world_size = 1 "
                       "makes nvllmd run alone",
                       l->size, (int)size, CLUSTER_MAX);
    r = read_variable(&rank, l->rank, 0, size - 1, e);
    if (r < 0)
        return r;
    o->world_size = size;
    o->cluster_rank = rank;
    if (!address || *o->rendezvous || getenv("NCCL_COMM_ID"))
        return 0;
    snprintf(place, sizeof(place), strchr(address, ':') ? "[%s]:%d" : "%s:%d", address, PORT);
    return options_set(o, "cluster.rendezvous", place, e);
}

static bool is_port(const char *text)
{
    char *end;
    const unsigned long n = strtoul(text, &end, 10);

    return *text >= '0' && *text <= '9' && !*end && n >= 1 && n <= UINT16_MAX;
}

static int check(const struct options *o, struct err *e)
{
    const char *where = o->rendezvous, *port = strrchr(where, ':');

    if (o->cluster_rank >= o->world_size)
        return err_set(e, -EINVAL, "cluster.rank: %d is not below cluster.world_size, %d",
                       (int)o->cluster_rank, (int)o->world_size);
    if (o->world_size == 1)
        return 0;
    if (!*where && !getenv("NCCL_COMM_ID"))
        return err_set(
            e, -EINVAL,
            "cluster.rendezvous: %d processes need a place to meet: a file that all of "
            "them see, or HOST:PORT of the first one; cluster.world_size = 1 makes nvllmd "
            "run alone",
            (int)o->world_size);
    if (*where && *where != '/' && (!port || port == where || !is_port(port + 1)))
        return err_set(e, -EINVAL,
                       "cluster.rendezvous: \"%s\" is neither the absolute path of a file nor "
                       "HOST:PORT",
                       where);
    if (o->disk > 0)
        return err_set(e, -ENOTSUP,
                       "cache.disk: not in a cluster; set it to 0, or cluster.world_size to 1");
    if (o->backend == OPTION_BACKEND_CPU)
        return err_set(e, -ENOTSUP,
                       "cluster.world_size: the cpu backend runs in one process alone");
    if (options_tp_size(o) % o->world_size != 0)
        return err_set(e, -EINVAL,
                       "model.tensor_parallel: %d ranks cannot be divided among %d processes",
                       options_tp_size(o), (int)o->world_size);
    return 0;
}

int launcher_apply(struct options *o, struct err *e)
{
    const int r = o->world_size == 0 ? ask_launcher(o, e) : 0;

    return r < 0 ? r : check(o, e);
}
