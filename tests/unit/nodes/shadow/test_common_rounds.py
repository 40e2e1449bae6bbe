"""At a fixed rate: which algorithms have one round for all workers of a trainer, and which one for each."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.nodes.replica.buffer import FlatReplica
from shadowsync.nodes.runtime.main_loop import PauseAwareLoop
from shadowsync.nodes.shadow.fixed_rate import CenterRounds, GatedRounds
from shadowsync.nodes.shadow.rounds import RoundCounter
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.sync_algos.easgd import EASGD
from shadowsync.tests.support.jobs.runs import JobMaker
from shadowsync.tests.support.sync.made_synchronizer import made_synchronizer

WORKERS = 2


class Remembering(EASGD):
    """Keeps something from round to round, which two rounds at once would both change."""

    name = "remembering"
    state_names = ("seen",)


COMMON = {"ma": True, "decoupled": True, f"{__name__}:Remembering": True, "easgd": False}
every_algorithm = pytest.mark.parametrize(("name", "common"), COMMON.items(), ids=str)


def replica_context(name: str) -> Any:
    """What a trainer of two workers shares, with a replica of four elements."""
    job = SimpleNamespace(
        sync=SyncSection(algorithm=name, mode="fixed", every=3),
        trainer=SimpleNamespace(workers=WORKERS, count=1),
    )
    replica = FlatReplica(torch.zeros(4), np.zeros(WORKERS, np.int64))
    return SimpleNamespace(job=job, replica=replica, total_iterations=lambda: 0)


@every_algorithm
def test_of_a_trainer(name: str, common: bool) -> None:
    own = made_synchronizer(replica_context(name), make_algorithm(name, {}))
    assert [type(one) for one in own.fixed] == [GatedRounds if common else CenterRounds] * WORKERS


@every_algorithm
def test_of_an_emulated_trainer(name: str, common: bool, job_file: JobMaker) -> None:
    job = job_file(
        {
            "sync": {"algorithm": name, "mode": "fixed", "every": 3, "nodes": 0 if name == "ma" else 1},
            "trainer": {"count": 2, "workers": WORKERS, "batch": 512},
        }
    )
    found = run_virtual(load_job(str(job)), Timing(step_seconds=0.02, round_cpu_seconds=0.001))
    turns = sum(done // (3 * WORKERS) for done in found.iterations)
    # Each trainer has one more, at the end.
    assert found.rounds == turns * (1 if common else WORKERS) + len(found.iterations)


def test_a_pause_of_the_process_does_not_use_up_the_time_of_a_worker_s_round() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def one_round(*_: Any) -> bool:
        loops.append(asyncio.get_running_loop())
        return True

    context = replica_context("easgd")
    context.iterations = np.full(WORKERS, 3)
    algorithm, center = SimpleNamespace(round=one_round), SimpleNamespace(close=lambda: None)
    config = SimpleNamespace(open_center=lambda *_: center, algorithm=algorithm, index=0)
    rounds = RoundCounter(lambda: 6)
    own = CenterRounds(0, context, cast(Any, config), rounds)
    for _ in range(2):
        own.after_iteration()
    own.close()
    assert rounds.metrics()["rounds"] == 2
    (loop,) = set(loops)
    assert isinstance(loop, PauseAwareLoop)
    assert loop.is_closed()
