#!/usr/bin/env python3
"""A prompt to nvllmd without its library: any protobuf library speaks the protocol.

  protoc --proto_path=/usr/share/nvllm --python_out=. nvllm.proto
  python3 generate.py SOCKET PROMPT

Frames are protobuf's delimited format: a varint length, then one message."""

import socket
import sys

import nvllm_pb2 as pb
from google.protobuf.internal.decoder import _DecodeVarint32
from google.protobuf.internal.encoder import _VarintBytes


def write_frame(stream, frame):
    data = frame.SerializeToString()
    stream.write(_VarintBytes(len(data)) + data)
    stream.flush()


def read_frame(stream):
    prefix = stream.read(1)
    while prefix and prefix[-1] & 0x80:
        prefix += stream.read(1)
    if not prefix:
        raise EOFError("nvllmd closed the connection")
    length, _ = _DecodeVarint32(prefix, 0)
    frame = pb.ServerFrame.FromString(stream.read(length))
    if frame.WhichOneof("event") == "error":  # of the request, or with id 0 of the connection
        sys.exit(f"{pb.ErrorCode.Name(frame.error.code)}: {frame.error.message}")
    return frame


def main():
    path, prompt = sys.argv[1], sys.argv[2]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    stream = connection.makefile("rwb")

    write_frame(stream, pb.ClientFrame(hello=pb.Hello(protocol=1, client="generate.py")))
    welcome = read_frame(stream).welcome
    print(f"{welcome.server}, {welcome.model}", file=sys.stderr)

    request = pb.Generate(prompt=prompt.encode(), max_tokens=32, stream=True)
    request.sampling.temperature = 0
    write_frame(stream, pb.ClientFrame(id=1, generate=request))
    while True:
        frame = read_frame(stream)
        event = frame.WhichOneof("event")
        if event == "delta":
            print(frame.delta.text.decode(), end="", flush=True)
        elif event == "done":
            print()
            return


if __name__ == "__main__":
    main()
