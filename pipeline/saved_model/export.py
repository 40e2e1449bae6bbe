"""Export of a saved model as files to serve, with a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..atomic_file import atomic_folder
from ..config.columns import TIME_PARTS
from ..data.columns.kinds.registry import VALUES
from ..data.hashing import HASH_SEED, HASH_VERSION
from ..embedding.storage.first_values import mixed_key
from ..errors import JobFileError
from ..models.registry import find_model, takes_jagged
from ..text.format import is_unicode
from .dense_export import FILES, OUTPUT, Format, export_dense, require_exporter
from .exported import VERSION_DIGITS, Export, write_export_manifest
from .increment import CHANGE_COUNTS, require_same_model, tables_at
from .model import SavedModel
from .table import Table
from .table_files import TableFormat, TableRows, write_tables

EXPORT_VERSION = 1
# Keys of the job's [data] that state how a row becomes the model's input.
_PARSING = {
    *("format", "columns", "header", "delimiter", "quote", "encoding", "missing", "decimal", "strip"),
    *("dense_features", "categorical_features"),
}
_HASH_RULE = [
    "all arithmetic is modulo 2**64; >> fills with zeros; column is the table's hash_column",
    "mix(x): x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31",
    "h = mix(mix(seed ^ ((column + 1) * 0x9E3779B97F4A7C15)) ^ (length * 0x9E3779B97F4A7C15))",
    "for each 8 bytes of the value, little-endian, the last padded with zero bytes: h = mix(h ^ word)",
    "row = ((h >> 32) * rows) >> 32",
]
_MISSING_RULE = [
    "a value is missing if it is null, NaN, or a text that is in columns_of.missing; if columns_of.strip is"
    " true, blanks around the text are removed first",
]
_DENSE_RULE = [
    "x is the number in the column source; with transform time it is the seconds since 1970 of a time or of"
    " an ISO 8601 text (UTC if it names no zone), or a number as it is; with format, of a text in that"
    " format of strptime; with format ms or us, of a number of milliseconds or microseconds since 1970; with"
    " format days or excel, of a number of days since 1970 or since 30 December 1899, to the millisecond",
    "in texts the decimal separator is columns_of.decimal",
    "y = (x - shift) / scale, in float64",
    "transform log: sign(y) * log(1 + |y|); transform none or time: y; then rounded to float32",
    "if x is missing, the input is missing_number, without shift, scale or transform",
    "a row whose x is not a finite number has no score",
]
_TABLE_RULE = [
    "each entry of tables is a column of the model's input, in order; columns with the same name as table"
    " have the rows of one table, in one file",
]
_ROW_RULE = [
    "pooling none: the vector of the one id in the column source; a missing id is hashed as the empty text"
    " (length 0, no words), which has a row like any other",
    "a table with a part has no hash: x is the seconds since 1970 as for transform time, in UTC; the row is"
    " the place of x's part in rows_of: hour, weekday (0 is Monday), day of the month, or month; a missing x"
    " has the last row, rows - 1; a row whose x is no time of the years 1 to 9999 has no score",
    "a table with a cross has no source: its id is that of a combination, the 8 bytes, little-endian, of each"
    " table that the cross names, one after the other: h of a hashed table, the row of one without a hash",
    "a table with boundaries has no hash: the row is how many of them are at most the number in the column"
    " source; a missing number has the last row, rows - 1; a row whose number is not finite has no score",
]
_GROWING_RULE = [
    "the vector of an id is that of the key h, its hash",
    "an id without a key has its first values: with q = h * 2048 + p + first_key and"
    " m = mix(q * 0x9E3779B97F4A7C15), floats 2p and 2p + 1 are (n >> 8) * (first_scale * 2**-23) in float32,"
    " for n the low and the high half of m as signed 32-bit numbers; with storage bfloat16 they are then"
    " rounded to the nearest bfloat16, ties to even",
]
_SEQUENCE_RULE = [
    "pooling sequence: the vectors of the ids used, side by side in the order of the list; the input of the"
    " table is [batch, length, dim], length at least 1 and as long as the longest list or longer, with zeros"
    " behind a shorter list; the input lengths:TABLE has the number of ids used",
]
_WEIGHT_RULE = [
    "pooling weighted_sum or weighted_mean: the column weights has a number for each id of the column source,"
    " missing ids included, as a list or a text that is cut as the ids are; an id that is not used drops its"
    " weight; a row with another number of weights than ids, or with a weight of an id used that is missing,"
    " not finite or below 0, has no score",
    "weighted_sum: the sum of weight times vector of the ids used; weighted_mean: that sum divided by the sum"
    " of their weights; zeros if that sum is 0",
]
_BAG_RULE = [
    "pooling sum or mean: the column source has a list of ids, or a text that is cut at every delimiter; if"
    " it is missing, the bag is empty",
    "missing ids, such as the empty one in a||b, are left out first: they have no row and do not count",
    "of the other ids the first max_ids are used, with keep last the last max_ids, repeated ones included",
    "pooling sum: the sum of the ids' vectors; pooling mean: that sum divided by the number of ids used; an"
    " empty bag gives zeros",
]


def export_model(
    model: SavedModel, folder: Path, form: Format, tables: TableFormat, since: Path | None = None
) -> dict[str, Any]:
    """Write the dense part, the tables and manifest.json to `folder`.

    Either all files are written or none. With `since`, the folder of an earlier export, only the rows that
    differ from that export are written: an increment (see `increment`). Returns the manifest. Raises
    JobFileError (a package is missing, the module cannot be exported, or `since` is of another model),
    DataError (`since` or an export before it is damaged or missing), ResourceError (the folder exists
    already, or cannot be written).
    """
    require_exporter(form)
    _require_padded(model)
    if not is_unicode(str(folder)):
        raise JobFileError(
            f"{str(folder)!r} is not UTF-8", where="--out", remedy="give a folder with another path"
        )
    dims, longest, of_columns = _dims(model), _longest(model), _scored(model)
    names = ["dense", *(f"table:{name}" for name in of_columns)]
    names += [f"lengths:{name}" for name, table in of_columns.items() if table.pooling == "none"]
    manifest = _manifest(model, form, names)
    rows = {table.table: _rows_of(table) for table in of_columns.values()}
    if since is not None:
        base = Export.open(since)
        require_same_model(base, manifest, model.folder)
        before = tables_at(base)
        rows = {name: table.changes_since(before[name]) for name, table in rows.items()}
        manifest["since"] = base.reference()
        for entry in manifest["tables"]:
            changes = rows[entry["table"]]
            entry |= dict(zip(CHANGE_COUNTS, (len(changes.rows), len(changes.gone)), strict=True))
    with atomic_folder(folder) as place:
        dense, width = _dense_of(model), model.job.data.dense_width
        export_dense(dense, width, dims, names, form, place / FILES[form], longest)
        files = write_tables(rows, tables, place, whole=since is None)
        for entry in manifest["tables"]:
            entry["file"] = files.get(entry["table"])
        write_export_manifest(manifest, place)
    return manifest


def _require_padded(model: SavedModel) -> None:
    """Raise JobFileError for a model that takes jagged sequences alone: a file's inputs have fixed shapes."""
    maker = find_model(model.job.model.name)
    if takes_jagged(model.job) and not getattr(maker, "takes_sequences", False):
        raise JobFileError(
            f"{model.job.model.name} takes jagged sequences, and an exported model gets padded ones",
            where="model.name",
            remedy="have forward take an EmbeddedSequence as well, and say takes_sequences = True, too",
        )


def _rows_of(table: Table) -> TableRows:
    return (
        TableRows.all_of(table.weights) if table.grown is None else TableRows(table.grown.keys, table.weights)
    )


def dense_inputs(model: SavedModel) -> list[dict[str, Any]]:
    """Describe how each column of the dense input is computed, in order."""
    data = model.job.data
    if not data.columns:
        rule = {"transform": "log", "shift": 0.0, "scale": 1.0}
        return [
            {"name": f"I{number + 1}", "source": f"I{number + 1}"} | rule
            for number in range(data.dense_features)
        ]
    return [
        {
            "name": name,
            "source": column.source or name,
            "transform": column.transform,
            **({"format": column.format} if column.format else {}),
            "shift": column.shift,
            "scale": column.scale,
        }
        for name, column in data.columns_as("dense").items()
    ]


def _manifest(model: SavedModel, form: Format, names: list[str]) -> dict[str, Any]:
    hashed = [table for table in _scored(model).values() if not (table.is_fixed or table.parts)]
    integers = {_integer_rule(table) for table in hashed}
    return {
        "export_version": EXPORT_VERSION,
        "run": model.manifest.run,
        "model": model.manifest.model,
        "examples_trained": model.manifest.examples_trained,
        "version": model.manifest.digest[:VERSION_DIGITS],
        "created_at": model.manifest.created_at,
        "dense": _dense_entry(model, form, names),
        "data": {
            "columns_of": model.job.data.model_dump(mode="json", include=_PARSING),
            "dense_inputs": dense_inputs(model),
            "dense_rule": _DENSE_RULE,
            "missing_rule": _MISSING_RULE,
            "missing_number": 0.0,
        },
        "hash": {
            "version": HASH_VERSION,
            "seed": hex(HASH_SEED),
            "rule": _HASH_RULE,
            "text": "its bytes in UTF-8",
            "integer": integers.pop() if len(integers) == 1 else "as its table states",
        },
        "table_rule": _TABLE_RULE,
        "row_rule": _ROW_RULE,
        "bag_rule": _bag_rule(model),
        "tables": [_table_entry(model, table) for table in _scored(model).values()],
    }


def _scored(model: SavedModel) -> dict[str, Table]:
    """Return the tables of the columns that scores are computed from: of all but hard negatives."""
    return {name: table for name, table in model.tables.items() if name != model.job.model.negatives}


def _dims(model: SavedModel) -> list[int]:
    return [c.dim for c in model.job.embedded_columns if c.name != model.job.model.negatives]


def _dense_of(model: SavedModel) -> nn.Module:
    """Return the module whose input is `_scored`."""
    if not model.job.model.negatives:
        return model.dense
    return _WithoutColumn(model.dense, list(model.tables).index(model.job.model.negatives)).eval()


class _WithoutColumn(nn.Module):
    """A module without the entry of `embeddings` of a column that it does not read."""

    def __init__(self, module: nn.Module, place: int) -> None:
        super().__init__()
        self._module, self._place = module, place

    def forward(self, dense: torch.Tensor, embeddings: list[Any]) -> torch.Tensor:
        known, place = list(embeddings), self._place
        scores: torch.Tensor = self._module(dense, [*known[:place], known[0], *known[place:]])
        return scores


def _longest(model: SavedModel) -> dict[int, int]:
    """Return the most vectors of each sequence, by the number of its column."""
    columns = model.job.data.columns
    tables = enumerate(_scored(model).values())
    return {number: columns[table.name].max_ids for number, table in tables if table.pooling == "none"}


def _bag_rule(model: SavedModel) -> list[str]:
    poolings = {table.pooling for table in _scored(model).values()}
    weighted = _WEIGHT_RULE if any(pooling.startswith("weighted_") for pooling in poolings) else []
    return [*_BAG_RULE, *weighted, *(_SEQUENCE_RULE if "none" in poolings else [])]


def _dense_entry(model: SavedModel, form: Format, names: list[str]) -> dict[str, Any]:
    longest = _longest(model)
    shapes: list[list[Any]] = [["batch", model.job.data.dense_width]]
    for number, dim in enumerate(_dims(model)):
        shapes.append(["batch", "length", dim] if number in longest else ["batch", dim])
    inputs: list[dict[str, Any]] = [
        {"name": name, "dtype": "float32", "shape": shape}
        for name, shape in zip(names[: len(shapes)], shapes, strict=True)
    ]
    inputs += [{"name": name, "dtype": "int64", "shape": ["batch"]} for name in names[len(shapes) :]]
    of_lists = ", [lengths of each sequence]" if longest else ""
    call = f"forward(dense, [embedding of each table]{of_lists})"
    return {
        "format": form,
        "file": FILES[form],
        "inputs": inputs,
        "call": call if form == "torch-export" else "by name",
        "output": {"name": OUTPUT, "dtype": "float32", "shape": ["batch"]} | _labels_of(model),
        **_probability(model),
    }


def _labels_of(model: SavedModel) -> dict[str, Any]:
    """Return the shape of several labels' logits, and their names in order."""
    names = list(model.labels)
    return {"shape": ["batch", len(names)], "labels": names} if len(names) > 1 else {}


def _probability(model: SavedModel) -> dict[str, Any]:
    job = model.job
    if job.model.scores != "logits":
        return {}
    if not job.logit_offset:
        return {"probability": "1 / (1 + exp(-logit))"}
    return {
        "probability": "p / (p + (1 - p) * positive_weight / negative_share), with p = 1 / (1 + exp(-logit))",
        "negative_share": job.data.negative_share,
        "positive_weight": job.model.positive_weight,
    }


def _table_entry(model: SavedModel, table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "table": table.table,
        "rows": table.rows,
        "dim": table.dim,
        **_ids_of(model, table),
        **({} if table.is_fixed else _hash_of(table)),
        **({} if table.grown is None else _growth_of(model, table)),
    }


def _growth_of(model: SavedModel, table: Table) -> dict[str, Any]:
    """Describe how an id of a growing table gets its vector."""
    number, settings = next(
        (n, candidate) for n, candidate in enumerate(model.job.tables) if candidate.name == table.table
    )
    return {
        "growing": True,
        "rule": _GROWING_RULE,
        "first_key": hex(mixed_key(model.job.run.seed, number)),
        "first_scale": settings.init_scale,
        "storage": settings.storage,
    }


def _ids_of(model: SavedModel, table: Table) -> dict[str, Any]:
    """Describe where in an input row the ids of a column are."""
    if table.parts:
        return {"cross": [part.name for part in table.parts], "pooling": "none"}
    column = model.job.data.columns.get(table.name)
    source = (column.source if column is not None else "") or table.name
    if table.part is not None:
        assert column is not None
        times = {"part": table.part, "rows_of": list(TIME_PARTS[table.part])}
        return {"source": source, "pooling": "none", **times, "format": column.format}
    if table.boundaries:
        return {"source": source, "pooling": "none", "boundaries": list(table.boundaries)}
    if not table.pooling:
        return {"source": source, "pooling": "none"}
    assert column is not None
    bag = VALUES[column.kind].exported(column)
    if table.pooling == "none":
        # Here "none" says that a table has one id.
        return {"source": source, "pooling": "sequence"} | bag
    weights = {"weights": column.weights} if column.weights else {}
    return {"source": source, "pooling": table.pooling, "empty_bag": "zeros"} | bag | weights


def _hash_of(table: Table) -> dict[str, Any]:
    integer = {} if table.parts else {"integer": _integer_rule(table)}
    return {"hash_column": hex(table.column)} | integer


def _integer_rule(table: Table) -> str:
    return "its decimal digits" if table.integers_as_text else "8 bytes, little-endian"
