/* workload.c - see bench.h. */
#include "client/ctl/bench.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/lines.h"

enum {
    NANO_VLLM_REQUESTS = 256,
    NANO_VLLM_SHORTEST = 100,
    NANO_VLLM_LONGEST = 1024,
    LAST_TOKEN = 10000, /* prompts use ids up to this one, as in nano-vLLM's benchmark */
};

void workload_deinit(struct workload *w)
{
    free(w->items);
    free(w->memory);
    free(w->tokens);
    free(w->ids);
}

/* Prompts are drawn first, each its length and then its tokens; then the lengths of the answers. */
void workload_nano_vllm(struct workload *w)
{
    size_t n = 0;

    random_seed(&w->random, 0);
    w->items = ctl_grow(NULL, NANO_VLLM_REQUESTS, sizeof(*w->items));
    w->memory = ctl_grow(NULL, NANO_VLLM_REQUESTS * NANO_VLLM_LONGEST, sizeof(*w->memory));
    w->n_items = NANO_VLLM_REQUESTS;
    for (size_t i = 0; i < w->n_items; i++) {
        struct workload_item *item = &w->items[i];

        *item = (struct workload_item){.at_us = -1, .ids = w->memory + n};
        item->prompt_tokens = random_int(&w->random, NANO_VLLM_SHORTEST, NANO_VLLM_LONGEST);
        for (uint32_t k = 0; k < item->prompt_tokens; k++)
            w->memory[n++] = (int32_t)random_int(&w->random, 0, LAST_TOKEN);
    }
    for (size_t i = 0; i < w->n_items; i++)
        w->items[i].output_tokens = random_int(&w->random, NANO_VLLM_SHORTEST, NANO_VLLM_LONGEST);
}

/* ---- a file */

static bool read_count(uint32_t *out, const json_t *object, const char *name,
                       struct nvllm_error *err)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > WORKLOAD_MAX_TOKENS)
        return ctl_invalid(err, "%s: must be a whole number from 1 to %d", name,
                           WORKLOAD_MAX_TOKENS);
    *out = (uint32_t)json_integer_value(value);
    return true;
}

static bool read_item(struct workload_item *item, const struct lines *l, struct nvllm_error *err)
{
    json_t *object = ctl_json_parse(l->line, l->n, err);
    const json_t *at = json_object_get(object, "at_ms");
    const json_t *member;
    const char *name;
    bool ok = object && (json_is_object(object) || ctl_invalid(err, "must be an object"));

    if (ok) {
        json_object_foreach(object, name, member)
        {
            ok = ok && (strcmp(name, "prompt_tokens") == 0 || strcmp(name, "output_tokens") == 0 ||
                        strcmp(name, "at_ms") == 0 || ctl_invalid(err, "there is no “%s”", name));
        }
    }
    ok = ok && read_count(&item->prompt_tokens, object, "prompt_tokens", err) &&
         read_count(&item->output_tokens, object, "output_tokens", err);
    item->ids = NULL;
    item->at_us = -1;
    if (ok && at) {
        ok = (json_is_number(at) && json_number_value(at) >= 0 && json_number_value(at) < 1e12) ||
             ctl_invalid(err, "at_ms: must be a number from 0");
        item->at_us = ok ? (int64_t)(json_number_value(at) * 1000) : -1;
    }
    json_decref(object);
    return ok;
}

/* Requests are sent in the order of their lines: all or none have a time, and times ascend. */
static bool check_time(const struct workload *w, struct nvllm_error *err)
{
    const struct workload_item *last = w->items + w->n_items;

    if (w->n_items == 0)
        return true;
    if ((last->at_us < 0) != (last[-1].at_us < 0))
        return ctl_invalid(err, "at_ms: either all lines need it or none");
    if (last->at_us < last[-1].at_us)
        return ctl_invalid(err, "at_ms: must not be less than on the line before");
    return true;
}

void workload_read(struct workload *w, const char *path)
{
    int fd = ctl_open(path, STDIN_FILENO, O_RDONLY), got;
    struct nvllm_error err;
    struct lines lines;

    lines_init(&lines, fd);
    while ((got = lines_next(&lines, true)) == LINES_OK) {
        if (!lines_has_text(&lines))
            continue;
        w->items = ctl_grow(w->items, w->n_items + 1, sizeof(*w->items));
        if (!read_item(&w->items[w->n_items], &lines, &err) || !check_time(w, &err))
            ctl_die("%s, line %llu: %s", path, (unsigned long long)lines.number, err.message);
        w->n_items++;
    }
    if (got != LINES_END)
        ctl_die("cannot read %s", path);
    if (w->n_items == 0)
        ctl_die("%s holds no requests", path);
    lines_deinit(&lines);
    if (fd != STDIN_FILENO)
        close(fd);
}

/* ---- the tokens */

/* Ordinary tokens have a text, also with special tokens left out. */
void workload_find_tokens(struct workload *w, struct ctl *ctl)
{
    enum nvllm_code code = NVLLM_OK;

    w->tokens = ctl_grow(NULL, LAST_TOKEN + 1, sizeof(*w->tokens));
    for (int32_t id = 0; id <= LAST_TOKEN && code == NVLLM_OK; id++) {
        struct nvllm_text text = {0};

        code = nvllm_detokenize(ctl->client, &id, 1, true, ctl_left_ms(ctl), &text, &ctl->err);
        if (text.len > 0)
            w->tokens[w->n_tokens++] = id;
    }
    if (code != NVLLM_E_INVALID) /* of ids past the end of the vocabulary */
        ctl_check(ctl, code);
    if (w->n_tokens == 0)
        ctl_die("the model has no ordinary tokens");
    /* A published prompt may contain tokens that this model lacks: others replace them. */
    for (size_t i = 0; w->memory && i < w->n_items; i++)
        for (uint32_t k = 0; w->n_tokens <= LAST_TOKEN && k < w->items[i].prompt_tokens; k++) {
            int32_t *id = (int32_t *)w->items[i].ids + k;

            *id = w->tokens[(size_t)*id % w->n_tokens];
        }
}

/* ---- one after another */

bool workload_next(struct workload *w, struct workload_item *item, bool again)
{
    if (!w->items) {
        *item = (struct workload_item){
            .prompt_tokens = random_int(&w->random, w->prompt.min, w->prompt.max),
            .output_tokens = random_int(&w->random, w->output.min, w->output.max),
            .at_us = -1,
        };
        return true;
    }
    if (w->at == w->n_items && again)
        w->at = 0;
    if (w->at == w->n_items)
        return false;
    *item = w->items[w->at++];
    return true;
}

const int32_t *workload_ids(struct workload *w, const struct workload_item *item)
{
    if (item->ids)
        return item->ids;
    if (w->n_ids < item->prompt_tokens) {
        w->ids = ctl_grow(w->ids, item->prompt_tokens, sizeof(*w->ids));
        w->n_ids = item->prompt_tokens;
    }
    for (uint32_t i = 0; i < item->prompt_tokens; i++)
        w->ids[i] = w->tokens[random_int(&w->random, 0, (uint32_t)w->n_tokens - 1)];
    return w->ids;
}
