"""The ledger in a checkpoint: which batches were trained.

Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..data.span import to_runs
from ..errors import CheckpointError
from .files import FileEntry, write_tensors
from .reader import TensorReader
from .store.contract import PartTarget
from .stored_files import StoredFiles

ROLE: Final = "ledger"
_REMEDY = "use another checkpoint, or train again"
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SavedSpan:
    """A span of an epoch, each of whose batches was trained or left out.

    `examples` counts the examples of trained batches.
    """

    batches: int
    examples: int
    bad_rows: int


@dataclass(frozen=True)
class SavedLedger:
    """The batches that were trained when a checkpoint was taken.

    Every embedding shard of the same checkpoint has applied all these batches. It may have applied more,
    whose acknowledgements had not reached the coordinator. After a resume those are trained again, but the
    shard does not apply them again.

    Attributes:
        seed: seed of the run, part of every batch's id.
        complete: spans whose batches were all trained or left out, by (epoch, span).
        partial: spans of which only some batches were trained, by (epoch, span): the number of examples of
            each trained batch, by batch number.
        left_out: batches that were left out because their loss or a gradient was not finite, in the form of
            `partial`; spans of both kinds may have some. They are not trained again.
    """

    seed: int
    complete: Mapping[_Key, SavedSpan] = field(default_factory=dict)
    partial: Mapping[_Key, Mapping[int, int]] = field(default_factory=dict)
    left_out: Mapping[_Key, Mapping[int, int]] = field(default_factory=dict)

    @property
    def batches(self) -> int:
        """Number of trained batches."""
        whole = sum(span.batches - len(self.left_out.get(key, ())) for key, span in self.complete.items())
        return whole + sum(len(numbers) for numbers in self.partial.values())

    @property
    def examples(self) -> int:
        """Number of trained examples."""
        whole = sum(span.examples for span in self.complete.values())
        return whole + sum(sum(numbers.values()) for numbers in self.partial.values())

    @property
    def left_out_examples(self) -> int:
        """Number of examples in the batches that were left out."""
        return sum(sum(numbers.values()) for numbers in self.left_out.values())

    def has(self, epoch: int, span: int, number: int) -> bool:
        """Return whether a batch was trained."""
        if (epoch, span) in self.complete:
            return number not in self.left_out.get((epoch, span), {})
        return number in self.partial.get((epoch, span), {})

    def applied_ranges(self) -> NDArray[np.int64]:
        """Return the trained batches as ranges for `AppliedBatches.from_array`.

        Returns int64 [N, 5], each row (epoch, span, seed, start, stop), ascending. Used by shards whose own
        sets cannot be restored.
        """
        ranges: set[tuple[int, int, int, int]] = set()
        for key, span in self.complete.items():
            start = 0
            for number in (*sorted(self.left_out.get(key, ())), span.batches):
                if start < number:
                    ranges.add((*key, start, number))
                start = number + 1
        for key, numbers in self.partial.items():
            ranges.update((*key, start, stop) for start, stop in to_runs(numbers))
        rows = [(epoch, span, self.seed, start, stop) for epoch, span, start, stop in sorted(ranges)]
        return np.array(rows, np.int64).reshape(-1, 5)

    def write(self, directory: Path | PartTarget) -> list[FileEntry]:
        """Write the ledger as one file of a checkpoint.

        Any thread may call. Raises ResourceError, StorageError.
        """
        complete = [(*key, s.batches, s.examples, s.bad_rows) for key, s in sorted(self.complete.items())]
        tensors = {
            "complete": np.array(complete, np.int64).reshape(-1, 5),
            "partial": _by_number(self.partial),
            "left_out": _by_number(self.left_out),
        }
        return write_tensors(directory, ROLE, tensors, {"role": ROLE, "seed": str(self.seed)})

    @classmethod
    def read(cls, directory: Path | StoredFiles, entries: Iterable[FileEntry]) -> SavedLedger:
        """Read the ledger from a checkpoint's folder and files.

        Raises CheckpointError if it is missing or cannot be read.
        """
        files = [entry for entry in entries if entry.role == ROLE]
        if not files:
            raise CheckpointError("the checkpoint has no ledger", where=str(directory), remedy=_REMEDY)
        reader = TensorReader(directory, files)
        complete, partial = reader.read("complete"), reader.read("partial")
        left_out = reader.read("left_out")
        seed = reader.metadata[files[0].name].get("seed", "")
        columns = [values.shape[1:] for values in (complete, partial, left_out)]
        if columns != [(5,), (4,), (4,)] or not seed.isdecimal():
            raise CheckpointError("the ledger cannot be read", where=str(directory), remedy=_REMEDY)
        spans = {(int(e), int(s)): SavedSpan(int(b), int(n), int(bad)) for e, s, b, n, bad in complete}
        parts = _by_span(partial)
        if len(spans) != len(complete) or spans.keys() & parts.keys():
            raise CheckpointError("the ledger has a span twice", where=str(directory), remedy=_REMEDY)
        return cls(int(seed), spans, parts, _by_span(left_out))


def _by_number(spans: Mapping[_Key, Mapping[int, int]]) -> NDArray[np.int64]:
    """Array int64 [N, 4]: (epoch, span, number, examples) of each batch."""
    rows = [
        (*key, number, examples)
        for key, numbers in sorted(spans.items())
        for number, examples in sorted(numbers.items())
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def _by_span(rows: NDArray[np.int64]) -> dict[_Key, dict[int, int]]:
    spans: dict[_Key, dict[int, int]] = {}
    for epoch, span, number, examples in rows.tolist():
        spans.setdefault((epoch, span), {})[number] = examples
    return spans
