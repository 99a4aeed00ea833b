"""Many clients, each of which sends its next request when the last one is answered: tokens a second,
times between the tokens of an answer, times to the first one; what response formats cost."""

import json
import random
import select
import statistics
import time

import roofline
from device import Skip, args, daemon, few, model_config, random_ids, reached, row, wire

CLIENTS, PROMPT, OUTPUT = 128, 1024, 128
WARM_UP, MEASURED = 2, 3  # rounds: an answer of each client


class Client:
    """One connection with one request under way."""

    def __init__(self, w, rng, vocab, n_prompt=PROMPT, **request):
        self.wire, self.rng, self.vocab, self.n_prompt = w, rng, vocab, n_prompt
        self.request = {"max_tokens": few(OUTPUT, 2), "stream": True,
                        "sampling": {"temperature": 0, "ignore_eos": True}, **request}
        self.buffer = b""
        self.sent = self.last = None
        self.gaps, self.firsts, self.tokens, self.n_answered = [], [], 0, 0

    def ask(self):
        self.sent, self.last = time.monotonic(), None
        self.wire.send(self.wire.new_id(), generate={
            "prompt_ids": {"ids": random_ids(self.rng, few(self.n_prompt), self.vocab)},
            **self.request})

    def take(self, measured):
        """What has come, all of it at this moment."""
        more, now = self.wire.sock.recv(1 << 16), time.monotonic()
        if not more:
            raise wire.Closed
        self.buffer += more
        while True:
            try:
                length, pos = wire.read_varint(self.buffer, 0)
            except IndexError:
                return
            if len(self.buffer) < pos + length:
                return
            reply = wire.decode("ServerFrame", self.buffer[pos:pos + length])
            self.buffer = self.buffer[pos + length:]
            n = len(reply.get("delta", {}).get("token_ids", []))
            if n and measured:
                self.tokens += n
                (self.gaps if self.last else self.firsts).append(now - (self.last or self.sent))
            self.last = now if n else self.last
            if "delta" not in reply:
                assert "done" in reply, reply
                self.n_answered += 1
                self.ask()


def clients():
    """Throughput and times between tokens while others' prompts are computed."""
    model = args.large or args.model
    if not model:
        raise Skip("no folder of the 8B or the 0.6B shape")
    vocab = model_config(model)["vocab_size"]
    with daemon("cache.prefix_cache=off", "scheduler.speculation=off", model=model) as d:
        all_ = [Client(d.connect(), random.Random(i), vocab) for i in range(few(CLIENTS))]
        rates = run(all_, WARM_UP, MEASURED)
    gaps, firsts = sorted(g for c in all_ for g in c.gaps), [f for c in all_ for f in c.firsts]
    middle, late = statistics.median(gaps), gaps[len(gaps) * 99 // 100]
    good = statistics.median(rates) >= 4000 and late <= 2 * middle
    row(f"speed, {len(all_)} clients", reached(good) if args.large else "-",
        f"model={model.name} in={few(PROMPT)} out={few(OUTPUT, 2)} tok_per_s="
        f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f}, {MEASURED} rounds) "
        f"share={floor(model_config(model), len(all_)) * statistics.median(rates):.2f} "
        f"between_tokens_ms={middle * 1e3:.1f} p99={late * 1e3:.1f}: {late / middle:.2f} x "
        f"longest={gaps[-1] * 1e3:.0f} first_token_ms={statistics.median(firsts or [0]) * 1e3:.0f}"
        " (bar 4000 on the 8B shape, 2 x)")


def run(all_, warm_up, measured):
    """Tokens a second in each of the measured rounds. Those who began together end together, so any
    other stretch of time has more of the prompts than its share, or fewer."""
    by_fd, poll = {c.wire.sock.fileno(): c for c in all_}, select.poll()
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    for c in all_:
        c.ask()
    begin, tokens, rates = time.monotonic(), 0, []
    for number in range(warm_up + measured):
        while sum(c.n_answered for c in all_) < (number + 1) * len(all_):
            ready = poll.poll(60000)
            assert ready, "no answer for 60 s"
            for fd, _ in ready:
                by_fd[fd].take(number >= warm_up)
        now, all_tokens = time.monotonic(), sum(c.tokens for c in all_)
        if number >= warm_up:
            rates.append((all_tokens - tokens) / (now - begin))
        begin, tokens = now, all_tokens
    for c in all_:
        c.wire.close()
    return rates


def floor(config, n_clients):
    """Seconds of a token: its part of the prompt, and of a step for all."""
    return (roofline.products(config, PROMPT) / OUTPUT
            + roofline.decode(config, n_clients, PROMPT + OUTPUT / 2) / n_clients)


N_STREAMS, N_SCHEMAS = 64, 16


def schema(i):
    """A list of records, too long for an answer; no two of the schemas are alike."""
    kinds = ({"type": "string"}, {"type": "integer", "minimum": i}, {"type": "number"},
             {"enum": [f"kind {k}" for k in range(i + 2)]}, {"type": "boolean"},
             {"type": "array", "items": {"type": "string"}, "maxItems": 3 + i},
             {"type": "string", "format": "date"}, {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"})
    record = {f"{name}_{i}": kinds[(i + k) % len(kinds)]
              for k, name in enumerate(("id", "title", "amount", "state", "tags", "since"))}
    return {"type": "array", "minItems": 1000,
            "items": {"type": "object", "properties": record, "required": list(record),
                      "additionalProperties": False}}


def formats():
    """Tokens a second of answers that follow JSON Schemas, beside free ones of the same lengths."""
    if not args.model:
        raise Skip("no folder of the 0.6B shape")
    vocab = model_config(args.model)["vocab_size"]
    rates = {False: [], True: []}
    with daemon("cache.prefix_cache=off", model=args.model) as d:
        for bound in False, True, False, True:
            all_ = []
            for i in range(N_STREAMS):
                request = {"sampling": {"temperature": 1.0, "ignore_eos": not bound}}
                if bound:
                    text = json.dumps(schema(i % N_SCHEMAS)).encode()
                    request["response_format"] = {"json_schema": text}
                all_.append(Client(d.connect(), random.Random(i), vocab, 32,
                                   max_tokens=few(512, 8), **request))
            rates[bound] += run(all_, 1, 3)
    free, bound = (statistics.median(rates[key]) for key in (False, True))
    row("formats, 64 streams, 16 schemas", reached(bound >= 0.85 * free),
        f"tok_per_s={bound:.0f} ({min(rates[True]):.0f} to {max(rates[True]):.0f}), free "
        f"{free:.0f} ({min(rates[False]):.0f} to {max(rates[False]):.0f}): {bound / free:.2f} "
        "(bar 0.85)")
