/* rng.h - seeded numbers for tests: SplitMix64 (Steele et al. 2014). */
#ifndef NVLLM_TESTS_SIM_RNG_H
#define NVLLM_TESTS_SIM_RNG_H

#include <stdbool.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t rng_next(struct rng *r)
{
    return rng_mix(r->state += 0x9e3779b97f4a7c15u);
}

/* 0 .. n - 1, without a division. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return (uint64_t)((unsigned __int128)rng_next(r) * n >> 64);
}

/* low .. high, both included. */
static inline int32_t rng_range(struct rng *r, int32_t low, int32_t high)
{
    return low + (int32_t)rng_below(r, (uint64_t)((int64_t)high - low + 1));
}

static inline bool rng_one_in(struct rng *r, int32_t n)
{
    return rng_below(r, (uint64_t)n) == 0;
}

#endif
