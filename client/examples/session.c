/* session.c - one turn of a conversation that the daemon holds: run it again with the same name,
 * and the conversation goes on.
 *
 *   cc session.c $(pkg-config --cflags --libs libnvllm-client) -o session
 *   ./session SOCKET NAME QUESTION */
#include <nvllm_client.h>

#include <stdio.h>
#include <string.h>

static int on_event(void *arg, const struct nvllm_event *event)
{
    (void)arg;
    if (event->type == NVLLM_EVENT_DELTA)
        fwrite(event->delta->text.data, 1, event->delta->text.len, stdout);
    else if (event->type == NVLLM_EVENT_DONE)
        fprintf(stderr, "%u of %u prompt tokens cached\n", event->done->cached_tokens,
                event->done->prompt_tokens);
    return fflush(stdout);
}

/* The session, created with a system message where there is none of that name. */
static enum nvllm_code open_session(struct nvllm_client *client, const char *name,
                                    struct nvllm_error *err)
{
    const struct nvllm_session *session;
    struct nvllm_message message = {.role = "system"};
    struct nvllm_chat chat;
    enum nvllm_code code = nvllm_show_session(client, name, false, -1, &session, err);

    if (code != NVLLM_E_INVALID || strcmp(err->field, "name") != 0)
        return code;
    message.content = nvllm_str("Answer in one sentence.");
    nvllm_chat_init(&chat);
    chat.messages = &message;
    chat.n_messages = 1;
    return nvllm_create_session(client, name, &chat, -1, NULL, err);
}

static enum nvllm_code ask(struct nvllm_client *client, const char *name, const char *question,
                           struct nvllm_error *err)
{
    struct nvllm_message message = {.role = "user"};
    struct nvllm_request request;
    struct nvllm_chat chat;

    message.content = nvllm_str(question);
    nvllm_chat_init(&chat);
    chat.messages = &message; /* what is new: the daemon has the rest */
    chat.n_messages = 1;
    nvllm_request_init(&request);
    request.chat = &chat;
    request.session = name;
    request.max_tokens = 500;
    request.temperature = 0;
    return nvllm_generate(client, &request, on_event, NULL, -1, err);
}

int main(int argc, char **argv)
{
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;
    enum nvllm_code code;

    if (argc != 4) {
        fprintf(stderr, "usage: %s SOCKET NAME QUESTION\n", argv[0]);
        return 2;
    }
    nvllm_options_init(&options);
    options.socket_path = argv[1];
    options.wait_ready = true;
    code = nvllm_connect(&client, &options, &err);
    if (code == NVLLM_OK)
        code = open_session(client, argv[2], &err);
    if (code == NVLLM_OK)
        code = ask(client, argv[2], argv[3], &err);
    putchar('\n');
    if (code != NVLLM_OK)
        fprintf(stderr, "%s: %s\n", nvllm_code_name(code), err.message);
    nvllm_close(client);
    return code != NVLLM_OK;
}
