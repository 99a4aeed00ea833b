/* rms_norm.cu - y = x / rms(x) * w, one block a row; the rows may be gathered, or what is left of a
 * product in parts added to them first. Where the parts are other ranks' this is the all-reduce of
 * tensor parallelism: each rank takes all rows, or a share of them and gives y to all.
 *
 * Bound by memory: 6 * n_rows * dim bytes, 5 where y is e4m3, the parts and 4 to write x; a row is
 * read once and kept in registers. Parts of other ranks come over NVLink, where each access of a
 * warp is to bytes in a row: sectors that two accesses share would cross it twice.
 *
 * Few rows are bound by latency: there a rank pushes its parts to the others instead, whose memory
 * says by itself what has come, because it is NaN until then. So there is no barrier and no fence,
 * and nobody reads over NVLink. */
#include "cuda/kernels/activations.cuh"

static constexpr int MAX_THREADS = 1024;
static constexpr int VEC = 4;

/* Of a block that has N vectors a thread. With two, eight parts of each take more than the 64
 * registers that 1,024 threads leave. */
template <int N> static constexpr int MOST_THREADS = N == 2 ? 512 : MAX_THREADS;

static __device__ __forceinline__ float4 read_part(const float *part, int64_t at)
{
    return __ldcg((const float4 *)part + at);
}

static __device__ __forceinline__ float4 read_part(const uint16_t *part, int64_t at)
{
    const uint2 v = __ldcg((const uint2 *)part + at);

    return make_float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
}

static __device__ __forceinline__ void add(float4 &a, float4 b)
{
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
    a.w += b.w;
}

/* A NaN that no operation gives, so a word that has not come. */
static constexpr uint32_t NOT_COME = 0xffffffffu;

static __device__ __forceinline__ uint32_t sendable(float x)
{
    const uint32_t bits = __float_as_uint(x);

    return bits == NOT_COME ? 0x7fffffffu : bits;
}

static __device__ __forceinline__ void push(float4 *to, float4 v)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "r"(sendable(v.x)), "r"(sendable(v.y)), "r"(sendable(v.z)), "r"(sendable(v.w))
                 : "memory");
}

/* Whether all of it has come. */
static __device__ __forceinline__ bool pull(float4 &v, const float4 *from)
{
    uint32_t x, y, z, w;

    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "l"(from)
                 : "memory");
    v = make_float4(__uint_as_float(x), __uint_as_float(y), __uint_as_float(z), __uint_as_float(w));
    return x != NOT_COME && y != NOT_COME && z != NOT_COME && w != NOT_COME;
}

/* Adds row i of all ranks, in their order, to v; `row` is where the rank's own part has it. */
template <int N, int PARTS>
static __device__ __forceinline__ void exchange(float4 (&v)[N], const struct norm &n, int row,
                                                int i)
{
    const int n_vec = n.dim / VEC, me = (int)threadIdx.x, n_threads = (int)blockDim.x;
    const float4 *part = (const float4 *)n.parts[n.me] + (int64_t)row * n_vec;
    float4 own[N];

#pragma unroll
    for (int j = 0; j < N; j++)
        own[j] = __ldcg(part + min(me + j * n_threads, n_vec - 1));
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        float4 *to = (float4 *)n.inbox[k] + (int64_t)(n.me * NORM_PUSHED_ROWS + i) * n_vec;

        for (int j = 0; j < N && k != n.me; j++)
            if (me + j * n_threads < n_vec)
                push(to + me + j * n_threads, own[j]);
    }
    const uint64_t begin = now_ns();
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        float4 *from = (float4 *)n.inbox[n.me] + (int64_t)(k * NORM_PUSHED_ROWS + i) * n_vec;
        float4 theirs[N];

        for (bool come = k == n.me; !come; trap_when_late(begin)) {
            come = true;
#pragma unroll
            for (int j = 0; j < N; j++)
                if (me + j * n_threads < n_vec)
                    come &= pull(theirs[j], from + me + j * n_threads);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            add(v[j], k == n.me ? own[j] : theirs[j]);
            if (k != n.me && me + j * n_threads < n_vec)
                *(uint4 *)(from + me + j * n_threads) =
                    make_uint4(NOT_COME, NOT_COME, NOT_COME, NOT_COME);
        }
    }
}

/* Vectors of a warp that lie side by side are a group. */
template <int N>
static __device__ __forceinline__ void store_e4m3(const struct norm &n, const uint2 (&y)[N],
                                                  int row, float *of_warps)
{
    static_assert(WARP * VEC == GROUP);
    const struct e4m3_rows &to = n.e4m3;
    const int n_vec = n.dim / VEC;
    float most = 0.0f;

    if (!to.groups) {
#pragma unroll
        for (int j = 0; j < N; j++)
            most = fmaxf(most, largest(y[j]));
        __syncthreads(); /* of_warps was in use */
        most = block_largest(most, of_warps);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int at = (int)(threadIdx.x + (unsigned)j * blockDim.x);

        if (to.groups)
            most = warp_largest(largest(y[j]));
        if (at >= n_vec)
            continue;
        ((uint32_t *)to.x)[(int64_t)row * n_vec + at] = to_e4m3(y[j], e4m3_factor(most));
        if (to.groups ? at % WARP == 0 : at == 0)
            to.scales[(int64_t)(at / WARP) * to.m + row] = e4m3_scale(most);
    }
}

template <int N>
static __device__ __forceinline__ void store_bf16(const struct norm &n, const uint2 (&y)[N],
                                                  int row)
{
    const int n_vec = n.dim / VEC;

#pragma unroll
    for (int j = 0; j < N; j++) {
        const int at = (int)(threadIdx.x + (unsigned)j * blockDim.x);

        if (at >= n_vec)
            continue;
        ((uint2 *)n.y[0])[(int64_t)row * n_vec + at] = y[j];
        for (int k = 1; k < n.n_y; k++)
            ((uint2 *)n.y[k])[(int64_t)row * n_vec + at] = y[j];
    }
}

/* N vectors a thread; all loads of a row are under way at once. */
template <int N, int PARTS, typename Part, bool E4M3>
static __global__ void __launch_bounds__(MOST_THREADS<N>)
    rms_norm_kernel(const __grid_constant__ struct norm n, const struct sampler_row *rows,
                    const struct step_counts *counts)
{
    const uint2 *w = (const uint2 *)n.w;
    const int n_vec = n.dim / VEC;
    __shared__ float sums[MAX_THREADS / WARP];
    const int i = (int)blockIdx.x, me = (int)threadIdx.x, n_threads = (int)blockDim.x;
    float4 v[N];
    uint2 g[N], out[N];
    const int n_rows = rows ? __ldcg(&counts->n_rows) : (int)gridDim.x;
    const int row = rows ? __ldcg(&rows[i].row) : n.first_row + i, to = rows ? i : row;
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < N; j++)
        g[j] = w[min(me + j * n_threads, n_vec - 1)];
    chain_wait();
    const bool counts_time = PARTS > 0 && n.clock && i == 0 && me == 0;
    const uint64_t begin = counts_time ? now_ns() : 0, ns = counts_time ? __ldcg(&n.clock->ns) : 0;
    if (i >= n_rows || (rows && (row < n.first_row || row >= n.first_row + n.owned_rows)))
        return;
    float4 *from = (float4 *)n.x + (int64_t)row * n_vec;
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = __ldcg(from + min(me + j * n_threads, n_vec - 1));
    if (PARTS > 0 && n.inbox[0]) {
        exchange<N, PARTS>(v, n, row, i);
    } else {
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int k = 0; k < PARTS; k++)
                add(v[j], read_part((const Part *)n.parts[k],
                                    (int64_t)row * n_vec + min(me + j * n_threads, n_vec - 1)));
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (me + j * n_threads >= n_vec)
            continue;
        if (PARTS > 0)
            from[me + j * n_threads] = v[j];
        sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
    }
    sum = warp_sum(sum);
    if (me % WARP == 0)
        sums[me / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int j = 0; j < n_threads / WARP; j++)
        sum += sums[j];
    const float scale = rsqrtf(sum / (float)n.dim + n.eps);
#pragma unroll
    for (int j = 0; j < N; j++) {
        out[j].x = bf16_pair(v[j].x * scale * bf16_low(g[j].x), v[j].y * scale * bf16_high(g[j].x));
        out[j].y = bf16_pair(v[j].z * scale * bf16_low(g[j].y), v[j].w * scale * bf16_high(g[j].y));
    }
    if constexpr (E4M3)
        store_e4m3<N>(n, out, to, sums);
    else
        store_bf16<N>(n, out, to);
    if (counts_time)
        n.clock->ns = ns + (now_ns() - begin);
}

template <int N, int PARTS, typename Part, bool E4M3>
static cudaError_t run(const struct launch *l, const struct norm *n)
{
    const int n_vec = n->dim / VEC, threads = ((n_vec + N - 1) / N + WARP - 1) / WARP * WARP;

    return launch_kernel(known<rms_norm_kernel<N, PARTS, Part, E4M3>>(), dim3((unsigned)n->n_rows),
                         threads, 0, l, *n, n->gather ? n->gather->rows : nullptr,
                         n->gather ? n->gather->counts : nullptr);
}

/* One row of 4,096 of two ranks, 8,192 rows: 512 threads with two vectors each take 3.4 and 203 us,
 * 256 with four 3.6 and 206, 1,024 with one 3.6 and 202 (two H100). Rows have the same bits before
 * they are rounded to e4m3, which one rank does here and several do behind it. */
template <int PARTS, typename Part, bool E4M3 = false>
static cudaError_t pick(const struct launch *l, const struct norm *n)
{
    if (n->dim <= 2 * MOST_THREADS<2> * VEC)
        return run<2, PARTS, Part, E4M3>(l, n);
    if (PARTS > 0 || n->dim <= 4 * MAX_THREADS * VEC)
        return run<4, PARTS, Part, E4M3>(l, n);
    return run<32, 0, Part, E4M3>(l, n); /* more than there are registers for */
}

template <int PARTS> static cudaError_t pick_part(const struct launch *l, const struct norm *n)
{
    if (n->e4m3.x)
        return pick<PARTS, float, true>(l, n);
    return n->parts_bf16 ? pick<PARTS, uint16_t>(l, n) : pick<PARTS, float>(l, n);
}

extern "C" cudaError_t rms_norm(const struct launch *l, const struct norm *n)
{
    if (n->e4m3.x && (n->parts_bf16 || (n->e4m3.groups && n->dim % GROUP)))
        return cudaErrorInvalidValue;
    switch (n->n_parts) {
    case 0:
        return n->e4m3.x ? pick<0, float, true>(l, n) : pick<0, float>(l, n);
    case 1:
        return pick_part<1>(l, n);
    case 2:
        return pick_part<2>(l, n);
    case 4:
        return pick_part<4>(l, n);
    case 8:
        return pick_part<8>(l, n);
    default:
        return cudaErrorInvalidValue;
    }
}
