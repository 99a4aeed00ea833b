/* expert_route.cu - chooses the experts of each row and lists the picks of each expert.
 *
 * Bound by latency. A warp chooses for a row. Where all picks fit one block, that also groups them;
 * else a second kernel does, in which each block lists a slice of the picks: it counts those of
 * each expert in all slices and before its own, so no block waits for another, and the order is
 * always the same. */
#include "cuda/kernels/choose.cuh"

static constexpr int SLICE = 512;     /* picks that a block lists */
static constexpr int MAX_WARPS = 32;  /* of a block: one looks through EXPERTS_MAX at once */
static constexpr int ROUTE_WARPS = 8; /* of a block that only chooses */
static constexpr int VEC = 8;         /* experts in one 16-byte load */

static_assert(EXPERTS_MAX == MAX_WARPS * WARP, "a thread for each expert");

/* Rows of the step itself. */
static __device__ __forceinline__ int rows_of(const struct expert_route &r)
{
    return max(0, min(r.n_rows, __ldcg(&r.counts->n_tokens) - r.first_row));
}

/* One row by a warp. here: NULL, or where its picks go in shared memory, too. */
template <int N>
static __device__ void choose(const struct expert_picks &p, const struct expert_route &r, int row,
                              int lane, uint16_t *here)
{
    const float *scores = r.scores + (int64_t)row * p.n_experts;
    uint16_t *experts = p.experts + (int64_t)row * p.n_picks;
    float *weights = p.weights + (int64_t)row * p.n_picks;
    float score[N];

#pragma unroll
    for (int j = 0; j < N; j++)
        score[j] = j * WARP + lane < p.n_experts ? __ldcg(scores + j * WARP + lane) : 0.0f;
    if (row >= rows_of(r)) /* read beside the scores */
        return;
    choose_experts(score, p.n_experts, p.n_picks, r.norm_topk, lane,
                   [&](int i, int expert, float weight) {
                       experts[i] = (uint16_t)expert;
                       weights[i] = weight;
                       if (here)
                           here[i] = (uint16_t)expert;
                   });
}

static __device__ __forceinline__ void choose_row(const struct expert_picks &p,
                                                  const struct expert_route &r, int row, int lane,
                                                  uint16_t *here)
{
    if (row >= r.n_rows)
        return;
    if (p.n_experts <= 4 * WARP)
        choose<4>(p, r, row, lane, here);
    else
        choose<MAX_WARPS>(p, r, row, lane, here);
}

/* Of VEC picks in a vector. */
static __device__ __forceinline__ int pick_of(uint4 v, int j)
{
    const uint32_t pair = j < 2 ? v.x : j < 4 ? v.y : j < 6 ? v.z : v.w;

    return (int)(j % 2 ? pair >> 16 : pair & 0xffff);
}

/* Lists the picks from `begin` on of n in all; the block that has the first one lists the groups.
 * A block has a thread for each expert. HERE: all are in the slice; else it becomes the block's. */
template <bool HERE>
static __device__ void list(const struct expert_picks &p, int most_rows, int begin, int n,
                            uint4 *slice)
{
    __shared__ int before[EXPERTS_MAX], behind[EXPERTS_MAX]; /* picks of an expert */
    __shared__ int2 of_warps[MAX_WARPS];
    const int me = (int)threadIdx.x, warp = me / WARP, lane = me % WARP;

    before[me] = behind[me] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = me * VEC; i < n; i += (int)blockDim.x * VEC) {
        const uint4 v = HERE ? slice[i / VEC] : __ldcg((const uint4 *)(p.experts + i));
        int *const counts = i < begin ? before : behind;

#pragma unroll
        for (int j = 0; j < VEC; j++)
            if (i + j < n)
                atomicAdd(&counts[pick_of(v, j)], 1);
        if (!HERE && i >= begin && i < begin + SLICE)
            slice[(i - begin) / VEC] = v;
    }
    __syncthreads();
    /* x: picks, y: groups, of experts up to this one */
    const int count = before[me] + behind[me];
    const int2 own = make_int2(count, (count + most_rows - 1) / most_rows);
    int2 sum = own;
    for (int i = 1; i < WARP; i *= 2) {
        const int x = __shfl_up_sync(ALL_LANES, sum.x, i), y = __shfl_up_sync(ALL_LANES, sum.y, i);

        if (lane >= i) {
            sum.x += x;
            sum.y += y;
        }
    }
    if (lane == WARP - 1)
        of_warps[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++) {
        sum.x += of_warps[i].x;
        sum.y += of_warps[i].y;
    }
    if (begin == 0) {
        for (int i = 0; i < own.y; i++)
            p.groups[sum.y - own.y + i] = {me, sum.x - own.x + i * most_rows,
                                           min(most_rows, own.x - i * most_rows)};
        if (me == (int)blockDim.x - 1)
            *p.n_groups = sum.y;
    }
    if (own.x == 0)
        return;
    int32_t *to = p.members + sum.x - own.x + before[me];
    for (int i = begin; i < min(begin + SLICE, n); i += VEC) {
        const uint4 v = slice[(i - begin) / VEC];

#pragma unroll
        for (int j = 0; j < VEC; j++)
            if (pick_of(v, j) == me && i + j < n)
                *to++ = i + j;
    }
}

static __global__ void __launch_bounds__(MAX_WARPS *WARP)
    route_kernel(const struct expert_picks p, const struct expert_route r, bool lists)
{
    __shared__ uint4 slice[SLICE / VEC];
    const int n_warps = (int)blockDim.x / WARP, warp = (int)threadIdx.x / WARP;
    const int row = (int)blockIdx.x * n_warps + warp;

    chain_wait();
    choose_row(p, r, row, (int)threadIdx.x % WARP,
               lists ? (uint16_t *)slice + row * p.n_picks : nullptr);
    if (!lists)
        return;
    list<true>(p, r.most_rows, 0, rows_of(r) * p.n_picks, slice);
}

static __global__ void __launch_bounds__(MAX_WARPS *WARP)
    list_kernel(const struct expert_picks p, const struct expert_route r)
{
    __shared__ uint4 slice[SLICE / VEC];

    chain_wait();
    list<false>(p, r.most_rows, (int)blockIdx.x * SLICE, rows_of(r) * p.n_picks, slice);
}

extern "C" cudaError_t expert_route(const struct launch *l, const struct expert_picks *p,
                                    const struct expert_route *r)
{
    const int n = r->n_rows * p->n_picks, of_experts = (p->n_experts + WARP - 1) / WARP;
    const bool at_once = n <= SLICE && r->n_rows <= MAX_WARPS;
    cudaError_t code;

    if (p->n_experts > EXPERTS_MAX || r->n_rows < 1)
        return cudaErrorInvalidValue;
    if (at_once)
        return launch_kernel(known<route_kernel>(), dim3(1),
                             (of_experts > r->n_rows ? of_experts : r->n_rows) * WARP, 0, l, *p, *r,
                             true);
    code = launch_kernel(known<route_kernel>(),
                         dim3((unsigned)((r->n_rows + ROUTE_WARPS - 1) / ROUTE_WARPS)),
                         ROUTE_WARPS * WARP, 0, l, *p, *r, false);
    return code != cudaSuccess
               ? code
               : launch_kernel(known<list_kernel>(), dim3((unsigned)((n + SLICE - 1) / SLICE)),
                               of_experts * WARP, 0, l, *p, *r);
}
