/* nvllm_admin.h - look into nvllmd and steer it: what is under way and why something waits, blocks,
 * the prefix cache, draining, reloading. nvllm_client.h includes it and says what holds for both.
 *
 * Everybody sees and changes what is their own; admins (root, the daemon's own user, its admin
 * group, and who comes by its admins' socket) all. options may be NULL everywhere. What is handed
 * out is made by the library and grows at its end; lists are arrays of pointers for that reason.
 * Texts are never NULL. */
#ifndef NVLLM_ADMIN_H
#define NVLLM_ADMIN_H

#include "nvllm_client.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is under way */

enum nvllm_request_state {
    NVLLM_REQUEST_UNKNOWN = 0,
    NVLLM_REQUEST_ENCODING = 1, /* is being rendered or tokenized */
    NVLLM_REQUEST_WAITING = 2,
    NVLLM_REQUEST_HELD = 3, /* waits until another has computed what both begin with */
    NVLLM_REQUEST_PREFILL = 4,
    NVLLM_REQUEST_DECODE = 5,
    NVLLM_REQUEST_PREEMPTED = 6,
    NVLLM_REQUEST_ENDING = 7, /* ended; the last of it is on its way */
};

/* "encoding", "waiting", …, "unknown". */
NVLLM_API const char *nvllm_request_state_name(enum nvllm_request_state state);

/* "normal", "low", "high". */
NVLLM_API const char *nvllm_priority_name(enum nvllm_priority priority);

struct nvllm_request_info {
    uint64_t request; /* the daemon's number, good for nvllm_cancel_request(), nvllm_explain() */
    uint32_t uid;
    int32_t pid; /* of who connected */
    enum nvllm_request_state state;
    enum nvllm_priority priority;
    uint32_t place; /* among those that wait, 1 is next; 0: does not wait */
    uint32_t choices;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t computed_tokens; /* of the prompt, cached ones included */
    uint32_t generated_tokens;
    uint32_t max_tokens;
    uint32_t blocks;
    uint32_t preemptions;
    uint64_t age_us;     /* since it arrived */
    uint64_t run_us;     /* since its first step; 0: none yet */
    double tokens_per_s; /* generated, since the first */
};

struct nvllm_request_list {
    const struct nvllm_request_info *const *requests; /* [n_requests] running ones first, then as
                                                       * they will be taken */
    size_t n_requests;
    uint32_t total; /* those that this user may see, told or not */
};

struct nvllm_list_options {
    size_t size;
    uint32_t limit; /* 0: as many as the daemon tells at a time */
};

NVLLM_API void nvllm_list_options_init_size(struct nvllm_list_options *options, size_t size);
#define nvllm_list_options_init(options)                                                           \
    nvllm_list_options_init_size((options), sizeof(struct nvllm_list_options))

NVLLM_API enum nvllm_code nvllm_list_requests(struct nvllm_client *client,
                                              const struct nvllm_list_options *options,
                                              int timeout_ms,
                                              const struct nvllm_request_list **list,
                                              struct nvllm_error *err);

/* Ends a request of any connection by the daemon's number, and waits for the answer. *found (which
 * may be NULL) is false if it had ended already. */
NVLLM_API enum nvllm_code nvllm_cancel_request(struct nvllm_client *client, uint64_t request,
                                               int timeout_ms, bool *found,
                                               struct nvllm_error *err);

struct nvllm_uid_blocks {
    uint32_t uid;
    uint32_t used;
    uint32_t requests;
};

struct nvllm_request_blocks {
    uint64_t request;
    uint32_t uid;
    uint32_t used;
    uint32_t shared; /* of those, held by others too */
};

struct nvllm_blocks {
    uint32_t total;
    uint32_t used;   /* held by a sequence, or pinned */
    uint32_t cached; /* free, with content that may still be found */
    uint32_t free;
    uint32_t pinned;    /* of used: held by the cache's pins alone */
    uint32_t block_len; /* tokens */
    uint64_t block_bytes;
    const struct nvllm_uid_blocks *const *uids; /* [n_uids] */
    size_t n_uids;
    const struct nvllm_request_blocks *const *requests; /* [n_requests] */
    size_t n_requests;
    struct nvllm_text map; /* if asked for: one character a block, 'f' free, 'c' cached, 'u' used
                            * by one, 's' shared, 'p' pinned, 'o' another user's, which only
                            * admins are told more of */
};

struct nvllm_blocks_options {
    size_t size;
    bool map; /* false */
};

NVLLM_API void nvllm_blocks_options_init_size(struct nvllm_blocks_options *options, size_t size);
#define nvllm_blocks_options_init(options)                                                         \
    nvllm_blocks_options_init_size((options), sizeof(struct nvllm_blocks_options))

NVLLM_API enum nvllm_code nvllm_get_blocks(struct nvllm_client *client,
                                           const struct nvllm_blocks_options *options,
                                           int timeout_ms, const struct nvllm_blocks **blocks,
                                           struct nvllm_error *err);

/* ---- the prefix cache */

/* A prefix: the blocks from the first token to one that no listed block continues. */
struct nvllm_cached_prefix {
    uint32_t uid;
    uint32_t tokens;
    uint32_t blocks;
    uint64_t hits;    /* times that its first block was found */
    uint64_t age_ms;  /* since its last block was written */
    uint64_t idle_ms; /* since it was last found or written */
    uint32_t holders; /* sequences that hold its last block */
    bool pinned;
    const int32_t *head_ids; /* [n_head_ids] its first tokens; of others' prefixes none */
    size_t n_head_ids;
};

struct nvllm_cache {
    const struct nvllm_cached_prefix *const *prefixes; /* [n_prefixes] used last first */
    size_t n_prefixes;
    uint32_t total; /* prefixes that this user may see, told or not */
    uint64_t queried_tokens;
    uint64_t hit_tokens;
    uint64_t evictions;
    uint32_t pinned_blocks;
};

NVLLM_API enum nvllm_code nvllm_show_cache(struct nvllm_client *client,
                                           const struct nvllm_list_options *options, int timeout_ms,
                                           const struct nvllm_cache **cache,
                                           struct nvllm_error *err);

struct nvllm_cache_change {
    uint32_t blocks; /* cleared, pinned or unpinned */
    uint32_t tokens; /* that these blocks hold */
};

struct nvllm_clear_options {
    size_t size;
    bool all; /* false; of all users, for admins */
};

NVLLM_API void nvllm_clear_options_init_size(struct nvllm_clear_options *options, size_t size);
#define nvllm_clear_options_init(options)                                                          \
    nvllm_clear_options_init_size((options), sizeof(struct nvllm_clear_options))

/* Forgets cached prefixes, pinned ones too: what sequences hold stays until they end, and is not
 * found again. change may be NULL, here and below. */
NVLLM_API enum nvllm_code nvllm_clear_cache(struct nvllm_client *client,
                                            const struct nvllm_clear_options *options,
                                            int timeout_ms,
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

NVLLM_API void nvllm_pin_options_init_size(struct nvllm_pin_options *options, size_t size);
#define nvllm_pin_options_init(options)                                                            \
    nvllm_pin_options_init_size((options), sizeof(struct nvllm_pin_options))

/* Keeps the full blocks of a prompt from being evicted, until they are unpinned or cleared: for
 * admins. What is missing of them is computed first, as a request is, and the answer comes after
 * that: give a timeout_ms that suffices for the prompt's prefill and the queue before it, or -1. */
NVLLM_API enum nvllm_code nvllm_pin_cache(struct nvllm_client *client,
                                          const struct nvllm_pin_options *options, int timeout_ms,
                                          const struct nvllm_cache_change **change,
                                          struct nvllm_error *err);

/* ---- why */

enum nvllm_wait_reason {
    NVLLM_WAIT_UNKNOWN = 0,
    NVLLM_WAIT_NOT = 1, /* it runs */
    NVLLM_WAIT_ENCODING = 2,
    NVLLM_WAIT_SEQS = 3,   /* as many sequences run as may */
    NVLLM_WAIT_BLOCKS = 4, /* not enough free blocks, for it or for the first that waits */
    NVLLM_WAIT_PREFIX = 5, /* another computes what both begin with */
    NVLLM_WAIT_SHARE = 6,  /* its user's share is used up for now, others' requests go first */
    NVLLM_WAIT_STEP = 7,   /* the next step takes it, as far as can be told */
};

/* "not", "encoding", …, "unknown". */
NVLLM_API const char *nvllm_wait_reason_name(enum nvllm_wait_reason reason);

struct nvllm_explanation {
    const struct nvllm_request_info *info; /* of a request; NULL: a prompt was asked about */
    enum nvllm_wait_reason reason;
    uint32_t blocks_needed; /* to begin, those included that are cached and nobody's */
    uint32_t blocks_available;
    uint32_t prompt_tokens; /* of a prompt */
    uint32_t cached_tokens;
    int32_t next_id;          /* the token at same_tokens, which no cached prompt has there; -1:
                               * none is left, or it is not told: the cache is shared by all, and
                               * the caller is no admin */
    const int32_t *other_ids; /* [n_other_ids] what cached prompts have there instead */
    size_t n_other_ids;
    const char *text;     /* one line for people */
    uint32_t same_tokens; /* so many begin a cached prompt: cached_tokens, which are whole blocks,
                           * and what comes after that; where it is not told cached_tokens */
};

/* One of request, prompt, prompt_ids and chat. */
struct nvllm_explain_options {
    size_t size;
    uint64_t request;          /* the daemon's number: why does it wait; 0: none */
    struct nvllm_text prompt;  /* what of it is cached now, and what is not; likewise the others */
    const int32_t *prompt_ids; /* [n_prompt_ids] */
    size_t n_prompt_ids;
    const struct nvllm_chat *chat;
    struct nvllm_text cache_salt;
};

NVLLM_API void nvllm_explain_options_init_size(struct nvllm_explain_options *options, size_t size);
#define nvllm_explain_options_init(options)                                                        \
    nvllm_explain_options_init_size((options), sizeof(struct nvllm_explain_options))

NVLLM_API enum nvllm_code nvllm_explain(struct nvllm_client *client,
                                        const struct nvllm_explain_options *options, int timeout_ms,
                                        const struct nvllm_explanation **explanation,
                                        struct nvllm_error *err);

/* ---- the daemon itself: for admins */

/* How the daemon is after a change. */
struct nvllm_change {
    enum nvllm_state state;
    const char *log_level;
};

struct nvllm_drain_options {
    size_t size;
    int64_t timeout_ms; /* requests that take longer are ended; -1: as the daemon is set */
};

NVLLM_API void nvllm_drain_options_init_size(struct nvllm_drain_options *options, size_t size);
#define nvllm_drain_options_init(options)                                                          \
    nvllm_drain_options_init_size((options), sizeof(struct nvllm_drain_options))

/* New requests are refused from now on, and those accepted go on. Does not wait for their end:
 * nvllm_get_status() counts those that are left. */
NVLLM_API enum nvllm_code nvllm_drain(struct nvllm_client *client,
                                      const struct nvllm_drain_options *options, int timeout_ms,
                                      const struct nvllm_change **change, struct nvllm_error *err);

/* Takes new requests again. */
NVLLM_API enum nvllm_code nvllm_resume(struct nvllm_client *client, int timeout_ms,
                                       const struct nvllm_change **change, struct nvllm_error *err);

/* Names of options. */
struct nvllm_reloaded {
    const char *const *changed; /* [n_changed] */
    size_t n_changed;
    const char *const *needs_restart; /* [n_needs_restart] differ in the file, stay as they were */
    size_t n_needs_restart;
};

/* Reads the daemon's configuration anew: what can change does, wholly or not at all. */
NVLLM_API enum nvllm_code nvllm_reload(struct nvllm_client *client, int timeout_ms,
                                       const struct nvllm_reloaded **reloaded,
                                       struct nvllm_error *err);

/* "error", "warning", "info" or "debug", until the daemon ends or reloads. */
NVLLM_API enum nvllm_code nvllm_set_log_level(struct nvllm_client *client, const char *level,
                                              int timeout_ms, const struct nvllm_change **change,
                                              struct nvllm_error *err);

/* Ends the daemon as SIGTERM does: it drains first. */
NVLLM_API enum nvllm_code nvllm_shutdown(struct nvllm_client *client, int timeout_ms,
                                         const struct nvllm_change **change,
                                         struct nvllm_error *err);

#ifdef __cplusplus
}
#endif

#endif
