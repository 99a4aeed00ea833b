/* bench_chat.c - how fast a chat template renders long conversations.
 *
 * usage: bench_chat [TEMPLATE-FILE [TURNS [BYTES]]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/text/chat.h"

enum { ROUNDS = 300 };

static double now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static void fill(struct chat_message *m, size_t n, const char *text, size_t bytes)
{
    for (size_t i = 0; i < n; i++) {
        const char *role = i % 2 ? "assistant" : "user";

        m[i] = (struct chat_message){.role = {role, strlen(role)},
                                     .has_content = true,
                                     .content = {text, i % 2 ? bytes : bytes / 4}};
    }
}

/* The best of many rounds. */
static int bench(const struct chat_template *t, const char *name, const struct chat *chat)
{
    double best = 1e12;
    size_t len = 0;

    for (int i = 0; i < ROUNDS; i++) {
        const double start = now_us();
        struct jinja_text text;
        struct err e;

        if (chat_render(t, chat, &text, &e)) {
            fprintf(stderr, "%s: %s\n", name, e.text);
            return 1;
        }
        const double took = now_us() - start;
        len = text.len;
        jinja_text_deinit(&text);
        best = took < best ? took : best;
    }
    printf("%-12s %8zu bytes %9.1f us %8.1f us per 10 KB\n", name, len, best,
           best * 10240 / (double)len);
    return 0;
}

int main(int argc, char **argv)
{
    static const char tool[] =
        "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"a\": {\"type\": \"number\"}, \"b\": {\"type\": "
        "\"number\"}}}}}";
    const char *file = argc > 1 ? argv[1] : TEST_DATA_DIR "/qwen3-chat-template.jinja";
    const size_t n = 2 * (argc > 2 ? strtoul(argv[2], NULL, 10) : 100);
    const size_t bytes = argc > 3 ? strtoul(argv[3], NULL, 10) : 800;
    struct text tools[] = {{tool, strlen(tool)}, {tool, strlen(tool)}};
    struct chat_message *messages = calloc(n, sizeof(*messages));
    char *text = malloc(bytes + 1);
    struct chat_template *t = NULL;
    struct chat chat = {.messages = messages, .n_messages = n, .add_generation_prompt = true};
    struct err e = {""};
    int r;

    if (!messages || !text)
        return 1;
    memset(text, 'a', bytes);
    fill(messages, n, text, bytes);
    r = chat_template_load(&t, NULL, file, &e);
    if (r)
        fprintf(stderr, "%s\n", e.text);
    if (!r)
        r = bench(t, "plain", &chat);
    chat.tools = tools;
    chat.n_tools = 2;
    if (!r)
        r = bench(t, "two tools", &chat);
    chat_template_free(t);
    free(text);
    free(messages);
    return r ? 1 : 0;
}
