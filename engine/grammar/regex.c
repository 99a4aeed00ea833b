/* regex.c - see regex.h. */
#include "engine/grammar/regex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/utf8.h"
#include "engine/util/checked.h"
#include "engine/util/must.h"

enum { OP_NONE, OP_EMPTY, OP_CHARS, OP_CONCAT, OP_REPEAT, OP_OR, OP_AND, OP_NOT, OP_MULTIPLE };

/* a, b, c of a term:
 *
 *     CHARS   where its ranges begin, and their number
 *     CONCAT  two terms
 *     REPEAT  a term, how often at least, and at most
 *     OR, AND where the list of terms begins, and their number; sorted, no two alike
 *     NOT     a term
 *     MULTIPLE  the divisor, what the digits so far leave, and how many digits behind the point are
 *             to come, plus AFTER_POINT where it has been read */

enum {
    AFTER_POINT = 1 << 16,
    SURROGATES = 0xd800,
    SURROGATES_END = 0xdfff,
    MAX_SEARCH = 20000, /* states in which a text is looked for */
    MAX_DEPTH = 4000,   /* of derivatives of derivatives */
};

static int32_t fail(struct regex_pool *p, int code)
{
    if (p->failed == 0)
        p->failed = code;
    return REGEX_NONE;
}

size_t regex_pool_bytes(const struct regex_pool *p)
{
    return p->terms_cap * sizeof(*p->terms) + p->lists_cap * sizeof(*p->lists) +
           p->ranges_cap * sizeof(*p->ranges) + p->steps_cap * sizeof(*p->steps) +
           p->table_size * sizeof(*p->table);
}

/* Room for n more elements of one of the arrays. */
static bool reserve(struct regex_pool *p, void *array, size_t *cap, size_t n, size_t size)
{
    if (p->failed)
        return false;
    if (regex_pool_bytes(p) > p->max_bytes) {
        fail(p, -E2BIG);
        return false;
    }
    if (array_reserve(array, cap, n, size))
        return true;
    fail(p, -ENOMEM);
    return false;
}

/* ---- terms that are kept once */

static const int32_t *list_of(const struct regex_pool *p, const struct regex_term *t)
{
    return p->lists + t->a;
}

static uint32_t mix(uint32_t h, uint32_t x)
{
    return (h ^ x) * 0x9e3779b1u + (h >> 15);
}

static uint32_t hash_of(const struct regex_pool *p, const struct regex_term *t)
{
    uint32_t h = mix((uint32_t)t->op, 7);

    if (t->op == OP_CHARS) {
        for (int32_t i = 0; i < t->b; i++)
            h = mix(mix(h, p->ranges[t->a + i].lo), p->ranges[t->a + i].hi);
    } else if (t->op == OP_OR || t->op == OP_AND) {
        for (int32_t i = 0; i < t->b; i++)
            h = mix(h, (uint32_t)list_of(p, t)[i]);
    } else {
        h = mix(mix(mix(h, (uint32_t)t->a), (uint32_t)t->b), (uint32_t)t->c);
    }
    return h ^ h >> 13;
}

static bool is_same(const struct regex_pool *p, const struct regex_term *x,
                    const struct regex_term *y)
{
    if (x->op != y->op || x->b != y->b)
        return false;
    if (x->op == OP_CHARS)
        return memcmp(p->ranges + x->a, p->ranges + y->a, (size_t)x->b * sizeof(*p->ranges)) == 0;
    if (x->op == OP_OR || x->op == OP_AND)
        return memcmp(list_of(p, x), list_of(p, y), (size_t)x->b * sizeof(*p->lists)) == 0;
    return x->a == y->a && x->c == y->c;
}

static bool grow_table(struct regex_pool *p)
{
    const size_t size = p->table_size ? 2 * p->table_size : 256;
    int32_t *table = calloc(size, sizeof(*table));

    if (!table) {
        fail(p, -ENOMEM);
        return false;
    }
    for (size_t i = 0; i < p->n_terms; i++) {
        int32_t *at = &table[hash_of(p, &p->terms[i]) & (size - 1)];

        p->terms[i].link = *at;
        *at = (int32_t)i + 1;
    }
    free(p->table);
    p->table = table;
    p->table_size = size;
    return true;
}

/* The term that is alike, or t, from now on. */
static int32_t intern(struct regex_pool *p, struct regex_term t)
{
    int32_t *at;

    if (p->failed || (p->n_terms >= p->table_size && !grow_table(p)))
        return REGEX_NONE;
    at = &p->table[hash_of(p, &t) & (p->table_size - 1)];
    for (int32_t i = *at; i; i = p->terms[i - 1].link)
        if (is_same(p, &p->terms[i - 1], &t))
            return i - 1;
    if (!reserve(p, &p->terms, &p->terms_cap, p->n_terms + 1, sizeof(*p->terms)))
        return REGEX_NONE;
    t.steps_at = -1;
    t.alive = t.op == OP_NONE ? 0 : t.nullable || !t.is_complex ? 1 : -1;
    t.link = *at;
    p->terms[p->n_terms] = t;
    *at = (int32_t)++p->n_terms;
    return *at - 1;
}

int regex_pool_init(struct regex_pool *p, size_t max_bytes)
{
    static const struct regex_range all[] = {{0, SURROGATES - 1},
                                             {SURROGATES_END + 1, REGEX_MAX_POINT}};

    *p = (struct regex_pool){.max_bytes = max_bytes, .max_work = SIZE_MAX};
    intern(p, (struct regex_term){.op = OP_NONE});
    intern(p, (struct regex_term){.op = OP_EMPTY, .nullable = true});
    regex_chars(p, all, 2);
    regex_repeat(p, REGEX_ANY, 0, REGEX_INFINITE);
    return p->failed;
}

void regex_pool_deinit(struct regex_pool *p)
{
    free(p->terms);
    free(p->lists);
    free(p->ranges);
    free(p->steps);
    free(p->table);
    *p = (struct regex_pool){0};
}

bool regex_spend(struct regex_pool *p, size_t n)
{
    p->work += n;
    if (p->work > p->max_work)
        fail(p, -E2BIG);
    return !p->failed;
}

/* ---- sets of characters */

static int by_lo(const void *a, const void *b)
{
    const struct regex_range *x = a, *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void add_range(struct regex_pool *p, size_t first, uint32_t lo, uint32_t hi)
{
    struct regex_range *last = p->n_ranges > first ? &p->ranges[p->n_ranges - 1] : NULL;

    if (lo > hi)
        return;
    if (last && lo <= last->hi + 1)
        last->hi = hi > last->hi ? hi : last->hi;
    else
        p->ranges[p->n_ranges++] = (struct regex_range){lo, hi};
}

int32_t regex_chars(struct regex_pool *p, const struct regex_range *ranges, size_t n)
{
    const size_t first = p->n_ranges;
    struct regex_range *sorted = reallocarray(NULL, n + 1, sizeof(*sorted));
    int32_t term = REGEX_NONE;

    if (!sorted)
        return fail(p, -ENOMEM);
    if (n > 0)
        memcpy(sorted, ranges, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_lo);
    if (reserve(p, &p->ranges, &p->ranges_cap, first + 2 * n + 1, sizeof(*p->ranges))) {
        for (size_t i = 0; i < n; i++) { /* without surrogates */
            const uint32_t lo = sorted[i].lo, hi = sorted[i].hi;

            if (hi < SURROGATES || lo > SURROGATES_END) {
                add_range(p, first, lo, hi);
                continue;
            }
            if (lo < SURROGATES)
                add_range(p, first, lo, SURROGATES - 1);
            if (hi > SURROGATES_END)
                add_range(p, first, SURROGATES_END + 1, hi);
        }
        if (p->n_ranges > first)
            term = intern(p, (struct regex_term){.op = OP_CHARS,
                                                 .a = (int32_t)first,
                                                 .b = (int32_t)(p->n_ranges - first)});
        if (term != (int32_t)p->n_terms - 1 || p->terms[term].a != (int32_t)first)
            p->n_ranges = first; /* there is one */
    }
    free(sorted);
    return term;
}

int32_t regex_other_chars(struct regex_pool *p, const struct regex_range *ranges, size_t n)
{
    const int32_t these = regex_chars(p, ranges, n);
    const struct regex_term t = p->terms[these];
    struct regex_range *others;
    uint32_t lo = 0;
    size_t k = 0;
    int32_t term;

    if (t.op != OP_CHARS)
        return REGEX_ANY;
    others = reallocarray(NULL, (size_t)t.b + 1, sizeof(*others));
    if (!others)
        return fail(p, -ENOMEM);
    for (int32_t i = 0; i < t.b; i++) {
        if (p->ranges[t.a + i].lo > lo)
            others[k++] = (struct regex_range){lo, p->ranges[t.a + i].lo - 1};
        lo = p->ranges[t.a + i].hi + 1;
    }
    if (lo <= REGEX_MAX_POINT)
        others[k++] = (struct regex_range){lo, REGEX_MAX_POINT};
    term = regex_chars(p, others, k);
    free(others);
    return term;
}

int32_t regex_char(struct regex_pool *p, uint32_t point)
{
    return regex_chars(p, &(struct regex_range){point, point}, 1);
}

static bool has_char(const struct regex_pool *p, const struct regex_term *t, uint32_t point)
{
    for (int32_t i = 0; i < t->b; i++)
        if (point >= p->ranges[t->a + i].lo && point <= p->ranges[t->a + i].hi)
            return true;
    return false;
}

/* ---- one after the other, and again */

int32_t regex_concat(struct regex_pool *p, int32_t a, int32_t b)
{
    const struct regex_term *x = &p->terms[a], *y = &p->terms[b];

    if (a == REGEX_NONE || b == REGEX_NONE)
        return REGEX_NONE;
    if (a == REGEX_EMPTY || b == REGEX_EMPTY)
        return a == REGEX_EMPTY ? b : a;
    return intern(p, (struct regex_term){.op = OP_CONCAT,
                                         .a = a,
                                         .b = b,
                                         .nullable = x->nullable && y->nullable,
                                         .is_complex = x->is_complex || y->is_complex});
}

int32_t regex_text(struct regex_pool *p, struct text utf8)
{
    int32_t term = REGEX_EMPTY;
    uint32_t point;

    while (utf8.len > 0) { /* from its end on */
        size_t at = utf8.len - 1;

        while (at > 0 && (utf8.data[at] & 0xc0) == 0x80)
            at--;
        utf8_read(utf8.data + at, utf8.len - at, &point);
        term = regex_concat(p, regex_char(p, point), term);
        utf8.len = at;
    }
    return term;
}

int32_t regex_repeat(struct regex_pool *p, int32_t a, int32_t min, int32_t max)
{
    const struct regex_term *x = &p->terms[a];

    must(min >= 0 && min <= max);
    if (max == 0 || a == REGEX_EMPTY)
        return REGEX_EMPTY;
    if (a == REGEX_NONE)
        return min == 0 ? REGEX_EMPTY : REGEX_NONE;
    if (min == 1 && max == 1)
        return a;
    if (x->nullable)
        min = 0; /* the same texts */
    if (x->op == OP_REPEAT && x->b == 0 && x->c == REGEX_INFINITE)
        return a;
    return intern(p, (struct regex_term){.op = OP_REPEAT,
                                         .a = a,
                                         .b = min,
                                         .c = max,
                                         .nullable = min == 0,
                                         .is_complex = x->is_complex});
}

/* ---- unions, intersections, complements */

static int by_number(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return x < y ? -1 : x > y;
}

/* Terms of a union or an intersection, those of inner ones among them. */
static bool add_to_list(struct regex_pool *p, int op, int32_t term)
{
    const struct regex_term t = p->terms[term];
    const size_t n = t.op == op ? (size_t)t.b : 1;

    if (!reserve(p, &p->lists, &p->lists_cap, p->n_lists + n, sizeof(*p->lists)))
        return false;
    if (t.op == op)
        memcpy(p->lists + p->n_lists, p->lists + t.a, n * sizeof(*p->lists));
    else
        p->lists[p->n_lists] = term;
    p->n_lists += n;
    return true;
}

static int32_t intersect_chars(struct regex_pool *p, int32_t a, int32_t b)
{
    const struct regex_term x = p->terms[a], y = p->terms[b];
    struct regex_range *both = reallocarray(NULL, (size_t)(x.b + y.b), sizeof(*both));
    size_t n = 0;
    int32_t term;

    if (!both)
        return fail(p, -ENOMEM);
    for (int32_t i = 0, k = 0; i < x.b && k < y.b;) {
        const struct regex_range r = p->ranges[x.a + i], s = p->ranges[y.a + k];
        const uint32_t lo = r.lo > s.lo ? r.lo : s.lo, hi = r.hi < s.hi ? r.hi : s.hi;

        if (lo <= hi)
            both[n++] = (struct regex_range){lo, hi};
        if (r.hi < s.hi)
            i++;
        else
            k++;
    }
    term = regex_chars(p, both, n);
    free(both);
    return term;
}

/* One set of those in the list from first on, of which there are n ranges. */
static int32_t unite_chars(struct regex_pool *p, size_t first, size_t n)
{
    struct regex_range *all = reallocarray(NULL, n, sizeof(*all));
    size_t k = 0;
    int32_t term;

    if (!all)
        return fail(p, -ENOMEM);
    for (size_t i = first; i < p->n_lists; i++) {
        const struct regex_term *t = &p->terms[p->lists[i]];

        if (t->op != OP_CHARS)
            continue;
        memcpy(all + k, p->ranges + t->a, (size_t)t->b * sizeof(*all));
        k += (size_t)t->b;
    }
    term = regex_chars(p, all, k);
    free(all);
    return term;
}

/* Joins sets of characters, which may be several, to one in the list from first on. */
static void join_chars(struct regex_pool *p, int op, size_t first)
{
    int32_t joined = -1;
    size_t n = first, n_ranges = 0, n_sets = 0;

    for (size_t i = first; i < p->n_lists; i++) {
        const struct regex_term *t = &p->terms[p->lists[i]];

        n_sets += t->op == OP_CHARS;
        n_ranges += t->op == OP_CHARS ? (size_t)t->b : 0;
    }
    if (n_sets < 2 || p->failed)
        return;
    if (op == OP_OR)
        joined = unite_chars(p, first, n_ranges);
    for (size_t i = first; i < p->n_lists; i++) {
        const int32_t one = p->lists[i];

        if (p->terms[one].op != OP_CHARS)
            p->lists[n++] = one;
        else if (op == OP_AND && joined != REGEX_NONE)
            joined = joined < 0 ? one : intersect_chars(p, joined, one);
    }
    p->lists[n++] = joined;
    p->n_lists = n;
}

/* The union or intersection of the list from first on, which is consumed. */
static int32_t combine(struct regex_pool *p, int op, size_t first)
{
    /* One term that decides, and one that does not count. */
    const int32_t zero = op == OP_OR ? REGEX_ALL : REGEX_NONE;
    const int32_t one = op == OP_OR ? REGEX_NONE : REGEX_ALL;
    struct regex_term t = {.op = op, .a = (int32_t)first, .nullable = op == OP_AND};
    size_t n = first;
    int32_t term;

    join_chars(p, op, first);
    if (p->n_lists > first)
        qsort(p->lists + first, p->n_lists - first, sizeof(*p->lists), by_number);
    for (size_t i = first; i < p->n_lists; i++) {
        const int32_t x = p->lists[i];

        if (x == one || (n > first && p->lists[n - 1] == x))
            continue;
        if (x == zero) {
            p->n_lists = first;
            return zero;
        }
        p->lists[n++] = x;
        t.nullable =
            op == OP_OR ? t.nullable || p->terms[x].nullable : t.nullable && p->terms[x].nullable;
        t.is_complex = t.is_complex || op == OP_AND || p->terms[x].is_complex;
    }
    t.b = (int32_t)(n - first);
    p->n_lists = n;
    if (p->failed || t.b <= 1) {
        p->n_lists = first;
        return p->failed ? REGEX_NONE : t.b == 1 ? p->lists[first] : one;
    }
    term = intern(p, t);
    if (p->terms[term].a != t.a)
        p->n_lists = first; /* there is one */
    return term;
}

int32_t regex_or(struct regex_pool *p, const int32_t *terms, size_t n)
{
    const size_t first = p->n_lists;

    for (size_t i = 0; i < n; i++)
        if (!add_to_list(p, OP_OR, terms[i]))
            return REGEX_NONE;
    return combine(p, OP_OR, first);
}

int32_t regex_or2(struct regex_pool *p, int32_t a, int32_t b)
{
    return regex_or(p, (const int32_t[]){a, b}, 2);
}

int32_t regex_and2(struct regex_pool *p, int32_t a, int32_t b)
{
    const size_t first = p->n_lists;

    if (!add_to_list(p, OP_AND, a) || !add_to_list(p, OP_AND, b))
        return REGEX_NONE;
    return combine(p, OP_AND, first);
}

int32_t regex_not(struct regex_pool *p, int32_t a)
{
    const struct regex_term *x = &p->terms[a];

    if (x->op == OP_NOT)
        return x->a;
    if (a == REGEX_NONE || a == REGEX_ALL)
        return a == REGEX_NONE ? REGEX_ALL : REGEX_NONE;
    return intern(
        p, (struct regex_term){.op = OP_NOT, .a = a, .nullable = !x->nullable, .is_complex = true});
}

/* ---- multiples */

static int32_t multiple(struct regex_pool *p, int32_t divisor, int64_t rest, int32_t places)
{
    int64_t all = rest;

    for (int32_t i = places & ~AFTER_POINT; i > 0 && all > 0; i--)
        all = all * 10 % divisor;
    return intern(p, (struct regex_term){.op = OP_MULTIPLE,
                                         .a = divisor,
                                         .b = (int32_t)rest,
                                         .c = places,
                                         .nullable = all == 0,
                                         .is_complex = true});
}

int32_t regex_multiples(struct regex_pool *p, int32_t divisor, int32_t places)
{
    must(divisor > 0 && divisor <= REGEX_MAX_MULTIPLE && places < AFTER_POINT);
    return multiple(p, divisor, 0, places);
}

static int32_t derive_multiple(struct regex_pool *p, const struct regex_term *t, uint32_t point)
{
    const bool after = t->c & AFTER_POINT;

    if (point == '-')
        return multiple(p, t->a, t->b, t->c);
    if (point == '.')
        return after ? REGEX_NONE : multiple(p, t->a, t->b, t->c | AFTER_POINT);
    if (point < '0' || point > '9')
        return REGEX_NONE;
    if (t->c == AFTER_POINT) /* behind the places that the divisor has */
        return point == '0' ? multiple(p, t->a, t->b, t->c) : REGEX_NONE;
    return multiple(p, t->a, ((int64_t)t->b * 10 + (point - '0')) % t->a, after ? t->c - 1 : t->c);
}

/* ---- derivatives */

static int32_t derive(struct regex_pool *p, int32_t term, uint32_t point);

static int32_t derive_list(struct regex_pool *p, const struct regex_term *t, uint32_t point)
{
    int32_t *each = reallocarray(NULL, (size_t)t->b, sizeof(*each)), term;
    size_t first;

    if (!each)
        return fail(p, -ENOMEM);
    for (int32_t i = 0; i < t->b; i++)
        each[i] = derive(p, p->lists[t->a + i], point);
    first = p->n_lists;
    for (int32_t i = 0; i < t->b && !p->failed; i++)
        add_to_list(p, t->op, each[i]);
    term = combine(p, t->op, first);
    free(each);
    return term;
}

static int32_t derive(struct regex_pool *p, int32_t term, uint32_t point)
{
    const struct regex_term t = p->terms[term];
    int32_t next = REGEX_NONE;

    if (p->failed || ++p->depth > MAX_DEPTH || ++p->work > p->max_work)
        return fail(p, -E2BIG);
    switch (t.op) {
    case OP_CHARS:
        next = has_char(p, &t, point) ? REGEX_EMPTY : REGEX_NONE;
        break;
    case OP_CONCAT:
        next = regex_concat(p, derive(p, t.a, point), t.b);
        if (p->terms[t.a].nullable)
            next = regex_or2(p, next, derive(p, t.b, point));
        break;
    case OP_REPEAT:
        next = regex_concat(p, derive(p, t.a, point),
                            regex_repeat(p, t.a, t.b > 0 ? t.b - 1 : 0,
                                         t.c == REGEX_INFINITE ? t.c : t.c - 1));
        break;
    case OP_OR:
    case OP_AND:
        next = derive_list(p, &t, point);
        break;
    case OP_NOT:
        next = regex_not(p, derive(p, t.a, point));
        break;
    case OP_MULTIPLE:
        next = derive_multiple(p, &t, point);
        break;
    default:
        break;
    }
    p->depth--;
    return next;
}

/* ---- steps: a term's derivatives, for all characters at once */

struct bounds { /* the first characters of ranges in which derivatives are alike */
    uint32_t *at;
    size_t n, cap;
};

static bool add_chars(const struct regex_pool *p, struct bounds *b, const struct regex_term *t)
{
    if (!array_reserve(&b->at, &b->cap, b->n + 2 * (size_t)t->b, sizeof(*b->at)))
        return false;
    for (int32_t i = 0; i < t->b; i++) {
        b->at[b->n++] = p->ranges[t->a + i].lo;
        b->at[b->n++] = p->ranges[t->a + i].hi + 1;
    }
    return true;
}

/* Each digit, the point and the sign for themselves. */
static bool add_digits(struct bounds *b)
{
    if (!array_reserve(&b->at, &b->cap, b->n + 14, sizeof(*b->at)))
        return false;
    for (uint32_t point = '-'; point <= '9' + 1; point++)
        b->at[b->n++] = point;
    return true;
}

/* Those of a term; at the end of a concatenation, or in a repetition, it goes on with what follows.
 */
static bool add_bounds(struct regex_pool *p, struct bounds *b, int32_t term)
{
    bool ok = ++p->depth <= MAX_DEPTH;

    for (bool more = true; ok && more;) {
        const struct regex_term t = p->terms[term];

        more = false;
        if (t.op == OP_CHARS) {
            ok = add_chars(p, b, &t);
        } else if (t.op == OP_MULTIPLE) {
            ok = add_digits(b);
        } else if (t.op == OP_CONCAT && p->terms[t.a].nullable) {
            ok = add_bounds(p, b, t.a);
            term = t.b;
            more = true;
        } else if (t.op == OP_CONCAT || t.op == OP_REPEAT || t.op == OP_NOT) {
            term = t.a;
            more = true;
        }
        for (int32_t i = 0; (t.op == OP_OR || t.op == OP_AND) && i < t.b && ok; i++)
            ok = add_bounds(p, b, p->lists[t.a + i]);
    }
    p->depth -= ok;
    return ok;
}

static int by_point(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Appends a step, or lengthens the one before. */
static void add_step(struct regex_pool *p, size_t first, uint32_t hi, int32_t next)
{
    if (p->n_steps > first && p->steps[p->n_steps - 1].next == next)
        p->steps[p->n_steps - 1].hi = hi;
    else
        p->steps[p->n_steps++] = (struct regex_step){hi, next};
}

static bool fill_steps(struct regex_pool *p, int32_t term)
{
    static const uint32_t ends[] = {SURROGATES, SURROGATES_END + 1, REGEX_MAX_POINT + 1};
    struct bounds b = {0};
    uint32_t lo = 0;
    int32_t *next;
    size_t first, n = 0;

    p->depth = 0;
    if (!add_bounds(p, &b, term) || !array_reserve(&b.at, &b.cap, b.n + 3, sizeof(*b.at))) {
        free(b.at);
        fail(p, p->depth > MAX_DEPTH ? -E2BIG : -ENOMEM);
        return false;
    }
    memcpy(b.at + b.n, ends, sizeof(ends));
    b.n += 3;
    qsort(b.at, b.n, sizeof(*b.at), by_point);
    next = reallocarray(NULL, b.n, sizeof(*next));
    if (!next)
        fail(p, -ENOMEM);
    for (size_t i = 0; next && i < b.n && b.at[i] <= REGEX_MAX_POINT + 1; i++) {
        if (b.at[i] <= lo)
            continue;
        next[n] = lo == SURROGATES ? REGEX_NONE : derive(p, term, lo);
        b.at[n++] = b.at[i] - 1; /* the last of the range */
        lo = b.at[n - 1] + 1;
    }
    first = p->n_steps;
    if (reserve(p, &p->steps, &p->steps_cap, first + n, sizeof(*p->steps))) {
        for (size_t i = 0; i < n; i++)
            add_step(p, first, b.at[i], next[i]);
        p->terms[term].steps_at = (int32_t)first;
        p->terms[term].n_steps = (int32_t)(p->n_steps - first);
    }
    free(next);
    free(b.at);
    return !p->failed;
}

/* ---- the automaton */

static bool have_steps(struct regex_pool *p, int32_t term)
{
    return p->terms[term].steps_at >= 0 || fill_steps(p, term);
}

/* Looks for a text among the terms that follow, breadth first. */
static void search(struct regex_pool *p, int32_t from)
{
    int32_t *queue = reallocarray(NULL, MAX_SEARCH, sizeof(*queue));
    bool *seen = NULL, alive = false;
    size_t n = 1, seen_cap = 0;

    if (!queue) {
        fail(p, -ENOMEM);
        return;
    }
    queue[0] = from;
    for (size_t i = 0; i < n && !alive && have_steps(p, queue[i]); i++) {
        const struct regex_term t = p->terms[queue[i]];

        if (seen_cap < p->n_terms) {
            const size_t had = seen_cap;

            if (!array_reserve(&seen, &seen_cap, p->n_terms, sizeof(*seen))) {
                fail(p, -ENOMEM);
                break;
            }
            memset(seen + had, 0, (seen_cap - had) * sizeof(*seen));
            seen[from] = true;
        }
        for (int32_t k = 0; k < t.n_steps && !alive; k++) {
            const int32_t next = p->steps[t.steps_at + k].next;

            alive = p->terms[next].alive == 1;
            if (alive || p->terms[next].alive == 0 || seen[next])
                continue;
            if (n == MAX_SEARCH) {
                fail(p, -E2BIG);
                break;
            }
            seen[next] = true;
            queue[n++] = next;
        }
    }
    for (size_t i = 0; i < n && !p->failed && (i == 0 || !alive); i++)
        p->terms[queue[i]].alive = alive; /* where there is none, all of them are dead */
    free(queue);
    free(seen);
}

bool regex_is_alive(struct regex_pool *p, int32_t term)
{
    if (p->terms[term].alive < 0 && !p->failed)
        search(p, term);
    return !p->failed && p->terms[term].alive == 1;
}

/* The step of a character. */
static const struct regex_step *step_of(const struct regex_pool *p, const struct regex_term *t,
                                        uint32_t point)
{
    const struct regex_step *at = p->steps + t->steps_at;
    int32_t lo = 0, hi = t->n_steps - 1;

    while (lo < hi) {
        const int32_t mid = (lo + hi) / 2;

        if (at[mid].hi < point)
            lo = mid + 1;
        else
            hi = mid;
    }
    return at + lo;
}

int32_t regex_next(struct regex_pool *p, int32_t term, uint32_t point)
{
    int32_t next;

    if (!have_steps(p, term))
        return REGEX_NONE;
    next = step_of(p, &p->terms[term], point)->next;
    return regex_is_alive(p, next) ? next : REGEX_NONE;
}

int32_t regex_next_of_all(struct regex_pool *p, int32_t term, uint32_t lo, uint32_t hi)
{
    struct regex_step step;

    if (!have_steps(p, term))
        return REGEX_NONE;
    step = *step_of(p, &p->terms[term], lo);
    return step.hi >= hi && regex_is_alive(p, step.next) ? step.next : REGEX_NONE;
}

bool regex_begins_with(struct regex_pool *p, int32_t term, uint32_t lo, uint32_t hi)
{
    int32_t at, end;

    if (lo > hi || !have_steps(p, term))
        return false;
    at = (int32_t)(step_of(p, &p->terms[term], lo) - p->steps);
    end = p->terms[term].steps_at + p->terms[term].n_steps;
    for (; at < end; at++) {
        if (regex_is_alive(p, p->steps[at].next))
            return true;
        if (p->steps[at].hi >= hi)
            return false;
    }
    return false;
}

bool regex_absorbs(const struct regex_pool *p, int32_t term, int32_t n)
{
    const struct regex_term *t = &p->terms[term];

    while (t->op == OP_CONCAT)
        t = &p->terms[t->a];
    return t->op == OP_REPEAT && t->a == REGEX_ANY && t->c >= n;
}
