/* tokenizer.c - see tokenizer.h. */
#include "engine/text/tokenizer_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/util/checked.h"
#include "engine/util/file.h"
#include "engine/util/must.h"
#include "engine/text/text_stream.h"
#include "engine/text/utf8.h"

/* A call of tokenizer_encode. */
struct encoder {
    const struct tokenizer *t;
    struct nfc_text normal;    /* of one segment */
    struct text_range *ranges; /* in it */
    size_t ranges_cap;
    struct bpe_work work;
    struct token_list *out;
};

/* The added tokens in a text, inside one of the ranges each, from left to right. */
struct matches {
    const struct tokenizer *t;
    bool normalized;        /* whether the text, and so the tokens, are */
    enum piece_place place; /* of the text's beginning */
    struct text text;
    const struct text_range *ranges;
    size_t n_ranges; /* the ranges that are left */
    size_t start, end;
    int32_t id;      /* of bytes [start, end), the last match */
    size_t searched; /* as far as here; before end by the white space that the match has taken */
    size_t spaces;   /* where the last white space that a match took ends: from `searched` on, all
                      * before is white space */
};

int tokenizer_load(struct tokenizer **out, const char *folder, struct err *e)
{
    char *json;
    size_t len;
    int r = file_read_folder(&json, &len, folder, "tokenizer.json", TOKENIZER_MAX_FILE, e);

    if (r)
        return r;
    r = tokenizer_parse(out, json, len, e);
    free(json);
    return r;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_deinit(&t->bpe);
    free(t->by_bytes);
    free(t->tokens);
    free(t->added);
    free(t->bytes);
    free(t);
}

static int reserve_ids(struct token_list *list, size_t more)
{
    return array_reserve(&list->ids, &list->cap, list->n + more, sizeof(*list->ids)) ? 0 : -ENOMEM;
}

static int push_id(struct encoder *enc, int32_t id)
{
    if (reserve_ids(enc->out, 1))
        return -ENOMEM;
    enc->out->ids[enc->out->n++] = id;
    return 0;
}

uint32_t tokenizer_slot(const struct tokenizer *t, const char *bytes, size_t len)
{
    uint32_t slot = (uint32_t)XXH3_64bits(bytes, len) & t->by_bytes_mask;

    for (; t->by_bytes[slot]; slot = (slot + 1) & t->by_bytes_mask) {
        const struct token *token = &t->tokens[t->by_bytes[slot] - 1];

        if (token->len == len && memcmp(t->bytes + token->at, bytes, len) == 0)
            break;
    }
    return slot;
}

/* The id of the vocabulary's token of these bytes, or -1. */
static int32_t find(const struct tokenizer *t, const char *bytes, size_t len)
{
    return (int32_t)t->by_bytes[tokenizer_slot(t, bytes, len)] - 1;
}

/* The symbols of a word, from which merging begins: at most n. */
static size_t take_symbols(const struct tokenizer *t, const char *p, size_t n, int32_t *ids)
{
    size_t n_ids = 0;

    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        int32_t id = -1;

        len = t->by_character ? utf8_read_valid(p + i, &cp) : 1;
        if (t->by_character)
            id = find(t, p + i, len);
        if (id >= 0)
            ids[n_ids++] = id;
        for (size_t k = 0; id < 0 && k < len; k++)
            ids[n_ids++] = t->byte_ids[(unsigned char)p[i + k]];
    }
    return n_ids;
}

static int encode_word(struct encoder *enc, const char *p, size_t n)
{
    int32_t *ids, id = enc->t->whole_words ? find(enc->t, p, n) : -1;
    size_t n_ids;

    if (id >= 0)
        return push_id(enc, id);
    if (reserve_ids(enc->out, n))
        return -ENOMEM;
    ids = enc->out->ids + enc->out->n;
    n_ids = take_symbols(enc->t, p, n, ids);
    if (bpe_encode(&enc->t->bpe, &enc->work, ids, &n_ids))
        return -ENOMEM;
    enc->out->n += n_ids;
    return 0;
}

/* Encodes normalized text without added tokens. */
static int encode_plain(struct encoder *enc, const char *p, size_t n)
{
    int r = 0;

    while (n && !r) {
        size_t len = pretokenize_next(enc->t->pretokenizer, p, n);

        r = encode_word(enc, p, len);
        p += len;
        n -= len;
    }
    return r;
}

/* Narrows [*lo, *hi) of the added tokens to those whose byte at `depth` is c. */
static void narrow(const struct tokenizer *t, size_t depth, unsigned char c, uint32_t *lo,
                   uint32_t *hi)
{
    uint32_t bounds[2];

    for (int above = 0; above < 2; above++) { /* the first that is not less, that is more */
        uint32_t from = *lo, to = *hi;

        while (from < to) {
            const uint32_t mid = from + (to - from) / 2;
            const unsigned char its = (unsigned char)t->bytes[t->added[mid].at + depth];

            if (its < c || (above && its == c))
                from = mid + 1;
            else
                to = mid;
        }
        bounds[above] = from;
    }
    *lo = bounds[0];
    *hi = bounds[1];
}

/* The longest added token at p[0..n), n > 0, or NULL: byte by byte, those that begin alike are
 * halved again and again. */
static const struct added *find_added(const struct matches *m, const char *p, size_t n)
{
    const struct tokenizer *t = m->t;
    uint32_t lo = t->added_from[(unsigned char)p[0]], hi = t->added_from[(unsigned char)p[0] + 1];
    const struct added *longest = NULL;

    for (size_t depth = 1; lo < hi; depth++) {
        for (; lo < hi && t->added[lo].len == depth; lo++)
            if (t->added[lo].normalized == m->normalized)
                longest = &t->added[lo];
        if (depth == n)
            break;
        narrow(t, depth, (unsigned char)p[depth], &lo, &hi);
    }
    return longest;
}

static bool is_space(struct text text, size_t at, size_t *len)
{
    uint32_t cp;

    *len = utf8_read(text.data + at, text.len - at, &cp);
    return *len && cp != UTF8_BROKEN && pretokenize_is_space(cp);
}

static bool is_word_at(struct text text, size_t at)
{
    uint32_t cp;

    return utf8_read(text.data + at, text.len - at, &cp) && pretokenize_is_word(cp);
}

/* Whether a word's character is just before or after bytes [start, end). */
static bool is_in_word(struct text text, size_t start, size_t end)
{
    return (start > 0 && is_word_at(text, start - utf8_last(text.data, start))) ||
           (end < text.len && is_word_at(text, end));
}

/* Takes the white space around a match that its token wants, back to `from` at most: what is before
 * that has been looked at. False: nothing is left of a match that began there. */
static bool strip_around(struct matches *m, const struct added *a, size_t from)
{
    size_t len;

    if (a->lstrip && m->start < from)
        m->start = from;
    if (a->rstrip && m->end < m->spaces) /* so none is read twice */
        m->end = m->spaces;
    while (a->lstrip && m->start > from) {
        const size_t last = m->start - utf8_last(m->text.data, m->start);

        if (last < from || !is_space(m->text, last, &len))
            break;
        m->start = last;
    }
    while (a->rstrip && m->end < m->text.len && is_space(m->text, m->end, &len))
        m->end += len;
    if (a->rstrip)
        m->spaces = m->end;
    return m->start < m->end;
}

/* As the reference does, a token that begins with the white space that the last match has taken is
 * matched there all the same: then start is before the last end. */
static bool next_match(struct matches *m)
{
    const size_t from = m->end;
    size_t at = m->searched;

    for (; m->n_ranges; m->ranges++, m->n_ranges--) {
        if (at < m->ranges->start)
            at = m->ranges->start;
        for (; at < m->ranges->end; at++) {
            const struct added *a = find_added(m, m->text.data + at, m->ranges->end - at);

            if (!a)
                continue;
            if (a->single_word && is_in_word(m->text, at, at + a->len)) {
                at += a->len - 1; /* nor does another token match there */
                continue;
            }
            m->id = a->id;
            m->start = at;
            m->end = m->searched = at + a->len;
            if (strip_around(m, a, from))
                return true;
            m->end = from;
            at = m->searched - 1;
        }
    }
    return false;
}

/* Encodes bytes [start, end) of the text of m, if any, in which no token matches before
 * normalization. */
static int encode_segment(struct encoder *enc, const struct matches *m, size_t start, size_t end)
{
    struct matches normalized = {.t = enc->t, .normalized = true};
    struct text source = {m->text.data + start, end - start};
    size_t done = 0, n = 0;
    int r;

    if (start >= end)
        return 0;
    for (size_t i = 0; enc->t->n_normalized && i < m->n_ranges && m->ranges[i].start < end; i++) {
        const struct text_range range = m->ranges[i];

        if (!array_reserve(&enc->ranges, &enc->ranges_cap, n + 1, sizeof(*enc->ranges)))
            return -ENOMEM;
        if (range.end > start)
            enc->ranges[n++] = (struct text_range){range.start > start ? range.start - start : 0,
                                                   (range.end < end ? range.end : end) - start};
    }
    r = tokenizer_normalize(enc->t, start == 0 ? m->place : PIECE_NEXT, source, enc->ranges, n,
                            &enc->normal);
    if (r)
        return r;
    normalized.text = enc->normal.text;
    normalized.ranges = enc->ranges;
    normalized.n_ranges = n;
    while (next_match(&normalized)) {
        if (done < normalized.start)
            r = encode_plain(enc, normalized.text.data + done, normalized.start - done);
        if (!r)
            r = push_id(enc, normalized.id);
        if (r)
            return r;
        done = normalized.end;
    }
    return encode_plain(enc, normalized.text.data + done, normalized.text.len - done);
}

static int encode(const struct tokenizer *t, enum piece_place place, struct text text,
                  const struct text_range *ranges, size_t n_ranges, struct token_list *out)
{
    struct encoder enc = {.t = t, .out = out};
    struct matches raw = {
        .t = t, .place = place, .text = text, .ranges = ranges, .n_ranges = n_ranges};
    size_t n = out->n, done = 0;
    int r = 0;

    if (text.len > TOKENIZER_MAX_BYTES)
        return -E2BIG;
    for (size_t i = 0, last = 0; i < n_ranges; last = ranges[i++].end)
        must(ranges[i].start >= last && ranges[i].end >= ranges[i].start &&
             ranges[i].end <= text.len);
    if (!text.len)
        return 0;
    for (bool more = true; more && !r; done = raw.end) {
        struct matches rest = raw;

        more = next_match(&raw);
        r = encode_segment(&enc, &rest, done, more ? raw.start : text.len);
        if (!r && more)
            r = push_id(&enc, raw.id);
    }
    if (r)
        out->n = n;
    free(enc.ranges);
    nfc_text_deinit(&enc.normal);
    bpe_work_deinit(&enc.work);
    return r;
}

int tokenizer_encode(const struct tokenizer *t, struct text text, const struct text_range *ranges,
                     size_t n_ranges, struct token_list *out)
{
    return encode(t, PIECE_FIRST, text, ranges, n_ranges, out);
}

int tokenizer_encode_after(const struct tokenizer *t, int32_t id, struct text text,
                           const struct text_range *ranges, size_t n_ranges, struct token_list *out)
{
    const enum piece_place place = tokenizer_is_special(t, id) ? PIECE_NEXT : PIECE_ON;

    return encode(t, place, text, ranges, n_ranges, out);
}

int tokenizer_encode_all(const struct tokenizer *t, struct text text, bool special,
                         struct token_list *out)
{
    struct text_range all = {0, text.len};

    return tokenizer_encode(t, text, &all, special ? 1 : 0, out);
}

size_t tokenizer_begin(const struct tokenizer *t, const int32_t **ids)
{
    *ids = t->begin.ids;
    return t->begin.n;
}

size_t tokenizer_end(const struct tokenizer *t, const int32_t **ids)
{
    *ids = t->end.ids;
    return t->end.n;
}

struct text tokenizer_token_bytes(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_ids)
        return (struct text){0};
    return (struct text){t->bytes + t->tokens[id].at, t->tokens[id].len};
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && (t->tokens[id].flags & TOKENIZER_SPECIAL);
}

int32_t tokenizer_n_ids(const struct tokenizer *t)
{
    return t->n_ids;
}

int tokenizer_check_vocab(const struct tokenizer *t, int32_t vocab_size, struct err *e)
{
    struct text last = tokenizer_token_bytes(t, t->n_ids - 1);

    if (t->n_ids <= vocab_size)
        return 0;
    return err_set(e, -EINVAL,
                   "tokenizer.json: id %d (\"%.*s\") is not in 0 .. %d, the vocabulary of "
                   "config.json: the two belong to different models",
                   t->n_ids - 1, last.len < 64 ? (int)last.len : 64, last.data, vocab_size - 1);
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **out, size_t *out_len)
{
    struct text_stream *stream;
    char *text = NULL;
    size_t len = 0, cap = 0;
    int r = text_stream_new(&stream, t, NULL, 0, skip_special);

    if (r)
        return r;
    for (size_t i = 0; i <= n && !r; i++) {
        struct text piece = {0};

        if (i < n && ids[i] < 0)
            r = -EINVAL;
        else
            r = i < n ? text_stream_push(stream, ids[i], &piece)
                      : text_stream_finish(stream, &piece);
        if (!r && !array_reserve(&text, &cap, len + piece.len + 1, 1))
            r = -ENOMEM;
        if (!r && piece.len)
            memcpy(text + len, piece.data, piece.len);
        len += piece.len;
    }
    text_stream_free(stream);
    if (r) {
        free(text);
        return r;
    }
    if (t->strip_space && len && text[0] == ' ')
        memmove(text, text + 1, --len);
    text[len] = '\0';
    *out = text;
    *out_len = len;
    return 0;
}
