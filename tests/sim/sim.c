/* sim.c - the core against a backend whose answers are known, over millions of checked steps.
 *
 * usage: sim [--steps N] [--seed S] [--world SEED] [--plant BUG]
 *
 * Each world has a seed of its own; a failure prints it, and --world runs that one again. With
 * --plant, which sim-planted knows, the core has that bug of engine/util/plant.h: the run is made
 * in a child and must fail. */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/util/plant.h"
#include "tests/sim/rng.h"
#include "tests/sim/sim_world.h"

enum { STEPS_A_WORLD = 2000 };

int sim_plant;
static volatile uint64_t current_world;

/* An invariant that the core asserts: says which world it was, then aborts as before. */
static void on_abort(int signal_number)
{
    char line[64];
    int n = snprintf(line, sizeof(line), "sim: again with --world %" PRIu64 "\n", current_world);

    if (write(STDERR_FILENO, line, (size_t)n) < 0)
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

/* What a long run must have seen, or it shows less than it seems to. */
static const char *missing(const struct sim_counts *c)
{
    if (!c->preemptions)
        return "preemption";
    if (!c->held)
        return "a sequence held back";
    if (!c->evictions)
        return "a cached block reused";
    if (!c->hit_tokens)
        return "a prefix found";
    if (!c->refused || !c->cancels || !c->stops || !c->deadlines || !c->numerics || !c->waits)
        return "a refusal, cancel, stop, deadline, numerics or wait";
    if (!c->copies_down || !c->copies_up || !c->loads || !c->accepted || !c->masks)
        return "a copy between tiers, a wait for one, an accepted draft or a mask";
    if (!c->pins || !c->clears || !c->yields)
        return "a pin, a clear or a yield";
    return NULL;
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
    printf("seed %" PRIu64 ": %" PRIu64 " steps in %.1f s of CPU time, %.0f a second; %" PRIu64
           " worlds, %" PRIu64 " requests, %" PRIu64 " choices, %" PRIu64 " tokens\n",
           seed, counts.steps, took, (double)counts.steps / took, counts.worlds, counts.requests,
           counts.choices, counts.tokens);
    printf("preemptions %" PRIu64 ", held back %" PRIu64 ", evictions %" PRIu64 ", hits %" PRIu64
           " of %" PRIu64 " tokens, refused %" PRIu64 ", cancels %" PRIu64 ", stops %" PRIu64
           ", deadlines %" PRIu64 ", numerics %" PRIu64 ", waits %" PRIu64 ", pins %" PRIu64
           ", clears %" PRIu64 ", yields %" PRIu64 "\n"
           "copies down %" PRIu64 ", up %" PRIu64 ", loads %" PRIu64 ", drafts %" PRIu64
           ", accepted %" PRIu64 ", masks %" PRIu64 "\n",
           counts.preemptions, counts.held, counts.evictions, counts.hit_tokens,
           counts.queried_tokens, counts.refused, counts.cancels, counts.stops, counts.deadlines,
           counts.numerics, counts.waits, counts.pins, counts.clears, counts.yields,
           counts.copies_down, counts.copies_up, counts.loads, counts.drafts, counts.accepted,
           counts.masks);
    wrong = one_world || n_steps < 200000 ? NULL : missing(&counts);
    if (wrong) {
        fprintf(stderr, "sim: %s never happened\n", wrong);
        return 1;
    }
    return 0;
}

/* 0 when a child that runs the simulation fails and says why. */
static int must_be_caught(uint64_t seed, uint64_t n_steps)
{
    char said[4096];
    size_t n = 0;
    int fds[2], status;
    ssize_t got;
    pid_t child;

    if (pipe(fds) < 0 || (child = fork()) < 0) {
        perror("sim");
        return 2;
    }
    if (child == 0) {
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        alarm(120); /* a bug may also show as a loop without end */
        exit(run(seed, n_steps, false));
    }
    close(fds[1]);
    while ((got = read(fds[0], said + n, sizeof(said) - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(fds[0]);
    waitpid(child, &status, 0);
    if ((WIFEXITED(status) && WEXITSTATUS(status) == 0) || n == 0) {
        fprintf(stderr, "sim: the planted bug was not caught\n");
        return 1;
    }
    printf("caught: %.*s\n", (int)strcspn(said, "\n"), said);
    return 0;
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
        case 's':
            seed = strtoull(optarg, NULL, 10);
            break;
        case 'w':
            seed = strtoull(optarg, NULL, 10);
            one_world = true;
            break;
        case 'p':
            sim_plant = plant_named(optarg);
            break;
        default:
            fprintf(stderr, "usage: sim [--steps N] [--seed S] [--world SEED] [--plant BUG]\n");
            return 2;
        }
    }
    signal(SIGABRT, on_abort);
    if (!sim_plant || sim_plant == PLANT_SHORT_HASH) /* a collision is a miss, and no bug */
        return run(seed, n_steps, one_world);
    signal(SIGSEGV, on_abort); /* some bugs break more than an invariant */
    return must_be_caught(seed, n_steps);
}
