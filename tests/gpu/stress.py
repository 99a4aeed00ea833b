"""Mixed load on a small pool of blocks, with NaN in every block that nobody has written yet or that
was freed and cannot be found again (planted_backend.c says when).

Each worker has a connection of its own: it sends groups of requests (short and long prompts, shared
prefixes, several choices, every filter), cancels some, sometimes goes away without a word. At the
end no choice may have met NaN, no block be held, no memory be gone, and every request have been
answered once."""

import collections
import random
import threading
import time

from device import (Planted, Skip, args, daemon, driver_mib, few, harness, model_config,
                    random_ids, row, verdict, wire)

WORKERS = 12
POOL_TOKENS = 24 * 1024  # far less than what the workers ask for at a time
LONGEST = 6000           # tokens of a prompt
MEMORY_SLACK_MIB = 64
ENDS = {"FINISH_STOP", "FINISH_LENGTH"}


class Tally:
    """What the workers have seen; adding is safe from all of them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.problems = []

    def add(self, **counts):
        with self.lock:
            self.counts.update(counts)

    def problem(self, text):
        with self.lock:
            self.problems.append(text)


class Worker(threading.Thread):
    def __init__(self, number, d, vocab, prefixes, end, tally):
        super().__init__(name=f"worker {number}", daemon=True)
        self.rng = random.Random(number)
        self.d, self.vocab, self.prefixes = d, vocab, prefixes
        self.end, self.tally = end, tally
        self.wire = None

    def run(self):
        try:
            while time.monotonic() < self.end:
                self.wire = self.wire or self.d.connect()
                self.group()
                if self.rng.random() < 0.2:
                    time.sleep(self.rng.random())
        except (wire.Closed, OSError, AssertionError) as e:
            self.tally.problem(f"{self.name}: {type(e).__name__} {e}")
        finally:
            if self.wire:
                self.wire.close()

    def prompt(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return random_ids(rng, rng.randint(1, 200), self.vocab)
        if kind < 0.85:
            shared = rng.choice(self.prefixes)
            return shared[:rng.randint(1, len(shared))] + random_ids(rng, rng.randint(1, 60),
                                                                     self.vocab)
        return random_ids(rng, rng.randint(1000, few(LONGEST, 1001)), self.vocab)

    def sampling(self):
        rng, s = self.rng, {"ignore_eos": self.rng.random() < 0.7}
        s["temperature"] = rng.choice([0, 0.3, 0.7, 1.0, 1.5])
        choices = {"top_k": [1, 2, 20, 50, 500, 1500], "top_p": [0.1, 0.5, 0.9, 0.95, 0.999],
                   "min_p": [0.01, 0.1, 0.5, 1.0], "repetition_penalty": [0.8, 1.1, 1.5],
                   "presence_penalty": [-1.0, 0.5, 2.0], "frequency_penalty": [-0.5, 0.3, 2.0],
                   "logprobs": [0, 1, 5, 20], "min_tokens": [1, 10],
                   "stop_token_ids": [[1], [1, 2, 3]],
                   "logit_bias": [[{"id": 5, "bias": 10.0}], [{"id": 7, "bias": -100.0}]]}
        for name, values in choices.items():
            if rng.random() < 0.25:
                s[name] = rng.choice(values)
        if rng.random() < 0.5:
            s["seed"] = rng.getrandbits(63)
        return s

    def request(self):
        rng = self.rng
        r = {"prompt_ids": {"ids": self.prompt()}, "sampling": self.sampling(),
             "max_tokens": rng.choice([1, 2, 17, 64, 200, 600]), "stream": rng.random() < 0.7}
        r["max_tokens"] = few(r["max_tokens"])
        r["sampling"]["min_tokens"] = min(r["sampling"].get("min_tokens", 0), r["max_tokens"])
        if rng.random() < 0.15:
            r["n"] = rng.randint(2, 5)
        if rng.random() < 0.05:
            r["deadline_ms"] = rng.randint(1, 3000)
        if rng.random() < 0.2:
            r["priority"] = rng.choice(["PRIORITY_LOW", "PRIORITY_HIGH"])
        if rng.random() < 0.1:
            r["cache_salt"] = b"salt"
        return r

    def group(self):
        """Some requests at a time, each followed to its end; or dropped with the connection."""
        w, rng = self.wire, self.rng
        open_, cancelled, cancels = {}, set(), set()
        for _ in range(rng.randint(1, 12)):
            id_, request = w.new_id(), self.request()
            w.send(id_, generate=request)
            open_[id_] = (request, wire.Answer())
            self.tally.add(sent=1)
            if rng.random() < 0.15:
                time.sleep(rng.random() * 0.05)
            if rng.random() < 0.12:
                target, cancel = rng.choice(list(open_)), w.new_id()
                w.send(cancel, cancel={"target": target})
                cancelled.add(target)
                cancels.add(cancel)
        if rng.random() < 0.08:
            time.sleep(rng.random() * 0.3)
            self.tally.add(dropped=len(open_))
            w.close()
            self.wire = None
            return
        while open_ or cancels:
            reply = w.receive()
            id_ = reply["id"]
            if id_ in cancels and "cancelled" in reply:
                cancels.discard(id_)
                continue
            if id_ not in open_:
                self.tally.problem(f"a frame for {id_} after its answer: {str(reply)[:120]}")
                return
            request, answer = open_[id_]
            if answer.take(reply):
                del open_[id_]
                self.judge(request, answer, id_ in cancelled)

    def judge(self, request, answer, was_cancelled):
        self.tally.add(answered=1)
        reasons = collections.Counter(c.reason for c in answer.choices.values())
        if reasons["FINISH_ERROR"]:
            self.tally.add(nan=reasons["FINISH_ERROR"])
            self.tally.problem(f"NaN: prompt of {len(request['prompt_ids']['ids'])}, "
                               f"{request['sampling']}")
        allowed = {"ERROR_CANCELLED"} if was_cancelled else set()
        if "deadline_ms" in request:
            allowed.add("ERROR_DEADLINE")
        if answer.error:
            self.tally.add(refused=1)
            if answer.error["code"] not in allowed:
                self.tally.problem(f"{answer.error}")
            return
        self.tally.add(tokens=answer.done["usage"].get("completion_tokens", 0))
        ended = ENDS | ({"FINISH_CANCELLED"} if was_cancelled else set()) \
            | ({"FINISH_DEADLINE"} if "deadline_ms" in request else set()) | {"FINISH_ERROR"}
        if set(reasons) - ended or len(answer.choices) != request.get("n", 1):
            self.tally.problem(f"{dict(reasons)} for n={request.get('n', 1)}")


def pool_bytes(config, tokens=POOL_TOKENS):
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return tokens * 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] \
        * head_dim


def stress():
    model = args.model or harness.MODEL
    config = model_config(model)
    vocab = config["vocab_size"]
    options = [f"cache.kv_memory={pool_bytes(config) >> 20}M", "cache.kv_dtype=bf16",
               "scheduler.max_seqs=64"]
    poisoned = args.backend != "cpu"
    try:
        planted = Planted("poison 1\n") if poisoned else None
    except Skip:
        planted, poisoned = None, False
    d = daemon(*options, model=model, module=planted.module if planted else None)
    try:
        with d:
            load(d, vocab, poisoned)
    finally:
        if planted:
            planted.__exit__()


def load(d, vocab, poisoned):
    tally, rng = Tally(), random.Random(99)
    prefixes = [random_ids(rng, n, vocab) for n in (100, 500, few(2000, 600), few(4000, 700))]
    begin = time.monotonic()
    end = begin + args.minutes * 60
    workers = [Worker(i, d, vocab, prefixes, end, tally) for i in range(WORKERS)]
    for w in workers:
        w.start()
    # Graphs of each size come in the first third; afterwards nothing may grow.
    memory = []
    while time.monotonic() < end and d.process.poll() is None:
        time.sleep(min(5, max(0.1, args.minutes * 6)))
        if time.monotonic() > begin + args.minutes * 20:
            memory.append((driver_mib()[0], d.rss_kib() >> 10))
    for w in workers:
        w.join(timeout=300)
        if w.is_alive():
            tally.problem(f"{w.name} still waits for answers")
    if d.process.poll() is not None:
        raise AssertionError(f"nvllmd ended with {d.process.returncode}: {d.log()[-600:]}")
    status = d.wait_idle()
    memory.append((driver_mib()[0], d.rss_kib() >> 10))
    report(tally, status, memory, poisoned)


def report(tally, status, memory, poisoned):
    c, blocks = tally.counts, status["blocks"]
    name = "stress"
    once = c["answered"] + c["dropped"] == c["sent"] and c["answered"] > 0
    row(f"{name}: requests", verdict(once and not tally.problems),
        f"minutes={args.minutes:g} sent={c['sent']} answered={c['answered']} "
        f"dropped={c['dropped']} refused={c['refused']} tokens={c['tokens']}"
        + "".join(f"; {p}" for p in tally.problems[:3])[:600])
    row(f"{name}: NaN", verdict(not c["nan"]) if poisoned else "-" if not c["nan"] else "FAILED",
        f"seen={c['nan']}, unwritten slots " + ("held NaN" if poisoned else "were not poisoned"))
    preempted = status.get("preemptions", 0)
    row(f"{name}: preemptions", verdict(preempted or args.minutes < 1), f"preemptions={preempted} "
        f"prefix_hits={status.get('prefix_cache', {}).get('hit_tokens', 0)}")
    total = blocks.get("cached", 0) + blocks.get("free", 0)
    row(f"{name}: blocks", verdict(not blocks.get("used", 0) and total == blocks["total"]),
        f"used={blocks.get('used', 0)} cached={blocks.get('cached', 0)} "
        f"free={blocks.get('free', 0)} of {blocks['total']}")
    rss = [r for _, r in memory]
    on_device = [m for m, _ in memory if m is not None]
    if on_device:
        row(f"{name}: device memory", verdict(max(on_device) - min(on_device) <= MEMORY_SLACK_MIB),
            f"mib={on_device[0]} at a third, {on_device[-1]} at the end, "
            f"{min(on_device)} to {max(on_device)} between")
    else:
        row(f"{name}: device memory", "skip", "no nvidia-smi")
    row(f"{name}: host memory", "-", f"mib={rss[0]} at a third, {rss[-1]} at the end")
