"""Running one role in this process, from its settings to its exit code."""

from __future__ import annotations

import sys

from ..pipeline.config.job import Job
from ..pipeline.errors import ExitCode, JobFileError, ShadowSyncError
from ..pipeline.jobfile.named_code import code_of, note_named_code
from .runtime.process import importing_torch, log_to_stderr
from .runtime.role import Role
from .runtime.settings import NodeSettings
from .sync_rules import check_sync

ROLES = ("reader", "trainer", "embedding", "sync")


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
