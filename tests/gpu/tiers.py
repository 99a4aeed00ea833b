"""Prefixes that come back from host memory or disk: right tokens, and the time to the first one."""

import concurrent.futures
import json
import mmap
import os
import pathlib
import random
import tempfile
import time

import stress
from device import (args, daemon, few, median, model_config, need_model, random_ids, reached, row,
                    verdict)

PCIE_BYTES = 55.6e9  # a second, of large copies from pinned memory
BAR = 1.3


def host():
    for name, folder in ("0.6B", need_model()), ("8B", args.large):
        if folder:
            host_memory(name, folder)


def host_memory(name, model):
    """Two prompts of which the device has room for one, by turns."""
    n, config = few(30000), model_config(model)
    pool = stress.pool_bytes(config, few(33000)) >> 20
    prompts = [{"prompt_ids": {"ids": random_ids(random.Random(i), n, config["vocab_size"])},
                "max_tokens": 2, "sampling": {"temperature": 0, "ignore_eos": True}}
               for i in range(2)]
    with daemon(f"cache.kv_memory={pool}M", f"cache.host_memory={4 * pool}M",
                "scheduler.max_batch_tokens=8192", model=model) as d, d.connect() as w:
        pinned = pinned_seconds(d, 4 * pool << 20)
        first = [w.generate(**p) for p in prompts]
        w.generate(**prompts[0])
        before = d.wait_idle()["host_memory"].get("loaded", 0)
        again = [w.generate(**prompts[1 - i % 2]) for i in range(10)]
        loaded = d.wait_idle()["host_memory"].get("loaded", 0) - before
    times = [a.done["timing"]["ttft_ms"] for a in again]
    cached = min(a.done["usage"].get("cached_tokens", 0) for a in again)
    right = all(a.choices[0].ids == first[1 - i % 2].choices[0].ids for i, a in enumerate(again))
    ratio = median(times) / (stress.pool_bytes(config, loaded / len(again) * 16) / PCIE_BYTES * 1e3)
    good = right and loaded > 0 and (args.scale < 1 or cached >= 0.99 * n)
    row(f"host memory, {name}", reached(ratio <= BAR) if good else verdict(False),
        f"tokens={n} cached={cached} loaded={loaded / len(again):.0f} blocks "
        f"ttft_ms={median(times):.1f} ({min(times):.1f} to {max(times):.1f}, {len(times)} runs): "
        f"{ratio:.2f} x their copy (bar {BAR}), not "
        f"{median(a.done['timing']['ttft_ms'] for a in first):.0f}; "
        f"{4 * pool >> 10} GiB pinned {pinned:.1f} s after READY")


def disk():
    """A prompt before and after a restart, and the ready message with an index."""
    n, config = few(30000), model_config(need_model())
    pool = stress.pool_bytes(config, few(33000)) >> 20
    prompt = {"prompt_ids": {"ids": random_ids(random.Random(1), n, config["vocab_size"])},
              "max_tokens": 2, "sampling": {"temperature": 0, "ignore_eos": True}}
    answers, ready = [], []
    with tempfile.TemporaryDirectory(prefix="nvllm-disk-") as folder:
        options = [f"cache.kv_memory={pool}M", f"cache.host_memory={pool}M",
                   f"cache.disk={2 * pool}M", f"cache.folder={folder}",
                   "scheduler.max_batch_tokens=8192"]
        for _ in range(3):
            with daemon(*options, model=need_model()) as d, d.connect() as w:
                ready.append(d.ready_seconds)
                pinned_seconds(d, pool << 20)
                answers.append(w.generate(**prompt))
                begin = time.monotonic()
                d.terminate()
                stop = time.monotonic() - begin
        rate = read_rate(pathlib.Path(folder) / "kv-blocks", stress.pool_bytes(config, n))
    times = [a.done["timing"]["ttft_ms"] for a in answers]
    cached = min(a.done["usage"].get("cached_tokens", 0) for a in answers[1:])
    right = all(a.choices[0].ids == answers[0].choices[0].ids for a in answers)
    ratio = median(times[1:]) / (stress.pool_bytes(config, n) / rate * 1e3)
    row("restart, 0.6B", reached(ratio <= BAR) if right and cached >= 0.99 * n else verdict(False),
        f"tokens={n} cached={cached} ttft_ms={median(times[1:]):.0f}: {ratio:.2f} x their bytes "
        f"over the disk's {rate / 1e9:.2f} GB/s (bar {BAR}), not {times[0]:.0f}; "
        f"READY {ready[0]:.2f} s, {median(ready[1:]):.2f} with an index; last stop {stop:.1f} s")


def read_rate(path, n_bytes):
    """Of the file's first bytes, past the page cache, with as many reads as the daemon has."""
    part = 4 << 20

    def read(fd, at, memory):
        return os.preadv(fd, [memory], at)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        memory = [mmap.mmap(-1, part) for _ in range(4)]
        begin = time.monotonic()
        n = sum(pool.map(lambda i: read(fd, i * part, memory[i % 4]), range(n_bytes // part)))
        return n / (time.monotonic() - begin)


def pinned_seconds(d, wanted):
    begin = time.monotonic()
    while d.status()["host_memory"].get("bytes", 0) < 0.99 * wanted:
        assert time.monotonic() - begin < 150, f"not pinned: {d.status()['host_memory']}"
        time.sleep(0.05)
    return time.monotonic() - begin


def wait_until_pinned(d, w):
    """All host memory, if there is any: only then are sequences offloaded."""
    block_bytes = w.ask(get_blocks={})["block_report"]["block_bytes"]
    return pinned_seconds(d, block_bytes * d.status()["host_memory"].get("total", 0))


LEFT_BYTES = 600 << 20  # of a sleeping model, its context included
WAKE_MS = 600


def sleep():
    for name, folder in ("0.6B", need_model()), ("8B", args.large):
        if folder:
            sleep_and_wake(name, folder)


def sleep_and_wake(name, model):
    """Sleeps, and the first token of a request that wakes it; with all blocks in host memory."""
    n, config = few(8000), model_config(model)
    host = stress.pool_bytes(config, 2 * n) >> 20

    def request(seed, n_ids):
        return {"prompt_ids": {"ids": random_ids(random.Random(seed), n_ids, config["vocab_size"])},
                "max_tokens": 8, "sampling": {"temperature": 0, "ignore_eos": True}}

    with daemon(f"cache.host_memory={host}M", model=model) as d, d.connect() as w:
        pinned_seconds(d, host << 20)
        asked = [request(1, n), request(2, 64)]
        first = [w.generate(**r) for r in asked]
        d.wait_idle()
        before = used_bytes(d)
        left, slept, woken, right = [], [], [], True
        for i in range(7):
            answer = w.ask(sleep={"level": "SLEEP_ALL" if i < 6 else "SLEEP_WEIGHTS"})["slept"]
            left.append(used_bytes(d))
            slept.append(answer["took_us"] / 1e3)
            if i != 5:  # the driver clears memory that was given back, for a third of a second
                time.sleep(1)
            begin = time.monotonic()
            w.begin(1000 + i, asked[1] | {"stream": True})
            woken.append((time.monotonic() - begin) * 1e3)
            w.collect([1000 + i])
            again = [w.generate(**r) for r in asked]
            right &= all(a.choices[0].ids == f.choices[0].ids for a, f in zip(again, first))
            right &= again[0].done["usage"].get("cached_tokens", 0) >= n - 32
        refused = other_takes_memory(d, w, model, asked[1])
    good = right and all(refused)
    row(f"sleep, {name}", reached(max(left[:5]) <= LEFT_BYTES) if good else verdict(False),
        f"{before >> 20} MiB used, {max(left[:5]) >> 20} asleep (bar {LEFT_BYTES >> 20}), "
        f"{left[6] >> 20} without the weights alone; {max(slept):.0f} ms to sleep; "
        f"same tokens, cached as before: {right}; another daemon takes the memory: {refused}")
    row(f"wake, {name}", reached(median(woken[:5]) <= WAKE_MS),
        f"first token after {median(woken[:5]):.0f} ms ({min(woken[:5]):.0f} to "
        f"{max(woken[:5]):.0f}, 5 runs; bar {WAKE_MS}); {woken[5]:.0f} ms as soon as it sleeps, "
        f"{woken[6]:.0f} with the blocks kept")


def used_bytes(d):
    memory = d.status()["memory"]
    return memory["total_bytes"] - memory["free_bytes"]


def other_takes_memory(d, w, model, request):
    """While it sleeps: the request is refused; once the memory is free again it is answered."""
    w.ask(sleep={})
    with daemon(model=model) as other:
        refused = w.generate(**request).error or {}
        other.terminate()
    return (refused.get("code") == "ERROR_UNAVAILABLE",
            d.process.poll() is None and not w.generate(**request).error)


def conversations():
    """64 conversations of 8 turns, of which the device holds a quarter, with host memory for all and
    without."""
    name, model = ("8B", args.large) if args.large else ("0.6B", need_model())
    n, turns, new = few(64, 8), 8, (984, 16)
    working = stress.pool_bytes(model_config(model), n * turns * sum(new)) >> 20
    results = []
    for host in 0, working * 5 // 4:
        with daemon(f"cache.kv_memory={working // 4}M", f"cache.host_memory={host}M",
                    "scheduler.max_batch_tokens=8192", model=model) as d:
            if host:
                pinned_seconds(d, host << 20)
            results.append(json.loads(d.ctl(
                "bench", "--conversations", str(n), "--turns", str(turns), "--prompt-tokens",
                str(new[0]), "--output-tokens", str(new[1]), "--think", "0.8", "--json").stdout))
    without, with_host = results
    rate = with_host["prompt_tok_s"] / without["prompt_tok_s"]
    ttft = with_host["ttft_ms"]["p50"] / without["ttft_ms"]["p50"]
    row(f"conversations, {name}", reached(rate >= 3 and ttft <= 0.2),
        f"{n} x {turns} turns of {new[0]} + {new[1]}, 0.8 s to think, pool for a quarter: "
        f"{with_host['prompt_tok_s']:.0f} prompt tok/s, {without['prompt_tok_s']:.0f} without host "
        f"memory: {rate:.2f} x (bar 3); first token p50 {with_host['ttft_ms']['p50']:.0f} ms, "
        f"{without['ttft_ms']['p50']:.0f}: {ttft:.2f} x (bar 0.2)")


PREFILL_RATE, DECODE_RATE = 60000, 10  # tokens a second at 40,959, all keys and values in host memory


def offload():
    """Prompts of 40,400 tokens with a device pool for 2,000, and with room for all."""
    n, config, model = few(40400), model_config(need_model()), need_model()
    small = offload_options(config, 2000, n)
    fast = long_answers(model, n, [1, 2, 3], *small)
    timing = [a.done["timing"] for a in fast]
    prefill, decode = prefill_rate(n, fast), median(map(decode_rate, fast))
    bytes_s = decode * stress.pool_bytes(config, n)
    resident = long_answers(model, n, [1, 2, 3])
    ids = [[a.choices[0].ids for a in long_answers(model, n, [1], *options, "cuda.invariant=on")]
           for options in (small, ())]
    right = ids[0] == ids[1] and len(timing) == 3
    row("offloaded, 0.6B", reached(prefill >= PREFILL_RATE and decode >= DECODE_RATE)
        if right else verdict(False),
        f"tokens={n}: prefill {prefill:.0f} tok/s (bar {PREFILL_RATE}), decode {decode:.1f} tok/s "
        f"(bar {DECODE_RATE}): {bytes_s / 1e9:.1f} GB/s; on the device "
        f"{prefill_rate(n, resident):.0f} and {median(map(decode_rate, resident)):.0f} tok/s; "
        f"same tokens where they do not depend on the path: {right}")


def million():
    """A sequence of a million tokens of the 0.6B shape in host memory."""
    n, config = few(1000000), model_config(need_model())
    with tempfile.TemporaryDirectory(prefix="nvllm-million-") as folder:
        for path in need_model().iterdir():
            (pathlib.Path(folder) / path.name).symlink_to(path)
        path = pathlib.Path(folder) / "config.json"
        path.unlink()
        path.write_text(json.dumps(config | {"max_position_embeddings": n + 1000}))
        [answer] = long_answers(pathlib.Path(folder), n, [1], *offload_options(config, 2000, n),
                                "scheduler.max_seqs=4", max_tokens=32)
    decode = decode_rate(answer)
    share = decode * stress.pool_bytes(config, n) / PCIE_BYTES
    row("a million tokens, 0.6B", reached(share >= 0.85),
        f"tokens={n}: prefill {answer.done['timing']['ttft_ms'] / 1e3:.0f} s, "
        f"{prefill_rate(n, [answer]):.0f} tok/s; decode {decode:.3f} tok/s: {share:.2f} of PCIe's "
        f"{PCIE_BYTES / 1e9} GB/s (bar 0.85)")


def offload_options(config, n_device, n_host):
    """A device pool for so many tokens, and host memory for a sequence of so many."""
    device = stress.pool_bytes(config, n_device) >> 20
    return [f"cache.kv_memory={device}M",
            f"cache.host_memory={(stress.pool_bytes(config, n_host + 1000) >> 20) + device}M"]


def long_answers(model, n, seeds, *options, max_tokens=128):
    """To a random prompt of each seed, in a daemon that has answered one before."""
    with daemon(*options, "scheduler.max_batch_tokens=8192", model=model) as d, d.connect() as w:
        wait_until_pinned(d, w)

        def ask(seed, n_ids, max_tokens):
            ids = random_ids(random.Random(seed), n_ids, model_config(model)["vocab_size"])
            return w.generate(prompt_ids={"ids": ids}, max_tokens=max_tokens,
                              sampling={"temperature": 0, "ignore_eos": True})

        ask(0, min(n, 40000), 2)
        return [ask(seed, n, few(max_tokens, 8)) for seed in seeds]


def prefill_rate(n, answers):
    return n / median(a.done["timing"]["ttft_ms"] for a in answers) * 1e3


def decode_rate(answer):
    timing = answer.done["timing"]
    return (answer.done["usage"]["completion_tokens"] - 1) / \
        (timing["total_ms"] - timing["ttft_ms"]) * 1e3
