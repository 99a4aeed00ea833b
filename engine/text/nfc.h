/* nfc.h - Unicode normalization form C in linear time, with the way back to the source.
 *
 * Characters and compositions are utf8proc's; what is added is a table that lets text which is in
 * NFC already pass at the speed of reading, an ordering of combining marks that stays linear for
 * runs of a million, and a record of what was changed. */
#ifndef NVLLM_ENGINE_TEXT_NFC_H
#define NVLLM_ENGINE_TEXT_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/text.h"

struct nfc; /* immutable after nfc_new */

int nfc_new(struct nfc **out); /* -ENOMEM */
void nfc_free(struct nfc *n);

/* One place where the normalized text differs from its source. */
struct nfc_edit {
    uint32_t in_start, in_end;   /* bytes of the source */
    uint32_t out_start, out_end; /* bytes of the result */
};

/* A normalized text. The buffers are kept from one use to the next: zero-initialise once. */
struct nfc_text {
    struct text text; /* the source itself where nothing changed */
    struct nfc_edit *edits;
    size_t n_edits;

    char *buf;
    size_t buf_cap, edits_cap;
    int32_t *cps; /* of one stretch between two safe characters; behind them scratch for sorting */
    size_t cps_cap;
};

void nfc_text_deinit(struct nfc_text *t);

/* Normalizes source, valid UTF-8 of at most 1 GiB, which must outlive *out's use. -ENOMEM. */
int nfc_normalize(const struct nfc *n, struct text source, struct nfc_text *out);

/* Where in the source the result's bytes [start, end) come from; a changed stretch counts whole. */
void nfc_source_range(const struct nfc_text *t, size_t start, size_t end, size_t *in_start,
                      size_t *in_end);

#endif
