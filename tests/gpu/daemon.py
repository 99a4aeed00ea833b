#!/usr/bin/env python3
"""The CUDA backend through nvllmd and its socket: right tokens, cached prefixes, starts, speed,
faults. A part prints its rows of the table; the exit status is 1 when one failed.

    daemon.py --nvllmd PATH --nvllmctl PATH [--module PATH --planted PATH] [--model FOLDER] PART...
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from pathlib import Path

import clients
import device
import drafts
import embeddings
import hosts
import kv_fp8
import quantized
import ranks
import speed
import stress
import sweep
import tiers
from device import (CLEAR_MARGIN, GREEDY, Planted, Skip, answers_of, args, daemon, fault_once, few,
                    golden_wrong, harness, median, model_config, need_model, random_ids, row,
                    seeded_requests, verdict, wire)


def golden():
    """The greedy cases of the bundled model, however they are computed."""
    cases = json.loads((harness.GOLDEN / "nvllm-tiny-greedy.json").read_text())
    if args.scale < 1:
        cases = [c for c in cases if len(c["prompt_ids"]) < 300][:few(len(cases))]
    clear = sum(c["min_margin"] >= CLEAR_MARGIN for c in cases)
    for graphs in "on", "off":
        for block_len in 16, 256, 4096:
            options = [f"cuda.graphs={graphs}", f"cache.block_len={block_len}"]
            with daemon(*options, "cache.kv_memory=2G") as d, d.connect() as w:
                for alone in False, True:
                    wrong = golden_wrong(w, cases, alone)
                    name = "alone" if alone else "batched"
                    text = f"{clear - len(wrong)}/{clear} clear of {len(cases)} cases"
                    row(f"golden graphs={graphs} block {block_len} {name}",
                        verdict(clear and not wrong), text + "".join(f", {n}" for n in wrong[:4]))


    # Of a pool for the longest case each is evicted before it comes back from host memory.
    longest = max(len(c["prompt_ids"]) + c["max_tokens"] for c in cases)
    pool = stress.pool_bytes(model_config(harness.MODEL), longest + 64) >> 10
    for tier, host, disk in ("host_memory", "1G", "0"), ("disk", f"{pool}K", "1G"):
        with tempfile.TemporaryDirectory(prefix="nvllm-disk-") as folder, \
                daemon(f"cache.kv_memory={pool}K", f"scheduler.max_seq_len={longest + 16}",
                       f"cache.host_memory={host}", f"cache.disk={disk}",
                       f"cache.folder={folder}") as d, d.connect() as w:
            wrong = [n for _ in range(3) for n in golden_wrong(w, cases, True)]
            loaded = d.wait_idle()[tier].get("loaded", 0)
        row(f"golden, a small pool, {tier}", verdict(clear and not wrong and loaded),
            f"{3 * clear - len(wrong)}/{3 * clear} clear, {pool >> 10} MiB of blocks, {loaded} "
            "blocks came back" + "".join(f", {n}" for n in wrong[:4]))


    # Of 8 blocks: what is longer is offloaded.
    with daemon("cache.kv_memory=1M", "cache.host_memory=1G") as d, d.connect() as w:
        tiers.wait_until_pinned(d, w)
        wrong = golden_wrong(w, cases, True) + golden_wrong(w, cases, False)
    row("golden, a pool of 8 blocks", verdict(clear and not wrong),
        f"{2 * clear - len(wrong)}/{2 * clear} clear" + "".join(f", {n}" for n in wrong[:4]))


def seeds():
    """The same seed, the same tokens and log probabilities, in whatever company, however prompts are
    cut and whoever is preempted, where the backend promises it."""
    options = [] if args.backend == "cpu" else ["cuda.invariant=on"]
    model = args.model or harness.MODEL
    requests = seeded_requests(model, few(48, 4))
    # Without cached prefixes: a second run computes all again.
    with daemon(*options, "cache.prefix_cache=off", model=model) as d, d.connect() as w:
        alone = [w.generate(**r).outcome() for r in requests]
        same = sum(a == b for a, b in zip(alone, outcomes_of(w, requests)))
    row("seeds, batched and alone", verdict(same == len(requests)),
        f"{same}/{len(requests)} the same")
    pool = stress.pool_bytes(model_config(model), few(9000, 2500)) >> 20
    with daemon(*options, f"cache.kv_memory={pool}M", "scheduler.max_batch_tokens=300",
                model=model) as d, d.connect() as w:
        outcomes = outcomes_of(w, requests) + outcomes_of(w, requests)
        same = sum(a == b for a, b in zip(alone + alone, outcomes))
        status = d.wait_idle()
    preempted = status.get("preemptions", 0)
    row("seeds, preempted and cached",
        verdict(same == 2 * len(requests) and (preempted or args.scale < 1)),
        f"{same}/{2 * len(requests)} the same, preemptions={preempted} "
        f"prefix_hits={status.get('prefix_cache', {}).get('hit_tokens', 0)}")


def outcomes_of(w, requests):
    return [a.outcome() for a in answers_of(w, requests)]


def prefix():
    """A long prompt from two processes, one after the other."""
    model, n = need_model(), few(30000)
    vocab, results = model_config(model)["vocab_size"], []
    with daemon(model=model) as d, tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        for seed in range(4):  # the first one makes the device warm
            source.write_text(json.dumps({
                "prompt_ids": random_ids(random.Random(seed), n, vocab), "max_tokens": 2,
                "temperature": 0, "ignore_eos": True}) + "\n")
            results.append([json.loads(d.ctl("batch", "--input", source, "--output", "-").stdout)
                            for _ in range(2)])
    ratios = [b["timing"]["ttft_ms"] / a["timing"]["ttft_ms"] for a, b in results[1:]]
    cached = min(b["usage"]["cached_tokens"] / n for _, b in results)
    first, second = (median(r[i]["timing"]["ttft_ms"] for r in results[1:]) for i in (0, 1))
    row("prefix cache, two processes", verdict(args.scale < 1 or
                                              cached >= 0.99 and median(ratios) <= 0.05),
        f"tokens={n} cached={cached:.2%} ttft_ms={first:.1f} then {second:.1f}: "
        f"{median(ratios):.2%} (bar 99%, 5%)")


def starts():
    """From exec to READY=1, files in the page cache, as at any start but the first."""
    models = [("nvllm-tiny", harness.MODEL, None), ("0.6B", args.model, 1.6),
              ("8B", args.large, 3.5)]
    for name, folder, bar in models:
        if not folder:
            row(f"start, {name}", "skip", "no folder of this shape")
            continue
        device.page_in(folder)
        with tempfile.TemporaryDirectory() as cache:
            times = [device.start_seconds(folder, f"cuda.cache_folder={cache}")
                     for _ in range(4)][1:]
        row(f"start, {name}", device.reached(median(times) <= bar) if bar else "-",
            f"seconds={median(times):.2f} ({min(times):.2f} to {max(times):.2f}, 3 runs)"
            + (f" (bar {bar})" if bar else ""))


LEDGER = ("weight_bytes", "kv_bytes", "graph_bytes", "workspace_bytes", "other_bytes")
LEDGER_MIB = 64    # between its sum and what the driver reports
UNNAMED_MIB = 768  # in it as other: the context, kernels, cuBLASLt


def ledger():
    """The sum of the status' memory ledger is what the driver itself says is in use."""
    for name, folder in ("0.6B", args.model), ("8B", args.large):
        if not folder:
            row(f"memory ledger, {name}", "skip", "no folder of this shape")
            continue
        with daemon(model=folder) as d, d.connect() as w:
            config = model_config(folder)
            ids = random_ids(random.Random(1), few(2000), config["vocab_size"])
            answer = w.generate(prompt_ids={"ids": ids}, max_tokens=32, n=few(20),
                                sampling={"temperature": 1.0, "ignore_eos": True})
            assert answer.error is None, answer.error
            memory, driver = d.wait_idle().get("memory", {}), device.driver_mib()
        if driver[0] is None or not memory.get("total_bytes"):
            row(f"memory ledger, {name}", "skip", "the driver cannot be asked")
            continue
        mib = [memory.get(key, 0) / 2**20 for key in LEDGER]
        off = sum(mib) - driver[0]
        row(f"memory ledger, {name}", verdict(min(abs(off), abs(off - driver[1])) <= LEDGER_MIB
                                              and mib[-1] <= UNNAMED_MIB + driver[1]),
            " ".join(f"{key[:-6]}={value:.0f}" for key, value in zip(LEDGER, mib))
            + f" sum={sum(mib):.0f} MiB, nvidia-smi: {driver[0]} used, {driver[1]} reserved"
            f" (bar {LEDGER_MIB})")


def idle():
    """How often threads of a daemon with nothing to do wake: its own, and those of the driver."""
    with daemon() as d, d.connect() as w:
        w.generate(prompt="Hello", max_tokens=4, sampling=GREEDY)
        time.sleep(few(8))  # what is measured for later steps is done
        before, seconds = d.wakes(), few(20)
        time.sleep(seconds)
        woken = d.wakes() - before
    own = sum(n for name, n in woken.items() if not name.startswith("cuda"))
    row("idle", verdict(own / seconds <= 0.1), f"wake_ups_a_second={own / seconds:.2f} (bar 0.1)"
        + "".join(f", {name}: {n / seconds:.1f}" for name, n in woken.most_common()))


def shapes():
    """Other shapes end to end: the device's log probabilities are the CPU's."""
    if not args.shape:
        raise Skip("no folder of another shape")
    for folder in args.shape:
        vocab, rng = model_config(folder)["vocab_size"], random.Random(5)
        requests = [{"prompt_ids": {"ids": random_ids(rng, n, vocab)}, "max_tokens": 8,
                     "sampling": {**GREEDY, "ignore_eos": True, "logprobs": 5}}
                    for n in (1, 2, 15, 16, 17, 63, few(250))]
        with daemon(model=folder, backend="cpu") as d, d.connect() as w:
            exact = answers_of(w, requests)
        for graphs in "on", "off":
            with daemon(f"cuda.graphs={graphs}", model=folder) as d, d.connect() as w:
                compared, worst = compare_logprobs(exact, answers_of(w, requests))
            row(f"shape {folder.name}, graphs {graphs}",
                verdict(compared >= len(requests) and worst <= CLEAR_MARGIN),
                f"requests={len(requests)} logprobs={compared} largest_difference={worst:.4f}")


def compare_logprobs(ours, theirs):
    """How many alternatives were in both, and the largest difference; up to where ids part."""
    compared, worst = 0, 0.0
    for a, b in zip(ours, theirs):
        if a.error or b.error:
            return 0, math.inf
        x, y = a.choices[0], b.choices[0]
        for step in range(len(x.ids)):
            if x.ids[:step] != y.ids[:step]:
                break
            p, q = (dict(zip(c.logprobs[step]["top_ids"], c.logprobs[step]["top_logprobs"]))
                    for c in (x, y))
            for id_ in p.keys() & q.keys():
                compared += 1
                worst = max(worst, abs(p[id_] - q[id_]))
    return compared, worst


def faults():
    """A device that stops in some step: each is told, the daemon ends, the next one starts."""
    rng, times, problems = random.Random(3), [], []
    rounds = few(20, 2)
    with Planted("") as planted:
        for number in range(rounds):
            planted.plan(f"trap {rng.randint(20, 200)}\n")
            seconds, problem = fault_once(planted, rng)
            times.append(seconds)
            problems += [f"round {number}: {problem}"] if problem else []
    try:
        with daemon() as d, d.connect() as w:
            answer = w.generate(prompt="Hello", max_tokens=4, sampling=GREEDY)
            assert answer.error is None, answer.error
    except (AssertionError, OSError, wire.Closed) as e:
        problems.append(f"afterwards: {e}"[:300])
    row("planted faults", verdict(not problems),
        f"rounds={rounds} gone_after_s={median(times):.2f} (longest {max(times):.2f}, bar 5)"
        + "".join(f"; {p}" for p in problems[:3]))


PARTS = {f.__name__: f for f in (golden, seeds, prefix, starts, ledger, idle, shapes, faults)}
PARTS["embeddings"] = embeddings.embeddings
PARTS["fp8"] = kv_fp8.fp8
PARTS["quantized"] = quantized.quantized
PARTS["ranks"] = ranks.ranks
PARTS["hosts"] = hosts.hosts
PARTS["stress"] = stress.stress
PARTS["clients"] = clients.clients
PARTS["formats"] = clients.formats
PARTS["speed"] = speed.speed
PARTS["large"] = speed.large
PARTS["families"] = speed.families
PARTS["sweep"] = sweep.sweep
PARTS["weights"] = sweep.weights
PARTS["host"] = tiers.host
PARTS["disk"] = tiers.disk
PARTS["offload"] = tiers.offload
PARTS["million"] = tiers.million
PARTS["sleep"] = tiers.sleep
PARTS["conversations"] = tiers.conversations
PARTS["invariant"] = speed.invariant
PARTS["drafts"] = drafts.drafts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    device.add_arguments(parser)
    parser.add_argument("parts", nargs="+", choices=list(PARTS), metavar="PART",
                        help=", ".join(PARTS))
    parser.parse_args(namespace=args)
    device.set_up()
    for name in args.parts:
        try:
            PARTS[name]()
        except Skip as e:
            row(name, "skip", str(e))
        except (AssertionError, OSError, wire.Closed) as e:
            row(name, "FAILED", " ".join(f"{type(e).__name__}: {e}".split())[-400:])
    sys.exit(1 if device.failed else 0)


if __name__ == "__main__":
    main()
