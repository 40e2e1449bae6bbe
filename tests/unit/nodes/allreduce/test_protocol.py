"""The all-reduce protocol's rules one by one, with messages and a clock in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.allreduce.round import ReorderBuffer, RoundId, RoundPhase
from shadowsync.pipeline.wire.messages import Lookup
from shadowsync.pipeline.wire.peer_messages import (
    PeerChunk,
    PeerReady,
    PeerRequest,
    PeerResolve,
    PeerResult,
    PeerState,
    PeerVerdict,
    PeerWait,
)
from shadowsync.pipeline.wire.schema import Message
from shadowsync.sync_algos.base import AlgorithmState
from shadowsync.sync_algos.contract.grouping import fixed, shuffled
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.held_memory import early_bytes, saved_bytes
from shadowsync.tests.support.sync.peer_net import TIMEOUT_SECONDS, Lossy, Net
from shadowsync.tests.support.sync.peer_transports import Remembering

NUMEL = 24


class Counting(Remembering):
    """Has one tensor, which says how often it was moved."""

    name = "counting"
    state_names = ("moved",)

    def __init__(self, completed: int) -> None:
        super().__init__(completed, NUMEL)


class Refusing(Counting):
    """Does not take a state."""

    def load_state(self, state: AlgorithmState) -> None:
        raise ValueError(f"another size than {len(state.tensors)}")


def done(net: Net, rounds: int) -> bool:
    return net.run(lambda: all(len(t.results) >= rounds for t in net.trainers if t.wants))


@settings(max_examples=40)
@given(
    versions=st.lists(st.integers(0, 3), min_size=2, max_size=5),
    loss=st.sampled_from([0.0, 0.2]),
    eager=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_those_behind_adopt_the_state_before_they_meet(
    versions: list[int], loss: float, eager: bool, seed: int
) -> None:
    algorithms = [Remembering(version, NUMEL) for version in versions]
    net = Net(len(versions), NUMEL, algorithms=algorithms, eager=eager, seed=seed)
    net.lose = Lossy(loss, seed)
    assert done(net.meeting(), 1)
    best = max(versions)
    for version, algorithm in zip(versions, algorithms, strict=True):
        assert algorithm.held.completed_rounds == best
        assert all((algorithm.held.tensors[name] == best).all() for name in Remembering.state_names)
        assert algorithm.loads == (version < best)
    sources = {sender for sender, _, message in net.sent if isinstance(message, PeerState)}
    assert sources <= {versions.index(best)}


@pytest.mark.parametrize(
    ("first", "then", "source"),
    [((0, 1), (0, 1, 2), 0), ((0, 1), (2, 3), 2), ((0,), (2, 3), 2)],
    ids=["beside others", "after all others died", "two beside one"],
)
def test_one_that_joins_late_has_the_state_of_the_others_before_any_round(
    first: tuple[int, ...], then: tuple[int, ...], source: int
) -> None:
    # Those that joined began with the replica of another one: what they have is not the group's.
    algorithms = [Counting(0), Counting(0), Counting(0), Counting(0)]
    for late in (2, 3):
        algorithms[late].held = AlgorithmState(0, {"moved": torch.full((NUMEL,), float(late))})
    net = Net(4, NUMEL, algorithms=algorithms)
    net.regroup(first)
    net.regroup(then)
    net.want(1, then)
    assert done(net, 1)
    expected = 0.0 if source < 2 else float(source)
    for index in then:
        assert algorithms[index].held.completed_rounds == 0
        assert (algorithms[index].held.tensors["moved"] == expected).all()
    assert {sender for sender, _, message in net.sent if isinstance(message, PeerState)} <= {0, 1, source}


def test_a_donor_that_dies_is_put_out_and_the_next_one_gives() -> None:
    algorithms = [Counting(5), Counting(0), Counting(5)]
    net = Net(3, NUMEL, algorithms=algorithms, chunk_elements=2).meeting()
    assert net.run(lambda: any(isinstance(m, PeerState) for _, _, m in net.sent))
    net.kill(0)
    net.trainers[0].wants = 0
    assert net.run(lambda: bool(net.trainers[1].late or net.trainers[2].late))
    net.regroup([1, 2])
    assert done(net, 1)
    assert (algorithms[1].held.tensors["moved"] == 5).all()


def test_a_state_that_the_algorithm_refuses_is_not_the_fault_of_the_message() -> None:
    net = Net(2, NUMEL, algorithms=[Counting(1), Refusing(0)]).meeting()
    with pytest.raises(RuntimeError, match="refused the state of trainer 0"):
        net.run(lambda: False)


def test_one_that_is_alive_and_not_there_yet_is_not_late() -> None:
    net = Net(2, NUMEL)
    net.regroup([0, 1])
    net.want(1, [0])
    assert not net.run(lambda: bool(net.trainers[0].ended), most_seconds=6 * TIMEOUT_SECONDS)
    assert any(isinstance(message, PeerWait) for _, _, message in net.sent)
    net.want(1, [1])
    assert done(net, 1)


@pytest.mark.parametrize("eager", [False, True])
def test_for_how_long_rounds_waited_for_whom_is_counted(eager: bool) -> None:
    net = Net(3, NUMEL, eager=eager).meeting(2)
    assert net.run(lambda: all(len(trainer.results) == 2 for trainer in net.trainers))
    assert all(not any(one.state.context.waited_seconds.values()) for one in net.trainers)
    net.want(1, [0])
    assert not net.run(lambda: False, 2.0)
    net.want(1, [1])
    assert not net.run(lambda: False, 3.0)
    net.want(1, [2])
    assert net.run(lambda: all(len(trainer.results) == 3 for trainer in net.trainers))
    waited = [trainer.state.context.waited_seconds for trainer in net.trainers]
    assert [one.get(2, 0.0) for one in waited] == [5.0, 3.0, 0.0]
    assert all(not sum(seconds for peer, seconds in one.items() if peer != 2) for one in waited)


def test_one_that_is_silent_is_late() -> None:
    """The control of the one above."""
    net = Net(2, NUMEL)
    net.regroup([0, 1])
    net.trainers[1].stalled = True
    net.want(1, [0])
    assert net.run(lambda: bool(net.trainers[0].ended), most_seconds=2 * TIMEOUT_SECONDS)
    assert [late.index for late in net.trainers[0].late] == [1]


def test_one_that_waits_elsewhere_answers_for_whom() -> None:
    """Trainer 2 never comes, and trainer 1 did not hear trainer 0 before: only 2 is late for anybody."""
    net = Net(3, NUMEL, seed=4)
    net.regroup(range(3))
    net.want(1, [0, 1])
    net.trainers[2].stalled = True
    assert net.run(lambda: bool(net.trainers[0].ended and net.trainers[1].ended))
    late = {report.index for trainer in net.trainers for report in trainer.late}
    assert late == {2}


def test_fixed_groups_do_not_wait_for_each_other() -> None:
    net = Net(4, NUMEL)
    for trainer in net.trainers:
        trainer.grouping = fixed(2)
    net.regroup(range(4))
    net.trainers[3].stalled = True
    net.want(5)
    assert net.run(lambda: all(len(net.trainers[at].results) == 5 for at in (0, 1)))
    assert not net.trainers[2].results


def test_reshuffled_pairs_are_done_for_with_one_of_them_far_ahead() -> None:
    """A trainer may be rounds ahead of one that it will meet again; what it is ready for is remembered."""
    for seed in range(10):
        net = Net(6, NUMEL, seed=seed)
        for trainer in net.trainers:
            trainer.grouping = shuffled(2)
        net.regroup(range(6))
        net.want(8)
        assert done(net, 8)
        ids = [list(trainer.results) for trainer in net.trainers]
        assert all(each == [RoundId(1, number) for number in range(8)] for each in ids)


def test_the_values_of_one_round_are_kept_of_a_peer_that_is_early() -> None:
    """Eager peers stream before this trainer is there, and that much memory is taken, and no more."""
    net = Net(3, NUMEL, eager=True).meeting()
    assert done(net, 1)
    net.want(1, [0, 1])
    late_one = net.trainers[2].state
    net.run(lambda: False, most_seconds=TIMEOUT_SECONDS / 2)
    assert late_one.awaited
    assert early_bytes(late_one.context.reorder_buffer) == 2 * 4 * NUMEL // 3
    net.want(1, [2])
    assert done(net, 2)
    assert early_bytes(late_one.context.reorder_buffer) == 0


def test_early_chunks_are_bounded() -> None:
    reorder_buffer = ReorderBuffer(100)

    def chunk(number: int, position: int, size: int = 40) -> PeerChunk:
        return PeerChunk(1, number, position, size // 4, 1.0, 0, np.zeros(size, dtype=np.uint8))

    reorder_buffer.add(0, chunk(1, 0))
    reorder_buffer.add(0, chunk(1, 1))
    reorder_buffer.add(0, chunk(1, 1))
    assert early_bytes(reorder_buffer) == 80
    with pytest.raises(ValueError, match="exceed 100 bytes"):
        reorder_buffer.add(0, chunk(1, 2))
    reorder_buffer.add(1, chunk(7, 0))
    reorder_buffer.add(0, chunk(2, 0))
    with pytest.raises(ValueError, match="came after one of"):
        reorder_buffer.add(0, chunk(1, 0))
    assert early_bytes(reorder_buffer) == 80
    assert reorder_buffer.take(0, RoundId(1, 1)) == []
    assert len(reorder_buffer.take(0, RoundId(1, 2))) == 1
    reorder_buffer.forget_before(2)
    assert early_bytes(reorder_buffer) == 0


def test_what_is_of_a_generation_that_is_not_known_yet_waits_for_it() -> None:
    net = Net(2, NUMEL)
    net.regroup([0, 1])
    net.generation = 2
    net.trainers[0].state.regroup(2, [0, 1], 0.0)
    net.want(1)
    net.run(lambda: False, most_seconds=TIMEOUT_SECONDS / 2)
    net.trainers[1].state.regroup(2, [0, 1], net.now)
    assert done(net, 1)
    assert RoundId(2, 0) in net.trainers[1].results


def payload(elements: int, value: float = 0.0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.full(elements, value, dtype=np.float32).view(np.uint8)


NO_POSITIONS = np.zeros(0, dtype=np.int32)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (PeerChunk(1, 0, 99, 4, 1.0, 0, payload(4)), "position 99"),
        (PeerChunk(1, 0, -1, 4, 1.0, 0, payload(4)), "position -1"),
        (PeerChunk(1, 0, 3, 4, 1.0, 0, payload(4)), "does not reduce position 3"),
        (PeerChunk(1, 0, 0, 5, 1.0, 0, payload(5)), "5 elements at position 0; 4 are expected"),
        (PeerChunk(1, 0, 0, 4, -1.0, 0, payload(4)), "weight"),
        (PeerChunk(1, 0, 0, 4, float("nan"), 0, payload(4)), "weight"),
        (PeerChunk(1, 0, 0, 4, 1.0, 0, payload(3)), "the payload for 4 elements has 12 bytes"),
        (PeerChunk(1, 0, 0, 4, 1.0, 9, payload(4)), "9"),
        (PeerChunk(1, 0, 0, 4, 1.0, 0, payload(4, np.nan)), "the 4 values from 0 are not all finite"),
        (PeerChunk(1, 0, 0, 4, 1.0, 0, payload(4, -np.inf)), "the 4 values from 0 are not all finite"),
        (PeerResult(1, 0, 3, 4, 0, payload(4, np.nan)), "the 4 values from .* are not all finite"),
        (PeerResult(1, 0, 0, 4, 0, payload(4)), "is not of the trainer that reduces it"),
        (PeerResult(1, 0, 99, 4, 0, payload(4)), "no position 99"),
        (PeerResult(1, 0, 3, 3, 0, payload(3)), "3 elements at position 3; 4 are expected"),
        (PeerRequest(1, 0, NO_POSITIONS, np.zeros(2049, dtype=np.int32)), "2049 results"),
        (PeerWait(1, 0, np.zeros(3, dtype=np.int32)), "3 trainers are said to block"),
        (PeerReady(-1, 0, 0), "generation -1"),
        (PeerReady(2**40, 0, 0), "generation"),
        (PeerReady(1, -1, 0), "round -1"),
        (Lookup(1, NO_POSITIONS), "does not accept a lookup"),
    ],
    ids=lambda given: given.KIND if isinstance(given, Message) else str(given),
)
def test_what_cannot_be_is_refused_and_changes_nothing(message: Message, match: str) -> None:
    net = Net(2, NUMEL).meeting()
    assert net.run(lambda: all(trainer.state.streaming for trainer in net.trainers))
    with pytest.raises(ValueError, match=match):
        net.trainers[0].state.receive(1, message, net.now)
    assert done(net, 1)
    one, other = net.trainers
    assert one.results[RoundId(1, 0)].tobytes() == other.results[RoundId(1, 0)].tobytes()
    assert np.isfinite(one.results[RoundId(1, 0)]).all()


def test_a_weight_that_changes_in_a_round_is_refused() -> None:
    net = Net(2, NUMEL).meeting()
    # Only what is made up here arrives.
    assert net.run(lambda: all(trainer.state.streaming for trainer in net.trainers))
    state = net.trainers[0].state
    state.receive(1, PeerChunk(1, 0, 0, 4, 2.0, 0, payload(4)), net.now)
    with pytest.raises(ValueError, match="weight"):
        state.receive(1, PeerChunk(1, 0, 1, 4, 3.0, 0, payload(4)), net.now)


def test_who_promised_not_to_complete_a_round_does_not() -> None:
    """Its missing results come a moment later; without one that had completed they count for nothing."""
    net = Net(2, NUMEL).meeting()
    one, other = net.trainers
    net.lose = lambda sender, to, message: isinstance(message, PeerResult) and sender == 1  # noqa: ARG005
    assert net.run(lambda: len(other.results) == 1)
    round = present(one.state.context.current_round)
    work = present(round.work)
    assert work.reduced
    results = [PeerResult(1, 0, at, 4, 0, payload(4)) for at in work.missing_results()]
    one.state.receive(1, PeerResolve(1, 0), net.now)
    assert round.phase is RoundPhase.RESOLVING
    for result in results:
        one.state.receive(1, result, net.now)
    one.act(net.now)
    assert not one.results
    # The other had, and says so.
    one.state.receive(1, PeerVerdict(1, 0, True, True), net.now)
    one.act(net.now)
    assert len(one.results) == 1


def test_a_member_that_may_have_completed_alone_is_counted() -> None:
    """It has all results, and stalls before it says so: the gap that remains."""
    net = Net(3, NUMEL).meeting()
    net.lose = lambda sender, to, message: isinstance(message, PeerResult) and to != 2  # noqa: ARG005
    assert net.run(lambda: bool(net.trainers[2].results))
    net.trainers[2].stalled = True
    net.regroup([0, 1])
    assert net.run(lambda: all(net.trainers[at].ended for at in (0, 1)))
    assert [net.trainers[at].state.context.undecided_rounds for at in (0, 1)] == [1, 1]


def test_one_that_is_stalled_before_it_reduced_cannot_have_completed() -> None:
    """The control of the one above: nothing is counted, and nobody waits for its answer."""
    net = Net(3, NUMEL).meeting()
    assert net.run(lambda: any(isinstance(message, PeerChunk) for _, _, message in net.sent))
    net.trainers[2].stalled = True
    assert net.run(lambda: any(net.trainers[at].late for at in (0, 1)))
    reported = net.now
    assert net.run(lambda: all(net.trainers[at].ended for at in (0, 1)))
    assert net.now <= reported + TIMEOUT_SECONDS / 4
    assert [net.trainers[at].state.context.undecided_rounds for at in (0, 1)] == [0, 0]


def test_results_are_kept_until_nobody_lacks_them() -> None:
    net = Net(2, NUMEL).meeting()
    assert done(net, 1)
    memories = [trainer.state.context.history for trainer in net.trainers]
    assert [saved_bytes(history) for history in memories] == [4 * NUMEL] * 2
    net.trainers[1].state.receive(0, PeerRequest(1, 0, NO_POSITIONS, np.arange(9, dtype=np.int32)), net.now)
    net.sent.clear()
    net.run(lambda: False, most_seconds=1.0)
    again = [message for sender, _, message in net.sent if sender == 1 and isinstance(message, PeerResult)]
    assert sorted(message.position for message in again) == list(range(6))
    net.want(1, [0])
    net.run(lambda: False, most_seconds=1.0)
    assert [saved_bytes(history) for history in memories] == [4 * NUMEL, 0]


def test_a_grouping_that_leaves_one_out_is_refused() -> None:
    net = Net(3, NUMEL)
    net.regroup(range(3))
    net.trainers[2].grouping = lambda members, number, seed: ((0, 1),)  # noqa: ARG005
    net.want(1, [2])
    with pytest.raises(ValueError, match="puts trainer 2"):
        net.step()


def stop_in_mid_round(seed: int, steps: int) -> list[bool]:
    """Three trainers told to stop, one by one, in the middle of a round: which of them have its result."""
    net = Net(3, NUMEL, chunk_elements=4, seed=seed).meeting()
    for _ in range(steps):
        net.step()
    heard_at = net.now
    for trainer in net.trainers:
        trainer.wants = 0
        trainer.state.cancel(net.now)
        net.step()
    assert net.run(lambda: not any(trainer.requested for trainer in net.trainers)), "it hangs"
    assert net.now - heard_at < TIMEOUT_SECONDS / 2, "nobody is missing, so nothing is waited for"
    assert not any(trainer.state.context.undecided_rounds for trainer in net.trainers)
    return [bool(trainer.results) for trainer in net.trainers]


def test_trainers_that_stop_in_mid_round_all_have_its_result_or_none() -> None:
    found = [stop_in_mid_round(seed, steps) for seed in range(6) for steps in range(10, 150, 3)]
    assert all(len(set(outcome)) == 1 for outcome in found)
    # The control: both ways of ending occur.
    assert {outcome[0] for outcome in found} == {True, False}
