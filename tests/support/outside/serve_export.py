"""Scores the first ROWS of a log with what `shadowsync export` wrote, as who has no shadowsync would.

`python serve_export.py EXPORT LOG OUT.npy SHUFFLED.npy`: all that it knows of the model stands in its
manifest. The second file has what comes out when the rows of each table are shuffled.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

ALL = 2**64 - 1
ROWS = 1000


def mix(x: int) -> int:
    """As the manifest's hash rule has it."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL
    return x ^ (x >> 31)


def hash_of(value: str | int | bytes | None, seed: int, column: int) -> int:
    if isinstance(value, bytes):
        data = value
    else:
        data = (
            b""
            if value is None
            else value.to_bytes(8, "little")
            if isinstance(value, int)
            else value.encode()
        )
    golden = 0x9E3779B97F4A7C15
    h = mix(mix(seed ^ ((column + 1) * golden & ALL)) ^ (len(data) * golden & ALL))
    for at in range(0, len(data), 8):
        h = mix(h ^ int.from_bytes(data[at : at + 8], "little"))
    return h


class TableVectors:
    """A table's vectors, float32 [rows, dim], from Parquet or safetensors."""

    def __init__(self, folder: Path, table: dict[str, Any]) -> None:
        self._table = table
        file, grows = folder / table["file"], "growing" in table
        numbers: list[int]
        if file.suffix == ".parquet":
            read = pq.read_table(file)
            numbers = read["key" if grows else "row"].to_pylist()
            flat = read["vector"].combine_chunks().flatten().to_numpy()
            self._vectors: NDArray[np.float32] = flat.reshape(table["rows"], table["dim"])
        else:
            from safetensors.numpy import load_file

            read = load_file(file)
            self._vectors = read[table["name"]]
            keys = read[f"keys:{table['name']}"].view(np.uint64) if grows else range(len(self._vectors))
            numbers = [int(key) for key in keys]
        assert grows or numbers == list(range(table["rows"]))
        self._places = {number: place for place, number in enumerate(numbers)}

    def shuffle(self) -> None:
        """Give each row the vector of another."""
        self._vectors = np.roll(self._vectors, 1, axis=0)

    def of_hashes(self, hashes: list[int]) -> NDArray[np.float32]:
        """The vectors of ids, by the manifest's hash rule or the table's own."""
        if "growing" not in self._table:
            return self._vectors[[((h >> 32) * self._table["rows"]) >> 32 for h in hashes]]
        dim = self._table["dim"]
        found = [self._vectors[self._places[h]] if h in self._places else self._first(h) for h in hashes]
        return np.array(found, np.float32).reshape(len(hashes), dim)

    def of_row(self, row: int) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._vectors[row]
        return vector

    def _first(self, h: int) -> list[np.float32]:
        first_key, halves = int(self._table["first_key"], 16), []
        for p in range((self._table["dim"] + 1) // 2):
            m = mix((h * 2048 + p + first_key) * 0x9E3779B97F4A7C15 & ALL)
            halves += [m & 0xFFFFFFFF, m >> 32]
        signed = [n - 2**32 if n >= 2**31 else n for n in halves[: self._table["dim"]]]
        assert self._table["storage"] == "float32"
        return [np.float32(n >> 8) * np.float32(self._table["first_scale"] * 2.0**-23) for n in signed]


def dense_part(folder: Path, dense: dict[str, Any]) -> Callable[[list[NDArray[Any]]], Any]:
    """What gives the logits of the dense part."""
    if dense["format"] == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(folder / dense["file"])
        names = [entry["name"] for entry in dense["inputs"]]
        output = [dense["output"]["name"]]
        return lambda inputs: session.run(output, dict(zip(names, inputs, strict=True)))[0]
    import torch

    module = torch.export.load(folder / dense["file"]).module()

    lists = sum(entry["dtype"] == "int64" for entry in dense["inputs"])

    def run(inputs: list[NDArray[Any]]) -> Any:
        tensors = [torch.from_numpy(values) for values in inputs]
        end = len(tensors) - lists
        with torch.no_grad():
            given = (tensors[0], tensors[1:end], *([tensors[end:]] if lists else []))
            return module(*given).numpy()

    return run


def is_missing(value: Any, data: dict[str, Any]) -> bool:
    """As the manifest's missing rule has it."""
    parsing = data["columns_of"]
    text = value.strip() if isinstance(value, str) and parsing["strip"] else value
    return text is None or text in parsing["missing"]


def dense_input(
    values: list[float | None], entry: dict[str, Any], data: dict[str, Any]
) -> NDArray[np.float32]:
    """One column of the dense input, by the manifest's dense rule."""
    x = np.array([0.0 if is_missing(value, data) else value for value in values], np.float64)
    y: NDArray[np.float64] = (x - entry["shift"]) / entry["scale"]
    assert entry["transform"] in ("log", "none")
    y = np.copysign(np.log1p(np.abs(y)), y) if entry["transform"] == "log" else y
    y[[is_missing(value, data) for value in values]] = data["missing_number"]
    return y.astype(np.float32)


def networks_of(value: str, bits: dict[str, list[int]]) -> list[str]:
    """The networks of an IP address, by the manifest's words on ids."""
    address = ipaddress.ip_address(value)
    address = getattr(address, "ipv4_mapped", None) or address
    prefixes = bits[f"ipv{address.version}"]
    return [str(ipaddress.ip_network(f"{address}/{prefix}", strict=False)) for prefix in prefixes]


def bag_of(value: str | None, table: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """The ids of a bag, by the manifest's bag rule."""
    if "networks" in table:
        return [] if is_missing(value, data) else networks_of(str(value), table["networks"])
    ids = [] if is_missing(value, data) else str(value).split(table["delimiter"])
    return used([one for one in ids if not is_missing(one, data)], table)


T = TypeVar("T")


def used(of_ids: list[T], table: dict[str, Any]) -> list[T]:
    """What a bag has of its ids that are not missing, by the manifest's bag rule."""
    most: int = table["max_ids"]
    return of_ids[-most:] if table.get("keep") == "last" else of_ids[:most]


def weights_of(row: dict[str, Any], table: dict[str, Any], data: dict[str, Any]) -> NDArray[np.float32]:
    """The weights of the ids of a bag, by the manifest's bag rule."""
    value, given = row[table["source"]], row[table["weights"]]
    ids = [] if is_missing(value, data) else str(value).split(table["delimiter"])
    numbers = [] if is_missing(given, data) else str(given).split(table["delimiter"])
    pairs = zip(ids, numbers, strict=True)
    kept = [float(number) for one, number in pairs if not is_missing(one, data)]
    return np.array(used(kept, table), np.float32)


def row_of_bucket(value: float | None, table: dict[str, Any], data: dict[str, Any]) -> int:
    """The row of a bucket, by the manifest's row rule."""
    if is_missing(value, data):
        return int(table["rows"]) - 1
    return sum(boundary <= float(value or 0) for boundary in table["boundaries"])


def row_of_part(value: Any, table: dict[str, Any], data: dict[str, Any]) -> int:
    """The row of a part of a time, by the manifest's row rule."""
    if is_missing(value, data):
        return int(table["rows"]) - 1
    at = datetime.strptime(value, table["format"]).replace(tzinfo=UTC)
    part = at.weekday() if table["part"] == "weekday" else getattr(at, table["part"])
    return int(table["rows_of"].index(part))


def key_of(row: dict[str, Any], table: dict[str, Any], manifest: dict[str, Any]) -> int:
    """The row of a table without a hash, or the hash; by the manifest's row rule."""
    data = manifest["data"]
    if "part" in table:
        return row_of_part(row[table["source"]], table, data)
    if "boundaries" in table:
        return row_of_bucket(row[table["source"]], table, data)
    seed, column = int(manifest["hash"]["seed"], 16), int(table["hash_column"], 16)
    if "cross" in table:
        tables = {other["name"]: other for other in manifest["tables"]}
        keys = [key_of(row, tables[name], manifest) for name in table["cross"]]
        return hash_of(b"".join(key.to_bytes(8, "little") for key in keys), seed, column)
    value = row[table["source"]]
    return hash_of(None if is_missing(value, data) else value, seed, column)


def vector_of(
    row: dict[str, Any], table: dict[str, Any], manifest: dict[str, Any], vectors: TableVectors
) -> NDArray[np.float32]:
    """What the dense part gets of one table."""
    if table["pooling"] == "none":
        key = key_of(row, table, manifest)
        fixed = "part" in table or "boundaries" in table
        return vectors.of_row(key) if fixed else vectors.of_hashes([key])[0]
    seed, column = int(manifest["hash"]["seed"], 16), int(table["hash_column"], 16)
    ids = bag_of(row[table["source"]], table, manifest["data"])
    bag = vectors.of_hashes([hash_of(one, seed, column) for one in ids])
    if table["pooling"] == "sequence":
        # As long as the longest list there may be.
        padded: NDArray[np.float32] = np.zeros((table["max_ids"], table["dim"]), np.float32)
        padded[: len(bag)] = bag
        return padded
    if table["pooling"].startswith("weighted_"):
        factors = weights_of(row, table, manifest["data"])
        total = factors.sum() if table["pooling"] == "weighted_mean" and factors.any() else 1.0
        weighted: NDArray[np.float32] = (bag * factors[:, None]).sum(axis=0, dtype=np.float32)
        return weighted / np.float32(total)
    count = len(bag) if table["pooling"] == "mean" and len(bag) else 1
    pooled: NDArray[np.float32] = bag.sum(axis=0, dtype=np.float32) / np.float32(count)
    return pooled


def main(export: str, log: str, out: str, shuffled: str) -> None:
    folder = Path(export)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    table_of_rows = pq.read_table(log).slice(0, ROWS)
    rows = table_of_rows.to_pydict()
    records = table_of_rows.to_pylist()
    data = manifest["data"]
    numbers = [dense_input(rows[entry["source"]], entry, data) for entry in data["dense_inputs"]]
    logits = dense_part(folder, manifest["dense"])
    for path in (out, shuffled):
        inputs: list[NDArray[Any]] = [np.ascontiguousarray(np.stack(numbers, axis=1))]
        for table in manifest["tables"]:
            vectors = TableVectors(folder, table)
            if path == shuffled:
                vectors.shuffle()
            inputs.append(np.stack([vector_of(row, table, manifest, vectors) for row in records]))
        for table in manifest["tables"]:
            if table["pooling"] == "sequence":
                counts = [len(bag_of(row[table["source"]], table, data)) for row in records]
                inputs.append(np.array(counts, np.int64))
        np.save(path, logits(inputs))
    assert not any(name.startswith("shadowsync") for name in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
