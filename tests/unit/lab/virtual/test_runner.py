"""The processes of a virtual comparison, with stand-ins for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shadowsync.lab.virtual import runner
from shadowsync.lab.virtual.plan import VirtualRun


def test_a_run_that_prints_much_ends_and_its_last_line_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a user's model with a warning in each step: more than a pipe takes."""
    script = "import sys; sys.stderr.write('a warning\\n' * 100_000 + 'it broke \\xff\\n'); sys.exit(3)"
    monkeypatch.setattr(runner, "python", lambda *_: [sys.executable, "-c", script])
    said: list[str] = []
    processes = runner._Processes(tmp_path, said.append)
    processes.make([VirtualRun(label="easgd", trainers=2, seed=seed, name=f"run-{seed}") for seed in (1, 2)])
    assert processes.failed == 2
    assert all("FAILED with exit code 3: it broke" in line for line in said), said
