"""Hostile model folders: every mutation of the bundled one is refused with an error that names file
and field, by nvllmd and by nvllmd check, or has the right answers."""

import collections
import json
import pathlib
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

from harness import GOLDEN, SMALL, Case, Daemon, config, run_command, scaled
from mutations import Golden, NoChat, Refused, all_mutations, build

AT_LEAST = 1000  # mutations
SECONDS = 20     # of one start, or refusal


def reason_of(log):
    """What a daemon that did not start said last, unquoted."""
    quoted = re.findall(r'level=error .*?text="((?:[^"\\]|\\.)*)"', log)
    return re.sub(r"\\(.)", r"\1", quoted[-1]) if quoted else log


class Mutations(Case):
    @classmethod
    def setUpClass(cls):
        cases = json.loads((GOLDEN / "nvllm-tiny-greedy.json").read_text())
        cls.cases = [c for c in cases if c["min_margin"] > 0.1 and len(c["greedy_ids"]) < 20][:3]
        assert len(cls.cases) == 3

    def check(self, folder):
        """The exit status of nvllmd check, and its lines by their first word."""
        done = run_command([config.nvllmd, "check", "--model", folder], check=False,
                           timeout=scaled(SECONDS, 6 * SECONDS))
        self.assertEqual(done.stderr, b"")
        lines = collections.defaultdict(list)
        for line in done.stdout.decode().splitlines():
            lines[line[:5].strip()].append(line[7:])
        return done.returncode, lines

    def refused(self, folder, texts, started):
        status, lines = self.check(folder)
        self.assertEqual(status, 1)
        first = lines["wrong"][0]
        self.assertTrue(first.startswith(texts[0] + ": "), first)
        for text in texts:
            self.assertIn(text, first)
        if not started:
            return
        done = subprocess.run([config.nvllmd, "--model", folder, "--socket", folder / "s",
                               "--backend", "cpu", "--set", SMALL],
                              capture_output=True, timeout=scaled(SECONDS, 6 * SECONDS))
        log = done.stderr.decode()
        self.assertIn(done.returncode, (1, 2), log)
        self.assertEqual(reason_of(log).removeprefix(f"{folder}: "), first)

    def answers(self, folder, no_chat):
        status, lines = self.check(folder)
        self.assertEqual((status, lines["wrong"]), (0, []))
        self.assertEqual(bool(lines["note"]), bool(no_chat and no_chat.noted), lines)
        if no_chat and no_chat.noted:
            for text in no_chat.texts:
                self.assertIn(text, lines["note"][0])
        with Daemon(SMALL, model=folder) as d, d.connect() as w:
            for case in self.cases:
                request = {"max_tokens": 20,
                           "sampling": {"temperature": 0, "stop_token_ids": [1993]}}
                self.assertEqual(self.ids(w, prompt=case["prompt"], **request), case["greedy_ids"])
                question = case["prompt"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
                chat = {"messages": [{"role": "user", "content": question}],
                        "enable_thinking": False}
                if not no_chat:
                    self.assertEqual(self.ids(w, chat=chat, **request), case["greedy_ids"])
            if no_chat:
                error = w.generate(chat=chat, **request).error
                for text in no_chat.texts:
                    self.assertIn(text, error["message"])
                # Nothing is left behind by what has failed.
                self.assertEqual(self.ids(w, prompt=case["prompt"], **request), case["greedy_ids"])

    def ids(self, wire, **request):
        answer = wire.generate(**request)
        self.assertIsNone(answer.error)
        return answer.choices[0].ids

    def run_one(self, mutation, started):
        """None, or what was wrong."""
        with tempfile.TemporaryDirectory(prefix="nvllm-e2e-") as folder:
            build(pathlib.Path(folder), mutation.files)
            try:
                if isinstance(mutation.wanted, Refused):
                    self.refused(pathlib.Path(folder), mutation.wanted.texts, started)
                else:
                    no_chat = mutation.wanted if isinstance(mutation.wanted, NoChat) else None
                    self.answers(pathlib.Path(folder), no_chat)
            except (AssertionError, subprocess.TimeoutExpired, OSError) as e:
                return f"{mutation.name}\n  wanted {mutation.wanted}\n  {e}"

    def test_all(self):
        """Each mutation does what is expected of it."""
        mutations = all_mutations()
        names = collections.Counter(m.name for m in mutations)
        self.assertEqual([n for n, k in names.items() if k > 1], [])
        with ThreadPoolExecutor(2) as pool:
            # nvllmd check loads a folder as the daemon does; under sanitizers few daemons are
            # started only to be refused.
            started = [i % scaled(1, 5) == 0 for i in range(len(mutations))]
            wrong = [w for w in pool.map(self.run_one, mutations, started) if w]
        kinds = collections.Counter(type(m.wanted) for m in mutations)
        print(f"{len(mutations)} mutations: {kinds[Refused]} refused, "
              f"{kinds[NoChat]} without chats, {kinds[Golden]} with the right answers; "
              f"{len(wrong)} wrong", flush=True)
        self.assertGreaterEqual(len(mutations), AT_LEAST)
        self.assertEqual(len(wrong), 0, "\n".join(wrong))
