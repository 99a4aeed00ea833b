/* regex_parse.c - regular expressions as ECMA-262 writes them with the flag u, of those parts that
 * are regular: no back references, of assertions ^ and $ at the ends of a branch, and (?=…), (?!…)
 * outside of groups. Classes \d,
 * \w and \s are ASCII's and ECMA's. */
#include "engine/grammar/regex.h"

#include <errno.h>
#include <string.h>

#include "engine/text/utf8.h"
#include "engine/util/checked.h"
#include "engine/util/hex.h"

enum { MAX_DEPTH = 200, MAX_SOURCE = 1 << 16, MAX_CLASS = 4096 };

struct set {
    struct regex_range ranges[MAX_CLASS];
    size_t n;
};

struct parser {
    struct regex_pool *pool;
    struct set set; /* the class that is read: too large for a recursion's stack */
    struct text source;
    size_t at;
    int depth;
    int outer; /* the depth of a group around all of it */
    bool search;
    int code; /* negative: *e says why */
    struct err *e;
};

static int32_t parse_union(struct parser *s);

static int32_t refuse(struct parser *s, int code, const char *what)
{
    if (s->code == 0)
        s->code = err_set(s->e, code, "position %zu: %s", s->at, what);
    return REGEX_NONE;
}

static bool ended(const struct parser *s)
{
    return s->code < 0 || s->at >= s->source.len;
}

static bool looks_at(const struct parser *s, const char *text)
{
    const size_t n = strlen(text);

    return !ended(s) && s->source.len - s->at >= n && memcmp(s->source.data + s->at, text, n) == 0;
}

static bool take(struct parser *s, const char *text)
{
    const bool there = looks_at(s, text);

    s->at += there ? strlen(text) : 0;
    return there;
}

static uint32_t next_point(struct parser *s)
{
    uint32_t point = UTF8_BROKEN;

    s->at += utf8_read(s->source.data + s->at, s->source.len - s->at, &point);
    if (point == UTF8_BROKEN)
        refuse(s, -EINVAL, "the text is not UTF-8");
    return point;
}

/* ---- classes of characters */

static void add(struct parser *s, struct set *set, uint32_t lo, uint32_t hi)
{
    if (set->n == MAX_CLASS)
        refuse(s, -E2BIG, "too many ranges in a class");
    else
        set->ranges[set->n++] = (struct regex_range){lo, hi};
}

static const struct regex_range digits[] = {{'0', '9'}};
static const struct regex_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct regex_range spaces[] = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},
                                            {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                            {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                            {0xfeff, 0xfeff}};

/* The ranges of \d, \w or \s, or for their capitals all others. */
static bool add_named(struct parser *s, struct set *set, char name)
{
    static const struct {
        char name;
        const struct regex_range *ranges;
        size_t n;
    } classes[] = {{'d', digits, 1}, {'w', words, 4}, {'s', spaces, 10}};

    for (size_t i = 0; i < 3; i++) {
        const struct regex_range *r = classes[i].ranges;
        const size_t n = classes[i].n;
        uint32_t lo = 0;

        if ((name | 0x20) != classes[i].name)
            continue;
        for (size_t k = 0; k < n; k++) {
            if (name & 0x20)
                add(s, set, r[k].lo, r[k].hi);
            else if (r[k].lo > lo)
                add(s, set, lo, r[k].lo - 1);
            lo = r[k].hi + 1;
        }
        if (!(name & 0x20))
            add(s, set, lo, REGEX_MAX_POINT);
        return true;
    }
    return false;
}

static bool read_hex(struct parser *s, size_t min, size_t max, uint32_t *out)
{
    size_t n = 0;

    for (*out = 0; n < max && !ended(s); n++) {
        const int digit = hex_digit((unsigned char)s->source.data[s->at]);

        if (digit < 0)
            break;
        *out = *out * 16 + (uint32_t)digit;
        s->at++;
    }
    return n >= min;
}

/* \x41, \u0041, \u{1f600}, or a pair of surrogates. */
static uint32_t read_code(struct parser *s, bool is_short)
{
    uint32_t point, low;
    bool ok;

    if (is_short)
        ok = read_hex(s, 2, 2, &point);
    else if (take(s, "{"))
        ok = read_hex(s, 1, 6, &point) && take(s, "}");
    else
        ok = read_hex(s, 4, 4, &point);
    if (ok && point >= 0xd800 && point <= 0xdbff && take(s, "\\u")) {
        ok = read_hex(s, 4, 4, &low) && low >= 0xdc00 && low <= 0xdfff;
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    if (!ok || point > REGEX_MAX_POINT || (point >= 0xd800 && point <= 0xdfff))
        refuse(s, -EINVAL, "no such character");
    return point;
}

/* The character that an escape behind a backslash stands for. */
static uint32_t read_escape(struct parser *s)
{
    static const char names[] = "nrtfv0", values[] = "\n\r\t\f\v";
    const uint32_t c = next_point(s);
    const char *name = c < 0x80 ? memchr(names, (int)c, sizeof(names) - 1) : NULL;

    if (c == 'x' || c == 'u')
        return read_code(s, c == 'x');
    if (c == 'c' && !ended(s))
        return next_point(s) & 31;
    if (name && c != '0')
        return (unsigned char)values[name - names];
    if (c == '0' && (ended(s) || s->source.data[s->at] < '0' || s->source.data[s->at] > '9'))
        return 0;
    if (c >= '0' && c <= '9')
        refuse(s, -ENOTSUP, "back references are not supported");
    else if (c == 'p' || c == 'P')
        refuse(s, -ENOTSUP, "\\p is not supported");
    else if (c == 'b' || c == 'B' || c == 'k')
        refuse(s, -ENOTSUP,
               c == 'k' ? "back references are not supported" : "\\b and \\B are not supported");
    else if (c < 0x80 && ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        refuse(s, -EINVAL, "no such escape");
    return c;
}

/* One character of a class, or -1: it was \d or the like, which has been added. */
static int64_t read_member(struct parser *s, struct set *set)
{
    if (!take(s, "\\"))
        return next_point(s);
    if (ended(s)) {
        refuse(s, -EINVAL, "ends in a backslash");
        return -1;
    }
    if (add_named(s, set, s->source.data[s->at])) {
        s->at++;
        return -1;
    }
    return take(s, "b") ? '\b' : take(s, "-") ? '-' : read_escape(s);
}

static int32_t parse_class(struct parser *s)
{
    struct set *set = &s->set;
    const bool others = take(s, "^");

    set->n = 0;
    while (!ended(s) && !looks_at(s, "]")) {
        const int64_t lo = read_member(s, set);
        int64_t hi = lo;

        if (lo >= 0 && looks_at(s, "-") && !looks_at(s, "-]")) {
            s->at++;
            hi = ended(s) ? -1 : read_member(s, set);
            if (hi < lo)
                refuse(s, -EINVAL, "a range out of order");
        }
        if (lo >= 0 && s->code == 0)
            add(s, set, (uint32_t)lo, (uint32_t)hi);
    }
    if (!take(s, "]"))
        return refuse(s, -EINVAL, "a class without its ]");
    return others ? regex_other_chars(s->pool, set->ranges, set->n)
                  : regex_chars(s->pool, set->ranges, set->n);
}

/* ---- terms */

static int32_t parse_group(struct parser *s)
{
    int32_t term;

    if (take(s, "?")) {
        if (take(s, "<") && !looks_at(s, "=") && !looks_at(s, "!")) { /* a name */
            while (!ended(s) && !looks_at(s, ">"))
                s->at++;
            take(s, ">");
        } else if (!take(s, ":")) {
            return refuse(s, -ENOTSUP, "this group is not supported");
        }
    }
    if (++s->depth > MAX_DEPTH)
        return refuse(s, -E2BIG, "nested too deeply");
    term = parse_union(s);
    s->depth--;
    return take(s, ")") ? term : refuse(s, -EINVAL, "a group without its )");
}

static int32_t parse_atom(struct parser *s)
{
    static const struct regex_range line[] = {{0, '\n' - 1},
                                              {'\n' + 1, '\r' - 1},
                                              {'\r' + 1, 0x2027},
                                              {0x202a, REGEX_MAX_POINT}};
    struct set *set = &s->set;

    if (take(s, "("))
        return parse_group(s);
    if (take(s, "["))
        return parse_class(s);
    if (take(s, "."))
        return regex_chars(s->pool, line, 4);
    if (looks_at(s, "*") || looks_at(s, "+") || looks_at(s, "?"))
        return refuse(s, -EINVAL, "nothing to repeat");
    if (looks_at(s, "^") || looks_at(s, "$"))
        return refuse(s, -ENOTSUP, "^ and $ are supported at the ends alone");
    if (!take(s, "\\"))
        return regex_char(s->pool, next_point(s));
    if (ended(s))
        return refuse(s, -EINVAL, "ends in a backslash");
    set->n = 0;
    if (!add_named(s, set, s->source.data[s->at]))
        return regex_char(s->pool, read_escape(s));
    s->at++;
    return regex_chars(s->pool, set->ranges, set->n);
}

static bool read_number(struct parser *s, int32_t *out)
{
    const size_t first = s->at;

    for (*out = 0; !ended(s) && s->source.data[s->at] >= '0' && s->source.data[s->at] <= '9';
         s->at++)
        if (*out <= REGEX_MAX_REPEAT)
            *out = *out * 10 + (s->source.data[s->at] - '0');
    return s->at > first;
}

/* {2}, {2,} or {2,5}; what only looks like one is text. */
static bool read_bounds(struct parser *s, int32_t *min, int32_t *max)
{
    const size_t first = s->at;

    if (take(s, "{") && read_number(s, min)) {
        *max = *min;
        if (take(s, ",") && !read_number(s, max))
            *max = REGEX_INFINITE;
        if (take(s, "}"))
            return true;
    }
    s->at = first;
    return false;
}

static int32_t parse_repeat(struct parser *s)
{
    int32_t term = parse_atom(s), min = 0, max = REGEX_INFINITE;

    while (!ended(s)) {
        min = 0;
        max = REGEX_INFINITE;
        if (take(s, "?"))
            max = 1;
        else if (take(s, "+"))
            min = 1;
        else if (!take(s, "*") && !read_bounds(s, &min, &max))
            break;
        if (min > max)
            return refuse(s, -EINVAL, "a repetition out of order");
        if (min > REGEX_MAX_REPEAT || (max != REGEX_INFINITE && max > REGEX_MAX_REPEAT))
            return refuse(s, -E2BIG, "repeated too often");
        take(s, "?"); /* which texts match does not depend on it */
        term = regex_repeat(s->pool, term, min, max);
    }
    return term;
}

/* What is behind a group's closing parenthesis; 0: there is none. */
static size_t behind_group(const struct parser *s)
{
    bool in_class = false;
    int depth = 0;

    for (size_t i = s->at; i < s->source.len; i++) {
        const char c = s->source.data[i];

        if (c == '\\')
            i++;
        else if (in_class)
            in_class = c != ']';
        else if (c == '[')
            in_class = true;
        else if (c == '(')
            depth++;
        else if (c == ')' && --depth == 0)
            return i + 1;
    }
    return 0;
}

/* Whether one group is all of the branch: as if it were not there. */
static bool is_one_group(const struct parser *s)
{
    const size_t end = looks_at(s, "(") ? behind_group(s) : 0;

    return (!looks_at(s, "(?") || looks_at(s, "(?:")) && end > 0 &&
           (end == s->source.len || s->source.data[end] == '|' || s->source.data[end] == ')');
}

struct part {
    int32_t term;
    int8_t ahead; /* 1: what follows begins with it, -1: it does not; 0: it is taken */
};

/* (?=a) or (?!a) */
static bool take_ahead(struct parser *s, struct part *part)
{
    const bool yes = looks_at(s, "(?="), no = looks_at(s, "(?!");

    if (!yes && !no)
        return false;
    if (s->depth > s->outer)
        refuse(s, -ENOTSUP, "assertions inside groups are not supported");
    s->at += 3;
    if (++s->depth > MAX_DEPTH)
        refuse(s, -E2BIG, "nested too deeply");
    part->ahead = yes ? 1 : -1;
    part->term = parse_union(s);
    s->depth--;
    if (!take(s, ")"))
        refuse(s, -EINVAL, "a group without its )");
    return true;
}

/* A branch: where it is not bound by ^ or $, and is searched for, any text may be around it. */
static int32_t parse_branch(struct parser *s)
{
    const bool outer = s->depth == s->outer;
    const bool from = take(s, "^");
    struct part *list = NULL;
    int32_t term = REGEX_EMPTY;
    size_t n = 0, cap = 0;
    bool to = false;

    if (outer && !from && is_one_group(s)) {
        take(s, "(");
        take(s, "?:");
        s->outer++;
        if (++s->depth > MAX_DEPTH)
            return refuse(s, -E2BIG, "nested too deeply");
        term = parse_union(s);
        s->depth--;
        s->outer--;
        take(s, ")");
        return term;
    }

    while (!ended(s) && !looks_at(s, "|") && !looks_at(s, ")")) {
        if (take(s, "$")) {
            to = true;
            if (!ended(s) && !looks_at(s, "|") && !looks_at(s, ")"))
                refuse(s, -ENOTSUP, "^ and $ are supported at the ends alone");
            break;
        }
        if (!array_reserve(&list, &cap, n + 1, sizeof(*list))) {
            refuse(s, -ENOMEM, "out of memory");
            break;
        }
        list[n] = (struct part){0};
        if (!take_ahead(s, &list[n]))
            list[n].term = parse_repeat(s);
        n++;
    }
    if ((from || to) && !outer)
        refuse(s, -ENOTSUP, "^ and $ inside groups are not supported");
    if (s->search && outer && !to)
        term = REGEX_ALL;
    for (; n > 0; n--) {
        const struct part x = list[n - 1];
        const int32_t ahead = x.ahead ? regex_concat(s->pool, x.term, REGEX_ALL) : REGEX_NONE;

        term = x.ahead == 0
                   ? regex_concat(s->pool, x.term, term)
                   : regex_and2(s->pool, term, x.ahead > 0 ? ahead : regex_not(s->pool, ahead));
    }
    free(list);
    return s->search && outer && !from ? regex_concat(s->pool, REGEX_ALL, term) : term;
}

static int32_t parse_union(struct parser *s)
{
    int32_t *list = NULL, term;
    size_t n = 0, cap = 0;

    do {
        if (!array_reserve(&list, &cap, n + 1, sizeof(*list))) {
            refuse(s, -ENOMEM, "out of memory");
            break;
        }
        list[n++] = parse_branch(s);
    } while (take(s, "|"));
    term = regex_or(s->pool, list, n);
    free(list);
    return term;
}

int regex_parse(int32_t *out, struct regex_pool *pool, struct text source, bool search,
                struct err *e)
{
    struct parser s = {.pool = pool, .source = source, .search = search, .e = e};
    int32_t term;

    if (source.len > MAX_SOURCE)
        return err_set(e, -E2BIG, "longer than %d bytes", MAX_SOURCE);
    term = parse_union(&s);
    if (s.code == 0 && s.at < source.len)
        refuse(&s, -EINVAL, "a ) without its group");
    if (s.code < 0)
        return s.code;
    if (pool->failed)
        return err_set(e, pool->failed, pool->failed == -ENOMEM ? "out of memory" : "too complex");
    *out = term;
    return 0;
}
