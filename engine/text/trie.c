/* trie.c - see trie.h. */
#include "engine/text/trie.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

void trie_deinit(struct trie *t)
{
    free(t->nodes);
    memset(t, 0, sizeof(*t));
}

static uint32_t new_node(struct trie *t, unsigned char byte)
{
    if (!array_reserve(&t->nodes, &t->cap, t->n + 2, sizeof(*t->nodes)))
        return 0;
    t->nodes[++t->n] = (struct trie_node){.value = -1, .byte = byte};
    return (uint32_t)t->n;
}

static uint32_t find_child(const struct trie *t, uint32_t node, unsigned char byte)
{
    uint32_t child = t->nodes[node].child;

    while (child && t->nodes[child].byte != byte)
        child = t->nodes[child].sibling;
    return child;
}

int trie_add(struct trie *t, const char *s, size_t len, int32_t value)
{
    const unsigned char *bytes = (const unsigned char *)s;
    uint32_t node;

    must(len > 0 && value >= 0);
    if (!t->roots[bytes[0]])
        t->roots[bytes[0]] = new_node(t, bytes[0]);
    node = t->roots[bytes[0]];
    for (size_t i = 1; node && i < len; i++) {
        uint32_t child = find_child(t, node, bytes[i]);

        if (!child) {
            child = new_node(t, bytes[i]);
            if (child) {
                t->nodes[child].sibling = t->nodes[node].child;
                t->nodes[node].child = child;
            }
        }
        node = child;
    }
    if (!node)
        return -ENOMEM;
    if (t->nodes[node].value >= 0)
        return -EEXIST;
    t->nodes[node].value = value;
    return 0;
}

size_t trie_longest(const struct trie *t, const char *p, size_t n, int32_t *value)
{
    const unsigned char *bytes = (const unsigned char *)p;
    size_t longest = 0;
    uint32_t node = n ? t->roots[bytes[0]] : 0;

    for (size_t i = 1; node; i++) {
        if (t->nodes[node].value >= 0) {
            longest = i;
            *value = t->nodes[node].value;
        }
        node = i < n ? find_child(t, node, bytes[i]) : 0;
    }
    return longest;
}
