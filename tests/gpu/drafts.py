"""Speculation: the same tokens with drafts as without, and what they give where text repeats and where
nothing is to be found."""

import random
import time

import stress
from device import (Skip, answers_of, args, daemon, few, harness, median, model_config, need_model,
                    random_ids, reached, row, seeded_requests, verdict, wire)

OFF, AUTO = "scheduler.speculation=off", "scheduler.speculation=auto"
FILE = 2000     # tokens of the file that is repeated
EDITED = 50     # of so many tokens one is another in the file than in the answer
ROUNDS = 3      # of which the first makes the device warm


def drafts():
    same("0.6B", need_model())
    if not args.copier:
        raise Skip("no folder of a copier")
    same("a copier", args.copier)
    drafter = f"model.draft={args.drafter}"
    same("a copier, a draft model", args.copier, drafter)
    vocab = model_config(args.copier)["vocab_size"]
    for n, bar in (1, 2.5), (8, 0), (64, 0):
        compare(f"drafts, a file repeated, {n} streams", args.copier, n, bar,
                lambda rng: copy_request(rng, vocab))
    for n in 1, 16, 64:
        compare(f"drafts, random text, {n} streams", need_model(), n, 0.97,
                lambda rng: random_request(rng, vocab))
    compare("drafts, greedy text of random weights", need_model(), 1, 0,
            lambda rng: {**random_request(rng, vocab), "sampling": GREEDY})
    compare("drafts, nvllm-tiny repeats digits", harness.MODEL, 1, 0, digits_request)
    for n in 1, 8:
        compare(f"drafts, a draft model that is right, {n} streams", args.copier, n, 0,
                lambda rng: count_request(rng, vocab), drafter)
    for n in 1, 16:
        compare(f"drafts, a draft model that is wrong, {n} streams", need_model(), n, 0.97,
                lambda rng: random_request(rng, vocab), drafter)


GREEDY = {"temperature": 0, "ignore_eos": True}


def copy_request(rng, vocab):
    """A file with small edits, behind which its text without them is the answer: the model goes
    from token i to i + 1."""
    n = few(FILE, 100)
    ids = [rng.randrange(FILE, vocab) if rng.randrange(EDITED) == 0 else i for i in range(n)]
    return {"prompt_ids": {"ids": [*ids, FILE - 1]}, "max_tokens": n, "sampling": GREEDY}


def count_request(rng, vocab):
    """What follows has not been there."""
    return {"prompt_ids": {"ids": [*random_ids(rng, few(200, 16), vocab), 0]},
            "max_tokens": few(FILE // 2, 100), "sampling": GREEDY}


def random_request(rng, vocab):
    return {"prompt_ids": {"ids": random_ids(rng, few(512, 16), vocab)}, "max_tokens": few(256, 32),
            "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "ignore_eos": True,
                         "seed": rng.getrandbits(32)}}


def digits_request(rng, vocab=None):
    text = " ".join(str(rng.randrange(10)) for _ in range(40))
    return {"prompt": f"Repeat: {text}\n{text}\n{text}\n", "max_tokens": few(512, 64),
            "sampling": GREEDY}


def same(name, model, *more):
    """One by one and together, preempted and cached: with drafts as without, to the bit where the
    backend promises it. Half of the prompts are what a copier goes on with, the others random."""
    plain = [] if args.backend == "cpu" else ["cuda.invariant=on"]
    options = [*plain, *more]
    requests = seeded_requests(model, few(48, 6))
    for i, r in enumerate(requests):
        ids = r["prompt_ids"]["ids"]
        if i % 2:
            r["prompt_ids"]["ids"] = [*((i + j) % FILE for j in range(len(ids) + 60)), i - 1]
            r["sampling"] = {**r["sampling"], "temperature": 0.0 if i % 4 == 1 else 0.5}
    with daemon(OFF, *plain, model=model) as d, d.connect() as w:
        without = [w.generate(**r).outcome() for r in requests]
        assert d.status()["draft_tokens"] == 0
    with daemon(AUTO, *options, "cache.prefix_cache=off", model=model) as d, d.connect() as w:
        count(f"drafts, {name}, alone, batched", d, without * 2,
              [w.generate(**r).outcome() for r in requests] + outcomes_of(w, requests))
    pool = stress.pool_bytes(model_config(model), few(9000, 2500)) >> 20
    with daemon(AUTO, *options, f"cache.kv_memory={pool}M", "scheduler.max_batch_tokens=300",
                "cache.host_memory=256M", model=model) as d, d.connect() as w:
        count(f"drafts, {name}, preempted, cached", d, without * 2,
              outcomes_of(w, requests) + outcomes_of(w, requests))


def outcomes_of(w, requests):
    return [a.outcome() for a in answers_of(w, requests)]


def count(name, d, expected, got):
    n = sum(a == b for a, b in zip(expected, got))
    s = d.status()
    row(name, verdict(n == len(expected) and s["accepted_tokens"] > 0),
        f"{n}/{len(expected)} the same, {s['accepted_tokens']} of {s['draft_tokens']} drafts right, "
        f"preemptions={s['preemptions']}")


def compare(name, model, n, bar, make, *more):
    """Tokens a second of n answers at a time without drafts and with them, and their ratio."""
    rates, right = [], ""
    for option in OFF, AUTO:
        options = [option, *more] if option == AUTO else [option]
        with daemon(*options, "cache.prefix_cache=off", model=model) as d, d.connect() as w:
            rates.append([rate(w, n, random.Random(seed), make) for seed in range(ROUNDS)][1:])
            if option == AUTO:
                s = d.status()
                right = f"{s['accepted_tokens']} of {s['draft_tokens']} drafts right"
    ratio = median(rates[1]) / median(rates[0])
    row(name, reached(ratio >= bar) if bar else "-",
        f"ratio={ratio:.2f} tok_per_s={median(rates[1]):.0f} without={median(rates[0]):.0f} {right}"
        + (f" (bar {bar})" if bar else ""))


def rate(w, n, rng, make):
    """Tokens a second from when the last answer has begun."""
    requests = {w.new_id(): {**make(rng), "stream": True} for _ in range(n)}
    w.raw(b"".join(wire.frame(i, generate=r) for i, r in requests.items()))
    arrivals, open_ids = {i: [] for i in requests}, set(requests)
    answers = {i: wire.Answer() for i in requests}
    while open_ids:
        reply = w.receive()
        id_ = reply["id"]
        arrivals[id_] += [time.monotonic()] * len(reply.get("delta", {}).get("token_ids", []))
        if answers[id_].take(reply):
            assert answers[id_].error is None, answers[id_].error
            open_ids.remove(id_)
    begin = max(a[0] for a in arrivals.values())
    times = [t for a in arrivals.values() for t in a if t > begin]
    return len(times) / (max(times) - begin)
