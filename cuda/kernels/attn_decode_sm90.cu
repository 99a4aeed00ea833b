/* attn_decode_sm90.cu - decode attention over keys of bf16 for compute capability 9.0;
 * attn_decode.cu does the rest.
 *
 * Bound by memory. Bulk tensor copies of sixteen rows each bring keys and values to shared memory,
 * where each warp has a ring of stages of its own. So more bytes are under way than registers could
 * hold, and they stay under way while a warp multiplies. As many blocks run as fit the machine, and
 * each takes its share of the items; copies for the next item, and loads of its row, begin before
 * the item at hand is done. (Attention alone on an H200, heads 16/8, 2026-11-29: 16, 64, 128
 * sequences of 584 keys 13.4, 37.3, 72.3 us; attn_decode.cu takes 16.0, 42.9, 78.6.)
 *
 * Copies begin before the kernel waits for the one before it, as loads do in attn_decode.cu. The
 * row of the step's own key may be copied while it is stored: what comes is not used. Where drafts
 * of a sequence are items of their own, those behind it do use that row, which rope_store() has
 * stored with the same bits before. */
#include "cuda/kernels/attn_decode.cuh"
#include "cuda/kernels/hopper.cuh"
#include "cuda/kernels/tensor_map.cuh"

static constexpr int RING_BYTES = 16 << 10; /* of a warp: 64 KiB a block, of which two fit */
static constexpr int SHARED_BYTES = 1023 + WARPS * RING_BYTES; /* swizzled stages are aligned */
static constexpr uint64_t MAP_BYTES = 1ull << 47;      /* of memory behind a tensor map, at most */
static constexpr int HALF = 64, HALF_BYTES = HALF * 2; /* of a row, as copies are swizzled */

/* A stage is a plane of keys and one of values. Of heads of 128 a plane is the first halves of all
 * sixteen rows, then the second ones. */
template <int HEAD_DIM> struct stage {
    static constexpr int HALVES = HEAD_DIM / HALF, PLANE = KEYS * HEAD_DIM * 2, BYTES = 2 * PLANE;
    static constexpr int N = RING_BYTES / BYTES;
};

struct ring_args {
    CUtensorMap device, host;     /* the pool's planes, one a head's keys or values in a block */
    int device_block, host_block; /* planes from one block to the next */
    int first_plane;              /* of the layer in a block */
    struct decode_args d;
};

/* Eight lanes read two neighbouring rows at a time. They take even vectors of both, or odd ones,
 * which the swizzle puts in different banks. */
template <int HEAD_DIM, bool FP8> static __device__ __forceinline__ int k_vector(int j, int quarter)
{
    static_assert(!FP8, "keys are bf16 here");
    return j / 2 * 8 + quarter * 2 + j % 2;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* A warp's ring, and what it copies next. */
struct ring {
    const char *stages;
    uint32_t full;              /* mbarriers, one a stage: its copies have arrived */
    int at;                     /* the stage that is used next, */
    uint32_t parity;            /* in a phase of this parity */
    int turn;                   /* of the item that is copied, one above it at first; -1: none */
    int key, end, table, block; /* of the next copy; its item has keys up to end */
};

/* The block's item of a turn. The plan has the longest items first, and what is cut of a last wave
 * at its end. Every other turn goes through the blocks the other way round, so that long items and
 * short ones even out. Turns are counted down, so that cut items come first and the step does not
 * end with their joins; and where only some blocks have the highest turn, it is one of short items.
 */
static __device__ __forceinline__ int item_of(int turn)
{
    const int y = (int)blockIdx.y, n = (int)gridDim.y;

    return turn * n + (turn % 2 ? n - 1 - y : y);
}

/* The block's first turn, -1 where it has none. */
static __device__ __forceinline__ int first_turn(int n_items)
{
    const int turn = (n_items - 1) / (int)gridDim.y;

    return item_of(turn) < n_items ? turn : turn - 1;
}

/* Finds the KV block of the next copy, if need be in the items to come. */
static __device__ __forceinline__ void find_next(struct ring &r, const struct decode_args &d)
{
    while (r.key >= r.end) {
        if (--r.turn < 0)
            return;
        const struct attn_item item = read_item(d, item_of(r.turn));

        r.key = item.begin + (int)threadIdx.x / WARP * KEYS;
        r.end = item.end;
        r.table = item.table;
    }
    r.block = __ldcg(d.tables + r.table + (r.key >> d.kv.block_shift));
}

/* Fills a stage that all lanes have read. plane: of the layer's and head's keys in a block. */
template <int HEAD_DIM>
static __device__ __forceinline__ void copy_next(struct ring &r, const struct ring_args &a,
                                                 int number, int plane)
{
    using shape = stage<HEAD_DIM>;
    const struct kv_pool &kv = a.d.kv;

    if (r.turn < 0)
        return;
    __syncwarp();
    if (elected()) {
        const uint32_t full = r.full + (uint32_t)number * 8;
        const uint32_t to = shared_address(r.stages) + (uint32_t)number * shape::BYTES;
        const bool on_host = r.block >= kv.n_blocks;
        const CUtensorMap *map = on_host ? &a.host : &a.device;
        const int k =
            plane + (on_host ? (r.block - kv.n_blocks) * a.host_block : r.block * a.device_block);
        const int row = r.key & ((1 << kv.block_shift) - 1);
        const uint64_t policy = stream_policy();

        fence_async(); /* what all lanes have read comes before what is copied */
        barrier_expect(full, shape::BYTES);
        copy_box_4d(to, map, 0, row, 0, k, full, policy);
        copy_box_4d(to + shape::PLANE, map, 0, row, 0, k + kv.n_kv_heads, full, policy);
    }
    __syncwarp();
    r.key += STRIDE;
    find_next(r, a.d);
}

/* Where a vector of a row is in a plane. */
static __device__ __forceinline__ const uint4 *vector_at(const char *plane, int row, int vector)
{
    return (const uint4 *)(plane + vector / 8 * KEYS * HALF_BYTES) + row * 8 + (vector ^ row) % 8;
}
#endif

template <int HEAD_DIM, bool DRAFTS>
static __global__ void __launch_bounds__(WARPS *WARP, ATTN_BLOCKS_PER_SM90)
    attn_decode_sm90_kernel(const __grid_constant__ struct ring_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using shape = stage<HEAD_DIM>;
    extern __shared__ char memory[];
    __shared__ uint64_t full[WARPS][shape::N];
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / WARP, 0);
    const int lane = (int)threadIdx.x % WARP;
    int turn = first_turn(__ldcg(&a.d.counts->n_items));
    const int plane = a.first_plane + heads_of(a.d).kv;
    const char *const stages = memory + (-shared_address(memory) & 1023) + warp * RING_BYTES;
    struct ring r = {.stages = stages, .full = shared_address(full[warp]), .turn = turn + 1};
    struct raw_row<HEAD_DIM> raw;
    auto load = [&](const struct attn_item &item) {
        const enum row_part part = part_of<DRAFTS>(item);

        if (part != PART_NONE)
            load_row<HEAD_DIM, DRAFTS>(raw, a.d, item, part);
    };
    auto with_each = [&](int &key, int end, auto attend) {
        for (; key < end; key += STRIDE) {
            const char *const k = r.stages + r.at * shape::BYTES, *const v = k + shape::PLANE;
            struct keys<HEAD_DIM, false> x;

            barrier_wait(r.full + (uint32_t)r.at * 8, r.parity);
            load_keys<HEAD_DIM, false>(
                x, [&](int row, int vector) { return vector_at(k, row, vector); },
                [&](int row, int vector) { return vector_at(v, row, vector); }, nullptr, nullptr,
                lane, [](const auto *p) { return *p; });
            copy_next<HEAD_DIM>(r, a, r.at, plane);
            if (++r.at == shape::N) {
                r.at = 0;
                r.parity ^= 1;
            }
            attend(x, key);
        }
    };

    if (turn < 0)
        return;
    if (lane == 0) {
        prefetch_map(&a.device);
        for (int i = 0; i < shape::N; i++)
            barrier_init(r.full + (uint32_t)i * 8, 1);
        fence_async();
    }
    struct attn_item item = read_item(a.d, item_of(turn));
    find_next(r, a.d);
#pragma unroll
    for (int i = 0; i < shape::N; i++)
        copy_next<HEAD_DIM>(r, a, i, plane);
    chain_wait();
    load(item);
    for (; turn >= 0; turn--) {
        struct attn_item next = item;

        if (turn > 0)
            next = read_item(a.d, item_of(turn - 1));
        run_item<HEAD_DIM, DRAFTS, false>(
            a.d, item,
            [&](struct row<HEAD_DIM, false> &row, enum row_part part) {
                make_row<HEAD_DIM, false>(row, raw, a.d, item, part);
            },
            with_each,
            [&] {
                if (turn > 0)
                    load(next);
            });
        item = next;
    }
#endif
}

static auto kernel_of(int head_dim, bool drafts)
{
    if (head_dim == 128)
        return drafts ? known<attn_decode_sm90_kernel<128, true>>()
                      : known<attn_decode_sm90_kernel<128, false>>();
    return drafts ? known<attn_decode_sm90_kernel<64, true>>()
                  : known<attn_decode_sm90_kernel<64, false>>();
}

extern "C" cudaError_t attn_decode_sm90_init(bool *usable)
{
    cudaError_t r = find_compiled(kernel_of(128, false).f, usable);

    for (int i = 0; i < 4 && r == cudaSuccess && *usable; i++)
        r = cudaFuncSetAttribute(kernel_of(i / 2 ? 128 : 64, i % 2).f,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    return r;
}

/* Of more planes than there can be: block tables name none that is not there. */
static cudaError_t encode_planes(CUtensorMap *out, const void *base, int block_len, int head_dim)
{
    const cuuint64_t row = (cuuint64_t)head_dim * 2, halves = (cuuint64_t)head_dim / HALF;
    const cuuint64_t plane = (cuuint64_t)block_len * row, fit = MAP_BYTES / plane;
    const cuuint64_t sizes[4] = {HALF, (cuuint64_t)block_len, halves,
                                 fit < INT32_MAX ? fit : INT32_MAX};
    const cuuint64_t strides[3] = {row, HALF_BYTES, plane};
    const cuuint32_t box[4] = {HALF, KEYS, (cuuint32_t)halves, 1};

    return encode_map(out, base, 4, sizes, strides, box);
}

extern "C" cudaError_t attn_decode_sm90(const struct launch *l, const struct attn *a,
                                        const struct rope *r, const struct step_view *v,
                                        float *partial, int32_t *counters, int n_blocks)
{
    const struct kv_pool *const kv = a->kv;
    const int block_len = 1 << kv->block_shift, plane = block_len * kv->head_dim;
    struct ring_args args = {};
    cudaError_t code;

    if (!r->q_norm != !r->k_norm || kv->fp8)
        return cudaErrorInvalidValue;
    args.d = decode_args_of(a, r, v, partial, counters);
    args.device_block = (int)(kv->block_stride / plane);
    args.first_plane = (int)(a->layer * (kv->layer_stride / plane));
    code = encode_planes(&args.device, kv->base, block_len, kv->head_dim);
    if (code == cudaSuccess && kv->host_stride) {
        args.host_block = (int)(kv->host_stride / plane);
        code =
            encode_planes(&args.host, kv->base + kv->n_blocks * kv->host_stride + kv->host_offset,
                          block_len, kv->head_dim);
    }
    if (code != cudaSuccess)
        return code;
    const int head_groups = kv->n_kv_heads * args.d.n_groups;
    const int fit = ATTN_BLOCKS_PER_SM90 * l->n_sms / head_groups;
    const int n = n_blocks < fit ? n_blocks : fit;

    return launch_kernel(kernel_of(kv->head_dim, a->drafts),
                         dim3((unsigned)head_groups, (unsigned)(n > 1 ? n : 1)), WARPS * WARP,
                         SHARED_BYTES, l, args);
}
