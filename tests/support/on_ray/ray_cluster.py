"""A Ray cluster of raylets on this machine, and the processes on it.

Ray runs in a process of its own, this file as a script, since its warnings would be errors in a test's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

OBJECT_STORE_BYTES = 80 << 20
JOB_SERVER = "job-server"
FREE = "free"
# Python runs it when it starts: as if shadowsync were not installed.
WITHOUT_SHADOWSYNC = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "shadowsync":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
"""
# Of each raylet; what Ray believes, so that one of them has room for a whole job.
CPUS = 16
MEMORY_BYTES = 32 << 30


class RayCluster:
    """A cluster with a head and other raylets.

    Attributes:
        head: the head's raylet.
        environment: of a driver.
        temporary: where drivers and actors put temporary files.
        job_server: address of the server that `ray job submit` talks to, "" without one.
    """

    def __init__(self, process: subprocess.Popen[str], environment: dict[str, str], temporary: Path) -> None:
        self._process = process
        self.environment = environment
        self.temporary = temporary
        self.job_server = ""

    def begin(self) -> None:
        first = self._read()
        self.head = psutil.Process(int(first["raylet"]))
        self.environment |= {"RAY_ADDRESS": str(first["address"])}
        self.job_server = str(first["job_server"])

    def add_raylet(self) -> psutil.Process:
        assert self._process.stdin is not None
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        return psutil.Process(int(self._read()["raylet"]))

    def free(self, resource: str = "CPU") -> float:
        """How much of a resource nobody has reserved."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{FREE}\n")
        self._process.stdin.flush()
        return float(self._read().get(resource, 0.0))

    def left_files(self) -> list[Path]:
        return list(self.temporary.glob("shadowsync-*"))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=10)
            self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the cluster ended with {self._process.wait()}"
        body: dict[str, Any] = json.loads(line)
        return body


@contextmanager
def ray_cluster(
    folder: Path, *, job_server: bool = False, without_shadowsync: bool = False
) -> Iterator[RayCluster]:
    """A cluster with its head alone; what it prints goes to a file of `folder`.

    With `job_server` jobs can be submitted to it, on loopback. With `without_shadowsync` its machine lacks
    that, and the driver's has it.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "RAY_"))}
    temporary = folder / "tmp"
    temporary.mkdir()
    environment |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "TMPDIR": str(temporary),
        # Ray's own files have sockets among them, whose paths must be short.
        "RAY_TMPDIR": tempfile.gettempdir(),
    }
    its_own = dict(environment)
    if without_shadowsync:
        (folder / "sitecustomize.py").write_text(WITHOUT_SHADOWSYNC, encoding="utf-8")
        its_own["PYTHONPATH"] = str(folder)
    with (folder / "cluster.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, *([JOB_SERVER] if job_server else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=its_own,
            cwd=folder,
        )
        cluster = RayCluster(process, environment, temporary)
        try:
            cluster.begin()
            yield cluster
        finally:
            cluster.close()


def nodes_on(raylet: psutil.Process, role: str = "") -> list[psutil.Process]:
    """The processes of shadowsync's nodes on a raylet, of one role or of all."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in raylet.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                command = [word for word in child.cmdline() if word != "-P"]
                if command[1:3] == ["-m", "shadowsync.cli"] and (not role or command[3] == role):
                    found.append(child)
    return found


def _run() -> None:
    from ray.cluster_utils import Cluster

    own = {
        "num_cpus": CPUS,
        "memory": MEMORY_BYTES,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    # The death of a raylet is noticed within seconds, not half a minute.
    checks = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 5,
    }
    output = os.fdopen(os.dup(1), "w")
    # Ray prints.
    os.dup2(2, 1)
    served = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": 0}
    head = own | {"_system_config": checks} | (served if JOB_SERVER in sys.argv else {})
    cluster = _tried(lambda: Cluster(initialize_head=True, head_node_args=head))

    def tell(node: Any) -> None:
        (raylet,) = node.all_processes["raylet"]
        server = f"http://{node.webui_url}" if node.webui_url else ""
        body = {"address": cluster.address, "raylet": raylet.process.pid, "job_server": server}
        output.write(json.dumps(body) + "\n")
        output.flush()

    tell(cluster.head_node)
    for line in sys.stdin:
        if line.strip() == FREE:
            output.write(json.dumps(_free(cluster.address)) + "\n")
            output.flush()
        else:
            tell(_tried(lambda: cluster.add_node(wait=True, **own)))
    cluster.shutdown()


def _free(address: str) -> dict[str, float]:
    import ray

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    free: dict[str, float] = ray.available_resources()
    return free


def _tried(start: Callable[[], Any], again: int = 2) -> Any:
    """What `start` gives; it is tried again if a busy machine takes more than the 30 s that Ray gives it."""
    before = {child.pid for child in psutil.Process().children()}
    try:
        return start()
    except Exception as error:
        if not again or "timed out during startup" not in str(error):
            raise
    for child in psutil.Process().children():
        if child.pid not in before:
            child.kill()
    return _tried(start, again - 1)


if __name__ == "__main__":
    _run()
