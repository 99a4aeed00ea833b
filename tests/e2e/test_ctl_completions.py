"""Completions of nvllmctl and nvllmd for bash, zsh and fish: they know what the programs know, and no
more."""

import os
import pathlib
import re
import shutil
import subprocess

import harness
from harness import Case, config, scaled
from test_ctl_documents import commands, help_options

FOLDER = harness.ROOT / "packaging" / "completions"
COMMON = {"--socket", "--timeout", "--wait", "--no-wait", "--help"}


def takes_value(command, option):
    done = subprocess.run([config.nvllmctl, command, option + "=", "--no-such"],
                          capture_output=True, stdin=subprocess.DEVNULL)
    return b"takes no value" not in done.stderr


class Completions(Case):
    @classmethod
    def setUpClass(cls):
        """Option -> whether it takes a value, of each command."""
        cls.known = {c: {o: takes_value(c, o) for o in help_options(c) - COMMON}
                     for c in commands()}
        cls.with_value = {o for options in cls.known.values() for o, v in options.items() if v}
        assert len(cls.known) > 15 and sum(map(len, cls.known.values())) > 100

    def test_bash(self):
        text = (FOLDER / "nvllmctl.bash").read_text()
        body = text.split("_nvllmctl_words()")[0]
        shown = {c: set(o.split()) for c, o in re.findall(r"^ +([a-z-]+)\) echo '(.*)' ;;", body, re.M)}
        self.assertEqual(shown, {c: set(o) for c, o in self.known.items()})
        self.assertEqual(set(re.search(r"^    echo '(.*)'$", body, re.M)[1].split()), COMMON)
        words = re.search(r"help\) echo '(.*)'", text.split("_nvllmctl_words()")[1])[1]
        self.assertEqual(words.split(), commands())
        after = text.split("case $prev in")[1].split("esac")[0]
        self.assertEqual(set(re.findall(r"--[a-z-]+", re.sub(r"compgen .*", "", after))),
                         self.with_value | {"--socket", "--timeout"})

    def test_zsh(self):
        text = (FOLDER / "_nvllmctl").read_text()
        self.assertEqual(re.findall(r"^        '([a-z-]+):", text, re.M), commands())
        parts = re.split(r"^        ([a-z-]+)\)\n", text.split("case $words[1] in")[1], flags=re.M)
        shown = {c: {o: bool(v) for o, v in re.findall(r"'\*?(--[a-z-]+)(=?)\[", body)}
                 for c, body in zip(parts[1::2], parts[2::2])}
        self.assertEqual(shown, self.known)
        common = text.split("common=(")[1].split("\n    )")[0]
        self.assertEqual(set(re.findall(r"'(--[a-z-]+)", common)), COMMON)

    def test_fish(self):
        text = (FOLDER / "nvllmctl.fish").read_text()
        self.assertEqual(re.findall(r"-n __fish_use_subcommand -f -a ([a-z-]+) ", text), commands())
        shown = {c: {} for c in commands()}
        for c, o, value in re.findall(
                r"^complete .*_from ([a-z-]+)' -l ([a-z-]+)( -[rx])?", text, re.M):
            shown[c]["--" + o] = bool(value)
        self.assertEqual(shown, self.known)
        self.assertEqual({"--" + o for o in re.findall(r"^complete -c nvllmctl -l ([a-z-]+)", text,
                                                       re.M)}, COMMON)

    def complete(self, *words):
        """What bash offers for the last word."""
        script = (f"source {FOLDER}/nvllmctl.bash; COMP_WORDS=(nvllmctl \"$@\"); "
                  "COMP_CWORD=$#; _nvllmctl; printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = subprocess.run(["bash", "-c", script, "x", *words], capture_output=True, text=True,
                              timeout=scaled(20, 60), cwd=FOLDER, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("gen"), ["generate"])
        self.assertEqual(self.complete("log-level", "w"), ["warning"])
        self.assertEqual(self.complete("cache", "un"), ["unpin"])
        self.assertEqual(self.complete("generate", "--temp"), ["--temperature"])
        self.assertEqual(self.complete("--socket", "x", "status", "--js"), ["--json"])
        self.assertEqual(self.complete("generate", "--priority", "h"), ["high"])
        self.assertEqual(self.complete("batch", "--input", "_nvllmc"), ["_nvllmctl"])
        self.assertEqual(self.complete("generate", "--seed", ""), [])
        # bash takes "=" for a word of its own
        self.assertEqual(self.complete("generate", "--priority", "=", "h"), ["high"])
        self.assertEqual(self.complete("generate", "--priority", "="), ["low", "normal", "high"])
        self.assertEqual(self.complete("--socket", "=", "x", "stat"), ["status"])
        self.assertEqual(self.complete("generate", "--seed", "="), [])
        self.assertEqual(self.complete("help", "det"), ["detokenize"])
        self.assertIn("--json", self.complete("status", "--"))

    def test_files_only_behind_options(self):
        """A file's name is not offered where it would be taken for what is in the file."""
        for words in ("generate", "_nvllmc"), ("status", "_nvllmc"), ("cache", "_nvllmc"):
            self.assertEqual(self.complete(*words), [])
        self.assertEqual(self.complete("generate", "--prompt-file", "_nvllmc"), ["_nvllmctl"])
        self.assertNotIn("'*: :_files'", (FOLDER / "_nvllmctl").read_text())

    def test_shells_take_them(self):
        """The files are right for the shells that they are for, where those are here."""
        checked = 0
        for shell, name in [(shell, name.format(program)) for program in ("nvllmctl", "nvllmd")
                            for shell, name in (("bash", "{}.bash"), ("zsh", "_{}"),
                                                ("fish", "{}.fish"))]:
            if shutil.which(shell):
                done = subprocess.run([shell, "-n", FOLDER / name], capture_output=True)
                self.assertEqual((done.returncode, done.stderr), (0, b""), name)
                checked += 1
        if shutil.which("shellcheck"):
            done = subprocess.run(["shellcheck", *FOLDER.glob("*.bash")], capture_output=True)
            self.assertEqual(done.returncode, 0, done.stdout)
        self.assertGreater(checked, 0)

    def test_fish_completes(self):
        if not shutil.which("fish"):
            self.skipTest("no fish")
        folder = self.temporary_folder()
        for line, wanted in (("nvllmctl gen", "generate"), ("nvllmctl generate --temp", "--temperature"),
                             ("nvllmctl log-level w", "warning"), ("nvllmctl generate _nvllmc", ""),
                             ("nvllmctl cache _nvllmc", ""),
                             ("nvllmctl generate --prompt-file _nvllmc", "_nvllmctl")):
            done = subprocess.run(["fish", "--no-config", "-c",
                                   f"source {FOLDER}/nvllmctl.fish; complete -C '{line}'"],
                                  capture_output=True, text=True, cwd=FOLDER,
                                  env={**os.environ, "HOME": str(folder)})
            self.assertEqual([x.split("\t")[0] for x in done.stdout.splitlines()], wanted.split())


class OfTheDaemon(Case):
    """nvllmd's are told by its own usage."""

    @classmethod
    def setUpClass(cls):
        text = subprocess.run([config.nvllmd, "--help"], capture_output=True, text=True,
                              check=True).stdout.split("\noptions of the configuration")[0]
        cls.commands = re.findall(r"^ +nvllmd ([a-z-]+) \[options\]", text, re.M)
        cls.options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        assert len(cls.commands) > 4 and len(cls.options) > 10, text

    def test_files(self):
        """Each shell's file names all commands and options, and none that nvllmd does not know."""
        text = (FOLDER / "nvllmd.bash").read_text()
        self.assertEqual(re.search(r"-W '(check[a-z -]*)'", text)[1].split(), self.commands)
        self.assertEqual(set(re.findall(r"--[a-z][a-z-]+", text)), self.options)
        text = (FOLDER / "_nvllmd").read_text()
        self.assertEqual(re.findall(r"^        '([a-z-]+):", text, re.M), self.commands)
        self.assertEqual(set(re.findall(r"'\*?(--[a-z-]+)=?\[", text)), self.options)
        text = (FOLDER / "nvllmd.fish").read_text()
        self.assertEqual(re.findall(r"-n __fish_use_subcommand -a ([a-z-]+) ", text), self.commands)
        self.assertEqual({"--" + o for o in re.findall(r" -l ([a-z-]+)", text)}, self.options)

    def complete(self, *words):
        folder = pathlib.Path(config.nvllmd).resolve().parent
        script = (f"source {FOLDER}/nvllmd.bash; COMP_WORDS=(nvllmd \"$@\"); "
                  "COMP_CWORD=$#; _nvllmd; printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = subprocess.run(["bash", "-c", script, "x", *words], capture_output=True, text=True,
                              timeout=scaled(20, 60), cwd=FOLDER, check=True,
                              env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("check"), ["check-config", "check"])
        self.assertEqual(self.complete("check-config", "--js"), ["--json"])
        self.assertEqual(self.complete("check", "--js"), [])
        self.assertEqual(self.complete("--backend", "c"), ["cpu", "cuda"])
        self.assertEqual(self.complete("--backend", "=", "c"), ["cpu", "cuda"])
        self.assertEqual(self.complete("--set", "cache.kv_m"), ["cache.kv_memory="])
        self.assertEqual(self.complete("--config", "_nvllmd"), ["_nvllmd"])


if __name__ == "__main__":
    harness.main()
