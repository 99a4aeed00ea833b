"""The wire protocol in plain Python: a second implementation, so that nvllmd is not tested by its
own code alone. The messages are read from proto/nvllm.proto; nothing outside of the standard
library is used."""

import contextlib
import pathlib
import re
import socket
import struct

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto" / "nvllm.proto"

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SCALARS = {"uint32", "uint64", "int32", "int64", "bool", "float", "double", "string", "bytes"}


class Field:
    def __init__(self, label, type_, name, number, packed):
        self.repeated = label == "repeated"
        self.type, self.name, self.number, self.packed = type_, name, int(number), packed


def _schema():
    text = re.sub(r"//[^\n]*", "", PROTO.read_text())
    messages, enums, stack = {}, {}, []
    token = re.compile(
        r"(message|enum|oneof)\s+(\w+)\s*\{|(\})|"
        r"(?:(optional|repeated|required)\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*(\[packed = true\])?\s*;|"
        r"(\w+)\s*=\s*(\d+)\s*;")
    body = text[text.index("package"):]
    for m in token.finditer(body[body.index(";") + 1:]):
        kind, name, close, label, type_, field, number, packed, value, value_number = m.groups()
        if kind:
            stack.append((kind, name))
            if kind == "message":
                messages[name] = []
            elif kind == "enum":
                enums[name] = {}
        elif close:
            stack.pop()
        elif value:
            enums[stack[-1][1]][value] = int(value_number)
        else:
            owner = next(n for k, n in reversed(stack) if k == "message")
            messages[owner].append(Field(label, type_, field, number, bool(packed)))
    return messages, enums


MESSAGES, ENUMS = _schema()


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data, pos):
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, pos


def _scalar(type_, value):
    """(wire type, bytes) of one value that is no message."""
    if type_ == "float":
        return FIXED32, struct.pack("<f", value)
    if type_ == "double":
        return FIXED64, struct.pack("<d", value)
    if type_ in ("string", "bytes"):
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
        return BYTES, varint(len(raw)) + raw
    if type_ in ENUMS and isinstance(value, str):
        value = ENUMS[type_][value]
    return VARINT, varint(int(value))


def encode(name, value):
    """The bytes of one message from a dict; what the dict does not name is absent."""
    out = bytearray()
    fields = {f.name: f for f in MESSAGES[name]}
    for key, content in value.items():
        f = fields[key]
        if f.packed:
            raw = b"".join(_scalar(f.type, v)[1] for v in content)
            out += varint(f.number << 3 | BYTES) + varint(len(raw)) + raw
            continue
        for item in content if f.repeated else [content]:
            if f.type in MESSAGES:
                raw = encode(f.type, item)
                out += varint(f.number << 3 | BYTES) + varint(len(raw)) + raw
            else:
                wire, raw = _scalar(f.type, item)
                out += varint(f.number << 3 | wire) + raw
    return bytes(out)


def _value(f, wire, data, pos):
    """(values, position): one field's contents; a packed field holds several."""
    if wire == VARINT:
        raw, pos = read_varint(data, pos)
        return [_integer(f.type, raw)], pos
    if wire == FIXED32:
        return [struct.unpack_from("<f", data, pos)[0]], pos + 4
    if wire == FIXED64:
        return [struct.unpack_from("<d", data, pos)[0]], pos + 8
    length, pos = read_varint(data, pos)
    raw, end = data[pos:pos + length], pos + length
    if f.type in MESSAGES:
        return [decode(f.type, raw)], end
    if f.type == "string":
        return [raw.decode()], end
    if f.type == "bytes":
        return [bytes(raw)], end
    values, at = [], 0  # packed
    while at < len(raw):
        more, at = _value(f, {"float": FIXED32, "double": FIXED64}.get(f.type, VARINT), raw, at)
        values += more
    return values, end


def _integer(type_, raw):
    if type_ in ("int32", "int64"):
        return raw - (1 << 64) if raw >> 63 else raw
    if type_ == "bool":
        return bool(raw)
    if type_ in ENUMS:
        return next((k for k, v in ENUMS[type_].items() if v == raw), raw)
    return raw


def decode(name, data):
    out = {f.name: [] for f in MESSAGES[name] if f.repeated}
    fields = {f.number: f for f in MESSAGES[name]}
    pos = 0
    while pos < len(data):
        tag, pos = read_varint(data, pos)
        f = fields[tag >> 3]
        values, pos = _value(f, tag & 7, data, pos)
        if f.repeated:
            out[f.name] += values
        else:
            out[f.name] = values[-1]
    return out


def frame(id_, **op):
    """One ClientFrame with its length before it."""
    raw = encode("ClientFrame", {"id": id_, **op})
    return varint(len(raw)) + raw


class Closed(Exception):
    """The daemon has closed the connection."""


class Stream:
    """A socket, as the frames that come out of it."""

    def __init__(self, sock):
        self.sock, self.buffer = sock, b""

    def take(self):
        """The bytes of a frame that has been read; None: there is no whole one."""
        with contextlib.suppress(IndexError):
            length, pos = read_varint(self.buffer, 0)
            if len(self.buffer) >= pos + length:
                data = self.buffer[pos:pos + length]
                self.buffer = self.buffer[pos + length:]
                return data
        return None

    def next_frame(self):
        while (data := self.take()) is None:
            try:
                more = self.sock.recv(1 << 20)
            except ConnectionResetError:
                more = b""
            if not more:
                raise Closed
            self.buffer += more
        return data


class Wire(Stream):
    """One connection. Frames come back as dicts; texts of type bytes as bytes."""

    def __init__(self, path, hello=True, timeout=120):
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.last_id = 0
        try:
            self.sock.settimeout(timeout)
            self.sock.connect(str(path))
            if hello:
                self.send(0, hello={"protocol": 1, "client": "e2e"})
                self.welcome = self.receive()["welcome"]
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def send(self, id_, **op):
        self.raw(frame(id_, **op))

    def raw(self, data):
        self.sock.sendall(data)

    def receive(self):
        return decode("ServerFrame", self.next_frame())

    def skip(self):
        """Reads one frame and does not look at it: large ones take their time in Python. Returns how
        many bytes it had."""
        return len(self.next_frame())

    def held(self):
        """How many whole frames were read and not yet looked at."""
        n = end = 0
        with contextlib.suppress(IndexError):
            while True:
                length, pos = read_varint(self.buffer, end)
                end = pos + length
                n += end <= len(self.buffer)
        return n

    def begin(self, id_, request):
        """Sends a generate request, and waits until its answer begins."""
        self.send(id_, generate=request)
        self.receive()

    def new_id(self):
        self.last_id += 1
        return self.last_id

    def ask(self, **op):
        """Sends one request and returns its single reply."""
        id_ = self.new_id()
        self.send(id_, **op)
        while True:
            reply = self.receive()
            if reply.get("id") == id_:
                return reply

    def status(self):
        return self.ask(get_status={})["status"]

    def collect(self, ids):
        """Reads until each of these generate requests has had its terminal answer."""
        waiting, out = set(ids), {i: Answer() for i in ids}
        while waiting:
            reply = self.receive()
            if reply["id"] in waiting and out[reply["id"]].take(reply):
                waiting.discard(reply["id"])
        return out

    def generate(self, **request):
        id_ = self.new_id()
        self.send(id_, generate=request)
        return self.collect([id_])[id_]


class Choice:
    def __init__(self):
        self.text, self.ids, self.logprobs, self.reason = b"", [], [], None
        self.reasoning, self.tool_calls = b"", []

    def outcome(self):
        """What must not depend on what else the daemon does."""
        return self.text, tuple(self.ids), repr(self.logprobs), self.reason, self.reasoning


class Answer:
    """All that came for one generate request."""

    def __init__(self):
        self.choices, self.done, self.error = {}, None, None

    def take(self, reply):
        """True with the terminal answer."""
        if "delta" in reply:
            d = reply["delta"]
            c = self.choices.setdefault(d.get("choice", 0), Choice())
            c.text += d.get("text", b"")
            c.reasoning += d.get("reasoning", b"")
            c.tool_calls += d["tool_calls"]
            c.ids += d["token_ids"]
            c.logprobs += d["logprobs"]
            reason = d.get("finish_reason", "FINISH_NONE")
            if reason != "FINISH_NONE":
                assert c.reason is None, "a choice ended twice"
                c.reason = reason
            return False
        self.done, self.error = reply.get("done"), reply.get("error")
        assert self.done is not None or self.error is not None, reply
        return True

    def outcome(self):
        error = self.error and (self.error["code"], self.error.get("field"))
        return error, {k: c.outcome() for k, c in sorted(self.choices.items())}
