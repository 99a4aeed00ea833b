/* gateway.h - nvllm-openai: what its modules share, and errors as OpenAI's clients know them.
 *
 * One thread. http.c reads requests and writes answers, routes.c decides who may send what where,
 * chat.c, completions.c, embeddings.c and fields.c make a request of nvllmd from JSON, upstream.c
 * has the connection to nvllmd, answer.c makes JSON from its events. */
#ifndef NVLLM_CLIENT_OPENAI_GATEWAY_H
#define NVLLM_CLIENT_OPENAI_GATEWAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/lib/nvllm_client.h"
#include "client/openai/http.h"
#include "client/openai/keys.h"
#include "client/openai/upstream.h"

struct answer;
struct tokens;
TAILQ_HEAD(answer_list, answer);
struct embeddings;
TAILQ_HEAD(embeddings_list, embeddings);

struct gateway {
    struct event_base *base;
    struct http *http;
    struct upstream *upstream;
    struct tokens *tokens;
    struct keys *keys;          /* NULL: none are needed */
    bool allow_remote;          /* any host may be named */
    size_t max_requests;        /* of nvllmd in progress; more are refused */
    size_t n_requests;          /* of answers and embeddings */
    struct answer_list answers; /* in progress */
    struct embeddings_list embeddings;
    long long since; /* the program runs, as time() */
    bool stopping;   /* no new requests */
};

/* A line of the log: event=NAME text="…". */
__attribute__((format(printf, 2, 3))) void gateway_log(const char *event, const char *fmt, ...);

/* ---- errors */

struct api_error {
    int status;       /* of HTTP; 0: there is no error */
    const char *code; /* for programs: "context_length_exceeded"; NULL: none */
    char param[120];  /* the field that is wrong, or empty */
    char message[600];
    uint32_t retry_after_s; /* 0: no advice */
    const char *fields;     /* more lines of the head, each with CRLF; NULL: none */
};

/* Fills *e; false. param: the field, or "". */
__attribute__((format(printf, 5, 6))) bool api_fail(struct api_error *e, int status,
                                                    const char *code, const char *param,
                                                    const char *fmt, ...);

/* An error of nvllmd or its library. */
void api_error_of(struct api_error *e, const struct nvllm_error *from);

/* {"error": {…}} */
void api_put_error(struct buf *out, const struct api_error *e);

/* The whole answer. */
void api_reply_error(struct http_conn *conn, const struct api_error *e);

/* ---- requests */

/* Sets the functions that http.c calls. */
void routes_set(struct http_options *o, struct gateway *gateway);

/* Whether nvllmd serves the model of a request; NULL or "": whichever it serves. */
bool gateway_has_model(const struct gateway *gateway, const char *model, struct api_error *e);

/* Whether n more requests of nvllmd may be started now. */
bool gateway_admits(const struct gateway *gateway, size_t n, struct api_error *e);

/* Who sends a request, which limits who shares its cached prefix. */
struct caller {
    const char *key; /* its name; NULL: there are no keys */
    uid_t peer;      /* as http_peer() */
};

/* The two endpoints that generate text. */
void chat_request(struct gateway *gateway, struct http_conn *conn, const struct caller *caller,
                  struct nvllm_text body);
void completions_request(struct gateway *gateway, struct http_conn *conn,
                         const struct caller *caller, struct nvllm_text body);

/* The one that makes embeddings. */
void embeddings_request(struct gateway *gateway, struct http_conn *conn,
                        const struct caller *caller, struct nvllm_text body);
/* Answers all that are in progress with an error. */
void embeddings_end(struct gateway *gateway, const struct api_error *why);

#endif
