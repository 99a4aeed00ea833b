/* vocabulary.c - see vocabulary.h. */
#include "engine/grammar/vocabulary.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/text/utf8.h"

enum {
    MAX_DEPTH = 1024,  /* bytes of a token; longer ones never come */
    PLAIN_POINTS = 16, /* characters of a token that counts as plain */
    KEPT_MASKS = 16,
    FREE_BYTES = 1 << 20,
    NODES_OF_WORK = 16, /* that cost as much as a derivative */
};

/* Tokens by their texts. Nodes are in the order in which a walk meets them: before those below
 * them. The tokens of node i are ids [first[i] .. first[i + 1]), those of all below it go on up to
 * first[ends[i]]. */
struct tree {
    uint8_t *bytes;
    uint16_t *depths; /* 1 for the first byte */
    int32_t *ends;    /* behind the nodes below */
    int32_t *first;   /* [n + 1] */
    int32_t *ids;     /* [n_ids] by text */
    int32_t n, n_ids;
};

/* PLAIN: of whole characters that a JSON string can have without escapes. A state that takes any
 * characters takes all of these below a node, without a look. */
enum { PLAIN, OTHERS, N_TREES };

/* What is known of a lexer's state: the tokens that stay inside of the text, and the nodes at which
 * it can end with nodes below. */
struct known {
    bool has_exits; /* else nobody has asked for them */
    bool all_plain; /* the tokens are all plain ones but less, and more */
    uint32_t *mask; /* in place of more, where these are many */
    int32_t *less, *more, *exits[N_TREES];
    size_t n_less, n_more, n_exits[N_TREES];
};

struct vocabulary {
    const struct tokenizer *tokenizer;
    int32_t vocab_size;
    struct tree trees[N_TREES];
    uint32_t *plain;   /* the mask of all plain tokens */
    struct known free; /* of a state in a JSON string of any text */
};

static size_t n_words(const struct vocabulary *v)
{
    return ((size_t)v->vocab_size + 31) / 32;
}

static void set_bit(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= 1u << id % 32;
}

/* ---- the trees */

static struct text text_of(const struct vocabulary *v, int32_t id)
{
    const struct text none = {0};
    const struct text t =
        tokenizer_is_special(v->tokenizer, id) ? none : tokenizer_token_bytes(v->tokenizer, id);

    return t.len > MAX_DEPTH ? none : t;
}

static int by_text(const void *a, const void *b, void *vocabulary)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const struct text s = text_of(vocabulary, x), t = text_of(vocabulary, y);
    const int order = memcmp(s.data, t.data, s.len < t.len ? s.len : t.len);

    if (order != 0 || s.len != t.len)
        return order != 0 ? order : s.len < t.len ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void tree_deinit(struct tree *t)
{
    free(t->bytes);
    free(t->depths);
    free(t->ends);
    free(t->first);
    free(t->ids);
}

static size_t common(struct text a, struct text b)
{
    size_t n = 0;

    while (n < a.len && n < b.len && a.data[n] == b.data[n])
        n++;
    return n;
}

/* The tree of tokens in the order of their texts, none of which is empty. */
static bool tree_init(struct tree *t, const struct vocabulary *v, const int32_t *ids, size_t n)
{
    int32_t open[MAX_DEPTH]; /* the node of each byte of the text before */
    struct text before = {0};
    size_t n_nodes = 0;

    for (size_t i = 0; i < n; i++) {
        const struct text text = text_of(v, ids[i]);

        n_nodes += text.len - common(before, text);
        before = text;
    }
    t->bytes = calloc(n_nodes + 1, sizeof(*t->bytes));
    t->depths = calloc(n_nodes + 1, sizeof(*t->depths));
    t->ends = calloc(n_nodes + 1, sizeof(*t->ends));
    t->first = calloc(n_nodes + 1, sizeof(*t->first));
    t->ids = calloc(n + 1, sizeof(*t->ids));
    if (!t->bytes || !t->depths || !t->ends || !t->first || !t->ids)
        return false;
    before = (struct text){0};
    for (size_t i = 0; i < n; i++) {
        const struct text text = text_of(v, ids[i]);
        size_t at = common(before, text);

        for (size_t k = at; k < before.len; k++)
            t->ends[open[k]] = t->n;
        for (; at < text.len; at++) {
            open[at] = t->n;
            t->bytes[t->n] = (uint8_t)text.data[at];
            t->depths[t->n] = (uint16_t)(at + 1);
            t->first[t->n++] = (int32_t)i;
        }
        t->ids[t->n_ids++] = ids[i];
        before = text;
    }
    for (size_t k = 0; k < before.len; k++)
        t->ends[open[k]] = t->n;
    t->first[t->n] = t->n_ids;
    return true;
}

static bool is_plain(struct text t)
{
    uint32_t point;
    int n = 0;

    for (size_t at = 0, len; at < t.len; at += len, n++) {
        len = utf8_read(t.data + at, t.len - at, &point);
        if (len == 0 || point == UTF8_BROKEN || point < 0x20 || point == '"' || point == '\\')
            return false;
    }
    return n <= PLAIN_POINTS;
}

static bool make_trees(struct vocabulary *v)
{
    int32_t *ids[N_TREES];
    size_t n[N_TREES] = {0};
    bool ok = true;

    for (int k = 0; k < N_TREES; k++)
        ok = (ids[k] = calloc((size_t)v->vocab_size, sizeof(*ids[k]))) && ok;
    for (int32_t i = 0; ok && i < v->vocab_size; i++) {
        const struct text text = text_of(v, i);
        const int k = is_plain(text) ? PLAIN : OTHERS;

        if (text.len > 0)
            ids[k][n[k]++] = i;
        if (text.len > 0 && k == PLAIN)
            set_bit(v->plain, i);
    }
    for (int k = 0; k < N_TREES; k++) {
        if (ok)
            qsort_r(ids[k], n[k], sizeof(*ids[k]), by_text, v);
        ok = ok && tree_init(&v->trees[k], v, ids[k], n[k]);
        free(ids[k]);
    }
    return ok;
}

/* ---- what is known of a state */

struct masks {
    const struct vocabulary *v;
    struct grammar *g;
    struct known *known; /* [n_known] */
    size_t n_known, known_cap;
    int32_t *of_state; /* [of_state_cap] 1 + what is known of it; 0: nothing */
    size_t of_state_cap;
    size_t bytes, max_bytes;
    /* Masks of the places that were last asked for, by their numbers: in the middle of a text the
     * next token's is often the same. */
    uint32_t *kept[KEPT_MASKS + 1]; /* the last one for the start */
    int32_t kept_place[KEPT_MASKS + 1];
    uint32_t *scratch;
};

/* Of a walk. */
struct lists {
    int32_t *ranges, *tokens, *exits[N_TREES]; /* ranges: of ids of the plain tree, in pairs */
    size_t n_ranges, ranges_cap, n_tokens, tokens_cap, n_exits[N_TREES], exits_cap[N_TREES];
};

static void lists_deinit(struct lists *l)
{
    free(l->ranges);
    free(l->tokens);
    free(l->exits[PLAIN]);
    free(l->exits[OTHERS]);
}

static bool append(int32_t **list, size_t *n, size_t *cap, int32_t value)
{
    if (!array_reserve(list, cap, *n + 1, sizeof(value)))
        return false;
    (*list)[(*n)++] = value;
    return true;
}

/* Adds the range to the one before it, where that ends there. */
static bool add_range(struct lists *l, int32_t lo, int32_t hi)
{
    if (lo == hi)
        return true;
    if (l->n_ranges > 0 && l->ranges[l->n_ranges - 1] == lo) {
        l->ranges[l->n_ranges - 1] = hi;
        return true;
    }
    return append(&l->ranges, &l->n_ranges, &l->ranges_cap, lo) &&
           append(&l->ranges, &l->n_ranges, &l->ranges_cap, hi);
}

/* Lists the tokens of one tree from a state on, and the exits if they are asked for. */
static bool walk_text(struct lists *out, struct lexer *l, const struct tree *t, int kind,
                      int32_t from, bool exits)
{
    int32_t states[MAX_DEPTH + 1]; /* behind the bytes so far */
    size_t n = 0;
    bool ok = true;

    states[0] = from;
    if (kind == PLAIN && lexer_absorbs(l, from, PLAIN_POINTS))
        return add_range(out, 0, t->n_ids);
    for (int32_t i = 0; i < t->n && ok; n++) {
        const int depth = t->depths[i];
        const int32_t state = lexer_step(l, states[depth - 1], t->bytes[i]);
        bool ends;

        if (state == LEXER_DEAD) {
            i = t->ends[i];
            continue;
        }
        if (kind == PLAIN && lexer_absorbs(l, state, PLAIN_POINTS)) {
            ok = add_range(out, t->first[i], t->first[t->ends[i]]);
            i = t->ends[i];
            continue;
        }
        states[depth] = state;
        ends = l->states[state].is_final;
        if (kind == PLAIN)
            ok = add_range(out, t->first[i], t->first[i + 1]);
        for (int32_t k = t->first[i]; kind != PLAIN && k < t->first[i + 1]; k++)
            ok = ok && append(&out->tokens, &out->n_tokens, &out->tokens_cap, t->ids[k]);
        if (exits && l->states[state].accepts && t->ends[i] > i + 1)
            ok = ok && append(&out->exits[kind], &out->n_exits[kind], &out->exits_cap[kind], i);
        i = ends ? t->ends[i] : i + 1;
    }
    (void)regex_spend(&l->regex, n / NODES_OF_WORK);
    return ok;
}

static bool add_ids(struct lists *out, const struct tree *t, int32_t lo, int32_t hi)
{
    if (!array_reserve(&out->tokens, &out->tokens_cap, out->n_tokens + (size_t)(hi - lo),
                       sizeof(*out->tokens)))
        return false;
    if (hi > lo)
        memcpy(out->tokens + out->n_tokens, t->ids + lo, (size_t)(hi - lo) * sizeof(*t->ids));
    out->n_tokens += (size_t)(hi - lo);
    return true;
}

static int32_t *copy(const int32_t *from, size_t n)
{
    int32_t *to = malloc(n * sizeof(*to) + 1);

    if (to && n > 0)
        memcpy(to, from, n * sizeof(*to));
    return to;
}

/* Says the ranges as what is missing of all plain tokens, or as more tokens. */
static bool take_ranges(struct known *k, struct lists *l, const struct tree *plain)
{
    size_t n_other = l->n_tokens;
    int32_t n = 0, at = 0;
    bool ok = true;

    for (size_t i = 0; i < l->n_ranges; i += 2)
        n += l->ranges[i + 1] - l->ranges[i];
    k->all_plain = n > plain->n_ids / 2;
    for (size_t i = 0; ok && i < l->n_ranges; i += 2) {
        if (k->all_plain)
            ok = add_ids(l, plain, at, l->ranges[i]);
        else
            ok = add_ids(l, plain, l->ranges[i], l->ranges[i + 1]);
        at = l->ranges[i + 1];
    }
    if (!k->all_plain) {
        k->n_more = l->n_tokens;
        k->more = copy(l->tokens, k->n_more);
        return ok && k->more;
    }
    ok = ok && add_ids(l, plain, at, plain->n_ids);
    k->n_more = n_other;
    k->n_less = l->n_tokens - n_other;
    k->more = copy(l->tokens, k->n_more);
    k->less = copy(l->tokens + n_other, k->n_less);
    return ok && k->more && k->less;
}

static void forget(struct known *k)
{
    free(k->mask);
    free(k->less);
    free(k->more);
    free(k->exits[PLAIN]);
    free(k->exits[OTHERS]);
}

/* 0 with *k, or a negative errno; *k is to be forgotten in any case. */
static int learn(struct known *k, struct lexer *l, const struct vocabulary *v, int32_t state,
                 bool exits)
{
    const size_t words = n_words(v);
    struct lists lists = {0};
    bool ok = true;

    *k = (struct known){.has_exits = exits};
    for (int kind = 0; ok && kind < N_TREES; kind++)
        ok = walk_text(&lists, l, &v->trees[kind], kind, state, exits);
    ok = ok && take_ranges(k, &lists, &v->trees[PLAIN]);
    for (int kind = 0; ok && kind < N_TREES; kind++) {
        k->n_exits[kind] = lists.n_exits[kind];
        k->exits[kind] = copy(lists.exits[kind], lists.n_exits[kind]);
        ok = k->exits[kind] != NULL;
    }
    lists_deinit(&lists);
    if (ok && k->n_more > words) {
        k->mask = calloc(words, sizeof(*k->mask));
        for (size_t i = 0; k->mask && i < k->n_more; i++)
            set_bit(k->mask, k->more[i]);
        ok = k->mask != NULL;
        free(k->more);
        k->more = NULL;
        k->n_more = 0;
    }
    return lexer_failed(l) ? lexer_failed(l) : ok ? 0 : -ENOMEM;
}

static size_t known_bytes(const struct vocabulary *v, const struct known *k)
{
    return sizeof(*k) + 4 * (k->n_less + k->n_more + k->n_exits[PLAIN] + k->n_exits[OTHERS]) +
           (k->mask ? 4 * n_words(v) : 0);
}

static bool is_known(const struct masks *m, int32_t state, bool exits)
{
    return m->of_state[state] != 0 && (!exits || m->known[m->of_state[state] - 1].has_exits);
}

static int look_up(struct masks *m, const struct known **out, int32_t state, bool exits)
{
    struct lexer *l = &m->g->lexer;
    const size_t had = m->of_state_cap;
    int r;

    if (lexer_is_free(l, state)) {
        *out = &m->v->free;
        return 0;
    }
    if ((size_t)state >= had) {
        if (!array_reserve(&m->of_state, &m->of_state_cap, (size_t)state + 1, sizeof(*m->of_state)))
            return -ENOMEM;
        memset(m->of_state + had, 0, (m->of_state_cap - had) * sizeof(*m->of_state));
    }
    if (!is_known(m, state, exits)) {
        if (m->bytes > m->max_bytes)
            return -E2BIG;
        if (!array_reserve(&m->known, &m->known_cap, m->n_known + 1, sizeof(*m->known)))
            return -ENOMEM;
        r = learn(&m->known[m->n_known], l, m->v, state, exits);
        if (r < 0) {
            forget(&m->known[m->n_known]);
            return r;
        }
        m->bytes += known_bytes(m->v, &m->known[m->n_known]);
        m->of_state[state] = (int32_t)++m->n_known;
    }
    *out = &m->known[m->of_state[state] - 1];
    return 0;
}

/* What a string of any text takes next is the same in all grammars. */
static bool learn_free(struct vocabulary *v)
{
    struct lexer l;
    int32_t state;
    bool ok = lexer_init(&l, FREE_BYTES) == 0;

    if (ok) {
        state = lexer_step(&l, lexer_begin(&l, REGEX_ALL, LEXER_JSON), '"');
        ok = lexer_is_free(&l, state) && learn(&v->free, &l, v, state, true) == 0;
    }
    lexer_deinit(&l);
    return ok;
}

/* ---- vocabularies and masks */

struct vocabulary *vocabulary_new(const struct tokenizer *t, int32_t vocab_size)
{
    struct vocabulary *v = calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    v->tokenizer = t;
    v->vocab_size = vocab_size;
    v->plain = calloc(n_words(v) + 1, sizeof(*v->plain));
    if (v->plain && make_trees(v) && learn_free(v))
        return v;
    vocabulary_free(v);
    return NULL;
}

void vocabulary_free(struct vocabulary *v)
{
    if (!v)
        return;
    tree_deinit(&v->trees[PLAIN]);
    tree_deinit(&v->trees[OTHERS]);
    forget(&v->free);
    free(v->plain);
    free(v);
}

struct masks *masks_new(const struct vocabulary *v, struct grammar *g, size_t max_bytes)
{
    struct masks *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->v = v;
    m->g = g;
    m->max_bytes = max_bytes;
    m->scratch = calloc(n_words(v) + 1, sizeof(*m->scratch));
    if (m->scratch)
        return m;
    free(m);
    return NULL;
}

void masks_free(struct masks *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_known; i++)
        forget(&m->known[i]);
    for (int i = 0; i <= KEPT_MASKS; i++)
        free(m->kept[i]);
    free(m->known);
    free(m->of_state);
    free(m->scratch);
    free(m);
}

size_t masks_bytes(const struct masks *m)
{
    return m->bytes + m->of_state_cap * sizeof(*m->of_state) +
           (KEPT_MASKS + 2) * n_words(m->v) * sizeof(uint32_t);
}

/* Sets the tokens below a node, at which a text has ended, that go on from a place. */
static void walk_place(struct masks *m, uint32_t *mask, const struct tree *t, int32_t node,
                       int32_t from)
{
    const int base = t->depths[node];
    int32_t places[MAX_DEPTH + 1]; /* behind the bytes so far */
    size_t n = 0;

    places[0] = from;
    for (int32_t i = node + 1; i < t->ends[node]; n++) {
        const int depth = t->depths[i] - base;
        const int32_t place = grammar_step(m->g, places[depth - 1], t->bytes[i]);

        if (place == GRAMMAR_DEAD) {
            i = t->ends[i];
            continue;
        }
        places[depth] = place;
        for (int32_t k = t->first[i]; k < t->first[i + 1]; k++)
            set_bit(mask, t->ids[k]);
        i++;
    }
    (void)regex_spend(&m->g->lexer.regex, n / NODES_OF_WORK + 1);
}

/* Adds the tokens that stay inside of the text. */
static void add_known(struct masks *m, uint32_t *mask, const struct known *k)
{
    const size_t words = n_words(m->v);
    const uint32_t *plain = m->v->plain;

    if (k->n_less > 0) {
        memcpy(m->scratch, plain, words * sizeof(*plain));
        for (size_t i = 0; i < k->n_less; i++)
            m->scratch[k->less[i] / 32] &= ~(1u << k->less[i] % 32);
        plain = m->scratch;
    }
    for (size_t i = 0; k->all_plain && i < words; i++)
        mask[i] |= plain[i];
    for (size_t i = 0; k->mask && i < words; i++)
        mask[i] |= k->mask[i];
    for (size_t i = 0; i < k->n_more; i++)
        set_bit(mask, k->more[i]);
}

static int add_way(struct masks *m, uint32_t *mask, struct grammar_way w)
{
    const struct grammar_frame *f = &m->g->frames[w.frame];
    const bool is_last = f->node == GRAMMAR_END && f->below < 0; /* nothing comes behind the text */
    const struct known *k;
    int32_t behind;
    int r = look_up(m, &k, w.state, !is_last);

    if (r < 0)
        return r;
    add_known(m, mask, k);
    if (is_last || k->n_exits[PLAIN] + k->n_exits[OTHERS] == 0)
        return 0;
    behind = grammar_resume(m->g, w.frame);
    if (behind == GRAMMAR_DEAD || grammar_is_over(m->g, behind))
        return grammar_failed(m->g);
    for (int kind = 0; kind < N_TREES; kind++)
        for (size_t i = 0; i < k->n_exits[kind] && grammar_failed(m->g) == 0; i++)
            walk_place(m, mask, &m->v->trees[kind], k->exits[kind][i], behind);
    return grammar_failed(m->g);
}

static int fill(struct masks *m, uint32_t *mask, int32_t place)
{
    const struct grammar_place p = m->g->places[place];
    int r = 0;

    memset(mask, 0, n_words(m->v) * sizeof(*mask));
    for (int32_t i = 0; i < p.n_ways && r == 0; i++)
        r = add_way(m, mask, m->g->ways[p.ways_at + i]);
    return r;
}

static size_t slot_of(const struct masks *m, int32_t place)
{
    return place == m->g->start ? KEPT_MASKS : (size_t)place % KEPT_MASKS;
}

int masks_prepare(struct masks *m, int32_t place)
{
    const size_t slot = slot_of(m, place);
    int r = 0;

    if (!m->kept[slot]) {
        m->kept[slot] = calloc(n_words(m->v) + 1, sizeof(*m->kept[slot]));
        m->kept_place[slot] = GRAMMAR_DEAD;
    }
    if (!m->kept[slot])
        return -ENOMEM;
    if (m->kept_place[slot] != place) {
        m->kept_place[slot] = GRAMMAR_DEAD;
        r = fill(m, m->kept[slot], place);
        if (r == 0)
            m->kept_place[slot] = place;
    }
    return r;
}

int masks_fill(struct masks *m, uint32_t *mask, int32_t place, const int32_t *ends, int32_t n_ends)
{
    const size_t words = n_words(m->v), slot = slot_of(m, place);
    const int r = masks_prepare(m, place);

    if (r < 0)
        return r;
    memcpy(mask, m->kept[slot], words * sizeof(*mask));
    for (int32_t i = 0; m->g->places[place].accepts && i < n_ends; i++)
        set_bit(mask, ends[i]);
    for (size_t i = 0; i < words; i++)
        if (mask[i])
            return 0;
    return -ENOENT;
}

int32_t masks_step(struct masks *m, int32_t place, int32_t token)
{
    const struct text t =
        token >= 0 && token < m->v->vocab_size ? text_of(m->v, token) : (struct text){0};

    if (t.len == 0)
        return GRAMMAR_DEAD;
    for (size_t i = 0; i < t.len && place != GRAMMAR_DEAD; i++)
        place = grammar_step(m->g, place, (uint8_t)t.data[i]);
    return place;
}
