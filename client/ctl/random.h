/* random.h - the numbers of Python's random module: MT19937, its seeding and randint().
 *
 * Published workloads are a few lines of Python and a seed; this draws the same numbers. */
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

/* random.randint(min, max), both inclusive; min <= max */
uint32_t random_int(struct random *r, uint32_t min, uint32_t max);

/* in (0, 1]; not a function of Python */
double random_share(struct random *r);

#endif
