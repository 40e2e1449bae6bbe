"""Codecs of the links to sync nodes, for report.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import NonNegativeInt

from ..codecs.ladder import RUNGS
from .placement import ReportPart

PREFIX: Final = "codec/"


class LinkChoice(ReportPart):
    """One link: exchanges by codec, and the last codec.

    `bytes_per_second` is that of the fastest of the last exchanges, payloads over the time from its first
    byte to its last; None if none was completed. `fits`: at the end an exchange took no longer than from one
    round to the next, as they were wanted.
    """

    trainer: str
    node: str
    exchanges: dict[str, NonNegativeInt]
    codec: str
    bytes_per_second: NonNegativeInt | None
    fits: bool


def choice_counts(
    node: str, exchanges: Mapping[str, int], codec: str, bytes_per_second: float | None, *, fits: bool
) -> dict[str, int]:
    """Return a link's counts by heartbeat name."""
    return {
        **{f"{PREFIX}{node}/{name}": count for name, count in exchanges.items()},
        f"{PREFIX}{node}/now": RUNGS.index(codec),
        f"{PREFIX}{node}/bytes_per_second": round(bytes_per_second or 0),
        f"{PREFIX}{node}/late": int(not fits),
    }


def choices_of(trainer: str, counts: Mapping[str, int | float]) -> list[LinkChoice]:
    """Return the links of this trainer, by what it told last."""
    nodes = sorted({name.split("/")[1] for name in counts if name.startswith(PREFIX)})

    def told(node: str, what: str) -> int:
        return int(counts.get(f"{PREFIX}{node}/{what}", 0))

    return [
        LinkChoice(
            trainer=trainer,
            node=node,
            exchanges={name: count for name in RUNGS if (count := told(node, name))},
            codec=RUNGS[told(node, "now")],
            bytes_per_second=told(node, "bytes_per_second") or None,
            fits=not told(node, "late"),
        )
        for node in nodes
    ]
