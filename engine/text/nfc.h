/* nfc.h - Unicode normalization form C in linear time, of a text and of ranges in it.
 *
 * Decomposition and composition are utf8proc's. This module adds a table by which text that is in
 * NFC already is only read, and an ordering of combining marks that is linear in the longest of
 * runs. */
#ifndef NVLLM_ENGINE_TEXT_NFC_H
#define NVLLM_ENGINE_TEXT_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/text.h"

enum { NFC_TABLE_CPS = 0x40000 }; /* nothing composes beyond: unassigned, private or ignorable */

/* Immutable after nfc_init. A bit for each character that is not safe. */
struct nfc {
    uint64_t unsafe[NFC_TABLE_CPS / 64];
};

void nfc_init(struct nfc *n); /* of zeros */

/* A normalized text. Buffers are kept from one use to the next; zero-initialise once. */
struct nfc_text {
    struct text text; /* the source itself if nothing changed */

    char *buf;
    size_t buf_cap;
    int32_t *cps; /* of one stretch between two safe characters, and scratch for sorting */
    size_t cps_cap;
};

void nfc_text_deinit(struct nfc_text *t);

/* Normalizes source, at most 1 GiB, to which *out may point; invalid UTF-8 becomes U+FFFD. The
 * ranges, ascending and disjoint in the source, become ranges of the result: one that begins or
 * ends inside of what was changed loses that part, and may be left with end < start. -ENOMEM. */
int nfc_normalize(const struct nfc *n, struct text source, struct text_range *ranges,
                  size_t n_ranges, struct nfc_text *out);

#endif
