"""What can go wrong: one class a code, all of them Error. The names of codes are those of
libnvllm-client."""

from typing import Any, Dict, Optional, Type

from ._schema import string


class Error(Exception):
    """An error of the daemon, of the connection, or of an argument. str() is one line for people."""

    code: str = "unknown"
    """A stable name: "invalid", "busy", …; "unknown" is one of a newer daemon."""

    def __init__(self, message: str, *, field: str = "", retryable: Optional[bool] = None,
                 retry_after: Optional[float] = None, limit: str = "", limit_value: int = 0):
        super().__init__("".join(c if c.isprintable() else "?" for c in message))
        self.field = field
        """What of the request is wrong, as nvllm-protocol(7) names it: "sampling.top_p",
        "chat.messages[0].role"; or empty."""
        self.retryable = self._retryable if retryable is None else retryable
        """The same request may succeed later."""
        self.retry_after = retry_after
        """When to try again, in seconds; None: it is not known."""
        self.limit = limit
        """The daemon's option whose limit was exceeded, or this package's; or empty."""
        self.limit_value = limit_value
        """What it is set to."""

    _retryable = False


class InvalidError(Error, ValueError):
    """A value is wrong; field names it."""
    code = "invalid"


class TooLongError(Error):
    """Prompt and max_tokens can never fit, or an answer is over a limit."""
    code = "too_long"


class UnavailableError(Error):
    """The model is being loaded, or the daemon is draining."""
    code, _retryable = "unavailable", True


class BusyError(Error):
    """A limit on requests in progress."""
    code, _retryable = "busy", True


class DeadlineError(Error):
    """deadline_ms of an embedding; that of an answer ends it with finish_reason "deadline"."""
    code = "deadline"


class CancelledError(Error):
    """Cancelled before there was a result."""
    code = "cancelled"


class DeniedError(Error, PermissionError):
    """This user may not do that, or not open the socket."""
    code = "denied"


class ProtocolError(Error):
    """One side violated the protocol; the connection has ended."""
    code = "protocol"


class InternalError(Error):
    """The daemon is out of memory, or its backend failed."""
    code = "internal"


class UnsupportedError(Error):
    """This daemon or model does not support the operation."""
    code = "unsupported"


class NotRunningError(Error, ConnectionError):
    """No process listens on the socket."""
    code, _retryable = "not_running", True


class ConnectionLostError(Error, ConnectionError):
    """The connection has ended, and all its requests with it: make a new client."""
    code, _retryable = "connection", True


class TimedOutError(Error, TimeoutError):
    """The call's timeout has expired. The connection can still be used."""
    code, _retryable = "timeout", True


_OF_THE_DAEMON: Dict[str, Type[Error]] = {
    "ERROR_" + c.code.upper(): c
    for c in (InvalidError, TooLongError, UnavailableError, BusyError, DeadlineError,
              CancelledError, DeniedError, ProtocolError, InternalError, UnsupportedError)}


def from_wire(error: Any) -> Error:
    """The exception for the protocol's Error."""
    names = error.DESCRIPTOR.fields_by_name["code"].enum_type.values_by_number
    kind = _OF_THE_DAEMON.get(names[error.code].name, Error)
    retry_after = error.retry_after_ms / 1000 if error.HasField("retry_after_ms") else None
    return kind(string(error.message) or "nvllmd gives no reason", field=string(error.field),
                retryable=error.retryable, retry_after=retry_after, limit=string(error.limit),
                limit_value=error.limit_value)
