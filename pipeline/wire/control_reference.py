"""Generator of the table of verbs in docs/protocol.md, from the classes of messages.

`python -m shadowsync.pipeline.wire.control_reference --write` writes the table to the page.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any, Final

from ..text.markdown import markdown_table
from .control.base import Done, Verb
from .control.verbs import CONTROL_VERBS

_WRITTEN: Final = "<!-- written by shadowsync.pipeline.wire.control_reference"
BEGIN: Final = f"{_WRITTEN}: begin -->"
END: Final = f"{_WRITTEN}: end -->"


def control_reference() -> str:
    """Return the Markdown table of the control plane's verbs."""
    rows = [
        (f"`{name}`", f"{_roles(verb.requesters)}, {_roles(verb.responders)}", _meaning(verb))
        for name, verb in CONTROL_VERBS.verbs.items()
    ]
    return "\n".join(markdown_table(("verb", "from, to", "what"), rows)) + "\n"


def _roles(roles: frozenset[str]) -> str:
    return "node" if len(roles) == 4 else " or ".join(sorted(roles))


def _meaning(verb: Verb) -> str:
    request = _sentence(verb.request)
    reply = "" if verb.reply is Done else f" Reply: {_sentence(verb.reply)}"
    return request + reply


def _sentence(cls: type[Any]) -> str:
    """The docstring's first paragraph."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def renewed(page: str) -> str:
    """Return the page with an up-to-date table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{control_reference()}\n{END}{after}"


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
    if "--write" in sys.argv[1:]:
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")
    else:
        print(control_reference(), end="")
