/* request_checker.h - what the files of request.h share: the state of a request's check, its
 * errors, and what it takes from a message.
 *
 * The first error sticks: after it nothing is checked or taken, so callers look at it once. */
#ifndef NVLLM_DAEMON_REQUEST_CHECKER_H
#define NVLLM_DAEMON_REQUEST_CHECKER_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/request.h"
#include "proto/utf8.h"

enum { MAX_NAME = 96 };

struct checker {
    const struct request_rules *rules;
    const struct request_origin *origin;
    struct unpacked *u;
    struct refusal *e;
    char path[MAX_NAME - 32]; /* of the entry that is checked: "chat.messages[3]" */
    char name[MAX_NAME];      /* of full_name() */
    int r;                    /* 0, or the first error */
};

/* field is one of the entry, or "" for the entry itself. Valid until the next. */
static inline const char *full_name(struct checker *c, const char *field)
{
    snprintf(c->name, sizeof(c->name), "%s%s%s", c->path, *c->path && *field ? "." : "", field);
    return c->name;
}

#define refuse(c, code, field, ...)                                                                \
    do {                                                                                           \
        if ((c)->r == 0)                                                                           \
            (c)->r = refusal_of_field((c)->e, code, full_name(c, field), __VA_ARGS__);             \
    } while (0)

/* An amount over a limit of the options. */
static inline void check_limit(struct checker *c, enum limit l, size_t amount, const char *field)
{
    if (c->r == 0 && amount > limit_value(c->rules->options, l))
        c->r = limit_refuse(c->e, c->rules->options, l, full_name(c, field), amount);
}

/* Enters entry i of a list, or of a list inside an entry; leave() with the result goes back. */
static inline size_t enter(struct checker *c, const char *list, size_t i)
{
    const size_t length = strlen(c->path);

    snprintf(c->path + length, sizeof(c->path) - length, "%s%s[%zu]", length ? "." : "", list, i);
    return length;
}

static inline void leave(struct checker *c, size_t length)
{
    c->path[length] = '\0';
}

/* Zeroed, and freed with the message; NULL with the error set. */
static inline void *take_memory(struct checker *c, size_t n, size_t size)
{
    void *p = c->r == 0 ? unpacked_alloc(c->u, n, size) : NULL;

    if (!p && c->r == 0)
        c->r = -ENOMEM;
    return p;
}

/* What is absent in a message is empty. */
static inline void take_text(struct checker *c, struct text *out, const void *data, size_t n,
                             const char *field)
{
    if (c->r == 0 && !utf8_valid(data, n))
        refuse(c, CODE(INVALID), field, "is not UTF-8");
    *out = (struct text){data, n};
}

static inline struct text *take_texts(struct checker *c, const ProtobufCBinaryData *from, size_t n,
                                      const char *field)
{
    struct text *texts = take_memory(c, n, sizeof(*texts));

    for (size_t i = 0; c->r == 0 && i < n; i++) {
        const size_t path = enter(c, field, i);

        take_text(c, &texts[i], from[i].data, from[i].len, "");
        leave(c, path);
    }
    return texts;
}

/* ---- request_chat.c */

/* A chat that may have no messages, and one that is a prompt by itself. */
const struct chat *request_take_chat(struct checker *c, const Nvllm__V1__Chat *m);
const struct chat *request_take_prompt(struct checker *c, const Nvllm__V1__Chat *m);

#endif
