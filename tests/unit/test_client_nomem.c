/* test_client_nomem.c - every allocation of a session fails in its turn: the library says so, and
 * loses nothing. */
#include "client_rig.h"
#include "tests/unit/failing_malloc.h"
#include "tests/unit/run_suite.h"

enum { MS = 1000 };

static int n_events; /* that a session got */

/* What the daemon answers; its own memory never fails. */
static void write_answers(void)
{
    int saved = fails_in;
    Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT, *rows[] = {&row};
    Nvllm__V1__RequestInfo info = NVLLM__V1__REQUEST_INFO__INIT, *infos[100];
    int32_t token = 5;

    fails_in = -1;
    for (int i = 0; i < 100; i++) /* more than one piece of memory holds */
        infos[i] = &info;
    server_delta(&server, 1, "kept", 0); /* comes while the list is waited for */
    {
        FRAME(f, l, RequestList, REQUEST_LIST, request_list, REQUEST_LIST, 2);
        l.n_requests = 100;
        l.requests = infos;
        server_send(&server, &f);
    }
    {
        FRAME(f, d, Delta, DELTA, delta, DELTA, 1);
        d.n_token_ids = d.n_logprobs = 1;
        d.token_ids = &token;
        d.logprobs = rows;
        server_send(&server, &f);
    }
    server_error(&server, 1, NVLLM__V1__ERROR_CODE__ERROR_BUSY, "later");
    fails_in = saved;
}

/* NVLLM_OK if the whole of it went well; each step is tried though the one before may have failed.
 */
static enum nvllm_code session(int fd)
{
    const struct nvllm_message message = {.role = "user", .content = {"hi", 2}};
    const struct nvllm_request_list *list;
    const struct nvllm_event *event;
    struct nvllm_options options;
    struct nvllm_request request;
    struct nvllm_chat chat = chat_of(&message, 1);
    struct nvllm_error list_err = {0};
    enum nvllm_code code, first;
    uint64_t id;

    n_events = 0;
    nvllm_options_init(&options);
    options.fd = fd;
    first = nvllm_connect(&client, &options, &err);
    if (first != NVLLM_OK)
        return first;
    nvllm_request_init(&request);
    request.chat = &chat;
    first = nvllm_generate_start(client, &id, &request, &err);
    if (first != NVLLM_OK)
        return first;
    write_answers();
    nvllm_list_requests(client, NULL, MS, &list, &list_err);
    while ((code = nvllm_next(client, 0, &event, &err)) == NVLLM_OK)
        n_events++;
    if (code == NVLLM_E_TIMEOUT)
        err = list_err;
    return err.code;
}

/* Whichever allocation fails, the answer is no_memory, and closing gives all back. */
TEST(every_allocation_fails_once)
{
    int n = 0;

    for (;; n++) {
        int fd = open_pair(), n_before, n_after;
        enum nvllm_code code;

        ck_assert_int_lt(n, 1000);
        server_welcome(&server, NVLLM__V1__STATE__STATE_READY);
        n_failed_now = 0;
        n_before = n_live;
        fails_in = n;
        code = session(fd);
        fails_in = -1;
        teardown();
        n_after = n_live;
        ck_assert_int_eq(n_after, n_before);
        if (n_failed_now == 0) {
            ck_assert_int_eq(code, NVLLM_OK);
            ck_assert_int_eq(n_events, 3);
            break;
        }
        ck_assert_int_eq(code, NVLLM_E_NOMEM);
        ck_assert_int_eq(err.code, NVLLM_E_NOMEM);
    }
    ck_assert_int_gt(n, 15); /* there was something to fail */
}

RUN_TESTS("client_nomem", NULL, NULL)
