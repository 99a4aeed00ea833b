"""nvllm-openai beside a daemon, and HTTP to it: by http.client, and by bytes on a socket."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

from harness import SharedDaemon, config, scaled, wait_for


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Reply:
    """status, fields, and the body as text and as JSON."""

    def __init__(self, response):
        self.status, self.fields = response.status, response.headers
        self.text = response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def error(self):
        """(status, code, param) of an error in OpenAI's shape."""
        e = self.json["error"]
        assert set(e) == {"message", "type", "param", "code"} and e["message"], e
        return self.status, e["code"], e["param"]

    def events(self):
        """The objects of a stream, which must end as streams do."""
        assert self.fields["Content-Type"] == "text/event-stream", self.text
        lines = self.text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        assert all(line.startswith("data: ") for line in lines[:-1])
        return [json.loads(line[6:]) for line in lines[:-2]]


class Gateway:
    """As a context manager it must end with status 0 on SIGTERM. Without addresses it listens on a
    free port and on a socket in its folder; with None it finds the daemon's socket itself."""

    def __init__(self, daemon_socket, *options, addresses=None, env=None, wait=True, passed=None):
        program = pathlib.Path(config.nvllmctl).with_name("nvllm-openai")
        self._own = tempfile.TemporaryDirectory(prefix="nvllm-e2e-")
        self.folder = pathlib.Path(self._own.name)
        self.socket, self.log_path = self.folder / "http.sock", self.folder / "log"
        if addresses is None:
            addresses = "127.0.0.1:0", f"unix:{self.socket}"
        self.n_sockets = len(addresses) + bool(passed)
        args = [program, *(["--socket", daemon_socket] if daemon_socket else []), *options]
        for address in addresses:
            args += ["--listen", address]
        if passed:  # as systemd does it
            args = ["sh", "-c", f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@" 3<&{passed.fileno()}', *args]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [str(a) for a in args], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(env or {})}, pass_fds=[passed.fileno()] if passed else [])
        if wait:
            wait_for(self.is_up, scaled(20, 60), "nvllm-openai is there")

    def log(self):
        return self.log_path.read_text()

    def is_up(self):
        """It listens, whether or not it has found the daemon."""
        assert self.process.poll() is None, self.log()
        names = re.findall(r'^event=listening text="(.*)"$', self.log(), re.M)  # of one reading
        ports = [re.fullmatch(r"127.0.0.1:(\d+)", name) for name in names]
        self.port = next((int(port[1]) for port in ports if port), None)
        return len(names) == self.n_sockets

    def connection(self, tcp=False):
        timeout = scaled(60, 300)
        if tcp:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        return UnixConnection(self.socket, timeout)

    def request(self, method, path, body=None, fields=None, tcp=False):
        c = self.connection(tcp)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            c.request(method, path, body, {"Content-Type": "application/json", **(fields or {})})
            return Reply(c.getresponse())
        finally:
            c.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", "/v1/" + path, body, **options)

    def chat(self, content, **fields):
        """The reply to a user's message, or to messages."""
        if isinstance(content, str):
            content = [{"role": "user", "content": content}]
        return self.post("chat/completions", {"messages": content, **fields})

    def complete(self, prompt, **fields):
        return self.post("completions", {"prompt": prompt, **fields})

    def open(self, tcp=False):
        """A socket for bytes."""
        if tcp:
            return socket.create_connection(("127.0.0.1", self.port), timeout=scaled(30, 120))
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(scaled(30, 120))
        s.connect(str(self.socket))
        return s

    def raw(self, data, tcp=False):
        """All that comes for these bytes, until the connection ends."""
        with self.open(tcp) as s:
            s.sendall(data)
            return read_to_end(s)

    def n_descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory_kib(self, kind):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{kind}:\s*(\d+)", status, re.M)[1])

    def rss_kib(self):
        return self.memory_kib("VmRSS")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._own.cleanup()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=scaled(60, 200))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            status = self.terminate() if self.process.poll() is None else self.process.returncode
            if kind is not None:
                print(f"---- nvllm-openai's log\n{self.log()[-4000:]}----", file=sys.stderr)
            elif status != 0:
                raise AssertionError(f"nvllm-openai ended with {status}:\n{self.log()[-8000:]}")
        finally:
            self.close()


class SharedGateway(SharedDaemon):
    """Tests that may share one gateway beside their daemon."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.gateway = Gateway(cls.daemon.socket)

    @classmethod
    def tearDownClass(cls):
        with cls.gateway:
            pass
        super().tearDownClass()


def read_to_end(s):
    data = b""
    while True:
        try:
            more = s.recv(1 << 20)
        except ConnectionResetError:
            more = b""
        if not more:
            return data
        data += more


def post(path, body, *fields):
    """The bytes of a request."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"POST /v1/{path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
