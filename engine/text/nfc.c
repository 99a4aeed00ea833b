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
#include "engine/util/array.h"
#include "engine/util/must.h"

enum {
    NFC_TABLE_CPS = 0x40000, /* nothing composes beyond: unassigned, private or ignorable */
    NFC_DECOMPOSED_MAX = 8,  /* a canonical decomposition has at most 4 characters */
    NFC_INSERTION_MAX = 16,  /* longer runs of marks are sorted by counting */
    HANGUL_FIRST = 0xac00,
    HANGUL_LAST = 0xd7a3,
    JAMO_V_FIRST = 0x1161,
    JAMO_V_LAST = 0x1175,
    JAMO_T_FIRST = 0x11a8,
    JAMO_T_LAST = 0x11c2,
};

struct nfc {
    uint64_t unsafe[NFC_TABLE_CPS / 64];
};

static void mark_unsafe(struct nfc *n, int32_t cp)
{
    n->unsafe[cp / 64] |= UINT64_C(1) << (cp % 64);
}

static inline bool is_safe(const struct nfc *n, uint32_t cp)
{
    return cp >= NFC_TABLE_CPS || !(n->unsafe[cp / 64] >> (cp % 64) & 1);
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

int nfc_new(struct nfc **out)
{
    struct nfc *n = calloc(1, sizeof(*n));

    if (!n)
        return -ENOMEM;
    for (int32_t cp = 0x80; cp < NFC_TABLE_CPS; cp++) {
        const utf8proc_property_t *prop;

        if (cp >= HANGUL_FIRST && cp <= HANGUL_LAST)
            continue;
        prop = utf8proc_get_property(cp);
        if (prop->combining_class)
            mark_unsafe(n, cp);
        if (prop->decomp_seqindex != UINT16_MAX && !prop->decomp_type)
            mark_decomposable(n, cp);
    }
    for (int32_t cp = JAMO_V_FIRST; cp <= JAMO_V_LAST; cp++)
        mark_unsafe(n, cp);
    for (int32_t cp = JAMO_T_FIRST; cp <= JAMO_T_LAST; cp++)
        mark_unsafe(n, cp);
    *out = n;
    return 0;
}

void nfc_free(struct nfc *n)
{
    free(n);
}

void nfc_text_deinit(struct nfc_text *t)
{
    free(t->edits);
    free(t->buf);
    free(t->cps);
    memset(t, 0, sizeof(*t));
}

static bool reserve_buf(struct nfc_text *t, size_t more)
{
    return array_reserve(&t->buf, &t->buf_cap, t->text.len + more, 1);
}

static uint8_t ccc(int32_t cp)
{
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* Sorts the marks cps[0..n) by class, stably; tmp has room for n. */
static void order_run(int32_t *cps, size_t n, int32_t *tmp)
{
    if (n <= NFC_INSERTION_MAX) {
        for (size_t i = 1; i < n; i++) {
            int32_t cp = cps[i];
            uint8_t kind = ccc(cp);
            size_t k = i;

            for (; k && ccc(cps[k - 1]) > kind; k--)
                cps[k] = cps[k - 1];
            cps[k] = cp;
        }
        return;
    }
    size_t at[257] = {0};
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
        if (end - i > 1)
            order_run(cps + i, end - i, tmp);
        i = end + 1;
    }
}

/* Normalizes the stretch [start, end) of source and, if that changes it, appends all of source from
 * *copied to its end. */
static int do_stretch(struct nfc_text *t, struct text source, size_t start, size_t end,
                      size_t *copied)
{
    size_t n = 0, out_start;

    for (size_t i = start; i < end;) {
        uint32_t cp;

        i += utf8_read_valid(source.data + i, &cp);
        if (!array_reserve(&t->cps, &t->cps_cap, 2 * (n + NFC_DECOMPOSED_MAX), sizeof(*t->cps)))
            return -ENOMEM;
        n += decompose((int32_t)cp, t->cps + n);
    }
    order_marks(t->cps, n, t->cps + n);
    n = compose(t->cps, n);

    if (!reserve_buf(t, start - *copied + 4 * n) ||
        !array_reserve(&t->edits, &t->edits_cap, t->n_edits + 1, sizeof(*t->edits)))
        return -ENOMEM;
    out_start = t->text.len + (start - *copied);
    size_t out_end = out_start;
    for (size_t i = 0; i < n; i++)
        out_end += utf8_write(t->buf + out_end, (uint32_t)t->cps[i]);
    if (out_end - out_start == end - start &&
        !memcmp(t->buf + out_start, source.data + start, end - start))
        return 0;
    memcpy(t->buf + t->text.len, source.data + *copied, start - *copied);
    t->text.len = out_end;
    *copied = end;
    t->edits[t->n_edits++] =
        (struct nfc_edit){(uint32_t)start, (uint32_t)end, (uint32_t)out_start, (uint32_t)out_end};
    return 0;
}

int nfc_normalize(const struct nfc *n, struct text source, struct nfc_text *out)
{
    size_t copied = 0, safe = 0; /* safe: where the last safe character begins */
    size_t i = 0;

    out->n_edits = 0;
    out->text = (struct text){out->buf, 0};
    while (i < source.len) {
        uint32_t cp;
        size_t len = utf8_read_valid(source.data + i, &cp);

        if (is_safe(n, cp)) {
            safe = i;
            i += len;
            continue;
        }
        do {
            i += len;
            if (i == source.len)
                break;
            len = utf8_read_valid(source.data + i, &cp);
        } while (!is_safe(n, cp));
        if (do_stretch(out, source, safe, i, &copied))
            return -ENOMEM;
        safe = i;
    }
    if (!out->n_edits) {
        out->text = source;
        return 0;
    }
    if (!reserve_buf(out, source.len - copied))
        return -ENOMEM;
    memcpy(out->buf + out->text.len, source.data + copied, source.len - copied);
    out->text = (struct text){out->buf, out->text.len + source.len - copied};
    return 0;
}

/* Maps a position of the result to the source by the last edit that begins at or before `at`. A
 * position inside that edit becomes its start or its end. */
static size_t source_of(const struct nfc_text *t, size_t pos, size_t at, bool is_end)
{
    size_t low = 0, high = t->n_edits;
    const struct nfc_edit *edit;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (t->edits[mid].out_start <= at)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return pos;
    edit = &t->edits[low - 1];
    if (pos >= edit->out_end)
        return edit->in_end + (pos - edit->out_end);
    return is_end ? edit->in_end : edit->in_start;
}

void nfc_source_range(const struct nfc_text *t, size_t start, size_t end, size_t *in_start,
                      size_t *in_end)
{
    *in_start = source_of(t, start, start, false);
    *in_end = end ? source_of(t, end, end - 1, true) : 0;
}
