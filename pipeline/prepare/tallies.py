"""What is counted of one column while rows pass, in bounded memory; a tally can be saved and gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.batch import Float32Array, Int32Array
from ..data.column_tap import Mask
from ..data.hashing import Uint64Array, hash_bytes
from .cardinality import Cardinality
from .profile import FRACTIONS, HEADS, IdProfile, NumberProfile, shared_rows
from .quantiles import Quantiles
from .value_counts import ValueCounts

Tensors = Mapping[str, NDArray[Any]]


class Presence:
    """How many rows have no value, and the labels of both kinds.

    Attributes:
        counts: int64 [4]: rows, rows without a value, labels of 1, labels of 1 without a value.
    """

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        self.counts = np.zeros(4, np.int64) if counts is None else counts

    def add(self, missing: Mask, labels: Float32Array) -> None:
        """Adds rows."""
        positive = labels > 0
        self.counts += [len(labels), missing.sum(), positive.sum(), (missing & positive).sum()]

    def stated(self) -> dict[str, Any]:
        """As a `ColumnProfile` has it."""
        rows, missing, positives, both = map(int, self.counts)
        return {
            "missing": missing / rows if rows else 0.0,
            "label_rate_missing": both / missing if missing else None,
            "label_rate_present": (positives - both) / (rows - missing) if rows > missing else None,
        }


class NumberTally:
    """Of a dense column; numbers are float32, in the units of the source."""

    def __init__(self, saved: Tensors | None = None) -> None:
        saved = saved or {}
        self._presence = Presence(saved.get("presence"))
        # The sum, the least, the largest.
        self._moments = saved.get("moments", np.array([0.0, np.inf, -np.inf])).copy()
        keys, counts = saved.get("keys"), saved.get("counts")
        self._quantiles = Quantiles(None if keys is None else ValueCounts(1 << 16, keys, counts))

    def add(self, values: Float32Array, missing: Mask, labels: Float32Array) -> None:
        """Adds rows."""
        self._presence.add(missing, labels)
        present = values[~missing] if missing.any() else values
        if len(present):
            total, least, largest = self._moments
            total += present.sum(dtype=np.float64)
            self._moments[:] = total, min(least, present.min()), max(largest, present.max())
            self._quantiles.add(present)

    def saved(self) -> dict[str, NDArray[Any]]:
        """All of it, for `saved` of a new one."""
        counts = self._quantiles.counts
        return {
            "presence": self._presence.counts,
            "moments": self._moments,
            "keys": counts.keys,
            "counts": counts.counts,
        }

    def profile(self, name: str) -> NumberProfile:
        """What came of it."""
        values = int(self._presence.counts[0] - self._presence.counts[1])
        total, least, largest = self._moments.tolist()
        found = zip(FRACTIONS, self._quantiles.at(FRACTIONS), strict=False)
        return NumberProfile(
            name=name,
            mean=total / values if values else None,
            least=least if values else None,
            largest=largest if values else None,
            # A bin's number may be outside of what there was.
            quantiles={f"{at:.0%}": min(max(value, least), largest) for at, value in found},
            **self._presence.stated(),
        )


class IdTally:
    """Of a column with a table, by the hashes of its values; at most `limit` values are counted each.

    Args:
        number: the `column` of the hash.
        bagged: whether rows have bags.
    """

    def __init__(self, number: int, limit: int, *, bagged: bool, saved: Tensors | None = None) -> None:
        saved = saved or {}
        self._bagged = bagged
        self._missing_hash = np.uint64(hash_bytes(number, b""))
        self._presence = Presence(saved.get("presence"))
        # All values, the longest bag, and how much a count may be too small.
        self._sizes = saved.get("sizes", np.zeros(3, np.int64)).copy()
        self._counts = ValueCounts(limit, saved.get("keys"), saved.get("counts"), int(self._sizes[2]))
        self._cardinality = Cardinality(saved.get("registers"))

    def add(self, hashes: Uint64Array, lengths: Int32Array | None, labels: Float32Array) -> None:
        """Adds rows; `lengths` [n] are those of their bags."""
        if self._bagged:
            assert lengths is not None
            self._presence.add(lengths == 0, labels)
            self._sizes[1] = max(self._sizes[1], int(lengths.max(initial=0)))
        else:
            missing = hashes == self._missing_hash
            self._presence.add(missing, labels)
            hashes = hashes[~missing] if missing.any() else hashes
        keys, counts = np.unique(hashes, return_counts=True)
        self._cardinality.add(keys)
        self._counts.add(keys, counts)
        self._sizes[0] += len(hashes)
        self._sizes[2] = self._counts.short

    def saved(self) -> dict[str, NDArray[Any]]:
        """All of it, for `saved` of a new one."""
        return {
            "presence": self._presence.counts,
            "sizes": self._sizes,
            "keys": self._counts.keys,
            "counts": self._counts.counts,
            "registers": self._cardinality.registers,
        }

    def profile(self, name: str, table_rows: int) -> IdProfile:
        """What came of it."""
        values, longest, short = self._sizes.tolist()
        counts = self._counts
        distinct = len(counts.keys) if counts.exact else self._cardinality.estimate()
        largest = counts.top(HEADS[-1])
        rows = int(self._presence.counts[0])
        return IdProfile(
            name=name,
            kind="multi_hot" if self._bagged else "categorical",
            values=values,
            distinct=distinct,
            distinct_exact=counts.exact,
            head={str(head): int(largest[:head].sum()) / values if values else 0.0 for head in HEADS},
            head_short=min(1.0, HEADS[-1] * short / values) if values else 0.0,
            table_rows=table_rows,
            expected_shared=shared_rows(distinct, table_rows),
            mean_length=(values / rows if rows else 0.0) if self._bagged else 1.0,
            longest=longest if self._bagged else 1,
            **self._presence.stated(),
        )
