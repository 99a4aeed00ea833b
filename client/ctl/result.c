/* result.c - see result.h. */
#include "client/ctl/result.h"

#include <stdlib.h>

#include "client/ctl/json.h"

enum { MAX_CHOICES = 1 << 16 }; /* the daemon allows fewer */

void ctl_result_init(struct ctl_result *r, const struct nvllm_request *request)
{
    int64_t n = request->n > 0 ? request->n : 1;

    *r = (struct ctl_result){.n_choices = n < MAX_CHOICES ? (uint32_t)n : MAX_CHOICES};
    r->choices = ctl_alloc(r->n_choices, sizeof(*r->choices));
    for (uint32_t i = 0; i < r->n_choices; i++) {
        r->choices[i].object = json_pack("{sns[]sn}", "text", "token_ids", "finish_reason");
        if (request->logprobs >= 0)
            json_object_update_new(r->choices[i].object,
                                   json_pack("{s[]s[]}", "logprobs", "token_logprobs"));
    }
}

void ctl_result_deinit(struct ctl_result *r)
{
    for (uint32_t i = 0; r->choices && i < r->n_choices; i++) {
        text_buffer_deinit(&r->choices[i].text);
        json_decref(r->choices[i].object);
    }
    free(r->choices);
    r->choices = NULL;
}

static void add_logprobs(json_t *choice, const struct nvllm_logprobs *row)
{
    json_t *best = json_array();

    for (uint32_t i = 0; i < row->n_top; i++)
        json_array_append_new(best, json_pack("[io]", (int)row->top_ids[i],
                                              ctl_json_number(row->top_logprobs[i])));
    json_array_append_new(json_object_get(choice, "logprobs"), best);
    json_array_append_new(json_object_get(choice, "token_logprobs"), ctl_json_number(row->logprob));
}

void ctl_result_add(struct ctl_result *r, const struct nvllm_delta *delta)
{
    struct ctl_choice *c;
    json_t *ids;

    if (delta->choice >= r->n_choices)
        return;
    c = &r->choices[delta->choice];
    text_buffer_add(&c->text, delta->text.data, delta->text.len);
    ids = json_object_get(c->object, "token_ids");
    for (size_t i = 0; i < delta->n_tokens; i++) {
        json_array_append_new(ids, json_integer(delta->token_ids[i]));
        if (delta->logprobs)
            add_logprobs(c->object, &delta->logprobs[i]);
    }
    if (delta->finish != NVLLM_FINISH_NONE)
        c->finish = delta->finish;
}

void ctl_result_end(struct ctl_result *r, enum nvllm_finish finish)
{
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].finish == NVLLM_FINISH_NONE)
            r->choices[i].finish = finish;
}

enum nvllm_finish ctl_result_finish(const struct ctl_result *r)
{
    enum nvllm_finish worst = r->choices[0].finish;

    for (uint32_t i = 1; i < r->n_choices; i++)
        if (r->choices[i].finish > worst)
            worst = r->choices[i].finish;
    return worst;
}

json_t *ctl_result_json(const struct ctl_result *r)
{
    json_t *choices = json_array(), *object;

    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct ctl_choice *c = &r->choices[i];

        json_object_set_new(c->object, "text",
                            ctl_json_text((struct nvllm_text){c->text.data, c->text.len}));
        json_object_set_new(c->object, "finish_reason", json_string(nvllm_finish_name(c->finish)));
        json_array_append(choices, c->object);
    }
    object = json_copy(r->choices[0].object);
    json_object_update_new(object, json_pack("{s{sIsIsI}s{sososo}}", "usage", "prompt_tokens",
                                             (json_int_t)r->done.prompt_tokens, "cached_tokens",
                                             (json_int_t)r->done.cached_tokens, "completion_tokens",
                                             (json_int_t)r->done.completion_tokens, "timing",
                                             "queue_ms", ctl_json_number(r->done.queue_ms),
                                             "ttft_ms", ctl_json_number(r->done.ttft_ms),
                                             "total_ms", ctl_json_number(r->done.total_ms)));
    if (r->n_choices > 1)
        json_object_set(object, "choices", choices);
    json_decref(choices);
    return object;
}
