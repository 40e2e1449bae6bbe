"""Commands that start one node: the coordinator, or another role."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from .key import security_options
from .options import (
    exit_zero_option,
    job_of,
    job_options,
    supervised_option,
    trust_option,
    web_option,
    web_override,
)

if TYPE_CHECKING:
    from ..nodes.runtime.settings import NodeSettings
    from ..pipeline.config.job import Job

F = TypeVar("F", bound=Callable[..., Any])


def node_options(command: F) -> F:
    """Add the options that differ from process to process."""
    for option in (
        security_options,
        click.option("--bind", help="Host, or host:port, to listen on. [default: network.bind]"),
        click.option(
            "--advertise", help="The host that other nodes connect to. [default: network.advertise]"
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65_535),
            help="Port for Prometheus metrics; 0 for none. [default: watch.metrics_port]",
        ),
        exit_zero_option,
        click.option("--token", hidden=True),
        trust_option,
        supervised_option,
    ):
        command = option(command)
    return command


@click.command()
@job_options
@node_options
@web_option
@click.option(
    "--recover",
    metavar="RUN",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Take over this run from its dead coordinator, at the same address.",
)
@click.option(
    "--restartable",
    is_flag=True,
    help="Take over the job's run if it has begun and has no report, as --recover does; otherwise start it.",
)
@click.option("--announce", type=click.Path(path_type=Path), hidden=True)
@click.option("--supervisor-file", type=click.Path(path_type=Path), hidden=True)
@click.option("--profile-seconds", type=click.FloatRange(min=0, min_open=True), hidden=True)
def coordinator(
    job_file: str,
    overrides: tuple[str, ...],
    bind: str | None,
    advertise: str | None,
    token: str | None,
    supervised: bool,
    recover: Path | None,
    restartable: bool,
    announce: Path | None,
    supervisor_file: Path | None,
    profile_seconds: float | None,
    metrics_port: int | None,
    exit_zero_on: tuple[int, ...],
    web: str | None,
    trust: bool,
) -> None:
    """Start the coordinator of a job.

    It prints the address that the other nodes join.
    """
    from ..nodes.coordinator.main import run_coordinator
    from ..nodes.runtime.main_loop import run_interruptible
    from ..nodes.runtime.process import log_to_stderr
    from ..pipeline.jobfile.extras import left_out

    more: dict[str, Any] = {
        "announce": announce,
        "recover": recover,
        "metrics_port": metrics_port,
        "trust": trust,
        "profile_seconds": profile_seconds,
        "supervisor": supervisor_file.read_text(encoding="ascii") if supervisor_file else "",
    }
    overrides = (*overrides, *web_override(web))
    settings = _settings(job_file, overrides, bind, advertise, token, supervised, **more)
    if restartable and recover is None:
        settings = replace(settings, recover=_begun_run(settings.job))
    if not supervised and (missing := left_out(settings.job, metrics_port=metrics_port)):
        click.echo(missing, err=True)
    log_to_stderr()
    code, text, report = run_interruptible(lambda: run_coordinator(settings))
    if report is not None and not supervised:
        from rich.console import Console

        from ..pipeline.report.rendering.terminal import print_report

        print_report(report, Console())
    if text:
        click.echo(f"shadowsync coordinator: {text}", err=True)
    _exit(int(code), exit_zero_on)


def _begun_run(job: Job) -> Path | None:
    """Return the folder of the job's newest run if that has not ended."""
    from ..nodes.coordinator.main import LEDGER_FILE
    from ..nodes.coordinator.recovery.takeover import has_begun
    from ..pipeline.report.run_folders.run_folder import newest_run_folder
    from ..pipeline.report.run_folders.write import JSON_NAME

    folder = newest_run_folder(Path(job.run.directory), job.run.name)
    if folder is None or (folder / JSON_NAME).is_file() or not has_begun(folder, LEDGER_FILE):
        return None
    return folder


def _exit(code: int, exit_zero_on: tuple[int, ...]) -> NoReturn:
    sys.exit(0 if code in exit_zero_on else code)


def _device_option(command: F) -> F:
    return click.option("--device", help='"cpu", "cuda", "cuda:1" or "auto". [default: trainer.device]')(
        command
    )


def _role_command(
    name: str, text: str, own_options: Callable[[Any], Any] = lambda start: start
) -> click.Command:
    @click.command(name=name, help=text)
    @own_options
    @job_options
    @node_options
    @click.option("--join", required=True, metavar="tcp://HOST:PORT", help="The coordinator's address.")
    def start(
        job_file: str,
        overrides: tuple[str, ...],
        bind: str | None,
        advertise: str | None,
        token: str | None,
        supervised: bool,
        join: str,
        metrics_port: int | None,
        exit_zero_on: tuple[int, ...],
        trust: bool,
        device: str | None = None,
    ) -> None:
        from ..nodes.launch import print_exit, run_node

        if device is not None:
            overrides = (*overrides, f'trainer.device="{device}"')
        more: dict[str, Any] = {"join": join, "metrics_port": metrics_port, "trust": trust}
        settings = _settings(job_file, overrides, bind, advertise, token, supervised, **more)
        code, why = run_node(name, settings)
        print_exit(code, why, name)
        _exit(int(code), exit_zero_on)

    return start


reader = _role_command("reader", "Start a reader, which turns spans of the input into batches.")
trainer = _role_command(
    "trainer", "Start a trainer: a replica, its workers and its shadow thread.", _device_option
)
embedding = _role_command("embedding", "Start an embedding node: a shard of all the tables.")
sync = _role_command("sync", "Start a sync node: a slice of the parameter center.")


def _settings(
    job_file: str,
    overrides: tuple[str, ...],
    bind: str | None,
    advertise: str | None,
    token: str | None,
    supervised: bool,
    *,
    trust: bool,
    **more: Any,
) -> NodeSettings:
    from ..nodes.runtime.settings import NodeSettings
    from ..pipeline.errors import JobFileError

    job = job_of(job_file, overrides, may_import=False, resolved=supervised, trust=trust)
    if job.network.slow is not None and not supervised:
        raise JobFileError(
            "network.delay and network.bandwidth need a supervisor: run, profile or compare",
            where=job_file,
            remedy="remove them to start a node by itself",
        )
    named: dict[str, Any] = {"token": token} if token else {}
    return NodeSettings(
        job=job,
        bind=bind if bind is not None else job.network.bind,
        advertise=advertise if advertise is not None else job.network.advertise,
        supervised=supervised,
        **named,
        **more,
    )
