"""Mutations of the bundled model's folder, also as an embedder and as a mixture of experts: each
file damaged in each way, each field of each wrong type, contradictions between files, templates
that never end; and changes that change no answer.

all_mutations() is a list of Mutation. What a mutated folder must do is its `wanted`:
  Refused(*texts)  it does not load, and the reason begins with the file and holds the texts
  NoChat(*texts)   raw prompts have the right answers; a chat is refused, with the texts
  Golden()         raw prompts and chats have the right answers"""

import collections
import copy
import functools
import json
import os
import random
import socket
import struct

from harness import MODEL

Mutation = collections.namedtuple("Mutation", "name files wanted")
Refused = collections.namedtuple("Refused", "texts")
NoChat = collections.namedtuple("NoChat", "texts noted")  # noted: nvllmd check says so, too
Golden = collections.namedtuple("Golden", "")

ABSENT = object()
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
PROMPTS = "config_sentence_transformers.json"

# What makes an embedder of the model.
EMBEDDER = {
    MODULES: [{"idx": 0, "name": "0", "path": "",
               "type": "sentence_transformers.models.Transformer"},
              {"idx": 1, "name": "1", "path": "1_Pooling",
               "type": "sentence_transformers.models.Pooling"},
              {"idx": 2, "name": "2", "path": "2_Normalize",
               "type": "sentence_transformers.models.Normalize"}],
    POOLING: {"word_embedding_dimension": 256, "pooling_mode_cls_token": False,
              "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True,
              "include_prompt": True},
    PROMPTS: {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": None,
              "similarity_fn_name": "cosine"},
}


@functools.lru_cache
def original(file):
    if file in EMBEDDER:
        return EMBEDDER[file]
    return json.loads((MODEL / file).read_text())


def changed(file, path, value):
    """The file with another value at the path, a sequence of keys and indexes."""
    root = copy.deepcopy(original(file))
    at = root
    for key in path[:-1]:
        at = at[key]
    if value is ABSENT:
        del at[path[-1]]
    elif isinstance(at, list) and path[-1] == len(at):
        at.append(value)
    else:
        at[path[-1]] = value
    return json.dumps(root)


def spelled(path):
    return ".".join(map(str, path))


def fields(file, path, values, *texts):
    """Refused with each of the values, and the reason names the file and the field."""
    named = texts or (str(path[-1]),)
    for value in values:
        shown = "absent" if value is ABSENT else json.dumps(value)[:90]
        yield Mutation(f"{file}: {spelled(path)} = {shown}", {file: changed(file, path, value)},
                       Refused((file, *named)))


def golden(name, **files):
    yield Mutation(name, files, Golden())


# ---- what is no JSON, or no file


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as s:
        here = os.open(path.parent, os.O_PATH)  # a socket's own path may not be as long
        s.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def sparse(n_bytes):
    def make(path):
        with open(path, "wb") as f:
            f.truncate(n_bytes)
    return make


def link(target):
    return lambda path: path.symlink_to(target)


NO_FILES = {
    "a FIFO": (os.mkfifo, "is not a regular file"),
    "a folder": (os.mkdir, "is not a regular file"),
    "a socket": (make_socket, "is not a regular file"),
    "a device": (link("/dev/zero"), "is not a regular file"),
    "a link to nothing": (link("nothing"), "is a broken link"),
    "a link to itself": (lambda path: path.symlink_to(path.name),
                         "cannot be opened: Too many levels"),
}


def damaged_files(file, text):
    raw = text.encode()
    contents = {
        "empty": (b"", "not JSON"),
        "half": (raw[:len(raw) // 2], "not JSON"),
        "without its last byte": (raw.rstrip()[:-1], "not JSON"),
        "with something behind": (raw + b"x", "not JSON"),
        "null": (b"null", "not JSON"),
        "an array": (b"[" + raw + b"]", "must be a JSON object"),
        "a string": (json.dumps(text).encode(), "not JSON"),
        "zeros": (bytes(100), "not JSON"),
        "ones": (b"\xff" * 100, "not JSON"),
        "with a byte-order mark": (b"\xef\xbb\xbf" + raw, "not JSON"),
        "UTF-16": (text.encode("utf-16"), "not JSON"),
        "nested arrays": (b'{"x":' + b"[" * 200000, "not JSON"),
        "nested objects": (b'{"x":' * 200000, "not JSON"),
        "with a key twice": (b'{"x":1,"x":1,' + raw.lstrip()[1:], "duplicate object key"),
        "with NaN": (b'{"x":NaN,' + raw.lstrip()[1:], "not JSON"),
        "with Infinity": (b'{"x":-Infinity,' + raw.lstrip()[1:], "not JSON"),
        "with an integer of 40 digits": (b'{"x":' + b"9" * 40 + b"," + raw.lstrip()[1:],
                                         "too big integer"),
        "with 1e999": (b'{"x":1e999,' + raw.lstrip()[1:], "real number overflow"),
        "with half a surrogate": (b'{"x":"\\ud800",' + raw.lstrip()[1:], "not JSON"),
        "with NUL in a string": (b'{"x":"\\u0000",' + raw.lstrip()[1:], "not JSON"),
        "with bytes that are no UTF-8": (b'{"x":"\xc3\x28",' + raw.lstrip()[1:], "not JSON"),
        "too large": (sparse((256 << 20) + 1), "at most"),
        **NO_FILES,
    }
    for name, (content, text_) in contents.items():
        yield Mutation(f"{file}: {name}", {file: content}, Refused((file, text_)))


def whole_index(**changes):
    header = MODEL / WEIGHTS
    with open(header, "rb") as f:
        names = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return {"weight_map": {n: "a.safetensors" for n in names if n != "__metadata__"}, **changes}


# What the index stands beside, instead of model.safetensors.
SHARD = {WEIGHTS: ABSENT, "a.safetensors": link(MODEL / WEIGHTS)}


def damage():
    for file in "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json":
        yield from damaged_files(file, json.dumps(original(file)))
    for m in damaged_files(INDEX, json.dumps(whole_index())):
        yield m._replace(files={**SHARD, **m.files})
    for file in TEMPLATE, WEIGHTS:
        for name, (content, text) in NO_FILES.items():
            yield Mutation(f"{file}: {name}", {file: content}, Refused((file, text)))
    for file, text in (("tokenizer.json", "tokenizer.json: cannot be opened"),
                       (WEIGHTS, "is missing")):
        yield Mutation(f"{file}: absent", {file: ABSENT}, Refused((file, text)))
    for content in b"", b"\xff" * 7, b"\xff" * 100, b"version https://git-lfs.github.com/spec/v1\n":
        yield Mutation(f"{WEIGHTS}: {content[:8]}", {WEIGHTS: content}, Refused((WEIGHTS,)))
    yield from golden("generation_config.json: absent", **{"generation_config.json": ABSENT})
    yield from golden("links to links", **{
        "config.json": link(MODEL / ".." / MODEL.name / "config.json")})


# ---- config.json, generation_config.json

NO_INTEGERS = ["8", 1.5, True, [], {}]
NO_NUMBERS = ["1", False, [], {}]
NO_FLAGS = ["true", 1, [], {}]
NO_STRINGS = [1, True, [], {}]


def config():
    file = "config.json"
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                "vocab_size", "max_position_embeddings"):
        yield from fields(file, [key], [ABSENT, None, *NO_INTEGERS, 0, -1, 1 << 31, 1 << 62])
    for key in "head_dim", "num_key_value_heads":
        yield from fields(file, [key], [*NO_INTEGERS, 0, -8, 1 << 40])
    yield from fields(file, ["rms_norm_eps"],
                      [ABSENT, None, *NO_NUMBERS, 0, -1e-6, 1e-40, 2, 1e308])
    yield from fields(file, ["rope_parameters", "rope_theta"], [ABSENT, *NO_NUMBERS, 0, -1, 1e300])
    yield from fields(file, ["rope_parameters"], [1, "x", True, []])
    yield from fields(file, ["rope_parameters", "rope_type"], [1, "dynamic", "", [], {}])
    yield from fields(file, ["rope_scaling"], [1, "x", {"type": "linear", "factor": 2}])
    yield from fields(file, ["rope_parameters"], [
        {"rope_theta": 1e6, "rope_type": "yarn", "factor": f}
        for f in (0, -2, "2", 1e9, [])], "factor")
    yield from fields(file, ["rope_theta"], ["x", -1, 5e5])
    for key in "attention_bias", "tie_word_embeddings", "use_sliding_window":
        yield from fields(file, [key], NO_FLAGS)
    for key in "hidden_act", "model_type", "dtype":
        yield from fields(file, [key], [*NO_STRINGS, "", "nope", "silu ", "é" * 300])
    yield from fields(file, ["architectures"],
                      [ABSENT, None, 1, "Qwen3ForCausalLM", [], [1], ["Qwen3ForCausalLM"] * 2, {},
                       ["NopeForCausalLM"], ["Qwen2ForCausalLM"[:-1]], ["\x1b[31m" * 100]])
    yield from fields(file, ["layer_types"], [1, "x", {}, [], ["full_attention"] * 3, [1] * 4,
                                              ["sliding_attention"] * 4, ["full_attention"] * 5])
    yield from fields(file, ["eos_token_id"], ["x", 1.5, True, -1, 2048, 1 << 40, [1993, -1], [[1]],
                                               list(range(17)), {}])
    yield from fields(file, ["quantization_config"], [{}, 1, {"quant_method": "gptq"}])
    # Contradictions: with other fields, with the weights, with the tokenizer.
    yield from fields(file, ["num_key_value_heads"], [3], "does not divide num_attention_heads")
    yield from fields(file, ["head_dim"], [127], "127 is odd")
    yield from fields(file, ["num_hidden_layers"], [3], "layer_types: has 4 entries for 3 layers")
    yield from fields(file, ["model_type"], ["llama"], "contradicts architectures")
    yield from fields(file, ["attention_bias"], [True], "attention_bias: true contradicts")
    for key, value in (("hidden_size", 128), ("hidden_size", 257), ("intermediate_size", 767),
                       ("vocab_size", 2047), ("vocab_size", 1 << 22), ("num_attention_heads", 4),
                       ("num_key_value_heads", 2), ("head_dim", 64), ("head_dim", None)):
        m, = fields(file, [key], [value])
        yield m._replace(wanted=Refused((WEIGHTS, "shape: is [", "but config.json implies")))
    m, = fields(file, ["tie_word_embeddings"], [False])
    yield m._replace(wanted=Refused((WEIGHTS, "tensors are missing: lm_head.weight")))
    more = dict(original(file), num_hidden_layers=1024, layer_types=None)
    yield Mutation("config.json: 1020 layers too many", {file: json.dumps(more)},
                   Refused((WEIGHTS, "tensors are missing: model.layers.4.")))
    for name, change in {
            "what is not known": {"x": [{}] * 9, "": None, "num_layers": -1, "head_size": "x"},
            "nulls": {"layer_types": None, "rope_scaling": None, "attention_bias": None,
                      "model_type": None, "dtype": None, "hidden_act": None, "eos_token_id": None},
            "the older spelling": {"rope_parameters": None, "rope_theta": 1e6, "dtype": None,
                                   "torch_dtype": "bfloat16"},
            "both spellings": {"rope_theta": 1e6, "rope_scaling": {"type": "default"}},
            "the longest context": {"max_position_embeddings": 1 << 24},
            "a theta that is an integer": {"rope_parameters": {"rope_theta": 1000000}},
            "end ids": {"eos_token_id": list(range(2032, 2048))}}.items():
        yield from golden(f"config.json: {name}",
                          **{file: json.dumps({**original(file), **change})})


def generation():
    file = "generation_config.json"
    for key in "temperature", "top_p", "min_p", "repetition_penalty":
        yield from fields(file, [key], [*NO_NUMBERS, -1, 1e300, -1e-300])
    yield from fields(file, ["top_p"], [0])
    yield from fields(file, ["repetition_penalty"], [0])
    yield from fields(file, ["top_k"], [*NO_INTEGERS, -1, 1 << 31, 1 << 62])
    yield from fields(file, ["do_sample"], NO_FLAGS)
    yield from fields(file, ["eos_token_id"], ["x", 1.5, -1, 2048, 1 << 40, [1993, 2048], [None],
                                               list(range(17)), {}])
    for name, content in {
            "nothing": {}, "nulls": {k: None for k in ("temperature", "top_k", "eos_token_id")},
            "bounds": {"temperature": 100, "top_k": (1 << 31) - 1, "top_p": 1e-6, "min_p": 1},
            "the same end twice": {"eos_token_id": [1993, 1993]},
            "no end": {"eos_token_id": []}}.items():
        yield from golden(f"{file}: {name}", **{file: json.dumps(content)})


# ---- tokenizer.json


def tokenizer_parts():
    file = "tokenizer.json"
    for part in "normalizer", "pre_tokenizer", "post_processor", "decoder", "model":
        yield from fields(file, [part], [1, "x", True, [], {}, {"type": 1}, {"type": "Nope"},
                                         {"type": "BPE" * 200}])
    yield from fields(file, ["decoder"], [ABSENT, None, {"type": "ByteLevel", "x": 1}])
    yield from fields(file, ["model"], [ABSENT, None])
    yield from fields(file, ["version"], [ABSENT, None, 1, "2.0", ["1.0"]])
    yield from fields(file, ["no_such_part"], [1, {}])
    for key, values in {"dropout": [0.5, "x"], "unk_token": ["!", 1], "fuse_unk": [True, "x"],
                        "byte_fallback": [True, 1], "continuing_subword_prefix": ["##", 1],
                        "end_of_word_suffix": ["</w>"], "ignore_merges": [1, "true"],
                        "no_such_field": [1]}.items():
        yield from fields(file, ["model", key], values)


def vocabulary():
    file = "tokenizer.json"
    vocab, merges = original(file)["model"]["vocab"], original(file)["model"]["merges"]
    last = next(k for k, v in vocab.items() if v == 1500)
    yield from fields(file, ["model", "vocab"], [ABSENT, None, [], "x", 1, {}])
    yield from fields(file, ["model", "vocab", last],
                      ["1", None, 1.5, True, -1, 1, 1 << 24, 1 << 40, [], {}], "model.vocab")
    yield from fields(file, ["model", "vocab", ""], [1990, 2047], "model.vocab", "is empty")
    yield from fields(file, ["model", "vocab", "!"], [ABSENT], "model.vocab", "byte 0x21")
    yield from fields(file, ["model", "vocab", "beyond"], [2048, 1 << 20],
                      "is not in 0 .. 2047, the vocabulary of config.json")
    yield from fields(file, ["model", "merges"],
                      [ABSENT, None, {}, "x", [1], [None], [[]], [""], ["a"], [" "], ["a "], [" b"],
                       [["!"]], [["!", 1]], [["!", "#", "!"]], [{"a": "b"}], [["nope nope", "!"]],
                       ["nope !"], ["! nope"], [["!", "!"]]], "model.merges")
    yield from fields(file, ["model", "merges", len(merges)],
                      ["# nope", ["", "!"], ["!" * 5000, "!"]],
                      f"model.merges[{len(merges)}]")
    pairs = [m.split(" ") if isinstance(m, str) else m for m in merges]
    yield from golden("tokenizer.json: merges as pairs",
                      **{file: changed(file, ["model", "merges"], pairs)})
    yield from golden("tokenizer.json: merges as texts",
                      **{file: changed(file, ["model", "merges"], [" ".join(p) for p in pairs])})
    yield from golden("tokenizer.json: vocabulary the other way around", **{
        file: changed(file, ["model", "vocab"], dict(reversed(vocab.items())))})
    yield from golden("tokenizer.json: how somebody last called it", **{file: json.dumps({
        **original(file), "truncation": {"max_length": 1}, "padding": {"strategy": "x"}})})


def added_tokens():
    file = "tokenizer.json"
    n = len(original(file)["added_tokens"])
    first = original(file)["added_tokens"][0]
    yield from fields(file, ["added_tokens"], [1, "x", {}, [1], [[]], ["<s>"]])
    yield from fields(file, ["added_tokens", 0, "id"],
                      [ABSENT, None, "1", 1.5, -1, 1 << 24, 1 << 40], "added_tokens")
    yield from fields(file, ["added_tokens", 0, "content"],
                      [ABSENT, None, "", 1, [], "x" * 513], "added_tokens[0].content")
    for key in "single_word", "lstrip", "rstrip", "normalized", "special":
        yield from fields(file, ["added_tokens", 0, key], [ABSENT, None, *NO_FLAGS],
                          f"added_tokens[0].{key}")
    yield from fields(file, ["added_tokens", 0, "no_such_field"], [1])
    new = dict(first, content="<new>", id=2000)
    yield from fields(file, ["added_tokens", n], [
        first, dict(new, id=first["id"]), dict(new, id=1), dict(new, content="!"),
        dict(first, id=2000)], "added_tokens")
    yield from fields(file, ["added_tokens", n], [dict(new, id=2048), dict(new, id=1 << 23)],
                      "<new>", "is not in 0 .. 2047, the vocabulary of config.json")
    for name, tokens in {"backwards": original(file)["added_tokens"][::-1],
                         "one more": [*original(file)["added_tokens"], dict(new, id=2047)]}.items():
        yield from golden(f"{file}: added tokens: {name}",
                          **{file: changed(file, ["added_tokens"], tokens)})


# ---- the template: in tokenizer_config.json, in a file

MESSAGES = "{%- for m in messages -%}{{ m.content }}{%- endfor -%}"


def templates():
    file = "tokenizer_config.json"
    yield from fields(file, ["chat_template"],
                      [1, True, {}, [{"name": "default", "template": 1}],
                       [{"name": "default", "template": []}],
                       [{"name": "default", "template": "x"},
                        {"name": "tool_use", "template": {}}]])
    for value in ABSENT, None, [], [1, None], ["default"], [{"name": 1, "template": "x"}], [
            {"name": "other", "template": "x"}], [{"name": "default"}]:
        m, = fields(file, ["chat_template"], [value])
        yield m._replace(wanted=NoChat(("chat template",), True))
    yield Mutation(f"{file}: absent", {file: ABSENT}, NoChat(("chat template",), True))
    for key, value in (("bos_token", 1), ("eos_token", []), ("pad_token", {"content": 1}),
                       ("added_tokens_decoder", {"x": -1}), ("tokenizer_class", 1),
                       ("model_max_length", -1), ("add_prefix_space", True), ("unknown", [[]])):
        yield from golden(f"{file}: {key} = {json.dumps(value)}",
                          **{file: changed(file, [key], value)})
    own = original(file)["chat_template"]
    yield from golden("template: in both files, of which one counts",
                      **{TEMPLATE: own, file: changed(file, ["chat_template"], "{{")})
    yield from golden("template: of a list", **{file: changed(
        file, ["chat_template"], [{"name": "x", "template": "{{"},
                                  {"name": "default", "template": own}])})
    # Those that are wrong, wherever they are in the text.
    for text in ("{{", "{%", "{#", "}}{{ }}", "{{ 1 + }}", "{% if %}x{% endif %}", "{% if 1 %}x",
                 "{% for x in %}{% endfor %}", "{% for x in messages %}", "{% endfor %}",
                 "{% nope %}", "{% include 'x' %}", "{% import 'os' as os %}", "{% extends 'x' %}",
                 "{% block x %}{% endblock %}", "{{ 'x' | nope }}", "{{ nope() }}",
                 "{{ 1 is nope }}",
                 "{% set = 1 %}", "{% macro %}{% endmacro %}", "{{ 'x }}", "{{ x[ }}", "{{ 1 2 }}",
                 "{{ " + "(" * 100000, "{{ " + "[" * 100000 + "]" * 100000 + " }}",
                 "{{ " + "not " * 100000 + "1 }}", "{{ " + "-" * 100000 + "1 }}",
                 "{% if 1 %}" * 100000, "{{ 'x'" + ".a" * 100000 + "(" * 5000 + " }}",
                 "{{ '\\ud800' }}{{", "\x00{{"):
        yield Mutation(f"template: {text[:40]!r}", {TEMPLATE: MESSAGES + text},
                       NoChat(("chat template", "line 1"), True))
    # Those that are found wrong when a chat is rendered.
    for text, reason in {
            "{{ raise_exception('no ' + messages[0].role) }}": "no user",
            "{{ messages[99].content }}": "line 1", "{{ nope.nope }}": "line 1",
            "{{ 1 // 0 }}": "line 1", "{{ 1 % 0 }}": "line 1",
            "{{ 'x' + 1 }}": "line 1", "{{ 'x'.nope() }}": "line 1", "{{ {}['x'].y }}": "line 1",
            "{{ messages.append(1) }}": "line 1", "{{ range(10 ** 18) | list }}": "line 1",
            "{% for i in range(10 ** 9) %}{% endfor %}": "line 1",
            "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}":
                "line 1",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "line 1",
            "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}": "line 1",
            "{% for x in [messages] recursive %}{{ loop([x]) }}{% endfor %}": "line 1",
            "{{ 'x' * 10 ** 10 }}": "line 1", "{{ [1] * 10 ** 10 }}": "line 1",
            "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
            "{% endfor %}": "line 1",
            "{% set ns = namespace(l=[]) %}{% for i in range(10 ** 6) %}{% set ns.l = [ns.l] %}"
            "{% endfor %}{{ ns.l }}": "line 1",
            "{{ ('x' * 10 ** 6).replace('x', 'x' * 10 ** 6) }}": "line 1",
            "{{ 'x'.center(10 ** 12) }}": "line 1"}.items():
        yield Mutation(f"template: {text[:60]}", {TEMPLATE: text}, NoChat((reason,), False))


# ---- what makes an embedder


def embedder_files():
    for file in EMBEDDER:
        for m in damaged_files(file, json.dumps(original(file))):
            if (file, m.name) != (MODULES, f"{MODULES}: an array"):
                yield m
    yield Mutation(f"{POOLING}: absent", {POOLING: ABSENT}, Refused((POOLING, "cannot be opened")))
    yield Mutation("1_Pooling: a file", {POOLING: ABSENT, "1_Pooling": b""},
                   Refused((POOLING, "Not a directory")))
    yield from golden(f"{PROMPTS}: absent", **{PROMPTS: ABSENT})
    yield from golden(f"{MODULES}: absent beside {POOLING}", **{MODULES: ABSENT, POOLING: "{{{"})


def modules():
    file, type_of = MODULES, original(MODULES)[0]["type"].replace("Transformer", "{}").format
    entry = original(file)[1]
    for name, value, text in (
            ("no modules", [], "not 0 modules"), ("an object", {}, "is an object, not an array"),
            ("an array of it", [original(file)], "[0]: is an array"),
            ("null within", [None, None], "[0]: is null"),
            ("one", original(file)[:1], "not 1 modules"),
            ("four", [*original(file), entry], "not 4 modules"),
            ("10,000", [entry] * 10000, "not 10000 modules"),
            ("backwards", original(file)[::-1], "[0].type")):
        yield Mutation(f"{file}: {name}", {file: json.dumps(value)}, Refused((file, text)))
    for i in range(3):
        yield from fields(file, [i, "type"], [ABSENT, None, *NO_STRINGS], f"[{i}]", "type")
        yield from fields(file, [i, "type"], [
            "", "Pooling ", type_of("Dense"), type_of("pooling"), type_of(""), type_of("\x1b[31m"),
            "é" * 300, type_of("Pooling")[1:]], f"[{i}].type", "is not supported")
        yield from fields(file, [i, "path"], NO_STRINGS, f"[{i}].path")
        yield from fields(file, [i, "no_such_field"], [1], f"[{i}]", "no_such_field")
    yield from fields(file, [0, "path"], ["x", "..", "0_Transformer", "/"], "[0].path")
    yield from fields(file, [1, "path"], [
        ABSENT, None, "", ".", "..", "../1_Pooling", "/etc", "1_Pooling/", "a/b", "./1_Pooling",
        "x" * 81, "\x1b[31m", "é", "1_Pooling "], "[1].path")
    yield Mutation(f"{file}: a folder that is absent", {
        file: changed(file, [1, "path"], "2_Pooling")}, Refused(("2_Pooling/config.json",)))
    yield from golden(f"{file}: what is not read", **{file: json.dumps([
        {**m, "idx": "x", "name": [], "kwargs": {"x": 1}} for m in original(file)])})
    yield from golden(f"{file}: without normalization", **{file: json.dumps(original(file)[:2])})


def pooling():
    file, last = POOLING, "pooling_mode_lasttoken"
    yield from fields(file, ["word_embedding_dimension"],
                      [*NO_INTEGERS, 0, 255, 257, -256, 1 << 40])
    yield from fields(file, [last], [ABSENT, None, False, *NO_FLAGS], "pooling_mode")
    yield from fields(file, ["pooling_mode_mean_tokens"], [True, *NO_FLAGS], "pooling_mode")
    for mode in "cls_token", "max_tokens", "mean_sqrt_len_tokens", "nope", "", "\x1b[31m" * 50:
        yield from fields(file, ["pooling_mode_" + mode], [True], "exactly one pooling_mode")
        other = {**original(file), last: False, "pooling_mode_" + mode: True}
        yield Mutation(f"{file}: {mode!r} alone", {file: json.dumps(other)},
                       Refused((file, "pooling_mode", "is not supported")))
    yield from fields(file, ["pooling_mode"], ["mean", *NO_STRINGS], "pooling_mode")
    yield from fields(file, ["include_prompt"], NO_FLAGS)
    mean = {**original(file), last: False, "pooling_mode_mean_tokens": True}
    yield Mutation(f"{file}: a mean without the prompt",
                   {file: json.dumps({**mean, "include_prompt": False})},
                   Refused((file, "include_prompt")))
    for name, content in {"a mean": mean, "its name": {"pooling_mode": "lasttoken"},
                          "the flag alone": {last: True},
                          "what is not read": {**mean, "x": [], "pool": 1},
                          "nulls": {last: True, "word_embedding_dimension": None,
                                    "pooling_mode": None, "include_prompt": None}}.items():
        yield from golden(f"{file}: {name}", **{file: json.dumps(content)})


def prompts():
    file = PROMPTS
    yield from fields(file, ["prompts"], [1, "x", True, [], [{}]])
    yield from fields(file, ["prompts", "query"], [None, 1, True, [], {}], "prompts.query")
    yield from fields(file, ["default_prompt_name"], ["nope", "", 1, True, [], {}])
    yield Mutation(f"{file}: a default without prompts", {
        file: json.dumps({"default_prompt_name": "query"})},
        Refused((file, "default_prompt_name")))
    for name, content in {"nothing": {}, "nulls": {"prompts": None, "default_prompt_name": None},
                          "no prompts": {"prompts": {}},
                          "a default": {**original(file), "default_prompt_name": "query"},
                          "many": {"prompts": {str(i): "x" for i in range(10000)}},
                          "what is not read": {"similarity_fn_name": 1, "x": []}}.items():
        yield from golden(f"{file}: {name}", **{file: json.dumps(content)})


def embedder():
    whole = {file: json.dumps(content) for file, content in EMBEDDER.items()}
    for group in embedder_files, modules, pooling, prompts:
        for m in group():
            yield m._replace(files={**whole, **m.files})


# ---- mixtures of experts

# Each of which is the FFN of the dense model: then so is their mixture, whatever the router says.
EXPERTS = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 2,
           "num_experts_per_tok": 2, "moe_intermediate_size": 768, "norm_topk_prob": True,
           "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001,
           "output_router_logits": False}


def with_experts(path):
    """Writes the weights of the model with two experts in each layer."""
    raw = (MODEL / WEIGHTS).read_bytes()
    at = 8 + int.from_bytes(raw[:8], "little")
    header, data, draw = {}, [], random.Random(1)

    def add(name, tensor, content):
        begin = sum(map(len, data))
        data.append(content)
        header[name] = {**tensor, "data_offsets": [begin, begin + len(content)]}

    for name, tensor in json.loads(raw[8:at]).items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        content = raw[at + begin:at + end]
        if ".mlp." not in name:
            add(name, tensor, content)
            continue
        for i in range(2):
            add(name.replace(".mlp.", f".mlp.experts.{i}."), tensor, content)
        if "up_proj" in name:  # once in a layer: the router, of random signs
            add(name.replace("up_proj", "gate"), {**tensor, "shape": [2, 256]},
                struct.pack("<512H", *draw.choices((0x3d00, 0xbd00), k=512)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join((len(text).to_bytes(8, "little"), text, *data)))


def experts():
    file = "config.json"

    def of(name, wanted, weights=None, **change):
        content = {**original(file), **EXPERTS, **change}
        content = {k: v for k, v in content.items() if v is not ABSENT}
        return Mutation(f"{file}: experts: {name}", {
            file: json.dumps(content), **({WEIGHTS: weights} if weights else {})}, wanted)

    def wrong(key, values, *texts, **change):
        for value in values:
            shown = "absent" if value is ABSENT else json.dumps(value)
            yield of(f"{key} = {shown}{' ' + str(change) if change else ''}",
                     Refused((file, *(texts or (f"{key}: ",)))), **{**change, key: value})

    yield from wrong("num_experts", [ABSENT, None], "num_experts: is missing",
                     "num_local_experts")
    yield from wrong("num_experts", [*NO_INTEGERS, 0, -1, 1025, 1 << 31, 1 << 62])
    yield from wrong("num_local_experts", [*NO_INTEGERS, 0, -1, 1025, 1 << 62])
    yield from wrong("num_local_experts", [1, 3], "contradicts num_experts, 2")
    yield from wrong("num_experts_per_tok", [ABSENT, None, *NO_INTEGERS, 0, -1, 3, 1 << 40])
    yield from wrong("moe_intermediate_size",
                     [ABSENT, None, *NO_INTEGERS, 0, -768, (1 << 20) + 1, 1 << 62])
    yield from wrong("moe_intermediate_size", [1 << 15], num_experts=1024, num_experts_per_tok=1)
    yield from wrong("norm_topk_prob", NO_FLAGS)
    yield from wrong("decoder_sparse_step", [*NO_INTEGERS, 0, -1, 2, 1 << 40])
    yield from wrong("mlp_only_layers", [1, "x", True, {}, [0], [None], [[]], ["x"] * 9999])
    mixtral = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    yield from wrong("num_local_experts", [ABSENT, None], "num_experts: is missing",
                     "num_local_experts", **mixtral, num_experts=ABSENT)
    yield from wrong("num_local_experts", [*NO_INTEGERS, 0, 1025], **mixtral, num_experts=ABSENT)
    yield from wrong("num_experts_per_tok", [ABSENT, 0, 3], **mixtral)
    yield from wrong("intermediate_size", [ABSENT, None, 0, "768"], **mixtral)
    yield from wrong("model_type", ["qwen3", "mixtral"], "contradicts architectures")
    # The same fields where there are no experts.
    for key in "num_experts", "num_local_experts", "moe_intermediate_size":
        yield from fields(file, [key], [2, 0, "x", [], {}, True])
    yield from golden(f"{file}: what experts alone have", **{file: json.dumps({
        **original(file), "num_experts": None, "num_local_experts": None, "num_experts_per_tok": 8,
        "norm_topk_prob": "x", "decoder_sparse_step": 0, "mlp_only_layers": [0]})})
    # Contradictions with the weights.
    missing = Refused((WEIGHTS, "tensors are missing: model.layers.0.mlp."))
    yield of("but not in the weights", missing)
    yield Mutation(f"{WEIGHTS}: experts, but not in config.json", {WEIGHTS: with_experts}, missing)
    for key, value in ("num_experts", 3), ("num_experts", 1), ("moe_intermediate_size", 384):
        yield of(f"{key} = {value}, not as the weights have it",
                 Refused((WEIGHTS, "shape: is [", "but config.json implies")), with_experts,
                 **{key: value, "num_experts_per_tok": 1})
    for name, change in {
            "all": {}, "one for each token": {"num_experts_per_tok": 1},
            "not normalized": {"norm_topk_prob": False},
            "the newer spelling": {"num_experts": ABSENT, "num_local_experts": 2},
            "both spellings": {"num_local_experts": 2},
            "nulls": {"norm_topk_prob": None, "decoder_sparse_step": None, "mlp_only_layers": None,
                      "num_local_experts": None, "intermediate_size": None}}.items():
        yield of(name, Golden(), with_experts, **change)


# ---- the index


def index():
    one = next(iter(whole_index()["weight_map"]))

    def of(name, wanted, value, **files):
        return Mutation(f"{INDEX}: {name}", {**SHARD, INDEX: json.dumps(value), **files}, wanted)

    for name in ("../../etc/passwd", "/etc/passwd", "../a.safetensors", "", ".", "..", "a",
                 "./a.safetensors", "a.safetensors/", "x/a.safetensors", ".safetensors",
                 ".a.safetensors", "a.safetensors.py", "a.safetensors ",
                 "x" * 300 + ".safetensors", "\x1b[31m.safetensors/..", 1, None, [], {}, True):
        value = whole_index()
        value["weight_map"][one] = name
        yield of(f"names {json.dumps(name)[:40]}",
                 Refused((INDEX, "weight_map", "is not the name of a .safetensors file")), value)
    for content in ABSENT, None, [], "x", 1, {}:
        value = whole_index(weight_map=content)
        if content is ABSENT:
            del value["weight_map"]
        yield of("weight_map absent" if content is ABSENT else f"weight_map = {content!r}",
                 Refused((INDEX, "weight_map: must be an object")), value)
    value = whole_index()
    value["weight_map"][one] = "b.safetensors"
    yield of("names a file that is absent", Refused(("b.safetensors", "cannot be opened")), value)
    for name, (content, text) in NO_FILES.items():
        yield of(f"names {name}", Refused(("b.safetensors", text)), value,
                 **{"b.safetensors": content})
    yield of("names another file than the tensor's", Refused((INDEX, one, "has no such tensor")),
             value, **{"b.safetensors": (2).to_bytes(8, "little") + b"{}"})
    value = whole_index()
    value["weight_map"]["no.such.tensor"] = "a.safetensors"
    yield of("names a tensor that is absent", Refused((INDEX, "no.such.tensor")), value)
    value = whole_index()
    del value["weight_map"][one]
    yield of("lacks a tensor", Refused((INDEX, "1 of", "tensors are missing", one)), value)
    value = whole_index()
    value["weight_map"].update({f"t{i}": f"s{i}.safetensors" for i in range(600)})
    yield of("names 600 files", Refused((INDEX, "more than 512 files")), value,
             **{f"s{i}.safetensors": link("a.safetensors") for i in range(600)})
    yield of("right", Golden(), whole_index())
    yield of("right, with what nobody reads", Golden(), whole_index(metadata=[-1], x={}))
    yield from golden(f"{INDEX}: wrong beside {WEIGHTS}", **{INDEX: "{{{"})


def all_mutations():
    return [m for group in (damage, config, generation, tokenizer_parts, vocabulary, added_tokens,
                            templates, embedder, experts, index) for m in group()]


def build(folder, files):
    """The bundled model's folder with these files instead of its own."""
    for name in {*files, *(p.name for p in MODEL.iterdir())}:
        content, path = files.get(name, link(MODEL / name)), folder / name
        if content is ABSENT:
            continue
        path.parent.mkdir(exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else
                             content.encode(errors="surrogatepass"))
    return folder
