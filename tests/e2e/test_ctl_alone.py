"""nvllmctl against a daemon that the test plays, well and badly: what a real one does rarely or
never."""

import itertools
import json
import os
import pty
import re
import resource
import select
import shlex
import signal
import socket
import subprocess
import threading
import time
import unittest

import wire
from harness import Case, config, run_command, scaled, start_ctl
from test_ctl_documents import commands

READY = {"welcome": {"protocol": 1, "server": "fake/1", "state": "STATE_READY"}}


class Peer(wire.Stream):
    """One connection, from the daemon's side."""

    def send(self, id_=0, **event):
        raw = wire.encode("ServerFrame", {"id": id_, **event} if id_ else event)
        self.raw(wire.varint(len(raw)) + raw)

    def raw(self, data):
        try:
            self.sock.sendall(data)
        except OSError:
            pass  # nvllmctl has gone, as some tests want

    def receive(self):
        """(id, operation, its fields), or None when nvllmctl has closed."""
        try:
            frame = wire.decode("ClientFrame", self.next_frame())
        except wire.Closed:
            return None
        id_ = frame.pop("id", 0)
        (op, fields), = frame.items()
        return id_, op, fields

    def answer(self, id_, text="ok", finish="FINISH_STOP"):
        self.send(id_, delta={"text": text, "token_ids": [1, 2], "finish_reason": finish})
        self.send(id_, done={"usage": {"prompt_tokens": 3, "completion_tokens": 2}})


class Fake:
    """A daemon whose connections are each served by script(peer), greeting included."""

    def __init__(self, case, script, welcome=READY):
        self.path = case.temporary_folder() / "socket"
        self.script, self.welcome, self.wrong = script, welcome, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(4)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        case.addCleanup(self.close)

    def serve(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            with sock:
                try:
                    peer = Peer(sock)
                    if self.welcome:
                        peer.send(**self.welcome)
                        peer.receive()
                    self.script(peer)
                except ConnectionError:
                    pass
                except Exception as e:  # shown by the test that started it
                    self.wrong.append(e)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(timeout=5)
        if self.wrong:
            raise self.wrong[0]

    def ctl(self, *args, stdin=b"", **options):
        return subprocess.run([config.nvllmctl, "--socket", self.path, *map(str, args)],
                              input=stdin, capture_output=True, timeout=scaled(30, 120), **options)

    def start(self, *args, **options):
        return start_ctl(self.path, *args, **options)


def answering(text):
    def script(peer):
        while (got := peer.receive()) is not None:
            if got[1] == "generate":
                peer.answer(got[0], text)
    return script


class Output(Case):
    def test_bytes_arrive_as_they_are(self):
        """NUL and what is no UTF-8 go through a pipe unchanged; no newline is added."""
        text = b"a\0b\xff\x1b[31m \xf0\x9f\xa6\x8a"
        fake = Fake(self, answering(text))
        done = fake.ctl("generate", "x")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, text, b""))
        out = json.loads(fake.ctl("generate", "--json", "x").stdout)
        self.assertEqual(out["text"], text.decode(errors="replace"))
        self.assertEqual(out["token_ids"], [1, 2])

    def test_text_does_not_steer_the_terminal(self):
        """On a terminal control characters are shown as such, and the last line ends."""
        fake = Fake(self, answering(b"a\x1b]0;title\x07\xc2\x9b2Jb\tc"))
        self.assertEqual(self.shown(fake, "generate", "x"),
                         "a\ufffd]0;title\ufffd\ufffd2Jb\tc\r\n")

    def shown(self, fake, *args):
        """What a terminal gets on stdout."""
        master, slave = pty.openpty()
        p = fake.start(*args, stdout=slave)
        os.close(slave)
        shown = b""
        try:
            while more := os.read(master, 4096):
                shown += more
        except OSError:
            pass
        os.close(master)
        p.communicate()
        return shown.decode()

    def test_no_answer_steers_the_terminal(self):
        """Texts of other operations do not, either; a pipe gets them byte for byte."""
        text = "a\x1b[2Jb\u009b2Jc"

        def script(peer):
            while (got := peer.receive()) is not None:
                if got[1] == "reload":
                    peer.send(got[0], reloaded={"changed": [text], "needs_restart": [text]})
                else:
                    peer.send(got[0], text={"text": text.encode()})

        fake = Fake(self, script)
        for args in ["detokenize", "1"], ["render", '{"messages": []}']:
            self.assertEqual(self.shown(fake, *args).rstrip(), "a\ufffd[2Jb\ufffd2Jc", args)
            self.assertEqual(fake.ctl(*args).stdout.decode(), text)
        shown = self.shown(fake, "reload")
        self.assertEqual(shown.count("a?[2Jb?2Jc"), 2, shown)

    def test_invalid_pieces(self):
        """Python's replacement is ours, whatever the bytes are."""
        for raw in (b"\xe2\x82", b"\xe2\x28\xa1", b"\xf0\x9f\xa6", b"\xc0\x80", b"\xed\xa0\x80",
                    b"\xf4\x90\x80\x80", b"\xff\xfe", b"x\x80y", b"\xf0\x80\x80\x80", b"\xe0\x9f\xbf"):
            with self.subTest(raw):
                fake = Fake(self, answering(raw))
                out = json.loads(fake.ctl("generate", "--json", "x").stdout)
                self.assertEqual(out["text"], raw.decode(errors="replace"))


class Requests(Case):
    def seen(self, *args, stdin=b"", **refuse):
        """What arrives of one generate; its first try may be refused."""
        got = []

        def script(peer):
            while (frame := peer.receive()) is not None:
                got.append(frame[2])
                if refuse and len(got) == 1:
                    peer.send(frame[0], error=refuse)
                else:
                    peer.answer(frame[0])

        self.done = Fake(self, script).ctl("generate", *args, stdin=stdin)
        return got

    def test_every_option(self):
        """Each option is the field that it is named after."""
        got, = self.seen(
            "--raw", "--temperature", 0.5, "--top-k", 3, "--top-p", 0.75, "--min-p", 0.25,
            "--repetition-penalty", 1.5, "--presence-penalty", -1, "--frequency-penalty", 1,
            "--logit-bias", "4:-2", "--logit-bias", "5:1", "--seed", 18446744073709551615, "--stop",
            "a", "--stop", "b", "--stop-token-id", 7, "--ignore-eos", "--min-tokens", 2,
            "--max-tokens", 9, "--logprobs", 1, "-n", 2, "--priority", "high", "--cache-salt", "s",
            "--deadline-ms", 60000, "--keep-special", "--json", "-", stdin=b"from stdin\n")
        self.assertEqual(got["prompt"], b"from stdin\n")
        self.assertEqual(got["sampling"], {
            "temperature": 0.5, "top_k": 3, "top_p": 0.75, "min_p": 0.25, "repetition_penalty": 1.5,
            "presence_penalty": -1, "frequency_penalty": 1, "seed": 18446744073709551615,
            "logit_bias": [{"id": 4, "bias": -2}, {"id": 5, "bias": 1}], "stop_token_ids": [7],
            "ignore_eos": True, "min_tokens": 2, "logprobs": 1})
        self.assertEqual({k: got[k] for k in ("stop", "max_tokens", "n", "priority", "cache_salt",
                                              "deadline_ms", "keep_special")},
                         {"stop": [b"a", b"b"], "max_tokens": 9, "n": 2,
                          "priority": "PRIORITY_HIGH", "cache_salt": b"s", "deadline_ms": 60000,
                          "keep_special": True})
        self.assertEqual(len(json.loads(self.done.stdout)["choices"]), 2)

    def test_formats(self):
        """What the answer must be arrives as it was given: files byte for byte."""
        folder = self.temporary_folder()
        schema, grammar = b'{ "multipleOf": 0.10 }\n', b"root ::= \"a\"\n"
        (folder / "schema").write_bytes(schema)
        (folder / "grammar").write_bytes(grammar)
        self.assertNotIn("response_format", self.seen("x")[0])
        for args, wanted in ((["--json-object"], {"json_object": True}),
                             (["--json-schema", folder / "schema"], {"json_schema": schema}),
                             (["--json-schema", "-"], {"json_schema": schema}),
                             (["--regex", "a+\n"], {"regex": b"a+\n"}),
                             (["--grammar", folder / "grammar"], {"grammar": grammar}),
                             (["--choice", "yes", "--choice", "", "--choice", "no"],
                              {"choice": {"texts": [b"yes", b"", b"no"]}})):
            with self.subTest(args):
                got, = self.seen(*args, "x", stdin=schema)
                self.assertEqual(got["response_format"], wanted)

    def test_chat_is_the_default(self):
        """A text is a user's message; of a pipe's last line the end is left out."""
        got, = self.seen("--system", "Be brief.", "--no-think", stdin=b"hello\n")
        self.assertEqual([(m["role"], m["content"]) for m in got["chat"]["messages"]],
                         [("system", b"Be brief."), ("user", b"hello")])
        self.assertIs(got["chat"]["enable_thinking"], False)
        self.assertFalse([k for k, v in got.get("sampling", {}).items() if v != []])

    def test_model_without_template(self):
        """Then the text is continued as it is; not where a chat was asked for."""
        refuse = {"code": "ERROR_UNSUPPORTED", "message": "no template"}
        first, second = self.seen("hello", **refuse)
        self.assertIn("chat", first)
        self.assertEqual(second["prompt"], b"hello")
        self.assertEqual((self.done.returncode, self.done.stdout), (0, b"ok"))
        for options in ["--chat"], ["--no-think"], ["--session", "s"]:
            self.assertEqual(len(self.seen(*options, "hello", **refuse)), 1)
            self.assertEqual(self.done.returncode, 1)
            self.assertIn(b"no template", self.done.stderr)


class ExitCodes(Case):
    def test_refusals(self):
        """Each kind of error has its exit code, and its message is on stderr alone."""
        for code, wanted in (("INVALID", 1), ("TOO_LONG", 4), ("UNAVAILABLE", 4), ("BUSY", 4),
                             ("DEADLINE", 5), ("DENIED", 6), ("INTERNAL", 1), ("PROTOCOL", 1)):
            def script(peer):
                peer.send(peer.receive()[0], error={"code": "ERROR_" + code, "message": "because"})
                peer.receive()

            with self.subTest(code):
                done = Fake(self, script).ctl("generate", "--raw", "x")
                self.assertEqual((done.returncode, done.stdout), (wanted, b""))

    def test_hostile_daemons(self):
        """Garbage, silence and a hang-up are errors that are said, in bounded time."""
        def garbage(peer):
            peer.receive()
            peer.raw(b"\xff\xff\xff\xff\xff\xff\xff\xff")
            peer.receive()

        def silence(peer):
            while peer.receive() is not None:
                pass

        for script, welcome, args, wanted in (
                (garbage, READY, [], 1), (lambda peer: None, READY, [], 1),
                (lambda peer: None, None, [], 1), (garbage, None, [], 1),
                (silence, READY, ["--timeout", "0.3"], 5), (silence, None, ["--timeout", "0.3"], 5)):
            started = time.monotonic()
            done = Fake(self, script, welcome).ctl("generate", *args, "x")
            self.assertEqual(done.returncode, wanted, done.stderr)
            self.assertTrue(done.stderr)
            self.assertLess(time.monotonic() - started, scaled(8, 30))
        gone = Fake(self, lambda peer: None, READY).ctl("generate", "x")
        self.assertIn("whether it is back", gone.stderr.decode())

    def test_wrong_fields(self):
        """A field is called as the option that gives it, and a prompt by what it is."""
        for field, message, args, shown in (
                ("sampling.stop_token_ids[0]", "sampling.stop_token_ids[0]: 9 is too large",
                 ["--stop-token-id", 9], "--stop-token-id: 9 is too large"),
                ("sampling.top_p", "sampling.top_p: 2 is too large", ["--top-p", 2],
                 "--top-p: 2 is too large"),
                ("prompt", "prompt: is empty", [], "the prompt is empty")):
            def script(peer):
                peer.send(peer.receive()[0], error={"code": "ERROR_INVALID", "message": message,
                                                    "field": field})
                peer.receive()

            done = Fake(self, script).ctl("generate", "--raw", *args, "x")
            self.assertEqual(done.stderr.decode(), f"nvllmctl: {shown}\n")

    def test_daemon_of_another_release(self):
        """It is named, with what to do; doctor does not ask it to stop, since it cannot."""
        other = {"welcome": {"protocol": 7, "server": "nvllmd/9.0", "state": "STATE_READY"}}
        fake = Fake(self, lambda peer: peer.receive(), other)
        done = fake.ctl("generate", "x")
        self.assertEqual(done.returncode, 1)
        for text in "nvllmd/9.0", "version 7", "install the same release":
            self.assertIn(text, done.stderr.decode())
        found = json.loads(fake.ctl("doctor", "--json").stdout)["findings"]
        wrong, = (f for f in found if f["about"] == "daemon")
        self.assertIn("install the same release", wrong["text"])
        self.assertNotIn("stop", wrong["fix"])

    def test_socket_of_another_kind(self):
        """No daemon has been reached, and none has a log that says why."""
        path = self.temporary_folder() / "socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(str(path))
            done = run_command([config.nvllmctl, "--socket", path, "generate", "x"], check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_path_in_a_command(self):
        """A socket's path is one word in what is to be pasted, or is not shown at all."""
        for name in "it's here; rm x", "a\x1b[2Jb":
            path = self.temporary_folder() / name
            done = run_command([config.nvllmctl, "--socket", path, "status"], check=False)
            self.assertEqual(done.returncode, 3)
            found = re.findall("“(nvllm[^“”]+)”", done.stderr.decode())
            self.assertEqual([str(path) in shlex.split(x) for x in found],
                             [True, True] if "'" in name else [], done.stderr)
            self.assertNotIn(b"\x1b", done.stderr)

    def test_second_control_c(self):
        """The first Ctrl-C waits for the daemon's word, the second one does not."""
        asked = threading.Event()

        def script(peer):
            while (got := peer.receive()) is not None:
                if got[1] == "cancel":
                    asked.set()
                else:
                    peer.send(got[0], delta={"text": "a"})

        p = Fake(self, script).start("generate", "x")
        self.assertEqual(p.stdout.read(1), b"a")
        p.send_signal(signal.SIGINT)
        self.assertTrue(asked.wait(scaled(4, 20)))
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=scaled(4, 20))
        self.assertEqual(p.returncode, 130)

    def test_flood(self):
        """A daemon that never stops talking cannot keep Ctrl-C and --timeout from being heard."""
        flooded = threading.Event()

        def script(peer):
            id_ = peer.receive()[0]
            raw = wire.encode("ServerFrame", {"id": id_, "delta": {"text": "a"}})
            flood = (wire.varint(len(raw)) + raw) * 5000
            try:
                for i in itertools.count():
                    peer.sock.sendall(flood)
                    if i == 20:  # more than a socket holds: it is being read
                        flooded.set()
            except OSError:
                pass

        fake = Fake(self, script)
        p = fake.start("generate", "--json", "x")
        self.assertTrue(flooded.wait(scaled(15, 60)))
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=scaled(15, 60))
        self.assertEqual(p.returncode, 130)
        self.assertEqual(fake.ctl("generate", "--json", "--timeout", 0.2, "x").returncode, 5)

    def test_control_c_while_writing(self):
        """Ctrl-C is not lost where it comes between two waits and the answer never pauses."""
        stuck, asked = threading.Event(), threading.Event()

        def script(peer):
            id_ = peer.receive()[0]
            raw = wire.encode("ServerFrame", {"id": id_, "delta": {"text": "a" * 4096}})
            rest = frame = wire.varint(len(raw)) + raw
            while not select.select([peer.sock], [], [], 0)[0]:
                if select.select([], [peer.sock], [], 0.3)[1]:
                    rest = rest[peer.sock.send(rest, socket.MSG_DONTWAIT):] or frame
                else:
                    stuck.set()  # nvllmctl writes to a pipe that is full
            self.assertEqual(peer.receive()[1], "cancel")
            asked.set()
            peer.raw(rest)
            peer.answer(id_, "", "FINISH_CANCELLED")

        p = Fake(self, script).start("generate", "x")
        self.assertTrue(stuck.wait(scaled(10, 40)))
        p.send_signal(signal.SIGINT)
        time.sleep(0.1)
        reader = threading.Thread(target=p.communicate)
        reader.start()
        self.assertTrue(asked.wait(scaled(5, 20)), "nothing was cancelled")
        reader.join(scaled(10, 40))
        self.assertEqual(p.returncode, 130)

    def test_request_that_is_too_large(self):
        """The limit that a request is too large for is named."""
        done = Fake(self, lambda peer: peer.receive()).ctl("generate", "--prompt", "-",
                                                           stdin=b"x" * (70 << 20))
        self.assertEqual(done.returncode, 4)
        self.assertIn(b"limits.frame_bytes", done.stderr)

    def test_closed_standard_streams(self):
        """What a closed stdout was meant for is an error, and never goes to the daemon."""
        fake = Fake(self, answering("ok"))
        for args in (["generate", "x"], ["generate", "--json", "x"], ["tokenize", "--help"]):
            done = fake.ctl(*args, preexec_fn=lambda: os.close(1))
            self.assertEqual(done.returncode, 1, args)
            self.assertIn(b"Bad file descriptor", done.stderr)
        done = fake.ctl("generate", preexec_fn=lambda: os.close(0))
        self.assertEqual((done.returncode, done.stdout), (1, b""))

    def test_loading(self):
        """It waits while the model is loaded, unless told not to."""
        loading = {"welcome": {"protocol": 1, "state": "STATE_LOADING", "progress": 0.5}}
        asked = []

        def script(peer):
            while (got := peer.receive()) is not None:
                if got[1] == "get_status":
                    asked.append(1)
                    state = "STATE_READY" if len(asked) > 2 else "STATE_LOADING"
                    peer.send(got[0], status={"state": state})
                elif len(asked) > 2:
                    peer.answer(got[0])
                else:
                    peer.send(got[0], error={"code": "ERROR_UNAVAILABLE", "message": "loading"})

        fake = Fake(self, script, loading)
        self.assertEqual(fake.ctl("generate", "--no-wait", "x").returncode, 4)
        done = fake.ctl("generate", "x")
        self.assertEqual((done.returncode, done.stdout), (0, b"ok"))
        self.assertEqual(len(asked), 3)

    def test_socket_from_the_environment(self):
        """$NVLLM_SOCKET says where, --socket says better."""
        fake = Fake(self, answering("ok"))
        command = [config.nvllmctl, "generate", "x"]
        done = subprocess.run(command, capture_output=True, timeout=60,
                              env={**os.environ, "NVLLM_SOCKET": str(fake.path)})
        self.assertEqual(done.stdout, b"ok", done.stderr)
        done = fake.ctl("generate", "x", env={**os.environ, "NVLLM_SOCKET": "/nonexistent"})
        self.assertEqual(done.stdout, b"ok", done.stderr)

    @unittest.skipIf(os.path.exists("/run/nvllm/nvllm.sock"), "a service runs here")
    def test_socket_of_the_quick_start(self):
        """Found where nothing else is said, in a folder that nobody else can write to."""
        fake, runtime = Fake(self, answering("ok")), self.temporary_folder()
        (runtime / "nvllm").mkdir(mode=0o700)
        (runtime / "nvllm" / "nvllmd.sock").symlink_to(fake.path)
        env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
        env.pop("NVLLM_SOCKET", None)

        def run():
            return subprocess.run([config.nvllmctl, "generate", "x"], capture_output=True,
                                  timeout=60, env=env)

        self.assertEqual(run().stdout, b"ok")
        (runtime / "nvllm").chmod(0o777)
        self.assertEqual(run().returncode, 3)

    def test_socket_that_is_none(self):
        """A file or folder at the path is said to be no socket, waited for or not."""
        path = self.temporary_folder() / "file"
        path.write_text("")
        for what in path, path.parent:
            for args in [], ["--wait"]:
                done = run_command([config.nvllmctl, "--socket", what, "status", *args],
                                   check=False)
                self.assertEqual((done.returncode, done.stdout), (1, b""))
                self.assertIn(f"nvllmctl: {what} is not a socket", done.stderr.decode())

    def test_help_and_slips(self):
        """Each command has help on stdout; a slip names what was meant."""
        def run(*args):
            return run_command([config.nvllmctl, *args], check=False)

        for command in commands():
            done = run("help", command)
            self.assertEqual((done.returncode, done.stdout.count(b"  --wait ")), (0, 1), command)
            self.assertIn(command.encode(), done.stdout)
            self.assertEqual(run(command, "--help").stdout, done.stdout)
        self.assertIn(b"generate", run("genrate").stderr)
        self.assertIn("did you mean “generate”".encode(), run("gen").stderr)
        for other, ours in ("run", "chat"), ("ps", "requests"):
            self.assertIn(f"did you mean “{ours}”".encode(), run(other).stderr)
        self.assertEqual((run().returncode, run().stdout), (2, run("help").stdout))
        self.assertIn(b"--temperature", run("generate", "--temprature", "1", "x").stderr)
        self.assertNotIn(b"did you mean", run("generate", "--t", "0", "x").stderr)
        self.assertIn(b"go after it", run("--json", "status").stderr)
        self.assertIn("did you mean “--socket”".encode(), run("--scoket", "x", "status").stderr)
        for wrong in (["generate", "a", "b"], ["generate", "--chat", "--raw", "x"], ["status", "x"],
                      ["generate", "--seed", "-1", "x"], ["generate", "--logit-bias", "5", "x"],
                      ["generate", "--priority", "urgent", "x"], ["--timeout", "soon", "status"],
                      ["generate", "--max-tokens", "1.5", "x"], ["help", "me"],
                      ["generate", "--temperature", "nan", "x"], ["version", "x"],
                      ["generate", "--json-object", "--regex", "a", "x"],
                      ["generate", "--choice", "a", "--grammar", "/dev/null", "x"],
                      ["generate", "--json-schema", "-"], ["generate", "--grammar", "-", "-"],
                      ["generate", "--grammar", "-", "--prompt-file", "-"],
                      ["batch", "--json-schema", "-", "-"], ["chat", "--json-schema", "-"],
                      ["generate", "--no-such"], ["no-such-command"], ["batch", "x", "y"],
                      ["generate", "--max-tokens", "many", "x"], ["doctor", "x"],
                      ["doctor", "--user", "no-such-user"], ["doctor", "--no-such"],
                      ["chat", "x"], ["chat", "-n", "2"], ["chat", "--logprobs", "1"],
                      ["chat", "--sistem", "x"], ["bench", "x"], ["bench", "--streams", "0"],
                      ["bench", "--nano-vllm", "--seed", "1"], ["bench", "--rate", "-1"],
                      ["bench", "--prompt-tokens", "9-3"], ["bench", "--prompt-tokens", "-3"],
                      ["bench", "--rate", "nan"], ["bench", "--duration", "1", "--requests", "2"],
                      ["bench", "--output-tokens", "1-"], ["bench", "--temperature", "-1"],
                      ["bench", "--workload", "x", "--output-tokens", "3"]):
            done = run(*wrong)
            self.assertEqual((done.returncode, done.stdout), (2, b""), wrong)
            self.assertTrue(done.stderr)
        self.assertIn(b"--choice and --regex cannot be combined",
                      run("generate", "--choice", "a", "--regex", "b", "x").stderr)
        self.assertEqual(run("generate", "--json-schema", "/no/such", "x").returncode, 1)


class Batch(Case):
    def test_output_over_the_file_size_limit(self):
        """A write error is reported, and the exit code says so; no signal ends the program."""
        target = self.temporary_folder() / "out"
        done = Fake(self, answering("x" * 100)).ctl(
            "batch", "--input", "-", "--output", target, stdin=b'{"prompt": "x"}\n' * 50,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"File too large", done.stderr)
        self.assertEqual(target.stat().st_size, 1000)

    def batch(self, script, lines, *args):
        text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
        done = Fake(self, script).ctl("batch", "--input", "-", "--output", "-", "--json", *args,
                                      stdin=text.encode(errors="surrogateescape"))
        out = [json.loads(x) for x in done.stdout.decode().splitlines()]
        return out, json.loads(done.stderr.decode().splitlines()[-1]), done

    def test_limit_and_order(self):
        """No more requests than the concurrency are in progress, and answers keep the order."""
        most = []

        def script(peer):
            held = []
            total = 0
            while (got := peer.receive()) is not None:
                held.append((got[0], got[2]["prompt"]))
                total += 1
                most.append(len(held))
                if len(held) == 5 or total == 23:
                    while held:  # the newest first
                        id_, prompt = held.pop()
                        peer.answer(id_, prompt)

        out, summary, done = self.batch(script, [{"prompt": f"p{i}"} for i in range(23)],
                                        "--concurrency", 5)
        self.assertEqual([o["text"] for o in out], [f"p{i}" for i in range(23)])
        self.assertEqual(max(most), 5)
        self.assertEqual(summary["failed"], 0)
        self.assertEqual((summary["prompt_tokens"], summary["output_tokens"]), (69, 46))
        self.assertEqual(done.returncode, 0)

    def test_busy_daemon_is_asked_again(self):
        """Requests over the daemon's limit succeed later."""
        refused = []

        def script(peer):
            held = []
            while (got := peer.receive()) is not None:
                if len(held) < 2 and len(refused) < 6:
                    held.append(got[0])
                elif len(refused) < 6:
                    refused.append(got[0])
                    peer.send(got[0], error={"code": "ERROR_BUSY", "retryable": True,
                                             "message": "too many"})
                else:
                    held.append(got[0])
                if len(refused) == 6:
                    while held:
                        peer.answer(held.pop())

        out, summary, done = self.batch(script, [{"prompt": "x"}] * 8, "--concurrency", 8)
        self.assertEqual([o.get("text") for o in out], ["ok"] * 8)
        self.assertEqual(len(refused), 6)
        self.assertEqual(done.returncode, 0)

    def test_wrong_lines(self):
        """Each wrong line names what is wrong, and costs no request."""
        wrong = {'{"prompt":"x","bogus":1}': "bogus", '{"prompt":"x","messages":[]}': "one of",
                 '{"prompt":7}': "prompt", '{"prompt":"x","prompt":"y"}': "duplicate", '{"messages":[{"content":"x"}]}': "role",
                 '{"messages":[{"role":"user","contents":"x"}]}': "contents", '[]': "object",
                 '{"prompt":"x","n":-1}': "n:", '{"prompt":"x","top_k":1.5}': "top_k",
                 '{"prompt":"x","stop":[1]}': "stop", '{"prompt_ids":[1,"2"]}': "prompt_ids[1]",
                 '{"prompt":"x","temperature":"0"}': "temperature", "nope": "JSON",
                 '{"prompt":': "JSON", "\udcff\udcfe": "",
                 '{"prompt":"x","enable_thinking":true}': "messages",
                 '{"messages":[{"role":"user","content":["x"]}]}': "messages[0].content",
                 '{"messages":[{"role":"a","tool_calls":[{"name":"f"}]}]}': "arguments",
                 '{"prompt":"x","response_format":"json"}': "response_format: must be an object",
                 '{"prompt":"x","response_format":{"type":"xml"}}': "response_format.type",
                 '{"prompt":"x","response_format":{"type":"regex"}}': "response_format.regex",
                 '{"prompt":"x","response_format":{"type":"text","regex":"a"}}': "absent",
                 '{"prompt":"x","response_format":{"type":"json_schema","json_schema":{}}}':
                     "response_format.json_schema.schema",
                 '{"prompt":"x","response_format":{"type":"choice","choices":[1]}}':
                     "response_format.choices[0]"}

        def script(peer):
            if peer.receive() is not None:
                raise AssertionError("a request came")

        out, summary, done = self.batch(script, list(wrong))
        for line, o in zip(wrong, out):
            self.assertEqual(o["error"]["code"], "invalid")
            self.assertIn(wrong[line], o["error"]["message"], line)
        self.assertEqual(summary["failed"], len(wrong))
        self.assertEqual(done.returncode, 1)

    def test_formats(self):
        """A line's own takes the place of the options'; its schema keeps its order and numbers."""
        got = {}

        def script(peer):
            while (frame := peer.receive()) is not None:
                got[frame[2]["prompt"]] = frame[2].get("response_format")
                peer.answer(frame[0])

        formats = {"a": {"type": "json_object"}, "b": {"type": "text"}, "c": None,
                   "d": {"type": "json_schema", "json_schema": {
                       "name": "x", "schema": {"multipleOf": 0.1, "a": 1e300, "0": [True, 10**15]}}},
                   "e": {"type": "json_schema", "json_schema": {"schema": '{"a": 0.10}'}},
                   "f": {"type": "choice", "choices": ["yes", "no"]},
                   "g": {"type": "grammar", "grammar": "root ::= [a]"}}
        out, summary, done = self.batch(
            script, [{"prompt": p, "response_format": f} for p, f in formats.items()],
            "--regex", "a+")
        self.assertEqual(summary["failed"], 0, out)
        schema = json.loads(got[b"d"].pop("json_schema"), object_pairs_hook=list, parse_float=str)
        self.assertEqual(schema, [("multipleOf", "0.1"), ("a", "1e+300"), ("0", [True, 10**15])])
        self.assertEqual(got, {b"a": {"json_object": True}, b"b": None, b"c": {"regex": b"a+"},
                               b"d": {}, b"e": {"json_schema": b'{"a": 0.10}'},
                               b"f": {"choice": {"texts": [b"yes", b"no"]}},
                               b"g": {"grammar": b"root ::= [a]"}})

    def test_answers_come_while_the_input_is_open(self):
        """A producer may wait for an answer before it writes the next line."""
        p = Fake(self, answering("ok")).start("batch", "--input", "-", "--output", "-",
                                              stdin=subprocess.PIPE)
        for i in range(3):
            p.stdin.write(b'{"prompt":"x","id":%d}\n' % i)
            p.stdin.flush()
            self.assertEqual(json.loads(p.stdout.readline())["id"], i)
        p.communicate(timeout=scaled(10, 60))
        self.assertEqual(p.returncode, 0)

    def test_daemon_goes_in_the_middle(self):
        """What was done stays done, the rest gets errors, in order."""
        def script(peer):
            peer.answer(peer.receive()[0])
            peer.receive()

        out, summary, done = self.batch(script, [{"prompt": "x", "id": str(i)} for i in range(50)],
                                        "--concurrency", 2)
        self.assertEqual([o["id"] for o in out], [str(i) for i in range(50)])
        self.assertEqual(out[0]["text"], "ok")
        self.assertEqual({o["error"]["code"] for o in out[1:]}, {"connection"})
        self.assertEqual((summary["requests"], summary["failed"]), (50, 49))
        self.assertEqual(done.returncode, 1)

    def test_control_c(self):
        """Ctrl-C cancels the requests in progress, writes their ends, and skips the rest."""
        ready = threading.Event()

        def script(peer):
            under_way = []
            while (got := peer.receive()) is not None:
                if got[1] == "cancel":
                    peer.send(got[0], cancelled={"found": True})
                    peer.answer(got[2]["target"], "part", "FINISH_CANCELLED")
                else:
                    under_way.append(got[0])
                    if len(under_way) == 2:
                        ready.set()

        folder = self.temporary_folder()
        (folder / "in").write_text('{"prompt":"x"}\n' * 9)
        p = Fake(self, script).start("batch", "--input", folder / "in", "--output", folder / "out",
                                     "--concurrency", 2)
        self.assertTrue(ready.wait(10))
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=scaled(10, 60))
        self.assertEqual(p.returncode, 130)
        out = [json.loads(x) for x in (folder / "out").read_text().splitlines()]
        self.assertEqual([o["finish_reason"] for o in out], ["cancelled"] * 2)

    def test_input_is_not_overwritten(self):
        """The same file as input and output is refused before it is touched."""
        path = self.temporary_folder() / "file"
        path.write_text('{"prompt":"x"}\n')
        done = Fake(self, answering("ok")).ctl("batch", "--input", path, "--output", path)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(path.read_text(), '{"prompt":"x"}\n')


class Lines(Case):
    def test_a_wrong_line_does_not_end_it(self):
        """--jsonl answers a wrong line with an error, and goes on."""
        def script(peer):
            while (got := peer.receive()) is not None:
                peer.send(got[0], text={"text": bytes(got[2].get("ids", []))})

        done = Fake(self, script).ctl("detokenize", "--jsonl", stdin=b"[65]\n{}\nx\n[0, 66]\n[]\n")
        out = [json.loads(x) for x in done.stdout.decode().splitlines()]
        self.assertEqual([o.get("text") for o in out], ["A", None, None, "\0B", ""])
        self.assertTrue(all("error" in o for o in out[1:3]))
        self.assertEqual(done.returncode, 1)

    def test_ids_in_every_form(self):
        """Ids may be JSON, an object, plain numbers, or arguments."""
        def script(peer):
            while (got := peer.receive()) is not None:
                peer.send(got[0], text={"text": bytes(got[2].get("ids", []))})

        fake = Fake(self, script)
        for args, stdin in (([], b"[72, 105]"), ([], b'{"ids": [72, 105]}'), ([], b"72, 105\n"),
                            (["72", "105"], b""), (["-"], b" 72\n105 ")):
            self.assertEqual(fake.ctl("detokenize", *args, stdin=stdin).stdout, b"Hi", args)
        for stdin in b"72 x", b"99999999999999999999", b'["a"]', b"-1":
            done = fake.ctl("detokenize", stdin=stdin)
            self.assertEqual((done.returncode, done.stdout), (1, b""), stdin)
