/* tokens.c - see tokens.h. */
#include "client/openai/tokens.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_ID = 1 << 21,
    MAX_ASKED = 256, /* in one question */
};

enum token_state { UNKNOWN, WANTED, ASKED, KNOWN, FAILED };

struct token {
    char *bytes; /* [n] */
    uint32_t n;
    uint8_t state; /* enum token_state */
};

struct tokens {
    struct upstream *upstream;
    struct token *list; /* [n] */
    int32_t n;
    int32_t *wanted; /* [n_wanted] ids that are still to be asked for */
    size_t n_wanted, cap_wanted;
    bool changed;
    struct upstream_request question; /* in progress where n_asked is not 0 */
    int32_t asked[MAX_ASKED];         /* [n_asked] */
    size_t n_asked;
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

/* What has been asked for is known, or FAILED. */
static void on_event(struct upstream_request *request, const struct nvllm_event *event)
{
    struct tokens *t = (struct tokens *)((char *)request - offsetof(struct tokens, question));
    const struct nvllm_tokens *answer = event->type == NVLLM_EVENT_TOKENS ? event->tokens : NULL;

    t->changed = true;
    for (size_t i = 0; i < t->n_asked; i++) {
        struct token *token = &t->list[t->asked[i]];

        token->state = FAILED;
        if (!answer || i >= answer->n_tokens || answer->tokens[i].len > UINT32_MAX)
            continue;
        token->bytes = malloc(answer->tokens[i].len + 1);
        if (!token->bytes)
            continue;
        memcpy(token->bytes, answer->tokens[i].data, answer->tokens[i].len);
        token->n = (uint32_t)answer->tokens[i].len;
        token->state = KNOWN;
    }
    t->n_asked = 0;
}

/* Asks for all that are wanted, as far as one question goes. */
static void ask(struct tokens *t)
{
    struct nvllm_error err;

    while (t->n_wanted > 0 && t->n_asked < MAX_ASKED)
        t->asked[t->n_asked++] = t->wanted[--t->n_wanted];
    for (size_t i = 0; i < t->n_asked; i++)
        t->list[t->asked[i]].state = ASKED;
    t->question.event = on_event;
    if (!upstream_token_bytes(t->upstream, &t->question, t->asked, t->n_asked, &err))
        on_event(&t->question, &(struct nvllm_event){.type = NVLLM_EVENT_ERROR});
}

bool tokens_run(struct tokens *t)
{
    bool changed;

    if (t->n_asked == 0 && t->n_wanted > 0)
        ask(t); /* may fail at once */
    changed = t->changed;
    t->changed = false;
    return changed;
}
