"""Which model came out, in words."""

from __future__ import annotations

import pytest
from shadowsync.nodes.coordinator.state.outcome import FinalModel
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.wire.control.messages import NodeFacts
from shadowsync.pipeline.wire.control.orders import FinalizeReply, WriteCheckpoint


def facts(origin: str) -> FinalModel:
    """Of an algorithm called x."""
    return FinalModel.of(NodeFacts(model_origin=origin, dense_elements=10, needs_peers=True), "x")


def final(digest: str, rounds: int) -> FinalizeReply:
    """A trainer that has the model; without a digest one that has not."""
    return FinalizeReply(
        {}, complete=True, model_ready=bool(digest), model_digest=digest, model_rounds=rounds
    )


@pytest.mark.parametrize(
    ("origin", "saved", "scored"),
    [
        ("center", "the center (x)", "the center (x)"),
        ("mean", "the mean of the replicas (x)", "the mean of the replicas (x)"),
        ("global", "the global model (x)", "the global model (x)"),
        ("replicas", "the replica of trainer-0 (x)", "the mean of the 3 replicas' own scores (x)"),
    ],
)
def test_every_origin_has_its_words(origin: str, saved: str, scored: str) -> None:
    model = facts(origin)
    assert model.saved("trainer-0") == saved
    assert model.scored(3) == scored
    assert model.single == (origin != "replicas")


def test_a_moving_average_is_called_so_and_made_of_those_whose_model_it_is() -> None:
    files = [FileEntry(f"{role}.x", 1, "0" * 64, role) for role in ("trainer-0", "trainer-1", "sync-0")]
    facts = NodeFacts(model_origin="center", dense_elements=10, needs_peers=True)
    model = FinalModel.of(facts, "x", ema=True)
    assert model.saved("trainer-0") == model.scored(3) == "the moving average of the replicas' mean (x)"
    part = WriteCheckpoint("/folder", "center", running=True, yields=True)
    order = model.compose_average(part, files, 1)
    assert [file.role for file in order.files] == ["trainer-0", "trainer-1"]
    assert (order.directory, order.model, order.yields) == ("/folder", "ema", True)
    model.lose_single()
    assert model.saved("trainer-1") == "the moving average of the replica of trainer-1 (x)"
    assert [file.role for file in model.compose_average(part, files, 1).files] == ["trainer-1"]


def test_one_replica_is_no_mean() -> None:
    assert facts("replicas").scored(1) == "the replica (x)"


def test_those_that_agree_with_the_saver() -> None:
    model = facts("global")
    assert model.agreeing(["a", "b"]) == ["a", "b"], "nobody said otherwise"
    for name, digest in (("a", "1"), ("b", "2"), ("c", "1")):
        model.finalized(name, final(digest, 3))
    model.saved_by = "a"
    assert model.agreeing(["a", "b", "c"]) == ["a", "c"]
    model.finalized("c", final("", 0))
    assert model.agreeing(["a", "b", "c"]) == ["a"]
    model.saved_by = "b"
    assert model.agreeing(["a", "b", "c"]) == ["b"]


def test_who_is_asked_for_the_model_first() -> None:
    model = facts("global")
    assert model.by_promise(["a", "b"]) == ["a", "b"]
    model.finalized("b", final("1", 3))
    model.finalized("c", final("2", 4))
    assert model.by_promise(["a", "b", "c"]) == ["c", "b", "a"]
