/* poll_loop.c - many prompts over one connection, ten at a time, in a poll() loop of one's own.
 *
 *   cc poll_loop.c $(pkg-config --cflags --libs libnvllm-client) -o poll_loop
 *   ./poll_loop [SOCKET] <prompts     one prompt a line; an answer a line, as they end */
#include <nvllm_client.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AT_A_TIME = 10, ANSWER_BYTES = 4096 };

/* A request in progress, and its answer so far. */
struct job {
    uint64_t id; /* 0: the place is free */
    int line;
    size_t n;
    char answer[ANSWER_BYTES];
};

static struct job jobs[AT_A_TIME];

static struct job *find_job(uint64_t id)
{
    for (int i = 0; i < AT_A_TIME; i++)
        if (jobs[i].id == id)
            return &jobs[i];
    return NULL;
}

/* Fills the free places. False at the end of the prompts, with *err filled if it was an error. */
static bool start_jobs(struct nvllm_client *client, int *line, struct nvllm_error *err)
{
    char prompt[4096];
    struct job *job;

    while ((job = find_job(0)) != NULL) {
        struct nvllm_request request;

        if (!fgets(prompt, sizeof(prompt), stdin))
            return false;
        prompt[strcspn(prompt, "\n")] = '\0';
        nvllm_request_init(&request);
        request.prompt = nvllm_str(prompt);
        request.max_tokens = 32;
        request.temperature = 0;
        request.timeout_ms = 60000;
        if (nvllm_generate_start(client, &job->id, &request, err) != NVLLM_OK)
            return false;
        job->line = ++*line;
        job->n = 0;
    }
    return true;
}

static void take(const struct nvllm_event *event)
{
    struct job *job = find_job(event->id);

    if (event->type == NVLLM_EVENT_DELTA) {
        size_t room = ANSWER_BYTES - job->n, n = event->delta->text.len;

        n = n < room ? n : room;
        memcpy(job->answer + job->n, event->delta->text.data, n);
        job->n += n;
        return;
    }
    if (event->type == NVLLM_EVENT_DONE)
        printf("%d: %u tokens: %.*s\n", job->line, event->done->completion_tokens, (int)job->n,
               job->answer);
    else
        printf("%d: %s\n", job->line, event->error->message);
    job->id = 0;
}

/* Sleeps until the socket has, or takes, something, or a deadline is over. */
static void wait_for(const struct nvllm_client *client)
{
    struct pollfd p = {.fd = nvllm_fd(client)};
    unsigned wants = nvllm_wants(client);

    if (wants & NVLLM_WANT_READ)
        p.events |= POLLIN;
    if (wants & NVLLM_WANT_WRITE)
        p.events |= POLLOUT;
    poll(&p, 1, nvllm_timeout(client));
}

int main(int argc, char **argv)
{
    struct nvllm_client *client = NULL;
    const struct nvllm_event *event;
    struct nvllm_options options;
    struct nvllm_error err = {.code = NVLLM_OK};
    enum nvllm_code code;
    int line = 0;
    bool more;

    nvllm_options_init(&options);
    if (argc > 1)
        options.socket_path = argv[1];
    options.wait_ready = true;
    if (nvllm_connect(&client, &options, &err) != NVLLM_OK)
        goto fail;
    more = start_jobs(client, &line, &err);
    while (err.code == NVLLM_OK && nvllm_pending(client) > 0) {
        wait_for(client);
        if (nvllm_process(client, &err) != NVLLM_OK)
            goto fail;
        while ((code = nvllm_next(client, 0, &event, &err)) == NVLLM_OK)
            take(event);
        if (code != NVLLM_E_TIMEOUT) /* the connection is over */
            goto fail;
        err.code = NVLLM_OK; /* no more for now */
        if (more)
            more = start_jobs(client, &line, &err);
    }
fail:
    if (err.code != NVLLM_OK)
        fprintf(stderr, "%s: %s\n", nvllm_code_name(err.code), err.message);
    nvllm_close(client);
    return err.code == NVLLM_OK ? 0 : 1;
}
