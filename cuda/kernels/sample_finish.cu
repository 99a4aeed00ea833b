/* sample_finish.cu - the sampler's last kernel: joins the parts of a row that sample_scan
 * left, filters by top_k, top_p and min_p, draws among what is left, takes log probabilities and
 * gives the id to the next step and the host. One block per row.
 *
 * What sample_scan listed for a small top_k is sorted. Otherwise nothing is: the ids kept are those
 * at or before a bound in the order of falling logit, and the bound is found digit by digit from
 * histograms, of counts for top_k and of probability mass for top_p. Mass is added as integers, so
 * that no order of adding changes it. Once at most LIST ids may be kept, only these are looked at.
 * Until then bound by what one multiprocessor computes in its few passes over the row, 4 *
 * vocab_size bytes each: in L2, or over NVLink what other ranks have; more than one load ahead does
 * not help. (151,936 logits of spread 4 at temperature 0.6 and top_p 0.95 on an H200, 2026-11-30,
 * 1, 64 and 256 rows: 119, 127 and 283 us; with all passes over the row 256, 288 and 591.) */
#include "cuda/kernels/sampler.cuh"

int sample_scan_parts(const struct launch *l, const struct sampler_memory *m, int n_rows);

static constexpr int THREADS = 1024;
static constexpr int WARPS = THREADS / WARP;
static constexpr int BINS = 2 * THREADS;
static constexpr float BINS_PER_NAT = 64.0f; /* first digit: x = 0 .. -32; less weighs nothing */
static constexpr float MASS_ONE = 1099511627776.0f; /* 2^40: 2^22 of them fit 64 bits */
static constexpr int LEVELS = 6;
static constexpr uint64_t ID_ONES = 0xffc00000; /* of ~id, above the bits that level 4 looks at */
static constexpr int LIST = 1024;               /* ids kept in shared memory once few are left */

/* Ids at or before a place in the order. */
struct bound {
    int bin; /* first digit */
    uint64_t key;
};

/* A whole row, as far as sample_scan has seen it. */
struct joined {
    float raw_max, raw_sum;
    uint64_t key; /* of the largest */
    struct draw best;
    int32_t broken;
};

struct finish_shared {
    unsigned long long mass[BINS];
    uint32_t count[BINS];
    unsigned long long warp_sums[WARPS];
    struct draw warps[WARPS];
    float list_z[LIST];
    int32_t list_ids[LIST];
    uint32_t n_list;
    int bin;
    unsigned long long above;
    struct joined scan;
    const float *raw[MAX_RANKS], *drawn_from[MAX_RANKS]; /* this block's row */
    float kept_z[TOP_K_LISTED];
    int32_t kept_ids[TOP_K_LISTED];
    float floor;
};

/* What a row is drawn from: x = (z - max) * scale; in shared memory where listed, else where the
 * ranks have it. */
struct row_view {
    const float *const *z; /* [ranks] in shared memory, n_per_rank of the row's n logits each */
    float max, scale;
    int n, n_per_rank;
    bool listed;
};

static __device__ __forceinline__ float x_of(const struct row_view &v, float z)
{
    return (z - v.max) * v.scale;
}

/* Digits from the top: the distance from the maximum on a linear scale, which spreads the ids that
 * count over many bins, then the bits of the logit and of the id. */
static __device__ __forceinline__ int first_digit(float x)
{
    return BINS - 1 - (int)fminf(-x * BINS_PER_NAT, (float)(BINS - 1));
}

static __device__ __forceinline__ int shift_of(int level)
{
    static constexpr int shifts[LEVELS] = {64, 53, 42, 32, 11, 0};

    return shifts[level];
}

static __device__ __forceinline__ int digit_of(uint64_t key, int level)
{
    return (int)(key >> shift_of(level)) & (level == 3 ? 1023 : BINS - 1);
}

static __device__ __forceinline__ bool is_within(const struct bound &b, float x, uint64_t key)
{
    const int bin = first_digit(x);

    return bin > b.bin || (bin == b.bin && key >= b.key);
}

/* Calls f(z, id) for every id of the row, by all threads. */
template <typename F>
static __device__ __forceinline__ void each_id(const struct row_view &v,
                                               const struct finish_shared &s, F f)
{
    if (v.listed) {
        for (int i = (int)threadIdx.x; i < v.n; i += THREADS)
            f(s.list_z[i], s.list_ids[i]);
        return;
    }
    for (int first = 0, rank = 0; first < v.n; first += v.n_per_rank, rank++) {
        const int n_fours = min(v.n_per_rank, v.n - first) / 4;
        const float4 *own = (const float4 *)v.z[rank];
        float4 next = __ldcg(own + min((int)threadIdx.x, n_fours - 1));
#pragma unroll 2
        for (int i = (int)threadIdx.x; i < n_fours; i += THREADS) {
            const float4 z = next;

            next = __ldcg(own + min(i + THREADS, n_fours - 1));
            f(z.x, first + i * 4);
            f(z.y, first + i * 4 + 1);
            f(z.z, first + i * 4 + 2);
            f(z.w, first + i * 4 + 3);
        }
    }
}

static __device__ __forceinline__ unsigned long long mass_of(float x)
{
    return (unsigned long long)(__expf(x) * MASS_ONE);
}

static __device__ unsigned long long block_sum(unsigned long long x, struct finish_shared &s)
{
    for (int i = WARP / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, i);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        s.warp_sums[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < WARPS; i++)
        x += s.warp_sums[i];
    __syncthreads(); /* warp_sums may be written again */
    return x;
}

static __device__ unsigned long long share_of(double share, unsigned long long total)
{
    const unsigned long long target = (unsigned long long)ceil(share * (double)total);

    return target < 1 ? 1 : target > total ? total : target;
}

/* The bin, counted from the top, in which the sum reaches target; s.bin and s.above. Each thread
 * has two bins. */
template <typename T>
static __device__ void find_bin(const T *bins, unsigned long long target, struct finish_shared &s)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int top = BINS - 1 - 2 * (int)threadIdx.x;
    const unsigned long long a = bins[top], b = bins[top - 1];
    unsigned long long sum = warp_prefix(a + b);

    if (lane == WARP - 1)
        s.warp_sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += s.warp_sums[i];
    const unsigned long long before = sum - a - b;
    if (before < target && sum >= target) {
        s.bin = before + a >= target ? top : top - 1;
        s.above = before + a >= target ? before : before + a;
    }
    __syncthreads();
}

/* Whichever of two bounds keeps fewer ids. */
static __device__ __forceinline__ struct bound tighter(const struct bound &a, const struct bound &b)
{
    return a.bin > b.bin || (a.bin == b.bin && a.key > b.key) ? a : b;
}

/* Keeps the ids within b in shared memory; there are at most LIST. */
static __device__ void make_list(struct row_view &v, const struct bound &b, struct finish_shared &s)
{
    __syncthreads();
    if (threadIdx.x == 0)
        s.n_list = 0;
    __syncthreads();
    each_id(v, s, [&](float z, int32_t id) {
        if (!is_within(b, x_of(v, z), key_of(z, id)))
            return;
        const uint32_t at = atomicAdd(&s.n_list, 1u);
        s.list_z[at] = z;
        s.list_ids[at] = id;
    });
    __syncthreads();
    v.listed = true;
    v.n = (int)s.n_list;
}

/* The bound of the fewest ids, in order, that reach what is wanted: a number of ids, no more than
 * there are, or a share of their mass. Only ids within `in` count. Lists in v what may be kept once
 * there is room for it; always, where up to LIST ids are wanted. */
template <bool MASS>
static __device__ struct bound select(struct row_view &v, const struct bound &in, double wanted,
                                      struct finish_shared &s)
{
    const int top = BINS - 1 - 2 * (int)threadIdx.x; /* of the thread's two bins */
    unsigned long long target = (unsigned long long)wanted, n_above = 0;
    struct bound b = {0, 0};

    for (int level = 0; level < LEVELS; level++) {
        unsigned long long far_mass = 0;
        uint32_t far_count = 0;

        __syncthreads();
        for (int i = (int)threadIdx.x; i < BINS; i += THREADS) {
            s.mass[i] = 0;
            s.count[i] = 0;
        }
        __syncthreads();
        each_id(v, s, [&](float z, int32_t id) {
            const float x = x_of(v, z);
            const uint64_t key = key_of(z, id);
            int bin = first_digit(x);

            if (!is_within(in, x, key))
                return;
            if (level == 0 && bin == 0) { /* most ids of a row: not all to one address */
                far_count++;
                far_mass += MASS ? mass_of(x) : 0;
                return;
            }
            if (level > 0) {
                if (bin != b.bin ||
                    (level > 1 && key >> shift_of(level - 1) != b.key >> shift_of(level - 1)))
                    return;
                bin = digit_of(key, level);
            }
            atomicAdd(&s.count[bin], 1u);
            if (MASS)
                atomicAdd(&s.mass[bin], mass_of(x));
        });
        if (far_count) {
            atomicAdd(&s.count[0], far_count);
            atomicAdd(&s.mass[0], far_mass);
        }
        __syncthreads();
        if (MASS && level == 0)
            target = share_of(wanted, block_sum(s.mass[top] + s.mass[top - 1], s));
        if (MASS)
            find_bin(s.mass, target, s);
        else
            find_bin(s.count, target, s);
        target -= s.above;
        if (level == 0)
            b.bin = s.bin;
        else
            b.key |= (uint64_t)s.bin << shift_of(level) | (level == 4 ? ID_ONES : 0);
        n_above +=
            block_sum((top > s.bin ? s.count[top] : 0) + (top - 1 > s.bin ? s.count[top - 1] : 0),
                      s);
        if (!v.listed && n_above + s.count[s.bin] <= LIST)
            make_list(v, tighter(b, in), s);
        if (s.count[s.bin] == 1 || (!MASS && s.count[s.bin] == target))
            break;
    }
    __syncthreads();
    return b;
}

/* Draws for an id that no filter but min_p may take away. */
static __device__ __forceinline__ void draw_kept(struct draw &best, const struct row_view &v,
                                                 const struct sampler_state &p, uint32_t counter,
                                                 float z, int32_t id)
{
    const uint64_t seed = (uint64_t)p.seed_high << 32 | p.seed_low;

    if (!(__expf(x_of(v, z)) >= p.min_p) || !(z > -INFINITY))
        return;
    const struct philox4 words = philox_quad(seed, counter, (uint32_t)id / 4);
    const uint32_t word = id % 4 == 0   ? words.v[0]
                          : id % 4 == 1 ? words.v[1]
                          : id % 4 == 2 ? words.v[2]
                                        : words.v[3];
    draw_try(best, z, word, id, v.scale);
}

static __device__ int32_t draw_filtered(struct row_view v, const struct sampler_state &p,
                                        uint32_t counter, struct finish_shared &s)
{
    struct bound b = {-1, 0};
    struct draw best = no_draw();

    if (p.top_k > 0 && p.top_k < v.n)
        b = select<false>(v, b, p.top_k, s);
    if (p.top_p < 1.0f)
        b = select<true>(v, b, p.top_p, s);
    each_id(v, s, [&](float z, int32_t id) {
        if (is_within(b, x_of(v, z), key_of(z, id)))
            draw_kept(best, v, p, counter, z, id);
    });
    block_best(best, v.scale, s.warps);
    return best.id;
}

/* Gathers what the parts listed in shared memory; false where it does not fit. The k-th largest of
 * the maxima of parts, or of their warps where parts are few, is no larger than the row's k-th
 * largest logit, so what is below it is left out, nearly all beyond k. */
static __device__ bool gather(struct row_view &v, const struct scan *parts, int n_parts, int k,
                              struct finish_shared &s)
{
    const bool by_part = n_parts >= 2 * k;
    const int me = (int)threadIdx.x, n_maxima = by_part ? n_parts : n_parts * SCAN_WARPS;
    float *maxima = s.list_z;
    static_assert(SAMPLER_MAX_SPLITS * SCAN_WARPS <= THREADS, "a thread has one maximum at most");
    static_assert(THREADS <= LIST && SAMPLER_MAX_SPLITS <= BINS,
                  "they are kept where there is room");

    const int32_t n_own = me < n_parts ? parts[me].n_listed : 0;
    if (me < n_parts)
        s.count[me] = (uint32_t)n_own;
    if (me < n_maxima)
        maxima[me] =
            by_part ? parts[me].found.max : parts[me / SCAN_WARPS].warp_max[me % SCAN_WARPS];
    if (me == 0) {
        s.floor = -INFINITY;
        s.n_list = 0;
    }
    if (__syncthreads_or(n_own < 0))
        return false;
    if (me < n_maxima) {
        const float own = maxima[me];
        int n_before = 0;

        for (int i = 0; i < n_maxima; i++)
            n_before += maxima[i] > own || (maxima[i] == own && i < me);
        if (n_before == k - 1)
            s.floor = own;
    }
    __syncthreads();
    for (int i = me; i < n_parts * LISTED; i += THREADS) {
        const struct scan &part = parts[i / LISTED];

        if (i % LISTED >= (int)s.count[i / LISTED] || part.listed_z[i % LISTED] < s.floor)
            continue;
        const uint32_t at = atomicAdd(&s.n_list, 1u);
        if (at < LIST) {
            s.list_z[at] = part.listed_z[i % LISTED];
            s.list_ids[at] = part.listed_ids[i % LISTED];
        }
    }
    __syncthreads();
    v.listed = true;
    v.n = (int)s.n_list;
    return v.n <= LIST;
}

/* As draw_filtered, of a list that holds the top_k best: these are ranked. */
static __device__ int32_t draw_listed(const struct row_view &v, const struct sampler_state &p,
                                      uint32_t counter, struct finish_shared &s)
{
    const int me = (int)threadIdx.x, n = min(v.n, p.top_k);
    struct draw best = no_draw();

    if (me < v.n) {
        const uint64_t key = key_of(s.list_z[me], s.list_ids[me]);
        int rank = 0;

        for (int i = 0; i < v.n; i++)
            rank += key_of(s.list_z[i], s.list_ids[i]) > key;
        if (rank < n) {
            s.kept_z[rank] = s.list_z[me];
            s.kept_ids[rank] = s.list_ids[me];
            s.mass[rank] = mass_of(x_of(v, s.list_z[me]));
        }
    }
    __syncthreads();
    if (me < n) {
        unsigned long long before = 0, total = 0;

        for (int i = 0; i < n; i++) {
            before += i < me ? s.mass[i] : 0;
            total += s.mass[i];
        }
        if (p.top_p >= 1.0f || before < share_of(p.top_p, total))
            draw_kept(best, v, p, counter, s.kept_z[me], s.kept_ids[me]);
    }
    block_best(best, v.scale, s.warps);
    return best.id;
}

/* The n best of the raw row, best first. */
static __device__ void best_logprobs(struct row_view v, int n, float log_sum, int32_t *ids,
                                     float *logprobs, struct finish_shared &s)
{
    const struct bound all = {-1, 0};

    n = min(min(n, (int)SAMPLING_MAX_LOGPROBS), v.n);
    if (n < v.n)
        select<false>(v, all, n, s);
    else
        make_list(v, all, s);
    for (int i = (int)threadIdx.x; i < v.n; i += THREADS) {
        const uint64_t key = key_of(s.list_z[i], s.list_ids[i]);
        int rank = 0;

        for (int j = 0; j < v.n; j++)
            rank += key_of(s.list_z[j], s.list_ids[j]) > key;
        if (rank >= n)
            continue;
        ids[rank] = s.list_ids[i];
        logprobs[rank] = s.list_z[i] - v.max - log_sum;
    }
    __syncthreads();
}

static __device__ __forceinline__ void join(struct joined &a, const struct joined &b, float scale)
{
    add_sums(a.raw_max, a.raw_sum, b.raw_max, b.raw_sum);
    a.key = b.key > a.key ? b.key : a.key;
    if (beats(b.best, a.best, scale))
        a.best = b.best;
    a.broken |= b.broken;
}

/* The row's parts joined by one warp; all threads have it. */
static __device__ struct joined join_parts(const struct scan *parts, int n_parts, float scale,
                                           struct finish_shared &s)
{
    if (threadIdx.x < WARP) {
        struct joined all = {-FLT_MAX, 0.0f, key_of(-INFINITY, INT32_MAX), no_draw(), 0};

        for (int i = (int)threadIdx.x; i < n_parts; i += WARP) {
            const struct found &p = parts[i].found;

            join(all, {p.raw_max, p.raw_sum, key_of(p.max, p.max_id), p.best, p.broken}, scale);
        }
        for (int i = WARP / 2; i > 0; i /= 2)
            join(all,
                 {__shfl_xor_sync(ALL_LANES, all.raw_max, i),
                  __shfl_xor_sync(ALL_LANES, all.raw_sum, i),
                  __shfl_xor_sync(ALL_LANES, all.key, i),
                  {__shfl_xor_sync(ALL_LANES, all.best.z, i),
                   __shfl_xor_sync(ALL_LANES, all.best.g, i),
                   __shfl_xor_sync(ALL_LANES, all.best.id, i)},
                  __shfl_xor_sync(ALL_LANES, all.broken, i)},
                 scale);
        if (threadIdx.x == 0)
            s.scan = all;
    }
    __syncthreads();
    return s.scan;
}

/* Of a row without NaN and Inf; BATCH_NUMERICS where every id is banned. */
static __device__ int32_t choose(const struct sampler_memory &m, const struct sampler_row &row,
                                 const struct sampler_state &p, const struct joined &scan,
                                 const struct scan *parts, int n_parts, struct finish_shared &s)
{
    struct row_view v = {s.drawn_from, z_of(scan.key), scale_of(p),
                         m.vocab_size, m.ids_per_rank, false};
    const struct row_view whole = v;
    int32_t id = id_of(scan.key);

    if (p.temperature > 0.0f && !is_filtered(p))
        id = scan.best.id;
    else if (p.temperature > 0.0f && v.max > -INFINITY)
        id = is_listed(p) && gather(v, parts, n_parts, p.top_k, s)
                 ? draw_listed(v, p, row.counter, s)
                 : draw_filtered(whole, p, row.counter, s);
    return id < m.vocab_size ? id : (int32_t)BATCH_NUMERICS;
}

/* That an id has been sampled, where this rank can write what has it. */
static __device__ void count(const struct sampler_memory &m, const struct sampler_row &row,
                             int32_t id)
{
    uint16_t *seen = id >= 0 ? m.seen[id / m.ids_per_rank] : nullptr;

    if (!seen)
        return;
    seen += (int64_t)row.state * m.logits_stride + id % m.ids_per_rank;
    if ((*seen & SEEN_MAX) < SEEN_MAX)
        ++*seen;
}

static __global__ void __launch_bounds__(THREADS)
    sample_finish_kernel(const __grid_constant__ struct sampler_memory m,
                         const struct sampler_row *rows, const struct step_counts *counts,
                         int n_parts)
{
    __shared__ struct finish_shared s;
    const int i = (int)blockIdx.x, slot = __ldcg(&counts->slot), n_rows = __ldcg(&counts->n_rows);
    const struct sampler_row row = row_at(rows, i);

    chain_wait();
    if (i >= n_rows)
        return;
    const struct sampler_state &p = m.states[row.state];
    const struct scan *parts = (const struct scan *)m.scans + (int64_t)i * n_parts;
    if ((int)threadIdx.x < m.n_ranks) {
        const float *raw = m.logits[threadIdx.x] + (int64_t)i * m.logits_stride;

        s.raw[threadIdx.x] = raw;
        s.drawn_from[threadIdx.x] =
            is_adjusted(p, row) ? m.adjusted[threadIdx.x] + (int64_t)i * m.logits_stride : raw;
    }
    const struct joined scan = join_parts(parts, n_parts, scale_of(p), s);
    int32_t id = (int32_t)BATCH_NUMERICS;
    float logprob = 0.0f;

    if (!scan.broken)
        id = choose(m, row, p, scan, parts, n_parts, s);
    if (id >= 0 && p.n_logprobs >= 0) {
        const struct row_view v = {s.raw, scan.raw_max, 1.0f, m.vocab_size, m.ids_per_rank, false};
        const float log_sum = logf(scan.raw_sum);

        if (threadIdx.x == 0)
            logprob = s.raw[id / m.ids_per_rank][id % m.ids_per_rank] - scan.raw_max - log_sum;
        if (p.n_logprobs > 0)
            best_logprobs(v, p.n_logprobs, log_sum,
                          m.host_top_ids[slot] + (int64_t)i * SAMPLING_MAX_LOGPROBS,
                          m.host_top_logprobs[slot] + (int64_t)i * SAMPLING_MAX_LOGPROBS, s);
    }
    if (threadIdx.x != 0)
        return;
    for (int rank = 0; rank < m.n_ranks; rank++)
        if (m.sampled[rank])
            m.sampled[rank][i] = id;
    m.host_ids[slot][i] = id;
    m.host_logprobs[slot][i] = logprob;
    if (p.history)
        count(m, row, id);
}

extern "C" cudaError_t sampler_finish(const struct launch *l, const struct sampler_memory *m,
                                      const struct step_view *v, int n_rows)
{
    return launch_kernel(known<sample_finish_kernel>(), dim3((unsigned)n_rows), THREADS, 0, l, *m,
                         v->rows, v->counts, sample_scan_parts(l, m, n_rows) * m->n_ranks);
}

static __global__ void count_kernel(const struct sampler_memory m, const struct sampler_row *rows,
                                    const struct step_counts *counts)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    chain_wait();
    if (i >= __ldcg(&counts->n_rows))
        return;
    const struct sampler_row row = row_at(rows, i);
    if (m.states[row.state].history)
        count(m, row, __ldcg(m.sampled[m.me] + i));
}

extern "C" cudaError_t sampler_count(const struct launch *l, const struct sampler_memory *m,
                                     const struct step_view *v, int n_rows)
{
    return launch_kernel(known<count_kernel>(), dim3((unsigned)((n_rows + 127) / 128)), 128, 0, l,
                         *m, v->rows, v->counts);
}
