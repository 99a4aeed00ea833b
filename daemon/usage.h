/* usage.h - nvllmd's command line: its commands and options, for the program and for what is
 * generated from them. The options of the configuration are in options.h. */
#ifndef NVLLM_DAEMON_USAGE_H
#define NVLLM_DAEMON_USAGE_H

#include "proto/program.h"

extern const struct usage_program nvllmd_program;

/* Prints usage, and all options of the configuration. */
void nvllmd_usage_print(void);

#endif
