"""What a scorer keeps of a pass: the label and the column that are ranked, and what merges."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.metrics.top_k import TopKSums
from shadowsync.pipeline.types import RankingSettings

RANKING = RankingSettings(k=2, group=1, label=1)


def test_the_chosen_label_is_ranked_by_the_chosen_column() -> None:
    draw = np.random.default_rng(1)
    scores = draw.normal(size=(40, 2)).astype(np.float32)
    labels = draw.integers(0, 2, (40, 2)).astype(np.float32)
    groups = draw.integers(1, 5, (2, 40)).astype(np.uint64)
    parts = [PassSums.of(RANKING), PassSums.of(RANKING)]
    for part, rows in zip(parts, (slice(0, 13), slice(13, 40)), strict=True):
        part.add(scores[rows], labels[rows], None, groups[:, rows])
    parts[0].merge(parts[1])
    want = TopKSums(2)
    want.add(scores[:, 1], labels[:, 1], groups[1])
    assert parts[0].ranking == want.result()
    assert parts[0].quality.examples == 40
    other = TopKSums(2)
    other.add(scores[:, 0], labels[:, 0], groups[1])
    assert other.result() != want.result(), "the control"


def test_examples_without_groups_are_refused_where_they_are_ranked() -> None:
    sums, ones = PassSums.of(RankingSettings(2, 0, 0)), np.ones(3, np.float32)
    for groups in (None, np.zeros((0, 0), np.uint64)):
        with pytest.raises(ValueError, match="have no groups"):
            sums.add(ones, ones, None, groups)
    assert sums.quality.examples == 0
    plain = PassSums.of(None)
    plain.add(ones, ones)
    assert (plain.ranking, plain.quality.examples) == (None, 3)
