"""What `nvllmctl bench` measures: a step of each number of streams, and weights of 16, 8 and 4 bits
side by side."""

import json

import device
from device import Skip, args, daemon, few, median, need_model, reached, row
from speed import OFF, spread

CONTEXT, OUTPUT = 512, 128
AGAIN = 2  # more runs of each number that is slower than a greater one: the best counts

# Bars are goals on an H200, not what was measured: ms a step by streams, of the 0.6B shape from
# thousands of tokens a second.
SMALL = {n: n / bar for n, bar in ((1, 2), (4, 7.5), (8, 13), (16, 20), (32, 27), (64, 37),
                                   (128, 50), (256, 58))}
LARGE = {1: 3.8, 4: 4.1, 8: 4.3, 16: 4.5, 32: 4.7, 64: 5.2, 128: 6.8}
DIP = 1.03

CLIENTS, REQUESTS, PROMPT = 128, 640, 1024
LONG = 16384

BF16, BY_ROWS = "bf16", "fp8, a scale a row"

# Of the 8B shape: how its folder's name ends; options; bars: tokens a second of one stream, of all
# clients, the speed of a long prompt beside bf16, seconds to READY=1. 0: none. With bf16 the tokens
# of all clients are to come evenly, too, and the first ones soon.
WEIGHTS = {
    BF16: ("", [], (0, 4000, 0, 0)),
    "fp8": ("-fp8", [], (400, 4900, 1.3, 0.7)),
    "fp8, fp8 keys": ("-fp8", ["cache.kv_dtype=fp8"], (0, 5600, 0, 0)),
    BY_ROWS: ("-fp8-rows", [], (0, 0, 1.45, 0)),
    "int4": ("-int4", [], (560, 0, 0, 0)),
}


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
            row(f"sweep, {name}, {n} streams", reached(ms[n] <= bars[n]),
                f"step_ms={ms[n]:.3f} tok_per_s={n / ms[n] * 1e3:.0f} "
                f"(bar {bars[n]:.3f}, {n / bars[n] * 1e3:.0f})")
        worst, at = max((worse, n) for n, worse in dips(ms).items())
        row(f"sweep, {name}, dips", reached(worst <= DIP),
            f"worst={worst:.3f} at {at} streams of {len(ms)} (bar {DIP}): "
            + " ".join(f"{n}:{ms[n]:.2f}" for n in ms))


def weights():
    """The 8B shape as bf16, and what `nvllmd convert` and quantize_folder.py made of it."""
    if not args.large:
        raise Skip("no folder of the 8B shape")
    base = None
    for name, (ending, options, (one_bar, all_bar, long_bar, start_bar)) in WEIGHTS.items():
        folder = args.large.with_name(args.large.name + ending)
        if name == BY_ROWS and not folder.is_dir():
            row(f"weights, {name}", "skip", "no torch and transformers to make the folder")
            continue
        device.page_in(folder)
        with daemon("cache.prefix_cache=off", OFF, *options, model=folder) as d:
            one = 1e3 / step_ms(d, 1)
            all_ = bench(d, "--streams", few(CLIENTS), "--requests", few(REQUESTS),
                         "--prompt-tokens", few(PROMPT), "--output-tokens", few(128, 2))
            long = bench(d, "--streams", 1, "--requests", 4, "--prompt-tokens", few(LONG),
                         "--output-tokens", 1)["ttft_ms"]["p50"]
        starts = [device.start_seconds(folder, *options) for _ in range(3)]
        rate, gaps, late = all_["output_tok_s"], all_["between_ms"], all_["ttft_ms"]["p90"]
        even = name != BF16 or (gaps["p99"] <= 2 * gaps["p50"] and late <= 1500)
        base = base or (one, rate, long)
        judge(f"weights, {name}, one stream", one >= one_bar, one_bar,
              f"tok_per_s={one:.0f}: {one / base[0]:.2f} x bf16")
        judge(f"weights, {name}, {few(CLIENTS)} clients",
              rate >= all_bar and even,
              f"{all_bar}, p99 2 x, 1500 ms" if name == BF16 else all_bar,
              f"requests={few(REQUESTS)} tok_per_s={rate:.0f}: {rate / base[1]:.2f} x bf16 "
              f"between_tokens_ms={gaps['p50']:.1f} p99={gaps['p99']:.1f} "
              f"first_token_p90_ms={late:.0f}")
        judge(f"weights, {name}, a prompt of {few(LONG)}", base[2] / long >= long_bar, long_bar,
              f"tok_per_s={few(LONG) / long * 1e3:.0f}: {base[2] / long:.2f} x bf16")
        judge(f"weights, {name}, start", median(starts) <= start_bar, start_bar,
              f"seconds={spread(starts, 2)}")


def judge(name, good, bar, text):
    row(name, reached(good) if bar else "-", text + (f" (bar {bar})" if bar else ""))
