/* test_client.c - libnvllm-client against a daemon that is played by hand: what it asks and how it
 * takes answers. */
#include "client_rig.h"
#include "tests/unit/field_path.h"
#include "tests/unit/run_suite.h"

/* ---- the ordinary way */

/* Text comes as it is made, then the end with its figures. */
TEST(generate_gives_deltas_and_done)
{
    const struct nvllm_event *e;
    uint64_t id = start("hello");

    server_delta(&server, id, "wor", 0);
    server_delta(&server, id, "ld", NVLLM_FINISH_LENGTH);
    server_done(&server, id);
    expect_delta(next(), id, "wor");
    e = next();
    expect_delta(e, id, "ld");
    ck_assert_uint_eq(e->delta->n_tokens, 1);
    ck_assert_int_eq(e->delta->token_ids[0], 2);
    ck_assert_ptr_null(e->delta->logprobs);
    ck_assert_int_eq(e->delta->finish, NVLLM_FINISH_LENGTH);
    ck_assert_uint_eq(nvllm_pending(client), 1);
    e = next();
    ck_assert_int_eq(e->type, NVLLM_EVENT_DONE);
    ck_assert_uint_eq(e->done->prompt_tokens, 7);
    ck_assert_uint_eq(e->done->completion_tokens, 2);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* Answers to many requests find their own, in whatever order they come. */
TEST(many_requests_on_one_connection)
{
    enum { N = 100 };
    uint64_t ids[N];

    for (int i = 0; i < N; i++)
        ids[i] = start("x");
    ck_assert_uint_eq(nvllm_pending(client), N);
    for (int i = 0; i < N; i++) { /* 37 and 100 share no factor: each once, out of order */
        server_delta(&server, ids[i * 37 % N], "a", NVLLM_FINISH_STOP);
        server_done(&server, ids[i * 37 % N]);
    }
    for (int i = 0; i < N; i++) {
        expect_delta(next(), ids[i * 37 % N], "a");
        ck_assert_uint_eq(next()->id, ids[i * 37 % N]);
    }
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* What is set arrives by value; what is not set does not arrive at all. */
TEST(request_fields_arrive)
{
    const int32_t ids[] = {5, 6};
    const struct nvllm_text stop[] = {{"a\0b", 3}};
    const struct nvllm_logit_bias bias = {42, -1.5f};
    const Nvllm__V1__Generate *g;
    struct nvllm_request r;
    uint64_t id;

    nvllm_request_init(&r);
    r.prompt_ids = ids;
    r.n_prompt_ids = 2;
    r.temperature = 0;
    r.seed = UINT64_MAX;
    r.has_seed = true;
    r.stop = stop;
    r.n_stop = 1;
    r.logit_bias = &bias;
    r.n_logit_bias = 1;
    r.max_tokens = 9;
    r.priority = NVLLM_PRIORITY_LOW;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    g = server_read(&server)->generate;
    ck_assert_int_eq(g->input_case, NVLLM__V1__GENERATE__INPUT_PROMPT_IDS);
    ck_assert_uint_eq(g->prompt_ids->n_ids, 2);
    ck_assert_int_eq(g->prompt_ids->ids[1], 6);
    ck_assert(g->sampling->has_temperature && g->sampling->temperature == 0);
    ck_assert(g->sampling->has_seed && g->sampling->seed == UINT64_MAX);
    ck_assert(!g->sampling->has_top_p && !g->sampling->has_top_k && !g->sampling->has_logprobs);
    ck_assert(!g->sampling->has_repetition_penalty && !g->has_n && !g->has_deadline_ms);
    ck_assert(g->has_max_tokens && g->max_tokens == 9);
    ck_assert_uint_eq(g->stop[0].len, 3);
    ck_assert_mem_eq(g->stop[0].data, "a\0b", 3);
    ck_assert_int_eq(g->sampling->logit_bias[0]->id, 42);
    ck_assert(g->sampling->logit_bias[0]->bias == -1.5f);
    ck_assert_int_eq(g->priority, NVLLM__V1__PRIORITY__PRIORITY_LOW);
    ck_assert(g->has_stream && g->stream);
}

/* What the text must be arrives as it was given, and nothing does where it may be any. */
TEST(format_arrives)
{
    static const struct nvllm_text text = {"a\0b", 3}, choices[] = {{"yes", 3}, {"", 0}};
    static const struct {
        enum nvllm_format format;
        Nvllm__V1__ResponseFormat__KindCase kind;
    } rows[] = {
        {NVLLM_FORMAT_JSON, NVLLM__V1__RESPONSE_FORMAT__KIND_JSON_OBJECT},
        {NVLLM_FORMAT_JSON_SCHEMA, NVLLM__V1__RESPONSE_FORMAT__KIND_JSON_SCHEMA},
        {NVLLM_FORMAT_REGEX, NVLLM__V1__RESPONSE_FORMAT__KIND_REGEX},
        {NVLLM_FORMAT_GRAMMAR, NVLLM__V1__RESPONSE_FORMAT__KIND_GRAMMAR},
        {NVLLM_FORMAT_CHOICE, NVLLM__V1__RESPONSE_FORMAT__KIND_CHOICE},
    };
    const Nvllm__V1__ResponseFormat *f;
    struct nvllm_request r;
    uint64_t id;

    nvllm_request_init(&r);
    r.prompt = nvllm_str("x");
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    ck_assert_ptr_null(server_read(&server)->generate->response_format);
    r.format_text = text;
    r.format_choices = choices;
    r.n_format_choices = 2;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        r.format = rows[i].format;
        ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
        f = server_read(&server)->generate->response_format;
        ck_assert_int_eq(f->kind_case, rows[i].kind);
        if (r.format == NVLLM_FORMAT_JSON) {
            ck_assert(f->json_object);
        } else if (r.format == NVLLM_FORMAT_CHOICE) {
            ck_assert_uint_eq(f->choice->n_texts, 2);
            ck_assert_mem_eq(f->choice->texts[0].data, "yes", 3);
            ck_assert_uint_eq(f->choice->texts[1].len, 0);
        } else {
            ck_assert_uint_eq(f->regex.len, 3); /* the three texts share their place */
            ck_assert_mem_eq(f->regex.data, "a\0b", 3);
        }
    }
}

/* A chat arrives with all its parts; a text that is absent is not the same as an empty one. */
TEST(chat_arrives)
{
    const struct nvllm_tool_call call = {{"add", 3}, {"{\"a\": 1}", 8}, {"c1", 2}};
    const struct nvllm_message messages[] = {
        {.role = "user", .content = {"hi\0", 3}},
        {.role = "assistant", .content = {"", 0}, .tool_calls = &call, .n_tool_calls = 1},
        {.role = "assistant", .reasoning_content = {"hm", 2}},
        {.role = "tool", .name = {"add", 3}, .tool_call_id = {"c1", 2}},
    };
    const struct nvllm_text tool = {"{}", 2}, documents[] = {{"{\"a\":0}", 7}, {"{}", 2}};
    const Nvllm__V1__Chat *c;
    struct nvllm_chat chat = chat_of(messages, 4);
    struct nvllm_request r;
    uint64_t id;

    chat.tools = &tool;
    chat.n_tools = 1;
    chat.documents = documents;
    chat.n_documents = 2;
    chat.tool_choice = NVLLM_TOOLS_REQUIRED;
    chat.called_tool = nvllm_str("f");
    chat.parallel_tool_calls = NVLLM_OFF;
    chat.chat_template_kwargs = (struct nvllm_text){"{\"b\":1}", 7};
    chat.enable_thinking = NVLLM_OFF;
    nvllm_request_init(&r);
    r.chat = &chat;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    c = server_read(&server)->generate->chat;
    ck_assert_uint_eq(c->n_messages, 4);
    ck_assert_uint_eq(c->messages[0]->content.len, 3);
    ck_assert(c->messages[1]->has_content && c->messages[1]->content.len == 0);
    ck_assert(!c->messages[2]->has_content && c->messages[2]->has_reasoning_content);
    ck_assert_uint_eq(c->messages[1]->tool_calls[0]->arguments.len, 8);
    ck_assert_uint_eq(c->messages[1]->tool_calls[0]->id.len, 2);
    ck_assert(!c->messages[1]->has_name && !c->messages[1]->has_tool_call_id);
    ck_assert_uint_eq(c->messages[3]->name.len, 3);
    ck_assert_uint_eq(c->messages[3]->tool_call_id.len, 2);
    ck_assert(c->n_documents == 2 && c->documents[0].len == 7);
    ck_assert(c->has_tool_choice && c->has_parallel_tool_calls && !c->parallel_tool_calls);
    ck_assert_int_eq(c->tool_choice, NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_REQUIRED);
    ck_assert(c->called_tool.len == 1 && *c->called_tool.data == 'f');
    ck_assert_uint_eq(c->chat_template_kwargs.len, 7);
    ck_assert_uint_eq(c->n_tools, 1);
    ck_assert(c->has_enable_thinking && !c->enable_thinking);
    ck_assert(!c->has_add_generation_prompt);
}

/* Alternatives of each token come with it. */
TEST(logprobs_come_with_tokens)
{
    int32_t ids[] = {8, 9}, top_ids[] = {8, 3};
    float top[] = {-0.25f, -2};
    Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT, *rows[] = {&row, &row};
    const struct nvllm_logprobs *got;
    uint64_t id = start("x");

    {
        FRAME(f, d, Delta, DELTA, delta, DELTA, id);

        row.has_logprob = true;
        row.logprob = -0.25f;
        row.n_top_ids = row.n_top_logprobs = 2;
        row.top_ids = top_ids;
        row.top_logprobs = top;
        d.n_token_ids = d.n_logprobs = 2;
        d.token_ids = ids;
        d.logprobs = rows;
        server_send(&server, &f);
    }
    got = next()->delta->logprobs;
    ck_assert_uint_eq(got[1].n_top, 2);
    ck_assert_int_eq(got[1].top_ids[1], 3);
    ck_assert(got[1].top_logprobs[1] == -2 && got[0].logprob == -0.25f);
}

/* A frame may come a byte at a time, and many in one piece. */
TEST(half_frames_wait_for_the_rest)
{
    struct frame_buffer b = {0};
    uint64_t id = start("x");

    {
        FRAME(f, d, Done, DONE, done, DONE, id);

        (void)d;
        ck_assert_int_eq(frame_buffer_put(&b, &f.base), 0);
    }
    for (size_t i = 0; i < b.end; i++) {
        const struct nvllm_event *e;

        ck_assert_int_eq(nvllm_next(client, 0, &e, &err), NVLLM_E_TIMEOUT);
        server_write(&server, b.data + i, 1);
    }
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
    frame_buffer_deinit(&b);
}

/* ---- what is asked wrongly */

static void check_field(const struct nvllm_request *r, const char *field)
{
    uint64_t id;

    ck_assert_int_eq(nvllm_generate_start(client, &id, r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, field);
    ck_assert(is_field_path(&nvllm__v1__generate__descriptor, field));
    ck_assert_msg(strncmp(err.message, field, strlen(field)) == 0, "%s", err.message);
}

/* What the library finds has the names that the daemon gives, those of the protocol. */
TEST(fields_have_the_protocols_names)
{
    const struct nvllm_text none = {NULL, 1}, one = {"x", 1};
    const struct nvllm_text texts[] = {one, none};
    const struct {
        struct nvllm_tool_call call;
        const char *field;
    } calls[] = {
        {{none, one, one}, "chat.messages[1].tool_calls[0].name"},
        {{one, none, one}, "chat.messages[1].tool_calls[0].arguments"},
        {{one, one, none}, "chat.messages[1].tool_calls[0].id"},
    };
    const struct {
        struct nvllm_message message;
        const char *field;
    } messages[] = {
        {{.content = one}, "chat.messages[1].role"},
        {{.role = "user", .content = none}, "chat.messages[1].content"},
        {{.role = "user", .reasoning_content = none}, "chat.messages[1].reasoning_content"},
        {{.role = "user", .name = none}, "chat.messages[1].name"},
        {{.role = "tool", .tool_call_id = none}, "chat.messages[1].tool_call_id"},
        {{.role = "user", .n_tool_calls = 1}, "chat.messages[1].tool_calls"},
    };
    struct nvllm_message two[2] = {{.role = "user"}};
    struct nvllm_chat chat = chat_of(two, 2);
    struct nvllm_request r, wrong;

    nvllm_request_init(&r);
    r.chat = &chat;
    for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
        two[1] = messages[i].message;
        check_field(&r, messages[i].field);
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        two[1] = (struct nvllm_message){.role = "assistant",
                                        .tool_calls = &calls[i].call,
                                        .n_tool_calls = 1};
        check_field(&r, calls[i].field);
    }
    chat = chat_of(NULL, 1);
    check_field(&r, "chat.messages");
    chat = chat_of(two, 1);
    chat.tools = texts;
    chat.n_tools = 2;
    check_field(&r, "chat.tools[1]");
    chat.tools = NULL;
    check_field(&r, "chat.tools");
    chat.n_tools = 0;
    chat.documents = texts;
    chat.n_documents = 2;
    check_field(&r, "chat.documents[1]");
    chat.n_documents = 0;
    chat.chat_template_kwargs = none;
    check_field(&r, "chat.chat_template_kwargs");

    nvllm_request_init(&r);
    r.prompt = one;
#define WRONG(member, value, field)                                                                \
    wrong = r;                                                                                     \
    wrong.member = value;                                                                          \
    check_field(&wrong, field)
    WRONG(prompt.data, NULL, "input");
    WRONG(chat, &chat, "input");
    WRONG(top_k, INT64_MAX, "sampling.top_k");
    WRONG(min_tokens, INT64_MAX, "sampling.min_tokens");
    WRONG(logprobs, INT64_MAX, "sampling.logprobs");
    WRONG(n_logit_bias, 1, "sampling.logit_bias");
    WRONG(n_stop_token_ids, 1, "sampling.stop_token_ids");
    WRONG(max_tokens, INT64_MAX, "max_tokens");
    WRONG(n, INT64_MAX, "n");
    WRONG(n_stop, 1, "stop");
    WRONG(priority, (enum nvllm_priority)9, "priority");
    WRONG(cache_salt, none, "cache_salt");
    r.stop = texts;
    WRONG(n_stop, 2, "stop[1]");
    WRONG(format, NVLLM_FORMAT_JSON_SCHEMA, "response_format.json_schema");
    WRONG(format, NVLLM_FORMAT_REGEX, "response_format.regex");
    WRONG(format, NVLLM_FORMAT_GRAMMAR, "response_format.grammar");
    WRONG(format, (enum nvllm_format)6, "response_format");
    r.format = NVLLM_FORMAT_CHOICE;
    WRONG(n_format_choices, 1, "response_format.choice.texts");
    r.format_choices = texts;
    WRONG(n_format_choices, 2, "response_format.choice.texts[1]");
#undef WRONG
}

/* Requests that cannot be sent are refused with the field that is wrong. */
TEST(wrong_requests)
{
    struct nvllm_request r, never_prepared = {0};
    struct nvllm_message no_role = {.content = {"x", 1}};
    struct nvllm_chat chat = chat_of(&no_role, 1);
    uint64_t id = 77;

    nvllm_request_init(&r);
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "input");
    ck_assert_int_eq(nvllm_generate_start(client, &id, &never_prepared, &err), NVLLM_E_INVALID);
    r.prompt = nvllm_str("x");
    r.top_k = (int64_t)UINT32_MAX + 1;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "sampling.top_k");
    r.top_k = -1;
    r.n_stop = 1;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "stop");
    r.n_stop = 0;
    r.chat = &chat;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "input"); /* two of them */
    r.prompt.data = NULL;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "chat.messages[0].role");
    r.chat = NULL;
    r.prompt = (struct nvllm_text){NULL, 5};
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_uint_eq(id, 77);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* More than the daemon takes in one frame is refused here, and the connection goes on. */
TEST(request_larger_than_the_daemon_takes)
{
    int fd = open_pair();
    char *text = calloc(1, 2000);
    struct nvllm_request r;
    uint64_t id;
    FRAME(f, w, Welcome, WELCOME, welcome, WELCOME, 0);

    w.has_protocol = w.has_max_frame_bytes = true;
    w.protocol = 1;
    w.max_frame_bytes = 1000;
    server_send(&server, &f);
    ck_assert_int_eq(connect_fd(fd, 1000, false), NVLLM_OK);
    nvllm_request_init(&r);
    r.prompt = (struct nvllm_text){text, 2000};
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_TOO_LONG);
    ck_assert_str_eq(err.limit, "limits.frame_bytes");
    ck_assert_uint_eq(err.limit_value, 1000);
    r.prompt.len = 500;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    free(text);
}

/* So is a frame that holds more numbers or fields than the daemon unpacks: it would end the
 * connection, and all other requests with it. */
TEST(request_of_more_than_the_daemon_unpacks)
{
    enum { MANY = UNPACK_MAX_NUMBERS + 1 };

    struct nvllm_message *messages = calloc(MANY, sizeof(*messages));
    int32_t *ids = calloc(MANY, sizeof(*ids));
    struct nvllm_chat chat;
    uint64_t first, id = 77;

    first = start("x");
    server_read(&server);
    for (size_t i = 0; i < UNPACK_MAX_FIELDS; i++)
        messages[i] = (struct nvllm_message){.role = "user", .content = {"x", 1}};
    nvllm_chat_init(&chat);
    chat.messages = messages;
    chat.n_messages = UNPACK_MAX_FIELDS;
    ck_assert_int_eq(nvllm_detokenize_start(client, &id, ids, MANY, true, -1, &err),
                     NVLLM_E_TOO_LONG);
    ck_assert_int_eq(nvllm_render_start(client, &id, &chat, -1, &err), NVLLM_E_TOO_LONG);
    ck_assert(!err.retryable && id == 77);
    ck_assert_uint_eq(nvllm_pending(client), 1);
    chat.n_messages = UNPACK_MAX_FIELDS / 3 - 10;
    ck_assert_int_eq(nvllm_render_start(client, &id, &chat, -1, &err), NVLLM_OK);
    ck_assert_uint_eq(server_read(&server)->render->chat->n_messages, chat.n_messages);
    server_delta(&server, first, "a", 0);
    expect_delta(next(), first, "a");
    free(messages);
    free(ids);
}

/* A daemon that does not read makes the library say so, not wait and not grow without end. */
TEST(daemon_that_does_not_read)
{
    char *text = calloc(1, 100000);
    struct nvllm_request r;
    enum nvllm_code code;
    uint64_t id;
    int n = 0;

    nvllm_request_init(&r);
    r.prompt = (struct nvllm_text){text, 100000};
    while ((code = nvllm_generate_start(client, &id, &r, &err)) == NVLLM_OK)
        ck_assert_int_lt(++n, 100);
    ck_assert_int_eq(code, NVLLM_E_BUSY);
    ck_assert(err.retryable);
    ck_assert_int_gt(n, 18); /* max_queue_bytes, 2 MiB */
    ck_assert_uint_eq(nvllm_wants(client), NVLLM_WANT_READ | NVLLM_WANT_WRITE);
    free(text);
}

enum { N_LARGE = 6, LARGE_BYTES = 900000 };

static void *send_large_deltas(void *text)
{
    for (int i = 0; i < N_LARGE; i++)
        server_delta(&server, 1, text, 0);
    return NULL;
}

/* Events that nobody fetches stop being read at a limit; all of them come in the end. */
TEST(events_that_are_not_fetched)
{
    char *text = malloc(LARGE_BYTES + 1);
    struct nvllm_text answer;
    pthread_t thread;

    ck_assert_uint_eq(start("x"), 1);
    memset(text, 'a', LARGE_BYTES);
    text[LARGE_BYTES] = '\0';
    ck_assert_int_eq(pthread_create(&thread, NULL, send_large_deltas, text), 0);
    ck_assert_int_eq(nvllm_detokenize(client, NULL, 0, false, 5000, &answer, &err), NVLLM_E_BUSY);
    for (int i = 0; i < N_LARGE; i++)
        ck_assert_uint_eq(next()->delta->text.len, LARGE_BYTES);
    pthread_join(thread, NULL);
    free(text);
}

RUN_TESTS("client", greeted, teardown)
