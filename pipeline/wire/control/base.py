"""Base of control messages: requests by verb, replies, and records.

A request or reply is a frozen dataclass, which is sent as the list of its fields' values (see
`field_checks`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar

from ...errors import ExitCode, ProtocolError
from ..field_checks import Items, record_of, values_of

MAX_BATCHES: Final = 1 << 18
MAX_VALUES_BYTES: Final = 4 << 20

Values: TypeAlias = Annotated[bytes, Items(MAX_VALUES_BYTES)]
"""An array's bytes, little-endian."""


class Reply:
    """Base of replies."""

    __slots__ = ()


ReplyType = TypeVar("ReplyType", bound=Reply)


class Request(Generic[ReplyType]):
    """Base of requests."""

    __slots__ = ()

    def require(self, reply: ReplyType) -> None:
        """Raise ValueError for a reply that this request cannot have."""


@dataclasses.dataclass(frozen=True, slots=True)
class Done(Reply):
    """Empty reply."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verb:
    """One row of the table of verbs.

    Attributes:
        requesters, responders: roles of nodes, including "coordinator", "supervisor" and "watcher".
        repeatable: whether a repeat is handled again instead of answered from memory. The request then
            changes nothing, and its reply may be large.
    """

    request: type[Request[Any]]
    reply: type[Reply]
    requesters: frozenset[str]
    responders: frozenset[str]
    repeatable: bool = False


Named = TypeVar("Named")


class NamedRecords(Generic[Named]):
    """A mapping of verbs to kinds of records, and back."""

    def __init__(self, kinds: Mapping[str, type[Named]]) -> None:
        self.kinds: Final = dict(kinds)
        self._names = {kind: name for name, kind in self.kinds.items()}

    def name_of(self, record: Named) -> str:
        """Return the verb of a record."""
        return self._names[type(record)]

    def decode_values(self, name: str, values: list[Any]) -> Named:
        """Decode a record; raises ProtocolError."""
        if name not in self.kinds:
            raise ProtocolError(f"the unknown verb {name!r:.80}")
        record: Named = decode_record(self.kinds[name], name, values)
        return record


class VerbTable:
    """A mapping of a control link's verbs to requests and replies, and back."""

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self.verbs: Final = dict(verbs)
        self._requests = NamedRecords[Request[Any]]({name: verb.request for name, verb in verbs.items()})

    def name_of(self, request: Request[Any]) -> str:
        """Return the verb of a request."""
        return self._requests.name_of(request)

    def decode_request(self, name: str, values: list[Any]) -> Request[Any]:
        """Decode a request; raises ProtocolError."""
        return self._requests.decode_values(name, values)

    def decode_reply(self, name: str, values: list[Any]) -> Reply:
        """Decode a reply; raises ProtocolError."""
        reply: Reply = decode_record(self.verbs[name].reply, f"the reply to {name}", values)
        return reply


def decode_record(cls: type[Any], what: str, values: list[Any]) -> Any:
    """Decode a record; raises a ProtocolError that begins with `what`."""
    try:
        return record_of(cls, values)
    except ValueError as error:
        raise ProtocolError(f"{what}: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorReply(Reply):
    """The reason why a request was refused, or failed."""

    what: str
    where: str = ""
    remedy: str = ""
    exit_code: ExitCode = ExitCode.INTERNAL


def decode_error(values: list[Any]) -> ErrorReply:
    """Decode an error from `encode_body`; raises a ProtocolError that names the field."""
    reply: ErrorReply = decode_record(ErrorReply, "an error", values)
    return reply


def encode_body(message: Request[Any] | Reply) -> list[Any]:
    """Return the values of a request's or reply's fields, in order."""
    return values_of(message)
