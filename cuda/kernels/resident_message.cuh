// resident_message.cuh - how blocks of a running kernel hand each other numbers: 64-bit words in
// global memory of which the upper half is a tag that names the step and the layer.
//
// A word is written and read whole, so who finds the tag has the number: no barrier and no fence,
// one way to L2 and one back. A word is written again only when each of its readers has shown, by a
// message that the writer depends on, that it has read it.
#ifndef NVLLM_CUDA_RESIDENT_MESSAGE_CUH
#define NVLLM_CUDA_RESIDENT_MESSAGE_CUH

#include "cuda/kernels/common.cuh"

typedef uint64_t message;

static constexpr int COPIES = 4; // of what all blocks read

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ message message_of(uint32_t value, uint32_t tag)
{
    return (uint64_t)tag << 32 | value;
}

static __device__ __forceinline__ void post(message *to, uint32_t value, uint32_t tag)
{
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(message_of(value, tag))
                 : "memory");
}

// Two neighbours; to is 16-byte aligned.
static __device__ __forceinline__ void post_two(message *to, uint32_t a, uint32_t b, uint32_t tag)
{
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(message_of(a, tag)),
                 "l"(message_of(b, tag))
                 : "memory");
}

// The same into each of COPIES boxes that are `apart` words from each other. What all blocks read
// lies in as many places: a line of L2 that all of them ask for again and again answers slowly.

static __device__ __forceinline__ void post_all(message *to, uint32_t value, uint32_t tag,
                                                int64_t apart)
{
#pragma unroll
    for (int i = 0; i < COPIES; i++)
        post(to + i * apart, value, tag);
}

struct two_messages {
    message a, b;
};

static __device__ __forceinline__ struct two_messages look(const message *from)
{
    struct two_messages m;

    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(m.a), "=l"(m.b)
                 : "l"(from)
                 : "memory");
    return m;
}

static __device__ __forceinline__ bool bears(const struct two_messages &m, uint32_t tag)
{
    return (uint32_t)(m.a >> 32) == tag && (uint32_t)(m.b >> 32) == tag;
}

// Waits for N pairs of words at once: from + at[i], none where at[i] is negative. In rounds that
// ask for all that are missing.
template <int N>
static __device__ __forceinline__ void await(struct two_messages (&m)[N], const message *from,
                                             const int (&at)[N], uint32_t tag)
{
    bool all;

#pragma unroll
    for (int i = 0; i < N; i++)
        m[i].a = m[i].b = message_of(0, at[i] < 0 ? tag : ~tag);
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!bears(m[i], tag))
                m[i] = look(from + at[i]);
#pragma unroll
        for (int i = 0; i < N; i++)
            all = all && bears(m[i], tag);
    } while (!all);
}

static __device__ __forceinline__ float message_float(message m)
{
    return __uint_as_float((uint32_t)m);
}

#endif
#endif
