"""The algorithms in examples/algorithms: the contract, DiLoCo's closed form, and what their old names say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shadowsync
import torch
from shadowsync.nodes.sync_rules import check_sync, with_sync_nodes
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.sync_algos.bmuf import BMUF, BMUFOptions
from shadowsync.sync_algos.catalog.names import MOVED
from shadowsync.sync_algos.catalog.registry import AlgorithmError, find_algorithm, make_algorithm
from shadowsync.testing import check_algorithm
from shadowsync.tests.support.sync.exact_run import ROUNDS, Run, close
from shadowsync.tests.support.sync.example_algorithms import DILOCO, DOWNPOUR, FOLDER, SYMMETRIC_EASGD

if not (Path(shadowsync.__file__).resolve().parent / "examples").is_dir():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)

from shadowsync.examples.algorithms.diloco import DiLoCo, DiLoCoOptions

CASES: list[tuple[str, dict[str, Any]]] = [
    (DILOCO, {}),
    (DILOCO, {"outer_lr": 1.0, "outer_momentum": 0.5}),
    (DOWNPOUR, {}),
    (DOWNPOUR, {"rate": 0.25}),
    (SYMMETRIC_EASGD, {}),
    (SYMMETRIC_EASGD, {"elastic_rate": 1.0}),
]


@pytest.mark.parametrize(("place", "options"), CASES)
def test_each_keeps_the_contract(place: str, options: dict[str, Any]) -> None:
    check_algorithm(find_algorithm(place), options)


def _job(trainers: int = 2, **sync: Any) -> Job:
    data = {"format": "parquet", "path": ["x"]}
    return Job.model_validate({"data": data, "sync": sync, "trainer": {"count": trainers}})


@pytest.mark.parametrize("place", [DILOCO, DOWNPOUR, SYMMETRIC_EASGD])
def test_what_the_old_name_says_finds_the_example(place: str) -> None:
    """The file that is to be copied is there, and the class in it has the name that was built in."""
    cls = find_algorithm(place)
    said = MOVED[cls.name]
    file, _, class_name = said.rpartition("give './")[2].rstrip("'").partition(":")
    assert f"copy examples/algorithms/{file} " in said
    assert find_algorithm(f"{FOLDER / file}:{class_name}") is cls


@pytest.mark.parametrize("name", sorted(MOVED))
def test_an_old_name_is_refused(name: str) -> None:
    with pytest.raises(JobFileError, match=f"^sync.algorithm: '{name}' is ") as caught:
        check_sync(_job(algorithm=name))
    assert str(caught.value) == f"sync.algorithm: {name!r} {MOVED[name]}"
    with pytest.raises(JobFileError, match=f"^sync.algorithm: '{name}' is "):
        with_sync_nodes(_job(algorithm=name), may_import=False)


def test_gossip_says_what_it_is_now() -> None:
    with pytest.raises(AlgorithmError, match="is 'ds_sync' with groups of 2, the default; give that"):
        find_algorithm("gossip")
    assert make_algorithm("ds_sync", {}).describe()["group_size"] == 2


@pytest.mark.parametrize(
    ("place", "key", "value", "said"),
    [
        (DILOCO, "outer_lr", 0, "0 given; give a number above 0 and at most 2"),
        (DILOCO, "outer_lr", float("nan"), "nan given; give a number above 0 and at most 2"),
        (DILOCO, "outer_momentum", 1.0, "1.0 given; give a number of at least 0 and below 1"),
        (DOWNPOUR, "rate", 0, "0 given; give a number above 0 and at most 1"),
        (DOWNPOUR, "rate", float("nan"), "nan given; give a number above 0 and at most 1"),
    ],
)
def test_options_that_cannot_be_used(place: str, key: str, value: Any, said: str) -> None:
    with pytest.raises(AlgorithmError) as caught:
        make_algorithm(place, {key: value})
    assert str(caught.value) == f"sync.options.{key}: {said}"


def test_a_symmetric_center_takes_from_all_at_any_rate() -> None:
    """Unlike that of EASGD, which the registry's test refuses at 1 with several trainers."""
    check_sync(_job(algorithm=SYMMETRIC_EASGD, options={"elastic_rate": 1.0}))


def test_what_the_optimizer_may_have_synchronized() -> None:
    def job(place: str, optimizer: str) -> Job:
        whole = _job(algorithm=place, optimizer_state="synchronized").model_dump()
        whole["trainer"]["optimizer"] = optimizer
        return Job.model_validate(whole)

    check_sync(job(DOWNPOUR, "adagrad"))
    with pytest.raises(JobFileError, match=r'can synchronize the state of adagrad, and .* is "adam"'):
        check_sync(job(DOWNPOUR, "adam"))
    with pytest.raises(JobFileError, match="can synchronize the state of no optimizer"):
        check_sync(job(DILOCO, "adagrad"))


@pytest.mark.parametrize("trainers", [1, 3])
@pytest.mark.parametrize("outer", [{}, {"outer_lr": 1.0, "outer_momentum": 0.0}, {"outer_lr": 0.4}])
def test_diloco(trainers: int, outer: dict[str, Any]) -> None:
    """torch.optim.SGD with nesterov=True, in float64, whose gradient is what the mean lacks of the model."""
    options = DiLoCoOptions(**outer)
    run = Run(lambda: DiLoCo(options), trainers)
    model = torch.nn.Parameter(torch.from_numpy(run.exact[0].copy()))
    beta = options.outer_momentum
    sgd = torch.optim.SGD([model], lr=options.outer_lr, momentum=beta, nesterov=beta > 0.0)
    for _ in run.rounds():
        model.grad = model.detach() - torch.from_numpy(np.mean(run.snapshots, axis=0))
        sgd.step()
        target = model.detach().numpy()
        for index in range(trainers):
            run.exact[index] = run.exact[index] + (target - run.snapshots[index])
        run.check()
        for algorithm in run.cluster.algorithms:
            close(algorithm.global_model(), target)
    assert run.cluster.algorithms[0].state().completed_rounds == ROUNDS


def test_diloco_moves_replicas_as_bmuf_with_nesterov_does() -> None:
    """Another model comes out: the one with the look-ahead."""
    nesterov = BMUFOptions(elastic_rate=1.0, form="keep", eta=0.7, block_momentum=0.9, nesterov=True)
    runs = [Run(lambda: DiLoCo(DiLoCoOptions()), 3), Run(lambda: BMUF(nesterov), 3)]
    for _ in zip(*(run.rounds() for run in runs), strict=True):
        for one, other in zip(*(run.cluster.replicas for run in runs), strict=True):
            close(one.values, other.values.numpy().astype(np.float64))
        models = [run.cluster.algorithms[0].global_model() for run in runs]
        assert float((models[0] - models[1]).abs().max()) > 0.05
