/* transcript.c - see transcript.h. */
#include "engine/text/transcript.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

void transcript_deinit(struct transcript *t)
{
    free(t->ids.ids);
    free(t->pieces);
    *t = (struct transcript){.pieces = NULL};
}

void transcript_prompt_deinit(struct transcript_prompt *p)
{
    free(p->rest.ids);
    *p = (struct transcript_prompt){.said = NULL};
}

static bool reserve(struct transcript *t, size_t n_ids, size_t n_pieces)
{
    return array_reserve(&t->ids.ids, &t->ids.cap, n_ids, sizeof(*t->ids.ids)) &&
           array_reserve(&t->pieces, &t->cap, n_pieces, sizeof(*t->pieces));
}

int transcript_copy(struct transcript *out, const struct transcript *from, size_t n)
{
    struct transcript copy = {.n_pieces = 0};

    while (copy.n_pieces < from->n_pieces && copy.ids.n < n)
        copy.ids.n += from->pieces[copy.n_pieces++].n_ids;
    if (!reserve(&copy, copy.ids.n, copy.n_pieces)) {
        transcript_deinit(&copy);
        return -ENOMEM;
    }
    if (copy.n_pieces) {
        memcpy(copy.ids.ids, from->ids.ids, copy.ids.n * sizeof(*copy.ids.ids));
        memcpy(copy.pieces, from->pieces, copy.n_pieces * sizeof(*copy.pieces));
    }
    transcript_cut(&copy, n);
    *out = copy;
    return 0;
}

size_t transcript_bytes(const struct transcript *t)
{
    return t->ids.n * sizeof(*t->ids.ids) + t->n_pieces * sizeof(*t->pieces);
}

void transcript_cut(struct transcript *t, size_t n)
{
    size_t at = 0, i = 0;

    for (; i < t->n_pieces && t->pieces[i].n_ids <= n - at; i++)
        at += t->pieces[i].n_ids;
    if (i < t->n_pieces && t->pieces[i].sampled && n > at) {
        t->pieces[i++].n_ids = n - at;
        at = n;
    }
    t->n_pieces = i;
    t->ids.n = at;
}

/* ---- what a rendering agrees with */

/* Where a comparison is in a rendering. */
struct cursor {
    const struct jinja_text *text;
    size_t at;    /* of its bytes */
    size_t range; /* the first of the template's ranges that ends behind `at` */
};

/* The hash of the next n bytes, and of the template's ranges in them; moves behind them. */
static XXH128_hash_t hash_of(struct cursor *c, size_t n)
{
    const size_t start = c->at, end = start + n;
    struct {
        XXH128_hash_t before;
        uint64_t start, end;
    } link = {.before = XXH3_128bits(c->text->data + start, n)};

    for (; c->range < c->text->n_ranges; c->range++) {
        const struct text_range *r = &c->text->ranges[c->range];

        if (r->start >= end)
            break;
        if (r->end > start) {
            link.start = r->start > start ? r->start - start : 0;
            link.end = (r->end < end ? r->end : end) - start;
            link.before = XXH3_128bits(&link, sizeof(link));
        }
        if (r->end > end)
            break;
    }
    c->at = end;
    return link.before;
}

static bool keeps_prompt(struct cursor *c, const struct transcript_piece *p)
{
    struct cursor behind = *c;

    if (p->n_bytes > c->text->len - c->at ||
        !XXH128_isEqual(hash_of(&behind, (size_t)p->n_bytes), p->hash))
        return false;
    *c = behind;
    return true;
}

/* How many ids of an answer the text goes on with. */
static size_t keep_answer(struct cursor *c, const struct tokenizer *tokenizer, const int32_t *ids,
                          size_t n)
{
    size_t i = 0;

    for (; i < n; i++) {
        const struct text bytes = tokenizer_token_bytes(tokenizer, ids[i]);

        if (bytes.len > c->text->len - c->at ||
            (bytes.len && memcmp(bytes.data, c->text->data + c->at, bytes.len) != 0))
            break;
        c->at += bytes.len;
    }
    return i;
}

static size_t keep(struct cursor *c, const struct transcript *t, const struct tokenizer *tokenizer)
{
    size_t n = 0;

    for (size_t i = 0; i < t->n_pieces; i++) {
        const struct transcript_piece *p = &t->pieces[i];
        size_t kept;

        if (p->sampled)
            kept = keep_answer(c, tokenizer, t->ids.ids + n, p->n_ids);
        else
            kept = keeps_prompt(c, p) ? p->n_ids : 0;
        n += kept;
        if (kept < p->n_ids)
            break;
    }
    return n;
}

/* Encodes the rest of a rendering, behind what was kept. */
static int encode_rest(struct transcript_prompt *p, const struct tokenizer *tokenizer,
                       const struct cursor *c)
{
    const struct jinja_text *text = c->text;
    const struct text rest = {text->data + c->at, text->len - c->at};
    struct text_range *ranges = calloc(text->n_ranges + 1, sizeof(*ranges));
    size_t n = 0;
    int r;

    if (!ranges)
        return -ENOMEM;
    for (size_t i = 0; i < text->n_ranges; i++) {
        const struct text_range *own = &text->ranges[i];

        if (own->end > c->at)
            ranges[n++] =
                (struct text_range){own->start > c->at ? own->start - c->at : 0, own->end - c->at};
    }
    r = p->n_kept ? tokenizer_encode_after(tokenizer, p->said->ids.ids[p->n_kept - 1], rest, ranges,
                                           n, &p->rest)
                  : tokenizer_encode(tokenizer, rest, ranges, n, &p->rest);
    free(ranges);
    return r;
}

int transcript_prompt(struct transcript_prompt *p, const struct tokenizer *tokenizer,
                      const struct jinja_text *rendering)
{
    struct cursor c = {.text = rendering};
    int r;

    p->n_kept = keep(&c, p->said, tokenizer);
    r = encode_rest(p, tokenizer, &c);
    if (r < 0)
        return r;
    p->rest_bytes = rendering->len - c.at;
    p->rest_hash = hash_of(&c, rendering->len - c.at);
    return 0;
}

/* ---- a turn */

static void add_piece(struct transcript *t, const int32_t *ids, struct transcript_piece piece)
{
    if (piece.n_ids == 0)
        return;
    memcpy(t->ids.ids + t->ids.n, ids, piece.n_ids * sizeof(*ids));
    t->ids.n += piece.n_ids;
    t->pieces[t->n_pieces++] = piece;
}

int transcript_add(struct transcript *t, const struct transcript_prompt *p, const int32_t *answer,
                   size_t n_answer)
{
    must(p->said == t && p->n_kept <= t->ids.n);
    if (!reserve(t, p->n_kept + p->rest.n + n_answer, t->n_pieces + 2))
        return -ENOMEM;
    transcript_cut(t, p->n_kept);
    must(t->ids.n == p->n_kept);
    add_piece(t, p->rest.ids,
              (struct transcript_piece){.n_ids = p->rest.n,
                                        .n_bytes = p->rest_bytes,
                                        .hash = p->rest_hash});
    add_piece(t, answer, (struct transcript_piece){.n_ids = n_answer, .sampled = true});
    return 0;
}
