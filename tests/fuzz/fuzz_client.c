/* fuzz_client.c - what a stranger at the socket may answer libnvllm-client. The first byte says
 * which call waits meanwhile. Whatever comes, each request ends at most once, what is handed out
 * can be read to its end, and the last word is an error that stays. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/lib/nvllm_client.h"
#include "tests/fuzz/fuzz.h"

enum { N_CHOICES = 2, N_REQUESTS = 7, MS = 1000 };

static const char welcome[] = "\x06\x12\x04\x08\x01\x18\x02"; /* protocol 1, ready */

/* Reads all bytes, so that a sanitizer sees those that are not there. */
static volatile unsigned sum;

static void touch(const void *data, size_t n)
{
    const unsigned char *p = data;

    FUZZ_CHECK(p || n == 0);
    for (size_t i = 0; i < n; i++)
        sum += p[i];
}

static void touch_text(const char *s)
{
    touch(s, strlen(s));
}

static void touch_delta(const struct nvllm_delta *d)
{
    FUZZ_CHECK(d->choice < N_CHOICES);
    FUZZ_CHECK(d->finish <= NVLLM_FINISH_ERROR);
    touch(d->text.data, d->text.len);
    touch(d->token_ids, d->n_tokens * sizeof(*d->token_ids));
    for (size_t i = 0; d->logprobs && i < d->n_tokens; i++) {
        touch(d->logprobs[i].top_ids, d->logprobs[i].n_top * sizeof(int32_t));
        touch(d->logprobs[i].top_logprobs, d->logprobs[i].n_top * sizeof(float));
    }
}

static void touch_event(const struct nvllm_event *e)
{
    FUZZ_CHECK(e->id >= 1 && e->id <= N_REQUESTS);
    FUZZ_CHECK((e->delta != NULL) + (e->done != NULL) + (e->error != NULL) + (e->tokens != NULL) +
                   (e->text != NULL) + (e->status != NULL) + (e->trace != NULL) +
                   (e->traced != NULL) + (e->embedding != NULL) ==
               1);
    if (e->delta)
        touch_delta(e->delta);
    if (e->error)
        FUZZ_CHECK(e->error->code != NVLLM_OK && e->error->message[0] != '\0');
    if (e->text)
        touch(e->text->data, e->text->len);
    if (e->embedding)
        touch(e->embedding->values, e->embedding->n_values * sizeof(float));
    if (e->status)
        touch_text(e->status->device);
    for (size_t i = 0; e->trace && i < e->trace->n_records; i++) {
        FUZZ_CHECK(e->trace->records[i]->kind <= NVLLM_TRACE_PART);
        touch(e->trace->records[i], sizeof(*e->trace->records[i]));
    }
    for (size_t i = 0; e->tokens && i < e->tokens->n_tokens; i++)
        touch(e->tokens->tokens[i].data, e->tokens->tokens[i].len);
}

static void start_all(struct nvllm_client *c)
{
    struct nvllm_embed_options embed;
    struct nvllm_request request;
    struct nvllm_chat chat;
    uint64_t id;

    nvllm_request_init(&request);
    request.prompt = nvllm_str("x");
    request.n = N_CHOICES + FUZZ_PLANT;
    FUZZ_CHECK(nvllm_generate_start(c, &id, &request, NULL) == NVLLM_OK);
    FUZZ_CHECK(nvllm_tokenize_start(c, &id, nvllm_str("x"), true, -1, NULL) == NVLLM_OK);
    FUZZ_CHECK(nvllm_detokenize_start(c, &id, NULL, 0, true, -1, NULL) == NVLLM_OK);
    nvllm_chat_init(&chat);
    FUZZ_CHECK(nvllm_render_start(c, &id, &chat, -1, NULL) == NVLLM_OK);
    FUZZ_CHECK(nvllm_get_status_start(c, &id, -1, NULL) == NVLLM_OK);
    FUZZ_CHECK(nvllm_trace_start(c, &id, NULL, -1, NULL) == NVLLM_OK);
    nvllm_embed_options_init(&embed);
    embed.prompt = nvllm_str("x");
    FUZZ_CHECK(nvllm_embed_start(c, &id, &embed, -1, NULL) == NVLLM_OK && id == N_REQUESTS);
}

static void wait_for_requests(struct nvllm_client *c)
{
    const struct nvllm_request_list *list;

    if (nvllm_list_requests(c, NULL, MS, &list, NULL) == NVLLM_OK)
        for (size_t i = 0; i < list->n_requests; i++)
            FUZZ_CHECK(list->requests[i]->state <= NVLLM_REQUEST_ENDING);
}

static void wait_for_blocks(struct nvllm_client *c)
{
    const struct nvllm_blocks *blocks;

    if (nvllm_get_blocks(c, NULL, MS, &blocks, NULL) != NVLLM_OK)
        return;
    touch(blocks->map.data, blocks->map.len);
    for (size_t i = 0; i < blocks->n_uids; i++)
        touch(blocks->uids[i], sizeof(*blocks->uids[i]));
    for (size_t i = 0; i < blocks->n_requests; i++)
        touch(blocks->requests[i], sizeof(*blocks->requests[i]));
}

static void wait_for_cache(struct nvllm_client *c)
{
    const struct nvllm_cache *cache;

    if (nvllm_show_cache(c, NULL, MS, &cache, NULL) == NVLLM_OK)
        for (size_t i = 0; i < cache->n_prefixes; i++)
            touch(cache->prefixes[i]->head_ids,
                  cache->prefixes[i]->n_head_ids * sizeof(*cache->prefixes[i]->head_ids));
}

static void wait_for_explanation(struct nvllm_client *c)
{
    const struct nvllm_explanation *why;
    struct nvllm_explain_options o;

    nvllm_explain_options_init(&o);
    o.request = 1;
    if (nvllm_explain(c, &o, MS, &why, NULL) != NVLLM_OK)
        return;
    touch_text(why->text);
    touch(why->other_ids, why->n_other_ids * sizeof(*why->other_ids));
}

static void wait_for_reload(struct nvllm_client *c)
{
    const struct nvllm_reloaded *r;

    if (nvllm_reload(c, MS, &r, NULL) != NVLLM_OK)
        return;
    for (size_t i = 0; i < r->n_changed; i++)
        touch_text(r->changed[i]);
    for (size_t i = 0; i < r->n_needs_restart; i++)
        touch_text(r->needs_restart[i]);
}

static void wait_for_change(struct nvllm_client *c)
{
    const struct nvllm_change *change;

    if (nvllm_resume(c, MS, &change, NULL) == NVLLM_OK)
        touch_text(change->log_level);
}

static void wait_for_nothing(struct nvllm_client *c)
{
    (void)c;
}

static void (*const calls[])(struct nvllm_client *c) = {
    wait_for_nothing,     wait_for_requests, wait_for_blocks, wait_for_cache,
    wait_for_explanation, wait_for_reload,   wait_for_change,
};

static void run(struct nvllm_client *c, uint8_t call)
{
    bool ended[N_REQUESTS + 1] = {false};
    const struct nvllm_event *event;
    struct nvllm_error first, again;
    enum nvllm_code code;

    calls[call % (sizeof(calls) / sizeof(*calls))](c);
    while ((code = nvllm_next(c, MS, &event, &first)) == NVLLM_OK) {
        touch_event(event);
        FUZZ_CHECK(!ended[event->id]);
        ended[event->id] = event->type != NVLLM_EVENT_DELTA && event->type != NVLLM_EVENT_TRACE;
    }
    FUZZ_CHECK(code != NVLLM_E_TIMEOUT && code == first.code && first.message[0] != '\0');
    FUZZ_CHECK(nvllm_pending(c) == 0 && nvllm_wants(c) == 0);
    FUZZ_CHECK(nvllm_next(c, MS, &event, &again) == code);
    FUZZ_CHECK(strcmp(first.message, again.message) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct nvllm_options options;
    struct nvllm_client *c;
    int fds[2];

    if (size < 1 || size > 64 << 10 || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return 0;
    nvllm_options_init(&options);
    options.fd = fds[0];
    FUZZ_CHECK(nvllm_connect_start(&c, &options, NULL) == NVLLM_OK);
    start_all(c);
    FUZZ_CHECK(write(fds[1], welcome, sizeof(welcome) - 1) == sizeof(welcome) - 1);
    if (write(fds[1], data + 1, size - 1) == (ssize_t)(size - 1)) {
        shutdown(fds[1], SHUT_WR);
        run(c, data[0]);
    }
    nvllm_close(c);
    close(fds[1]);
    return 0;
}
