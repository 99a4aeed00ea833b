/* random.c - see bench.h: the generator of Matsumoto and Nishimura, 2002. */
#include "client/ctl/bench.h"

enum { MIDDLE = 397 };

void random_seed(struct random *r, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t n_key = key[1] ? 2 : 1, i = 1, j = 0;
    uint32_t *w = r->words;

    w[0] = 19650218u;
    for (uint32_t k = 1; k < RANDOM_WORDS; k++)
        w[k] = 1812433253u * (w[k - 1] ^ (w[k - 1] >> 30)) + k;
    for (int k = 0; k < RANDOM_WORDS; k++) {
        w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1664525u)) + key[j] + j;
        j = (j + 1) % n_key;
        if (++i == RANDOM_WORDS) {
            w[0] = w[RANDOM_WORDS - 1];
            i = 1;
        }
    }
    for (int k = 0; k < RANDOM_WORDS - 1; k++) {
        w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1566083941u)) - i;
        if (++i == RANDOM_WORDS) {
            w[0] = w[RANDOM_WORDS - 1];
            i = 1;
        }
    }
    w[0] = 0x80000000u;
    r->next = RANDOM_WORDS;
}

static void refill(struct random *r)
{
    uint32_t *w = r->words;

    for (int i = 0; i < RANDOM_WORDS; i++) {
        uint32_t y = (w[i] & 0x80000000u) | (w[(i + 1) % RANDOM_WORDS] & 0x7fffffffu);

        w[i] = w[(i + MIDDLE) % RANDOM_WORDS] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->next = 0;
}

uint32_t random_u32(struct random *r)
{
    uint32_t y;

    if (r->next == RANDOM_WORDS)
        refill(r);
    y = r->words[r->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint32_t random_int(struct random *r, uint32_t min, uint32_t max)
{
    uint64_t n = (uint64_t)max - min + 1;
    int bits = 64 - __builtin_clzll(n);
    uint64_t drawn;

    /* Python draws as many bits as n has, 33 in two words, until the value is below n. */
    do {
        drawn = bits > 32 ? random_u32(r) : random_u32(r) >> (32 - bits);
        if (bits > 32)
            drawn |= (uint64_t)(random_u32(r) >> (64 - bits)) << 32;
    } while (drawn >= n);
    return min + (uint32_t)drawn;
}

double random_share(struct random *r)
{
    return ((double)random_u32(r) + 1) / 4294967296.0;
}
