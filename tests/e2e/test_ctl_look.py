"""nvllmctl's commands that inspect and control nvllmd, with a real daemon and with played ones."""

import contextlib
import json
import os
import re
import signal
import subprocess
import termios
import time

import harness
from harness import RUNNING, SMALL, Case, Daemon, SharedDaemon, scaled
from test_ctl_alone import Fake
from test_ctl_chat import Typist

ME = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()


class Real(SharedDaemon):
    def json(self, *args, **options):
        return json.loads(self.daemon.ctl(*args, "--json", **options).stdout)

    @contextlib.contextmanager
    def running(self, **changes):
        """A connection with one request that has begun to answer."""
        with self.daemon.connect() as w:
            w.begin(1, {**RUNNING, **changes})
            yield w

    def test_requests_and_cancel(self):
        """A request is listed with its owner, size and progress, and ends when it is cancelled."""
        with self.running() as w:
            listed = self.json("requests")
            self.assertEqual((len(listed["requests"]), listed["total"]), (1, 1))
            r, = listed["requests"]
            self.assertEqual((r["uid"], r["pid"], r["max_tokens"], r["prompt_tokens"], r["place"]),
                             (os.getuid(), os.getpid(), RUNNING["max_tokens"], 4, 0))
            text = self.daemon.ctl("requests").stdout.decode()
            self.assertRegex(text.splitlines()[1], rf"^ +{r['request']} {ME[:10]} .*decode")
            done = self.daemon.ctl("cancel", r["request"])
            self.assertEqual((done.stdout, done.stderr), (b"", b""))
            self.assertEqual(w.collect([1])[1].choices[0].reason, "FINISH_CANCELLED")
            done = self.daemon.ctl("cancel", r["request"], check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(r["request"]), done.stderr.decode())
        self.assertEqual(self.json("requests")["requests"], [])

    def test_blocks(self):
        """The sums add up, and the map has a character for each block."""
        with self.running():
            b = json.loads(self.daemon.ctl("blocks", "--map", "--json").stdout)
            self.assertEqual(b["used"] + b["cached"] + b["free"], b["total"])
            self.assertEqual(len(b["map"]), b["total"])
            self.assertEqual(sum(b["map"].count(c) for c in "usp"), b["used"])
            self.assertEqual([u["uid"] for u in b["uids"]], [os.getuid()])
            self.assertEqual(len(b["requests"]), 1)
            self.assertNotIn("map", self.json("blocks"))
            text = self.daemon.ctl("blocks", "--map").stdout.decode()
            self.assertIn("MIB", text)
            drawn = text.split("\n\n")[-1].split("@ used by several")[0]
            self.assertEqual(len(drawn.replace("\n", "")), b["total"])
            self.assertNotIn("\x1b", text)

    def test_cache_show_and_clear(self):
        """A computed prompt is listed with its first words until the cache is cleared."""
        text = "The quick brown fox jumps over the lazy dog. " * 8
        self.daemon.generate(text, "--raw", "--max-tokens", 1)
        shown = self.json("cache", "show")
        heads = [p.get("head", "") for p in shown["prefixes"]]
        self.assertTrue([h for h in heads if h.startswith("The quick")], heads)
        self.assertIn("The quick", self.daemon.ctl("cache").stdout.decode())
        cleared = self.json("cache", "clear")
        self.assertGreater(cleared["blocks"], 0)
        self.assertEqual(self.json("cache")["prefixes"], [])
        self.assertEqual(self.daemon.generate(text, "--raw", "--max-tokens", 1)
                         ["usage"]["cached_tokens"], 0)

    def test_pin_and_explain(self):
        """A prompt can be pinned; explain tells where another one differs from it."""
        folder = self.temporary_folder()
        path, other = folder / "prompt", folder / "other"
        path.write_text("One two three four five six seven. " * 12)
        other.write_text(path.read_text()[:300] + "Something else altogether, and more of it.")
        pinned = self.json("cache", "pin", "--raw", "--prompt-file", path)
        self.assertGreater(pinned["blocks"], 2)
        self.assertEqual(self.json("blocks")["pinned"], pinned["blocks"])
        e = self.json("explain", "--raw", "--prompt-file", other)
        self.assertTrue(16 <= e["cached_tokens"] < pinned["tokens"], e)
        self.assertLess(e["cached_tokens"], e["prompt_tokens"])
        self.assertIsNotNone(e["next_id"])
        self.assertRegex(self.daemon.ctl("explain", "--raw", "--prompt", other.read_text()).stdout.decode(),
                         r'first different +\d+ "')
        whole = self.daemon.ctl("explain", "--raw", "--prompt", path.read_text() + "And so on.")
        self.assertRegex(whole.stdout.decode(), r'first not cached +\d+ "')
        unpin = "cache", "unpin", "--raw", "--prompt-file", "-"
        self.assertEqual(self.daemon.ctl(*unpin, stdin=path.read_text()).stderr, b"")
        self.assertEqual(self.json("blocks")["pinned"], 0)
        self.assertIn("nothing is pinned",
                      self.daemon.ctl(*unpin, stdin=path.read_text()).stderr.decode())

    def test_prompts_are_the_same_in_each_command(self):
        """Explain and pin find what generate has computed from the same options: text, file or stdin,
        with or without a system message."""
        text = "Tell me of the seven seas and of all that swims in them. " * 4
        path = self.temporary_folder() / "prompt"
        path.write_text(text + "\n")
        for shape in [], ["--system", "You are a sailor."], ["--no-think"], ["--raw"]:
            for words, stdin in ((["--prompt", text], ""), (["--prompt-file", path], ""),
                                 (["--prompt", "-"], text + "\n"),
                                 (["--prompt-file", "-"], text + "\n")):
                with self.subTest(shape=shape, words=words):
                    self.daemon.ctl("cache", "clear")
                    got = json.loads(self.daemon.ctl("generate", "--json", "--max-tokens", 1, *shape,
                                                     *words, stdin=stdin).stdout)
                    e = self.json("explain", *shape, *words, stdin=stdin)
                    self.assertEqual(e["prompt_tokens"], got["usage"]["prompt_tokens"])
                    self.assertGreater(e["cached_tokens"], e["prompt_tokens"] - 32)
                    pinned = self.json("cache", "pin", *shape, *words, stdin=stdin)
                    self.assertEqual(pinned["tokens"], e["prompt_tokens"] // 16 * 16)
        self.daemon.ctl("cache", "clear")

    def test_prompt_files_of_objects(self):
        """A file that holds a request object is read as batch reads it; other JSON is text."""
        path = self.temporary_folder() / "prompt.json"
        path.write_text(json.dumps({"messages": [{"role": "user", "content": "What is 17 + 25?"}],
                                    "enable_thinking": False, "temperature": 0, "max_tokens": 5}))
        self.assertEqual(self.daemon.ctl("generate", "--prompt-file", path).stdout, b"42")
        done = self.daemon.ctl("generate", "--raw", "--prompt-file", path, check=False)
        self.assertEqual(done.returncode, 2)
        path.write_text('{"a": 1}')
        self.assertEqual(self.json("explain", "--raw", "--prompt-file", path)["prompt_tokens"],
                         len(json.loads(self.daemon.ctl("tokenize", "--json", '{"a": 1}').stdout)["ids"]))
        path.write_text('{"prompt": "x", "temprature": 0}')
        done = self.daemon.ctl("generate", "--prompt-file", path, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"temprature", done.stderr)

    def test_sessions(self):
        """They are created, listed, shown, forked, rewound and deleted; turns come from generate."""
        tools = self.temporary_folder() / "tools.json"
        tools.write_text('[{"type": "function", "function": {"name": "f", "parameters": {}}}]')
        made = self.json("sessions", "create", "s1", "--system", "Be brief.", "--no-think",
                         "--tools", tools)
        self.assertEqual((made["name"], made["turns"], made["messages"]), ("s1", 0, 1))
        for question in "What is 17 + 25?", "Spell\x1b[2J lion.\nNow.":
            self.daemon.ctl("generate", "--session", "s1", "--temperature", 0, question)
        line = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "session": "s1"})
        self.daemon.ctl("batch", "-", "--max-tokens", 3, stdin=line)
        held = self.json("sessions", "show", "s1", "--ids")
        self.assertEqual(held["turn_messages"], [1, 3, 5, 7])
        self.assertEqual([m["role"] for m in held["messages"]], ["system"] + ["user", "assistant"] * 3)
        self.assertEqual((held["tools"], held["enable_thinking"]),
                         (json.loads(tools.read_text()), False))
        self.assertEqual(len(held["token_ids"]), held["tokens"])
        shown = self.daemon.ctl("sessions", "show", "s1").stdout.decode()
        self.assertRegex(shown, r"^     system     Be brief.\n   1 user       What is 17 \+ 25\?\n"
                                r"     assistant  42\n   2 user       Spell\?\[2J lion. Now.\n")
        self.assertIn("1 turn, 3 messages",
                      self.daemon.ctl("sessions", "fork", "s1", "s2", "--turns", 1).stdout.decode())
        self.assertEqual(self.json("sessions", "rewind", "s1", 2)["turns"], 2)
        self.assertEqual([s["name"] for s in self.json("sessions")["sessions"]], ["s1", "s2"])
        self.assertEqual(self.json("sessions", "list", "--limit", 1, "--all")["total"], 2)
        self.assertRegex(self.daemon.ctl("sessions").stdout.decode(),
                         rf"^ TURNS .*NAME\n +2 +5 .*{ME}.* s1\n +1 +3 .* s2\n$")
        again = self.daemon.ctl("chat", "--session", "s2", "--system", "x", check=False, stdin="")
        self.assertEqual(again.returncode, 2)
        self.assertIn(b"--system is for a new session", again.stderr)
        self.assertIn(b"no session", self.daemon.ctl("sessions", "show", "s3", check=False).stderr)
        for args in ["s1"], ["s2", "--user", str(os.getuid())]:
            self.assertIn(b"deleted ", self.daemon.ctl("sessions", "delete", *args).stdout)
        self.assertEqual(self.json("sessions"), {"sessions": [], "total": 0})

    def test_drain_resume(self):
        """drain --wait waits until requests have ended, or says how many have not."""
        with self.running(max_tokens=300) as w:
            self.daemon.ctl("drain", "--wait")
            self.assertEqual(self.json("status")["requests"], {"running": 0, "waiting": 0})
            self.assertEqual(self.daemon.ctl("generate", "--no-wait", "x", check=False).returncode, 4)
            self.daemon.ctl("resume")
            self.assertEqual(w.collect([1])[1].choices[0].reason, "FINISH_LENGTH")
            w.begin(2, RUNNING)
            done = self.daemon.ctl("drain", "--wait", "--timeout", scaled(2, 5), check=False)
            self.assertEqual(done.returncode, 5)
            self.assertIn(b"1 running", done.stderr)
            self.daemon.ctl("drain", "--end-after", 0, "--wait")
            self.assertEqual(w.collect([2])[2].choices[0].reason, "FINISH_CANCELLED")
            self.daemon.ctl("resume")
        self.assertEqual(self.json("status")["state"], "ready")

    def test_drain_that_is_left(self):
        """At a terminal drain --wait shows what it waits for, and on Ctrl-C how to resume."""
        with self.running():
            t = Typist(self, self.daemon.socket, "drain", "--wait")
            t.expect("1 running, 0 waiting")
            t.type("\x03")
            self.assertIn("nvllmctl resume", t.end()[0])
            self.assertEqual(t.end()[1], 130)
            self.daemon.ctl("resume")

    def test_log_level(self):
        self.daemon.ctl("log-level", "debug")
        self.daemon.ctl("log-level", "info")
        done = self.daemon.ctl("log-level", "inof", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean “log-level info”", done.stderr.decode())

    def test_top_once(self):
        with self.running(prompt="Once upon a time " * 500):  # of more blocks than a character stands for
            text = self.daemon.ctl("top", "--once").stdout.decode()
        self.assertRegex(text, r"1 running, 0 waiting")
        self.assertRegex(text, r"tokens +[1-9]\d* a second generated")
        self.assertRegex(text, r"\[#[-#.]{39}\] [1-9]\d* used")
        self.assertIn("decode", text)
        self.assertNotIn("\x1b", text)
        done = self.daemon.ctl("top", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"--once", done.stderr)

    def test_top_live(self):
        """top redraws on the alternate screen; q quits and restores the terminal."""
        t = Typist(self, self.daemon.socket, "top", "--interval", 0.1)
        t.expect(r"\x1b\[\?1049h")
        for _ in range(3):
            t.expect(r"\x1b\[H.*blocks +\[")
        t.type("q")
        shown, status = t.end()
        self.assertEqual(status, 0)
        self.assertTrue(shown.endswith("\x1b[?25h\x1b[?1049l"), shown[-80:])
        t = Typist(self, self.daemon.socket, "top", "--interval", 60)
        t.expect("blocks")
        t.type("\x03")
        self.assertEqual(t.end()[1], 130)

    def test_top_fits_the_terminal(self):
        """No line is wider than the terminal, also right after it was resized; the most important
        columns stay longest."""
        wide = ["REQUEST", "USER", "PID", "STATE", "PLACE", "PROMPT", "CACHED", "GENERATED",
                "TOK/S", "BLOCKS", "AGE"]
        t = Typist(self, self.daemon.socket, "top", "--interval", 600, size=(24, 120))
        for columns, heads in ((120, wide), (80, [h for h in wide if h not in ("PLACE", "CACHED")]),
                               (27, ["REQUEST", "STATE", "GENERATED"]), (12, ["REQUEST", "STAT"]),
                               (200, wide)):
            t.resize(24, columns)
            shown = t.expect(r"\x1b\[H(?:(?!\x1b\[J).)*" + r" +".join(heads) + r"[\r\n]*\x1b\[J")
            picture = re.sub(r"\x1b\[[?\d]*\w", "", shown.split("\x1b[H")[-1])
            for line in re.split(r"\r+\n", picture):
                self.assertLessEqual(len(line), columns)
            if columns >= 80:  # where the numbers leave room for all of the bar
                bar = "40" if columns > 80 else "35,40"
                self.assertRegex(picture, rf"blocks +\[[-#.]{{{bar}}}\] \d+ used, \d+ cached, \d+ free *\r")
        t.resize(4, 80)
        picture = t.expect(r"\x1b\[H(?:(?!\x1b\[J).)*\x1b\[J")
        self.assertEqual(picture.count("\n"), 3)
        t.type("q")
        self.assertEqual(t.end()[1], 0)

    def test_top_stops_and_goes_on(self):
        """Ctrl-Z restores the terminal; the screen is redrawn when the program continues."""
        t = Typist(self, self.daemon.socket, "top", "--interval", 600)
        t.expect(r"\x1b\[J")
        before = termios.tcgetattr(t.master)
        self.assertFalse(before[3] & termios.ICANON)
        t.type("\x1a")
        t.expect(r"\x1b\[\?1049l")
        _, status = os.waitpid(t.process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status))
        self.assertTrue(termios.tcgetattr(t.master)[3] & termios.ICANON)
        t.process.send_signal(signal.SIGCONT)
        t.expect(r"\x1b\[\?1049h.*blocks +\[")
        t.type("q")
        self.assertEqual(t.end()[1], 0)

    def test_top_timeout(self):
        """--timeout applies between redraws, too."""
        t = Typist(self, self.daemon.socket, "top", "--interval", 600, "--timeout", scaled(3, 5))
        shown, status = t.end()
        self.assertEqual(status, 5)
        self.assertIn("\x1b[?1049l", shown)

    def test_manual_names_what_json_holds(self):
        """Each JSON member is described in the section of its command."""
        page = harness.generated("nvllmctl.1.scd").read_text()

        def members(value):
            if isinstance(value, dict):
                return set(value).union(*map(members, value.values()))
            return set().union(*map(members, value)) if isinstance(value, list) else set()

        self.daemon.ctl("sessions", "create", "named", "--system", "x", "--think")
        self.addCleanup(self.daemon.ctl, "sessions", "delete", "named")
        with self.running():
            number = self.json("requests")["requests"][0]["request"]
            for title, *commands in (
                    ("STATUS", ["status"]), ("REQUESTS, CANCEL", ["requests"]),
                    ("BLOCKS", ["blocks", "--map"]), ("CACHE", ["cache"]),
                    ("EXPLAIN", ["explain", "--prompt", "x"]),
                    ("SESSIONS", ["sessions"], ["sessions", "show", "named", "--ids"])):
                section = re.search(rf"^# {title}\n(.*?)(?=^# )", page, re.M | re.S)[1]
                named = set(re.findall(r"_([a-z]+(?:_[a-z]+)*)_", section))
                for command in commands:
                    printed = members(self.json(*command))
                    self.assertGreater(len(printed), 3)
                    self.assertEqual(printed - named, set(), title)
            self.assertIn("reason", self.json("explain", number))

    def test_usage(self):
        for args in (["requests", "x"], ["requests", "--limit", "0"], ["cancel"], ["cancel", "x"],
                     ["cancel", "0"], ["cancel", "-1"], ["blocks", "x"], ["cache", "sow"],
                     ["cache", "pin"], ["cache", "pin", "a"],
                     ["cache", "pin", "--prompt", "a", "b"], ["cache", "show", "--prompt", "x"],
                     ["cache", "pin", "--prompt", "a", "--prompt-file", "b"],
                     ["cache", "pin", "--raw", "--chat", "--prompt", "x"],
                     ["explain", "--raw", "--system", "x", "--prompt", "y"],
                     ["explain", "1", "--prompt", "x"], ["explain", "1", "--raw"],
                     ["generate", "x", "--prompt", "y"], ["cache", "show", "--all"],
                     ["cache", "clear", "--limit", "1"], ["cache", "unpin", "--limit", "1"],
                     ["cache", "clear", "--user", "0"],
                     ["cache", "pin", "--user", "no-such-user", "--prompt", "-"], ["explain"], ["explain", "x"],
                     ["explain", "1", "2"], ["explain", "1", "--cache-salt", "x"], ["drain", "x"],
                     ["drain", "--end-after", "soon"], ["resume", "x"], ["reload", "x"],
                     ["sessions", "lost"], ["sessions", "show"], ["sessions", "show", "a", "b"],
                     ["sessions", "fork", "a"], ["sessions", "rewind", "a"],
                     ["sessions", "rewind", "a", "-1"], ["sessions", "rewind", "a", "x"],
                     ["sessions", "list", "--turns", "1"], ["sessions", "show", "a", "--all"],
                     ["sessions", "create", "a", "--tools", "/dev/null"],
                     ["sessions", "delete", "a", "--user", "no-such-user"],
                     ["log-level"], ["log-level", "loud"], ["stop", "x"], ["top", "x"],
                     ["top", "--interval", "0"]):
            done = self.daemon.ctl(*args, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, b""), args)
        self.assertIn("pass a prompt with --prompt",
                      self.daemon.ctl("explain", "What is 1 + 1?", check=False).stderr.decode())
        self.assertIn("did you mean “cache show”",
                      self.daemon.ctl("cache", "sow", check=False).stderr.decode())
        self.assertIn("there is no user “no-such-user”",
                      self.daemon.ctl("cache", "pin", "--user", "no-such-user", "--prompt", "-",
                                      check=False).stderr.decode())


class Ends(Case):
    def test_stop(self):
        """stop ends the daemon like SIGTERM; --wait waits for the end."""
        with Daemon(SMALL) as d:
            d.ctl("stop", "--wait")
            self.assertEqual(d.process.wait(timeout=scaled(5, 30)), 0)
            self.assertEqual(d.ctl("stop", check=False).returncode, 3)

    def test_reload(self):
        """reload names what changed and what needs a restart."""
        path = self.temporary_folder() / "nvllmd.conf"
        path.write_text("[daemon]\nlog_level = info\n")
        with Daemon(SMALL, args=["--config", path]) as d:
            self.assertEqual(d.ctl("reload").stdout, b"nothing has changed\n")
            path.write_text("[daemon]\nlog_level = debug\n[scheduler]\nmax_seqs = 3\n")
            out = json.loads(d.ctl("reload", "--json").stdout)
            self.assertEqual(out, {"changed": ["daemon.log_level"],
                                   "needs_restart": ["scheduler.max_seqs"]})
            path.write_text("[daemon]\nlog_level = loud\n")
            done = d.ctl("reload", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"log_level", done.stderr)


class Played(Case):
    def play(self, answers):
        """A daemon with these answers; self.seen is what it was asked."""
        self.seen = []

        def script(peer):
            while (got := peer.receive()) is not None:
                self.seen.append(got[1:])
                if got[1] == "detokenize":
                    peer.send(got[0], text={"text": bytes(got[2]["ids"])})
                else:
                    peer.send(got[0], **answers)

        return Fake(self, script)

    def ctl(self, answers, *args, **options):
        return self.play(answers).ctl(*args, **options)

    def test_explain_prompt(self):
        """The first token that differs, and what cached prompts have in its place, as text."""
        answer = {"explanation": {"prompt_tokens": 1000, "cached_tokens": 960, "same_tokens": 963,
                                  "next_id": 65, "other_ids": [66, 10]}}
        done = self.ctl(answer, "explain", "--raw", "--prompt", "-", "--cache-salt", "s",
                        stdin=b"plain text")
        self.assertEqual(self.seen[0][1]["prompt"], b"plain text")
        self.assertEqual(self.seen[0][1]["cache_salt"], b"s")
        text = done.stdout.decode()
        self.assertIn("960 of 1000 prompt tokens (96 %)", text)
        self.assertRegex(text, r'first different +65 "A"\n')
        self.assertRegex(text, r'others have +66 "B"\n +10 "\\n"\n')
        done = self.ctl(answer, "explain", "--json", "--prompt-file", "-",
                        stdin=b'{"messages": [{"role": "user", "content": "x"}]}')
        self.assertEqual(self.seen[0][1]["chat"]["messages"][0]["content"], b"x")
        out = json.loads(done.stdout)
        self.assertEqual((out["cached_tokens"], out["same_tokens"]), (960, 963))
        self.assertEqual((out["next_id"], out["other_ids"]), (65, [66, 10]))

    def test_requests_of_long_names(self):
        """A pipe gets whole names and all columns, a terminal what it has room for."""
        info = [{"request": 7, "uid": uid, "pid": 99, "state": "REQUEST_WAITING", "place": 3,
                 "age_us": 2500000} for uid in (0, 4000000000)]
        answer = {"request_list": {"requests": info, "total": 2}}
        text = self.ctl(answer, "requests").stdout.decode()
        self.assertRegex(text, r" {6}7 4000000000 +99 waiting +3 +0 +0 +0 +0.0 +0 +2.5 s\n")
        for columns in 93, 80, 40, 20:
            t = Typist(self, self.play(answer).path, "requests", size=(24, columns))
            shown, status = t.end()
            self.assertEqual(status, 0, shown)
            lines = shown.split("\r\n")
            self.assertTrue(all(len(line) <= columns for line in lines), lines)
            self.assertEqual("PID" in shown, columns >= 80)
            self.assertEqual("CACHED" in shown, columns >= 93)

    def test_prompt_without_a_template(self):
        """Without a chat template the prompt is raw, unless --chat is given."""
        seen = []

        def script(peer):
            while (got := peer.receive()) is not None:
                seen.append("chat" in got[2])
                if seen[-1]:
                    peer.send(got[0], error={"code": "ERROR_UNSUPPORTED", "message": "no template"})
                elif got[1] == "pin_cache":
                    peer.send(got[0], cache_changed={"blocks": 1, "tokens": 16})
                else:
                    peer.send(got[0], explanation={"prompt_tokens": 9})

        for args in ["explain"], ["cache", "pin"]:
            done = Fake(self, script).ctl(*args, "--prompt", "x")
            self.assertEqual((done.returncode, seen), (0, [True, False]), done.stderr)
            seen.clear()
            done = Fake(self, script).ctl(*args, "--chat", "--prompt", "x")
            self.assertEqual((done.returncode, seen), (1, [True]), done.stderr)
            seen.clear()

    def test_explain_request(self):
        info = {"request": 7, "state": "REQUEST_WAITING", "place": 3, "age_us": 2500000}
        answer = {"explanation": {"info": info, "reason": "WAIT_BLOCKS", "blocks_needed": 90,
                                  "blocks_available": 12, "text": "too few \x1b[2Jblocks"}}
        text = self.ctl(answer, "explain", 7).stdout.decode()
        self.assertEqual(self.seen[0][1]["request"], 7)
        self.assertIn("too few ?[2Jblocks\n", text)
        self.assertRegex(text, r"request +7, waiting, place 3, since 2.5 s\n")
        self.assertRegex(text, r"blocks +90 needed, 12 available\n")
        out = json.loads(self.ctl(answer, "explain", "--json", 7).stdout)
        self.assertEqual((out["reason"], out["request"]["place"]), ("blocks", 3))

    def test_cache(self):
        """The text of prefixes is shown without control characters."""
        prefix = {"uid": 4000000, "tokens": 320, "blocks": 20, "hits": 3, "age_ms": 90000,
                  "idle_ms": 1500, "holders": 1, "pinned": True, "head_ids": [72, 105, 10, 27]}
        answer = {"cache_report": {"prefixes": [prefix], "total": 9, "evictions": 4,
                                   "pinned_blocks": 20,
                                   "counts": {"queried_tokens": 1000, "hit_tokens": 250}}}
        text = self.ctl(answer, "cache", "show", "--limit", 1).stdout.decode()
        self.assertEqual(self.seen[0][1]["limit"], 1)
        self.assertRegex(text, r" 320 +20 +3 +2 min +1.5 s +1 device pin 4000000 +Hi \?\n")
        self.assertIn("… and 8 more\n", text)
        self.assertIn("250 of 1000 prompt tokens found (25 %), 4 blocks evicted, 20 pinned", text)

    def test_cache_fits_the_terminal(self):
        """A narrow terminal gets fewer columns, but always some of a prefix's text."""
        prefix = {"uid": 0, "tokens": 320, "blocks": 20, "hits": 3, "age_ms": 90000, "idle_ms": 1500,
                  "holders": 1, "pinned": True, "head_ids": list(b"beginning " * 20)}
        answer = {"cache_report": {"prefixes": [prefix], "total": 1, "evictions": 0, "counts": {}}}
        for columns in 120, 87, 80, 60, 40, 21:
            t = Typist(self, self.play(answer).path, "cache", size=(24, columns))
            shown, status = t.end()
            self.assertEqual(status, 0, shown)
            head, row = shown.split("\r\n")[:2]
            self.assertTrue(len(head) <= columns and len(row) == columns, (columns, shown))
            self.assertIn("beginning ", row)
            self.assertEqual("HOLDERS" in head, columns > 80)
            self.assertEqual("TIER" in head, columns >= 40)
            self.assertEqual("pin" in row, columns >= 40)

    def test_pin(self):
        answer = {"cache_changed": {"blocks": 5, "tokens": 80}}
        path = self.temporary_folder() / "prompt"
        path.write_text('{"messages": [{"role": "system", "content": "s"}]}')
        done = self.ctl(answer, "cache", "pin", "--user", 12, "--cache-salt", "x",
                        "--prompt-file", path)
        op, fields = self.seen[0]
        self.assertEqual((op, fields["uid"], fields["cache_salt"], fields.get("unpin")),
                         ("pin_cache", 12, b"x", None))
        self.assertEqual(fields["chat"]["messages"][0]["role"], "system")
        self.assertEqual(done.stdout, b"pinned 5 blocks of 80 tokens\n")
        done = self.ctl(answer, "cache", "unpin", "--json", "--prompt-file", "-",
                        stdin=b'{"prompt_ids": [1, 2]}')
        self.assertEqual(self.seen[0][1]["prompt_ids"]["ids"], [1, 2])
        self.assertTrue(self.seen[0][1]["unpin"])
        self.assertEqual(json.loads(done.stdout), {"blocks": 5, "tokens": 80})
        done = self.ctl(answer, "cache", "pin", "--prompt-file", "/nonexistent")
        self.assertEqual((done.returncode, self.seen), (1, []))

    def test_refusals(self):
        """Whatever is denied, the exit status is 6."""
        for args in (["requests"], ["cancel", 1], ["blocks"], ["cache"], ["cache", "clear"],
                     ["cache", "pin", "--prompt", "-"], ["explain", 1], ["drain"], ["resume"], ["reload"],
                     ["log-level", "info"], ["sleep"], ["wake"], ["stop"], ["top", "--once"]):
            done = self.ctl({"error": {"code": "ERROR_DENIED", "message": "for admins"}}, *args)
            self.assertEqual((done.returncode, done.stdout), (6, b""), args)
            self.assertIn(b"for admins", done.stderr)

    def test_limits_are_named(self):
        """An error names the limit, its value and when to try again."""
        error = {"code": "ERROR_BUSY", "message": "too many", "retryable": True,
                 "retry_after_ms": 2500, "limit": "limits.requests_per_uid", "limit_value": 64}
        done = self.ctl({"error": error}, "generate", "x")
        self.assertEqual(done.returncode, 4)
        self.assertIn(b"Try again in 2.5 s.", done.stderr)
        self.assertIn(b"limits.requests_per_uid is 64 here", done.stderr)
        done = self.ctl({"error": {**error, "code": "ERROR_TOO_LONG"}}, "batch", "--input", "-",
                        "--output", "-", stdin=b'{"prompt": "x"}')
        out = json.loads(done.stdout)["error"]
        self.assertEqual((out["limit"], out["limit_value"]), ("limits.requests_per_uid", 64))

    def test_map_of_a_large_pool(self):
        """A character of the map stands for several blocks of a large pool."""
        answer = {"block_report": {"blocks": {"total": 100000}, "map": b"f" * 99999 + b"u"}}
        text = self.ctl(answer, "blocks", "--map").stdout.decode()
        drawn = text.split("\n\n")[-1]
        self.assertLess(drawn.count("\n"), 40)
        self.assertEqual(drawn.split("@ used by")[0].count("#"), 1)
        self.assertRegex(drawn, r"a character is \d+ blocks")

    def test_loading(self):
        """Reports come while the model loads; commands with a prompt wait for it."""
        welcome = {"welcome": {"protocol": 1, "server": "fake/1", "state": "STATE_LOADING"}}
        asked = []

        def script(peer):
            while (got := peer.receive()) is not None:
                if got[1] == "get_status":
                    asked.append(1)
                    peer.send(got[0], status={"state": "STATE_READY"})
                elif got[1] == "list_requests":
                    peer.send(got[0], request_list={"total": 0})
                else:
                    peer.send(got[0], **({"cache_changed": {}} if got[1] == "pin_cache"
                                         else {"explanation": {"prompt_tokens": 1}}))

        started = time.monotonic()
        done = Fake(self, script, welcome).ctl("requests", "--json")
        self.assertEqual(json.loads(done.stdout), {"requests": [], "total": 0})
        self.assertLess(time.monotonic() - started, scaled(2, 20))
        self.assertEqual(asked, [])
        for args in ("cache", "pin", "--prompt", "-"), ("explain", "--prompt", "-"):
            asked.clear()
            done = Fake(self, script, welcome).ctl(*args, stdin=b"x")
            self.assertEqual((done.returncode, len(asked)), (0, 1), done.stderr)
