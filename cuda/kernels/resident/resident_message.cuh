// resident_message.cuh - how blocks of a running kernel hand each other numbers through memory,
// without a barrier and without a fence on their way: a number is written and read whole, and who
// looks at it sees whether it is there.
//
// What few blocks read are messages: 64-bit words of which the upper half is a tag that names the
// step and the layer. One is written again only when each of its readers has shown, by a message
// that the writer depends on, that it has read it.
//
// What all blocks read would be twice as long for its tags. It goes in eights: eight bf16 of a row,
// of which all ones, a blank, says that they are not there yet. No conversion to bf16 gives that:
// whatever is no number becomes 0x7fff. So an eight must be blank again before it is used again.
// Each box of eights exists TURNS = 4 times; layer l uses number l % 4, and in layer l each block
// blanks the eights that it wrote in layer l - 2, then fences, before it posts to any box of layer
// l + 1.
//
// Nobody still wants what is blanked: whoever has posted to a box in layer l - 1 had that from
// x_attn of layer l - 1, all of which comes from blocks that are done with layer l - 2, each with
// its part. Nobody finds the old eight in place of that of layer l + 2: he asks for it only after
// he has had all of the box of layer l + 1, which this block filled after its blanks and its fence.
// Blanks and what is later written over them are ordered by the block's barriers. What is left at
// the end of a step, when all are known to be done, is blanked then; the next kernel finds nothing
// but blanks. Only the LM head's x remains, of which nobody knows when it has been read: it has a
// box of its own that the next step blanks, and readers ask for it only when they have sums of
// squares that were posted after that.
//
// The writer's half of this is PTX's memory model: blanks, fence.acq_rel.gpu, bar.sync, post. The
// reader has no fence between the eight that he has and the one that he asks for next: that loads
// of gpu scope are answered by L2, and that none is issued before the branch on the one before, is
// how the hardware works, as is that a message's reader who then posts has read.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_MESSAGE_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_MESSAGE_CUH

#include "cuda/kernels/common.cuh"
#include "cuda/kernels/resident/resident.h"

typedef uint64_t message;

// Of what all blocks read: a line of L2 that all of them ask for again and again answers slowly.
// The four lanes that have eight columns of a row write a copy each.
static constexpr int COPIES = RESIDENT_COPIES;
static constexpr int TURNS = 4;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Rounds of asking after which a message is lost: seconds, where the longest wait of a sound step
// is well below a millisecond. A store to nowhere ends the kernel with an error, and that the
// process; with a trap in it ptxas would not give the consumers their registers.
static constexpr uint32_t PATIENCE = 1u << 22;

static __device__ __forceinline__ void ask_again(uint32_t &rounds)
{
    if (++rounds == PATIENCE)
        asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(rounds) : "memory");
}

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

// Waits for up to N pairs of words at once: from + i * STEP, i < n. In rounds that ask for all that
// are missing.
template <int N, int STEP>
static __device__ __forceinline__ void await_row(struct two_messages (&m)[N], const message *from,
                                                 int n, uint32_t tag)
{
    uint32_t rounds = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        m[i].a = m[i].b = message_of(0, i < n ? ~tag : tag);
    for (;;) {
        bool all = true;

#pragma unroll
        for (int i = 0; i < N; i++)
            if (!bears(m[i], tag))
                m[i] = look(from + i * STEP);
#pragma unroll
        for (int i = 0; i < N; i++)
            all = all && bears(m[i], tag);
        if (all)
            break;
        ask_again(rounds);
    }
}

// The same of from + at[i], none where at[i] is negative.
template <int N>
static __device__ __forceinline__ void await(struct two_messages (&m)[N], const message *from,
                                             const int (&at)[N], uint32_t tag)
{
    uint32_t rounds = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        m[i].a = m[i].b = message_of(0, at[i] < 0 ? tag : ~tag);
    for (;;) {
        bool all = true;

#pragma unroll
        for (int i = 0; i < N; i++)
            if (!bears(m[i], tag))
                m[i] = look(from + at[i]);
#pragma unroll
        for (int i = 0; i < N; i++)
            all = all && bears(m[i], tag);
        if (all)
            break;
        ask_again(rounds);
    }
}

static __device__ __forceinline__ float message_float(message m)
{
    return __uint_as_float((uint32_t)m);
}

static __device__ __forceinline__ uint4 blank()
{
    return make_uint4(~0u, ~0u, ~0u, ~0u);
}

// Eights are read and written whole, so any of their words tells.
static __device__ __forceinline__ bool is_blank(const uint4 &eight)
{
    return eight.x == ~0u;
}

static __device__ __forceinline__ uint4 look_eight(const uint4 *from)
{
    uint64_t a, b;

    asm volatile("{\n"
                 ".reg .b128 v;\n"
                 "ld.relaxed.gpu.global.b128 v, [%2];\n"
                 "mov.b128 {%0, %1}, v;\n"
                 "}"
                 : "=l"(a), "=l"(b)
                 : "l"(from)
                 : "memory");
    return make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
}

static __device__ __forceinline__ void post_eight(uint4 *to, const uint4 &eight)
{
    asm volatile("{\n"
                 ".reg .b128 v;\n"
                 "mov.b128 v, {%1, %2};\n"
                 "st.relaxed.gpu.global.b128 [%0], v;\n"
                 "}" ::"l"(to),
                 "l"((uint64_t)eight.y << 32 | eight.x), "l"((uint64_t)eight.w << 32 | eight.z)
                 : "memory");
}

// Each of four neighbouring lanes has two columns, all get the eight; by whole warps.
static __device__ __forceinline__ uint4 eight_of(uint32_t pair)
{
    return make_uint4(__shfl_sync(ALL_LANES, pair, 0, 4), __shfl_sync(ALL_LANES, pair, 1, 4),
                      __shfl_sync(ALL_LANES, pair, 2, 4), __shfl_sync(ALL_LANES, pair, 3, 4));
}

// What this thread wrote before is seen by all who see what the block posts after its next barrier.
static __device__ __forceinline__ void fence()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

#endif
#endif
