"""Fairness between users: who asks for little does not wait behind who asks for much.

With a backend whose steps take a set time, so that what is measured is the schedule. Two users
are needed: only root can be both."""

import pathlib
import statistics
import time

import roles
import wire
from harness import Case, beside, scaled, wait_for

STEP_US = 3000
TOKENS, LONG = 60, 1000
MAX_SEQS = 32
MANY = 200


class Fairness(Case):
    def start(self, *options):
        return self.instant_daemon(STEP_US, f"scheduler.max_seqs={MAX_SEQS}",
                                   "scheduler.max_seq_len=1024", *options)

    def request(self, number, tokens=TOKENS):
        return {"prompt_ids": {"ids": [number % 1000, number // 1000, 5]}, "max_tokens": tokens,
                "sampling": {"temperature": 0, "ignore_eos": True}}

    def latency(self, w, number, tokens):
        began = time.monotonic()
        answer = w.generate(**self.request(number, tokens))
        self.assertIsNone(answer.error)
        return time.monotonic() - began

    def compare(self, d, tokens):
        """How many times as long as alone one user's request takes while another's 200 are under
        way."""
        rounds = scaled(8, 2)
        with roles.connect(d, roles.USER) as w, roles.connect(d, roles.OTHER) as other:
            alone = statistics.median(self.latency(w, i, tokens) for i in range(9))
            waiting, times = set(), []
            for i in range(rounds):
                while len(waiting) < MANY:  # answers of every length
                    waiting.add(other.new_id())
                    other.send(other.last_id, generate=self.request(
                        1000 + other.last_id, other.last_id * 37 % (2 * tokens) + 1))
                time.sleep(0.1 + 0.03 * i)  # some are over, others have begun
                times.append(self.latency(w, 100 + i, tokens))
                waiting -= self.ended(other, waiting)
        ratio = statistics.median(times) / alone
        print(f"{1e3 * alone:.0f} ms alone, {1e3 * statistics.median(times):.0f} ms (worst "
              f"{1e3 * max(times):.0f}) among {MANY} of another user: {ratio:.2f} times")
        return ratio

    def test_one_among_two_hundred(self):
        """It takes at most twice as long as alone."""
        roles.need_root()
        with self.start() as d:
            self.assertLess(self.compare(d, TOKENS), scaled(2, 6))

    def test_small_requests_without_blocks(self):
        """A user's small requests do not wait for blocks that another user's many answers hold."""
        roles.need_root()
        with self.start("cache.kv_memory=1024", "scheduler.max_seqs=256") as d, \
                roles.connect(d, roles.USER) as w, roles.connect(d, roles.OTHER) as other:
            alone = statistics.median(self.latency(w, i, 3) for i in range(9))
            for _ in range(8):
                other.send(other.new_id(), generate={**self.request(other.last_id, LONG), "n": 64})
            time.sleep(scaled(1, 2))
            times = [self.latency(w, 100 + i, 3) for i in range(50)]
        print(f"{1e3 * alone:.0f} ms alone, {1e3 * statistics.median(times):.0f} ms (worst "
              f"{1e3 * max(times):.0f}) without blocks")
        self.assertLess(statistics.median(times) / alone, scaled(3, 6))
        self.assertLess(max(times), LONG * STEP_US / 2e6, "one waits until an answer has ended")

    def ended(self, w, waiting):
        """Those of the waiting whose end has come meanwhile; their answers are in the socket."""
        ended = set()
        id_ = w.new_id()
        w.send(id_, get_status={})
        while True:
            reply = w.receive()
            if reply["id"] == id_:
                return ended
            if "delta" not in reply:
                self.assertIn("done", reply)
                self.assertIn(reply["id"], waiting)
                ended.add(reply["id"])


class Shares(Case):
    """scheduler.shares says how much of the service each user has, of slots and of blocks, where both
    want more than there is; and again after it was changed."""

    N = 1000  # requests of each, that more than fill either's share for as long as is looked

    def setUp(self):
        roles.need_root()
        self.file = self.temporary_folder() / "nvllmd.conf"

    def write(self, user, other):
        self.file.write_text("[scheduler]\n"
                             f"shares = {roles.USER}:{user} {roles.OTHER}:{other}\n")

    def ask_for_much(self, w, request):
        for i in range(1, self.N + 1):
            w.send(i, generate=request(i))

    def parts(self, root, steps, what):
        """USER's part of what the two have of it, in the mean of some steps, for which a slow machine
        takes longer."""
        sums = {roles.USER: 0, roles.OTHER: 0}
        end, until = root.status().get("steps", 0) + steps, time.monotonic() + scaled(60, 300)
        while root.status().get("steps", 0) < end:
            self.assertLess(time.monotonic(), until, "no more steps")
            for uid, n in what(root):
                sums[uid] += n
            time.sleep(0.02)
        return sums[roles.USER] / max(1, sum(sums.values()))

    @staticmethod
    def running(root):
        """(uid, 1) of each that has a slot."""
        # Those with a slot come first, and to read of all others takes a slow machine long.
        for r in root.ask(list_requests={"limit": MAX_SEQS})["request_list"]["requests"]:
            if r["state"] in ("REQUEST_PREFILL", "REQUEST_DECODE"):
                yield r["uid"], 1

    @staticmethod
    def blocks(root):
        for u in root.ask(get_blocks={})["block_report"]["uids"]:
            yield u["uid"], u.get("used", 0)

    def share(self, root, what, expected):
        """USER's part once it has settled. How long that takes depends on the machine, so this
        waits until a glance is as expected, or a minute; what counts is the longer look after."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if abs(self.parts(root, 300, what) - expected) < 0.08:  # as long as a request takes
                break
        return self.parts(root, 1000, what)

    def check(self, d, request, what, delta):
        """Three to one, then after a reload one to three; alone, each has all there is."""
        with d, d.connect() as root, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.OTHER) as other:
            self.ask_for_much(w, request)
            self.assertEqual(self.share(root, what, 1), 1)
            self.ask_for_much(other, request)
            before = self.share(root, what, 0.75)
            self.write(100, 300)
            self.assertEqual(root.ask(reload={})["reloaded"]["changed"], ["scheduler.shares"])
            after = self.share(root, what, 0.25)
        print(f"of three to one {before:.2f}, of one to three {after:.2f}")
        self.assertAlmostEqual(before, 0.75, delta=delta)
        self.assertAlmostEqual(after, 0.25, delta=delta)

    def start(self, row_us, *options):
        """What is shared is the time that rows take. If they took none, a late step of a busy
        machine would decide what each costs, and who has had more than its share."""
        self.write(300, 100)
        return self.instant_daemon(STEP_US // 3, "scheduler.max_seq_len=1024", *options,
                                   row_us=row_us, args=["--config", self.file])

    # Answers have many lengths: those of one length end together, and all that they have changes
    # hands at a time, so that a mean over seconds is one of few draws.

    def test_slots(self):
        """Where slots are wanting."""
        self.check(self.start(90, f"scheduler.max_seqs={MAX_SEQS}"),
                   lambda i: {"prompt_ids": {"ids": [i % 1000, i // 1000, 5]},
                              "max_tokens": 150 + i * 37 % 201,
                              "sampling": {"temperature": 0, "ignore_eos": True}},
                   self.running, 0.05)

    def test_blocks(self):
        """Where blocks are: there are 1024, and each request wants 21 to 34.

        What is shared exactly is time. Blocks follow it as sequences end or yield, and only where a
        user has 1/16 beyond its part."""
        self.check(self.start(30, "cache.kv_memory=1024", "scheduler.max_seqs=256"),
                   lambda i: {"prompt_ids": {"ids": [i % 1000, i // 1000] * 40},
                              "max_tokens": 250 + i * 37 % 201,
                              "sampling": {"temperature": 0, "ignore_eos": True}},
                   self.blocks, 0.1)


class Starvation(Case):
    """One user's small requests beside answers that need more blocks than there are."""

    def test_small_beside_seven_long(self):
        """Each is answered within 2 s while seven long answers run in a pool for four: it passes those
        that were preempted and wait for many blocks."""
        tokens = scaled(3000, 1000)
        blocks = 4 * (tokens // 16 + 1)
        times = []
        with self.instant_daemon(STEP_US, f"cache.kv_memory={blocks}",
                                 "scheduler.max_seq_len=4096") as d, \
                d.connect() as w, d.connect() as long:
            for i in range(1, 8):
                long.send(i, generate={
                    "prompt_ids": {"ids": [i, 5]}, "max_tokens": tokens,
                    "sampling": {"temperature": 0, "ignore_eos": True}})
            wait_for(lambda: w.status()["requests"].get("running") == 7, 10, "all have begun")
            while any(w.status()["requests"].get(k) for k in ("running", "waiting")):
                began = time.monotonic()
                answer = w.generate(chat={"messages": [{"role": "user", "content": "Spell lion."}]},
                                    max_tokens=8)
                times.append(time.monotonic() - began)
                self.assertIsNone(answer.error)
                time.sleep(0.3)
            answers = long.collect(range(1, 8))
            preempted = w.status()["preemptions"]
        print(f"{len(times)} requests beside seven of {tokens} tokens, {preempted} preemptions: "
              f"the slowest took {max(times):.2f} s")
        self.assertEqual({len(a.choices[0].ids) for a in answers.values()}, {tokens})
        self.assertGreater(preempted, 2)
        self.assertGreater(len(times), 3)
        self.assertLess(max(times), 2)


class Questions(Case):
    """To look through a large cache takes longer than a step of a fast device."""

    def fill(self, w, n):
        """As many prefixes of a block."""
        for first in range(0, n, 1000):
            ids = range(first + 1, first + 1001)
            w.raw(b"".join(wire.frame(i, generate={
                "prompt_ids": {"ids": [i % 1999, i // 1999] + [7] * 16}, "max_tokens": 1})
                for i in ids))
            w.collect(ids)

    def computing_ms(self, d):
        """CPU time of all threads but the loop's."""
        return sum(int(path.read_text().split()[0]) / 1e6
                   for path in pathlib.Path(f"/proc/{d.pid}/task").glob("*/schedstat")
                   if path.parent.name != str(d.pid))

    def test_endless_inspect_requests(self):
        """Inspect requests take about a tenth of the engine thread's time."""
        with self.instant_daemon(
                1000, "cache.kv_memory=200000", "scheduler.max_seq_len=32768",
                "limits.output_bytes=64M", "limits.output_pause_bytes=64M") as d, \
                d.connect() as asking, d.connect() as w:
            self.fill(w, scaled(20000, 5000))
            sizes, frames = [], [wire.frame(i, show_cache={}) for i in range(1, 5)]

            def ask_on():
                """Keeps four inspect requests in progress; notes the bytes of their answers."""
                asking.raw(b"" if sizes else b"".join(frames))
                sizes.append(asking.skip())
                asking.raw(frames[(len(sizes) - 1) % 4])  # their answers come in order

            def part(n):
                began, before = time.monotonic(), self.computing_ms(d)
                w.generate(prompt_ids={"ids": [1, 2, 3]}, max_tokens=n,
                           sampling={"temperature": 0, "ignore_eos": True})
                return (self.computing_ms(d) - before) / (time.monotonic() - began) / 1000

            alone = part(1000)
            with beside(ask_on):
                asked = part(1000)
            print(f"{100 * alone:.0f} % of a core alone, {100 * asked:.0f} % with inspect requests")
            self.assertLess(asked - alone, scaled(0.3, 0.5))
            self.assertGreater(len(sizes), 1)
            self.assertGreater(min(sizes), 50000, "a list of many prefixes, not a refusal")
