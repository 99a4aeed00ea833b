/* model_check.h - a report of every problem of a model folder, for people.
 *
 * Unlike model_open it goes on after the first problem. It covers config.json,
 * generation_config.json and the tensors, not the tokenizer. No state; any thread. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_CHECK_H
#define NVLLM_ENGINE_MODEL_MODEL_CHECK_H

#include <stdint.h>
#include <stdio.h>

/* Prints one line for each part that is right ("ok     config.json"), one for each problem
 * ("wrong  …"), and a summary of the model. 0 where model_open would succeed, else the negative
 * errno of the first problem, -ENOENT if only the weights are missing. *vocab_size is 0 if
 * config.json has a problem. */
int model_check(int32_t *vocab_size, const char *folder, FILE *out);

#endif
