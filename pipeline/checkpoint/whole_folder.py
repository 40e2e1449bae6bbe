"""A folder that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ResourceError
from .atomic_file import UNFINISHED, sync_directory, unwritable


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder beside `path`; when the block ends well, it is renamed to `path`.

    When the block raises, the folder is removed. Raises ResourceError if `path` is there already and is no
    empty folder, or if something cannot be written (also an OSError of the block).
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ResourceError("is there already", where=str(path), remedy="give another folder, or remove it")
    path = path.absolute()
    temporary = path.with_name(f"{path.name}{UNFINISHED}{os.getpid()}")
    try:
        try:
            temporary.mkdir(parents=True)
            yield temporary
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
