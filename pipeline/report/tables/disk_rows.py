"""Rows that lie on the disks of embedding nodes, in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt

from ...text.format import count, data_size, duration, percent
from ...text.markdown import markdown_table
from ...types import ResultModel


class DiskRows(ResultModel):
    """What became of the rows of a node that do not fit into `embedding.memory_bytes`, since it started.

    Attributes:
        memory_rows: rows in memory at the end.
        file_rows: rows that the file has; others were never trained, or never left memory.
        requested: rows of lookups and pushes.
        missed: of these, how many were not in memory.
        reads: rows read from the file; other missed ones had their first values.
        writes: rows written to it.
        bytes: what both moved.
        wait_seconds: time that the node waited for both.
    """

    name: str
    memory_rows: NonNegativeInt
    file_rows: NonNegativeInt
    requested: NonNegativeInt
    missed: NonNegativeInt
    reads: NonNegativeInt
    writes: NonNegativeInt
    bytes: NonNegativeInt
    wait_seconds: NonNegativeFloat

    @property
    def memory_share(self) -> float | None:
        """Return the share of requested rows that were in memory; None if there were none."""
        return share_in_memory([self])


def share_in_memory(nodes: Sequence[DiskRows]) -> float | None:
    """Return the share of requested rows that were in memory, over all nodes; None if there were none."""
    requested = sum(node.requested for node in nodes)
    return 1.0 - sum(node.missed for node in nodes) / requested if requested else None


def disk_rows(shards: Mapping[str, Mapping[str, Any]]) -> list[DiskRows]:
    """Return the counts of each embedding node whose rows do not all fit into memory."""
    keys = [key for key in DiskRows.model_fields if key != "name"]
    return [
        DiskRows(name=name, **{key: shard[f"disk_{key}"] for key in keys})
        for name, shard in shards.items()
        if "disk_requested" in shard
    ]


def disk_section(nodes: Sequence[DiskRows]) -> list[list[str]]:
    """Build the section of report.md; empty if all rows were in memory."""
    if not nodes:
        return []
    rows = [
        (
            node.name,
            count(node.memory_rows),
            count(node.file_rows),
            percent(node.memory_share, 1),
            count(node.reads),
            count(node.writes),
            data_size(node.bytes),
            duration(node.wait_seconds),
        )
        for node in nodes
    ]
    head = (
        *("node", "rows in memory", "rows in its file", "found in memory", "rows read", "rows written"),
        *("bytes moved", "waited for the disk"),
    )
    note = "Counts are those of the embedding nodes since they started."
    return [["## Rows on disk", "", *markdown_table(head, rows), "", note]]
