/* engine_jobs.c - how jobs end, and the tokenizer pool's work: rendering, encoding and decoding.
 *
 * A job belongs to one thread at a time. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/tool_calls.h"
#include "engine/util/checked.h"

void job_release(struct job *j)
{
    if (j->request.release)
        j->request.release(j->request.owner);
    j->request.release = NULL;
    free(j->prompt.ids);
    j->prompt = (struct token_list){0};
}

/* All but the job itself. */
static void clear(struct job *j)
{
    job_release(j);
    generation_free(j->generation);
    guide_free(j->engine, j->guide);
    free(j->embedding);
}

void job_free(struct job *j)
{
    clear(j);
    free(j);
}

void job_end(struct job *j, enum engine_event_type type, struct event_list *out)
{
    struct engine *g = j->engine;

    pthread_mutex_lock(&g->lock);
    id_map_take(&g->jobs, j->request.id);
    list_remove(&j->link);
    if (j->phase != JOB_IN_ENGINE && engine_computes(j->request.kind))
        g->status.n_encoding--;
    pthread_mutex_unlock(&g->lock);
    clear(j);
    j->terminal.type = type;
    j->terminal.bytes += sizeof(*j) + j->terminal.packed.bytes;
    event_list_push(out, &j->terminal);
}

void job_fail(struct job *j, struct event_list *out, enum engine_error error, const char *field,
              const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_set_va(&j->message, 0, fmt, ap);
    va_end(ap);
    j->terminal.error = error;
    j->terminal.field = field;
    job_end(j, ENGINE_ERROR, out);
}

static int render(const struct engine *g, const struct chat *chat, struct jinja_text *text,
                  struct err *e)
{
    if (!g->chat_template)
        return err_set(e, -ENOTSUP, "%s", g->chat_why.text);
    return chat_render(g->chat_template, chat, text, e);
}

/* ---- prompts */

/* The calls that the answer may have. -ENOTSUP: they cannot be held to what the request says. */
static int expect_calls(struct job *j, bool known, struct err *e)
{
    const struct chat *chat = j->request.chat;
    struct format_source *f = &j->format;
    int strict = 0;

    if (chat->n_tools == 0 || j->request.kind != ENGINE_GENERATE)
        return 0;
    if (!known)
        strict = tool_calls_are_strict(chat->tools, chat->n_tools);
    if (strict < 0)
        return err_set(e, strict, "out of memory");
    if (!known && (chat->must_call || chat->one_call || strict))
        return err_set(e, -ENOTSUP,
                       "chat.tools: calls of this model can be neither strict nor required: its "
                       "chat template does not have them as JSON in %s",
                       ANSWER_TAG_CALL);
    if (!known)
        return 0;
    f->calls = chat->must_call ? FORMAT_MUST_CALL : FORMAT_MAY_CALL;
    f->tools = chat->tools;
    f->n_tools = chat->n_tools;
    f->called_tool = chat->called_tool;
    f->one_call = chat->one_call;
    return 0;
}

/* Tags mean something where the model was shown what they are for. */
static int expect_answer(struct job *j, struct text prompt, struct err *e)
{
    struct answer_format format = chat_template_answer(j->engine->chat_template);
    const int r = expect_calls(j, format.tool_calls, e);

    format.tool_calls = format.tool_calls && j->request.chat->n_tools > 0;
    j->format.reasoning = !format.reasoning            ? FORMAT_DIRECT
                          : answer_is_begun(prompt)    ? FORMAT_IS_BEGUN
                          : answer_has_thought(prompt) ? FORMAT_DIRECT
                                                       : FORMAT_MAY_REASON;
    if (!j->request.raw_text)
        answer_parser_init(&j->answer, format, answer_is_begun(prompt));
    return r;
}

/* A chat that goes on with what was said. */
static int encode_turn(struct job *j, const struct jinja_text *text)
{
    struct transcript_prompt *turn = j->request.turn;
    struct token_list *prompt = &j->prompt;
    int r = transcript_prompt(turn, j->engine->tokenizer, text);

    if (r < 0)
        return r;
    if (!array_reserve(&prompt->ids, &prompt->cap, turn->n_kept + turn->rest.n,
                       sizeof(*prompt->ids)))
        return -ENOMEM;
    if (turn->n_kept)
        memcpy(prompt->ids, turn->said->ids.ids, turn->n_kept * sizeof(*prompt->ids));
    if (turn->rest.n)
        memcpy(prompt->ids + turn->n_kept, turn->rest.ids, turn->rest.n * sizeof(*prompt->ids));
    prompt->n = turn->n_kept + turn->rest.n;
    return 0;
}

static int encode_chat(struct job *j, struct err *e)
{
    struct jinja_text text;
    int r = render(j->engine, j->request.chat, &text, e);

    if (r < 0)
        return r;
    r = expect_answer(j, (struct text){text.data, text.len}, e);
    if (r == 0) {
        r = j->request.turn
                ? encode_turn(j, &text)
                : tokenizer_encode(j->engine->tokenizer, (struct text){text.data, text.len},
                                   text.ranges, text.n_ranges, &j->prompt);
        if (r < 0)
            err_set(e, r, "the chat is too long");
    }
    jinja_text_deinit(&text);
    return r;
}

static int copy_ids(struct job *j)
{
    const int32_t *ids = j->request.prompt_ids;
    const size_t n = j->request.n_prompt_ids;

    if (n == 0)
        return 0;
    j->prompt.ids = reallocarray(NULL, n, sizeof(*ids));
    if (!j->prompt.ids)
        return -ENOMEM;
    memcpy(j->prompt.ids, ids, n * sizeof(*ids));
    j->prompt.n = j->prompt.cap = n;
    return 0;
}

/* Puts the tokens before a prompt with which the model's tokenizer begins a text. */
static int begin_prompt(const struct engine *g, struct token_list *prompt)
{
    const int32_t *begin;
    const size_t n = tokenizer_begin(g->tokenizer, &begin);

    if (n == 0)
        return 0;
    if (!array_reserve(&prompt->ids, &prompt->cap, prompt->n + n, sizeof(*begin)))
        return -ENOMEM;
    memmove(prompt->ids + n, prompt->ids, prompt->n * sizeof(*begin));
    memcpy(prompt->ids, begin, n * sizeof(*begin));
    prompt->n += n;
    return 0;
}

/* A raw prompt, which may spell the tokens that begin a text. */
static int encode_prompt(struct job *j, struct err *e)
{
    struct token_list *prompt = &j->prompt;
    const int32_t *begin;
    const size_t n = tokenizer_begin(j->engine->tokenizer, &begin);
    int r = tokenizer_encode_all(j->engine->tokenizer, j->request.prompt, true, prompt);

    if (r < 0)
        return err_set(e, r, "prompt: too long");
    if (prompt->n == 0 ||
        (n > 0 && prompt->n >= n && memcmp(prompt->ids, begin, n * sizeof(*begin)) == 0))
        return 0;
    return begin_prompt(j->engine, prompt);
}

/* A text to embed, after one of the model's prompts and before the tokens that end a text. Special
 * tokens are matched in the model's prompt alone. */
static int encode_text(struct job *j, const char **field, struct err *e)
{
    const struct engine *g = j->engine;
    const struct text text = j->request.prompt;
    struct token_list *prompt = &j->prompt;
    struct text before;
    const int32_t *end;
    const size_t n = tokenizer_end(g->tokenizer, &end);
    size_t bytes;
    char *both;
    int r;

    if (!embedder_prompt(&before, model_embedder(g->model), j->request.prompt_name)) {
        *field = "prompt_name";
        return err_set(e, -EINVAL, "prompt_name: the model has no prompt \"%.64s\"",
                       j->request.prompt_name);
    }
    if (!size_add(&bytes, before.len, text.len))
        return err_set(e, -EINVAL, "prompt: too long");
    both = malloc(bytes + 1);
    if (!both)
        return -ENOMEM;
    if (before.len)
        memcpy(both, before.data, before.len);
    if (text.len)
        memcpy(both + before.len, text.data, text.len);
    r = tokenizer_encode(g->tokenizer, (struct text){both, bytes},
                         &(struct text_range){0, before.len}, before.len > 0, prompt);
    free(both);
    if (r < 0)
        return err_set(e, r, "prompt: too long");
    r = begin_prompt(g, prompt);
    if (r < 0 || n == 0)
        return r;
    if (!array_reserve(&prompt->ids, &prompt->cap, prompt->n + n, sizeof(*end)))
        return -ENOMEM;
    memcpy(prompt->ids + prompt->n, end, n * sizeof(*end));
    prompt->n += n;
    return 0;
}

const char *job_input(const struct job *j)
{
    static const char *const names[] = {
        [ENGINE_PROMPT] = "prompt",
        [ENGINE_PROMPT_IDS] = "prompt_ids",
        [ENGINE_CHAT] = "chat",
    };

    return names[j->request.input];
}

/* The field inside a chat that its error begins with; what a template says is of all the chat. */
static const char *chat_field(struct job *j, const struct err *e)
{
    const size_t n = strspn(e->text, "abcdefghijklmnopqrstuvwxyz_.[]0123456789");

    if (strncmp(e->text, "chat.", 5) != 0 || e->text[n] != ':' || n >= sizeof(j->field))
        return "chat";
    memcpy(j->field, e->text, n);
    return j->field;
}

static int encode(struct job *j, const char **field, struct err *e)
{
    int r = 0;

    *field = job_input(j);
    switch (j->request.input) {
    case ENGINE_PROMPT:
        r = j->request.kind == ENGINE_EMBED ? encode_text(j, field, e) : encode_prompt(j, e);
        break;
    case ENGINE_PROMPT_IDS:
        r = copy_ids(j);
        break;
    case ENGINE_CHAT:
        r = encode_chat(j, e);
        *field = chat_field(j, e);
        break;
    }
    if (r < 0)
        return r;
    if (j->prompt.n == 0)
        return err_set(e, -EINVAL, "%s: empty; there must be at least one token", *field);
    if (j->prompt.n > INT32_MAX / 2)
        return err_set(e, -EINVAL, "%s: %zu tokens are too many", *field, j->prompt.n);
    return 0;
}

/* -ENOTSUP: it is not what the model is for. */
static int check_kind(const struct job *j, const char **field, struct err *e)
{
    const struct engine *g = j->engine;
    const struct model *m = g->model;
    const int32_t dim = g->status.embedding_dim; /* does not change any more */

    if (j->request.kind == ENGINE_GENERATE && model_config(m)->headless)
        return err_set(e, -ENOTSUP, "the model has no LM head: it only makes embeddings");
    if (j->request.kind != ENGINE_EMBED)
        return 0;
    if (model_embedder(m)->pooling == POOLING_NONE)
        return err_set(
            e, -ENOTSUP,
            "this model cannot make embeddings: its folder has no modules.json to describe them");
    if (j->request.dimensions <= dim)
        return 0;
    *field = "dimensions";
    return err_set(e, -EINVAL, "dimensions: %d is above the model's %d", j->request.dimensions,
                   dim);
}

static const char *format_field(enum format_kind kind)
{
    static const char *const names[] = {
        [FORMAT_NONE] = "chat.tools",
        [FORMAT_JSON_OBJECT] = "response_format.json_object",
        [FORMAT_JSON_SCHEMA] = "response_format.json_schema",
        [FORMAT_REGEX] = "response_format.regex",
        [FORMAT_GRAMMAR] = "response_format.grammar",
        [FORMAT_CHOICE] = "response_format.choice",
    };

    return names[kind];
}

static int make_guide(struct job *j, const char **field, struct err *e)
{
    const struct engine *g = j->engine;
    struct err why = {""};
    int r;

    *field = format_field(j->format.kind);
    if (!g->has_masks)
        return err_set(e, -ENOTSUP, "%s: the %s backend has no masks of tokens%s",
                       j->format.kind == FORMAT_NONE ? *field : "response_format",
                       g->options.backend->name,
                       g->options.backend_options.n_processes > 1 ? " in a cluster" : "");
    r = guide_new(j, &why);
    if (r == 0 || r == -ENOMEM)
        return r;
    if (strncmp(why.text, "chat.", 5) != 0)
        return err_set(e, -EINVAL, "%s: %s", *field, why.text);
    *field = chat_field(j, &why);
    return err_set(e, -EINVAL, "%s", why.text);
}

/* Encodes a prompt and hands the job to the engine thread. */
static int run_encode(struct job *j, const char **field, struct event_list *out, struct err *e)
{
    struct engine *g = j->engine;
    const int32_t most = j->request.prompt_tokens_limit;
    int r = 0;

    if (!j->cancelled) {
        j->format = j->request.format;
        r = check_kind(j, field, e);
        if (r == 0)
            r = encode(j, field, e);
        if (r == 0 && !format_is_free(&j->format))
            r = make_guide(j, field, e);
    }
    if (r < 0)
        return r;
    if (most && j->prompt.n > (size_t)most) {
        j->terminal.usage.prompt_tokens = (int32_t)j->prompt.n;
        job_fail(j, out, ENGINE_E_PROMPT_LIMIT, *field, "too many tokens");
        return 0;
    }
    pthread_mutex_lock(&g->lock);
    j->phase = JOB_IN_INBOX;
    list_append(&g->inbox, &j->link);
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
    return 0;
}

/* Answers a request that is about texts alone. */
static int run_text(struct job *j, const char **field, struct event_list *out, struct err *e)
{
    const struct engine *g = j->engine;
    const struct engine_request *request = &j->request;
    struct engine_event answer = {.type = ENGINE_TEXT};
    struct token_list ids = {0};
    struct jinja_text rendered = {0};
    char *text = NULL;
    int r;

    if (request->kind == ENGINE_TOKENIZE && request->input == ENGINE_PROMPT_IDS) {
        *field = "ids";
        r = 0;
        answer.type = ENGINE_TOKENS;
        answer.ids = (int32_t *)request->prompt_ids;
        answer.n_ids = request->n_prompt_ids;
    } else if (request->kind == ENGINE_TOKENIZE) {
        *field = "text";
        err_set(e, 0, "text: too long");
        r = tokenizer_encode_all(g->tokenizer, request->prompt, request->special, &ids);
        answer.type = ENGINE_TOKENS;
        answer.ids = ids.ids;
        answer.n_ids = ids.n;
    } else if (request->kind == ENGINE_DETOKENIZE) {
        *field = "ids";
        err_set(e, 0, "ids: an id is negative");
        r = tokenizer_decode(g->tokenizer, request->prompt_ids, request->n_prompt_ids,
                             request->special, &text, &answer.text.len);
        answer.text.data = text;
    } else {
        r = render(g, request->chat, &rendered, e);
        *field = chat_field(j, e);
        answer.text = (struct text){rendered.data, rendered.len};
    }
    if (r == 0)
        r = g->packer.pack(g->packer.ctx, &j->terminal.packed, &answer, g->tokenizer);
    free(ids.ids);
    free(text);
    jinja_text_deinit(&rendered);
    if (r == 0)
        job_end(j, answer.type, out);
    return r;
}

void job_run(struct work *w)
{
    struct job *j = CONTAINER_OF(w, struct job, work);
    struct engine *g = j->engine; /* the job may be gone at the end */
    struct event_list out = {0};
    const char *field = NULL;
    struct err why = {""};
    int r = 0;

    (void)engine_wait_for_room(g);
    if (engine_computes(j->request.kind) || j->request.kind == ENGINE_INSPECT)
        r = run_encode(j, &field, &out, &why);
    else if (j->cancelled)
        job_fail(j, &out, ENGINE_E_CANCELLED, NULL, "cancelled");
    else
        r = run_text(j, &field, &out, &why);
    if (r == -ENOMEM)
        job_fail(j, &out, ENGINE_E_INTERNAL, NULL, "out of memory");
    else if (r == -EMSGSIZE)
        job_fail(j, &out, ENGINE_E_ANSWER_LIMIT, NULL, "the answer is too large");
    else if (r < 0)
        job_fail(j, &out, r == -ENOTSUP ? ENGINE_E_UNSUPPORTED : ENGINE_E_INVALID, field, "%s",
                 why.text);
    engine_publish(g, &out);
}
