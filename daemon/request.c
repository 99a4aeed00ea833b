/* request.c - see request.h. */
#include "daemon/request_checker.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/text/text_stream.h"

/* ---- sampling */

/* open: the lower bound itself is not allowed. */
static void take_float(struct checker *c, float *out, float value, bool open, float lo, float hi,
                       const char *field)
{
    const bool inside = (open ? value > lo : value >= lo) && value <= hi; /* NaN is not */

    if (!inside && hi >= INFINITY)
        refuse(c, CODE(INVALID), field, "must be a number %s %g, not %g",
               open ? "above" : "of at least", (double)lo, (double)value);
    else if (!inside)
        refuse(c, CODE(INVALID), field, "%g is not in %c%g, %g]", (double)value, open ? '(' : '[',
               (double)lo, (double)hi);
    else if (isinf(value))
        refuse(c, CODE(INVALID), field, "is infinite");
    else
        *out = value;
}

static void take_uint(struct checker *c, int32_t *out, uint32_t value, uint32_t lo, uint32_t hi,
                      const char *field)
{
    if (value < lo || value > hi)
        refuse(c, CODE(INVALID), field, "%" PRIu32 " is not in [%" PRIu32 ", %" PRIu32 "]", value,
               lo, hi);
    else
        *out = (int32_t)value;
}

static void check_id(struct checker *c, int32_t id, const char *field)
{
    if (id < 0 || id >= c->rules->vocab_size)
        refuse(c, CODE(INVALID), field, "%" PRId32 " is not in the vocabulary, [0, %" PRId32 "]",
               id, c->rules->vocab_size - 1);
}

/* Checks the entries of a field. */
static void check_ids(struct checker *c, const int32_t *ids, size_t n, const char *field)
{
    for (size_t i = 0; c->r == 0 && i < n; i++)
        if (ids[i] < 0 || ids[i] >= c->rules->vocab_size) {
            enter(c, field, i);
            check_id(c, ids[i], "");
        }
}

static void take_bias(struct checker *c, struct sampling *s, const Nvllm__V1__Sampling *m)
{
    struct logit_bias *bias;

    check_limit(c, LIMIT_LOGIT_BIAS, m->n_logit_bias, "sampling.logit_bias");
    bias = take_memory(c, m->n_logit_bias, sizeof(*bias));
    for (size_t i = 0; c->r == 0 && i < m->n_logit_bias; i++) {
        const Nvllm__V1__LogitBias *b = m->logit_bias[i];
        const size_t path = enter(c, "sampling.logit_bias", i);

        if (!b->has_id)
            refuse(c, CODE(INVALID), "id", "is missing");
        check_id(c, b->id, "id");
        bias[i].id = b->id;
        if (!b->has_bias)
            refuse(c, CODE(INVALID), "bias", "is missing");
        take_float(c, &bias[i].bias, b->bias, false, -100, 100, "bias");
        leave(c, path);
    }
    s->bias = bias;
    s->n_bias = (int32_t)m->n_logit_bias;
}

static void take_numbers(struct checker *c, struct sampling *s, const Nvllm__V1__Sampling *m)
{
#define FIELD(name) m->has_##name, m->name, &s->name, "sampling." #name
    const struct {
        protobuf_c_boolean has;
        float value, *out;
        const char *field;
        bool open;
        float lo, hi;
    } reals[] = {
        {FIELD(temperature), false, 0, INFINITY},
        {FIELD(top_p), true, 0, 1},
        {FIELD(min_p), false, 0, 1},
        {FIELD(repetition_penalty), true, 0, INFINITY},
        {FIELD(presence_penalty), false, -2, 2},
        {FIELD(frequency_penalty), false, -2, 2},
    };
#undef FIELD

    for (size_t i = 0; i < sizeof(reals) / sizeof(*reals); i++)
        if (reals[i].has)
            take_float(c, reals[i].out, reals[i].value, reals[i].open, reals[i].lo, reals[i].hi,
                       reals[i].field);
    if (m->has_top_k)
        take_uint(c, &s->top_k, m->top_k, 0, INT32_MAX, "sampling.top_k");
    if (m->has_min_tokens)
        take_uint(c, &s->min_tokens, m->min_tokens, 0, (uint32_t)c->rules->max_seq_len,
                  "sampling.min_tokens");
    if (m->has_logprobs) {
        check_limit(c, LIMIT_LOGPROBS, m->logprobs, "sampling.logprobs");
        take_uint(c, &s->n_logprobs, m->logprobs, 0, SAMPLING_MAX_LOGPROBS, "sampling.logprobs");
    }
}

static void take_sampling(struct checker *c, struct engine_request *out,
                          const Nvllm__V1__Sampling *m)
{
    static const Nvllm__V1__Sampling silent = NVLLM__V1__SAMPLING__INIT;
    const struct model_defaults *d = c->rules->defaults;
    struct sampling *s = &out->sampling;

    *s = (struct sampling){
        .temperature = d->temperature,
        .top_k = d->top_k,
        .top_p = d->top_p,
        .min_p = d->min_p,
        .repetition_penalty = d->repetition_penalty,
        .n_logprobs = -1,
    };
    if (!m)
        m = &silent;
    take_numbers(c, s, m);
    take_bias(c, s, m);
    check_limit(c, LIMIT_STOP_TOKEN_IDS, m->n_stop_token_ids, "sampling.stop_token_ids");
    check_ids(c, m->stop_token_ids, m->n_stop_token_ids, "sampling.stop_token_ids");
    s->stop_ids = m->stop_token_ids;
    s->n_stop_ids = (int32_t)m->n_stop_token_ids;
    if (m->has_seed)
        s->seed = m->seed;
    else if (getrandom(&s->seed, sizeof(s->seed), 0) != sizeof(s->seed) && c->r == 0)
        c->r = -ENOMEM; /* does not happen to 8 bytes once the kernel has entropy */
    out->ignore_eos = m->has_ignore_eos && m->ignore_eos;
}

/* ---- generate */

static void check_prompt_ids(struct checker *c, const struct engine_request *out,
                             const Nvllm__V1__TokenIds *ids)
{
    const size_t longest = (size_t)c->rules->max_seq_len;

    if (ids->n_ids == 0)
        refuse(c, CODE(INVALID), "prompt_ids", "is empty");
    if (c->rules->options->max_prompt_tokens)
        check_limit(c, LIMIT_PROMPT_TOKENS, ids->n_ids, "prompt_ids");
    if (out->kind == ENGINE_EMBED && ids->n_ids > longest)
        refuse(c, CODE(TOO_LONG), "prompt_ids",
               "%zu tokens exceed the longest sequence, %zu tokens", ids->n_ids, longest);
    else if (out->kind != ENGINE_EMBED && ids->n_ids >= longest)
        refuse(c, CODE(TOO_LONG), "prompt_ids",
               "%zu tokens leave no room for an answer: the longest sequence is %zu tokens",
               ids->n_ids, longest);
    check_ids(c, ids->ids, ids->n_ids, "prompt_ids.ids");
}

/* Where a message's oneof has the value of this case; NULL: it is another case, or has no such one.
 */
static const void *chosen(const ProtobufCMessage *m, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
    const uint32_t *id = field ? (const void *)((const char *)m + field->quantifier_offset) : NULL;

    return id && *id == field->id ? (const char *)m + field->offset : NULL;
}

/* The input of Generate, Embed, PinCache and Explain, whose oneofs name the cases alike. */
static void take_input(struct checker *c, struct engine_request *out, const ProtobufCMessage *m)
{
    const ProtobufCBinaryData *prompt = chosen(m, "prompt");
    Nvllm__V1__TokenIds *const *ids = chosen(m, "prompt_ids");
    Nvllm__V1__Chat *const *chat = chosen(m, "chat");

    if (prompt) {
        check_limit(c, LIMIT_PROMPT_BYTES, prompt->len, "prompt");
        if (prompt->len == 0)
            refuse(c, CODE(INVALID), "prompt", "is empty");
        out->input = ENGINE_PROMPT;
        take_text(c, &out->prompt, prompt->data, prompt->len, "prompt");
    } else if (ids) {
        out->input = ENGINE_PROMPT_IDS;
        out->prompt_ids = (*ids)->ids;
        out->n_prompt_ids = (*ids)->n_ids;
        check_prompt_ids(c, out, *ids);
    } else if (chat) {
        out->input = ENGINE_CHAT;
        out->chat = request_take_prompt(c, *chat);
    } else {
        refuse(c, CODE(INVALID), "input", "one of prompt%s is required",
               out->kind == ENGINE_EMBED ? " and prompt_ids" : ", prompt_ids and chat");
    }
}

static void take_stops(struct checker *c, struct engine_request *out, const Nvllm__V1__Generate *g)
{
    check_limit(c, LIMIT_STOPS, g->n_stop, "stop");
    for (size_t i = 0; c->r == 0 && i < g->n_stop; i++) {
        const size_t path = enter(c, "stop", i);

        if (g->stop[i].len == 0)
            refuse(c, CODE(INVALID), "", "is empty");
        check_limit(c, LIMIT_STOP_BYTES, g->stop[i].len, "");
        take_text(c, &out->stops[i], g->stop[i].data, g->stop[i].len, "");
        leave(c, path);
    }
    out->n_stops = (int32_t)g->n_stop;
}

static void take_format_text(struct checker *c, struct text *out, const ProtobufCBinaryData *text,
                             const char *field)
{
    if (text->len > FORMAT_MAX_SOURCE)
        refuse(c, CODE(INVALID), field, "is longer than %d bytes", FORMAT_MAX_SOURCE);
    take_text(c, out, text->data, text->len, field);
}

static void take_choices(struct checker *c, struct engine_request *r, const Nvllm__V1__Choices *m)
{
    static const char field[] = "response_format.choice.texts";
    size_t bytes = 0;

    r->format.kind = FORMAT_CHOICE;
    r->format.choices = take_texts(c, m->texts, m->n_texts, field);
    r->format.n_choices = m->n_texts;
    for (size_t i = 0; i < m->n_texts; i++)
        bytes += m->texts[i].len;
    if (m->n_texts == 0)
        refuse(c, CODE(INVALID), field, "is empty");
    if (bytes > FORMAT_MAX_SOURCE)
        refuse(c, CODE(INVALID), field, "is longer than %d bytes", FORMAT_MAX_SOURCE);
}

static void take_format(struct checker *c, struct engine_request *r,
                        const Nvllm__V1__ResponseFormat *m)
{
    static const struct {
        enum format_kind kind;
        const char *name, *field;
    } kinds[] = {{FORMAT_JSON_SCHEMA, "json_schema", "response_format.json_schema"},
                 {FORMAT_REGEX, "regex", "response_format.regex"},
                 {FORMAT_GRAMMAR, "grammar", "response_format.grammar"}};
    const protobuf_c_boolean *object = chosen(&m->base, "json_object");
    Nvllm__V1__Choices *const *choice = chosen(&m->base, "choice");

    if (object && *object)
        r->format.kind = FORMAT_JSON_OBJECT;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        const ProtobufCBinaryData *text = chosen(&m->base, kinds[i].name);

        if (!text)
            continue;
        r->format.kind = kinds[i].kind;
        take_format_text(c, &r->format.text, text, kinds[i].field);
    }
    if (choice)
        take_choices(c, r, *choice);
    if (r->format.kind == FORMAT_NONE)
        refuse(c, CODE(INVALID), "response_format", "one of its fields is required");
    if (r->ignore_eos)
        refuse(c, CODE(INVALID), "sampling.ignore_eos", "cannot be set beside response_format");
}

static void take_max_tokens(struct checker *c, struct engine_request *out,
                            const Nvllm__V1__Generate *g)
{
    const int32_t longest = c->rules->max_seq_len;

    out->max_tokens_limit = (int32_t)c->rules->options->max_max_tokens;
    if (!g->has_max_tokens)
        return; /* as many as fit */
    if (g->max_tokens == 0)
        refuse(c, CODE(INVALID), "max_tokens", "must be at least 1");
    if (out->max_tokens_limit)
        check_limit(c, LIMIT_MAX_TOKENS, g->max_tokens, "max_tokens");
    if (g->max_tokens > (uint32_t)longest)
        refuse(c, CODE(TOO_LONG), "max_tokens",
               "%" PRIu32 " exceeds the longest sequence, %" PRId32, g->max_tokens, longest);
    out->max_tokens = (int32_t)g->max_tokens;
    if (out->sampling.min_tokens > out->max_tokens)
        refuse(c, CODE(INVALID), "sampling.min_tokens", "%" PRId32 " exceeds max_tokens, %" PRId32,
               out->sampling.min_tokens, out->max_tokens);
}

/* High priority goes before all shares, so it is for admins. */
static void take_priority(struct checker *c, struct engine_request *out,
                          Nvllm__V1__Priority priority)
{
    out->priority = CORE_NORMAL;
    if (priority == NVLLM__V1__PRIORITY__PRIORITY_NORMAL)
        return;
    if (priority == NVLLM__V1__PRIORITY__PRIORITY_LOW)
        out->priority = CORE_LOW;
    else if (priority != NVLLM__V1__PRIORITY__PRIORITY_HIGH)
        refuse(c, CODE(INVALID), "priority", "%d is not a priority", (int)priority);
    else if (!c->origin->admin)
        refuse(c, CODE(DENIED), "priority", "high is for administrators");
    else
        out->priority = CORE_HIGH;
}

static void take_salt(struct checker *c, struct text *out, const ProtobufCBinaryData *salt)
{
    check_limit(c, LIMIT_SALT_BYTES, salt->len, "cache_salt");
    *out = (struct text){(const char *)salt->data, salt->len};
}

/* What generate and embed requests have in common. The message's absent fields are 0. */
static void take_common(struct checker *c, struct engine_request *r, Nvllm__V1__Priority priority,
                        const ProtobufCBinaryData *salt, uint32_t deadline_ms)
{
    take_priority(c, r, priority);
    take_salt(c, &r->cache_salt, salt);
    if (deadline_ms)
        r->deadline_us = c->origin->now_us + (uint64_t)deadline_ms * 1000;
    r->prompt_tokens_limit = (int32_t)c->rules->options->max_prompt_tokens;
}

/* The messages that a turn appends to its session, and which of its tools the answer may call. */
static void take_turn(struct checker *c, struct engine_request *r, const Nvllm__V1__Generate *g)
{
    static const Nvllm__V1__Chat none = NVLLM__V1__CHAT__INIT;
    const bool has_chat = g->input_case == NVLLM__V1__GENERATE__INPUT_CHAT;
    const Nvllm__V1__Chat *m = has_chat ? g->chat : &none;

    if (!has_chat && g->input_case != NVLLM__V1__GENERATE__INPUT__NOT_SET)
        refuse(c, CODE(INVALID), "session", "is for a chat, not for prompt and prompt_ids");
    if (m->n_tools || m->n_documents || m->has_chat_template_kwargs || m->has_enable_thinking ||
        m->has_add_generation_prompt)
        refuse(c, CODE(INVALID), "chat",
               "has messages and a choice of tools in a session: all else was set when that was "
               "created");
    if (r->n != 1)
        refuse(c, CODE(INVALID), "n", "a session takes one answer a turn");
    if (r->raw_text || r->keep_special)
        refuse(c, CODE(INVALID), r->raw_text ? "raw_text" : "keep_special",
               "cannot be set in a session, which holds the parts of the answer");
    r->input = ENGINE_CHAT;
    r->chat = request_take_chat(c, m);
}

static void take_generate(struct checker *c, struct engine_request *r, const Nvllm__V1__Generate *g)
{
    r->n = 1;
    if (g->has_n)
        check_limit(c, LIMIT_CHOICES, g->n, "n");
    take_sampling(c, r, g->sampling);
    if (g->has_n)
        take_uint(c, &r->n, g->n, 1, OPTIONS_MAX_CHOICES, "n");
    take_max_tokens(c, r, g);
    take_stops(c, r, g);
    take_common(c, r, g->priority, &g->cache_salt, g->deadline_ms);
    r->stream = g->has_stream && g->stream;
    r->keep_special = g->has_keep_special && g->keep_special;
    r->raw_text = g->has_raw_text && g->raw_text;
    if (g->session)
        take_turn(c, r, g);
    else
        take_input(c, r, &g->base);
    if (g->response_format)
        take_format(c, r, g->response_format);
}

static void take_embed(struct checker *c, struct engine_request *r, const Nvllm__V1__Embed *m)
{
    r->kind = ENGINE_EMBED;
    r->prompt_name = m->prompt_name;
    if (m->prompt_name && !utf8_valid(m->prompt_name, strlen(m->prompt_name)))
        refuse(c, CODE(INVALID), "prompt_name", "is not UTF-8");
    if (m->prompt_name && m->input_case == NVLLM__V1__EMBED__INPUT_PROMPT_IDS)
        refuse(c, CODE(INVALID), "prompt_name", "is for a text, not for prompt_ids");
    if (m->has_dimensions)
        take_uint(c, &r->dimensions, m->dimensions, 1, INT32_MAX, "dimensions");
    take_common(c, r, m->priority, &m->cache_salt, m->deadline_ms);
    take_input(c, r, &m->base);
}

/* ---- looks into the engine, and changes of its prefix cache */

enum { TRACE_MS = 5000, TRACE_MOST_MS = 600000 };

static int32_t limit_of(uint32_t limit)
{
    return limit == 0 || limit > INSPECT_MAX_ENTRIES ? INSPECT_MAX_ENTRIES : (int32_t)limit;
}

static void take_pin(struct checker *c, struct engine_request *out, const Nvllm__V1__PinCache *m)
{
    out->query.kind = INSPECT_CACHE_PIN;
    out->query.unpin = m->has_unpin && m->unpin;
    if (m->has_uid)
        out->query.client = m->uid;
    take_salt(c, &out->query.cache_salt, &m->cache_salt);
    take_input(c, out, &m->base);
}

static void take_explain(struct checker *c, struct engine_request *out, const Nvllm__V1__Explain *m)
{
    if (m->about_case == NVLLM__V1__EXPLAIN__ABOUT_REQUEST) {
        out->query.kind = INSPECT_EXPLAIN_REQUEST;
        out->query.request = m->request;
        return;
    }
    out->query.kind = INSPECT_EXPLAIN_PROMPT;
    if (m->about_case == NVLLM__V1__EXPLAIN__ABOUT__NOT_SET)
        refuse(c, CODE(INVALID), "about",
               "one of request, prompt, prompt_ids and chat is required");
    take_salt(c, &out->query.cache_salt, &m->cache_salt);
    take_input(c, out, &m->base);
}

static void take_inspect(struct checker *c, struct engine_request *out,
                         const Nvllm__V1__ClientFrame *f)
{
    struct inspect_query *q = &out->query;
    const uint64_t uid = c->origin->uid;

    out->kind = ENGINE_INSPECT;
    *q = (struct inspect_query){.viewer = uid,
                                .all = c->origin->admin,
                                .limit = INSPECT_MAX_ENTRIES,
                                .client = uid};
    switch (f->op_case) {
    case OP(LIST_REQUESTS):
        q->kind = INSPECT_REQUESTS;
        q->limit = limit_of(f->list_requests->limit);
        break;
    case OP(GET_BLOCKS):
        q->kind = INSPECT_BLOCKS;
        q->map = f->get_blocks->has_map && f->get_blocks->map;
        break;
    case OP(SHOW_CACHE):
        q->kind = INSPECT_CACHE;
        q->limit = limit_of(f->show_cache->limit);
        break;
    case OP(CLEAR_CACHE):
        q->kind = INSPECT_CACHE_CLEAR;
        q->clear_all = f->clear_cache->has_all && f->clear_cache->all;
        if (q->clear_all && !q->all)
            refuse(c, CODE(DENIED), "all", "only administrators may clear the caches of all users");
        break;
    case OP(PIN_CACHE):
        take_pin(c, out, f->pin_cache);
        break;
    case OP(SLEEP):
        q->kind = INSPECT_SLEEP;
        q->level = f->sleep->has_level ? (enum sleep_level)f->sleep->level : SLEEP_ALL;
        if (q->level != SLEEP_WEIGHTS && q->level != SLEEP_ALL)
            refuse(c, CODE(INVALID), "level", "%d is neither SLEEP_WEIGHTS nor SLEEP_ALL",
                   (int)q->level);
        break;
    case OP(WAKE):
        q->kind = INSPECT_WAKE;
        break;
    case OP(TRACE):
        q->kind = INSPECT_TRACE;
        q->duration_ms = f->trace->has_duration_ms ? f->trace->duration_ms : TRACE_MS;
        if (q->duration_ms < 1 || q->duration_ms > TRACE_MOST_MS)
            refuse(c, CODE(INVALID), "duration_ms", "%" PRIu32 " is not in 1 .. %d", q->duration_ms,
                   TRACE_MOST_MS);
        break;
    default:
        take_explain(c, out, f->explain);
        break;
    }
}

/* ---- all of them */

int request_start(struct engine_request *out, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                  const struct request_rules *rules, const struct request_origin *origin,
                  struct refusal *e)
{
    struct checker c = {.rules = rules, .origin = origin, .u = u, .e = e};
    const Nvllm__V1__Tokenize *t = f->tokenize;

    *out = (struct engine_request){.client = origin->uid};
    switch (f->op_case) {
    case OP(GENERATE):
        take_generate(&c, out, f->generate);
        break;
    case OP(EMBED):
        take_embed(&c, out, f->embed);
        break;
    case OP(TOKENIZE):
        out->kind = ENGINE_TOKENIZE;
        out->special = t->has_special && t->special;
        check_limit(&c, LIMIT_TOKENIZE_BYTES, t->text.len, "text");
        check_limit(&c, LIMIT_PROMPT_BYTES, t->text.len, "text");
        take_text(&c, &out->prompt, t->text.data, t->text.len, "text");
        if (t->n_ids == 0)
            break;
        if (t->text.len > 0)
            refuse(&c, CODE(INVALID), "ids", "only one of text and ids can be turned into tokens");
        out->input = ENGINE_PROMPT_IDS;
        out->prompt_ids = t->ids;
        out->n_prompt_ids = t->n_ids;
        check_ids(&c, t->ids, t->n_ids, "ids");
        break;
    case OP(DETOKENIZE):
        out->kind = ENGINE_DETOKENIZE;
        out->input = ENGINE_PROMPT_IDS;
        out->prompt_ids = f->detokenize->ids;
        out->n_prompt_ids = f->detokenize->n_ids;
        out->special = f->detokenize->has_skip_special && f->detokenize->skip_special;
        check_ids(&c, out->prompt_ids, out->n_prompt_ids, "ids");
        break;
    case OP(RENDER):
        out->kind = ENGINE_RENDER;
        out->input = ENGINE_CHAT;
        if (f->render->chat)
            out->chat = request_take_prompt(&c, f->render->chat);
        else
            refuse(&c, CODE(INVALID), "chat", "is missing");
        break;
    default:
        take_inspect(&c, out, f);
        break;
    }
    return c.r;
}

static uint64_t text_tokens(size_t n_bytes)
{
    enum { BYTES_A_TOKEN = 4 };

    return n_bytes / BYTES_A_TOKEN + 1;
}

uint64_t request_tokens(const struct engine_request *r)
{
    if (r->kind == ENGINE_INSPECT && !inspect_has_prompt(r->query.kind))
        return 0;
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
