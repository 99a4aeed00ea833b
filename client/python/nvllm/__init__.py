"""Use nvllmd, the daemon that keeps a language model resident on this host.

    import nvllm

    with nvllm.Client(wait_ready=True) as client:
        for piece in client.chat([{"role": "user", "content": "Spell lion."}], temperature=0):
            print(piece, end="", flush=True)

        answer = client.generate("1 + 1 =", max_tokens=8).answer()
        print(answer.text, answer.usage.completion_tokens, answer.timing.ttft_ms)

generate() and chat() send their request at once and return a Stream, an iterator over the pieces of the
answer; answer() is the whole of it. Any number of them may be in progress, in one thread or in many: a
client is one connection, which a thread of its own serves. embed() turns texts into embeddings, if the model
makes them. create_session() makes a conversation that the daemon holds, which chat(…, session=NAME) goes on
with. With asyncio, wait in a thread:

    answer = await asyncio.to_thread(lambda: client.chat(messages).answer())

A client connects to the path it is given, else to DEFAULT_SOCKET. NVLLM_SOCKET is for nvllmctl and
nvllm-openai; pass os.environ.get("NVLLM_SOCKET") to follow it, too.

Timeouts are seconds, as everywhere in Python: 0 does not wait, None never expires. What goes wrong is
an Error of one of the classes below, with a code, the field of the request that is wrong, and whether
and when to try again. A client whose connection has ended (ConnectionLostError) stays so: make another.

The package is the protocol of nvllm-protocol(7) over protobuf, and nothing else. To inspect and to
control the daemon beyond status(), requests(), sessions() and cancel(), use nvllmctl(1)."""

from ._client import (DEFAULT_SOCKET, Answer, Choice, Client, Embedding, Piece, Stream, Timing,
                      TokenLogprobs, Tokens, Usage)
from ._errors import (BusyError, CancelledError, ConnectionLostError, DeadlineError, DeniedError,
                      Error, InternalError, InvalidError, NotRunningError, ProtocolError,
                      TimedOutError, TooLongError, UnavailableError, UnsupportedError)
from ._pack import Parameters, ToolCall
from ._version import __version__

__all__ = [
    "DEFAULT_SOCKET", "Answer", "Choice", "Client", "Embedding", "Parameters", "Piece", "Stream",
    "Timing", "TokenLogprobs", "Tokens", "ToolCall", "Usage",
    "BusyError", "CancelledError", "ConnectionLostError", "DeadlineError", "DeniedError", "Error",
    "InternalError", "InvalidError", "NotRunningError", "ProtocolError", "TimedOutError",
    "TooLongError", "UnavailableError", "UnsupportedError", "__version__",
]
