"""What a command's own parser makes of arguments."""

from __future__ import annotations

from typing import Any

from shadowsync.cli import main


def parsed(role: str, *arguments: str) -> dict[str, Any]:
    """The values by name, without running the command; raises click.UsageError for what it does not take."""
    # Below the group's context, since a command remembers the help option of its first one.
    group = main.make_context("shadowsync", [role], resilient_parsing=True)
    return main.commands[role].make_context(role, list(arguments), parent=group).params
