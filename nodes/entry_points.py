"""The modules that are started as programs, by `python -m`."""

from __future__ import annotations

import sys

CLI = "shadowsync.cli"
FORK_SERVER = "shadowsync.nodes.fork_server"
JOB_CHECK = "shadowsync.nodes.job_check"
PROBE = "shadowsync.sync_algos.probe"
RELAY = "shadowsync.nodes.relay_main"
SCORING = "shadowsync.nodes.scoring_main"
WORKER = "shadowsync.nodes.worker_main"

ENTRY_POINTS = (CLI, FORK_SERVER, JOB_CHECK, PROBE, RELAY, SCORING, WORKER)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of these modules in an interpreter of its own."""
    return [sys.executable, "-m", module, *arguments]
