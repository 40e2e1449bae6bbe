"""`shadowsync plan`: how many machines and nodes a job needs."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import job_of, job_options, profile_option


@click.command()
@job_options
@profile_option
@click.option(
    "--machines", type=click.IntRange(1, 10_000), help="Use this many machines as well as possible."
)
@click.option("--target", metavar="RATE", help="Use as few machines as reach it: 1M/s, 250k/s.")
@click.option(
    "--machine",
    metavar="KEY=VALUE,...",
    help="A machine: cores=16,memory=64GiB,nic=25gbit,delay=100us. [default: the profiled machine]",
)
@click.option("--price", metavar="PRICE/h", help="Price of a machine, such as 1.2/h.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    job_file: str,
    overrides: tuple[str, ...],
    profile: Path,
    machines: int | None,
    target: str | None,
    machine: str | None,
    price: str | None,
    as_json: bool,
) -> None:
    """Plan how many machines and nodes a job needs.

    For example: `shadowsync plan job.toml --profile runs/latest --target 1M/s --machine
    cores=16,memory=64GiB,nic=25gbit`. From what `shadowsync profile` measured it computes how many nodes of
    each role to use, with how many workers and threads, the speed and the sync gap to expect, and what will
    be the bottleneck.
    """
    from rich.console import Console

    from ...pipeline.errors import JobFileError

    if (machines is None) == (target is None):
        raise JobFileError(
            "one of --machines and --target is needed", remedy="give --machines 4, for example"
        )
    from ...lab.capacity.plan_job import plan_job
    from ...lab.capacity.render import print_plan

    capacity_plan = plan_job(
        job_of(job_file, overrides, trust=True),
        profile,
        machines=machines,
        target=target,
        machine_text=machine,
        price_text=price,
    )
    if as_json:
        click.echo(capacity_plan.model_dump_json(indent=1))
    else:
        print_plan(capacity_plan, Console())
