/* usage.h - nvllm-openai's command line. */
#ifndef NVLLM_CLIENT_OPENAI_USAGE_H
#define NVLLM_CLIENT_OPENAI_USAGE_H

#include "proto/program.h"

extern const struct usage_program openai_program;

#endif
