/* fuzz.h - what the fuzz targets share: how an oracle speaks, and a mutator that knows JSON.
 *
 * A target is a file with LLVMFuzzerTestOneInput() as libFuzzer has it; built without libFuzzer,
 * fuzz_main.c runs the seeds and mutations of them through it. With FUZZ_PLANT the code under test
 * is told something else than the oracle, as if it had forgotten a check: then the seeds must make
 * the oracle speak. */
#ifndef NVLLM_TESTS_FUZZ_FUZZ_H
#define NVLLM_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef FUZZ_PLANT
#define FUZZ_PLANT 0
#endif

/* What must hold for every input. Where a bug is planted, being seen is no crash. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "fuzz: wrong: %s:%d: %s\n", __FILE__, __LINE__, #condition);           \
            FUZZ_PLANT ? _Exit(EXIT_FAILURE) : abort();                                            \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* libFuzzer's own or fuzz_main.c's, and the hook that either asks: a target may have none. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                                     unsigned int seed);

/* Changes one value of a JSON text in place; its bytes where it is no JSON, becomes too long, or by
 * chance. Returns the new size. */
size_t json_mutate(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

#endif
