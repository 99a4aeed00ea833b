"""Response formats: what comes is what they allow, whatever the sampling and whatever runs beside; and
formats that are wrong, or made to be dear."""

import json
import random
import re
import sys
import time
import unittest

import harness
from gateway import Gateway
from harness import Case, Daemon, SharedDaemon, at_once, config, parse_jsonl, run_command, scaled

sys.path.insert(0, str(harness.ROOT / "client" / "python"))
try:
    import nvllm
except ModuleNotFoundError as e:
    if e.name not in ("google", "google.protobuf"):
        raise
    nvllm = None

try:
    import jsonschema
except ModuleNotFoundError:
    jsonschema = None

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "née", 3, None]}, "maxItems": 4},
        "state": {"anyOf": [{"type": "null"}, {"const": "ok"}, {"type": "boolean"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS = [
    PERSON,
    {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "number", "minimum": -3.5, "maximum": 2, "multipleOf": 0.25},
    {"type": "integer", "minimum": 17, "maximum": 4711, "multipleOf": 7},
    {"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": 9},
               {"enum": [5, 11, "x"]}]},
    {"enum": ["a", "b\n\"", 1, 2.5, None, [1, {"x": []}]]},
    {"$ref": "#/$defs/pair", "$defs": {"pair": {
        "type": "array", "items": {"$ref": "#/$defs/leaf"}, "minItems": 2, "maxItems": 2},
        "leaf": {"type": ["null", "boolean"]}}},
]
REGEXES = ["[a-z]{1,30}", r"\d{3}-\d{4}|none", "(ab|cd){2,5}e?", "[^a-z\n]{4}", "née|naïve|日本語",
           r"(?!.*aa)[ab]{8}"]
EXPRESSION = 'root ::= term ("+" term){0,3}\nterm ::= [0-9]{1,3} | "(" root2 ")"\nroot2 ::= term "*" term'
NESTED = 'root ::= item\nitem ::= "[" item "]" | "x"\n'
CHOICES = [b"yes", b"no", "não".encode(), b"no, never"]


def schema(value):
    return {"json_schema": value if isinstance(value, (str, bytes)) else json.dumps(value)}


def choice(*texts):
    return {"choice": {"texts": list(texts)}}


# ---- a validator of the keywords that the schemas above use

TYPES = {"null": lambda v: v is None, "boolean": lambda v: isinstance(v, bool),
         "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
         "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
         "string": lambda v: isinstance(v, str), "array": lambda v: isinstance(v, list),
         "object": lambda v: isinstance(v, dict)}


def same(a, b):
    """As JSON has it: true is not 1."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def holds(s, v, root):
    if "$ref" in s:
        at = root
        for part in s["$ref"].split("/")[1:]:
            at = at[part]
        if not holds(at, v, root):
            return False
    types = s.get("type", list(TYPES))
    if not any(TYPES[t](v) for t in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in s and not any(same(v, x) for x in s["enum"]):
        return False
    if "const" in s and not same(v, s["const"]):
        return False
    if "anyOf" in s and not any(holds(x, v, root) for x in s["anyOf"]):
        return False
    if "oneOf" in s and sum(holds(x, v, root) for x in s["oneOf"]) != 1:
        return False
    if isinstance(v, str):
        return (s.get("minLength", 0) <= len(v) <= s.get("maxLength", len(v))
                and bool(re.search(s.get("pattern", ""), v)))
    if isinstance(v, list):
        return (s.get("minItems", 0) <= len(v) <= s.get("maxItems", len(v))
                and all(holds(s.get("items", {}), x, root) for x in v))
    if isinstance(v, dict):
        known = s.get("properties", {})
        order = [k for k in known if k in v]
        return (set(s.get("required", [])) <= set(v) and list(v)[:len(order)] == order
                and (s.get("additionalProperties", True) or len(order) == len(v))
                and all(holds(known[k], v[k], root) for k in order))
    if TYPES["number"](v):
        return (s.get("minimum", v) <= v <= s.get("maximum", v)
                and v % s.get("multipleOf", v or 1) == 0)
    return True


def is_nested(text):
    return re.fullmatch(r"\[*x\]*", text) is not None and text.count("[") == text.count("]")


def is_schema(s):
    return lambda text: holds(s, json.loads(text), s)


def is_regex(expression):
    return lambda text: re.fullmatch(expression, text, re.ASCII) is not None


TERM = r"(?:\d{1,3}|\(%s\*%s\))"
# (format, whether a text obeys); the nesting of the expression is deeper in what it allows
FORMATS = [
    ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    *((schema(s), is_schema(s)) for s in SCHEMAS),
    *(({"regex": r}, is_regex(r)) for r in REGEXES),
    ({"grammar": EXPRESSION}, is_regex(r"[0-9()*+]+")),
    ({"grammar": NESTED}, is_nested),
    (choice(*CHOICES), lambda text: text.encode() in CHOICES),
]


def biases():
    """What makes texts end that may be of any length, and have less white space."""
    vocabulary = json.loads((harness.MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    more = {"}": 16.0, '"': 14.0, "x": 6.0, "]": 8.0}
    return [{"id": i, "bias": more.get(t, -12.0)} for t, i in vocabulary.items()
            if t in more or not t.strip("\u010a\u0120")]


BIASES = biases()


def ask(format_, seed=1, temperature=1.5, **fields):
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "seed": seed,
                "logit_bias": BIASES, **fields.pop("sampling", {})}
    return {"prompt": "The answer is ", "max_tokens": 600, "sampling": sampling,
            "response_format": format_, **fields}


class Formats(SharedDaemon):
    def check(self, reply, obeys, n=1):
        self.assertIsNone(reply.error)
        self.assertEqual(len(reply.choices), n)
        for c in reply.choices.values():
            self.assertEqual(c.reason, "FINISH_STOP", c.text)
            self.assertTrue(obeys(c.text.decode()), c.text)

    def test_answers_obey(self):
        """Each kind, whatever the sampling."""
        def run(seed):
            with self.daemon.connect() as w:
                for i, (format_, obeys) in enumerate(FORMATS):
                    with self.subTest(format_, seed=seed):
                        stream = (seed + i) % 2 == 0
                        self.check(w.generate(**ask(format_, seed, stream=stream)), obeys)
            return True

        at_once(run, range(scaled(8, 2)))

    def test_greedy(self):
        """But for an object, in which the model repeats itself without end."""
        with self.daemon.connect() as w:
            for format_, obeys in FORMATS[1:]:
                with self.subTest(format_):
                    self.check(w.generate(**ask(format_, temperature=0)), obeys)

    def test_choices(self):
        with self.daemon.connect() as w:
            for i, (format_, obeys) in enumerate(FORMATS):
                with self.subTest(format_):
                    reply = w.generate(**ask(format_, n=3, stream=i % 2 == 0))
                    self.check(reply, obeys, 3)

    @unittest.skipUnless(jsonschema, "no jsonschema for Python")
    def test_another_validator(self):
        with self.daemon.connect() as w:
            for s in SCHEMAS:
                for seed in range(2):
                    reply = w.generate(**ask(schema(s), 100 + seed))
                    jsonschema.validate(json.loads(reply.choices[0].text), s)

    def test_logprobs(self):
        with self.daemon.connect() as w:
            for format_, obeys in FORMATS:
                reply = w.generate(**ask(format_, sampling={"logprobs": 3}))
                self.check(reply, obeys)
                c = reply.choices[0]
                self.assertEqual(len(c.logprobs), len(c.ids))
                for p in c.logprobs:
                    self.assertLessEqual(p["logprob"], 0)
                    self.assertEqual(len(p["top_ids"]), 3)

    def test_stop_strings(self):
        """They end the text earlier."""
        with self.daemon.connect() as w:
            for seed in range(scaled(8, 3)):
                reply = w.generate(**ask({"regex": "[a-e]{40}"}, seed, stop=["c"]))
                c = reply.choices[0]
                self.assertEqual(c.reason, "FINISH_STOP")
                self.assertRegex(c.text.decode(), "^([abde]{0,39}|[abde]{40})$")

    def test_max_tokens_cut(self):
        """What is there is the beginning of what comes without the limit."""
        with self.daemon.connect() as w:
            for format_ in schema(PERSON), {"regex": "[a-z]{30}"}, {"grammar": EXPRESSION}:
                whole = w.generate(**ask(format_)).choices[0]
                for k in range(1, len(whole.ids) - 1, 3):
                    cut = w.generate(**ask(format_, max_tokens=k)).choices[0]
                    self.assertEqual(cut.reason, "FINISH_LENGTH")
                    self.assertEqual(cut.ids, whole.ids[:k])
                    self.assertTrue(whole.text.startswith(cut.text))

    def test_others_beside(self):
        """The same tokens, whatever is in flight."""
        requests = [ask(f, i) for i, (f, _) in enumerate(FORMATS)]
        requests += [{"prompt": "Once", "max_tokens": 40,
                      "sampling": {"temperature": 1.0, "seed": i}} for i in range(4)]
        with self.daemon.connect() as w:
            alone = [w.generate(**r).outcome() for r in requests]

            def run(seed):
                order = list(range(len(requests)))
                random.Random(seed).shuffle(order)
                with self.daemon.connect() as own:
                    ids = {}
                    for i in order:
                        ids[own.new_id()] = i
                        own.send(own.last_id, generate=requests[i])
                    return {ids[k]: a.outcome() for k, a in own.collect(ids).items()}

            for got in at_once(run, range(scaled(3, 1))):
                for i, outcome in got.items():
                    self.assertEqual(outcome, alone[i], requests[i])

    def test_prefix_found(self):
        """A prompt in the cache gives the same tokens."""
        prompt = "In the beginning " * 60
        with self.daemon.connect() as w:
            for format_, obeys in FORMATS[1:4]:
                first, second = [w.generate(**ask(format_, prompt=prompt)) for _ in range(2)]
                self.assertGreater(second.done["usage"]["cached_tokens"], 100)
                self.check(second, obeys)
                self.assertEqual(first.outcome(), second.outcome())

    def test_chat(self):
        """Reasoning is free and apart; the text behind it is the format's."""
        messages = [{"role": "user", "content": "Who?"}]
        ends = BIASES + [{"id": 1999, "bias": 14.0}]
        thinks = ends + [{"id": 1998, "bias": 12.0}]
        with self.daemon.connect() as w:
            n_reasoned = 0
            for format_, obeys in FORMATS[1:]:
                for bias in ends, thinks:
                    request = ask(format_, sampling={"logit_bias": bias})
                    del request["prompt"]
                    with self.subTest(format_, thinks=bias is thinks):
                        reply = w.generate(**request, chat={"messages": messages})
                        self.check(reply, obeys)
                        n_reasoned += b"<think>" in w.generate(
                            **request, raw_text=True,
                            chat={"messages": messages}).choices[0].text
            self.assertGreater(n_reasoned, 3)
            reply = w.generate(**request, chat={"messages": messages, "enable_thinking": False})
            self.check(reply, FORMATS[-1][1])

    def test_reasoning_by_the_template(self):
        """As it is, where the prompt has its opening tag already."""
        folder = self.temporary_folder()
        own = json.loads((harness.MODEL / "tokenizer_config.json").read_text())["chat_template"]
        template = folder / "template.jinja"
        begin = "'<|im_start|>assistant\\n'"
        self.assertIn(begin, own)
        template.write_text(own.replace(begin, "'<|im_start|>assistant\\n<think>\\n'"))
        sampling = {"logit_bias": [{"id": 1999, "bias": 12.0}]}
        with Daemon(harness.SMALL, f"model.chat_template={template}") as d, d.connect() as w:
            for format_, obeys in FORMATS[1:4]:
                request = ask(format_, sampling=sampling)
                del request["prompt"]
                reply = w.generate(**request, chat={"messages": [{"role": "user", "content": "?"}]})
                self.check(reply, obeys)
                self.assertNotIn(b"</think>", reply.choices[0].reasoning)


class Refusals(SharedDaemon):
    def check(self, format_, code, field, message):
        with self.subTest(str(format_)[:80]), self.daemon.connect() as w:
            reply = w.generate(**ask(format_))
            self.assertIsNotNone(reply.error, reply.choices and reply.choices[0].text)
            self.assertEqual((reply.error["code"], reply.error.get("field")), (code, field),
                             reply.error)
            self.assertIn(message, reply.error["message"])
            self.assertEqual(reply.choices, {})
            self.assertIsNone(w.generate(**harness.GOOD).error)

    def test_refused(self):
        """By the field that is wrong; the daemon goes on."""
        object_ = "response_format.json_schema"
        regex, grammar = "response_format.regex", "response_format.grammar"
        texts = "response_format.choice.texts"
        for format_, field, message in (
                (schema("{"), object_, ""),
                (schema(""), object_, ""),
                (schema("3"), object_, ""),
                (schema(b'{"title": "\xff"}'), object_, ""),
                (schema({"type": "text"}), object_, "$.type"),
                (schema({"type": "string", "minLength": -1}), object_, "$.minLength"),
                (schema({"type": "string", "pattern": "("}), object_, "$.pattern"),
                (schema({"$ref": "#/none"}), object_, "$.$ref"),
                (schema(False), object_, ""),
                (schema('{"title": "%s"}' % ("x" * (1 << 18))), object_, ""),
                ({"regex": "("}, regex, "position"),
                ({"regex": "a{2,1}"}, regex, "position"),
                ({"regex": "[]a"}, regex, ""),
                ({"regex": b"\xff"}, regex, ""),
                ({"regex": "a" * (1 << 18) + "a"}, regex, ""),
                ({"grammar": ""}, grammar, ""),
                ({"grammar": "root ::= x"}, grammar, "x"),
                ({"grammar": 'x ::= "a"'}, grammar, ""),
                ({"grammar": 'root ::= "a'}, grammar, "line 1"),
                ({"grammar": 'root ::= "a" root'}, grammar, ""),
                ({"grammar": b'root ::= "\xff"'}, grammar, ""),
                ({"grammar": "#" * (1 << 18) + '\nroot ::= "a"'}, grammar, ""),
                (choice(), texts, ""),
                (choice(b"a", b"\xff"), texts + "[1]", ""),
                (choice(*["x" * 1000] * 300), texts, ""),
                (choice(*[str(i) for i in range(5000)]), "response_format.choice", "4096"),
                ({}, "response_format", ""),
                ({"json_object": False}, "response_format", "")):
            self.check(format_, "ERROR_INVALID", field, message)
        for format_, field, message in (
                (schema({"properties": {"a": {"items": {"unevaluatedItems": False}}}}), object_,
                 "$.properties.a[0].unevaluatedItems"),
                (schema({"properties": {"a": {"uniqueItems": True}}}), object_,
                 "$.properties.a.uniqueItems"),
                (schema({"$ref": "http://example.com/x"}), object_, "$.$ref"),
                ({"regex": r"(a)\1"}, regex, "position"),
                ({"regex": r"a\bc"}, regex, "position"),
                ({"grammar": 'root ::= root "x" | "y"'}, grammar, "begins with itself"),
                ({"grammar": 'root ::= a\na ::= b "x"\nb ::= a "y" | "z"'}, grammar, "begins")):
            self.check(format_, "ERROR_INVALID", field, message)

    def test_ignore_eos(self):
        with self.daemon.connect() as w:
            reply = w.generate(**ask({"regex": "a+"}, sampling={"ignore_eos": True}))
        self.assertEqual((reply.error["code"], reply.error["field"]),
                         ("ERROR_INVALID", "sampling.ignore_eos"))

    def test_empty_texts(self):
        """A format may allow no text but the empty one."""
        with self.daemon.connect() as w:
            for format_ in {"regex": ""}, choice(b""), {"grammar": 'root ::= ""'}:
                c = w.generate(**ask(format_)).choices[0]
                self.assertEqual((c.text, c.reason), (b"", "FINISH_STOP"))


class Preempted(Case):
    def test_preemption(self):
        """More answers than the cache has room for: each is whole, and the same as alone."""
        s = {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 4}
        requests = [ask(schema(s), i, prompt="word " * 40) for i in range(12)]
        with Daemon("cache.kv_memory=8M", "scheduler.max_seq_len=500") as d, d.connect() as w:
            alone = [w.generate(**{**r, "max_tokens": 300}).outcome() for r in requests]
            ids = []
            for r in requests:
                ids.append(w.new_id())
                w.send(ids[-1], generate={**r, "max_tokens": 300})
            got = w.collect(ids)
            for i, answer in enumerate(got.values()):
                self.assertEqual(answer.outcome(), alone[i])
                c = answer.choices[0]
                if c.reason == "FINISH_STOP":
                    self.assertTrue(holds(s, json.loads(c.text), s), c.text)
            self.assertGreater(d.status()["preemptions"], 0)


def deep(before, middle, after, n):
    return before * n + middle + after * n


def rules(n, body, last):
    return "root ::= x0\n" + "".join(f"x{i} ::= " + body.format(i + 1) + "\n" for i in range(n)) + \
        f"x{n} ::= {last}"


def product(op, m, n):
    return {"allOf": [{op: [{"properties": {f"p{i}_{j}": {"type": "integer"}}} for j in range(m)]}
                      for i in range(n)]}


def nested(step, leaf, n):
    for _ in range(n):
        leaf = step(leaf)
    return leaf


HOSTILE = [
    *(schema(deep(before, "{}", after, n)) for n in (250, 1000, 20000) for before, after in (
        ('{"properties":{"a":', "}}"), ('{"items":', "}"), ('{"allOf":[', "]}"),
        ('{"anyOf":[{},', "]}"), ('{"not":', "}"), ('{"if":{"type":"null"},"then":', "}"))),
    schema({"properties": {f"p{i}": {"type": "string"} for i in range(5000)}}),
    schema({"type": "object", "required": [f"p{i}" for i in range(5000)]}),
    schema({"enum": [f"v{i}" for i in range(20000)]}),
    schema({"enum": [{"a": i} for i in range(10000)]}),
    schema({"oneOf": [{"const": i} for i in range(1000)]}),
    *(schema(product(op, m, n)) for op in ("anyOf", "oneOf") for m, n in ((2, 16), (10, 10))),
    schema({"oneOf": [product("anyOf", 3, 10)] * 3}),
    schema(nested(lambda s: {"anyOf": [{"allOf": [s, {"title": "a"}]}, {"allOf": [s, {}]}]},
                  {"type": "string"}, 12)),
    schema(nested(lambda s: {"oneOf": [s, {"not": s}]}, {"type": "string"}, 10)),
    schema({"not": {"allOf": [{"anyOf": [{"type": "string"}, {"maximum": i}, {"minLength": i}]}
                              for i in range(12)]}}),
    schema({"$ref": "#"}),
    schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    schema({"not": {"$ref": "#"}}),
    schema({"oneOf": [{"$ref": "#"}, {"type": "null"}]}),
    schema({"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    schema({"$ref": "#/$defs/a0", "$defs": {"a60": {}, "a61": {}, **{
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + k}"} for k in (1, 2)]} for i in range(60)}}}),
    schema({"type": "integer", "multipleOf": 997, "minimum": -10**15, "maximum": 10**15}),
    schema({"type": "array", "minItems": 10**9}),
    schema({"type": "string", "allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(1, 16)]}),
    {"regex": "(a{1,100}){1,100}"},
    {"regex": "((a{1,100}){1,100}){1,100}"},
    {"regex": "(((a|b|ab){1,100}){1,100}){1,100}"},
    {"regex": "(a?){1000}a{1000}"},
    {"regex": "(.*a.*){20}"},
    {"regex": "(a|b)*a(a|b){200}"},
    {"regex": "(ab?){0,8000}" * 7},
    {"regex": "".join(f"(?=.*{c})" for c in "abcdefghijklmnop") + ".*"},
    {"regex": "".join(f"(?!.*a.{{{i}}}b)" for i in range(12)) + ".*"},
    {"regex": "a|" * 32000 + "a"},
    {"regex": "|" * 65000},
    *({"regex": deep("(b", "[a]", ")*", n)} for n in (190, 200, 30000)),
    {"regex": "a?" * 5000},
    {"regex": "a*b*" * 3000},
    {"regex": "(abc|de){8192}"},
    {"grammar": 'root ::= root2*\nroot2 ::= ""*'},
    {"grammar": "root ::= a\na ::= b*\nb ::= a*"},
    {"grammar": 'root ::= e root "x" | "y"\ne ::= ""'},
    {"grammar": 'root ::= "a" root root | "a" root | "a"'},
    {"grammar": 'root ::= t+\nt ::= "a" | "a" t+'},
    {"grammar": 'root ::= ("a" root? "b"? )*'},
    {"grammar": 'root ::= (((("a"{1,100}){1,100}){1,100}){1,100}){1,100}'},
    {"grammar": 'root ::= ' + deep("(", '"a"', ")", 5000)},
    {"grammar": rules(1500, "x{0}", '"a"')},
    {"grammar": rules(40, "x{0} x{0}", '"a" root? | ""')},
    {"grammar": rules(40, "x{0} x{0}", '"a" x40 "b" | ""')},
    {"grammar": 'root ::= x{100}\nx ::= y{100}\ny ::= z{100}\nz ::= "a" z? "b"'},
]


class Hostile(Case):
    def test_hostile_formats(self):
        """Each is answered or refused soon and in bounded memory."""
        took = []
        with Daemon(harness.SMALL) as d, d.connect() as w:
            w.generate(**ask(schema(PERSON)))
            d.wait_filled()
            before = d.rss_kib()
            for format_ in HOSTILE:
                begun = time.monotonic()
                reply = w.generate(**ask(format_, max_tokens=30))
                took.append((time.monotonic() - begun, str(format_)[:100]))
                if reply.error:
                    self.assertIn(reply.error["code"], ("ERROR_INVALID", "ERROR_INVALID"))
                self.assertIsNone(w.generate(**harness.GOOD).error)
            grown = d.rss_kib() - before
        took.sort(reverse=True)
        for seconds, what in took[:5]:
            print(f"{seconds:.2f} s {what}")
        print(f"memory: {grown} KiB more")
        self.assertLess(took[0][0], scaled(5, 60), took[0][1])
        if not config.light:
            self.assertLess(grown, 300 << 10)


class Offline(Case):
    def schema(self, lines):
        done = run_command([config.nvllmd, "schema", "--model", harness.MODEL, "--jsonl"],
                           stdin="".join(line + "\n" for line in lines), check=False)
        return parse_jsonl(done.stdout), done

    def test_lines(self):
        """What is accepted, what is not supported, and what is wrong: each line for itself."""
        out, done = self.schema([
            json.dumps({"schema": PERSON, "texts": ['{"name": "x", "age": 130}',
                                                    '{"age": 1, "name": "x"}', '{"name": "x"}']}),
            json.dumps({"regex": "a+b?", "texts": ["a", "aab", "", "b", "ab\n"]}),
            json.dumps({"schema": {"uniqueItems": True}, "texts": ["1"]}),
            "not JSON",
            json.dumps({"texts": ["1"]}),
            json.dumps({"regex": "a", "texts": ["a", 3]}),
            json.dumps({"grammar": NESTED, "texts": ["[[x]]", "[[x]", "x"]}),
        ])
        self.assertEqual(out[0], {"supported": True, "accepted": [True, False, False]})
        self.assertEqual(out[1], {"supported": True, "accepted": [True, True, False, False, False]})
        self.assertIs(out[2]["supported"], False)
        self.assertIn("$.uniqueItems", out[2]["reason"])
        for i in 3, 4, 5:
            self.assertEqual(out[i]["error"]["code"], "invalid")
        self.assertEqual(out[6], {"supported": True, "accepted": [True, False, True]})
        self.assertEqual(done.returncode, 1)


class Clients(SharedDaemon):
    def test_http(self):
        with Gateway(self.daemon.socket) as g:
            wrapper = {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}
            fields = {"temperature": 1.5, "seed": 3, "max_tokens": 300}
            got = g.chat("Who?", response_format=wrapper, **fields).json["choices"][0]
            self.assertEqual(got["finish_reason"], "stop")
            self.assertTrue(holds(PERSON, json.loads(got["message"]["content"]), PERSON))
            got = g.complete("Is it?", guided_choice=["yes", "no"], **fields).json["choices"][0]
            self.assertIn(got["text"], ("yes", "no"))
            refused = g.chat("Who?", response_format={"type": "regex", "regex": "("})
            self.assertEqual(refused.error, (400, "invalid_value", "response_format"))

    def test_nvllmctl(self):
        file = self.temporary_folder() / "schema"
        file.write_text(json.dumps(PERSON))
        args = ["generate", "--temperature", 1.5, "--seed", 3, "Who?"]
        text = self.daemon.ctl(*args, "--json-schema", file).stdout.decode()
        self.assertTrue(holds(PERSON, json.loads(text), PERSON))
        text = self.daemon.ctl(*args, "--regex", "[a-z]{4}-[0-9]{2}").stdout.decode().rstrip("\n")
        self.assertRegex(text, r"\A[a-z]{4}-[0-9]{2}\Z")
        text = self.daemon.ctl(*args, "--choice", "yes", "--choice", "no").stdout.decode()
        self.assertIn(text.rstrip("\n"), ("yes", "no"))
        self.assertNotEqual(self.daemon.ctl(*args, "--regex", "(", check=False).returncode, 0)

    @unittest.skipUnless(nvllm, "no protobuf for Python")
    def test_python(self):
        with nvllm.Client(self.daemon.socket) as client:
            answer = client.generate("Who?", temperature=1.5, seed=3, response_format={
                "type": "json_schema", "json_schema": {"schema": PERSON}}).answer()
            self.assertTrue(holds(PERSON, json.loads(answer.text), PERSON))
            with self.assertRaises(nvllm.InvalidError) as caught:
                client.generate("Who?", response_format={"type": "regex", "regex": "("}).answer()
            self.assertEqual(caught.exception.field, "response_format.regex")
