"""nvllmctl chat, typed at a terminal and read from a pipe, with a real daemon and with played ones."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

from harness import Case, SharedDaemon, config, scaled, wait_for
from test_ctl_alone import Fake

PROMPT = "> "


class Typist:
    """nvllmctl at a terminal that somebody types at."""

    def __init__(self, case, socket, *args, env=None, size=(24, 80)):
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.shown = ""
        env = {"XDG_STATE_HOME": str(case.temporary_folder()), **(env or {})}
        # A controlling terminal, so that Ctrl-C is a signal.
        self.process = subprocess.Popen(
            [config.nvllmctl, "--socket", str(socket), *map(str, args)], stdin=slave, stdout=slave,
            stderr=slave, start_new_session=True, env={**os.environ, "TERM": "xterm", **env},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        case.addCleanup(self.close)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern, seconds=None):
        """Everything up to and with the pattern, which is taken away."""
        end = time.monotonic() + (seconds or scaled(20, 90))
        while True:
            if m := re.search(pattern, self.shown, re.S):
                before, self.shown = self.shown[:m.end()], self.shown[m.end():]
                return before
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f"no {pattern!r} in {self.shown[-2000:]!r}")
            try:
                more = os.read(self.master, 65536)
            except OSError:
                more = b""
            if not more:
                raise AssertionError(f"ended without {pattern!r}: {self.shown[-2000:]!r}")
            self.shown += more.decode(errors="replace")

    def ask(self, text):
        """Types a line at the prompt; what comes until the next one."""
        self.expect(PROMPT)
        self.type(text + "\r")

    def leave(self):
        """Ctrl-D at the prompt, which ends the program well."""
        self.expect(PROMPT)
        self.type("\x04")
        assert self.end()[1] == 0

    def saved(self, path):
        """(role, content) of each message so far."""
        self.ask(f"/save {path}")
        self.expect("messages? saved to")
        return [(m["role"], m["content"]) for m in json.loads(path.read_text())["messages"]]

    def end(self):
        """What is shown until the end, and the exit status."""
        end = time.monotonic() + scaled(20, 90)
        try:
            while select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                more = os.read(self.master, 65536)
                if not more:
                    break
                self.shown += more.decode(errors="replace")
        except OSError:
            pass
        return self.shown, self.process.wait(timeout=scaled(10, 60))


class Typed(SharedDaemon):
    ARGS = "chat", "--no-think", "--temperature", 0

    def typist(self, *args, **options):
        return Typist(self, self.daemon.socket, *(args or self.ARGS), **options)

    def test_turns_hit_the_prefix_cache(self):
        """The second turn finds the first one's prompt in the cache, and says so."""
        t = self.typist(*self.ARGS, "--system", "You are a calculator. " * 20)
        t.ask("What is 17 + 25?")
        self.assertIn("42", t.expect(r"\((\d+) of (\d+) prompt tokens cached, \d+ new.*?ms\)"))
        t.ask("And 40 + 2?")
        m = re.search(r"\((\d+) of (\d+) prompt tokens cached", t.expect(r"tokens cached.*?ms\)"))
        self.assertGreater(int(m[1]), 32)
        self.assertLess(int(m[1]), int(m[2]))
        t.leave()

    def test_a_session_goes_on(self):
        """The next chat of a session's name shows what was said, in short, and goes on; the tokens of
        before are found in the cache. /reset drops the turns, /save writes all of it."""
        name = "goes-on"
        t = self.typist(*self.ARGS, "--session", name, "--system", "You are a calculator. " * 20)
        t.ask("What is 17 + 25?")
        self.assertIn("42", t.expect(r"tokens cached.*?ms\)"))
        t.leave()
        t = self.typist("chat", "--temperature", 0, "--session", name)
        shown = t.expect(r"assistant +42 *\r\n")
        self.assertIn(f"session {name}: 1 turn, ", shown)
        self.assertRegex(shown, r"   1 user +What is 17 \+ 25\?\r\n")
        self.assertLess(max(map(len, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).split("\r\n"))), 81)
        t.ask("And 40 + 2?")
        m = re.search(r"\((\d+) of (\d+) prompt tokens cached", t.expect(r"tokens cached.*?ms\)"))
        self.assertGreater(int(m[1]), 64)
        path = self.temporary_folder() / "chat.json"
        self.assertEqual([role for role, _ in t.saved(path)],
                         ["system", "user", "assistant", "user", "assistant"])
        t.ask("/system x")
        t.expect("the system message that it was created with")
        t.ask("/reset")
        t.expect("a new conversation; the system message stays")
        self.assertEqual([role for role, _ in t.saved(path)], ["system"])
        t.leave()

    def test_control_c_in_a_session_keeps_what_was_said(self):
        """As without one; so does a chat that is left in the middle."""
        t = self.typist("chat", "--session", "cut", "--ignore-eos", "--max-tokens", 20000)
        t.ask("Count from 1 to 1000.")
        t.expect(r"1000\.\r\n[^>]*2004l[^>]*\w")
        t.type("\x03")
        t.leave()
        held = json.loads(self.daemon.ctl("sessions", "show", "cut", "--json", "--ids").stdout)
        self.assertEqual([m["role"] for m in held["messages"]], ["user", "assistant"])
        self.assertTrue(held["messages"][1]["content"])
        self.assertEqual(held["tokens"], len(held["token_ids"]))

    def test_control_c_stops_the_answer_and_not_the_program(self):
        """What was said until then stays, and the next question is answered."""
        t = self.typist("chat", "--ignore-eos", "--max-tokens", 20000)
        t.ask("Count from 1 to 1000.")
        t.expect(r"1000\.\r\n[^>]*2004l[^>]*\w")
        t.type("\x03")
        t.expect(r"prompt tokens cached, \d+ new")
        self.daemon.wait_idle()
        (asked, _), (answered, text) = t.saved(self.temporary_folder() / "saved")
        self.assertEqual((asked, answered, bool(text)), ("user", "assistant", True))
        t.expect(PROMPT)
        t.type("half a line\x03")  # at the prompt it drops the line
        t.ask("/quit")
        self.assertEqual(t.end()[1], 0)

    def test_editing_and_history(self):
        """The line can be edited, and the arrow key brings it back."""
        t = self.typist()
        t.expect(PROMPT)
        t.type("What is 17 + 2x\x7f5 =?\x1b[D\x1b[D\x7f\r")  # a letter and a blank taken back
        t.expect("prompt tokens cached")
        t.expect(PROMPT)
        t.type("\x1b[A\r")
        t.expect("prompt tokens cached")
        users = [text for role, text in t.saved(self.temporary_folder() / "saved") if role == "user"]
        self.assertEqual(users[0], users[1])
        self.assertEqual(users[0], "What is 17 + 25=?")
        t.leave()

    def test_history_between_runs(self):
        """What was asked in earlier chats is found again, by its owner alone, unless that is off."""
        home = self.temporary_folder()
        env, kept = {"XDG_STATE_HOME": str(home)}, home / "nvllm" / "chat_history"
        for args, question in (("--no-history",), "What is 9 + 9?"), ((), "What is 17 + 25?"):
            t = self.typist(*self.ARGS, *args, env=env)
            t.ask(question)
            t.expect("prompt tokens cached")
            t.leave()
            self.assertEqual(kept.exists(), not args)
        self.assertEqual(kept.stat().st_mode & 0o777, 0o600)
        t = self.typist(env=env)
        t.expect(PROMPT)
        t.type("\x1b[A\r")
        t.expect("prompt tokens cached")
        self.assertEqual(t.saved(home / "saved")[0], ("user", "What is 17 + 25?"))
        t.leave()
        def spoil():
            kept.unlink()
            kept.mkdir()

        for wrong in lambda: kept.write_bytes(b"\0\xff not a history \n" * 100), spoil:
            wrong()  # is no reason to fail
            t = self.typist(env=env)
            t.ask("Hello")
            t.expect("prompt tokens cached")
            t.leave()

    def test_home_is_not_made(self):
        """A user whose home is not there has no history."""
        home = self.temporary_folder() / "none"
        t = self.typist(env={"XDG_STATE_HOME": "", "HOME": str(home)})
        t.leave()
        self.assertFalse(home.exists())

    def test_history_does_not_grow_for_ever(self):
        home = self.temporary_folder()
        kept = home / "nvllm" / "chat_history"
        kept.parent.mkdir()
        kept.write_text("".join(f'"{i}"\n' for i in range(5000)))
        t = self.typist(env={"XDG_STATE_HOME": str(home)})
        t.leave()
        self.assertEqual(kept.read_text(), "".join(f'"{i}"\n' for i in range(4000, 5000)))

    def test_pasted_lines_are_one_question(self):
        """They can be edited before they are sent; control characters do nothing."""
        t = self.typist()
        t.expect(PROMPT)
        t.type("Say \x1b[200~one\rtwo\n\x1b]0;x\x07ü\x1b[201~ three")
        t.expect("three")
        t.type("\r")
        t.expect("prompt tokens cached")
        messages = t.saved(self.temporary_folder() / "saved")
        self.assertEqual(messages[0], ("user", "Say one\ntwo\n\ufffd]0;x\ufffdü three"))
        self.assertEqual(len(messages), 2)
        t.leave()

    def test_pasted_text_is_no_command(self):
        """Not even if it begins like one; typed before it, one is."""
        t = self.typist()
        for text in "/* a\n comment */", "// another\nint x;", "/reset":
            t.expect(PROMPT)
            t.type("\x1b[200~" + text + "\x1b[201~\r")
            t.expect("prompt tokens cached")
        path = self.temporary_folder() / "saved"
        t.expect(PROMPT)
        t.type("/save \x1b[200~" + str(path) + "\x1b[201~\r")
        t.expect("messages saved to")
        asked = [m["content"] for m in json.loads(path.read_text())["messages"][::2]]
        self.assertEqual(asked, ["/* a\n comment */", "// another\nint x;", "/reset"])
        t.leave()

    def test_a_large_paste(self):
        """Longer than any line of a terminal, and one that does not end before Ctrl-C."""
        t = self.typist("chat", "--no-think", "--max-tokens", 1)
        t.expect(PROMPT)
        text = "".join(f"line {i}\n" for i in range(scaled(500, 40)))
        t.type("\x1b[200~" + text + "\x1b[201~\r")
        t.expect("prompt tokens cached")
        self.assertEqual(t.saved(self.temporary_folder() / "saved")[0][1], text.rstrip("\n"))
        t.expect(PROMPT)
        t.type("\x1b[200~never ends")
        time.sleep(0.3)
        t.type("\x03")
        t.leave()

    def test_letters_of_all_kinds(self):
        """Not only ASCII can be typed, in the C locale, too."""
        for env in {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}:
            t = self.typist(env=env)
            t.ask("Größe 世界 🦊")
            t.expect("prompt tokens cached")
            saved = t.saved(self.temporary_folder() / "saved")
            self.assertEqual(saved[0], ("user", "Größe 世界 🦊"))
            t.leave()

    def test_reset_and_system(self):
        """/reset forgets the turns, /system sets what the model is told, a slip is named."""
        t = self.typist()
        path = self.temporary_folder() / "saved"
        t.ask("What is 1 + 1?")
        t.expect("prompt tokens cached")
        t.ask("/system Be brief.")
        t.expect("the system message is set")
        self.assertEqual([r for r, _ in t.saved(path)], ["system", "user", "assistant"])
        t.ask("/reset")
        t.expect("a new conversation; the system message stays")
        self.assertEqual(t.saved(path), [("system", "Be brief.")])
        t.ask("/system")
        t.expect("no system message")
        self.assertEqual(t.saved(path), [])
        t.ask("/rest")
        t.expect("did you mean /reset")
        t.ask("/help")
        t.expect("/save FILE")
        t.ask("/save /nonexistent/x")
        t.expect("No such file")
        t.leave()

    def test_save_at_home(self):
        """Where no shell is that knows what "~" stands for."""
        home = self.temporary_folder()
        t = self.typist(env={"HOME": str(home)})
        t.ask("/system Be brief.")
        t.ask("/save ~/chat.json")
        t.expect("1 message saved to")
        self.assertEqual(len(json.loads((home / "chat.json").read_text())["messages"]), 1)
        t.leave()

    def test_control_c_in_a_long_line(self):
        """The next prompt comes below all rows of a line that is dropped, wherever the cursor was."""
        t = self.typist(size=(24, 40))
        t.expect(PROMPT)
        t.type("x" * 100)
        t.expect("x" * 20 + "$")
        t.type("\x01")  # to the first of three rows
        t.expect(r"\x1b\[2A[^\n]*$")
        t.type("\x03")
        self.assertEqual(t.expect(PROMPT).count("\n"), 3)
        t.type("\x04")
        self.assertEqual(t.end()[1], 0)

    def test_colours(self):
        """On a terminal the line behind an answer is dim; not with NO_COLOR."""
        for env, dim in ({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False):
            t = self.typist(env={"NO_COLOR": "", **env})
            t.ask("What is 1 + 1?")
            shown = t.expect(r"tokens cached[^\n]*\n")
            self.assertEqual("\x1b[2m(" in shown, dim, env)
            t.leave()

    def test_joined_lines(self):
        """A line that ends with a backslash goes on; two slashes are one that is text."""
        t = self.typist()
        t.ask("one\\")
        t.expect(r"\. ")
        t.type("two\r")
        t.expect("prompt tokens cached")
        t.ask("//etc")
        t.expect("prompt tokens cached")
        users = [text for role, text in t.saved(self.temporary_folder() / "saved") if role == "user"]
        self.assertEqual(users, ["one\ntwo", "/etc"])


class Asked(SharedDaemon):
    def test_who_types_is_told_what(self):
        """Commands that read a whole text from the terminal say of what kind, and how it ends."""
        for command, what, text, shown in (
                ("generate", "prompt", "Spell lion.", "l-i-o-n"), ("tokenize", "text", "hi", r"\d+"),
                ("detokenize", "token ids", "75 1060", "l-i"),
                ("render", "JSON object", '{"messages": []}', "empty")):
            t = Typist(self, self.daemon.socket, command)
            t.expect(f"Type the {what}, then press Ctrl-D")
            t.type(text + "\r\x04")
            t.expect(re.escape(text) + "\r\n.*" + shown)
            t.process.wait(timeout=scaled(20, 60))


class Piped(SharedDaemon):
    def test_each_line_is_a_turn(self):
        """Answers on stdout, the cost on stderr; no prompt and no colour."""
        done = self.daemon.ctl("chat", "--no-think", "--temperature", 0,
                               stdin="What is 17 + 25?\n\nWhat is 17 + 25?\r\n")
        self.assertEqual(len(done.stdout.decode().split("\n")), 3, done.stdout)
        self.assertIn(b"42", done.stdout)
        self.assertEqual(done.stderr.count(b"prompt tokens cached"), 2)
        self.assertNotIn(b"\x1b", done.stdout + done.stderr)
        self.assertNotIn(b"> ", done.stdout + done.stderr)

    def test_quiet(self):
        done = self.daemon.ctl("chat", "--quiet", "--max-tokens", 4, stdin="hi\n")
        self.assertEqual(re.sub("nvllmctl: the answer was cut at its maximum length .*\n", "",
                                done.stderr.decode()), "")

    def test_saves_what_is_not_utf8(self):
        path = self.temporary_folder() / "saved"
        self.daemon.ctl("chat", stdin=b"/system a\xff\n/save %s\n" % bytes(path))
        self.assertEqual(json.loads(path.read_bytes())["messages"][0]["content"], "a\ufffd")

    def takes_control_c(self, p):
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{p.pid}/status").read_text(), re.M)[1]
        return int(caught, 16) >> (signal.SIGINT - 1) & 1

    def test_control_c_ends_it(self):
        """Without a terminal Ctrl-C ends the program, waiting for input or for an answer."""
        for stdin in b"", b"Count from 1 to 1000.\n":
            p = self.daemon.ctl_start("chat", "--ignore-eos", "--max-tokens", 20000,
                                      stdin=subprocess.PIPE)
            p.stdin.write(stdin)
            p.stdin.flush()
            if stdin:
                self.assertTrue(p.stdout.read(1))
            else:
                wait_for(lambda: self.takes_control_c(p), scaled(20, 60), "it has begun")
                time.sleep(scaled(0.3, 2))
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.wait(timeout=scaled(10, 60)), 130)
            p.communicate()

    def test_timeout_holds_while_nothing_comes(self):
        """--timeout ends a chat that waits for somebody to type, at a terminal and at a pipe."""
        seconds = scaled(3, 5)  # in which a slow machine has come to wait
        p = self.daemon.ctl_start("chat", "--timeout", seconds, stdin=subprocess.PIPE)
        self.assertEqual(p.wait(timeout=scaled(20, 60)), 5)
        self.assertIn(b"--timeout", p.communicate()[1])
        t = Typist(self, self.daemon.socket, "chat", "--timeout", seconds)
        t.expect(PROMPT)
        t.type("half a line")
        shown, status = t.end()
        self.assertEqual(status, 5)
        self.assertIn("--timeout", shown)


class Played(Case):
    def chat(self, script, text, *args):
        return Fake(self, script).ctl("chat", *args, stdin=text.encode())

    def test_whole_conversation_goes_with_each_turn(self):
        seen = []

        def script(peer):
            while (got := peer.receive()) is not None:
                seen.append([(m["role"], m["content"]) for m in got[2]["chat"]["messages"]])
                peer.answer(got[0], f"answer {len(seen)}")

        done = self.chat(script, "a\nb\n", "--system", "s")
        self.assertEqual(done.stdout, b"answer 1\nanswer 2\n")
        self.assertEqual(seen, [[("system", b"s"), ("user", b"a")],
                                [("system", b"s"), ("user", b"a"), ("assistant", b"answer 1"),
                                 ("user", b"b")]])

    def test_refused_question_is_no_part_of_it(self):
        """At a terminal an error ends the turn and not the chat, and leaves no trace in it."""
        seen = []

        def script(peer):
            while (got := peer.receive()) is not None:
                seen.append(len(got[2]["chat"]["messages"]))
                if len(seen) == 1:
                    peer.send(got[0], error={"code": "ERROR_TOO_LONG", "message": "too much"})
                else:
                    peer.answer(got[0], "fine")

        t = Typist(self, Fake(self, script).path, "chat")
        t.ask("long")
        t.expect("too much.*/reset")
        t.ask("short")
        t.expect("fine")
        self.assertEqual(seen, [1, 1])
        t.leave()
        done = self.chat(lambda p: p.send(p.receive()[0], error={"code": "ERROR_TOO_LONG"}), "x\n")
        self.assertEqual(done.returncode, 4)

    def test_daemon_comes_back(self):
        """A chat outlives the connection: the next question goes to the daemon that is there then."""
        n = []

        def script(peer):
            while (got := peer.receive()) is not None:
                n.append(len(got[2]["chat"]["messages"]))
                if len(n) == 2:
                    return  # hangs up in the middle
                peer.answer(got[0], f"answer {len(n)}")

        t = Typist(self, Fake(self, script).path, "chat")
        for question, wanted in ("a", "answer 1"), ("b", "nvllmctl: "), ("c", "answer 3"):
            t.ask(question)
            t.expect(wanted)
        self.assertEqual(n, [1, 3, 3])
        t.leave()

    def test_commands_connect_again(self):
        """/save and /reset of a session do as a question does when the connection was lost."""
        def script(peer):
            while (got := peer.receive()) is not None:
                if got[1] == "generate":
                    return  # hangs up
                info = {"name": "s", "turns": 0}
                if got[1] == "show_session":
                    peer.send(got[0], session_contents={
                        "info": info, "turn_messages": [1],
                        "chat": {"messages": [{"role": "system", "content": b"Hi"}]}})
                else:
                    peer.send(got[0], session_info=info)

        t = Typist(self, Fake(self, script).path, "chat", "--session", "s")
        t.ask("a")
        t.expect("nvllmctl: ")
        self.assertEqual(t.saved(self.temporary_folder() / "chat.json"), [("system", "Hi")])
        t.ask("b")
        t.expect("nvllmctl: ")
        t.ask("/reset")
        t.expect("a new conversation")
        t.leave()

    def test_timeout_leaves_a_silent_daemon(self):
        """A deadline does not wait for a daemon that says nothing, not even of the cancelled."""
        def script(peer):
            while peer.receive() is not None:
                pass

        seconds = scaled(3, 5)
        for args in ("chat",), ("generate", "-"):
            started = time.monotonic()
            done = Fake(self, script).ctl(*args, "--timeout", seconds, stdin=b"a\n")
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertEqual(done.stderr.count(b"nvllmctl: "), 1, done.stderr)
            self.assertIn(b"--timeout", done.stderr)
            self.assertLess(time.monotonic() - started, seconds + scaled(2.5, 30))

    def test_second_control_c_leaves_a_silent_daemon(self):
        """Its late events do not show in the next answer."""
        ids = []

        def script(peer):
            while (got := peer.receive()) is not None:
                if got[1] != "generate":
                    continue
                ids.append(got[0])
                if len(ids) == 1:
                    peer.send(got[0], delta={"text": "begun "})
                else:
                    peer.send(ids[0], delta={"text": "LATE", "finish_reason": "FINISH_CANCELLED"})
                    peer.send(ids[0], done={})
                    peer.answer(got[0], "second answer")

        t = Typist(self, Fake(self, script).path, "chat")
        t.ask("a")
        t.expect("begun")
        t.type("\x03")
        time.sleep(0.3)
        t.type("\x03")
        t.ask("b")
        self.assertNotIn("LATE", t.expect("second answer"))
        t.leave()
