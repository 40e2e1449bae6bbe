"""CPU time of a sync node for a round of all trainers that merge, by its parts and the codec.

    python benchmarks/speed/nodes/merge_round.py --out benchmarks/speed/results/merge_round.json

Per MB of the slice in float32, one thread, without sockets: the chunks of 4 trainers, or 8, are decoded,
merged, and each trainer is answered. The first two rounds, whose answers are float32, do not count. The least
of many, part by part, since other work only adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from shadowsync.benchmarks.pairs import save
from shadowsync.nodes.sync.center import CenterState
from shadowsync.nodes.sync.exchange_session import ExchangeSession
from shadowsync.nodes.sync.slice_merges import SliceMerges
from shadowsync.pipeline.codecs.feedback import Deltas
from shadowsync.pipeline.codecs.formats import CodecOptions, LinkCodecs, make_codec
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.center_messages import CenterContribution, CenterSeed
from shadowsync.sync_algos.decoupled import Decoupled, DecoupledOptions

SLICE_ELEMENTS: Final = 1 << 20
CHUNK_ELEMENTS: Final = 1 << 18
COUNTS: Final = (4, 8)
NAMES: Final = ("float32", "int8", "int4", "topk")
FIRST_ROUNDS: Final = 2


class Timed:
    """The CPU seconds of a function, over all of its calls since they were last taken."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._seconds = 0.0

    def __call__(self, *given: Any) -> Any:
        began = time.thread_time()
        try:
            return self._function(*given)
        finally:
            self._seconds += time.thread_time() - began

    def take(self) -> float:
        """Return the seconds, and begin again."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Round:
    """A sync node's slice, and what its trainers send to it."""

    def __init__(self, codec: str, trainers: int) -> None:
        codecs = LinkCodecs(*(make_codec(codec, CodecOptions()) for _ in range(2)))
        algorithm = Decoupled(DecoupledOptions(quorum=trainers))
        self.state = CenterState(algorithm.center_rule, codecs, SliceMerges(algorithm))
        self.state.seed(CenterSeed(1, 0, SLICE_ELEMENTS, 0, np.zeros(SLICE_ELEMENTS, dtype=np.float32)))
        names = [f"{number}/shadow".encode() for number in range(trainers)]
        self._senders = {name: Deltas(codecs.up, SLICE_ELEMENTS) for name in names}
        self._draw = np.random.default_rng(1)
        self._number = 1

    def messages(self) -> list[tuple[bytes, CenterContribution]]:
        """Return the chunks of all trainers' next deltas."""
        self._number += 1
        found = []
        for name, sender in self._senders.items():
            delta = self._draw.normal(0.0, 1e-3, SLICE_ELEMENTS).astype(np.float32)
            for start in range(0, SLICE_ELEMENTS, CHUNK_ELEMENTS):
                found.append((name, self._message(sender, start, delta[start : start + CHUNK_ELEMENTS])))
        return found

    def _message(self, sender: Deltas, start: int, values: Float32Array) -> CenterContribution:
        reference, encoded = sender.encode(start, values)
        return CenterContribution(self._number, start, len(values), reference, encoded.payload, 512)


def measured(codec: str, trainers: int, times: int, answer: Timed) -> dict[str, float]:
    """Return CPU milliseconds per MB of the slice of a round of all trainers, by its parts."""
    one = Round(codec, trainers)
    megabytes, found = SLICE_ELEMENTS * 4 / 1e6, []
    for number in range(times + FIRST_ROUNDS):
        messages = one.messages()
        began = time.thread_time()
        for name, message in messages:
            one.state.exchange(name, message, float(number))
        taken = time.thread_time()
        answer.take()
        assert one.state.closes_at(float(number)) <= number
        one.state.close_merge(float(number))
        answers = answer.take()
        found.append((taken - began, time.thread_time() - taken - answers, answers))
    least = [min(part) * 1e3 / megabytes for part in zip(*found[FIRST_ROUNDS:], strict=True)]
    return dict(zip(("take", "merge", "answer"), least, strict=True))


def main() -> None:
    """Measure all codecs and numbers of trainers, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    answer = Timed(ExchangeSession.reply)
    found: dict[str, dict[str, float]] = {}
    rows = []
    with patch.object(ExchangeSession, "reply", lambda self, values: answer(self, values)):
        for codec in NAMES:
            for trainers in COUNTS:
                parts = found[f"{codec}, {trainers}"] = measured(codec, trainers, given.times, answer)
                whole = sum(parts.values())
                shared = whole - parts["answer"] * (trainers - 1) / trainers
                figures = [f"{one:.2f}" for one in (*parts.values(), whole, shared)]
                rows.append((codec, str(trainers), *figures))
    head = ("codec", "trainers", "take", "merge", "answer each", "the round", "if one answer were for all")
    print("\n".join(markdown_table(head, rows)))
    save(given.out, "CPU time of a round of merges", found)


if __name__ == "__main__":
    main()
