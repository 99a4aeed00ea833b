"""libnvllm-client as others get it: what it shows, what it documents, and programs that are built
elsewhere against an installed copy and talk to a daemon."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness
import wire
from harness import Case, SharedDaemon, config
from test_ctl_alone import Fake

CLIENT = harness.ROOT / "client" / "lib"
HEADERS = [CLIENT / "nvllm_client.h", CLIENT / "nvllm_admin.h", CLIENT / "nvllm_sessions.h"]
MANUAL = harness.ROOT / "packaging" / "man" / "libnvllm-client.3.scd"
EXAMPLES = ["oneshot", "chat", "session", "poll_loop", "libevent_loop"]


def declared():
    return {name for header in HEADERS for name in
            re.findall(r"^(?!typedef)\w[^;({]*?\b(nvllm_\w+)\(", header.read_text(), re.M)}


class Names(Case):
    def test_map(self):
        """What the headers declare and the map exports is the same."""
        exported = set(re.findall(r"^\s+(nvllm_\w+);", (CLIENT / "nvllm_client.map").read_text(),
                                  re.MULTILINE))
        self.assertGreater(len(exported), 40)
        self.assertEqual(exported, declared())

    def test_version(self):
        """The header's version is the project's, as a text and as a number, one byte a part."""
        version = re.search(r"project\(nvllm VERSION (\S+)",
                            (harness.ROOT / "CMakeLists.txt").read_text())[1]
        header = HEADERS[0].read_text()
        self.assertEqual(re.search(r'NVLLM_CLIENT_VERSION +"(.*)"', header)[1], version)
        major, minor, patch = map(int, version.split("."))
        self.assertEqual(int(re.search(r"NVLLM_CLIENT_VERSION_NUMBER (0x\w+)", header)[1], 16),
                         major << 16 | minor << 8 | patch)

    def test_symbols(self):
        """So is what the built library shows: nothing of protobuf, and all of one version."""
        if not shutil.which("nm"):
            self.skipTest("no nm")
        library = pathlib.Path(config.nvllmctl).parent / "libnvllm-client.so"
        lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True,
                               check=True, text=True).stdout.splitlines()
        shown = {x.split()[-1] for x in lines} - {"NVLLM_0"}
        self.assertEqual({x.split("@@")[0] for x in shown}, declared())
        self.assertEqual({x.split("@@")[-1] for x in shown} - {"NVLLM_0"}, set())

    def test_answers(self):
        """Every answer of the schema is in the protocol's page, and no other."""
        page = (MANUAL.parent / "nvllm-protocol.7.scd").read_text()
        named = {a for said in re.findall(r"^\|  [a-z_]+\n:  (.*)\n:", page, re.MULTILINE)
                 for a in said.split(", ")}
        answers = {f.type for f in wire.MESSAGES["ServerFrame"]}
        self.assertEqual(named, answers - {"uint64", "Welcome", "Error"})


class Installed(SharedDaemon):
    """The component "client", in a prefix of its own, and the examples that came with it."""

    @classmethod
    def setUpClass(cls):
        if not config.build:
            raise harness.unittest.SkipTest("no build folder given")
        cls.own = tempfile.TemporaryDirectory(prefix="nvllm-outside-")
        cls.folder = pathlib.Path(cls.own.name)
        cls.prefix = cls.folder / "prefix"
        harness.run_command(["cmake", "--install", config.build, "--prefix", cls.prefix,
                             "--component", "client"])
        cls.lib_folder = next(cls.prefix.rglob("libnvllm-client.so")).parent
        installed = next(cls.prefix.rglob("oneshot.c")).parent
        cls.sources = cls.folder / "project"
        shutil.copytree(installed, cls.sources)
        flags = f"-fsanitize={config.sanitize}" if config.sanitize else ""
        cls.env = {**os.environ, "CFLAGS": f"-O1 -g -Wall -Wextra -Werror {flags}",
                   "LDFLAGS": flags, "LD_LIBRARY_PATH": str(cls.lib_folder),
                   "PKG_CONFIG_PATH": str(cls.lib_folder / "pkgconfig")}
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.own.cleanup()

    def make(self, *args, **options):
        done = subprocess.run([str(a) for a in args], env=self.env, capture_output=True, text=True,
                              timeout=300, **options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def run_example(self, program, *args, text="", **options):
        done = subprocess.run([str(program), *map(str, args)], env=self.env, input=text,
                              capture_output=True, text=True, timeout=120, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def answer(self, **request):
        with self.daemon.connect() as w:
            answer = w.generate(**request)
            self.assertIsNone(answer.error)
            return answer.choices[0].text.decode()

    def expected_chat(self, *turns, max_tokens):
        """What a conversation of these user's turns is answered, greedily."""
        messages, answers = [], []
        for turn in turns:
            messages.append({"role": "user", "content": turn.encode()})
            chat = {"messages": messages}
            if max_tokens == 100:
                chat["enable_thinking"] = False
            answers.append(self.answer(chat=chat, max_tokens=max_tokens,
                                       sampling={"temperature": 0.0}))
            messages.append({"role": "assistant", "content": answers[-1].encode()})
        return answers

    def check_examples(self, folder):
        socket = self.daemon.socket
        self.assertEqual(self.run_example(folder / "oneshot", "What is 17 + 25?", socket),
                         self.expected_chat("What is 17 + 25?", max_tokens=100)[0] + "\n")

        turns = ["Hello", "What is 2 + 3?"]
        self.assertEqual(self.run_example(folder / "chat", socket, text="\n".join(turns) + "\n"),
                         "".join(a + "\n" for a in self.expected_chat(*turns, max_tokens=500)))

        for question in turns:
            self.assertNotEqual(self.run_example(folder / "session", socket, folder.name, question), "\n")
        with self.daemon.connect() as w:
            held = w.ask(show_session={"name": folder.name})["session_contents"]
        self.assertEqual([m["content"].decode() for m in held["chat"]["messages"][1::2]], turns)
        self.assertEqual(held["turn_messages"], [1, 3, 5])

        prompts = [f"{i} + {i} is" for i in range(23)]
        out = self.run_example(folder / "poll_loop", socket, text="\n".join(prompts) + "\n")
        answers = dict(re.findall(r"^(\d+): \d+ tokens: (.*(?:\n(?!\d+: \d+ tokens).*)*)\n", out,
                                  re.MULTILINE))
        self.assertEqual(len(answers), len(prompts), out)
        for i in (0, 11, 22):
            self.assertEqual(answers[str(i + 1)],
                             self.answer(prompt=prompts[i].encode(), max_tokens=32,
                                         sampling={"temperature": 0.0}))

        out = self.run_example(folder / "libevent_loop", socket, "1 + 1 =", "2 + 2 =")
        self.assertEqual(sorted(re.findall(r"^(\d): done, \d+ tokens$", out, re.MULTILINE)),
                         ["1", "2"], out)

    def test_files(self):
        """Headers, library with its version, package files, examples and the schema are there."""
        names = {p.name for p in self.prefix.rglob("*")}
        for name in ("nvllm_client.h", "nvllm_admin.h", "nvllm_sessions.h", "libnvllm-client.so",
                     "libnvllm-client.so.0", "libnvllm-client.pc", "nvllm-client-config.cmake", "nvllm.proto",
                     "generate.py", *(e + ".c" for e in EXAMPLES)):
            self.assertIn(name, names)
        if shutil.which("readelf"):
            dynamic = self.make("readelf", "-d", self.lib_folder / "libnvllm-client.so")
            self.assertIn("[libnvllm-client.so.0]", dynamic)

    def test_pkg_config(self):
        """A project elsewhere builds with pkg-config alone, and answers."""
        if not shutil.which("pkg-config") or not shutil.which("make"):
            self.skipTest("no pkg-config or no make")
        self.make("make", "-C", self.sources, "-j2")
        self.check_examples(self.sources)

    def test_nothing_else_to_build(self):
        """Who builds with the library needs no development files of what it uses inside."""
        pc = next(self.prefix.rglob("libnvllm-client.pc")).parent
        env = {k: v for k, v in self.env.items() if k != "PKG_CONFIG_PATH"}
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libnvllm-client"], text=True,
                               env={**env, "PKG_CONFIG_LIBDIR": str(pc)}, capture_output=True)
        self.assertEqual(flags.returncode, 0, flags.stderr)
        self.assertIn("-lnvllm-client", flags.stdout)

    def test_find_package(self):
        """And with find_package()."""
        build = self.folder / "build"
        self.make("cmake", "-S", self.sources, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.make("cmake", "--build", build, "-j2")
        self.check_examples(build)

    def test_moved(self):
        """A prefix that was moved still serves a build."""
        moved = self.folder / "moved"
        shutil.copytree(self.prefix, moved, symlinks=True)
        pc = next(moved.rglob("libnvllm-client.pc")).parent
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libnvllm-client"],
                               env={**os.environ, "PKG_CONFIG_PATH": str(pc)}, text=True,
                               capture_output=True, check=True).stdout.split()
        folders = [pathlib.Path(f[2:]).resolve() for f in flags if f[:2] in ("-I", "-L")]
        self.assertGreaterEqual(len(folders), 2, flags)
        for folder in folders:
            self.assertTrue(folder.is_relative_to(moved.resolve()), flags)

    def test_languages(self):
        """The headers are C99 and C++11 without a warning, each alone, and lead to the library."""
        include = next(self.prefix.rglob("nvllm_client.h")).parent
        for compiler, standard, suffix in (("cc", "c99", "c"), ("c++", "c++11", "cc")):
            if not shutil.which(compiler):
                continue
            for header in HEADERS:
                source = self.folder / f"header.{suffix}"
                source.write_text(f"#include <{header.name}>\n"
                                  "int main(void) { struct nvllm_options o;"
                                  " struct nvllm_list_options l; nvllm_options_init(&o);"
                                  " nvllm_list_options_init(&l); return l.limit != 0; }\n")
                program = self.folder / f"header-{suffix}"
                self.make(compiler, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror",
                          *self.env["LDFLAGS"].split(), f"-I{include}", source,
                          f"-L{self.lib_folder}", "-lnvllm-client", "-o", program)
                self.run_example(program)

    def test_manuals_program(self):
        """The whole program of libnvllm-client(3), word for word."""
        source = self.folder / "say.c"
        source.write_text(re.search(r"# EXAMPLE\n\n```\n(.*?)```", MANUAL.read_text(), re.S)[1])
        flags = self.make("pkg-config", "--cflags", "--libs", "libnvllm-client").split()
        self.make("cc", *self.env["CFLAGS"].split(), "-std=c99", source, *flags,
                  "-o", self.folder / "say")
        out = self.run_example(self.folder / "say", self.daemon.socket, "1 + 1 =")
        text = self.answer(prompt=b"1 + 1 =", max_tokens=20, sampling={"temperature": 0.0})
        self.assertRegex(out, rf"^{re.escape(text)}\n\d+ tokens\n$")
        failed = subprocess.run([self.folder / "say", self.folder / "none", "x"], env=self.env,
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(failed.returncode, 1)
        self.assertTrue(failed.stderr.startswith("not_running: nvllmd is not running"),
                        failed.stderr)

    def test_chat_interrupted(self):
        """Ctrl-C ends the answer, and the conversation goes on."""
        program = pathlib.Path(config.nvllmctl).parent / "example-chat"
        chat = subprocess.Popen([program, self.daemon.socket], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, env=self.env)
        self.addCleanup(chat.kill)
        chat.stdin.write(b"Tell me a long story\n")
        chat.stdin.flush()
        self.assertTrue(os.read(chat.stdout.fileno(), 1))
        chat.send_signal(signal.SIGINT)
        time.sleep(0.3)
        out, _ = chat.communicate(b"Hello\n", timeout=120)
        self.assertEqual(chat.returncode, 0)
        self.assertGreaterEqual(out.count(b"\n"), 2)

    def test_daemon_killed(self):
        """A loop whose daemon is killed before it has greeted ends, and says why."""
        program = pathlib.Path(config.nvllmctl).parent / "example-libevent_loop"
        with harness.Daemon() as daemon:
            stat = pathlib.Path(f"/proc/{daemon.process.pid}/stat")
            sockets = pathlib.Path("/proc/net/unix")  # where one that waits to be accepted is, too

            def n_sockets():
                return sockets.read_text().count(f" {daemon.socket}\n")

            daemon.process.send_signal(signal.SIGSTOP)
            harness.wait_for(lambda: ") T " in stat.read_text(), 10, "it is stopped")
            before = n_sockets()
            loop = subprocess.Popen([program, daemon.socket, "x"], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, env=self.env)
            self.addCleanup(loop.kill)
            harness.wait_for(lambda: n_sockets() > before, harness.scaled(20, 60),
                             "it has connected")
            self.assertIsNone(loop.poll())
            daemon.kill()
            out, err = loop.communicate(timeout=60)
        self.assertEqual((loop.returncode, out), (1, b""))
        self.assertTrue(err.startswith(b"connection: nvllmd closed the connection"), err)

    def test_connection_refused_later(self):
        """What the daemon says of the whole connection ends each program, which repeats it."""
        def script(peer):
            peer.receive()
            peer.send(error={"code": "ERROR_BUSY", "message": "read faster"})
            while peer.receive():
                pass

        folder = pathlib.Path(config.nvllmctl).parent
        for name, args, text in (("oneshot", ["x", None], ""), ("chat", [None], "x\n"),
                                 ("poll_loop", [None], "x\n" * 20),
                                 ("libevent_loop", [None, "x"], "")):
            with self.subTest(name):
                path = Fake(self, script).path
                done = subprocess.run([folder / f"example-{name}", *(a or path for a in args)],
                                      input=text, env=self.env, capture_output=True, text=True,
                                      timeout=60)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertEqual(done.stderr, "busy: read faster\n")

    def test_python(self):
        """A program with nothing of ours but the schema speaks the protocol."""
        python = next((p for p in (sys.executable, "/usr/bin/python3") if subprocess.run(
            [p, "-c", "import google.protobuf"], capture_output=True).returncode == 0), None)
        if not python or not shutil.which("protoc"):
            self.skipTest("no protobuf for Python")
        schema = next(self.prefix.rglob("nvllm.proto"))
        self.make("protoc", f"--proto_path={schema.parent}", f"--python_out={self.sources}",
                  schema.name)
        out = self.run_example(python, self.sources / "generate.py", self.daemon.socket, "1 + 1 =")
        self.assertEqual(out, self.answer(prompt=b"1 + 1 =", max_tokens=32,
                                          sampling={"temperature": 0.0}) + "\n")
        full = {"error": {"code": "ERROR_BUSY", "message": "full"}}
        path = Fake(self, lambda peer: None, full).path
        refused = subprocess.run([python, self.sources / "generate.py", path, "x"],
                                 capture_output=True, text=True, timeout=60)
        self.assertEqual((refused.returncode, refused.stderr), (1, "ERROR_BUSY: full\n"))


class Whole(Case):
    """All that there is to install."""

    def test_prefix(self):
        """Nothing is put outside of a prefix that is given at last, and a configuration that is
        there stays."""
        if not config.build:
            self.skipTest("no build folder given")
        if "CMAKE_INSTALL_PREFIX:PATH=/usr\n" in (config.build / "CMakeCache.txt").read_text():
            self.skipTest("the build is for /usr, whose configuration is in /etc")
        root = self.temporary_folder()
        command = ["cmake", "--install", config.build, "--prefix", "/a/prefix"]
        for _ in range(2):
            out = subprocess.run(command, env={**os.environ, "DESTDIR": str(root)}, check=True,
                                 capture_output=True, text=True).stdout
            self.assertIn("nvllmd.conf", out)
            files = [p for p in root.rglob("*") if not p.is_dir()]
            self.assertGreater(len(files), 30)
            for path in files:
                self.assertTrue(path.is_relative_to(root / "a" / "prefix"), path)
            conf = root / "a" / "prefix" / "etc" / "nvllm" / "nvllmd.conf"
            if "Left as it is" not in out:
                conf.write_text("# mine\n")
        self.assertEqual(conf.read_text(), "# mine\n")
        if shutil.which("scdoc"):
            pages = {p.stem: p for p in root.rglob("man3/*.3")}
            functions = {re.sub(r"_init_size$", "_init", name) for name in declared()}
            self.assertEqual(set(pages), functions | {"libnvllm-client"})
            for page in pages.values():
                if m := re.match(r"\.so man3/(\w+)\.3\n$", page.read_text()):
                    self.assertNotIn(".so", pages[m[1]].read_text())
