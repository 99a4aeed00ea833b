/* text.c - the commands that convert one value into another: tokenize, detokenize, render, embed.
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

struct conversion {
    struct ctl *ctl;
    const char *input; /* what who types it is asked for */
    /* The value that an argument or stdin holds, or NULL with *err; NULL as a function: the bytes
     * are the value, and a line of --jsonl is a string. */
    json_t *(*parse)(const char *data, size_t n, struct nvllm_error *err);
    bool (*convert)(struct conversion *c, struct nvllm_error *err);
    struct nvllm_embed_options embed;
    bool special; /* tokenize: match special tokens; detokenize: skip them */
    struct nvllm_text text;
    json_t *value; /* NULL: the text is all there is */
    /* The daemon's answer; it holds until the next call. */
    const struct nvllm_tokens *tokens; /* NULL: it is a text, or */
    const struct nvllm_embedding *embedding;
    struct nvllm_text answer;
};

/* ---- the commands */

static bool tokenize(struct conversion *c, struct nvllm_error *err)
{
    return nvllm_tokenize(c->ctl->client, c->text, c->special, ctl_left_ms(c->ctl), &c->tokens,
                          err) == NVLLM_OK;
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

static bool detokenize(struct conversion *c, struct nvllm_error *err)
{
    const json_t *ids = json_is_object(c->value) ? json_object_get(c->value, "ids") : c->value;
    struct ctl_request q;
    bool ok;

    ctl_request_init(&q);
    ok = ctl_request_read_ids(&q, ids, err) &&
         nvllm_detokenize(c->ctl->client, q.r.prompt_ids, q.r.n_prompt_ids, c->special,
                          ctl_left_ms(c->ctl), &c->answer, err) == NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

static bool render(struct conversion *c, struct nvllm_error *err)
{
    struct ctl_request q;
    bool ok;

    ctl_request_init(&q);
    ok = ctl_request_read_chat(&q, c->value, err) &&
         nvllm_render(c->ctl->client, &q.chat, ctl_left_ms(c->ctl), &c->answer, err) == NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

static bool embed(struct conversion *c, struct nvllm_error *err)
{
    c->embed.prompt = c->text;
    return nvllm_embed(c->ctl->client, &c->embed, ctl_left_ms(c->ctl), &c->embedding, err) ==
           NVLLM_OK;
}

static json_t *answer_object(const struct conversion *c)
{
    json_t *texts;

    if (c->embedding)
        return ctl_json_embedding(c->embedding);
    if (!c->tokens)
        return json_pack("{so}", "text", ctl_json_text(c->answer));
    texts = json_array();
    for (size_t i = 0; i < c->tokens->n_tokens; i++)
        json_array_append_new(texts, ctl_json_text(c->tokens->tokens[i]));
    return json_pack("{soso}", "ids", ctl_json_ids(c->tokens->ids, c->tokens->n_tokens), "tokens",
                     texts);
}

/* ---- one value per line */

/* Whether later lines would fail, too. */
static bool is_lasting(enum nvllm_code code)
{
    return code == NVLLM_E_TIMEOUT || code == NVLLM_E_NOMEM || code == NVLLM_E_DENIED ||
           code == NVLLM_E_UNSUPPORTED;
}

/* The object of an answer, or NULL with *err. */
static json_t *convert_line(struct conversion *c, const struct lines *l, struct nvllm_error *err)
{
    json_t *object = NULL;

    c->value = ctl_json_parse(l->line, l->n, err);
    c->text = ctl_json_string(c->value);
    if (c->value && !c->parse && !c->text.data)
        ctl_invalid(err, "must be a JSON string");
    else if (c->value && c->convert(c, err))
        object = answer_object(c);
    json_decref(c->value);
    return object;
}

static int run_lines(struct conversion *c)
{
    struct nvllm_error err = {0};
    struct lines lines;
    int rc = EXIT_OK, got;

    lines_init(&lines, STDIN_FILENO);
    while ((got = lines_next(&lines, true)) == LINES_OK || got == LINES_E_LONG) {
        json_t *answer = NULL;

        if (got == LINES_E_LONG)
            ctl_invalid(&err, "longer than %d MiB", LINES_MAX_BYTES >> 20);
        else if (!lines_has_text(&lines))
            continue;
        else
            answer = convert_line(c, &lines, &err);
        if (!answer) {
            ctl_message("line %llu: %s", (unsigned long long)lines.number, err.message);
            rc = ctl_exit_code(err.code);
            answer = json_pack("{so}", "error", ctl_json_error(&err));
        }
        ctl_json_print(STDOUT_FILENO, answer);
        if (rc != EXIT_OK && (is_lasting(err.code) || nvllm_wants(c->ctl->client) == 0))
            break;
    }
    if (got == LINES_E_READ)
        ctl_die("cannot read stdin: %s", strerror(errno));
    lines_deinit(&lines);
    return rc;
}

/* ---- one value */

/* The arguments with blanks between them. */
static struct text_buffer join_words(const struct usage_line *line)
{
    struct text_buffer text = {0};

    for (int i = 0; i < line->n_words; i++) {
        text_buffer_add(&text, " ", i > 0);
        text_buffer_add(&text, line->words[i], strlen(line->words[i]));
    }
    return text;
}

static int run_one(struct conversion *c, bool is_stdin)
{
    struct text_buffer text = {0};
    struct ctl *ctl = c->ctl;

    if (is_stdin)
        text.data = ctl_read_file("-", c->input, &text.len);
    else
        text = join_words(&ctl->line);
    c->text = (struct nvllm_text){text.data, text.len};
    if (c->parse && !(c->value = c->parse(text.data, text.len, &ctl->err)))
        ctl_exit(ctl_report(ctl, &ctl->err));
    ctl_connect(ctl);
    if (!c->convert(c, &ctl->err))
        ctl_exit(ctl_report(ctl, &ctl->err));
    if (ctl_option(ctl, "json")) {
        ctl_json_print(STDOUT_FILENO, answer_object(c));
    } else if (c->tokens) {
        for (size_t i = 0; i < c->tokens->n_tokens; i++)
            printf(i ? " %d" : "%d", (int)c->tokens->ids[i]);
        putchar('\n');
    } else if (c->embedding) {
        json_t *object = answer_object(c);

        ctl_json_print(STDOUT_FILENO, json_incref(json_object_get(object, "embedding")));
        json_decref(object);
    } else {
        ctl_write_text(c->answer);
    }
    json_decref(c->value);
    text_buffer_deinit(&text);
    return EXIT_OK;
}

static int run(struct conversion *c)
{
    const struct usage_line *line = &c->ctl->line;
    bool is_stdin = line->n_words == 0 || (line->n_words == 1 && strcmp(line->words[0], "-") == 0);

    if (!ctl_option(c->ctl, "jsonl"))
        return run_one(c, is_stdin);
    if (!is_stdin)
        ctl_usage(c->ctl, "--jsonl reads stdin and takes no argument “%s”", line->words[0]);
    ctl_connect(c->ctl);
    return run_lines(c);
}

int ctl_tokenize(struct ctl *ctl)
{
    bool special = ctl_option(ctl, "special");

    return run(
        &(struct conversion){.ctl = ctl, .input = "text", .convert = tokenize, .special = special});
}

int ctl_embed(struct ctl *ctl)
{
    struct conversion c = {.ctl = ctl, .input = "text", .convert = embed};

    nvllm_embed_options_init(&c.embed);
    c.embed.prompt_name = ctl_option(ctl, "prompt-name");
    c.embed.dimensions = ctl_whole(ctl, "dimensions", -1, 1, INT32_MAX);
    return run(&c);
}

int ctl_detokenize(struct ctl *ctl)
{
    bool special = ctl_option(ctl, "skip-special");

    return run(&(struct conversion){.ctl = ctl,
                                    .input = "token ids",
                                    .parse = parse_ids,
                                    .convert = detokenize,
                                    .special = special});
}

int ctl_render(struct ctl *ctl)
{
    return run(&(struct conversion){
        .ctl = ctl, .input = "JSON object", .parse = ctl_json_parse, .convert = render});
}
