/* pack.c - see pack.h. */
#include "client/lib/pack.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "client/lib/error.h"

static enum nvllm_code no_memory(struct nvllm_error *err)
{
    return error_set(err, NVLLM_E_NOMEM, ENOMEM, "out of memory for a request");
}

ProtobufCBinaryData pack_bytes(struct nvllm_text text)
{
    return (ProtobufCBinaryData){.len = text.len, .data = (uint8_t *)text.data};
}

/* False for a length without data. */
static bool set_bytes(protobuf_c_boolean *has, ProtobufCBinaryData *out, struct nvllm_text text)
{
    *has = text.data != NULL;
    *out = pack_bytes(text);
    return text.data || text.len == 0;
}

/* A text that is needed and absent, or that set_bytes() does not take: a field of an entry,
 * "chat.messages[0]", or with where "" one of the request. */
static enum nvllm_code no_data(struct nvllm_error *err, const char *where, const char *name)
{
    char field[sizeof(err->field)];

    snprintf(field, sizeof(field), "%s%s%s", where, *where && *name ? "." : "", name);
    return error_field(err, field, "%s has a length but no data", field);
}

static enum nvllm_code pack_texts(struct unpacked *memory, ProtobufCBinaryData **out,
                                  const struct nvllm_text *texts, size_t n, const char *field,
                                  struct nvllm_error *err)
{
    if (n == 0)
        return NVLLM_OK;
    if (!texts)
        return no_data(err, field, "");
    *out = unpacked_alloc(memory, n, sizeof(**out));
    if (!*out)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        char entry[64];

        snprintf(entry, sizeof(entry), "%s[%zu]", field, i);
        if (!texts[i].data && texts[i].len > 0)
            return no_data(err, entry, "");
        (*out)[i] = pack_bytes(texts[i]);
    }
    return NVLLM_OK;
}

/* ---- chat */

static enum nvllm_code pack_tool_calls(struct unpacked *memory, Nvllm__V1__Message *out,
                                       const struct nvllm_message *in, const char *where,
                                       struct nvllm_error *err)
{
    Nvllm__V1__ToolCall *calls =
        unpacked_list(memory, &out->tool_calls, in->n_tool_calls, sizeof(*calls));
    char entry[104];

    if (!calls)
        return no_memory(err);
    for (size_t i = 0; i < in->n_tool_calls; i++) {
        const struct nvllm_tool_call *call = &in->tool_calls[i];

        snprintf(entry, sizeof(entry), "%s.tool_calls[%zu]", where, i);
        nvllm__v1__tool_call__init(&calls[i]);
        if (!set_bytes(&calls[i].has_name, &calls[i].name, call->name))
            return no_data(err, entry, "name");
        if (!set_bytes(&calls[i].has_arguments, &calls[i].arguments, call->arguments))
            return no_data(err, entry, "arguments");
        if (!set_bytes(&calls[i].has_id, &calls[i].id, call->id))
            return no_data(err, entry, "id");
    }
    out->n_tool_calls = in->n_tool_calls;
    return NVLLM_OK;
}

static enum nvllm_code pack_message(struct unpacked *memory, Nvllm__V1__Message *out,
                                    const struct nvllm_message *in, size_t index,
                                    struct nvllm_error *err)
{
    char where[64];

    snprintf(where, sizeof(where), "chat.messages[%zu]", index);
    nvllm__v1__message__init(out);
    if (!in->role) {
        strcat(where, ".role");
        return error_field(err, where, "%s is NULL", where);
    }
    if (!set_bytes(&out->has_content, &out->content, in->content))
        return no_data(err, where, "content");
    if (!set_bytes(&out->has_reasoning_content, &out->reasoning_content, in->reasoning_content))
        return no_data(err, where, "reasoning_content");
    if (!set_bytes(&out->has_name, &out->name, in->name))
        return no_data(err, where, "name");
    if (!set_bytes(&out->has_tool_call_id, &out->tool_call_id, in->tool_call_id))
        return no_data(err, where, "tool_call_id");
    if (in->n_tool_calls > 0 && !in->tool_calls)
        return no_data(err, where, "tool_calls");
    out->role = (char *)in->role;
    return pack_tool_calls(memory, out, in, where, err);
}

static void pack_switch(protobuf_c_boolean *has, protobuf_c_boolean *out, enum nvllm_switch value)
{
    *has = value == NVLLM_ON || value == NVLLM_OFF;
    *out = value == NVLLM_ON;
}

static const struct nvllm_chat default_chat = {
    .size = sizeof(default_chat),
    .add_generation_prompt = NVLLM_UNSET,
    .enable_thinking = NVLLM_UNSET,
    .parallel_tool_calls = NVLLM_UNSET,
};

void nvllm_chat_init_size(struct nvllm_chat *chat, size_t size)
{
    sized_give(chat, size, &default_chat, sizeof(default_chat));
}

enum nvllm_code pack_chat(struct unpacked *memory, Nvllm__V1__Chat *out,
                          const struct nvllm_chat *given, struct nvllm_error *err)
{
    struct nvllm_chat ours = default_chat;
    const struct nvllm_chat *chat = &ours;
    Nvllm__V1__Message *messages;
    enum nvllm_code code;

    nvllm__v1__chat__init(out);
    if (!given || !sized_take(&ours, sizeof(ours), given))
        return error_field(err, "chat", "initialise the chat by nvllm_chat_init()");
    if (chat->n_messages > 0 && !chat->messages)
        return no_data(err, "chat.messages", "");
    messages = unpacked_list(memory, &out->messages, chat->n_messages, sizeof(*messages));
    if (!messages)
        return no_memory(err);
    for (size_t i = 0; i < chat->n_messages; i++) {
        code = pack_message(memory, &messages[i], &chat->messages[i], i, err);
        if (code != NVLLM_OK)
            return code;
    }
    out->n_messages = chat->n_messages;
    code = pack_texts(memory, &out->tools, chat->tools, chat->n_tools, "chat.tools", err);
    if (code != NVLLM_OK)
        return code;
    out->n_tools = chat->n_tools;
    code = pack_texts(memory, &out->documents, chat->documents, chat->n_documents, "chat.documents",
                      err);
    if (code != NVLLM_OK)
        return code;
    out->n_documents = chat->n_documents;
    if (!set_bytes(&out->has_chat_template_kwargs, &out->chat_template_kwargs,
                   chat->chat_template_kwargs))
        return no_data(err, "chat", "chat_template_kwargs");
    if (!set_bytes(&out->has_called_tool, &out->called_tool, chat->called_tool))
        return no_data(err, "chat", "called_tool");
    out->has_tool_choice = chat->tool_choice != NVLLM_TOOLS_AUTO;
    out->tool_choice = (Nvllm__V1__ToolChoice)chat->tool_choice;
    pack_switch(&out->has_parallel_tool_calls, &out->parallel_tool_calls,
                chat->parallel_tool_calls);
    pack_switch(&out->has_add_generation_prompt, &out->add_generation_prompt,
                chat->add_generation_prompt);
    pack_switch(&out->has_enable_thinking, &out->enable_thinking, chat->enable_thinking);
    return NVLLM_OK;
}

/* ---- input */

static const ProtobufCFieldDescriptor *field_of(const ProtobufCMessage *m, const char *name)
{
    return protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
}

/* Chooses a case of a message's oneof by its name; returns the place of its value. */
static void *choose(ProtobufCMessage *out, const char *name)
{
    const ProtobufCFieldDescriptor *field = field_of(out, name);

    *(uint32_t *)((char *)out + field->quantifier_offset) = field->id;
    return (char *)out + field->offset;
}

static enum nvllm_code pack_salt(ProtobufCMessage *out, struct nvllm_text salt,
                                 struct nvllm_error *err)
{
    const ProtobufCFieldDescriptor *field = field_of(out, "cache_salt");
    protobuf_c_boolean *has = (protobuf_c_boolean *)((char *)out + field->quantifier_offset);

    if (!set_bytes(has, (ProtobufCBinaryData *)((char *)out + field->offset), salt))
        return no_data(err, "cache_salt", "");
    return NVLLM_OK;
}

enum nvllm_code pack_input(struct unpacked *memory, ProtobufCMessage *out,
                           const struct nvllm_request *in, struct nvllm_error *err)
{
    int n_inputs = (in->prompt.data != NULL) + (in->prompt_ids != NULL) + (in->chat != NULL);
    enum nvllm_code code = NVLLM_OK;

    if (n_inputs != 1)
        return error_field(err, "input", "input: set exactly one of prompt%s, not %d",
                           field_of(out, "chat") ? ", prompt_ids and chat" : " and prompt_ids",
                           n_inputs);
    if (in->prompt.data) {
        *(ProtobufCBinaryData *)choose(out, "prompt") = pack_bytes(in->prompt);
    } else if (in->prompt_ids) {
        Nvllm__V1__TokenIds *m = unpacked_alloc(memory, 1, sizeof(*m));

        if (!m)
            return no_memory(err);
        nvllm__v1__token_ids__init(m);
        m->n_ids = in->n_prompt_ids;
        m->ids = (int32_t *)in->prompt_ids;
        *(Nvllm__V1__TokenIds **)choose(out, "prompt_ids") = m;
    } else {
        Nvllm__V1__Chat *m = unpacked_alloc(memory, 1, sizeof(*m));

        if (!m)
            return no_memory(err);
        *(Nvllm__V1__Chat **)choose(out, "chat") = m;
        code = pack_chat(memory, m, in->chat, err);
    }
    return code == NVLLM_OK ? pack_salt(out, in->cache_salt, err) : code;
}

/* ---- generate */

static void set_float(protobuf_c_boolean *has, float *out, float value)
{
    *has = !isnan(value);
    *out = value;
}

enum nvllm_code pack_count(protobuf_c_boolean *has, uint32_t *out, int64_t value, const char *field,
                           struct nvllm_error *err)
{
    if (value < 0)
        return NVLLM_OK;
    if (value > UINT32_MAX)
        return error_field(err, field, "%s: %lld is too large", field, (long long)value);
    *has = true;
    *out = (uint32_t)value;
    return NVLLM_OK;
}

enum nvllm_code pack_priority(protobuf_c_boolean *has, Nvllm__V1__Priority *out,
                              enum nvllm_priority priority, struct nvllm_error *err)
{
    if (priority < NVLLM_PRIORITY_NORMAL || priority > NVLLM_PRIORITY_HIGH)
        return error_field(err, "priority", "priority: %d is not a priority", (int)priority);
    *has = priority != NVLLM_PRIORITY_NORMAL;
    *out = (Nvllm__V1__Priority)priority;
    return NVLLM_OK;
}

static enum nvllm_code pack_logit_bias(struct unpacked *memory, Nvllm__V1__Sampling *out,
                                       const struct nvllm_request *r, struct nvllm_error *err)
{
    Nvllm__V1__LogitBias *biases;

    if (r->n_logit_bias > 0 && !r->logit_bias)
        return no_data(err, "sampling", "logit_bias");
    biases = unpacked_list(memory, &out->logit_bias, r->n_logit_bias, sizeof(*biases));
    if (!biases)
        return no_memory(err);
    for (size_t i = 0; i < r->n_logit_bias; i++) {
        nvllm__v1__logit_bias__init(&biases[i]);
        biases[i].has_id = biases[i].has_bias = true;
        biases[i].id = r->logit_bias[i].id;
        biases[i].bias = r->logit_bias[i].bias;
    }
    out->n_logit_bias = r->n_logit_bias;
    return NVLLM_OK;
}

static enum nvllm_code pack_sampling(struct unpacked *memory, Nvllm__V1__Sampling *out,
                                     const struct nvllm_request *r, struct nvllm_error *err)
{
    enum nvllm_code code;

    nvllm__v1__sampling__init(out);
    set_float(&out->has_temperature, &out->temperature, r->temperature);
    set_float(&out->has_top_p, &out->top_p, r->top_p);
    set_float(&out->has_min_p, &out->min_p, r->min_p);
    set_float(&out->has_repetition_penalty, &out->repetition_penalty, r->repetition_penalty);
    set_float(&out->has_presence_penalty, &out->presence_penalty, r->presence_penalty);
    set_float(&out->has_frequency_penalty, &out->frequency_penalty, r->frequency_penalty);
    out->has_seed = r->has_seed;
    out->seed = r->seed;
    out->has_ignore_eos = out->ignore_eos = r->ignore_eos;
    if (r->n_stop_token_ids > 0 && !r->stop_token_ids)
        return no_data(err, "sampling", "stop_token_ids");
    out->n_stop_token_ids = r->n_stop_token_ids;
    out->stop_token_ids = (int32_t *)r->stop_token_ids;
    if ((code = pack_count(&out->has_top_k, &out->top_k, r->top_k, "sampling.top_k", err)) ||
        (code = pack_count(&out->has_min_tokens, &out->min_tokens, r->min_tokens,
                           "sampling.min_tokens", err)) ||
        (code =
             pack_count(&out->has_logprobs, &out->logprobs, r->logprobs, "sampling.logprobs", err)))
        return code;
    return pack_logit_bias(memory, out, r, err);
}

static enum nvllm_code pack_choices(struct unpacked *memory, Nvllm__V1__ResponseFormat *out,
                                    const struct nvllm_request *r, struct nvllm_error *err)
{
    Nvllm__V1__Choices *m = unpacked_alloc(memory, 1, sizeof(*m));

    if (!m)
        return no_memory(err);
    nvllm__v1__choices__init(m);
    *(Nvllm__V1__Choices **)choose(&out->base, "choice") = m;
    m->n_texts = r->n_format_choices;
    return pack_texts(memory, &m->texts, r->format_choices, r->n_format_choices,
                      "response_format.choice.texts", err);
}

static enum nvllm_code pack_format(struct unpacked *memory, Nvllm__V1__ResponseFormat **out,
                                   const struct nvllm_request *r, struct nvllm_error *err)
{
    static const char *const names[] = {
        [NVLLM_FORMAT_JSON] = "json_object", [NVLLM_FORMAT_JSON_SCHEMA] = "json_schema",
        [NVLLM_FORMAT_REGEX] = "regex",      [NVLLM_FORMAT_GRAMMAR] = "grammar",
        [NVLLM_FORMAT_CHOICE] = "choice",
    };
    Nvllm__V1__ResponseFormat *m;

    if (r->format == NVLLM_FORMAT_TEXT)
        return NVLLM_OK;
    if (r->format < NVLLM_FORMAT_TEXT || r->format > NVLLM_FORMAT_CHOICE)
        return error_field(err, "response_format", "response_format: %d is not a format",
                           (int)r->format);
    m = unpacked_alloc(memory, 1, sizeof(*m));
    if (!m)
        return no_memory(err);
    nvllm__v1__response_format__init(m);
    *out = m;
    if (r->format == NVLLM_FORMAT_CHOICE)
        return pack_choices(memory, m, r, err);
    if (r->format == NVLLM_FORMAT_JSON) {
        *(protobuf_c_boolean *)choose(&m->base, names[r->format]) = true;
        return NVLLM_OK;
    }
    if (!r->format_text.data)
        return no_data(err, "response_format", names[r->format]);
    *(ProtobufCBinaryData *)choose(&m->base, names[r->format]) = pack_bytes(r->format_text);
    return NVLLM_OK;
}

/* A session's turn may have no input. */
static enum nvllm_code pack_generate_input(struct unpacked *memory, Nvllm__V1__Generate *out,
                                           const struct nvllm_request *r, struct nvllm_error *err)
{
    out->session = (char *)r->session;
    if (r->session && !r->prompt.data && !r->prompt_ids && !r->chat)
        return pack_salt(&out->base, r->cache_salt, err);
    return pack_input(memory, &out->base, r, err);
}

static const struct nvllm_request default_request = {
    .size = sizeof(default_request),
    .temperature = NAN,
    .top_k = -1,
    .top_p = NAN,
    .min_p = NAN,
    .repetition_penalty = NAN,
    .presence_penalty = NAN,
    .frequency_penalty = NAN,
    .min_tokens = -1,
    .max_tokens = -1,
    .logprobs = -1,
    .n = -1,
    .stream = true,
    .timeout_ms = -1,
};

void nvllm_request_init_size(struct nvllm_request *request, size_t size)
{
    sized_give(request, size, &default_request, sizeof(default_request));
}

enum nvllm_code pack_generate(struct unpacked *memory, Nvllm__V1__Generate *out,
                              struct nvllm_request *ours, const struct nvllm_request *request,
                              struct nvllm_error *err)
{
    const struct nvllm_request *r = ours;
    enum nvllm_code code;

    *ours = default_request;
    nvllm__v1__generate__init(out);
    if (!request || !sized_take(ours, sizeof(*ours), request))
        return error_field(err, "request", "initialise the request by nvllm_request_init()");
    out->sampling = unpacked_alloc(memory, 1, sizeof(*out->sampling));
    if (!out->sampling)
        return no_memory(err);
    if ((code = pack_generate_input(memory, out, r, err)) ||
        (code = pack_sampling(memory, out->sampling, r, err)) ||
        (code = pack_count(&out->has_max_tokens, &out->max_tokens, r->max_tokens, "max_tokens",
                           err)) ||
        (code = pack_count(&out->has_n, &out->n, r->n, "n", err)) ||
        (code = pack_texts(memory, &out->stop, r->stop, r->n_stop, "stop", err)) ||
        (code = pack_format(memory, &out->response_format, r, err)) ||
        (code = pack_priority(&out->has_priority, &out->priority, r->priority, err)))
        return code;
    out->n_stop = r->n_stop;
    out->has_deadline_ms = r->deadline_ms != 0;
    out->deadline_ms = r->deadline_ms;
    out->has_stream = true;
    out->stream = r->stream;
    out->has_keep_special = out->keep_special = r->keep_special;
    out->has_raw_text = out->raw_text = r->raw_text;
    return NVLLM_OK;
}
