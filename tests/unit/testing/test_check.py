"""The conformance suite: good algorithms pass, and each kind of wrong one fails the check that is for it."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.sync_algos.base import Algorithm
from shadowsync.sync_algos.bmuf import BMUF
from shadowsync.sync_algos.catalog.registry import ALGORITHMS
from shadowsync.sync_algos.easgd import EASGD
from shadowsync.testing import ConformanceError, check_algorithm
from shadowsync.testing.check import CHECKS
from shadowsync.testing.harness import Subject
from shadowsync.tests.support.sync.wrong_classes import (
    AllOrNothing,
    AnswersItself,
    AppliesLost,
    CenterWithoutNeed,
    DropsLateWork,
    NoCenterRule,
    NoMergeRule,
    Normalizes,
    NormalizesMerges,
    NotFrozen,
    NotShared,
    SaysNoKey,
    TakesAnything,
    UnheldGlobal,
    WorseRound,
    WritesTheRequest,
)
from shadowsync.tests.support.sync.wrong_peers import (
    CallsItComplete,
    Diverging,
    DoesNothing,
    Drifting,
    GivesUp,
    HalfApplied,
    LosesNobody,
    NeverDone,
    NotAlone,
    OnlyDeath,
    Pulled,
    Random,
    SaysNothing,
    Waits,
    WritesTheMean,
    WritesTheValues,
)
from shadowsync.tests.support.sync.wrong_states import (
    Aliasing,
    CountsLostRounds,
    CountsTwice,
    Forgetful,
    ForgetsTheCount,
    NotFlat,
    OtherNames,
    OwnGlobal,
)

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in sorted(ALGORITHMS)),
    ("easgd", {"elastic_rate": 1.0}),
    ("decoupled", {"block_momentum": "auto", "eta": 0.5}),
    ("decoupled", {"block_momentum": 0.0, "quorum": 1}),
    ("ma", {"elastic_rate": 1.0}),
    ("ma", {"form": "keep", "weighted": True}),
    ("bmuf", {"block_momentum": 0.0, "elastic_rate": 0.5, "form": "interpolate"}),
    ("bmuf", {"block_momentum": 0.9, "eta": 0.5, "form": "interpolate"}),
    ("bmuf", {"block_momentum": "auto", "elastic_rate": 1.0}),
    ("bmuf", {"block_momentum": 0.9, "nesterov": True, "form": "keep"}),
    ("gaia", {"threshold": 0.0}),
    ("gaia", {"threshold": 0.5, "combine": "mean"}),
    ("tree", {"site_size": 2, "site_every": 3}),
    ("tree", {"site_size": 1, "site_every": 1, "form": "keep"}),
    ("ds_sync", {"group_size": 3, "reshuffle": False}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_built_in_algorithm_conforms(name: str, options: dict[str, Any]) -> None:
    check_algorithm(ALGORITHMS[name], options)


WRONG: list[tuple[type[Algorithm], str, str]] = [
    (HalfApplied, "joining", "the replica as its workers left it"),
    (LosesNobody, "joining", "a round that raises nothing; found PeerLost"),
    (CallsItComplete, "joining", "a replica to which everything was applied"),
    (Forgetful, "state", "the same replicas as without"),
    (CountsLostRounds, "joining", "an unchanged state"),
    (CountsTwice, "progress", "completed_rounds of the state to grow by 1; found by 2"),
    (ForgetsTheCount, "joining", "3 completed rounds, as trainer 0 has; found 1 on trainer 2"),
    (GivesUp, "joining", "True from each member's round"),
    (NotFlat, "fixed point", "float32 [24], flat like the replica; found torch.float32 [1]"),
    (OtherNames, "fixed point", "a state of ['global', 'velocity']"),
    (Aliasing, "zero rounds", "in its own memory"),
    (OwnGlobal, "progress", "the same global model on all trainers"),
    (Drifting, "fixed point", "no bit changed; found trainer 1's replica off by"),
    (Diverging, "bounded", "replicas at most"),
    (WritesTheMean, "fixed point", "the mean that the group returned changed"),
    (WritesTheValues, "fixed point", "the values given to mean changed"),
    (Random, "repeatable", "the same replicas"),
    (Waits, "fixed point", "does not end"),
    (NeverDone, "progress", "True, since no peer is lost"),
    (DoesNothing, "progress", "none moved"),
    (SaysNothing, "fixed point", "True or False; found None"),
    (NotAlone, "one peer", "True, as with three trainers; found False"),
    (WorseRound, "center lost", "False, since a slice is missing"),
    (AppliesLost, "center lost", "the lost slice of the replica as the workers left it"),
    (AllOrNothing, "center lost", "the other slices applied whole"),
    (WritesTheRequest, "fixed point", "the values given to the center changed"),
    (NormalizesMerges, "merge rule", "the same values as in one slice"),
    (DropsLateWork, "late trainer", "the center to move by its work"),
    (NoMergeRule, "declaration", "merge_rule and merge_terms"),
    (Normalizes, "center rule", "the same values as in one slice"),
    (NotShared, "shared instance", "another replica"),
    (NoCenterRule, "declaration", "a center_rule"),
    (UnheldGlobal, "declaration", "a joining trainer gets the state"),
    (CenterWithoutNeed, "declaration", "needs_center"),
    (TakesAnything, "options", "elastic_rate = nan"),
    (SaysNoKey, "options", 'ValueError("elastic_rate: ...")'),
    (NotFrozen, "declaration", "is not frozen"),
]


def test_what_the_wrong_ones_are_made_of_is_right() -> None:
    """The control: without what is wrong with them they pass."""
    check_algorithm(Pulled)


@pytest.mark.parametrize(("cls", "check", "said"), WRONG, ids=[cls.__name__ for cls, _, _ in WRONG])
def test_a_wrong_algorithm_fails(cls: type[Algorithm], check: str, said: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_algorithm(cls)
    error = caught.value
    assert error.check == check, str(error)
    assert said in str(error)
    assert str(error) == f"{check}: {error.step}: expected {error.expected}; found {error.found}"


def test_every_check_finds_something() -> None:
    """Also those that a wrong algorithm meets late: each check by itself, on one that only it finds."""
    found = {check for _, check, _ in WRONG}
    assert found | {"leaving", "death in mid-round"} == set(CHECKS)


@pytest.mark.parametrize("check", ["joining", "leaving", "death in mid-round"])
def test_each_way_of_going_is_checked(check: str) -> None:
    with pytest.raises(ConformanceError, match=check):
        CHECKS[check](Subject(OnlyDeath, {}))
    CHECKS[check](Subject(Pulled, {}))


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (AnswersItself, "a view of the center or of the request"),
        (WritesTheRequest, "the values unchanged"),
    ],
)
def test_the_centers_half_by_itself(cls: type[Algorithm], said: str) -> None:
    """Early checks find these too; here what the check for them says."""
    with pytest.raises(ConformanceError, match=said):
        CHECKS["center rule"](Subject(cls, {}))
    CHECKS["center rule"](Subject(EASGD, {}))


def test_options_are_those_that_were_given() -> None:
    with pytest.raises(ConformanceError, match=r"sync\.options\.eta: 0 given"):
        check_algorithm(BMUF, {"eta": 0})
    with pytest.raises(ConformanceError, match="make it a subclass"):
        check_algorithm(dict)  # type: ignore[arg-type]
