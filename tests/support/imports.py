"""Which module imports which: as it is written, and for torch as it is done in a new process."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import shadowsync

ROOT = Path(shadowsync.__file__).resolve().parent
PACKAGE = "shadowsync"
# What stands beside the package's modules and is none of them.
NO_MODULES = {"setup.py"}


@dataclass(frozen=True)
class Import:
    """One import statement's target, by its whole name, wherever in the file it stands.

    `typing`: under TYPE_CHECKING, so that no running program ever does it.
    """

    module: str
    target: str
    relative: bool
    line: int
    typing: bool

    @property
    def top(self) -> str:
        """The first part of the target: a package's name, or "shadowsync"."""
        return self.target.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def package_folders(root: Path) -> list[Path]:
    """The top folders of the package; those of tests and benchmarks have no `__init__.py`."""
    return sorted(file.parent for file in root.glob("*/__init__.py"))


def package_files(root: Path) -> dict[str, Path]:
    """The package's own modules by their names; not its tests or benchmarks."""
    files = [file for file in root.glob("*.py") if file.name not in NO_MODULES]
    files += [file for folder in package_folders(root) for file in folder.rglob("*.py")]
    names = {}
    for file in files:
        parts = file.relative_to(root).with_suffix("").parts
        names[".".join((PACKAGE, *(part for part in parts if part != "__init__")))] = file
    return dict(sorted(names.items()))


@dataclass(frozen=True)
class Module:
    """A module's text, and whether it is a package's `__init__`."""

    text: str
    package: bool


Modules = Mapping[str, Module]


@functools.cache
def package_modules() -> Modules:
    """The package's own modules by their names, as they are in the tree."""
    files = package_files(ROOT)
    return MappingProxyType(
        {name: Module(file.read_text("utf-8"), file.name == "__init__.py") for name, file in files.items()}
    )


def with_line(file: str, line: str) -> Modules:
    """The package's modules, one of them with a line more: what a control plants."""
    modules = package_modules()
    parts = [PACKAGE, *Path(file).with_suffix("").parts]
    name = ".".join(part for part in parts if part != "__init__")
    planted = Module(f"{modules[name].text}\n{line}\n", modules[name].package)
    return {**modules, name: planted}


def imports_of(modules: Modules, name: str) -> Iterator[Import]:
    """Every import in a module, in functions and under TYPE_CHECKING too."""
    base = name.split(".") if modules[name].package else name.split(".")[:-1]
    for found in _statements(modules[name].text):
        if found.level is None:
            yield Import(name, found.name, False, found.line, found.typing)
            continue
        start = base[: len(base) - found.level + 1] if found.level else []
        stem = ".".join([*start, *([found.source] if found.source else [])])
        # `from .wire import frames` imports a module; `from .frames import decode` a name in one.
        whole = f"{stem}.{found.name}"
        yield Import(name, whole if whole in modules else stem, found.level > 0, found.line, found.typing)


@dataclass(frozen=True)
class _Statement:
    """One name of an import statement, as it is written; `level` is None for one without `from`."""

    name: str
    source: str
    level: int | None
    line: int
    typing: bool


@functools.cache
def _statements(text: str) -> tuple[_Statement, ...]:
    """The import statements of a module's text; each text is parsed once."""
    tree = ast.parse(text)
    typed = {inner for node in ast.walk(tree) if _is_for_types(node) for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source, level = (
                (node.module or "", node.level) if isinstance(node, ast.ImportFrom) else ("", None)
            )
            found += [
                _Statement(alias.name, source, level, node.lineno, node in typed) for alias in node.names
            ]
    return tuple(found)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def all_imports(modules: Modules) -> list[Import]:
    return [found for name in modules for found in imports_of(modules, name)]


def reachable(modules: Modules, start: str) -> dict[str, str]:
    """What a module may ever import, directly or not, ours and others', and the module that does."""
    seen = {start: ""}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        for found in imports_of(modules, name):
            if found.typing:
                continue
            parts = found.target.split(".")
            # Importing a.b.c runs a and a.b first.
            for length in range(1, len(parts) + 1):
                target = ".".join(parts[:length])
                if target not in seen:
                    seen[target] = name
                    if target in modules:
                        waiting.append(target)
    return seen


# Ends where torch is asked for, and not seconds later when it is there.
ASKED = """
import importlib, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            print(module, flush=True)
            raise SystemExit

sys.meta_path.insert(0, Finder)
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def first_with_torch(modules: Sequence[str]) -> str | None:
    """The first of some modules that imports torch when they are imported in turn by a new process."""
    command = [sys.executable, "-c", ASKED, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip() or None
