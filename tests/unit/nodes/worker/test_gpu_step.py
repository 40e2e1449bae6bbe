"""A worker's steps on a real GPU: near the CPU's, no waits of the host, in order with the shadow thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.cuda import DeviceReplica
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker import captured_steps
from shadowsync.nodes.worker.captured_steps import EAGER_STEPS
from shadowsync.nodes.worker.step import Step, Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.sync_algos.base import Slice
from shadowsync.tests.support.gpu import GPU, needs_gpu
from shadowsync.tests.support.tables.shared import build_shared

pytestmark = needs_gpu
BATCH, DENSE, TABLES, DIM, ROWS, STEPS = 256, 13, 8, 16, 100, 20


def _shared(device: str, model_name: str = "dlrm", /, **trainer: Any) -> TrainerContext:
    data = {"format": "parquet", "path": ["x"], "dense_features": DENSE, "categorical_features": TABLES}
    model = {"name": model_name, "embedding_dim": DIM, "table_rows": ROWS, "top": [64]}
    model |= {"bottom": [64]} if model_name == "dlrm" else {}
    sections = {"data": data, "model": model, "trainer": {"device": device, "lr": 0.01} | trainer}
    return build_shared(Job.model_validate(sections))


def _delivery(number: int) -> tuple[Delivery, np.random.Generator]:
    generator = np.random.default_rng(number)
    dense = generator.normal(0, 1, (BATCH, DENSE)).astype(np.float32)
    delivery = Delivery(
        sequence=number,
        pass_number=0,
        id=BatchId(0, 0, number, 1),
        labels=(dense[:, 0] + 0.5 * dense[:, 1] > 0.5).astype(np.float32),
        dense=dense,
        rows=generator.integers(0, ROWS, (TABLES, BATCH), dtype=np.int32),
        weights=generator.exponential(1.0, BATCH).astype(np.float32),
    )
    return delivery, generator


def _staged(shared: TrainerContext, stepper: Stepper, number: int) -> Step:
    delivery, generator = _delivery(number)
    requests = shared.router.requests(delivery.rows)
    replies = [generator.normal(0, 0.2, r.floats).astype(np.float32) for r in requests]
    return stepper.stage(delivery, requests, replies)


def _train(shared: TrainerContext, steps: int = STEPS) -> tuple[list[float], list[np.ndarray[Any, Any]]]:
    stepper = Stepper(shared)
    launched: list[Step] = []
    losses: list[float] = []
    gradients: list[np.ndarray[Any, Any]] = []
    for number in range(steps):
        launched.append(_staged(shared, stepper, number))
        stepper.launch(launched[-1])
        while len(launched) > stepper.ahead or (launched and number == steps - 1):
            loss, parts = stepper.finish(launched.pop(0))
            losses.append(loss)
            gradients += parts
    return losses, gradients


@contextmanager
def _no_hidden_waits() -> Iterator[None]:
    """Torch raises for every operation of its own that makes the host wait for the device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "adamw"])
def test_it_trains_as_the_cpu_does(optimizer: str) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "clip_norm": 0.5, "weight_decay": 0.001}
    plain, on_gpu = _shared("cpu", **settings), _shared(GPU, **settings)
    losses, gradients = _train(plain)
    others, same = _train(on_gpu)
    assert others == pytest.approx(losses, rel=2e-3)
    for mine, yours in zip(gradients, same, strict=True):
        np.testing.assert_allclose(mine, yours, rtol=0.05, atol=2e-3 * float(np.abs(mine).max()))
    torch.testing.assert_close(on_gpu.replica.read(), plain.replica.read(), rtol=0.02, atol=2e-3)
    untrained = _shared("cpu", **settings)
    moved = (plain.replica.read() - untrained.replica.read()).abs().max()
    assert moved > 5 * (plain.replica.read() - on_gpu.replica.read()).abs().max(), "the control"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("captured", [False, True])
def test_no_step_makes_the_host_wait(optimizer: str, precision: str, captured: bool) -> None:
    shared = _shared(GPU, optimizer=optimizer, precision=precision, clip_norm=1.0)
    stepper = Stepper(shared)
    for number in range(EAGER_STEPS + 1 if captured else 1):
        stepper.finish(_launch(shared, stepper, number))
    steps, before = [], stepper.captured_steps
    with _no_hidden_waits():
        for number in range(10, 12):
            steps.append(_launch(shared, stepper, number))
            shared.replica.add_(Slice(0, 10), torch.ones(10), 1e-6)
    assert stepper.captured_steps - before == (2 if captured else 0)
    assert all(np.isfinite(stepper.finish(step)[0]) for step in steps)
    with _no_hidden_waits(), pytest.raises(RuntimeError, match="synchroniz"):
        shared.replica.flat.sum().item()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "adamw"])
@pytest.mark.parametrize("name", ["dlrm", "dcn_v2", "wide_deep"])
def test_captured_steps_are_eager_ones(
    name: str, optimizer: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, told = [], list[str]()
    for eager in (False, True):
        if eager:
            monkeypatch.setattr(captured_steps, "EAGER_STEPS", 10**9)
        shared = _shared(GPU, name, optimizer=optimizer, precision=precision, clip_norm=0.5)
        stepper = Stepper(shared, told.append)
        losses.append([stepper.finish(_launch(shared, stepper, number))[0] for number in range(STEPS)])
        assert (stepper.captured_steps > 0) is not eager
    assert told == []
    assert losses[0] == pytest.approx(losses[1], rel=1e-2 if precision == "bfloat16" else 1e-4)
    assert losses[0][0] != pytest.approx(losses[0][-1], rel=1e-2), "the control: it learns"


def _launch(shared: TrainerContext, stepper: Stepper, number: int) -> Step:
    step = _staged(shared, stepper, number)
    stepper.launch(step)
    return step


def _sleep_on(stream: Any) -> None:
    """What is enqueued on the stream from now on comes a second later, or about that."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]


def _warm() -> tuple[TrainerContext, Stepper]:
    """After one of everything: a first use of memory, a kernel or a library waits for the whole device."""
    shared = _shared(GPU, optimizer="sgd", lr=0.5)
    stepper = Stepper(shared)
    for number in range(3):
        stepper.finish(_launch(shared, stepper, number))
        shared.replica.snapshot(shared.replica.whole)
        shared.replica.add_(shared.replica.whole, torch.zeros(len(shared.replica.whole)), 1.0)
        shared.replica.interpolate_(shared.replica.whole, torch.zeros(len(shared.replica.whole)), 0.0)
    torch.cuda.synchronize()
    return shared, stepper


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "the control"])
def test_a_snapshot_is_behind_the_steps(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, stepper = _warm()
    whole = shared.replica.whole
    before = shared.replica.snapshot(whole)
    if not ordered:
        monkeypatch.setattr(DeviceReplica, "_locate", lambda _: None)
    _sleep_on(stepper._stream._compute)  # type: ignore[attr-defined]
    step = _launch(shared, stepper, 3)
    seen = shared.replica.snapshot(whole)
    stepper.finish(step)
    torch.cuda.synchronize()
    after = shared.replica.flat.cpu()
    assert not torch.equal(before, after)
    assert torch.equal(seen, after if ordered else before)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "the control"])
def test_the_next_step_is_behind_the_change(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, stepper = _warm()
    replica = shared.replica
    if not ordered:
        monkeypatch.setattr(DeviceReplica, "order", lambda *_: None)
    _sleep_on(replica._stream)  # type: ignore[attr-defined]
    replica.interpolate_(replica.whole, torch.zeros(len(replica.whole)), 1.0)
    loss, _ = stepper.finish(_launch(shared, stepper, 3))
    torch.cuda.synchronize()
    # Of a replica of zeros every logit is 0, whatever it was before.
    assert (loss == pytest.approx(float(np.log(2)), rel=1e-5)) is ordered


def test_workers_and_the_shadow_thread_together() -> None:
    """Two workers and changes that add up to nothing: all of it is finite and trains."""
    shared = _shared(GPU, workers=2)
    ends = threading.Event()

    def shadow() -> int:
        whole, rounds = shared.replica.whole, 0
        ones = torch.ones(len(whole))
        while not ends.is_set():
            assert shared.replica.snapshot(whole).isfinite().all()
            shared.replica.add_(whole, ones, 1e-3)
            shared.replica.add_(whole, ones, -1e-3)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as threads:
        rounds = threads.submit(shadow)
        try:
            workers = [threads.submit(_train, shared, 200) for _ in range(2)]
            losses = [worker.result(60.0)[0] for worker in workers]
        finally:
            ends.set()
        assert rounds.result(60.0) > 0
    assert all(np.isfinite(own).all() for own in losses)
    # The control has seen the same batches and learned nothing: 0.69, and of those that learn 0.07 at most.
    untrained, _ = _train(_shared(GPU, lr=1e-9), 200)
    assert all(max(own[-20:]) < 0.5 * min(untrained[-20:]) for own in losses)


def test_scores_are_those_of_the_cpu() -> None:
    scored = []
    for device in ("cpu", GPU):
        shared = _shared(device)
        stepper, sums = Stepper(shared), PassSums()
        stepper.score_with(shared.replica.read())
        delivery, generator = _delivery(5)
        requests = shared.router.requests(delivery.rows)
        replies = [generator.normal(0, 0.2, r.floats).astype(np.float32) for r in requests]
        stepper.score(delivery, requests, replies, sums)
        scored.append(sums.quality)
    assert scored[0].ne == pytest.approx(scored[1].ne, rel=1e-3)
    assert scored[0].weight == scored[1].weight
