"""The check of a job before its run, in the test's own process: none that imports torch is started."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Sequence

import pytest
from shadowsync.nodes.runtime.process import JOB_CHECK
from shadowsync.nodes.supervisor import job_check
from shadowsync.nodes.supervisor.starter import StartedProcess


class _Checked:
    """A check that is done, as the process that it would have been."""

    pid = 0

    def __init__(self, code: int, text: str) -> None:
        self._code = code
        self.output = asyncio.StreamReader()
        self.output.feed_data(text.encode())
        self.output.feed_eof()

    def signal(self, number: int) -> None:
        """Do nothing: it has ended."""

    def close(self) -> None:
        """Do nothing: it has no pipes."""

    async def wait(self) -> int:
        return self._code


class CheckStarter:
    """A starter that starts nothing, and runs no more than the check of a job."""

    async def start(self, arguments: Sequence[str], *, torch: bool) -> StartedProcess:
        """Do what `python ARGUMENTS` does; fails for a process of another kind."""
        option, module, *others = arguments
        assert (option, module, torch) == ("-m", JOB_CHECK, True), "a job that is refused starts nothing else"
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as written:
            patch.setattr(sys, "argv", [module, *others])
            code = job_check.main()
        return _Checked(code, written.getvalue())

    def close(self) -> None:
        """Do nothing: it has started nothing."""
