#!/usr/bin/env python3
"""Compares two tables that tests/gpu/run printed: new speed over old, row by row.

    compare.py OLD NEW [--bar RATIO]

Where a row stands in a table more than once, its best run counts. The exit status is 1 when a row
is below the bar (0.97) or only in the old table.
"""

import argparse
import re
import sys
from pathlib import Path

RATES = ("tok_per_s", "gb_per_s", "tflop_per_s")  # more is better
TIMES = ("step_us", "us", "ms", "seconds")        # less is better
ROW = re.compile(r"(.*?)\s+(?:ok|FAILED|MISSED|-)\s+(\S.*)")
KEY = ("scene", "setting", "spread", "way", "hidden", "rows", "kv_len", "seqs", "heads", "chunk",
       "keys", "context", "model", "in", "out")


def speeds(path):
    """{row: (figure's name, speed)} of a table, a time as its inverse."""
    found = {}
    for line in Path(path).read_text().splitlines():
        m = ROW.fullmatch(line)
        if not m:
            continue
        fields = dict(re.findall(r"(\w+)=(\S+)", m[2]))
        figure = next((f for f in RATES + TIMES if f in fields), None)
        if not figure or float(fields[figure]) <= 0:
            continue
        row = " ".join([m[1], *(f"{k}={fields[k]}" for k in KEY if k in fields)])
        speed = float(fields[figure])
        speed = 1 / speed if figure in TIMES else speed
        if row not in found or found[row][1] < speed:
            found[row] = figure, speed
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--bar", type=float, default=0.97)
    args = parser.parse_args()
    old, new = speeds(args.old), speeds(args.new)
    missed = 0
    for row, (figure, before) in old.items():
        ratio = new[row][1] / before if row in new else 0
        missed += ratio < args.bar
        verdict = "ok" if ratio >= args.bar else "MISSED" if row in new else "GONE"
        print(f"{row:70} {verdict:6} {ratio:.3f} ({figure})")
    print(f"{len(old)} rows, {missed} below {args.bar}")
    return bool(missed or not old)


if __name__ == "__main__":
    sys.exit(main())
