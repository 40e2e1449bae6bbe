"""Load the module of a user's class, named "package.module:Class" or "file.py:Class".

The module imports the standard library only, and lies at the package's root: `pipeline` loads models with it,
`sync_algos` loads algorithms, and neither may import the other.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


class NoSuchFile(ImportError):
    """There is no file of the given path."""


def is_file(where: str) -> bool:
    """Return whether a class's name begins with a file's path, not a module."""
    return where.endswith(".py") or "/" in where


def load_module(where: str) -> ModuleType:
    """Return the module of a file's path or of a dotted name.

    A file becomes a module of its own, imported once per process and absolute path.

    Raises:
        NoSuchFile: there is no such file.
        ImportError: it is not a Python file, or there is no such module.
        Exception: whatever else the module's own code raises.
    """
    return _load_file(Path(where)) if is_file(where) else importlib.import_module(where)


def _load_file(path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        raise NoSuchFile(f"there is no file {file}")
    module_name = f"shadowsync_file_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up by name while the module runs.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
