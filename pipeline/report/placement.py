"""Where the rows of the tables are, and what was expected of it: plan.json, and a part of report.json."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from .part import Amount, Count, Part

PLAN_FILE: Final = "plan.json"

How = Literal["measured", "counted", "rows", "kept"]

HOW_IN_WORDS: Final[dict[How, str]] = {
    "measured": "by measured cost",
    "counted": "by counted cost",
    "rows": "by rows",
    "kept": "as in the checkpoint",
}


class PlacedPiece(Part):
    """Rows [start, stop) of a table."""

    node: str
    start: Count
    stop: Count


class PlacedTable(Part):
    """A table. The figures are of the sample that was taken at the start, None without one: looked-up rows an
    example, those of them that differ within a batch, the share of the 1,024 most frequent rows among them;
    and what an example costs its nodes, in nanoseconds, to answer the lookup, to apply the push, and to get
    both through a socket."""

    name: str
    rows: Count
    dim: Count
    pooling: str
    optimizer: str
    storage: str
    rows_per_example: Amount | None = None
    distinct_per_example: Amount | None = None
    head_share: Amount | None = None
    lookup_ns: Amount | None = None
    update_ns: Amount | None = None
    wire_ns: Amount | None = None
    pieces: list[PlacedPiece]


class PlacedNode(Part):
    """What an embedding node keeps; `bytes` are those of rows and optimizer state. `expected_ns` is what an
    example was expected to cost it, None where nothing was measured."""

    name: str
    pieces: Count
    rows: Count
    bytes: Count
    expected_ns: Amount | None = None


class PlanRecord(Part):
    """All of plan.json. `digest` is that of the plan which every node has checked."""

    format_version: Literal[1] = 1
    how: How
    sampled_examples: Count
    digest: str
    nodes: list[PlacedNode]
    tables: list[PlacedTable]

    def write(self, folder: Path) -> None:
        """Into a run's folder."""
        (folder / PLAN_FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


class LoadedNode(PlacedNode):
    """A node, with what it then had to do: rows that it looked up, and CPU seconds of training."""

    looked_up_rows: Count | None = None
    cpu_seconds: Amount | None = None


class Placement(Part):
    """How the rows were given to the embedding nodes, and what came of it."""

    how: How
    nodes: list[LoadedNode]


def read_plan(folder: Path) -> PlanRecord | None:
    """The plan of a run; None if the folder has none."""
    path = folder / PLAN_FILE
    return PlanRecord.model_validate_json(path.read_text("utf-8")) if path.exists() else None
