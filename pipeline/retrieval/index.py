"""An index of item vectors, and what share of the best items it finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..errors import DataError
from ..jobfile.extras import require_extra
from ..types import Float32Array, Int64Array
from .top_k import ExactSearch

if TYPE_CHECKING:
    import faiss

LISTS_PER_ROOT: Final = 2
"""Lists of an index, times the square root of its items."""
CLUSTERED_PER_LIST: Final = 64
"""Vectors, drawn at random, from which each list's centroid is computed."""
CLUSTER_PASSES: Final = 10
LEAST_RECALL: Final = 0.98
"""The recall at RECALL_AT[-1] for which an index searches as many lists as it needs."""
RECALL_AT: Final = (10, 100)
FIRST_PROBES: Final = 8


@dataclass(frozen=True, slots=True)
class Recall:
    """The share of the best items of some queries that an index finds, from 0 to 1.

    Of fewer than 10 or 100 items it is the share of all.

    Attributes:
        queries: how many.
        of: "queries" for those of rows, or "items" if the vectors of items stood for queries.
        at_10, at_100: mean share of the 10, and of the 100 best items.
    """

    queries: int
    of: str
    at_10: float
    at_100: float

    def values(self) -> dict[str, Any]:
        """Return it for a manifest or a reply."""
        return asdict(self)


class VectorIndex:
    """Lists of item vectors, each around a centroid; a query is compared with the nearest lists alone.

    It finds most of what exact search finds, see `tune`. benchmarks/speed/results.md says why it is no graph.
    Several threads may search at once. Source: Jegou, Douze, Schmid, Product Quantization for Nearest
    Neighbor Search, PAMI 2011, Section IV, without quantization; faiss builds it.

    Args:
        index: faiss's.
        threads: threads that search and build.
    """

    def __init__(self, index: faiss.IndexIVF, threads: int = 1) -> None:
        self._index, self._threads = index, threads

    @classmethod
    def build(cls, vectors: Float32Array, threads: int = 1) -> VectorIndex:
        """Build the index of vectors, float32 [N, dim], which are copied.

        Raises JobFileError if the extra `retrieval` is missing.
        """
        require_index()
        import faiss

        count, dim = vectors.shape
        lists = min(count, math.ceil(LISTS_PER_ROOT * math.sqrt(count)))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.niter = CLUSTER_PASSES
        # Otherwise it says on standard error that small catalogues are small.
        index.cp.min_points_per_centroid = 1
        # It is of the calling thread alone.
        faiss.omp_set_num_threads(threads)
        sample = np.random.default_rng(0).permutation(count)[: CLUSTERED_PER_LIST * lists]
        index.train(vectors[np.sort(sample)])
        index.add(np.ascontiguousarray(vectors))
        return cls(index, threads)

    @classmethod
    def read(cls, path: Path, threads: int = 1) -> VectorIndex:
        """Read an index; raises DataError for what is none, JobFileError if the extra is missing."""
        require_index()
        import faiss

        try:
            index: faiss.Index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise _no_index(path, str(error).rpartition(": ")[2]) from error
        if not isinstance(index, faiss.IndexIVFFlat):
            raise _no_index(path, f"but {type(index).__name__}")
        return cls(index, threads)

    def write(self, path: Path) -> None:
        """Write the index, and how many lists it searches, to a file; raises OSError."""
        import faiss

        faiss.serialize_index(self._index).tofile(path)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self._index.d)

    def search(self, queries: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
        """Return for each query the numbers of k items with high products, and these, best first.

        As `ExactSearch.search`, but for what it misses: where it finds fewer items, the last numbers are -1,
        with products of minus infinity.
        """
        import faiss

        faiss.omp_set_num_threads(self._threads)
        scores, numbers = self._index.search(np.ascontiguousarray(queries), min(k, len(self)))
        scores[numbers < 0] = -np.inf
        return numbers, scores

    def tune(self, exact: ExactSearch, queries: Float32Array, of: str) -> Recall:
        """Have each search compare as many lists as these queries need for LEAST_RECALL; return their recall.

        With all lists the search is exact. Not while another thread searches.

        Args:
            exact: exact search among the same vectors.
            queries: float32 [Q, dim], at least one.
            of: what the queries are, see `Recall`.
        """
        least = {k: exact.search(queries, k)[1][:, -1:] for k in RECALL_AT}

        def share(k: int) -> float:
            """Return the share of k items that are as good as the k-th best: of equal ones any will do."""
            numbers, _ = self.search(queries, min(k, len(self)))
            return float(np.mean((numbers >= 0) & (exact.of_items(queries, numbers) >= least[k])))

        def suffices(probes: int) -> bool:
            self._index.nprobe = probes
            return probes == self._index.nlist or share(RECALL_AT[-1]) >= LEAST_RECALL

        self._index.nprobe = least_of(suffices, min(FIRST_PROBES, self._index.nlist), self._index.nlist)
        return Recall(len(queries), of, *(round(share(k), 4) for k in RECALL_AT))


def least_of(suffices: Callable[[int], bool], first: int, last: int) -> int:
    """Return a number from `first` to `last` that suffices, at most a fifth above the least one that does.

    `last` suffices; what is above a number that does, does too.
    """
    low, high = first - 1, first
    while not suffices(high):
        low, high = high, min(2 * high, last)
    while low >= first and high - low > max(1, high // 6):
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def require_index() -> None:
    """Raise JobFileError, which names the extra, unless indexes can be built and read."""
    require_extra("an index of items", "retrieval")


def _no_index(path: Path, what: str) -> DataError:
    return DataError(f"is no index of items ({what})", where=str(path), remedy="export the items again")
