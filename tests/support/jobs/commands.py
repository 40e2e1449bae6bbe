"""Commands of the command line that run in the test's process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from shadowsync.cli import main


def said(*words: str | Path, code: int = 0) -> str:
    """What a command says, once it has ended with this code."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output
