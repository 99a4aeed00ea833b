#!/usr/bin/env python3
"""Published JSON Schemas with instances (MaskBench), which cannot be in the tree: nvllmd schema judges
the instances, token by token. Valid ones that are rejected must be accepted once their properties are
in the order that nvllm-protocol(7) promises.

published_schemas.py NVLLMD TOKENIZER_FOLDER FILE    FILE: maskbench.jsonl.xz
Exits with 77 where the file is missing."""
import json
import lzma
import pathlib
import subprocess
import sys

import property_order

PASSING = 1891  # schemas of which all instances are judged right
FOR_ORDER = 54  # valid instances that are rejected for the order of their properties


def judge(program, folder, pairs):
    """What is said of each schema and its instances."""
    lines = "".join(
        json.dumps({"schema": schema,
                    "texts": [json.dumps(v, ensure_ascii=False) for v in instances]}) + "\n"
        for schema, instances in pairs)
    done = subprocess.run([program, "schema", "--model", folder, "--jsonl"], input=lines.encode(),
                          capture_output=True, timeout=800)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(pairs):
        sys.exit(f"{len(answers)} answers: {done.stderr.decode().strip()}")
    return answers


def main():
    program, folder, file = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    if not file.exists():
        print(f"published schemas: skipped, there is no {file}")
        sys.exit(77)
    schemas = [json.loads(line) for line in lzma.open(file, "rt")]
    answers = judge(program, folder, [(s["schema"], [t["data"] for t in s["tests"]])
                                      for s in schemas])
    passing = refused = accepted = 0
    rejected = []
    for schema, answer in zip(schemas, answers):
        if not answer.get("supported"):
            refused += 1
            continue
        wrong = [t for t, a in zip(schema["tests"], answer["accepted"]) if t["valid"] != a]
        accepted += sum(not t["valid"] for t in wrong)
        rejected += [(schema["schema"], t["data"]) for t in wrong if t["valid"]]
        passing += not wrong
    ordered = judge(program, folder,
                    [(schema, property_order.Orders(schema).of(instance, [schema]))
                     for schema, instance in rejected])
    otherwise = [pair for pair, answer in zip(rejected, ordered) if not any(answer["accepted"])]
    for schema, instance in otherwise:
        print(f"{json.dumps(instance)[:200]} of {json.dumps(schema)[:300]}")
    for_order = len(rejected) - len(otherwise)
    print(f"{passing} of {len(schemas)} schemas pass, {refused} are refused; {accepted} invalid "
          f"instances accepted; valid ones: {for_order} rejected for order, {len(otherwise)} "
          "rejected otherwise")
    sys.exit(passing < PASSING or accepted > 0 or for_order > FOR_ORDER or len(otherwise) > 0)


main()
