"""Files without a name, which end with their process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey, is_insecure, job_key


def hold(text: str) -> str:
    """Keep a text in memory for this process's life; return its path.

    Only this user's processes can read it there. The descriptor stays open, so that the path never stands for
    another text. Linux only, as is Ray's use of several machines.
    """
    descriptor = os.memfd_create("shadowsync")
    os.fchmod(descriptor, 0o600)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


@contextmanager
def held_key() -> Iterator[str]:
    """Have a key for the job within a block.

    It is the one that was given, or a new one. With `--insecure` there is none. A new key ends with this
    process, so that nobody can join the job later. Gives the path of a new key, else "".
    """
    if job_key() is not None or is_insecure():
        yield ""
        return
    path = hold(JobKey.generate().text)
    os.environ[KEY_VARIABLE] = path
    try:
        yield path
    finally:
        del os.environ[KEY_VARIABLE]


def take_key(text: str) -> None:
    """Give a key to this process and those that it starts.

    Without `text` they are allowed to run without one.
    """
    os.environ.pop(KEY_VARIABLE, None)
    if text:
        os.environ[KEY_VARIABLE] = hold(text)
    else:
        os.environ[INSECURE_VARIABLE] = "1"
