/* explain.c - nvllmctl explain: why a request waits, or how much of a prompt is cached. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"
#include "client/ctl/prompt.h"
#include "client/ctl/report_json.h"

enum { SHOWN_BYTES = 60 };

struct work {
    struct ctl *ctl;
    struct nvllm_client *client;
    struct nvllm_explain_options about;
    struct ctl_request request; /* holds the prompt, if there is one */
    struct ctl_prompt prompt;
    bool json;
};

/* An id and, if the daemon tells it, the token's text in JSON's quotes. */
static void print_token(struct nvllm_client *client, const struct ctl *ctl, int32_t id)
{
    struct nvllm_text text;
    char *quoted;
    json_t *value;

    printf("%d", id);
    if (nvllm_detokenize(client, &id, 1, false, ctl_ask_ms(ctl), &text, NULL) != NVLLM_OK)
        return;
    value = ctl_json_text(text.data, text.len);
    quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (quoted) {
        putchar(' ');
        ctl_put_line(stdout, quoted, SHOWN_BYTES);
    }
    free(quoted);
    json_decref(value);
}

static void print_prompt(struct nvllm_client *client, const struct ctl *ctl, const json_t *o)
{
    json_int_t prompt = json_integer_value(json_object_get(o, "prompt_tokens"));
    json_int_t cached = json_integer_value(json_object_get(o, "cached_tokens"));
    const json_t *next = json_object_get(o, "next_id"), *others = json_object_get(o, "other_ids");

    printf("%-16s%lld of %lld prompt tokens (%.0f %%)\n", "cached", (long long)cached,
           (long long)prompt, prompt ? 100.0 * (double)cached / (double)prompt : 0);
    if (!json_is_integer(next))
        return;
    /* A block is cached as a whole: the first token that differs lies behind the cached ones. */
    printf("%-16s ", json_array_size(others) > 0 ? "first different" : "first not cached");
    print_token(client, ctl, (int32_t)json_integer_value(next));
    putchar('\n');
    for (size_t i = 0; i < json_array_size(others); i++) {
        printf("%-16s ", i == 0 ? "others have" : "");
        print_token(client, ctl, (int32_t)json_integer_value(json_array_get(others, i)));
        putchar('\n');
    }
}

static void print_request(const struct nvllm_explanation *e)
{
    const struct nvllm_request_info *r = e->info;
    char age[16];

    printf("%-16s %llu, %s", "request", (unsigned long long)r->request,
           nvllm_request_state_name(r->state));
    if (r->place)
        printf(", place %u", r->place);
    printf(", since %s\n", ctl_duration(age, sizeof(age), r->age_us));
    if (e->reason != NVLLM_WAIT_NOT)
        printf("%-16s %s\n", "reason", nvllm_wait_reason_name(e->reason));
    if (e->blocks_needed)
        printf("%-16s %u needed, %u available\n", "blocks", e->blocks_needed, e->blocks_available);
}

static void set_prompt(struct nvllm_explain_options *about, const struct ctl_request *q)
{
    about->prompt = q->r.prompt;
    about->prompt_ids = q->r.prompt_ids;
    about->n_prompt_ids = q->r.n_prompt_ids;
    about->chat = q->r.chat;
    if (q->r.cache_salt.data)
        about->cache_salt = q->r.cache_salt;
}

static int explain(struct work *w)
{
    struct nvllm_client *client = w->client;
    const struct ctl *ctl = w->ctl;
    const struct nvllm_explanation *e;
    struct nvllm_error err;
    enum nvllm_code code;
    json_t *o;
    bool ok = true;

    do {
        set_prompt(&w->about, &w->request);
        code = nvllm_explain(client, &w->about, ctl_ask_ms(ctl), &e, &err);
    } while (ctl_prompt_fall_back(&w->prompt, &w->request, code));
    if (code != NVLLM_OK)
        return ctl_report(ctl, &err);
    o = report_json_explanation(e);
    if (w->json) {
        ok = ctl_json_print(STDOUT_FILENO, json_incref(o));
    } else {
        if (e->text[0]) {
            ctl_put_line(stdout, e->text, 0);
            putchar('\n');
        }
        if (e->info)
            print_request(e);
        else
            print_prompt(client, ctl, o);
    }
    json_decref(o);
    return ok ? EXIT_OK : EXIT_ERROR;
}

static void read_options(struct work *w)
{
    struct ctl *ctl = w->ctl;
    const char *salt = ctl_option(ctl, "cache-salt");
    char **words = ctl->line.words;
    bool given;

    w->json = ctl_option(ctl, "json");
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
    int rc = EXIT_OK;

    nvllm_explain_options_init(&w.about);
    ctl_request_init(&w.request);
    read_options(&w);
    if (ctl_prompt_is_given(&w.prompt))
        rc = ctl_prompt_read(&w.prompt, &w.request, ctl, NULL);
    if (rc == EXIT_OK)
        rc = ctl_connect(&w.client, ctl);
    if (rc == EXIT_OK)
        rc = explain(&w);
    nvllm_close(w.client);
    ctl_request_deinit(&w.request);
    ctl_prompt_deinit(&w.prompt);
    return rc;
}
