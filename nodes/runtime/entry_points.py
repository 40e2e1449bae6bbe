"""The modules that are started as programs, by `python -m`."""

from __future__ import annotations

import sys

CLI = "shadowsync.cli"
FORK_SERVER = "shadowsync.nodes.supervisor.fork_server"
JOB_CHECK = "shadowsync.nodes.supervisor.job_check"
PROBE = "shadowsync.sync_algos.probe"
RELAY = "shadowsync.nodes.supervisor.relay_main"
SCORING = "shadowsync.nodes.coordinator.validation_process"
WORKER = "shadowsync.nodes.worker.worker_main"

ENTRY_POINTS = (CLI, FORK_SERVER, JOB_CHECK, PROBE, RELAY, SCORING, WORKER)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of these modules in an interpreter of its own."""
    return [sys.executable, "-m", module, *arguments]
