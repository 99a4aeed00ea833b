/* test_nomem.c - one after another, each allocation made while a model folder or a chat is read
 * fails: the error says so and never blames the file or the client, and nothing leaks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/options.h"
#include "engine/model/model.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/failing_malloc.h"
#include "tests/unit/run_suite.h"

static struct chat_template *template;
static char config[] = "/tmp/nvllm-test-nomem-XXXXXX";

static int read_model(struct err *e)
{
    struct model *m;
    const int r = model_open(&m, TEST_MODEL_DIR, e);

    if (r == 0)
        model_close(m);
    return r;
}

static int read_tokenizer(struct err *e)
{
    struct tokenizer *t;
    const int r = tokenizer_load(&t, TEST_MODEL_DIR, e);

    if (r == 0)
        tokenizer_free(t);
    return r;
}

static int read_template(struct err *e)
{
    struct chat_template *t;
    const int r = chat_template_load(&t, TEST_MODEL_DIR, NULL, e);

    if (r == 0)
        chat_template_free(t);
    return r;
}

/* The arena's pieces come after the JSON's. */
static int render_chat(struct err *e)
{
    static const char json[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the weather in Zürich?\"},"
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"weather\","
        "\"arguments\": {\"city\": \"Zürich\", \"days\": [1, 2.5, null, true]}}]},"
        "{\"role\": \"tool\", \"content\": \"rain\"}], \"tools\": [{\"type\": \"function\","
        "\"function\": {\"name\": \"weather\", \"description\": \"the weather of a city, as it is "
        "expected for some days from today on\"}}]}";
    struct jinja_text text;
    const int r = chat_render_json(template, json, strlen(json), NULL, &text, e);

    if (r == 0)
        jinja_text_deinit(&text);
    return r;
}

static int read_options(struct err *e)
{
    struct options o;
    int r = options_init(&o, e);

    if (r < 0)
        return r;
    r = options_read(&o, config, e);
    options_deinit(&o);
    return r;
}

static const struct {
    int (*run)(struct err *e);
    int least;       /* allocations there are */
    bool uses_stdio; /* which does without its buffer */
} cases[] = {{read_model, 200, false},
             {read_tokenizer, 1000, false},
             {read_template, 20, false},
             {render_chat, 50, false},
             {read_options, 4, true}};

/* Whichever allocation fails, the result is -ENOMEM with a text that says so. */
TEST(failed_allocation_is_out_of_memory, .n = N(cases))
{
    static const char text[] = "[model]\npath = /m\n[scheduler]\nshares = 1000:2 1001:3\n";
    struct err e;
    int n = 0, fd;

    ck_assert_int_eq(chat_template_load(&template, TEST_MODEL_DIR, NULL, &e), 0);
    fd = mkstemp(config);
    ck_assert_int_eq(write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
    for (;; n += 1 + n / 64) { /* each of the first, then fewer and fewer */
        const int n_before = n_live;
        int r;

        n_failed_now = 0;
        e.text[0] = '\0';
        fails_in = n;
        r = cases[_i].run(&e);
        fails_in = -1;
        ck_assert_msg(n_live == n_before, "allocation %d: %d are lost", n, n_live - n_before);
        if (n_failed_now == 0) {
            ck_assert_int_eq(r, 0);
            break;
        }
        ck_assert_msg((r == 0 && cases[_i].uses_stdio) ||
                          (r == -ENOMEM && strcasestr(e.text, "memory")),
                      "allocation %d: %d, \"%s\"", n, r, e.text);
    }
    ck_assert_int_ge(n, cases[_i].least);
    chat_template_free(template);
    unlink(config);
}

RUN_TESTS("nomem", NULL, NULL)
