/* chat.c - nvllmctl chat: a conversation, turn by turn.
 *
 * The whole conversation goes with each turn; the daemon computes what its prefix cache does not
 * hold, and the line behind each answer says how much that was. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/ctl.h"
#include "client/ctl/conversation.h"
#include "client/ctl/editor.h"
#include "client/ctl/prompt.h"
#include "client/ctl/request.h"
#include "client/ctl/terminal.h"
#include "client/ctl/text_buffer.h"

struct chat {
    struct ctl *ctl;
    struct nvllm_client *client; /* NULL: not connected, or not any more */
    struct ctl_request request;  /* sampling of every turn */
    struct conversation conversation;
    struct editor *editor;
    enum nvllm_switch thinking;
    bool terminal; /* stdin and stdout are one: Ctrl-C ends an answer, not the program */
    bool shown;    /* stdout is one */
    bool asking;   /* somebody types, and is shown a prompt */
    bool quiet;
};

/* One answer. */
struct turn {
    uint64_t id;
    struct text_buffer text;
    enum nvllm_finish finish;
    int64_t cancel_end; /* -1: nobody has cancelled */
    int n_interrupts;
};

/* ---- a turn */

static void show_cost(const struct chat *chat, const struct nvllm_done *done)
{
    double ms = done->total_ms - done->ttft_ms;

    if (chat->quiet)
        return;
    fprintf(stderr, "%s(%u of %u prompt tokens cached, %u new",
            terminal_colour(STDERR_FILENO, COLOUR_DIM), done->cached_tokens, done->prompt_tokens,
            done->completion_tokens);
    if (done->completion_tokens > 1 && ms > 0)
        fprintf(stderr, " at %.0f tok/s", (done->completion_tokens - 1) * 1000 / ms);
    fprintf(stderr, ", the first after %.0f ms)%s\n", done->ttft_ms,
            terminal_colour(STDERR_FILENO, COLOUR_END));
}

/* False: nobody reads any more. */
static bool show_text(struct chat *chat, struct turn *t, struct nvllm_text text)
{
    text_buffer_add(&t->text, text.data, text.len);
    return text.len == 0 || ctl_write_text(STDOUT_FILENO, text.data, text.len, chat->shown);
}

static bool end_line(const struct turn *t)
{
    if (t->text.len > 0 && t->text.data[t->text.len - 1] == '\n')
        return true;
    return ctl_write(STDOUT_FILENO, "\n", 1);
}

/* What came before the end is part of the conversation; a question without an answer is not. */
static void keep_answer(struct chat *chat, const struct turn *t)
{
    if (t->text.len == 0)
        conversation_drop_last(&chat->conversation);
    else
        conversation_add(&chat->conversation, "assistant",
                         (struct nvllm_text){t->text.data, t->text.len});
}

static int end_done(struct chat *chat, const struct turn *t, const struct nvllm_done *done)
{
    bool cancelled = t->finish == NVLLM_FINISH_CANCELLED;

    if (!end_line(t))
        return EXIT_ERROR;
    keep_answer(chat, t);
    if (cancelled && t->cancel_end < 0)
        ctl_message("nvllmd cancelled the answer");
    else if (t->finish == NVLLM_FINISH_LENGTH)
        ctl_message("the answer ends here for its length: --max-tokens, or the model's");
    else if (t->finish == NVLLM_FINISH_DEADLINE)
        ctl_message("the deadline is over");
    else if (t->finish == NVLLM_FINISH_ERROR)
        ctl_message("the model's numbers broke down");
    if (done)
        show_cost(chat, done);
    return EXIT_OK;
}

/* Errors of a turn do not end a chat that somebody types. */
static int end_error(struct chat *chat, const struct turn *t, const struct nvllm_error *err)
{
    int rc = EXIT_OK;

    if (t->text.len > 0 && !end_line(t))
        return EXIT_ERROR;
    keep_answer(chat, t);
    if (err->code == NVLLM_E_CANCELLED && t->cancel_end >= 0)
        return EXIT_OK;
    rc = ctl_report(chat->ctl, err);
    if (err->code == NVLLM_E_TOO_LONG && chat->asking)
        fprintf(stderr, "The conversation is too long now: /reset begins a new one.\n");
    if (err->code == NVLLM_E_CONNECTION || err->code == NVLLM_E_PROTOCOL) {
        nvllm_close(chat->client);
        chat->client = NULL;
    }
    return chat->asking && err->code != NVLLM_E_UNSUPPORTED ? EXIT_OK : rc;
}

/* Ctrl-C cancels, and the second one does not wait for the end of it. True: leave the turn. */
static bool check_interrupt(struct chat *chat, struct turn *t)
{
    bool out_of_time = ctl_left_ms(chat->ctl) == 0;

    if (ctl_interrupted() && chat->terminal) {
        ctl_forget_interrupt();
        t->n_interrupts++;
    }
    if (t->cancel_end < 0 && (t->n_interrupts > 0 || ctl_interrupted() || out_of_time)) {
        t->cancel_end = ctl_cancel_end(chat->ctl);
        nvllm_cancel(chat->client, t->id, NULL);
    }
    return t->n_interrupts > 1 || (t->cancel_end >= 0 && clock_left_ms(t->cancel_end) == 0);
}

static int run_turn(struct chat *chat, struct turn *t)
{
    const struct nvllm_event *event;
    struct nvllm_error err;
    enum nvllm_code code;

    code = nvllm_generate_start(chat->client, &t->id, &chat->request.r, &err);
    if (code != NVLLM_OK)
        return end_error(chat, t, &err);
    for (;;) {
        if (check_interrupt(chat, t))
            return end_done(chat, t, NULL);
        code = ctl_next(chat->client, -1,
                        t->cancel_end >= 0 ? clock_left_ms(t->cancel_end) : ctl_left_ms(chat->ctl),
                        &event, &err);
        if (code == NVLLM_E_TIMEOUT)
            continue;
        if (code != NVLLM_OK)
            return end_error(chat, t, &err);
        if (event->id != t->id)
            continue; /* of an answer that was left before its end */
        if (event->error)
            return end_error(chat, t, event->error);
        if (event->done)
            return end_done(chat, t, event->done);
        if (event->delta->finish != NVLLM_FINISH_NONE)
            t->finish = event->delta->finish;
        if (!show_text(chat, t, event->delta->text))
            return EXIT_ERROR;
    }
}

static int answer(struct chat *chat, struct nvllm_text question)
{
    struct turn t = {.cancel_end = -1};
    struct ctl_request *q = &chat->request;
    int rc;

    /* A daemon that went is looked for again with the next question. Who types does not wait for it
     * here, where Ctrl-C ends nothing. */
    if (!chat->client) {
        chat->ctl->no_wait = chat->ctl->no_wait || chat->asking;
        chat->ctl->wait = chat->ctl->wait && !chat->asking;
        rc = ctl_connect(&chat->client, chat->ctl);
        if (rc != EXIT_OK)
            return chat->asking ? EXIT_OK : rc;
    }
    conversation_add(&chat->conversation, "user", question);
    q->chat.messages = chat->conversation.messages;
    q->chat.n_messages = chat->conversation.n_messages;
    q->chat.enable_thinking = chat->thinking;
    q->r.chat = &q->chat;
    rc = run_turn(chat, &t);
    text_buffer_deinit(&t.text);
    return rc;
}

/* ---- commands */

static const char commands_help[] =
    "/reset         begin anew; a system message stays\n"
    "/system TEXT   set the system message; without TEXT take it away\n"
    "/save FILE     write the conversation as JSON, as “nvllmctl render” reads it\n"
    "/help          this\n"
    "/quit          leave; Ctrl-D does, too\n"
    "Ctrl-C stops an answer. A line that ends with “\\” goes on in the next one.\n"
    "“//” at the beginning stands for a “/” that is no command's.\n";

/* No shell stands between the user and this program: what "~/" is, it has to know itself. */
static const char *expand_home(char *out, size_t n, const char *path)
{
    const char *home = getenv("HOME");

    if (strncmp(path, "~/", 2) != 0 || !home || !home[0])
        return path;
    snprintf(out, n, "%s%s", home, path + 1);
    return out;
}

static void save(struct chat *chat, const char *path)
{
    char expanded[4096];

    path = expand_home(expanded, sizeof(expanded), path);
    if (!path[0])
        ctl_message("/save wants a file, as in /save ~/chat.json");
    else if (conversation_save(&chat->conversation, path))
        ctl_message(chat->conversation.n_messages == 1 ? "%zu message is in %s"
                                                       : "%zu messages are in %s",
                    chat->conversation.n_messages, path);
    else
        ctl_message("%s: %s", path, strerror(errno));
}

/* What a command has done, to who has typed it and sees nothing else of it. */
static void show_done(const struct chat *chat, const char *text)
{
    if (chat->asking && !chat->quiet)
        fprintf(stderr, "%s(%s)%s\n", terminal_colour(STDERR_FILENO, COLOUR_DIM), text,
                terminal_colour(STDERR_FILENO, COLOUR_END));
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
        conversation_reset(&chat->conversation);
        show_done(chat, chat->conversation.n_messages > 0
                            ? "a new conversation; the system message stays"
                            : "a new conversation");
    } else if (strcmp(name, "/system") == 0) {
        conversation_set_system(&chat->conversation, nvllm_str(rest));
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
            ctl_message("there is no %s: /help lists what there is", name);
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

/* A message: one line, and those that “\” joins to it. */
static int read_message(struct chat *chat, struct text_buffer *message)
{
    bool goes_on = false;

    message->len = 0;
    do {
        const char *line;
        size_t n = 0;
        int got = editor_read(chat->editor, prompt_of(chat, goes_on), &line, &n);

        if (got == EDITOR_END && goes_on)
            break;
        if (got != EDITOR_OK)
            return got;
        goes_on = n > 0 && line[n - 1] == '\\';
        text_buffer_add(message, line, goes_on ? n - 1 : n);
        if (goes_on)
            text_buffer_add(message, "\n", 1);
    } while (goes_on);
    text_buffer_add(message, "", 1); /* the NUL behind it */
    message->len--;
    return EDITOR_OK;
}

/* What is no message. False: the chat goes on. */
static bool is_over(struct chat *chat, int got, int *rc)
{
    if (got == EDITOR_INTERRUPTED && chat->terminal && ctl_interrupted() == EXIT_INTERRUPTED) {
        ctl_forget_interrupt();
        fputs("\n", stderr);
        return false;
    }
    if (got == EDITOR_E_LONG) {
        ctl_message("a line is too long");
        return false;
    }
    if (got == EDITOR_E_READ) {
        ctl_message("cannot read stdin: %s", strerror(errno));
        *rc = EXIT_ERROR;
    }
    if ((got == EDITOR_END || got == EDITOR_LATE) && chat->asking)
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

        if (got != EDITOR_OK) {
            over = is_over(chat, got, &rc);
        } else if (message.len > 0) {
            editor_remember(chat->editor, text);
            if (text[0] == '/' && text[1] != '/')
                over = run_slash(chat, text);
            else if (text[0] == '/')
                rc = answer(chat, (struct nvllm_text){text + 1, message.len - 1});
            else
                rc = answer(chat, (struct nvllm_text){text, message.len});
        }
        if (ctl_left_ms(chat->ctl) == 0) {
            ctl_message("gave up after the time that --timeout gives");
            rc = EXIT_DEADLINE;
        }
    }
    text_buffer_deinit(&message);
    return ctl_interrupted() ? ctl_interrupted() : rc;
}

/* ---- around it */

int ctl_chat(struct ctl *ctl)
{
    struct chat chat = {
        .ctl = ctl,
        .thinking = ctl_prompt_thinking(ctl),
        .quiet = ctl_option(ctl, "quiet"),
    };
    const char *system = ctl_option(ctl, "system");
    int rc;

    ctl_request_init(&chat.request);
    ctl_request_take_options(&chat.request, ctl);
    if (system)
        conversation_set_system(&chat.conversation, nvllm_str(system));
    chat.shown = isatty(STDOUT_FILENO);
    chat.asking = isatty(STDIN_FILENO);
    chat.terminal = chat.asking && chat.shown;
    rc = ctl_connect(&chat.client, ctl);
    if (rc == EXIT_OK) {
        ctl_catch_interrupts();
        if (chat.terminal)
            ctl_spare_interrupts();
        editor_new(&chat.editor, chat.terminal, ctl->deadline);
        if (chat.asking && !chat.quiet)
            fprintf(stderr, "/help says what there is; Ctrl-D leaves.\n");
        rc = talk(&chat);
    }
    nvllm_close(chat.client);
    editor_free(chat.editor);
    conversation_deinit(&chat.conversation);
    ctl_request_deinit(&chat.request);
    return rc;
}
