#!/usr/bin/env python3
"""A prompt to nvllmd without its libraries: any protobuf library speaks the protocol. Python programs
have the package nvllm, see client/python; this shows what another language needs.

  protoc --proto_path=/usr/share/nvllm --python_out=. nvllm.proto
  python3 generate.py SOCKET PROMPT

Frames are protobuf's delimited format: a varint length, then one message."""

import socket
import sys

import nvllm_pb2 as pb

LARGEST_FRAME = 64 << 20


def write_frame(stream, frame):
    data = frame.SerializeToString()
    length = len(data)
    while length > 0x7f:
        stream.write(bytes([length & 0x7f | 0x80]))
        length >>= 7
    stream.write(bytes([length]) + data)
    stream.flush()


def read_frame(stream):
    length = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            sys.exit("nvllmd closed the connection")
        length |= (byte[0] & 0x7f) << shift
        shift += 7
        if byte[0] < 0x80:
            break
        if shift > 28:
            sys.exit("nvllmd sent an invalid length")
    if length > LARGEST_FRAME:
        sys.exit(f"nvllmd sent a frame of {length} bytes")
    data = stream.read(length)
    if len(data) < length:
        sys.exit("nvllmd closed the connection")
    frame = pb.ServerFrame.FromString(data)
    if frame.WhichOneof("event") == "error":  # of the request, or with id 0 of the connection
        sys.exit(f"{pb.ErrorCode.Name(frame.error.code)}: {frame.error.message}")
    return frame


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: generate.py SOCKET PROMPT")
    path, prompt = sys.argv[1:]
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
