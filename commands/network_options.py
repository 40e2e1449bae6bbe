"""Options of a slow network, shared by `run` and `compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def network_options(command: F) -> F:
    """Add the options of a slow network; each is a key of [network]."""
    for option in (
        click.option(
            "--emulation",
            type=click.Choice(["auto", "relay"]),
            help="How to emulate it: by a relay process, the only way there is.",
        ),
        click.option(
            "--delay-links",
            type=click.Choice(["sync", "all"]),
            help="Which links are slow: those of synchronization (the default), or all.",
        ),
        click.option(
            "--bandwidth",
            metavar="RATE",
            help="Emulate a slow network, for example 100mbit: of each node that listens on such a link, in"
            " each direction, all its connections together.",
        ),
        click.option(
            "--delay",
            metavar="TIME",
            help="Emulate a slow network, for example 50ms: one way, so a request and its reply take twice"
            " as long. 0ms puts the emulation in place without a delay, to compare with.",
        ),
    ):
        command = option(command)
    return command


def network_overrides(given: Mapping[str, str | None]) -> list[str]:
    """Turn the network options into overrides of the job file, quoted as text."""
    import json

    return [f"network.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
