"""The arrows between the packages of nodes, and that nothing imports in a circle.

Lazy imports and those under TYPE_CHECKING count: a circle that only they close still ties its files together.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable
from pathlib import Path

import pytest
import shadowsync
from shadowsync.tests.support.imports import all_imports, package_files

ROOT = Path(shadowsync.__file__).resolve().parent
Graph = dict[str, set[str]]

# Which packages of nodes each one imports; docs/architecture.md draws the same.
NODES: Graph = {
    "runtime": set(),
    "clients": set(),
    "control": {"runtime"},
    "coordinator": {"runtime", "control"},
    "reader": {"runtime"},
    "embedding": {"runtime"},
    "sync": {"runtime"},
    "replica": set(),
    "allreduce": {"runtime"},
    "shadow": {"runtime", "replica", "allreduce"},
    "worker": {"runtime", "replica", "embedding", "shadow"},
    "trainer": {"runtime", "replica", "allreduce", "shadow", "worker"},
    "launch": {"runtime", "reader", "embedding", "sync", "replica", "trainer"},
    "supervisor": {"runtime", "replica", "launch", "clients"},
}

# Which parts of the coordinator each one imports, packages and modules beside them.
COORDINATOR: Graph = {
    "ledger": set(),
    "validation": set(),
    "state": {"ledger"},
    "planning": {"state"},
    "label_rate": set(),
    "held_out": {"state"},
    "journal": {"state", "ledger"},
    "audit": {"state", "ledger"},
    "checkpoint_calls": set(),
    "server": {"state", "ledger", "journal", "audit", "checkpoint_calls"},
    "checkpoint": {"state", "validation", "server"},
    "monitoring": {"state", "server"},
    "recovery": {"state", "ledger", "server"},
    "admission": {"state", "server"},
    "departure": {"state", "server"},
    "supervisor_reports": {"state", "server", "recovery"},
    "scaling": {"server", "departure", "supervisor_reports"},
    "requests": {
        "state", "server", "monitoring", "recovery", "admission", "departure", "scaling",
        "supervisor_reports",
    },
    "evaluation": {"state", "server"},
    "shutdown": {"state", "ledger", "server", "checkpoint", "evaluation"},
    "input_follower": {"state", "server", "recovery"},
    "controller": {
        "state", "server", "checkpoint", "monitoring", "evaluation", "shutdown", "input_follower",
    },
    "report": {"state", "ledger", "audit", "evaluation", "held_out"},
    "main": {
        "state", "ledger", "planning", "label_rate", "server", "checkpoint", "monitoring", "recovery",
        "requests",
        "controller", "report",
    },
}  # fmt: skip


def file_graph(root: Path) -> Graph:
    """Which module imports which, of the package's own."""
    files = package_files(root)
    graph: Graph = {name: set() for name in files}
    for found in all_imports(root):
        if found.target in files and found.target != found.module:
            graph[found.module].add(found.target)
    return graph


def package_graph(root: Path) -> Graph:
    """Which folder imports which. A module beside folders stands for itself."""
    files = package_files(root)
    folders = {name for name, file in files.items() if file.name == "__init__.py"}

    def package(name: str) -> str:
        parent = name.rpartition(".")[0]
        beside = any(other.rpartition(".")[0] == parent for other in folders)
        return name if name in folders or beside else parent

    graph: Graph = {}
    for module, targets in file_graph(root).items():
        arrows = graph.setdefault(package(module), set())
        arrows |= {package(target) for target in targets} - {package(module)}
    return graph


def inside(prefix: str, root: Path = ROOT) -> Graph:
    """The graph of the parts of one package, each with what is in it."""
    found: Graph = {}
    for name, targets in package_graph(root).items():
        if name.startswith(prefix):
            part = name.removeprefix(prefix).partition(".")[0]
            parts = {other.removeprefix(prefix).partition(".")[0] for other in targets if prefix in other}
            found[part] = found.get(part, set()) | parts - {part}
    return found


def circle(graph: Graph) -> list[str]:
    """The members of one circle, the first again at the end; nothing if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("graph", [file_graph, package_graph])
def test_nothing_imports_in_a_circle(graph: Callable[[Path], Graph]) -> None:
    assert circle(graph(ROOT)) == []


def test_the_packages_of_nodes_import_what_the_table_says() -> None:
    assert inside("shadowsync.nodes.") == NODES
    assert inside("shadowsync.nodes.coordinator.") == COORDINATOR


def of_the_coordinator(root: Path) -> list[str]:
    """What attached loops and their hub import of the coordinator; they share `nodes/control` with it."""
    rooms = "shadowsync.nodes.coordinator"
    attached = [one for one in all_imports(root) if one.module.startswith("shadowsync.attached")]
    assert any(one.target.startswith("shadowsync.nodes.control.") for one in attached)
    return [str(one) for one in attached if one.target == rooms or one.target.startswith(f"{rooms}.")]


def test_attached_imports_nothing_of_the_coordinator(tmp_path: Path) -> None:
    assert of_the_coordinator(ROOT) == []
    line = "def f():\n    from ...nodes.coordinator.state import phases"
    assert len(of_the_coordinator(copy_of(tmp_path, "attached/hub/status.py", line))) == 1, "the control"


def copy_of(root: Path, file: str, line: str) -> Path:
    """The package's modules in another folder, and one of them with a line more."""
    for source in package_files(ROOT).values():
        copy = root / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    assert (root / file).is_file(), f"{file} is no module of the package"
    with (root / file).open("a", encoding="utf-8") as target:
        target.write(f"\n{line}\n")
    return root


@pytest.mark.parametrize(
    ("file", "line", "arrow"),
    [
        ("checkpoint/running.py", "from ..ledger.store import LedgerStore", ("checkpoint", "ledger")),
        ("recovery/deaths.py", "def f():\n    from .. import held_out", ("recovery", "held_out")),
        ("departure.py", "from .planning import place_tables", ("departure", "planning")),
    ],
)
def test_a_planted_arrow_of_the_coordinator_is_found(
    tmp_path: Path, file: str, line: str, arrow: tuple[str, str]
) -> None:
    """The control: between packages, to a module beside one, and between modules; none is a circle."""
    root = copy_of(tmp_path, f"nodes/coordinator/{file}", line)
    assert circle(package_graph(root)) == []
    found = inside("shadowsync.nodes.coordinator.", root)
    assert {(name, one) for name, arrows in found.items() for one in arrows - COORDINATOR[name]} == {arrow}


@pytest.mark.parametrize(
    ("file", "line", "graph"),
    [
        ("nodes/runtime/settings.py", "from ..worker.worker import Worker", package_graph),
        ("nodes/allreduce/transport.py", "def f():\n    from ..trainer import role", package_graph),
        (
            "pipeline/data/batch.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..input.plan import plan_input",
            package_graph,
        ),
        ("pipeline/config/data.py", "from .job import Job", file_graph),
        ("nodes/replica/device.py", "def f():\n    from .cuda import CudaDevice", file_graph),
    ],
)
def test_a_planted_circle_is_found(
    tmp_path: Path, file: str, line: str, graph: Callable[[Path], Graph]
) -> None:
    """The control, with a lazy import and one for types among them."""
    assert circle(graph(ROOT)) == []
    root = copy_of(tmp_path, file, line)
    module = "shadowsync." + file.removesuffix(".py").replace("/", ".")
    found = circle(graph(root))
    assert module in found or module.rpartition(".")[0] in found
