// resident_frame.cuh - what all roles of the resident kernel share: where exchanged data lies, what
// a block keeps in shared memory, the ring of stages there, the list of products, the barriers
// within a block.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_FRAME_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_FRAME_CUH

#include "cuda/kernels/hopper.cuh"
#include "cuda/kernels/resident/resident_exchange.cuh"

static constexpr int CONSUMERS = 8; // warps that compute
static constexpr int COLS = 8;      // rows of weights of a tile: columns of y
static constexpr int K_STEP = 32;  // words of 16 bits of a row in a step: k of two products of bf16
static constexpr int CHUNK = 1024; // such words in a stage
// Padded against bank conflicts. In pads lie scales of FP8, in the first row's, and exponents of
// keys.
static constexpr int ROW_BYTES = CHUNK * 2 + 64;
static constexpr int STAGE_BYTES = COLS * ROW_BYTES; // for keys see PIECES_OF_STAGE
static constexpr int MAX_STAGES = 14;
static constexpr int GROUP_COLS = 128; // weights of 4 or 8 bits that share a scale
static_assert(CHUNK * 2 / GROUP_COLS * 4 <= ROW_BYTES - CHUNK * 2, "FP8: there is room");
static constexpr int MAX_GROUPS_OF_ROW = CHUNK * 4 / GROUP_COLS; // in a stage
// Of weights of 4 bits: bytes of a stage's scales and of its zeros, at most.
static constexpr int SCALES_OF_STAGE = COLS * MAX_GROUPS_OF_ROW * 2;
static constexpr int ZEROS_OF_STAGE = COLS * MAX_GROUPS_OF_ROW;

// The ring of stages in shared memory through which a block reads weights, keys and values: filled
// by bulk copies (exponents of keys by cp.async), far ahead of their use. A stage holds eight rows
// of up to CHUNK weights of 16 bits, or as many bytes of quantized ones, or keys and values. One
// warp fills stages and eight empty them, in the same order, so they share nothing but two
// mbarriers a stage.
struct ring {
    uint32_t memory, full, empty; // addresses in shared memory
    int n;                        // stages
    int at;
    uint32_t parity; // of `full` when stage `at` comes
};

// Where exchanged data lies; all have RESIDENT_MAX_ROWS rows. A packet buffer for k columns is
// [k / 32, rows, 4]: what a warp loads at once for the tensor cores lies together.
struct exchange {
    uint4 *x_attn, *x_mlp; // [N_BUFFERS] packet buffers of hidden: residual * norm weight
    uint4 *attn;           // [N_BUFFERS] of attn_dim
    uint4 *act;            // [N_BUFFERS] of ffn
    uint4 *x_head;         // one of hidden
    tagged_word *squares_attn, *squares_mlp; // [rows, hidden / 8] sums of squares of the residual
    tagged_word *qkv;                        // [rows, qkv_dim / 2] bf16 pairs
    tagged_word *parts;  // [rows + groups, n_kv_heads, group, head_dim + 2] of split attention
    tagged_word *scores; // [n_experts] of the router
    uint32_t *flags;     // [2, n_blocks] of the grid barriers, in the first copy alone
};

// Products in their order, in each layer and then the LM head; only a mixture of experts has a
// router. A role's code for them is written once and branches on the kind: a copy for each would
// not stay in the instruction cache. Where projections are quantized the LM head, which comes once
// and is bf16, has its own.
enum { QKV, OUT, ROUTER, GATE_UP, DOWN, LM_HEAD, N_KINDS };

// A product of one layer. The LM head's layer is the one behind the last. y is for OUT, GATE_UP and
// DOWN; of other kinds it points nowhere.
struct job {
    int32_t kind, layer;
    int32_t n, k, mine; // mine: tiles of this block
    int32_t chunk;      // words of 16 bits of a stage's rows: k of bf16
    const uint16_t *w;  // [n, k]; GATE_UP: [2, n, k]; those of experts one behind the other
    const uint4 *x;     // in the copy that this block reads
    uint4 *y;           // in the first copy
};

// Consecutive keys of one sequence, in units, that this block attends to.
struct segment {
    int32_t seq, begin, end;
};

// An expert that the row goes through, and what it gives in the sum.
struct pick {
    int32_t expert;
    float weight;
};

// What a model's shape and the rows make of shared memory.
struct layout {
    int n_stages, scales, x, scratch, residual; // bytes; scales: of 4-bit weights, and zeros
    int x_sums;                                 // where sum_steps() writes in x
};

struct resident_shared {
    struct layout layout;
    int32_t m, n_rows;   // rows of the step, and of those that logits are wanted of
    uint32_t tag;        // of the first layer
    struct exchange out; // the first copy
    struct exchange in;  // the copy that this block reads
    int64_t copy_stride; // in tagged words
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    float scale[2][RESIDENT_MAX_ROWS];      // 1 / rms
    float operand[2][RESIDENT_MAX_COLUMNS]; // per column of y: a bias, or the next norm's weight
    int32_t source[RESIDENT_MAX_ROWS];      // rows that logits are wanted of
    struct segment segments[RESIDENT_MAX_ROWS];
    int32_t n_segments, n_groups;
    int32_t kv_head, own; // the block's head in attention, and its number among those of that head
    int32_t group;        // query heads of a KV head
    struct job jobs[N_KINDS]; // of layer 0
    int32_t kv_len[RESIDENT_MAX_ROWS], first_part[RESIDENT_MAX_ROWS], n_parts[RESIDENT_MAX_ROWS];
    uint4 q[RESIDENT_MAX_GROUP * 128 / 8], key[128 / 8], value[128 / 8];
    float scores[RESIDENT_MAX_EXPERTS]; // the producer's own, as are
    struct pick picks[RESIDENT_MAX_PICKS];
    float weights[2][RESIDENT_MAX_PICKS]; // of picks, for the consumers: of even and odd layers
};

// What a thread of any role works with.
struct frame {
    const struct resident &a;
    struct resident_shared &s;
    struct ring ring;
    unsigned char *x; // staged rows; behind them sums of steps of 4-bit weights
    float *scratch;   // parts of y, or of attention
    float *residual;  // [tiles of this block, max_rows, COLS]
    uint32_t thread;  // of the block
    int m, rows_log;  // rows; 1 << rows_log is at least that
    uint32_t tag;     // of the layer
    int half;         // of what is double-buffered
#ifdef RESIDENT_PROFILE
    int n_marks;
#endif
};

static __host__ __device__ __forceinline__ int64_t packets_of_buffer(int k)
{
    return (int64_t)k / 8 * RESIDENT_MAX_ROWS;
}

// Warps that fetch operands for the consumers; one of them resets packets, too.
static constexpr int HELPERS = 2;

// Columns of one expert's activation.
static __host__ __device__ __forceinline__ int columns_of_expert(const struct resident &a)
{
    return a.ffn / a.n_picks;
}

// k of a stage: no stage holds weights of two experts.
static __host__ __device__ __forceinline__ int chunk_of_down(const struct resident &a)
{
    const int each = columns_of_expert(a);

    return a.n_experts > 0 ? each / ((each + CHUNK - 1) / CHUNK) : CHUNK;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ uint32_t ring_stage(const struct ring &r)
{
    return r.memory + (uint32_t)(r.at * STAGE_BYTES);
}

static __device__ __forceinline__ uint32_t ring_full(const struct ring &r)
{
    return r.full + (uint32_t)r.at * 8;
}

static __device__ __forceinline__ void ring_next(struct ring &r)
{
    if (++r.at == r.n) {
        r.at = 0;
        r.parity ^= 1;
    }
}

// The producer's: waits until the stage is empty. The fence orders what consumers and copies of
// exponents did there, of the generic proxy, before the bulk copies that follow, of the async
// proxy.
static __device__ __forceinline__ void ring_wait_empty(const struct ring &r)
{
    barrier_wait(r.empty + (uint32_t)r.at * 8, r.parity ^ 1);
    fence_async();
}

// The consumers': waits until the stage is full. Every warp waits for every stage and releases it,
// even one that it does not read: none may get a whole ring ahead.
static __device__ __forceinline__ void ring_wait_full(const struct ring &r)
{
    barrier_wait(ring_full(r), r.parity);
}

// Every lane arrives, for its own loads. One arrival per warp after __syncwarp() is as right and no
// faster, but compute-sanitizer then misses that the other lanes' loads precede the next copy.
static __device__ __forceinline__ void ring_release(struct ring &r)
{
    barrier_arrive(r.empty + (uint32_t)r.at * 8);
    ring_next(r);
}

// Passes by a stage that the warp does not read.
static __device__ __forceinline__ void ring_pass(struct ring &r)
{
    ring_wait_full(r);
    ring_release(r);
}

enum { ALL_CONSUMERS = 1, CONSUMERS_AND_HELPERS = 2 }; // named barriers

// barrier.sync, not bar.sync, whose threads promise to be converged: the compiler converges the
// warp before it, which costs more (1 row: 546 us a step, not 523; H200, 2026-11-21), and synccheck
// wants such a barrier to be one place in the code, where consumers and helpers are in two.
static __device__ __forceinline__ void named_sync(int barrier)
{
    const int warps = barrier == ALL_CONSUMERS ? CONSUMERS : CONSUMERS + HELPERS;

    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(warps * WARP) : "memory");
}

static __device__ __forceinline__ int warp_of(const struct frame &f)
{
    return (int)(f.thread / WARP);
}

static __device__ __forceinline__ int lane_of(const struct frame &f)
{
    return (int)(f.thread % WARP);
}

static __device__ __forceinline__ int helper_thread(const struct frame &f)
{
    return (int)(f.thread % (HELPERS * WARP));
}

// What derives from the thread's number is computed anew from here on: kept for the whole kernel it
// would take the registers that x needs.
static __device__ __forceinline__ void refresh_thread(struct frame &f)
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

static __device__ __forceinline__ int rotation(int layer)
{
    return layer & (N_BUFFERS - 1);
}

// That of layer 0, from s.out, s.in and s.n_rows.
static __device__ __forceinline__ struct job first_job(const struct resident_shared &s,
                                                       const struct resident &a, int kind)
{
    const int attn_dim = a.n_heads * a.kv.head_dim, blocks = (int)gridDim.x;
    struct job j = {kind, 0, a.hidden, a.hidden, 0, CHUNK, nullptr, s.in.x_attn, nullptr};

    if (kind == QKV) {
        j.n = attn_dim + 2 * a.kv.n_kv_heads * a.kv.head_dim;
        j.w = a.w.qkv;
    }
    if (kind == OUT) {
        j.k = attn_dim;
        j.w = a.w.o;
        j.x = s.in.attn;
        j.y = s.out.x_mlp;
    }
    if (kind == ROUTER) {
        j.n = a.n_experts;
        j.w = a.w.router;
        j.x = s.in.x_mlp;
    }
    if (kind == GATE_UP) {
        j.n = a.ffn;
        j.w = a.w.gate_up;
        j.x = s.in.x_mlp;
        j.y = s.out.act;
    }
    if (kind == DOWN) {
        j.k = a.ffn;
        j.chunk = chunk_of_down(a);
        j.w = a.w.down;
        j.x = s.in.act;
        j.y = s.out.x_attn;
    }
    if (kind == LM_HEAD) {
        j.n = a.n_logits;
        j.w = a.w.lm_head;
        j.x = s.in.x_head;
    }
    /* tiles b, b + blocks, ... */
    if (kind != LM_HEAD || s.n_rows > 0)
        j.mine = ((j.n + COLS - 1) / COLS - (int)blockIdx.x + blocks - 1) / blocks;
    return j;
}

// Reads s.jobs, which holds what is the same in all layers. A role begins a job between two
// exchanges, where nothing hides its latency. (A step of 0.6B with one row of 520 keys on an H200:
// bf16 475 us, FP8 557, INT4 630; when each job is computed from the model's shape 478, 597, 678.
// With 16 rows of bf16 it is 738 and 714, probably as polls then begin later. 2026-11-30.)
static __device__ __forceinline__ struct job job_of(const struct frame &f, int kind, int layer)
{
    const int after = layer + (kind == DOWN); /* the layer that reads y */
    struct job j = f.s.jobs[kind];

    j.layer = layer;
    if (kind != LM_HEAD) {
        j.w += layer * f.a.w.layer_stride;
        j.x += rotation(layer) * packets_of_buffer(j.k);
        j.y =
            after == f.a.n_layers ? f.s.out.x_head : j.y + rotation(after) * packets_of_buffer(j.n);
    }
    return j;
}

// On to the next. False: there is none.
static __device__ __forceinline__ bool next_job(const struct frame &f, struct job &j)
{
    const int layer = j.layer + (j.kind == DOWN);
    int kind = j.kind + 1;

    if (j.kind == LM_HEAD)
        return false;
    if (kind == ROUTER && f.a.n_experts == 0)
        kind = GATE_UP;
    if (j.kind == DOWN)
        kind = layer == f.a.n_layers ? (int)LM_HEAD : (int)QKV;
    j = job_of(f, kind, layer);
    return true;
}

static __device__ __forceinline__ struct resident_scales scales_of(const struct frame &f,
                                                                   const struct job &j)
{
    const struct resident_weights &w = f.a.w;
    const struct resident_scales s = j.kind == QKV       ? w.qkv_scales
                                     : j.kind == OUT     ? w.o_scales
                                     : j.kind == GATE_UP ? w.gate_up_scales
                                                         : w.down_scales;
    const int64_t bytes = j.layer * w.layer_stride * (int64_t)sizeof(uint16_t);

    return {(const char *)s.scales + bytes, s.zeros + bytes};
}

// Where attention's result goes, in the first copy.
static __device__ __forceinline__ uint4 *buffer_of_attn(const struct frame &f, int layer)
{
    return f.s.out.attn + rotation(layer) * packets_of_buffer(f.a.n_heads * f.a.kv.head_dim);
}

// The packet of a row that holds a column.
static __device__ __forceinline__ int64_t packet_at(int row, int column)
{
    return (int64_t)(column / K_STEP * RESIDENT_MAX_ROWS + row) * 4 + column % K_STEP / COLS;
}

// Each of the four neighbouring lanes that hold a packet writes one copy.
static __device__ __forceinline__ uint4 *copy_of_lane(const struct frame &f, uint4 *first)
{
    return first + f.thread % 4 * f.s.copy_stride / 2;
}

#endif
#endif
