"""The fenced blocks of a page of the documents, and how a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r'^```(\w+)(?: title="(\S+)")?\n(.*?)^```$', re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the file that it is, if it says so, and its text."""

    language: str
    file: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks, in order; fails if there is a fence that is none of them."""
    text = page.read_text("utf-8")
    blocks = [Block(*found) for found in FENCE.findall(text)]
    assert text.count("```") == 2 * len(blocks)
    return blocks


def run_blocks(blocks: Iterable[Block], folder: Path) -> list[str]:
    """Does a page in `folder`, as a reader would: writes its files, runs its blocks; what these said."""
    said = []
    for block in blocks:
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
            continue
        done = run_block(block, folder, 120.0)
        assert done.returncode == 0, block.text + done.stdout + done.stderr
        said.append(done.stdout)
    return said


def run_block(block: Block, folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a block of Python or of a shell in `folder`, with the commands of this environment on the path."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    command = [sys.executable, "-W", "error", "-"] if block.language == "python" else ["bash", "-e", "-s"]
    return subprocess.run(
        command,
        input=block.text,
        cwd=folder,
        env=environment | {"PATH": tools},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
