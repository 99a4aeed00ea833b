/* model_check.h - a report of all that is wrong with a model folder, for people.
 *
 * Where model_open says the first problem, this goes on as far as there is sense in it. Covers
 * config.json, generation_config.json and the tensors; not the tokenizer. No state; any thread. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_CHECK_H
#define NVLLM_ENGINE_MODEL_MODEL_CHECK_H

#include <stdint.h>
#include <stdio.h>

/* Prints a line for each part that is right ("ok     config.json"), for each problem ("wrong  …")
 * and one that sums the model up. 0 when model_open would take the folder, else the negative errno
 * of the first problem: -ENOENT too where only the weights are not there. *vocab_size is what
 * config.json says, or 0 where there is something wrong with it. */
int model_check(int32_t *vocab_size, const char *folder, FILE *out);

#endif
