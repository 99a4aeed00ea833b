#!/usr/bin/env python3
"""What the steps of a run spent each device's time on, from the file that timeline.c wrote.

    timeline.py FILE [--last N] [--all] [--bar SHARE]

A step begins with the copy of its metadata. The last N (100) count, of the commonest sequence of
kernels among them; with --all, each of the run. Kernels overlap, for each is launched while the one
before it ends: a kernel's share is the time by which its end is later than all before. Idle is when
nothing ran, neither kernel nor copy. With --bar the exit status is 1 when more than this share of
the time was idle between the end of a step and the next one's begin.
"""
import argparse
import collections
import re
import sys

def read(path):
    """Of each device: (begin, end, short name) of all, in order of their begin."""
    records = collections.defaultdict(list)
    with open(path, encoding="utf-8") as f:
        for line in f:
            device, begin, end, name = line.rstrip("\n").split(" ", 3)
            records[int(device)].append((int(begin), int(end), short(name)))
    return {device: sorted(r) for device, r in sorted(records.items())}


def short(name):
    """A mangled name's last word with its constants: enough to know a kernel again."""
    if name.startswith("_Z"):
        words = re.findall(r"(\d+)([A-Za-z_]\w*)", name)
        for n, rest in words:
            if rest[:int(n)].endswith("_kernel"):
                return rest[:int(n)] + "".join(f" {c}" for c in re.findall(r"L[ib](\d+)E", name))
    return name[:72]


def steps_of(records):
    """Lists of records."""
    steps = []
    for r in records:
        if r[2] == "step_copy_kernel":
            steps.append([])
        if steps:
            steps[-1].append(r)
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--last", type=int, default=100)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--bar", type=float)
    args = parser.parse_args()
    idle = [look(args, device, records) for device, records in read(args.file).items()]
    sys.exit(1 if args.bar is not None and max(idle) > args.bar else 0)


def look(args, device, records):
    """Prints a device's shares; the share of the time that is idle between steps."""
    steps = steps_of(records)[:-1]  # the very last may be cut off
    steps = steps if args.all else steps[-args.last:]
    shape = collections.Counter(tuple(r[2] for r in s) for s in steps).most_common(1)
    pairs = [(a, b) for a, b in zip(steps, steps[1:])
             if args.all or tuple(r[2] for r in a) == shape[0][0] == tuple(r[2] for r in b)]
    if not pairs:
        sys.exit(f"{args.file}: no two steps of one kind behind one another")
    share, calls = collections.Counter(), collections.Counter()
    whole = inside = between = 0
    for step, following in pairs:
        frontier = step[0][0]
        for begin, end, name in step:
            inside += max(0, begin - frontier)
            share[name] += max(0, end - max(frontier, begin))
            calls[name] += 1
            frontier = max(frontier, end)
        between += max(0, following[0][0] - frontier)
        whole += following[0][0] - step[0][0]
    n = len(pairs)
    for name, ns in share.most_common():
        print(f"{ns / n / 1e3:9.1f} us {ns / whole:6.1%} {calls[name] / n:7.1f} x "
              f"{ns / calls[name] / 1e3:7.2f} us  {name}")
    print(f"{inside / n / 1e3:9.1f} us {inside / whole:6.1%} idle within a step")
    print(f"{between / n / 1e3:9.1f} us {between / whole:6.1%} idle between steps")
    print(f"timeline device={device} steps={n} step_us={whole / n / 1e3:.1f} "
          f"within={inside / whole:.1%} between={between / whole:.1%}"
          + (f" (bar {args.bar:.0%})" if args.bar else ""))
    return between / whole


if __name__ == "__main__":
    main()
