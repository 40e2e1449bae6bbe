"""The argument of a run, and the options of its checkpoint and its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# No click.Path: it would make "s3:/" of "s3://".
run_argument = click.argument("run", metavar="RUN")
"""A run's folder, or the URL of its storage."""

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Execute the Python code that the run names, also if you did not train it on this machine.",
)


def checkpoint_option(flag: str, default: Literal["auto", "last"] = "auto") -> Callable[[F], F]:
    """Make the option `flag`, which the command gets as `which`.

    Its values are "last" and "best", and "auto" if that is the default. "auto" is the best checkpoint by
    validation if there is one, otherwise the last.
    """
    return click.option(
        flag,
        "which",
        type=click.Choice(["auto", "last", "best"] if default == "auto" else ["last", "best"]),
        default=default,
        show_default=True,
        help="The last checkpoint, or the best by validation"
        + ('; "auto": the best, if there is one.' if default == "auto" else "."),
    )
