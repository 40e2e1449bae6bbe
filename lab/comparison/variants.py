"""The variants that are compared (`name`, `name@k`, `name:key=value@k`) and their jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...nodes.sync_rules import with_sync_nodes
from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ...pipeline.jobfile.load import override_value, validate_job, without_one_trainer_sync

REFERENCE: Final = "one trainer"
NO_SYNC: Final = "none"
_EXAMPLE: Final = "write name, name@5 for a fixed rate, or name:key=value@5 with options"


def require_several_trainers(counts: Sequence[int], option: str) -> None:
    """Raise JobFileError unless some run has trainers that synchronize.

    `option` says how to have more.
    """
    if max(counts) == 1:
        raise JobFileError(
            "trainer.count: 1; one trainer has no other to synchronize with, so under each algorithm it would"
            " be the same run",
            remedy=f"give more trainers: {option}",
        )


@dataclass(frozen=True)
class Variant:
    """One way to synchronize.

    Attributes:
        label: its name on the pages, unique in the comparison.
        algorithm: the algorithm's name, or its class as in a job file.
        every: iterations between two rounds at a fixed rate; None in shadow mode.
        options: the keys of `sync.options` that were given.
    """

    label: str
    algorithm: str
    every: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


def parse_variants(text: str) -> list[Variant]:
    """Parse the comma-separated value of `--algorithms`.

    A comma inside brackets or quotes belongs to an option's value. A variant that is given twice gets two
    labels, so that the spread can be seen. Raises JobFileError.
    """
    if not text.isprintable():
        raise JobFileError(f"--algorithms: {text!r} has a character that cannot be printed", remedy=_EXAMPLE)
    written = [part.strip() for part in _split(text)]
    if not any(written):
        raise JobFileError("--algorithms: no algorithm given", remedy=_EXAMPLE)
    variants: list[Variant] = []
    taken = {REFERENCE}
    for part in written:
        label, number = part, 1
        while label in taken:
            number += 1
            label = f"{part} ({number})"
        taken.add(label)
        variants.append(_parse_variant(part, label))
    return variants


def variant_job(base: Job, variant: Variant, seed: int, name: str, directory: str) -> Job:
    """Build the job of a variant: `base` with another `sync`.

    The options of `base` belong to its own algorithm, so only variants of that algorithm start from them;
    none does from those that one trainer has by default. Raises JobFileError.
    """
    tree = without_one_trainer_sync(base.model_dump())
    sync = tree["sync"]
    base_options = sync.get("options", {}) if variant.algorithm == sync.get("algorithm") else {}
    tree["sync"] |= {
        "algorithm": variant.algorithm,
        "mode": "shadow" if variant.every is None else "fixed",
        "options": {**base_options, **variant.options},
    }
    if variant.every is not None:
        tree["sync"]["every"] = variant.every
    tree["run"] |= {"seed": seed, "name": name, "directory": directory}
    return with_sync_nodes(validate_job(tree, where="the job"), may_import=True)


def reference_job(base: Job, seed: int, name: str, directory: str) -> Job:
    """Build the job of one trainer without synchronization, with the same workers."""
    tree = base.model_dump()
    tree["sync"] |= {"algorithm": NO_SYNC, "options": {}}
    tree["trainer"]["count"] = 1
    tree["run"] |= {"seed": seed, "name": name, "directory": directory}
    return with_sync_nodes(validate_job(tree, where="the job"), may_import=True)


def slug(label: str) -> str:
    """Turn a label into the start of a folder's name; not unique."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-._")[:60] or "cell"


def _parse_variant(text: str, label: str) -> Variant:
    body, separator, rate = text.rpartition("@")
    every: int | None = None
    if not separator:
        body = text
    elif not rate.isascii() or not rate.isdigit() or int(rate) < 1:
        what = f"the rate {rate!r} in {text!r} is not a whole number above 0"
        raise JobFileError(f"--algorithms: {what}", remedy=_EXAMPLE)
    else:
        every = int(rate)
    # A plug-in's own name has a colon: package.module:Class.
    parts = body.split(":")
    first = next((index for index, part in enumerate(parts) if "=" in part), len(parts))
    name = ":".join(parts[:first]).strip()
    if not name or any("=" not in part for part in parts[first:]):
        raise JobFileError(f"--algorithms: {text!r} is not an algorithm with options", remedy=_EXAMPLE)
    options: dict[str, Any] = {}
    for part in parts[first:]:
        key, _, raw = part.partition("=")
        if not key.strip() or key.strip() in options:
            raise JobFileError(f"--algorithms: {text!r} has an empty or repeated key", remedy=_EXAMPLE)
        options[key.strip()] = override_value(raw)
    return Variant(label, name, every, options)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    piece = r"""(?:\[[^\]]*\]|"[^"]*"|'[^']*'|[^,\["'])+"""
    if rest := re.sub(piece, "", text).strip(", "):
        raise JobFileError(f"--algorithms: the bracket or quote {rest!r} is not closed", remedy=_EXAMPLE)
    return re.findall(piece, text)
