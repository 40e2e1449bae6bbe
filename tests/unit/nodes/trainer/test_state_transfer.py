"""What a trainer that joins late takes over from another one: all of its weights and of its optimizer."""

from __future__ import annotations

import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.trainer.state_transfer import optimizer_sizes, read_state, write_state
from shadowsync.pipeline.config.job import Job
from shadowsync.tests.support.shared import build_shared

CHUNK = 7


def _trainer(optimizer: str = "adagrad", **sync: str) -> TrainerContext:
    return build_shared(
        Job.model_validate(
            {
                "data": {"format": "parquet", "path": ["x"], "dense_features": 2, "categorical_features": 2},
                "model": {"embedding_dim": 4, "table_rows": 10, "bottom": [4], "top": [8]},
                "trainer": {"optimizer": optimizer},
                "sync": sync,
            }
        )
    )


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "sgd"])
@pytest.mark.parametrize("state", ["own", "synchronized"])
def test_all_of_it_in_chunks(optimizer: str, state: str) -> None:
    donor, late = (_trainer(optimizer, optimizer_state=state) for _ in range(2))
    torch.manual_seed(1)
    donor.replica.flat.uniform_()
    for values in donor.optimizer.state.values():
        values.fill_(3.0)
    for name, elements in (("", donor.layout.numel), *optimizer_sizes(donor)):
        for start in range(0, elements, CHUNK):
            write_state(late, name, start, read_state(donor, name, start, start + CHUNK))
    assert torch.equal(late.replica.flat, donor.replica.flat)
    assert torch.equal(late.replica.snapshot(late.replica.whole), donor.replica.snapshot(donor.replica.whole))
    assert set(late.optimizer.state) == set(donor.optimizer.state)
    for name, values in late.optimizer.state.items():
        assert torch.equal(values, donor.optimizer.state[name]), name


def test_what_does_not_fit_is_refused() -> None:
    late = _trainer()
    with pytest.raises(ValueError, match="the optimizer has no state 'exp_avg'"):
        read_state(late, "exp_avg", 0, 1)
    with pytest.raises(ValueError, match="the optimizer has no state 'exp_avg'"):
        write_state(late, "exp_avg", 0, b"")
    numel = late.layout.numel
    with pytest.raises(ValueError, match=f"replica: 2 elements from {numel - 1} given; it has {numel}"):
        write_state(late, "", numel - 1, bytes(8))
