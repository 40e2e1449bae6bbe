"""Options of the number of trainers, for commands that run a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...nodes.clients.count_law import CountRules

F = TypeVar("F", bound=Callable[..., Any])


def autoscale_options(command: F) -> F:
    """Add `--autoscale` and `--target`."""
    command = click.option(
        "--target", metavar="RATE", help="With --autoscale: examples/s that suffice, such as 100k/s."
    )(command)
    return click.option(
        "--autoscale",
        metavar="MIN:MAX",
        help="Keep the number of trainers within these at what pays, by the measured speed.",
    )(command)


def autoscale_rules(autoscale: str | None, target: str | None) -> CountRules | None:
    """Return the rules that the options give; None without --autoscale.

    Raises JobFileError for options that cannot be used.
    """
    from ...nodes.clients.autoscale import rules_of
    from ...pipeline.errors import JobFileError

    if autoscale is not None:
        return rules_of(autoscale, target)
    if target is not None:
        raise JobFileError("--target is for --autoscale", remedy="add --autoscale 1:8")
    return None
