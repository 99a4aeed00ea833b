"""Each limit: what is over it is refused by name, others notice nothing, and it is free again
afterwards."""

import contextlib
import signal
import socket
import time

import harness
import roles
import wire
from harness import RUNNING, SMALL, Case, Daemon, SharedDaemon, config, scaled, wait_for

SHORT = {"prompt": "Once upon a time", "max_tokens": 2}
LONG = {**harness.LONG, "max_tokens": 3500}


class OfOneRequest(SharedDaemon):
    """What one request may ask for, each just at its limit and just over it."""

    options = (SMALL, "limits.prompt_bytes=1000", "limits.prompt_tokens=100",
               "limits.max_tokens=50", "limits.choices=2", "limits.logprobs=3", "limits.stops=2",
               "limits.stop_bytes=5", "limits.stop_token_ids=3", "limits.logit_bias=4",
               "limits.salt_bytes=6", "limits.frame_bytes=64K")

    def ask(self, w, **request):
        return w.generate(**{**SHORT, **request}).error

    def expect(self, limit, value, field, good, bad, code="ERROR_INVALID"):
        with self.subTest(limit), self.daemon.connect() as w:
            self.assertIsNone(self.ask(w, **good))
            error = self.ask(w, **bad)
            self.assertIsNotNone(error, "it was accepted")
            self.assertEqual((error["code"], error["limit"], error["limit_value"],
                              error.get("field"), error["retryable"]),
                             (code, "limits." + limit, value, field, False))
            self.assertIn("limits." + limit, error["message"])
            self.assertIsNone(self.ask(w, **good))  # the connection goes on

    def test_each(self):
        def sampling(**fields):
            return {"sampling": fields}

        long = "TOO_LONG"
        self.expect("prompt_bytes", 1000, "prompt", {"prompt": b"a" * 90},
                    {"prompt": b"a" * 1001}, "ERROR_" + long)
        self.expect("prompt_tokens", 100, "prompt", {"prompt": b"1" * 100},
                    {"prompt": b"1" * 101}, "ERROR_" + long)
        self.expect("prompt_tokens", 100, "prompt_ids", {"prompt": b"a"},
                    {"prompt_ids": {"ids": [7] * 101}}, "ERROR_" + long)
        self.expect("prompt_tokens", 100, "chat", {"prompt": b"a"},
                    {"chat": {"messages": [{"role": "user", "content": b"1" * 200}]}},
                    "ERROR_" + long)
        self.expect("max_tokens", 50, "max_tokens", {"max_tokens": 50}, {"max_tokens": 51},
                    "ERROR_" + long)
        self.expect("choices", 2, "n", {"n": 2}, {"n": 3})
        self.expect("logprobs", 3, "sampling.logprobs", sampling(logprobs=3), sampling(logprobs=4))
        self.expect("stops", 2, "stop", {"stop": [b"x"] * 2}, {"stop": [b"x"] * 3})
        self.expect("stop_bytes", 5, "stop[0]", {"stop": [b"xxxxx"]}, {"stop": [b"xxxxxx"]})
        self.expect("stop_token_ids", 3, "sampling.stop_token_ids",
                    sampling(stop_token_ids=[1] * 3), sampling(stop_token_ids=[1] * 4))
        bias = [{"id": i, "bias": 1.0} for i in range(5)]
        self.expect("logit_bias", 4, "sampling.logit_bias", sampling(logit_bias=bias[:4]),
                    sampling(logit_bias=bias))
        self.expect("salt_bytes", 6, "cache_salt", {"cache_salt": b"x" * 6},
                    {"cache_salt": b"x" * 7})

    def test_an_answer_of_open_length(self):
        """Who does not say how many tokens gets the limit's."""
        with self.daemon.connect() as w:
            id_ = w.new_id()
            w.send(id_, generate={"prompt": b"a", "sampling": {"ignore_eos": True}})
            answer = w.collect([id_])[id_]
            self.assertEqual(answer.done["usage"]["completion_tokens"], 50)

    def test_texts_of_other_operations(self):
        """Tokenize and render keep to the same size of text."""
        with self.daemon.connect() as w:
            for op in ({"tokenize": {"text": b"a" * 1001}},
                       {"explain": {"prompt": b"a" * 1001}},
                       {"pin_cache": {"prompt": b"a" * 1001}},
                       {"render": {"chat": {"messages": [
                           {"role": "user", "content": b"a" * 1001}]}}}):
                error = w.ask(**op)["error"]
                self.assertEqual(error["limit"], "limits.prompt_bytes", op)

    def test_one_answer(self):
        """An answer over what may lie unread is refused by name, and the connection goes on."""
        with Daemon(SMALL, "limits.output_bytes=16K") as d, d.connect() as w:
            self.assertEqual(len(w.ask(tokenize={"text": b"1" * 2000})["tokens"]["ids"]), 2000)
            many = {"prompt": "Once", "max_tokens": 500, "n": 3,
                    "sampling": {"logprobs": 20, "seed": 1, "ignore_eos": True}}
            for error in (w.ask(tokenize={"text": b"1" * 9000})["error"],
                          w.generate(**many, stream=False).error):
                self.assertEqual((error["code"], error["limit"], error["limit_value"],
                                  error["retryable"]),
                                 ("ERROR_TOO_LONG", "limits.output_bytes", 16384, False))
            self.assertIsNone(w.generate(**SHORT).error)
            wait_for(lambda: not w.ask(list_requests={})["request_list"].get("total"),
                     scaled(10, 60), "the end of what was refused")
            done = d.ctl("tokenize", "-", stdin=b"1" * 9000, check=False)
            self.assertEqual(done.returncode, 4)
            self.assertIn(b"the answer is larger than the limit of 16384 bytes", done.stderr)

    def test_frame(self):
        """A frame over the limit ends its connection, by name."""
        with self.daemon.connect() as w:
            w.raw(wire.varint(65537))
            error = w.receive()["error"]
            self.assertEqual((error["code"], error["limit"], error["limit_value"]),
                             ("ERROR_PROTOCOL", "limits.frame_bytes", 65536))
            with self.assertRaises(wire.Closed):
                w.receive()


class Times(Case):
    def test_hello_and_frames(self):
        """Hello, and a frame that was begun, must come in time, however slowly bytes drip."""
        with Daemon(SMALL, "limits.hello_timeout_s=1", "limits.frame_timeout_s=2") as d:
            with d.connect(hello=False) as w:
                error = w.receive()["error"]
                self.assertEqual((error["limit"], error["limit_value"]),
                                 ("limits.hello_timeout_s", 1))
            with d.connect() as w:
                begin = time.monotonic()
                w.raw(wire.varint(1000))
                error = None
                w.sock.settimeout(0.3)
                while error is None and time.monotonic() - begin < 20:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        w.raw(b"\n")  # unless the end has come since the last look
                    with contextlib.suppress(TimeoutError):
                        error = w.receive()["error"]
                self.assertEqual((error["limit"], error["limit_value"]),
                                 ("limits.frame_timeout_s", 2))
                self.assertLess(time.monotonic() - begin, scaled(4, 10))

    def test_stopped_meanwhile(self):
        """What came in time is read where the daemon was stopped until the time was over."""
        seconds = 5  # a slow machine takes some until all are waited for
        with Daemon(SMALL, f"limits.hello_timeout_s={seconds}",
                    f"limits.frame_timeout_s={seconds}") as d, contextlib.ExitStack() as stack:
            half = [stack.enter_context(d.connect()) for _ in range(100)]
            new = [stack.enter_context(d.connect(hello=False)) for _ in range(100)]
            frame = wire.frame(7, tokenize={"text": b"a" * 15000})
            for w in half:
                w.raw(frame[:-1])
            time.sleep(0.2)  # the daemon has begun to wait for all of them
            d.process.send_signal(signal.SIGSTOP)
            for w in new:
                w.send(0, hello={"protocol": 1})
            for w in half:
                w.raw(frame[-1:])
            time.sleep(seconds + 0.5)
            d.process.send_signal(signal.SIGCONT)
            for w in new:
                self.assertIn("welcome", w.receive())
            for w in half:
                self.assertIn("tokens", w.receive())


class OfOneUser(Case):
    """One user cannot take what others need."""

    def setUp(self):
        roles.need_root()

    def busy(self, error, limit, value):
        self.assertIsNotNone(error, "it was accepted")
        self.assertEqual((error["code"], error["limit"], error["limit_value"]),
                         ("ERROR_BUSY", "limits." + limit, value), error)
        self.assertTrue(error["retryable"] and error["retry_after_ms"] > 0)

    def turned_away(self, d, uid, limit, value):
        with self.assertRaises((wire.Closed, KeyError, OSError)), \
                roles.connect(d, uid, hello=False) as w:
            self.busy(w.receive()["error"], limit, value)
            w.receive()

    def test_connections(self):
        """A user's connections, all users' connections, and what admins may have beyond."""
        with Daemon(SMALL, "limits.connections_per_uid=3", "limits.connections=5",
                    "limits.admin_connections=2") as d, contextlib.ExitStack() as stack:
            mine = [stack.enter_context(roles.connect(d, roles.USER)) for _ in range(3)]
            self.turned_away(d, roles.USER, "connections_per_uid", 3)
            others = [stack.enter_context(roles.connect(d, roles.OTHER)) for _ in range(2)]
            self.turned_away(d, roles.OTHER, "connections", 5)
            roots = [stack.enter_context(d.connect()) for _ in range(2)]
            self.turned_away(d, 0, "connections", 5)
            for w in mine + others + roots:
                self.assertIsNone(w.generate(**SHORT).error)
            mine.pop().close()
            for w in roots:  # they count among all
                w.close()
            with self.freed(d, roles.USER) as w:
                self.assertIsNone(w.generate(**SHORT).error)

    @contextlib.contextmanager
    def freed(self, d, uid):
        """A connection, once the daemon has seen that there is room again."""
        def try_():
            try:
                return roles.connect(d, uid)
            except (wire.Closed, KeyError, OSError):
                return None

        with wait_for(try_, 5, "room for a connection") as w:
            yield w

    def test_requests(self):
        """A user's requests, on however many connections; others' go on, admins step in."""
        with Daemon("limits.requests_per_uid=4", "limits.requests=6",
                    "limits.admin_requests=2") as d, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.USER) as w2, roles.connect(d, roles.OTHER) as other, \
                d.connect() as root:
            for i in range(1, 5):
                w.send(i, generate=RUNNING)
            w.receive()
            self.busy(w2.generate(**SHORT).error, "requests_per_uid", 4)
            self.busy(w2.ask(list_requests={})["error"], "requests_per_uid", 4)
            self.assertEqual(w2.status()["state"], "STATE_READY")
            self.assertIsNone(other.generate(**SHORT).error)
            other.send(1001, generate=RUNNING)
            other.send(1002, generate=RUNNING)
            other.send(1003, generate=SHORT)
            while (reply := other.receive())["id"] != 1003:
                pass
            self.busy(reply["error"], "requests", 6)
            seen = root.ask(list_requests={})["request_list"]
            self.assertEqual(seen["total"], 6)
            for info in seen["requests"]:
                self.assertTrue(root.ask(cancel={"request": info["request"]})
                                ["cancelled"]["found"])
            w.collect(range(1, 5))
            self.assertIsNone(w2.generate(**SHORT).error)

    def test_requests_of_a_connection(self):
        """As many as the limit of the connection, and no more."""
        with Daemon("limits.requests_per_connection=3") as d, d.connect() as w, \
                d.connect() as other:
            for i in range(1, 5):
                w.send(i, generate=RUNNING)
            while (reply := w.receive())["id"] != 4:
                pass
            self.busy(reply["error"], "requests_per_connection", 3)
            self.assertIsNone(other.generate(**SHORT).error)

    def test_inspect_requests(self):
        """The limit counts a user's inspect requests on all connections. Those of others are answered,
        and so are all that were accepted."""
        with Daemon("limits.inspects_per_uid=2") as d, \
                roles.connect(d, roles.USER) as w, roles.connect(d, roles.OTHER) as other, \
                d.connect() as root:
            root.begin(1, RUNNING)
            n = 200
            for i in range(1, n + 1):
                w.send(i, get_blocks={})
            self.assertIn("block_report", other.ask(get_blocks={}))
            told = {}
            while len(told) < n:
                reply = w.receive()
                told[reply["id"]] = reply
            refused = [reply["error"] for reply in told.values() if "error" in reply]
            self.assertGreater(len(refused), 0)
            self.assertLess(len(refused), n)
            for error in refused:
                self.busy(error, "inspects_per_uid", 2)
            self.assertIn("request_list", w.ask(list_requests={}))

    def test_queued_tokens(self):
        """Prompts that wait: a user's tokens are bounded, and freed as answers begin."""
        prompt = {"ids": [7] * 400}
        with Daemon("limits.queued_tokens_per_uid=1000", "limits.queued_tokens=1500",
                    "scheduler.max_seqs=1") as d, roles.connect(d, roles.USER) as w, \
                roles.connect(d, roles.OTHER) as other, d.connect() as root:
            root.begin(1, RUNNING)  # the one that runs: all others wait
            for i in range(1, 4):
                w.send(i, generate={"prompt_ids": prompt, "max_tokens": 1, "stream": True})
            self.busy(w.receive()["error"], "queued_tokens_per_uid", 1000)
            other.send(1, generate={"prompt_ids": prompt, "max_tokens": 1})
            other.send(2, generate={"prompt_ids": prompt, "max_tokens": 1})
            self.busy(other.receive()["error"], "queued_tokens", 1500)
            root.send(2, cancel={"target": 1})
            for one, ids in (w, [1, 2]), (other, [1]):
                for answer in one.collect(ids).values():
                    self.assertIsNone(answer.error)
            for i in range(5, 7):
                self.assertIsNone(w.generate(prompt_ids=prompt, max_tokens=1).error)
            running = {k: v for k, v in RUNNING.items() if k != "prompt"}
            w.begin(7, {**running, "prompt_ids": prompt})  # it has begun: its prompt waits no more
            for i in range(8, 11):
                w.send(i, generate={"prompt_ids": prompt, "max_tokens": 1})
            refused = next(r for r in iter(w.receive, None) if r["id"] != 7)
            self.assertEqual(refused["id"], 10)
            self.busy(refused["error"], "queued_tokens_per_uid", 1000)

    def test_memory_of_requests(self):
        """What is made of small frames, many choices with many stops, is on the account until the
        request ends: the rest is refused, and the daemon does not grow by it."""
        large = {**LONG, "n": 64, "stop": [bytes([97 + i]) * 250 for i in range(16)]}
        with Daemon(SMALL, "limits.request_bytes_per_uid=4608K", "limits.request_bytes=6M") as d, \
                roles.connect(d, roles.USER) as w, roles.connect(d, roles.OTHER) as other, \
                d.connect() as root:
            self.assertIsNone(w.generate(**{**large, "max_tokens": 2}).error)
            d.wait_filled()
            before = d.rss_kib()
            n = 300
            for i in range(1, n):
                w.send(i, generate={**large, "stream": False})
            refused = []
            w.send(n, tokenize={"text": b"a"})
            while (reply := w.receive())["id"] != n:
                refused.append(reply["error"])
            self.assertIn("tokens", reply)
            for error in refused:
                self.busy(error, "request_bytes_per_uid", 4608 << 10)
            self.assertIn(len(refused), range(n - 10, n - 1))
            if not config.light:  # sanitizers keep freed memory
                self.assertLess(d.rss_kib() - before, 32 << 10)
            self.assertIsNone(other.generate(**SHORT).error)
            for i in range(1, 4):
                other.send(i, generate={**large, "stream": False})
            self.busy(other.receive()["error"], "request_bytes", 6 << 20)
            taken = root.ask(list_requests={})["request_list"]["requests"]
            for info in taken:
                root.ask(cancel={"request": info["request"]})
            d.wait_idle()
            with roles.connect(d, roles.USER) as again:
                self.assertIsNone(again.generate(**{**large, "max_tokens": 2}).error)

    def test_memory_of_answers(self):
        """Answers are on the account as they grow: one that takes too much ends, by name."""
        large = {**LONG, "max_tokens": 1100, "n": 8, "stream": False,
                 "sampling": {**LONG["sampling"], "logprobs": 20}}
        with self.instant_daemon(300, "limits.request_bytes_per_uid=1M") as d, \
                roles.connect(d, roles.USER) as w, roles.connect(d, roles.OTHER) as other:
            error = w.generate(**large).error
            self.assertEqual((error["code"], error["limit"]),
                             ("ERROR_TOO_LONG", "limits.request_bytes_per_uid"))
            for i in range(1000, 1008):
                w.send(i, generate={**large, "n": 1})
            ends = [a.error for a in w.collect(range(1000, 1008)).values()]
            self.assertTrue(any(ends))  # on a slow machine all of them
            for error in filter(None, ends):
                self.busy(error, "request_bytes_per_uid", 1 << 20)
            self.assertIsNone(w.generate(**{**large, "n": 1}).error)  # the memory is back
            self.assertIsNone(other.generate(**SHORT).error)
        with self.instant_daemon(300, "limits.request_bytes=1M") as d, roles.connect(d, roles.USER) as w:
            self.assertEqual(w.generate(**large).error["limit"], "limits.request_bytes")

    def test_memory_is_not_taken_ahead(self):
        """What an answer may grow to is not taken when its request comes."""
        n = scaled(300, 50)
        with Daemon("cache.kv_memory=512M") as d, d.connect() as w:
            before = d.memory_kib("VmSize")
            for i in range(1, n + 1):
                w.send(i, generate={**RUNNING, "n": 64})
            w.send(n + 1, list_requests={"limit": 1})
            while "request_list" not in (reply := w.receive()):
                self.assertNotIn("error", reply)
            self.assertEqual(reply["request_list"]["total"], n)
            self.assertLess(d.memory_kib("VmSize") - before, n << 10)  # of 7.5 MiB each

    def test_what_never_fits_is_too_long(self):
        """A request that is over a limit by itself need not come again."""
        for limit, value, request in (
                ("request_bytes_per_uid", 256 << 10, {**SHORT, "n": 64, "stop": [b"xyz"] * 16}),
                ("queued_tokens_per_uid", 100, {"prompt_ids": {"ids": [7] * 101}, "max_tokens": 1})):
            with self.subTest(limit), Daemon(SMALL, f"limits.{limit}={value}") as d, d.connect() as w:
                error = w.generate(**request).error
                self.assertEqual((error["code"], error["limit"], error["retryable"]),
                                 ("ERROR_TOO_LONG", f"limits.{limit}", False))
                self.assertIsNone(w.generate(**SHORT).error)

    def test_memory_of_buffers(self):
        """Over a user's limit its largest holder goes; others', who hold more, stay."""
        with Daemon("cache.kv_memory=16M", "limits.buffer_bytes_per_uid=12M",
                    "limits.frame_bytes=8M") as d, contextlib.ExitStack() as stack:
            other = stack.enter_context(roles.connect(d, roles.OTHER))
            other.raw(wire.varint(6 << 20) + bytes(5 << 20))
            mine = [stack.enter_context(roles.connect(d, roles.USER)) for _ in range(6)]
            small = stack.enter_context(roles.connect(d, roles.USER))
            for w in mine:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    w.raw(wire.varint(4 << 20) + bytes(3 << 20))
            wait_for(lambda: "why=limits.buffer_bytes_per_uid" in d.log(), 5, "one was dropped")
            told = []
            for w in mine:
                w.sock.settimeout(0.5)
                with contextlib.suppress(TimeoutError):
                    told.append(w.receive()["error"])
            self.assertTrue(told)
            for error in told:
                self.busy(error, "buffer_bytes_per_uid", 12 << 20)
            self.assertIsNone(small.generate(**SHORT).error)
            self.assertNotIn(f"dropped uid={roles.OTHER}", d.log())
            other.raw(bytes(1 << 20))  # its frame comes to its end: it is no message
            self.assertEqual(other.receive()["error"]["code"], "ERROR_PROTOCOL")

    def test_one_large_frame_among_many_buffers(self):
        """Over the limit of all those go who hold the most together, not the largest frame."""
        with Daemon(SMALL, "limits.buffer_bytes=12M", "limits.buffer_bytes_per_uid=12M") as d, \
                contextlib.ExitStack() as stack:
            many = [stack.enter_context(roles.connect(d, roles.OTHER)) for _ in range(80)]
            w = stack.enter_context(roles.connect(d, roles.USER))
            frame = wire.frame(5, generate={**SHORT, "prompt": b" word" * 780000})
            for other in many[:40]:
                other.raw(wire.varint(200000) + bytes(120000))
            w.raw(frame[:-1])
            for other in many[40:]:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    other.raw(wire.varint(200000) + bytes(120000))
            wait_for(lambda: "why=limits.buffer_bytes " in d.log(), 5, "one was dropped")
            w.raw(frame[-1:])
            self.assertEqual(w.receive()["error"]["code"], "ERROR_TOO_LONG")
            self.assertNotIn(f"dropped uid={roles.USER}", d.log())

    def test_nothing_is_left(self):
        """After users of all kinds have left in all ways, nothing is on any account: the daemon
        asserts it when the last connection of a user goes."""
        with Daemon(SMALL) as d:
            for round_ in range(scaled(20, 5)):
                for uid in roles.USER, roles.OTHER, roles.USER + round_ + 10:
                    with roles.connect(d, uid) as w:
                        for i in range(1, 6):
                            w.send(i, generate={**LONG, "n": 1 + i % 3})
                        w.send(7, tokenize={"text": b"a" * 50000})
                        w.send(8, list_requests={})
                        if round_ % 3:
                            w.receive()
                        if round_ % 2:
                            w.raw(wire.varint(5000) + bytes(3000))
            d.wait_idle()


class LargePrompts(Case):
    def test_others_do_not_wait_for_the_tokenizer(self):
        """While one client's large prompts are tokenized, another's short ones and tokens go on."""
        n = scaled(8, 3)
        with Daemon(SMALL, "limits.frame_bytes=16M", "limits.prompt_bytes=16M",
                    "limits.queued_tokens_per_uid=1073741824",
                    "limits.queued_tokens=1073741824") as d, d.connect() as w, \
                d.connect() as other:
            text = b"The quick brown fox jumps over the lazy dog. " * 330000
            for i in range(1, n + 1):  # they will be too long, once that is known
                w.send(i, generate={"prompt": text, "max_tokens": 1})
            slowest = 0
            for _ in range(10):
                begin = time.monotonic()
                self.assertIn("tokens", other.ask(tokenize={"text": b"short"}))
                slowest = max(slowest, time.monotonic() - begin)
            self.assertLess(slowest, scaled(1, 10))
            self.assertIsNone(other.generate(**SHORT).error)
            self.assertEqual(other.status()["state"], "STATE_READY")
            w.send(n + 1, list_requests={})
            large = 0
            while "request_list" not in (reply := w.receive()):
                self.assertEqual(reply["error"]["code"], "ERROR_TOO_LONG")
                large += 1
            self.assertLess(large, n, "the large ones were done before: nothing was shown")
            for _ in range(n - large):
                self.assertEqual(w.receive()["error"]["code"], "ERROR_TOO_LONG")

    def test_one_user_does_not_fill_the_tokenizer(self):
        """A user's short text passes all but a few of the hundreds that another has sent before. These
        are refused once they are encoded: their answers are small, and nothing has to be computed."""
        roles.need_root()
        n = scaled(300, 60)
        text = b"The quick brown fox jumps over the lazy dog, 12 times. " * 1000
        with Daemon("cache.kv_memory=16M", "limits.prompt_tokens=100") as d, \
                roles.connect(d, roles.USER) as many, roles.connect(d, roles.OTHER) as one:
            many.raw(b"".join(wire.frame(i, generate={"prompt": text}) for i in range(1, n + 1)))
            self.assertIn("tokens", one.ask(tokenize={"text": b"short"}))
            came = b""  # by now: what comes while this is counted is not
            with contextlib.suppress(BlockingIOError):
                came = many.sock.recv(1 << 20, socket.MSG_DONTWAIT)
            many.buffer += came
            passed = many.held()
            print(f"{passed} of {n} went before", end=" ")
            self.assertLess(passed, n // 2)
            many.sock.settimeout(scaled(120, 500))
            for _ in range(n):
                self.assertEqual(many.receive()["error"]["limit"], "limits.prompt_tokens")


class SlowReaders(Case):
    """A client that does not read is paused, then cut off; others notice nothing."""

    WORDY = {**LONG, "sampling": {**LONG["sampling"], "logprobs": 20}}

    def stall(self, w, n):
        """Many streams that nobody reads."""
        for i in range(1, n + 1):
            w.send(i, generate=self.WORDY)

    def test_paused_and_resumed(self):
        """Who reads again in time has lost nothing: the tokens are those of a quick reader."""
        with Daemon(SMALL, "limits.output_pause_bytes=16K", "limits.slow_reader_s=600") as d, \
                d.connect() as w, d.connect() as quick:
            request = {**self.WORDY, "max_tokens": scaled(1500, 600)}
            w.send(1, generate=request)
            expected = quick.generate(**request)
            with d.connect() as idle:
                wait_for(lambda: idle.status().get("requests", {}).get("running", 0) == 0,
                         scaled(60, 400),
                         "both have ended")
            answer = w.collect([1])[1]
            self.assertEqual(answer.outcome(), expected.outcome())
            self.assertEqual(answer.done["usage"]["completion_tokens"], request["max_tokens"])
            self.assertIsNone(w.generate(**SHORT).error)

    def test_cut_off_after_the_grace_time(self):
        """A reader that stays away loses its connection and its requests, by name."""
        with Daemon(SMALL, "limits.output_pause_bytes=16K", "limits.slow_reader_s=1") as d, \
                d.connect() as w, d.connect() as other:
            self.stall(w, 4)
            wait_for(lambda: "limits.slow_reader_s" in d.log(), scaled(30, 300), "cut off")
            self.assertIsNone(other.generate(**SHORT).error)
            wait_for(lambda: other.status()["blocks"].get("used", 0) == 0, 10, "requests ended")
            error = None
            with contextlib.suppress(wire.Closed):
                while True:
                    reply = w.receive()
                    error = reply.get("error", error)
            self.assertEqual((error["code"], error["limit"], error["limit_value"]),
                             ("ERROR_BUSY", "limits.slow_reader_s", 1))

    def test_cut_off_at_the_limit(self):
        """More than the limit of bytes is not waited with: it is reached long before the streams' end,
        at whatever pace this machine computes them."""
        with Daemon("limits.output_pause_bytes=4K", "limits.output_bytes=64K",
                    "limits.slow_reader_s=3600") as d, d.connect() as w, d.connect() as other:
            self.stall(w, 8)
            while "limits.output_bytes" not in d.log():
                self.assertLess(other.status().get("output_tokens", 0), 4000, "it was not cut off")
                time.sleep(0.02)
            self.assertIsNone(other.generate(**SHORT).error)

    def test_a_paused_client_is_not_read(self):
        """Requests of a client that does not read its answers wait with it."""
        with Daemon(SMALL, "limits.output_pause_bytes=64K", "limits.slow_reader_s=600") as d, \
                d.connect() as w, d.connect() as other:
            w.sock.settimeout(1)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 20000:
                    w.send(sent + 1, tokenize={"text": b"1" * 1000})
                    sent += 1
            self.assertLess(sent, 20000)
            self.assertIsNone(other.generate(**SHORT).error)
            w.sock.settimeout(30)
            for i in range(sent - 1):
                reply = w.receive()
                self.assertTrue("tokens" in reply or reply["error"]["code"] == "ERROR_BUSY")
