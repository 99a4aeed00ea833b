// resident_reset.cuh - what the helper warps do so that packet buffers can be used again: sentinels
// into the packets that this block wrote, and a split-phase grid barrier per layer that orders
// them.
//
// In layer l, off the consumers' path, the helpers of each block
//   1. wait at the barrier of layer l - 1: then all blocks have read every packet of layer l - 2,
//   2. reset the packets that this block wrote in layer l - 2,
//   3. arrive at the barrier of layer l.
// Arriving is a store with release semantics, waiting a load with acquire semantics, of one flag a
// block; named barriers tie the other threads of a block to the one that does it. Consumers load
// the first packet of layer l + 2, in the same buffer as those of layer l - 2, after their helpers
// have waited for layer l. So every reset precedes in causality order each load of the buffer's
// next use, and such a load returns a sentinel or a new packet, never an old one. Resets and new
// packets of one block are ordered by its own barriers.
//
// The flags of odd and even layers are two sets: a block arrives at layer l + 1 only after all have
// arrived at layer l, each when it had waited for layer l - 1. The end of the kernel orders the
// rest.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_RESET_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_RESET_CUH

#include "cuda/kernels/resident/resident_frame.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ int helper_thread(const struct frame &f)
{
    return (int)(f.thread % (HELPERS * WARP));
}

static __device__ __forceinline__ uint32_t *flags_of(const struct frame &f, uint32_t tag)
{
    return f.s.out.flags + tag % 2 * gridDim.x;
}

// All blocks have arrived with this tag, and all threads of the helpers know it.
static __device__ __forceinline__ void grid_wait(const struct frame &f, uint32_t tag)
{
#pragma unroll 1
    for (int i = helper_thread(f); i < (int)gridDim.x; i += HELPERS * WARP)
        wait_flag(flags_of(f, tag) + i, tag);
    named_sync(ALL_HELPERS);
}

static __device__ __forceinline__ void grid_arrive(const struct frame &f, uint32_t tag)
{
    named_sync(ALL_HELPERS);
    if (helper_thread(f) == 0)
        store_flag(flags_of(f, tag) + blockIdx.x, tag);
}

// Of this block's tiles of a buffer.
static __device__ __forceinline__ void reset_tiles(const struct frame &f, uint4 *buffer, int tiles,
                                                   int rows)
{
#pragma unroll 1
    for (int i = helper_thread(f); i < tiles * rows * 4; i += HELPERS * WARP) {
        const int tile = i / 4 / rows, row = i / 4 - tile * rows;

        store_packet(copy_of_lane(f, buffer) + packet_at(row, tile_of_block(tile) * COLS),
                     sentinel());
    }
}

// What send_segment() and join_item() wrote.
static __device__ __forceinline__ void reset_attention(const struct frame &f, int layer, int rows)
{
    const int head_dim = f.a.kv.head_dim, group = f.s.group, parts = head_dim / 16;
    const int first = f.s.kv_head * group * head_dim, n = f.s.n_groups;
    const int items = f.s.own < n ? rows * group * parts : 0, thread = helper_thread(f);
    uint4 *const buffer = copy_of_lane(f, buffer_of_attn(f, layer));

#pragma unroll 1
    for (int i = 0; i < f.s.n_segments; i++) {
        const int seq = f.s.segments[i].seq;

        if (f.s.n_parts[seq] == 1)
#pragma unroll 1
            for (int j = thread; j < group * head_dim / 2; j += HELPERS * WARP)
                store_packet(buffer + packet_at(seq, first + j / 4 * COLS), sentinel());
    }
#pragma unroll 1
    for (int i = f.s.own + thread / 8 * n; i < items; i += HELPERS * WARP / 8 * n) {
        const int seq = i / (group * parts), column = (i - seq * group * parts) * 16;

        if (f.s.n_parts[seq] > 1)
            store_packet(buffer + packet_at(seq, first + column + thread / 4 % 2 * COLS),
                         sentinel());
    }
}

// What this block wrote in a layer. Layer -2 is what it wrote for the LM head in the step before,
// which may have had more rows; -1 is nothing. Loops are rolled to spare the instruction cache.
static __device__ __forceinline__ void reset_layer(const struct frame &f, int layer, int rows)
{
    const struct exchange &b = f.s.out;
    const int n = layer >= 0 ? 3 : layer == -2 ? 1 : 0;

    if (layer >= 0)
        reset_attention(f, layer, rows);
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        uint4 *const buffers = i == 0 ? b.x_attn : i == 1 ? b.x_mlp : b.act;
        uint4 *const buffer =
            buffers + rotation(layer) * packets_of_buffer(i < 2 ? f.a.hidden : f.a.ffn);

        reset_tiles(f, layer < 0 ? b.x_head : buffer, f.s.mine[i < 2 ? DOWN : GATE_UP],
                    layer < 0 ? (int)RESIDENT_MAX_ROWS : rows);
    }
}

#endif
#endif
