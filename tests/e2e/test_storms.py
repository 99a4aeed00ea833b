"""Storms: killed and started again and again, stopped under load, signals and clocks gone mad."""

import collections
import contextlib
import json
import random
import signal
import threading
import time
import unittest

import embedder
import harness
import mix
import wire
from gateway import Gateway, Reply
from harness import GOOD, Case, Daemon, at_once, beside, config, scaled, wait_for

LONG = {**harness.LONG, "max_tokens": 12000}
SMALL = "cache.kv_memory=256M"  # LONG fits


class Restart(Case):
    def test_killed_and_started(self):
        """kill -9 in the midst of work, and a start in the same folder: ready each time, with
        nothing of the time before."""
        rounds = scaled(200, 10)
        folder = self.temporary_folder()
        files, slowest = None, 0
        for i in range(rounds):
            d = Daemon(SMALL, folder=folder)
            slowest = max(slowest, d.ready_seconds)
            try:
                with d.connect() as w:
                    s = w.status()
                    self.assertEqual(s["state"], "STATE_READY")
                    self.assertEqual(s["connections"], 1, "the one that asks")
                    self.assertEqual(s["blocks"].get("used", 0), 0)
                    self.assertEqual(s.get("output_tokens", 0), 0)
                    there = sorted(p.name for p in folder.iterdir())
                    files = files or there
                    self.assertEqual(there, files, "no file is left over or lost")
                    if i % 2:  # under work, and with bytes of a frame on their way
                        w.begin(1, LONG)
                        w.raw(wire.frame(2, generate=GOOD)[:-3])
                    elif i == 0:
                        self.assertIsNone(w.generate(**GOOD).error)
                    d.kill()
                    with self.assertRaises(wire.Closed):
                        while True:
                            w.receive()
            finally:
                d.kill()
        print(f"{rounds} starts after kill -9, the slowest was ready after {slowest:.2f} s")


class Drain(Case):
    """SIGTERM whenever it may come."""

    def load(self, w, rng, i):
        """Requests of every kind, and the proof that all of them are accepted."""
        for id_ in range(1, 5):
            kind = rng.randrange(4)
            if kind == 0:
                w.send(id_, generate={**LONG, "max_tokens": rng.randrange(1, 60)})
            elif kind == 1:
                w.send(id_, generate={**LONG, "max_tokens": rng.randrange(1, 20), "n": 3})
            elif kind == 2:
                w.send(id_, tokenize={"text": "x y z " * rng.randrange(1, 800)})
            else:
                w.send(id_, generate={**GOOD, "prompt": "word " * rng.randrange(1, 100)})
        if i % 25 == 24:
            w.send(5, generate=LONG)  # over the deadline of the drain
        w.send(99, get_status={})

    def read_to_the_end(self, w, wanted):
        terminal = {}
        try:
            while True:
                reply = w.receive()
                id_ = reply.get("id", 0)
                if "delta" in reply:
                    self.assertNotIn(id_, terminal, "nothing comes after the end")
                    continue
                self.assertNotIn(id_, terminal, "one terminal event a request")
                terminal[id_] = reply
        except wire.Closed:
            pass
        self.assertTrue(terminal.pop(0)["error"]["reconnect"], "the last word")
        self.assertEqual(sorted(terminal), sorted(wanted))

    def test_terminated_under_load(self):
        """Exit 0 inside the deadline; each accepted request has one terminal event."""
        rounds, clients = scaled(200, 10), 3
        rng = random.Random(3)
        slowest = 0
        for i in range(rounds):
            with Daemon(SMALL, "daemon.drain_timeout_s=1") as d:
                wires = [d.connect() for _ in range(clients)]
                for w in wires:
                    self.load(w, rng, i)
                for w in wires:  # what was read until here cannot be taken back
                    kept = []
                    while not kept or "status" not in kept[-1]:
                        kept.append(w.receive())
                    w.buffer = b"".join(wire.varint(len(raw)) + raw for raw in (
                        wire.encode("ServerFrame", r) for r in kept)) + w.buffer
                time.sleep(rng.random() * 0.05)
                began = time.monotonic()
                d.process.send_signal(signal.SIGTERM)
                wanted = [1, 2, 3, 4, 99] + [5] * (i % 25 == 24)
                at_once(lambda w: self.read_to_the_end(w, wanted), wires)
                self.assertEqual(d.process.wait(timeout=scaled(20, 100)), 0)
                slowest = max(slowest, time.monotonic() - began)
                self.assertFalse(d.socket.exists())
                for w in wires:
                    w.close()
        # A second to go on, five for the engine to let go, two for the clients to read.
        self.assertLess(slowest, scaled(8, 60))
        print(f"{rounds} drains under load, the slowest took {slowest:.2f} s")


class Http(Case):
    """Either program goes while eight clients ask nvllm-openai."""

    def ask(self, gateway, stream, max_tokens=30):
        """How an answer ended: whole, or with an error that says so; None where the connection was not
        served. One that is cut without a word fails."""
        c = gateway.connection()
        try:
            try:
                c.request("POST", "/v1/completions", json.dumps(
                    {"prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}))
                response = c.getresponse()
            except (ConnectionError, FileNotFoundError):
                return None
            r = Reply(response)
        finally:
            c.close()
        if r.status != 200:
            self.assertEqual(r.error[0], 503)
            return "refused"
        if not stream or r.text.endswith("data: [DONE]\n\n"):
            return "whole"
        self.assertTrue(r.text.split("\n\n")[-2].startswith('data: {"error":'), r.text[-200:])
        return "told"

    def test_daemon_killed_and_started(self):
        """kill -9 of nvllmd: each request is answered or told, and nvllm-openai goes on."""
        rounds, ends = scaled(20, 5), []
        folder = self.temporary_folder()
        rng = random.Random(4)
        d = Daemon(SMALL, folder=folder)
        with Gateway(d.socket) as gateway:
            def step():
                ends.append(self.ask(gateway, rng.random() < 0.5))
                time.sleep(0.01)

            self.assertEqual(self.ask(gateway, True), "whole")
            before = gateway.n_descriptors()
            with beside(step, 8):
                for _ in range(rounds):
                    seen = len(ends)
                    wait_for(lambda: "whole" in ends[seen:], scaled(10, 60), "an answer")
                    time.sleep(rng.random() * 0.2)
                    d.kill()
                    d = Daemon(SMALL, folder=folder)
            wait_for(lambda: self.ask(gateway, True) == "whole", scaled(10, 60), "it goes on")
            wait_for(lambda: gateway.n_descriptors() <= before, 10, "no descriptor is left")
        with d:
            pass
        n = collections.Counter(ends)
        self.assertNotIn(None, n, "nvllm-openai is always there")
        self.assertGreater(n["told"] + n["refused"], 0)
        print(f"{rounds} times kill -9 of nvllmd: {dict(n)}")

    def test_gateway_terminated(self):
        """SIGTERM of nvllm-openai: exit 0 inside its deadline, and each answer it began has an end."""
        rounds, ends, slowest = scaled(20, 5), collections.Counter(), 0
        rng = random.Random(5)
        with Daemon(SMALL) as d:
            for _ in range(rounds):
                with Gateway(d.socket, "--drain-timeout", 1) as gateway:
                    pause, whole, sent = 0.05 + rng.random() * 0.3, threading.Semaphore(0), []

                    def client(i):
                        got = []
                        while not got or got[-1]:
                            got.append(self.ask(gateway, i % 2 == 0, 30 if i else 12000))
                            if got[-1] == "whole":
                                whole.release()
                        return got

                    def stop():
                        for _ in range(2):  # which a slow machine takes some time for
                            whole.acquire(timeout=scaled(20, 100))
                        time.sleep(pause)
                        sent.append(time.monotonic())
                        gateway.process.send_signal(signal.SIGTERM)

                    stopper = threading.Thread(target=stop)
                    stopper.start()
                    for got in at_once(client, range(8)):
                        ends.update(got[:-1])
                    stopper.join()
                    self.assertEqual(gateway.process.wait(timeout=scaled(20, 100)), 0)
                    slowest = max(slowest, time.monotonic() - sent[0])
                    self.assertFalse(gateway.socket.exists())
            d.wait_idle()
        self.assertLess(slowest, scaled(4, 30))
        self.assertGreater(ends["whole"], rounds)
        self.assertGreater(ends["told"], 0)
        print(f"{rounds} times SIGTERM of nvllm-openai, the slowest took {slowest:.2f} s: {dict(ends)}")


class Operations(Case):
    """Whatever is asked for at once: each answer is as it is alone, or a named error."""

    def rounds(self, clients, n, stopping):
        """Of all clients at once; until the daemon stops, where it does."""
        def run(client):
            try:
                for _ in range(n):
                    client.round()
            except (wire.Closed, OSError, KeyError):  # KeyError: an error instead of a welcome
                if not stopping.is_set():
                    raise

        at_once(run, clients)

    def storm(self, *options, long=False):
        """In a daemon that is stopped in the midst of it, and in the next one."""
        folder = self.temporary_folder()
        file, model = folder / "nvllmd.conf", embedder.make(folder / "model")
        file.write_text("")
        seen, right = collections.Counter(), None
        for life in range(2):
            stopping = threading.Event()
            with Daemon("cache.kv_memory=8M", f"cache.folder={folder}", "daemon.drain_timeout_s=1", *options,
                        model=model, folder=folder, args=["--config", file]) as d:
                with d.connect() as w:
                    right = right or mix.Right(w, long)
                clients = [mix.Client(d, right, 10 * life + i, i == 0) for i in range(4)]
                rng = random.Random(life)

                def reload():
                    file.write_text(f"[daemon]\nidle_sleep_s = {rng.randrange(2)}\n")
                    d.process.send_signal(signal.SIGHUP)
                    time.sleep(rng.random() * 0.3)

                with beside(reload):
                    self.rounds(clients, scaled(8, 3), stopping)
                if life == 0:
                    stopping.set()
                    threading.Timer(rng.random() * 0.1, d.process.send_signal, [signal.SIGTERM]).start()
                    self.rounds(clients, 1000, stopping)
                    self.assertEqual(d.process.wait(timeout=scaled(60, 200)), 0)
                else:
                    clients[0].w.ask(clear_cache={"all": True})  # with what is pinned
                    d.wait_idle()
                for c in clients:
                    seen += c.seen
                    c.w.close()
        ends = collections.Counter()
        for (_, end), n in seen.items():
            ends[end] += n
        self.assertGreater(ends["whole"], 0)
        print(f"{sum(ends.values())} requests: {dict(ends)}")

    def test_without_a_tier(self):
        self.storm("scheduler.speculation=off")

    def test_host_and_disk(self):
        self.storm("cache.host_memory=12M", "cache.disk=64M")

    def test_draft_model_and_disk(self):
        self.storm(f"model.draft={harness.MODEL}", "cache.disk=24M")

    def test_ranks_and_offloaded(self):
        self.storm("model.tensor_parallel=2", "cache.host_memory=64M", long=True)


class Signals(Case):
    def test_signals_by_the_thousand(self):
        """Signals that ask for nothing, or for the same all the time, change no answer."""
        signals = [signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG,
                   signal.SIGCONT]
        with Daemon(SMALL) as d, d.connect() as w:
            request = {"prompt": "Hello", "max_tokens": scaled(300, 60), "stream": True,
                       "sampling": {"temperature": 0.7, "seed": 5, "ignore_eos": True}}
            expected = w.generate(**request).outcome()
            rng = random.Random(1)

            def storm():
                for _ in range(50):
                    d.process.send_signal(rng.choice(signals))
                time.sleep(0.001)

            with beside(storm):
                for _ in range(scaled(10, 3)):
                    self.assertEqual(w.generate(**request).outcome(), expected)
            self.assertEqual(d.status()["state"], "ready")

    def test_stopped_for_a_while(self):
        """Stopped and continued: a running request continues to the same end, and the watchdog does not
        take the engine for stalled."""
        with Daemon(SMALL, env={"WATCHDOG_USEC": "3000000"}) as d, d.connect() as w:
            request = {"prompt": "Hello", "max_tokens": 400, "stream": True,
                       "sampling": {"temperature": 0, "ignore_eos": True}}
            expected = w.generate(**request).outcome()
            w.send(50, generate=request)
            answer = wire.Answer()
            answer.take(w.receive())
            d.process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            d.process.send_signal(signal.SIGCONT)
            while not answer.take(w.receive()):
                pass
            self.assertEqual(answer.outcome(), expected)


class Loop(Case):
    def test_failing_loop(self):
        """Where the event loop fails the daemon says so and ends with status 1, whatever is under
        way."""
        if not config.loop:
            raise unittest.SkipTest("sanitizers must be loaded first: no failing loop")
        for n in 0, 1, 40:
            trigger = self.temporary_folder() / f"fail-{n}"
            with contextlib.ExitStack() as stack:
                d = Daemon(SMALL, env={"LD_PRELOAD": config.loop, "FAIL_LOOP": str(trigger)})
                stack.callback(d.close)
                w = stack.enter_context(d.connect())
                for i in range(1000, 1000 + n):
                    w.send(i, generate=LONG)
                w.status()
                trigger.touch()
                with contextlib.suppress(OSError):
                    w.send(999, get_status={})  # wakes it
                self.assertEqual(d.process.wait(timeout=scaled(20, 100)), 1)
                self.assertIn("event=loop_failed", d.log())


class Clocks(Case):
    def test_time_of_day_jumps(self):
        """The time of day leaps by ten years and back: deadlines and timeouts do not notice."""
        if not config.clock:
            raise unittest.SkipTest("sanitizers want to be loaded first: no jumping clock")
        with Daemon(SMALL, "limits.frame_timeout_s=2", "daemon.drain_timeout_s=2",
                    env={"LD_PRELOAD": config.clock}) as d, d.connect() as w:
            self.assertIsNone(w.generate(**GOOD).error)
            with d.connect() as half:
                half.raw(wire.frame(1, generate=GOOD)[:-2])
                began = time.monotonic()
                reply = half.receive()
                waited = time.monotonic() - began
                self.assertEqual(reply["error"]["code"], "ERROR_PROTOCOL")
                self.assertGreater(waited, 1.5)
                self.assertLess(waited, 10)
            began = time.monotonic()
            answer = w.generate(**LONG, deadline_ms=500)
            waited = time.monotonic() - began
            self.assertEqual(answer.choices[0].reason, "FINISH_DEADLINE")
            self.assertGreater(waited, 0.4)
            self.assertLess(waited, 5)
            self.assertLess(answer.done["timing"]["total_ms"], 5000)
            self.assertLess(w.status()["uptime_ms"], 60000)
