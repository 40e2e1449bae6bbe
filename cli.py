"""The command line, which imports lazily, so that --help needs no torch."""

from __future__ import annotations

from .commands.interrupts import end_at_interrupt, raise_at_interrupt

# The imports take most of a command's first second.
end_at_interrupt()

import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from . import __version__
from .commands.algos import algos
from .commands.data.generate import generate
from .commands.data.prepare import prepare
from .commands.hub import hub
from .commands.jobs.check import check
from .commands.jobs.init import init
from .commands.jobs.profile import profile
from .commands.jobs.resume import resume
from .commands.jobs.run import run
from .commands.jobs.runs import runs
from .commands.key import key
from .commands.lab.chaos import chaos
from .commands.lab.compare import compare
from .commands.lab.plan import plan
from .commands.lab.simulate import simulate
from .commands.models.evaluate import evaluate
from .commands.models.export import export
from .commands.models.importance import importance
from .commands.models.merge import merge
from .commands.models.predict import predict
from .commands.models.serve import serve
from .commands.node_commands import coordinator, embedding, reader, sync, trainer
from .commands.output import ignore_unread_output, name_full_output, open_missing_streams
from .commands.render import render
from .commands.running import health, scale, stop, top

if TYPE_CHECKING:
    from .pipeline.errors import ShadowSyncError

TRAINING = (
    *("run", "resume", "profile", "hub", "compare", "chaos"),
    *("coordinator", "embedding", "reader", "sync", "trainer"),
)
# What they print tells of files or answers, which are there whoever reads it.
WRITING = ("export", "generate", "init", "merge", "predict", "prepare", "serve")

REMOVED_COMMANDS = {
    "tune": "was removed: on real jobs it showed no gain over settings at random; search with Optuna, as in"
    " docs/lab.md#settings-found-by-trials",
    "render rayjob": "was removed: no KubeRay ever ran what it printed; give `render kubernetes`, or start a"
    " Ray cluster and submit the job to it, as in docs/deploy.md#ray",
}
"""Commands that are gone, with the name of their group, and what to do about each."""

EXIT_CODES = """\b
Exit codes:
  0    finished
  1    an error of shadowsync itself; the node's log has the traceback
  2    the job file or the command line cannot be used
  3    the input, or a checkpoint, cannot be used
  4    the nodes could not form the job
  5    finished although a node died
  6    stopped because a node died
  7    the ledger does not add up
  8    something did not fit (memory, disk, open files), a storage does not answer, or the run folder is gone
  130  interrupted; a checkpoint was written if training had begun
"""


class Commands(click.Group):
    """A group of commands that reports errors as one line and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        end_at_interrupt()
        open_missing_streams()
        name_full_output()
        from .pipeline.errors import ResourceError

        try:
            return super().main(*args, **kwargs)
        except ResourceError as error:
            # Of --help and --version, which print before there is a command.
            click.echo(f"shadowsync: {error}", err=True)
            sys.exit(int(error.exit_code))
        finally:
            raise_at_interrupt()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; what trains or writes files needs no reader."""
        for name in (" ".join(args[:words]) for words in (1, 2)):
            if name in REMOVED_COMMANDS:
                ctx.fail(f"{name} {REMOVED_COMMANDS[name]}")
        resolved = super().resolve_command(ctx, args)
        if resolved[0] in (*TRAINING, *WRITING):
            ignore_unread_output()
        return resolved

    def invoke(self, ctx: click.Context) -> Any:
        from .pipeline.errors import ExitCode, ShadowSyncError
        from .pipeline.open_files import raise_limit, too_many_files
        from .pipeline.text.format import is_unicode

        raise_at_interrupt()
        # Process 1, as in a container, has no default action for SIGTERM and would go on.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        raise_limit()
        try:
            return super().invoke(ctx)
        except ShadowSyncError as error:
            _fail(ctx, too_many_files(error) or error)
        except UnicodeEncodeError as error:
            # Others are faults of this program.
            if is_unicode(error.object) and error.encoding != sys.getfilesystemencoding():
                raise
            said = f"{error.object!r} cannot be used here, since it is not text in {error.encoding}"
            remedy = "rename it, or give another path; in an ASCII locale set LC_ALL=C.UTF-8"
            click.echo(f"shadowsync {ctx.invoked_subcommand or ''}: {said}; {remedy}", err=True)
            sys.exit(int(ExitCode.USAGE))
        except Exception as error:
            if (named := too_many_files(error)) is not None:
                _fail(ctx, named)
            # Pydantic makes one of an interrupt while it builds a class.
            if not str(error).rstrip().endswith("KeyboardInterrupt:"):
                raise
            click.echo(f"shadowsync {ctx.invoked_subcommand or ''}: interrupted", err=True)
            sys.exit(int(ExitCode.INTERRUPTED))
        except KeyboardInterrupt:
            # Nodes handle the signal themselves; this is for the commands that are not nodes.
            click.echo(f"shadowsync {ctx.invoked_subcommand or ''}: interrupted", err=True)
            sys.exit(int(ExitCode.INTERRUPTED))


def _fail(ctx: click.Context, error: ShadowSyncError) -> NoReturn:
    click.echo(f"shadowsync {ctx.invoked_subcommand or ''}: {error}", err=True)
    sys.exit(int(error.exit_code))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="shadowsync")
def main() -> None:
    """Train recommendation models on many machines while they synchronize in the background."""


COMMANDS = (
    *(algos, chaos, check, compare, evaluate, export, generate, health, hub, importance, init, key),
    *(merge, plan, predict, prepare, profile, render, resume, run, runs, scale, serve, simulate, stop, top),
    *(coordinator, embedding, reader, sync, trainer),
)
for command in COMMANDS:
    main.add_command(command)

raise_at_interrupt()

if __name__ == "__main__":
    main()
