/* sim.c - the core against a backend whose answers are known, over millions of checked steps.
 *
 * usage: sim [--steps N] [--seed S] [--world SEED] [--plant BUG]
 *
 * Each world has a seed of its own; a failure prints it, and --world runs that one again. With
 * --plant, which sim-planted knows, the core has that bug of engine/util/plant.h, and a crash or a
 * loop without end is a failure like others. */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/util/plant.h"
#include "tests/sim/rng.h"
#include "tests/sim/sim_world.h"

enum { STEPS_A_WORLD = 2000, LOOP_S = 120 };

int sim_plant;
static volatile uint64_t current_world;

/* An invariant that the core asserts: says which world it was, then aborts as before. */
static void on_signal(int signal_number)
{
    char line[64];
    int n = snprintf(line, sizeof(line), "sim: again with --world %" PRIu64 "\n", current_world);

    if (write(STDERR_FILENO, line, (size_t)n) < 0 || sim_plant)
        _exit(2);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Of CPU time: the rate is that of one core, whatever else runs. */
static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* False: something did not happen that a long run must have seen, or it shows less than it seems
 * to. */
static bool print_counts(const struct sim_counts *c, bool all)
{
#define ROW(name) {#name, c->name},
    const struct {
        const char *name;
        uint64_t n;
    } rows[] = {SIM_COUNTS(ROW)};
#undef ROW
    bool complete = true;

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        printf("%s%" PRIu64 " %s", i ? ", " : "", rows[i].n, rows[i].name);
        if (!rows[i].n && all)
            fprintf(stderr, "sim: no %s in all the run\n", rows[i].name);
        complete = complete && rows[i].n;
    }
    printf("\n");
    return complete || !all;
}

static int run(uint64_t seed, uint64_t n_steps, bool one_world)
{
    struct sim_counts counts = {0};
    struct rng rng = {seed};
    double start = seconds(), took;
    const char *wrong;

    while (counts.steps < n_steps || one_world) {
        uint64_t world = one_world ? seed : rng_next(&rng);

        current_world = world;
        wrong = sim_world_run(world, STEPS_A_WORLD, &counts);
        if (wrong) {
            fprintf(stderr, "sim: %s; again with --world %" PRIu64 "\n", wrong, world);
            return 1;
        }
        if (one_world)
            break;
    }
    took = seconds() - start;
    printf("seed %" PRIu64 ": %" PRIu64 " steps in %.1f s of CPU time, %.0f a second\n", seed,
           counts.steps, took, (double)counts.steps / took);
    return print_counts(&counts, !one_world && !sim_plant && n_steps >= 200000) ? 0 : 1;
}

/* Ends the program where there is no such bug, or the core was built without them. */
static int plant_named(const char *name)
{
#define PLANT_NAME(name, text) #name,
    static const char *const names[] = {"NONE", PLANTS(PLANT_NAME)};
    const bool built_with_bugs = PLANT(sim_plant);

    for (size_t i = 1; built_with_bugs && i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(names[i], name) == 0)
            return (int)i;
    fprintf(stderr, "sim: no bug %s in this build\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"steps", required_argument, NULL, 'n'},
        {"seed", required_argument, NULL, 's'},
        {"world", required_argument, NULL, 'w'},
        {"plant", required_argument, NULL, 'p'},
        {NULL, 0, NULL, 0},
    };
    uint64_t n_steps = 1000000, seed = 1;
    bool one_world = false;
    int opt;

    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (opt) {
        case 'n':
            n_steps = strtoull(optarg, NULL, 10);
            break;
        case 'w':
            one_world = true; /* fall through */
        case 's':
            seed = strtoull(optarg, NULL, 10);
            break;
        case 'p':
            sim_plant = plant_named(optarg);
            break;
        default:
            fprintf(stderr, "usage: sim [--steps N] [--seed S] [--world SEED] [--plant BUG]\n");
            return 2;
        }
    }
    signal(SIGABRT, on_signal);
    if (sim_plant) {
        signal(SIGSEGV, on_signal);
        signal(SIGALRM, on_signal);
        alarm(LOOP_S);
    }
    return run(seed, n_steps, one_world);
}
