"""The bundled model in each format of quantized weights: tensors read as they were meant, and the
device's greedy ids and logits beside the CPU's, which computes with the same weights in float32."""

import itertools
import json
import statistics
import tempfile
from pathlib import Path

import kv_fp8
from device import (CLEAR_MARGIN, GREEDY, Skip, answers_of, args, daemon, few, harness, row,
                    verdict)

CONVERTED = {"fp8": "fp8-blocks", "int4": "packed-128"}  # by nvllmd itself, and what that is
WEIGHTS = "model.safetensors"

# Of logits, on average. On an H200 (2026-11-30) they are 0.011 to 0.017 away where activations are
# bf16, and 0.098 where they are E4M3. Logits of bf16 weights are 0.16 or more away from those of 4
# bits, and 0.05 from those of E4M3; a scale a tensor that is wrong by a tenth moves them by 0.17.
MOVED, MOVED_BY_E4M3 = 0.03, 0.13


def quantized():
    """Each format in a folder of its own."""
    cases = json.loads((harness.GOLDEN / "nvllm-tiny-greedy.json").read_text())
    if args.scale < 1:
        cases = [c for c in cases if len(c["prompt_ids"]) < 300][:few(len(cases))]
    plain = exact(cases, harness.MODEL)
    try:
        import quantize_folder  # no other part has to load torch
    except ImportError:
        quantize_folder = None
    for to, form in CONVERTED.items():
        with temporary_folder() as base:
            folder = converted(to, harness.MODEL, Path(base) / to)
            if quantize_folder:
                tensors(f"converted {to}", *quantize_folder.miswritten(
                    quantize_folder.FORMATS[form], harness.MODEL / WEIGHTS, folder / WEIGHTS))
            golden(f"converted {to}", cases, plain, folder)
    if not quantize_folder:
        raise Skip("no torch and safetensors to make folders of other formats")
    for name, form in quantize_folder.FORMATS.items():
        with temporary_folder() as base:
            folder = Path(base) / name
            quantize_folder.write(form, harness.MODEL, folder)
            # Backends may misread a folder alike: what nvllmd makes of it is what was meant.
            read = converted("bf16", folder, Path(base) / "bf16")
            tensors(name, *quantize_folder.misread(form, harness.MODEL / WEIGHTS, read / WEIGHTS))
            golden(name, cases, plain, folder)


def tensors(name, n, wrong):
    row(f"tensors of {name}", verdict(n and not wrong),
        f"{n - len(wrong)}/{n} as meant" + "".join(f", {w}" for w in wrong[:4]))


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="nvllm-quantized-")


def converted(form, old, new):
    harness.run_command([args.nvllmd, "convert", "--to", form, old, new])
    return new


def answered(w, cases):
    """(ids, log probabilities of the two best of each step) of each case."""
    requests = [{"prompt_ids": {"ids": c["prompt_ids"]}, "max_tokens": c["max_tokens"],
                 "sampling": {**GREEDY, "logprobs": 2}} for c in cases]
    answers = answers_of(w, requests)
    for a in answers:
        assert a.error is None, a.error
    return [(a.choices[0].ids, [p["top_logprobs"] for p in a.choices[0].logprobs])
            for a in answers]


def exact(cases, folder):
    with daemon(model=folder, backend="cpu") as d, d.connect() as w:
        return answered(w, cases)


def gaps(steps):
    return [best - second for best, second in steps]


def moved(ours, theirs):
    """How far the gaps between the two best are apart on average, as long as ids are the same."""
    differences = []
    for (ids, steps), (other_ids, other_steps) in zip(ours, theirs):
        same = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids, other_ids)))
        differences += [abs(a - b) for a, b in zip(gaps(steps)[:len(same) + 1], gaps(other_steps))]
    return statistics.mean(differences)


def golden(name, cases, plain, folder):
    margin = kv_fp8.MARGIN if "fp8" in name else CLEAR_MARGIN
    answers = exact(cases, folder)
    with daemon("cache.kv_memory=2G", model=folder) as d, d.connect() as w:
        got = answered(w, cases)
    clear = [i for i, (_, steps) in enumerate(answers) if min(gaps(steps)) >= margin]
    wrong = [cases[i]["name"] for i in clear if got[i][0] != answers[i][0]]
    off, by_format = moved(got, answers), moved(plain, answers)
    bar = MOVED_BY_E4M3 if name in ("fp8-rows", "fp8-tensor") else MOVED
    others = sum(a[0] != b[0] for a, b in zip(answers, plain))
    # The format must count, and the model still be this one.
    right = by_format > 0 and others < len(cases)
    row(f"golden of {name}", verdict(clear and not wrong and right and off <= bar),
        f"{len(clear) - len(wrong)}/{len(clear)} clear of {len(cases)} cases, logits off by {off:.4f} "
        f"(bar {bar}), those of bf16 by {by_format:.4f} with {others} other answers"
        + "".join(f", {n}" for n in wrong[:4]))
