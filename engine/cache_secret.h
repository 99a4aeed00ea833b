/* cache_secret.h - the secret under which prefix-cache digests are made: where it is kept, it and
 * so the digests are the same after a restart. Any thread. */
#ifndef NVLLM_ENGINE_CACHE_SECRET_H
#define NVLLM_ENGINE_CACHE_SECRET_H

#include <stdint.h>

#include "engine/core/prefix_cache.h"
#include "engine/util/err.h"

/* Reads the secret from the file cache-secret in the folder, or draws one and creates the file
 * where there is none. folder NULL: draws one that is kept nowhere. Negative errno with a text: the
 * file is refused unless it is a regular one of the right size that its owner alone can access. */
int cache_secret_load(uint8_t secret[PREFIX_CACHE_SECRET], const char *folder, struct err *e);

#endif
