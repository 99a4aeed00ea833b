/* sample_finish.cu - the sampler's last kernel: joins the parts of a row that sample_scan
 * left, filters by top_k, top_p and min_p, draws among what is left, takes log probabilities and
 * gives the id to the next step and the host. One block per row.
 *
 * The ids that top_k and top_p keep are the first ones in the order of falling logit. Where they
 * are few, a list that has them is sorted in shared memory. For a small top_k sample_scan has
 * listed them; otherwise a bound is looked for digit by digit, in histograms of counts for top_k
 * and of probability mass for top_p, until at most LIST ids are at or before it. Where more are
 * kept, the bound is narrowed until it keeps exactly these. Mass is added as integers, so that no
 * order of adding changes it. Bound by what one multiprocessor computes in its few passes over the
 * row, 4 * vocab_size bytes each: in L2, or over NVLink what other ranks have; more than one load
 * ahead does not help. (151,936 logits of spread 4 at temperature 0.6 and top_p 0.95 on an H200,
 * 2026-11-30, 1, 64 and 256 rows: 104, 111 and 258 us; with a pass over the row for each digit 256,
 * 288 and 591.) */
#include "cuda/kernels/sampler.cuh"

int sample_scan_parts(const struct launch *l, const struct sampler_memory *m, int n_rows);

static constexpr int THREADS = 1024;
static constexpr int WARPS = THREADS / WARP;
static constexpr int BINS = 2 * THREADS;
static constexpr float BINS_PER_NAT = 64.0f; /* first digit: x = 0 .. -32; less weighs nothing */
static constexpr float MASS_ONE = 1099511627776.0f; /* 2^40: 2^22 of them fit 64 bits */
static constexpr int LEVELS = 6;
static constexpr uint64_t ID_ONES = 0xffc00000; /* of ~id, above the bits that level 4 looks at */
static constexpr int LIST = THREADS;            /* ids listed at most: each thread ranks one */

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
    uint64_t list[LIST]; /* keys */
    uint32_t n_list;
    int bin;
    unsigned long long above, n_above; /* in the bins above: of what is wanted, and ids */
    struct joined scan;
    const float *raw[MAX_RANKS], *drawn_from[MAX_RANKS];  /* this block's row */
    float maxima[SAMPLER_MAX_SPLITS * SCAN_WARPS], floor; /* of gather() */
};

/* What a row is drawn from: x = (z - max) * scale. */
struct row_view {
    const float *const *z; /* [ranks] in shared memory, n_per_rank of the row's n logits each */
    float max, scale;
    int n, n_per_rank;
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

/* Calls f(z, bin, key) for every id of the row within b, by all threads. Most are far behind it,
 * which is seen first. */
template <typename F>
static __device__ __forceinline__ void each_within(const struct row_view &v, const struct bound &b,
                                                   F f)
{
    auto look_at = [&](float z, int32_t id) {
        const int bin = first_digit(x_of(v, z));

        if (bin < b.bin)
            return;
        const uint64_t key = key_of(z, id);
        if (bin > b.bin || key >= b.key)
            f(z, bin, key);
    };

    for (int first = 0, rank = 0; first < v.n; first += v.n_per_rank, rank++) {
        const int n_fours = min(v.n_per_rank, v.n - first) / 4;
        const float4 *own = (const float4 *)v.z[rank];
        float4 next = __ldcg(own + min((int)threadIdx.x, n_fours - 1));
#pragma unroll 2
        for (int i = (int)threadIdx.x; i < n_fours; i += THREADS) {
            const float4 z = next;

            next = __ldcg(own + min(i + THREADS, n_fours - 1));
            look_at(z.x, first + i * 4);
            look_at(z.y, first + i * 4 + 1);
            look_at(z.z, first + i * 4 + 2);
            look_at(z.w, first + i * 4 + 3);
        }
    }
}

static __device__ __forceinline__ unsigned long long mass_of(float x)
{
    return (unsigned long long)(__expf(x) * MASS_ONE);
}

/* Sums over the threads up to this one, and over all. */
struct prefix {
    unsigned long long up_to, all;
};

static __device__ struct prefix block_prefix(unsigned long long x, struct finish_shared &s)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const unsigned long long of_warp = warp_prefix(x);
    static_assert(WARPS == WARP, "a lane has the sum of a warp");

    __syncthreads(); /* warp_sums may be read still */
    if (lane == WARP - 1)
        s.warp_sums[warp] = of_warp;
    __syncthreads();
    const unsigned long long own = s.warp_sums[lane], up_to = warp_prefix(own);
    return {__shfl_sync(ALL_LANES, up_to - own, warp) + of_warp,
            __shfl_sync(ALL_LANES, up_to, WARP - 1)};
}

static __device__ unsigned long long share_of(double share, unsigned long long total)
{
    const unsigned long long target = (unsigned long long)ceil(share * (double)total);

    return target < 1 ? 1 : target > total ? total : target;
}

/* Whichever of two bounds keeps fewer ids. */
static __device__ __forceinline__ struct bound tighter(const struct bound &a, const struct bound &b)
{
    return a.bin > b.bin || (a.bin == b.bin && a.key > b.key) ? a : b;
}

/* Lists the ids within b; there are at most LIST. */
static __device__ void make_list(const struct row_view &v, const struct bound &b,
                                 struct finish_shared &s)
{
    if (threadIdx.x == 0)
        s.n_list = 0;
    __syncthreads();
    each_within(v, b, [&](float, int, uint64_t key) { s.list[atomicAdd(&s.n_list, 1u)] = key; });
    __syncthreads();
}

/* Sorts the list, best first. */
static __device__ void sort_list(struct finish_shared &s)
{
    const int me = (int)threadIdx.x, n = (int)s.n_list;
    const uint64_t key = me < n ? s.list[me] : 0;
    int rank = 0;

    for (int i = 0; i < n && me < n; i++)
        rank += s.list[i] > key;
    __syncthreads();
    if (me < n)
        s.list[rank] = key;
    __syncthreads();
}

/* Finds the first ids, in order, of those within b that reach what is wanted: a number of ids, no
 * more than there are; or with MASS a share of the mass of all within b, which total becomes. True
 * if they are listed, perhaps with some behind them; that is so whenever a number of up to LIST is
 * wanted. Else b becomes their bound. */
template <bool MASS>
static __device__ bool select(struct bound &b, unsigned long long &total, const struct row_view &v,
                              double wanted, struct finish_shared &s)
{
    const int top = BINS - 1 - 2 * (int)threadIdx.x; /* of the thread's two bins */
    unsigned long long target = (unsigned long long)wanted, n_above = 0;
    struct bound found = {0, 0};

    for (int level = 0; level < LEVELS; level++) {
        unsigned long long far_mass = 0;
        uint32_t far_count = 0;

        __syncthreads();
        for (int i = (int)threadIdx.x; i < BINS; i += THREADS) {
            s.mass[i] = 0;
            s.count[i] = 0;
        }
        __syncthreads();
        each_within(v, b, [&](float z, int bin, uint64_t key) {
            const float x = x_of(v, z);

            if (level == 0 && bin == 0) { /* most ids of a row: not all to one address */
                far_count++;
                far_mass += MASS ? mass_of(x) : 0;
                return;
            }
            if (level > 0) { /* of ids with the same digits so far */
                if (bin != found.bin ||
                    (level > 1 && key >> shift_of(level - 1) != found.key >> shift_of(level - 1)))
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
        const unsigned long long n[2] = {s.count[top], s.count[top - 1]};
        const unsigned long long amount[2] = {MASS ? s.mass[top] : n[0],
                                              MASS ? s.mass[top - 1] : n[1]};
        const struct prefix ids = block_prefix(n[0] + n[1], s);
        const struct prefix sums = MASS ? block_prefix(amount[0] + amount[1], s) : ids;
        const unsigned long long before = sums.up_to - amount[0] - amount[1];

        if (MASS && level == 0) {
            total = sums.all;
            target = share_of(wanted, total);
        }
        if (before < target && sums.up_to >= target) {
            const bool in_top = before + amount[0] >= target;

            s.bin = in_top ? top : top - 1;
            s.above = in_top ? before : before + amount[0];
            s.n_above = ids.up_to - n[1] - (in_top ? n[0] : 0);
        }
        __syncthreads();
        target -= s.above;
        n_above += s.n_above;
        if (level == 0)
            found.bin = s.bin;
        else
            found.key |= (uint64_t)s.bin << shift_of(level) | (level == 4 ? ID_ONES : 0);
        if (n_above + s.count[s.bin] <= LIST) {
            make_list(v, tighter(found, b), s);
            return true;
        }
        if (s.count[s.bin] == 1 || (!MASS && s.count[s.bin] == target))
            break;
    }
    b = tighter(found, b);
    return false;
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

/* Draws from the list, which has all that top_k and top_p leave and perhaps more. total: the mass
 * that top_p is a share of; 0: that of what top_k leaves. */
static __device__ int32_t draw_listed(const struct row_view &v, const struct sampler_state &p,
                                      uint32_t counter, unsigned long long total,
                                      struct finish_shared &s)
{
    sort_list(s);
    const int me = (int)threadIdx.x, n_list = (int)s.n_list;
    const bool is_kept = me < (p.top_k > 0 ? min(n_list, p.top_k) : n_list);
    const uint64_t key = is_kept ? s.list[me] : 0;
    const float z = z_of(key);
    const unsigned long long mass = is_kept ? mass_of(x_of(v, z)) : 0;
    const struct prefix sums = block_prefix(mass, s);
    const unsigned long long target = share_of(p.top_p, total > 0 ? total : sums.all);
    struct draw best = no_draw();

    if (is_kept && (p.top_p >= 1.0f || sums.up_to - mass < target))
        draw_kept(best, v, p, counter, z, id_of(key));
    block_best(best, v.scale, s.warps);
    return best.id;
}

static __device__ int32_t draw_filtered(const struct row_view &v, const struct sampler_state &p,
                                        uint32_t counter, struct finish_shared &s)
{
    struct bound b = {-1, 0};
    struct draw best = no_draw();
    unsigned long long total = 0;

    if ((p.top_k > 0 && p.top_k < v.n && select<false>(b, total, v, p.top_k, s)) ||
        (p.top_p < 1.0f && select<true>(b, total, v, p.top_p, s)))
        return draw_listed(v, p, counter, total, s);
    each_within(v, b,
                [&](float z, int, uint64_t key) { draw_kept(best, v, p, counter, z, id_of(key)); });
    block_best(best, v.scale, s.warps);
    return best.id;
}

/* Lists what the parts have listed; false where it does not fit. The k-th largest of the maxima of
 * parts, or of their warps where parts are few, is no larger than the row's k-th largest logit, so
 * what is below it is left out, nearly all beyond k. */
static __device__ bool gather(const struct scan *parts, int n_parts, int k, struct finish_shared &s)
{
    const bool by_part = n_parts >= 2 * k;
    const int me = (int)threadIdx.x, n_maxima = by_part ? n_parts : n_parts * SCAN_WARPS;
    static_assert(SAMPLER_MAX_SPLITS * SCAN_WARPS <= THREADS, "a thread has one maximum at most");
    static_assert(SAMPLER_MAX_SPLITS <= BINS, "lengths of lists are kept where there is room");

    const int32_t n_own = me < n_parts ? parts[me].n_listed : 0;
    if (me < n_parts)
        s.count[me] = (uint32_t)n_own;
    if (me < n_maxima)
        s.maxima[me] =
            by_part ? parts[me].found.max : parts[me / SCAN_WARPS].warp_max[me % SCAN_WARPS];
    if (me == 0) {
        s.floor = -INFINITY;
        s.n_list = 0;
    }
    if (__syncthreads_or(n_own < 0))
        return false;
    if (me < n_maxima) {
        const float own = s.maxima[me];
        int n_before = 0;

        for (int i = 0; i < n_maxima; i++)
            n_before += s.maxima[i] > own || (s.maxima[i] == own && i < me);
        if (n_before == k - 1)
            s.floor = own;
    }
    __syncthreads();
    for (int i = me; i < n_parts * LISTED; i += THREADS) {
        if (i % LISTED >= (int)s.count[i / LISTED])
            continue;
        const uint64_t key = parts[i / LISTED].listed[i % LISTED];
        if (z_of(key) < s.floor)
            continue;
        const uint32_t at = atomicAdd(&s.n_list, 1u);
        if (at < LIST)
            s.list[at] = key;
    }
    __syncthreads();
    return s.n_list <= LIST;
}

/* The n best of the raw row, best first. */
static __device__ void best_logprobs(const struct row_view &v, int n, float log_sum, int32_t *ids,
                                     float *logprobs, struct finish_shared &s)
{
    struct bound all = {-1, 0};
    unsigned long long total = 0;
    const int me = (int)threadIdx.x;
    static_assert(SAMPLING_MAX_LOGPROBS <= LIST, "they are listed");

    n = min(min(n, (int)SAMPLING_MAX_LOGPROBS), v.n);
    select<false>(all, total, v, n, s);
    sort_list(s);
    if (me >= n)
        return;
    ids[me] = id_of(s.list[me]);
    logprobs[me] = z_of(s.list[me]) - v.max - log_sum;
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
    const struct row_view v = {s.drawn_from, z_of(scan.key), scale_of(p), m.vocab_size,
                               m.ids_per_rank};
    int32_t id = id_of(scan.key);

    if (p.temperature > 0.0f && !is_filtered(p))
        id = scan.best.id;
    else if (p.temperature > 0.0f && v.max > -INFINITY)
        id = is_listed(p) && gather(parts, n_parts, p.top_k, s)
                 ? draw_listed(v, p, row.counter, 0, s)
                 : draw_filtered(v, p, row.counter, s);
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
        const struct row_view v = {s.raw, scan.raw_max, 1.0f, m.vocab_size, m.ids_per_rank};
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
