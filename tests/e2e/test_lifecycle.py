"""Start, stop and everything that can go wrong with them."""

import contextlib
import json
import math
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import threading
import time

import harness
import wire
from harness import LONG, MODEL, RUNNING, SMALL, Case, Daemon, config, model_folder, run_command, scaled

CAP_SYS_NICE = 23
ENGINE_NICE = -10


class Drain(Case):
    def test_each_accepted_request_gets_its_answer(self):
        """SIGTERM under load: one terminal answer a request, new ones are refused, status 0."""
        with Daemon("daemon.drain_timeout_s=60") as d, d.connect() as w:
            ids = range(1, 13)
            for i in ids:
                w.send(i, generate={**LONG, "max_tokens": scaled(200, 40)})
            first = w.receive()  # they are accepted and in progress
            d.process.send_signal(signal.SIGTERM)
            with_first = {i: wire.Answer() for i in ids}
            with_first[first["id"]].take(first)
            open_ids, refused = set(ids), None
            w.send(99, generate=LONG)
            while open_ids:
                reply = w.receive()
                if reply["id"] == 99:
                    if "error" in reply:
                        refused = reply["error"]
                elif with_first[reply["id"]].take(reply):
                    open_ids.remove(reply["id"])
            self.assertEqual(d.process.wait(timeout=scaled(30, 120)), 0)
            for a in with_first.values():
                self.assertIsNotNone(a.done)
                self.assertEqual(a.choices[0].reason, "FINISH_LENGTH")
            if refused:  # it may also have come just before the signal was seen
                self.assertEqual(refused["code"], "ERROR_UNAVAILABLE")
                self.assertTrue(refused["retryable"])
            self.assertFalse(d.socket.exists())

    def test_deadline_of_the_drain(self):
        """What has not ended when the drain's time is over is ended, with an answer; status 0."""
        with Daemon("daemon.drain_timeout_s=1") as d, d.connect() as w:
            w.begin(1, RUNNING)
            begin = time.monotonic()
            d.process.send_signal(signal.SIGTERM)
            answer = w.collect([1])[1]
            self.assertEqual(d.process.wait(timeout=scaled(30, 120)), 0)
            self.assertLess(time.monotonic() - begin, scaled(10, 60))
            ended = [c.reason for c in answer.choices.values()]
            self.assertTrue(answer.error or ended == ["FINISH_CANCELLED"], (answer.error, ended))

    def test_who_goes_on_asking_does_not_keep_it(self):
        """A client that always has another inspect request in progress is answered those accepted, and
        then refused: the daemon ends as one without work."""
        text = b"The quick brown fox jumps over the lazy dog, 12 times. " * 4000
        with Daemon("daemon.drain_timeout_s=300", "limits.inspects_per_uid=16") as d, \
                d.connect() as w:
            frames = [wire.frame(i, explain={"prompt": text}) for i in range(1, 17)]
            w.raw(b"".join(frames))
            codes = set()

            def ask_on():
                with contextlib.suppress(wire.Closed, BrokenPipeError, ConnectionResetError):
                    while True:
                        reply = w.receive()
                        codes.add(reply.get("error", {}).get("code"))
                        w.raw(frames[reply["id"] - 1])

            asking = threading.Thread(target=ask_on)
            asking.start()
            time.sleep(0.3)
            begin = time.monotonic()
            d.process.send_signal(signal.SIGTERM)
            self.assertEqual(d.process.wait(timeout=scaled(330, 500)), 0)
            asking.join()
            self.assertLess(time.monotonic() - begin, scaled(30, 120))
            self.assertLessEqual(codes, {None, "ERROR_UNAVAILABLE"})
            self.assertIn(None, codes)

    def test_idle_daemon_ends_at_once(self):
        """SIGTERM and SIGINT without work, with silent connections open: status 0."""
        for number in signal.SIGTERM, signal.SIGINT:
            with Daemon() as d, d.connect(), d.connect(hello=False):
                begin = time.monotonic()
                d.process.send_signal(number)
                self.assertEqual(d.process.wait(timeout=scaled(20, 60)), 0)
                self.assertLess(time.monotonic() - begin, scaled(5, 30))


class Idle(Case):
    def test_nothing_wakes_it(self):
        """A daemon without work sleeps, with all of its threads, and so with connected clients."""
        with Daemon(SMALL) as d, d.connect() as w:
            w.generate(**harness.GOOD)
            d.wait_filled()
            time.sleep(5)  # the last line of its status is out, and the watchdog has looked once more
            before = d.n_wakes()
            time.sleep(scaled(20, 5))
            self.assertLessEqual(d.n_wakes() - before, 2)


class Sockets(Case):
    def test_closed_standard_error(self):
        """Without stderr the log goes nowhere, not into the next file that is opened."""
        folder = self.temporary_folder()
        p = subprocess.Popen([config.nvllmd, "--model", MODEL, "--backend", "cpu",
                              "--socket", folder / "socket", "--set", "cache.kv_memory=16M"],
                             preexec_fn=lambda: os.close(2))
        try:
            run_command([config.nvllmctl, "--socket", folder / "socket", "--wait", "status"])
            self.assertEqual((folder / "socket.lock").read_bytes(), b"")
        finally:
            p.terminate()
            self.assertEqual(p.wait(timeout=scaled(20, 60)), 0)


class Refusals(Case):
    """A daemon that cannot serve says what is wrong with what, and ends."""

    def refused(self, *named, model=MODEL, options=(), args=(), lasting=False):
        """lasting: another start would not help, and systemd tries none."""
        socket_path = self.temporary_folder() / "s"
        command = [config.nvllmd, "--model", model, "--socket", socket_path, "--backend", "cpu",
                   *args]
        for o in options:
            command += ["--set", o]
        done = run_command([str(c) for c in command], check=False)
        text = done.stderr.decode(errors="replace")
        self.assertGreater(done.returncode, 0, f"killed or accepted: {text}")
        if lasting:
            self.assertEqual(done.returncode, 2, text)
        for name in named:
            self.assertIn(name, text)
        self.assertNotIn("Sanitizer", text)
        self.told_before(command, *named)
        return text

    def told_before(self, command, *named):
        """nvllmd check-config says the same, without a start; wrong usage is no configuration."""
        done = subprocess.run([str(c) for c in [command[0], "check-config", *command[1:]]],
                              capture_output=True, timeout=scaled(30, 120))
        text = done.stdout.decode(errors="replace")
        if done.returncode != 2 or text:
            self.assertEqual(done.returncode, 1, text)
            self.assertRegex(text, r"(?m)^wrong  \w+ +\S")
        for name in named:
            self.assertIn(name, text + done.stderr.decode(errors="replace"))

    def changed_config(self, **changes):
        original = json.loads((MODEL / "config.json").read_text())
        return json.dumps({**original, **changes})

    def folder(self, **changes):
        return model_folder(self.temporary_folder() / "model", **changes)

    def test_broken_models(self):
        """The file that is missing or broken is named, with the field that is wrong."""
        self.refused("no-such-folder", model=self.temporary_folder() / "no-such-folder")
        whole = (MODEL / "model.safetensors").read_bytes()
        norm = b"model.norm.weight"
        tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
        tokenizer["model"]["type"] = "Unigram"
        for stem, content, *named in (
                ("config", None, "config.json"), ("tokenizer", None, "tokenizer.json"),
                ("model", None, "safetensors"), ("model", whole[:-1], "model.safetensors"),
                ("model", whole.replace(norm, norm[::-1]), "model.safetensors", norm.decode()),
                ("config", "[" * 100000, "config.json"),
                ("config", self.changed_config(head_dim=-1), "config.json", "head_dim"),
                ("tokenizer", "{", "tokenizer.json"),
                ("tokenizer", json.dumps(tokenizer), "tokenizer.json", "Unigram")):
            with self.subTest(stem=stem, named=named):
                self.refused(*named, model=self.folder(**{stem: content}))

    def test_tokenizer_of_another_model(self):
        """An id that the model has no embedding for is named, before a prompt can hold it."""
        original = json.loads((MODEL / "tokenizer.json").read_text())
        original["added_tokens"].append(
            dict(original["added_tokens"][0], id=2500, content="<|beyond|>"))
        bad = self.folder(tokenizer=json.dumps(original))
        self.refused("tokenizer.json", "2500", "<|beyond|>", model=bad)
        self.assertIn(b"<|beyond|>", self.checked(bad, 1))

    def checked(self, model, status):
        """What nvllmd check prints of a folder."""
        done = run_command([config.nvllmd, "check", "--model", model], check=False)
        self.assertEqual(done.returncode, status)
        return done.stdout

    def test_check_names_what_is_wrong(self):
        """nvllmd check says the same without starting anything."""
        self.checked(MODEL, 0)
        bad = self.folder(config=self.changed_config(architectures=["LlamaForCausalLM"]))
        self.refused("config.json", "LlamaForCausalLM", model=bad)
        self.assertIn(b"LlamaForCausalLM", self.checked(bad, 1))
        self.assertEqual(self.checked("/nonexistent", 1),
                         b"wrong  /nonexistent: No such file or directory\n")

    def test_options(self):
        """Options that do not exist or are out of range are named."""
        for option in ("cache.block_len=17", "cache.block_len=8192", "cache.block_len=x",
                       "cache.kv_memory=12Q", "cache.kv_memory=-1", "scheduler.max_seqs=0",
                       "scheduler.max_batch_tokens=0", "cache.kv_dtype=f64"):
            self.refused(option.split("=")[0], options=[option])
        self.refused("cache.no_such", options=["cache.no_such=1"])
        self.refused("kv_memory", options=["cache.kv_memory=1K"], lasting=True)
        self.refused("not a socket", options=[f"daemon.socket={MODEL}/config.json"], lasting=True)
        self.refused("--no-such", args=["--no-such"])

    def with_four_heads(self):
        """The bundled model with half of its query heads, and zeros for weights."""
        whole = (MODEL / "model.safetensors").read_bytes()
        n = int.from_bytes(whole[:8], "little")
        header, at = json.loads(whole[8:8 + n]), 0
        for name, t in header.items():
            if name == "__metadata__":
                continue
            if "q_proj" in name or "o_proj" in name:
                t["shape"]["o_proj" in name] //= 2
            t["data_offsets"] = [at, at := at + 2 * math.prod(t["shape"])]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return self.folder(model=len(text).to_bytes(8, "little") + text + bytes(at),
                           config=self.changed_config(num_attention_heads=4))

    def test_ranks(self):
        """What cannot be divided among ranks is named, and devices that are not one a rank."""
        model = self.with_four_heads()
        self.refused("model.tensor_parallel: 4 query heads cannot be divided among 8 ranks",
                     options=["model.tensor_parallel=8"], model=model)
        self.refused("cuda.devices: 3 devices are named, but model.tensor_parallel is 2",
                     options=["daemon.backend=cuda", "model.tensor_parallel=2",
                              "cuda.devices=0,1,2"])
        self.refused("cuda.devices", options=["daemon.backend=cuda", "cuda.devices=0,1"])
        self.refused("model.tensor_parallel", options=["model.tensor_parallel=3"])

    def test_check_config_of_ranks(self):
        """It says how much of the weights each rank would hold."""
        for options, notes in ([], []), (["--set", "model.tensor_parallel=2"],
                                         ["2 ranks, each with at most 5.8 MiB of weights"]):
            out = self.check_config("--model", MODEL, "--backend", "cpu", "--socket",
                                    self.temporary_folder() / "s", *options)
            self.assertEqual([f["text"] for f in out["findings"] if f["about"] == "ranks"], notes)

    def test_clusters(self):
        """What makes no cluster is named, and what cannot be in one, before anybody is waited for."""
        two = ["cluster.world_size=2", "cluster.rendezvous=/nowhere/id"]
        self.refused("cluster.rendezvous", "HOST:PORT", options=["cluster.world_size=2"])
        self.refused("cluster.rank: 1", options=["cluster.rank=1"])
        self.refused("cache.disk", options=[*two, "cache.disk=1G"])
        self.refused("cluster.world_size", "cpu backend", options=two)
        self.refused("cluster.world_size", "cpu backend", options=[*two, "cluster.rank=1"])

    def test_unknown_commands(self):
        """A mistyped command gets the one that was meant."""
        for word, meant in ("chek", "check"), ("check_config", "check-config"), ("tokenise", "tokenize"):
            done = run_command([config.nvllmd, word], check=False)
            self.assertEqual((done.returncode, done.stdout), (2, b""))
            self.assertIn(f"did you mean “{meant}”?".encode(), done.stderr)
        for args, text in ((["--modle", "x"], "there is no option --modle: did you mean “--model”?"),
                           (["-t"], "there is no option -t"), (["--config"], "--config takes a value"),
                           (["check", "--version=3"], "--version takes no value"),
                           (["check", "a/folder"], "“a/folder” is one argument too many: give a model folder"),
                           (["a/folder"], "there is no command “a/folder”: give a model folder with"),
                           (["detokenize", "1", "2"], "“2” is one argument too many: put all of them"),
                           (["tune", "x"], "“x” is one argument too many\n"),
                           (["--entirely-else"], "there is no option --entirely-else\n")):
            done = run_command([config.nvllmd, *args], check=False)
            self.assertEqual((done.returncode, done.stdout), (2, b""), args)
            self.assertIn(text, done.stderr.decode())
        with open("/dev/full", "wb") as full:
            for args in ["--help"], ["--version"], ["check-config", "--model", MODEL]:
                done = subprocess.run([config.nvllmd, *map(str, args)], stdout=full,
                                      stderr=subprocess.PIPE, timeout=scaled(30, 120))
                self.assertEqual((done.returncode, done.stderr),
                                 (1, b"nvllmd: cannot write to stdout\n"), args)
        done = run_command([config.nvllmd, "serve"], check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no command “serve”".encode(), done.stderr)

    def test_tune(self):
        """Where there is nothing to measure, nvllmd tune says so; it wants a model and right options."""
        for args, status, text in ((["--model", MODEL], 1, "the cpu backend has nothing to tune"),
                                   ([], 2, "no model"), (["--set", "cuda.tune=now"], 2, "cuda.tune")):
            done = run_command([config.nvllmd, "tune", "--backend", "cpu", *map(str, args)],
                               check=False)
            self.assertEqual((done.returncode, done.stdout), (status, b""))
            self.assertIn(text.encode(), done.stderr)

    def check_config(self, *args):
        done = run_command([config.nvllmd, "check-config", "--json", *args], check=False)
        self.assertEqual(done.stderr, b"")
        out = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if out["wrong"] else 0, out)
        self.assertEqual(out["wrong"], sum(f["level"] == "wrong" for f in out["findings"]))
        return out

    def test_check_config(self):
        """A configuration that is right, with its socket in use or not; nothing is changed."""
        with Daemon(SMALL) as d:
            path = d.folder / "nvllmd.conf"
            path.write_text(f"[model]\npath = {MODEL}\n[daemon]\nsocket = {d.socket}\n"
                            "backend = cpu\n")
            out = self.check_config("--config", path)
            self.assertEqual((out["wrong"], out["socket"], out["model"]),
                             (0, str(d.socket), str(MODEL)))
            self.assertEqual({f["about"]: f["level"] for f in out["findings"]},
                             dict.fromkeys(("config", "backend", "socket", "model"), "ok"))
            d.connect().close()
        before = sorted(d.folder.iterdir()) if d.folder.exists() else []
        folder = self.temporary_folder()
        done = run_command([config.nvllmd, "check-config", "--model", MODEL, "--socket", folder / "s"])
        self.assertTrue(done.stdout.endswith(b"nvllmd would start with this configuration.\n"))
        self.assertEqual(list(folder.iterdir()), [])
        self.assertEqual(before, sorted(d.folder.iterdir()) if d.folder.exists() else [])

    def test_check_config_finds_all_that_is_wrong(self):
        """Each thing that a start would end at, all at once, with a command for each."""
        folder = self.temporary_folder()
        path = folder / "it's.conf"

        def wrong(text):
            path.write_text(text)
            out = self.check_config("--config", path)
            return {f["about"]: (f["text"], f.get("fix")) for f in out["findings"]
                    if f["level"] == "wrong"}

        name = f"'{folder}/it'\\''s.conf'"
        found = wrong("[cache]\n\nkv_memory = lots\n")
        self.assertEqual(found["config"][1], "${EDITOR:-vi} +3 " + name)
        (folder / "file").write_text("")
        found = wrong(f"[model]\npath = {folder}/none\n[daemon]\nsocket = {folder}/no/such/s\n"
                      f"admin_socket = {folder}/file\nadmin_group = no-such-group\nbackend = cuda\n"
                      f"[backend]\nmodule = {folder}/none.so\n")
        self.assertEqual(set(found), {"backend", "socket", "admins", "model"})
        me = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        self.assertEqual(found["socket"][1].removeprefix("sudo "),
                         f"install -d -o {me} -m 0755 '{folder}/no/such'")
        self.assertEqual(found["admins"][1].removeprefix("sudo "), "groupadd --system 'no-such-group'")
        self.assertIn("none.so", found["backend"][0])
        for fix in found["backend"][1], found["model"][1]:
            self.assertTrue(fix, found)
        model = f"[model]\npath = {MODEL}\n[daemon]\nbackend = cpu\n"
        subprocess.run(["sh", "-c", f"install -d -m 0755 '{folder}/no/such'"], check=True)
        self.assertEqual(wrong(model + f"socket = {folder}/no/such/s\n"), {})
        found = wrong(model + f"socket = {folder}/s\nadmin_socket = {folder}/s\n")
        self.assertIn("already", found["admins"][0])
        found = wrong(model + f"socket = {folder}/s\n[cache]\nkv_memory = 900000G\n")
        self.assertIn("kv_memory", found["memory"][0])
        found = wrong(model + f"socket = {folder}/s\n[scheduler]\nmax_seq_len = 1000000\n")
        self.assertIn("max_seq_len", found["config"][0])
        found = wrong(model.replace("[daemon]", f"chat_template = {folder}/none\n[daemon]") +
                      f"socket = {folder}/s\n")
        self.assertIn(f"model.chat_template: {folder}/none", found["model"][0])

    def test_check_config_of_the_cache(self):
        """Its folder has to be there, and the secret in it as a start would take it."""
        folder = self.temporary_folder()
        secret = folder / "cache-secret"

        def found(*options):
            args = [arg for option in options for arg in ("--set", option)]
            out = self.check_config("--model", MODEL, "--backend", "cpu", "--socket", folder / "s",
                                    *args)
            return [(f["level"], f["text"], f.get("fix")) for f in out["findings"]
                    if f["about"] == "cache"]

        self.assertEqual(found(), [])
        (level, text, _), = found("cache.disk=1G")
        self.assertIn("cache.disk", text) if level == "wrong" else self.assertIn("systemd", text)
        (level, text, fix), = found("cache.disk=1G", f"cache.folder={folder}/none")
        self.assertEqual((level, text), ("wrong", f"cache.folder: {folder}/none: "
                                                  "No such file or directory"))
        self.assertIn(f"install -d -m 0700 '{folder}/none'", fix)
        self.assertEqual(found(f"cache.folder={folder}"), [("ok", str(folder), None)])
        self.assertEqual(list(folder.iterdir()), [])
        secret.write_bytes(b"short")
        secret.chmod(0o600)
        (level, text, fix), = found(f"cache.folder={folder}")
        self.assertEqual((level, fix), ("wrong", f"rm -d '{secret}'"))
        secret.chmod(0o644)
        (level, text, fix), = found(f"cache.folder={folder}")
        self.assertEqual((level, fix), ("wrong", f"chmod go= '{secret}'"))
        self.assertIn("mode 644", text)

    def test_configuration_file(self):
        """A file's values count, --set goes over them, a wrong line is named by file and line."""
        folder = self.temporary_folder()
        good, bad = folder / "good.conf", folder / "bad.conf"
        good.write_text("[cache]\nblock_len = 32\nkv_memory = 64M\n")
        bad.write_text("[cache]\n\nno_such = 32\n")
        self.refused("bad.conf", "no_such", "3", args=["--config", bad])
        self.refused("missing.conf", args=["--config", folder / "missing.conf"])
        with Daemon("cache.block_len=64", "cache.kv_memory=64M", args=["--config", good]) as d:
            self.assertEqual(d.status()["block_len"], 64)
            self.assertEqual(d.status()["blocks"]["total"], 64)


def may_be_nice(nice):
    """Whether a program started here may give a thread that priority."""
    with open("/proc/self/status") as f:
        capabilities = next(int(line.split()[1], 16) for line in f if line.startswith("CapEff:"))
    return (bool(capabilities >> CAP_SYS_NICE & 1)
            or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - nice)


class ServiceManager(Case):
    def test_status_follows_requests(self):
        """systemd is told of the start, of the stop, and between them of what runs and waits, also while
        nothing but tokens comes."""
        def last(messages):
            return next((m for m in reversed(messages) if m.startswith("STATUS=")), "")

        with self.notified() as (env, messages):
            with Daemon("scheduler.max_seqs=1", env=env) as d, d.connect() as w:
                w.begin(1, RUNNING)
                reader = threading.Thread(target=lambda: w.collect([1, 2]))
                for want in "1 running, 0 waiting", "1 running, 1 waiting":
                    harness.wait_for(lambda w=want: w in last(messages), scaled(20, 120), want)
                    if want.endswith("0 waiting"):
                        w.send(2, generate={**LONG, "max_tokens": 1})
                        reader.start()
                w.send(3, cancel={"target": 1})
                reader.join()
                harness.wait_for(lambda: "0 running, 0 waiting" in last(messages),
                                 scaled(20, 120), "an idle daemon's status")
        self.assertLess(messages.index("READY=1"), messages.index("STOPPING=1"))

    def test_one_thread_goes_first(self):
        """The engine's thread alone has a higher priority, where the daemon may give it one."""
        with Daemon() as d:
            d.wait_filled()  # by a thread of another priority, which then ends
            nices = [int(nice) for nice in d.thread_stats(19)]
        own = os.getpriority(os.PRIO_PROCESS, 0)
        raised = [ENGINE_NICE] if may_be_nice(ENGINE_NICE) else [own]
        nices = [n for n in nices if n != 19]  # who makes pages of the cache, for a while
        self.assertGreater(len(nices), 3)
        self.assertEqual(sorted(nices), raised + [own] * (len(nices) - 1))

    def test_one_thread_takes_signals(self):
        """Signals are for the loop: a thread that sleeps or computes is never asked to take one."""
        taken = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        with Daemon() as d:
            takers = {number: [] for number in taken}
            for task in pathlib.Path(f"/proc/{d.pid}/task").iterdir():
                try:
                    status = (task / "status").read_text()
                except OSError:
                    continue  # it has ended meanwhile
                blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
                for number in taken:
                    if not blocked >> (number - 1) & 1:
                        takers[number].append(int(task.name))
            self.assertEqual(takers, {number: [d.pid] for number in taken})

    def test_one_wake_up_a_step(self):
        """The loop wakes once for what a step gives, to however many streams."""
        n_tokens, n_streams = 300, 4
        with Daemon() as d, d.connect() as w:
            w.generate(prompt="x", max_tokens=1)
            woken = -d.times_slept()
            for i in range(1, n_streams + 1):
                w.send(i, generate={**LONG, "max_tokens": n_tokens})
            answers = w.collect(range(1, n_streams + 1))
            woken += d.times_slept()
        self.assertEqual([len(a.choices[0].ids) for a in answers.values()], [n_tokens] * n_streams)
        self.assertGreater(woken, n_tokens / 4)
        self.assertLess(woken, 1.5 * n_tokens)

    def test_state_while_loading(self):
        """A connection during loading learns the state, and requests are refused as retryable."""
        seen = []
        for _ in range(20):
            d = Daemon(wait=False)
            try:
                harness.wait_for(d.socket.exists, 10, "a socket")
                try:
                    with d.connect() as w:
                        seen.append(w.welcome["state"])
                        if seen[-1] == "STATE_LOADING":
                            self.assertLessEqual(w.welcome.get("progress", 0), 1)
                            a = w.generate(prompt="x", max_tokens=1)
                            if a.error:  # unless it became ready in between
                                self.assertEqual(a.error["code"], "ERROR_UNAVAILABLE")
                                self.assertTrue(a.error["retryable"])
                            break
                except (OSError, wire.Closed):
                    continue
            finally:
                d.close()
        self.assertTrue(seen)
        self.assertTrue(set(seen) <= {"STATE_LOADING", "STATE_READY"}, seen)
        print(f"states seen while starting: {seen}")


class Loads(Case):
    def test_bf16_cache(self):
        """With bf16 the same memory holds twice the blocks, and answers still come."""
        with Daemon(SMALL, "cache.kv_dtype=bf16") as d:
            self.assertEqual(d.status()["blocks"]["total"], 64 * 1024 * 1024 // (16 * 8192))
            answer = d.generate("What is 17 + 25?", "--no-think", "--temperature", 0)
            self.assertIn("42", answer["text"])

    def test_log_over_the_file_limit(self):
        """A log that may grow no further is no reason to end."""
        with Daemon(SMALL, "daemon.log_level=debug") as d:
            size = d.log_path.stat().st_size + 10
            subprocess.run(["prlimit", f"--pid={d.pid}", f"--fsize={size}:{size}"], check=True)
            most = max(size, d.log_path.stat().st_size)  # a line may have come between
            for _ in range(5):
                with d.connect() as w:
                    self.assertIsNone(w.generate(prompt="Hello", max_tokens=2).error)
            self.assertLessEqual(d.log_path.stat().st_size, most)
