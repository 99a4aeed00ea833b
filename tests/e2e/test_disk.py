"""KV blocks on disk: a prefix is found after a restart, and what is wrong on disk is a miss."""

import json
import os
import pathlib
import random
import resource
import shutil
import time

import roles
from harness import MODEL, Case, Daemon, at_once, scaled
from test_cache import random_ids

N = 400
PAGE = 4096
BLOCK = 1 << 18
RECORD = 96 + 16 * 4  # bytes, with 16 tokens


def request(seed, n=N, **extra):
    return {"prompt_ids": {"ids": random_ids(seed, n)}, "max_tokens": 4,
            "sampling": {"temperature": 0, "ignore_eos": True}, **extra}


def cached(answer):
    return answer.done["usage"].get("cached_tokens", 0)


class Disk(Case):
    def setUp(self):
        super().setUp()
        self.folder = self.temporary_folder()
        self.options = [f"cache.folder={self.folder}", "cache.disk=64M"]
        self.blocks, self.index = self.folder / "kv-blocks", self.folder / "kv-index"

    def daemon(self, *options, **more):
        return Daemon(*self.options, *options, **more)

    def ask(self, *requests, options=(), **more):
        """The answers of one daemon's life, from its start to its stop, and its log."""
        with self.daemon(*options, **more) as d, d.connect() as w:
            answers = [w.generate(**r) for r in requests]
            d.terminate()
            return answers, d.log()

    def ids(self, answers):
        return [a.choices[0].ids for a in answers]


class Restart(Disk):
    def test_found_after_a_restart(self):
        """All but the last block of a prompt, with the same tokens, at each start."""
        requests = [request(1), request(2, cache_salt=b"salt"), request(3, n=1000)]
        first, log = self.ask(*requests)
        self.assertEqual([cached(a) for a in first], [0, 0, 0], log)
        for path in self.blocks, self.index:
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        for _ in range(2):
            again, log = self.ask(*requests)
            self.assertEqual(self.ids(again), self.ids(first))
            self.assertEqual([cached(a) for a in again], [384, 384, 992], log)
            self.assertNotIn("cache_disk", log)
        others = [request(1, cache_salt=b"salt"), request(2), request(2, cache_salt=b"other")]
        self.assertEqual([cached(a) for a in self.ask(*others)[0]], [0, 0, 0])

    def test_status_and_explain(self):
        """Status counts blocks on disk; explain finds them."""
        self.ask(request(1))
        with self.daemon() as d, d.connect() as w:
            disk = d.status()["disk"]
            self.assertGreaterEqual(disk["cached"], 24)
            self.assertGreater(disk["total"], disk["cached"])
            found = w.ask(explain={"prompt_ids": request(1)["prompt_ids"]})["explanation"]
            self.assertGreaterEqual(found["cached_tokens"], 384)
            self.assertEqual(found["disk_tokens"], found["cached_tokens"])
            self.assertIn(f"{found['disk_tokens']} of them on disk", found["text"])
            self.assertRegex(d.ctl("cache").stdout, rb" disk ")
            w.generate(**request(1))
            self.assertGreaterEqual(d.status()["disk"]["loaded"], 24)
            prefix = json.loads(d.ctl("cache", "--json").stdout)["prefixes"][0]
            self.assertGreater(prefix["blocks"], 24)
            self.assertLessEqual(prefix["disk_blocks"], 1)
            self.assertRegex(d.ctl("status").stdout,
                             rb"disk +\d+ of \d+ blocks cached, \d+ stored, \d+ loaded; \d")

    def test_clear_outlives_a_restart(self):
        """What was cleared is not found again, on disk either."""
        self.ask(request(1), request(2))
        with self.daemon() as d:
            d.ctl("cache", "clear", "--all")
        self.assertEqual([cached(a) for a in self.ask(request(1), request(2))[0]], [0, 0])

    def test_pinned(self):
        """What is pinned is written, too, and what begins with it is found again."""
        ids = random_ids(1, N)
        with self.daemon() as d, d.connect() as w:
            w.generate(**request(1))
            w.ask(pin_cache={"prompt_ids": {"ids": ids[:160]}})
            self.assertEqual(w.ask(show_cache={})["cache_report"]["pinned_blocks"], 10)
        self.assertEqual(cached(self.ask(request(1))[0][0]), 384)

    def test_of_one_user(self):
        """What one user has sent is not found by another after a restart, but by itself."""
        roles.need_root()

        def ask(uid, **more):
            with self.daemon(**more) as d, roles.connect(d, uid) as w:
                return cached(w.generate(**request(1)))

        self.assertEqual([ask(uid) for uid in (roles.USER, roles.OTHER, roles.USER, roles.OTHER)],
                         [0, 0, 384, 384])

    def test_of_one_scope(self):
        """With another scope nothing is found: who may find it has changed."""
        self.ask(request(1))
        shared = ["cache.scope=all"]
        self.assertEqual([cached(self.ask(request(1), options=o)[0][0]) for o in (shared, shared, [])],
                         [0, 384, 0])

    def test_of_so_many_ranks(self):
        """Another number of ranks finds nothing: each has its own part of a block."""
        first = self.ask(request(1))[0]
        ranks = ["model.tensor_parallel=2"]
        again = [self.ask(request(1), options=o)[0][0] for o in (ranks, ranks, [])]
        self.assertEqual([cached(a) for a in again], [0, 384, 0])
        self.assertEqual(self.ids(again[:2]), self.ids([again[0], again[0]]))
        self.assertEqual(self.ids(again[2:]), self.ids(first))

    def test_of_one_model(self):
        """Weights that were written anew are others, whatever they hold."""
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        for expected in 0, 384:
            self.assertEqual(cached(self.ask(request(1), model=model)[0][0]), expected)
        os.utime(model / "model.safetensors")
        self.assertEqual(cached(self.ask(request(1), model=model)[0][0]), 0)

    def test_cleared_while_it_is_written(self):
        """A clear beside stores under way, then kill -9 or a stop: it is not found again."""
        n = scaled(2000, 400)
        for stop in (Daemon.kill, Daemon.terminate) * scaled(2, 1):
            with self.daemon() as d, d.connect() as w:
                w.generate(**request(1, n=n))
                d.ctl("cache", "clear", "--all")
                if stop == Daemon.kill:
                    time.sleep(0.1)  # erasing takes place behind the answer
                stop(d)
            self.assertEqual([cached(a) for a in self.ask(request(1, n=n))[0]], [0])
            for path in self.blocks, self.index:
                path.unlink()

    def test_through_host_memory(self):
        """Blocks go by host memory where there is some; by turns of prompts that do not fit."""
        options = ["cache.kv_memory=8M", "cache.host_memory=24M", "scheduler.max_seq_len=450"]
        requests = [request(seed) for seed in range(6)]
        with self.daemon(*options) as d, d.connect() as w:
            first = [w.generate(**r) for r in requests]
            d.wait_idle()
            again = [w.generate(**r) for r in requests]
            self.assertEqual(self.ids(again), self.ids(first))
            self.assertGreater(d.status()["disk"]["loaded"], 0)
        again, log = self.ask(*requests, options=options)
        self.assertEqual(self.ids(again), self.ids(first))
        self.assertEqual([cached(a) for a in again], [384] * 6, log)

    def test_bounded(self):
        """The oldest go where the space is used up, and the file does not grow."""
        self.options[1] = "cache.disk=3M"
        first, _ = self.ask(*[request(seed) for seed in range(4)])
        self.assertLessEqual(self.blocks.stat().st_size, 3 << 20)
        again, log = self.ask(*[request(seed) for seed in range(4)])
        self.assertEqual(self.ids(again), self.ids(first))
        self.assertGreater(sum(cached(a) for a in again), 0, log)


class Faults(Disk):
    def expect_misses(self, first, *requests, named=True, **more):
        """Right answers all the same; the log names it once."""
        again, log = self.ask(*requests, **more)
        self.assertEqual(self.ids(again), self.ids(first))
        self.assertEqual(log.count("cache_disk"), 1 if named else 0, log)
        return [cached(a) for a in again]

    def flip(self, path, at):
        with open(path, "r+b") as f:
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 0x10]))

    def test_flipped_bits(self):
        """In blocks and in records: never a wrong token."""
        rng = random.Random(5)
        for _ in range(scaled(6, 1)):
            for path in filter(pathlib.Path.is_file, self.folder.iterdir()):
                path.unlink()
            first, _ = self.ask(request(1))
            for block in rng.sample(range(24), 2):  # one of the 25 is not looked for
                self.flip(self.blocks, BLOCK * block + rng.randrange(BLOCK))
            self.assertLess(self.expect_misses(first, request(1))[0], 384)
            data = self.index.read_bytes()
            records = [at for at in range(PAGE, len(data), RECORD) if any(data[at:at + 16])]
            self.flip(self.index, rng.choice(records) + rng.randrange(RECORD))
            self.expect_misses(first, request(1))

    def test_torn_and_cut_files(self):
        """A file cut anywhere, or without its beginning."""
        first, _ = self.ask(request(1))
        os.truncate(self.blocks, 1 << 18)
        self.expect_misses(first, request(1))
        os.truncate(self.index, PAGE + 3 * RECORD + 7)
        self.expect_misses(first, request(1), named=False)
        self.index.write_bytes(b"what is this?" * 1000)
        self.assertEqual(self.expect_misses(first, request(1)), [0])
        self.index.write_bytes(b"")
        self.assertEqual(self.expect_misses(first, request(1), named=False), [0])

    def test_of_another_kind(self):
        """Blocks computed in another way are dropped."""
        first, _ = self.ask(request(1))
        again, log = self.ask(request(1), options=["cache.kv_dtype=bf16"])
        self.assertEqual(cached(again[0]), 0)
        self.assertIn("another model", log)
        self.assertEqual(self.expect_misses(first, request(1)), [0])

    def test_no_such_place(self):
        """Files that cannot be opened, or that another daemon has: the daemon serves without them."""
        first, _ = self.ask(request(1))
        self.blocks.unlink()
        self.blocks.mkdir()
        self.assertEqual(self.expect_misses(first, request(1)), [0])
        self.blocks.rmdir()
        with self.daemon() as d, self.daemon() as other, other.connect() as w:
            self.assertEqual(self.ids([w.generate(**request(1))]), self.ids(first))
            self.assertIn("another process uses it", other.log())
            self.assertNotIn("cache_disk", d.log())

    def test_full_disk(self):
        """Files may not grow: nothing is found later, and nothing else happens."""
        with self.daemon() as d, d.connect() as w:
            resource.prlimit(d.pid, resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
            first = [w.generate(**request(1))]
            d.terminate()
            self.assertEqual(d.log().count("cache_disk"), 1, d.log())
        self.assertLess(self.expect_misses(first, request(1), named=False)[0], 384)

    def test_killed_at_any_time(self):
        """kill -9 while blocks are written: each start serves, with the right tokens."""
        rng = random.Random(6)
        options = ["cache.kv_memory=8M", "scheduler.max_seq_len=450"]
        requests = [request(seed) for seed in range(6)]
        expected = self.ids(self.ask(*requests, options=options)[0])
        found = 0
        for _ in range(scaled(20, 2)):
            with self.daemon(*options) as d:
                def one(i):
                    with d.connect() as w:
                        return w.generate(**requests[i])

                wanted = rng.sample(range(len(requests)), 3)
                answers = at_once(one, wanted)
                self.assertEqual(self.ids(answers), [expected[i] for i in wanted])
                found += sum(cached(a) > 0 for a in answers)
                time.sleep(rng.random() * 0.05)
                d.kill()
                self.assertNotIn("cache_disk", d.log())
        self.assertGreater(found, 0)
