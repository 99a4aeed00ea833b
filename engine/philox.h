/* philox.h - Philox4x32-10 (Salmon et al. 2011), and how sampling draws from it.
 *
 * A pure function of (seed, counter, token id), shared by all backends, so that a seed reproduces a
 * text whatever the batch and whatever computes it:
 *
 *   key     = (low 32 bits of seed, high 32 bits of seed)
 *   counter = (counter of batch_row, token id / 4, 0, 0)
 *   x       = output word token id % 4
 *   w       = min((float)x * 2^-32 + 2^-33, 1 - 2^-24), in (0, 1)
 *   u       = 1 - w
 *   g       = -log(-log(u)) = -log(-log1p(-w))
 *
 * w is what is computed with: close to 0 it has all its bits where 1 - w would have lost them, and
 * there lie the draws that decide. */
#ifndef NVLLM_ENGINE_PHILOX_H
#define NVLLM_ENGINE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FUNC static __host__ __device__ __forceinline__
#else
#define PHILOX_FUNC static inline
#endif

struct philox4 {
    uint32_t v[4];
};

/* Ten rounds; the key is advanced before each but the first. */
PHILOX_FUNC struct philox4 philox4x32_10(struct philox4 c, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c.v[0];
        const uint64_t b = (uint64_t)0xCD9E8D57u * c.v[2];
        const struct philox4 next = {{(uint32_t)(b >> 32) ^ c.v[1] ^ key0, (uint32_t)b,
                                      (uint32_t)(a >> 32) ^ c.v[3] ^ key1, (uint32_t)a}};

        c = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

/* The four words of the ids 4 * quad .. 4 * quad + 3. */
PHILOX_FUNC struct philox4 philox_quad(uint64_t seed, uint32_t counter, uint32_t quad)
{
    const struct philox4 c = {{counter, quad, 0, 0}};

    return philox4x32_10(c, (uint32_t)seed, (uint32_t)(seed >> 32));
}

PHILOX_FUNC float philox_w(uint32_t x)
{
    const float w = (float)x * 0x1p-32f + 0x1p-33f;

    return w < 1.0f - 0x1p-24f ? w : 1.0f - 0x1p-24f;
}

#endif
