"""The plan of the tables on the terminal, when a job starts."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import wording
from .placement import HOW_IN_WORDS, PlacedNode, PlanRecord

SHOWN_NODES = 16


def print_plan(record: PlanRecord, console: Console) -> None:
    """What each embedding node keeps, and what it is expected to have to do; nothing for a single node. Only
    the thread that owns `console` may call."""
    if len(record.nodes) < 2:
        return
    how = HOW_IN_WORDS[record.how]
    sample = f", from {record.sampled_examples:,} examples" if record.sampled_examples else ""
    console.print(Text(f"tables over {len(record.nodes)} embedding nodes, {how}{sample}", style="bold"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row(*map(Text, ("node", "pieces", "rows", "memory", "ns/example", "of the mean")), style="dim")
    for node in record.nodes[:SHOWN_NODES]:
        table.add_row(*map(Text, _cells(node, record.nodes)))
    console.print(table)
    if len(record.nodes) > SHOWN_NODES:
        console.print(Text(f"{len(record.nodes) - SHOWN_NODES} more are in plan.json", style="dim"))


def _cells(node: PlacedNode, nodes: list[PlacedNode]) -> tuple[str, ...]:
    expected = [other.expected_ns for other in nodes if other.expected_ns is not None]
    mean = sum(expected) / len(expected) if expected else 0.0
    share = f"{node.expected_ns / mean:.2f}" if node.expected_ns is not None and mean else ""
    return (
        node.name,
        wording.count(node.pieces),
        wording.count(node.rows),
        wording.data_size(node.bytes),
        "" if node.expected_ns is None else wording.amount(node.expected_ns),
        share,
    )
