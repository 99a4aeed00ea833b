/* echo_backend.c - nvllm-echo.so: a backend that answers a chat with the last message of its user,
 * so that a test decides what the model writes.
 *
 * It knows prompts from the history that the core gives for penalties: a request without one gets
 * an empty answer. Chats are those of nvllm-tiny's template and vocabulary. KV blocks hold nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"

enum { IM_START = 1992, IM_END = 1993, NEWLINE = 198 }; /* of nvllm-tiny's vocabulary */

struct script {
    int32_t *ids; /* [n] then IM_END */
    uint32_t n;
};

struct backend {
    struct backend_info info;
    struct script *scripts;                /* [max_seqs] of each sampler state */
    int32_t *ids[BACKEND_IN_FLIGHT + 1];   /* [max_seqs] step n at n % (BACKEND_IN_FLIGHT + 1) */
    int32_t n_rows[BACKEND_IN_FLIGHT + 1]; /* the same */
    int32_t max_seqs;
    uint64_t waited;
    float *zeros; /* [max_seqs * SAMPLING_MAX_LOGPROBS] for who asks for logprobs */
};

static void echo_close(struct backend *b)
{
    if (!b)
        return;
    for (int32_t i = 0; b->scripts && i < b->max_seqs; i++)
        free(b->scripts[i].ids);
    for (int i = 0; i <= BACKEND_IN_FLIGHT; i++)
        free(b->ids[i]);
    free(b->scripts);
    free(b->zeros);
    free(b);
}

static int echo_open(struct backend **out, const struct model *model,
                     const struct backend_options *options, struct err *e)
{
    struct backend *b = calloc(1, sizeof(*b));
    const size_t n = (size_t)options->max_seqs;
    bool ok;

    (void)model;
    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    b->max_seqs = options->max_seqs;
    b->scripts = calloc(n, sizeof(*b->scripts));
    b->zeros = calloc(n, SAMPLING_MAX_LOGPROBS * sizeof(*b->zeros));
    ok = b->scripts && b->zeros;
    for (int i = 0; i <= BACKEND_IN_FLIGHT; i++) {
        b->ids[i] = calloc(n, sizeof(*b->ids[i]));
        ok = ok && b->ids[i];
    }
    if (!ok) {
        echo_close(b);
        return err_set(e, -ENOMEM, "out of memory");
    }
    b->info = (struct backend_info){
        .n_devices = 1,
        .tp_size = 1,
        .devices = {{.name = "an echo"}},
        .tiers = {{.n_blocks = 1 << 16, .bytes = 1 << 16}},
        .block_bytes = 1,
        .kv_dtype = KV_DTYPE_F32,
    };
    *out = b;
    return 0;
}

static void echo_info(const struct backend *b, struct backend_info *out)
{
    *out = b->info;
}

/* The last of an id before `end`; -1: none. */
static int32_t last_of(const int32_t *ids, int32_t end, int32_t id)
{
    while (--end >= 0 && ids[end] != id)
        ;
    return end;
}

/* The content of the message before the header of the answer: <|im_start|>user\n…<|im_end|>\n. */
static int set_script(struct script *s, const int32_t *prompt, int32_t n)
{
    const int32_t end = last_of(prompt, last_of(prompt, n, IM_START), IM_END);
    int32_t from = last_of(prompt, end, IM_START);

    free(s->ids);
    *s = (struct script){0};
    while (from >= 0 && from < end && prompt[from] != NEWLINE)
        from++;
    if (from < 0 || from >= end)
        return 0;
    s->n = (uint32_t)(end - from - 1);
    s->ids = malloc(((size_t)s->n + 1) * sizeof(*s->ids));
    if (!s->ids)
        return -ENOMEM;
    memcpy(s->ids, prompt + from + 1, s->n * sizeof(*s->ids));
    return 0;
}

static int echo_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    const size_t at = batch->step % (BACKEND_IN_FLIGHT + 1);

    for (int32_t i = 0; i < batch->n_updates; i++) {
        const struct sampler_update *u = &batch_updates(batch)[i];

        if (set_script(&b->scripts[u->state], batch_history(batch, u), u->n_prompt))
            return err_set(e, -ENOMEM, "out of memory");
    }
    for (int32_t i = 0; i < batch->n_rows; i++) {
        const struct batch_row *row = &batch_rows(batch)[i];
        const struct script *s = &b->scripts[row->state];

        b->ids[at][i] = row->counter < s->n ? s->ids[row->counter] : IM_END;
    }
    b->n_rows[at] = batch->n_rows;
    return 0;
}

static int echo_wait(struct backend *b, struct step_result *out, struct err *e)
{
    const size_t at = ++b->waited % (BACKEND_IN_FLIGHT + 1);

    (void)e;
    *out = (struct step_result){
        .step = b->waited,
        .n_rows = b->n_rows[at],
        .ids = b->ids[at],
        .logprobs = b->zeros,
        .top_ids = (const int32_t *)(const void *)b->zeros,
        .top_logprobs = b->zeros,
    };
    return 0;
}

__attribute__((visibility("default"))) extern const struct backend_ops nvllm_backend;
const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "echo",
    .open = echo_open,
    .info = echo_info,
    .submit = echo_submit,
    .wait = echo_wait,
    .close = echo_close,
};
