/* nvllm_client.h - use nvllmd, the daemon that keeps a language model resident on this host.
 *
 * Text, token ids or chat messages go in; text and tokens come back as they are generated. Many
 * requests may be in progress on one connection.
 *
 * Threads: a client belongs to one thread at a time; different clients are independent. The library
 * starts no thread, installs no signal handler, has no global state and prints nothing. Descriptors
 * are close-on-exec, and a closed connection never raises SIGPIPE. After fork() a client belongs to
 * the parent: the child may only call nvllm_close(), which leaves the parent's connection alone.
 *
 * Ownership: what a call returns by const pointer belongs to the client and is valid until the next
 * call with the same client (except nvllm_fd, nvllm_wants, nvllm_timeout, nvllm_pending and
 * nvllm_greeted). Arguments are read during the call and never kept.
 *
 * Times are milliseconds of the monotonic clock. Every timeout_ms, an argument or a member, means
 * the same: 0 does not wait, a negative value never expires.
 *
 * Errors: calls return NVLLM_OK or one of enum nvllm_code, and fill *err (which may be NULL) on
 * failure only. Other results are written on success only, except that nvllm_connect() and
 * nvllm_connect_start() set *client to NULL on failure.
 *
 * Structs that a program fills in begin with their size and are initialised by their init macro, so
 * that they can grow while programs built earlier keep working. Structs without a size that lie in
 * arrays, or in the program's own memory, never grow. */
#ifndef NVLLM_CLIENT_H
#define NVLLM_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The version of this header; nvllm_client_version() is that of the loaded library. As a number,
 * each part has a byte: 0x000100 is 0.1.0. */
#define NVLLM_CLIENT_VERSION        "0.1.0"
#define NVLLM_CLIENT_VERSION_NUMBER 0x000100

#define NVLLM_DEFAULT_SOCKET "/run/nvllm/nvllm.sock"

/* ---- errors */

enum nvllm_code {
    NVLLM_OK = 0,

    /* Reported by the daemon. */
    NVLLM_E_INVALID = 1, /* an invalid value; error.field names it (the library checks some, too) */
    NVLLM_E_TOO_LONG = 2,     /* prompt and max_tokens can never fit */
    NVLLM_E_UNAVAILABLE = 3,  /* loading the model, draining or shutting down, which also ends an
                                 answer that has begun; retryable */
    NVLLM_E_BUSY = 4,         /* a limit on requests in progress; retryable */
    NVLLM_E_DEADLINE = 5,     /* deadline_ms of nvllm_embed() has expired; that of generate ends
                                 with done, and its choices with NVLLM_FINISH_DEADLINE */
    NVLLM_E_CANCELLED = 6,    /* cancelled before it had a result; generate ends with done and
                                 NVLLM_FINISH_CANCELLED instead */
    NVLLM_E_DENIED = 7,       /* permission denied, also to open the socket */
    NVLLM_E_PROTOCOL = 8,     /* one side violated the protocol; the connection has ended */
    NVLLM_E_INTERNAL = 9,     /* the daemon is out of memory, or its backend failed */
    NVLLM_E_UNSUPPORTED = 10, /* this daemon or model does not support the operation */

    /* Found by the library. */
    NVLLM_E_NOT_RUNNING = 64, /* no process listens on the socket */
    NVLLM_E_CONNECTION = 65,  /* the connection broke: all its requests have ended, and the client
                                 can only be closed */
    NVLLM_E_TIMEOUT = 66,     /* the call's timeout has expired; the connection is still usable */
    NVLLM_E_NOMEM = 67,
};

/* In the caller's memory, without a size: it never grows, and later versions use reserved. */
struct nvllm_error {
    enum nvllm_code code;
    bool retryable;          /* the same request may succeed later */
    uint32_t retry_after_ms; /* when to try again; 0: not known */
    int sys_errno;           /* of the system call that failed; 0: none */
    char message[512];       /* one line, without control characters */
    char field[120];         /* what is wrong in the request, as nvllm-protocol(7) names it, whoever
                                finds it: "sampling.top_p", "chat.messages[0].role"; or the member of
                                struct nvllm_options or the argument; or empty */
    char limit[80];          /* the daemon's option whose limit was exceeded, or empty */
    uint64_t limit_value;    /* what it is set to */
    uint64_t reserved[16];
};

/* A stable name for a code: "too_long". Never NULL. */
const char *nvllm_code_name(enum nvllm_code code);

/* Bytes with their length: prompts and answers may hold any character, also NUL. Not
 * NUL-terminated. data NULL means "absent" where that differs from empty. */
struct nvllm_text {
    const char *data;
    size_t len;
};

/* The text of a C string. */
struct nvllm_text nvllm_str(const char *s);

/* The version of the loaded library: "0.1.0". */
const char *nvllm_client_version(void);

/* ---- connection */

struct nvllm_client; /* one connection */

enum nvllm_state {
    NVLLM_STATE_UNKNOWN = 0,
    NVLLM_STATE_LOADING = 1,
    NVLLM_STATE_READY = 2,
    NVLLM_STATE_DRAINING = 3,
    NVLLM_STATE_FAILED = 4,
};

struct nvllm_options {
    size_t size;
    const char *socket_path; /* NVLLM_DEFAULT_SOCKET */
    int fd; /* -1; else a connected stream socket, which the client owns from the call on, even if
               connecting fails (socket_path is then for messages) */
    const char *name;       /* the program's name, for the daemon's log; "libnvllm-client" */
    int timeout_ms;         /* 10000; for connecting, including waiting */
    bool wait_ready;        /* false; wait until the model is loaded */
    bool wait_start;        /* false; wait until the daemon listens, too */
    size_t max_frame_bytes; /* 64 MiB; larger answers are protocol errors */
    size_t max_queue_bytes; /* 256 MiB; of requests not yet sent, and of events not yet fetched */
    void (*on_wait)(void *arg, enum nvllm_state state,
                    float progress); /* NULL; called repeatedly while waiting; state UNKNOWN: nobody
                                        listens yet */
    void *on_wait_arg;
    bool reconnect; /* true; requests outlive a restart of the daemon, see below. Not with fd */
};

void nvllm_options_init_size(struct nvllm_options *options, size_t size);
#define nvllm_options_init(options) nvllm_options_init_size((options), sizeof(struct nvllm_options))

/* Connects and exchanges greetings. options may be NULL. NVLLM_E_NOT_RUNNING, _DENIED, _TIMEOUT,
 * _CONNECTION, _PROTOCOL, _NOMEM, _INVALID (of the options), or an error of the daemon. On failure
 * *client is NULL, which nvllm_close() takes; so with nvllm_connect_start(). */
enum nvllm_code nvllm_connect(struct nvllm_client **client, const struct nvllm_options *options,
                              struct nvllm_error *err);

/* Connects without waiting, for an event loop: tries the socket once and sends the greeting.
 * Requests may be started at once, of at most 4 MiB until the daemon has sent its own limit.
 * wait_ready and wait_start do not apply. Later errors are returned by nvllm_process() and
 * nvllm_next(), also NVLLM_E_TIMEOUT if no greeting arrives within options.timeout_ms: it is
 * permanent then, and nvllm_wants() is 0. */
enum nvllm_code nvllm_connect_start(struct nvllm_client **client,
                                    const struct nvllm_options *options, struct nvllm_error *err);

/* With options.reconnect a client outlives its daemon. One that exits finishes the answers it has
 * begun, as long as its drain lasts, and refuses or no longer reads other requests. When it has
 * exited, the library connects again, waits until the model is loaded and sends these once more,
 * and those that the end of the drain cut off before anything of their answer was sent: generate,
 * embed, tokenize, detokenize and render. They keep their numbers and deadlines; what has neither
 * deadline nor timeout waits as long as that takes. Other requests, and answers that were cut off,
 * end with NVLLM_E_UNAVAILABLE; if nobody listens any more (with wait_start: not within
 * options.timeout_ms), those that wait end with NVLLM_E_NOT_RUNNING. A client without requests
 * connects again with its next one.
 *
 * A connection that ends without the daemon's farewell while it has requests, as in a crash, is
 * lost: NVLLM_E_CONNECTION. The daemon may have died of a request, which must not end the next. */

/* Whether the daemon has answered the greeting. */
bool nvllm_greeted(const struct nvllm_client *client);

/* Closes the connection; the daemon cancels its requests. Takes NULL. */
void nvllm_close(struct nvllm_client *client);

/* ---- generate */

enum nvllm_priority {
    NVLLM_PRIORITY_NORMAL = 0,
    NVLLM_PRIORITY_LOW = 1,
    NVLLM_PRIORITY_HIGH = 2, /* before all shares; for administrators, else NVLLM_E_DENIED */
};

struct nvllm_tool_call {
    struct nvllm_text name;
    struct nvllm_text arguments; /* one JSON value; a JSON string stands for its contents */
    struct nvllm_text id;
};

struct nvllm_message {
    const char *role; /* system, user, assistant or tool */
    struct nvllm_text content;
    struct nvllm_text reasoning_content;
    const struct nvllm_tool_call *tool_calls; /* [n_tool_calls] */
    size_t n_tool_calls;
    struct nvllm_text name;         /* of who speaks, or of the tool */
    struct nvllm_text tool_call_id; /* of a tool's message: the call that it answers */
};

enum nvllm_switch { NVLLM_UNSET = -1, NVLLM_OFF = 0, NVLLM_ON = 1 };

enum nvllm_tool_choice {
    NVLLM_TOOLS_AUTO = 0,     /* text, and calls among it; with a format that, or calls alone */
    NVLLM_TOOLS_NONE = 1,     /* the model is not told of the tools */
    NVLLM_TOOLS_REQUIRED = 2, /* after reasoning, if there is some, calls alone */
};

struct nvllm_chat {
    size_t size;
    const struct nvllm_message *messages; /* [n_messages] */
    size_t n_messages;
    const struct nvllm_text *tools; /* [n_tools] one JSON object each, as in OpenAI's interface. The
                                     * arguments of a tool whose function has "strict": true are an
                                     * instance of its parameters */
    size_t n_tools;
    enum nvllm_switch add_generation_prompt; /* unset: on */
    enum nvllm_switch enable_thinking;       /* unset: the template's default */
    const struct nvllm_text *documents; /* [n_documents] one JSON object each, for templates that
                                         * cite them */
    size_t n_documents;
    /* A JSON object: more variables of the template. It may not have those that the members above
     * or the model's special tokens set. */
    struct nvllm_text chat_template_kwargs;
    enum nvllm_tool_choice tool_choice;
    struct nvllm_text called_tool; /* with NVLLM_TOOLS_REQUIRED: the name of the one tool to call */
    enum nvllm_switch parallel_tool_calls; /* off: one call at most; unset: on */
};

void nvllm_chat_init_size(struct nvllm_chat *chat, size_t size);
#define nvllm_chat_init(chat) nvllm_chat_init_size((chat), sizeof(struct nvllm_chat))

struct nvllm_logit_bias {
    int32_t id;
    float bias; /* [-100, 100] */
};

/* What an answer must be, instead of any text. The model can then generate nothing else; the
 * reasoning before a chat's answer is free. An answer that ends by max_tokens may be cut. */
enum nvllm_format {
    NVLLM_FORMAT_TEXT = 0, /* any text */
    NVLLM_FORMAT_JSON = 1, /* any JSON object */
    NVLLM_FORMAT_JSON_SCHEMA = 2,
    NVLLM_FORMAT_REGEX = 3,
    NVLLM_FORMAT_GRAMMAR = 4,
    NVLLM_FORMAT_CHOICE = 5, /* one of several texts */
};

/* One of prompt, prompt_ids and chat is the input. Numbers that are unset (NaN for a float,
 * negative for an integer) take the model's defaults. */
struct nvllm_request {
    size_t size;
    struct nvllm_text prompt;  /* raw text; special tokens spelled out in it are matched, and those
                                  that the tokenizer puts before a text are put there */
    const int32_t *prompt_ids; /* [n_prompt_ids] */
    size_t n_prompt_ids;
    const struct nvllm_chat *chat;

    float temperature;                         /* >= 0; 0 is greedy */
    int64_t top_k;                             /* 0: off */
    float top_p;                               /* (0, 1] */
    float min_p;                               /* [0, 1] */
    float repetition_penalty;                  /* > 0 */
    float presence_penalty;                    /* [-2, 2] */
    float frequency_penalty;                   /* [-2, 2] */
    const struct nvllm_logit_bias *logit_bias; /* [n_logit_bias] */
    size_t n_logit_bias;
    bool has_seed; /* false: drawn at random */
    uint64_t seed;
    const struct nvllm_text *stop; /* [n_stop] strings that end the text and are not part of it */
    size_t n_stop;
    const int32_t *stop_token_ids; /* [n_stop_token_ids] */
    size_t n_stop_token_ids;
    bool ignore_eos;
    int64_t min_tokens;
    int64_t max_tokens; /* unset: as many as fit */
    int64_t logprobs;   /* alternatives reported for each token; unset: no logprobs */
    int64_t n;          /* choices; unset: 1 */
    enum nvllm_priority priority;
    struct nvllm_text cache_salt; /* limits who shares this prompt's cached prefix */
    uint32_t deadline_ms; /* from arrival at the daemon, including queueing; 0: none. What was
                             generated by then is sent, with NVLLM_FINISH_DEADLINE and done */
    bool stream;          /* true; false: one delta per choice, at its end */
    bool keep_special;    /* show special tokens in the text */
    int timeout_ms;  /* -1: never. Enforced by the library, even if the daemon hangs: the request
                        ends with NVLLM_E_TIMEOUT */
    bool raw_text;   /* of a chat: reasoning and tool calls stay in the text, with their tags */
    void *user_data; /* the program's own; its events have it */
    enum nvllm_format format;      /* what the text must be. Not with ignore_eos */
    struct nvllm_text format_text; /* the JSON Schema, which the text is an instance of; the regular
                                      expression of ECMA-262, which matches all of it; or the
                                      grammar in GBNF, whose rule "root" it is */
    const struct nvllm_text *format_choices; /* [n_format_choices] of NVLLM_FORMAT_CHOICE */
    size_t n_format_choices;
    const char *session; /* the session that this is a turn of, see nvllm_sessions.h; NULL: none.
                            chat has the messages to append and the choice of tools alone, or is
                            NULL: none. Not with n, keep_special and raw_text */
};

void nvllm_request_init_size(struct nvllm_request *request, size_t size);
#define nvllm_request_init(request) nvllm_request_init_size((request), sizeof(struct nvllm_request))

/* Queues a request and sends what the socket takes at once. *id is its number, never 0;
 * nvllm_next() returns its events: deltas, then one done or error. NVLLM_E_INVALID, _TOO_LONG (over
 * the daemon's frame limit: nothing is sent), _BUSY (max_queue_bytes are waiting to be sent),
 * _CONNECTION, _PROTOCOL, _NOMEM. */
enum nvllm_code nvllm_generate_start(struct nvllm_client *client, uint64_t *id,
                                     const struct nvllm_request *request, struct nvllm_error *err);

/* Asks the daemon to end a request. Its last event still follows soon: done for generate, whose
 * choices end with NVLLM_FINISH_CANCELLED; for others their answer or NVLLM_E_CANCELLED. Has no
 * effect on a request that has ended. Does not wait. */
enum nvllm_code nvllm_cancel(struct nvllm_client *client, uint64_t id, struct nvllm_error *err);

/* ---- events */

enum nvllm_finish {
    NVLLM_FINISH_NONE = 0,
    NVLLM_FINISH_STOP = 1,
    NVLLM_FINISH_LENGTH = 2,
    NVLLM_FINISH_CANCELLED = 3,
    NVLLM_FINISH_DEADLINE = 4,
    NVLLM_FINISH_ERROR = 5, /* the model computed NaN or infinity */
};

/* "stop", "length", "cancelled", "deadline", "error"; "none" for a choice that has not ended. */
const char *nvllm_finish_name(enum nvllm_finish finish);

/* Natural logarithms, before penalties and temperature. */
struct nvllm_logprobs {
    float logprob;             /* of the token itself */
    uint32_t n_top;            /* best first */
    const int32_t *top_ids;    /* [n_top] */
    const float *top_logprobs; /* [n_top] */
};

/* Made by the library; grows at its end.
 *
 * Of a chat's answer the text is the content alone. Models write their reasoning between <think>
 * and </think>, tool calls as JSON between <tool_call> and </tool_call>; a model does so if its
 * chat template has these, and calls tools if the chat has some. What only looks like a call is
 * text. */
struct nvllm_delta {
    uint32_t choice;                       /* 0 .. n - 1 */
    struct nvllm_text text;                /* complete characters; may lag behind token_ids */
    const int32_t *token_ids;              /* [n_tokens] */
    const struct nvllm_logprobs *logprobs; /* [n_tokens], or NULL if not requested */
    size_t n_tokens;
    enum nvllm_finish finish; /* not NONE: this is the choice's last delta */
    struct nvllm_text reasoning;
    const struct nvllm_tool_call *tool_calls; /* [n_tool_calls] complete; arguments: an object */
    size_t n_tool_calls;
};

struct nvllm_done {
    uint32_t prompt_tokens;
    uint32_t cached_tokens;     /* of the prompt, found in the prefix cache */
    uint32_t completion_tokens; /* of all choices */
    uint32_t preemptions;
    double queue_ms; /* from arrival to the first step that computes the prompt */
    double ttft_ms;  /* from arrival to the first token */
    double total_ms;
};

enum nvllm_event_type {
    NVLLM_EVENT_DELTA = 1, /* any number of times */
    NVLLM_EVENT_DONE = 2,  /* the request has ended, and its number is free */
    NVLLM_EVENT_ERROR = 3, /* it has ended without a result */

    /* The answer of nvllm_tokenize_start() and nvllm_token_bytes_start(); of
     * nvllm_detokenize_start() and nvllm_render_start();
     * of nvllm_get_status_start(). */
    NVLLM_EVENT_TOKENS = 4,
    NVLLM_EVENT_TEXT = 5,
    NVLLM_EVENT_STATUS = 6,

    /* Of nvllm_trace_start(): records, any number of times, and the end. */
    NVLLM_EVENT_TRACE = 7,
    NVLLM_EVENT_TRACED = 8,

    NVLLM_EVENT_EMBEDDING = 9, /* the answer of nvllm_embed_start() */
};

/* Made by the library; grows at its end. The pointer of its type is set, the others are NULL. */
struct nvllm_event {
    enum nvllm_event_type type;
    uint64_t id;
    const struct nvllm_delta *delta;
    const struct nvllm_done *done;
    const struct nvllm_error *error;
    const struct nvllm_tokens *tokens;
    const struct nvllm_text *text;
    const struct nvllm_status *status;
    const struct nvllm_trace *trace; /* of nvllm_admin.h, as the next */
    const struct nvllm_traced *traced;
    void *user_data; /* of the request; NULL unless nvllm_generate(), its _start or
                        nvllm_embed_start() began it */
    const struct nvllm_embedding *embedding;
};

/* The next event of any request. NVLLM_E_TIMEOUT: none has arrived (with timeout_ms 0: none is
 * available). NVLLM_E_CONNECTION, _PROTOCOL and other permanent errors follow all events that
 * arrived before; all requests have then ended. */
enum nvllm_code nvllm_next(struct nvllm_client *client, int timeout_ms,
                           const struct nvllm_event **event, struct nvllm_error *err);

/* Runs one request to its end. The callback, which may be NULL, gets each delta, and done; a return
 * value other than 0 cancels the request, and the callback is still called until it has ended.
 * Events of other requests are kept for nvllm_next(). Returns NVLLM_OK after done, the error's code
 * after an error, and NVLLM_E_TIMEOUT when timeout_ms or the request's own timeout expires (the
 * request is then cancelled). The callback must not use the client: calls that wait or take events
 * fail there with NVLLM_E_INVALID. It must return, not leave by longjmp or an exception. */
typedef int nvllm_callback(void *arg, const struct nvllm_event *event);
enum nvllm_code nvllm_generate(struct nvllm_client *client, const struct nvllm_request *request,
                               nvllm_callback *callback, void *arg, int timeout_ms,
                               struct nvllm_error *err);

/* The number of requests whose last event nvllm_next() has not returned. */
size_t nvllm_pending(const struct nvllm_client *client);

/* ---- embed
 *
 * For models that make embeddings: nvllm_status.embedding_dim says how many values they have. Start
 * many texts at a time: they are computed together. */

struct nvllm_embed_options {
    size_t size;
    /* One of these is the input. Special tokens spelled out in a text are plain text; tokens that
     * the tokenizer puts before and after a text are put there. Ids are taken as they are. */
    struct nvllm_text prompt;
    const int32_t *prompt_ids; /* [n_prompt_ids] */
    size_t n_prompt_ids;
    const char *prompt_name; /* of the model's prompts, which is put before the text: "query"; NULL:
                                its default one, if it has one. Not with prompt_ids */
    int64_t dimensions;      /* -1: all; else so many leading values */
    enum nvllm_priority priority;
    struct nvllm_text cache_salt; /* limits who shares this text's cached prefix */
    uint32_t deadline_ms; /* from arrival at the daemon, including queueing; 0: none. Afterwards it
                             ends with NVLLM_E_DEADLINE */
    void *user_data;      /* the program's own; the event of nvllm_embed_start() has it */
};

void nvllm_embed_options_init_size(struct nvllm_embed_options *options, size_t size);
#define nvllm_embed_options_init(options)                                                          \
    nvllm_embed_options_init_size((options), sizeof(struct nvllm_embed_options))

/* Made by the library; grows at its end. */
struct nvllm_embedding {
    const float *values; /* [n_values] of length 1 where the model normalizes */
    size_t n_values;
    uint32_t prompt_tokens;
    uint32_t cached_tokens; /* of the prompt, found in the prefix cache */
    double queue_ms;        /* from arrival to the first step that computes the text */
    double total_ms;
};

/* NVLLM_E_UNSUPPORTED: the model makes no embeddings. */
enum nvllm_code nvllm_embed(struct nvllm_client *client, const struct nvllm_embed_options *options,
                            int timeout_ms, const struct nvllm_embedding **embedding,
                            struct nvllm_error *err);

/* Does not wait: *id is the request's number, and the answer, or an error, is an event of
 * nvllm_next(), NVLLM_E_TIMEOUT after timeout_ms. */
enum nvllm_code nvllm_embed_start(struct nvllm_client *client, uint64_t *id,
                                  const struct nvllm_embed_options *options, int timeout_ms,
                                  struct nvllm_error *err);

/* ---- tokenizer and template: each call waits for its answer
 *
 * The calls with _start do not: *id is the request's number, and the answer, or an error, is an
 * event of nvllm_next(), NVLLM_E_TIMEOUT after timeout_ms. */

struct nvllm_tokens {
    const int32_t *ids; /* [n_tokens] */
    const struct nvllm_text
        *tokens; /* [n_tokens] the bytes of each, which may be parts of a character */
    size_t n_tokens;
};

enum nvllm_code nvllm_tokenize(struct nvllm_client *client, struct nvllm_text text, bool special,
                               int timeout_ms, const struct nvllm_tokens **tokens,
                               struct nvllm_error *err);

enum nvllm_code nvllm_detokenize(struct nvllm_client *client, const int32_t *ids, size_t n_ids,
                                 bool skip_special, int timeout_ms, struct nvllm_text *text,
                                 struct nvllm_error *err);

enum nvllm_code nvllm_tokenize_start(struct nvllm_client *client, uint64_t *id,
                                     struct nvllm_text text, bool special, int timeout_ms,
                                     struct nvllm_error *err);

enum nvllm_code nvllm_detokenize_start(struct nvllm_client *client, uint64_t *id,
                                       const int32_t *ids, size_t n_ids, bool skip_special,
                                       int timeout_ms, struct nvllm_error *err);

/* The bytes of ids, one or more: the answer is as of nvllm_tokenize_start(). Unlike a text, which
 * is UTF-8, they may be parts of a character. */
enum nvllm_code nvllm_token_bytes_start(struct nvllm_client *client, uint64_t *id,
                                        const int32_t *ids, size_t n_ids, int timeout_ms,
                                        struct nvllm_error *err);

/* Renders messages by the model's chat template. */
enum nvllm_code nvllm_render(struct nvllm_client *client, const struct nvllm_chat *chat,
                             int timeout_ms, struct nvllm_text *text, struct nvllm_error *err);

enum nvllm_code nvllm_render_start(struct nvllm_client *client, uint64_t *id,
                                   const struct nvllm_chat *chat, int timeout_ms,
                                   struct nvllm_error *err);

/* ---- status */

/* What of the model's memory is given back while there are no requests. */
enum nvllm_sleep_level {
    NVLLM_SLEEP_NONE = 0,
    NVLLM_SLEEP_WEIGHTS = 1, /* weights and workspaces */
    NVLLM_SLEEP_ALL = 2,     /* and the device's KV blocks, which are copied to the tier below */
};

/* "none", "weights", "all", "unknown". */
const char *nvllm_sleep_level_name(enum nvllm_sleep_level level);

/* A rank with a device of its own; made by the library. */
struct nvllm_rank {
    const char *device;
    uint64_t total_bytes;  /* of the device's memory */
    uint64_t free_bytes;   /* when the engine was last idle, as is exchange_share */
    double exchange_share; /* of the time of steps, since the start or the last wake: exchanging
                            * partial sums with other ranks, or waiting for them; 0 .. 1 */
};

/* Made by the library; grows at its end. Texts are never NULL. */
struct nvllm_status {
    enum nvllm_state state;
    float progress; /* of loading, 0 to 1 */
    const char *model;
    const char *model_folder;
    const char *backend; /* "cpu" */
    const char *device;
    const char *server; /* "nvllmd/0.1.0" */
    uint64_t uptime_ms;
    uint32_t blocks_total;
    uint32_t blocks_used;   /* held by a sequence */
    uint32_t blocks_cached; /* free, with content that may be found again */
    uint32_t blocks_free;
    uint32_t block_len;   /* tokens */
    uint32_t max_seq_len; /* tokens */
    uint32_t requests_running;
    uint32_t requests_waiting;
    uint64_t prefix_queried_tokens;
    uint64_t prefix_hit_tokens;
    uint64_t preemptions;
    uint32_t connections;
    uint64_t weight_bytes;
    uint64_t kv_bytes;
    uint64_t steps;
    uint64_t prompt_tokens; /* computed since the start */
    uint64_t output_tokens;
    const char *driver; /* of the device, "580.159.04, CUDA 13.0" */
    /* On a device weights, kv, graphs, workspaces and other add up to total - free, as its driver
     * counts; on the CPU graphs, other, total and free are 0. */
    uint64_t graph_bytes;
    uint64_t workspace_bytes;
    uint64_t other_bytes;
    uint64_t total_bytes;
    uint64_t free_bytes;
    /* Cached blocks in host memory and on disk, see cache.host_memory and cache.disk in
     * nvllmd.conf(5). */
    uint64_t host_bytes; /* ready for copies; on a device less than asked for after a start */
    uint32_t host_blocks_total;
    uint32_t host_blocks_cached; /* with content that may be found again */
    uint64_t host_blocks_stored; /* copied there since the start */
    uint64_t host_blocks_loaded; /* and back */
    uint64_t disk_bytes;         /* of the cached blocks */
    uint32_t disk_blocks_total;
    uint32_t disk_blocks_cached;
    uint64_t disk_blocks_stored;
    uint64_t disk_blocks_loaded;
    enum nvllm_sleep_level asleep; /* the state is as if awake: the next request wakes the model */
    uint32_t tensor_parallel;      /* ranks that share each layer; 0 while loading */
    size_t n_ranks;                /* that have a device each; 0: all share one */
    const struct nvllm_rank *const *ranks;
    uint32_t embedding_dim; /* values of an embedding; 0: the model makes none */
    uint32_t processes; /* of a cluster, whose ranks share each layer; 0: there is one. Ranks and
                         * memory are of this one */
    /* Computed ahead since the start, see scheduler.speculation in nvllmd.conf(5); and of these,
     * those that were right. */
    uint64_t draft_tokens;
    uint64_t accepted_tokens;
    uint64_t model_draft_tokens; /* of both, by the draft model, see model.draft there */
    uint64_t model_accepted_tokens;
    uint64_t draft_bytes; /* that it takes; on a device it adds up with those above */
    const char *weights;  /* what they are kept as: "bf16", "fp8", "int4" */
    const char *kv_dtype; /* what keys and values are kept as: "f32", "bf16", "fp8" */
};

enum nvllm_code nvllm_get_status(struct nvllm_client *client, int timeout_ms,
                                 const struct nvllm_status **status, struct nvllm_error *err);

/* "loading", "ready", "draining", "failed", "unknown". */
const char *nvllm_state_name(enum nvllm_state state);

enum nvllm_code nvllm_get_status_start(struct nvllm_client *client, uint64_t *id, int timeout_ms,
                                       struct nvllm_error *err);

/* ---- event loops
 *
 * Watch nvllm_fd() for what nvllm_wants() returns. When it is ready, or nvllm_timeout() has passed,
 * call nvllm_process() and then nvllm_next() with timeout 0 until it returns NVLLM_E_TIMEOUT. Ask
 * all three again before sleeping: with options.reconnect also the descriptor changes, to one of
 * another number, and the old one is closed. */

enum {
    NVLLM_WANT_READ = 1,
    NVLLM_WANT_WRITE = 2,
};

int nvllm_fd(const struct nvllm_client *client);

/* A set of NVLLM_WANT_…; 0 when nvllm_next() has no more events: the connection has ended. */
unsigned nvllm_wants(const struct nvllm_client *client);

/* Milliseconds until the library's own next deadline (of a request, of the greeting), as poll()
 * takes them: -1 if there is none, 0 also if an event is available. */
int nvllm_timeout(const struct nvllm_client *client);

/* Reads and writes without waiting, and ends requests whose deadline has passed. */
enum nvllm_code nvllm_process(struct nvllm_client *client, struct nvllm_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#include "nvllm_admin.h"
#include "nvllm_sessions.h"

#endif
