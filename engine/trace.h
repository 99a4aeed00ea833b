/* trace.h - what requests and steps did, one record after the other, while somebody asks for it.
 *
 * A buffer of a fixed size: what it has no room for is counted and dropped. Records name requests
 * by number and hold no text. Times come in as arguments. Engine thread only. */
#ifndef NVLLM_ENGINE_TRACE_H
#define NVLLM_ENGINE_TRACE_H

#include <stdint.h>

/* The protocol's numbers. */
enum trace_kind {
    TRACE_QUEUED = 1,  /* a request has been encoded and waits; it arrived took_us before */
    TRACE_STARTED,     /* it has its first slot */
    TRACE_FIRST_TOKEN, /* its first token is there */
    TRACE_PREEMPTED,   /* one of its choices */
    TRACE_ENDED,
    TRACE_STEP, /* a step was computed from at_us on */
    TRACE_PART, /* what the engine thread did from at_us on */
};

struct trace_record {
    enum trace_kind kind;
    uint64_t at_us, took_us; /* CLOCK_MONOTONIC */
    uint64_t request;        /* QUEUED to ENDED: its id */
    int32_t choice;          /* PREEMPTED */
    int32_t reason;          /* ENDED: enum core_reason, of choice 0 */
    enum trace_kind since;   /* ENDED: QUEUED, STARTED or FIRST_TOKEN: what had happened last */
    uint64_t step;           /* STEP: its number */
    int32_t n_decodes;       /* STEP: its rows of answers, drafts among them */
    int32_t n_prompt;        /* STEP: its rows of prompts */
    int32_t n_seqs;          /* STEP: the sequences with rows in it */
    int32_t part;            /* PART: enum engine_part */
};

/* Of what has happened to requests in progress there may be three records each, at once. */
enum { TRACE_ROOM = 16384 };

struct trace {
    uint64_t dropped;
    int32_t n;
    struct trace_record records[TRACE_ROOM];
};

/* t may be NULL: nobody asks. */
static inline void trace_add(struct trace *t, const struct trace_record *r)
{
    if (!t)
        return;
    if (t->n < TRACE_ROOM)
        t->records[t->n++] = *r;
    else
        t->dropped++;
}

/* What happened to a request. */
static inline void trace_request(struct trace *t, enum trace_kind kind, uint64_t request,
                                 uint64_t at_us)
{
    if (t)
        trace_add(t, &(struct trace_record){.kind = kind, .request = request, .at_us = at_us});
}

#endif
