/* core_rig.c - see core_rig.h. */
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

#include "tests/sim/core_verify.h"

struct rig rig;

static int32_t prompt[RIG_MAX_PROMPT];

void rig_defaults(void)
{
    memset(&rig, 0, sizeof(rig));
    rig.options = (struct core_options){
        .n_blocks = 64,
        .block_len = 4,
        .max_batch_tokens = 32,
        .max_seqs = 8,
        .max_seq_len = 256,
        .max_preemptions = 3,
        .prefix_cache = true,
    };
    rig.backend_options = (struct sim_backend_options){.n_ids = 1000, .first_id = 100};
    rig.now_us = 1000;
}

void rig_start(void)
{
    rig.backend_options.n_blocks[TIER_DEVICE] = rig.options.n_blocks;
    rig.backend_options.n_blocks[TIER_HOST] = rig.options.tier_blocks[TIER_HOST];
    rig.backend_options.offload = rig.options.offload;
    rig.backend_options.block_len = rig.options.block_len;
    rig.backend_options.max_batch_tokens = rig.options.max_batch_tokens;
    rig.backend_options.max_seqs = rig.options.max_seqs;
    ck_assert_int_eq(core_new(&rig.core, &rig.options), 0);
    ck_assert_int_eq(sim_backend_new(&rig.backend, &rig.backend_options), 0);
}

void rig_end(void)
{
    inspect_report_free(rig.report);
    rig.report = NULL;
    core_free(rig.core);
    sim_backend_free(rig.backend);
    rig.core = NULL;
    rig.backend = NULL;
}

void rig_set_up(void)
{
    rig_defaults();
    rig_start();
}

void rig_restart(void)
{
    rig_end();
    rig_start();
}

struct core_request rig_request(int32_t text, int32_t n_prompt, int32_t max_tokens)
{
    rig.sampling = (struct sampling){.repetition_penalty = 1.0f, .n_logprobs = -1};
    ck_assert_int_le(n_prompt, RIG_MAX_PROMPT);
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = text * 1000 + i;
    return (struct core_request){
        .id = ++rig.last_id,
        .client = 1,
        .priority = CORE_NORMAL,
        .n_prompt = n_prompt,
        .max_tokens = max_tokens,
        .n = 1,
        .prompt = prompt,
        .sampling = &rig.sampling,
    };
}

uint64_t rig_ask(struct core_request *r)
{
    ck_assert_int_eq(core_admit(rig.core, r, rig.now_us), CORE_OK);
    rig_look();
    return r->id;
}

uint64_t rig_ask_as(uint64_t client, enum core_priority priority, int32_t text, int32_t n_prompt,
                    int32_t max_tokens)
{
    struct core_request r = rig_request(text, n_prompt, max_tokens);

    r.client = client;
    r.priority = priority;
    return rig_ask(&r);
}

uint64_t rig_ask_of(uint64_t client, int32_t text, int32_t n_prompt, int32_t max_tokens)
{
    return rig_ask_as(client, CORE_NORMAL, text, n_prompt, max_tokens);
}

uint64_t rig_ask_for(int32_t text, int32_t n_prompt, int32_t max_tokens)
{
    return rig_ask_of(1, text, n_prompt, max_tokens);
}

void rig_look(void)
{
    int32_t n;
    const struct core_event *e = core_events(rig.core, &n);
    const char *broken = core_verify(rig.core);

    ck_assert_int_le(rig.n_events + n, RIG_MAX_EVENTS);
    if (n)
        memcpy(rig.events + rig.n_events, e, (size_t)n * sizeof(*e));
    rig.n_events += n;
    ck_assert_msg(!broken, "%s", broken);
}

static void give_masks(void)
{
    const char *wrong;

    if (!sim_backend_lacks_masks(rig.backend))
        return;
    wrong = sim_backend_mask(rig.backend, core_masks(rig.core));
    ck_assert_msg(!wrong, "%s", wrong);
}

const struct batch *rig_next(void)
{
    const struct batch *batch = NULL;
    const char *wrong;

    give_masks();
    rig.now_us += 1000;
    if (core_next(rig.core, &batch, rig.now_us) != CORE_OK)
        batch = NULL;
    rig_look();
    if (batch) {
        wrong = sim_backend_submit(rig.backend, batch);
        ck_assert_msg(!wrong, "%s", wrong);
    }
    return batch;
}

void rig_commit(void)
{
    struct step_result result;
    const char *wrong;

    give_masks();
    wrong = sim_backend_wait(rig.backend, &result);
    ck_assert_msg(!wrong, "%s", wrong);
    core_commit(rig.core, &result, rig.now_us);
    rig_look();
}

void rig_step(void)
{
    ck_assert_ptr_nonnull(rig_next());
    rig_commit();
}

void rig_steps(int n)
{
    for (int i = 0; i < n; i++)
        rig_step();
}

void rig_step_unverified(void)
{
    const struct batch *batch;
    struct step_result result;
    int32_t n;

    ck_assert_int_eq(core_next(rig.core, &batch, 1), CORE_OK);
    ck_assert_ptr_null(sim_backend_submit(rig.backend, batch));
    ck_assert_ptr_null(sim_backend_wait(rig.backend, &result));
    core_commit(rig.core, &result, 1);
    core_events(rig.core, &n);
}

void rig_run(void)
{
    for (int i = 0; core_busy(rig.core); i++) {
        ck_assert_int_lt(i, 10000);
        rig_step();
    }
}

int rig_inspect(const struct inspect_query *q, const int32_t *tokens, int32_t n)
{
    int rc;

    inspect_report_free(rig.report);
    rig.report = NULL;
    rc = core_inspect(&rig.report, rig.core, q, tokens, n, rig.now_us);
    if (rc == CORE_INSPECT_OK)
        ck_assert_int_eq(rig.report->kind, q->kind);
    rig_look(); /* looking breaks nothing */
    return rc;
}

void rig_look_into(enum inspect_kind kind)
{
    struct inspect_query q = {.kind = kind, .viewer = 99, .all = true, .limit = 1000, .map = true};

    ck_assert_int_eq(rig_inspect(&q, NULL, 0), CORE_INSPECT_OK);
}

int32_t rig_count(uint64_t id, enum core_event_type type)
{
    int32_t n = 0;

    for (int32_t i = 0; i < rig.n_events; i++)
        n += rig.events[i].request == id && rig.events[i].type == type;
    return n;
}

const struct core_event *rig_finished(uint64_t id)
{
    for (int32_t i = 0; i < rig.n_events; i++)
        if (rig.events[i].request == id && rig.events[i].type == CORE_FINISHED)
            return &rig.events[i];
    return NULL;
}

int32_t rig_token(uint64_t id, int32_t choice, int32_t i)
{
    for (int32_t k = 0; k < rig.n_events; k++)
        if (rig.events[k].request == id && rig.events[k].type == CORE_TOKEN &&
            rig.events[k].choice == choice && i-- == 0)
            return rig.events[k].token;
    ck_abort_msg("no such token");
    return -1;
}

struct core_stats rig_stats(void)
{
    struct core_stats s;

    core_stats(rig.core, &s);
    return s;
}
