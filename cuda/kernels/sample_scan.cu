/* sample_scan.cu - the sampler's pass over whole rows, each split over several blocks: looks for
 * NaN and Inf, and draws for every id where nothing is filtered; else finds the largest, the
 * log-sum of the raw row, applies penalties, bias and mask, and lists the ids that a small top_k
 * may keep. Also sets sampler states.
 *
 * Bound by memory: 4 * n_rows * vocab_size bytes, read once where a row is drawn from as it is. */
#include "cuda/kernels/sampler.cuh"

static constexpr int THREADS = SCAN_THREADS;
static constexpr int WARPS = SCAN_WARPS;
static constexpr int STRIDE = THREADS * 4; /* ids that a block takes at a time */
static constexpr int BLOCKS_PER_SM = 4;    /* over all rows */
static constexpr int AHEAD = 4;            /* loads in flight a thread */
static constexpr int INVARIANT_PARTS = 32;
static constexpr float GUMBEL_MAX = 22.9f; /* no g is larger: w >= 2^-33 (philox.h) */
static_assert(INVARIANT_PARTS <= SAMPLER_MAX_SPLITS, "there is room for them");

/* Four ids at a time; all parts but the last are of equal length. */
static __device__ int part_length(int vocab_size, int n_parts)
{
    return ((vocab_size + n_parts - 1) / n_parts + 3) / 4 * 4;
}

static __device__ __forceinline__ int first_id(const struct sampler_memory &m)
{
    return m.me * m.ids_per_rank;
}

/* Number i of this rank's rows, so that it can be indexed by id. */
template <typename T>
static __device__ __forceinline__ T *by_id(T *rows, const struct sampler_memory &m, int64_t i)
{
    return rows + i * m.logits_stride - first_id(m);
}

/* A warp takes 1024 ids at a time: its lanes read a word each, in one piece, for host memory is
 * far, and then look at the words one after another. */
static __device__ void ban_masked(float *to, const uint32_t *mask, int begin, int end)
{
    const int lane = (int)threadIdx.x % WARP, last = (end - 1) / 32;
    const int first = begin / 32 + (int)threadIdx.x / WARP * WARP;
    uint32_t next = __ldcv(mask + min(first + lane, last));

    for (int word = first; word <= last; word += THREADS) {
        const uint32_t mine = next;

        next = __ldcv(mask + min(word + THREADS + lane, last));
        for (int i = 0; i < WARP; i++) {
            const int id = (word + i) * 32 + lane;
            const bool allowed = __shfl_sync(ALL_LANES, mine, i) >> lane & 1;

            if (!allowed && id >= begin && id < end)
                to[id] = -INFINITY;
        }
    }
}

/* The adjusted copy of this part of the row: penalties, bias, banned ids, mask. */
static __device__ void adjust(const struct sampler_memory &m, const struct sampler_row &row,
                              const struct sampler_state &p, const uint32_t *mask, float *to,
                              const float *from, int begin, int end)
{
    const struct logit_bias *bias = m.bias + (int64_t)row.state * SAMPLING_MAX_BIAS;
    const uint16_t *seen = by_id(m.seen[m.me], m, row.state);

    for (int id = begin + (int)threadIdx.x; id < end; id += THREADS)
        to[id] = p.history ? penalized(from[id], seen[id], p) : from[id];
    __syncthreads();
    if (threadIdx.x == 0) { /* in order: an id may be named more than once */
        for (int i = 0; i < p.n_bias; i++)
            if (bias[i].id >= begin && bias[i].id < end)
                to[bias[i].id] = bounded(to[bias[i].id] + bias[i].bias);
        for (int i = 0; bans_stops(row) && i < p.n_stop_ids; i++)
            if (p.stop_ids[i] >= begin && p.stop_ids[i] < end)
                to[p.stop_ids[i]] = -INFINITY;
    }
    __syncthreads();
    if (!mask)
        return;
    ban_masked(to, mask, begin, end);
    __syncthreads();
}

/* The next logits of all threads, four of each at STRIDE * i; past the end repeated ones. */
static __device__ __forceinline__ void load_ahead(float4 (&v)[AHEAD], const float *z, int first,
                                                  int end)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        v[i] = *(const float4 *)(z + min(first + i * STRIDE + (int)threadIdx.x * 4, end - 4));
}

static __device__ __forceinline__ float max_or_nan(float a, float b)
{
    float max;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(max) : "f"(a), "f"(b));
    return max;
}

static __device__ __forceinline__ void look_at(float &largest, float4 v)
{
    largest = max_or_nan(max_or_nan(max_or_nan(largest, fabsf(v.x)), fabsf(v.y)),
                         max_or_nan(fabsf(v.z), fabsf(v.w)));
}

static __device__ __forceinline__ float max_of(float4 v)
{
    return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
}

static __device__ __forceinline__ void find_max(struct found &s, float4 v, int id)
{
    const float max = max_of(v);

    if (max > s.max) {
        s.max = max;
        s.max_id = id + (v.x == max ? 0 : v.y == max ? 1 : v.z == max ? 2 : 3);
    }
}

/* Each thread has its own part's maximum. */
template <bool SUM>
static __device__ void check_raw(struct found &s, const float *z, int begin, int end)
{
    float largest = 0.0f;

    for (int first = begin; first < end; first += STRIDE * AHEAD) {
        float4 loaded[AHEAD];

        load_ahead(loaded, z, first, end);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int id = first + i * STRIDE + (int)threadIdx.x * 4;
            const float4 v = loaded[i];

            if (id >= end)
                continue;
            look_at(largest, v);
            find_max(s, v, id);
            if (SUM) {
                const float max = fmaxf(s.raw_max, max_of(v));

                s.raw_sum = s.raw_sum * __expf(s.raw_max - max) + __expf(v.x - max) +
                            __expf(v.y - max) + __expf(v.z - max) + __expf(v.w - max);
                s.raw_max = max;
            }
        }
    }
    s.broken = !(largest <= FLT_MAX);
}

/* Draws for four ids of each lane that wants it; then every lane has the warp's best. Rare, so it
 * is kept out of the short loop that does without. */
static __device__ __noinline__ struct draw
draw_four(struct draw best, float4 v, struct philox4 words, int id, float scale, bool wanted)
{
    const float each[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
    for (int i = 0; i < 4; i++)
        if (wanted)
            draw_try(best, each[i], words.v[i], id + i, scale);
    warp_best(best, scale);
    return best;
}

/* Draws for every id of the part, and with CHECK looks for NaN and Inf on the way. After a first
 * round all threads share the best, later each warp does. Few ids need a logarithm: the largest of
 * four logits would have to win with the largest of their draws. Where even the largest noise
 * cannot win, no random numbers are made. */
template <bool CHECK>
static __device__ void draw_part(struct found &s, const float *z, const struct sampler_state &p,
                                 uint32_t counter, int begin, int end)
{
    __shared__ struct draw warps[WARPS];
    const uint64_t seed = (uint64_t)p.seed_high << 32 | p.seed_low;
    const float scale = scale_of(p);
    struct draw best = no_draw();
    float largest = 0.0f;

    for (int first = begin; first < end; first += STRIDE * AHEAD) {
        float4 loaded[AHEAD];

        load_ahead(loaded, z, first, end);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int id = first + i * STRIDE + (int)threadIdx.x * 4;
            const float4 v = loaded[i];
            const float max = id < end ? max_of(v) : -INFINITY;
            const bool can_win = (max - best.z) * scale - best.g >= -GUMBEL_MAX;

            if (CHECK)
                look_at(largest, v);
            if (__any_sync(ALL_LANES, can_win)) {
                const struct philox4 words = philox_quad(seed, counter, (uint32_t)id / 4);
                const uint32_t least =
                    min(min(words.v[0], words.v[1]), min(words.v[2], words.v[3]));
                const bool may = can_win && philox_w(least) <= winning_w(max, best, scale);

                if (__any_sync(ALL_LANES, may))
                    best = draw_four(best, v, words, id, scale, may);
            }
            if (i == 0 && first == begin)
                block_best(best, scale, warps);
        }
    }
    block_best(best, scale, warps);
    s.best = best;
    if (CHECK)
        s.broken = !(largest <= FLT_MAX);
}

/* Lists the ids of the part that may be among the k best of the row: none below the k-th largest of
 * the threads' maxima is. They are a few more than k; where they are far more, as with equal
 * logits, nothing is listed. */
static __device__ void list_ids(struct scan *to, const struct found &s, const float *z, int k,
                                int begin, int end)
{
    __shared__ float maxima[THREADS];
    __shared__ float floor;
    __shared__ int32_t n;
    const int me = (int)threadIdx.x;
    float warp_max = s.max;
    int n_before = 0;

    maxima[me] = s.max;
    if (me == 0)
        n = 0;
    for (int i = WARP / 2; i > 0; i /= 2)
        warp_max = fmaxf(warp_max, __shfl_xor_sync(ALL_LANES, warp_max, i));
    if (me % WARP == 0)
        to->warp_max[me / WARP] = warp_max;
    __syncthreads();
    for (int i = 0; i < THREADS; i++)
        n_before += maxima[i] > s.max || (maxima[i] == s.max && i < me);
    if (n_before == k - 1)
        floor = s.max;
    __syncthreads();
#pragma unroll 2
    for (int id = begin + me * 4; id < end; id += STRIDE) {
        const float4 v = *(const float4 *)(z + id);
        const float each[4] = {v.x, v.y, v.z, v.w};

        if (max_of(v) < floor)
            continue;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (each[j] >= floor && each[j] > -INFINITY) {
                const int32_t at = atomicAdd(&n, 1);

                if (at < LISTED)
                    to->listed[at] = key_of(each[j], id + j);
            }
    }
    __syncthreads();
    if (me == 0)
        to->n_listed = n <= LISTED ? n : -1;
}

/* Thread 0 has the whole block's. */
static __device__ void reduce_found(struct found &s)
{
    __shared__ uint64_t keys[WARPS];
    __shared__ float maxima[WARPS], sums[WARPS];
    uint64_t key = key_of(s.max, s.max_id);
    const int warp = (int)threadIdx.x / WARP;

    s.broken = __syncthreads_or(s.broken);
    for (int i = WARP / 2; i > 0; i /= 2) {
        const uint64_t other = __shfl_xor_sync(ALL_LANES, key, i);

        add_sums(s.raw_max, s.raw_sum, __shfl_xor_sync(ALL_LANES, s.raw_max, i),
                 __shfl_xor_sync(ALL_LANES, s.raw_sum, i));
        key = other > key ? other : key;
    }
    if (threadIdx.x % WARP == 0) {
        keys[warp] = key;
        maxima[warp] = s.raw_max;
        sums[warp] = s.raw_sum;
    }
    __syncthreads();
    for (int i = 1; i < WARPS && threadIdx.x == 0; i++) {
        key = keys[i] > key ? keys[i] : key;
        add_sums(s.raw_max, s.raw_sum, maxima[i], sums[i]);
    }
    s.max = z_of(key);
    s.max_id = id_of(key);
}

static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sample_scan_kernel(const __grid_constant__ struct sampler_memory m,
                       const struct sampler_row *rows, const struct step_counts *counts)
{
    const int n_ids = min(m.ids_per_rank, m.vocab_size - first_id(m));
    const int i = (int)blockIdx.y, length = part_length(n_ids, (int)gridDim.x);
    const int begin = first_id(m) + (int)blockIdx.x * length;
    const int end = min(begin + length, first_id(m) + n_ids);
    const struct sampler_row row = row_at(rows, i);
    const int n_rows = __ldcg(&counts->n_rows);

    chain_wait();
    if (i >= n_rows)
        return;
    const struct sampler_state &p = m.states[row.state];
    const bool adjusted = is_adjusted(p, row), drawn = p.temperature > 0.0f && !is_filtered(p);
    const float *z = by_id(m.logits[m.me], m, i);
    struct scan *to =
        (struct scan *)m.scans + (((int64_t)i * m.n_ranks + m.me) * gridDim.x + blockIdx.x);
    struct found s = {-FLT_MAX, 0.0f, -INFINITY, INT32_MAX, no_draw(), 0};

    if (drawn && !adjusted && p.n_logprobs < 0) {
        draw_part<true>(s, z, p, row.counter, begin, end);
    } else {
        if (p.n_logprobs >= 0)
            check_raw<true>(s, z, begin, end);
        else
            check_raw<false>(s, z, begin, end);
        if (adjusted) {
            float *own = by_id(m.adjusted[m.me], m, i);

            adjust(m, row, p, mask_of(row, m), own, z, begin, end);
            z = own;
            s.max = -INFINITY;
            s.max_id = INT32_MAX;
            for (int id = begin + (int)threadIdx.x * 4; id < end && !drawn; id += STRIDE)
                find_max(s, *(const float4 *)(z + id), id);
        }
        if (drawn)
            draw_part<false>(s, z, p, row.counter, begin, end);
        else if (is_listed(p))
            list_ids(to, s, z, p.top_k, begin, end);
    }
    reduce_found(s);
    if (threadIdx.x == 0)
        to->found = s;
}

int sample_scan_parts(const struct launch *l, const struct sampler_memory *m, int n_rows)
{
    const int parts = l->n_sms * BLOCKS_PER_SM / n_rows, most = SAMPLER_MAX_SPLITS / m->n_ranks;

    if (m->invariant) /* the log-sum of a row depends on them in its last bits */
        return INVARIANT_PARTS / m->n_ranks;
    return parts < 1 ? 1 : parts > most ? most : parts;
}

extern "C" cudaError_t sampler_scan(const struct launch *l, const struct sampler_memory *m,
                                    const struct step_view *v, int n_rows)
{
    const dim3 grid((unsigned)sample_scan_parts(l, m, n_rows), (unsigned)n_rows);

    return launch_kernel(known<sample_scan_kernel>(), grid, THREADS, 0, l, *m, v->rows, v->counts);
}

extern "C" size_t sampler_scan_bytes_of(const struct launch *l, const struct sampler_memory *m,
                                        int n_rows)
{
    return (size_t)(n_rows * sample_scan_parts(l, m, n_rows) * m->n_ranks) * sizeof(struct scan);
}

/* The more rows, the fewer parts of each: the most rows do not take the most room. */
extern "C" size_t sampler_scan_bytes(const struct launch *l, const struct sampler_memory *m)
{
    size_t most = 0;

    for (int n = 1; n <= m->max_seqs; n++) {
        const size_t bytes = sampler_scan_bytes_of(l, m, n);

        most = bytes > most ? bytes : most;
    }
    return most;
}

static __global__ void update_kernel(const struct sampler_memory m, const struct sampler_set *sets,
                                     const struct logit_bias *bias)
{
    const struct sampler_set &set = sets[blockIdx.x];

    for (int i = (int)threadIdx.x; i < set.to.n_bias; i += (int)blockDim.x)
        m.bias[(int64_t)set.state * SAMPLING_MAX_BIAS + i] = bias[set.bias_first + i];
    if (threadIdx.x == 0)
        m.states[set.state] = set.to;
}

extern "C" cudaError_t sampler_update(const struct launch *l, const struct sampler_memory *m,
                                      const struct step_view *v, int n_updates)
{
    const struct launch alone = {l->stream, false, l->n_sms, l->max_shared};

    return launch_kernel(known<update_kernel>(), dim3((unsigned)n_updates), 128, 0, &alone, *m,
                         v->sets, v->bias);
}

/* One token a thread; counts of two ids share a word. seen: of n_ids ids from first_id on. */
static __global__ void history_kernel(uint16_t *seen, const int32_t *tokens, int n_prompt,
                                      int n_tokens, int first_id, int n_ids)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i >= n_tokens || tokens[i] < first_id || tokens[i] >= first_id + n_ids)
        return;
    const int at = tokens[i] - first_id, shift = at % 2 * 16;
    uint32_t *word = (uint32_t *)seen + at / 2;
    if (i < n_prompt) {
        atomicOr(word, (uint32_t)SEEN_PROMPT << shift);
        return;
    }
    for (uint32_t old = *word, was; (old >> shift & SEEN_MAX) < SEEN_MAX; old = was) {
        was = atomicCAS(word, old, old + (1u << shift));
        if (was == old)
            return;
    }
}

extern "C" cudaError_t sampler_history(const struct launch *l, const struct sampler_memory *m,
                                       int state, const int32_t *tokens, int n_prompt, int n_tokens)
{
    const struct launch alone = {l->stream, false, l->n_sms, l->max_shared};
    uint16_t *seen = m->seen[m->me] + (int64_t)state * m->logits_stride;
    cudaError_t r = cudaMemsetAsync(seen, 0, (size_t)m->logits_stride * sizeof(*seen), l->stream);

    if (r != cudaSuccess || n_tokens == 0)
        return r;
    return launch_kernel(known<history_kernel>(), dim3((unsigned)((n_tokens + 255) / 256)), 256, 0,
                         &alone, seen, tokens, n_prompt, n_tokens, m->me * m->ids_per_rank,
                         m->ids_per_rank);
}
