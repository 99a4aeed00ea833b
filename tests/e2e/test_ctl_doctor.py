"""nvllmctl doctor: what is broken is named, with the command that fixes it."""

import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys

import harness
from harness import MODEL, SMALL, Case, Daemon, config, model_folder, run_command, scaled

NOBODY = "nobody"
COMMANDS = {"ls", "nvllmd", "rm", "chmod", "chown", "kill", "git", "df", "export", "groupadd",
            "install", "systemctl", "ss", "ps", "${EDITOR:-vi}"}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
INDEX = "model.safetensors.index.json"
INSTALLED = None  # the configuration that is looked at where none is given

# Runs a command in a world where it is process 1, and none that was there before has a number.
ALONE = ["unshare", "--pid", "--fork", "--mount-proc"]
ALONE_AS_USER = [*ALONE, "--user", "--map-root-user"]

# Listens at the socket that is its stdin, and runs its arguments.
LISTEN = [sys.executable, "-c", """
import socket, subprocess, sys
s = socket.socket(fileno=0)
s.listen(9)
sys.exit(subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode)
"""]

# As somebody else (UID NVLLMD MODEL COMMAND…), and passes the socket on as systemd does, to a daemon
# that root has.
PASS_ON = [sys.executable, "-c", """
import os, socket, subprocess, sys
s = socket.socket(fileno=0)
os.seteuid(int(sys.argv[1]))
s.listen(9)
os.seteuid(0)
start = 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&0 </dev/null'
daemon = subprocess.Popen(["sh", "-c", start, "sh", sys.argv[2], "--model", sys.argv[3], "--backend",
                           "cpu", "--set", "cache.kv_memory=64M"], stdin=s, stderr=subprocess.DEVNULL)
status = subprocess.run(sys.argv[4:], stdin=subprocess.DEVNULL).returncode
daemon.kill()
daemon.wait()
sys.exit(status)
"""]


def usual_configuration():
    shown = run_command([config.nvllmctl, "help", "doctor"]).stdout.decode()
    return re.search(r"\((/\S+/nvllmd\.conf)\)", shown)[1]


def about(findings, what, level=None):
    return [f for f in findings if f["about"] == what and level in (None, f["level"])]


class Doctor(Case):
    @classmethod
    def setUpClass(cls):
        global INSTALLED
        INSTALLED = usual_configuration()

    def doctor(self, *args, path="/nonexistent/socket", run_by=(), **options):
        done = subprocess.run([*run_by, os.path.abspath(config.nvllmctl), "doctor", "--json", "--socket",
                               str(path), *map(str, args)], capture_output=True,
                              timeout=scaled(30, 120), **options)
        self.assertEqual(done.stderr, b"")
        out = json.loads(done.stdout)
        self.assertEqual(out["wrong"], sum(f["level"] == "wrong" for f in out["findings"]))
        for f in out["findings"]:
            if "fix" in f:
                self.check_command(f["fix"])
            elif f["level"] == "wrong":  # no command can know the model
                self.assertIn("a model folder for --model", f["text"])
        return out["findings"], done.returncode

    def check_command(self, command):
        """What is printed to be pasted is something that a shell can run."""
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""), command)
        for part in re.split(r"&&|;", command.split("  # ")[0]):
            first = part.strip().removeprefix("sudo ").split(" ")[0].strip("'")
            self.assertIn(first, COMMANDS | {os.path.realpath(p) for p in
                                             (config.nvllmd, config.nvllmctl)}, command)

    def wrong(self, what, words, *args, **options):
        """The command for the one thing about this that is wrong in these words."""
        findings, status = self.doctor(*args, **options)
        self.assertIn(status, (1, 3) if what in ("socket", "daemon") else (1,))
        fixes = [f["fix"] for f in about(findings, what, "wrong")
                 if all(w in f["text"] for w in words)]
        self.assertEqual(len(fixes), 1, findings)
        return fixes[0]

    def fixed(self, what, words, *args, **options):
        """Likewise, and that nothing is wrong in these words once the command has run."""
        fix = self.wrong(what, words, *args, **options)
        subprocess.run(fix, shell=True, check=True)
        findings, _ = self.doctor(*args, **options)
        after = about(findings, what)
        self.assertEqual([f for f in after if all(w in f["text"] for w in words)], [])
        return fix, after

    def need(self, alone):
        if not shutil.which(alone[0]) or subprocess.run([*alone, "true"],
                                                        capture_output=True).returncode != 0:
            self.skipTest("no process can be given a world of its own here")

    def copied_program(self):
        """A function that runs a copy of nvllmctl, which everybody may run, as a user; and its path."""
        folder = self.folder()
        program = folder / "nvllmctl"
        shutil.copyfile(config.nvllmctl, program)
        program.chmod(0o755)
        for library in pathlib.Path(config.nvllmctl).parent.glob("libnvllm-client.so*"):
            shutil.copyfile(library, folder / library.name)

        def run(*args, user=None):
            ids = {} if user is None else {"user": user, "extra_groups": [],
                                           "group": pwd.getpwnam(NOBODY).pw_gid}
            done = subprocess.run([program, *map(str, args)], capture_output=True,
                                  timeout=scaled(30, 120), **ids,
                                  env={**os.environ, "LD_LIBRARY_PATH": str(folder)})
            self.assertEqual(done.stderr, b"")
            return json.loads(done.stdout)["findings"], done.returncode

        return run, program

    def folder(self):
        """A folder that everybody may go through."""
        folder = self.temporary_folder()
        folder.chmod(0o755)
        return folder

    def test_running_daemon(self):
        """Socket, daemon and model are well, and the model is the daemon's."""
        with Daemon(SMALL) as d:
            d.folder.chmod(0o755)
            findings, _ = self.doctor("--config", self.configuration(d.socket), path=d.socket)
            for what in "socket", "daemon", "model":
                self.assertEqual([f["level"] for f in about(findings, what)], ["ok"], findings)
            self.assertIn("ready", about(findings, "daemon")[0]["text"])
            self.assertIn(str(MODEL), about(findings, "model")[0]["text"])
            text = d.ctl("doctor", check=False).stdout.decode()
            self.assertRegex(text, r"ok +socket +/")
            self.assertNotIn("\x1b", text)

    def test_no_daemon(self):
        """Without one all else is looked at, and the command that starts it is named."""
        if os.path.exists(INSTALLED):
            self.skipTest(f"nvllm is installed here: {INSTALLED} is looked at, too")
        findings, status = self.doctor("--model", MODEL)
        self.assertEqual(status, 3 if sum(f["level"] == "wrong" for f in findings) == 1 else 1)
        wrong, = about(findings, "socket", "wrong")
        self.assertIn("nvllmd", wrong["fix"])
        self.assertEqual([f["level"] for f in about(findings, "model")], ["ok"], findings)
        self.assertTrue(about(findings, "memory"))
        self.assertTrue(about(findings, "limits"))

    def test_no_daemon_and_no_model(self):
        """Without a model to start it with, no command with a gap is printed, but what to add."""
        if os.path.exists(INSTALLED):
            self.skipTest(f"nvllm is installed here: {INSTALLED} is looked at, too")
        path = self.folder() / "socket"
        wrong, = about(self.doctor(path=path)[0], "socket", "wrong")
        self.assertNotIn("fix", wrong)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
        wrong, = about(self.doctor(path=path)[0], "daemon", "wrong")
        self.assertNotIn("fix", wrong)

    def test_folder_in_place_of_the_socket(self):
        path = self.folder() / "socket"
        path.mkdir()
        fix = self.wrong("socket", ["not a socket"], "--config", self.configuration(path), path=path)
        subprocess.run(fix.split(" && ")[0], shell=True, check=True)
        self.assertFalse(path.exists())

    def test_daemon_that_hangs(self):
        """Who does not answer is not asked to end: the command ends it, and begins it anew."""
        with Daemon(SMALL) as d:
            d.process.send_signal(signal.SIGSTOP)
            try:
                hasty, _ = self.doctor("--timeout", 0.1, "--model", MODEL, path=d.socket)
                findings, status = self.doctor("--model", MODEL, path=d.socket)
            finally:
                d.process.send_signal(signal.SIGCONT)
            wrong, = about(findings, "daemon", "wrong")
            self.assertIn("does not answer", wrong["text"])
            if not os.path.exists("/run/systemd/system"):
                self.assertTrue(wrong["fix"].startswith(f"kill -KILL {d.process.pid} && "), wrong)
            self.assertEqual(status, 1)
            note, = about(hasty, "daemon")  # whoever is well might not have answered in that time
            self.assertEqual((note["level"], note.get("fix")), ("note", None))
            self.assertIn("give a longer --timeout", note["text"])

    def test_other_program_that_is_silent(self):
        """Only nvllmd is to be killed: another process is named, and one that is gone looked for."""
        path = self.folder() / "socket"
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
            subprocess.run([sys.executable, "-c", "import socket; socket.socket(fileno=0).listen(9)"],
                           stdin=s, check=True)
            fix = self.wrong("daemon", [], "--model", MODEL, path=path)
            self.assertEqual(fix.removeprefix("sudo "), f"ss -xlp | grep -F '{path}'")
        path.unlink()
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
            s.listen(9)
            self.assertEqual(self.wrong("daemon", [], "--model", MODEL, path=path),
                             f"ps -fp {os.getpid()}")

    def test_silent_where_systemd_listens(self):
        """Of process 1, systemd, which passes sockets on, and of one out of sight, as seen from a
        container, nothing is told by a number: who serves the socket is looked for."""
        if os.path.exists("/run/systemd/system"):
            self.skipTest("where systemd runs, it may know a service")
        self.need(ALONE_AS_USER)
        for listener, run_by in (0, ALONE_AS_USER), (1, [*ALONE_AS_USER, *LISTEN]):
            with self.subTest(listener), socket.socket(socket.AF_UNIX) as s:
                path = self.folder() / "socket"
                s.bind(str(path))
                if listener == 0:
                    s.listen(9)
                fix = self.wrong("daemon", ["does not answer"], "--timeout", 2, "--model", MODEL,
                                 path=path, run_by=run_by, stdin=s)
                self.assertEqual(fix, f"ss -xlp | grep -F '{path}'")

    def test_whose_model_it_is(self):
        """The model is for whom listens, but not for whom systemd is, which passes sockets on."""
        if os.geteuid() != 0:
            self.skipTest("only root can listen as somebody else")
        self.need(ALONE)
        folder = self.folder()
        model = model_folder(folder / "closed" / "model")
        (folder / "closed").chmod(0o700)
        pass_on = [*PASS_ON, str(pwd.getpwnam(NOBODY).pw_uid), config.nvllmd, str(model)]
        for run_by, is_nobodys in (pass_on, True), ([*ALONE, *pass_on], False):
            with self.subTest(is_nobodys), socket.socket(socket.AF_UNIX) as s:
                path = folder / f"socket-{is_nobodys}"
                s.bind(str(path))
                findings, _ = self.doctor("--timeout", scaled(20, 80), path=path, run_by=run_by, stdin=s)
                self.assertEqual(len(about(findings, "daemon", "ok")), 1, findings)
                found, = about(findings, "model")
                closed = found["text"].startswith(f"user {NOBODY} may not enter")
                self.assertEqual(closed, is_nobodys, found)

    def test_model_seen_from_here(self):
        """A folder that is given is looked at from where one is, whatever a daemon has."""
        folder = self.folder()
        model_folder(folder / "model")
        with Daemon(SMALL) as d:
            self.wrong("model", [f"{folder}/none: No such file"], "--model", "none", path=d.socket,
                       cwd=folder)
            findings, _ = self.doctor("--model", "model", path=d.socket, cwd=folder)
            self.assertIn(f"{folder}/model", about(findings, "model", "ok")[0]["text"])

    def test_folder_that_is_closed(self):
        """The folder above that keeps the daemon out is named, and opened by what fixes it."""
        top = self.folder()
        model = top / "closed" / "model"
        shutil.copytree(MODEL, model)
        for path in model, *model.iterdir():
            path.chmod(0o755)
        (top / "closed").chmod(0o700)
        args = "--model", model, "--user", NOBODY
        fix, _ = self.fixed("model", [f"user nobody may not enter {top}/closed (mode 0700)"], *args)
        self.assertEqual(fix, f"chmod o+x '{top}/closed'")
        (model / "tokenizer.json").chmod(0o640)
        _, after = self.fixed("model", ["may not read"], *args)
        self.assertEqual([f["level"] for f in after], ["ok"], after)

    def test_files_of_a_model(self):
        """Each that is missing or broken; an index's shards, too, and weights never fetched."""
        index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors",
                                           "c": "one.safetensors"}})
        one, two = ({f"{name}.safetensors": "x" * 5000} for name in ("one", "two"))
        for changes, others, words, fix in (
                ({"config": None}, {}, "/config.", ""),
                ({"tokenizer": None}, {}, "/tokenizer.", ""),
                ({"model": None}, {}, "/model.", ""),
                ({"model": POINTER}, {}, "Git LFS", "lfs pull"),
                ({"model": None}, {INDEX: index, **one}, "two.safetensors", ""),
                ({"model": None}, {INDEX: index, **one, **two}, "one.safetensors: a header of", ""),
                ({"model": None}, {INDEX: "{"}, INDEX, ""),
                ({"model": None}, {INDEX: '{"weight_map": {"a": "../../etc/passwd"}}'},
                 "not a file in the same folder", "")):
            with self.subTest(words):
                folder = model_folder(self.folder() / "it's", **changes)
                for name, content in others.items():
                    (folder / name).write_text(content)
                self.assertIn(fix, self.wrong("model", [words], "--model", folder))

    def test_model_without_a_chat_template(self):
        """It can be served, but chats with it are refused: that is noted."""
        plain = json.loads((MODEL / "tokenizer_config.json").read_text())
        plain.pop("chat_template", None)
        folder = model_folder(self.folder() / "plain", tokenizer_config=json.dumps(plain),
                              chat_template=None)
        findings, _ = self.doctor("--model", folder)
        note, = about(findings, "model", "note")
        self.assertIn("no chat template", note["text"])
        self.assertEqual(about(findings, "model", "wrong"), [])

    def configuration(self, socket_path):
        """One that is right, for this socket."""
        path = self.folder() / "nvllmd.conf"
        path.write_text(f"[model]\npath = {MODEL}\n[daemon]\nsocket = {socket_path}\n")
        return path

    def test_configuration(self):
        """The configured model is looked at; a configuration without one is wrong, as none is."""
        socket_path = self.folder() / "s"
        path = self.configuration(socket_path)
        findings, _ = self.doctor("--config", path, path=socket_path)
        self.assertIn(str(MODEL), about(findings, "model", "ok")[0]["text"])
        self.assertEqual(about(findings, "config", "ok")[0]["text"], str(path))
        self.assertEqual(sum(f["level"] == "wrong" for f in findings), 1)  # nobody listens
        self.assertIn(f"--config '{path}'", about(findings, "socket", "wrong")[0]["fix"])
        self.wrong("config", ["none: No such file"], "--config", self.folder() / "none")
        self.assertIn(INSTALLED, run_command([config.nvllmd, "--help"]).stdout.decode())
        if not os.path.exists(INSTALLED):
            findings, status = self.doctor()
            self.assertEqual(([f["level"] for f in about(findings, "model")], status), (["note"], 3))

    def test_configurations_that_are_wrong(self):
        """What nvllmd would end at, and what keeps others from it, with its line or place."""
        folder = self.folder()
        (folder / "file").write_text("")
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"{folder}/stale")
        model = f"[model]\npath = {MODEL}\n[daemon]\n"
        for text, path, what, words, fix in (
                ("[cache]\nkv_memory = lots\n", None, "config", ["kv_memory", ":2:"], ""),
                ("[cache]\nkv_memry = 1G\n", None, "config",
                 ["kv_memry", "did you mean", ":2:"], ""),
                ("nonsense\n", None, "config", [":1:"], ""),
                ("[daemon]\nlog_level = info\n", None, "model", ["no model"], ""),
                ("[model]\npath = relative\n", None, "model", ["relative"], ""),
                (model + "[cache]\nkv_memory = 1K\n", None, "config", ["kv_memory"], ""),
                (model + "socket = /no/such/s\n", None, "socket",
                 ["/no/such/s", "folder does not exist"], ""),
                (model + "admin_group = no-such\n", None, "admins", ["no-such"], ""),
                (model + f"socket = {folder}/file\n", "file", "socket", ["not a socket"], "rm "),
                (model + f"socket = {folder}/stale\n", "stale", "daemon", ["no process"], ""),
                (model, 60 * "x/", "socket", ["at most 107 bytes"], "export NVLLM_SOCKET=/")):
            with self.subTest(text):
                (folder / "nvllmd.conf").write_text(text)
                at = {"path": folder / path} if path else {}
                found = self.wrong(what, words, "--config", folder / "nvllmd.conf", **at)
                self.assertTrue(found.startswith(fix), found)

    def test_configuration_changed_meanwhile(self):
        """That a daemon serves the socket now does not hide what the next one would end at."""
        with Daemon(SMALL) as d:
            path = self.configuration(d.socket)
            path.write_text(path.read_text() + "socket_group = no-such\n")
            self.wrong("socket", ["no group no-such"], "--config", path, path=d.socket)

    def test_other_socket(self):
        """Who asks at another socket than the configured one is told which that is."""
        findings, _ = self.doctor("--config", self.configuration("/tmp/a b"))
        note, = about(findings, "socket", "note")
        self.assertEqual(note["fix"], "export NVLLM_SOCKET='/tmp/a b'")

    def test_configuration_that_may_not_be_read(self):
        """An editor does not fix that."""
        if os.geteuid() != 0:
            self.skipTest("only root can look as somebody else")
        path = self.configuration("/tmp/s")
        path.chmod(0o600)
        _, after = self.fixed("config", ["user nobody may not read"], "--config", path, "--user",
                              NOBODY)
        self.assertEqual([f["level"] for f in after], ["ok"])

    def test_rights_of_the_daemons_user(self):
        """What root may do says nothing of the daemon, which is somebody else."""
        if os.geteuid() != 0:
            self.skipTest("only root can become somebody else")
        for top in MODEL.parents:
            if not os.stat(top).st_mode & 1:
                self.skipTest(f"{top} is closed to others, and the daemon's program with it")
        folder = self.folder()
        path = self.configuration(folder / "s")
        args = "socket", ["folder"], "--config", path, "--user", NOBODY
        self.assertEqual(self.wrong(*args), f"${{EDITOR:-vi}} '{path}'")  # root's is not given away
        os.chown(folder, 12345, -1)
        self.assertEqual(self.fixed(*args)[0], f"chown {NOBODY} '{folder}'")

    def test_name_that_moves_a_terminal(self):
        """No command is printed that would; JSON has it, for there it is harmless."""
        path = self.folder() / "a\x1b[2J\r\nb"
        model = model_folder(self.folder() / "m\x1b[2J\r", model=None)
        for program in [config.nvllmctl, "doctor"], [config.nvllmd, "check-config"]:
            for args in ["--config", path], ["--model", model]:
                done = run_command([*program, *map(str, args)], check=False)
                self.assertIn(b"wrong", done.stdout)
                self.assertNotRegex(done.stdout, rb"[\x00-\x09\x0b-\x1f\x7f]")
                self.assertNotRegex(done.stdout, rb"(?m)^b")
        self.assertTrue(about(self.doctor("--model", model)[0], "model", "wrong")[0]["fix"])

    def test_daemon_that_does_not_say(self):
        """A check that hangs is not waited for longer than --timeout, and does not stay."""
        run, program = self.copied_program()
        folder = program.parent
        (folder / "nvllmd").write_text(f"#!/bin/sh\necho $$ >'{folder}/pid'\nexec sleep 600\n")
        (folder / "nvllmd").chmod(0o755)
        found, _ = run("--timeout", 3, "doctor", "--json", "--model", MODEL, "--socket", folder / "s")
        self.assertIn("in time", about(found, "config", "note")[0]["text"])
        command = pathlib.Path(f"/proc/{int((folder / 'pid').read_text())}/cmdline")

        def ended():
            try:
                return not command.read_bytes()  # nobody has waited for it yet
            except OSError:
                return True

        harness.wait_for(ended, scaled(10, 60), "end")

    def test_socket_for_others(self):
        """Who may not connect is told so."""
        if os.geteuid() != 0:
            self.skipTest("only root can become somebody else")
        nobody = pwd.getpwnam(NOBODY).pw_uid
        run, program = self.copied_program()
        folder = program.parent
        with Daemon(SMALL) as d:
            d.folder.chmod(0o755)
            d.ctl("drain")
            for user, sudo in (nobody, "sudo "), (0, ""):
                found, _ = run("doctor", "--json", "--socket", d.socket, user=user)
                self.assertEqual(about(found, "daemon", "note")[0]["fix"],
                                 f"{sudo}'{program}' --socket '{d.socket}' resume")
        closed = folder / "nvllmd.conf"
        closed.touch(0o600)
        (folder / "nvllmd").symlink_to("/bin/false")  # never run: it could not read the file
        found, _ = run("doctor", "--json", "--socket", folder / "s", "--config", closed,
                       "--user", "root", user=nobody)
        self.assertEqual(about(found, "config", "note")[0]["fix"],
                         f"sudo '{program}' --socket '{folder}/s' doctor "
                         f"--config '{closed}' --user 'root'")
        with Daemon(SMALL, "daemon.socket_mode=0600") as d:
            d.folder.chmod(0o755)
            found, status = run("doctor", "--json", "--socket", d.socket, user=nobody)
            self.assertEqual(status, 1)
            self.assertIn("may not connect", about(found, "socket", "wrong")[0]["text"])
            d.folder.chmod(0o700)
            found, status = run("doctor", "--json", "--socket", d.socket, user=nobody)
            self.assertEqual(status, 1)
            wrong, = about(found, "socket", "wrong")
            self.assertEqual(wrong["fix"], f"sudo chmod o+x '{d.folder}'")
        outer = self.folder()
        (outer / "run").mkdir()
        with Daemon(SMALL, folder=outer / "run") as d:
            outer.chmod(0o700)
            note, = about(run("doctor", "--json", "--socket", d.socket)[0], "socket")
            self.assertEqual((note["level"], note["fix"]), ("note", f"chmod o+x '{outer}'"))
            found, status = run("doctor", "--json", "--socket", d.socket, user=nobody)
            self.assertEqual(status, 1)
            wrong, = about(found, "socket", "wrong")
            self.assertIn(f"may not enter {outer} (mode 0700)", wrong["text"])
            subprocess.run(wrong["fix"].removeprefix("sudo "), shell=True, check=True)
            for user in nobody, None:
                found, _ = run("doctor", "--json", "--socket", d.socket, user=user)
                self.assertEqual([f["level"] for f in about(found, "socket")], ["ok"])
