/* test_prefix_cache.c - which blocks are found, by whom, in which tier, and when no longer. */
#include <string.h>

#include "tests/sim/core_verify.h"
#include "tests/unit/run_suite.h"

enum { N_BLOCKS = 8, N_HOST = 3, N_DISK = 16, LEN = 4 };

static struct blocks *tiers[N_TIERS], *blocks;
static struct prefix_cache *cache;
static struct cache_namespace *ns;
static uint8_t secret[PREFIX_CACHE_SECRET] = "a secret";
static const int32_t one[LEN] = {1, 2, 3, 4}, two[LEN] = {5, 6, 7, 8};

static struct text salt(const char *s)
{
    return (struct text){s, strlen(s)};
}

static void set_up(void)
{
    static const int32_t n[N_TIERS] = {N_BLOCKS, N_HOST, N_DISK};

    for (int t = 0; t < N_TIERS; t++)
        ck_assert_int_eq(blocks_new(&tiers[t], n[t]), 0);
    blocks = tiers[TIER_DEVICE];
    ck_assert_int_eq(prefix_cache_new(&cache, tiers, LEN, secret), 0);
    ck_assert_int_eq(prefix_cache_open(cache, &ns, 1, salt(""), false), 0);
}

static void tear_down(void)
{
    ck_assert_ptr_null(prefix_cache_verify(cache));
    prefix_cache_close(cache, ns);
    prefix_cache_free(cache);
    for (int t = 0; t < N_TIERS; t++)
        blocks_free(tiers[t]);
}

static int32_t take(enum tier tier)
{
    int32_t id;

    ck_assert(prefix_cache_take(cache, tier, N_DISK, &id));
    return id;
}

/* Takes a block, lists it behind *chain and gives its id. */
static int32_t add(uint64_t *chain, const int32_t *tokens)
{
    int32_t id = take(TIER_DEVICE);

    prefix_cache_insert(cache, chain, tokens, TIER_DEVICE, id);
    return id;
}

/* Copies a node's contents to a block of the tier, which is cached there from then on. */
static int32_t copy(const struct node *n, enum tier tier)
{
    int32_t id = take(tier);

    ck_assert(prefix_cache_place(cache, prefix_cache_chain(cache, n), tier, id));
    blocks_unref(tiers[tier], id);
    return id;
}

/* Takes device blocks until none is free or cached. */
static void take_all(void)
{
    int32_t id;

    while (prefix_cache_take(cache, TIER_DEVICE, 1, &id))
        ;
}

static int32_t hold(uint64_t *chain, const int32_t *tokens)
{
    int32_t id;

    return prefix_cache_hold(cache, chain, tokens, TIER_DEVICE, &id) ? id : -1;
}

/* A chain of two blocks is found block by block, and each is held once more. */
TEST(finds_a_chain)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root), at = chain;
    int32_t a = add(&chain, one);
    int32_t b = add(&chain, two);

    ck_assert_int_eq(hold(&at, one), a);
    ck_assert_int_eq(hold(&at, two), b);
    ck_assert_uint_eq(at, chain);
    ck_assert_int_eq(blocks_refs(blocks, a), 2);
    ck_assert_int_eq(blocks_refs(blocks, b), 2);
    ck_assert_ptr_null(prefix_cache_verify(cache));
}

/* Equal tokens after another prefix are another block. */
TEST(parent_is_part_of_identity)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root), root = chain;

    add(&chain, one);
    add(&chain, two);
    ck_assert_int_eq(hold(&root, two), -1);
    ck_assert_uint_eq(root, prefix_cache_chain(cache, &ns->root));
    ck_assert_int_eq(hold(&chain, one), -1);
}

/* Of two equal blocks the first is listed, and the second's chain continues with it. */
TEST(equal_block_stays_unlisted)
{
    uint64_t first = prefix_cache_chain(cache, &ns->root), second = first;
    int32_t a = add(&first, one);
    int32_t b = add(&second, one);

    ck_assert_int_ne(a, b);
    ck_assert_uint_eq(first, second);
    ck_assert(!blocks_node(blocks, b));
    blocks_unref(blocks, b);
    ck_assert_int_eq(blocks->n_cached, 0);
    blocks_unref(blocks, a);
    ck_assert_int_eq(blocks->n_cached, 1);
}

/* A namespace is found by the same client with the same bytes of salt, by no other. */
TEST(namespaces_are_exact)
{
    struct cache_namespace *other, *salted, *same;
    uint64_t chain = prefix_cache_chain(cache, &ns->root), at;
    int32_t a = add(&chain, one);

    ck_assert_int_eq(prefix_cache_open(cache, &other, 2, salt(""), false), 0);
    ck_assert_int_eq(prefix_cache_open(cache, &salted, 1, (struct text){"\0", 1}, false), 0);
    ck_assert_int_eq(prefix_cache_open(cache, &same, 1, salt(""), false), 0);
    at = prefix_cache_chain(cache, &other->root);
    ck_assert_int_eq(hold(&at, one), -1);
    at = prefix_cache_chain(cache, &salted->root);
    ck_assert_int_eq(hold(&at, one), -1);
    at = prefix_cache_chain(cache, &same->root);
    ck_assert_int_eq(hold(&at, one), a);
    prefix_cache_close(cache, other);
    prefix_cache_close(cache, salted);
    prefix_cache_close(cache, same);
}

/* A namespace without holders stays while blocks are in it: the next request finds them. */
TEST(namespace_outlives_its_requests)
{
    struct cache_namespace *first, *again;
    uint64_t chain, root;
    int32_t a;

    ck_assert_int_eq(prefix_cache_open(cache, &first, 9, salt("x"), false), 0);
    root = chain = prefix_cache_chain(cache, &first->root);
    a = add(&chain, one);
    blocks_unref(blocks, a);
    prefix_cache_close(cache, first);
    ck_assert_int_eq(prefix_cache_open(cache, &again, 9, salt("x"), false), 0);
    ck_assert_uint_eq(prefix_cache_chain(cache, &again->root), root);
    ck_assert_int_eq(hold(&root, one), a);
    /* without a node or a holder it is forgotten */
    prefix_cache_remove(cache, blocks_node(blocks, a));
    prefix_cache_close(cache, again);
    ck_assert_ptr_null(prefix_cache_find(cache, 9, salt("x")));
}

/* The cached blocks of a private namespace are free when it is closed. */
TEST(private_namespace_leaves_nothing)
{
    struct cache_namespace *private;
    uint64_t chain;
    int32_t a, b;

    ck_assert_int_eq(prefix_cache_open(cache, &private, 1, salt(""), true), 0);
    chain = prefix_cache_chain(cache, &private->root);
    a = add(&chain, one);
    b = add(&chain, two);
    blocks_unref(blocks, a);
    ck_assert_int_eq(blocks->n_cached, 1);
    prefix_cache_close(cache, private);
    ck_assert_int_eq(blocks->n_cached, 0);
    ck_assert(!blocks_node(blocks, b));
    blocks_unref(blocks, b);
    ck_assert_int_eq(blocks->n_free, N_BLOCKS);
}

/* When no block is free, the one released first is reused and no longer found; others still are. */
TEST(reuses_the_oldest)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root), at;
    int32_t a = add(&chain, one);
    int32_t b = add(&chain, two);
    int32_t id;

    blocks_unref(blocks, b); /* the tail first, as sequences do */
    blocks_unref(blocks, a);
    for (int i = 2; i < N_BLOCKS; i++) {
        id = take(TIER_DEVICE);
        ck_assert(id != a && id != b);
    }
    ck_assert_int_eq(take(TIER_DEVICE), b);
    ck_assert_uint_eq(cache->n_evicted, 1);
    at = prefix_cache_chain(cache, &ns->root);
    ck_assert_int_eq(hold(&at, one), a);
    ck_assert_int_eq(hold(&at, two), -1);
    ck_assert(!prefix_cache_take(cache, TIER_DEVICE, 1, &id));
}

/* A block computed again after its removal is a new node: the old tail is not found behind it. */
TEST(tail_of_a_forgotten_parent_is_unreachable)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root), again = chain, old_one;
    int32_t a = add(&chain, one);

    old_one = chain;
    add(&chain, two);
    prefix_cache_remove(cache, blocks_node(blocks, a));
    add(&again, one);
    ck_assert_uint_ne(again, old_one);
    ck_assert_int_eq(hold(&again, two), -1);
}

/* Removing a node unlists all behind it, which could not be found: cached blocks become free. */
TEST(removal_takes_what_is_behind)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root), middle, at = chain;
    int32_t a = add(&chain, one), b, c;

    middle = chain;
    b = add(&chain, two);
    c = add(&chain, one);
    blocks_unref(blocks, c);
    blocks_unref(blocks, b);
    ck_assert_int_eq(blocks->n_cached, 2);
    prefix_cache_remove(cache, blocks_node(blocks, a));
    ck_assert_int_eq(blocks->n_cached, 0);
    ck_assert_int_eq(blocks_n_used(blocks), 1);
    ck_assert_int_eq(hold(&middle, two), -1);
    ck_assert_int_eq(hold(&at, one), -1);
    ck_assert_ptr_null(prefix_cache_verify(cache));
    b = add(&middle, two); /* nothing can be listed behind it */
    ck_assert(!blocks_node(blocks, b));
    ck_assert_ptr_null(prefix_cache_verify(cache));
}

/* A node that is copied down outlives its device block: it is found in the other tier, what is
 * behind it is found too, and it goes with its last copy. */
TEST(outlives_its_device_block)
{
    const uint64_t root = prefix_cache_chain(cache, &ns->root);
    uint64_t chain = root, at = root;
    int32_t a = add(&chain, one), b, host, id;
    struct node *n = prefix_cache_node(cache, chain);

    b = add(&chain, two); /* held, so it stays on the device */
    host = copy(n, TIER_HOST);
    blocks_unref(blocks, a);
    take_all();
    ck_assert(!prefix_cache_hold(cache, &at, one, TIER_DEVICE, &id));
    ck_assert_uint_eq(at, root);
    ck_assert_ptr_eq(prefix_cache_lookup(cache, root, one), n);
    ck_assert_int_eq(n->location[TIER_DEVICE], -1);
    ck_assert_int_eq(n->location[TIER_HOST], host);
    ck_assert_int_eq(n->location[TIER_DISK], -1);
    at = prefix_cache_chain(cache, n);
    ck_assert_ptr_eq(prefix_cache_lookup(cache, at, two), prefix_cache_node(cache, chain));
    prefix_cache_drop(cache, n, TIER_HOST);
    ck_assert_int_eq(tiers[TIER_HOST]->n_free, N_HOST);
    ck_assert_ptr_null(blocks_node(blocks, b));
    ck_assert_ptr_null(prefix_cache_lookup(cache, root, one));
    ck_assert(!prefix_cache_place(cache, at, TIER_DISK, take(TIER_DISK)));
}

/* What is copied up, or computed again, becomes the device block of a node that was on the host
 * alone; a second such block stays unlisted. */
TEST(comes_back_to_the_device)
{
    const uint64_t root = prefix_cache_chain(cache, &ns->root);

    for (int computed = 0; computed < 2; computed++) {
        uint64_t chain = root, again = root;
        int32_t a = add(&chain, computed ? one : two), b;

        copy(prefix_cache_node(cache, chain), TIER_HOST);
        prefix_cache_drop(cache, prefix_cache_node(cache, chain), TIER_DEVICE);
        blocks_unref(blocks, a);
        b = take(TIER_DEVICE);
        if (computed)
            prefix_cache_insert(cache, &again, one, TIER_DEVICE, b);
        else
            ck_assert(prefix_cache_place(cache, chain, TIER_DEVICE, b));
        ck_assert(!prefix_cache_place(cache, chain, TIER_DEVICE, take(TIER_DEVICE)));
        again = root;
        ck_assert_int_eq(hold(&again, computed ? one : two), b);
        ck_assert_uint_eq(again, chain);
        prefix_cache_drop(cache, prefix_cache_node(cache, chain), TIER_HOST);
        again = root;
        ck_assert_int_eq(hold(&again, computed ? one : two), b);
    }
}

/* A full tier gives up its oldest copies, but none that a tier above has, which count as used; and
 * looks at no more than it is told to. */
TEST(each_tier_evicts_for_itself)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root);
    struct node *nodes[N_HOST];
    int32_t ids[N_HOST], host[N_HOST], id;

    for (int i = 0; i < N_HOST; i++) {
        ids[i] = add(&chain, one);
        nodes[i] = prefix_cache_node(cache, chain);
    }
    for (int i = N_HOST - 1; i >= 0; i--) /* the tail first, as sequences release */
        host[i] = copy(nodes[i], TIER_HOST);
    ck_assert(!prefix_cache_take(cache, TIER_HOST, N_HOST, &id));
    prefix_cache_drop(cache, nodes[1], TIER_DEVICE);
    prefix_cache_drop(cache, nodes[0], TIER_DEVICE);
    ck_assert(!prefix_cache_take(cache, TIER_HOST, N_HOST - 2, &id));
    ck_assert_int_eq(blocks_id(tiers[TIER_HOST], tiers[TIER_HOST]->cached.next), host[1]);
    ck_assert(prefix_cache_take(cache, TIER_HOST, 1, &id));
    ck_assert_int_eq(id, host[1]);
    ck_assert_ptr_null(blocks_node(blocks, ids[2])); /* it was behind the one that went */
    ck_assert_int_eq(nodes[0]->location[TIER_HOST], host[0]);
    ck_assert_uint_eq(cache->n_evicted, 0); /* of the device */
}

/* The next block to copy down is the oldest cached one without a copy there, where too few need
 * none; not a block that is held, private, or under a copy. */
TEST(next_copy_is_the_oldest)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root), other;
    struct cache_namespace *private;
    int32_t a = add(&chain, one), b, c;
    struct node *first = prefix_cache_node(cache, chain), *second;

    b = add(&chain, two);
    second = prefix_cache_node(cache, chain);
    ck_assert_int_eq(prefix_cache_open(cache, &private, 1, salt(""), true), 0);
    other = prefix_cache_chain(cache, &private->root);
    c = add(&other, two);
    ck_assert_ptr_null(prefix_cache_next_copy(cache, TIER_DEVICE, TIER_HOST, N_BLOCKS));
    blocks_unref(blocks, c);
    blocks_unref(blocks, b);
    blocks_unref(blocks, a);
    ck_assert_ptr_null(prefix_cache_next_copy(cache, TIER_DEVICE, TIER_HOST, 1)); /* c is clean */
    ck_assert_ptr_eq(prefix_cache_next_copy(cache, TIER_DEVICE, TIER_HOST, 2), second);
    blocks_ref(blocks, b);
    ck_assert_ptr_eq(prefix_cache_next_copy(cache, TIER_DEVICE, TIER_HOST, 2), first);
    copy(first, TIER_HOST);
    ck_assert_ptr_null(prefix_cache_next_copy(cache, TIER_DEVICE, TIER_HOST, 3));
    ck_assert_int_eq(blocks->n_clean, 2);
    blocks_put_back(blocks, b, false);
    ck_assert_ptr_eq(prefix_cache_next_copy(cache, TIER_DEVICE, TIER_HOST, 2), second);
    ck_assert_ptr_eq(prefix_cache_next_copy(cache, TIER_HOST, TIER_DISK, 1), first);
    prefix_cache_close(cache, private);
}

/* A block under a copy is not evicted, though it is the oldest; cleared, it is free only when the
 * copy is done. */
TEST(a_copy_keeps_its_block)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root);
    int32_t a = add(&chain, one), id;

    blocks_unref(blocks, a);
    blocks_ref(blocks, a);
    take_all();
    ck_assert(blocks_node(blocks, a));
    ck_assert_int_eq(prefix_cache_clear(cache, 1, false), 1);
    ck_assert(!prefix_cache_take(cache, TIER_DEVICE, 1, &id));
    blocks_put_back(blocks, a, true);
    ck_assert_int_eq(take(TIER_DEVICE), a);
}

/* Removing a node frees its copies and those of all behind it, in every tier. */
TEST(removed_from_all_tiers)
{
    uint64_t chain = prefix_cache_chain(cache, &ns->root);
    struct node *first = blocks_node(blocks, add(&chain, one));

    copy(blocks_node(blocks, add(&chain, two)), TIER_DISK);
    copy(first, TIER_HOST);
    copy(first, TIER_DISK);
    ck_assert_int_eq(prefix_cache_remove(cache, first), 2);
    ck_assert_int_eq(tiers[TIER_HOST]->n_free, N_HOST);
    ck_assert_int_eq(tiers[TIER_DISK]->n_free, N_DISK);
    ck_assert_ptr_null(prefix_cache_find(cache, 2, salt("")));
}

/* A hundred thousand random steps on all tiers leave the cache and its blocks consistent, and find
 * no block but with the tokens that were written to it. */
TEST(random_steps_on_three_tiers)
{
    enum { N_CHAINS = 12, MAX_HELD = 6 };
    static int32_t written[N_BLOCKS]; /* the first token */
    uint64_t chains[N_CHAINS];        /* some are gone */
    int32_t held[MAX_HELD], refs[N_TIERS][N_DISK] = {{0}};
    int32_t id, lower;
    int n_held = 0, n_found = 0, n_copies = 0;

    srandom(11);
    for (int i = 0; i < N_CHAINS; i++)
        chains[i] = prefix_cache_chain(cache, &ns->root);
    for (int step = 0; step < 100000; step++) {
        int32_t tokens[LEN] = {(int32_t)(random() % 2)};
        uint64_t chain = chains[random() % N_CHAINS], *next = &chains[random() % N_CHAINS];
        struct node *n;
        enum tier from = (enum tier)(random() % 2), to = from + 1;
        bool is_clean;

        switch (random() % 8) {
        case 0: /* a step computes a block */
        case 1:
            if (n_held == MAX_HELD || !prefix_cache_take(cache, TIER_DEVICE, 1, &id))
                break;
            prefix_cache_insert(cache, &chain, tokens, TIER_DEVICE, id);
            written[id] = tokens[0];
            held[n_held++] = id;
            refs[TIER_DEVICE][id]++;
            *next = random() % 4 ? chain : prefix_cache_chain(cache, &ns->root);
            break;
        case 2: /* a sequence shares one */
            if (n_held == MAX_HELD || !prefix_cache_hold(cache, &chain, tokens, TIER_DEVICE, &id))
                break;
            ck_assert_int_eq(written[id], tokens[0]);
            held[n_held++] = id;
            refs[TIER_DEVICE][id]++;
            n_found++;
            break;
        case 3: /* and releases it */
        case 4:
            if (n_held == 0)
                break;
            id = held[--n_held];
            blocks_unref(blocks, id);
            refs[TIER_DEVICE][id]--;
            break;
        case 5: /* a copy down */
            n = prefix_cache_next_copy(cache, from, to, 3);
            if (!n)
                break;
            is_clean = false;
            id = n->location[from];
            chain = prefix_cache_chain(cache, n);
            blocks_ref(tiers[from], id);
            if (prefix_cache_take(cache, to, 3, &lower)) { /* may evict the node */
                is_clean = prefix_cache_place(cache, chain, to, lower);
                n_copies += is_clean;
                blocks_unref(tiers[to], lower);
            }
            blocks_put_back(tiers[from], id, is_clean);
            break;
        case 6: /* a copy up */
            n = prefix_cache_lookup(cache, chain, tokens);
            if (!n || n->location[TIER_DEVICE] >= 0)
                break;
            chain = prefix_cache_chain(cache, n);
            if (!prefix_cache_take(cache, TIER_DEVICE, 1, &id))
                break;
            written[id] = tokens[0];
            prefix_cache_place(cache, chain, TIER_DEVICE, id);
            blocks_unref(blocks, id);
            break;
        default:
            if (random() % 200 == 0)
                prefix_cache_clear(cache, 1, false);
            else if (random() % 8 == 0 && (n = prefix_cache_node(cache, chain)) && n->parent &&
                     n->location[TIER_DISK] >= 0)
                prefix_cache_drop(cache, n, TIER_DISK);
        }
        ck_assert_ptr_null(prefix_cache_verify(cache));
        for (int t = 0; t < N_TIERS; t++)
            ck_assert_ptr_null(blocks_verify(tiers[t], refs[t]));
    }
    ck_assert_int_gt(n_found, 1000);
    ck_assert_int_gt(n_copies, 1000);
}

static XXH128_hash_t digest_of(uint64_t client, const char *with_salt, const int32_t *first,
                               const int32_t *second)
{
    struct cache_namespace *in;
    XXH128_hash_t digest;
    uint64_t chain;
    int32_t a, b;

    ck_assert_int_eq(prefix_cache_open(cache, &in, client, salt(with_salt), false), 0);
    chain = prefix_cache_chain(cache, &in->root);
    a = add(&chain, first);
    b = add(&chain, second);
    digest = blocks_node(blocks, b)->digest;
    blocks_unref(blocks, b);
    blocks_unref(blocks, a);
    prefix_cache_close(cache, in);
    return digest;
}

/* A digest is the same in another cache with the same secret, and differs with the secret, the
 * client, the salt, the tokens and those before them. */
TEST(digest_outlives_the_process)
{
    XXH128_hash_t d[7];

    d[0] = digest_of(7, "s", one, two);
    d[1] = digest_of(8, "s", one, two);
    d[2] = digest_of(7, "t", one, two);
    d[3] = digest_of(7, "s", one, one);
    d[4] = digest_of(7, "s", two, two);
    tear_down();
    set_up();
    d[5] = digest_of(7, "", two, one); /* another history */
    d[5] = digest_of(7, "s", one, two);
    tear_down();
    for (int i = 0; i < PREFIX_CACHE_SECRET; i++)
        secret[i] ^= 1;
    set_up();
    d[6] = digest_of(7, "s", one, two);
    ck_assert(XXH128_isEqual(d[0], d[5]));
    for (int i = 1; i < 7; i++)
        if (i != 5)
            ck_assert(!XXH128_isEqual(d[0], d[i]));
}

/* What records tell is found by another cache, each behind the node before it and by its own client
 * alone; what has no node before it, or is there already, is not taken. */
TEST(records_are_found_again)
{
    char memory[3][sizeof(struct node_record) + sizeof(one)];
    struct node_record *r[3];
    struct cache_namespace *salted, *other;
    uint64_t chain = prefix_cache_chain(cache, &ns->root);

    for (int i = 0; i < 2; i++) {
        r[i] = (void *)memory[i];
        blocks_unref(blocks, add(&chain, i == 0 ? one : two));
        ck_assert(prefix_cache_record(cache, prefix_cache_node(cache, chain), r[i]));
    }
    ck_assert_int_eq(prefix_cache_open(cache, &salted, 1, salt("salt"), false), 0);
    chain = prefix_cache_chain(cache, &salted->root);
    blocks_unref(blocks, add(&chain, one));
    r[2] = (void *)memory[2];
    ck_assert(prefix_cache_record(cache, prefix_cache_node(cache, chain), r[2]));
    prefix_cache_close(cache, salted);
    tear_down();
    set_up();
    ck_assert(!prefix_cache_restore(cache, r[1], 3)); /* the one before is not there yet */
    ck_assert(prefix_cache_restore(cache, r[0], 5));
    ck_assert(prefix_cache_restore(cache, r[1], 3));
    ck_assert(!prefix_cache_restore(cache, r[1], 4));
    ck_assert(prefix_cache_restore(cache, r[2], 0));
    chain = prefix_cache_chain(cache, &ns->root);
    for (int i = 0; i < 2; i++) {
        const struct node *n = prefix_cache_lookup(cache, chain, i == 0 ? one : two);

        ck_assert_ptr_nonnull(n);
        ck_assert_int_eq(n->location[TIER_DISK], i == 0 ? 5 : 3);
        chain = prefix_cache_chain(cache, n);
    }
    ck_assert_int_eq(prefix_cache_open(cache, &salted, 1, salt("salt"), false), 0);
    ck_assert_ptr_nonnull(
        prefix_cache_lookup(cache, prefix_cache_chain(cache, &salted->root), one));
    ck_assert_int_eq(prefix_cache_open(cache, &other, 2, salt("salt"), false), 0);
    ck_assert_ptr_null(prefix_cache_lookup(cache, prefix_cache_chain(cache, &other->root), one));
    prefix_cache_close(cache, other);
    prefix_cache_close(cache, salted);
    r[2]->client = 2; /* of a namespace that another has */
    ck_assert(!prefix_cache_restore(cache, r[2], 6));
}

RUN_TESTS("prefix_cache", set_up, tear_down)
