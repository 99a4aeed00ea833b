/* normalize.c - what is done to text before it is split: composed to NFC, or its spaces as
 * SentencePiece has them, or nothing but the mending of invalid UTF-8. */
#include <errno.h>
#include <string.h>

#include "engine/text/tokenizer_impl.h"
#include "engine/text/utf8.h"
#include "engine/util/checked.h"

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

enum { SPACE_MARK_BYTES = sizeof(space_mark) - 1 };

/* Whether a text of n bytes begins with the mark. */
static bool is_mark(const char *p, size_t n)
{
    return n >= SPACE_MARK_BYTES && memcmp(p, space_mark, SPACE_MARK_BYTES) == 0;
}

/* Whether the text stays as it is. */
static bool is_plain(struct text source, bool spaces)
{
    uint32_t cp;

    for (size_t i = 0, len; i < source.len; i += len) {
        len = utf8_read(source.data + i, source.len - i, &cp);
        if (!len || cp == UTF8_BROKEN || (spaces && is_mark(source.data + i, len)))
            return false;
    }
    return true;
}

/* Ranges of the source that become ranges of the copy. */
struct bounds {
    struct text_range *ranges; /* [n] */
    size_t n, next;            /* of 2 * n bounds */
};

/* Moves the bounds that are not beyond `from` in the source to `to`. */
static void move_bounds(struct bounds *b, size_t from, size_t to)
{
    for (; b->next < 2 * b->n; b->next++) {
        struct text_range *r = &b->ranges[b->next / 2];
        size_t *bound = b->next % 2 ? &r->end : &r->start;

        if (*bound > from)
            break;
        *bound = to;
    }
}

/* Copies the text with a prefix; marks become spaces where those count, broken bytes U+FFFD. */
static int copy(struct text source, bool spaces, struct text prefix, struct text_range *ranges,
                size_t n_ranges, struct nfc_text *out)
{
    struct bounds bounds = {ranges, n_ranges, 0};
    size_t n = prefix.len;
    uint32_t cp;

    if (!array_reserve(&out->buf, &out->buf_cap, prefix.len + 3 * source.len, 1))
        return -ENOMEM;
    if (prefix.len)
        memcpy(out->buf, prefix.data, prefix.len);
    move_bounds(&bounds, 0, 0); /* the prefix is in the range of what it is put before */
    for (size_t i = 0, len; i < source.len; i += len) {
        const char *at = source.data + i;
        struct text piece;

        move_bounds(&bounds, i, n);
        len = utf8_read(at, source.len - i, &cp);
        piece = (struct text){at, len};
        if (!len || cp == UTF8_BROKEN)
            piece = (struct text){UTF8_REPLACEMENT_BYTES, 3};
        else if (spaces && is_mark(at, len))
            piece = (struct text){" ", 1};
        len = len ? len : source.len - i; /* the beginning of a character ends the text */
        memcpy(out->buf + n, piece.data, piece.len);
        n += piece.len;
    }
    move_bounds(&bounds, source.len, n);
    out->text = (struct text){out->buf, n};
    return 0;
}

static bool is_prefixed(const struct tokenizer *t, enum piece_place place, struct text source)
{
    const bool has_space = source.data[0] == ' ' || is_mark(source.data, source.len);

    if (place == PIECE_ON)
        return false;
    switch (t->space_prefix) {
    case PREFIX_FIRST:
        return place == PIECE_FIRST && !has_space;
    case PREFIX_EACH:
        return !has_space;
    default:
        return t->space_prefix == PREFIX_ANOTHER;
    }
}

int tokenizer_normalize(const struct tokenizer *t, enum piece_place place, struct text source,
                        struct text_range *ranges, size_t n_ranges, struct nfc_text *out)
{
    static const struct text none = {NULL, 0}, space = {" ", 1};
    const bool spaces = t->normalizer == NORMALIZE_SPACES;
    const bool prefixed = is_prefixed(t, place, source);

    if (t->normalizer == NORMALIZE_NFC)
        return nfc_normalize(&t->nfc, source, ranges, n_ranges, out);
    if (prefixed || !is_plain(source, spaces))
        return copy(source, spaces, prefixed ? space : none, ranges, n_ranges, out);
    out->text = source;
    return 0;
}
