"""A daemon that exits while clients work, and the next one in its place, at a socket that outlives both
as one of systemd does."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time

import harness
import wire
from harness import MODEL, SMALL, Case, config, run_command, scaled, start_ctl

PASS_ON = 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&0 </dev/null'
WORDS = ["--raw", "--ignore-eos", "--seed", "7", "--max-tokens", "24"]


class Service:
    """Daemons one after the other at one listening socket, or each at a socket of its own."""

    def __init__(self, folder, *options, passed_on=True):
        self.path = folder / "s"
        self.listener = None
        self.log = open(folder / "log", "ab")
        self.options = options
        self.process = None
        if passed_on:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(self.path))
            self.listener.listen(1024)
        self.start()

    def start(self):
        command = [config.nvllmd, "--model", MODEL, "--backend", "cpu", "--socket", self.path]
        for o in self.options or (SMALL,):
            command += ["--set", o]
        command = [str(c) for c in command]
        if self.listener:
            command = ["sh", "-c", PASS_ON, "sh", *command]
        self.process = subprocess.Popen(command, stdin=self.listener, stderr=self.log)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=scaled(60, 200))
        if status:
            raise AssertionError(f"nvllmd ended with {status}")

    def restart(self):
        self.stop()
        self.start()

    def connect(self):
        return wire.Wire(self.path, timeout=scaled(60, 200))

    def close(self):
        if self.listener:
            self.listener.close()
        self.process.kill()
        self.process.wait()
        self.log.close()


class Restart(Case):
    def service(self, *options, **others):
        service = Service(self.temporary_folder(), *options, **others)
        self.addCleanup(service.close)
        self.ctl(service, "--wait", "status")
        return service

    def ctl(self, service, *args, **options):
        return run_command([config.nvllmctl, "--socket", service.path, *args], **options)

    def test_no_request_is_lost(self):
        """Forty clients that send request after request notice no restart: each gets all of its answer,
        once."""
        service = self.service()
        prompts = [f"Story {i}: " for i in range(scaled(40, 8))]
        expected = [self.ctl(service, "generate", *WORDS, p).stdout for p in prompts]
        stop, n_answered = threading.Event(), 0

        def ask_on(prompt, answer):
            n = 0
            while not stop.is_set():
                self.assertEqual(self.ctl(service, "generate", *WORDS, prompt).stdout, answer)
                n += 1
            return n

        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            clients = [pool.submit(ask_on, *pair) for pair in zip(prompts, expected)]
            try:
                for _ in range(scaled(5, 2)):
                    time.sleep(1)
                    service.restart()
                time.sleep(1)
            finally:
                stop.set()
            n_answered = sum(c.result() for c in clients)
        self.assertGreaterEqual(n_answered, len(prompts))

    def test_one_connection_outlives_daemons(self):
        """So does a client with many requests on its connection: each line is answered, in part by
        later daemons."""
        service, n_tokens = self.service(), scaled(100, 20)
        lines = [{"prompt": f"Story {i}: ", "max_tokens": n_tokens, "ignore_eos": True, "seed": 1}
                 for i in range(scaled(200, 80))]
        source = self.temporary_folder() / "in"
        source.write_text("".join(json.dumps(x) + "\n" for x in lines))
        with start_ctl(service.path, "batch", "--input", source, "--output", "-", "--json",
                       "--concurrency", "16") as client:
            reader = threading.Thread(target=lambda: out.append(client.communicate()))
            out = []
            reader.start()
            for _ in range(3):
                time.sleep(0.3)
                service.restart()
                self.assertIsNone(client.poll(), "it still has work")
            reader.join()
        answers = harness.parse_jsonl(out[0][0])
        self.assertEqual([a for a in answers if "error" in a], [])
        self.assertEqual(len(answers), len(lines))

    def test_the_drain_is_over(self):
        """When the drain's time is over, an answer that has begun ends with an error that says why, and
        one that has not is given by the next daemon."""
        service = self.service("cache.kv_memory=512M", "daemon.drain_timeout_s=1", "scheduler.max_seqs=1")
        long = ["--ignore-eos", "--raw", "--seed", "1", "Once upon a time"]
        with start_ctl(service.path, "generate", "--max-tokens", "30000", *long) as cut:
            self.assertTrue(cut.stdout.read(1))
            with start_ctl(service.path, "generate", "--max-tokens", "9", *long) as waiting:
                with service.connect() as w:
                    harness.wait_for(lambda: w.status()["requests"].get("waiting"), 20, "it waits")
                service.restart()
                text, _ = waiting.communicate(timeout=scaled(60, 200))
                self.assertEqual(waiting.returncode, 0)
            _, why = cut.communicate()
            self.assertEqual((cut.returncode, b"shut down" in why), (4, True), why)
        self.assertEqual(text, self.ctl(service, "generate", "--max-tokens", "9", *long).stdout)

    def test_a_socket_that_goes_with_its_daemon(self):
        """Without a socket that outlives the daemon, clients that wait for its start are not lost either;
        while it drains, others learn that it does."""
        service = self.service(SMALL, "daemon.drain_timeout_s=30", passed_on=False)
        asked = ["--wait", "generate", *WORDS, "Hello"]
        answer = self.ctl(service, *asked).stdout
        with service.connect() as w, concurrent.futures.ThreadPoolExecutor(9) as pool:
            w.begin(1, {**harness.LONG, "max_tokens": scaled(3500, 300)})
            service.process.send_signal(signal.SIGTERM)
            with service.connect() as other:
                harness.wait_for(lambda: other.status()["state"] == "STATE_DRAINING", 20, "it drains")
            with service.connect() as late:
                self.assertEqual(late.welcome["state"], "STATE_DRAINING")
                error = late.ask(generate=harness.GOOD)["error"]
                self.assertEqual((error["code"], error["reconnect"]), ("ERROR_UNAVAILABLE", True))
            clients = [pool.submit(self.ctl, service, *asked) for _ in range(8)]
            with contextlib.suppress(wire.Closed):
                w.collect([1])
            self.assertEqual(service.process.wait(timeout=scaled(60, 200)), 0)
            time.sleep(0.2)
            self.assertFalse(os.path.exists(service.path))
            service.start()
            self.assertEqual({c.result().stdout for c in clients}, {answer})
