"""Many tokens and many clients: idle ones, others that come and go, and streams that nobody reads.

With a backend whose steps take a set time, or none. What must hold on any machine is tested always; the bars
are for tests/bench/run, on a machine that does nothing else."""

import collections
import json
import pathlib
import resource
import select
import time

from harness import Case, beside, config, run_command, scaled, wait_for


def quantile(values, p):
    return sorted(values)[round(p * (len(values) - 1))]


def request(number, max_tokens):
    """No two begin alike: none waits for the prefix of another."""
    return {"prompt_ids": {"ids": [number % 1024, number // 1024, 9]}, "max_tokens": max_tokens,
            "stream": True, "sampling": {"ignore_eos": True}}


def raise_descriptors():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def bench_streams(*args):
    """What the program of that name prints; it ends with an error where a token is wrong."""
    program = pathlib.Path(config.module).parent / "bench_streams"
    return json.loads(run_command([program, *args]).stdout)


class Tokens(Case):
    def test_throughput(self):
        """All tokens of many streams come, in order, with a program that reads all connections."""
        connections, streams, tokens = (64, 1024, 3000) if config.bars else (16, 128, 300)
        with self.instant_daemon(5000, f"scheduler.max_seqs={streams}",
                                 f"scheduler.max_seq_len={tokens + 4}",
                                 "scheduler.max_batch_tokens=8192") as d:
            r = bench_streams(d.socket, d.instant, d.pid, "throughput", connections, streams, tokens)
            peak = d.memory_kib("VmHWM") >> 10
        print(f"{connections} connections, {streams} streams: {r['tokens_s']:.0f} tokens/s; CPU a "
              f"token: daemon {r['daemon_us']} us, client {r['client_us']} us; "
              f"{r['tokens_a_delta']} tokens a delta; peak {peak} MiB")
        if config.bars:
            self.assertGreaterEqual(r["tokens_s"], 400000)

    def test_latency(self):
        """What is added to each token of one stream among idle connections, beside what the machine
        takes for its wake-ups."""
        tokens, idle, step_us = (5000, 1000, 1000) if config.bars else (500, 100, 1000)
        raise_descriptors()
        bare = [bench_streams("bare", tokens // 2, step_us)]
        with self.instant_daemon(step_us, "scheduler.max_seqs=4", f"limits.connections={idle + 8}",
                                 f"limits.connections_per_uid={idle + 8}") as d:
            r = bench_streams(d.socket, d.instant, d.pid, "latency", tokens, idle)
        bare.append(bench_streams("bare", tokens // 2, step_us))
        print(f"one stream beside {idle} idle connections, a step every {step_us} us: added to a "
              f"token: median {r['p50']} us, p90 {r['p90']}, p99 {r['p99']}, worst {r['max']}; the "
              f"daemon's CPU a token {r['daemon_us']} us; the same wake-ups with nothing to do, "
              f"before and after: median {' and '.join(str(b['p50']) for b in bare)} us, p99 "
              f"{' and '.join(str(b['p99']) for b in bare)}")
        if config.bars:
            self.assertLessEqual(r["p50"], 60)
            self.assertLessEqual(r["p99"], 150)


class Connections(Case):
    ALIVE = 100  # of those that come and go

    def ping(self, w, times):
        """Asks for the status; notes the milliseconds."""
        began = time.monotonic()
        w.status()
        times.append(1e3 * (time.monotonic() - began))
        time.sleep(0.003)

    def come_and_go(self, d, n, a_second):
        """Each lives for a while; every fifth leaves while its request runs."""
        alive, began = collections.deque(), time.monotonic()
        for i in range(n):
            time.sleep(max(0, began + i / a_second - time.monotonic()))
            if len(alive) == self.ALIVE:
                alive.popleft().close()
            alive.append(d.connect())
            if i % 5 == 0:
                alive[-1].send(1, generate=request(i, 1000))
        for w in alive:
            w.close()

    def test_idle_ones_and_others_that_come_and_go(self):
        """No descriptor is lost; a connection takes little, and the daemon answers at once."""
        n_idle, seconds = (10000, 120) if config.bars else scaled((2000, 15), (200, 3))
        a_second, times = 500, []
        raise_descriptors()
        with self.instant_daemon(
                1000, f"limits.connections={n_idle + 2 * self.ALIVE}", "scheduler.max_seq_len=2048",
                f"limits.connections_per_uid={n_idle + 2 * self.ALIVE}") as d:
            for w in [d.connect() for _ in range(16)]:  # what is taken once is no connection's
                w.close()
            before = d.memory_kib("RssAnon")
            idle = [d.connect() for _ in range(n_idle)]
            each = (d.memory_kib("RssAnon") - before) / n_idle
            descriptors = d.n_descriptors()
            with d.connect() as w, beside(lambda: self.ping(w, times)):
                self.come_and_go(d, a_second * seconds, a_second)
            wait_for(lambda: d.n_descriptors() == descriptors, scaled(5, 30), "no descriptor is lost")
            for w in idle:
                w.close()
        p99 = quantile(times, 0.99)
        print(f"{n_idle} idle, {each:.1f} KiB each; {a_second} a second come and go for {seconds} s: "
              f"status median {quantile(times, 0.5):.2f} ms, p99 {p99:.2f}, worst {max(times):.2f}")
        if config.bars:
            self.assertLessEqual(each, 16)
            self.assertLessEqual(p99, 10)


class Readers:
    """Streams that are read, ten on a connection."""

    def __init__(self, wires):
        self.by_fd = {w.sock.fileno(): w for w in wires}
        self.poll, self.last = select.poll(), {}
        for fd in self.by_fd:
            self.poll.register(fd, select.POLLIN)

    def read(self, d, seconds):
        """(p99 of the milliseconds between two tokens of a stream, most memory of the daemon)"""
        gaps, peak, look, end = [], 0, 0, time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            ready = self.poll.poll(20000)
            assert ready, "no token for 20 s"
            for fd, _ in ready:
                w, now = self.by_fd[fd], time.monotonic()
                w.buffer += w.sock.recv(1 << 16)
                while frame := w.take():
                    stream = fd, frame[1]  # its id, which has one byte
                    if stream in self.last:
                        gaps.append(1e3 * (now - self.last[stream]))
                    self.last[stream] = now
            if now > look:
                peak, look = max(peak, d.memory_kib("RssAnon")), now + 0.1
        return quantile(gaps, 0.99), peak


class SlowReaders(Case):
    EACH = 10         # streams of a connection
    PAUSE_KIB = 64    # of answers that may lie unread for one connection before it is paused
    CUT_KIB = 256     # and before it is cut off
    SPARE_KIB = 16 << 10  # the streams themselves, and what the allocator keeps

    def streams(self, d, n, first):
        wires = [d.connect() for _ in range(n // self.EACH)]
        for i in range(n):
            wires[i // self.EACH].send(i % self.EACH + 1, generate=request(first + i, 16000))
        return wires

    def test_streams_that_nobody_reads(self):
        """They are cut off; who reads does not notice them, and the daemon grows by little."""
        n_slow, n_readers = (500, 100) if config.bars else scaled((200, 50), (40, 10))
        seconds = 15 if config.bars else 8
        with self.instant_daemon(
                4000, f"scheduler.max_seqs={n_slow + n_readers}", "scheduler.max_seq_len=32768",
                f"limits.output_pause_bytes={self.PAUSE_KIB}K",
                f"limits.output_bytes={self.CUT_KIB}K", "limits.slow_reader_s=2",
                "limits.connections_per_uid=1024") as d:
            wires = self.streams(d, n_readers, 0)
            readers = Readers(wires)
            readers.read(d, 1)  # all have begun
            without, _ = readers.read(d, seconds)
            before = d.memory_kib("RssAnon")
            wires += self.streams(d, n_slow, n_readers)
            beside, peak = readers.read(d, seconds)
            with d.connect() as w:
                until = time.monotonic() + scaled(40, 100)  # on a slow machine less is unread by now
                while ((left := w.status()["requests"]["running"] - n_readers) > 0
                       and time.monotonic() < until):
                    peak = max(peak, readers.read(d, 0.5)[1])
            for w in wires:
                w.close()
        allowed = n_slow // self.EACH * self.CUT_KIB + self.SPARE_KIB
        print(f"{n_slow} streams that nobody reads among {n_readers}: time between tokens of the "
              f"others, p99: {without:.2f} ms without, {beside:.2f} with; the daemon grew by "
              f"{peak - before} KiB, {allowed} are allowed; {left} of the unread still run")
        self.assertEqual(left, 0)
        if config.bars:
            self.assertLessEqual(beside, 1.2 * without)
            self.assertLessEqual(peak - before, allowed)
