/* model_writer.c - see model_writer.h. */
#include "tests/tools/model_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/util/file.h"
#include "engine/util/json_util.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"

enum { MAX_TOKENIZER_FILE = 64 << 20 };

static int write_file(int dir, const char *name, const char *text, size_t bytes, struct err *e)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

    if (!f) {
        int rc = err_set(e, -errno, "%s: %s", name, strerror(errno));

        if (fd >= 0)
            close(fd);
        return rc;
    }
    fwrite(text, 1, bytes, f);
    if (ferror(f) | fclose(f)) /* both: the file is closed in any case */
        return err_set(e, -EIO, "%s: cannot be written", name);
    return 0;
}

static int write_json(int dir, const char *name, json_t *root, struct err *e)
{
    char *text = json_dumps(root, JSON_INDENT(2));
    int rc;

    json_decref(root);
    if (!text)
        return err_set(e, -ENOMEM, "%s: no memory", name);
    rc = write_file(dir, name, text, strlen(text), e);
    free(text);
    return rc;
}

/* "rope_scaling" of config.json. */
static json_t *rope_scaling(const struct rope_scaling *s)
{
    switch (s->kind) {
    case ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", s->factor);
    case ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", s->factor,
                         "low_freq_factor", s->low_freq_factor, "high_freq_factor",
                         s->high_freq_factor, "original_max_position_embeddings",
                         (int)s->original_len);
    case ROPE_YARN:
        return json_pack("{s:s, s:f, s:i}", "rope_type", "yarn", "factor", s->factor,
                         "original_max_position_embeddings", (int)s->original_len);
    default:
        return json_null();
    }
}

/* "qwen3" of "Qwen3ForCausalLM". */
static const char *model_type(const char *arch)
{
    return strncmp(arch, "Llama", 5) == 0      ? "llama"
           : strncmp(arch, "Mistral", 7) == 0  ? "mistral"
           : strncmp(arch, "Mixtral", 7) == 0  ? "mixtral"
           : strncmp(arch, "Qwen2", 5) == 0    ? "qwen2"
           : strncmp(arch, "Qwen3Moe", 8) == 0 ? "qwen3_moe"
                                               : "qwen3";
}

/* Adds what config.json says of experts, as the families' published folders do. */
static void set_experts(json_t *root, const struct model_config *c)
{
    json_object_set_new(root, "num_experts_per_tok", json_integer(c->n_experts_per_tok));
    json_object_set_new(root, c->block_sparse_moe ? "num_local_experts" : "num_experts",
                        json_integer(c->n_experts));
    json_object_set_new(root, "output_router_logits", json_false());
    json_object_set_new(root, "router_aux_loss_coef", json_real(0.001));
    if (c->block_sparse_moe)
        return;
    json_object_set_new(root, "decoder_sparse_step", json_integer(1));
    json_object_set_new(root, "mlp_only_layers", json_array());
    json_object_set_new(root, "moe_intermediate_size", json_integer(c->ffn_dim));
    json_object_set_new(root, "norm_topk_prob", json_boolean(c->norm_topk));
}

static int write_config(const struct writer *w, int dir, int32_t end, int32_t end_of_turn,
                        struct err *e)
{
    const struct model_config *c = &w->config;
    json_t *root = json_pack(
        "{s:[s], s:f, s:i, s:i, s:s, s:i, s:f, s:i, s:i, s:i, s:s, s:i, s:i, s:i, s:f, s:o, s:f, "
        "s:n, s:b, s:s, s:s, s:b, s:b, s:i}",
        "architectures", c->arch, "attention_dropout", 0.0, "bos_token_id", end, "eos_token_id",
        end_of_turn, "hidden_act", "silu", "hidden_size", c->hidden_dim, "initializer_range", 0.02,
        "intermediate_size", c->ffn_dim, "max_position_embeddings", c->max_seq_len,
        "max_window_layers", c->n_layers, "model_type", model_type(c->arch), "num_attention_heads",
        c->n_heads, "num_hidden_layers", c->n_layers, "num_key_value_heads", c->n_kv_heads,
        "rms_norm_eps", 1e-6, "rope_scaling", rope_scaling(&c->rope), "rope_theta", c->rope_theta,
        "sliding_window", "tie_word_embeddings", c->tied, "torch_dtype", dtype_info[w->dtype].torch,
        "transformers_version", "4.51.0", "use_cache", true, "use_sliding_window", false,
        "vocab_size", c->vocab_size);

    if (root && !c->qkv_bias)
        json_object_set_new(root, "attention_bias", json_false());
    if (root && (c->qk_norm || (int64_t)c->head_dim * c->n_heads != c->hidden_dim))
        json_object_set_new(root, "head_dim", json_integer(c->head_dim));
    if (root && c->n_experts)
        set_experts(root, c);
    return write_json(dir, MODEL_CONFIG_FILE, root, e);
}

static int write_generation(int dir, int32_t end, int32_t end_of_turn, struct err *e)
{
    return write_json(dir, MODEL_GENERATION_FILE,
                      json_pack("{s:i, s:b, s:[i, i], s:i, s:f, s:i, s:f, s:s}", "bos_token_id",
                                end, "do_sample", true, "eos_token_id", end_of_turn, end,
                                "pad_token_id", end, "temperature", 0.6, "top_k", 20, "top_p", 0.95,
                                "transformers_version", "4.51.0"),
                      e);
}

/* The id of an added token of tokenizer.json, or -1. */
static int32_t added_token(const json_t *tokenizer, const char *content)
{
    const json_t *t;
    size_t i;

    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, t)
    {
        const char *text = json_string_value(json_object_get(t, "content"));

        if (text && strcmp(text, content) == 0)
            return (int32_t)json_integer_value(json_object_get(t, "id"));
    }
    return -1;
}

static int copy_tokenizer(const struct writer *w, int dir, int32_t *end, int32_t *end_of_turn,
                          struct err *e)
{
    static const char *const names[] = {"tokenizer.json",      "tokenizer_config.json",
                                        "chat_template.jinja", "special_tokens_map.json",
                                        "vocab.json",          "merges.txt"};
    int from = open(w->tokenizer, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    json_t *tokenizer = NULL;
    int rc = 0;

    if (from < 0)
        return err_set(e, -errno, "%s: %s", w->tokenizer, strerror(errno));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *text;
        size_t bytes;

        rc = file_read_all(&text, &bytes, from, names[i], MAX_TOKENIZER_FILE, e);
        if (rc == -ENOENT && i > 0) {
            rc = 0;
            continue;
        }
        if (rc == 0) {
            rc = write_file(dir, names[i], text, bytes, e);
            free(text);
        }
        if (rc < 0)
            goto out;
    }
    rc = json_object_read(&tokenizer, dir, names[0], MAX_TOKENIZER_FILE, e);
    if (rc < 0)
        goto out;
    *end = added_token(tokenizer, "<|endoftext|>");
    *end_of_turn = added_token(tokenizer, "<|im_end|>");
    if (*end < 0 || *end_of_turn < 0 || *end >= w->config.vocab_size ||
        *end_of_turn >= w->config.vocab_size)
        rc = err_set(e, -EINVAL,
                     "%s: <|endoftext|> and <|im_end|> must be there and below --vocab %d",
                     w->tokenizer, w->config.vocab_size);
out:
    json_decref(tokenizer);
    close(from);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int list_tensors(struct writer *w, struct err *e)
{
    size_t n = 0;

    for (int i = 0; i < N_TENSOR_SPECS; i++)
        n += (size_t)tensor_spec_count(&tensor_specs[i], &w->config);
    w->tensors.all = calloc(n, sizeof(*w->tensors.all));
    w->tensors.names = calloc(n, sizeof(*w->tensors.names));
    if (!w->tensors.all || !w->tensors.names)
        return err_set(e, -ENOMEM, "no memory for %zu tensors", n);
    for (int i = 0; i < N_TENSOR_SPECS; i++) {
        for (int k = 0; k < tensor_spec_count(&tensor_specs[i], &w->config); k++) {
            struct tensor *t = &w->tensors.all[w->tensors.n];

            *t = tensor_of_spec(&tensor_specs[i], &w->config);
            t->name = w->tensors.names[w->tensors.n++];
            tensor_spec_name((char *)t->name, &tensor_specs[i], &w->config, k);
            w->tensors.n_elements += tensor_elements(t);
        }
    }
    qsort(w->tensors.all, n, sizeof(*w->tensors.all), by_name);
    return 0;
}

/* Equal shares in the order of names; a tensor larger than a share leaves fewer shards. */
static void assign_shards(struct writer *w)
{
    const uint32_t size = dtype_info[w->dtype].bits / 8;
    const uint64_t total = w->tensors.n_elements * size, wanted = w->n_shards;
    uint64_t before = 0, share = 0;
    size_t shard = 0;

    for (size_t i = 0; i < w->tensors.n; i++) {
        struct tensor *t = &w->tensors.all[i];

        t->dtype = w->dtype;
        t->bytes = tensor_elements(t) * size;
        if (i > 0 && before * wanted / total != share) {
            shard++;
            share = before * wanted / total;
        }
        t->file = (int32_t)shard;
        before += t->bytes;
    }
    w->tensors.bytes = total;
    w->n_shards = shard + 1;
}

/* Writes the header of shard s and sets its tensors' offsets. */
static int write_header(struct writer *w, size_t s, struct err *e)
{
    struct writer_shard *shard = &w->shards[s];
    char *text = NULL;
    size_t bytes = 0;
    uint8_t length[SAFETENSORS_LENGTH_BYTES];
    FILE *f = open_memstream(&text, &bytes);
    int rc = 0;

    if (!f)
        return err_set(e, -ENOMEM, "%s: no memory", shard->name);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    for (size_t i = 0; i < w->tensors.n; i++) {
        struct tensor *t = &w->tensors.all[i];

        if (t->file != (int32_t)s)
            continue;
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t->name,
                dtype_info[t->dtype].safetensors, t->shape[0]);
        if (t->rank == 2)
            fprintf(f, ",%" PRId64, t->shape[1]);
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", shard->bytes,
                shard->bytes + t->bytes);
        t->offset = shard->bytes;
        shard->bytes += t->bytes;
    }
    fputc('}', f);
    fflush(f);
    fprintf(f, "%*s", (int)(-bytes % 8), ""); /* the data begin at a multiple of eight */
    if (fclose(f) != 0)
        return err_set(e, -ENOMEM, "%s: no memory", shard->name);
    for (size_t i = 0; i < sizeof(length); i++)
        length[i] = (uint8_t)(bytes >> 8 * i);
    for (size_t i = 0; i < w->tensors.n; i++)
        if (w->tensors.all[i].file == (int32_t)s)
            w->tensors.all[i].offset += sizeof(length) + bytes;
    if (pwrite(shard->fd, length, sizeof(length), 0) != sizeof(length) ||
        pwrite(shard->fd, text, bytes, sizeof(length)) != (ssize_t)bytes ||
        ftruncate(shard->fd, (off_t)(sizeof(length) + bytes + shard->bytes)) < 0)
        rc = err_set(e, -EIO, "%s: %s", shard->name, strerror(errno));
    free(text);
    return rc;
}

static int open_shards(struct writer *w, int dir, struct err *e)
{
    for (size_t s = 0; s < w->n_shards; s++) {
        struct writer_shard *shard = &w->shards[s];
        int rc;

        if (w->n_shards == 1)
            strcpy(shard->name, MODEL_WEIGHTS_FILE);
        else
            snprintf(shard->name, sizeof(shard->name), "model-%05zu-of-%05zu.safetensors", s + 1,
                     w->n_shards);
        shard->fd = openat(dir, shard->name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (shard->fd < 0)
            return err_set(e, -errno, "%s: %s", shard->name, strerror(errno));
        rc = write_header(w, s, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Removes the index or the single file of an earlier model, which would be preferred. */
static int write_index(const struct writer *w, int dir, struct err *e)
{
    json_t *map;

    if (w->n_shards == 1) {
        unlinkat(dir, MODEL_INDEX_FILE, 0);
        return 0;
    }
    unlinkat(dir, MODEL_WEIGHTS_FILE, 0);
    map = json_object();
    for (size_t i = 0; i < w->tensors.n; i++)
        json_object_set_new(map, w->tensors.all[i].name,
                            json_string(w->shards[w->tensors.all[i].file].name));
    return write_json(dir, MODEL_INDEX_FILE,
                      json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                                (json_int_t)w->tensors.bytes, "weight_map", map),
                      e);
}

int writer_open(struct writer *w, struct err *e)
{
    int32_t end = -1, end_of_turn = -1;
    int dir, rc;

    for (size_t s = 0; s < WRITER_MAX_SHARDS; s++)
        w->shards[s] = (struct writer_shard){.fd = -1};
    if (mkdir(w->folder, 0755) < 0 && errno != EEXIST)
        return err_set(e, -errno, "%s: %s", w->folder, strerror(errno));
    dir = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_set(e, -errno, "%s: %s", w->folder, strerror(errno));
    rc = copy_tokenizer(w, dir, &end, &end_of_turn, e);
    if (rc == 0)
        rc = write_config(w, dir, end, end_of_turn, e);
    if (rc == 0)
        rc = write_generation(dir, end, end_of_turn, e);
    if (rc == 0)
        rc = list_tensors(w, e);
    if (rc < 0)
        goto fail;
    assign_shards(w);
    rc = open_shards(w, dir, e);
    if (rc == 0)
        rc = write_index(w, dir, e);
    if (rc < 0)
        goto fail;
    close(dir);
    return 0;
fail:
    close(dir);
    writer_close(w, NULL);
    return rc;
}

int writer_close(struct writer *w, struct err *e)
{
    int rc = 0;

    for (size_t s = 0; s < WRITER_MAX_SHARDS; s++) {
        if (w->shards[s].fd >= 0 && close(w->shards[s].fd) < 0)
            rc = err_set(e, -errno, "%s: %s", w->shards[s].name, strerror(errno));
        w->shards[s].fd = -1;
    }
    free(w->tensors.all);
    free(w->tensors.names);
    return rc;
}
