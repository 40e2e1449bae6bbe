"""`shadowsync hub`: where attached loops meet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .key import security_options

if TYPE_CHECKING:
    from ..pipeline.wire.control.loops import LoopsReply


@click.command()
@security_options
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="[tcp://]HOST[:PORT]",
    help="Where loops join; without PORT, at any free one.",
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
@click.option("--until-empty", is_flag=True, help="End when the last loop has left.")
@click.option(
    "--book", type=click.Path(path_type=Path, dir_okay=False), help="Write the book of steps there, as JSON."
)
@click.option("--announce", type=click.Path(path_type=Path), hidden=True)
def hub(
    bind: str,
    advertise: str,
    algo: str | None,
    sync_nodes: int | None,
    embedding_nodes: int | None,
    overrides: tuple[str, ...],
    until_empty: bool,
    book: Path | None,
    announce: Path | None,
) -> None:
    """Start a hub, where loops join with shadowsync.attach.

    It prints the address to join. Ctrl-C ends it; then it prints what each loop did, and how many of its
    steps were synchronized.
    """
    from ..attached.hub.serve import serve_hub
    from ..attached.job import loop_job
    from ..nodes.runtime.main_loop import run_interruptible
    from ..nodes.runtime.process import log_to_stderr
    from ..nodes.runtime.settings import NodeSettings

    given: dict[str, Any] = {
        "sync.algorithm": algo,
        "sync.nodes": sync_nodes,
        "embedding.nodes": embedding_nodes,
    }
    job = loop_job({name: value for name, value in given.items() if value is not None}, overrides)
    settings = NodeSettings(job, bind=bind.removeprefix("tcp://"), advertise=advertise)
    log_to_stderr()

    def tell(endpoint: str) -> None:
        click.echo(f"loops join at {endpoint}")
        sys.stdout.flush()
        if announce is not None:
            announce.write_text(endpoint, encoding="ascii")

    found = run_interruptible(lambda: serve_hub(settings, tell, until_empty=until_empty))
    click.echo(_text(found))
    if book is not None:
        book.write_text(json.dumps(_json(found), indent=1) + "\n", encoding="utf-8")


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
    }
