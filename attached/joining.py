"""What every part of a loop does to join its hub."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from ..pipeline.errors import ClusterError, ExitCode
from ..pipeline.wire.keys.job_key import KEY_VARIABLE, job_key
from .errors import AttachError
from .node_thread import NodeThread, await_first
from .torchrun import ENV, HUBS, HubSlot

JOIN_VARIABLE: Final = "SHADOWSYNC_JOIN"


def hub_address(join: str | None, key: str | PathLike[str] | None) -> str:
    """Return the address to join, and use the key of the job.

    Raises AttachError for an address that cannot be.
    """
    if key is not None:
        os.environ[KEY_VARIABLE] = str(Path(key).absolute())
        job_key()
    address = join or os.environ.get(JOIN_VARIABLE) or ENV
    if address != ENV and not address.startswith("tcp://"):
        raise AttachError(f"{address!r} given", where="join", remedy='give tcp://HOST:PORT or "env://"')
    return address


def find_hub(address: str, part: str, sync: Mapping[str, Any], timeout_seconds: float) -> HubSlot:
    """Return where a part joins; with "env://" rank 0 hosts the hub.

    `part` is LOOP or CLIENT. `sync` are settings of the loops of that hub, by key.
    """
    if address == ENV:
        return HUBS.join(part, sync, timeout_seconds)
    return HubSlot(address)


def begin_or_end(
    thread: NodeThread[Any], begun: concurrent.futures.Future[None], otherwise: str, end_seconds: float
) -> None:
    """Return when the hub lets the node begin, else end the node.

    Raises what prevents it. `otherwise` is then why the node ended.
    """
    try:
        await_begun(thread, begun)
    except BaseException:
        thread.fail(ClusterError(otherwise))
        thread.join(end_seconds)
        raise


def await_begun(thread: NodeThread[Any], begun: concurrent.futures.Future[None]) -> None:
    """Return when the hub lets the node begin; raises what prevents it."""
    await_first(begun, thread.ended)
    if begun.done():
        return
    code, text = thread.ended.result()
    error = AttachError if code == ExitCode.USAGE else ClusterError
    raise error(text or "the hub ended before the loop began")
