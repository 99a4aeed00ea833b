#!/usr/bin/env python3
"""Published chat templates, which cannot be in the tree: nvllmd render is equal to the byte in all
renderings, or fails with the same error.

published_templates.py NVLLMD FOLDER    FOLDER: *.jinja, and vectors.jsonl: template, rendered or error,
                                        and what the template is told
Exits with 77 where the folder is missing."""
import json
import pathlib
import subprocess
import sys

WANTED = 505
OWN = ("template", "rendered", "error")


def check(program, template, vectors):
    """How many of the template's vectors are right."""
    lines = "".join(json.dumps({**{k: v for k, v in d.items() if k not in OWN}, "bos_token": "<s>",
                                "eos_token": "</s>"}) + "\n" for d in vectors)
    done = subprocess.run([program, "render", "--chat-template", template, "--now", "2026-11-22T12:34:56",
                           "--jsonl", "-"], input=lines.encode(), capture_output=True, timeout=120)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(vectors):
        print(f"{template.name}: {done.stderr.decode().strip()}")
        return 0
    right = 0
    for d, answer in zip(vectors, answers):
        same = answer.get("text") == d["rendered"] if "rendered" in d else \
            d["error"] in answer.get("error", {}).get("message", "")
        right += same
        if not same:
            print(f"{template.name}: {answer}\n  is not {d.get('rendered', d.get('error'))!r}")
    return right


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if not (folder / "vectors.jsonl").exists():
        print(f"published templates: skipped, there are none in {folder}")
        sys.exit(77)
    groups = {}
    for line in (folder / "vectors.jsonl").read_text().splitlines():
        d = json.loads(line)
        groups.setdefault(d["template"], []).append(d)
    right = sum(check(program, folder / name, vectors) for name, vectors in groups.items())
    print(f"{right} of {WANTED} renderings of {len(groups)} templates are equal")
    sys.exit(right != WANTED)


main()
