"""docker/smoke.sh, where there is an engine: scaling and kills cost no example, or it would be noticed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import shadowsync

ROOT = Path(shadowsync.__file__).resolve().parent
LIMIT_SECONDS = 1200
CANNOT_BE_TRIED = 2
# Stands before the engine's command, and falsifies the ledger of a run before it is checked.
COOKING = """#!/bin/sh
case "$*" in
*check_run*|*faults_of_ledger*)
  volume=$(echo "$*" | sed -n 's/.*-v \\([^ :]*\\):.*/\\1/p')
  cook='import pathlib; p = pathlib.Path("/runs/latest/report.json"); t = p.read_text()
p.write_text(t.replace(chr(34) + "distinct" + chr(34) + ": ", chr(34) + "distinct" + chr(34) + ": 1"))'
  "$REAL" run -d --name "$volume-cook" -v "$volume:/runs" --entrypoint python "$IMAGE" -c "$cook" >/dev/null
  "$REAL" wait "$volume-cook" >/dev/null
  "$REAL" rm "$volume-cook" >/dev/null
  ;;
esac
exec "$REAL" "$@"
"""

pytestmark = [pytest.mark.containers, pytest.mark.processes, pytest.mark.timeout(LIMIT_SECONDS + 60)]


@pytest.fixture(scope="module")
def engine() -> str:
    """The engine's command; skips where there is none."""
    command = shutil.which("docker")
    if command is None:
        pytest.skip("needs docker")
    done = subprocess.run([command, "info"], capture_output=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip("no container engine answers (docker info)")
    return command


def smoke(**environment: str) -> tuple[int, str]:
    """Its exit code and last line; skips if it could not be tried."""
    done = subprocess.run(
        [str(ROOT / "docker" / "smoke.sh")],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == CANNOT_BE_TRIED:
        pytest.skip(last)
    print(done.stdout, done.stderr)
    return done.returncode, last


def leftovers(engine: str) -> str:
    """Containers and volumes of the script's projects."""
    kinds = (["ps", "-a", "--format", "{{.Names}}"], ["volume", "ls", "--format", "{{.Name}}"])
    listed = [subprocess.run([engine, *kind], capture_output=True, text=True, check=True) for kind in kinds]
    return "".join(line for one in listed for line in one.stdout.splitlines() if "shadowsync-smoke" in line)


def test_scaling_and_killed_containers_cost_no_example(engine: str) -> None:
    code, last = smoke()
    assert (code, last) == (
        0,
        "smoke: OK: a trainer joined, a container of each role was killed and came back, every example was"
        " trained, the ledger adds up",
    )
    assert leftovers(engine) == ""


def test_a_falsified_ledger_does_not_pass(engine: str, tmp_path: Path) -> None:
    if not os.environ.get("IMAGE"):
        pytest.skip("needs IMAGE, to look at the volume with")
    shim = tmp_path / "docker"
    shim.write_text(COOKING, encoding="utf-8")
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    code, last = smoke(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", REAL=engine)
    assert (code, last) == (1, "smoke: FAILED: the run's ledger is not in order")
    assert leftovers(engine) == ""
