"""The algorithms in examples/algorithms, as a job file names them by their files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import shadowsync

FOLDER: Final = Path(shadowsync.__file__).resolve().parent / "examples" / "algorithms"
DILOCO: Final = f"{FOLDER / 'diloco.py'}:DiLoCo"
DOWNPOUR: Final = f"{FOLDER / 'downpour.py'}:Downpour"
SYMMETRIC_EASGD: Final = f"{FOLDER / 'easgd_symmetric.py'}:SymmetricEASGD"

needs_examples = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="an installed package has no examples beside it"
)
