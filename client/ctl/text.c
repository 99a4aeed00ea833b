/* text.c - the commands that convert one value into another: tokenize, detokenize, render.
 *
 * The input is an argument or stdin, or with --jsonl one JSON value per line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/lines.h"
#include "client/ctl/request.h"
#include "proto/program.h"

struct text_work {
    struct ctl *ctl;
    const struct text_command *command;
    bool special; /* tokenize: match special tokens; detokenize: skip them */
    bool json;
};

struct text_input {
    struct nvllm_text text;
    json_t *value; /* NULL: the text is all there is */
};

/* The daemon's answer; it holds until the next call. */
struct text_answer {
    const struct nvllm_tokens *tokens; /* NULL: it is a text */
    struct nvllm_text text;
};

struct text_command {
    /* The value that an argument or stdin holds, or NULL with *err; NULL as a function: the bytes
     * are the value, and a line of --jsonl is a string. */
    json_t *(*parse)(const char *data, size_t n, struct nvllm_error *err);
    bool (*convert)(struct text_work *w, const struct text_input *input, struct text_answer *answer,
                    struct nvllm_error *err);
};

/* ---- the commands */

static bool tokenize(struct text_work *w, const struct text_input *input,
                     struct text_answer *answer, struct nvllm_error *err)
{
    return nvllm_tokenize(w->ctl->client, input->text, w->special, ctl_left_ms(w->ctl),
                          &answer->tokens, err) == NVLLM_OK;
}

/* Ids as JSON, or as plain numbers between blanks and commas. */
static json_t *parse_ids(const char *data, size_t n, struct nvllm_error *err)
{
    size_t start = 0;
    json_t *array;
    int64_t id;
    int got;

    while (start < n && memchr(" \t\r\n", data[start], 4))
        start++;
    if (start < n && (data[start] == '[' || data[start] == '{'))
        return ctl_json_parse(data, n, err);
    array = json_array();
    while ((got = program_next_number(&id, data, n, &start)) == PROGRAM_NUMBER)
        json_array_append_new(array, json_integer(id));
    if (got == PROGRAM_END)
        return array;
    json_decref(array);
    ctl_invalid(err, "token ids are whole numbers: byte %zu of the input is not one", start + 1);
    return NULL;
}

static bool detokenize(struct text_work *w, const struct text_input *input,
                       struct text_answer *answer, struct nvllm_error *err)
{
    const json_t *value = input->value;
    struct ctl_request q;
    bool ok;

    ctl_request_init(&q);
    ok = ctl_request_read_ids(&q, json_is_object(value) ? json_object_get(value, "ids") : value,
                              err) &&
         nvllm_detokenize(w->ctl->client, q.r.prompt_ids, q.r.n_prompt_ids, w->special,
                          ctl_left_ms(w->ctl), &answer->text, err) == NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

static bool render(struct text_work *w, const struct text_input *input, struct text_answer *answer,
                   struct nvllm_error *err)
{
    struct ctl_request q;
    bool ok;

    ctl_request_init(&q);
    ok = ctl_request_read_chat(&q, input->value, err) &&
         nvllm_render(w->ctl->client, &q.chat, ctl_left_ms(w->ctl), &answer->text, err) == NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

/* ---- answers */

static json_t *answer_object(const struct text_answer *answer)
{
    const struct nvllm_tokens *tokens = answer->tokens;
    json_t *texts;

    if (!tokens)
        return json_pack("{so}", "text", ctl_json_text(answer->text));
    texts = json_array();
    for (size_t i = 0; i < tokens->n_tokens; i++)
        json_array_append_new(texts, ctl_json_text(tokens->tokens[i]));
    return json_pack("{soso}", "ids", ctl_json_ids(tokens->ids, tokens->n_tokens), "tokens", texts);
}

static void print_answer(const struct text_work *w, const struct text_answer *answer)
{
    const struct nvllm_tokens *tokens = answer->tokens;

    if (w->json)
        ctl_json_print(STDOUT_FILENO, answer_object(answer));
    else if (!tokens)
        ctl_write_text(STDOUT_FILENO, answer->text.data, answer->text.len, isatty(STDOUT_FILENO));
    for (size_t i = 0; tokens && !w->json && i < tokens->n_tokens; i++)
        printf(i ? " %d" : "%d", (int)tokens->ids[i]);
    if (tokens && !w->json)
        putchar('\n');
}

/* ---- one value per line */

/* Whether later lines would fail, too. */
static bool is_lasting(enum nvllm_code code)
{
    return code == NVLLM_E_CONNECTION || code == NVLLM_E_PROTOCOL || code == NVLLM_E_TIMEOUT ||
           code == NVLLM_E_NOMEM || code == NVLLM_E_DENIED || code == NVLLM_E_UNSUPPORTED;
}

/* The object of an answer, or NULL with *err. */
static json_t *convert_line(struct text_work *w, const char *line, size_t n,
                            struct nvllm_error *err)
{
    struct text_input input = {.value = ctl_json_parse(line, n, err)};
    struct text_answer answer = {0};
    json_t *object = NULL;

    if (input.value && !w->command->parse && !json_is_string(input.value)) {
        ctl_invalid(err, "must be a JSON string");
    } else if (input.value) {
        if (!w->command->parse)
            input.text = (struct nvllm_text){json_string_value(input.value),
                                             json_string_length(input.value)};
        if (w->command->convert(w, &input, &answer, err))
            object = answer_object(&answer);
    }
    json_decref(input.value);
    return object;
}

static int run_lines(struct text_work *w)
{
    struct nvllm_error err = {0};
    struct lines lines;
    int rc = EXIT_OK, got;
    char *line;
    size_t n;

    lines_init(&lines, STDIN_FILENO);
    while ((got = lines_next(&lines, &line, &n, true)) == LINES_OK || got == LINES_E_LONG) {
        json_t *answer = NULL;

        if (got == LINES_E_LONG)
            ctl_invalid(&err, "longer than %d MiB", LINES_MAX_BYTES >> 20);
        else if (strspn(line, " \t\r\n") >= n)
            continue;
        else
            answer = convert_line(w, line, n, &err);
        if (!answer) {
            ctl_message("line %llu: %s", (unsigned long long)lines.number, err.message);
            rc = ctl_exit_code(err.code);
            answer = json_pack("{so}", "error", ctl_json_error(&err));
        }
        ctl_json_print(STDOUT_FILENO, answer);
        if (rc != EXIT_OK && is_lasting(err.code))
            break;
    }
    if (got == LINES_E_READ)
        ctl_die("cannot read stdin: %s", strerror(errno));
    lines_deinit(&lines);
    return rc;
}

/* ---- one value */

/* The arguments with blanks between them, or stdin. */
static struct text_buffer read_text(const struct usage_line *line)
{
    struct text_buffer text = {0};

    if (line->n_words == 0 || (line->n_words == 1 && strcmp(line->words[0], "-") == 0))
        text.data = ctl_read_all(STDIN_FILENO, &text.len);
    else
        for (int i = 0; i < line->n_words; i++) {
            text_buffer_add(&text, i ? " " : "", i > 0);
            text_buffer_add(&text, line->words[i], strlen(line->words[i]));
        }
    return text;
}

static int run_one(struct text_work *w)
{
    struct text_buffer text = read_text(&w->ctl->line);
    struct text_input input = {.text = {text.data ? text.data : "", text.len}};
    struct text_answer answer = {0};
    struct ctl *ctl = w->ctl;

    if (w->command->parse &&
        !(input.value = w->command->parse(input.text.data, text.len, &ctl->err)))
        exit(ctl_report(ctl, &ctl->err));
    ctl_connect(ctl);
    if (!w->command->convert(w, &input, &answer, &ctl->err))
        exit(ctl_report(ctl, &ctl->err));
    print_answer(w, &answer);
    json_decref(input.value);
    text_buffer_deinit(&text);
    return EXIT_OK;
}

static int run(struct ctl *ctl, const struct text_command *command, bool special)
{
    struct text_work w = {
        .ctl = ctl,
        .command = command,
        .special = special,
        .json = ctl_option(ctl, "json"),
    };
    const struct usage_line *line = &ctl->line;

    if (!ctl_option(ctl, "jsonl"))
        return run_one(&w);
    if (line->n_words > 1 || (line->n_words == 1 && strcmp(line->words[0], "-") != 0))
        ctl_usage(ctl, "--jsonl reads stdin: “%s” is one argument too many", line->words[0]);
    ctl_connect(ctl);
    return run_lines(&w);
}

int ctl_tokenize(struct ctl *ctl)
{
    static const struct text_command command = {NULL, tokenize};

    return run(ctl, &command, ctl_option(ctl, "special"));
}

int ctl_detokenize(struct ctl *ctl)
{
    static const struct text_command command = {parse_ids, detokenize};

    return run(ctl, &command, ctl_option(ctl, "skip-special"));
}

int ctl_render(struct ctl *ctl)
{
    static const struct text_command command = {ctl_json_parse, render};

    return run(ctl, &command, false);
}
