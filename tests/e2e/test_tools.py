"""Tools that are strict, and calls that must come or must not: whatever the sampling."""

import json
import pathlib
import tempfile

import harness
from gateway import Gateway
from harness import Daemon, SharedDaemon, scaled
from test_format import BIASES, PERSON, holds, nvllm

POINT = {"type": "object", "properties": {"x": {"enum": [1, 2.5, "far"]}, "y": {"type": "boolean"}},
         "required": ["x", "y"], "additionalProperties": False}
TOOLS = {name: {"type": "function", "function": {"name": name, "strict": strict, **more}}
         for name, strict, more in (("go_to", True, {"parameters": POINT}),
                                    ("greet", True, {"parameters": PERSON}),
                                    ("stop", True, {}), ("log", False, {"parameters": POINT}))}
END, CALL, THINK, THOUGHT = 1993, 1994, 1998, 1999  # tokens of nvllm-tiny
MESSAGES = [{"role": "user", "content": "Go on."}]


STRICT = ["go_to", "greet", "stop"]


def request(tools=STRICT, seed=1, bias=(), n=1, stream=False, **chat):
    """More calls, and objects that end."""
    biases = {**{b["id"]: b["bias"] for b in BIASES}, END: 12.0, **dict(bias)}
    return {"chat": {"messages": MESSAGES, "tools": [json.dumps(TOOLS[t]) for t in tools],
                     "enable_thinking": False, **chat},
            "max_tokens": 700, "n": n, "stream": stream,
            "sampling": {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": seed,
                         "logit_bias": [{"id": i, "bias": b} for i, b in biases.items()]}}


def obeys(name, arguments):
    """Whether a call is as its tool says."""
    value = json.loads(arguments)
    if name == "log":
        return isinstance(value, dict)
    schema = {"go_to": POINT, "greet": PERSON}.get(name)
    return holds(schema, value, schema) if schema else name == "stop" and value == {}


class Tools(SharedDaemon):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="nvllm-e2e-")
        cls.addClassCleanup(cls.folder.cleanup)
        own = json.loads((harness.MODEL / "tokenizer_config.json").read_text())["chat_template"]
        template = pathlib.Path(cls.folder.name) / "template.jinja"
        template.write_text("{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + own +
                            '{# <tool_call> {"name": …, "arguments": …} </tool_call> #}')
        cls.options = (f"model.chat_template={template}",)
        super().setUpClass()

    def calls(self, wanted, n=1):
        """Of all choices, each of which has ended by itself."""
        with self.daemon.connect() as w:
            reply = w.generate(**wanted)
        self.assertIsNone(reply.error)
        self.assertEqual(len(reply.choices), n)
        for c in reply.choices.values():
            self.assertEqual(c.reason, "FINISH_STOP", c.text)
            for call in c.tool_calls:
                self.assertTrue(obeys(call["name"].decode(), call["arguments"]), call)
            self.assertNotIn(b"<tool_call>", b"" if wanted.get("raw_text") else c.text)
        return list(reply.choices.values())

    def test_required(self):
        """Nothing but calls."""
        names = set()
        for seed in range(scaled(12, 4)):
            for c in self.calls(request(seed=seed, stream=seed % 2 == 0, n=2,
                                        tool_choice="TOOL_CHOICE_REQUIRED"), 2):
                self.assertGreater(len(c.tool_calls), 0)
                self.assertEqual(c.text, b"")
                names.update(call["name"] for call in c.tool_calls)
        self.assertGreater(len(names), 1)

    def test_one_of_them(self):
        """By its name, once; or any of them, once."""
        for seed in range(scaled(6, 2)):
            for tool in STRICT:
                c, = self.calls(request(seed=seed, called_tool=tool.encode(),
                                        tool_choice="TOOL_CHOICE_REQUIRED"))
                self.assertEqual([call["name"].decode() for call in c.tool_calls], [tool])
            c, = self.calls(request(seed=seed, parallel_tool_calls=False,
                                    tool_choice="TOOL_CHOICE_REQUIRED"))
            self.assertEqual(len(c.tool_calls), 1)

    def test_calls_among_text(self):
        n_calls = n_texts = 0
        for seed in range(scaled(12, 4)):
            bias = [(CALL, 18.0)] if seed % 2 else [(END, 4.0), (CALL, 6.0)]
            c, = self.calls(request(seed=seed, bias=bias))
            n_calls += len(c.tool_calls)
            n_texts += c.text != b""
            c, = self.calls(request(seed=seed, bias=bias, parallel_tool_calls=False))
            self.assertLess(len(c.tool_calls), 2)
        self.assertGreater(n_calls, 0)
        self.assertGreater(n_texts, 0)

    def test_reasoning_first(self):
        n_reasoned = 0
        for seed in range(scaled(6, 3)):
            c, = self.calls(request(seed=seed, bias=[(THINK, 12.0), (THOUGHT, 14.0)],
                                    enable_thinking=True,
                                    tool_choice="TOOL_CHOICE_REQUIRED"))
            self.assertGreater(len(c.tool_calls), 0)
            raw, = self.calls({**request(seed=seed, bias=[(THINK, 12.0), (THOUGHT, 14.0)],
                                    enable_thinking=True,
                                         tool_choice="TOOL_CHOICE_REQUIRED"), "raw_text": True})
            n_reasoned += raw.text.startswith(b"<think>")
        self.assertGreater(n_reasoned, 0)

    def test_beside_a_format(self):
        """The text is the format's, or there are calls alone."""
        n_calls = 0
        for seed in range(scaled(12, 4)):
            c, = self.calls({**request(seed=seed, bias=[(CALL, 12.0 * (seed % 2))]),
                             "response_format": {"regex": "[a-f]{3}"}})
            n_calls += len(c.tool_calls) > 0
            self.assertRegex(c.text.decode(), "^$" if c.tool_calls else "^[a-f]{3}$")
        self.assertGreater(n_calls, 0)

    def test_turns_of_a_session(self):
        """Each says which of the session's tools its answer calls; the next is not held to it."""
        required, one = {"tool_choice": "TOOL_CHOICE_REQUIRED"}, {"parallel_tool_calls": False}
        chat = request()["chat"]
        with self.daemon.connect() as w:
            def turn(name="a", **choice):
                return w.generate(session=name, **{**request(), "chat": {"messages": MESSAGES, **choice}})

            def refused(reply, field, text):
                error = reply["error"] if isinstance(reply, dict) else reply.error
                self.assertEqual(error["field"], field, error)
                self.assertIn(text, error["message"])

            w.ask(create_session={"name": "a", "chat": {
                "tools": chat["tools"], "enable_thinking": False}})
            for tool in STRICT:
                made, = turn(called_tool=tool.encode(), **required).choices[0].tool_calls
                self.assertEqual(made["name"].decode(), tool)
                self.assertTrue(obeys(tool, made["arguments"]), made)
            self.assertEqual(len(turn(**required, **one).choices[0].tool_calls), 1)
            before = turn()
            self.assertIsNone(before.error)
            self.assertGreater(before.done["usage"]["cached_tokens"], 100)
            untold = turn(tool_choice="TOOL_CHOICE_NONE")
            self.assertEqual(untold.choices[0].tool_calls, [])
            self.assertLess(untold.done["usage"]["prompt_tokens"], before.done["usage"]["prompt_tokens"])
            self.assertGreater(len(turn(**required).choices[0].tool_calls), 0)
            refused(turn(called_tool=b"come", **required), "chat.tool_choice", "come")
            refused(turn(called_tool=b"go_to"), "chat.called_tool", "TOOL_CHOICE_REQUIRED")
            self.assertIn("session_info", w.ask(create_session={"name": "b"}))
            refused(turn("b", **required), "chat.tool_choice", "no tools")
            for choice, field in (required, "chat.tool_choice"), (one, "chat.parallel_tool_calls"):
                refused(w.ask(create_session={"name": "c", "chat": {"tools": chat["tools"], **choice}}),
                        field, "of a turn")

    def test_none(self):
        """The model is not told of the tools."""
        with self.daemon.connect() as w:
            told, untold = [w.ask(render={"chat": request(**k)["chat"]})["text"]["text"]
                            for k in ({}, {"tool_choice": "TOOL_CHOICE_NONE"})]
            self.assertIn(b"go_to", told)
            self.assertNotIn(b"go_to", untold)
            self.assertIsNone(w.generate(**{**request(tool_choice="TOOL_CHOICE_NONE"),
                                            "max_tokens": 5}).error)

    def test_refused(self):
        bad = {"name": "f", "strict": True, "parameters": {
            "type": "object", "properties": {"a": {"unevaluatedItems": False}}}}
        for chat, field, message in (
                ({"tools": [], "tool_choice": "TOOL_CHOICE_REQUIRED"}, "chat.tool_choice", "no tools"),
                ({"tool_choice": 7}, "chat.tool_choice", "7"),
                ({"called_tool": b"go_to"}, "chat.called_tool", "REQUIRED"),
                ({"called_tool": b"", "tool_choice": "TOOL_CHOICE_REQUIRED"}, "chat.called_tool", ""),
                ({"called_tool": b"come", "tool_choice": "TOOL_CHOICE_REQUIRED"}, "chat.tool_choice",
                 "“come”"),
                ({"tools": [json.dumps({"type": "function", "function": bad})]},
                 "chat.tools[0].function.parameters", "$.properties.a.unevaluatedItems"),
                ({"tools": ["{}", json.dumps(bad)]}, "chat.tools[0].name", "must be"),
                ({"tools": [json.dumps({**bad, "parameters": {"type": "string"}})]},
                 "chat.tools[0].parameters", "$.type")):
            with self.subTest(chat), self.daemon.connect() as w:
                wanted = request()
                wanted["chat"].update(chat)
                error = w.generate(**wanted).error
                self.assertEqual((error["code"], error["field"]), ("ERROR_INVALID", field), error)
                self.assertIn(message, error["message"])
                self.assertIsNone(w.generate(**harness.GOOD).error)

    def test_a_model_whose_calls_are_not_known(self):
        with Daemon(harness.SMALL) as d, d.connect() as w:
            for chat in {}, {"tools": [json.dumps(TOOLS["log"])],
                             "tool_choice": "TOOL_CHOICE_REQUIRED"}:
                wanted = request()
                wanted["chat"].update(chat)
                error = w.generate(**wanted).error
                self.assertEqual((error["code"], error["field"]),
                                 ("ERROR_UNSUPPORTED", "chat.tools"), error)
            self.assertIsNone(w.generate(**{**request(["log"]), "max_tokens": 3}).error)

    def test_a_tool_that_is_not_strict(self):
        """Any object will do; beside a strict one its calls are whole, too."""
        n_calls = 0
        for seed in range(scaled(12, 4)):
            with self.daemon.connect() as w:
                reply = w.generate(**request(["log", "stop"], seed, [(CALL, 18.0)]))
            for call in reply.choices[0].tool_calls:
                n_calls += 1
                self.assertTrue(obeys(call["name"].decode(), call["arguments"]))
            if reply.choices[0].reason == "FINISH_STOP":
                self.assertNotIn(b"<tool_call>", reply.choices[0].text)
        self.assertGreater(n_calls, 0)

    # ---- programs

    def line(self, choice, **more):
        bias = {str(b["id"]): b["bias"] for b in BIASES + [{"id": END, "bias": 12.0}]}
        return {"messages": MESSAGES, "tools": [TOOLS[t] for t in STRICT], "tool_choice": choice, "enable_thinking": False,
                "temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": 5, "max_tokens": 700,
                "logit_bias": bias, **more}

    def check_functions(self, functions, tool):
        for f in functions:
            self.assertTrue(obeys(f["name"], f["arguments"]), f)
        if tool:
            self.assertEqual([f["name"] for f in functions], [tool])
        else:
            self.assertGreater(len(functions), 0)

    def test_nvllmctl(self):
        named = {"type": "function", "function": {"name": "go_to"}}
        lines = [self.line("required"), self.line(named),
                 self.line("required", parallel_tool_calls=False), self.line({"type": "function"}),
                 {**self.line("auto"), "messages": None, "prompt": "x"}]
        answers, _, _ = self.daemon.batch(lines, check=False)
        for answer, tool in zip(answers, (None, "go_to", None)):
            self.check_functions([c["function"] for c in answer["tool_calls"]], tool)
        self.assertEqual(len(answers[2]["tool_calls"]), 1)
        self.assertIn("tool_choice: must be", answers[3]["error"]["message"])
        self.assertIn("need messages", answers[4]["error"]["message"])

    def test_openai(self):
        named = {"type": "function", "function": {"name": "go_to"}}
        with Gateway(self.daemon.socket) as gateway:
            for choice, tool in ("required", None), (named, "go_to"):
                fields = self.line(choice)
                answer = gateway.chat(fields.pop("messages"), **fields).json["choices"][0]
                self.assertEqual(answer["finish_reason"], "tool_calls")
                self.check_functions([c["function"] for c in answer["message"]["tool_calls"]], tool)
            fields = self.line("required", parallel_tool_calls=False)
            answer = gateway.chat(fields.pop("messages"), **fields).json["choices"][0]
            self.assertEqual(len(answer["message"]["tool_calls"]), 1)
            for wrong in "any", 1, {"type": "function"}, {"function": {"name": "go_to"}}:
                fields = self.line(wrong)
                self.assertEqual(gateway.chat(fields.pop("messages"), **fields).error,
                                 (400, "invalid_value", "tool_choice"))
            fields = self.line({"type": "function", "function": {"name": "come"}})
            self.assertEqual(gateway.chat(fields.pop("messages"), **fields).error,
                             (400, "invalid_value", "tool_choice"))

    def test_python(self):
        if not nvllm:
            self.skipTest("no protobuf for Python")
        with nvllm.Client(self.daemon.socket) as client:
            for choice, tool in (("required", None),
                                 ({"type": "function", "function": {"name": "go_to"}}, "go_to")):
                fields = self.line(choice)
                fields["logit_bias"] = {int(k): v for k, v in fields["logit_bias"].items()}
                answer = client.chat(fields.pop("messages"), **fields,
                                     parallel_tool_calls=False).answer()
                self.check_functions([c._asdict() for c in answer.tool_calls], tool)
                self.assertEqual(len(answer.tool_calls), 1)
            for wrong in "any", 1, {"function": {}}:
                with self.assertRaises(nvllm.InvalidError) as caught:
                    client.chat(MESSAGES, tool_choice=wrong)
                self.assertTrue(caught.exception.field.startswith("chat.tool_choice"))


