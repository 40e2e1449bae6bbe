"""The directions of imports, and other promises that a reader of the code may rely on."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.jobfile.extras import EXTRAS
from shadowsync.tests.support.imports import (
    Import,
    Modules,
    all_imports,
    first_with_torch,
    package_files,
    package_modules,
    reachable,
    with_line,
)

ROOT = Path(shadowsync.__file__).resolve().parent

# cli -> lab -> nodes -> {pipeline, sync_algos}: what each part may import of the package.
ALLOWED = {
    "shadowsync": {"shadowsync", "attached", "lab", "nodes", "pipeline"},
    "attached": {"attached", "nodes", "pipeline", "sync_algos", "watch"},
    # Loads models for pipeline and algorithms for sync_algos, neither of which may import the other.
    "class_loader": {"class_loader"},
    "__main__": {"cli"},
    "cli": {"shadowsync", "commands", "lab", "nodes", "pipeline", "serving", "sync_algos", "watch"},
    "commands": {
        "shadowsync",
        "attached",
        "commands",
        "deployment",
        "lab",
        "nodes",
        "pipeline",
        "serving",
        "sync_algos",
        "watch",
    },
    "deployment": {"shadowsync", "deployment", "nodes", "pipeline"},
    "lab": {"shadowsync", "lab", "nodes", "pipeline", "sync_algos"},
    "nodes": {"shadowsync", "nodes", "pipeline", "sync_algos", "watch"},
    "pipeline": {"shadowsync", "class_loader", "pipeline"},
    "serving": {"pipeline", "serving"},
    "sync_algos": {"class_loader", "sync_algos"},
    "watch": {"shadowsync", "pipeline", "watch"},
    "testing": {"sync_algos", "testing"},
}
# Rule "An algorithm is mathematics": it opens no socket, reads no clock, starts no thread.
NOT_FOR_ALGORITHMS = {
    *("socket", "select", "selectors", "ssl", "http", "urllib", "time", "datetime", "threading", "queue"),
    *("multiprocessing", "subprocess", "concurrent", "signal", "os", "random", "pathlib", "io"),
}
# What is no algorithm: groups are drawn from the job's seed; the catalog looks for installed packages.
EXCEPTIONS = {
    ("shadowsync.sync_algos.catalog.names", "os"),
    ("shadowsync.sync_algos.contract.grouping", "random"),
}
PICKLING_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
PICKLING_CALLS = {
    *("torch.load", "torch.save", "recv_pyobj", "send_pyobj", "read_pickle", "to_pickle", "allow_pickle"),
    *("recv_serialized", "pickle", "reduction.dump"),
}
# The standard library's fork server reads nothing else. Its socket is this user's alone.
PICKLES_ORDERS = "shadowsync.nodes.supervisor.fork_server"
# Distributions whose import name is another, and what comes with one of them.
IMPORT_NAMES = {
    "mlflow-skinny": {"mlflow"},
    "prometheus-client": {"prometheus_client"},
    "faiss-cpu": {"faiss"},
    "confluent-kafka": {"confluent_kafka"},
    "pyyaml": {"yaml"},
    "pyzmq": {"zmq"},
    "pydantic": {"pydantic", "pydantic_core"},
}


def _part(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def wrong_directions(modules: Modules) -> list[str]:
    wrong = []
    for found in all_imports(modules):
        ours = found.top == "shadowsync"
        if ours and not found.relative:
            wrong.append(f"{found}, not relatively")
        if ours and _part(found.target) not in ALLOWED[_part(found.module)]:
            wrong.append(str(found))
        if not ours and found.top in ALLOWED:
            wrong.append(f"{found}, a second module")
    return wrong


def wrong_for_algorithms(modules: Modules) -> list[str]:
    def is_wrong(found: Import) -> bool:
        known = found.top in sys.stdlib_module_names or found.top in ("torch", "shadowsync")
        excepted = (found.module, found.top) in EXCEPTIONS
        return not known or (found.top in NOT_FOR_ALGORITHMS and not excepted)

    parts = ("sync_algos", "testing")
    return [str(found) for found in all_imports(modules) if _part(found.module) in parts and is_wrong(found)]


def test_exceptions_are_needed() -> None:
    found = {(entry.module, entry.top) for entry in all_imports(package_modules())}
    assert found >= EXCEPTIONS


def pickling(modules: Modules) -> list[str]:
    wrong = [str(found) for found in all_imports(modules) if found.top in PICKLING_MODULES]
    for name, module in modules.items():
        expected = {"reduction.dump"} if name == PICKLES_ORDERS else set()
        wrong += [f"{name}: {text}" for text in pickling_calls(module.text) if text not in expected]
    return wrong


def pickling_calls(text: str) -> tuple[str, ...]:
    """What a module's text names of PICKLING_CALLS; one without any of the words is not parsed."""
    if not any(name in text for name in PICKLING_CALLS):
        return ()
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute | ast.keyword):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else str(node.arg)
            if name in PICKLING_CALLS or name.rpartition(".")[2] in PICKLING_CALLS:
                found.append(name)
    return tuple(found)


def undeclared(modules: Modules) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names: set[str] = set()
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name in EXTRAS}
    for line in [*project["dependencies"], *(line for lines in extras.values() for line in lines)]:
        distribution = re.split(r"[^\w.-]", line)[0]
        names |= IMPORT_NAMES.get(distribution, {distribution})
    known = names | set(sys.stdlib_module_names) | {"shadowsync"}
    return [str(found) for found in all_imports(modules) if found.top not in known]


def test_extras_bring_the_modules_that_errors_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = dict(project["optional-dependencies"])
    names = {name: [re.split(r"[^\w.-]", line)[0] for line in extras[name]] for name in EXTRAS}
    brought = {
        name: {module for one in own for module in IMPORT_NAMES.get(one, {one})}
        for name, own in names.items()
    }
    assert brought == {name: set(modules) for name, modules in EXTRAS.items()}
    (everything,) = extras.pop("all")
    # Ray and Numba are large, and few jobs need them; trackers bring servers of their own, the others loops.
    apart = {"ray", "fast", "mlflow", "wandb", "lightning", "transformers"}
    assert set(everything.removeprefix("shadowsync[").removesuffix("]").split(",")) == set(EXTRAS) - apart
    assert set(extras) == {*EXTRAS, "dev", "docs"}


@pytest.mark.parametrize("check", [wrong_directions, wrong_for_algorithms, pickling, undeclared])
def test_the_package_keeps_its_promises(check: Callable[[Modules], list[str]]) -> None:
    assert check(package_modules()) == []


def test_the_whole_package_was_read() -> None:
    """So that the test above does not pass on nothing."""
    found = {str(entry) for entry in all_imports(package_modules())}
    assert len(package_modules()) > 80
    assert any(
        "commands.jobs.run" in entry and "shadowsync.nodes.supervisor.supervisor" in entry for entry in found
    )
    assert any("pipeline.wire.frames" in entry and "imports msgpack" in entry for entry in found)


@pytest.mark.parametrize(
    ("file", "line", "check"),
    [
        ("pipeline/wire/frames.py", "from ...nodes.runtime.settings import NodeSettings", wrong_directions),
        ("pipeline/wire/frames.py", "from ... import nodes", wrong_directions),
        ("pipeline/errors.py", "from .. import cli", wrong_directions),
        ("pipeline/errors.py", "def f():\n    from ..nodes.runtime import settings", wrong_directions),
        ("sync_algos/easgd.py", "from ..pipeline.errors import JobFileError", wrong_directions),
        ("watch/status.py", "from ..nodes.runtime.settings import NodeSettings", wrong_directions),
        ("nodes/supervisor/supervisor.py", "from ...lab.comparison.plan import check", wrong_directions),
        ("nodes/runtime/settings.py", "from shadowsync.pipeline.config.job import Job", wrong_directions),
        ("nodes/runtime/settings.py", "from pipeline.config.job import Job", wrong_directions),
        ("__init__.py", "from .cli import main", wrong_directions),
        ("sync_algos/easgd.py", "import zmq", wrong_for_algorithms),
        ("sync_algos/easgd.py", "import numpy as np", wrong_for_algorithms),
        ("sync_algos/easgd.py", "from time import monotonic", wrong_for_algorithms),
        ("sync_algos/memory/center.py", "import threading", wrong_for_algorithms),
        ("sync_algos/contract/grouping.py", "import pathlib", wrong_for_algorithms),
        ("testing/harness.py", "import time", wrong_for_algorithms),
        ("nodes/runtime/settings.py", "from ...testing.check import check_algorithm", wrong_directions),
        ("nodes/runtime/settings.py", "import pickle", pickling),
        ("nodes/runtime/settings.py", "import torch\nx = torch.load('x')", pickling),
        ("nodes/runtime/settings.py", "from m import reduction\nreduction.dump({}, f)", pickling),
        ("nodes/runtime/settings.py", "import numpy\nx = numpy.load('x', allow_pickle=True)", pickling),
        ("nodes/runtime/settings.py", "def f(s):\n    return s.recv_pyobj()", pickling),
        ("nodes/runtime/settings.py", "import pandas", undeclared),
    ],
)
def test_a_planted_wrong_line_is_found(file: str, line: str, check: Callable[[Modules], list[str]]) -> None:
    """The control: each check finds one wrong line in modules that are otherwise ours."""
    assert len(check(with_line(file, line))) == 1


@pytest.mark.parametrize("module", ["shadowsync.nodes.coordinator.main", "shadowsync.nodes.reader.role"])
def test_no_torch_in_the_coordinator_and_the_readers(module: str) -> None:
    """Not now, and not in any function that is called later."""
    found = reachable(package_modules(), module)
    assert "torch" not in found, f"through {found['torch']}"
    assert "zmq" in found
    assert "torch" in reachable(package_modules(), "shadowsync.nodes.trainer.role"), "the control"


def test_which_imports_bring_no_torch() -> None:
    modules = [
        "shadowsync.nodes.coordinator.main",
        "shadowsync.nodes.reader.role",
        "shadowsync.nodes.supervisor.supervisor",
        "shadowsync.nodes.launch",
        "shadowsync.sync_algos.catalog.names",
        "shadowsync.lab.network.relay",
        "shadowsync.cli",
        "shadowsync",
        "shadowsync.pipeline.codecs.formats",
    ]
    assert first_with_torch(modules) is None


@pytest.mark.parametrize(
    "module", ["shadowsync.sync_algos.catalog.registry", "shadowsync.nodes.replica.replica"]
)
def test_which_imports_bring_torch(module: str) -> None:
    """The control, with a module before it that brings none."""
    assert first_with_torch(["shadowsync.nodes.launch", module]) == module


def test_every_folder_of_the_package_is_a_package() -> None:
    """One without `__init__.py` would be missing in the wheel."""
    holding = {file.parent for file in package_files(ROOT).values()}
    assert [folder for folder in holding if not (folder / "__init__.py").exists()] == []
    assert len(holding) > 10
