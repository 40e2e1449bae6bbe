"""The plan of the tables on the terminal, when a job starts."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..text.format import amount, count, data_size
from ..text.terminal import add_row, plain_table
from .placement import HOW_IN_WORDS, PlacedNode, PlanRecord

SHOWN_NODES = 16


def print_plan(record: PlanRecord, console: Console) -> None:
    """Print what each embedding node keeps and its expected load; nothing for one node.

    Only the thread that owns `console` may call.
    """
    if len(record.nodes) < 2:
        return
    how = HOW_IN_WORDS[record.how]
    sample = f", from {record.sampled_examples:,} examples" if record.sampled_examples else ""
    console.print(Text(f"tables over {len(record.nodes)} embedding nodes, {how}{sample}", style="bold"))
    table = plain_table()
    add_row(table, ("node", "pieces", "rows", "memory", "ns/example", "of the mean"), "dim")
    for node in record.nodes[:SHOWN_NODES]:
        add_row(table, _cells(node, record.nodes))
    console.print(table)
    if len(record.nodes) > SHOWN_NODES:
        console.print(Text(f"{len(record.nodes) - SHOWN_NODES} more are in plan.json", style="dim"))


def _cells(node: PlacedNode, nodes: list[PlacedNode]) -> tuple[str, ...]:
    expected = [other.expected_ns for other in nodes if other.expected_ns is not None]
    mean = sum(expected) / len(expected) if expected else 0.0
    share = f"{node.expected_ns / mean:.2f}" if node.expected_ns is not None and mean else ""
    return (
        node.name,
        count(node.pieces),
        count(node.rows),
        data_size(node.bytes),
        amount(node.expected_ns, missing=""),
        share,
    )
