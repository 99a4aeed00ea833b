// resident_exchange.cuh - how the blocks of the running kernel pass results to each other through
// global memory without a barrier on the way: every access is one relaxed atomic access of gpu
// scope that carries its own proof that the data is there.
//
// Tagged words: 64 bits, a value and the tag of step and layer, as in NCCL's LL protocol. For data
// that few blocks read. The next layer overwrites a word; its writer computes what it writes from
// what every reader of the old word sent after reading it.
//
// Packets: 128 bits, eight bf16 of one row, for the all-gathers, where tags would double the
// traffic. All ones in the first 32 bits is the sentinel: not written yet. No conversion to bf16
// yields it, NaN becomes 0x7fff. ld and st have .b128 as a scalar type since PTX ISA 8.3, and
// libcu++ makes 16-byte atomic loads and stores of them. A vector type such as .v4.b32 would not
// do: by "Vector Data-types" of the PTX ISA's "Memory Consistency Model" it stands for one access
// per element, in any order. Packet buffers are used again: see resident.cu.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_EXCHANGE_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_EXCHANGE_CUH

#include "cuda/kernels/common.cuh"
#include "cuda/kernels/resident/resident.h"

typedef uint64_t tagged_word;

// Copies of what all blocks read: one line of L2 that all of them poll answers slowly. The four
// lanes that hold a packet's columns write a copy each.
static constexpr int COPIES = RESIDENT_COPIES;
static constexpr int N_BUFFERS = 4; // layer l uses packet buffers l % 4

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Polls after which data counts as lost: most of PEER_SECONDS (4 Mi take 0.8 s on an H200), where
// the longest wait of a sound step is far below a millisecond unless a twin is launched late. A
// store to address 0 then ends the kernel with an error, and the daemon restarts; a trap
// instruction would make ptxas withhold registers from the consumers.
static constexpr uint32_t MAX_POLLS = PEER_SECONDS * (4u << 20);

static __device__ __forceinline__ void count_poll(uint32_t &polls)
{
    if (++polls == MAX_POLLS)
        asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(polls) : "memory");
}

static __device__ __forceinline__ tagged_word tagged(uint32_t value, uint32_t tag)
{
    return (uint64_t)tag << 32 | value;
}

static __device__ __forceinline__ void send(tagged_word *to, uint32_t value, uint32_t tag)
{
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(tagged(value, tag))
                 : "memory");
}

// Two neighbours; to is 16-byte aligned.
static __device__ __forceinline__ void send_pair(tagged_word *to, uint32_t a, uint32_t b,
                                                 uint32_t tag)
{
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(tagged(a, tag)),
                 "l"(tagged(b, tag))
                 : "memory");
}

struct tagged_pair {
    tagged_word a, b;
};

static __device__ __forceinline__ struct tagged_pair load_pair(const tagged_word *from)
{
    struct tagged_pair m;

    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(m.a), "=l"(m.b)
                 : "l"(from)
                 : "memory");
    return m;
}

static __device__ __forceinline__ bool carries(const struct tagged_pair &m, uint32_t tag)
{
    return (uint32_t)(m.a >> 32) == tag && (uint32_t)(m.b >> 32) == tag;
}

// Waits for up to N pairs of words, those there(i), at from(i). A poll asks for all missing ones.
template <int N, typename There, typename From>
static __device__ __forceinline__ void receive(struct tagged_pair (&m)[N], uint32_t tag,
                                               There there, From from)
{
    uint32_t polls = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        m[i].a = m[i].b = tagged(0, there(i) ? ~tag : tag);
    for (;;) {
        bool all = true;

#pragma unroll
        for (int i = 0; i < N; i++)
            if (!carries(m[i], tag))
                m[i] = load_pair(from(i));
#pragma unroll
        for (int i = 0; i < N; i++)
            all = all && carries(m[i], tag);
        if (all)
            break;
        count_poll(polls);
    }
}

// Waits for one of the pairs that a warp is about to receive: the one at lane 0's `from`. Polls of
// all blocks delay the stores that they wait for, so a warp that receives much polls one pair until
// it is there. (0.6B with 2, 4, 8, 16 rows of 520 keys on an H200: when helpers polled all sums of
// squares from the beginning, a step took 516, 556, 661, 809 us; this wait alone made that 504,
// 529, 592, 742. 2026-11-30.)
static __device__ __forceinline__ void wait_pair(const tagged_word *from, uint32_t tag)
{
    uint32_t polls = 0;

    if (threadIdx.x % WARP == 0)
        while (!carries(load_pair(from), tag))
            count_poll(polls);
    __syncwarp();
}

// Swaps two neighbouring floats with the block's twin on the other rank.
static __device__ __forceinline__ float2 swap_with_twin(uint64_t *theirs, const uint64_t *mine,
                                                        float2 own, uint32_t tag)
{
    struct tagged_pair m;
    uint32_t polls = 0;

    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(theirs),
                 "l"(tagged(__float_as_uint(own.x), tag)), "l"(tagged(__float_as_uint(own.y), tag))
                 : "memory");
    for (;; count_poll(polls)) {
        asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
                     : "=l"(m.a), "=l"(m.b)
                     : "l"(mine)
                     : "memory");
        if (carries(m, tag))
            return make_float2(__uint_as_float((uint32_t)m.a), __uint_as_float((uint32_t)m.b));
    }
}

static __device__ __forceinline__ float float_of(tagged_word m)
{
    return __uint_as_float((uint32_t)m);
}

static __device__ __forceinline__ uint4 sentinel()
{
    return make_uint4(~0u, ~0u, ~0u, ~0u);
}

static __device__ __forceinline__ bool is_sentinel(const uint4 &packet)
{
    return packet.x == ~0u;
}

static __device__ __forceinline__ uint4 load_packet(const uint4 *from)
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

// Waits for the packets for which each(visit) calls visit(packet, at). A poll asks for all missing.
// meanwhile() runs once, while the loads of the first are in flight.
template <typename Each, typename Meanwhile>
static __device__ __forceinline__ void receive_packets(const Each &each, const Meanwhile &meanwhile)
{
    uint32_t polls = 0;
    const auto load = [](uint4 &packet, const uint4 *at) {
        if (is_sentinel(packet))
            packet = load_packet(at);
    };
    const auto all_there = [&] {
        bool all = true;

        each([&](const uint4 &packet, const uint4 *) { all = all && !is_sentinel(packet); });
        return all;
    };

    each(load);
    meanwhile();
    while (!all_there()) {
        count_poll(polls);
        each(load);
    }
}

static __device__ __forceinline__ void store_packet(uint4 *to, const uint4 &packet)
{
    asm volatile("{\n"
                 ".reg .b128 v;\n"
                 "mov.b128 v, {%1, %2};\n"
                 "st.relaxed.gpu.global.b128 [%0], v;\n"
                 "}" ::"l"(to),
                 "l"((uint64_t)packet.y << 32 | packet.x), "l"((uint64_t)packet.w << 32 | packet.z)
                 : "memory");
}

// Each of four neighbouring lanes has two columns; all get the packet. Called by whole warps.
static __device__ __forceinline__ uint4 packet_of(uint32_t pair)
{
    return make_uint4(__shfl_sync(ALL_LANES, pair, 0, 4), __shfl_sync(ALL_LANES, pair, 1, 4),
                      __shfl_sync(ALL_LANES, pair, 2, 4), __shfl_sync(ALL_LANES, pair, 3, 4));
}

static __device__ __forceinline__ void store_flag(uint32_t *to, uint32_t tag)
{
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(tag) : "memory");
}

static __device__ __forceinline__ void wait_flag(const uint32_t *from, uint32_t tag)
{
    uint32_t seen, polls = 0;

    for (;;) {
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(from) : "memory");
        if (seen == tag)
            return;
        count_poll(polls);
    }
}

#endif
#endif
