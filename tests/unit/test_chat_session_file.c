/* test_chat_session_file.c - a session's file holds all of it, and nothing else is taken for one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/chat_session_file.h"
#include "proto/session_file.pb-c.h"
#include "tests/unit/run_suite.h"

enum { HEAD = 32, VOCAB = 100 };

static struct options options;
static struct accounts accounts;
static const XXH128_hash_t model = {.low64 = 5, .high64 = 6};
static const struct request_rules rules = {.options = &options, .vocab_size = VOCAB};

static struct text str(const char *text)
{
    return (struct text){text, strlen(text)};
}

/* With all that a session may have. */
static struct chat_session *example(void)
{
    const struct chat_tool_call call = {str("f"), str("{\"a\": 1}"), str("call_1")};
    const struct chat_message before = {.role = str("system"),
                                        .has_content = true,
                                        .content = str("Be\0brief.")};
    const struct chat_message asked = {.role = str("user"),
                                       .has_content = true,
                                       .content = str("ä?"),
                                       .name = str("me")};
    const struct chat_message answer = {.role = str("assistant"),
                                        .has_reasoning = true,
                                        .reasoning = str("hm"),
                                        .tool_calls = &call,
                                        .n_tool_calls = 1};
    const struct chat_message result = {.role = str("tool"),
                                        .has_content = true,
                                        .content = str("12"),
                                        .tool_call_id = str("call_1")};
    const struct text tools[] = {str("{\"name\": \"f\"}"), str("{}")}, document = str("{\"x\": 2}");
    const struct chat chat = {.messages = &before,
                              .n_messages = 1,
                              .tools = tools,
                              .n_tools = 2,
                              .documents = &document,
                              .n_documents = 1,
                              .kwargs = str("{\"k\": 3}"),
                              .thinking = CHAT_THINKING_OFF};
    static const int32_t said[] = {7, 99, 0, 8};
    struct conversation *talk;
    struct chat_session *c;

    ck_assert_int_eq(conversation_new(&talk, &chat), 0);
    for (int i = 0; i < 2; i++) {
        int32_t *rest = calloc(3, sizeof(*rest));
        struct transcript_prompt p = {.said = &talk->transcript,
                                      .n_kept = talk->transcript.ids.n,
                                      .rest = {rest, 3, 3},
                                      .rest_bytes = 11,
                                      .rest_hash = {.low64 = 1, .high64 = UINT64_MAX}};

        ck_assert_int_eq(conversation_add(talk, i ? &result : &asked, 1, &answer, &p, said, 4), 0);
        transcript_prompt_deinit(&p);
    }
    ck_assert_int_eq(chat_session_new(&c, &accounts, 4294967294u, "A-b_c.9", talk, 1234567), 0);
    c->created_us = 1000;
    return c;
}

static void ck_text_eq(struct text a, struct text b)
{
    ck_assert_uint_eq(a.len, b.len);
    ck_assert_mem_eq(a.data, b.data, a.len);
}

static void ck_message_eq(const struct chat_message *a, const struct chat_message *b)
{
    ck_text_eq(a->role, b->role);
    ck_assert_int_eq(a->has_content, b->has_content);
    ck_text_eq(a->content, b->content);
    ck_assert_int_eq(a->has_reasoning, b->has_reasoning);
    ck_text_eq(a->reasoning, b->reasoning);
    ck_text_eq(a->name, b->name);
    ck_text_eq(a->tool_call_id, b->tool_call_id);
    ck_assert_uint_eq(a->n_tool_calls, b->n_tool_calls);
    for (size_t i = 0; i < a->n_tool_calls; i++) {
        ck_text_eq(a->tool_calls[i].name, b->tool_calls[i].name);
        ck_text_eq(a->tool_calls[i].arguments_json, b->tool_calls[i].arguments_json);
        ck_text_eq(a->tool_calls[i].id, b->tool_calls[i].id);
    }
}

static void ck_conversation_eq(const struct conversation *a, const struct conversation *b)
{
    ck_assert_uint_eq(a->chat.n_messages, b->chat.n_messages);
    for (size_t i = 0; i < a->chat.n_messages; i++)
        ck_message_eq(&a->chat.messages[i], &b->chat.messages[i]);
    ck_assert_uint_eq(a->chat.n_tools, b->chat.n_tools);
    for (size_t i = 0; i < a->chat.n_tools; i++)
        ck_text_eq(a->chat.tools[i], b->chat.tools[i]);
    ck_assert_uint_eq(a->chat.n_documents, b->chat.n_documents);
    for (size_t i = 0; i < a->chat.n_documents; i++)
        ck_text_eq(a->chat.documents[i], b->chat.documents[i]);
    ck_text_eq(a->chat.kwargs, b->chat.kwargs);
    ck_assert_int_eq(a->chat.thinking, b->chat.thinking);
    ck_assert_int_eq(a->chat.add_generation_prompt, b->chat.add_generation_prompt);
    ck_assert_uint_eq(a->n_turns, b->n_turns);
    ck_assert_mem_eq(a->turns, b->turns, (a->n_turns + 1) * sizeof(*a->turns));
    ck_assert_uint_eq(a->transcript.ids.n, b->transcript.ids.n);
    ck_assert_mem_eq(a->transcript.ids.ids, b->transcript.ids.ids,
                     a->transcript.ids.n * sizeof(int32_t));
    ck_assert_uint_eq(a->transcript.n_pieces, b->transcript.n_pieces);
    for (size_t i = 0; i < a->transcript.n_pieces; i++) {
        const struct transcript_piece *p = &a->transcript.pieces[i], *q = &b->transcript.pieces[i];

        ck_assert_uint_eq(p->n_ids, q->n_ids);
        ck_assert_int_eq(p->sampled, q->sampled);
        ck_assert_uint_eq(p->n_bytes, q->n_bytes);
        ck_assert(XXH128_isEqual(p->hash, q->hash));
    }
}

static struct chat_session *session;
static uint8_t *file;
static size_t bytes;

static void set_up(void)
{
    struct err e;

    ck_assert_int_eq(options_init(&options, &e), 0);
    session = example();
    ck_assert_int_eq(chat_session_pack(&file, &bytes, session, model), 0);
}

static void tear_down(void)
{
    free(file);
    chat_sessions_deinit(&accounts);
    accounts_deinit(&accounts);
    options_deinit(&options);
}

static void ck_refused(const uint8_t *data, size_t n, XXH128_hash_t of, const char *why)
{
    struct chat_session_record record;
    struct err e = {""};

    ck_assert_int_eq(chat_session_unpack(&record, data, n, of, &rules, &e), -EBADMSG);
    ck_assert_msg(strstr(e.text, why), "\"%s\" does not say \"%s\"", e.text, why);
}

TEST(a_file_holds_all_of_a_session)
{
    struct chat_session_record record;
    struct err e;

    ck_assert_int_eq(chat_session_unpack(&record, file, bytes, model, &rules, &e), 0);
    ck_assert_str_eq(record.name, "A-b_c.9");
    ck_assert_uint_eq(record.uid, 4294967294u);
    ck_assert_uint_eq(record.created_us, 1000);
    ck_assert_uint_eq(record.used_us, 1234567);
    ck_conversation_eq(record.talk, session->talk);
    conversation_free(record.talk);
}

TEST(every_flipped_bit_is_seen)
{
    for (size_t i = 0; i < 8 * bytes; i++) {
        struct chat_session_record record;
        struct err e;

        file[i / 8] ^= (uint8_t)(1 << i % 8);
        ck_assert_int_eq(chat_session_unpack(&record, file, bytes, model, &rules, &e), -EBADMSG);
        file[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

/* In memory of its own each, so that sanitizers see a read behind its end. */
TEST(every_cut_file_is_refused)
{
    for (size_t n = 0; n < bytes; n++) {
        uint8_t *cut = malloc(n ? n : 1);

        memcpy(cut, file, n);
        ck_refused(cut, n, model, n < HEAD ? "not a session's file" : "other bytes");
        free(cut);
    }
}

TEST(another_models_file_is_refused)
{
    const XXH128_hash_t other = {.low64 = 5, .high64 = 7};

    ck_refused(file, bytes, other, "another model");
    file[14] = '2';
    ck_refused(file, bytes, model, "another version");
}

/* ---- files whose sum is right, but not what they say */

static void misname(Nvllm__File__SessionFile *m)
{
    m->name = (char *)"../x";
}

static void unname(Nvllm__File__SessionFile *m)
{
    m->name = NULL;
}

static void unchat(Nvllm__File__SessionFile *m)
{
    m->chat = NULL;
}

static void large_id(Nvllm__File__SessionFile *m)
{
    m->token_ids[2] = VOCAB;
}

static void negative_id(Nvllm__File__SessionFile *m)
{
    m->token_ids[2] = -1;
}

static void fewer_ids(Nvllm__File__SessionFile *m)
{
    m->n_token_ids--;
}

static void empty_piece(Nvllm__File__SessionFile *m)
{
    m->pieces[1]->tokens = 0;
}

static void long_piece(Nvllm__File__SessionFile *m)
{
    m->pieces[3]->tokens = UINT32_MAX;
}

static void no_turns(Nvllm__File__SessionFile *m)
{
    m->n_turn_messages = m->n_turn_tokens = 0;
}

static void odd_turns(Nvllm__File__SessionFile *m)
{
    m->n_turn_tokens--;
}

static void descending_turns(Nvllm__File__SessionFile *m)
{
    m->turn_messages[1] = 0;
}

static void descending_tokens(Nvllm__File__SessionFile *m)
{
    m->turn_tokens[0] = 10;
}

static void more_messages(Nvllm__File__SessionFile *m)
{
    m->turn_messages[2]++;
}

static void bad_text(Nvllm__File__SessionFile *m)
{
    m->chat->messages[0]->content = (ProtobufCBinaryData){1, (uint8_t *)"\xff"};
}

static void bad_role(Nvllm__File__SessionFile *m)
{
    m->chat->messages[0]->role = (char *)"pope";
}

static void no_role(Nvllm__File__SessionFile *m)
{
    m->chat->messages[0]->role = NULL;
}

static const struct {
    void (*change)(Nvllm__File__SessionFile *m);
    const char *why;
} changes[] = {
    {misname, "no name"},
    {unname, "no name"},
    {unchat, "no name"},
    {large_id, "go together"},
    {negative_id, "go together"},
    {fewer_ids, "go together"},
    {empty_piece, "go together"},
    {long_piece, "go together"},
    {no_turns, "go together"},
    {odd_turns, "go together"},
    {descending_turns, "go together"},
    {descending_tokens, "go together"},
    {more_messages, "go together"},
    {bad_text, "UTF-8"},
    {bad_role, "pope"},
    {no_role, "role"},
};

TEST(parts_that_do_not_go_together_are_refused, .n = N(changes))
{
    struct unpacked *u;
    XXH128_canonical_t sum;
    uint8_t *changed;
    size_t n;

    ck_assert_int_eq(unpack(&u, &nvllm__file__session_file__descriptor, file + HEAD, bytes - HEAD),
                     UNPACK_OK);
    changes[_i].change((Nvllm__File__SessionFile *)unpacked_message(u));
    n = protobuf_c_message_get_packed_size(unpacked_message(u));
    changed = malloc(HEAD + n);
    protobuf_c_message_pack(unpacked_message(u), changed + HEAD);
    memcpy(changed, file, HEAD);
    XXH128_canonicalFromHash(&sum, XXH3_128bits(changed + HEAD, n));
    memcpy(changed + 16, &sum, sizeof(sum));
    ck_refused(changed, HEAD + n, model, changes[_i].why);
    free(changed);
    unpacked_free(u);
}

/* ---- names and limits */

TEST(names_are_letters_digits_and_a_few_marks)
{
    static const char *const bad[] = {"",    ".",   "-",        "_",   ".a",
                                      "a/b", "a b", "\xc3\xa4", "a\n", "a:"};
    char longest[CHAT_SESSION_NAME + 2];

    for (int i = 0; i < N(bad); i++)
        ck_assert_msg(!chat_session_name_valid(bad[i]), "%s", bad[i]);
    ck_assert(chat_session_name_valid("a") && chat_session_name_valid("0") &&
              chat_session_name_valid("Z-._9"));
    memset(longest, 'a', sizeof(longest));
    longest[CHAT_SESSION_NAME + 1] = '\0';
    ck_assert(!chat_session_name_valid(longest));
    longest[CHAT_SESSION_NAME] = '\0';
    ck_assert(chat_session_name_valid(longest));
}

TEST(accounts_are_charged_and_limits_named)
{
    struct account *own = session->account;
    struct refusal e;

    ck_assert_uint_eq(own->amounts[ACCOUNT_SESSIONS], 1);
    ck_assert_uint_eq(own->amounts[ACCOUNT_SESSION_BYTES], session->bytes);
    ck_assert_uint_gt(session->bytes, sizeof(struct chat_session));
    options.max_sessions_per_uid = 2;
    options.max_session_bytes_per_uid = (int64_t)session->bytes + 10;
    options.max_session_bytes = (int64_t)session->bytes + 5;
    ck_assert_int_eq(chat_session_check(own, &options, 1, 5, &e), 0);
    ck_assert_int_eq(chat_session_check(own, &options, 2, 0, &e), -EINVAL);
    ck_assert_str_eq(e.limit, "limits.sessions_per_uid");
    ck_assert_int_eq(chat_session_check(own, &options, 1, 11, &e), -EINVAL);
    ck_assert_str_eq(e.limit, "limits.session_bytes_per_uid");
    ck_assert_int_eq(chat_session_check(own, &options, 1, 6, &e), -EINVAL);
    ck_assert_str_eq(e.limit, "limits.session_bytes");
    conversation_rewind(session->talk, 0);
    chat_session_changed(session, 2000000);
    ck_assert_uint_eq(own->amounts[ACCOUNT_SESSION_BYTES], session->bytes);
}

RUN_TESTS("chat_session_file", set_up, tear_down)
