"""The keys of a job file that a prepared folder knows: what the file leaves out, the folder says.

Reading a job file: TOML, then `--set` overrides, then the schema, each failure as one line.
"""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ..config.job import Job
from ..data.prepared.agreement import check_agreement
from ..data.prepared.manifest import PATH_KEYS, PreparedManifest, read_prepared
from ..errors import JobFileError


def fill_from_prepared(tree: dict[str, Any]) -> PreparedManifest | None:
    """Fills in the sections of a job file, not yet validated, in place; gives the folder's manifest.

    None, and nothing is changed, without `data.prepared`. Raises DataError as `read_prepared`.
    """
    data = tree.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("prepared"), str) or not data["prepared"]:
        return None
    manifest = read_prepared(data["prepared"])
    own_tables = {key: data[key] for key in ("columns", "categorical_features") if key in data}
    for key, value in manifest.order.data.items():
        data.setdefault(key, value)
    for role, paths in manifest.order.paths.items():
        if paths and not _splits(data.get("split"), role):
            data.setdefault(PATH_KEYS[role], paths)
    model = tree.setdefault("model", {})
    if isinstance(model, dict) and "table_rows" not in model and _same_tables(own_tables, manifest):
        rows = list(manifest.order.tables.values())
        model["table_rows"] = rows[0] if len(set(rows)) == 1 else rows
    return manifest


def _splits(split: Any, role: str) -> bool:
    """Whether the job takes this role's rows from those of training."""
    return isinstance(split, dict) and bool(split.get(role) or split.get(f"{role}_from") is not None)


def _same_tables(own: Mapping[str, Any], manifest: PreparedManifest) -> bool:
    """Whether the columns of the job, where it gives any, have the folder's tables in their order."""
    columns = own.get("columns")
    if isinstance(columns, dict):
        kinds = {
            name: value.get("kind") if isinstance(value, dict) else value for name, value in columns.items()
        }
        tables = [name for name, kind in kinds.items() if kind in ("categorical", "multi_hot")]
        return tables == list(manifest.order.tables)
    tables_given: Any = own.get("categorical_features", len(manifest.order.tables))
    return bool(tables_given == len(manifest.order.tables))


PATHS = ("path", "validation_path", "eval_path")
"""The keys of `[data]` that name files."""

REMOVED_KEYS = {
    "trainer.cache_rows": "was taken out in 0.2: delete the key",
    "trainer.cache_staleness": "was taken out in 0.2 with trainer.cache_rows: delete the key",
}
"""Keys of earlier versions, and what to do about each.

A job file with one is refused whatever its value; a job that an earlier version wrote into a run folder or a
checkpoint is read without it."""


def load_job(path: str | Path, overrides: Iterable[str] = ()) -> Job:
    """The validated job of the file at `path` with each `section.key=value` of `overrides` applied.

    Input globs, and the file of an algorithm or a model "./mine.py:Class", are made absolute against the
    folder of the job file; those given by an override are taken against the working directory, as a shell
    would.
    `run.name` defaults to the file's stem. What the file leaves out of a prepared input, `data.prepared`, the
    folder's manifest says.

    Raises:
        JobFileError: the file is absent, is no TOML, or has a wrong key or value, or one that is not that of
            its prepared folder.
        DataError: the folder has no manifest that can be used.
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


def job_of_tree(tree: Mapping[str, Any], overrides: Iterable[str] = ()) -> Job:
    """The validated job that a dict of sections describes, as a job file in the working directory would.

    Raises:
        JobFileError, DataError: as `load_job`.
    """
    return _resolve(copy.deepcopy(dict(tree)), Path.cwd(), "job", overrides, "the job")


def _spell_out_columns(tree: dict[str, Any]) -> None:
    """Writes `NAME = "dense"` as `NAME = { kind = "dense" }`, so that an override can add to it."""
    data = tree.get("data")
    columns = data.get("columns") if isinstance(data, dict) else None
    if isinstance(columns, dict):
        for name, value in columns.items():
            if isinstance(value, str):
                columns[name] = {"kind": value}


def _resolve(tree: dict[str, Any], base: Path, name: str, overrides: Iterable[str], where: str) -> Job:
    _absolute_paths(tree, base)
    changed: dict[str, Any] = {}
    for text in overrides:
        _apply_override(changed, text)
    _absolute_paths(changed, Path.cwd())
    _spell_out_columns(tree)
    _merge(tree, changed)
    run = tree.setdefault("run", {})
    if isinstance(run, dict):
        run.setdefault("name", name)
    manifest = fill_from_prepared(tree)
    job = validate_job(tree, where=f"{where} and --set" if changed else where)
    if manifest is not None:
        check_agreement(job, manifest)
    return job


def load_resolved(path: str | Path) -> Job:
    """The job of a resolved job file, `job.json`, as a run folder has it; raises JobFileError."""
    try:
        tree = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise JobFileError(
            f"cannot be read ({error.strerror})", where=str(path), remedy="give a run's job.json"
        ) from error
    except ValueError as error:
        raise JobFileError(f"is not valid JSON ({error})", where=str(path)) from error
    if not isinstance(tree, dict):
        raise JobFileError("is no JSON object", where=str(path), remedy="give a run's job.json")
    return validate_saved_job(tree, where=str(path))


def validate_saved_job(tree: dict[str, Any], *, where: str) -> Job:
    """The job of a run folder or a checkpoint, perhaps of an earlier version.

    Raises:
        JobFileError: as `validate_job`.
    """
    tree = copy.deepcopy(tree)
    for key in REMOVED_KEYS:
        section, _, name = key.partition(".")
        if isinstance(tree.get(section), dict):
            tree[section].pop(name, None)
    return validate_job(tree, where=where)


def validate_job(tree: dict[str, Any], *, where: str) -> Job:
    """The job that `tree` describes; raises JobFileError for the first few things that are wrong with it."""
    try:
        return Job.model_validate(tree)
    except ValidationError as error:
        details = [detail for detail in error.errors() if not _is_other_branch(detail)]
        told = [_explain(detail) for detail in details[:5]]
        more = len(details) - len(told)
        text = "; ".join(told) + (f"; and {more} more" if more > 0 else "")
        raise JobFileError(text, where=where) from error


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
    # A file may be called like a number or a date.
    if len(parts) == 2 and parts[0] == "data" and parts[1] in PATHS and not isinstance(value, str | list):
        value = raw
    node = changed
    for at, part in enumerate(parts[:-1], start=1):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise JobFileError(
                f"--set {text!r} cannot be used",
                remedy=f"another --set gives {'.'.join(parts[:at])} a value; give one of the two",
            )
    node[parts[-1]] = value


def override_value(raw: str) -> Any:
    """The value as TOML reads it; what is no TOML value, and more than one line, is text."""
    try:
        tree = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return tree["value"] if len(tree) == 1 else raw


def _absolute_paths(tree: dict[str, Any], base: Path) -> None:
    for section, key in (("sync", "algorithm"), ("model", "name")):
        named = tree.get(section)
        if isinstance(named, dict) and isinstance(named.get(key), str):
            file, colon, name = named[key].rpartition(":")
            if colon and (file.endswith(".py") or "/" in file):
                named[key] = f"{(base / file).resolve()}:{name}"
    start = tree.get("start")
    if isinstance(start, dict) and isinstance(start.get("checkpoint"), str) and start["checkpoint"]:
        start["checkpoint"] = str((base / start["checkpoint"]).resolve())
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
            data[key] = [_absolute(base, item) if isinstance(item, str) else item for item in value]


def _absolute(base: Path, path: str) -> str:
    # A URL is whole as it stands.
    return path if "://" in path else str(base / path)


def _is_other_branch(detail: ErrorDetails) -> bool:
    """Whether this is about the form of `model.table_rows` that was not written: number or list."""
    location = detail["loc"]
    if location[:2] != ("model", "table_rows") or len(location) != 3:
        return False
    return str(location[2]).startswith("list[") != isinstance(detail["input"], list)


def _explain(detail: ErrorDetails) -> str:
    names = [str(part) for part in detail["loc"]]
    if names[:2] == ["model", "table_rows"]:
        # The third part is pydantic's name of the form, number or list.
        del names[2:3]
    key = ".".join(names)
    given, kind = detail["input"], detail["type"]
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
        return f"{key}: {given!r} given; it is a section, write [{key}] and its keys below"
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    if kind == "invalid-json-value":
        return f"{key}: {given} given; write it as text, in quotes"
    return f"{key}: {given!r} given; {_lower_first(detail['msg'])}"


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
            # The next part is which of them.
            next(rest, None)
    return sorted(_fields(model))


def _fields(model: Any) -> dict[str, FieldInfo]:
    """The fields of a section by the names that a job file has for them."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return {}
    return {field.alias or name: field for name, field in model.model_fields.items()}
