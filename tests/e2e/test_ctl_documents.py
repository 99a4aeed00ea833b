"""nvllmctl's help and manual: they say what the program knows, and no more."""

import re
import subprocess

import harness
from harness import Case, config


def run_help(*command):
    return subprocess.run([config.nvllmctl, "help", *command], capture_output=True, check=True,
                          timeout=60).stdout.decode()


def commands():
    """Those of the list of all."""
    return re.findall(r"^  ([a-z-]+) +\S", run_help().split("Options of every command")[0], re.M)


def help_options(command):
    """Those that the command's help names, the common ones included."""
    text = run_help(command).split("\nExamples:")[0]
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


class Documents(Case):
    def test_every_option_is_in_help_and_manual(self):
        """Help and manual name the same commands and options, and nvllmctl knows them."""
        page = harness.generated("nvllmctl.1.scd").read_text()
        manual = set(re.findall(r"\*(--[a-z-]+)\*", page))
        self.assertEqual(set(re.findall(r"^\*nvllmctl ([a-z-]+)\*", page, re.M)), set(commands()))
        shown = set()
        for command in commands():
            for option in (options := help_options(command)):
                done = subprocess.run([config.nvllmctl, command, option + "=", "--no-such"],
                                      capture_output=True, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 2)
                self.assertNotIn(b"there is no option %s:" % option.encode(), done.stderr, command)
                self.assertNotIn(b"there is no option %s," % option.encode(), done.stderr, command)
            shown |= options
        self.assertGreater(len(shown), 50)
        self.assertEqual(shown, manual)

    def test_each_section_has_its_commands_options(self):
        """A section of the manual names the options of its commands, and no others."""
        page = harness.generated("nvllmctl.1.scd").read_text()
        common = {"--socket", "--timeout", "--wait", "--no-wait", "--help"}
        sampling = help_options("chat") & help_options("generate") & help_options("batch")
        of_answers = {"--logprobs", "--n"}  # which a chat does not take
        self.assertEqual(help_options("chat") & of_answers, set())
        prompt = (help_options("generate") & help_options("explain") & help_options("cache")
                  - common - {"--json", "--cache-salt"})
        self.assertIn("--prompt-file", prompt)
        checked = set()
        for title, body in re.findall(r"^# ([A-Z, -]+)\n(.*?)(?=^# |\Z)", page, re.M | re.S):
            names = [n for n in title.lower().split(", ") if n in commands()]
            if not names:
                continue
            # Options are named at the beginning of a paragraph; the text may speak of others'.
            named = {o for line in re.findall(r"^\*-.*", body, re.M)
                     for o in re.findall(r"\*(--[a-z-]+)\*", line)}
            known = set()
            for name in names:  # those of a request and prompt are in the section of generate alone
                own = help_options(name)
                own = own - prompt if prompt <= own and name != "generate" else own
                known |= (own - sampling - of_answers
                          if sampling <= own and name != "generate" else own)
            self.assertEqual(named - common, known - common, title)
            checked |= set(names)
        self.assertEqual(set(commands()) - checked, {"version", "help"})

    def test_code_and_table_agree(self):
        """Options that the code reads are in the table, options of the table are read, and the one
        call of getopt is the table's."""
        sources = {p: p.read_text() for folder in ("client/ctl", "daemon", "proto")
                   for p in sorted((harness.ROOT / folder).glob("*.c"))}
        known = {o[2:] for c in commands() for o in help_options(c)}
        code = "".join(text for path, text in sources.items()
                       if path.parts[-2] == "ctl" and path.name != "commands.c")
        read = set(re.findall(r'ctl_(?:option|whole|real)\([\w>.-]+, "([a-z-]+)"', code))
        self.assertGreater(len(read), 20)
        self.assertEqual(read - known, set())
        named = {w.replace("_", "-") for w in re.findall(r'"([a-z-]+)"|FIELD\((\w+),', code)
                 for w in w if w}
        self.assertEqual(known - named - {"help"}, set())
        self.assertEqual([p.name for p, text in sources.items() if "getopt_long(" in text],
                         ["program.c"])

    def test_help_fits_a_terminal(self):
        """Help of a terminal's usual width; a path that the build was given counts as the usual
        one, of 32 columns, where it is longer."""
        programs = [config.nvllmctl, config.nvllmd, harness.ROOT / "packaging" / "quickstart"]
        for command in [[p, "--help"] for p in programs] + [
                [config.nvllmctl, c, "--help"] for c in commands()]:
            text = harness.run_command(command).stdout.decode()
            self.assertIn("usage: ", text)
            for line in text.splitlines():
                counted = re.sub(r"(?<!\S)/\S+", lambda path: path[0][:32], line)
                self.assertLessEqual(len(counted), 80, (command, line))

    def test_every_command_has_an_example(self):
        """Help ends with lines that can be typed, and those use options that are there."""
        for command in commands():
            text = run_help(command)
            self.assertTrue(text.startswith("usage: nvllmctl " + command), command)
            if command == "version":
                continue
            examples = re.findall(r"nvllmctl ([a-z-]+)([^|&]*)", text.split("Examples:\n")[1])
            self.assertIn(command, [name for name, _ in examples])
            for name, rest in examples:
                self.assertLessEqual(set(re.findall(r" (--[a-z-]+)", rest)), help_options(name))
