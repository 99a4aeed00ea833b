// resident_frame.cuh - what all roles of the resident kernel go by: where messages lie, what a
// block keeps in shared memory, the list of products, the barriers within a block.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_FRAME_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_FRAME_CUH

#include "cuda/kernels/resident/resident.h"
#include "cuda/kernels/resident/resident_message.cuh"
#include "cuda/kernels/resident/resident_ring.cuh"

// Where messages lie; rows of each are RESIDENT_MAX_ROWS. A box of eights for k columns is [k / 32,
// rows, 4]: what a warp loads for the matrix unit at once lies together.
struct mailboxes {
    uint4 *x_attn, *x_mlp;               // [TURNS] boxes of hidden: residual * norm weight
    uint4 *attn;                         // [TURNS] boxes of attn_dim
    uint4 *act;                          // [TURNS] boxes of ffn
    uint4 *x_head;                       // a box of hidden
    message *squares_attn, *squares_mlp; // [rows, hidden / 8] sums of squares of the residual
    message *qkv;                        // [rows, qkv_dim / 2] bf16 pairs
    message *parts; // [rows + groups, n_kv_heads, group, head_dim + 2] of attention
};

// Consecutive keys of one sequence, in units, that this block attends to.
struct segment {
    int32_t seq, begin, end;
};

// What a model's shape and the rows make of shared memory.
struct layout {
    int n_stages, x, scratch, residual; // bytes
};

struct resident_shared {
    struct layout layout;
    int32_t m, n_rows;      // rows of the step, and of those that logits are wanted of
    uint32_t tag;           // of the first layer
    struct mailboxes box;   // of the first copies
    struct mailboxes inbox; // of this block's copies
    int64_t apart;          // messages from a copy to the next
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
    uint32_t thread;  // of the block
    int m, rows_log;  // rows; 1 << rows_log is at least that
    uint32_t tag;     // of the layer
    int turn;         // which half of what is doubled
#ifdef RESIDENT_PROFILE
    int n_marks;
#endif
};

static __host__ __device__ __forceinline__ int64_t eights_of_box(int k)
{
    return (int64_t)k / 8 * RESIDENT_MAX_ROWS;
}

static constexpr int HELPERS = 2; // warps beside the consumers that get them what y meets

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum { ALL_CONSUMERS = 1, CONSUMERS_AND_HELPERS = 2 }; // named barriers

// Not bar.sync, whose threads promise to be together: the compiler brings a warp's lanes together
// before it, which costs more (1 row: 546 us a step, so 523; H200, 2026-11-21), and synccheck wants
// such a barrier to be one place in the code, where consumers and helpers are in two.
static __device__ __forceinline__ void meet(int barrier)
{
    if (barrier == ALL_CONSUMERS)
        asm volatile("barrier.sync 1, %0;" ::"n"(CONSUMERS * WARP) : "memory");
    else
        asm volatile("barrier.sync 2, %0;" ::"n"((CONSUMERS + HELPERS) * WARP) : "memory");
}

static __device__ __forceinline__ int warp_of(const struct frame &f)
{
    return (int)(f.thread / WARP);
}

static __device__ __forceinline__ int lane_of(const struct frame &f)
{
    return (int)(f.thread % WARP);
}

// What follows from the thread's number is worked out anew from here on: kept for the whole kernel,
// all of it would take the registers that x needs.
static __device__ __forceinline__ void forget(struct frame &f)
{
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(f.thread));
}

static __device__ __forceinline__ void mark(struct frame &f)
{
#ifdef RESIDENT_PROFILE
    if (f.thread == 0 && f.n_marks < RESIDENT_MARKS)
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

static __device__ __forceinline__ int turn_of(int layer)
{
    return layer & (TURNS - 1);
}

// Where the block reads a product's x.
static __device__ __forceinline__ const uint4 *box_of_x(const struct frame &f, const struct job &j)
{
    const struct mailboxes &b = f.s.inbox;
    const uint4 *turns = j.kind == OUT       ? b.attn
                         : j.kind == GATE_UP ? b.x_mlp
                         : j.kind == DOWN    ? b.act
                                             : b.x_attn;

    return j.kind == LM_HEAD ? b.x_head : turns + turn_of(j.layer) * eights_of_box(j.k);
}

// Where a product's y goes, in the first copy: OUT, GATE_UP and DOWN.
static __device__ __forceinline__ uint4 *box_of_y(const struct frame &f, const struct job &j)
{
    const struct mailboxes &b = f.s.box;
    uint4 *turns = j.kind == OUT ? b.x_mlp : j.kind == GATE_UP ? b.act : b.x_attn;
    const int layer = j.layer + (j.kind == DOWN);

    return layer == f.a.n_layers ? b.x_head : turns + turn_of(layer) * eights_of_box(j.n);
}

// What attention finds, in the first copy.
static __device__ __forceinline__ uint4 *box_of_attn(const struct frame &f, int layer)
{
    return f.s.box.attn + turn_of(layer) * eights_of_box(f.a.n_heads * f.a.kv.head_dim);
}

// The eight of a row that has a column.
static __device__ __forceinline__ int64_t eight_at(int row, int column)
{
    return (int64_t)(column / PIECE * RESIDENT_MAX_ROWS + row) * 4 + column % PIECE / COLS;
}

// One copy for each of four neighbouring lanes that all have the eight.
static __device__ __forceinline__ uint4 *copy_of_lane(const struct frame &f, uint4 *first)
{
    return first + f.thread % 4 * f.s.apart / 2;
}

#endif
#endif
