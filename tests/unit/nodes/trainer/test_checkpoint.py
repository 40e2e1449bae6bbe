"""What a trainer writes of numbers that are not finite: nothing that a good checkpoint would be lost for."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from shadowsync.nodes.trainer.checkpoint import TrainerCheckpoint, TrainerSnapshot
from shadowsync.pipeline.checkpoint.store import addresses
from shadowsync.pipeline.checkpoint.store.yielding import ThreadTimes, Yielding
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.wire.control.orders import WriteCheckpoint
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.tests.support.data.plain_job import plain_job
from shadowsync.tests.support.tables.shared import build_shared

REPLICA, OPTIMIZER, CENTER, NOTHING = "the replica", "the optimizer", "the center", "nothing"


def written(folder: Path, unsound: str, *, dense: bool, running: bool, yields: bool = False) -> set[str]:
    """The roles of the files that a trainer writes where one thing has a number that is not finite."""
    job = plain_job(2, 2, model={"embedding_dim": 4, "table_rows": 10, "bottom": [4], "top": [4]})
    shared, algorithm = build_shared(job), make_algorithm("easgd", {})
    algorithm.start(shared.replica)
    # So large that their sum is infinite in float32, and each of them finite.
    shared.optimizer.state["sum"].fill_(3e38)
    center = torch.ones(shared.layout.numel)
    spoilt = {REPLICA: shared.replica.flat, OPTIMIZER: shared.optimizer.state["sum"], CENTER: center}
    if unsound in spoilt:
        spoilt[unsound][0] = math.nan

    async def snapshots(copy: Callable[[], TrainerSnapshot]) -> TrainerSnapshot:
        return copy()

    async def model(origin: str) -> torch.Tensor:
        return center if origin == "center" else shared.replica.flat

    async def body() -> set[str]:
        keeping = TrainerCheckpoint(shared, algorithm, 1, snapshots, model)
        origin = "replicas" if running else "center"
        request = WriteCheckpoint(str(folder), origin, running=running, dense=dense, yields=yields)
        return {entry.role for entry in (await keeping.checkpoint(request)).files}

    return asyncio.run(body())


@pytest.mark.parametrize("unsound", [NOTHING, REPLICA, OPTIMIZER])
@pytest.mark.parametrize(("dense", "running"), [(False, False), (False, True), (True, True)])
def test_a_part_that_is_not_finite_is_refused(
    tmp_path: Path, unsound: str, dense: bool, running: bool
) -> None:
    if unsound == NOTHING:
        wanted = {"trainer-1", "dense"} if dense else {"trainer-1"}
        assert written(tmp_path, unsound, dense=dense, running=running) == wanted, "the control"
        return
    with pytest.raises(
        JobFileError, match=r"the replica, or the optimizer's state, of trainer-1 has numbers"
    ):
        written(tmp_path, unsound, dense=dense, running=running)


@pytest.mark.parametrize("unsound", [NOTHING, REPLICA, OPTIMIZER])
def test_the_center_is_saved_by_a_trainer_whose_own_part_is_not_finite(tmp_path: Path, unsound: str) -> None:
    wanted = {"dense", "trainer-1"} if unsound == NOTHING else {"dense"}
    assert written(tmp_path, unsound, dense=True, running=False) == wanted


def test_a_center_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="the model of trainer-1 has numbers that are not finite"):
        written(tmp_path, CENTER, dense=True, running=False)


@pytest.mark.parametrize("yields", [True, False])
def test_one_that_training_does_not_wait_for_yields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yields: bool
) -> None:
    rested: list[float] = []
    ran = itertools.count()
    scarce = partial(Yielding, lambda: ThreadTimes(1, (at := next(ran)), at), rested.append)
    monkeypatch.setattr(addresses, "Yielding", scarce)
    assert written(tmp_path, NOTHING, dense=True, running=True, yields=yields) == {"trainer-1", "dense"}
    assert bool(rested) == yields
