"""Requests at random over the schema: each field absent, ordinary, at an edge or far outside, texts
of every sort, enum values and fields from the future. What they have in common is that they are
well-formed frames, so that what is tried is behind the parser."""

import random

import wire

INTEGERS = [0, 1, 2, 3, 15, 16, 17, 255, 256, 2047, 2048, 65535, 65536, 0x7FFFFFFF, 0xFFFFFFFF,
            -1, -2147483648, 1 << 62, (1 << 64) - 1]
REALS = [0.0, -0.0, 0.5, 1.0, 1.0001, 2.0, -1.0, 100.0, 1e-30, 1e30, -1e30, float("nan"),
         float("inf"), float("-inf")]
TEXTS = [b"", b"a", b"Hello, world", b"NUL \0 inside", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80",
         "Grüße, 世界 🙂".encode(), b"<|im_start|>system\nyou are<|im_end|>", b"user", b"assistant",
         b"tool", b"system", b'{"type": "function", "function": {"name": "f"}}', b"{", b"[1]",
         b'{"a": {"b": [1, 2, {"c": null}]}}', b"%s%n%d", b"\x1b[31mred", b" " * 300, b"x" * 300,
         "é".encode() * 40, b"\n" * 50, b"<think>\n", b"debug", b"error"]
ROLES = [b"user", b"system", b"assistant", b"tool"]


class Wild:
    def __init__(self, seed, operations):
        self.rng = random.Random(seed)
        self.operations = [f for f in wire.MESSAGES["ClientFrame"] if f.name in operations]
        assert len(self.operations) == len(operations), operations

    def scalar(self, f):
        rng = self.rng
        if f.type in ("float", "double"):
            return rng.choice(REALS) if rng.random() < 0.5 else rng.uniform(0, 1)
        if f.type in ("string", "bytes"):
            if f.name == "role" and rng.random() < 0.9:
                return rng.choice(ROLES)
            text = rng.choice(TEXTS)
            return text + rng.choice(TEXTS) if rng.random() < 0.2 else text
        if f.type == "bool":
            return rng.randrange(2)
        if f.type in wire.ENUMS:
            return rng.randrange(4) if rng.random() < 0.9 else rng.choice(INTEGERS)
        value = rng.choice(INTEGERS) if rng.random() < 0.15 else rng.randrange(8)
        return value & 0xFFFFFFFF if f.type == "uint32" else value

    def unknown(self):
        """A field that no message has so far, of any wire type."""
        rng, number = self.rng, self.rng.randrange(1000, 2000)
        kind = rng.choice([wire.VARINT, wire.FIXED64, wire.BYTES, wire.FIXED32])
        tag = wire.varint(number << 3 | kind)
        return tag + {wire.VARINT: b"\x07", wire.FIXED64: b"12345678", wire.FIXED32: b"1234",
                      wire.BYTES: wire.varint(5) + b"hello"}[kind]

    def message(self, name, depth=0):
        """Bytes of a message: its fields in any order, some twice, some unknown."""
        rng, parts, fields = self.rng, [], wire.MESSAGES[name]
        likely = 0.7 if len(fields) <= 6 else 0.3
        for f in fields:
            if rng.random() > (0.9 if name in ("Chat", "Message") else likely):
                continue
            if f.packed:
                values = [rng.randrange(100) if rng.random() < 0.95 else rng.choice(INTEGERS)
                          for _ in range(rng.choice([0, 1, 3, 20, 200]))]
                raw = b"".join(wire.varint(v) for v in values)
                parts.append(wire.varint(f.number << 3 | wire.BYTES) + wire.varint(len(raw)) + raw)
                continue
            for _ in range(rng.choice([0, 1, 1, 2, 5, 20]) if f.repeated
                           else 1 + (rng.random() < 0.01)):
                parts.append(self.field(f, depth))
        if rng.random() < 0.03:
            parts.append(self.unknown())
        if rng.random() < 0.1:
            rng.shuffle(parts)
        return b"".join(parts)

    def field(self, f, depth):
        if f.type in wire.MESSAGES:
            raw = self.message(f.type, depth + 1)
            return wire.varint(f.number << 3 | wire.BYTES) + wire.varint(len(raw)) + raw
        kind, raw = wire._scalar(f.type, self.scalar(f))
        return wire.varint(f.number << 3 | kind) + raw

    def generate(self):
        """Mostly with what makes it run, and always with what makes it end soon."""
        rng = self.rng
        raw = self.message("Generate")
        if rng.random() < 0.7:
            raw += wire.encode("Generate", {"prompt": rng.choice(TEXTS[1:])})
        if rng.random() < 0.4:
            raw += wire.encode("Generate", {"n": 1, "sampling": {
                "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
                "presence_penalty": 0.0, "frequency_penalty": 0.1, "logprobs": 2,
                "min_tokens": 0}})
        if rng.random() < 0.95:  # the last of a field counts
            raw += wire.encode("Generate", {"max_tokens": rng.randrange(1, 5)})
        return raw + wire.encode("Generate", {"deadline_ms": rng.randrange(1, 30)})

    def frame(self, id_):
        """(operation, bytes of a frame)"""
        f = self.rng.choice(self.operations)
        if self.rng.random() < 0.15:
            f = next((o for o in self.operations if o.name == "generate"), f)
        raw = self.generate() if f.name == "generate" else self.message(f.type)
        body = (wire.encode("ClientFrame", {"id": id_}) + wire.varint(f.number << 3 | wire.BYTES)
                + wire.varint(len(raw)) + raw)
        if self.rng.random() < 0.02:
            body += self.unknown()
        return f.name, wire.varint(len(body)) + body
