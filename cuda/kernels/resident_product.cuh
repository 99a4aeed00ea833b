// resident_product.cuh - a product of few rows with a weight matrix as one phase of the resident
// kernel: taking in x, tiles of eight columns of y, what is done with them.
//
// Weights come through the ring; all eight warps share a tile by turns of pieces of 32 k and add up
// their parts in shared memory. As in skinny_gemm.cu w is the 8-wide side of the matrix unit, x the
// 16-wide one, and the order of k within a piece is permuted in both, so that a thread's part of
// either is 16 bytes. Norms are part of the product: x comes multiplied by the norm's weight, its
// blocks' sums of squares beside it, and 1 / rms multiplies y.
#ifndef NVLLM_CUDA_RESIDENT_PRODUCT_CUH
#define NVLLM_CUDA_RESIDENT_PRODUCT_CUH

#include "cuda/kernels/resident.h"
#include "cuda/kernels/resident_message.cuh"
#include "cuda/kernels/resident_ring.cuh"

static constexpr int GROUP = 8; // tiles whose parts lie in shared memory at once

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
    struct mailboxes box;
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    float scale[2][RESIDENT_MAX_ROWS];     // 1 / rms
    float beside[2][RESIDENT_MAX_COLUMNS]; // what y meets: a bias, or the next norm's weight
    int32_t source[RESIDENT_MAX_ROWS];     // rows that logits are wanted of
    struct segment segments[RESIDENT_MAX_ROWS];
    int32_t n_segments, n_groups;
    int32_t mine[5]; // tiles of this block, by kind of product
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

#if __CUDA_ARCH__ >= 900

enum { ALL_CONSUMERS = 1, CONSUMERS_AND_HELPER = 2 }; // named barriers

static __device__ __forceinline__ void meet(int barrier)
{
    if (barrier == ALL_CONSUMERS)
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS * WARP) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"n"((CONSUMERS + 1) * WARP) : "memory");
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

// The producer's side: each tile's rows of w.
static __device__ __forceinline__ void stream_weights(struct ring &r, const struct job &j,
                                                      uint64_t policy)
{
    const int lane = (int)threadIdx.x % WARP, both = j.kind == GATE_UP;

#pragma unroll 1
    for (int i = 0; i < j.mine << both; i++) {
        const int tile = tile_of_block(i >> both), rows = min(COLS, j.n - tile * COLS);
        const uint16_t *from =
            j.w + ((int64_t)tile * COLS + (both && i % 2 ? j.n : 0) + lane) * j.k;

#pragma unroll 1
        for (int at = 0; at < j.k; at += CHUNK) {
            const uint32_t bytes = (uint32_t)min(CHUNK, j.k - at) * 2;

            ring_wait_empty(r);
            if (lane == 0)
                barrier_expect(r.full + (uint32_t)r.at * 8, bytes * (uint32_t)rows);
            __syncwarp();
            if (lane < rows)
                bulk_copy(ring_stage(r) + (uint32_t)(lane * ROW_BYTES), from + at, bytes,
                          r.full + (uint32_t)r.at * 8, policy);
            ring_next(r);
        }
    }
}

// This warp's pieces of the rows of x, from messages to shared memory; nobody else reads them.
static __device__ __forceinline__ void take_x(const struct frame &f, const struct job &j)
{
    static constexpr int BATCH = 4;

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, half = j.k / 2;
    const int pairs = max(0, (j.k / PIECE - warp + CONSUMERS - 1) / CONSUMERS) * 8; // of a row
    const int stride = x_stride(j.k);
    const message *from = j.kind == OUT       ? f.s.box.attn
                          : j.kind == GATE_UP ? f.s.box.x_mlp
                          : j.kind == DOWN    ? f.s.box.act
                                              : f.s.box.x_attn;
    int row = 0, u = lane;

#pragma unroll 1
    while (pairs > 0 && row < f.m) {
        int at[BATCH], to[BATCH];
        struct two_messages got[BATCH];

#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            for (; u >= pairs; u -= pairs)
                row++;
            const int piece = warp + (u >> 3) * CONSUMERS;
            const int from_row = j.kind == LM_HEAD && row < f.m ? f.s.source[row] : row;

            at[i] = row < f.m ? from_row * half + piece * 16 + (u & 7) * 2 : -1;
            to[i] = row * stride + piece * 64 + (u & 7) * 8;
            u += WARP;
        }
        await(got, from, at, f.tag);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (at[i] >= 0)
                *(uint2 *)(f.x + to[i]) = make_uint2((uint32_t)got[i].a, (uint32_t)got[i].b);
    }
    __syncwarp();
}

// One piece of eight rows of w at `w` and of x at `x`.
template <int HALVES>
static __device__ __forceinline__ void add_piece(float (&d)[4], uint32_t w, const uint32_t (&x)[2])
{
    const uint4 b = ld_shared(w), a = ld_shared(x[0]);

    if (HALVES == 1) {
        mma_8816(d[0], d[1], a.x, a.y, b.x, b.y);
        mma_8816(d[0], d[1], a.z, a.w, b.z, b.w);
    } else {
        const uint4 c = ld_shared(x[1]);

        mma_16816(d, a.x, c.x, a.y, c.y, b.x, b.y);
        mma_16816(d, a.z, c.z, a.w, c.w, b.z, b.w);
    }
}

// This warp's part of a tile; d[0..1] of row lane / 4, d[2..3] of the row eight further.
template <int HALVES>
static __device__ __forceinline__ void add_tile(float (&d)[4], struct frame &f, int k)
{
    static constexpr int FULL = CHUNK / PIECE / CONSUMERS; // pieces of a warp in a whole stage

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4, stride = x_stride(k);
    const uint32_t x0 = shared_address(f.x) + (uint32_t)(warp * 64 + quarter * 16);
    uint32_t x[2] = {x0 + (uint32_t)(min(group, f.m - 1) * stride),
                     x0 + (uint32_t)(min(group + 8, f.m - 1) * stride)};
    float part[FULL][4] = {};

    for (int at = 0; at < k; at += CHUNK) {
        const int n_pieces = min(CHUNK, k - at) / PIECE;
        const uint32_t w =
            ring_stage(f.ring) + (uint32_t)(group * ROW_BYTES + warp * 64 + quarter * 16);

        ring_wait_full(f.ring);
        if (n_pieces == CHUNK / PIECE) {
#pragma unroll
            for (int i = 0; i < FULL; i++) {
                const uint32_t here[2] = {x[0] + i * CONSUMERS * 64, x[1] + i * CONSUMERS * 64};

                add_piece<HALVES>(part[i], w + i * CONSUMERS * 64, here);
            }
        } else {
#pragma unroll
            for (int i = 0; i < FULL; i++) {
                const uint32_t here[2] = {x[0] + i * CONSUMERS * 64, x[1] + i * CONSUMERS * 64};

                if (warp + i * CONSUMERS < n_pieces)
                    add_piece<HALVES>(part[i], w + i * CONSUMERS * 64, here);
            }
        }
        ring_release(f.ring);
        x[0] += CHUNK * 2;
        x[1] += CHUNK * 2;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
}

// Two columns of the residual have changed: tells all what the next norm and product need of them.
static __device__ __forceinline__ void post_residual(const struct frame &f, message *x,
                                                     message *squares, uint32_t tag, bool there,
                                                     int tile, int row, int pair, float2 r,
                                                     float2 norm)
{
    const int whole = tile_of_block(tile);
    float sum = r.x * r.x + r.y * r.y;

    if (there) {
        *(float2 *)(f.residual + (tile * f.a.max_rows + row) * COLS + pair * 2) = r;
        post(x + ((int64_t)row * f.a.hidden + whole * COLS) / 2 + pair,
             bf16_pair(r.x * norm.x, r.y * norm.y), tag);
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (there && pair == 0)
        post(squares + (int64_t)row * (f.a.hidden / COLS) + whole, __float_as_uint(sum), tag);
}

// Two neighbouring columns of y and their way on; the four pairs of a tile and row are neighbouring
// lanes, and whole warps call it. tile is counted within the block.
static __device__ __forceinline__ void hand_on(const struct frame &f, const struct job &j,
                                               bool there, int tile, int row, int pair, float2 y,
                                               float2 up)
{
    const int whole = tile_of_block(tile), column = whole * COLS + pair * 2;
    const float *beside = f.s.beside[f.turn] + tile * COLS + pair * 2;

    if (j.kind == OUT || j.kind == DOWN) {
        const bool down = j.kind == DOWN;

        if (there) {
            const float2 r =
                *(const float2 *)(f.residual + (tile * f.a.max_rows + row) * COLS + pair * 2);

            y.x += r.x;
            y.y += r.y;
        }
        post_residual(f, down ? f.s.box.x_attn : f.s.box.x_mlp,
                      down ? f.s.box.squares_attn : f.s.box.squares_mlp, f.tag + down, there, tile,
                      row, pair, y, make_float2(beside[0], beside[1]));
        return;
    }
    if (!there)
        return;
    const float scale = f.s.scale[f.turn][row];
    y.x *= scale;
    y.y *= scale;
    if (j.kind == LM_HEAD) {
        if (column < j.n)
            *(float2 *)(f.a.logits + row * f.a.logits_stride + column) = y;
        return;
    }
    if (j.kind == QKV) {
        y.x += beside[0];
        y.y += beside[1];
    } else {
        y.x *= up.x * scale / (1.0f + __expf(-y.x));
        y.y *= up.y * scale / (1.0f + __expf(-y.y));
    }
    post((j.kind == QKV ? f.s.box.qkv : f.s.box.act) + (row * j.n + column) / 2,
         bf16_pair(y.x, y.y), f.tag);
}

// The consumers' side, once x is there; the helper meets them at the first tiles, also where a
// block has none.
template <int HALVES>
static __device__ __forceinline__ void product(struct frame &f, const struct job &j)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4, cap = f.a.max_rows;
    const int both = j.kind == GATE_UP, n_tiles = j.mine << both;

    if (n_tiles == 0)
        meet(CONSUMERS_AND_HELPER);
#pragma unroll 1
    for (int at = 0; at < n_tiles; at += GROUP) {
        const int here = min(GROUP, n_tiles - at);

#pragma unroll 1
        for (int i = 0; i < here; i++) {
            float *to = f.scratch + (i * CONSUMERS + warp) * cap * COLS + quarter * 2;
            float d[4];

            add_tile<HALVES>(d, f, j.k);
            if (group < f.m)
                *(float2 *)(to + group * COLS) = make_float2(d[0], d[1]);
            if (HALVES == 2 && group + 8 < f.m)
                *(float2 *)(to + (group + 8) * COLS) = make_float2(d[2], d[3]);
        }
        if (at == 0) {
            meet(CONSUMERS_AND_HELPER);
            mark(f);
        } else {
            meet(ALL_CONSUMERS);
        }
        const int items = here >> both << (f.rows_log + 2);
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < (items + WARP - 1) / WARP * WARP;
             i += CONSUMERS * WARP) {
            const int tile = i >> (f.rows_log + 2), row = i >> 2 & ((1 << f.rows_log) - 1);
            const bool there = i < items && row < f.m;
            const int step = cap * COLS; // from a warp's part to the next
            const float *from =
                f.scratch + ((tile << both) * CONSUMERS * cap + row) * COLS + i % 4 * 2;
            float2 y = {}, up = {};

            if (there)
#pragma unroll
                for (int w = 0; w < CONSUMERS; w++) {
                    const float2 v = *(const float2 *)(from + w * step);

                    y.x += v.x;
                    y.y += v.y;
                }
            if (there && both)
#pragma unroll
                for (int w = CONSUMERS; w < 2 * CONSUMERS; w++) {
                    const float2 v = *(const float2 *)(from + w * step);

                    up.x += v.x;
                    up.y += v.y;
                }
            hand_on(f, j, there, (at >> both) + tile, row, i % 4, y, up);
        }
        meet(ALL_CONSUMERS);
    }
    mark(f);
}

// The helper's: 1 / rms of each row, where the input is the normed residual.
static __device__ __forceinline__ void take_scales(const struct frame &f, const struct job &j)
{
    static constexpr int BATCH = 8;

    const int lane = (int)threadIdx.x % WARP;
    const int lanes = WARP >> min(f.rows_log, 2), pairs = f.a.hidden / (2 * COLS);
    const message *squares = j.kind == GATE_UP ? f.s.box.squares_mlp : f.s.box.squares_attn;

#pragma unroll 1
    for (int first = 0; first < f.m; first += WARP / lanes) {
        const int row = first + lane / lanes;
        const int from_row = j.kind == LM_HEAD && row < f.m ? f.s.source[row] : row;
        float sum = 0.0f;

#pragma unroll 1
        for (int base = lane % lanes; base < pairs; base += lanes * BATCH) {
            int at[BATCH];
            struct two_messages got[BATCH];

#pragma unroll
            for (int i = 0; i < BATCH; i++)
                at[i] = row < f.m && base + i * lanes < pairs
                            ? (from_row * pairs + base + i * lanes) * 2
                            : -1;
            await(got, squares, at, f.tag);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                sum += message_float(got[i].a) + message_float(got[i].b);
        }
        __syncwarp();
        for (int i = lanes / 2; i > 0; i /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, i);
        if (row < f.m && lane % lanes == 0)
            f.s.scale[f.turn][row] = rsqrtf(sum / (float)f.a.hidden + f.a.eps);
    }
}

// The helper's: one number beside each column of this block's tiles, before the results are there.
static __device__ __forceinline__ void take_beside(const struct frame &f, const struct job &j)
{
    const struct resident &a = f.a;
    const int64_t at = j.layer * a.w.layer_stride;
    const uint16_t *from = nullptr;

    if (j.kind == QKV && a.w.qkv_bias)
        from = a.w.qkv_bias + at;
    if (j.kind == OUT)
        from = a.w.mlp_norm + at;
    if (j.kind == DOWN)
        from = j.layer + 1 < a.n_layers ? a.w.attn_norm + at + a.w.layer_stride : a.w.norm;
    if (j.kind == QKV || from)
        for (int i = (int)threadIdx.x % WARP; i < j.mine * COLS; i += WARP)
            f.s.beside[f.turn][i] =
                from ? bf16_to_float(__ldg(from + tile_of_block(i / COLS) * COLS + i % COLS))
                     : 0.0f;
}

#endif
#endif
