"""The Python package: installed by pip, and from its source folder against a real daemon, one that dies
and ones that are hostile."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest

import harness
import wire
from harness import Case, Daemon, SharedDaemon, SMALL, at_once, scaled, wait_for
from test_answers import ARGUMENTS, CALLS, THINKS, TOOL
from test_ctl_alone import READY, Fake

SOURCE = harness.ROOT / "client" / "python"
sys.path.insert(0, str(SOURCE))
try:
    import google.protobuf  # noqa: F401
    import nvllm
    from nvllm import _schema
except ModuleNotFoundError as e:
    if e.name not in ("google", "google.protobuf"):
        raise
    nvllm = None

LONG = {"max_tokens": 2000, "ignore_eos": True}


needs_protobuf = unittest.skipUnless(nvllm, "no protobuf for Python")


@needs_protobuf
class Package(Case):
    def test_schema(self):
        """The schema is read as protobuf's own compiler reads it."""
        if not shutil.which("protoc"):
            self.skipTest("no protoc")
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        target = self.temporary_folder() / "set"
        subprocess.run(["protoc", f"--proto_path={wire.PROTO.parent}",
                        f"--descriptor_set_out={target}", wire.PROTO.name], check=True)
        expected, = FileDescriptorSet.FromString(target.read_bytes()).file
        for message in expected.message_type:
            for field in message.field:
                field.ClearField("json_name")
        self.assertEqual(_schema.read(wire.PROTO.read_text()), expected)

    def test_schema_of_another_language(self):
        """What the reader does not know it refuses."""
        for text in ('syntax = "proto3";', "message A { map<string, int32> m = 1; }",
                     "message A { optional int32 x = 1", "service S {}", "import 'x';",
                     "message A { optional int32 x = 1 [deprecated = true]; }"):
            with self.subTest(text), self.assertRaises(ValueError):
                _schema.read(text)

    def test_version(self):
        project = re.search(r"project\(nvllm VERSION (\S+)",
                            (harness.ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(nvllm.__version__, project)

    def test_documented_api_alone(self):
        """Nothing of protobuf's internals is used."""
        for path in [*SOURCE.rglob("*.py"), *(harness.ROOT / "client" / "examples").glob("*.py")]:
            self.assertNotIn("protobuf.internal", path.read_text(), path)

    def test_types(self):
        """The annotations hold, where a checker is."""
        mypy = [sys.executable, "-m", "mypy"]
        if subprocess.run([*mypy, "--version"], capture_output=True).returncode:
            self.skipTest("no mypy")
        done = subprocess.run([*mypy, "--strict", "--cache-dir", self.temporary_folder(), "nvllm"],
                              cwd=SOURCE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_pip(self):
        """pip installs it from the tree, without a network, and the installed copy answers."""
        folder = self.temporary_folder()
        for module in "pip", "venv", "ensurepip", "setuptools", "wheel":
            if subprocess.run([sys.executable, "-c", f"import {module}"],
                              capture_output=True).returncode:
                self.skipTest(f"no {module} for Python")
        source = folder / "python"  # building leaves files behind
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder / "venv"],
                       check=True)
        python = folder / "venv" / "bin" / "python3"
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        pip = subprocess.run([python, "-m", "pip", "install", "--no-build-isolation", "--no-index",
                              "--no-deps", source], capture_output=True, text=True, env=env)
        self.assertEqual(pip.returncode, 0, pip.stdout + pip.stderr)
        shutil.rmtree(source)
        with Daemon(SMALL) as d:
            program = ("import nvllm, sys; c = nvllm.Client(sys.argv[1]); "
                       "print(nvllm.__file__, c.generate('1 + 1 =', max_tokens=2).answer())")
            done = subprocess.run([python, "-c", program, d.socket], capture_output=True,
                                  text=True, env=env, cwd=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        installed = harness.pathlib.Path(done.stdout.split()[0]).parent
        self.assertTrue(installed.is_relative_to(folder / "venv"), installed)
        self.assertTrue((installed / "py.typed").exists())
        self.assertEqual((installed / "nvllm.proto").read_bytes(), wire.PROTO.read_bytes())


@needs_protobuf
class Talk(SharedDaemon):
    options = (SMALL, "limits.choices=4")

    def setUp(self):
        super().setUp()
        self.client = nvllm.Client(self.daemon.socket, wait_ready=True,
                                   timeout=scaled(20, 200))
        self.addCleanup(self.client.close)

    def idle(self):
        wait_for(lambda: not self.client.requests(), scaled(10, 60), "no request")

    def test_the_same_as_over_the_wire(self):
        """Texts, ids, logprobs and counts are what the protocol has, streamed or not."""
        request = {"max_tokens": 12, "n": 2, "stop": [b"zz"]}
        sampling = {"temperature": 1.0, "seed": 7, "logprobs": 2, "ignore_eos": True,
                    "logit_bias": [{"id": 5, "bias": 1.5}], "stop_token_ids": [3]}
        with self.daemon.connect() as w:
            raw = w.generate(prompt=b"Once", stream=True, sampling=sampling, **request)
        ours = {**sampling, **request, "logit_bias": {5: 1.5}, "stop": "zz"}
        for stream in True, False:
            answer = self.client.generate("Once", stream=stream, **ours).answer()
            for i, choice in enumerate(answer.choices):
                self.assertEqual(choice.text.encode(), raw.choices[i].text)
                self.assertEqual(choice.token_ids, raw.choices[i].ids)
                self.assertEqual(choice.finish_reason, "length")
                self.assertEqual([p.top for p in choice.logprobs],
                                 [list(zip(p["top_ids"], p["top_logprobs"]))
                                  for p in raw.choices[i].logprobs])
            usage = raw.done["usage"]
            self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens),
                             (usage["prompt_tokens"], usage["completion_tokens"]))
            self.assertGreater(answer.timing.total_ms, 0)
        self.assertEqual(answer.text, answer.choices[0].text)

    def test_pieces_make_the_answer(self):
        stream = self.client.chat([{"role": "user", "content": "Spell lion."}], temperature=0)
        pieces = list(stream)
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(map(str, pieces)), "l-i-o-n")
        self.assertEqual([p.finish_reason for p in pieces], [None] * (len(pieces) - 1) + ["stop"])
        self.assertEqual(stream.answer().message, {"role": "assistant", "content": "l-i-o-n"})
        self.assertEqual(list(stream), [])

    def test_tokenizer_and_template(self):
        text = "Hello, wörld <|im_end|>"
        tokens = self.client.tokenize(text)
        self.assertEqual(b"".join(tokens.tokens), text.encode())
        self.assertEqual(self.client.detokenize(tokens.ids), text)
        self.assertGreater(len(tokens.ids), len(self.client.tokenize(text, special=True).ids))
        chat = [{"role": "user", "content": "1 + 1 ="}]
        prompt = self.client.render(chat)
        self.assertIn("<|im_start|>user\n1 + 1 =<|im_end|>", prompt)
        self.assertLess(len(self.client.render(chat, add_generation_prompt=False)), len(prompt))
        ids = self.client.tokenize(prompt, special=True).ids
        answers = [request.answer().text for request in (
            self.client.chat(chat, temperature=0, raw_text=True),
            self.client.generate(prompt, temperature=0), self.client.generate(ids, temperature=0))]
        self.assertEqual(len(set(answers)), 1)

    def test_sessions(self):
        """They are created, have turns, and are listed, shown, forked, rewound and deleted."""
        client, say = self.client, [{"role": "user", "content": "Spell lion."}]
        made = client.create_session("py", [{"role": "system", "content": "Be brief."}],
                                     enable_thinking=False)
        self.assertEqual((made["name"], made["uid"], made["turns"]), ("py", os.getuid(), 0))
        first = client.chat(say, session="py", temperature=0).answer()
        again = client.chat(say, session="py", temperature=0).answer()
        self.assertGreater(again.usage.prompt_tokens, first.usage.prompt_tokens)
        held = client.session("py", ids=True)
        self.assertEqual(held["turn_messages"], [1, 3, 5])
        self.assertEqual(held["messages"][1:3], [*say, {"role": "assistant", "content": first.text}])
        self.assertEqual(held["enable_thinking"], False)
        self.assertEqual(held["token_ids"][-again.usage.completion_tokens:], again.token_ids)
        self.assertEqual(client.fork_session("py", "py2", turns=1)["turns"], 1)
        self.assertEqual(client.rewind_session("py", 0)["messages"], 1)
        self.assertEqual([s["name"] for s in client.sessions()], ["py", "py2"])
        self.assertEqual(len(client.sessions(all=True, limit=1)), 1)
        for error, field, call in (
                (nvllm.InvalidError, "name", lambda: client.create_session("py")),
                (nvllm.InvalidError, "name", lambda: client.create_session("a/b")),
                (nvllm.InvalidError, "name", lambda: client.session(7)),
                (nvllm.InvalidError, "turns", lambda: client.rewind_session("py", 1)),
                (nvllm.InvalidError, "session", lambda: client.chat(say, session="no").answer()),
                (nvllm.InvalidError, "chat.tool_choice",
                 lambda: client.chat(say, session="py", tool_choice="required").answer()),
                (nvllm.InvalidError, "chat", lambda: client.chat(say, session="py", tools=["{}"]).answer())):
            with self.assertRaises(error) as caught:
                call()
            self.assertEqual(caught.exception.field, field)
        for name in "py", "py2":
            self.assertEqual(client.delete_session(name)["name"], name)
        self.assertEqual(client.sessions(), [])

    def test_status_and_requests(self):
        status = self.client.status()
        self.assertEqual((status["state"], status["model"], status["asleep"]),
                         ("ready", "nvllm-tiny", "none"))
        self.assertEqual(self.client.server, status["server"])
        blocks = status["blocks"]
        self.assertEqual(blocks["free"] + blocks["cached"] + blocks["used"], blocks["total"])
        stream = self.client.generate("Once", **LONG)
        next(stream)
        info, = self.client.requests()
        self.assertEqual((info["pid"], info["state"]), (os.getpid(), "decode"))
        self.assertTrue(self.client.cancel(info["request"]))
        self.assertEqual(stream.answer().finish_reason, "cancelled")
        self.idle()
        self.assertFalse(self.client.cancel(info["request"]))

    def test_errors(self):
        """Each is of its class, and names the field as the library in C does."""
        say = [{"role": "user", "content": "x"}]
        for error, field, call in (
                (nvllm.InvalidError, "sampling.top_p", lambda c: c.generate("x", top_p=7)),
                (nvllm.InvalidError, "sampling.top_k", lambda c: c.generate("x", top_k=-1)),
                (nvllm.InvalidError, "sampling.seed", lambda c: c.generate("x", seed=1 << 64)),
                (nvllm.InvalidError, "sampling.min_p", lambda c: c.generate("x", min_p="0")),
                (nvllm.InvalidError, "sampling.logit_bias[0].bias",
                 lambda c: c.generate("x", logit_bias={3: 1000})),
                (nvllm.InvalidError, "sampling.stop_token_ids[1]",
                 lambda c: c.generate("x", stop_token_ids=[1, 1 << 20])),
                (nvllm.InvalidError, "stop[1]", lambda c: c.generate("x", stop=["a", ""])),
                (nvllm.InvalidError, "stop[1]", lambda c: c.generate("x", stop=["a", 1])),
                (nvllm.InvalidError, "priority", lambda c: c.generate("x", priority="urgent")),
                (nvllm.InvalidError, "response_format",
                 lambda c: c.generate("x", response_format="json")),
                (nvllm.InvalidError, "response_format.type",
                 lambda c: c.generate("x", response_format={"type": "xml"})),
                (nvllm.InvalidError, "response_format.schema",
                 lambda c: c.generate("x", response_format={"type": "json_object", "schema": {}})),
                (nvllm.InvalidError, "response_format.json_schema",
                 lambda c: c.generate("x", response_format={"type": "json_schema"})),
                (nvllm.InvalidError, "response_format.json_schema.schema",
                 lambda c: c.generate("x", response_format={"type": "json_schema",
                                                            "json_schema": {"name": "x"}})),
                (nvllm.InvalidError, "response_format.json_schema.schema",
                 lambda c: c.generate("x", response_format={
                     "type": "json_schema", "json_schema": {"schema": {"enum": {1, 2}}}})),
                (nvllm.InvalidError, "response_format.regex",
                 lambda c: c.generate("x", response_format={"type": "regex"})),
                (nvllm.InvalidError, "response_format.choices",
                 lambda c: c.generate("x", response_format={"type": "choice", "choices": "ab"})),
                (nvllm.InvalidError, "response_format.choices[1]",
                 lambda c: c.generate("x", response_format={"type": "choice",
                                                            "choices": ["a", 1]})),
                (nvllm.InvalidError, "prompt", lambda c: c.generate("")),
                (nvllm.InvalidError, "prompt", lambda c: c.generate("\udc80")),
                (nvllm.InvalidError, "prompt_ids", lambda c: c.generate([])),
                (nvllm.InvalidError, "prompt_ids.ids", lambda c: c.generate([1 << 40])),
                (nvllm.InvalidError, "prompt_ids.ids[0]", lambda c: c.generate([1 << 20])),
                (nvllm.InvalidError, "n", lambda c: c.generate("x", n=5)),
                (nvllm.TooLongError, "max_tokens", lambda c: c.generate("x", max_tokens=1 << 20)),
                (nvllm.InvalidError, "chat.messages", lambda c: c.chat([])),
                (nvllm.InvalidError, "chat.messages[0]", lambda c: c.chat("hello")),
                (nvllm.InvalidError, "chat.messages[1].role",
                 lambda c: c.chat([*say, {"role": "robot", "content": "x"}])),
                (nvllm.InvalidError, "chat.messages[0].contents",
                 lambda c: c.chat([{"role": "user", "contents": "x"}])),
                (nvllm.InvalidError, "chat.messages[0].tool_calls[0].arguments",
                 lambda c: c.chat([{"role": "assistant",
                                    "tool_calls": [{"name": "f", "arguments": {1, 2}}]}])),
                (nvllm.InvalidError, "chat.messages[0].tool_calls[0]",
                 lambda c: c.chat([{"role": "assistant", "tool_calls": [{"function": 7}]}])),
                (nvllm.InvalidError, "chat.tools[0]", lambda c: c.chat(say, tools=["{"])),
                (nvllm.InvalidError, "chat.enable_thinking",
                 lambda c: c.chat(say, enable_thinking="no")),
                (nvllm.InvalidError, "ids", lambda c: c.detokenize([1 << 40])),
                (nvllm.InvalidError, "ids[0]", lambda c: c.detokenize([-1])),
                (nvllm.InvalidError, "text", lambda c: c.tokenize(5))):
            with self.subTest(field), self.assertRaises(error) as caught:
                answer = call(self.client)
                answer.answer()
            self.assertEqual((caught.exception.field, caught.exception.retryable), (field, False))
            self.assertIn(field.partition("[")[0], str(caught.exception))
        with self.assertRaises(nvllm.InvalidError) as caught:
            self.client.generate("x", n=5).answer()
        self.assertEqual((caught.exception.limit, caught.exception.limit_value),
                         ("limits.choices", 4))
        self.assertRaises(TypeError, self.client.generate, "x", temprature=1)
        self.assertRaises(ValueError, self.client.status, timeout=-1)

    def test_requests_that_are_too_large(self):
        """They are refused here, and the connection goes on."""
        stream = self.client.generate("Once", **LONG)
        for call in (lambda: self.client.tokenize("x" * (5 << 20)),
                     lambda: self.client.chat([{"role": "user"}] * 9000),
                     lambda: self.client.generate([1] * (1 << 21))):
            self.assertRaises(nvllm.TooLongError, call)
        self.assertEqual(next(stream).choice, 0)
        stream.close()

    def test_many_threads(self):
        """Fifty share a client; each gets its own answers."""
        prompts = [f"{i} + {i} =" for i in range(50)]
        expected = [self.client.generate(p, temperature=0, max_tokens=6).answer().token_ids
                    for p in prompts]

        def ask(i):
            got = []
            for k in range(scaled(4, 2)):
                if k % 2:
                    self.assertEqual(self.client.detokenize(self.client.tokenize(prompts[i]).ids),
                                     prompts[i])
                stream = self.client.generate(prompts[i], temperature=0, max_tokens=6)
                got.append([id_ for piece in stream for id_ in piece.token_ids])
            return got

        for i, got in enumerate(at_once(ask, range(50))):
            for ids in got:
                self.assertEqual(ids, expected[i])

    def test_streams_side_by_side(self):
        """Several at a time in one thread, read in any order."""
        streams = [self.client.generate("Once", seed=i, max_tokens=20, ignore_eos=True)
                   for i in range(4)]
        self.assertEqual([len(s.answer().token_ids) for s in reversed(streams)], [20] * 4)

    def test_cancel(self):
        """cancel() ends an answer with what there is; one that is closed, dropped, or left by an
        exception is cancelled."""
        stream = self.client.generate("Once", **LONG)
        next(stream)
        threading.Thread(target=stream.cancel).start()
        answer = stream.answer()
        self.assertEqual(answer.finish_reason, "cancelled")
        self.assertLess(len(answer.token_ids), 2000)
        self.idle()
        with self.client.generate("Once", **LONG) as stream:
            next(stream)
        self.assertRaises(nvllm.CancelledError, stream.answer)
        self.assertEqual(list(stream), [])
        self.idle()
        next(self.client.generate("Once", **LONG))
        gc.collect()
        self.idle()
        with self.assertRaises(ZeroDivisionError):
            for _ in self.client.generate("Once", **LONG):
                1 / 0
        gc.collect()
        self.idle()
        self.assertEqual(self.client._connection._pending, {})

    def test_dropped_while_others_stream(self):
        """Many that are dropped, wherever the collector runs."""
        kept = self.client.generate("Once", max_tokens=500, ignore_eos=True)
        for i in range(scaled(300, 50)):
            stream = self.client.generate("Once", **LONG)
            stream.itself = stream  # only the collector finds it
        del stream
        gc.collect()
        self.assertEqual(len(kept.answer().token_ids), 500)
        self.idle()

    def test_timeouts(self):
        """0 does not wait; what has timed out is cancelled, and the connection goes on."""
        for timeout in 0, 0.05:
            stream = self.client.generate("Once", timeout=timeout, **LONG)
            began = time.monotonic()
            self.assertRaises(TimeoutError, stream.answer)
            self.assertRaises(nvllm.TimedOutError, stream.answer)
            self.assertLess(time.monotonic() - began, scaled(2, 20))
            self.idle()
        self.assertRaises(nvllm.TimedOutError, self.client.tokenize, "x" * 100000, timeout=0)
        answer = self.client.generate("Once", deadline_ms=50, **LONG).answer()
        self.assertEqual(answer.finish_reason, "deadline")

    def test_large_answers_are_refused(self):
        with nvllm.Client(self.daemon.socket, max_answer_bytes=2000) as client:
            stream = client.generate("Once", **LONG)
            with self.assertRaises(nvllm.TooLongError) as caught:
                stream.answer()
            self.assertEqual(caught.exception.limit, "max_answer_bytes")
            self.idle()
            self.assertRaises(nvllm.TooLongError, client.tokenize, "x y " * 1000)
            self.assertEqual(len(client.generate("Once", max_tokens=3).answer().choices), 1)
        with nvllm.Client(self.daemon.socket, max_frame_bytes=1000) as client:
            self.assertRaises(nvllm.ProtocolError, client.tokenize, "x y " * 1000)
            self.assertRaises(nvllm.ProtocolError, client.status)

    def test_closing(self):
        """A closed client says so, and so does what still runs; a forgotten one ends its thread."""
        stream = self.client.generate("Once", **LONG)
        self.client.close()
        self.client.close()
        self.assertRaises(nvllm.ConnectionLostError, stream.answer)
        self.assertRaises(nvllm.ConnectionLostError, self.client.status)
        before = threading.active_count()
        stream = nvllm.Client(self.daemon.socket).generate("Once", max_tokens=3)
        self.assertEqual(stream.answer().usage.completion_tokens, 3)  # holds its client
        self.assertEqual(threading.active_count(), before + 1)
        del stream
        gc.collect()
        wait_for(lambda: threading.active_count() == before, 10, "the thread has ended")

    def test_fork(self):
        """The child leaves the parent's connection alone."""
        stream = self.client.generate("Once", max_tokens=200, ignore_eos=True)
        child = os.fork()
        if child == 0:
            try:
                self.client.status()
            except RuntimeError:
                self.client.close()
                os._exit(3)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)
        self.assertEqual(len(stream.answer().token_ids), 200)


@needs_protobuf
class Formats(Case):
    def test_they_arrive(self):
        """As the daemon has them; a schema may be Python's values, or JSON."""
        got = []

        def script(peer):
            while (frame := peer.receive()) is not None:
                got.append(frame[2].get("response_format"))
                peer.answer(frame[0])

        schema = {"properties": {"b": {"multipleOf": 0.1}, "a": True}}
        with nvllm.Client(Fake(self, script).path) as client:
            for given, wanted in (
                    (None, None), ({"type": "text"}, None),
                    ({"type": "json_object"}, {"json_object": True}),
                    ({"type": "json_schema", "json_schema": {
                        "schema": schema, "name": "x", "description": "y", "strict": True}},
                     {"json_schema": json.dumps(schema).encode()}),
                    ({"type": "json_schema", "json_schema": {"schema": '{"a": 0.10}'}},
                     {"json_schema": b'{"a": 0.10}'}),
                    ({"type": "json_schema", "json_schema": {"schema": False}},
                     {"json_schema": b"false"}),
                    ({"type": "regex", "regex": "ä+", "grammar": None}, {"regex": "ä+".encode()}),
                    ({"type": "grammar", "grammar": b"root ::= [a]"},
                     {"grammar": b"root ::= [a]"}),
                    ({"type": "choice", "choices": ("a", b"")},
                     {"choice": {"texts": [b"a", b""]}})):
                with self.subTest(given):
                    client.generate("x", response_format=given).answer()
                    self.assertEqual(got.pop(), wanted)
                    client.chat([{"role": "user", "content": "x"}], response_format=given).answer()
                    self.assertEqual(got.pop(), wanted)


@needs_protobuf
class Parts(Case):
    def test_reasoning_and_tools(self):
        """They come apart, and a conversation goes on with them."""
        with self.echo_daemon() as d, nvllm.Client(d.socket) as client:
            user = {"role": "user", "content": THINKS}
            answer = client.chat([user], presence_penalty=0.5).answer()
            self.assertEqual((answer.reasoning, answer.text),
                             ("It is far.\nVery far.", "The Moon\nis far."))
            self.assertEqual(client.chat([user], presence_penalty=0.5, raw_text=True)
                             .answer().text, THINKS)
            stream = client.chat([{"role": "user", "content": CALLS}], presence_penalty=0.5,
                                 tools=[json.loads(TOOL)])
            pieces = list(stream)
            calls = [call for piece in pieces for call in piece.tool_calls]
            self.assertEqual([(c.name, c.arguments) for c in calls],
                             [("find", ARGUMENTS), ("g", "{}")])
            answer = stream.answer()
            self.assertEqual(answer.tool_calls, calls)
            tool = {"role": "tool", "content": "12", "name": "find", "tool_call_id": calls[0].id}
            openai = {"role": "assistant", "content": None, "tool_calls": [
                {"id": calls[0].id, "type": "function",
                 "function": {"name": "find", "arguments": {"x": 1}}}]}
            for message in json.loads(json.dumps(answer.message)), openai, {
                    "role": "assistant", "tool_calls": calls}:
                again = client.chat([{"role": "user", "content": "?"}, message, tool,
                                     {"role": "user", "content": "And now?"}],
                                    presence_penalty=0.5, tools=[TOOL]).answer()
                self.assertEqual(again.text, "And now?")


@needs_protobuf
class Ends(Case):
    def test_nobody_is_there(self):
        path = self.temporary_folder() / "socket"
        with self.assertRaises(nvllm.NotRunningError) as caught:
            nvllm.Client(path)
        self.assertTrue(caught.exception.retryable)
        self.assertIsInstance(caught.exception, ConnectionError)
        began = time.monotonic()
        self.assertRaises(nvllm.NotRunningError, nvllm.Client, path, wait_start=True, timeout=0.3)
        self.assertGreaterEqual(time.monotonic() - began, 0.3)
        self.assertRaises(nvllm.InvalidError, nvllm.Client, "x" * 200)

    def test_waiting_for_a_start(self):
        folder = self.temporary_folder()
        late = threading.Timer(0.3, lambda: started.append(Daemon(SMALL, folder=folder)))
        started = []
        late.start()
        with nvllm.Client(folder / "nvllmd.sock", wait_start=True, wait_ready=True,
                          timeout=scaled(30, 120)) as client:
            self.assertEqual(client.status()["state"], "ready")
        late.join()
        with started[0]:
            pass

    def test_daemon_that_dies(self):
        """Every request ends with the same error, and all later ones."""
        with Daemon(SMALL) as d:
            client = nvllm.Client(d.socket)
            streams = [client.generate("Once", **LONG) for _ in range(10)]
            next(streams[0])
            d.kill()
            for stream in streams:
                self.assertRaises(nvllm.ConnectionLostError, stream.answer)
            self.assertRaises(nvllm.ConnectionLostError, client.status)
            client.close()

    def test_daemon_that_exits(self):
        """Its farewell ends the client, which is of no use any more; the next daemon has another."""
        d = Daemon(SMALL)
        client = nvllm.Client(d.socket)
        self.assertEqual(d.terminate(), 0)
        self.assertRaises(nvllm.ConnectionLostError, client.status)
        self.assertRaises(nvllm.ConnectionLostError, client.generate, "x")
        client.close()
        d.close()

    def test_daemon_that_drains(self):
        with Daemon(SMALL) as d, nvllm.Client(d.socket) as client:
            with d.connect() as w:
                w.ask(drain={})
            with self.assertRaises(nvllm.UnavailableError) as caught:
                client.generate("x").answer()
            self.assertTrue(caught.exception.retryable)


@needs_protobuf
class Hostile(Case):
    """A program at the socket that sends what it should not."""

    def client(self, script, welcome=READY):
        fake = Fake(self, script, welcome)
        client = nvllm.Client(fake.path, timeout=20)
        self.addCleanup(client.close)
        return client

    def test_violations(self):
        """Each ends the connection, and nothing else: no wait, no other exception."""
        def frame(raw):
            return wire.varint(len(raw)) + raw

        def server(id_, **event):
            return frame(wire.encode("ServerFrame", {"id": id_, **event}))

        for name, data in {
                "an endless length": b"\xff" * 11,
                "a padded length": b"\x81\x80\x00",
                "four gigabytes": wire.varint((1 << 32) - 1),
                "no message": frame(b"\xff\xff\xff"),
                "a cut message": frame(b"\x1a\x7f"),
                "an answer to nobody": server(99, done={}),
                "a second greeting": server(0, **READY),
                "an answer without id": frame(wire.encode("ServerFrame", {"done": {}})),
                "another kind": server(1, tokens={"ids": [1]}),
                "a fifth choice": server(1, delta={"choice": 1, "text": "x"}),
                "a text that is no UTF-8": server(1, error={"message": "\udcff"}),
                "two ends": server(1, done={}) * 2,
                "the end": b""}.items():
            with self.subTest(name):
                def script(peer):
                    peer.receive()
                    peer.raw(data)

                client = self.client(script)
                stream = client.generate("x")
                expected = nvllm.ConnectionLostError if not data else nvllm.ProtocolError
                if name == "two ends":
                    stream.answer()
                else:
                    self.assertRaises(expected, stream.answer)
                self.assertRaises(expected, client.status)

    def test_greetings(self):
        for welcome, error in (({"welcome": {"protocol": 2}}, nvllm.ProtocolError),
                               ({"done": {}}, nvllm.ProtocolError),
                               ({"welcome": {"protocol": 1, "model": "\udcff"}},
                                nvllm.ProtocolError),
                               ({"error": {"code": "ERROR_BUSY", "message": "full\x1b[2J",
                                           "retryable": True, "retry_after_ms": 1500}},
                                nvllm.BusyError)):
            with self.assertRaises(error) as caught:
                self.client(lambda peer: peer.receive(), welcome)
        self.assertEqual((caught.exception.retryable, caught.exception.retry_after,
                          str(caught.exception)), (True, 1.5, "full?[2J"))
        fake = Fake(self, lambda peer: (peer.receive(), peer.receive()), welcome=None)  # until it goes
        self.assertRaises(nvllm.TimedOutError, nvllm.Client, fake.path, timeout=0.2)

    def test_what_is_new(self):
        """Kinds of events and codes of errors of a newer daemon are taken."""
        def script(peer):
            id_, _, _ = peer.receive()
            news = wire.varint(1 << 3) + wire.varint(id_) + wire.varint(31 << 3 | 2) + b"\0"
            peer.raw(wire.varint(len(news)) + news)
            peer.answer(id_)
            id_, _, _ = peer.receive()
            peer.send(id_, error={"code": 77, "message": "too new"})

        client = self.client(script)
        self.assertEqual(client.generate("x").answer().text, "ok")
        with self.assertRaises(nvllm.Error) as caught:
            client.status()
        self.assertEqual((caught.exception.code, str(caught.exception)), ("unknown", "too new"))

    def test_a_daemon_that_hangs(self):
        """Timeouts hold, and closing does not wait for it, with megabytes unsent."""
        stop = threading.Event()
        client = self.client(lambda peer: stop.wait(60))
        self.addCleanup(stop.set)
        began = time.monotonic()
        streams = [client.generate("x" * (1 << 20)) for _ in range(8)]
        self.assertRaises(nvllm.TimedOutError, client.status, timeout=0.1)
        with self.assertRaises(nvllm.BusyError):
            for _ in range(100):
                streams.append(client.generate("x" * (1 << 20)))
        client.close()
        self.assertLess(time.monotonic() - began, scaled(5, 50))
        self.assertRaises(nvllm.ConnectionLostError, next, streams[0])

    def test_an_answer_without_end(self):
        """It is refused once it is over the limit, also where nobody reads it."""
        def script(peer):
            id_, _, _ = peer.receive()
            raw = wire.encode("ServerFrame", {"id": id_, "delta": {"text": b"x" * size}})
            pieces = (wire.varint(len(raw)) + raw) * (1 + 60000 // size)
            try:
                while True:
                    peer.sock.sendall(pieces)
            except OSError:
                pass

        fake = Fake(self, script)
        for size, most in (60000, 20), (1, 2050):
            with nvllm.Client(fake.path, max_answer_bytes=1 << 20) as client:
                stream = client.generate("x")
                wait_for(lambda: stream._pending.dropped, 10, "refused")
                pieces = []
                with self.assertRaises(nvllm.TooLongError):
                    for piece in stream:
                        pieces.append(piece)
                self.assertIn(len(pieces), range(1, most))
