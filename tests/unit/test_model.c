/* test_model.c - opening, checking and reading a model folder. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/util/bf16.h"
#include "engine/model/model.h"
#include "tests/tools/model_writer.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

enum { HEADER = 4952 }; /* JSON of the bundled model's header */

static struct err e;
static char path_buf[256];

static const char *in_dir(const char *name)
{
    snprintf(path_buf, sizeof(path_buf), "%s/%s", dir, name);
    return path_buf;
}

static char *read_whole(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text;

    ck_assert_msg(f != NULL, "%s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    text = calloc(*n + 1, 1);
    ck_assert_uint_eq(fread(text, 1, *n, f), *n);
    fclose(f);
    return text;
}

static void write_whole(const char *name, const char *text, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    fclose(f);
}

/* Copies the bundled model, without its tokenizer. */
static void copy_bundled(void)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors"};

    for (int i = 0; i < 3; i++) {
        char from[512];
        size_t n;
        char *text;

        snprintf(from, sizeof(from), "%s/%s", TEST_MODEL_DIR, names[i]);
        text = read_whole(from, &n);
        write_whole(names[i], text, n);
        free(text);
    }
}

/* Replaces the first a in a file by b, which has the same length unless the file is JSON. */
static void replace(const char *name, const char *a, const char *b)
{
    size_t n, at;
    char *text = read_whole(in_dir(name), &n), *hit = memmem(text, n, a, strlen(a));
    FILE *f;

    ck_assert_msg(hit != NULL, "%s has no %s", name, a);
    at = (size_t)(hit - text);
    f = fopen(in_dir(name), "wb");
    fwrite(text, 1, at, f);
    fwrite(b, 1, strlen(b), f);
    fwrite(hit + strlen(a), 1, n - at - strlen(a), f);
    fclose(f);
    free(text);
}

static void refused(int code, const char *text)
{
    struct model *m = NULL;
    int rc = model_open(&m, dir, &e);

    ck_assert_msg(rc == code, "%d: %s", rc, rc < 0 ? e.text : "opens");
    ck_assert_msg(strstr(e.text, text) != NULL, "%s", e.text);
    ck_assert_ptr_null(m);
}

/* The bundled model opens with the shape and the defaults of its files. */
TEST(bundled_model_opens)
{
    struct model *m = NULL;
    const struct model_config *c;
    const struct model_defaults *d;

    ck_assert_msg(model_open(&m, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
    c = model_config(m);
    ck_assert_str_eq(c->arch, "Qwen3ForCausalLM");
    ck_assert(c->qk_norm && !c->qkv_bias);
    ck_assert_int_eq(c->n_layers, 4);
    ck_assert_int_eq(c->n_heads, 8);
    ck_assert_int_eq(c->n_kv_heads, 4);
    ck_assert_int_eq(c->head_dim, 128);
    ck_assert_int_eq(c->hidden_dim, 256);
    ck_assert_int_eq(c->ffn_dim, 768);
    ck_assert_int_eq(c->vocab_size, 2048);
    ck_assert_int_eq(c->max_seq_len, 32768);
    ck_assert(c->rms_norm_eps == 1e-6f);
    ck_assert(c->rope_theta == 1e6);
    ck_assert(c->tied);
    d = model_defaults(m);
    ck_assert(d->temperature == 0.6f && d->top_p == 0.95f && d->top_k == 20);
    ck_assert(d->min_p == 0.0f && d->repetition_penalty == 1.0f);
    ck_assert_int_eq(d->n_eos, 2);
    ck_assert_int_eq(d->eos[0], 1993);
    ck_assert_int_eq(d->eos[1], 1991);
    ck_assert_uint_eq(model_weight_bytes(m), 12070240 - 8 - HEADER);
    model_close(m);
}

/* A tensor's bytes are read from its place in the file, from any offset on. */
TEST(tensors_are_read)
{
    const uint64_t at = 8 + HEADER + 1049088; /* as the file's header says */
    struct model *m;
    const struct tensor *t;
    uint16_t got[1000];
    size_t n;
    char *file = read_whole(TEST_MODEL_DIR "/model.safetensors", &n);

    ck_assert_int_eq(model_open(&m, TEST_MODEL_DIR "/", &e), 0);
    t = model_tensor(m, "model.layers.0.mlp.down_proj.weight");
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(t->dtype, DTYPE_BF16);
    ck_assert_int_eq(t->rank, 2);
    ck_assert_int_eq(t->shape[0], 256);
    ck_assert_int_eq(t->shape[1], 768);
    ck_assert_uint_eq(t->bytes, 2 * 256 * 768);
    ck_assert_uint_eq(t->offset, at);
    ck_assert_int_eq(model_read(m, t, 77, got, 1001, &e), 0);
    ck_assert_mem_eq(got, file + at + 77, 1001);
    ck_assert_int_eq(model_read_bf16(m, t, 256 * 768 - 1000, got, 1000, &e), 0);
    ck_assert_mem_eq(got, file + at + 2 * (256 * 768 - 1000), 2000);
    ck_assert_int_eq(model_read(m, t, t->bytes, got, 0, &e), 0);
    ck_assert_ptr_null(model_tensor(m, "lm_head.weight"));
    ck_assert_ptr_null(model_tensor(m, ""));
    model_close(m);
    free(file);
}

/* A missing folder, or a file in its place, is refused by name. */
TEST(no_folder)
{
    struct model *m;

    ck_assert_int_eq(model_open(&m, "/nonexistent/model", &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.text, "/nonexistent/model"));
    ck_assert_int_eq(model_open(&m, TEST_MODEL_DIR "/config.json", &e), -ENOTDIR);
    ck_assert_int_eq(model_open(&m, "", &e), -ENOENT);
    model_close(NULL);
}

/* Missing files are named; without generation_config.json the defaults are neutral. */
TEST(missing_files)
{
    struct model *m;

    copy_bundled();
    unlink(in_dir("generation_config.json"));
    ck_assert_int_eq(model_open(&m, dir, &e), 0);
    ck_assert(model_defaults(m)->temperature == 1.0f && model_defaults(m)->top_k == 0);
    ck_assert_int_eq(model_defaults(m)->n_eos, 1);
    ck_assert_int_eq(model_defaults(m)->eos[0], 1993);
    model_close(m);
    unlink(in_dir("model.safetensors"));
    refused(-ENOENT, "model.safetensors: is missing, and so is model.safetensors.index.json");
    write_whole("pytorch_model.bin", "", 0);
    refused(-ENOTSUP, "pytorch_model.bin");
    unlink(in_dir("config.json"));
    refused(-ENOENT, "config.json: ");
}

/* A FIFO or a folder in place of a file is refused at once. */
TEST(fifo_does_not_hang, .n = 3, .timeout = 5)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors"};
    char text[64];

    copy_bundled();
    unlink(in_dir(names[_i]));
    ck_assert_int_eq(mkfifo(in_dir(names[_i]), 0600), 0);
    snprintf(text, sizeof(text), "%s: is not a regular file", names[_i]);
    refused(-EINVAL, text);
    unlink(in_dir(names[_i]));
    ck_assert_int_eq(mkdir(in_dir(names[_i]), 0700), 0);
    refused(-EINVAL, text);
}

/* Links, as in a hub's cache, are followed; a broken one is named, and no file that may be absent.
 */
TEST(links_are_followed)
{
    struct model *m;

    copy_bundled();
    unlink(in_dir("model.safetensors"));
    ck_assert_int_eq(symlink(TEST_MODEL_DIR "/model.safetensors", path_buf), 0);
    ck_assert_msg(model_open(&m, dir, &e) == 0, "%s", e.text);
    model_close(m);
    unlink(in_dir("model.safetensors"));
    ck_assert_int_eq(symlink("../blobs/gone", path_buf), 0);
    refused(-EINVAL, "model.safetensors: is a broken link");
    unlink(in_dir("model.safetensors"));
    copy_bundled();
    unlink(in_dir("generation_config.json"));
    ck_assert_int_eq(symlink("../blobs/gone", path_buf), 0);
    refused(-EINVAL, "generation_config.json: is a broken link");
}

/* A file truncated within the length, the header or the data is refused. */
TEST(truncated_file, .n = 7)
{
    static const off_t sizes[] = {0, 7, 8, 9, 8 + HEADER - 1, 8 + HEADER, 12070239};

    copy_bundled();
    ck_assert_int_eq(truncate(in_dir("model.safetensors"), sizes[_i]), 0);
    refused(-EINVAL, "model.safetensors: ");
}

/* A file with bytes after its last tensor is refused. */
TEST(file_too_long)
{
    copy_bundled();
    ck_assert_int_eq(truncate(in_dir("model.safetensors"), 12070241), 0);
    refused(-EINVAL, "model.safetensors: 1 bytes after the last tensor");
}

static const struct {
    const char *file, *from, *to;
    int code;
    const char *text;
} tampered[] = {
    {"config.json", "\"Qwen3For", "\"GemmaFor", -ENOTSUP,
     "config.json: architectures: \"GemmaForCausalLM\""},
    {"config.json", "\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"", -ENOTSUP,
     "config.json: rope_parameters.rope_type: \"longrope\" is not supported"},
    {"config.json", "{", "", -EINVAL, "config.json: not JSON: line 2"},
    {"config.json", "{", "{\"vocab_size\": 1,", -EINVAL, "config.json: not JSON: line"},
    {"generation_config.json", "\"top_p\": 0.95", "\"top_p\": 7", -EINVAL,
     "generation_config.json: top_p: 7 is not in"},
    {"generation_config.json", "{", "[", -EINVAL, "generation_config.json: not JSON: line"},
    {"config.json", "\"vocab_size\": 2048", "\"vocab_size\": 2049", -EINVAL,
     "model.safetensors: model.embed_tokens.weight: shape: is [2048, 256], but config.json "
     "implies [2049, 256]"},
    {"config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", -EINVAL,
     "model.safetensors: 1 of 47 tensors are missing: lm_head.weight"},
    {"config.json", "\"num_attention_heads\": 8", "\"num_attention_heads\": 4", -EINVAL,
     "self_attn.q_proj.weight: shape: is [1024, 256], but config.json implies [512, 256]"},
    {"model.safetensors", "model.norm.weight", "model.nerm.weight", -EINVAL,
     "model.safetensors: 1 of 46 tensors are missing: model.norm.weight"},
    {"model.safetensors", "\"dtype\":\"BF16\"", "\"dtype\":\"I16\" ", -ENOTSUP,
     "model.safetensors: model.embed_tokens.weight: dtype: I16 is not supported"},
    {"model.safetensors", "\"dtype\":\"BF16\"", "\"dtype\":\"XF16\"", -ENOTSUP,
     "dtype: \"XF16\" is not a known type"},
    {"model.safetensors", "\"dtype\":\"BF16\"", "\"dtype\":\"F32\" ", -EINVAL,
     "model.safetensors: model.embed_tokens.weight: data_offsets: 1048576 bytes for 524288"},
    {"model.safetensors", "\"shape\":[2048,256]", "\"shape\":[256,2048]", -EINVAL,
     "model.embed_tokens.weight: shape: is [256, 2048]"},
    {"model.safetensors", "\"shape\":[2048,256]", "\"shape\":[524288] ", -EINVAL, "line 1"},
    {"model.safetensors", "[0,1048576]", "[0,1048577]", -EINVAL,
     "model.embed_tokens.weight: data_offsets"},
    {"model.safetensors", "[1048576,1049088]", "[1048574,1049086]", -EINVAL, "overlaps"},
};

/* Each change of one thing in one file is refused, with the file and the field in the message. */
TEST(tampered_folder, .n = N(tampered))
{
    copy_bundled();
    replace(tampered[_i].file, tampered[_i].from, tampered[_i].to);
    refused(tampered[_i].code, tampered[_i].text);
}

/* Reading from a file that was truncated after open is an error, not a fault. */
TEST(file_shrinks_later)
{
    struct model *m;
    const struct tensor *t;
    uint16_t got[16];

    copy_bundled();
    ck_assert_int_eq(model_open(&m, dir, &e), 0);
    ck_assert_int_eq(truncate(in_dir("model.safetensors"), 10000), 0);
    t = model_tensor(m, "model.norm.weight");
    ck_assert_int_eq(model_read_bf16(m, t, 0, got, 16, &e), -EIO);
    ck_assert_ptr_nonnull(strstr(e.text, "model.safetensors: ends at"));
    model_close(m);
}

/* Writes a folder of two layers; expected() gives the value of element k of any tensor. */
static void write_folder(bool qwen3, enum dtype dtype, size_t n_shards, bool tied)
{
    struct writer w = {.folder = dir,
                       .tokenizer = TEST_MODEL_DIR,
                       .dtype = dtype,
                       .n_shards = n_shards};
    static const struct model_config qwen2_shape = {WRITER_QWEN2, 2,    4,    2,     16, 64,
                                                    160,          2048, 4096, 1e-6f, 1e6},
                                     qwen3_shape = {WRITER_QWEN3, 2,    4,    2,     16, 64,
                                                    160,          2048, 4096, 1e-6f, 1e6};

    w.config = qwen3 ? qwen3_shape : qwen2_shape;
    w.config.tied = tied;
    ck_assert_msg(writer_open(&w, &e) == 0, "%s", e.text);
    for (size_t i = 0; i < w.tensors.n; i++) {
        const struct tensor *t = &w.tensors.all[i];
        char *data = malloc(t->bytes);

        for (uint64_t k = 0; k < tensor_elements(t); k++) {
            float x = (float)((int)(k % 4099) - 2000) / 64;

            if (dtype == DTYPE_F32)
                memcpy(data + 4 * k, &x, 4);
            else
                memcpy(data + 2 * k,
                       &(uint16_t){dtype == DTYPE_F16 ? (uint16_t)(k * 31 % 0x7c00)
                                                      : bf16_from_f32(x)},
                       2);
        }
        ck_assert_int_eq(pwrite(w.shards[t->file].fd, data, t->bytes, (off_t)t->offset),
                         (ssize_t)t->bytes);
        free(data);
    }
    ck_assert_int_eq(writer_close(&w, &e), 0);
}

static uint16_t expected(enum dtype dtype, uint64_t k)
{
    if (dtype == DTYPE_F16)
        return bf16_from_f32_bits(f32_bits_from_f16((uint16_t)(k * 31 % 0x7c00)));
    return bf16_from_f32((float)((int)(k % 4099) - 2000) / 64);
}

/* Each architecture and dtype, tied or not, in one file or several, opens and reads as bf16, across
 * the boundaries of conversion chunks. */
TEST(every_layout_reads, .n = 24)
{
    const enum dtype dtype = (enum dtype)(_i % 3);
    const bool tied = _i / 3 % 2, sharded = _i / 6 % 2;
    const bool qwen3 = _i / 12;
    static const char *const names[] = {"model.embed_tokens.weight",
                                        "model.layers.1.mlp.up_proj.weight", "model.norm.weight"};
    struct model *m;

    write_folder(qwen3, dtype, sharded ? 4 : 1, tied);
    ck_assert_msg(model_open(&m, dir, &e) == 0, "%s", e.text);
    ck_assert_int_eq(access(in_dir("model.safetensors"), F_OK), sharded ? -1 : 0);
    ck_assert_str_eq(model_dtype_name(m), dtype_info[dtype].name);
    ck_assert_str_eq(model_kept_as(model_config(m)), "bf16");
    ck_assert_int_eq(model_config(m)->qk_norm, qwen3);
    ck_assert_int_eq(model_config(m)->qkv_bias, !qwen3);
    ck_assert_int_eq(model_tensor(m, "lm_head.weight") != NULL, !tied);
    ck_assert_int_eq(model_tensor(m, "model.layers.0.self_attn.k_proj.bias") != NULL, !qwen3);
    ck_assert_int_eq(model_tensor(m, "model.layers.0.self_attn.k_norm.weight") != NULL, qwen3);
    for (int i = 0; i < 3; i++) {
        const struct tensor *t = model_tensor(m, names[i]);
        const uint64_t first = 5;
        size_t n;
        uint16_t *got;

        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq(t->dtype, dtype);
        n = tensor_elements(t) - first - 3;
        got = malloc(n * sizeof(*got));
        ck_assert_int_eq(model_read_bf16(m, t, first, got, n, &e), 0);
        for (size_t k = 0; k < n; k++)
            ck_assert_msg(got[k] == expected(dtype, first + k), "%s[%zu]", names[i], k);
        free(got);
    }
    model_close(m);
}

/* The stored LM head of a tied model is ignored. */
TEST(unneeded_tensors_are_ignored)
{
    struct model *m;
    uint64_t bytes;

    write_folder(true, DTYPE_BF16, 1, false);
    ck_assert_int_eq(model_open(&m, dir, &e), 0);
    bytes = model_weight_bytes(m);
    model_close(m);
    replace("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    ck_assert_msg(model_open(&m, dir, &e) == 0, "%s", e.text);
    ck_assert_ptr_null(model_tensor(m, "lm_head.weight"));
    ck_assert_uint_eq(model_weight_bytes(m), bytes - 2 * 2048 * 64);
    model_close(m);
}

#define SHARD  "model-00002-of-00003.safetensors"
#define NORM   "\"model.norm.weight\": \"model-00003-of-00003.safetensors\""
#define INDEX_ "model.safetensors.index.json"

static const struct {
    const char *to;
    int code;
    const char *text;
} tampered_index[] = {
    {"\"model.norm.weight\": \"../x.safetensors\"", -EINVAL,
     INDEX_ ": weight_map.model.norm.weight: \"../x.safetensors\" is not the name"},
    {"\"model.norm.weight\": \"/etc/x.safetensors\"", -EINVAL,
     "weight_map.model.norm.weight: \"/etc/x.safetensors\" is not"},
    {"\"model.norm.weight\": \"..\"", -EINVAL, "weight_map.model.norm.weight: \"..\" is not"},
    {"\"model.norm.weight\": \"\"", -EINVAL, "weight_map.model.norm.weight: \"\" is not"},
    {"\"model.norm.weight\": \"config.json\"", -EINVAL, "\"config.json\" is not the name"},
    {"\"model.norm.weight\": 3", -EINVAL, "weight_map.model.norm.weight: an integer is not"},
    {"\"model.norm.weight\": \"gone.safetensors\"", -ENOENT, "gone.safetensors: cannot be opened"},
    {"\"model.norm.weight\": \"" SHARD "\"", -EINVAL,
     INDEX_ ": weight_map.model.norm.weight: " SHARD " has no such tensor"},
    {"\"model.xorm.weight\": \"model-00003-of-00003.safetensors\"", -EINVAL,
     "weight_map.model.xorm.weight: model-00003-of-00003.safetensors has no such tensor"},
    {"\"x\": \"model-00003-of-00003.safetensors\", \"x\": \"a\"", -EINVAL, "duplicate"},
};

/* An index that leads out of the folder or disagrees with its shards is refused by name. */
TEST(tampered_index_is_refused, .n = N(tampered_index))
{
    write_folder(false, DTYPE_BF16, 3, false);
    replace(INDEX_, NORM, tampered_index[_i].to);
    refused(tampered_index[_i].code, tampered_index[_i].text);
}

/* A shard that is missing, damaged or absent from the index is reported. */
TEST(damaged_shards)
{
    write_folder(false, DTYPE_BF16, 3, false);
    replace(INDEX_, ",\n    " NORM, "");
    refused(-EINVAL, INDEX_ ": 1 of 27 tensors are missing: model.norm.weight");
    write_folder(false, DTYPE_BF16, 3, false);
    ck_assert_int_eq(truncate(in_dir(SHARD), 5000), 0);
    refused(-EINVAL, SHARD ": ");
    unlink(in_dir(SHARD));
    refused(-ENOENT, SHARD ": cannot be opened");
    write_whole(INDEX_, "{\"weight_map\": {}}", 18);
    refused(-EINVAL, INDEX_ ": weight_map: must be an object");
    write_whole(INDEX_, "{}", 2);
    refused(-EINVAL, INDEX_ ": weight_map: must be an object");
}

static void print_line(void *f, const char *level, const char *text)
{
    fprintf(f, "%-5s  %s\n", level, text);
}

static char *check_text(int code)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    struct problems p = {.line = print_line, .arg = f};
    int32_t vocab_size;

    model_check(&vocab_size, dir, &p);
    ck_assert_int_eq(p.code, code);
    if (code == 0)
        ck_assert_int_gt(vocab_size, 0);
    fclose(f);
    return text;
}

static void check_says(const char *text, const char *line)
{
    ck_assert_msg(strstr(text, line) != NULL, "no \"%s\" in:\n%s", line, text);
}

/* The report of a correct folder has a line for each part and a summary. */
TEST(report_of_right_folder)
{
    char *text;

    copy_bundled();
    text = check_text(0);
    check_says(text, "ok     config.json\n");
    check_says(text, "ok     generation_config.json\n");
    check_says(text, "ok     46 tensors in 1 file\n");
    check_says(text, "Qwen3ForCausalLM: 4 layers of 256");
    check_says(text, "6.0 million parameters, 12065280 bytes of bf16\n");
    ck_assert_ptr_null(strstr(text, "wrong"));
    free(text);
}

/* It says how many experts there are, and how many of them a token goes through. */
TEST(report_of_experts)
{
    struct writer w = {.folder = dir,
                       .tokenizer = TEST_MODEL_DIR,
                       .n_shards = 2,
                       .config = {WRITER_MIXTRAL(6, 2), 2, 4, 2, 16, 64, 32, 2048, 4096, 1e-6f,
                                  1e6}};
    char *text;

    ck_assert_msg(writer_open(&w, &e) == 0, "%s", e.text);
    ck_assert_int_eq(writer_close(&w, &e), 0);
    text = check_text(0);
    check_says(text, "ok     53 tensors in 2 files\n");
    check_says(text,
               "MixtralForCausalLM: 2 layers of 64, 4 query and 2 KV heads of 16, ffn 32 in 6 "
               "experts, 2 a token\n");
    free(text);
    replace("config.json", "\"num_local_experts\": 6", "\"num_local_experts\": 7");
    text = check_text(-EINVAL);
    check_says(text, "6 of 59 tensors are missing: "
                     "model.layers.0.block_sparse_moe.experts.6.w1.weight, ");
    check_says(text, "block_sparse_moe.gate.weight: shape: is [6, 64], but config.json implies "
                     "[7, 64]");
    free(text);
}

/* The report lists the problems of all parts and counts missing tensors. */
TEST(report_of_wrong_folder)
{
    char *text;

    copy_bundled();
    replace("config.json", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 6");
    replace("config.json", "\"layer_types\"", "\"_types\"");
    replace("config.json", "\"vocab_size\": 2048", "\"vocab_size\": 2000");
    replace("generation_config.json", "\"top_p\": 0.95", "\"top_p\": 7");
    text = check_text(-EINVAL);
    check_says(text, "ok     config.json\n");
    check_says(text, "wrong  generation_config.json: top_p: 7 is not in");
    check_says(text, "wrong  model.safetensors: 22 of 68 tensors are missing: "
                     "model.layers.4.input_layernorm.weight, ");
    check_says(text, ", ...\n");
    check_says(text, "wrong  model.safetensors: model.embed_tokens.weight: shape: ");
    free(text);
    replace("config.json", "\"hidden_size\": 256", "\"hidden_size\": 0");
    replace("config.json", "\"silu\"", "\"relu\"");
    text = check_text(-ENOTSUP);
    check_says(text, "wrong  config.json: hidden_act: \"relu\"");
    check_says(text, "wrong  config.json: hidden_size: 0");
    check_says(text, "ok     headers of 1 safetensors file");
    free(text);
}

/* A folder without weights, with truncated ones or with nothing is reported on. */
TEST(report_without_weights)
{
    char *text;

    copy_bundled();
    unlink(in_dir("model.safetensors"));
    text = check_text(-ENOENT);
    check_says(text, "ok     config.json\n");
    check_says(text, "the folder has no weights");
    check_says(text, "6.0 million parameters\n");
    ck_assert_ptr_null(strstr(text, "tensors are missing"));
    free(text);
    copy_bundled();
    ck_assert_int_eq(truncate(in_dir("model.safetensors"), 10000), 0);
    text = check_text(-EINVAL);
    check_says(text, "wrong  model.safetensors: ");
    ck_assert_ptr_null(strstr(text, "tensors are missing")); /* who knows? */
    free(text);
    unlink(in_dir("config.json"));
    unlink(in_dir("generation_config.json"));
    text = check_text(-ENOENT);
    check_says(text, "wrong  config.json: ");
    check_says(text, "ok     generation_config.json (none: neutral)\n");
    free(text);
    remove_dir();
    text = check_text(-ENOENT);
    check_says(text, dir);
    free(text);
}

RUN_TESTS("model", make_dir, remove_dir)
