/* regex_steps.c - what is left of a term after a character, for all characters at once, and whether
 * a text follows. See regex.h. */
#include "engine/grammar/regex_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

enum {
    MAX_SEARCH = 20000, /* states in which a text is looked for */
    MAX_DEPTH = 4000,   /* of derivatives of derivatives */
};

/* ---- multiples */

static int32_t multiple(struct regex_pool *p, int32_t divisor, int64_t rest, int32_t places)
{
    int64_t all = rest;

    for (int32_t i = places & ~AFTER_POINT; i > 0 && all > 0; i--)
        all = all * 10 % divisor;
    return regex_intern(p, (struct regex_term){.op = OP_MULTIPLE,
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

    if (!each)
        return regex_fail(p, -ENOMEM);
    for (int32_t i = 0; i < t->b; i++)
        each[i] = derive(p, p->lists[t->a + i], point);
    term = regex_combine(p, t->op, each, (size_t)t->b);
    free(each);
    return term;
}

static bool has_char(const struct regex_pool *p, const struct regex_term *t, uint32_t point)
{
    const struct regex_range *ranges = p->ranges + t->a;
    int32_t lo = 0, hi = t->b;

    while (lo < hi) {
        const int32_t mid = (lo + hi) / 2;

        if (ranges[mid].hi < point)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->b && ranges[lo].lo <= point;
}

static int32_t derive(struct regex_pool *p, int32_t term, uint32_t point)
{
    const struct regex_term t = p->terms[term];
    int32_t next = REGEX_NONE;

    if (p->failed || ++p->depth > MAX_DEPTH || ++p->work > p->max_work)
        return regex_fail(p, -E2BIG);
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
    if (p->failed) /* a walk over a vocabulary asks for many more */
        return false;
    if (!add_bounds(p, &b, term) || !array_reserve(&b.at, &b.cap, b.n + 3, sizeof(*b.at))) {
        free(b.at);
        regex_fail(p, p->depth > MAX_DEPTH ? -E2BIG : -ENOMEM);
        return false;
    }
    memcpy(b.at + b.n, ends, sizeof(ends));
    b.n += 3;
    (void)regex_spend(p, b.n);
    qsort(b.at, b.n, sizeof(*b.at), by_point);
    next = reallocarray(NULL, b.n, sizeof(*next));
    if (!next)
        regex_fail(p, -ENOMEM);
    for (size_t i = 0; next && i < b.n && b.at[i] <= REGEX_MAX_POINT + 1; i++) {
        if (b.at[i] <= lo)
            continue;
        next[n] = lo == SURROGATES ? REGEX_NONE : derive(p, term, lo);
        b.at[n++] = b.at[i] - 1; /* the last of the range */
        lo = b.at[n - 1] + 1;
    }
    first = p->n_steps;
    if (regex_reserve(p, &p->steps, &p->steps_cap, first + n, sizeof(*p->steps))) {
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
        regex_fail(p, -ENOMEM);
        return;
    }
    queue[0] = from;
    for (size_t i = 0; i < n && !alive && have_steps(p, queue[i]); i++) {
        const struct regex_term t = p->terms[queue[i]];

        if (seen_cap < p->n_terms) {
            const size_t had = seen_cap;

            if (!array_reserve(&seen, &seen_cap, p->n_terms, sizeof(*seen))) {
                regex_fail(p, -ENOMEM);
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
                regex_fail(p, -E2BIG);
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
