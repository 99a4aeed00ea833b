"""The README's examples, word for word."""

import json
import os
import pathlib
import re
import subprocess
import sys

from harness import ROOT, Case, Daemon, config, run_command

README = (ROOT / "README.md").read_text()


class Examples(Case):
    def test_c_program(self):
        """It compiles without a warning, and prints what the model says."""
        if config.light:
            self.skipTest("a plain program does not link with a library that has sanitizers in it")
        folder = self.temporary_folder()
        library = pathlib.Path(config.nvllmctl).parent
        (folder / "ask.c").write_text(re.search(r"```c\n(.*?)```", README, re.S)[1])
        run_command(["cc", "-Wall", "-Wextra", "-Werror", folder / "ask.c", "-o", folder / "ask",
                     "-I", ROOT / "client" / "lib", "-L", library, "-lnvllm-client",
                     f"-Wl,-rpath,{library}"])
        with Daemon() as d:
            answer = run_command([folder / "ask", d.socket, "Spell lion."])
            self.assertIn(b"l-i-o-n", answer.stdout)
        failed = run_command([folder / "ask", d.socket, "Spell lion."], check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertTrue(failed.stderr)

    def test_python_program(self):
        """It prints what the model says, and the counts."""
        if subprocess.run([sys.executable, "-c", "import google.protobuf"],
                          capture_output=True).returncode:
            self.skipTest("no protobuf for Python")
        program = self.temporary_folder() / "ask.py"
        program.write_text(re.search(r"```py\n(.*?)```", README, re.S)[1])
        with Daemon() as d:
            done = subprocess.run([sys.executable, program, d.socket, "Spell lion."],
                                  env={**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")},
                                  capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, "l-i-o-n"))
        self.assertIn("prompt_tokens=", done.stderr)

    def test_shell_lines(self):
        """Each nvllmctl line ends with status 0 in a shell that finds programs and socket."""
        block = next(b for b in re.findall(r"```sh\n(.*?)```", README, re.S) if "nvllmctl" in b)
        folder = self.temporary_folder()
        (folder / "questions.jsonl").write_text(
            json.dumps({"messages": [{"role": "user", "content": "Spell lion."}],
                        "temperature": 0}) + "\n")
        lines = [line for line in block.splitlines() if "nvllmctl" in line]
        self.assertGreaterEqual(len(lines), 4)
        with Daemon() as d:
            env = {"PATH": f"{pathlib.Path(config.nvllmctl).parent}:/usr/bin:/bin",
                   "NVLLM_SOCKET": str(d.socket)}
            for line in lines:
                done = subprocess.run(["bash", "-c", line], cwd=folder, env=env,
                                      capture_output=True, timeout=120)
                self.assertEqual(done.returncode, 0, (line, done.stderr))
        self.assertIn("l-i-o-n", (folder / "answers.jsonl").read_text())

    def test_packages(self):
        """What the quick start installs to build is what the README names."""
        script = (ROOT / "packaging" / "quickstart").read_text()
        wanted = set(re.findall(r"^    '[^|]*\|[^|]*\|(\S+)'$",
                                script.split("build_needs=(")[1].split("\n)")[0], re.M))
        named = re.search(r"these Debian packages: `([^`]*)`", README)[1].split()
        self.assertGreater(len(wanted), 10)
        self.assertEqual(set(named), wanted)
