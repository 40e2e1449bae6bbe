"""Options of a slow network, shared by `run`, `profile` and `compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def network_options(command: F) -> F:
    """Add the options of a slow network, each a key of [network]."""
    for option in (
        click.option(
            "--delay-links",
            type=click.Choice(["sync", "all"]),
            help="Which links are slow: those of synchronization (the default), or all.",
        ),
        click.option(
            "--bandwidth",
            metavar="RATE",
            help="Emulate a slow network of this bandwidth, for example 100mbit. The limit is per listening"
            " node and direction, over all its connections.",
        ),
        click.option(
            "--delay",
            metavar="TIME",
            help="Emulate a slow network with this delay, for example 50ms. It is one way, so a request and"
            " its reply take twice as long. 0ms emulates without a delay, to compare with.",
        ),
    ):
        command = option(command)
    return command


def network_overrides(given: Mapping[str, str | None]) -> list[str]:
    """Turn the network options into quoted overrides of the job file."""
    import json

    return [f"network.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
