/* engine_rig.c - see engine_rig.h. */
#include "tests/unit/engine_rig.h"

#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* Packs an answer as its bytes. */
static int pack(void *ctx, struct engine_packed *out, const struct engine_event *answer,
                const struct tokenizer *tokenizer)
{
    const bool is_text = answer->type == ENGINE_TEXT;

    (void)ctx, (void)tokenizer;
    out->bytes = is_text ? answer->text.len : answer->n_ids * sizeof(*answer->ids);
    out->data = malloc(out->bytes + 1);
    ck_assert_ptr_nonnull(out->data);
    memcpy(out->data, is_text ? (const void *)answer->text.data : answer->ids, out->bytes);
    return 0;
}

struct engine_options options;
struct backend_ops ops;
static struct engine *running;

void set_up_engine(void)
{
    ops = cpu_backend;
    options = (struct engine_options){
        .model_folder = TEST_MODEL_DIR,
        .backend = &ops,
        .backend_options = {.block_len = 16,
                            .max_batch_tokens = 256,
                            .max_seqs = 8,
                            .tier_bytes = {64u << 20},
                            .n_threads = 2},
        .max_preemptions = 3,
        .prefix_cache = true,
        .n_tokenizer_threads = 2,
    };
}

void end_engine(void)
{
    engine_free(running);
    running = NULL;
    ck_assert_int_eq(atomic_load(&n_owned), 0);
}

void info_with_idle(const struct backend *b, struct backend_info *out)
{
    cpu_backend.info(b, out);
    out->idle_s = 1;
}

struct engine *start_loading(void)
{
    struct err e;

    ck_assert_int_eq(engine_new(&running, &options, &e), 0);
    engine_set_packer(running, &(struct engine_packer){.pack = pack});
    return running;
}

/* Waits to be woken, a bounded time: an engine that hangs fails the test. */
static struct engine_event *wait_and_take(struct engine *g)
{
    struct pollfd p = {.fd = engine_event_fd(g), .events = POLLIN};

    ck_assert_int_eq(poll(&p, 1, 30000), 1);
    return engine_take(g);
}

struct engine_event *take(struct engine *g)
{
    struct engine_event *list = engine_take(g);

    while (!list)
        list = wait_and_take(g);
    return list;
}

void wait_while(struct engine *g, enum engine_state state)
{
    while (engine_state(g) == state)
        engine_events_free(wait_and_take(g));
}

struct engine *start(void)
{
    struct engine *g = start_loading();

    wait_while(g, ENGINE_LOADING);
    ck_assert_int_eq(engine_state(g), ENGINE_READY);
    return g;
}

/* ---- requests */

_Atomic int n_owned;

void release(void *owner)
{
    (void)owner;
    atomic_fetch_sub(&n_owned, 1);
}

struct engine_request request(uint64_t id, const char *prompt)
{
    return (struct engine_request){
        .id = id,
        .client = 1000,
        .priority = CORE_NORMAL,
        .input = ENGINE_PROMPT,
        .prompt = {prompt, strlen(prompt)},
        .sampling = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
        .max_tokens = 40,
        .n = 1,
        .stream = true,
        .release = release,
    };
}

void generate(struct engine *g, const struct engine_request *r)
{
    atomic_fetch_add(&n_owned, 1);
    ck_assert_int_eq(engine_start(g, r), 0);
}

static void add(struct answer *a, const struct engine_event *ev)
{
    ck_assert_int_eq(a->n_terminals, 0); /* nothing comes after the terminal event */
    if (ev->type == ENGINE_DELTA) {
        memcpy(a->text + a->len, ev->text.data, ev->text.len);
        a->len += ev->text.len;
        for (size_t i = 0; i < ev->n_ids; i++)
            a->ids[a->n_ids + i] = ev->ids[i];
        a->n_ids += ev->n_ids;
        a->n_deltas++;
        a->reason = ev->reason;
        return;
    }
    a->n_terminals++;
    a->terminal = ev->type;
    a->error = ev->error;
    if (ev->type == ENGINE_ERROR)
        a->message = *ev->message;
    if (ev->field)
        snprintf(a->field, sizeof(a->field), "%s", ev->field);
    a->usage = ev->usage;
}

/* Reads events until each of the answers 1 .. n has its terminal event. */
void gather(struct engine *g, struct answer *answers, uint64_t n)
{
    uint64_t left = n;

    memset(answers, 0, n * sizeof(*answers));
    while (left) {
        struct engine_event *list = take(g);

        for (struct engine_event *ev = list; ev; ev = ev->next) {
            ck_assert(ev->request >= 1 && ev->request <= n);
            add(&answers[ev->request - 1], ev);
            left -= answers[ev->request - 1].n_terminals;
        }
        engine_events_free(list);
    }
}

struct inspect_report *report_of(struct engine *g, uint64_t id)
{
    struct inspect_report *report = NULL;

    while (!report) {
        struct engine_event *list = take(g);

        for (struct engine_event *ev = list; ev; ev = ev->next) {
            if (ev->request != id)
                continue;
            ck_assert_int_eq(ev->type, ENGINE_REPORT);
            report = ev->report;
            ev->report = NULL;
        }
        engine_events_free(list);
    }
    return report;
}
