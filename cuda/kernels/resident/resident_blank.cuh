// resident_blank.cuh - the helpers make eights blank again that this block wrote, see
// resident_message.cuh.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_BLANK_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_BLANK_CUH

#include "cuda/kernels/resident/resident_frame.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ int helper_thread(const struct frame &f)
{
    return (int)(f.thread % (HELPERS * WARP));
}

// Of this block's tiles of a box.
static __device__ __forceinline__ void blank_tiles(const struct frame &f, uint4 *box, int tiles,
                                                   int rows)
{
#pragma unroll 1
    for (int i = helper_thread(f); i < tiles * rows * 4; i += HELPERS * WARP) {
        const int tile = i / 4 / rows, row = i / 4 - tile * rows;

        post_eight(copy_of_lane(f, box) + eight_at(row, tile_of_block(tile) * COLS), blank());
    }
}

// What post_segment() and join_item() wrote.
static __device__ __forceinline__ void blank_attention(const struct frame &f, int layer, int rows)
{
    const int head_dim = f.a.kv.head_dim, group = f.s.group, pieces = head_dim / 16;
    const int first = f.s.kv_head * group * head_dim, n = f.s.n_groups;
    const int items = f.s.own < n ? rows * group * pieces : 0, thread = helper_thread(f);
    uint4 *const box = copy_of_lane(f, box_of_attn(f, layer));

#pragma unroll 1
    for (int i = 0; i < f.s.n_segments; i++) {
        const int seq = f.s.segments[i].seq;

        if (f.s.n_parts[seq] == 1)
#pragma unroll 1
            for (int j = thread; j < group * head_dim / 2; j += HELPERS * WARP)
                post_eight(box + eight_at(seq, first + j / 4 * COLS), blank());
    }
#pragma unroll 1
    for (int i = f.s.own + thread / 8 * n; i < items; i += HELPERS * WARP / 8 * n) {
        const int seq = i / (group * pieces), column = (i - seq * group * pieces) * 16;

        if (f.s.n_parts[seq] > 1)
            post_eight(box + eight_at(seq, first + column + thread / 4 % 2 * COLS), blank());
    }
}

// What this block wrote in a layer. Layer -2 is what it wrote for the LM head in the step before,
// which may have had more rows; -1 is nothing. Loops are rolled: code is short of caches.
static __device__ __forceinline__ void blank_layer(const struct frame &f, int layer, int rows)
{
    const struct mailboxes &b = f.s.box;
    const int boxes = layer >= 0 ? 3 : layer == -2 ? 1 : 0;

    if (layer >= 0)
        blank_attention(f, layer, rows);
#pragma unroll 1
    for (int i = 0; i < boxes; i++) {
        uint4 *const turns = i == 0 ? b.x_attn : i == 1 ? b.x_mlp : b.act;
        uint4 *const box = turns + turn_of(layer) * eights_of_box(i < 2 ? f.a.hidden : f.a.ffn);

        blank_tiles(f, layer < 0 ? b.x_head : box, f.s.mine[i < 2 ? DOWN : GATE_UP],
                    layer < 0 ? (int)RESIDENT_MAX_ROWS : rows);
    }
}

#endif
#endif
