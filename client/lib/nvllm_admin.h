/* nvllm_admin.h - inspect and control nvllmd: requests and why they wait, blocks, the prefix cache,
 * draining, reloading. nvllm_client.h includes it and states the rules for both.
 *
 * Users see and change what is their own; admins (root, the daemon's own user, members of its admin
 * group, and whoever connects to its admin socket) see and change everything. options may be NULL
 * everywhere. Returned structs are made by the library and grow at their end, which is why lists
 * are arrays of pointers. Texts are never NULL. */
#ifndef NVLLM_ADMIN_H
#define NVLLM_ADMIN_H

#include "nvllm_client.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- requests and blocks */

enum nvllm_request_state {
    NVLLM_REQUEST_UNKNOWN = 0,
    NVLLM_REQUEST_ENCODING = 1, /* being rendered or tokenized */
    NVLLM_REQUEST_WAITING = 2,
    NVLLM_REQUEST_HELD = 3, /* waits until another has computed a shared prefix */
    NVLLM_REQUEST_PREFILL = 4,
    NVLLM_REQUEST_DECODE = 5,
    NVLLM_REQUEST_PREEMPTED = 6,
    NVLLM_REQUEST_ENDING = 7, /* ended; its last events are being sent */
};

/* "encoding", "waiting", …, "unknown". */
const char *nvllm_request_state_name(enum nvllm_request_state state);

/* "normal", "low", "high". */
const char *nvllm_priority_name(enum nvllm_priority priority);

struct nvllm_request_info {
    uint64_t request; /* the daemon's number, for nvllm_cancel_request() and nvllm_explain() */
    uint32_t uid;
    int32_t pid; /* of the process that connected */
    enum nvllm_request_state state;
    enum nvllm_priority priority;
    uint32_t place; /* in the queue, 1 is next; 0: does not wait */
    uint32_t choices;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t computed_tokens; /* of the prompt, cached ones included */
    uint32_t generated_tokens;
    uint32_t max_tokens;
    uint32_t blocks;
    uint32_t preemptions;
    uint64_t age_us;                        /* since it arrived */
    uint64_t run_us;                        /* since its first step; 0: none yet */
    double tokens_per_s;                    /* generated since the first token */
    uint32_t draft_tokens, accepted_tokens; /* as in nvllm_status */
    uint32_t model_draft_tokens, model_accepted_tokens;
};

struct nvllm_request_list {
    const struct nvllm_request_info *const *requests; /* [n_requests] running ones first, then in
                                                       * queue order */
    size_t n_requests;
    uint32_t total; /* that this user may see, listed or not */
};

struct nvllm_list_options {
    size_t size;
    uint32_t limit; /* 0: as many as the daemon lists at a time */
};

void nvllm_list_options_init_size(struct nvllm_list_options *options, size_t size);
#define nvllm_list_options_init(options)                                                           \
    nvllm_list_options_init_size((options), sizeof(struct nvllm_list_options))

enum nvllm_code nvllm_list_requests(struct nvllm_client *client,
                                    const struct nvllm_list_options *options, int timeout_ms,
                                    const struct nvllm_request_list **list,
                                    struct nvllm_error *err);

/* Cancels a request of any connection by the daemon's number, and waits for the answer. *found
 * (found may be NULL) is false if the request had ended already. */
enum nvllm_code nvllm_cancel_request(struct nvllm_client *client, uint64_t request, int timeout_ms,
                                     bool *found, struct nvllm_error *err);

struct nvllm_uid_blocks {
    uint32_t uid;
    uint32_t used;
    uint32_t requests;
};

struct nvllm_request_blocks {
    uint64_t request;
    uint32_t uid;
    uint32_t used;
    uint32_t shared; /* of those, also held by other requests */
};

struct nvllm_blocks {
    uint32_t total;
    uint32_t used;   /* held by a sequence, or pinned */
    uint32_t cached; /* free, with content that can still be found */
    uint32_t free;
    uint32_t pinned;    /* of used: held by nothing but pins */
    uint32_t block_len; /* tokens */
    uint64_t block_bytes;
    const struct nvllm_uid_blocks *const *uids; /* [n_uids] */
    size_t n_uids;
    const struct nvllm_request_blocks *const *requests; /* [n_requests] */
    size_t n_requests;
    struct nvllm_text map; /* if requested: a byte per block, 'f' free, 'c' cached, 'u' used
                            * by one, 's' shared, 'p' pinned; except to admins, 'o' for what
                            * belongs to other users */
};

struct nvllm_blocks_options {
    size_t size;
    bool map; /* false */
};

void nvllm_blocks_options_init_size(struct nvllm_blocks_options *options, size_t size);
#define nvllm_blocks_options_init(options)                                                         \
    nvllm_blocks_options_init_size((options), sizeof(struct nvllm_blocks_options))

enum nvllm_code nvllm_get_blocks(struct nvllm_client *client,
                                 const struct nvllm_blocks_options *options, int timeout_ms,
                                 const struct nvllm_blocks **blocks, struct nvllm_error *err);

/* ---- the prefix cache */

/* A prefix: the blocks from the first token to one that no cached block continues. */
struct nvllm_cached_prefix {
    uint32_t uid;
    uint32_t tokens;
    uint32_t blocks;
    uint64_t hits;    /* times its first block was found */
    uint64_t age_ms;  /* since its last block was written */
    uint64_t idle_ms; /* since it was last found or written */
    uint32_t holders; /* sequences that hold its last block */
    bool pinned;
    const int32_t *head_ids; /* [n_head_ids] its first tokens; none of others' prefixes */
    size_t n_head_ids;
    uint32_t host_blocks; /* of blocks, those that would come from host memory */
    uint32_t disk_blocks; /* and from disk */
};

struct nvllm_cache {
    const struct nvllm_cached_prefix *const *prefixes; /* [n_prefixes] most recently used first */
    size_t n_prefixes;
    uint32_t total; /* prefixes that this user may see, listed or not */
    uint64_t queried_tokens;
    uint64_t hit_tokens;
    uint64_t evictions;
    uint32_t pinned_blocks;
};

enum nvllm_code nvllm_show_cache(struct nvllm_client *client,
                                 const struct nvllm_list_options *options, int timeout_ms,
                                 const struct nvllm_cache **cache, struct nvllm_error *err);

struct nvllm_cache_change {
    uint32_t blocks; /* cleared, pinned or unpinned */
    uint32_t tokens; /* that these blocks hold */
};

struct nvllm_clear_options {
    size_t size;
    bool all; /* false; the caches of all users, for admins */
};

void nvllm_clear_options_init_size(struct nvllm_clear_options *options, size_t size);
#define nvllm_clear_options_init(options)                                                          \
    nvllm_clear_options_init_size((options), sizeof(struct nvllm_clear_options))

/* Removes cached prefixes, pinned ones too. Blocks that sequences hold stay until these end, but
 * are not found again. change may be NULL, here and below. */
enum nvllm_code nvllm_clear_cache(struct nvllm_client *client,
                                  const struct nvllm_clear_options *options, int timeout_ms,
                                  const struct nvllm_cache_change **change,
                                  struct nvllm_error *err);

/* One of prompt, prompt_ids and chat, as in a request. */
struct nvllm_pin_options {
    size_t size;
    struct nvllm_text prompt;
    const int32_t *prompt_ids; /* [n_prompt_ids] */
    size_t n_prompt_ids;
    const struct nvllm_chat *chat;
    struct nvllm_text cache_salt;
    bool unpin;
    bool has_uid; /* false: the caller's own cache */
    uint32_t uid;
};

void nvllm_pin_options_init_size(struct nvllm_pin_options *options, size_t size);
#define nvllm_pin_options_init(options)                                                            \
    nvllm_pin_options_init_size((options), sizeof(struct nvllm_pin_options))

/* Keeps the full blocks of a prompt from eviction until they are unpinned or cleared; for admins.
 * Missing blocks are computed first, as for a request, and the answer comes afterwards: choose a
 * timeout_ms that covers the queue and the prompt's prefill, or -1. */
enum nvllm_code nvllm_pin_cache(struct nvllm_client *client,
                                const struct nvllm_pin_options *options, int timeout_ms,
                                const struct nvllm_cache_change **change, struct nvllm_error *err);

/* ---- why */

enum nvllm_wait_reason {
    NVLLM_WAIT_UNKNOWN = 0,
    NVLLM_WAIT_NOT = 1, /* it is running */
    NVLLM_WAIT_ENCODING = 2,
    NVLLM_WAIT_SEQS = 3,      /* scheduler.max_seqs sequences are running */
    NVLLM_WAIT_BLOCKS = 4,    /* not enough free blocks, for it or for the first in the queue */
    NVLLM_WAIT_PREFIX = 5,    /* another request is computing a shared prefix */
    NVLLM_WAIT_SHARE = 6,     /* its user has had its share; other users' requests go first */
    NVLLM_WAIT_STEP = 7,      /* it starts in the next step */
    NVLLM_WAIT_LOADING = 8,   /* its prefix is being copied from host memory or disk */
    NVLLM_WAIT_OFFLOADED = 9, /* another request too long for the device's blocks is running */
};

/* "not", "encoding", …, "unknown". */
const char *nvllm_wait_reason_name(enum nvllm_wait_reason reason);

struct nvllm_explanation {
    const struct nvllm_request_info *info; /* of a request; NULL: of a prompt */
    enum nvllm_wait_reason reason;
    uint32_t blocks_needed; /* to start, including cached ones that nobody holds */
    uint32_t blocks_available;
    uint32_t prompt_tokens; /* of a prompt */
    uint32_t cached_tokens;
    int32_t next_id;          /* the token after same_tokens; -1: there is none, or all users
                               * share the cache and the caller is not an admin */
    const int32_t *other_ids; /* [n_other_ids] what cached prompts have in its place */
    size_t n_other_ids;
    const char *text;     /* one line for people */
    uint32_t same_tokens; /* in the longest prefix shared with a cached prompt: cached_tokens
                           * counts whole blocks only; equal to it where next_id is not told */
    uint32_t host_tokens; /* of cached_tokens, those that would come from host memory */
    uint32_t disk_tokens; /* and from disk */
};

/* One of request, prompt, prompt_ids and chat. */
struct nvllm_explain_options {
    size_t size;
    uint64_t request;          /* the daemon's number: why it waits; 0: none */
    struct nvllm_text prompt;  /* how much of it is cached now; likewise the next two */
    const int32_t *prompt_ids; /* [n_prompt_ids] */
    size_t n_prompt_ids;
    const struct nvllm_chat *chat;
    struct nvllm_text cache_salt;
};

void nvllm_explain_options_init_size(struct nvllm_explain_options *options, size_t size);
#define nvllm_explain_options_init(options)                                                        \
    nvllm_explain_options_init_size((options), sizeof(struct nvllm_explain_options))

enum nvllm_code nvllm_explain(struct nvllm_client *client,
                              const struct nvllm_explain_options *options, int timeout_ms,
                              const struct nvllm_explanation **explanation,
                              struct nvllm_error *err);

/* ---- sleep; for admins */

struct nvllm_sleep_change {
    enum nvllm_sleep_level level; /* from now on */
    uint64_t freed_bytes;         /* that this call gave back */
    uint32_t kept_tokens;         /* that the device held, and that can still be found */
    uint32_t lost_tokens;         /* and those that cannot: no tier below had room */
    uint64_t took_us;
};

struct nvllm_sleep_options {
    size_t size;
    enum nvllm_sleep_level level; /* ALL */
};

void nvllm_sleep_options_init_size(struct nvllm_sleep_options *options, size_t size);
#define nvllm_sleep_options_init(options)                                                          \
    nvllm_sleep_options_init_size((options), sizeof(struct nvllm_sleep_options))

/* Gives the model's memory back until nvllm_wake() or the next request. The answer comes once that
 * is done. NVLLM_E_UNAVAILABLE while requests are in progress. While prefixes are pinned the KV
 * blocks stay, as with WEIGHTS. */
enum nvllm_code nvllm_sleep(struct nvllm_client *client, const struct nvllm_sleep_options *options,
                            int timeout_ms, const struct nvllm_sleep_change **change,
                            struct nvllm_error *err);

/* Takes the memory again and loads the weights, as the next request would. NVLLM_E_UNAVAILABLE
 * where others have it now. Nothing happens if the model is awake. */
enum nvllm_code nvllm_wake(struct nvllm_client *client, int timeout_ms,
                           const struct nvllm_sleep_change **change, struct nvllm_error *err);

/* ---- traces: what requests and steps do; for admins */

enum nvllm_trace_kind {
    NVLLM_TRACE_UNKNOWN = 0,
    NVLLM_TRACE_QUEUED = 1,  /* a request has been encoded and waits; it arrived took_us before */
    NVLLM_TRACE_STARTED = 2, /* it has its first slot */
    NVLLM_TRACE_FIRST_TOKEN = 3, /* its first token is there */
    NVLLM_TRACE_PREEMPTED = 4,   /* one of its choices */
    NVLLM_TRACE_ENDED = 5,
    NVLLM_TRACE_STEP = 6, /* a step, from at_us on */
    NVLLM_TRACE_PART = 7, /* what the engine's thread did from at_us on */
};

enum nvllm_engine_part {
    NVLLM_PART_UNKNOWN = 0,
    NVLLM_PART_SCHEDULE = 1, /* takes requests in, plans a step */
    NVLLM_PART_SUBMIT = 2,   /* hands it to the backend */
    NVLLM_PART_WAIT = 3,     /* for the backend, which computes */
    NVLLM_PART_COMMIT = 4,   /* takes its results over, makes text of them */
    NVLLM_PART_PUBLISH = 5,  /* hands events to the daemon's loop */
    NVLLM_PART_OTHER = 6,    /* answers what is asked about its state; sleeps, wakes */
    NVLLM_PART_DRAFT = 7,    /* the draft model works */
};

/* "schedule", "submit", …, "unknown". */
const char *nvllm_engine_part_name(enum nvllm_engine_part part);

/* What its kind does not use is 0. */
struct nvllm_trace_record {
    enum nvllm_trace_kind kind;
    uint64_t at_us; /* of the host's monotonic clock */
    uint64_t took_us;
    uint64_t request;            /* the daemon's number */
    uint32_t choice;             /* PREEMPTED */
    enum nvllm_finish finish;    /* ENDED: of the first choice */
    enum nvllm_trace_kind since; /* ENDED: the last of QUEUED, STARTED and FIRST_TOKEN */
    uint64_t step;               /* STEP: its number, as are the next three */
    uint32_t decode_tokens;      /* rows of answers */
    uint32_t prompt_tokens;      /* rows of prompts */
    uint32_t sequences;          /* with rows */
    enum nvllm_engine_part part; /* PART */
};

struct nvllm_trace {
    const struct nvllm_trace_record *const *records; /* [n_records] */
    size_t n_records;
};

struct nvllm_traced {
    uint64_t took_us;
    uint64_t dropped; /* records that there was no room for, or that were not read in time */
};

struct nvllm_trace_options {
    size_t size;
    uint32_t duration_ms; /* 5000; 1 to 600000 */
};

void nvllm_trace_options_init_size(struct nvllm_trace_options *options, size_t size);
#define nvllm_trace_options_init(options)                                                          \
    nvllm_trace_options_init_size((options), sizeof(struct nvllm_trace_options))

/* Records what happens until the time is over, or nvllm_cancel(); first what has happened to
 * requests in progress. The records are events of nvllm_next(): NVLLM_EVENT_TRACE, then one
 * NVLLM_EVENT_TRACED, or an error: NVLLM_E_UNAVAILABLE where another trace is on. No text of a
 * request is recorded. timeout_ms, which the daemon's answer must not take longer than, is best
 * well above duration_ms. */
enum nvllm_code nvllm_trace_start(struct nvllm_client *client, uint64_t *id,
                                  const struct nvllm_trace_options *options, int timeout_ms,
                                  struct nvllm_error *err);

/* ---- the daemon; for admins */

/* The state of the daemon after a change. */
struct nvllm_change {
    enum nvllm_state state;
    const char *log_level;
};

struct nvllm_drain_options {
    size_t size;
    int64_t drain_timeout_ms; /* after which requests are ended; 0: at once; -1: the daemon's
                               * daemon.drain_timeout_s */
};

void nvllm_drain_options_init_size(struct nvllm_drain_options *options, size_t size);
#define nvllm_drain_options_init(options)                                                          \
    nvllm_drain_options_init_size((options), sizeof(struct nvllm_drain_options))

/* Refuses new requests from now on, and lets accepted ones finish. Does not wait for that:
 * nvllm_get_status() counts those that remain. */
enum nvllm_code nvllm_drain(struct nvllm_client *client, const struct nvllm_drain_options *options,
                            int timeout_ms, const struct nvllm_change **change,
                            struct nvllm_error *err);

/* Accepts new requests again. */
enum nvllm_code nvllm_resume(struct nvllm_client *client, int timeout_ms,
                             const struct nvllm_change **change, struct nvllm_error *err);

/* Names of options. */
struct nvllm_reloaded {
    const char *const *changed; /* [n_changed] */
    size_t n_changed;
    const char *const *needs_restart; /* [n_needs_restart] differ in the file, need a restart */
    size_t n_needs_restart;
};

/* Makes the daemon reload its configuration: all options that can change do, or none. */
enum nvllm_code nvllm_reload(struct nvllm_client *client, int timeout_ms,
                             const struct nvllm_reloaded **reloaded, struct nvllm_error *err);

/* "error", "warning", "info" or "debug", until the daemon exits or reloads. */
enum nvllm_code nvllm_set_log_level(struct nvllm_client *client, const char *level, int timeout_ms,
                                    const struct nvllm_change **change, struct nvllm_error *err);

/* Shuts the daemon down as SIGTERM does: it drains first. */
enum nvllm_code nvllm_shutdown(struct nvllm_client *client, int timeout_ms,
                               const struct nvllm_change **change, struct nvllm_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
