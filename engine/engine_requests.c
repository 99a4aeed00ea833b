/* engine_requests.c - a request's way into the core and out of it: what waits in the inbox is
 * admitted, refused or cancelled, and what the core has ended gets its terminal event. On the
 * engine thread. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdio.h>

#include "engine/util/clock.h"
#include "engine/util/must.h"

_Static_assert(SAMPLING_MAX_REQUEST_STOP_IDS + MODEL_MAX_EOS <= SAMPLING_MAX_STOP_IDS,
               "a request's stop ids and the model's end ids fit one list");

/* Slots that the request may occupy. */
static int32_t pool_tokens(const struct engine *g, const struct core_request *r)
{
    int64_t slots = (int64_t)core_room(g->core, r) * g->options.backend_options.block_len;

    return slots > INT32_MAX ? INT32_MAX : (int32_t)slots;
}

/* The default of max_tokens: as many as the sequence and the pool can hold. The last sampled token
 * needs no slot, so the pool holds one more than it has slots. */
static int32_t room_for(const struct engine *g, const struct core_request *r)
{
    int32_t by_len = g->status.max_seq_len - r->n_prompt;
    int32_t by_pool = pool_tokens(g, r) - r->n_prompt + 1;

    return by_len < by_pool ? by_len : by_pool;
}

/* The request's stop ids and, unless it ignores them, the model's. */
static int32_t join_stop_ids(int32_t *ids, const struct engine *g, const struct engine_request *r)
{
    const struct model_defaults *d = model_defaults(g->model);
    int32_t n = 0;

    for (int32_t i = 0; !r->ignore_eos && i < d->n_eos; i++)
        ids[n++] = d->eos[i];
    must(r->sampling.n_stop_ids <= SAMPLING_MAX_REQUEST_STOP_IDS);
    for (int32_t i = 0; i < r->sampling.n_stop_ids; i++)
        ids[n++] = r->sampling.stop_ids[i];
    return n;
}

static void refuse(struct engine *g, struct job *j, int r, const struct core_request *cr)
{
    const bool fewer_would_do = j->request.max_tokens && cr->n_prompt < g->status.max_seq_len;
    const char *field = fewer_would_do ? "max_tokens" : job_input(j);
    char what[80];

    if (cr->pooling != CORE_POOL_NONE)
        snprintf(what, sizeof(what), "a text of %d tokens exceeds", cr->n_prompt);
    else if (fewer_would_do)
        snprintf(what, sizeof(what), "a prompt of %d tokens and max_tokens %d exceed", cr->n_prompt,
                 cr->max_tokens);
    else
        snprintf(what, sizeof(what), "a prompt of %d tokens and an answer exceed", cr->n_prompt);
    if (r == CORE_E_TOO_LONG)
        job_fail(j, &g->out, ENGINE_E_TOO_LONG, field, "%s the longest sequence, %d tokens", what,
                 g->status.max_seq_len);
    else if (r == CORE_E_NEVER_FITS)
        job_fail(j, &g->out, ENGINE_E_TOO_LONG, field,
                 "%s the KV cache, %d tokens (cache.kv_memory, or cache.host_memory beyond it)",
                 what, pool_tokens(g, cr));
    else
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
}

/* What the answer grows in. */
static int new_answer(struct engine *g, struct job *j)
{
    if (j->request.kind == ENGINE_GENERATE)
        return generation_new(&j->generation, &j->request, g->tokenizer, &j->answer);
    j->embedding = embedding_new(g->status.backend.sum_dim);
    return j->embedding ? 0 : -ENOMEM;
}

/* Sets the fields that an embed request has in place of sampling. */
static void embed(struct core_request *cr, struct sampling *s, const struct embedder *how)
{
    *s = (struct sampling){.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1};
    cr->max_tokens = cr->n = 1;
    cr->pooling = how->pooling == POOLING_MEAN ? CORE_POOL_ALL : CORE_POOL_LAST;
}

/* As core_fits(), once offloading is allowed where it is needed and ready. -EAGAIN: it is needed,
 * not ready yet, and the job has failed. */
static int fits(struct engine *g, struct job *j, const struct core_request *cr)
{
    int r = core_fits(g->core, cr);

    if (r != CORE_E_NEVER_FITS || !g->status.backend.offloads)
        return r;
    if (!g->status.backend.may_offload)
        engine_read_memory(g);
    core_set_offload(g->core, g->status.backend.may_offload);
    r = core_fits(g->core, cr);
    if (r != CORE_E_NEVER_FITS || g->status.backend.may_offload)
        return r;
    job_fail(j, &g->out, ENGINE_E_UNAVAILABLE, NULL,
             "cache.host_memory is not ready yet, and the request is too long for the device; try "
             "again in a few seconds");
    return -EAGAIN;
}

/* 0, also where the job has failed; or a negative errno. */
static int admit(struct engine *g, struct job *j, struct err *e)
{
    const struct engine_request *r = &j->request;
    int32_t stop_ids[SAMPLING_MAX_STOP_IDS];
    struct sampling sampling = r->sampling;
    struct core_request cr = {
        .id = r->id,
        .client = r->client,
        .priority = r->priority,
        .n_prompt = (int32_t)j->prompt.n,
        .max_tokens = r->max_tokens ? r->max_tokens : 1,
        .n = r->n,
        .prompt = j->prompt.ids,
        .sampling = &sampling,
        .cache_salt = r->cache_salt,
        .arrival_us = j->arrival_us,
        .deadline_us = r->deadline_us,
        .masks = j->guide != NULL,
    };
    int ret;

    if (r->kind == ENGINE_EMBED) {
        embed(&cr, &sampling, model_embedder(g->model));
    } else {
        if (!r->max_tokens)
            cr.max_tokens = room_for(g, &cr);
        if (!r->max_tokens && r->max_tokens_limit && cr.max_tokens > r->max_tokens_limit)
            cr.max_tokens = r->max_tokens_limit;
        if (cr.max_tokens < 1)
            cr.max_tokens = 1; /* the core tells which limit is exceeded */
        sampling.n_stop_ids = join_stop_ids(stop_ids, g, r);
        sampling.stop_ids = stop_ids;
    }
    ret = fits(g, j, &cr);
    if (ret == -EAGAIN)
        return 0;
    if (ret == CORE_OK) {
        const int woken = engine_wake_for(g, j, e);

        if (woken <= 0)
            return woken;
        ret = new_answer(g, j);
    }
    if (ret == CORE_OK)
        ret = core_admit(g->core, &cr, clock_us());
    if (ret != CORE_OK) {
        refuse(g, j, ret, &cr);
    } else {
        job_release(j); /* the core has its own copy */
        if (j->guide)
            ret = guide_begin(g, j, sampling.stop_ids, sampling.n_stop_ids);
        if (ret < 0) {
            generation_fail(j->generation, 0, ret);
            core_cancel(g->core, r->id, CORE_REASON_CANCELLED, clock_us());
        }
    }
    return 0;
}

void engine_finish(struct engine *g, struct job *j, const struct core_usage *usage)
{
    const char *format = j->request.format.kind != FORMAT_NONE ? "response_format" : "chat.tools";
    const int error = generation_error(j->generation);

    j->terminal.usage = *usage;
    j->terminal.usage.completion_tokens = generation_n_tokens(j->generation);
    engine_count_end(g, j);
    if (error == -EDQUOT)
        job_fail(j, &g->out, ENGINE_E_MEMORY_LIMIT, NULL,
                 "the answer takes more memory than the limits allow");
    else if (error == -ENOENT)
        job_fail(j, &g->out, ENGINE_E_UNSUPPORTED, format,
                 "no token of the vocabulary goes on with the text");
    else if (error == -E2BIG)
        job_fail(j, &g->out, ENGINE_E_INVALID, format, "too complex");
    else if (error < 0)
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    else
        job_end(j, ENGINE_DONE, &g->out);
}

void engine_finish_embedding(struct engine *g, struct job *j, const struct core_event *ev)
{
    const int32_t dim = g->status.backend.sum_dim;
    const int32_t n = j->request.dimensions ? j->request.dimensions : dim;

    j->terminal.usage = ev->usage;
    engine_count_end(g, j);
    if (ev->reason == CORE_REASON_CANCELLED) {
        job_fail(j, &g->out, ENGINE_E_CANCELLED, NULL, "cancelled");
    } else if (ev->reason == CORE_REASON_DEADLINE) {
        job_fail(j, &g->out, ENGINE_E_DEADLINE, NULL, "deadline_ms is over");
    } else if (ev->reason == CORE_REASON_NUMERICS) {
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "the model gives NaN or Inf");
    } else {
        j->terminal.embedding =
            embedding_take(j->embedding, model_embedder(g->model), ev->usage.prompt_tokens, n);
        j->terminal.n_embedding = (size_t)n;
        j->terminal.bytes += (size_t)n * sizeof(float);
        if (j->terminal.embedding)
            job_end(j, ENGINE_EMBEDDING, &g->out);
        else
            job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    }
}

/* Ends a job that was cancelled before it reached the core; each choice gets its reason. */
static void finish_unadmitted(struct engine *g, struct job *j)
{
    struct core_event ev = {.type = CORE_CHOICE_DONE, .reason = CORE_REASON_CANCELLED};
    struct core_usage usage = {.arrival_us = j->arrival_us, .end_us = clock_us()};

    if (j->request.kind != ENGINE_GENERATE) {
        job_fail(j, &g->out, ENGINE_E_CANCELLED, NULL, "cancelled");
    } else if (generation_new(&j->generation, &j->request, g->tokenizer, &j->answer) < 0) {
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    } else {
        for (; ev.choice < j->request.n; ev.choice++)
            generation_choice_done(j->generation, &ev, &g->out);
        engine_finish(g, j, &usage);
    }
}

struct job *engine_next_job(struct engine *g, bool *is_new)
{
    struct job *j = NULL;

    pthread_mutex_lock(&g->lock);
    if (!list_empty(&g->inbox)) {
        j = CONTAINER_OF(g->inbox.next, struct job, link);
        list_remove(&j->link);
        *is_new = j->phase == JOB_IN_INBOX;
        g->n_taken_in += *is_new && engine_computes(j->request.kind);
        j->phase = JOB_IN_ENGINE;
    }
    pthread_mutex_unlock(&g->lock);
    return j;
}

int engine_take_in(struct engine *g, struct err *e)
{
    struct job *j;
    bool is_new;
    int r = 0;

    pthread_mutex_lock(&g->lock);
    if (g->new_shares) {
        core_set_shares(g->core, g->shares, g->n_shares);
        g->shares = NULL;
        g->new_shares = false;
    }
    pthread_mutex_unlock(&g->lock);
    while (r == 0 && (j = engine_next_job(g, &is_new))) {
        if (is_new && j->cancelled) {
            finish_unadmitted(g, j);
        } else if (is_new && j->request.kind == ENGINE_INSPECT) {
            work_queue_add(&g->inspects, &j->work, j->request.client);
        } else if (is_new) {
            r = admit(g, j, e);
        } else if (!list_empty(&j->work.link)) {
            list_remove(&j->work.link);
            job_fail(j, &g->out, ENGINE_E_CANCELLED, NULL, "cancelled");
        } else if (j == g->trace_job) {
            engine_end_trace(g);
        } else {
            core_cancel(g->core, j->request.id, CORE_REASON_CANCELLED, clock_us());
        }
    }
    return r;
}
