"""Checkpoints of a hub, and loops that begin with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from safetensors.torch import load_file
from shadowsync.attached.hub.checkpoint import FOLDER, MANIFEST, SavedModel
from shadowsync.pipeline.errors import CheckpointError, ClusterError
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.loops.attached_loops import (
    hub,
    in_threads,
    sgd,
    small_loop,
    small_model,
    train_until,
    weights_of,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Far apart: the one at the end is tested.
RARELY = {"checkpoint_seconds": 1000.0}


def folder(path: Path) -> dict[str, Any]:
    path.mkdir()
    return {"folder": path}


@pytest.mark.parametrize("algorithm", ["easgd", "ma", "bmuf"])
def test_loops_begin_with_the_model_of_a_checkpoint(tmp_path: Path, algorithm: str) -> None:
    with hub(folder(tmp_path / "a"), RARELY, sync__algorithm=algorithm) as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, step, lambda found: found["rounds"] >= 10)
        one = weights_of(sync.model())
    # By name, for whoever reads it without shadowsync.
    (file,) = (tmp_path / "a" / FOLDER).glob("*.safetensors")
    found = load_file(file)
    assert set(found) == {name for name, _ in model.named_parameters()}
    flat = torch.cat([found[name].view(-1) for name, _ in model.named_parameters()])
    assert torch.allclose(flat, one, atol=1e-6)

    with hub(None, {"resume": tmp_path / "a"}, sync__algorithm=algorithm) as own:
        other = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
        with pytest.raises(ClusterError, match="differ from those of the checkpoint"):
            shadowsync.attach(other, sgd(other), join=own.endpoint)
        first, second = small_model(seed=5), small_model(seed=6)
        fresh = weights_of(first)
        with (
            shadowsync.attach(first, sgd(first), join=own.endpoint),
            shadowsync.attach(second, sgd(second), join=own.endpoint),
        ):
            for begun in (weights_of(first), weights_of(second)):
                assert torch.allclose(begun, one, atol=1e-4)
    # The control: without the checkpoint they begin elsewhere.
    assert not torch.allclose(fresh, one, atol=1e-2)


def test_a_loop_that_keeps_its_weights_does_not_replace_the_center(tmp_path: Path) -> None:
    with hub(folder(tmp_path / "a"), RARELY) as own:
        model = small_model()
        with shadowsync.attach(model, sgd(model), join=own.endpoint):
            pass
    with hub(None, {"resume": tmp_path / "a"}, sync__mode="fixed", sync__every=100) as own:
        other = small_model(seed=5)
        before = weights_of(other)
        with shadowsync.attach(other, sgd(other), join=own.endpoint, start="mine") as sync:
            assert torch.equal(weights_of(other), before)
            assert torch.allclose(weights_of(sync.model("center")), weights_of(model), atol=1e-6)


def test_the_accounts_of_samples_go_on(tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(40.0))

    def train(address: str, most: int) -> list[int]:
        model = nn.Linear(1, 1)
        optimizer = sgd(model, lr=1e-6)
        seen: list[int] = []
        with shadowsync.attach(model, optimizer, join=address) as sync:
            sampler = sync.sampler(data, examples_per_step=4, epochs=1, span=8)
            for x, *_ in DataLoader(data, batch_size=4, sampler=sampler):
                seen += x.int().tolist()
                model(x.view(-1, 1)).sum().backward()
                optimizer.step()
                if len(seen) == most:
                    break
        return seen

    with hub(folder(tmp_path / "a"), RARELY) as own:
        seen = train(own.endpoint, 20)
    with hub(folder(tmp_path / "b"), RARELY | {"resume": tmp_path / "a"}) as own:
        rest = train(own.endpoint, 0)
    assert len(seen) == 20
    assert sorted(seen + rest) == list(range(40))
    (samples,) = present(own.book).samples
    assert samples.finished == 40
    assert samples.granted == samples.finished + samples.returned
    # The control: a hub that resumes nothing grants all of them.
    with hub() as own:
        assert len(train(own.endpoint, 0)) == 40


def test_checkpoints_are_written_while_loops_train(tmp_path: Path) -> None:
    with hub(folder(tmp_path / "a"), {"checkpoint_seconds": 0.05}, sync__algorithm="ma") as own:
        manifest = tmp_path / "a" / FOLDER / MANIFEST

        def loop(index: int) -> None:
            model, optimizer, step = small_loop(index)
            with shadowsync.attach(model, optimizer, join=own.endpoint, wait_for=2) as sync:
                written: set[str] = set()

                def several() -> bool:
                    step()
                    if manifest.exists():
                        content = json.loads(manifest.read_text())
                        written.update(one["name"] for one in content["files"])
                        assert content["model"] == "mean"
                    return len(written) >= 3 and sync.metrics()["rounds"] >= 2

                wait_until(several, "checkpoints replace each other")

        in_threads(lambda: loop(0), lambda: loop(1))
    # Only the last one is kept.
    content = json.loads(manifest.read_text())
    kept = {path.name for path in manifest.parent.iterdir()}
    assert kept == {MANIFEST, *(one["name"] for one in content["files"])}
    assert {one["name"] for one in content["book"]["loops"]} == {"loop-0", "loop-1"}
    assert len(SavedModel.read(tmp_path / "a").layout) == len(list(small_model().parameters()))


def test_what_cannot_be_resumed_or_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hub(folder(tmp_path / "a"), sync__algorithm="ma"):
        pass
    with pytest.raises(CheckpointError, match=r"a: there is no checkpoint of a hub .*--checkpoint-every"):
        SavedModel.read(tmp_path / "a")
    for arguments, code in [
        (("--resume", "a"), 3),
        (("--recover", "a"), 4),
        (("--recover", "a", "--algo", "ma"), 2),
        (("--recover", "nowhere"), 2),
    ]:
        said("hub", *arguments, code=code)
    # Nothing was begun.
    assert not (tmp_path / "runs").exists()
