/* test_client_calls.c - the calls of libnvllm-client that wait, against a daemon played by a
 * thread: each test has its own script. */
#include "client_script.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "client/lib/clock.h"
#include "tests/unit/run_suite.h"

/* ---- short operations */

static void tokens_script(struct server *s)
{
    int32_t ids[] = {3, 4};
    ProtobufCBinaryData texts[] = {{1, (uint8_t *)"\0"}, {2, (uint8_t *)"\xc3\x28"}};
    const client_frame *f;

    f = server_read(s);
    ck_assert_int_eq(f->op_case, TOKENIZE);
    ck_assert(f->tokenize->special && f->tokenize->text.len == 3);
    {
        FRAME(answer, t, Tokens, TOKENS, tokens, TOKENS, f->id);
        t.n_ids = t.n_tokens = 2;
        t.ids = ids;
        t.tokens = texts;
        server_send(s, &answer);
    }
    f = server_read(s);
    ck_assert_int_eq(f->op_case, DETOKENIZE);
    ck_assert(f->detokenize->n_ids == 2 && f->detokenize->ids[1] == 4);
    server_text(s, f->id, "a\0b", 3);
    f = server_read(s);
    ck_assert_int_eq(f->op_case, RENDER);
    ck_assert_str_eq(f->render->chat->messages[0]->role, "user");
    server_error(s, f->id, NVLLM__V1__ERROR_CODE__ERROR_UNSUPPORTED, "no template");
    server_status(s, expect(s, STATUS), READY);
}

/* Any bytes go in and come out; an error of one call leaves the next alone. */
TEST(tokenize_detokenize_render_status)
{
    const struct nvllm_message message = {.role = "user", .content = {"x", 1}};
    const int32_t ids[] = {3, 4};
    const struct nvllm_tokens *tokens;
    const struct nvllm_status *status;
    struct nvllm_text text;
    struct nvllm_chat chat = chat_of(&message, 1);

    ck_assert_int_eq(serve(tokens_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(nvllm_tokenize(client, (struct nvllm_text){"a\0b", 3}, true, 1000, &tokens,
                                    &err),
                     NVLLM_OK);
    ck_assert_uint_eq(tokens->n_tokens, 2);
    ck_assert_int_eq(tokens->ids[1], 4);
    ck_assert_uint_eq(tokens->tokens[0].len, 1);
    ck_assert_mem_eq(tokens->tokens[1].data, "\xc3\x28", 2);
    ck_assert_int_eq(nvllm_detokenize(client, ids, 2, false, 1000, &text, &err), NVLLM_OK);
    ck_assert_uint_eq(text.len, 3);
    ck_assert_mem_eq(text.data, "a\0b", 3);
    ck_assert_int_eq(nvllm_render(client, &chat, 1000, &text, &err), NVLLM_E_UNSUPPORTED);
    ck_assert_str_eq(err.message, "no template");
    ck_assert_int_eq(nvllm_get_status(client, 1000, &status, &err), NVLLM_OK);
    ck_assert_str_eq(status->model, "fake-model");
    ck_assert_str_eq(status->device, "");
    ck_assert_str_eq(status->driver, ""); /* of a daemon that does not say it yet */
    ck_assert_uint_eq(status->total_bytes, 0);
}

static void embedding_script(struct server *s)
{
    float values[] = {0.5f, -1.5f};

    for (int i = 0; i < 2; i++) {
        const client_frame *f = server_read(s);
        const bool first = i == 0;

        ck_assert_int_eq(f->op_case, EMBED);
        ck_assert(f->embed->has_dimensions && f->embed->dimensions == 2);
        ck_assert(first ? f->embed->prompt.len == 3 : f->embed->prompt_ids->n_ids == 1);
        ck_assert(first ? !f->embed->prompt_name : strcmp(f->embed->prompt_name, "query") == 0);
        {
            FRAME(answer, y, Embedding, EMBEDDING, embedding, EMBEDDING, f->id);
            Nvllm__V1__Usage usage = NVLLM__V1__USAGE__INIT;

            usage.has_prompt_tokens = true;
            usage.prompt_tokens = 7;
            y.n_values = 2;
            y.values = values;
            y.usage = first ? &usage : NULL;
            server_send(s, &answer);
        }
    }
    server_error(s, expect(s, EMBED), NVLLM__V1__ERROR_CODE__ERROR_DEADLINE, "late");
}

/* Embeddings come by a call that waits, and as events with the program's own pointer. */
TEST(embeddings)
{
    const struct nvllm_embedding *embedding;
    const struct nvllm_event *event;
    struct nvllm_embed_options o;
    const int32_t id = 5;
    uint64_t number;

    ck_assert_int_eq(serve(embedding_script, READY, false), NVLLM_OK);
    nvllm_embed_options_init(&o);
    ck_assert_int_eq(nvllm_embed(client, &o, 1000, &embedding, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "input");
    ck_assert_int_eq(nvllm_embed(client, NULL, 1000, &embedding, &err), NVLLM_E_INVALID);
    o.prompt = (struct nvllm_text){"a\0b", 3};
    o.dimensions = 2;
    o.priority = 9;
    ck_assert_int_eq(nvllm_embed(client, &o, 1000, &embedding, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "priority");
    o.priority = NVLLM_PRIORITY_NORMAL;
    ck_assert_int_eq(nvllm_embed(client, &o, 1000, &embedding, &err), NVLLM_OK);
    ck_assert(embedding->n_values == 2 && embedding->values[1] == -1.5f);
    ck_assert_uint_eq(embedding->prompt_tokens, 7);
    o.prompt = (struct nvllm_text){0};
    o.prompt_ids = &id;
    o.n_prompt_ids = 1;
    o.prompt_name = "query";
    o.user_data = &o;
    ck_assert_int_eq(nvllm_embed_start(client, &number, &o, 1000, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_next(client, 1000, &event, &err), NVLLM_OK);
    ck_assert(event->type == NVLLM_EVENT_EMBEDDING && event->id == number && !event->error);
    ck_assert(event->user_data == &o && event->embedding->n_values == 2);
    ck_assert_uint_eq(nvllm_pending(client), 0);
    ck_assert_int_eq(nvllm_embed(client, &o, 1000, &embedding, &err), NVLLM_E_DEADLINE);
}

static void late_script(struct server *s)
{
    uint64_t first = expect(s, DETOKENIZE);

    server_text(s, expect(s, DETOKENIZE), "", 0); /* of the second call */
    server_text(s, first, "late", 4);
    server_text(s, expect(s, DETOKENIZE), "third", 5);
}

/* A call whose time is over leaves a good connection: its late answer is dropped. */
TEST(late_answer_is_dropped)
{
    int64_t before = clock_ms();
    struct nvllm_text text;

    ck_assert_int_eq(serve(late_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(nvllm_detokenize(client, NULL, 0, false, 50, &text, &err), NVLLM_E_TIMEOUT);
    ck_assert_int_ge(clock_ms() - before, 50);
    ck_assert_int_eq(nvllm_detokenize(client, NULL, 0, false, 1000, &text, &err), NVLLM_OK);
    ck_assert_uint_eq(text.len, 0);
    ck_assert_ptr_nonnull(text.data);
    ck_assert_int_eq(nvllm_detokenize(client, NULL, 0, false, 1000, &text, &err), NVLLM_OK);
    ck_assert_uint_eq(text.len, 5);
}

/* ---- generate in one call */

struct gathered {
    char text[64];
    int n_done;
    int stop_after; /* deltas; 0: never */
};

static int gather(void *arg, const struct nvllm_event *event)
{
    struct gathered *g = arg;

    if (event->done)
        g->n_done++;
    if (!event->delta)
        return 0;
    strncat(g->text, event->delta->text.data, event->delta->text.len);
    return g->stop_after && --g->stop_after == 0;
}

static enum nvllm_code generate(struct gathered *g, int timeout_ms)
{
    struct nvllm_request r = request_of("x");

    return nvllm_generate(client, &r, gather, g, timeout_ms, &err);
}

static void two_generates_script(struct server *s)
{
    uint64_t id = expect(s, GENERATE);

    server_delta(s, id, "he", 0);
    server_delta(s, id, "llo", NVLLM_FINISH_STOP);
    server_done(s, id);
    server_error(s, expect(s, GENERATE), NVLLM__V1__ERROR_CODE__ERROR_TOO_LONG, "never fits");
}

/* One call sees a request through, and says what went wrong with the next. */
TEST(generate_in_one_call)
{
    struct gathered g = {0};

    ck_assert_int_eq(serve(two_generates_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(generate(&g, 1000), NVLLM_OK);
    ck_assert_str_eq(g.text, "hello");
    ck_assert_int_eq(g.n_done, 1);
    ck_assert_int_eq(generate(&g, 1000), NVLLM_E_TOO_LONG);
    ck_assert_str_eq(err.message, "never fits");
    ck_assert_int_eq(g.n_done, 1);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

static void cancel_script(struct server *s)
{
    const client_frame *f;
    uint64_t id = expect(s, GENERATE);

    server_delta(s, id, "a", 0);
    f = server_read(s);
    ck_assert_int_eq(f->op_case, CANCEL);
    ck_assert_uint_eq(f->cancel->target, id);
    {
        FRAME(answer, c, Cancelled, CANCELLED, cancelled, CANCELLED, f->id);
        c.has_found = c.found = true;
        server_send(s, &answer);
    }
    server_delta(s, id, "b", NVLLM_FINISH_CANCELLED);
    server_done(s, id);
}

/* A callback that has had enough cancels, once, and still sees the end. */
TEST(callback_cancels)
{
    struct gathered g = {.stop_after = 1};

    ck_assert_int_eq(serve(cancel_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(generate(&g, -1), NVLLM_OK);
    ck_assert_str_eq(g.text, "ab");
    ck_assert_int_eq(g.n_done, 1);
}

/* What a callback may not do with the client that calls it. */
static int use_client(void *arg, const struct nvllm_event *event)
{
    const struct nvllm_status *status;
    const struct nvllm_event *other;

    ck_assert_int_eq(nvllm_next(client, 0, &other, &err), NVLLM_E_INVALID);
    ck_assert_int_eq(nvllm_process(client, &err), NVLLM_E_INVALID);
    ck_assert_int_eq(nvllm_get_status(client, 1000, &status, &err), NVLLM_E_INVALID);
    ck_assert_int_eq(generate(arg, 1000), NVLLM_E_INVALID);
    ck_assert_str_ne(err.message, "");
    return gather(arg, event);
}

static void two_good_script(struct server *s)
{
    uint64_t id;

    for (int i = 0; i < 2; i++) {
        id = expect(s, GENERATE);
        server_delta(s, id, "he", 0);
        server_delta(s, id, "llo", NVLLM_FINISH_STOP);
        server_done(s, id);
    }
}

/* A callback that takes its client's events is refused, and loses none; afterwards all is allowed.
 */
TEST(callback_uses_its_client)
{
    struct gathered g = {0};
    struct nvllm_request r = request_of("x");

    ck_assert_int_eq(serve(two_good_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(nvllm_generate(client, &r, use_client, &g, 1000, &err), NVLLM_OK);
    ck_assert_str_eq(g.text, "hello");
    ck_assert_int_eq(g.n_done, 1);
    ck_assert_int_eq(generate(&g, 1000), NVLLM_OK);
    ck_assert_int_eq(g.n_done, 2);
}

/* The callback may be left out. */
TEST(no_callback)
{
    struct nvllm_request r = request_of("x");

    ck_assert_int_eq(serve(two_generates_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(nvllm_generate(client, &r, NULL, NULL, 1000, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_generate(client, &r, NULL, NULL, 1000, &err), NVLLM_E_TOO_LONG);
}

static void slow_script(struct server *s)
{
    uint64_t id = expect(s, GENERATE);

    server_delta(s, id, "a", 0);
    expect(s, CANCEL);
    server_delta(s, id, "late", NVLLM_FINISH_CANCELLED);
    server_done(s, id);
    server_status(s, expect(s, STATUS), READY);
    ck_assert_ptr_null(server_read(s));
}

/* A request that takes too long is cancelled, and nothing of it is seen later. */
TEST(generate_out_of_time)
{
    const struct nvllm_status *status;
    const struct nvllm_event *e;
    struct gathered g = {0};

    ck_assert_int_eq(serve(slow_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(generate(&g, 60), NVLLM_E_TIMEOUT);
    ck_assert_str_eq(g.text, "a");
    ck_assert_uint_eq(nvllm_pending(client), 0);
    ck_assert_int_eq(nvllm_get_status(client, 1000, &status, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_next(client, 0, &e, &err), NVLLM_E_TIMEOUT);
}

static void dying_script(struct server *s)
{
    server_delta(s, expect(s, GENERATE), "par", 0);
}

/* A daemon that dies in the middle ends the call. */
TEST(generate_and_the_daemon_dies)
{
    struct gathered g = {0};

    ck_assert_int_eq(serve(dying_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(generate(&g, 5000), NVLLM_E_CONNECTION);
    ck_assert_str_eq(g.text, "par");
    ck_assert_uint_eq(nvllm_pending(client), 0);
    ck_assert_int_eq(generate(&g, 5000), NVLLM_E_CONNECTION);
}

static void cancel_of_ended_script(struct server *s)
{
    server_done(s, expect(s, GENERATE));
    ck_assert_ptr_null(server_read(s)); /* no cancel came */
}

/* Cancelling what has ended, or never was, does nothing. */
TEST(cancel_of_an_ended_request)
{
    const struct nvllm_event *e;
    struct nvllm_request r = request_of("x");
    uint64_t id;

    ck_assert_int_eq(serve(cancel_of_ended_script, READY, false), NVLLM_OK);
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_next(client, 1000, &e, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_cancel(client, id, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_cancel(client, 12345, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_cancel(client, 0, &err), NVLLM_OK);
}

/* ---- connecting */

static void loading_script(struct server *s)
{
    for (int i = 0; i < 3; i++)
        server_status(s, expect(s, STATUS), i < 2 ? LOADING : READY);
}

/* Waiting for the model ends when it is loaded. */
TEST(waits_while_loading)
{
    ck_assert_int_eq(serve(loading_script, LOADING, true), NVLLM_OK);
}

static void failing_script(struct server *s)
{
    server_status(s, expect(s, STATUS), NVLLM__V1__STATE__STATE_FAILED);
}

/* … and when it cannot be loaded. */
TEST(model_that_cannot_be_loaded)
{
    ck_assert_int_eq(serve(failing_script, LOADING, true), NVLLM_E_UNAVAILABLE);
    ck_assert_ptr_null(client);
}

static void forever_loading_script(struct server *s)
{
    const client_frame *f;

    while ((f = server_read(s)) != NULL)
        server_status(s, f->id, LOADING);
}

/* … and when the time is over. */
TEST(loading_takes_too_long)
{
    ck_assert_int_eq(serve(forever_loading_script, LOADING, true), NVLLM_E_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(err.message, "loading"));
}

static void temporary_path(char *path, size_t cap)
{
    snprintf(path, cap, "/tmp/nvllm-test-client-%d", (int)getpid());
    unlink(path);
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    return fd;
}

static enum nvllm_code connect_path(const char *path, int timeout_ms, bool wait_start)
{
    struct nvllm_options options;

    nvllm_options_init(&options);
    options.socket_path = path;
    options.timeout_ms = timeout_ms;
    options.wait_start = wait_start;
    client = (struct nvllm_client *)&options; /* whatever is there, a failure leaves NULL */
    return nvllm_connect(&client, &options, &err);
}

/* No socket, a socket that nobody serves, a path that is too long, and one who never answers. */
TEST(nobody_is_there, .no_fixture = true)
{
    char path[64], long_path[300];
    int64_t before;
    int fd;

    temporary_path(path, sizeof(path));
    ck_assert_int_eq(connect_path(path, 1000, false), NVLLM_E_NOT_RUNNING);
    ck_assert_ptr_null(client);
    ck_assert_int_eq(err.sys_errno, ENOENT);
    ck_assert_ptr_nonnull(strstr(err.message, path));
    before = clock_ms();
    ck_assert_int_eq(connect_path(path, 80, true), NVLLM_E_NOT_RUNNING);
    ck_assert_int_ge(clock_ms() - before, 80);
    fd = listen_at(path);
    ck_assert_int_eq(connect_path(path, 50, false), NVLLM_E_TIMEOUT);
    ck_assert_ptr_null(client);
    close(fd);
    ck_assert_int_eq(connect_path(path, 1000, false), NVLLM_E_NOT_RUNNING);
    ck_assert_int_eq(err.sys_errno, ECONNREFUSED);
    unlink(path);
    memset(long_path, 'x', sizeof(long_path));
    long_path[sizeof(long_path) - 1] = '\0';
    ck_assert_int_eq(connect_path(long_path, 1000, false), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "socket_path");
    ck_assert_int_eq(connect_path("", 1000, true), NVLLM_E_INVALID);
    ck_assert_int_eq(connect_path(NULL, 1000, true), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "socket_path");
    ck_assert_ptr_null(client);
}

static void *start_late(void *arg)
{
    struct server late;
    int fd, conn;

    usleep(60000);
    fd = listen_at(arg);
    close(accept(fd, NULL, NULL)); /* one that is stopped before it has greeted */
    conn = accept(fd, NULL, NULL);
    server_init(&late, conn);
    server_welcome(&late, READY);
    server_read(&late);
    server_close(&late);
    close(fd);
    return NULL;
}

/* Waiting for the start outlives a daemon that goes again at once. */
TEST(waits_for_the_start, .no_fixture = true)
{
    pthread_t starter;
    char path[64];

    temporary_path(path, sizeof(path));
    ck_assert_int_eq(pthread_create(&starter, NULL, start_late, path), 0);
    ck_assert_int_eq(connect_path(path, 5000, true), NVLLM_OK);
    pthread_join(starter, NULL);
    nvllm_close(client);
    client = NULL;
    unlink(path);
}

/* A program built with other versions of the structs reads and writes its own size only. */
TEST(structs_of_another_size, .no_fixture = true)
{
    struct {
        struct nvllm_options o;
        char guard[64];
    } longer;
    char shorter[sizeof(struct nvllm_options)];
    size_t short_size = offsetof(struct nvllm_options, max_queue_bytes);

    memset(shorter, 0x55, sizeof(shorter));
    nvllm_options_init_size((struct nvllm_options *)(void *)shorter, short_size);
    for (size_t i = short_size; i < sizeof(shorter); i++)
        ck_assert_int_eq(shorter[i], 0x55);
    memset(&longer, 0x55, sizeof(longer));
    nvllm_options_init_size(&longer.o, sizeof(longer));
    ck_assert_uint_eq(longer.o.size, sizeof(longer));
    ck_assert_int_eq(longer.guard[63], 0);
    longer.o.socket_path = "/nonexistent/socket";
    ck_assert_int_eq(nvllm_connect(&client, &longer.o, &err), NVLLM_E_NOT_RUNNING);
    memset(&longer, 0, sizeof(longer));
    ck_assert_int_eq(nvllm_connect(&client, &longer.o, &err), NVLLM_E_INVALID);
}

/* They lie in the caller's memory, or in arrays, without a size: a program built with one version
 * meets another. */
TEST(some_structs_never_grow, .no_fixture = true)
{
    if (sizeof(void *) != 8)
        return;
    ck_assert_uint_eq(sizeof(struct nvllm_error), 864);
    ck_assert_uint_eq(sizeof(struct nvllm_text), 16);
    ck_assert_uint_eq(sizeof(struct nvllm_tool_call), 48);
    ck_assert_uint_eq(sizeof(struct nvllm_message), 88);
    ck_assert_uint_eq(sizeof(struct nvllm_logit_bias), 8);
    ck_assert_uint_eq(sizeof(struct nvllm_logprobs), 24);
}

/* Those with a size begin with it and grow at the end: the last fields of version 0.1 are where
 * they were. */
TEST(some_structs_grow_at_the_end, .no_fixture = true)
{
    if (sizeof(void *) != 8)
        return;
    ck_assert_uint_eq(offsetof(struct nvllm_options, on_wait_arg), 64);
    ck_assert_uint_eq(offsetof(struct nvllm_chat, enable_thinking), 44);
    ck_assert_uint_eq(offsetof(struct nvllm_request, timeout_ms), 224);
    ck_assert_uint_eq(offsetof(struct nvllm_request, format), 240);
    ck_assert_uint_eq(offsetof(struct nvllm_pin_options, uid), 68);
    ck_assert_uint_eq(offsetof(struct nvllm_explain_options, cache_salt), 56);
    ck_assert_uint_eq(offsetof(struct nvllm_drain_options, drain_timeout_ms), 8);
    ck_assert_uint_eq(offsetof(struct nvllm_event, status), 56);
    ck_assert_uint_eq(offsetof(struct nvllm_status, free_bytes), 200);
}

RUN_TESTS("client calls", NULL, end)
