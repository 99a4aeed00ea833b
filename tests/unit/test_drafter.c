/* test_drafter.c - the draft model: what it drafts is what it would sample, whatever became of
 * earlier drafts, and whoever shares its memory. nvllm-tiny drafts for itself. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/sequence.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/drafter.h"
#include "tests/tools/backend_driver.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

enum { MAX_LEN = 512, N_TEXTS = 40, VOCAB = 2048 };

static struct drafter *drafter;
static struct backend_options options;
static struct err e;

/* Texts as the core has them: a prompt of some length each. */
static struct request *requests[N_TEXTS];

static void open_drafter(int32_t max_seq_len, int32_t max_batch_tokens)
{
    options = (struct backend_options){.block_len = 16,
                                       .max_batch_tokens = max_batch_tokens,
                                       .max_seqs = 8,
                                       .max_seq_len = max_seq_len,
                                       .tier_bytes = {1 << 20},
                                       .n_threads = 2,
                                       .tp_size = 1};
    drafter_free(drafter);
    drafter = NULL;
    ck_assert_msg(drafter_new(&drafter, TEST_MODEL_DIR, &cpu_backend, &options, &e) == 0, "%s",
                  e.text);
}

static void set_up(void)
{
    srand(7);
    open_drafter(MAX_LEN, 256);
}

static void tear_down(void)
{
    drafter_free(drafter);
    drafter = NULL;
    for (int i = 0; i < N_TEXTS; i++) {
        request_free(requests[i]);
        requests[i] = NULL;
    }
}

static struct sequence *new_text(int i, int32_t n, float temperature)
{
    const struct sampling sampling = {.temperature = temperature,
                                      .top_p = 1.0f,
                                      .repetition_penalty = 1.0f,
                                      .n_logprobs = -1,
                                      .seed = 100 + (uint64_t)i};
    int32_t prompt[MAX_LEN];
    struct core_request r = {.id = 1 + (uint64_t)i,
                             .n_prompt = n,
                             .max_tokens = MAX_LEN,
                             .n = 1,
                             .prompt = prompt,
                             .sampling = &sampling};

    for (int32_t k = 0; k < n; k++)
        prompt[k] = rand() % 1900;
    request_free(requests[i]);
    requests[i] = request_new(&r, 1, 0);
    ck_assert(requests[i]);
    return &requests[i]->choices[0];
}

static struct core_draft_request draft_request_of(const struct sequence *s, int32_t n_drafts)
{
    return (struct core_draft_request){.request = s->request->id,
                                       .n_drafts = n_drafts,
                                       .n_tokens = sequence_n_tokens(s),
                                       .counter = (uint32_t)s->n_generated,
                                       .sampling = &s->sampling,
                                       .sequence = s};
}

static int ask(const struct sequence *s, int32_t n, struct draft *out)
{
    const struct core_draft_request request = draft_request_of(s, n);
    const int r = drafter_ask(drafter, &request, 1, VOCAB, out, &e);

    ck_assert_msg(r >= 0, "%s", e.text);
    return r;
}

/* What the model samples behind a prompt, by itself. */
static void sample(int32_t *out, const struct sequence *s, int32_t n)
{
    struct backend_options o = options;
    struct driver d = {.ops = &cpu_backend, .options = &o};
    struct drive_seq seq;
    struct drive_times times;
    struct model *model;
    int32_t prompt[MAX_LEN];

    o.kv_dtype = KV_DTYPE_BF16;
    o.tier_bytes[TIER_DEVICE] = 64 << 20;
    sequence_copy_tokens(s, 0, s->request->n_prompt, prompt);
    ck_assert_int_eq(model_open(&model, TEST_MODEL_DIR, &e), 0);
    ck_assert_int_eq(cpu_backend.open(&d.backend, model, &o, &e), 0);
    drive_seq_init(&seq, prompt, s->request->n_prompt, n, -1);
    seq.sampling = s->sampling;
    ck_assert_msg(drive(&d, &seq, 1, &times, &e) == 0, "%s", e.text);
    memcpy(out, seq.out, (size_t)n * sizeof(*out));
    drive_seq_deinit(&seq);
    cpu_backend.close(d.backend);
    model_close(model);
}

/* Each draft is what the model samples there: greedy, and with the request's seed and counters; on
 * from drafts that were all told, too. */
TEST(drafts_are_what_the_model_samples, .n = 4)
{
    struct sequence *s = new_text(0, _i < 2 ? 5 : 200, _i % 2 ? 0.9f : 0.0f);
    int32_t expected[3 * CORE_MAX_DRAFTS];
    struct draft draft;
    int32_t at = 0;

    sample(expected, s, 3 * CORE_MAX_DRAFTS);
    for (int32_t n = CORE_MAX_DRAFTS; at < 2 * CORE_MAX_DRAFTS; n = 1 + n % 7) {
        const int steps = ask(s, n, &draft);

        ck_assert_int_eq(draft.n, n);
        ck_assert_int_eq(steps, at > 0 ? n : 0); /* at first it has a prompt to read */
        ck_assert_mem_eq(draft.tokens, expected + at, (size_t)n * sizeof(int32_t));
        for (int32_t i = 0; i <= n; i++) /* and one more, as the model tells it */
            ck_assert(sequence_append(s, expected[at++]));
    }
}

/* Whatever of the drafts came, the next ones are those of a model that has read the text anew. */
TEST(wrong_drafts_leave_nothing)
{
    struct sequence *s = new_text(0, 60, 0.0f);
    struct draft all[12], fresh;

    for (int i = 0; i < 12; i++) {
        const int32_t n_right = i % 5;

        ask(s, 6, &all[i]);
        ck_assert_int_eq(all[i].n, 6);
        for (int32_t k = 0; k < n_right; k++)
            ck_assert(sequence_append(s, all[i].tokens[k]));
        ck_assert(sequence_append(s, (all[i].tokens[n_right] + 1) % 1900));
    }
    ask(s, 6, &all[0]);
    open_drafter(MAX_LEN, 256);
    ask(s, 6, &fresh);
    ck_assert_int_eq(fresh.n, 6);
    ck_assert_mem_eq(fresh.tokens, all[0].tokens, 6 * sizeof(int32_t));
}

/* More texts than it can hold, some at a time: those asked for lose nothing to each other, others
 * are read again. */
TEST(texts_share_its_memory)
{
    enum { AT_ONCE = 5, DRAFTS = 4 };
    struct draft alone[N_TEXTS], drafts[DRAFTER_SEQS];
    struct core_draft_request asked[DRAFTER_SEQS];

    for (int i = 0; i < N_TEXTS; i++) {
        new_text(i, 20 + 3 * i % 70, i % 2 ? 0.8f : 0.0f);
        ask(&requests[i]->choices[0], DRAFTS, &alone[i]);
        ck_assert_int_eq(alone[i].n, DRAFTS);
    }
    for (int round = 0; round < 30; round++) {
        const int n = 1 + rand() % AT_ONCE, first = rand() % N_TEXTS;

        for (int i = 0; i < n; i++)
            asked[i] =
                draft_request_of(&requests[(first + 7 * i) % N_TEXTS]->choices[0], 1 + i % DRAFTS);
        ck_assert_int_ge(drafter_ask(drafter, asked, n, VOCAB, drafts, &e), 0);
        for (int i = 0; i < n; i++) {
            ck_assert_int_eq(drafts[i].n, 1 + i % DRAFTS);
            ck_assert_mem_eq(drafts[i].tokens, alone[(first + 7 * i) % N_TEXTS].tokens,
                             (size_t)drafts[i].n * sizeof(int32_t));
        }
    }
}

/* Where two texts cannot both be held, one has drafts and keeps them. */
TEST(no_room_for_two)
{
    struct core_draft_request asked[2];
    struct draft drafts[2];

    new_text(0, 300, 0.0f);
    new_text(1, 300, 0.0f);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++)
            asked[k] = draft_request_of(&requests[k]->choices[0], 2);
        ck_assert_int_ge(drafter_ask(drafter, asked, 2, VOCAB, drafts, &e), 0);
        ck_assert_int_eq(drafts[0].n, i > 0 ? 2 : 0); /* 300 tokens are two steps */
        ck_assert_int_eq(drafts[1].n, 0);
    }
}

/* A long text is read a step a call; one that is too long, or that holds an id that the model does
 * not know, not at all. */
TEST(long_texts)
{
    struct draft draft, whole;
    struct sequence *s = new_text(0, 200, 0.0f);

    ask(s, 3, &whole);
    open_drafter(MAX_LEN, 64);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(ask(s, 3, &draft), 0);
        ck_assert_int_eq(draft.n, i < 3 ? 0 : 3);
        ck_assert_int_eq(draft.n_read, i < 3 ? 64 * (i + 1) : 200);
    }
    ck_assert_mem_eq(draft.tokens, whole.tokens, 3 * sizeof(int32_t));
    ask(new_text(1, MAX_LEN - 3, 0.0f), 3, &draft);
    ck_assert_int_eq(draft.n, 0); /* it would take eight calls */
    ask(new_text(2, MAX_LEN - 2, 0.0f), 3, &draft);
    ck_assert_int_eq(draft.n, 0);
    ck_assert(sequence_append(s, VOCAB + 5));
    for (int i = 0; i < 4; i++) { /* others have had its blocks */
        ask(s, 3, &draft);
        ck_assert_int_eq(draft.n, 0);
        ck_assert_int_eq(draft.n_read, i < 3 ? 64 * (i + 1) : -1);
    }
}

/* Drafts end where the first model has no such id. */
TEST(unknown_ids_end_drafts)
{
    struct draft all, some;
    struct sequence *s = new_text(0, 40, 3.0f);
    struct core_draft_request request;
    int32_t known;

    ask(s, 8, &all);
    for (known = 0; known < 8 && all.tokens[known] <= all.tokens[0]; known++)
        ;
    request = draft_request_of(s, 8);
    ck_assert(known > 0 && known < 8);
    ck_assert_int_ge(drafter_ask(drafter, &request, 1, all.tokens[0] + 1, &some, &e), 0);
    ck_assert_int_eq(some.n, known);
    ask(s, 8, &some);
    ck_assert_int_eq(some.n, 8);
    ck_assert_mem_eq(some.tokens, all.tokens, 8 * sizeof(int32_t));
}

static void write_tokenizer(const char *from, const char *to)
{
    char path[4096], *text = NULL, *at;
    size_t n = 0;
    FILE *f;

    snprintf(path, sizeof(path), "%s/tokenizer.json", TEST_MODEL_DIR);
    f = fopen(path, "re");
    ck_assert(f && getdelim(&text, &n, 0, f) > 0);
    fclose(f);
    at = strstr(text, from);
    ck_assert(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    f = fopen(path, "we");
    ck_assert(f && fputs(text, f) >= 0);
    fclose(f);
    free(text);
}

static void count_call(void *n_calls, double done)
{
    (void)done;
    ++*(int *)n_calls;
}

/* While it is read, at the start and when it wakes, the engine thread counts as alive; it is no
 * progress of the first model. */
TEST(reading_it_is_a_sign_of_life)
{
    _Atomic uint64_t beat = 1;
    int n_calls = 0;

    options.beat = &beat;
    options.progress = count_call;
    options.progress_ctx = &n_calls;
    drafter_free(drafter);
    drafter = NULL;
    ck_assert_int_eq(drafter_new(&drafter, TEST_MODEL_DIR, &cpu_backend, &options, &e), 0);
    ck_assert_uint_gt(beat, 1);
    ck_assert_int_eq(drafter_sleep(drafter, &e), 0);
    beat = 1;
    ck_assert_int_eq(drafter_wake(drafter, &e), 0);
    ck_assert_uint_gt(beat, 1);
    ck_assert_uint_eq(beat % 2, 1);
    ck_assert_int_eq(n_calls, 0);
    drafter_free(drafter); /* before the counter that it adds to */
    drafter = NULL;
}

/* Another vocabulary, several ranks, and no speculation are refused by name. */
TEST(what_does_not_fit_is_refused)
{
    struct tokenizer *tokenizer;
    struct backend_options o = options;

    ck_assert_int_eq(tokenizer_load(&tokenizer, TEST_MODEL_DIR, &e), 0);
    ck_assert_int_eq(drafter_check_vocabulary(TEST_MODEL_DIR, tokenizer, &e), 0);
    make_dir();
    write_tokenizer("<|im_start|>", "<|im_other|>");
    ck_assert_int_eq(drafter_check_vocabulary(dir, tokenizer, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "model.draft: "));
    ck_assert_ptr_nonnull(strstr(e.text, "the same vocabulary"));
    remove_dir();
    ck_assert_int_lt(drafter_check_vocabulary(dir, tokenizer, &e), 0);
    tokenizer_free(tokenizer);
    ck_assert_int_eq(drafter_check_options(&o, true, &e), 0);
    ck_assert_int_eq(drafter_check_options(&o, false, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "scheduler.speculation"));
    o.tp_size = 2;
    ck_assert_int_eq(drafter_check_options(&o, true, &e), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, "model.tensor_parallel"));
    o = options;
    o.n_processes = 2;
    ck_assert_int_eq(drafter_check_options(&o, true, &e), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, "cluster.world_size"));
}

RUN_TESTS("drafter", set_up, tear_down)
