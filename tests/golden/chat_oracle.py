#!/usr/bin/env python3
"""Random chats rendered by Jinja as transformers sets it up: the oracle of engine/text/chat.c.

chat_oracle.py --template FILE [--seed N] [--n N]   prints vectors as JSON lines
chat_oracle.py --check TEST_CHAT                    compares test_chat on the templates of the tree
Exits with 77 where jinja2 is missing."""
import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("jinja2 is not installed")
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "../../packaging/models/nvllm-tiny/tokenizer_config.json")
PIECES = ["hello", " ", "\n", "\n\n", "<think>", "</think>", "<tool_response>", "</tool_response>",
          "<|im_end|>", "<|im_start|>user\n", "你好", "é", "\U0001f600", "\"", "\\", "\t", "{", "}", "42",
          "<tool_call>", "\r", "\x00", "\x7f", "\u2028", "'", "a"]
KEYS = ["x", "y", "name", "", "é", "a b", "\"q\"", "\n", "deep", "type"]


def text(r, longest=8):
    return "".join(r.choice(PIECES) for _ in range(r.randrange(longest)))


def real(r):
    kind = r.randrange(5)
    if kind == 0:
        return math.ldexp(1.0, r.randrange(-1074, 1024)) * r.choice([1, -1])
    if kind == 1:
        return r.choice([0.0, -0.0, 0.1, 1e16, 1e15, 123456789012345680.0, 1e-4, 9.999e-5, 1e22, 5e-324,
                         1.7976931348623157e308, 2.5, 1e100, 100.0, 2.0**-44])
    if kind == 2:
        return round(r.uniform(-1000, 1000), r.randrange(4))
    if kind == 3:
        return r.uniform(-1, 1) * 10.0 ** r.randrange(-20, 20)
    while True:
        value = struct.unpack("<d", r.randbytes(8))[0]
        if math.isfinite(value):
            return value


def value(r, depth=3):
    kind = r.randrange(8 if depth else 6)
    if kind == 0:
        return r.choice([True, False, None])
    if kind == 1:
        return r.choice([0, -1, 7, 2**63 - 1, -2**63, r.randrange(-10**6, 10**6)])
    if kind in (2, 3):
        return real(r)
    if kind in (4, 5):
        return text(r)
    if kind == 6:
        return [value(r, depth - 1) for _ in range(r.randrange(4))]
    return {k: value(r, depth - 1) for k in r.sample(KEYS, r.randrange(4))}


def tool_call(r):
    call = {"name": r.choice(["add", "get_weather", "é", "a\"b"]),
            "arguments": r.choice([value(r), json.dumps({"x": 1}), {}, {"city": text(r)}])}
    if r.random() < 0.6:
        call = {"type": "function", "function": call}
        if r.random() < 0.5:
            call["id"] = "call_1"
    return call


def message(r, role, nulls):
    m = {"role": role, "content": text(r)}
    if nulls and r.random() < 0.1:
        m["content"] = None
    if role == "assistant":
        if r.random() < 0.3:
            m["reasoning_content"] = r.choice([None, text(r)])
        if r.random() < 0.4:
            m["tool_calls"] = [tool_call(r) for _ in range(r.randrange(4))]
    if role == "tool" and r.random() < 0.3:
        m["tool_call_id"] = "call_1"
    if role == "user" and r.random() < 0.2:
        m["content"] = "<tool_response>" + m["content"] + "</tool_response>" if m["content"] else ""
    return m


def chat(r, nulls):
    messages = []
    if r.random() < 0.5:
        messages.append(message(r, "system", False))
    for _ in range(r.randrange(7) + (not messages)):
        messages.append(message(r, r.choice(["user", "user", "assistant", "assistant", "tool", "tool", "system"]),
                                nulls))
    if messages[0]["content"] is None:
        messages[0]["content"] = ""
    c = {"messages": messages, "add_generation_prompt": r.random() < 0.5}
    if r.random() < 0.5:
        c["tools"] = [{"type": "function", "function": {"name": text(r), "parameters": value(r), "x": value(r)}}
                      for _ in range(r.randrange(3))]
    if r.random() < 0.6:
        c["enable_thinking"] = r.choice([True, False])
    return c


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def vectors(template, seed, n, nulls):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = tojson
    compiled = env.from_string(template)
    r = random.Random(seed)
    for _ in range(n):
        c = chat(r, nulls)
        yield {**c, "rendered": compiled.render(**{"tools": None, **c})}


def check(program):
    with open(TINY) as f:
        tiny = json.load(f)["chat_template"]
    with open(os.path.join(HERE, "qwen3-chat-template.jinja")) as f:
        qwen3 = f.read()
    for name, template in (("nvllm-tiny", tiny), ("qwen3", qwen3)):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            for v in vectors(template, 1, 1000, True):
                f.write(json.dumps(v) + "\n")
            f.flush()
            if subprocess.run([program, name, f.name]).returncode:
                sys.exit(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--template")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--n", type=int, default=60)
    p.add_argument("--nulls", action="store_true", help="content null too")
    p.add_argument("--check")
    a = p.parse_args()
    if a.check:
        return check(a.check)
    with open(a.template) as f:
        template = f.read()
    for v in vectors(template, a.seed, a.n, a.nulls):
        print(json.dumps(v, ensure_ascii=False))


main()
