"""The messages of the protocol, made at import of nvllm.proto itself: no compiler is needed, and there
is one schema.

It reads what of protobuf's language the file uses, and refuses the rest."""

import pathlib
import re
from typing import Any, Dict, List

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (DescriptorProto, EnumDescriptorProto,
                                            FieldDescriptorProto, FileDescriptorProto)

_TOKEN = re.compile(r'\s+|//[^\n]*|([A-Za-z_][\w.]*|\d+|"[^"]*"|[{}=;\[\]])|(.)')
_LABELS = {"optional": FieldDescriptorProto.LABEL_OPTIONAL,
           "repeated": FieldDescriptorProto.LABEL_REPEATED}
_SCALARS = {name: FieldDescriptorProto.Type.Value("TYPE_" + name.upper()) for name in
            ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")}


class _Reader:
    def __init__(self, text: str):
        self.tokens: List[str] = []
        for match in _TOKEN.finditer(text):
            if match[2]:
                raise ValueError(f"nvllm.proto: unexpected {match[2]!r}")
            if match[1]:
                self.tokens.append(match[1])
        self.tokens.append("")  # the end
        self.tokens.reverse()

    def take(self, *expected: str) -> str:
        """The next token; if some are expected, one of these."""
        token = self.tokens.pop()
        if expected and token not in expected:
            raise ValueError(f"nvllm.proto: {token!r} where {' or '.join(expected)} is expected")
        return token

    def file(self) -> FileDescriptorProto:
        file = FileDescriptorProto(name="nvllm.proto")
        while (word := self.take("syntax", "package", "message", "enum", "")) != "":
            if word == "message":
                self.message(file.message_type.add(name=self.take()))
            elif word == "enum":
                self.enum(file.enum_type.add(name=self.take()))
            elif word == "package":
                file.package = self.take()
                self.take(";")
            else:
                self.take("=")
                self.take('"proto2"')
                self.take(";")
        enums = {enum.name for enum in file.enum_type}
        for field in (f for message in file.message_type for f in message.field if f.type_name):
            field.type = (FieldDescriptorProto.TYPE_ENUM if field.type_name in enums
                          else FieldDescriptorProto.TYPE_MESSAGE)
            field.type_name = f".{file.package}.{field.type_name}"
        return file

    def enum(self, enum: EnumDescriptorProto) -> None:
        self.take("{")
        while (name := self.take()) != "}":
            self.take("=")
            enum.value.add(name=name, number=int(self.take()))
            self.take(";")

    def message(self, message: DescriptorProto) -> None:
        self.take("{")
        while (word := self.take("optional", "repeated", "oneof", "}")) != "}":
            if word == "oneof":
                message.oneof_decl.add(name=self.take())
                self.take("{")
                while (kind := self.take()) != "}":
                    self.field(message.field.add(oneof_index=len(message.oneof_decl) - 1),
                               "optional", kind)
            else:
                self.field(message.field.add(), word, self.take())

    def field(self, field: FieldDescriptorProto, label: str, kind: str) -> None:
        field.label = _LABELS[label]
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type_name = kind
        field.name = self.take()
        self.take("=")
        field.number = int(self.take())
        if self.take("[", ";") == "[":
            for token in ("packed", "=", "true", "]", ";"):
                self.take(token)
            field.options.packed = True


def read(text: str) -> FileDescriptorProto:
    """The file's descriptor. ValueError for what it does not know."""
    return _Reader(text).file()


def _classes(file: FileDescriptorProto) -> Dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    # Before protobuf 4.22 a factory makes the classes.
    factory: Any = message_factory
    make = (getattr(factory, "GetMessageClass", None) or
            factory.MessageFactory(pool).GetPrototype)
    return {message.name: make(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
            for message in file.message_type}


def string(value: Any) -> str:
    """The value of a string field. UnicodeDecodeError where some implementations of protobuf leave bytes
    that are not UTF-8."""
    return value.decode() if isinstance(value, bytes) else str(value)


_messages = _classes(read(pathlib.Path(__file__).with_name("nvllm.proto").read_text("utf-8")))
ClientFrame: Any = _messages["ClientFrame"]
ServerFrame: Any = _messages["ServerFrame"]
