"""Load the module of a user's class, named "package.module:Class" or "file.py:Class".

The module imports the standard library only, and lies at the package's root: `pipeline` loads models with it,
`sync_algos` loads algorithms, and neither may import the other.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

# A module is there before it has run, which another thread must not see.
_loading = threading.RLock()


class NoSuchFile(ImportError):
    """There is no file of the given path."""


def is_file(where: str) -> bool:
    """Return whether a class's name begins with a file's path, not a module."""
    return where.endswith(".py") or "/" in where


def load_module(where: str) -> ModuleType:
    """Return the module of a file's path or of a dotted name.

    A file becomes a module of its own, imported once per process and absolute path. It can import the modules
    of its folder, by name or relatively; those that are found elsewhere come first, so that a user's queue.py
    hides no other.

    Raises:
        NoSuchFile: there is no such file.
        ImportError: it is not a Python file, there is no such module, or two files' folders have a module of
            the name.
        Exception: whatever else the module's own code raises.

    Any thread may call.
    """
    if not is_file(where):
        return importlib.import_module(where)
    with _loading:
        return _load_file(Path(where))


def _load_file(path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        raise NoSuchFile(f"there is no file {file}")
    module_name = f"{_package_of(file.parent)}.file_{_digest(file)}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    _folders.add(file.parent)
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up by name while the module runs.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _package_of(folder: Path) -> str:
    """Return the package, made once, in which relative imports find a folder's modules."""
    name = f"shadowsync_folder_{_digest(folder)}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


class _FileFolders(MetaPathFinder):
    """Find modules beside loaded files; comes after all other finders."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    def add(self, folder: Path) -> None:
        """Look in this folder, too.

        Raises ImportError if it has a module that another such folder has given.
        """
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        path = str(folder)
        if path in self._paths:
            return
        for name, module in tuple(sys.modules.items()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if origin in self._origins(name, self._paths) and (others := self._origins(name, [path])):
                raise ImportError(f"{origin} and {others[0]} are both the module {name}; rename one of them")
        self._paths.append(path)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a top-level module; raises ImportError if several folders have it."""
        del target
        if path is not None:
            return None
        origins = self._origins(name, self._paths)
        if len(origins) > 1:
            raise ImportError(f"{' and '.join(origins)} are both the module {name}; rename one of them")
        return PathFinder.find_spec(name, self._paths) if origins else None

    @staticmethod
    def _origins(name: str, paths: Sequence[str]) -> list[str]:
        """Return the files of a top-level module in these folders."""
        if "." in name:
            return []
        specs = [PathFinder.find_spec(name, [path]) for path in paths]
        # A folder without __init__.py has none.
        return [spec.origin for spec in specs if spec is not None and spec.origin is not None]


_folders = _FileFolders()
