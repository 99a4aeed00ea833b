"""Prefixes that come back from host memory: right tokens, and the time to the first one."""

import random
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


def pinned_seconds(d, wanted):
    begin = time.monotonic()
    while d.status()["host_memory"].get("bytes", 0) < 0.99 * wanted:
        assert time.monotonic() - begin < 60, f"not pinned: {d.status()['host_memory']}"
        time.sleep(0.05)
    return time.monotonic() - begin
