/* ctl.h - what nvllmctl's commands share: exit codes, options, messages, output.
 *
 * Data goes to stdout, messages to stderr. One thread. */
#ifndef NVLLM_CLIENT_CTL_CTL_H
#define NVLLM_CLIENT_CTL_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "client/lib/nvllm_client.h"
#include "proto/program.h"

enum {
    EXIT_OK = 0,
    EXIT_ERROR = 1,
    EXIT_USAGE = 2,
    EXIT_NOT_RUNNING = 3,
    EXIT_REFUSED = 4, /* or busy */
    EXIT_DEADLINE = 5,
    EXIT_DENIED = 6,
    EXIT_INTERRUPTED = 130,
};

struct ctl {
    const struct usage_command *command; /* NULL: not known yet */
    struct usage_line line;              /* the command's options and arguments */
    const char *socket_path;
    struct nvllm_client *client; /* NULL: not connected; main() closes it */
    struct nvllm_error err;      /* why it failed */
    bool needs_model; /* false: the command neither waits for the model nor long for an answer */
    bool no_wait;     /* while the model is being loaded */
    bool wait;        /* until somebody listens */
    int64_t deadline; /* of --timeout, from the start; INT64_MAX: none */
};

/* All commands and options, from which completions and the man page are generated, too. */
extern const struct usage_program ctl_program;

/* The commands. Each gives the exit code, which an interrupt overrides. */
typedef int ctl_run(struct ctl *ctl);
ctl_run ctl_batch, ctl_bench, ctl_blocks, ctl_cache, ctl_cancel, ctl_chat, ctl_detokenize;
ctl_run ctl_doctor, ctl_drain, ctl_embed, ctl_explain, ctl_generate, ctl_help, ctl_list;
ctl_run ctl_log_level, ctl_reload, ctl_render, ctl_requests, ctl_resume, ctl_sessions, ctl_sleep;
ctl_run ctl_status, ctl_stop, ctl_tokenize, ctl_top, ctl_trace, ctl_version, ctl_wake;

/* ---- options: their names are those of commands.c, or the program aborts */

/* The last value given, "" for a flag; NULL: the option was not given. */
const char *ctl_option(const struct ctl *ctl, const char *option);

/* The same as a number from min to max, or fallback where it was not given; ends the program with a
 * message that names the option for anything else. */
int64_t ctl_whole(const struct ctl *ctl, const char *option, int64_t fallback, int64_t min,
                  int64_t max);
double ctl_real(const struct ctl *ctl, const char *option, double fallback, double min, double max);

/* A whole number that an option or an argument holds, checked likewise. */
int64_t ctl_number(const struct ctl *ctl, const char *option, const char *text, int64_t min,
                   int64_t max);

/* Text that is nothing but decimal digits. */
bool ctl_parse_u64(uint64_t *out, const char *text);

/* The user that --user names, or whose number it is; ends the program where there is none. */
uint32_t ctl_user(const struct ctl *ctl, const char *text);

/* The daemon's number of a request, likewise. */
uint64_t ctl_request_number(const struct ctl *ctl, const char *text);

/* The index of a word among the command's; any other ends the program, and the nearest is named. */
size_t ctl_word(const struct ctl *ctl, const char *word);

/* Finds the program nvllmd: beside this one, as installed and as built, or in the PATH of the shell
 * or of root. out has PATH_MAX bytes; false: it is not here. */
bool ctl_find_nvllmd(char *out);

/* ---- messages */

/* One line on stderr: "nvllmctl: …", without control characters. */
__attribute__((format(printf, 1, 2))) void ctl_message(const char *fmt, ...);

/* Ends the program at once, from anywhere. */
__attribute__((noreturn)) void ctl_exit(int rc);

/* Prints where help is, and ends the program with EXIT_USAGE. */
__attribute__((noreturn)) void ctl_exit_usage(const struct ctl *ctl);

/* End the program after a message, ctl_usage() because the command line is wrong. */
#define ctl_die(...)        (ctl_message(__VA_ARGS__), ctl_exit(EXIT_ERROR))
#define ctl_usage(ctl, ...) (ctl_message(__VA_ARGS__), ctl_exit_usage(ctl))

/* Prints an error of the library or the daemon, with advice, and gives the exit code. */
int ctl_report(const struct ctl *ctl, const struct nvllm_error *err);
int ctl_exit_code(enum nvllm_code code);

/* Ends the program after a report of ctl->err if the call that gave the code has failed. */
void ctl_check(const struct ctl *ctl, enum nvllm_code code);

/* Prints that --timeout has expired, and gives EXIT_DEADLINE. */
int ctl_report_timeout(void);

/* Fills err with NVLLM_E_INVALID; false, so that it can be returned. */
__attribute__((format(printf, 2, 3))) bool ctl_invalid(struct nvllm_error *err, const char *fmt,
                                                       ...);

/* ---- memory: the program ends with a message if there is none */

#define ctl_no_memory() ctl_die("out of memory")
void *ctl_alloc(size_t n, size_t size); /* zeroed */
void *ctl_grow(void *old, size_t n, size_t size);

/* A growing text; text_buffer_add() puts a NUL behind it. */
struct text_buffer {
    char *data;
    size_t len, cap;
};
void text_buffer_add(struct text_buffer *b, const char *data, size_t n);
void text_buffer_deinit(struct text_buffer *b);

/* ---- connection */

/* Connects as the common options say, and shows on a terminal what it waits for. Ends the program
 * after a report if that fails; ctl_try_connect() gives the error's code, with ctl->err. */
void ctl_connect(struct ctl *ctl);
enum nvllm_code ctl_try_connect(struct ctl *ctl);
int ctl_left_ms(const struct ctl *ctl);

/* How long to wait for a short answer. */
int ctl_ask_ms(const struct ctl *ctl);

/* Until when to wait for a cancelled request to end: not long if --timeout has expired. */
int64_t ctl_cancel_end(const struct ctl *ctl);

/* From here on the first SIGINT or SIGTERM is recorded, and the second one ends the program;
 * `interactive`: SIGINT never does, and one can be forgotten. False: there is no interrupt, or the
 * program is not interactive. */
void ctl_catch_interrupts(bool interactive);
bool ctl_forget_interrupt(void);
int ctl_interrupted(void); /* the exit code to end with, or 0 */

/* As nvllm_next(), but gives NVLLM_E_TIMEOUT, without *err, once after each interrupt, before any
 * event, and when also_fd (-1: none) is readable. */
enum nvllm_code ctl_next(struct ctl *ctl, int also_fd, int timeout_ms,
                         const struct nvllm_event **event, struct nvllm_error *err);

/* Waits until fd is readable or the time is over; false: an interrupt that was not reported yet. */
bool ctl_wait_input(int fd, int timeout_ms);

/* ---- input and output */

/* Writes all, or ends the program, with a message unless the reader has gone away. */
void ctl_write(int fd, const void *data, size_t n);

/* Text from the model, to stdout; for a terminal, each control character becomes U+FFFD. */
void ctl_write_text(struct nvllm_text text);

/* Text from elsewhere on one line: newlines and tabs become blanks, other control characters "?";
 * at most max bytes, unless 0. */
void ctl_put_line(FILE *to, const char *text, int max);

/* Opens a file; “-” is the standard stream. Ends the program with a message if that fails. */
int ctl_open(const char *path, int standard, int flags);

/* All that a file holds, malloc'd; ends the program with a message if it cannot be read. “-” is
 * stdin, and who types there is asked for what it is: “prompt”. */
char *ctl_read_file(const char *path, const char *what, size_t *n);

#endif
