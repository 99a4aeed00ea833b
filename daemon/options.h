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

#include "daemon/limit_rows.h"
#include "engine/core/fair.h"
#include "engine/util/err.h"

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

/* Texts belong to the struct. An empty text is "not set". */
struct options {
    char *model_path;
    char *socket;
    int64_t socket_mode;
    char *socket_group;
    char *admin_socket;
    int64_t admin_socket_mode;
    char *admin_group;
    int64_t backend; /* enum option_backend */
    int64_t drain_timeout_s;
    int64_t log_level; /* enum log_level */
    char *backend_module;
    int64_t block_len;
    struct option_memory kv_memory;
    int64_t kv_dtype; /* enum kv_dtype of backend.h */
    int64_t prefix_cache;
    int64_t scope; /* enum option_scope */
    char *state_folder;
    int64_t max_batch_tokens;
    int64_t max_seqs;
    int64_t max_seq_len;
    int64_t max_preemptions;
    int64_t max_step_ms;
    struct shares shares;
    int64_t cpu_threads;
    int64_t tokenizer_threads;
    int64_t cuda_device;
    int64_t cuda_graphs;
    int64_t cuda_invariant;
    int64_t cuda_tune;
    char *cuda_cache_folder;
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

/* Takes over the options that can change while the daemon runs: limits, shares, the drain timeout,
 * the log level. */
void options_take(struct options *running, const struct options *fresh, struct options_change *out);

/* A row of the table, in words. */
struct options_row {
    const char *key, *help;
    const char *fallback; /* "empty" for an empty text */
    char allowed[128];    /* the allowed values */
};
bool options_row(struct options_row *out, int i); /* false: there are no more than i */

/* The table, for people: what --help prints. */
void options_print(FILE *f);

#endif
