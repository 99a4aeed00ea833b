/* test_converter.c - folders that are written again: quantized ones have the weights of a plain one
 * that is quantized at load, plain ones those that a quantized folder means; nothing is left behind
 * by a failure. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/converter.h"
#include "engine/model/packing.h"
#include "engine/model/quantization.h"
#include "engine/model/weights.h"
#include "engine/util/bf16.h"
#include "engine/util/file.h"
#include "tests/tools/model_writer.h"
#include "tests/tools/quantized_writer.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

static struct err e;

/* A path below the test's folder. */
static const char *in_dir(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static int read_piece(void *m, int thread, const struct weight_piece *p, struct err *err)
{
    const struct matrix to = weight_piece_rows(p);

    (void)thread;
    return weight_piece_read(m, p, &to, err);
}

/* All weights of a folder as they are in memory, to be freed. */
static uint8_t *load(uint64_t *bytes, const char *folder, enum dtype quantize)
{
    static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                                 .k_align = 16,
                                                 .align = 64,
                                                 .piece_elements = 1 << 16};
    struct model *m;
    struct weights w;
    uint8_t *base;

    ck_assert_msg(model_open(&m, folder, &e) == 0, "%s", e.text);
    ck_assert_msg(model_quantize(m, quantize, &e) == 0, "%s", e.text);
    ck_assert_int_eq(weights_init(&w, model_config(m), (struct shard){0, 1}, &layout, &e), 0);
    base = aligned_alloc(64, w.bytes);
    memset(base, 0, w.bytes);
    weights_place(&w, base);
    ck_assert_msg(weights_load(&w, 2, read_piece, m, NULL, NULL, &e) == 0, "%s", e.text);
    *bytes = w.bytes;
    weights_deinit(&w);
    model_close(m);
    return base;
}

static void check_same(const char *a, enum dtype quantize_a, const char *b, enum dtype quantize_b)
{
    uint64_t n_a, n_b;
    uint8_t *x = load(&n_a, a, quantize_a), *y = load(&n_b, b, quantize_b);

    ck_assert_uint_eq(n_a, n_b);
    ck_assert_mem_eq(x, y, n_a);
    free(x);
    free(y);
}

static void convert(const char *from, const char *to, enum dtype dtype)
{
    ck_assert_msg(model_convert(from, to, dtype, NULL, NULL, &e) == 0, "%s", e.text);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    ck_assert(f && fputs(text, f) >= 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* A folder of random weights in three files, with a pooling module in a folder of its own. */
static void write_sharded(enum dtype dtype)
{
    static const struct model_config config = {
        WRITER_QWEN3_MOE(3, 2), 2, 4, 2, 32, 96, 160, 2048, 256, 1e-6f, 1e6, true};
    struct writer w = {.folder = in_dir("plain"),
                       .tokenizer = TEST_MODEL_DIR,
                       .config = config,
                       .dtype = dtype,
                       .n_shards = 3};
    uint64_t x = 1;

    ck_assert_msg(writer_open(&w, &e) == 0, "%s", e.text);
    for (size_t i = 0; i < w.tensors.n; i++) {
        const struct tensor *t = &w.tensors.all[i];
        uint8_t *data = calloc(1, t->bytes);

        for (uint64_t k = 0; k < tensor_elements(t); k++) {
            float value;

            x = x * 6364136223846793005u + 1442695040888963407u;
            value = (float)(int32_t)(x >> 32) / 0x1p35f;
            if (dtype == DTYPE_F32)
                memcpy(data + k * 4, &value, 4);
            else
                memcpy(data + k * 2, &(uint16_t){bf16_from_f32(value)}, 2);
        }
        ck_assert_int_eq(pwrite(w.shards[t->file].fd, data, t->bytes, (off_t)t->offset),
                         (ssize_t)t->bytes);
        free(data);
    }
    ck_assert_int_eq(writer_close(&w, &e), 0);
    ck_assert_int_eq(mkdir(in_dir("plain/1_Pooling"), 0755), 0);
    write_text(in_dir("plain/1_Pooling/config.json"), "{}");
}

static const enum dtype targets[] = {DTYPE_E4M3, DTYPE_INT4};

/* What is written is what quantizing at load gives, from bf16 and from f32, of several files too.
 */
TEST(folders_have_the_weights_of_quantize, .n = 2 * N(targets))
{
    const enum dtype dtype = targets[_i / 2];

    make_dir();
    write_sharded(_i % 2 ? DTYPE_F32 : DTYPE_BF16);
    convert(in_dir("plain"), in_dir("out/"), dtype);
    check_same(in_dir("plain"), dtype, in_dir("out"), DTYPE_BF16);
    ck_assert_int_eq(access(in_dir("out/1_Pooling/config.json"), R_OK), 0);
    ck_assert_int_eq(access(in_dir("out/tokenizer.json"), R_OK), 0);
    ck_assert_int_eq(access(in_dir("out/model.safetensors.index.json"), R_OK), 0);
    remove_dir();
}

TEST(tiny_is_converted, .n = N(targets))
{
    make_dir();
    convert(TEST_MODEL_DIR, in_dir("out"), targets[_i]);
    check_same(TEST_MODEL_DIR, targets[_i], in_dir("out"), DTYPE_BF16);
    remove_dir();
}

/* Back to bf16, every format: what its definition says, rounded once. */
static const struct quantized_form forms[] = {
    {"{'quant_method':'fp8','activation_scheme':'dynamic','weight_block_size':[128,128]}",
     QUANTIZED_FP8_BLOCKS, "weight_scale_inv", "BF16", 128, .plain = "o_proj"},
    {"{'quant_method':'awq','bits':4,'group_size':64,'version':'gemm','zero_point':true}",
     QUANTIZED_AWQ, NULL, "F16", 64, .plain = NULL},
    {"{'quant_method':'gptq','bits':4,'group_size':32,'desc_act':false,'sym':false}",
     QUANTIZED_GPTQ, NULL, "F16", 32, .stored_less = 1},
};

TEST(bf16_is_what_formats_mean, .n = N(forms))
{
    static const struct model_config config = {WRITER_QWEN2, 1,    4,   2,     32,  128,
                                               192,          2048, 256, 1e-6f, 1e6, false};
    const struct quantized_form *form = &forms[_i];
    struct model *m;

    make_dir();
    ck_assert_int_eq(mkdir(in_dir("in"), 0755), 0);
    quantized_write(in_dir("in"), &config, form, false);
    convert(in_dir("in"), in_dir("out"), DTYPE_BF16);
    ck_assert_msg(model_open(&m, in_dir("out"), &e) == 0, "%s", e.text);
    ck_assert_ptr_null(model_config(m)->quant);
    for (const struct tensor_spec *s = tensor_specs; s < tensor_specs + N_TENSOR_SPECS; s++)
        for (int32_t i = 0; i < tensor_spec_count(s, &config); i++) {
            char name[TENSOR_NAME_BYTES];
            const struct tensor *t;
            uint16_t *data;

            tensor_spec_name(name, s, &config, i);
            if (!quantized_has(form, name))
                continue;
            t = model_tensor(m, name);
            data = malloc(t->bytes);
            ck_assert_int_eq(model_read_bf16(m, t, 0, data, tensor_elements(t), &e), 0);
            for (int64_t r = 0; r < t->shape[0]; r++)
                for (int64_t k = 0; k < t->shape[1]; k++)
                    ck_assert_uint_eq(data[r * t->shape[1] + k],
                                      bf16_from_f32((float)quantized_value(form, name, r, k)));
            free(data);
        }
    model_close(m);
    remove_dir();
}

/* Weights of f32 are rounded as they are when they are loaded. */
TEST(f32_becomes_bf16)
{
    make_dir();
    write_sharded(DTYPE_F32);
    convert(in_dir("plain"), in_dir("out"), DTYPE_BF16);
    check_same(in_dir("plain"), DTYPE_BF16, in_dir("out"), DTYPE_BF16);
    remove_dir();
}

/* Weights of other formats stay behind, wherever they are. A link to a folder is one. */
TEST(folders_are_copied_without_weights)
{
    static const char *const left[] = {"pytorch_model.bin", "1_Pooling/model.bin"};
    char path[256];

    make_dir();
    write_sharded(DTYPE_BF16);
    write_text(in_dir("plain/pytorch_model.bin"), "");
    write_text(in_dir("plain/1_Pooling/model.bin"), "");
    ck_assert_int_eq(symlink("1_Pooling", in_dir("plain/link")), 0);
    convert(in_dir("plain"), in_dir("out"), DTYPE_E4M3);
    check_same(in_dir("plain"), DTYPE_E4M3, in_dir("out"), DTYPE_BF16);
    ck_assert_int_eq(access(in_dir("out/link/config.json"), R_OK), 0);
    for (size_t i = 0; i < N(left); i++) {
        snprintf(path, sizeof(path), "%s/out/%s", dir, left[i]);
        ck_assert_int_lt(access(path, F_OK), 0);
    }
    snprintf(path, sizeof(path), "%s/out.part-%d", dir, (int)getpid());
    ck_assert_int_lt(access(path, F_OK), 0);
    remove_dir();
}

/* A tensor that the model does not need, of more dimensions than a header is written with. */
TEST(many_dimensions_are_refused)
{
    static const char header[] =
        "{\"strange\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,1]}}";
    const uint64_t n = strlen(header);
    json_t *root, *map;
    FILE *f;

    make_dir();
    write_sharded(DTYPE_BF16);
    f = fopen(in_dir("plain/strange.safetensors"), "w");
    ck_assert(f && fwrite(&n, sizeof(n), 1, f) == 1 &&
              fwrite(header, n + 1, 1, f) == 1); /* its end is the data */
    fclose(f);
    root = json_load_file(in_dir("plain/model.safetensors.index.json"), 0, NULL);
    map = json_object_get(root, "weight_map");
    ck_assert_int_eq(json_object_set_new(map, "strange", json_string("strange.safetensors")), 0);
    ck_assert_int_eq(json_dump_file(root, in_dir("plain/model.safetensors.index.json"), 0), 0);
    json_decref(root);
    ck_assert_int_eq(model_convert(in_dir("plain"), in_dir("out"), DTYPE_E4M3, NULL, NULL, &e),
                     -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, "strange: shape: 5 dimensions are not supported"));
    remove_dir();
}

/* Names in the test's folder but for those of a plain model. */
static int n_left(void)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;
    int n = 0;

    while ((entry = readdir(d)))
        n += entry->d_name[0] != '.' && strcmp(entry->d_name, "plain") != 0;
    closedir(d);
    return n;
}

TEST(failures_leave_nothing, .n = 4)
{
    static const rlim_t limits[] = {100, 100000, 200000, 350000};
    struct rlimit limit = {.rlim_cur = limits[_i], .rlim_max = RLIM_INFINITY};

    make_dir();
    write_sharded(DTYPE_BF16);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(model_convert(in_dir("plain"), in_dir("out"), DTYPE_E4M3, NULL, NULL, &e),
                     -EFBIG);
    ck_assert_ptr_nonnull(strstr(e.text, ": cannot write: "));
    ck_assert_int_eq(n_left(), 0);
    remove_dir();
}

/* The new folder's, and the one that it has until it is whole. */
TEST(existing_names_are_refused)
{
    char part[256];

    make_dir();
    ck_assert_int_eq(mkdir(in_dir("out"), 0755), 0);
    ck_assert_int_eq(model_convert(TEST_MODEL_DIR, in_dir("out"), DTYPE_E4M3, NULL, NULL, &e),
                     -EEXIST);
    ck_assert_ptr_nonnull(strstr(e.text, "out: exists already"));
    snprintf(part, sizeof(part), "%s/new.part-%d", dir, (int)getpid());
    ck_assert_int_eq(mkdir(part, 0755), 0);
    ck_assert_int_eq(model_convert(TEST_MODEL_DIR, in_dir("new"), DTYPE_E4M3, NULL, NULL, &e),
                     -EEXIST);
    ck_assert_ptr_nonnull(strstr(e.text, "exists already: remove it"));
    ck_assert_ptr_nonnull(strstr(e.text, part));
    remove_dir();
}

/* Names of new folders that cannot be made. They are named as they were given. */
static const struct {
    const char *from, *to;
    int code;
    const char *text;
} places[] = {
    {"plain", "no/out", -ENOENT,
     "no/out: cannot be made: No such file or directory; its parent folder must exist and be "
     "writable"},
    {"plain", "plain/config.json/out", -ENOTDIR, "out: cannot be made: Not a directory; its"},
    {"plain", "plain/out", -EINVAL, "plain/out: lies inside "},
    {"plain", "plain/1_Pooling/out/", -EINVAL, "plain/1_Pooling/out/: lies inside "},
    {"plain", "link/out", -EINVAL, "link/out: lies inside "},
    {"link", "plain/out", -EINVAL, "link: give a name outside of that folder"},
};

TEST(wrong_places_are_refused, .n = N(places))
{
    make_dir();
    write_sharded(DTYPE_BF16);
    ck_assert_int_eq(symlink("plain", in_dir("link")), 0);
    ck_assert_int_eq(model_convert(in_dir(places[_i].from), in_dir(places[_i].to), DTYPE_E4M3, NULL,
                                   NULL, &e),
                     places[_i].code);
    ck_assert_msg(strstr(e.text, places[_i].text) != NULL, "%s", e.text);
    ck_assert_int_eq(n_left(), 1); /* the link */
    remove_dir();
}

/* Errors of the old folder begin with its name, and have it once. */
TEST(old_folders_are_named)
{
    char text[256];

    make_dir();
    ck_assert_int_eq(mkdir(in_dir("empty"), 0755), 0);
    ck_assert_int_lt(model_convert(in_dir("empty"), in_dir("out"), DTYPE_E4M3, NULL, NULL, &e), 0);
    snprintf(text, sizeof(text),
             "%s/empty: config.json: cannot be opened: No such file or directory", dir);
    ck_assert_str_eq(e.text, text);
    ck_assert_int_lt(model_convert(in_dir("none"), in_dir("out"), DTYPE_E4M3, NULL, NULL, &e), 0);
    snprintf(text, sizeof(text), "%s/none: No such file or directory", dir);
    ck_assert_str_eq(e.text, text);
    remove_dir();
}

/* A name that begins as the old folder's does. */
TEST(folders_beside_are_not_inside)
{
    make_dir();
    write_sharded(DTYPE_BF16);
    convert(in_dir("plain"), in_dir("plain2"), DTYPE_E4M3);
    remove_dir();
}

TEST(quantized_folders_are_not_quantized_again)
{
    make_dir();
    convert(TEST_MODEL_DIR, in_dir("fp8"), DTYPE_E4M3);
    ck_assert_int_eq(model_convert(in_dir("fp8"), in_dir("out"), DTYPE_INT4, NULL, NULL, &e),
                     -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(e.text, "fp8: is quantized already: convert it to bf16 first"));
    remove_dir();
}

RUN_TESTS("converter", NULL, NULL)
