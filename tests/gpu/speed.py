"""Speed as clients see it, through the socket: few streams, one long prompt, the first token, and
the benchmark that nano-vLLM publishes; what invariance costs. Bars are in the rows, and shares of
the speed at which nothing but bytes that must be read, and products, took time."""

import random
import time

import clients
import random_lengths
import roofline
from device import (Skip, args, daemon, few, median, model_config, need_model, random_ids, reached,
                    row, wire)

GREEDY = {"temperature": 0, "ignore_eos": True}
OFF = "scheduler.speculation=off"  # greedy text of random weights goes round in circles
ROUNDS = 4  # of which the first makes the device warm


def speed():
    """All of it, on the 0.6B shape and, where it is there, the larger one."""
    model = need_model()
    config = model_config(model)
    with daemon("scheduler.max_batch_tokens=8192", "cache.prefix_cache=off", OFF, model=model) as d, \
            d.connect() as w:
        for n, bar in (1, 2000), (4, 7500), (16, 20000):
            streams(w, config, "0.6B", n, 512, bar)
        first_token(w, config)
        long_prompt(w, config, "0.6B", 40959, 112000)
        streams(w, config, "0.6B", 1, config["max_position_embeddings"] - 1, 500)
        nano_vllm(w, config)
    if args.large:
        large()


def large():
    """Of the larger shape alone, by its name: qwen3-8b."""
    config, name = model_config(args.large), args.large.name.removeprefix("qwen3-").upper()
    with daemon("cache.prefix_cache=off", OFF, model=args.large) as d, d.connect() as w:
        streams(w, config, name, 1, 512, {"8B": 235, "32B": 95}.get(name, 0))
        if name == "32B":
            streams(w, config, name, 64, 512, 0)
        long_prompt(w, config, name, 16384, None)


def families():
    """A shape of another family beside the 8B shape, which has as many bytes of weights."""
    if not args.large or not args.like:
        raise Skip("no two folders of shapes of 8 billion parameters")
    rates = []
    for folder in args.large, args.like:
        config = model_config(folder)
        with daemon("cache.prefix_cache=off", OFF, model=folder) as d:
            with d.connect() as w:
                one = [stream_round(w, config, 1, few(384), few(256, 16), seed)[0]
                       for seed in range(ROUNDS)][1:]
            all_ = [clients.Client(d.connect(), random.Random(i), config["vocab_size"])
                    for i in range(few(clients.CLIENTS))]
            rates.append((one, clients.run(all_, clients.WARM_UP, clients.MEASURED)))
    for name, theirs, ours in zip(("one stream", f"{len(all_)} clients"), *rates):
        ratio = median(ours) / median(theirs)
        row(f"speed, {args.like.name}, {name}", reached(ratio >= 0.95),
            f"tok_per_s={spread(ours)}, {args.large.name} {spread(theirs)}: {ratio:.2f} (bar 0.95)")


def spread(values, digits=0):
    return (f"{median(values):.{digits}f} ({min(values):.{digits}f} to "
            f"{max(values):.{digits}f}, {len(values)} runs)")


def streams(w, config, name, n, context, bar):
    """n answers at a time; tokens a second from when the last of them has begun."""
    n_out = few(256 if context < 10000 else 64, 16)
    n_prompt = max(1, few(context) - n_out // (2 if context < 10000 else 1))
    rates, gaps = [], []
    for seed in range(ROUNDS):
        rate, between = stream_round(w, config, n, n_prompt, n_out, seed)
        rates.append(rate)
        gaps += between if seed else []
    share = roofline.decode(config, n, n_prompt + n_out / 2) * median(rates[1:]) / n
    row(f"speed, {name}, {n} streams at {context}", reached(median(rates[1:]) >= bar),
        f"tok_per_s={spread(rates[1:])} share={share:.2f} longest_gap_ms={max(gaps) * 1e3:.1f} "
        f"(bar {bar})")


def stream_round(w, config, n, n_prompt, n_out, seed):
    """(tokens a second, times between the tokens of an answer)."""
    ids = [w.new_id() for _ in range(n)]
    rng = random.Random(seed)
    w.raw(b"".join(wire.frame(i, generate={
        "prompt_ids": {"ids": random_ids(rng, n_prompt, config["vocab_size"])},
        "max_tokens": n_out, "stream": True, "sampling": GREEDY}) for i in ids))
    arrivals = {i: [] for i in ids}
    answers = {i: wire.Answer() for i in ids}
    open_ids = set(ids)
    while open_ids:
        reply = w.receive()
        arrivals[reply["id"]] += [time.monotonic()] * len(
            reply.get("delta", {}).get("token_ids", []))
        if answers[reply["id"]].take(reply):
            assert answers[reply["id"]].error is None, answers[reply["id"]].error
            open_ids.remove(reply["id"])
    assert all(len(a) == n_out for a in arrivals.values())
    begin = max(a[0] for a in arrivals.values())
    times = [t for a in arrivals.values() for t in a if t > begin]
    return (len(times) / (max(times) - begin),
            [b - a for one in arrivals.values() for a, b in zip(one, one[1:]) if a > begin])


def first_token(w, config):
    """A prompt of 128 tokens while nothing else is under way."""
    times = []
    for seed in range(12):
        ids = random_ids(random.Random(50 + seed), few(128), config["vocab_size"])
        begin = time.monotonic()
        answer = w.generate(prompt_ids={"ids": ids}, max_tokens=1, sampling=GREEDY)
        times.append((time.monotonic() - begin) * 1e3)
        assert answer.error is None, answer.error
    share = roofline.prompt(config, few(128)) * 1e3 / median(times[2:])
    row("speed, first token", reached(median(times[2:]) <= 4),
        f"prompt={few(128)} ms={spread(times[2:], 2)} share={share:.2f} (bar 4)")


def nano_vllm(w, config):
    requests = random_lengths.requests()[:few(256)]
    assert [len(p) for p, _ in requests[:5]] == [964, 724, 484, 508, 316][:len(requests)]
    if args.scale < 1:
        requests = [(p[:few(len(p))], few(n)) for p, n in requests]
    seconds = []
    for _ in range(3):
        frames, ids = [], []
        for prompt, n in requests:
            ids.append(w.new_id())
            frames.append(wire.frame(ids[-1], generate={
                "prompt_ids": {"ids": [i % config["vocab_size"] for i in prompt]}, "max_tokens": n,
                "sampling": {"temperature": 0.6, "top_k": 0, "top_p": 1.0, "ignore_eos": True}}))
        begin = time.monotonic()
        w.raw(b"".join(frames))
        answers = w.collect(ids)
        seconds.append(time.monotonic() - begin)
        for (_, n), id_ in zip(requests, ids):
            assert answers[id_].error is None and len(answers[id_].choices[0].ids) == n
    output = sum(n for _, n in requests)
    floor = (max(n for _, n in requests) * roofline.weights(config)
             + roofline.keys(config, sum(n * len(p) + n * n / 2 for p, n in requests))
             + sum(roofline.products(config, len(p)) for p, _ in requests))
    row("speed, nano-vLLM's benchmark", reached(output / median(seconds) >= 31000),
        f"requests={len(requests)} prompt_tokens={sum(len(p) for p, _ in requests)} "
        f"output_tokens={output} seconds={median(seconds):.3f} "
        f"tok_per_s={output / median(seconds):.0f} "
        f"({output / max(seconds):.0f} to {output / min(seconds):.0f}, 3 runs) "
        f"share={floor / median(seconds):.2f} (bar 31000)")


def long_prompt(w, config, name, n, bar):
    n = min(few(n), config["max_position_embeddings"] - 1)
    rates = [prompt_rate(w, config, n, 100 + seed) for seed in range(ROUNDS)][1:]
    row(f"speed, {name}, one long prompt", reached(median(rates) >= bar) if bar else "-",
        f"tokens={n} tok_per_s={spread(rates)} "
        f"share={roofline.prompt(config, n) * median(rates) / n:.2f}"
        + (f" (bar {bar})" if bar else ""))


def prompt_rate(w, config, n, seed):
    ids = random_ids(random.Random(seed), n, config["vocab_size"])
    begin = time.monotonic()
    answer = w.generate(prompt_ids={"ids": ids}, max_tokens=1, sampling=GREEDY)
    assert answer.error is None, answer.error
    return n / (time.monotonic() - begin)


def invariant():
    """The share of the speed that is left where nothing depends on what else runs."""
    model = need_model()
    config = model_config(model)
    n = min(few(16384), config["max_position_embeddings"] - 1)
    names, rates = ("one stream", "64 streams", f"prompt of {n} tokens"), []
    for mode in "off", "on":
        with daemon(f"cuda.invariant={mode}", "scheduler.max_batch_tokens=8192", OFF,
                    "cache.prefix_cache=off", model=model) as d, d.connect() as w:
            rates.append([[stream_round(w, config, streams, few(384), few(256, 16), seed)[0]
                           for seed in range(ROUNDS)][1:] for streams in (1, few(64))])
            rates[-1].append([prompt_rate(w, config, n, seed) for seed in range(ROUNDS)][1:])
    for name, off, on in zip(names, *rates):
        ratio = median(on) / median(off)
        row(f"invariant, {name}", reached(ratio >= 0.7),
            f"share={ratio:.2f} tok_per_s={spread(on)} instead of {spread(off)} (bar 0.7)")
