"""The check of a job that needs torch, in its own process.

It is started as `python -m shadowsync.nodes.supervisor.job_check JOB.json`, with NO_DEVICES behind it if the
trainers run elsewhere. The exit code is 0, or 2 with a last line of JSON that says what is wrong.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode, JobFileError, ShadowSyncError
from ...pipeline.jobfile.load import load_resolved
from ..runtime.process import JOB_CHECK, exit_status_text
from ..sync_rules import check_sync
from .child import Child
from .starter import Starter

NO_DEVICES = "--no-devices"


def check_job(job: Job, *, devices: bool = True) -> None:
    """Check algorithm, model and `devices`; raises JobFileError for one that cannot be used."""
    from ...pipeline.models.registry import build_model
    from ...pipeline.models.state_check import check_stateless
    from ..replica.replica import find_device

    check_sync(job)
    check_stateless(job, build_model(job))
    if devices:
        find_device(job.trainer.device)


async def have_checked(starter: Starter, job_file: Path, *, devices: bool = True) -> None:
    """Check a job in another process, so that this one needs no torch.

    `devices`: whether this machine must have the trainers' device. Raises what the check finds.
    """
    arguments = ["-m", JOB_CHECK, str(job_file), *([] if devices else [NO_DEVICES])]
    child = Child("check", 0, "", await starter.start(arguments, torch=True))
    try:
        await child.ended.wait()
    finally:
        child.signal(signal.SIGKILL)
        await child.close()
    lines = list(child.lines)
    refusal = json.loads(lines.pop()) if child.code == ExitCode.USAGE else None
    for line in lines:
        # A user's own model may print, and warn.
        print(line, file=sys.stderr)
    if refusal is not None:
        raise JobFileError(refusal["what"], where=refusal["where"], remedy=refusal["remedy"])
    if child.code != ExitCode.OK:
        raise ShadowSyncError(f"the check of the job ended with {exit_status_text(child.code)}")


def main() -> int:
    """Check the job; return the exit code."""
    try:
        check_job(load_resolved(sys.argv[1]), devices=NO_DEVICES not in sys.argv[2:])
    except JobFileError as error:
        print(json.dumps({"what": error.what, "where": error.where, "remedy": error.remedy}), flush=True)
        return int(ExitCode.USAGE)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
