"""A prefix that one program has sent is not computed again for the next."""

import json
import random

from harness import Case, Daemon, scaled

FEW_TOKENS = {"max_tokens": 4, "sampling": {"temperature": 0, "ignore_eos": True}}


def random_ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(1900) for _ in range(n)]


class AcrossClients(Case):
    def test_second_process_finds_the_prompt_of_the_first(self):
        """A long prompt twice, from two processes in sequence."""
        n = scaled(6000, 600)
        text = self.temporary_folder() / "in.jsonl"
        line = {"prompt_ids": random_ids(1, n), "max_tokens": 4, "temperature": 0}
        text.write_text(json.dumps(line) + "\n")
        with Daemon() as d:
            first, second = [
                json.loads(d.ctl("batch", "--input", text, "--output", "-").stdout)
                for _ in range(2)]
            before = d.status()["prefix_cache"]
        self.assertEqual(first["usage"], {**first["usage"], "prompt_tokens": n, "cached_tokens": 0})
        self.assertGreaterEqual(second["usage"]["cached_tokens"], 0.98 * n if n >= 6000 else n - 32)
        self.assertLess(second["usage"]["cached_tokens"], n)  # one token is always computed
        self.assertEqual(second["token_ids"], first["token_ids"])
        self.assertGreaterEqual(before["queried_tokens"], 2 * n - 1)
        self.assertEqual(before["hit_tokens"], second["usage"]["cached_tokens"])
        a, b = first["timing"]["ttft_ms"], second["timing"]["ttft_ms"]
        cached = second["usage"]["cached_tokens"]
        print(f"prefix cache: {cached}/{n} cached, ttft {a:.1f} ms then {b:.1f} ms: {b / a:.1%}")
        self.assertLess(b, a)

    def test_salt_narrows(self):
        """A prompt is found only under the same salt."""
        request = {"prompt_ids": {"ids": random_ids(2, 256)}, **FEW_TOKENS}
        with Daemon() as d, d.connect() as w:
            def cached(**extra):
                return w.generate(**request, **extra).done["usage"].get("cached_tokens", 0)

            self.assertEqual(cached(), 0)
            self.assertEqual(cached(cache_salt=b"a"), 0)
            self.assertEqual(cached(cache_salt=b"b"), 0)
            for salt in {}, {"cache_salt": b"a"}, {"cache_salt": b"b"}:
                self.assertGreaterEqual(cached(**salt), 240)

    def test_comes_back_from_host_memory(self):
        """By turns two prompts of which the pool has room for one: each is found, with the same
        tokens, and status counts what was copied."""
        requests = [{"prompt_ids": {"ids": random_ids(seed, 400)}, **FEW_TOKENS} for seed in (3, 4)]
        with Daemon("cache.kv_memory=8M", "cache.host_memory=64M", "scheduler.max_seq_len=450") as d, \
                d.connect() as w:
            first = [w.generate(**r) for r in requests]
            host = d.wait_idle()["host_memory"]
            self.assertGreater(host["stored"], 0)
            self.assertGreater(host["total"], 100)
            for i in (0, 1, 0, 1):
                found = w.ask(explain={"prompt_ids": requests[i]["prompt_ids"]})["explanation"]
                self.assertGreaterEqual(found["cached_tokens"], 384)
                again = w.generate(**requests[i])
                self.assertEqual(again.choices[0].ids, first[i].choices[0].ids)
                self.assertGreaterEqual(again.done["usage"]["cached_tokens"], 384)
            self.assertGreater(d.status()["host_memory"]["loaded"], 50)
            self.assertRegex(d.ctl("status").stdout,
                             rb"host memory +\d+ of \d+ blocks cached, \d+ stored, \d+ loaded; 64")

    def test_secret_is_kept_in_the_folder(self):
        """Drawn once, the same after a restart; one that others can read is refused by name."""
        folder = self.temporary_folder()
        secret = folder / "cache-secret"
        with Daemon(f"cache.folder={folder}"):
            drawn = secret.read_bytes()
        self.assertEqual(secret.stat().st_mode & 0o777, 0o600)
        with Daemon(env={"STATE_DIRECTORY": str(folder)}):
            self.assertEqual(secret.read_bytes(), drawn)
        secret.chmod(0o644)
        d = Daemon(f"cache.folder={folder}", wait=False)
        self.assertEqual(d.process.wait(timeout=scaled(30, 60)), 2, d.log())
        self.assertIn(f"{secret}: mode 644", d.log())
