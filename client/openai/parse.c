/* parse.c - see parse.h. */
#include "client/openai/parse.h"

#include <string.h>
#include <strings.h>

enum {
    MAX_EXTRA = 4096,       /* bytes of a body's chunk extensions and trailers */
    MAX_SIZE_DIGITS = 12,   /* of a chunk */
    MAX_LENGTH_DIGITS = 15, /* of Content-Length */
};

bool http_is_word(struct nvllm_text text, const char *word)
{
    return text.data && text.len == strlen(word) && strncasecmp(text.data, word, text.len) == 0;
}

/* A letter of a method or a field's name. */
static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static size_t token_length(const char *p, const char *end)
{
    const char *from = p;

    while (p < end && is_token(*p))
        p++;
    return (size_t)(p - from);
}

/* ---- the first line */

static int take_line(struct http_head *out, const char *p, const char *end)
{
    static const char version[] = "HTTP/1.";
    const char *query;

    out->method = (struct nvllm_text){p, token_length(p, end)};
    p += out->method.len;
    if (out->method.len == 0 || p == end || *p++ != ' ' || p == end || *p != '/')
        return 400; /* as for a proxy, too: “GET http://host/” */
    out->path.data = p;
    while (p<end && * p> ' ' && *p < 0x7f)
        p++;
    out->path.len = (size_t)(p - out->path.data);
    query = memchr(out->path.data, '?', out->path.len);
    if (query)
        out->path.len = (size_t)(query - out->path.data);
    if ((size_t)(end - p) != 1 + sizeof(version) || *p++ != ' ')
        return 400;
    if (memcmp(p, version, sizeof(version) - 1) != 0)
        return memcmp(p, version, 5) == 0 ? 505 : 400;
    p += sizeof(version) - 1;
    if (*p != '0' && *p != '1')
        return 505;
    out->is_1_0 = *p == '0';
    out->keep_alive = !out->is_1_0;
    return 0;
}

/* ---- fields */

static int take_length(struct http_head *out, struct nvllm_text value)
{
    if (out->has_length || value.len == 0 || value.len > MAX_LENGTH_DIGITS)
        return 400;
    out->has_length = true;
    for (size_t i = 0; i < value.len; i++) {
        if (value.data[i] < '0' || value.data[i] > '9')
            return 400;
        out->content_length = out->content_length * 10 + (uint64_t)(value.data[i] - '0');
    }
    return 0;
}

static int take_encoding(struct http_head *out, struct nvllm_text value)
{
    if (out->chunked)
        return 400;
    out->chunked = true;
    return http_is_word(value, "chunked") ? 0 : 501;
}

static int take_connection(struct http_head *out, struct nvllm_text value)
{
    const char *p = value.data, *end = value.data + value.len;

    while (p < end) {
        struct nvllm_text word = {p, token_length(p, end)};

        if (http_is_word(word, "close"))
            out->keep_alive = false;
        else if (http_is_word(word, "keep-alive") && out->is_1_0)
            out->keep_alive = true;
        p += word.len ? word.len : 1;
    }
    return 0;
}

static int take_expect(struct http_head *out, struct nvllm_text value)
{
    out->expects_continue = !out->is_1_0;
    return http_is_word(value, "100-continue") ? 0 : 417;
}

static int take_once(struct nvllm_text *out, struct nvllm_text value)
{
    if (out->data)
        return 400;
    *out = value;
    return 0;
}

static int take_field(struct http_head *out, struct nvllm_text name, struct nvllm_text value)
{
    if (http_is_word(name, "host"))
        return take_once(&out->host, value);
    if (http_is_word(name, "origin"))
        return take_once(&out->origin, value);
    if (http_is_word(name, "authorization"))
        return take_once(&out->authorization, value);
    if (http_is_word(name, "content-encoding"))
        return take_once(&out->content_encoding, value);
    if (http_is_word(name, "content-length"))
        return take_length(out, value);
    if (http_is_word(name, "transfer-encoding"))
        return take_encoding(out, value);
    if (http_is_word(name, "connection"))
        return take_connection(out, value);
    if (http_is_word(name, "expect"))
        return take_expect(out, value);
    return 0;
}

/* “Name: value”, without blanks around the value. */
static int split_field(struct nvllm_text *name, struct nvllm_text *value, const char *p,
                       const char *end)
{
    *name = (struct nvllm_text){p, token_length(p, end)};
    p += name->len;
    if (name->len == 0 || p == end || *p++ != ':')
        return 400; /* also a line that continues the one before */
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *value = (struct nvllm_text){p, (size_t)(end - p)};
    for (; p < end; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return 400;
    return 0;
}

int http_parse_head(struct http_head *out, const char *data, size_t n)
{
    const char *p = data, *end = data + n;
    int status = 0, n_fields = -1;

    *out = (struct http_head){0};
    while (status == 0) {
        const char *line_end = memchr(p, '\r', (size_t)(end - p));
        struct nvllm_text name, value;

        if (!line_end || line_end + 1 >= end || line_end[1] != '\n')
            return 400;
        if (line_end == p && n_fields >= 0)
            break;
        if (++n_fields > PARSE_MAX_FIELDS)
            return 431;
        if (n_fields == 0)
            status = take_line(out, p, line_end);
        else if ((status = split_field(&name, &value, p, line_end)) == 0)
            status = take_field(out, name, value);
        p = line_end + 2;
    }
    if (status == 0 &&
        ((out->chunked && (out->has_length || out->is_1_0)) || (!out->host.data && !out->is_1_0)))
        status = 400;
    return status;
}

/* ---- chunks */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The state after a byte outside of data; -1: it does not belong there. */
static int chunk_step(struct http_chunks *c, char byte)
{
    int digit = digit_of(byte);

    switch (c->state) {
    case CHUNK_SIZE:
        if (digit >= 0) {
            c->left = c->left * 16 + (uint64_t)digit;
            return ++c->digits <= MAX_SIZE_DIGITS ? CHUNK_SIZE : -1;
        }
        if (c->digits == 0)
            return -1;
        return byte == '\r' ? CHUNK_SIZE_END : byte == ';' ? CHUNK_EXTENSION : -1;
    case CHUNK_EXTENSION:
        c->extra++;
        return byte == '\r' ? CHUNK_SIZE_END : byte == '\n' ? -1 : CHUNK_EXTENSION;
    case CHUNK_SIZE_END:
        c->digits = 0;
        return byte != '\n' ? -1 : c->left ? CHUNK_DATA : CHUNK_TRAILER;
    case CHUNK_DATA_END:
        return byte == '\r' ? CHUNK_DATA_END_LF : -1;
    case CHUNK_DATA_END_LF:
        return byte == '\n' ? CHUNK_SIZE : -1;
    case CHUNK_TRAILER:
        c->extra++;
        return byte == '\r' ? CHUNK_LAST_LF : byte == '\n' ? -1 : CHUNK_TRAILER_LINE;
    case CHUNK_TRAILER_LINE:
        c->extra++;
        return byte == '\r' ? CHUNK_TRAILER_LINE_LF : byte == '\n' ? -1 : CHUNK_TRAILER_LINE;
    case CHUNK_TRAILER_LINE_LF:
        return byte == '\n' ? CHUNK_TRAILER : -1;
    case CHUNK_LAST_LF:
        return byte == '\n' ? CHUNK_DONE : -1;
    default:
        return -1;
    }
}

ptrdiff_t http_chunks_take(struct http_chunks *c, struct nvllm_text *data, const char *in, size_t n)
{
    size_t i = 0;

    *data = (struct nvllm_text){in, 0};
    while (i < n && c->state != CHUNK_DONE && c->state != CHUNK_DATA) {
        int next = chunk_step(c, in[i++]);

        if (next < 0 || c->extra > MAX_EXTRA)
            return -1;
        c->state = next;
    }
    if (c->state == CHUNK_DATA && i < n) {
        *data = (struct nvllm_text){in + i, n - i < c->left ? n - i : (size_t)c->left};
        c->left -= data->len;
        i += data->len;
        if (c->left == 0)
            c->state = CHUNK_DATA_END;
    }
    return (ptrdiff_t)i;
}
