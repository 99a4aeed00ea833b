/* cache.c - nvllmctl cache and explain: shows and changes the prefix cache, and says how much of a
 * prompt it holds, or why a request waits. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/request.h"
#include "client/ctl/show.h"

enum {
    DEFAULT_LIMIT = 50,
    HEAD_IDS = 256,     /* at most; the daemon sends fewer */
    SHORTEST_HEAD = 12, /* columns; less of a prefix's text is of no use */
    SHOWN_BYTES = 60,   /* of a token's text */
};

enum verb { SHOW, CLEAR, PIN, UNPIN }; /* as the command's words */

struct cache_work {
    struct ctl *ctl;
    struct nvllm_pin_options pin;
    struct nvllm_explain_options about;
    struct ctl_prompt prompt;
};

/* ---- show */

/* Adds the text of each prefix's first tokens, which a daemon that loads its model cannot give. */
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
        if (n > 0 && nvllm_detokenize(w->ctl->client, ids, n, false, ctl_ask_ms(w->ctl), &text,
                                      NULL) == NVLLM_OK)
            json_object_set_new(prefix, "head", ctl_json_text(text));
    }
}

static uint64_t number(const json_t *o, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(o, name));
}

enum { TOKENS, BLOCKS, HITS, AGE, IDLE, HOLDERS, TIER, PINNED, USER, N_COLUMNS };

static const struct table_column columns_of_all[N_COLUMNS] = {
    [TOKENS] = {"TOKENS", 8, 0}, [BLOCKS] = {"BLOCKS", 7, 3}, [HITS] = {"HITS", 6, 6},
    [AGE] = {"AGE", 8, 2},       [IDLE] = {"IDLE", 8, 5},     [HOLDERS] = {"HOLDERS", 7, 1},
    [TIER] = {"TIER", -6, 7},    [PINNED] = {"", -3, 8},      [USER] = {"USER", -10, 4},
};

static void fill_cells(struct table *t, const json_t *p)
{
    const size_t n = TABLE_CELL_BYTES;

    snprintf(t->cells[TOKENS], n, "%" PRIu64, number(p, "tokens"));
    snprintf(t->cells[BLOCKS], n, "%" PRIu64, number(p, "blocks"));
    snprintf(t->cells[HITS], n, "%" PRIu64, number(p, "hits"));
    show_duration(t->cells[AGE], n, number(p, "age_ms") * 1000);
    show_duration(t->cells[IDLE], n, number(p, "idle_ms") * 1000);
    snprintf(t->cells[HOLDERS], n, "%" PRIu64, number(p, "holders"));
    snprintf(t->cells[TIER], n, "%s", /* the lowest that it needs */
             number(p, "disk_blocks")   ? "disk"
             : number(p, "host_blocks") ? "host"
                                        : "device");
    snprintf(t->cells[PINNED], n, "%s", json_is_true(json_object_get(p, "pinned")) ? "pin" : "");
    show_user(t->cells[USER], n, (uint32_t)number(p, "uid"));
}

/* The last column is the text that a prefix begins with, cut to the room that is left. */
static void print_cache(const json_t *o)
{
    const json_t *prefixes = json_object_get(o, "prefixes");
    uint64_t queried = number(o, "queried_tokens"), hits = number(o, "hit_tokens");
    uint64_t n = json_array_size(prefixes);
    int columns = show_width(STDOUT_FILENO), room = 0;
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
           hits, queried, show_percent(hits, queried), number(o, "evictions"),
           number(o, "pinned_blocks"));
}

static int show(struct cache_work *w)
{
    const struct nvllm_cache *cache;
    struct nvllm_list_options options;
    json_t *o;

    nvllm_list_options_init(&options);
    options.limit = (uint32_t)ctl_whole(w->ctl, "limit", DEFAULT_LIMIT, 1, UINT32_MAX);
    ctl_check(w->ctl,
              nvllm_show_cache(w->ctl->client, &options, ctl_ask_ms(w->ctl), &cache, &w->ctl->err));
    o = report_json_cache(cache);
    add_heads(w, json_object_get(o, "prefixes"));
    if (ctl_option(w->ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, o);
    print_cache(o);
    json_decref(o);
    return EXIT_OK;
}

/* ---- changes */

static int print_change(const struct ctl *ctl, const char *what,
                        const struct nvllm_cache_change *change)
{
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_cache_change(change));
    printf("%s %u block%s of %u tokens\n", what, change->blocks, change->blocks == 1 ? "" : "s",
           change->tokens);
    return EXIT_OK;
}

static int clear(struct cache_work *w)
{
    const struct nvllm_cache_change *change;
    struct nvllm_clear_options options;

    nvllm_clear_options_init(&options);
    options.all = ctl_option(w->ctl, "all");
    ctl_check(w->ctl, nvllm_clear_cache(w->ctl->client, &options, ctl_ask_ms(w->ctl), &change,
                                        &w->ctl->err));
    return print_change(w->ctl, "forgot", change);
}

static int pin(struct cache_work *w)
{
    const struct nvllm_cache_change *change;
    struct nvllm_pin_options *pin = &w->pin;
    const struct nvllm_request *r = &w->prompt.request.r;
    enum nvllm_code code;

    do {
        pin->prompt = r->prompt;
        pin->prompt_ids = r->prompt_ids;
        pin->n_prompt_ids = r->n_prompt_ids;
        pin->chat = r->chat;
        pin->cache_salt = r->cache_salt;
        /* Computing the prompt may take long: only --timeout limits it. */
        code = nvllm_pin_cache(w->ctl->client, pin, ctl_left_ms(w->ctl), &change, &w->ctl->err);
    } while (ctl_prompt_fall_back(&w->prompt, code));
    ctl_check(w->ctl, code);
    if (pin->unpin && change->blocks == 0)
        ctl_message("nothing is pinned for this prompt: “nvllmctl cache” lists pinned prefixes");
    return print_change(w->ctl, pin->unpin ? "unpinned" : "pinned", change);
}

/* ---- options */

/* Reads the verb and the options of pins, and refuses options of another verb. */
static enum verb read_line(struct cache_work *w)
{
    const struct ctl *ctl = w->ctl;
    const char *user = ctl_option(ctl, "user");
    char **words = ctl->line.words;
    enum verb verb = ctl->line.n_words > 0 ? (enum verb)ctl_word(ctl, words[0]) : SHOW;
    bool pins = verb == PIN || verb == UNPIN;

    if (ctl->line.n_words > 1)
        ctl_usage(ctl,
                  pins ? "“%s”: pass a prompt with --prompt or --prompt-file"
                       : "unexpected argument “%s”",
                  words[1]);
    if (pins && !ctl_prompt_is_given(&w->prompt))
        ctl_usage(ctl, "cache pin and unpin need --prompt TEXT or --prompt-file FILE");
    if (ctl_option(ctl, "limit") && verb != SHOW)
        ctl_usage(ctl, "--limit is for show only");
    if ((ctl_option(ctl, "all") && verb != CLEAR) ||
        (!pins && (user || ctl_option(ctl, "cache-salt") || ctl_prompt_is_given(&w->prompt) ||
                   ctl_prompt_is_shaped(&w->prompt))))
        ctl_usage(ctl, "--all is for clear only; prompts, --user and --cache-salt are for pin and "
                       "unpin");
    w->pin.unpin = verb == UNPIN;
    w->pin.has_uid = user != NULL;
    w->pin.uid = user ? ctl_user(ctl, user) : 0;
    return verb;
}

/* Reads the prompt, if the command is about one, and does the work. */
static int work(struct cache_work *w, bool has_prompt, int (*run)(struct cache_work *))
{
    int rc;

    w->ctl->needs_model = has_prompt; /* to tokenize it */
    if (has_prompt)
        ctl_prompt_read(&w->prompt, w->ctl, NULL);
    ctl_connect(w->ctl);
    rc = run(w);
    ctl_prompt_deinit(&w->prompt);
    return rc;
}

int ctl_cache(struct ctl *ctl)
{
    static int (*const run[])(struct cache_work *) = {show, clear, pin, pin};
    struct cache_work w = {.ctl = ctl};
    enum verb verb;

    nvllm_pin_options_init(&w.pin);
    ctl_prompt_init(&w.prompt, ctl);
    verb = read_line(&w);
    return work(&w, verb == PIN || verb == UNPIN, run[verb]);
}

/* ---- explain */

/* A line with an id and, if the daemon tells it, the token's text in JSON's quotes. */
static void print_token(const struct cache_work *w, const char *what, const json_t *token)
{
    int32_t id = (int32_t)json_integer_value(token);
    struct nvllm_text text;
    json_t *value;
    char *quoted;

    printf("%-16s %d", what, id);
    if (nvllm_detokenize(w->ctl->client, &id, 1, false, ctl_ask_ms(w->ctl), &text, NULL) ==
        NVLLM_OK) {
        value = ctl_json_text(text);
        quoted = json_dumps(value, JSON_ENCODE_ANY);
        putchar(' ');
        ctl_put_line(stdout, quoted, SHOWN_BYTES);
        free(quoted);
        json_decref(value);
    }
    putchar('\n');
}

static void print_prompt(const struct cache_work *w, const json_t *o)
{
    uint64_t prompt = number(o, "prompt_tokens"), cached = number(o, "cached_tokens");
    const json_t *next = json_object_get(o, "next_id"), *others = json_object_get(o, "other_ids");

    printf("%-16s%" PRIu64 " of %" PRIu64 " prompt tokens (%.0f %%)\n", "cached", cached, prompt,
           show_percent(cached, prompt));
    if (!json_is_integer(next))
        return;
    /* A block is cached as a whole: the first token that differs lies behind the cached ones. */
    print_token(w, json_array_size(others) > 0 ? "first different" : "first not cached", next);
    for (size_t i = 0; i < json_array_size(others); i++)
        print_token(w, i == 0 ? "others have" : "", json_array_get(others, i));
}

static void print_request(const struct nvllm_explanation *e)
{
    const struct nvllm_request_info *r = e->info;
    char age[16];

    printf("%-16s %llu, %s", "request", (unsigned long long)r->request,
           nvllm_request_state_name(r->state));
    if (r->place)
        printf(", place %u", r->place);
    printf(", since %s\n", show_duration(age, sizeof(age), r->age_us));
    if (e->reason != NVLLM_WAIT_NOT)
        printf("%-16s %s\n", "reason", nvllm_wait_reason_name(e->reason));
    if (e->blocks_needed)
        printf("%-16s %u needed, %u available\n", "blocks", e->blocks_needed, e->blocks_available);
}

static int explain(struct cache_work *w)
{
    struct nvllm_explain_options *about = &w->about;
    const struct nvllm_request *r = &w->prompt.request.r;
    const struct nvllm_explanation *e;
    enum nvllm_code code;
    json_t *o;

    do {
        about->prompt = r->prompt;
        about->prompt_ids = r->prompt_ids;
        about->n_prompt_ids = r->n_prompt_ids;
        about->chat = r->chat;
        about->cache_salt = r->cache_salt;
        code = nvllm_explain(w->ctl->client, about, ctl_ask_ms(w->ctl), &e, &w->ctl->err);
    } while (ctl_prompt_fall_back(&w->prompt, code));
    ctl_check(w->ctl, code);
    o = report_json_explanation(e);
    if (ctl_option(w->ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, o);
    if (e->text[0]) {
        ctl_put_line(stdout, e->text, 0);
        putchar('\n');
    }
    if (e->info)
        print_request(e);
    else
        print_prompt(w, o); /* o outlives e, which is gone with the next call */
    json_decref(o);
    return EXIT_OK;
}

int ctl_explain(struct ctl *ctl)
{
    struct cache_work w = {.ctl = ctl};
    const char *word = ctl->line.n_words > 0 ? ctl->line.words[0] : NULL;
    bool given, salted = ctl_option(ctl, "cache-salt");

    nvllm_explain_options_init(&w.about);
    ctl_prompt_init(&w.prompt, ctl);
    given = ctl_prompt_is_given(&w.prompt);
    if (given + ctl->line.n_words != 1)
        ctl_usage(ctl,
                  "explain needs the number of a request, --prompt TEXT or --prompt-file FILE");
    if (!given && (salted || ctl_prompt_is_shaped(&w.prompt)))
        ctl_usage(ctl, "--%s needs --prompt or --prompt-file",
                  salted ? "cache-salt" : "chat, --raw, --system and --think");
    if (!given && (word[0] < '0' || word[0] > '9'))
        ctl_usage(ctl,
                  "“%s” is not the number of a request, see “nvllmctl requests”; pass a "
                  "prompt with --prompt",
                  word);
    if (!given)
        w.about.request = ctl_request_number(ctl, word);
    return work(&w, given, explain);
}
