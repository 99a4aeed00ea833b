/* sequence.c - see sequence.h. */
#include "engine/core/sequence.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/min.h"

enum { FIRST_GENERATED = 64 };

bool sequence_append(struct sequence *s, int32_t id)
{
    if (s->n_generated == s->cap_generated) {
        const int32_t max = s->request->max_tokens;
        const int32_t cap = !s->cap_generated            ? FIRST_GENERATED
                            : s->cap_generated > max / 2 ? max
                                                         : s->cap_generated * 2;
        int32_t *bigger = reallocarray(s->generated, (size_t)cap, sizeof(*bigger));

        if (!bigger)
            return false;
        s->generated = bigger;
        s->cap_generated = cap;
    }
    s->generated[s->n_generated++] = id;
    return true;
}

void sequence_copy_tokens(const struct sequence *s, int32_t from, int32_t n, int32_t *out)
{
    int32_t n_prompt = s->request->n_prompt;
    int32_t of_prompt = from < n_prompt ? min_i32(n_prompt - from, n) : 0;

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

struct request *request_new(const struct core_request *r, uint64_t order, uint64_t now_us)
{
    struct request *q = calloc(1, sizeof(*q) + (size_t)r->n * sizeof(struct sequence));

    if (!q)
        return NULL;
    q->id = r->id;
    q->client_id = r->client;
    q->deadline_us = r->deadline_us;
    q->priority = r->priority;
    q->n_prompt = r->n_prompt;
    q->max_tokens = r->max_tokens;
    q->masks = r->masks;
    q->pooling = r->pooling;
    q->n = q->n_alive = r->n;
    q->usage.prompt_tokens = r->n_prompt;
    q->usage.arrival_us = r->arrival_us ? r->arrival_us : now_us;
    q->usage.queued_us = now_us;
    q->prompt = copy_of(r->prompt, (size_t)r->n_prompt, sizeof(*r->prompt));
    q->bias = copy_of(r->sampling->bias, (size_t)r->sampling->n_bias, sizeof(*q->bias));
    q->stop_ids =
        copy_of(r->sampling->stop_ids, (size_t)r->sampling->n_stop_ids, sizeof(*q->stop_ids));
    if (!q->prompt || !q->bias || !q->stop_ids) {
        request_free(q);
        return NULL;
    }
    for (int32_t i = 0; i < r->n; i++) {
        struct sequence *s = &q->choices[i];

        s->request = q;
        s->choice = i;
        s->order = order + (uint64_t)i;
        s->slot = -1;
        list_init(&s->in_plan);
        list_init(&s->waiters);
        s->sampling = *r->sampling;
        s->sampling.seed += (uint64_t)i;
        s->sampling.bias = q->bias;
        s->sampling.stop_ids = q->stop_ids;
    }
    return q;
}

void request_free(struct request *q)
{
    if (!q)
        return;
    free(q->prompt);
    for (int32_t i = 0; i < q->n; i++)
        free(q->choices[i].generated);
    free(q->bias);
    free(q->stop_ids);
    free(q);
}
