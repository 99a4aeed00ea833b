/* held.c - see held.h. */
#include "client/openai/held.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

/* Where copies are put, one behind the other; at NULL they are only counted. */
struct pile {
    char *at;
    size_t used;
};

/* Room for n bytes, aligned for any type. */
static void *put(struct pile *p, const void *data, size_t n)
{
    void *to = p->at ? p->at + p->used : NULL;

    if (to && n > 0)
        memcpy(to, data, n);
    p->used += (n + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
    return to;
}

static void put_text(struct pile *p, struct nvllm_text *text)
{
    text->data = put(p, text->data, text->len);
}

static void put_logprobs(struct pile *p, struct nvllm_delta *d)
{
    struct nvllm_logprobs *rows;

    if (!d->logprobs)
        return;
    rows = put(p, d->logprobs, d->n_tokens * sizeof(*rows));
    for (size_t i = 0; i < d->n_tokens; i++) {
        struct nvllm_logprobs row = d->logprobs[i];

        row.top_ids = put(p, row.top_ids, row.n_top * sizeof(*row.top_ids));
        row.top_logprobs = put(p, row.top_logprobs, row.n_top * sizeof(*row.top_logprobs));
        if (rows)
            rows[i] = row;
    }
    d->logprobs = rows;
}

static void put_calls(struct pile *p, struct nvllm_delta *d)
{
    struct nvllm_tool_call *calls = put(p, d->tool_calls, d->n_tool_calls * sizeof(*calls));

    for (size_t i = 0; i < d->n_tool_calls; i++) {
        struct nvllm_tool_call call = d->tool_calls[i];

        put_text(p, &call.name);
        put_text(p, &call.arguments);
        put_text(p, &call.id);
        if (calls)
            calls[i] = call;
    }
    d->tool_calls = calls;
}

/* Copies what a delta points to, and points it to the copies. */
static void put_all(struct pile *p, struct nvllm_delta *d)
{
    put_text(p, &d->text);
    put_text(p, &d->reasoning);
    d->token_ids = put(p, d->token_ids, d->n_tokens * sizeof(*d->token_ids));
    put_logprobs(p, d);
    put_calls(p, d);
}

bool held_add(struct held_list *list, const struct nvllm_delta *delta, uint32_t choice)
{
    struct nvllm_delta counted = *delta;
    struct pile pile = {0};
    struct held *h;

    put_all(&pile, &counted);
    h = malloc(sizeof(*h) + pile.used);
    if (!h)
        return false;
    pile = (struct pile){.at = h->memory};
    h->delta = *delta;
    h->delta.choice = choice;
    put_all(&pile, &h->delta);
    STAILQ_INSERT_TAIL(list, h, next);
    return true;
}

void held_drop_first(struct held_list *list)
{
    struct held *h = STAILQ_FIRST(list);

    STAILQ_REMOVE_HEAD(list, next);
    free(h);
}

void held_drop(struct held_list *list)
{
    while (!STAILQ_EMPTY(list))
        held_drop_first(list);
}

enum tokens_found held_tokens(struct tokens *tokens, const struct nvllm_delta *delta)
{
    bool failed = false, wait = false;
    struct nvllm_text bytes;

    for (size_t i = 0; delta->logprobs && i < delta->n_tokens; i++) {
        const struct nvllm_logprobs *row = &delta->logprobs[i];

        for (uint32_t k = 0; k <= row->n_top; k++) { /* and the token itself */
            int32_t id = k < row->n_top ? row->top_ids[k] : delta->token_ids[i];
            enum tokens_found found = tokens_find(tokens, id, &bytes);

            failed = failed || found == TOKENS_FAILED;
            wait = wait || found == TOKENS_WAIT;
        }
    }
    return failed ? TOKENS_FAILED : wait ? TOKENS_WAIT : TOKENS_KNOWN;
}
