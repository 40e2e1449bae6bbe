"""The job's key, as the environment names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[JobKey | None], None]:
    """Sets the key of what is made from now on."""

    def set_key(key: JobKey | None) -> None:
        if key is None:
            monkeypatch.delenv(KEY_VARIABLE, raising=False)
            return
        path = tmp_path / f"{key.server.public.hex()}.key"
        if not path.exists():
            key.write(path)
        monkeypatch.setenv(KEY_VARIABLE, str(path))

    return set_key
