"""The report on the terminal, and the plan of the tables.

The report has at most 40 lines of 100 columns. The plan is printed at the start of a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...text.format import amount, count, percent
from ..document import LinkTraffic, NodeRecord, Report, Sync
from ..tables.disk_rows import DiskRows, share_in_memory
from ..tables.placement import HOW_IN_WORDS, PlacedNode, PlanRecord
from ..tables.sharing import SharedRows
from . import wording
from .by_label import labels_in_words

_WIDE: Final = 100
_IDENTITY_ROWS: Final = 6
_TRAINER_ROWS: Final = 2
_MERGED_ROWS: Final = 4
_NODE_ROWS: Final = 8
_EVENT_ROWS: Final = 3


def print_report(report: Report, console: Console) -> None:
    """Print the facts of report.md, shortened.

    Broken identities come before those that hold. Writes no colours or control codes if `console` is not a
    terminal. Only the thread that owns `console` may call.
    """
    colour = "green" if report.exit_code == 0 else "yellow"
    console.print(Text.assemble((report.run, "bold"), ": ", (report.outcome, colour)))
    console.print(Text(wording.quality(report), style="bold"))
    if text := labels_in_words(report):
        console.print(Text(text))
    if report.headline is not None and report.train.progressive is not None:
        console.print(Text(wording.progressive(report)))
    console.print(Text(wording.saved(report)))
    for text in wording.checkpoints(report):
        console.print(Text(text))
    if report.bad_batches is not None:
        console.print(Text(wording.bad_batches(report), style="yellow"))
    for text in report.warnings:
        console.print(Text(text, style="yellow"))
    if report.network is not None:
        console.print(Text(wording.network(report)))
    console.print()
    console.print(Text(wording.ledger(report), style="green" if report.ledger.adds_up else "bold red"))
    console.print(_identities(report))
    console.print()
    console.print(_figures(report, side_by_side=console.width >= _WIDE))
    if report.nodes:
        console.print()
        console.print(_nodes(report.nodes, report.throughput.coordinator_cpu_seconds))
    _print_events(report, console)


def _identities(report: Report) -> Table:
    table = _plain_table()
    # Identities that hold come last, so that no other ones are left out.
    order = (False, None, True)
    identities = sorted(report.ledger.identities, key=lambda identity: order.index(identity.holds))
    for identity in identities[:_IDENTITY_ROWS]:
        true, false = ("<=", ">") if identity.at_most else ("=", "!=")
        sign, style = {True: (true, ""), False: (false, "red"), None: ("", "yellow")}[identity.holds]
        numbers = f"{wording.count(identity.left)} {sign} {wording.count(identity.right)}" if sign else ""
        _add_row(table, (identity.name, numbers, wording.difference(identity)), style)
    hidden = identities[_IDENTITY_ROWS:]
    if hidden:
        wrong = sum(identity.holds is False for identity in hidden)
        unknown = sum(identity.holds is None for identity in hidden)
        more = "1 more is" if len(hidden) == 1 else f"{len(hidden)} more are"
        which = "all of them add up" if not unknown else f"{unknown} of them cannot be checked"
        which = f"{wrong} of them do not add up" if wrong else which
        _add_row(table, (f"{more} in report.md", "", which))
    return table


def _figures(report: Report, *, side_by_side: bool) -> Table:
    """The facts, two on a line (examples and speed) if there is room."""
    table = _plain_table()
    left, right = _examples_facts(report), _speed_facts(report)
    if not side_by_side:
        for fact in left + right:
            _add_row(table, fact)
        return table
    for first, second in zip_longest(left, right, fillvalue=("", "")):
        _add_row(table, first + second)
    return table


def _examples_facts(report: Report) -> list[tuple[str, str]]:
    examples, count = report.examples, wording.count
    facts = [
        ("examples read", count(examples.read)),
        ("trained", f"{count(examples.trained)} ({count(examples.replayed)} replayed)"),
        ("returned, in flight", f"{count(examples.returned)}, {wording.in_flight(examples)}"),
        ("dropped, bad rows", f"{count(examples.dropped)}, {count(examples.bad_rows)}"),
        *((name, count(number)) for name, number in wording.dropped_negatives(examples)),
    ]
    if wording.has_log_loss(report):
        facts.append(("NE in training", wording.number(report.train.ne_progressive)))
    if (headline := report.headline) is not None:
        calibration = wording.number(headline.calibration)
        if headline.retrieval is None or headline.auc is not None:
            facts.append(("AUC, held-out", wording.auc(headline)))
        facts += wording.found_items(headline)
        if headline.logloss is not None:
            facts.append(("logloss, calibration", f"{wording.number(headline.logloss)}, {calibration}"))
    return facts


def _speed_facts(report: Report) -> list[tuple[str, str]]:
    throughput, sync, amount = report.throughput, report.sync, wording.amount
    gap = wording.mean_and_most(wording.number(sync.gap_mean, 1), amount(sync.gap_max))
    staleness = report.staleness
    stale = wording.mean_and_most(amount(staleness.embedding_mean), amount(staleness.embedding_max))
    trainers = [(f"  {name}", amount(speed)) for name, speed in throughput.per_trainer.items()]
    return [
        ("wall", wording.duration(report.wall_seconds)),
        ("examples/s", amount(throughput.examples_per_second)),
        *(trainers if len(trainers) <= _TRAINER_ROWS else []),
        ("CPU s / million", amount(throughput.cpu_seconds_per_million)),
        ("synchronization", f"{sync.algorithm}, {sync.mode}, {wording.count(sync.rounds)} rounds"),
        ("gap in iterations", gap),
        ("a round takes", wording.duration(sync.seconds_mean)),
        *_waits(sync),
        ("bytes in all", wording.data_size(sync.bytes)),
        *((f"  {way}", _traffic(link)) for way, link in sync.links.items() if link.codec != "float32"),
        ("divergence", wording.divergence(report)),
        ("staleness", stale),
        ("lookups ahead", wording.lookups_ahead(staleness)),
        *(
            (f"rows of {table.shown_name}", table.rows_text)
            for table in report.growing_tables[:_TRAINER_ROWS]
        ),
        *([("rows in memory", _share_in_memory(report.disk_rows))] if report.disk_rows else []),
        *([] if (shared := report.shared_rows) is None else [("ids share rows", _sharing(shared))]),
        ("batch x workers", f"{wording.count(report.elp)} (over all trainers)"),
        ("precision", ", ".join(sorted(set(report.precision.values()))) or wording.amount(None)),
    ]


def _share_in_memory(nodes: Sequence[DiskRows]) -> str:
    return f"{percent(share_in_memory(nodes), 1)} of those asked for, others on disk"


def _waits(sync: Sync) -> list[tuple[str, str]]:
    """Say of some trainers in which merges they were, or how long rounds waited for them."""
    waited = [
        (f"  waited for {name}", wording.duration(value)) for name, value in sync.waited_seconds.items()
    ]
    if (merges := sync.merges) is None:
        return waited[:_MERGED_ROWS]
    of_trainers = [
        (f"  {name} was in", f"{percent(work.share)}, late for {wording.duration(work.late_seconds)}")
        for name, work in merges.trainers.items()
    ]
    return [("merges", wording.count(merges.number)), *of_trainers[:_MERGED_ROWS]]


def _sharing(shared: SharedRows) -> str:
    return wording.NOT_MEASURED if shared.examples is None else f"{percent(shared.examples, 1)} of examples"


def _traffic(link: LinkTraffic) -> str:
    saved = "" if link.compression is None else f", {wording.number(link.compression, 2)} x fewer"
    return f"{wording.data_size(link.bytes)}, {link.codec}{saved}"


_EXIT_CHARACTERS: Final = 32


def _nodes(nodes: Sequence[NodeRecord], coordinator_cpu_seconds: float | None) -> Table:
    table = _plain_table()
    _add_row(table, ("node", "role", "CPU time", "peak memory", "exit"), "dim")
    if coordinator_cpu_seconds is not None:
        _add_row(table, ("coordinator", "", wording.duration(coordinator_cpu_seconds), "", ""))
    if len(nodes) <= _NODE_ROWS:
        for node in nodes:
            ended = "still running" if node.exit is None else node.exit
            if len(ended) > _EXIT_CHARACTERS:
                # The events below have all of it; in a narrow column it would take many lines.
                ended = f"{ended[: _EXIT_CHARACTERS - 3]}..."
            cpu, memory = wording.duration(node.cpu_seconds), wording.data_size(node.peak_memory_bytes)
            _add_row(table, (node.name, node.role, cpu, memory, ended), "" if ended == "0" else "yellow")
        return table
    for role in dict.fromkeys(node.role for node in nodes):
        _add_row(table, _role_facts(role, [node for node in nodes if node.role == role]))
    return table


def _role_facts(role: str, nodes: Sequence[NodeRecord]) -> tuple[str, str, str, str, str]:
    cpu = [node.cpu_seconds for node in nodes]
    memory = [node.peak_memory_bytes for node in nodes]
    known_cpu = [value for value in cpu if value is not None]
    known_memory = [value for value in memory if value is not None]
    # A sum over some of the nodes would look like the sum over all.
    total = sum(known_cpu) if len(known_cpu) == len(nodes) else None
    most = max(known_memory) if len(known_memory) == len(nodes) else None
    well = sum(node.exit == "0" for node in nodes)
    memory_text = wording.data_size(most) + (" at most" if most is not None else "")
    return f"{len(nodes)} nodes", role, wording.duration(total), memory_text, f"{well} of {len(nodes)} with 0"


def _print_events(report: Report, console: Console) -> None:
    if report.events:
        console.print()
    for event in report.events[:_EVENT_ROWS]:
        line = " ".join(f"after {wording.duration(event.seconds)}, {event.node}: {event.what}".split())
        text = Text(line, style="yellow")
        if console.is_terminal:
            console.print(text, no_wrap=True, overflow="ellipsis")
        else:
            console.print(text, soft_wrap=True)
    hidden = len(report.events) - _EVENT_ROWS
    if hidden > 0:
        console.print(Text(f"{wording.counted(hidden, 'more event')} in report.md", style="yellow"))


SHOWN_NODES = 16


def print_plan(record: PlanRecord, console: Console) -> None:
    """Print what each embedding node holds and its expected load.

    With a single node nothing is printed. Only the thread that owns `console` may call.
    """
    if len(record.nodes) < 2:
        return
    how = HOW_IN_WORDS[record.how]
    sample = f", from {count(record.sampled_examples)} examples" if record.sampled_examples else ""
    console.print(Text(f"tables over {len(record.nodes)} embedding nodes, {how}{sample}", style="bold"))
    table = _plain_table()
    _add_row(table, ("node", "pieces", "rows", "memory", "ns/example", "of the mean"), "dim")
    for node in record.nodes[:SHOWN_NODES]:
        _add_row(table, _cells(node, record.nodes))
    console.print(table)
    if len(record.nodes) > SHOWN_NODES:
        console.print(
            Text(f"{wording.counted(len(record.nodes) - SHOWN_NODES, 'more node')} in plan.json", style="dim")
        )


def _cells(node: PlacedNode, nodes: list[PlacedNode]) -> tuple[str, ...]:
    expected = [other.expected_ns for other in nodes if other.expected_ns is not None]
    mean = sum(expected) / len(expected) if expected else 0.0
    share = wording.number(node.expected_ns / mean, 2) if node.expected_ns is not None and mean else ""
    return (
        node.name,
        count(node.pieces),
        count(node.rows),
        node.memory,
        amount(node.expected_ns, missing=""),
        share,
    )


def _plain_table() -> Table:
    """A table without lines or header, with two spaces between columns."""
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0))


def _add_row(table: Table, cells: Iterable[str], style: str = "") -> None:
    """Add a row of untrusted text.

    Cells that do not fit are folded, and brackets are not markup.
    """
    table.add_row(*(Text(cell, overflow="fold") for cell in cells), style=style)
