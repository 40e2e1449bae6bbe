"""Whether a volume has room for a checkpoint, before anybody writes one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from ...pipeline.errors import ResourceError
from .membership import Member

# For the ledger, the logs and the report, which may be on the same volume: they must not fail because a
# checkpoint is tried in vain.
RESERVE_BYTES = 64 << 20
_FLOAT_BYTES = 4
# Vectors as long as the dense model that are in no node's own part: the model that comes out, and of the
# algorithm's state two at most, or a center.
_DENSE_VECTORS = 3


def estimated_bytes(members: Iterable[Member], dense_elements: int) -> int:
    """What a checkpoint takes: the parts of the nodes as each of them said, and the dense model."""
    parts = sum(int(member.facts.get("checkpoint_bytes", 0)) for member in members)
    return parts + _DENSE_VECTORS * _FLOAT_BYTES * dense_elements


def require_room(folder: Path, needed_bytes: int) -> None:
    """Raises ResourceError if a checkpoint of so many bytes would leave less than RESERVE_BYTES free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + RESERVE_BYTES:
        raise ResourceError(
            f"{free:,} bytes are free, and a checkpoint takes about {needed_bytes:,}, with {RESERVE_BYTES:,}"
            " to be left",
            where=str(folder),
            remedy="free space there, or set run.directory to another place",
        )
