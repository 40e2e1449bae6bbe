"""The algorithms go where they went when the golden files were written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from shadowsync.tests.golden.trajectories import (
    CLASSES,
    FOLDER,
    MODES,
    OPTIONS,
    ROUNDS,
    file_of,
    trajectories,
)
from shadowsync.tests.support.sync.example_algorithms import needs_examples

CASES = [(name, mode) for name in sorted(CLASSES) for mode in MODES]


def _numbers(tree: Any) -> Iterator[float]:
    if isinstance(tree, float | int):
        yield float(tree)
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _numbers(part)


def _golden(name: str, mode: str) -> dict[str, Any]:
    file = file_of(name, mode)
    assert file.exists(), f"{file.name} is missing; see rewrite.py"
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def _far(golden: dict[str, Any], found: dict[str, Any]) -> list[tuple[float, float]]:
    """The numbers that differ by more than the tolerance that the file states."""
    tolerance = golden["tolerance"]
    pairs = zip(_numbers(golden["trajectories"]), _numbers(found["trajectories"]), strict=True)
    allowed = tolerance["absolute"], tolerance["relative"]
    return [
        (one, other) for one, other in pairs if not abs(one - other) <= allowed[0] + allowed[1] * abs(one)
    ]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_golden(name: str, mode: str) -> None:
    golden, found = _golden(name, mode), trajectories(name, mode)
    assert golden["trajectories"].keys() == found["trajectories"].keys()
    assert len(list(_numbers(golden["trajectories"]))) >= 12 * ROUNDS
    assert _far(golden, found) == []


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_golden_files_can_tell_things_apart(name: str) -> None:
    """The control: another mode, or another set of options, is no match."""
    fixed, shadow = (_golden(name, mode) for mode in MODES)
    assert len(_far(fixed, shadow)) > 0.5 * len(list(_numbers(fixed["trajectories"])))
    # In shadow mode, since the two forms are the same where nothing is trained meanwhile.
    first, *others = shadow["trajectories"].values()
    for other in others:
        assert _far({"tolerance": shadow["tolerance"], "trajectories": first}, {"trajectories": other})


@needs_examples
def test_every_algorithm_has_its_files_and_no_other_lies_there() -> None:
    assert {file.name for file in FOLDER.glob("*.json")} == {file_of(*case).name for case in CASES}
    assert set(OPTIONS) == set(CLASSES)
