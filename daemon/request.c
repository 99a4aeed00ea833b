/* request.c - see request.h. */
#include "daemon/request.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/text/text_stream.h"
#include "proto/utf8.h"

#define INVALID  NVLLM__V1__ERROR_CODE__ERROR_INVALID
#define TOO_LONG NVLLM__V1__ERROR_CODE__ERROR_TOO_LONG

/* An amount over a limit of the options. */
static int check_limit(enum limit l, size_t amount, const char *field,
                       const struct request_rules *rules, struct refusal *e)
{
    return amount > limit_value(rules->options, l)
               ? limit_refuse(e, rules->options, l, field, amount)
               : 0;
}

/* The name of a field inside of others. */
struct name {
    char text[sizeof(((struct refusal *)0)->field)];
};

__attribute__((format(printf, 2, 3))) static const char *name_field(struct name *n, const char *fmt,
                                                                    ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(n->text, sizeof(n->text), fmt, ap);
    va_end(ap);
    return n->text;
}

static int take_text(struct text *out, const ProtobufCBinaryData *b, const char *field,
                     struct refusal *e)
{
    if (!utf8_valid(b->data, b->len))
        return refusal_of_field(e, INVALID, field, "is not UTF-8");
    *out = (struct text){(const char *)b->data, b->len};
    return 0;
}

/* ---- chat */

static int take_tool_call(struct chat_tool_call *out, const Nvllm__V1__ToolCall *c,
                          const char *field, struct refusal *e)
{
    struct name name;
    int r;

    name_field(&name, "%s.name", field);
    if (!c->has_name)
        return refusal_of_field(e, INVALID, name.text, "is missing");
    r = take_text(&out->name, &c->name, name.text, e);
    if (r < 0)
        return r;
    name_field(&name, "%s.arguments", field);
    if (!c->has_arguments)
        return refusal_of_field(e, INVALID, name.text, "is missing; it is a JSON object");
    return take_text(&out->arguments_json, &c->arguments, name.text, e);
}

static int take_message(struct chat_message *out, const Nvllm__V1__Message *m, struct unpacked *u,
                        const char *field, struct refusal *e)
{
    struct chat_tool_call *calls;
    struct name name;
    int r;

    name_field(&name, "%s.role", field);
    if (!m->role)
        return refusal_of_field(e, INVALID, name.text,
                                "is missing; it is system, user, assistant or tool");
    r = take_text(&out->role, &(ProtobufCBinaryData){strlen(m->role), (uint8_t *)m->role},
                  name.text, e);
    if (r < 0)
        return r;
    out->has_content = m->has_content;
    name_field(&name, "%s.content", field);
    if (m->has_content && (r = take_text(&out->content, &m->content, name.text, e)) < 0)
        return r;
    out->has_reasoning = m->has_reasoning_content;
    name_field(&name, "%s.reasoning_content", field);
    if (m->has_reasoning_content &&
        (r = take_text(&out->reasoning, &m->reasoning_content, name.text, e)) < 0)
        return r;
    calls = unpacked_alloc(u, m->n_tool_calls, sizeof(*calls));
    if (!calls)
        return -ENOMEM;
    for (size_t i = 0; i < m->n_tool_calls; i++) {
        name_field(&name, "%s.tool_calls[%zu]", field, i);
        r = take_tool_call(&calls[i], m->tool_calls[i], name.text, e);
        if (r < 0)
            return r;
    }
    out->tool_calls = calls;
    out->n_tool_calls = m->n_tool_calls;
    return 0;
}

int request_chat(struct chat **out, const Nvllm__V1__Chat *c, struct unpacked *u,
                 const struct request_rules *rules, struct refusal *e)
{
    struct chat *chat = unpacked_alloc(u, 1, sizeof(*chat));
    struct chat_message *messages = unpacked_alloc(u, c->n_messages, sizeof(*messages));
    struct text *tools = unpacked_alloc(u, c->n_tools, sizeof(*tools));
    struct name name;
    int r;

    if (!chat || !messages || !tools)
        return -ENOMEM;
    if (c->n_messages == 0)
        return refusal_of_field(e, INVALID, "chat.messages", "is empty");
    for (size_t i = 0; i < c->n_messages; i++) {
        name_field(&name, "chat.messages[%zu]", i);
        r = take_message(&messages[i], c->messages[i], u, name.text, e);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < c->n_tools; i++) {
        name_field(&name, "chat.tools[%zu]", i);
        r = take_text(&tools[i], &c->tools[i], name.text, e);
        if (r < 0)
            return r;
    }
    chat->messages = messages;
    chat->n_messages = c->n_messages;
    chat->tools = tools;
    chat->n_tools = c->n_tools;
    chat->add_generation_prompt = !c->has_add_generation_prompt || c->add_generation_prompt;
    chat->thinking = !c->has_enable_thinking ? CHAT_THINKING_UNSET
                     : c->enable_thinking    ? CHAT_THINKING_ON
                                             : CHAT_THINKING_OFF;
    r = check_limit(LIMIT_PROMPT_BYTES, chat_bytes(chat), "chat", rules, e);
    if (r < 0)
        return r;
    *out = chat;
    return 0;
}

/* ---- sampling */

enum bounds { CLOSED, OPEN_LOW }; /* whether the lower bound itself is allowed */

static int take_float(float *out, bool has, float value, enum bounds bounds, float lo, float hi,
                      const char *field, struct refusal *e)
{
    if (!has)
        return 0;
    /* written so that NaN is refused */
    if (!((bounds == OPEN_LOW ? value > lo : value >= lo) && value <= hi)) {
        if (hi >= INFINITY)
            return refusal_of_field(e, INVALID, field, "%g is not a number %s %g", (double)value,
                                    bounds == OPEN_LOW ? "above" : "of at least", (double)lo);
        return refusal_of_field(e, INVALID, field, "%g is not in %c%g, %g]", (double)value,
                                bounds == OPEN_LOW ? '(' : '[', (double)lo, (double)hi);
    }
    if (isinf(value))
        return refusal_of_field(e, INVALID, field, "is infinite");
    *out = value;
    return 0;
}

static int take_uint(int32_t *out, bool has, uint32_t value, uint32_t lo, uint32_t hi,
                     const char *field, struct refusal *e)
{
    if (!has)
        return 0;
    if (value < lo || value > hi)
        return refusal_of_field(e, INVALID, field,
                                "%" PRIu32 " is not in [%" PRIu32 ", %" PRIu32 "]", value, lo, hi);
    *out = (int32_t)value;
    return 0;
}

static int check_id(int32_t id, const struct request_rules *rules, const char *field,
                    struct refusal *e)
{
    if (id < 0 || id >= rules->vocab_size)
        return refusal_of_field(e, INVALID, field,
                                "%" PRId32 " is no id of the vocabulary, [0, %" PRId32 "]", id,
                                rules->vocab_size - 1);
    return 0;
}

/* Checks the entries of a field. */
static int check_ids(const int32_t *ids, size_t n, const struct request_rules *rules,
                     const char *field, struct refusal *e)
{
    struct name name;

    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < rules->vocab_size)
            continue;
        return check_id(ids[i], rules, name_field(&name, "%s[%zu]", field, i), e);
    }
    return 0;
}

static int take_bias(struct sampling *s, const Nvllm__V1__Sampling *m, struct unpacked *u,
                     const struct request_rules *rules, struct refusal *e)
{
    struct logit_bias *bias;
    struct name field;
    int r;

    r = check_limit(LIMIT_LOGIT_BIAS, m->n_logit_bias, "sampling.logit_bias", rules, e);
    if (r < 0)
        return r;
    bias = unpacked_alloc(u, m->n_logit_bias, sizeof(*bias));
    if (!bias)
        return -ENOMEM;
    for (size_t i = 0; i < m->n_logit_bias; i++) {
        const Nvllm__V1__LogitBias *b = m->logit_bias[i];

        name_field(&field, "sampling.logit_bias[%zu].id", i);
        if (!b->has_id)
            return refusal_of_field(e, INVALID, field.text, "is missing");
        r = check_id(b->id, rules, field.text, e);
        if (r < 0)
            return r;
        bias[i].id = b->id;
        name_field(&field, "sampling.logit_bias[%zu].bias", i);
        if (!b->has_bias)
            return refusal_of_field(e, INVALID, field.text, "is missing");
        r = take_float(&bias[i].bias, true, b->bias, CLOSED, -100, 100, field.text, e);
        if (r < 0)
            return r;
    }
    s->bias = bias;
    s->n_bias = (int32_t)m->n_logit_bias;
    return 0;
}

static int take_stop_ids(struct sampling *s, const Nvllm__V1__Sampling *m,
                         const struct request_rules *rules, struct refusal *e)
{
    const char *field = "sampling.stop_token_ids";
    int r;

    if ((r = check_limit(LIMIT_STOP_TOKEN_IDS, m->n_stop_token_ids, field, rules, e)) < 0 ||
        (r = check_ids(m->stop_token_ids, m->n_stop_token_ids, rules, field, e)) < 0)
        return r;
    s->stop_ids = m->stop_token_ids;
    s->n_stop_ids = (int32_t)m->n_stop_token_ids;
    return 0;
}

static int take_numbers(struct sampling *s, const Nvllm__V1__Sampling *m,
                        const struct request_rules *rules, struct refusal *e)
{
    int r;

    if (m->has_logprobs &&
        (r = check_limit(LIMIT_LOGPROBS, m->logprobs, "sampling.logprobs", rules, e)) < 0)
        return r;
    if ((r = take_float(&s->temperature, m->has_temperature, m->temperature, CLOSED, 0, INFINITY,
                        "sampling.temperature", e)) < 0 ||
        (r = take_uint(&s->top_k, m->has_top_k, m->top_k, 0, INT32_MAX, "sampling.top_k", e)) < 0 ||
        (r = take_float(&s->top_p, m->has_top_p, m->top_p, OPEN_LOW, 0, 1, "sampling.top_p", e)) <
            0 ||
        (r = take_float(&s->min_p, m->has_min_p, m->min_p, CLOSED, 0, 1, "sampling.min_p", e)) <
            0 ||
        (r = take_float(&s->repetition_penalty, m->has_repetition_penalty, m->repetition_penalty,
                        OPEN_LOW, 0, INFINITY, "sampling.repetition_penalty", e)) < 0 ||
        (r = take_float(&s->presence_penalty, m->has_presence_penalty, m->presence_penalty, CLOSED,
                        -2, 2, "sampling.presence_penalty", e)) < 0 ||
        (r = take_float(&s->frequency_penalty, m->has_frequency_penalty, m->frequency_penalty,
                        CLOSED, -2, 2, "sampling.frequency_penalty", e)) < 0 ||
        (r = take_uint(&s->min_tokens, m->has_min_tokens, m->min_tokens, 0,
                       (uint32_t)rules->max_seq_len, "sampling.min_tokens", e)) < 0 ||
        (r = take_uint(&s->n_logprobs, m->has_logprobs, m->logprobs, 0, SAMPLING_MAX_LOGPROBS,
                       "sampling.logprobs", e)) < 0)
        return r;
    return 0;
}

static int take_sampling(struct engine_request *out, const Nvllm__V1__Sampling *m,
                         struct unpacked *u, const struct request_rules *rules, struct refusal *e)
{
    static const Nvllm__V1__Sampling silent = NVLLM__V1__SAMPLING__INIT;
    const struct model_defaults *d = rules->defaults;
    struct sampling s = {
        .temperature = d->temperature,
        .top_k = d->top_k,
        .top_p = d->top_p,
        .min_p = d->min_p,
        .repetition_penalty = d->repetition_penalty,
        .n_logprobs = -1,
    };
    int r;

    if (!m)
        m = &silent;
    if ((r = take_numbers(&s, m, rules, e)) < 0 || (r = take_bias(&s, m, u, rules, e)) < 0 ||
        (r = take_stop_ids(&s, m, rules, e)) < 0)
        return r;
    if (m->has_seed)
        s.seed = m->seed;
    else if (getrandom(&s.seed, sizeof(s.seed), 0) != sizeof(s.seed))
        return -ENOMEM; /* does not happen to 8 bytes once the kernel has entropy */
    out->sampling = s;
    out->ignore_eos = m->has_ignore_eos && m->ignore_eos;
    return 0;
}

/* ---- generate */

static int take_prompt(struct text *out, const ProtobufCBinaryData *prompt,
                       const struct request_rules *rules, struct refusal *e)
{
    int r = check_limit(LIMIT_PROMPT_BYTES, prompt->len, "prompt", rules, e);

    if (r < 0)
        return r;
    if (prompt->len == 0)
        return refusal_of_field(e, INVALID, "prompt", "is empty");
    return take_text(out, prompt, "prompt", e);
}

static int check_prompt_ids(const Nvllm__V1__TokenIds *ids, const struct request_rules *rules,
                            struct refusal *e)
{
    int r;

    if (ids->n_ids == 0)
        return refusal_of_field(e, INVALID, "prompt_ids", "is empty");
    if (rules->options->max_prompt_tokens &&
        (r = check_limit(LIMIT_PROMPT_TOKENS, ids->n_ids, "prompt_ids", rules, e)) < 0)
        return r;
    if (ids->n_ids >= (size_t)rules->max_seq_len)
        return refusal_of_field(e, TOO_LONG, "prompt_ids",
                                "%zu ids leave no room for an answer in %" PRId32 " tokens",
                                ids->n_ids, rules->max_seq_len);
    return check_ids(ids->ids, ids->n_ids, rules, "prompt_ids", e);
}

int request_input(struct engine_request *out, const struct request_input *in, struct unpacked *u,
                  const struct request_rules *rules, struct refusal *e)
{
    struct chat *chat;
    int r;

    if (in->prompt) {
        out->input = ENGINE_PROMPT;
        return take_prompt(&out->prompt, in->prompt, rules, e);
    }
    if (in->ids) {
        out->input = ENGINE_PROMPT_IDS;
        out->prompt_ids = in->ids->ids;
        out->n_prompt_ids = in->ids->n_ids;
        return check_prompt_ids(in->ids, rules, e);
    }
    if (!in->chat)
        return refusal_of_field(e, INVALID, "input",
                                "one of prompt, prompt_ids and chat is required");
    r = request_chat(&chat, in->chat, u, rules, e);
    if (r < 0)
        return r;
    out->input = ENGINE_CHAT;
    out->chat = chat;
    return 0;
}

static int take_stops(struct engine_request *out, const Nvllm__V1__Generate *g,
                      const struct request_rules *rules, struct refusal *e)
{
    struct name field;
    int r = check_limit(LIMIT_STOPS, g->n_stop, "stop", rules, e);

    if (r < 0)
        return r;
    for (size_t i = 0; i < g->n_stop; i++) {
        name_field(&field, "stop[%zu]", i);
        if (g->stop[i].len == 0)
            return refusal_of_field(e, INVALID, field.text, "is empty");
        if ((r = check_limit(LIMIT_STOP_BYTES, g->stop[i].len, field.text, rules, e)) < 0 ||
            (r = take_text(&out->stops[i], &g->stop[i], field.text, e)) < 0)
            return r;
    }
    out->n_stops = (int32_t)g->n_stop;
    return 0;
}

static int take_max_tokens(struct engine_request *out, const Nvllm__V1__Generate *g,
                           const struct request_rules *rules, struct refusal *e)
{
    int32_t limit = (int32_t)rules->options->max_max_tokens;

    out->most_tokens = limit;
    if (!g->has_max_tokens)
        return 0; /* as many as fit */
    if (g->max_tokens == 0)
        return refusal_of_field(e, INVALID, "max_tokens", "0 is less than 1");
    if (limit && g->max_tokens > (uint32_t)limit)
        return limit_refuse(e, rules->options, LIMIT_MAX_TOKENS, "max_tokens", g->max_tokens);
    if (g->max_tokens > (uint32_t)rules->max_seq_len)
        return refusal_of_field(e, TOO_LONG, "max_tokens",
                                "%" PRIu32 " is over the longest sequence, %" PRId32, g->max_tokens,
                                rules->max_seq_len);
    out->max_tokens = (int32_t)g->max_tokens;
    if (out->sampling.min_tokens > out->max_tokens)
        return refusal_of_field(e, INVALID, "sampling.min_tokens",
                                "%" PRId32 " is over max_tokens %" PRId32, out->sampling.min_tokens,
                                out->max_tokens);
    return 0;
}

/* What is high goes before all shares: that is no user's to take. */
static int take_priority(struct engine_request *out, const Nvllm__V1__Generate *g, bool admin,
                         struct refusal *e)
{
    out->priority = CORE_NORMAL;
    if (!g->has_priority)
        return 0;
    switch (g->priority) {
    case NVLLM__V1__PRIORITY__PRIORITY_NORMAL:
        return 0;
    case NVLLM__V1__PRIORITY__PRIORITY_LOW:
        out->priority = CORE_LOW;
        return 0;
    case NVLLM__V1__PRIORITY__PRIORITY_HIGH:
        if (!admin)
            return refusal_of_field(e, NVLLM__V1__ERROR_CODE__ERROR_DENIED, "priority",
                                    "high is for admins");
        out->priority = CORE_HIGH;
        return 0;
    default:
        return refusal_of_field(e, INVALID, "priority", "%d is no priority", (int)g->priority);
    }
}

int request_salt(struct text *out, const ProtobufCBinaryData *salt,
                 const struct request_rules *rules, struct refusal *e)
{
    int r = check_limit(LIMIT_SALT_BYTES, salt->len, "cache_salt", rules, e);

    if (r < 0)
        return r;
    *out = (struct text){(const char *)salt->data, salt->len};
    return 0;
}

int request_generate(struct engine_request *out, const Nvllm__V1__Generate *g, struct unpacked *u,
                     const struct request_rules *rules, bool admin, uint64_t now_us,
                     struct refusal *e)
{
    const struct request_input input = REQUEST_INPUT(g, input_case, NVLLM__V1__GENERATE__INPUT);
    struct engine_request r = {.n = 1};
    int ret;

    if (g->has_n && (ret = check_limit(LIMIT_CHOICES, g->n, "n", rules, e)) < 0)
        return ret;
    if ((ret = take_sampling(&r, g->sampling, u, rules, e)) < 0 ||
        (ret = take_uint(&r.n, g->has_n, g->n, 1, OPTIONS_MAX_CHOICES, "n", e)) < 0 ||
        (ret = take_max_tokens(&r, g, rules, e)) < 0 || (ret = take_stops(&r, g, rules, e)) < 0 ||
        (ret = take_priority(&r, g, admin, e)) < 0 ||
        (ret = request_input(&r, &input, u, rules, e)) < 0)
        return ret;
    if (g->has_cache_salt && (ret = request_salt(&r.cache_salt, &g->cache_salt, rules, e)) < 0)
        return ret;
    if (g->has_deadline_ms && g->deadline_ms)
        r.deadline_us = now_us + (uint64_t)g->deadline_ms * 1000;
    r.most_prompt_tokens = (int32_t)rules->options->max_prompt_tokens;
    r.stream = g->has_stream && g->stream;
    r.keep_special = g->has_keep_special && g->keep_special;
    *out = r;
    return 0;
}

/* ---- tokenizer */

int request_tokenize(struct text *out, const Nvllm__V1__Tokenize *t,
                     const struct request_rules *rules, struct refusal *e)
{
    int r;

    if ((r = check_limit(LIMIT_TOKENIZE_BYTES, t->text.len, "text", rules, e)) < 0 ||
        (r = check_limit(LIMIT_PROMPT_BYTES, t->text.len, "text", rules, e)) < 0)
        return r;
    *out = (struct text){NULL, 0};
    return t->has_text ? take_text(out, &t->text, "text", e) : 0;
}

int request_detokenize(const Nvllm__V1__Detokenize *d, const struct request_rules *rules,
                       struct refusal *e)
{
    return check_ids(d->ids, d->n_ids, rules, "ids", e);
}

/* ---- all of them */

int request_start(struct engine_request *out, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                  const struct request_rules *rules, bool admin, uint64_t now_us, struct refusal *e)
{
    struct chat *chat = NULL;
    int r;

    if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_GENERATE)
        return request_generate(out, f->generate, u, rules, admin, now_us, e);
    memset(out, 0, sizeof(*out));
    switch (f->op_case) {
    case NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE:
        out->kind = ENGINE_TOKENIZE;
        out->special = f->tokenize->has_special && f->tokenize->special;
        return request_tokenize(&out->prompt, f->tokenize, rules, e);
    case NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE:
        out->kind = ENGINE_DETOKENIZE;
        out->input = ENGINE_PROMPT_IDS;
        out->prompt_ids = f->detokenize->ids;
        out->n_prompt_ids = f->detokenize->n_ids;
        out->special = f->detokenize->has_skip_special && f->detokenize->skip_special;
        return request_detokenize(f->detokenize, rules, e);
    default:
        if (!f->render->chat)
            return refusal_of_field(e, INVALID, "chat", "is missing");
        r = request_chat(&chat, f->render->chat, u, rules, e);
        out->kind = ENGINE_RENDER;
        out->input = ENGINE_CHAT;
        out->chat = chat;
        return r;
    }
}

static uint64_t text_tokens(size_t n_bytes)
{
    enum { BYTES_A_TOKEN = 4 };

    return n_bytes / BYTES_A_TOKEN + 1;
}

uint64_t request_tokens(const struct engine_request *r)
{
    switch (r->input) {
    case ENGINE_PROMPT:
        return text_tokens(r->prompt.len);
    case ENGINE_PROMPT_IDS:
        return r->n_prompt_ids;
    case ENGINE_CHAT:
        break;
    }
    return text_tokens(chat_bytes(r->chat));
}
