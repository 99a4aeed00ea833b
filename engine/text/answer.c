/* answer.c - see answer.h. */
#include "engine/text/answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/json_util.h"

#define TAG(name, s) static const struct text name = {s, sizeof(s) - 1}

TAG(think, ANSWER_TAG_THINK);
TAG(think_end, ANSWER_TAG_THINK_END);
TAG(tool_call, ANSWER_TAG_CALL);
TAG(tool_call_end, ANSWER_TAG_CALL_END);
TAG(arguments_name, "arguments\"");
TAG(arguments_escaped, "arguments\\\""); /* in a string of the template */

static bool contains(struct text text, struct text tag)
{
    return text.len && memmem(text.data, text.len, tag.data, tag.len);
}

struct answer_format answer_format_of(struct text chat_template)
{
    return (struct answer_format){
        .reasoning = contains(chat_template, think_end),
        .tool_calls =
            contains(chat_template, tool_call_end) &&
            (contains(chat_template, arguments_name) || contains(chat_template, arguments_escaped)),
    };
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool ends_with(struct text prompt, struct text tag)
{
    while (prompt.len && is_space(prompt.data[prompt.len - 1]))
        prompt.len--;
    return prompt.len >= tag.len &&
           memcmp(prompt.data + prompt.len - tag.len, tag.data, tag.len) == 0;
}

bool answer_is_begun(struct text prompt)
{
    return ends_with(prompt, think);
}

bool answer_has_thought(struct text prompt)
{
    return ends_with(prompt, think_end);
}

void answer_parser_init(struct answer_parser *p, struct answer_format format, bool is_begun)
{
    *p = (struct answer_parser){.format = format, .state = ANSWER_IN_CONTENT};
    if (format.reasoning)
        p->state = is_begun ? ANSWER_IN_REASONING : ANSWER_AT_START;
    p->trims = p->state == ANSWER_IN_REASONING;
}

/* ---- looking for tags */

static size_t skip_spaces(struct text held, size_t at)
{
    while (at < held.len && is_space(held.data[at]))
        at++;
    return at;
}

enum match { MATCH_NO, MATCH_YES, MATCH_MAYBE /* the text ends inside the tag */ };

static enum match match(struct text held, size_t at, struct text tag)
{
    const size_t left = held.len - at, n = left < tag.len ? left : tag.len;

    if (n && memcmp(held.data + at, tag.data, n) != 0)
        return MATCH_NO;
    return n == tag.len ? MATCH_YES : MATCH_MAYBE;
}

/* Where the tag begins, or may begin at the end of the text; held.len: nowhere. */
static enum match find(struct text held, size_t *at, struct text tag)
{
    enum match m = MATCH_NO;

    while (*at < held.len) {
        const char *next = memchr(held.data + *at, tag.data[0], held.len - *at);

        *at = next ? (size_t)(next - held.data) : held.len;
        m = next ? match(held, *at, tag) : MATCH_NO;
        if (m != MATCH_NO || !next)
            break;
        ++*at;
    }
    return m;
}

/* ---- parts */

static struct answer_part part(enum answer_part_kind kind, struct text held, size_t used)
{
    return (struct answer_part){used ? kind : ANSWER_NOTHING, {held.data, used}, used};
}

/* Changes the state at a tag that ends at `used`; what was held of it belongs to no part. */
static struct answer_part pass(struct answer_parser *p, enum answer_state state, struct text held,
                               size_t used)
{
    p->state = state;
    p->trims = true;
    p->at = 0;
    return part(ANSWER_DROPPED, held, used);
}

/* The text before `until`. */
static struct answer_part give(struct answer_parser *p, enum answer_part_kind kind,
                               struct text held, size_t until)
{
    p->at = 0;
    return part(kind, held, until);
}

/* Newlines at the beginning of a part. */
static size_t leading_newlines(struct answer_parser *p, struct text held)
{
    size_t n = 0;

    while (p->trims && n < held.len && held.data[n] == '\n')
        n++;
    if (n < held.len)
        p->trims = false;
    return n;
}

static struct answer_part next_at_start(struct answer_parser *p, struct text held, bool end)
{
    const size_t at = skip_spaces(held, 0);
    const enum match m = at > ANSWER_MOST_SPACES ? MATCH_NO : match(held, at, think);

    if (m == MATCH_YES)
        return pass(p, ANSWER_IN_REASONING, held, at + think.len);
    if (m == MATCH_MAYBE && !end)
        return part(ANSWER_NOTHING, held, 0);
    p->state = ANSWER_IN_CONTENT;
    return answer_parser_next(p, held, end);
}

/* The text of a part before the tag that ends it, without the newlines before that. *tag: where it
 * is, if there is no such text. */
static struct answer_part next_before(struct answer_parser *p, enum answer_part_kind kind,
                                      struct text held, bool end, struct text tag, size_t *at)
{
    enum match m;
    size_t until;

    *at = p->at;
    m = find(held, at, tag);
    if (m == MATCH_MAYBE && end)
        *at = held.len;
    p->at = until = *at;
    if (m == MATCH_YES || !end)
        while (until && *at - until < ANSWER_MOST_NEWLINES && held.data[until - 1] == '\n')
            until--;
    if (m != MATCH_YES)
        *at = held.len;
    return until ? give(p, kind, held, until) : part(ANSWER_NOTHING, held, 0);
}

static struct answer_part next_of_reasoning(struct answer_parser *p, struct text held, bool end)
{
    size_t tag;
    const struct answer_part text = next_before(p, ANSWER_REASONING, held, end, think_end, &tag);

    if (text.used || tag == held.len)
        return text;
    return pass(p, ANSWER_IN_CONTENT, held, tag + think_end.len);
}

static struct answer_part next_of_content(struct answer_parser *p, struct text held, bool end)
{
    struct answer_part text;
    size_t tag;

    if (!p->format.tool_calls)
        return give(p, ANSWER_CONTENT, held, held.len);
    text = next_before(p, ANSWER_CONTENT, held, end, tool_call, &tag);
    if (text.used || tag == held.len)
        return text;
    p->state = ANSWER_IN_CALL;
    p->at = tag + tool_call.len;
    return answer_parser_next(p, held, end);
}

void answer_parser_reject(struct answer_parser *p)
{
    p->trims = false;
}

/* Finds the brace that closes the first. MATCH_NO: at a tag, which JSON has in strings alone. */
static enum match read_json(struct answer_parser *p, struct text held)
{
    for (; p->at < held.len; p->at++) {
        const char c = held.data[p->at];

        if (p->escaped)
            p->escaped = false;
        else if (p->in_string && c == '\\')
            p->escaped = true;
        else if (c == '"')
            p->in_string = !p->in_string;
        else if (!p->in_string && c == '<')
            return MATCH_NO;
        else if (!p->in_string && c == '{')
            p->depth++;
        else if (!p->in_string && c == '}' && --p->depth == 0) {
            p->stop = ++p->at;
            return MATCH_YES;
        }
    }
    return MATCH_MAYBE;
}

/* Reads on behind the opening tag, as far as it is a tool call. MATCH_YES: with its end. */
static enum match read_call(struct answer_parser *p, struct text held)
{
    enum match m;

    if (p->state == ANSWER_IN_CALL) {
        p->at = skip_spaces(held, p->at);
        if (p->at == held.len)
            return MATCH_MAYBE;
        if (held.data[p->at] != '{')
            return MATCH_NO;
        p->state = ANSWER_IN_JSON;
        p->json = p->at;
        p->depth = 0;
        p->in_string = p->escaped = false;
    }
    if (p->state == ANSWER_IN_JSON) {
        m = read_json(p, held);
        if (m != MATCH_YES)
            return m;
        p->state = ANSWER_CALL_END;
    }
    p->at = skip_spaces(held, p->at);
    m = match(held, p->at, tool_call_end);
    if (m == MATCH_YES)
        p->at += tool_call_end.len;
    return m;
}

static struct answer_part next_of_call(struct answer_parser *p, struct text held, bool end)
{
    enum match m = read_call(p, held);
    const struct text json = {held.data + p->json, p->stop - p->json};
    const size_t used = end && m == MATCH_MAYBE ? held.len : p->at;

    if (m == MATCH_MAYBE && !end)
        return part(ANSWER_NOTHING, held, 0);
    /* A model may end without the closing tag. */
    if (m == MATCH_MAYBE && p->state == ANSWER_CALL_END)
        m = MATCH_YES;
    p->state = ANSWER_IN_CONTENT;
    if (m != MATCH_YES) /* up to where it went wrong, it is content */
        return give(p, ANSWER_CONTENT, held, used);
    p->trims = true;
    p->at = 0;
    return (struct answer_part){ANSWER_TOOL_CALL, json, used};
}

struct answer_part answer_parser_next(struct answer_parser *p, struct text held, bool end)
{
    size_t n = 0;

    if (p->state == ANSWER_IN_REASONING || p->state == ANSWER_IN_CONTENT)
        n = leading_newlines(p, held);
    if (n)
        return give(p, ANSWER_DROPPED, held, n);
    switch (p->state) {
    case ANSWER_AT_START:
        return next_at_start(p, held, end);
    case ANSWER_IN_REASONING:
        return next_of_reasoning(p, held, end);
    case ANSWER_IN_CONTENT:
        return next_of_content(p, held, end);
    default:
        return next_of_call(p, held, end);
    }
}

/* ---- tool calls */

static size_t skip_string(struct text json, size_t at)
{
    for (at++; json.data[at] != '"'; at++)
        at += json.data[at] == '\\';
    return at + 1;
}

/* Behind the value that begins there. */
static size_t skip_value(struct text json, size_t at)
{
    size_t depth = 0;

    for (;;) {
        const char c = json.data[at];

        if (!depth && (c == ',' || c == '}'))
            return at;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        at = c == '"' ? skip_string(json, at) : at + 1;
    }
}

/* Counts the members of an object, which is valid, and sets *value to the text of one of them. */
static size_t find_member(struct text json, struct text key, struct text *value)
{
    size_t at = skip_spaces(json, 1), n = 0; /* behind the brace */

    while (at < json.len && json.data[at] == '"') {
        const size_t end = skip_string(json, at);
        const struct text name = {json.data + at + 1, end - at - 2};
        const size_t from = skip_spaces(json, skip_spaces(json, end) + 1); /* a colon */
        size_t to = skip_value(json, from);

        at = skip_spaces(json, to + 1); /* a comma, if more follows */
        while (is_space(json.data[to - 1]))
            to--;
        if (name.len == key.len && memcmp(name.data, key.data, key.len) == 0)
            *value = (struct text){json.data + from, to - from};
        n++;
    }
    return n;
}

int answer_read_call(struct text json, char **name, size_t *name_len, struct text *arguments)
{
    static const struct text key = {"arguments", sizeof("arguments") - 1};
    const json_t *given;
    struct err why;
    json_t *call;
    int r = json_parse(&call, "tool call", json.data, json.len,
                       JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &why);

    if (r < 0)
        return r == -ENOMEM ? r : -EINVAL;
    given = json_object_get(call, "name");
    *arguments = (struct text){NULL, 0};
    /* Fewer members than it has as a text: two have the same name. */
    if (!json_is_string(given) || !json_string_length(given) ||
        strlen(json_string_value(given)) != json_string_length(given) ||
        find_member(json, key, arguments) != json_object_size(call) ||
        !arguments->data != !json_object_get(call, key.data) ||
        (arguments->data && *arguments->data != '{'))
        r = -EINVAL;
    if (!arguments->data)
        *arguments = (struct text){"{}", 2};
    if (r == 0) {
        *name_len = json_string_length(given);
        *name = strndup(json_string_value(given), *name_len);
        r = *name ? 0 : -ENOMEM;
    }
    json_decref(call);
    return r;
}
