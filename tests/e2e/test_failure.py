"""A backend that fails: each client is told, the daemon ends in time and says why."""

import json
import signal
import time

import harness
from harness import Case, Daemon, config, scaled

REQUEST = {"prompt": "Hello", "max_tokens": 50, "sampling": {"temperature": 0}}


def daemon(block_len, *options, **kwargs):
    return Daemon(f"cache.block_len={block_len}", f"backend.module={config.module}", *options,
                  backend="cuda", **kwargs)


class Failure(Case):
    def ended(self, d, status, seconds):
        begin = time.monotonic()
        self.assertEqual(d.process.wait(timeout=scaled(30, 60)), status, d.log())
        self.assertLess(time.monotonic() - begin, scaled(seconds, seconds + 10))
        self.assertFalse(d.socket.exists())
        self.assertNotIn("Sanitizer", d.log())

    def test_open_fails(self):
        """A device that does not work is an error with its reason, and no CPU instead."""
        d = daemon(16, wait=False)
        self.ended(d, 1, 5)
        self.assertIn("the device is on fire", d.log())

    def test_check_config_opens_the_device(self):
        """So does check-config, before any start; beside a running daemon it leaves the device alone."""
        def check(d, block_len):
            return harness.run_command(
                [config.nvllmd, "check-config", "--model", harness.MODEL, "--backend", "cuda",
                 "--socket", d.socket, "--set", f"backend.module={config.module}",
                 "--set", f"cache.block_len={block_len}"], check=False)

        d = daemon(32)
        self.assertEqual(check(d, 16).returncode, 0)
        d.kill()
        self.assertEqual(check(d, 32).returncode, 0)
        done = check(d, 16)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout.decode(), r"(?m)^wrong  backend  the device is on fire$")
        d.close()

    def test_follower(self):
        """Of a cluster it serves nobody. It ends with what it follows, or as soon as it is told to; what
        it waits for may never come."""
        cluster = "cluster.world_size=2", "cluster.rank=1", "cluster.rendezvous=/nowhere/id"
        with self.notified() as (env, messages):
            d = daemon(32, *cluster, wait=False, env=env)
            self.ended(d, 1, 5)
        self.assertIn("READY=1", messages)
        self.assertIn("STATUS=Failed: the device fell off the bus", messages)
        self.assertRegex(d.log(), "event=following .* process=1 ")
        self.assertRegex(d.log(), 'event=engine_failed text="the device fell off the bus"')
        d = daemon(64, *cluster, wait=False)
        harness.wait_for(lambda: "event=following" in d.log(), scaled(10, 60), "following")
        self.assertFalse(d.socket.exists())
        d.process.send_signal(signal.SIGHUP)
        d.process.send_signal(signal.SIGTERM)
        self.ended(d, 0, 5)
        d = daemon(16, *cluster, wait=False)
        self.ended(d, 1, 5)
        self.assertIn("the device is on fire", d.log())

    def test_model_that_the_backend_cannot_run(self):
        """A start ends at it, and check-config and list say so before."""
        self.ended(daemon(256, wait=False), 2, 5)
        for block_len, status in (32, 0), (256, 1):
            options = ["--backend", "cuda", "--set", f"backend.module={config.module}",
                       "--set", f"cache.block_len={block_len}"]
            done = harness.run_command([config.nvllmd, "check-config", "--model", harness.MODEL,
                                        "--socket", self.temporary_folder() / "s", *options],
                                       check=False)
            self.assertEqual(done.returncode, status)
            self.assertEqual(b"\nwrong  model    the device knows no models\n" in done.stdout,
                             status == 1, done.stdout)
            done = harness.run_command([config.nvllmd, "list", "--json", *options, harness.MODEL])
            model, = json.loads(done.stdout)["models"]
            self.assertEqual((model["runs"], model.get("why"), done.stderr), (
                status == 0, "the device knows no models" if status else None, b""))

    def test_slow_start(self):
        """Each percent of loading has systemd wait for another minute."""
        with self.notified() as (env, messages):
            daemon(512, env=env).close()
        extended = messages[:messages.index("READY=1")].count("EXTEND_TIMEOUT_USEC=60000000")
        self.assertGreater(extended, 60, "some may be told together")

    def test_death_in_a_step(self):
        """Each request in progress on every connection gets an error, and systemd the reason; the daemon
        ends within 5 s."""
        with self.notified() as (env, messages):
            self.die(daemon(32, env=env))
        self.assertIn("ERRNO=5", messages)
        self.assertIn("STATUS=Failed: the device fell off the bus", messages)

    def die(self, d):
        with d.connect() as a, d.connect() as b, d.connect() as idle:
            for w in a, b:
                for i in range(1, 11):
                    w.send(i, generate={**REQUEST, "stream": True})
            for w in a, b:
                for answer in w.collect(range(1, 11)).values():
                    self.assertEqual(answer.error["code"], "ERROR_INTERNAL")
                    self.assertIn("fell off the bus", answer.error["message"])
            self.ended(d, 1, 5)
            self.assertIsNotNone(idle)
        self.assertIn("the device fell off the bus", d.log())

    def test_wake(self):
        """A request that finds too little memory to wake is refused, to be tried again; a device that
        has gone ends the daemon."""
        d = daemon(128)
        with d.connect() as w:
            w.ask(sleep={})
            error = w.generate(**REQUEST).error
            self.assertEqual((error["code"], error["retryable"]), ("ERROR_UNAVAILABLE", True))
            self.assertIn("others have the memory", error["message"])
            self.assertEqual(d.status()["asleep"], "all")
            self.assertEqual(w.generate(**REQUEST).error["code"], "ERROR_INTERNAL")
            self.ended(d, 1, 5)
        self.assertIn("the device has gone", d.log())

    def stall(self, d, seconds):
        """A device that never answers: running requests are told, and the daemon ends."""
        begin = time.monotonic()
        with d.connect() as w:
            for i in range(1, 4):
                w.send(i, generate={**REQUEST, "stream": True})
            for answer in w.collect(range(1, 4)).values():
                self.assertEqual((answer.error["code"], answer.error["message"]),
                                 ("ERROR_INTERNAL", "the engine has stalled"))
            self.ended(d, 1, 5)
        self.assertLess(time.monotonic() - begin, seconds)

    def test_stall_under_systemd(self):
        """All inside WatchdogSec=, and systemd is told why; until then it hears that the loop runs."""
        seconds = scaled(4, 16)
        with self.notified() as (env, messages):
            self.stall(daemon(64, env={**env, "WATCHDOG_USEC": f"{seconds}000000"}), seconds)
        self.assertIn("WATCHDOG=1", messages)
        self.assertIn("ERRNO=110", messages)
        self.assertIn("STATUS=Failed: the engine has stalled", messages)

    def test_stall_alone(self):
        """Likewise without systemd, in the time of the unit's watchdog."""
        self.stall(daemon(64), 30)

    def test_hang(self):
        """With a device that never answers, a second signal ends the daemon all the same, and so does
        the end of the drain's time."""
        for options in (), ("daemon.drain_timeout_s=1",):
            d = daemon(64, *options)
            with self.subTest(options), d.connect() as w:
                w.send(1000, generate=REQUEST)
                harness.wait_for(lambda: w.status()["requests"].get("running"), 10, "it runs")
                d.process.send_signal(signal.SIGTERM)
                if not options:
                    harness.wait_for(lambda: w.status()["state"] == "STATE_DRAINING", 10, "it drains")
                    reply = w.ask(generate=REQUEST)
                    self.assertEqual(reply["error"]["code"], "ERROR_UNAVAILABLE")
                    self.assertTrue(reply["error"]["retryable"])
                    d.process.send_signal(signal.SIGTERM)
                self.assertEqual(w.collect([1000])[1000].error["code"], "ERROR_UNAVAILABLE")
                self.ended(d, 0, 10)
