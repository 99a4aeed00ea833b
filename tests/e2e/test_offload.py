"""Requests that the device has no room for: their blocks are in host memory, and all is as with
room for them."""

from harness import Case, Daemon, at_once, scaled
from test_cache import random_ids

SMALL = ("cache.kv_memory=8M", "cache.host_memory=256M")  # 512 tokens and 16,384 of 16 KiB


def request(seed, n_ids, max_tokens=24, **extra):
    return {"prompt_ids": {"ids": random_ids(seed, n_ids)}, "max_tokens": max_tokens,
            "sampling": {"temperature": 0, "ignore_eos": True}, **extra}


def cached(answer):
    return answer.done["usage"].get("cached_tokens", 0)


class Offload(Case):
    def right(self, requests):
        with Daemon() as d, d.connect() as w:
            return [[c.ids for c in w.generate(**r).choices.values()] for r in requests]

    def test_larger_than_the_device(self):
        """The same tokens, cached afterwards; longer than both tiers, it is refused by its sizes."""
        requests = [request(1, scaled(4000, 900)), request(2, 490, max_tokens=40),
                    request(3, scaled(1000, 600), n=2)]
        right = self.right(requests)
        with Daemon(*SMALL) as d, d.connect() as w:
            for _ in range(2):
                answers = [w.generate(**r) for r in requests]
                self.assertEqual([[c.ids for c in a.choices.values()] for a in answers], right)
            n = len(requests[0]["prompt_ids"]["ids"])
            self.assertGreaterEqual(cached(answers[0]), n - 16)
            d.wait_idle()
            error = w.generate(**request(4, 16300)).error
            self.assertEqual((error["code"], error["field"]), ("ERROR_TOO_LONG", "max_tokens"))
            self.assertIn("15872 tokens", error["message"])
            self.assertIn("cache.host_memory", error["message"])

    def test_beside_others(self):
        """Several at once and many small ones: each gets what it gets alone."""
        requests = [request(10 + i, 700 + 50 * i, priority="PRIORITY_LOW" if i else
                            "PRIORITY_NORMAL") for i in range(3)]
        requests += [request(20 + i, 40 + 20 * i, max_tokens=30) for i in range(scaled(16, 6))]
        right = self.right(requests)
        with Daemon(*SMALL) as d:
            def ask(r):
                with d.connect() as w:
                    return [c.ids for c in w.generate(**r).choices.values()]

            for _ in range(2):
                self.assertEqual(at_once(ask, requests), right)
            d.wait_idle()

    def test_default_length(self):
        """Without max_tokens a prompt that fits the device gets an answer that does."""
        with Daemon(*SMALL) as d, d.connect() as w:
            r = request(1, 100)
            del r["max_tokens"]
            self.assertEqual(w.generate(**r).done["usage"]["completion_tokens"], 413)
            r["prompt_ids"]["ids"] = random_ids(2, 513)
            w.begin(1000, {**r, "stream": True})
            self.assertIn("delta", w.receive())  # a second one
            w.send(1001, cancel={"target": 1000})
            w.collect([1000])

    def test_found_on_disk(self):
        """After a restart its blocks come from the disk."""
        options = [*SMALL, "cache.disk=256M", f"cache.folder={self.temporary_folder()}"]
        answers = []
        for _ in range(2):
            with Daemon(*options) as d, d.connect() as w:
                answers.append(w.generate(**request(5, scaled(2000, 800))))
        self.assertEqual(*[a.choices[0].ids for a in answers])
        self.assertGreaterEqual(cached(answers[1]), scaled(2000, 800) - 16)
