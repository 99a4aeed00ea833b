"""Completions of nvllmctl, nvllmd and nvllm-openai for bash, zsh and fish: they know what the programs
know, and no more."""

import os
import pathlib
import re
import shutil
import subprocess

from harness import Case, config, generated, scaled
from test_ctl_documents import commands, help_options

COMMON = {"--socket", "--timeout", "--wait", "--no-wait", "--help"}


def takes_value(command, option):
    done = subprocess.run([config.nvllmctl, command, option + "=", "--no-such"],
                          capture_output=True, stdin=subprocess.DEVNULL)
    return b"takes no value" not in done.stderr


def bash_completes(program, *words):
    """What bash offers for the last word."""
    folder = pathlib.Path(generated(""))
    script = (f"source {folder}/{program}.bash; COMP_WORDS=({program} \"$@\"); "
              f"COMP_CWORD=$#; _{program}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    done = subprocess.run(["bash", "-c", script, "x", *words], capture_output=True, text=True,
                          timeout=scaled(20, 60), cwd=folder, check=True)
    assert done.stderr == "", done.stderr
    return done.stdout.split()


class Completions(Case):
    @classmethod
    def setUpClass(cls):
        """Option -> whether it takes a value, of each command."""
        cls.program, cls.common, cls.names = "nvllmctl", COMMON, commands()
        cls.known = {c: {o: takes_value(c, o) for o in help_options(c) - COMMON}
                     for c in cls.names}
        assert len(cls.known) > 15 and sum(map(len, cls.known.values())) > 100

    def text(self, shell):
        return generated(f"{self.program}.{shell}").read_text()

    def test_bash(self):
        text = self.text("bash")
        body = text.split("_requests()")[0]
        shown = {c: set(o.split()) for c, o in re.findall(r"^ +([a-z-]+)\) echo '([^']*)' ;;", body, re.M)}
        self.assertEqual(shown, {c: set(o) for c, o in self.known.items()})
        self.assertEqual(set(re.search(r"^    echo '([^']*)'$", body, re.M)[1].split()), self.common)
        words = re.search(r"''\) compgen -W '(.*?)'", text)[1]
        self.assertEqual(words.split(), self.names)
        valued = set(re.findall(r"^ +([a-z-]+):(--[a-z-]+)\)", text, re.M))
        self.assertEqual(valued, {(c, o) for c, options in self.known.items()
                                  for o, value in options.items() if value})

    def test_zsh(self):
        text = self.text("zsh")
        self.assertEqual(re.findall(r"^        '([a-z-]+):", text, re.M), self.names)
        parts = re.split(r"^        ([a-z-]+)\)\n", text.split("case $words[1] in")[1], flags=re.M)
        shown = {c: {o: bool(v) for o, v in re.findall(r"'\*?(--[a-z-]+)(=?)\[", body)}
                 for c, body in zip(parts[1::2], parts[2::2])}
        self.assertEqual(shown, self.known)
        common = text.split("common=(")[1].split("\n    )")[0]
        self.assertEqual(set(re.findall(r"'\*?(--[a-z-]+)", common)), self.common)

    def test_fish(self):
        text = self.text("fish")
        self.assertEqual(re.findall(r"-n __fish_use_subcommand -f -a ([a-z-]+) ", text), self.names)
        shown = {c: {} for c in self.names}
        for c, o, value in re.findall(
                r"^complete .*_from ([a-z-]+)' -l ([a-z-]+)( -[rx])?", text, re.M):
            shown[c]["--" + o] = bool(value)
        self.assertEqual(shown, self.known)
        self.assertEqual({"--" + o for o in re.findall(rf"^complete -c {self.program} -l ([a-z-]+)",
                                                       text, re.M)}, self.common)

    def test_shells_take_them(self):
        """The files are right for the shells that they are for, where those are here."""
        checked = 0
        for shell in "bash", "zsh", "fish":
            if shutil.which(shell):
                done = subprocess.run([shell, "-n", generated(f"{self.program}.{shell}")],
                                      capture_output=True)
                self.assertEqual((done.returncode, done.stderr), (0, b""), shell)
                checked += 1
        if shutil.which("shellcheck"):
            done = subprocess.run(["shellcheck", generated(f"{self.program}.bash")],
                                  capture_output=True)
            self.assertEqual(done.returncode, 0, done.stdout)
        self.assertGreater(checked, 0)


class Client(Case):
    def complete(self, *words):
        return bash_completes("nvllmctl", *words)

    def test_bash_completes(self):
        self.assertEqual(self.complete("gen"), ["generate"])
        self.assertEqual(self.complete("log-level", "w"), ["warning"])
        self.assertEqual(self.complete("cache", "un"), ["unpin"])
        self.assertEqual(self.complete("generate", "--temp"), ["--temperature"])
        self.assertEqual(self.complete("--socket", "x", "status", "--js"), ["--json"])
        self.assertEqual(self.complete("generate", "--priority", "h"), ["high"])
        self.assertEqual(self.complete("batch", "--input", "nvllmctl.f"), ["nvllmctl.fish"])
        self.assertEqual(self.complete("generate", "--seed", ""), [])
        # bash takes "=" for a word of its own
        self.assertEqual(self.complete("generate", "--priority", "=", "h"), ["high"])
        self.assertEqual(self.complete("generate", "--priority", "="), ["low", "normal", "high"])
        self.assertEqual(self.complete("--socket", "=", "x", "stat"), ["status"])
        self.assertEqual(self.complete("generate", "--seed", "="), [])
        self.assertEqual(self.complete("help", "det"), ["detokenize"])
        self.assertEqual(self.complete("sessions", "re"), ["rewind"])
        self.assertIn("--json", self.complete("status", "--"))

    def test_files_only_behind_options(self):
        """A file's name is not offered where it would be taken for what is in the file."""
        for words in ("generate", "nvllmctl."), ("status", "nvllmctl."), ("cache", "nvllmctl."):
            self.assertEqual(self.complete(*words), [])
        self.assertEqual(self.complete("generate", "--prompt-file", "nvllmctl.f"), ["nvllmctl.fish"])
        self.assertNotIn("'*: :_files'", generated("nvllmctl.zsh").read_text())

    def test_fish_completes(self):
        if not shutil.which("fish"):
            self.skipTest("no fish")
        folder = self.temporary_folder()
        for line, wanted in (("nvllmctl gen", "generate"), ("nvllmctl generate --temp", "--temperature"),
                             ("nvllmctl log-level w", "warning"), ("nvllmctl generate nvllmctl.f", ""),
                             ("nvllmctl cache nvllmctl.f", ""),
                             ("nvllmctl generate --prompt-file nvllmctl.f", "nvllmctl.fish")):
            done = subprocess.run(["fish", "--no-config", "-c",
                                   f"source {generated('nvllmctl.fish')}; complete -C '{line}'"],
                                  capture_output=True, text=True, cwd=generated(""),
                                  env={**os.environ, "HOME": str(folder)})
            self.assertEqual([x.split("\t")[0] for x in done.stdout.splitlines()], wanted.split())


class OfTheDaemon(Completions):
    """nvllmd's are told by its own usage."""

    @classmethod
    def setUpClass(cls):
        text = subprocess.run([config.nvllmd, "--help"], capture_output=True, text=True,
                              check=True).stdout.split("\nOptions of the configuration")[0]
        common, own = (dict(re.findall(r"^  (--[a-z-]+)( \S+)?", part, re.M))
                       for part in text.split("Options of commands:"))
        cls.program, cls.common = "nvllmd", set(common)
        cls.names = re.findall(r"^ +nvllmd ([a-z-]+) \[options\]", text, re.M)
        cls.known = {c: {o: bool(v) for o, v in own.items() if cls.takes(c, o)} for c in cls.names}
        assert len(cls.names) > 4 and len(common) + len(own) > 10, text

    @staticmethod
    def takes(command, option):
        done = subprocess.run([config.nvllmd, command, option, "--no-such"], capture_output=True,
                              text=True)
        return f"there is no option {option}" not in done.stderr

    def complete(self, *words):
        return bash_completes("nvllmd", *words)

    def test_bash_completes(self):
        self.assertEqual(self.complete("check"), ["check-config", "check"])
        self.assertEqual(self.complete("check-config", "--js"), ["--json"])
        self.assertEqual(self.complete("check", "--js"), [])
        self.assertEqual(self.complete("--backend", "c"), ["cpu", "cuda"])
        self.assertEqual(self.complete("--backend", "=", "c"), ["cpu", "cuda"])
        self.assertEqual(self.complete("--set", "cache.kv_m"), ["cache.kv_memory="])
        self.assertEqual(self.complete("--config", "nvllmd.f"), ["nvllmd.fish"])


class OfTheGateway(Completions):
    """nvllm-openai's, which has no commands, by its own usage."""

    @classmethod
    def setUpClass(cls):
        program = pathlib.Path(config.nvllmctl).with_name("nvllm-openai")
        text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        cls.program, cls.names, cls.known = "nvllm-openai", [], {}
        cls.common = set(re.findall(r"^  (--[a-z-]+)", text, re.M))
        assert len(cls.common) > 10, text

    def test_bash(self):
        self.assertEqual(set(bash_completes(self.program, "--")), self.common)
        self.assertEqual(bash_completes(self.program, "--allow"), ["--allow-remote"])
        self.assertEqual(bash_completes(self.program, "--api-keys", "nvllmd.f"), ["nvllmd.fish"])
        self.assertEqual(bash_completes(self.program, ""), [])
