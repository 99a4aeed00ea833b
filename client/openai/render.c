/* render.c - see render.h. Written by hand into the buffer of the connection, because it is done
 * for each token. */
#include "client/openai/render.h"

#include <inttypes.h>

static void put_text(struct buf *out, struct nvllm_text text)
{
    buf_json_string(out, text.data, text.len);
}

/* ---- logprobs */

static struct nvllm_text bytes_of(struct tokens *tokens, int32_t id)
{
    struct nvllm_text bytes = {"", 0};

    tokens_find(tokens, id, &bytes);
    return bytes;
}

/* The members of a token, without its braces. */
static void put_token(struct buf *out, struct nvllm_text bytes, float logprob)
{
    buf_lit(out, "\"token\":");
    put_text(out, bytes);
    buf_lit(out, ",\"logprob\":");
    buf_json_real(out, (double)logprob);
    buf_lit(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++) {
        if (i > 0)
            buf_lit(out, ",");
        buf_uint(out, (unsigned char)bytes.data[i]);
    }
    buf_lit(out, "]");
}

static void put_chat_logprobs(struct buf *out, struct tokens *tokens,
                              const struct nvllm_delta *delta)
{
    buf_lit(out, "{\"content\":[");
    for (size_t i = 0; i < delta->n_tokens; i++) {
        const struct nvllm_logprobs *row = &delta->logprobs[i];

        buf_str(out, i > 0 ? ",{" : "{");
        put_token(out, bytes_of(tokens, delta->token_ids[i]), row->logprob);
        buf_lit(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < row->n_top; k++) {
            buf_str(out, k > 0 ? ",{" : "{");
            put_token(out, bytes_of(tokens, row->top_ids[k]), row->top_logprobs[k]);
            buf_lit(out, "}");
        }
        buf_lit(out, "]}");
    }
    buf_lit(out, "],\"refusal\":null}");
}

/* The best ones, and the token itself if it is not one of them. */
static void put_top(struct buf *out, struct tokens *tokens, int32_t id,
                    const struct nvllm_logprobs *row)
{
    bool has_own = false;

    buf_lit(out, "{");
    for (uint32_t k = 0; k < row->n_top; k++) {
        if (k > 0)
            buf_lit(out, ",");
        put_text(out, bytes_of(tokens, row->top_ids[k]));
        buf_lit(out, ":");
        buf_json_real(out, (double)row->top_logprobs[k]);
        has_own = has_own || row->top_ids[k] == id;
    }
    if (!has_own) {
        if (row->n_top > 0)
            buf_lit(out, ",");
        put_text(out, bytes_of(tokens, id));
        buf_lit(out, ":");
        buf_json_real(out, (double)row->logprob);
    }
    buf_lit(out, "}");
}

static uint64_t letters_of(struct nvllm_text bytes)
{
    uint64_t n = 0;

    for (size_t i = 0; i < bytes.len; i++)
        n += ((unsigned char)bytes.data[i] & 0xc0) != 0x80;
    return n;
}

static void put_completion_logprobs(struct buf *out, struct tokens *tokens, struct render_choice *c,
                                    const struct nvllm_delta *delta)
{
    const char *comma = "";

    buf_lit(out, "{\"tokens\":[");
    for (size_t i = 0; i < delta->n_tokens; i++, comma = ",") {
        buf_str(out, comma);
        put_text(out, bytes_of(tokens, delta->token_ids[i]));
    }
    buf_lit(out, "],\"token_logprobs\":[");
    comma = "";
    for (size_t i = 0; i < delta->n_tokens; i++, comma = ",") {
        buf_str(out, comma);
        buf_json_real(out, (double)delta->logprobs[i].logprob);
    }
    buf_lit(out, "],\"top_logprobs\":[");
    comma = "";
    for (size_t i = 0; i < delta->n_tokens; i++, comma = ",") {
        buf_str(out, comma);
        put_top(out, tokens, delta->token_ids[i], &delta->logprobs[i]);
    }
    buf_lit(out, "],\"text_offset\":[");
    comma = "";
    for (size_t i = 0; i < delta->n_tokens; i++, comma = ",") {
        buf_str(out, comma);
        buf_uint(out, c->n_letters);
        c->n_letters += letters_of(bytes_of(tokens, delta->token_ids[i]));
    }
    buf_lit(out, "]}");
}

/* ---- choices */

/* The elements of tool_calls; those of a stream are numbered. */
static void put_calls(struct buf *out, const struct render *how, struct render_choice *c,
                      const struct nvllm_delta *delta)
{
    for (size_t i = 0; i < delta->n_tool_calls; i++) {
        const struct nvllm_tool_call *call = &delta->tool_calls[i];

        buf_str(out, i > 0 ? ",{" : "{");
        if (how->stream)
            buf_printf(out, "\"index\":%" PRIu32 ",", c->n_calls);
        c->n_calls++;
        buf_lit(out, "\"id\":");
        put_text(out, call->id);
        buf_lit(out, ",\"type\":\"function\",\"function\":{\"name\":");
        put_text(out, call->name);
        buf_lit(out, ",\"arguments\":");
        put_text(out, call->arguments);
        buf_lit(out, "}}");
    }
}

/* Members of a message, or of a delta of one. */
static void put_message(struct buf *out, const struct render *how, struct render_choice *c,
                        const struct nvllm_delta *delta)
{
    const bool whole = !how->stream;
    const char *comma = "";

    if (!c->begun) {
        buf_lit(out, "\"role\":\"assistant\"");
        comma = ",";
    }
    if (delta->text.len > 0 || whole || !c->begun) {
        buf_str(out, comma);
        buf_lit(out, "\"content\":");
        if (whole && delta->text.len == 0 && delta->n_tool_calls > 0)
            buf_lit(out, "null");
        else
            put_text(out, delta->text);
        comma = ",";
    }
    if (whole)
        buf_lit(out, ",\"refusal\":null");
    if (delta->reasoning.len > 0) {
        buf_str(out, comma);
        buf_lit(out, "\"reasoning_content\":");
        put_text(out, delta->reasoning);
        comma = ",";
    }
    if (delta->n_tool_calls > 0) {
        buf_str(out, comma);
        buf_lit(out, "\"tool_calls\":[");
        put_calls(out, how, c, delta);
        buf_lit(out, "]");
    }
}

void render_choice(struct buf *out, const struct render *how, struct render_choice *c,
                   const struct nvllm_delta *delta)
{
    buf_lit(out, "{\"index\":");
    buf_uint(out, c->index);
    if (how->is_chat) {
        buf_str(out, how->stream ? ",\"delta\":{" : ",\"message\":{");
        put_message(out, how, c, delta);
        buf_lit(out, "},\"logprobs\":");
    } else {
        buf_lit(out, ",\"text\":");
        put_text(out, delta->text);
        buf_lit(out, ",\"logprobs\":");
    }
    if (!how->tokens || !delta->logprobs)
        buf_lit(out, "null");
    else if (how->is_chat)
        put_chat_logprobs(out, how->tokens, delta);
    else
        put_completion_logprobs(out, how->tokens, c, delta);
    buf_lit(out, ",\"finish_reason\":");
    if (delta->finish == NVLLM_FINISH_NONE)
        buf_lit(out, "null}");
    else
        buf_printf(out, "\"%s\"}",
                   delta->finish == NVLLM_FINISH_STOP && c->n_calls > 0
                       ? "tool_calls"
                       : nvllm_finish_name(delta->finish));
    c->begun = true;
}

bool render_is_empty(const struct render *how, const struct render_choice *c,
                     const struct nvllm_delta *delta)
{
    return c->begun && delta->text.len == 0 && delta->reasoning.len == 0 &&
           delta->n_tool_calls == 0 && delta->finish == NVLLM_FINISH_NONE &&
           (!how->tokens || delta->n_tokens == 0);
}

void render_usage(struct buf *out, const struct nvllm_done *sum)
{
    buf_printf(out,
               "{\"prompt_tokens\":%" PRIu32 ",\"completion_tokens\":%" PRIu32
               ",\"total_tokens\":%" PRIu64 ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu32
               "}}",
               sum->prompt_tokens, sum->completion_tokens,
               (uint64_t)sum->prompt_tokens + sum->completion_tokens, sum->cached_tokens);
}
