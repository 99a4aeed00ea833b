#!/usr/bin/env python3
"""Published JSON Schemas with instances (MaskBench), which cannot be in the tree: nvllmd schema judges
the instances, token by token.

published_schemas.py NVLLMD TOKENIZER_FOLDER FILE    FILE: maskbench.jsonl.xz
Exits with 77 where the file is missing."""
import json
import lzma
import pathlib
import subprocess
import sys

PASSING = 1891  # schemas of which all instances are judged right
# Valid instances whose properties are in another order than in the schema: that is not allowed.
ORDER = 53


def main():
    program, folder, file = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    if not file.exists():
        print(f"published schemas: skipped, there is no {file}")
        sys.exit(77)
    schemas = [json.loads(line) for line in lzma.open(file, "rt")]
    lines = "".join(
        json.dumps({"schema": s["schema"],
                    "texts": [json.dumps(t["data"], ensure_ascii=False) for t in s["tests"]]}) + "\n"
        for s in schemas)
    done = subprocess.run([program, "schema", "--model", folder, "--jsonl"], input=lines.encode(),
                          capture_output=True, timeout=1800)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(schemas):
        print(f"{len(answers)} answers: {done.stderr.decode().strip()}")
        sys.exit(1)
    passing = refused = accepted = rejected = 0
    for schema, answer in zip(schemas, answers):
        if not answer.get("supported"):
            refused += 1
            continue
        wrong = [(t["valid"], a) for t, a in zip(schema["tests"], answer["accepted"])
                 if t["valid"] != a]
        accepted += sum(a for _, a in wrong)
        rejected += sum(valid for valid, _ in wrong)
        passing += not wrong
    print(f"{passing} of {len(schemas)} schemas pass, {refused} are refused; {accepted} invalid "
          f"instances accepted, {rejected} valid ones rejected")
    sys.exit(passing < PASSING or accepted > 0 or rejected > ORDER)


main()
