"""Fairness between users: who asks for little does not wait behind who asks for much.

With a backend whose steps take the same time whatever is in them, so that what is measured is the
schedule. Two users are needed: only root can be both."""

import statistics
import struct
import time

import harness
import roles
import wire
from harness import Case, Daemon, config, scaled

STEP_US = 3000
TOKENS = 60
MAX_SEQS = 32
MANY = 200


class Fairness(Case):
    def start(self):
        folder = self.temporary_folder()
        # As tests/bench/instant.h has it: the time of a step, then a time for each token.
        (folder / "instant").write_bytes(struct.pack("<95Q", STEP_US, *[0] * 94))
        return Daemon(f"backend.module={config.module}", f"cuda.cache_folder={folder}",
                      f"scheduler.max_seqs={MAX_SEQS}", "scheduler.max_seq_len=1024",
                      backend="cuda")

    def request(self, number, tokens=TOKENS):
        return {"prompt_ids": {"ids": [number % 1000, number // 1000, 5]}, "max_tokens": tokens,
                "sampling": {"temperature": 0, "ignore_eos": True}}

    def latency(self, w, number):
        began = time.monotonic()
        answer = w.generate(**self.request(number))
        self.assertIsNone(answer.error)
        return time.monotonic() - began

    def test_one_among_two_hundred(self):
        """One user has 200 requests under way, the other one: it takes at most twice as long as
        alone."""
        roles.need_root()
        rounds = scaled(8, 2)
        with self.start() as d, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.OTHER) as other:
            alone = statistics.median(self.latency(w, i) for i in range(5))
            waiting, times = set(), []
            for i in range(rounds):
                while len(waiting) < MANY:  # answers of every length
                    waiting.add(other.new_id())
                    other.send(other.last_id, generate=self.request(
                        1000 + other.last_id, other.last_id * 37 % (2 * TOKENS) + 1))
                time.sleep(0.1 + 0.03 * i)  # some are over, others have begun
                times.append(self.latency(w, 100 + i))
                waiting -= self.ended(other, waiting)
            ratio = statistics.median(times) / alone
            print(f"{1e3 * alone:.0f} ms alone, {1e3 * statistics.median(times):.0f} ms (worst "
                  f"{1e3 * max(times):.0f}) among {MANY} of another user: {ratio:.2f} times")
            self.assertLess(ratio, scaled(2, 6))

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


if __name__ == "__main__":
    harness.main()
