"""What the tests of a GPU through the daemon share: where programs and models are, a daemon on the
device, rows of the table. Nothing outside of the standard library is used."""

import argparse
import json
import math
import os
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import harness  # noqa: E402
import wire  # noqa: E402

CLEAR_MARGIN = 0.05  # of logits; bf16 moves them by less
GREEDY = {"temperature": 0}

args = argparse.Namespace()
failed = []


class Skip(Exception):
    """What is asked for cannot run here; the text says why."""


def row(name, result, text):
    print(f"{name:<34} {result:<6} {text}", flush=True)
    if result in ("FAILED", "MISSED"):
        failed.append(name)


def verdict(good):
    return "ok" if good else "FAILED"


def reached(good):
    """Of a speed: what a bar was made for is not there when requests are fewer and shorter."""
    return "-" if args.scale < 1 else "ok" if good else "MISSED"


def add_arguments(parser):
    parser.add_argument("--nvllmd", required=True)
    parser.add_argument("--nvllmctl", required=True)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--module", type=pathlib.Path, help="nvllm-cuda.so")
    parser.add_argument("--planted", type=pathlib.Path, help="gpu_planted_backend.so")
    parser.add_argument("--model", type=pathlib.Path, help="folder of the 0.6B shape")
    parser.add_argument("--large", type=pathlib.Path, help="folder of the 8B shape")
    parser.add_argument("--like", type=pathlib.Path,
                        help="folder of a shape that is to be as fast as the 8B shape")
    parser.add_argument("--copier", type=pathlib.Path,
                        help="folder of the 0.6B shape that goes from token i to i + 1 of 2,000")
    parser.add_argument("--drafter", type=pathlib.Path,
                        help="folder of two layers that does the same, of the same vocabulary")
    parser.add_argument("--shape", type=pathlib.Path, action="append", default=[],
                        help="folder of another shape, for the part that compares backends")
    parser.add_argument("--minutes", type=float, default=8.0, help="of the stress part")
    parser.add_argument("--scale", type=float, default=1.0,
                        help="below 1: fewer and shorter requests, to try the tests themselves")
    parser.add_argument("--set", action="append", default=[], help="an option for each daemon")


def set_up():
    harness.config.nvllmd, harness.config.nvllmctl = args.nvllmd, args.nvllmctl
    harness.config.light = True  # patience alone: models here are large


def few(n, least=1):
    return max(least, math.ceil(n * args.scale))


def daemon(*options, module=None, model=None, backend=None, kv=True, **kwargs):
    """A Daemon of harness.py on the device; kv leaves the memory for blocks to the daemon."""
    backend = backend or args.backend
    options = list(options) + args.set
    module = module or args.module
    if backend != "cpu" and module:
        options.append(f"backend.module={module.resolve() if module == args.module else module}")
    if kv and not any(o.startswith("cache.kv_memory=") for o in options):
        options.append("cache.kv_memory=" + ("1G" if backend == "cpu" else "auto"))
    return harness.Daemon(*options, model=model or harness.MODEL, backend=backend, **kwargs)


class Planted:
    """A folder with the module that goes wrong, and its plan."""

    def __init__(self, plan):
        if not args.planted or not args.planted.exists():
            raise Skip("no gpu_planted_backend.so")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvllm-plan-"))
        self.module = self.folder / "planted.so"
        self.module.symlink_to(args.planted.resolve())
        self.plan(plan)

    def plan(self, text):
        (self.folder / "plan").write_text(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)


def model_config(folder):
    return json.loads((folder / "config.json").read_text())


def need_model():
    if not args.model:
        raise Skip("no folder of the 0.6B shape")
    return args.model


def random_ids(rng, n, vocab):
    return [rng.randrange(min(vocab, 10001)) for _ in range(n)]


def page_in(folder):
    """The files into the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as f:
            while f.read(1 << 24):
                pass


def start_seconds(model, *options):
    """From exec to READY=1, as a service manager sees it."""
    with tempfile.TemporaryDirectory() as folder, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        path = folder + "/notify"
        s.bind(path)
        s.settimeout(0.5)
        d = daemon(*options, model=model, wait=False, env={"NOTIFY_SOCKET": path})
        try:
            while not told_ready(s):
                if d.process.poll() is not None:
                    raise AssertionError(f"not ready:\n{d.log()[-600:]}")
            seconds = time.monotonic() - d.started
            d.terminate()
            return seconds
        finally:
            d.close()


def told_ready(notifications):
    try:
        return "READY=1" in notifications.recv(4096).decode().splitlines()
    except TimeoutError:
        return False


def driver_mib():
    """(in use, kept by the driver for itself) on the device that a daemon takes, MiB; or Nones."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if not shutil.which("nvidia-smi"):
        return None, None
    done = subprocess.run(["nvidia-smi", f"--id={device}", "--format=csv,noheader,nounits",
                           "--query-gpu=memory.used,memory.reserved"],
                          capture_output=True, text=True)
    try:
        used, reserved = done.stdout.splitlines()[0].split(",")
        return int(used), int(reserved)
    except (IndexError, ValueError):
        return None, None


def answers_of(w, requests):
    """All at once."""
    ids = [w.new_id() for _ in requests]
    for i, r in zip(ids, requests):
        w.send(i, generate=r)
    got = w.collect(ids)
    return [got[i] for i in ids]


def seeded_requests(model, n):
    """Prompts of all lengths, sampled from with a seed each."""
    vocab, rng = model_config(model)["vocab_size"], random.Random(11)
    return [{"prompt_ids": {"ids": random_ids(rng, rng.randint(1, few(1500)), vocab)},
             "max_tokens": 64, "sampling": {"temperature": 0.9, "top_p": 0.95, "top_k": 0,
                                            "seed": 1000 + i, "ignore_eos": True, "logprobs": 1}}
            for i in range(n)]


def golden_wrong(w, cases, alone, sampling=GREEDY, margin=CLEAR_MARGIN):
    """Names of cases with clear margins whose ids are others."""
    requests = [{"prompt_ids": {"ids": c["prompt_ids"]}, "max_tokens": c["max_tokens"],
                 "sampling": sampling} for c in cases]
    answers = [w.generate(**r) for r in requests] if alone else answers_of(w, requests)
    return [c["name"] for c, a in zip(cases, answers)
            if c["min_margin"] >= margin
            and (a.error or a.choices[0].ids != c["greedy_ids"])]


def fault_once(planted, rng, *options, bar=5, env=None, each=8):
    """(seconds from the fault to the end, what was wrong), with so many requests of three clients."""
    d = daemon(*options, module=planted.module, env=env)
    try:
        wires = [d.connect() for _ in range(3)]
        frames = [b"".join(wire.frame(i, generate={
            "prompt_ids": {"ids": random_ids(rng, rng.randint(1, 600), 1900)}, "max_tokens": 2000,
            "stream": True, "sampling": {"temperature": 1.0, "ignore_eos": True}})
            for i in range(1, each + 1)) for _ in wires]
        for w, frame in zip(wires, frames):  # all are there before the fault is
            w.raw(frame)
        told = 0
        for w in wires:
            answers = w.collect(range(1, each + 1))
            told += sum(bool(a.error) and a.error["code"] == "ERROR_INTERNAL"
                        for a in answers.values())
        try:
            status = d.process.wait(timeout=30)
        except harness.subprocess.TimeoutExpired:
            return 30.0, "the process did not end"
        seconds = time.monotonic() - float((planted.folder / "fault_time").read_text())
        if told != 3 * each:
            return seconds, f"{told} of {3 * each} were told"
        if status <= 0:
            return seconds, f"ended with status {status}"
        return seconds, f"it took {seconds:.1f} s" if seconds > bar else None
    except (wire.Closed, AssertionError, OSError) as e:
        return math.inf, f"{type(e).__name__} {e}"[:300]
    finally:
        d.close()


median = statistics.median
