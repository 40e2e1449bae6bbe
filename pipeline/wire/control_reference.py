"""Generator of the table of verbs in docs/protocol.md, from the classes of messages.

`python -m shadowsync.pipeline.wire.control_reference --write` writes the tables to the page.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from ..text.markdown import markdown_table
from ..types import BatchId
from .control.base import Done, ErrorReply, Verb
from .control.verbs import CONTROL_VERBS
from .field_checks import Bounds, Items

_NAMES: Final[dict[Any, str]] = {
    int: "integer", float: "number", bool: "flag", str: "text", bytes: "bytes", BatchId: "batch id",
    int | float: "finite number", dict[str, Any]: "table",
}  # fmt: skip


def control_reference() -> str:
    """Return the Markdown tables of the control plane."""
    records: dict[type[Any], None] = {}
    rows = []
    for name, verb in CONTROL_VERBS.verbs.items():
        way = f"{_roles(verb.requesters)}, {_roles(verb.responders)}"
        request, reply = _fields(verb.request, records), _fields(verb.reply, records)
        rows.append((f"`{name}`", way, request, reply, _meaning(verb)))
    records[ErrorReply] = None
    lines = markdown_table(("verb", "from, to", "request", "reply", "what"), rows)
    return "\n".join([*lines, "", *_record_lines(records)]) + "\n"


SECTIONS: Final[dict[str, Callable[[], str]]] = {
    "control verbs": control_reference,
}


def _record_lines(records: dict[type[Any], None]) -> list[str]:
    """Return the table of these records, and of the records in their fields."""
    rows: list[tuple[str, str, str]] = []
    done: list[type[Any]] = []
    while left := [record for record in records if record not in done]:
        for record in left:
            done.append(record)
            rows.append((record.__name__, _fields(record, records), _sentence(record)))
    return markdown_table(("record", "fields", "what"), rows)


def _roles(roles: frozenset[str]) -> str:
    return "node" if len(roles) == 4 else " or ".join(sorted(roles))


def _meaning(verb: Verb) -> str:
    request = _sentence(verb.request)
    reply = "" if verb.reply is Done else f" Reply: {_sentence(verb.reply)}"
    return request + reply


def _sentence(cls: type[Any]) -> str:
    """The docstring's first paragraph."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def _fields(cls: type[Any], records: dict[type[Any], None]) -> str:
    hints = typing.get_type_hints(cls, include_extras=True)
    return ", ".join(f"{f.name}: {_words(hints[f.name], records)}" for f in dataclasses.fields(cls))


def _words(hint: Any, records: dict[type[Any], None]) -> str:
    if hint in _NAMES:
        return _NAMES[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1], records)
    if origin is typing.Literal:
        return " or ".join(f'"{choice}"' for choice in arguments)
    if origin is dict:
        return f"table of {_words(arguments[1], records)}"
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {_words(arguments[0], records)}"
    if origin is tuple:
        return f"({', '.join(_words(argument, records) for argument in arguments)})"
    if origin in (typing.Union, types.UnionType):
        return f"{_words(arguments[0], records)} or null"
    if issubclass(hint, enum.Enum):
        return "exit code"
    records[hint] = None
    return str(hint.__name__)


def _bounded(hint: Any, bound: Bounds | Items, records: dict[type[Any], None]) -> str:
    words = _words(hint, records)
    if isinstance(bound, Items):
        return f"{words} (at most {bound.most:,})"
    return f"{words} ≥ {bound.least:g}" if math.isfinite(bound.least) else f"finite {words}"


def marks(section: str) -> tuple[str, str]:
    """Return the marks that begin and end a section of the page."""
    written = f"<!-- written by shadowsync.pipeline.wire.control_reference, {section}"
    return f"{written}: begin -->", f"{written}: end -->"


def renewed(page: str) -> str:
    """Return the page with up-to-date tables."""
    for section, reference in SECTIONS.items():
        begin, end = marks(section)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n\n{reference()}\n{end}{after}"
    return page


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
    if "--write" in sys.argv[1:]:
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")
    else:
        print(control_reference(), end="")
