/* golden_cases.c - see golden_cases.h. */
#include "tests/tools/golden_cases.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/util/must.h"

static int32_t *ints(const json_t *array, int32_t *n)
{
    int32_t *v = calloc(json_array_size(array) + 1, sizeof(*v));

    must(v);
    *n = (int32_t)json_array_size(array);
    for (int32_t i = 0; i < *n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return v;
}

static void read_case(struct golden *c, const json_t *j)
{
    const json_t *top = json_object_get(j, "top5_logprobs");

    snprintf(c->name, sizeof(c->name), "%s", json_string_value(json_object_get(j, "name")));
    c->prompt = ints(json_object_get(j, "prompt_ids"), &c->n_prompt);
    c->ids = ints(json_object_get(j, "greedy_ids"), &c->n_ids);
    c->max_tokens = (int32_t)json_integer_value(json_object_get(j, "max_tokens"));
    c->min_margin = json_number_value(json_object_get(j, "min_margin"));
    c->top_ids = calloc((size_t)c->n_ids, sizeof(*c->top_ids));
    c->top_logprobs = calloc((size_t)c->n_ids, sizeof(*c->top_logprobs));
    must(c->n_prompt > 0 && c->n_ids > 0 && json_array_size(top) == (size_t)c->n_ids);
    must(c->top_ids && c->top_logprobs);
    for (int32_t i = 0; i < c->n_ids; i++)
        for (int k = 0; k < GOLDEN_TOP; k++) {
            const json_t *pair = json_array_get(json_array_get(top, (size_t)i), (size_t)k);

            c->top_ids[i][k] = (int32_t)json_integer_value(json_array_get(pair, 0));
            c->top_logprobs[i][k] = json_number_value(json_array_get(pair, 1));
        }
}

int golden_load(struct golden **out, const char *folder)
{
    char path[4096];
    json_error_t bad;
    json_t *all;
    int n;

    snprintf(path, sizeof(path), "%s/nvllm-tiny-greedy.json", folder);
    all = json_load_file(path, 0, &bad);
    if (!all) {
        fprintf(stderr, "%s: %s\n", path, bad.text);
        exit(1);
    }
    n = (int)json_array_size(all);
    *out = calloc((size_t)n, sizeof(**out));
    must(*out);
    for (int i = 0; i < n; i++)
        read_case(&(*out)[i], json_array_get(all, (size_t)i));
    json_decref(all);
    return n;
}

void golden_free(struct golden *all, int n)
{
    for (int i = 0; i < n; i++) {
        free(all[i].prompt);
        free(all[i].ids);
        free(all[i].top_ids);
        free(all[i].top_logprobs);
    }
    free(all);
}
