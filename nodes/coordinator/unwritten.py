"""Why there is no checkpoint: the reason of a node that could not write its part, where it gave one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...pipeline.errors import ClusterError, ShadowSyncError


def no_checkpoint(names: Sequence[str], part: str, refusals: Mapping[str, ShadowSyncError]) -> ClusterError:
    """The error for nodes that did not write `part`.

    It has the words and the exit code of the first of them that said why: a full disk is told as one.
    """
    for name in names:
        if (why := refusals.get(name)) is not None:
            others = (
                f"; nor did {', '.join(other for other in names if other != name)}" if len(names) > 1 else ""
            )
            error = ClusterError(f"no checkpoint: {name} could not write {part}: {why}{others}")
            error.exit_code = why.exit_code
            return error
    return ClusterError(f"no checkpoint: {', '.join(names)} did not write {part}")
