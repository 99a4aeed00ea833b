/* attn_decode.cu - attention of one query row per sequence over its paged keys, split over the
 * machine by a plan made on the host (attn_item), with what comes before it: norm and rotation of
 * the row's heads, and storing its key and value in the pool; attn_decode_sm90.cu does it for
 * keys of bf16 on compute capability 9.0.
 *
 * Bound by memory: 4 * kv_len * n_kv_heads * head_dim bytes per sequence, or of E4M3 half as many.
 * A warp loads keys and values to registers, 16 bytes at a time but for values of E4M3 with heads
 * of 64. While they come, other warps multiply; where blocks are few, so does the warp itself.
 *
 * Keys of earlier steps are loaded before the kernel waits for the one before it: between two steps
 * lies a copy that waits for all of the first and that all of the second waits for. */
#include "cuda/kernels/attn_decode.cuh"

template <int HEAD_DIM, bool FP8> static __device__ __forceinline__ int k_vector(int j, int quarter)
{
    return plain_k_vector<FP8>(j, quarter);
}

template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void load(struct keys<HEAD_DIM, FP8> &to, struct kv_row from,
                                            int64_t v_offset, int lane)
{
    const struct kv_row values = values_of(from, v_offset);
    auto at = [](const struct kv_row &first, int row, int vector) {
        return (const kv_vector<FP8> *)first.data + row * HEAD_DIM / 8 + vector;
    };

    load_keys<HEAD_DIM, FP8>(
        to, [&](int key, int vector) { return at(from, key, vector); },
        [&](int key, int vector) { return at(values, key, vector); }, from.exponent,
        values.exponent, lane, [](const auto *p) { return __ldcs(p); });
}

/* Blocks per multiprocessor, by how many units a warp has in registers: one where blocks fill the
 * machine (three blocks are 12 warps with 8 KiB each in flight), more where they are few. */
static constexpr int resident(int ahead)
{
    return ahead == 1 ? ATTN_BLOCKS_PER_SM : 2;
}

/* AHEAD changes no bit. */
template <int HEAD_DIM, int AHEAD, bool DRAFTS, bool FP8>
static __global__ void __launch_bounds__(WARPS *WARP, resident(AHEAD))
    attn_decode_kernel(const struct decode_args d)
{
    const int lane = (int)threadIdx.x % WARP, kv_head = heads_of(d).kv;
    int i = (int)blockIdx.y;
    struct attn_item item = read_item(d, i);
    const int n_items = __ldcg(&d.counts->n_items);

    if (i >= n_items)
        return;
    for (;;) {
        const int n_old = item.end - has_newest<DRAFTS>(item); /* where those in the pool end */
        struct keys<HEAD_DIM, FP8> x[AHEAD];
        auto place = [&](int key) {
            return place_of<HEAD_DIM, FP8>(d, item, kv_head, min(key, item.end - 1));
        };
        auto load_first = [&](int key) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (key + j * STRIDE < n_old)
                    load(x[j], place(key + j * STRIDE), d.kv.v_offset, lane);
        };
        auto make = [&](struct row<HEAD_DIM, FP8> &row, enum row_part part) {
            struct raw_row<HEAD_DIM> raw;

            load_row<HEAD_DIM, DRAFTS>(raw, d, item, part);
            make_row<HEAD_DIM, FP8>(row, raw, d, item, part);
        };
        auto with_each = [&](int &key, int end, auto attend) {
            while (key < end) {
#pragma unroll
                for (int j = 0; j < AHEAD; j++, key += STRIDE) {
                    const int later = key + AHEAD * STRIDE;
                    const struct kv_row from = place(later); /* known when these are done */

                    if (j > 0 && key >= end)
                        break;
                    attend(x[j], key);
                    if (later < n_old)
                        load(x[j], from, d.kv.v_offset, lane);
                }
            }
            if (AHEAD > 1 && end < item.end)
                load_first(key); /* those in flight may lie elsewhere in x */
        };

        load_first(item.begin + (int)threadIdx.x / WARP * KEYS);
        chain_wait();
        run_item<HEAD_DIM, DRAFTS, FP8>(d, item, make, with_each, [] {});
        i += (int)gridDim.y;
        if (i >= n_items)
            return;
        item = read_item(d, i);
    }
}

template <int HEAD_DIM, bool FP8> static auto kernel_of(bool few, bool drafts)
{
    if (drafts)
        return few ? known<attn_decode_kernel<HEAD_DIM, 2, true, FP8>>()
                   : known<attn_decode_kernel<HEAD_DIM, 1, true, FP8>>();
    return few ? known<attn_decode_kernel<HEAD_DIM, 2, false, FP8>>()
               : known<attn_decode_kernel<HEAD_DIM, 1, false, FP8>>();
}

extern "C" cudaError_t attn_decode(const struct launch *l, const struct attn *a,
                                   const struct rope *r, const struct step_view *v, float *partial,
                                   int32_t *counters, int n_blocks)
{
    const struct decode_args d = decode_args_of(a, r, v, partial, counters);
    const dim3 grid((unsigned)(a->kv->n_kv_heads * d.n_groups), (unsigned)n_blocks);
    const bool few = (int64_t)grid.x * grid.y <= (int64_t)resident(2) * l->n_sms;
    const auto kernel = a->kv->head_dim == 128
                            ? (a->kv->fp8 ? kernel_of<128, true>(few, a->drafts)
                                          : kernel_of<128, false>(few, a->drafts))
                            : (a->kv->fp8 ? kernel_of<64, true>(few, a->drafts)
                                          : kernel_of<64, false>(few, a->drafts));

    if (!r->q_norm != !r->k_norm)
        return cudaErrorInvalidValue;
    return launch_kernel(kernel, grid, WARPS * WARP, 0, l, d);
}
