"""A user's own class by name: "package.module:Class", or "file.py:Class"."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import JobFileError

_WHERE = "model.name"


def load_own(name: str) -> Any:
    """What the name stands for; raises JobFileError. A file is imported once in a process, by its path."""
    where, _, wanted = name.rpartition(":")
    from_file = where.endswith(".py") or "/" in where
    try:
        module = _load_file(Path(where)) if from_file else importlib.import_module(where)
        return getattr(module, wanted)
    except FileNotFoundError as error:
        raise JobFileError(
            f"{name!r} given; there is no file {where}", where=_WHERE, remedy="give the path of a Python file"
        ) from error
    except Exception as error:
        raise JobFileError(
            f"{name!r} cannot be imported ({type(error).__name__}: {error})",
            where=_WHERE,
            remedy="look at the file"
            if from_file
            else "install the package that holds it, or set PYTHONPATH to its folder",
        ) from error


def _load_file(path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        raise FileNotFoundError(file)
    module_name = f"shadowsync_model_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name while it runs.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
