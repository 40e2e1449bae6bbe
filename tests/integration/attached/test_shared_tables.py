"""`shadowsync.Embeddings`: rows on a hub's embedding nodes, trained by any torch loop."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import shadowsync
import torch
from shadowsync.attached.errors import AttachError
from shadowsync.attached.hub.hosted import hosted_node
from shadowsync.attached.hub.serve import HubThread
from shadowsync.attached.job import loop_job
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.loops.attached_loops import END_SECONDS, hub, in_threads, sgd, small_model
from torch import nn

ROWS, DIM = 40, 4
TABLES = {"user": ROWS, "item": 25}


@pytest.fixture(scope="module")
def tables_hub() -> Iterator[HubThread]:
    """A hub with two embedding nodes, which hold the tables of `joined`."""
    with hub(embedding__nodes=2) as own:
        yield own


def joined(own: HubThread, **given: Any) -> shadowsync.Embeddings:
    settings: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "init_scale": 0.5} | given
    return shadowsync.Embeddings(TABLES, DIM, join=own.endpoint, **settings)


def batches(count: int, seed: int = 1) -> Iterator[dict[str, torch.Tensor]]:
    """Ids of which many repeat."""
    draws = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {name: torch.randint(0, rows, (16,), generator=draws) for name, rows in TABLES.items()}


def score(vectors: dict[str, torch.Tensor]) -> torch.Tensor:
    return (vectors["user"] * vectors["item"]).sum(dim=1)


def loss_of(vectors: dict[str, torch.Tensor], ids: dict[str, torch.Tensor]) -> torch.Tensor:
    wanted = torch.sign((ids["user"] % 3 - ids["item"] % 2).float() - 0.5)
    return nn.functional.mse_loss(score(vectors), wanted, reduction="sum") / 4


def test_numbers_of_numpy_and_torch_are_taken() -> None:
    """As of `ids.max() + 1`, and of a scheduler's rate."""
    numbers: dict[str, Any] = {"lr": np.float32(0.5), "init_scale": torch.tensor(0.25)}
    with hub(sync__gap=3) as own:
        model = small_model()
        with (
            shadowsync.Embeddings(
                {"user": np.int64(ROWS)},  # type: ignore[dict-item]
                np.int64(DIM),  # type: ignore[arg-type]
                join=own.endpoint,
                optimizer="sgd",
                **numbers,
            ) as tables,
            shadowsync.attach(model, sgd(model), join=own.endpoint, gap=np.int64(3)) as sync,  # type: ignore[arg-type]
        ):
            assert (tables.rows, tables.dims) == ({"user": ROWS}, {"user": DIM})
            before = tables.vectors("user")
            for scale in (torch.tensor(0.5), np.float32(0.5), 0.5):
                tables.lr_scale = scale  # type: ignore[assignment]
                tables(torch.tensor([3])).sum().backward()
            assert torch.allclose(before[3] - tables.vectors("user")[3], torch.full((DIM,), 0.75))
            two: Any = np.int64(2)
            assert sorted(sync.sampler(range(9), examples_per_step=two, span=two, seed=two, epochs=two)) == [
                *range(9)
            ]


def test_a_scale_that_nodes_would_refuse_costs_no_pass(tables_hub: HubThread) -> None:
    with joined(tables_hub) as own:
        before = own.state()
        for scale in (float("nan"), -0.1, 1001.0, float("inf"), "0.5", None, torch.zeros(2)):
            with pytest.raises(AttachError, match=r"Embeddings\.lr_scale: .* given; give a number"):
                own.lr_scale = scale  # type: ignore[assignment]
        assert own.lr_scale == 1.0
        own.lr_scale = 0.0
        own({"user": torch.tensor([1])})["user"].sum().backward()
        own.flush()
        assert own.metrics()["lost_pushes"] == 0
        assert all(torch.equal(rows, before[name]) for name, rows in own.state().items())


def test_rows_are_stepped_as_those_of_torch(tables_hub: HubThread) -> None:
    with joined(tables_hub) as own:
        weights = {name: rows.clone().requires_grad_() for name, rows in own.state().items()}
        steps = torch.optim.SGD(weights.values(), lr=0.5)
        losses = []
        for ids in batches(60):
            ours = loss_of(own(ids), ids)
            ours.backward()  # type: ignore[no-untyped-call]
            steps.zero_grad()
            theirs = loss_of({n: nn.functional.embedding(ids[n], w) for n, w in weights.items()}, ids)
            theirs.backward()  # type: ignore[no-untyped-call]
            steps.step()
            losses.append((ours.item(), theirs.item()))
        assert all(a == pytest.approx(b, rel=1e-4) for a, b in losses)
        assert losses[-1][0] < 0.8 * losses[0][0], "it learns"
        for name, rows in own.state().items():
            torch.testing.assert_close(rows, weights[name].detach(), rtol=1e-4, atol=1e-5)
        # The control: a step further they are apart.
        loss_of(own(ids), ids).backward()  # type: ignore[no-untyped-call]
        assert (own.vectors("user") - weights["user"].detach()).abs().max() > 1e-3
        assert own.metrics()["pushes"] == 61


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad"])
def test_adagrad_in_closed_form_with_gradients_of_duplicates_summed(optimizer: str) -> None:
    with (
        hub() as hosted,
        shadowsync.Embeddings({"user": 9}, DIM, join=hosted.endpoint, optimizer=optimizer, lr=0.1) as own,
    ):
        before = own.vectors("user")
        sums = torch.zeros(9, DIM)
        expected = before.clone()
        ids = torch.tensor([2, 5, 2, 2, 7])
        for at in range(1, 4):
            weights = torch.arange(1.0, 21.0).view(5, DIM) / (10 * at)
            (own(ids) * weights).sum().backward()
            gradient = torch.zeros(9, DIM).index_add(0, ids, weights)
            squares = gradient**2
            if optimizer == "rowwise_adagrad":
                squares = squares.mean(1, keepdim=True).expand(9, DIM)
            sums += squares
            expected -= 0.1 * gradient / (sums.sqrt() + 1e-8)
        found = own.vectors("user")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        # The control: were one of the duplicates left out, row 2 would be elsewhere; rows without ids stay.
        assert (found[2] - before[2]).abs().min() > 0.01
        assert torch.equal(found[[0, 1, 3, 4, 6, 8]], before[[0, 1, 3, 4, 6, 8]])


@pytest.mark.parametrize("pooling", ["sum", "mean", None])
def test_bags_of_bags_are_refused_with_pooling(tables_hub: HubThread, pooling: Any) -> None:
    ids = torch.ones(2, 3, 4, dtype=torch.int64)
    with joined(tables_hub, pooling=pooling) as own:
        name = next(iter(own.rows))
        if pooling is None:
            assert own({name: ids})[name].shape == (2, 3, 4, own.dims[name])
            return
        with pytest.raises(
            shadowsync.AttachError, match=rf"{name}.*\[2, 3, 4\] given, and pooling='{pooling}'"
        ):
            own({name: ids})
        # What the remedy says.
        assert own({name: ids.flatten(0, -2)})[name].unflatten(0, (2, 3)).shape == (2, 3, own.dims[name])


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bags_are_those_of_torch(tables_hub: HubThread, pooling: str) -> None:
    with joined(tables_hub, pooling=pooling, padding_idx=0) as own:
        ids = torch.tensor([[3, 3, 0, 9], [0, 0, 0, 0], [1, 2, 3, 4]])
        rows = own.vectors("item")
        bag = nn.EmbeddingBag.from_pretrained(rows, freeze=False, mode=pooling, padding_idx=0)
        ours, theirs = own({"item": ids})["item"], bag(ids)
        torch.testing.assert_close(ours, theirs)
        weights = torch.randn(3, DIM, generator=torch.Generator().manual_seed(3))
        (ours * weights).sum().backward()
        (theirs * weights).sum().backward()
        gradient = present(bag.weight.grad)
        torch.testing.assert_close(own.vectors("item"), rows - 0.5 * gradient, rtol=1e-5, atol=1e-6)
        assert gradient.abs().sum() > 0.1
    with joined(tables_hub, padding_idx=0) as own:
        listed = own({"item": ids})["item"]
        assert listed.shape == (3, 4, DIM)
        assert listed[1].abs().max() == 0
        assert listed[2].abs().min() > 0
        assert own({"item": torch.zeros(0, dtype=torch.int64)})["item"].shape == (0, DIM)


def test_loops_share_rows_and_reading_trains_nothing(tables_hub: HubThread) -> None:
    with joined(tables_hub) as one, shadowsync.Embeddings(join=tables_hub.endpoint) as two:
        assert (two.rows, two.dims) == (TABLES, dict.fromkeys(TABLES, DIM))
        ids = {"user": torch.tensor([4]), "item": torch.tensor([8])}
        before = two(ids)["user"]
        one(ids)["user"].sum().backward()
        one.flush()
        torch.testing.assert_close(two(ids)["user"], before - 0.5)
        one.lr_scale = 0.1
        two(ids)["user"].sum().backward()
        two.flush()
        one(ids)["user"].sum().backward()
        torch.testing.assert_close(one.vectors("user", torch.tensor([4])), before.detach() - 1.05)
        with torch.no_grad():
            seen = one(ids)
        assert not seen["user"].requires_grad
        # A copy of a model has the same rows, and a graph that is kept pushes each time.
        vectors = copy.deepcopy(two)(ids)["user"]
        vectors.sum().backward(retain_graph=True)
        vectors.sum().backward()
        torch.testing.assert_close(two.vectors("user", torch.tensor([4])), before.detach() - 2.05)
        assert two.metrics()["pushes"] == 3


@pytest.mark.matrix
def test_two_loops_at_once_with_attach(tables_hub: HubThread) -> None:
    """Dense parameters over the hub's center, rows on its embedding nodes."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = joined(tables_hub, max_pending=2)
            self.tower = small_model()

        def forward(self, ids: dict[str, torch.Tensor]) -> torch.Tensor:
            vectors = self.tables(ids)
            joint = torch.cat([vectors["user"] * vectors["item"], vectors["item"][:, :2]], dim=1)
            found: torch.Tensor = self.tower(joint)
            return found[:, 0]

    def loss(model: Model, ids: dict[str, torch.Tensor]) -> torch.Tensor:
        wanted = torch.sign((ids["user"] % 3 - ids["item"] % 2).float() - 0.5)
        return nn.functional.mse_loss(model(ids), wanted)

    def train(seed: int) -> tuple[float, float]:
        model = Model()
        optimizer = sgd(model, lr=0.05)
        losses = []
        with model.tables, shadowsync.attach(model, optimizer, join=tables_hub.endpoint, wait_for=2) as sync:
            for ids in batches(150, seed):
                optimizer.zero_grad()
                one = loss(model, ids)
                one.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(one.item())
            assert sync.model().tables is model.tables
        return sum(losses[:10]), sum(losses[-10:])

    for first, last in in_threads(lambda: train(1), lambda: train(2)):
        assert last < 0.8 * first


# The compiler hides this warning about results of a graph before, but not from filters that make it an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_has_the_same_rows(tables_hub: HubThread) -> None:
    with joined(tables_hub) as own:
        tower = nn.Linear(DIM, 1)

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tables, self.tower = own, tower

            def forward(self, ids: dict[str, torch.Tensor]) -> torch.Tensor:
                found: torch.Tensor = self.tower(torch.tanh(self.tables(ids)["item"]))
                return found

        compiled = torch.compile(Model(), backend="eager")
        ids = {"item": torch.tensor([5, 6, 5])}
        for _ in range(2):
            rows = own.vectors("item").requires_grad_()
            expected = tower(torch.tanh(nn.functional.embedding(ids["item"], rows)))
            found = compiled(ids)
            torch.testing.assert_close(found, expected)
            found.sum().backward()
            expected.sum().backward()
            assert rows.grad is not None
            stepped = rows.detach() - 0.5 * rows.grad
            torch.testing.assert_close(own.vectors("item"), stepped, rtol=1e-5, atol=1e-6)
            # The control: the rows did change.
            assert rows.grad.abs().max() > 1e-3


def test_other_tables_are_refused_by_name(tables_hub: HubThread) -> None:
    endpoint = tables_hub.endpoint
    joined(tables_hub).close()
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tables": {"user": ROWS, "item": 26}}, r"tables\.item\.rows: the module wants 26, and .* has 25"),
        ({"tables": {"user": ROWS}}, "the module has no table 'item', and tables-0 has"),
        ({"tables": TABLES | {"shop": 3}}, "wants a table 'shop', and those of tables-0 are user, item"),
        ({"tables": TABLES, "lr": 0.25}, r"tables\.user\.lr: the module wants 0\.25, and .* has 0\.5"),
        ({"tables": TABLES, "dim": 8}, r"tables\.user\.dim: the module wants 8, and .* has 4"),
    ]
    for given, text in refused:
        settings = {"dim": DIM} | given
        with pytest.raises(shadowsync.AttachError, match=text):
            shadowsync.Embeddings(join=endpoint, **settings)
    # The control: what is left out is as it is.
    shadowsync.Embeddings(TABLES, DIM, join=endpoint).close()


def test_wrong_ids_and_tables(tables_hub: HubThread) -> None:
    with joined(tables_hub) as own:
        with pytest.raises(shadowsync.AttachError, match=r"table 'item': id 25 given; there are 25 rows"):
            own({"item": torch.tensor([3, 25])})
        with pytest.raises(shadowsync.AttachError, match=r"table 'item': id -1 given"):
            own({"item": torch.tensor([3, -1])})
        with pytest.raises(shadowsync.AttachError, match="no table 'itm'; give one of user, item"):
            own({"itm": torch.tensor([3])})
        with pytest.raises(shadowsync.AttachError, match=r"one tensor given; there are 2 tables"):
            own(torch.tensor([3]))
        with pytest.raises(shadowsync.AttachError, match=r"torch\.float32 given as ids"):
            own({"item": torch.tensor([3.0])})
        with pytest.raises(shadowsync.AttachError, match="gradients of rows are not finite"):
            (own({"item": torch.tensor([3])})["item"] * float("nan")).sum().backward()
        # The control: it goes on.
        own({"item": torch.tensor([24])})["item"].sum().backward()
    with pytest.raises(shadowsync.AttachError, match="was closed"):
        own({"item": torch.tensor([3])})


def test_a_scaler_divides_and_drops_what_is_not_finite(tables_hub: HubThread) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with joined(tables_hub, scaler=scaler) as own:
        row = torch.tensor([11])
        before = own.vectors("item", row)
        scaler.scale(own({"item": row})["item"].sum()).backward()
        torch.testing.assert_close(own.vectors("item", row), before - 0.5)
        scaler.scale(own({"item": row})["item"].sum() * float("inf")).backward()
        torch.testing.assert_close(own.vectors("item", row), before - 0.5)
        assert own.metrics()["dropped_pushes"] == 1


def test_tables_that_cannot_be_leave_the_hub_as_it_was() -> None:
    with hub() as own:
        for given, text in (
            ({"tables": {"user": 0}}, r"tables\.user\.rows"),
            ({"tables": {"user*": 3}}, r"'user\*' cannot be the name of a table"),
            ({"tables": {"user": 3}, "optimizer": "lamb"}, r"tables\.user\.optimizer"),
        ):
            with pytest.raises(shadowsync.AttachError, match=text):
                shadowsync.Embeddings(join=own.endpoint, **given)
        with pytest.raises(ClusterError, match="memory"):
            shadowsync.Embeddings({"user": 2**31 - 2}, 4096, join=own.endpoint)
        with pytest.raises(ClusterError, match="there are no tables yet"):
            shadowsync.Embeddings(join=own.endpoint)
        # The control.
        with shadowsync.Embeddings({"user": 3}, join=own.endpoint) as tables:
            assert tables(torch.tensor([2])).shape == (1, 16)


def test_when_the_hub_ends_the_next_pass_says_so() -> None:
    with hub() as own:
        tables = shadowsync.Embeddings({"user": 30}, 4, join=own.endpoint)
        vectors = tables(torch.arange(5))
    why = "the embedding nodes are gone, and the rows with them: the hub ended"

    def go_on() -> None:
        for _ in itertools.count():
            tables(torch.arange(5))

    with pytest.raises(ClusterError, match=why):
        go_on()
    with pytest.raises(ClusterError, match=why):
        vectors.sum().backward()
    with pytest.raises(ClusterError, match=why):
        tables.vectors("user")
    tables.close()


def test_an_exception_leaves_and_the_rows_stay(tables_hub: HubThread) -> None:
    def fail(tables: shadowsync.Embeddings) -> None:
        with tables:
            tables({"user": torch.tensor([1])})["user"].sum().backward()
            raise ZeroDivisionError("mine")

    before = read(tables_hub, 1)
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        fail(joined(tables_hub))
    assert raised.value.__context__ is None
    assert (before - read(tables_hub, 1)).abs().max() in (0.0, pytest.approx(0.5)), "it may not have come"
    with pytest.raises(shadowsync.AttachError, match=r"cannot be written with a module; write state_dict"):
        pickled(joined(tables_hub))


def read(own: HubThread, row: int) -> torch.Tensor:
    with joined(own) as tables:
        return tables.vectors("user", torch.tensor([row]))


def pickled(tables: shadowsync.Embeddings) -> None:
    with tables:
        tables.__reduce_ex__(2)


def test_a_forked_process_is_refused(tables_hub: HubThread) -> None:
    with joined(tables_hub) as own:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                own({"user": torch.tensor([1])})
            except shadowsync.AttachError as error:
                os.write(write, str(error).encode())
            own.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert b"was forked after the tables were joined" in os.read(read, 1000)
        os.close(read)
        os.close(write)
        # Its parent goes on.
        assert own({"user": torch.tensor([1])})["user"].shape == (1, DIM)


def test_the_loop_waits_only_for_too_many_gradients(tables_hub: HubThread) -> None:
    with joined(tables_hub, max_pending=2) as own:
        rows = own._connection.role.rows
        # The thread takes no order meanwhile, so nothing is answered.
        held, taken = threading.Event(), threading.Event()
        vectors = [own({"user": torch.tensor([at])})["user"] for at in range(3)]

        def hold() -> None:
            taken.set()
            held.wait(END_SECONDS)

        rows._call(hold)
        assert taken.wait(END_SECONDS)
        for one in vectors[:2]:
            one.sum().backward()
        assert own.metrics()["pending_pushes"] == 2
        third = threading.Thread(target=vectors[2].sum().backward)
        third.start()
        assert own.metrics()["pending_pushes"] == 2
        held.set()
        third.join(END_SECONDS)
        own.flush()
        assert (own.metrics()["pending_pushes"], own.metrics()["pushes"]) == (0, 3)


def test_who_is_not_there_and_who_does_not_belong_there(tables_hub: HubThread) -> None:
    with pytest.raises(ClusterError, match="no hub answered within 500 ms"):
        shadowsync.Embeddings({"user": 3}, join="tcp://127.0.0.1:1", timeout_seconds=0.5)
    with pytest.raises(shadowsync.AttachError, match="join: 'hub' given"):
        shadowsync.Embeddings({"user": 3}, join="hub")
    with pytest.raises(shadowsync.AttachError, match="dims of user given, and tables item, user"):
        shadowsync.Embeddings(TABLES, {"user": 4}, join=tables_hub.endpoint)
    with pytest.raises(shadowsync.AttachError, match="pooling='max'"):
        shadowsync.Embeddings(TABLES, DIM, join=tables_hub.endpoint, pooling="max")  # type: ignore[arg-type]
    stranger = hosted_node("embedding", NodeSettings(loop_job({})), tables_hub.endpoint, 7)
    stranger.start()
    code, text = stranger.ended.result(END_SECONDS)
    assert (code, "a hub starts its embedding nodes itself" in text) == (ExitCode.CLUSTER, True), text
    # The control: the hub goes on, and a module that belongs there joins.
    joined(tables_hub).close()
