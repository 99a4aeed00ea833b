/* random.h - the numbers that Python's random module draws: MT19937, its seeding and randint().
 *
 * Published workloads are given as a few lines of Python and a seed; this draws the same. */
#ifndef NVLLM_CLIENT_CTL_RANDOM_H
#define NVLLM_CLIENT_CTL_RANDOM_H

#include <stdint.h>

enum { RANDOM_WORDS = 624 };

struct random {
    uint32_t words[RANDOM_WORDS];
    int next;
};

/* random.seed(seed) */
void random_seed(struct random *r, uint64_t seed);

/* random.getrandbits(32) */
uint32_t random_u32(struct random *r);

/* random.randint(min, max): both may come; min <= max */
uint32_t random_int(struct random *r, uint32_t min, uint32_t max);

/* Above 0, up to 1; not one of Python's. */
double random_share(struct random *r);

#endif
