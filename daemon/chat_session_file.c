/* chat_session_file.c - see chat_session_file.h. */
#include "daemon/chat_session_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/replies.h"
#include "engine/util/checked.h"
#include "proto/session_file.pb-c.h"

static const char magic[16] = "nvllm session 1";

struct head {
    char magic[sizeof(magic)];
    XXH128_canonical_t sum; /* of the rest */
};

static ProtobufCBinaryData binary(struct text t)
{
    return (ProtobufCBinaryData){t.len, (uint8_t *)(uintptr_t)t.data};
}

/* ---- to bytes */

static int fill_message(Nvllm__V1__Message *out, const struct chat_message *m, struct unpacked *u)
{
    Nvllm__V1__ToolCall *calls =
        unpacked_list(u, &out->tool_calls, m->n_tool_calls, sizeof(*calls));
    char *role = unpacked_alloc(u, m->role.len + 1, 1);

    if (!calls || !role)
        return -ENOMEM;
    memcpy(role, m->role.data, m->role.len);
    out->role = role;
    out->has_content = m->has_content;
    out->content = binary(m->content);
    out->has_reasoning_content = m->has_reasoning;
    out->reasoning_content = binary(m->reasoning);
    out->has_name = m->name.len > 0;
    out->name = binary(m->name);
    out->has_tool_call_id = m->tool_call_id.len > 0;
    out->tool_call_id = binary(m->tool_call_id);
    out->n_tool_calls = m->n_tool_calls;
    for (size_t i = 0; i < m->n_tool_calls; i++)
        reply_fill_call(&calls[i], &m->tool_calls[i]);
    return 0;
}

static int fill_texts(ProtobufCBinaryData **out, const struct text *texts, size_t n,
                      struct unpacked *u)
{
    *out = unpacked_alloc(u, n, sizeof(**out));
    for (size_t i = 0; *out && i < n; i++)
        (*out)[i] = binary(texts[i]);
    return *out ? 0 : -ENOMEM;
}

int chat_session_fill_chat(Nvllm__V1__Chat *out, const struct chat *chat, struct unpacked *u)
{
    Nvllm__V1__Message *messages;

    nvllm__v1__chat__init(out);
    messages = unpacked_list(u, &out->messages, chat->n_messages, sizeof(*messages));
    if (!messages || fill_texts(&out->tools, chat->tools, chat->n_tools, u) < 0 ||
        fill_texts(&out->documents, chat->documents, chat->n_documents, u) < 0)
        return -ENOMEM;
    out->n_messages = chat->n_messages;
    out->n_tools = chat->n_tools;
    out->n_documents = chat->n_documents;
    out->has_chat_template_kwargs = chat->kwargs.len > 0;
    out->chat_template_kwargs = binary(chat->kwargs);
    out->has_enable_thinking = chat->thinking != CHAT_THINKING_UNSET;
    out->enable_thinking = chat->thinking == CHAT_THINKING_ON;
    for (size_t i = 0; i < chat->n_messages; i++) {
        nvllm__v1__message__init(&messages[i]);
        if (fill_message(&messages[i], &chat->messages[i], u) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int fill_pieces(Nvllm__File__SessionFile *out, const struct transcript *t,
                       struct unpacked *u)
{
    Nvllm__File__Piece *pieces = unpacked_list(u, &out->pieces, t->n_pieces, sizeof(*pieces));

    if (!pieces)
        return -ENOMEM;
    out->n_pieces = t->n_pieces;
    for (size_t i = 0; i < t->n_pieces; i++) {
        const struct transcript_piece *from = &t->pieces[i];

        nvllm__file__piece__init(&pieces[i]);
        pieces[i].has_tokens = true;
        pieces[i].tokens = (uint32_t)from->n_ids;
        pieces[i].has_sampled = pieces[i].sampled = from->sampled;
        pieces[i].has_bytes = pieces[i].has_hash_low = pieces[i].has_hash_high = !from->sampled;
        pieces[i].bytes = from->n_bytes;
        pieces[i].hash_low = from->hash.low64;
        pieces[i].hash_high = from->hash.high64;
    }
    return 0;
}

static int fill(Nvllm__File__SessionFile *out, const struct chat_session *c, struct unpacked *u)
{
    const struct conversation *talk = c->talk;
    const size_t n = talk->n_turns + 1;

    out->turn_messages = unpacked_alloc(u, n, sizeof(*out->turn_messages));
    out->turn_tokens = unpacked_alloc(u, n, sizeof(*out->turn_tokens));
    out->chat = unpacked_alloc(u, 1, sizeof(*out->chat));
    if (!out->turn_messages || !out->turn_tokens || !out->chat ||
        chat_session_fill_chat(out->chat, &talk->chat, u) < 0 ||
        fill_pieces(out, &talk->transcript, u) < 0)
        return -ENOMEM;
    out->n_turn_messages = out->n_turn_tokens = n;
    for (size_t i = 0; i < n; i++) {
        out->turn_messages[i] = (uint32_t)talk->turns[i].n_messages;
        out->turn_tokens[i] = (uint32_t)talk->turns[i].n_ids;
    }
    out->name = reply_text(c->name);
    out->has_uid = out->has_created_us = out->has_used_us = true;
    out->uid = c->account->uid;
    out->created_us = c->created_us;
    out->used_us = c->used_us;
    out->n_token_ids = talk->transcript.ids.n;
    out->token_ids = talk->transcript.ids.ids;
    return 0;
}

int chat_session_pack(uint8_t **data, size_t *bytes, const struct chat_session *c,
                      XXH128_hash_t model)
{
    Nvllm__File__SessionFile m = NVLLM__FILE__SESSION_FILE__INIT;
    struct unpacked *u = unpacked_new();
    XXH128_canonical_t model_bytes;
    struct head head;
    uint8_t *out = NULL;
    size_t n;
    int r = u ? fill(&m, c, u) : -ENOMEM;

    XXH128_canonicalFromHash(&model_bytes, model);
    m.has_model = true;
    m.model = (ProtobufCBinaryData){sizeof(model_bytes), (uint8_t *)&model_bytes};
    if (r == 0) {
        n = sizeof(head) + protobuf_c_message_get_packed_size(&m.base);
        r = n > CHAT_SESSION_FILE_MAX ? -EFBIG : (out = malloc(n)) ? 0 : -ENOMEM;
    }
    if (r == 0) {
        (void)protobuf_c_message_pack(&m.base, out + sizeof(head));
        memcpy(head.magic, magic, sizeof(magic));
        XXH128_canonicalFromHash(&head.sum, XXH3_128bits(out + sizeof(head), n - sizeof(head)));
        memcpy(out, &head, sizeof(head));
        *data = out;
        *bytes = n;
    }
    unpacked_free(u);
    return r;
}

/* ---- from bytes */

static int damaged(struct err *e, const char *what)
{
    return err_set(e, -EBADMSG, "%s", what);
}

static int check_head(const uint8_t *data, size_t bytes, struct err *e)
{
    XXH128_canonical_t sum;

    if (bytes < sizeof(struct head) || memcmp(data, magic, sizeof(magic) - 2) != 0)
        return damaged(e, "it is not a session's file");
    if (memcmp(data, magic, sizeof(magic)) != 0)
        return damaged(e, "it is of another version");
    XXH128_canonicalFromHash(&sum,
                             XXH3_128bits(data + sizeof(struct head), bytes - sizeof(struct head)));
    if (memcmp(&sum, data + offsetof(struct head, sum), sizeof(sum)) != 0)
        return damaged(e, "it holds other bytes than were written");
    return 0;
}

/* The pieces make up all ids, and those are of the vocabulary. */
static bool read_transcript(struct transcript *out, const Nvllm__File__SessionFile *m,
                            int32_t vocab_size, int *r)
{
    size_t n = 0;

    for (size_t i = 0; i < m->n_token_ids; i++)
        if (m->token_ids[i] < 0 || m->token_ids[i] >= vocab_size)
            return false;
    for (size_t i = 0; i < m->n_pieces; i++) {
        if (m->pieces[i]->tokens == 0 || m->pieces[i]->tokens > m->n_token_ids - n)
            return false;
        n += m->pieces[i]->tokens;
    }
    if (n != m->n_token_ids)
        return false;
    if (!array_reserve(&out->ids.ids, &out->ids.cap, n, sizeof(*out->ids.ids)) ||
        !array_reserve(&out->pieces, &out->cap, m->n_pieces, sizeof(*out->pieces))) {
        *r = -ENOMEM;
        return false;
    }
    if (n)
        memcpy(out->ids.ids, m->token_ids, n * sizeof(*out->ids.ids));
    out->ids.n = n;
    for (size_t i = 0; i < m->n_pieces; i++) {
        const Nvllm__File__Piece *p = m->pieces[i];

        out->pieces[out->n_pieces++] = (struct transcript_piece){
            .n_ids = p->tokens,
            .sampled = p->sampled,
            .n_bytes = p->bytes,
            .hash = {.low64 = p->hash_low, .high64 = p->hash_high},
        };
    }
    return true;
}

/* Each turn has messages of its own, and ends with the last of them. */
static bool read_turns(struct conversation *c, const Nvllm__File__SessionFile *m, int *r)
{
    const size_t n = m->n_turn_messages;
    size_t messages = 0, tokens = 0;

    if (n == 0 || m->n_turn_tokens != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (m->turn_messages[i] < messages + (i > 0) || m->turn_tokens[i] < tokens)
            return false;
        messages = m->turn_messages[i];
        tokens = m->turn_tokens[i];
    }
    if (messages != c->chat.n_messages || tokens != c->transcript.ids.n)
        return false;
    if (!array_reserve(&c->turns, &c->turns_cap, n, sizeof(*c->turns))) {
        *r = -ENOMEM;
        return false;
    }
    for (size_t i = 0; i < n; i++)
        c->turns[i] = (struct conversation_turn){m->turn_messages[i], m->turn_tokens[i]};
    c->n_turns = n - 1;
    return true;
}

static int read_record(struct chat_session_record *out, const Nvllm__File__SessionFile *m,
                       struct unpacked *u, XXH128_hash_t model, const struct request_rules *rules,
                       struct err *e)
{
    XXH128_canonical_t wanted;
    const struct chat *chat;
    struct refusal why;
    int r = -EBADMSG;

    XXH128_canonicalFromHash(&wanted, model);
    if (m->model.len != sizeof(wanted) || memcmp(m->model.data, &wanted, sizeof(wanted)) != 0)
        return damaged(e, "it is of another model");
    if (!m->name || !chat_session_name_valid(m->name) || !m->has_uid || !m->chat)
        return damaged(e, "it has no name, user or chat");
    r = request_chat(&chat, m->chat, u, rules, &why);
    if (r < 0)
        return r == -ENOMEM ? r : damaged(e, why.message.text);
    r = conversation_new(&out->talk, chat);
    if (r < 0)
        return r;
    r = -EBADMSG;
    if (!read_transcript(&out->talk->transcript, m, rules->vocab_size, &r) ||
        !read_turns(out->talk, m, &r)) {
        conversation_free(out->talk);
        return r == -ENOMEM ? r : damaged(e, "its parts do not go together");
    }
    memcpy(out->name, m->name, strlen(m->name) + 1);
    out->uid = m->uid;
    out->created_us = m->created_us;
    out->used_us = m->used_us;
    return 0;
}

int chat_session_unpack(struct chat_session_record *out, const uint8_t *data, size_t bytes,
                        XXH128_hash_t model, const struct request_rules *rules, struct err *e)
{
    struct unpacked *u;
    int r = check_head(data, bytes, e);

    if (r < 0)
        return r;
    r = unpack(&u, &nvllm__file__session_file__descriptor, data + sizeof(struct head),
               bytes - sizeof(struct head));
    if (r != UNPACK_OK)
        return r == UNPACK_E_NOMEM ? -ENOMEM : damaged(e, "it is not a message of its schema");
    r = read_record(out, (const void *)unpacked_message(u), u, model, rules, e);
    unpacked_free(u);
    return r;
}
