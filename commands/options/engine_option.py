"""Options of jobs on the engine of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def exit_zero_option(command: F) -> F:
    """Add `--exit-zero-on`."""
    return click.option(
        "--exit-zero-on",
        metavar="CODE",
        multiple=True,
        type=int,
        help="Exit with 0 in place of this code: 5 for an engine that takes it for a failure.",
    )(command)


def engine_options(command: F) -> F:
    """Add `--on` and `--exit-zero-on`."""
    return click.option(
        "--on",
        metavar="ENGINE",
        help="Run the nodes on a cluster: ray, for that of RAY_ADDRESS or of this machine.",
    )(exit_zero_option(command))
