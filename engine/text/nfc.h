/* nfc.h - Unicode normalization form C in linear time, with a map back to the source.
 *
 * Decomposition and composition are utf8proc's. This module adds a table by which text that is in
 * NFC already is only read, an ordering of combining marks that is linear in the longest of runs,
 * and a record of the changes. */
#ifndef NVLLM_ENGINE_TEXT_NFC_H
#define NVLLM_ENGINE_TEXT_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/text.h"

struct nfc; /* immutable after nfc_new */

int nfc_new(struct nfc **out); /* -ENOMEM */
void nfc_free(struct nfc *n);

/* A range in which the normalized text differs from its source. */
struct nfc_edit {
    uint32_t in_start, in_end;   /* bytes of the source */
    uint32_t out_start, out_end; /* bytes of the result */
};

/* A normalized text. Buffers are kept from one use to the next; zero-initialise once. */
struct nfc_text {
    struct text text; /* the source itself if nothing changed */
    struct nfc_edit *edits;
    size_t n_edits;

    char *buf;
    size_t buf_cap, edits_cap;
    int32_t *cps; /* of one stretch between two safe characters, and scratch for sorting */
    size_t cps_cap;
};

void nfc_text_deinit(struct nfc_text *t);

/* Normalizes source, valid UTF-8 of at most 1 GiB, to which *out may point. -ENOMEM. */
int nfc_normalize(const struct nfc *n, struct text source, struct nfc_text *out);

/* The range of the source from which bytes [start, end) of the result come, with whole edits. */
void nfc_source_range(const struct nfc_text *t, size_t start, size_t end, size_t *in_start,
                      size_t *in_end);

#endif
