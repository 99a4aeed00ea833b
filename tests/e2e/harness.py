"""What the end-to-end tests share: a daemon of their own on a temporary socket, nvllmctl, and the
main() that runs the tests of one file.

Usage:
  python3 harness.py test_X --nvllmd PATH --nvllmctl PATH [--light] [unittest arguments]

--light is for builds with sanitizers: fewer rounds, shorter prompts, no limits on memory."""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import wire  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "packaging" / "models" / "nvllm-tiny"
GOLDEN = ROOT / "tests" / "golden"
SKIPPED = 77  # what ctest is told to take for a skipped test

# Room for one sequence of the model's whole length; memory that is taken costs time at each start.
KV_MEMORY = "cache.kv_memory=512M"
SMALL = "cache.kv_memory=64M"

GOOD = {"prompt": "Hello", "max_tokens": 2, "sampling": {"temperature": 0}}
LONG = {"prompt": "Once upon a time", "max_tokens": 2000, "stream": True,
        "sampling": {"temperature": 1.0, "seed": 1, "ignore_eos": True}}
# Runs for seconds more when a test looks at it; the pool needs KV_MEMORY.
RUNNING = {**LONG, "max_tokens": 30000}

config = argparse.Namespace()


def generated(name):
    """A file that the build makes from the programs' tables of options."""
    return pathlib.Path(config.nvllmd).resolve().parents[1] / "packaging" / name


def scaled(full, light):
    return light if config.light else full


class CommandFailed(AssertionError):
    pass


def run_command(args, stdin=b"", timeout=None, check=True):
    """Runs a program; bytes or text as input; with check, a failure shows what it said."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    done = subprocess.run([str(a) for a in args], input=stdin, capture_output=True,
                          timeout=timeout or scaled(120, 500))
    if check and done.returncode != 0:
        raise CommandFailed(f"{args[0]} {args[1:]} gave {done.returncode}: "
                            f"{done.stderr.decode(errors='replace')[-2000:]}")
    return done


def start_ctl(socket_path, *args, **options):
    """nvllmctl left running."""
    return subprocess.Popen([config.nvllmctl, "--socket", str(socket_path), *map(str, args)],
                            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                               "stderr": subprocess.PIPE, **options})


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not so after {seconds} s")
        time.sleep(0.02)


@contextlib.contextmanager
def beside(step, n=1):
    """While the block runs, n threads call step() again and again; a failure in one of them is
    raised at the end of the block."""
    stop = threading.Event()

    def run():
        while not stop.is_set():
            step()

    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        runs = [pool.submit(run) for _ in range(n)]
        try:
            yield
        finally:
            stop.set()
    for r in runs:
        r.result()


def at_once(call, items):
    """call(item) of all of them at the same time, each in a thread; a failure is raised at the
    end."""
    with concurrent.futures.ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(call, items))


class Daemon:
    """nvllmd in a folder of its own. As a context manager it must end with status 0 on SIGTERM."""

    def __init__(self, *options, model=MODEL, wait=True, env=None, folder=None, backend="cpu",
                 args=(), log=None, cwd=None, before=()):
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="nvllm-e2e-")
        self.folder = pathlib.Path(folder or self._own.name)
        self.socket = self.folder / "nvllmd.sock"
        self.log_path = self.folder / "nvllmd.log"
        args = [*before, config.nvllmd, "--model", model, "--socket", self.socket, "--backend", backend,
                *args]
        if not any(o.startswith("cache.kv_memory=") for o in options):
            args += ["--set", KV_MEMORY]
        for option in options:
            args += ["--set", option]
        self.started = time.monotonic()
        with open(self.log_path, "ab") as own_log:
            self.process = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL,
                                            stdout=own_log, stderr=log or own_log, cwd=cwd,
                                            env={**os.environ, **(env or {})})
        self.ready_seconds = None
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"nvllmd ended with {self.process.returncode}:\n{self.log()}")
            try:
                with self.connect() as w:
                    return w.welcome["state"] == "STATE_READY"
            except (OSError, wire.Closed):
                return False

        wait_for(ready, scaled(30, 120), "ready")
        self.ready_seconds = time.monotonic() - self.started

    def connect(self, **options):
        return wire.Wire(self.socket, timeout=scaled(120, 500), **options)

    def ctl(self, *args, **options):
        return run_command([config.nvllmctl, "--socket", self.socket, *args], **options)

    def ctl_start(self, *args, **options):
        return start_ctl(self.socket, *args, **options)

    def generate(self, text, *args):
        return json.loads(self.ctl("generate", "--json", *args, "--", text).stdout)

    def status(self):
        return json.loads(self.ctl("status", "--json").stdout)

    def batch(self, lines, *args, check=True):
        """(output objects, summary, process) of nvllmctl batch over a list of objects."""
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        source.write_text("".join(json.dumps(x) + "\n" for x in lines))
        done = self.ctl("batch", "--input", source, "--output", target, "--json", *args,
                        check=check)
        return parse_jsonl(target.read_bytes()), parse_jsonl(done.stderr)[-1], done

    def wait_idle(self):
        """The status once nothing runs, waits or holds a block."""
        with self.connect() as w:
            def idle():
                s = w.status()
                r = s.get("requests", {})
                busy = r.get("running", 0) or r.get("waiting", 0) or s["blocks"].get("used", 0)
                return None if busy else s

            return wait_for(idle, scaled(20, 120), "idle, and no block used")

    def memory_kib(self, kind="VmRSS"):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(kind + ":"):
                return int(line.split()[1])
        raise AssertionError("no " + kind)

    def rss_kib(self):
        return self.memory_kib("VmRSS")

    def thread_stats(self, field):
        """A field of /proc/PID/task/TID/stat, numbered from 1 as in proc(5), of each thread."""
        found = []
        for stat in pathlib.Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # the thread has ended
                found.append(stat.read_text().rsplit(")", 1)[1].split()[field - 3])
        return found

    def wait_filled(self):
        """Until the KV pages, which the CPU backend makes while it has nothing to compute, are all
        there: then memory grows for other reasons alone. On a busy machine the thread that makes
        them may have to wait for a core, but does not sleep then."""
        same, last = 0, -1

        def settled():
            nonlocal same, last
            now, asleep = self.rss_kib(), set(self.thread_stats(3)) == {"S"}
            same, last = same + 1 if now == last and asleep else 0, now
            time.sleep(0.05)
            return same == 10

        wait_for(settled, 300, "the KV pages are made")

    def times_slept(self):
        """How often the loop's thread has waited for something, and so been woken."""
        status = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M)[1])

    def wakes(self):
        """{thread's name: how often it has slept, and so been woken}. The main thread alone has the
        program's name, but for one of ThreadSanitizer's own, which wakes by itself."""
        n = collections.Counter()
        for t in os.listdir(f"/proc/{self.pid}/task"):
            status = pathlib.Path(f"/proc/{self.pid}/task/{t}/status").read_text()
            name = re.match(r"Name:\t(.*)", status)[1]
            if int(t) == self.pid or name != "nvllmd":
                n[name] += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M)[1])
        return n

    def n_wakes(self):
        return sum(self.wakes().values())

    def n_descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def terminate(self):
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=scaled(60, 200))

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def close(self):
        self.kill()
        if self._own:
            self._own.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is not None:
                print(f"---- nvllmd's log\n{self.log()[-4000:]}----", file=sys.stderr)
            elif self.process.poll() is None:
                status = self.terminate()
                # Sanitizers report at the end, and then make the status another.
                if status != 0:
                    raise AssertionError(f"nvllmd ended with {status}:\n{self.log()[-8000:]}")
        finally:
            self.close()


class Case(unittest.TestCase):
    maxDiff = 2000

    def instant_daemon(self, step_us, *options, row_us=0, **others):
        """With a backend whose steps take a set time and one for each of their rows, and sample one
        token of each sequence."""
        folder = self.temporary_folder()
        # As tests/bench/instant.h has it: these two, then a time for each token.
        (folder / "instant").write_bytes(struct.pack("<96Q", step_us, row_us, *[0] * 94))
        d = Daemon(f"backend.module={config.module}", f"cuda.cache_folder={folder}",
                   "scheduler.speculation=off", *options, backend="cuda", **others)
        d.instant = folder / "instant"
        return d

    def echo_daemon(self, *options, **others):
        """A chat is answered with its last message, if the request has a penalty; its model calls
        tools. --module is nvllm-echo.so."""
        own = json.loads((MODEL / "tokenizer_config.json").read_text())["chat_template"]
        template = self.temporary_folder() / "template.jinja"
        template.write_text(own + '{# <tool_call> {"name": …, "arguments": …} </tool_call> #}')
        return Daemon(f"backend.module={config.module}", f"model.chat_template={template}",
                      *options, backend="cuda", **others)

    @contextlib.contextmanager
    def notified(self):
        """The environment that makes a daemon tell a service manager, and the list of what it is
        told, whole at the end."""
        path = self.temporary_folder() / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(str(path))
            messages = []

            def listen():  # a queue of datagrams is short: a sender waits where nobody reads
                while messages[-1:] != ["END"]:  # read once: a test may clear it
                    messages.extend(s.recv(4096).decode().splitlines())

            listener = threading.Thread(target=listen)
            listener.start()
            try:
                yield {"NOTIFY_SOCKET": str(path)}, messages
            finally:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                    end.sendto(b"END", str(path))
                listener.join()

    def temporary_folder(self):
        folder = tempfile.TemporaryDirectory(prefix="nvllm-e2e-")
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)


class SharedDaemon(Case):
    """Tests that may share one daemon with these options; each leaves it idle."""

    options = ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*cls.options)

    @classmethod
    def tearDownClass(cls):
        with cls.daemon:
            pass

    def setUp(self):
        self.assertIsNone(self.daemon.process.poll(), "nvllmd has ended")

    def tearDown(self):
        if self.daemon.process.poll() is None:
            self.daemon.wait_idle()
        else:
            self.fail(f"nvllmd has ended:\n{self.daemon.log()[-4000:]}")


def parse_jsonl(data):
    """Lines end with a newline alone: texts may hold what else Python splits at."""
    return [json.loads(line) for line in data.decode().split("\n") if line]


def model_folder(target, **changes):
    """Links the bundled model's files into target; a changed file is given by its stem:
    None leaves it out, bytes or text replace it."""
    target.mkdir(parents=True, exist_ok=True)
    for source in MODEL.iterdir():
        stem = source.stem
        if stem not in changes:
            (target / source.name).symlink_to(source)
        elif changes[stem] is not None:
            content = changes[stem]
            (target / source.name).write_bytes(
                content if isinstance(content, bytes) else content.encode())
    return target


class TimedResult(unittest.TextTestResult):
    """Says how long each test took, so that the slow ones are seen in any log."""

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):
        self.stream.write(f"{time.monotonic() - self.began:.1f} s ")
        super().addSuccess(test)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tests")
    parser.add_argument("--nvllmd", required=True)
    parser.add_argument("--nvllmctl", required=True)
    parser.add_argument("--module", help="a backend module")
    parser.add_argument("--build", type=pathlib.Path, help="the build folder, to install from")
    parser.add_argument("--sanitize", default="", help="what the build was made with")
    parser.add_argument("--clock", help="a library to preload whose time of day jumps")
    parser.add_argument("--loop", help="a library to preload whose epoll_wait can fail")
    parser.add_argument("--nvml", help="a library that stands in for libnvidia-ml.so.1")
    parser.add_argument("--users", help="a library to preload that takes its time to know users")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--bars", action="store_true", help="large numbers, and bars on time")
    _, rest = parser.parse_known_args(namespace=config)
    program = unittest.main(config.tests, argv=[sys.argv[0], *rest], exit=False, verbosity=2,
                            testRunner=unittest.TextTestRunner(resultclass=TimedResult,
                                                               verbosity=2))
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if result.testsRun == len(result.skipped) else 0)


if __name__ == "__main__":
    import harness  # the module that the tests import, and whose config they read
    harness.main()
