"""The named errors, and the exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The meaning of a command's exit code.

    docs/guarantees.md has the same table.
    """

    OK = 0
    INTERNAL = 1
    USAGE = 2
    DATA = 3
    CLUSTER = 4
    FINISHED_WITH_DEATHS = 5
    STOPPED_BY_DEATH = 6
    LEDGER = 7
    RESOURCES = 8
    INTERRUPTED = 130


class ShadowSyncError(Exception):
    """Base of all errors that a user can cause and fix.

    `str()` is one line: where, what happened, and how to fix it.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        text = f"{where}: {what}" if where else what
        super().__init__(" ".join((f"{text}; {remedy}" if remedy else text).split()))


class JobFileError(ShadowSyncError):
    """A key or value of a job file, or an option, cannot be used."""

    exit_code = ExitCode.USAGE


class DataError(ShadowSyncError):
    """An input file cannot be used.

    For example it is missing, empty, of another shape, or has too many malformed rows.
    """

    exit_code = ExitCode.DATA


class ClusterError(ShadowSyncError):
    """Nodes cannot form the job.

    For example a port is in use, a node has another protocol version or job, or the cluster is full.
    """

    exit_code = ExitCode.CLUSTER


class LostNodeError(ClusterError):
    """A node died, and what it had is needed."""

    exit_code = ExitCode.STOPPED_BY_DEATH


class ResourceError(ShadowSyncError):
    """Something does not fit: tables into memory, a checkpoint onto the disk."""

    exit_code = ExitCode.RESOURCES


class ProtocolError(ShadowSyncError):
    """A message cannot be understood.

    The receiver counts the message, logs it with its sender, and answers with an error.
    """

    exit_code = ExitCode.CLUSTER


class CheckpointError(ShadowSyncError):
    """A checkpoint is absent, truncated, altered, or of another model."""

    exit_code = ExitCode.DATA


def describe(error: BaseException) -> str:
    """Return an error as one line: its text, with its type unless ours."""
    return str(error) if isinstance(error, ShadowSyncError) else f"{type(error).__name__}: {error}"
