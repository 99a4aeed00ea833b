/* chat_text.c - writes the prompt; Python's str methods. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat_impl.h"
#include "engine/util/array.h"

/* There is always room for one byte more, the NUL. */
static bool reserve(struct chat_writer *w, size_t more)
{
    if (!w->error && more > TOKENIZER_MAX_BYTES - w->len)
        w->error = -E2BIG;
    if (!w->error && !array_reserve(&w->data, &w->cap, w->len + more + 1, 1))
        w->error = -ENOMEM;
    return !w->error;
}

void chat_write_text(struct chat_writer *w, struct text text)
{
    if (!reserve(w, text.len) || !text.len)
        return;
    memcpy(w->data + w->len, text.data, text.len);
    w->len += text.len;
}

void chat_write(struct chat_writer *w, const char *literal)
{
    size_t start = w->len;

    chat_write_text(w, (struct text){literal, strlen(literal)});
    if (w->error)
        return;
    if (w->n_ranges && w->ranges[w->n_ranges - 1].end == start) {
        w->ranges[w->n_ranges - 1].end = w->len;
        return;
    }
    if (!array_reserve(&w->ranges, &w->ranges_cap, w->n_ranges + 1, sizeof(*w->ranges))) {
        w->error = -ENOMEM;
        return;
    }
    w->ranges[w->n_ranges++] = (struct text_range){start, w->len};
}

bool text_is(struct text t, const char *s)
{
    return t.len == strlen(s) && (!t.len || !memcmp(t.data, s, t.len));
}

bool text_starts(struct text t, const char *s)
{
    size_t len = strlen(s);

    return t.len >= len && !memcmp(t.data, s, len);
}

bool text_ends(struct text t, const char *s)
{
    size_t len = strlen(s);

    return t.len >= len && !memcmp(t.data + t.len - len, s, len);
}

static const char *find(struct text t, const char *s)
{
    return t.len ? memmem(t.data, t.len, s, strlen(s)) : NULL;
}

bool text_has(struct text t, const char *s)
{
    return find(t, s) != NULL;
}

struct text text_before_first(struct text t, const char *mark)
{
    const char *at = find(t, mark);

    return at ? (struct text){t.data, (size_t)(at - t.data)} : t;
}

struct text text_after_last(struct text t, const char *mark)
{
    const char *at;

    while ((at = find(t, mark))) {
        size_t skip = (size_t)(at - t.data) + strlen(mark);

        t = (struct text){t.data + skip, t.len - skip};
    }
    return t;
}

struct text text_lstrip(struct text t)
{
    while (t.len && t.data[0] == '\n')
        t = (struct text){t.data + 1, t.len - 1};
    return t;
}

struct text text_rstrip(struct text t)
{
    while (t.len && t.data[t.len - 1] == '\n')
        t.len--;
    return t;
}
