"""Placement of the tables' rows on nodes, for plan.json and report.json."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from ...atomic_file import write_text
from ...text.format import data_size
from ...types import ResultModel

Point = tuple[NonNegativeFloat, NonNegativeFloat]

PLAN_FILE: Final = "plan.json"

How = Literal["measured", "counted", "rows", "kept"]

HOW_IN_WORDS: Final[dict[How, str]] = {
    "measured": "by measured cost",
    "counted": "by counted cost",
    "rows": "by rows",
    "kept": "as in the checkpoint",
}


class PlacedPiece(ResultModel):
    """Rows [start, stop) of a table."""

    node: str
    start: NonNegativeInt
    stop: NonNegativeInt


class PlacedTable(ResultModel):
    """A table, with figures of the sample taken at the start.

    The figures are None without a sample.

    Attributes:
        pooling: that of its column, or "COLUMN: POOLING" of each of several.
        columns: the columns whose ids have its rows.
        rows_per_example: rows looked up for an example.
        distinct_per_example: distinct rows of a batch, divided by the batch's examples.
        head_share: share of the 1,024 most frequent rows in all lookups.
        lookup_ns, update_ns, wire_ns: cost of an example to the table's nodes, in nanoseconds, for the
            lookup, the push and the socket.
    """

    name: str
    rows: NonNegativeInt
    dim: NonNegativeInt
    pooling: str
    columns: list[str] = Field(default=[])
    optimizer: str
    storage: str
    rows_per_example: NonNegativeFloat | None = None
    distinct_per_example: NonNegativeFloat | None = None
    head_share: NonNegativeFloat | None = None
    lookup_ns: NonNegativeFloat | None = None
    update_ns: NonNegativeFloat | None = None
    wire_ns: NonNegativeFloat | None = None
    pieces: list[PlacedPiece]


class PlacedNode(ResultModel):
    """The rows that an embedding node holds.

    `bytes` counts rows and optimizer state, and `memory_bytes` what they take of memory, which is less where
    rows lie on disk; records of earlier versions have none. `expected_ns` is the expected cost of an example
    to the node, in nanoseconds; None if nothing was measured.
    """

    name: str
    pieces: NonNegativeInt
    rows: NonNegativeInt
    bytes: NonNegativeInt
    memory_bytes: NonNegativeInt | None = None
    expected_ns: NonNegativeFloat | None = None

    @property
    def memory(self) -> str:
        """Say how much memory the rows take, and of what if others lie on disk."""
        if self.memory_bytes is None or self.memory_bytes >= self.bytes:
            return data_size(self.bytes)
        return f"{data_size(self.memory_bytes)} of {data_size(self.bytes)}"


class PlanRecord(ResultModel):
    """The content of plan.json; every node has checked `digest`."""

    format_version: Literal[1] = 1
    how: How
    sampled_examples: NonNegativeInt
    digest: str
    nodes: list[PlacedNode]
    tables: list[PlacedTable]

    def write(self, folder: Path) -> None:
        """Write plan.json into a run's folder; raises ResourceError."""
        write_text(folder / PLAN_FILE, self.model_dump_json(indent=1) + "\n")


class LoadedNode(PlacedNode):
    """A node with its load: rows looked up, and CPU seconds of training."""

    looked_up_rows: NonNegativeInt | None = None
    cpu_seconds: NonNegativeFloat | None = None


class Placement(ResultModel):
    """The placement of the rows on the embedding nodes, and the resulting load."""

    how: How
    nodes: list[LoadedNode]


def read_table_plan(folder: Path) -> PlanRecord | None:
    """Read the plan of a run; None if the folder has none."""
    path = folder / PLAN_FILE
    return PlanRecord.model_validate_json(path.read_text("utf-8")) if path.exists() else None
