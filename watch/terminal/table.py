"""A status as a table for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...pipeline.report.tables.sharing import WARNED_SHARE
from ...pipeline.text.format import count, counted, data_rate, data_size, duration, number, percent
from ..status import LoopFigures, NodeStatus, Status

MOST_NODES = 14
SHOWN_INCIDENTS = 3
BAR_WIDTH = 24
GONE = "✗ "
_PLURAL = {"embedding": "embedding nodes", "sync": "sync nodes"}


def table_of(status: Status) -> RenderableType:
    """Render the whole status: some 10 lines, and one per node.

    If there are more than MOST_NODES nodes, one line per role instead.
    """
    nodes = status.nodes
    rows = [_node_cells(node) for node in nodes] if len(nodes) <= MOST_NODES else _role_rows(nodes)
    progress = _bar(status) if status.loops is None else _book(status.loops)
    parts: list[RenderableType] = [_head(status), progress, _figures(status), Text()]
    unit = "examples/s" if status.loops is None else "steps/s"
    parts.append(_nodes(rows, "node" if len(nodes) <= MOST_NODES else "role", unit))
    parts += [
        Text(f"{duration(round(entry.seconds))}  {entry.node}: {entry.what}", "yellow")
        for entry in status.incidents[-SHOWN_INCIDENTS:]
    ]
    if status.page:
        parts.append(Text(status.page, "dim"))
    return Group(*parts)


def _head(status: Status) -> Text:
    way = {"shadow": f"{status.algorithm}, in the background", "fixed": f"{status.algorithm} at a fixed rate"}
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(status.run, "bold")
    text.append(f"  {status.outcome or status.phase}", "green" if status.phase == "training" else "")
    text.append(f"  {way.get(status.mode, 'no synchronization')}  {duration(round(status.seconds))}", "dim")
    return text


def _bar(status: Status) -> Table:
    progress = status.progress
    line = Table.grid(padding=(0, 2, 0, 0))
    known = progress.fraction is not None
    of = f" of {'' if progress.exact else 'about '}{count(progress.total)}" if progress.total else ""
    left = f"{duration(round(progress.seconds_left))} left" if progress.seconds_left is not None else ""
    line.add_row(
        # A pulsing bar would suggest that the total is known.
        ProgressBar(total=1.0, completed=progress.fraction or 0.0, width=BAR_WIDTH) if known else Text(),
        Text(percent(progress.fraction) if known else ""),
        Text(f"{count(progress.distinct)}{of} examples"),
        Text(left, "bold"),
    )
    return line


def _book(loops: LoopFigures) -> Text:
    """Return the book of steps of a hub, and of its shared data sets."""
    lines = [
        f"{count(loops.steps)} steps = {count(loops.synchronized)} synchronized + {count(loops.open)} open"
        f" + {count(loops.lost)} lost"
    ]
    lines += [
        f"samples {stream.stream}: granted {count(stream.granted)} = finished {count(stream.finished)}"
        f" + returned {count(stream.returned)} + held {count(stream.held)}"
        for stream in loops.samples
    ]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _figures(status: Status) -> Text:
    sync, loops = status.sync, status.loops
    traffic = f"{data_rate(sync.sent_bytes_per_second)} out"
    synchronized = [
        ("sync gap", f"{number(sync.gap_mean, 1)}, open {count(sync.gap_open)}"),
        ("rounds", f"{count(sync.rounds)}, {traffic}"),
    ]
    if loops is not None:
        cells = [("steps/s", count(loops.per_second)), ("divergence", number(sync.divergence)), *synchronized]
    else:
        cells = _figures_of_job(status, synchronized)
    widths = [max(len(cell[part]) for cell in cells[::2]) for part in (0, 1)]
    text = Text(no_wrap=True, overflow="ellipsis", end="")
    for (name, value), (other, another) in zip(cells[::2], cells[1::2], strict=True):
        text.append(f"{name:<{widths[0]}}  ", "dim").append(f"{value:<{widths[1]}}  ")
        text.append(f"{other:<10}  ", "dim").append(f"{another}\n")
    return text


def _quality(status: Status) -> tuple[str, str]:
    """Return NE in training; for scores that have none, the metric of the last validation."""
    if status.quality.ne is not None or status.validation_metric == "ne":
        return "NE", f"{number(status.quality.ne)}, now {number(status.quality.ne_recent)}"
    last = status.validation[-1] if status.validation else None
    value = number(None) if last is None else f"{number(last.value)} at {count(last.examples)}"
    return status.validation_metric, value


def _figures_of_job(status: Status, synchronized: list[tuple[str, str]]) -> list[tuple[str, str]]:
    embedding, ledger = status.embedding, status.ledger
    faults = [
        ("malformed", counted(ledger.bad_rows, "row")),
        ("left out", f"{count(ledger.left_out)}, not finite"),
    ]
    sharing = [
        ("ids share", f"rows in {percent(embedding.sharing_examples, 1)} of examples"),
        ("remedy", 'kind = "growing"'),
    ]
    on_disk = [
        ("in memory", f"{percent(embedding.memory_share, 1)} of rows asked for"),
        (
            "disk",
            f"{count(embedding.disk_reads_per_second)} rows/s, waits {percent(embedding.disk_wait_share)}",
        ),
    ]
    return [
        ("examples/s", f"{count(status.speed.now)}, mean {count(status.speed.mean)}"),
        _quality(status),
        *synchronized,
        (
            "lookups/s",
            f"{count(embedding.lookups_per_second)}, pushes/s {count(embedding.pushes_per_second)}",
        ),
        ("divergence", f"{number(status.sync.divergence)}"),
        ("staleness", f"{number(embedding.staleness_mean, 1)} pushes"),
        (
            "in flight",
            f"{count(ledger.in_flight)}, returned {count(ledger.returned)}",
        ),
        *(on_disk if embedding.memory_share is not None else ()),
        *(sharing if (embedding.sharing_examples or 0.0) > WARNED_SHARE else ()),
        *(faults if ledger.bad_rows or ledger.left_out else ()),
    ]


def _nodes(rows: Sequence[Sequence[str]], first: str, unit: str) -> Text:
    """Return the nodes as one text; `unit` is that of what they do.

    The text is drawn every second, and a rich Table costs several times as much.
    """
    head = [first, "CPU", "memory", unit, "waits", "gap", "late", ""]
    if not any(row[-2] for row in rows):
        # Nobody waits for trainers, or nothing was measured yet.
        head, rows = [*head[:-2], head[-1]], [[*row[:-2], row[-1]] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    text = Text(no_wrap=True, overflow="ellipsis", end="")
    for row in (head, *rows):
        style = "dim" if row is head else "red" if row[-1].startswith(GONE) else ""
        middle = "".join(f"{cell:>{width}}  " for cell, width in zip(row[1:-1], widths[1:-1], strict=True))
        text.append(f"{row[0]:<{widths[0]}}  {middle}{row[-1]}".rstrip() + "\n", style)
    return text


def _node_cells(node: NodeStatus) -> list[str]:
    if not node.alive:
        return [node.name, "", "", "", "", "", "", f"{GONE}{node.why}"]
    trains = node.role in ("trainer", "loop")
    return [
        node.name,
        percent(node.cpu, missing=""),
        data_size(node.memory_bytes, missing=""),
        count(_per_second(node), missing="") if trains or node.role == "reader" else "",
        percent(node.wait, missing="") if trains else "",
        count(node.gap_open, missing="") if trains else "",
        percent(node.late, missing="") if trains else "",
        ", ".join(filter(None, (_doing(node), _refused(node)))),
    ]


def _per_second(node: NodeStatus) -> float | None:
    return node.steps_per_second if node.role == "loop" else node.examples_per_second


def _refused(node: NodeStatus) -> str:
    refused = {"message": node.refused_messages, "connection": node.refused_connections}
    text = ", ".join(counted(number, what) for what, number in refused.items() if number)
    return f"refused {text}" if text else ""


def _doing(node: NodeStatus) -> str:
    if not node.ready:
        return "getting ready"
    if node.queued is not None:
        return f"{node.queued} batches queued"
    if node.requests_per_second is not None:
        return f"{count(node.requests_per_second)} {'lookups' if node.role == 'embedding' else 'slices'}/s"
    rounds = f"{count(node.rounds)} rounds" if node.rounds is not None else ""
    if node.steps is None:
        return rounds
    steps = f"{count(node.steps)} steps, {count(node.synchronized)} synchronized"
    return f"{steps}, {rounds}" if rounds else steps


def _role_rows(nodes: Sequence[NodeStatus]) -> list[list[str]]:
    rows = []
    for role in dict.fromkeys(node.role for node in nodes):
        living = [node for node in nodes if node.role == role and node.alive]
        dead = sum(node.role == role and not node.alive for node in nodes)
        gaps = [node.gap_open for node in living if node.gap_open is not None]
        waits = [node.wait for node in living if node.wait is not None]
        late = [node.late for node in living if node.late is not None]
        rows.append(
            [
                f"{len(living)} {_PLURAL.get(role, role + 's')}",
                percent(_total(node.cpu for node in living), missing=""),
                data_size(_total(node.memory_bytes for node in living), missing=""),
                count(_total(_per_second(node) for node in living), missing=""),
                percent(sum(waits) / len(waits) if waits else None, missing=""),
                count(max(gaps, default=None), missing=""),
                percent(max(late, default=None), missing=""),
                f"{GONE}{dead} died" if dead else "",
            ]
        )
    return rows


def _total(values: object) -> float | None:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return sum(known) if known else None
