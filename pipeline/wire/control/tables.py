"""The request of a module for tables of a hub, and the reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..field_checks import Count
from .base import Reply, Request


@dataclass(frozen=True, slots=True)
class JoinTables(Request["JoinTablesReply"]):
    """A module asks to look up and train rows of tables.

    `wanted` has the settings that the module was given, by table and key, such as {"user": {"rows": 100}}.
    The first module decides; the tables of the others must be the same. None asks for what is there.

    `passes` is how many backward passes a module has made that comes back, None of a new one.
    """

    wanted: dict[str, Any] | None
    passes: Count | None = None


@dataclass(frozen=True, slots=True)
class JoinTablesReply(Reply):
    """The resolved job of the tables, and the split of their rows over nodes.

    `lost` is how many passes of a module that comes back are not in the rows.
    """

    job: dict[str, Any]
    plan: dict[str, Any]
    lost: Count = 0
