/* fuzz_request.c - the bytes that a client sends after Hello: frames, messages, requests, and what
 * becomes of their texts on the way to the engine.
 *
 * An input is a stream of frames. Frames must not depend on how the stream was cut; a message must
 * stay inside its budget; a request that passes must be one that the engine can take. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/request.h"
#include "engine/text/text_stream.h"
#include "proto/frame.h"
#include "proto/utf8.h"
#include "tests/fuzz/fuzz.h"

enum {
    MAX_FRAME = 8192,
    VOCAB = 2048, /* of the bundled model */
};

static const struct model_defaults defaults = {.temperature = 0.6f,
                                               .top_k = 20,
                                               .top_p = 0.95f,
                                               .repetition_penalty = 1.0f,
                                               .n_eos = 1,
                                               .eos = {3}};
static struct options options; /* as where nobody says otherwise */
static const struct request_rules rules = {.options = &options,
                                           .defaults = &defaults,
                                           .vocab_size = FUZZ_PLANT ? INT32_MAX : VOCAB,
                                           .max_seq_len = 32768};

static struct tokenizer *tokenizer;
static struct chat_template *template;

static void load_once(void)
{
    struct err e = {""};

    if (tokenizer)
        return;
    FUZZ_CHECK(options_init(&options, &e) == 0);
    FUZZ_CHECK(tokenizer_load(&tokenizer, TEST_MODEL_DIR, &e) == 0);
    FUZZ_CHECK(chat_template_load(&template, TEST_MODEL_DIR, NULL, &e) == 0 && template);
}

/* ---- texts */

/* Once through the tokenizer a text is normalised: from then on it must come back as it was. */
static void check_encoding(struct text text, const struct text_range *ranges, size_t n_ranges)
{
    struct token_list ids = {0}, again = {0};
    char *once, *twice;
    size_t n_once, n_twice;

    FUZZ_CHECK(tokenizer_encode(tokenizer, text, ranges, n_ranges, &ids) == 0);
    for (size_t i = 0; i < ids.n; i++)
        FUZZ_CHECK(ids.ids[i] >= 0 && ids.ids[i] < VOCAB);
    FUZZ_CHECK(tokenizer_decode(tokenizer, ids.ids, ids.n, false, &once, &n_once) == 0);
    FUZZ_CHECK(utf8_valid(once, n_once));
    FUZZ_CHECK(tokenizer_encode_all(tokenizer, (struct text){once, n_once}, false, &again) == 0);
    FUZZ_CHECK(tokenizer_decode(tokenizer, again.ids, again.n, false, &twice, &n_twice) == 0);
    FUZZ_CHECK(n_once == n_twice && memcmp(once, twice, n_once) == 0);
    free(once);
    free(twice);
    free(ids.ids);
    free(again.ids);
}

static void check_chat(const struct chat *chat)
{
    struct jinja_text text;
    struct err e = {""};
    size_t end = 0;
    int r = chat_render(template, chat, &text, &e);

    if (r < 0) {
        FUZZ_CHECK((r == -EINVAL || r == -ENOTSUP) && *e.text);
        return;
    }
    for (size_t i = 0; i < text.n_ranges; i++) {
        FUZZ_CHECK(text.ranges[i].start >= end && text.ranges[i].end >= text.ranges[i].start);
        end = text.ranges[i].end;
    }
    FUZZ_CHECK(end <= text.len);
    check_encoding((struct text){text.data, text.len}, text.ranges, text.n_ranges);
    jinja_text_deinit(&text);
}

/* ---- requests */

static void check_sampling(const struct sampling *s)
{
    FUZZ_CHECK(isfinite(s->temperature) && s->temperature >= 0);
    FUZZ_CHECK(s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    FUZZ_CHECK(isfinite(s->repetition_penalty) && s->repetition_penalty > 0);
    FUZZ_CHECK(fabsf(s->presence_penalty) <= 2 && fabsf(s->frequency_penalty) <= 2);
    FUZZ_CHECK(s->n_logprobs >= -1 && s->n_logprobs <= SAMPLING_MAX_LOGPROBS);
    FUZZ_CHECK(s->n_stop_ids >= 0 && s->n_stop_ids <= SAMPLING_MAX_REQUEST_STOP_IDS);
    for (int32_t i = 0; i < s->n_stop_ids; i++)
        FUZZ_CHECK(s->stop_ids[i] >= 0 && s->stop_ids[i] < VOCAB);
    for (int32_t i = 0; i < s->n_bias; i++)
        FUZZ_CHECK(s->bias[i].id >= 0 && s->bias[i].id < VOCAB && fabsf(s->bias[i].bias) <= 100);
}

static void check_generate(const struct engine_request *r)
{
    struct text_stream *stream;

    check_sampling(&r->sampling);
    FUZZ_CHECK(r->n >= 1 && r->n <= OPTIONS_MAX_CHOICES);
    FUZZ_CHECK(r->max_tokens >= 0);
    FUZZ_CHECK(r->n_stops >= 0 && r->n_stops <= ENGINE_MAX_STOPS);
    FUZZ_CHECK(text_stream_new(&stream, tokenizer, r->stops, r->n_stops, false) == 0);
    text_stream_free(stream);
    if (r->input == ENGINE_PROMPT) {
        const struct text_range whole = {0, r->prompt.len};

        FUZZ_CHECK(utf8_valid(r->prompt.data, r->prompt.len));
        check_encoding(r->prompt, &whole, 1);
    } else if (r->input == ENGINE_CHAT) {
        check_chat(r->chat);
    } else {
        FUZZ_CHECK(r->input == ENGINE_PROMPT_IDS && r->n_prompt_ids > 0);
    }
}

static void check_embed(const struct engine_request *r)
{
    FUZZ_CHECK(r->dimensions >= 0);
    if (r->prompt_name)
        FUZZ_CHECK(utf8_valid(r->prompt_name, strlen(r->prompt_name)));
    if (r->input == ENGINE_PROMPT)
        check_encoding(r->prompt, NULL, 0);
    else
        FUZZ_CHECK(r->input == ENGINE_PROMPT_IDS && r->n_prompt_ids > 0);
}

static void check_refusal(int r, const struct refusal *e)
{
    if (r == -ENOMEM)
        return;
    FUZZ_CHECK(r == -EINVAL && e->code > 0 && *e->field && *e->message.text);
}

static void take_request(const Nvllm__V1__ClientFrame *f, struct unpacked *u)
{
    struct refusal e = {.field = ""};
    struct engine_request request;
    int r;

    if (f->op_case != NVLLM__V1__CLIENT_FRAME__OP_GENERATE &&
        f->op_case != NVLLM__V1__CLIENT_FRAME__OP_EMBED &&
        f->op_case != NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE &&
        f->op_case != NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE &&
        f->op_case != NVLLM__V1__CLIENT_FRAME__OP_RENDER)
        return;
    r = request_start(&request, f, u, &rules, &(struct request_origin){1, true, 1}, &e);
    if (r == 0 && request.kind == ENGINE_GENERATE)
        check_generate(&request);
    else if (r == 0 && request.kind == ENGINE_EMBED)
        check_embed(&request);
    else if (r == 0 && request.kind == ENGINE_TOKENIZE)
        check_encoding(request.prompt, NULL, 0);
    else if (r == 0 && request.kind == ENGINE_RENDER)
        check_chat(request.chat);
    if (r < 0)
        check_refusal(r, &e);
}

static void take_frame(const uint8_t *data, size_t n)
{
    struct unpacked *u;

    FUZZ_CHECK(n <= MAX_FRAME);
    if (unpack_request(&u, &nvllm__v1__client_frame__descriptor, data, n) != UNPACK_OK)
        return;
    FUZZ_CHECK(unpacked_bytes(u) <= UNPACK_BUDGET_BASE + n * UNPACK_BUDGET_FACTOR);
    take_request((const Nvllm__V1__ClientFrame *)unpacked_message(u), u);
    unpacked_free(u);
}

/* ---- frames */

/* What the frames of a stream are, cut into pieces as the bits of `cut` say; 0: in one. */
static uint64_t digest(const uint8_t *data, size_t size, uint64_t cut, bool take)
{
    struct frame_decoder d;
    uint64_t h = 0;
    const uint8_t *frame;
    size_t n, at = 0;
    int r = FRAME_MORE;

    frame_decoder_init(&d, MAX_FRAME);
    while (at < size) {
        size_t piece = cut ? 1 + (cut >> at % 61) % 17 : size;

        piece = piece < size - at ? piece : size - at;
        FUZZ_CHECK(frame_decoder_push(&d, data + at, piece) == 0);
        at += piece;
        while ((r = frame_decoder_take(&d, &frame, &n)) == FRAME_OK) {
            h = XXH3_64bits_withSeed(frame, n, h + n);
            if (take)
                take_frame(frame, n);
        }
    }
    h += (uint64_t)r + frame_decoder_partial(&d);
    FUZZ_CHECK(d.held.cap <= 4 * (size + 1024));
    frame_decoder_deinit(&d);
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t whole;

    load_once();
    whole = digest(data, size, 0, true);
    FUZZ_CHECK(digest(data, size, XXH3_64bits(data, size) | 1, false) == whole);
    FUZZ_CHECK(digest(data, size, UINT64_C(1) << 63, false) == whole); /* byte by byte */
    return 0;
}

/* Where the frame of this number begins and how long its length and its message are; false: there
 * are fewer. */
static bool find_frame(const uint8_t *data, size_t size, unsigned int number, size_t *start,
                       size_t *prefix, size_t *length)
{
    size_t at = 0;

    do {
        *start = at;
        *length = 0;
        for (*prefix = 0; *prefix < FRAME_MAX_PREFIX && at < size; at++) {
            *length |= (size_t)(data[at] & 0x7f) << (7 * (*prefix)++);
            if (!(data[at] & 0x80))
                break;
        }
        if (at++ >= size || *length > size - at)
            return false;
        at += *length;
    } while (number--);
    return true;
}

/* Bytes changed at random mostly break the frames: so often one message is changed, and given its
 * length. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    size_t start, prefix, length, tail, n, n_prefix = 0;
    uint8_t message[MAX_FRAME + 1], new_prefix[FRAME_MAX_PREFIX];

    if (seed % 8 == 0 || !find_frame(data, size, seed / 8 % 6, &start, &prefix, &length) ||
        length > MAX_FRAME)
        return LLVMFuzzerMutate(data, size, max_size);
    memcpy(message, data + start + prefix, length);
    n = LLVMFuzzerMutate(message, length, sizeof(message));
    for (size_t left = n; n_prefix == 0 || left; left >>= 7)
        new_prefix[n_prefix++] = (uint8_t)((left & 0x7f) | (left > 0x7f ? 0x80 : 0));
    tail = size - start - prefix - length;
    if (start + n_prefix + n + tail > max_size)
        return size;
    memmove(data + start + n_prefix + n, data + start + prefix + length, tail);
    memcpy(data + start, new_prefix, n_prefix);
    memcpy(data + start + n_prefix, message, n);
    return start + n_prefix + n + tail;
}
