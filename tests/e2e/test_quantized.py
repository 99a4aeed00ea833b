"""Quantized weights from the command line to the socket: a folder that nvllmd convert has written
gives the tokens of model.quantize, and what cannot be converted or loaded is refused."""

import json

from harness import GOLDEN, MODEL, Case, Daemon, config, run_command

WAYS = ("fp8", "int4")


class Quantized(Case):
    def convert(self, to, source, target, *options, status=0):
        done = run_command([config.nvllmd, "convert", *options, "--to", to, source, target],
                           check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr.decode()

    def answers(self, *options, kept, model=MODEL):
        """Ids and logprobs of some cases; kept: what status says of weights and of keys."""
        cases = [c for c in json.loads((GOLDEN / "nvllm-tiny-greedy.json").read_text())
                 if len(c["prompt_ids"]) < 200][:8]
        lines = [{"id": c["name"], "prompt": c["prompt"], "max_tokens": 24, "temperature": 0,
                  "logprobs": 5} for c in cases]
        with Daemon(*options, model=model) as d:
            status = d.status()
            self.assertEqual((status["weights"], status["kv_dtype"]), kept)
            self.assertRegex(d.log(), f"event=ready .* weights={kept[0]} kv_dtype={kept[1]}")
            out, summary, _ = d.batch(lines)
        self.assertEqual(summary["failed"], 0)
        return [(o["token_ids"], o["logprobs"]) for o in out]

    def test_folders_answer_as_quantize_does(self):
        """The same tokens and logprobs, and other ones than those of bf16."""
        plain = self.answers(kept=("bf16", "f32"))
        self.assertNotEqual(self.answers("cache.kv_dtype=fp8", kept=("bf16", "fp8")), plain)
        for to in WAYS:
            with self.subTest(to):
                folder = self.temporary_folder() / to
                self.convert(to, MODEL, folder)
                at_load = self.answers(f"model.quantize={to}", kept=(to, "f32"))
                self.assertEqual(self.answers(model=folder, kept=(to, "f32")), at_load)
                self.assertNotEqual(at_load, plain)

    def test_check_says_what_a_folder_is(self):
        """check names the format, and list its type."""
        texts = {"fp8": "projections are quantized: FP8 in blocks of 128 x 128",
                 "int4": "projections are quantized: INT4 (compressed-tensors) in groups of 128"}
        for to in WAYS:
            folder = self.temporary_folder() / to
            self.convert(to, MODEL, folder)
            self.assertIn(texts[to],
                          run_command([config.nvllmd, "check", "--model", folder]).stdout.decode())
            listed = json.loads(run_command([config.nvllmd, "list", "--json", folder]).stdout)
            self.assertEqual(listed["models"][0]["format"], to)
            self.assertTrue(listed["models"][0]["runs"])

    def test_refusals(self):
        """Wrong usage, names that exist, and what is quantized already."""
        folder = self.temporary_folder()
        self.convert("fp8", MODEL, folder / "fp8")
        self.assertIn("exists already", self.convert("fp8", MODEL, folder / "fp8", status=1))
        self.assertIn("convert it to bf16 first",
                      self.convert("int4", folder / "fp8", folder / "int4", status=1))
        self.assertIn("convert takes --to", self.convert("fp4", MODEL, folder / "fp4", status=2))
        self.assertIn("nvllmd: OUT is empty: it must be the name of a new folder\n",
                      self.convert("fp8", MODEL, "", status=2))
        self.assertIn("nvllmd: IN is empty: it must be the name of a model folder\n",
                      self.convert("fp8", "", folder / "x", status=2))
        self.assertIn(f"nvllmd: {folder}/no/x: cannot be made: No such file or directory; its "
                      "parent folder must exist and be writable\n",
                      self.convert("fp8", MODEL, folder / "no" / "x", status=1))
        self.assertIn("no-model", self.convert("fp8", folder / "no-model", folder / "x", status=1))
        self.assertEqual(self.convert("bf16", folder / "fp8", folder / "fp8" / "a", status=1),
                         f"nvllmd: {folder}/fp8/a: lies inside {folder}/fp8: give a name outside "
                         "of that folder\n")
        self.assertNotIn("a", [p.name for p in (folder / "fp8").iterdir()])
        self.assertEqual([p.name for p in folder.iterdir()], ["fp8"])
        done = run_command([config.nvllmd, "check-config", "--model", folder / "fp8", "--set",
                            "model.quantize=fp8", "--backend", "cpu", "--socket", folder / "s"],
                           check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"model.quantize: the folder's weights are fp8 already", done.stdout)

    def test_wrong_options(self):
        """Options and files that are wrong for other commands are for convert, which uses none."""
        folder = self.temporary_folder()
        for option, why in ("--set=nonsense=1", "nonsense: no such option"), (
                f"--config={folder}/none", "none: No such file"):
            self.assertIn(why, self.convert("fp8", MODEL, folder / "x", option, status=2))
        self.assertEqual(list(folder.iterdir()), [])
