"""nvllmd list and nvllmctl list: the model folders below a directory, those that would run and
those that would not, whatever else is there."""

import json
import os
import pathlib
import shutil
import subprocess
import unittest

from harness import MODEL, Case, config, model_folder, run_command, scaled


class List(Case):
    def list(self, *args, status=0, program=None):
        done = run_command([program or config.nvllmd, "list", *args], check=False,
                           timeout=scaled(60, 300))
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def found(self, folder, *args, **options):
        """Path below the folder -> its object."""
        done = self.list("--json", *args, folder, **options)
        return {str(pathlib.Path(m["folder"]).relative_to(folder)): m
                for m in json.loads(done.stdout)["models"]}

    def test_what_would_run(self):
        """Each folder at each depth that is looked at, with what its files say."""
        folder = self.temporary_folder()
        hub = folder / "models--org--name" / "snapshots" / ("0" * 40)
        (folder / "org").mkdir()
        (folder / "plain").symlink_to(MODEL)
        (folder / "org" / "name").symlink_to(MODEL)
        (folder / "models--org--name" / "blobs").mkdir(parents=True)
        model_folder(hub)
        shape = json.loads((MODEL / "config.json").read_text())
        wanted = {"runs": True, "architecture": "Qwen3ForCausalLM", "format": "bf16",
                  "parameters": 6032640, "bytes": 2 * 6032640,
                  "max_seq_len": shape["max_position_embeddings"]}
        found = self.found(folder)
        self.assertEqual(list(found), sorted(str(p.relative_to(folder)) for p in (
            hub, folder / "org" / "name", folder / "plain")))
        for name, model in found.items():
            self.assertEqual(model, {"folder": f"{folder}/{name}", **wanted})
        lines = self.list(folder).stdout.decode().splitlines()
        self.assertEqual(lines[0].split(), ["PARAMETERS", "SIZE", "FORMAT", "CONTEXT",
                                            "ARCHITECTURE", "FOLDER"])
        self.assertEqual([line.split() for line in lines[1:]],
                         [["6.03M", "11.5", "MiB", "bf16", str(wanted["max_seq_len"]),
                           "Qwen3ForCausalLM", f"{folder}/{name}"] for name in found])

    def test_why_not(self):
        """The first thing that “nvllmd check” finds wrong, or why a folder cannot be read."""
        folder = self.temporary_folder()
        changes = {"empty": {"config": ""}, "no-weights": {"model": None},
                   "tokenizer": {"tokenizer": "{}"},
                   "template": {"tokenizer_config": '{"chat_template": 1}'}}
        for name, change in changes.items():
            model_folder(folder / name, **change)
        for name, make in ("fifo", os.mkfifo), ("folder", os.mkdir):
            model_folder(folder / name, config=None)
            make(folder / name / "config.json")
        (folder / "loop").symlink_to("loop")
        (folder / "nowhere").symlink_to("nothing")
        found = self.found(folder)
        self.assertEqual(set(found), {*changes, "fifo", "folder", "loop", "nowhere"})
        for name, text in (("empty", "config.json: not JSON"), ("fifo", "config.json: is not a"),
                           ("folder", "config.json: is not a regular file"),
                           ("no-weights", "model.safetensors: is missing"),
                           ("tokenizer", "tokenizer.json: "), ("template", "chat_template"),
                           ("loop", "Too many levels"), ("nowhere", "No such file")):
            self.assertEqual(set(found[name]), {"folder", "runs", "why"})
            self.assertFalse(found[name]["runs"])
            self.assertIn(text, found[name]["why"])
            self.assertIn(f"{folder}/{name}: {found[name]['why']}\n",
                          self.list(folder).stdout.decode())
        for name in changes:
            checked = run_command([config.nvllmd, "check", "--model", folder / name], check=False)
            wrong = [line for line in checked.stdout.decode().splitlines()
                     if line.startswith("wrong")]
            self.assertEqual(wrong[0].split(None, 1)[1], found[name]["why"])

    def test_what_is_no_model(self):
        """Files, hidden folders, folders that are too deep and links back up are left out."""
        folder = self.temporary_folder()
        deep = folder / "a" / "b" / "c"
        deep.mkdir(parents=True)
        (deep / "d").symlink_to(MODEL)
        (deep.parent / "up").symlink_to(folder)
        (folder / "self").symlink_to(".")
        (folder / ".hidden").symlink_to(MODEL)
        os.mkfifo(folder / "fifo")
        done = self.list(folder)
        self.assertEqual((done.stdout, done.stderr),
                         (b"", f"nvllmd: there is no folder with a config.json in {folder}\n".encode()))
        self.assertEqual(self.found(folder), {})
        (folder / "model").symlink_to(MODEL)
        self.assertEqual(list(self.found(folder)), ["model"])

    def test_model_folders_are_not_descended_into(self):
        """A model folder that is named is listed itself; modules of embedders are no models."""
        folder = self.temporary_folder()
        for name in "model", "modules":
            model_folder(folder / name, config=None)
            (folder / name / "modules.json").write_text("[]")
            (folder / name / "1_Pooling").mkdir()
            (folder / name / "1_Pooling" / "config.json").write_text("{}")
        (folder / "model" / "modules.json").unlink()
        (folder / "model" / "config.json").symlink_to(MODEL / "config.json")
        for directory, found in ((folder, {"model": True, "modules": False}),
                                 (folder / "model", {".": True}),
                                 (folder / "modules", {".": False})):
            self.assertEqual({k: v["runs"] for k, v in self.found(directory).items()}, found)
        self.assertIn("config.json: cannot be opened", self.found(folder)["modules"]["why"])

    @unittest.skipIf(os.geteuid() == 0 and not shutil.which("setpriv"), "root may read everything")
    def test_permissions(self):
        """A folder that may not be entered is named, and the others are shown."""
        folder = self.temporary_folder()
        folder.chmod(0o755)
        model_folder(folder / "readable", model=None)
        model_folder(folder / "secret").chmod(0)
        self.addCleanup((folder / "secret").chmod, 0o700)
        command = ([] if os.geteuid() else
                   ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        if run_command([*command, "test", "-x", config.nvllmd], check=False).returncode:
            self.skipTest("nobody may not run nvllmd from here")
        done = run_command([*command, config.nvllmd, "list", folder])
        self.assertIn(f"{folder}/secret: Permission denied\n", done.stdout.decode())
        self.assertIn(f"{folder}/readable: ", done.stdout.decode())

    def test_directories_that_cannot_be_read(self):
        """The directory that is named must be there; what is shown moves no terminal."""
        folder = self.temporary_folder()
        for path in folder / "none", MODEL / "config.json", "", folder / ("x" * 300):
            done = self.list(path, status=1)
            self.assertEqual(done.stdout, b"")
            self.assertIn(b"nvllmd: " + bytes(path) if path else b": No such file", done.stderr)
        (folder / "red\x1b[31m\n").symlink_to("nothing")
        (folder / os.fsdecode(b"\xff")).symlink_to("nothing")
        out = self.list(folder).stdout.decode()
        self.assertIn(f"{folder}/red?[31m?: No such file", out)
        self.assertIn(f"{folder}/?: No such file", out)
        self.assertEqual(len(self.found(folder)), 2)

    def test_bounds(self):
        """However much is there, it ends, says so, and what it has found is shown."""
        folder = self.temporary_folder()
        for i in range(1100):
            (folder / f"m{i}").mkdir()
            (folder / f"m{i}" / "config.json").touch()
        done = self.list(folder, status=1)
        self.assertEqual(done.stdout.count(b"\n"), 1 + 1024)
        self.assertIn(b"the rest is not listed", done.stderr)
        folder = self.temporary_folder()
        (folder / "all").mkdir()
        for i in range(256):
            (folder / f"d{i}").symlink_to("all")
        for i in range(300):
            (folder / "all" / f"f{i}").touch()
        done = self.list("--json", folder, status=1)
        self.assertEqual(json.loads(done.stdout), {"models": []})
        self.assertIn(b"the rest is not listed", done.stderr)

    def test_needs_no_configuration(self):
        """Neither a model nor a backend that can be loaded; a second directory is one too many."""
        folder = self.temporary_folder()
        done = self.list("--backend=cuda", f"--set=backend.module={folder}/none.so", MODEL)
        self.assertIn("  Qwen3ForCausalLM ", done.stdout.decode())
        self.assertIn("none.so", done.stderr.decode())
        self.assertIn("; no backend is asked", done.stderr.decode())
        self.list(folder, folder, status=2)
        with open("/dev/full", "wb") as full:
            done = subprocess.run([config.nvllmd, "list", MODEL.parent], stdout=full,
                                  stderr=subprocess.PIPE, timeout=scaled(30, 120))
        self.assertEqual((done.returncode, done.stderr), (1, b"nvllmd: cannot write to stdout\n"))

    def test_wrong_options(self):
        """What the command line says, or a file that it names, is wrong as for any command."""
        folder = self.temporary_folder()
        (folder / "wrong.conf").write_text("[model\n")
        for option, why in ((f"--config={folder}/wrong.conf", "wrong.conf:1: "),
                            (f"--config={folder}/none", f"{folder}/none: No such file"),
                            ("--set=nonsense=1", "nonsense: no such option"),
                            ("--set=cache.block_len=17", "cache.block_len: ")):
            done = self.list(option, MODEL, status=2)
            self.assertEqual(done.stdout, b"")
            self.assertIn(why, done.stderr.decode())


class Client(Case):
    def test_passes_on(self):
        """nvllmctl list says the same as nvllmd list, and ends as that does."""
        folder = self.temporary_folder()
        (folder / "model").symlink_to(MODEL)
        (folder / "-dash").mkdir()
        for args in ([folder], ["--json", folder], [folder / "none"], ["--", "-dash"], []):
            said = [subprocess.run([program, "list", *map(str, args)], capture_output=True,
                                   cwd=folder, timeout=scaled(30, 120))
                    for program in (config.nvllmd, config.nvllmctl)]
            self.assertEqual(*[(s.returncode, s.stdout, s.stderr) for s in said])
        self.assertEqual(run_command([config.nvllmctl, "list", folder, folder],
                                     check=False).returncode, 2)

    def test_timeout(self):
        """--timeout ends it."""
        done = run_command([config.nvllmctl, "list", "--timeout", 0, MODEL.parent], check=False)
        self.assertEqual((done.returncode, done.stderr), (5, b"nvllmctl: timed out (--timeout)\n"))

    def test_killed(self):
        """Whatever ends nvllmctl ends the nvllmd that it runs."""
        folder = self.temporary_folder()
        program = shutil.copy(config.nvllmctl, folder / "nvllmctl")
        (folder / "nvllmd").write_text("#!/bin/sh\necho started\nexec sleep 600\n")
        (folder / "nvllmd").chmod(0o755)
        for signal in "kill", "terminate":
            ctl = subprocess.Popen([program, "list"], stdout=subprocess.PIPE)
            self.assertEqual(ctl.stdout.readline(), b"started\n")
            getattr(ctl, signal)()
            self.assertEqual(ctl.communicate(timeout=scaled(30, 120))[0], b"")  # nobody has it

    @unittest.skipIf(any(os.path.exists(f"{p}/nvllmd") for p in ("/usr/sbin", "/usr/local/sbin")),
                     "nvllmd is installed here")
    def test_without_nvllmd(self):
        """Where nvllmd is not installed, it says so."""
        program = self.temporary_folder() / "nvllmctl"
        shutil.copy(config.nvllmctl, program)
        done = subprocess.run([program, "list"], capture_output=True, timeout=scaled(30, 120),
                              env={**os.environ, "PATH": "/nonexistent"})
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"nvllmctl: nvllmd is not installed here", done.stderr)
