/* sequence.c - see sequence.h. */
#include "engine/core/sequence.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"

void sequence_copy_tokens(const struct sequence *s, int32_t from, int32_t n, int32_t *out)
{
    int32_t n_prompt = s->request->n_prompt;
    int32_t of_prompt = from < n_prompt ? n_prompt - from : 0;

    if (of_prompt > n)
        of_prompt = n;
    if (of_prompt > 0)
        memcpy(out, s->request->prompt + from, (size_t)of_prompt * sizeof(*out));
    if (n > of_prompt)
        memcpy(out + of_prompt, s->generated + (from + of_prompt - n_prompt),
               (size_t)(n - of_prompt) * sizeof(*out));
}

const int32_t *sequence_tokens(const struct sequence *s, int32_t from, int32_t n, int32_t *scratch)
{
    int32_t n_prompt = s->request->n_prompt;

    if (from + n <= n_prompt)
        return s->request->prompt + from;
    if (from >= n_prompt)
        return s->generated + (from - n_prompt);
    sequence_copy_tokens(s, from, n, scratch);
    return scratch;
}

static void *copy_of(const void *src, size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (p && n)
        memcpy(p, src, n * size);
    return p;
}

static void choice_init(struct request *q, int32_t i, const struct sampling *sampling,
                        uint64_t order)
{
    struct sequence *s = &q->choices[i];

    s->request = q;
    s->choice = i;
    s->order = order;
    s->slot = -1;
    s->generated = q->generated + (size_t)i * (size_t)q->max_tokens;
    list_init(&s->link);
    list_init(&s->waiters);
    s->sampling = *sampling;
    s->sampling.seed += (uint64_t)i;
    s->sampling.bias = q->bias;
    s->sampling.stop_ids = q->stop_ids;
}

struct request *request_new(const struct core_request *r, uint64_t order, uint64_t now_us)
{
    struct request *q;
    size_t bytes, n_generated;

    if (!size_mul(&bytes, (size_t)r->n, sizeof(struct sequence)) ||
        !size_add(&bytes, bytes, sizeof(*q)) ||
        !size_mul(&n_generated, (size_t)r->n, (size_t)r->max_tokens))
        return NULL;
    q = calloc(1, bytes);
    if (!q)
        return NULL;
    q->id = r->id;
    q->client_id = r->client;
    list_init(&q->in_core);
    q->deadline_us = r->deadline_us;
    q->priority = r->priority;
    q->n_prompt = r->n_prompt;
    q->max_tokens = r->max_tokens;
    q->drafts = r->drafts;
    q->masks = r->masks;
    q->n = q->n_alive = r->n;
    q->usage.prompt_tokens = r->n_prompt;
    q->usage.arrival_us = now_us;
    q->prompt = copy_of(r->prompt, (size_t)r->n_prompt, sizeof(*r->prompt));
    /* Whole now, so that no commit has to grow it; not cleared: pages are touched by tokens. */
    q->generated = reallocarray(NULL, n_generated, sizeof(*q->generated));
    q->bias = copy_of(r->sampling->bias, (size_t)r->sampling->n_bias, sizeof(*q->bias));
    q->stop_ids =
        copy_of(r->sampling->stop_ids, (size_t)r->sampling->n_stop_ids, sizeof(*q->stop_ids));
    if (!q->prompt || !q->generated || !q->bias || !q->stop_ids) {
        request_free(q);
        return NULL;
    }
    for (int32_t i = 0; i < r->n; i++)
        choice_init(q, i, r->sampling, order + (uint64_t)i);
    return q;
}

void request_free(struct request *q)
{
    if (!q)
        return;
    free(q->prompt);
    free(q->generated);
    free(q->bias);
    free(q->stop_ids);
    free(q);
}
