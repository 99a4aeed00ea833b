/* offline.c - see offline.h. Each operation turns one input into one JSON object; reading input and
 * printing output is common to all. */
#include "daemon/offline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "daemon/offline_schema.h"
#include "engine/text/chat.h"
#include "engine/util/err.h"
#include "engine/util/json_util.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "proto/program.h"
#include "proto/utf8.h"

enum { MAX_INPUT_BYTES = TOKENIZER_MAX_BYTES };

struct tool {
    const char *model, *template_file; /* the file may be NULL */
    const struct usage_line *line;
    const struct operation *operation;
    struct tokenizer *tokenizer; /* of all but render */
    int32_t vocab_size;
    struct vocabulary *vocabulary;  /* of schema */
    struct chat_template *template; /* of render */
    struct tm now;                  /* with --now */
    bool has_now;
};

struct operation {
    const char *name;
    /* One input, with a NUL behind, to one object; parsed is NULL where it is not JSON but text. */
    int (*run)(struct tool *t, struct text input, const json_t *parsed, json_t **out,
               struct err *e);
    bool renders; /* needs the template, and parses the lines of --jsonl */
    bool masks;   /* needs the vocabulary */
};

static int complain(const char *text)
{
    fprintf(stderr, "nvllmd: %s\n", text);
    return 1;
}

static bool is_given(const struct tool *t, const char *option)
{
    return usage_value(t->line, option) != NULL;
}

/* ---- reading and writing */

/* *out is to be freed in any case. */
static int read_all(char **out, size_t *n, FILE *in, struct err *e)
{
    FILE *all = open_memstream(out, n);
    size_t got, len = 0;
    char part[4096];

    while (all && len <= MAX_INPUT_BYTES && (got = fread(part, 1, sizeof(part), in)) > 0)
        len += fwrite(part, 1, got, all);
    if (!all || fclose(all) != 0)
        return err_set(e, -ENOMEM, "out of memory");
    if (len > MAX_INPUT_BYTES)
        return err_set(e, -E2BIG, "stdin: more than %d bytes", MAX_INPUT_BYTES);
    return ferror(in) ? err_set(e, -EIO, "cannot read stdin") : 0;
}

/* Prints in ASCII: some readers end a line at U+2028. */
static int put_line(json_t *value, struct err *e)
{
    char *text = value ? json_text(value, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

    json_decref(value);
    if (!text)
        return err_set(e, -ENOMEM, "out of memory");
    puts(text);
    free(text);
    return 0;
}

static json_t *error_object(int r, struct err *e)
{
    utf8_clean(e->text); /* it may quote the line and be cut inside a character */
    return json_pack("{s:{s:s, s:s}}", "error", "code", r == -ENOMEM ? "internal" : "invalid",
                     "message", e->text);
}

static int text_object(json_t **out, const char *text, size_t n, struct err *e)
{
    *out = json_pack("{s:o}", "text", json_stringn(text, n));
    return *out ? 0 : err_set(e, -ENOMEM, "out of memory");
}

/* A JSON value of any kind; texts may hold NUL. */
static int parse(json_t **out, struct text input, struct err *e)
{
    return json_parse_large(out, "input", input.data, input.len,
                            JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, e);
}

/* ---- the operations */

/* The bytes of a token as a JSON string; invalid UTF-8 becomes U+FFFD. */
static json_t *token_text(const struct tokenizer *t, int32_t id)
{
    struct text bytes = tokenizer_token_bytes(t, id);
    json_t *s = NULL;
    char *text;
    size_t n = 0;

    if (utf8_valid(bytes.data, bytes.len))
        return json_stringn(bytes.data ? bytes.data : "", bytes.len);
    if (tokenizer_decode(t, &id, 1, false, &text, &n) == 0) {
        s = json_stringn(text, n);
        free(text);
    }
    return s;
}

static int tokenize(struct tool *t, struct text input, const json_t *parsed, json_t **out,
                    struct err *e)
{
    struct token_list list = {0};
    json_t *ids, *tokens;
    int r;

    if (parsed && !json_is_string(parsed))
        return err_set(e, -EINVAL, "must be a JSON string");
    if (parsed)
        input = (struct text){json_string_value(parsed), json_string_length(parsed)};
    if (!utf8_valid(input.data, input.len))
        return err_set(e, -EINVAL, "the text is not UTF-8");
    r = tokenizer_encode_all(t->tokenizer, input, is_given(t, "special"), &list);
    if (r < 0) {
        free(list.ids);
        return err_set(e, r, "cannot tokenize: %s", strerror(-r));
    }
    ids = json_array();
    tokens = json_array();
    for (size_t i = 0; i < list.n && r == 0; i++)
        if (json_array_append_new(ids, json_integer(list.ids[i])) < 0 ||
            json_array_append_new(tokens, token_text(t->tokenizer, list.ids[i])) < 0)
            r = -ENOMEM;
    free(list.ids);
    *out = json_pack("{s:o, s:o}", "ids", ids, "tokens", tokens);
    if (r == 0 && *out)
        return 0;
    json_decref(*out);
    return err_set(e, -ENOMEM, "out of memory");
}

/* Reads whole numbers, separated by spaces or commas, into an array. */
static int parse_numbers(json_t **out, struct text input, struct err *e)
{
    size_t at = 0;
    int64_t id;
    int got;

    *out = json_array();
    while ((got = program_next_number(&id, input.data, input.len, &at)) == PROGRAM_NUMBER)
        if (json_array_append_new(*out, json_integer(id)) < 0)
            return err_set(e, -ENOMEM, "out of memory");
    return got == PROGRAM_NONE
               ? err_set(e, -EINVAL,
                         "token ids are whole numbers: byte %zu of the input is not one", at + 1)
               : 0;
}

/* The number of ids: the model's embeddings, some of which may have no text. Without a config.json,
 * the tokenizer's. */
static int32_t vocabulary_size(const struct tool *t)
{
    const int32_t n = tokenizer_n_ids(t->tokenizer);
    struct problems problems = {0};
    int32_t vocab_size;

    model_check(&vocab_size, t->model, &problems);
    return vocab_size > n ? vocab_size : n;
}

/* Reads ids of the vocabulary from a JSON array, an object with ids, or plain numbers. */
static int take_ids(const struct tool *t, struct token_list *out, struct text input,
                    const json_t *parsed, struct err *e)
{
    json_t *own = NULL;
    int r = 0;

    if (!parsed) {
        const char first = input.data[strspn(input.data, " \t\r\n")];

        r = first == '[' || first == '{' ? parse(&own, input, e) : parse_numbers(&own, input, e);
        parsed = own;
    }
    if (json_is_object(parsed))
        parsed = json_object_get(parsed, "ids");
    if (r == 0 && !json_is_array(parsed))
        r = err_set(e, -EINVAL, "ids: must be an array of token ids");
    if (r == 0 && !(out->ids = calloc(json_array_size(parsed) + 1, sizeof(*out->ids))))
        r = err_set(e, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < json_array_size(parsed); i++) {
        const json_t *v = json_array_get(parsed, i);
        json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            r = err_set(e, -EINVAL, "ids[%zu]: is not a token id", i);
        else if (id >= t->vocab_size)
            r = err_set(e, -EINVAL,
                        "ids[%zu]: %" JSON_INTEGER_FORMAT " is not in the vocabulary, which has "
                        "%" PRId32 ": [0, %" PRId32 "]",
                        i, id, t->vocab_size, t->vocab_size - 1);
        else
            out->ids[out->n++] = (int32_t)id;
    }
    json_decref(own);
    return r;
}

static int detokenize(struct tool *t, struct text input, const json_t *parsed, json_t **out,
                      struct err *e)
{
    struct token_list list = {0};
    char *text = NULL;
    size_t n = 0;
    int r = take_ids(t, &list, input, parsed, e);

    if (r == 0) {
        r = tokenizer_decode(t->tokenizer, list.ids, list.n, is_given(t, "skip-special"), &text,
                             &n);
        if (r < 0)
            err_set(e, r, "cannot detokenize: %s", strerror(-r));
    }
    free(list.ids);
    if (r < 0)
        return r;
    r = text_object(out, text, n, e);
    free(text);
    return r;
}

static int render(struct tool *t, struct text input, const json_t *parsed, json_t **out,
                  struct err *e)
{
    struct jinja_text text = {0};
    int r =
        chat_render_json(t->template, input.data, input.len, t->has_now ? &t->now : NULL, &text, e);

    (void)parsed;
    if (r < 0)
        return r;
    r = text_object(out, text.data, text.len, e);
    jinja_text_deinit(&text);
    return r;
}

static int schema(struct tool *t, struct text input, const json_t *parsed, json_t **out,
                  struct err *e)
{
    json_t *own = NULL;
    int r = parsed ? 0 : parse(&own, input, e);

    if (r == 0)
        r = offline_schema(out, parsed ? parsed : own, t->tokenizer, t->vocabulary, t->vocab_size,
                           e);
    json_decref(own);
    return r;
}

/* ---- input and output */

static int run_one(struct tool *t, struct text input, bool json, json_t **out, struct err *e)
{
    json_t *parsed = NULL;
    int r = json ? parse(&parsed, input, e) : 0;

    if (r == 0)
        r = t->operation->run(t, input, parsed, out, e);
    json_decref(parsed);
    return r;
}

/* Ids, or a text byte for byte, without a newline. */
static void print_plain(const json_t *result)
{
    const json_t *ids = json_object_get(result, "ids"), *text = json_object_get(result, "text");

    if (text)
        fwrite(json_string_value(text), 1, json_string_length(text), stdout);
    for (size_t i = 0; i < json_array_size(ids); i++)
        printf("%s%" JSON_INTEGER_FORMAT, i ? " " : "", json_integer_value(json_array_get(ids, i)));
    if (ids)
        putchar('\n');
}

/* A line that fails yields an error object, and the next line follows. */
static int run_lines(struct tool *t, FILE *in)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int status = 0;
    struct err e;

    while (!ferror(stdout) && (n = getline(&line, &cap, in)) > 0) {
        json_t *result;
        int r;

        if (line[n - 1] == '\n')
            n--;
        if (strspn(line, " \t\r\n") >= (size_t)n)
            continue; /* as nvllmctl does */
        r = run_one(t, (struct text){line, (size_t)n}, !t->operation->renders, &result, &e);
        if (r < 0) {
            result = error_object(r, &e);
            status = 1;
        }
        if (put_line(result, &e) < 0) {
            status = complain(e.text);
            break;
        }
    }
    free(line);
    if (ferror(in))
        status = complain("cannot read stdin");
    return status;
}

static int run_whole(struct tool *t, FILE *in)
{
    json_t *result;
    struct err e;
    char *data = NULL;
    size_t n = 0;
    int r = read_all(&data, &n, in, &e);

    if (r == 0)
        r = run_one(t, (struct text){data, n}, false, &result, &e);
    free(data);
    if (r < 0)
        return complain(e.text);
    if (is_given(t, "json") || t->operation->masks)
        return put_line(result, &e) < 0 ? complain(e.text) : 0;
    print_plain(result);
    json_decref(result);
    return 0;
}

static int read_now(struct tool *t, struct err *e)
{
    const char *now = usage_value(t->line, "now"), *end;

    if (!now)
        return 0;
    end = strptime(now, "%Y-%m-%dT%H:%M:%S", &t->now);
    if (!end || *end)
        return err_set(e, -EINVAL, "--now: \"%s\" is not a time such as 2026-11-22T12:34:56", now);
    t->has_now = true;
    return 0;
}

static int load(struct tool *t, struct err *e)
{
    int r;

    if (t->operation->renders) {
        r = read_now(t, e);
        if (r == 0)
            r = chat_template_load(&t->template, *t->model ? t->model : NULL, t->template_file, e);
        if (r == 0 && !t->template)
            r = err_set(e, -ENOTSUP, "%s: the model has no chat template", t->model);
        return r;
    }
    r = tokenizer_load(&t->tokenizer, t->model, e);
    if (r == 0)
        t->vocab_size = vocabulary_size(t);
    if (r == 0 && t->operation->masks)
        t->vocabulary = vocabulary_new(t->tokenizer, t->vocab_size);
    if (r == 0 && t->operation->masks && !t->vocabulary)
        r = err_set(e, -ENOMEM, "out of memory");
    return r;
}

static int run(struct tool *t)
{
    const char *input = t->line->n_words > 0 ? t->line->words[0] : "-";
    const bool lines = is_given(t, "jsonl");
    FILE *in = stdin;
    struct err e;
    int status;

    if (load(t, &e) < 0)
        return complain(e.text);
    if (lines && !*input)
        return complain("--jsonl needs at least one line");
    if (strcmp(input, "-") != 0)
        in = fmemopen((void *)(uintptr_t)input, strlen(input), "r");
    if (!in)
        return complain("out of memory");
    status = lines ? run_lines(t, in) : run_whole(t, in);
    if (in != stdin)
        fclose(in);
    return status;
}

static const char *template_file(const struct options *o)
{
    return *o->chat_template ? o->chat_template : NULL;
}

void offline_check_folder(const char *folder, const char *chat_template, struct problems *p)
{
    struct tokenizer *tokenizer = NULL;
    struct chat_template *template = NULL;
    struct err e;
    int32_t vocab_size;
    int r;

    model_check(&vocab_size, folder, p);
    if (access(folder, X_OK) < 0)
        return; /* nothing in it can be read */
    r = tokenizer_load(&tokenizer, folder, &e);
    if (r == 0 && vocab_size > 0)
        r = tokenizer_check_vocab(tokenizer, vocab_size, &e);
    if (r < 0)
        problems_add(p, r, "%s", e.text);
    else
        problems_say(p, "ok", "tokenizer.json");
    r = chat_template_load(&template, folder, chat_template, &e);
    if (r == -ENOTSUP) /* raw prompts still work */
        problems_say(p, "note", "%s; only raw prompts can be served", e.text);
    else if (r < 0)
        problems_add(p, r, "%s", e.text);
    else if (template)
        problems_say(p, "ok", "chat template");
    else
        problems_say(p, "note",
                     "%s has no chat template: chats are refused, raw prompts are not; "
                     "model.chat_template may name one",
                     folder);
    chat_template_free(template);
    tokenizer_free(tokenizer);
}

static void print_line(void *arg, const char *level, const char *text)
{
    (void)arg;
    printf("%-5s  %s\n", level, text);
}

static const struct operation operations[] = {
    {"tokenize", tokenize, false, false},
    {"detokenize", detokenize, false, false},
    {"render", render, true, false},
    {"schema", schema, false, true},
};

int offline_run(const char *command, const struct options *options, const struct usage_line *line)
{
    struct problems problems = {.line = print_line};
    struct tool t = {.model = options->model_path,
                     .template_file = template_file(options),
                     .line = line};
    int status;

    for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
        if (strcmp(command, operations[i].name) == 0)
            t.operation = &operations[i];
    if (!t.operation) {
        offline_check_folder(t.model, t.template_file, &problems);
        return problems.n > 0;
    }
    status = run(&t);
    vocabulary_free(t.vocabulary);
    tokenizer_free(t.tokenizer);
    chat_template_free(t.template);
    return status;
}
