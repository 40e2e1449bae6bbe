"""Rule "A batch is a pure function": the same whenever, wherever and in whatever blocks its span is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.batches.cutter import read_examples
from shadowsync.pipeline.data.schema import Examples, FeatureShape
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.types import BatchId

Cut = Callable[..., list[Batch]]


def _same(got: list[Batch], want: list[Batch]) -> bool:
    return [batch.id for batch in got] == [batch.id for batch in want] and all(
        np.array_equal(getattr(one, part), getattr(other, part))
        for one, other in zip(got, want, strict=True)
        for part in ("labels", "dense", "rows")
    )


def _examples(batches: list[Batch]) -> Examples:
    return Examples.join([Examples(batch.labels, batch.dense, batch.rows) for batch in batches])


def _keys(examples: Examples) -> list[tuple[float, ...]]:
    """Each example as something that can be sorted."""
    return [
        (float(label), *map(float, dense), *map(float, rows))
        for label, dense, rows in zip(examples.labels, examples.dense, examples.rows.T, strict=True)
    ]


def test_golden_batches(tmp_path: Path, whole: Callable[..., Span], cut: Cut) -> None:
    """Ids of batches outlive a version of the program (ledgers, watermarks), so their contents must too."""
    path = tmp_path / "a.tsv"
    ids = [f"{n * 2654435761 % 2**32:08x}" for n in range(1000)]
    path.write_text("".join(f"{n % 3 % 2}\t{n}\t\t{ids[n]}\t{ids[n] * (n % 4)}\tn{n}\n" for n in range(1000)))
    digest = hashlib.sha256()
    for batch in cut(whole(path), epoch=2, seed=5, window=300):
        digest.update(repr(tuple(batch.id)).encode() + batch.labels.tobytes() + batch.rows.tobytes())
    assert digest.hexdigest() == "f74715181dd569eb3f9a3098c3939e0345d04305ccb83e5666dc22db4b08ea47"


@pytest.mark.parametrize(
    ("batch", "window"), [(64, 0), (64, 64), (64, 100), (100, 7), (1000, 300), (5000, 9999)]
)
def test_cut_and_windows(
    log: Path, shape: FeatureShape, whole: Callable[..., Span], cut: Cut, batch: int, window: int
) -> None:
    """Sizes and numbers of batches; each window holds its rows of the file, each once, in another order."""
    span = whole(log)
    batches = cut(span, epoch=3, seed=9, batch=batch, window=window)
    count = -(-1000 // batch)
    assert [one.id for one in batches] == [BatchId(3, 0, number, 9) for number in range(count)]
    assert [len(one) for one in batches] == [batch] * (count - 1) + [1000 - batch * (count - 1)]
    got = _keys(_examples(batches))
    want = _keys(Examples.join(list(read_examples(span, "criteo_tsv", shape, BadRows(0)))))
    if not window:
        assert got == want
        return
    for start in range(0, 1000, window):
        piece, original = got[start : start + window], want[start : start + window]
        assert sorted(piece) == sorted(original)
        assert piece != original or len(piece) < 3


def test_epoch_seed_and_span_change_the_order(log: Path, whole: Callable[..., Span], cut: Cut) -> None:
    span = whole(log)
    other = Span(1, span.path, span.kind, span.start, span.stop)
    orders = {
        _examples(cut(one, epoch=epoch, seed=seed, window=300)).rows.tobytes()
        for one in (span, other)
        for epoch in (0, 1)
        for seed in (1, 2)
    }
    assert len(orders) == 8
    first = _keys(_examples(cut(span, window=300)))
    assert first[:300] != sorted(first[:300])
    assert cut(span, epoch=1, window=0)[0].rows.tobytes() == cut(span, epoch=0, window=0)[0].rows.tobytes()


def test_arrays_are_as_they_are_sent(log: Path, whole: Callable[..., Span], cut: Cut) -> None:
    """Types, shapes and layout of the contract, and memory that no other batch shares or keeps alive."""
    for window in (0, 64, 100):
        batches = cut(whole(log), window=window)
        for batch in batches:
            count = len(batch)
            assert batch.labels.shape == (count,)
            assert batch.labels.dtype == np.dtype(np.float32)
            assert batch.dense.shape == (count, 2)
            assert batch.dense.dtype == np.dtype(np.float32)
            assert batch.rows.shape == (3, count)
            assert batch.rows.dtype == np.dtype(np.int32)
            for array in (batch.labels, batch.dense, batch.rows):
                assert array.flags.c_contiguous
                assert array.base is None, "a view keeps a whole window alive"
            assert all(
                row.min() >= 0 and row.max() < size
                for row, size in zip(batch.rows, (1000, 7, 2**31 - 1), strict=True)
            )
        before = [batch.rows.copy() for batch in batches]
        for batch in batches[::2]:
            batch.rows.fill(-1)
        assert all(np.array_equal(batches[n].rows, before[n]) for n in range(1, len(batches), 2))


def test_a_span_without_lines_gives_nothing(log: Path, cut: Cut) -> None:
    assert cut(Span(0, str(log), "bytes", 1, 2), window=10) == []


def test_two_spans_at_once_do_not_share_their_memory(log: Path) -> None:
    """One after the other they do, and a batch of the first is what it was."""
    job = job_of_tree(
        {
            "data": {
                "format": "criteo_tsv",
                "path": str(log),
                "dense_features": 2,
                "categorical_features": 3,
            },
            "model": {"table_rows": [1000, 7, 2**31 - 1]},
        }
    )
    source = JobInput(job)
    (span,) = source.plan(job.data.path)

    def batches(epoch: int) -> Iterator[Batch]:
        return source.batches(span, epoch=epoch, seed=1, batch=64, shuffle_window=300, bad_rows=BadRows(0))

    alone = {epoch: list(batches(epoch)) for epoch in (0, 1)}
    assert not _same(alone[0], alone[1])
    copies = [batch.rows.copy() for batch in alone[0]]
    together = list(zip(batches(0), batches(1), strict=True))
    assert _same([first for first, _ in together], alone[0])
    assert _same([second for _, second in together], alone[1])
    assert all(np.array_equal(batch.rows, copy) for batch, copy in zip(alone[0], copies, strict=True))
