// attn_prefill_sm90.cuh - the producer warp of attn_prefill_sm90.cu: takes work and copies its
// queries, keys and values to shared memory. Only that file includes it.
#ifndef NVLLM_CUDA_KERNELS_ATTN_PREFILL_SM90_CUH
#define NVLLM_CUDA_KERNELS_ATTN_PREFILL_SM90_CUH

#include "cuda/kernels/attn_prefill.cuh"
#include "cuda/kernels/hopper.cuh"

static constexpr int KEYS = 128; /* of a tile */
static constexpr int STAGES = 2; /* tiles of keys, and of values, in shared memory */
static constexpr int GROUPS = 2; /* warpgroups that compute */
static constexpr int GROUP_ROWS = ATTN_TILE / GROUPS;
static constexpr int GROUP_THREADS = 4 * WARP;
static constexpr int THREADS = (GROUPS + 1) * GROUP_THREADS;
static_assert(GROUP_ROWS == 64 && GROUP_ROWS == JOIN_ROWS && GROUP_THREADS == JOIN_THREADS,
              "a warpgroup's product has 64 rows");

struct prefill_args {
    CUtensorMap keys, queries; /* must lie at multiples of 64 */
    struct attn a;
    struct kv_pool kv;
    const struct attn_tile *tiles;
    const int32_t *tables;
    float *partial;    /* [tile, head, split, ATTN_TILE, head_dim + 2] */
    int32_t *counters; /* [tile, head, GROUPS], then of the work */
    int group;         /* query heads of a KV head */
    int n_tiles, n_splits, n_work;
    int section; /* heads that are worked on at a time: their keys stay in L2 */
    float scale_log2;
};

/* One work item, as the producer and the consumers need it. */
struct work {
    int head;         /* -1: there is no more work */
    int row0, n_rows; /* of the step */
    int position;     /* of row0 */
    int begin, end;   /* tiles of keys; none: there is nothing to do */
    int table, kv_len;
    int place; /* of tile and head */
    int split, n_splits;
};

struct barriers {
    uint64_t q_full, q_empty, tail;
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* Of a head of HEAD_DIM: atoms of 8 rows and 64 columns side by side, and what follows from it. */
template <int HEAD_DIM> struct layout {
    static constexpr int HALVES = HEAD_DIM / 64;
    static constexpr uint32_t ATOM = 1024, Q_HALF = ATTN_TILE * 128;
    static constexpr uint32_t Q_BYTES = ATTN_TILE * HEAD_DIM * 2, TILE_BYTES = KEYS * HEAD_DIM * 2;
    static constexpr uint32_t K = Q_BYTES, V = K + STAGES * TILE_BYTES; /* begin there */
    static constexpr uint32_t BYTES = V + STAGES * TILE_BYTES;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Work item i: section by section, within one the tiles with most keys first. */
static __device__ struct work find_work(const struct prefill_args &p, int i)
{
    const int in_section = p.n_tiles * p.section, pair = i / p.n_splits;
    const int rest = pair % in_section, number = p.n_tiles - 1 - rest / p.section;
    const struct attn_tile tile = p.tiles[number];
    const int n_steps = (tile.position + tile.n_rows + KEYS - 1) / KEYS;
    struct work w;

    w.head = pair / in_section * p.section + rest % p.section;
    w.row0 = tile.row0;
    w.n_rows = tile.n_rows;
    w.position = tile.position;
    w.table = tile.table;
    w.kv_len = tile.kv_len;
    w.place = number * p.a.n_heads + w.head;
    w.split = i % p.n_splits;
    w.n_splits = min(p.n_splits, n_steps);
    w.begin = min(w.split * n_steps / w.n_splits, n_steps);
    w.end = min((w.split + 1) * n_steps / w.n_splits, n_steps);
    return w;
}

/* The next work that is not empty. The last to ask resets the counter. */
static __device__ struct work take_work(const struct prefill_args &p)
{
    int32_t *counter = p.counters + ATTN_SPLIT_BLOCKS;
    struct work w;

    do {
        int i = 0;

        if (threadIdx.x % WARP == 0) {
            i = atomicAdd(counter, 1);
            if (i == p.n_work - 1)
                *counter = 0;
        }
        i = __shfl_sync(ALL_LANES, i, 0) + (int)gridDim.x;
        if (i >= p.n_work)
            return {-1};
        w = find_work(p, i);
    } while (w.begin == w.end);
    return w;
}

/* By shuffles, which tell the compiler that all lanes have the same: what is computed from it goes
 * to uniform registers, where wgmma wants it. */
static __device__ __forceinline__ struct work read_work(const struct work *from)
{
    static constexpr int N = sizeof(struct work) / sizeof(int);
    const int lane = (int)threadIdx.x % WARP;
    const int mine = lane < N ? ((const int *)from)[lane] : 0;
    int all[N];
    struct work w;

    for (int i = 0; i < N; i++)
        all[i] = __shfl_sync(ALL_LANES, mine, i);
    memcpy(&w, all, sizeof(w));
    return w;
}

/* The producer's view of a work item. */
struct source {
    const CUtensorMap *map;
    const int32_t *table;
    int kv_len;
    int block_shift, block_atoms; /* 8 rows each, from block to block */
};

/* The KV block of this lane's share of a tile; any block if it has none. */
static __device__ __forceinline__ int block_of(const struct source &s, int step)
{
    const int lane = (int)threadIdx.x % WARP;
    const int key = step * KEYS + (lane << min(s.block_shift, 7));

    return __ldg(s.table + (min(key, s.kv_len - 1) >> s.block_shift));
}

/* A tile of keys or values, one copy per KV block, by lane i the i-th. Rows from kv_len on hold
 * whatever is there. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
copy_tile(uint32_t to, uint32_t barrier, const struct source &s, int plane, int block, int step)
{
    const int lane = (int)threadIdx.x % WARP;
    const int rows = min(KEYS, 1 << s.block_shift);
    const int n_copies = (min(KEYS, s.kv_len - step * KEYS) + rows - 1) / rows;

    if (lane == 0)
        barrier_expect(barrier, (uint32_t)(n_copies * rows * HEAD_DIM * 2));
    __syncwarp();
    if (lane < n_copies) {
        const int key = step * KEYS + lane * rows;
        const int atom = block * s.block_atoms + plane + (key & ((1 << s.block_shift) - 1)) / 8;

        copy_box_4d(to + (uint32_t)(lane * rows * HEAD_DIM * 2), s.map, 0, 0, 0, atom, barrier);
    }
}

/* The values beyond the end of a sequence become zeros, as their weights do. */
template <int HEAD_DIM> static __device__ void clear_tail(uint32_t at, int first)
{
    const int lane = (int)threadIdx.x % WARP;

    for (int i = lane; i < (KEYS - first) * HEAD_DIM / 8; i += WARP) {
        const int row = first + i % (KEYS - first), piece = i / (KEYS - first);
        const uint32_t to =
            at +
            (uint32_t)(row / 8 * layout<HEAD_DIM>::HALVES + piece / 8) * layout<HEAD_DIM>::ATOM +
            (uint32_t)(row % 8 * 128 + piece % 8 * 16);

        st_shared(to, make_uint4(0, 0, 0, 0));
    }
    fence_async();
    __syncwarp();
}

/* Where the producer is in the ring of stages. */
struct ring {
    uint32_t q_parity, tail_parity;
    int k, v; /* tiles so far */
};

template <int HEAD_DIM>
static __device__ __forceinline__ void copy_keys(const struct source &s, struct barriers *b,
                                                 uint32_t k_at, struct ring *r, int plane,
                                                 int block, int step)
{
    const int stage = r->k % STAGES;

    barrier_wait(shared_address(&b->k_empty[stage]), (uint32_t)(r->k / STAGES & 1 ^ 1));
    copy_tile<HEAD_DIM>(k_at + (uint32_t)stage * layout<HEAD_DIM>::TILE_BYTES,
                        shared_address(&b->k_full[stage]), s, plane, block, step);
    r->k++;
}

template <int HEAD_DIM>
static __device__ __forceinline__ void copy_values(const struct source &s, struct barriers *b,
                                                   uint32_t v_at, struct ring *r, int plane,
                                                   int block, int step)
{
    const int stage = r->v % STAGES;
    const uint32_t to = v_at + (uint32_t)stage * layout<HEAD_DIM>::TILE_BYTES;
    const uint32_t full = shared_address(&b->v_full[stage]), tail = shared_address(&b->tail);
    const int n_keys = s.kv_len - step * KEYS;

    barrier_wait(shared_address(&b->v_empty[stage]), (uint32_t)(r->v / STAGES & 1 ^ 1));
    r->v++;
    if (n_keys >= KEYS) {
        copy_tile<HEAD_DIM>(to, full, s, plane, block, step);
        return;
    }
    copy_tile<HEAD_DIM>(to, tail, s, plane, block, step);
    barrier_wait(tail, r->tail_parity);
    r->tail_parity ^= 1;
    clear_tail<HEAD_DIM>(to, n_keys);
    if (threadIdx.x % WARP == 0)
        barrier_arrive(full);
}

/* The producer warp. Values come one tile after keys, as they are used. */
template <int HEAD_DIM>
static __device__ void copy_all(const struct prefill_args &p, struct barriers *b, struct work *out,
                                uint32_t at)
{
    using shape = layout<HEAD_DIM>;
    const uint32_t k_at = at + shape::K, v_at = at + shape::V;
    const uint32_t q_full = shared_address(&b->q_full), q_empty = shared_address(&b->q_empty);
    const int64_t atom = 8 * HEAD_DIM;
    const int v_offset = (int)(p.kv.v_offset / atom), lane = (int)threadIdx.x % WARP;
    struct work w = find_work(p, (int)blockIdx.x);
    struct ring r = {1, 0, 0, 0};

    if (w.begin == w.end)
        w = take_work(p);
    for (; w.head >= 0; w = take_work(p), r.q_parity ^= 1) {
        const struct source s = {&p.keys, p.tables + w.table, w.kv_len, p.kv.block_shift,
                                 (int)(p.kv.block_stride / atom)};
        const int plane = (int)(p.a.layer * (p.kv.layer_stride / atom)) +
                          ((w.head / p.group) << p.kv.block_shift) / 8;
        int block = block_of(s, w.begin), block_before = block;

        barrier_wait(q_empty, r.q_parity);
        if (lane == 0) {
            *out = w;
            barrier_expect(q_full, shape::Q_BYTES);
            copy_box_3d(at, &p.queries, 0, w.row0, w.head * shape::HALVES, q_full);
        }
        for (int step = w.begin; step < w.end; step++) {
            const int block_next = block_of(s, step + 1);

            copy_keys<HEAD_DIM>(s, b, k_at, &r, plane, block, step);
            if (step > w.begin)
                copy_values<HEAD_DIM>(s, b, v_at, &r, plane + v_offset, block_before, step - 1);
            block_before = block;
            block = block_next;
        }
        copy_values<HEAD_DIM>(s, b, v_at, &r, plane + v_offset, block_before, w.end - 1);
    }
    barrier_wait(q_empty, r.q_parity);
    if (lane == 0) {
        out->head = -1;
        barrier_arrive(q_full);
    }
}

static __device__ void barriers_init(struct barriers *b)
{
    const int warps = GROUPS * 4;

    barrier_init(shared_address(&b->tail), 1);
    barrier_init(shared_address(&b->q_full), 1);
    barrier_init(shared_address(&b->q_empty), warps);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared_address(&b->k_full[i]), 1);
        barrier_init(shared_address(&b->v_full[i]), 1);
        barrier_init(shared_address(&b->k_empty[i]), warps);
        barrier_init(shared_address(&b->v_empty[i]), warps);
    }
    fence_async();
}
#endif

#endif
