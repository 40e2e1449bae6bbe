"""`shadowsync simulate`: synchronization of up to ten thousand trainers."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import OutPath, job_of, job_options, profile_option


@click.command()
@job_options
@profile_option
@click.option(
    "--trainers",
    default="1,10,100,1000",
    show_default=True,
    metavar="LIST",
    help="Numbers of trainers, each at most 10,000.",
)
@click.option("--bandwidth", required=True, metavar="RATE", help="Of each sync node's link: 25gbit.")
@click.option("--delay", default="0ms", show_default=True, metavar="TIME", help="One way between nodes.")
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another setting, such as sync_nodes=8 or deaths_an_hour=0.1; see docs/lab.md.",
)
@click.option(
    "--out",
    default=Path("simulation"),
    show_default=True,
    metavar="DIR",
    type=OutPath("folder"),
    help="Folder for simulation.json and simulation.png.",
)
def simulate(
    job_file: str,
    overrides: tuple[str, ...],
    profile: Path,
    trainers: str,
    bandwidth: str,
    delay: str,
    settings: tuple[str, ...],
    out: Path,
) -> None:
    """Simulate the synchronization of a job with many trainers.

    Rounds are events; links, sync nodes, deaths and recoveries are simulated, and the costs are those of a
    profile. Says how speed and sync gap grow with the number of trainers, and what limits the rounds.
    """
    from ...pipeline.config.network import parse_bandwidth, parse_delay
    from ...pipeline.errors import JobFileError
    from ...pipeline.jobfile.extras import require_extra

    require_extra("shadowsync simulate", "lab")
    from ...lab.simulation.from_profile import settings_of
    from ...lab.simulation.sweep import assumptions, parse_settings, simulate_all, sweep_table, with_window
    from ...lab.virtual.plan import parse_trainers

    counts = parse_trainers(trainers, most=10_000)
    base, run = settings_of(job_of(job_file, overrides, trust=True), profile)
    try:
        base |= {"link_bytes_per_second": parse_bandwidth(bandwidth), "delay_seconds": parse_delay(delay)}
    except ValueError as error:
        raise JobFileError(f"--bandwidth, --delay: {error}", remedy="write --bandwidth 25gbit") from error
    chosen = [parse_settings([*settings, f"trainers={number}"], base) for number in counts]
    keys = {text.partition("=")[0] for text in settings}
    if not keys & {"seconds", "warm_seconds", "start_seconds"}:
        chosen = [with_window(setting) for setting in chosen]
    layout = (
        f"tree, sites of {chosen[0].site_size}"
        if chosen[0].site_size
        else f"sync nodes: {chosen[0].sync_nodes}"
    )
    sweep = simulate_all(f"profile of {run}", {layout: chosen}, lambda line: click.echo(line, err=True))
    sweep.write(out)
    click.echo("\n".join([*sweep_table(sweep), *assumptions(chosen[0])]))
    click.echo(f"simulated: {out / 'simulation.json'}, {out / 'simulation.png'}")
