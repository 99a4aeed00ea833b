"""Options read anew: what systemd hears of it, and while whoever knows the users that they name takes
its time."""

import signal
import time

from harness import Case, Daemon, config, scaled, wait_for


class Notified(Case):
    def test_systemd_waits_for_a_reload(self):
        """RELOADING with the time at which it began, as Type=notify-reload wants it, and READY at its
        end: also where the file is wrong, since the daemon goes on."""
        file = self.temporary_folder() / "nvllmd.conf"
        file.write_text("")
        with self.notified() as (env, messages), \
                Daemon("cache.kv_memory=64M", args=["--config", file], env=env) as d:
            for text in "[limits]\nmax_tokens = 5\n", "[limits]\nmax_tokens = none\n":
                file.write_text(text)
                wait_for(lambda: "READY=1" in messages, 10, "ready")
                messages.clear()
                begin = time.monotonic_ns() // 1000
                d.process.send_signal(signal.SIGHUP)
                wait_for(lambda: "READY=1" in messages, scaled(10, 60), "reloaded")
                told = messages[:messages.index("READY=1")]
                at = told.index("RELOADING=1")
                name, us = told[at + 1].split("=")
                self.assertEqual(name, "MONOTONIC_USEC")
                self.assertGreaterEqual(int(us), begin)
                self.assertLessEqual(int(us), time.monotonic_ns() // 1000)
            self.assertIn("event=reload_refused", d.log())


class SlowUsers(Case):
    """Who knows the users that shares are for takes its time: the daemon reads its options beside
    its work."""

    def setUp(self):
        folder = self.temporary_folder()
        self.file = folder / "nvllmd.conf"
        self.file.write_text("")
        self.asked = folder / "asked"
        self.daemon = Daemon("cache.kv_memory=256M", folder=folder, args=["--config", self.file],
                             env={"LD_PRELOAD": config.users, "SLOW_USERS_ASKED": str(self.asked)})

    def connect(self):
        w = self.daemon.connect()
        w.sock.settimeout(scaled(10, 60))  # a reload that is forgotten is found by then
        return w

    def write(self, max_tokens, user="molasses"):
        self.file.write_text(f"[limits]\nmax_tokens = {max_tokens}\n"
                             f"[scheduler]\nshares = {user}:300\n")

    def test_others_do_not_wait(self):
        """While a reload waits for a name all others are answered by the old limits, and after it by
        the new ones: all of them, or where the name is unknown none."""
        with self.daemon as d, self.connect() as admin, d.connect() as w:
            for user, most in ("molasses", 5), ("nobody-of-that-name", 7):
                before = d.log().count("event=reload")
                self.write(most, user)
                admin.send(1, reload={})
                slowest, n = 0, 0
                while d.log().count("event=reload") == before and n < 2000:
                    began = time.monotonic()
                    w.status()
                    slowest = max(slowest, time.monotonic() - began)
                    n += 1
                    time.sleep(0.005)
                self.assertLess(slowest, 1.5)  # half of what the name takes
                self.assertGreater(n, 50)
                reply = admin.receive()
                self.assertEqual("reloaded" in reply, user == "molasses", reply)
                self.assertEqual(w.generate(prompt="Hi", max_tokens=6).error["limit_value"], 5)

    def test_who_asks_meanwhile(self):
        """Two reloads at once: each answer is of a file that was read after it was asked for."""
        with self.daemon as d, self.connect() as first, self.connect() as second, self.connect() as third:
            self.write(5)
            first.send(1, reload={})
            wait_for(self.asked.exists, scaled(10, 60), "the file has been read")
            self.write(6)
            second.send(1, reload={})
            third.send(1, reload={})
            third.close()
            self.assertIn("limits.max_tokens", first.receive()["reloaded"]["changed"])
            self.assertEqual(second.receive()["reloaded"]["changed"], ["limits.max_tokens"])
            error = first.generate(prompt="Hi", max_tokens=7).error
            self.assertEqual(error["limit_value"], 6)

    def test_the_end_does_not_wait(self):
        """A daemon that ends while a name is looked up ends at once; who waited is told."""
        with self.daemon as d, self.connect() as admin:
            self.write(5)
            admin.send(1, reload={})
            wait_for(self.asked.exists, scaled(10, 60), "the name is looked up")
            began = time.monotonic()
            self.assertEqual(d.terminate(), 0)
            self.assertLess(time.monotonic() - began, 2)
            self.assertEqual(admin.receive()["error"]["code"], "ERROR_UNAVAILABLE")
