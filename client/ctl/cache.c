/* cache.c - nvllmctl cache: what the prefix cache holds, and changes to it. */
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"
#include "client/ctl/prompt.h"
#include "client/ctl/terminal.h"

enum {
    DEFAULT_LIMIT = 50,
    SHORTEST_HEAD = 12, /* columns of a prefix's beginning that are worth to be shown */
    CELL_BYTES = 33,
};

struct cache_work {
    struct ctl *ctl;
    struct nvllm_client *client;
    struct nvllm_list_options list;
    struct nvllm_clear_options clear;
    struct nvllm_pin_options pin;
    struct ctl_request request; /* whose input is pinned */
    struct ctl_prompt prompt;
    bool json;
};

/* ---- show */

static json_t *prefix_json(const struct nvllm_cached_prefix *p)
{
    json_t *o = json_object();

    json_object_set_new(o, "uid", ctl_json_count(p->uid));
    json_object_set_new(o, "tokens", ctl_json_count(p->tokens));
    json_object_set_new(o, "blocks", ctl_json_count(p->blocks));
    json_object_set_new(o, "hits", ctl_json_count(p->hits));
    json_object_set_new(o, "age_ms", ctl_json_count(p->age_ms));
    json_object_set_new(o, "idle_ms", ctl_json_count(p->idle_ms));
    json_object_set_new(o, "holders", ctl_json_count(p->holders));
    json_object_set_new(o, "pinned", json_boolean(p->pinned));
    json_object_set_new(o, "head_ids", ctl_json_ids(p->head_ids, p->n_head_ids));
    return o;
}

static json_t *cache_json(const struct nvllm_cache *cache)
{
    json_t *o = json_object(), *prefixes = json_array();

    for (size_t i = 0; i < cache->n_prefixes; i++)
        json_array_append_new(prefixes, prefix_json(cache->prefixes[i]));
    json_object_set_new(o, "prefixes", prefixes);
    json_object_set_new(o, "total", ctl_json_count(cache->total));
    json_object_set_new(o, "queried_tokens", ctl_json_count(cache->queried_tokens));
    json_object_set_new(o, "hit_tokens", ctl_json_count(cache->hit_tokens));
    json_object_set_new(o, "evictions", ctl_json_count(cache->evictions));
    json_object_set_new(o, "pinned_blocks", ctl_json_count(cache->pinned_blocks));
    return o;
}

/* Asks what the beginnings say. A daemon that loads its model still cannot tell, which is no error.
 */
static void add_heads(struct cache_work *w, json_t *prefixes)
{
    json_t *prefix;
    size_t i;

    json_array_foreach(prefixes, i, prefix)
    {
        struct ctl_request q;
        struct nvllm_error err;
        struct nvllm_text text;
        const int32_t *ids;
        size_t n;

        ctl_request_init(&q);
        if (ctl_json_read_ids(&q, "head_ids", json_object_get(prefix, "head_ids"), &ids, &n,
                              &err) &&
            n > 0 &&
            nvllm_detokenize(w->client, ids, n, false, ctl_ask_ms(w->ctl), &text, &err) == NVLLM_OK)
            json_object_set_new(prefix, "head", ctl_json_text(text.data, text.len));
        ctl_request_deinit(&q);
    }
}

static uint64_t number(const json_t *o, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(o, name));
}

enum { TOKENS, BLOCKS, HITS, AGE, IDLE, HOLDERS, PINNED, USER, N_COLUMNS };

static const struct {
    const char *head;
    int width; /* below 0: begins at the left */
} columns_of_all[N_COLUMNS] = {
    [TOKENS] = {"TOKENS", 8}, [BLOCKS] = {"BLOCKS", 7}, [HITS] = {"HITS", 6},
    [AGE] = {"AGE", 8},       [IDLE] = {"IDLE", 8},     [HOLDERS] = {"HOLDERS", 7},
    [PINNED] = {"", -3},      [USER] = {"USER", -10},
};

/* Which columns there is room for beside the beginnings; 0: not shown. What is left for those, or 0
 * where there is no bound. */
static int fit_columns(int widths[N_COLUMNS], int columns)
{
    static const int left_out[] = {HOLDERS, AGE, BLOCKS, USER, IDLE, HITS, PINNED};
    int total = 0;

    for (int i = 0; i < N_COLUMNS; i++) {
        widths[i] = columns_of_all[i].width;
        total += abs(widths[i]) + 1;
    }
    if (columns == 0)
        return 0;
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++) {
        if (total + SHORTEST_HEAD <= columns)
            break;
        total -= abs(widths[left_out[i]]) + 1;
        widths[left_out[i]] = 0;
    }
    return columns > total ? columns - total : 1;
}

static void print_row(const int widths[N_COLUMNS], char cells[N_COLUMNS][CELL_BYTES],
                      const char *head, int room)
{
    for (int i = 0; i < N_COLUMNS; i++)
        if (widths[i] != 0)
            printf("%*.*s ", widths[i], i == USER ? abs(widths[i]) : CELL_BYTES, cells[i]);
    ctl_put_line(stdout, head, room);
    putchar('\n');
}

static void print_prefix(const int widths[N_COLUMNS], const json_t *p, int room)
{
    const char *head = json_string_value(json_object_get(p, "head"));
    char cells[N_COLUMNS][CELL_BYTES];

    snprintf(cells[TOKENS], CELL_BYTES, "%" PRIu64, number(p, "tokens"));
    snprintf(cells[BLOCKS], CELL_BYTES, "%" PRIu64, number(p, "blocks"));
    snprintf(cells[HITS], CELL_BYTES, "%" PRIu64, number(p, "hits"));
    ctl_duration(cells[AGE], CELL_BYTES, number(p, "age_ms") * 1000);
    ctl_duration(cells[IDLE], CELL_BYTES, number(p, "idle_ms") * 1000);
    snprintf(cells[HOLDERS], CELL_BYTES, "%" PRIu64, number(p, "holders"));
    strcpy(cells[PINNED], json_is_true(json_object_get(p, "pinned")) ? "pin" : "");
    ctl_user_name(cells[USER], CELL_BYTES, (uint32_t)number(p, "uid"));
    print_row(widths, cells, head ? head : "", room);
}

static void print_cache(const json_t *o)
{
    const json_t *prefixes = json_object_get(o, "prefixes");
    uint64_t queried = number(o, "queried_tokens"), n = json_array_size(prefixes);
    char cells[N_COLUMNS][CELL_BYTES];
    int widths[N_COLUMNS];
    int room = fit_columns(widths, terminal_columns(STDOUT_FILENO));

    for (int i = 0; i < N_COLUMNS; i++)
        snprintf(cells[i], CELL_BYTES, "%s", columns_of_all[i].head);
    print_row(widths, cells, "BEGINS", room);
    for (size_t i = 0; i < n; i++)
        print_prefix(widths, json_array_get(prefixes, i), room);
    if (number(o, "total") > n)
        printf("… and %" PRIu64 " more\n", number(o, "total") - n);
    printf("%" PRIu64 " of %" PRIu64 " prompt tokens found (%.0f %%), %" PRIu64
           " blocks evicted, %" PRIu64 " pinned\n",
           number(o, "hit_tokens"), queried,
           queried ? 100.0 * (double)number(o, "hit_tokens") / (double)queried : 0,
           number(o, "evictions"), number(o, "pinned_blocks"));
}

static int show(struct cache_work *w)
{
    const struct nvllm_cache *cache;
    struct nvllm_error err;
    int rc = EXIT_OK;
    json_t *o;

    if (nvllm_show_cache(w->client, &w->list, ctl_ask_ms(w->ctl), &cache, &err) != NVLLM_OK)
        return ctl_report(w->ctl, &err);
    o = cache_json(cache);
    add_heads(w, json_object_get(o, "prefixes"));
    if (!w->json)
        print_cache(o);
    else if (!ctl_json_print(STDOUT_FILENO, json_incref(o)))
        rc = EXIT_ERROR;
    json_decref(o);
    return rc;
}

/* ---- changes */

static int changed(struct cache_work *w, enum nvllm_code code, const char *what,
                   const struct nvllm_cache_change *change, const struct nvllm_error *err)
{
    if (code != NVLLM_OK)
        return ctl_report(w->ctl, err);
    if (w->json)
        return ctl_json_print(STDOUT_FILENO,
                              json_pack("{soso}", "blocks", ctl_json_count(change->blocks),
                                        "tokens", ctl_json_count(change->tokens)))
                   ? EXIT_OK
                   : EXIT_ERROR;
    printf("%s %u block%s of %u tokens\n", what, change->blocks, change->blocks == 1 ? "" : "s",
           change->tokens);
    if (w->pin.unpin && change->blocks == 0)
        ctl_message("of this prompt nothing is pinned: “nvllmctl cache” shows what is, and whose");
    return EXIT_OK;
}

static int clear(struct cache_work *w)
{
    const struct nvllm_cache_change *change = NULL;
    struct nvllm_error err;
    enum nvllm_code code =
        nvllm_clear_cache(w->client, &w->clear, ctl_ask_ms(w->ctl), &change, &err);

    return changed(w, code, "forgot", change, &err);
}

static void set_prompt(struct nvllm_pin_options *pin, const struct ctl_request *q)
{
    pin->prompt = q->r.prompt;
    pin->prompt_ids = q->r.prompt_ids;
    pin->n_prompt_ids = q->r.n_prompt_ids;
    pin->chat = q->r.chat;
    if (q->r.cache_salt.data)
        pin->cache_salt = q->r.cache_salt;
}

static int pin(struct cache_work *w)
{
    const struct nvllm_cache_change *change = NULL;
    struct nvllm_error err;
    enum nvllm_code code;

    do {
        set_prompt(&w->pin, &w->request);
        /* The answer comes when all of the prompt has been computed. */
        code = nvllm_pin_cache(w->client, &w->pin, ctl_left_ms(w->ctl), &change, &err);
    } while (ctl_prompt_fall_back(&w->prompt, &w->request, code));
    return changed(w, code, w->pin.unpin ? "unpinned" : "pinned", change, &err);
}

/* ---- options */

enum verb { VERB_SHOW, VERB_CLEAR, VERB_PIN, VERB_UNPIN };

static uint32_t read_user(const struct ctl *ctl, const char *text)
{
    const struct passwd *user = getpwnam(text);

    if (!user && !(text[0] >= '0' && text[0] <= '9'))
        ctl_usage(ctl, "there is no user “%s”", text);
    return user ? user->pw_uid : (uint32_t)ctl_number(ctl, "user", text, 0, UINT32_MAX);
}

static void read_options(struct cache_work *w)
{
    const char *user = ctl_option(w->ctl, "user"), *salt = ctl_option(w->ctl, "cache-salt");

    w->list.limit = (uint32_t)ctl_whole(w->ctl, "limit", 0, 1, UINT32_MAX);
    w->clear.all = ctl_option(w->ctl, "all");
    w->json = ctl_option(w->ctl, "json");
    if (user) {
        w->pin.has_uid = true;
        w->pin.uid = read_user(w->ctl, user);
    }
    if (salt)
        w->pin.cache_salt = nvllm_str(salt);
    ctl_prompt_init(&w->prompt, w->ctl);
}

static int run_verb(struct cache_work *w, enum verb verb)
{
    int rc = EXIT_OK;

    if (verb == VERB_PIN || verb == VERB_UNPIN)
        rc = ctl_prompt_read(&w->prompt, &w->request, w->ctl, NULL);
    if (rc == EXIT_OK)
        rc = ctl_connect(&w->client, w->ctl);
    if (rc == EXIT_OK)
        rc = verb == VERB_SHOW ? show(w) : verb == VERB_CLEAR ? clear(w) : pin(w);
    nvllm_close(w->client);
    return rc;
}

/* What goes with which verb. */
static void check_options(const struct cache_work *w, enum verb verb, const char *rest)
{
    const struct ctl *ctl = w->ctl;
    bool pins = verb == VERB_PIN || verb == VERB_UNPIN;

    if (rest && pins)
        ctl_usage(ctl, "“%s”: is it --prompt or --prompt-file?", rest);
    if (rest)
        ctl_usage(ctl, "“%s” is one too many", rest);
    if (pins && !ctl_prompt_is_given(&w->prompt))
        ctl_usage(ctl, "cache pin and unpin want --prompt TEXT or --prompt-file FILE");
    if (w->list.limit > 0 && verb != VERB_SHOW)
        ctl_usage(ctl, "--limit goes with show");
    if ((w->clear.all && verb != VERB_CLEAR) ||
        (!pins && (w->pin.has_uid || w->pin.cache_salt.data || ctl_prompt_is_given(&w->prompt) ||
                   ctl_prompt_is_shaped(&w->prompt))))
        ctl_usage(ctl, "--all goes with clear; prompts, --user and --cache-salt with pin and "
                       "unpin");
}

int ctl_cache(struct ctl *ctl)
{
    struct cache_work w = {.ctl = ctl};
    static const char *const verbs[] = {"show", "clear", "pin", "unpin"};
    const struct usage_line *line = &ctl->line;
    enum verb verb = VERB_SHOW;
    int rc;

    nvllm_list_options_init(&w.list);
    nvllm_clear_options_init(&w.clear);
    nvllm_pin_options_init(&w.pin);
    ctl_request_init(&w.request);
    read_options(&w);
    if (line->n_words > 0)
        verb = (enum verb)ctl_word(ctl, line->words[0], verbs, 4);
    check_options(&w, verb, line->n_words > 1 ? line->words[1] : NULL);
    if (w.list.limit == 0)
        w.list.limit = DEFAULT_LIMIT;
    w.pin.unpin = verb == VERB_UNPIN;
    ctl->needs_model = verb == VERB_PIN || verb == VERB_UNPIN; /* to be tokenized */
    rc = run_verb(&w, verb);
    ctl_request_deinit(&w.request);
    ctl_prompt_deinit(&w.prompt);
    return rc;
}
