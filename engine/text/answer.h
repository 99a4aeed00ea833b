/* answer.h - what the text of a chat's answer consists of: reasoning, content and tool calls.
 *
 * Models write them with the tags that their chat templates use:
 *
 *     <think> reasoning </think> content <tool_call> {"name": …, "arguments": {…}} </tool_call> …
 *
 * Reasoning is at the start or nowhere. A tool call is one JSON object between its tags; what only
 * looks like one is content, to the byte. The newlines that templates put around the parts belong
 * to none of them.
 *
 * The parser takes the text as it is generated and says what is certain. It allocates nothing, and
 * its time is linear in the text. Any thread. */
#ifndef NVLLM_ENGINE_TEXT_ANSWER_H
#define NVLLM_ENGINE_TEXT_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/util/text.h"

#define ANSWER_TAG_THINK     "<think>"
#define ANSWER_TAG_THINK_END "</think>"
#define ANSWER_TAG_CALL      "<tool_call>"
#define ANSWER_TAG_CALL_END  "</tool_call>"

/* With these limits little is held back, and read again. */
enum {
    ANSWER_MOST_SPACES = 16,  /* that a model may put before the first tag */
    ANSWER_MOST_NEWLINES = 2, /* that templates put before the others */
};

/* Which tags a model uses. */
struct answer_format {
    bool reasoning, tool_calls;
};

/* Those that occur in its chat template. Tool calls count only where it has "arguments" as a name
 * of JSON: some models write other things between these tags. */
struct answer_format answer_format_of(struct text chat_template);

/* Whether a rendered prompt ends inside reasoning: then the answer has no opening tag. */
bool answer_is_begun(struct text prompt);

/* Whether it ends behind reasoning, empty where the model is not to think. */
bool answer_has_thought(struct text prompt);

enum answer_state {
    ANSWER_AT_START,
    ANSWER_IN_REASONING,
    ANSWER_IN_CONTENT,
    ANSWER_IN_CALL,  /* behind its opening tag */
    ANSWER_IN_JSON,  /* of a call */
    ANSWER_CALL_END, /* behind the JSON */
};

struct answer_parser {
    struct answer_format format;
    enum answer_state state;
    bool trims; /* newlines that come next belong to no part */
    bool in_string, escaped;
    size_t depth;      /* of the JSON */
    size_t at;         /* of the held text has been read */
    size_t json, stop; /* where the JSON begins and ends in it */
};

enum answer_part_kind {
    ANSWER_NOTHING, /* of what is held nothing is certain yet */
    ANSWER_DROPPED, /* tags and newlines around them */
    ANSWER_REASONING,
    ANSWER_CONTENT,
    ANSWER_TOOL_CALL, /* text is its JSON, of which only the braces have been matched */
};

struct answer_part {
    enum answer_part_kind kind;
    struct text text;
    size_t used; /* bytes at the beginning of the held text that this part was made of */
};

void answer_parser_init(struct answer_parser *p, struct answer_format format, bool is_begun);

/* For a tool call that answer_read_call() refuses: it is content, and so are the newlines behind
 * it. */
void answer_parser_reject(struct answer_parser *p);

/* The next part of the text that has been generated and not been used so far; at its `end`, all of
 * it comes out. Call it with what is left until it is ANSWER_NOTHING. */
struct answer_part answer_parser_next(struct answer_parser *p, struct text held, bool end);

/* Reads a tool call: *name is malloc'ed, *arguments lies in json and is an object. -EINVAL: it is
 * none, or has a number beyond a double's range; -ENOMEM. */
int answer_read_call(struct text json, char **name, size_t *name_len, struct text *arguments);

#endif
