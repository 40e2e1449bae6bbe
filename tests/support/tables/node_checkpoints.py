"""Checkpoints of an embedding node that serves, and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.checkpoint.manifest import abandon, begin, commit, open_checkpoint
from shadowsync.pipeline.embedding.storage.saved_changes import parse_role
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.tests.support.tables.embedding_node import ENOUGH_SECONDS, ROWS, Node
from shadowsync.tests.support.tables.saved_shards import manifest_of_files


def take(node: Node, run: Path, *, committed: bool = True) -> list[FileEntry]:
    """A running checkpoint of this node alone; gives its files."""
    partial = begin(run)
    reply = node.checkpoint(partial, running=True).result(ENOUGH_SECONDS)
    if committed:
        commit(partial, manifest_of_files(list(reply.files)))
    else:
        abandon(partial)
    return list(reply.files)


def numbers(files: list[FileEntry]) -> list[int]:
    """The numbers of the changes in a checkpoint, 0 for all rows."""
    found = [parse_role(entry.role) for entry in files]
    return [part[1] for part in found if part is not None]


def arrays_of(node: Node) -> dict[str, np.ndarray[Any, Any]]:
    ((_, arrays),) = node.role.service.store.pieces()
    return {name: np.array(values) for name, values in arrays.items()}


def assert_saved(run: Path, wanted: dict[str, np.ndarray[Any, Any]], batches: int) -> None:
    saved = SavedTables(*open_checkpoint(run, verify=True))
    found = {"weights": saved.read("C1", 0, ROWS), **saved.read_state("C1", 0, ROWS)}
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)
    assert len(saved.applied(0)) == batches
