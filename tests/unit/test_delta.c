/* test_delta.c - the short way of the most frequent frame beside protobuf-c's, which is right by
 * definition. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/delta.h"
#include "proto/nvllm.pb-c.h"
#include "tests/unit/run_suite.h"

static int32_t ids[DELTA_MAX_IDS];

/* A frame of its own size, so that a sanitizer sees a byte too many being read. */
struct bytes {
    uint8_t *data;
    size_t n;
};

static struct bytes pack(uint64_t id, const Nvllm__V1__Delta *d)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    struct bytes b;

    f.has_id = true;
    f.id = id;
    f.event_case = NVLLM__V1__SERVER_FRAME__EVENT_DELTA;
    f.delta = (Nvllm__V1__Delta *)d;
    b.n = nvllm__v1__server_frame__get_packed_size(&f);
    b.data = malloc(b.n);
    nvllm__v1__server_frame__pack(&f, b.data);
    return b;
}

/* What delta_read() takes it must take as protobuf-c does. True: it did take it. */
static bool agrees(const uint8_t *data, size_t n)
{
    Nvllm__V1__ServerFrame *f = nvllm__v1__server_frame__unpack(NULL, n, data);
    struct delta d;
    bool taken = delta_read(&d, ids, data, n);

    if (taken) {
        const Nvllm__V1__Delta *right;

        ck_assert_ptr_nonnull(f);
        ck_assert_int_eq(f->event_case, NVLLM__V1__SERVER_FRAME__EVENT_DELTA);
        right = f->delta;
        ck_assert(f->has_id && f->id == d.id);
        ck_assert_uint_eq(right->choice, d.choice);
        ck_assert_uint_eq(right->has_text ? right->text.len : 0, d.text_len);
        if (d.text_len > 0)
            ck_assert_mem_eq(right->text.data, d.text, d.text_len);
        ck_assert_uint_eq(right->n_token_ids, d.n_tokens);
        if (d.n_tokens > 0)
            ck_assert_mem_eq(right->token_ids, d.token_ids, d.n_tokens * sizeof(*ids));
        ck_assert_int_eq(right->has_finish_reason ? (int)right->finish_reason : 0, (int)d.finish);
        ck_assert_uint_eq(right->n_logprobs, 0);
    }
    if (f)
        nvllm__v1__server_frame__free_unpacked(f, NULL);
    return taken;
}

static bool agrees_packed(uint64_t id, const Nvllm__V1__Delta *d)
{
    struct bytes b = pack(id, d);
    bool taken = agrees(b.data, b.n);

    free(b.data);
    return taken;
}

/* All that the daemon writes for a token is read the short way. */
START_TEST(ordinary_deltas)
{
    static const uint64_t request_ids[] = {1, 127, 128, 70000, (1ull << 63) - 1};
    int32_t tokens[] = {0, 127, 128, 151935, INT32_MAX};
    Nvllm__V1__Delta d = NVLLM__V1__DELTA__INIT;

    for (size_t i = 0; i < sizeof(request_ids) / sizeof(*request_ids); i++)
        for (int parts = 0; parts < 16; parts++) {
            nvllm__v1__delta__init(&d);
            d.has_choice = parts & 1;
            d.choice = UINT32_MAX;
            d.has_text = (parts & 2) != 0;
            d.text = (ProtobufCBinaryData){300, (uint8_t *)calloc(1, 300)};
            d.n_token_ids = parts & 4 ? 5 : 0;
            d.token_ids = tokens;
            d.has_finish_reason = (parts & 8) != 0;
            d.finish_reason = NVLLM__V1__FINISH_REASON__FINISH_LENGTH;
            ck_assert(agrees_packed(request_ids[i], &d));
            free(d.text.data);
        }
}
END_TEST

/* Logprobs, negative ids and more ids than there is room for go the long way. */
START_TEST(other_deltas)
{
    Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT, *rows[] = {&row};
    Nvllm__V1__Delta d = NVLLM__V1__DELTA__INIT;
    int32_t many[DELTA_MAX_IDS + 1] = {0};

    d.token_ids = many;
    d.n_token_ids = DELTA_MAX_IDS;
    ck_assert(agrees_packed(1, &d));
    d.n_token_ids++;
    ck_assert(!agrees_packed(1, &d));
    d.n_token_ids = 1;
    many[0] = -1;
    ck_assert(!agrees_packed(1, &d));
    many[0] = 1;
    ck_assert(agrees_packed(1, &d));
    d.n_logprobs = 1;
    d.logprobs = rows;
    ck_assert(!agrees_packed(1, &d));
}
END_TEST

/* No beginning of a frame, and no frame with a byte behind it, is taken for a whole one. */
START_TEST(cut_frames)
{
    int32_t tokens[] = {300, 5};
    Nvllm__V1__Delta d = NVLLM__V1__DELTA__INIT;
    struct bytes b;

    d.has_text = true;
    d.text = (ProtobufCBinaryData){3, (uint8_t *)"abc"};
    d.n_token_ids = 2;
    d.token_ids = tokens;
    b = pack(7, &d);
    for (size_t n = 0; n < b.n; n++) {
        uint8_t *cut = malloc(n + 1);

        memcpy(cut, b.data, n);
        cut = realloc(cut, n ? n : 1);
        ck_assert(!agrees(cut, n));
        free(cut);
    }
    ck_assert(agrees(b.data, b.n));
    b.data = realloc(b.data, b.n + 1);
    b.data[b.n] = 0;
    ck_assert(!agrees(b.data, b.n + 1));
    free(b.data);
}
END_TEST

/* Whatever is done to good frames, what is still taken says the same as protobuf-c says. */
START_TEST(damaged_frames)
{
    enum { ROUNDS = 300000 };
    uint64_t seed = 1;
    int n_taken = 0;

    for (int round = 0; round < ROUNDS; round++) {
        int32_t tokens[4] = {round, round * 7001, 1, 2};
        Nvllm__V1__Delta d = NVLLM__V1__DELTA__INIT;
        struct bytes b;

        d.has_choice = round & 1;
        d.has_text = (round & 2) != 0;
        d.text = (ProtobufCBinaryData){(size_t)round % 9, (uint8_t *)"textabcd"};
        d.n_token_ids = (size_t)round % 5;
        d.token_ids = tokens;
        d.has_finish_reason = (round & 4) != 0;
        b = pack((uint64_t)round % 300, &d);
        for (int i = 0; i < 1 + round % 3; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            if (seed >> 60 & 1)
                b.data[(seed >> 33) % b.n] ^= (uint8_t)(1u << (seed >> 61));
            else
                b.data[(seed >> 33) % b.n] = (uint8_t)(seed >> 20);
        }
        n_taken += agrees(b.data, b.n);
        free(b.data);
    }
    ck_assert_int_gt(n_taken, ROUNDS / 10);
    ck_assert_int_lt(n_taken, ROUNDS / 10 * 9);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("delta");
    Suite *s = suite_create("delta");

    tcase_add_test(tc, ordinary_deltas);
    tcase_add_test(tc, other_deltas);
    tcase_add_test(tc, cut_frames);
    tcase_add_test(tc, damaged_frames);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
