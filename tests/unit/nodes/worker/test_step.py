"""A worker's steps, on the CPU and on the streams of a device that is not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.device import HostBatch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker import computation
from shadowsync.nodes.worker.computation import DENSE_NOT_FINITE, EMBEDDINGS_NOT_FINITE, LOSS_NOT_FINITE
from shadowsync.nodes.worker.step import STEP_NOT_FINITE, Step, Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.model import EmbeddingSection
from shadowsync.pipeline.embedding.lookup.vectors import BatchEmbeddings
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.layers.dense import THIN_ELEMENTS
from shadowsync.pipeline.types import Float32Array
from shadowsync.sync_algos.base import Slice
from shadowsync.tests.support.data.plain_job import plain_job
from shadowsync.tests.support.fake_streams import FakeStreams
from shadowsync.tests.support.jobs.unruly_model import NAME as UNRULY
from shadowsync.tests.support.tables.shared import build_shared, on_fake_device
from shadowsync.tests.support.tables.steps import drawn_batch
from torch.overrides import TorchFunctionMode

BATCH, DENSE, TABLES, DIM, ROWS = 16, 3, 4, 2, 11
# A device has the rate in float32.
EXACT_LR = 2.0**-7
Make = Callable[..., TrainerContext]


def _job(*, bottom: int = 6, **trainer: Any) -> Job:
    model = {"embedding_dim": DIM, "table_rows": ROWS, "bottom": [bottom], "top": [5]}
    trainer = {"precision": "float32"} | trainer
    return plain_job(DENSE, TABLES, model=model, embedding={"nodes": 2}, trainer=trainer)


def _on_fake_device(shared: TrainerContext) -> tuple[TrainerContext, FakeStreams]:
    streams = FakeStreams()
    return on_fake_device(shared, streams), streams


def _staged(
    shared: TrainerContext, stepper: Stepper, number: int, *, weighted: bool = False, bad: bool = False
) -> Step:
    drawn = drawn_batch(shared, number, BATCH, weighted=weighted)
    if bad:
        drawn[0].dense[3, 1] = np.nan
    return stepper.stage(*drawn)


def _steps(
    shared: TrainerContext, count: int, *, ahead: int, weighted: bool = False
) -> tuple[list[float], list[Float32Array], Stepper]:
    """Losses and gradients of so many batches, `ahead` of them launched before the first is finished."""
    stepper = Stepper(shared)
    losses, gradients, launched = [], [], []
    for number in range(count):
        step = _staged(shared, stepper, number, weighted=weighted)
        stepper.launch(step)
        shared.examples[0] += BATCH
        launched.append(step)
        while len(launched) > ahead or (launched and number == count - 1):
            loss, parts = stepper.finish(launched.pop(0))
            losses.append(loss)
            gradients += parts
    return losses, gradients, stepper


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_device_gives_what_the_cpu_gives(ahead: int, weighted: bool) -> None:
    """To the bit, since the fake device computes on the CPU too; nothing is read before it is there."""
    job = _job(optimizer="adam", lr=EXACT_LR, clip_norm=0.05, weight_decay=0.01)
    plain = build_shared(job)
    losses, gradients, stepper = _steps(plain, 6, ahead=0, weighted=weighted)
    shared = build_shared(job, on_device=True)
    other_losses, other_gradients, other = _steps(shared, 6, ahead=ahead, weighted=weighted)
    assert other_losses == losses
    assert all(np.array_equal(a, b) for a, b in zip(gradients, other_gradients, strict=True))
    assert torch.equal(plain.replica.flat, shared.replica.flat)
    assert 0 < stepper.clipped_steps == other.clipped_steps
    assert any(gradient.any() for gradient in gradients)
    untrained = build_shared(job)
    assert not torch.equal(untrained.replica.flat, plain.replica.flat), "the control"


def test_the_host_waits_once_a_step_and_only_to_finish_it() -> None:
    shared, streams = _on_fake_device(build_shared(_job(clip_norm=1.0)))
    stepper = Stepper(shared)
    steps = []
    for number in range(3):
        steps.append(_staged(shared, stepper, number))
        stepper.launch(steps[-1])
    assert streams.host_waits == 0
    for done, step in enumerate(steps, start=1):
        stepper.finish(step)
        assert streams.host_waits == done


class _Differentiable(TorchFunctionMode):
    """Notes on which stream the inputs of autograd were made: their backward will run there."""

    def __init__(self, streams: FakeStreams) -> None:
        super().__init__()
        self.streams = streams
        self.made_on: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        found = result if isinstance(result, tuple | list) else [result]
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in found):
            current = self.streams.current
            self.made_on.append(current.name if current is not None else "the default stream")
        return result


def test_all_of_a_workers_backward_is_on_its_own_stream() -> None:
    """Else autograd chains the backward of all workers on the default stream."""
    shared, streams = _on_fake_device(build_shared(_job()))
    device_streams = [shared.device.open_stream() for _ in range(2)]
    labels, dense = np.zeros(BATCH, np.float32), np.zeros((BATCH, DENSE), np.float32)
    requests = shared.router.requests(np.zeros((TABLES, BATCH), np.int32))
    replies = [np.zeros(request.floats, np.float32) for request in requests]
    indices, data = shared.router.gather(requests, replies)
    stream_names = []
    for stream in device_streams:
        with _Differentiable(streams) as noted:
            staged = stream.stage(HostBatch(labels, None, dense, indices, data, 0.1))
        assert not noted.made_on
        with stream.computing(staged), _Differentiable(streams) as noted:
            compute, inputs = streams.current, staged.inputs()
            vectors = BatchEmbeddings(indices.layout, inputs.tensors, inputs.data)
        assert all(embedding.requires_grad for embedding in vectors.embeddings)
        assert compute is not None
        assert noted.made_on
        assert set(noted.made_on) == {compute.name}
        stream_names.append(compute.name)
    assert len(set(stream_names)) == 2
    with _Differentiable(streams) as noted:
        vectors.embeddings[0].view(-1)
    assert noted.made_on == ["the default stream"], "the control"


def test_results_are_not_there_before_the_wait() -> None:
    """The control of the fake: what is read without waiting is NaN, on the way there and back."""
    shared = build_shared(_job(), on_device=True)
    stepper = Stepper(shared)
    step = _staged(shared, stepper, 1)
    assert step.staged.inputs().labels.isnan().all()
    stepper.launch(step)
    assert not step.staged.inputs().labels.isnan().any()
    host = step.pending.host  # type: ignore[union-attr]
    assert host.isnan().all()
    stepper.finish(step)
    assert not host.isnan().any()


def test_shadow_and_workers_are_ordered_on_the_device() -> None:
    """A snapshot is behind the steps launched before it, the next step behind what the shadow thread did;
    the host waits for the snapshot alone."""
    shared, streams = _on_fake_device(build_shared(_job()))
    stepper = Stepper(shared)
    replica, part = shared.replica, Slice(5, 25)
    stepper.launch(_staged(shared, stepper, 1))
    stepped = streams.log[-1].removeprefix("record ").split(" on ")[0]
    streams.log.clear()
    seen = replica.snapshot(part)
    assert torch.equal(seen, replica.flat[5:25])
    assert streams.host_waits == 1
    shadow_stream = streams.log[0].split(" behind ")[0]
    assert streams.log[0] == f"{shadow_stream} behind {stepped}"
    before = replica.flat.clone()
    replica.add_(part, torch.ones(20), 0.5)
    replica.interpolate_(part, torch.zeros(20), 0.25)
    assert streams.host_waits == 1, "changes are enqueued, not waited for"
    torch.testing.assert_close(replica.flat[5:25], (before[5:25] + 0.5) * 0.75)
    assert torch.equal(replica.flat[25:], before[25:])
    assert streams.log[-1].startswith("record")
    changed = streams.log[-1].removeprefix("record ").removesuffix(f" on {shadow_stream}")
    streams.log.clear()
    stepper.launch(_staged(shared, stepper, 2))
    assert any(line.endswith(f"behind {changed}") for line in streams.log)
    assert streams.host_waits == 1


def test_reading_a_replica_gives_memory_of_the_host() -> None:
    shared = build_shared(_job(), on_device=True)
    flat = shared.replica.flat
    assert torch.equal(shared.replica.read(), flat)
    assert torch.equal(shared.replica.read(3, 9), flat[3:9])
    assert torch.equal(shared.replica.read(stride=7), flat[::7])
    copy = shared.replica.read()
    copy += 1.0
    assert not torch.equal(shared.replica.read(), copy)


def _score(shared: TrainerContext) -> tuple[QualitySums, float | None]:
    stepper, sums = Stepper(shared), PassSums()
    stepper.score_with(shared.replica.read())
    before = shared.replica.flat.clone()
    stepper.score(*drawn_batch(shared, 1, BATCH, weighted=True), sums)
    assert torch.equal(shared.replica.flat, before)
    return sums.quality, sums.quality.ne


def test_scoring_is_the_same_on_a_device() -> None:
    job = _job()
    sums, ne = _score(build_shared(job))
    others, same = _score(build_shared(job, on_device=True))
    assert ne is not None
    assert (others.weight, same) == (sums.weight, ne)
    assert sums.weight != sums.examples, "the weights were used"


def test_progressive_scores_are_those_before_the_step() -> None:
    shared = build_shared(_job())
    sums = QualitySums()
    stepper = Stepper(shared)
    step = _staged(shared, stepper, 1, weighted=True)
    stepper.launch(step)
    loss, _ = stepper.finish(step, sums)
    assert sums.logloss == pytest.approx(loss, rel=1e-5)


def test_the_rate_follows_the_examples_of_all_trainers() -> None:
    schedule = {"kind": "linear", "decay_examples": 100 * BATCH}
    shared = build_shared(_job(schedule=schedule, count=2, optimizer="sgd"))
    stepper = Stepper(shared)
    shared.count.update(50 * BATCH, 0)
    step = _staged(shared, stepper, 1)
    stepper.launch(step)
    assert step.rows_scale == pytest.approx(1 - 51 / 100)
    frozen = build_shared(_job(schedule=schedule | {"tables": False}, count=2))
    frozen.count.update(100 * BATCH, 0)
    before = frozen.replica.flat.clone()
    other = Stepper(frozen)
    step = _staged(frozen, other, 1)
    other.launch(step)
    assert step.rows_scale == 1.0
    assert torch.equal(frozen.replica.flat, before), "at the end of the schedule the rate is 0"


def test_rates_of_rows_grow_over_the_first_iterations_of_the_one_that_begins() -> None:
    warmup = 4
    job = _job(count=2, batch=BATCH).model_copy(
        update={"embedding": EmbeddingSection(warmup_iterations=warmup)}
    )
    shared = build_shared(job)
    stepper = Stepper(shared)
    step = _staged(shared, stepper, 1)
    stepper.launch(step)
    assert (step.dense_scale, step.rows_scale) == (1.0, 1 / warmup)
    shared.count.update((warmup - 1) * BATCH, 0)
    step = _staged(shared, stepper, 2)
    stepper.launch(step)
    assert (step.dense_scale, step.rows_scale) == (1.0, 1.0)


def _unruly(kind: str, **trainer: Any) -> Job:
    """Of a model for which every batch is bad in this way."""
    job = _job(**trainer).model_dump(mode="json")
    job["model"] |= {"name": UNRULY, "options": {"kind": kind, "one_in": 1}}
    return Job.model_validate(job, strict=False)


def _state(shared: TrainerContext) -> dict[str, torch.Tensor]:
    """Copies of all that a step changes; of Adagrad nothing goes by the step count.

    No parameter misses a step here.
    """
    state = {name: value.clone() for name, value in shared.optimizer.state.items() if name != "missed"}
    if shared.job.trainer.optimizer == "adagrad":
        del state["step"]
    return state | {"flat": shared.replica.flat.clone()}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "adamw"])
@pytest.mark.parametrize("kind", ["loss", "dense", "rows", "fine"])
@pytest.mark.parametrize("where", ["host", "device", "device, launched ahead"])
def test_what_is_not_finite_changes_nothing(where: str, kind: str, optimizer: str) -> None:
    """With a decay of weights, which would change them even where a gradient is 0."""
    trainer: dict[str, Any] = {"optimizer": optimizer, "weight_decay": 0.01, "clip_norm": 1.0}
    job = _job(**trainer) if kind == "fine" else _unruly(kind, **trainer)
    shared = build_shared(job, on_device=where != "host")
    stepper, sums = Stepper(shared), QualitySums()
    before = _state(shared)
    steps = [_staged(shared, stepper, number) for number in range(2 if "ahead" in where else 1)]
    for step in steps:
        stepper.launch(step)
    results = [stepper.finish(step, sums) for step in steps]
    after = _state(shared)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    if kind == "fine":
        assert changed == set(before), "the control"
        assert all(not step.left_out for step in steps)
        assert sums.examples == BATCH * len(steps)
        return
    why = {"loss": LOSS_NOT_FINITE, "dense": DENSE_NOT_FINITE, "rows": EMBEDDINGS_NOT_FINITE}[kind]
    assert changed == set()
    assert {step.left_out for step in steps} == {why if where == "host" else STEP_NOT_FINITE}
    assert results == [(0.0, [])] * len(steps)
    assert (sums.examples, stepper.clipped_steps) == (0, 0)


@pytest.mark.parametrize("what", ["dense", "rows", "neither"])
@pytest.mark.parametrize("on_device", [False, True])
def test_finite_gradients_whose_squares_are_not_change_nothing(
    on_device: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adagrad would keep an infinite sum of squares, of the dense parameters here and of the rows at a node,
    and never move these again."""
    shared = build_shared(_job(optimizer="adagrad"), on_device=on_device)
    stepper, sizes = Stepper(shared), {"dense": (1e20, 1.0), "rows": (1.0, 1e20), "neither": (1e9, 1e9)}
    step = _staged(shared, stepper, 1)
    dense, rows = sizes[what]
    for parameter in stepper.module.parameters():
        parameter.register_hook(lambda gradient: gradient * 0 + dense)  # type: ignore[no-untyped-call]

    def hooked(*given: Any) -> BatchEmbeddings:
        vectors = BatchEmbeddings(*given)
        for leaf in vectors.leaves:
            leaf.register_hook(lambda gradient: gradient * 0 + rows)  # type: ignore[no-untyped-call]
        return vectors

    monkeypatch.setattr(computation, "BatchEmbeddings", hooked)
    before = _state(shared)
    stepper.launch(step)
    _, gradients = stepper.finish(step)
    changed = {name for name, value in _state(shared).items() if not torch.equal(before[name], value)}
    if what == "neither":
        assert (changed, step.left_out) == (set(before), ""), "the control"
        return
    assert changed == set()
    assert gradients == []
    assert step.left_out == (
        STEP_NOT_FINITE if on_device else DENSE_NOT_FINITE if what == "dense" else EMBEDDINGS_NOT_FINITE
    )


@pytest.mark.parametrize("on_device", [False, True])
def test_the_batch_after_a_bad_one_trains_as_if_there_had_been_none(on_device: bool) -> None:
    """To the bit, also where it is launched before anybody knows that the one before is bad."""
    job = _job(optimizer="adam", clip_norm=0.05, weight_decay=0.01)
    shared, plain = build_shared(job, on_device=on_device), build_shared(job)
    stepper, other = Stepper(shared), Stepper(plain)
    bad = _staged(shared, stepper, 1, bad=True)
    good, same = _staged(shared, stepper, 2), _staged(plain, other, 2)
    stepper.launch(bad)
    stepper.launch(good)
    other.launch(same)
    stepper.finish(bad)
    loss, gradients = stepper.finish(good)
    wanted_loss, wanted = other.finish(same)
    assert bad.left_out
    assert loss == wanted_loss
    assert all(np.array_equal(a, b) for a, b in zip(gradients, wanted, strict=True))
    assert torch.equal(shared.replica.flat, plain.replica.flat)


def test_bfloat16_is_near_float32_and_another_number() -> None:
    # Thin layers are float32 always: the first one is wide.
    wide = 1 + THIN_ELEMENTS // min(DENSE, DIM)
    exact = build_shared(_job(bottom=wide))
    near = build_shared(_job(bottom=wide, precision="bfloat16"))
    losses, gradients, _ = _steps(exact, 4, ahead=0)
    others, rounded, _ = _steps(near, 4, ahead=0)
    assert losses != others
    assert others == pytest.approx(losses, rel=0.02)
    assert all(gradient.dtype == np.float32 for gradient in rounded)
    assert near.replica.flat.dtype == torch.float32
    assert all(state.dtype == torch.float32 for state in near.optimizer.state.values())
    far = [np.abs(a - b).max() for a, b in zip(gradients, rounded, strict=True)]
    size = [np.abs(a).max() for a in gradients]
    assert 0 < max(far) < 0.1 * max(size)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_replay_has_its_gradients_and_updates_nothing(on_device: bool) -> None:
    """Its dense update was made before; only a new embedding node lacks its gradients."""
    shared = build_shared(_job(optimizer="adam", weight_decay=0.01), on_device=on_device)
    stepper, before = Stepper(shared), shared.replica.read().clone()
    step = _staged(shared, stepper, 0)
    replay = dataclasses.replace(step.delivery, replay=True)
    requests = shared.router.requests(replay.rows)
    replies = [np.full(request.floats, 0.1, np.float32) for request in requests]
    loss, gradients = stepper.train(replay, requests, replies)
    assert loss > 0
    assert any(gradient.any() for gradient in gradients)
    assert torch.equal(shared.replica.read(), before)
    other_loss, other_gradients = stepper.train(step.delivery, requests, replies)
    assert other_loss == loss
    assert all(np.array_equal(a, b) for a, b in zip(gradients, other_gradients, strict=True))
    assert not torch.equal(shared.replica.read(), before), "the control"
