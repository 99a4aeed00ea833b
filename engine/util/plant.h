/* plant.h - bugs that the simulation and the fuzz oracles must catch, planted at compile time in
 * test builds only.
 *
 * PLANT(X) is the constant 0 unless a test library is built with -DNVLLM_PLANT=PLANT_X, so the
 * product holds none of them. tests/sim/CMakeLists.txt lists what each one breaks. */
#ifndef NVLLM_ENGINE_UTIL_PLANT_H
#define NVLLM_ENGINE_UTIL_PLANT_H

#ifdef NVLLM_PLANT
#define PLANT(k) (NVLLM_PLANT == (k))
#else
#define PLANT(k) 0
#endif

enum {
    PLANT_FREE_IN_FLIGHT = 1, /* blocks return before the last step that uses them is committed */
    PLANT_EARLY_VISIBLE,      /* a block is found before the step that writes it is committed */
    PLANT_NO_NAMESPACE,       /* all namespaces have one root */
    PLANT_NO_COMPARE,         /* a hit is decided by a short hash alone */
    PLANT_SHARE_NO_REF,       /* a shared block is not counted for the second holder */
    PLANT_KEEP_DISCARDED,     /* a row of an ended choice is reported */
    PLANT_PREEMPT_LOSES,      /* a token sampled while its sequence is preempted is told and lost */
    PLANT_LOST_WAKE,          /* a sequence that waits for a prefix is not woken when it is ready */
    PLANT_STALE_ROW,          /* a skipped decode names a row of a step already committed */
    PLANT_SHORT_HASH,         /* no bug: hashes collide all the time, and nothing may come of it */
    PLANT_NO_PARENT,          /* with short hashes, equal tokens after another prefix are a hit */
    PLANT_NO_FAIRNESS,        /* users are not charged */
    PLANT_CHARGE_TWICE,       /* a preempted sequence is charged one token too many a step */
    PLANT_IDLE_CREDIT,        /* a user that comes back starts at its own virtual time */
    PLANT_NEWCOMER_LAST,      /* a user that comes back starts behind all others */
    PLANT_NO_STEP_LIMIT,      /* a step takes as long as all rows take */
    PLANT_NO_PASS_LIMIT,      /* a request that does not fit is passed without end */
    PLANT_NO_YIELD,           /* a user with more than its part keeps it while others wait */
    PLANT_NO_TURNS,           /* decodes do not take turns */
    PLANT_NO_RESERVE,         /* decodes may take all rows while prompts wait */
    PLANT_PIN_NO_REF,         /* a pinned block is not held */
    PLANT_PIN_NO_LIMIT,       /* pins may take what the longest sequence needs */
    PLANT_CLEAR_KEEPS_HELD,   /* what somebody holds stays findable when the cache is cleared */
    PLANT_OFF_BY_ONE_FULL,    /* a block is listed one token before it is written in full */
    PLANT_DOUBLE_ID,          /* two tokens of a vocabulary may have one id */
    PLANT_REPLAY_IN_CHUNKS,   /* what was sampled is computed again in chunks, and is shared */
    PLANT_COPY_NO_HOLD,       /* a block may be freed while a copy of it is under way */
    PLANT_COPY_NO_REF,        /* a block may be taken while a copy into it is under way */
    PLANT_COPY_EARLY,         /* a copied block is found before the copy is done */
    PLANT_COPY_FAILURE,       /* a copy that failed is taken for done */
    PLANT_COPY_IGNORED,       /* results of copies are not looked at */
    PLANT_LOADING_FORGOTTEN,  /* a sequence that loads is not woken when its copies are done */
    PLANT_STALE_LOCATION,     /* a node keeps its device block after eviction */
    PLANT_DRAFT_TOO_MANY,     /* one draft more is accepted than was right */
    PLANT_DRAFT_AFTER_MISMATCH, /* drafts are accepted behind one that was wrong */
    PLANT_DRAFT_PUBLISHED,      /* what rejected drafts wrote counts as written */
    PLANT_DRAFT_COUNTER,        /* the second row of drafts samples with the first one's counter */
    PLANT_MASK_ROW,             /* a mask is that of the row before */
    PLANT_MASK_PENDING,         /* a row is planned while its mask is not set */
    PLANT_HOST_IN_FLIGHT,       /* a sequence with drafts or masks has two rows in flight */
};

#endif
