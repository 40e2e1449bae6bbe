"""The limit of files that a process may have open: raised, and its error known."""

from __future__ import annotations

import errno
import os
import resource

import pytest
import zmq
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.open_files import MOST_NEEDED, raise_limit, too_many_files


def test_the_limit_is_raised_to_what_the_system_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    for limits in ((64, 4096), (64, 1 << 20), (64, resource.RLIM_INFINITY), (4096, 4096), (1 << 20, 1 << 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=limits: found)
        raise_limit()
    assert given == [(4096, 4096), (MOST_NEEDED, 1 << 20), (MOST_NEEDED, resource.RLIM_INFINITY)]


def test_the_error_is_known_in_every_form() -> None:
    caused = ClusterError("the fork server has ended")
    caused.__cause__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    known = [
        OSError(errno.EMFILE, "text"),
        OSError(errno.ENFILE, "text"),
        zmq.ZMQError(errno.EMFILE),
        ImportError("libx.so: cannot open shared object file: Too many open files"),
        caused,
    ]
    assert all(too_many_files(error) is not None for error in known)
    others = [OSError(errno.ENOENT, "no file"), ClusterError("too many nodes"), KeyError("refused")]
    assert not any(too_many_files(error) is not None for error in others)
