/* options.h - everything that can be set: one table of section.key, with type, range, default and
 * help; read from a configuration file and the command line.
 *
 * The same keys hold in the file ([section], key = value), in --set section.key=value and in the
 * short forms. What comes later wins: defaults, the file, the command line from left to right. */
#ifndef NVLLMD_OPTIONS_H
#define NVLLMD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/err.h"

#define OPTIONS_DEFAULT_FILE "/etc/nvllm/nvllmd.conf"

enum option_backend { OPTION_BACKEND_AUTO, OPTION_BACKEND_CPU, OPTION_BACKEND_CUDA };
enum option_scope { OPTION_SCOPE_UID, OPTION_SCOPE_ALL };

/* Memory for KV blocks: bytes, or a fraction of what is free; both 0: the backend's usual share. */
struct option_memory {
    uint64_t bytes;
    double fraction;
};

/* Texts belong to the struct. An empty text is "not set". */
struct options {
    char *model_path;
    char *socket;
    int64_t socket_mode;
    char *socket_group;
    int64_t backend; /* enum option_backend */
    int64_t drain_timeout_s;
    int64_t log_level; /* enum log_level */
    char *backend_module;
    int64_t block_len;
    struct option_memory kv_memory;
    int64_t kv_dtype; /* enum kv_dtype of backend.h */
    int64_t prefix_cache;
    int64_t scope; /* enum option_scope */
    int64_t max_batch_tokens;
    int64_t max_seqs;
    int64_t max_seq_len;
    int64_t max_preemptions;
    int64_t max_step_ms;
    int64_t cpu_threads;
    int64_t tokenizer_threads;
    int64_t cuda_device;
    int64_t cuda_graphs;
    int64_t cuda_invariant;
    char *cuda_cache_folder;
    int64_t max_connections;
    int64_t max_connections_per_uid;
    int64_t max_requests;
    int64_t max_requests_per_connection;
    int64_t max_frame_bytes;
    int64_t max_output_bytes;
    int64_t max_request_bytes;
    int64_t max_buffer_bytes;
    int64_t frame_timeout_s;
};

/* Every option at its default. -ENOMEM. */
int options_init(struct options *o, struct err *e);
void options_deinit(struct options *o);

/* Sets one option from text: -EINVAL says what is allowed, -ENOENT that there is no such key and
 * which one is nearest. */
int options_set(struct options *o, const char *key, const char *value, struct err *e);

/* Reads a file; the first thing wrong is -EINVAL with file:line. A missing file is -ENOENT, which
 * the caller forgives where nobody has named it. */
int options_read(struct options *o, const char *path, struct err *e);

/* The table, for people: what --help prints. */
void options_print(FILE *f);

#endif
