"""A model that sleeps: its memory is given back, and the next request finds all as it was."""

import json
import re
import shutil
import signal
import time

from harness import MODEL, Case, Daemon, at_once, beside, scaled, wait_for
from test_cache import random_ids

N = 400
LONG = {"prompt": "Once", "max_tokens": 20000, "sampling": {"ignore_eos": True}}


def request(seed):
    return {"prompt_ids": {"ids": random_ids(seed, N)}, "max_tokens": 4,
            "sampling": {"temperature": 0, "ignore_eos": True}}


def cached(answer):
    return answer.done["usage"].get("cached_tokens", 0)


def resident(d):
    """Bytes of memory that the daemon has."""
    return int(re.search(r"VmRSS:\s*(\d+)", open(f"/proc/{d.pid}/status").read())[1]) << 10


def asleep(d):
    return d.status()["asleep"]


class Sleep(Case):
    def check_wakes(self, w, first, seed, n_cached):
        again = w.generate(**request(seed))
        self.assertEqual(again.choices[0].ids, first.choices[0].ids)
        self.assertEqual(cached(again), n_cached)

    def test_gives_memory_back(self):
        """All of it, or the weights alone; what was cached is found in host memory."""
        with Daemon("cache.host_memory=64M") as d, d.connect() as w:
            first = w.generate(**request(1))
            before = d.wait_idle()["memory"]
            for level in "all", "weights", "all":
                d.wait_filled()
                taken = resident(d)
                slept = json.loads(d.ctl("sleep", "--level", level, "--json").stdout)
                self.assertEqual(slept["level"], level)
                self.assertEqual(slept["lost_tokens"], 0)
                self.assertEqual(slept["kept_tokens"] > 0, level == "all")
                status = d.status()
                self.assertEqual((status["state"], status["asleep"]), ("ready", level))
                freed = before["weight_bytes"]
                self.assertEqual(status["memory"]["weight_bytes"], 0)
                if level == "all":
                    freed += before["kv_bytes"]
                    self.assertEqual(status["memory"]["kv_bytes"], 0)
                    self.assertLess(resident(d), taken - 0.8 * freed)
                self.assertEqual(slept["freed_bytes"], freed)
                self.check_wakes(w, first, 1, 384)
                self.assertEqual(asleep(d), "none")
            self.assertEqual(d.wait_idle()["memory"]["weight_bytes"], before["weight_bytes"])
            self.assertIn("event=asleep level=weights", d.log())

    def test_ranks(self):
        """Each rank's weights are read again, and its part of each block comes back."""
        with Daemon("cache.host_memory=64M", "model.tensor_parallel=4") as d, d.connect() as w:
            first = w.generate(**request(1))
            for level in "all", "weights":
                d.ctl("sleep", "--level", level)
                self.assertEqual(d.status()["memory"]["weight_bytes"], 0)
                self.check_wakes(w, first, 1, 384)

    def test_deeper(self):
        """From weights to all, not back; asking again gives nothing back, and waking is no change
        where it is awake."""
        with Daemon("cache.host_memory=64M") as d, d.connect() as w:
            first = w.generate(**request(1))
            d.ctl("sleep", "--level", "weights")
            self.assertIn(b"asleep (all)", d.ctl("sleep").stdout)
            again = w.ask(sleep={"level": "SLEEP_WEIGHTS"})["slept"]
            self.assertEqual((again["level"], again["freed_bytes"]), ("SLEEP_ALL", 0))
            for _ in range(2):
                self.assertRegex(d.ctl("wake").stdout, rb"^awake after ")
            self.assertEqual(asleep(d), "none")
            self.check_wakes(w, first, 1, 384)

    def test_without_a_tier(self):
        """All: what was cached is lost, and told. Weights: it stays."""
        with Daemon() as d, d.connect() as w:
            first = w.generate(**request(1))
            self.assertGreaterEqual(w.ask(sleep={})["slept"]["lost_tokens"], N)
            self.check_wakes(w, first, 1, 0)
            self.assertEqual(w.ask(sleep={"level": "SLEEP_WEIGHTS"})["slept"]["lost_tokens"], 0)
            self.check_wakes(w, first, 1, 384)

    def test_on_disk(self):
        """What slept on disk is found when it wakes, and after a stop while it slept."""
        options = ["cache.disk=64M", f"cache.folder={self.temporary_folder()}"]
        with Daemon(*options) as d, d.connect() as w:
            first = w.generate(**request(1))
            self.assertGreaterEqual(w.ask(sleep={})["slept"]["kept_tokens"], 384)
            self.check_wakes(w, first, 1, 384)
            w.ask(sleep={})
        with Daemon(*options) as d, d.connect() as w:
            self.check_wakes(w, first, 1, 384)

    def test_pinned(self):
        """While a prefix is pinned the blocks stay; pinning wakes."""
        with Daemon() as d, d.connect() as w:
            first = w.generate(**request(1))
            w.ask(sleep={"level": "SLEEP_WEIGHTS"})
            w.ask(pin_cache={"prompt_ids": {"ids": random_ids(1, N)}})
            self.assertEqual(asleep(d), "none")
            done = d.ctl("sleep")
            self.assertIn(b"asleep (weights)", done.stdout)
            self.assertIn(b"because prefixes are pinned", done.stdout)
            self.check_wakes(w, first, 1, 384)

    def test_not_while_requests_run(self):
        """Refused, to be tried again; the request goes on."""
        with Daemon() as d, d.connect() as w:
            w.begin(1000, {**LONG, "stream": True})
            with d.connect() as admin:
                error = admin.ask(sleep={})["error"]
                self.assertEqual((error["code"], error["retryable"]), ("ERROR_UNAVAILABLE", True))
                self.assertIn("in progress", error["message"])
            self.assertEqual(d.ctl("sleep", check=False).returncode, 4)
            w.send(1, cancel={"target": 1000})
            self.assertIsNone(w.collect([1000])[1000].error)
            d.wait_idle()
            d.ctl("sleep")

    def test_by_itself(self):
        """After some idle time; the blocks stay where there is no tier below; a reload changes the
        time, and ends it."""
        with Daemon("daemon.idle_sleep_s=1") as d, d.connect() as w:
            begin = time.monotonic()
            first = w.generate(**request(1))
            wait_for(lambda: asleep(d) != "none", scaled(10, 30), "it sleeps")
            self.assertGreaterEqual(time.monotonic() - begin, 1)
            self.assertEqual(asleep(d), "weights")
            self.check_wakes(w, first, 1, 384)
        path = self.temporary_folder() / "nvllmd.conf"
        path.write_text("[daemon]\n")
        with Daemon("cache.host_memory=64M", args=["--config", path]) as d, d.connect() as w:
            w.generate(**request(1))
            time.sleep(1.5)
            self.assertEqual(asleep(d), "none")
            path.write_text("[daemon]\nidle_sleep_s = 1\n")
            self.assertEqual(json.loads(d.ctl("reload", "--json").stdout)["changed"],
                             ["daemon.idle_sleep_s"])
            wait_for(lambda: asleep(d) == "all", scaled(10, 30), "it sleeps")
            self.check_wakes(w, w.generate(**request(1)), 1, 384)
            path.write_text("[daemon]\nidle_sleep_s = 0\n")
            d.ctl("reload")
            d.ctl("wake")
            time.sleep(1.5)
            self.assertEqual(asleep(d), "none")

    def test_beside_requests(self):
        """Requests that come at any moment of falling asleep and waking are all answered, and
        right."""
        with Daemon("cache.host_memory=64M") as d:
            with d.connect() as w:
                right = [w.generate(**request(i)).choices[0].ids for i in range(3)]

            def ask(i):
                with d.connect() as w:
                    for _ in range(scaled(40, 8)):
                        self.assertEqual(w.generate(**request(i)).choices[0].ids, right[i])
                        time.sleep(0.01)

            slept = [0]
            with d.connect() as admin:
                def let_sleep():
                    level = "SLEEP_ALL" if slept[0] % 2 else "SLEEP_WEIGHTS"
                    slept[0] += "slept" in admin.ask(sleep={"level": level})

                with beside(let_sleep):
                    at_once(ask, range(3))
                let_sleep()
            print(f"{slept[0]} times asleep between requests")
            self.assertGreater(slept[0], 0)

    def test_too_little_room_below(self):
        """What host memory has no room for is lost, and told; of the last prompt the beginning stays.
        By itself the model does not lose it."""
        options = "cache.kv_memory=64M", "cache.host_memory=8M"
        with Daemon(*options) as d, d.connect() as w:
            first = [w.generate(**request(i)) for i in range(3)]
            d.wait_idle()
            slept = w.ask(sleep={})["slept"]
            self.assertGreater(slept["lost_tokens"], 0)
            self.assertEqual(slept["kept_tokens"] + slept["lost_tokens"], 3 * 25 * 16)
            self.check_wakes(w, first[2], 2, slept["kept_tokens"])
        with Daemon(*options, "daemon.idle_sleep_s=1") as d, d.connect() as w:
            first = [w.generate(**request(i)) for i in range(3)]
            wait_for(lambda: asleep(d) != "none", scaled(10, 30), "it sleeps")
            self.assertEqual(asleep(d), "weights")
            for i in range(3):
                self.check_wakes(w, first[i], i, 384)

    def test_what_never_fits(self):
        """A request that is refused for its length does not wake the model."""
        with Daemon() as d, d.connect() as w:
            w.ask(sleep={})
            refused = w.generate(**{**request(1), "max_tokens": 40000})
            self.assertEqual(refused.error["code"], "ERROR_TOO_LONG")
            self.assertEqual(asleep(d), "all")

    def test_stop(self):
        """A signal ends a daemon that sleeps."""
        d = Daemon()
        self.addCleanup(d.close)
        d.ctl("sleep")
        d.process.send_signal(signal.SIGTERM)
        self.assertEqual(d.process.wait(timeout=scaled(10, 30)), 0, d.log())

    def test_files_changed(self):
        """Weights that changed while it slept are another model's: the daemon ends and says so."""
        folder = self.temporary_folder() / "model"
        shutil.copytree(MODEL, folder)
        d = Daemon(model=folder)
        self.addCleanup(d.close)
        with d.connect() as w:
            w.ask(sleep={})
            with open(folder / "model.safetensors", "r+b") as f:
                f.seek(-1, 2)
                last = f.read(1)
                f.seek(-1, 2)
                f.write(last)
            self.assertEqual(w.generate(**request(1)).error["code"], "ERROR_INTERNAL")
        self.assertEqual(d.process.wait(timeout=scaled(10, 30)), 1, d.log())
        self.assertIn("the model's files have changed", d.log())

    def test_bad_level(self):
        with Daemon() as d, d.connect() as w:
            self.assertEqual(w.ask(sleep={"level": "SLEEP_NONE"})["error"]["field"], "level")
            self.assertEqual(d.ctl("sleep", "--level", "deep", check=False).returncode, 2)
            self.assertEqual(asleep(d), "none")
