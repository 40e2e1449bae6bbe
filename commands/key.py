"""`shadowsync key`: a job's key, and the options that give it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def key() -> None:
    """Create a job's key, or print the token of its page and metrics."""


@key.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--reuse", is_flag=True, help="Keep the key that is there.")
def new(file: Path, reuse: bool) -> None:
    """Write a new key to FILE, which only you can read.

    Give the file to every machine of the job, and its path to every command: --key, or SHADOWSYNC_KEY_FILE.
    """
    from ..pipeline.wire.keys.job_key import JobKey

    if reuse and file.exists():
        JobKey.read(file)
        click.echo(f"kept {file}")
        return
    JobKey.generate().write(file)
    click.echo(f"wrote {file}; give it to every machine of the job, and to nobody else")


@key.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
def token(file: Path | None) -> None:
    """Print the token for a job's web page and metrics.

    They ask for it at any address other than loopback. FILE is the job's key, $SHADOWSYNC_KEY_FILE by
    default. With the token one can look at the job and do no more.
    """
    from ..pipeline.errors import JobFileError
    from ..pipeline.wire.keys.job_key import HOW_TO_MAKE, KEY_VARIABLE, JobKey, job_key

    secret = job_key() if file is None else JobKey.read(file)
    if secret is None:
        raise JobFileError("no key was given", remedy=f"name its FILE or set {KEY_VARIABLE}; {HOW_TO_MAKE}")
    click.echo(secret.http_token)


def _set_http_token(_context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    from ..pipeline.wire.keys.http_token import TOKEN_VARIABLE, given_token

    os.environ[TOKEN_VARIABLE] = str(path.absolute())
    given_token()


def _set_key(_context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    from ..pipeline.wire.keys.job_key import KEY_VARIABLE, job_key

    # In the environment, so that child processes have it, too.
    os.environ[KEY_VARIABLE] = str(path.absolute())
    job_key()


def _set_insecure(_context: click.Context, _option: click.Parameter, insecure: bool) -> None:
    if insecure:
        from ..pipeline.wire.keys.job_key import INSECURE_VARIABLE

        os.environ[INSECURE_VARIABLE] = "1"


def key_option(command: F) -> F:
    """Add `--key`, which sets the environment; the command gets no argument."""
    return click.option(
        "--key",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=_set_key,
        expose_value=False,
        help="The job's key: connections over TCP are encrypted, and only nodes that have it can connect. "
        "[default: $SHADOWSYNC_KEY_FILE]",
    )(command)


def security_options(command: F) -> F:
    """Add `--key`, `--http-token` and `--insecure`, which set the environment only."""
    command = click.option(
        "--insecure",
        is_flag=True,
        callback=_set_insecure,
        expose_value=False,
        help="Listen off loopback without a key. Anyone who can reach the ports can read and change the job.",
    )(command)
    command = click.option(
        "--http-token",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=_set_http_token,
        expose_value=False,
        help="File with a token for the page and the metrics, in place of the one derived from the key. "
        "[default: $SHADOWSYNC_HTTP_TOKEN_FILE]",
    )(command)
    return key_option(command)
