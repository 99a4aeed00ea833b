/* tokenizer.c - see tokenizer.h. */
#include "engine/text/tokenizer_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/array.h"
#include "engine/util/file.h"
#include "engine/util/must.h"
#include "engine/text/pretokenize.h"
#include "engine/text/utf8.h"

/* A call of tokenizer_encode. */
struct encoder {
    const struct tokenizer *t;
    struct text text;                /* valid UTF-8 */
    const struct text_range *ranges; /* in bytes of it */
    size_t n_ranges;
    size_t next_range; /* the first that ends behind the current position */
    char *repaired;    /* the text, if the caller's is not valid */
    struct text_range *moved;
    struct nfc_text normal;
    struct bpe_work work;
    struct token_list *out;
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
    trie_deinit(&t->raw);
    trie_deinit(&t->normalized);
    bpe_deinit(&t->bpe);
    nfc_free(t->nfc);
    free(t->tokens);
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

/* Encodes normalized text without added tokens. */
static int encode_plain(struct encoder *enc, const char *p, size_t n)
{
    while (n) {
        size_t len = pretokenize_next(p, n), n_ids;
        int r = reserve_ids(enc->out, len);

        if (!r)
            r = bpe_encode(&enc->t->bpe, &enc->work, p, len, enc->out->ids + enc->out->n, &n_ids);
        if (r)
            return r;
        enc->out->n += n_ids;
        p += len;
        n -= len;
    }
    return 0;
}

/* The end of the range that contains byte pos of the text, or pos if none does. Calls come in
 * ascending order of pos. */
static size_t range_end(struct encoder *enc, size_t pos)
{
    while (enc->next_range < enc->n_ranges && enc->ranges[enc->next_range].end <= pos)
        enc->next_range++;
    if (enc->next_range == enc->n_ranges || enc->ranges[enc->next_range].start > pos)
        return pos;
    return enc->ranges[enc->next_range].end;
}

/* The length of an added token at byte `at` of a normalized segment, or 0; the segment begins at
 * byte start of the text. */
static size_t match_normalized(struct encoder *enc, size_t start, size_t at, int32_t *id)
{
    struct text text = enc->normal.text;
    size_t limit = text.len - at;

    for (;;) {
        size_t from, to;
        size_t len = trie_longest(&enc->t->normalized, text.data + at, limit, id);

        if (!len)
            return 0;
        nfc_source_range(&enc->normal, at, at + len, &from, &to);
        if (start + to <= range_end(enc, start + from))
            return len;
        limit = len - 1;
    }
}

/* Encodes bytes [start, end), which contain no token matched before normalization. */
static int encode_segment(struct encoder *enc, size_t start, size_t end)
{
    struct text source = {enc->text.data + start, end - start};
    size_t at = 0, done = 0;
    int r = nfc_normalize(enc->t->nfc, source, &enc->normal);

    if (r)
        return r;
    if (!enc->n_ranges || !enc->t->normalized.n)
        at = enc->normal.text.len;
    while (at < enc->normal.text.len) {
        unsigned char byte = (unsigned char)enc->normal.text.data[at];
        int32_t id;
        size_t len = enc->t->normalized.roots[byte] ? match_normalized(enc, start, at, &id) : 0;

        if (!len) {
            at++;
            continue;
        }
        r = encode_plain(enc, enc->normal.text.data + done, at - done);
        if (!r)
            r = push_id(enc, id);
        if (r)
            return r;
        at += len;
        done = at;
    }
    return encode_plain(enc, enc->normal.text.data + done, enc->normal.text.len - done);
}

/* Finds the next added token that is matched before normalization from byte `at` on, as bytes
 * [*start, *end). */
static bool find_raw(const struct encoder *enc, size_t *range, size_t at, size_t *start,
                     size_t *end, int32_t *id)
{
    const struct trie *raw = &enc->t->raw;

    for (; *range < enc->n_ranges; ++*range) {
        size_t last = enc->ranges[*range].end;

        if (at < enc->ranges[*range].start)
            at = enc->ranges[*range].start;
        for (; at < last; at++) {
            size_t len = 0;

            if (raw->roots[(unsigned char)enc->text.data[at]])
                len = trie_longest(raw, enc->text.data + at, last - at, id);
            if (len) {
                *start = at;
                *end = at + len;
                return true;
            }
        }
    }
    return false;
}

static int encode_text(struct encoder *enc)
{
    size_t done = 0, start, end, range = 0;
    int32_t id;
    int r;

    while (find_raw(enc, &range, done, &start, &end, &id)) {
        r = encode_segment(enc, done, start);
        if (!r)
            r = push_id(enc, id);
        if (r)
            return r;
        done = end;
    }
    return encode_segment(enc, done, enc->text.len);
}

/* Replaces invalid bytes by U+FFFD and adapts the ranges. A range that begins or ends inside a
 * character loses that character. */
static int repair(struct encoder *enc)
{
    struct text text = enc->text;
    size_t start = 0, end = 0, to = 0; /* the next range whose start or end is to be adapted */

    enc->repaired = malloc(3 * text.len);
    enc->moved = calloc(enc->n_ranges + 1, sizeof(*enc->moved));
    if (!enc->repaired || !enc->moved)
        return -ENOMEM;
    for (size_t from = 0, len; from < text.len; from += len) {
        uint32_t cp;

        len = utf8_read(text.data + from, text.len - from, &cp);
        if (!len)
            len = text.len - from;
        for (; start < enc->n_ranges && enc->ranges[start].start <= from; start++)
            enc->moved[start].start = to;
        for (; end < start && enc->ranges[end].end < from + len; end++)
            enc->moved[end].end = to;
        to += utf8_repair(enc->repaired + to, (struct text){text.data + from, len});
    }
    for (; start < enc->n_ranges; start++)
        enc->moved[start].start = to;
    for (; end < enc->n_ranges; end++)
        enc->moved[end].end = to;
    enc->text = (struct text){enc->repaired, to};
    enc->ranges = enc->moved;
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, struct text text, const struct text_range *ranges,
                     size_t n_ranges, struct token_list *out)
{
    struct encoder enc = {.t = t, .text = text, .ranges = ranges, .n_ranges = n_ranges, .out = out};
    size_t n = out->n, last = 0;
    int r = 0;

    if (text.len > TOKENIZER_MAX_BYTES)
        return -E2BIG;
    for (size_t i = 0; i < n_ranges; i++) {
        must(ranges[i].start >= last && ranges[i].end >= ranges[i].start);
        last = ranges[i].end;
    }
    must(last <= text.len);
    if (!text.len)
        return 0;
    if (!utf8_is_valid(text))
        r = repair(&enc);
    if (!r)
        r = encode_text(&enc);
    if (r)
        out->n = n;
    free(enc.repaired);
    free(enc.moved);
    nfc_text_deinit(&enc.normal);
    bpe_work_deinit(&enc.work);
    return r;
}

int tokenizer_encode_all(const struct tokenizer *t, struct text text, bool special,
                         struct token_list *out)
{
    struct text_range all = {0, text.len};

    return tokenizer_encode(t, text, &all, special ? 1 : 0, out);
}

static const struct token *get_token(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids ? &t->tokens[id] : NULL;
}

struct text tokenizer_token_bytes(const struct tokenizer *t, int32_t id)
{
    const struct token *token = get_token(t, id);

    if (!token)
        return (struct text){0};
    return (struct text){t->bytes + token->at, token->len};
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct token *token = get_token(t, id);

    return token && (token->flags & TOKENIZER_SPECIAL);
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
                   "config.json: the two are of different models",
                   t->n_ids - 1, last.len < 64 ? (int)last.len : 64, last.data, vocab_size - 1);
}

int32_t tokenizer_special_id(const struct tokenizer *t, const char *content)
{
    size_t len = strlen(content);
    int32_t id;

    if (len && trie_longest(&t->raw, content, len, &id) == len)
        return id;
    if (len && trie_longest(&t->normalized, content, len, &id) == len)
        return id;
    return -1;
}

/* Concatenates the bytes of all ids. */
static int join(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                struct text *out)
{
    size_t len = 0;
    char *buf;

    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0)
            return -EINVAL;
        if (__builtin_add_overflow(len, tokenizer_token_bytes(t, ids[i]).len, &len))
            return -ENOMEM;
    }
    buf = len < SIZE_MAX / 4 ? malloc(len + 1) : NULL;
    if (!buf)
        return -ENOMEM;
    len = 0;
    for (size_t i = 0; i < n; i++) {
        struct text bytes = tokenizer_token_bytes(t, ids[i]);

        if (!bytes.len || (skip_special && tokenizer_is_special(t, ids[i])))
            continue;
        memcpy(buf + len, bytes.data, bytes.len);
        len += bytes.len;
    }
    *out = (struct text){buf, len};
    return 0;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **out, size_t *out_len)
{
    struct text bytes;
    char *text;
    size_t len;
    int r = join(t, ids, n, skip_special, &bytes);

    if (r)
        return r;
    if (utf8_is_valid(bytes)) {
        text = (char *)bytes.data;
        len = bytes.len;
    } else {
        text = malloc(3 * bytes.len + 1);
        len = text ? utf8_repair(text, bytes) : 0;
        free((char *)bytes.data);
    }
    if (!text)
        return -ENOMEM;
    text[len] = '\0';
    *out = text;
    *out_len = len;
    return 0;
}
