/* tokenizer_json.c - reads tokenizer.json and refuses every part that would lead to other ids than
 * the file describes. A token is spelled in the byte-level alphabet: one printable character a
 * byte. */
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

/* Decodes a spelling to out [len]; one with characters outside the alphabet stands for itself.
 * Returns the bytes written. */
static size_t decode_spelling(const struct reader *r, const char *s, size_t len, char *out)
{
    size_t n = 0;

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

/* ---- what a file may hold */

/* For json_match(). What is '*' is read elsewhere or has no effect on ids. */
static const char supported[] =
    "{'version': '1.0',"
    " 'truncation?': '*', 'padding?': '*'," /* how somebody last called the tokenizer */
    " 'normalizer': {'type': 'NFC'},"
    " 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': ["
    "  {'type': 'Split', 'pattern': {'Regex': 'a string'}, 'behavior': 'Isolated',"
    "   'invert': false},"
    "  {'type': 'ByteLevel', 'add_prefix_space': false, 'trim_offsets?': '*',"
    "   'use_regex': false}]},"
    " 'post_processor?': {'type': 'ByteLevel', 'add_prefix_space?': '*', 'trim_offsets?': '*',"
    "  'use_regex?': '*'},"
    " 'decoder': {'type': 'ByteLevel', 'add_prefix_space?': '*', 'trim_offsets?': '*',"
    "  'use_regex?': '*'},"
    " 'model': {'type': 'BPE', 'dropout?': '', 'unk_token?': '', 'continuing_subword_prefix?': '',"
    "  'end_of_word_suffix?': '', 'fuse_unk?': false, 'byte_fallback?': false,"
    "  'ignore_merges?': false, 'vocab': 'an object', 'merges': 'an array'},"
    " 'added_tokens?': [{'id?': '*', 'content?': '*', 'single_word': false, 'lstrip': false,"
    "  'rstrip': false, 'normalized': 'true or false', 'special': 'true or false'}, '...']}";

/* The supported parts, with the one pattern that pretokenize.c implements. */
static int check_supported(struct reader *r)
{
    const char *pattern = NULL;
    int rc = json_match(r->root, supported, "tokenizer.json: ", -ENOTSUP, r->e);

    if (rc)
        return rc;
    json_unpack(r->root, "{s{s[{s{ss}}]}}", "pre_tokenizer", "pretokenizers", "pattern", "Regex",
                &pattern);
    if (!pattern || strcmp(pattern, pretokenize_qwen2_pattern) != 0)
        return REFUSE(r,
                      "pre_tokenizer.pretokenizers[0].pattern.Regex: \"%.64s\" is not supported, "
                      "only \"%.160s\"",
                      pattern ? pattern : "", pretokenize_qwen2_pattern);
    return 0;
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
    for (int c = 0; c < 512; c++) {
        char spelled[4];
        int32_t id;

        if (r->byte_of[c] < 0)
            continue;
        id = find_id(r, spelled, utf8_write(spelled, (uint32_t)c));
        if (id < 0)
            return REFUSE(r, "model.vocab: has no token for the byte 0x%02x", r->byte_of[c]);
        t->bpe.byte_ids[r->byte_of[c]] = id;
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

static int read_added(struct reader *r, const json_t *v, size_t i)
{
    struct tokenizer *t = r->t;
    struct text content = {json_string_value(json_object_get(v, "content")),
                           json_string_length(json_object_get(v, "content"))};
    const bool normalized = json_is_true(json_object_get(v, "normalized"));
    struct nfc_text form = {.text = content}; /* in which it is matched */
    struct token *token;
    int32_t id, same;
    int rc;

    if (!content.len || content.len > TOKENIZER_MAX_SPECIAL)
        return REFUSE(r, "added_tokens[%zu].content: is not a string of 1 to %d bytes", i,
                      TOKENIZER_MAX_SPECIAL);
    rc = read_id(r, json_object_get(v, "id"), &id, "added_tokens", content.data);
    if (rc)
        return rc;
    if ((normalized && nfc_normalize(&t->nfc, content, NULL, 0, &form)) ||
        reserve(r, id, content.len + form.text.len) ||
        !array_reserve(&t->added, &r->added_cap, t->n_added + 1, sizeof(*t->added))) {
        nfc_text_deinit(&form);
        return no_memory(r);
    }
    t->added[t->n_added++] = (struct added){.at = put_bytes(t, form.text),
                                            .len = (uint32_t)form.text.len,
                                            .id = id,
                                            .normalized = normalized};
    t->n_normalized += normalized;
    nfc_text_deinit(&form);
    token = &t->tokens[id];
    same = find_id(r, content.data, content.len);
    if (same != id && (same >= 0 || token->len))
        return REFUSE(r, "added_tokens[%zu]: id %d or its text belongs to another token, too", i,
                      id);
    if (token->flags & TOKENIZER_ADDED)
        return REFUSE(r, "added_tokens[%zu]: \"%.64s\" is listed twice", i, content.data);
    *token = (struct token){.at = put_bytes(t, content),
                            .len = (uint32_t)content.len,
                            .flags = TOKENIZER_ADDED};
    if (json_is_true(json_object_get(v, "special")))
        token->flags |= TOKENIZER_SPECIAL;
    return 0;
}

static int by_first_byte(const void *a, const void *b, void *bytes)
{
    const struct added *x = a, *y = b;
    const unsigned char *s = (unsigned char *)bytes + x->at, *t = (unsigned char *)bytes + y->at;

    if (s[0] != t[0])
        return s[0] - t[0];
    return x->len != y->len ? (x->len < y->len) - (x->len > y->len) : memcmp(s, t, x->len);
}

static int sort_added(struct reader *r)
{
    struct tokenizer *t = r->t;

    if (t->n_added)
        qsort_r(t->added, t->n_added, sizeof(*t->added), by_first_byte, t->bytes);
    for (size_t i = 0; i < t->n_added; i++) {
        const struct added *a = &t->added[i];

        if (i && !by_first_byte(a - 1, a, t->bytes))
            return REFUSE(r, "added_tokens: \"%.*s\" is listed twice",
                          a->len < 64 ? (int)a->len : 64, t->bytes + a->at);
        t->added_from[(unsigned char)t->bytes[a->at] + 1]++;
    }
    for (int c = 0; c < 256; c++)
        t->added_from[c + 1] += t->added_from[c];
    return 0;
}

static int read_parts(struct reader *r)
{
    json_t *added = json_object_get(r->root, "added_tokens"), *model, *v;
    size_t i;
    int rc = check_supported(r);

    if (rc)
        return rc;
    nfc_init(&r->t->nfc);
    model = json_object_get(r->root, "model");
    r->vocab = json_object_get(model, "vocab");
    rc = read_vocab(r);
    if (!rc)
        rc = read_merges(r, json_object_get(model, "merges"));
    json_array_foreach(added, i, v)
    {
        if (rc)
            break;
        rc = read_added(r, v, i);
    }
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
    rc = r.t ? read_parts(&r) : no_memory(&r);
    json_decref(r.root);
    if (rc) {
        tokenizer_free(r.t);
        return rc;
    }
    *out = r.t;
    return 0;
}
