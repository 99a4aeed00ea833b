/* plant.h - bugs planted for the tests: the simulation and the fuzz oracles must catch each.
 *
 * PLANT(PLANT_X) is the constant 0 in the product. In a test build NVLLM_PLANT says which bug there
 * is: a constant, or the variable that the simulation sets. */
#ifndef NVLLM_ENGINE_UTIL_PLANT_H
#define NVLLM_ENGINE_UTIL_PLANT_H

extern int sim_plant; /* of the simulation alone */

#ifdef NVLLM_PLANT
#define PLANT(k) (NVLLM_PLANT == (k))
#else
#define PLANT(k) 0
#endif

/* X(name, what is wrong with it) */
#define PLANTS(X)                                                                                  \
    X(FREE_IN_FLIGHT, "blocks return before the last step that uses them is committed")            \
    X(EARLY_VISIBLE, "a block is found before the step that writes it is committed")               \
    X(NO_NAMESPACE, "all namespaces have one root")                                                \
    X(NO_COMPARE, "a hit is decided by a short hash alone")                                        \
    X(SHARE_NO_REF, "a shared block is not counted for the second holder")                         \
    X(KEEP_DISCARDED, "a row of an ended choice is reported")                                      \
    X(PREEMPT_LOSES, "a token sampled while its sequence is preempted is reported and lost")       \
    X(LOST_WAKE, "a sequence that waits for a prefix is not woken when it is ready")               \
    X(STALE_ROW, "a skipped decode names a row of a step already committed")                       \
    X(SHORT_HASH, "no bug: hashes collide all the time, and nothing may come of it")               \
    X(NO_PARENT, "with short hashes, equal tokens after another prefix are a hit")                 \
    X(NO_FAIRNESS, "users are not charged")                                                        \
    X(CHARGE_TWICE, "a preempted sequence is charged one token too many a step")                   \
    X(IDLE_CREDIT, "a user that comes back starts at its own virtual time")                        \
    X(NEWCOMER_LAST, "a user that comes back starts behind all others")                            \
    X(NO_STEP_LIMIT, "a step takes as long as all rows take")                                      \
    X(FREE_MASKS, "what masks take is not charged")                                                \
    X(NO_MASK_LIMIT, "a step has rows however long their masks take")                              \
    X(NO_PASS_LIMIT, "a request that does not fit is passed without end")                          \
    X(NO_YIELD, "a user with more than its part keeps it while others wait")                       \
    X(NO_TURNS, "decodes do not take turns")                                                       \
    X(NO_RESERVE, "decodes may take all rows while prompts wait")                                  \
    X(PIN_NO_REF, "a pinned block is not held")                                                    \
    X(PIN_NO_LIMIT, "pins may take what the longest sequence needs")                               \
    X(CLEAR_KEEPS_HELD, "what somebody holds stays findable when the cache is cleared")            \
    X(OFF_BY_ONE_FULL, "a block is listed one token before it is written in full")                 \
    X(DOUBLE_ID, "two tokens of a vocabulary may have one id")                                     \
    X(REPLAY_IN_CHUNKS, "what was sampled is computed again in chunks, and is shared")             \
    X(COPY_NO_HOLD, "a block may be freed while a copy of it is under way")                        \
    X(COPY_NO_REF, "a block may be taken while a copy into it is under way")                       \
    X(COPY_EARLY, "a copied block is found before the copy is done")                               \
    X(COPY_FAILURE, "a copy that failed is taken for done")                                        \
    X(COPY_IGNORED, "results of copies are not looked at")                                         \
    X(LOADING_FORGOTTEN, "a sequence that loads is not woken when its copies are done")            \
    X(STALE_LOCATION, "a node keeps its device block after eviction")                              \
    X(DRAFT_TOO_MANY, "one draft more is accepted than was right")                                 \
    X(DRAFT_AFTER_MISMATCH, "drafts are accepted behind one that was wrong")                       \
    X(DRAFT_PUBLISHED, "what rejected drafts wrote counts as written")                             \
    X(DRAFT_COUNTER, "the second row of drafts samples with the first one's counter")              \
    X(DRAFT_ORDER, "sequences with drafts are taken for prefill chunks")                           \
    X(MASK_ROW, "a mask is that of the row before")                                                \
    X(MASK_STALE, "a mask stays for the token after the next one")                                 \
    X(HOST_IN_FLIGHT, "a sequence with drafts has two rows in flight")                             \
    X(PLACE_TWICE, "a node takes a second copy in one tier")                                       \
    X(RESTORE_TAKEN, "a block that holds something from before stays free")                        \
    X(RESTORE_OPEN, "blocks are written to disk before it is known what is there")                 \
    X(CLEAR_KEEPS_LOWER, "what is not on the device stays findable when the cache is cleared")     \
    X(DROP_KEEPS_NODE, "a node stays when its last copy goes")                                     \
    X(CLEAN_LOST, "a clean block that is held again still counts as clean")                        \
    X(DIRTY_FORGOTTEN, "the first dirty block stays the first when it is held again")              \
    X(OFFLOAD_IDS, "an offloaded sequence's table names blocks of the device")                     \
    X(OFFLOAD_TWO, "two sequences run offloaded")                                                  \
    X(OFFLOAD_CHUNKS, "an offloaded sequence's chunk goes beside others")                          \
    X(SLEEP_KEEPS_BLOCKS, "what the device held is found after its memory was given back")         \
    X(LOAD_NO_ROOM, "a sequence waits for copies that found no room")                              \
    X(SUM_OF_SOME, "a sum of all hidden states leaves out what the cache has")                     \
    X(SUM_ROW, "a sum is that of the sequence before")

#define PLANT_ENUM(name, text) PLANT_##name,
enum { PLANT_NONE, PLANTS(PLANT_ENUM) };
#undef PLANT_ENUM

#endif
