"""`shadowsync.attach`: any torch loop synchronizes in the background."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import torch
from torch import nn

from ..nodes.runtime.settings import NodeSettings
from ..pipeline.errors import ClusterError
from ..pipeline.text.format import duration
from ..pipeline.wire.endpoints import AUTO, host_of, is_loopback_host
from .checks import check_choice, check_model, plain, plain_mapping
from .hub.members import LOOP
from .job import loop_job
from .joining import await_begun, begin_or_end, find_hub, hub_address
from .loop import END_SECONDS, AttachedLoop
from .node_thread import NodeThread
from .parameters import LoopParameters
from .reconnect import HubReconnect
from .role import LoopRole
from .torchrun import ENV


def attach(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    join: str | None = None,
    key: str | PathLike[str] | None = None,
    algorithm: str | None = None,
    options: Mapping[str, Any] | None = None,
    mode: Literal["shadow", "fixed"] | None = None,
    every: int | None = None,
    gap: int | None = None,
    duty: float | None = None,
    codecs: Mapping[str, str] | None = None,
    start: Literal["cluster", "mine"] = "cluster",
    wait_for: int = 1,
    on_lost: Literal["go_on", "raise"] = "go_on",
    hub_wait_seconds: float = 600.0,
    bind: str = "",
    advertise: str = "",
    timeout_seconds: float = 60.0,
) -> AttachedLoop:
    """Synchronize the module's trainable parameters with other loops, in the background.

    Use the result in a `with` block around the unchanged loop. A shadow thread synchronizes the trainable
    parameters where they are: module and storages stay as they were. On leaving the block the closing round
    is made. Call it on the loop's thread, once everything that will be trained is trainable.

    Args:
        module: any torch module; what is frozen stays as it is, and is never sent.
        optimizer: all optimizers that step the module. Steps over parameters of the first one count, also of
            optimizers that wrap it or that are made later.
        join: a hub's `tcp://HOST:PORT`; "env://" for processes that torchrun started; by default
            $SHADOWSYNC_JOIN, else "env://".
        key: the job's key file; by default $SHADOWSYNC_KEY_FILE.
        algorithm: `sync.algorithm` of a job file. The hub has it and the six below; those that are given
            here must be the same. With "env://" they are the hub's.
        options: `sync.options`.
        mode: `sync.mode`.
        every: `sync.every`.
        gap: `sync.gap`.
        duty: `sync.duty`.
        codecs: `[codecs]` of a job file.
        start: "cluster": a loop that joins late takes the others' weights; "mine": it keeps its own.
        wait_for: return only when so many loops train.
        on_lost: without the hub the loop goes on alone, which is logged, until a hub is at that address
            again; or it raises ClusterError.
        hub_wait_seconds: how long a sampler waits for a hub that is gone.
        bind: host to listen on for other loops; by default chosen by the hub's address.
        advertise: host that they connect to; by default likewise.
        timeout_seconds: how long to wait for the hub, and for `wait_for`.

    Raises:
        AttachError: the model, optimizer or a setting cannot be attached; nothing was changed.
        ClusterError: there is no such hub, or the other loops have another model; nothing was changed.
    """
    optimizers = check_model(module, optimizer)
    check_choice(start, ("cluster", "mine"), "start")
    check_choice(on_lost, ("go_on", "raise"), "on_lost")
    of_sync = {
        "algorithm": algorithm,
        "options": None if options is None else plain_mapping(options, "options"),
        "mode": mode,
        "every": every,
        "gap": gap,
        "duty": duty,
    }
    sync = {f"sync.{name}": plain(value, name) for name, value in of_sync.items() if value is not None}
    sync |= {f"codecs.{name}": value for name, value in plain_mapping(codecs or {}, "codecs").items()}
    address = hub_address(join, key)
    parameters = LoopParameters(module)
    with contextlib.ExitStack() as undoing:
        parameters.claim()
        undoing.callback(parameters.release)
        slot = find_hub(address, LOOP, sync, timeout_seconds)
        undoing.callback(slot.withdraw)
        settings = _node_settings(slot.endpoint, bind, advertise, timeout_seconds)
        thread = NodeThread(lambda: LoopRole(parameters, sync, start), settings, "attached loop")
        role = thread.start()
        undoing.callback(_give_up, thread, timeout_seconds)
        await_begun(thread, role.begun)
        _await_others(thread, role, wait_for, timeout_seconds)
        comes_back = address != ENV and on_lost == "go_on"
        loop = AttachedLoop(
            parameters,
            optimizers,
            thread,
            role,
            slot,
            raise_if_lost=on_lost == "raise",
            seek=_seek_with(parameters, sync, settings) if comes_back else None,
            hub_wait_seconds=hub_wait_seconds,
        )
        undoing.pop_all()
    return loop


def _give_up(thread: NodeThread[LoopRole], timeout_seconds: float) -> None:
    thread.fail(ClusterError("the loop was not attached"))
    thread.join(timeout_seconds)


def _node_settings(endpoint: str, bind: str, advertise: str, timeout_seconds: float) -> NodeSettings:
    """Return the settings of the loop's node; the hub says later what it synchronizes."""
    if not bind:
        near = is_loopback_host(host_of(endpoint))
        bind, advertise = ("127.0.0.1", advertise) if near else ("0.0.0.0", advertise or AUTO)
    job = loop_job({"run.start_timeout_seconds": timeout_seconds})
    return NodeSettings(job, join=endpoint, bind=bind, advertise=advertise)


def _seek_with(
    parameters: LoopParameters, sync: Mapping[str, Any], settings: NodeSettings
) -> Callable[[NodeThread[LoopRole], LoopRole], HubReconnect]:
    """Return what looks for a hub that comes back."""
    numbers = itertools.count(1)

    def join(thread: NodeThread[LoopRole], before: LoopRole) -> tuple[NodeThread[LoopRole], LoopRole]:
        if not thread.join(END_SECONDS) or not before.is_quiet:
            raise ClusterError("what synchronized the loop before has not ended")
        again = replace(settings, token=f"{settings.token}.{next(numbers)}")
        made = NodeThread(lambda: LoopRole(parameters, sync, "mine", before), again, "attached loop")
        role = made.start()
        begin_or_end(made, role.begun, "the loop did not come back", END_SECONDS)
        return made, role

    return lambda thread, before: HubReconnect(settings.join, lambda: join(thread, before))


def _await_others(
    thread: NodeThread[LoopRole], role: LoopRole, wait_for: int, timeout_seconds: float
) -> None:
    """Return when enough loops train."""
    if wait_for < 2:
        return
    try:
        thread.submit(lambda: role.await_loops(wait_for)).result(timeout_seconds)
    except (TimeoutError, concurrent.futures.CancelledError) as error:
        raise ClusterError(
            f"fewer than {wait_for} loops began within {duration(timeout_seconds)}",
            where="wait_for",
            remedy="start the others, or wait for fewer",
        ) from error
