"""The conformance suite: an algorithm's contract, checked in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..sync_algos.base import Algorithm
from ..sync_algos.catalog.plugins import check_class
from ..sync_algos.contract.options import AlgorithmError, make_options
from .center import (
    check_center_lost,
    check_center_rule,
    check_late_trainer,
    check_merge_rule,
    check_shared_instance,
)
from .declaration import check_declaration, check_options
from .error import ConformanceError
from .faults import check_death, check_join, check_leave
from .harness import Subject
from .invariants import (
    check_bounded,
    check_fixed_point,
    check_one_peer,
    check_progress,
    check_repeatable,
    check_zero_rounds,
)
from .state_transfer import check_state

CHECKS: dict[str, Callable[[Subject], None]] = {
    "declaration": check_declaration,
    "options": check_options,
    "zero rounds": check_zero_rounds,
    "fixed point": check_fixed_point,
    "progress": check_progress,
    "repeatable": check_repeatable,
    "one peer": check_one_peer,
    "bounded": check_bounded,
    "state": check_state,
    "joining": check_join,
    "leaving": check_leave,
    "death in mid-round": check_death,
    "center rule": check_center_rule,
    "merge rule": check_merge_rule,
    "late trainer": check_late_trainer,
    "center lost": check_center_lost,
    "shared instance": check_shared_instance,
}


def check_algorithm(cls: type[Algorithm], options: Mapping[str, Any] | None = None) -> None:
    """Run an algorithm through all `CHECKS`.

    `options` are keys of `sync.options`; the others have their defaults.

    Raises:
        ConformanceError: the first check that failed: its name, the step, what was expected, what was found.
    """
    given = dict(options or {})
    try:
        check_class(getattr(cls, "name", repr(cls)), cls)
        make_options(cls.name, cls.Options, given)
    except AlgorithmError as error:
        raise ConformanceError(
            "declaration", "loading the class", "a usable algorithm", str(error)
        ) from error
    subject = Subject(cls, given)
    for check in CHECKS.values():
        check(subject)
