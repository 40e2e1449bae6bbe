"""The fault matrix: whoever dies or stalls, whenever, nothing hangs, and a round is for all or for none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from shadowsync.nodes.allreduce.round import RoundId
from shadowsync.pipeline.codecs.formats import LinkCodecs, make_codec
from shadowsync.tests.support.sync.exact_mean import is_mean
from shadowsync.tests.support.sync.peer_faults import Action, Moment, PeerFault
from shadowsync.tests.support.sync.peer_net import TIMEOUT_SECONDS, Net, Trainer

COUNT = 4
NUMEL = 48
CHUNK = 3
FAULTY_ROUND = RoundId(1, 1)
RANKS = {"first": 0, "middle": 2, "last": COUNT - 1}


class Scenario:
    """One complete round, then one in which a trainer fails."""

    def __init__(
        self, rank: int, moment: Moment, action: Action, *, eager: bool, codec: str, seed: int
    ) -> None:
        codecs = LinkCodecs(make_codec(codec), make_codec(codec))
        self.net = Net(COUNT, NUMEL, chunk_elements=CHUNK, eager=eager, codecs=codecs, seed=seed)
        self.net.regroup(range(COUNT))
        self.complete_round(self.net.trainers)
        self.fault = PeerFault(self.net, rank, moment, action, NUMEL // COUNT // CHUNK)
        self.faulty = self.net.trainers[rank]
        self.survivors = [trainer for trainer in self.net.trainers if trainer is not self.faulty]
        self.members = [trainer.index for trainer in self.survivors]

    def complete_round(self, trainers: Sequence[Trainer], number: int = 0) -> None:
        """A round of this generation that all of these must complete, alike."""
        id = RoundId(self.net.generation, number)
        assert self.net.run(lambda: self._has_all(trainers, id))
        assert len({trainer.results[id].tobytes() for trainer in trainers}) == 1

    def _has_all(self, trainers: Sequence[Trainer], id: RoundId) -> bool:
        for trainer in trainers:
            # One at a time: one that comes back may complete an old one first.
            trainer.wants = len(trainer.results) + (id not in trainer.results)
        return all(id in trainer.results for trainer in trainers)

    def outcomes(self) -> list[bool]:
        """Of each survivor that is done with the faulty round: whether it was given a result."""
        done = []
        for trainer in self.survivors:
            if FAULTY_ROUND in trainer.results:
                done.append(True)
            elif any(ended.round_id == FAULTY_ROUND for ended in trainer.ended):
                done.append(False)
        return done

    def run(self, coordinator: str) -> None:
        """Until every survivor is done with the faulty round; that takes a bounded time."""
        for trainer in self.net.trainers:
            trainer.wants += 1
        announced = False
        end = self.net.now + 4 * TIMEOUT_SECONDS
        while len(self.outcomes()) < len(self.survivors) or not self.fault.injected:
            assert self.net.now < end, "it hangs"
            self.fault.watch()
            reported = any(late.index == self.faulty.index for t in self.survivors for late in t.late)
            if not announced and self.fault.injected and (coordinator == "prompt" or reported):
                announced = True
                if coordinator != "silent":
                    self.net.regroup_slowly(self.members)
            self.net.step()
            for trainer in self.survivors:
                # Nothing else is wanted before all is said about this round.
                if trainer.ended:
                    trainer.wants = len(trainer.results)

    def check_agreement(self) -> None:
        """All survivors have the same result, which is right, or none has any."""
        outcomes = self.outcomes()
        assert len(set(outcomes)) == 1, f"half applied: {outcomes}"
        if not outcomes[0]:
            return
        results = [trainer.results[FAULTY_ROUND] for trainer in self.survivors]
        assert all(result.tobytes() == results[0].tobytes() for result in results)

    def check_the_others(self) -> None:
        """What the faulty one has, it may have alone only if that is counted."""
        alone = FAULTY_ROUND in self.faulty.results and not self.outcomes()[0]
        undecided = [trainer.state.context.undecided_rounds for trainer in self.survivors]
        assert not alone or max(undecided) > 0


@pytest.mark.parametrize("coordinator", ["prompt", "after it is reported", "silent"])
@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("rank", RANKS)
def test_the_fault_matrix(rank: str, moment: Moment, action: Action, coordinator: str) -> None:
    for seed, (eager, codec) in enumerate([(False, "float32"), (True, "int8")]):
        scenario = Scenario(RANKS[rank], moment, action, eager=eager, codec=codec, seed=seed)
        scenario.run(coordinator)
        scenario.check_agreement()
        # The next round works, among those that are left.
        scenario.net.regroup(scenario.members)
        scenario.complete_round(scenario.survivors)
        scenario.check_the_others()
        if action is Action.STALLS:
            scenario.fault.end()
            scenario.net.regroup(range(COUNT))
            scenario.complete_round(scenario.net.trainers)
            scenario.check_the_others()


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("moment", [Moment.AFTER_READY, Moment.MID_SCATTER, Moment.MID_GATHER])
def test_only_the_one_that_fails_is_reported(rank: str, moment: Moment) -> None:
    """Those that wait for it keep others waiting, too; they are not put out for that."""
    for seed in range(10):
        scenario = Scenario(RANKS[rank], moment, Action.STALLS, eager=False, codec="float32", seed=seed)
        scenario.run("after it is reported")
        late = {late.index for trainer in scenario.survivors for late in trainer.late}
        assert late == {RANKS[rank]}
        for trainer in scenario.survivors:
            assert len(trainer.late) == len(set(trainer.late)) <= 1


def test_what_one_completed_the_others_complete_from_it() -> None:
    """The results of a trainer that is gone come from the one that had them all."""
    for seed in range(10):
        scenario = Scenario(0, Moment.SOME_HAVE_ALL, Action.DIES, eager=False, codec="float32", seed=seed)
        scenario.run("after it is reported")
        assert scenario.outcomes() == [True, True, True]
        given = [t.given[1] for t in scenario.net.trainers]
        assert is_mean(scenario.survivors[-1].results[FAULTY_ROUND], given, [1] * COUNT)
