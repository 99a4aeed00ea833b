"""Clients that ask for everything at once, cancel it and leave, beside what administrators do. Each
answer must be as it is alone, or a named error."""

import collections
import random
import time

import wire
from test_cache import random_ids

PROMPTS = [random_ids(i, n) for i, n in enumerate([5, 15, 16, 17, 33, 70, 130, 200, 220])]
PROMPTS += [PROMPTS[7][:150] + random_ids(20 + i, 60) for i in range(2)]  # which begin alike
LONG = [random_ids(30 + i, 540 + 90 * i) for i in range(2)]  # the device has no room for them
TURNS = ["Count from 1 to 5.", "What is 17 + 25?", "Spell lion.", "Hello!"]
FORMATS = [{"regex": rb"(ab|cd){2,5}"}, {"choice": {"texts": [b"left", b"right"]}},
           {"json_schema": b'{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'}]
ALWAYS = {"ERROR_UNAVAILABLE", "ERROR_BUSY"}  # asleep or shutting down; a limit
CUT = {"FINISH_CANCELLED", "FINISH_DEADLINE"}


def greedy(**request):
    return {"max_tokens": 16, "sampling": {"temperature": 0, "ignore_eos": True}, **request}


def of_prompt(i, **request):
    return greedy(prompt_ids={"ids": PROMPTS[i]}, **request)


def turn(name, text):
    return greedy(session=name, chat={"messages": [{"role": "user", "content": text}]}, max_tokens=8,
                  sampling={"temperature": 0})


class Right:
    """Requests, and what they are answered alone."""

    def __init__(self, w, long):
        self.requests = [of_prompt(i) for i in range(len(PROMPTS))]
        self.requests += [of_prompt(i, n=3, sampling={"temperature": 1, "seed": i, "logprobs": 2})
                          for i in (2, 5)]
        self.requests += [of_prompt(4, response_format=f, sampling={"temperature": 0}) for f in FORMATS]
        self.requests += [of_prompt(6, sampling={"temperature": 0, "repetition_penalty": 1.3}),
                          of_prompt(3, stop=[b"e", b"a"]), greedy(prompt=b"one two three " * 4)]
        self.requests += [greedy(prompt_ids={"ids": ids}) for ids in LONG if long]
        self.answers = [w.generate(**r) for r in self.requests]
        self.embeds = [{"prompt_ids": {"ids": PROMPTS[i]}} for i in (0, 6, 8)]
        self.embeddings = [w.ask(embed=r)["embedding"]["values"] for r in self.embeds]
        w.ask(create_session={"name": "right"})
        self.turns = [w.generate(**turn("right", text)) for text in TURNS]
        w.ask(delete_session={"name": "right"})
        for answer in self.answers + self.turns:
            assert answer.error is None, answer.error


def compare(answer, whole):
    """With what it is alone: the same, or cut off somewhere."""
    if any(c.reason in CUT for c in answer.choices.values()):
        for i, c in answer.choices.items():
            assert c.ids == whole.choices[i].ids[:len(c.ids)], (c.ids, whole.choices[i].ids)
            assert whole.choices[i].text.startswith(c.text), (c.text, whole.choices[i].text)
        return "cut"
    assert answer.outcome() == whole.outcome(), (answer.outcome(), whole.outcome())
    return "whole"


def check_error(error, codes=()):
    if error["code"] == "ERROR_TOO_LONG" and "KV cache" in error["message"]:
        return "no room beside pins"
    assert error["code"] in ALWAYS | set(codes), error
    return error["code"]


def answer_of(frames):
    answer = wire.Answer()
    for f in frames:
        answer.take(f)
    return answer


class Client:
    """A connection, and the sessions that it knows the turns of."""

    def __init__(self, daemon, right, seed, admin):
        self.daemon, self.right, self.rng, self.admin = daemon, right, random.Random(seed), admin
        self.name, self.n_names, self.sessions = f"s{seed}", 0, {}
        self.seen = collections.Counter()
        self.w = daemon.connect()

    # ---- each sends a request, and returns what checks the frames of its answer

    def generate(self, id_):
        rng, i = self.rng, self.rng.randrange(len(self.right.requests))
        request = {**self.right.requests[i], "stream": rng.random() < 0.7}
        if rng.random() < 0.1:
            request["deadline_ms"] = rng.randrange(1, 60)
        if rng.random() < 0.1:
            request["priority"] = rng.choice(["PRIORITY_LOW", "PRIORITY_HIGH"])
        if rng.random() < 0.1:
            request["cache_salt"] = b"salt"
        self.w.send(id_, generate=request)

        def check(frames):
            answer = answer_of(frames)
            return check_error(answer.error) if answer.error else compare(answer, self.right.answers[i])
        return check

    def embed(self, id_):
        i = self.rng.randrange(len(self.right.embeds))
        self.w.send(id_, embed=self.right.embeds[i])

        def check(frames):
            if "error" in frames[-1]:
                return check_error(frames[-1]["error"], {"ERROR_CANCELLED"})
            assert frames[-1]["embedding"]["values"] == self.right.embeddings[i]
            return "whole"
        return check

    def ask(self, id_, **op):
        """Any answer is right."""
        self.w.send(id_, **op)
        return lambda frames: check_error(frames[-1]["error"], {"ERROR_CANCELLED", "ERROR_INVALID"}) \
            if "error" in frames[-1] else "done"

    def look(self, id_):
        ids = {"ids": self.rng.choice(PROMPTS)}
        return self.ask(id_, **self.rng.choice([
            {"get_status": {}}, {"list_requests": {}}, {"get_blocks": {"map": True}}, {"show_cache": {}},
            {"explain": {"prompt_ids": ids}}, {"explain": {"request": self.rng.randrange(1, 400)}},
            {"list_sessions": {}}, {"tokenize": {"text": "one two " * 200}}, {"detokenize": ids}]))

    def change(self, id_):
        """What administrators may do."""
        rng = self.rng
        return self.ask(id_, **rng.choice([
            {"sleep": {"level": "SLEEP_ALL"}}, {"sleep": {"level": "SLEEP_WEIGHTS"}}, {"wake": {}},
            {"pin_cache": {"prompt_ids": {"ids": rng.choice(PROMPTS[3:])}}},
            {"pin_cache": {"prompt_ids": {"ids": rng.choice(PROMPTS[3:])}, "unpin": True}},
            {"clear_cache": {"all": rng.random() < 0.5}}, {"trace": {"duration_ms": rng.randrange(1, 80)}},
            {"reload": {}}]))

    # ---- sessions: all have the same turns, so that what each is answered is known

    def new_name(self):
        self.n_names += 1
        return f"{self.name}-{self.n_names}"

    def converse(self, id_):
        rng = self.rng
        what = rng.choice(["create", "turn", "turn", "turn", "fork", "rewind", "delete", "show"])
        if what == "create" or not self.sessions:
            name = self.new_name()
            return self.take_over(id_, {name: 0}, {}, create_session={"name": name})
        name = rng.choice(list(self.sessions))
        n = self.sessions.pop(name)  # until it is known
        turns = rng.randrange(n + 1)
        if what == "turn" and n < len(TURNS):
            self.w.send(id_, generate={**turn(name, TURNS[n]), "stream": rng.random() < 0.5})
            return lambda frames: self.check_turn(name, n, answer_of(frames))
        if what == "fork":
            copy = self.new_name()
            return self.take_over(id_, {name: n, copy: turns}, {name: n},
                                  fork_session={"name": name, "new_name": copy, "turns": turns})
        if what == "rewind":
            return self.take_over(id_, {name: turns}, {name: n},
                                  rewind_session={"name": name, "turns": turns})
        if what == "delete":
            return self.take_over(id_, {}, {name: n}, delete_session={"name": name})
        return self.take_over(id_, {name: n}, {name: n}, show_session={"name": name, "ids": True})

    def take_over(self, id_, done, refused, **op):
        """What the sessions are after an operation."""
        self.w.send(id_, **op)

        def check(frames):
            self.sessions |= refused if "error" in frames[-1] else done
            return check_error(frames[-1]["error"]) if "error" in frames[-1] else "done"
        return check

    def check_turn(self, name, n, answer):
        if answer.error:
            self.sessions[name] = n
            return check_error(answer.error)
        told = compare(answer, self.right.turns[n])
        if told == "whole":  # else it is kept as far as it came
            self.sessions[name] = n + 1
        return told

    # ---- rounds

    KINDS = [generate] * 6 + [converse] * 3 + [embed, look]
    ADMIN = [change] * 6 + [generate, look]

    def round(self):
        """Asks for some things at a time, and cancels some; then reads all answers, or leaves."""
        rng, w, checks = self.rng, self.w, {}
        if rng.random() < 0.4:
            time.sleep(rng.random() * 0.08)  # the daemon may be idle
        for _ in range(rng.randrange(1, 6)):
            kind, id_ = rng.choice(self.ADMIN if self.admin else self.KINDS), w.new_id()
            checks[id_] = kind.__name__, kind(self, id_)
            if rng.random() < 0.15:
                target, id_ = rng.choice(list(checks)), w.new_id()
                checks[id_] = "cancel", self.ask(id_, cancel={"target": target})
        if rng.random() < 0.03:
            w.close()
            self.sessions.clear()
            self.w = self.daemon.connect()
            return
        frames = collections.defaultdict(list)
        while checks:
            f = w.receive()
            if "error" in f and not f.get("id"):
                raise wire.Closed  # which it says first
            frames[f["id"]].append(f)
            if "delta" not in f and "trace_chunk" not in f:
                name, check = checks.pop(f["id"])
                self.seen[name, check(frames.pop(f["id"]))] += 1
