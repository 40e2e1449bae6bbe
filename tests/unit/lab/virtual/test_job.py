"""A job on emulated machines: the same bytes every time, and what its times and links do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.result import CURVE_POINTS, VirtualResult
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.config import job as job_module
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker

# A step takes 20 ms, so a trainer has a round after some 5 of them.
TIMING = Timing(step_seconds=0.02, round_cpu_seconds=0.001)


def emulated(
    job_file: JobMaker, timing: Timing = TIMING, trainers: int = 4, **sections: dict[str, Any]
) -> VirtualResult:
    trainer = {"count": trainers, **sections.pop("trainer", {})}
    return run_virtual(load_job(str(job_file({**sections, "trainer": trainer}))), timing)


@pytest.mark.parametrize(
    "sync",
    [
        {"algorithm": "easgd"},
        pytest.param({"algorithm": "ma", "nodes": 0}, marks=pytest.mark.matrix),
        pytest.param({"algorithm": "ds_sync", "nodes": 0}, marks=pytest.mark.matrix),
        pytest.param({"algorithm": "easgd", "mode": "fixed", "every": 4}, marks=pytest.mark.matrix),
        {"algorithm": "bmuf", "mode": "fixed", "every": 4, "nodes": 0},
    ],
    ids=[
        "easgd",
        "ma",
        "ds_sync",
        "easgd at a fixed rate",
        "bmuf at a fixed rate",
    ],
)
def test_the_same_bytes_every_time(job_file: JobMaker, sync: dict[str, Any]) -> None:
    trainer = {"workers": 2, "batch": 512}
    first, second = (emulated(job_file, sync=sync, trainer=trainer) for _ in range(2))
    assert first == second
    assert first.examples == EXAMPLES
    assert first.rounds >= 8
    assert first.ne is not None
    if sync == {"algorithm": "easgd"}:
        # The control: another order of events, other bytes.
        spread = TIMING.model_copy(update={"step_spread": 0.2})
        assert emulated(job_file, spread, sync=sync, trainer=trainer).digest != first.digest


def test_rounds_follow_the_duty_cycle(job_file: JobMaker) -> None:
    seldom, often = (emulated(job_file, sync={"duty": duty}) for duty in (0.005, 0.02))
    # Besides the first and the closing round of each of the four trainers.
    assert often.rounds - 8 == pytest.approx(4 * (seldom.rounds - 8), rel=0.1)
    assert often.divergence is not None
    assert seldom.divergence is not None


@pytest.mark.matrix
def test_a_target_gap_is_kept(job_file: JobMaker) -> None:
    wide = {"duty": 1.0, "gap": 8}
    result = emulated(job_file, sync=wide)
    # At the beginning, four times while 39 or 40 iterations are done, and the closing round.
    assert result.rounds == pytest.approx(4 * 6, abs=4)
    assert emulated(job_file, sync={"duty": 1.0}).rounds > 2 * result.rounds, "the control"
    dense = emulated(job_file, sync={"duty": 1.0, "gap": 8, "start_iterations": 30})
    assert min(dense.early_rounds) > max(result.early_rounds)


@pytest.mark.matrix
def test_a_long_link_makes_rounds_longer_and_training_waits_only_at_a_fixed_rate(job_file: JobMaker) -> None:
    near: dict[str, Any] = {}
    far: dict[str, Any] = {"network": {"delay": "500ms"}}
    fixed: dict[str, Any] = {"sync": {"mode": "fixed", "every": 4}}
    in_background = [emulated(job_file, **network) for network in (near, far)]
    in_the_loop = [emulated(job_file, **network, **fixed) for network in (near, far)]
    assert in_background[1].rounds < in_background[0].rounds
    assert in_background[1].seconds == in_background[0].seconds
    assert in_the_loop[1].rounds == in_the_loop[0].rounds
    # Each trainer waits for there and back, every fourth iteration.
    waits = in_the_loop[1].iterations[0] // 4
    assert in_the_loop[1].seconds - in_the_loop[0].seconds == pytest.approx(waits, rel=0.05)


def test_a_slow_trainer_takes_fewer_batches(job_file: JobMaker) -> None:
    result = emulated(job_file, Timing(slower=(3.0,)), trainers=3)
    slow, *others = result.iterations
    # Two files, each cut by itself.
    assert sum(result.iterations) == 2 * math.ceil(EXAMPLES / 2 / 128)
    assert [slow * 3] * 2 == [pytest.approx(other, rel=0.1) for other in others]


@pytest.mark.matrix
def test_staleness_is_what_is_trained_between_a_lookup_and_its_push(job_file: JobMaker) -> None:
    def staleness(timing: Timing, **trainer: int | bool) -> float:
        return emulated(job_file, timing, 1, sync={"algorithm": "none"}, trainer=trainer).staleness

    exact = Timing(step_spread=0.0)
    late = exact.model_copy(update={"push_seconds": 0.05})
    assert staleness(exact, exact_rows=False) == pytest.approx(1.0, abs=0.02)
    assert staleness(exact, lookups_ahead=0) == 0.0
    assert staleness(late, exact_rows=False) == pytest.approx(4.0, abs=0.6)
    assert staleness(late) == 0.0, "its own pushes are in its rows"


@pytest.mark.parametrize("depth", [4, 16])
@pytest.mark.parametrize("kind", ["hashed", pytest.param("growing", marks=pytest.mark.matrix)])
def test_rows_that_are_looked_up_ahead_are_exact(job_file: JobMaker, kind: str, depth: int) -> None:
    """Lookups and pushes take longer than a step, so that many are on their way: to the bit under SGD."""
    slow = TIMING.model_copy(update={"lookup_seconds": 0.07, "push_seconds": 0.07})

    def with_depth(ahead: int, **trainer: bool) -> VirtualResult:
        settings: dict[str, Any] = {
            "sync": {"algorithm": "none"},
            "trainer": {"lookups_ahead": ahead, "credit": 32, **trainer},
            # Growing tables of few rows would free some.
            "model": {"table_kind": kind, "table_rows": 20_000},
            "embedding": {"optimizer": "sgd", "lr": 1.0},
        }
        return emulated(job_file, slow, 1, **settings)

    in_order, ahead, old = with_depth(0), with_depth(depth), with_depth(depth, exact_rows=False)
    assert (ahead.digest, ahead.ne) == (in_order.digest, in_order.ne)
    assert ahead.seconds < 0.5 * in_order.seconds
    assert (ahead.staleness, old.staleness > depth / 2) == (0.0, True)
    assert old.ne != pytest.approx(in_order.ne, abs=1e-5), "the control"


def test_the_start_of_one_trainer_waits_for_no_link_if_its_rows_are_exact(job_file: JobMaker) -> None:
    """The job is shorter than its start, in which rows that are not exact are looked up in order."""
    far = TIMING.model_copy(update={"lookup_seconds": 0.04, "push_seconds": 0.04})

    def seconds(timing: Timing, **trainer: bool | int) -> float:
        warm: dict[str, Any] = {"sync": {"algorithm": "none"}, "embedding": {"warmup_iterations": 10}}
        return emulated(job_file, timing, trainer=trainer, trainers=1, **warm).seconds

    near = seconds(TIMING)
    assert seconds(far) < 1.2 * near
    assert seconds(far, exact_rows=False) > 2 * near, "the control"


@pytest.mark.matrix
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad", "adam"])
def test_exact_rows_have_an_exact_state(job_file: JobMaker, optimizer: str) -> None:
    """Its sums are made in another order, so to rounding."""

    def with_depth(ahead: int, **trainer: bool) -> float:
        settings: dict[str, Any] = {
            "sync": {"algorithm": "none"},
            "trainer": {"lookups_ahead": ahead, "credit": 32, **trainer},
            "embedding": {"optimizer": optimizer},
        }
        ne = emulated(job_file, TIMING, 1, **settings).ne
        assert ne is not None
        return ne

    in_order = with_depth(0)
    assert with_depth(16) == pytest.approx(in_order, abs=1e-6)
    assert with_depth(16, exact_rows=False) != pytest.approx(in_order, abs=1e-4), "the control"


def test_workers_see_each_others_pushes(job_file: JobMaker) -> None:
    """All of a trainer's workers add to one map; what others push while a batch is computed is lacking."""

    def staleness(**trainer: bool) -> float:
        settings = {"workers": 4, "lookups_ahead": 8, "credit": 32, **trainer}
        return emulated(job_file, TIMING, 1, sync={"algorithm": "none"}, trainer=settings).staleness

    assert staleness() == pytest.approx(3, abs=0.2)
    assert staleness(exact_rows=False) > 20


@pytest.mark.matrix
def test_the_first_round_may_cost_more_than_the_others(job_file: JobMaker) -> None:
    alike = emulated(job_file)
    dear = emulated(job_file, TIMING.model_copy(update={"first_round_cpu_seconds": 0.02}))
    assert max(dear.early_rounds) < min(alike.early_rounds)


@pytest.mark.parametrize(
    "sync",
    [
        {"algorithm": "bmuf", "nodes": 0, "duty": 0.02},
        {"algorithm": "bmuf", "mode": "fixed", "every": 4, "nodes": 0},
        {"algorithm": "easgd", "mode": "fixed", "every": 4},
        pytest.param({"algorithm": "none", "nodes": 0}, marks=pytest.mark.matrix),
        pytest.param({"algorithm": "ds_sync", "nodes": 0}, marks=pytest.mark.matrix),
    ],
)
def test_one_trainer_begins_and_the_others_join_it(
    job_file: JobMaker, monkeypatch: pytest.MonkeyPatch, sync: dict[str, Any]
) -> None:
    monkeypatch.setattr(job_module, "LEAST_START_EXAMPLES", 2_560)
    # An exact time: a step as long as any other.
    machines = TIMING.model_copy(update={"step_spread": 0.0})
    warm: dict[str, Any] = {"sync": sync, "trainer": {"batch": 128}, "embedding": {"warmup_iterations": 2}}
    result = emulated(job_file, machines, trainers=3, **warm)
    first, *others = result.iterations
    assert result.examples == EXAMPLES
    assert [first - other for other in others] == [pytest.approx(20, abs=2)] * 2
    together = emulated(job_file, machines, trainers=3, **warm | {"embedding": {}})
    first, *others = together.iterations
    assert others == [pytest.approx(first, abs=2)] * 2, "the control"
    assert emulated(job_file, machines, trainers=3, **warm) == result


def test_the_others_have_nothing_left_if_the_input_ends_in_the_start(job_file: JobMaker) -> None:
    result = emulated(job_file, trainers=3, embedding={"warmup_iterations": 2})
    assert result.examples == EXAMPLES
    assert result.iterations[1:] == [0, 0]
    assert result.ne is not None


def test_with_one_replica_there_is_no_divergence(job_file: JobMaker) -> None:
    alone = emulated(job_file, trainers=1, sync={"algorithm": "none"})
    assert (alone.divergence, alone.rounds, alone.gap_mean) == (None, 0, None)
    assert {point.divergence for point in alone.curve} == {None}


@pytest.mark.matrix
def test_curves_are_of_all_examples_and_bounded(job_file: JobMaker) -> None:
    result = emulated(job_file, trainers=2, trainer={"batch": 48})
    assert CURVE_POINTS / 2 <= len(result.curve) <= 2 * CURVE_POINTS < sum(result.iterations)
    assert result.curve[-1].examples == pytest.approx(EXAMPLES, rel=2 / CURVE_POINTS)
    assert result.curve[-1].seconds == pytest.approx(result.seconds, rel=0.05)
    assert result.curve[-1].ne is not None
    assert result.curve[0].ne is not None
    assert result.curve[-1].ne < result.curve[0].ne


def test_curves_are_weighted_as_the_scores_are(job_file: JobMaker, tmp_path: Path) -> None:
    """Positives weigh more, and the curve has one point, for the only batch."""
    count = 1000
    labels = np.arange(count) % 4 == 0
    table = {"y": labels.astype(np.int8), "x": np.linspace(-1, 1, count), "w": np.where(labels, 3.0, 1.0)}
    pq.write_table(pa.table(table | {"id": pa.array(["a"] * count)}), tmp_path / "weighted.parquet")
    ne = {}
    for weight in ("weight", "ignored"):
        data = {
            "path": str(tmp_path / "weighted.parquet"),
            "eval_path": None,
            "columns": {"y": "label", "x": "dense", "w": weight, "id": "categorical"},
        }
        trained = emulated(job_file, trainers=1, trainer={"batch": count}, data=data)
        (point,) = trained.curve
        assert point.ne == pytest.approx(trained.training_ne, rel=1e-5)
        ne[weight] = point.ne
    assert ne["weight"] != pytest.approx(ne["ignored"], rel=0.01), "the control"


@pytest.mark.matrix
def test_a_trainer_without_a_partner_sends_nothing(job_file: JobMaker) -> None:
    def sync_bytes(trainers: int) -> float:
        made = emulated(job_file, trainers=trainers, sync={"algorithm": "ds_sync", "nodes": 0, "duty": 0.005})
        return made.sync_bytes / made.rounds

    assert sync_bytes(1) == 0
    # One of three has none in each round, and the others send the whole model.
    of_two = sync_bytes(2)
    assert of_two > 0
    assert sync_bytes(3) == pytest.approx(of_two * 2 / 3, rel=0.05)


@pytest.mark.parametrize("algorithm", ["decoupled", "ma", "ds_sync"])
def test_a_trainer_that_has_nothing_left_makes_no_rounds_of_its_own(
    job_file: JobMaker, algorithm: str
) -> None:
    """While a slow one still trains; with an all-reduce it takes part in those of the others."""
    result = emulated(
        job_file,
        TIMING.model_copy(update={"slower": (1.0, 1.0, 60.0)}),
        trainers=3,
        trainer={"batch": 1024},
        sync={"algorithm": algorithm, "mode": "fixed", "every": 2},
    )
    of_one = max(result.iterations) // 2
    of_all = sum(own // 2 for own in result.iterations) if algorithm == "decoupled" else 3 * of_one
    # And the closing ones.
    assert 3 < result.rounds <= of_all + 3


RANKER = """
import torch
from torch.nn.functional import softplus


class Ranker(torch.nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.layer = torch.nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense, embeddings):
        return self.layer(torch.cat([dense, *embeddings], dim=1)).squeeze(1)

    def loss(self, outputs, batch):
        user, labels = batch.groups["user"], batch.labels
        pairs = (user[:, None] == user) & (labels[:, None] > labels)
        return (softplus(outputs - outputs[:, None]) * pairs).sum() / pairs.sum().clamp(min=1)
"""


def test_a_loss_of_ones_own_sees_the_groups(job_file: JobMaker, tmp_path: Path) -> None:
    (tmp_path / "ranker.py").write_text(RANKER, encoding="utf-8")
    columns = {"label": "label", "I*": "dense", "C*": "categorical"}
    model = {"name": f"{tmp_path / 'ranker.py'}:Ranker", "loss": "own"}
    results = [
        emulated(job_file, trainers=2, model=model, data={"columns": columns | {"user": user}})
        for user in ({"kind": "group", "source": "C6"}, {"kind": "group", "source": "C3"})
    ]
    assert [result.examples for result in results] == [EXAMPLES] * 2
    assert results[0].auc is not None
    assert results[0].auc > 0.55
    assert results[0].digest != results[1].digest, "of other groups other pairs"


@pytest.mark.parametrize(
    ("algorithm", "way"), [("decoupled", "center"), ("easgd", "center"), ("bmuf", "peers")]
)
def test_codecs_make_fewer_bytes_and_another_model(job_file: JobMaker, algorithm: str, way: str) -> None:
    codecs = {f"{way}_up": "int8", f"{way}_down": "int8"}
    sync = {"algorithm": algorithm, "mode": "fixed", "every": 4}
    plain, coded, again = (
        emulated(job_file, sync=sync, codecs=given) for given in ({}, codecs, dict(codecs))
    )
    assert coded == again
    assert coded.rounds == plain.rounds
    assert coded.digest != plain.digest
    # The first round is float32, and so are deltas at the end.
    assert 2.5 < plain.sync_bytes / coded.sync_bytes < 4.0
    assert plain.ne is not None
    assert coded.ne == pytest.approx(plain.ne, abs=0.01)
