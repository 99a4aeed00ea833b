/* bench_disk_index.c - what a start does with an index of KV blocks on disk.
 *
 * usage: bench_disk_index [BLOCKS] [FOLDER]
 *
 * Writes an index of BLOCKS (1,000,000) records, chains of 256 each, into the folder (a new one
 * below /tmp), opens it as a start does and prints how long the threads read it, and how long the
 * core takes its records in. READY waits for the former up to a second, for the latter 10 ms: the
 * other records are taken in between steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/core/core.h"
#include "engine/disk_tier.h"
#include "engine/util/must.h"

enum { LEN = 16, CHAIN = 256, BLOCK = 4096, MAX_COPIES = 64 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void warn(const char *text)
{
    fprintf(stderr, "bench_disk_index: %s\n", text);
    exit(1);
}

static struct disk_tier *open_tier(const struct disk_options *o)
{
    struct disk_tier *d;
    struct err e;

    if (disk_tier_open(&d, o, &e) < 0 || disk_tier_start(d, MAX_COPIES, &e) < 0)
        warn(e.text);
    while (!disk_tier_is_read(d, 1000))
        ;
    return d;
}

/* The records of chains whose tokens are their numbers, each behind a block of its own bytes. */
static void write_index(const struct disk_options *o, int32_t n)
{
    static _Alignas(BLOCK) char memory[BLOCK];
    struct prefix_cache *p;
    struct blocks *tiers[N_TIERS] = {0};
    struct cache_namespace *ns;
    struct node_record *r = calloc(1, sizeof(*r) + LEN * sizeof(int32_t));
    struct disk_tier *d = open_tier(o);
    struct copy_result ended[MAX_COPIES];
    uint64_t chain = 0;
    int32_t n_asked = 0, n_ended = 0;

    must(r && blocks_new(&tiers[TIER_DEVICE], n) == 0);
    must(prefix_cache_new(&p, tiers, LEN, o->secret) == 0);
    must(prefix_cache_open(p, &ns, 1, (struct text){NULL, 0}, false) == 0);
    while (n_ended < n) { /* as many at a time as there are ids */
        for (int i = 0; i < MAX_COPIES && n_asked < n; i++, n_asked++) {
            int32_t tokens[LEN] = {n_asked, n_asked / CHAIN}, block;

            if (n_asked % CHAIN == 0)
                chain = prefix_cache_chain(p, &ns->root);
            must(blocks_take(tiers[TIER_DEVICE], &block));
            prefix_cache_insert(p, &chain, tokens, TIER_DEVICE, block);
            must(prefix_cache_record(p, prefix_cache_node(p, chain), r));
            disk_tier_store(d, (uint32_t)i, n_asked, memory, r);
        }
        while (n_ended < n_asked)
            n_ended += disk_tier_ended(d, ended, MAX_COPIES, 100);
    }
    disk_tier_close(d);
    free(r); /* the cache is left to the end of the process */
}

int main(int argc, char **argv)
{
    const int32_t n = argc > 1 ? atoi(argv[1]) : 1000000;
    static const uint8_t secret[PREFIX_CACHE_SECRET] = "of a benchmark";
    char made[] = "/tmp/nvllm-index-XXXXXX";
    struct disk_options o = {.folder = argc > 2 ? argv[2] : mkdtemp(made),
                             .bytes = (uint64_t)n * BLOCK,
                             .block_bytes = BLOCK,
                             .block_len = LEN,
                             .contents = "a benchmark",
                             .secret = secret,
                             .warn = warn};
    struct core_options options = {.n_blocks = 1024,
                                   .block_len = LEN,
                                   .max_batch_tokens = 1024,
                                   .max_seqs = 8,
                                   .max_seq_len = LEN * CHAIN,
                                   .prefix_cache = true,
                                   .tier_blocks = {[TIER_DISK] = n},
                                   .restores = true,
                                   .cache_secret = secret};
    const struct node_record *r;
    double begin, is_read, ended;
    struct disk_tier *d;
    struct core *c;
    int32_t block, n_restored = 0;

    if (n <= 0 || !o.folder)
        warn("usage: bench_disk_index [BLOCKS] [FOLDER]");
    write_index(&o, n);
    begin = now();
    d = open_tier(&o);
    is_read = now();
    must(core_new(&c, &options) == 0);
    ended = now();
    printf("%d records: read and checked by the tier's threads in %.1f ms; core_new %.1f ms; ", n,
           (is_read - begin) * 1e3, (ended - is_read) * 1e3);
    is_read = ended;
    while ((r = disk_tier_next_record(d, &block)))
        n_restored += core_restore(c, r, block, 1);
    core_restored(c);
    ended = now();
    printf("%d taken in by the core in %.1f ms, %.0f ns each\n", n_restored,
           (ended - is_read) * 1e3, (ended - is_read) * 1e9 / n);
    disk_tier_close(d);
    core_free(c);
    if (argc <= 2) {
        char path[64];

        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof(path), "%s/%s", made, i == 0 ? "kv-blocks" : "kv-index");
            unlink(path);
        }
        rmdir(made);
    }
    return n_restored == n ? EXIT_SUCCESS : EXIT_FAILURE;
}
