/* sample_scan.cu - the sampler's passes over whole rows, each row split over several blocks: are
 * there NaN or Inf, the log-sum of the raw row, penalties and bias; then draws for every id where
 * nothing is filtered. Also how states are loaded.
 *
 * Bound by memory: 4 * n_rows * vocab_size bytes; by the draws' integer arithmetic where every id
 * is drawn for. */
#include "cuda/kernels/sampler.cuh"

static constexpr int THREADS = 256;
static constexpr int WARPS = THREADS / WARP;
static constexpr int BLOCKS_PER_SM = 4; /* over all rows */
static constexpr int AHEAD = 4;         /* loads in flight a thread: enough to read at full speed */
static constexpr int INVARIANT_PARTS = 32;
static_assert(INVARIANT_PARTS <= SAMPLER_MAX_SPLITS, "there is room for them");

/* Four ids at a time; all parts but the last are of equal length. */
static __device__ int part_length(int vocab_size, int n_parts)
{
    return ((vocab_size + n_parts - 1) / n_parts + 3) / 4 * 4;
}

/* The part of the row that is drawn from, where that is not the raw one. */
static __device__ void adjust(const struct sampler_memory &m, const struct sampler_row &row,
                              const struct sampler_state &p, float *to, const float *from,
                              int begin, int end)
{
    const struct logit_bias *bias = m.bias + (int64_t)row.state * SAMPLING_MAX_BIAS;
    const uint16_t *seen = m.seen + (int64_t)row.state * m.logits_stride;

    for (int id = begin + (int)threadIdx.x; id < end; id += THREADS)
        to[id] = p.history ? penalized(from[id], seen[id], p) : from[id];
    __syncthreads();
    if (threadIdx.x == 0) { /* in order: an id may be named more than once */
        for (int i = 0; i < p.n_bias; i++)
            if (bias[i].id >= begin && bias[i].id < end)
                to[bias[i].id] = bounded(to[bias[i].id] + bias[i].bias);
        for (int i = 0; row.ban_stops && i < p.n_stop_ids; i++)
            if (p.stop_ids[i] >= begin && p.stop_ids[i] < end)
                to[p.stop_ids[i]] = -INFINITY;
    }
    __syncthreads();
}

/* Four logits at id; past the end -inf. */
static __device__ __forceinline__ float4 four(float4 v, int id, int end)
{
    if (id + 3 >= end) {
        v.y = id + 1 < end ? v.y : -INFINITY;
        v.z = id + 2 < end ? v.z : -INFINITY;
        v.w = id + 3 < end ? v.w : -INFINITY;
    }
    return v;
}

static __device__ void check_raw(struct scan &s, const float *z, bool sum, int begin, int end)
{
    for (int first = begin + (int)threadIdx.x * 4; first < end; first += THREADS * 4 * AHEAD) {
        float4 loaded[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            loaded[i] = *(const float4 *)(z + min(first + i * THREADS * 4, end - 1) / 4 * 4);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int id = first + i * THREADS * 4;
            const float each[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};

#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (id + j >= end)
                    continue;
                s.broken |= !(fabsf(each[j]) <= FLT_MAX);
                if (each[j] > s.max) {
                    s.max = each[j];
                    s.max_id = id + j;
                }
                const float max = fmaxf(s.raw_max, each[j]);
                if (sum)
                    s.raw_sum = s.raw_sum * __expf(s.raw_max - max) + __expf(each[j] - max);
                s.raw_max = max;
            }
        }
    }
}

static __device__ void find_max(struct scan &s, const float *z, int begin, int end)
{
    for (int id = begin + (int)threadIdx.x; id < end; id += THREADS)
        if (z[id] > s.max) {
            s.max = z[id];
            s.max_id = id;
        }
}

/* Thread 0 has the whole block's. */
static __device__ void reduce_scan(struct scan &s)
{
    __shared__ float bests[WARPS];
    __shared__ int32_t ids[WARPS];
    __shared__ struct scan warps[WARPS];

    for (int i = WARP / 2; i > 0; i /= 2) {
        add_sums(s.raw_max, s.raw_sum, __shfl_xor_sync(ALL_LANES, s.raw_max, i),
                 __shfl_xor_sync(ALL_LANES, s.raw_sum, i));
        s.broken |= __shfl_xor_sync(ALL_LANES, s.broken, i);
    }
    block_best(s.max, s.max_id, bests, ids);
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = s;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < WARPS; i++) {
            add_sums(s.raw_max, s.raw_sum, warps[i].raw_max, warps[i].raw_sum);
            s.broken |= warps[i].broken;
        }
}

static __global__ void __launch_bounds__(THREADS)
    sample_scan_kernel(const struct sampler_memory m, const struct sampler_row *rows,
                       const struct step_counts *counts)
{
    chain_wait();
    const int i = (int)blockIdx.y, length = part_length(m.vocab_size, (int)gridDim.x);
    const int begin = (int)blockIdx.x * length, end = min(begin + length, m.vocab_size);

    if (i >= __ldcg(&counts->n_rows))
        return;
    const struct sampler_row row = rows[i];
    const struct sampler_state &p = m.states[row.state];
    const float *z = m.logits + (int64_t)i * m.logits_stride;
    struct scan s = {-FLT_MAX, 0.0f, -INFINITY, INT32_MAX, -INFINITY, INT32_MAX, 0};

    check_raw(s, z, p.n_logprobs >= 0, begin, end);
    if (is_adjusted(p, row)) {
        float *to = m.adjusted + (int64_t)i * m.logits_stride;

        adjust(m, row, p, to, z, begin, end);
        s.max = -INFINITY;
        s.max_id = INT32_MAX;
        find_max(s, to, begin, end);
    }
    reduce_scan(s);
    if (threadIdx.x == 0)
        ((struct scan *)m.scans)[(int64_t)i * SAMPLER_MAX_SPLITS + blockIdx.x] = s;
}

/* Draws for every id of a row that nothing filters. x is (z - max) * scale, as the CPU has it, so
 * that a score does not depend on how the row is cut. */
static __global__ void __launch_bounds__(THREADS)
    sample_draw_kernel(const struct sampler_memory m, const struct sampler_row *rows,
                       const struct step_counts *counts)
{
    __shared__ float scores[WARPS];
    __shared__ int32_t ids[WARPS];

    chain_wait();
    const int i = (int)blockIdx.y, length = part_length(m.vocab_size, (int)gridDim.x);
    const int begin = (int)blockIdx.x * length, end = min(begin + length, m.vocab_size);

    if (i >= __ldcg(&counts->n_rows))
        return;
    const struct sampler_row row = rows[i];
    const struct sampler_state &p = m.states[row.state];
    struct scan *parts = (struct scan *)m.scans + (int64_t)i * SAMPLER_MAX_SPLITS;
    const float *z = (is_adjusted(p, row) ? m.adjusted : m.logits) + (int64_t)i * m.logits_stride;
    const uint64_t seed = (uint64_t)p.seed_high << 32 | p.seed_low;
    float best = -INFINITY;
    int32_t best_id = INT32_MAX;

    if (p.temperature == 0.0f || is_filtered(p))
        return;
    const float max = row_max(parts, (int)gridDim.x), scale = scale_of(p);
    auto draw = [&](float4 loaded, int id) {
        const float4 v = four(loaded, id, end);
        const float each[4] = {v.x, v.y, v.z, v.w};
        const struct philox4 words = philox_quad(seed, row.counter, (uint32_t)id / 4);

#pragma unroll
        for (int j = 0; j < 4; j++)
            if (each[j] > -INFINITY)
                draw_try(best, best_id, (each[j] - max) * scale, words.v[j], id + j);
    };
    /* The best of a first round is all threads' from then on: few others need a logarithm. */
    int id = begin + (int)threadIdx.x * 4;
    if (id < end)
        draw(*(const float4 *)(z + id), id);
    block_best(best, best_id, scores, ids);
    if (threadIdx.x == 0) {
        scores[0] = best;
        ids[0] = best_id;
    }
    __syncthreads();
    best = scores[0];
    best_id = ids[0];
    for (id += THREADS * 4; id < end; id += THREADS * 4 * AHEAD) {
        float4 loaded[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            loaded[i] = *(const float4 *)(z + min(id + i * THREADS * 4, end - 1) / 4 * 4);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (id + i * THREADS * 4 < end)
                draw(loaded[i], id + i * THREADS * 4);
    }
    block_best(best, best_id, scores, ids);
    if (threadIdx.x == 0) {
        parts[blockIdx.x].best = best;
        parts[blockIdx.x].best_id = best_id;
    }
}

int sample_scan_parts(const struct launch *l, const struct sampler_memory *m, int n_rows)
{
    const int parts = l->n_sms * BLOCKS_PER_SM / n_rows;

    if (m->invariant) /* the log-sum of a row depends on them in its last bits */
        return INVARIANT_PARTS;
    return parts < 1 ? 1 : parts > SAMPLER_MAX_SPLITS ? SAMPLER_MAX_SPLITS : parts;
}

cudaError_t sample_scan(const struct launch *l, const struct sampler_memory *m,
                        const struct step_view *v, int n_rows)
{
    const dim3 grid((unsigned)sample_scan_parts(l, m, n_rows), (unsigned)n_rows);

    const cudaError_t r =
        launch_kernel(sample_scan_kernel, grid, THREADS, 0, l, *m, v->rows, v->counts);

    if (r != cudaSuccess)
        return r;
    return launch_kernel(sample_draw_kernel, grid, THREADS, 0, l, *m, v->rows, v->counts);
}

extern "C" size_t sampler_scan_bytes(void)
{
    return sizeof(struct scan);
}

static __global__ void load_kernel(const struct sampler_memory m, const struct sampler_load *loads,
                                   const struct logit_bias *bias)
{
    const struct sampler_load &load = loads[blockIdx.x];

    for (int i = (int)threadIdx.x; i < load.to.n_bias; i += (int)blockDim.x)
        m.bias[(int64_t)load.state * SAMPLING_MAX_BIAS + i] = bias[load.bias_first + i];
    if (threadIdx.x == 0)
        m.states[load.state] = load.to;
}

extern "C" cudaError_t sampler_load(const struct launch *l, const struct sampler_memory *m,
                                    const struct step_view *v, int n_loads)
{
    load_kernel<<<(unsigned)n_loads, 128, 0, l->stream>>>(*m, v->loads, v->bias);
    return cudaGetLastError();
}

/* One token a thread; counts of two ids share a word. */
static __global__ void history_kernel(uint16_t *seen, const int32_t *tokens, int n_prompt,
                                      int n_tokens)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i >= n_tokens)
        return;
    uint32_t *word = (uint32_t *)seen + tokens[i] / 2;
    const int shift = tokens[i] % 2 * 16;
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
    uint16_t *seen = m->seen + (int64_t)state * m->logits_stride;
    cudaError_t r = cudaMemsetAsync(seen, 0, (size_t)m->logits_stride * sizeof(*seen), l->stream);

    if (r != cudaSuccess || n_tokens == 0)
        return r;
    history_kernel<<<(unsigned)((n_tokens + 255) / 256), 256, 0, l->stream>>>(seen, tokens,
                                                                              n_prompt, n_tokens);
    return cudaGetLastError();
}
