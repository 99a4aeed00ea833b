/* engine_jobs.c - the tokenizer pool's work: rendering, encoding and decoding.
 *
 * Runs on the pool's threads; a job belongs to one of them at a time. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

void job_release(struct job *j)
{
    if (j->request.release)
        j->request.release(j->request.owner);
    j->request.release = NULL;
    free(j->prompt.ids);
    j->prompt = (struct token_list){0};
}

void job_free(struct job *j)
{
    if (!j)
        return;
    job_release(j);
    generation_free(j->generation);
    free(j->terminal);
    free(j);
}

void job_fail(struct job *j, enum engine_error error, const char *field, const char *text,
              struct event_list *out)
{
    j->terminal->type = ENGINE_ERROR;
    j->terminal->error = error;
    j->terminal->field = field;
    err_set(j->terminal->message, 0, "%s", text);
    event_list_push(out, j->terminal);
    j->terminal = NULL;
    job_free(j);
}

static void fail_with(struct job *j, int r, const char *field, const struct err *why,
                      struct event_list *out)
{
    if (r == -ENOMEM)
        job_fail(j, ENGINE_E_INTERNAL, NULL, "out of memory", out);
    else if (r == -ENOTSUP)
        job_fail(j, ENGINE_E_UNSUPPORTED, field, why->text, out);
    else if (r == -EMSGSIZE)
        job_fail(j, ENGINE_E_ANSWER_LIMIT, NULL, "the answer is too large", out);
    else
        job_fail(j, ENGINE_E_INVALID, field, why->text, out);
}

static int render(struct engine *g, const struct chat *chat, struct chat_text *text, struct err *e)
{
    if (!g->chat_template)
        return err_set(e, -ENOTSUP, "%s", g->chat_why.text);
    return chat_render(g->chat_template, chat, text, e);
}

static int encode_chat(struct job *j, struct err *e)
{
    struct chat_text text;
    int r = render(j->engine, j->request.chat, &text, e);

    if (r < 0)
        return r;
    r = tokenizer_encode(j->engine->tokenizer, (struct text){text.data, text.len}, text.ranges,
                         text.n_ranges, &j->prompt);
    chat_text_deinit(&text);
    return r < 0 ? err_set(e, r, "the chat is too long") : 0;
}

static int check_ids(const struct job *j, struct err *e)
{
    int32_t vocab_size = model_config(j->engine->model)->vocab_size;

    for (size_t i = 0; i < j->request.n_prompt_ids; i++)
        if (j->request.prompt_ids[i] < 0 || j->request.prompt_ids[i] >= vocab_size)
            return err_set(e, -EINVAL, "prompt_ids[%zu]: %d is not in 0 .. %d", i,
                           j->request.prompt_ids[i], vocab_size - 1);
    return 0;
}

static int copy_ids(struct job *j, struct err *e)
{
    size_t n = j->request.n_prompt_ids;
    int r = check_ids(j, e);

    if (r < 0 || n == 0)
        return r;
    j->prompt.ids = reallocarray(NULL, n, sizeof(*j->prompt.ids));
    if (!j->prompt.ids)
        return -ENOMEM;
    memcpy(j->prompt.ids, j->request.prompt_ids, n * sizeof(*j->prompt.ids));
    j->prompt.n = j->prompt.cap = n;
    return 0;
}

static const char *input_field(const struct job *j)
{
    switch (j->request.input) {
    case ENGINE_PROMPT:
        return "prompt";
    case ENGINE_PROMPT_IDS:
        return "prompt_ids";
    case ENGINE_CHAT:
        return "chat";
    }
    return NULL;
}

static int encode(struct job *j, struct err *e)
{
    int r = 0;

    switch (j->request.input) {
    case ENGINE_PROMPT:
        r = tokenizer_encode_all(j->engine->tokenizer, j->request.prompt, true, &j->prompt);
        if (r < 0)
            return err_set(e, r, "prompt: too long");
        break;
    case ENGINE_PROMPT_IDS:
        r = copy_ids(j, e);
        break;
    case ENGINE_CHAT:
        r = encode_chat(j, e);
        break;
    }
    if (r < 0)
        return r;
    if (j->prompt.n == 0)
        return err_set(e, -EINVAL, "%s: empty; there must be at least one token", input_field(j));
    if (j->prompt.n > INT32_MAX / 2)
        return err_set(e, -EINVAL, "%s: %zu tokens are too many", input_field(j), j->prompt.n);
    return 0;
}

/* Takes the job out of the pool: into the inbox, or out of the engine's map before its terminal
 * event. True: it was cancelled meanwhile, and is not in the inbox. */
static bool leave(struct job *j, bool to_inbox)
{
    struct engine *g = j->engine;
    bool cancelled;

    pthread_mutex_lock(&g->lock);
    cancelled = j->cancelled;
    if (to_inbox && !cancelled) {
        j->phase = JOB_IN_INBOX;
        list_append(&g->inbox, &j->link);
        pthread_cond_signal(&g->wake);
    } else {
        g->n_encoding -= j->request.kind == ENGINE_GENERATE;
        id_map_take(&g->jobs, j->id);
    }
    pthread_mutex_unlock(&g->lock);
    return cancelled;
}

static bool is_cancelled(struct job *j)
{
    bool cancelled;

    pthread_mutex_lock(&j->engine->lock);
    cancelled = j->cancelled;
    pthread_mutex_unlock(&j->engine->lock);
    return cancelled;
}

/* Ends a job that was cancelled before it reached the core; each choice gets its reason. */
static void tell_cancelled(struct job *j, struct event_list *out)
{
    if (j->request.kind != ENGINE_GENERATE) {
        job_fail(j, ENGINE_E_CANCELLED, NULL, "cancelled", out);
        return;
    }
    for (int32_t i = 0; i < j->request.n; i++) {
        struct engine_event *d = engine_event_new(ENGINE_DELTA, j->id, 0, false, 0);

        if (!d) {
            job_fail(j, ENGINE_E_INTERNAL, NULL, "out of memory", out);
            return;
        }
        d->choice = i;
        d->reason = CORE_REASON_CANCELLED;
        event_list_push(out, d);
    }
    j->terminal->type = ENGINE_DONE;
    j->terminal->usage =
        (struct core_usage){.arrival_us = j->arrival_us, .end_us = engine_now_us()};
    event_list_push(out, j->terminal);
    j->terminal = NULL;
    job_free(j);
}

/* Checks the number of prompt tokens, and reports it where it is over the limit. */
static bool over_limit(struct job *j)
{
    int32_t most = j->request.most_prompt_tokens;

    if (!most || j->prompt.n <= (size_t)most)
        return false;
    j->terminal->usage.prompt_tokens = (int32_t)j->prompt.n;
    return true;
}

static void run_encode(struct job *j, struct event_list *out)
{
    struct err why = {""};
    int r = is_cancelled(j) ? 0 : encode(j, &why);
    bool over = r == 0 && over_limit(j);

    if (leave(j, r == 0 && !over))
        tell_cancelled(j, out);
    else if (over)
        job_fail(j, ENGINE_E_PROMPT_LIMIT, input_field(j), "too many tokens", out);
    else if (r < 0)
        fail_with(j, r, input_field(j), &why, out);
}

/* Makes the event of an answer: packed, or a copy where there is no packer. */
static int answer_event(struct engine_event **out, const struct job *j,
                        const struct engine_event *answer)
{
    const struct engine_packer *packer = &j->engine->packer;
    size_t n_ids = packer->pack ? 0 : answer->n_ids, len = packer->pack ? 0 : answer->text.len;
    struct engine_event *ev = engine_event_new(answer->type, j->id, n_ids, false, len);
    int r;

    if (!ev)
        return -ENOMEM;
    if (packer->pack) {
        r = packer->pack(packer->ctx, &ev->packed, answer, j->engine->tokenizer);
        if (r < 0) {
            free(ev);
            return r;
        }
    }
    if (n_ids)
        memcpy(ev->ids, answer->ids, n_ids * sizeof(*ev->ids));
    if (len)
        memcpy(event_text_buffer(ev), answer->text.data, len);
    *out = ev;
    return 0;
}

/* Ends a job with its answer, or with an error where r is one. */
static void tell_answer(struct job *j, int r, const struct engine_event *answer, const char *field,
                        const struct err *why, struct event_list *out)
{
    struct engine_event *ev = NULL;

    if (r == 0)
        r = answer_event(&ev, j, answer);
    if (r < 0) {
        fail_with(j, r, field, why, out);
        return;
    }
    event_list_push(out, ev);
    job_free(j);
}

static void run_tokenize(struct job *j, struct event_list *out)
{
    struct engine_event answer = {.type = ENGINE_TOKENS};
    struct token_list ids = {0};
    struct err why = {"text: too long"};
    int r = tokenizer_encode_all(j->engine->tokenizer, j->request.prompt, j->request.special, &ids);

    answer.ids = ids.ids;
    answer.n_ids = ids.n;
    tell_answer(j, r, &answer, "text", &why, out);
    free(ids.ids);
}

static void run_detokenize(struct job *j, struct event_list *out)
{
    struct engine_event answer = {.type = ENGINE_TEXT};
    struct err why = {"ids: an id is negative"};
    char *text = NULL;
    size_t len = 0;
    int r = tokenizer_decode(j->engine->tokenizer, j->request.prompt_ids, j->request.n_prompt_ids,
                             j->request.special, &text, &len);

    answer.text = (struct text){text, len};
    tell_answer(j, r, &answer, "ids", &why, out);
    free(text);
}

static void run_render(struct job *j, struct event_list *out)
{
    struct engine_event answer = {.type = ENGINE_TEXT};
    struct chat_text text = {0};
    struct err why = {""};
    int r = render(j->engine, j->request.chat, &text, &why);

    answer.text = (struct text){text.data, text.len};
    tell_answer(j, r, &answer, "chat", &why, out);
    if (r == 0)
        chat_text_deinit(&text);
}

void job_run(struct work *w)
{
    struct job *j = (struct job *)w;
    struct engine *g = j->engine;
    struct event_list out = {0};

    (void)event_queue_wait(&g->events);
    if (j->request.kind == ENGINE_GENERATE || j->request.kind == ENGINE_INSPECT)
        run_encode(j, &out);
    else if (leave(j, false))
        tell_cancelled(j, &out);
    else if (j->request.kind == ENGINE_TOKENIZE)
        run_tokenize(j, &out);
    else if (j->request.kind == ENGINE_DETOKENIZE)
        run_detokenize(j, &out);
    else
        run_render(j, &out);
    event_queue_push(&g->events, &out);
}
