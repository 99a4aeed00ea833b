/* trie.h - the longest of a set of strings that begins at a place in a text. */
#ifndef NVLLM_ENGINE_TEXT_TRIE_H
#define NVLLM_ENGINE_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

struct trie_node {
    uint32_t child;   /* the first one; 0 is none */
    uint32_t sibling; /* the next one with the same parent; 0 is none */
    int32_t value;    /* of the string that ends here, or -1 */
    unsigned char byte;
};

struct trie {
    struct trie_node *nodes;
    size_t n, cap;
    uint32_t roots[256]; /* the node of each first byte; 0 is none */
};

/* Zero-initialise; node 0 is never used. */
void trie_deinit(struct trie *t);

/* value >= 0. A string that is there already is -EEXIST; an empty one is a bug. -ENOMEM. */
int trie_add(struct trie *t, const char *s, size_t len, int32_t value);

/* Length of the longest string at p[0..n), and its value; 0 where none begins. */
size_t trie_longest(const struct trie *t, const char *p, size_t n, int32_t *value);

#endif
