"""A connection to nvllmd: its socket, the frames on it, and the requests that have not ended.

One thread of the connection does all reading and writing; the threads of the program queue frames and
wait for answers. So an iterator that is garbage collected, wherever that happens, need not wait for a
socket."""

import collections
import collections.abc
import copy
import itertools
import os
import select
import socket
import threading
import time
from typing import Any, Deque, Dict, Iterator, Optional, Tuple

from google.protobuf.message import DecodeError

from ._errors import (BusyError, ConnectionLostError, Error, InternalError, ProtocolError,
                      TimedOutError, TooLongError, from_wire)
from ._schema import ClientFrame, ServerFrame

_READ_BYTES = 256 << 10
_QUEUE_BYTES = 64 << 20  # of requests not yet sent
_LARGEST_FRAME = 1 << 30
_MESSAGE_BYTES = 512  # at least, that one takes in memory
_DAEMONS_FRAME = 4 << 20  # that it accepts, until it has said so
# More than these in one frame, and the daemon ends the connection: see nvllm-protocol(7).
_MAX_FIELDS, _MAX_NUMBERS, _NUMBER_BYTES = 1 << 14, 1 << 20, 3


def deadline_of(timeout: Optional[float]) -> Optional[float]:
    """The end of a timeout that begins now. None: never."""
    if timeout is None:
        return None
    if not timeout >= 0:  # NaN neither
        raise ValueError(f"timeout: {timeout} is not a number of seconds; None never expires")
    return time.monotonic() + timeout


def seconds_left(deadline: Optional[float]) -> Optional[float]:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_length(data: bytearray) -> Optional[Tuple[int, int]]:
    """The length at the beginning of data, and how many bytes it takes; None: there are more."""
    value = 0
    for i, byte in enumerate(data[:5]):
        value |= (byte & 0x7f) << 7 * i
        if byte < 0x80:
            if i and not byte:
                break  # not the shortest encoding
            return value, i + 1
    else:
        if len(data) < 5:
            return None
    raise _violation("an invalid length")


def _violation(what: str) -> ProtocolError:
    return ProtocolError(f"the program at the socket violates nvllmd's protocol: it sent {what}")


def _count(message: Any) -> Tuple[int, int]:
    """The fields of a message, and its packed numbers."""
    fields = numbers = 0
    for field, value in message.ListFields():
        if field.GetOptions().packed:
            fields += 1
            numbers += max(len(value), message.ByteSize() // _NUMBER_BYTES)
            continue
        for item in value if isinstance(value, collections.abc.MutableSequence) else [value]:
            inner = _count(item) if field.message_type else (0, 0)
            fields, numbers = fields + 1 + inner[0], numbers + inner[1]
    return fields, numbers


class Pending:
    """A request that has not ended: what has come of its answer, and who waits for it."""

    def __init__(self, *events: str, n_choices: int = 0):
        self.id = 0
        self.events = events  # that answer it; the others end the connection
        self.n_choices = n_choices
        self.dropped = False  # nobody waits any more
        self._arrived: Deque[Any] = collections.deque()
        self._bytes = 0
        self._ready = threading.Condition(threading.Lock())

    def put(self, message: Any, size: int, most_bytes: int) -> bool:
        """Adds a message of so many bytes. False: with it the answer is over the limit."""
        with self._ready:
            self._bytes += size
            if max(self._bytes, len(self._arrived) * _MESSAGE_BYTES) > most_bytes:
                return False
            if not self.dropped:
                self._arrived.append(message)
                self._ready.notify()
        return True

    def fail(self, error: Error) -> None:
        """Ends it, after what has arrived."""
        with self._ready:
            self._arrived.append(error)
            self._ready.notify()

    def take(self, deadline: Optional[float]) -> Any:
        """The next message; raises what it is instead."""
        with self._ready:
            while not self._arrived:
                left = seconds_left(deadline)
                if left == 0:
                    raise TimedOutError("timed out waiting for an answer")
                self._ready.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            item = self._arrived.popleft()
        if isinstance(item, Error):
            raise copy.copy(item)  # it may be raised by many threads
        return item


class Connection:
    """Takes over a connected socket. Any thread may use it."""

    def __init__(self, sock: socket.socket, name: str, max_frame_bytes: int,
                 max_answer_bytes: int):
        self.max_frame_bytes = min(max_frame_bytes, _LARGEST_FRAME)
        self.max_answer_bytes = max_answer_bytes
        self._daemons_frame = _DAEMONS_FRAME
        self._sock = sock
        self._wake_in, self._wake_out = socket.socketpair()
        for s in sock, self._wake_in, self._wake_out:
            s.setblocking(False)
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # of the next four
        self._pending: Dict[int, Pending] = {}
        self._out = bytearray()
        self._error: Optional[Error] = None
        self._out_broken = False  # writing has failed; what the daemon has sent is still read
        self._dropped: Deque[Pending] = collections.deque()  # to be cancelled
        self._closing = False
        self._welcomed = False
        self._in = bytearray()
        self._welcome = self._pending[0] = Pending("welcome")
        hello = ClientFrame(hello={"protocol": 1, "client": name})
        self._queue(hello.SerializeToString())
        self._thread = threading.Thread(target=self._run, name="nvllm", daemon=True)
        self._thread.start()

    # ---- for the threads of the program

    def welcome(self, deadline: Optional[float]) -> Any:
        """Waits for the daemon's greeting."""
        return self._welcome.take(deadline)

    def start(self, pending: Pending, frame: Any) -> None:
        """Sends a request; frame has the operation."""
        if os.getpid() != self._pid:
            raise RuntimeError("a client belongs to the process that made it, not to a fork of it")
        frame.id = next(self._ids)
        data = frame.SerializeToString()
        if len(data) > self._daemons_frame:
            raise TooLongError(f"the request has {len(data)} bytes, and the daemon accepts at most "
                               f"{self._daemons_frame}", limit="limits.frame_bytes",
                               limit_value=self._daemons_frame)
        if len(data) > _MAX_FIELDS:  # a shorter one is within all limits
            fields, numbers = _count(frame)
            if fields > _MAX_FIELDS or numbers > _MAX_NUMBERS:
                raise TooLongError(f"the request has more fields or numbers than nvllmd accepts in "
                                   f"one frame ({_MAX_FIELDS} and {_MAX_NUMBERS})")
        with self._lock:
            if self._error:
                raise copy.copy(self._error)
            if self._out and len(self._out) + len(data) > _QUEUE_BYTES:
                raise BusyError(f"{len(self._out)} bytes of requests are waiting to be sent")
            pending.id = frame.id
            self._pending[frame.id] = pending
            self._queue(data)
        self._wake()

    def cancel(self, pending: Pending) -> None:
        """Asks the daemon to end a request. Waits for nothing, and may be called anywhere."""
        self._dropped.append(pending)
        self._wake()

    def drop(self, pending: Pending) -> None:
        """Cancels a request that nobody waits for any more."""
        pending.dropped = True
        self.cancel(pending)

    def close(self) -> None:
        """Ends the connection. May be called again, and by a garbage collector."""
        self._closing = True
        if os.getpid() != self._pid:
            self._close_sockets()  # of this process: the thread is the parent's
            return
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"x")
        except OSError:
            pass  # it is awake, or has ended

    def _queue(self, data: bytes) -> None:
        self._out += varint(len(data)) + data

    def _close_sockets(self) -> None:
        for s in self._sock, self._wake_in, self._wake_out:
            s.close()

    # ---- the connection's own thread

    def _run(self) -> None:
        error: Error = InternalError("the thread of the connection has failed")
        try:
            self._serve()
            error = ConnectionLostError("the client has been closed", retryable=False)
        except Error as e:
            error = e
        except MemoryError:
            error = InternalError("out of memory for an answer from the daemon")
        except OSError as e:
            error = ConnectionLostError(f"the connection to nvllmd broke: {e.strerror}")
        finally:
            with self._lock:
                self._error = error
                left, self._pending = self._pending, {}
            self._close_sockets()
            for pending in left.values():
                pending.fail(error)

    def _serve(self) -> None:
        while not self._closing:
            poll = select.poll()
            poll.register(self._wake_out, select.POLLIN)
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
            for fd, _ in poll.poll():
                if fd == self._wake_out.fileno():
                    self._wake_out.recv(4096)
                else:
                    self._read()
            while self._dropped:
                self._send_cancel(self._dropped.popleft())
            self._write()

    def _send_cancel(self, pending: Pending) -> None:
        with self._lock:
            if self._pending.get(pending.id) is not pending:
                return
            own = Pending("cancelled")
            own.dropped = True
            frame = ClientFrame(id=next(self._ids), cancel={"target": pending.id})
            self._pending[frame.id] = own
            self._queue(frame.SerializeToString())

    def _write(self) -> None:
        with self._lock:
            try:
                while self._out and not self._out_broken:
                    del self._out[:self._sock.send(self._out[:_READ_BYTES])]
            except BlockingIOError:
                pass
            except OSError:
                self._out_broken = True  # reading tells why
            if self._out_broken:
                self._out.clear()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it was killed with something of ours unread
            data = b""
        if not data:
            raise ConnectionLostError("nvllmd closed the connection" +
                                      ("" if self._welcomed else " before it sent a greeting"))
        self._in += data
        for frame in self._frames():
            try:
                self._take(ServerFrame.FromString(frame), len(frame))
            except (DecodeError, UnicodeDecodeError) as e:
                raise _violation("a frame that is not a message") from e

    def _frames(self) -> Iterator[bytes]:
        """The whole frames that have arrived."""
        at = 0
        while found := read_length(self._in[at:at + 5]):
            length, start = found[0], at + found[1]
            if length > self.max_frame_bytes:
                raise _violation(f"a frame of {length} bytes, longer than max_frame_bytes, "
                                 f"{self.max_frame_bytes}")
            if start + length > len(self._in):
                break
            at = start + length
            yield bytes(self._in[start:at])
        del self._in[:at]

    def _take(self, frame: Any, size: int) -> None:
        event = frame.WhichOneof("event")
        if event is None:
            return  # a kind of a newer daemon
        message = getattr(frame, event)
        if frame.id == 0:
            self._take_own(event, message)
            return
        pending = self._pending.get(frame.id)
        if not self._welcomed:
            raise _violation("an answer before the greeting")
        if pending is None:
            raise _violation("an answer to a request that is not in progress")
        if event not in pending.events and event != "error":
            raise _violation("an answer of the wrong kind")
        if event == "delta" and message.choice >= pending.n_choices:
            raise _violation("a choice that was not asked for")
        error = from_wire(message) if event == "error" else None
        if event != "delta":
            with self._lock:
                del self._pending[frame.id]
        if error:
            pending.fail(error)
        elif not pending.put(message, size, self.max_answer_bytes) and not pending.dropped:
            pending.fail(TooLongError("the answer is larger than max_answer_bytes",
                                      limit="max_answer_bytes", limit_value=self.max_answer_bytes))
            self.drop(pending)

    def _take_own(self, event: str, message: Any) -> None:
        """Frames with id 0 are of the connection itself."""
        if event == "error" and message.reconnect:
            raise ConnectionLostError(from_wire(message).args[0])
        if event == "error":
            raise from_wire(message)
        if event != "welcome":
            raise _violation("an answer that names no request")
        if self._welcomed:
            raise _violation("a second greeting")
        if message.protocol != 1:
            raise ProtocolError(f"the daemon, {message.server[:40]}, speaks version "
                                f"{message.protocol} of the protocol and this package version 1: "
                                "install the same release of both")
        self._welcomed = True
        self._daemons_frame = message.max_frame_bytes or _DAEMONS_FRAME
        with self._lock:
            del self._pending[0]
        self._welcome.put(message, 0, 0)
