"""log.json: the description of a generated click log, with exact counts of each part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, ValidationError

from ...atomic_file import write_text
from ...errors import DataError
from ...types import FrozenModel, first_fault
from .columns import ID_COLUMNS
from .teacher import MEAN_LABEL

MANIFEST_NAME: Final = "log.json"
GENERATOR_VERSION: Final = 1

DataFormat = Literal["criteo_tsv", "parquet"]
LogCompression = Literal["none", "gz", "zst"]

# Loglosses are summed as whole multiples of this, in nats, because a sum of integers does not depend on the
# order or the chunks.
_LOGLOSS_UNIT: Final = 2.0**-32


class LogFile(FrozenModel):
    """One data file: its name in the folder, examples and size."""

    name: str
    examples: NonNegativeInt
    bytes: NonNegativeInt


def teacher_ne(files: Sequence[str]) -> float | None:
    """Return the teacher's NE on these files.

    Returns None unless the files are exactly one part of a generated log.
    """
    manifests: list[LogManifest | None] = [read_manifest(path) for path in files]
    known = [manifest for manifest in manifests if manifest is not None]
    if not known or len(known) < len(manifests) or any(m != known[0] for m in known):
        return None
    names = sorted(Path(path).name for path in files)
    for part in (known[0].train, known[0].eval):
        if sorted(file.name for file in part.files) == names:
            return part.teacher_ne
    return None


class PartManifest(FrozenModel):
    """A part of the log.

    Attributes:
        files: files in the order of the examples; none if the part has no example.
        examples: rows over all files.
        positives: number of examples with label 1.
        teacher_logloss: nats; mean logloss of the teacher's true probabilities on the labels drawn.
        teacher_ne: `teacher_logloss` over the entropy of the part's mean label.
        distinct_ids: pairs of column and id that occur, missing ids not counted.
        bytes: size of all files.

    `teacher_logloss` is None without examples. `teacher_ne` is also None if all labels are the same.
    """

    files: tuple[LogFile, ...]
    examples: NonNegativeInt
    positives: NonNegativeInt
    teacher_logloss: float | None
    teacher_ne: float | None
    distinct_ids: NonNegativeInt
    bytes: NonNegativeInt


class LogManifest(FrozenModel):
    """A whole log: the parameters that made it, and its parts.

    Attributes:
        version: version of the generator; another version makes other rows from the same seed.
        click_rate: mean of the teacher's probabilities.
        reused: whether the log was there already and nothing was written; not stored.
    """

    generator: Literal["shadowsync"] = "shadowsync"
    version: Annotated[int, Field(ge=1)]
    seed: NonNegativeInt
    click_rate: float = MEAN_LABEL
    data_format: DataFormat
    compression: LogCompression
    train: PartManifest
    eval: PartManifest
    reused: Annotated[bool, Field(exclude=True)] = False

    def part_of(self, path: str | Path) -> PartManifest | None:
        """Return the part with a data file of this name, or None."""
        name = Path(path).name
        for part in (self.train, self.eval):
            if any(file.name == name for file in part.files):
                return part
        return None


def read_manifest(path_of_a_data_file: str | Path) -> LogManifest | None:
    """Return the log.json beside a data file, or None.

    Returns None when there is no log.json, when the generator did not write it, or when it does not list a
    file of this name and size. Raises DataError when the generator's log.json is damaged or of a later
    version.
    """
    path = Path(path_of_a_data_file)
    manifest = read_manifest_file(path.parent / MANIFEST_NAME)
    part = manifest.part_of(path) if manifest else None
    if part is None:
        return None
    stated = next(file.bytes for file in part.files if file.name == path.name)
    try:
        return manifest if path.stat().st_size == stated else None
    except OSError:
        return None


def read_manifest_file(path: Path) -> LogManifest | None:
    """Return the manifest at `path`; the files beside it are not checked.

    Returns None without a manifest of the generator; raises as `read_manifest`.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot be read ({error})", where=str(path), remedy="remove the log and generate it again"
        ) from None
    if '"generator"' not in text or '"shadowsync"' not in text:
        return None
    try:
        manifest = LogManifest.model_validate_json(text)
    except ValidationError as error:
        raise DataError(
            f"is damaged ({first_fault(error)})",
            where=str(path),
            remedy="remove the log and generate it again",
        ) from None
    if manifest.version > GENERATOR_VERSION:
        raise DataError(
            f"was made by version {manifest.version} of the generator; this shadowsync has version "
            f"{GENERATOR_VERSION}",
            where=str(path),
            remedy="update shadowsync, or remove the log and generate it again",
        )
    return manifest


def write_manifest(directory: Path, manifest: LogManifest) -> None:
    """Write log.json, whole or not at all; raises ResourceError."""
    write_text(directory / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")


class PartTally:
    """Count chunks of rows, in one thread; memory is one byte an id."""

    def __init__(self) -> None:
        self._examples = 0
        self._positives = 0
        self._logloss_units = 0
        # One flag an id, and one for the rank -1 of a missing id.
        self._seen = [np.zeros(column.cardinality + 1, np.bool_) for column in ID_COLUMNS]

    def add(self, labels: NDArray[np.bool_], chances: NDArray[np.float64], ranks: NDArray[np.int32]) -> None:
        """Add rows: labels [n], the teacher's probabilities [n], ranks [26, n].

        A rank of -1 is a missing id.
        """
        self._examples += len(labels)
        self._positives += int(np.count_nonzero(labels))
        losses = -np.log(np.where(labels, chances, 1.0 - chances))
        self._logloss_units += int(np.rint(losses / _LOGLOSS_UNIT).astype(np.int64).sum())
        for seen, rank in zip(self._seen, ranks, strict=True):
            seen[rank] = True

    def manifest(self, files: tuple[LogFile, ...]) -> PartManifest:
        """Return the manifest of a part with these files and counts."""
        logloss = self._logloss_units * _LOGLOSS_UNIT / self._examples if self._examples else None
        mean_entropy = self._entropy_of_mean()
        return PartManifest(
            files=files,
            examples=self._examples,
            positives=self._positives,
            teacher_logloss=logloss,
            teacher_ne=logloss / mean_entropy if logloss is not None and mean_entropy > 0 else None,
            distinct_ids=sum(int(np.count_nonzero(seen[:-1])) for seen in self._seen),
            bytes=sum(file.bytes for file in files),
        )

    def _entropy_of_mean(self) -> float:
        if self._positives in (0, self._examples):
            return 0.0
        mean = self._positives / self._examples
        return -(mean * math.log(mean) + (1.0 - mean) * math.log1p(-mean))
