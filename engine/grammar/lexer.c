/* lexer.c - see lexer.h. */
#include "engine/grammar/lexer.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/hex.h"

enum {
    IN_TEXT,   /* between two characters of a plain text, or with left > 0 inside of one */
    AT_OPEN,   /* before a string */
    IN_STRING, /* as IN_TEXT */
    AT_ESCAPE, /* behind a backslash */
    IN_HEX,    /* left digits of an escape are to come; base: of the pair's second one */
    AT_LOW,    /* behind the first of a pair: before the second one's backslash */
    AT_LOW_U,  /* behind that backslash: before its u */
    AT_END,    /* behind a string */
};

enum { HIGH = 0xd800, LOW = 0xdc00, LOW_END = 0xdfff };

/* Inside of a character, value has its bits so far, base the least one of its length; or base is
 * SETTLED, and term is what follows whatever its other bits are. Inside of an escape, value has the
 * digits so far. */
enum { SETTLED = -1 };

struct key {
    int32_t phase, term, left, value, base;
};

int lexer_init(struct lexer *l, size_t max_bytes)
{
    *l = (struct lexer){0};
    return regex_pool_init(&l->regex, max_bytes);
}

void lexer_deinit(struct lexer *l)
{
    regex_pool_deinit(&l->regex);
    free(l->states);
    free(l->table);
    free(l->pages.pages);
    *l = (struct lexer){0};
}

size_t lexer_bytes(const struct lexer *l)
{
    return regex_pool_bytes(&l->regex) + l->states_cap * sizeof(*l->states) +
           l->table_size * sizeof(*l->table) + l->pages.cap * sizeof(*l->pages.pages);
}

static int32_t fail(struct lexer *l, int code)
{
    if (l->regex.failed == 0)
        l->regex.failed = code;
    return LEXER_DEAD;
}

/* ---- states that are kept once */

static size_t hash_of(const struct key *k)
{
    uint64_t h = (uint64_t)(uint32_t)k->term * 0x9e3779b97f4a7c15u;

    h = (h ^ (uint64_t)(uint32_t)k->value) * 0x9e3779b97f4a7c15u;
    h = (h ^ (uint64_t)(uint32_t)(k->phase * 8 + k->left) ^ (uint64_t)(uint32_t)k->base << 32) *
        0x9e3779b97f4a7c15u;
    return (size_t)(h >> 20);
}

static struct key key_of(const struct lexer_state *s)
{
    return (struct key){s->phase, s->term, s->left, s->value, s->base};
}

static bool grow_table(struct lexer *l)
{
    const size_t size = l->table_size ? 2 * l->table_size : 256;
    int32_t *table = calloc(size, sizeof(*table));

    if (!table)
        return false;
    for (size_t i = 0; i < l->n_states; i++) {
        const struct key k = key_of(&l->states[i]);
        int32_t *at = &table[hash_of(&k) & (size - 1)];

        l->states[i].link = *at;
        *at = (int32_t)i + 1;
    }
    free(l->table);
    l->table = table;
    l->table_size = size;
    return true;
}

static int32_t intern(struct lexer *l, struct key k)
{
    struct lexer_state *s;
    int32_t *at;

    if (l->n_states >= l->table_size && !grow_table(l))
        return fail(l, -ENOMEM);
    at = &l->table[hash_of(&k) & (l->table_size - 1)];
    for (int32_t i = *at; i; i = l->states[i - 1].link) {
        s = &l->states[i - 1];
        if (s->phase == k.phase && s->term == k.term && s->left == k.left && s->value == k.value &&
            s->base == k.base)
            return i - 1;
    }
    if (lexer_bytes(l) > l->regex.max_bytes)
        return fail(l, -E2BIG);
    if (!array_reserve(&l->states, &l->states_cap, l->n_states + 1, sizeof(*l->states)))
        return fail(l, -ENOMEM);
    s = &l->states[l->n_states];
    *s = (struct lexer_state){.phase = k.phase,
                              .term = k.term,
                              .left = k.left,
                              .value = k.value,
                              .base = k.base,
                              .link = *at};
    s->accepts = k.phase == AT_END ||
                 (k.phase == IN_TEXT && k.left == 0 && regex_accepts(&l->regex, k.term));
    s->is_final = k.phase == AT_END || (k.phase == IN_TEXT && k.left == 0 && k.term == REGEX_EMPTY);
    *at = (int32_t)++l->n_states;
    return *at - 1;
}

int32_t lexer_begin(struct lexer *l, int32_t term, enum lexer_form form)
{
    if (!regex_is_alive(&l->regex, term))
        return LEXER_DEAD;
    return intern(l, (struct key){.phase = form == LEXER_JSON ? AT_OPEN : IN_TEXT, .term = term});
}

/* ---- steps; each gives a key, or a phase of LEXER_DEAD */

static const struct key dead = {.phase = LEXER_DEAD};

/* A whole character. */
static struct key take_point(struct lexer *l, struct key k, int32_t phase, uint32_t point)
{
    const int32_t next = regex_next(&l->regex, k.term, point);

    return next == REGEX_NONE ? dead : (struct key){.phase = phase, .term = next};
}

/* Inside of UTF-8: whether the bits so far are those of a character that goes on. */
static struct key take_bits(struct lexer *l, struct key k)
{
    uint32_t lo = (uint32_t)k.value << 6 * k.left, hi = lo + (1u << 6 * k.left) - 1;
    int32_t next;

    if (k.left > 0 && lo >= (uint32_t)k.base && hi <= REGEX_MAX_POINT &&
        (hi < HIGH || lo > LOW_END)) {
        next = regex_next_of_all(&l->regex, k.term, lo, hi);
        if (next != REGEX_NONE)
            return (struct key){.phase = k.phase, .term = next, .left = k.left, .base = SETTLED};
    }
    if (lo < (uint32_t)k.base)
        lo = (uint32_t)k.base;
    if (hi > REGEX_MAX_POINT)
        hi = REGEX_MAX_POINT;
    if (k.left == 0)
        return lo == hi ? take_point(l, k, k.phase, lo) : dead;
    return regex_begins_with(&l->regex, k.term, lo, hi) ? k : dead;
}

static struct key step_text(struct lexer *l, struct key k, uint8_t byte)
{
    if (k.left > 0) {
        if ((byte & 0xc0) != 0x80)
            return dead;
        if (k.base == SETTLED) {
            k.base = --k.left > 0 ? SETTLED : 0;
            return k;
        }
        k.value = k.value << 6 | (byte & 0x3f);
        k.left--;
        return take_bits(l, k);
    }
    if (byte < 0x80)
        return take_point(l, k, k.phase, byte);
    k.left = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
    k.base = k.left == 1 ? 0x80 : k.left == 2 ? 0x800 : 0x10000;
    k.value = byte & (0x3f >> k.left);
    return byte < 0xc2 || byte > 0xf4 ? dead : take_bits(l, k);
}

/* Inside of \uXXXX: whether there is a character that the digits so far begin. */
static struct key take_digits(struct lexer *l, struct key k)
{
    const uint32_t lo = (uint32_t)k.value << 4 * k.left, hi = lo + (1u << 4 * k.left) - 1;
    const uint32_t low = lo > LOW ? lo : LOW, low_end = hi < LOW_END ? hi : LOW_END;
    const uint32_t high = lo > HIGH ? lo : HIGH, high_end = hi < LOW - 1 ? hi : LOW - 1;
    const uint32_t base = (uint32_t)k.base;
    bool alive;

    if (base > 0) { /* the second of a pair */
        if (k.left == 0)
            return lo < LOW || lo > LOW_END ? dead : take_point(l, k, IN_STRING, base + lo - LOW);
        alive = low <= low_end &&
                regex_begins_with(&l->regex, k.term, base + low - LOW, base + low_end - LOW);
        return alive ? k : dead;
    }
    if (k.left == 0 && (lo < HIGH || lo > LOW_END))
        return take_point(l, k, IN_STRING, lo);
    alive =
        high <= high_end && regex_begins_with(&l->regex, k.term, 0x10000 + ((high - HIGH) << 10),
                                              0x10000 + ((high_end - HIGH) << 10) + 0x3ff);
    if (k.left == 0)
        return alive ? (struct key){.phase = AT_LOW,
                                    .term = k.term,
                                    .base = (int32_t)(0x10000 + ((lo - HIGH) << 10))}
                     : dead;
    return alive || regex_begins_with(&l->regex, k.term, lo, hi) ? k : dead;
}

static struct key step_hex(struct lexer *l, struct key k, uint8_t byte)
{
    const int digit = hex_digit(byte);

    if (digit < 0)
        return dead;
    k.value = k.value << 4 | digit;
    k.left--;
    return take_digits(l, k);
}

static struct key step_escape(struct lexer *l, struct key k, uint8_t byte)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = memchr(names, byte, sizeof(names) - 1);

    if (byte == 'u')
        return (struct key){.phase = IN_HEX, .term = k.term, .left = 4};
    return name ? take_point(l, k, IN_STRING, (uint32_t)values[name - names]) : dead;
}

static struct key step_string(struct lexer *l, struct key k, uint8_t byte)
{
    if (k.left == 0 && byte == '"')
        return regex_accepts(&l->regex, k.term) ? (struct key){.phase = AT_END, .term = REGEX_EMPTY}
                                                : dead;
    if (k.left == 0 && byte == '\\')
        return regex_begins_with(&l->regex, k.term, 0, REGEX_MAX_POINT)
                   ? (struct key){.phase = AT_ESCAPE, .term = k.term}
                   : dead;
    return byte < 0x20 ? dead : step_text(l, k, byte);
}

static struct key step(struct lexer *l, struct key k, uint8_t byte)
{
    switch (k.phase) {
    case IN_TEXT:
        return step_text(l, k, byte);
    case AT_OPEN:
        return byte == '"' ? (struct key){.phase = IN_STRING, .term = k.term} : dead;
    case IN_STRING:
        return step_string(l, k, byte);
    case AT_ESCAPE:
        return step_escape(l, k, byte);
    case IN_HEX:
        return step_hex(l, k, byte);
    case AT_LOW:
        k.phase = AT_LOW_U;
        return byte == '\\' ? k : dead;
    case AT_LOW_U:
        return byte == 'u' ? (struct key){IN_HEX, k.term, 4, 0, k.base} : dead;
    default:
        return dead;
    }
}

int32_t lexer_step(struct lexer *l, int32_t state, uint8_t byte)
{
    int32_t to = steps_get(&l->pages, &l->states[state].steps, byte);
    struct key k;

    if (to != STEP_UNKNOWN)
        return to;
    k = step(l, key_of(&l->states[state]), byte);
    to = k.phase == LEXER_DEAD ? LEXER_DEAD : intern(l, k);
    if (lexer_failed(l))
        return LEXER_DEAD;
    if (!steps_set(&l->pages, &l->states[state].steps, byte, to))
        return fail(l, -ENOMEM);
    return to;
}

bool lexer_absorbs(const struct lexer *l, int32_t state, int32_t n)
{
    const struct lexer_state *s = &l->states[state];

    return (s->phase == IN_STRING || s->phase == IN_TEXT) && s->left == 0 &&
           regex_absorbs(&l->regex, s->term, n);
}

bool lexer_is_free(const struct lexer *l, int32_t state)
{
    const struct lexer_state *s = &l->states[state];

    return s->phase == IN_STRING && s->left == 0 && s->term == REGEX_ALL;
}
