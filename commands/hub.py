"""`shadowsync hub`: where attached loops meet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .key import security_options
from .options import NumberRange, OutPath, trust_option, web_option, web_override

if TYPE_CHECKING:
    from ..nodes.runtime.settings import NodeSettings
    from ..pipeline.wire.control.loops import LoopsReply


@click.command()
@security_options
@click.option(
    "--bind",
    metavar="[tcp://]HOST[:PORT]",
    help="Where loops join; without PORT, at any free one. [default: 127.0.0.1]",
)
@click.option("--advertise", default="", metavar="HOST", help='The host that loops connect to; or "auto".')
@click.option("--algo", metavar="NAME", help="The algorithm. [default: easgd]")
@click.option("--sync-nodes", type=click.IntRange(min=1), help="Sync nodes, of algorithms with a center.")
@click.option(
    "--embedding-nodes",
    type=click.IntRange(min=1),
    help="Embedding nodes of shadowsync.Embeddings, which start with the first module. [default: 1]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="A setting of a job file's [sync], [codecs], [embedding] or [run], such as sync.gap=10.",
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The hub's folder, new or empty; for shadowsync top. [default: runs/hub, runs/hub-2, ...]",
)
@click.option(
    "--recover",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Take the place of the dead hub of this folder, with its settings and at its address.",
)
@click.option(
    "--checkpoint-every",
    "checkpoint_seconds",
    type=NumberRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Write the one model of all loops, and the tables, into the hub's folder so often, and at the"
    " end; 0: never. [default: 0]",
)
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Begin with the checkpoint of the hub of this folder: its model, its tables, and the"
    " accounts of its samples.",
)
@web_option
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port for Prometheus metrics, on the host of --bind; 0 for none. [default: 0]",
)
@trust_option
@click.option("--until-empty", is_flag=True, help="End when the last loop has left.")
@click.option("--book", type=OutPath("file"), help="Write the book of steps there, as JSON.")
@click.option("--announce", type=click.Path(path_type=Path), hidden=True)
def hub(
    bind: str | None,
    advertise: str,
    algo: str | None,
    sync_nodes: int | None,
    embedding_nodes: int | None,
    overrides: tuple[str, ...],
    folder: Path | None,
    recover: Path | None,
    checkpoint_seconds: float,
    resume: Path | None,
    web: str | None,
    metrics_port: int,
    trust: bool,
    until_empty: bool,
    book: Path | None,
    announce: Path | None,
) -> None:
    """Start a hub, where loops join with shadowsync.attach.

    It prints the address to join. Ctrl-C ends it; then it prints what each loop did, and how many of its
    steps were synchronized. shadowsync top DIR shows that meanwhile.
    """
    from ..attached.hub.checkpoint import saved_model_of
    from ..attached.hub.expected_members import ExpectedMembers
    from ..attached.hub.folder import announce as announce_in
    from ..attached.hub.folder import make_hub_folder, saved_settings
    from ..attached.hub.serve import serve_hub
    from ..nodes.runtime.main_loop import run_interruptible
    from ..nodes.runtime.process import log_to_stderr
    from ..nodes.runtime.settings import insecurities
    from ..pipeline.errors import JobFileError
    from ..pipeline.jobfile.extras import left_out
    from ..pipeline.jobfile.named_code import code_of, note_named_code, require_trusted

    given: dict[str, Any] = {
        "sync.algorithm": algo,
        "sync.nodes": sync_nodes,
        "embedding.nodes": embedding_nodes,
    }
    if recover is not None:
        if any(
            (bind, advertise, algo, sync_nodes, embedding_nodes, overrides, folder, resume, web, metrics_port)
        ):
            raise JobFileError(
                "other settings given; the hub has those of its folder",
                where="--recover",
                remedy="leave out all but --key, --http-token, --checkpoint-every, --book, --until-empty and "
                "--trust",
            )
        settings, resume = saved_settings(recover)
        require_trusted(code_of(settings.job), str(recover), trust=trust)
    else:
        settings = _settings(given, (*overrides, *web_override(web)), bind, advertise, metrics_port or None)
    note_named_code(code_of(settings.job).values())
    if book is not None and not book.absolute().parent.is_dir():
        raise JobFileError("has no folder", where=f"--book {book}", remedy="make it, or give another path")
    # Before there is a folder: an address may need a key that was not given.
    settings.listen_at()
    if resume is not None and recover is None:
        saved_model_of(resume)
    missing = left_out(settings.job, metrics_port=settings.metrics_port, has_report=False)
    for text in (missing, *insecurities(settings)):
        if text:
            click.echo(text, err=True)
    if recover is None:
        settings = make_hub_folder(settings, folder, resume)
    place = settings.folder
    assert place is not None
    log_to_stderr()

    def tell(endpoint: str, page: str) -> None:
        announce_in(place, endpoint)
        click.echo(f"loops join at {endpoint}")
        click.echo(f"folder: {place}")
        if page:
            click.echo(f"page: {page}")
        sys.stdout.flush()
        if announce is not None:
            announce.write_text(endpoint, encoding="ascii")

    expected = ExpectedMembers() if until_empty else None
    found = run_interruptible(
        lambda: serve_hub(
            settings, tell, expected=expected, checkpoint_seconds=checkpoint_seconds, resume=resume
        )
    )
    click.echo(_text(found))
    if book is not None:
        book.write_text(json.dumps(_json(found), indent=1) + "\n", encoding="utf-8")


def _settings(
    given: dict[str, Any],
    overrides: tuple[str, ...],
    bind: str | None,
    advertise: str,
    metrics_port: int | None,
) -> NodeSettings:
    from ..attached.job import loop_job
    from ..nodes.runtime.settings import NodeSettings

    job = loop_job({name: value for name, value in given.items() if value is not None}, overrides)
    address = (bind or "127.0.0.1").removeprefix("tcp://")
    return NodeSettings(job, bind=address, advertise=advertise, metrics_port=metrics_port)


def _text(book: LoopsReply) -> str:
    from ..pipeline.text.markdown import markdown_table

    rows = [
        (
            one.name,
            one.state,
            f"{one.steps:,}",
            f"{one.synchronized:,}",
            f"{one.steps - one.synchronized:,}",
            one.why,
        )
        for one in book.loops
    ]
    lines = markdown_table(("loop", "state", "steps", "synchronized", "not synchronized", "why"), rows)
    modules = [(one.name, one.state, f"{one.passes:,}", f"{one.lost:,}", one.why) for one in book.modules]
    if modules:
        lines += ["", *markdown_table(("module", "state", "passes", "lost with a hub", "why"), modules), ""]
    for one in book.samples:
        lines.append(
            f"samples {one.stream}: granted {one.granted:,} = finished {one.finished:,} + returned"
            f" {one.returned:,} + held {one.held:,}"
        )
    return "\n".join(lines)


def _json(book: LoopsReply) -> dict[str, Any]:
    import dataclasses

    return {
        "loops": [dataclasses.asdict(one) for one in book.loops],
        "samples": [dataclasses.asdict(one) for one in book.samples],
        "modules": [dataclasses.asdict(one) for one in book.modules],
    }
