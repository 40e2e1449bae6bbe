"""What people do to a module and its optimizers within an attach block."""

from __future__ import annotations

import copy
import io
import logging
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from safetensors.torch import save_file, save_model
from shadowsync.attached import steps
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.loops.attached_loops import (
    Task,
    hub,
    in_threads,
    sgd,
    small_loop,
    small_model,
    train_until,
    weights_of,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel

STEPS = 6
Act = Callable[[Any, Path], list[Any]]


def _torch_saved(what: Any, place: Path) -> list[int]:  # noqa: ARG001
    file = io.BytesIO()
    torch.save(what, file)
    return [len(file.getvalue())]


def _safe_model(model: Any, place: Path) -> list[bytes]:
    save_model(model, str(place / "model.safetensors"))
    return [(place / "model.safetensors").read_bytes()]


def _safe_file(model: Any, place: Path) -> list[bytes]:
    save_file(model.state_dict(), str(place / "state.safetensors"))
    return [(place / "state.safetensors").read_bytes()]


def _distributed(model: Any, place: Path) -> list[Any]:
    from torch.distributed import checkpoint as dcp

    with warnings.catch_warnings():
        # It says that there is one process only.
        warnings.simplefilter("ignore")
        dcp.save({"model": model.state_dict()}, checkpoint_id=place / "dcp", no_dist=True)  # type: ignore[attr-defined]
    return sorted(one.stat().st_size for one in (place / "dcp").glob("*.distcp"))


def _averaged(model: Any, place: Path) -> list[Any]:  # noqa: ARG001
    average = AveragedModel(model)
    average.update_parameters(model)
    return [storages(average), *average.state_dict().values()]


def _vectors(model: Any, place: Path) -> list[Any]:  # noqa: ARG001
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return [vector, storages(model), *model.state_dict().values()]


def _half(model: Any, place: Path) -> list[Any]:  # noqa: ARG001
    other = copy.deepcopy(model).half()
    model.half().float()
    return [storages(model), storages(other), *other.state_dict().values(), *model.state_dict().values()]


def _shared(model: Any, place: Path) -> list[Any]:  # noqa: ARG001
    model.share_memory()
    return [storages(model), *(p.is_shared() for p in model.parameters())]


def storages(model: nn.Module) -> list[int]:
    """Bytes of the storage of each of its tensors."""
    return [one.untyped_storage().nbytes() for one in model.state_dict().values()]


@pytest.mark.parametrize(
    "what",
    [
        _torch_saved,
        lambda model, place: _torch_saved(model.state_dict(), place),
        lambda model, place: _torch_saved(model[3].state_dict(), place),
        _safe_model,
        _safe_file,
        _distributed,
        lambda model, _: [storages(model), *copy.deepcopy(model).state_dict().values()],
        _averaged,
        _vectors,
        _half,
        _shared,
    ],
)
def test_it_gives_what_it_gives_without_attach(
    what: Callable[[Any, Path], list[Any]], tmp_path: Path
) -> None:
    model, twin = small_model(), small_model()
    (tmp_path / "twin").mkdir()
    (tmp_path / "model").mkdir()
    wanted = what(twin, tmp_path / "twin")
    with hub() as own, shadowsync.attach(model, sgd(model), join=own.endpoint) as sync:
        # A round would take back a part of what is changed here.
        with sync.paused():
            found = what(model, tmp_path / "model")
            assert len(found) == len(wanted)
            for mine, others in zip(found, wanted, strict=True):
                assert torch.equal(mine, others) if isinstance(mine, torch.Tensor) else mine == others
        # And the loop goes on.
        task, optimizer = Task(0), sgd(model)
        train_until(sync, lambda: task.step(model, optimizer), lambda one: one["rounds"] >= 2)


class Wrapping(torch.optim.Optimizer):
    """The usual forms of SAM and Lookahead: another optimizer makes the step."""

    def __init__(self, model: nn.Module, *, puts_back: bool) -> None:
        super().__init__(list(model.parameters()), {"lr": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=0.05)
        self._puts_back = puts_back

    @torch.no_grad()
    def climb(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        if self._puts_back:
            self.climb()
            self.descend()
        else:
            self.base.step()


Loop = tuple[nn.Module, torch.optim.Optimizer]
Step = Callable[[Task, nn.Module], object]


def _by(optimizer: torch.optim.Optimizer) -> Step:
    return lambda task, model: task.step(model, optimizer)


def _second_step(optimizer: Any) -> Step:
    def step(task: Task, model: nn.Module) -> None:
        x, y = task.batch()
        for go in (optimizer.climb, optimizer.descend):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            go()

    return step


def _loaded(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    other = sgd(model, lr=0.5)
    other.load_state_dict(optimizer.state_dict())
    return other


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (sgd, lambda _, model: _by(sgd(model))),
        (sgd, lambda own, _: _by(copy.copy(own))),
        (sgd, lambda own, model: _by(_loaded(own, model))),
        (sgd, lambda _, model: _by(Wrapping(model, puts_back=False))),
        (partial(Wrapping, puts_back=False), lambda own, _: _by(own)),
        (partial(Wrapping, puts_back=True), lambda own, _: _by(own)),
        (partial(Wrapping, puts_back=True), lambda own, _: _second_step(own)),
    ],
)
def test_steps_of_whatever_optimizer_count_once(given: Any, used: Any) -> None:
    """Two loops on other data agree, and each of their steps is counted and synchronized."""
    both = threading.Barrier(2)

    def loop(address: str, index: int) -> tuple[dict[str, float], torch.Tensor]:
        model, task = small_model(), Task(index)
        optimizer = given(model)
        with shadowsync.attach(model, optimizer, join=address, wait_for=2) as sync:
            step = used(optimizer, model)
            # Rounds do not wait for a loop that has not begun.
            both.wait(60)
            for _ in range(STEPS):
                step(task, model)
            # The control: an optimizer of another module counts nothing.
            other = small_model(2)
            Task(3).step(other, sgd(other))
            found = sync.metrics()
        return found | {"synchronized": sync.metrics()["synchronized_steps"]}, weights_of(model)

    settings: dict[str, Any] = {"sync__mode": "fixed", "sync__every": 2, "sync__algorithm": "ma"}
    with hub(**settings, sync__options={"elastic_rate": 1.0}) as own:
        (first, mine), (second, theirs) = in_threads(*(partial(loop, own.endpoint, at) for at in range(2)))
    for found in (first, second):
        assert found["steps"] == found["synchronized"] == STEPS
        assert found["rounds"] == STEPS // 2
    assert torch.allclose(mine, theirs, atol=1e-6)


def _one_for_each_parameter(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([p], lr=0.05) for p in model.parameters()]


def _in_halves(model: Any) -> list[torch.optim.Optimizer]:
    return [sgd(model[3]), sgd(model[:3])]


def _frozen_first(model: Any) -> list[torch.optim.Optimizer]:
    model[0].requires_grad_(False)
    return [sgd(model[0]), sgd(model[1:])]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (_one_for_each_parameter, _one_for_each_parameter),
        (lambda model: [sgd(model)], _one_for_each_parameter),
        (lambda model: [sgd(model)], _in_halves),
        (_in_halves, _in_halves),
        (_frozen_first, _frozen_first),
    ],
)
def test_a_batch_is_one_step_however_many_optimizers_share_the_parameters(given: Any, used: Any) -> None:
    model, task = small_model(), Task(0)
    with hub() as own, shadowsync.attach(model, given(model), join=own.endpoint) as sync:
        optimizers = used(model)
        for _ in range(STEPS):
            x, y = task.batch()
            model.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            for one in optimizers:
                one.step()
        assert sync.steps == STEPS


def test_a_round_that_is_put_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model, task = small_model(), Task(0)
    optimizer = Wrapping(model, puts_back=True)
    with hub() as own, shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
        train_until(sync, lambda: task.step(model, optimizer), lambda _: "is taken back" in caplog.text)
    caplog.clear()
    # The control: values that change in place.
    other = sgd(model)
    with hub() as own, shadowsync.attach(model, other, join=own.endpoint) as sync:
        train_until(sync, lambda: task.step(model, other), lambda found: found["rounds"] >= 3)
    assert "is taken back" not in caplog.text


def _unfrozen(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    return optimizer


def _unfrozen_in_another(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:  # noqa: ARG001
    model[0].requires_grad_(True)
    return sgd(model[0])


def _unfrozen_in_one_that_stepped(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:  # noqa: ARG001
    other = sgd(model[0])
    other.step()
    model[0].requires_grad_(True)
    return other


def _trained_before_it_is_put_in(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    adapter = nn.Linear(1, 1)
    other = sgd(adapter)
    other.step()
    Task(1).step(model, optimizer)
    model.append(adapter)
    return other


def _new_head(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model[3] = nn.Linear(8, 1)
    optimizer.add_param_group({"params": list(model[3].parameters())})
    return optimizer


def _added(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model.append(nn.Linear(1, 1))
    optimizer.add_param_group({"params": list(model[4].parameters())})
    return optimizer


def _stepping_a_copy(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.param_groups[0]["params"] = list(copy.deepcopy(model[1:]).parameters())
    return optimizer


def _beside(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:  # noqa: ARG001
    optimizer.add_param_group({"params": list(nn.Linear(7, 1).parameters())})
    return optimizer


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_unfrozen, r"0\.weight: is trained by an optimizer"),
        (_unfrozen_in_another, r"0\.weight: is trained by an optimizer"),
        (_unfrozen_in_one_that_stepped, r"0\.weight: is trained by an optimizer"),
        (_trained_before_it_is_put_in, r"4\.weight: is trained by an optimizer"),
        (_stepping_a_copy, r"steps a parameter of shape \(8,\) that is not in the attached module"),
        (_new_head, "3: was replaced since attach"),
        (_added, r"4\.weight: is trained by an optimizer"),
        (_beside, r"steps a parameter of shape \(1, 7\) that is not in the attached module"),
    ],
)
def test_what_would_be_trained_and_not_synchronized_is_refused(change: Any, what: str) -> None:
    model, task = small_model(), Task(0)
    frozen: Any = model[0]
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD(model[1:].parameters(), lr=0.05)
    with hub() as own, shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
        task.step(model, optimizer)
        used = change(model, optimizer)
        counted = sync.steps
        # A round would change the weights, too.
        with sync.paused():
            before = weights_of(model)
            with pytest.raises(shadowsync.AttachError, match=what):
                task.step(model, used)
            assert torch.equal(weights_of(model), before)
        assert sync.steps == counted


def test_the_model_of_all_never_has_a_layers_values_under_anothers_name() -> None:
    model, optimizer, step = small_loop()
    with hub() as own, shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
        step()
        head = model[3]
        model[3] = nn.Linear(8, 1)
        with pytest.raises(shadowsync.AttachError, match=r"3\.weight: was replaced"):
            sync.model("center")
        with sync.paused():
            assert torch.equal(weights_of(sync.model("mine")), weights_of(model))
        # The control.
        model[3] = head
        sync.model("center")
    model[3] = nn.Linear(8, 1)
    with pytest.raises(shadowsync.AttachError, match=r"3\.weight: was replaced"):
        sync.model()
    model[3] = head
    sync.model()


def _by_hand(model: nn.Module, task: Task) -> None:
    x, y = task.batch()
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(nn.functional.mse_loss(model(x), y), parameters)
    for p, gradient in zip(parameters, gradients, strict=True):
        p.data -= 0.05 * gradient


def _replaced_by_hand(model: nn.Module, task: Task) -> None:
    x, y = task.batch()
    nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    for p in model.parameters():
        assert p.grad is not None
        p.data = p.data - 0.05 * p.grad
        p.grad = None


def _a_copy(model: nn.Module, task: Task) -> None:
    other = copy.deepcopy(model)
    task.step(other, sgd(other))


@pytest.mark.parametrize(
    ("train", "what"),
    [
        (_by_hand, "its parameters were changed"),
        (_replaced_by_hand, "its parameters were changed"),
        (_a_copy, "an optimizer stepped other parameters"),
    ],
)
def test_a_block_that_trained_and_counted_nothing_is_an_error(train: Any, what: str) -> None:
    model, task = small_model(), Task(0)
    with hub() as own:
        sync = shadowsync.attach(model, sgd(model), join=own.endpoint)
        for _ in range(STEPS):
            train(model, task)
        with pytest.raises(shadowsync.AttachError, match=f"no step .* was counted .*{what}"):
            sync.finish()
        assert sync.is_over
        # The controls: with a step of an optimizer, or by an exception, which is the user's.
        with shadowsync.attach(model, optimizer := sgd(model), join=own.endpoint):
            train(model, task)
            task.step(model, optimizer)
        sync = shadowsync.attach(model, optimizer, join=own.endpoint)
        train(model, task)
        sync.abandon()


def _copy_on(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> None:  # noqa: ARG001
    other = copy.deepcopy(model)
    again = sgd(other)
    for _ in range(2):
        task.step(other, again)


def _loaded_anew(model: Any, optimizer: torch.optim.Optimizer, task: Task) -> None:  # noqa: ARG001
    other: Any = small_model(2)
    other.load_state_dict(model.state_dict())
    other[3] = nn.Linear(8, 3)
    for _ in range(2):
        x, y = task.batch()
        nn.functional.mse_loss(other(x)[:, :1], y).backward()  # type: ignore[no-untyped-call]
        sgd(other[:3]).step()


def _in_turn(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> None:
    twin = small_model(2)
    other = sgd(twin)
    for turn in range(4):
        for _ in range(1 + turn):
            task.step(twin, other)
        task.step(model, optimizer)
    # As an inner loop that evaluates.
    for _ in range(4):
        task.step(twin, other)


def _another_model(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> None:  # noqa: ARG001
    other = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
    again = sgd(other)
    for _ in range(STEPS):
        task.step(other, again)


@pytest.mark.parametrize(
    ("train", "is_told"), [(_copy_on, True), (_loaded_anew, True), (_in_turn, False), (_another_model, False)]
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_that_is_trained_in_place_of_the_module_is_told_at_the_end(
    caplog: pytest.LogCaptureFixture, train: Any, *, is_told: bool, fails: bool
) -> None:
    """Other models may rightly be trained beside it, in turn or afterwards."""
    model, task = small_model(), Task(0)
    optimizer = sgd(model)
    with hub() as own, caplog.at_level(logging.WARNING):
        sync = shadowsync.attach(model, optimizer, join=own.endpoint)
        task.step(model, optimizer)
        train(model, optimizer, task)
        assert "of the same shapes" not in caplog.text
        if fails:
            sync.abandon()
        else:
            sync.finish()
    assert caplog.text.count("made 1 steps, and none since; meanwhile optimizers made 2 steps") == is_told
    assert caplog.text.count("of the same shapes") == is_told


def test_a_copy_that_is_trained_for_long_is_told_meanwhile(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "COPY_STEPS", 5)
    model, task = small_model(), Task(0)
    optimizer = sgd(model)
    with (
        hub() as own,
        caplog.at_level(logging.WARNING),
        shadowsync.attach(model, optimizer, join=own.endpoint),
    ):
        for _ in range(8):
            task.step(model, optimizer)
        twin = copy.deepcopy(model)
        other = sgd(twin)
        for _ in range(8):
            task.step(twin, other)
        assert "of the same shapes" not in caplog.text
        task.step(twin, other)
        assert "made 8 steps, and none since; meanwhile optimizers made 9 steps" in caplog.text
    assert caplog.text.count("of the same shapes") == 1


def test_a_block_that_trained_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Rounds of other loops are no training of this one."""

    idle, model, task = small_model(), small_model(), Task(1)
    optimizer = sgd(model)
    before = weights_of(idle)
    with (
        hub(sync__algorithm="ma") as own,
        caplog.at_level(logging.WARNING),
        shadowsync.attach(idle, sgd(idle), join=own.endpoint),
        shadowsync.attach(model, optimizer, join=own.endpoint) as sync,
    ):
        train_until(
            sync, lambda: task.step(model, optimizer), lambda _: not torch.equal(weights_of(idle), before)
        )
    assert caplog.text.count("no optimizer made a step in the block") == 1


def test_without_the_hub_the_error_says_which_model_there_is() -> None:
    model, optimizer, step = small_loop()
    with hub() as own:
        sync = shadowsync.attach(model, optimizer, join=own.endpoint)
        step()
        sync.model()
    train_until(sync, step, lambda found: found["lost"] == 1)
    with pytest.raises(
        ClusterError, match=r'center of all loops cannot be had: the hub is gone.*model\("mine"\)'
    ):
        sync.model()
    sync.finish()
    with pytest.raises(ClusterError, match=r'the hub was gone as this loop left.*model\("mine"\)'):
        sync.model()
    assert torch.equal(weights_of(sync.model("mine")), weights_of(model))
