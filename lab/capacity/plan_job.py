"""From a job, a profile and options to a plan of machines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...pipeline.config.job import Job
from ...pipeline.errors import DataError
from ...pipeline.performance.document import PROFILE_JSON, Profile, read_profile
from ...pipeline.performance.reasons import disk_share
from ...pipeline.performance.worker_time import worker_threads
from ...pipeline.text.format import parse_rate
from .demands import demands_of, require_same_model
from .document import CapacityPlan
from .machine import Machine, parse_machine, parse_price
from .prediction import JobRules
from .search import Space, plan_for_machines, plan_for_target

_CROWDED: Final = 0.9
_STARVED: Final = 1 / 3


def plan_job(
    job: Job,
    profile_path: Path,
    *,
    machines: int | None = None,
    target: str | None = None,
    machine_text: str | None = None,
    price_text: str | None = None,
) -> CapacityPlan:
    """Plan the machines of a job from a profile of it.

    Args:
        job: the job; numbers of nodes and workers in it do not matter.
        profile_path: a run folder of `shadowsync profile`, or its profile.json.
        machines: number of machines to use as well as possible.
        target: speed to reach with as few machines as possible, if `machines` is None.
        machine_text, price_text: the options `--machine` and `--price`.

    Raises JobFileError for options and profiles that cannot be used, DataError if there is no profile,
    ResourceError if the job does not fit.
    """
    price = parse_price(price_text) if price_text is not None else None
    rate = parse_rate(target) if target is not None else None
    profile, path = profile_of_run(profile_path)
    basis = require_same_model(job, profile, path)
    machine = parse_machine(machine_text, profile.measured.cores, basis)
    space = Space(demands_of(profile, basis, path), JobRules.of(job), machine)
    planned = plan_for_target(space, rate) if rate is not None else plan_for_machines(space, machines or 1)
    notes = _notes(profile, machine, planned.machines)
    return CapacityPlan.of(planned, job, machine, profile.measured.run, price, notes)


def profile_of_run(run: Path) -> tuple[Profile, str]:
    """Read a run's profile and return its place too; raises DataError."""
    path = run / PROFILE_JSON if run.is_dir() else run
    try:
        return read_profile(path), str(path)
    except FileNotFoundError as error:
        raise DataError(
            "there is no profile", where=str(path), remedy="make one: shadowsync profile JOB.toml"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"the profile cannot be read ({type(error).__name__})",
            where=str(path),
            remedy="make another: shadowsync profile JOB.toml",
        ) from error


def _notes(profile: Profile, machine: Machine, machines: int) -> list[str]:
    measured = profile.measured
    notes = [
        "Computed from the CPU seconds and bytes of the profile, for cores that are as fast as the profiled"
        " ones."
    ]
    if machines > 1 and machine.nic_bytes_per_second is None:
        notes.append("Links are taken to be no limit: give nic= in --machine.")
    if machines > 1 and len({node.machine for node in measured.nodes}) == 1:
        notes.append(
            "The profiled nodes were on one machine, where vectors pass in shared memory: what messages"
            " between machines cost in CPU time is not in the plan."
        )
    if disk_share(measured):
        notes.append(
            "Rows lie on disk: what nodes wait for their disks is not in the plan, and all rows take as much"
            " memory as in the profile."
        )
    workers = list(worker_threads(measured))
    waited, ran = (
        sum(getattr(time, key) for time in workers) for key in ("core_wait_seconds", "cpu_seconds")
    )
    if measured.cores_used <= _CROWDED * measured.cores and waited > _STARVED * (waited + ran):
        notes.append(
            "Something else ran on the profiled machine: the workers waited for cores that the job did not"
            " use. CPU seconds of an example are higher then; profile it again on a quiet machine."
        )
    elif measured.cores_used > _CROWDED * measured.cores:
        notes.append(
            "The profiled machine had no idle core, and CPU seconds of an example are higher there than on a"
            " machine with free cores."
        )
    return notes
