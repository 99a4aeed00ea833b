"""Tests of the tree itself: which folder includes what, formatting, scripts, man pages, units, and
that the options are documented. `test_tree.py CLASS` runs one kind; ctest runs each as a test."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77

config = argparse.Namespace(nvllmd=None, build=None)

# Folder -> folders of ours that its files may include from.
MAY_INCLUDE = {
    "proto": {"proto"},
    "engine": {"engine"},
    "cuda": {"cuda", "engine"},
    "daemon": {"daemon", "engine", "proto"},
    "client": {"client", "proto"},
}
OURS = set(MAY_INCLUDE) | {"tests", "packaging"}
# Headers that are installed into one folder: they find each other there.
PUBLIC = {"client/lib/nvllm_client.h", "client/lib/nvllm_admin.h",
          "client/lib/nvllm_sessions.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def files(*suffixes, root=ROOT):
    """Files of the tree, without build folders."""
    for folder, names, entries in os.walk(root):
        names[:] = sorted(n for n in names if not n.startswith((".git", "build")))
        for entry in sorted(entries):
            if entry.endswith(suffixes):
                yield pathlib.Path(folder) / entry


def run(*args, **options):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, **options)


def wrong_includes(root):
    found = []
    for path in files(".c", ".h", ".cu", ".cuh", root=root):
        relative = path.relative_to(root)
        folder = relative.parts[0]
        if folder not in MAY_INCLUDE:
            continue
        for quote, name in INCLUDE.findall(path.read_text()):
            target = name.split("/")[0] if "/" in name else None
            if str(relative) in PUBLIC and f"client/lib/{name}" in PUBLIC:
                continue
            if quote == '"' and target not in OURS:
                found.append(f'{relative}: "{name}" is not named from the top of the tree')
            elif target in OURS and target not in MAY_INCLUDE[folder]:
                found.append(f"{relative}: {folder}/ may not include {name}")
    return found


class Includes(unittest.TestCase):
    def test_directions(self):
        """proto and engine know themselves alone, cuda the engine, daemon both, client proto."""
        self.assertEqual(wrong_includes(ROOT), [])

    def test_planted(self):
        """The check finds what it is there for."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, line in (("engine/a.c", '#include "daemon/options.h"'),
                               ("proto/b.h", "# include <engine/util/err.h>"),
                               ("client/c.c", '#include "engine/util/err.h"'),
                               ("cuda/d.cu", '#include "proto/frame.h"'),
                               ("daemon/e.c", '#include "client/nvllm.h"'),
                               ("engine/cpu/f.c", '#include "g.h"'),
                               ("engine/good.c", '#include "engine/util/err.h"\n#include <stdio.h>')):
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(line + "\n")
            self.assertEqual(len(wrong_includes(root)), 6)

    def test_own_state_stays_inside(self):
        """X_impl.h is for its own folder; tests may look inside."""
        found = []
        for path in files(".c", ".h", ".cu", ".cuh"):
            relative = path.relative_to(ROOT)
            if relative.parts[0] == "tests":
                continue
            for _, name in INCLUDE.findall(path.read_text()):
                if name.endswith("_impl.h") and \
                        pathlib.PurePath(name).parent != relative.parent:
                    found.append(f"{relative}: {name}")
        self.assertEqual(found, [])


class Clock(unittest.TestCase):
    def test_nobody_reads_the_wall_clock(self):
        """Times and deadlines are of the monotonic clock, so that nothing happens when the other
        jumps. nvllmctl's own output may tell the time of day, and so may a chat template and the files
        of sessions."""
        wall = re.compile(r"CLOCK_REALTIME|\bgettimeofday\b|\btime\((NULL|0|&)")
        found = [str(p.relative_to(ROOT)) for p in files(".c", ".h", ".cu")
                 if p.relative_to(ROOT).parts[0] in ("proto", "engine", "cuda", "daemon")
                 and wall.search(p.read_text())]
        self.assertEqual(found, ["daemon/chat_operations.c", "engine/text/jinja_tests.c"])
        self.assertTrue(wall.search("clock_gettime(CLOCK_REALTIME, &t)"))


class Format(unittest.TestCase):
    def test_formatted(self):
        """clang-format has nothing to change; its version decides, so it is a fixed one."""
        tool = shutil.which("clang-format-14")
        if not tool:
            self.skipTest("no clang-format-14")
        done = run(tool, "--dry-run", "--Werror", *files(".c", ".h"))
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])


class Shell(unittest.TestCase):
    def test_shellcheck(self):
        """Shell scripts have no known trap."""
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck")
        scripts = [p for p in [*files(""), ROOT / ".ci" / "run"] if p.is_file()
                   and p.suffix in ("", ".sh", ".postinst", ".postrm", ".prerm")
                   and re.match(rb"#!.*\b(ba)?sh\b", p.read_bytes()[:64])]
        self.assertIn(ROOT / "packaging" / "quickstart", scripts)
        done = run("shellcheck", *scripts)
        self.assertEqual(done.returncode, 0, done.stdout)


class Man(unittest.TestCase):
    def test_pages(self):
        """Each man page builds, and none is missing."""
        if not shutil.which("scdoc"):
            self.skipTest("no scdoc")
        pages = {p.name: p for p in files(".scd")}
        for name in ("nvllmd.8.scd", "nvllm-openai.8.scd", "nvllmd.conf.5.scd", "nvllm-protocol.7.scd",
                     "nvllmctl.1.scd", "libnvllm-client.3.scd", "nvllm_connect.3.scd"):
            self.assertIn(name, pages)
        for name, page in pages.items():
            with self.subTest(name):
                done = run("scdoc", input=page.read_text())
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(".TH", done.stdout)


def flat(text):
    """C without its layout: white space, and the asterisks that begin lines of comments."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"\n[ \t]*\*(?!/)", " ", m[0]), text, flags=re.S)
    return " ".join(text.split())


class Library(unittest.TestCase):
    """The pages of libnvllm-client have what its headers declare."""

    maxDiff = None

    def setUp(self):
        man = ROOT / "packaging" / "man"
        self.pages = {p.name[:-6]: p.read_text() for p in man.glob("*.3.scd")}
        self.headers = "".join((ROOT / name).read_text() for name in sorted(PUBLIC, reverse=True))
        self.blocks = {name: re.findall(r"^```\n(.*?)\n```$", page, re.M | re.S)
                       for name, page in self.pages.items()}

    def declared(self):
        """{name: prototype}; an init macro is its function without the size."""
        found = {}
        for text in re.findall(r"^(?!#)\w[^;{}()#]*?\bnvllm_\w+\([^;{}]*\);", self.headers, re.M):
            prototype = flat(text).replace("_init_size(", "_init(").replace(", size_t size)", ")")
            found[re.search(r"(nvllm_\w+)\(", prototype)[1]] = prototype
        return found

    def test_prototypes(self):
        """Each function is in the SYNOPSIS of one page, as it is declared, and in its NAME."""
        shown, named = {}, set()
        for name, page in self.pages.items():
            if name == "libnvllm-client":
                continue
            synopsis = flat(page[page.index("# SYNOPSIS"):page.index("# DESCRIPTION")])
            self.assertIn("#include <nvllm_client.h>", synopsis, name)
            names = re.search(r"# NAME\n\n([^-]*) - ", page)[1].replace(",", " ").split()
            self.assertEqual(names[0], name)
            named |= set(names)
            for text in re.findall(r"(?:\w[\w \*]*\b)nvllm_\w+\([^;]*\);", synopsis):
                function = re.search(r"(nvllm_\w+)\(", text)[1]
                self.assertNotIn(function, shown, name)
                self.assertIn(function, [*names, "nvllm_callback"])
                shown[function] = text.replace("( ", "(")
        declared = self.declared()
        self.assertGreater(len(declared), 50)
        self.assertEqual(shown, declared)
        self.assertEqual(named | {"nvllm_callback"}, set(declared))

    def test_types(self):
        """Each struct and enum is in one page, with the header's members and comments."""
        declared = re.findall(r"^(?:struct|enum)[ \w]* \{.*?\};", self.headers, re.M | re.S)
        self.assertGreater(len(declared), 40)
        shown = [flat(text) for blocks in self.blocks.values() for block in blocks
                 for text in re.findall(r"^(?:struct|enum)[ \w]* \{.*?\};", block, re.M | re.S)]
        declared = [flat(text) for text in declared]
        self.assertEqual([t for t in declared if t.startswith("enum nvllm_code {")],
                         [t for t in declared if t not in shown], "the pages differ")
        self.assertEqual([t for t in shown if t not in declared], [], "the pages have more")
        self.assertEqual(len(shown), len(set(shown)))

    def test_versions(self):
        for line in re.findall(r"^#define NVLLM_CLIENT_VERSION.*", self.headers, re.M):
            self.assertIn(line, self.pages["nvllm_code_name"])

    def test_references(self):
        """A page that another leads to is there, and the first page leads to all."""
        functions = set(self.declared())
        for name, page in self.pages.items():
            for reference in re.findall(r"\*(\w+)\*\(3\)", page):
                self.assertIn(reference, functions | {"longjmp"}, name)
            for function in re.findall(r"\*(nvllm_\w+)\*\(\)", page):
                self.assertIn(function, functions, name)
        overview = set(re.findall(r"\*(\w+)\*\(3\)\n:", self.pages["libnvllm-client"]))
        self.assertEqual(overview, set(self.pages) - {"libnvllm-client"})

    def test_errors(self):
        """Every code is in the first page's list, and none that is not there."""
        codes = set(re.findall(r"^\s+(NVLLM_E_\w+) =", self.headers, re.M))
        self.assertGreater(len(codes), 10)
        page = self.pages["libnvllm-client"]
        self.assertEqual(set(re.findall(r"_(NVLLM_E_\w+)_\n:", page)), codes)


class Units(unittest.TestCase):
    def unit(self, name):
        text = (ROOT / "packaging" / "systemd" / f"{name}.service.in").read_text()
        path = self.folder / f"{name}.service"
        # Verified as installed, but with a program that is there on every machine.
        text = re.sub(r"@CMAKE_INSTALL_FULL_\w*BIN\w+@/[\w-]+", "/bin/true", text)
        path.write_text(re.sub(r"@NVLLM_(FOLDER|STATE)@", "nvllm", text))
        socket = path.with_suffix(".socket")
        shutil.copy(ROOT / "packaging" / "systemd" / socket.name, socket)
        return path

    def setUp(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_verify(self):
        """systemd finds nothing to complain about in the units."""
        for name in "nvllmd", "nvllm-openai":
            unit = self.unit(name)
            done = run("systemd-analyze", "verify", "--man=no", unit, unit.with_suffix(".socket"))
            complaints = [x for x in done.stderr.splitlines() if "nvllm" in x]
            self.assertEqual(complaints, [])

    def test_sandbox(self):
        """The sandbox is as tight as a daemon that may need a GPU can bear, and tighter without."""
        for name, most in ("nvllmd", 30), ("nvllm-openai", 10):
            done = run("systemd-analyze", "security", "--offline=true", f"--threshold={most}",
                       self.unit(name))
            if "nrecognized option" in done.stderr:
                self.skipTest("systemd-analyze cannot judge a unit offline")
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)


class Protocol(unittest.TestCase):
    """The protocol's page names what the schema has."""

    def setUp(self):
        self.page = (ROOT / "packaging" / "man" / "nvllm-protocol.7.scd").read_text()
        self.schema = (ROOT / "proto" / "nvllm.proto").read_text()

    def test_operations(self):
        """Each operation is a row of the table, and none there that is not in the schema."""
        frame = self.schema[self.schema.index("message ClientFrame"):]
        frame = frame[frame.index("oneof op"):frame.index("}")]
        operations = set(re.findall(r"\w+ (\w+) = \d+;", frame)) - {"hello"}
        self.assertGreater(len(operations), 15)
        table = self.page[self.page.index("[[ *request*"):self.page.index("Users see")]
        self.assertEqual(set(re.findall(r"^\|  (\w+)$", table, re.M)), operations)

    def test_errors(self):
        """So with the codes of errors."""
        codes = set(re.findall(r"^  ERROR_(\w+) = [1-9]", self.schema, re.M))
        table = self.page[self.page.index("[[ *code*"):]
        table = table[:table.index("\n\n")]
        self.assertEqual(set(re.findall(r"^\|  (\w+)$", table, re.M)), codes)


class Fields(unittest.TestCase):
    """The pages name each field that a line of a batch, or a body of the gateway, may have."""

    @staticmethod
    def words(page, begin, end):
        text = (ROOT / "packaging" / "man" / page).read_text()
        text = text[text.index(f"\n# {begin}\n"):text.index(f"\n# {end}\n")]
        return {w.split(".")[0] for w in re.findall(r"_([a-z0-9_.]+?)_(?![a-z0-9])", text)}

    def test_batch(self):
        source = (ROOT / "client" / "ctl" / "request.c").read_text()
        table = source[source.index("fields[N_FIELDS] = {"):]
        table = table[:table.index("\n};")]
        fields = set(re.findall(r'(?:\{|name = )"(\w+)"|FIELD\((\w+)', table))
        fields = {a or b for a, b in fields}
        self.assertEqual(len(fields), int(re.search(r"N_FIELDS = (\d+)", source)[1]))
        self.assertEqual(fields - self.words("nvllmctl.1.scd", "BATCH", "BENCH"), set())

    def test_gateway(self):
        source = "".join(f.read_text() for f in (ROOT / "client" / "openai").glob("*.c"))
        refused = re.search(r"bool check_refused.*?\};", source, re.S)[0]
        fields = set(re.findall(r'fields_get\(in->root, "(\w+)"\)|\bROW\((\w+), read', source))
        fields = {a or b for a, b in fields} | set(re.findall(r'"(\w+)"', refused)) | \
            set(re.findall(r'(?:\{|fields_refuse_flag\(in, )"(\w+)", (?:read_|true|false|NVLLM_)', source))
        self.assertGreater(len(fields), 65)
        self.assertEqual(fields - self.words("nvllm-openai.8.scd", "FIELDS", "ERRORS"), set())


class Builtins(unittest.TestCase):
    def test_order(self):
        """The tables of Jinja's filters, tests, functions and methods are searched by halves."""
        n_tables = 0
        for path in sorted((ROOT / "engine" / "text").glob("jinja_*.c")):
            for table in re.findall(r"^static const struct builtin \w+\[\] = \{\n(.*?)^\};", path.read_text(),
                                    re.M | re.S):
                names = re.findall(r'\{"([^"]+)", ', table)
                self.assertEqual(names, sorted(set(names)), path.name)
                n_tables += 1
        self.assertEqual(n_tables, 7)


class Log(unittest.TestCase):
    def test_ids(self):
        """Each event of the log that is not for debugging has a MESSAGE_ID, which the manual names; the
        table is in order and no id is there twice."""
        source = "".join(f.read_text() for f in (ROOT / "daemon").glob("*.c"))
        calls = re.findall(r'(?:log_event|log_text|line_begin)\([^";]*?LOG_LEVEL_(\w+),\s*'
                           r'((?:[^;"]*\?)?\s*"\w+"(?:\s*:\s*"\w+")?)', source)
        events = {name for level, what in calls if level != "DEBUG"
                  for name in re.findall(r'"(\w+)"', what)}
        self.assertGreater(len(events), 25)
        table = re.findall(r'\{"(\w+)", "([0-9a-f]{32})"\}', (ROOT / "daemon" / "log_ids.h").read_text())
        self.assertEqual([e for e, _ in table], sorted(events))
        self.assertEqual(len({i for _, i in table}), len(table))
        page = (ROOT / "packaging" / "man" / "nvllmd.8.scd").read_text()
        self.assertEqual(re.findall(r"^\|  (\w+)\n:  .*\n:  ([0-9a-f]{32})$", page, re.M), table)


class Options(unittest.TestCase):
    """Each option is in the manual and in the example, and none there that nvllmd does not know."""

    def setUp(self):
        if not config.nvllmd:
            self.skipTest("no nvllmd given")
        text = run(config.nvllmd, "--help").stdout
        self.options = set(re.findall(r"^\s*([a-z]+\.[a-z_]+)\b", text, re.M))
        self.assertGreater(len(self.options), 5, text)

    def test_manual(self):
        source = (ROOT / "packaging" / "man" / "nvllmd.conf.5.scd").read_text()
        self.assertEqual(set(re.findall(r"^%option (.*)", source, re.M)), self.options)
        build = pathlib.Path(config.nvllmd).resolve().parents[1]
        page = (build / "packaging" / "nvllmd.conf.5.scd").read_text()
        self.assertEqual(set(re.findall(r"^\*([a-z]+\.[a-z_]+)\*", page, re.M)), self.options)

    def test_limits(self):
        """Each option of [limits] is in the table of limits, but for what admins have beyond them, and
        the reverse; the protocol's page leads to them."""
        source = (ROOT / "daemon" / "options.h").read_text()
        limits = {f"limits.{key}" for key in re.findall(r"X\([A-Z_]+, ([a-z_]+),", source)}
        reserve = {"limits.admin_connections", "limits.admin_requests"}
        self.assertEqual(limits | reserve,
                         {o for o in self.options if o.startswith("limits.")})
        self.assertFalse(limits & reserve)

    def test_example(self):
        section, named = None, set()
        for line in (ROOT / "packaging" / "nvllmd.conf.in").read_text().splitlines():
            if m := re.match(r"\[(\w+)\]$", line):
                section = m[1]
            elif m := re.match(r"#?([a-z_]+) =( |$)", line):
                named.add(f"{section}.{m[1]}")
        self.assertEqual(named, self.options)

    def test_example_is_valid(self):
        """The example is taken as it is, and with every commented value in force, too."""
        example = (ROOT / "packaging" / "nvllmd.conf.in").read_text()
        example = re.sub(r"@\w+@", "/usr", example)
        model = ROOT / "packaging" / "models" / "nvllm-tiny"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "nvllmd.conf"
            for text in example, re.sub(r"^#([a-z_]+ =)", r"\1", example, flags=re.M):
                path.write_text(text)
                done = run(config.nvllmd, "check", "--config", path, "--model", model)
                self.assertEqual(done.returncode, 0, done.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvllmd")
    _, rest = parser.parse_known_args(namespace=config)
    result = unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if result.testsRun == len(result.skipped) else 0)


if __name__ == "__main__":
    main()
