/* engine_format.c - what the answers of generate requests must be: formats are compiled in the
 * tokenizer pool, kept for those that come again, and the masks of the choices.
 *
 * A format that is kept is used by the engine thread alone; the list of them is under its lock. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/clock.h"
#include "engine/util/must.h"

enum {
    MAX_KEPT = 64,
    WORN_BYTES = 8 << 20, /* of a format that new requests do not share: it has learned enough */
    KEPT_BYTES = 128 << 20,
    MAX_DRAFTS = 4, /* of a choice: each takes a mask, and time of this thread */
};
_Static_assert((int)MAX_DRAFTS <= (int)CORE_MAX_DRAFTS, "the core proposes as many at least");

struct kept_format {
    struct list link; /* in the engine's list, the last used one last */
    struct format *format;
    int32_t n_users;
    bool listed;
    size_t bytes; /* when it was last looked at */
    bool is_worn; /* it is large, or has failed */
    size_t n_key;
    char key[]; /* [n_key] */
};

struct guide {
    struct kept_format *kept;
    bool compiled; /* for this request */
    size_t bytes;  /* of the format, when it was last charged for */
    uint64_t us;   /* that its steps have taken since a mask was made */
    int32_t n_ends;
    int32_t ends[SAMPLING_MAX_STOP_IDS];
    int32_t n;
    int32_t max_drafts; /* 0: none */
    int32_t *places;    /* [n] */
    uint32_t masks[];   /* [n][1 + max_drafts][words_of()], then the places */
};

/* ---- formats that are kept */

/* Appends a text and its length to a key of *n bytes; where that is NULL, only counts. */
static void put(char *key, size_t *n, struct text text)
{
    if (key)
        memcpy(key + *n, &text.len, sizeof(text.len));
    if (key && text.len)
        memcpy(key + *n + sizeof(text.len), text.data, text.len);
    *n += sizeof(text.len) + text.len;
}

/* All that a source says. */
static size_t write_key(char *key, const struct format_source *s)
{
    const int how[] = {s->kind, s->reasoning, s->calls, s->one_call};
    size_t n = 0;

    put(key, &n, (struct text){(const char *)how, sizeof(how)});
    put(key, &n, s->text);
    put(key, &n, s->called_tool);
    for (size_t i = 0; i < s->n_choices; i++)
        put(key, &n, s->choices[i]);
    for (size_t i = 0; i < s->n_tools; i++)
        put(key, &n, s->tools[i]);
    return n;
}

static void free_kept(struct kept_format *k)
{
    format_free(k->format);
    free(k);
}

/* With the lock: one that is alike, for one more user; or NULL. */
static struct kept_format *find(struct engine *g, const char *key, size_t n)
{
    LIST_EACH (struct kept_format, k, link, &g->formats)
        if (!k->is_worn && k->n_key == n && memcmp(k->key, key, n) == 0) {
            list_remove(&k->link);
            list_append(&g->formats, &k->link);
            k->n_users++;
            return k;
        }
    return NULL;
}

/* With the lock. */
static void unlist(struct engine *g, struct kept_format *k)
{
    list_remove(&k->link);
    g->n_formats--;
    g->format_bytes -= k->bytes;
    k->listed = false;
}

/* With the lock: the one that has been unused the longest; or NULL. */
static struct kept_format *take_oldest_unused(struct engine *g)
{
    LIST_EACH (struct kept_format, k, link, &g->formats)
        if (k->n_users == 0) {
            unlist(g, k);
            return k;
        }
    return NULL;
}

/* With the lock. */
static bool is_full(const struct engine *g)
{
    return g->n_formats >= MAX_KEPT || g->format_bytes > KEPT_BYTES;
}

static void list_format(struct engine *g, struct kept_format *k)
{
    struct kept_format *old;

    do {
        pthread_mutex_lock(&g->lock);
        old = is_full(g) ? take_oldest_unused(g) : NULL;
        if (!old && !is_full(g)) {
            k->listed = true;
            list_append(&g->formats, &k->link);
            g->n_formats++;
            g->format_bytes += k->bytes;
        }
        pthread_mutex_unlock(&g->lock);
        if (old)
            free_kept(old);
    } while (old);
}

/* Notes how large it has become. */
static void measure(struct engine *g, struct kept_format *k, bool failed)
{
    const size_t bytes = format_bytes(k->format);

    if (bytes == k->bytes && !failed)
        return;
    pthread_mutex_lock(&g->lock);
    if (k->listed)
        g->format_bytes += bytes - k->bytes;
    k->bytes = bytes;
    k->is_worn = k->is_worn || failed || bytes > WORN_BYTES;
    pthread_mutex_unlock(&g->lock);
}

static void leave(struct engine *g, struct kept_format *k)
{
    bool last;

    pthread_mutex_lock(&g->lock);
    k->n_users--;
    if (k->n_users == 0 && k->listed && k->is_worn)
        unlist(g, k);
    last = k->n_users == 0 && !k->listed;
    pthread_mutex_unlock(&g->lock);
    if (last)
        free_kept(k);
}

void engine_free_formats(struct engine *g)
{
    struct kept_format *k;

    while ((k = take_oldest_unused(g)))
        free_kept(k);
    vocabulary_free(g->vocabulary);
}

/* Made when it is first needed. */
static const struct vocabulary *vocabulary_of(struct engine *g)
{
    pthread_mutex_lock(&g->vocabulary_lock);
    if (!g->vocabulary)
        g->vocabulary = vocabulary_new(g->tokenizer, model_config(g->model)->vocab_size);
    pthread_mutex_unlock(&g->vocabulary_lock);
    return g->vocabulary;
}

/* 1: it has been compiled, 0: it was there. */
static int get(struct kept_format **out, struct engine *g, const struct format_source *s,
               const char *key, size_t n, struct err *e)
{
    const struct vocabulary *v;
    struct kept_format *k;
    int r;

    pthread_mutex_lock(&g->lock);
    *out = find(g, key, n);
    pthread_mutex_unlock(&g->lock);
    if (*out)
        return 0;
    v = vocabulary_of(g);
    k = v ? malloc(sizeof(*k) + n) : NULL;
    if (!k)
        return -ENOMEM;
    *k = (struct kept_format){.n_key = n, .n_users = 1};
    memcpy(k->key, key, n);
    r = format_new(&k->format, s, v, e);
    if (r < 0) {
        free(k);
        return r;
    }
    k->bytes = format_bytes(k->format);
    list_format(g, k);
    *out = k;
    return 1;
}

/* ---- guides */

static size_t words_of(const struct engine *g)
{
    return ((size_t)model_config(g->model)->vocab_size + 31) / 32;
}

static int32_t max_drafts_of(const struct engine *g, const struct engine_request *r)
{
    return g->options.speculate && !sampling_needs_history(&r->sampling) ? MAX_DRAFTS : 0;
}

/* Words of the masks of one choice. */
static size_t masks_of(const struct engine *g, int32_t max_drafts)
{
    return (size_t)(1 + max_drafts) * words_of(g);
}

uint64_t guide_bytes(const struct engine *g, const struct engine_request *r)
{
    if (r->format.kind == FORMAT_NONE && !(r->input == ENGINE_CHAT && r->chat->n_tools))
        return 0; /* tools may be strict: that is not known yet */
    return sizeof(struct guide) +
           (uint64_t)r->n * (masks_of(g, max_drafts_of(g, r)) * sizeof(uint32_t) + sizeof(int32_t));
}

int guide_new(struct job *j, struct err *e)
{
    struct engine *g = j->engine;
    const struct engine_request *r = &j->request;
    struct guide *u = calloc(1, guide_bytes(g, r));
    const size_t n = write_key(NULL, &j->format);
    char *key = malloc(n);
    int ret = -ENOMEM;

    if (u && key) {
        write_key(key, &j->format);
        ret = get(&u->kept, g, &j->format, key, n, e);
    }
    free(key);
    if (ret < 0) {
        free(u);
        return ret;
    }
    u->compiled = ret == 1;
    u->n = r->n;
    u->max_drafts = max_drafts_of(g, r);
    u->places = (int32_t *)(u->masks + (size_t)u->n * masks_of(g, u->max_drafts));
    j->guide = u;
    return 0;
}

void guide_free(struct engine *g, struct guide *u)
{
    if (!u)
        return;
    leave(g, u->kept);
    free(u);
}

/* The one token that a mask allows; -1: there are several. */
static int32_t only_token(const uint32_t *mask, size_t n_words)
{
    int32_t token = -1;

    for (size_t i = 0; i < n_words; i++) {
        if (mask[i] == 0)
            continue;
        if (token >= 0 || (mask[i] & (mask[i] - 1)))
            return -1;
        token = (int32_t)(i * 32) + __builtin_ctz(mask[i]);
    }
    return token;
}

static bool is_end(const struct guide *u, int32_t token)
{
    for (int32_t i = 0; i < u->n_ends; i++)
        if (u->ends[i] == token)
            return true;
    return false;
}

/* Drafts for a choice whose first mask is set: where the format allows one token and that pays, it;
 * else what the core proposes, as far as the format allows it. Sets the mask behind each; returns
 * how many there are. */
static int32_t draft(struct engine *g, struct job *j, int32_t choice, int32_t *drafts)
{
    struct guide *u = j->guide;
    struct format *f = u->kept->format;
    const size_t words = words_of(g);
    uint32_t *mask = u->masks + (size_t)choice * masks_of(g, u->max_drafts);
    int32_t proposed[CORE_MAX_DRAFTS], place = u->places[choice], n = 0;
    int32_t n_proposed = 0; /* of a worn format none: they may be wrong, and teach it in vain */
    const int32_t n_forced = core_n_forced_drafts(g->core, j->request.id, choice, u->max_drafts);

    if (!u->kept->is_worn)
        n_proposed = core_propose(g->core, j->request.id, choice, proposed, u->max_drafts);
    for (; n < u->max_drafts; n++, mask += words) {
        int32_t token = only_token(mask, words);

        if (n >= n_proposed || (token >= 0 && proposed[n] != token))
            n_proposed = 0; /* what follows was for another text */
        if (token < 0 && n_proposed > 0 && mask[proposed[n] / 32] >> proposed[n] % 32 & 1)
            token = proposed[n];
        if (token < 0 || is_end(u, token) || (n_proposed == 0 && n >= n_forced))
            break;
        place = format_step(f, place, token);
        if (place == GRAMMAR_DEAD || format_is_over(f, place) ||
            format_mask(f, mask + words, place, u->ends, u->n_ends) < 0)
            break;
        drafts[n] = token;
    }
    return n;
}

/* Sets the mask of a choice at its place and its drafts, and charges the request for what the
 * format has learned since u->bytes was set. */
static int set_mask(struct engine *g, struct job *j, int32_t choice)
{
    const struct engine_request *request = &j->request;
    struct guide *u = j->guide;
    uint32_t *mask = u->masks + (size_t)choice * masks_of(g, u->max_drafts);
    int32_t drafts[MAX_DRAFTS];
    int r = format_mask(u->kept->format, mask, u->places[choice], u->ends, u->n_ends);
    const int32_t n_drafts = r == 0 ? draft(g, j, choice, drafts) : 0;
    const bool failed = r == -E2BIG || r == -ENOMEM || format_failed(u->kept->format);
    const size_t bytes = format_bytes(u->kept->format);
    const size_t more = bytes > u->bytes ? bytes - u->bytes : 0;

    measure(g, u->kept, failed);
    u->bytes = bytes;
    if (r == 0 && more && request->charge && !request->charge(request->owner, more))
        r = -EDQUOT;
    /* False: the choice has ended meanwhile. */
    if (r == 0 && core_set_mask(g->core, request->id, choice, mask, 1 + n_drafts))
        (void)core_draft(g->core, request->id, choice, drafts, n_drafts);
    return r;
}

int guide_begin(struct engine *g, struct job *j, const int32_t *ends, int32_t n_ends)
{
    struct guide *u = j->guide;
    int r = 0;

    u->bytes = u->compiled ? 0 : format_bytes(u->kept->format);
    u->n_ends = n_ends;
    memcpy(u->ends, ends, (size_t)n_ends * sizeof(*ends));
    for (int32_t i = 0; i < u->n && r == 0; i++) {
        u->places[i] = format_start(u->kept->format);
        r = set_mask(g, j, i);
    }
    return r;
}

bool guide_step(struct job *j, const struct core_event *ev)
{
    struct guide *u = j->guide;
    int32_t *place = &u->places[ev->choice];
    const uint64_t begin = clock_us();

    u->bytes = format_bytes(u->kept->format);
    if (ev->reason == CORE_REASON_STOP)
        return false;
    *place = format_step(u->kept->format, *place, ev->token);
    u->us += clock_us() - begin;
    return *place != GRAMMAR_DEAD && format_is_over(u->kept->format, *place);
}

int guide_next(struct engine *g, struct job *j, int32_t choice)
{
    const uint64_t begin = clock_us();
    uint64_t us = j->guide->us;
    int r = -E2BIG;

    if (j->guide->places[choice] != GRAMMAR_DEAD)
        r = set_mask(g, j, choice);
    else
        measure(g, j->guide->kept, true); /* the step failed */
    us += clock_us() - begin;
    j->guide->us = 0;
    g->masks_us += us;
    core_add_mask_time(g->core, j->request.id, us);
    return r;
}
