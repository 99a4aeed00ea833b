/* sim_backend.h - a backend without a model: the next token is a hash of the whole prefix.
 *
 * Each slot of its KV pool records which token was written at which position after which prefix.
 * Before a step computes anything, every slot that it attends to is read back through the block
 * table and must continue the chain. So a block wrongly shared, freed, copied or overwritten is
 * seen at once, and the right output of every request is known whatever the schedule does. Bytes
 * move when a copy ends, which may be long after its step and in any order. Batches are checked
 * against all that batch.h promises. */
#ifndef NVLLM_TESTS_SIM_SIM_BACKEND_H
#define NVLLM_TESTS_SIM_SIM_BACKEND_H

#include "engine/batch.h"

struct sim_backend_options {
    int32_t n_blocks[N_TIERS];
    bool offload;
    int32_t block_len;
    int32_t max_batch_tokens;
    int32_t max_seqs;
    int32_t first_id, n_ids;  /* tokens sampled are first_id .. first_id + n_ids - 1 */
    bool never_stop;          /* no stop id is ever sampled */
    int32_t numerics_one_in;  /* so many rows give BATCH_NUMERICS; 0: none */
    bool replay;              /* chunks compute prompts alone, decodes all that was sampled */
    int32_t copy_steps;       /* a copy marked `after` takes this many waits on average; 0: none */
    int32_t copy_fail_one_in; /* so many copies fail; 0: none */
    uint64_t seed;            /* of which copies are late or fail */
};

struct sim_backend;

int sim_backend_new(struct sim_backend **out, const struct sim_backend_options *options);
void sim_backend_free(struct sim_backend *b);

/* The device's memory is given back and taken again: its blocks hold nothing any more. */
void sim_backend_empty_device(struct sim_backend *b);

/* A new backend's disk becomes that of another with the same options. */
void sim_backend_copy_disk(struct sim_backend *to, const struct sim_backend *from);

/* Each returns NULL, or a static text of what was wrong. A step is computed by run, or at the
 * latest by wait, in order. */
const char *sim_backend_submit(struct sim_backend *b, const struct batch *batch);
const char *sim_backend_mask(struct sim_backend *b, const uint32_t *const *masks);
const char *sim_backend_run(struct sim_backend *b); /* one step more, if one can be computed */
const char *sim_backend_wait(struct sim_backend *b, struct step_result *out);
bool sim_backend_lacks_masks(const struct sim_backend *b); /* the oldest step under way does */

/* The oracle: the hash of a prefix and one token more, and what is sampled after a prefix. mask is
 * as in backend.h, or NULL. */
uint64_t sim_hash(uint64_t prefix, int32_t token, int32_t position);
int32_t sim_sample(const struct sim_backend_options *o, const struct sampling *s, uint64_t prefix,
                   uint32_t counter, const uint32_t *mask);
/* The hidden state after a prefix: whole numbers, or NaN where the options ask for it. */
enum { SIM_SUM_DIM = 2 };
void sim_hidden(float out[SIM_SUM_DIM], const struct sim_backend_options *o, uint64_t prefix,
                int32_t position);

float sim_logprob(uint64_t prefix, int32_t id);

#endif
