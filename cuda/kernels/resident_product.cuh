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

#include "cuda/kernels/resident_frame.cuh"

static constexpr int GROUP = 8; // tiles whose parts lie in shared memory at once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The producer's side: each tile's rows of w.
static __device__ __forceinline__ void stream_weights(struct frame &f, const struct job &j,
                                                      uint64_t policy)
{
    struct ring &r = f.ring;
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

// This warp's pieces of the rows of x, from messages to shared memory; nobody else reads them. Of
// several rows it waits for one word alone before it asks for all.
template <int HALVES>
static __device__ __forceinline__ void take_x(const struct frame &f, const struct job &j)
{
    static constexpr int BATCH = 4 * HALVES;

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, half = j.k / 2;
    const int pairs = max(0, (j.k / PIECE - warp + CONSUMERS - 1) / CONSUMERS) * 8; // of a row
    const int stride = x_stride(j.k);
    const message *from = j.kind == OUT       ? f.s.inbox.attn
                          : j.kind == GATE_UP ? f.s.inbox.x_mlp
                          : j.kind == DOWN    ? f.s.inbox.act
                                              : f.s.inbox.x_attn;
    int row = 0, u = lane;

    if (f.m > 1 && pairs > 0) {
        if (lane == 0)
            while (!bears(look(from + warp * 16), f.tag))
                ;
        __syncwarp();
    }
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

static constexpr int PIECES = CHUNK / PIECE / CONSUMERS; // of a warp in a whole stage

// A thread's part of a stage's x, and of its rows of w.
template <int HALVES> struct x_part {
    uint4 v[HALVES][PIECES];
};
struct w_part {
    uint4 v[PIECES];
};

// Past the end of x there are zeros, and past the end of w some of the row: no stale numbers.
template <int HALVES>
static __device__ __forceinline__ void load_x(struct x_part<HALVES> &x, const struct frame &f,
                                              int at, int k)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int stride = x_stride(k), mine = (k - at) / PIECE - warp;
    const uint32_t from = shared_address(f.x) + (uint32_t)(at * 2 + warp * 64 + lane % 4 * 16);

#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const uint32_t row = from + (uint32_t)(min(lane / 4 + h * 8, f.m - 1) * stride);

#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            x.v[h][i] = make_uint4(0, 0, 0, 0);
            if (i * CONSUMERS < mine)
                x.v[h][i] = ld_shared(row + (uint32_t)(i * CONSUMERS * 64));
        }
    }
}

static __device__ __forceinline__ void load_w(struct w_part &w, const struct ring &r, int at, int k)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int mine = (k - at) / PIECE - warp;
    const uint32_t from = ring_stage(r) + (uint32_t)(lane / 4 * ROW_BYTES + lane % 4 * 16);

    ring_wait_full(r);
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        w.v[i] =
            ld_shared(from + (uint32_t)(i * CONSUMERS < mine ? (warp + i * CONSUMERS) * 64 : 0));
}

template <int HALVES>
static __device__ __forceinline__ void
multiply(float (&d)[PIECES][4], const struct x_part<HALVES> &x, const struct w_part &w)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint4 a = x.v[0][i], c = x.v[HALVES - 1][i], b = w.v[i];

        if (HALVES == 1) {
            mma_16816(d[i], a.x, 0, a.y, 0, b.x, b.y);
            mma_16816(d[i], a.z, 0, a.w, 0, b.z, b.w);
        } else {
            mma_16816(d[i], a.x, c.x, a.y, c.y, b.x, b.y);
            mma_16816(d[i], a.z, c.z, a.w, c.w, b.z, b.w);
        }
    }
}

// This warp's part of a tile to shared memory.
template <int HALVES>
static __device__ __forceinline__ void put_tile(const struct frame &f, int tile,
                                                const float (&d)[PIECES][4])
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, row = lane / 4;
    float *to = f.scratch + ((tile * CONSUMERS + warp) * f.a.max_rows + row) * COLS + lane % 4 * 2;

#pragma unroll
    for (int h = 0; h < HALVES; h++)
        if (row + h * 8 < f.m)
            *(float2 *)(to + h * 8 * COLS) =
                make_float2((d[0][h * 2] + d[1][h * 2]) + (d[2][h * 2] + d[3][h * 2]),
                            (d[0][h * 2 + 1] + d[1][h * 2 + 1]) +
                                (d[2][h * 2 + 1] + d[3][h * 2 + 1]));
}

// n tiles of which each is one stage, two at a time so that one's loads do not wait for the other's
// sums.
template <int HALVES>
static __device__ __forceinline__ void add_narrow(struct frame &f, int n, int k)
{
    struct x_part<HALVES> x;

    load_x<HALVES>(x, f, 0, k);
#pragma unroll 1
    for (int i = 0; i < n; i += 2) {
        struct w_part a, b;
        float d[PIECES][4] = {}, e[PIECES][4] = {};
        const bool two = i + 1 < n;

        load_w(a, f.ring, 0, k);
        if (two) {
            struct ring next = f.ring;

            ring_next(next);
            load_w(b, next, 0, k);
        }
        multiply<HALVES>(d, x, a);
        ring_release(f.ring);
        if (two) {
            multiply<HALVES>(e, x, b);
            ring_release(f.ring);
            put_tile<HALVES>(f, i + 1, e);
        }
        put_tile<HALVES>(f, i, d);
    }
}

// n tiles of several stages each.
template <int HALVES> static __device__ __forceinline__ void add_wide(struct frame &f, int n, int k)
{
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        float d[PIECES][4] = {};

#pragma unroll 1
        for (int at = 0; at < k; at += 2 * CHUNK) {
            struct x_part<HALVES> x;
            struct w_part a, b;
            const bool two = at + CHUNK < k;

            load_w(a, f.ring, at, k);
            if (two) {
                struct ring next = f.ring;

                ring_next(next);
                load_w(b, next, at + CHUNK, k);
            }
            load_x<HALVES>(x, f, at, k);
            multiply<HALVES>(d, x, a);
            ring_release(f.ring);
            if (two) {
                load_x<HALVES>(x, f, at + CHUNK, k);
                multiply<HALVES>(d, x, b);
                ring_release(f.ring);
            }
        }
        put_tile<HALVES>(f, i, d);
    }
}

// Two neighbouring columns of y that a thread will have; the four pairs of a tile and row are
// neighbouring lanes. All that can be known before the sums are.
struct place {
    bool there;
    int row, beside; // in the step, in what is beside the block's columns
    int64_t to;      // in the box, or in the logits
    float2 residual;
    const float *from; // the first warp's part
};

// Number i of a group of tiles of which the first is the block's tile `first`.
static __device__ __forceinline__ struct place place_of(const struct frame &f, const struct job &j,
                                                        int i, int first, int n_tiles)
{
    const int tile = i >> (f.rows_log + 2), row = i >> 2 & ((1 << f.rows_log) - 1), pair = i % 4;
    const int both = j.kind == GATE_UP, column = tile_of_block(first + tile) * COLS + pair * 2;
    const int at = (((first + tile) * f.a.max_rows + row) * COLS) + pair * 2;
    struct place p = {tile < n_tiles && row < f.m && column < j.n,
                      row,
                      (first + tile) * COLS + pair * 2,
                      j.kind == LM_HEAD ? row * f.a.logits_stride + column
                                        : (row * j.n + column) / 2,
                      {},
                      f.scratch + ((tile << both) * CONSUMERS * f.a.max_rows + row) * COLS +
                          pair * 2};

    if (p.there && (j.kind == OUT || j.kind == DOWN))
        p.residual = *(const float2 *)(f.residual + at);
    return p;
}

// The eight warps' parts, of rows of COLS numbers `step` apart.
static __device__ __forceinline__ float2 sum_of_warps(const float *from, int step)
{
    float2 v[CONSUMERS];

#pragma unroll
    for (int i = 0; i < CONSUMERS; i++)
        v[i] = *(const float2 *)(from + i * step);
#pragma unroll
    for (int n = CONSUMERS / 2; n > 0; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) {
            v[i].x += v[i + n].x;
            v[i].y += v[i + n].y;
        }
    return v[0];
}

// The residual has changed at a place: tells all what the next norm and product need of it.
static __device__ __forceinline__ void post_residual(const struct frame &f, message *x,
                                                     message *squares, uint32_t tag,
                                                     const struct place &p, float2 r, float2 norm)
{
    float sum = r.x * r.x + r.y * r.y;

    if (p.there) {
        post_all(x + p.to, bf16_pair(r.x * norm.x, r.y * norm.y), tag, f.s.apart);
        *(float2 *)(f.residual + (p.beside / COLS * f.a.max_rows + p.row) * COLS +
                    p.beside % COLS) = r;
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (p.there && p.beside % COLS == 0)
        post_all(squares + p.to / (COLS / 2), __float_as_uint(sum), tag, f.s.apart);
}

static __device__ __forceinline__ float silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

// What is done with sums: by whole warps.
static __device__ __forceinline__ void hand_on(const struct frame &f, const struct job &j,
                                               const struct place &p)
{
    const int step = f.a.max_rows * COLS;
    /* a product of more columns has nothing beside them */
    const float2 beside = *(const float2 *)(f.s.beside[f.turn] + p.beside % RESIDENT_MAX_COLUMNS);
    const float scale = f.s.scale[f.turn][p.row];
    float2 y = p.there ? sum_of_warps(p.from, step) : make_float2(0.0f, 0.0f);

    if (j.kind == OUT || j.kind == DOWN) {
        y.x += p.residual.x;
        y.y += p.residual.y;
        post_residual(f, j.kind == DOWN ? f.s.box.x_attn : f.s.box.x_mlp,
                      j.kind == DOWN ? f.s.box.squares_attn : f.s.box.squares_mlp,
                      f.tag + (j.kind == DOWN), p, y, beside);
        return;
    }
    if (!p.there)
        return;
    y.x *= scale;
    y.y *= scale;
    if (j.kind == LM_HEAD) {
        *(float2 *)(f.a.logits + p.to) = y;
    } else if (j.kind == QKV) {
        post(f.s.box.qkv + p.to, bf16_pair(y.x + beside.x, y.y + beside.y), f.tag);
    } else {
        const float2 up = sum_of_warps(p.from + CONSUMERS * step, step);

        post_all(f.s.box.act + p.to,
                 bf16_pair(silu(y.x) * (up.x * scale), silu(y.y) * (up.y * scale)), f.tag,
                 f.s.apart);
    }
}

// The consumers' side; the helper meets them at the first tiles, also where a block has none.
template <int HALVES>
static __device__ __forceinline__ void product(struct frame &f, const struct job &j)
{
    const int both = j.kind == GATE_UP, n_tiles = j.mine << both;

    if (n_tiles == 0)
        meet(CONSUMERS_AND_HELPER);
#pragma unroll 1
    for (int at = 0; at < n_tiles; at += GROUP) {
        const int here = min(GROUP, n_tiles - at);
        const int all = (here >> both << (f.rows_log + 2)) + WARP - 1 & ~(WARP - 1);
        int i = (int)threadIdx.x;
        struct place p = place_of(f, j, i, at >> both, here >> both);

        if (at == 0) {
            take_x<HALVES>(f, j);
            mark(f);
        }
        if (j.k <= CHUNK)
            add_narrow<HALVES>(f, here, j.k);
        else
            add_wide<HALVES>(f, here, j.k);
        if (at == 0) {
            meet(CONSUMERS_AND_HELPER);
            mark(f);
        } else {
            meet(ALL_CONSUMERS);
        }
#pragma unroll 1
        while (i < all) {
            hand_on(f, j, p);
            i += CONSUMERS * WARP;
            if (i < all)
                p = place_of(f, j, i, at >> both, here >> both);
        }
        meet(ALL_CONSUMERS);
    }
    mark(f);
}

// The helper's: 1 / rms of each row, where the input is the normed residual.
static __device__ __forceinline__ void take_scales(const struct frame &f, const struct job &j)
{
    static constexpr int BATCH = 4;

    const int lane = (int)threadIdx.x % WARP;
    const int lanes_log = 5 - min(f.rows_log, 2), lanes = 1 << lanes_log;
    const int pairs = f.a.hidden / (2 * COLS);
    const message *squares = j.kind == GATE_UP ? f.s.inbox.squares_mlp : f.s.inbox.squares_attn;

#pragma unroll 1
    for (int first = 0; first < f.m; first += WARP >> lanes_log) {
        const int row = first + (lane >> lanes_log);
        const int from_row = j.kind == LM_HEAD && row < f.m ? f.s.source[row] : row;
        float sum = 0.0f;

#pragma unroll 1
        for (int base = lane & (lanes - 1); base < pairs; base += lanes * BATCH) {
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
        if (row < f.m && (lane & (lanes - 1)) == 0)
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
