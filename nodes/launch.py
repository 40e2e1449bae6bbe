"""Running one role in this process, from its settings to its exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..pipeline.codecs.choices import AUTO, CodecChoices
from ..pipeline.codecs.formats import make_codec
from ..pipeline.config.job import Job
from ..pipeline.errors import ExitCode, JobFileError, ShadowSyncError
from ..pipeline.jobfile.named_code import code_of, note_named_code
from ..sync_algos.catalog.names import NEEDS_CENTER, require_known
from ..sync_algos.contract.options import AlgorithmError
from .runtime.process import importing_torch, log_to_stderr
from .runtime.role import Role
from .runtime.settings import NodeSettings

if TYPE_CHECKING:
    from ..sync_algos.base import Algorithm

ROLES = ("reader", "trainer", "embedding", "sync")


def check_sync(job: Job) -> None:
    """Check algorithm, options, codecs and number of sync nodes.

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
    _check_optimizer_state(job, algorithm)
    _check_center_codecs(job, algorithm)
    peers = job.codecs.peers()
    for direction, codec in (("up", peers.up), ("down", peers.down)):
        if codec.lossy and algorithm.changes_groups:
            raise JobFileError(
                f'codecs.peers_{direction}: "{codec.name}" given; the groups of {job.sync.algorithm} change '
                f'from round to round and have no common reference, so use "float32" or "sparse"'
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
        if name == AUTO or make_codec(name).lossy:
            raise JobFileError(
                f'{what} with codecs.{direction} = "{name}"; a small sum of squares that a lossy codec '
                "rounds down makes steps too large",
                where=where,
                remedy=f'set codecs.{direction} = "float32", or leave sync.optimizer_state out',
            )


def _check_center_codecs(job: Job, algorithm: Algorithm) -> None:
    codecs = job.codecs.center()
    if isinstance(codecs, CodecChoices) and not algorithm.needs_center:
        raise JobFileError(
            f'codecs.center_up: "{AUTO}" given; {job.sync.algorithm} keeps no center, and links between '
            f"trainers use codecs.peers_up and codecs.peers_down; remove it"
        )
    for direction, name in (("up", job.codecs.center_up), ("down", job.codecs.center_down)):
        lossy = isinstance(codecs, CodecChoices) or make_codec(name).lossy
        if lossy and algorithm.counts_once:
            raise JobFileError(
                f'codecs.center_{direction}: "{name}" given; {job.sync.algorithm} sums deltas, and '
                f'values that a codec rounds away would never count; use "float32" or "sparse"'
            )


def make_role(name: str, job: Job) -> Role:
    """Make the role's object, with only the imports that it needs.

    Call it in a running loop.
    """
    role = _make_role(name, job)
    role.renew = lambda: make_role(name, job)
    return role


def _make_role(name: str, job: Job) -> Role:
    if name == "reader":
        from ..pipeline.data.files.kafka_client import require_topics_usable
        from .reader.role import ReaderRole

        require_topics_usable(job.data)
        return ReaderRole(job)
    with importing_torch():
        import torch  # noqa: F401

    if name == "embedding":
        from .embedding.role import EmbeddingRole

        return EmbeddingRole(job)
    from ..sync_algos.catalog.registry import make_algorithm

    check_sync(job)
    algorithm = make_algorithm(job.sync.algorithm, job.sync.options)
    if job.sync_nodes and not algorithm.needs_center:
        raise JobFileError(
            f"{job.sync_nodes} given; {job.sync.algorithm} keeps no center",
            where="sync.nodes",
            remedy="give 0",
        )
    if name == "sync":
        from .sync.role import SyncRole

        return SyncRole(job, algorithm)
    from .replica.replica import find_device
    from .trainer.role import TrainerRole

    find_device(job.trainer.device)
    return TrainerRole(job, algorithm)


def run_node(name: str, settings: NodeSettings) -> tuple[ExitCode, str]:
    """Run one node other than the coordinator.

    Returns its exit code, and the reason if it isn't 0.
    """
    from .runtime.main_loop import run_interruptible
    from .runtime.node import Node

    async def main() -> tuple[ExitCode, str]:
        node = Node(make_role(name, settings.job), settings)
        code = await node.run()
        return code, node.exit_text

    log_to_stderr()
    note_named_code(code_of(settings.job).values())
    try:
        return run_interruptible(main)
    except ShadowSyncError as error:
        return error.exit_code, str(error)


def print_exit(code: ExitCode, text: str, name: str) -> None:
    """Print one line on standard error for an exit code that isn't 0."""
    if text and code != ExitCode.OK:
        print(f"shadowsync {name}: {text}", file=sys.stderr, flush=True)


def with_sync_nodes(job: Job, *, may_import: bool) -> Job:
    """Return the job with `sync.nodes` at 0 if its algorithm keeps no center.

    What a built-in algorithm needs is known. Another one is imported here if `may_import`, which brings
    torch. A node that reads the job file by itself may not: coordinator and readers never import torch, and
    all nodes must find the same job. Then the file says it, and trainers and sync nodes check it
    (`make_role`). Raises JobFileError for an algorithm that cannot be used.
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
    return job.model_copy(update={"sync": job.sync.model_copy(update={"nodes": 0})})
