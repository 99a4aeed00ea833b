/* offline.h - sub-commands on a model folder alone, without a daemon: tokenize, detokenize, render
 * and check. They read stdin or one argument and write stdout; messages go to stderr. */
#ifndef NVLLM_DAEMON_OFFLINE_H
#define NVLLM_DAEMON_OFFLINE_H

#include <stdbool.h>
#include <stdio.h>

struct offline_options {
    const char *model;
    const char *input; /* text from the command line; NULL: stdin */
    bool json;         /* one object out, and ids of detokenize are a JSON array in */
    bool jsonl;        /* one JSON value a line in, one object a line out */
    bool special;      /* tokenize: special tokens are matched */
    bool skip_special; /* detokenize: special tokens have no text */
};

/* Runs a command of that name. Exit status: 0, or 1 after a message. */
int offline_run(const char *command, const struct offline_options *o);

/* What check prints: a line that begins with "ok", "note" or "wrong" for each part of a folder.
 * Whether anything is wrong. */
bool offline_check_folder(const char *folder, FILE *out);

#endif
