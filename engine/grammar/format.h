/* format.h - what the text of an answer must be, and which tokens may come next in it.
 *
 * A format is compiled once and used by any number of answers, one thread at a time; compiling and
 * freeing it may be on other threads. */
#ifndef NVLLM_ENGINE_GRAMMAR_FORMAT_H
#define NVLLM_ENGINE_GRAMMAR_FORMAT_H

#include "engine/grammar/vocabulary.h"

enum format_kind {
    FORMAT_NONE,
    FORMAT_JSON_OBJECT,
    FORMAT_JSON_SCHEMA, /* a JSON Schema: json_schema.h */
    FORMAT_REGEX,       /* all of the text matches: regex.h */
    FORMAT_GRAMMAR,     /* gbnf.h */
    FORMAT_CHOICE,      /* one of the choices */
};

/* What may come before. */
enum format_reasoning {
    FORMAT_DIRECT,     /* nothing */
    FORMAT_MAY_REASON, /* <think> … </think>, or nothing */
    FORMAT_IS_BEGUN,   /* … </think> */
};

/* Whether tools may be called: tool_calls.h. */
enum format_calls {
    FORMAT_NO_CALLS,
    FORMAT_MAY_CALL,  /* with FORMAT_NONE among any text, else in place of the text */
    FORMAT_MUST_CALL, /* whatever the kind is: nothing but calls */
};

struct format_source {
    enum format_kind kind;
    enum format_reasoning reasoning;
    struct text text;           /* of JSON_SCHEMA, REGEX, GRAMMAR */
    const struct text *choices; /* [n_choices] */
    size_t n_choices;
    enum format_calls calls;
    const struct text *tools; /* [n_tools] */
    size_t n_tools;
    struct text called_tool; /* of MUST_CALL: its name; it is called once. Empty: any */
    bool one_call;           /* one at most */
};

enum {
    FORMAT_MAX_SOURCE = 1 << 18, /* bytes of text, of all choices, or of all tools */
    FORMAT_MAX_BYTES = 32 << 20, /* that a format may take, as far as it is known */
};

struct format;

/* Whether the source asks for nothing: any text will do, and calls of tools that are not strict. */
bool format_is_free(const struct format_source *source);

/* Also makes the mask of its start. The vocabulary must outlive it. -EINVAL: the source is wrong,
 * or no text is allowed; -ENOTSUP: it says what is not supported; -E2BIG: it is too large or too
 * complex; -ENOMEM. Where a tool is why, the text says so: "chat.tools[2].…". */
int format_new(struct format **out, const struct format_source *source, const struct vocabulary *v,
               struct err *e);
void format_free(struct format *f); /* takes NULL */
size_t format_bytes(const struct format *f);

/* A place in the text; GRAMMAR_DEAD: there is none. */
int32_t format_start(const struct format *f);
int32_t format_step(struct format *f, int32_t place, int32_t token);
bool format_accepts(const struct format *f, int32_t place); /* the text may end here */
bool format_is_over(const struct format *f, int32_t place); /* and must */
bool format_failed(const struct format *f); /* no step and no mask succeeds any more */

/* Sets mask [(vocab_size + 31) / 32] to the tokens that may come at a place, and where the text may
 * end also to the n_ends ids that end it. -ENOENT: no token of the vocabulary goes on; -E2BIG: the
 * format takes more memory or time than it may; -ENOMEM. */
int format_mask(struct format *f, uint32_t *mask, int32_t place, const int32_t *ends,
                int32_t n_ends);

#endif
