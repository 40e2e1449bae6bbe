"""What a job's algorithm allows of its other settings.

`Algorithm` declares what it needs and what it can take; what does not go with it is refused here, before
anything starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..pipeline.codecs.formats import make_codec
from ..pipeline.config.job import Job
from ..pipeline.errors import JobFileError
from ..pipeline.text.format import duration
from ..sync_algos.catalog.names import NEEDS_CENTER, require_known
from ..sync_algos.contract.options import AlgorithmError

if TYPE_CHECKING:
    from ..sync_algos.base import Algorithm


def with_sync_nodes(job: Job, *, may_import: bool) -> Job:
    """Return the job with `sync.nodes` at 0 if its algorithm keeps no center.

    What a built-in algorithm needs is known. Another one is imported here if `may_import`, which brings
    torch. A node that reads the job file by itself may not: coordinator and readers never import torch, and
    all nodes must find the same job. Then the file says it, and trainers and sync nodes check it
    (`launch.make_role`). Raises JobFileError for an algorithm that cannot be used.
    """
    name = job.sync.algorithm
    try:
        require_known(name)
        needs = NEEDS_CENTER.get(name)
        if needs is None and may_import:
            from ..sync_algos.catalog.registry import find_algorithm

            needs = find_algorithm(name).needs_center
    except AlgorithmError as error:
        raise JobFileError(str(error)) from error
    if needs is None and "nodes" not in job.sync.model_fields_set:
        raise JobFileError(
            f"not given; a node that is started by itself does not import {name}",
            where="sync.nodes",
            remedy="give the number of sync nodes, 0 for an algorithm without a center",
        )
    if needs is not False or job.sync.nodes == 0:
        return job
    return job.without_center()


def check_sync(job: Job) -> None:
    """Check algorithm, options, timeouts, codecs and number of sync nodes.

    Raises JobFileError for what cannot work.
    """
    from ..sync_algos.catalog.registry import make_algorithm

    try:
        algorithm = make_algorithm(job.sync.algorithm, job.sync.options)
    except AlgorithmError as error:
        raise JobFileError(str(error)) from error
    if algorithm.needs_center and job.sync_nodes == 0:
        raise JobFileError(
            f"sync.nodes: 0 given; {job.sync.algorithm} keeps a center and needs at least 1 sync node"
        )
    try:
        algorithm.check_trainers(job.trainer.count)
    except ValueError as error:
        raise JobFileError(f"sync.options.{error}") from error
    _check_merges(job, algorithm)
    _check_optimizer_state(job, algorithm)
    _check_peer_codecs(job, algorithm)


def _check_merges(job: Job, algorithm: Algorithm) -> None:
    if not algorithm.merges:
        return
    longest = algorithm.merge_terms(job.trainer.count).longest_wait_seconds
    if longest >= job.sync.timeout_seconds:
        raise JobFileError(
            f"{duration(longest)}, with sync.timeout_seconds = {job.sync.timeout_seconds:g}; a trainer would"
            " give up before its merge closes",
            where="sync.options.longest_wait_seconds",
            remedy="give less than sync.timeout_seconds",
        )


def _check_optimizer_state(job: Job, algorithm: Algorithm) -> None:
    if job.sync.optimizer_state == "own":
        return
    where, what = "sync.optimizer_state", '"synchronized" given'
    if job.trainer.optimizer not in algorithm.optimizer_states:
        able = " or ".join(algorithm.optimizer_states)
        raise JobFileError(
            f"{what}; {job.sync.algorithm} can synchronize the state of {able or 'no optimizer'}, and "
            f'trainer.optimizer is "{job.trainer.optimizer}"',
            where=where,
            remedy="leave it out"
            + (f', or set trainer.optimizer = "{able.partition(" ")[0]}"' if able else ""),
        )
    codecs = job.codecs
    directions = ("center_up", "center_down") if algorithm.needs_center else ("peers_up", "peers_down")
    for direction in directions:
        name = getattr(codecs, direction)
        if make_codec(name).lossy:
            raise JobFileError(
                f'{what} with codecs.{direction} = "{name}"; a small sum of squares that a lossy codec '
                "rounds down makes steps too large",
                where=where,
                remedy=f'set codecs.{direction} = "float32", or leave sync.optimizer_state out',
            )


def _check_peer_codecs(job: Job, algorithm: Algorithm) -> None:
    codecs = job.codecs.peers()
    for direction, codec in (("up", codecs.up), ("down", codecs.down)):
        if codec.lossy and algorithm.changes_groups:
            raise JobFileError(
                f'codecs.peers_{direction}: "{codec.name}" given; the groups of {job.sync.algorithm} change '
                f'from round to round and have no common reference, so use "float32" or "sparse"'
            )
