"""profile.md: the verdict, its reasons, what helps, and the figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..report import wording
from . import words
from .document import PROFILE_PICTURE, Profile
from .measured import NodeMeasured


def render_profile(profile: Profile) -> str:
    """The whole file, ending in a newline; it links the picture beside it."""
    verdict, measured = profile.verdict, profile.measured
    lines = [f"# Profile of {measured.run}", "", f"**{words.headline(profile)}**", "", words.how(profile), ""]
    lines += [f"![Where the time of the workers goes]({PROFILE_PICTURE})", "", "## Why", ""]
    lines += [f"- {_plain(reason)}" for reason in verdict.reasons]
    lines += ["", "## What would help", "", *(f"- {remedy}" for remedy in verdict.remedies)]
    lines += ["", "## Where the time of the workers goes", ""]
    parts = [(what, f"{share:.1%}") for what, share in words.causes(verdict.time)]
    lines += _table(("what", "share"), parts)
    lines += ["", "## Nodes", "", *_nodes(measured.nodes)]
    lines += ["", "## Links", "", *_links(profile)]
    told = [*profile.notes, *([words.trace_words(profile)] if profile.trace is not None else [])]
    lines += ["", "## How it was measured", "", *(f"- {note}" for note in told)]
    return "\n".join(lines) + "\n"


def _nodes(nodes: Iterable[NodeMeasured]) -> list[str]:
    head = ("node", "cores used", "busiest threads: on a core + waiting for one", "stood still")
    rows = []
    for node in nodes:
        # A thread that used no hundredth of a core says nothing.
        threads = sorted(node.threads.items(), key=lambda item: -item[1].cpu_seconds)[:3]
        busiest = ", ".join(
            f"{name} {time.cpu_seconds / node.seconds:.0%} + {time.core_wait_seconds / node.seconds:.0%}"
            for name, time in threads
            if time.cpu_seconds + time.core_wait_seconds >= 0.01 * node.seconds
        )
        cores = f"{node.cpu_seconds / node.seconds:.2f}"
        rows.append((node.name, cores, busiest or "none", f"{node.stalled_share:.0%}"))
    return _table(head, rows)


def _links(profile: Profile) -> list[str]:
    rows = [
        (link.trainer, link.other, _rate(link.sent), _rate(link.received), _rate(link.shared))
        for link in profile.links
        if link.sent or link.received
    ]
    return _table(("trainer", "and", "sent", "received", "in shared memory"), rows)


def _rate(bytes_per_second: float) -> str:
    return f"{wording.data_size(round(bytes_per_second))}/s"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
