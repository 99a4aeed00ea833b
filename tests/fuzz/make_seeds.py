#!/usr/bin/env python3
"""make_seeds.py - writes the seeds of the fuzz targets, small and each of another kind.

usage: tests/fuzz/make_seeds.py

They lie in the tree, so that a fuzzer needs no Python; this is how they were made. Beside them are
seeds that fuzzers have found, which it leaves as they are."""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "e2e"))
import wire  # noqa: E402


def folder(name):
    path = HERE / "seeds" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(path, **files):
    for name, data in files.items():
        (path / name).write_bytes(data if isinstance(data, bytes) else json.dumps(
            data, separators=(",", ":"), ensure_ascii=False).encode())


def requests():
    sampling = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7,
                "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
                "logit_bias": [{"id": 5, "bias": 1.0}, {"id": 6, "bias": -100.0}],
                "stop_token_ids": [3, 4], "ignore_eos": True, "min_tokens": 1, "logprobs": 5}
    chat = {"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 17 + 25?"},
        {"role": "assistant", "content": "", "reasoning_content": "Easy.",
         "tool_calls": [{"id": "c1", "name": "add", "arguments": '{"a": 17, "b": 25}'}]},
        {"role": "tool", "content": "42", "name": "add", "tool_call_id": "c1"}],
        "documents": ['{"title": "Sums"}'], "chat_template_kwargs": '{"mood": [1, "x"]}',
        "tools": ['{"type": "function", "function": {"name": "add", "parameters": {}}}'],
        "enable_thinking": False, "add_generation_prompt": True,
        "tool_choice": "TOOL_CHOICE_REQUIRED", "called_tool": b"add", "parallel_tool_calls": False}
    frame = wire.frame
    write(folder("request"),
          prompt=frame(1, generate={"prompt": "Hello<|im_end|> wörld\0\n", "max_tokens": 5,
                                    "n": 2, "stop": [b"x", "€"], "stream": True,
                                    "sampling": sampling, "priority": "PRIORITY_HIGH",
                                    "cache_salt": b"s", "deadline_ms": 1000}),
          ids=frame(2, generate={"prompt_ids": {"ids": [1, 2, 2047]}}),
          chat=frame(3, generate={"chat": chat}) + frame(4, render={"chat": chat}),
          embed=frame(4, embed={"prompt": "Hello<|im_end|>", "prompt_name": "query",
                                "dimensions": 3, "cache_salt": b"s", "deadline_ms": 1000})
          + frame(5, embed={"prompt_ids": {"ids": [1, 2]}, "priority": "PRIORITY_LOW"}),
          small=frame(5, tokenize={"text": "a\u0301b <|im_start|>", "special": True})
          + frame(6, detokenize={"ids": [1, 2, 3], "skip_special": True})
          + frame(7, cancel={"target": 1}) + frame(8, get_status={}),
          wrong=frame(9, generate={"prompt": b"\xff\xfe", "n": 100})
          + frame(10, generate={"prompt": "x", "sampling": {"top_p": 7.0}})
          + frame(11, generate={"prompt": "x", "sampling": {"stop_token_ids": [5000]}})
          + frame(12, detokenize={"ids": [-1]}),
          empty=b"\0\0\0",
          too_long=wire.varint(1 << 20) + b"xyz",
          four_gigabytes=wire.varint((1 << 32) - 1),
          padded=b"\x80\x80\x00",
          half=frame(1, generate={"prompt": "Hello"})[:-2])


def safetensors():
    def header(tensors, data):
        raw = json.dumps(tensors, separators=(",", ":")).encode()
        return struct.pack("<IQ", data, len(raw)) + raw

    def tensor(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    good = {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2], 0, 8),
            "b": tensor("BF16", [2, 3], 8, 20), "c": tensor("U8", [], 20, 21),
            "d": tensor("F16", [0, 5], 8, 8), "e": tensor("U8", [1, 1, 1, 1, 3], 21, 24)}
    write(folder("safetensors"), good=header(good, 24), none=header({}, 0),
          behind_the_end=header({**good, "f": tensor("I64", [1], 24, 32)}, 24),
          overlap=header({"a": tensor("F32", [2], 0, 8), "b": tensor("F32", [2], 4, 12)}, 12),
          huge=header({"a": tensor("F32", [1 << 40, 1 << 40], 0, 8)}, 8),
          long=struct.pack("<IQ", 0, 1 << 60) + b"{}")


def configs():
    model = HERE.parents[1] / "packaging" / "models" / "nvllm-tiny"
    qwen3 = json.loads((model / "config.json").read_text())
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
             "num_hidden_layers": 2, "num_attention_heads": 14, "num_key_value_heads": 2,
             "intermediate_size": 4864, "vocab_size": 1000, "max_position_embeddings": 32768,
             "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_theta": 1000000.0,
             "eos_token_id": [1, 2], "hidden_act": "silu", "torch_dtype": "bfloat16"}
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0,
                  "repetition_penalty": 1.05, "eos_token_id": [3, 4]}

    def both(config, second):
        return json.dumps(config).encode() + b"\0" + json.dumps(second).encode()

    write(folder("config"), qwen3=qwen3, qwen2=qwen2, both=both(qwen2, generation),
          foreign_end=both(qwen2, {"eos_token_id": 5000}),
          scaled={**qwen2, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
          new_spelling={**{k: v for k, v in qwen3.items() if k != "rope_theta"},
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
          llama={**qwen2, "architectures": ["LlamaForCausalLM"]}, empty={},
          fp8={**qwen2, "quantization_config": {
              "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
              "weight_block_size": [128, 128]}},
          gptq={**qwen2, "quantization_config": {
              "quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False,
              "sym": False, "checkpoint_format": "gptq_v2"}},
          packed={**qwen2, "quantization_config": {
              "quant_method": "compressed-tensors", "format": "pack-quantized",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                  "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                  "symmetric": False}}}}})


def tokenizers():
    model = HERE.parents[1] / "packaging" / "models" / "nvllm-tiny"
    whole = json.loads((model / "tokenizer.json").read_text())
    byte_tokens = [t for t in sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get)
                   if len(t) == 1]
    words = ["He", "ll", "llo", "Hello", "Ġt", "Ġa"]
    merges = ["H e", "l l", "ll o", "He llo", "Ġ t", "Ġ a"]
    if isinstance(whole["model"]["merges"][0], list):
        merges = [m.split(" ") for m in merges]
    vocab = {t: i for i, t in enumerate(byte_tokens + words)}
    added = [{**t, "id": len(vocab) + i} for i, t in enumerate(whole["added_tokens"][:4])]
    small = {**whole, "model": {**whole["model"], "vocab": vocab, "merges": merges},
             "added_tokens": added}
    twice = {**vocab, "Hello": vocab["e"]}
    twice = {**{t: i for t, i in twice.items() if t != "e"}, "e": vocab["e"]}
    write(folder("tokenizer"), small=small,
          no_merges={**small, "model": {**small["model"], "merges": []}, "added_tokens": []},
          one_id_twice={**small, "model": {**small["model"], "vocab": twice}},
          unigram={**small, "model": {"type": "Unigram", "vocab": []}}, empty={})


def answers():
    def frames(call, *events):
        out = bytes([call])
        for id_, event in events:
            raw = wire.encode("ServerFrame", {"id": id_, **event} if id_ else event)
            out += wire.varint(len(raw)) + raw
        return out

    def delta(**fields):
        return 1, {"delta": fields}

    logprob = {"logprob": -0.5, "top_ids": [1, 2], "top_logprobs": [-0.5, -1.0]}
    info = {"request": 9, "uid": 1000, "state": "REQUEST_WAITING", "place": 1}
    done = 1, {"done": {"usage": {"prompt_tokens": 3}, "timing": {"ttft_ms": 1.5}}}
    error = {"error": {"code": "ERROR_BUSY", "message": "later", "retryable": True,
                       "limit": "limits.requests_per_uid", "limit_value": 4}}
    write(folder("client"),
          stream=frames(0, delta(choice=0, text=b"He", token_ids=[1, 300]),
                        delta(choice=1, text=b"", token_ids=[70000], finish_reason="FINISH_STOP"),
                        delta(choice=2, text=b"x", token_ids=[5]), done),
          logprobs=frames(0, delta(token_ids=[5, 6], logprobs=[logprob, logprob]), (1, error)),
          short=frames(0, (2, {"tokens": {"ids": [1], "tokens": [b"x"]}}),
                       (3, {"text": {"text": b"a\0b"}}), (4, error),
                       (5, {"status": {"state": "STATE_READY", "model": "m", "device": "d"}})),
          requests=frames(1, delta(text=b"kept", token_ids=[7]),
                          (8, {"request_list": {"requests": [info, {}], "total": 2}})),
          blocks=frames(2, (8, {"block_report": {
              "blocks": {"total": 4, "used": 2}, "uids": [{"uid": 1, "used": 2}],
              "requests": [{"request": 9, "used": 2}], "map": b"ufcp"}})),
          cache=frames(3, (8, {"cache_report": {
              "prefixes": [{"tokens": 16, "head_ids": [1, 2, 3], "pinned": True}], "total": 1}})),
          why=frames(4, (8, {"explanation": {"info": info, "reason": "WAIT_BLOCKS",
                                             "other_ids": [1, 2], "text": "because"}})),
          reload=frames(5, (8, {"reloaded": {"changed": ["a.b"], "needs_restart": ["c.d"]}})),
          change=frames(6, (8, {"changed": {"state": "STATE_READY", "log_level": "info"}})),
          trace=frames(0, (6, {"trace_chunk": {"records": [
              {"kind": "TRACE_ENDED", "at_us": 1 << 40, "request": 9, "since": "TRACE_QUEUED"},
              {"kind": "TRACE_STEP", "step": 3, "decode_tokens": 2}, {}]}}),
                       (6, {"traced": {"took_us": 5, "dropped": 1}})),
          embedding=frames(0, (7, {"embedding": {"values": [0.5, -1.5], "usage": {
              "prompt_tokens": 3}, "timing": {"total_ms": 1.5}}})),
          lost=frames(0, (0, error)), empty=b"\0", half=frames(0, done)[:-3])


def chats():
    """A template, a NUL, a conversation: what it says has a private character in it."""
    mark = "\uf8ff<|im_end|>"
    talk = {"messages": [
        {"role": "system", "content": f"Be {mark} brief."},
        {"role": "user", "content": f"  {mark}What is 17 + 25?\n"},
        {"role": "assistant", "content": None, "reasoning_content": f"<think>{mark}</think>x",
         "tool_calls": [{"id": "c1", "type": "function", "function": {
             "name": f"add{mark}", "arguments": {"a": 17, mark: [1.5, None, True, mark]}}}]},
        {"role": "tool", "tool_call_id": "c1", "content": f"{mark},{mark}"}],
        "tools": [{"type": "function", "function": {"name": f"add{mark}", "parameters": {
            "type": "object", "properties": {"a": {"type": "number"}}}}}],
        "w": [mark, "b", "a"], "n": 3, "s": mark, "bos_token": "<s>"}
    templates = {
        "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') | "
                  "trim + '<|im_end|>\\n' }}{% for c in m.tool_calls or [] %}{{ c.function | tojson "
                  "}}{% endfor %}{% endfor %}{{ bos_token }}",
        "filters": "{{ w | join('-') | upper }}{{ s | replace('i', s) | title }}{{ w | sort | "
                   "first | center(20) }}{{ (s | indent(2, true)) }}{{ w | map('length') | sum }}"
                   "{{ '%s %5d' % (s, n) }}{{ '{:>9}'.format(s) }}{{ tools | tojson(indent=1) }}",
        "methods": "{{ s.split('<')[-1].strip('>') ~ s[::-1] ~ s[1:] }}{{ s.upper().partition('I') }}"
                   "{{ s.rsplit('_', 1) | list }}{{ s.zfill(30) }}{{ s.splitlines() }}"
                   "{% for k, v in tools[0].items() %}{{ k }}{{ v }}{% endfor %}{{ s | list }}",
        "macros": "{% macro m(a, b=a) -%} [{{ a }}{{ b }}{{ varargs }}{{ caller() if caller }}] "
                  "{%- endmacro %}{{ m(s) }}{% call m(n, s, 1) %}x{{ s }}{% endcall %}"
                  "{% set x %}{{ s }}y{% endset %}{% filter upper %}{{ x }}{% endfilter %}",
        "loops": "{% set ns = namespace(t='') %}{% for x in w if x %}{% set ns.t = ns.t + x %}"
                 "{% if loop.index > 2 %}{% break %}{% endif %}{{ loop.cycle('a', s) }}{% else %}e"
                 "{% endfor %}{{ ns.t }}{% for i in range(n) recursive %}{{ i }}{% endfor %}"
                 "{% generation %}{{ ns.t * n }}{% endgeneration %}{%- raw -%} {{ {%- endraw %}",
        "errors": "{% if n == 3 %}{{ raise_exception('no ' ~ s) }}{% endif %}",
        "wrong": "{% for x in w %}{{ x | nofilter }}",
        "types": "{{ n is number and s is string and w is sequence }}{{ [1, (2,), {'a': none}] }}"
                 "{{ 7 // 2 ** -1 % 3 }}{{ 'é' ~ strftime_now('%Y') }}{{ s | safe + '<' }}",
    }
    write(folder("chat"), **{name: template.encode() + b"\0" + json.dumps(
        talk, ensure_ascii=False).encode() for name, template in templates.items()})


def chat_answers():
    call = '<tool_call>\n{"name": "f", "arguments": {"x": [1.50, "}\\""], "y": {}} }\n</tool_call>\n'
    texts = {
        "reasons": (1, 3, "<think>\nwhy\n\n</think>\n\nYes, <think>.\n"),
        "begun": (7, 0, f"why\n</think>\n\n{call}{call}"),
        "calls": (2, 15, f"a\n{call}b {call}"),
        "none": (3, 1, '<think>a<tool_call>{"name": 1}</tool_call><tool_call>f()</tool_call> </thin'),
        "open": (2, 7, '<tool_call>{"name": "f", "arguments": {"x": "<tool_call>{"}'),
        "bare": (2, 2, '<tool_call>{"arguments": {}, "name": "f"}'),
    }
    write(folder("answer"), **{name: bytes([kind, cut]) + text.encode()
                               for name, (kind, cut, text) in texts.items()})


def http():
    heads = {
        "get": "GET /v1/models?x HTTP/1.1\r\nHost: localhost:8000\r\nAccept: */*\r\n",
        "length": "POST /v1/completions HTTP/1.1\r\nhost: x\r\nContent-Length: 2\r\n"
                  "Authorization: Bearer k\r\nConnection: keep-alive, close\r\n",
        "old": "GET / HTTP/1.0\r\nConnection: keep-alive\r\n",
        "chunks": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                  "Expect: 100-continue\r\nOrigin: null\r\n",
        "both": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
    }
    bodies = {"length": "{}", "chunks": "3;a=b\r\nabc\r\n1F\r\n" + "x" * 31 + "\r\n0\r\nT: v\r\n\r\nGET"}
    write(folder("http"), **{name: (head + "\r\n" + bodies.get(name, "")).encode()
                             for name, head in heads.items()})


def sessions():
    """Messages of proto/session_file.proto."""
    def number(field, value):
        return wire.varint(field << 3) + wire.varint(value)

    def data(field, value):
        return wire.varint(field << 3 | wire.BYTES) + wire.varint(len(value)) + value

    def numbers(field, *values):
        return data(field, b"".join(map(wire.varint, values)))

    def piece(tokens, sampled):
        said = number(2, 1) if sampled else number(3, 30) + b"\x21" + b"l" * 8 + b"\x29" + b"h" * 8
        return data(10, number(1, tokens) + said)

    def whole(name, chat, messages, tokens, ids, *pieces):
        model = struct.pack(">QQ", 2, 1)  # of fuzz_session.c
        return (data(1, model) + data(2, name) + number(3, 1000) + number(4, 5) + number(5, 6)
                + data(6, wire.encode("Chat", chat)) + numbers(7, *messages) + numbers(8, *tokens)
                + (numbers(9, *ids) if ids else b"") + b"".join(pieces))

    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ä"},
                         {"role": "assistant", "content": "b", "reasoning_content": "c",
                          "tool_calls": [{"id": "i", "name": "f", "arguments": "{}"}]},
                         {"role": "tool", "content": "x", "name": "f", "tool_call_id": "i"},
                         {"role": "assistant", "content": "y"}],
            "tools": ["{}"], "documents": ["{}"], "chat_template_kwargs": "{}", "enable_thinking": False}
    write(folder("session"),
          empty=whole(b"a", {"messages": []}, [0], [0], []),
          turns=whole(b"A-b_c.9", chat, [1, 3, 5], [0, 5, 9], [5, 6, 7, 8, 9, 1, 2, 3, 2047],
                      piece(3, False), piece(2, True), piece(3, False), piece(1, True)),
          cut=whole(b"a", chat, [1, 3, 5], [0, 2, 5], [5, 6, 7, 8, 9], piece(4, False), piece(1, True)),
          large_id=whole(b"a", chat, [1, 5], [0, 1], [2048], piece(1, True)),
          wrong_sums=whole(b"a", chat, [1, 4], [0, 1], [5], piece(2, True)))


if __name__ == "__main__":
    requests()
    answers()
    safetensors()
    configs()
    tokenizers()
    chats()
    chat_answers()
    http()
    sessions()
