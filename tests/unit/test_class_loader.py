"""Modules of users' files: what they import from their own folders."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from shadowsync.class_loader import NoSuchFile, load_module


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What these tests load is gone when they end."""
    monkeypatch.setattr("shadowsync.class_loader._folders._paths", [])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, **files: str) -> Path:
    """A folder with these modules."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_a_file_imports_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, relatively, late, and a package; from any working directory."""
    text = """
import beside_it
from . import beside_it as same
from .beside_it import value
from package_beside.inner import value as inner

def late():
    import late_beside
    return late_beside.value
"""
    folder = write(
        tmp_path / "a b", net=text, beside_it="value = 1", late_beside="from beside_it import value"
    )
    write(folder / "package_beside", __init__="", inner="value = 3")
    monkeypatch.chdir("/")
    module = load_module(str(folder / "net.py"))
    assert (module.value, module.beside_it.value, module.same.value, module.inner) == (1, 1, 1, 3)
    assert module.late() == 1
    assert load_module(str(folder / "net.py")) is module
    assert str(folder) not in sys.path


def test_what_lies_beside_it_hides_nothing(tmp_path: Path) -> None:
    """A user's queue.py is no module of Python's own, and json/ neither."""
    loaded = sys.modules.pop("colorsys", None)
    folder = write(tmp_path / "a", net="import colorsys, json", colorsys="hidden = True")
    write(folder / "json", __init__="hidden = True")
    module = load_module(str(folder / "net.py"))
    assert not hasattr(module.colorsys, "hidden")
    assert not hasattr(module.json, "hidden")
    if loaded is not None:
        sys.modules["colorsys"] = loaded


@pytest.mark.parametrize("late", [False, True])
def test_no_file_gets_the_module_of_another_files_folder(tmp_path: Path, late: bool) -> None:
    """Whatever is imported first: one name is one module in Python."""
    use = "def use():\n    import twice_there\n    return twice_there.value\n" + ("" if late else "use()\n")
    one = write(tmp_path / "one", net=use, twice_there="value = 1")
    two = write(tmp_path / "two", algorithm=use, twice_there="value = 2")
    first = load_module(str(one / "net.py"))
    with pytest.raises(ImportError, match=r"are both the module twice_there; rename one of them"):
        load_module(str(two / "algorithm.py")).use()
    if not late:
        assert first.use() == 1


def test_equal_names_that_nobody_imports_are_no_fault(tmp_path: Path) -> None:
    one = write(tmp_path / "one", net="value = 1", unused="")
    two = write(tmp_path / "two", net="value = 2", unused="")
    assert [load_module(str(folder / "net.py")).value for folder in (one, two)] == [1, 2]


def test_a_file_that_fails_is_not_kept(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", net="import no_such_module_at_all")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
            load_module(str(folder / "net.py"))
    with pytest.raises(NoSuchFile):
        load_module(str(folder / "none.py"))


def test_threads_that_load_a_file_at_once_get_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "slowly_made.py"
    file.write_text("import sys, threading\nsys.slow_begun.set()\nsys.slow_go.wait(30)\nVALUE = 1\n", "utf-8")
    begun, go = threading.Event(), threading.Event()
    vars(sys).update(slow_begun=begun, slow_go=go)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(load_module(str(file)).VALUE)) for _ in range(2)]
    try:
        threads[0].start()
        assert begun.wait(30)
        threads[1].start()
        threads[1].join(0.2)
        go.set()
        for thread in threads:
            thread.join(30)
    finally:
        del vars(sys)["slow_begun"], vars(sys)["slow_go"]
    assert found == [1, 1]
