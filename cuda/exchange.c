/* exchange.c - see exchange.h. */
#include "cuda/exchange.h"

#include "cuda/device.h"

int exchange_sum(const struct exchange *x, const struct launch *l, void *data, size_t n, bool bf16,
                 struct err *e)
{
    return nccl_check(x->nccl,
                      x->nccl->all_reduce(data, data, n, bf16 ? NCCL_BF16 : NCCL_FLOAT32, NCCL_SUM,
                                          x->comm, l->stream),
                      "adding parts", e);
}

/* Each rank's records have places of their own in `scans`, which are zero on the others: so their
 * sum as whole numbers is all of them. */
static int gather_found(const struct exchange *x, const struct launch *l,
                        const struct sampler_memory *m, int n_rows, struct err *e)
{
    const size_t n = sampler_scan_bytes_of(l, m, n_rows) / sizeof(uint32_t);

    return nccl_check(x->nccl,
                      x->nccl->reduce(m->scans, m->scans, n, NCCL_UINT32, NCCL_SUM, 0, x->comm,
                                      l->stream),
                      "gathering what was found", e);
}

/* Of one array of logits, inside a group. */
static int collect_rows(const struct exchange *x, const struct launch *l,
                        const struct sampler_memory *m, const float *const rows[], size_t n)
{
    int code = 0;

    if (m->me > 0)
        return x->nccl->send(rows[m->me], n, NCCL_FLOAT32, 0, x->comm, l->stream);
    for (int i = 1; i < m->n_ranks && code == 0; i++)
        code =
            x->nccl->receive((float *)(uintptr_t)rows[i], n, NCCL_FLOAT32, i, x->comm, l->stream);
    return code;
}

static int gather_logits(const struct exchange *x, const struct launch *l,
                         const struct sampler_memory *m, int n_rows, struct err *e)
{
    const size_t n = (size_t)n_rows * (size_t)m->logits_stride;
    const float *adjusted[MAX_RANKS];
    int code = x->nccl->group_begin(), ended;

    for (int i = 0; i < m->n_ranks; i++)
        adjusted[i] = m->adjusted[i];
    if (code == 0)
        code = collect_rows(x, l, m, m->logits, n);
    if (code == 0)
        code = collect_rows(x, l, m, adjusted, n);
    ended = x->nccl->group_end();
    return nccl_check(x->nccl, code ? code : ended, "gathering logits", e);
}

static int give_sampled(const struct exchange *x, const struct launch *l,
                        const struct sampler_memory *m, int n_rows, struct err *e)
{
    int32_t *sampled = m->sampled[m->me];

    return nccl_check(x->nccl,
                      x->nccl->broadcast(sampled, sampled, (size_t)n_rows, NCCL_INT32, 0, x->comm,
                                         l->stream),
                      "giving what was sampled", e);
}

int exchange_sample(const struct exchange *x, const struct launch *l,
                    const struct sampler_memory *m, const struct step_view *v, int n_rows,
                    bool whole_rows, struct err *e)
{
    int r;

    if ((r = cuda_check(cudaMemsetAsync(m->scans, 0, sampler_scan_bytes_of(l, m, n_rows),
                                        l->stream),
                        "sampling", e)) < 0 ||
        (r = cuda_check(sampler_scan(l, m, v, n_rows), "sampling", e)) < 0 ||
        (r = gather_found(x, l, m, n_rows, e)) < 0 ||
        (whole_rows && (r = gather_logits(x, l, m, n_rows, e)) < 0) ||
        (m->me == 0 && (r = cuda_check(sampler_finish(l, m, v, n_rows), "sampling", e)) < 0) ||
        (r = give_sampled(x, l, m, n_rows, e)) < 0)
        return r;
    return m->me == 0 ? 0 : cuda_check(sampler_count(l, m, v, n_rows), "sampling", e);
}

/* Sizes that NCCL sends in different ways, and each function of steps. */
int exchange_warm_up(const struct exchange *x, int rank, int n_ranks, cudaStream_t stream,
                     struct err *e)
{
    static const size_t sizes[] = {1 << 10, 256 << 10, 16 << 20}; /* bytes */
    const struct nccl *nccl = x->nccl;
    const size_t most = sizes[2];
    void *memory = NULL;
    int r = cuda_check(cudaMalloc(&memory, most), "allocating memory", e), code = 0;

    if (r == 0)
        r = cuda_check(cudaMemsetAsync(memory, 0, most, stream), "clearing memory", e);
    for (int i = 0; i < 3 && r == 0 && code == 0; i++) {
        const size_t n = sizes[i] / sizeof(float);

        if ((code = nccl->all_reduce(memory, memory, n, NCCL_FLOAT32, NCCL_SUM, x->comm, stream)) ||
            (code = nccl->all_reduce(memory, memory, n, NCCL_BF16, NCCL_SUM, x->comm, stream)) ||
            (code = nccl->reduce(memory, memory, n, NCCL_UINT32, NCCL_SUM, 0, x->comm, stream)) ||
            (code = nccl->broadcast(memory, memory, n, NCCL_INT32, 0, x->comm, stream)))
            break;
    }
    if (r == 0 && code == 0)
        code = nccl->group_begin();
    for (int i = 1; i < n_ranks && r == 0 && code == 0; i++)
        if (rank == 0)
            code = nccl->receive(memory, most / sizeof(float), NCCL_FLOAT32, i, x->comm, stream);
        else if (rank == i)
            code = nccl->send(memory, most / sizeof(float), NCCL_FLOAT32, 0, x->comm, stream);
    if (r == 0)
        r = nccl_check(nccl, code ? code : nccl->group_end(), "connecting ranks", e);
    if (r == 0)
        r = cuda_check(cudaStreamSynchronize(stream), "connecting ranks", e);
    if (memory)
        (void)cudaFree(memory);
    return r;
}
