/* grammar.c - see grammar.h. */
#include "engine/grammar/grammar.h"

#include <errno.h>
#include <stdlib.h>

enum {
    MAX_NODES = 1 << 20,
    MAX_WAYS = 4096,    /* of one place */
    MAX_FOLLOW = 4096,  /* forks that follow without a byte between them */
    LOOKS_OF_WORK = 16, /* at a node or a way, that cost as much as a derivative */
};

static void fail(struct grammar *g, int code)
{
    if (g->failed == 0)
        g->failed = code;
}

int grammar_failed(const struct grammar *g)
{
    return g->failed ? g->failed : lexer_failed(&g->lexer);
}

/* Counts looks at so many nodes or ways. False: too many. */
static bool spend(struct grammar *g, size_t n)
{
    return regex_spend(&g->lexer.regex, n / LOOKS_OF_WORK);
}

size_t grammar_bytes(const struct grammar *g)
{
    return sizeof(*g) + lexer_bytes(&g->lexer) + g->nodes_cap * sizeof(*g->nodes) +
           g->rules_cap * sizeof(*g->rules) + g->frames_cap * sizeof(*g->frames) +
           (g->frame_table_size + g->place_table_size) * sizeof(int32_t) +
           g->ways_cap * sizeof(*g->ways) + g->places_cap * sizeof(*g->places) +
           g->pages.cap * sizeof(*g->pages.pages) + g->gathered_cap * sizeof(*g->gathered);
}

/* Room for n elements, within the limit. */
static bool reserve(struct grammar *g, void *array, size_t *cap, size_t n, size_t size)
{
    if (grammar_failed(g))
        return false;
    if (n > *cap && grammar_bytes(g) > g->max_bytes)
        fail(g, -E2BIG);
    else if (!array_reserve(array, cap, n, size))
        fail(g, -ENOMEM);
    return g->failed == 0;
}

int grammar_init(struct grammar *g, size_t max_bytes)
{
    int r;

    *g = (struct grammar){.max_bytes = max_bytes, .start = GRAMMAR_DEAD};
    r = lexer_init(&g->lexer, max_bytes);
    if (r == 0)
        grammar_node(g, GRAMMAR_OP_END, 0, 0);
    return r < 0 ? r : grammar_failed(g);
}

void grammar_deinit(struct grammar *g)
{
    lexer_deinit(&g->lexer);
    free(g->nodes);
    free(g->rules);
    free(g->frames);
    free(g->frame_table);
    free(g->ways);
    free(g->places);
    free(g->place_table);
    free(g->pages.pages);
    free(g->gathered);
    free(g->forks);
    *g = (struct grammar){0};
}

/* ---- building */

int32_t grammar_node(struct grammar *g, enum grammar_op op, int32_t a, int32_t next)
{
    if (next == GRAMMAR_DEAD ||
        !reserve(g, &g->nodes, &g->nodes_cap, g->n_nodes + 1, sizeof(*g->nodes)))
        return GRAMMAR_DEAD;
    if (g->n_nodes == MAX_NODES) {
        fail(g, -E2BIG);
        return GRAMMAR_DEAD;
    }
    g->nodes[g->n_nodes] = (struct grammar_node){.op = op, .a = a, .next = next};
    return (int32_t)g->n_nodes++;
}

int32_t grammar_text(struct grammar *g, int32_t term, enum lexer_form form, int32_t next)
{
    const int32_t state = lexer_begin(&g->lexer, term, form);

    return state == LEXER_DEAD ? GRAMMAR_DEAD : grammar_node(g, GRAMMAR_OP_TEXT, state, next);
}

int32_t grammar_fork(struct grammar *g, int32_t a, int32_t b)
{
    if (a == GRAMMAR_DEAD || b == GRAMMAR_DEAD || a == b)
        return a == GRAMMAR_DEAD ? b : a;
    return grammar_node(g, GRAMMAR_OP_FORK, a, b);
}

int32_t grammar_rule(struct grammar *g)
{
    if (!reserve(g, &g->rules, &g->rules_cap, g->n_rules + 1, sizeof(*g->rules)))
        return 0;
    g->rules[g->n_rules] = GRAMMAR_DEAD;
    return (int32_t)g->n_rules++;
}

void grammar_define(struct grammar *g, int32_t rule, int32_t node)
{
    if ((size_t)rule < g->n_rules)
        g->rules[rule] = node;
}

static bool rule_ends(const struct grammar *g, int32_t rule)
{
    return g->rules[rule] != GRAMMAR_DEAD && g->nodes[g->rules[rule]].ends;
}

/* Marks the nodes from which an end can be reached, counts apart. */
static void mark_ends(struct grammar *g)
{
    bool more = true;

    g->nodes[GRAMMAR_END].ends = true;
    while (more && spend(g, g->n_nodes)) {
        more = false;
        for (size_t i = 1; i < g->n_nodes; i++) {
            struct grammar_node *n = &g->nodes[i];
            bool ends = g->nodes[n->next].ends;

            if (n->op == GRAMMAR_OP_CALL)
                ends = ends && rule_ends(g, n->a);
            else if (n->op == GRAMMAR_OP_FORK)
                ends = ends || g->nodes[n->a].ends;
            more = more || (ends && !n->ends);
            n->ends = n->ends || ends;
        }
    }
}

/* ---- rules that call themselves before they take anything */

struct walk {
    struct grammar *g;
    bool *empty;  /* [n_nodes] the empty text leads from here to an end */
    int8_t *seen; /* [n_rules] 1: under way, 2: done */
    bool *nodes;  /* [n_nodes] seen in this rule */
    int32_t wrong;
    int depth;
};

static bool is_empty(const struct walk *w, const struct grammar_node *n)
{
    const struct grammar *g = w->g;
    const bool next = w->empty[n->next];

    switch (n->op) {
    case GRAMMAR_OP_TEXT:
        return next && g->lexer.states[n->a].accepts;
    case GRAMMAR_OP_CALL:
        return next && g->rules[n->a] != GRAMMAR_DEAD && w->empty[g->rules[n->a]];
    case GRAMMAR_OP_FORK:
        return next || w->empty[n->a];
    default:
        return next;
    }
}

static void mark_empty(struct walk *w)
{
    bool more = true;

    w->empty[GRAMMAR_END] = true;
    while (more && spend(w->g, w->g->n_nodes)) {
        more = false;
        for (size_t i = 1; i < w->g->n_nodes; i++)
            if (!w->empty[i] && is_empty(w, &w->g->nodes[i]))
                w->empty[i] = more = true;
    }
}

static void visit(struct walk *w, int32_t rule);

/* The nodes that follow without a byte between them. */
static void visit_node(struct walk *w, int32_t node)
{
    struct grammar *g = w->g;

    while (w->wrong < 0 && !grammar_failed(g) && node != GRAMMAR_END && !w->nodes[node]) {
        const struct grammar_node *n = &g->nodes[node];

        w->nodes[node] = true;
        if (n->op == GRAMMAR_OP_CALL)
            visit(w, n->a);
        if (n->op == GRAMMAR_OP_FORK)
            visit_node(w, n->a);
        if ((n->op == GRAMMAR_OP_TEXT && !g->lexer.states[n->a].accepts) ||
            (n->op == GRAMMAR_OP_CALL &&
             (g->rules[n->a] == GRAMMAR_DEAD || !w->empty[g->rules[n->a]])))
            return;
        node = n->next;
    }
}

static void visit(struct walk *w, int32_t rule)
{
    if (w->seen[rule] == 2 || w->g->rules[rule] == GRAMMAR_DEAD)
        return;
    if (w->seen[rule] == 1) {
        w->wrong = rule;
        return;
    }
    if (++w->depth > MAX_FOLLOW) {
        fail(w->g, -E2BIG);
        return;
    }
    w->seen[rule] = 1;
    visit_node(w, w->g->rules[rule]);
    w->seen[rule] = 2;
    w->depth--;
}

int32_t grammar_left_recursion(struct grammar *g)
{
    struct walk w = {.g = g, .wrong = -1};

    w.empty = calloc(g->n_nodes, sizeof(*w.empty));
    w.nodes = calloc(g->n_nodes, sizeof(*w.nodes));
    w.seen = calloc(g->n_rules + 1, sizeof(*w.seen));
    if (w.empty && w.nodes && w.seen) {
        mark_empty(&w);
        for (size_t i = 0; i < g->n_rules && w.wrong < 0 && !grammar_failed(g); i++)
            visit(&w, (int32_t)i);
    } else {
        fail(g, -ENOMEM);
    }
    free(w.empty);
    free(w.nodes);
    free(w.seen);
    return w.wrong;
}

/* ---- rules that may not reach their count */

enum {
    TO_COUNT = 1,   /* a node of the rule asks for a count */
    TO_ENDLESS = 2, /* one calls a rule that never ends */
};

/* Whether a rule asks for a count and calls a rule that never ends: as ends are marked without the
 * counts, a place in it might lead nowhere. What is behind such a call does not count, nor a rule
 * that never ends itself. */
static bool may_be_stuck(struct grammar *g)
{
    bool more = false;

    for (size_t i = 1; i < g->n_nodes; i++) {
        struct grammar_node *n = &g->nodes[i];

        if (n->op == GRAMMAR_OP_FROM)
            n->leads_to = TO_COUNT;
        if (n->op == GRAMMAR_OP_CALL && !rule_ends(g, n->a))
            n->leads_to = TO_ENDLESS;
        more = more || n->leads_to == TO_ENDLESS;
    }
    while (more && spend(g, g->n_nodes)) {
        more = false;
        for (size_t i = 1; i < g->n_nodes; i++) {
            struct grammar_node *n = &g->nodes[i];
            const uint8_t had = n->leads_to;

            if (n->op == GRAMMAR_OP_CALL && !rule_ends(g, n->a))
                continue;
            n->leads_to |= g->nodes[n->next].leads_to;
            if (n->op == GRAMMAR_OP_FORK)
                n->leads_to |= g->nodes[n->a].leads_to;
            more = more || n->leads_to != had;
        }
    }
    for (size_t i = 0; i < g->n_rules; i++)
        if (rule_ends(g, (int32_t)i) && g->nodes[g->rules[i]].leads_to == (TO_COUNT | TO_ENDLESS))
            return true;
    return false;
}

/* ---- stacks and places that are kept once */

static size_t mix(size_t h, int32_t x)
{
    return (h ^ (uint32_t)x) * 0x9e3779b97f4a7c15u;
}

static bool grow(struct grammar *g, int32_t **table, size_t *size)
{
    const size_t larger = *size ? 2 * *size : 256;
    int32_t *fresh = calloc(larger, sizeof(*fresh));

    if (!fresh) {
        fail(g, -ENOMEM);
        return false;
    }
    free(*table);
    *table = fresh;
    *size = larger;
    return true;
}

static int32_t *frame_slot(struct grammar *g, const struct grammar_frame *f)
{
    const size_t h = mix(mix(mix(1, f->node), f->count), f->below) >> 20;

    return &g->frame_table[h & (g->frame_table_size - 1)];
}

static int32_t intern_frame(struct grammar *g, int32_t node, int32_t count, int32_t below)
{
    struct grammar_frame f = {.node = node, .count = count, .below = below};
    int32_t *slot;

    (void)regex_spend(&g->lexer.regex, 1);
    if (g->n_frames >= g->frame_table_size) {
        if (!grow(g, &g->frame_table, &g->frame_table_size))
            return -1;
        for (size_t i = 0; i < g->n_frames; i++) {
            slot = frame_slot(g, &g->frames[i]);
            g->frames[i].link = *slot;
            *slot = (int32_t)i + 1;
        }
    }
    slot = frame_slot(g, &f);
    for (int32_t i = *slot; i; i = g->frames[i - 1].link) {
        const struct grammar_frame *x = &g->frames[i - 1];

        if (x->node == node && x->count == count && x->below == below)
            return i - 1;
    }
    if (!reserve(g, &g->frames, &g->frames_cap, g->n_frames + 1, sizeof(*g->frames)))
        return -1;
    f.link = *slot;
    g->frames[g->n_frames] = f;
    *slot = (int32_t)++g->n_frames;
    return *slot - 1;
}

static int32_t *place_slot(struct grammar *g, const struct grammar_way *ways, size_t n,
                           bool accepts)
{
    size_t h = accepts;

    for (size_t i = 0; i < n; i++)
        h = mix(mix(h, ways[i].state), ways[i].frame);
    return &g->place_table[h >> 20 & (g->place_table_size - 1)];
}

static int by_way(const void *a, const void *b)
{
    const struct grammar_way *x = a, *y = b;

    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

/* The place of the ways that have been gathered. */
static int32_t intern_place(struct grammar *g)
{
    struct grammar_way *w = g->gathered;
    struct grammar_place *p;
    size_t n = 0;
    int32_t *slot;

    if (g->n_gathered > 1)
        qsort(w, g->n_gathered, sizeof(*w), by_way);
    for (size_t i = 0; i < g->n_gathered; i++)
        if (n == 0 || by_way(&w[n - 1], &w[i]) != 0)
            w[n++] = w[i];
    if (grammar_failed(g) || (n == 0 && !g->gathered_end))
        return GRAMMAR_DEAD;
    if (g->n_places >= g->place_table_size) {
        if (!grow(g, &g->place_table, &g->place_table_size))
            return GRAMMAR_DEAD;
        for (size_t i = 0; i < g->n_places; i++) {
            p = &g->places[i];
            slot = place_slot(g, g->ways + p->ways_at, (size_t)p->n_ways, p->accepts);
            p->link = *slot;
            *slot = (int32_t)i + 1;
        }
    }
    slot = place_slot(g, w, n, g->gathered_end);
    for (int32_t i = *slot; i; i = g->places[i - 1].link) {
        p = &g->places[i - 1];
        if ((size_t)p->n_ways == n && p->accepts == g->gathered_end &&
            (n == 0 || memcmp(g->ways + p->ways_at, w, n * sizeof(*w)) == 0))
            return i - 1;
    }
    if (!reserve(g, &g->ways, &g->ways_cap, g->n_ways + n, sizeof(*g->ways)) ||
        !reserve(g, &g->places, &g->places_cap, g->n_places + 1, sizeof(*g->places)))
        return GRAMMAR_DEAD;
    if (n > 0)
        memcpy(g->ways + g->n_ways, w, n * sizeof(*w));
    g->places[g->n_places] = (struct grammar_place){.ways_at = (int32_t)g->n_ways,
                                                    .n_ways = (int32_t)n,
                                                    .link = *slot,
                                                    .accepts = g->gathered_end};
    g->n_ways += n;
    *slot = (int32_t)++g->n_places;
    return *slot - 1;
}

/* ---- reading */

static void gather(struct grammar *g, int32_t state, int32_t frame)
{
    if (g->n_gathered == MAX_WAYS)
        fail(g, -E2BIG);
    else if (reserve(g, &g->gathered, &g->gathered_cap, g->n_gathered + 1, sizeof(*g->gathered)))
        g->gathered[g->n_gathered++] = (struct grammar_way){state, frame};
}

/* False: it has been followed before; a loop of what may be empty comes back to it. */
static bool take_fork(struct grammar *g, int32_t node, int32_t count, int32_t below)
{
    for (size_t i = 0; i < g->n_forks; i++) {
        const struct grammar_frame *f = &g->forks[i];

        if (f->node == node && f->count == count && f->below == below)
            return false;
    }
    (void)spend(g, g->n_forks);
    if (g->n_forks == MAX_FOLLOW)
        fail(g, -E2BIG);
    else if (reserve(g, &g->forks, &g->forks_cap, g->n_forks + 1, sizeof(*g->forks)))
        g->forks[g->n_forks++] =
            (struct grammar_frame){.node = node, .count = count, .below = below};
    return true;
}

/* Gathers the ways that begin at a node, with the count of its call and what is below that. */
static void follow(struct grammar *g, int32_t node, int32_t count, int32_t below)
{
    int32_t frame;

    while (!grammar_failed(g)) {
        const struct grammar_node n = g->nodes[node];

        if (!n.ends)
            return;
        switch (n.op) {
        case GRAMMAR_OP_END:
            if (below < 0) {
                g->gathered_end = true;
                return;
            }
            node = g->frames[below].node;
            count = g->frames[below].count;
            below = g->frames[below].below;
            continue;
        case GRAMMAR_OP_TEXT:
            frame = intern_frame(g, n.next, count, below);
            if (!g->lexer.states[n.a].is_final)
                gather(g, n.a, frame);
            if (!g->lexer.states[n.a].accepts)
                return;
            break;
        case GRAMMAR_OP_CALL:
            if (n.next != GRAMMAR_END) /* else the rule ends where this one does */
                below = intern_frame(g, n.next, count, below);
            node = g->rules[n.a];
            count = 0;
            continue;
        case GRAMMAR_OP_FORK:
            if (!take_fork(g, node, count, below))
                return;
            follow(g, n.a, count, below);
            break;
        case GRAMMAR_OP_RAISE:
            count += count < n.a;
            break;
        case GRAMMAR_OP_BELOW:
            if (count >= n.a)
                return;
            break;
        case GRAMMAR_OP_FROM:
            if (count < n.a)
                return;
            break;
        }
        node = n.next;
    }
}

static void begin(struct grammar *g)
{
    g->n_gathered = g->n_forks = 0;
    g->gathered_end = false;
}

int32_t grammar_resume(struct grammar *g, int32_t frame)
{
    const struct grammar_frame f = g->frames[frame];

    begin(g);
    follow(g, f.node, f.count, f.below);
    return intern_place(g);
}

int grammar_close(struct grammar *g, int32_t rule)
{
    if (grammar_failed(g))
        return grammar_failed(g);
    mark_ends(g);
    if (grammar_failed(g))
        return grammar_failed(g);
    if (!rule_ends(g, rule))
        return -EINVAL;
    if (may_be_stuck(g))
        return -ENOTSUP;
    begin(g);
    follow(g, g->rules[rule], 0, -1);
    g->start = intern_place(g);
    return grammar_failed(g) ? grammar_failed(g) : g->start == GRAMMAR_DEAD ? -EINVAL : 0;
}

int32_t grammar_step(struct grammar *g, int32_t place, uint8_t byte)
{
    int32_t to = steps_get(&g->pages, &g->places[place].steps, byte), at, n;

    if (to != STEP_UNKNOWN)
        return to;
    at = g->places[place].ways_at;
    n = g->places[place].n_ways;
    begin(g);
    for (int32_t i = 0; i < n; i++) {
        const struct grammar_way w = g->ways[at + i];
        const int32_t state = lexer_step(&g->lexer, w.state, byte);

        if (state == LEXER_DEAD)
            continue;
        if (!g->lexer.states[state].is_final)
            gather(g, state, w.frame);
        if (g->lexer.states[state].accepts) {
            const struct grammar_frame f = g->frames[w.frame];

            follow(g, f.node, f.count, f.below);
        }
    }
    to = intern_place(g);
    if (grammar_failed(g))
        return GRAMMAR_DEAD;
    if (!steps_set(&g->pages, &g->places[place].steps, byte, to))
        fail(g, -ENOMEM);
    return to;
}
