"""A node that speaks another version of the protocol; its arguments are those of the command line."""

from __future__ import annotations

from shadowsync.cli import main
from shadowsync.pipeline.wire import frames

# The name in `frames`, which has read the package's already.
frames.PROTOCOL_VERSION += 1
main(prog_name="shadowsync")
