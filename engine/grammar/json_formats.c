/* json_formats.c - the formats of strings that have a grammar, and the other keywords of strings.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_impl.h"
#include "engine/text/utf8.h"

#define YEAR "[0-9]{4}"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-"   \
    "(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL    "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOSTNAME LABEL "(\\." LABEL ")*"
#define BYTE     "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4     BYTE "(\\." BYTE "){3}"
#define HEX      "[0-9A-Fa-f]"
#define H16      HEX "{1,4}"
#define LS32     "(" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16      \
    ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32        \
    "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16      \
    ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
#define ATOM     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define PCHAR    "([A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX "{2})"
#define PCHAR_NC "([A-Za-z0-9._~!$&'()*+,;=@-]|%" HEX "{2})" /* without a colon */
#define REG_NAME "([A-Za-z0-9._~!$&'()*+,;=-]|%" HEX "{2})*"
#define USERINFO "([A-Za-z0-9._~!$&'()*+,;=:-]|%" HEX "{2})*"
#define HOST     "(\\[(" IPV6 "|v" HEX "+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|" REG_NAME ")"
#define ABEMPTY  "(/" PCHAR "*)*"
#define HIER     "(//(" USERINFO "@)?" HOST "(:[0-9]*)?" ABEMPTY "|/(" PCHAR "+" ABEMPTY ")?"
#define QUERY    "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define URI      "[A-Za-z][A-Za-z0-9+.-]*:(" HIER "|" PCHAR "+" ABEMPTY ")?)" QUERY
#define RELATIVE "(" HIER "|" PCHAR_NC "+" ABEMPTY ")?)" QUERY
#define VARNAME  "([A-Za-z0-9_]|%" HEX "{2})(\\.?([A-Za-z0-9_]|%" HEX "{2}))*"
#define VARSPEC  VARNAME "(:[1-9][0-9]{0,3}|\\*)?"
#define TEMPLATE                                                                                   \
    "([^\\x00-\\x20\"'%<>\\\\^`{|}\\x7f]|%" HEX "{2}|\\{[+#./;?&=,!@|]?" VARSPEC "(," VARSPEC      \
    ")*\\})*"

/* What a format allows; REGEX_ALL: it is not known. Each is parsed once. */
static int32_t format_term(struct compiler *c, const char *name)
{
    static const struct {
        const char *name, *source;
    } formats[JSON_FORMATS] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "[Tt]" TIME},
        {"duration", "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H"
                     "([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?"
                     ")?|[0-9]+M([0-9]+S)?|[0-9]+S))"},
        {"email", ATOM "(\\." ATOM ")*@" HOSTNAME},
        {"hostname", HOSTNAME},
        {"ipv4", IPV4},
        {"ipv6", IPV6},
        {"uuid", HEX "{8}(-" HEX "{4}){3}-" HEX "{12}"},
        {"uri", URI},
        {"uri-reference", "(" URI "|" RELATIVE ")"},
        {"uri-template", TEMPLATE},
        {"json-pointer", "(/([^/~]|~[01])*)*"},
    };
    struct regex_pool *p = &c->g->lexer.regex;
    int32_t *term;
    size_t i = 0;

    while (i < JSON_FORMATS && strcmp(name, formats[i].name) != 0)
        i++;
    if (i == JSON_FORMATS)
        return REGEX_ALL;
    term = &c->formats[i];
    if (*term != REGEX_NONE)
        return *term;
    regex_parse(term, p, (struct text){formats[i].source, strlen(formats[i].source)}, false, NULL);
    if (strcmp(name, "hostname") == 0)
        *term = regex_and2(p, *term, regex_repeat(p, REGEX_ANY, 1, 253));
    return *term;
}

int32_t json_string_values(struct compiler *c, const json_t *values)
{
    struct regex_pool *p = &c->g->lexer.regex;
    int32_t *terms = calloc(json_array_size(values) + 1, sizeof(*terms)), term;
    const json_t *v;
    size_t i, n = 0;

    if (!terms) {
        json_refuse(c, -ENOMEM, "", "out of memory");
        return REGEX_NONE;
    }
    json_array_foreach(values, i, v)
    {
        if (json_is_string(v))
            terms[n++] = regex_text(p, (struct text){json_string_value(v), json_string_length(v)});
    }
    term = regex_or(p, terms, n);
    free(terms);
    return term;
}

int32_t json_pattern(struct compiler *c, const char *keyword, const char *pattern, size_t n)
{
    int32_t term = REGEX_NONE;
    struct err e;
    int r = 0;

    if (json_step(c, 2 * n))
        r = regex_parse(&term, &c->g->lexer.regex, (struct text){pattern, n}, true, &e);
    if (r < 0)
        json_refuse(c, r, keyword, "“%.60s”: %s", pattern, e.text);
    return term;
}

bool json_matches(struct compiler *c, int32_t term, const char *s, size_t n)
{
    struct regex_pool *p = &c->g->lexer.regex;
    uint32_t point;

    if (!json_step(c, n / 4 + 1))
        return false;
    for (size_t at = 0; at < n && term != REGEX_NONE;) {
        at += utf8_read(s + at, n - at, &point);
        term = regex_next(p, term, point);
    }
    return term != REGEX_NONE && regex_accepts(p, term);
}

int32_t json_strings(struct compiler *c, const json_t *schema)
{
    struct regex_pool *p = &c->g->lexer.regex;
    const int32_t min = json_count(c, schema, "minLength", 0);
    const int32_t max = json_count(c, schema, "maxLength", REGEX_INFINITE);
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    const json_t *no = json_object_get(schema, JSON_NONE_OF), *values = json_object_get(no, "enum");
    int32_t term = REGEX_ALL;

    if (min > max)
        return REGEX_NONE;
    if (min > 0 || max != REGEX_INFINITE)
        term = regex_repeat(p, REGEX_ANY, min, max);
    if (json_is_string(format))
        term = regex_and2(p, term, format_term(c, json_string_value(format)));
    if (no)
        term =
            regex_and2(p, term,
                       regex_not(p, values ? json_string_values(c, values) : json_strings(c, no)));
    if (!json_is_string(pattern)) /* what is no string will be refused */
        return term;
    return regex_and2(p, term,
                      json_pattern(c, "pattern", json_string_value(pattern),
                                   json_string_length(pattern)));
}
