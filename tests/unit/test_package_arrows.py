"""The arrows between the parts of the coordinator, and that nothing imports in a circle.

Lazy imports and those under TYPE_CHECKING count: a circle that only they close still ties its files together.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable

import pytest
from shadowsync.tests.support.imports import Modules, all_imports, package_modules, with_line

Graph = dict[str, set[str]]

# Which parts of the coordinator each one imports, packages and modules beside them.
COORDINATOR: Graph = {
    "ledger": set(),
    "validation": set(),
    "state": {"ledger"},
    "held_out": {"state"},
    "journal": {"state", "ledger"},
    "audit": {"state", "ledger"},
    "checkpoint_calls": set(),
    "merge_claims": {"state"},
    "server": {"state", "ledger", "journal", "audit", "checkpoint_calls", "merge_claims"},
    "checkpoint": {"state", "validation", "server"},
    "monitoring": {"state", "server"},
    "recovery": {"state", "ledger", "server"},
    "input": {"state", "server", "recovery"},
    "membership": {"state", "server", "recovery"},
    "requests": {"state", "server", "monitoring", "recovery", "membership"},
    "evaluation": {"state", "server"},
    "shutdown": {"state", "ledger", "server", "checkpoint", "evaluation"},
    "controller": {"state", "server", "checkpoint", "monitoring", "evaluation", "shutdown", "input"},
    "report": {"state", "ledger", "audit", "evaluation", "held_out"},
    "main": {
        "state", "ledger", "input", "server", "checkpoint", "monitoring", "recovery", "requests",
        "controller", "report",
    },
}  # fmt: skip


def file_graph(modules: Modules) -> Graph:
    """Which module imports which, of the package's own."""
    graph: Graph = {name: set() for name in modules}
    for found in all_imports(modules):
        if found.target in modules and found.target != found.module:
            graph[found.module].add(found.target)
    return graph


def package_graph(modules: Modules) -> Graph:
    """Which folder imports which. A module beside folders stands for itself."""
    folders = {name for name, module in modules.items() if module.package}
    parents = {name.rpartition(".")[0] for name in folders}

    def package(name: str) -> str:
        parent = name.rpartition(".")[0]
        return name if name in folders or parent in parents else parent

    graph: Graph = {}
    for module, targets in file_graph(modules).items():
        arrows = graph.setdefault(package(module), set())
        arrows |= {package(target) for target in targets} - {package(module)}
    return graph


def inside(prefix: str, modules: Modules) -> Graph:
    """The graph of the parts of one package, each with what is in it."""
    found: Graph = {}
    for name, targets in package_graph(modules).items():
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
def test_nothing_imports_in_a_circle(graph: Callable[[Modules], Graph]) -> None:
    assert circle(graph(package_modules())) == []


def test_the_parts_of_the_coordinator_import_what_the_table_says() -> None:
    """The packages of nodes have theirs in docs/architecture.md, see test_document_places."""
    assert inside("shadowsync.nodes.coordinator.", package_modules()) == COORDINATOR


def of_the_coordinator(modules: Modules) -> list[str]:
    """What attached loops and their hub import of the coordinator; they share `nodes/control` with it."""
    rooms = "shadowsync.nodes.coordinator"
    attached = [one for one in all_imports(modules) if one.module.startswith("shadowsync.attached")]
    assert any(one.target.startswith("shadowsync.nodes.control.") for one in attached)
    return [str(one) for one in attached if one.target == rooms or one.target.startswith(f"{rooms}.")]


def test_attached_imports_nothing_of_the_coordinator() -> None:
    assert of_the_coordinator(package_modules()) == []
    line = "def f():\n    from ...nodes.coordinator.state import phases"
    assert len(of_the_coordinator(with_line("attached/hub/status.py", line))) == 1, "the control"


@pytest.mark.parametrize(
    ("file", "line", "arrow"),
    [
        ("checkpoint/running.py", "from ..ledger.store import LedgerStore", ("checkpoint", "ledger")),
        ("recovery/deaths.py", "def f():\n    from .. import held_out", ("recovery", "held_out")),
        ("evaluation.py", "from .held_out import held_out_quality", ("evaluation", "held_out")),
    ],
)
def test_a_planted_arrow_of_the_coordinator_is_found(file: str, line: str, arrow: tuple[str, str]) -> None:
    """The control: between packages, to a module beside one, and between modules; none is a circle."""
    planted = with_line(f"nodes/coordinator/{file}", line)
    assert circle(package_graph(planted)) == []
    found = inside("shadowsync.nodes.coordinator.", planted)
    assert {(name, one) for name, arrows in found.items() for one in arrows - COORDINATOR[name]} == {arrow}


@pytest.mark.parametrize(
    ("file", "line", "graph"),
    [
        ("nodes/runtime/settings.py", "from ..worker.worker import Worker", package_graph),
        (
            "pipeline/data/batch.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..input.plan import plan_input",
            package_graph,
        ),
        ("pipeline/config/data.py", "from .job import Job", file_graph),
        ("nodes/replica/device.py", "def f():\n    from .cuda import CudaDevice", file_graph),
    ],
)
def test_a_planted_circle_is_found(file: str, line: str, graph: Callable[[Modules], Graph]) -> None:
    """The control, with a lazy import and one for types among them."""
    module = "shadowsync." + file.removesuffix(".py").replace("/", ".")
    found = circle(graph(with_line(file, line)))
    assert module in found or module.rpartition(".")[0] in found
