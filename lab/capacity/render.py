"""A plan of machines on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...pipeline.text.format import amount, count, counted, duration, number
from .document import REMEDIES, CapacityPlan

_SHOWN_LIMITS = 4


def print_plan(plan: CapacityPlan, console: Console) -> None:
    """Print the plan; only the console's owning thread may call."""
    machines = f"{counted(plan.machines, 'machine')} of {counted(plan.cores, 'core')}"
    console.print(Text(f"{count(plan.examples_per_second)} examples/s on {machines}.", style="bold green"))
    console.print(Text(_bottlenecks(plan)))
    if plan.sync_gap is not None:
        period = duration(plan.round_period_seconds)
        console.print(
            Text(f"Expected sync gap: {number(plan.sync_gap, 1)} iterations, a round every {period}.")
        )
    if plan.price_an_hour is not None:
        million = amount(plan.price_of_a_million)
        console.print(Text(f"Price: {amount(plan.price_an_hour)} an hour, {million} for a million examples."))
    console.print()
    console.print(_grid("Set", [(f"{key} = {json.dumps(value)}",) for key, value in plan.settings.items()]))
    console.print()
    rows = [(counted(row.machines, "machine"), _nodes(row.nodes)) for row in plan.layout]
    console.print(_grid("Machines", rows))
    console.print()
    limits = [(limit.name, count(limit.examples_per_second)) for limit in plan.limits[:_SHOWN_LIMITS]]
    console.print(_grid("Examples/s that each allows", limits))
    console.print()
    for note in plan.notes:
        console.print(Text(note, style="dim"))


def _bottlenecks(plan: CapacityPlan) -> str:
    bottleneck = f"The bottleneck will be: {plan.bottleneck} (what would help: {REMEDIES[plan.bottleneck]})"
    return f"{bottleneck}; the runner-up: {plan.runner_up}."


def _nodes(nodes: dict[str, int]) -> str:
    return ", ".join(f"{number} {role}" for role, number in nodes.items()) or "nothing"


def _grid(title: str, rows: Sequence[Sequence[str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(title, style="bold"))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
