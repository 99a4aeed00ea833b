/* tokenizer_json.c - reads tokenizer.json: its vocabulary, merges and added tokens. A token is
 * spelled in the byte-level alphabet, one printable character a byte; or as SentencePiece has it.
 */
#include "engine/text/tokenizer_impl.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/json_util.h"
#include "engine/util/plant.h"
#include "engine/text/utf8.h"

struct reader {
    struct tokenizer *t;
    json_t *root, *vocab;
    int16_t byte_of[512]; /* the byte of a character of the alphabet, or -1 */
    size_t tokens_cap, bytes_cap, added_cap;
    struct err *e;
};

#define REFUSE(r, fmt, ...) err_set((r)->e, -ENOTSUP, "tokenizer.json: " fmt, ##__VA_ARGS__)

static int no_memory(struct reader *r)
{
    return err_set(r->e, -ENOMEM, "tokenizer.json: not enough memory");
}

/* Printable Latin-1 stands for itself; U+0100 and on stand for the 68 other bytes. */
static void fill_alphabet(struct reader *r)
{
    int next = 256;

    memset(r->byte_of, -1, sizeof(r->byte_of));
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
                         (byte >= 0xae && byte <= 0xff);

        r->byte_of[printable ? byte : next++] = (int16_t)byte;
    }
}

/* SentencePiece's: U+2581 is a space, and "<0x0A>" the byte. */
static size_t decode_characters(const char *s, size_t len, char *out)
{
    size_t n = 0;
    unsigned byte;
    int end = 0;

    if (len == 6 && sscanf(s, "<0x%2X>%n", &byte, &end) == 1 && end == 6) {
        *out = (char)byte;
        return 1;
    }
    for (size_t i = 0; i < len; i += len - i >= 3 && !memcmp(s + i, "\xe2\x96\x81", 3) ? 3 : 1)
        out[n++] = len - i >= 3 && !memcmp(s + i, "\xe2\x96\x81", 3) ? ' ' : s[i];
    return n;
}

/* Decodes a spelling to out [len]; one with characters outside the alphabet stands for itself.
 * Returns the bytes written. */
static size_t decode_spelling(const struct reader *r, const char *s, size_t len, char *out)
{
    size_t n = 0;

    if (r->t->by_character)
        return decode_characters(s, len, out);
    for (size_t i = 0; i < len;) {
        uint32_t cp;

        i += utf8_read_valid(s + i, &cp);
        if (cp >= 512 || r->byte_of[cp] < 0) {
            memcpy(out, s, len);
            return len;
        }
        out[n++] = (char)r->byte_of[cp];
    }
    return n;
}

/* The id of a spelling, or -1. The ids of the vocabulary have been checked. */
static int32_t find_id(const struct reader *r, const char *s, size_t len)
{
    const json_t *id = json_object_getn(r->vocab, s, len);

    return id ? (int32_t)json_integer_value(id) : -1;
}

/* ---- vocabulary, merges, added tokens */

static int read_id(struct reader *r, const json_t *v, int32_t *id, const char *where, const char *s)
{
    json_int_t n = json_integer_value(v);

    if (!json_is_integer(v))
        return REFUSE(r, "%s \"%.64s\": its id is %s, not a whole number", where, s,
                      json_type_name(v));
    if (n < 0 || n >= TOKENIZER_MAX_ID)
        return REFUSE(r, "%s \"%.64s\": id %" JSON_INTEGER_FORMAT " is not in 0 .. %d", where, s, n,
                      TOKENIZER_MAX_ID - 1);
    *id = (int32_t)n;
    return 0;
}

/* Makes room for the token of an id with at most so many bytes. */
static int reserve(struct reader *r, int32_t id, size_t n_bytes)
{
    struct tokenizer *t = r->t;

    if (!array_reserve(&t->tokens, &r->tokens_cap, (size_t)id + 1, sizeof(*t->tokens)) ||
        !array_reserve(&t->bytes, &r->bytes_cap, t->n_bytes + n_bytes, 1))
        return no_memory(r);
    for (; t->n_ids <= id; t->n_ids++)
        t->tokens[t->n_ids] = (struct token){0};
    return 0;
}

static int read_vocab(struct reader *r)
{
    struct tokenizer *t = r->t;
    const char *key;
    json_t *v;

    json_object_foreach(r->vocab, key, v)
    {
        size_t len = strlen(key);
        struct token *token;
        int32_t id;
        int rc = read_id(r, v, &id, "model.vocab", key);

        if (!rc)
            rc = reserve(r, id, len);
        if (rc)
            return rc;
        token = &t->tokens[id];
        if (!len)
            return REFUSE(r, "model.vocab: the token of id %d is empty", id);
        if (token->len && !PLANT(PLANT_DOUBLE_ID))
            return REFUSE(r, "model.vocab \"%.64s\": another token has id %d, too", key, id);
        token->at = (uint32_t)t->n_bytes;
        token->len = (uint32_t)decode_spelling(r, key, len, t->bytes + t->n_bytes);
        t->n_bytes += token->len;
    }
    return 0;
}

/* Each byte has a token. */
static int read_bytes(struct reader *r)
{
    for (int c = 0; c < 512; c++) {
        char spelled[8];
        size_t len;
        int32_t id;

        if (r->byte_of[c] < 0)
            continue;
        len = r->t->by_character ? (size_t)snprintf(spelled, sizeof(spelled), "<0x%02X>",
                                                    (unsigned char)r->byte_of[c])
                                 : utf8_write(spelled, (uint32_t)c);
        id = find_id(r, spelled, len);
        if (id < 0)
            return REFUSE(r, "model.vocab: has no token for the byte 0x%02x", r->byte_of[c]);
        r->t->byte_ids[r->byte_of[c]] = id;
    }
    return 0;
}

/* Of characters that stand for themselves in the alphabet. */
static bool is_printable(const char *s)
{
    while (*s >= '!' && *s <= '~')
        s++;
    return !*s;
}

/* Whether a token is looked up by its bytes: words, or characters. */
static bool is_looked_up(const struct reader *r, const char *key, const struct token *token)
{
    const char *bytes = r->t->bytes + token->at;
    uint32_t cp;

    if (!r->t->by_character) /* and spelled in the alphabet */
        return r->t->whole_words && (token->len < strlen(key) || is_printable(key));
    return utf8_read(bytes, token->len, &cp) == token->len && cp != UTF8_BROKEN &&
           !(token->len == 1 && strlen(key) == 6);
}

static int index_vocab(struct reader *r)
{
    struct tokenizer *t = r->t;
    uint32_t slots = 16, slot;
    const char *key;
    json_t *v;

    while (slots < 2 * json_object_size(r->vocab))
        slots *= 2;
    t->by_bytes = calloc(slots, sizeof(*t->by_bytes));
    if (!t->by_bytes)
        return no_memory(r);
    t->by_bytes_mask = slots - 1;
    json_object_foreach(r->vocab, key, v)
    {
        const int32_t id = (int32_t)json_integer_value(v);
        const struct token *token = &t->tokens[id];

        slot = tokenizer_slot(t, t->bytes + token->at, token->len);
        if (is_looked_up(r, key, token) && !t->by_bytes[slot])
            t->by_bytes[slot] = (uint32_t)id + 1;
    }
    return 0;
}

/* A merge is spelled "a b" or ["a", "b"]. */
static int read_merge(struct reader *r, const json_t *v, int32_t rank)
{
    struct text left = {0}, right = {0};
    struct bpe_merge merge = {.rank = rank};
    char joined[1024];

    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        const char *space = memchr(s, ' ', json_string_length(v));

        if (space) {
            left = (struct text){s, (size_t)(space - s)};
            right = (struct text){space + 1, json_string_length(v) - left.len - 1};
        }
    } else if (json_array_size(v) == 2) {
        const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);

        left = (struct text){json_string_value(a), json_string_length(a)};
        right = (struct text){json_string_value(b), json_string_length(b)};
    }
    if (!left.len || !right.len)
        return REFUSE(r, "model.merges[%d]: is not a pair of tokens", rank);
    merge.left = find_id(r, left.data, left.len);
    merge.right = find_id(r, right.data, right.len);
    if (merge.left < 0 || merge.right < 0)
        return REFUSE(r, "model.merges[%d]: \"%.64s\" is not in model.vocab", rank,
                      merge.left < 0 ? left.data : right.data);
    if (left.len + right.len > sizeof(joined))
        return REFUSE(r, "model.merges[%d]: is longer than %zu bytes", rank, sizeof(joined));
    memcpy(joined, left.data, left.len);
    memcpy(joined + left.len, right.data, right.len);
    merge.id = find_id(r, joined, left.len + right.len);
    if (merge.id < 0)
        return REFUSE(r, "model.merges[%d]: \"%.*s\" and \"%.64s\" merged are not in model.vocab",
                      rank, left.len < 64 ? (int)left.len : 64, left.data, right.data);
    bpe_add(&r->t->bpe, merge);
    return 0;
}

static int read_merges(struct reader *r, json_t *merges)
{
    size_t i;
    json_t *v;
    int rc;

    if (json_array_size(merges) > BPE_MAX_MERGES)
        return REFUSE(r, "model.merges: more than %d merges", BPE_MAX_MERGES);
    if (bpe_init(&r->t->bpe, json_array_size(merges)))
        return no_memory(r);
    json_array_foreach(merges, i, v)
    {
        rc = read_merge(r, v, (int32_t)i);
        if (rc)
            return rc;
    }
    return 0;
}

/* Room has been reserved. */
static uint32_t put_bytes(struct tokenizer *t, struct text text)
{
    uint32_t at = (uint32_t)t->n_bytes;

    memcpy(t->bytes + at, text.data, text.len);
    t->n_bytes += text.len;
    return at;
}

/* Whether text of these bytes becomes the id without merges. */
static bool is_found(const struct tokenizer *t, int32_t id, const struct token *bytes)
{
    return bytes->len &&
           t->by_bytes[tokenizer_slot(t, t->bytes + bytes->at, bytes->len)] == (uint32_t)id + 1;
}

static int read_added(struct reader *r, const json_t *v, size_t i)
{
    struct tokenizer *t = r->t;
    struct text content = {json_string_value(json_object_get(v, "content")),
                           json_string_length(json_object_get(v, "content"))};
    const bool normalized = json_is_true(json_object_get(v, "normalized"));
    struct nfc_text form = {.text = content}; /* in which it is matched */
    struct token *token, old;
    int32_t id, same;
    bool was_found;
    int rc;

    if (!content.len || content.len > TOKENIZER_MAX_SPECIAL)
        return REFUSE(r, "added_tokens[%zu].content: is not a string of 1 to %d bytes", i,
                      TOKENIZER_MAX_SPECIAL);
    if (normalized && (t->space_prefix == PREFIX_FIRST || t->space_prefix == PREFIX_EACH))
        return REFUSE(r, "added_tokens[%zu].normalized: true is not supported with Metaspace", i);
    if (normalized && t->by_character &&
        (json_is_true(json_object_get(v, "lstrip")) || json_is_true(json_object_get(v, "rstrip"))))
        return REFUSE(r,
                      "added_tokens[%zu]: lstrip and rstrip are not supported with normalized "
                      "and SentencePiece's spaces",
                      i);
    rc = read_id(r, json_object_get(v, "id"), &id, "added_tokens", content.data);
    if (rc)
        return rc;
    if ((normalized && tokenizer_normalize(t, PIECE_NEXT, content, NULL, 0, &form)) ||
        reserve(r, id, content.len + form.text.len) ||
        !array_reserve(&t->added, &r->added_cap, t->n_added + 1, sizeof(*t->added))) {
        nfc_text_deinit(&form);
        return no_memory(r);
    }
    t->added[t->n_added++] =
        (struct added){.at = put_bytes(t, form.text),
                       .len = (uint32_t)form.text.len,
                       .id = id,
                       .normalized = normalized,
                       .lstrip = json_is_true(json_object_get(v, "lstrip")),
                       .rstrip = json_is_true(json_object_get(v, "rstrip")),
                       .single_word = json_is_true(json_object_get(v, "single_word"))};
    t->n_normalized += normalized;
    nfc_text_deinit(&form);
    token = &t->tokens[id];
    same = find_id(r, content.data, content.len);
    if (same != id && (same >= 0 || token->len))
        return REFUSE(r, "added_tokens[%zu]: id %d or its text belongs to another token, too", i,
                      id);
    if (token->flags & TOKENIZER_ADDED)
        return REFUSE(r, "added_tokens[%zu]: \"%.64s\" is listed twice", i, content.data);
    old = *token;
    was_found = is_found(t, id, &old);
    *token = (struct token){.at = put_bytes(t, content),
                            .len = (uint32_t)content.len,
                            .flags = TOKENIZER_ADDED};
    if (normalized && t->by_character) { /* as the reference decodes it */
        token->at = t->added[t->n_added - 1].at;
        token->len = t->added[t->n_added - 1].len;
    } else if (t->by_character) {
        token->len = (uint32_t)decode_characters(content.data, content.len, t->bytes + token->at);
    }
    if (json_is_true(json_object_get(v, "special")))
        token->flags |= TOKENIZER_SPECIAL;
    if (was_found && !is_found(t, id, &old))
        return REFUSE(r, "added_tokens[%zu]: \"%.64s\" stands for other bytes in model.vocab", i,
                      content.data);
    return 0;
}

static int by_bytes(const void *a, const void *b, void *bytes)
{
    const struct added *x = a, *y = b;
    const int order =
        memcmp((char *)bytes + x->at, (char *)bytes + y->at, x->len < y->len ? x->len : y->len);

    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static int sort_added(struct reader *r)
{
    struct tokenizer *t = r->t;

    if (t->n_added)
        qsort_r(t->added, t->n_added, sizeof(*t->added), by_bytes, t->bytes);
    for (size_t i = 0; i < t->n_added; i++) {
        const struct added *a = &t->added[i];

        if (i && !by_bytes(a - 1, a, t->bytes))
            return REFUSE(r, "added_tokens: \"%.*s\" is listed twice",
                          a->len < 64 ? (int)a->len : 64, t->bytes + a->at);
        t->added_from[(unsigned char)t->bytes[a->at] + 1]++;
    }
    for (int c = 0; c < 256; c++)
        t->added_from[c + 1] += t->added_from[c];
    return 0;
}

static int check_affix(struct reader *r, const struct affix *a)
{
    for (size_t i = 0; i < a->n; i++)
        if (!tokenizer_token_bytes(r->t, a->ids[i]).len)
            return REFUSE(r, "post_processor.special_tokens: no token has id %d", a->ids[i]);
    return 0;
}

static int read_tokens(struct reader *r)
{
    json_t *added = json_object_get(r->root, "added_tokens"), *v;
    json_t *model = json_object_get(r->root, "model");
    size_t i;
    int rc;

    r->vocab = json_object_get(model, "vocab");
    if ((rc = read_vocab(r)) || (rc = read_bytes(r)) || (rc = index_vocab(r)) ||
        (rc = read_merges(r, json_object_get(model, "merges"))))
        return rc;
    json_array_foreach(added, i, v)
    {
        rc = read_added(r, v, i);
        if (rc)
            return rc;
    }
    rc = check_affix(r, &r->t->begin);
    if (!rc)
        rc = check_affix(r, &r->t->end);
    return rc ? rc : sort_added(r);
}

int tokenizer_parse(struct tokenizer **out, const char *json, size_t len, struct err *e)
{
    struct reader r = {.e = e};
    int rc;

    if (len > TOKENIZER_MAX_FILE)
        return err_set(e, -E2BIG, "tokenizer.json: larger than %d MiB", TOKENIZER_MAX_FILE >> 20);
    rc = json_object_parse(&r.root, "tokenizer.json", json, len, e);
    if (rc < 0)
        return rc;
    fill_alphabet(&r);
    r.t = calloc(1, sizeof(*r.t));
    rc = r.t ? tokenizer_read_parts(r.t, r.root, e) : no_memory(&r);
    if (!rc)
        rc = read_tokens(&r);
    json_decref(r.root);
    if (rc) {
        tokenizer_free(r.t);
        return rc;
    }
    *out = r.t;
    return 0;
}
