/* wrap.c - see wrap.h. Widths are those of the C library, for the locale that the editor sets. */
#include "client/ctl/wrap.h"

#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "proto/utf8.h"

enum { FENCE_TICKS = 3, TAB_COLUMNS = 8 };

void wrap_init(struct wrap *w, int columns)
{
    *w = (struct wrap){.columns = columns};
}

void wrap_deinit(struct wrap *w)
{
    text_buffer_deinit(&w->word);
    text_buffer_deinit(&w->out);
}

static void put(struct wrap *w, const char *data, size_t n, int columns)
{
    text_buffer_add(&w->out, data, n);
    w->column += columns;
}

static void end_line(struct wrap *w)
{
    text_buffer_add(&w->out, "\n", 1);
    w->column = w->n_spaces = 0;
}

/* Shows the word, on the next line where this one has no room. Spaces that end a line are dropped.
 */
static void put_word(struct wrap *w)
{
    if (w->word.len == 0)
        return;
    if (w->column > 0 && w->column + w->n_spaces + w->n_columns > w->columns)
        end_line(w);
    for (; w->n_spaces > 0; w->n_spaces--)
        put(w, " ", 1, 1);
    put(w, w->word.data, w->word.len, w->n_columns);
    w->word.len = 0;
    w->n_columns = 0;
}

static int width_of(const char *at, size_t n)
{
    mbstate_t state = {0};
    wchar_t c;
    int width;

    if (mbrtowc(&c, at, n, &state) > n)
        return 1;
    width = wcwidth(c);
    return width < 0 ? 1 : width;
}

/* Code begins and ends with a line that begins with three ticks. */
static void count_ticks(struct wrap *w, char c)
{
    if (w->n_ticks >= 0 && c == '`' && ++w->n_ticks == FENCE_TICKS) {
        w->is_code = !w->is_code;
        w->n_ticks = -1;
    } else if (w->n_ticks >= 0 && c != '`' && !(w->n_ticks == 0 && c == ' ')) {
        w->n_ticks = -1;
    }
}

static void add_character(struct wrap *w, const char *at, size_t n)
{
    const int width = width_of(at, n);

    if (*at == '\n') {
        put_word(w);
        end_line(w);
        w->n_ticks = 0;
        return;
    }
    count_ticks(w, *at);
    if (*at == ' ') {
        put_word(w);
        w->n_spaces++;
    } else if (*at == '\t') {
        put_word(w);
        w->n_spaces += TAB_COLUMNS - (w->column + w->n_spaces) % TAB_COLUMNS;
    } else {
        /* Chinese and the like may be broken anywhere. */
        if (width > 1 || w->n_columns + width > w->columns)
            put_word(w);
        text_buffer_add(&w->word, at, n);
        w->n_columns += width;
        if (width > 1)
            put_word(w);
    }
}

/* A line of code goes as it is, with what waits before it. */
static void add_code(struct wrap *w, const char *at, size_t n)
{
    put_word(w);
    for (; w->n_spaces > 0; w->n_spaces--)
        put(w, " ", 1, 1);
    put(w, at, n, *at != '\n');
    if (*at == '\n')
        w->column = 0;
    w->n_ticks = *at == '\n' ? 0 : w->n_ticks;
    if (*at != '\n')
        count_ticks(w, *at);
}

struct nvllm_text wrap_add(struct wrap *w, struct nvllm_text text)
{
    w->out.len = 0;
    for (size_t i = 0; i < text.len;) {
        const size_t n = (size_t)abs(utf8_step(text.data + i, text.len - i));

        (w->is_code ? add_code : add_character)(w, text.data + i, n);
        i += n;
    }
    return (struct nvllm_text){w->out.data, w->out.len};
}

struct nvllm_text wrap_flush(struct wrap *w)
{
    w->out.len = 0;
    put_word(w);
    for (; w->n_spaces > 0; w->n_spaces--)
        put(w, " ", 1, 1);
    return (struct nvllm_text){w->out.data, w->out.len};
}
