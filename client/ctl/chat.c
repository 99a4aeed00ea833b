/* chat.c - nvllmctl chat: a conversation.
 *
 * Each question sends the whole conversation, or with --session the question alone, because the
 * daemon holds the rest. It computes what its prefix cache does not hold, and the line after each
 * answer shows how much that was. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/lines.h"
#include "client/ctl/request.h"
#include "client/ctl/sessions.h"
#include "client/ctl/show.h"

struct chat {
    struct ctl *ctl;
    struct ctl_request defaults; /* sampling */
    const char *session;         /* that the daemon holds; NULL: the chat has its messages itself */
    json_t *system;              /* the system message; NULL: none */
    json_t *messages;            /* the array of the others so far; with a session the question */
    struct editor *editor;
    bool asking;   /* stdin is a terminal: the user sees a prompt */
    bool terminal; /* so is stdout: Ctrl-C ends an answer, not the program */
    bool quiet;
    bool pasted; /* the message begins with what was pasted: it is no command */
};

/* ---- the conversation */

/* Any bytes: the daemon checks them. */
static json_t *message_of(const char *role, const char *text, size_t n)
{
    return json_pack("{ssso}", "role", role, "content", json_stringn_nocheck(text, n));
}

static void set_system(struct chat *chat, const char *text)
{
    json_decref(chat->system);
    chat->system = text && text[0] ? message_of("system", text, strlen(text)) : NULL;
}

/* {"messages": […]}, as it is sent. */
static json_t *conversation(const struct chat *chat)
{
    json_t *messages = chat->system ? json_pack("[O]", chat->system) : json_array();

    json_array_extend(messages, chat->messages);
    return json_pack("{so}", "messages", messages);
}

/* ---- an answer */

static void show_cost(const struct chat *chat, const struct nvllm_done *done)
{
    double ms = done->total_ms - done->ttft_ms;

    if (chat->quiet)
        return;
    fprintf(stderr, "%s(%u of %u prompt tokens cached, %u new",
            show_colour(STDERR_FILENO, COLOUR_DIM), done->cached_tokens, done->prompt_tokens,
            done->completion_tokens);
    if (done->completion_tokens > 1 && ms > 0)
        fprintf(stderr, " at %.0f tok/s", (done->completion_tokens - 1) * 1000 / ms);
    fprintf(stderr, ", the first after %.0f ms)%s\n", done->ttft_ms,
            show_colour(STDERR_FILENO, COLOUR_END));
}

/* A partial answer is part of the conversation; a question without an answer is not. */
static void keep_answer(struct chat *chat, const struct ctl_result *a)
{
    const struct text_buffer *text = &a->choices[0].text, *reasoning = &a->choices[0].reasoning;
    json_t *message;

    if (chat->session) { /* where the daemon keeps it */
        json_array_clear(chat->messages);
        return;
    }
    if (text->len == 0 && reasoning->len == 0) {
        json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
        return;
    }
    message = message_of("assistant", text->data, text->len);
    if (reasoning->len > 0)
        json_object_set_new(message, "reasoning_content",
                            json_stringn_nocheck(reasoning->data, reasoning->len));
    json_array_append_new(chat->messages, message);
}

static void end_done(struct chat *chat, const struct ctl_result *a)
{
    enum nvllm_finish finish = a->choices[0].finish;

    if (a->choices[0].text.len == 0 || a->open)
        ctl_write(STDOUT_FILENO, "\n", 1);
    keep_answer(chat, a);
    if (finish == NVLLM_FINISH_CANCELLED && a->cancel_end < 0)
        ctl_message("nvllmd cancelled the answer");
    else if (finish == NVLLM_FINISH_LENGTH)
        ctl_message("the answer was cut at its maximum length (--max-tokens, or the model's)");
    else if (finish == NVLLM_FINISH_DEADLINE)
        ctl_message("the deadline has expired");
    else if (finish == NVLLM_FINISH_ERROR)
        ctl_message("the model computed NaN or infinity");
}

/* An error does not end an interactive chat. */
static int end_error(struct chat *chat, const struct ctl_result *a, const struct nvllm_error *err)
{
    int rc;

    if (a->open)
        ctl_write(STDOUT_FILENO, "\n", 1);
    keep_answer(chat, a);
    if (err->code == NVLLM_E_CANCELLED && a->cancel_end >= 0)
        return EXIT_OK;
    rc = ctl_report(chat->ctl, err);
    if (err->code == NVLLM_E_TOO_LONG && chat->asking)
        fprintf(stderr, "The conversation is too long now: /reset starts a new one.\n");
    if (nvllm_wants(chat->ctl->client) == 0) { /* the connection has ended */
        nvllm_close(chat->ctl->client);        /* the next question connects again */
        chat->ctl->client = NULL;
    }
    return chat->asking && err->code != NVLLM_E_UNSUPPORTED ? EXIT_OK : rc;
}

static int run_answer(struct chat *chat)
{
    json_t *sent = conversation(chat);
    struct ctl_request q;
    struct nvllm_error err;
    struct ctl_result a;
    struct wrap wrap;
    enum nvllm_code code;
    int rc = EXIT_OK;

    ctl_request_init(&q);
    q.r = chat->defaults.r;
    if (!chat->session) /* it has been created so */
        q.chat.enable_thinking = ctl_prompt_thinking(chat->ctl);
    ctl_request_read_chat(&q, sent, &err);
    ctl_result_init(&a, &q.r);
    wrap_init(&wrap, show_columns(STDOUT_FILENO, NULL));
    if (isatty(STDOUT_FILENO))
        a.wrap = &wrap;
    code = ctl_result_run(&a, chat->ctl, &q.r, true, &err);
    if (code == NVLLM_OK || code == NVLLM_E_TIMEOUT)
        end_done(chat, &a);
    else
        rc = end_error(chat, &a, &err);
    if (code == NVLLM_OK)
        show_cost(chat, &a.done);
    wrap_deinit(&wrap);
    ctl_result_deinit(&a);
    ctl_request_deinit(&q);
    json_decref(sent);
    return rc;
}

/* After a lost connection each question tries again, but an interactive chat does not wait for the
 * daemon here, where Ctrl-C would not end the wait. EXIT_OK, or another status after a report. */
static int reconnect(struct chat *chat)
{
    struct ctl *ctl = chat->ctl;

    if (ctl->client)
        return EXIT_OK;
    ctl->no_wait = ctl->no_wait || chat->asking;
    ctl->wait = ctl->wait && !chat->asking;
    return ctl_try_connect(ctl) == NVLLM_OK ? EXIT_OK : ctl_report(ctl, &ctl->err);
}

static int ask(struct chat *chat, const char *question, size_t n)
{
    const int rc = reconnect(chat);

    if (rc != EXIT_OK)
        return chat->asking ? EXIT_OK : rc;
    json_array_append_new(chat->messages, message_of("user", question, n));
    return run_answer(chat);
}

/* ---- commands */

static const char commands_help[] =
    "/reset         start a new conversation; a system message stays\n"
    "/system TEXT   set the system message; without TEXT, remove it\n"
    "/save FILE     write the conversation as JSON, as “nvllmctl render” reads it\n"
    "/help          print this list\n"
    "/quit          leave; Ctrl-D does, too\n"
    "Ctrl-C stops an answer. A line that ends with “\\” continues on the next one.\n"
    "To begin a line with “/”, type “//”.\n";

/* {"messages": […]} of a session; NULL, after a report, where the daemon does not tell. */
static json_t *held_conversation(struct chat *chat)
{
    struct ctl *ctl = chat->ctl;
    const struct nvllm_session *s;

    if (reconnect(chat) != EXIT_OK)
        return NULL;
    if (nvllm_show_session(ctl->client, chat->session, false, ctl_ask_ms(ctl), &s, &ctl->err) !=
        NVLLM_OK) {
        ctl_report(ctl, &ctl->err);
        return NULL;
    }
    return json_pack("{so}", "messages", ctl_json_messages(s->chat));
}

/* Writes the conversation on one line, as render and batch read it; what is not UTF-8 as U+FFFD. */
static void save(struct chat *chat, const char *path)
{
    json_t *sent = chat->session ? held_conversation(chat) : conversation(chat);
    json_t *messages = json_object_get(sent, "messages"), *m;
    size_t n = json_array_size(messages), i;
    const char *home = getenv("HOME");
    char expanded[4096];
    FILE *file;
    bool ok;

    if (!sent)
        return;
    if (strncmp(path, "~/", 2) == 0 && home && home[0]) { /* no shell does this here */
        snprintf(expanded, sizeof(expanded), "%s%s", home, path + 1);
        path = expanded;
    }
    json_array_foreach(messages, i, m)
    {
        const json_t *text = json_object_get(m, "content");

        json_array_set_new(messages, i, m = json_copy(m)); /* the chat keeps the bytes */
        json_object_set_new(m, "content", ctl_json_text(ctl_json_string(text)));
    }
    file = path[0] ? fopen(path, "we") : NULL;
    ok = file && json_dumpf(sent, file, 0) == 0 && putc('\n', file) != EOF;
    ok = file && fclose(file) == 0 && ok;
    if (!path[0])
        ctl_message("/save needs a file, as in /save ~/chat.json");
    else if (ok)
        ctl_message("%zu message%s saved to %s", n, n == 1 ? "" : "s", path);
    else
        ctl_message("%s: %s", path, strerror(errno));
    json_decref(sent);
}

/* Confirms a command in an interactive chat. */
static void show_done(const struct chat *chat, const char *text)
{
    if (chat->asking && !chat->quiet)
        fprintf(stderr, "%s(%s)%s\n", show_colour(STDERR_FILENO, COLOUR_DIM), text,
                show_colour(STDERR_FILENO, COLOUR_END));
}

/* With a session, its turns are dropped. */
static void reset(struct chat *chat)
{
    struct ctl *ctl = chat->ctl;

    json_array_clear(chat->messages);
    if (chat->session && reconnect(chat) != EXIT_OK)
        return;
    if (chat->session && nvllm_rewind_session(ctl->client, chat->session, 0, ctl_ask_ms(ctl), NULL,
                                              &ctl->err) != NVLLM_OK)
        ctl_report(ctl, &ctl->err);
    else
        show_done(chat, chat->system || chat->session
                            ? "a new conversation; the system message stays"
                            : "a new conversation");
}

/* True: leave. */
static bool run_slash(struct chat *chat, const char *line)
{
    static const char *const names[] = {"/reset", "/system", "/save", "/help", "/quit"};
    size_t n = strcspn(line, " \t");
    const char *rest = line + n + strspn(line + n, " \t");
    const char *near;
    char name[32];

    snprintf(name, sizeof(name), "%.*s", n < sizeof(name) ? (int)n : 31, line);
    if (strcmp(name, "/quit") == 0)
        return true;
    if (strcmp(name, "/reset") == 0) {
        reset(chat);
    } else if (strcmp(name, "/system") == 0 && chat->session) {
        ctl_message("a session has the system message that it was created with");
    } else if (strcmp(name, "/system") == 0) {
        set_system(chat, rest);
        show_done(chat, rest[0] ? "the system message is set" : "no system message");
    } else if (strcmp(name, "/save") == 0) {
        save(chat, rest);
    } else if (strcmp(name, "/help") == 0) {
        fputs(commands_help, stderr);
    } else {
        near = usage_nearest(name, names, sizeof(names) / sizeof(names[0]));
        if (near)
            ctl_message("there is no %s: did you mean %s?", name, near);
        else
            ctl_message("there is no %s: /help lists the commands", name);
    }
    return false;
}

/* ---- the loop */

static const char *prompt_of(const struct chat *chat, bool goes_on)
{
    if (chat->asking && !chat->terminal)
        fputs(goes_on ? ". " : "> ", stderr); /* the line discipline edits here, not libedit */
    return goes_on ? ". " : "> ";
}

/* A message: one line, and those that “\” continues. */
static int read_message(struct chat *chat, struct text_buffer *message)
{
    bool goes_on = false;

    message->len = 0;
    do {
        const char *line;
        size_t n = 0;
        int got = editor_read(chat->editor, prompt_of(chat, goes_on), &line, &n);

        if (got == LINES_END && goes_on)
            break;
        if (got != LINES_OK)
            return got;
        if (message->len == 0)
            chat->pasted = editor_begins_pasted(chat->editor);
        goes_on = n > 0 && line[n - 1] == '\\';
        text_buffer_add(message, line, goes_on ? n - 1 : n);
        if (goes_on)
            text_buffer_add(message, "\n", 1);
    } while (goes_on);
    return LINES_OK;
}

/* What is not a message. False: the chat continues. */
static bool is_over(struct chat *chat, int got, int *rc)
{
    if (got == LINES_INTERRUPTED && chat->terminal && ctl_interrupted() == EXIT_INTERRUPTED) {
        ctl_forget_interrupt();
        fputs("\n", stderr);
        return false;
    }
    if (got == LINES_E_LONG) {
        ctl_message("the line is too long");
        return false;
    }
    if (got == LINES_E_READ) {
        ctl_message("cannot read stdin: %s", strerror(errno));
        *rc = EXIT_ERROR;
    }
    if ((got == LINES_END || got == LINES_TIMEOUT) && chat->asking)
        fputs("\n", stderr);
    return true;
}

static int talk(struct chat *chat)
{
    struct text_buffer message = {0};
    bool over = false;
    int rc = EXIT_OK;

    while (!over && rc == EXIT_OK && !ctl_interrupted()) {
        int got = read_message(chat, &message);
        const char *text = message.data;

        if (got != LINES_OK) {
            over = is_over(chat, got, &rc);
        } else if (message.len > 0) {
            const bool slash = text[0] == '/' && !chat->pasted;

            editor_remember(chat->editor, text);
            if (slash && text[1] != '/')
                over = run_slash(chat, text);
            else
                rc = ask(chat, text + slash, message.len - slash);
        }
        if (ctl_left_ms(chat->ctl) == 0)
            rc = ctl_report_timeout();
    }
    text_buffer_deinit(&message);
    return rc;
}

/* ---- a session */

enum { SHOWN_TURNS = 5 };

/* What was said before, in short. */
static void show_turns(const struct chat *chat, const struct nvllm_session *s)
{
    const uint32_t n = (uint32_t)s->n_turn_messages; /* turn 0 counts */
    const uint32_t from = n > SHOWN_TURNS + 1 ? n - SHOWN_TURNS : 0;

    fputs(show_colour(STDERR_FILENO, COLOUR_DIM), stderr);
    fprintf(stderr, "(session %s: %u turn%s, %u tokens)\n", chat->session, s->info->turns,
            s->info->turns == 1 ? "" : "s", s->info->tokens);
    if (from > 0)
        fprintf(stderr, "…\n");
    sessions_put_turns(stderr, s, from, show_columns(STDERR_FILENO, NULL));
    fputs(show_colour(STDERR_FILENO, COLOUR_END), stderr);
}

/* Finds the session, or creates it where there is none of its name. */
static void open_session(struct chat *chat)
{
    static const char *const options[] = {"system", "think", "no-think"};
    struct ctl *ctl = chat->ctl;
    const struct nvllm_session *s;
    enum nvllm_code code =
        nvllm_show_session(ctl->client, chat->session, false, ctl_ask_ms(ctl), &s, &ctl->err);

    if (code == NVLLM_E_INVALID && strcmp(ctl->err.field, "name") == 0) {
        ctl_check(ctl, sessions_create(ctl, chat->session, NULL));
        return;
    }
    ctl_check(ctl, code);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (ctl_option(ctl, options[i]))
            ctl_usage(ctl, "--%s is for a new session: there is one of the name %s", options[i],
                      chat->session);
    if (chat->asking && !chat->quiet)
        show_turns(chat, s);
}

/* ---- around it */

int ctl_chat(struct ctl *ctl)
{
    struct chat chat = {
        .ctl = ctl,
        .messages = json_array(),
        .quiet = ctl_option(ctl, "quiet"),
        .asking = isatty(STDIN_FILENO),
    };
    int rc;

    ctl_request_init(&chat.defaults);
    ctl_request_take_options(&chat.defaults, ctl);
    chat.session = chat.defaults.r.session;
    if (!chat.session)
        set_system(&chat, ctl_option(ctl, "system"));
    chat.terminal = chat.asking && isatty(STDOUT_FILENO);
    ctl_connect(ctl);
    if (chat.session)
        open_session(&chat);
    ctl_catch_interrupts(chat.terminal);
    chat.editor = editor_new(chat.terminal, !ctl_option(ctl, "no-history"), ctl->deadline);
    if (chat.asking && !chat.quiet)
        fprintf(stderr, "/help lists the commands; Ctrl-D leaves.\n");
    rc = talk(&chat);
    editor_free(chat.editor);
    json_decref(chat.system);
    json_decref(chat.messages);
    ctl_request_deinit(&chat.defaults);
    return rc;
}
