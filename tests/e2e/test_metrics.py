"""Metrics at metrics.path: what they count, who may read them, and what reading them costs."""

import contextlib
import grp
import json
import os
import pathlib
import random
import re
import shutil
import socket
import time

import roles
from harness import GOOD, LONG, ROOT, SMALL, Case, Daemon, beside, config, run_command, scaled, \
    wait_for
from metrics_text import Metrics
from test_hostile import loop_ms

OPENMETRICS = "application/openmetrics-text"
MONITORING = ROOT / "packaging" / "monitoring"


def get(path, head=b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", timeout=60):
    """(status, headers, body) of one request over a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(timeout)
        s.connect(str(path))
        s.sendall(head)
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while more := s.recv(1 << 16):
                data += more
    top, _, body = data.partition(b"\r\n\r\n")
    lines = top.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert len(body) == int(headers["Content-Length"]), "the answer is cut"
    return int(lines[0].split()[1]), headers, body.decode()


def scrape(path, openmetrics=False):
    head = f"GET /metrics HTTP/1.1\r\nHost: x\r\naccept: text/html, {OPENMETRICS};q=0.5\r\n\r\n"
    status, headers, body = get(path, head.encode()) if openmetrics else get(path)
    assert status == 200, body
    assert headers["Content-Type"].startswith(OPENMETRICS if openmetrics else "text/plain;")
    return Metrics(body, openmetrics)


class Served(Case):
    def serving(self, *options, **others):
        """A daemon with a socket of metrics, which is its member of that name."""
        folder = self.temporary_folder()
        d = Daemon(SMALL, f"metrics.path={folder / 'metrics.sock'}", *options, folder=folder, **others)
        d.metrics = folder / "metrics.sock"
        return d


class Values(Served):
    def outcomes(self, d):
        found = scrape(d.metrics).of("nvllm_requests_total")
        return {key.split('"')[1]: int(n) for key, n in found.items()}

    def test_outcomes(self):
        """A generate request is counted once, by how its text or its error ended it; other requests
        are not."""
        with self.serving("limits.requests_per_connection=2", "limits.max_tokens=3000") as d, \
                d.connect() as w:
            self.assertEqual(set(self.outcomes(d).values()), {0})
            w.status()
            w.ask(tokenize={"text": b"a"})
            w.ask(list_requests={})
            for expected, request in (
                    ("length", GOOD), ("length", {**GOOD, "stream": True}),
                    ("stop", {**LONG, "max_tokens": 200, "stop": [b" "]}),
                    ("deadline", {**LONG, "deadline_ms": 1, "max_tokens": 3000}),
                    ("invalid", {**GOOD, "sampling": {"top_p": 7.0}}),
                    ("too_long", {**GOOD, "max_tokens": 1 << 30}),
                    ("too_long", {"prompt_ids": {"ids": [7] * 5000}})):
                with self.subTest(expected, request=str(request)[:80]):
                    before = self.outcomes(d)
                    w.generate(**request)
                    after = self.outcomes(d)
                    self.assertEqual({k: n - before[k] for k, n in after.items() if n != before[k]},
                                     {expected: 1})
            w.begin(1001, LONG)
            w.begin(1002, LONG)
            w.send(1003, generate=GOOD)
            w.send(1004, cancel={"target": 1001})
            while "done" not in (reply := w.receive()):
                pass
            self.assertEqual(reply["id"], 1001)
            w.close()  # the other one is cancelled, too
            d.wait_idle()
            found = self.outcomes(d)
            self.assertEqual((found["busy"], found["cancelled"]), (1, 2))

    def test_answer_over_a_limit(self):
        """It is counted as what its client is told, and not again when the engine has ended it."""
        with self.serving("limits.output_bytes=4096") as d, d.connect() as w:
            answer = w.generate(prompt="Hello", max_tokens=200,
                                sampling={"logprobs": 20, "ignore_eos": True})
            self.assertEqual(answer.error["code"], "ERROR_TOO_LONG")
            d.wait_idle()
            found = {k: n for k, n in self.outcomes(d).items() if n}
            self.assertEqual(found, {"too_long": 1})

    def test_drained(self):
        """What a draining daemon refuses, and its state."""
        with self.serving() as d, d.connect() as w:
            w.ask(drain={"drain_timeout_ms": 60000})
            w.generate(**GOOD)
            m = scrape(d.metrics)
            self.assertEqual(m["nvllm_requests_total", 'outcome="unavailable"'], 1)
            self.assertEqual(m["nvllm_state", 'state="draining"'], 1)
            self.assertEqual(m["nvllm_state", 'state="ready"'], 0)
            w.ask(resume={})
            self.assertEqual(scrape(d.metrics)["nvllm_state", 'state="ready"'], 1)

    def test_requests_move_the_values(self):
        """Tokens, times and blocks are those that the clients are told."""
        with self.serving() as d, d.connect() as w:
            before = scrape(d.metrics)
            answers = [w.generate(prompt="The quick brown fox jumps over the lazy dog. " * 3,
                                  max_tokens=10, n=n, stream=True,
                                  sampling={"temperature": 0, "ignore_eos": True})
                       for n in (1, 1, 2)]
            m = scrape(d.metrics)
            usages = [a.done["usage"] for a in answers]
            tokens = sum(u["completion_tokens"] for u in usages)
            self.assertEqual(tokens, 40)
            self.assertEqual(m["nvllm_output_tokens_total"], tokens)
            self.assertEqual(m["nvllm_request_output_tokens_sum"], tokens)
            self.assertEqual(m["nvllm_request_prompt_tokens_sum"],
                             sum(u["prompt_tokens"] for u in usages))
            for name in ("time_to_first_token", "request_queue", "request_duration"):
                self.assertEqual(m[f"nvllm_{name}_seconds_count"], 3, name)
            self.assertEqual(m["nvllm_time_between_tokens_seconds_count"], tokens - 4)
            told = sum(a.done["timing"]["total_ms"] for a in answers) / 1e3
            self.assertAlmostEqual(m["nvllm_request_duration_seconds_sum"], told, places=3)
            told = sum(a.done["timing"]["ttft_ms"] for a in answers) / 1e3
            self.assertAlmostEqual(m["nvllm_time_to_first_token_seconds_sum"], told, places=3)
            self.assertGreater(m["nvllm_prefix_cache_hit_tokens_total"], 0)
            self.assertGreaterEqual(m["nvllm_prefix_cache_queried_tokens_total"],
                                    m["nvllm_prefix_cache_hit_tokens_total"])
            status = w.status()
            for state in "used", "cached", "free":
                self.assertEqual(m["nvllm_blocks", f'tier="device",state="{state}"'],
                                 status["blocks"].get(state, 0))
            self.assertEqual(m["nvllm_steps_total"], status["steps"])
            self.assertEqual(m["nvllm_step_duration_seconds_count"], status["steps"])
            self.assertEqual(m["nvllm_memory_bytes", 'use="weights"'],
                             status["memory"]["weight_bytes"])
            parts = m.of("nvllm_engine_part_seconds_total")
            self.assertGreater(parts['part="wait"'], 0)
            self.assertLess(sum(parts.values()), m["nvllm_uptime_seconds"])
            self.assertGreater(m["nvllm_uptime_seconds"], before["nvllm_uptime_seconds"])

    def test_running_and_preempted(self):
        """What is going on now, and that sequences had to give way."""
        with self.serving("cache.kv_memory=8M") as d, d.connect() as w:
            for i in range(1, 9):
                w.send(i, generate={**LONG, "max_tokens": 400})

            def all_eight():
                m = scrape(d.metrics)
                self.assertEqual(m["nvllm_connections"], 1)
                return m["nvllm_requests_running"] + m["nvllm_requests_waiting"] == 8

            wait_for(all_eight, scaled(20, 60), "all are on the way")
            answers = w.collect(range(1, 9))
            preemptions = sum(a.done["usage"]["preemptions"] for a in answers.values())
            self.assertGreater(preemptions, 0)
            self.assertEqual(scrape(d.metrics)["nvllm_preemptions_total"], preemptions)

    def test_ranks(self):
        """Each rank is told where it has a device; on the CPU there is their number alone."""
        with self.serving("model.tensor_parallel=2") as d:
            m = scrape(d.metrics)
            self.assertEqual(m["nvllm_ranks"], 2)
            self.assertFalse([k for k in m if "gpu" in k[0] or "rank_" in k[0]])

    def test_while_loading(self):
        """There are metrics from the start; the state says that the model is being loaded."""
        with self.serving(wait=False) as d:
            wait_for(d.metrics.exists, scaled(10, 60), "the socket is there")
            m = wait_for(lambda: self.try_scrape(d), scaled(10, 60), "somebody answers")
            self.assertEqual(sum(m.of("nvllm_state").values()), 1)
            d.wait_ready()
            self.assertEqual(scrape(d.metrics)["nvllm_state", 'state="ready"'], 1)

    def try_scrape(self, d):
        with contextlib.suppress(OSError):
            return scrape(d.metrics)


class Text(Served):
    def test_both_formats(self):
        """The same values in OpenMetrics, for who accepts it, and in the format before it."""
        with self.serving() as d:
            d.generate("Hello", "--max-tokens", "3")
            new, old = scrape(d.metrics, openmetrics=True), scrape(d.metrics)
            self.assertEqual(set(new), set(old))
            self.assertEqual(new.types["nvllm_requests"], "counter")
            self.assertEqual(old.types["nvllm_requests_total"], "counter")
            self.assertEqual(new.types["nvllm_build"], "info")
            self.assertGreater(len(old.types), 25)
            for name in old.types:
                self.assertTrue(name.startswith("nvllm_"), name)

    def test_dashboard_and_alerts(self):
        """They ask for metrics that there are, and every file is what it should be."""
        dashboard = json.loads((MONITORING / "nvllm-dashboard.json").read_text())
        asked = " ".join(t["expr"] for p in dashboard["panels"] for t in p["targets"])
        asked += (MONITORING / "nvllm-alerts.yml").read_text()
        source = (ROOT / "daemon" / "metrics_text.c").read_text()
        ranks = {n for n in re.findall(r'"(nvllm_\w+)"', source) if "_rank_" in n or "_gpu" in n}
        with self.serving() as d:
            known = {k if isinstance(k, str) else k[0] for k in scrape(d.metrics)} | ranks
        named = set(re.findall(r"\bnvllm_\w+", asked))
        self.assertGreater(len(named), 20)
        self.assertEqual(named - known, set())
        places = [tuple(p["gridPos"].values()) for p in dashboard["panels"]]
        self.assertEqual(len(set(places)), len(places))

    def test_names_are_quoted(self):
        """A model's name may hold anything, and stays within its quotes."""
        folder = self.temporary_folder() / 'a"b\\c\nd'
        shutil.copytree(ROOT / "packaging" / "models" / "nvllm-tiny", folder)
        with self.serving(model=folder) as d:
            (labels,) = scrape(d.metrics).of("nvllm_model_info")
            self.assertTrue(labels.startswith(r'model="a\"b\\c'), labels)


class Http(Served):
    def test_what_is_not_answered(self):
        """Other methods, other paths and what is no HTTP are refused in words of HTTP."""
        with self.serving() as d:
            for status, head in (
                    (200, b"GET / HTTP/1.0\r\n\r\n"), (200, b"GET /metrics?x=y HTTP/1.1\n\n"),
                    (404, b"GET /etc/passwd HTTP/1.1\r\n\r\n"),
                    (405, b"POST /metrics HTTP/1.1\r\n\r\n"), (405, b"HEAD / HTTP/1.1\r\n\r\n"),
                    (400, b"GET /metrics HTTP/2\r\n\r\n"), (400, b"\r\n\r\n"),
                    (400, b"GET /metrics\r\n\r\n"), (400, b"G\0ET / HTTP/1.1\r\n\r\n"),
                    (400, b"GET /" + b"a" * 4000 + b" HTTP/1.1\r\n\r\n"),
                    (431, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000)):
                with self.subTest(head[:40]):
                    self.assertEqual(get(d.metrics, head)[0], status)

    def test_byte_by_byte(self):
        """A request may come in pieces."""
        with self.serving() as d, socket.socket(socket.AF_UNIX) as s:
            s.connect(str(d.metrics))
            for byte in b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n":
                s.sendall(bytes([byte]))
            self.assertTrue(s.recv(15).startswith(b"HTTP/1.1 200 OK"))

    def hostile(self, d, rng):
        """One connection that is held, and what came of it."""
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(5)
        with contextlib.suppress(OSError):
            s.connect(str(d.metrics))
            what = rng.randrange(5)
            if what == 0:
                s.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
            elif what == 1:
                s.sendall(b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 100000)
            elif what == 2:
                s.sendall(rng.randbytes(rng.randrange(1, 20000)))
            elif what == 3:
                s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 200)  # and reads nothing
        return s

    def test_hostile_bytes(self):
        """Half requests, endless heads, noise, and clients that do not read take memory that is
        bounded and no time of the loop; others are answered meanwhile."""
        rng = random.Random(11)
        with self.serving() as d, d.connect() as w:
            w.generate(**GOOD)
            for _ in range(50):
                self.hostile(d, rng).close()
            scrape(d.metrics)
            d.wait_filled()
            rss, loop, fds = d.rss_kib(), loop_ms(d), d.n_descriptors()
            held, n = [], scaled(2000, 200)
            for i in range(n):
                held.append(self.hostile(d, rng))
                if len(held) > 100:
                    held.pop(0).close()
                if i % 100 == 0:
                    self.assertEqual(w.status()["state"], "STATE_READY")
                    scrape(d.metrics)
            self.assertLess(d.n_descriptors(), fds + 20)
            for s in held:
                s.close()
            loop = loop_ms(d) - loop
            print(f"{n} hostile clients: {loop:.1f} ms of the loop, "
                  f"{d.rss_kib() - rss} KiB of memory")
            self.assertLess(loop, scaled(100, 2000))
            self.assertLess(d.rss_kib() - rss, scaled(4, 100) * 1024)
            wait_for(lambda: d.n_descriptors() <= fds, 20, "no connection is left")

    def test_silent_clients_are_left(self):
        """Who says nothing, or not all, is disconnected after some seconds."""
        with self.serving() as d, contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
            for s, request in zip(silent, (b"", b"GET")):
                s.settimeout(scaled(20, 60))
                s.connect(str(d.metrics))
                s.sendall(request)
            for s in silent:
                self.assertEqual(s.recv(1), b"")


class Cost(Served):
    most_ms = 2

    def test_scrape(self):
        """A scrape takes next to nothing of the loop that clients wait for, with 200 of them connected
        and requests running."""
        with self.serving("limits.connections_per_uid=300") as d, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(d.connect()) for _ in range(200)]
            for w in clients:
                w.generate(**GOOD)
            idle = loop_ms(d)
            n = scaled(50, 10)
            began = time.monotonic()
            for _ in range(n):
                m = scrape(d.metrics)
            took = (time.monotonic() - began) / n * 1e3
            each = (loop_ms(d) - idle) / n
            self.assertEqual(m["nvllm_connections"], 200)
            self.assertEqual(m["nvllm_requests_total", 'outcome="length"'], 200)
            print(f"a scrape: {each:.3f} ms of the loop, answered after {took:.2f} ms")
            self.assertLess(each, scaled(self.most_ms, 20 * self.most_ms))

    def test_scrapes_beside_requests(self):
        """Scrapes without end change no answer."""
        with self.serving() as d, d.connect() as w:
            expected = w.generate(**GOOD).outcome()
            with beside(lambda: scrape(d.metrics), n=4):
                for _ in range(scaled(100, 20)):
                    self.assertEqual(w.generate(**GOOD).outcome(), expected)


class File(Case):
    def writing(self, *options):
        folder = self.temporary_folder()
        path = folder / "nvllm.prom"
        return path, Daemon(SMALL, f"metrics.path={path}", "metrics.interval_s=1", *options,
                            folder=folder)

    def test_is_whole_at_any_time(self):
        """It is replaced at once: a reader never finds a part of it, or none; and it goes with the
        daemon."""
        path, d = self.writing()
        with d:
            seen = set()

            def read():
                seen.add(Metrics(path.read_text(), False)["nvllm_uptime_seconds"])

            with beside(read, n=2):
                wait_for(lambda: len(seen) >= 3, 30, "it is written again and again")
            # But for the moment in which the next one is written beside it.
            wait_for(lambda: [p.name for p in path.parent.iterdir() if ".prom" in p.name] ==
                     ["nvllm.prom"], 30, "it is the only one")
        self.assertFalse(path.exists())

    def test_mode(self):
        """Nobody but the daemon may write it, whatever the mode says."""
        for mode, expected in ("0660", 0o640), ("0666", 0o644), ("0", 0o600):
            path, d = self.writing(f"metrics.mode={mode}")
            with d:
                self.assertEqual(path.stat().st_mode & 0o777, expected)

    def test_what_lies_there_already(self):
        """An old file, and a link in the place of the new one, are replaced and not followed."""
        folder = self.temporary_folder()
        other = folder / "other"
        other.write_text("mine")
        (folder / "nvllm.prom").write_text("old")
        (folder / "nvllm.prom.tmp").symlink_to(other)
        with Daemon(SMALL, f"metrics.path={folder / 'nvllm.prom'}", folder=folder):
            Metrics((folder / "nvllm.prom").read_text(), False)
        self.assertEqual(other.read_text(), "mine")

    def test_folder_that_goes(self):
        """The daemon serves on, and says once what is wrong."""
        folder = self.temporary_folder()
        (folder / "sub").mkdir()
        with Daemon(SMALL, f"metrics.path={folder / 'sub' / 'nvllm.prom'}", "metrics.interval_s=1",
                    folder=folder) as d:
            shutil.rmtree(folder / "sub")
            wait_for(lambda: "event=metrics_failed" in d.log(), 20, "it is in the log")
            time.sleep(2.5)
            self.assertEqual(d.log().count("event=metrics_failed"), 1)
            self.assertEqual(len(d.generate("Hello", "--max-tokens", "1")["token_ids"]), 1)


class Rights(Served):
    def test_mode_and_group(self):
        """By default the daemon's user and root alone; with a group and a mode, others."""
        roles.need_root()
        group = roles.group_name()
        gid = grp.getgrnam(group).gr_gid
        for options, members, others in (((), False, False),
                                         ((f"metrics.group={group}",), True, False),
                                         (("metrics.mode=0666",), True, True),
                                         ((f"metrics.group={group}", "metrics.mode=0600"),
                                          False, False)):
            with self.subTest(options), self.serving(*options) as d:
                os.chmod(d.folder, 0o755)
                scrape(d.metrics)
                for allowed, groups in (members, [gid]), (others, []):
                    with roles.acting_as(roles.OTHER, groups=groups):
                        if allowed:
                            scrape(d.metrics)
                        else:
                            self.assertRaises(PermissionError, scrape, d.metrics)

    def test_nothing_of_a_request(self):
        """No user, no prompt, no answer is in them."""
        roles.need_root()
        secret = "correct horse battery staple"
        with self.serving() as d, roles.connect(d, roles.USER) as w:
            w.generate(prompt=secret, max_tokens=3, cache_salt=b"saltiness")
            text = get(d.metrics)[2]
            for word in "horse", "saltiness", str(roles.USER):
                self.assertNotIn(word, text)


class Start(Case):
    """What a start says, and check-config before it."""

    def check(self, *options):
        args = [x for o in options for x in ("--set", o)]
        done = run_command([config.nvllmd, "check-config", "--json", "--backend", "cpu", "--model",
                            ROOT / "packaging" / "models" / "nvllm-tiny", "--socket",
                            self.folder / "n.sock", *args], check=False)
        return {f["level"]: f for f in json.loads(done.stdout)["findings"]
                if f["about"] == "metrics"}

    def setUp(self):
        self.folder = self.temporary_folder()

    def test_check_config(self):
        """A path that would work, and those that would not, each with what to do."""
        self.assertEqual(self.check(), {})
        for name in "m.sock", "m.prom":
            good, bad = self.folder / name, self.folder / "absent" / name
            self.assertIn(str(good), self.check(f"metrics.path={good}")["ok"]["text"])
            wrong = self.check(f"metrics.path={bad}")["wrong"]
            self.assertIn("folder", wrong["text"])
            self.assertIn(str(bad.parent), wrong["fix"])
            wrong = self.check(f"metrics.path={good}", "metrics.group=no-such-group")["wrong"]
            self.assertIn("metrics.group", wrong["text"])
        same = self.check(f"metrics.path={self.folder / 'n.sock'}")["wrong"]
        self.assertIn("metrics.path", same["text"])

    def test_daemon_says_the_same(self):
        """It does not start, and names the path."""
        for name in "m.sock", "m.prom":
            path = self.folder / "absent" / name
            d = Daemon(SMALL, f"metrics.path={path}", wait=False)
            self.addCleanup(d.close)
            self.assertEqual(d.process.wait(timeout=scaled(10, 60)), 2)
            self.assertIn(str(path), d.log())

    def test_reload(self):
        """A change needs a restart."""
        path = self.folder / "nvllmd.conf"
        path.write_text("[metrics]\ninterval_s = 10\n")
        with Daemon(SMALL, args=("--config", path)) as d:
            path.write_text("[metrics]\ninterval_s = 20\n")
            done = json.loads(d.ctl("reload", "--json").stdout)
            self.assertEqual(done, {"changed": [], "needs_restart": ["metrics.interval_s"]})


class Devices(Served):
    """With a backend that says it has a device, and a library that stands in for the driver's."""

    def device_daemon(self, ms=0, library=True):
        folder = self.temporary_folder()
        d = self.instant_daemon(0, f"metrics.path={folder / 'metrics.sock'}", env={
            "LD_LIBRARY_PATH": str(pathlib.Path(config.nvml).parent if library else folder),
            "FAKE_NVML_MS": str(ms)})
        d.metrics = folder / "metrics.sock"
        return d

    def test_what_the_driver_tells(self):
        """Clocks, power, temperature and use of the rank's device; what it does not tell is absent."""
        with self.device_daemon() as d:
            m = scrape(d.metrics)
            self.assertEqual(m["nvllm_gpu_clock_hertz", 'rank="0",clock="sm"'], 1980e6)
            self.assertEqual(m["nvllm_gpu_clock_hertz", 'rank="0",clock="memory"'], 3201e6)
            self.assertEqual(m["nvllm_gpu_power_watts", 'rank="0"'], 412.5)
            self.assertEqual(m["nvllm_gpu_temperature_celsius", 'rank="0"'], 61)
            self.assertEqual(m["nvllm_gpu_busy_ratio", 'rank="0"'], 0.87)
            self.assertEqual(m.of("nvllm_gpu_power_limit_watts"), {})
            (labels,) = m.of("nvllm_gpu_info")
            self.assertIn('pci="0000:65:00.0"', labels)
            scrape(d.metrics, openmetrics=True)

    def test_without_the_library(self):
        """Then there are no metrics of the device, and one line in the log."""
        with self.device_daemon(library=False) as d:
            for _ in range(2):
                self.assertFalse([k for k in scrape(d.metrics) if "gpu" in k[0]])
            self.assertEqual(d.log().count("event=no_nvml"), 1)

    def test_slow_driver(self):
        """A driver that takes half a second for an answer takes it of nobody but who asks."""
        with self.device_daemon(ms=500) as d, d.connect() as w:
            scrape(d.metrics)
            before, times = loop_ms(d), []
            with beside(lambda: scrape(d.metrics)):
                end = time.monotonic() + 3
                while time.monotonic() < end:
                    began = time.monotonic()
                    w.generate(prompt_ids={"ids": [1]}, max_tokens=2, sampling={"ignore_eos": True})
                    times.append(time.monotonic() - began)
            print(f"{len(times)} requests beside a slow driver; the slowest took "
                  f"{1e3 * max(times):.0f} ms, {(loop_ms(d) - before) / len(times):.3f} ms of the "
                  "loop each")
            self.assertLessEqual(sum(t > 0.4 for t in times), 2)

    def test_driver_that_hangs(self):
        """A driver that never answers does not keep the daemon from its end."""
        with self.device_daemon(ms=600000) as d, socket.socket(socket.AF_UNIX) as s:
            s.connect(str(d.metrics))
            s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            time.sleep(0.5)
            began = time.monotonic()
            self.assertEqual(d.terminate(), 0)
            self.assertLess(time.monotonic() - began, scaled(10, 60))


