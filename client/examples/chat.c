/* chat.c - a conversation: each line of input is a message, and the answer shows as it is made.
 *
 *   cc chat.c $(pkg-config --cflags --libs libnvllm-client) -o chat
 *   ./chat [SOCKET]
 *
 * Ctrl-C ends an answer early, the end of the input the program. */
#include <nvllm_client.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGES = 200, LOOK_MS = 100 };

/* The conversation so far; its texts are malloc'd. */
static struct nvllm_message messages[MAX_MESSAGES];
static size_t n_messages;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void add_message(const char *role, char *text, size_t len)
{
    messages[n_messages++] = (struct nvllm_message){.role = role, .content = {text, len}};
}

/* Shows the answer and adds it to the conversation. */
static enum nvllm_code answer(struct nvllm_client *client, struct nvllm_error *err)
{
    const struct nvllm_event *event;
    struct nvllm_request request;
    struct nvllm_chat chat;
    enum nvllm_code code;
    char *text;
    size_t len;
    FILE *said = open_memstream(&text, &len);
    uint64_t id;

    if (!said)
        abort(); /* out of memory */

    nvllm_chat_init(&chat);
    chat.messages = messages;
    chat.n_messages = n_messages;
    nvllm_request_init(&request);
    request.chat = &chat;
    request.max_tokens = 500;
    request.temperature = 0;
    interrupted = 0;
    code = nvllm_generate_start(client, &id, &request, err);
    while (code == NVLLM_OK) {
        if (interrupted) {
            interrupted = 0;
            code = nvllm_cancel(client, id, err); /* its end still comes */
            continue;
        }
        code = nvllm_next(client, LOOK_MS, &event, err);
        if (code == NVLLM_E_TIMEOUT) {
            code = NVLLM_OK;
            continue;
        }
        if (code != NVLLM_OK || event->type == NVLLM_EVENT_DONE)
            break;
        if (event->type == NVLLM_EVENT_ERROR) {
            *err = *event->error;
            code = err->code;
            break;
        }
        fwrite(event->delta->text.data, 1, event->delta->text.len, stdout);
        fflush(stdout);
        fwrite(event->delta->text.data, 1, event->delta->text.len, said);
    }
    putchar('\n');
    fclose(said);
    add_message("assistant", text, len);
    return code;
}

int main(int argc, char **argv)
{
    /* Where nothing is being answered, it interrupts nothing. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;
    char line[4096];
    int rc = 0;

    nvllm_options_init(&options);
    if (argc > 1)
        options.socket_path = argv[1];
    options.wait_ready = true;
    if (nvllm_connect(&client, &options, &err) != NVLLM_OK) {
        fprintf(stderr, "%s: %s\n", nvllm_code_name(err.code), err.message);
        return 1;
    }
    sigaction(SIGINT, &action, NULL);
    while (rc == 0 && n_messages + 2 <= MAX_MESSAGES && fgets(line, sizeof(line), stdin)) {
        size_t len = strcspn(line, "\n");

        add_message("user", strndup(line, len), len);
        if (answer(client, &err) != NVLLM_OK) {
            fprintf(stderr, "%s: %s\n", nvllm_code_name(err.code), err.message);
            rc = 1;
        }
    }
    nvllm_close(client);
    for (size_t i = 0; i < n_messages; i++)
        free((char *)messages[i].content.data);
    return rc;
}
