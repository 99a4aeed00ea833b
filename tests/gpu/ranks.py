"""Tensor parallelism through the daemon: two ranks, on two devices, or on one where there is but one.
Right tokens, tiers, sleep, and faults of one rank. Speed is for the other parts, with --gpus."""

import json
import random
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import stress
from device import (CLEAR_MARGIN, Planted, answers_of, args, daemon, fault_once, few, golden_wrong,
                    harness, median, model_config, row, seeded_requests, verdict)
from tiers import wait_until_pinned

FOUND_S = 15   # a rank that fails or hangs
AT_A_TIME = 5  # daemons that wait for one that does


class Two:
    """Daemons of two ranks: each on its device, or both on one by the module that does as told."""

    def __init__(self, planted=None):
        n = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True,
                               text=True).stdout.splitlines())
        self.apart = n > 1
        self.where = "two devices" if self.apart else "one device"
        self.planted = planted or Planted("")
        self.plan("")
        # On one device they wait for each other, so loading kernels must not.
        self.env = None if self.apart else {"CUDA_MODULE_LOADING": "EAGER",
                                            "CUDA_DEVICE_MAX_CONNECTIONS": "32"}

    def daemon(self, *options, **kwargs):
        if not any(o.startswith("cache.kv_memory=") for o in options):
            options += ("cache.kv_memory=8G",)  # for both: each would take what is free
        return daemon("model.tensor_parallel=2", *options, module=self.planted.module, env=self.env,
                      **kwargs)

    def plan(self, text):
        self.planted.plan(text if self.apart else f"onto 0\n{text}")


def ranks():
    two = Two()
    with two.planted:
        golden(two)
        same_tokens(two)
        sleep(two)
        faults(two, few(20) if two.apart else 1)


def golden(two):
    cases = json.loads((harness.GOLDEN / "nvllm-tiny-greedy.json").read_text())
    clear = sum(c["min_margin"] >= CLEAR_MARGIN for c in cases)
    longest = max(len(c["prompt_ids"]) + c["max_tokens"] for c in cases)
    pool = stress.pool_bytes(model_config(harness.MODEL), longest + 64) >> 10
    small = [f"cache.kv_memory={pool}K", f"scheduler.max_seq_len={longest + 16}"]
    with tempfile.TemporaryDirectory(prefix="nvllm-disk-") as folder:
        for name, more in (("usual", ["cache.kv_memory=2G"]),
                           ("block 256, no graphs", ["cache.kv_memory=2G", "cache.block_len=256",
                                                     "cuda.graphs=off"]),
                           ("host memory", small + ["cache.host_memory=1G"]),
                           ("disk", small + [f"cache.host_memory={pool}K", "cache.disk=1G",
                                             f"cache.folder={folder}"]),
                           ("a pool of 8 blocks", ["cache.kv_memory=1M", "cache.host_memory=1G"])):
            with two.daemon(*more) as d, d.connect() as w:
                wait_until_pinned(d, w)
                wrong = golden_wrong(w, cases, False) + golden_wrong(w, cases, True)
            row(f"ranks, golden, {name}", verdict(clear and not wrong),
                f"{two.where}: {2 * clear - len(wrong)}/{2 * clear} clear"
                + "".join(f", {n}" for n in wrong[:4]))


def same_tokens(two):
    """In invariant mode two ranks give the texts of one. On one device of a small model alone: there
    the launches of one rank, which fill its queue, keep the other from launching what they wait for."""
    model = args.model if two.apart and args.model else harness.MODEL
    requests, texts = seeded_requests(model, few(144, 4)), []
    for start in daemon, two.daemon:
        with start("cuda.invariant=on", model=model) as d, d.connect() as w:
            answers = answers_of(w, requests)
            assert not any(a.error for a in answers), answers[0].error
            texts.append([a.choices[0].ids for a in answers])
    same = sum(a == b for a, b in zip(*texts))
    row("ranks, same tokens as one", verdict(same == len(requests)),
        f"{two.where}: {same}/{len(requests)} texts the same")


def sleep(two):
    prompt = {"prompt": "Count from 1 to 20.", "max_tokens": 40, "sampling": {"temperature": 0}}
    with two.daemon("cache.host_memory=64M") as d, d.connect() as w:
        ids = []
        for level in "SLEEP_ALL", "SLEEP_WEIGHTS", None:
            answer = w.generate(**prompt)
            ids.append(None if answer.error else answer.choices[0].ids)
            if level:
                d.wait_idle()
                w.ask(sleep={"level": level})
    row("ranks, sleep and wake", verdict(ids[0] and ids == [ids[0]] * 3),
        f"{two.where}: {len(ids[0] or [])} tokens, the same after each")


def faults(two, rounds):
    """A rank that stops in some step: each request is told, the daemon ends, the next one starts.
    A kernel traps; one does not end, so that the exchange of parts never completes; a peer's memory
    cannot be read; the rank's thread stops. By turns with few sequences, whose steps are one kernel on
    each rank, and with many."""
    kinds = ("trap", "hang", "peer", "stop")

    def once(number):
        rng = random.Random(number)
        with Planted("") as planted:
            one = Two(planted)
            one.plan(f"{kinds[number % len(kinds)]} {rng.randint(20, 200)}\n")
            return fault_once(planted, rng, "model.tensor_parallel=2", "cache.kv_memory=2G",
                              bar=FOUND_S, env=one.env, each=8 if number // len(kinds) % 2 else 4)

    with ThreadPoolExecutor(AT_A_TIME if two.apart else 1) as pool:
        results = list(pool.map(once, range(rounds * len(kinds))))
    problems = [f"{kinds[i % len(kinds)]} {i}: {p}" for i, (_, p) in enumerate(results) if p]
    times = {kind: [s for s, _ in results[i::len(kinds)]] for i, kind in enumerate(kinds)}
    row("ranks, planted faults", verdict(not problems),
        f"{two.where}, {len(results) - len(problems)} of {len(results)}, seconds from the fault to "
        "the end: "
        + ", ".join(f"{kind} {median(t):.1f} (longest {max(t):.1f})" for kind, t in times.items())
        + "".join(f"; {p}" for p in problems[:3]))
