/* sim_world.h - one random life of a core: options, clients, arrivals, cancels, until idle. */
#ifndef NVLLM_TESTS_SIM_SIM_WORLD_H
#define NVLLM_TESTS_SIM_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

/* What happened, over all worlds: a simulation that never preempts shows nothing of preemption. */
/* clang-format off */
#define SIM_COUNTS(X) \
    X(worlds) X(steps) X(tokens) X(requests) X(choices) X(refused) X(preemptions) X(prefix_waits) \
    X(evictions) X(hit_tokens) X(queried_tokens) X(copies_down) X(copies_up) X(loads) X(offloads) X(drafts) \
    X(accepted) X(masks) X(late_masks) X(cancels) X(stops) X(deadlines) X(numerics) X(waits) X(pins) X(clears) \
    X(yields) X(sums) X(restarts) X(restored) X(slept_blocks) X(lost_blocks)
/* clang-format on */
#define SIM_COUNT(name) uint64_t name;
struct sim_counts {
    SIM_COUNTS(SIM_COUNT)
};

/* Runs about n_steps steps with everything that seed gives. NULL, or what was wrong. A broken
 * invariant of the core itself aborts. */
const char *sim_world_run(uint64_t seed, uint64_t n_steps, struct sim_counts *counts);

#endif
