#!/usr/bin/env python3
"""Random answers of the bundled model under published JSON Schemas (MaskBench), which cannot be in the
tree: each that ends by itself is parsed by Python's json and is valid by jsonschema.

schema_answers.py [--schemas N] [--answers N] [--seed S] NVLLMD NVLLMCTL MODEL FILE
    FILE: maskbench.jsonl.xz. So many answers for each of so many of its schemas.
Exits with 77 where the file or jsonschema is missing."""
import argparse
import collections
import json
import lzma
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError:
    jsonschema = None


def biases(model):
    """What makes more texts end before max_tokens: the model itself seldom closes a string."""
    vocabulary = json.loads((pathlib.Path(model) / "tokenizer.json").read_text())["model"]["vocab"]
    return {str(vocabulary[t]): bias for t, bias in (('"', 12.0), ("}", 12.0), ("]", 8.0))}


def supported(nvllmd, model, schemas):
    lines = "".join(json.dumps({"schema": s, "texts": []}) + "\n" for s in schemas)
    done = subprocess.run([nvllmd, "schema", "--model", model, "--jsonl"], input=lines.encode(),
                          capture_output=True, check=True)
    return [s for s, a in zip(schemas, map(json.loads, done.stdout.splitlines()), strict=True)
            if a.get("supported")]


def generate(nvllmd, nvllmctl, model, requests):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        socket, source, target = folder / "socket", folder / "in.jsonl", folder / "out.jsonl"
        source.write_text("".join(json.dumps(r) + "\n" for r in requests))
        daemon = subprocess.Popen([nvllmd, "--model", model, "--socket", socket,
                                   "--set", "cache.kv_memory=256M"], stderr=subprocess.DEVNULL)
        try:
            subprocess.run([nvllmctl, "--socket", socket, "status", "--wait"], check=True,
                           capture_output=True)
            subprocess.run([nvllmctl, "--socket", socket, "batch", source, "--output", target],
                           stderr=subprocess.DEVNULL, check=False)
        finally:
            daemon.terminate()
            daemon.wait()
        return [json.loads(line) for line in target.read_text().splitlines()]


def judge(schema, answer):
    if "error" in answer:
        return "error: " + answer["error"]["message"]
    if answer["finish_reason"] != "stop":
        return answer["finish_reason"]
    try:
        value = json.loads(answer["text"])
    except ValueError:
        return "not JSON"
    check = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    return "valid" if check.is_valid(value) else "invalid"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--schemas", type=int, default=200)
    p.add_argument("--answers", type=int, default=50)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("nvllmd")
    p.add_argument("nvllmctl")
    p.add_argument("model")
    p.add_argument("file", type=pathlib.Path)
    a = p.parse_args()
    if not a.file.exists() or jsonschema is None:
        print(f"skipped: there is no {a.file if jsonschema else 'jsonschema'}")
        sys.exit(77)
    every = [json.loads(line)["schema"] for line in lzma.open(a.file, "rt")]
    schemas = supported(a.nvllmd, a.model, every)
    random.Random(a.seed).shuffle(schemas)
    schemas = schemas[:a.schemas]
    bias = biases(a.model)
    requests = [{"prompt": "The answer is ", "temperature": 1.5, "top_k": 0, "top_p": 1.0,
                 "seed": a.seed * 1000000 + i, "max_tokens": 300, "logit_bias": bias,
                 "response_format": {"type": "json_schema", "json_schema": {"schema": json.dumps(s)}}}
                for i in range(a.answers) for s in schemas]
    ends = collections.Counter()
    for i, answer in enumerate(generate(a.nvllmd, a.nvllmctl, a.model, requests)):
        schema = schemas[i % len(schemas)]
        end = judge(schema, answer)
        ends[end] += 1
        if end in ("not JSON", "invalid"):
            print(f"{end}: {answer['text']!r} of {json.dumps(schema)[:300]}")
    print(f"{len(requests)} answers: " + ", ".join(f"{n} {end}" for end, n in ends.most_common()))
    sys.exit(ends["valid"] + ends["length"] != len(requests))


main()
