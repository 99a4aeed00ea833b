"""Speculation changes nothing: every request is told the same with drafts as without, and drafts of
text that repeats itself are right."""

import json
import pathlib
import random
import subprocess
import tempfile

from harness import GOOD, MODEL, Case, Daemon, at_once, config, model_folder, scaled, wait_for
from test_batching import some_request
from test_format import CHOICES, EXPRESSION, PERSON, REGEXES, SCHEMAS, ask, choice, schema

BLOCK_BYTES = 16 * 16384  # 4 layers, K and V, 4 heads of 128 floats
OFF, AUTO = "scheduler.speculation=off", "scheduler.speculation=auto"


def text_of(rng, n):
    """Words and numbers, of which some come again."""
    words = ["lion", "fox", "tree", "river", "stone", "bread", "moon", "glass"]
    return " ".join(rng.choice(words) + f" {rng.randrange(100)}" for _ in range(n))


def repeating(rng, i):
    """A request whose answer is likely to repeat what there is; greedy or sampled."""
    text = text_of(rng, 12)
    sampling = {"temperature": 0, "ignore_eos": True}
    if i % 3:
        sampling = {"temperature": rng.choice([0.2, 0.7, 1.0]), "seed": i, "ignore_eos": True}
    if i % 5 == 0:
        sampling["logprobs"] = 3
    return {"prompt": rng.choice([f"Repeat: {text}. {text[:20]}", "9 9 9 9 9 9 9 9", f"{text}\n{text}\n"]),
            "max_tokens": rng.randrange(20, 120), "sampling": sampling, "stream": i % 2 == 0,
            **({"n": 3} if i % 7 == 0 else {}), **({"stop": [b"9 9 9 9 9 9"]} if i % 4 == 0 else {})}


def formats():
    return [*map(schema, SCHEMAS), *({"regex": r} for r in REGEXES), {"grammar": EXPRESSION},
            choice(*CHOICES), {"regex": "(abcabc){4,20}"}, schema({"type": "array", "items": {"const": 7}})]


def outcome(answer):
    """With the usage: tokens behind the end of an answer do not count."""
    return answer.outcome(), answer.done and answer.done["usage"].get("completion_tokens", 0)


def first_layers(target, n):
    """The bundled model cut off behind n layers: several times faster, and often wrong."""
    shape = json.loads((MODEL / "config.json").read_text())
    shape["num_hidden_layers"] = n
    shape["layer_types"] = shape["layer_types"][:n]
    return model_folder(target, config=json.dumps(shape))


class Speculation(Case):
    def outcomes(self, daemon, requests, at_a_time=1):
        with daemon.connect() as w:
            got = []
            for i in range(0, len(requests), at_a_time):
                ids = []
                for r in requests[i:i + at_a_time]:
                    ids.append(w.new_id())
                    w.send(ids[-1], generate=r)
                answers = w.collect(ids)
                got += [outcome(answers[id_]) for id_ in ids]
        return got

    def compare(self, requests, *others):
        """The same requests without drafts, with them one by one, and together with other options.
        Returns the status of each daemon that has them."""
        with Daemon(OFF) as d:
            expected = self.outcomes(d, requests)
            self.assertEqual(d.status()["draft_tokens"], 0)
        stats = []
        for options, at_a_time in [((), 1), *others]:
            with Daemon(AUTO, *options) as d:
                got = self.outcomes(d, requests, at_a_time)
                stats.append(d.status())
                d.wait_idle()
            for i, (a, b) in enumerate(zip(expected, got)):
                with self.subTest(i=i, request=str(requests[i])[:600], options=options):
                    self.assertEqual(b, a)
        return stats

    def test_requests_of_all_kinds(self):
        rng = random.Random(17)
        requests = [some_request(rng, i) for i in range(scaled(80, 14))]
        requests += [repeating(rng, i) for i in range(scaled(80, 14))]
        small = (f"cache.kv_memory={scaled(72, 48) * BLOCK_BYTES}", "scheduler.max_seqs=32")
        stats = self.compare(
            requests, (small, 24), ((*small, "cache.host_memory=64M"), 24),
            (("scheduler.max_batch_tokens=5",), 3), (("cache.prefix_cache=off",), 4))
        print("; ".join(f"{s['accepted_tokens']} of {s['draft_tokens']} drafts right, "
                        f"{s['steps']} steps, {s['preemptions']} preemptions" for s in stats))
        self.assertGreater(stats[0]["accepted_tokens"], 100)
        self.assertGreater(stats[1]["preemptions"], 0, "the pool was too large to show anything")
        for s in stats:
            self.assertLessEqual(s["accepted_tokens"], s["draft_tokens"])

    def test_draft_model(self):
        """The model itself as its draft model, and its first layer, often wrong: with both every
        request is told the same, also preempted, with host memory and together."""
        rng = random.Random(19)
        requests = [some_request(rng, i) for i in range(scaled(60, 12))]
        requests += [repeating(rng, i) for i in range(scaled(40, 8))]
        requests += [ask(f, i) for i, f in enumerate(formats())][:scaled(12, 3)]
        small = (f"cache.kv_memory={scaled(72, 48) * BLOCK_BYTES}", "scheduler.max_seqs=32")
        with tempfile.TemporaryDirectory() as folder:
            itself, worse = f"model.draft={MODEL}", f"model.draft={first_layers(pathlib.Path(folder), 1)}"
            stats = self.compare(requests, ((itself,), 1), ((worse,), 1), ((worse, *small), 6),
                                 ((worse, "cache.host_memory=64M", *small), 24),
                                 ((itself, "scheduler.max_batch_tokens=48"), 3))
        print("; ".join(f"{s['model_accepted_tokens']} of {s['model_draft_tokens']} drafts of a model right"
                        for s in stats))
        self.assertEqual(stats[0]["model_draft_tokens"], 0)
        for s in stats[1:3]:  # one request at a time; of several the time that steps take decides
            self.assertGreater(s["model_draft_tokens"], 0)
        for s in stats[1:]:
            self.assertLessEqual(s["model_accepted_tokens"], s["model_draft_tokens"])
            self.assertLessEqual(s["model_draft_tokens"], s["draft_tokens"])
            self.assertGreater(s["memory"]["draft_bytes"], 0)

    def test_draft_model_is_right(self):
        """As its own draft model, the model drafts what it then says, except where rounding decides."""
        for temperature in 0, 0.7:
            rng = random.Random(20)
            requests = [{"prompt": repeating(rng, i)["prompt"], "max_tokens": 100, "n": 1 + i % 2,
                         "sampling": {"temperature": temperature, "seed": i, "ignore_eos": True}}
                        for i in range(scaled(40, 8))]
            with Daemon(AUTO, f"model.draft={MODEL}", "cache.prefix_cache=off") as d:
                self.outcomes(d, requests)
                s = d.status()
            n, n_right = s["model_draft_tokens"], s["model_accepted_tokens"]
            print(f"temperature {temperature}: {n_right} of {n} drafts of a model right")
            self.assertGreater(n, 0, "steps took too long for drafts to pay")
            self.assertGreater(n_right, 0.9 * n)

    def test_draft_model_sleeps(self):
        """Its memory is given back with the model's, and it reads texts again."""
        request = {"prompt": "Once upon a time", "max_tokens": 60,
                   "sampling": {"temperature": 0.8, "seed": 3, "ignore_eos": True}}
        with Daemon(f"model.draft={MODEL}", "cache.prefix_cache=off") as d, d.connect() as w:
            first = outcome(w.generate(**request))
            awake = d.status()["memory"]["draft_bytes"]
            d.ctl("sleep")
            self.assertLess(d.status()["memory"]["draft_bytes"], awake)
            self.assertEqual(outcome(w.generate(**request)), first)
            self.assertEqual(d.status()["memory"]["draft_bytes"], awake)
            self.assertRegex(d.ctl("status").stdout.decode(), r"MiB of the draft model")

    def test_draft_model_refused(self):
        """By name, at the start and by check-config."""
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = (MODEL / "tokenizer.json").read_text()
            other = model_folder(pathlib.Path(folder) / "other",
                                 tokenizer=tokenizer.replace("<|im_start|>", "<|im_other|>"))
            for options, why in (
                    ([f"model.draft={other}"], "vocabulary"),
                    ([f"model.draft={folder}/none"], "none"),
                    ([f"model.draft={MODEL}", "model.tensor_parallel=2"], "model.tensor_parallel"),
                    ([f"model.draft={MODEL}", OFF], "scheduler.speculation")):
                with self.subTest(options=options):
                    d = Daemon(*options, wait=False)
                    self.assertEqual(d.process.wait(timeout=scaled(30, 120)), 2)
                    self.assertIn("model.draft", d.log())
                    self.assertIn(why, d.log())
                    d.close()
                    checked = subprocess.run(
                        [config.nvllmd, "check-config", "--model", MODEL, "--backend", "cpu",
                         *(f"--set={o}" for o in options)], capture_output=True)
                    self.assertNotEqual(checked.returncode, 0)
                    self.assertIn(why, checked.stdout.decode())

    def test_formats(self):
        """Each draft is held to the mask of its own place; where one token can come it is drafted."""
        rng = random.Random(3)
        requests = []
        for i, format_ in enumerate(formats() * scaled(3, 2)):
            request = {**ask(format_, i, prompt=f"Say {i}: " + text_of(rng, 6)), "max_tokens": 200}
            if i % 4 == 3:
                request["sampling"] = {**request["sampling"], "presence_penalty": 0.5}
            requests.append(request)
        stats = self.compare(requests, ((), 16))
        print(f"{stats[0]['accepted_tokens']} of {stats[0]['draft_tokens']} drafts right")
        self.assertGreater(stats[0]["accepted_tokens"], 20)

    def test_the_same_prompt_again(self):
        """The prefix cache has the whole answer, and so the drafts of the next one; not those of
        another salt."""
        request = {"prompt": "Once upon a time", "max_tokens": 200, "cache_salt": b"a",
                   "sampling": {"temperature": 1.0, "seed": 5, "ignore_eos": True}}
        with Daemon(AUTO) as d:
            def ask_again(**fields):
                before = d.status()["accepted_tokens"]
                with d.connect() as w:
                    got = outcome(w.generate(**{**request, **fields}))
                return got, d.status()["accepted_tokens"] - before

            first, others = ask_again()[0], []
            for _ in range(8):  # whether it pays is measured first
                again, n = ask_again()
                self.assertEqual(again, first)
                others.append(n)
            other, n_salt = ask_again(cache_salt=b"b")
            self.assertEqual(other, first)
        print(f"{others} drafts right of an answer known; {n_salt} of another user's")
        self.assertGreater(max(others), 50)
        self.assertLess(n_salt, max(others))

    def test_limits_and_ends(self):
        """Drafts beyond max_tokens, behind an end token and behind a stop string are not told; the
        longest sequence is not exceeded."""
        base = {"prompt": "9 9 9 9 9 9 9 9 9 9 9 9", "sampling": {"temperature": 0, "ignore_eos": True}}
        with Daemon(OFF) as d, d.connect() as w:
            nine = w.generate(**base, max_tokens=40).choices[0].ids[-1]
        ends = {"temperature": 0, "stop_token_ids": [nine]}
        requests = [{**base, "max_tokens": n} for n in range(1, 24)]
        requests += [{**base, "max_tokens": 200, "sampling": {**ends, "min_tokens": n}}
                     for n in range(0, 40, 3)]
        requests += [{**base, "max_tokens": 300, "stop": [s]} for s in (b"9", b"9999", b"99999999999 9", b"9 9 9")]
        requests += [{"prompt_ids": {"ids": [nine] * 90}, "max_tokens": 38, "sampling": base["sampling"]}]
        with Daemon(OFF, "scheduler.max_seq_len=128") as d:
            expected = self.outcomes(d, requests)
        with Daemon(AUTO, "scheduler.max_seq_len=128") as d:
            for _ in range(2):
                for i, got in enumerate(self.outcomes(d, requests)):
                    with self.subTest(i=i, request=str(requests[i])):
                        self.assertEqual(got, expected[i])
            self.assertGreater(d.status()["accepted_tokens"], 100)

    def test_seen_and_cancelled(self):
        """Who runs with drafts shows them; a cancel leaves nothing behind."""
        request = {"prompt": "9 9 9 9 9 9 9 9 9", "max_tokens": 30000, "stream": True,
                   "sampling": {"temperature": 0, "ignore_eos": True}}
        with Daemon(AUTO) as d, d.connect() as w, d.connect() as look:
            for _ in range(scaled(20, 4)):
                id_ = w.new_id()
                w.send(id_, generate=request)

                def drafted():
                    got = look.ask(list_requests={})["request_list"]["requests"]
                    return got[0] if got and got[0].get("accepted_tokens", 0) > 20 else None

                seen = wait_for(drafted, 20, "drafts are right")
                self.assertGreaterEqual(seen["draft_tokens"], seen["accepted_tokens"])
                self.assertGreater(seen["generated_tokens"], seen["accepted_tokens"])
                said = d.ctl("explain", seen["request"]).stdout.decode()
                self.assertRegex(said, r"\d+ of \d+ drafts were right")
                w.send(w.new_id(), cancel={"target": id_})
                self.assertEqual(w.collect([id_])[id_].choices[0].reason, "FINISH_CANCELLED")
            d.wait_idle()
            self.assertIn("drafts were right", d.ctl("status").stdout.decode())
            self.assertIsNone(w.generate(**GOOD).error)

    def test_many_at_once(self):
        """Connections that come and go, with answers that repeat and others."""
        rng = random.Random(8)
        requests = [repeating(rng, i) if i % 2 else some_request(rng, i) for i in range(scaled(96, 16))]
        with Daemon(OFF) as d:
            expected = self.outcomes(d, requests)
        with Daemon(AUTO, "scheduler.max_seqs=16") as d:
            def some(k):
                mine = range(k, len(requests), 8)
                return list(zip(mine, self.outcomes(d, [requests[i] for i in mine], 3)))

            for part in at_once(some, range(8)):
                for i, got in part:
                    self.assertEqual(got, expected[i], requests[i])
            d.wait_idle()
