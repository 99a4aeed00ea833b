/* test_quantized.c - folders of every quantized format: each weight is read as its format defines
 * it, for every number of ranks; the CPU backend computes what it computes of the same weights
 * unquantized; what cannot be read is refused by name. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_backend.h"
#include "engine/model/packing.h"
#include "engine/model/quantization.h"
#include "engine/model/weights.h"
#include "engine/util/file.h"
#include "tests/tools/backend_driver.h"
#include "tests/tools/model_writer.h"
#include "tests/tools/quantized_writer.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

#define FP8                                                                                        \
    "{'quant_method':'fp8','activation_scheme':'dynamic','fmt':'e4m3',"                            \
    "'weight_block_size':[128,128],'modules_to_not_convert':['lm_head']}"
#define CT(format, weights, inputs)                                                                \
    "{'quant_method':'compressed-tensors','format':'" format "','ignore':['lm_head'],"             \
    "'kv_cache_scheme':null,'quantization_status':'compressed','sparsity_config':{},"              \
    "'config_groups':{'group_0':{'targets':['Linear'],'output_activations':null,"                  \
    "'input_activations':" inputs ",'weights':" weights "}}}"
#define CT_FP8(strategy, block)                                                                    \
    "{'num_bits':8,'type':'float','symmetric':true,'dynamic':false,'actorder':null,"               \
    "'group_size':null,'block_structure':" block ",'strategy':'" strategy "'}"
#define CT_INPUTS(dynamic)                                                                         \
    "{'num_bits':8,'type':'float','symmetric':true,'dynamic':" dynamic ",'strategy':'token'}"
#define CT_INT4(group, symmetric)                                                                  \
    "{'num_bits':4,'type':'int','symmetric':" symmetric ",'dynamic':false,'actorder':null,"        \
    "'group_size':" group ",'strategy':'group'}"
#define AWQ(group)                                                                                 \
    "{'quant_method':'awq','bits':4,'group_size':" group ",'version':'gemm','zero_point':true,"    \
    "'modules_to_not_convert':null}"
#define GPTQ(group, sym, version)                                                                  \
    "{'quant_method':'gptq','bits':4,'group_size':" group ",'desc_act':false,'sym':" sym ","       \
    "'checkpoint_format':'" version "','damp_percent':0.1,'true_sequential':true}"

static const struct quantized_form forms[] = {
    {FP8, QUANTIZED_FP8_BLOCKS, "weight_scale_inv", "F32", 128, .symmetric = true},
    {FP8, QUANTIZED_FP8_BLOCKS, "weight_scale_inv", "BF16", 128, .plain = "self_attn.o_proj"},
    {CT("float-quantized", CT_FP8("block", "[128,128]"), CT_INPUTS("true")), QUANTIZED_FP8_BLOCKS,
     "weight_scale", "F32", 128, .symmetric = true},
    {CT("float-quantized", CT_FP8("channel", "null"), CT_INPUTS("true")), QUANTIZED_FP8_ROWS,
     "weight_scale", "BF16", 0, .symmetric = true},
    {CT("naive-quantized", CT_FP8("tensor", "null"), CT_INPUTS("false")), QUANTIZED_FP8_TENSOR,
     "weight_scale", "F32", 0, .extra = "input_scale"},
    {CT("pack-quantized", CT_INT4("128", "true"), "null"), QUANTIZED_PACKED, NULL, "BF16", 128,
     .symmetric = true},
    {CT("pack-quantized", CT_INT4("32", "false"), "null"), QUANTIZED_PACKED, NULL, "F16", 32,
     .symmetric = false},
    {AWQ("128"), QUANTIZED_AWQ, NULL, "F16", 128, .symmetric = false},
    {AWQ("64"), QUANTIZED_AWQ, NULL, "BF16", 64, .plain = "mlp.down_proj"},
    {GPTQ("128", "true", "gptq"), QUANTIZED_GPTQ, NULL, "F16", 128, true, .stored_less = 1},
    {GPTQ("32", "false", "gptq"), QUANTIZED_GPTQ, NULL, "F16", 32, false, .stored_less = 1},
    {GPTQ("64", "false", "gptq_v2"), QUANTIZED_GPTQ, NULL, "F16", 64, false, .stored_less = 0},
};

enum {
    FORM_FP8,
    FORM_CHANNELS = 3,
    FORM_TENSORS,
    FORM_PACKED,
    FORM_ZEROS,
    FORM_AWQ,
    FORM_GPTQ = 9,
    N_FORMS = N(forms),
    MAX_TP = 4
};

/* In whole groups and words; and in ragged blocks, for FP8 alone. */
static const struct model_config shapes[] = {
    {WRITER_QWEN3, 1, 4, 2, 64, 256, 256, 2048, 256, 1e-6f, 1e6, true},
    {WRITER_QWEN2, 2, 8, 2, 32, 200, 424, 2048, 256, 1e-6f, 1e6, false},
    {WRITER_QWEN3_MOE(3, 2), 1, 8, 4, 64, 128, 256, 2048, 256, 1e-6f, 1e6, true},
};

enum { SHAPE_WHOLE, SHAPE_RAGGED, SHAPE_MOE, N_SHAPES };

static struct err e;

static struct model *open_folder(void)
{
    struct model *m;

    ck_assert_msg(model_open(&m, dir, &e) == 0, "%s", e.text);
    return m;
}

static int read_piece(void *model, int thread, const struct weight_piece *p, struct err *err)
{
    const struct matrix to = weight_piece_rows(p);

    (void)thread;
    return weight_piece_read(model, p, &to, err);
}

/* Every row of a piece has the values of its tensor's row. */
static int check_piece(const struct weight_piece *p, const struct model *m,
                       const struct quantized_form *form)
{
    const struct matrix rows = weight_piece_rows(p);
    float *row = calloc((size_t)rows.k, sizeof(*row));
    char name[TENSOR_NAME_BYTES];
    const bool has = (tensor_spec_name(name, p->part.tensor, model_config(m), p->number),
                      quantized_has(form, name));

    ck_assert_msg(has == (rows.scale_rows > 0), "%s: is %s", name, dtype_info[rows.dtype].name);
    for (int32_t r = 0; r < rows.n && has; r++) {
        matrix_row_f32(row, &rows, r);
        for (int32_t c = 0; c < rows.k; c++) {
            const double wanted = quantized_value(form, name, p->part.row + r, p->part.col + c);

            ck_assert_msg((double)row[c] == (double)(float)wanted, "%s [%d, %d]: %g, not %g", name,
                          (int)p->part.row + r, (int)p->part.col + c, (double)row[c], wanted);
        }
    }
    free(row);
    return has;
}

/* Ragged columns are for FP8 alone; with sanitizers each format has one shape. */
static bool is_left_out(int form, int shape)
{
#ifdef TEST_LIGHT
    if (shape != (forms[form].kind >= QUANTIZED_PACKED ? form % 2 * SHAPE_MOE : form % N_SHAPES))
        return true;
#endif
    return shape == SHAPE_RAGGED && forms[form].kind >= QUANTIZED_PACKED;
}

/* Each weight of each rank, read in small pieces, is what the format says. */
TEST(every_weight_is_read, .n = N_FORMS * N_SHAPES)
{
    static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                                 .k_align = 16,
                                                 .align = 64,
                                                 .piece_elements = 20000};
    const struct quantized_form *form = &forms[_i / N_SHAPES];
    const int shape = _i % N_SHAPES;
    struct model *m;

    if (is_left_out(_i / N_SHAPES, shape))
        return;
    make_dir();
    quantized_write(dir, &shapes[shape], form, false);
    m = open_folder();
    for (int tp = 1; tp <= MAX_TP; tp *= 2)
        for (int rank = 0; rank < tp && shard_check(model_config(m), tp, &e) == 0; rank++) {
            struct weights w;
            int n = 0;
            void *base;

            ck_assert_int_eq(weights_init(&w, model_config(m), (struct shard){rank, tp}, &layout,
                                          &e),
                             0);
            base = aligned_alloc(64, w.bytes);
            memset(base, 0, w.bytes);
            weights_place(&w, base);
            ck_assert_msg(weights_load(&w, 2, read_piece, m, NULL, NULL, &e) == 0, "%s", e.text);
            for (int32_t i = 0; i < w.n_pieces; i++)
                n += check_piece(&w.pieces[i], m, form);
            ck_assert_int_gt(n, 0);
            weights_deinit(&w);
            free(base);
        }
    model_close(m);
    remove_dir();
}

/* ---- tokens */

enum { N_SEQS = 3, N_OUT = 8, N_TOP = 5, MAX_PROMPT = 90 };

static const int prompt_lens[N_SEQS] = {MAX_PROMPT, 1, 17};

static int32_t prompts[N_SEQS][MAX_PROMPT];

/* Answers to all prompts, one at a time or together. */
static void answer(struct drive_seq seqs[N_SEQS], const struct model *m, int tp, bool together)
{
    const struct backend_options options = {.block_len = 16,
                                            .max_batch_tokens = together ? 64 : 256,
                                            .max_seqs = N_SEQS,
                                            .max_seq_len = 256,
                                            .tier_bytes = {32 << 20},
                                            .n_threads = 2,
                                            .tp_size = tp};
    struct driver d = {.ops = &cpu_backend, .options = &options};
    struct drive_times times;

    ck_assert_msg(cpu_backend.open(&d.backend, m, &options, &e) == 0, "%s", e.text);
    for (int i = 0; i < N_SEQS; i++) {
        for (int k = 0; k < prompt_lens[i]; k++)
            prompts[i][k] = (i * 1000 + k * 37) % 2000;
        drive_seq_init(&seqs[i], prompts[i], prompt_lens[i], N_OUT, N_TOP);
        if (!together)
            ck_assert_int_eq(drive(&d, &seqs[i], 1, &times, &e), 0);
    }
    if (together)
        ck_assert_int_eq(drive(&d, seqs, N_SEQS, &times, &e), 0);
    cpu_backend.close(d.backend);
}

static void free_seqs(struct drive_seq seqs[N_SEQS])
{
    for (int i = 0; i < N_SEQS; i++)
        drive_seq_deinit(&seqs[i]);
}

/* The same tokens, and logprobs that differ by at most so much. Where the two best are closer than
 * that, the texts may part. */
static void compare(const struct drive_seq *a, const struct drive_seq *b, double tolerance)
{
    for (int i = 0; i < N_SEQS; i++)
        for (int k = 0; k < N_OUT; k++) {
            const float *best = &a[i].top_logprobs[k * SAMPLING_MAX_LOGPROBS];

            ck_assert(a[i].out[k] != BATCH_NUMERICS);
            if (a[i].out[k] != b[i].out[k] && (double)(best[0] - best[1]) <= 2 * tolerance)
                break;
            ck_assert_msg(a[i].out[k] == b[i].out[k], "prompt %d: token %d is %d, not %d", i, k,
                          (int)a[i].out[k], (int)b[i].out[k]);
            ck_assert_msg(fabs((double)(a[i].logprobs[k] - b[i].logprobs[k])) <= tolerance,
                          "prompt %d: logprob %d is off by %g", i, k,
                          (double)(a[i].logprobs[k] - b[i].logprobs[k]));
        }
}

/* With scales that are powers of two bf16 holds every weight: then the answers are those of the
 * unquantized folder, to the bit where a row has one scale, else but for the order of sums. They
 * do not depend on the batch, and little on the number of ranks. */
TEST(answers_are_those_of_the_weights, .n = N_FORMS * N_SHAPES)
{
    struct quantized_form form = forms[_i / N_SHAPES];
    const int shape = _i % N_SHAPES;
    struct drive_seq alone[N_SEQS], other[N_SEQS];
    struct model *m;

    if (is_left_out(_i / N_SHAPES, shape))
        return;
    form.powers = true;
    make_dir();
    quantized_write(dir, &shapes[shape], &form, false);
    m = open_folder();
    answer(alone, m, 1, false);
    answer(other, m, 1, true);
    compare(alone, other, 0.0);
    free_seqs(other);
    answer(other, m, 2, true);
    compare(alone, other, 1e-3);
    free_seqs(other);
    model_close(m);
    remove_dir();
    make_dir();
    quantized_write(dir, &shapes[shape], &form, true);
    m = open_folder();
    answer(other, m, 1, false);
    compare(other, alone, form.group ? 1e-3 : 0.0);
    free_seqs(other);
    free_seqs(alone);
    model_close(m);
    remove_dir();
}

/* ---- folders that are refused */

/* Replaces the first text in a file of the folder by one of the same length or another one. */
static void replace(const char *file, const char *from, const char *to)
{
    const int folder = open(dir, O_RDONLY | O_DIRECTORY);
    char path[128], *text, *at;
    size_t bytes;
    FILE *f;

    ck_assert_int_eq(file_read_all(&text, &bytes, folder, file, 64 << 20, &e), 0);
    at = memmem(text, bytes, from, strlen(from));
    ck_assert_msg(at != NULL, "%s has no %s", file, from);
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fwrite(text, 1, (size_t)(at - text), f);
    fputs(to, f);
    fwrite(at + strlen(from), 1, bytes - (size_t)(at - text) - strlen(from), f);
    ck_assert_int_eq(fclose(f), 0);
    free(text);
    close(folder);
}

static void refused(const char *text)
{
    struct model *m;

    ck_assert_int_lt(model_open(&m, dir, &e), 0);
    ck_assert_msg(strstr(e.text, text) != NULL, "\"%s\" is not in \"%s\"", text, e.text);
    remove_dir();
}

#define CONFIG  "config.json"
#define WEIGHTS "model.safetensors"
#define Q       "config.json: quantization_config."
#define GROUP   Q "config_groups.group_0."

static const struct {
    int form;
    const char *file, *from, *to, *text;
} bad[] = {
    {FORM_FP8, CONFIG, "\"fp8\"", "\"fp6\"", Q "quant_method: \"fp6\" is not supported; fp8, awq"},
    {FORM_FP8, CONFIG, "\"quant_method\"", "\"quint_method\"", Q "quant_method: is missing"},
    {FORM_FP8, CONFIG, "[128, 128]", "[128, 64]", Q "weight_block_size: only blocks of 128 x 128"},
    {FORM_FP8, CONFIG, "[128, 128]", "128", Q "weight_block_size: must be an array"},
    {FORM_FP8, CONFIG, "weight_block_size", "weight_block", Q "weight_block_size: is missing"},
    {FORM_FP8, CONFIG, "\"dynamic\"", "\"static\"", Q "activation_scheme: \"static\" is not"},
    {FORM_FP8, CONFIG, "\"e4m3\"", "\"e5m2\"", Q "fmt: \"e5m2\" is not supported"},
    {FORM_FP8, CONFIG, "\"quantization_config\"", "\"quantisation_config\"",
     "config.json: quantization_config is missing, but model.layers.0.self_attn.q_proj.weight is "
     "F8_E4M3: use the config.json that belongs to these weights"},
    {FORM_FP8, WEIGHTS, "layers.0.self_attn.q_proj.weight_scale_inv",
     "layers.0.self_attn.q_proj.weight_scale_ink", "q_proj.weight_scale_inv"},
    {FORM_FP8, WEIGHTS, "\"F8_E4M3\"", "\"F8_E5M2\"",
     "dtype: F8_E5M2 is not supported for it, but"},
    {FORM_FP8, WEIGHTS, "\"F32\",\"shape\":[2,2]", "\"I32\",\"shape\":[2,2]", "dtype: I32"},
    {FORM_FP8, WEIGHTS, "\"shape\":[2,2]", "\"shape\":[1,4]",
     "weight_scale_inv: shape: is [1, 4], but config.json implies [2, 2]"},
    {FORM_CHANNELS, CONFIG, "\"float-quantized\"", "\"int-quantized\"",
     Q "format: \"int-quantized\" is not supported"},
    {FORM_CHANNELS, CONFIG, "\"channel\"", "\"group\"", GROUP "weights.strategy: \"group\" is not"},
    {FORM_CHANNELS, CONFIG, "\"channel\"", "\"tensor\"", "weight_scale: shape: is ["},
    {FORM_CHANNELS, CONFIG, "\"num_bits\": 8", "\"num_bits\": 6", "num_bits: 6 is not supported"},
    {FORM_CHANNELS, CONFIG, "\"group_0\": {", "\"group_1\": {}, \"group_0\": {",
     Q "config_groups: 2 groups are not supported"},
    {FORM_CHANNELS, CONFIG, "\"output_activations\": null", "\"output_activations\": {}",
     GROUP "output_activations: quantized outputs"},
    {FORM_CHANNELS, CONFIG, "\"sparsity_config\": {}", "\"sparsity_config\": {\"format\": \"2:4\"}",
     Q "sparsity_config: is not supported"},
    {FORM_TENSORS, WEIGHTS, "q_proj.input_scale", "q_proj.input_scole", "q_proj.input_scale"},
    {FORM_PACKED, CONFIG, "\"group_size\": 128", "\"group_size\": 96",
     GROUP "weights.group_size: 96 is not supported; 32, 64 and 128 are"},
    {FORM_PACKED, CONFIG, "\"group_size\": 128", "\"group_size\": 64", "shape: is ["},
    {FORM_PACKED, CONFIG, "\"actorder\": null", "\"actorder\": \"group\"",
     GROUP "weights.actorder: \"group\" is not supported"},
    {FORM_PACKED, CONFIG, "\"input_activations\": null", "\"input_activations\": {\"num_bits\": 8}",
     GROUP "input_activations.num_bits: quantized activations are not supported"},
    {FORM_PACKED, CONFIG, "\"symmetric\": true", "\"symmetric\": false", "weight_zero_point"},
    {FORM_AWQ, CONFIG, "\"bits\": 4", "\"bits\": 8", Q "bits: 8 is not supported; only 4 is"},
    {FORM_AWQ, CONFIG, "\"gemm\"", "\"gemv\"", Q "version: \"gemv\" is not supported"},
    {FORM_AWQ, CONFIG, "\"zero_point\": true", "\"zero_point\": false", Q "zero_point: false"},
    {FORM_AWQ, CONFIG, "\"group_size\": 128", "\"group_size\": -1", Q "group_size: -1 is not"},
    {FORM_AWQ, CONFIG, "\"group_size\": 128", "\"group_size\": 1000000000000000000",
     Q "group_size: 1000000000000000000 is not supported; 32, 64 and 128 are"},
    {FORM_AWQ, CONFIG, "\"bits\": 4", "\"bits\": 1000000000000000000",
     Q "bits: 1000000000000000000 is not supported; only 4 is"},
    {FORM_AWQ, WEIGHTS, "q_proj.qzeros", "q_proj.qxeros", "q_proj.qzeros"},
    {FORM_GPTQ, CONFIG, "\"desc_act\": false", "\"desc_act\": true",
     Q "desc_act: true is not supported; folders quantized with desc_act false are"},
    {FORM_GPTQ, CONFIG, "\"gptq\", \"damp", "\"marlin\", \"damp",
     Q "checkpoint_format: \"marlin\" is not supported; gptq and gptq_v2 are"},
    {FORM_GPTQ, CONFIG, "\"sym\"", "\"sim\"", Q "sym: is missing"},
    {FORM_GPTQ, WEIGHTS, "\"F16\"", "\"I16\"",
     "dtype: I16 is not supported for it, but BF16 or F16"},
};

/* One change, and the folder is refused with the field or the tensor in the message. */
TEST(changed_folders_are_refused, .n = N(bad))
{
    make_dir();
    quantized_write(dir, &shapes[SHAPE_WHOLE], &forms[bad[_i].form], false);
    replace(bad[_i].file, bad[_i].from, bad[_i].to);
    refused(bad[_i].text);
}

/* Groups that would end in the middle of a row. */
TEST(ragged_groups_are_refused)
{
    make_dir();
    quantized_write(dir, &shapes[SHAPE_RAGGED], &forms[FORM_FP8], false);
    replace(CONFIG, "\"fp8\"",
            "\"awq\", \"bits\": 4, \"group_size\": 128, \"version\": \"gemm\", "
            "\"zero_point\": true");
    refused("groups of 128 do not divide the 200 columns of model.layers.0.self_attn.q_proj");
}

/* Bytes of a tensor's data. */
static void overwrite(const char *name, const void *bytes, size_t n, size_t at)
{
    struct model *m = open_folder();
    const struct tensor *t = model_tensor(m, name);
    char path[128];
    int fd;

    ck_assert_msg(t != NULL, "%s", name);
    snprintf(path, sizeof(path), "%s/" WEIGHTS, dir);
    fd = open(path, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, bytes, n, (off_t)(t->offset + at)), (ssize_t)n);
    close(fd);
    model_close(m);
}

/* What the data say contradicts the configuration. */
TEST(other_shape_is_refused)
{
    make_dir();
    quantized_write(dir, &shapes[SHAPE_WHOLE], &forms[FORM_PACKED], false);
    overwrite("model.layers.0.mlp.up_proj.weight_shape", &(int64_t){255}, 8, 0);
    refused("mlp.up_proj.weight_shape: is [255, 256], but config.json implies [256, 256]");
}

TEST(reordered_columns_are_refused)
{
    make_dir();
    quantized_write(dir, &shapes[SHAPE_WHOLE], &forms[FORM_GPTQ], false);
    overwrite("model.layers.0.mlp.up_proj.g_idx", &(int32_t){1}, 4, 4 * 7);
    refused("mlp.up_proj.g_idx: column 7 is of group 1 and not 0");
}

static int load_all(struct model *m)
{
    const struct backend_options options = {.block_len = 16,
                                            .max_batch_tokens = 64,
                                            .max_seqs = 1,
                                            .max_seq_len = 256,
                                            .tier_bytes = {32 << 20},
                                            .n_threads = 1};
    struct backend *backend;
    const int r = cpu_backend.open(&backend, m, &options, &e);

    if (r == 0)
        cpu_backend.close(backend);
    return r;
}

TEST(zeros_of_symmetric_groups_are_refused)
{
    struct model *m;

    make_dir();
    quantized_write(dir, &shapes[SHAPE_WHOLE], &forms[FORM_GPTQ], false);
    overwrite("model.layers.0.mlp.up_proj.qzeros", &(uint8_t){0x78}, 1, 5);
    m = open_folder();
    ck_assert_int_eq(load_all(m), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "up_proj.qzeros: has a zero of 9, but"));
    model_close(m);
    remove_dir();
}

/* A file that is cut after it was opened ends in an error for every tensor that is gone. */
TEST(short_files_are_refused, .n = N_FORMS)
{
    char path[128];
    struct model *m;

    make_dir();
    quantized_write(dir, &shapes[SHAPE_WHOLE], &forms[_i], false);
    m = open_folder();
    snprintf(path, sizeof(path), "%s/" WEIGHTS, dir);
    for (uint64_t bytes = 1200000; bytes > 0; bytes /= 3) {
        ck_assert_int_eq(truncate(path, (off_t)bytes), 0);
        ck_assert_int_eq(load_all(m), -EIO);
        ck_assert_ptr_nonnull(strstr(e.text, WEIGHTS ": ends at"));
    }
    model_close(m);
    remove_dir();
}

/* What the same bytes mean as another format is another model: its cached keys are not used. */
TEST(fingerprint_has_the_format)
{
    XXH128_hash_t hashes[2];

    make_dir();
    quantized_write(dir, &shapes[SHAPE_WHOLE], &forms[FORM_GPTQ + 1], false);
    for (int i = 0; i < 2; i++) {
        struct model *m = open_folder();

        ck_assert_int_eq(model_fingerprint(m, MODEL_OF_FILES, &hashes[i], &e), 0);
        model_close(m);
        if (i == 0)
            replace(CONFIG, "\"gptq\", \"damp", "\"gptq_v2\", \"damp");
    }
    ck_assert(!XXH128_isEqual(hashes[0], hashes[1]));
    remove_dir();
}

/* What weights are quantized to at load is part of what blocks depend on, and not of the folder. */
TEST(fingerprint_has_what_is_loaded)
{
    XXH128_hash_t hashes[MODEL_AS_OPENED + 1][2];

    for (int i = 0; i < 2; i++) {
        struct model *m;

        ck_assert_int_eq(model_open(&m, TEST_MODEL_DIR, &e), 0);
        if (i == 1)
            ck_assert_int_eq(model_quantize(m, DTYPE_E4M3, &e), 0);
        for (int what = MODEL_OF_FILES; what <= MODEL_AS_OPENED; what++)
            ck_assert_int_eq(model_fingerprint(m, (enum model_sameness)what, &hashes[what][i], &e),
                             0);
        model_close(m);
    }
    ck_assert(XXH128_isEqual(hashes[MODEL_OF_FILES][0], hashes[MODEL_OF_FILES][1]));
    ck_assert(!XXH128_isEqual(hashes[MODEL_AS_LOADED][0], hashes[MODEL_AS_LOADED][1]));
    ck_assert(!XXH128_isEqual(hashes[MODEL_AS_OPENED][0], hashes[MODEL_AS_OPENED][1]));
}

/* q is quantized, k and v are not: one matrix cannot be both. */
TEST(mixed_matrices_are_refused)
{
    struct quantized_form form = forms[FORM_AWQ];

    form.plain = "k_proj";
    make_dir();
    quantized_write(dir, &shapes[SHAPE_WHOLE], &form, false);
    refused("layer 0 has weights that are quantized beside weights that are not");
}

/* A rank has whole blocks or groups, so fewer ranks may do than would for plain weights. */
static const struct {
    int scale_rows, n_heads, ffn_dim; /* heads of 64 */
    const char *text;
} undivided[] = {
    {1, 16, 768, "an FFN of 768 cannot be divided among 4 ranks in whole groups of 128: fewer"},
    {128, 16, 768, "an FFN of 768 cannot be divided among 4 ranks in whole blocks of 128: fewer"},
    {1, 12, 1024, "o_proj is quantized in groups of 128 columns, and 4 ranks have 192 each: fewer"},
    {128, 12, 1024, "o_proj is quantized in blocks of 128 columns, and 4 ranks have 192 each"},
};

TEST(undivided_groups_are_named, .n = N(undivided))
{
    const struct quantization quant = {.scale_rows = undivided[_i].scale_rows, .scale_cols = 128};
    struct model_config c = {.n_heads = undivided[_i].n_heads,
                             .n_kv_heads = 4,
                             .head_dim = 64,
                             .ffn_dim = undivided[_i].ffn_dim};

    ck_assert_int_eq(shard_check(&c, 4, &e), 0);
    c.quant = &quant;
    ck_assert_int_eq(shard_check(&c, 4, &e), -ENOTSUP);
    ck_assert_msg(strstr(e.text, undivided[_i].text) != NULL, "%s", e.text);
    ck_assert_int_eq(shard_check(&c, 2, &e), 0);
}

RUN_TESTS("quantized", NULL, NULL)
