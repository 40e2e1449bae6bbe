"""`shadowsync key`: the key of a job, and the options that give it to a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def key() -> None:
    """Make the key of a job."""


@key.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--reuse", is_flag=True, help="Keep the key that is there.")
def new(file: Path, reuse: bool) -> None:
    """Write a new key to FILE, which only you can read.

    Give the file to every machine of the job, and its path to every command: --key, or SHADOWSYNC_KEY_FILE.
    """
    from ..pipeline.wire.job_key import JobKey

    if reuse and file.exists():
        JobKey.read(file)
        click.echo(f"kept {file}")
        return
    JobKey.generate().write(file)
    click.echo(f"wrote {file}; give it to every machine of the job, and to nobody else")


def _set_key(_context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    from ..pipeline.wire.job_key import KEY_VARIABLE, job_key

    # All that this process starts has it, too.
    os.environ[KEY_VARIABLE] = str(path.absolute())
    job_key()


def _set_insecure(_context: click.Context, _option: click.Parameter, given: bool) -> None:
    if given:
        from ..pipeline.wire.job_key import INSECURE_VARIABLE

        os.environ[INSECURE_VARIABLE] = "1"


def key_option(command: F) -> F:
    """Add `--key`; the command itself is given nothing."""
    return click.option(
        "--key",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=_set_key,
        expose_value=False,
        help="The job's key: connections over TCP are encrypted, and only who has it can connect. "
        "[default: $SHADOWSYNC_KEY_FILE]",
    )(command)


def security_options(command: F) -> F:
    """Add `--key` and `--insecure`; the command itself is given neither."""
    command = click.option(
        "--insecure",
        is_flag=True,
        callback=_set_insecure,
        expose_value=False,
        help="Listen off loopback without a key: whoever reaches the ports can read and change the job.",
    )(command)
    return key_option(command)
