/* tokens.c - see tokens.h. */
#include "client/openai/tokens.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_ID = 1 << 21,
    IN_FLIGHT = 64, /* questions at a time */
};

enum token_state { UNKNOWN, WANTED, ASKED, KNOWN, FAILED };

struct token {
    char *bytes; /* [n] */
    uint32_t n;
    uint8_t state; /* enum token_state */
};

struct question {
    struct upstream_request request;
    struct tokens *tokens;
    int32_t id;
    bool busy;
};

struct tokens {
    struct upstream *upstream;
    struct token *list; /* [n] */
    int32_t n;
    int32_t *wanted; /* [n_wanted] ids that are still to be asked for */
    size_t n_wanted, cap_wanted;
    bool changed;
    struct question questions[IN_FLIGHT];
};

struct tokens *tokens_new(struct upstream *upstream)
{
    struct tokens *t = calloc(1, sizeof(*t));

    if (t)
        t->upstream = upstream;
    return t;
}

void tokens_forget(struct tokens *t)
{
    for (int32_t i = 0; i < t->n; i++)
        free(t->list[i].bytes);
    free(t->list);
    free(t->wanted);
    t->list = NULL;
    t->wanted = NULL;
    t->n = 0;
    t->n_wanted = t->cap_wanted = 0;
}

void tokens_free(struct tokens *t)
{
    if (!t)
        return;
    tokens_forget(t);
    free(t);
}

/* Makes room for an id in both lists. */
static bool reserve(struct tokens *t, int32_t id)
{
    if (id >= t->n) {
        int32_t n = id < 1024 ? 1024 : id + id / 2;
        struct token *list = realloc(t->list, (size_t)n * sizeof(*list));

        if (!list)
            return false;
        memset(list + t->n, 0, (size_t)(n - t->n) * sizeof(*list));
        t->list = list;
        t->n = n;
    }
    if (t->n_wanted == t->cap_wanted) {
        size_t cap = t->cap_wanted ? 2 * t->cap_wanted : 256;
        int32_t *wanted = realloc(t->wanted, cap * sizeof(*wanted));

        if (!wanted)
            return false;
        t->wanted = wanted;
        t->cap_wanted = cap;
    }
    return true;
}

enum tokens_found tokens_find(struct tokens *t, int32_t id, struct nvllm_text *bytes)
{
    struct token *token;

    if (id < 0 || id >= MAX_ID || !reserve(t, id))
        return TOKENS_FAILED;
    token = &t->list[id];
    switch ((enum token_state)token->state) {
    case KNOWN:
        *bytes = (struct nvllm_text){token->bytes, token->n};
        return TOKENS_KNOWN;
    case FAILED:
        token->state = UNKNOWN; /* who comes next may ask again */
        return TOKENS_FAILED;
    case UNKNOWN:
        token->state = WANTED;
        t->wanted[t->n_wanted++] = id;
        return TOKENS_WAIT;
    default:
        return TOKENS_WAIT;
    }
}

static void on_event(struct upstream_request *request, const struct nvllm_event *event)
{
    struct question *q = (struct question *)((char *)request - offsetof(struct question, request));
    struct tokens *t = q->tokens;
    struct token *token;

    q->busy = false;
    if (q->id >= t->n)
        return; /* it has been forgotten */
    token = &t->list[q->id];
    t->changed = true;
    token->state = FAILED;
    if (event->type != NVLLM_EVENT_TEXT || event->text->len > UINT32_MAX)
        return;
    token->bytes = malloc(event->text->len + 1);
    if (!token->bytes)
        return;
    memcpy(token->bytes, event->text->data, event->text->len);
    token->n = (uint32_t)event->text->len;
    token->state = KNOWN;
}

static void ask(struct tokens *t, struct question *q, int32_t id)
{
    struct nvllm_error err;

    q->tokens = t;
    q->id = id;
    q->request.event = on_event;
    q->busy = upstream_detokenize(t->upstream, &q->request, id, &err);
    t->list[id].state = q->busy ? ASKED : FAILED;
    t->changed = t->changed || !q->busy;
}

bool tokens_run(struct tokens *t)
{
    bool changed = t->changed;

    for (size_t i = 0; i < IN_FLIGHT && t->n_wanted > 0; i++)
        if (!t->questions[i].busy)
            ask(t, &t->questions[i], t->wanted[--t->n_wanted]);
    t->changed = false;
    return changed;
}
