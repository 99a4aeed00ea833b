/* oneshot.c - one question, one answer.
 *
 *   cc oneshot.c $(pkg-config --cflags --libs libnvllm-client) -o oneshot
 *   ./oneshot "What is 17 + 25?" [SOCKET] */
#include <nvllm_client.h>

#include <stdio.h>

static int print(void *arg, const struct nvllm_event *event)
{
    (void)arg;
    if (event->delta)
        fwrite(event->delta->text.data, 1, event->delta->text.len, stdout);
    return 0; /* anything else would cancel the request */
}

int main(int argc, char **argv)
{
    struct nvllm_message message = {.role = "user"};
    struct nvllm_client *client = NULL;
    struct nvllm_request request;
    struct nvllm_options options;
    struct nvllm_error err;
    struct nvllm_chat chat;
    int rc = 1;

    message.content = nvllm_str(argc > 1 ? argv[1] : "What is 17 + 25?");

    nvllm_chat_init(&chat);
    chat.messages = &message;
    chat.n_messages = 1;
    chat.enable_thinking = NVLLM_OFF;

    nvllm_request_init(&request);
    request.chat = &chat;
    request.temperature = 0;
    request.max_tokens = 100;
    request.stream = false; /* the whole answer at once */

    nvllm_options_init(&options);
    if (argc > 2)
        options.socket_path = argv[2];
    options.wait_ready = true;

    if (nvllm_connect(&client, &options, &err) == NVLLM_OK &&
        nvllm_generate(client, &request, print, NULL, 60000, &err) == NVLLM_OK) {
        putchar('\n');
        rc = 0;
    } else {
        fprintf(stderr, "%s: %s\n", nvllm_code_name(err.code), err.message);
    }
    nvllm_close(client);
    return rc;
}
