/* quantized.c - see quantized.h. */
#include "engine/model/quantized.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/packing.h"
#include "engine/model/quantization.h"
#include "engine/util/bf16.h"
#include "engine/util/checked.h"
#include "engine/util/must.h"

enum { CHUNK_WORDS = 32 }; /* of each row, that are brought into order at a time */

/* A piece that is being read. */
struct reading {
    const struct model *model;
    const struct quantization *q;
    const struct matrix *to;
    const struct tensor *of[N_STORED]; /* NULL: the format has no such tensor */
    int64_t n;                         /* rows of the whole weight */
    int64_t row, col, n_rows, n_cols;  /* of it, that the piece has */
    int64_t group, n_groups;           /* of columns, likewise */
    void *buffer;
    size_t buffer_bytes;
};

/* Makes room for n elements of a size in the buffer, whose content is lost. */
static int take_buffer(struct reading *r, int64_t n, size_t size, struct err *e)
{
    size_t bytes;

    if (!size_mul(&bytes, (size_t)n, size))
        return err_set(e, -ENOMEM, "out of memory");
    if (bytes <= r->buffer_bytes)
        return 0;
    free(r->buffer);
    r->buffer = malloc(bytes);
    r->buffer_bytes = r->buffer ? bytes : 0;
    return r->buffer ? 0 : err_set(e, -ENOMEM, "out of memory for %zu bytes of a weight", bytes);
}

/* Elements as stored of rows row .. row + n_rows - 1, of each from column col on, to rows
 * dst_stride bytes apart. */
static int read_rect(const struct reading *r, enum stored which, int64_t row, int64_t col,
                     int64_t n_rows, int64_t n_cols, void *dst, size_t dst_stride, struct err *e)
{
    const struct tensor *t = r->of[which];
    const int64_t width = t->rank == 2 ? t->shape[1] : 1;
    const size_t size = (size_t)(t->bytes / tensor_elements(t)), bytes = (size_t)n_cols * size;
    int rc = 0;

    if (n_cols == width && dst_stride == bytes)
        return model_read(r->model, t, (uint64_t)(row * width) * size, dst, (size_t)n_rows * bytes,
                          e);
    for (int64_t i = 0; i < n_rows && rc == 0; i++)
        rc = model_read(r->model, t, (uint64_t)((row + i) * width + col) * size,
                        (char *)dst + (size_t)i * dst_stride, bytes, e);
    return rc;
}

/* The same into the buffer, its rows without gaps. */
static int buffer_rect(struct reading *r, enum stored which, int64_t row, int64_t col,
                       int64_t n_rows, int64_t n_cols, struct err *e)
{
    const size_t size = (size_t)(r->of[which]->bytes / tensor_elements(r->of[which]));
    const int rc = take_buffer(r, n_rows * n_cols, size, e);

    return rc < 0
               ? rc
               : read_rect(r, which, row, col, n_rows, n_cols, r->buffer, (size_t)n_cols * size, e);
}

/* ---- E4M3 */

static float stored_float(const void *from, enum dtype dtype, int64_t i)
{
    const struct matrix as_scales = {.scales = (void *)(uintptr_t)from, .scale_dtype = dtype};

    return matrix_scale(&as_scales, i);
}

/* The rows of the matrix may be finer than those of the tensor: then several have the same scale.
 */
static int read_fp8_scales(struct reading *r, struct err *e)
{
    const int64_t of_scale = r->q->format == QUANT_CT_TENSORS ? r->n : r->q->scale_rows;
    const int64_t first = r->row / of_scale, last = (r->row + r->n_rows - 1) / of_scale;
    const int rc = buffer_rect(r, STORED_SCALES, first, r->group, last - first + 1, r->n_groups, e);
    float *scales = r->to->scales;

    for (int64_t i = 0; i < r->n_rows && rc == 0; i += r->to->scale_rows) {
        const int64_t from = ((r->row + i) / of_scale - first) * r->n_groups;

        for (int64_t g = 0; g < r->n_groups; g++)
            *scales++ = stored_float(r->buffer, r->of[STORED_SCALES]->dtype, from + g);
    }
    return rc;
}

static int read_fp8(struct reading *r, struct err *e)
{
    const int rc = read_rect(r, STORED_ELEMENTS, r->row, r->col, r->n_rows, r->n_cols, r->to->data,
                             (size_t)r->to->ld, e);

    return rc < 0 ? rc : read_fp8_scales(r, e);
}

/* ---- INT4 */

/* Words of eight columns, scales by rows, words of eight rows of zeros. */
static int read_packed(struct reading *r, struct err *e)
{
    const int64_t n_words = r->n_cols / INT4_IN_WORD, zero_row = r->row / INT4_IN_WORD;
    const int64_t zero_rows = (r->row + r->n_rows - 1) / INT4_IN_WORD - zero_row + 1;
    int rc = read_rect(r, STORED_ELEMENTS, r->row, r->col / INT4_IN_WORD, r->n_rows, n_words,
                       r->to->data, (size_t)n_words * sizeof(uint32_t), e);

    if (rc < 0)
        return rc;
    int4_reorder(r->to->data, (size_t)(r->n_rows * n_words));
    rc = read_rect(r, STORED_SCALES, r->row, r->group, r->n_rows, r->n_groups, r->to->scales,
                   (size_t)r->n_groups * sizeof(uint16_t), e);
    if (rc < 0 || !r->to->zeros)
        return rc;
    rc = buffer_rect(r, STORED_ZEROS, zero_row, r->group, zero_rows, r->n_groups, e);
    for (int64_t g = 0; g < r->n_groups && rc == 0; g++)
        int4_unpack(r->to->zeros + g, (size_t)r->n_groups, (const uint32_t *)r->buffer + g,
                    (size_t)r->n_groups, (size_t)(r->row % INT4_IN_WORD), (size_t)r->n_rows, 0,
                    false);
    return rc;
}

/* AWQ and GPTQ store the transposed matrix. */
static int read_transposed_elements(struct reading *r, struct err *e)
{
    const bool awq = r->q->format == QUANT_AWQ;
    const int64_t n_words = r->n_cols / INT4_IN_WORD, first = r->row / INT4_IN_WORD;
    const int64_t width = awq ? (r->row + r->n_rows - 1) / INT4_IN_WORD - first + 1 : r->n_rows;
    const size_t stride = (size_t)n_words;
    int rc = 0;

    for (int64_t at = 0, n; at < n_words && rc == 0; at += n) {
        uint32_t *out = (uint32_t *)r->to->data + at;

        n = n_words - at < CHUNK_WORDS ? n_words - at : CHUNK_WORDS;
        if (awq) {
            rc = buffer_rect(r, STORED_ELEMENTS, r->col + at * INT4_IN_WORD, first,
                             n * INT4_IN_WORD, width, e);
            if (rc == 0)
                int4_from_awq(out, stride, r->buffer, (size_t)width, (size_t)n,
                              (size_t)(r->row % INT4_IN_WORD), (size_t)r->n_rows);
        } else {
            rc = buffer_rect(r, STORED_ELEMENTS, r->col / INT4_IN_WORD + at, r->row, n, width, e);
            if (rc == 0)
                int4_from_gptq(out, stride, r->buffer, (size_t)width, (size_t)n, (size_t)r->n_rows);
        }
    }
    return rc;
}

static int read_transposed_scales(struct reading *r, struct err *e)
{
    const int rc = buffer_rect(r, STORED_SCALES, r->group, r->row, r->n_groups, r->n_rows, e);
    const uint16_t *from = r->buffer;
    uint16_t *scales = r->to->scales;

    for (int64_t g = 0; g < r->n_groups && rc == 0; g++)
        for (int64_t i = 0; i < r->n_rows; i++)
            scales[i * r->n_groups + g] = from[g * r->n_rows + i];
    return rc;
}

/* A symmetric GPTQ has them too: they must be what the matrix takes them for. */
static int check_zeros(const struct reading *r, const uint8_t *zeros, struct err *e)
{
    for (int64_t i = 0; i < r->n_rows; i++)
        if (zeros[i] != INT4_ZERO)
            return err_set(e, -EINVAL, "%s: has a zero of %d, but quantization_config.sym is true",
                           r->of[STORED_ZEROS]->name, zeros[i]);
    return 0;
}

static int read_transposed_zeros(struct reading *r, struct err *e)
{
    const int64_t first = r->row / INT4_IN_WORD;
    const int64_t width = (r->row + r->n_rows - 1) / INT4_IN_WORD - first + 1;
    uint8_t *symmetric = r->to->zeros ? NULL : malloc((size_t)r->n_rows);
    int rc = r->to->zeros || symmetric
                 ? buffer_rect(r, STORED_ZEROS, r->group, first, r->n_groups, width, e)
                 : err_set(e, -ENOMEM, "out of memory");

    for (int64_t g = 0; g < r->n_groups && rc == 0; g++) {
        const uint32_t *words = (const uint32_t *)r->buffer + g * width;
        uint8_t *to = symmetric ? symmetric : r->to->zeros + g;

        int4_unpack(to, symmetric ? 1 : (size_t)r->n_groups, words, 1,
                    (size_t)(r->row % INT4_IN_WORD), (size_t)r->n_rows, r->q->zero_bias,
                    r->q->format == QUANT_AWQ);
        if (symmetric)
            rc = check_zeros(r, symmetric, e);
    }
    free(symmetric);
    return rc;
}

static int read_transposed(struct reading *r, struct err *e)
{
    int rc = read_transposed_elements(r, e);

    if (rc == 0)
        rc = read_transposed_scales(r, e);
    return rc < 0 ? rc : read_transposed_zeros(r, e);
}

/* ---- plain weights that are quantized now */

/* Rows of the piece as bf16 in the buffer. */
static int buffer_plain(struct reading *r, int64_t row, int64_t n_rows, struct err *e)
{
    const struct tensor *t = r->of[STORED_ELEMENTS];
    int rc = take_buffer(r, n_rows * r->n_cols, sizeof(uint16_t), e);

    for (int64_t i = 0; i < n_rows && rc == 0; i++)
        rc = model_read_bf16(r->model, t, (uint64_t)((row + i) * t->shape[1] + r->col),
                             (uint16_t *)r->buffer + i * r->n_cols, (size_t)r->n_cols, e);
    return rc;
}

/* The rows of a block of the tensor that the piece has, first .. first + n - 1 of it. */
static void quantize_block(const struct reading *r, int64_t block_row, int64_t block_rows,
                           int64_t first, int64_t n)
{
    const int64_t to_row = block_row + first - r->row;

    for (int64_t g = 0; g < r->n_groups; g++) {
        const int64_t col = g * r->to->scale_cols, left = r->n_cols - col;
        const size_t n_cols = (size_t)(left < r->to->scale_cols ? left : r->to->scale_cols);
        const uint16_t *from = (const uint16_t *)r->buffer + col;
        const float scale = e4m3_scale(from, (size_t)r->n_cols, (size_t)block_rows, n_cols);

        for (int64_t i = 0; i < n; i++) {
            const int64_t to = to_row + i;

            e4m3_from_bf16((uint8_t *)matrix_row(r->to, to) + col, from + (first + i) * r->n_cols,
                           n_cols, scale);
            ((float *)r->to->scales)[to / r->to->scale_rows * r->n_groups + g] = scale;
        }
    }
}

/* A block's scale is that of all its rows, of which the piece may have a part. */
static int quantize_fp8(struct reading *r, struct err *e)
{
    const int64_t end = r->row + r->n_rows;
    int rc = 0;

    for (int64_t at = r->row, n; at < end && rc == 0; at += n) {
        const int64_t block = at / QUANT_BLOCK * QUANT_BLOCK;
        const int64_t rows = r->n - block < QUANT_BLOCK ? r->n - block : QUANT_BLOCK;

        n = (block + rows < end ? block + rows : end) - at;
        rc = buffer_plain(r, block, rows, e);
        if (rc == 0)
            quantize_block(r, block, rows, at - block, n);
    }
    return rc;
}

static int quantize_int4(struct reading *r, struct err *e)
{
    int rc = 0;

    for (int64_t i = 0; i < r->n_rows && rc == 0; i++) {
        uint32_t *words = matrix_row(r->to, i);

        rc = buffer_plain(r, r->row + i, 1, e);
        for (int64_t g = 0; g < r->n_groups && rc == 0; g++)
            int4_from_bf16(words + g * r->to->scale_cols / INT4_IN_WORD,
                           (uint16_t *)r->to->scales + i * r->n_groups + g,
                           (const uint16_t *)r->buffer + g * r->to->scale_cols,
                           (size_t)r->to->scale_cols);
    }
    return rc;
}

static int quantize(struct reading *r, struct err *e)
{
    return r->to->dtype == DTYPE_E4M3 ? quantize_fp8(r, e) : quantize_int4(r, e);
}

/* ---- all */

/* Finds the tensors of a weight, which were there and had the right shapes when the folder was
 * opened. */
static void find_tensors(struct reading *r, const char *name, int64_t k)
{
    for (int which = 0; which < N_STORED; which++) {
        char part[TENSOR_NAME_BYTES];
        struct tensor wanted;
        const char *types;

        if (!quantization_stored(&wanted, &types, r->q, (enum stored)which, r->n, k))
            continue;
        tensor_part_name(part, name, wanted.name);
        r->of[which] = model_tensor(r->model, part);
        must(r->of[which]);
    }
}

int quantized_piece_read(const struct model *m, const struct weight_piece *p,
                         const struct matrix *to, struct err *e)
{
    static int (*const readers[N_QUANT_FORMATS])(struct reading * r, struct err * e) = {
        [QUANT_FP8] = read_fp8,          [QUANT_CT_BLOCKS] = read_fp8,
        [QUANT_CT_CHANNELS] = read_fp8,  [QUANT_CT_TENSORS] = read_fp8,
        [QUANT_CT_PACKED] = read_packed, [QUANT_AWQ] = read_transposed,
        [QUANT_GPTQ] = read_transposed,  [QUANT_AT_LOAD] = quantize,
    };
    const struct model_config *c = model_config(m);
    const struct weight_part *part = &p->part;
    struct reading r = {.model = m,
                        .q = c->quant,
                        .to = to,
                        .n = tensor_dim_size(c, part->tensor->rows),
                        .row = part->row,
                        .col = part->col,
                        .n_rows = part->n_rows,
                        .n_cols = part->n_cols,
                        .group = part->col / to->scale_cols,
                        .n_groups = matrix_groups(to)};
    char name[TENSOR_NAME_BYTES];
    int rc;

    must(to->dtype == DTYPE_E4M3 || to->ld == to->k);
    tensor_spec_name(name, part->tensor, c, p->number);
    find_tensors(&r, name, tensor_dim_size(c, part->tensor->cols));
    rc = readers[r.q->format](&r, e);
    free(r.buffer);
    return rc;
}
