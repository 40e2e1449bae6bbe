"""The Ray cluster of this driver: connecting to it, and reserving room on it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from ...pipeline.errors import ClusterError
from ...pipeline.open_files import require_files
from ...pipeline.text.format import duration
from ...pipeline.wire.endpoints import host_of
from .bundles import Bundle, shortage
from .submitting import HOW_TO_SUBMIT, given_address

ANSWER_SECONDS = 5.0
# Between two checks of a placement group; Ctrl-C takes effect between them.
LOOK_SECONDS = 0.5
# What a driver needs: half once it is connected, half for its actors. Ray aborts without them.
FILES = 48


@contextmanager
def connected() -> Iterator[None]:
    """Be a driver of the cluster within a block.

    Call it on the main thread before the handlers of signals are set, because Ray sets its own. Raises
    ClusterError if there is no cluster, ResourceError if this process may open too few files.
    """
    require_files(FILES)
    address = given_address()
    _require_answer(address)
    try:
        # Ray's own log lines, and those of the actors, would be in the midst of the job's progress.
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        what = str(error).strip().partition("\n")[0]
        raise ClusterError(
            f"there is no Ray cluster to connect to ({what})",
            where=address or "--on ray",
            remedy=f"start one with `ray start --head`, or submit the job: {HOW_TO_SUBMIT}",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def own_address() -> str:
    """Return the driver's address, as the other machines reach it."""
    return str(ray.util.get_node_ip_address())


async def reserve(
    bundles: Sequence[Sequence[Bundle]], timeout_seconds: float, remedy: str
) -> list[PlacementGroup]:
    """Return a placement group of each list of bundles, spread over the machines.

    Raises ClusterError, which says what is missing, if there is no room for all within `timeout_seconds`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    groups = [
        placement_group([bundle.resources for bundle in of_group], strategy="SPREAD") for of_group in bundles
    ]
    try:
        for group in groups:
            while not await asyncio.to_thread(group.wait, LOOK_SECONDS):
                if loop.time() > deadline:
                    what = f"{_shortage(bundles, groups)}, after {duration(timeout_seconds)}"
                    raise ClusterError(what, where="--on ray", remedy=remedy)
    except BaseException:
        for group in groups:
            release(group)
        raise
    return groups


def release(group: PlacementGroup) -> None:
    """Give the room of a placement group back, and end the actors in it."""
    remove_placement_group(group)


def _shortage(bundles: Sequence[Sequence[Bundle]], groups: Sequence[PlacementGroup]) -> str:
    machines = sum(bool(node["Alive"]) for node in ray.nodes())
    free = dict(ray.available_resources())
    # What one of these groups has is there for the job, although Ray counts it as taken.
    pairs = zip(bundles, groups, strict=True)
    held = [of_group for of_group, group in pairs if placement_group_table(group).get("state") == "CREATED"]
    for bundle in chain.from_iterable(held):
        for name, amount in bundle.resources.items():
            free[name] = free.get(name, 0.0) + amount
    return shortage([*chain.from_iterable(bundles)], machines, ray.cluster_resources(), free)


def _require_answer(address: str) -> None:
    """Raise ClusterError at once if nobody listens there.

    Ray would try for long.
    """
    host, port = host_of(address), address.rpartition(":")[2]
    if not port.isdecimal() or not host:
        return
    try:
        with closing(socket.create_connection((host, int(port)), ANSWER_SECONDS)):
            return
    except OSError as error:
        raise ClusterError(
            f"there is no Ray cluster to connect to ({error.strerror or error})",
            where=f"{os.environ.get('RAY_ADDRESS', '')} (RAY_ADDRESS)",
            remedy=f"start one with `ray start --head`, or submit the job: {HOW_TO_SUBMIT}",
        ) from error
