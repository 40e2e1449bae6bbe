"""The examples of other packages' loops, with these packages, and what their callbacks refuse."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from shadowsync.attached.errors import AttachError
from shadowsync.attached.hub.serve import HubThread
from shadowsync.pipeline.errors import JobFileError
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.loops.attached_loops import Task, hub, small_model
from shadowsync.tests.support.on_ray.ray_cluster import ray_cluster

EXAMPLES = Path(__file__).parents[3] / "examples" / "attached"
SECONDS = 400.0
PACKAGES = ["lightning", "transformers", "accelerate"]
CALLBACKS = ["lightning", "transformers"]

pytestmark = pytest.mark.timeout(900)


def require(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")


def accuracies(text: str) -> tuple[float, float]:
    """What an example prints: before, and of the center."""
    found = re.search(r"accuracy before ([\d.]+), of the center ([\d.]+)", text)
    assert found, text
    return float(found[1]), float(found[2])


@pytest.mark.matrix
@pytest.mark.ray
def test_two_workers_of_ray_train_learn_together(starter: Starter, tmp_path: Path) -> None:
    for package in ("ray", "pandas"):
        # The second comes with ray[train].
        require(package)
    with ray_cluster(tmp_path) as cluster, hub() as own:
        driver = starter.spawn(
            own.endpoint, script=EXAMPLES / "ray_digits.py", environment=cluster.environment
        )
        assert driver.wait(SECONDS) == 0, driver.text()
    check(own, driver.text())


@pytest.mark.parametrize("package", PACKAGES)
def test_two_loops_of_an_example_learn_together(package: str, starter: Starter, tmp_path: Path) -> None:
    require(package)
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    script = EXAMPLES / f"{package}_digits.py"
    with hub() as own:
        loops = [
            starter.spawn(str(at), own.endpoint, script=script, environment=environment) for at in range(2)
        ]
        for loop in loops:
            assert loop.wait(SECONDS) == 0, loop.text()
    check(own, *(loop.text() for loop in loops))


def check(own: HubThread, *texts: str) -> None:
    """Both loops made their steps and synchronized all, and the center has learned."""
    for text in texts:
        before, center = accuracies(text)
        # The first values are the control.
        assert before < 0.4
        assert center > 0.85
    assert own.book is not None
    assert [one.state for one in own.book.loops] == ["left", "left"]
    for record in own.book.loops:
        assert record.steps == record.synchronized > 100
        assert record.rounds > 1


@pytest.mark.parametrize("package", CALLBACKS)
def test_a_callback_without_its_package_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"shadowsync.attached.{package}"
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(JobFileError, match=rf"pip install 'shadowsync\[{package}\]'"):
        importlib.import_module(name)


def made(package: str, **settings: Any) -> Any:
    require(package)
    return importlib.import_module(f"shadowsync.attached.{package}").ShadowSyncCallback(**settings)


class Fitted:
    """A model and its optimizer, as both packages hand them to callbacks."""

    def __init__(self, package: str, replicas: int = 1) -> None:
        self.package, self.model = package, small_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.trainer = SimpleNamespace(world_size=replicas, n_gpu=0, optimizers=[self.optimizer])
        self.control = SimpleNamespace(should_evaluate=True, should_save=False)
        self.task = Task(1)

    def begin(self, callback: Any) -> None:
        if self.package == "lightning":
            callback.on_train_start(self.trainer, self.model)
        else:
            callback.on_train_begin(
                self.trainer, None, self.control, model=self.model, optimizer=self.optimizer
            )

    def pause(self, callback: Any) -> None:
        if self.package == "lightning":
            callback.on_validation_start(self.trainer, self.model)
        else:
            callback.on_epoch_end(self.trainer, None, self.control)

    def go_on(self, callback: Any) -> None:
        if self.package == "lightning":
            callback.on_validation_end(self.trainer, self.model)
        else:
            callback.on_step_begin(self.trainer, None, self.control)

    def fail(self, callback: Any) -> None:
        if self.package == "lightning":
            callback.on_exception(self.trainer, self.model, ValueError("mine"))
        else:
            callback.close()

    def end(self, callback: Any) -> None:
        if self.package == "lightning":
            callback.on_train_end(self.trainer, self.model)
        else:
            callback.on_train_end(self.trainer, None, self.control)

    def step(self) -> None:
        self.task.step(self.model, self.optimizer)


def is_paused(callback: Any) -> bool:
    """Whether the callback's loop refuses another pause, as it does within one."""
    try:
        with present(callback.sync).paused():
            return False
    except AttachError:
        return True


@pytest.mark.parametrize("package", CALLBACKS)
def test_a_callback_pauses_leaves_and_attaches_again(package: str) -> None:
    # A hub that ends as soon as it has begun takes seconds.
    require(package)
    with hub() as own:
        callback, fitted = made(package, join=own.endpoint), Fitted(package)
        # What Lightning does before it trains.
        if package == "lightning":
            fitted.pause(callback)
            fitted.go_on(callback)
        fitted.begin(callback)
        for _ in range(3):
            fitted.step()
        assert not is_paused(callback)
        fitted.pause(callback)
        fitted.pause(callback)
        assert is_paused(callback)
        fitted.go_on(callback)
        assert not is_paused(callback)
        fitted.pause(callback)
        fitted.fail(callback)
        fitted.step()
        assert callback.sync.steps == 3
        fitted.begin(callback)
        fitted.step()
        fitted.pause(callback)
        fitted.end(callback)
        fitted.fail(callback)
    assert own.book is not None
    assert [(one.state, one.steps) for one in own.book.loops] == [("left", 3), ("left", 1)]
    assert own.book.loops[1].synchronized == 1


@pytest.mark.parametrize("package", CALLBACKS)
def test_several_replicas_of_the_package_itself_are_refused(package: str) -> None:
    callback = made(package, join="tcp://127.0.0.1:1")
    with pytest.raises(AttachError, match="a process for each replica"):
        Fitted(package, replicas=2).begin(callback)
    assert callback.sync is None
