"""A cluster of two processes with a device each, as on two hosts: NCCL is kept from NVLink and shared
memory, and each process has a network namespace of its own (netns.py). Where none can be made they
share the loopback, and the rows say so. Right tokens, tokens a second, and what becomes of either
process when the other goes."""

import ctypes
import importlib.util
import json
import random
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import netns
import speed
import stress
from device import (CLEAR_MARGIN, GREEDY, Skip, answers_of, args, daemon, few, golden_wrong, harness,
                    model_config, random_ids, row, verdict, wire)

FOUND_S = 15  # a process that goes or hangs


class Network:
    """Two namespaces, or none."""

    def __init__(self):
        try:
            self.pair, self.where = netns.Pair(), "two namespaces"
        except OSError as e:
            self.pair, self.where = None, f"loopback ({e})"
        self.interface = netns.NAME if self.pair else "lo"
        self.address = "10.77.0.1" if self.pair else "127.0.0.1"

    def command(self, process):
        return self.pair.command(process) if self.pair else []

    def close(self):
        if self.pair:
            self.pair.close()


def nccl_option():
    """NCCL of Python's package, or of the system."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        for path in Path(folder).glob("nccl/lib/libnccl.so.2"):
            return [f"cuda.nccl={path}"]
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError as e:
        raise Skip("there is no NCCL") from e
    return []


class Cluster:
    """Both processes; the first as d, with the socket. They meet through a file, or at the first one's
    address, and are numbered by their options or as Slurm does it."""

    def __init__(self, network, *options, model=None, at_address=False, by_slurm=False):
        self.folder = tempfile.TemporaryDirectory(prefix="nvllm-cluster-")
        meet = f"{network.address}:29577" if at_address else f"{self.folder.name}/id"
        self.processes = []
        for i in 1, 0:
            env = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "WARN",
                   "NCCL_HOSTID": f"host {i}", "NCCL_SOCKET_IFNAME": network.interface}
            number = ["cluster.world_size=2", f"cluster.rank={i}"]
            if by_slurm:
                env |= {"SLURM_NTASKS": "2", "SLURM_PROCID": f"{i}"}
                number = []
            self.processes.insert(0, daemon(
                *options, *number, f"cluster.rendezvous={meet}", f"cuda.devices={i}",
                *nccl_option(), model=model, wait=False, before=network.command(i), env=env))
        self.d, self.follower = self.processes
        self.ended = False  # on purpose

    def __enter__(self):
        try:
            self.d.wait_ready()
        except BaseException:
            self.__exit__(AssertionError)
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            if self.ended:
                pass
            elif kind is None:
                statuses = [self.d.terminate(), self.follower.process.wait(timeout=FOUND_S)]
                assert statuses == [0, 0], f"they ended with {statuses}\n{self.logs()}"
            else:
                print(self.logs(), flush=True)
        finally:
            for p in self.processes:
                p.close()
            self.folder.cleanup()

    def logs(self):
        return "\n".join(f"---- process {i}\n{p.log()[-3000:]}"
                         for i, p in enumerate(self.processes))


def hosts():
    n = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    if n < 2:
        raise Skip("there is one GPU")
    nccl_option()
    network = Network()
    try:
        for part in tokens, tiers, rates, faults:
            try:
                part(network)
            except (AssertionError, OSError, wire.Closed) as e:
                row(f"hosts, {part.__name__}", "FAILED",
                    " ".join(f"{network.where}: {type(e).__name__}: {e}".split())[:600])
    finally:
        network.close()


def tokens(network):
    """The golden cases: as graphs, with log probabilities and by the filters, for which rank 0 needs
    the other's logits; penalties, which the other counts for itself, as on one device; and all again
    after it has slept."""
    cases = json.loads((harness.GOLDEN / "nvllm-tiny-greedy.json").read_text())
    clear = sum(c["min_margin"] >= CLEAR_MARGIN for c in cases)
    with Cluster(network, "cache.kv_memory=2G") as c, c.d.connect() as w:
        for name, sampling in (("greedy", GREEDY), ("log probabilities", {**GREEDY, "logprobs": 5}),
                               ("filtered", {"temperature": 1.0, "top_k": 1, "seed": 7})):
            begin = time.monotonic()
            wrong = golden_wrong(w, cases, False, sampling) + golden_wrong(w, cases, True, sampling)
            row(f"hosts, golden, {name}", verdict(clear and not wrong),
                f"{network.where}: {2 * clear - len(wrong)}/{2 * clear} clear, "
                f"{time.monotonic() - begin:.1f} s" + "".join(f", {n}" for n in wrong[:4]))
        penalties(network, w)
        assert not Path(c.folder.name, "id").exists(), "the id is still there"
        for level in "SLEEP_WEIGHTS", "SLEEP_ALL":
            c.d.wait_idle()
            w.ask(sleep={"level": level})
            wrong = golden_wrong(w, cases[:8], True)
            row(f"hosts, {level.lower()} and wake", verdict(not wrong),
                f"{network.where}: 8 cases" + "".join(f", {n}" for n in wrong[:4]))
        time.sleep(8)  # idle: beats
        answer = w.generate(prompt="Hello", max_tokens=4, sampling=GREEDY)
        row("hosts, after a rest of 8 s", verdict(not answer.error), network.where)
    with Cluster(network, "cache.kv_memory=2G", "cuda.graphs=off", "cache.block_len=256",
                 at_address=True) as c, c.d.connect() as w:
        wrong = golden_wrong(w, cases, False)
        row("hosts, golden, block 256, no graphs", verdict(clear and not wrong),
            f"{network.where}: {clear - len(wrong)}/{clear} clear"
            + "".join(f", {n}" for n in wrong[:4]))


def penalties(network, w):
    """What has been generated must be known where its ids are."""
    rng = random.Random(5)
    requests = [{"prompt_ids": {"ids": random_ids(rng, 40, 1900)}, "max_tokens": 48,
                 "sampling": {**GREEDY, "frequency_penalty": 2.0, "repetition_penalty": 1.5,
                              "ignore_eos": True}} for _ in range(few(16))]
    with daemon("cache.kv_memory=2G") as one, one.connect() as alone:
        expected = [a.choices[0].ids for a in answers_of(alone, requests)]
    got = [a.choices[0].ids for a in answers_of(w, requests)]
    # Roundings differ, and so may an id; from there on all do.
    same = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), len(x))
            for x, y in zip(expected, got)]
    row("hosts, penalties", verdict(statistics.mean(same) > 24),
        f"{network.where}: {statistics.mean(same):.1f} of 48 tokens as on one device, "
        f"{sum(s == 48 for s in same)} of {len(same)} texts to the end")


def tiers(network):
    """With a pool for the longest case: each is evicted to both processes' host memory."""
    cases = json.loads((harness.GOLDEN / "nvllm-tiny-greedy.json").read_text())
    clear = sum(c["min_margin"] >= CLEAR_MARGIN for c in cases)
    longest = max(len(c["prompt_ids"]) + c["max_tokens"] for c in cases)
    pool = stress.pool_bytes(model_config(harness.MODEL), longest + 64) >> 10
    with Cluster(network, f"cache.kv_memory={pool}K", f"scheduler.max_seq_len={longest + 16}",
                 "cache.host_memory=1G", by_slurm=True) as c, c.d.connect() as w:
        wrong = [n for _ in range(2) for n in golden_wrong(w, cases, True)]
        loaded = c.d.wait_idle()["host_memory"].get("loaded", 0)
    row("hosts, golden, host memory", verdict(clear and not wrong and loaded),
        f"{network.where}: {2 * clear - len(wrong)}/{2 * clear} clear, {loaded} blocks came back"
        + "".join(f", {n}" for n in wrong[:4]))


def rates(network):
    """Of a few numbers of streams. Before them others: each is captured as a graph when it first
    occurs, which takes memory and may wait for a whole device, on both sides."""
    for name, model in ("tiny", harness.MODEL), ("0.6B", args.model):
        if not model:
            continue
        with Cluster(network, "cache.prefix_cache=off", "cache.kv_memory=4G", model=model) as c, \
                c.d.connect() as w:
            for n in 3, 7, 30, 50, 100:
                speed.stream_round(w, model_config(model), n, 64, 8, n)
            for n in 1, 16, 64:
                rates = [speed.stream_round(w, model_config(model), n, 128, 64, seed)[0]
                         for seed in range(3)]
                row(f"hosts, {name}, {n} streams", "-",
                    f"{network.where}: tok_per_s={speed.spread(rates[1:])}")


def faults(network):
    """A process that goes, in steps or while idle, or stops: the other tells its requests and ends."""
    once(network, "follower killed", 1, signal.SIGKILL, True)
    once(network, "follower killed, idle", 1, signal.SIGKILL, False)
    once(network, "follower stopped", 1, signal.SIGSTOP, True)
    once(network, "follower stopped, idle", 1, signal.SIGSTOP, False)
    once(network, "leader killed", 0, signal.SIGKILL, True)
    once(network, "leader stopped", 0, signal.SIGSTOP, False)


def once(network, name, victim, how, busy):
    with Cluster(network, "cache.kv_memory=2G") as c:
        wires = [c.d.connect()] if busy else []
        told, requests, rng = 0, 8, random.Random(name)
        for w in wires:
            w.raw(b"".join(wire.frame(i, generate={
                "prompt_ids": {"ids": random_ids(rng, rng.randint(1, 400), 1900)},
                "max_tokens": 20000, "stream": True,
                "sampling": {"temperature": 1.0, "ignore_eos": True}})
                for i in range(1, requests + 1)))
        time.sleep(1.5)
        other = c.processes[1 - victim]
        c.processes[victim].process.send_signal(how)
        begin = time.monotonic()
        if victim == 1 and busy:
            answers = wires[0].collect(range(1, requests + 1))
            told = sum(bool(a.error) and a.error["code"] == "ERROR_INTERNAL"
                       for a in answers.values())
        try:
            status = other.process.wait(timeout=2 * FOUND_S)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - begin
        good = status not in (None, 0) and seconds <= FOUND_S and \
            (not (victim == 1 and busy) or told == requests)
        if not good:
            print(c.logs(), flush=True)
        row(f"hosts, {name}", verdict(good),
            f"{network.where}: the other ended with {status} after {seconds:.1f} s (bar {FOUND_S})"
            + (f", {told} of {requests} were told" if victim == 1 and busy else ""))
        c.ended = True
