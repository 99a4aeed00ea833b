"""What `nvllmctl bench` measures: a step of each number of streams, and weights of 16, 8 and 4 bits
side by side."""

import json

import device
from device import Skip, args, daemon, few, median, need_model, reached, row
from speed import OFF, spread

CONTEXT, OUTPUT = 512, 128
AGAIN = 2  # more runs of each number that is slower than a greater one: the best counts

# Bars are goals on an H200, not what was measured: thousands of tokens a second by streams; ms a step.
SMALL = {1: 2, 4: 7.5, 8: 13, 16: 20, 32: 27, 64: 37, 128: 50, 256: 58}
LARGE = {1: 3.8, 4: 4.1, 8: 4.3, 16: 4.5, 32: 4.7, 64: 5.2, 128: 6.8}
DIP = 1.03

CLIENTS, REQUESTS, PROMPT = 128, 640, 1024
LONG = 16384

# Of the 8B shape: tokens a second of one stream; of all clients; the speed of a long prompt beside
# bf16; seconds to READY=1. 0: no bar.
WEIGHTS = {"bf16": (0, 4000, 0, 0), "fp8": (400, 4900, 1.3, 0.7), "fp8, fp8 keys": (0, 5600, 0, 0),
           "int4": (560, 0, 0, 0)}


def bench(d, *options):
    return json.loads(d.ctl("bench", "--json", "--temperature", 0, *options).stdout)


def step_ms(d, n):
    """n answers at a time, all of which decode in most steps."""
    n_out = few(OUTPUT, 8)
    r = bench(d, "--streams", n, "--requests", n, "--output-tokens", n_out,
              "--prompt-tokens", max(1, few(CONTEXT) - n_out // 2))
    assert r["failed"] == 0 and r["output_tokens"] == n * n_out, r
    return max(r["between_ms"]["p50"], 1e-3)  # all may have come at once


def dips(ms):
    """By how much each number of streams is slower than any greater one."""
    least, worse = float("inf"), {}
    for n in sorted(ms, reverse=True):
        worse[n] = ms[n] / least
        least = min(least, ms[n])
    return worse


def sweep():
    """A step of 1 to 256 streams of the 0.6B shape, 1 to 128 of the larger one: each up to 64, then
    two in every eight."""
    for name, model, bars in ("0.6B", need_model(), SMALL), ("8B", args.large, LARGE):
        if not model:
            row(f"sweep, {name}", "skip", "no folder of this shape")
            continue
        numbers = [n for n in range(1, few(max(bars), 8) + 1) if n <= 64 or n % 8 < 2]
        with daemon("cache.prefix_cache=off", "scheduler.max_batch_tokens=8192", OFF,
                    model=model) as d:
            step_ms(d, numbers[-1])  # the device is warm
            ms = {n: step_ms(d, n) for n in numbers}
            for _ in range(AGAIN):
                for n in [n for n, worse in dips(ms).items() if worse > DIP]:
                    ms[n] = min(ms[n], step_ms(d, n))
        for n in (n for n in bars if n in ms):
            rate = n / ms[n]
            row(f"sweep, {name}, {n} streams",
                reached(rate >= bars[n] if bars is SMALL else ms[n] <= bars[n]),
                f"step_ms={ms[n]:.3f} tok_per_s={rate * 1e3:.0f} "
                f"(bar {f'{bars[n] * 1e3:.0f} tok/s' if bars is SMALL else f'{bars[n]} ms'})")
        worst, at = max((worse, n) for n, worse in dips(ms).items())
        row(f"sweep, {name}, dips", reached(worst <= DIP),
            f"worst={worst:.3f} at {at} streams of {len(ms)} (bar {DIP}): "
            + " ".join(f"{n}:{ms[n]:.2f}" for n in ms))


def weights():
    """The 8B shape as bf16, and what `nvllmd convert` made of it."""
    if not args.large or not all(folder(name).is_dir() for name in WEIGHTS):
        raise Skip("no folder of the 8B shape, or none that was converted")
    base = None
    for name, bars in WEIGHTS.items():
        keys = ["cache.kv_dtype=fp8"] if "keys" in name else []
        device.page_in(folder(name))
        with daemon("cache.prefix_cache=off", OFF, *keys, model=folder(name)) as d:
            one = 1e3 / step_ms(d, 1)
            all_ = bench(d, "--streams", few(CLIENTS), "--requests", few(REQUESTS),
                         "--prompt-tokens", few(PROMPT), "--output-tokens", few(128, 2))
            long = bench(d, "--streams", 1, "--requests", 4, "--prompt-tokens", few(LONG),
                         "--output-tokens", 1)["ttft_ms"]["p50"]
        starts = [device.start_seconds(folder(name), *keys) for _ in range(3)]
        base = base or (one, all_["output_tok_s"], long)
        judge(f"weights, {name}, one stream", one >= bars[0], bars[0],
              f"tok_per_s={one:.0f}: {one / base[0]:.2f} x bf16")
        gaps, late = all_["between_ms"], all_["ttft_ms"]["p90"]
        judge(f"weights, {name}, {few(CLIENTS)} clients",
              all_["output_tok_s"] >= bars[1] and gaps["p99"] <= 2 * gaps["p50"] and late <= 1500,
              bars[1], f"requests={few(REQUESTS)} tok_per_s={all_['output_tok_s']:.0f}: "
              f"{all_['output_tok_s'] / base[1]:.2f} x bf16 between_tokens_ms={gaps['p50']:.1f} "
              f"p99={gaps['p99']:.1f} first_token_p90_ms={late:.0f}",
              f"{bars[1]}, p99 2 x, 1500 ms")
        judge(f"weights, {name}, a prompt of {few(LONG)}", base[2] / long >= bars[2], bars[2],
              f"tok_per_s={few(LONG) / long * 1e3:.0f}: {base[2] / long:.2f} x bf16")
        judge(f"weights, {name}, start", median(starts) <= bars[3], bars[3],
              f"seconds={spread(starts, 2)}")


def folder(name):
    """Of weights by the first word of their name."""
    kind = name.split(",")[0]
    return args.large if kind == "bf16" else args.large.with_name(f"{args.large.name}-{kind}")


def judge(name, good, bar, text, bars=None):
    row(name, reached(good) if bar else "-", text + (f" (bar {bars or bar})" if bar else ""))
