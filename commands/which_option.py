"""The option of all commands that read a run's model: which of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def which_option(flag: str) -> Callable[[F], F]:
    """The option called `flag`; the command gets it as `which`, "last" or "best"."""
    return click.option(
        flag,
        "which",
        type=click.Choice(["last", "best"]),
        default="last",
        show_default=True,
        help="Its last checkpoint, or the best by validation.",
    )
