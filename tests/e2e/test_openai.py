"""nvllm-openai: what OpenAI's endpoints answer, beside what the daemon itself answers.

Everything is tested by http.client; test_openai_package.py does it by OpenAI's own package."""

import itertools
import json

from gateway import Gateway, SharedGateway
from harness import Case, scaled
from test_answers import ARGUMENTS, CALLS, THINKS
from test_ctl_alone import Fake

QUESTION = "What is 17 + 25?"
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


class Shared(SharedGateway):
    def wire(self, **request):
        with self.daemon.connect() as w:
            return w.generate(**request)

    def of(self, content, **sampling):
        """A chat as the daemon takes it."""
        return {"chat": {"messages": [{"role": "user", "content": content}]}, "sampling": sampling}


class Endpoints(Shared):
    def test_models(self):
        r = self.gateway.get("/v1/models")
        model = r.json["data"][0]
        self.assertEqual((r.status, r.json["object"], model["id"], model["object"]),
                         (200, "list", "nvllm-tiny", "model"))
        self.assertEqual(model["max_model_len"], self.daemon.status()["max_seq_len"])
        for path in "/v1/models/nvllm-tiny", "/v1/models/nvllm%2Dtiny", "/v1/models/nvllm-tiny?x=1":
            self.assertEqual(self.gateway.get(path).json, model)

    def test_health(self):
        self.assertEqual((self.gateway.get("/health").status, self.gateway.get("/health").json),
                         (200, {"status": "ok"}))

    def test_what_is_not_there(self):
        for path in "/v1/none", "/chat/completions", "/v1/v1/models":  # with a base URL that is wrong
            r = self.gateway.get(path)
            self.assertEqual(r.error, (404, "unknown_url", None))
            self.assertIn("/v1/chat/completions", r.json["error"]["message"])
        self.assertEqual(self.gateway.get("/v1/chat/completionsx").error[0], 404)
        self.assertEqual(self.gateway.post("embeddings", {"input": "x"}).error,
                         (501, "unsupported", None))
        r = self.gateway.get("/v1/completions")
        self.assertEqual((r.error[0], r.fields["Allow"]), (405, "POST"))
        r = self.gateway.post("models", {})
        self.assertEqual((r.error[0], r.fields["Allow"]), (405, "GET"))

    def test_the_model_must_be_the_one_that_is_served(self):
        for model in "nvllm-tiny", "", None:
            self.assertEqual(self.gateway.chat("Hi", model=model, max_tokens=1).status, 200)
        for r in self.gateway.chat("Hi", model="gpt-4o"), self.gateway.get("/v1/models/gpt-4o"):
            self.assertEqual(r.error, (404, "model_not_found", "model"))
            self.assertIn("“nvllm-tiny”", r.json["error"]["message"])


class Chat(Shared):
    def test_an_answer(self):
        r = self.gateway.chat(QUESTION, temperature=0, chat_template_kwargs={"enable_thinking": False})
        choice, usage = r.json["choices"][0], r.json["usage"]
        self.assertEqual(choice, {"index": 0, "logprobs": None, "finish_reason": "stop", "message":
                                  {"role": "assistant", "content": "42", "refusal": None}})
        self.assertEqual((r.json["object"], r.json["model"]), ("chat.completion", "nvllm-tiny"))
        self.assertEqual(usage["prompt_tokens"] + usage["completion_tokens"], usage["total_tokens"])
        direct = self.wire(**self.of(QUESTION, temperature=0), max_tokens=50)
        self.assertEqual(direct.done["usage"]["prompt_tokens"], self.gateway.chat(
            QUESTION, max_tokens=1).json["usage"]["prompt_tokens"])

    def test_a_stream_has_the_same_text(self):
        options = {"temperature": 1, "seed": 3, "n": 3, "max_tokens": 40}
        whole = self.gateway.chat("Tell me a story.", **options).json
        usage = {"include_usage": True, "continuous_usage_stats": True}  # GuideLLM always sends both
        events = self.gateway.chat("Tell me a story.", stream=True, stream_options=usage,
                                   **options).events()
        texts, ends = ["", "", ""], [None] * 3
        self.assertEqual(events[-1]["choices"], [])
        for field in "prompt_tokens", "completion_tokens", "total_tokens":
            self.assertEqual(events[-1]["usage"][field], whole["usage"][field])
        for e in events[:-1]:
            self.assertIsNone(e["usage"])
            self.assertEqual((e["object"], e["id"]), ("chat.completion.chunk", events[0]["id"]))
            choice, = e["choices"]
            i = choice["index"]
            self.assertEqual("role" in choice["delta"], texts[i] == "" and "role" in choice["delta"])
            texts[i] += choice["delta"].get("content", "")
            ends[i] = ends[i] or choice["finish_reason"]
        self.assertEqual([texts, ends], [[c["message"]["content"] for c in whole["choices"]],
                                         [c["finish_reason"] for c in whole["choices"]]])

    def test_a_stream_without_usage_has_none(self):
        events = self.gateway.chat("Hi", stream=True, max_tokens=3).events()
        self.assertTrue(all("usage" not in e and e["choices"] for e in events))

    def test_parts_of_text(self):
        whole = self.gateway.chat("Spell\nlion.", temperature=0).json
        parts = [{"type": "text", "text": "Spell"}, {"type": "text", "text": "lion."}]
        r = self.gateway.chat([{"role": "user", "content": parts}], temperature=0).json
        self.assertEqual(r["choices"], whole["choices"])
        self.assertEqual(r["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])
        parts[1] = {"type": "image_url", "image_url": {"url": "x"}}
        self.assertEqual(self.gateway.chat([{"role": "user", "content": parts}]).error,
                         (400, "unsupported_parameter", "messages[0].content[1]"))

    def test_a_conversation_is_the_one_that_was_sent(self):
        """With all that messages may have: the prompt has as many tokens as the daemon's own."""
        call = {"id": "call_1", "name": "find", "arguments": '{"x": 1}'}
        messages = [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": "Look.", "name": "bob"},
            {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "find", "arguments": '{"x": 1}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "name": "find", "content": "Found."},
            {"role": "user", "content": "And?"},
        ]
        own = [{"role": "system", "content": "Be short."},
               {"role": "user", "content": "Look.", "name": "bob"},
               {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [call]},
               {"role": "tool", "content": "Found.", "name": "find", "tool_call_id": "call_1"},
               {"role": "user", "content": "And?"}]
        text = json.dumps(TOOL)
        for tools, choice in ((text,), "auto"), ((), "none"):
            r = self.gateway.chat(messages, tools=[TOOL], tool_choice=choice, max_tokens=1, seed=1)
            direct = self.wire(chat={"messages": own, "tools": list(tools)}, max_tokens=1)
            self.assertEqual(r.status, 200, r.text)
            self.assertEqual(r.json["usage"]["prompt_tokens"],
                             direct.done["usage"]["prompt_tokens"])

    def test_an_assistant_may_have_said_nothing(self):
        """As null, as no content or as an empty text, which all are the same prompt."""
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant"},
                    {"role": "user", "content": QUESTION}]
        usage = []
        for nothing in {"content": ""}, {"content": None}, {"content": None, "tool_calls": []}, {}:
            messages[1] = {"role": "assistant", **nothing}
            r = self.gateway.chat(messages, max_tokens=1)
            self.assertEqual(r.status, 200, r.text)
            usage.append(r.json["usage"]["prompt_tokens"])
        self.assertEqual(len(set(usage)), 1)
        for role in "system", "user", "tool":
            messages[1] = {"role": role, "content": None}
            self.assertEqual(self.gateway.chat(messages).error[0::2], (400, "messages[1].content"))

    def test_unicode(self):
        text = "Grüße 🦊 \"quoted\" \\ back \u0001 \n 中文"
        r = self.gateway.chat(f"Repeat: {text}", temperature=0, max_tokens=60)
        direct = self.wire(**self.of(f"Repeat: {text}", temperature=0), max_tokens=60)
        self.assertEqual(r.json["choices"][0]["message"]["content"].encode(),
                         direct.choices[0].text)


class Fields(Shared):
    """A field does for a client what its namesake does for a program that speaks the protocol."""

    PROMPT = "Once upon a time there was a"
    WILD = {"seed": 5, "temperature": 3.5, "top_k": 8, "top_p": 1.0}  # any change shows

    def compare(self, fields, sampling=None, **request):
        request = {"max_tokens": 40, **request}
        sampling = {**self.WILD, **(sampling or {})}
        got = self.gateway.complete(self.PROMPT, **{**self.WILD, "max_tokens": 40, **fields})
        self.assertEqual(got.status, 200, got.text)
        want = self.wire(prompt=self.PROMPT, sampling=sampling, **request)
        self.assertIsNone(want.error)
        self.assertEqual([c["text"].encode() for c in got.json["choices"]],
                         [want.choices[i].text for i in sorted(want.choices)])
        return got.json

    def test_sampling(self):
        plain = self.compare({})
        for name, value in (("temperature", 0.7), ("top_p", 0.5), ("top_k", 2), ("min_p", 0.3),
                            ("repetition_penalty", 1.7), ("presence_penalty", -2.0),
                            ("frequency_penalty", -1.5), ("seed", 9)):
            with self.subTest(name):
                got = self.compare({name: value}, {name: value})
                self.assertNotEqual(got["choices"], plain["choices"], "it changes something")
        self.compare({"top_k": -1}, {"top_k": 0})
        self.compare({"logit_bias": {"300": 50, "301": 49.5}},
                     {"logit_bias": [{"id": 300, "bias": 50.0}, {"id": 301, "bias": 49.5}]})

    def test_ends(self):
        self.compare({"stop": "the"}, stop=["the"])
        self.compare({"stop": ["xyz", "the", "was"]}, stop=["xyz", "the", "was"])
        ids = self.wire(prompt=self.PROMPT, sampling=self.WILD, max_tokens=5).choices[0].ids
        self.compare({"stop_token_ids": [ids[4]]}, {"stop_token_ids": [ids[4]]})
        self.compare({"max_tokens": None, "max_completion_tokens": 7}, max_tokens=7)
        self.assertEqual(self.gateway.complete("Hi", ignore_eos=True).json["usage"]["completion_tokens"],
                         16, "as OpenAI's")
        r = self.gateway.chat(QUESTION, temperature=0, ignore_eos=True, max_tokens=30)
        self.assertEqual(r.json["usage"]["completion_tokens"], 30)
        r = self.gateway.chat(QUESTION, temperature=0, min_tokens=9, max_tokens=30)
        self.assertGreaterEqual(r.json["usage"]["completion_tokens"], 9)

    def test_special_tokens(self):
        options = {"temperature": 0, "ignore_eos": True, "max_tokens": 8}
        texts = [self.gateway.chat(QUESTION, skip_special_tokens=skip, **options
                                ).json["choices"][0]["message"]["content"] for skip in (True, False)]
        self.assertNotIn("<|", texts[0])
        self.assertIn("<|im_end|>", texts[1])

    def test_prompts(self):
        """A text, ids, and lists of either, whose choices are counted through."""
        texts = ["One two three", "Count: 1, 2"]
        with self.daemon.connect() as w:
            ids = [w.ask(tokenize={"text": t})["tokens"]["ids"] for t in texts]
        options = {"temperature": 1, "seed": 2, "max_tokens": 6, "n": 2}
        each = [self.gateway.complete(p, **options).json for p in texts]
        want = [c["text"] for r in each for c in r["choices"]]
        self.assertEqual(self.gateway.complete(ids[0], **options).json["choices"], each[0]["choices"])
        for prompts in texts, ids, [texts[0], ids[1]]:
            r = self.gateway.complete(prompts, **options).json
            self.assertEqual([c["text"] for c in r["choices"]], want)
            self.assertEqual([c["index"] for c in r["choices"]], [0, 1, 2, 3])
            self.assertEqual(r["usage"]["total_tokens"],
                             sum(x["usage"]["total_tokens"] for x in each))
        events = self.gateway.complete(texts, stream=True, **options).events()
        streamed = ["".join(c["text"] for e in events for c in e["choices"] if c["index"] == i)
                    for i in range(4)]
        self.assertEqual(streamed, want)

    def test_logprobs(self):
        """In both shapes they are the daemon's own; the bytes of tokens add up to the text."""
        prompt = "Repeat: 🦊 Grüße 中文"
        want = self.wire(**self.of(prompt, temperature=0, logprobs=2), max_tokens=30,
                         raw_text=True).choices[0]
        for stream in False, True:
            r = self.gateway.chat(prompt, temperature=0, logprobs=True, top_logprobs=2, max_tokens=30,
                               stream=stream)
            choices = [c for e in (r.events() if stream else [r.json]) for c in e["choices"]]
            rows = [x for c in choices if c["logprobs"] for x in c["logprobs"]["content"]]
            self.assertEqual(len(rows), len(want.logprobs))
            for row, own in zip(rows, want.logprobs):
                self.assertAlmostEqual(row["logprob"], own["logprob"], 4)
                self.assertEqual(len(row["top_logprobs"]), 2)
                for top, value in zip(row["top_logprobs"], own["top_logprobs"]):
                    self.assertAlmostEqual(top["logprob"], value, 4)
            for row in rows:
                self.assertEqual(bytes(row["bytes"]).decode(), row["token"])
            text = b"".join(bytes(row["bytes"]) for row in rows)
            self.assertTrue(text.startswith(want.text), (text, want.text))
        r = self.gateway.complete(self.PROMPT, temperature=0, logprobs=1, max_tokens=5).json
        l, text = r["choices"][0]["logprobs"], r["choices"][0]["text"]
        self.assertEqual("".join(l["tokens"]), text)
        self.assertEqual(l["text_offset"], [0, *itertools.accumulate(map(len, l["tokens"]))][:-1])
        self.assertEqual([max(t.values()) for t in l["top_logprobs"]], l["token_logprobs"])
        self.assertEqual(self.gateway.chat("Hi", top_logprobs=2).error[0::2], (400, "top_logprobs"))

    def test_bytes_of_tokens(self):
        """The protocol has them for ids, as for a text."""
        with self.daemon.connect() as w:
            text = w.ask(tokenize={"text": "🦊 fox"})["tokens"]
            self.assertEqual(w.ask(tokenize={"ids": text["ids"]})["tokens"], text)
            self.assertEqual(b"".join(text["tokens"]).decode(), "🦊 fox")
            for wrong in {"ids": [5, -1]}, {"ids": [1 << 20]}, {"ids": [5], "text": "x"}:
                self.assertRegex(w.ask(tokenize=wrong)["error"]["field"], "^ids")

    def test_logprobs_of_parts_of_characters(self):
        rows = self.gateway.chat("Hi", temperature=99, top_k=0, top_p=1, seed=1, ignore_eos=True,
                                 max_tokens=300, logprobs=True).json["choices"][0]["logprobs"]["content"]
        parts = 0
        for row in rows:
            own = bytes(row["bytes"])
            self.assertEqual(own.decode(errors="replace"), row["token"])
            parts += own.decode(errors="ignore").encode() != own
        self.assertGreater(parts, 3)

    def test_refused_by_name(self):
        """What would lose its meaning; with a value that asks for nothing it is taken."""
        values = {"guided_whitespace_pattern": " ?",
                  "functions": [{"name": "f"}], "function_call": "auto", "echo": True,
                  "suffix": "x", "use_beam_search": True, "prompt_logprobs": 1,
                  "modalities": ["text", "audio"], "audio": {"a": 1},
                  "chat_template": "{{ x }}", "bad_words": ["x"], "allowed_token_ids": [1],
                  "truncate_prompt_tokens": 5, "continue_final_message": True,
                  "add_special_tokens": True}
        for name, value in values.items():
            self.assertEqual(self.gateway.chat("Hi", max_tokens=1, **{name: value}).error,
                             (400, "unsupported_parameter", name))
        neutral = {"tool_choice": "auto", "response_format": {"type": "text"}, "functions": [],
                   "echo": False, "suffix": "", "guided_json": None, "parallel_tool_calls": False,
                   "guided_regex": "", "guided_choice": [], "structured_outputs": {"grammar": ""},
                   "modalities": ["text"], "metadata": {"a": "b"}, "store": True, "best_of": 1,
                   "reasoning_effort": "low", "some_field_of_next_year": [1]}
        self.assertEqual(self.gateway.chat("Hi", max_tokens=1, **neutral).status, 200)
        for fields, name in ({"best_of": 3, "n": 2}, "best_of"), (
                {"add_special_tokens": False}, "add_special_tokens"):
            self.assertEqual(self.gateway.complete("Hi", **fields).error,
                             (400, "unsupported_parameter", name))


class Formats(Case):
    """What the text must be, before a daemon that the test plays."""

    def setUp(self):
        super().setUp()
        self.got, self.refuse = [], None
        self.fake = Fake(self, self.script)
        self.gateway = self.enterContext(Gateway(self.fake.path))

    def script(self, peer):
        while (frame := peer.receive()) is not None:
            if frame[1] == "get_status":
                peer.send(frame[0], status={"state": "STATE_READY", "model": "fake"})
            elif self.refuse:
                peer.send(frame[0], error=self.refuse)
            elif frame[1] == "generate":
                self.got.append(frame[2].get("response_format"))
                peer.answer(frame[0])

    def test_they_arrive(self):
        """Each spelling is the daemon's, and a schema keeps its order and its numbers."""
        schema = {"type": "object", "properties": {"b": {"multipleOf": 0.1}, "a": True}}
        text = json.dumps(schema).encode()
        named = {"name": "x", "description": "y", "strict": False, "schema": schema}
        for fields, wanted in (
                ({}, None), ({"response_format": None}, None),
                ({"response_format": {"type": "text"}}, None),
                ({"response_format": {"type": "json_object"}}, {"json_object": True}),
                ({"response_format": {"type": "json_schema", "json_schema": named}},
                 {"json_schema": text}),
                ({"response_format": {"type": "regex", "regex": "a+"}}, {"regex": b"a+"}),
                ({"response_format": {"type": "grammar", "grammar": "root ::= [a]"}},
                 {"grammar": b"root ::= [a]"}),
                ({"response_format": {"type": "choice", "choices": ["a", ""]}},
                 {"choice": {"texts": [b"a", b""]}}),
                ({"guided_json": schema}, {"json_schema": text}),
                ({"guided_json": '{"a": 0.10}'}, {"json_schema": b'{"a": 0.10}'}),
                ({"guided_json": {}}, {"json_schema": b"{}"}),
                ({"guided_regex": "a+", "response_format": {"type": "text"}}, {"regex": b"a+"}),
                ({"guided_grammar": "root ::= [a]", "guided_choice": []},
                 {"grammar": b"root ::= [a]"}),
                ({"guided_choice": ["a", "b"]}, {"choice": {"texts": [b"a", b"b"]}}),
                ({"structured_outputs": {"json": schema, "regex": None}}, {"json_schema": text}),
                ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": False}},
                 {"regex": b"a+"}),
                ({"structured_outputs": {"grammar": "root ::= [a]"}},
                 {"grammar": b"root ::= [a]"}),
                ({"structured_outputs": {"choice": ["a"]}}, {"choice": {"texts": [b"a"]}}),
                ({"structured_outputs": {"json_object": True}}, {"json_object": True})):
            for ask in self.gateway.chat, self.gateway.complete:
                with self.subTest(fields):
                    self.assertEqual(ask("Hi", **fields).status, 200)
                    self.assertEqual(self.got.pop(), wanted)

    def test_refused(self):
        """By the name of what is wrong, and nothing is sent."""
        regex = {"type": "regex", "regex": "a"}
        for fields, code, param in (
                ({"response_format": "json"}, "invalid_value", "response_format"),
                ({"response_format": {}}, "invalid_value", "response_format.type"),
                ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
                ({"response_format": {"type": "structural_tag"}}, "invalid_value",
                 "response_format.type"),
                ({"response_format": {"type": "json_schema"}}, "invalid_value",
                 "response_format.json_schema"),
                ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
                 "invalid_value", "response_format.json_schema.schema"),
                ({"response_format": {"type": "json_object", "schema": {}}}, "invalid_value",
                 "response_format.schema"),
                ({"guided_json": [1]}, "invalid_value", "guided_json"),
                ({"guided_regex": 1}, "invalid_value", "guided_regex"),
                ({"guided_grammar": ["x"]}, "invalid_value", "guided_grammar"),
                ({"guided_choice": ["a", 1]}, "invalid_value", "guided_choice[1]"),
                ({"guided_choice": "a"}, "invalid_value", "guided_choice"),
                ({"structured_outputs": "x"}, "invalid_value", "structured_outputs"),
                ({"structured_outputs": {"regex": 3}}, "invalid_value",
                 "structured_outputs.regex"),
                ({"structured_outputs": {"structural_tag": "x"}}, "unsupported_parameter",
                 "structured_outputs.structural_tag"),
                ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
                 "unsupported_parameter", "structured_outputs.disable_any_whitespace"),
                ({"response_format": regex, "guided_json": {}}, "invalid_value", "guided_json"),
                ({"guided_regex": "a", "guided_choice": ["a"]}, "invalid_value", "guided_choice"),
                ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "invalid_value",
                 "structured_outputs.regex")):
            with self.subTest(fields):
                self.assertEqual(self.gateway.chat("Hi", **fields).error, (400, code, param))
        self.assertEqual(self.got, [])

    def test_what_the_daemon_refuses(self):
        """Its message has the keyword's path; the field is the client's, whichever that was."""
        for field in ("response_format", "response_format.json_schema",
                      "response_format.choice.texts[1]"):
            self.refuse = {"code": "ERROR_INVALID", "field": field, "message": f"{field}: #/not"}
            r = self.gateway.chat("Hi", guided_json={"not": {}})
            self.assertEqual(r.error, (400, "invalid_value", "response_format"))
            self.assertIn("#/not", r.json["error"]["message"])


class Errors(Shared):
    options = ("limits.prompt_bytes=200K",)

    def test_wrong_values(self):
        for fields, param in (({"temperature": "hot"}, "temperature"),
                              ({"temperature": -1}, "temperature"),
                              ({"top_p": 3}, "top_p"), ({"n": 0}, "n"), ({"n": 65}, "n"),
                              ({"n": 100000}, "n"), ({"max_tokens": 0}, "max_tokens"),
                              ({"max_tokens": 1.5}, "max_tokens"), ({"stop": 3}, "stop"),
                              ({"stop": ["a", 3]}, "stop[1]"), ({"logit_bias": {"x": 1}}, "logit_bias"),
                              ({"logit_bias": [1]}, "logit_bias"), ({"seed": "x"}, "seed"),
                              ({"stream": "yes"}, "stream"), ({"tools": [{}]}, "tools[0]"),
                              ({"tools": 1}, "tools"), ({"logprobs": 5}, "logprobs"),
                              ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
                              ({"user": 3}, "user"), ({"user": "x" * 300}, "user"),
                              ({"chat_template_kwargs": []}, "chat_template_kwargs"),
                              ({"model": 3}, "model")):
            with self.subTest(fields):
                self.assertEqual(self.gateway.chat("Hi", **fields).error[0::2], (400, param))

    def test_wrong_messages(self):
        for messages, param in ((3, "messages"), ([3], "messages[0]"), ([{}], "messages[0].role"),
                                ([{"role": "king", "content": "x"}], "messages[0].role"),
                                ([{"role": "user"}], "messages[0].content"),
                                ([{"role": "user", "content": 3}], "messages[0].content"),
                                ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
                                ([{"role": "assistant", "tool_calls": [{}]}],
                                 "messages[0].tool_calls[0].function.name")):
            self.assertEqual(self.gateway.chat(messages).error[0::2], (400, param))
        self.assertEqual(self.gateway.post("chat/completions", {}).error[0::2], (400, "messages"))
        self.assertEqual(self.gateway.chat([]).error[0], 400)
        for prompt in None, [], {}, 3, [[]], [{}], [-1], [1, "x"], "", ["x"] * 65, [99999999]:
            self.assertEqual(self.gateway.complete(prompt).error[0], 400, prompt)

    def test_no_json(self):
        for body in b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"prompt": "\xff"}', b"{}" * 2, b"[" * 9999:
            self.assertEqual(self.gateway.post("completions", body).status, 400, body[:20])

    def test_too_long(self):
        self.assertEqual(self.gateway.complete("x" * 300000).error[:2],
                         (400, "context_length_exceeded"))
        self.assertEqual(self.gateway.complete([1] * 40000).error,
                         (400, "context_length_exceeded", "prompt"))
        self.assertEqual(self.gateway.complete("x", max_tokens=99999).error,
                         (400, "context_length_exceeded", "max_tokens"))

    def test_deadline(self):
        options = {"deadline_ms": scaled(1000, 5000), "max_tokens": 20000, "ignore_eos": True}
        self.assertEqual(self.gateway.complete("x", **options).error, (504, "deadline", None))
        text = self.gateway.complete("x", stream=True, **options).text
        last = text.split("\n\n")[-2]
        self.assertEqual(json.loads(last.removeprefix("data: "))["error"]["code"], "deadline")

    def test_priority(self):
        for priority in 0, 3:
            self.assertEqual(self.gateway.complete("x", max_tokens=1, priority=priority).status, 200)


class Parts(Case):
    """Reasoning and tool calls, with a model that writes what the test says."""

    def setUp(self):
        self.daemon = self.enterContext(self.echo_daemon())
        self.gateway = self.enterContext(Gateway(self.daemon.socket))

    def ask(self, text, **options):
        return self.gateway.chat(text, presence_penalty=0.5, **options)

    def test_reasoning_is_apart(self):
        message = self.ask(THINKS).json["choices"][0]["message"]
        self.assertEqual((message["reasoning_content"], message["content"]),
                         ("It is far.\nVery far.", "The Moon\nis far."))
        deltas = [c["delta"] for e in self.ask(THINKS, stream=True).events() for c in e["choices"]]
        self.assertEqual("".join(d.get("reasoning_content", "") for d in deltas),
                         "It is far.\nVery far.")
        self.assertEqual("".join(d.get("content", "") for d in deltas), "The Moon\nis far.")

    def test_tool_calls(self):
        choice = self.ask(CALLS, tools=[TOOL]).json["choices"][0]
        message = choice["message"]
        self.assertEqual((choice["finish_reason"], message["content"], message["reasoning_content"]),
                         ("tool_calls", "Wait.", "I look."))
        calls = [(c["type"], c["function"]["name"], c["function"]["arguments"])
                 for c in message["tool_calls"]]
        self.assertEqual(calls, [("function", "find", ARGUMENTS), ("function", "g", "{}")])
        # The answer goes back as it is.
        history = [{"role": "user", "content": "x"}, message,
                   {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "1"}]
        self.assertEqual(self.gateway.chat(history, tools=[TOOL]).status, 200)

    def test_tool_calls_of_a_stream(self):
        events = self.ask(CALLS, tools=[TOOL], stream=True, n=2).events()
        for index in 0, 1:
            own = [c for e in events for c in e["choices"] if c["index"] == index]
            calls = [c for x in own for c in x["delta"].get("tool_calls", [])]
            self.assertEqual([(c["index"], c["function"]["name"], c["function"]["arguments"])
                              for c in calls], [(0, "find", ARGUMENTS), (1, "g", "{}")])
            self.assertEqual(len({c["id"] for c in calls}), 2)
            self.assertEqual([x["finish_reason"] for x in own if x["finish_reason"]],
                             ["tool_calls"])

    def test_only_calls(self):
        """Then there is no content."""
        text = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
        message = self.ask(text, tools=[TOOL]).json["choices"][0]["message"]
        self.assertIsNone(message["content"])
        self.assertNotIn("tool_calls", self.ask("Hi", tools=[TOOL]).json["choices"][0]["message"])
