/* test_launcher.c - which process of a cluster this is: by the configuration, by the variables of
 * launchers, and what is refused. */
#include "daemon/launcher.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/run_suite.h"

#define FILE_PLACE "cluster.rendezvous=/shared/id"

static struct options o;
static struct err e;

static void setup(void)
{
    ck_assert_int_eq(clearenv(), 0);
    ck_assert_int_eq(options_init(&o, &e), 0);
}

static void teardown(void)
{
    options_deinit(&o);
}

static void set(const char *pair)
{
    char key[64];
    const char *value = strchr(pair, '=');

    memcpy(key, pair, (size_t)(value - pair));
    key[value - pair] = '\0';
    ck_assert_msg(options_set(&o, key, value + 1, &e) == 0, "%s", e.text);
}

static const struct {
    const char *variables[8], *options[4];
    int size, rank;
    const char *place;
} taken[] = {
    {{NULL}, {NULL}, 1, 0, ""},
    {{NULL}, {"cluster.world_size=2", "cluster.rank=1", FILE_PLACE}, 2, 1, "/shared/id"},
    {{NULL}, {"cluster.world_size=2", "cluster.rendezvous=first:29577"}, 2, 0, "first:29577"},
    {{"NCCL_COMM_ID=10.0.0.1:5"}, {"cluster.world_size=2"}, 2, 0, ""},
    {{"SLURM_NTASKS=4", "SLURM_PROCID=3"}, {FILE_PLACE}, 4, 3, "/shared/id"},
    {{"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1"}, {FILE_PLACE}, 2, 1, "/shared/id"},
    {{"PMI_SIZE=8", "PMI_RANK=7"}, {FILE_PLACE}, 8, 7, "/shared/id"},
    {{"WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=first"}, {NULL}, 2, 1, "first:29577"},
    {{"WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=fe80::1"}, {NULL}, 2, 1, "[fe80::1]:29577"},
    {{"WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=first"}, {FILE_PLACE}, 2, 1, "/shared/id"},
    {{"WORLD_SIZE=2", "RANK=0", "MASTER_ADDR=a", "NCCL_COMM_ID=b:5"}, {NULL}, 2, 0, ""},
    /* mpirun inside a batch of Slurm's, which counts itself */
    {{"SLURM_NTASKS=4", "SLURM_PROCID=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1"},
     {FILE_PLACE},
     2,
     1,
     "/shared/id"},
    /* usual words, without a launcher; half of a pair; a job of one */
    {{"WORLD_SIZE=2", "RANK=1"}, {NULL}, 1, 0, ""},
    {{"SLURM_NTASKS=4"}, {NULL}, 1, 0, ""},
    {{"SLURM_NTASKS=1", "SLURM_PROCID=0"}, {NULL}, 1, 0, ""},
    /* the configuration goes before them, also to run alone */
    {{"SLURM_NTASKS=4", "SLURM_PROCID=3"}, {"cluster.world_size=1"}, 1, 0, ""},
    {{"SLURM_NTASKS=4", "SLURM_PROCID=3"},
     {"cluster.world_size=2", FILE_PLACE},
     2,
     0,
     "/shared/id"},
};

TEST(place_in_the_cluster, .n = N(taken))
{
    for (int i = 0; i < 8 && taken[_i].variables[i]; i++)
        ck_assert_int_eq(putenv((char *)(uintptr_t)taken[_i].variables[i]), 0);
    for (int i = 0; i < 4 && taken[_i].options[i]; i++)
        set(taken[_i].options[i]);
    ck_assert_msg(launcher_apply(&o, &e) == 0, "%s", e.text);
    ck_assert_int_eq(o.world_size, taken[_i].size);
    ck_assert_int_eq(o.cluster_rank, taken[_i].rank);
    ck_assert_str_eq(o.rendezvous, taken[_i].place);
}

static const struct {
    const char *variables[4], *options[4];
    int code;
    const char *says[2];
} refused[] = {
    {{NULL}, {"cluster.world_size=2"}, -EINVAL, {"cluster.rendezvous", "cluster.world_size = 1"}},
    {{NULL}, {"cluster.rank=1"}, -EINVAL, {"cluster.rank: 1", "cluster.world_size, 1"}},
    {{NULL},
     {"cluster.world_size=2", "cluster.rank=2", FILE_PLACE},
     -EINVAL,
     {"cluster.rank: 2", "2"}},
    {{NULL},
     {"cluster.world_size=2", "cluster.rendezvous=shared/id"},
     -EINVAL,
     {"shared/id", "HOST:PORT"}},
    {{NULL}, {"cluster.world_size=2", "cluster.rendezvous=first:"}, -EINVAL, {"first:", "PORT"}},
    {{NULL},
     {"cluster.world_size=2", "cluster.rendezvous=first:70000"},
     -EINVAL,
     {"70000", "PORT"}},
    {{NULL}, {"cluster.world_size=2", "cluster.rendezvous=first:5x"}, -EINVAL, {"5x", "PORT"}},
    {{NULL}, {"cluster.world_size=2", "cluster.rendezvous=:5"}, -EINVAL, {"\":5\"", "HOST"}},
    {{NULL}, {"cluster.world_size=2", FILE_PLACE, "cache.disk=1G"}, -ENOTSUP, {"cache.disk"}},
    {{NULL},
     {"cluster.world_size=2", FILE_PLACE, "daemon.backend=cpu"},
     -ENOTSUP,
     {"cluster.world_size", "cpu"}},
    {{NULL},
     {"cluster.world_size=4", FILE_PLACE, "model.tensor_parallel=2"},
     -EINVAL,
     {"model.tensor_parallel: 2 ranks", "4 processes"}},
    {{"SLURM_NTASKS=4", "SLURM_PROCID=1"}, {NULL}, -EINVAL, {"cluster.rendezvous"}},
    {{"SLURM_NTASKS=9", "SLURM_PROCID=1"}, {FILE_PLACE}, -EINVAL, {"SLURM_NTASKS", "exceed 8"}},
    {{"SLURM_NTASKS=4", "SLURM_PROCID=4"}, {FILE_PLACE}, -EINVAL, {"SLURM_PROCID", "0 to 3"}},
    {{"SLURM_NTASKS=", "SLURM_PROCID=0"}, {FILE_PLACE}, -EINVAL, {"SLURM_NTASKS", "whole"}},
    {{"SLURM_NTASKS=2x", "SLURM_PROCID=0"}, {FILE_PLACE}, -EINVAL, {"\"2x\"", "whole number"}},
    {{"PMI_SIZE=-2", "PMI_RANK=0"}, {FILE_PLACE}, -EINVAL, {"PMI_SIZE", "\"-2\""}},
    {{"PMI_SIZE=99999999999999999999", "PMI_RANK=0"}, {FILE_PLACE}, -EINVAL, {"PMI_SIZE"}},
};

TEST(what_is_no_cluster, .n = N(refused))
{
    for (int i = 0; i < 4 && refused[_i].variables[i]; i++)
        ck_assert_int_eq(putenv((char *)(uintptr_t)refused[_i].variables[i]), 0);
    for (int i = 0; i < 4 && refused[_i].options[i]; i++)
        set(refused[_i].options[i]);
    ck_assert_int_eq(launcher_apply(&o, &e), refused[_i].code);
    for (int i = 0; i < 2 && refused[_i].says[i]; i++)
        ck_assert_msg(strstr(e.text, refused[_i].says[i]) != NULL, "%s", e.text);
}

/* A second look, as at a reload, comes to the same. */
TEST(applied_again)
{
    ck_assert_int_eq(putenv((char *)(uintptr_t) "SLURM_NTASKS=2"), 0);
    ck_assert_int_eq(putenv((char *)(uintptr_t) "SLURM_PROCID=1"), 0);
    set(FILE_PLACE);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(launcher_apply(&o, &e), 0);
        ck_assert_int_eq(o.world_size, 2);
        ck_assert_int_eq(o.cluster_rank, 1);
    }
}

/* Without a number there is a rank for each device of each process. */
TEST(ranks_of_a_cluster)
{
    ck_assert_int_eq(options_tp_size(&o), 1);
    set("cluster.world_size=2");
    ck_assert_int_eq(options_tp_size(&o), 2);
    set("cuda.devices=3,5");
    ck_assert_int_eq(options_tp_size(&o), 4);
    set("model.tensor_parallel=8");
    ck_assert_int_eq(options_tp_size(&o), 8);
}

RUN_TESTS("launcher", setup, teardown)
