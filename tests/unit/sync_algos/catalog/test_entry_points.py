"""Algorithms of installed packages, found by their entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from shadowsync.sync_algos.catalog.names import entry_points
from shadowsync.sync_algos.catalog.registry import ALGORITHMS, AlgorithmError, all_algorithms, find_algorithm
from shadowsync.sync_algos.ma import MA
from shadowsync.tests.support.sync.plug_in import GOOD, refusal

Write = Callable[[str, str], Path]
Install = Callable[..., None]


def test_an_entry_point(write: Write, install: Install) -> None:
    write("my_entry_algo", GOOD)
    install("my-pack", mine="my_entry_algo:Mine")
    assert find_algorithm("mine").summary == "for a test"
    assert list(entry_points()) == ["mine"]
    assert set(all_algorithms()) == {*ALGORITHMS, "mine"}


def test_a_package_that_is_installed_later(write: Write, install: Install, tmp_path: Path) -> None:
    write("my_entry_algo", GOOD)
    # So that the folder has changed, however coarse the clock of its files is.
    os.utime(tmp_path, ns=(0, 0))
    assert list(entry_points()) == []
    install("my-pack", mine="my_entry_algo:Mine")
    assert list(entry_points()) == ["mine"]


def test_entry_points_are_imported_when_they_are_asked_for(write: Write, install: Install) -> None:
    write("my_lazy_algo", GOOD)
    install("my-pack", mine="my_lazy_algo:Mine")
    find_algorithm("ma")
    assert "did you mean 'mine'?" in refusal("mien")
    assert "my_lazy_algo" not in sys.modules
    find_algorithm("mine")
    assert "my_lazy_algo" in sys.modules


def test_a_broken_entry_point_is_named_and_takes_no_other_with_it(write: Write, install: Install) -> None:
    write("my_entry_algo", GOOD)
    write("my_broken_algo", "import no_such_need\n")
    install("good-pack", mine="my_entry_algo:Mine")
    install("bad-pack", broken="my_broken_algo:Mine", lost="my_entry_algo:Lost", other="my_entry_algo:Mine")
    by = "of the installed package bad-pack"
    assert refusal("broken") == (
        f"'broken' {by}: 'my_broken_algo:Mine' cannot be imported "
        "(ModuleNotFoundError: No module named 'no_such_need')"
    )
    assert f"'lost' {by}: 'my_entry_algo:Lost' cannot be loaded: my_entry_algo has no Lost" in refusal("lost")
    assert refusal("other") == f"'other' {by} has name = 'mine'; make them equal"
    found = all_algorithms()
    assert [name for name, one in found.items() if isinstance(one, AlgorithmError)] == [
        "broken",
        "lost",
        "other",
    ]
    assert find_algorithm("mine") is found["mine"]
    assert find_algorithm("ma") is MA


def test_a_name_that_is_taken_twice(write: Write, install: Install) -> None:
    write("my_entry_algo", GOOD)
    install("one", mine="my_entry_algo:Mine", ma="my_entry_algo:Mine")
    install("two", mine="my_entry_algo:Mine")
    said = refusal("mine")
    assert said.startswith("'mine' is the name of several algorithms, of ")
    assert "one (my_entry_algo:Mine)" in said
    assert "two (my_entry_algo:Mine)" in said
    assert refusal("ma") == (
        "'ma' is the name of several algorithms, of shadowsync itself and one (my_entry_algo:Mine); "
        "remove a package"
    )
    assert find_algorithm("bmuf") is ALGORITHMS["bmuf"]
