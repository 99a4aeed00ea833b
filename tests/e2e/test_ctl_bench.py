"""nvllmctl bench: what it sends, and that what it prints is so."""

import json
import random
import signal
import threading
import time

import wire
from harness import Case, SharedDaemon, scaled, wait_for
from test_ctl_alone import Fake

TIMES = {"n", "p50", "p90", "p99", "max", "mean"}


class Real(SharedDaemon):
    def bench(self, *args, **options):
        done = self.daemon.ctl("bench", "--json", *args, **options)
        return json.loads(done.stdout)

    def test_counts(self):
        """Requests and tokens are those asked for, and the daemon counts the same."""
        before = self.daemon.status()
        r = self.bench("--requests", 6, "--streams", 3, "--prompt-tokens", "20-40",
                       "--output-tokens", 5)
        after = self.daemon.status()
        self.assertEqual((r["requests"], r["failed"], r["cut"], r["busy"]), (6, 0, 0, 0))
        self.assertEqual(r["output_tokens"], 30)
        self.assertTrue(120 <= r["prompt_tokens"] <= 240)
        self.assertEqual(after["output_tokens"] - before["output_tokens"], 30)
        self.assertEqual(after["prompt_tokens"] - before["prompt_tokens"],
                         r["prompt_tokens"] - r["cached_tokens"])
        self.assertAlmostEqual(r["output_tok_s"], 30 / r["seconds"], delta=0.01 * 30 / r["seconds"])
        self.assertEqual((r["ttft_ms"]["n"], r["request_ms"]["n"], r["token_ms"]["n"]), (6, 6, 6))
        self.assertLessEqual(r["between_ms"]["n"], 24)
        for times in (r[k] for k in ("ttft_ms", "between_ms", "token_ms", "request_ms")):
            self.assertEqual(set(times), TIMES)
            self.assertTrue(0 <= times["p50"] <= times["p90"] <= times["p99"] <= times["max"])
        self.assertLessEqual(r["ttft_ms"]["max"], r["request_ms"]["max"])
        self.assertLessEqual(r["request_ms"]["max"] / 1000, r["seconds"] + 0.001)

    def test_conversations(self):
        """Each turn sends all that was said before and finds it in the cache."""
        r = self.bench("--conversations", 3, "--turns", 4, "--prompt-tokens", 100,
                       "--output-tokens", 10)
        self.assertEqual((r["requests"], r["failed"], r["output_tokens"]), (12, 0, 120))
        self.assertEqual(r["prompt_tokens"], 3 * sum(100 + 110 * turn for turn in range(4)))
        self.assertGreaterEqual(r["cached_tokens"], 3 * sum(110 * turn - 16 for turn in (1, 2, 3)))
        self.assertLessEqual(r["cached_tokens"], 3 * sum(110 * turn for turn in (1, 2, 3)))
        self.assertEqual((r["ttft_ms"]["n"], r["later_ttft_ms"]["n"]), (12, 9))
        text = self.daemon.ctl("bench", "--conversations", 2, "--turns", 2, "--prompt-tokens", 20,
                               "--output-tokens", 2, "--streams", 1).stdout
        self.assertRegex(text, rb"requests +4 done, 0 failed\n")
        self.assertRegex(text, rb"\.\.\. of later turns +[0-9.]+")

    def test_conversations_pause(self):
        """Between turns there is time to think; what is due at the end of the time is not sent."""
        args = "--conversations", 4, "--turns", 6, "--prompt-tokens", 5, "--output-tokens", 1
        self.assertGreater(self.bench(*args, "--think", 0.2)["seconds"], 0.4)
        r = self.bench(*args, "--think", 1000, "--duration", scaled(3, 10))
        self.assertEqual((r["requests"], r["cut"], r["failed"]), (4, 0, 0))
        for wrong in (["--turns", 2], ["--think", 1], ["--conversations", 2, "--requests", 3],
                      ["--conversations", 2, "--nano-vllm"]):
            done = self.daemon.ctl("bench", *wrong, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"--conversations", done.stderr)

    def test_runs_do_not_help_each_other(self):
        """The same prompts are computed anew in each run, unless the cache may be warm."""
        args = "--requests", 3, "--prompt-tokens", 200, "--output-tokens", 1
        self.assertEqual([self.bench(*args)["cached_tokens"] for _ in range(2)], [0, 0])
        self.bench(*args, "--warm-cache")
        self.assertGreater(self.bench(*args, "--warm-cache")["cached_tokens"], 500)

    def test_for_people(self):
        """Answers are so long that they cannot all lie ready when nvllmctl comes to read."""
        text = self.daemon.ctl("bench", "--requests", 3, "--prompt-tokens", 10,
                               "--output-tokens", 1000).stdout.decode()
        self.assertRegex(text, r"requests +3 done, 0 failed\n")
        self.assertRegex(text, r"throughput +[0-9.]+ output tok/s")
        self.assertRegex(text, r"to the first token +[0-9.]+ +[0-9.]+ +[0-9.]+")
        self.assertRegex(text, r"between tokens\n( +< +[0-9.]+ ms +\d+  #*\.?\n)+$")

    def test_duration_and_interrupt(self):
        """At the end of the time, or at Ctrl-C, requests in progress are cut short and counted as cut."""
        started, seconds = time.monotonic(), scaled(0.5, 5)
        r = self.bench("--duration", seconds, "--streams", 2, "--output-tokens", 20000,
                       "--prompt-tokens", 10)
        self.assertEqual((r["requests"], r["cut"]), (0, 2))
        self.assertGreater(r["output_tokens"], 0)
        self.assertAlmostEqual(r["seconds"], seconds, delta=scaled(0.1, 1))
        self.assertLess(time.monotonic() - started, scaled(5, 60))
        p = self.daemon.ctl_start("bench", "--json", "--streams", 1, "--output-tokens", 30000)
        wait_for(lambda: self.daemon.status()["requests"]["running"], scaled(10, 60), "running")
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=scaled(10, 60))
        self.assertEqual(p.returncode, 130)
        self.assertEqual(json.loads(out)["cut"], 1)


class Played(Case):
    SPECIAL = {0, 17, 18, 2999}

    def bench(self, *args, n_tokens=3000, stdin=b"", refuse=lambda got: None):
        """What arrives of generate, in its order; and what bench prints."""
        self.seen, self.at = [], []
        lock = threading.Lock()

        def script(peer):
            while (got := peer.receive()) is not None:
                id_, op, fields = got
                if op == "detokenize":
                    ids = fields.get("ids", [])
                    skip = self.SPECIAL if fields.get("skip_special") else set()
                    peer.send(id_, text={"text": b"x" * sum(i not in skip and i < n_tokens
                                                            for i in ids)})
                elif error := refuse(fields):
                    peer.send(id_, error=error)
                else:
                    with lock:
                        self.seen.append(fields)
                        self.at.append(time.monotonic())
                    n = fields["max_tokens"]
                    peer.send(id_, delta={"token_ids": [1] * n, "finish_reason": "FINISH_LENGTH"})
                    peer.send(id_, done={"usage": {"prompt_tokens": len(fields["prompt_ids"]["ids"]),
                                                   "completion_tokens": n}})

        done = Fake(self, script).ctl("bench", "--json", *args, stdin=stdin)
        return json.loads(done.stdout) if done.stdout else None, done

    def test_nano_vllm_is_what_python_draws(self):
        """To the last token where the model has them all."""
        random.seed(0)
        prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))]
                   for _ in range(256)]
        lengths = [random.randint(100, 1024) for _ in range(256)]
        special, self.SPECIAL = self.SPECIAL, set()
        r, _ = self.bench("--nano-vllm", n_tokens=20000)
        self.SPECIAL = special
        self.assertEqual([x["prompt_ids"]["ids"] for x in self.seen], prompts)
        self.assertEqual([x["max_tokens"] for x in self.seen], lengths)
        self.assertEqual((r["requests"], r["prompt_tokens"], r["output_tokens"]),
                         (256, 142827, 133966))
        sampling = self.seen[0]["sampling"]
        self.assertAlmostEqual(sampling["temperature"], 0.6, places=5)
        self.assertTrue(sampling["ignore_eos"])
        self.assertEqual((sampling["top_k"], sampling["top_p"]), (0, 1))

    def test_tokens_are_ordinary(self):
        """A smaller model's special tokens never come, nor such that it does not have."""
        for args in (["--nano-vllm"], ["--requests", 20, "--prompt-tokens", 1000]):
            self.bench(*args)
            ids = {i for x in self.seen for i in x["prompt_ids"]["ids"]}
            self.assertFalse(ids & self.SPECIAL)
            self.assertLess(max(ids), 3000)
            self.assertGreater(len(ids), 2900)

    def test_seed(self):
        """The same seed asks for the same, another one for something else."""
        runs = []
        for seed in 5, 5, 6:
            self.bench("--seed", seed, "--requests", 9, "--prompt-tokens", "5-50",
                       "--output-tokens", "1-9")
            runs.append([(x["prompt_ids"]["ids"], x["max_tokens"]) for x in self.seen])
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])
        self.assertTrue(all(5 <= len(ids) <= 50 and 1 <= n <= 9 for ids, n in runs[0]))

    def test_workload_file(self):
        """Lines say how long, and when; a wrong one is named."""
        lines = b'{"prompt_tokens": 7, "output_tokens": 2}\n\n{"prompt_tokens": 3, "output_tokens": 1}'
        r, _ = self.bench("--workload", "-", stdin=lines)
        self.assertEqual([(len(x["prompt_ids"]["ids"]), x["max_tokens"]) for x in self.seen],
                         [(7, 2), (3, 1)])
        lines = b"".join(b'{"prompt_tokens": 1, "output_tokens": 1, "at_ms": %d}\n' % ms
                         for ms in (0, 2000, 4000))
        self.bench("--workload", "-", stdin=lines)
        self.assertAlmostEqual(self.at[2] - self.at[0], 4, delta=scaled(1, 4))
        done = self.bench("--workload", "-", "--rate", 5, stdin=lines)[1]
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertIn("at_ms", done.stderr.decode())
        with_time = b'{"prompt_tokens": 1, "output_tokens": 1, "at_ms": 7}\n'
        for bad in with_time.replace(b"7", b"6.5"), b'{"prompt_tokens": 1, "output_tokens": 1}':
            _, done = self.bench("--workload", "-", stdin=with_time + with_time + b"\n" + bad)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr.decode(), "line 4: at_ms")
        for line, word in ((b'{"prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens"),
                           (b'{"prompt_tokens": 1}', "output_tokens"), (b"[]", "object"),
                           (b'{"prompt_tokens": 1, "output_tokens": 1, "x": 1}', "x"), (b"", "no request"),
                           (b'{"prompt_tokens": 1, "output_tokens": 1, "at_ms": -1}', "at_ms")):
            _, done = self.bench("--workload", "-", stdin=line)
            self.assertEqual(done.returncode, 1)
            self.assertIn(word, done.stderr.decode())
        _, done = self.bench("--workload", "/nonexistent")
        self.assertEqual(done.returncode, 1)

    def test_rate(self):
        """So many requests a second, whatever the answers do."""
        r, _ = self.bench("--rate", 100, "--requests", 60, "--prompt-tokens", 3)
        self.assertEqual(r["requests"], 60)
        self.assertTrue(0.3 < self.at[-1] - self.at[0] < scaled(1.2, 5), self.at[-1] - self.at[0])

    def test_busy_daemon_is_asked_again(self):
        """And a request that is refused for good is a failure."""
        n = []

        def refuse(fields):
            n.append(1)
            if len(n) % 2:
                return {"code": "ERROR_BUSY", "message": "busy", "retry_after_ms": 1}

        r, done = self.bench("--requests", 5, "--streams", 1, refuse=refuse)
        self.assertEqual((r["requests"], r["failed"], r["busy"]), (5, 0, 5))
        came = []

        def refuse_once(fields):
            came.append(time.monotonic())
            if len(came) == 1:
                return {"code": "ERROR_BUSY", "message": "busy", "retry_after_ms": 1500}

        r, done = self.bench("--requests", 1, "--streams", 1, refuse=refuse_once)
        self.assertEqual((r["requests"], r["busy"]), (1, 1))
        self.assertGreater(came[1] - came[0], 1.49, "it came before it was told to")
        r, done = self.bench("--requests", 5, refuse=lambda _: {"code": "ERROR_TOO_LONG",
                                                                "message": "too long"})
        self.assertEqual((r["requests"], r["failed"], done.returncode), (0, 5, 1))

    def test_deltas_that_lie_ready_are_one_delivery(self):
        """How fast the frames of one wake-up are decoded is no time between tokens."""
        pause = 2  # far longer than a busy machine keeps a program from running

        def script(peer):
            while (got := peer.receive()) is not None:
                id_, op, fields = got
                if op == "detokenize":
                    peer.send(id_, text={"text": b"x" * len(fields["ids"])})
                    continue
                frame = wire.encode("ServerFrame", {"id": id_, "delta": {"token_ids": [1]}})
                for part in range(2):
                    time.sleep(pause * part)
                    peer.raw((wire.varint(len(frame)) + frame) * 50)
                peer.send(id_, done={"usage": {"prompt_tokens": 1, "completion_tokens": 100}})

        done = Fake(self, script).ctl("bench", "--json", "--requests", 1, "--prompt-tokens", 1)
        r = json.loads(done.stdout)
        self.assertEqual(r["output_tokens"], 100)
        self.assertEqual(r["between_ms"]["n"], 1)
        self.assertGreater(r["between_ms"]["max"], 500 * pause)

    def test_daemon_that_goes(self):
        def refuse(fields):
            raise ConnectionError

        r, done = self.bench("--requests", 50, refuse=refuse)
        self.assertEqual((done.returncode, r["requests"]), (1, 0))
