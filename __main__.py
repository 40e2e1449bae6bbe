"""`python -m shadowsync` is the command line."""

from __future__ import annotations

import os
import sys

if not sys.flags.safe_path and os.path.isdir(sys.path[0]) and os.path.samefile(sys.path[0], "."):
    # `-m` puts the working directory there, where a user's queue.py would hide the module of that name.
    del sys.path[0]

from .cli import main

if __name__ == "__main__":
    main(prog_name="python -m shadowsync")
