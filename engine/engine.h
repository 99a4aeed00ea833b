/* engine.h - the engine as the daemon sees it: requests go in, lists of events come out.
 *
 * Behind it work the tokenizer pool (rendering, encoding) and the engine thread (core, backend,
 * detokenizing). One thread, the daemon's loop, calls all functions here; engine_state,
 * engine_status and engine_metrics may be called by any. None of them waits for a step, loads or
 * encodes. Events carry request ids, never pointers of the caller. */
#ifndef NVLLM_ENGINE_ENGINE_H
#define NVLLM_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/text/chat.h"
#include "engine/core/core.h"
#include "engine/util/err.h"
#include "engine/core/fair.h"
#include "engine/core/prefix_cache.h"
#include "engine/grammar/format.h"
#include "engine/inspect.h"
#include "engine/metrics.h"
#include "engine/model/model.h"
#include "engine/sampling.h"
#include "engine/text/transcript.h"
#include "engine/trace.h"
#include "engine/util/text.h"

struct engine;
struct engine_event;

struct engine_options {
    const char *model_folder;
    enum dtype quantize;                    /* as for model_quantize() */
    const char *chat_template;              /* a file instead of the folder's; NULL: none */
    const struct backend_ops *backend;      /* stays valid until engine_free */
    struct backend_options backend_options; /* progress: the engine's; max_seq_len 0: the model's */
    int32_t max_preemptions;
    int32_t max_step_ms; /* target for a step with prompts, see step_cost.h; 0: unbounded */
    bool prefix_cache;
    bool share_all;
    bool speculate;                            /* propose draft tokens */
    const char *draft_folder;                  /* of a model that makes some; NULL: none */
    uint8_t cache_secret[PREFIX_CACHE_SECRET]; /* of cache_secret_load() */
    uint64_t disk_bytes;                       /* of KV blocks on disk; 0: none */
    const char *disk_folder;                   /* with disk_bytes */
    void (*warn)(const char *text); /* of problems with the disk tier; called on any thread */
    int32_t n_tokenizer_threads;    /* >= 2: one takes short texts only */
    int32_t idle_sleep_s;           /* as engine_set_idle_sleep() */
    size_t event_bytes;             /* untaken events at which the engine pauses; 0: no limit */
};

struct engine_packed {
    void *data; /* of malloc() */
    size_t bytes;
};

/* Packs the pool's answers, which may be large, on the pool's threads: pack is called with an event
 * of type ENGINE_TOKENS (ids, n_ids) or ENGINE_TEXT (text). -EMSGSIZE: the answer is too large;
 * -ENOMEM. */
struct engine_packer {
    int (*pack)(void *ctx, struct engine_packed *out, const struct engine_event *answer,
                const struct tokenizer *tokenizer);
    void *ctx;
};

enum engine_state {
    ENGINE_LOADING,
    ENGINE_READY,
    ENGINE_FAILED, /* the load failed or the backend died: every request fails */
};

enum engine_kind {
    ENGINE_GENERATE,
    ENGINE_EMBED,      /* a prompt or prompt_ids to an embedding */
    ENGINE_TOKENIZE,   /* a prompt to ids */
    ENGINE_DETOKENIZE, /* prompt_ids to text */
    ENGINE_RENDER,     /* a chat to the text of its prompt */
    ENGINE_INSPECT,    /* see inspect.h; uses only id, input, query, owner and release */
};

/* The core computes it for the client. */
static inline bool engine_computes(enum engine_kind kind)
{
    return kind == ENGINE_GENERATE || kind == ENGINE_EMBED;
}

enum engine_input { ENGINE_PROMPT, ENGINE_PROMPT_IDS, ENGINE_CHAT };

enum { ENGINE_MAX_STOPS = 16 };

/* One request. What its pointers name must stay until release(owner) is called, once, from any
 * thread and before the terminal event can be taken; the owner itself until then. */
struct engine_request {
    uint64_t id; /* never used twice */
    uint64_t client;
    enum engine_kind kind;
    enum engine_input input;
    struct text prompt;
    const int32_t *prompt_ids; /* checked by the caller: each is in 0 .. vocab_size - 1 */
    size_t n_prompt_ids;
    const struct chat *chat;
    struct transcript_prompt *turn; /* of a chat: keeps what was said, and stays until the terminal
                                     * event; NULL: the prompt is encoded as a whole */
    bool special; /* TOKENIZE: special tokens in the text are matched, as GENERATE always does;
                   * DETOKENIZE: they are left out */
    void *owner;
    void (*release)(void *owner);
    const char *prompt_name; /* EMBED: of the model's prompt before a text; NULL: the default one */
    int32_t dimensions;      /* EMBED: leading values; 0: all */
    struct inspect_query query; /* INSPECT; the input is the prompt of CACHE_PIN, EXPLAIN_PROMPT */

    /* GENERATE and EMBED */
    enum core_priority priority;
    int32_t prompt_tokens_limit; /* a longer prompt is ENGINE_E_PROMPT_LIMIT; 0: no limit */
    struct text cache_salt;
    uint64_t deadline_us; /* CLOCK_MONOTONIC; 0: none */

    /* GENERATE, checked by the caller as sampling.h says. */
    struct sampling sampling; /* stop_ids: the request's own; the engine adds the model's end ids */
    bool ignore_eos;
    struct text stops[ENGINE_MAX_STOPS];
    int32_t n_stops;
    int32_t max_tokens;       /* 0: as many as fit, up to max_tokens_limit */
    int32_t max_tokens_limit; /* 0: no limit */
    int32_t n;
    bool stream; /* false: one ENGINE_DELTA a choice, at its end */
    bool keep_special;
    bool raw_text;               /* of a chat: reasoning and tool calls stay in the text */
    struct format_source format; /* what the text must be; reasoning is the engine's. With a kind
                                  * there is no ignore_eos */

    /* Charges the owner for bytes that the answer takes until the terminal event. False ends the
     * request with ENGINE_E_MEMORY_LIMIT. Called on the engine thread; NULL: no limit. */
    bool (*charge)(void *owner, size_t bytes);
};

enum engine_error {
    ENGINE_E_INVALID,      /* a bad value; message says which */
    ENGINE_E_TOO_LONG,     /* prompt and max_tokens can never fit */
    ENGINE_E_PROMPT_LIMIT, /* more than prompt_tokens_limit: usage.prompt_tokens */
    ENGINE_E_UNAVAILABLE,  /* loading; asleep, without the memory to wake; not idle, to sleep */
    ENGINE_E_UNSUPPORTED,  /* no chat template, no embeddings, no LM head */
    ENGINE_E_DENIED,       /* inspect: the object belongs to another client */
    ENGINE_E_DEADLINE,     /* deadline_us; generate ends with ENGINE_DONE instead */
    ENGINE_E_CANCELLED,    /* by engine_cancel; generate ends with ENGINE_DONE instead */
    ENGINE_E_ANSWER_LIMIT, /* the packer returned -EMSGSIZE */
    ENGINE_E_MEMORY_LIMIT, /* charge returned false */
    ENGINE_E_INTERNAL,     /* out of memory; the backend died */
};

enum engine_event_type {
    ENGINE_DELTA,     /* tokens and text of one choice */
    ENGINE_DONE,      /* of generate, terminal */
    ENGINE_EMBEDDING, /* of embed, terminal */
    ENGINE_ERROR,     /* of anything, terminal */
    ENGINE_TOKENS,    /* of tokenize, terminal */
    ENGINE_TEXT,      /* of detokenize and render, terminal */
    ENGINE_REPORT,    /* of inspect, terminal */
    ENGINE_TRACE,     /* of inspect's TRACE: records */
};

struct engine_event {
    struct engine_event *next;
    uint64_t request;
    enum engine_event_type type;
    int32_t choice;
    enum core_reason reason; /* DELTA: not NONE on the choice's last */
    size_t n_ids;
    int32_t *ids;                    /* [n_ids] DELTA */
    struct token_logprobs *logprobs; /* [n_ids] DELTA, or NULL */
    struct text text;                /* DELTA */
    struct text reasoning;           /* DELTA */
    struct chat_tool_call *calls;    /* [n_calls] DELTA; complete, with ids drawn at random */
    size_t n_calls;
    float *embedding; /* [n_embedding] EMBEDDING; freed with the event */
    size_t n_embedding;
    struct core_usage usage;            /* DONE, EMBEDDING */
    enum engine_error error;            /* ERROR */
    const char *field;                  /* ERROR: static, or in the event's memory; NULL: none */
    struct err *message;                /* ERROR: in the event's memory */
    struct inspect_report *report;      /* REPORT: set it to NULL to keep it */
    const struct trace_record *records; /* [n_records] TRACE */
    size_t n_records;
    size_t bytes;                /* of the event's memory, report and packed */
    struct engine_packed packed; /* TOKENS, TEXT; as report */
};

struct engine_status {
    enum engine_state state;
    double progress;             /* of loading, 0 .. 1 */
    struct err failure;          /* with ENGINE_FAILED */
    int failure_code;            /* the same: negative errno */
    struct backend_info backend; /* from READY on, with what follows; of when it was last idle */
    int32_t n_ranks;             /* with a device of their own; 0: there is one device */
    const struct backend_device *ranks; /* the devices of this struct's backend */
    uint64_t draft_bytes;               /* of the draft model: not in backend.other_bytes */
    const char *weights, *kv_dtype;     /* what they are kept as; NULL before READY */
    struct core_stats core;
    int32_t block_len;
    int32_t max_seq_len;
    int32_t embedding_dim; /* 0: there are no embeddings */
    uint64_t n_encoding;   /* generate and embed requests that have not reached the scheduler */
    enum sleep_level asleep;
    uint64_t beat; /* grows while the engine thread or its backend makes progress; 0: no work */
};

/* Reads the secret from the file cache-secret in the folder, or draws one and creates the file
 * where there is none. folder NULL: draws one that is kept nowhere. Negative errno with a text: the
 * file is refused unless it is a regular one of the right size that its owner alone can access. */
int cache_secret_load(uint8_t secret[PREFIX_CACHE_SECRET], const char *folder, struct err *e);

/* Whether cache_secret_load() would succeed; changes nothing. Errors as above. */
int cache_secret_check(const char *folder, struct err *e);

/* Starts the threads, which load the model. -ENOMEM, -EAGAIN, … */
int engine_new(struct engine **out, const struct engine_options *options, struct err *e);

/* Checks the configured lengths against the model's, and that the ranks can divide it, as loading
 * does. -EINVAL, -ENOTSUP. */
int engine_check_options(const struct backend_options *options, const struct model *model,
                         struct err *e);

/* Ends the threads and drops all requests without events. Takes NULL. */
void engine_free(struct engine *g);

/* Call it before the first request of TOKENIZE, DETOKENIZE or RENDER. */
void engine_set_packer(struct engine *g, const struct engine_packer *packer);

/* Readable when engine_take may return events, and when the state or the progress has changed. */
int engine_event_fd(const struct engine *g);

/* All events since the last call, oldest first, or NULL; free them with engine_events_free. */
struct engine_event *engine_take(struct engine *g);
void engine_events_free(struct engine_event *list);

enum engine_state engine_state(const struct engine *g);
enum sleep_level engine_asleep(const struct engine *g);
void engine_status(const struct engine *g, struct engine_status *out);
void engine_metrics(const struct engine *g, struct engine_metrics *out);

/* From READY on; NULL before. */
const struct model *engine_model(const struct engine *g);
/* NULL also where the model has none that is supported. */
const struct chat_template *engine_chat_template(const struct engine *g);

/* Bytes that a generate or embed request takes before its first token: more with more choices,
 * stops and biases. The engine is READY. */
uint64_t engine_request_bytes(const struct engine *g, const struct engine_request *r);

/* Answered by events, the last of which is terminal. The request is copied, not what it points to.
 * -ENOMEM, the only failure: nothing was taken and release is not called. */
int engine_start(struct engine *g, const struct engine_request *r);

/* Ends a generate request with ENGINE_DONE (reason CANCELLED): within a step where it runs or
 * waits, or once a thread of the tokenizer pool has taken it, if it is not encoded yet. Any other
 * request ends with ENGINE_E_CANCELLED unless it has begun; a pin that is computed ends within a
 * step. An unknown id, or one cancelled before, is ignored. It takes no memory and cannot fail. */
void engine_cancel(struct engine *g, uint64_t id);

/* Sets the users whose share differs from the default, from the next step on. Copied. -ENOMEM. */
int engine_set_shares(struct engine *g, const struct fair_share *shares, int32_t n);

/* Sets after how many seconds without a request the engine sleeps by itself; 0: never. The memory
 * of the device's blocks is given back too if the tier below has room for all of them. */
void engine_set_idle_sleep(struct engine *g, int32_t seconds);

#endif
