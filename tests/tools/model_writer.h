/* model_writer.h - writes a model folder as Hugging Face does: config.json, generation_config.json,
 * the tokenizer's files, safetensors headers and index. The caller writes the weights to the places
 * of the tensors.
 *
 * One thread; many may write to the shards' descriptors. */
#ifndef NVLLM_TESTS_TOOLS_MODEL_WRITER_H
#define NVLLM_TESTS_TOOLS_MODEL_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"
#include "engine/model/model.h"
#include "engine/model/tensor_table.h"

enum { WRITER_MAX_SHARDS = 256 };

/* How an initializer of struct model_config begins for each family. */
#define WRITER_LLAMA   .arch = "LlamaForCausalLM"
#define WRITER_MISTRAL .arch = "MistralForCausalLM"
#define WRITER_QWEN2   .qkv_bias = true, .arch = "Qwen2ForCausalLM"
#define WRITER_QWEN3   .qk_norm = true, .arch = "Qwen3ForCausalLM"
/* With the number of experts, and of those of a token; ffn_dim is an expert's. */
#define WRITER_MIXTRAL(n, n_of_token)                                                              \
    .n_experts = n, .n_experts_per_tok = n_of_token, .norm_topk = true, .block_sparse_moe = true,  \
    .arch = "MixtralForCausalLM"
#define WRITER_QWEN3_MOE(n, n_of_token)                                                            \
    .n_experts = n, .n_experts_per_tok = n_of_token, .qk_norm = true, .arch = "Qwen3MoeForCausalLM"

struct writer_shard {
    char name[64];
    int fd;
    uint64_t bytes; /* of data */
};

struct writer {
    /* set by the caller */
    const char *folder;
    const char *tokenizer; /* folder to copy a tokenizer from */
    struct model_config config;
    enum dtype dtype;
    size_t n_shards; /* wanted; writer_open lowers it, since no shard may be empty */
    uint64_t seed;
    /* set by writer_open */
    struct {
        struct tensor *all; /* [n] by name; file is an index into shards */
        char (*names)[TENSOR_NAME_BYTES];
        size_t n;
        uint64_t n_elements, bytes;
    } tensors;
    struct writer_shard shards[WRITER_MAX_SHARDS];
};

/* Creates the folder and its files; those of the weights have their full size but no content. */
int writer_open(struct writer *w, struct err *e);
int writer_close(struct writer *w, struct err *e); /* reports late write errors */

#endif
