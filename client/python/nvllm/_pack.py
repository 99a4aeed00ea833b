"""From a program's values to the messages of the protocol. What protobuf does not take is an
InvalidError that names the field as the daemon would."""

import json
from typing import Any, Mapping, NamedTuple, Optional, Sequence, TypedDict, Union

from ._errors import InvalidError
from ._schema import ClientFrame

Text = Union[str, bytes]
Json = Union[str, bytes, Mapping[str, Any]]  # an object, as its text or as Python's


class Parameters(TypedDict, total=False):
    """What generate() and chat() take by name. Without a value the model's defaults hold."""

    temperature: float          # >= 0; 0 is greedy
    top_k: int                  # 0: off
    top_p: float                # (0, 1]
    min_p: float                # [0, 1]
    repetition_penalty: float   # > 0
    presence_penalty: float     # [-2, 2]
    frequency_penalty: float    # [-2, 2]
    logit_bias: Mapping[int, float]  # of token ids, in [-100, 100]
    seed: int                   # without: drawn at random
    stop: Union[Text, Sequence[Text]]  # strings that end the text and are not part of it
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    max_tokens: int             # without: as many as fit
    logprobs: int               # alternatives reported for each token; without: no logprobs
    n: int                      # choices; without: 1
    priority: str               # "low", "normal", or for administrators "high"
    cache_salt: Text            # limits who shares this prompt's cached prefix
    session: str                # of a chat: the session that this is a turn of
    deadline_ms: int            # the daemon ends the answer then, with finish_reason "deadline"
    stream: bool                # False: one piece a choice, at its end
    keep_special: bool          # show special tokens in the text
    raw_text: bool              # of a chat: reasoning and tool calls stay in the text
    response_format: Mapping[str, Any]  # what the text must be, see Client.generate()
    timeout: Optional[float]    # seconds for the whole answer; without: it never expires


_SAMPLING = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
             "frequency_penalty", "seed", "stop_token_ids", "ignore_eos", "min_tokens", "logprobs"}
_PLAIN = {"max_tokens", "n", "deadline_ms", "stream", "keep_special", "raw_text", "session"}


class ToolCall(NamedTuple):
    """A tool that the model calls."""
    name: str
    arguments: str  # a JSON object, as a text
    id: str


def set_field(message: Any, name: str, value: Any, path: str) -> None:
    """Sets a field; the path is what an error names."""
    field = path + name
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as e:
        raise InvalidError(f"{field}: {e}", field=field) from None


def to_bytes(value: Any, field: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise InvalidError(f"{field}: must be str or bytes, not {type(value).__name__}", field=field)
    try:
        return value.encode()
    except UnicodeEncodeError as e:
        raise InvalidError(f"{field}: {e}", field=field) from None


def _json(value: Any, field: str) -> bytes:
    """The text of a JSON value."""
    if isinstance(value, (str, bytes)):
        return to_bytes(value, field)
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidError(f"{field}: {e}", field=field) from None


def extend(target: Any, values: Any, field: str) -> None:
    try:
        target.extend(values)
    except (TypeError, ValueError) as e:
        raise InvalidError(f"{field}: {e}", field=field) from None


def set_prompt(out: Any, prompt: Any) -> None:
    """A text, or ids of tokens."""
    if isinstance(prompt, (str, bytes)):
        out.prompt = to_bytes(prompt, "prompt")
    else:
        out.prompt_ids.SetInParent()
        extend(out.prompt_ids.ids, prompt, "prompt_ids.ids")


def _set_tool_call(out: Any, call: Any, path: str) -> None:
    """Of this package, or a mapping as OpenAI's interface has it, with a function or without."""
    if isinstance(call, ToolCall):
        call = call._asdict()
    function = call.get("function") or call if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidError(f"{path}: must be a mapping with name and arguments", field=path)
    for source, name in (function, "name"), (function, "arguments"), (call, "id"):
        value = source.get(name)
        if value is not None:
            encode = _json if name == "arguments" else to_bytes
            setattr(out, name, encode(value, f"{path}.{name}"))


def _set_message(out: Any, message: Any, path: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidError(f"{path}: must be a mapping with role and content", field=path)
    for name, value in message.items():
        field = f"{path}.{name}"
        if value is None:
            continue
        if name == "role":
            set_field(out, name, value, path + ".")
        elif name == "tool_calls":
            for i, call in enumerate(value):
                _set_tool_call(out.tool_calls.add(), call, f"{field}[{i}]")
        elif name in ("content", "reasoning_content", "name", "tool_call_id"):
            setattr(out, name, to_bytes(value, field))
        else:
            raise InvalidError(f"{field}: there is no such field", field=field)


def _set_tool_choice(out: Any, value: Any) -> None:
    """A word, or the tool to call as OpenAI's interface has it."""
    field = "chat.tool_choice"
    if isinstance(value, Mapping):
        name = _mapping(value.get("function"), field + ".function").get("name")
        out.called_tool = to_bytes(name, field + ".function.name")
        value = "required"
    names = out.DESCRIPTOR.fields_by_name["tool_choice"].enum_type.values_by_name
    try:
        out.tool_choice = names["TOOL_CHOICE_" + value.upper()].number
    except (KeyError, AttributeError):
        raise InvalidError(f"{field}: {value!r} is not one of auto, none, required and a mapping "
                           "with a function", field=field) from None


def set_chat(out: Any, messages: Any, tools: Any, documents: Any, kwargs: Any,
              switches: Mapping[str, Optional[bool]], tool_choice: Any = None) -> None:
    out.SetInParent()
    for i, message in enumerate(messages):
        _set_message(out.messages.add(), message, f"chat.messages[{i}]")
    for name, values in ("tools", tools), ("documents", documents):
        for i, value in enumerate(values):
            getattr(out, name).append(_json(value, f"chat.{name}[{i}]"))
    if kwargs is not None:
        out.chat_template_kwargs = _json(kwargs, "chat.chat_template_kwargs")
    for name, value in switches.items():
        if value is not None:
            set_field(out, name, value, "chat.")
    if tool_choice is not None:
        _set_tool_choice(out, tool_choice)


def _set_priority(out: Any, value: Any) -> None:
    try:
        names = out.DESCRIPTOR.fields_by_name["priority"].enum_type.values_by_name
        out.priority = names["PRIORITY_" + value.upper()].number
    except (KeyError, AttributeError):
        raise InvalidError(f"priority: {value!r} is not one of low, normal and high",
                           field="priority") from None


def embed_frame(text: Any, parameters: Mapping[str, Any]) -> Any:
    frame = ClientFrame()
    set_prompt(frame.embed, text)
    for name, value in parameters.items():
        if value is None:
            continue
        if name == "priority":
            _set_priority(frame.embed, value)
        else:
            set_field(frame.embed, name, to_bytes(value, name) if name == "cache_salt" else value, "")
    return frame


_FORMATS = {"json_schema": "json_schema", "regex": "regex", "grammar": "grammar",
            "choice": "choices"}  # the member that each type needs


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidError(f"{path}: must be a mapping", field=path)
    return value


def _only(value: Mapping[str, Any], path: str, *names: Optional[str]) -> None:
    for name, member in value.items():
        if name not in names and member is not None:
            raise InvalidError(f"{path}.{name}: must be absent", field=f"{path}.{name}")


def _set_format(out: Any, value: Any, path: str) -> None:
    """As OpenAI's interface has it, and its like for what that does not have."""
    kind = _mapping(value, path).get("type")
    if kind not in ("text", "json_object", *_FORMATS):
        raise InvalidError(f"{path}.type: {kind!r} is not one of text, json_object, "
                           f"{', '.join(_FORMATS)}", field=path + ".type")
    name = _FORMATS.get(kind)
    _only(value, path, "type", name)
    if kind == "json_object":
        out.json_object = True
    elif kind == "json_schema":
        field = f"{path}.json_schema"
        wrapper = _mapping(value.get(name), field)
        _only(wrapper, field, "schema", "name", "description", "strict")
        schema = wrapper.get("schema")
        if not isinstance(schema, (str, bytes, bool, Mapping)):
            raise InvalidError(f"{field}.schema: must be a mapping, a bool, or JSON as str or bytes",
                               field=field + ".schema")
        out.json_schema = _json(schema, field + ".schema")
    elif kind == "choice":
        texts, field = value.get(name), f"{path}.choices"
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence):
            raise InvalidError(f"{field}: must be a sequence of str or bytes", field=field)
        out.choice.SetInParent()
        out.choice.texts.extend(to_bytes(t, f"{field}[{i}]") for i, t in enumerate(texts))
    elif name:
        setattr(out, name, to_bytes(value.get(name), f"{path}.{name}"))


def set_parameters(out: Any, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if value is None:
            continue
        if name == "stop_token_ids":
            extend(out.sampling.stop_token_ids, value, "sampling.stop_token_ids")
        elif name in _SAMPLING:
            set_field(out.sampling, name, value, "sampling.")
        elif name in _PLAIN:
            set_field(out, name, value, "")
        elif name == "logit_bias":
            for i, (id_, bias) in enumerate(value.items()):
                entry, path = out.sampling.logit_bias.add(), f"sampling.logit_bias[{i}]."
                set_field(entry, "id", id_, path)
                set_field(entry, "bias", bias, path)
        elif name == "stop":
            values = [value] if isinstance(value, (str, bytes)) else value
            out.stop.extend(to_bytes(v, f"stop[{i}]") for i, v in enumerate(values))
        elif name == "cache_salt":
            out.cache_salt = to_bytes(value, name)
        elif name == "response_format":
            _set_format(out.response_format, value, name)
        elif name == "priority":
            _set_priority(out, value)
        else:
            raise TypeError(f"there is no parameter {name}")
