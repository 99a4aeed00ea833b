"""Batching changes nothing: what a request gets does not depend on what else runs."""

import random

from harness import Case, Daemon, at_once, scaled

QUESTIONS = [
    "What is 17 + 25?", "Count from 1 to 20.", "Spell lion.", "Reverse these words: a b c d.",
    "Tell me a short story about a fox.", "What comes after Tuesday?", "你好", "Hello!",
    "What is the capital of Spain?", "Give me JSON for a person named Aria.",
]
STOPS = [[b"e"], [b"and"], [b" the", b"."], ["。".encode()], [b"\n\n"], [b"zq never"]]


def some_sampling(rng, i):
    """Sampling fields of every kind; a seed always, so that the outcome is determined."""
    if i % 4 == 0:
        return {"temperature": 0}
    s = {"temperature": rng.choice([0.3, 0.8, 1.0, 1.7]), "seed": rng.getrandbits(63)}
    if rng.random() < 0.5:
        s["top_k"] = rng.choice([0, 1, 5, 40, 2048])
    if rng.random() < 0.5:
        s["top_p"] = rng.choice([0.2, 0.8, 1.0])
    if rng.random() < 0.4:
        s["min_p"] = rng.choice([0.0, 0.05, 0.5])
    return s


def some_request(rng, i):
    sampling = some_sampling(rng, i)
    if rng.random() < 0.3:
        sampling["repetition_penalty"] = rng.choice([0.9, 1.2])
    if rng.random() < 0.3:
        sampling["presence_penalty"] = rng.choice([-0.5, 1.5])
    if rng.random() < 0.3:
        sampling["frequency_penalty"] = rng.choice([-0.3, 0.7])
    if rng.random() < 0.2:
        sampling["logit_bias"] = [{"id": rng.randrange(1990), "bias": rng.choice([-100.0, 4.0])}
                                  for _ in range(3)]
    if rng.random() < 0.3:
        sampling["logprobs"] = rng.choice([0, 1, 5, 20])
    if rng.random() < 0.4:
        sampling["ignore_eos"] = True
    if rng.random() < 0.2:
        sampling["stop_token_ids"] = [rng.randrange(300) for _ in range(4)]
    request = {"sampling": sampling, "max_tokens": rng.randrange(1, 48),
               "stream": rng.random() < 0.7, "keep_special": rng.random() < 0.3,
               "priority": rng.choice(["PRIORITY_LOW", "PRIORITY_NORMAL", "PRIORITY_HIGH"])}
    if rng.random() < 0.2:
        sampling["min_tokens"] = min(12, request["max_tokens"])
    question = QUESTIONS[i % len(QUESTIONS)]
    kind = i % 3
    if kind == 0:
        request["chat"] = {"messages": [{"role": "user", "content": question}],
                           "enable_thinking": rng.random() < 0.5}
    elif kind == 1:
        request["prompt"] = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    else:
        request["prompt_ids"] = {"ids": [rng.randrange(1990) for _ in range(rng.randrange(1, 90))]}
    if rng.random() < 0.3:
        request["stop"] = rng.choice(STOPS)
    if rng.random() < 0.25:
        request["n"] = rng.choice([2, 3, 4])
    if rng.random() < 0.2:
        request["cache_salt"] = rng.choice([b"x", b"y"])
    return request


class Batching(Case):
    def outcomes_together(self, daemon, requests, n_connections):
        """Each request's outcome with all of them in progress at once."""
        outcomes = [None] * len(requests)

        def client(first):
            mine = range(first, len(requests), n_connections)
            with daemon.connect() as w:
                for i in mine:
                    w.send(i + 1, generate=requests[i])
                for id_, answer in w.collect([i + 1 for i in mine]).items():
                    outcomes[id_ - 1] = answer.outcome()

        at_once(client, range(n_connections))
        return outcomes

    def test_256_requests_of_all_kinds(self):
        """From many connections, in a pool so small that preemption happens, against one by one."""
        rng = random.Random(20)
        requests = [some_request(rng, i) for i in range(scaled(256, 64))]
        with Daemon() as idle, idle.connect() as w:
            alone = [w.generate(**r).outcome() for r in requests]
        lengths = [len(c[1]) for error, choices in alone for c in choices.values()]
        self.assertGreater(sum(n > 8 for n in lengths), len(requests) // 4)
        self.assertTrue(all(error is None for error, _ in alone), "each request is a good one")
        block_bytes = 16 * 16384  # 4 layers, K and V, 4 heads of 128 floats
        with Daemon(f"cache.kv_memory={scaled(72, 32) * block_bytes}", "scheduler.max_batch_tokens=96",
                    "scheduler.max_seqs=32") as small:
            together = self.outcomes_together(small, requests, scaled(24, 8))
            preemptions = small.status()["preemptions"]
            small.wait_idle()
        print(f"{len(requests)} requests, {sum(lengths)} tokens, {preemptions} preemptions")
        for i, (a, b) in enumerate(zip(alone, together)):
            with self.subTest(i=i, request=str(requests[i])[:600]):
                self.assertEqual(b, a)
        self.assertGreater(preemptions, 0, "the pool was too large to show anything")

    def test_choices_are_the_seeds_that_follow(self):
        """Choice i of n is what the request alone gives with seed + i."""
        request = {"prompt": "Once upon a time", "max_tokens": 24, "stream": True}
        sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "ignore_eos": True}
        with Daemon() as d, d.connect() as w:
            many = w.generate(n=4, sampling={**sampling, "seed": 7}, **request)
            ones = [w.generate(sampling={**sampling, "seed": 7 + i}, **request) for i in range(4)]
        self.assertEqual([many.choices[i].ids for i in range(4)],
                         [o.choices[0].ids for o in ones])
        self.assertEqual(len({tuple(o.choices[0].ids) for o in ones}), 4)
