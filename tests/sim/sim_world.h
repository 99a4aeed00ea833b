/* sim_world.h - one random life of a core: options, clients, arrivals, cancels, until idle. */
#ifndef NVLLM_TESTS_SIM_SIM_WORLD_H
#define NVLLM_TESTS_SIM_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

/* What happened, over all worlds: a simulation that never preempts shows nothing of preemption. */
struct sim_counts {
    uint64_t worlds, steps, tokens, requests, choices, refused;
    uint64_t preemptions, held, evictions, hit_tokens, queried_tokens;
    uint64_t copies_down, copies_up, loads, drafts, accepted, masks;
    uint64_t cancels, stops, deadlines, numerics, waits, pins, clears, yields;
};

/* Runs about n_steps steps with everything that seed gives. NULL, or what was wrong. A broken
 * invariant of the core itself aborts. */
const char *sim_world_run(uint64_t seed, uint64_t n_steps, struct sim_counts *counts);

#endif
