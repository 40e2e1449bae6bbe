"""What `import shadowsync` gives: few names, each there, and nothing heavy before one of them is used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import shadowsync


def test_every_public_name_is_there() -> None:
    assert set(shadowsync.__all__) >= {"run", "load", "SavedModel", "RunFailed", "Report", "Job"}
    for name in shadowsync.__all__:
        value = getattr(shadowsync, name)
        assert value is not None
        assert isinstance(value, str | int) or value.__doc__
        assert name in dir(shadowsync)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'shadowsync' has no attribute 'laod'"):
        shadowsync.laod  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_is_light() -> None:
    script = (
        "import sys, shadowsync\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'zmq', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "shadowsync.load\n"
        "assert 'torch' in sys.modules, 'the control'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
