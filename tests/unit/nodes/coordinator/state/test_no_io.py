"""The coordinator's state does no I/O: neither its files nor what they import of the nodes' code."""

from __future__ import annotations

import ast

import pytest
from shadowsync.tests.support.imports import Modules, imports_of, package_modules, with_line

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


def modules_of_the_state(modules: Modules) -> list[str]:
    """The modules of the state, and those of the nodes that they import, directly or not."""
    found = [name for name in modules if name == STATE or name.startswith(f"{STATE}.")]
    for name in found:
        targets = {one.target for one in imports_of(modules, name)}
        found += sorted(
            target
            for target in targets
            if target in modules and target.startswith(NODES) and target not in found
        )
    return found


def io_in_the_state(modules: Modules) -> list[str]:
    """Where the state does I/O: imports and calls."""
    found = []
    for name in modules_of_the_state(modules):
        found += [str(one) for one in imports_of(modules, name) if one.top in IO_MODULES]
        for node in ast.walk(ast.parse(modules[name].text)):
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
    modules = modules_of_the_state(package_modules())
    assert {f"{STATE}.job", f"{STATE}.outcome", f"{NODES}coordinator.ledger.ledger"} <= set(modules)
    assert f"{NODES}coordinator.server" not in modules
    assert io_in_the_state(package_modules()) == []


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
def test_planted_io_is_found(file: str, line: str) -> None:
    """The control: in the state itself, in what it imports, and by what it would import."""
    assert io_in_the_state(with_line(file, line))
