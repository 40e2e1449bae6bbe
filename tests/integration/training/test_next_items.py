"""Whole jobs of `sequence`, and of a model of one's own on jagged lists: what comes next in a walk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.layers.attention import ListBlocks, attend
from shadowsync.pipeline.models.layers.sequences import Embeddings, JaggedSequence
from shadowsync.pipeline.saved_model.evaluate import evaluate_model
from shadowsync.pipeline.saved_model.export import export_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.rows import columns_of_request
from shadowsync.serving.scores import Scores, ServedModel
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.node_faults import Fault, fake_device, scored_on_a_thread
from torch import nn

ITEMS, LONGEST, ROWS = 15, 20, 6000
HISTORY = {"kind": "multi_hot", "table": "item", "pooling": "none", "max_ids": LONGEST, "keep": "last"}
COLUMNS: dict[str, Any] = {"label": "label", "item": "categorical", "history": HISTORY}
SETTINGS: dict[str, dict[str, Any]] = {
    "model": {
        "name": "sequence",
        "query": ["history"],
        "item": ["item"],
        "embedding_dim": 16,
        "table_rows": 200,
        "bottom": None,
        "top": None,
        "options": {"blocks": 1},
    },
    "trainer": {"count": 1, "batch": 64, "optimizer": "adam", "lr": 0.01},
    "embedding": {"nodes": 2, "lr": 0.05, "optimizer": "adam"},
}


def next_of(history: list[int]) -> int:
    """Back to where it was before the last item."""
    return history[-2]


def walk(rng: np.random.Generator) -> list[int]:
    """Items that are drawn, between 2 and somewhat more than are kept."""
    return [int(item) for item in rng.integers(0, ITEMS, rng.integers(2, LONGEST + 9))]


def write_walks(path: Path, rows: int, seed: int) -> Path:
    """Histories with the most recent item last, and the item that comes next; some histories are empty."""
    rng = np.random.default_rng(seed)
    lines = ["label,item,history"]
    for at in range(rows):
        history = walk(rng)
        item = next_of(history)
        lines.append(f"1,i{item},{'|'.join(f'i{one}' for one in history) if at % 50 else ''}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file to train on, and one to score."""
    folder = tmp_path_factory.mktemp("walks")
    return write_walks(folder / "train.csv", ROWS, 1), write_walks(folder / "eval.csv", 300, 2)


def settings_of(
    logs: tuple[Path, Path], columns: dict[str, Any] = COLUMNS, **changes: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    data = {"format": "csv", "path": str(logs[0]), "eval_path": str(logs[1]), "columns": columns, "epochs": 4}
    base = SETTINGS | {"data": data}
    return {name: base.get(name, {}) | changes.get(name, {}) for name in base | changes}


def trained(cluster: ClusterMaker, settings: dict[str, dict[str, Any]], *faults: Fault) -> InProcessCluster:
    own = cluster(settings, faults=(scored_on_a_thread, *faults)).start()
    own.ended()
    return own


def share_found(model: SavedModel) -> float:
    """How often the next item of a walk has the highest score of all items."""
    rng = np.random.default_rng(3)
    walks = [walk(rng) for _ in range(100)]
    columns = {
        "item": [f"i{item}" for _ in walks for item in range(ITEMS)],
        "history": ["|".join(f"i{one}" for one in own) for own in walks for _ in range(ITEMS)],
    }
    best = model.predict(columns).reshape(len(walks), ITEMS).argmax(axis=1)
    return float(np.mean([int(found) == next_of(own) for found, own in zip(best, walks, strict=True)]))


def test_it_finds_the_next_item(cluster: ClusterMaker, logs: tuple[Path, Path]) -> None:
    """By the order of the most recent ones, also in lists that are longer than what is kept."""
    own = trained(cluster, settings_of(logs))
    model = SavedModel.open(own.run.folder)
    assert share_found(model) > 0.9
    quality = own.run.evaluation
    assert evaluate_model(model, [str(logs[1])])["examples"] == quality.examples == 300
    served = ServedModel(model)
    rows = [("i1", ["i2", "i3"]), ("i1", []), ("i1", ["i3", "i2"])]
    given = [dict(zip(("item", "history"), row, strict=True)) for row in rows]
    (scores,) = served.score([columns_of_request({"rows": given}, served.schema, 9)])
    assert isinstance(scores, Scores)
    wanted = model.predict({"item": ["i1"] * 3, "history": [history for _, history in rows]})
    np.testing.assert_allclose(scores.probabilities, wanted, rtol=1e-5)
    assert len(set(wanted.tolist())) == 3


@pytest.mark.matrix
@pytest.mark.parametrize("control", ["the other end is kept", "a pooled history"])
def test_less_is_found_otherwise(cluster: ClusterMaker, logs: tuple[Path, Path], control: str) -> None:
    settings = settings_of(logs)
    if control == "a pooled history":
        settings["data"]["columns"] = COLUMNS | {"history": HISTORY | {"pooling": "mean"}}
        settings["model"] |= {"name": "two_tower", "options": {"dim": 8}, "top": [16]}
    else:
        settings["data"]["columns"] = COLUMNS | {"history": HISTORY | {"keep": "first"}}
    own = trained(cluster, settings)
    assert share_found(SavedModel.open(own.run.folder)) < 0.6


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"trainer": {"workers": 2, "precision": "bfloat16"}}, ()),
        ({"trainer": {"count": 2}}, ()),
        ({"model": {"dropout": 0.05, "table_kind": "growing"}}, ()),
        ({}, (fake_device,)),
    ],
    ids=["two workers in bfloat16", "two trainers", "growing tables and dropout", "a device"],
)
def test_however_it_is_trained(
    cluster: ClusterMaker, logs: tuple[Path, Path], changes: dict[str, Any], faults: tuple[Fault, ...]
) -> None:
    own = trained(cluster, settings_of(logs, **changes), *faults)
    assert share_found(SavedModel.open(own.run.folder)) > 0.8


@pytest.mark.matrix
def test_it_is_exported_with_padded_lists(
    cluster: ClusterMaker, logs: tuple[Path, Path], tmp_path: Path
) -> None:
    own = trained(cluster, settings_of(logs, data={"epochs": 1}))
    model = SavedModel.open(own.run.folder)
    manifest = export_model(model, tmp_path / "export", "torch-export", "parquet")
    (entry,) = [table for table in manifest["tables"] if table["name"] == "history"]
    assert (entry["max_ids"], entry["keep"], entry["pooling"]) == (LONGEST, "last", "sequence")
    exported = torch.export.load(tmp_path / "export" / "dense.pt2").module()
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([4, 0, LONGEST, 1])
    history = JaggedSequence(torch.randn(int(lengths.sum()), 16, generator=generator), lengths)
    item, dense = torch.randn(4, 16, generator=generator), torch.zeros(4, 0)
    got = exported(dense, [item, history.padded().vectors], [lengths])
    torch.testing.assert_close(got, model.dense(dense, [item, history]), rtol=1e-4, atol=1e-5)


class Last(nn.Module):
    """A model on jagged lists alone: whether the item is what comes next."""

    takes_jagged = True

    def __init__(
        self,
        dense_features: int,  # noqa: ARG002
        embedding_dims: list[int],
        *,
        inputs: object,  # noqa: ARG002 - given to models of sequences
    ) -> None:
        super().__init__()
        dim = embedding_dims[0]
        self.projection, self.head = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, 1)

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:  # noqa: ARG002
        item, history = embeddings
        assert isinstance(item, torch.Tensor)
        assert isinstance(history, JaggedSequence)
        lists = ListBlocks.of(history.lengths, latest_first=False)
        seen = attend(self.projection(history.values[lists.order]), lists.blocks, 1)
        last = nn.functional.pad(seen, (0, 0, 0, 1))[lists.last] * (history.lengths > 0)[:, None]
        logits: torch.Tensor = self.head(torch.cat([item, last, item * last], dim=1)).squeeze(1)
        return logits


@pytest.mark.matrix
def test_a_model_of_ones_own_takes_jagged_lists(
    cluster: ClusterMaker, logs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its checkpoint scores as the job did; it is not exported, as it takes no padded ones."""
    half = tmp_path / "half.csv"
    lines = logs[0].read_text("utf-8").splitlines()
    wrong = [f"0,i{at % ITEMS},{line.split(',')[2]}" for at, line in enumerate(lines[1:])]
    half.write_text(
        "\n".join([lines[0], *(one for pair in zip(lines[1:], wrong, strict=True) for one in pair)])
    )
    scored = Path(shutil.copy(half, tmp_path / "scored.csv"))
    settings = settings_of((half, scored), data={"epochs": 1})
    settings["model"] = {"name": f"{__name__}:Last", "embedding_dim": 8, "table_rows": 200}
    settings["model"] |= {"bottom": None, "top": None}
    own = trained(cluster, settings)
    quality = own.run.evaluation
    model = SavedModel.open(own.run.folder, trust=True)
    assert evaluate_model(model, [str(scored)])["ne"] == pytest.approx(quality.ne, rel=1e-4)
    with pytest.raises(JobFileError, match="Last takes jagged sequences, and an exported model gets padded"):
        export_model(model, tmp_path / "export", "torch-export", "parquet")
    assert not (tmp_path / "export").exists()
