/* attn_prefill_sm90.cu - causal attention of packed prefill chunks over their paged keys, for
 * compute capability 9.0; attn_prefill.cu does the rest.
 *
 * Bound by arithmetic: 4 * head_dim operations per pair of query row and key, on wgmma. Blocks are
 * persistent and take work items of ATTN_TILE query rows of one head from a counter. A producer
 * warp copies queries, keys and values to shared memory by bulk tensor copies, one per KV block;
 * two consumer warpgroups compute 64 rows each, and alternate between softmax and tensor cores.
 * Within a warpgroup the products of the next keys overlap the softmax of these. Where there are
 * few tiles their keys are split too, and the warpgroup that finishes last joins the splits. */
#include "cuda/kernels/attn_prefill_sm90.cuh"

#include "cuda/kernels/tensor_map.cuh"

static constexpr int COPY_REGISTERS = 40, COMPUTE_REGISTERS = 232;
static_assert((COPY_REGISTERS + GROUPS * COMPUTE_REGISTERS) * GROUP_THREADS <= 65536, "an SM's");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* A consumer thread's two rows, 8 apart. */
struct rows {
    float max[2], sum[2], shrink[2];
};

/* Scores become weights; where masked, keys after the row's limit count for nothing. Element i of s
 * is of row i / 2 % 2 and key i / 4 * 8 + i % 2, counted from the thread's first. */
template <bool MASKED>
static __device__ __forceinline__ void weigh(float (&s)[KEYS / 2], struct rows &r,
                                             const int (&limit)[2], float scale_log2)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top[2] = {r.max[half], -INFINITY}, total[2] = {0.0f, 0.0f};

#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float &x = s[i / 2 * 4 + half * 2 + i % 2];

            if (MASKED && i / 2 * 8 + i % 2 > limit[half])
                x = -INFINITY;
            top[i % 2] = fmaxf(top[i % 2], x);
        }
        top[0] = fmaxf(top[0], top[1]);
        top[0] = fmaxf(top[0], __shfl_xor_sync(ALL_LANES, top[0], 1));
        top[0] = fmaxf(top[0], __shfl_xor_sync(ALL_LANES, top[0], 2));
        const float base = top[0] * scale_log2;
        /* Exactly one where the maximum stays: tiles beyond a row change nothing. */
        r.shrink[half] = exp2_fast((r.max[half] - top[0]) * scale_log2);
        r.max[half] = top[0];
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float &x = s[i / 2 * 4 + half * 2 + i % 2];

            x = exp2_fast(x * scale_log2 - base);
            total[i % 2] += x;
        }
        r.sum[half] = r.sum[half] * r.shrink[half] + total[0] + total[1];
    }
}

/* Weights as the left operand of a product: four registers for 16 keys. */
static __device__ __forceinline__ void pack_weights(uint32_t (&w)[KEYS / 4],
                                                    const float (&s)[KEYS / 2])
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
        w[i] = bf16_pair(s[i * 2], s[i * 2 + 1]);
}

template <int HEAD_DIM>
static __device__ __forceinline__ void multiply_keys(float (&s)[KEYS / 2], uint64_t q, uint64_t k)
{
    using shape = layout<HEAD_DIM>;

#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++)
        wgmma_ss(s, matrix_step(q, i / 4 * shape::Q_HALF + i % 4 * 32),
                 matrix_step(k, i / 4 * shape::ATOM + i % 4 * 32), i > 0);
    wgmma_commit();
}

template <int HEAD_DIM>
static __device__ __forceinline__ void multiply_values(float (&o)[HEAD_DIM / 2],
                                                       const uint32_t (&w)[KEYS / 4], uint64_t v)
{
    using shape = layout<HEAD_DIM>;

#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        wgmma_rs<1>(o, w + i * 4, matrix_step(v, (uint32_t)i * 2 * shape::HALVES * shape::ATOM),
                    true);
    wgmma_commit();
}

/* What a consumer warpgroup works with. */
struct consumer {
    struct barriers *b;
    int group;
    uint64_t q, k, v; /* of its rows; of stage 0 */
    int n_tiles;      /* of keys, in all work before this; less the tile that this begins with */
};

/* Waits until the stage of a tile is full. */
static __device__ __forceinline__ void wait_full(const uint64_t *barriers, int tile)
{
    barrier_wait(shared_address(&barriers[tile % STAGES]), (uint32_t)(tile / STAGES & 1));
}

template <int HEAD_DIM>
static __device__ __forceinline__ uint64_t stage_of(uint64_t first, int tile)
{
    return matrix_step(first, (uint32_t)(tile % STAGES) * layout<HEAD_DIM>::TILE_BYTES);
}

/* This warp has read what lies there, once x is known, which is no less than zero. */
static __device__ __forceinline__ void release(const uint64_t *empty, float x = 0.0f)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0 && !(x < 0.0f))
        barrier_arrive(shared_address(empty));
}

/* One more tile of keys: its scores overlap the values of the tile before. The warpgroups alternate
 * on the tensor cores. */
template <int HEAD_DIM, bool MASKED>
static __device__ __forceinline__ void
step_over(const struct consumer &at, int step, float (&s)[KEYS / 2], float (&o)[HEAD_DIM / 2],
          uint32_t (&w)[KEYS / 4], struct rows &r, const int (&limit)[2], float scale_log2)
{
    const int k = at.n_tiles + step, v = k - 1;

    wait_full(at.b->k_full, k);
    named_wait(1 + at.group, GROUPS * GROUP_THREADS);
    pin(s);
    pin(o);
    wgmma_fence();
    multiply_keys<HEAD_DIM>(s, at.q, stage_of<HEAD_DIM>(at.k, k));
    wait_full(at.b->v_full, v);
    wgmma_fence();
    multiply_values<HEAD_DIM>(o, w, stage_of<HEAD_DIM>(at.v, v));
    named_arrive(1 + (at.group ^ 1), GROUPS * GROUP_THREADS);
    wgmma_wait<1>();
    pin(s);
    const int here[2] = {limit[0] - step * KEYS, limit[1] - step * KEYS};
    weigh<MASKED>(s, r, here, scale_log2);
    release(&at.b->k_empty[k % STAGES], r.sum[0] + r.sum[1]);
    wgmma_wait<0>();
    pin(o);
    pin(s);
    release(&at.b->v_empty[v % STAGES]);
    pack_weights(w, s);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++)
        o[i] *= r.shrink[i / 2 % 2];
}

/* Where a split of the tile's rows goes. */
template <int HEAD_DIM>
static __device__ __forceinline__ float *partial_of(const struct prefill_args &p,
                                                    const struct work &w, int split)
{
    return p.partial + ((int64_t)w.place * p.n_splits + split) * split_floats<HEAD_DIM>();
}

/* row: the thread's first in the tile. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
store_rows(const struct prefill_args &p, const struct work &w, int row,
           const float (&o)[HEAD_DIM / 2], const struct rows &r)
{
    const int lane = (int)threadIdx.x % WARP;
    float *part = partial_of<HEAD_DIM>(p, w, w.split);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = row + half * 8;
        float total = r.sum[half];

        total += __shfl_xor_sync(ALL_LANES, total, 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        if (at >= w.n_rows)
            continue;
        if (w.n_splits > 1) {
            float2 *to = (float2 *)(part + at * HEAD_DIM);

#pragma unroll
            for (int i = 0; i < HEAD_DIM / 8; i++)
                to[i * 4 + lane % 4] = make_float2(o[i * 4 + half * 2], o[i * 4 + half * 2 + 1]);
            *stats_of<HEAD_DIM>(part, at) = make_float2(r.max[half] * p.scale_log2, total);
            continue;
        }
        const float share = 1.0f / total;
        uint32_t *to =
            (uint32_t *)(p.a.out + ((int64_t)(w.row0 + at) * p.a.n_heads + w.head) * HEAD_DIM);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++)
            to[i * 4 + lane % 4] =
                bf16_pair(o[i * 4 + half * 2] * share, o[i * 4 + half * 2 + 1] * share);
    }
}

/* Whether this warpgroup is the last to have stored a split of its rows. */
static __device__ __forceinline__ bool is_last_split(const struct prefill_args &p,
                                                     const struct work &w, int group, int *shared)
{
    __threadfence();
    named_wait(3 + group, GROUP_THREADS);
    if (threadIdx.x % GROUP_THREADS == 0) {
        int32_t *counter = p.counters + w.place * GROUPS + group;

        *shared = atomicAdd(counter, 1) == w.n_splits - 1;
        if (*shared)
            *counter = 0;
    }
    named_wait(3 + group, GROUP_THREADS);
    __threadfence();
    return __shfl_sync(ALL_LANES, *(volatile int *)shared, 0);
}

/* One work item, its queries in shared memory. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
compute(const struct prefill_args &p, const struct consumer &at, const struct work &work, int row)
{
    const int lane = (int)threadIdx.x % WARP;
    const int limit[2] = {work.position + row - lane % 4 * 2,
                          work.position + row + 8 - lane % 4 * 2};
    const int n_full = min((work.position + at.group * GROUP_ROWS + 1) / KEYS, work.end);
    const int k = at.n_tiles + work.begin, last = at.n_tiles + work.end - 1;
    struct rows r = {{-1e30f, -1e30f}, {0.0f, 0.0f}, {0.0f, 0.0f}};
    float s[KEYS / 2], o[HEAD_DIM / 2] = {};
    uint32_t w[KEYS / 4];

    wait_full(at.b->k_full, k);
    pin(s);
    wgmma_fence();
    multiply_keys<HEAD_DIM>(s, at.q, stage_of<HEAD_DIM>(at.k, k));
    wgmma_wait<0>();
    pin(s);
    release(&at.b->k_empty[k % STAGES]);
    const int first[2] = {limit[0] - work.begin * KEYS, limit[1] - work.begin * KEYS};
    if (work.begin < n_full)
        weigh<false>(s, r, first, p.scale_log2);
    else
        weigh<true>(s, r, first, p.scale_log2);
    pack_weights(w, s);
    for (int step = work.begin + 1; step < n_full; step++)
        step_over<HEAD_DIM, false>(at, step, s, o, w, r, limit, p.scale_log2);
    for (int step = max(work.begin + 1, n_full); step < work.end; step++)
        step_over<HEAD_DIM, true>(at, step, s, o, w, r, limit, p.scale_log2);
    release(&at.b->q_empty);
    wait_full(at.b->v_full, last);
    pin(o);
    wgmma_fence();
    multiply_values<HEAD_DIM>(o, w, stage_of<HEAD_DIM>(at.v, last));
    wgmma_wait<0>();
    pin(o);
    release(&at.b->v_empty[last % STAGES]);
    store_rows<HEAD_DIM>(p, work, row, o, r);
}

template <int HEAD_DIM>
static __device__ void compute_all(const struct prefill_args &p, struct consumer &at,
                                   const struct work *work, int *is_last)
{
    const int row =
        at.group * GROUP_ROWS + (int)threadIdx.x / WARP % 4 * 16 + (int)threadIdx.x % WARP / 4;

    for (uint32_t parity = 0;; parity ^= 1) {
        barrier_wait(shared_address(&at.b->q_full), parity);
        const struct work w = read_work(work);
        if (w.head < 0)
            break;
        at.n_tiles -= w.begin;
        compute<HEAD_DIM>(p, at, w, row);
        at.n_tiles += w.end;
        if (w.n_splits > 1 && is_last_split(p, w, at.group, is_last + at.group))
            join_splits<HEAD_DIM>(p.a.out + ((int64_t)w.row0 * p.a.n_heads + w.head) * HEAD_DIM,
                                  (int64_t)p.a.n_heads * HEAD_DIM, partial_of<HEAD_DIM>(p, w, 0),
                                  at.group * GROUP_ROWS, w.n_rows, w.n_splits);
    }
}
#endif

template <int HEAD_DIM>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_prefill_sm90_kernel(const __grid_constant__ struct prefill_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using shape = layout<HEAD_DIM>;
    extern __shared__ unsigned char memory[];
    __shared__ struct barriers b;
    __shared__ struct work work;
    __shared__ int is_last[GROUPS];
    const uint32_t at = (shared_address(memory) + 1023) & ~1023u;
    const uint32_t stride = shape::HALVES * shape::ATOM; /* from 8 rows to the next */
    const int group = __shfl_sync(ALL_LANES, (int)threadIdx.x / GROUP_THREADS, 0);

    if (threadIdx.x == 0)
        barriers_init(&b);
    chain_wait();
    __syncthreads();
    if (group == GROUPS) {
        registers_shrink<COPY_REGISTERS>();
        if (threadIdx.x / WARP == GROUPS * 4)
            copy_all<HEAD_DIM>(p, &b, &work, at);
    } else {
        registers_grow<COMPUTE_REGISTERS>();
        struct consumer consumer = {&b,
                                    group,
                                    matrix_at(at + (uint32_t)group * GROUP_ROWS * 128, 0,
                                              shape::ATOM),
                                    matrix_at(at + shape::K, 0, stride),
                                    matrix_at(at + shape::V, shape::ATOM, stride),
                                    0};

        if (group == 1) /* warpgroup 0 goes first */
            named_arrive(1, GROUPS * GROUP_THREADS);
        compute_all<HEAD_DIM>(p, consumer, &work, is_last);
    }
#endif
}

static auto kernel_of(int head_dim)
{
    return head_dim == 128 ? known<attn_prefill_sm90_kernel<128>>()
                           : known<attn_prefill_sm90_kernel<64>>();
}

static size_t shared_bytes(int head_dim)
{
    return 1023 + (head_dim == 128 ? layout<128>::BYTES : layout<64>::BYTES);
}

extern "C" cudaError_t attn_maps_init(struct attn_maps *out, const struct kv_pool *kv,
                                      int64_t n_blocks, const uint16_t *q, int64_t q_stride,
                                      int n_rows)
{
    const cuuint64_t row = (cuuint64_t)kv->head_dim * 2;
    const cuuint32_t halves = (cuuint32_t)kv->head_dim / 64;
    const int box_rows = kv->block_shift < 7 ? 1 << kv->block_shift : KEYS;
    const cuuint64_t kv_sizes[4] = {64, 8, halves,
                                    (cuuint64_t)(n_blocks * kv->block_stride / kv->head_dim) / 8};
    const cuuint64_t kv_strides[3] = {row, 128, row * 8};
    const cuuint32_t kv_box[4] = {64, 8, halves, (cuuint32_t)box_rows / 8};
    const cuuint64_t q_sizes[3] = {64, (cuuint64_t)n_rows, (cuuint64_t)q_stride / 64};
    const cuuint64_t q_strides[2] = {(cuuint64_t)q_stride * 2, 128};
    const cuuint32_t q_box[3] = {64, ATTN_TILE, halves};
    CUtensorMap keys, queries;
    bool compiled;
    cudaError_t r = find_compiled(kernel_of(kv->head_dim).f, &compiled);

    out->usable = false;
    if (!compiled)
        return r;
    r = cudaFuncSetAttribute(kernel_of(kv->head_dim).f, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shared_bytes(kv->head_dim));
    if (r == cudaSuccess)
        r = encode_map(&keys, kv->base, 4, kv_sizes, kv_strides, kv_box);
    if (r == cudaSuccess)
        r = encode_map(&queries, q, 3, q_sizes, q_strides, q_box);
    if (r != cudaSuccess)
        return r;
    static_assert(sizeof(out->keys) == sizeof(keys), "a tensor map");
    memcpy(out->keys, &keys, sizeof(keys));
    memcpy(out->queries, &queries, sizeof(queries));
    out->usable = true;
    return cudaSuccess;
}

/* KV heads whose keys and values fit half of L2, at least one; they divide n_kv_heads. */
static int section_heads(const struct kv_pool *kv, int max_kv_len)
{
    const int64_t half_l2 = 25 << 20, each = (int64_t)max_kv_len * kv->head_dim * 4;
    int n = kv->n_kv_heads;

    while (n > 1 && (kv->n_kv_heads % n || n * each > half_l2))
        n--;
    return n;
}

extern "C" cudaError_t attn_prefill_sm90(const struct launch *l, const struct attn *a,
                                         const struct attn_maps *maps, const struct step_view *v,
                                         const struct attn_prefill *t)
{
    const int n_work = t->n_tiles * a->n_heads * t->n_splits;
    const dim3 grid((unsigned)(n_work < l->n_sms ? n_work : l->n_sms));
    struct prefill_args p;

    memcpy(&p.keys, maps->keys, sizeof(p.keys));
    memcpy(&p.queries, maps->queries, sizeof(p.queries));
    p.a = *a;
    p.kv = *a->kv;
    p.tiles = v->tiles;
    p.tables = v->tables;
    p.partial = t->partial;
    p.counters = t->counters;
    p.group = a->n_heads / a->kv->n_kv_heads;
    p.n_tiles = t->n_tiles;
    p.n_splits = t->n_splits;
    p.n_work = n_work;
    p.section = section_heads(a->kv, t->max_kv_len) * p.group;
    p.scale_log2 = scale_log2_of(a->kv->head_dim);
    return launch_kernel(kernel_of(a->kv->head_dim), grid, THREADS, shared_bytes(a->kv->head_dim),
                         l, p);
}
