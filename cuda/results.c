/* results.c - see results.h. */
#include "cuda/results.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"

enum {
    POLLS = 2000, /* of an event before the thread sleeps for it: a few hundred microseconds */
};

static int slot_init(struct result_slot *s, size_t n, struct err *e)
{
    const size_t tops = n * SAMPLING_MAX_LOGPROBS;
    const size_t bytes = (n + tops) * (sizeof(int32_t) + sizeof(float));
    int32_t *base;
    int r =
        cuda_check(cudaHostAlloc((void **)&base, bytes, cudaHostAllocMapped), "pinning memory", e);

    if (r < 0)
        return r;
    memset(base, 0, bytes);
    s->ids = base;
    s->logprobs = (float *)(base + n);
    s->top_ids = base + 2 * n;
    s->top_logprobs = (float *)(base + 2 * n + tops);
    return cuda_check(cudaEventCreateWithFlags(&s->done,
                                               cudaEventDisableTiming | cudaEventBlockingSync),
                      "making an event", e);
}

int results_init(struct results *r, int max_rows, struct err *e)
{
    const size_t n = (size_t)max_rows;

    memset(r, 0, sizeof(*r));
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++) {
        const int code = slot_init(&r->slots[i], n, e);

        if (code < 0)
            return code;
    }
    r->last.ids = calloc(n, sizeof(int32_t));
    r->last.logprobs = calloc(n, sizeof(float));
    r->last.top_ids = calloc(n * SAMPLING_MAX_LOGPROBS, sizeof(int32_t));
    r->last.top_logprobs = calloc(n * SAMPLING_MAX_LOGPROBS, sizeof(float));
    if (!r->last.ids || !r->last.logprobs || !r->last.top_ids || !r->last.top_logprobs)
        return err_set(e, -ENOMEM, "out of memory");
    return 0;
}

void results_deinit(struct results *r)
{
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++) {
        if (r->slots[i].ids)
            (void)cudaFreeHost(r->slots[i].ids);
        if (r->slots[i].done)
            (void)cudaEventDestroy(r->slots[i].done);
    }
    free(r->last.ids);
    free(r->last.logprobs);
    free(r->last.top_ids);
    free(r->last.top_logprobs);
    memset(r, 0, sizeof(*r));
}

int results_wait(struct results *r, int slot, struct step_result *out, struct err *e)
{
    struct result_slot *s = &r->slots[slot], *to = &r->last;
    const size_t n = (size_t)s->n_rows, tops = n * SAMPLING_MAX_LOGPROBS;
    cudaError_t code = cudaErrorNotReady;
    int failed;

    for (int i = 0; i < POLLS && code == cudaErrorNotReady; i++)
        code = cudaEventQuery(s->done);
    if (code == cudaErrorNotReady)
        code = cudaEventSynchronize(s->done);
    failed = cuda_check(code, "a step", e);
    if (failed < 0)
        return failed;
    memcpy(to->ids, s->ids, n * sizeof(*to->ids));
    memcpy(to->logprobs, s->logprobs, n * sizeof(*to->logprobs));
    if (s->wants_top) {
        memcpy(to->top_ids, s->top_ids, tops * sizeof(*to->top_ids));
        memcpy(to->top_logprobs, s->top_logprobs, tops * sizeof(*to->top_logprobs));
    }
    *out = (struct step_result){.step = s->step,
                                .n_rows = s->n_rows,
                                .ids = to->ids,
                                .logprobs = to->logprobs,
                                .top_ids = to->top_ids,
                                .top_logprobs = to->top_logprobs};
    return 0;
}
