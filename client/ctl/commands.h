/* commands.h - nvllmctl's commands and options, for the program and for what is generated from
 * them: completions and man page. */
#ifndef NVLLM_CLIENT_CTL_COMMANDS_H
#define NVLLM_CLIENT_CTL_COMMANDS_H

#include "proto/program.h"

extern const struct usage_program ctl_program;

/* Options of every command, and those that fill a request or name a prompt. */
extern const struct usage_option ctl_common_options[], ctl_request_options[], ctl_prompt_options[];

#endif
