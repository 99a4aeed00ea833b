/* ctl_text.c - nvllmctl tokenize, detokenize and render: one value in, one out, or one a line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl.h"
#include "client/ctl_json.h"
#include "client/ctl_lines.h"
#include "client/ctl_request.h"

struct work {
    struct ctl *ctl;
    struct nvllm_client *client;
    bool special; /* tokenize: match them; detokenize: skip them */
    bool json, jsonl;
    json_t *(*convert)(struct work *, const json_t *, struct nvllm_error *); /* of a JSON value */
};

/* The object of an answer that is a text, or NULL with *err as it is. */
static json_t *text_object(struct nvllm_text text)
{
    json_t *o = json_object();

    json_object_set_new(o, "text", ctl_json_text(text.data, text.len));
    return o;
}

/* ---- the three conversions */

static json_t *tokens_object(const struct nvllm_tokens *tokens)
{
    json_t *o = json_object(), *texts = json_array();

    for (size_t i = 0; i < tokens->n_tokens; i++)
        json_array_append_new(texts, ctl_json_text(tokens->tokens[i].data, tokens->tokens[i].len));
    json_object_set_new(o, "ids", ctl_json_ids(tokens->ids, tokens->n_tokens));
    json_object_set_new(o, "tokens", texts);
    return o;
}

static bool tokenize(struct work *w, struct nvllm_text text, const struct nvllm_tokens **tokens,
                     struct nvllm_error *err)
{
    return nvllm_tokenize(w->client, text, w->special, ctl_left_ms(w->ctl), tokens, err) ==
           NVLLM_OK;
}

static json_t *convert_tokenize(struct work *w, const json_t *value, struct nvllm_error *err)
{
    const struct nvllm_tokens *tokens;

    if (!json_is_string(value)) {
        ctl_invalid(err, "must be a JSON string");
        return NULL;
    }
    if (!tokenize(w, (struct nvllm_text){json_string_value(value), json_string_length(value)},
                  &tokens, err))
        return NULL;
    return tokens_object(tokens);
}

/* *text holds until the next call. */
static bool detokenize(struct work *w, const json_t *value, struct nvllm_text *text,
                       struct nvllm_error *err)
{
    const json_t *array = json_is_object(value) ? json_object_get(value, "ids") : value;
    struct ctl_request q;
    const int32_t *ids;
    size_t n;
    bool ok;

    ctl_request_init(&q);
    ok =
        ctl_json_read_ids(&q, "ids", array, &ids, &n, err) &&
        nvllm_detokenize(w->client, ids, n, w->special, ctl_left_ms(w->ctl), text, err) == NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

static json_t *convert_detokenize(struct work *w, const json_t *value, struct nvllm_error *err)
{
    struct nvllm_text text;

    return detokenize(w, value, &text, err) ? text_object(text) : NULL;
}

static bool render(struct work *w, const json_t *value, struct nvllm_text *text,
                   struct nvllm_error *err)
{
    struct ctl_request q;
    bool ok;

    ctl_request_init(&q);
    ok = ctl_json_read_chat(&q, value, err) &&
         nvllm_render(w->client, &q.chat, ctl_left_ms(w->ctl), text, err) == NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

static json_t *convert_render(struct work *w, const json_t *value, struct nvllm_error *err)
{
    struct nvllm_text text;

    return render(w, value, &text, err) ? text_object(text) : NULL;
}

/* ---- a value a line */

/* Does this error end all that would come after it? */
static bool is_lasting(enum nvllm_code code)
{
    return code == NVLLM_E_CONNECTION || code == NVLLM_E_PROTOCOL || code == NVLLM_E_TIMEOUT ||
           code == NVLLM_E_NOMEM || code == NVLLM_E_DENIED || code == NVLLM_E_UNSUPPORTED;
}

/* An answer, or NULL with *err. */
static json_t *convert_line(struct work *w, const char *line, size_t n, struct nvllm_error *err)
{
    json_t *value = ctl_json_parse(line, n, err);
    json_t *answer = value ? w->convert(w, value, err) : NULL;

    json_decref(value);
    return answer;
}

static int run_lines(struct work *w)
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
        if (!ctl_json_print(STDOUT_FILENO, answer)) {
            rc = EXIT_ERROR;
            break;
        }
        if (rc != EXIT_OK && is_lasting(err.code))
            break;
    }
    if (got == LINES_E_READ || got == LINES_E_NOMEM) {
        ctl_message("cannot read stdin: %s",
                    got == LINES_E_NOMEM ? "out of memory" : strerror(errno));
        rc = EXIT_ERROR;
    }
    lines_deinit(&lines);
    return rc;
}

/* ---- options and input */

static void read_options(struct work *w, int argc, char **argv, const struct option *options)
{
    int c;

    while ((c = ctl_getopt(w->ctl, argc, argv, options)) != -1) {
        if (c == 'j')
            w->json = true;
        else if (c == 'l')
            w->jsonl = true;
        else if (c == 's')
            w->special = true;
        else
            ctl_usage(w->ctl, "%s takes no -%c", w->ctl->command, c);
    }
    if (w->jsonl && optind < argc && (argc - optind > 1 || strcmp(argv[optind], "-") != 0))
        ctl_usage(w->ctl, "--jsonl reads stdin: “%s” is one too many", argv[optind]);
}

/* What the argument says, or stdin. *memory is to be freed. */
static int read_input(struct work *w, int argc, char **argv, char **memory,
                      struct nvllm_text *input)
{
    int rc;

    *memory = NULL;
    if (argc - optind > 1)
        ctl_usage(w->ctl, "one argument, not %d: put it in quotes", argc - optind);
    if (optind < argc && strcmp(argv[optind], "-") != 0) {
        *input = nvllm_str(argv[optind]);
        return EXIT_OK;
    }
    rc = ctl_read_stdin(memory, &input->len);
    input->data = *memory;
    return rc;
}

static bool print_answer(const struct work *w, struct nvllm_text text)
{
    if (w->json)
        return ctl_json_print(STDOUT_FILENO, text_object(text));
    return ctl_write(STDOUT_FILENO, text.data, text.len);
}

static bool print_ids(const struct nvllm_tokens *tokens)
{
    for (size_t i = 0; i < tokens->n_tokens; i++)
        printf(i ? " %d" : "%d", (int)tokens->ids[i]);
    return putchar('\n') != EOF;
}

static int ended(struct work *w, char *memory, int rc)
{
    nvllm_close(w->client);
    free(memory);
    return rc;
}

/* ---- the commands */

int ctl_tokenize(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        CTL_COMMON_OPTIONS,
        {"json", no_argument, NULL, 'j'},
        {"jsonl", no_argument, NULL, 'l'},
        {"special", no_argument, NULL, 's'},
        {NULL, 0, NULL, 0},
    };
    struct work w = {.ctl = ctl, .convert = convert_tokenize};
    const struct nvllm_tokens *tokens;
    struct nvllm_error err;
    struct nvllm_text text;
    char *memory = NULL;
    int rc = EXIT_OK;

    read_options(&w, argc, argv, options);
    if (!w.jsonl)
        rc = read_input(&w, argc, argv, &memory, &text);
    if (rc == EXIT_OK)
        rc = ctl_connect(&w.client, ctl);
    if (rc != EXIT_OK)
        return ended(&w, memory, rc);
    if (w.jsonl)
        rc = run_lines(&w);
    else if (!tokenize(&w, text, &tokens, &err))
        rc = ctl_report(ctl, &err);
    else if (w.json ? !ctl_json_print(STDOUT_FILENO, tokens_object(tokens)) : !print_ids(tokens))
        rc = EXIT_ERROR;
    return ended(&w, memory, rc);
}

/* Ids as JSON, or as plain numbers between blanks and commas. */
static json_t *parse_ids(struct nvllm_text text, struct nvllm_error *err)
{
    size_t start = 0;
    json_t *array;

    while (start < text.len && strchr(" \t\r\n", text.data[start]) && text.data[start])
        start++;
    if (start < text.len && (text.data[start] == '[' || text.data[start] == '{'))
        return ctl_json_parse(text.data, text.len, err);
    array = json_array();
    for (size_t i = start; i < text.len;) {
        json_int_t id = 0;
        size_t digits = 0;

        for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++, digits++)
            id = id > INT32_MAX ? id : id * 10 + (text.data[i] - '0');
        if (digits > 0)
            json_array_append_new(array, json_integer(id));
        else if (!memchr(" \t\r\n,", text.data[i++], 5)) {
            json_decref(array);
            ctl_invalid(err, "token ids are whole numbers: byte %zu of the input is none", i);
            return NULL;
        }
    }
    return array;
}

static int detokenize_arguments(char **argv, int argc, char **memory, struct nvllm_text *input)
{
    size_t bytes = 1, at = 0;

    for (int i = optind; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    *memory = malloc(bytes);
    if (!*memory) {
        ctl_message("out of memory");
        return EXIT_ERROR;
    }
    for (int i = optind; i < argc; i++) {
        memcpy(*memory + at, argv[i], strlen(argv[i]));
        at += strlen(argv[i]);
        (*memory)[at++] = ' ';
    }
    *input = (struct nvllm_text){*memory, at};
    return EXIT_OK;
}

int ctl_detokenize(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        CTL_COMMON_OPTIONS,
        {"json", no_argument, NULL, 'j'},
        {"jsonl", no_argument, NULL, 'l'},
        {"skip-special", no_argument, NULL, 's'},
        {NULL, 0, NULL, 0},
    };
    struct work w = {.ctl = ctl, .convert = convert_detokenize};
    struct nvllm_text input, text;
    struct nvllm_error err;
    json_t *value = NULL;
    char *memory = NULL;
    int rc = EXIT_OK;

    read_options(&w, argc, argv, options);
    if (!w.jsonl)
        rc = argc - optind > 1 ? detokenize_arguments(argv, argc, &memory, &input)
                               : read_input(&w, argc, argv, &memory, &input);
    if (rc == EXIT_OK && !w.jsonl && !(value = parse_ids(input, &err)))
        rc = ctl_report(ctl, &err);
    if (rc == EXIT_OK)
        rc = ctl_connect(&w.client, ctl);
    if (rc == EXIT_OK) {
        if (w.jsonl)
            rc = run_lines(&w);
        else if (!detokenize(&w, value, &text, &err))
            rc = ctl_report(ctl, &err);
        else if (!print_answer(&w, text))
            rc = EXIT_ERROR;
    }
    json_decref(value);
    return ended(&w, memory, rc);
}

int ctl_render(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        CTL_COMMON_OPTIONS,
        {"json", no_argument, NULL, 'j'},
        {"jsonl", no_argument, NULL, 'l'},
        {NULL, 0, NULL, 0},
    };
    struct work w = {.ctl = ctl, .convert = convert_render};
    struct nvllm_text input, text;
    struct nvllm_error err;
    json_t *value = NULL;
    char *memory = NULL;
    int rc = EXIT_OK;

    read_options(&w, argc, argv, options);
    if (!w.jsonl)
        rc = read_input(&w, argc, argv, &memory, &input);
    if (rc == EXIT_OK && !w.jsonl && !(value = ctl_json_parse(input.data, input.len, &err)))
        rc = ctl_report(ctl, &err);
    if (rc == EXIT_OK)
        rc = ctl_connect(&w.client, ctl);
    if (rc == EXIT_OK) {
        if (w.jsonl)
            rc = run_lines(&w);
        else if (!render(&w, value, &text, &err))
            rc = ctl_report(ctl, &err);
        else if (!print_answer(&w, text))
            rc = EXIT_ERROR;
    }
    json_decref(value);
    return ended(&w, memory, rc);
}
