/* resident.cu - a decode step of few rows as one persistent kernel: embedding, all layers, LM head.
 *
 * A chain of kernels spends 2 to 4 us of each launch starting and draining, in which memory is
 * idle. Here one thread block per multiprocessor stays for the whole step; a cooperative launch
 * guarantees that all are resident, so they may wait for each other. What bounds the step is
 * memory, the bytes of weights, keys and values, where these are many, and the latency of the
 * exchanges where they are few.
 *
 * Warps are specialised. One producer warp streams the block's share of weights, keys and values
 * into a ring of shared memory by bulk copies, full and empty mbarriers per stage, in the order of
 * use and as far ahead as the ring holds, whatever the computation waits for. Eight consumer warps
 * compute: products by mma over stages of the ring (resident_product.cuh, resident_operands.cuh),
 * attention (resident_attention.cuh). Two helper warps fetch biases, norm weights and scales before
 * the consumers need them, and one of them recycles packet buffers. setmaxnreg gives the consumers
 * the others' registers.
 *
 * Work is divided by columns: a product's output is cut into tiles of eight columns, block b has
 * tiles b, b + n_blocks, and so on, and keeps its columns of the residual in shared memory. In
 * attention a block belongs to one KV head; the blocks of a head divide all sequences' keys, as in
 * flash decoding, and join the parts of a sequence that was split.
 *
 * Of a mixture of experts a row's FFN is one with the columns of all its experts, whose weights lie
 * apart: each producer finds them by the router's scores, and a column of the activation is
 * multiplied by what its expert gives in the sum. The ring runs empty until the scores are there.
 * (To bring the next layer's q, k and v to L2 meanwhile takes 2.6 % longer: H100, 2026-11-26.)
 *
 * A layer has six exchanges between blocks, or seven, none of them a grid barrier
 * (resident_exchange.cuh):
 *   q, k, v                   to the blocks of the head          tagged words
 *   attention parts           among the blocks of the head       tagged words
 *   attention output          all-gather                         packets
 *   residual * norm weight    all-gather, with sums of squares   packets, tagged words
 *   scores of a router        all-gather                         tagged words
 *   activation                all-gather                         packets
 *   residual * norm weight    all-gather, with sums of squares   packets, tagged words
 * RMSNorm is split: the writer multiplies by the norm's weight and sends its columns' sum of
 * squares beside, and the reader of the product multiplies the result by 1 / rms.
 *
 * Quantized weights have half or a quarter of the bytes but the same number of exchanges, so
 * latency is a larger share of the step. A stage holds two or four times as many of them, so
 * consumers work longer on it. Memory is still the bound, with 4 bits by little. (On an H200, where
 * memory gives a block about 17 bytes a clock, consumers take up to 27 of 8-bit and 20 of 4-bit
 * weights; 2026-11-30.)
 *
 * Of two ranks each has half of the heads and of the FFN, and all columns of the residual. There
 * the sums over k of o and down are swapped with the block that has the same columns on the other
 * rank, as tagged words, and both add them in the same order: the residual has the same bits on
 * both. A word is written again in the next layer, computed from what its reader sent after it.
 *
 * Why it is right, by PTX's memory model: data carries its own validity in single-copy atomic
 * accesses, so no exchange needs a fence; and packets are reset under a split-phase grid barrier
 * with release and acquire, one layer ahead of need. */
#include "cuda/kernels/choose.cuh"
#include "cuda/kernels/resident/resident_attention.cuh"

static constexpr int THREADS = (CONSUMERS + 4) * WARP; /* one has nothing to do */
static constexpr int SHARED_LIMIT = 227 << 10;
static constexpr int LEAST_STAGES = 4;

static __host__ __device__ int tiles_of_most(int n, int n_blocks)
{
    return ((n + COLS - 1) / COLS + n_blocks - 1) / n_blocks;
}

static __host__ __device__ bool is_quantized(const struct resident *r)
{
    return r->quant.element != ELEMENT_BF16;
}

/* The longest row of x; with quantized weights of whole stages. */
static __host__ __device__ int longest(const struct resident *r)
{
    const int attn_dim = r->n_heads * r->kv.head_dim;
    const int k = r->hidden > r->ffn ? r->hidden : r->ffn;
    const int most = k > attn_dim ? k : attn_dim, stage = CHUNK * units_of(r->quant.element);

    return is_quantized(r) ? (most + stage - 1) / stage * stage : most;
}

/* x is too long for registers, or in stages of other lengths. */
static __host__ __device__ bool is_wide(const struct resident *r)
{
    return longest(r) > REGISTER_STAGES * CHUNK || r->n_experts > 0 || is_quantized(r);
}

static __host__ __device__ struct layout layout_of(const struct resident *r)
{
    const int group = r->n_heads / r->kv.n_kv_heads;
    const int parts = GROUP * CONSUMERS * r->max_rows * COLS * (int)sizeof(float);
    const int attn = CONSUMERS * group * part_length(r->kv.head_dim) * (int)sizeof(float);
    const int scales = r->quant.element != ELEMENT_INT4
                           ? 0
                           : SCALES_OF_STAGE + (r->quant.zeros ? ZEROS_OF_STAGE : 0);
    int rows = 1;
    struct layout l;

    while (rows < r->max_rows)
        rows *= 2;
    l.x = l.x_sums = is_wide(r) ? (rows * longest(r) * 2 + 127) / 128 * 128 : 0;
    if (r->quant.element == ELEMENT_INT4)
        l.x += (rows * longest(r) / GROUP_COLS * (int)sizeof(float) + 127) / 128 * 128;
    l.scratch = ((parts > attn ? parts : attn) + 127) / 128 * 128;
    l.residual = tiles_of_most(r->hidden, r->n_blocks) * r->max_rows * COLS * (int)sizeof(float);
    l.n_stages =
        (SHARED_LIMIT - (int)sizeof(struct resident_shared) - 1024 - l.x - l.scratch - l.residual) /
        (STAGE_BYTES + scales);
    l.n_stages = l.n_stages < MAX_STAGES ? l.n_stages : MAX_STAGES;
    l.scales = l.n_stages * scales;
    return l;
}

static __host__ __device__ tagged_word *take(tagged_word **at, int64_t n)
{
    tagged_word *p = *at;

    *at += (n + 15) / 16 * 16;
    return p;
}

static __host__ __device__ uint4 *take_buffers(tagged_word **at, int n, int k)
{
    return (uint4 *)take(at, 2 * n * packets_of_buffer(k));
}

/* base: of a copy. Packet buffers come first. */
static __host__ __device__ struct exchange exchange_of(const struct resident *r, tagged_word *base,
                                                       tagged_word **end)
{
    const int rows = RESIDENT_MAX_ROWS, head_dim = r->kv.head_dim, n_kv = r->kv.n_kv_heads;
    tagged_word *at = base;
    struct exchange b;

    b.x_attn = take_buffers(&at, N_BUFFERS, r->hidden);
    b.x_mlp = take_buffers(&at, N_BUFFERS, r->hidden);
    b.attn = take_buffers(&at, N_BUFFERS, r->n_heads * head_dim);
    b.act = take_buffers(&at, N_BUFFERS, r->ffn);
    b.x_head = take_buffers(&at, 1, r->hidden);
    b.squares_attn = take(&at, (int64_t)rows * r->hidden / COLS);
    b.squares_mlp = take(&at, (int64_t)rows * r->hidden / COLS);
    b.qkv = take(&at, (int64_t)rows * (r->n_heads + 2 * n_kv) * head_dim / 2);
    b.parts = take(&at, (int64_t)(rows + MAX_GROUPS) * r->n_heads * (head_dim + 2));
    b.scores = take(&at, r->n_experts);
    b.flags = (uint32_t *)take(&at, r->n_blocks);
    *end = at;
    return b;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static constexpr int PRODUCER = CONSUMERS, HELPER = CONSUMERS + 1; /* warps */

/* The producer's: which experts the row goes through, as soon as the router's scores are there. The
 * consumers read the weights behind the first stage that is of these experts, so lane 0, which
 * arrives for the stages of weights, writes them: compute-sanitizer does not see that other lanes
 * come before it. A block that has no columns of them does not wait: nothing of what it sends would
 * say that it has read the scores. */
static __device__ __forceinline__ void choose(struct frame &f)
{
    static constexpr int PAIRS = RESIDENT_MAX_EXPERTS / 2 / WARP;

    const int lane = lane_of(f), n = f.a.n_experts;
    struct tagged_pair got[PAIRS];
    float score[RESIDENT_MAX_EXPERTS / WARP];

    if (f.s.jobs[GATE_UP].mine == 0 && f.s.jobs[DOWN].mine == 0)
        return;
    receive(
        got, f.tag, [&](int i) { return (i * WARP + lane) * 2 < n; },
        [&](int i) { return f.s.in.scores + (i * WARP + lane) * 2; });
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        *(float2 *)(f.s.scores + (i * WARP + lane) * 2) =
            make_float2(float_of(got[i].a), float_of(got[i].b));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < RESIDENT_MAX_EXPERTS / WARP; i++)
        score[i] = f.s.scores[i * WARP + lane];
    choose_experts(score, n, f.a.n_picks, f.a.norm_topk, lane,
                   [&](int i, int expert, float weight) {
                       f.s.picks[i] = {expert, weight};
                   });
    __syncwarp();
    for (int i = 0; i < f.a.n_picks && lane == 0; i++)
        f.s.weights[f.tag % 2][i] = f.s.picks[i].weight;
}

template <bool FP8, int HEAD_DIM, int KIND, bool EXPERTS>
static __device__ __forceinline__ void produce(struct frame &f)
{
    const uint64_t policy = stream_policy();
    struct job j = job_of(f, QKV, 0);

    do {
        if (EXPERTS && j.kind == GATE_UP && f.a.n_experts > 0)
            choose(f);
        if (KIND == KIND_BF16 || j.kind == LM_HEAD)
            stream_weights<EXPERTS>(f, j, policy);
        else
            stream_quantized<KIND>(f, j, policy);
        if (j.kind == QKV)
            stream_keys<HEAD_DIM, FP8>(f, j.layer, policy);
        f.tag += EXPERTS && j.kind == DOWN;
    } while (next_job(f, j));
}

/* How packet buffers come to be used again: one helper warp writes sentinels into the packets of
 * its block, ordered by a split-phase grid barrier per layer.
 *
 * In layer l, off the consumers' path, that warp of each block
 *   1. waits at the barrier of layer l - 1: then all blocks have read every packet of layer l - 2,
 *   2. resets the packets that this block wrote in layer l - 2,
 *   3. arrives at the barrier of layer l.
 * Arriving is a store with release semantics, waiting a load with acquire semantics, of one flag a
 * block; __syncwarp() orders the accesses of the warp's lanes, named barriers those of the block's
 * other warps. The helpers are in layer l once the consumers have received x for its q, k and v,
 * and so have read all of layer l - 1. Consumers load the first packet of layer l + 2, in the
 * same buffer as those of layer l - 2, after their helpers have waited for layer l. So every reset
 * precedes in causality order each load of the buffer's next use, and such a load returns a
 * sentinel or a new packet, never an old one. Resets and new packets of one block are ordered by
 * its own barriers. The LM head counts as a layer, and the kernel's last reset follows a wait for
 * it.
 *
 * The flags of odd and even layers are two sets: a block arrives at layer l + 1 only after all have
 * arrived at layer l, each having waited for layer l - 1. The kernel's end orders the rest. */
static __device__ __forceinline__ uint32_t *flags_of(const struct frame &f, uint32_t tag)
{
    return f.s.out.flags + tag % 2 * gridDim.x;
}

/* All blocks have arrived with this tag, and all lanes know it. */
static __device__ __forceinline__ void grid_wait(const struct frame &f, uint32_t tag)
{
#pragma unroll 1
    for (int i = lane_of(f); i < (int)gridDim.x; i += WARP)
        wait_flag(flags_of(f, tag) + i, tag);
    __syncwarp();
}

static __device__ __forceinline__ void grid_arrive(const struct frame &f, uint32_t tag)
{
    __syncwarp();
    if (lane_of(f) == 0)
        store_flag(flags_of(f, tag) + blockIdx.x, tag);
}

/* Of this block's tiles of a buffer. */
static __device__ __forceinline__ void reset_tiles(const struct frame &f, uint4 *buffer, int tiles,
                                                   int rows)
{
#pragma unroll 1
    for (int i = lane_of(f); i < tiles * rows * 4; i += WARP) {
        const int tile = i / 4 / rows, row = i / 4 - tile * rows;

        store_packet(copy_of_lane(f, buffer) + packet_at(row, tile_of_block(tile) * COLS),
                     sentinel());
    }
}

/* What send_segment() and join_item() wrote. */
static __device__ __forceinline__ void reset_attention(const struct frame &f, int layer, int rows)
{
    const int head_dim = f.a.kv.head_dim, group = f.s.group, parts = head_dim / 16;
    const int first = f.s.kv_head * group * head_dim, n = f.s.n_groups;
    const int items = f.s.own < n ? rows * group * parts : 0, lane = lane_of(f);
    uint4 *const buffer = copy_of_lane(f, buffer_of_attn(f, layer));

#pragma unroll 1
    for (int i = 0; i < f.s.n_segments; i++) {
        const int seq = f.s.segments[i].seq;

        if (f.s.n_parts[seq] == 1)
#pragma unroll 1
            for (int j = lane; j < group * head_dim / 2; j += WARP)
                store_packet(buffer + packet_at(seq, first + j / 4 * COLS), sentinel());
    }
#pragma unroll 1
    for (int i = f.s.own + lane / 8 * n; i < items; i += WARP / 8 * n) {
        const int seq = i / (group * parts), column = (i - seq * group * parts) * 16;

        if (f.s.n_parts[seq] > 1)
            store_packet(buffer + packet_at(seq, first + column + lane / 4 % 2 * COLS), sentinel());
    }
}

/* What this block wrote in a layer. Layer -2 is what it wrote for the LM head in the step before,
 * which may have had more rows; -1 is nothing. Loops are rolled to spare the instruction cache. */
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

        reset_tiles(f, layer < 0 ? b.x_head : buffer, f.s.jobs[i < 2 ? DOWN : GATE_UP].mine,
                    layer < 0 ? (int)RESIDENT_MAX_ROWS : rows);
    }
}

/* The helpers' side: operands and scales of each product before its sums are there, and by the
 * first warp the layer's grid barrier. The LM head's x may be loaded once the barrier of the last
 * layer is passed. */
static __device__ __forceinline__ void help(struct frame &f, int n_rows)
{
    const bool resets = helper_thread(f) < WARP;
    const int m = f.m, last = f.a.n_layers;
    struct job j = job_of(f, QKV, 0);

    do {
        if (resets && (j.kind == OUT || j.kind == LM_HEAD)) {
            if (j.layer > 0)
                grid_wait(f, f.tag - 1);
            if (j.kind == OUT)
                reset_layer(f, j.layer - 2, m);
            grid_arrive(f, f.tag);
        }
        if (j.kind == LM_HEAD) {
            f.m = n_rows;
            named_sync(CONSUMERS_AND_HELPERS);
        }
        load_operands(f, j);
        if (j.mine > 0 && j.kind != OUT && j.kind != DOWN)
            compute_scales(f, j);
        named_sync(CONSUMERS_AND_HELPERS);
        f.half ^= 1;
        f.tag += j.kind == DOWN;
    } while (next_job(f, j));
    if (!resets)
        return;
    grid_wait(f, f.tag); /* all blocks are done with the layers */
    reset_layer(f, last - 2, m);
    reset_layer(f, last - 1, m);
}

/* The first layer's residual, by the blocks that own its columns, as if after layer -1, of which
 * nothing else is read. */
template <bool TWINS> static __device__ __forceinline__ void load_embedding(const struct frame &f)
{
    const struct resident &a = f.a;
    const struct job j = job_of(f, DOWN, -1);
    const int all = (j.mine << (f.rows_log + 2)) + WARP - 1 & ~(WARP - 1);

#pragma unroll 1
    for (int i = (int)f.thread; i < all; i += CONSUMERS * WARP) {
        const struct place p = place_of(f, j, i, 0, j.mine);
        uint32_t x = 0, norm = 0;

        if (p.there) {
            int token = __ldg(a.step.tokens + p.row);

            if (token < 0)
                token = __ldg(a.sampled + ~token);
            if (token < 0 || token >= a.embedding.vocab_size)
                token = 0; /* as in embed.cu: its sequence has ended, the row is discarded */
            const bool second = TWINS && token >= a.embedding.rows_per_rank;
            const uint16_t *from = a.embedding.tables[second];

            token -= second ? a.embedding.rows_per_rank : 0;
            x = __ldg((const uint32_t *)(from + (int64_t)token * a.hidden + p.column));
            norm = __ldg((const uint32_t *)(a.w.attn_norm + p.column));
        }
        send_residual(f, f.tag, p, make_float2(bf16_low(x), bf16_high(x)),
                      make_float2(bf16_low(norm), bf16_high(norm)));
    }
}

template <bool FP8, int HALVES, int HEAD_DIM, int KIND, bool WIDE, bool TWINS, bool EXPERTS>
static __device__ __forceinline__ void consume(struct frame &f, int n_rows)
{
    mark(f);
    load_embedding<TWINS>(f);
    struct job j = job_of(f, QKV, 0);
    do {
        refresh_thread(f);
        if (j.kind == LM_HEAD)
            f.m = n_rows;
        if (j.kind == QKV)
            mark(f);
        if (KIND == KIND_BF16 || j.kind == LM_HEAD)
            product<HALVES, KIND_BF16, WIDE, TWINS, EXPERTS>(f, j);
        else
            product<HALVES, KIND, WIDE, TWINS, EXPERTS>(f, j);
        f.half ^= 1;
        f.tag += j.kind == DOWN;
        if (j.kind == QKV) {
            refresh_thread(f);
            attention<HEAD_DIM, FP8>(f, j.layer);
            mark(f);
        }
    } while (next_job(f, j));
    mark(f);
}

/* Fills what the roles share, by all threads. */
static __device__ __forceinline__ void prepare(struct resident_shared &s, const struct resident &a)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int m = __ldcg(&a.step.counts->n_tokens), n_rows = __ldcg(&a.step.counts->n_rows);

    if (warp == 0)
        plan_segments(s, a, m);
    if (warp == 1 && lane < RESIDENT_MAX_ROWS)
        s.source[lane] = lane < n_rows ? __ldcg(&a.step.rows[lane].row) : 0;
    if (threadIdx.x == HELPER * WARP) {
        tagged_word *const base = (tagged_word *)a.exchange;
        tagged_word *end;

        s.out = exchange_of(&a, base, &end);
        s.copy_stride = end - base;
        s.in = exchange_of(&a, base + (int)blockIdx.x % COPIES * s.copy_stride, &end);
    }
    if (threadIdx.x == PRODUCER * WARP) {
        s.layout = layout_of(&a);
        s.m = m;
        s.n_rows = n_rows;
        s.tag = __ldcg(&a.step.counts->tag);
        for (int i = 0; i < s.layout.n_stages; i++) {
            barrier_init(shared_address(s.full + i), 1);
            barrier_init(shared_address(s.empty + i), CONSUMERS * WARP);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < N_KINDS)
        s.jobs[threadIdx.x] = first_job(s, a, (int)threadIdx.x);
    __syncthreads();
}

/* Zeros x, by all threads: a partial stage of quantized weights reads x past the row's end, and
 * shared memory begins with anything, NaN included. */
static __device__ __forceinline__ void clear_x(unsigned char *x, int bytes)
{
    for (int i = (int)threadIdx.x * 16; i < bytes; i += THREADS * 16)
        *(uint4 *)(x + i) = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

static __device__ __forceinline__ struct frame
frame_of(const struct resident &a, struct resident_shared &s, unsigned char *memory)
{
    unsigned char *const behind = memory + s.layout.n_stages * STAGE_BYTES + s.layout.scales;

    return {a,
            s,
            {shared_address(memory), shared_address(s.full), shared_address(s.empty),
             s.layout.n_stages, 0, 0},
            behind,
            (float *)(behind + s.layout.x),
            (float *)(behind + s.layout.x + s.layout.scratch),
            threadIdx.x,
            s.m,
            s.m > 1 ? 32 - __clz(s.m - 1) : 0,
            s.tag,
            0};
}

#endif

/* FP8: keys and values are. HALVES: 2 for more than RESIDENT_FEW_ROWS. WIDE: as is_wide().
 * TWINS: of two ranks. KIND: of the projections; the LM head's is bf16. */
template <bool FP8, int HALVES, int HEAD_DIM, bool WIDE, bool TWINS, int KIND = KIND_BF16>
static __global__ void __launch_bounds__(THREADS, 1)
    resident_kernel(const __grid_constant__ struct resident a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static constexpr bool EXPERTS = HALVES == 1 && KIND == KIND_BF16 && WIDE && !TWINS;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ struct resident_shared s;
    const int warp = (int)threadIdx.x / WARP;

    prepare(s, a);
    if (KIND != KIND_BF16)
        clear_x(frame_of(a, s, memory).x, s.layout.x);
    /* Consumers take registers from the others: what spills goes to local memory, of which L1
     * holds next to nothing beside so much shared memory. Each role makes its own frame: what they
     * had in common would be bound by those with few registers. */
    if (warp >= CONSUMERS) {
        registers_shrink<88>();
        struct frame f = frame_of(a, s, memory);

        if (warp == PRODUCER)
            produce<FP8, HEAD_DIM, KIND, EXPERTS>(f);
        else if (warp < HELPER + HELPERS)
            help(f, s.n_rows);
    } else {
        registers_grow<208>();
        struct frame f = frame_of(a, s, memory);

        consume<FP8, HALVES, HEAD_DIM, KIND, WIDE, TWINS, EXPERTS>(f, s.n_rows);
    }
#endif
}

typedef void resident_function(const struct resident);

/* Of bf16 weights by: heads of 128, is_wide(). */
template <bool FP8, int HALVES, bool TWINS>
static resident_function *const functions[2][2] = {
    {resident_kernel<FP8, HALVES, 64, false, TWINS>, resident_kernel<FP8, HALVES, 64, true, TWINS>},
    {resident_kernel<FP8, HALVES, 128, false, TWINS>,
     resident_kernel<FP8, HALVES, 128, true, TWINS>},
};

/* Of quantized weights by: 4 bits, heads of 128. */
template <bool FP8>
static resident_function *const quantized[2][2] = {
    {resident_kernel<FP8, 1, 64, true, false, KIND_E4M3>,
     resident_kernel<FP8, 1, 128, true, false, KIND_E4M3>},
    {resident_kernel<FP8, 1, 64, true, false, KIND_INT4>,
     resident_kernel<FP8, 1, 128, true, false, KIND_INT4>},
};

static resident_function *function_of(const struct resident *r)
{
    const bool int4 = r->quant.element == ELEMENT_INT4, many = r->max_rows > RESIDENT_FEW_ROWS;
    const bool wide_head = r->kv.head_dim == 128, wide = is_wide(r);

    if (r->sums)
        return (many ? functions<false, 2, true> : functions<false, 1, true>)[wide_head][wide];
    if (is_quantized(r))
        return (r->kv.fp8 ? quantized<true> : quantized<false>)[int4][wide_head];
    if (r->kv.fp8)
        return functions<true, 1, false>[wide_head][wide];
    return (many ? functions<false, 2, false> : functions<false, 1, false>)[wide_head][wide];
}

extern "C" size_t resident_exchange_bytes(const struct resident *r)
{
    tagged_word *end;

    (void)exchange_of(r, nullptr, &end);
    return COPIES * (size_t)(uintptr_t)end;
}

extern "C" size_t resident_sentinel_bytes(const struct resident *r)
{
    tagged_word *end;

    return (size_t)(uintptr_t)exchange_of(r, nullptr, &end).x_head;
}

extern "C" size_t resident_sum_bytes(const struct resident *r)
{
    return 2 * RESIDENT_MAX_ROWS * (size_t)r->hidden * sizeof(*r->sums);
}

extern "C" cudaError_t resident_clear(const struct launch *l, const struct resident *r)
{
    cudaError_t e = cudaMemsetAsync(r->exchange, 0xff, resident_exchange_bytes(r), l->stream);

    if (e == cudaSuccess && r->sums)
        e = cudaMemsetAsync(r->sums, 0xff, resident_sum_bytes(r), l->stream);
    return e;
}

/* The steps of k of an expert's stage are of the same warps as in a row of x. */
static bool supports_experts(const struct resident *r)
{
    const int each = columns_of_expert(*r), chunk = chunk_of_down(*r);

    return r->n_experts == 0 || (r->max_rows == 1 && r->n_experts <= RESIDENT_MAX_EXPERTS &&
                                 r->n_experts % 2 == 0 && r->n_picks <= RESIDENT_MAX_PICKS &&
                                 each % chunk == 0 && chunk % (CONSUMERS * K_STEP) == 0);
}

/* Where a row has several stages, its scales and zeros are copied row by row as they lie in memory,
 * in multiples of 16 bytes. Shorter rows need less, but are held to the same. */
static bool supports_quant(const struct resident *r)
{
    const struct resident_quant *q = &r->quant;
    const int attn_dim = r->n_heads * r->kv.head_dim, kv_dim = r->kv.n_kv_heads * r->kv.head_dim;
    const int bytes = q->element == ELEMENT_E4M3 ? 4 : q->zeros ? 1 : 2; /* of the shortest */
    const int cols = q->of_rows ? 2 * K_STEP : 16 / bytes * GROUP_COLS;
    const int rows = q->element == ELEMENT_E4M3 && !q->of_rows ? GROUP_COLS : COLS;

    return !is_quantized(r) ||
           (r->n_experts == 0 && r->max_rows <= RESIDENT_FEW_ROWS && r->hidden % cols == 0 &&
            attn_dim % cols == 0 && r->ffn % cols == 0 && r->hidden % rows == 0 &&
            attn_dim % rows == 0 && kv_dim % rows == 0 && r->ffn % rows == 0);
}

extern "C" bool resident_supports(const struct resident *r)
{
    const int n_kv = r->kv.n_kv_heads, head_dim = r->kv.head_dim, blocks = r->n_blocks;

    return r->max_rows >= 1 && r->max_rows <= RESIDENT_MAX_ROWS &&
           (head_dim == 64 || head_dim == 128) && n_kv <= blocks && r->n_heads % n_kv == 0 &&
           r->n_heads / n_kv <= RESIDENT_MAX_GROUP && r->kv.block_shift >= 4 &&
           r->hidden % 32 == 0 && r->ffn % 32 == 0 &&
           tiles_of_most(r->hidden, blocks) * COLS <= RESIDENT_MAX_COLUMNS &&
           tiles_of_most((r->n_heads + 2 * n_kv) * head_dim, blocks) * COLS <=
               RESIDENT_MAX_COLUMNS &&
           (!r->kv.fp8 || r->max_rows <= RESIDENT_FEW_ROWS) && supports_experts(r) &&
           supports_quant(r) && layout_of(r).n_stages >= LEAST_STAGES;
}

extern "C" cudaError_t resident_compiled(bool *out)
{
    return find_compiled(functions<false, 1, false>[1][0], out);
}

extern "C" cudaError_t resident_init(void)
{
    const int bytes = SHARED_LIMIT - (int)sizeof(struct resident_shared) - 1024;
    const struct {
        resident_function *const *first;
        size_t bytes;
    } all[] = {{functions<false, 1, false>[0], sizeof(functions<false, 1, false>)},
               {functions<false, 2, false>[0], sizeof(functions<false, 2, false>)},
               {functions<false, 1, true>[0], sizeof(functions<false, 1, true>)},
               {functions<false, 2, true>[0], sizeof(functions<false, 2, true>)},
               {functions<true, 1, false>[0], sizeof(functions<true, 1, false>)},
               {quantized<false>[0], sizeof(quantized<false>)},
               {quantized<true>[0], sizeof(quantized<true>)}};

    for (const auto &table : all)
        for (size_t i = 0; i < table.bytes / sizeof(*table.first); i++) {
            const cudaError_t r =
                cudaFuncSetAttribute(table.first[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     bytes);

            if (r != cudaSuccess)
                return r;
        }
    return cudaSuccess;
}

extern "C" cudaError_t resident_run(const struct launch *l, const struct resident *r)
{
    const struct layout layout = layout_of(r);
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.gridDim = dim3((unsigned)r->n_blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)layout.n_stages * STAGE_BYTES + (size_t)layout.scales +
                              (size_t)layout.x + (size_t)layout.scratch + (size_t)layout.residual;
    config.stream = l->stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, function_of(r), *r);
}
