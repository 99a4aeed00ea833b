/* cache.c - nvllmctl cache: shows and changes the prefix cache. */
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"
#include "client/ctl/prompt.h"
#include "client/ctl/report_json.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal.h"

enum {
    DEFAULT_LIMIT = 50,
    HEAD_IDS = 256,     /* at most; the daemon sends fewer */
    SHORTEST_HEAD = 12, /* columns; less of a prefix's text is of no use */
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

/* Adds the text of each prefix's first tokens. A daemon that is still loading its model cannot give
 * it, which is not an error. */
static void add_heads(const struct cache_work *w, json_t *prefixes)
{
    json_t *prefix;
    size_t i;

    json_array_foreach(prefixes, i, prefix)
    {
        const json_t *head = json_object_get(prefix, "head_ids");
        size_t n = json_array_size(head);
        int32_t ids[HEAD_IDS];
        struct nvllm_text text;

        n = n < HEAD_IDS ? n : HEAD_IDS;
        for (size_t k = 0; k < n; k++)
            ids[k] = (int32_t)json_integer_value(json_array_get(head, k));
        if (n > 0 &&
            nvllm_detokenize(w->client, ids, n, false, ctl_ask_ms(w->ctl), &text, NULL) == NVLLM_OK)
            json_object_set_new(prefix, "head", ctl_json_text(text.data, text.len));
    }
}

static uint64_t number(const json_t *o, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(o, name));
}

enum { TOKENS, BLOCKS, HITS, AGE, IDLE, HOLDERS, PINNED, USER, N_COLUMNS };

static const struct table_column columns_of_all[N_COLUMNS] = {
    [TOKENS] = {"TOKENS", 8}, [BLOCKS] = {"BLOCKS", 7, 3}, [HITS] = {"HITS", 6, 6},
    [AGE] = {"AGE", 8, 2},    [IDLE] = {"IDLE", 8, 5},     [HOLDERS] = {"HOLDERS", 7, 1},
    [PINNED] = {"", -3, 7},   [USER] = {"USER", -10, 4},
};

static void fill_cells(struct table *t, const json_t *p)
{
    const size_t n = TABLE_CELL_BYTES;

    snprintf(t->cells[TOKENS], n, "%" PRIu64, number(p, "tokens"));
    snprintf(t->cells[BLOCKS], n, "%" PRIu64, number(p, "blocks"));
    snprintf(t->cells[HITS], n, "%" PRIu64, number(p, "hits"));
    ctl_duration(t->cells[AGE], n, number(p, "age_ms") * 1000);
    ctl_duration(t->cells[IDLE], n, number(p, "idle_ms") * 1000);
    snprintf(t->cells[HOLDERS], n, "%" PRIu64, number(p, "holders"));
    snprintf(t->cells[PINNED], n, "%s", json_is_true(json_object_get(p, "pinned")) ? "pin" : "");
    ctl_user_name(t->cells[USER], n, (uint32_t)number(p, "uid"));
}

/* The last column is the text that a prefix begins with, cut to the room that is left. */
static void print_cache(const json_t *o)
{
    const json_t *prefixes = json_object_get(o, "prefixes");
    uint64_t queried = number(o, "queried_tokens"), n = json_array_size(prefixes);
    int columns = terminal_columns(STDOUT_FILENO), room = 0;
    const char *head = "BEGINS";
    struct table t;

    table_init(&t, columns_of_all, N_COLUMNS,
               columns > SHORTEST_HEAD + 1 ? columns - SHORTEST_HEAD - 1 : columns > 0);
    if (columns > 0)
        room = columns > t.total + 1 ? columns - t.total - 1 : 1;
    for (size_t i = 0; i <= n; i++) {
        table_print(&t, stdout);
        putchar(' ');
        ctl_put_line(stdout, head ? head : "", room);
        putchar('\n');
        if (i < n) {
            fill_cells(&t, json_array_get(prefixes, i));
            head = json_string_value(json_object_get(json_array_get(prefixes, i), "head"));
        }
    }
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
    o = report_json_cache(cache);
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
        return ctl_json_print(STDOUT_FILENO, report_json_cache_change(change)) ? EXIT_OK
                                                                               : EXIT_ERROR;
    printf("%s %u block%s of %u tokens\n", what, change->blocks, change->blocks == 1 ? "" : "s",
           change->tokens);
    if (w->pin.unpin && change->blocks == 0)
        ctl_message("nothing is pinned for this prompt: “nvllmctl cache” lists pinned prefixes");
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
        /* Computing the prompt may take long: only --timeout limits it. */
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

/* Refuses options of another verb. */
static void check_options(const struct cache_work *w, enum verb verb, const char *rest)
{
    const struct ctl *ctl = w->ctl;
    bool pins = verb == VERB_PIN || verb == VERB_UNPIN;

    if (rest && pins)
        ctl_usage(ctl, "“%s”: pass a prompt with --prompt or --prompt-file", rest);
    if (rest)
        ctl_usage(ctl, "unexpected argument “%s”", rest);
    if (pins && !ctl_prompt_is_given(&w->prompt))
        ctl_usage(ctl, "cache pin and unpin need --prompt TEXT or --prompt-file FILE");
    if (w->list.limit > 0 && verb != VERB_SHOW)
        ctl_usage(ctl, "--limit is for show only");
    if ((w->clear.all && verb != VERB_CLEAR) ||
        (!pins && (w->pin.has_uid || w->pin.cache_salt.data || ctl_prompt_is_given(&w->prompt) ||
                   ctl_prompt_is_shaped(&w->prompt))))
        ctl_usage(ctl, "--all is for clear only; prompts, --user and --cache-salt are for pin and "
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
