/* progress.c - see progress.h. */
#include "client/ctl/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/terminal.h"

enum {
    INTERVAL_MS = 200,
    BAR_WIDTH = 24,
    SHORTEST_BAR = 4,
};

void progress_init(struct progress *p, int input_fd)
{
    struct stat st;

    *p = (struct progress){.shown = isatty(STDERR_FILENO), .started_ms = clock_ms()};
    p->last_ms = p->started_ms;
    if (fstat(input_fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        p->total = (uint64_t)st.st_size;
}

static void draw_bar(double share, int width)
{
    int full = (int)(share * width);

    fputc('[', stderr);
    for (int i = 0; i < width; i++)
        fputc(i < full ? '#' : '.', stderr);
    fputs("] ", stderr);
}

static void put_left(FILE *to, const struct progress *p, double share, int64_t now)
{
    double left = (double)(now - p->started_ms) / 1000 * (1 - share) / share;

    if (left < 3600)
        fprintf(to, ", %d:%02d left", (int)left / 60, (int)left % 60);
    else if (left < 1000 * 3600.0)
        fprintf(to, ", %d:%02d:%02d left", (int)left / 3600, (int)left / 60 % 60, (int)left % 60);
}

/* Draws one line of the terminal, so that it can be redrawn in place: the bar gets the room that
 * the words leave, and words that are too long are cut. */
static void draw(const char *words, const struct progress *p, double share)
{
    int columns, rows, room, bar;

    terminal_size(STDERR_FILENO, &columns, &rows);
    room = columns - 1;
    bar = room - (int)strlen(words) - (int)strlen("[] ");
    if (bar > BAR_WIDTH)
        bar = BAR_WIDTH;
    fputs("\r\033[K", stderr);
    if (p->total && bar >= SHORTEST_BAR)
        draw_bar(share, bar);
    fprintf(stderr, "%.*s", room, words);
}

void progress_show(struct progress *p, uint64_t bytes, uint64_t n_done, uint64_t n_failed,
                   uint64_t n_tokens)
{
    int64_t now = p->shown ? clock_ms() : 0;
    char words[200] = "";
    double share, rate;
    FILE *to;

    if (!p->shown || now - p->last_ms < INTERVAL_MS)
        return;
    rate = (double)(n_tokens - p->last_tokens) * 1000 / (double)(now - p->last_ms);
    p->tokens_a_second = p->last_tokens == 0 ? rate : 0.8 * p->tokens_a_second + 0.2 * rate;
    p->last_tokens = n_tokens;
    p->last_ms = now;
    share = p->total ? (double)bytes / (double)p->total : 0;
    if (share > 1)
        share = 1; /* the file has grown */
    to = fmemopen(words, sizeof(words), "w");
    if (!to)
        return;
    if (p->total)
        fprintf(to, "%3d %%  ", (int)(share * 100));
    fprintf(to, "%" PRIu64 " done", n_done);
    if (n_failed)
        fprintf(to, ", %" PRIu64 " failed", n_failed);
    fprintf(to, ", %.0f tok/s", p->tokens_a_second);
    if (share > 0)
        put_left(to, p, share, now);
    fclose(to);
    draw(words, p, share);
}

void progress_end(struct progress *p)
{
    if (p->shown)
        fputs("\r\033[K", stderr);
}
