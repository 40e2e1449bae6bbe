"""The coordinator's state does no I/O: neither its files nor what they import of the nodes' code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import shadowsync
from shadowsync.tests.support.imports import imports_of, package_files

ROOT = Path(shadowsync.__file__).resolve().parent
NODES = "shadowsync.nodes."
STATE = "shadowsync.nodes.coordinator.state"
# The modules that open files, sockets, databases and processes, and the loop that waits for them.
IO_MODULES = {
    "os",
    "io",
    "socket",
    "selectors",
    "sqlite3",
    "subprocess",
    "shutil",
    "tempfile",
    "zmq",
    "asyncio",
}
# What opens, or asks the file system, where a path is held.
IO_CALLS = {"open", "resolve", "absolute", "exists", "is_file", "is_dir", "stat", "iterdir", "glob", "mkdir"}
IO_CALLS |= {"read_text", "read_bytes", "write_text", "write_bytes", "unlink", "touch", "rename", "cwd"}


def modules_of_the_state(root: Path) -> list[str]:
    """The modules of the state, and those of the nodes that they import, directly or not."""
    files = package_files(root)
    found = [name for name in files if name == STATE or name.startswith(f"{STATE}.")]
    for name in found:
        targets = {one.target for one in imports_of(files, name)}
        found += sorted(
            target
            for target in targets
            if target in files and target.startswith(NODES) and target not in found
        )
    return found


def io_in_the_state(root: Path) -> list[str]:
    """Where the state does I/O: imports and calls."""
    files = package_files(root)
    found = []
    for name in modules_of_the_state(root):
        found += [str(one) for one in imports_of(files, name) if one.top in IO_MODULES]
        for node in ast.walk(ast.parse(files[name].read_text("utf-8"))):
            call = node.func if isinstance(node, ast.Call) else None
            what = (
                call.id
                if isinstance(call, ast.Name)
                else call.attr
                if isinstance(call, ast.Attribute)
                else ""
            )
            if what in IO_CALLS:
                found.append(f"{name} calls {what}")
    return found


def test_the_state_does_no_io() -> None:
    modules = modules_of_the_state(ROOT)
    assert {f"{STATE}.job", f"{STATE}.outcome", f"{NODES}coordinator.ledger.ledger"} <= set(modules)
    assert f"{NODES}coordinator.server" not in modules
    assert io_in_the_state(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("nodes/control/progress.py", "import os"),
        ("nodes/coordinator/state/changes.py", "from ..ledger.store import LedgerStore"),
        ("nodes/coordinator/state/job.py", "def f():\n    from ..server import CoordinatorServer"),
        ("nodes/coordinator/ledger/records.py", "import sqlite3"),
        ("nodes/coordinator/state/placement.py", "def f(path):\n    return open(path)"),
        ("nodes/coordinator/state/changes.py", "def f(state):\n    return str(state.folder.resolve())"),
    ],
)
def test_planted_io_is_found(tmp_path: Path, file: str, line: str) -> None:
    """The control: in the state itself, in what it imports, and by what it would import."""
    for source in package_files(ROOT).values():
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    assert (tmp_path / file).is_file()
    with (tmp_path / file).open("a", encoding="utf-8") as target:
        target.write(f"\n{line}\n")
    assert io_in_the_state(tmp_path)
