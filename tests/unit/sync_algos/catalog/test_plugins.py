"""Algorithms of others in modules and files; and what is said of those that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.sync_algos.catalog.registry import AlgorithmError, find_algorithm, make_algorithm
from shadowsync.sync_algos.ma import MA
from shadowsync.tests.support.sync.plug_in import GOOD, refusal

Write = Callable[[str, str], Path]


def test_a_class_of_a_module(write: Write) -> None:
    write("my_module_algo", GOOD)
    algorithm = make_algorithm("my_module_algo:Mine", {"size": 5, "part": 1, "many": [1, 2]})
    assert algorithm.describe() == {"size": 5, "kind": "a", "part": 1, "many": (1, 2), "by_name": None}
    assert find_algorithm("my_module_algo:Mine") is type(algorithm)
    assert find_algorithm("shadowsync.sync_algos.ma:MA") is MA


def test_a_class_of_a_file(write: Write) -> None:
    """Once in a process, however it is spelled, and not under the file's own name."""
    file = write("json", GOOD)
    found = find_algorithm(f"{file}:Mine")
    assert found.summary == "for a test"
    assert find_algorithm(f"{file.parent}/../{file.parent.name}/json.py:Mine") is found
    assert sys.modules["json"].__file__ != str(file), "a file does not take a module's place"
    assert make_algorithm(f"{file}:Mine", {}).options.size == 2


def test_two_files_of_one_name_are_two_modules(write: Write, tmp_path: Path) -> None:
    first = write("algo", GOOD)
    (tmp_path / "other").mkdir()
    second = tmp_path / "other" / "algo.py"
    second.write_text(GOOD.replace("for a test", "for another"), encoding="utf-8")
    assert find_algorithm(f"{first}:Mine").summary == "for a test"
    assert find_algorithm(f"{second}:Mine").summary == "for another"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module_x:Mine", "there is no module no_such_module_x; install its package"),
        ("my_bad_algo.sub:Mine", "'my_bad_algo.sub:Mine' cannot be imported (ZeroDivisionError"),
        ("no_such_package_x.sub:Mine", "there is no module no_such_package_x;"),
        ("my_bad_algo:Mine", "'my_bad_algo:Mine' cannot be imported (ZeroDivisionError: division by zero)"),
        ("my_needy_algo:Mine", "cannot be imported (ModuleNotFoundError: No module named 'no_such_need')"),
        ("my_good_algo:Mien", "my_good_algo has no Mien; its algorithms: Mine"),
        ("my_good_algo:Settings", "is a class; make it a subclass of shadowsync.sync_algos.base.Algorithm"),
        ("my_good_algo:dataclass", "is a function; make it a subclass"),
        ("shadowsync.sync_algos.base:Algorithm", "is abstract; write its round"),
        ("my_good_algo:", "write package.module:Class or ./file.py:Class"),
        (":Mine", "write package.module:Class"),
        ("./absent.py:Mine", "there is no file /"),
        ("FOLDER/my_bad_algo.py:Mine", "cannot be imported (ZeroDivisionError: division by zero)"),
        ("FOLDER/my_text.txt:Mine", "my_text.txt is not a Python file"),
    ],
)
def test_what_cannot_be_loaded(write: Write, tmp_path: Path, name: str, said: str) -> None:
    write("my_good_algo", GOOD)
    write("my_bad_algo", "1 / 0\n")
    write("my_needy_algo", "import no_such_need\n")
    (tmp_path / "my_text.txt").write_text("hello", "utf-8")
    assert said in refusal(name.replace("FOLDER", str(tmp_path)))


def test_a_file_that_failed_is_tried_again(write: Write) -> None:
    file = write("later", "1 / 0\n")
    assert "ZeroDivisionError" in refusal(f"{file}:Mine")
    file.write_text(GOOD + "\n" * 3, encoding="utf-8")
    assert find_algorithm(f"{file}:Mine").name == "mine"


def test_a_file_that_ends_the_process_may(write: Write) -> None:
    file = write("leaver", "raise SystemExit(3)\n")
    with pytest.raises(SystemExit):
        find_algorithm(f"{file}:Mine")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('    name = "mine"\n', "", "has no name; give it one line of text"),
        ('summary = "for a test"', "summary = 5", "has no summary; give it one line of text"),
        ("@dataclass(frozen=True)", "@dataclass", "the class of options 'Settings' is not frozen"),
        ("@dataclass(frozen=True)", "", "the class of options 'Settings' is not a dataclass"),
        ("Options = Settings", "Options = 7", "the class of options 7 is not a dataclass"),
        (
            "size: int = 2",
            "size: complex = 2",
            "size of type <class 'complex'>, which a job file cannot give",
        ),
        ("size: int = 2", "size: Nowhere = 2", "has a type that cannot be read"),
    ],
)
def test_what_is_no_good_class(write: Write, old: str, new: str, said: str) -> None:
    assert old in GOOD
    file = write("unfit", GOOD.replace(old, new, 1))
    assert said in refusal(f"{file}:Mine")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("size", 2.0, "2.0 given; give an integer"),
        ("size", True, "True given; give an integer"),
        ("size", 0, "0 given; at least 1 will do"),
        ("kind", "c", "'c' given; give 'a' or 'b'"),
        ("part", "x", "'x' given; give a number"),
        ("many", [1, "2"], "[1, '2'] given; give tuple[int, ...]"),
        ("many", 3, "3 given; give tuple[int, ...]"),
        ("by_name", {"a": ["x"]}, "{'a': ['x']} given; give dict[str, list[float]]"),
        ("sise", 3, "unknown option; did you mean 'size'?"),
    ],
)
def test_options_are_checked_by_type(write: Write, key: str, value: object, said: str) -> None:
    file = write("typed", GOOD)
    with pytest.raises(AlgorithmError) as caught:
        make_algorithm(f"{file}:Mine", {key: value})
    assert str(caught.value) == f"sync.options.{key}: {said}"


def test_options_of_many_parts(write: Write) -> None:
    file = write("parts", GOOD)
    made = make_algorithm(f"{file}:Mine", {"by_name": {"a": [1, 2.5]}, "kind": "b", "part": None})
    assert made.options.by_name == {"a": [1, 2.5]}


def test_a_class_that_cannot_be_made(write: Write) -> None:
    text = GOOD + "\n    def __init__(self, options):\n        raise RuntimeError('no room')\n"
    file = write("unmade", text)
    with pytest.raises(AlgorithmError, match=r"cannot be made \(RuntimeError: no room\)"):
        make_algorithm(f"{file}:Mine", {})
