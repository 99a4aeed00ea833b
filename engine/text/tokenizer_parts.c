/* tokenizer_parts.c - what tokenizer.json says beside its tokens: each part is of a kind that is
 * known by its type, and any that would lead to other ids than the file describes is refused.
 * Patterns are json_match()'s; what is '*' there is read elsewhere or has no effect on ids. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/tokenizer_impl.h"
#include "engine/util/json_util.h"

struct parts {
    struct tokenizer *t;
    const json_t *root;
    struct err *e;
};

#define REFUSE(p, fmt, ...) err_set((p)->e, -ENOTSUP, "tokenizer.json: " fmt, ##__VA_ARGS__)

static const char file_pattern[] =
    "{'version': '1.0',"
    " 'truncation?': '*', 'padding?': '*'," /* how somebody last called the tokenizer */
    " 'normalizer?': '*', 'pre_tokenizer?': '*', 'post_processor?': '*', 'decoder': '*',"
    " 'model': '*',"
    " 'added_tokens?': [{'id?': '*', 'content?': '*', 'single_word': 'true or false',"
    "  'lstrip': 'true or false', 'rstrip': 'true or false', 'normalized': 'true or false',"
    "  'special': 'true or false'}, '...']}";

struct part_kind {
    const char *type; /* NULL: the part is null */
    const char *pattern;
};

#define TO_MARK "{'type': 'Replace', 'pattern': {'String': ' '}, 'content': '\xe2\x96\x81'}"
#define BYTES   "'add_prefix_space?': '*', 'trim_offsets?': '*', 'use_regex?': '*'}"

enum { NORMALIZER_NULL, NORMALIZER_NFC, NORMALIZER_REPLACE, NORMALIZER_SEQUENCE, N_NORMALIZERS };
static const struct part_kind normalizers[] = {
    [NORMALIZER_NULL] = {NULL, NULL},
    [NORMALIZER_NFC] = {"NFC", "{'type': 'NFC'}"},
    [NORMALIZER_REPLACE] = {"Replace", TO_MARK},
    [NORMALIZER_SEQUENCE] = {"Sequence", "{'type': 'Sequence', 'normalizers': [{'type': 'Prepend',"
                                         " 'prepend': '\xe2\x96\x81'}, " TO_MARK "]}"},
};

enum { SPLIT_NULL, SPLIT_BYTE_LEVEL, SPLIT_SEQUENCE, SPLIT_METASPACE, N_SPLITS };
static const struct part_kind pre_tokenizers[] = {
    [SPLIT_NULL] = {NULL, NULL},
    [SPLIT_BYTE_LEVEL] = {"ByteLevel", "{'type': 'ByteLevel', 'add_prefix_space': false,"
                                       " 'trim_offsets?': '*', 'use_regex?': 'true or false'}"},
    [SPLIT_SEQUENCE] = {"Sequence",
                        "{'type': 'Sequence', 'pretokenizers': [{'type': 'Split',"
                        " 'pattern': {'Regex': 'a string'}, 'behavior': 'Isolated',"
                        " 'invert': false}, {'type': 'ByteLevel', 'add_prefix_space': false,"
                        " 'trim_offsets?': '*', 'use_regex': false}]}"},
    [SPLIT_METASPACE] = {"Metaspace", "{'type': 'Metaspace', 'replacement': '\xe2\x96\x81',"
                                      " 'prepend_scheme': 'a string', 'split': false}"},
};

enum { DECODER_BYTE_LEVEL, DECODER_SEQUENCE, N_DECODERS };
static const struct part_kind decoders[] = {
    [DECODER_BYTE_LEVEL] = {"ByteLevel", "{'type': 'ByteLevel', " BYTES},
    [DECODER_SEQUENCE] = {"Sequence",
                          "{'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern':"
                          " {'String': '\xe2\x96\x81'}, 'content': ' '}, {'type': 'ByteFallback'},"
                          " {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': '*',"
                          " 'stop': '*'}]}"},
};

/* Tokens that it adds around a text: those before it are read, see read_template(). */
enum { POST_NULL, POST_BYTE_LEVEL, POST_TEMPLATE, POST_SEQUENCE, N_POSTS };
static const struct part_kind post_processors[] = {
    [POST_NULL] = {NULL, NULL},
    [POST_BYTE_LEVEL] = {"ByteLevel", "{'type': 'ByteLevel', " BYTES},
    [POST_TEMPLATE] = {"TemplateProcessing", "{'type': 'TemplateProcessing', 'single': 'an array',"
                                             " 'pair?': '*', 'special_tokens': 'an object'}"},
    [POST_SEQUENCE] = {"Sequence", "{'type': 'Sequence', 'processors': 'an array'}"},
};

/* Finds the kind of a part and checks it. */
static int read_part(struct parts *p, const json_t *v, const char *name,
                     const struct part_kind *kinds, int n_kinds, int *kind)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    char known[160], path[96];
    int n = 0;

    if (json_is_null(v))
        v = NULL;
    for (*kind = 0; *kind < n_kinds; ++*kind) {
        const struct part_kind *k = &kinds[*kind];

        if (!k->type && !v)
            return 0;
        if (k->type && type && strcmp(type, k->type) == 0) {
            snprintf(path, sizeof(path), "tokenizer.json: %s", name);
            return json_match(v, k->pattern, path, -ENOTSUP, p->e);
        }
        n += snprintf(known + n, sizeof(known) - (size_t)n, "%s%s", n ? ", " : "",
                      k->type ? k->type : "null");
    }
    if (!type)
        return REFUSE(p, "%s: is %s; these are supported: %s", name,
                      v && json_is_object(v) ? "an object without a type"
                      : v                    ? json_type_name(v)
                                             : "null",
                      known);
    return REFUSE(p, "%s.type: \"%.64s\" is not supported; these are: %s", name, type, known);
}

static int read_normalizer(struct parts *p)
{
    struct tokenizer *t = p->t;
    int kind, rc = read_part(p, json_object_get(p->root, "normalizer"), "normalizer", normalizers,
                             N_NORMALIZERS, &kind);

    if (rc)
        return rc;
    t->normalizer = kind == NORMALIZER_NULL  ? NORMALIZE_NONE
                    : kind == NORMALIZER_NFC ? NORMALIZE_NFC
                                             : NORMALIZE_SPACES;
    if (kind == NORMALIZER_SEQUENCE)
        t->space_prefix = PREFIX_ANOTHER;
    return 0;
}

static int read_metaspace(struct parts *p, const json_t *v)
{
    const char *scheme = json_string_value(json_object_get(v, "prepend_scheme"));

    if (p->t->normalizer != NORMALIZE_NONE)
        return REFUSE(p, "pre_tokenizer: Metaspace is supported without a normalizer alone");
    p->t->normalizer = NORMALIZE_SPACES;
    if (strcmp(scheme, "first") == 0)
        p->t->space_prefix = PREFIX_FIRST;
    else if (strcmp(scheme, "always") == 0)
        p->t->space_prefix = PREFIX_EACH;
    else if (strcmp(scheme, "never") != 0)
        return REFUSE(p,
                      "pre_tokenizer.prepend_scheme: \"%.64s\" is not supported; first, always "
                      "and never are",
                      scheme);
    return 0;
}

static const char *split_pattern(const json_t *split)
{
    return json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
}

static int read_pre_tokenizer(struct parts *p)
{
    const json_t *v = json_object_get(p->root, "pre_tokenizer");
    const char *pattern = NULL;
    int kind, rc = read_part(p, v, "pre_tokenizer", pre_tokenizers, N_SPLITS, &kind);

    if (rc)
        return rc;
    if (kind == SPLIT_METASPACE)
        return read_metaspace(p, v);
    if (kind == SPLIT_BYTE_LEVEL && json_is_false(json_object_get(v, "use_regex")))
        return REFUSE(p, "pre_tokenizer.use_regex: false is supported behind a Split alone");
    if (kind == SPLIT_BYTE_LEVEL)
        pattern = pretokenize_patterns[PRETOKENIZE_GPT2];
    else if (kind == SPLIT_SEQUENCE)
        pattern = split_pattern(json_array_get(json_object_get(v, "pretokenizers"), 0));
    for (enum pretokenizer k = 0; pattern && k < N_PRETOKENIZERS; k++)
        if (pretokenize_patterns[k] && strcmp(pattern, pretokenize_patterns[k]) == 0)
            p->t->pretokenizer = k;
    if (pattern && p->t->pretokenizer == PRETOKENIZE_NONE)
        return REFUSE(p,
                      "pre_tokenizer.pretokenizers[0].pattern.Regex: \"%.300s\" is not "
                      "supported; those of GPT-2, Qwen2, Llama 3 and Mistral's tekken are",
                      pattern);
    return 0;
}

static int read_decoder(struct parts *p)
{
    const json_t *v = json_object_get(p->root, "decoder"), *strip;
    int kind, rc = read_part(p, v, "decoder", decoders, N_DECODERS, &kind);

    if (rc)
        return rc;
    p->t->by_character = kind == DECODER_SEQUENCE;
    if (p->t->by_character != (p->t->normalizer == NORMALIZE_SPACES))
        return REFUSE(p, "decoder: \"%s\" does not belong to the normalizer", decoders[kind].type);
    if (p->t->by_character != (p->t->pretokenizer == PRETOKENIZE_NONE))
        return REFUSE(p, "decoder: \"%s\" does not belong to the pre_tokenizer",
                      decoders[kind].type);
    if (kind == DECODER_BYTE_LEVEL)
        return 0;
    strip = json_array_get(json_object_get(v, "decoders"), 3);
    if (json_integer_value(json_object_get(strip, "start")) != 1 ||
        json_integer_value(json_object_get(strip, "stop")) != 0)
        return REFUSE(p, "decoder.decoders[3]: only start 1 and stop 0 are supported");
    p->t->strip_space = true;
    return 0;
}

/* The tokens that a template has before the text and after it. */
static int read_template(struct parts *p, const json_t *v, const char *path)
{
    const json_t *tokens = json_object_get(v, "special_tokens"), *piece, *ids, *id;
    struct affix *to = &p->t->begin;
    size_t i, k;

    json_array_foreach(json_object_get(v, "single"), i, piece)
    {
        const json_t *special = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));

        if (!special) { /* the text */
            to = &p->t->end;
            continue;
        }
        ids = json_object_get(json_object_get(tokens, name ? name : ""), "ids");
        if (!json_array_size(ids))
            return REFUSE(p, "%s.special_tokens: has no ids for \"%.64s\" of single", path,
                          name ? name : "");
        json_array_foreach(ids, k, id)
        {
            if (to->n == TOKENIZER_MAX_AFFIX || !json_is_integer(id) ||
                json_integer_value(id) < 0 || json_integer_value(id) >= TOKENIZER_MAX_ID)
                return REFUSE(p, "%s.special_tokens: not at most %d ids before or after a text",
                              path, TOKENIZER_MAX_AFFIX);
            to->ids[to->n++] = (int32_t)json_integer_value(id);
        }
    }
    return 0;
}

static int read_post_processor(struct parts *p, const json_t *v, const char *path, bool is_inner)
{
    const json_t *processor;
    char inner[64];
    size_t i;
    int kind, rc = read_part(p, v, path, post_processors, N_POSTS, &kind);

    if (rc)
        return rc;
    if (kind == POST_TEMPLATE)
        return read_template(p, v, path);
    if (kind == POST_SEQUENCE && is_inner)
        return REFUSE(p, "%s: a sequence in a sequence is not supported", path);
    json_array_foreach(json_object_get(v, "processors"), i, processor)
    {
        snprintf(inner, sizeof(inner), "%s.processors[%zu]", path, i);
        rc = read_post_processor(p, processor, inner, true);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_model(struct parts *p)
{
    static const char by_bytes[] =
        "{'type': 'BPE', 'dropout?': '', 'unk_token?': '', 'continuing_subword_prefix?': '',"
        " 'end_of_word_suffix?': '', 'fuse_unk?': false, 'byte_fallback?': false,"
        " 'ignore_merges?': 'true or false', 'vocab': 'an object', 'merges': 'an array'}";
    static const char by_characters[] =
        "{'type': 'BPE', 'dropout?': '', 'unk_token?': '*', 'continuing_subword_prefix?': '',"
        " 'end_of_word_suffix?': '', 'fuse_unk?': 'true or false', 'byte_fallback':"
        " 'true or false', 'ignore_merges?': false, 'vocab': 'an object', 'merges': 'an array'}";
    const json_t *model = json_object_get(p->root, "model");
    int rc = json_match(model, p->t->by_character ? by_characters : by_bytes,
                        "tokenizer.json: model", -ENOTSUP, p->e);

    if (rc)
        return rc;
    if (p->t->by_character && !json_is_true(json_object_get(model, "byte_fallback")))
        return REFUSE(p, "model.byte_fallback: false is not supported with SentencePiece's spaces");
    p->t->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    return 0;
}

int tokenizer_read_parts(struct tokenizer *t, const json_t *root, struct err *e)
{
    struct parts p = {t, root, e};
    int rc = json_match(root, file_pattern, "tokenizer.json: ", -ENOTSUP, e);

    nfc_init(&t->nfc);
    if (rc || (rc = read_normalizer(&p)) || (rc = read_pre_tokenizer(&p)) ||
        (rc = read_decoder(&p)) ||
        (rc = read_post_processor(&p, json_object_get(root, "post_processor"), "post_processor",
                                  false)))
        return rc;
    return read_model(&p);
}
