/* resident.cu - a decode step of few rows as one kernel: embedding, all layers, LM head.
 *
 * One block a multiprocessor, all of them resident: a cooperative launch sees to that, so that they
 * may wait for each other. Results go from block to block as messages, without a barrier of all. A
 * layer is six exchanges: q, k, v; parts of attention; attention; residual; activation; residual.
 *
 * Bound by memory, the bytes of all weights and of the sequences' keys and values, where these are
 * many; by the exchanges where they are few. One warp of a block streams its share of the bytes
 * into shared memory in the order in which they will be used, whatever the state of the
 * computation, so memory works while messages are on their way. */
#include "cuda/kernels/resident_attention.cuh"

static constexpr int THREADS = (CONSUMERS + 4) * WARP; /* two have nothing to do */
static constexpr int SHARED_LIMIT = 227 << 10;
static constexpr int LEAST_STAGES = 4;

/* What a model's shape and the rows make of shared memory. */
struct layout {
    int n_stages, x, scratch, residual; /* bytes */
};

static __host__ __device__ int tiles_of_most(int n, int n_blocks)
{
    return ((n + COLS - 1) / COLS + n_blocks - 1) / n_blocks;
}

static __host__ __device__ struct layout layout_of(const struct resident *r)
{
    const int attn_dim = r->n_heads * r->kv.head_dim, group = r->n_heads / r->kv.n_kv_heads;
    const int parts = GROUP * CONSUMERS * r->max_rows * COLS * (int)sizeof(float);
    const int attn = CONSUMERS * group * part_length(r->kv.head_dim) * (int)sizeof(float);
    int k = r->hidden > r->ffn ? r->hidden : r->ffn;
    struct layout l;

    k = k > attn_dim ? k : attn_dim;
    l.x = (r->max_rows * x_stride(k) + 127) / 128 * 128;
    l.scratch = ((parts > attn ? parts : attn) + 127) / 128 * 128;
    l.residual = tiles_of_most(r->hidden, r->n_blocks) * r->max_rows * COLS * (int)sizeof(float);
    l.n_stages =
        (SHARED_LIMIT - (int)sizeof(struct resident_shared) - 1024 - l.x - l.scratch - l.residual) /
        STAGE_BYTES;
    l.n_stages = l.n_stages < MAX_STAGES ? l.n_stages : MAX_STAGES;
    return l;
}

static __host__ __device__ message *take(message **at, int64_t n)
{
    message *p = *at;

    *at += (n + 15) / 16 * 16;
    return p;
}

/* base: of a copy. */
static __host__ __device__ struct mailboxes mailboxes_of(const struct resident *r, message *base,
                                                         message **end)
{
    const int rows = RESIDENT_MAX_ROWS, head_dim = r->kv.head_dim, n_kv = r->kv.n_kv_heads;
    message *at = base;
    struct mailboxes b;

    b.x_attn = take(&at, (int64_t)rows * r->hidden / 2);
    b.x_mlp = take(&at, (int64_t)rows * r->hidden / 2);
    b.attn = take(&at, (int64_t)rows * r->n_heads * head_dim / 2);
    b.act = take(&at, (int64_t)rows * r->ffn / 2);
    b.squares_attn = take(&at, (int64_t)rows * r->hidden / COLS);
    b.squares_mlp = take(&at, (int64_t)rows * r->hidden / COLS);
    b.qkv = take(&at, (int64_t)rows * (r->n_heads + 2 * n_kv) * head_dim / 2);
    b.parts = take(&at, (int64_t)(rows + MAX_GROUPS) * r->n_heads * (head_dim + 2));
    *end = at;
    return b;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static constexpr int PRODUCER = CONSUMERS, HELPER = CONSUMERS + 1; /* warps */

template <int HEAD_DIM> static __device__ __forceinline__ void produce(struct frame &f, int n_jobs)
{
    const uint64_t policy = stream_policy();

#pragma unroll 1
    for (int i = 0; i < n_jobs; i++) {
        const struct job j = job_of(f, i);

        stream_weights(f, j, policy);
        if (j.kind == QKV)
            stream_keys<HEAD_DIM>(f, j.layer, policy);
    }
}

/* Has, before a product's results are there, what they meet. */
static __device__ __forceinline__ void help(struct frame &f, int n_jobs, int n_rows)
{
#pragma unroll 1
    for (int i = 0; i < n_jobs; i++) {
        const struct job j = job_of(f, i);

        if (j.kind == LM_HEAD)
            f.m = n_rows;
        take_beside(f, j);
        if (j.mine > 0 && j.kind != OUT && j.kind != DOWN)
            take_scales(f, j);
        meet(CONSUMERS_AND_HELPER);
        f.turn ^= 1;
        f.tag += j.kind == DOWN;
    }
}

/* The residual of the first layer, by the blocks that it belongs to, as if a layer before had
 * ended. */
static __device__ __forceinline__ void take_embedding(const struct frame &f)
{
    const struct resident &a = f.a;
    const struct job j = {OUT, 0, nullptr, a.hidden, 0, f.s.mine[OUT]};
    const int all = (j.mine << (f.rows_log + 2)) + WARP - 1 & ~(WARP - 1);

#pragma unroll 1
    for (int i = (int)threadIdx.x; i < all; i += CONSUMERS * WARP) {
        const struct place p = place_of(f, j, i, 0, j.mine);
        const int column = (int)(p.to * 2 - (int64_t)p.row * a.hidden);
        uint32_t x = 0, norm = 0;

        if (p.there) {
            int token = __ldg(a.step.tokens + p.row);

            if (token < 0)
                token = __ldg(a.sampled + ~token);
            if (token < 0 || token >= a.vocab_size)
                token = 0; /* as in embed.cu: its sequence has ended, this row is lost */
            x = __ldg((const uint32_t *)(a.w.embed + (int64_t)token * a.hidden + column));
            norm = __ldg((const uint32_t *)(a.w.attn_norm + column));
        }
        post_residual(f, f.s.box.x_attn, f.s.box.squares_attn, f.tag, p,
                      make_float2(bf16_low(x), bf16_high(x)),
                      make_float2(bf16_low(norm), bf16_high(norm)));
    }
}

template <int HALVES, int HEAD_DIM>
static __device__ __forceinline__ void consume(struct frame &f, int n_jobs, int n_rows)
{
    mark(f);
    take_embedding(f);
#pragma unroll 1
    for (int i = 0; i < n_jobs; i++) {
        const struct job j = job_of(f, i);

        if (j.kind == LM_HEAD)
            f.m = n_rows;
        if (j.kind == QKV)
            mark(f);
        product<HALVES>(f, j);
        f.turn ^= 1;
        f.tag += j.kind == DOWN;
        if (j.kind == QKV) {
            attention<HEAD_DIM>(f, j.layer);
            mark(f);
        }
    }
    mark(f);
}

#endif

/* HALVES: 2 for more than 8 rows. */
template <int HALVES, int HEAD_DIM>
static __global__ void __launch_bounds__(THREADS, 1)
    resident_kernel(const __grid_constant__ struct resident a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ struct resident_shared s;
    const struct layout l = layout_of(&a);
    const int warp = (int)threadIdx.x / WARP;
    const int m = __ldcg(&a.step.counts->n_tokens), n_rows = __ldcg(&a.step.counts->n_rows);
    unsigned char *const behind = memory + l.n_stages * STAGE_BYTES;
    const struct ring ring = {
        shared_address(memory), shared_address(s.full), shared_address(s.empty), l.n_stages, 0, 0};
    struct frame f = {a,
                      s,
                      ring,
                      behind,
                      (float *)(behind + l.x),
                      (float *)(behind + l.x + l.scratch),
                      m,
                      m > 1 ? 32 - __clz(m - 1) : 0,
                      __ldcg(&a.step.counts->tag),
                      0};

    if (threadIdx.x < N_KINDS) { /* tiles b, b + n_blocks, ... of each matrix */
        const int attn_dim = a.n_heads * HEAD_DIM;
        const int n = threadIdx.x == QKV       ? attn_dim + 2 * a.kv.n_kv_heads * HEAD_DIM
                      : threadIdx.x == GATE_UP ? a.ffn
                      : threadIdx.x == LM_HEAD ? a.vocab_size
                                               : a.hidden;

        s.mine[threadIdx.x] =
            ((n + COLS - 1) / COLS - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    }
    if (warp == 0)
        plan_segments(s, a, m);
    if (warp == 1 && threadIdx.x % WARP < RESIDENT_MAX_ROWS)
        s.source[threadIdx.x % WARP] =
            (int)(threadIdx.x % WARP) < n_rows ? __ldcg(&a.step.rows[threadIdx.x % WARP].row) : 0;
    if (threadIdx.x == HELPER * WARP) {
        message *const base = (message *)a.messages;
        message *end;

        s.box = mailboxes_of(&a, base, &end);
        s.apart = end - base;
        s.inbox = mailboxes_of(&a, base + (int)blockIdx.x % COPIES * s.apart, &end);
    }
    if (threadIdx.x == PRODUCER * WARP) {
        for (int i = 0; i < l.n_stages; i++) {
            barrier_init(f.ring.full + (uint32_t)i * 8, 1);
            barrier_init(f.ring.empty + (uint32_t)i * 8, CONSUMERS * WARP);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int n_jobs = 4 * a.n_layers + (n_rows > 0);
    /* Consumers take registers from the others: what does not fit goes to local memory, of which
     * the first-level cache holds next to nothing beside so much shared memory. */
    if (warp >= CONSUMERS) {
        registers_shrink<80>();
        if (warp == PRODUCER)
            produce<HEAD_DIM>(f, n_jobs);
        else if (warp == HELPER)
            help(f, n_jobs, n_rows);
    } else {
        registers_grow<208>();
        consume<HALVES, HEAD_DIM>(f, n_jobs, n_rows);
    }
#endif
}

typedef void resident_function(const struct resident);

static resident_function *function_of(int head_dim, int rows)
{
    if (head_dim == 128)
        return rows <= 8 ? resident_kernel<1, 128> : resident_kernel<2, 128>;
    return rows <= 8 ? resident_kernel<1, 64> : resident_kernel<2, 64>;
}

extern "C" size_t resident_message_bytes(const struct resident *r)
{
    message *end;

    (void)mailboxes_of(r, nullptr, &end);
    return COPIES * (size_t)(uintptr_t)end;
}

extern "C" bool resident_supports(const struct resident *r)
{
    const int n_kv = r->kv.n_kv_heads, head_dim = r->kv.head_dim, blocks = r->n_blocks;

    return r->max_rows >= 1 && r->max_rows <= RESIDENT_MAX_ROWS &&
           (head_dim == 64 || head_dim == 128) && n_kv <= blocks && r->n_heads % n_kv == 0 &&
           r->n_heads / n_kv <= RESIDENT_MAX_GROUP && r->kv.block_shift >= 4 &&
           r->hidden % 32 == 0 && r->ffn % 32 == 0 && r->vocab_size % 2 == 0 &&
           tiles_of_most(r->hidden, blocks) * COLS <= RESIDENT_MAX_COLUMNS &&
           tiles_of_most((r->n_heads + 2 * n_kv) * head_dim, blocks) * COLS <=
               RESIDENT_MAX_COLUMNS &&
           layout_of(r).n_stages >= LEAST_STAGES;
}

extern "C" cudaError_t resident_compiled(bool *out)
{
    struct cudaFuncAttributes attributes;
    const cudaError_t r = cudaFuncGetAttributes(&attributes, function_of(128, 1));

    *out = r == cudaSuccess && attributes.sharedSizeBytes > 0; /* an empty kernel has none */
    return r;
}

extern "C" cudaError_t resident_init(void)
{
    const int bytes = SHARED_LIMIT - (int)sizeof(struct resident_shared) - 1024;

    for (int rows = 8; rows <= RESIDENT_MAX_ROWS; rows += 8)
        for (int head_dim = 64; head_dim <= 128; head_dim += 64) {
            const cudaError_t r =
                cudaFuncSetAttribute(function_of(head_dim, rows),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);

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
    config.dynamicSmemBytes = (size_t)layout.n_stages * STAGE_BYTES + (size_t)layout.x +
                              (size_t)layout.scratch + (size_t)layout.residual;
    config.stream = l->stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, function_of(r->kv.head_dim, r->max_rows), *r);
}
