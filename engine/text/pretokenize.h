/* pretokenize.h - the pieces into which text is split before byte-pair merging: Qwen2's pattern.
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*
 *     |\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * One hand-written scanner, linear in the text; categories are utf8proc's. */
#ifndef NVLLM_ENGINE_TEXT_PRETOKENIZE_H
#define NVLLM_ENGINE_TEXT_PRETOKENIZE_H

#include <stddef.h>

/* The pattern as tokenizer.json spells it. */
extern const char pretokenize_qwen2_pattern[];

/* The bytes of the first piece of p[0..n), valid UTF-8 with n > 0 that ends where the text ends. */
size_t pretokenize_next(const char *p, size_t n);

#endif
