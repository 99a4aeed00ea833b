/* offline.h - sub-commands without a daemon. On a model folder: tokenize, detokenize, render,
 * schema and check, which read stdin or one argument and write stdout. On a directory of folders:
 * list. On all options: check-config. */
#ifndef NVLLM_DAEMON_OFFLINE_H
#define NVLLM_DAEMON_OFFLINE_H

#include <stdbool.h>

#include "daemon/options.h"
#include "engine/util/err.h"

/* Runs a command of that name on the options' model folder, with the command's own options and at
 * most one argument; render needs no folder where there is a chat template. Exit status: 0, or 1
 * after a message. */
int offline_run(const char *command, const struct options *options, const struct usage_line *line);

/* What check prints: a line for each part of the folder. chat_template is a file, or NULL for the
 * folder's own. */
void offline_check_folder(const char *folder, const char *chat_template, struct problems *p);

/* ---- model_list.c */

/* Prints the model folder that a directory is or those below it, or where models are installed if
 * it is NULL: those that would run with these options, and the first reason why others would not.
 * Where the options are NULL, which why explains, or their backend cannot be loaded, no backend is
 * asked, and a message says so. Exit status: 0, or 1 after a message if a directory could not be
 * read or holds too much. */
int model_list_run(const char *directory, const struct options *options, const struct err *why,
                   bool json);

/* ---- config_check.c */

struct config_check {
    const char *file;              /* of the options; NULL: there is none */
    const struct options *options; /* NULL: they are wrong */
    const struct err *why;         /* where options is NULL */
    const char *unit;              /* whose user and sandbox it runs in; NULL: the caller's */
    const struct err *not_in_unit; /* why not, where it should; NULL: it should not */
    bool json;                     /* one object instead of lines */
};

/* Prints whether nvllmd would start: each part that is right or wrong with the rights of the
 * calling user, and the command that fixes it. Changes nothing and loads no weights; the device is
 * opened unless a daemon runs. Exit status: 0, or 1 where something is wrong. */
int config_check_run(const struct config_check *check);

#endif
