"""Changing the daemon's state: drain, resume, reload, log level, shutdown; and what happens to it: sockets
that vanish, descriptors that run out, storms of signals."""

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

import wire
from harness import LONG, SMALL, Case, Daemon, MODEL, config, scaled, wait_for

SHORT = {"prompt": "Once upon a time", "max_tokens": 2}


def long(**changes):
    """Long enough to be in progress during a test."""
    return {**LONG, "max_tokens": scaled(1500, 150), **changes}


class Drains(Case):
    def test_drain_and_resume(self):
        """New requests are refused, accepted ones continue; resume undoes it."""
        with Daemon(SMALL) as d, d.connect() as w, d.connect() as other:
            w.begin(1, long())
            self.assertEqual(other.ask(drain={})["changed"]["state"], "STATE_DRAINING")
            error = other.generate(**SHORT).error
            self.assertEqual(error["code"], "ERROR_UNAVAILABLE")
            self.assertTrue(error["retryable"] and not error.get("retry_after_ms"), error)
            self.assertEqual(other.status()["state"], "STATE_DRAINING")
            with d.connect() as late:  # who looks is let in
                self.assertEqual(late.welcome["state"], "STATE_DRAINING")
                self.assertEqual(late.ask(list_requests={})["request_list"]["total"], 1)
            self.assertEqual(w.collect([1])[1].choices[0].reason, "FINISH_LENGTH")
            self.assertEqual(other.ask(resume={})["changed"]["state"], "STATE_READY")
            self.assertIsNone(other.generate(**SHORT).error)

    def test_resume_in_time(self):
        """A drain that was undone ends no request."""
        with Daemon(SMALL) as d, d.connect() as w, d.connect() as other:
            w.begin(1, long())
            other.ask(drain={"drain_timeout_ms": 50})
            other.ask(resume={})
            self.assertEqual(w.collect([1])[1].choices[0].reason, "FINISH_LENGTH")

    def test_drain_and_resume_of_an_idle_daemon(self):
        """Twice each, and resume without a drain: nothing breaks."""
        with Daemon(SMALL) as d, d.connect() as w:
            for op, state in (("resume", "READY"), ("drain", "DRAINING"), ("drain", "DRAINING"),
                              ("resume", "READY"), ("resume", "READY")):
                self.assertEqual(w.ask(**{op: {}})["changed"]["state"], "STATE_" + state)

    def test_shutdown(self):
        """Like SIGTERM: it is answered first, requests finish, status 0; it cannot be undone."""
        with Daemon(SMALL) as d, d.connect() as w, d.connect() as admin:
            w.begin(1, long(max_tokens=scaled(500, 100)))
            self.assertEqual(admin.ask(shutdown={})["changed"]["state"], "STATE_DRAINING")
            self.assertEqual(admin.ask(resume={})["error"]["code"], "ERROR_UNAVAILABLE")
            self.assertIn("event=draining signal=0 requests=1", d.log())
            self.assertEqual(w.collect([1])[1].choices[0].reason, "FINISH_LENGTH")
            self.assertEqual(d.process.wait(timeout=scaled(20, 60)), 0)
            self.assertFalse(d.socket.exists())


class Reload(Case):
    """The file is read again: everything that can change does, or nothing."""

    def start(self, text):
        folder = self.temporary_folder()
        self.file = folder / "nvllmd.conf"
        self.file.write_text(text)
        return Daemon(SMALL, folder=folder, args=["--config", self.file])

    def test_limits_change(self):
        """A limit holds from the next request on; what needs a restart is named and stays."""
        with self.start("[limits]\nmax_tokens = 100\n") as d, d.connect() as w:
            self.assertEqual(w.generate(**{**SHORT, "max_tokens": 101}).error["limit_value"], 100)
            self.file.write_text("[limits]\nmax_tokens = 5\n[scheduler]\nmax_seqs = 7\n"
                                 "[daemon]\nlog_level = debug\n")
            reply = w.ask(reload={})["reloaded"]
            self.assertEqual(sorted(reply["changed"]), ["daemon.log_level", "limits.max_tokens"])
            self.assertEqual(reply["needs_restart"], ["scheduler.max_seqs"])
            error = w.generate(**{**SHORT, "max_tokens": 6}).error
            self.assertEqual((error["code"], error["limit"], error["limit_value"]),
                             ("ERROR_TOO_LONG", "limits.max_tokens", 5))
            self.assertIsNone(w.generate(**SHORT).error)
            with d.connect():
                wait_for(lambda: "event=connected" in d.log(), 5, "a line of level debug")
            again = w.ask(reload={})["reloaded"]
            self.assertEqual((again["changed"], again["needs_restart"]),
                             ([], ["scheduler.max_seqs"]))

    def test_shares_change(self):
        """Users' shares are taken while the daemon works, and a wrong one is not."""
        with self.start("") as d, d.connect() as w:
            w.begin(1, long())
            with d.connect() as admin:
                self.file.write_text("[scheduler]\nshares = 0:300 61001:50\n")
                reply = admin.ask(reload={})["reloaded"]
                self.assertEqual((reply["changed"], reply["needs_restart"]),
                                 (["scheduler.shares"], []))
                self.file.write_text("[scheduler]\nshares = 0:0\n")
                self.assertIn("shares", admin.ask(reload={})["error"]["message"])
                self.assertIsNone(admin.generate(**SHORT).error)
            self.assertEqual(w.collect([1])[1].choices[0].reason, "FINISH_LENGTH")

    def test_wholly_or_not_at_all(self):
        """One wrong line, and no other counts; the error names file and line."""
        with self.start("[limits]\nmax_tokens = 100\n") as d, d.connect() as w:
            self.file.write_text("[limits]\nmax_tokens = 5\nstops = many\n")
            error = w.ask(reload={})["error"]
            self.assertEqual(error["code"], "ERROR_INVALID")
            self.assertIn(f"{self.file}:3", error["message"])
            self.assertIsNone(w.generate(**{**SHORT, "max_tokens": 6}).error)
            self.file.unlink()
            self.assertIn(str(self.file), w.ask(reload={})["error"]["message"])
            self.assertIn("event=reload_refused text=\"", d.log())
            self.assertIsNone(w.generate(**{**SHORT, "max_tokens": 6}).error)

    def test_the_command_line_stays_above_the_file(self):
        """--set still overrides the file after a reload."""
        with self.start("[limits]\nmax_tokens = 100\n") as d, d.connect() as w:
            self.file.write_text("[cache]\nkv_memory = 1G\n")
            reply = w.ask(reload={})["reloaded"]
            self.assertEqual((reply["changed"], reply["needs_restart"]),
                             (["limits.max_tokens"], []))

    def test_storm_of_hangups(self):
        """SIGHUP reloads; a thousand of them are few reloads, and others are answered."""
        with self.start("[limits]\nmax_tokens = 100\n") as d, d.connect() as w:
            self.file.write_text("[limits]\nmax_tokens = 5\n")
            for _ in range(1000):
                d.process.send_signal(signal.SIGHUP)
            self.assertIsNone(w.generate(**SHORT).error)
            wait_for(lambda: "event=reloaded" in d.log(), 5, "reloaded")
            self.assertEqual(w.generate(**{**SHORT, "max_tokens": 6}).error["limit_value"], 5)
            time.sleep(0.3)
            self.assertLess(d.log().count("event=reloaded"), 20)

    def test_log_level(self):
        """Lines of a level appear as it is set, and no longer as it is set back."""
        with self.start("") as d, d.connect() as w:
            changed = w.ask(set_log_level={"level": "debug"})["changed"]
            self.assertEqual(changed["log_level"], "debug")
            d.connect().close()
            wait_for(lambda: "event=disconnected" in d.log(), 5, "a line of level debug")
            self.assertEqual(w.ask(set_log_level={"level": "error"})["changed"]["log_level"],
                             "error")
            n = len(d.log())
            d.connect().close()
            w.status()
            self.assertEqual(d.log()[n:], "")
            for level in "loud", "", "DEBUG", "x" * 10000:
                error = w.ask(set_log_level={"level": level})["error"]
                self.assertEqual((error["code"], error["field"]), ("ERROR_INVALID", "level"))
            self.assertEqual(w.ask(set_log_level={})["error"]["code"], "ERROR_INVALID")


class Crash(Case):
    SECRET = "The quick brown secret jumps over the lazy dog"

    def test_what_it_leaves(self):
        """A line of the log, where it was, and a core in which no prompt can be found."""
        if config.light:
            self.skipTest("a sanitizer handles signals")
        folder = self.temporary_folder()
        with Daemon(SMALL, cwd=folder) as d:
            resource.prlimit(d.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
            with d.connect() as w:
                w.begin(1, {**long(), "prompt": self.SECRET})
                d.process.send_signal(signal.SIGSEGV)
                self.assertEqual(d.process.wait(timeout=30), -signal.SIGSEGV)
            self.assertIn("event=crashed signal=SEGV", d.log())
            self.assertRegex(d.log(), r"(?m)^\S*nvllmd\(.*\[0x")
            pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text()
            cores = list(folder.glob("core*"))
            if pattern.startswith("core"):
                self.assertEqual(len(cores), 1)
            for core in cores:
                content = core.read_bytes()
                self.assertIn(b"nvllmd", content)
                self.assertNotIn(self.SECRET.encode(), content)


class Signals(Case):
    def test_twice_sigint(self):
        """The first drains, the second ends what is left at once: one answer each, status 0."""
        with Daemon("daemon.drain_timeout_s=600", SMALL) as d, d.connect() as w:
            w.begin(1, long(max_tokens=3500))
            d.process.send_signal(signal.SIGINT)
            wait_for(lambda: "event=draining" in d.log(), 5, "draining")
            d.process.send_signal(signal.SIGINT)
            error = w.collect([1])[1].error
            self.assertEqual((error["code"], error["retryable"], error["reconnect"]),
                             ("ERROR_UNAVAILABLE", True, True))
            self.assertEqual(d.process.wait(timeout=scaled(20, 60)), 0)

    def test_all_at_once(self):
        """A storm of all signals: the daemon ends as after a single one, status 0."""
        with Daemon(SMALL) as d, d.connect() as w:
            w.begin(1, long())
            for _ in range(50):
                for number in signal.SIGHUP, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM:
                    if d.process.poll() is None:
                        d.process.send_signal(number)
            self.assertEqual(d.process.wait(timeout=scaled(20, 60)), 0)


class SocketFile(Case):
    """The daemon looks after its sockets' files."""

    def wait_back(self, d, path=None):
        def back():
            try:
                with wire.Wire(path or d.socket) as w:
                    return w.welcome["state"] == "STATE_READY"
            except OSError:
                return False

        wait_for(back, 10, "the socket is back")

    def test_removed(self):
        """A removed socket is created again with its mode; open connections stay."""
        with Daemon("daemon.socket_mode=0620", SMALL) as d, d.connect() as w:
            w.begin(1, long())
            d.socket.unlink()
            self.wait_back(d)
            self.assertEqual(d.socket.stat().st_mode & 0o777, 0o620)
            self.assertEqual(w.collect([1])[1].choices[0].reason, "FINISH_LENGTH")
            self.assertIn("event=socket_renewed", d.log())
            d.socket.unlink()  # and again
            self.wait_back(d)
        self.assertFalse(d.socket.exists())

    def test_the_lock_as_well(self):
        """A folder that was cleared gets socket and lock back: a second daemon still refuses."""
        with Daemon(SMALL) as d:
            d.socket.unlink()
            (d.folder / "nvllmd.sock.lock").unlink()
            self.wait_back(d)
            second = subprocess.run([config.nvllmd, "--model", MODEL, "--socket", d.socket,
                                     "--backend", "cpu"], capture_output=True, timeout=30)
            self.assertIn(b"another nvllmd", second.stderr)

    def test_replaced(self):
        """What a dead program has put there is replaced; what is no socket is left, and said."""
        with Daemon(SMALL) as d:
            d.socket.unlink()
            dead = wire.socket.socket(wire.socket.AF_UNIX)
            dead.bind(str(d.socket))
            dead.close()
            self.wait_back(d)
            d.socket.unlink()
            d.socket.write_text("precious")
            wait_for(lambda: "event=socket_lost" in d.log(), 5, "said")
            self.assertEqual(d.socket.read_text(), "precious")
            d.socket.unlink()
            self.wait_back(d)

    def test_folder_gone_and_back(self):
        """A folder that is removed and comes back later: so does the socket."""
        outer = self.temporary_folder()
        folder = outer / "run"
        folder.mkdir()
        with Daemon(SMALL, folder=folder) as d:
            shutil.rmtree(folder)
            time.sleep(1.5)
            folder.mkdir()
            self.wait_back(d)
            d.log_path.write_text("")

    def test_admins_socket(self):
        """The admin socket is looked after, too."""
        folder = self.temporary_folder()
        path = folder / "admin.sock"
        with Daemon(SMALL, f"daemon.admin_socket={path}", folder=folder) as d:
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            path.unlink()
            self.wait_back(d, path)
            with wire.Wire(path) as w:
                self.assertIn("changed", w.ask(drain={}))
        self.assertFalse(path.exists())


class Descriptors(Case):
    def test_out_of_descriptors(self):
        """Without a descriptor left accepting pauses and burns no time; then it goes on."""
        with Daemon(SMALL) as d, d.connect() as w:
            soft = d.n_descriptors() + 10
            resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (soft, soft))
            waiting = [wire.Wire(d.socket, hello=False) for _ in range(30)]
            wait_for(lambda: "event=accept_paused" in d.log(), 5, "paused")
            before = self.cpu_seconds(d)
            time.sleep(1)
            self.assertLess(self.cpu_seconds(d) - before, scaled(0.2, 0.6))
            self.assertIsNone(w.generate(**SHORT).error)  # who is connected is served
            self.assertLess(d.log().count("event=accept_paused"), 10)
            for one in waiting[:15]:
                one.close()
            for one in waiting[15:]:
                one.close()
            with d.connect() as late:
                self.assertIsNone(late.generate(**SHORT).error)

    def cpu_seconds(self, d):
        with open(f"/proc/{d.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Log(Case):
    def test_nobody_reads_the_log(self):
        """A log that is a full pipe delays nobody; the number of lost lines is logged later."""
        read, write = os.pipe()
        d = Daemon(SMALL, "daemon.log_level=debug", log=write)
        os.close(write)
        try:
            with d.connect() as w:
                for _ in range(scaled(2000, 1000)):
                    d.connect().close()
                begin = time.monotonic()
                self.assertIsNone(w.generate(**SHORT).error)
                self.assertLess(time.monotonic() - begin, scaled(2, 10))
                text = b""
                os.set_blocking(read, False)
                end = time.monotonic() + 10
                while b"event=log_dropped" not in text and time.monotonic() < end:
                    try:
                        text += os.read(read, 1 << 16)
                    except BlockingIOError:
                        d.connect().close()
            self.assertRegex(text, rb"event=log_dropped lines=\d+")
            self.assertEqual(d.terminate(), 0)
        finally:
            d.close()
            os.close(read)

    def test_names_of_clients_in_the_log(self):
        """What a client calls itself is one text on one line of UTF-8 without control characters,
        however long."""
        names = (b'a" event=fake text="', b"x\nnvllmd: level=error event=fake", b"\xc2\x9b31m\x1b[31m",
                 b"\xff\x9b\xed\xa0\x80", b"back\\", b'"' * 3000000, "\u00fc".encode() * 3000)
        with Daemon(SMALL, "daemon.log_level=debug") as d:
            before = len(d.log_path.read_bytes())
            for name in names:
                raw = b"\x08\x01\x12" + wire.varint(len(name)) + name
                raw = b"\x12" + wire.varint(len(raw)) + raw
                with d.connect(hello=False) as w:
                    w.raw(wire.varint(len(raw)) + raw)
                    self.assertIn("welcome", w.receive())
            log = d.log_path.read_bytes()[before:].decode()  # or it is no UTF-8
            said = [line for line in log.split("\n") if " event=hello " in line]
            self.assertEqual(len(said), len(names), log[:3000])
            for line in said:
                self.assertRegex(line, r'^nvllmd: level=debug event=hello uid=\d+ pid=\d+ '
                                       r'text="(\\.|[^"\\\x00-\x1f\x7f-\x9f])*"$')
                self.assertLess(len(line.encode()), 2048)

    def test_no_text_in_the_log(self):
        """Whatever the level, no word of a prompt or an answer is logged."""
        word = "xylophonist"
        with Daemon(SMALL, "daemon.log_level=debug") as d, d.connect() as w:
            w.generate(**{**SHORT, "prompt": word})
            w.generate(**{**SHORT, "prompt": word, "max_tokens": 1 << 30})
            w.generate(chat={"messages": [{"role": word, "content": word}]})
            w.ask(tokenize={"text": word.encode()})
            w.ask(explain={"prompt": word.encode()})
            w.ask(pin_cache={"prompt": word.encode()})
            self.assertNotIn(word, d.log())
            self.assertIn("event=admin_operation op=pin_cache", d.log())
