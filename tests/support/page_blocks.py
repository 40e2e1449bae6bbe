"""The fenced blocks of a page of the documents, and how a reader would run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .jobs.processes import Starter

SECONDS = 120.0
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


def run_blocks(blocks: Iterable[Block], folder: Path, starter: Starter) -> list[str]:
    """Does a page in the starter's folder: writes its files, runs its blocks; what these said."""
    said = []
    for block in blocks:
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
            continue
        code, text = run_block(block, folder, starter)
        assert code == 0, block.text + text
        said.append(text)
    return said


def run_block(block: Block, folder: Path, starter: Starter) -> tuple[int, str]:
    """Runs a block: Python, with warnings as errors, or commands of `shadowsync` up to the first that fails.

    Gives the last exit code, and what was said.
    """
    if block.language == "python":
        script = folder / "block.py"
        script.write_text(f"import warnings; warnings.simplefilter('error')\n{block.text}", encoding="utf-8")
        process = starter.fork("block", script=script)
        return process.wait(SECONDS), process.text()
    said = ""
    for line in block.text.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "shadowsync", line
        process = starter.fork(*arguments)
        code = process.wait(SECONDS)
        said += process.text()
        if code:
            return code, said
    return 0, said
