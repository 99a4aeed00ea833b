/* attn_prefill.cu - causal attention of packed prefill chunks over their paged keys: any chunk
 * against any length of earlier context.
 *
 * Bound by arithmetic: 4 * head_dim operations per pair of query row and key, on mma.sync; works
 * from compute capability 8.0 on. A block takes ATTN_TILE query rows of one head and walks over
 * tiles of KEYS keys, the next one on its way to shared memory while this one is computed with. A
 * step of few tiles (a short chunk behind a long context) has its keys split over several blocks,
 * of which the one that ends last joins the partial results. */
#include "cuda/kernels/attn_prefill.cuh"

static constexpr int WARPS = 4;
static constexpr int KEYS = 64;
static constexpr int MTILES = 2; /* 16 rows each a warp: a fragment of K or V serves two products */
static constexpr int THREADS = WARPS * WARP;
static constexpr int LEAST_KEYS = 1024; /* of a split, at least */
static_assert(THREADS == JOIN_THREADS, "who join splits");
static_assert(WARPS * MTILES * 16 == ATTN_TILE, "the warps' rows are the tile");

struct prefill_args {
    struct attn a;
    struct kv_pool kv;
    const struct attn_tile *tiles;
    const int32_t *tables;
    float *partial;    /* where the keys are split: [tile, head, split, ATTN_TILE, head_dim + 2] */
    int32_t *counters; /* [tile, head] */
    int group;         /* query heads of a KV head */
    int n_tiles;
    float scale_log2;
};

static __device__ __forceinline__ void ldmatrix_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* KEYS rows of K or V from `first` on; rows past the end become zeros. */
template <int HEAD_DIM>
static __device__ __forceinline__ void load_keys(uint32_t to, const struct prefill_args &p,
                                                 const uint16_t *pool, const int32_t *table,
                                                 int first, int kv_len)
{
    static constexpr int PIECES = HEAD_DIM / 8, ROWS = THREADS / PIECES;
    const int piece = (int)threadIdx.x % PIECES, block_len = 1 << p.kv.block_shift;

#pragma unroll
    for (int i = 0; i < KEYS / ROWS; i++) {
        const int row = i * ROWS + (int)threadIdx.x / PIECES;
        const int key = min(first + row, kv_len - 1);
        const int64_t block = __ldg(table + (key >> p.kv.block_shift));
        const uint16_t *from = pool + block * p.kv.block_stride +
                               (int64_t)(key & (block_len - 1)) * HEAD_DIM + piece * 8;

        copy_async(to + (uint32_t)swizzle<HEAD_DIM>(row, piece), from, first + row < kv_len);
    }
}

/* Whether this block is the last to have stored a split of its tile and head. */
static __device__ bool is_last_split(int32_t *counter, int n_splits)
{
    __shared__ int is_last;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(counter, 1) == n_splits - 1;
        if (is_last)
            *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

template <int HEAD_DIM>
static __global__ void __launch_bounds__(THREADS, 2)
    attn_prefill_kernel(const struct prefill_args p)
{
    static constexpr int PIECES = HEAD_DIM / 8;
    static constexpr uint32_t TILE_BYTES = KEYS * HEAD_DIM * 2;
    extern __shared__ __align__(128) unsigned char shared[];

    chain_wait();
    /* The last tiles of a chunk have the most keys and go first. */
    const struct attn_tile tile = p.tiles[p.n_tiles - 1 - (int)blockIdx.y];
    const int head = (int)blockIdx.x, kv_head = head / p.group;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int row0 = tile.row0, n_rows = tile.n_rows, pos0 = tile.position;
    const int n_keys = pos0 + n_rows, all_steps = (n_keys + KEYS - 1) / KEYS;
    const int n_splits = (int)gridDim.z, split = (int)blockIdx.z;
    const int each_steps = (all_steps + n_splits - 1) / n_splits;
    const int first_step = min(split * each_steps, all_steps);
    const int n_steps = min(first_step + each_steps, all_steps);
    const int32_t *table = p.tables + tile.table;
    const uint16_t *k_pool = p.kv.base + p.a.layer * p.kv.layer_stride +
                             ((int64_t)kv_head << p.kv.block_shift) * HEAD_DIM;
    const uint16_t *v_pool = k_pool + p.kv.v_offset;
    const uint32_t q_at = (uint32_t)__cvta_generic_to_shared(shared);
    const uint32_t k_at = q_at + ATTN_TILE * HEAD_DIM * 2, v_at = k_at + 2 * TILE_BYTES;

    for (int i = (int)threadIdx.x; i < ATTN_TILE * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        const uint16_t *from = p.a.q + (int64_t)(row0 + min(row, n_rows - 1)) * p.a.q_stride +
                               (int64_t)head * HEAD_DIM + piece * 8;

        copy_async(q_at + (uint32_t)swizzle<HEAD_DIM>(row, piece), from, row < n_rows);
    }
    if (first_step < n_steps) {
        const uint32_t stage = (uint32_t)(first_step & 1) * TILE_BYTES;

        load_keys<HEAD_DIM>(k_at + stage, p, k_pool, table, first_step * KEYS, n_keys);
        load_keys<HEAD_DIM>(v_at + stage, p, v_pool, table, first_step * KEYS, n_keys);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");

    float o[MTILES][HEAD_DIM / 8][4] = {};
    float max[MTILES][2], sum[MTILES][2] = {};
    for (int m = 0; m < MTILES; m++)
        max[m][0] = max[m][1] = -1e30f;
    const int warp_row = warp * MTILES * 16;

    for (int step = first_step; step < n_steps; step++) {
        const uint32_t k_now = k_at + (uint32_t)(step & 1) * TILE_BYTES;
        const uint32_t v_now = v_at + (uint32_t)(step & 1) * TILE_BYTES;

        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (step + 1 < n_steps) {
            const uint32_t other = (uint32_t)(~step & 1) * TILE_BYTES;

            load_keys<HEAD_DIM>(k_at + other, p, k_pool, table, (step + 1) * KEYS, n_keys);
            load_keys<HEAD_DIM>(v_at + other, p, v_pool, table, (step + 1) * KEYS, n_keys);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        if (step * KEYS > pos0 + warp_row + MTILES * 16 - 1)
            continue; /* all of these keys come after this warp's rows */

        float s[MTILES][KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            uint32_t q[MTILES][4];

#pragma unroll
            for (int m = 0; m < MTILES; m++)
                ldmatrix(q[m], q_at + (uint32_t)swizzle<HEAD_DIM>(warp_row + m * 16 + lane % 16,
                                                                  d * 2 + lane / 16));
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t k[4];

                ldmatrix(k, k_now + (uint32_t)swizzle<HEAD_DIM>(n * 16 + lane / 16 * 8 + lane % 8,
                                                                d * 2 + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < MTILES; m++) {
                    mma_16816(s[m][n * 2], q[m][0], q[m][1], q[m][2], q[m][3], k[0], k[1]);
                    mma_16816(s[m][n * 2 + 1], q[m][0], q[m][1], q[m][2], q[m][3], k[2], k[3]);
                }
            }
        }
        const bool masked = (step + 1) * KEYS > pos0 + warp_row + 1;
        uint32_t probs[MTILES][KEYS / 16][4];
#pragma unroll
        for (int m = 0; m < MTILES; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int pos = pos0 + warp_row + m * 16 + half * 8 + lane / 4;
                float top = max[m][half], total = 0.0f;

#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float &x = s[m][n][half * 2 + j];

                        if (masked && step * KEYS + n * 8 + lane % 4 * 2 + j > pos)
                            x = -INFINITY;
                        top = fmaxf(top, x);
                    }
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
                const float shrink = exp2f((max[m][half] - top) * p.scale_log2);
                const float base = top * p.scale_log2;
                max[m][half] = top;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float &x = s[m][n][half * 2 + j];

                        x = exp2f(x * p.scale_log2 - base);
                        total += x;
                    }
                sum[m][half] = sum[m][half] * shrink + total;
#pragma unroll
                for (int n = 0; n < HEAD_DIM / 8; n++) {
                    o[m][n][half * 2] *= shrink;
                    o[m][n][half * 2 + 1] *= shrink;
                }
            }
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                probs[m][n][0] = bf16_pair(s[m][n * 2][0], s[m][n * 2][1]);
                probs[m][n][1] = bf16_pair(s[m][n * 2][2], s[m][n * 2][3]);
                probs[m][n][2] = bf16_pair(s[m][n * 2 + 1][0], s[m][n * 2 + 1][1]);
                probs[m][n][3] = bf16_pair(s[m][n * 2 + 1][2], s[m][n * 2 + 1][3]);
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 16; d++) {
                uint32_t v[4];

                ldmatrix_trans(v, v_now + (uint32_t)swizzle<HEAD_DIM>(n * 16 + lane % 16,
                                                                      d * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < MTILES; m++) {
                    const uint32_t *a = probs[m][n];

                    mma_16816(o[m][d * 2], a[0], a[1], a[2], a[3], v[0], v[1]);
                    mma_16816(o[m][d * 2 + 1], a[0], a[1], a[2], a[3], v[2], v[3]);
                }
            }
    }
    const int64_t place = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    float *splits = p.partial + place * n_splits * split_floats<HEAD_DIM>();
#pragma unroll
    for (int m = 0; m < MTILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = warp_row + m * 16 + half * 8 + lane / 4;
            float total = sum[m][half];

            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            if (row >= n_rows)
                continue;
            if (n_splits > 1) {
                float *mine = splits + split * split_floats<HEAD_DIM>();

#pragma unroll
                for (int n = 0; n < HEAD_DIM / 8; n++)
                    *(float2 *)(mine + row * HEAD_DIM + n * 8 + lane % 4 * 2) =
                        make_float2(o[m][n][half * 2], o[m][n][half * 2 + 1]);
                *stats_of<HEAD_DIM>(mine, row) = make_float2(max[m][half] * p.scale_log2, total);
                continue;
            }
            uint32_t *out =
                (uint32_t *)(p.a.out + ((int64_t)(row0 + row) * p.a.n_heads + head) * HEAD_DIM);
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++)
                out[n * 4 + lane % 4] =
                    bf16_pair(o[m][n][half * 2] / total, o[m][n][half * 2 + 1] / total);
        }
    if (n_splits > 1 && is_last_split(p.counters + place, n_splits))
        for (int begin = 0; begin < n_rows; begin += JOIN_ROWS)
            join_splits<HEAD_DIM>(p.a.out + ((int64_t)row0 * p.a.n_heads + head) * HEAD_DIM,
                                  (int64_t)p.a.n_heads * HEAD_DIM, splits, begin, n_rows, n_splits);
}

extern "C" int attn_prefill_splits(const struct launch *l, int n_work, int max_kv_len)
{
    const int fitting = ATTN_SPLIT_BLOCKS / n_work, useful = max_kv_len / LEAST_KEYS;
    double best_share = 0.0;
    int best = 1;

    for (int n = 1; n <= fitting && n <= useful; n++) {
        const int rounds = (n * n_work + l->n_sms - 1) / l->n_sms;
        const double share = (double)(n * n_work) / (rounds * l->n_sms);

        if (share > best_share + 0.05) {
            best_share = share;
            best = n;
        }
    }
    return best;
}

static int shared_bytes(int head_dim)
{
    return (ATTN_TILE + 4 * KEYS) * head_dim * 2;
}

extern "C" cudaError_t attn_prefill_init(void)
{
    const cudaError_t r =
        cudaFuncSetAttribute((const void *)attn_prefill_kernel<64>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes(64));

    return r != cudaSuccess ? r
                            : cudaFuncSetAttribute((const void *)attn_prefill_kernel<128>,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   shared_bytes(128));
}

extern "C" cudaError_t attn_prefill(const struct launch *l, const struct attn *a,
                                    const struct step_view *v, const struct attn_prefill *t)
{
    const struct prefill_args p = {.a = *a,
                                   .kv = *a->kv,
                                   .tiles = v->tiles,
                                   .tables = v->tables,
                                   .partial = t->partial,
                                   .counters = t->counters,
                                   .group = a->n_heads / a->kv->n_kv_heads,
                                   .n_tiles = t->n_tiles,
                                   .scale_log2 = scale_log2_of(a->kv->head_dim)};
    const auto kernel = a->kv->head_dim == 128 ? known<attn_prefill_kernel<128>>()
                                               : known<attn_prefill_kernel<64>>();

    return launch_kernel(kernel,
                         dim3((unsigned)a->n_heads, (unsigned)t->n_tiles, (unsigned)t->n_splits),
                         THREADS, (size_t)shared_bytes(a->kv->head_dim), l, p);
}
