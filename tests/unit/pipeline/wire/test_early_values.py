"""Values that come before this trainer is there are kept: if nothing is lost nobody has to ask for them."""

from __future__ import annotations

import itertools

import pytest
from shadowsync.pipeline.wire.peer_messages import PeerRequest
from shadowsync.tests.support.sync.peer_net import Net, Trainer

ROUNDS = 5


def _net(seed: int) -> Net:
    net = Net(2, 20, chunk_elements=4, seed=seed)
    _make_slow(net.trainers[0])
    net.regroup([0, 1])
    net.want(ROUNDS)
    return net


def _make_slow(trainer: Trainer) -> None:
    """It looks at what happened every third time only: it has met, and takes its time to give its values."""
    act, turns = trainer.act, itertools.count(1)

    def slow(now: float) -> None:
        if next(turns) % 3 == 0:
            act(now)

    trainer.act = slow  # type: ignore[method-assign]


def _requests(net: Net) -> int:
    """How often one had to ask for what was missing, which it does after a quarter of the timeout."""
    assert net.run(lambda: all(len(trainer.results) == ROUNDS for trainer in net.trainers))
    return sum(isinstance(message, PeerRequest) for _, _, message in net.sent)


@pytest.mark.parametrize("seed", range(12))
def test_nobody_has_to_ask(seed: int) -> None:
    assert _requests(_net(seed)) == 0


def test_a_lost_message_is_asked_for() -> None:
    """The control."""
    net = _net(1)
    lost: list[str] = []

    def lose(sender: int, to: int, message: object) -> bool:
        kind = type(message).__name__
        if sender == 0 and to == 1 and kind in ("PeerChunk", "PeerResult") and not lost:
            lost.append(kind)
            return True
        return False

    net.lose = lose
    assert _requests(net) > 0
    assert lost
