"""Embeddings, from the folder to all who ask for them: over the wire, by nvllmctl, HTTP and Python.

nvllm-tiny becomes an embedder by the files that Sentence Transformers writes; the embeddings of
tests/golden are transformers' own."""

import base64
import json
import math
import shutil
import struct
import sys
import time

import embedder
import harness
from embedder import CASES, DIM, MODULES, cosine, edit
from gateway import Gateway
from harness import Case, Daemon, SMALL, parse_jsonl, scaled
from test_python import needs_protobuf, nvllm

END = 1991  # <|endoftext|>


class Embedder(Case):
    def folder(self, mode="lasttoken", modules=MODULES, prompts=None):
        folder = embedder.make(self.temporary_folder() / "embedder", mode, modules)
        if prompts:
            (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        return folder

    def start(self, *options, **shape):
        d = Daemon(SMALL, *options, model=self.folder(**shape))
        self.addCleanup(d.close)
        return d

    def embed(self, w, text, **more):
        reply = w.ask(embed={"prompt": text, **more})
        self.assertIn("embedding", reply)
        return reply["embedding"]


class Pooling(Embedder):
    def check(self, mode, *options, cached):
        with self.start(*options, mode=mode) as d, d.connect() as w:
            self.assertEqual(w.status()["embedding_dim"], DIM)
            for round_ in range(2):
                for case in CASES:
                    for key, value in ("prompt", case["text"]), ("prompt_ids", {"ids": case["ids"]}):
                        e = w.ask(embed={key: value})["embedding"]
                        self.assertGreater(cosine(e["values"], case[mode]), 0.9999)
                        self.assertAlmostEqual(sum(x * x for x in e["values"]), 1, delta=1e-4)
                        self.assertEqual(e["usage"]["prompt_tokens"], len(case["ids"]))
                # The last text has been computed before, but a mean takes all of it again.
                self.assertEqual(e["usage"].get("cached_tokens", 0) > 0, cached)
            d.wait_idle()

    def test_last_token(self):
        self.check("lasttoken", cached=True)

    def test_mean(self):
        self.check("mean_tokens", cached=False)

    def test_in_chunks(self):
        """Neither the rows of a step nor what else runs make a difference."""
        self.check("mean_tokens", "scheduler.max_batch_tokens=64", "model.tensor_parallel=2",
                   cached=False)

    def test_beside_answers_without_room(self):
        """Where answers take a text's blocks, what was summed up before does not count."""
        case, n_answers, n_texts = CASES[-1], 4, 8
        with self.start("cache.kv_memory=24M", "scheduler.max_batch_tokens=32",
                        "scheduler.speculation=off",
                        mode="mean_tokens") as d, d.connect() as w:
            for i in range(n_answers):
                w.send(i + 1, generate={"prompt_ids": {"ids": [i + 5] * 40}, "max_tokens": 400,
                                        "sampling": {"ignore_eos": True}})
            sent, answers_left, embeddings = 0, n_answers, []
            while answers_left or len(embeddings) < sent:
                # As long as there are answers, so that some text is there when blocks run out.
                while answers_left and sent - len(embeddings) < n_texts:
                    w.send(1000 + sent, embed={"prompt_ids": {"ids": case["ids"]}})
                    sent += 1
                reply = w.receive()
                if reply["id"] >= 1000:
                    embeddings.append(reply["embedding"])
                else:
                    answers_left -= "delta" not in reply
            for e in embeddings:
                self.assertGreater(cosine(e["values"], case["mean_tokens"]), 0.9999)
            self.assertTrue(any(e["usage"].get("preemptions", 0) for e in embeddings))
            d.wait_idle()

    def test_not_normalized(self):
        """Without such a module they have any length; the first dimensions alone are the same."""
        with self.start(modules=MODULES[:2]) as d, d.connect() as w:
            whole = self.embed(w, "Spell lion.")["values"]
            self.assertGreater(sum(x * x for x in whole), 2)
            self.assertGreater(cosine(whole, CASES[0]["lasttoken"]), 0.9999)
            self.assertEqual(self.embed(w, "Spell lion.", dimensions=7)["values"], whole[:7])

    def test_saved_without_a_head(self):
        """A model without an LM head has no prefix in its tensors' names, and only embeds."""
        folder = self.folder()
        embedder.drop_head(folder)
        shutil.rmtree(folder / "1_Pooling")
        (folder / "modules.json").unlink()
        with Daemon(SMALL, model=folder) as d, d.connect() as w:
            e = self.embed(w, CASES[1]["text"])
            self.assertGreater(cosine(e["values"], CASES[1]["lasttoken"]), 0.9999)
            error = w.generate(prompt="Hello", max_tokens=1).error
            self.assertEqual(error["code"], "ERROR_UNSUPPORTED")
            self.assertIn("no LM head", error["message"])


class Requests(Embedder):
    PROMPTS = {"prompts": {"query": "Find: ", "plain": ""}, "default_prompt_name": "query"}

    def test_prompts(self):
        """One of the model's prompts is put before a text, by name or by default."""
        with self.start(prompts=self.PROMPTS) as d, d.connect() as w:
            own = self.embed(w, "Find: lions", prompt_name="plain")
            for more in {}, {"prompt_name": "query"}:
                e = self.embed(w, "lions", **more)
                self.assertGreater(cosine(e["values"], own["values"]), 0.99999)
            error = w.ask(embed={"prompt": "x", "prompt_name": "no\nne"})["error"]
            self.assertEqual((error["code"], error["field"]), ("ERROR_INVALID", "prompt_name"))
            self.assertIn('"no?ne"', error["message"])

    def test_tokens_after_a_text(self):
        """A tokenizer may end a text, whose last token is then that one."""
        folder = self.folder()
        template = {"type": "TemplateProcessing", "pair": [],
                    "single": [{"Sequence": {"id": "A", "type_id": 0}},
                               {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
                    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [END],
                                                         "tokens": ["<|endoftext|>"]}}}
        edit(folder / "tokenizer.json", lambda t: t.update(post_processor=template))
        with Daemon(SMALL, model=folder) as d, d.connect() as w:
            for text, ids in (CASES[0]["text"], CASES[0]["ids"]), (CASES[1]["text"], CASES[1]["ids"]):
                e = self.embed(w, text)
                self.assertEqual(e["usage"]["prompt_tokens"], len(ids) + 1)
                by_ids = w.ask(embed={"prompt_ids": {"ids": [*ids, END]}})["embedding"]
                self.assertGreater(cosine(e["values"], by_ids["values"]), 0.99999)
            tokens = w.ask(tokenize={"text": "Hello"})["tokens"]["ids"]
            self.assertNotIn(END, tokens)

    def test_wrong(self):
        """Each error names its field, and all of it goes on."""
        with self.start("scheduler.max_seq_len=64", "limits.prompt_tokens=48") as d, \
                d.connect() as w:
            for request, code, field in (
                    ({}, "INVALID", "input"),
                    ({"prompt": ""}, "INVALID", "prompt"),
                    ({"prompt": b"\xff"}, "INVALID", "prompt"),
                    ({"prompt": "x", "prompt_name": b"\xff"}, "INVALID", "prompt_name"),
                    ({"prompt_ids": {"ids": [5]}, "prompt_name": "q"}, "INVALID", "prompt_name"),
                    ({"prompt": "x", "dimensions": 0}, "INVALID", "dimensions"),
                    ({"prompt": "x", "dimensions": DIM + 1}, "INVALID", "dimensions"),
                    ({"prompt": "x", "dimensions": 0xffffffff}, "INVALID", "dimensions"),
                    ({"prompt": "x", "priority": 7}, "INVALID", "priority"),
                    ({"prompt_ids": {"ids": []}}, "INVALID", "prompt_ids"),
                    ({"prompt_ids": {"ids": [1, 99999]}}, "INVALID", "prompt_ids.ids[1]"),
                    ({"prompt_ids": {"ids": [-1]}}, "INVALID", "prompt_ids.ids[0]"),
                    ({"prompt_ids": {"ids": [1] * 49}}, "TOO_LONG", "prompt_ids"),
                    ({"prompt": "x " * 300}, "TOO_LONG", "prompt")):
                with self.subTest(request):
                    error = w.ask(embed=request)["error"]
                    self.assertEqual((error["code"], error.get("field")), ("ERROR_" + code, field))
            self.assertEqual(len(self.embed(w, "x")["values"]), DIM)
            d.wait_idle()

    def test_http_within_limits(self):
        """One list of texts has no more requests in progress than the gateway may have."""
        with self.start("limits.requests_per_connection=4") as d, \
                Gateway(d.socket, "--max-requests", 4) as gateway:
            r = gateway.post("embeddings", {"input": [f"text {i}" for i in range(50)]})
            self.assertEqual((r.status, len(r.json["data"])), (200, 50))

    @needs_protobuf
    def test_python_within_limits(self):
        """Many texts keep within the daemon's limit, whatever it is; one alone may fail by it."""
        with self.start("limits.requests_per_connection=4") as d, nvllm.Client(d.socket) as client:
            texts = [f"text {i}" for i in range(50)]
            for one in "x", b"x", [5, 6], ["x", 5]:
                with self.assertRaisesRegex(TypeError, "texts: must be a sequence of texts or"):
                    client.embed(one)
            got = client.embed(texts)
            for text, one in zip(texts, got):
                self.assertGreater(cosine(one.values, client.embed([text])[0].values), 0.99999)
            streams = [client.generate("x", max_tokens=3000, ignore_eos=True) for _ in range(4)]
            with self.assertRaises(nvllm.BusyError):
                client.embed(texts)
            for stream in streams:
                stream.close()
            d.wait_idle()
            self.assertEqual(len(client.embed(texts)), 50)

    def test_longest(self):
        """A text may be as long as the longest sequence: no token follows it."""
        with self.start("scheduler.max_seq_len=64") as d, d.connect() as w:
            e = w.ask(embed={"prompt_ids": {"ids": [5] * 64}})["embedding"]
            self.assertEqual(e["usage"]["prompt_tokens"], 64)
            error = w.ask(embed={"prompt_ids": {"ids": [5] * 65}})["error"]
            self.assertEqual((error["code"], error["field"]), ("ERROR_TOO_LONG", "prompt_ids"))

    def test_ends(self):
        """A deadline, a cancel and a client that leaves end it, and its blocks return."""
        ids = [7] * scaled(30000, 8000)
        with self.start("cache.kv_memory=600M") as d, d.connect() as w:
            error = w.ask(embed={"prompt_ids": {"ids": ids}, "deadline_ms": 20})["error"]
            self.assertEqual(error["code"], "ERROR_DEADLINE")
            w.send(77, embed={"prompt_ids": {"ids": ids}})
            time.sleep(0.05)
            w.send(78, cancel={"target": 77})
            got = {}
            for _ in range(2):
                reply = w.receive()
                got[reply["id"]] = reply
            self.assertEqual(got[77]["error"]["code"], "ERROR_CANCELLED")
            self.assertTrue(got[78]["cancelled"]["found"])
            with d.connect() as leaves:
                leaves.send(1, embed={"prompt_ids": {"ids": ids}})
                time.sleep(0.05)
            d.wait_idle()

    def test_a_model_that_makes_none(self):
        with Daemon(SMALL) as d, d.connect() as w:
            self.assertEqual(w.status()["embedding_dim"], 0)
            error = w.ask(embed={"prompt": "x"})["error"]
            self.assertEqual(error["code"], "ERROR_UNSUPPORTED")
            self.assertIn("modules.json", error["message"])
            done = d.ctl("embed", "x", check=False)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            with Gateway(d.socket) as gateway:
                self.assertEqual(gateway.post("embeddings", {"input": "x"}).error[:2],
                                 (501, "unsupported"))

    def test_backend_with_its_own_size(self):
        """What the backend sums decides how many values there are, not the model's folder."""
        with Daemon(f"backend.module={harness.config.module}", backend="cuda",
                    model=self.folder()) as d, d.connect() as w:
            dim = w.status()["embedding_dim"]
            self.assertLess(dim, DIM)
            self.assertEqual(len(self.embed(w, "x")["values"]), dim)
            self.assertEqual(len(self.embed(w, "x", dimensions=dim)["values"]), dim)
            error = w.ask(embed={"prompt": "x", "dimensions": dim + 1})["error"]
            self.assertEqual((error["code"], error["field"]), ("ERROR_INVALID", "dimensions"))

    def test_counted(self):
        """Metrics count them among the requests that have ended, though not their answers, nor what
        a mean does not look for in the cache."""
        path = self.temporary_folder() / "metrics.prom"
        with self.start(f"metrics.path={path}", "metrics.interval_s=1", mode="mean_tokens") as d, \
                d.connect() as w:
            self.embed(w, "x")

            def counted():
                return path.exists() and 'outcome="stop"} 1\n' in path.read_text()

            harness.wait_for(counted, scaled(30, 60), "an embedding is counted")
            lines = path.read_text().splitlines()
            for line in ("nvllm_request_prompt_tokens_count 1", "nvllm_request_output_tokens_count 0",
                         "nvllm_prefix_cache_queried_tokens_total 0"):
                self.assertIn(line, lines)


class Folders(Embedder):
    """What a folder asks for and is not computed is refused by name."""

    def refused(self, folder, *expected):
        done = harness.run_command([harness.config.nvllmd, "check", "--model", folder], check=False)
        self.assertEqual(done.returncode, 1)
        said = (done.stdout + done.stderr).decode()
        for text in expected:
            self.assertIn(text, said)

    def test_check(self):
        done = harness.run_command([harness.config.nvllmd, "check", "--model", self.folder()])
        self.assertIn(b"embeddings by last token, of length 1", done.stdout)

    def test_other_spellings(self):
        """Newer versions have their classes elsewhere; files may name what is the default."""
        folder = self.folder()
        types = ("base.modules.transformer.Transformer",
                 "sentence_transformer.modules.pooling.Pooling",
                 "sentence_transformer.modules.normalize.Normalize")
        edit(folder / "modules.json", lambda modules: [
            m.update(type="sentence_transformers." + t) for m, t in zip(modules, types)])
        (folder / "sentence_bert_config.json").write_text(
            '{"max_seq_length": 512, "do_lower_case": false}')
        (folder / "config_sentence_transformers.json").write_text(
            '{"prompts": null, "default_prompt_name": null}')
        done = harness.run_command([harness.config.nvllmd, "check", "--model", folder])
        self.assertIn(b"embeddings by last token, of length 1", done.stdout)
        for other in "x.models.Transformer", "sentence_transformers.", "Transformer", "":
            edit(folder / "modules.json", lambda modules, new=other: modules[0].update(type=new))
            self.refused(folder, "modules.json: [0].type")

    def test_pooling(self):
        for change, expected in (
                ({"pooling_mode_lasttoken": False}, "exactly one pooling_mode must be on, not 0"),
                ({"pooling_mode_cls_token": True}, "exactly one pooling_mode must be on, not 2"),
                ({"pooling_mode_lasttoken": False, "pooling_mode_weightedmean_tokens": True},
                 '"weightedmean_tokens" is not supported'),
                ({"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True,
                  "include_prompt": False}, "include_prompt: only true"),
                ({"word_embedding_dimension": DIM + 1}, "word_embedding_dimension: is not")):
            with self.subTest(change):
                folder = self.folder()
                edit(folder / "1_Pooling" / "config.json", lambda c, new=change: c.update(new))
                self.refused(folder, "1_Pooling/config.json: ", expected)

    def test_modules(self):
        for modules, expected in (
                ([*MODULES, "Dense"], "not 4 modules"),
                (["Transformer", "Pooling", "Dense"], '[2].type: "sentence_transformers.models.Dense"'),
                (["Transformer"], "not 1 modules"),
                (["Pooling", "Transformer"], "[0].type")):
            with self.subTest(modules):
                self.refused(self.folder(modules=modules), "modules.json: ", expected)

    def test_files(self):
        for name, text, expected in (
                ("modules.json", "[", "modules.json: not JSON"),
                ("modules.json", "{}", "modules.json: is an object, not an array"),
                ("modules.json", '[{"type": 5}]', "[0].type: is an integer, not a string"),
                ("1_Pooling/config.json", "[]", "1_Pooling/config.json: must be a JSON object"),
                ("config_sentence_transformers.json", '{"prompts": []}', "prompts: is an array"),
                ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', "prompts.a: is an"),
                ("config_sentence_transformers.json", '{"default_prompt_name": "q"}',
                 'there is no prompt "q"'),
                ("config_sentence_transformers.json", "[]",
                 "config_sentence_transformers.json: must be a JSON object"),
                ("config_sentence_transformers.json", '{"default_prompt_name": 5}',
                 "config_sentence_transformers.json: default_prompt_name: is an integer"),
                ("sentence_bert_config.json", '{"do_lower_case": true}',
                 "sentence_bert_config.json: do_lower_case: only false"),
                ("sentence_bert_config.json", "[]", "sentence_bert_config.json: must be a JSON")):
            with self.subTest(name=name, text=text):
                folder = self.folder()
                (folder / name).write_text(text)
                self.refused(folder, expected)

    def test_path_of_the_pooling(self):
        """It cannot lead out of the folder."""
        for path in "../1_Pooling", "/etc", ".", "", "a/b", None:
            with self.subTest(path):
                folder = self.folder()
                edit(folder / "modules.json", lambda m, new=path: m[1].update(path=new))
                self.refused(folder, "modules.json: [1]")

    def test_attention(self):
        for change in {"is_causal": False}, {"use_bidirectional_attention": True}:
            folder = self.folder()
            edit(folder / "config.json", lambda c, new=change: c.update(new))
            self.refused(folder, f"config.json: {next(iter(change))}: ", "is not supported")


class Served(Embedder):
    PROMPTS = {"prompts": {"query": "Find: "}}

    def setUp(self):
        self.daemon = self.start(prompts=self.PROMPTS)
        with self.daemon.connect() as w:
            self.texts = [c["text"] for c in CASES]
            self.values = [self.embed(w, t)["values"] for t in self.texts]
            self.query = self.embed(w, "lions", prompt_name="query", dimensions=9)["values"]

    def tearDown(self):
        with self.daemon:
            pass

    def same(self, values, expected):
        self.assertEqual(len(values), len(expected))
        self.assertGreater(cosine(values, expected), 0.99999)


class Clients(Served):
    def test_nvllmctl(self):
        d = self.daemon
        self.same(json.loads(d.ctl("embed", self.texts[0]).stdout), self.values[0])
        self.same(json.loads(d.ctl("embed", stdin=self.texts[1]).stdout), self.values[1])
        one = json.loads(d.ctl("embed", "--json", "--prompt-name", "query", "--dimensions", 9,
                               "lions").stdout)
        self.same(one["embedding"], self.query)
        self.assertEqual(set(one), {"embedding", "usage", "timing"})
        lines = "".join(json.dumps(t) + "\n" for t in self.texts) + "5\n"
        done = d.ctl("embed", "--jsonl", stdin=lines, check=False)
        *good, bad = parse_jsonl(done.stdout)
        for object_, values in zip(good, self.values):
            self.same(object_["embedding"], values)
        self.assertEqual((done.returncode, len(good), bad["error"]["code"]), (1, 3, "invalid"))
        self.assertIn(b"256 values", d.ctl("status").stdout)

    def test_batch(self):
        """In order, beside prompts, and more than are in progress at a time."""
        n = scaled(300, 60)
        lines = [{"embed": self.texts[i % 2], "id": i} for i in range(n)]
        lines += [{"prompt": "Hello", "max_tokens": 2},
                  {"embed_ids": CASES[0]["ids"], "dimensions": 5},
                  {"embed": "lions", "prompt_name": "query", "dimensions": 9},
                  {"embed": "x", "prompt": "y"}, {"prompt": "y", "dimensions": 3},
                  {"embed": "x", "prompt_name": "none"}]
        out, summary, done = self.daemon.batch(lines, check=False)
        self.assertEqual([o["id"] for o in out[:n]], list(range(n)))
        for i, o in enumerate(out[:n]):
            self.same(o["embedding"], self.values[i % 2])
        self.assertIn("text", out[n])
        self.same(out[n + 1]["embedding"], self.values[0][:5])
        self.same(out[n + 2]["embedding"], self.query)
        self.assertEqual([o["error"]["code"] for o in out[n + 3:]], ["invalid"] * 3)
        self.assertEqual((summary["failed"], done.returncode), (3, 1))

    def test_http(self):
        with Gateway(self.daemon.socket) as gateway:
            r = gateway.post("embeddings", {"input": self.texts, "model": "embedder"})
            self.assertEqual((r.status, r.json["object"], r.json["model"]), (200, "list", "embedder"))
            n = sum(len(c["ids"]) for c in CASES)
            self.assertEqual(r.json["usage"], {"prompt_tokens": n, "total_tokens": n})
            for i, item in enumerate(r.json["data"]):
                self.assertEqual((item["index"], item["object"]), (i, "embedding"))
                self.same(item["embedding"], self.values[i])
            r = gateway.post("embeddings", {"input": CASES[0]["ids"], "encoding_format": "base64",
                                            "dimensions": 10})
            raw = base64.b64decode(r.json["data"][0]["embedding"], validate=True)
            self.same(struct.unpack("<10f", raw), self.values[0][:10])
            for size in 1, 2, 3, 4, 5:  # each remainder of three
                r = gateway.post("embeddings", {"input": [[5, 6], [7]], "encoding_format": "base64",
                                                "dimensions": size})
                for item in r.json["data"]:
                    raw = base64.b64decode(item["embedding"], validate=True)
                    self.assertEqual(len(raw), 4 * size)
            r = gateway.post("embeddings", {"input": "lions", "prompt_name": "query", "dimensions": 9})
            self.same(r.json["data"][0]["embedding"], self.query)
            many = gateway.post("embeddings", {"input": ["a", "b"] * scaled(500, 100)})
            data = many.json["data"]
            self.assertEqual(len(data), scaled(1000, 200))
            self.same(data[-2]["embedding"], data[0]["embedding"])
            for body, param in (({}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"),
                                ({"input": [[]]}, "input"), ({"input": ["a", 5]}, "input"),
                                ({"input": [["x"]]}, "input"), ({"input": {"a": 1}}, "input"),
                                ({"input": [1 << 40]}, "input"), ({"input": [99999]}, "input"),
                                ({"input": ["a"] * 2049}, "input"),
                                ({"input": "x", "dimensions": DIM + 1}, "dimensions"),
                                ({"input": "x", "dimensions": "7"}, "dimensions"),
                                ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
                                ({"input": "x", "prompt_name": "none"}, "prompt_name"),
                                ({"input": [5], "prompt_name": "query"}, "prompt_name"),
                                ({"input": "x", "prompt_name": "a\0b"}, "prompt_name"),
                                ({"input": "x", "model": "gpt"}, "model")):
                with self.subTest(body=str(body)[:60]):
                    status, _, where = gateway.post("embeddings", body).error
                    self.assertEqual((status, where), (404 if param == "model" else 400, param))
            self.assertEqual(gateway.post("embeddings", {"input": "a"}).status, 200)

    def test_http_answer_that_is_too_large(self):
        """It ends once the memory of all is used up; others go on."""
        body = {"input": [self.texts[0]] * 1000}
        with Gateway(self.daemon.socket, "--max-memory", "1M") as gateway:
            self.assertEqual(gateway.post("embeddings", body).error, (503, "out_of_memory", None))
            self.assertEqual(gateway.post("embeddings", {"input": "a"}).status, 200)
            self.daemon.wait_idle()

    def test_http_client_that_leaves(self):
        """What it asked for ends, whatever was in progress."""
        body = json.dumps({"input": [self.texts[2]] * scaled(200, 50)}).encode()
        with Gateway(self.daemon.socket) as gateway:
            for pause in 0, 0.01, 0.1:
                s = gateway.open()
                s.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                          b"%d\r\n\r\n" % len(body) + body)
                time.sleep(pause)
                s.close()
            self.daemon.wait_idle()
            self.assertEqual(gateway.post("embeddings", {"input": "a"}).status, 200)

    def test_http_without_a_daemon(self):
        """A daemon that goes away fails what is in progress, not the server."""
        with Gateway(self.daemon.socket) as gateway:
            c = gateway.connection()
            ids = [[i + 5] * 400 for i in range(scaled(400, 100))]  # which take many seconds
            c.request("POST", "/v1/embeddings", json.dumps({"input": ids}))
            harness.wait_for(lambda: self.daemon.status()["requests"]["running"], scaled(20, 60),
                             "they run")
            self.daemon.kill()
            self.assertEqual(c.getresponse().status, 503)
            c.close()
            self.assertEqual(gateway.post("embeddings", {"input": "a"}).error[0], 503)

    @needs_protobuf
    def test_python(self):
        with nvllm.Client(self.daemon.socket, wait_ready=True) as client:
            got = client.embed([*self.texts, CASES[0]["ids"]])
            for one, values in zip(got, [*self.values, self.values[0]]):
                self.same(one.values, values)
            self.assertEqual([e.prompt_tokens for e in got[:3]], [len(c["ids"]) for c in CASES])
            self.same(client.embed(["lions"], prompt_name="query", dimensions=9)[0].values,
                      self.query)
            self.assertEqual(len(client.embed(["a"] * scaled(200, 100))), scaled(200, 100))
            self.assertEqual(client.embed([]), [])
            with self.assertRaises(nvllm.InvalidError) as e:
                client.embed(["a", "b", "c"], prompt_name="none")
            self.assertEqual(e.exception.field, "prompt_name")
            for wrong in (["a"], {"dimensions": -1}), (["a"], {"priority": "much"}), ([5], {}):
                with self.assertRaises((nvllm.InvalidError, TypeError)):
                    client.embed(wrong[0], **wrong[1])
            with self.assertRaises(TypeError):
                client.embed("a text")
            with self.assertRaises(nvllm.TimedOutError):
                client.embed([[i] * 1000 for i in range(100)], timeout=0)  # none is cached
            harness.wait_for(lambda: not client.requests(), scaled(10, 60), "no request")


if __name__ == "__main__":
    sys.exit(harness.main())
