/* explain.c - nvllmctl explain: why a request waits, or how much of a prompt is cached. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/prompt.h"
#include "client/ctl/report.h"
#include "client/ctl/show.h"

enum { SHOWN_BYTES = 60 };

struct work {
    struct ctl *ctl;
    struct nvllm_explain_options about;
    struct ctl_prompt prompt;
};

/* A line with an id and, if the daemon tells it, the token's text in JSON's quotes. */
static void print_token(const struct work *w, const char *what, const json_t *token)
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

static void print_prompt(const struct work *w, const json_t *o)
{
    uint64_t prompt = (uint64_t)json_integer_value(json_object_get(o, "prompt_tokens"));
    uint64_t cached = (uint64_t)json_integer_value(json_object_get(o, "cached_tokens"));
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

static int explain(struct work *w)
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
        if (r->cache_salt.data)
            about->cache_salt = r->cache_salt;
        code = nvllm_explain(w->ctl->client, about, ctl_ask_ms(w->ctl), &e, &w->ctl->err);
    } while (ctl_prompt_fall_back(&w->prompt, code));
    ctl_check(w->ctl, code);
    o = report_json_explanation(e);
    if (ctl_option(w->ctl, "json"))
        return ctl_json_answer(o);
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

static void read_options(struct work *w)
{
    struct ctl *ctl = w->ctl;
    const char *salt = ctl_option(ctl, "cache-salt");
    char **words = ctl->line.words;
    bool given;

    if (salt)
        w->about.cache_salt = nvllm_str(salt);
    ctl_prompt_init(&w->prompt, ctl);
    given = ctl_prompt_is_given(&w->prompt);
    if (given + ctl->line.n_words != 1)
        ctl_usage(ctl,
                  "explain needs the number of a request, --prompt TEXT or --prompt-file FILE");
    if (!given && (w->about.cache_salt.data || ctl_prompt_is_shaped(&w->prompt)))
        ctl_usage(ctl, "--%s needs --prompt or --prompt-file",
                  w->about.cache_salt.data ? "cache-salt" : "chat, --raw, --system and --think");
    if (!given && (words[0][0] < '0' || words[0][0] > '9'))
        ctl_usage(ctl,
                  "“%s” is not the number of a request, as “nvllmctl requests” shows them; pass a "
                  "prompt with --prompt",
                  words[0]);
    if (!given)
        w->about.request = ctl_request_number(ctl, words[0]);
    ctl->needs_model = given; /* to tokenize the prompt */
}

int ctl_explain(struct ctl *ctl)
{
    struct work w = {.ctl = ctl};
    int rc;

    nvllm_explain_options_init(&w.about);
    read_options(&w);
    if (ctl_prompt_is_given(&w.prompt))
        ctl_prompt_read(&w.prompt, ctl, NULL);
    ctl_connect(ctl);
    rc = explain(&w);
    ctl_prompt_deinit(&w.prompt);
    return rc;
}
