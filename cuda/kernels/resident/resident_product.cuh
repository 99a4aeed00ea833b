// resident_product.cuh - a product of few rows with a weight matrix as one phase of the resident
// kernel: receiving x, computing tiles of eight columns of y, sending them on.
//
// The eight warps each multiply their steps of k (resident_operands.cuh) and add their sums in
// shared memory. Norms are part of the product: x comes multiplied by the norm's weight, with sums
// of squares beside it, and 1 / rms multiplies y.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_PRODUCT_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_PRODUCT_CUH

#include "cuda/kernels/resident/resident_operands.cuh"

static constexpr int GROUP = 8; // tiles whose parts lie in shared memory at once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// This warp's part of a tile to shared memory.
template <int HALVES>
static __device__ __forceinline__ void put_tile(const struct frame &f, int tile,
                                                const float (&d)[K_STEPS][4])
{
    const int warp = warp_of(f), lane = lane_of(f), row = lane / 4;
    float *to = f.scratch + ((tile * CONSUMERS + warp) * f.a.max_rows + row) * COLS + lane % 4 * 2;

#pragma unroll
    for (int h = 0; h < HALVES; h++)
        if (row + h * 8 < f.m)
            *(float2 *)(to + h * 8 * COLS) =
                make_float2((d[0][h * 2] + d[1][h * 2]) + (d[2][h * 2] + d[3][h * 2]),
                            (d[0][h * 2 + 1] + d[1][h * 2 + 1]) +
                                (d[2][h * 2 + 1] + d[3][h * 2 + 1]));
}

// This warp's part of two tiles, or of one: rows 2 j and 2 j + 1 of x in the lanes whose number is
// j modulo 4, column lane / 4.
static __device__ __forceinline__ void put_pair(const struct frame &f, int tile, bool two,
                                                const float (&sum)[2][2])
{
    const int warp = warp_of(f), lane = lane_of(f);

#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int row = lane % 4 * 2 + j;

            if (row < f.m && (t == 0 || two))
                f.scratch[(((tile + t) * CONSUMERS + warp) * f.a.max_rows + row) * COLS +
                          lane / 4] = sum[t][j];
        }
}

// n tiles of one stage each, two at a time.
template <int HALVES>
static __device__ __forceinline__ void multiply_narrow(struct frame &f,
                                                       const struct x_part<HALVES> &x, int n, int k)
{
#pragma unroll 1
    for (int i = 0; i < n; i += 2) {
        struct w_part a, b = {};
        const bool two = i + 1 < n;

        load_two(a, b, f, k, k, two);
        if constexpr (HALVES == 1) {
            float sum[2][2];

            multiply_pair(sum, x, a, b);
            ring_release(f.ring);
            if (two)
                ring_release(f.ring);
            put_pair(f, i, two, sum);
        } else { /* registers are short: one tile is out of them before the next */
            float d[K_STEPS][4] = {}, e[K_STEPS][4] = {};

            multiply<HALVES>(d, x, a);
            ring_release(f.ring);
            put_tile<HALVES>(f, i, d);
            if (two) {
                multiply<HALVES>(e, x, b);
                ring_release(f.ring);
                put_tile<HALVES>(f, i + 1, e);
            }
        }
    }
}

// n tiles of several stages each, of x in registers.
template <int HALVES, int STAGES>
static __device__ __forceinline__ void
multiply_registers(struct frame &f, const struct x_part<HALVES> (&x)[STAGES], int n, int k)
{
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        float d[K_STEPS][4] = {};

#pragma unroll
        for (int c = 0; c < STAGES; c += 2) {
            struct w_part a = {}, b = {};
            const bool one = c * CHUNK < k, two = c + 1 < STAGES && (c + 1) * CHUNK < k;

            if (one) {
                load_two(a, b, f, k - c * CHUNK, k - (c + 1) * CHUNK, two);
                multiply<HALVES>(d, x[c], a);
                ring_release(f.ring);
            }
            if (two) {
                multiply<HALVES>(d, x[(c + 1) % STAGES], b);
                ring_release(f.ring);
            }
        }
        put_tile<HALVES>(f, i, d);
    }
}

// n tiles of several stages each, of x in shared memory.
template <int HALVES>
static __device__ __forceinline__ void multiply_shared(struct frame &f, int n, int k, int chunk)
{
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        float d[K_STEPS][4] = {};

#pragma unroll 1
        for (int at = 0; at < k; at += 2 * chunk) {
            struct x_part<HALVES> x;
            struct w_part a, b = {};
            const int next = at + chunk;
            const bool two = next < k;

            load_two(a, b, f, min(next, k) - at, min(next + chunk, k) - next, two);
            load_x<HALVES>(x, f, at, min(next, k));
            multiply<HALVES>(d, x, a);
            ring_release(f.ring);
            if (two) {
                load_x<HALVES>(x, f, next, min(next + chunk, k));
                multiply<HALVES>(d, x, b);
                ring_release(f.ring);
            }
        }
        put_tile<HALVES>(f, i, d);
    }
}

// n tiles of quantized weights, two at a time.
template <int KIND>
static __device__ __forceinline__ void multiply_pairs(struct frame &f, int n, int words)
{
#pragma unroll 1
    for (int i = 0; i < n; i += 2) {
        float sum[2][2] = {};
        const bool two = i + 1 < n;

#pragma unroll 1
        for (int at = 0; at < words; at += CHUNK)
            if (KIND == KIND_INT4 && f.a.quant.zeros)
                multiply_quantized<KIND, true>(sum, f, at, words, two);
            else
                multiply_quantized<KIND, false>(sum, f, at, words, two);
#pragma unroll
        for (int t = 0; t < 4; t++)
            sum[t / 2][t % 2] *= OF_TINY<KIND>;
        put_pair(f, i, two, sum);
    }
}

// Two neighbouring columns of y of one thread; neighbouring lanes have the four pairs of a tile and
// row, and each writes one copy of what all blocks read. All that is known before the sums.
struct place {
    bool there;
    int row, column, operand; // in the step, in y, among the operands of the block's columns
    int64_t to;               // in the exchange of q, k and v, or in the logits
    uint4 *packet;            // of the next product's x
    tagged_word *square;      // beside x: of OUT and DOWN
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
                      column,
                      (first + tile) * COLS + pair * 2,
                      j.kind == LM_HEAD ? row * f.a.logits_stride + column
                                        : (row * j.n + column) / 2,
                      nullptr,
                      nullptr,
                      {},
                      f.scratch + ((tile << both) * CONSUMERS * f.a.max_rows + row) * COLS +
                          pair * 2};

    if (j.kind == OUT || j.kind == GATE_UP || j.kind == DOWN)
        p.packet = copy_of_lane(f, j.y) + packet_at(row, column);
    if (j.kind == OUT || j.kind == DOWN)
        p.square = (j.kind == OUT ? f.s.out.squares_mlp : f.s.out.squares_attn) +
                   pair * f.s.copy_stride + (row * j.n + column) / COLS;
    if (p.there && (j.kind == OUT || j.kind == DOWN))
        p.residual = *(const float2 *)(f.residual + at);
    return p;
}

// The sum of the eight warps' parts, `step` apart.
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

// Sends a changed residual as the next norm and product need it. Called by whole warps.
static __device__ __forceinline__ void send_residual(const struct frame &f, uint32_t tag,
                                                     const struct place &p, float2 r, float2 norm)
{
    const uint4 packet = packet_of(bf16_pair(r.x * norm.x, r.y * norm.y));
    float sum = r.x * r.x + r.y * r.y;

    if (p.there) {
        store_packet(p.packet, packet);
        *(float2 *)(f.residual + (p.operand / COLS * f.a.max_rows + p.row) * COLS +
                    p.operand % COLS) = r;
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (p.there)
        send(p.square, __float_as_uint(sum), tag);
}

// The residual of o or down with the sums of both ranks, in their order.
static __device__ __forceinline__ float2 add_twins(const struct frame &f, const struct job &j,
                                                   const struct place &p, float2 own)
{
    const bool counts = blockIdx.x == 0 && f.thread == 0;
    const uint64_t begin = counts ? now_ns() : 0, ns = counts ? __ldcg(&f.a.clock->ns) : 0;
    const int at = ((j.kind == DOWN) * RESIDENT_MAX_ROWS + p.row) * j.n + p.column;
    const float2 theirs = swap_with_twin(f.a.twin_sums + at, f.a.sums + at, own, f.tag);
    const float2 a = f.a.me == 0 ? own : theirs, b = f.a.me == 0 ? theirs : own;

    if (counts)
        f.a.clock->ns = ns + (now_ns() - begin);
    return make_float2(p.residual.x + a.x + b.x, p.residual.y + a.y + b.y);
}

// Two scores of the router to all copies.
static __device__ __forceinline__ void send_scores(const struct frame &f, int expert, float2 y)
{
#pragma unroll
    for (int i = 0; i < COPIES; i++)
        send_pair(f.s.out.scores + i * f.s.copy_stride + expert, __float_as_uint(y.x),
                  __float_as_uint(y.y), f.tag);
}

// Turns sums into y and sends it. Called by whole warps.
template <bool TWINS, bool EXPERTS>
static __device__ __forceinline__ void finish(const struct frame &f, const struct job &j,
                                              const struct place &p)
{
    const int step = f.a.max_rows * COLS;
    /* products of more columns have no operand */
    const float2 operand =
        *(const float2 *)(f.s.operand[f.half] + p.operand % RESIDENT_MAX_COLUMNS);
    const float scale = f.s.scale[f.half][p.row];
    float2 y = p.there ? sum_of_warps(p.from, step) : make_float2(0.0f, 0.0f);

    if (j.kind == OUT || j.kind == DOWN) {
        if (!TWINS)
            y = make_float2(y.x + p.residual.x, y.y + p.residual.y);
        else if (p.there)
            y = add_twins(f, j, p, y);
        send_residual(f, f.tag + (j.kind == DOWN), p, y, operand);
        return;
    }
    y.x *= scale;
    y.y *= scale;
    if (j.kind == GATE_UP) {
        const float2 up = p.there ? sum_of_warps(p.from + CONSUMERS * step, step) : y;
        float factor = scale;

        if (EXPERTS && f.a.n_experts > 0 && p.there)
            factor *= f.s.weights[f.tag % 2][p.column / columns_of_expert(f.a)];
        const uint4 packet =
            packet_of(bf16_pair(silu(y.x) * (up.x * factor), silu(y.y) * (up.y * factor)));

        if (p.there)
            store_packet(p.packet, packet);
    } else if (EXPERTS && p.there && j.kind == ROUTER) {
        send_scores(f, p.column, y);
    } else if (p.there && j.kind == LM_HEAD) {
        *(float2 *)(f.a.logits + p.to) = y;
    } else if (p.there) {
        send(f.s.out.qkv + p.to, bf16_pair(y.x + operand.x, y.y + operand.y), f.tag);
    }
}

// The consumers' side; helpers synchronise with them at the first tiles, even where a block has
// none. WIDE: as is_wide(). TWINS: there are two ranks. EXPERTS: there may be.
template <int HALVES, int KIND, bool WIDE, bool TWINS, bool EXPERTS>
static __device__ __forceinline__ void product(struct frame &f, const struct job &j)
{
    const int both = j.kind == GATE_UP, n_tiles = j.mine << both, chunk = WIDE ? j.chunk : CHUNK;
    struct x_part<HALVES> x[WIDE ? 1 : REGISTER_STAGES];
    int at = 0, i = (int)f.thread;
    struct place p;
    const auto place_first = [&] { p = place_of(f, j, i, 0, min(GROUP, n_tiles) >> both); };

    if (j.kind == LM_HEAD) /* its x may be loaded once the helpers have passed the grid barrier */
        named_sync(CONSUMERS_AND_HELPERS);
    if (n_tiles == 0) { /* return at once: a path that sets no x would keep its registers */
        named_sync(CONSUMERS_AND_HELPERS);
        mark(f);
        return;
    }
    if (WIDE)
        receive_shared<KIND>(f, j, place_first);
    else
        receive_registers<HALVES>(x, f, j, place_first);
    mark(f);
    if constexpr (KIND == KIND_INT4)
        sum_steps(f, words_of<KIND>(j.k));
#pragma unroll 1
    do {
        const int first = at, here = min(GROUP, n_tiles - at);
        const int all = (here >> both << (f.rows_log + 2)) + WARP - 1 & ~(WARP - 1);

        if constexpr (KIND != KIND_BF16) {
            multiply_pairs<KIND>(f, here, words_of<KIND>(j.k));
        } else {
            if (WIDE && j.k <= chunk)
                load_x<HALVES>(x[0], f, 0, j.k);
            if (j.k <= chunk)
                multiply_narrow<HALVES>(f, x[0], here, j.k);
            else if (WIDE)
                multiply_shared<HALVES>(f, here, j.k, chunk);
            else
                multiply_registers<HALVES>(f, x, here, j.k);
        }
        if (first == 0) {
            named_sync(CONSUMERS_AND_HELPERS);
            mark(f);
        } else {
            named_sync(ALL_CONSUMERS);
        }
#pragma unroll 1
        while (at == first) {
            if (i < all)
                finish<TWINS, EXPERTS>(f, j, p);
            i += CONSUMERS * WARP;
            if (i >= all) { /* on to the next tiles */
                i = (int)f.thread;
                at += GROUP;
            }
            if (at < n_tiles)
                p = place_of(f, j, i, at >> both, min(GROUP, n_tiles - at) >> both);
        }
        named_sync(ALL_CONSUMERS);
        __syncwarp(); /* products of the matrix unit are of whole warps */
    } while (at < n_tiles);
    mark(f);
}

// A helper's: 1 / rms of each row, where the input is the normed residual. The helpers take all
// rows at once, the first eight and the others, four lanes per row.
static __device__ __forceinline__ void compute_scales(const struct frame &f, const struct job &j)
{
    static constexpr int ROWS = RESIDENT_MAX_ROWS / HELPERS, LANES = WARP / ROWS, BATCH = 16;

    const int lane = lane_of(f), first = (int)(f.thread / WARP % HELPERS) * ROWS;
    const int row = first + lane / LANES, pairs = f.a.hidden / (2 * COLS);
    const int end = row < f.m ? pairs : 0;
    const tagged_word *squares =
        j.kind == ROUTER || j.kind == GATE_UP ? f.s.in.squares_mlp : f.s.in.squares_attn;
    const tagged_word *from = squares + (int64_t)source_of(f, j, row) * pairs * 2;
    float sum = 0.0f;

    if (first >= f.m)
        return;
    wait_pair(from, f.tag);
#pragma unroll 1
    for (int at = lane % LANES; at < end; at += LANES * BATCH) {
        const int n = (end - at + LANES - 1) / LANES;
        struct tagged_pair got[BATCH];

        receive(
            got, f.tag, [&](int i) { return i < n; },
            [&](int i) { return from + at * 2 + i * LANES * 2; });
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            sum += float_of(got[i].a) + float_of(got[i].b);
    }
    __syncwarp();
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, i);
    if (row < f.m && lane % LANES == 0)
        f.s.scale[f.half][row] = rsqrtf(__fdividef(sum, (float)f.a.hidden) + f.a.eps);
}

// A helper's: the operand of each column of this block's tiles, before the sums are there.
static __device__ __forceinline__ void load_operands(const struct frame &f, const struct job &j)
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
        for (int i = helper_thread(f); i < j.mine * COLS; i += HELPERS * WARP)
            f.s.operand[f.half][i] =
                from ? bf16_to_float(__ldg(from + tile_of_block(i / COLS) * COLS + i % COLS))
                     : 0.0f;
}

#endif
#endif
