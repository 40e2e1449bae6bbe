"""The option that chooses one of a run's checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def checkpoint_option(flag: str) -> Callable[[F], F]:
    """Make the option `flag`; the command gets "last" or "best" as `which`."""
    return click.option(
        flag,
        "which",
        type=click.Choice(["last", "best"]),
        default="last",
        show_default=True,
        help="The last checkpoint, or the best by validation.",
    )
