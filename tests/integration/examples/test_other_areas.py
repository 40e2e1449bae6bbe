"""examples/other_areas: each example run small, as torchrun starts it, beside its control."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import shadowsync
import torch
from shadowsync.tests.support.jobs.processes import Starter, free_ports
from torch.utils.data import DataLoader

if not (Path(shadowsync.__file__).resolve().parent / "examples").is_dir():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)

from shadowsync.examples.other_areas import local_parallelism
from shadowsync.examples.other_areas.partitioned_graph import Partition, block_model

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("sklearn") is None, reason="the images are those of scikit-learn"),
]

EXAMPLES = Path(shadowsync.__file__).resolve().parent / "examples" / "other_areas"
LOOPS = 2
SECONDS = 400.0
NUMBER = re.compile(r"(?<![\w.])[\d,]*\.?\d+(?![\w.])")


def _rows(starter: Starter, folder: Path, name: str, *arguments: str) -> dict[str, list[float]]:
    """Run an example in processes with torchrun's variables; gives the figures by row of its table."""
    variables = {"WORLD_SIZE": str(LOOPS), "LOCAL_WORLD_SIZE": str(LOOPS), "MASTER_ADDR": "127.0.0.1"}
    variables |= {"MASTER_PORT": str(free_ports(1)), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    loops = [
        starter.fork(
            *arguments,
            script=EXAMPLES / f"{name}.py",
            environment=variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(LOOPS)
    ]
    for loop in loops:
        assert loop.wait(SECONDS) == 0, loop.text()
    rows = {}
    for line in loops[0].text().splitlines():
        # Titles end with two spaces; other lines are warnings.
        title, _, figures = line.partition("  ")
        if numbers := NUMBER.findall(figures):
            rows[title] = [float(number.replace(",", "")) for number in numbers]
    return rows


@pytest.mark.matrix
def test_digits(starter: Starter, tmp_path: Path) -> None:
    """Loops that each have their own digits know the others' once they are synchronized."""
    rows = _rows(starter, tmp_path, "digits", "--epochs", "6")
    assert len(rows) == 8
    (alone,), (together,) = rows["own digits, none"], rows["own digits, ma, fixed rate"]
    assert alone < 0.55, "the control: half of the digits"
    assert together > 0.75
    assert rows["one loop, all images"][0] > 0.9
    for has in ("shared images, ma", "own half of the images, ma", "own half of the images, easgd"):
        assert rows[has][0] > 0.7


@pytest.mark.matrix
def test_character_model(starter: Starter, tmp_path: Path) -> None:
    rows = _rows(starter, tmp_path, "character_model", "--steps", "40", "--batch", "4", "--every", "10")
    assert len(rows) == 7
    # Nats a character; one of 103 at random is 4.6.
    for name, (loss,) in rows.items():
        assert loss < 3.5, name
    assert rows["one process, all examples"][0] < rows["one process, its share of the examples"][0]
    # The control: the mean over loops that are not synchronized.
    assert rows["ma, every 10 steps"][0] < rows["none"][0]


@pytest.mark.matrix
def test_partitioned_graph(starter: Starter, tmp_path: Path) -> None:
    looks, nodes = ("5", "40"), "1200"
    rows = _rows(starter, tmp_path, "partitioned_graph", "--nodes", nodes, "--epochs", *looks)
    assert len(rows) == 6
    whole, alone = rows["whole graph in each process"], rows["no exchange"]
    sent = {name: row[-1] for name, row in rows.items()}
    for delay in ("r = 0", "r = 1", "r = 5", "r = 5, weights in the background"):
        assert rows[delay][1] > alone[1] + 0.01, "the control: without an exchange it is worse"
        assert rows[delay][1] < whole[1] + 0.03
    assert sent["r = 0"] == sent["r = 1"] == pytest.approx(5 * sent["r = 5"], rel=0.02)
    assert alone[-1] == whole[-1] == 0


def test_partitions_of_a_graph_have_all_edges() -> None:
    """The mean over neighbours, by partition with its boundary, is that of the whole graph."""
    graph = block_model(200, seed=1)
    whole = Partition(graph, 0, 1, 0)
    expected = torch.sparse.mm(whole.mean, whole.inputs)
    for parts in (2, 3):
        for part in range(parts):
            one, alone = Partition(graph, part, parts, 0), Partition(graph, part, parts, -1)
            torch.testing.assert_close(torch.sparse.mm(one.mean, one.inputs), expected[one.own])
            # The control: without the boundary it is another mean.
            assert not torch.allclose(torch.sparse.mm(alone.mean, alone.inputs), expected[one.own], atol=0.1)
            for other in one.needs:
                given = Partition(graph, other, parts, 0)
                assert torch.equal(given.own[given.gives[part]], one.needs[other])


@pytest.mark.matrix
def test_towers_in_threads_train_as_one_after_the_other() -> None:
    data, held_out = local_parallelism.digits(0)
    order = torch.utils.data.SequentialSampler(data)
    batches = DataLoader(data, local_parallelism.BATCH, sampler=order)
    found = {}
    for only_last in (False, True):
        model, optimizers = local_parallelism.made(2, 0, only_last=only_last)
        for _ in range(3):
            local_parallelism.train(model, optimizers, batches)
        found[only_last] = local_parallelism.loss_of(model, held_out)
        twin, steps = local_parallelism.made(2, 0, only_last=only_last)
        for inputs, labels in [batch for _ in range(3) for batch in batches]:
            below = inputs
            for tower, optimizer in zip(twin, steps, strict=True):
                assert isinstance(tower, local_parallelism.Tower)
                made = tower(below.detach())
                if optimizer is not None:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(tower.head(made), labels).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                below = made
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one, other)
    # The control: a lower tower that nobody trains.
    assert found[False][0] < found[True][0] - 0.2
    assert found[False][1] > found[True][1]


@pytest.mark.matrix
def test_local_parallelism(starter: Starter, tmp_path: Path) -> None:
    rows = _rows(starter, tmp_path, "local_parallelism", "--epochs", "4")
    assert len(rows) == 5
    for count in (2, 4):
        trained, control = (
            rows[f"{count} towers, local losses"],
            rows[f"{count} towers, only the last trained"],
        )
        assert trained[0] < control[0]
        assert trained[1] > control[1]
