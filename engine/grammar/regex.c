/* regex.c - the terms of regular expressions; regex_steps.c: what is left of them. See regex.h. */
#include "engine/grammar/regex_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/utf8.h"
#include "engine/util/checked.h"
#include "engine/util/must.h"

enum {
    MAX_FACTORED = 500, /* parts that texts may have in common; it is a recursion's depth */
    FEW_TEXTS = 16,     /* that may have FEW_STEP times fewer: there is little to gain */
    FEW_STEP = 64,
};

int32_t regex_fail(struct regex_pool *p, int code)
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

bool regex_reserve(struct regex_pool *p, void *array, size_t *cap, size_t n, size_t size)
{
    if (p->failed)
        return false;
    if (regex_pool_bytes(p) > p->max_bytes) {
        regex_fail(p, -E2BIG);
        return false;
    }
    if (array_reserve(array, cap, n, size))
        return true;
    regex_fail(p, -ENOMEM);
    return false;
}

/* ---- terms that are kept once */

static const int32_t *list_of(const struct regex_pool *p, const struct regex_term *t)
{
    return p->lists + t->a;
}

static uint64_t mix(uint64_t h, uint32_t x)
{
    return (h ^ x) * 0x9e3779b97f4a7c15u;
}

static uint32_t hash_of(const struct regex_pool *p, const struct regex_term *t)
{
    uint64_t h = mix(7, (uint32_t)t->op);

    if (t->op == OP_CHARS) {
        for (int32_t i = 0; i < t->b; i++)
            h = mix(mix(h, p->ranges[t->a + i].lo), p->ranges[t->a + i].hi);
    } else if (t->op == OP_OR || t->op == OP_AND) {
        for (int32_t i = 0; i < t->b; i++)
            h = mix(h, (uint32_t)list_of(p, t)[i]);
    } else {
        h = mix(mix(mix(h, (uint32_t)t->a), (uint32_t)t->b), (uint32_t)t->c);
    }
    return (uint32_t)(h >> 32); /* on which all bits of what was mixed have a bearing */
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
        regex_fail(p, -ENOMEM);
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

int32_t regex_intern(struct regex_pool *p, struct regex_term t)
{
    int32_t *at;

    if (p->failed || (p->n_terms >= p->table_size && !grow_table(p)))
        return REGEX_NONE;
    at = &p->table[hash_of(p, &t) & (p->table_size - 1)];
    for (int32_t i = *at; i; i = p->terms[i - 1].link)
        if (is_same(p, &p->terms[i - 1], &t))
            return i - 1;
    if (!regex_reserve(p, &p->terms, &p->terms_cap, p->n_terms + 1, sizeof(*p->terms)))
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
    regex_intern(p, (struct regex_term){.op = OP_NONE});
    regex_intern(p, (struct regex_term){.op = OP_EMPTY, .nullable = true});
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
        regex_fail(p, -E2BIG);
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
        return regex_fail(p, -ENOMEM);
    if (n > 0)
        memcpy(sorted, ranges, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_lo);
    if (regex_reserve(p, &p->ranges, &p->ranges_cap, first + 2 * n + 1, sizeof(*p->ranges))) {
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
            term = regex_intern(p, (struct regex_term){.op = OP_CHARS,
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
        return regex_fail(p, -ENOMEM);
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
    const bool is_kept = point < REGEX_ASCII_END;
    int32_t term = is_kept ? p->ascii[point] : REGEX_NONE;

    if (term == REGEX_NONE)
        term = regex_chars(p, &(struct regex_range){point, point}, 1);
    if (is_kept)
        p->ascii[point] = term;
    return term;
}

/* ---- one after the other, and again */

int32_t regex_concat(struct regex_pool *p, int32_t a, int32_t b)
{
    const struct regex_term *x = &p->terms[a], *y = &p->terms[b];

    if (a == REGEX_NONE || b == REGEX_NONE)
        return REGEX_NONE;
    if (a == REGEX_EMPTY || b == REGEX_EMPTY)
        return a == REGEX_EMPTY ? b : a;
    if (a == REGEX_ALL && y->nullable)
        return a;
    return regex_intern(p, (struct regex_term){.op = OP_CONCAT,
                                               .a = a,
                                               .b = b,
                                               .nullable = x->nullable && y->nullable,
                                               .is_complex = x->is_complex || y->is_complex});
}

int32_t regex_text(struct regex_pool *p, struct text utf8)
{
    int32_t term = REGEX_EMPTY;
    uint32_t point;

    (void)regex_spend(p, utf8.len / 2);  /* half as much as a derivative each */
    while (utf8.len > 0 && !p->failed) { /* from its end on */
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
    return regex_intern(p, (struct regex_term){.op = OP_REPEAT,
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

    if (!regex_reserve(p, &p->lists, &p->lists_cap, p->n_lists + n, sizeof(*p->lists)))
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
        return regex_fail(p, -ENOMEM);
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
        return regex_fail(p, -ENOMEM);
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

    (void)regex_spend(p, p->n_lists - first);
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
    term = regex_intern(p, t);
    if (p->terms[term].a != t.a)
        p->n_lists = first; /* there is one */
    return term;
}

int32_t regex_combine(struct regex_pool *p, int op, const int32_t *terms, size_t n)
{
    const size_t first = p->n_lists;

    for (size_t i = 0; i < n; i++)
        if (!add_to_list(p, op, terms[i]))
            return REGEX_NONE;
    return combine(p, op, first);
}

int32_t regex_or2(struct regex_pool *p, int32_t a, int32_t b)
{
    return regex_combine(p, OP_OR, (const int32_t[]){a, b}, 2);
}

int32_t regex_and2(struct regex_pool *p, int32_t a, int32_t b)
{
    return regex_combine(p, OP_AND, (const int32_t[]){a, b}, 2);
}

/* ---- unions of many texts, as a tree of their beginnings */

/* A term as two in a row. */
struct split {
    int32_t head, rest;
};

static struct split split(const struct regex_pool *p, int32_t term)
{
    const struct regex_term *t = &p->terms[term];

    return t->op == OP_CONCAT ? (struct split){t->a, t->b} : (struct split){term, REGEX_EMPTY};
}

static int by_head(const void *a, const void *b)
{
    const struct split *x = a, *y = b;

    return by_number(&x->head, &y->head);
}

/* The union of the list, which is consumed. Terms with the same head are one, with the union of
 * their rests behind it: so a derivative looks at each head, not at each text. */
static int32_t unite(struct regex_pool *p, struct split *list, size_t n, int depth)
{
    size_t first, n_heads = 0;

    if (!regex_spend(p, n / 4)) /* less than a derivative each */
        return REGEX_NONE;
    qsort(list, n, sizeof(*list), by_head);
    for (size_t i = 0, end; i < n; i = end) {
        const int32_t head = list[i].head;
        int32_t rest = list[i].rest;

        for (end = i + 1;
             end < n && list[end].head == head && head != REGEX_EMPTY && depth < MAX_FACTORED;
             end++)
            ;
        if (end > i + 1) {
            for (size_t k = i; k < end; k++)
                list[k] = split(p, list[k].rest);
            rest = unite(p, list + i, end - i, depth + (end - i < FEW_TEXTS ? FEW_STEP : 1));
        }
        list[n_heads++].head = regex_concat(p, head, rest);
    }
    first = p->n_lists;
    for (size_t i = 0; i < n_heads; i++)
        if (!add_to_list(p, OP_OR, list[i].head))
            return REGEX_NONE;
    return combine(p, OP_OR, first);
}

int32_t regex_or(struct regex_pool *p, const int32_t *terms, size_t n)
{
    struct split *list = reallocarray(NULL, n + 1, sizeof(*list));
    int32_t term;

    if (!list)
        return regex_fail(p, -ENOMEM);
    for (size_t i = 0; i < n; i++)
        list[i] = split(p, terms[i]);
    term = unite(p, list, n, 0);
    free(list);
    return term;
}

int32_t regex_not(struct regex_pool *p, int32_t a)
{
    const struct regex_term *x = &p->terms[a];

    if (x->op == OP_NOT)
        return x->a;
    if (a == REGEX_NONE || a == REGEX_ALL)
        return a == REGEX_NONE ? REGEX_ALL : REGEX_NONE;
    return regex_intern(
        p, (struct regex_term){.op = OP_NOT, .a = a, .nullable = !x->nullable, .is_complex = true});
}
