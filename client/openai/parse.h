/* parse.h - HTTP/1 as it comes from a client: the head of a request, and a body in chunks.
 *
 * Pure: no I/O, no memory. Where the standard lets a server be lenient this is not, so that nobody
 * in between can read a request differently: lines end with CRLF, a field that counts is there
 * once, a length and chunks exclude each other. */
#ifndef NVLLM_CLIENT_OPENAI_PARSE_H
#define NVLLM_CLIENT_OPENAI_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/nvllm_client.h"

enum { PARSE_MAX_FIELDS = 100 };

/* Texts point into what was parsed; data NULL: absent. */
struct http_head {
    struct nvllm_text method;
    struct nvllm_text path; /* "/v1/models", without the query */
    struct nvllm_text host, origin, authorization, content_encoding;
    uint64_t content_length;
    bool has_length;
    bool chunked;
    bool keep_alive;       /* the connection may serve another request afterwards */
    bool is_1_0;           /* HTTP/1.0: no chunks in the answer */
    bool expects_continue; /* the client waits for “100 Continue” before it sends the body */
};

/* The head of n bytes that end with an empty line. 0, or the status of the refusal: 400, 417, 431,
 * 501, 505. */
int http_parse_head(struct http_head *out, const char *data, size_t n);

/* Whether a text is this word, whatever the case of its letters. */
bool http_is_word(struct nvllm_text text, const char *word);

/* The state of decoding a body of chunks; zeroed at first. */
struct http_chunks {
    enum {
        CHUNK_SIZE, /* its digits */
        CHUNK_EXTENSION,
        CHUNK_SIZE_END, /* the line feed behind them */
        CHUNK_DATA,
        CHUNK_DATA_END, /* CR */
        CHUNK_DATA_END_LF,
        CHUNK_TRAILER, /* at the start of a line */
        CHUNK_TRAILER_LINE,
        CHUNK_TRAILER_LINE_LF,
        CHUNK_LAST_LF,
        CHUNK_DONE,
    } state;
    uint64_t left;   /* of the chunk; while its size is read, what has been read of it */
    uint32_t digits; /* of the size */
    uint32_t extra;  /* bytes of extensions and trailers so far */
};

/* Takes bytes up to the end of the body or the end of one piece of data, which is *data. Returns
 * how many it took; -1: they are not chunks. */
ptrdiff_t http_chunks_take(struct http_chunks *c, struct nvllm_text *data, const char *in,
                           size_t n);

#endif
