"""Checkpoints of the tables of `shadowsync.Embeddings`, and hubs that begin with one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.attached.errors import AttachError
from shadowsync.attached.hub.checkpoint import TABLES, saved_model_of
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.loops.attached_loops import hub

DIM = 4
OF_TWO = {"user": 40, "item": 25}
# Far apart: the one at the end is tested.
RARELY = {"checkpoint_seconds": 1000.0}


def joined(endpoint: str, **given: Any) -> shadowsync.Embeddings:
    settings: dict[str, Any] = {"optimizer": "adagrad", "lr": 0.1, "init_scale": 0.5} | given
    return shadowsync.Embeddings(OF_TWO, DIM, join=endpoint, **settings)


def train(tables: shadowsync.Embeddings, steps: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        vectors = tables(
            {name: torch.randint(0, rows, (16,), generator=draws) for name, rows in OF_TWO.items()}
        )
        ((vectors["user"] * vectors["item"]).sum(dim=1) - 1).square().sum().backward()
    tables.flush()


def folder(path: Path) -> dict[str, Any]:
    path.mkdir()
    return {"folder": path}


def test_rows_and_their_optimizers_go_on_with_another_number_of_nodes(tmp_path: Path) -> None:
    with hub(folder(tmp_path / "whole")) as own, joined(own.endpoint) as tables:
        train(tables, 20, seed=1)
        halfway = tables.state()
        train(tables, 5, seed=2)
        wanted = tables.state()
    with hub(folder(tmp_path / "a"), RARELY) as own, joined(own.endpoint) as tables:
        train(tables, 20, seed=1)
    resumed = RARELY | {"resume": tmp_path / "a"}
    with hub(folder(tmp_path / "b"), resumed, embedding__nodes=2) as own:
        with pytest.raises(AttachError, match=r"tables\.user\.lr: .*of the checkpoint has 0\.1"):
            joined(own.endpoint, lr=0.2)
        # Without tables of its own it takes those of the checkpoint.
        with shadowsync.Embeddings(join=own.endpoint) as tables:
            for name, rows in tables.state().items():
                torch.testing.assert_close(rows, halfway[name])
            train(tables, 5, seed=2)
            for name, rows in tables.state().items():
                torch.testing.assert_close(rows, wanted[name], rtol=1e-4, atol=1e-5)
    # Once more, with one node again.
    with hub(None, {"resume": tmp_path / "b"}) as own, joined(own.endpoint) as tables:
        for name, rows in tables.state().items():
            torch.testing.assert_close(rows, wanted[name], rtol=1e-4, atol=1e-5)
    # The control: rows begin elsewhere without the checkpoint.
    with hub() as own, joined(own.endpoint) as tables:
        assert (tables.vectors("user") - halfway["user"]).abs().max() > 0.1
    # A first step of Adagrad without its state is the whole rate for each element that has a gradient.
    moved = (wanted["user"] - halfway["user"]).abs()
    assert 0 < moved[moved > 0].median() < 0.1
    with pytest.raises(CheckpointError, match="there is no checkpoint of a hub"):
        saved_model_of(tmp_path / "whole")
    (file, *_) = (tmp_path / "b" / TABLES / "checkpoint").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)
    with (
        pytest.raises(CheckpointError, match="the file was altered"),
        hub(None, {"resume": tmp_path / "b"}),
    ):
        pass


def copied_whole(source: Path, copy: Path, manifest: Path) -> bool:
    """Copies a hub's folder; False if a checkpoint was replaced meanwhile."""
    shutil.rmtree(copy, ignore_errors=True)
    try:
        before = manifest.read_bytes()
        shutil.copytree(source, copy, ignore_dangling_symlinks=True)
        return manifest.read_bytes() == before
    except (FileNotFoundError, shutil.Error):
        return False


def test_checkpoints_are_taken_while_modules_train(tmp_path: Path) -> None:
    manifest = tmp_path / "a" / TABLES / "checkpoint" / "manifest.json"
    with hub(folder(tmp_path / "a"), {"checkpoint_seconds": 0.05}) as own, joined(own.endpoint) as tables:
        written: set[bytes] = set()

        def several() -> bool:
            train(tables, 1, seed=len(written))
            if manifest.exists():
                written.add(manifest.read_bytes())
            return len(written) >= 3

        wait_until(several, "checkpoints replace each other")
        # As after the death of the hub: what is there by then.
        wait_until(
            lambda: copied_whole(tmp_path / "a", tmp_path / "dead", manifest), "a copy is of one moment"
        )
        saved_at_most = tables.state()
        train(tables, 20, seed=1000)
        later = tables.state()
    with hub(None, {"resume": tmp_path / "dead"}) as own, joined(own.endpoint) as tables:
        found = tables.state()
    for name, rows in found.items():
        assert (rows - saved_at_most[name]).norm() < (rows - later[name]).norm(), name
