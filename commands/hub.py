"""`shadowsync hub`: where attached loops meet."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
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
def hub(**options: Any) -> None:
    """Start a hub, where loops join with shadowsync.attach.

    It prints the address to join. Ctrl-C ends it; then it prints what each loop did, and how many of its
    steps were synchronized. shadowsync top DIR shows that meanwhile.
    """
    _serve(HubOptions(**options))


@dataclass(frozen=True)
class HubOptions:
    """What the command line says; the options' texts say what each is."""

    bind: str | None
    advertise: str
    algo: str | None
    sync_nodes: int | None
    embedding_nodes: int | None
    overrides: tuple[str, ...]
    folder: Path | None
    recover: Path | None
    checkpoint_seconds: float
    resume: Path | None
    web: str | None
    metrics_port: int
    trust: bool
    until_empty: bool
    book: Path | None
    announce: Path | None

    def settings(self) -> tuple[NodeSettings, Path | None]:
        """Return the hub's settings, without a folder if it is new, and the folder that it resumes.

        Raises JobFileError for options that do not go together.
        """
        return self._new_settings() if self.recover is None else self._saved_settings(self.recover)

    def _saved_settings(self, recover: Path) -> tuple[NodeSettings, Path | None]:
        from ..attached.hub.folder import saved_settings
        from ..pipeline.errors import JobFileError
        from ..pipeline.jobfile.named_code import code_of, require_trusted

        nodes = (self.algo, self.sync_nodes, self.embedding_nodes, self.overrides)
        if any((self.bind, self.advertise, *nodes, self.folder, self.resume, self.web, self.metrics_port)):
            raise JobFileError(
                "other settings given; the hub has those of its folder",
                where="--recover",
                remedy="leave out all but --key, --http-token, --checkpoint-every, --book, --until-empty and "
                "--trust",
            )
        settings, resume = saved_settings(recover)
        require_trusted(code_of(settings.job), str(recover), trust=self.trust)
        return settings, resume

    def _new_settings(self) -> tuple[NodeSettings, Path | None]:
        from ..attached.job import loop_job
        from ..nodes.runtime.settings import NodeSettings

        values: dict[str, Any] = {
            "sync.algorithm": self.algo,
            "sync.nodes": self.sync_nodes,
            "embedding.nodes": self.embedding_nodes,
        }
        overrides = (*self.overrides, *web_override(self.web))
        job = loop_job({name: value for name, value in values.items() if value is not None}, overrides)
        address = (self.bind or "127.0.0.1").removeprefix("tcp://")
        port = self.metrics_port or None
        return NodeSettings(job, bind=address, advertise=self.advertise, metrics_port=port), self.resume


def _serve(options: HubOptions) -> None:
    """Serve until the hub ends, and print what its loops did."""
    from ..attached.hub.expected_members import ExpectedMembers
    from ..attached.hub.folder import make_hub_folder
    from ..attached.hub.serve import serve_hub
    from ..nodes.runtime.main_loop import run_interruptible
    from ..nodes.runtime.process import log_to_stderr
    from ..pipeline.atomic_file import unwritable

    settings, resume = options.settings()
    _check(options, settings, resume)
    if options.recover is None:
        settings = make_hub_folder(settings, options.folder, resume)
    log_to_stderr()
    expected = ExpectedMembers() if options.until_empty else None
    loops = run_interruptible(
        lambda: serve_hub(
            settings,
            lambda endpoint, page: _announce(settings.folder, endpoint, page, options.announce),
            expected=expected,
            checkpoint_seconds=options.checkpoint_seconds,
            resume=resume,
        )
    )
    click.echo(_text(loops))
    if options.book is not None:
        try:
            options.book.write_text(json.dumps(_json(loops), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise unwritable(options.book, error) from error


def _check(options: HubOptions, settings: NodeSettings, resume: Path | None) -> None:
    """Check what can be checked before there is a folder; print what is lacking, or not secure.

    Raises JobFileError, and CheckpointError for what cannot be resumed.
    """
    from ..attached.hub.checkpoint import saved_model_of
    from ..nodes.runtime.settings import insecurities
    from ..pipeline.errors import JobFileError
    from ..pipeline.jobfile.extras import left_out
    from ..pipeline.jobfile.named_code import code_of, note_named_code

    note_named_code(code_of(settings.job).values())
    book = options.book
    if book is not None and not book.absolute().parent.is_dir():
        raise JobFileError("has no folder", where=f"--book {book}", remedy="make it, or give another path")
    # An address may need a key that was not given.
    settings.listen_at()
    if resume is not None and options.recover is None:
        saved_model_of(resume)
    missing = left_out(settings.job, metrics_port=settings.metrics_port, has_report=False)
    for text in (missing, *insecurities(settings)):
        if text:
            click.echo(text, err=True)


def _announce(folder: Path | None, endpoint: str, page: str, file: Path | None) -> None:
    """Say where loops join: in the hub's folder, on standard output, and in a file."""
    from ..attached.hub.folder import announce

    assert folder is not None
    announce(folder, endpoint)
    click.echo(f"loops join at {endpoint}")
    click.echo(f"folder: {folder}")
    if page:
        click.echo(f"page: {page}")
    sys.stdout.flush()
    if file is not None:
        file.write_text(endpoint, encoding="ascii")


def _text(book: LoopsReply) -> str:
    from ..pipeline.text.markdown import markdown_table

    rows = [
        (
            loop.name,
            loop.state,
            f"{loop.steps:,}",
            f"{loop.synchronized:,}",
            f"{loop.steps - loop.synchronized:,}",
            loop.why,
        )
        for loop in book.loops
    ]
    lines = markdown_table(("loop", "state", "steps", "synchronized", "not synchronized", "why"), rows)
    modules = [(m.name, m.state, f"{m.passes:,}", f"{m.lost:,}", m.why) for m in book.modules]
    if modules:
        lines += ["", *markdown_table(("module", "state", "passes", "lost with a hub", "why"), modules), ""]
    for stream in book.samples:
        lines.append(
            f"samples {stream.stream}: granted {stream.granted:,} = finished {stream.finished:,} + returned"
            f" {stream.returned:,} + held {stream.held:,}"
        )
    return "\n".join(lines)


def _json(book: LoopsReply) -> dict[str, Any]:
    import dataclasses

    return {
        "loops": [dataclasses.asdict(row) for row in book.loops],
        "samples": [dataclasses.asdict(row) for row in book.samples],
        "modules": [dataclasses.asdict(row) for row in book.modules],
    }
