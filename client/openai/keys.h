/* keys.h - the keys that requests must bring, out of a file: a name and a key on each line. */
#ifndef NVLLM_CLIENT_OPENAI_KEYS_H
#define NVLLM_CLIENT_OPENAI_KEYS_H

#include "client/lib/nvllm_client.h"

enum { KEYS_MAX_NAME = 32, KEYS_WHY = 300 };

struct keys;

/* 0, or a negative errno with a message that names file and line. */
int keys_load(struct keys **out, const char *path, char why[KEYS_WHY]);
void keys_free(struct keys *k); /* takes NULL */

/* The name of the key in “Bearer KEY”, valid as long as the keys; NULL: it is none. The time that
 * it takes does not tell how much of a key is right. */
const char *keys_find(const struct keys *k, struct nvllm_text authorization);

#endif
