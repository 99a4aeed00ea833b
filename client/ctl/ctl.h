/* ctl.h - what nvllmctl's commands share: exit codes, options, messages, output.
 *
 * Data goes to stdout, messages to stderr. One thread. */
#ifndef NVLLM_CLIENT_CTL_CTL_H
#define NVLLM_CLIENT_CTL_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/commands.h"
#include "client/lib/nvllm_client.h"

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
    bool any_state;   /* the command neither waits for the model nor long for an answer */
    bool needs_model; /* this time, though the command does not always */
    bool no_wait;     /* while the model is being loaded */
    bool wait;        /* until somebody listens */
    int64_t deadline; /* of --timeout, from the start; -1: none */
};

/* The commands. Each gives the exit code. */
typedef int ctl_run(struct ctl *ctl);
ctl_run ctl_batch, ctl_bench, ctl_blocks, ctl_cache, ctl_cancel, ctl_chat, ctl_detokenize;
ctl_run ctl_doctor, ctl_drain, ctl_explain, ctl_generate, ctl_help, ctl_log_level, ctl_reload;
ctl_run ctl_render, ctl_requests, ctl_resume, ctl_status, ctl_stop, ctl_tokenize, ctl_top;
ctl_run ctl_version;

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

/* Prints a message and where help is, and ends the program with EXIT_USAGE. */
__attribute__((format(printf, 2, 3), noreturn)) void ctl_usage(const struct ctl *ctl,
                                                               const char *fmt, ...);

/* Ends the program for a word that none of n is, and names the nearest; else its index. */
size_t ctl_word(const struct ctl *ctl, const char *word, const char *const *words, size_t n);

/* Help on a command, or on all where it is NULL. */
void ctl_help_print(const struct usage_command *command);

/* ---- messages */

/* One line on stderr: "nvllmctl: …", control characters made harmless. */
__attribute__((format(printf, 1, 2))) void ctl_message(const char *fmt, ...);

/* Says an error of the library or the daemon, with what to do about it, and gives the exit code. */
int ctl_report(const struct ctl *ctl, const struct nvllm_error *err);
int ctl_exit_code(enum nvllm_code code);

/* For how long a request is put off that the daemon is too busy for: first_ms, doubled with each
 * try up to last_ms, but never less than what the daemon advises, who knows what it waits for.
 * Advice of more than a minute is no advice. */
int64_t ctl_put_off_ms(int n_tries, int first_ms, int last_ms, uint32_t advice_ms);

/* Fills err with NVLLM_E_INVALID; false, so that it can be returned. */
__attribute__((format(printf, 2, 3))) bool ctl_invalid(struct nvllm_error *err, const char *fmt,
                                                       ...);

/* ---- connection */

/* Connects as the common options say; tells people at a terminal what it waits for. EXIT_OK, or the
 * exit code after a message. */
int ctl_connect(struct nvllm_client **client, const struct ctl *ctl);
int ctl_left_ms(const struct ctl *ctl);

/* Until when the end of what is cancelled now is waited for: not long where --timeout is over. */
int64_t ctl_cancel_end(const struct ctl *ctl);

/* From here on Ctrl-C and SIGTERM are noted and not deadly; the second one is. */
void ctl_catch_interrupts(void);
int ctl_interrupted(void); /* the exit code to end with, or 0 */

/* For programs that Ctrl-C does not end: no number of them is deadly, and one can be forgotten. */
void ctl_spare_interrupts(void);
void ctl_forget_interrupt(void);

/* As nvllm_next(), and NVLLM_E_TIMEOUT (*err is not filled then) once after an interrupt, however
 * much else there is, and when also_fd (-1: none) can be read. */
enum nvllm_code ctl_next(struct nvllm_client *client, int also_fd, int timeout_ms,
                         const struct nvllm_event **event, struct nvllm_error *err);

/* Waits until fd, or also_fd (-1: none), can be read or the time is over; false: an interrupt came
 * that nobody has been told of yet. */
bool ctl_wait_input(int fd, int also_fd, int timeout_ms);

/* ---- input and output */

/* Writes all; false when it cannot be: said on stderr, but for a reader who went away. */
bool ctl_write(int fd, const void *data, size_t n);

/* Text from the model: for a terminal without characters that steer it. */
bool ctl_write_text(int fd, const char *data, size_t n, bool terminal);

/* All that fd holds, malloc'd. EXIT_OK, or the exit code after a message. */
int ctl_read_all(int fd, char **data, size_t *n);

#endif
