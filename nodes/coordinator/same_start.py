"""Whether all nodes of a job start from the same checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

from ...pipeline.errors import ClusterError


def require_same_start(digests: Iterable[str], checkpoint: str) -> None:
    """Raises ClusterError if nodes read different checkpoints: of a run that still trains, another one may
    have come between two nodes' reading. `digests` are `CheckpointManifest.digest` as each has it, or "" for
    a node that read none."""
    if len({digest for digest in digests if digest}) > 1:
        raise ClusterError(
            "the nodes read different checkpoints",
            where=checkpoint,
            remedy="wait for the run that writes them to end, or give a copy of its folder",
        )
