"""A job as a batch script for Slurm.

The coordinator runs in the script, and each other role as a job step of the same allocation. Imports no
torch.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from ..pipeline.config.job import Job
from ..pipeline.errors import ExitCode
from ..pipeline.wire.keys.job_key import KEY_VARIABLE
from .job_nodes import COORDINATOR, RoleNodes, nodes_of

GRACE_SECONDS: Final = 120
"""Time for a checkpoint before the allocation ends."""
END_SECONDS: Final = 30
"""Time for the nodes to end after their coordinator."""
_GPU_OPTIONS: Final = "--gpus", "--gres", "--tres", "-G"
"""Options of sbatch by which an allocation gets GPUs, or other such resources."""

_SCRIPT: Final = """\
#!/bin/bash
# {name}: {counts}. Made by `shadowsync render slurm`; start it with: sbatch FILE
# All machines need shadowsync, and the job file, the key and the run folders under the same paths.
#SBATCH --job-name={name}
#SBATCH --ntasks={tasks}
#SBATCH --cpus-per-task={cpus}
#SBATCH --signal=B:TERM@{grace}
#SBATCH --no-requeue
{directives}
set -u
export {key_variable}={key}
{prolog}
# This script runs on the first machine, and so does the coordinator.
COORDINATOR=$SLURMD_NODENAME
PORT=$((20000 + SLURM_JOB_ID % 20000))
JOB={job_file}

# At the end of its time, or of `scancel --batch --signal=TERM`, the job writes a checkpoint.
LEADER=
EARLY=
trap 'if [ -n "$LEADER" ]; then kill -TERM "$LEADER" 2>/dev/null; else EARLY=1; fi' TERM

# A step that loses a node goes on: the job replaces it, or goes on without it. The steps share the memory:
# else each would ask for all of it, and the second would wait for the first. They have the environment of
# this script, also after --export=NONE, and do not ask for the GPUs that sbatch was asked for.
unset "${{!SLURM_GPUS@}}"
STEP="srun --exact --mem=0 --export=ALL --kill-on-bad-exit=0 --no-kill"
STEPS=

{coordinator}
LEADER=$!
[ -z "$EARLY" ] || kill -TERM "$LEADER" 2>/dev/null
{steps}

while :; do
  wait "$LEADER"
  CODE=$?
  kill -0 "$LEADER" 2>/dev/null || break
done
# If a signal ended the wait, the coordinator may have ended since: its own code counts. No other signal may
# end the wait for that.
trap '' TERM
if [ "$CODE" -gt 128 ]; then
  wait "$LEADER" 2>/dev/null
  LAST=$?
  [ "$LAST" -eq 127 ] || CODE=$LAST
fi
# The others end with their coordinator. A step that still waits for its turn would start nodes without one.
for STILL in $(seq {end}); do
  kill -0 $STEPS 2>/dev/null || break
  sleep 1
done
kill -TERM $STEPS 2>/dev/null
wait
exit "$CODE"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What a job file does not say.

    Attributes:
        name: name of the job.
        job_file: the job file, as the machines see it.
        overrides: `--set` of every node.
        key: the key file, as the machines see it.
        directives: further options of sbatch, such as "--partition=gpu".
        prolog: a shell command that each batch script runs first, such as "source /opt/venv/bin/activate".
    """

    name: str
    job_file: str
    overrides: tuple[str, ...]
    key: str
    directives: tuple[str, ...]
    prolog: str


def slurm_script(job: Job, options: SlurmOptions) -> str:
    """Return the script; each machine's nodes listen on its own ports."""
    roles = nodes_of(job)
    directives = [*_gpus(roles), *options.directives]
    has_gpus = any(directive.startswith(_GPU_OPTIONS) for directive in directives)
    return _SCRIPT.format(
        name=shlex.quote(options.name),
        counts=", ".join(f"{nodes.count} {nodes.role}" for nodes in roles),
        tasks=sum(nodes.count for nodes in roles),
        cpus=max(nodes.cpus for nodes in roles),
        grace=GRACE_SECONDS,
        end=END_SECONDS,
        directives="\n".join(f"#SBATCH {directive}" for directive in directives),
        key_variable=KEY_VARIABLE,
        key=shlex.quote(options.key),
        prolog=options.prolog,
        job_file=shlex.quote(options.job_file),
        coordinator=_coordinator(options),
        steps="\n".join(
            _step(nodes, options, has_gpus=has_gpus) for nodes in roles if nodes.role != COORDINATOR
        ),
    )


def _coordinator(options: SlurmOptions) -> str:
    # Without srun, which would end the step at once when it gets a signal.
    addresses = '--bind "0.0.0.0:$PORT" --advertise "$COORDINATOR"'
    return f'shadowsync {COORDINATOR} "$JOB" {addresses}{_shared(options)} &'


def _gpus(roles: list[RoleNodes]) -> list[str]:
    count = sum(nodes.count * nodes.gpus for nodes in roles)
    return [f"--gpus={count}"] if count else []


def _step(nodes: RoleNodes, options: SlurmOptions, *, has_gpus: bool) -> str:
    # A step has all GPUs of the allocation unless it says which, and the next one waits for them.
    none = " --gres=none" if has_gpus and nodes.role != "trainer" else ""
    gpus = f" --gpus-per-task={nodes.gpus}" if nodes.gpus else none
    addresses = '--join "tcp://$COORDINATOR:$PORT" --bind 0.0.0.0 --advertise auto'
    return (
        f"$STEP --ntasks={nodes.count} --cpus-per-task={nodes.cpus}{gpus} \\\n"
        f'  shadowsync {nodes.role} "$JOB" {addresses}{_shared(options)} &\nSTEPS="$STEPS $!"'
    )


def _shared(options: SlurmOptions) -> str:
    overrides = "".join(f" --set {shlex.quote(override)}" for override in options.overrides)
    return f"{overrides} --exit-zero-on {int(ExitCode.FINISHED_WITH_DEATHS)}"
