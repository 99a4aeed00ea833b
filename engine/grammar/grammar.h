/* grammar.h - a context-free grammar over the texts of regular expressions, and where an answer is
 * in it.
 *
 * A grammar is built as nodes: each takes a text or calls a rule, then goes on with the next. Each
 * call of a rule has a count, which nodes raise and compare: of an array's elements, say. Then the
 * grammar is closed, and read: a place is the set of all ways in which the bytes so far can have
 * come about, each a lexer's state above a stack of nodes to go on with. Places are kept once and
 * made when somebody comes to them, and so are the stacks, which share their lower parts.
 *
 * Every place can be gone on with to the end of an answer, unless it is GRAMMAR_DEAD.
 *
 * One thread at a time. Where memory runs out, or the limit, grammar_failed() is not 0. */
#ifndef NVLLM_ENGINE_GRAMMAR_GRAMMAR_H
#define NVLLM_ENGINE_GRAMMAR_GRAMMAR_H

#include "engine/grammar/lexer.h"

enum {
    GRAMMAR_DEAD = -1,
    GRAMMAR_END = 0, /* the node at which a rule ends */
};

enum grammar_op {
    GRAMMAR_OP_END,
    GRAMMAR_OP_TEXT,  /* takes a text of the lexer's state a */
    GRAMMAR_OP_CALL,  /* calls rule a */
    GRAMMAR_OP_FORK,  /* goes on with a, too */
    GRAMMAR_OP_RAISE, /* raises the count, to a at most */
    GRAMMAR_OP_BELOW, /* goes on only if the count is below a */
    GRAMMAR_OP_FROM,  /* goes on only if it is a at least */
};

struct grammar_node {
    enum grammar_op op;
    int32_t a, next;
    bool ends;        /* an end can be reached from here */
    uint8_t leads_to; /* private: grammar.c */
};

/* Where to go on once what is above it has ended. */
struct grammar_frame {
    int32_t node, count, below; /* below: a frame, or -1 */
    int32_t link;
};

struct grammar_way {
    int32_t state, frame; /* of the lexer; what follows */
};

struct grammar_place {
    int32_t ways_at, n_ways;
    int32_t link;
    struct steps steps;
    bool accepts; /* the answer may end here */
};

struct grammar {
    struct lexer lexer;
    struct grammar_node *nodes; /* [n_nodes] the first is GRAMMAR_END */
    size_t n_nodes, nodes_cap;
    int32_t *rules; /* [n_rules] the first node of each, or -1: not yet defined */
    size_t n_rules, rules_cap;
    size_t max_bytes;
    int failed; /* as of the regex pool */

    struct grammar_frame *frames; /* [n_frames] */
    size_t n_frames, frames_cap;
    int32_t *frame_table;
    size_t frame_table_size;
    struct grammar_way *ways;
    size_t n_ways, ways_cap;
    struct grammar_place *places; /* [n_places] */
    size_t n_places, places_cap;
    int32_t *place_table;
    size_t place_table_size;
    struct step_pages pages;
    struct grammar_way *gathered; /* [n_gathered] of the place being made */
    size_t n_gathered, gathered_cap;
    struct grammar_frame *forks; /* [n_forks] that have been followed to it */
    size_t n_forks, forks_cap;
    bool gathered_end;
    int32_t start; /* the place before an answer */
};

int grammar_init(struct grammar *g, size_t max_bytes); /* -ENOMEM */
void grammar_deinit(struct grammar *g);                /* of a zeroed one, too */
size_t grammar_bytes(const struct grammar *g);
int grammar_failed(const struct grammar *g); /* 0, -ENOMEM, -E2BIG */

/* ---- building: each gives a node, or a rule */

int32_t grammar_rule(struct grammar *g); /* to be defined */
void grammar_define(struct grammar *g, int32_t rule, int32_t node);
int32_t grammar_node(struct grammar *g, enum grammar_op op, int32_t a, int32_t next);
int32_t grammar_text(struct grammar *g, int32_t term, enum lexer_form form, int32_t next);
int32_t grammar_fork(struct grammar *g, int32_t a, int32_t b); /* either may be GRAMMAR_DEAD */

/* A rule that calls itself before it has taken anything, once all are defined; -1: none does, or
 * the grammar has failed. */
int32_t grammar_left_recursion(struct grammar *g);

/* The answer is what the rule takes; no rule may call itself before it has taken anything.
 * -EINVAL: there is no such text; -ENOTSUP: a rule asks for a count and calls a rule that never
 * ends; or as grammar_failed(). */
int grammar_close(struct grammar *g, int32_t rule);

/* ---- reading */

int32_t grammar_step(struct grammar *g, int32_t place, uint8_t byte);

static inline bool grammar_accepts(const struct grammar *g, int32_t place)
{
    return g->places[place].accepts;
}

/* Nothing may follow. */
static inline bool grammar_is_over(const struct grammar *g, int32_t place)
{
    return g->places[place].n_ways == 0;
}

/* The place behind the frame's node, once a text above it has ended. */
int32_t grammar_resume(struct grammar *g, int32_t frame);

#endif
