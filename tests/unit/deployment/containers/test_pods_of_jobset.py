"""The pods that `docker/smoke_kubernetes.sh` plays are those of what `shadowsync render` prints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from shadowsync.deployment.kubernetes import kubernetes_manifests
from shadowsync.tests.support.outside.deployed import OPTIONS, job_of

SCRIPT = Path(__file__).parents[4] / "docker" / "pods_of_jobset.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manifests = kubernetes_manifests(job_of(), OPTIONS)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(manifests), encoding="utf-8")
    return tmp_path


def pods_in(folder: Path) -> dict[str, dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), str(folder / "job.yaml"), str(folder)]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    found = {}
    for name in names:
        _, pod = yaml.safe_load_all((folder / f"{name}.yaml").read_text(encoding="utf-8"))
        found[name] = pod
    return found


def test_each_pod_has_a_file_and_folders_of_its_own(folder: Path) -> None:
    pods = pods_in(folder)
    assert [name.removeprefix(f"{OPTIONS.name}-") for name in pods] == [
        "coordinator-0-0", "reader-0-0", "reader-0-1", "trainer-0-0", "trainer-0-1", "trainer-0-2",
        "embedding-0-0", "embedding-0-1", "sync-0-0",
    ]  # fmt: skip
    empty = [one["name"] for pod in pods.values() for one in pod["spec"]["volumes"] if "emptyDir" in one]
    assert len(set(empty)) == len(empty) >= len(pods)
    for pod in pods.values():
        (container,) = pod["spec"]["containers"]
        names = {one["name"] for one in pod["spec"]["volumes"]}
        assert {one["name"] for one in container["volumeMounts"]} == names


def test_the_probes_are_a_shell_text_that_passes_for_a_fresh_node_only(folder: Path) -> None:
    name, *_ = pods_in(folder)
    text = (folder / f"{name}.probes").read_text(encoding="utf-8")
    marks = [folder / f"health{suffix}" for suffix in (".alive", ".healthy")]
    environment = os.environ | {"SHADOWSYNC_HEALTH": str(folder / "health")}

    def passes() -> bool:
        done = subprocess.run(["/bin/sh", "-c", text], env=environment, check=False, capture_output=True)
        return done.returncode == 0

    assert not passes()
    for mark in marks:
        mark.touch()
    assert passes()
    old = time.time() - 60
    os.utime(marks[0], (old, old))
    assert not passes()
