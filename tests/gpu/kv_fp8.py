"""Keys and values as E4M3: the bundled model's clear answers, wherever blocks have been, a pass key
16,384 tokens away, the same tokens whatever else runs, and what it does to the speed."""

import json
import tempfile

import stress
import tiers
from device import (GREEDY, answers_of, args, daemon, few, golden_wrong, harness, median,
                    model_config, need_model, row, seeded_requests, verdict)
from speed import OFF, ROUNDS, prompt_rate, spread, stream_round

MARGIN = 0.3  # of logits; so far E4M3 moves them
FP8 = "cache.kv_dtype=fp8"


def fp8():
    """Right, the same, and as fast as may be."""
    cases = json.loads((harness.GOLDEN / "nvllm-tiny-greedy.json").read_text())
    pass_key(cases)
    if args.scale < 1:
        cases = [c for c in cases if len(c["prompt_ids"]) < 300][:few(len(cases))]
    golden(cases)
    golden_tiers(cases)
    seeds()
    speeds()


def golden_row(name, cases, wrong, times, good=True):
    """Of the cases so many times."""
    clear = times * sum(c["min_margin"] >= MARGIN for c in cases)
    row(f"fp8 keys, golden, {name}", verdict(clear and not wrong and good),
        f"{clear - len(wrong)}/{clear} clear" + "".join(f", {n}" for n in wrong[:4]))


def golden(cases):
    for graphs, block_len in ("on", 16), ("off", 256):
        with daemon(FP8, f"cuda.graphs={graphs}", f"cache.block_len={block_len}",
                    "cache.kv_memory=2G") as d, d.connect() as w:
            wrong = [n for alone in (False, True)
                     for n in golden_wrong(w, cases, alone, margin=MARGIN)]
        golden_row(f"graphs={graphs} block {block_len}", cases, wrong, 2)


def golden_tiers(cases):
    """From a pool for the longest case blocks go elsewhere and come back; from one of few blocks
    what is longer is offloaded."""
    longest = max(len(c["prompt_ids"]) + c["max_tokens"] for c in cases)
    config = model_config(harness.MODEL)
    pool = stress.pool_bytes(config, longest + 64) * (config["head_dim"] + 1) \
        // (2 * config["head_dim"]) >> 10
    for tier, host, disk in ("host_memory", "1G", "0"), ("disk", f"{pool}K", "1G"):
        with tempfile.TemporaryDirectory(prefix="nvllm-disk-") as folder, \
                daemon(FP8, f"cache.kv_memory={pool}K", f"scheduler.max_seq_len={longest + 16}",
                       f"cache.host_memory={host}", f"cache.disk={disk}",
                       f"cache.folder={folder}") as d, d.connect() as w:
            wrong = [n for _ in range(3) for n in golden_wrong(w, cases, True, margin=MARGIN)]
            loaded = d.wait_idle()[tier].get("loaded", 0)
        golden_row(f"a small pool, {tier}", cases, wrong, 3, loaded)
    with daemon(FP8, "cache.kv_memory=512K", "cache.host_memory=1G") as d, d.connect() as w:
        tiers.wait_until_pinned(d, w)
        wrong = [n for alone in (False, True)
                 for n in golden_wrong(w, cases, alone, margin=MARGIN)]
    golden_row("a pool of few blocks", cases, wrong, 2)


def pass_key(cases):
    """A prompt whose sentences before the key are repeated behind it."""
    case = next(c for c in cases if c["name"] == "passkey-60-sentences")
    ids, key_words, full_stop = case["prompt_ids"], [326, 327], 13
    key = next(i for i in range(len(ids)) if ids[i:i + 2] == key_words)
    behind = ids.index(full_stop, key) + 1
    sentences = ids[3:max(i for i in range(key) if ids[i] == full_stop) + 1]
    padded = (ids[:behind] + (sentences * (few(16384) // len(sentences) + 1))[:few(16384)]
              + [full_stop] + ids[behind:])
    with daemon(FP8) as d, d.connect() as w:
        answer = w.generate(prompt_ids={"ids": padded}, max_tokens=case["max_tokens"],
                            sampling=GREEDY)
    right = answer.error is None and answer.choices[0].ids == case["greedy_ids"]
    row("fp8 keys, a pass key", verdict(right), f"found {few(16384)} tokens later")


def seeds():
    """The same seed, the same tokens and log probabilities, alone and in company."""
    model = args.model or harness.MODEL
    requests = seeded_requests(model, few(48, 4))
    options = [] if args.backend == "cpu" else ["cuda.invariant=on"]
    with daemon(FP8, *options, "cache.prefix_cache=off", model=model) as d, d.connect() as w:
        alone = [w.generate(**r).outcome() for r in requests]
        same = sum(a == b.outcome() for a, b in zip(alone, answers_of(w, requests)))
    row("fp8 keys, batched and alone", verdict(same == len(requests)),
        f"{same}/{len(requests)} the same")


def speeds():
    """Beside bf16, in the same run."""
    model = need_model()
    config = model_config(model)
    most = config["max_position_embeddings"] - 1
    loads = (64, few(384)), (64, few(4000))
    rates = []
    for dtype in "bf16", "fp8":
        with daemon(f"cache.kv_dtype={dtype}", "scheduler.max_batch_tokens=8192", OFF,
                    "cache.prefix_cache=off", model=model) as d, d.connect() as w:
            rates.append([[stream_round(w, config, n, context, few(256, 16), seed)[0]
                           for seed in range(ROUNDS)][1:] for n, context in loads])
            rates[-1].append([prompt_rate(w, config, min(few(16384), most), seed)
                              for seed in range(ROUNDS)][1:])
    names = [f"{n} streams at {context}" for n, context in loads] + ["a prompt of 16384"]
    for name, wide, narrow in zip(names, *rates):
        row(f"fp8 keys, {name}", "-", f"share={median(narrow) / median(wide):.2f} "
            f"tok_per_s={spread(narrow)} instead of {spread(wide)}")
