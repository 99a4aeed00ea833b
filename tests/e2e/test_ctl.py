"""nvllmctl as people and scripts use it."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from harness import (MODEL, SMALL, Case, Daemon, SharedDaemon, config, parse_jsonl, run_command,
                     scaled)
from test_ctl_alone import Fake
from test_ctl_chat import Typist

SUM = "What is 17 + 25?"
ENDLESS = "generate", "--raw", "--max-tokens", 30000, "--ignore-eos"


class Generate(SharedDaemon):
    def test_a_chat_has_all_that_its_template_reads(self):
        """Names, ids, documents and variables go from JSON to the template, and errors come back."""
        template = ("{% for m in messages %}{{ m.name }}|{{ m.tool_call_id }}|"
                    "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.arguments.x }}"
                    "{% endfor %};{% endfor %}{{ documents[0].title }} {{ mood }}")
        chat = {"messages": [{"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function",
                     "function": {"name": "f", "arguments": {"x": 7}}}]},
                             {"role": "tool", "content": "49", "name": "f", "tool_call_id": "c1"}],
                "documents": [{"title": "T"}], "chat_template_kwargs": {"mood": "low"}}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "chat.jinja")
            path.write_text(template)
            with Daemon(f"model.chat_template={path}") as d:
                text = d.ctl("render", "-", stdin=json.dumps(chat).encode()).stdout.decode()
                self.assertEqual(text, "||c17;f|c1|;T low")
                chat["chat_template_kwargs"]["tools"] = []
                answer = d.ctl("batch", "--input", "-", "--output", "-", check=False,
                               stdin=json.dumps(chat).encode())
                error = json.loads(answer.stdout)["error"]
                self.assertIn('chat_template_kwargs: "tools" is set already', error["message"])

    def test_answer_streams_to_stdout(self):
        """The text alone on stdout, from an argument and from stdin."""
        args = ["generate", "--no-think", "--temperature", 0]
        by_argument = self.daemon.ctl(*args, SUM)
        self.assertEqual(by_argument.stdout.decode().strip(), "42")
        self.assertNotIn(b"\x1b", by_argument.stdout + by_argument.stderr)
        self.assertEqual(self.daemon.ctl(*args, "-", stdin=SUM).stdout, by_argument.stdout)

    def test_json(self):
        """One object with the documented fields."""
        out = self.daemon.generate(SUM, "--no-think", "--temperature", 0, "--logprobs", 3)
        self.assertEqual(out["text"].strip(), "42")
        self.assertEqual(out["finish_reason"], "stop")
        self.assertEqual(out["usage"]["completion_tokens"], len(out["token_ids"]))
        self.assertLessEqual({"prompt_tokens", "cached_tokens", "completion_tokens"},
                             set(out["usage"]))
        for key in "queue_ms", "ttft_ms", "total_ms":
            self.assertGreaterEqual(out["timing"][key], 0)
        self.assertLessEqual(out["timing"]["ttft_ms"], out["timing"]["total_ms"])
        self.assertEqual(len(out["logprobs"]), len(out["token_ids"]))
        for best, id_ in zip(out["logprobs"], out["token_ids"]):
            self.assertEqual(len(best), 3)
            self.assertEqual(best[0][0], id_)  # greedy takes the best
            self.assertEqual(best, sorted(best, key=lambda x: -x[1]))

    def test_raw_and_limits(self):
        """--raw takes the text as it is, --max-tokens ends it, --seed repeats it."""
        raw = self.daemon.generate("Once upon a time", "--raw", "--max-tokens", 5,
                                   "--temperature", 0)
        self.assertEqual(raw["usage"]["prompt_tokens"], 4)
        self.assertEqual(len(raw["token_ids"]), 5)
        self.assertEqual(raw["finish_reason"], "length")
        a, b, c = [self.daemon.generate("Once", "--raw", "--seed", s, "--temperature", 1.5,
                                        "--top-k", 0, "--top-p", 1, "--ignore-eos",
                                        "--max-tokens", 30)["token_ids"] for s in (1, 1, 2)]
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)

    def test_wrong_values(self):
        """They are refused by name."""
        done = self.daemon.ctl("generate", "--temperature", "-3", "x", check=False)
        self.assertIn(done.returncode, (1, 2, 4))
        self.assertIn(b"temperature", done.stderr)
        done = self.daemon.ctl("generate", "--raw", "--max-tokens", 40000, "x", check=False)
        self.assertEqual(done.returncode, 4)

    def test_ends_with_its_reader(self):
        """Ctrl-C, and a pipe whose reader has gone, end nvllmctl, and with it the request."""
        for interrupted in True, False:
            p = self.daemon.ctl_start(*ENDLESS, "Once upon a time")
            self.assertTrue(p.stdout.read(1))
            if interrupted:
                p.send_signal(signal.SIGINT)
            else:
                p.stdout.close()
            status = p.wait(timeout=scaled(20, 60))
            self.assertTrue(status == 130 if interrupted else status != 0, status)
            p.stdout.close()
            p.stderr.close()
            self.daemon.wait_idle()

    def test_deadline(self):
        """--deadline-ms ends with status 5 and says so in JSON."""
        done = self.daemon.ctl(*ENDLESS, "--json", "--deadline-ms", 300, "Once", check=False)
        self.assertEqual(done.returncode, 5, done.stderr)


class Status(SharedDaemon):
    def test_json(self):
        """The documented shape, and sums that are right."""
        s = self.daemon.status()
        self.assertEqual(s["state"], "ready")
        self.assertEqual(s["backend"], "cpu")
        self.assertIn("nvllm-tiny", s["model"])
        blocks = s["blocks"]
        self.assertEqual(set(blocks), {"total", "used", "cached", "free"})
        self.assertEqual(blocks["used"] + blocks["cached"] + blocks["free"], blocks["total"])
        self.assertEqual({k: s["requests"][k] for k in ("running", "waiting")},
                         {"running": 0, "waiting": 0})
        for key in "queried_tokens", "hit_tokens":
            self.assertGreaterEqual(s["prefix_cache"][key], 0)
        self.assertEqual(s["preemptions"], 0)
        memory = s["memory"]
        self.assertEqual(set(memory), {f"{part}_bytes" for part in (
            "weight", "kv", "graph", "workspace", "draft", "other", "total", "free")})
        self.assertEqual(memory["kv_bytes"] % blocks["total"], 0)
        # On the CPU what is taken lies in the process, and the rest of the machine is not counted.
        taken = sum(memory[f"{part}_bytes"] for part in ("weight", "kv", "workspace"))
        self.assertGreater(memory["workspace_bytes"], 0)
        self.assertGreaterEqual(self.daemon.memory_kib("VmSize") * 1024, taken)
        for part in "graph", "draft", "other", "total", "free":
            self.assertEqual(memory[f"{part}_bytes"], 0)
        self.assertEqual(s["driver"], "")
        self.assertEqual(s["tensor_parallel"], 1)

    def test_for_people(self):
        """Without --json it is text with the same facts."""
        text = self.daemon.ctl("status").stdout.decode()
        self.assertIn("ready", text)
        self.assertIn("nvllm-tiny", text)
        self.assertRegex(text, r"memory +[0-9.]+ MiB of weights, .* of KV cache, .* of workspaces\n")
        with self.assertRaises(ValueError):
            json.loads(text)

    def test_ranks(self):
        """Several ranks are told in the log and by the status."""
        self.assertNotIn("parallel", self.daemon.ctl("status").stdout.decode())
        with Daemon(SMALL, "model.tensor_parallel=2") as d:
            s = d.status()
            self.assertEqual(s["tensor_parallel"], 2)
            self.assertIn("in 2 ranks", s["device"])
            self.assertRegex(d.ctl("status").stdout.decode(), r"(?m)^parallel +2 ranks$")
            self.assertRegex(d.log(), r"event=ready .*tensor_parallel=2 ")

    def test_version(self):
        done = run_command([config.nvllmctl, "version"])
        self.assertRegex(done.stdout.decode(), r"\d+\.\d+\.\d+")


class Alone(SharedDaemon):
    def test_same_as_nvllmctl(self):
        """What nvllmd does on a folder alone is what nvllmctl does through the daemon."""
        chat = b'{"messages":[{"role":"user","content":"x"}]}'
        for command, stdin, *options in (
                ("tokenize", b"a <|im_end|>", "--special"), ("tokenize", b"", "--json"),
                ("tokenize", b"h\xff", "--json"),
                ("tokenize", b'"a"\r\n\n  \n5\n"b\\u0000"', "--jsonl"),
                ("detokenize", b"65 66,67\n"), ("detokenize", b"65 66", "--json"),
                ("detokenize", b" [65, 66]", "--json"), ("detokenize", b'{"ids":[65]}', "--json"),
                ("detokenize", b"", "--json"), ("detokenize", b"6x"), ("detokenize", b"[-1]"),
                ("detokenize", b"[65\0]"), ("detokenize", b"99999999999999999999"),
                ("detokenize", b"2047"), ("detokenize", b"65 2048"), ("detokenize", b"[2048]", "--json"),
                ("detokenize", b'[65]\n\n{"ids":[66]}\n{}\n65', "--jsonl"),
                ("render", chat), ("render", chat + b"\n\n" + chat, "--jsonl"), ("render", b"{}")):
            ctl = self.daemon.ctl(command, *options, stdin=stdin, check=False)
            alone = run_command([config.nvllmd, command, "--model", MODEL, *options],
                                stdin=stdin, check=False)
            with self.subTest(command=command, stdin=stdin, options=options):
                self.assertEqual(alone.returncode, ctl.returncode, alone.stderr)
                if options and options[0] != "--special":
                    a, b = parse_jsonl(alone.stdout), parse_jsonl(ctl.stdout)
                    for o in a + b:  # the words of an error may differ
                        o.get("error", {}).pop("message", None)
                    self.assertEqual(a, b)
                else:
                    self.assertEqual(alone.stdout, ctl.stdout)

    def test_ids_outside_the_vocabulary(self):
        """The id, where it stands and how many there are is named, also where the tokenizer is alone."""
        folder = self.temporary_folder()
        (folder / "tokenizer.json").symlink_to(MODEL / "tokenizer.json")
        for model, size in (MODEL, 2048), (folder, None):
            for stdin, *options in ((b"65 4321",), (b'{"ids": [65, 4321]}',), (b"[65,4321]", "--json")):
                done = run_command([config.nvllmd, "detokenize", "--model", model, *options],
                                   stdin=stdin, check=False)
                self.assertEqual((done.returncode, done.stdout), (1, b""))
                self.assertRegex(done.stderr.decode(), r"ids\[1\]: 4321 is not in the vocabulary, "
                                 rf"which has {size or '[0-9]+'}: ")
            done = run_command([config.nvllmd, "detokenize", "--jsonl", "--model", model],
                               stdin=b"[65]\n[4321]\n[66]\n", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(["error" in o for o in parse_jsonl(done.stdout)], [False, True, False])


class Batch(SharedDaemon):
    def test_failing_lines(self):
        """A wrong line gets its error, the others their answers, in the order of the input."""
        good = {"messages": [{"role": "user", "content": SUM}], "enable_thinking": False,
                "temperature": 0, "max_tokens": 20}
        lines = [{**good, "id": "first"}, {**good, "top_p": 7, "id": "wrong"},
                 {"id": "nothing to do"}, {"prompt_ids": [1, -5], "id": "ids"},
                 {**good, "id": 17}, {"prompt": "Once", "max_tokens": 3, "id": "last"},
                 {**good, "no_such_field": 1, "id": "unknown"}]
        out, summary, done = self.daemon.batch(lines, check=False)
        self.assertEqual([o["id"] for o in out], [x["id"] for x in lines])
        failed = {o["id"] for o in out if "error" in o}
        self.assertEqual(failed, {"wrong", "nothing to do", "ids", "unknown"})
        for o in out:
            if "error" in o:
                self.assertTrue(o["error"]["code"])
                self.assertTrue(o["error"]["message"])
        self.assertIn("top_p", out[1]["error"]["message"])
        self.assertEqual(out[0]["text"].strip(), "42")
        self.assertEqual(summary["requests"], len(lines))
        self.assertEqual(summary["failed"], 4)
        self.assertEqual(done.returncode, 1)

    def test_sampling_fields(self):
        """Fields have the protocol's names and reach the model."""
        line = {"prompt": "<|im_start|>user\nCount from 1 to 20.<|im_end|>\n<|im_start|>assistant\n"
                          "<think>\n\n</think>\n\n", "temperature": 0, "max_tokens": 30}
        lines = [line, {**line, "stop": ["5"]}, {**line, "logprobs": 2},
                 {**line, "temperature": 1.3, "seed": 5, "n": 2, "top_k": 50},
                 {**line, "temperature": 1.3, "seed": 5, "top_k": 50}]
        out, _, _ = self.daemon.batch(lines)
        plain, stopped, logprobs, many, one = out
        self.assertEqual(stopped["text"], plain["text"][:plain["text"].index("5")])
        self.assertEqual({len(x) for x in logprobs["logprobs"]}, {2})
        self.assertEqual(plain["finish_reason"], "length")
        self.assertEqual(stopped["finish_reason"], "stop")
        choices = many.get("choices", [many])
        self.assertEqual(len(choices), 2)
        self.assertEqual(choices[0]["token_ids"], one["token_ids"])

    def test_summary(self):
        """Its counts are the sums of the lines."""
        line = {"prompt_ids": [5] * 40, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        out, summary, _ = self.daemon.batch([line] * 5, "--concurrency", 1)
        usages = [o["usage"] for o in out]
        totals = {k: sum(u[k] for u in usages)
                  for k in ("prompt_tokens", "cached_tokens", "completion_tokens")}
        self.assertEqual(totals["prompt_tokens"], 200)
        self.assertGreater(totals["cached_tokens"], 100)
        self.assertIn(totals["completion_tokens"], summary.values())
        self.assertIn(totals["cached_tokens"], summary.values())
        self.assertEqual(totals["completion_tokens"], 15)
        out, summary, _ = self.daemon.batch([])  # no lines are no failure
        self.assertEqual((out, summary["requests"]), ([], 0))

    def test_full_output(self):
        """The file that has no room is named."""
        done = self.daemon.ctl("batch", "--input", "-", "--output", "/dev/full", check=False,
                               stdin=b'{"prompt": "Hello", "max_tokens": 1}\n')
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1]),
                         (1, b"nvllmctl: cannot write /dev/full: No space left on device"))

    def test_progress_fits_the_terminal(self):
        """It is drawn over itself: no longer than a line of the terminal, with a bar for the rest."""
        def script(peer):
            while (got := peer.receive()) is not None:
                time.sleep(0.3)  # it is not drawn more often than each 0.2 s
                peer.answer(got[0])

        path = self.temporary_folder() / "questions"
        path.write_text(3 * '{"prompt_ids": [5, 6]}\n')
        for columns in 100, 50, 20:
            t = Typist(self, Fake(self, script).path, "batch", "--input", path, "--output",
                       path.with_suffix(".out"), "--concurrency", 1, size=(24, columns))
            shown, status = t.end()
            self.assertEqual(status, 0, shown)
            drawn = shown.split("\r\x1b[K")[1:-1]
            self.assertTrue(drawn and all(len(d) < columns for d in drawn), (columns, drawn))
            self.assertTrue(all("% " in d and d.startswith("[") == (columns >= 50)
                                for d in drawn), drawn)


class NotRunning(Case):
    def test_no_socket(self):
        """Without a daemon every command ends with status 3 and says where it looked."""
        path = self.temporary_folder() / "nothing"
        for args in (["status"], ["generate", "x"], ["tokenize", "-"], ["render", "-"]):
            done = subprocess.run([config.nvllmctl, "--socket", path, *args], capture_output=True,
                                  input=b"{}", timeout=60)
            self.assertEqual(done.returncode, 3, args)
            self.assertIn(str(path).encode(), done.stderr)

    def test_denied(self):
        """A socket that one may not connect to is status 6."""
        if os.getuid() != 0:
            self.skipTest("needs root to become another user")
        with Daemon() as d:
            os.chmod(d.folder, 0o711)
            os.chmod(d.socket, 0o600)
            done = run_command(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                config.nvllmctl, "--socket", d.socket, "status"], check=False)
            if b"nvllmctl" in done.stderr and b"execv" in done.stderr:
                self.skipTest("another user may not run the programs here")
            self.assertEqual(done.returncode, 6, done.stderr)
