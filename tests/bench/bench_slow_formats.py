#!/usr/bin/env python3
"""What one user's stream takes a token beside another user's requests whose formats are slow.

    bench_slow_formats.py BUILD MODEL

BUILD is a build folder, MODEL a folder that the CPU backend serves, with a large vocabulary, as by
make_model --vocab 151936 --hidden 64 --layers 2 --tokenizer DIR. Root is needed, to be two users.
The other user has 32 requests in progress, always; times are milliseconds between deltas."""
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import harness  # noqa: E402
import roles  # noqa: E402

N, TOKENS = 32, 600
WORDS = " | ".join('[a-z]{%d} " "?' % n for n in range(1, 400))
FORMATS = {
    "none": None,
    "far repetitions": {"regex": ".{0,20000}x.{0,20000}"},
    "many alternatives": {"regex": "|".join("." * n + "a" for n in range(1, 300))},
    "fails later": {"grammar": f"root ::= (w)*\nw ::= {WORDS}"},
    "fails at once": {"grammar": 'root ::= x x x x x x x x\n'
                                 'x ::= [a-z]* | "(" x* ")" | [a-z ]{1,7}'},
}


def request(format_, number):
    """Each has a format of its own, which is compiled anew."""
    r = {"prompt_ids": {"ids": [5, number % 1000, 9]}, "max_tokens": 60,
         "sampling": {"temperature": 1.0, "seed": number}}
    if not format_:
        r["sampling"]["ignore_eos"] = True
    elif "regex" in format_:
        r["response_format"] = {"regex": f"{format_['regex']}|{number}"}
    else:
        r["response_format"] = {"grammar": f"{format_['grammar']}\nunused{number} ::= \"a\""}
    return r


def ask_on(w, format_, stop):
    for _ in range(N):
        w.send(w.new_id(), generate=request(format_, w.last_id))
    while not stop.is_set():
        reply = w.receive()
        if "done" in reply or "error" in reply:
            w.send(w.new_id(), generate=request(format_, w.last_id))


def gaps(w, tokens):
    id_, times = w.new_id(), []
    w.send(id_, generate={"prompt_ids": {"ids": [5, 6, 7]}, "max_tokens": tokens, "stream": True,
                          "sampling": {"temperature": 0, "ignore_eos": True}})
    while True:
        reply = w.receive()
        assert "error" not in reply, reply
        times.append(time.monotonic())
        if "done" in reply:
            return sorted(1e3 * (b - a) for a, b in zip(times, times[1:]))


def main(build, model):
    build = pathlib.Path(build).resolve()
    vars(harness.config).update(nvllmd=build / "daemon/nvllmd", nvllmctl=build / "client/nvllmctl",
                                light=False)
    print(f"{'format':20} {'alone':>8} {'beside':>8} {'p99':>8} {'most':>8}")
    for name, format_ in FORMATS.items():
        with harness.Daemon("scheduler.speculation=off", "scheduler.max_seqs=128",
                            model=pathlib.Path(model)) as d, \
                roles.connect(d, roles.USER) as w, roles.connect(d, roles.OTHER) as other:
            alone, stop = gaps(w, TOKENS), threading.Event()
            asking = threading.Thread(target=ask_on, args=(other, format_, stop))
            asking.start()
            time.sleep(2)
            beside = gaps(w, TOKENS)
            stop.set()
            asking.join()
        print(f"{name:20} {statistics.mean(alone):8.2f} {statistics.mean(beside):8.2f} "
              f"{beside[len(beside) * 99 // 100]:8.2f} {beside[-1]:8.2f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
