"""Loading and validation of job files.

The steps are: TOML, `--set` overrides, patterns of columns, keys of a prepared folder, then validation. Each
failure is a JobFileError of one line.
"""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ..config.column_kinds import KINDS
from ..config.job import ONE_TRAINER_SYNC, Job
from ..config.kafka import PATH_SETTINGS
from ..config.network import REMOVED_CODECS
from ..config.storage_url import is_url
from ..data.files.paths import pattern_in
from ..data.prepared.agreement import check_agreement
from ..data.prepared.manifest import PATH_KEYS, PreparedManifest, read_prepared
from ..errors import JobFileError
from ..text.format import is_unicode
from ..types import TRAINING_ITEMS
from .boundaries import compute_boundaries, fill_boundaries
from .patterns import expand_by_files, expand_patterns

PATHS = ("path", "validation_path", "eval_path")
"""Keys of `[data]` that name files."""

_NO_CACHE: Final = "was removed: workers keep no copies of rows, which never won; delete the key"
_NO_CONTROL: Final = "was removed: it won little over a fixed gap, at more bytes, and lost on skewed data"

REMOVED_KEYS: dict[str, str] = {
    "trainer.worker_kind": "was removed: workers are threads; delete the key, and where their interpreter's"
    " lock limits them start more trainers: trainer.count = 2",
    "trainer.cache_rows": _NO_CACHE,
    "trainer.cache_staleness": _NO_CACHE,
    "trainer.balance": "was removed: it showed no gain over what readers do, who give a slow trainer fewer"
    ' batches; delete the key, or set sync.algorithm = "decoupled", whose merges weigh by examples',
    "sync.control": f"{_NO_CONTROL}; delete the key, and set sync.gap and sync.duty, or on a slow link"
    ' codecs.center_up = "int8"',
    "sync.control_bound": f"{_NO_CONTROL}; delete the key",
    "sync.control_max_gap": f"{_NO_CONTROL}; delete the key, and set sync.gap",
    "network.emulation": "was removed: there is one way to emulate a slow network; delete the key, and give"
    " network.delay or network.bandwidth",
}
"""Keys that are gone but that run folders and checkpoints still have, and what to do about each.

A job file with such a key is refused, whatever its value; a saved job is read without it."""

_OTHER_FORMS: Final[Mapping[tuple[int | str, ...], tuple[str, type]]] = {
    ("model", "table_rows"): ("list[", list),
    ("trainer", "credit"): ("literal[", str),
    ("trainer", "lookups_ahead"): ("literal[", str),
}
"""Keys of a number or of another form: how pydantic's name of that form begins, and its type."""

EARLIER_VALUES: Final[Mapping[str, Any]] = {"data.split.draw_by": "name"}
"""What saved jobs without these keys mean, where it is not the default: they were made before the key was."""


def load_job(path: str | Path, overrides: Iterable[str] = ()) -> Job:
    """Load and validate the job file at `path`.

    Each `section.key=value` of `overrides` is applied before the validation.

    Relative paths of input files, checkpoints, algorithms and models ("./mine.py:Class"), and of folders of
    rows, are relative to the folder of the job file; those in `overrides` are relative to the working
    directory, as in a shell. `run.name` defaults to the file's stem. With `data.prepared`, keys that the file
    leaves out come from the folder's manifest. Patterns of `data.columns` are replaced by the names that they
    match, and buckets by quantiles get their boundaries.

    Raises:
        JobFileError: the file does not exist, is not TOML, has a wrong key or value, or disagrees with its
            prepared folder.
        DataError: the prepared folder has no usable manifest, or the files of a job with patterns or
            quantiles cannot be read.
    """
    file = Path(path)
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise JobFileError(
            "no such job file", where=str(file), remedy="give the path of a TOML file"
        ) from error
    except OSError as error:
        raise JobFileError(
            f"cannot be read ({error.strerror})", where=str(file), remedy="give the path of a TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobFileError(f"is not valid TOML ({error})", where=str(file)) from error
    return _resolve(tree, file.resolve().parent, file.stem, overrides, str(file))


def job_of_tree(tree: Mapping[str, Any], overrides: Iterable[str] = (), folder: Path | None = None) -> Job:
    """Validate the job that a dict of sections describes.

    `tree` is treated as the content of a job file in `folder`, by default the working directory.

    Raises:
        JobFileError, DataError: see `load_job`.
    """
    return _resolve(copy.deepcopy(dict(tree)), folder or Path.cwd(), "job", overrides, "the job")


def load_resolved(path: str | Path) -> Job:
    """Load the resolved job, `job.json`, of a run folder.

    Raises JobFileError for a file that cannot be read or is not a valid job.
    """
    try:
        tree = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise JobFileError(
            f"cannot be read ({error.strerror})", where=str(path), remedy="give a run's job.json"
        ) from error
    except ValueError as error:
        raise JobFileError(f"is not valid JSON ({error})", where=str(path)) from error
    if not isinstance(tree, dict):
        raise JobFileError("is not a JSON object", where=str(path), remedy="give a run's job.json")
    return validate_saved_job(tree, where=str(path))


def validate_saved_job(tree: dict[str, Any], *, where: str) -> Job:
    """Validate the job of a run folder or checkpoint.

    Raises:
        JobFileError: see `validate_job`.
    """
    return validate_job(with_present_keys(tree), where=where)


def with_present_keys(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a saved job without `REMOVED_KEYS` and codecs, and with `EARLIER_VALUES` where it has none."""
    tree = copy.deepcopy(dict(saved))
    for key, value in EARLIER_VALUES.items():
        *sections, name = key.split(".")
        section: Any = tree
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.setdefault(name, value)
    for key in REMOVED_KEYS:
        section, _, name = key.partition(".")
        if isinstance(tree.get(section), dict):
            tree[section].pop(name, None)
    if isinstance(codecs := tree.get("codecs"), dict):
        tree["codecs"] = {key: value for key, value in codecs.items() if value not in REMOVED_CODECS}
    return tree


def without_one_trainer_sync(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a resolved job without the default algorithm of one trainer.

    With more trainers it then has theirs.
    """
    sync, trainer = saved.get("sync", {}), saved.get("trainer", {})
    chosen = {key: sync.get(key) for key in ONE_TRAINER_SYNC}
    if trainer.get("count") != 1 or chosen != ONE_TRAINER_SYNC:
        return dict(saved)
    return {**saved, "sync": {key: value for key, value in sync.items() if key not in ONE_TRAINER_SYNC}}


def validate_job(tree: dict[str, Any], *, where: str) -> Job:
    """Validate the job that `tree` describes.

    Raises JobFileError with the first few mistakes.
    """
    _require_plain(tree, "", where)
    try:
        return Job.model_validate(tree)
    except ValidationError as error:
        details = [detail for detail in error.errors() if not _is_other_branch(detail)]
        shown = [_explain(detail) for detail in details[:5]]
        more = len(details) - len(shown)
        text = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
        raise JobFileError(text, where=where) from error


def _require_plain(value: Any, key: str, where: str) -> None:
    """Raise JobFileError for a text that no message can hold, and for a date or time, which no key takes."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _require_plain(item, f"{key}.{name}".removeprefix("."), where)
    elif isinstance(value, str) and not is_unicode(value):
        remedy = "rename the file or its folder; in an ASCII locale set LC_ALL=C.UTF-8"
        raise JobFileError(f"{key}: {value!r} given, which is not UTF-8", where=where, remedy=remedy)
    elif isinstance(value, date | time):
        raise JobFileError(f"{key}: {value} given", where=where, remedy="write it as text, in quotes")


def override_value(raw: str) -> Any:
    """Parse the value of an override as TOML.

    Anything else is text, and so are several lines, and dates and times.
    """
    try:
        tree = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    value = tree["value"]
    return raw if len(tree) > 1 or isinstance(value, date | time) else value


def fill_from_prepared(tree: dict[str, Any], where: str) -> PreparedManifest | None:
    """Fill in missing keys of a job file from its prepared folder.

    `tree` is not validated yet, and is changed in place. Patterns of columns are compared with the folder's
    columns. Returns the folder's manifest, or None, with nothing changed, if the job has no `data.prepared`.
    Raises DataError as `read_prepared`, JobFileError as `expand_patterns`.
    """
    data = tree.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("prepared"), str) or not data["prepared"]:
        return None
    manifest = read_prepared(data["prepared"])
    if isinstance(data.get("columns"), dict):
        # By the manifest's names, because the source may no longer exist.
        data["columns"] = expand_patterns(data["columns"], _names_in_source(manifest), where)
        fill_boundaries(data["columns"], manifest.order.data.get("columns", {}))
    in_file = {key: data[key] for key in ("columns", "categorical_features") if key in data}
    for key, value in manifest.order.data.items():
        data.setdefault(key, value)
    for role, paths in manifest.order.paths.items():
        if paths and not _has_split(data.get("split"), role):
            data.setdefault(PATH_KEYS[role], paths)
    model = tree.setdefault("model", {})
    if isinstance(model, dict) and "table_rows" not in model and _same_tables(in_file, manifest):
        rows = list(manifest.order.tables.values())
        model["table_rows"] = rows[0] if len(set(rows)) == 1 else rows
        model.setdefault("table_kind", "hashed")
        sections = tree.setdefault("tables", {})
        for name in manifest.order.growing:
            if isinstance(sections, dict) and isinstance(section := sections.setdefault(name, {}), dict):
                section.setdefault("kind", "growing")
    return manifest


def _resolve(tree: dict[str, Any], base: Path, name: str, overrides: Iterable[str], where: str) -> Job:
    _absolute_paths(tree, base)
    changed: dict[str, Any] = {}
    for text in overrides:
        _apply_override(changed, text)
    _absolute_paths(changed, Path.cwd())
    _expand_columns(tree)
    _merge(tree, changed)
    run = tree.setdefault("run", {})
    if isinstance(run, dict):
        run.setdefault("name", name)
    manifest = fill_from_prepared(tree, where)
    if manifest is None:
        expand_by_files(tree.get("data"), where)
        compute_boundaries(tree)
    job = validate_job(tree, where=f"{where} and --set" if changed else where)
    if manifest is not None:
        check_agreement(job, manifest)
    return job


def _has_split(split: Any, role: str) -> bool:
    """Return whether the split takes this role's rows from the training files."""
    return isinstance(split, dict) and bool(split.get(role) or split.get(f"{role}_from") is not None)


def _names_in_source(manifest: PreparedManifest) -> list[str]:
    """Return the names of the source's columns that a preparation used."""
    columns: dict[str, Any] = manifest.order.data.get("columns", {})
    in_file = [name for name, kind in KINDS.items() if kind.in_file]
    read = {name: column for name, column in columns.items() if column.get("kind") in in_file}
    return list(dict.fromkeys(column.get("source") or name for name, column in read.items()))


def _same_tables(in_file: Mapping[str, Any], manifest: PreparedManifest) -> bool:
    """Return whether the job file's columns have the folder's tables, in the same order.

    Without columns only the number of tables is compared.
    """
    columns = in_file.get("columns")
    if isinstance(columns, dict):
        stated = {
            name: value if isinstance(value, dict) else {"kind": value} for name, value in columns.items()
        }
        with_table = [name for name, kind in KINDS.items() if kind.has_table]
        tables = {
            value.get("table") or name: None
            for name, value in stated.items()
            if value.get("kind") in with_table
        }
        return list(tables) == list(manifest.order.tables)
    count: Any = in_file.get("categorical_features", len(manifest.order.tables))
    return bool(count == len(manifest.order.tables))


def _expand_columns(tree: dict[str, Any]) -> None:
    """Expand `NAME = "dense"` to `NAME = { kind = "dense" }`.

    Overrides can then add keys.
    """
    data = tree.get("data")
    columns = data.get("columns") if isinstance(data, dict) else None
    if isinstance(columns, dict):
        for name, value in columns.items():
            if isinstance(value, str):
                columns[name] = {"kind": value}


def _merge(tree: dict[str, Any], changed: dict[str, Any]) -> None:
    for key, value in changed.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _apply_override(changed: dict[str, Any], text: str) -> None:
    key, equals, raw = text.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise JobFileError(
            f"--set {text!r} cannot be used", remedy="write section.key=value, for example trainer.workers=2"
        )
    value = override_value(raw)
    # A file name that looks like a number must stay text.
    if len(parts) == 2 and parts[0] == "data" and parts[1] in PATHS and not isinstance(value, str | list):
        value = raw
    node = changed
    for depth, part in enumerate(parts[:-1], start=1):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise JobFileError(
                f"--set {text!r} cannot be used",
                remedy=f"another --set gives {'.'.join(parts[:depth])} a value; give one of the two",
            )
    node[parts[-1]] = value


def _absolute_paths(tree: dict[str, Any], base: Path) -> None:
    for section, key in (("sync", "algorithm"), ("model", "name")):
        keys = tree.get(section)
        if isinstance(keys, dict) and isinstance(keys.get(key), str):
            file, colon, name = keys[key].rpartition(":")
            if colon and (file.endswith(".py") or "/" in file):
                keys[key] = f"{(base / file).resolve()}:{name}"
    start = tree.get("start")
    checkpoint = start.get("checkpoint") if isinstance(start, dict) else None
    if isinstance(start, dict) and isinstance(checkpoint, str) and checkpoint and not is_url(checkpoint):
        start["checkpoint"] = str((base / checkpoint).resolve())
    validation = tree.get("validation")
    items = validation.get("items") if isinstance(validation, dict) else None
    if isinstance(validation, dict) and isinstance(items, str) and items and items != TRAINING_ITEMS:
        validation["items"] = _absolute_pattern(base, items)
    tables = tree.get("tables")
    for section in (tree.get("embedding"), *(tables.values() if isinstance(tables, dict) else ())):
        if isinstance(section, dict) and isinstance(section.get("folder"), str) and section["folder"]:
            section["folder"] = str(base / section["folder"])
    data = tree.get("data")
    if not isinstance(data, dict):
        return
    if isinstance(data.get("prepared"), str) and data["prepared"]:
        data["prepared"] = _absolute(base, data["prepared"])
    for key in PATHS:
        value = data.get(key)
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list):
            data[key] = [_absolute_pattern(base, item) if isinstance(item, str) else item for item in value]
    if isinstance(kafka := data.get("kafka"), dict):
        paths = {key: value for key, value in kafka.items() if key in PATH_SETTINGS and value}
        kafka |= {key: str(base / value) for key, value in paths.items() if isinstance(value, str)}


def _absolute(base: Path, path: str) -> str:
    # A URL is already absolute.
    return path if "://" in path else str(base / path)


def _absolute_pattern(base: Path, pattern: str) -> str:
    return pattern if "://" in pattern else str(Path(pattern_in(str(base), pattern)))


def _is_other_branch(detail: ErrorDetails) -> bool:
    """Return whether an error concerns the form of a key of `_OTHER_FORMS` that was not given."""
    location = detail["loc"]
    if (other := _OTHER_FORMS.get(location[:-1])) is None:
        return False
    prefix, kind = other
    return str(location[-1]).startswith(prefix) != isinstance(detail["input"], kind)


def _explain(detail: ErrorDetails) -> str:
    names = [str(part) for part in detail["loc"]]
    for place in _OTHER_FORMS:
        if detail["loc"][: len(place)] == place:
            # The next element is pydantic's name of the form.
            del names[len(place) : len(place) + 1]
    key = ".".join(names)
    value, kind = detail["input"], detail["type"]
    if kind == "extra_forbidden" and key in REMOVED_KEYS:
        return f"{key}: {REMOVED_KEYS[key]}"
    if kind == "extra_forbidden":
        known = _known_keys(names[:-1])
        close = difflib.get_close_matches(names[-1], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    if kind == "missing":
        return f"{key}: is missing; give it a value" if len(names) > 1 else f"[{key}]: is missing; add it"
    if kind == "model_type":
        return f"{key}: {value!r} given; it is a section, write [{key}] and its keys below"
    if kind == "value_error":
        said = detail["msg"].removeprefix("Value error, ")
        # A table's section does not know its name.
        return f"{key}.{said}" if len(names) == 2 and names[0] == "tables" else said
    if kind == "invalid-json-value":
        return f"{key}: {value} given; write it as text, in quotes"
    return f"{key}: {value!r} given; {_lower_first(detail['msg'])}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _known_keys(names: list[str]) -> list[str]:
    model: Any = Job
    rest = iter(names)
    for name in rest:
        field = _fields(model).get(name)
        if field is None:
            return []
        candidates = [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if get_origin(field.annotation) in (dict, list):
            # The next element selects an entry.
            next(rest, None)
    return sorted(_fields(model))


def _fields(model: Any) -> dict[str, FieldInfo]:
    """Fields of a section by their names in a job file."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return {}
    return {field.alias or name: field for name, field in model.model_fields.items()}
