"""nvllm-openai as a server: connections, limits, keys, clients that go, a daemon that goes, and bytes
that are no request."""

import contextlib
import json
import random
import re
import signal
import socket
import time

from gateway import Gateway, SharedGateway, post, read_to_end
from harness import SMALL, Case, Daemon, SharedDaemon, at_once, config, scaled, wait_for

LONG = {"prompt": "Once upon a time", "max_tokens": 9000, "ignore_eos": True}
SHORT = {"prompt": "Hello", "max_tokens": 2}


def statuses(data):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d+)", data)]


class Connections(SharedGateway):
    def test_connections_are_kept(self):
        """Until a request says otherwise, also over TCP."""
        for tcp in False, True:
            c = self.gateway.connection(tcp)
            for i in range(3):
                c.request("POST", "/v1/completions", json.dumps(SHORT))
                r = c.getresponse()
                self.assertEqual((r.status, "connection" in r.headers), (200, False))
                json.loads(r.read())
            c.request("GET", "/health", headers={"Connection": "close"})
            self.assertEqual(c.getresponse().headers["Connection"], "close")
            c.close()

    def test_pipelined_requests_are_answered_in_their_order(self):
        streams = post("completions", {**SHORT, "stream": True}) * 3
        data = streams + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 200 + \
            b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = self.gateway.raw(data)
        self.assertEqual(statuses(answer), [200] * 203 + [404])
        self.assertEqual(answer.count(b"data: [DONE]\n\n\r\n0\r\n\r\n"), 3)

    def test_http_1_0(self):
        body = json.dumps({**SHORT, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
        answer = self.gateway.raw(head + body)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))
        self.assertIn(b"Connection: keep-alive", self.gateway.raw(
            b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /x HTTP/1.0\r\n\r\n"))

    def test_bodies_in_chunks_and_in_pieces(self):
        body = json.dumps(SHORT).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        chunks = b"".join(b"%x;e=1\r\n%c\r\n" % (1, b) for b in body) + b"0\r\nTrailer: x\r\n\r\n"
        for data in (head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
                     b"\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body):
            self.assertEqual(statuses(self.gateway.raw(data)), [200])
            with self.gateway.open() as s:
                for i in range(len(data)):
                    s.sendall(data[i:i + 1])
                self.assertEqual(statuses(read_to_end(s)), [200])

    def test_the_client_may_ask_whether_to_send(self):
        body = json.dumps(SHORT).encode()
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Expect: 100-continue\r\nContent-Length: ")
        with self.gateway.open() as s:
            s.sendall(head + b"%d\r\n\r\n" % len(body))
            self.assertEqual(s.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(body)
            self.assertEqual(statuses(read_to_end(s)), [200])
        self.assertEqual(statuses(self.gateway.raw(head + b"9999999999\r\n\r\n")), [413])

    def test_wrong_heads(self):
        get = b"GET /health HTTP/1.1\r\nHost: x\r\n"
        p = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        for status, data in (
                (400, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"), (400, b"GET\r\n\r\n"),
                (400, b"GET /health\r\n\r\n"), (400, b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n"),
                (505, b"GET / HTTP/2.0\r\n\r\n"), (505, b"GET / HTTP/1.2\r\nHost: x\r\n\r\n"),
                (400, b"GET /health HTTP/1.1\r\n\r\n"), (400, get + b"Host: y\r\n\r\n"),
                (400, get + b" folded\r\n\r\n"), (400, get + b"A b: c\r\n\r\n"),
                (400, get + b"A: \x00\r\n\r\n"), (400, get + b"A: b\n\r\n\r\n"),
                (431, get + b"A: b\r\n" * 101 + b"\r\n"), (431, get + b"A: " + b"b" * 40000),
                (400, p + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
                (400, p + b"Content-Length: -1\r\n\r\n"), (400, p + b"Content-Length: 1x\r\n\r\n"),
                (400, p + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
                (501, p + b"Transfer-Encoding: gzip\r\n\r\n"),
                (400, p + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
                (400, p + b"Transfer-Encoding: chunked\r\n\r\nx"),
                (400, p + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab"),
                (400, p + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"),
                (413, p + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n" + b"x" * 5000000),
                (413, p + b"Content-Length: 4194305\r\n\r\n"),
                (417, get + b"Expect: cake\r\n\r\n"),
                (415, p + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n")):
            answer = self.gateway.raw(data)
            self.assertEqual(statuses(answer), [status], (data[:80], answer))
            self.assertIn(b'{"error":{"message":"', answer)

    def test_many_at_once(self):
        n = scaled(200, 50)
        answers = at_once(lambda i: self.gateway.complete(
            "Once", max_tokens=8, temperature=0, stream=i % 2 == 0).text, range(n))
        texts = set()
        for i, answer in enumerate(answers):
            lines = [line.removeprefix("data: ") for line in answer.split("\n\n")]
            objects = [json.loads(x) for x in lines if x and x != "[DONE]"]
            texts.add("".join(c["text"] for o in objects for c in o["choices"]))
        self.assertEqual(len(texts), 1)

    def test_nothing_is_left(self):
        """No descriptor, and little memory, after clients that come, ask and go."""
        before = None
        for round_ in range(3):
            for i in range(scaled(200, 30)):
                with self.gateway.open() as s:
                    s.sendall(post("completions", {**LONG, "stream": True})[:-(i % 5) or None])
                    if i % 10 == 0:
                        s.recv(100)
            self.daemon.wait_idle()
            before = before or (self.gateway.n_descriptors(), self.gateway.rss_kib())
        wait_for(lambda: self.gateway.n_descriptors() <= before[0], 10, "descriptors are closed")
        self.assertLess(self.gateway.rss_kib() - before[1], scaled(4096, 1 << 20))


class Going(SharedDaemon):
    """A client that goes cancels what it has asked for."""

    def setUp(self):
        super().setUp()
        self.gateway = self.enterContext(Gateway(self.daemon.socket))

    def running(self):
        r = self.daemon.status()["requests"]
        return r["running"] + r["waiting"]

    def test_it_cancels(self):
        """A stream or not, one prompt or several, over TCP too; also where it waits in the queue."""
        for fields in ({"stream": True}, {"stream": False}, {"prompt": ["a", "b", "c"]}, {"n": 3},
                       {"prompt": "x", "logprobs": 3, "stream": True}):
            for tcp in False, True:
                for reset in False, True:
                    s = self.gateway.open(tcp)
                    s.sendall(post("completions", {**LONG, **fields}))
                    wait_for(self.running, 20, "it runs")
                    if reset:
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    s.close()
                    self.daemon.wait_idle()

    def test_it_cancels_what_waits(self):
        many = [self.gateway.open() for _ in range(100)]
        for s in many:
            s.sendall(post("completions", LONG))
        wait_for(lambda: self.running() == 100, 30, "all are there")
        for s in many:
            s.close()
        self.daemon.wait_idle()

    def test_others_may_cancel_it_too(self):
        for stream in False, True:
            with self.gateway.open() as s:
                s.sendall(post("completions", {**LONG, "n": 2, "stream": stream}, "Connection: close"))
                wait_for(self.running, 20, "it runs")
                request, = json.loads(self.daemon.ctl("requests", "--json").stdout)["requests"]
                self.daemon.ctl("cancel", request["request"])
                answer = read_to_end(s)
            self.assertEqual(statuses(answer), [200 if stream else 503])
            self.assertIn(b'"code":"cancelled"', answer)

    def test_it_closes_while_it_sends(self):
        """At once after the request, and with a second one behind it."""
        for n in 1, 2:
            with self.gateway.open() as s:
                s.sendall(post("completions", LONG) * n)
            time.sleep(0.05)
        self.daemon.wait_idle()


class Limits(Case):
    def setUp(self):
        self.daemon = self.enterContext(Daemon())

    def gateway(self, *options, **others):
        return self.enterContext(Gateway(self.daemon.socket, *options, **others))

    def test_requests(self):
        gateway = self.gateway("--max-requests", 2)
        with gateway.open() as s:
            s.sendall(post("completions", {**LONG, "stream": True}))
            s.recv(100)
            self.assertEqual(gateway.complete("Hi", max_tokens=1).status, 200)
            r = gateway.complete(["Hi", "Hi"])
            self.assertEqual((r.error, r.fields["Retry-After"]),
                             ((429, "rate_limit_exceeded", None), "1"))
        wait_for(lambda: gateway.complete(["Hi", "Hi"]).status == 200, 10, "there is room")

    def test_busy_daemon(self):
        with Daemon("limits.requests_per_connection=1") as other, Gateway(other.socket) as gateway:
            with gateway.open() as s:
                s.sendall(post("completions", {**LONG, "stream": True}))
                s.recv(100)
                r = gateway.complete("Hi")
                self.assertEqual(r.error[:2], (429, "rate_limit_exceeded"))
                self.assertGreaterEqual(int(r.fields["Retry-After"]), 1)

    def test_connections(self):
        """The one that has been idle for longest makes room; where none is, who comes is refused."""
        gateway = self.gateway("--max-connections", 5)
        held = [gateway.open() for _ in range(5)]
        self.assertEqual(gateway.get("/health").status, 200)
        self.assertEqual(held[0].recv(10), b"")
        busy = [gateway.open() for _ in range(5)]
        for s in busy:
            s.sendall(post("completions", {**LONG, "stream": True}))
            s.recv(100)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self.assertIn(statuses(gateway.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")),
                          ([503], []))
        for s in held + busy:
            s.close()
        wait_for(lambda: gateway.get("/health").status == 200, 10, "there is room")

    def test_time(self):
        """Who sends nothing, half a head or half a body does not stay."""
        gateway = self.gateway("--timeout", 1)
        for data, status in ((b"", []), (b"GET / HT", [408]),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
                              [408])):
            began = time.monotonic()
            self.assertEqual(statuses(gateway.raw(data)), status)
            self.assertLess(time.monotonic() - began, scaled(5, 20))
        with gateway.open() as s:  # drop by drop does not help
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(30):
                    s.sendall(b"\r\n")
                    time.sleep(0.1)
                self.assertEqual(s.recv(10), b"")
        s = gateway.open()
        s.sendall(post("completions", {**LONG, "stream": True}))
        for _ in range(8):  # an answer may take longer
            self.assertTrue(s.recv(1000))
            time.sleep(0.2)
        s.close()

    def test_body(self):
        gateway = self.gateway("--max-body", "2K")
        self.assertEqual(gateway.complete("x " * 900, max_tokens=1).status, 200)
        self.assertEqual(gateway.complete("x " * 1100).error, (413, None, None))

    def test_json_bombs(self):
        """Many small values take many times their size; that is limited."""
        gateway = self.gateway()
        before = gateway.rss_kib()
        for body in b'{"a":[' + b"{}," * 1300000 + b"{}]}", b"[" * 4000000, \
                b'{"prompt":[' + b"[]," * 1300000 + b"[]]}":
            began = time.monotonic()
            self.assertIn(gateway.post("completions", body).status, (400, 413))
            print(f"{1e3 * (time.monotonic() - began):.0f} ms, ", end="")
        self.assertLess(gateway.rss_kib() - before, scaled(160 << 10, 2 << 20))

    def test_memory(self):
        """Bodies that never come to their end share what there is."""
        gateway = self.gateway("--max-memory", "8M")
        half = post("completions", {"prompt": "x" * 4000000})[:-1000]
        sockets = [gateway.open() for _ in range(8)]
        for s in sockets:
            with contextlib.suppress(ConnectionError):
                s.sendall(half)
        r = gateway.post("completions", {"prompt": "x" * 4000000})
        self.assertEqual((r.status, r.fields["Retry-After"]), (503, "1"))
        self.assertEqual(gateway.complete("Hi", max_tokens=1).status, 200)
        for s in sockets:
            s.close()


    def test_large_answers(self):
        """One that memory has no room for can be had as a stream."""
        gateway = self.gateway("--max-memory", "1M")
        large = {"max_tokens": 600, "ignore_eos": True, "logprobs": 20}
        self.assertEqual(gateway.complete("Hi", **large, n=8).error, (503, "out_of_memory", None))
        text = gateway.complete("Hi", **large, stream=True).text
        self.assertTrue(text.endswith("data: [DONE]\n\n"))


class SlowReaders(Case):
    def test_who_does_not_read_is_cut_off(self):
        """With a backend that answers at once. Others go on; the memory stays within bounds."""
        with self.instant_daemon(0, "scheduler.max_seqs=16") as d, \
                Gateway(d.socket, "--max-memory", "32M", "--timeout", 5) as gateway:
            request = {"prompt": [1, 2], "max_tokens": 32000, "ignore_eos": True, "stream": True, "n": 4}
            sockets = [gateway.open() for _ in range(4)]
            before = gateway.rss_kib()
            for s in sockets:
                s.sendall(post("completions", request))
            self.assertEqual(gateway.complete([5], max_tokens=1000, ignore_eos=True).status, 200)
            peak = 0

            def idle():
                nonlocal peak
                peak = max(peak, gateway.rss_kib())
                r = d.status()["requests"]
                return r["running"] + r["waiting"] == 0

            wait_for(idle, scaled(60, 200), "their requests have ended")
            cut = sum(not read_to_end(s).endswith(b"0\r\n\r\n") for s in sockets)
            self.assertEqual(cut, len(sockets))
            self.assertLess(peak - before, scaled(64 << 10, 1 << 20))


class DaemonGoes(Case):
    def test_it_comes_back(self):
        folder = self.temporary_folder()
        with Gateway(folder / "nvllmd.sock") as gateway:
            for get in gateway.get, lambda path: gateway.complete("Hi"):
                r = get("/health")
                self.assertEqual((r.error[0], r.fields["Retry-After"]), (503, "1"))
            d = Daemon(folder=folder)
            wait_for(lambda: gateway.get("/health").status == 200, 10, "it has found the daemon")
            for _ in range(2):  # while nothing runs
                d.terminate()
                wait_for(lambda: gateway.complete("Hi").status == 503, 5, "the daemon is missed")
                d = Daemon(folder=folder)
                wait_for(lambda: gateway.complete("Hi").status == 200, 10, "it is found again")
            for _ in range(scaled(5, 2)):
                with gateway.open() as begun, gateway.open() as waiting:
                    begun.sendall(post("completions", {**LONG, "stream": True}, "Connection: close"))
                    begun.recv(10)
                    waiting.sendall(post("completions", LONG, "Connection: close"))
                    wait_for(lambda: d.status()["requests"]["running"] == 2, 20, "both run")
                    d.kill()
                    self.assertIn(b'data: {"error":', read_to_end(begun))
                    self.assertEqual(statuses(read_to_end(waiting)), [503])
                self.assertEqual(gateway.complete("Hi").status, 503)
                d = Daemon(folder=folder)
                wait_for(lambda: gateway.complete("Hi").status == 200, 10, "it goes on")
            with d:
                pass

    def test_a_drained_daemon_refuses(self):
        with Daemon(SMALL) as d, Gateway(d.socket) as gateway:
            d.ctl("drain")
            self.assertEqual(gateway.complete("Hi").error[:2], (503, "unavailable"))
            self.assertEqual(gateway.get("/health").status, 503)
            d.ctl("resume")
            self.assertEqual(gateway.get("/health").status, 200)

    def test_it_ends_gently(self):
        """After SIGTERM answers go on to their end, and nobody new is served."""
        with Daemon() as d:
            with Gateway(d.socket) as gateway:
                with gateway.open() as s, gateway.open() as idle:
                    s.sendall(post("completions", {**SHORT, "max_tokens": scaled(400, 100),
                                                   "ignore_eos": True, "stream": True}))
                    s.recv(10)
                    gateway.process.send_signal(signal.SIGTERM)
                    self.assertTrue(read_to_end(s).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
                    self.assertEqual(idle.recv(10), b"")
                    self.assertEqual(gateway.process.wait(timeout=20), 0)
                    self.assertFalse(gateway.socket.exists())
            with Gateway(d.socket, "--drain-timeout", 0) as gateway, gateway.open() as s:
                s.sendall(post("completions", {**LONG, "stream": True}))
                s.recv(10)
                self.assertEqual(gateway.terminate(), 0)
                self.assertIn(b'data: {"error":', read_to_end(s))

    def test_answers_that_were_cut_off_are_read(self):
        """Who reads slowly is told, too, that the answer was cut off; who never reads is not waited
        for."""
        with Daemon() as d, Gateway(d.socket, "--drain-timeout", 0) as gateway:
            with gateway.open() as slow, gateway.open() as never:
                for s in slow, never:
                    s.sendall(post("completions", {**LONG, "stream": True}))
                    s.recv(10)
                time.sleep(1)  # the sockets are full
                gateway.process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
                self.assertRegex(read_to_end(slow), rb'data: {"error":[^\n]*\n\n\r\n0\r\n\r\n$')
                self.assertEqual(gateway.process.wait(timeout=scaled(4, 10)), 0)


class Access(SharedDaemon):
    KEYS = {"alice": "sk-alice-0123456789", "bob": "sk-bob-9876543210-x"}

    def key_file(self, text=None, mode=0o600):
        path = self.temporary_folder() / "keys"
        lines = ["# who may come", "", *(f"{name} \t{key}" for name, key in self.KEYS.items())]
        path.write_text("\n".join(lines) if text is None else text)
        path.chmod(mode)
        return path

    def bearer(self, key):
        return {"Authorization": f"Bearer {key}"}

    def test_keys(self):
        with Gateway(self.daemon.socket, "--api-keys", self.key_file()) as gateway:
            for fields in (None, {"Authorization": "Basic eA=="}, self.bearer(""),
                           self.bearer("x" * 300),
                           self.bearer(self.KEYS["alice"][:-1]), self.bearer(self.KEYS["alice"] + "x"),
                           self.bearer("alice")):
                r = gateway.post("completions", SHORT, fields=fields)
                self.assertEqual((r.error, r.fields["WWW-Authenticate"]),
                                 ((401, "invalid_api_key", None), "Bearer"))
            for key in self.KEYS.values():
                self.assertEqual(gateway.post("completions", SHORT, fields=self.bearer(key)).status, 200)
            self.assertEqual(gateway.get("/v1/models").status, 401)
            self.assertEqual(gateway.get("/health").status, 200)
            # Before the body has come.
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"
            self.assertEqual(statuses(gateway.raw(head)), [401])

    def test_keys_are_read_again(self):
        path = self.key_file()
        with Gateway(self.daemon.socket, "--api-keys", path) as gateway:
            old, new = self.bearer(self.KEYS["alice"]), self.bearer("sk-carol-0123456789")

            def reload(text, event):
                path.write_text(text)
                n = gateway.log().count(event)
                gateway.process.send_signal(signal.SIGHUP)
                wait_for(lambda: gateway.log().count(event) > n, 10, event)

            reload("carol sk-carol-0123456789\n", "event=reloaded")
            self.assertEqual(gateway.get("/v1/models", fields=new).status, 200)
            self.assertEqual(gateway.get("/v1/models", fields=old).status, 401)
            reload("carol short\n", "event=wrong_keys")
            self.assertEqual(gateway.get("/v1/models", fields=new).status, 200)

    def test_keys_and_users_share_no_cache(self):
        prompt = " ".join(f"{i} and" for i in range(20))
        with Gateway(self.daemon.socket, "--api-keys", self.key_file()) as gateway:
            def cached(name, **fields):
                r = gateway.post("completions", {"prompt": prompt, "max_tokens": 1, **fields},
                              fields=self.bearer(self.KEYS[name]))
                return r.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

            for name in self.KEYS:
                for fields in ({}, {"user": "u"}, {"safety_identifier": "v"}, {"cache_salt": "u"},
                               {"user": "u", "cache_salt": "w"}, {"user": "u/1:w"}):
                    self.assertFalse(cached(name, **fields), (name, fields))
                    self.assertTrue(cached(name, **fields), (name, fields))

    def test_wrong_key_files(self):
        one = "alice sk-alice-0123456789"
        for text, mode, why in ((one, 0o604, "chmod o="), ("", 0o600, "no key"), ("alice", 0o600, ":1:"),
                                (f"{one}\nbob short", 0o600, ":2:"), (f"{one}\n{one}", 0o600, "twice"),
                                (f"{one} x", 0o600, ":1:"), ("x" * 40 + one, 0o600, "name")):
            gateway = Gateway(self.daemon.socket, "--api-keys", self.key_file(text, mode), wait=False)
            self.assertEqual(gateway.process.wait(timeout=20), 2)
            self.assertIn(why, gateway.log())
            self.assertNotIn("sk-alice", gateway.log())
            gateway.close()

    def test_addresses(self):
        """Those that other hosts reach need to be allowed, with keys."""
        for addresses, options, why in ((["0.0.0.0:0"], [], "--allow-remote"), ([], [], "--listen"),
                                        (["[::]:0"], ["--api-keys", self.key_file()], "--allow-remote"),
                                        (["0.0.0.0:0"], ["--allow-remote"], "--api-keys"),
                                        (["localhost"], [], "127.0.0.1:PORT"),
                                        (["127.0.0.1:65536"], [], "127.0.0.1:PORT"),
                                        (["127.0.0.1:"], [], "127.0.0.1:PORT"),
                                        ([f"unix:{self.key_file()}"], [], "not a socket"),
                                        (["unix:"], [], "path"), (["127.0.0.1:0"] * 9, [], "at most 8")):
            gateway = Gateway(self.daemon.socket, *options, addresses=addresses, wait=False)
            self.assertEqual(gateway.process.wait(timeout=20), 2, addresses)
            self.assertIn(why, gateway.log())
            gateway.close()
        with Gateway(self.daemon.socket, "--allow-remote", "--api-keys", self.key_file(),
                  addresses=["0.0.0.0:0"]):
            pass

    def test_a_socket_is_taken_over_from_the_dead_alone(self):
        folder = self.temporary_folder()
        path = f"unix:{folder}/s"
        with Gateway(self.daemon.socket, addresses=[path]):
            second = Gateway(self.daemon.socket, addresses=[path], wait=False)
            self.assertEqual(second.process.wait(timeout=20), 2)
            second.close()
            self.assertTrue((folder / "s").exists())
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{folder}/s")
        with Gateway(self.daemon.socket, addresses=[path]):
            pass

    def test_pages_in_browsers(self):
        """Neither another site's page, nor one whose name was made to point here."""
        with Gateway(self.daemon.socket) as gateway:
            for tcp in False, True:
                r = gateway.post("completions", SHORT, tcp=tcp,
                                 fields={"Origin": "http://localhost:3000"})
                self.assertEqual(r.error, (403, "origin_refused", None))
                self.assertNotIn("Access-Control-Allow-Origin", r.fields)
            for host, status in (("evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("", 403),
                                 ("localhost.evil.example", 403), ("[::2]", 403), ("localhost", 200),
                                 ("LOCALHOST:8000", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200)):
                r = gateway.request("GET", "/health", fields={"Host": host}, tcp=True)
                self.assertEqual(r.status, status, host)
                self.assertEqual("--allow-remote" in r.text, status == 403)
            self.assertEqual(gateway.request("OPTIONS", "/v1/completions").status, 405)

    def test_systemd_passes_sockets(self):
        with socket.create_server(("127.0.0.1", 0)) as s:
            with Gateway(self.daemon.socket, addresses=[], wait=False, passed=s) as gateway:
                gateway.port = s.getsockname()[1]
                self.assertEqual(gateway.get("/health", tcp=True).status, 200, "the first is answered")

    def test_it_says_when_it_is_ready(self):
        folder = self.temporary_folder()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(f"{folder}/notify")
            s.settimeout(20)
            env = {"NOTIFY_SOCKET": f"{folder}/notify"}
            with Gateway(self.daemon.socket, env=env):
                self.assertEqual(s.recv(100), b"READY=1")
            self.assertEqual(s.recv(100), b"STOPPING=1")


def wild_body(rng):
    """A request's body, with a little or a lot that is wrong."""
    good = json.dumps(rng.choice([
        {"prompt": "Hello", "max_tokens": 1}, {"prompt": [[1, 2], [3]], "max_tokens": 1, "n": 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 1},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
         "max_tokens": 1, "tools": [{"type": "function", "function": {"name": "f"}}], "logprobs": True, "stream": True},
        {"prompt": "x", "max_tokens": 1, "logprobs": 2, "stop": ["a"], "logit_bias": {"5": 1},
         "stream": True, "stream_options": {"include_usage": True}, "seed": 3, "user": "u"}])).encode()
    body = bytearray(good)
    kind = rng.randrange(6)
    for _ in range(rng.randrange(1, 6) if kind else 0):
        at = rng.randrange(len(body) + 1)
        if kind == 1:
            body[at:at + 1] = bytes([rng.randrange(256)])
        elif kind == 2:
            body[at:at] = rng.choice([b"null", b"[", b"{", b'"', b"1e999", b"-", b"\\u0000", b"\\ud800",
                                      b"99999999999999999999", b"true", b"\xf0\x9f"])
        elif kind == 3:
            del body[at:at + rng.randrange(1, 20)]
        elif kind == 4:
            start = rng.randrange(len(body))
            body[at:at] = body[start:start + rng.randrange(30)]
        else:
            body[at:] = body[at:][::-1]
    return bytes(body)


def wild_request(rng):
    """The bytes of a request, likewise; and whether they are so that an answer must come."""
    path = rng.choice([b"completions", b"chat/completions", b"models", b"models/%%%", b"embeddings"])
    body = wild_body(rng)
    chunked = rng.random() < 0.3
    data = b"%s /v1/%s HTTP/1.%d\r\nHost: localhost\r\n" % (
        rng.choice([b"POST"] * 8 + [b"GET", b"PUT"]), path, rng.random() < 0.9)
    if chunked:
        cut = rng.randrange(len(body) + 1)
        parts = [p for p in (body[:cut], body[cut:]) if p]
        data += b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(
            b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    else:
        data += b"Content-Length: %d\r\n\r\n" % len(body) + body
    if rng.random() < 0.5:
        return data
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        data[at:at + rng.randrange(2)] = rng.choice(
            [b"", bytes([rng.randrange(256)]), b"\r\n", b"\n", b" ", b"\0", b": ", b"\r\n\r\n",
             data[:rng.randrange(60)]])
    return bytes(data)


class Hostile(SharedDaemon):
    def test_mangled_requests(self):
        """Whatever bytes come, on connections of few and of many requests: each answer is one of
        HTTP's, and others are served all the while."""
        n, seed = 100000 if config.bars else scaled(4000, 1500), random.randrange(1 << 32)
        rng = random.Random(seed)
        print(f"seed {seed}, {n} requests, ", end="")
        n_answers = 0
        with Gateway(self.daemon.socket, "--timeout", 2, "--max-connections", 64) as gateway:
            while n > 0:
                with gateway.open(tcp=rng.random() < 0.2) as s, \
                        contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    few = rng.choice([1, 1, 1, 2, 5])
                    n -= few
                    s.sendall(b"".join(wild_request(rng) for _ in range(few)))
                    if rng.random() < 0.2:
                        continue  # goes at once
                    s.sendall(b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    answer = read_to_end(s)
                    n_answers += len(statuses(answer))
                    self.assertTrue(answer.startswith(b"HTTP/1.1 ") or not answer, answer[:100])
                if rng.random() < 0.01:
                    self.assertEqual(gateway.get("/health").status, 200)
            self.assertEqual(gateway.complete("Hi", max_tokens=1).status, 200)
        print(f"{n_answers} answers, ", end="")
        self.assertGreater(n_answers, 100)
