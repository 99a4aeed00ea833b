/* nfc.c - see nfc.h.
 *
 * A character is safe if nothing before it can change it and it is its own normal form: a starter
 * that is never the second half of a composition. Text is cut before safe characters. A stretch of
 * one safe character is copied; others, a few characters each in real text, are decomposed, ordered
 * and composed. */
#include "engine/text/nfc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/utf8.h"
#include "engine/util/checked.h"
#include "engine/util/must.h"

enum {
    NFC_DECOMPOSED_MAX = 8, /* a canonical decomposition has at most 4 characters */
    HANGUL_FIRST = 0xac00,
    HANGUL_LAST = 0xd7a3,
};

static void mark_unsafe(struct nfc *n, int32_t cp)
{
    n->unsafe[cp / 64] |= UINT64_C(1) << (cp % 64);
}

static inline bool is_safe(const struct nfc *n, uint32_t cp)
{
    return cp >= NFC_TABLE_CPS ? cp != UTF8_BROKEN : !(n->unsafe[cp / 64] >> (cp % 64) & 1);
}

static size_t decompose(int32_t cp, int32_t *out)
{
    int boundclass = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char(cp, out, NFC_DECOMPOSED_MAX, UTF8PROC_DECOMPOSE, &boundclass);

    must(n > 0 && n <= NFC_DECOMPOSED_MAX);
    return (size_t)n;
}

static size_t compose(int32_t *cps, size_t n)
{
    utf8proc_ssize_t got =
        utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);

    must(got >= 0 && (size_t)got <= n);
    return (size_t)got;
}

/* The second half of a composition is the last character of a decomposition that composes again. */
static void mark_decomposable(struct nfc *n, int32_t cp)
{
    int32_t parts[NFC_DECOMPOSED_MAX], last;
    size_t n_parts = decompose(cp, parts);

    if (n_parts == 1 && parts[0] == cp)
        return;
    last = parts[n_parts - 1];
    if (compose(parts, n_parts) == 1 && parts[0] == cp)
        mark_unsafe(n, last);
    else
        mark_unsafe(n, cp);
}

void nfc_init(struct nfc *n)
{
    for (int32_t cp = 0x80; cp < NFC_TABLE_CPS; cp++) {
        const utf8proc_property_t *prop = utf8proc_get_property(cp);

        if (prop->combining_class)
            mark_unsafe(n, cp);
        if ((prop->decomp_seqindex != UINT16_MAX && !prop->decomp_type) ||
            (cp >= HANGUL_FIRST && cp <= HANGUL_LAST))
            mark_decomposable(n, cp);
    }
}

void nfc_text_deinit(struct nfc_text *t)
{
    free(t->buf);
    free(t->cps);
    memset(t, 0, sizeof(*t));
}

static uint8_t ccc(int32_t cp)
{
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* Sorts the marks cps[0..n) by class, stably; tmp has room for n. */
static void order_run(int32_t *cps, size_t n, int32_t *tmp)
{
    size_t at[257], sorted = 1;

    while (sorted < n && ccc(cps[sorted - 1]) <= ccc(cps[sorted]))
        sorted++;
    if (sorted >= n)
        return;
    memset(at, 0, sizeof(at));
    for (size_t i = 0; i < n; i++)
        at[ccc(cps[i]) + 1]++;
    for (int kind = 0; kind < 256; kind++)
        at[kind + 1] += at[kind];
    for (size_t i = 0; i < n; i++)
        tmp[at[ccc(cps[i])]++] = cps[i];
    memcpy(cps, tmp, n * sizeof(*cps));
}

static void order_marks(int32_t *cps, size_t n, int32_t *tmp)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;

        while (end < n && ccc(cps[end]))
            end++;
        order_run(cps + i, end - i, tmp);
        i = end + 1;
    }
}

/* A call of nfc_normalize. */
struct call {
    struct text source;
    size_t copied; /* bytes of the source that the result has */
    struct text_range *ranges;
    size_t n_ranges;
    size_t next; /* of their 2 * n_ranges borders the first that is still one of the source */
    struct nfc_text *out;
};

/* Appends the unchanged source up to `start`, and the first n of the call's characters in place of
 * the source up to `end`. */
static int replace(struct call *c, size_t start, size_t end, size_t n)
{
    struct nfc_text *t = c->out;
    const size_t n_copied = start - c->copied, shift = t->text.len - c->copied;
    const size_t before = t->text.len + n_copied;
    const size_t last = end > start ? end - 1 : start; /* border that moves now */

    if (!array_reserve(&t->buf, &t->buf_cap, before + 4 * n, 1))
        return -ENOMEM;
    memcpy(t->buf + t->text.len, c->source.data + c->copied, n_copied);
    t->text = (struct text){t->buf, before};
    for (size_t i = 0; i < n; i++)
        t->text.len += utf8_write(t->buf + t->text.len, (uint32_t)t->cps[i]);
    for (; c->next < 2 * c->n_ranges; c->next++) {
        struct text_range *range = &c->ranges[c->next / 2];
        const bool is_end = c->next % 2;
        size_t *border = is_end ? &range->end : &range->start;

        if (*border > last)
            break;
        *border = *border <= start ? *border + shift : is_end ? before : t->text.len;
    }
    c->copied = end;
    return 0;
}

/* Reads the character at byte i, which may be UTF8_BROKEN. */
static size_t read_char(struct text source, size_t i, uint32_t *cp)
{
    size_t len = utf8_read(source.data + i, source.len - i, cp);

    return len ? len : source.len - i;
}

/* Normalizes the stretch [start, end) of the source. */
static int do_stretch(struct call *c, size_t start, size_t end)
{
    struct nfc_text *t = c->out;
    size_t n = 0, same = start, i = 0;

    for (size_t at = start; at < end;) {
        uint32_t cp;

        at += read_char(c->source, at, &cp);
        if (!array_reserve(&t->cps, &t->cps_cap, 2 * (n + NFC_DECOMPOSED_MAX), sizeof(*t->cps)))
            return -ENOMEM;
        n += decompose(cp == UTF8_BROKEN ? UTF8_REPLACEMENT : (int32_t)cp, t->cps + n);
    }
    order_marks(t->cps, n, t->cps + n);
    n = compose(t->cps, n);
    for (; i < n && same < end; i++) {
        uint32_t cp;
        size_t len = read_char(c->source, same, &cp);

        if (cp != (uint32_t)t->cps[i])
            break;
        same += len;
    }
    if (i == n && same == end)
        return 0;
    return replace(c, start, end, n);
}

int nfc_normalize(const struct nfc *n, struct text source, struct text_range *ranges,
                  size_t n_ranges, struct nfc_text *out)
{
    struct call c = {.source = source, .ranges = ranges, .n_ranges = n_ranges, .out = out};
    size_t safe = 0; /* where the last safe character begins */
    size_t i = 0;

    out->text = (struct text){out->buf, 0};
    while (i < source.len) {
        uint32_t cp;
        size_t len;

        if ((unsigned char)source.data[i] < 0x80) {
            safe = i++;
            continue;
        }
        len = read_char(source, i, &cp);
        if (is_safe(n, cp)) {
            safe = i;
            i += len;
            continue;
        }
        do {
            i += len;
            if (i == source.len)
                break;
            len = read_char(source, i, &cp);
        } while (!is_safe(n, cp));
        if (do_stretch(&c, safe, i))
            return -ENOMEM;
        safe = i;
    }
    if (c.copied)
        return replace(&c, source.len, source.len, 0);
    out->text = source;
    return 0;
}
