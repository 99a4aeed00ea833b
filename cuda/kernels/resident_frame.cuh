// resident_frame.cuh - what all roles of the resident kernel go by: where messages lie, what a
// block keeps in shared memory, the list of products, the barriers within a block.
#ifndef NVLLM_CUDA_RESIDENT_FRAME_CUH
#define NVLLM_CUDA_RESIDENT_FRAME_CUH

#include "cuda/kernels/resident.h"
#include "cuda/kernels/resident_message.cuh"
#include "cuda/kernels/resident_ring.cuh"

// Where messages lie; rows of each are RESIDENT_MAX_ROWS.
struct mailboxes {
    message *x_attn, *x_mlp;             // [rows, hidden / 2] bf16 pairs: residual * norm weight
    message *squares_attn, *squares_mlp; // [rows, hidden / 8] sums of squares of the residual
    message *qkv;                        // [rows, qkv_dim / 2] bf16 pairs
    message *attn;                       // [rows, attn_dim / 2]
    message *act;                        // [rows, ffn / 2]
    message *parts; // [rows + groups, n_kv_heads, group, head_dim + 2] of attention
};

// Consecutive keys of one sequence, in units, that this block attends to.
struct segment {
    int32_t seq, begin, end;
};

struct resident_shared {
    struct mailboxes box;   // of the first copies
    struct mailboxes inbox; // of this block's copies
    int64_t apart;          // words from a copy to the next
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    float scale[2][RESIDENT_MAX_ROWS];     // 1 / rms
    float beside[2][RESIDENT_MAX_COLUMNS]; // what y meets: a bias, or the next norm's weight
    int32_t source[RESIDENT_MAX_ROWS];     // rows that logits are wanted of
    struct segment segments[RESIDENT_MAX_ROWS];
    int32_t n_segments, n_groups;
    int32_t kv_head, own; // the block's head in attention, and its number among those of that head
    int32_t group;        // query heads of a KV head
    int32_t mine[5];      // tiles of this block, by kind of product
    int32_t kv_len[RESIDENT_MAX_ROWS], first_part[RESIDENT_MAX_ROWS], n_parts[RESIDENT_MAX_ROWS];
    uint4 q[RESIDENT_MAX_GROUP * 128 / 8], key[128 / 8], value[128 / 8];
};

// What a thread of any role goes by.
struct frame {
    const struct resident &a;
    struct resident_shared &s;
    struct ring ring;
    unsigned char *x; // staged rows
    float *scratch;   // parts of y, or of attention
    float *residual;  // [tiles of this block, max_rows, COLS]
    int m, rows_log;  // rows; 1 << rows_log is at least that
    uint32_t tag;     // of the layer
    int turn;         // which half of what is doubled
    int kv_head, own; // of attention: the block's, and its number among those of that head
    int group;        // query heads of a KV head
#ifdef RESIDENT_PROFILE
    int n_marks;
#endif
};

// Bytes from a staged row of x to the next: an odd number of 64, so that two meet in no bank.
static __host__ __device__ __forceinline__ int x_stride(int k)
{
    return ((2 * k + 63) / 64 | 1) * 64;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum { ALL_CONSUMERS = 1, CONSUMERS_AND_HELPER = 2 }; // named barriers

// Not bar.sync, whose threads promise to be together: the compiler brings a warp's lanes together
// before it, which costs more (1 row: 546 us a step, so 523; H200, 2026-11-21), and synccheck wants
// such a barrier to be one place in the code, where consumers and helper are in two.
static __device__ __forceinline__ void meet(int barrier)
{
    if (barrier == ALL_CONSUMERS)
        asm volatile("barrier.sync 1, %0;" ::"n"(CONSUMERS * WARP) : "memory");
    else
        asm volatile("barrier.sync 2, %0;" ::"n"((CONSUMERS + 1) * WARP) : "memory");
}

static __device__ __forceinline__ void mark(struct frame &f)
{
#ifdef RESIDENT_PROFILE
    if (threadIdx.x == 0 && f.n_marks < RESIDENT_MARKS)
        f.a.marks[blockIdx.x * RESIDENT_MARKS + f.n_marks++] = clock64();
#else
    (void)f;
#endif
}

static __device__ __forceinline__ int tile_of_block(int i)
{
    return (int)blockIdx.x + i * (int)gridDim.x;
}

// Products in their order, four a layer and then the LM head. What a role does for one of them is
// written once and told by its kind: five times the code would not stay in the caches for it.
enum { QKV, OUT, GATE_UP, DOWN, LM_HEAD, N_KINDS };

struct job {
    int kind, layer;
    const uint16_t *w; // [n, k]; GATE_UP: [2, n, k]
    int n, k, mine;    // mine: tiles of this block
};

static __device__ __forceinline__ struct job job_of(const struct frame &f, int i)
{
    const struct resident &a = f.a;
    const int layer = i / 4, kind = layer < a.n_layers ? i % 4 : (int)LM_HEAD;
    const int attn_dim = a.n_heads * a.kv.head_dim;
    const uint16_t *w = kind == QKV       ? a.w.qkv
                        : kind == OUT     ? a.w.o
                        : kind == GATE_UP ? a.w.gate_up
                        : kind == DOWN    ? a.w.down
                                          : a.w.lm_head;
    struct job j = {kind, layer, w, a.hidden, a.hidden, f.s.mine[kind]};

    if (kind != LM_HEAD)
        j.w += layer * a.w.layer_stride;
    if (kind == QKV)
        j.n = attn_dim + 2 * a.kv.n_kv_heads * a.kv.head_dim;
    if (kind == OUT)
        j.k = attn_dim;
    if (kind == GATE_UP)
        j.n = a.ffn;
    if (kind == DOWN)
        j.k = a.ffn;
    if (kind == LM_HEAD)
        j.n = a.vocab_size;
    return j;
}

#endif
#endif
