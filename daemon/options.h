/* options.h - the configuration: one table of section.key, with type, range, default and
 * help; read from a configuration file and the command line.
 *
 * The same keys hold in the file ([section], key = value), in --set section.key=value and in the
 * short forms. What comes later wins: defaults, the file, the command line from left to right. */
#ifndef NVLLM_DAEMON_OPTIONS_H
#define NVLLM_DAEMON_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/core/fair.h"
#include "engine/model/model.h"
#include "engine/util/err.h"
#include "proto/program.h"

/* Where the build installs it: /etc/nvllm/nvllmd.conf with the prefix /usr. */
#define OPTIONS_DEFAULT_FILE NVLLM_CONFIG_DIR "/nvllmd.conf"

enum { OPTIONS_MAX_CHOICES = 64 }; /* the maximum of limits.choices */

enum option_backend { OPTION_BACKEND_AUTO, OPTION_BACKEND_CPU, OPTION_BACKEND_CUDA };
enum option_scope { OPTION_SCOPE_UID, OPTION_SCOPE_ALL };

/* Memory for KV blocks: bytes, or a fraction of the free memory; both 0: the backend's default. */
struct option_memory {
    uint64_t bytes;
    double fraction;
};

/* Users whose share of the service is not the usual one, each once. */
enum { SHARES_MAX = 64 };
struct shares {
    struct fair_share list[SHARES_MAX];
    int32_t n;
};

enum { CLUSTER_MAX = 8 }; /* processes */

/* Devices of a backend, each once. */
enum { DEVICES_MAX = 8 };
struct device_list {
    int32_t list[DEVICES_MAX];
    int32_t n; /* 0: the first ones, as many as are needed */
};

/* The limits, each of which is an option: one list for this struct, the table of options and the
 * refusals of limits.c. A row: name of the enum, option in section [limits], member, kind, minimum,
 * maximum, default; code of a refusal, when to retry, unit; help. */
#define LIMITS(X)                                                                                  \
    X(FRAME_BYTES, frame_bytes, max_frame_bytes, BYTES, 4096, FRAME_LARGEST_MAX, "4M", PROTOCOL,   \
      0, "bytes", "size of one request")                                                           \
    X(PROMPT_BYTES, prompt_bytes, max_prompt_bytes, BYTES, 1, FRAME_LARGEST_MAX, "4M", TOO_LONG,   \
      0, "bytes", "text of one prompt, or of one chat with everything in it")                      \
    X(PROMPT_TOKENS, prompt_tokens, max_prompt_tokens, INT, 0, INT32_MAX, "0", TOO_LONG, 0,        \
      "tokens", "tokens of one prompt; 0: the model's limit")                                      \
    X(TOKENIZE_BYTES, tokenize_bytes, max_tokenize_bytes, BYTES, 1, FRAME_LARGEST_MAX, "1M",       \
      TOO_LONG, 0, "bytes",                                                                        \
      "text to tokenize (nvllmctl tokenize); its answer is several times as large")                \
    X(MAX_TOKENS, max_tokens, max_max_tokens, INT, 0, INT32_MAX, "0", TOO_LONG, 0, "tokens",       \
      "tokens of one answer; 0: the model's limit")                                                \
    X(CHOICES, choices, max_choices, INT, 1, OPTIONS_MAX_CHOICES, "64", INVALID, 0, "choices",     \
      "answers to one request (n)")                                                                \
    X(LOGPROBS, logprobs, max_logprobs, INT, 0, SAMPLING_MAX_LOGPROBS, "20", INVALID, 0,           \
      "alternatives", "alternatives reported with each token")                                     \
    X(STOPS, stops, max_stops, INT, 0, ENGINE_MAX_STOPS, "16", INVALID, 0, "strings",              \
      "stop strings of one request")                                                               \
    X(STOP_BYTES, stop_bytes, max_stop_bytes, INT, 1, TEXT_STREAM_MAX_STOP_BYTES, "256", INVALID,  \
      0, "bytes", "size of one stop string")                                                       \
    X(STOP_TOKEN_IDS, stop_token_ids, max_stop_token_ids, INT, 0, SAMPLING_MAX_REQUEST_STOP_IDS,   \
      "48", INVALID, 0, "ids", "stop token ids of one request")                                    \
    X(LOGIT_BIAS, logit_bias, max_logit_bias, INT, 0, SAMPLING_MAX_BIAS, "1024", INVALID, 0,       \
      "entries", "entries of one request's logit_bias")                                            \
    X(SALT_BYTES, salt_bytes, max_salt_bytes, INT, 0, 4096, "256", INVALID, 0, "bytes",            \
      "size of one cache_salt")                                                                    \
    X(CONNECTIONS, connections, max_connections, INT, 1, 100000, "1024", BUSY, LATER_MS,           \
      "connections", "open connections")                                                           \
    X(CONNECTIONS_PER_UID, connections_per_uid, max_connections_per_uid, INT, 1, 100000, "512",    \
      BUSY, LATER_MS, "connections of this user", "open connections of one user")                  \
    X(REQUESTS, requests, max_requests, INT, 1, 1000000, "8192", BUSY, SOON_MS,                    \
      "requests in progress", "requests in progress")                                              \
    X(REQUESTS_PER_UID, requests_per_uid, max_requests_per_uid, INT, 1, 1000000, "4096", BUSY,     \
      SOON_MS, "requests in progress of this user", "requests in progress of one user")            \
    X(REQUESTS_PER_CONNECTION, requests_per_connection, max_requests_per_connection, INT, 1,       \
      1000000, "1024", BUSY, SOON_MS, "requests in progress of this connection",                   \
      "requests in progress of one connection")                                                    \
    X(INSPECTS_PER_UID, inspects_per_uid, max_inspects_per_uid, INT, 1, 1000000, "4", BUSY,        \
      SOON_MS, "inspect requests in progress of this user",                                        \
      "one user's requests in progress that inspect requests, blocks or the cache")                \
    X(QUEUED_TOKENS, queued_tokens, max_queued_tokens, INT, 1, INT64_C(1) << 40, "16777216", BUSY, \
      SOON_MS, "tokens of waiting prompts",                                                        \
      "tokens of all prompts that have no answer yet; text is estimated")                          \
    X(QUEUED_TOKENS_PER_UID, queued_tokens_per_uid, max_queued_tokens_per_uid, INT, 1,             \
      INT64_C(1) << 40, "8388608", BUSY, SOON_MS, "tokens of waiting prompts of this user",        \
      "tokens of one user's prompts that have no answer yet")                                      \
    X(REQUEST_BYTES, request_bytes, max_request_bytes, BYTES, 65536, INT64_C(1) << 40, "512M",     \
      BUSY, SOON_MS, "bytes of requests in progress", "memory of all requests in progress")        \
    X(REQUEST_BYTES_PER_UID, request_bytes_per_uid, max_request_bytes_per_uid, BYTES, 65536,       \
      INT64_C(1) << 40, "256M", BUSY, SOON_MS, "bytes of requests in progress of this user",       \
      "memory of one user's requests in progress")                                                 \
    X(SESSIONS_PER_UID, sessions_per_uid, max_sessions_per_uid, INT, 0, 10000, "100", INVALID, 0,  \
      "sessions of this user", "sessions that the daemon holds for one user")                      \
    X(SESSION_TOKENS, session_tokens, max_session_tokens, INT, 0, INT32_MAX, "0", TOO_LONG, 0,     \
      "tokens", "tokens with which a turn of a session may begin; 0: the model's limit")           \
    X(SESSION_BYTES, session_bytes, max_session_bytes, BYTES, 0, INT64_C(1) << 40, "256M",         \
      INVALID, 0, "bytes of all sessions", "memory of all sessions")                               \
    X(SESSION_BYTES_PER_UID, session_bytes_per_uid, max_session_bytes_per_uid, BYTES, 0,           \
      INT64_C(1) << 40, "64M", INVALID, 0, "bytes of this user's sessions",                        \
      "memory of one user's sessions")                                                             \
    X(BUFFER_BYTES, buffer_bytes, max_buffer_bytes, BYTES, 1 << 20, INT64_C(1) << 40, "1G", BUSY,  \
      LATER_MS, "bytes of all connections' buffers",                                               \
      "memory of partly received requests and unread answers; over it the connections with the "   \
      "most are closed")                                                                           \
    X(BUFFER_BYTES_PER_UID, buffer_bytes_per_uid, max_buffer_bytes_per_uid, BYTES, 1 << 20,        \
      INT64_C(1) << 40, "512M", BUSY, LATER_MS, "bytes of this user's buffers",                    \
      "the same for the connections of one user")                                                  \
    X(OUTPUT_PAUSE_BYTES, output_pause_bytes, output_pause_bytes, BYTES, 4096, INT64_C(1) << 40,   \
      "1M", BUSY, LATER_MS, "bytes of unread answers",                                             \
      "unread answers at which a connection is paused: nothing is read from it")                   \
    X(OUTPUT_BYTES, output_bytes, max_output_bytes, BYTES, 4096, INT64_C(1) << 40, "8M", BUSY,     \
      LATER_MS, "bytes of unread answers", "unread answers at which a connection is closed")       \
    X(SLOW_READER_S, slow_reader_s, slow_reader_s, INT, 1, 86400, "30", BUSY, LATER_MS, "seconds", \
      "seconds after which a connection that stays paused is closed")                              \
    X(HELLO_TIMEOUT_S, hello_timeout_s, hello_timeout_s, INT, 1, 86400, "30", PROTOCOL, 0,         \
      "seconds", "seconds within which Hello must arrive")                                         \
    X(FRAME_TIMEOUT_S, frame_timeout_s, frame_timeout_s, INT, 1, 86400, "30", PROTOCOL, 0,         \
      "seconds", "seconds within which a started frame must arrive in full")

/* Texts belong to the struct. An empty text is "not set". */
struct options {
    char *model_path;
    char *chat_template;     /* "": the folder's */
    char *draft;             /* "": no draft model */
    int64_t tensor_parallel; /* 0: auto, else 1 + log2 of the number of ranks */
    int64_t quantize;        /* 0: off, else as options_quantize() says */
    char *socket;
    int64_t socket_mode;
    char *socket_group;
    char *admin_socket;
    int64_t admin_socket_mode;
    char *admin_group;
    int64_t backend; /* enum option_backend */
    int64_t drain_timeout_s;
    int64_t idle_sleep_s;
    int64_t log_level; /* enum log_level */
    char *backend_module;
    int64_t block_len;
    struct option_memory kv_memory;
    int64_t host_memory;
    int64_t disk;
    char *cache_folder;
    int64_t kv_dtype; /* enum kv_dtype of backend.h */
    int64_t prefix_cache;
    int64_t scope; /* enum option_scope */
    int64_t max_batch_tokens;
    int64_t max_seqs;
    int64_t max_seq_len;
    int64_t max_preemptions;
    int64_t max_step_ms;
    int64_t speculation;
    struct shares shares;
    int64_t cpu_threads;
    int64_t tokenizer_threads;
    struct device_list cuda_devices;
    int64_t cuda_graphs;
    int64_t cuda_invariant;
    int64_t cuda_tune;
    char *cuda_cache_folder;
    char *nccl;         /* "": the system's */
    int64_t world_size; /* 0: launcher_apply() asks the launcher */
    int64_t cluster_rank;
    char *rendezvous;
    char *metrics_path; /* "": none; ends in .prom: a file, else a socket */
    int64_t metrics_mode;
    char *metrics_group;
    int64_t metrics_interval_s;
#define LIMIT_MEMBER(name, key, member, ...) int64_t member;
    LIMITS(LIMIT_MEMBER)
#undef LIMIT_MEMBER
    int64_t admin_connections;
    int64_t admin_requests;
};

/* Every option at its default. -ENOMEM. */
int options_init(struct options *o, struct err *e);
void options_deinit(struct options *o);

/* Sets one option from text. -EINVAL names the allowed values, -ENOENT the nearest key. */
int options_set(struct options *o, const char *key, const char *value, struct err *e);

/* Where the cache's files are: cache.folder or $STATE_DIRECTORY; NULL: there is none. */
const char *options_state_folder(const struct options *o);

/* What model_quantize() is to be told. */
enum dtype options_quantize(const struct options *o);

/* Of model.tensor_parallel; auto: as many as the processes of a cluster have devices. */
int32_t options_tp_size(const struct options *o);

/* Reads a file. The first error is -EINVAL with file:line. A missing file is -ENOENT, which is no
 * error for the default file. */
int options_read(struct options *o, const char *path, struct err *e);

enum { OPTIONS_MAX = 96 };

/* How new options differ from the running ones. The texts are keys of the table. */
struct options_change {
    const char *changed[OPTIONS_MAX];
    int n_changed;
    const char *needs_restart[OPTIONS_MAX]; /* differ, but only a restart applies them */
    int n_needs_restart;
};

/* Takes over what can change in a running daemon: limits, shares, timeouts, log level. */
void options_take(struct options *running, const struct options *fresh, struct options_change *out);

/* A row of the table, in words. */
struct options_row {
    const char *key, *help;
    const char *fallback; /* "empty" for an empty text */
    char allowed[128];    /* the allowed values */
};
bool options_row(struct options_row *out, int i); /* false: there are no more than i */

void options_print(FILE *f); /* the table, for people */

/* The command line, for the program and for what is generated from it. */
extern const struct usage_program nvllmd_program;
void nvllmd_usage_print(void); /* with the table of options */

#endif
