/* lines.c - see lines.h. On a terminal, libedit reads the lines, with its key bindings and the
 * user's .editrc. What is pasted there is text, newlines too. */
#include "client/ctl/lines.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "client/ctl/history.h"
#include "client/lib/clock.h"
#include "proto/utf8.h"

enum { KEY_LEFT = 3 }; /* Ctrl-C, which never arrives as a key, but as a signal */

/* The terminal puts these around what is pasted, once it is asked to. */
#define PASTE_ON    "\033[?2004h"
#define PASTE_OFF   "\033[?2004l"
#define PASTE_BEGIN "\033[200~"
static const char paste_end[] = "\033[201~";

void lines_init(struct lines *l, int fd)
{
    *l = (struct lines){.fd = fd};
}

void lines_deinit(struct lines *l)
{
    text_buffer_deinit(&l->in);
}

/* Reads more input. LINES_OK also at the end of the file. */
static int fill(struct lines *l, bool wait)
{
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    char part[64 << 10];
    ssize_t k;

    if (!wait && poll(&p, 1, 0) == 0)
        return LINES_LATER;
    do
        k = read(l->fd, part, sizeof(part));
    while (k < 0 && errno == EINTR);
    if (k < 0 && errno == EAGAIN)
        return LINES_LATER; /* the descriptor is non-blocking */
    if (k < 0)
        return LINES_E_READ;
    l->ended = k == 0;
    if (l->start > 0) {
        l->in.len -= l->start;
        memmove(l->in.data, l->in.data + l->start, l->in.len);
        l->start = 0;
    }
    text_buffer_add(&l->in, part, (size_t)k);
    return LINES_OK;
}

/* The next newline after what was searched, or NULL. */
static char *find_end(struct lines *l)
{
    size_t from = l->start + l->searched;
    char *at = memchr(l->in.data + from, '\n', l->in.len - from);

    if (!at)
        l->searched = l->in.len - l->start;
    return at;
}

int lines_next(struct lines *l, bool wait)
{
    char *at;
    int rc;

    for (;;) {
        at = l->in.len > l->start ? find_end(l) : NULL;
        if (at || (l->ended && l->in.len > l->start))
            break;
        if (l->ended && !l->too_long)
            return LINES_END;
        if (l->ended)
            break;
        if (l->in.len - l->start > LINES_MAX_BYTES) { /* such a line is not kept */
            l->too_long = true;
            l->bytes += l->in.len - l->start;
            l->start = l->in.len;
            l->searched = 0;
        }
        rc = fill(l, wait);
        if (rc != LINES_OK)
            return rc;
    }
    l->line = l->in.data + l->start;
    l->n = at ? (size_t)(at - l->line) : l->in.len - l->start;
    l->line[l->n] = '\0';
    l->start += l->n + (at != NULL);
    l->bytes += l->n + (at != NULL);
    l->searched = 0;
    l->number++;
    rc = l->too_long || l->n > LINES_MAX_BYTES ? LINES_E_LONG : LINES_OK;
    l->too_long = false;
    return rc;
}

bool lines_has_text(const struct lines *l)
{
    return strspn(l->line, " \t\r") < l->n;
}

/* ---- the editor */

struct editor {
    EditLine *edit; /* NULL: no terminal */
    History *history;
    char *history_path; /* NULL: it is not kept */
    struct text_buffer pasted;
    bool begins_pasted; /* so does the line */
    const char *prompt;
    int64_t deadline;
    int left; /* why a line was left unfinished; LINES_OK: it was not */
    struct lines lines;
};

/* LINES_OK: input is available. */
static int wait_for_input(const struct editor *e)
{
    if (!ctl_wait_input(STDIN_FILENO, clock_left_ms(e->deadline)))
        return LINES_INTERRUPTED;
    return clock_left_ms(e->deadline) == 0 ? LINES_TIMEOUT : LINES_OK;
}

static char *give_prompt(EditLine *edit)
{
    struct editor *e;

    el_get(edit, EL_CLIENTDATA, &e);
    return (char *)e->prompt;
}

/* Bound to KEY_LEFT: moves the cursor behind the line, so that further output starts below it. */
static unsigned char go_to_end(EditLine *edit, wint_t key)
{
    const LineInfo *line = el_line(edit);

    (void)key;
    el_cursor(edit, (int)(line->lastchar - line->cursor));
    return CC_CURSOR;
}

/* 1, or what read() gave; e->left is set where something else has come. */
static ssize_t read_byte(struct editor *e, char *byte)
{
    ssize_t k = -1;

    do {
        e->left = wait_for_input(e);
        if (e->left == LINES_OK)
            k = read(STDIN_FILENO, byte, 1);
    } while (e->left == LINES_OK && k < 0 && errno == EINTR); /* the wait knows which signal */
    return k;
}

/* libedit would continue after a signal; here Ctrl-C ends the line. */
static int read_character(EditLine *edit, wchar_t *out)
{
    struct editor *e;
    mbstate_t state = {0};
    char byte;

    el_get(edit, EL_CLIENTDATA, &e);
    if (e->left != LINES_OK)
        return -1; /* the cursor is behind the line now */
    for (;;) {
        ssize_t k = read_byte(e, &byte);

        if (e->left != LINES_OK) {
            *out = KEY_LEFT;
            return 1;
        }
        if (k <= 0)
            return (int)k;
        switch (mbrtowc(out, &byte, 1, &state)) {
        case (size_t)-2:
            continue; /* the character continues */
        case (size_t)-1:
            memset(&state, 0, sizeof(state)); /* invalid: skipped */
            continue;
        default:
            return 1;
        }
    }
}

/* Valid UTF-8, with newlines and tabs as its only control characters. */
static void clean_paste(struct text_buffer *b)
{
    struct text_buffer clean = {0};

    for (size_t i = 0; i < b->len;) {
        const char *at = b->data + i;
        const int step = utf8_step(at, b->len - i);

        if (*at == '\r' && (i + 1 == b->len || at[1] != '\n'))
            text_buffer_add(&clean, "\n", 1);
        else if (step < 0 || (utf8_steers(at, step) && *at != '\n' && *at != '\t' && *at != '\r'))
            text_buffer_add(&clean, "\xef\xbf\xbd", 3);
        else if (*at != '\r')
            text_buffer_add(&clean, at, (size_t)step);
        i += (size_t)abs(step);
    }
    text_buffer_deinit(b);
    *b = clean;
}

/* Bound to PASTE_BEGIN. What is longer than a line may be is not inserted. */
static unsigned char paste(EditLine *edit, wint_t key)
{
    const size_t end = sizeof(paste_end) - 1;
    const LineInfo *line = el_line(edit);
    bool is_long = false;
    struct editor *e;
    char byte;

    el_get(edit, EL_CLIENTDATA, &e);
    e->begins_pasted = e->begins_pasted || line->cursor == line->buffer;
    e->pasted.len = 0;
    while (read_byte(e, &byte) == 1) {
        struct text_buffer *b = &e->pasted;

        text_buffer_add(b, &byte, 1);
        if (b->len >= end && memcmp(b->data + b->len - end, paste_end, end) == 0) {
            b->len -= end;
            clean_paste(b);
            return !is_long && (b->len == 0 || el_insertstr(edit, b->data) == 0) ? CC_REFRESH
                                                                                 : CC_ERROR;
        }
        if (b->len >= LINES_MAX_BYTES) { /* only its end is looked for */
            is_long = true;
            memmove(b->data, b->data + b->len - end, end);
            b->len = end;
        }
    }
    return e->left == LINES_OK ? CC_EOF : go_to_end(edit, key); /* read_character() goes on */
}

/* All letters can be typed even in the C locale. */
static void choose_locale(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static void start_libedit(struct editor *e)
{
    HistEvent event;

    choose_locale();
    e->edit = el_init("nvllmctl", stdin, stdout, stderr);
    e->history = history_init();
    if (!e->edit || !e->history)
        ctl_no_memory();
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->edit, EL_CLIENTDATA, e);
    el_set(e->edit, EL_PROMPT, give_prompt);
    el_set(e->edit, EL_EDITOR, "emacs");
    el_set(e->edit, EL_SIGNAL, 0);
    el_set(e->edit, EL_HIST, history, e->history);
    el_set(e->edit, EL_GETCFN, read_character);
    el_set(e->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_wset(e->edit, EL_ADDFN, L"nvllm-leave", L"go to the end of the line", go_to_end);
    el_set(e->edit, EL_BIND, "^C", "nvllm-leave", NULL);
    el_wset(e->edit, EL_ADDFN, L"nvllm-paste", L"insert what is pasted", paste);
    el_set(e->edit, EL_BIND, PASTE_BEGIN, "nvllm-paste", NULL);
    el_source(e->edit, NULL);
}

/* A line of an earlier run. */
static void enter(void *editor, const char *line)
{
    struct editor *e = editor;
    HistEvent event;

    history(e->history, &event, H_ENTER, line);
}

struct editor *editor_new(bool terminal, bool keep_history, int64_t deadline)
{
    struct editor *e = ctl_alloc(1, sizeof(*e));

    e->deadline = deadline;
    lines_init(&e->lines, STDIN_FILENO);
    if (terminal)
        start_libedit(e);
    if (terminal && keep_history)
        e->history_path = history_find();
    if (e->history_path)
        history_load(e->history_path, enter, e);
    return e;
}

void editor_free(struct editor *e)
{
    if (!e)
        return;
    if (e->edit)
        el_end(e->edit);
    if (e->history)
        history_end(e->history);
    lines_deinit(&e->lines);
    text_buffer_deinit(&e->pasted);
    free(e->history_path);
    free(e);
}

static int read_terminal(struct editor *e, const char **line, size_t *n)
{
    int count = 0;

    e->left = LINES_OK;
    e->begins_pasted = false;
    el_set(e->edit, EL_PREP_TERM, 1); /* before the prompt, which may be answered at once */
    ctl_write(STDOUT_FILENO, PASTE_ON, strlen(PASTE_ON));
    *line = el_gets(e->edit, &count);
    ctl_write(STDOUT_FILENO, PASTE_OFF, strlen(PASTE_OFF));
    if (e->left != LINES_OK)
        return e->left;
    if (!*line || count <= 0)
        return LINES_END;
    *n = (size_t)count;
    while (*n > 0 && ((*line)[*n - 1] == '\n' || (*line)[*n - 1] == '\r'))
        --*n;
    return LINES_OK;
}

static int read_plain(struct editor *e, const char **line, size_t *n)
{
    struct lines *l = &e->lines;
    int got;

    while ((got = lines_next(l, false)) == LINES_LATER)
        if ((got = wait_for_input(e)) != LINES_OK)
            return got;
    *line = l->line;
    *n = l->n - (got == LINES_OK && l->n > 0 && l->line[l->n - 1] == '\r');
    return got;
}

int editor_read(struct editor *e, const char *prompt, const char **line, size_t *n)
{
    e->prompt = prompt;
    return e->edit ? read_terminal(e, line, n) : read_plain(e, line, n);
}

bool editor_begins_pasted(const struct editor *e)
{
    return e->begins_pasted;
}

void editor_remember(struct editor *e, const char *line)
{
    HistEvent event;

    if (e->history && history(e->history, &event, H_ENTER, line) >= 0 && e->history_path)
        history_add(e->history_path, line);
}
