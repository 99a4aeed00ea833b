/* trie.h - finds the longest of a set of strings at a position of a text. */
#ifndef NVLLM_ENGINE_TEXT_TRIE_H
#define NVLLM_ENGINE_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

struct trie_node {
    uint32_t child;   /* the first one, or 0 */
    uint32_t sibling; /* the next one with the same parent, or 0 */
    int32_t value;    /* of the string that ends here, or -1 */
    unsigned char byte;
};

struct trie {
    struct trie_node *nodes;
    size_t n, cap;
    uint32_t roots[256]; /* the node of each first byte, or 0 */
};

/* Zero-initialise; node 0 is never used. */
void trie_deinit(struct trie *t);

/* Adds a string that is not empty; value >= 0. -EEXIST, -ENOMEM. */
int trie_add(struct trie *t, const char *s, size_t len, int32_t value);

/* The length of the longest string at the beginning of p[0..n), and its value; 0: none. */
size_t trie_longest(const struct trie *t, const char *p, size_t n, int32_t *value);

#endif
