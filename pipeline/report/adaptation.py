"""The codec of each link as `codecs.center_up = "auto"` has chosen it, for report.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import NonNegativeInt

from ..codecs.choices import CHOOSABLE
from ..types import ResultModel

PREFIX: Final = "codec/"


class LinkChoice(ResultModel):
    """One link of a trainer to a sync node.

    Attributes:
        trainer, node: the ends of the link.
        exchanges: number of exchanges by codec.
        codec: the last codec.
        bytes_per_second: payload rate of the fastest recent exchange, from its first byte to its last; None
            if no exchange was completed.
        fits: whether an exchange at the end took no longer than the wanted time between rounds.
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
    """Return a link's counts, by their names in heartbeats."""
    return {
        **{f"{PREFIX}{node}/{name}": count for name, count in exchanges.items()},
        f"{PREFIX}{node}/now": CHOOSABLE.index(codec),
        f"{PREFIX}{node}/bytes_per_second": round(bytes_per_second or 0),
        f"{PREFIX}{node}/late": int(not fits),
    }


def choices_of(trainer: str, counts: Mapping[str, int | float]) -> list[LinkChoice]:
    """Return a trainer's links, from its last counts."""
    nodes = sorted({name.split("/")[1] for name in counts if name.startswith(PREFIX)})

    def count_of(node: str, what: str) -> int:
        return int(counts.get(f"{PREFIX}{node}/{what}", 0))

    return [
        LinkChoice(
            trainer=trainer,
            node=node,
            exchanges={name: count for name in CHOOSABLE if (count := count_of(node, name))},
            codec=CHOOSABLE[count_of(node, "now")],
            bytes_per_second=count_of(node, "bytes_per_second") or None,
            fits=not count_of(node, "late"),
        )
        for node in nodes
    ]
