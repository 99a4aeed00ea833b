/* packing.h - elements of quantized weights: from the orders in which formats pack them to that of
 * struct matrix and back, from floats by rounding, and to floats.
 *
 * Words are of eight INT4 elements. In sequence means element i in bits 4 i .. 4 i + 3. Pure
 * functions; any thread. */
#ifndef NVLLM_ENGINE_MODEL_PACKING_H
#define NVLLM_ENGINE_MODEL_PACKING_H

#include <stddef.h>
#include <stdint.h>

#include "engine/model/model.h"

/* From sequence to a matrix's order (0, 2, 4, 6, 1, 3, 5, 7), in which AWQ packs too, and back. */
uint32_t int4_from_sequence(uint32_t word);
uint32_t int4_to_sequence(uint32_t word);

/* Rows of n words, in sequence, to a matrix's order, in place. */
void int4_reorder(uint32_t *words, size_t n);

/* Element i of word j <-> element j of word i, in sequence. */
void int4_transpose(uint32_t words[INT4_IN_WORD]);

/* GPTQ: word (i, r) of in [n_words, in_stride] has elements 8 i .. 8 i + 7 of row r, in sequence.
 * Row r of out, out_stride words apart, gets them as its first n_words. */
void int4_from_gptq(uint32_t *out, size_t out_stride, const uint32_t *in, size_t in_stride,
                    size_t n_words, size_t n_rows);

/* AWQ: word (k, j) of in [8 * n_words, in_stride] has element k of rows 8 j .. 8 j + 7. Row r of
 * out is row first + r there. */
void int4_from_awq(uint32_t *out, size_t out_stride, const uint32_t *in, size_t in_stride,
                   size_t n_words, size_t first, size_t n_rows);

/* Elements first .. first + n - 1 of words, `stride` apart, in sequence or as AWQ has them, plus
 * bias, to out, out_stride apart. */
void int4_unpack(uint8_t *out, size_t out_stride, const uint32_t *words, size_t stride,
                 size_t first, size_t n, int bias, bool awq);

/* ---- rounding: to nearest, ties to even; infinities and NaN give any element, but a scale that is
 * NaN or infinite, so that a broken weight still breaks what is computed of it */

/* The scale of a block of bf16 [n_rows, n_cols]: its largest magnitude becomes 448, the largest of
 * E4M3. 1 for zeros. */
float e4m3_scale(const uint16_t *x, size_t stride, size_t n_rows, size_t n_cols);
void e4m3_from_bf16(uint8_t *out, const uint16_t *x, size_t n, float scale);

/* A symmetric group of n, a multiple of 8: words in a matrix's order, and the scale as bf16. */
void int4_from_bf16(uint32_t *out, uint16_t *scale, const uint16_t *x, size_t n);

/* Scale number i of a quantized matrix, and a row of it as floats. */
float matrix_scale(const struct matrix *m, int64_t i);
void matrix_row_f32(float *out, const struct matrix *m, int32_t row);

#endif
