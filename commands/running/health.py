"""`shadowsync health`: a check of this container's node."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..options import NumberRange


@click.command()
@click.argument("path", metavar="[PATH]", envvar="SHADOWSYNC_HEALTH", type=click.Path(path_type=Path))
@click.option("--timeout", default=5.0, show_default=True, type=NumberRange(min=0, min_open=True))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the node's figures.")
def health(path: Path, timeout: float, as_json: bool) -> None:
    """Ask the node at the Unix socket PATH whether it is healthy.

    PATH defaults to SHADOWSYNC_HEALTH, which also tells a node where to answer. The exit code is 0 for a
    coordinator that answers, and for a node that is in its job and received something from the coordinator
    recently. Otherwise it is 1, also if nothing answers for --timeout seconds.
    """
    import json
    from dataclasses import asdict

    from ...nodes.runtime.health import request_health

    reply = request_health(path, timeout)
    click.echo(json.dumps(asdict(reply)) if as_json else reply.text, err=not reply.healthy)
    sys.exit(0 if reply.healthy else 1)
