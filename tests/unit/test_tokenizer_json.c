/* test_tokenizer_json.c - an unknown part of tokenizer.json is refused by name, and no file ends
 * the process. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/unit/cpu_time.h"
#include "tests/unit/quotes.h"
#include "tests/unit/run_suite.h"

/* A small file: 256 bytes, three merges, two added tokens. Ids: bytes in order of the alphabet,
 * then ab = 256, abc = 257, bc = 258, <s> = 259, <n> = 260. */
static json_t *small_file(void)
{
    static const char frame[] =
        "{'version': '1.0', 'truncation': null, 'padding': null, 'added_tokens': [{'id': 259, "
        "'content': '<s>', 'single_word': false, 'lstrip': false, 'rstrip': false, 'normalized': "
        "false, 'special': true}, {'id': 260, 'content': '<n>', 'single_word': false, 'lstrip': "
        "false, 'rstrip': false, 'normalized': true, 'special': false}], 'normalizer': {'type': "
        "'NFC'}, 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', "
        "'pattern': {}, 'behavior': 'Isolated', 'invert': false}, {'type': 'ByteLevel', "
        "'add_prefix_space': false, 'trim_offsets': false, 'use_regex': false}]}, "
        "'post_processor': null, 'decoder': {'type': 'ByteLevel'}, 'model': {'type': 'BPE', "
        "'dropout': null, 'unk_token': null, 'continuing_subword_prefix': '', "
        "'end_of_word_suffix': '', 'fuse_unk': false, 'byte_fallback': false, 'vocab': {'ab': 256, "
        "'abc': 257, 'bc': 258}, 'merges': ['a b', ['ab', 'c'], 'b c']}}";
    static const char pattern[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    json_error_t bad;
    json_t *root = json_loads(quotes(frame), 0, &bad), *vocab, *splits;
    int next = 256, id = 0;

    ck_assert_msg(root != NULL, "%s", bad.text);
    splits = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    json_object_set_new(json_object_get(json_array_get(splits, 0), "pattern"), "Regex",
                        json_string(pattern));
    vocab = json_object_get(json_object_get(root, "model"), "vocab");
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
                         (byte >= 0xae && byte <= 0xff);
        char spelled[5] = {0};

        utf8_write(spelled, (uint32_t)(printable ? byte : next++));
        json_object_set_new(vocab, spelled, json_integer(id++));
    }
    return root;
}

static json_t *root; /* of each test, to be changed before it is parsed */
static struct tokenizer *t;
static struct err e;

static void set_up(void)
{
    root = small_file();
    t = NULL;
    e = (struct err){0};
}

static void tear_down(void)
{
    tokenizer_free(t);
    json_decref(root);
}

static int parse(void)
{
    char *text = json_dumps(root, JSON_ENSURE_ASCII);
    int r = tokenizer_parse(&t, text, strlen(text), &e);

    free(text);
    return r;
}

/* The parent of the value at a path of keys and indices. */
static json_t *parent_of(char *path, char **last)
{
    json_t *parent = root;
    char *save, *step = strtok_r(path, "/", &save), *next;

    while ((next = strtok_r(NULL, "/", &save))) {
        parent = json_is_array(parent) ? json_array_get(parent, (size_t)atoi(step))
                                       : json_object_get(parent, step);
        step = next;
    }
    *last = step;
    return parent;
}

/* Sets the value at path, or removes it if json is NULL. */
static void edit(const char *path, const char *json)
{
    char copy[128], *last;
    json_t *value = json ? json_loads(quotes(json), JSON_DECODE_ANY, NULL) : NULL, *parent;

    snprintf(copy, sizeof(copy), "%s", path);
    parent = parent_of(copy, &last);
    ck_assert(json ? value != NULL : true);
    ck_assert_ptr_nonnull(parent);
    if (!json)
        ck_assert_int_eq(json_object_del(parent, last), 0);
    else if (json_is_array(parent))
        ck_assert_int_eq(json_array_set_new(parent, (size_t)atoi(last), value), 0);
    else
        ck_assert_int_eq(json_object_set_new(parent, last, value), 0);
}

/* Turns the file into one of SentencePiece's, with bytes as "<0x41>" and then characters: "\u2581"
 * = 300, a = 301, b = 302, "\u2581a" = 303, "ab" = 304, "\u2581ab" = 305. */
static void become_spaces(bool metaspace)
{
    json_t *vocab = json_object();
    char spelled[8];

    for (int byte = 0; byte < 256; byte++) {
        snprintf(spelled, sizeof(spelled), "<0x%02X>", (unsigned char)byte);
        json_object_set_new(vocab, spelled, json_integer(byte));
    }
    json_object_update_new(vocab, json_pack("{sisisisisisi}", "\u2581", 300, "a", 301, "b", 302,
                                            "\u2581a", 303, "ab", 304, "\u2581ab", 305));
    edit("normalizer", metaspace ? "null"
                                 : "{'type': 'Sequence', 'normalizers': [{'type': 'Prepend', "
                                   "'prepend': '\u2581'}, {'type': 'Replace', 'pattern': "
                                   "{'String': ' '}, 'content': '\u2581'}]}");
    edit("pre_tokenizer", metaspace ? "{'type': 'Metaspace', 'replacement': '\u2581', "
                                      "'prepend_scheme': 'first', 'split': false}"
                                    : "null");
    edit("decoder", "{'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': "
                    "'\u2581'}, 'content': ' '}, {'type': 'ByteFallback'}, {'type': 'Fuse'}, "
                    "{'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}");
    edit("model/byte_fallback", "true");
    edit("model/unk_token", "'<unk>'");
    edit("model/fuse_unk", "true");
    edit("model/merges", "['\u2581 a', 'a b', '\u2581a b']");
    edit("added_tokens/1/normalized", "false");
    edit("added_tokens/0/id", "310");
    edit("added_tokens/1/id", "311");
    json_object_set_new(json_object_get(root, "model"), "vocab", vocab);
}

#define SPLIT "pre_tokenizer/pretokenizers/0"
#define BYTES "pre_tokenizer/pretokenizers/1"

struct refusal {
    const char *path, *json; /* NULL removes the value */
    const char *says;
};

static const struct refusal refused[] = {
    {"version", "'2.0'", "version"},
    {"version", NULL, "version"},
    {"extra", "1", "extra"},
    {"normalizer", "{'type': 'NFKC'}", "normalizer.type: \"NFKC\""},
    {"normalizer", "{'type': 'Sequence', 'normalizers': []}", "normalizer.normalizers"},
    {"normalizer", "{'type': 'NFC', 'x': 1}", "normalizer.x"},
    {"normalizer", "{'type': 3}", "normalizer: is an object without a type; these are supported"},
    {"pre_tokenizer", "{'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': false}",
     "pre_tokenizer.use_regex"},
    {"normalizer", "[]", "normalizer"},
    {"pre_tokenizer", "{'type': 'Whitespace'}", "pre_tokenizer.type: \"Whitespace\""},
    {"pre_tokenizer/pretokenizers", "[]", "pre_tokenizer.pretokenizers"},
    {"pre_tokenizer/pretokenizers", "{}", "pre_tokenizer.pretokenizers"},
    {SPLIT "/type", "'Digits'", "pretokenizers[0].type: \"Digits\""},
    {SPLIT "/pattern", "{'Regex': '\\\\s+'}", "pattern.Regex"},
    {SPLIT "/pattern", "{'String': ' '}", "pattern.String"},
    {SPLIT "/pattern", "7", "pattern"},
    {SPLIT "/pattern/Regex", "7", "pattern.Regex"},
    {SPLIT "/behavior", "'Removed'", "behavior"},
    {SPLIT "/invert", "true", "invert"},
    {BYTES "/use_regex", "true", "use_regex"},
    {BYTES "/use_regex", NULL, "use_regex: is missing"},
    {BYTES "/add_prefix_space", "true", "add_prefix_space"},
    {"post_processor", "{'type': 'TemplateProcessing'}", "post_processor.single: is missing"},
    {"post_processor", "{'type': 'Sequence', 'processors': [{'type': 'ByteLevel'}, {'type': 'X'}]}",
     "post_processor.processors[1].type: \"X\""},
    {"post_processor",
     "{'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'x'}}], 'special_tokens': "
     "{}}",
     "post_processor.special_tokens: has no ids for \"x\""},
    {"pre_tokenizer", "null", "decoder: \"ByteLevel\" does not belong to the pre_tokenizer"},
    {"post_processor", "{'type': 'BertProcessing'}", "post_processor.type: \"BertProcessing\""},
    {"post_processor",
     "{'type': 'Sequence', 'processors': [{'type': 'Sequence', 'processors': []}]}",
     "a sequence in a sequence"},
    {"post_processor",
     "{'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'x'}}], 'special_tokens': "
     "{'x': {'ids': [300]}}}",
     "no token has id 300"},
    {"post_processor",
     "{'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'x'}}], 'special_tokens': "
     "{'x': {'ids': [1, 2, 3, 4, 5]}}}",
     "at most 4 ids"},
    {"post_processor",
     "{'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'x'}}], 'special_tokens': "
     "{'x': {'ids': ['1']}}}",
     "at most 4 ids"},
    {"decoder", "{'type': 'WordPiece'}", "decoder.type"},
    {"decoder", "null", "decoder"},
    {"model", "{'type': 'Unigram'}", "model.type: \"Unigram\""},
    {"model", "null", "model"},
    {"model/new_thing", "1", "model.new_thing"},
    {"model/dropout", "0.1", "model.dropout"},
    {"model/unk_token", "'<unk>'", "model.unk_token"},
    {"model/end_of_word_suffix", "'</w>'", "model.end_of_word_suffix"},
    {"model/continuing_subword_prefix", "'##'", "model.continuing_subword_prefix"},
    {"model/byte_fallback", "true", "model.byte_fallback"},
    {"model/fuse_unk", "true", "model.fuse_unk"},
    {"model/ignore_merges", "1", "model.ignore_merges"},
    {"model/vocab", "[]", "model.vocab"},
    {"model/vocab", "{}", "model.vocab"},
    {"model/vocab", NULL, "model.vocab: is missing"},
    {"model/vocab/a", NULL, "model.vocab: has no token for the byte 0x61"},
    {"model/vocab/ab", "-1", "model.vocab \"ab\": id -1"},
    {"model/vocab/ab", "16777216", "model.vocab \"ab\": id 16777216"},
    {"model/vocab/ab", "9223372036854775807", "model.vocab \"ab\""},
    {"model/vocab/ab", "1.0", "model.vocab \"ab\""},
    {"model/vocab/ab", "'1'", "model.vocab \"ab\""},
    {"model/vocab/ab", "257", "another token has id 257"},
    {"model/merges", "{}", "model.merges"},
    {"model/merges", NULL, "model.merges: is missing"},
    {"model/merges/1", "'ab'", "model.merges[1]"},
    {"model/merges/1", "'ab '", "model.merges[1]"},
    {"model/merges/1", "' c'", "model.merges[1]"},
    {"model/merges/1", "['ab']", "model.merges[1]"},
    {"model/merges/1", "['ab', 'c', 'd']", "model.merges[1]"},
    {"model/merges/1", "['ab', 3]", "model.merges[1]"},
    {"model/merges/1", "null", "model.merges[1]"},
    {"model/merges/1", "'ab cd'", "model.merges[1]: \"cd\" is not in model.vocab"},
    {"model/merges/1", "'xy c'", "model.merges[1]: \"xy c\" is not in model.vocab"},
    {"model/merges/1", "'c ab'", "model.merges[1]: \"c\" and \"ab\" merged"},
    {"added_tokens", "{}", "added_tokens"},
    {"added_tokens/0", "3", "added_tokens[0]"},
    {"added_tokens/0/content", "''", "added_tokens[0].content"},
    {"added_tokens/0/content", "5", "added_tokens[0].content"},
    {"added_tokens/0/content", "'<n>'", "is listed twice"},
    {"added_tokens/0/content", "'ab'", "added_tokens[0]"},
    {"added_tokens/0/id", "-1", "added_tokens \"<s>\": id -1"},
    {"added_tokens/0/id", "4294967296", "added_tokens \"<s>\""},
    {"added_tokens/0/id", NULL, "added_tokens \"<s>\""},
    {"added_tokens/0/id", "7", "added_tokens[0]: id 7"},
    {"added_tokens/0/id", "260", "added_tokens[1]: id 260"},
    {"added_tokens/0/lstrip", "1", "added_tokens[0].lstrip"},
    {"added_tokens/0/rstrip", NULL, "added_tokens[0].rstrip"},
    {"added_tokens/0/single_word", "1", "added_tokens[0].single_word"},
    {"added_tokens/0/normalized", "1", "added_tokens[0].normalized"},
    {"added_tokens/0/special", NULL, "added_tokens[0].special"},
    {"added_tokens/0/color", "1", "added_tokens[0].color"},
};

static const struct refusal refused_spaces[] = {
    {"normalizer", NULL, "decoder: \"Sequence\" does not belong"},
    {"normalizer/normalizers/0/prepend", "'_'", "normalizers[0].prepend"},
    {"normalizer/normalizers/1/content", "'_'", "normalizers[1].content"},
    {"decoder/decoders/3/start", "2", "decoders[3]: only start 1"},
    {"decoder/decoders", "[]", "decoder.decoders"},
    {"decoder", "{'type': 'ByteLevel'}", "decoder: \"ByteLevel\" does not belong"},
    {"model/byte_fallback", "false", "model.byte_fallback"},
    {"model/ignore_merges", "true", "model.ignore_merges"},
    {"model/vocab/<0x41>", NULL, "has no token for the byte 0x41"},
    {"added_tokens/1",
     "{'id': 311, 'content': '<n>', 'single_word': false, 'lstrip': true, 'rstrip': false, "
     "'normalized': true, 'special': false}",
     "added_tokens[1]: lstrip and rstrip"},
    {"added_tokens/1",
     "{'id': 301, 'content': 'a', 'single_word': false, 'lstrip': false, 'rstrip': false, "
     "'normalized': true, 'special': false}",
     "added_tokens[1]: \"a\" stands for other bytes"},
};

static const struct refusal refused_metaspace[] = {
    {"normalizer", "{'type': 'NFC'}", "Metaspace is supported without"},
    {"added_tokens/1/normalized", "true", "added_tokens[1].normalized"},
    {"pre_tokenizer/split", "true", "pre_tokenizer.split"},
    {"pre_tokenizer/prepend_scheme", "'last'", "pre_tokenizer.prepend_scheme"},
};

/* The message names file and field. */
static void expect_refusal(const struct refusal *f)
{
    int r;

    edit(f->path, f->json);
    r = parse();
    ck_assert_msg(r == -ENOTSUP, "%s = %s gives %d", f->path, f->json, r);
    ck_assert_msg(strstr(e.text, f->says) && strstr(e.text, "tokenizer.json"),
                  "\"%s\" does not say \"%s\"", e.text, f->says);
    ck_assert_ptr_null(t);
}

TEST(unknown_parts_are_refused, .n = N(refused))
{
    expect_refusal(&refused[_i]);
}

TEST(unknown_parts_of_sentencepiece, .n = N(refused_spaces))
{
    become_spaces(false);
    expect_refusal(&refused_spaces[_i]);
}

TEST(unknown_parts_of_metaspace, .n = N(refused_metaspace))
{
    become_spaces(true);
    expect_refusal(&refused_metaspace[_i]);
}

static const char *const harmless[][2] = {
    {"truncation", "{'max_length': 512}"},
    {"padding", "{'strategy': {'Fixed': 512}}"},
    {"post_processor", "{'type': 'ByteLevel', 'trim_offsets': true}"},
    {"decoder/use_regex", "true"},
    {"model/ignore_merges", "false"},
    {"model/end_of_word_suffix", "null"},
    {"added_tokens", "[]"},
    {"model/merges", "[]"},
    {"model/vocab/a b", "300"}, /* a spelling outside of the alphabet stands for itself */
};

/* Parts without effect on ids are ignored. */
TEST(harmless_parts_are_taken, .n = N(harmless))
{
    edit(harmless[_i][0], harmless[_i][1]);
    ck_assert_msg(parse() == 0, "%s: %s", harmless[_i][0], e.text);
}

static void expect_encoding(const char *text, const char *want)
{
    struct token_list list = {0};
    char got[256] = "";

    ck_assert_int_eq(tokenizer_encode_all(t, (struct text){text, strlen(text)}, true, &list), 0);
    for (size_t i = 0, n = 0; i < list.n; i++)
        n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%d", i ? " " : "", list.ids[i]);
    ck_assert_str_eq(got, want);
    free(list.ids);
}

static void expect_decoding(const char *want, const int32_t *ids, size_t n)
{
    char *text;
    size_t len;

    ck_assert_int_eq(tokenizer_decode(t, ids, n, false, &text, &len), 0);
    ck_assert_str_eq(text, want);
    free(text);
}

/* Both spellings of merges work, the lower rank goes first, unused ids have no text. */
TEST(small_file_encodes)
{
    edit("added_tokens/1/id", "400");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("abc", "257");
    expect_encoding("bcab", "258 256");
    expect_encoding("<s>ab<n>", "259 256 400");
    ck_assert_int_eq(tokenizer_n_ids(t), 401);
    ck_assert_uint_eq(tokenizer_token_bytes(t, 300).len, 0);
}

/* SentencePiece's: a space before each piece, bytes for what has no character. */
TEST(spaces)
{
    become_spaces(false);
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("ab", "305");
    expect_encoding(" ab", "300 305");
    expect_encoding("a\u2581b a", "303 300 302 303");
    expect_encoding("<s>ab<n>b", "310 305 311 300 302");
    expect_encoding("A\n", "300 65 10");
    expect_encoding("\xc3\xa9", "300 195 169");
    expect_encoding("\xff", "300 239 191 189");
    expect_encoding("<0x41>", "300 60 48 120 52 49 62");
    expect_decoding("ab", (int32_t[]){305}, 1);
    expect_decoding(" abA", (int32_t[]){300, 305, 65}, 3);
    expect_decoding("\xc3\xa9 a", (int32_t[]){195, 169, 303}, 3);
}

/* The same by Metaspace: a space before the text alone, unless there is one. */
TEST(metaspace)
{
    become_spaces(true);
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("ab", "305");
    expect_encoding(" ab", "305");
    expect_encoding("<s>ab", "310 304");
    expect_encoding("ab<s>ab", "305 310 304");
}

/* Behind a special token as in the middle of a text, behind any other without a space. */
TEST(a_text_that_goes_on, .n = 2)
{
    static const struct {
        int32_t id, want;
    } cases[][2] = {{{310, 305}, {303, 304}}, {{310, 304}, {303, 304}}};

    become_spaces(_i == 1);
    ck_assert_msg(parse() == 0, "%s", e.text);
    for (int k = 0; k < 2; k++) {
        struct token_list list = {0};

        ck_assert_int_eq(tokenizer_encode_after(t, cases[_i][k].id, (struct text){"ab", 2}, NULL, 0,
                                                &list),
                         0);
        ck_assert_uint_eq(list.n, 1);
        ck_assert_int_eq(list.ids[0], cases[_i][k].want);
        free(list.ids);
    }
}

/* The space that is put before a text belongs to the range that begins there. */
TEST(ranges_behind_a_prefix)
{
    static const struct text_range range = {0, 3};
    struct token_list list = {0};

    become_spaces(false);
    edit("added_tokens/1/normalized", "true"); /* matched with the space, as the reference does */
    ck_assert_msg(parse() == 0, "%s", e.text);
    ck_assert_int_eq(tokenizer_encode(t, (struct text){"<n>a", 4}, &range, 1, &list), 0);
    ck_assert_uint_eq(list.n, 2);
    ck_assert_int_eq(list.ids[0], 311);
    ck_assert_int_eq(list.ids[1], 301);
    free(list.ids);
}

/* A word that is a token is not made of merges; one that merges cannot make is found. */
TEST(ignored_merges)
{
    edit("model/vocab/bca", "280");
    edit("model/vocab/\n\n", "281"); /* no spelling of two newlines */
    edit("model/ignore_merges", "true");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("bca", "280");
    expect_encoding("\n\n", "10 10");
    expect_encoding("bcab", "258 256");
    expect_encoding("\xc3\xa9", "195 169");
}

/* Added tokens take the white space that they want, though not each other's. */
TEST(stripped_white_space)
{
    edit("added_tokens/0/lstrip", "true");
    edit("added_tokens/1/rstrip", "true");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("a \n\u3000<s>b", "97 259 98");
    expect_encoding("a<s> b", "97 259 32 98");
    expect_encoding("a<n> \tb", "97 260 98");
    expect_encoding("<n>  <s>", "260 259");
    expect_encoding(" <s>", "259");
}

/* Tokens of single words, as the reference matches them: <n> in normalized text. */
static const char *const single_words[][2] = {
    {"foo", "259"},
    {"foo foo", "259 32 259"},
    {"(foo)", "40 259 41"},
    {"foofoo", "102 111 111 102 111 111"},
    {"foo_", "102 111 111 95"},
    {"1foo", "49 102 111 111"},
    {"foo\u0663", "102 111 111 217 163"},     /* a decimal digit */
    {"foo\u00b2", "259 194 178"},             /* a number that is none */
    {"foo\u2177", "102 111 111 226 133 183"}, /* a letter number */
    {"foo\u203f", "102 111 111 226 128 191"}, /* a connector */
    {"\u203f(foo", "226 128 191 40 259"},
    {"foo\u0301", "102 111 195 179"}, /* marks */
    {"foo\u20dd", "102 111 111 226 131 157"},
    {"foo\u200d", "102 111 111 226 128 141"}, /* joins letters */
    {"foo\u200b", "259 226 128 139"},
    {"foo\u24d0", "102 111 111 226 147 144"}, /* alphabetic symbols */
    {"foo\U0001f170", "102 111 111 240 159 133 176"},
    {"foo\U0001f600", "259 240 159 152 128"},
    {"a<n>", "97 60 110 62"},
    {"<n>a", "60 110 62 97"},
    {"-<n>-", "45 260 45"},
    {"a <n>", "97 32 260"},
    {"e\u0301<n>", "195 169 60 110 62"},
};

TEST(tokens_of_single_words)
{
    edit("added_tokens/0/content", "'foo'");
    edit("added_tokens/0/single_word", "true");
    edit("added_tokens/1/single_word", "true");
    ck_assert_msg(parse() == 0, "%s", e.text);
    for (size_t i = 0; i < N(single_words); i++)
        expect_encoding(single_words[i][0], single_words[i][1]);
}

/* Where a token of single words does not match, no other takes its bytes; it strips white space
 * where it does. */
TEST(single_words_beside_others)
{
    edit("added_tokens/0/content", "'foo'");
    edit("added_tokens/0/single_word", "true");
    edit("added_tokens/1/content", "'oo'");
    edit("added_tokens/1/normalized", "false");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("xfoo", "120 102 111 111");
    expect_encoding("xoo", "120 260");
    expect_encoding("foooo", "102 111 111 260");
    tokenizer_free(t);
    edit("added_tokens/0/lstrip", "true");
    edit("added_tokens/0/rstrip", "true");
    edit("added_tokens/1/content", "' x'");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("a foo b", "97 259 98");
    expect_encoding("a  foob", "97 32 32 102 111 111 98");
    expect_encoding("foo  foo", "259 259");
    expect_encoding("foo  xa", "259 260 97"); /* white space that is taken twice */
}

/* A normalized token is sought in what is between the others, as if that were the whole text. */
TEST(single_words_between_others)
{
    edit("added_tokens/0/content", "'_'");
    edit("added_tokens/0/id", "95");
    edit("added_tokens/1/content", "'oo'");
    edit("added_tokens/1/single_word", "true");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("_oo", "95 260");
    expect_encoding("oo_", "260 95");
    expect_encoding("aoo", "97 111 111");
    tokenizer_free(t);
    edit("added_tokens/1/normalized", "false");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("_oo", "95 111 111");
}

/* White space that a match has taken is none for a later token that takes it, too. */
TEST(white_space_that_is_taken)
{
    edit("added_tokens/0/rstrip", "true");
    edit("added_tokens/1/content", "'\\n'");
    edit("added_tokens/1/normalized", "false");
    edit("added_tokens/1/lstrip", "true");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("<s>\n", "259");
    expect_encoding("<s>\n\na", "259 97");
    expect_encoding("a\n\n", "97 260 260");
}

/* White space that one match has taken is found there by others, and read once. */
TEST(white_space_that_is_taken_often)
{
    static const char unit[] = "\n \t";
    const size_t len = sizeof(unit) - 1, n = 300000;
    char *text = malloc(n * len + 1);
    struct token_list list = {0};
    double start, took;

    edit("added_tokens/0/content", "' \\t'");
    edit("added_tokens/0/rstrip", "true");
    edit("added_tokens/1/content", "'\\n'");
    edit("added_tokens/1/normalized", "false");
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("\n \t\n \ta", "260 259 260 259 97");
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * len, unit, len);
    start = cpu_ms();
    ck_assert_int_eq(tokenizer_encode_all(t, (struct text){text, n * len}, true, &list), 0);
    took = cpu_ms() - start;
    ck_assert_msg(took < 5000, "it took %.0f ms", took);
    ck_assert_uint_eq(list.n, 2 * n);
    for (size_t i = 0; i < list.n; i++)
        ck_assert_int_eq(list.ids[i], i % 2 ? 259 : 260);
    free(list.ids);
    free(text);
}

/* What a post-processor puts before a text and after it is known, and not added. */
TEST(tokens_around_a_text)
{
    const int32_t *ids;

    edit("post_processor",
         "{'type': 'Sequence', 'processors': [{'type': 'ByteLevel'}, {'type': 'TemplateProcessing',"
         " 'single': [{'SpecialToken': {'id': 'x', 'type_id': 0}}, {'Sequence': {'id': 'A'}},"
         " {'SpecialToken': {'id': 'y'}}], 'pair': [], 'special_tokens': {'x': {'id': 'x', 'ids':"
         " [259], 'tokens': ['<s>']}, 'y': {'ids': [260]}}}]}");
    ck_assert_msg(parse() == 0, "%s", e.text);
    ck_assert_uint_eq(tokenizer_begin(t, &ids), 1);
    ck_assert_int_eq(ids[0], 259);
    ck_assert_uint_eq(tokenizer_end(t, &ids), 1);
    ck_assert_int_eq(ids[0], 260);
    expect_encoding("abc", "257");
}

/* Too many of them, and ids that are none, are refused. */
TEST(wrong_tokens_around_a_text, .n = 3)
{
    static const char *const ids[] = {"[259, 259, 259, 259, 259]", "[-1]", "[999]"};
    char processor[300];

    snprintf(processor, sizeof(processor),
             "{'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A'}},"
             " {'SpecialToken': {'id': 'y'}}], 'pair': [], 'special_tokens': {'y': {'ids': %s}}}",
             ids[_i]);
    edit("post_processor", processor);
    ck_assert_int_lt(parse(), 0);
    ck_assert_ptr_nonnull(strstr(e.text, "post_processor"));
}

/* A tokenizer with ids beyond the model's vocabulary is refused by the largest. */
TEST(ids_beyond_the_vocabulary)
{
    ck_assert_msg(parse() == 0, "%s", e.text);
    ck_assert_int_eq(tokenizer_check_vocab(t, 261, &e), 0);
    ck_assert_int_eq(tokenizer_check_vocab(t, 260, &e), -EINVAL);
    ck_assert_msg(strstr(e.text, "id 260 (\"<n>\") is not in 0 .. 259"), "%s", e.text);
}

/* The leftmost added token is matched, the longest of those at one position. */
TEST(longest_and_leftmost_added_token)
{
    json_t *added = json_object_get(root, "added_tokens");
    static const char *const contents[] = {"<s", "<s><s>", "s><n"};

    for (int i = 0; i < 3; i++) {
        json_t *token = json_deep_copy(json_array_get(added, 0));

        json_object_set_new(token, "content", json_string(contents[i]));
        json_object_set_new(token, "id", json_integer(300 + i));
        json_array_append_new(added, token);
    }
    ck_assert_msg(parse() == 0, "%s", e.text);
    expect_encoding("<s><s>", "301");
    expect_encoding("<s><s", "259 300");
    expect_encoding("<s><n>", "259 260");
    expect_encoding("s><n>", "302 62");
}

/* An empty token is refused. */
TEST(empty_token)
{
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), "",
                        json_integer(261));
    ck_assert_int_eq(parse(), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, "the token of id 261 is empty"));
}

/* A file truncated anywhere is an error. */
TEST(truncated_file)
{
    char *text = json_dumps(root, 0);
    size_t len = strlen(text);

    for (size_t n = 0; n < len; n += n < 600 ? 1 : 37)
        ck_assert_int_eq(tokenizer_parse(&t, text, n, &e), -EINVAL);
    ck_assert_int_eq(tokenizer_parse(&t, text, len, &e), 0);
    free(text);
}

/* Duplicate keys are refused. */
TEST(duplicate_keys)
{
    static const char json[] = "{\"version\": \"1.0\", \"version\": \"1.0\"}";

    ck_assert_int_eq(tokenizer_parse(&t, json, sizeof(json) - 1, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "duplicate"));
}

/* A missing file or folder is an error that names it. */
TEST(missing_file)
{
    ck_assert_int_eq(tokenizer_load(&t, TEST_DATA_DIR, &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.text, "tokenizer.json"));
    ck_assert_int_eq(tokenizer_load(&t, TEST_DATA_DIR "/no-such-folder", &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.text, "no-such-folder"));
    ck_assert_int_eq(tokenizer_load(&t, TEST_DATA_DIR, NULL), -ENOENT);
    tokenizer_free(NULL);
}

RUN_TESTS("tokenizer_json", set_up, tear_down)
