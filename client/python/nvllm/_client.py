"""The client: see the package."""

import collections
import collections.abc
import dataclasses
import os
import socket
import time
import weakref
from types import TracebackType
from typing import (TYPE_CHECKING, Any, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence,
                    Tuple, Type, Union)

from ._connection import Connection, Pending, deadline_of, seconds_left
from ._errors import (BusyError, CancelledError, ConnectionLostError, DeniedError, Error,
                      InvalidError, NotRunningError, ProtocolError, TimedOutError,
                      UnavailableError)
from ._pack import (Json, Parameters, Text, ToolCall, embed_frame, extend, set_chat, set_field,
                    set_parameters, set_prompt, to_bytes)
from ._schema import ClientFrame, string

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

DEFAULT_SOCKET = "/run/nvllm/nvllm.sock"
_ANSWER_TIMEOUT = 10.0
_START_PAUSE = 0.02  # between two attempts while nobody listens
_REPLACED = 1.0      # for attempts at a daemon that closes connections: its successor comes
_LOADING_PAUSE = 0.2
_EMBED_AT_ONCE = 64


# ---- what comes back

class TokenLogprobs(NamedTuple):
    """Natural logarithms, before penalties and temperature."""
    logprob: float                # of the token itself
    top: List[Tuple[int, float]]  # the best ids with theirs, best first


class Piece(NamedTuple):
    """A part of an answer, as it is generated. str() is its text."""
    choice: int                   # 0 .. n - 1
    text: str                     # complete characters; may lag behind token_ids
    reasoning: str                # of a chat, as are tool_calls
    tool_calls: List[ToolCall]    # each complete
    token_ids: List[int]
    logprobs: List[TokenLogprobs]  # one a token, if asked for
    finish_reason: Optional[str]  # of the choice's last: stop, length, cancelled, deadline, error

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass
class Choice:
    """All of one choice."""
    text: str = ""
    reasoning: str = ""
    tool_calls: List[ToolCall] = dataclasses.field(default_factory=list)
    token_ids: List[int] = dataclasses.field(default_factory=list)
    logprobs: List[TokenLogprobs] = dataclasses.field(default_factory=list)
    finish_reason: Optional[str] = None

    @property
    def message(self) -> Dict[str, Any]:
        """The choice as a message, to go on with the conversation. It can be kept as JSON."""
        message: Dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function",
                 "function": {"name": c.name, "arguments": c.arguments}} for c in self.tool_calls]
        return message


class Usage(NamedTuple):
    prompt_tokens: int
    cached_tokens: int      # of the prompt, found in the prefix cache
    completion_tokens: int  # of all choices
    preemptions: int


class Timing(NamedTuple):
    queue_ms: float  # from arrival to the first step that computes the prompt
    ttft_ms: float   # from arrival to the first token
    total_ms: float


@dataclasses.dataclass
class Answer:
    """A whole answer. What a choice has, the answer has of its first one."""
    choices: List[Choice]
    usage: Usage
    timing: Timing

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> List[ToolCall]:
        return self.choices[0].tool_calls

    @property
    def token_ids(self) -> List[int]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> List[TokenLogprobs]:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> Optional[str]:
        return self.choices[0].finish_reason

    @property
    def message(self) -> Dict[str, Any]:
        return self.choices[0].message

    def __str__(self) -> str:
        return self.text


class Embedding(NamedTuple):
    """What a text means, as numbers."""
    values: List[float]  # of length 1 where the model normalizes
    prompt_tokens: int
    cached_tokens: int   # of the prompt, found in the prefix cache


class Tokens(NamedTuple):
    ids: List[int]
    tokens: List[bytes]  # the bytes of each, which may be parts of a character


# ---- from the protocol to Python

def _enum(message: Any, name: str) -> Any:
    return message.DESCRIPTOR.fields_by_name[name].enum_type


def _enum_name(enum: Any, number: int) -> str:
    """STATE_READY of State is "ready"."""
    prefix = enum.values_by_number[0].name.rpartition("_")[0] + "_"
    name: str = enum.values_by_number[number].name
    return name[len(prefix):].lower() if name.startswith(prefix) else name.lower()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _dict(message: Any) -> Dict[str, Any]:
    """A message as plain values, by the names of its fields; absent groups are None."""
    out: Dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and hasattr(value, "ListFields"):
            value = _dict(value) if message.HasField(field.name) else None
        elif field.message_type is not None:
            value = [_dict(item) for item in value]
        elif field.enum_type is not None:
            value = _enum_name(field.enum_type, value)
        elif field.type == field.TYPE_STRING:
            value = string(value)
        elif not isinstance(value, (str, bytes, int, float)):
            value = list(value)
        out[field.name] = value
    return out


def _plain(message: Any) -> Dict[str, Any]:
    try:
        return _dict(message)
    except UnicodeDecodeError:
        raise ProtocolError("nvllmd sent a text that is not UTF-8") from None


def _piece(delta: Any) -> Piece:
    reason = _enum_name(_enum(delta, "finish_reason"), delta.finish_reason)
    return Piece(
        delta.choice, _text(delta.text), _text(delta.reasoning),
        [ToolCall(_text(c.name), _text(c.arguments), _text(c.id)) for c in delta.tool_calls],
        list(delta.token_ids),
        [TokenLogprobs(p.logprob, list(zip(p.top_ids, p.top_logprobs))) for p in delta.logprobs],
        None if reason == "none" else reason)


def _message(message: Any) -> Dict[str, Any]:
    """As chat() takes it."""
    out: Dict[str, Any] = {"role": message.role}
    for name in "content", "reasoning_content", "name", "tool_call_id":
        if message.HasField(name):
            out[name] = _text(getattr(message, name))
    if message.tool_calls:
        out["tool_calls"] = [ToolCall(_text(c.name), _text(c.arguments), _text(c.id))
                             for c in message.tool_calls]
    return out


class _Embeds:
    """The texts of one call of embed(): as many in progress as may be."""

    def __init__(self, connection: Connection, texts: Sequence[Any], parameters: Dict[str, Any]):
        self._connection = connection
        self._texts = texts
        self._parameters = parameters
        self._left = collections.deque(range(len(texts)))
        # Which text, its request, and how many others were in progress when it began.
        self._begun: Deque[Tuple[int, Pending, int]] = collections.deque()
        self._at_once = _EMBED_AT_ONCE
        self._done: Dict[int, Embedding] = {}

    def run(self, deadline: Optional[float]) -> List[Embedding]:
        try:
            while self._left or self._begun:
                if self._left and len(self._begun) < self._at_once:
                    self._start(self._left.popleft())
                else:
                    self._take(deadline)
        except BaseException:
            for _, pending, _ in self._begun:
                self._connection.drop(pending)
            raise
        return [self._done[i] for i in range(len(self._texts))]

    def _start(self, i: int) -> None:
        n_others = len(self._begun)
        pending = Pending("embedding")
        self._begun.append((i, pending, n_others))
        try:
            self._connection.start(pending, embed_frame(self._texts[i], self._parameters))
        except BusyError as e:
            self._begun.pop()
            self._wait_with(i, n_others, e)

    def _take(self, deadline: Optional[float]) -> None:
        """The oldest one's answer."""
        i, pending, n_others = self._begun[0]
        try:
            message = pending.take(deadline)
        except BusyError as e:
            self._begun.popleft()
            self._wait_with(i, n_others, e)
            return
        self._begun.popleft()
        self._done[i] = Embedding(list(message.values), message.usage.prompt_tokens,
                                  message.usage.cached_tokens)

    def _wait_with(self, i: int, n_others: int, error: BusyError) -> None:
        """There was no room for a text beside so many others: it begins again after one of them."""
        if n_others == 0:
            raise error
        self._at_once = min(self._at_once, n_others)
        self._left.appendleft(i)


class Stream(Iterator[Piece]):
    """The answer to generate() or chat(): iterate over its pieces, or take it whole by answer().

    One thread at a time uses a stream; any may cancel() it. One that is closed, or that nobody refers to
    any more, is cancelled."""

    def __init__(self, client: "Client", frame: Any, timeout: Optional[float]):
        self._client = client  # it stays open as long
        self._connection = client._connection
        self._deadline = deadline_of(timeout)
        n = frame.generate.n or 1
        self._choices: Dict[int, Choice] = {}
        self._texts: Dict[int, Tuple[List[str], List[str]]] = {}
        self._done: Any = None
        self._failure: Optional[BaseException] = None
        self._pending = Pending("delta", "done", n_choices=n)
        self._ended = True
        self._connection.start(self._pending, frame)
        self._ended = False

    def __next__(self) -> Piece:
        if self._ended:
            raise StopIteration
        try:
            message = self._pending.take(self._deadline)
        except TimedOutError as e:
            self._failure = TimedOutError("the request timed out")
            self.close()
            raise self._failure from e
        except Error as e:
            self._ended, self._failure = True, e
            raise
        if message.DESCRIPTOR.name == "Done":
            self._ended, self._done = True, message
            raise StopIteration
        piece = _piece(message)
        self._keep(piece)
        return piece

    def _keep(self, piece: Piece) -> None:
        choice = self._choices.setdefault(piece.choice, Choice())
        texts, thoughts = self._texts.setdefault(piece.choice, ([], []))
        texts.append(piece.text)
        thoughts.append(piece.reasoning)
        choice.tool_calls += piece.tool_calls
        choice.token_ids += piece.token_ids
        choice.logprobs += piece.logprobs
        choice.finish_reason = piece.finish_reason

    def answer(self) -> Answer:
        """Waits for the end, and returns the whole answer, pieces that were iterated over included."""
        for _ in self:
            pass
        if self._failure:
            raise self._failure
        if not self._done:
            raise CancelledError("the stream was closed before its end")
        for i, (texts, thoughts) in self._texts.items():
            self._choices[i].text, self._choices[i].reasoning = "".join(texts), "".join(thoughts)
        usage, timing = self._done.usage, self._done.timing
        return Answer([self._choices.get(i, Choice()) for i in range(self._pending.n_choices)],
                      Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
                            usage.preemptions),
                      Timing(timing.queue_ms, timing.ttft_ms, timing.total_ms))

    def cancel(self) -> None:
        """Asks the daemon to end the answer. What was generated by then still comes, and the end, with
        finish_reason "cancelled"."""
        self._connection.cancel(self._pending)

    def close(self) -> None:
        """Cancels, and gives up what has not been read."""
        if not self._ended:
            self._ended = True
            self._connection.drop(self._pending)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self.close()


class Client:
    """A connection to nvllmd, for use by any number of threads.

    path: its socket. timeout: seconds for connecting, waiting included; 0 does not wait, None never
    expires. wait_ready: waits until the model is loaded; wait_start: until the daemon listens. name:
    the program's, for the daemon's log. A frame of more than max_frame_bytes ends the connection. An
    answer of more than max_answer_bytes is refused with TooLongError; a piece that has not been read
    counts for at least 512 of them.

    A client is closed by close(), by the end of a with block, or once neither it nor any of its streams
    is referred to; this cancels its requests. It does not survive os.fork() in the child."""

    def __init__(self, path: Optional["Union[str, os.PathLike[str]]"] = None, *,
                 timeout: Optional[float] = 10.0, wait_ready: bool = False, wait_start: bool = False,
                 name: str = "python-nvllm", max_frame_bytes: int = 16 << 20,
                 max_answer_bytes: int = 64 << 20):
        deadline = deadline_of(timeout)
        self.path = os.fspath(path or DEFAULT_SOCKET)
        give_up = time.monotonic() + _REPLACED  # for a daemon that is being replaced
        while True:
            connection = Connection(_connect(self.path, deadline, wait_start), name,
                                    max_frame_bytes, max_answer_bytes)
            try:
                welcome = _plain(connection.welcome(deadline))
                break
            except ConnectionLostError:
                connection.close()
                if not wait_start and time.monotonic() > give_up or not _pause(deadline):
                    raise
            except TimedOutError:
                connection.close()
                raise TimedOutError(f"nvllmd at {self.path} does not answer") from None
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        self._finalizer = weakref.finalize(self, connection.close)
        self.server: str = welcome["server"]
        """The daemon and its version: "nvllmd/0.1.0"."""
        self.model: str = welcome["model"]
        if wait_ready:
            try:
                self._wait_ready(deadline)
            except BaseException:
                self.close()
                raise

    def _wait_ready(self, deadline: Optional[float]) -> None:
        while (status := self.status(timeout=seconds_left(deadline)))["state"] == "loading":
            if not _pause(deadline, _LOADING_PAUSE):
                raise TimedOutError(f"nvllmd is still loading its model "
                                    f"({status['progress']:.0%})")
        if status["state"] == "failed":
            raise UnavailableError("nvllmd could not load its model: its log says why")
        self.model = status["model"]

    def close(self) -> None:
        """Ends the connection; the daemon cancels its requests. May be called again."""
        self._finalizer()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    # ---- generate

    def generate(self, prompt: Union[Text, Sequence[int]],
                 **parameters: "Unpack[Parameters]") -> Stream:
        """Continues a text, in which special tokens are matched, or token ids.

        With response_format the text can be nothing else than what that says:

            {"type": "json_object"}
            {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
            {"type": "regex", "regex": EXPRESSION}
            {"type": "grammar", "grammar": GBNF}
            {"type": "choice", "choices": [TEXT, TEXT]}

        A schema is Python's values or JSON. One that nvllmd cannot enforce is an InvalidError, whose
        message has the keyword's path. A text that ends by max_tokens may be cut, and the reasoning
        before a chat's text is free: see nvllm-protocol(7)."""
        frame = ClientFrame()
        set_prompt(frame.generate, prompt)
        return self._generate(frame, dict(parameters))

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Json] = (),
             tool_choice: "Union[str, Mapping[str, Any], None]" = None,
             parallel_tool_calls: Optional[bool] = None,
             documents: Sequence[Json] = (),
             chat_template_kwargs: Optional[Json] = None,
             add_generation_prompt: Optional[bool] = None, enable_thinking: Optional[bool] = None,
             **parameters: "Unpack[Parameters]") -> Stream:
        """Answers a conversation.

        Messages have role and content, and may have reasoning_content, tool_calls, name and
        tool_call_id, as in OpenAI's interface. The model's reasoning and its calls of tools come apart
        from the text. The arguments of a tool whose function has "strict": true are an instance of its
        parameters; tool_choice is "auto", "none", "required" or {"type": "function", "function":
        {"name": NAME}}; without parallel_tool_calls there is one call at most.

        With session=NAME the messages are appended to that session, which has the rest but for
        tool_choice and parallel_tool_calls: see create_session()."""
        frame = ClientFrame()
        set_chat(frame.generate.chat, messages, tools, documents, chat_template_kwargs,
                  {"add_generation_prompt": add_generation_prompt,
                   "enable_thinking": enable_thinking,
                   "parallel_tool_calls": parallel_tool_calls}, tool_choice)
        return self._generate(frame, dict(parameters))

    def _generate(self, frame: Any, parameters: Dict[str, Any]) -> Stream:
        timeout = parameters.pop("timeout", None)
        frame.generate.stream = True
        set_parameters(frame.generate, parameters)
        return Stream(self, frame, timeout)

    # ---- sessions

    def create_session(self, name: str, messages: Sequence[Mapping[str, Any]] = (), *,
                       tools: Sequence[Json] = (), documents: Sequence[Json] = (),
                       chat_template_kwargs: Optional[Json] = None,
                       enable_thinking: Optional[bool] = None,
                       timeout: Optional[float] = _ANSWER_TIMEOUT) -> Dict[str, Any]:
        """A conversation that the daemon holds, and that outlives this client; chat() with its name has
        a turn. messages come before the first turn, as a system prompt does; they, tools and so on are
        in each prompt. This and the next return SessionInfo of nvllm.proto."""
        frame = ClientFrame()
        set_field(frame.create_session, "name", name, "")
        set_chat(frame.create_session.chat, messages, tools, documents, chat_template_kwargs,
                 {"enable_thinking": enable_thinking})
        return _plain(self._ask("session_info", timeout, create_session=frame.create_session))

    def fork_session(self, name: str, new_name: str, *, turns: Optional[int] = None,
                     timeout: Optional[float] = _ANSWER_TIMEOUT) -> Dict[str, Any]:
        """Copies a session's first so many turns, or all, to a new one."""
        return self._change("fork_session", timeout, name=name, new_name=new_name, turns=turns)

    def rewind_session(self, name: str, turns: int, *,
                       timeout: Optional[float] = _ANSWER_TIMEOUT) -> Dict[str, Any]:
        """Drops all but the first so many turns."""
        return self._change("rewind_session", timeout, name=name, turns=turns)

    def delete_session(self, name: str, *, uid: Optional[int] = None,
                       timeout: Optional[float] = _ANSWER_TIMEOUT) -> Dict[str, Any]:
        """Deletes a session, and returns what it was. uid: another user's, for administrators."""
        return self._change("delete_session", timeout, name=name, uid=uid)

    def sessions(self, *, limit: int = 0, all: bool = False,
                 timeout: Optional[float] = _ANSWER_TIMEOUT) -> List[Dict[str, Any]]:
        """This user's sessions, the last used one first; with all, for administrators, those of all
        users."""
        listed = self._ask("session_list", timeout, list_sessions={"limit": limit, "all": all})
        return [_plain(info) for info in listed.sessions]

    def session(self, name: str, *, ids: bool = False,
                timeout: Optional[float] = _ANSWER_TIMEOUT) -> Dict[str, Any]:
        """What a session holds: info; messages as chat() takes them; tools, documents and
        chat_template_kwargs, as JSON; turn_messages, the number of messages at the end of each turn, of
        the first those before any; and with ids token_ids."""
        frame = ClientFrame()
        set_field(frame.show_session, "name", name, "")
        frame.show_session.ids = ids
        held = self._ask("session_contents", timeout, show_session=frame.show_session)
        return {"info": _plain(held.info), "messages": [_message(m) for m in held.chat.messages],
                "tools": [_text(t) for t in held.chat.tools],
                "documents": [_text(d) for d in held.chat.documents],
                "chat_template_kwargs": _text(held.chat.chat_template_kwargs) or None,
                "enable_thinking": (held.chat.enable_thinking
                                    if held.chat.HasField("enable_thinking") else None),
                "turn_messages": list(held.turn_messages), "token_ids": list(held.token_ids)}

    def _change(self, operation: str, timeout: Optional[float], **fields: Any) -> Dict[str, Any]:
        frame = ClientFrame()
        message = getattr(frame, operation)
        for field, value in fields.items():
            if value is not None:
                set_field(message, field, value, "")
        return _plain(self._ask("session_info", timeout, **{operation: message}))

    # ---- embed

    def embed(self, texts: Sequence[Union[Text, Sequence[int]]], *,
              prompt_name: Optional[str] = None, dimensions: Optional[int] = None,
              priority: Optional[str] = None, cache_salt: Optional[Text] = None,
              deadline_ms: Optional[int] = None,
              timeout: Optional[float] = None) -> List[Embedding]:
        """The embeddings of texts, or of token ids; status()["embedding_dim"] is 0 for a model that
        makes none.

        prompt_name: of the model's prompts, which is put before each text, as "query"; not with token
        ids. dimensions: so many leading values only. deadline_ms: of each text, from its arrival at the
        daemon. timeout: seconds for all of them. Several are computed together, as many as the daemon's
        limits allow; if one fails, its error is raised and the others are cancelled."""
        one = isinstance(texts, (str, bytes)) or not isinstance(texts, collections.abc.Iterable)
        texts = texts if one else list(texts)
        if one or any(isinstance(text, int) for text in texts):
            raise TypeError("texts: must be a sequence of texts or of lists of token ids, not one of them")
        parameters = {"prompt_name": prompt_name, "dimensions": dimensions, "priority": priority,
                      "cache_salt": cache_salt, "deadline_ms": deadline_ms}
        return _Embeds(self._connection, texts, parameters).run(deadline_of(timeout))

    # ---- short operations

    def _ask(self, event: str, timeout: Optional[float], **operation: Any) -> Any:
        deadline = deadline_of(timeout)
        pending = Pending(event)
        self._connection.start(pending, ClientFrame(**operation))
        try:
            return pending.take(deadline)
        except BaseException as e:
            if not isinstance(e, Error) or isinstance(e, TimedOutError):
                self._connection.drop(pending)
            raise

    def tokenize(self, text: Text, *, special: bool = False,
                 timeout: Optional[float] = _ANSWER_TIMEOUT) -> Tokens:
        """The tokens of a text. special: special tokens in it are matched."""
        tokens = self._ask("tokens", timeout,
                           tokenize={"text": to_bytes(text, "text"), "special": special})
        return Tokens(list(tokens.ids), list(tokens.tokens))

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = False,
                   timeout: Optional[float] = _ANSWER_TIMEOUT) -> str:
        """The text of tokens. Bytes that are no complete character become U+FFFD."""
        frame = ClientFrame()
        frame.detokenize.skip_special = skip_special
        extend(frame.detokenize.ids, ids, "ids")
        return _text(self._ask("text", timeout, detokenize=frame.detokenize).text)

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Json] = (),
               documents: Sequence[Json] = (),
               chat_template_kwargs: Optional[Json] = None,
               add_generation_prompt: Optional[bool] = None,
               enable_thinking: Optional[bool] = None,
               timeout: Optional[float] = _ANSWER_TIMEOUT) -> str:
        """The prompt that the model's template makes of a conversation."""
        frame = ClientFrame()
        set_chat(frame.render.chat, messages, tools, documents, chat_template_kwargs,
                  {"add_generation_prompt": add_generation_prompt,
                   "enable_thinking": enable_thinking})
        return _text(self._ask("text", timeout, render=frame.render).text)

    def status(self, *, timeout: Optional[float] = _ANSWER_TIMEOUT) -> Dict[str, Any]:
        """State, model, device, memory, requests and counts, by the names of Status in nvllm.proto."""
        return _plain(self._ask("status", timeout, get_status={}))

    def requests(self, *, limit: int = 0,
                 timeout: Optional[float] = _ANSWER_TIMEOUT) -> List[Dict[str, Any]]:
        """This user's requests on all connections, for administrators those of all users: RequestInfo
        of nvllm.proto."""
        listed = self._ask("request_list", timeout, list_requests={"limit": limit})
        return [_plain(info) for info in listed.requests]

    def cancel(self, request: int, *, timeout: Optional[float] = _ANSWER_TIMEOUT) -> bool:
        """Cancels a request of any connection by its number in requests(). False: it had ended."""
        return bool(self._ask("cancelled", timeout, cancel={"request": request}).found)


# ---- connecting

def _pause(deadline: Optional[float], seconds: float = _START_PAUSE) -> bool:
    """False if the deadline has passed."""
    left = seconds_left(deadline)
    if left == 0:
        return False
    time.sleep(seconds if left is None else min(seconds, left))
    return True


def _connect(path: str, deadline: Optional[float], wait_start: bool) -> socket.socket:
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(0.0)
            sock.connect(path)
            return sock
        except (FileNotFoundError, ConnectionRefusedError) as e:
            sock.close()
            error: Error = NotRunningError(f"nvllmd is not running: {path}: {e.strerror}")
            again = wait_start
        except BlockingIOError:
            sock.close()
            error = BusyError(f"too many clients are waiting to connect to {path}")
            again = True
        except PermissionError:
            sock.close()
            raise DeniedError(f"this user may not connect to {path}") from None
        except (OSError, ValueError) as e:  # what the path is
            sock.close()
            raise InvalidError(f"path: cannot connect to {path!r}: {e}", field="path") from None
        if not again or not _pause(deadline):
            raise error from None
