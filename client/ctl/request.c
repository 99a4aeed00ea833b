/* request.c - see request.h. */
#include "client/ctl/request.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ctl_request_init(struct ctl_request *q)
{
    *q = (struct ctl_request){0};
    nvllm_request_init(&q->r);
    nvllm_chat_init(&q->chat);
}

void ctl_request_deinit(struct ctl_request *q)
{
    while (q->n_pieces > 0)
        free(q->pieces[--q->n_pieces]);
    free(q->pieces);
    q->pieces = NULL;
    json_decref(q->source);
    q->source = NULL;
}

void *ctl_request_take(struct ctl_request *q, size_t n, size_t size)
{
    q->pieces = ctl_grow(q->pieces, q->n_pieces + 1, sizeof(*q->pieces));
    return q->pieces[q->n_pieces++] = ctl_alloc(n, size);
}

void ctl_request_append(struct ctl_request *q, const void **array, size_t *n, const void *element,
                        size_t size)
{
    char *longer;

    /* Grows at each power of two; old copies are freed with the request. */
    if ((*n & (*n - 1)) == 0) {
        longer = ctl_request_take(q, *n ? *n * 2 : 1, size);
        if (*n)
            memcpy(longer, *array, *n * size);
        *array = longer;
    }
    memcpy((char *)*array + *n * size, element, size);
    ++*n;
}

void ctl_request_add_message(struct ctl_request *q, const char *role, struct nvllm_text content)
{
    struct nvllm_message message = {.role = role, .content = content};
    const void *messages = q->chat.messages;

    ctl_request_append(q, &messages, &q->chat.n_messages, &message, sizeof(message));
    q->chat.messages = messages;
    q->r.chat = &q->chat;
}

/* ---- fields */

#define FIELD(name, type)                                                                          \
    {                                                                                              \
#name, type, offsetof(struct nvllm_request, name)                                          \
    }

const struct ctl_field ctl_fields[] = {
    FIELD(temperature, FIELD_FLOAT),
    FIELD(top_k, FIELD_COUNT),
    FIELD(top_p, FIELD_FLOAT),
    FIELD(min_p, FIELD_FLOAT),
    FIELD(repetition_penalty, FIELD_FLOAT),
    FIELD(presence_penalty, FIELD_FLOAT),
    FIELD(frequency_penalty, FIELD_FLOAT),
    FIELD(min_tokens, FIELD_COUNT),
    FIELD(max_tokens, FIELD_COUNT),
    FIELD(logprobs, FIELD_COUNT),
    FIELD(n, FIELD_COUNT),
    FIELD(deadline_ms, FIELD_U32),
    FIELD(ignore_eos, FIELD_FLAG),
    FIELD(keep_special, FIELD_FLAG),
};
const size_t ctl_n_fields = sizeof(ctl_fields) / sizeof(ctl_fields[0]);

bool ctl_field_set_number(struct nvllm_request *r, const struct ctl_field *f, double value,
                          bool is_whole, struct nvllm_error *err)
{
    void *place = (char *)r + f->offset;
    int64_t count;
    uint32_t u32;
    float number;

    if (f->type == FIELD_FLOAT) {
        number = (float)value;
        if (!isfinite(number))
            return ctl_invalid(err, "%s: must be a number", f->name);
        memcpy(place, &number, sizeof(number));
        return true;
    }
    if (!is_whole || value < 0 || value > UINT32_MAX)
        return ctl_invalid(err, "%s: must be a whole number from 0 to %u", f->name, UINT32_MAX);
    count = (int64_t)value;
    u32 = (uint32_t)value;
    if (f->type == FIELD_U32)
        memcpy(place, &u32, sizeof(u32));
    else
        memcpy(place, &count, sizeof(count));
    return true;
}

/* "top_p" is "--top-p". */
static bool is_option_of(const struct ctl_field *f, const char *option)
{
    const char *name = f->name;

    for (; *name && *option; name++, option++)
        if (*name != *option && !(*name == '_' && *option == '-'))
            return false;
    return *name == *option;
}

static void set_field(struct ctl_request *q, const struct ctl *ctl, const struct ctl_field *f,
                      const char *option, const char *text)
{
    struct nvllm_error err;
    double value;
    bool yes = true;
    char *end;

    if (f->type == FIELD_FLAG) {
        memcpy((char *)&q->r + f->offset, &yes, sizeof(yes));
        return;
    }
    value = strtod(text, &end);
    if (end == text || *end != '\0')
        ctl_usage(ctl, "--%s takes a number, not “%s”", option, text);
    if (!ctl_field_set_number(&q->r, f, value, floor(value) == value, &err))
        ctl_usage(ctl, "--%s: invalid value “%s”: %s", option, text, err.message);
}

static void set_seed(struct ctl_request *q, const struct ctl *ctl, const char *text)
{
    char *end;

    errno = 0;
    q->r.seed = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        ctl_usage(ctl, "--seed takes a whole number from 0 to %llu, not “%s”",
                  (unsigned long long)UINT64_MAX, text);
    q->r.has_seed = true;
}

static void add_logit_bias(struct ctl_request *q, const struct ctl *ctl, const char *text)
{
    struct nvllm_logit_bias bias;
    const void *array = q->r.logit_bias;
    char *end;
    long id;

    errno = 0;
    id = strtol(text, &end, 10);
    if (end == text || *end != ':' || errno != 0 || id < 0 || id > INT32_MAX)
        ctl_usage(ctl, "--logit-bias takes ID:BIAS, as in 42:-5, not “%s”", text);
    bias.id = (int32_t)id;
    text = end + 1;
    bias.bias = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(bias.bias))
        ctl_usage(ctl, "--logit-bias takes ID:BIAS, as in 42:-5; “%s” is not a number", text);
    ctl_request_append(q, &array, &q->r.n_logit_bias, &bias, sizeof(bias));
    q->r.logit_bias = array;
}

bool ctl_request_set_priority(struct ctl_request *q, const char *name)
{
    for (int p = NVLLM_PRIORITY_NORMAL; p <= NVLLM_PRIORITY_HIGH; p++) {
        if (strcmp(name, nvllm_priority_name((enum nvllm_priority)p)) == 0) {
            q->r.priority = (enum nvllm_priority)p;
            return true;
        }
    }
    return false;
}

static void take_option(struct ctl_request *q, const struct ctl *ctl, const char *option,
                        const char *value)
{
    struct nvllm_text text = nvllm_str(value);
    const void *array;
    int32_t id;

    for (size_t i = 0; i < ctl_n_fields; i++) {
        if (is_option_of(&ctl_fields[i], option)) {
            set_field(q, ctl, &ctl_fields[i], option, value);
            return;
        }
    }
    if (strcmp(option, "seed") == 0) {
        set_seed(q, ctl, value);
    } else if (strcmp(option, "stop") == 0) {
        array = q->r.stop;
        ctl_request_append(q, &array, &q->r.n_stop, &text, sizeof(text));
        q->r.stop = array;
    } else if (strcmp(option, "stop-token-id") == 0) {
        id = (int32_t)ctl_number(ctl, option, value, 0, INT32_MAX);
        array = q->r.stop_token_ids;
        ctl_request_append(q, &array, &q->r.n_stop_token_ids, &id, sizeof(id));
        q->r.stop_token_ids = array;
    } else if (strcmp(option, "logit-bias") == 0) {
        add_logit_bias(q, ctl, value);
    } else if (strcmp(option, "priority") == 0) {
        if (!ctl_request_set_priority(q, value))
            ctl_usage(ctl, "--priority is low, normal or high, not “%s”", value);
    } else if (strcmp(option, "cache-salt") == 0) {
        q->r.cache_salt = text;
    }
}

void ctl_request_take_options(struct ctl_request *q, const struct ctl *ctl)
{
    for (size_t i = 0; i < ctl->line.n_given; i++)
        take_option(q, ctl, ctl->line.given[i].option->name, ctl->line.given[i].value);
}
