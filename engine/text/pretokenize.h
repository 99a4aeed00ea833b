/* pretokenize.h - splits text before byte-pair merging by Qwen2's pattern.
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*
 *     |\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * A hand-written scanner in linear time; categories are utf8proc's. */
#ifndef NVLLM_ENGINE_TEXT_PRETOKENIZE_H
#define NVLLM_ENGINE_TEXT_PRETOKENIZE_H

#include <stddef.h>

/* The pattern as tokenizer.json spells it. */
extern const char pretokenize_qwen2_pattern[];

/* The length of the first piece of p[0..n), n > 0: valid UTF-8, up to the end of the text. */
size_t pretokenize_next(const char *p, size_t n);

#endif
