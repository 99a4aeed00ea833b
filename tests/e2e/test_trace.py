"""nvllmctl trace: what requests and steps do, as events that Chrome's and Perfetto's viewers read."""

import collections
import json
import signal
import threading
import time

import roles
import wire
from harness import GOOD, LONG, SMALL, Case, Daemon, scaled, wait_for

PHASES = ["encode", "queue", "prefill", "decode"]
PARTS = {"schedule", "submit", "wait", "commit", "publish", "other"}


def check_events(case, trace):
    """The structure of the format; gives the events of each kind."""
    kinds = collections.defaultdict(list)
    for e in trace["traceEvents"]:
        case.assertIsInstance(e["name"], str)
        case.assertIsInstance(e["pid"], int)
        case.assertIn(e["ph"], "MXben")
        if e["ph"] != "M":
            case.assertGreater(e["ts"], 0)
        if e["ph"] == "X":
            case.assertGreaterEqual(e["dur"], 0)
        kinds[e["ph"]].append(e)
        if e["ph"] in "be":
            kinds["b or e"].append(e)
    names = {e["args"]["name"] for e in kinds["M"]}
    case.assertEqual(names, {"engine", "requests", "engine thread", "steps"})
    for row in 1, 2:  # what one thread does, or one device: nothing at the same time
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in kinds["X"] if e["tid"] == row)
        for (_, end), (begin, _) in zip(spans, spans[1:]):
            case.assertLessEqual(end, begin)
    if trace["otherData"]["complete"]:
        case.assertGreater(trace["otherData"]["seconds"], 0)
    return kinds


def lives(kinds):
    """{request: [(begin or end, phase, time), …]} in the order of times, and of the file."""
    of = collections.defaultdict(list)
    for e in kinds["b or e"]:
        if e["name"] in PHASES:
            of[e["id"]].append((e["ph"], e["name"], e["ts"]))
    return {k: sorted(v, key=lambda x: x[2]) for k, v in of.items()}


class Trace(Case):
    def trace(self, d, seconds, during=lambda: None):
        """The trace of what happens meanwhile; and nvllmctl's status and messages. With seconds None
        it ends when that is over, by Ctrl-C."""
        path = d.folder / "trace.json"
        ctl = d.ctl_start("trace", "--seconds", str(seconds or 600), path)
        self.addCleanup(ctl.stdout.close)
        self.addCleanup(ctl.stderr.close)
        wait_for(lambda: "op=trace" in d.log(), 20, "it has begun")
        during()
        if seconds is None:
            ctl.send_signal(signal.SIGINT)
        status = ctl.wait(timeout=scaled(60, 300))
        return json.loads(path.read_text()), status, ctl.stderr.read().decode()

    def test_steps_and_requests(self):
        """Each step and each phase of a request is there once, and they agree with what was told."""
        def work():
            for _ in range(3):
                answers.append(w.generate(prompt="The quick brown fox. " * 20, max_tokens=9,
                                          sampling={"ignore_eos": True, "temperature": 0}))

        answers = []
        with Daemon(SMALL) as d, d.connect() as w:
            before = w.status().get("steps", 0)
            trace, status, said = self.trace(d, None, work)
            steps = w.status()["steps"] - before
        self.assertEqual((status, said), (130, ""))
        self.assertEqual(trace["otherData"]["dropped"], 0)
        kinds = check_events(self, trace)
        found = [e for e in kinds["X"] if e["name"] in ("prefill", "decode", "mixed")]
        self.assertEqual([e["args"]["step"] for e in found], list(range(before + 1, before + steps + 1)))
        usage = [a.done["usage"] for a in answers]
        self.assertEqual(sum(e["args"]["prompt_tokens"] for e in found),
                         sum(u["prompt_tokens"] - u.get("cached_tokens", 0) for u in usage))
        self.assertEqual({e["name"] for e in kinds["X"]} - PARTS, {"prefill", "decode"})
        self.assertEqual(len(lives(kinds)), 3)
        for life, answer in zip(lives(kinds).values(), answers):
            self.assertEqual([name for what, name, _ in life if what == "b"], PHASES)
            self.assertEqual([name for what, name, _ in life if what == "e"], PHASES)
            times = {(what, name): ts for what, name, ts in life}
            total = times["e", "decode"] - times["b", "encode"]
            self.assertAlmostEqual(total / 1e3, answer.done["timing"]["total_ms"], delta=1)
        ends = [e["args"]["finish_reason"] for e in kinds["e"] if "args" in e]
        self.assertEqual(ends, ["length"] * 3)

    def test_nothing_of_a_text(self):
        """Prompts and answers are not in it."""
        with Daemon(SMALL) as d, d.connect() as w:
            self.trace(d, 1, lambda: w.generate(**{**GOOD, "prompt": "correct horse battery"}))
            self.assertNotIn("horse", (d.folder / "trace.json").read_text())

    def test_request_in_progress(self):
        """One that runs before the trace, and after it, is there from its beginning, without an end."""
        with Daemon(SMALL) as d, d.connect() as w:
            w.begin(1, {**LONG, "max_tokens": 4000})
            kinds = check_events(self, self.trace(d, 0.5)[0])
            (life,) = lives(kinds).values()
            self.assertEqual([name for what, name, _ in life if what == "b"], PHASES)
            self.assertEqual([name for what, name, _ in life if what == "e"], PHASES[:-1])
            self.assertGreater(len([e for e in kinds["X"] if e["name"] == "decode"]), 3)

    def test_preemptions(self):
        """A sequence that gives way is seen, and each time."""
        def work():
            for i in range(1, 9):
                w.send(i, generate={**LONG, "max_tokens": 250})
            answers.update(w.collect(range(1, 9)))

        answers = {}
        with Daemon("cache.kv_memory=8M") as d, d.connect() as w:
            kinds = check_events(self, self.trace(d, None, work)[0])
        n = sum(a.done["usage"]["preemptions"] for a in answers.values())
        self.assertGreater(n, 0)
        self.assertEqual(len([e for e in kinds["n"] if e["name"] == "preempted"]), n)

    def test_one_at_a_time(self):
        """A second one is refused, to be tried again; and it may begin when the first has ended, or
        its client has left."""
        with Daemon(SMALL) as d:
            with d.connect() as w, d.connect() as other:
                w.send(1, trace={"duration_ms": 600000})
                wait_for(lambda: "op=trace" in d.log(), 20, "it has begun")
                error = other.ask(trace={"duration_ms": 1})["error"]
                self.assertEqual((error["code"], error["retryable"]), ("ERROR_UNAVAILABLE", True))
                self.assertIn("another trace", error["message"])
            with d.connect() as w:
                wait_for(lambda: "error" not in w.ask(trace={"duration_ms": 1}), 20, "it is free again")
                d.wait_idle()

    def test_interrupted(self):
        """Ctrl-C ends it, and the file is whole."""
        with Daemon(SMALL) as d, d.connect() as w:
            ctl = d.ctl_start("trace", "--seconds", "600", d.folder / "trace.json")
            wait_for(lambda: "op=trace" in d.log(), 20, "it has begun")
            w.generate(**GOOD)
            ctl.send_signal(signal.SIGINT)
            ctl.communicate(timeout=scaled(20, 60))
            self.assertEqual(ctl.returncode, 130)
            kinds = check_events(self, json.loads((d.folder / "trace.json").read_text()))
            self.assertEqual(len(lives(kinds)), 1)

    def test_daemon_stops(self):
        """A trace does not keep the daemon from its end, and its file is whole."""
        with Daemon(SMALL) as d, d.connect() as w:
            def stop():
                w.generate(**GOOD)
                w.close()
                began = time.monotonic()
                self.assertEqual(d.terminate(), 0)
                self.assertLess(time.monotonic() - began, scaled(5, 30))

            trace, status, said = self.trace(d, 600, stop)
            self.assertEqual((status, said), (0, ""))
            self.assertEqual(len(lives(check_events(self, trace))), 1)

    def test_daemon_dies(self):
        """What had been sent by then is in the file, and the exit code says that it is not all."""
        with Daemon(SMALL) as d, d.connect() as w:
            def die():
                w.generate(**GOOD)
                time.sleep(0.3)  # the engine is idle: it has sent what there is
                d.kill()

            trace, status, said = self.trace(d, 600, die)
            self.assertEqual(status, 3 if "not running" in said else 1, said)
            self.assertEqual((trace["otherData"]["complete"], "dropped" in trace["otherData"]),
                             (False, False))
            self.assertEqual(len(lives(check_events(self, trace))), 1)

    def test_client_that_does_not_read(self):
        """Records that are not read in time are dropped and counted; nobody waits for them."""
        with self.instant_daemon(0, "limits.output_pause_bytes=64K") as d, d.connect() as w, \
                d.connect() as other:
            w.sock.setsockopt(1, 8, 4096)  # SO_RCVBUF
            w.send(1, trace={"duration_ms": 2000})
            slowest, end = 0, time.monotonic() + 2.2
            while time.monotonic() < end:
                began = time.monotonic()
                other.generate(prompt_ids={"ids": [1]}, max_tokens=50, sampling={"ignore_eos": True})
                slowest = max(slowest, time.monotonic() - began)
            n = 0
            while "traced" not in (reply := w.receive()):
                n += len(reply["trace_chunk"]["records"])
            self.assertGreater(n, 0)
            self.assertGreater(reply["traced"]["dropped"], 1000)
            print(f"{n} records, {reply['traced']['dropped']} dropped; the slowest request beside "
                  f"took {1e3 * slowest:.0f} ms")
            self.assertEqual(w.status()["state"], "STATE_READY")

    def test_records_over_a_limit(self):
        """Where the daemon may not send that much at once, the trace ends with one error."""
        with self.instant_daemon(0, "limits.output_bytes=4K", "limits.output_pause_bytes=4K") as d, \
                d.connect() as w, d.connect() as other:
            w.send(1, trace={"duration_ms": 60000})
            wait_for(lambda: "op=trace" in d.log(), 20, "it has begun")
            for first in range(1, 5001, 1000):  # the kernel's buffers take some, and some are dropped
                requests = range(first, first + 1000)
                other.raw(b"".join(wire.frame(i, generate={"prompt_ids": {"ids": [1]},
                                                           "max_tokens": 2}) for i in requests))
                other.collect(requests)
            while "trace_chunk" in (reply := w.receive()):
                pass
            self.assertEqual(reply["error"]["code"], "ERROR_TOO_LONG")
            d.wait_idle()
            wait_for(lambda: "error" not in w.ask(trace={"duration_ms": 1}), 20, "it is free again")
            self.assertEqual(w.status()["state"], "STATE_READY")

    def test_to_stdout(self):
        """“-” is stdout."""
        with Daemon(SMALL) as d:
            done = d.ctl("trace", "--seconds", "0.1", "-")
            check_events(self, json.loads(done.stdout))

    def test_refused(self):
        """Wrong durations, users, and a file that cannot be written; what is there stays."""
        with Daemon(SMALL) as d, d.connect() as w:
            for ms in 0, 600001, 0xFFFFFFFF:
                error = w.ask(trace={"duration_ms": ms})["error"]
                self.assertEqual((error["code"], error["field"]), ("ERROR_INVALID", "duration_ms"))
            for words in ((), ("--seconds", "0", "x"), ("--seconds", "601", "x"), ("x", "y")):
                self.assertEqual(d.ctl("trace", *words, check=False).returncode, 2, words)
            done = d.ctl("trace", d.folder / "absent" / "x", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"absent", done.stderr)
            w.send(1, trace={"duration_ms": 600000})
            kept = d.folder / "kept.json"
            kept.write_text("mine")
            wait_for(lambda: d.ctl("trace", kept, "--seconds", "0.1", check=False).returncode == 4,
                     20, "it is refused")
            self.assertEqual(kept.read_text(), "mine")

    def test_denied(self):
        """It shows all users' requests, so it is for administrators."""
        roles.need_root()
        with Daemon(SMALL) as d, roles.connect(d, roles.USER) as w:
            self.assertEqual(w.ask(trace={})["error"]["code"], "ERROR_DENIED")

    def test_many_requests_come_and_go(self):
        """Under load it is as complete, and the answers are the same."""
        with Daemon(SMALL) as d, d.connect() as w:
            expected = w.generate(**GOOD).outcome()
            got = []

            def load():
                with d.connect() as other:
                    for i in range(1, 201):
                        other.send(i, generate=GOOD)
                    got.extend(a.outcome() for a in other.collect(range(1, 201)).values())

            def work():
                threads = [threading.Thread(target=load) for _ in range(3)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()

            trace, status, _ = self.trace(d, None, work)
            self.assertEqual(status, 130)
            self.assertEqual(set(map(str, got)), {str(expected)})
            self.assertEqual(len(got), 600)
            self.assertEqual(trace["otherData"]["dropped"], 0)
            of = lives(check_events(self, trace))
            self.assertEqual(len(of), 600)
            for life in of.values():
                self.assertEqual([name for what, name, _ in life if what == "e"], PHASES)
