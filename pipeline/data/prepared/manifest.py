"""manifest.json: the content of a prepared folder.

The manifest is written last, so a folder without one is not complete.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from ...errors import DataError
from ...types import FrozenModel, first_fault
from ..files.paths import is_url, open_raw, read_errors
from ..hashing import HASH_SEED, HASH_VERSION
from ..span import SpanKind

MANIFEST_NAME: Final = "manifest.json"
FORMAT_VERSION: Final = 3
"""Of the folders that are written; those of 1 and 2, which have no keys or weights, are read too."""
KEY_TYPES: Final = ("uint64", "list<uint64>")
"""The types of columns that have keys of growing tables, and not rows."""
HASH_NAME: Final = "splitmix64 of 8-byte words, multiply-shift"

DataRole = Literal["train", "validation", "test"]
ROLES: Final[tuple[DataRole, ...]] = ("train", "validation", "test")
PATH_KEYS: Final[dict[DataRole, str]] = {
    "train": "path",
    "validation": "validation_path",
    "test": "eval_path",
}
"""The key of [data] that names the files of each role."""

_NAME = re.compile(r"[a-z]+-\d{5,}\.parquet")
_AGAIN = "prepare it again, with --force"


class HashSettings(FrozenModel):
    """The hash from ids to rows, see `pipeline.data.hashing`; `seed` is in hex."""

    name: str = HASH_NAME
    version: int = HASH_VERSION
    seed: str = f"{HASH_SEED:#x}"


class SourceFile(FrozenModel):
    """A file that rows came from.

    `modified_ns` is the time of its last change, in ns since 1970; None for a URL.
    """

    path: str
    role: DataRole
    bytes: NonNegativeInt | None
    modified_ns: int | None = None


class PreparationSettings(FrozenModel):
    """The settings and files of a preparation.

    Preparations with equal settings and files make the same rows and parts.

    Attributes:
        data: the keys of [data] that say what a row is, resolved.
        tables: rows of each table by name, in the order of the job; the most rows of a growing one.
        growing: names of the tables that grow.
        paths: the patterns of each role's files.
        span_bytes: the `data.span_bytes` with which the source was cut.
        files: the files that matched.
    """

    hash: HashSettings = HashSettings()
    data: dict[str, Any]
    tables: dict[str, Annotated[int, Field(ge=1, lt=2**31)]]
    paths: dict[DataRole, list[str]]
    span_bytes: int
    files: tuple[SourceFile, ...]
    growing: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _as_before(self, settings: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Settings without growing tables have the digest that they had before there were any.
        tree: dict[str, Any] = settings(self)
        return tree if self.growing else {key: value for key, value in tree.items() if key != "growing"}

    @property
    def digest(self) -> str:
        """Return the hex SHA-256 of these settings, which each part has too."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class PreparedColumn(FrozenModel):
    """A column of the parts, described for readers without shadowsync.

    Attributes:
        kind: kind as in [data.columns]; "categorical" for buckets and crosses; "item_weights" for the weights
            of the ids of a multi-hot column, which come in the order of these columns.
        source: the column of the source; "" for a cross.
        stored: type of the column in the parts.
        transform: how a number or a time was changed before it was stored, in words; "" for no change.
        table_rows: rows of the column's table, the most of a growing one; None without a table.
        hash_column: number with which the column's ids are hashed; None without a table, and for parts of
            times and buckets, which have no hash.
        pooling: pooling of a multi-hot column.
    """

    name: str
    kind: str
    source: str
    stored: str
    transform: str = ""
    table_rows: int | None = None
    hash_column: int | None = None
    pooling: str = ""

    @property
    def has_keys(self) -> bool:
        """Whether the column has keys, the 64-bit hashes of its ids, and not rows."""
        return self.stored in KEY_TYPES


class PreparedPart(FrozenModel):
    """One Parquet file of a prepared folder.

    A part has good rows of a piece of a source file, in their order, `first_row` first. Its name has no
    folder.
    """

    name: Annotated[str, Field(pattern=rf"^{_NAME.pattern}$")]
    role: DataRole
    source: str
    kind: SpanKind
    start: NonNegativeInt
    stop: NonNegativeInt
    first_row: NonNegativeInt
    rows: NonNegativeInt
    row_groups: NonNegativeInt
    bytes: NonNegativeInt
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RoleSummary(FrozenModel):
    """The rows of a role, and its bad rows with samples."""

    role: DataRole
    rows: NonNegativeInt
    positives: NonNegativeInt
    bad_rows: NonNegativeInt
    bad_samples: tuple[str, ...] = ()


class PreparedManifest(FrozenModel):
    """The content of a prepared folder.

    Attributes:
        order_digest: the SHA-256 of `order`, which each part has too.
        digest: the SHA-256 of everything else here. This includes the SHA-256 of each part, so two folders
            with equal digests have the same rows.
    """

    format: Literal["shadowsync-prepared"] = "shadowsync-prepared"
    version: Annotated[int, Field(ge=1)] = FORMAT_VERSION
    order_digest: str
    order: PreparationSettings
    columns: tuple[PreparedColumn, ...]
    roles: tuple[RoleSummary, ...]
    id_classes: dict[str, Literal["text", "integer"]] = Field(default_factory=dict)
    parts: tuple[PreparedPart, ...]
    digest: str = ""

    @property
    def content_digest(self) -> str:
        """Return the value that `digest` must have."""
        text = json.dumps(self.model_dump(mode="json", exclude={"digest"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def sealed(self) -> PreparedManifest:
        """Return the same manifest, with its digest."""
        return self.model_copy(update={"digest": self.content_digest})

    @property
    def rows(self) -> int:
        """Return the number of rows of all roles."""
        return sum(role.rows for role in self.roles)

    @property
    def bad_rows(self) -> int:
        """Return the number of bad rows in the sources, which are in no part."""
        return sum(role.bad_rows for role in self.roles)


def in_folder(folder: str, name: str) -> str:
    """Return the path or URL of a file of a prepared folder."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder) / name)


def read_prepared(folder: str) -> PreparedManifest:
    """Return the manifest of a prepared folder, given by path or URL.

    Raises DataError for a manifest that is absent, damaged, changed, or of a later version.
    """
    path = in_folder(folder, MANIFEST_NAME)
    if not is_url(folder) and not Path(path).exists():
        raise DataError(
            f"has no {MANIFEST_NAME}: it is not a prepared folder, or its preparation is not finished",
            where=folder,
            remedy="run shadowsync prepare; it continues where it stopped",
        )
    with read_errors(path), open_raw(path) as file:
        text = file.read()
    return parse_manifest(text, path)


def source_files(files: list[str]) -> list[str]:
    """Return the files that the rows of `files` come from, each once.

    A part of a prepared folder is replaced by the file from which it was made; other files stay as they are.
    Raises DataError as `read_prepared`.
    """
    paths: dict[str, None] = {}
    folders: dict[str, dict[str, str]] = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        if folder not in folders:
            folders[folder] = {}
            if not is_url(folder) and _NAME.fullmatch(name) and (Path(folder) / MANIFEST_NAME).exists():
                folders[folder] = {part.name: part.source for part in read_prepared(folder).parts}
        paths[folders[folder].get(name, file)] = None
    return list(paths)


def parse_manifest(text: bytes, where: str) -> PreparedManifest:
    """Return the manifest in `text`; raises DataError as `read_prepared` does."""
    try:
        tree = json.loads(text)
        stated = tree.get("format"), tree.get("version")
    except (ValueError, AttributeError) as error:
        raise DataError(f"is damaged ({error})", where=where, remedy=_AGAIN) from None
    if stated[0] != "shadowsync-prepared":
        raise DataError("is not a manifest of shadowsync prepare", where=where, remedy="give another folder")
    if not isinstance(stated[1], int) or stated[1] > FORMAT_VERSION:
        raise DataError(
            f"has version {stated[1]!r:.40}; this shadowsync reads versions up to {FORMAT_VERSION}",
            where=where,
            remedy=f"update shadowsync, or {_AGAIN}",
        )
    try:
        manifest = PreparedManifest.model_validate(tree)
    except ValidationError as error:
        raise DataError(f"is damaged ({first_fault(error)})", where=where, remedy=_AGAIN) from None
    if manifest.order.digest != manifest.order_digest:
        raise DataError("was changed: its order does not match order_digest", where=where, remedy=_AGAIN)
    if manifest.content_digest != manifest.digest:
        raise DataError("was changed: its content does not match digest", where=where, remedy=_AGAIN)
    for role in manifest.roles:
        rows = sum(part.rows for part in manifest.parts if part.role == role.role)
        if rows != role.rows:
            raise DataError(
                f"its {role.role} parts have {rows} rows, but it states {role.rows}",
                where=where,
                remedy=_AGAIN,
            )
    return manifest
