/* fuzz_http.c - the head of an HTTP request, and behind it a body in chunks. What is taken of a
 * head lies inside it; a body is the same in whatever pieces it comes. */
#include <string.h>

#include "client/openai/parse.h"
#include "tests/fuzz/fuzz.h"

/* Absent, or inside of the head and without control characters. */
static void check_text(struct nvllm_text text, const char *head, size_t n)
{
    if (!text.data)
        return;
    FUZZ_CHECK(text.data >= head && text.len <= (size_t)(head + n - text.data));
    for (size_t i = 0; i < text.len; i++)
        FUZZ_CHECK((unsigned char)text.data[i] >= ' ' || text.data[i] == '\t');
}

static void check_head(const struct http_head *h, const char *head, size_t n)
{
    check_text(h->method, head, n);
    check_text(h->path, head, n);
    check_text(h->host, head, n);
    check_text(h->origin, head, n);
    check_text(h->authorization, head, n);
    check_text(h->content_encoding, head, n);
    FUZZ_CHECK(h->method.len > 0 && h->path.len > 0 && h->path.data[0] == '/');
    FUZZ_CHECK(!memchr(h->path.data, '?', h->path.len) && !memchr(h->path.data, ' ', h->path.len));
    FUZZ_CHECK(!(h->chunked && (h->has_length || h->is_1_0)));
    FUZZ_CHECK(h->has_length || h->content_length == 0);
    FUZZ_CHECK(h->host.data || h->is_1_0);
}

/* What chunks hold. */
struct body {
    uint64_t n, sum;
    size_t taken;
    bool wrong, done;
};

static struct body decode(const char *data, size_t n, size_t piece)
{
    struct http_chunks c = {0};
    struct body b = {0};

    while (b.taken < n && c.state != CHUNK_DONE) {
        size_t left = n - b.taken < piece ? n - b.taken : piece;
        struct nvllm_text text;
        ptrdiff_t took = http_chunks_take(&c, &text, data + b.taken, left);

        if (took < 0) {
            b.wrong = true;
            break;
        }
        FUZZ_CHECK(took > 0 && (size_t)took <= left);
        FUZZ_CHECK(text.len <= (size_t)(data + b.taken + took - text.data));
        for (size_t i = 0; i < text.len; i++)
            b.sum = b.sum * 31 + (unsigned char)text.data[i];
        b.n += text.len;
        b.taken += (size_t)took;
    }
    b.done = c.state == CHUNK_DONE;
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = memmem(text, size, "\r\n\r\n", 4);
    size_t n = end ? (size_t)(end - text) + 4 : size;
    struct http_head head;
    struct body whole, pieces;
    int status = http_parse_head(&head, text, n);

    FUZZ_CHECK(status == 0 || (status >= 400 && status < 600));
    FUZZ_CHECK(status != 0 || end);
    if (status == 0)
        check_head(&head, text, n - FUZZ_PLANT * 20); /* as if it were shorter */
    whole = decode(text + n, size - n, SIZE_MAX);
    for (size_t piece = 1; piece < 40; piece = piece * 2 + 1) {
        pieces = decode(text + n, size - n, piece);
        FUZZ_CHECK(whole.wrong == pieces.wrong && whole.done == pieces.done);
        FUZZ_CHECK(whole.wrong ||
                   (whole.n == pieces.n && whole.sum == pieces.sum && whole.taken == pieces.taken));
    }
    return 0;
}
