/* top.c - nvllmctl top: what nvllmd is doing, redrawn periodically. */
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <termios.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/ctl.h"
#include "client/ctl/show.h"
#include "proto/utf8.h"

enum {
    INTERVAL_MS = 1000,
    HEAD_ROWS = 6, /* above the requests */
    N_RATES = 3,
    BAR_COLUMNS = 40,
    SHORTEST_BAR = 8,
    ONCE_MS = 500, /* between the two samples that --once takes for its rates */
    RATE_MS = 100, /* the shortest interval for rates: resizing a terminal redraws often */
};

/* The alternate screen, no cursor, no line wrap; and back. */
#define SCREEN_BEGIN "\033[?1049h\033[?25l\033[?7l"
#define SCREEN_END   "\033[?7h\033[?25h\033[?1049l"

struct top {
    struct ctl *ctl;
    int interval_ms;
    int64_t seen_ms;          /* -1: nothing yet */
    uint64_t counts[N_RATES]; /* tokens generated, of prompts computed, steps */
    double rates[N_RATES];    /* the same, a second */
    char *screen;             /* written at once, so that it does not flicker */
    size_t screen_bytes;
    int columns, rows; /* of the terminal; 0: unlimited */
};

static void measure(struct top *t, const struct nvllm_status *s)
{
    const uint64_t counts[N_RATES] = {s->output_tokens, s->prompt_tokens, s->steps};
    int64_t now = clock_ms(), ms = now - t->seen_ms;

    if (t->seen_ms >= 0 && ms < RATE_MS)
        return;
    for (int i = 0; i < N_RATES; i++) {
        if (t->seen_ms >= 0)
            t->rates[i] = (double)(counts[i] - MIN(t->counts[i], counts[i])) * 1000 / (double)ms;
        t->counts[i] = counts[i];
    }
    t->seen_ms = now;
}

/* The bar takes the room that the text leaves. */
static void draw_blocks(const struct top *t, FILE *to, const struct nvllm_status *s)
{
    double total = s->blocks_total ? s->blocks_total : 1;
    char text[80];
    int room, n = snprintf(text, sizeof(text), "%u used, %u cached, %u free", s->blocks_used,
                           s->blocks_cached, s->blocks_free);
    int length = BAR_COLUMNS, used, cached;

    room = t->columns - n - (int)strlen("blocks    [] ");
    if (t->columns > 0 && room < length)
        length = room < SHORTEST_BAR ? SHORTEST_BAR : room;
    used = (int)ceil(s->blocks_used * length / total);
    cached = (int)ceil(s->blocks_cached * length / total);
    fprintf(to, "blocks    [");
    for (int i = 0; i < length; i++)
        fputc(i < used ? '#' : i < used + cached ? '-' : '.', to);
    fprintf(to, "] %s\n", text);
}

static void draw_status(const struct top *t, FILE *to, const struct nvllm_status *s)
{
    char up[16];

    ctl_put_line(to, s->server, 0);
    fprintf(to, ", %s", nvllm_state_name(s->state));
    if (s->state == NVLLM_STATE_LOADING)
        fprintf(to, " (%d %%)", (int)(s->progress * 100));
    fprintf(to, ", up %s: ", show_duration(up, sizeof(up), s->uptime_ms * 1000));
    ctl_put_line(to, s->model, 0);
    fputs(" on ", to);
    ctl_put_line(to, s->device[0] ? s->device : s->backend, 0);
    if (s->n_ranks > 0)
        fprintf(to, " and %zu more", s->n_ranks - 1);
    fprintf(to, "\nrequests  %u running, %u waiting, %u connection%s\n", s->requests_running,
            s->requests_waiting, s->connections, s->connections == 1 ? "" : "s");
    fprintf(to, "tokens    %.0f a second generated, %.0f of prompts computed, %.0f steps\n",
            t->rates[0], t->rates[1], t->rates[2]);
    draw_blocks(t, to, s);
    fprintf(to, "cache     %.0f %% of prompt tokens found, %" PRIu64 " preemption%s\n",
            show_percent(s->prefix_hit_tokens, s->prefix_queried_tokens), s->preemptions,
            s->preemptions == 1 ? "" : "s");
}

/* Requests that the rest of the screen has room for, beside the line that counts the others. */
static size_t rows_of_requests(const struct top *t)
{
    if (t->rows == 0)
        return UINT32_MAX;
    return t->rows > HEAD_ROWS + 2 ? (size_t)(t->rows - HEAD_ROWS - 2) : 1;
}

/* Draws into t->screen; false: ctl->err is to be printed once the terminal is restored. */
static bool draw(struct top *t)
{
    const struct nvllm_request_list *list;
    const struct nvllm_status *status;
    struct nvllm_list_options wanted;
    enum nvllm_code code;
    FILE *to;

    if (nvllm_get_status(t->ctl->client, ctl_ask_ms(t->ctl), &status, &t->ctl->err) != NVLLM_OK)
        return false;
    measure(t, status);
    free(t->screen);
    t->screen = NULL;
    to = open_memstream(&t->screen, &t->screen_bytes);
    if (!to) {
        t->ctl->err = (struct nvllm_error){.code = NVLLM_E_NOMEM, .message = "out of memory"};
        return false;
    }
    draw_status(t, to, status);
    fputc('\n', to);
    nvllm_list_options_init(&wanted);
    wanted.limit = (uint32_t)rows_of_requests(t);
    code = nvllm_list_requests(t->ctl->client, &wanted, ctl_ask_ms(t->ctl), &list, &t->ctl->err);
    if (code == NVLLM_OK)
        show_requests(to, list, wanted.limit, t->columns);
    fclose(to);
    return code == NVLLM_OK || code == NVLLM_E_UNAVAILABLE; /* none while the model loads */
}

/* Bytes of the characters of a line that the columns have room for. */
static int bytes_shown(const char *line, size_t length, int columns)
{
    size_t i = 0;

    for (int column = 0; column < columns && i < length; column++) {
        int step = utf8_step(line + i, length - i);

        i += (size_t)abs(step);
    }
    return (int)i;
}

/* Cuts lines at the edge of the screen; each erases what was there before. */
static void show(const struct top *t)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    const char *line = t->screen;

    if (!to)
        return;
    fputs("\033[H", to);
    for (int row = 0; row < t->rows && *line; row++) {
        size_t length = strcspn(line, "\n");

        if (row > 0)
            fputs("\r\n", to);
        fprintf(to, "\033[K%.*s", bytes_shown(line, length, t->columns), line);
        line += length + (line[length] == '\n');
    }
    fputs("\033[J", to);
    fclose(to);
    ctl_write(STDOUT_FILENO, text, n);
    free(text);
}

/* ---- the terminal */

static struct termios cooked; /* how the terminal was before */

static void enter_screen(void)
{
    struct termios raw;

    tcgetattr(STDIN_FILENO, &cooked);
    raw = cooked;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    ctl_write(STDOUT_FILENO, SCREEN_BEGIN, strlen(SCREEN_BEGIN));
}

static void leave_screen(void)
{
    ctl_write(STDOUT_FILENO, SCREEN_END, strlen(SCREEN_END));
    tcsetattr(STDIN_FILENO, TCSADRAIN, &cooked);
}

/* A new size or Ctrl-Z ends the wait for a key; a stopped program leaves the terminal as it was. */
static void on_signal(int signal)
{
    if (signal != SIGTSTP)
        return;
    leave_screen();
    raise(SIGSTOP);
    enter_screen();
}

/* Waits until the next redraw is due, at the latest. True: q was typed, or the terminal is gone. */
static bool wait_key(const struct top *t)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    int left = ctl_left_ms(t->ctl);
    char key;

    ctl_wait_input(STDIN_FILENO, left >= 0 && left < t->interval_ms ? left : t->interval_ms);
    return poll(&p, 1, 0) > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q');
}

static int run_live(struct top *t)
{
    sigset_t block;
    bool ok;

    ctl_catch_interrupts(false);
    sigemptyset(&block);
    sigaddset(&block, SIGWINCH);
    sigaddset(&block, SIGTSTP);
    sigprocmask(SIG_BLOCK, &block, NULL); /* but in ctl_wait_input() */
    sigaction(SIGWINCH, &(struct sigaction){.sa_handler = on_signal}, NULL);
    sigaction(SIGTSTP, &(struct sigaction){.sa_handler = on_signal}, NULL);
    enter_screen();
    do {
        t->columns = show_columns(STDOUT_FILENO, &t->rows);
        ok = draw(t);
        if (ok)
            show(t);
    } while (ok && !wait_key(t) && !ctl_interrupted());
    leave_screen();
    return ok || ctl_interrupted() ? EXIT_OK : ctl_report(t->ctl, &t->ctl->err);
}

static int run_once(struct top *t)
{
    bool ok;

    t->columns = show_width(STDOUT_FILENO);
    ok = draw(t);
    usleep(ok ? ONCE_MS * 1000 : 0);
    if (!ok || !draw(t))
        return ctl_report(t->ctl, &t->ctl->err);
    ctl_write(STDOUT_FILENO, t->screen, t->screen_bytes);
    return EXIT_OK;
}

int ctl_top(struct ctl *ctl)
{
    struct top t = {
        .ctl = ctl,
        .interval_ms = (int)(ctl_real(ctl, "interval", INTERVAL_MS / 1000.0, 0.1, 86400) * 1000),
        .seen_ms = -1,
    };
    bool once = ctl_option(ctl, "once");
    int rc;

    if (!once && !(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)))
        ctl_usage(ctl, "top needs a terminal: use --once to print one update");
    ctl_connect(ctl);
    rc = once ? run_once(&t) : run_live(&t);
    free(t.screen);
    return rc;
}
