/* test_frame.c - the frame codec and bounded unpacking, fed with what a hostile peer would send. */
#include "proto/frame.h"
#include "proto/unpack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/nvllm.pb-c.h"
#include "tests/unit/run_suite.h"

static struct frame_buffer buffer;   /* of each test, empty */
static struct frame_decoder decoder; /* of each test that begins one */

static void tear_down(void)
{
    frame_buffer_deinit(&buffer);
    frame_decoder_deinit(&decoder);
}

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* A request with every kind of field: strings, bytes, sub-messages, packed and repeated ones. */
static void put_generate(struct frame_buffer *b, uint64_t id)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Generate g;
    Nvllm__V1__Chat chat = NVLLM__V1__CHAT__INIT;
    Nvllm__V1__Message m[3], *mp[3];
    Nvllm__V1__ToolCall call = NVLLM__V1__TOOL_CALL__INIT, *callp[1] = {&call};
    Nvllm__V1__Sampling s = NVLLM__V1__SAMPLING__INIT;
    Nvllm__V1__LogitBias bias = NVLLM__V1__LOGIT_BIAS__INIT, *biasp[2] = {&bias, &bias};
    ProtobufCBinaryData stops[2] = {{1, (uint8_t *)"x"}, {2, (uint8_t *)"\n\n"}};
    int32_t stop_ids[3] = {1, 300, 70000};

    nvllm__v1__generate__init(&g);
    for (int i = 0; i < 3; i++) {
        nvllm__v1__message__init(&m[i]);
        m[i].role = (char *)"user";
        m[i].has_content = true;
        m[i].content = (ProtobufCBinaryData){5, (uint8_t *)"hello"};
        mp[i] = &m[i];
    }
    call.has_name = true;
    call.name = (ProtobufCBinaryData){3, (uint8_t *)"sum"};
    m[1].tool_calls = callp;
    m[1].n_tool_calls = 1;
    chat.messages = mp;
    chat.n_messages = 3;
    bias.has_id = bias.has_bias = true;
    bias.id = 7;
    bias.bias = 1.5f;
    s.logit_bias = biasp;
    s.n_logit_bias = 2;
    s.stop_token_ids = stop_ids;
    s.n_stop_token_ids = 3;
    s.has_seed = true;
    s.seed = UINT64_MAX;
    g.input_case = NVLLM__V1__GENERATE__INPUT_CHAT;
    g.chat = &chat;
    g.sampling = &s;
    g.stop = stops;
    g.n_stop = 2;
    frame.has_id = true;
    frame.id = id;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
    frame.generate = &g;
    ck_assert_int_eq(frame_buffer_put(b, &frame.base), 0);
    ck_assert_uint_lt(b->data[0], 0x80); /* a length of one digit: tests skip it */
}

static void put_tokenize(struct frame_buffer *b, uint64_t id, size_t n_text)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Tokenize t = NVLLM__V1__TOKENIZE__INIT;
    uint8_t *text = malloc(n_text + 1);

    ck_assert_ptr_nonnull(text);
    memset(text, 'a', n_text);
    t.has_text = true;
    t.text = (ProtobufCBinaryData){n_text, text};
    frame.has_id = true;
    frame.id = id;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE;
    frame.tokenize = &t;
    ck_assert_int_eq(frame_buffer_put(b, &frame.base), 0);
    free(text);
}

static uint64_t frame_id(const uint8_t *data, size_t n)
{
    struct unpacked *u;
    uint64_t id;

    ck_assert_int_eq(unpack(&u, &nvllm__v1__client_frame__descriptor, data, n), UNPACK_OK);
    id = ((Nvllm__V1__ClientFrame *)unpacked_message(u))->id;
    unpacked_free(u);
    return id;
}

/* Takes all whole frames, whose ids count on from *want. */
static void take_all(struct frame_decoder *d, uint64_t *want)
{
    const uint8_t *frame;
    size_t n;

    while (frame_decoder_take(d, &frame, &n) == FRAME_OK)
        ck_assert_uint_eq(frame_id(frame, n), (*want)++);
}

/* What was put comes out, in order, whatever pieces it is pushed in. */
TEST(frames_survive_any_split)
{
    uint64_t seed = 1;

    put_tokenize(&buffer, 1, 0);
    put_generate(&buffer, 2);
    put_tokenize(&buffer, 3, 127); /* lengths of one, two and three digits */
    put_tokenize(&buffer, 4, 20000);
    put_generate(&buffer, 5);
    for (int round = 0; round < 200; round++) {
        uint64_t want = 1;

        frame_decoder_init(&decoder, FRAME_LARGEST_MAX);
        for (size_t at = 0, n; at < buffer.end; at += n) {
            n = round == 0 ? 1 : 1 + next_random(&seed) % (round < 100 ? 40 : 9000);
            if (n > buffer.end - at)
                n = buffer.end - at;
            ck_assert_int_eq(frame_decoder_push(&decoder, buffer.data + at, n), 0);
            take_all(&decoder, &want);
        }
        ck_assert_uint_eq(want, 6);
        ck_assert(!frame_decoder_partial(&decoder));
        frame_decoder_deinit(&decoder);
    }
}

/* Two frames cut at each possible place in two pushes. */
TEST(frames_survive_every_cut)
{
    put_generate(&buffer, 1);
    put_generate(&buffer, 2);
    for (size_t cut = 0; cut <= buffer.end; cut++) {
        uint64_t want = 1;

        frame_decoder_init(&decoder, FRAME_LARGEST_MAX);
        ck_assert_int_eq(frame_decoder_push(&decoder, buffer.data, cut), 0);
        take_all(&decoder, &want);
        ck_assert(frame_decoder_partial(&decoder) ==
                  (cut != 0 && cut != buffer.end / 2 && cut != buffer.end));
        ck_assert_int_eq(frame_decoder_push(&decoder, buffer.data + cut, buffer.end - cut), 0);
        take_all(&decoder, &want);
        ck_assert_uint_eq(want, 3);
        frame_decoder_deinit(&decoder);
    }
}

static int take_of(const void *bytes, size_t n, uint32_t max, size_t *cap)
{
    const uint8_t *frame;
    size_t len;
    int r;

    frame_decoder_init(&decoder, max);
    ck_assert_int_eq(frame_decoder_push(&decoder, bytes, n), 0);
    r = frame_decoder_take(&decoder, &frame, &len);
    if (r != FRAME_OK && r != FRAME_MORE) {
        ck_assert_int_eq(frame_decoder_push(&decoder, "\x00", 1), 0); /* does not heal */
        ck_assert_int_eq(frame_decoder_take(&decoder, &frame, &len), r);
    }
    *cap = decoder.held.cap;
    frame_decoder_deinit(&decoder);
    return r;
}

/* A length over the limit is refused at its prefix, before any memory is taken for it. */
TEST(large_lengths_are_refused_at_once)
{
    size_t cap;

    ck_assert_int_eq(take_of("\xff\xff\xff\xff\x0f", 5, 1 << 20, &cap), FRAME_E_TOO_LARGE);
    ck_assert_uint_le(cap, 4096);
    ck_assert_int_eq(take_of("\xff\xff\xff", 3, 1 << 20, &cap), FRAME_E_TOO_LARGE);
    ck_assert_int_eq(take_of("\x80\x02", 2, 256, &cap), FRAME_MORE);
    ck_assert_int_eq(take_of("\x81\x02", 2, 256, &cap), FRAME_E_TOO_LARGE);
    /* half a gigabyte is promised and allowed, yet only what comes is kept */
    ck_assert_int_eq(take_of("\x80\x80\x80\x80\x02 abc", 9, FRAME_LARGEST_MAX, &cap), FRAME_MORE);
    ck_assert_uint_le(cap, 4096);
}

/* A length of more than 32 bits, of more than five digits, or with needless ones is no length. */
TEST(bad_prefixes_are_refused)
{
    size_t cap;

    ck_assert_int_eq(take_of("\x80\x80\x80\x80\x10", 5, FRAME_LARGEST_MAX, &cap), FRAME_E_PREFIX);
    ck_assert_int_eq(take_of("\x80\x80\x80\x80\x80\x01", 6, 4096, &cap), FRAME_E_PREFIX);
    ck_assert_int_eq(take_of("\x80\x80\x80\x80\x80", 5, 4096, &cap), FRAME_E_PREFIX);
    ck_assert_int_eq(take_of("\x80\x80\x80\x80", 4, 4096, &cap), FRAME_MORE);
    ck_assert_int_eq(take_of("\x81\x00", 2, 4096, &cap), FRAME_E_PREFIX);
    ck_assert_int_eq(take_of("\x80\x00", 2, 4096, &cap), FRAME_E_PREFIX);
}

/* Length 0 is a frame: an empty message. */
TEST(empty_frame_is_a_frame)
{
    const uint8_t *frame;
    size_t len = 9;

    frame_decoder_init(&decoder, 1);
    ck_assert_int_eq(frame_decoder_push(&decoder, "\x00\x00", 2), 0);
    ck_assert_int_eq(frame_decoder_take(&decoder, &frame, &len), FRAME_OK);
    ck_assert_uint_eq(len, 0);
    ck_assert_uint_eq(frame_id(frame, len), 0);
    ck_assert_int_eq(frame_decoder_take(&decoder, &frame, &len), FRAME_OK);
    ck_assert_int_eq(frame_decoder_take(&decoder, &frame, &len), FRAME_MORE);
}

/* A decoder is ready when a whole frame is there, or what can never become one. */
TEST(ready_when_something_can_be_said)
{
    const uint8_t *frame;
    size_t len;

    put_tokenize(&buffer, 1, 300);
    frame_decoder_init(&decoder, 4096);
    ck_assert(!frame_decoder_ready(&decoder));
    for (size_t i = 0; i < buffer.end; i++) {
        ck_assert(!frame_decoder_ready(&decoder));
        ck_assert_int_eq(frame_decoder_push(&decoder, buffer.data + i, 1), 0);
    }
    ck_assert(frame_decoder_ready(&decoder));
    ck_assert_int_eq(frame_decoder_take(&decoder, &frame, &len), FRAME_OK);
    ck_assert(!frame_decoder_ready(&decoder));
    ck_assert_int_eq(frame_decoder_push(&decoder, "\xff\xff\xff", 3), 0);
    ck_assert(frame_decoder_ready(&decoder));
    ck_assert_int_eq(frame_decoder_take(&decoder, &frame, &len), FRAME_E_TOO_LARGE);
    ck_assert(frame_decoder_ready(&decoder));
}

/* Memory of a large frame goes back once it has been taken. */
TEST(decoder_shrinks_after_a_large_frame)
{
    const uint8_t *frame;
    size_t len;

    put_tokenize(&buffer, 1, 4 << 20);
    frame_decoder_init(&decoder, FRAME_LARGEST_MAX);
    ck_assert_int_eq(frame_decoder_push(&decoder, buffer.data, buffer.end), 0);
    ck_assert_int_eq(frame_decoder_take(&decoder, &frame, &len), FRAME_OK);
    ck_assert_int_eq(frame_decoder_push(&decoder, "\x00", 1), 0);
    ck_assert_uint_le(decoder.held.cap, 64 << 10);
    frame_buffer_consume(&buffer, frame_buffer_bytes(&buffer));
    ck_assert_uint_eq(buffer.cap, 0);
}

/* A frame whose body was packed ahead is the frame that all at once makes, in an empty buffer
 * and behind others. */
TEST(body_packed_ahead_is_the_same_frame)
{
    Nvllm__V1__ServerFrame whole = NVLLM__V1__SERVER_FRAME__INIT, body = whole, head = whole;
    Nvllm__V1__Text text = NVLLM__V1__TEXT__INIT;
    struct frame_buffer want = {0}, got = {0};
    char letters[5000];

    memset(letters, 'a', sizeof(letters));
    text.has_text = true;
    text.text = (ProtobufCBinaryData){sizeof(letters), (uint8_t *)letters};
    whole.event_case = body.event_case = NVLLM__V1__SERVER_FRAME__EVENT_TEXT;
    whole.text = body.text = &text;
    whole.has_id = head.has_id = true;
    whole.id = head.id = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        void *packed;

        ck_assert_int_eq(frame_buffer_put(&want, &whole.base), 0);
        ck_assert_int_eq(frame_body_pack(&packed, &bytes, &body.base, sizeof(letters) + 100), 0);
        ck_assert_int_eq(frame_buffer_put_body(&got, &head.base, packed, bytes, 100), -EMSGSIZE);
        ck_assert_int_eq(frame_buffer_put_body(&got, &head.base, packed, bytes, 1 << 20), 0);
        ck_assert_uint_eq(frame_buffer_bytes(&got), frame_buffer_bytes(&want));
        ck_assert_mem_eq(got.data + got.start, want.data + want.start, frame_buffer_bytes(&want));
    }
    frame_buffer_consume(&got, frame_buffer_bytes(&got));
    ck_assert_uint_eq(got.cap, 0);
    frame_buffer_deinit(&got);
    frame_buffer_deinit(&want);
}

/* A body over the limit is not packed. */
TEST(body_over_the_limit_is_refused)
{
    Nvllm__V1__Text text = NVLLM__V1__TEXT__INIT;
    void *packed = NULL;
    size_t bytes;

    text.has_text = true;
    text.text = (ProtobufCBinaryData){4, (uint8_t *)"abcd"}; /* and two before it */
    ck_assert_int_eq(frame_body_pack(&packed, &bytes, &text.base, 5), -EMSGSIZE);
    ck_assert_ptr_null(packed);
    ck_assert_int_eq(frame_body_pack(&packed, &bytes, &text.base, 6), 0);
    free(packed);
}

/* Written in pieces of any size, a buffer's bytes come out once each and in order. */
TEST(buffer_keeps_order_through_partial_writes)
{
    uint64_t seed = 3, put = 0, want = 1;

    frame_decoder_init(&decoder, FRAME_LARGEST_MAX);
    while (want <= 500) {
        size_t n;

        if (put < 500 && next_random(&seed) % 2)
            put_tokenize(&buffer, ++put, next_random(&seed) % 300);
        n = next_random(&seed) % 200;
        if (n > frame_buffer_bytes(&buffer))
            n = frame_buffer_bytes(&buffer);
        ck_assert_int_eq(frame_decoder_push(&decoder, buffer.data + buffer.start, n), 0);
        frame_buffer_consume(&buffer, n);
        take_all(&decoder, &want);
    }
}

/* A buffer that stays nearly full while small frames go in and out moves few bytes to its front,
 * and does not grow without end. */
TEST(full_buffer_moves_few_bytes)
{
    size_t consumed = 0, moved = 0;

    put_tokenize(&buffer, 1, 100000);
    for (int i = 0; i < 50000; i++) {
        size_t start = buffer.start;

        put_tokenize(&buffer, 2, 20);
        if (buffer.start < start)
            moved += frame_buffer_bytes(&buffer);
        frame_buffer_consume(&buffer, 25);
        consumed += 25;
    }
    ck_assert_uint_lt(moved, 3 * consumed);
    ck_assert_uint_lt(buffer.cap, 4 * frame_buffer_bytes(&buffer));
}

/* Mutated and random frames are a message or an error, never a fault, whatever the budget. */
TEST(unpacking_survives_mutation_and_any_budget)
{
    uint64_t seed = 42;
    int results[4] = {0};
    uint8_t *copy;

    put_generate(&buffer, 77);
    copy = malloc(buffer.end);
    ck_assert_ptr_nonnull(copy);
    for (int round = 0; round < 60000; round++) {
        struct unpacked *u = NULL;
        size_t n = buffer.end - 1, budget;
        int r;

        memcpy(copy, buffer.data + 1, n);
        for (uint64_t k = next_random(&seed) % 4; k > 0; k--)
            copy[next_random(&seed) % n] = (uint8_t)next_random(&seed);
        if (round % 7 == 0)
            n = next_random(&seed) % n;
        budget = next_random(&seed) % (round % 2 ? 3000 : 100000);
        r = unpack_within(&u, &nvllm__v1__client_frame__descriptor, copy, n, budget);
        ck_assert_int_lt(r, 4);
        results[r]++;
        ck_assert((r == UNPACK_OK) == (u != NULL));
        if (u)
            ck_assert_uint_le(unpacked_bytes(u), budget);
        unpacked_free(u);
    }
    ck_assert_int_gt(results[UNPACK_OK], 1000);
    ck_assert_int_gt(results[UNPACK_E_INVALID], 1000);
    ck_assert_int_gt(results[UNPACK_E_BUDGET], 1000);
    free(copy);
}

/* Each budget from nothing up to what is needed fails cleanly, and the next succeeds. */
TEST(every_smaller_budget_fails)
{
    struct unpacked *u;
    size_t needed;

    put_generate(&buffer, 1);
    ck_assert_int_eq(unpack(&u, &nvllm__v1__client_frame__descriptor, buffer.data + 1,
                            buffer.end - 1),
                     UNPACK_OK);
    needed = unpacked_bytes(u);
    unpacked_free(u);
    for (size_t budget = 0; budget < needed; budget++)
        ck_assert_int_eq(unpack_within(&u, &nvllm__v1__client_frame__descriptor, buffer.data + 1,
                                       buffer.end - 1, budget),
                         UNPACK_E_BUDGET);
    ck_assert_int_eq(unpack_within(&u, &nvllm__v1__client_frame__descriptor, buffer.data + 1,
                                   buffer.end - 1, needed),
                     UNPACK_OK);
    unpacked_free(u);
}

/* A frame of empty messages, a hundred bytes of memory for two of its own, is over its budget. */
TEST(amplification_is_refused)
{
    enum { N = 1 << 20 };
    uint8_t *bytes = malloc(N);
    struct unpacked *u;

    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < N; i += 2) {
        bytes[i] = 0x0a; /* Chat.messages, length 0 */
        bytes[i + 1] = 0;
    }
    ck_assert_int_eq(unpack(&u, &nvllm__v1__chat__descriptor, bytes, N), UNPACK_E_BUDGET);
    /* merging a sub-message with itself again and again takes quadratic memory */
    for (size_t i = 0; i + 4 <= N; i += 4)
        memcpy(bytes + i, "\x22\x02\x42\x00", 4); /* Generate.sampling {logit_bias {}} */
    ck_assert_int_eq(unpack(&u, &nvllm__v1__generate__descriptor, bytes, N), UNPACK_E_BUDGET);
    free(bytes);
}

static int unpack_chat(const uint8_t *bytes, size_t n)
{
    struct unpacked *u = NULL;
    int r = unpack_request(&u, &nvllm__v1__chat__descriptor, bytes, n);

    unpacked_free(u);
    return r;
}

/* So many fields and not one more may be in a request, at whatever depth they lie. */
TEST(fields_of_a_request_are_counted)
{
    enum { N = UNPACK_MAX_FIELDS };
    uint8_t *bytes = malloc(4 * N + 16);

    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i <= N; i++)
        memcpy(bytes + 2 * i, "\x18\x01", 2); /* add_generation_prompt, again and again */
    ck_assert_int_eq(unpack_chat(bytes, 2 * N), UNPACK_OK);
    ck_assert_int_eq(unpack_chat(bytes, 2 * (N + 1)), UNPACK_E_FIELDS);
    for (size_t i = 0; i <= N; i++)
        memcpy(bytes + 2 * i, "\x78\x01", 2); /* of a number that is not known */
    ck_assert_int_eq(unpack_chat(bytes, 2 * N), UNPACK_OK);
    ck_assert_int_eq(unpack_chat(bytes, 2 * (N + 1)), UNPACK_E_FIELDS);
    /* in a message, which is one itself */
    memcpy(bytes, "\x0a\xfe\xff\x01", 4);
    for (size_t i = 0; i < N; i++)
        memcpy(bytes + 4 + 2 * i, "\x78\x01", 2);
    ck_assert_int_eq(unpack_chat(bytes, 4 + 2 * (N - 1)), UNPACK_OK);
    memcpy(bytes, "\x0a\x80\x80\x02", 4);
    ck_assert_int_eq(unpack_chat(bytes, 4 + 2 * N), UNPACK_E_FIELDS);
    free(bytes);
}

/* What becomes of a request that holds an id n times. */
static int unpack_ids(int32_t id, size_t n)
{
    Nvllm__V1__TokenIds m = NVLLM__V1__TOKEN_IDS__INIT;
    struct unpacked *u = NULL;
    uint8_t *bytes;
    int r;

    m.n_ids = n;
    m.ids = malloc(n * sizeof(*m.ids));
    ck_assert_ptr_nonnull(m.ids);
    for (size_t i = 0; i < n; i++)
        m.ids[i] = id;
    bytes = malloc(nvllm__v1__token_ids__get_packed_size(&m));
    ck_assert_ptr_nonnull(bytes);
    n = nvllm__v1__token_ids__pack(&m, bytes);
    r = unpack_request(&u, &nvllm__v1__token_ids__descriptor, bytes, n);
    unpacked_free(u);
    free(bytes);
    free(m.ids);
    return r;
}

/* Packed numbers are counted by themselves, however many bytes each takes; long ones take a long
 * time, and count for more. */
TEST(numbers_of_a_request_are_counted)
{
    enum { N = UNPACK_MAX_NUMBERS, TEN_BYTES = N * 3 / 10 };

    ck_assert_int_eq(unpack_ids(1, N), UNPACK_OK);
    ck_assert_int_eq(unpack_ids(1, N + 1), UNPACK_E_FIELDS);
    ck_assert_int_eq(unpack_ids(100000, N), UNPACK_OK);
    ck_assert_int_eq(unpack_ids(100000, N + 1), UNPACK_E_FIELDS);
    ck_assert_int_eq(unpack_ids(-1, TEN_BYTES), UNPACK_OK);
    ck_assert_int_eq(unpack_ids(-1, TEN_BYTES + 2), UNPACK_E_FIELDS);
}

/* A long text gives the fields beside it nothing to spend: merging a sub-message with itself takes
 * quadratic memory. */
TEST(texts_pay_for_themselves_alone)
{
    enum { TEXT = 8 << 20, N = 5000 };
    size_t n = 5 + TEXT + 4 * N;
    uint8_t *bytes = calloc(1, n);
    struct unpacked *u = NULL;

    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, "\x0a\x80\x80\x80\x04", 5); /* Generate.prompt */
    for (size_t i = 0; i < N; i++)
        memcpy(bytes + 5 + TEXT + 4 * i, "\x22\x02\x42\x00", 4);
    ck_assert_int_eq(unpack_request(&u, &nvllm__v1__generate__descriptor, bytes, 5 + TEXT),
                     UNPACK_OK);
    unpacked_free(u);
    ck_assert_int_eq(unpack_request(&u, &nvllm__v1__generate__descriptor, bytes, n),
                     UNPACK_E_BUDGET);
    free(bytes);
}

/* The hungriest honest request, thousands of two-letter messages, fits its budget. */
TEST(small_chat_messages_fit)
{
    Nvllm__V1__Chat chat = NVLLM__V1__CHAT__INIT;
    Nvllm__V1__Message m = NVLLM__V1__MESSAGE__INIT, *mp[5000];
    struct unpacked *u;

    m.role = (char *)"user";
    m.has_content = true;
    m.content = (ProtobufCBinaryData){2, (uint8_t *)"hi"};
    for (int i = 0; i < 5000; i++)
        mp[i] = &m;
    chat.messages = mp;
    chat.n_messages = 5000;
    ck_assert_int_eq(frame_buffer_put(&buffer, &chat.base), 0);
    ck_assert_int_eq(unpack(&u, &nvllm__v1__chat__descriptor, buffer.data + 3, buffer.end - 3),
                     UNPACK_OK);
    ck_assert_uint_lt(unpacked_bytes(u), 20 * buffer.end);
    unpacked_free(u);
    ck_assert_int_eq(unpack_request(&u, &nvllm__v1__chat__descriptor, buffer.data + 3,
                                    buffer.end - 3),
                     UNPACK_OK);
    unpacked_free(u);
}

/* More memory of a message's life is zeroed, aligned, and absurd sizes are refused. */
TEST(unpacked_memory_can_be_extended)
{
    struct unpacked *u;

    ck_assert_int_eq(unpack(&u, &nvllm__v1__chat__descriptor, (const uint8_t *)"", 0), UNPACK_OK);
    for (size_t n = 0; n < 3000; n += 7) {
        uint8_t *p = unpacked_alloc(u, n, 3);

        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < 3 * n; i++)
            ck_assert_uint_eq(p[i], 0);
        memset(p, 0xff, 3 * n);
    }
    ck_assert_ptr_null(unpacked_alloc(u, SIZE_MAX / 2, 3));
    ck_assert_ptr_null(unpacked_alloc(u, SIZE_MAX, 1));
    unpacked_free(u);
}

static void no_recursion(const ProtobufCMessageDescriptor *type,
                         const ProtobufCMessageDescriptor **path, int depth, int *seen)
{
    for (int i = 0; i < depth; i++)
        ck_assert_msg(path[i] != type, "%s holds itself", type->name);
    ck_assert_int_lt(depth, 16);
    path[depth] = type;
    ++*seen;
    for (unsigned i = 0; i < type->n_fields; i++)
        if (type->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
            no_recursion(type->fields[i].descriptor, path, depth + 1, seen);
}

/* No message of the protocol can hold itself: unpacking, which recurses, has a bounded stack. */
TEST(schema_is_not_recursive)
{
    const ProtobufCMessageDescriptor *path[16];
    int seen = 0;

    no_recursion(&nvllm__v1__client_frame__descriptor, path, 0, &seen);
    no_recursion(&nvllm__v1__server_frame__descriptor, path, 0, &seen);
    ck_assert_int_gt(seen, 20);
}

/* A message of just the most bytes is put, one of more leaves the buffer as it was. */
TEST(messages_are_put_within_a_limit)
{
    Nvllm__V1__Text m = NVLLM__V1__TEXT__INIT;
    size_t n;

    m.has_text = true;
    m.text = (ProtobufCBinaryData){5, (uint8_t *)"hello"};
    n = protobuf_c_message_get_packed_size(&m.base);
    ck_assert_int_eq(frame_buffer_put_body(&buffer, &m.base, NULL, 0, n), 0);
    ck_assert_uint_eq(frame_buffer_bytes(&buffer), n + 1);
    ck_assert_int_eq(frame_buffer_put_body(&buffer, &m.base, NULL, 0, n - 1), -EMSGSIZE);
    ck_assert_uint_eq(frame_buffer_bytes(&buffer), n + 1);
}

RUN_TESTS("frame", NULL, tear_down)
